"""HTTP clients of the caller's, and the adapter that stands in for the SDK's transport."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
from mcp import ClientSession
from mcp.client import streamable_http as theirs

from mcp_client_guard import CallInDoubt, CallSettled, GuardError, GuardPolicy, Outcome, SQLiteStore
from mcp_client_guard.adapters import mcp as ours
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED
from mcp_client_guard.testing import FakeServer, How, Reply, Request, ScriptedMcp, result, tool_result
from mcp_client_guard.transports.http import connection_limit

from .hosts import (
    LIMIT,
    Answer,
    PlainHost,
    Playing,
    Streams,
    answer,
    by_sdk,
    events,
    note,
    plain_host,
    plainly,
    prime,
    progress,
    refuse,
    run_together,
    steps,
    until,
)
from .seeds import resume_call
from .test_client_retries import Untraced

pytestmark = pytest.mark.anyio


async def test_a_clients_own_headers_auth_and_hooks_are_used_and_it_is_not_closed(playing: Playing) -> None:
    seen: list[str] = []

    async def hook(request: httpx.Request) -> None:
        seen.append(request.method)

    client = httpx.AsyncClient(headers={"x-mine": "1"}, auth=("u", "p"), event_hooks={"request": [hook]})
    async with client:
        mcp = Streams(
            events(prime("p0", 1), progress(1, "e1"), end=How.RST), events(progress(1, "e1"), answer(id="e2"))
        )
        async with playing(mcp, http_client=client) as (server, host):
            assert await host.call() == Answer("done")
            assert host.grades == ["proven"]
        assert not client.is_closed
        assert "x-mine" in client.headers
        assert "mcp-session-id" not in client.headers
    assert {r.header("x-mine") for r in server.requests} == {"1"}
    assert all(str(r.header("authorization")).startswith("Basic ") for r in server.requests)
    assert {"POST", "GET", "DELETE"} <= set(seen)


async def test_a_clients_timeouts_do_not_end_a_long_call(playing: Playing) -> None:
    async def slow(call: Request, reply: Reply) -> None:
        await anyio.sleep(0.15)
        await reply.json(tool_result(call.rpc_id, "done"))

    async with httpx.AsyncClient(timeout=0.05) as client:
        async with playing(Streams(slow), http_client=client) as (_, host):
            assert await host.call() == Answer("done")


async def test_a_client_that_follows_redirects_is_not_followed_to_another_origin(playing: Playing) -> None:
    async with FakeServer(ScriptedMcp()) as other, httpx.AsyncClient(follow_redirects=True) as client:

        async def away(call: Request, reply: Reply) -> None:
            await reply.status(307, location=other.url)

        async with playing(Streams(away), http_client=client) as (_, host):
            assert (await host.call()).is_error
        assert other.requests == []


async def test_more_calls_than_a_client_has_connections_all_complete(playing: Playing) -> None:
    limits = httpx.Limits(max_connections=8)
    async with httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(5, pool=0.05)) as client:

        async def slow(call: Request, reply: Reply) -> None:
            await anyio.sleep(0.02)
            await reply.json(tool_result(call.rpc_id, "done"))

        async with playing(Streams(slow), http_client=client) as (_, host):
            assert await run_together(*[host.call] * 20) == [Answer("done")] * 20


async def test_a_client_that_is_closed_sends_nothing_and_carries_no_connection() -> None:
    client = httpx.AsyncClient()
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            async with plain_host(server.url, http_client=client) as host:
                assert await host.call() == Answer("charge")
                await server.wait_for(lambda request: request.method == "GET")
                await client.aclose()
                for _ in range(2):
                    got = await host.call()
                    assert (got.code, got.data["by"]) == (CODE_NOT_EXECUTED, "wire")
                    assert got.data["reason"] == "the HTTP client is closed"
            assert len(server.sent("POST", "tools/call")) == 1
            with pytest.raises(GuardError, match="http_client of this Guard is closed"):
                async with plain_host(server.url, http_client=client):
                    pass


async def test_the_limit_is_that_of_the_transport_which_carries_the_url() -> None:
    mounted = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=3))
    async with httpx.AsyncClient(mounts={"https://": mounted}, limits=httpx.Limits(max_connections=9)) as client:
        assert connection_limit(client, "https://example.com/mcp") == 3
        assert connection_limit(client, "http://example.com/mcp") == 9


async def test_a_client_that_is_no_httpx_client_may_show_no_limit() -> None:
    client: Any = SimpleNamespace()
    assert connection_limit(client, "https://example.com/mcp") is None


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6])
async def test_a_client_with_few_connections_gets_through_its_calls(playing: Playing, most: int) -> None:
    """The standalone stream takes one for good, which a client of one or two cannot spare."""
    mcp = Streams(events(answer()), standalone=events(note("hello"), end=How.STALL))
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=most)) as client:
        async with playing(mcp, http_client=client) as (server, host):
            for _ in range(3):
                assert await host.call() == Answer("done")
            assert await run_together(*[host.call] * 10) == [Answer("done")] * 10
            mcp.first = events(prime("p0", 1), progress(1, "e1"), end=How.RST)
            mcp.left = [events(progress(1, "e1"), answer(id="e2"))]
            assert await host.call() == Answer("done")
            if most >= 3:
                await host.until(lambda: host.heard)
            listening = [get for get in server.sent("GET") if get.last_event_id is None]
            assert len(listening) == (1 if most >= 3 else 0)


async def test_a_request_for_which_no_connection_becomes_free_in_time_was_not_executed() -> None:
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=1)) as client:
        options = {"http_client": client, "policy": {"call_deadline": {"other": 0.15}}}
        async with plainly(Streams(steps(How.STALL)), **options) as (server, host):
            await host.request("ping")  # from here on the session takes requests at once
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.call)
                await server.wait_for(lambda request: request.rpc_method == "tools/call")
                crowded = await host.call("other")
                tasks.cancel_scope.cancel()
            assert (crowded.code, crowded.data["by"]) == (CODE_NOT_EXECUTED, "wire")
            assert "connection" in crowded.text
            assert len(server.sent("POST", "tools/call")) == 1


@pytest.mark.parametrize("then", ["answer", "cancel"])
async def test_a_host_that_writes_from_one_task_waits_for_no_connection(then: str) -> None:
    """What frees the connection of a call is written behind a request that waits for it."""
    heard = anyio.Event()

    async def call(request: Request, reply: Reply) -> None:
        if request.json["params"]["name"] == "ask":
            await reply.open_sse()
            await reply.event({"jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": {}})
            await heard.wait()
            await reply.event(tool_result(request.rpc_id, "asked"))
            await reply.finish()
        else:
            await reply.json(tool_result(request.rpc_id, "done"))

    async def notify(request: Request, reply: Reply) -> None:
        if request.rpc_method in (None, "notifications/cancelled"):
            heard.set()
        await reply.status(202)

    def calls(name: str) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": {"name": name}}

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=5)) as client:
        async with plainly(ScriptedMcp(call=call, notify=notify), http_client=client) as (server, host):
            await host.write.send(calls("ask"))
            await host.until(lambda: any(m.get("method") == "elicitation/create" for m in host.messages))
            question = next(m for m in host.messages if m.get("method") == "elicitation/create")
            await host.write.send(calls("other"))
            await host.write.send(calls("dropped"))
            await host.notify("notifications/cancelled", requestId="dropped")
            if then == "answer":
                await host.write.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}})
            else:
                await host.notify("notifications/cancelled", requestId="ask")
            await host.until(lambda: host.answers_to("other"))
            assert len(host.answers_to("ask")) == (then == "answer")
            sent = [request.json["params"]["name"] for request in server.sent("POST", "tools/call")]
            assert sent == ["ask", "other"], "what was cancelled while it waited never left"


@pytest.mark.parametrize("most", [None, 6])
async def test_notifications_that_the_server_does_not_take_hold_up_no_request(most: int | None) -> None:
    taken = anyio.Event()

    async def notify(request: Request, reply: Reply) -> None:
        if request.rpc_method == "notifications/progress":
            await taken.wait()
        await reply.status(202)

    client = None if most is None else httpx.AsyncClient(limits=httpx.Limits(max_connections=most))
    async with plainly(ScriptedMcp(notify=notify), http_client=client) as (server, host):
        for step in range(8):
            await host.notify("notifications/progress", progressToken=1, progress=step)
        assert await host.call() == Answer("charge")
        assert len(server.sent("POST", "notifications/progress")) <= 2
        taken.set()
        await server.wait_for(lambda request: request.rpc_method == "notifications/progress", 8)
        told = server.sent("POST", "notifications/progress")
        assert [request.json["params"]["progress"] for request in told] == list(range(8)), "in order"
    if client is not None:
        await client.aclose()


@pytest.mark.parametrize(("most", "tasks"), [(5, 1), (10, 6)])
@pytest.mark.parametrize("status", ["working", "input_required"])
async def test_open_tasks_of_an_earlier_process_leave_the_connections_to_the_host(
    tmp_path: Path, most: int, tasks: int, status: str
) -> None:
    """`tasks/result` blocks, here until the host makes another call."""
    approved = anyio.Event()

    async def call(request: Request, reply: Reply) -> None:
        if request.json["params"]["name"] == "approve":
            approved.set()
            await reply.json(tool_result(request.rpc_id, "approved"))
        else:
            task = {"taskId": f"t{request.json['params']['arguments']['n']}", "status": status, "ttl": 60000}
            await reply.json(result(request.rpc_id, {"task": task}))

    async def other(request: Request, reply: Reply) -> None:
        if request.rpc_method == "tasks/result":
            await approved.wait()
            await reply.json(tool_result(request.rpc_id, "charged"))
        elif request.rpc_method == "tasks/get":
            ended = "completed" if approved.is_set() else status
            await reply.json(result(request.rpc_id, {"status": ended, "pollInterval": 20}))
        else:
            await scripted.other(request, reply)

    scripted = ScriptedMcp(call=call, other=other)
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=most)) as client:
        options: Any = {"http_client": client, "store": SQLiteStore(tmp_path / "ledger.db")}
        with anyio.fail_after(LIMIT):
            async with FakeServer(scripted) as server:
                async with plain_host(server.url, **options) as host:
                    for n in range(tasks):
                        await host.request("tools/call", {"name": "charge", "arguments": {"n": n}})
                async with plain_host(server.url, **options) as host:
                    await server.wait_for(lambda request: request.rpc_method == "tasks/get", tasks)
                    if status == "input_required":
                        await server.wait_for(lambda request: request.rpc_method == "tasks/result")
                    assert await host.call("approve") == Answer("approved")
                    await host.until(lambda: len(recovered(host)) == tasks)
                assert len(server.sent("POST", "tasks/result")) == tasks


def recovered(host: PlainHost) -> list[CallSettled]:
    return [each for each in host.of(CallSettled) if each.outcome is Outcome.RECOVERED]


async def test_one_client_serves_several_connections_at_once() -> None:
    async with httpx.AsyncClient() as client:
        with anyio.fail_after(LIMIT):
            async with FakeServer(Streams(events(answer()))) as server:

                async def once() -> Answer:
                    async with plain_host(server.url, http_client=client) as host:
                        return await host.call()

                assert await run_together(*[once] * 5) == [Answer("done")] * 5


async def test_an_auth_flow_that_fails_is_an_answer_and_harms_no_other_call() -> None:
    """OAuth classes raise errors of their own out of `send`: not of the client's family, and not ours."""

    class Failing(httpx.Auth):
        broken = False

        def auth_flow(self, request: httpx.Request) -> Any:
            if self.broken:
                raise RuntimeError("the token endpoint said no")
            yield request

    auth = Failing()
    async with httpx.AsyncClient(auth=auth) as client:
        with anyio.fail_after(LIMIT):
            async with FakeServer(Streams(events(answer()))) as server:
                policy = GuardPolicy(max_attempts=1)
                async with plain_host(server.url, http_client=client, policy=policy) as host:
                    assert await host.call() == Answer("done")
                    auth.broken = True
                    assert (await host.call(n=2)).is_error
                    auth.broken = False
                    assert await host.call(n=3) == Answer("done")


