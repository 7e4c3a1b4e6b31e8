"""A session whose standalone stream can go on over a WebSocket (`docs/websocket.md`): honest, or as servers err.

mcp = UpgradableMcp()
async with FakeServer(mcp) as server:
    ...  # connect a guard with `websocket=True`
    mcp.emit(notification("notifications/tools/list_changed"))
"""

from __future__ import annotations

import secrets
from enum import Enum
from typing import Any

import anyio

from ._http1 import Request
from .fake_server import Reply
from .scripted_mcp import ScriptedMcp
from .served_socket import ServedSocket
from .written import json_response, sse_event, sse_head


class UpgradeLie(Enum):
    """What servers do wrong with a session that moves to a socket (the third seed's reproduction)."""

    ONLY_NEW = "says that it goes on from the position, and forwards only what is emitted from now on"
    EVICTED = "grants the upgrade although its buffer does not reach back to the position"
    OWN_POSITION = "takes its own last emitted ID for the client's position"


class UpgradableMcp(ScriptedMcp):
    """Keeps one log of the session's standalone stream, and serves it by SSE and by socket.

    Honest unless told to `lie`: the ticket is bound to the position that the client named in the body of its
    request, is used once, and is refused with 409 where the log does not hold the position's event any more.
    Every answer carries `Last-Event-ID`, the last ID *emitted*, which no client must take for its own position.
    """

    def __init__(self, *, lie: UpgradeLie | None = None, path: str = "/mcp/upgrade", **parts: Any) -> None:
        super().__init__(**parts)
        self.lie = lie
        self.path = path
        self.log: list[tuple[str, Any]] = []
        """What was emitted: event ID and message. Remove from its front what the buffer has evicted."""
        self.count = 0
        self.streamed = 0
        """How much of it was written to any stream or socket."""
        self.silent = False
        """Event streams carry nothing for now: what is emitted waits in the log."""
        self.positions: list[str] = []
        """What the clients said in the body of their requests."""
        self.sockets = 0
        """Handshakes that were accepted."""
        self._tickets: dict[str, str | int] = {}
        self._emitted = anyio.Event()

    def emit(self, message: Any, event_id: str | None = None) -> str:
        """Append to the log, and wake whoever serves it. Returns the event ID: `e1`, `e2`, …"""
        self.count += 1
        event_id = event_id or f"e{self.count}"
        self.log.append((event_id, message))
        self.wake()
        return event_id

    def wake(self) -> None:
        """Have those who serve the log look again."""
        self._emitted.set()
        self._emitted = anyio.Event()

    async def __call__(self, request: Request, reply: Reply) -> None:
        """Hand the request to its part."""
        if request.target.partition("?")[0] != self.path:
            await super().__call__(request, reply)
        elif request.method == "POST":
            await self.upgrade(request, reply)
        else:
            await self.open_socket(request, reply)

    async def standalone(self, request: Request, reply: Reply) -> None:
        """By SSE, what was on no stream before."""
        await reply.write(sse_head(headers=self._last_emitted(), chunked=False))
        await self._stream(reply, self.streamed - (self.count - len(self.log)))

    async def resume(self, request: Request, reply: Reply) -> None:
        """The log behind the cursor, by SSE; 400 if the log does not hold it."""
        place = self._place(request.last_event_id)
        if place is None:
            await reply.status(400)
            return
        await reply.write(sse_head(headers=self._last_emitted(), chunked=False))
        await self._stream(reply, place)

    async def upgrade(self, request: Request, reply: Reply) -> None:
        """A ticket for the position in the body."""
        position = (request.json or {}).get("positions", {}).get("standalone")
        if request.session_id != self.session or not isinstance(position, str):
            await reply.status(400)
            return
        self.positions.append(position)
        if self.lie is UpgradeLie.OWN_POSITION:
            position = self.log[-1][0]
        if self.lie is None and self._place(position) is None:
            await self.refuse_upgrade(request, reply)
            return
        ticket = secrets.token_urlsafe(16)
        self._tickets[ticket] = position
        await reply.write(json_response({"ticket": ticket}, headers=self._last_emitted()))

    async def refuse_upgrade(self, request: Request, reply: Reply) -> None:
        """409: the log does not cover the position."""
        await reply.json({"error": "stay on the event stream, and drain it"}, status=409)

    async def open_socket(self, request: Request, reply: Reply) -> None:
        """101 for a ticket, and the log from its position on."""
        position = self._tickets.pop(request.header("mcp-upgrade-ticket") or "", None)
        if position is None or request.session_id != self.session:
            await reply.status(403)
            return
        socket = await ServedSocket.accept(request, reply)
        self.sockets += 1
        place = self._place(str(position))
        if self.lie is UpgradeLie.ONLY_NEW:
            place = len(self.log)
        await self.serve(socket, 0 if place is None else place)

    async def serve(self, socket: ServedSocket, place: int) -> None:
        """The log from this place on, until the client leaves."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, socket, place)
            await socket.closed_with()
            tasks.cancel_scope.cancel()

    async def _follow(self, socket: ServedSocket, place: int) -> None:
        place += self.count - len(self.log)  # events are counted from the first, evicted or not
        while True:
            evicted = self.count - len(self.log)
            for event_id, message in self.log[max(0, place - evicted) :]:
                await socket.event(event_id, message)
            place = self.streamed = self.count
            await self._emitted.wait()

    async def _stream(self, reply: Reply, place: int) -> None:
        place += self.count - len(self.log)
        while not reply.client_gone.is_set():
            evicted = self.count - len(self.log)
            if not self.silent:
                for event_id, message in self.log[max(0, place - evicted) :]:
                    await reply.write(sse_event(message, id=event_id))
                place = self.streamed = self.count
            await self._emitted.wait()

    def _place(self, event_id: str | None) -> int | None:
        """Where the log goes on after this event."""
        return next((n + 1 for n, (held, _) in enumerate(self.log) if held == event_id), None)

    def _last_emitted(self) -> dict[str, str]:
        return {"last-event-id": self.log[-1][0]} if self.log else {}
