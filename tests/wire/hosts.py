"""Hosts on the real shell: plain JSON through the streams, and `ClientSession` of the installed SDK.

    async with playing(streams(cut_off, answered)) as (server, host):
        assert (await host.call()).text == "done"

A server's streams are put together from parts, each of which knows the call that it answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

import anyio
import pytest
from attrs import frozen
from mcp import ClientSession

from mcp_client_guard import CallInDoubt, CallSettled, Guard, GuardPolicy, Outcome, Resumed
from mcp_client_guard._guard import Connection
from mcp_client_guard._messages import plain_codec
from mcp_client_guard.core.model import JSON
from mcp_client_guard.testing import (
    END_OF_CHUNKS,
    FakeServer,
    Handler,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    notification,
    progress_of,
    sse_event,
    sse_head,
    tool_result,
)

STOPS_READING = pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")
"""For tests in which a body is not read to its end. httpx nests generators and closes the outermost only; trio
warns of the others when they are collected. Nothing leaks: the connection itself is closed."""

_UVLOOP = pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")
LOOPS = ["asyncio", "trio", *([_UVLOOP] if find_spec("uvloop") else [])]
ON_ALL_LOOPS = pytest.mark.parametrize("anyio_backend", LOOPS)
"""For the tests that lean most on how a loop reads and cancels. There is no uvloop for Windows."""

LIMIT = 20.0
"""Seconds after which a hanging test fails. Not a measure of anything."""

T = TypeVar("T")

# --- servers --------------------------------------------------------------------------------------

Part = Callable[[Request], Any]
"""From the call that is answered to a step of `Reply.play`, in the framing of a chunked event stream."""
End = How | bytes | anyio.Event
WHOLE = END_OF_CHUNKS
"""Ends a stream in good order."""


def prime(id: str, retry: int | str | None = None) -> Part:
    return lambda call: chunk(sse_event("", id=id, retry=retry))


def progress(value: float, id: str | None = None) -> Part:
    return lambda call: chunk(sse_event(progress_of(call, value), id=id))


def answer(text: str = "done", id: str | None = None) -> Part:
    return lambda call: chunk(sse_event(tool_result(call.rpc_id, text), id=id))


def note(what: str, id: str | None = None) -> Part:
    message = notification("notifications/message", level="info", data=what)
    return lambda call: chunk(sse_event(message, id=id))


def raw(data: bytes) -> Part:
    """Bytes of an event stream, as one chunk."""
    return lambda call: chunk(data)


def until(event: anyio.Event) -> Part:
    """Waits."""
    return lambda call: event


def events(*parts: Part, end: End = WHOLE, session: str | None = None, headers: Any = None) -> Handler:
    """Answers with an event stream of these parts."""

    async def play(call: Request, reply: Reply) -> None:
        await reply.play(sse_head(session=session, headers=headers), *(part(call) for part in parts), end)

    return play


def steps(*written: Any) -> Handler:
    """Answers with exactly these steps."""

    async def play(call: Request, reply: Reply) -> None:
        await reply.play(*written)

    return play


def refuse(status: int, body: bytes = b"", **headers: str) -> Handler:
    async def play(call: Request, reply: Reply) -> None:
        await reply.status(status, body, **headers)

    return play


def for_ever(handler: Handler) -> Handler:
    """Marks the last resume: it goes on for all that follow. Any other resume too many fails the test."""
    handler.for_ever = True  # type: ignore[attr-defined]
    return handler


class Streams(ScriptedMcp):
    """A call answered by `first`, its stream resumed by `resumes` in turn; all are told the call's request."""

    def __init__(self, first: Handler, *resumes: Handler, **parts: Any) -> None:
        super().__init__(**parts)
        self.first = first
        self.left = list(resumes)
        self.called: Request | None = None
        self.executed: list[str] = []
        """The tools that really ran."""

    async def call(self, request: Request, reply: Reply) -> None:
        self.called = request
        self.executed.append(request.json["params"]["name"])
        await self.first(request, reply)

    async def resume(self, request: Request, reply: Reply) -> None:
        assert self.called is not None
        assert self.left, f"a resume too many, after {request.last_event_id}"
        handler = self.left[0] if hasattr(self.left[0], "for_ever") else self.left.pop(0)
        await handler(self.called, reply)


