"""A TCP proxy that ends or stalls an HTTP response at exactly the byte a test names.

    async with CuttingProxy(server_port, cuts=[Cut(at=312, how=How.RST)]) as proxy:
        ...  # point the client at proxy.url
        assert proxy.exchanges[2].sent == 312

Connections are kept alive by HTTP clients and carry several requests, so the proxy reads the heads and
lengths that pass and knows which request each response byte belongs to. Byte counts include header bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from enum import Enum
from types import TracebackType

import anyio
from anyio.abc import TaskGroup
from attrs import define, field, frozen

from ._http1 import Event, MessageReader, NotHttp, Request, events_of
from ._sockets import Closed, Listener, Socket


class How(Enum):
    """What becomes of the connection at the cut."""

    FIN = "fin"
    """Closed in both directions with a FIN: what a proxy in the middle does."""
    HALF_CLOSE = "half-close"
    """A FIN to the client, whose own bytes are still read."""
    RST = "rst"
    """Reset (`SO_LINGER` 0): what a crashed or restarted peer does."""
    STALL = "stall"
    """Nothing more is forwarded and nothing is closed: half open, until the client closes it."""


@define(eq=False)
class Exchange:
    """One request and what was answered to it."""

    request: Request
    root: Exchange | None = None
    """Of a resume: the exchange in which its `Last-Event-ID` first appeared."""
    cut: Cut | None = None
    cut_done: bool = False
    sent: int = 0
    """Response bytes forwarded to the client."""
    reader: MessageReader = field(factory=lambda: MessageReader(request=False), repr=False)

    @property
    def origin(self) -> Exchange:
        """The exchange that opened the stream which this one belongs to."""
        return self.root or self

    @property
    def response(self) -> bytes:
        """Every response byte the server sent, forwarded or not."""
        return bytes(self.reader.wire)

    @property
    def complete(self) -> bool:
        """The server sent the whole response."""
        return self.reader.complete

    @property
    def head_length(self) -> int:
        """Bytes of the response head, its blank line included; 0 before it has come."""
        return self.reader.head_length

    @property
    def status(self) -> int | None:
        """HTTP status, once the response head has come."""
        return None if self.reader.head is None else self.reader.head.status

    @property
    def is_sse(self) -> bool:
        """The response is an event stream."""
        head = self.reader.head
        return head is not None and (head.get("content-type") or "").startswith("text/event-stream")

    @property
    def events(self) -> list[Event]:
        """The complete events of the response, forwarded or not. `Event.end` counts bytes of the body."""
        return list(events_of(bytes(self.reader.body))) if self.is_sse else []

    @property
    def boundaries(self) -> list[int]:
        """For each event: how many response bytes there are up to and with its blank line."""
        return [self.reader.wire_offset(event.end) for event in self.events]

    @property
    def delivered(self) -> list[Event]:
        """The events whose last byte was forwarded to the client."""
        return [event for event, end in zip(self.events, self.boundaries, strict=True) if end <= self.sent]


Match = Callable[[Exchange], bool]


def calls_of(tool: str | None = None) -> Match:
    """Matches the POST of a `tools/call`, of this tool if one is named."""

    def match(exchange: Exchange) -> bool:
        request = exchange.request
        if request.rpc_method != "tools/call":
            return False
        return tool is None or request.json["params"]["name"] == tool

    return match


def resumes_of(match: Match | None = None) -> Match:
    """Matches a GET with `Last-Event-ID`: of any stream, or of one whose opening request matches."""

    def resumed(exchange: Exchange) -> bool:
        request = exchange.request
        if request.method != "GET" or request.last_event_id is None:
            return False
        return match is None or match(exchange.origin)

    return resumed


def standalone(exchange: Exchange) -> bool:
    """Matches the GET that opens a standalone stream."""
    return exchange.request.method == "GET" and exchange.request.last_event_id is None


def after_event(number: int, offset: int = 0) -> Callable[[Exchange], int | None]:
    """For `Cut.at`: so many bytes after (or before, if negative) the end of this event, counted from 1."""

    def place(exchange: Exchange) -> int | None:
        boundaries = exchange.boundaries
        return boundaries[number - 1] + offset if len(boundaries) >= number else None

    return place


@frozen
class Cut:
    """Where one response ends early. An exchange takes the first of a plan that matches and is unused."""

    at: int | Callable[[Exchange], int | None]
    """Response bytes forwarded before it, header bytes included; at 0 the first byte is already withheld.
    Or a function that is asked as bytes come, and answers None while it cannot know: see `after_event`."""
    how: How = How.FIN
    where: Match = field(factory=calls_of)
    skip: int = 0
    """Matching exchanges to let pass first."""
    keep_upstream: bool = False
    """Leave the server's side open and read on: the server has not noticed."""


