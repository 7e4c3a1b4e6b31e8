"""Leaving a connection at any await: at once, with nothing left behind, and with the caller's error as it was."""

from __future__ import annotations

import asyncio
import itertools
import os
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import anyio
import httpcore
import httpx
import pytest
import sniffio
import trio

from mcp_client_guard import CallSettled, Guard, GuardError, GuardPolicy, Outcome, SQLiteStore
from mcp_client_guard._guard import Connection
from mcp_client_guard._messages import plain_codec
from mcp_client_guard.testing import (
    FakeServer,
    Handler,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    http_response,
    notification,
    sse_event,
    sse_head,
    tool_result,
)
from mcp_client_guard.transports import connections, streamable

from .hosts import (
    LIMIT,
    LOOPS,
    STOPS_READING,
    PlainHost,
    Streams,
    answer,
    events,
    for_ever,
    note,
    plain_host,
    plainly,
    prime,
    progress,
    raw,
    refuse,
    steps,
    the_one_in,
)

pytestmark = [pytest.mark.anyio, STOPS_READING]


@pytest.fixture(params=LOOPS)  # and no `ON_ALL_LOOPS`: some tests here are of one loop
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


PROMISE = 1.0
"""Seconds (L7)."""


def tasks_alive() -> int:
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


def sockets_open() -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except OSError:  # the descriptor of the listing itself
            continue
    return count


@asynccontextmanager
async def nothing_left(server: FakeServer) -> AsyncIterator[None]:
    """What was opened inside is gone afterwards: tasks, sockets, and the server's side of them."""
    tasks, sockets = tasks_alive(), sockets_open()
    yield
    await server.until(lambda: not server.open_connections)
    # A task that has just told of its end is still counted for a turn of the loop.
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    assert tasks_alive() <= tasks
    assert sockets_open() <= sockets


class Phase:
    """A server, and how a host gets into the middle of something on it."""

    def __init__(
        self,
        mcp: Any,
        reach: Callable[[PlainHost, FakeServer], Awaitable[Any]],
        *,
        start: bool = True,
        **policy: Any,
    ) -> None:
        self.mcp, self.reach, self.start, self.policy = mcp, reach, start, policy


async def ask(host: PlainHost, server: FakeServer) -> None:
    await host.post("tools/call", {"name": "charge", "_meta": {"progressToken": 1}})


async def during_initialize(host: PlainHost, server: FakeServer) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    await host.post("initialize", params)
    await server.wait_for(lambda r: r.rpc_method == "initialize")


async def at_once(host: PlainHost, server: FakeServer) -> None:
    return None


async def just_sent(host: PlainHost, server: FakeServer) -> None:
    await ask(host, server)


async def a_call_at_the_server(host: PlainHost, server: FakeServer) -> None:
    await ask(host, server)
    await server.wait_for(lambda r: r.rpc_method == "tools/call")


async def progress_seen(host: PlainHost, server: FakeServer) -> None:
    await ask(host, server)
    await host.until(lambda: host.progress)


async def a_resume_at_the_server(host: PlainHost, server: FakeServer) -> None:
    await ask(host, server)
    await server.wait_for(lambda r: r.last_event_id is not None)


async def a_ping_at_the_server(host: PlainHost, server: FakeServer) -> None:
    await ask(host, server)
    await server.wait_for(lambda r: r.rpc_method == "ping")


async def a_second_initialize_at_the_server(host: PlainHost, server: FakeServer) -> None:
    await ask(host, server)
    await server.wait_for(lambda r: r.rpc_method == "initialize", 2)


async def a_cut_told(host: PlainHost, server: FakeServer) -> None:
    from mcp_client_guard import Disconnected

    await ask(host, server)
    await host.until(lambda: host.of(Disconnected))


async def refused_connections(host: PlainHost, server: FakeServer) -> None:
    server.refuse()
    server.drop_all()
    await ask(host, server)
    await anyio.sleep(0.01)


class Forgetful(Streams):
    """Has forgotten the session when a call comes; the `initialize` after that is answered by `then`."""

    def __init__(self, then: Handler) -> None:
        super().__init__(refuse(404))
        self.then = then

    async def initialize(self, request: Request, reply: Reply) -> None:
        handler = self.then if self.called else super().initialize
        self.called = None
        await handler(request, reply)


SEEN = (prime("p0", 3_600_000), progress(1, "e1"), progress(2, "e2"))
SEEN_QUICK = (prime("p0", 1), progress(1, "e1"), progress(2, "e2"))

JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"

