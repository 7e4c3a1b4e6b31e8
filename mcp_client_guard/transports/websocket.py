"""WebSockets without a network of their own: websockets' protocol core over the stream of an upgraded HTTP answer.

So whatever client the guard stands on brings its own TLS, proxies, cookies and credentials along, on either event
loop. The wire format is that of `docs/websocket.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from attrs import define, field
from websockets.client import ClientProtocol
from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from mcp_client_guard._theirs import is_theirs
from mcp_client_guard.core.actions import AskUpgrade, OpenSocket
from mcp_client_guard.core.inputs import UNREADABLE, Answered, EventReceived, Input, TooLarge, UpgradeAnswered

from . import http
from .answer import Answer
from .exchange import Exchange, SocketEnded
from .heeding import Heed
from .sent import is_stream_error
from .sse import parse_json

SUBPROTOCOL = Subprotocol("mcp-upgrade.v1")
TICKET = "mcp-upgrade-ticket"
_ENVELOPE = 16 * 1024
"""What a frame may hold besides its message."""
_SILENT = logging.Logger("websockets", level=logging.CRITICAL + 1)
"""It would log headers and frames: session IDs, and what people say."""
_ASK_SECONDS = 30.0
_ANSWER_BYTES = 64 * 1024
_CLOSING_SECONDS = 0.2
_READ = 64 * 1024


class EventTooLarge(Exception):
    """One event is larger than the bound; the socket is not read on."""


class Shell(Protocol):
    """The part of the shell that is used."""

    def begin(self, exchange: Exchange) -> None: ...

    def feed(self, told: Input) -> None: ...

    async def take(self, exchange: Exchange, events: Sequence[EventReceived], size: int) -> None: ...


@define(eq=False, repr=False)
class Sockets:
    """Asks for the upgrade, and opens what is granted."""

    endpoint: http.Endpoint
    """Of the upgrade's URL."""
    max_event_size: int
    max_idle: float

    async def ask(self, order: AskUpgrade) -> UpgradeAnswered:
        """The server's word. Raises nothing."""
        headers = {**order.headers, "accept": "application/json", "content-type": "application/json"}
        sent = self.endpoint.sending("POST")
        try:
            with anyio.fail_after(_ASK_SECONDS):
                async with self.endpoint.request("POST", headers, http.body_of(order.body), sent=sent) as answer:
                    return await _answered(order.question, answer)
        except BaseException as error:  # of a client of the user's, anything
            if not is_theirs(error):
                raise
            return UpgradeAnswered(
                order.question, None, why=type(error).__name__, lasts=not sent.is_of_network(error)
            )

    async def converse(self, exchange: Exchange, order: OpenSocket, shell: Shell) -> None:
        """One socket, from its handshake to its end, or the refusal of it.

        Raises:
            SocketEnded: how it ended; or what was answered is no handshake.
        """
        protocol = ClientProtocol(
            parse_uri("ws://localhost/"),
            subprotocols=[SUBPROTOCOL],
            max_size=self.max_event_size + _ENVELOPE,
            logger=_SILENT,
        )
        sent = {name.lower(): value for name, value in protocol.connect().headers.raw_items()}
        del sent["host"]
        headers = {**order.headers, **sent, TICKET: order.ticket}
        seen = self.endpoint.sending("GET", partial(shell.begin, exchange))
        async with self.endpoint.request("GET", headers, sent=seen) as answer:
            exchange.last_byte = anyio.current_time()
            stream = _stream_below(answer)
            if stream is None:
                shell.feed(await exchange.refused(answer, self.endpoint.url, self.max_event_size))
                return
            socket = Socket(order, protocol, stream, self.max_event_size, self.max_idle / 3)
            socket.shake_hands(answer.fields)
            now = exchange.last_byte
            shell.feed(Answered(order.stream, order.connection, 101, True, answer.session_id, now))
            await self._read(exchange, socket, shell)

    async def _read(self, exchange: Exchange, socket: Socket, shell: Shell) -> None:
        try:
            while True:
                events, size = await socket.receive()
                if size:
                    exchange.last_byte = anyio.current_time()
                await shell.take(exchange, events, size)
        except EventTooLarge:
            order = socket.order
            shell.feed(TooLarge(order.stream, order.connection))
        finally:
            await socket.close()


def _stream_below(answer: Answer) -> Any | None:
    """The network stream of a 101, unless the client shows none, or has closed it.

    A hook of the caller's does that which raises for whatever is no 2xx, or reads each body.
    """
    response: Any = answer.response
    if answer.status != 101 or getattr(response, "is_closed", False):
        return None
    return response.extensions.get("network_stream")


