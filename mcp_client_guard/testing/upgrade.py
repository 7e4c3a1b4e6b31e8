"""The upgrade to a WebSocket (`docs/websocket.md`), as an event-log server offers it: honest, or with a lie.

Needs the extra `ws`; without it the server says that it offers no upgrade (501).
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import anyio
from attrs import define, field, frozen

from ._http1 import Request
from ._log_endpoints import without_log
from ._sockets import Closed
from .event_log import Refusal, Replay
from .lies import Lie
from .proxy import How
from .sessions import Reader, Session
from .written import json_response

if TYPE_CHECKING:
    from .event_log_server import EventLogServer
    from .fake_server import Reply
    from .served_socket import ServedSocket


TICKET_SECONDS = 60.0
"""After which a ticket is worth nothing."""


@frozen
class Ticket:
    """What one handshake may redeem."""

    session: Session
    stream: str
    after: int


@define(eq=False)
class Upgrade:
    """Grants tickets, and redeems them within `TICKET_SECONDS`.

    `on_ask`, `on_open`, `on_socket` and the `clock` (in seconds) can be replaced by the test's own.
    """

    server: EventLogServer
    positions: list[str] = field(factory=list)
    """What clients said in the body of their requests."""
    sockets: list[ServedSocket] = field(factory=list)
    """Every socket that was opened."""
    clock: Callable[[], float] = anyio.current_time
    on_ask: Callable[[Request, Reply], Awaitable[None]] = field(init=False)
    on_open: Callable[[Request, Reply], Awaitable[None]] = field(init=False)
    on_socket: Callable[[ServedSocket, Reader], Awaitable[None]] = field(init=False)
    _tickets: dict[str, tuple[float, Ticket]] = field(factory=dict)
    """Each with the time at which it expires."""

    def __attrs_post_init__(self) -> None:
        self.on_ask = self.ask
        self.on_open = self.open
        self.on_socket = self.follow

    async def __call__(self, request: Request, reply: Reply) -> None:
        """Answer a request to `/mcp/upgrade`."""
        if find_spec("websockets") is None:
            await reply.status(501)
        elif request.method == "POST":
            await self.on_ask(request, reply)
        elif request.method == "GET":
            await self.on_open(request, reply)
        else:
            await reply.status(405)

    async def ask(self, request: Request, reply: Reply) -> None:
        """A ticket, if the log holds everything behind the position that the client named in the body.

        The answer carries `Last-Event-ID`, the last ID *emitted*, which no client must take for its own position.
        """
        session = self.server.store.find(request.session_id, "http")
        body: Any = request.json
        positions = body.get("positions") if isinstance(body, dict) else None
        position = positions.get("standalone") if isinstance(positions, dict) else None
        if not isinstance(position, str):
            await reply.status(404 if session is None else 400)
            return
        self.positions.append(position)
        if session is None:
            await reply.status(404)
            self.server.note_resume(without_log(position, "http"))
            return
        if session.standalone is None:
            await reply.status(400)
            self.server.note_resume(session.resume(position, stream=""))
            return
        told = self._place(session, session.standalone, position)
        emitted = {"last-event-id": session.log.event_id(session.standalone, session.log.head(session.standalone))}
        if isinstance(told, Refusal):
            error = {"code": -32000, "message": told.reason.value, "data": {"code": "resume_gap"}}
            refused = {"jsonrpc": "2.0", "id": None, "error": error}
            await reply.write(json_response(refused, status=409, headers=emitted))
            self.server.note_resume(told)
            return
        ticket = secrets.token_urlsafe(16)
        self._expire()
        self._tickets[ticket] = (self.clock() + TICKET_SECONDS, told)
        await reply.write(json_response({"ticket": ticket}, headers=emitted))

    def _place(self, session: Session, stream: str, position: str) -> Ticket | Refusal:
        found = session.log.resume(position, stream=stream)
        self.server.note_race(position, found)
        match self.server.lie:
            case Lie.UPGRADE_OWN_POSITION:
                return Ticket(session, stream, session.log.head(stream))
            case Lie.UPGRADE_EVICTED if isinstance(found, Refusal):
                held = session.log.held(stream)
                return Ticket(session, stream, held[0].number - 1 if held else session.log.head(stream))
        return Ticket(session, found.stream, found.after) if isinstance(found, Replay) else found

    def _expire(self) -> None:
        now = self.clock()
        self._tickets = {name: kept for name, kept in self._tickets.items() if now < kept[0]}

    async def open(self, request: Request, reply: Reply) -> None:
        """101 for a ticket, and the stream behind its position: whoever read it before reads no more."""
        from websockets.exceptions import InvalidHandshake

        from .served_socket import ServedSocket

        self._expire()
        name = request.header("mcp-upgrade-ticket") or ""
        _, ticket = self._tickets.get(name, (0.0, None))
        if ticket is None or ticket.session is not self.server.store.find(request.session_id, "http"):
            await reply.status(403)
            return
        session, stream = ticket.session, ticket.stream
        only_new = self.server.lie is Lie.UPGRADE_ONLY_NEW
        after = session.log.head(stream) if only_new else ticket.after
        try:
            socket = await ServedSocket.accept(request, reply)
        except InvalidHandshake:
            return
        del self._tickets[name]
        reader = session.subscribe(stream, after)
        self.sockets.append(socket)
        try:
            await self.on_socket(socket, reader)
        finally:
            reader.close()

    async def follow(self, socket: ServedSocket, reader: Reader) -> None:
        """The stream, one event a frame, until the client leaves or the reader is over."""
        left = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await socket.closed_with()
                left.set()

            tasks.start_soon(watch)
            with suppress(OSError, Closed):  # the client left while an event was written
                while entries := await reader.next(left):
                    for entry in entries:
                        await socket.event(entry.event_id, entry.message)
                        reader.wrote(entry)
            tasks.cancel_scope.cancel()
        with suppress(OSError, Closed):  # it has left
            await socket.raw(How.FIN)