class TokenRefused(httpx.Auth):
    """Asks for a token once, and is refused it; the error of that is raised, as from a request of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.broken = False

    def auth_flow(self, request: httpx.Request) -> Any:
        yield request
        if self.broken:
            refused = yield httpx.Request("POST", self.url)
            refused.raise_for_status()


class Raising(httpx.AsyncClient):
    """A client that makes an error of each refusal, and leaves the response open."""

    async def send(self, *args: Any, **kwargs: Any) -> httpx.Response:
        response = await super().send(*args, **kwargs)
        response.raise_for_status()
        return response


async def raise_for_status(response: httpx.Response) -> None:
    response.raise_for_status()


async def raise_their_own(response: httpx.Response) -> None:
    try:
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        raise LookupError("our API is down") from error


RAISING: dict[str, Callable[[], httpx.AsyncClient]] = {
    "hook": lambda: httpx.AsyncClient(event_hooks={"response": [raise_for_status]}),
    "hook with an error of its own": lambda: httpx.AsyncClient(event_hooks={"response": [raise_their_own]}),
    "subclass": Raising,
}


@pytest.mark.parametrize("raising", RAISING.values(), ids=RAISING)
async def test_a_refusal_of_which_the_client_makes_an_error_is_still_an_answer(
    playing: Playing, raising: Callable[[], httpx.AsyncClient]
) -> None:
    mcp = Streams(events(answer()))
    async with raising() as client, playing(mcp, http_client=client) as (server, host):
        assert await host.call(n=1) == Answer("done")
        old, mcp.session = mcp.session, "session-B"

        async def gone(request: Request, reply: Reply) -> None:
            await (refuse(404) if request.session_id == old else events(answer()))(request, reply)

        mcp.first = gone
        assert await host.call(n=2) == Answer("done")
        assert len(server.sent("POST", "initialize")) == 2
        mcp.first = refuse(403)
        denied = await host.call(n=3)
        assert (denied.code, denied.data["by"], denied.data["http_status"]) == (CODE_NOT_EXECUTED, "server", 403)


async def test_a_refusal_of_another_request_of_the_clients_is_no_answer_to_ours(playing: Playing) -> None:
    mcp = Streams(events(answer()))
    async with FakeServer(refusing_tokens) as tokens:
        auth = TokenRefused(tokens.url)
        async with httpx.AsyncClient(auth=auth) as client, playing(mcp, http_client=client) as (server, host):
            assert await host.call(n=1) == Answer("done")
            auth.broken = True
            assert (await host.call(n=2)).doubt is not None, "it ran, whatever the token endpoint says"
            auth.broken = False
            assert await host.call(n=3) == Answer("done")
            assert len(server.sent("POST", "initialize")) == 1


class Insisting(httpx.Auth):
    """Sends what was refused once more, as it is or as a copy, and fails for the first refusal all the same."""

    def __init__(self, *, copies: bool, raises: type[Exception] | None) -> None:
        self.copies = copies
        self.raises = raises

    def auth_flow(self, request: httpx.Request) -> Any:
        response = yield request
        try:
            response.raise_for_status()
        except httpx.HTTPStatusError as first:
            request.headers["authorization"] = "token"
            copy = httpx.Request(request.method, request.url, headers=request.headers, content=request.content)
            yield copy if self.copies else request
            if self.raises is None:
                raise
            raise self.raises from first


@pytest.mark.parametrize("traces", [True, False])
@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("raises", [LookupError, None])
@pytest.mark.parametrize("status", [401, 404])
async def test_an_earlier_refusal_is_no_answer_to_what_was_sent_again(
    playing: Playing, status: int, raises: type[Exception] | None, copies: bool, traces: bool
) -> None:
    ran: list[Any] = []

    async def gateway(request: Request, reply: Reply) -> None:
        if request.header("authorization") is None:
            await reply.status(status)
        else:
            ran.append(request.rpc_id)
            await reply.status(502)

    transport = httpx.AsyncHTTPTransport() if traces else Untraced()
    auth = Insisting(copies=copies, raises=raises)
    async with httpx.AsyncClient(auth=auth, transport=transport) as client:
        async with playing(Streams(gateway), http_client=client) as (_, host):
            assert (await host.call()).doubt is not None
            assert (await host.call()).doubt is not None, "its repeat is refused"
    assert len(ran) == 1


async def refusing_tokens(request: Request, reply: Reply) -> None:
    await reply.status(404)


# --- the adapter --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [theirs.streamable_http_client, ours.streamable_http_client])
async def test_closing_the_write_stream_ends_the_read_stream(client: Any) -> None:
    """A bridge closes the one when its own input has ended, and leaves when the other ends."""
    async with FakeServer(ScriptedMcp()) as server:
        with anyio.fail_after(LIMIT):
            async with client(server.url) as (read, write, *_), read:
                await write.aclose()
                assert [message async for message in read] == []


def test_the_adapter_takes_what_the_installed_sdk_takes() -> None:
    mine = inspect.signature(ours.streamable_http_client).parameters
    its = inspect.signature(theirs.streamable_http_client).parameters
    assert [(p.name, p.kind) for p in mine.values()] == [(p.name, p.kind) for p in its.values()]
    for name, parameter in its.items():
        if name != "max_sse_event_size":  # the SDK's 1 MiB fails what has run; ours is 16
            assert mine[name].default == parameter.default


def test_the_adapter_has_the_older_name_where_the_installed_sdk_has_it() -> None:
    its = getattr(theirs, "streamablehttp_client", None)
    mine = getattr(ours, "streamablehttp_client", None)
    assert (its is None) is (mine is None)
    if its is not None and mine is not None:
        told = [(p.name, p.kind) for p in inspect.signature(mine).parameters.values()]
        assert told == [(p.name, p.kind) for p in inspect.signature(its).parameters.values()]


@pytest.mark.skipif(not hasattr(theirs, "streamablehttp_client"), reason="SDK 2.x has it no more")
async def test_the_older_name_takes_headers_and_auth_and_makes_its_client_as_it_is_told() -> None:
    made: list[httpx.AsyncClient] = []

    def make(**options: Any) -> httpx.AsyncClient:
        made.append(httpx.AsyncClient(**options))
        return made[-1]

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            own = ours.streamablehttp_client(
                server.url,
                {"x-mine": "1"},
                timedelta(seconds=7),
                sse_read_timeout=8,
                httpx_client_factory=make,
                auth=httpx.BasicAuth("u", "p"),
            )
            for client in (own, ours.streamablehttp_client(server.url, {"x-mine": "1"}, terminate_on_close=False)):
                async with client as (read, write, session_id), ClientSession(read, write) as session:
                    await session.initialize()
                    assert (await session.call_tool("charge", {})).content[0].text == "charge"
                    assert session_id() == "session-A"
            assert {request.header("x-mine") for request in server.requests} == {"1"}
            assert str(server.requests[0].header("authorization")).startswith("Basic ")
            assert len(server.sent("DELETE")) == 1
    (client_made,) = made
    assert client_made.is_closed
    assert client_made.timeout == httpx.Timeout(7, read=8)


@pytest.mark.skipif(not hasattr(theirs, "streamablehttp_client"), reason="SDK 2.x has it no more")
@pytest.mark.parametrize(
    ("read", "opens", "idle"),
    [(300, 300.0, 90.0), (timedelta(seconds=8), 8.0, 8.0), (900.0, 900.0, 90.0), (None, 300.0, 90.0)],
)
async def test_the_older_name_s_read_timeout_bounds_silence_and_no_call(
    read: Any, opens: float, idle: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def guard(*args: Any, **options: Any) -> Any:
        made.append(options["policy"])
        return real(*args, **options)

    real = ours.Guard

    monkeypatch.setattr(ours, "Guard", guard)
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            client = ours.streamablehttp_client(server.url, sse_read_timeout=read)
            async with client as (reads, writes, _), ClientSession(reads, writes) as session:
                await session.initialize()
    (policy,) = made
    assert (policy.open_timeout, policy.max_idle, policy.deadline_of("charge")) == (opens, idle, 3600.0)


@pytest.mark.skipif(not hasattr(theirs, "streamablehttp_client"), reason="SDK 2.x has it no more")
async def test_a_silent_server_ends_the_older_name_s_initialize_as_the_sdk_s_own() -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp(initialize=steps(How.STALL))) as server:
            client = ours.streamablehttp_client(server.url, sse_read_timeout=0.05)
            async with client as (read, write, _), ClientSession(read, write) as session:
                with pytest.raises(Exception, match="no answer within open_timeout"):
                    await session.initialize()


@pytest.mark.parametrize("name", ["streamable_http_client", "streamablehttp_client"])
def test_a_wrong_call_is_told_by_the_name_that_the_caller_knows(name: str) -> None:
    function = getattr(ours, name, None)
    if function is not None:
        with pytest.raises(TypeError, match=rf"^{name}\(\) missing"):
            function()
        assert function.__qualname__ == name


async def test_the_adapter_yields_what_the_installed_sdk_yields() -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            async with theirs.streamable_http_client(server.url) as its:
                for stream in its[:2]:
                    await stream.aclose()  # on SDK 1.x nobody else does
            async with ours.streamable_http_client(server.url) as mine:
                assert len(mine) == len(its)
                async with ClientSession(mine[0], mine[1]) as session:
                    await session.initialize()
                    result = await session.call_tool("charge", {})
                    assert result.content[0].text == "charge"
                    if len(mine) == 3:
                        assert mine[2]() == "session-A"


@pytest.mark.parametrize("is_relative", [True, False])
@pytest.mark.parametrize("kind", [str, httpx.URL])
async def test_the_adapter_takes_the_urls_that_the_installed_sdk_takes(kind: Any, is_relative: bool) -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            base, _, path = server.url.rpartition("/")
            async with httpx.AsyncClient(base_url=base if is_relative else "http://elsewhere") as client:
                url = kind(f"/{path}" if is_relative else server.url)
                async with ours.streamable_http_client(url, http_client=client) as streams:
                    async with ClientSession(streams[0], streams[1]) as session:
                        await session.initialize()
                        assert (await session.call_tool("charge", {})).content[0].text == "charge"


@pytest.mark.parametrize("terminate", [True, False])
async def test_the_adapter_ends_the_session_as_it_is_told(terminate: bool) -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            async with ours.streamable_http_client(server.url, terminate_on_close=terminate) as streams:
                async with ClientSession(streams[0], streams[1]) as session:
                    await session.initialize()
            assert bool(server.sent("DELETE")) is terminate


async def test_the_adapter_leaves_an_error_as_it_was() -> None:
    class Ours(Exception):
        pass

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            with pytest.raises(Ours):
                async with ours.streamable_http_client(server.url):
                    raise Ours


async def test_the_adapter_recovers_a_cut_call_like_any_other() -> None:
    mcp = Streams(
        events(prime("p0", 1), progress(1, "e1"), end=How.RST), events(progress(1, "e1"), answer(id="e2"))
    )
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server:
            async with ours.streamable_http_client(server.url) as streams:
                async with ClientSession(streams[0], streams[1]) as session:
                    await session.initialize()
                    await session.list_tools()
                    seen: list[float] = []

                    async def on_progress(value: float, total: float | None, message: str | None) -> None:
                        seen.append(value)

                    result = await session.call_tool("charge", {}, progress_callback=on_progress)
                    assert result.content[0].text == "done"
    assert mcp.executed == ["charge"]


async def test_a_call_that_the_host_resumes_by_a_token_of_its_own_is_not_made_anew() -> None:
    released = anyio.Event()
    mcp = Streams(events(prime("p0"), until(released), answer(id="e1")))
    got: list[Any] = []
    async with by_sdk(mcp) as (server, host):

        async def again() -> None:
            await server.wait_for(lambda request: request.rpc_method == "tools/call")
            await resume_call(host, "p0", got)
            released.set()

        await run_together(host.call, again)
        (doubt,) = map(CallInDoubt.find, got)
        assert doubt is not None
        assert "resumption_token" in doubt.reason
    assert mcp.executed == ["charge"]


async def test_a_stalled_call_through_the_adapter_ends_with_its_context() -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(Streams(steps(How.STALL))) as server:
            async with ours.streamable_http_client(server.url) as streams:
                async with ClientSession(streams[0], streams[1]) as session:
                    await session.initialize()
                    with anyio.move_on_after(0.05):
                        await session.call_tool("charge", {})
            await server.until(lambda: not server.open_connections)


@pytest.mark.parametrize("status", ["503 Unavailable", "407 Proxy Authentication Required"])
@pytest.mark.parametrize("whose", ["ours", "the caller's"])
async def test_what_a_proxy_gave_no_tunnel_has_not_run(
    whose: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `CONNECT` is no request of ours: not one byte of that can have left."""
    asked = 0

    async def refuse(stream: Any) -> None:
        nonlocal asked
        async with stream:
            asked += (await stream.receive()).startswith(b"CONNECT ")
            await stream.send(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status.encode())

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, AsyncExitStack() as stack:
        proxy = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        options: dict[str, Any] = {"policy": GuardPolicy(max_attempts=1)}
        if whose == "ours":
            monkeypatch.setenv("HTTPS_PROXY", proxy)
        else:
            options["http_client"] = await stack.enter_async_context(httpx.AsyncClient(proxy=proxy))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(listener.serve, refuse)
        with anyio.fail_after(LIMIT):
            async with plain_host("https://nowhere.example/mcp", start=False, **options) as host:
                got = await host.call()
        tasks.cancel_scope.cancel()
    assert (got.code, got.data["by"]) == (CODE_NOT_EXECUTED, "wire")
    assert asked == 2, "it is tried again"