PHASES = {
    "before anything": Phase(ScriptedMcp(), at_once, start=False),
    "during initialize": Phase(ScriptedMcp(initialize=steps(How.STALL)), during_initialize, start=False),
    "after initialize": Phase(ScriptedMcp(), at_once),
    "while initialized hangs": Phase(ScriptedMcp(notify=steps(How.STALL)), just_sent),
    "a call just written": Phase(Streams(steps(How.STALL)), just_sent),
    "waiting for headers": Phase(Streams(steps(How.STALL)), a_call_at_the_server),
    "in half a head": Phase(Streams(steps(b"HTTP/1.1 200 OK\r\nx", How.STALL)), a_call_at_the_server),
    "in a JSON body": Phase(
        Streams(
            steps(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{", How.STALL)
        ),
        a_call_at_the_server,
    ),
    "mid-stream": Phase(Streams(events(*SEEN, end=How.STALL)), progress_seen),
    "in half an event": Phase(Streams(events(*SEEN, raw(b"data: {"), end=How.STALL)), progress_seen),
    "with a standalone stream": Phase(
        Streams(events(*SEEN, end=How.STALL), standalone=events(note("a", "s1"), end=How.STALL)), progress_seen
    ),
    "in a retry wait": Phase(Streams(events(*SEEN, end=How.RST)), a_cut_told),
    "waiting for a resume's headers": Phase(
        Streams(events(*SEEN_QUICK, end=How.RST), for_ever(steps(How.STALL))), a_resume_at_the_server
    ),
    "during a trial": Phase(
        Streams(events(*SEEN_QUICK, end=How.RST), for_ever(events(note("x", "e9"), end=How.STALL))),
        a_resume_at_the_server,
    ),
    "waiting for a closed port": Phase(Streams(events(answer())), refused_connections),
    "while a ping decides": Phase(Streams(refuse(400), other=steps(How.STALL)), a_ping_at_the_server),
    "while another session is opened": Phase(Forgetful(steps(How.STALL)), a_second_initialize_at_the_server),
    "while another session is refused": Phase(Forgetful(refuse(503)), a_second_initialize_at_the_server),
    "during a hanging DELETE": Phase(ScriptedMcp(delete=steps(How.STALL)), at_once),
    "DELETE 404": Phase(ScriptedMcp(delete=refuse(404)), at_once),
    "DELETE 405": Phase(ScriptedMcp(delete=refuse(405)), at_once),
    "DELETE reset": Phase(ScriptedMcp(delete=steps(How.RST)), at_once),
}


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
@pytest.mark.parametrize("phase", PHASES)
async def test_leaving_takes_a_second_at_most_and_leaves_nothing(phase: str, durable: bool, tmp_path: Any) -> None:
    it = PHASES[phase]
    store: Any = {"store": SQLiteStore(tmp_path / "agent.db"), "terminate_on_close": True} if durable else {}
    with anyio.fail_after(LIMIT):
        async with FakeServer(it.mcp) as server, nothing_left(server):
            async with plain_host(server.url, start=it.start, **store) as host:
                await it.reach(host, server)
                left = anyio.current_time()
            assert anyio.current_time() - left < PROMISE + 0.5, "half a second for a busy machine"


@pytest.mark.parametrize("phase", PHASES)
async def test_an_error_of_the_body_passes_as_it_was(phase: str) -> None:
    class Ours(Exception):
        pass

    it, error = PHASES[phase], Ours()
    with anyio.fail_after(LIMIT):
        async with FakeServer(it.mcp) as server, nothing_left(server):
            with pytest.raises(Ours) as caught:
                await _body(server, it, error)
            assert caught.value is error
            assert caught.value.__cause__ is None


async def _body(server: FakeServer, it: Phase, error: BaseException) -> None:
    """The plain context manager, without the task group that a listening host brings."""
    guard = Guard(server.url)
    host = PlainHost()
    guard._on_event = host.on_event
    async with Connection(guard, plain_codec) as (read, host.write):
        host.read = read
        # Whoever listens must be a task of the test's; it ends before the error is raised.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host.listen)
            if it.start:
                await host.start()
            await it.reach(host, server)
            tasks.cancel_scope.cancel()
        raise error


@pytest.mark.parametrize("phase", PHASES)
async def test_a_cancelled_host_ends_as_cancelled_within_the_promise(phase: str) -> None:
    it = PHASES[phase]
    reached = anyio.Event()
    ended: list[str] = []

    async def hosting(server: FakeServer) -> None:
        try:
            async with plain_host(server.url, start=it.start) as host:
                await it.reach(host, server)
                reached.set()
                await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            ended.append("cancelled")
            raise

    with anyio.fail_after(LIMIT):
        async with FakeServer(it.mcp) as server, nothing_left(server):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hosting, server)
                await reached.wait()
                left = anyio.current_time()
                tasks.cancel_scope.cancel()
            assert anyio.current_time() - left < PROMISE + 0.5
            assert ended == ["cancelled"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_cancelled_by_asyncio_itself_is_cancelled() -> None:
    mcp = Streams(events(*SEEN, end=How.STALL))

    async def hosting(url: str, reached: asyncio.Event) -> None:
        async with plain_host(url) as host:
            await host.post("tools/call", {"name": "charge", "_meta": {"progressToken": 1}})
            await host.until(lambda: host.progress)
            reached.set()
            await asyncio.sleep(3600)

    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server, nothing_left(server):
            reached = asyncio.Event()
            task = asyncio.get_running_loop().create_task(hosting(server.url, reached))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34, None])