# --- hosts ----------------------------------------------------------------------------------------


@frozen
class Answer:
    """What a host got for a tool call."""

    text: str = ""
    is_error: bool = False
    code: int | None = None
    data: Any = None
    doubt: CallInDoubt | None = None


def in_doubt(got: Answer) -> bool:
    """An answer that a model can act on, in the form that frameworks do not repeat."""
    return got.is_error and got.doubt is not None and "may or may not have run" in got.text


class Host:
    """What both kinds of host have."""

    def __init__(self) -> None:
        self.progress: list[float] = []
        self.heard: list[str] = []
        """Methods of the notifications and requests of the server's, without progress."""
        self.told: list[Any] = []
        """The guard's events."""
        self.logged: list[Any] = []
        """The data of the server's log messages."""
        self._news = anyio.Event()

    def on_event(self, event: Any) -> None:
        self.told.append(event)
        self.changed()

    def changed(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def until(self, condition: Callable[[], T]) -> T:
        """Wait until `condition` is true; it is asked again at each message and each event of the guard's."""
        while not (value := condition()):
            await self._news.wait()
        return value

    async def saw(self, *values: float) -> None:
        """The progress that reached the host is exactly this, in this order."""
        await self.until(lambda: len(self.progress) >= len(values))
        await anyio.wait_all_tasks_blocked()
        assert self.in_order(self.progress) == list(values)

    async def has_heard(self, *methods: str) -> None:
        """What else reached the host is exactly this, in this order."""
        await self.until(lambda: len(self.heard) >= len(methods))
        await anyio.wait_all_tasks_blocked()
        assert self.heard == list(methods), self.heard

    def in_order(self, seen: list[float]) -> list[float]:
        return seen

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.told if isinstance(event, kind)]

    @property
    def grades(self) -> list[str]:
        return [event.evidence.grade.value for event in self.of(Resumed)]

    @property
    def outcomes(self) -> list[Outcome]:
        """Of its tool calls."""
        return [event.outcome for event in self.of(CallSettled) if event.method == "tools/call"]

    async def call(self, tool: str = "charge", **arguments: Any) -> Answer:
        raise NotImplementedError