class CuttingProxy:
    """Forwards to `host:port`; use it as an async context manager. Cuts may be appended at any time."""

    def __init__(self, port: int, cuts: Iterable[Cut] = (), *, host: str = "127.0.0.1") -> None:
        self._upstream = (host, port)
        self.cuts = list(cuts)
        self.exchanges: list[Exchange] = []
        """All requests seen, in the order of their arrival."""
        self.connections = 0
        """Connections accepted so far."""
        self._skipped: dict[int, int] = {}
        self._changed = anyio.Event()
        self._listener = Listener()
        self._sockets: set[Socket] = set()
        self._stack = AsyncExitStack()

    @property
    def port(self) -> int:
        """Where the proxy listens, on 127.0.0.1."""
        return self._listener.port

    @property
    def url(self) -> str:
        """The MCP endpoint seen through the proxy."""
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def unused_cuts(self) -> list[Cut]:
        """Cuts that have not happened: a scenario that leaves some has not tested what it says."""
        done = [exchange.cut for exchange in self.exchanges if exchange.cut_done]
        return [cut for cut in self.cuts if not any(cut is used for used in done)]

    async def __aenter__(self) -> CuttingProxy:
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(self._close)
        self._stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(self._accept, tasks)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` is true; it is asked again when bytes or endings have passed."""
        while not condition():
            await self._changed.wait()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def refuse(self) -> None:
        """Stop listening: new connections are refused, those open go on."""
        self._listener.close()

    def drop_all(self, how: How = How.RST) -> None:
        """End every open connection now, on both sides."""
        for sock in list(self._sockets):
            sock.abort() if how is How.RST else sock.close()

    def _close(self) -> None:
        self._listener.close()
        self.drop_all()

    async def _accept(self, tasks: TaskGroup) -> None:
        try:
            while True:
                client = await self._listener.accept()
                self.connections += 1
                tasks.start_soon(_Link(self, client, self.connections).run)
        except Closed:
            pass

    def _seen(self, reader: MessageReader, connection: int) -> Exchange:
        """A request's last byte, or the first of its answer, has passed."""
        request = Request.from_reader(reader, serial=len(self.exchanges) + 1, connection=connection)
        exchange = Exchange(request, self._root_of(request.last_event_id))
        exchange.reader = MessageReader(request=False, answer_to=request.method)
        self.exchanges.append(exchange)
        exchange.cut = self._cut_for(exchange)
        return exchange

    def _root_of(self, event_id: str | None) -> Exchange | None:
        if event_id is None:
            return None
        known = (e.origin for e in self.exchanges if any(event.event_id == event_id for event in e.events))
        return next(known, None)

    def _cut_for(self, exchange: Exchange) -> Cut | None:
        taken = [other.cut for other in self.exchanges if other.cut is not None]
        for index, cut in enumerate(self.cuts):
            if any(cut is used for used in taken) or not cut.where(exchange):
                continue
            if self._skipped.get(index, 0) == cut.skip:
                return cut
            self._skipped[index] = self._skipped.get(index, 0) + 1
        return None


class _Link:
    """One client connection and its upstream connection."""

    def __init__(self, proxy: CuttingProxy, client: Socket, serial: int) -> None:
        self._proxy = proxy
        self._client = client
        self._serial = serial
        self._asking = MessageReader(request=True)
        self._answering: deque[Exchange] = deque()
        self._muted = False  # the client gets nothing more
        self._server_kept = False  # a cut has left the server's side open
        self._opaque = False  # a request was answered before its body came: what follows is not read

    async def run(self) -> None:
        self._proxy._sockets.add(self._client)
        try:
            self._server = await Socket.connect(*self._proxy._upstream)
        except OSError:
            self._client.abort()
            return
        finally:
            self._proxy._sockets.discard(self._client)
        self._proxy._sockets |= {self._client, self._server}
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._guarded, self._upload)
                tasks.start_soon(self._guarded, self._download)
        finally:
            self._client.abort()
            self._server.abort()
            self._proxy._note_change()
            self._proxy._sockets -= {self._client, self._server}

    async def _guarded(self, pump: Callable[[], Awaitable[None]]) -> None:
        try:
            await pump()
        except (OSError, Closed, NotHttp):
            if not self._server_kept:
                self._client.abort()
                self._server.abort()

    async def _upload(self) -> None:
        while data := await self._client.receive():
            await self._read_requests(data)
        if self._muted:
            self._server.close()
        else:
            self._server.half_close()

    async def _read_requests(self, data: bytes) -> None:
        while data:
            taken = len(data) if self._opaque else self._asking.feed(data)
            piece, data = data[:taken], data[taken:]
            if (
                self._asking.complete and not self._opaque
            ):  # known before its last byte is sent on, so before any answer
                self._answering.append(self._proxy._seen(self._asking, self._serial))
                self._asking = MessageReader(request=True)
            await self._server.send(piece)

    async def _download(self) -> None:
        while data := await self._server.receive():
            while data:
                data = await self._forward(data)
        if self._answering:
            self._answering[0].reader.end()
        if not self._muted:
            self._client.half_close()

    async def _forward(self, data: bytes) -> bytes:
        """Pass on the part of `data` that belongs to the oldest open response; the rest is returned."""
        if (
            not self._answering and not self._opaque and self._asking.head is not None
        ):  # answered before the body was sent
            self._answering.append(self._proxy._seen(self._asking, self._serial))
            self._opaque = True
        if not self._answering:
            await self._send(data)
            return b""
        exchange = self._answering[0]
        taken = exchange.reader.feed(data)
        piece, place = data[:taken], self._place(exchange)
        if exchange.complete:
            self._answering.popleft()
        if place is not None and exchange.cut is not None and exchange.sent + taken >= place:
            piece = piece[: max(place - exchange.sent, 0)]
            exchange.sent += len(piece)
            exchange.cut_done = True
            await self._send(piece)
            await self._cut(exchange.cut)
        else:
            if not self._muted:
                exchange.sent += taken
            await self._send(piece)
        return data[taken:]

    def _place(self, exchange: Exchange) -> int | None:
        """Where this response is to be cut, if it is, was not yet, and that is known."""
        if exchange.cut is None or exchange.cut_done:
            return None
        at = exchange.cut.at
        return at if isinstance(at, int) else at(exchange)

    async def _send(self, data: bytes) -> None:
        if data and not self._muted:
            await self._client.send(data)
        self._proxy._note_change()

    async def _cut(self, cut: Cut) -> None:
        self._muted = True
        match cut.how:
            case How.FIN:
                self._client.close()
            case How.RST:
                await self._client.drained()
                self._client.abort()
            case How.HALF_CLOSE:
                self._client.half_close()
            case How.STALL:
                pass
        self._server_kept = cut.keep_upstream
        if not (cut.keep_upstream or cut.how is How.STALL):
            self._server.close()
        self._proxy._note_change()