async def test_a_host_cancelled_by_asyncio_at_each_await_gives_its_key_up(
    turns: int | None, beside: bool, tmp_path: Any
) -> None:
    """Through every shield. `turns` of the loop pass before it begins; None: there is a session."""

    async def stall(request: Request, reply: Reply) -> None:
        await reply.play(How.STALL)

    def guard() -> Guard:
        return Guard(server.url, store=SQLiteStore(tmp_path / "agent.db"), terminate_on_close=True)

    async def hosting() -> None:
        async with Connection(first, plain_codec) as (read, write):
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}
            await write.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
            assert "result" in await read.receive()
            connected.set()
            await asyncio.sleep(3600)

    with anyio.fail_after(LIMIT):
        async with FakeServer(Streams(events(answer()), delete=stall)) as server, nothing_left(server):
            first, connected = guard(), asyncio.Event()
            other = Connection(first, plain_codec)
            if beside:
                await other.__aenter__()
            task = asyncio.get_running_loop().create_task(hosting())
            if turns is None:
                await connected.wait()
            for _ in range(turns or 0):
                await asyncio.sleep(0)
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
            assert task.cancelled()
            if beside:
                await other.__aexit__(None, None, None)
            assert first.state == "closed"
            async with Connection(guard(), plain_codec):
                pass
            async with Connection(first, plain_codec):
                pass


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancel_while_a_last_notification_is_not_taken_ends_the_session_all_the_same(
    tmp_path: Any,
) -> None:
    async def stall(request: Request, reply: Reply) -> None:
        if request.rpc_method == "notifications/progress":
            await reply.play(How.STALL)
        await reply.status(202)

    store = SQLiteStore(tmp_path / "agent.db")
    ready = asyncio.Event()

    async def hosting(url: str) -> None:
        guard = Guard(url, store=store, terminate_on_close=True)
        async with Connection(guard, plain_codec) as (read, write):
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}
            await write.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
            assert "result" in await read.receive()
            await write.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            await write.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
            ready.set()
            await asyncio.sleep(3600)

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp(notify=stall)) as server:
            task = asyncio.get_running_loop().create_task(hosting(server.url))
            await ready.wait()
            await server.wait_for(lambda request: request.rpc_method == "notifications/progress")
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (session,) = await store.sessions()
            assert session.ended_at is not None


async def test_a_timeout_around_a_call_is_a_timeout_and_the_connection_goes_on() -> None:
    mcp = Streams(steps(How.STALL))
    async with plainly(mcp) as (_, host):
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.02):
                await host.call(n=1)
        mcp.first = events(answer())
        assert (await host.call(n=2)).text == "done"