async def _answered(question: int, answer: Answer) -> UpgradeAnswered:
    body = bytearray()
    async for chunk in answer.chunks():
        body += chunk
        if len(body) > _ANSWER_BYTES:
            break
    parsed = parse_json(bytes(body)) if body else None
    # Only these: a `Last-Event-ID` of the server's is its position, and never ours.
    return UpgradeAnswered(
        question, answer.status, None if parsed is UNREADABLE else parsed, answer.session_id, answer.retry_after
    )


@define(eq=False, repr=False)
class Socket:
    """An open WebSocket, and the stream whose events come on it."""

    order: OpenSocket
    protocol: ClientProtocol
    stream: Any
    """The `httpcore` network stream below."""
    max_event_size: int
    ping_after: float
    """Seconds of silence."""
    _message: bytearray = field(factory=bytearray, init=False)
    _failure: Exception | None = field(default=None, init=False)
    """Why nothing more is read of it."""
    _heed: Heed = field(factory=Heed, init=False)

    def shake_hands(self, fields: dict[str, str]) -> None:
        """Have the protocol judge the answer to the handshake.

        Raises:
            SocketEnded: it is none, or of another protocol than ours.
        """
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.protocol.receive_data(f"HTTP/1.1 101 Switching Protocols\r\n{lines}\r\n".encode("latin-1"))
        self.protocol.events_received()
        self.protocol.data_to_send()
        if self.protocol.handshake_exc is not None:
            raise SocketEnded("no WebSocket handshake")
        if self.protocol.subprotocol != SUBPROTOCOL:
            raise SocketEnded("another subprotocol")

    async def receive(self) -> tuple[list[EventReceived], int]:
        """The next events, and the bytes they came in; none where there were other bytes, or nothing for a while.

        Raises:
            SocketEnded: it is over, and everything that came before was returned.
            EventTooLarge: a message passes `max_event_size`.
        """
        await self._write()
        self._check()
        data: bytes | None = None
        with anyio.move_on_after(self.ping_after):
            data = await self.stream.read(_READ)
        if data is None:
            self.protocol.send_ping(b"")
            return [], 0
        if not data:
            raise SocketEnded("cut")
        if self._heed.is_due(len(data)):
            await checkpoint_if_cancelled()
        self.protocol.receive_data(data)
        events: list[EventReceived] = []
        for frame in self.protocol.events_received():
            self._read(frame, events)
            if self._failure is not None:
                break  # what stands behind it is behind a gap
        return events, len(data)

    def _read(self, frame: Any, events: list[EventReceived]) -> None:
        if not isinstance(frame, Frame) or frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.opcode is Opcode.BINARY:
            self._fail(CloseCode.UNSUPPORTED_DATA, "binary frames are not of this protocol")
            return
        self._message += frame.data
        if not frame.fin:
            return
        data, self._message = bytes(self._message), bytearray()
        try:
            parsed = parse_json(data.decode())
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "not UTF-8")
            return
        event = self._event(parsed)
        if event is None:
            self._fail(CloseCode.POLICY_VIOLATION, "not a frame of this protocol")
        elif len(event.data) > self.max_event_size:
            self._fail(CloseCode.MESSAGE_TOO_BIG, "larger than max_event_size", EventTooLarge())
        else:
            events.append(event)

    def _event(self, frame: Any) -> EventReceived | None:
        if not isinstance(frame, dict) or frame.get("stream") != "standalone":
            return None
        event_id, body = frame.get("id"), frame.get("message")
        if not isinstance(event_id, str) or not event_id:
            return None
        data = b"" if body is None else http.body_of(body)
        return EventReceived(self.order.stream, self.order.connection, event_id, data, body)

    def _fail(self, code: CloseCode, why: str, failure: Exception | None = None) -> None:
        self._failure = failure or SocketEnded(why)
        if self.protocol.state is State.OPEN:
            self.protocol.fail(code, why)

    def _check(self) -> None:
        if isinstance(self.protocol.parser_exc, PayloadTooBig):
            raise EventTooLarge
        if self._failure is not None:
            raise self._failure
        if self.protocol.state is not State.OPEN:
            ended = self.protocol.close_rcvd or self.protocol.close_sent
            raise SocketEnded(f"closed with {ended.code if ended is not None else 'nothing'}")

    async def _write(self) -> None:
        data = b"".join(self.protocol.data_to_send())
        if data:
            await self.stream.write(data)
            await self.stream.write(b"")  # our own client holds back what no empty write follows

    async def close(self) -> None:
        """Say goodbye; whether it is heard does not matter."""
        with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
            try:
                if self.protocol.state is State.OPEN:
                    self.protocol.send_close(CloseCode.NORMAL_CLOSURE)
                await self._write()
            except Exception as error:
                if not is_stream_error(error):
                    raise