class PlainHost(Host):
    """Speaks plain JSON objects."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Any = None
        self.write: Any = None
        self.messages: list[JSON] = []
        self.sent = 0

    async def listen(self) -> None:
        async for message in self.read:
            self.messages.append(message)
            if message.get("method") == "notifications/progress":
                self.progress.append(message["params"]["progress"])
            elif "method" in message:
                self.heard.append(message["method"])
            self.changed()

    async def start(self, protocol: str = "2025-11-25") -> None:
        params = {"protocolVersion": protocol, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = await self.request("initialize", params)
        assert "result" in answer, answer
        await self.notify("notifications/initialized")

    async def notify(self, method: str, **params: Any) -> None:
        await self.write.send({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})})

    async def post(self, method: str, params: JSON | None = None, id: Any = None) -> Any:
        """Send a request and do not wait. Returns its ID."""
        self.sent += 1
        id = f"host-{self.sent}" if id is None else id
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        await self.write.send({**message, **({} if params is None else {"params": params})})
        return id

    def answers_to(self, id: Any) -> list[JSON]:
        return [m for m in self.messages if "method" not in m and m.get("id") == id]

    async def request(self, method: str, params: JSON | None = None, id: Any = None) -> JSON:
        earlier = len(self.answers_to(id))  # an ID may be used again
        id = await self.post(method, params, id)
        return (await self.until(lambda: self.answers_to(id)[earlier:]))[0]

    async def call(self, tool: str = "charge", **arguments: Any) -> Answer:
        token = f"token-{self.sent}"
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": token}}
        return plain_answer(await self.request("tools/call", params))


def plain_answer(message: JSON) -> Answer:
    if "error" in message:
        error = message["error"]
        return Answer(error["message"], True, error["code"], error.get("data"))
    result = message["result"]
    text = result["content"][0]["text"]
    return Answer(text, result.get("isError", False), doubt=CallInDoubt.find(result))


class SdkHost(Host):
    """`ClientSession` of the installed SDK."""

    def __init__(self) -> None:
        super().__init__()
        self.session: Any = None

    async def on_message(self, message: Any) -> None:
        message = getattr(message, "root", message)
        # SDK 1.x hands over an exception where an answer belongs to no request: of one that it gave up.
        method = "an exception" if isinstance(message, Exception) else message.method
        if method != "notifications/progress":
            self.heard.append(method)
        if method == "notifications/message":
            self.logged.append(message.params.data)
        self.changed()

    def in_order(self, seen: list[float]) -> list[float]:
        return sorted(seen)  # SDK 2.x starts a task for each notification: their order is not the transport's

    async def on_progress(self, value: float, total: float | None, message: str | None) -> None:
        self.progress.append(value)
        self.changed()

    async def call(self, tool: str = "charge", **arguments: Any) -> Answer:
        try:
            result = await self.session.call_tool(tool, arguments, progress_callback=self.on_progress)
        except Exception as error:
            told = getattr(error, "error", None)
            if told is None:
                raise
            return Answer(told.message, True, told.code, told.data, CallInDoubt.find(error))
        is_error = getattr(result, "isError", None) or getattr(result, "is_error", False)
        return Answer(result.content[0].text, bool(is_error), doubt=CallInDoubt.find(result))


@asynccontextmanager
async def plain_host(
    url: str, *, start: bool = True, listen: bool = True, **options: Any
) -> AsyncIterator[PlainHost]:
    host = PlainHost()
    guard = Guard(url, on_event=host.on_event, **options)
    async with Connection(guard, plain_codec) as (host.read, host.write), anyio.create_task_group() as tasks:
        if listen:
            tasks.start_soon(host.listen)
        if start:
            await host.start()
        yield host
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def sdk_host(url: str, **options: Any) -> AsyncIterator[SdkHost]:
    host = SdkHost()
    guard = Guard(url, on_event=host.on_event, **options)
    async with (
        guard.connect() as (read, write),
        ClientSession(read, write, message_handler=host.on_message) as host.session,
    ):
        await host.session.initialize()
        # SDK 1.x lists the tools after the first call, to check its result: a request that no test expects.
        await host.session.list_tools()
        yield host


@asynccontextmanager
async def unguarded_host(url: str, **options: Any) -> AsyncIterator[SdkHost]:
    """The same host on the SDK's own transport. What only a guard can be told is left out."""
    from mcp.client.streamable_http import streamable_http_client

    host = SdkHost()
    async with (
        streamable_http_client(url) as streams,
        ClientSession(streams[0], streams[1], message_handler=host.on_message) as host.session,
    ):
        await host.session.initialize()
        await host.session.list_tools()
        yield host


Playing = Callable[..., AbstractAsyncContextManager[tuple[FakeServer, Any]]]


def playing_with(open_host: Callable[..., AbstractAsyncContextManager[Any]]) -> Playing:
    @asynccontextmanager
    async def playing(
        mcp: Handler, *, policy: Any = None, on_head: Handler | None = None, **options: Any
    ) -> AsyncIterator[tuple[FakeServer, Any]]:
        """A server that plays `mcp`, and a host on a guard connected to it."""
        chosen = GuardPolicy(**(policy or {}))
        try:
            with anyio.fail_after(LIMIT):
                async with FakeServer(mcp, on_head=on_head) as server:
                    async with open_host(server.url, policy=chosen, **options) as host:
                        yield server, host
        except Exception as error:
            raise the_one_in(error) from None

    return playing


def the_one_in(error: BaseException) -> BaseException:
    """A group of one error says no more than that error, and hides it."""
    below = getattr(error, "exceptions", ())
    return the_one_in(below[0]) if len(below) == 1 else error


plainly = playing_with(plain_host)
"""For tests that look at messages themselves."""
by_sdk = playing_with(sdk_host)


async def run_together(*jobs: Callable[[], Awaitable[T]]) -> list[T]:
    """The results of these, run at the same time, in their order."""
    results: dict[int, T] = {}

    async def run(index: int, job: Callable[[], Awaitable[T]]) -> None:
        results[index] = await job()

    async with anyio.create_task_group() as tasks:
        for index, job in enumerate(jobs):
            tasks.start_soon(run, index, job)
    return [results[index] for index in sorted(results)]


def resumed_after(server: FakeServer) -> list[str]:
    """The `Last-Event-ID` of each resume, in order."""
    return [r.last_event_id for r in server.sent("GET") if r.last_event_id is not None]