FAULTS: dict[str, Any] = {
    "refused": None,
    "reset": steps(How.RST),
    "closed": steps(How.FIN),
    "no HTTP": steps(b"SSH-2.0-OpenSSH_9.6\r\n", How.FIN),
    "a bad header": steps(b"HTTP/1.1 200 OK\r\n\x00: x\r\n\r\n", How.FIN),
    "a bad chunk": steps(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", How.FIN
    ),
    "gzip that is none": steps(JSON_HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_transport_trouble_is_an_answer_and_never_an_exception_or_a_cancellation(fault: str) -> None:
    mcp = Streams(FAULTS[fault] or events())
    async with plainly(mcp, policy={"max_attempts": 1}) as (server, host):
        if fault == "refused":
            server.refuse()
            server.drop_all()
        got = await host.call()
        assert got.is_error
        assert got.doubt is not None or fault == "refused"
        mcp.first = events(answer())
        if fault == "refused":
            server.listen_again()
            assert (await host.call()).text == "done", "it is known not to have run"
        else:
            assert (await host.call()).doubt is not None
            assert (await host.call(n=2)).text == "done"
    assert mcp.executed == ["charge"] * (1 if fault == "refused" else 2)


async def test_a_refused_initialize_is_an_answer_and_no_cancellation() -> None:
    async with FakeServer(ScriptedMcp()) as server:
        pass
    async with plain_host(server.url, start=False, policy=GuardPolicy(max_attempts=1)) as host:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        got = await host.request("initialize", params)
        assert got["error"]["data"]["outcome"] == "not_executed"


async def test_leaving_with_a_full_inbox_neither_waits_for_it_nor_leaks() -> None:
    flood = [progress(n, f"e{n}") for n in range(3000)]
    mcp = Streams(events(*flood, end=How.STALL))
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server, nothing_left(server):
            async with plain_host(server.url, listen=False, start=False) as host:
                read = host.read
                host.read = None
                await during_initialize(host, server)
                assert "result" in await read.receive()
                await host.notify("notifications/initialized")
                await ask(host, server)
                await server.wait_for(lambda r: r.rpc_method == "tools/call")
                await read.receive()
                left = anyio.current_time()
            assert anyio.current_time() - left < PROMISE + 0.5


async def test_after_leaving_the_streams_say_so() -> None:
    async with plainly(ScriptedMcp()) as (_, host):
        read, write = host.read, host.write
    with pytest.raises(anyio.EndOfStream):
        while True:
            await read.receive()
    with pytest.raises((anyio.ClosedResourceError, anyio.BrokenResourceError)):
        await write.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})


async def test_what_comes_when_the_write_stream_is_closed_is_told_by_the_next_process(tmp_path: Any) -> None:
    closed = anyio.Event()

    async def call(request: Request, reply: Reply) -> None:
        await closed.wait()
        await reply.json(tool_result(request.rpc_id, "done"))

    store = SQLiteStore(tmp_path / "agent.db")
    async with plainly(ScriptedMcp(call=call), store=store) as (server, host):
        id = await host.post("tools/call", {"name": "charge", "arguments": {}})
        await server.wait_for(lambda r: r.rpc_method == "tools/call")
        await host.write.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await host.notify("notifications/roots/list_changed")
        closed.set()
        await host.until(lambda: [told for told in host.of(CallSettled) if told.tool == "charge"])
        assert host.answers_to(id) == []
        guard = Guard(server.url, store=SQLiteStore(tmp_path / "agent.db"))
    async with Connection(guard, plain_codec):
        told = await guard.recovered()
    assert [(row.tool, row.outcome) for row in told] == [("charge", Outcome.COMPLETED)]
    assert told[0].answer is not None
    assert told[0].answer["result"]["content"][0]["text"] == "done"


async def test_what_the_host_has_written_last_still_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable, "_LAST_NOTES_SECONDS", LIMIT)
    async with plainly(ScriptedMcp()) as (server, host):
        for step in range(5):
            await host.notify("notifications/progress", progressToken=1, progress=step)
    told = server.sent("POST", "notifications/progress")
    assert [request.json["params"]["progress"] for request in told] == list(range(5))


async def test_a_connection_is_entered_once_and_a_guard_as_often_as_you_like() -> None:
    async with FakeServer(ScriptedMcp()) as server:
        guard = Guard(server.url)
        connection = Connection(guard, plain_codec)
        async with connection:
            pass
        with pytest.raises(GuardError, match=r"guard\.connect\(\)"):
            async with connection:
                pass
        for _ in range(3):
            async with Connection(guard, plain_codec):
                assert guard.state == "new"
            assert guard.state == "closed"


async def test_an_error_group_of_the_hosts_own_tasks_is_not_wrapped_again() -> None:
    async with FakeServer(ScriptedMcp()) as server:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            async with Connection(Guard(server.url), plain_codec):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_fail)
        assert isinstance(the_one_in(caught.value), ZeroDivisionError)
        assert len(caught.value.exceptions) == 1  # type: ignore[attr-defined]
        assert isinstance(caught.value.exceptions[0], ZeroDivisionError)  # type: ignore[attr-defined]


async def _fail() -> None:
    raise ZeroDivisionError


