"""An HTTP/1.1 server whose every byte is written by the test.

    async def handler(request: Request, reply: Reply) -> None:
        await reply.play(sse_head(), chunk(sse_event(id="p1", data="", retry=50)), How.RST)

    async with FakeServer(handler) as server:
        ...  # point the client at server.url
        assert [r.method for r in server.requests] == ["POST", "GET"]

A handler that returns leaves the connection open if what it wrote is a whole response, and closes it with a
FIN if not. An exception in a handler leaves the `async with` block: a failed assertion there fails the test.
What is no HTTP draws 400 and a FIN, and is not recorded.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import frozen

from ._http1 import MessageReader, NotHttp, Request
from ._sockets import Closed, Listener, Socket
from .proxy import How
from .written import END_OF_CHUNKS, chunk, http_response, json_response, sse_event, sse_head


@frozen
class Dribble:
    """A step that writes its bytes a few at a time."""

    data: bytes
    size: int = 1


Step = bytes | Dribble | How | anyio.Event
"""Bytes to write, an ending, or an event to wait for."""


class Reply:
    """What a handler writes with."""

    def __init__(
        self,
        request: Request,
        sock: Socket,
        gone: anyio.Event,
        take_over: Callable[[], MemoryObjectReceiveStream[bytes]],
    ) -> None:
        self.request = request
        self.take_over = take_over
        """Call it to receive what the client sends from now on as it is: no more requests on this connection."""
        self._sock = sock
        self._written = MessageReader(request=False, answer_to=request.method)
        self._garbled = False
        self._chunked = False
        self.client_gone = gone
        """Set when the client closed or reset the connection."""

    @property
    def whole(self) -> bool:
        """What was written is a complete response."""
        return self._written.complete

    @property
    def ended(self) -> bool:
        """The connection was closed from here."""
        return self._sock.closed

    async def write(self, data: bytes) -> None:
        """Write raw bytes, even such as are no HTTP. Raises when the client is gone; the server catches that."""
        if not self._written.complete and not self._garbled:
            try:
                self._written.feed(data)
            except NotHttp:
                self._garbled = True
            self._written.forget()
        await self._sock.send(data)

    async def play(self, *steps: Step) -> None:
        """Carry out steps in order."""
        for step in steps:
            match step:
                case bytes():
                    await self.write(step)
                case Dribble(data, size):
                    for start in range(0, len(data), size):
                        await self.write(data[start : start + size])
                        await anyio.lowlevel.checkpoint()
                case How():
                    await self.end(step)
                case _:
                    await step.wait()

    async def end(self, how: How = How.FIN) -> None:
        """End the connection; a stall lasts until the client is gone."""
        match how:
            case How.FIN:
                self._sock.close()
            case How.HALF_CLOSE:
                self._sock.half_close()
            case How.RST:
                await self._sock.drained()
                self._sock.abort()
            case How.STALL:
                await self.client_gone.wait()

    async def json(self, message: Any, *, status: int = 200, session: str | None = None) -> None:
        """A whole JSON response; to HEAD without its body."""
        await self._whole(json_response(message, status=status, session=session))

    async def status(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A whole response with any body, to HEAD without; header names with `_` for `-`."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        await self._whole(http_response(status, body, headers=fields))

    async def _whole(self, response: bytes) -> None:
        """A client would read what follows the answer to HEAD as its next answer."""
        end = response.index(b"\r\n\r\n") + 4 if self.request.method == "HEAD" else None
        await self.write(response[:end])

    async def open_sse(self, *, session: str | None = None, chunked: bool = True) -> None:
        """The head of an event stream, for `event()` and `finish()`."""
        self._chunked = chunked
        await self.write(sse_head(session=session, chunked=chunked))

    async def event(
        self, data: Any = None, *, id: str | None = None, retry: int | None = None, event: str | None = None
    ) -> None:
        """One event, in the framing of `open_sse()`."""
        raw = sse_event(data, id=id, retry=retry, event=event)
        await self.write(chunk(raw) if self._chunked else raw)

    async def comment(self, text: str = "ping") -> None:
        """A comment, as servers send for a heartbeat."""
        raw = f": {text}\n\n".encode()
        await self.write(chunk(raw) if self._chunked else raw)

    async def finish(self) -> None:
        """End the event stream in good order: the connection stays open if it was chunked."""
        if self._chunked:
            await self.write(END_OF_CHUNKS)
        else:
            await self.end()


Handler = Callable[[Request, Reply], Awaitable[None]]


def script(*steps: Step) -> Handler:
    """A handler that plays these steps."""

    async def play(request: Request, reply: Reply) -> None:
        await reply.play(*steps)

    return play


def in_turn(*handlers: Handler) -> Handler:
    """The first request gets the first handler, the next the second; the last goes on for the rest."""
    left = list(handlers)

    async def next_one(request: Request, reply: Reply) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(request, reply)

    return next_one


class FakeServer:
    """Listens on 127.0.0.1 and answers with `handler`; use it as an async context manager."""

    def __init__(self, handler: Handler, *, on_head: Handler | None = None, port: int = 0) -> None:
        self.handler = handler
        self.on_head = on_head
        """Plays as soon as a request's head has come; its body may not have."""
        self.requests: list[Request] = []
        """Every request whose body has come, in order."""
        self.ledger: list[Any] = []
        """For handlers to write down the side effects that really happened."""
        self.next_connections: list[How] = []
        """Endings for the connections to come, at once after they were accepted."""
        self.connections = 0
        """Connections accepted so far."""
        self.open_connections = 0
        self._changed = anyio.Event()
        self._listener = Listener(port)
        self._sockets: set[Socket] = set()
        self._stack = AsyncExitStack()

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return self._listener.port

    @property
    def url(self) -> str:
        """The MCP endpoint."""
        return f"http://127.0.0.1:{self.port}/mcp"

    async def __aenter__(self) -> FakeServer:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(self._close)
        self._stack.callback(self._tasks.cancel_scope.cancel)
        self._tasks.start_soon(self._accept, self._listener, self._tasks)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def sent(self, method: str | None = None, rpc_method: str | None = None) -> list[Request]:
        """The recorded requests of this HTTP method and JSON-RPC method."""
        return [
            r
            for r in self.requests
            if method in (None, r.method) and (rpc_method is None or r.rpc_method == rpc_method)
        ]

    async def wait_for(self, match: Callable[[Request], bool], count: int = 1) -> Request:
        """Wait until `count` requests have matched; the last of these."""
        await self.until(lambda: len(self._matching(match)) >= count)
        return self._matching(match)[count - 1]

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until `condition` is true; it is asked again after each request, connection and close."""
        while not (value := condition()):
            await self._changed.wait()
        return value

    def refuse(self) -> None:
        """Stop listening: new connections are refused, those open go on."""
        self._listener.close()

    def listen_again(self) -> None:
        """Accept connections again, on the same port."""
        self._listener = Listener(self.port)
        self._tasks.start_soon(self._accept, self._listener, self._tasks)

    def drop_all(self, how: How = How.RST) -> None:
        """End every open connection now."""
        for sock in list(self._sockets):
            sock.abort() if how is How.RST else sock.close()

    def note_change(self) -> None:
        """Have `until` ask again."""
        self._changed.set()
        self._changed = anyio.Event()

    def _matching(self, match: Callable[[Request], bool]) -> list[Request]:
        return [request for request in self.requests if match(request)]

    def _close(self) -> None:
        self._listener.close()
        self.drop_all()

    async def _accept(self, listener: Listener, tasks: TaskGroup) -> None:
        try:
            while True:
                sock = await listener.accept()
                self.connections += 1
                self._sockets.add(sock)  # here: `drop_all` may come before the task has begun
                tasks.start_soon(self._serve, sock, self.connections)
        except Closed:
            pass

    async def _serve(self, sock: Socket, serial: int) -> None:
        self.open_connections += 1
        self.note_change()
        try:
            async with anyio.create_task_group() as tasks:
                await _Connection(self, sock, serial).run(tasks)
                tasks.cancel_scope.cancel()
        finally:
            sock.close()
            self._sockets.discard(sock)
            self.open_connections -= 1
            self.note_change()


class _Connection:
    """Reads requests in one task, so that a client that leaves is noticed, and answers them in another."""

    def __init__(self, server: FakeServer, sock: Socket, serial: int) -> None:
        self._server = server
        self._sock = sock
        self._serial = serial
        self._gone = anyio.Event()
        self._put, self._requests = anyio.create_memory_object_stream[Request](math.inf)
        self._raw: MemoryObjectSendStream[bytes] | None = None
        self._taken: MemoryObjectReceiveStream[bytes] | None = None

    async def run(self, tasks: TaskGroup) -> None:
        with self._put, self._requests:
            try:
                if self._server.next_connections:
                    tasks.start_soon(self._watch)
                    await self._reply(None).end(self._server.next_connections.pop(0))
                    return
                tasks.start_soon(self._read)
                async for request in self._requests:
                    if not await self._answer(request):
                        return
            except (OSError, Closed):
                return  # the client left while a handler wrote
            finally:
                if self._taken is not None:
                    self._taken.close()

    async def _answer(self, request: Request) -> bool:
        """Have a request answered; whether the connection can carry another."""
        reply = self._reply(request)
        await self._server.handler(request, reply)
        return reply.whole and not reply.ended

    def _reply(self, request: Request | None) -> Reply:
        return Reply(request or _NOTHING, self._sock, self._gone, self._take_over)

    def _take_over(self) -> MemoryObjectReceiveStream[bytes]:
        self._raw, self._taken = anyio.create_memory_object_stream[bytes](math.inf)
        return self._taken

    async def _read(self) -> None:
        reader, head_told = MessageReader(request=True), False
        with self._put:
            try:
                while data := await self._sock.receive():
                    if self._raw is not None:
                        await self._raw.send(data)
                        continue
                    while data:
                        data = data[reader.feed(data) :]
                        if reader.head is not None and not head_told:
                            head_told = True
                            if not await self._tell_head(reader):
                                return
                        if reader.complete:
                            self._record(reader)
                            reader, head_told = MessageReader(request=True), False
            except NotHttp:
                with suppress(OSError, Closed):  # the client may have left by now
                    await self._reply(None).status(400)
            except (OSError, Closed, anyio.BrokenResourceError, anyio.ClosedResourceError):  # it has ended
                pass
            finally:
                if self._raw is not None:
                    self._raw.close()
                self._gone.set()
                self._server.note_change()

    async def _watch(self) -> None:
        try:
            while await self._sock.receive():
                pass
        except (OSError, Closed):
            pass
        finally:
            self._gone.set()

    async def _tell_head(self, reader: MessageReader) -> bool:
        if self._server.on_head is None:
            return True
        request = Request.from_reader(reader, serial=0, connection=self._serial)
        reply = self._reply(request)
        await self._server.on_head(request, reply)
        return not reply.ended

    def _record(self, reader: MessageReader) -> None:
        serial = len(self._server.requests) + 1
        request = Request.from_reader(reader, serial=serial, connection=self._serial)
        self._server.requests.append(request)
        self._server.note_change()
        self._put.send_nowait(request)


def _nothing() -> Request:
    reader = MessageReader(request=True)
    reader.feed(b"NONE / HTTP/1.1\r\n\r\n")
    return Request.from_reader(reader, serial=0, connection=0)


_NOTHING = _nothing()