async def test_what_was_in_flight_is_in_the_ledger_as_in_doubt(tmp_path: Any) -> None:
    store = SQLiteStore(tmp_path / "agent.db")
    async with plainly(Streams(steps(How.STALL)), store=store) as (server, host):
        await ask(host, server)
        await server.wait_for(lambda r: r.rpc_method == "tools/call")
    rows = {row.method: row.outcome for row in await store.calls()}
    assert rows["tools/call"] is not None
    assert rows["tools/call"].value == "in_doubt"


async def test_closing_ends_the_session_only_where_nobody_could_resume_it(tmp_path: Any) -> None:
    async with plainly(ScriptedMcp()) as (server, _):
        pass
    assert [r.session_id for r in server.sent("DELETE")] == ["session-A"]
    async with plainly(ScriptedMcp(), store=SQLiteStore(tmp_path / "agent.db")) as (server, _):
        pass
    assert server.sent("DELETE") == []
    async with plainly(ScriptedMcp(), terminate_on_close=False) as (server, _):
        pass
    assert server.sent("DELETE") == []


@pytest.mark.parametrize(("handshake", "is_sent"), [(0.4, True), (LIMIT, False)])
async def test_over_a_slow_line_a_session_is_ended_in_time_or_its_being_left_is_told(
    handshake: float, is_sent: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle connection is not used again: `DELETE` needs a new one."""
    connect = httpcore.AnyIOBackend.connect_tcp

    async def slowly(*args: Any, **options: Any) -> Any:
        stream = await connect(*args, **options)
        try:
            await anyio.sleep(handshake)
        except BaseException:
            await anyio.aclose_forcefully(stream)  # type: ignore[arg-type]
            raise
        return stream

    monkeypatch.setattr(connections, "IDLE_CONNECTION_SECONDS", -1.0)
    async with FakeServer(ScriptedMcp()) as server, nothing_left(server):
        async with plain_host(server.url) as host:
            await host.call("charge")
            monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", slowly)
            left = anyio.current_time()
        assert anyio.current_time() - left < PROMISE + 0.5
    assert len(server.sent("DELETE")) == is_sent
    warned = [r.getMessage() for r in caplog.records if r.name == "mcp_client_guard" and r.levelname == "WARNING"]
    where = server.url.removesuffix("/mcp")
    told = f"{where}: a session was left to the server, DELETE failed: TimeoutError"
    assert warned == ([] if is_sent else [told])


CHUNKED = {"transfer-encoding": "chunked"}
GZIP = zlib.compressobj(wbits=31).flush(zlib.Z_SYNC_FLUSH)
FLOODS = {
    "events": (sse_head(), chunk(sse_event(tool_result(0, "noise")))),
    "messages": (sse_head(), chunk(sse_event(notification("notifications/message", data="noise")))),
    "a body": (http_response(headers={"content-type": "application/json", **CHUNKED}, length=False), chunk(b" ")),
    "gzip of nothing": (sse_head(headers={"content-encoding": "gzip"}) + chunk(GZIP), chunk(b"\0\0\0\xff\xff")),
    "1xx": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
}
"""What a server may write without pause: a head, and what follows it again and again."""


class Flood(Streams):
    def __init__(self, what: str) -> None:
        super().__init__(self.talk)
        self.what = what
        self.runs = anyio.Event()

    async def talk(self, call: Request, reply: Reply) -> None:
        head, again = FLOODS[self.what]
        await reply.write(head)
        for count in itertools.count():
            await reply.write(again * 100)
            await anyio.lowlevel.checkpoint()
            if count == 20:
                self.runs.set()


OURS = [pytest.param(what, nullcontext, id=f"{what}-own") for what in FLOODS]
# A client of the user's reads 1xx by itself.
THEIRS = [pytest.param(what, httpx.AsyncClient, id=f"{what}-httpx") for what in FLOODS if what != "1xx"]


@pytest.mark.parametrize(("what", "client"), [*OURS, *THEIRS])
async def test_a_server_may_still_write_while_the_host_leaves(what: str, client: Any) -> None:
    mcp = Flood(what)
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server, nothing_left(server), client() as http_client:
            async with plain_host(server.url, http_client=http_client) as host:
                await ask(host, server)
                await mcp.runs.wait()


async def test_a_listener_may_have_enough_of_what_goes_on() -> None:
    mcp = Flood("events")
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server:
            guard = Guard(server.url)
            async with Connection(guard, plain_codec) as (read, write), anyio.create_task_group() as tasks:

                async def listen() -> None:
                    async for _ in guard.events():
                        pass

                tasks.start_soon(listen)
                params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}
                await write.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
                await read.receive()
                await write.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
                await write.send({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "charge"}})
                await mcp.runs.wait()
                tasks.cancel_scope.cancel()
