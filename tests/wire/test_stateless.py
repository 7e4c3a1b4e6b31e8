"""2026-07-28 on the wire: no session, cursor or GET; a stream that ends is a cancel; subscriptions that go on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from mcp_client_guard import (
    CallInDoubt,
    CallSettled,
    Connected,
    EndpointMoved,
    Guard,
    GuardPolicy,
    InDoubtCall,
    ListenedAgain,
    MemoryStore,
    Outcome,
    Reconciler,
    Resolve,
    SessionLost,
    SQLiteStore,
)
from mcp_client_guard._connection import Connection
from mcp_client_guard._messages import Codec
from mcp_client_guard.core.model import JSON
from mcp_client_guard.testing import (
    END_OF_CHUNKS,
    Dribble,
    FakeServer,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    error,
    result,
    sse_event,
    sse_head,
)

from .hosts import LIMIT, PlainHost, the_one_in

pytestmark = pytest.mark.anyio

VERSION = "2026-07-28"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
}


class ModernHost(PlainHost):
    """A plain host that stamps the headers of 2026-07-28, as SDK 2.3 does."""

    async def notify(self, method: str, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        await self.write.send((message, {"mcp-protocol-version": VERSION}))

    async def post(self, method: str, params: JSON | None = None, id: Any = None) -> Any:
        self.sent += 1
        id = f"host-{self.sent}" if id is None else id
        params = {"_meta": {}, **(params or {})}
        params["_meta"] = {**META, **params["_meta"]}
        headers = {"mcp-protocol-version": VERSION, "mcp-method": method}
        if "name" in params:
            headers["mcp-name"] = params["name"]
        await self.write.send(({"jsonrpc": "2.0", "id": id, "method": method, "params": params}, headers))
        return id


class InSession(PlainHost):
    """A plain host in a session, on the same codec."""

    async def notify(self, method: str, **params: Any) -> None:
        await self.write.send(({"jsonrpc": "2.0", "method": method, "params": params}, {}))

    async def post(self, method: str, params: JSON | None = None, id: Any = None) -> Any:
        self.sent += 1
        id = f"host-{self.sent}" if id is None else id
        await self.write.send(({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}, {}))
        return id


class Modern(ScriptedMcp):
    """Speaks 2026-07-28 alone, and judges every request by its rules."""

    def __init__(self, *listens: Sequence[Any], call: Any = None, **parts: Any) -> None:
        super().__init__(**parts)
        self.listens = list(listens)
        """How each subscription in turn is served: an event or an ending."""
        self.play_call = call
        self.ran: list[str] = []
        self.acked: list[Any] = []

    async def __call__(self, request: Request, reply: Reply) -> None:
        assert request.method == "POST", "there is no other method"
        assert request.last_event_id is None
        refusal = self.fault_of(request)
        if refusal is not None:
            await reply.json(error(request.rpc_id, refusal, "no"), status=400)
        elif request.rpc_method == "server/discover":
            told = {"supportedVersions": [VERSION], "capabilities": {}, "resultType": "complete"}
            await reply.json(result(request.rpc_id, told), session="never-a-session")
        elif request.rpc_method == "subscriptions/listen":
            await self.listen(request, reply)
        elif request.rpc_method == "tools/call":
            self.ran.append(request.json["params"]["name"])
            await self.call(request, reply)
        else:
            await self.on_other(request, reply)

    def fault_of(self, request: Request) -> int | None:
        """The code with which a server of this revision refuses it (SPEC-FACTS §13)."""
        version = request.header("mcp-protocol-version")
        if version != VERSION:
            return -32022
        assert request.session_id is None
        params = request.json.get("params") or {}
        if "_meta" not in params or "io.modelcontextprotocol/protocolVersion" not in params["_meta"]:
            return -32602
        mirrored = request.header("mcp-method") == request.rpc_method
        return None if mirrored and request.header("mcp-name") == params.get("name") else -32020

    async def call(self, request: Request, reply: Reply) -> None:
        if self.play_call is not None:
            await self.play_call(request, reply)
        else:
            await reply.json(result(request.rpc_id, {"content": [{"type": "text", "text": "done"}]}))

    async def listen(self, request: Request, reply: Reply) -> None:
        honoured = request.json["params"]["notifications"]
        told = self.listens.pop(0) if self.listens else [reply.client_gone]
        self.acked.append(request.rpc_id)
        await reply.play(
            sse_head(), chunk(sse_event(on(request, "subscriptions/acknowledged", notifications=honoured)))
        )
        for step in told:
            await reply.play(step(request) if callable(step) else step)


def on(request: Request, name: str, **params: Any) -> JSON:
    """A notification on the subscription that this request has opened."""
    return {
        "jsonrpc": "2.0",
        "method": f"notifications/{name}",
        "params": {**params, "_meta": {SUBSCRIPTION: request.rpc_id}},
    }


def changed(request: Request) -> bytes:
    return chunk(sse_event(on(request, "tools/list_changed")))


@asynccontextmanager
async def connected(url: str, host: PlainHost, **options: Any) -> AsyncIterator[Guard]:
    codec = Codec(lambda message: message, lambda sent: sent)
    guard = Guard(url, on_event=host.on_event, **{"generation": "host", **options})
    async with (
        Connection(guard, lambda: codec) as (host.read, host.write),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(host.listen)
        yield guard
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def hosted(
    mcp: Any, host: PlainHost | None = None, **options: Any
) -> AsyncIterator[tuple[FakeServer, Guard, Any]]:
    host = host or ModernHost()
    try:
        with anyio.fail_after(LIMIT):
            async with FakeServer(mcp) as server, connected(server.url, host, **options) as guard:
                yield server, guard, host
    except Exception as error:
        raise the_one_in(error) from None


def settled(host: PlainHost) -> list[Outcome]:
    """The outcomes of the host's requests, as they were told."""
    return [event.outcome for event in host.of(CallSettled) if event.tool != "find"]


CALL = {"name": "charge", "arguments": {"cents": 5}}


async def test_a_host_of_this_revision_is_served_by_its_rules() -> None:
    async with hosted(Modern()) as (server, guard, host):
        assert "result" in await host.request("server/discover")
        assert "result" in await host.request("tools/list")
        assert (await host.request("tools/call", CALL))["result"]["content"][0]["text"] == "done"
        assert guard.state == "stateless"
        (connected,) = host.of(Connected)
        assert (connected.generation.value, connected.session) == ("stateless-http", "-")
        await host.notify("notifications/cancelled", requestId="host-1")
    assert [request.method for request in server.requests] == ["POST"] * 3, "no GET, no DELETE, no cancel"


@pytest.mark.parametrize("how", [How.FIN, How.RST, END_OF_CHUNKS])
@pytest.mark.parametrize("after", ["head", "comment", "id", "half"])
async def test_a_cut_stream_is_in_doubt_and_was_a_signal_to_cancel(how: Any, after: str) -> None:
    """Also where a server gives event IDs: they are not of this revision, and nothing is resumed by them."""
    before = {
        "head": b"",
        "comment": chunk(b": ping\n\n"),
        "id": chunk(sse_event("", id="e1", retry=5))
        + chunk(sse_event({"jsonrpc": "2.0", "method": "n"}, id="e2")),
        "half": chunk(b'id: e1\ndata: {"jsonrpc"'),
    }[after]

    async def call(request: Request, reply: Reply) -> None:
        await reply.play(sse_head(session="odd"), *([Dribble(before)] if before else []), how)

    async with hosted(Modern(call=call)) as (server, _guard, host):
        got = await host.request("tools/call", CALL)
        doubt = CallInDoubt.find(got["result"])
        assert doubt is not None
        assert doubt.cancel_signalled
        again = await host.request("tools/call", CALL)
        assert CallInDoubt.find(again["result"]) == doubt
        assert settled(host) == [Outcome.IN_DOUBT]
    assert len(server.requests) == 1


async def test_a_safe_call_is_sent_again_with_all_its_headers() -> None:
    async def call(request: Request, reply: Reply) -> None:
        if len(mcp.ran) == 1:
            await reply.play(sse_head(), How.RST)
        else:
            await reply.json(result(request.rpc_id, {"content": []}))

    mcp = Modern(call=call)
    async with hosted(mcp, policy=GuardPolicy(resend={"charge": "always"})) as (server, _, host):
        params = {**CALL, "_meta": {"progressToken": "mine"}}
        assert "content" in (await host.request("tools/call", params))["result"]
        first, second = server.sent("POST", "tools/call")
    assert first.rpc_id != second.rpc_id
    tokens = [r.json["params"]["_meta"]["progressToken"] for r in (first, second)]
    assert tokens == [first.rpc_id, second.rpc_id]


async def test_a_silent_stream_is_never_closed() -> None:
    """No ping, no max_idle: TCP keepalive alone finds a dead peer."""
    goes_on = anyio.Event()

    async def call(request: Request, reply: Reply) -> None:
        await reply.play(sse_head(), chunk(sse_event({"jsonrpc": "2.0", "method": "n"}, id="e1")))
        with anyio.move_on_after(0.3):
            await reply.client_gone.wait()
        assert not reply.client_gone.is_set()
        await goes_on.wait()
        answer = result(request.rpc_id, {"content": [{"type": "text", "text": "late"}]})
        await reply.play(chunk(sse_event(answer)), END_OF_CHUNKS)

    async with hosted(Modern(call=call), policy=GuardPolicy(max_idle=0.02)) as (server, _, host):
        id = await host.post("tools/call", CALL)
        await server.wait_for(lambda r: r.rpc_method == "tools/call")
        goes_on.set()
        (got,) = await host.until(lambda: host.answers_to(id))
        assert got["result"]["content"][0]["text"] == "late"
    assert len(server.requests) == 1


@pytest.mark.parametrize("by", ["host", "deadline"])
async def test_a_cancel_closes_the_stream_and_posts_nothing(by: str) -> None:
    closed = anyio.Event()

    async def call(request: Request, reply: Reply) -> None:
        await reply.play(sse_head())
        await reply.client_gone.wait()
        closed.set()

    policy = GuardPolicy(call_deadline=0.1) if by == "deadline" else GuardPolicy()
    async with hosted(Modern(call=call), policy=policy) as (server, _guard, host):
        id = await host.post("tools/call", CALL)
        await server.wait_for(lambda r: r.rpc_method == "tools/call")
        if by == "host":
            await host.notify("notifications/cancelled", requestId=id)
        else:
            (got,) = await host.until(lambda: host.answers_to(id))
            doubt = CallInDoubt.find(got["result"])
            assert doubt is not None
            assert doubt.cancel_signalled
        await closed.wait()
        assert settled(host) == [Outcome.CANCELLED if by == "host" else Outcome.IN_DOUBT]
    assert len(server.requests) == 1


async def test_what_the_host_and_server_say_of_a_round_passes_exactly() -> None:
    state = json.loads('"\\u00e4\\ud83d\\ude00\\ud800 \\" 1.0"')
    asked = {
        "resultType": "input_required",
        "inputRequests": {"k": {"method": "elicitation/create", "params": {"x": 1.5, "y": 2**60, "z": None}}},
        "requestState": state,
    }

    async def call(request: Request, reply: Reply) -> None:
        is_first = "requestState" not in request.json["params"]
        await reply.json(result(request.rpc_id, asked if is_first else {"content": []}))

    async with hosted(Modern(call=call)) as (server, guard, host):
        got = await host.request("tools/call", CALL)
        assert got["result"] == asked
        responses = {
            "k": {"action": "accept", "content": {"n": 1.50, "big": 2**60, "none": None, "ä": "\ud83d\ude00"}}
        }
        await host.request("tools/call", {**CALL, "inputResponses": responses, "requestState": state})
        second = server.sent("POST", "tools/call")[1].json["params"]
        assert second["requestState"] == state
        assert json.dumps(second["inputResponses"]) == json.dumps(responses)
        assert settled(host) == [Outcome.INPUT_REQUIRED, Outcome.COMPLETED]
        one, two = await guard.calls()
        assert one.call_key == two.call_key


async def test_the_next_connection_goes_on_with_a_call() -> None:
    """Frameworks open a connection for each request."""
    asked = {"resultType": "input_required", "inputRequests": {}, "requestState": "S"}

    async def call(request: Request, reply: Reply) -> None:
        is_first = "requestState" not in request.json["params"]
        await reply.json(result(request.rpc_id, asked if is_first else {"content": []}))

    with anyio.fail_after(LIMIT):
        async with FakeServer(Modern(call=call)) as server:
            guard = Guard(server.url, generation="host")
            codec = Codec(lambda message: message, lambda sent: sent)
            for more in ({}, {"inputResponses": {}, "requestState": "S"}):
                host = ModernHost()
                async with Connection(guard, lambda: codec) as (host.read, host.write):
                    await host.post("tools/call", {**CALL, **more})
                    await host.read.receive()
            one, two = await guard.calls()
            assert one.call_key == two.call_key


@pytest.mark.parametrize("between", ["nothing", "another guard"])
async def test_so_it_does_where_an_equal_call_waits_alike(between: str) -> None:
    """The repeat of what is in doubt is not taken for the user's word on the other call."""

    async def call(request: Request, reply: Reply) -> None:
        asked = {"resultType": "input_required", "inputRequests": {}}
        is_first = "inputResponses" not in request.json["params"]
        await reply.play(*([] if is_first else [How.RST]))
        await reply.json(result(request.rpc_id, asked))

    async def told(guard: Guard, *calls: JSON) -> list[bool]:
        """Of which of these calls the host is told that it is in doubt."""
        host, codec = ModernHost(), Codec(lambda message: message, lambda sent: sent)
        doubts = []
        async with Connection(guard, lambda: codec) as (host.read, host.write):
            for params in calls:
                await host.post("tools/call", params)
                doubts.append(CallInDoubt.find((await host.read.receive())["result"]) is not None)
        return doubts

    with anyio.fail_after(LIMIT):
        async with FakeServer(Modern(call=call)) as server:
            store, go_on = MemoryStore(), {**CALL, "inputResponses": {}}
            guard = Guard(server.url, generation="host", store=store)
            assert await told(guard, CALL, CALL, go_on) == [False, False, True]
            if between == "another guard":
                await told(Guard(server.url, generation="host", store=store))
            assert await told(guard, go_on) == [True]
            assert len(server.sent("POST", "tools/call")) == 3


async def test_two_hosts_that_were_told_the_same_go_on_with_one_request() -> None:
    asked = {"resultType": "input_required", "inputRequests": {}, "requestState": "S"}
    both = anyio.Event()

    async def call(request: Request, reply: Reply) -> None:
        is_first = "requestState" not in request.json["params"]
        await both.wait()
        await reply.json(result(request.rpc_id, asked if is_first else {"content": []}))

    named = {**CALL, "_meta": {"io.github.mcp-client-guard/call-key": "order-1"}}
    codec = Codec(lambda message: message, lambda sent: sent)
    with anyio.fail_after(LIMIT):
        async with FakeServer(Modern(call=call)) as server:
            guard = Guard(server.url, generation="host")
            one, two = ModernHost(), ModernHost()
            async with (
                Connection(guard, lambda: codec) as (one.read, one.write),
                Connection(guard, lambda: codec) as (two.read, two.write),
            ):
                for host in (one, two):
                    await host.post("tools/call", named)
                both.set()
                for host in (one, two):
                    assert (await host.read.receive())["result"] == asked
                for host in (one, two):
                    await host.post("tools/call", {**CALL, "inputResponses": {}, "requestState": "S"})
                for host in (one, two):
                    assert (await host.read.receive())["result"]["content"] == []
            assert len(server.sent("POST", "tools/call")) == 2


async def test_the_hook_may_ask_the_server_without_a_session() -> None:
    async def call(request: Request, reply: Reply) -> None:
        if request.json["params"]["name"] == "charge":
            await reply.play(sse_head(), How.RST)
        else:
            await reply.json(result(request.rpc_id, {"content": [{"type": "text", "text": "yes"}]}))

    async def ask(doubt: InDoubtCall, server: Reconciler) -> Any:
        seen = await server.call_tool("find", {"cents": 5})
        return Resolve(seen)

    async with hosted(Modern(call=call), reconcile=ask) as (_, _guard, host):
        await host.request("tools/list")
        got = await host.request("tools/call", CALL)
        assert got["result"]["content"][0]["text"] == "yes"
        assert settled(host) == [Outcome.COMPLETED, Outcome.RECOVERED], "of what the host has sent"


async def test_a_task_is_asked_for_by_the_next_process(tmp_path: Path) -> None:
    """Under the headers that the revision asks of it, or the server would refuse to say."""
    working = {"resultType": "task", "taskId": "task ä", "status": "working", "pollIntervalMs": 1}

    class Tasks(Modern):
        async def call(self, request: Request, reply: Reply) -> None:
            await reply.json(result(request.rpc_id, working))

        async def other(self, request: Request, reply: Reply) -> None:
            done = {"status": "completed", "result": {"content": [{"type": "text", "text": "done"}]}}
            asked = len(server.sent("POST", "tasks/get"))
            told: Any = {"tasks/get": working if asked == 1 else done, "tools/list": {"tools": []}}
            await reply.json(result(request.rpc_id, told[request.rpc_method]))

        def fault_of(self, request: Request) -> int | None:
            if request.rpc_method != "tasks/get":
                return super().fault_of(request)
            assert request.json["params"]["_meta"] == META
            assert request.header("mcp-protocol-version") == VERSION
            return None if request.header("mcp-name") == "=?base64?dGFzayDDpA==?=" else -32020

    path = tmp_path / "ledger.db"
    with anyio.fail_after(LIMIT):
        async with FakeServer(Tasks()) as server:
            async with connected(server.url, host := ModernHost(), store=SQLiteStore(path)):
                await host.request("tools/call", CALL)
            async with connected(server.url, host := ModernHost(), store=SQLiteStore(path)) as guard:
                await host.request("tools/list")
                (row,) = await guard.recovered()
                assert row.outcome is Outcome.RECOVERED
                assert row.answer is not None
                assert row.answer["result"]["content"][0]["text"] == "done"


async def test_so_are_the_tasks_of_all_its_connections_also_where_the_host_repeats_a_call(tmp_path: Path) -> None:
    """Without a probe, the repeat waits for the task and sends nothing that would show the server's revision."""

    class Tasks(Modern):
        async def call(self, request: Request, reply: Reply) -> None:
            task_id = f"task-{request.json['params']['arguments']['n']}"
            await reply.json(
                result(request.rpc_id, {"resultType": "task", "taskId": task_id, "status": "working"})
            )

        async def other(self, request: Request, reply: Reply) -> None:
            done = {"content": [{"type": "text", "text": request.json["params"]["taskId"]}]}
            await reply.json(result(request.rpc_id, {"status": "completed", "result": done}))

        def fault_of(self, request: Request) -> int | None:
            return None if request.rpc_method == "tasks/get" else super().fault_of(request)

    path = tmp_path / "ledger.db"
    calls = [{"name": "charge", "arguments": {"n": n}} for n in (1, 2)]
    with anyio.fail_after(LIMIT):
        async with FakeServer(Tasks()) as server:
            first = Guard(server.url, generation="host", store=SQLiteStore(path))
            codec = Codec(lambda message: message, lambda sent: sent)
            hosts = [ModernHost(), ModernHost()]
            async with (
                Connection(first, lambda: codec) as (hosts[0].read, hosts[0].write),
                Connection(first, lambda: codec) as (hosts[1].read, hosts[1].write),
            ):
                for host, call in zip(hosts, calls, strict=True):
                    await host.post("tools/call", call)
                    assert (await host.read.receive())["result"]["resultType"] == "task"
            async with connected(server.url, host := ModernHost(), store=SQLiteStore(path)) as guard:
                answers = [await host.request("tools/call", call) for call in calls]
                rows = await guard.recovered()
            texts = [answer["result"]["content"][0]["text"] for answer in answers]
            assert texts == ["task-1", "task-2"]
            assert [row.outcome for row in rows] == [Outcome.RECOVERED] * 2
            assert len(server.sent("POST", "tools/call")) == 2


async def test_a_task_that_the_host_has_holds_no_equal_call_back() -> None:
    """One process, a connection for each call: the host asks for its tasks itself."""

    async def call(request: Request, reply: Reply) -> None:
        working = {"resultType": "task", "taskId": "t", "status": "working"}
        await reply.json(result(request.rpc_id, working))

    codec = Codec(lambda message: message, lambda sent: sent)
    with anyio.fail_after(LIMIT):
        async with FakeServer(Modern(call=call)) as server:
            guard = Guard(server.url, generation="host")
            for _ in range(3):
                host = ModernHost()
                async with Connection(guard, lambda: codec) as (host.read, host.write):
                    id = await host.post("tools/call", CALL)
                    answer = await host.read.receive()
                    assert (answer["id"], answer["result"]["resultType"]) == (id, "task")
                    await host.post("tools/list")
                    await host.read.receive()
                    assert await guard.recovered() == []
            assert len(server.sent("POST", "tools/call")) == 3
            assert await guard.recovered() == []


# Subscriptions.

LISTEN = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a"]}}
READ_ANEW = ["notifications/tools/list_changed", "notifications/resources/updated"]
ENDINGS = {
    "fin": [How.FIN],
    "rst": [How.RST],
    "eof": [END_OF_CHUNKS],
    "cancelled": [
        lambda request: chunk(
            sse_event(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request.rpc_id}}
            )
        )
    ],
}


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_a_subscription_outlives_its_streams(how: str, size: int) -> None:
    def small(request: Request) -> Dribble:
        return Dribble(changed(request), size)

    mcp = Modern([small, *ENDINGS[how]], [*ENDINGS[how]], [small, anyio.Event()])
    async with hosted(mcp) as (server, _, host):
        id = await host.post("subscriptions/listen", LISTEN)
        await host.until(lambda: host.heard.count(READ_ANEW[0]) == 3 and len(host.of(ListenedAgain)) == 2)
        about = [m for m in host.messages if "method" in m]
        assert {m["params"]["_meta"][SUBSCRIPTION] for m in about} == {id}
        assert host.heard.count("notifications/subscriptions/acknowledged") == 1
        assert host.heard.count(READ_ANEW[1]) == 1, "told to read anew at most once a minute"
        assert len(set(mcp.acked)) == 3
        assert host.answers_to(id) == []
    assert {r.rpc_method for r in server.requests} == {"subscriptions/listen"}


async def test_a_subscription_waits_for_a_server_that_is_away() -> None:
    down = anyio.Event()

    def until_down(_: Request) -> Any:
        return down

    mcp = Modern([until_down, How.RST])
    async with hosted(mcp, policy=GuardPolicy(max_attempts=1)) as (server, _, host):
        id = await host.post("subscriptions/listen", LISTEN)
        await host.until(lambda: host.heard)
        server.refuse()
        down.set()
        await host.until(lambda: len(host.of(CallSettled)) > 3)
        server.listen_again()
        await host.until(lambda: host.of(ListenedAgain))
        assert host.answers_to(id) == []


async def test_a_server_may_end_a_subscription_for_good() -> None:
    def over(request: Request) -> bytes:
        return chunk(sse_event(result(request.rpc_id, {"_meta": {SUBSCRIPTION: request.rpc_id}})))

    async with hosted(Modern([over, END_OF_CHUNKS])) as (server, _, host):
        got = await host.request("subscriptions/listen", LISTEN)
        assert got["result"]["_meta"][SUBSCRIPTION] == got["id"]
    assert len(server.requests) == 1


async def test_the_host_ends_a_subscription() -> None:
    closed = anyio.Event()

    class Watching(Modern):
        async def listen(self, request: Request, reply: Reply) -> None:
            self.listens.append([])
            await super().listen(request, reply)
            await reply.client_gone.wait()
            closed.set()

    async with hosted(Watching()) as (server, _, host):
        id = await host.post("subscriptions/listen", LISTEN)
        await host.until(lambda: host.heard)
        await host.notify("notifications/cancelled", requestId=id)
        await closed.wait()
    assert len(server.requests) == 1


@pytest.mark.parametrize(("most", "subscriptions"), [(1, 0), (2, 1), (5, 4), (6, 5), (10, 9)])
async def test_subscriptions_leave_a_connection_for_calls(most: int, subscriptions: int) -> None:
    """They last: what they took from a client of the caller's would never be free again."""
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=most)) as client:
        async with hosted(Modern(), http_client=client) as (_, _guard, host):
            ids = [await host.post("subscriptions/listen", LISTEN) for _ in range(subscriptions)]
            await host.until(lambda: host.heard.count(ACKNOWLEDGED) == subscriptions)
            refused = await host.request("subscriptions/listen", LISTEN)
            assert refused["error"]["data"]["by"] == "wire"
            assert "another subscription" in refused["error"]["message"]
            assert "result" in await host.request("tools/call", CALL)
            if ids:
                await host.notify("notifications/cancelled", requestId=ids[0])
                ids.append(await host.post("subscriptions/listen", LISTEN))
                await host.until(lambda: host.heard.count(ACKNOWLEDGED) == subscriptions + 1)
                assert "result" in await host.request("tools/call", CALL)


async def test_one_that_takes_the_place_of_a_call_waits_for_that() -> None:
    may_answer = anyio.Event()

    async def call(request: Request, reply: Reply) -> None:
        await may_answer.wait()
        await reply.json(result(request.rpc_id, {"content": []}))

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=6)) as client:
        async with hosted(Modern(call=call), http_client=client) as (server, _guard, host):
            for number in (1, 2):
                await host.post("tools/call", {"name": "charge", "arguments": {"cents": number}})
            await server.wait_for(lambda request: request.json["params"]["arguments"]["cents"] == 2)
            for _ in range(4):
                await host.post("subscriptions/listen", LISTEN)
            await host.until(lambda: host.heard.count(ACKNOWLEDGED) == 4)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.post, "subscriptions/listen", LISTEN)
                await anyio.wait_all_tasks_blocked()
                assert len(server.sent("POST", "subscriptions/listen")) == 4
                may_answer.set()
                await host.until(lambda: host.heard.count(ACKNOWLEDGED) == 5)


# Moves.


class Moving(Modern):
    """Keeps sessions until it moves."""

    def __init__(self, *, to: str = "modern", **parts: Any) -> None:
        super().__init__(**parts)
        self.to = to
        self.moved = False
        self.sessions = ScriptedMcp(call=self.in_session)
        self.hold = anyio.Event()

    async def in_session(self, request: Request, reply: Reply) -> None:
        self.ran.append(request.json["params"]["name"])
        await reply.play(
            sse_head(), chunk(sse_event("", id="p1")), chunk(sse_event({"jsonrpc": "2.0", "method": "n"}, id="e1"))
        )
        await self.hold.wait()
        await reply.play(How.RST)

    async def __call__(self, request: Request, reply: Reply) -> None:
        if not self.moved:
            await self.sessions(request, reply)
        elif request.method != "POST":
            assert request.method == "GET"
            await reply.status(405)
        elif self.to == "both" and request.rpc_method == "initialize":
            self.moved = False
            self.sessions.session = "session-B"
            await self.sessions(request, reply)
        elif request.rpc_method in ("ping", "initialize") and self.to == "unnamed":
            await reply.json(error(request.rpc_id, -32602, "no _meta"), status=400)
        else:
            code = self.fault_of(request)
            assert code is not None, "a host in a session says nothing that this server takes"
            await reply.json(error(request.rpc_id, code, "no"), status=400)


@pytest.mark.parametrize("to", ["modern", "unnamed"])
async def test_a_server_that_knows_no_sessions_any_more(to: str) -> None:
    mcp = Moving(to=to)
    async with hosted(mcp, InSession()) as (server, _guard, host):
        await host.start()
        charge = await host.post("tools/call", CALL)
        await host.until(lambda: "n" in host.heard)
        mcp.moved = True
        got = await host.request("tools/list")
        assert got["error"]["code"] == -31904
        assert "connect again" in got["error"]["message"]
        assert [moved.generation.value for moved in host.of(EndpointMoved)] == ["stateless-http"]
        assert host.of(SessionLost)
        mcp.hold.set()
        (got,) = await host.until(lambda: host.answers_to(charge))
        assert CallInDoubt.find(got["result"]) is not None
        assert (await host.request("tools/list"))["error"]["code"] == -31904
    assert mcp.ran == ["charge"]
    assert all(r.last_event_id is None for r in server.requests), "no cursor crosses"


async def test_a_server_of_both_goes_on_in_another_session() -> None:
    mcp = Moving(to="both")
    async with hosted(mcp, InSession()) as (_, _, host):
        await host.start()
        mcp.moved = True
        assert "tools" in (await host.request("tools/list"))["result"]
        assert host.of(SessionLost)
        assert not host.of(EndpointMoved)


@pytest.mark.parametrize("status", [400, 404, 405, 406])
async def test_a_server_that_wants_sessions_again_is_no_silent_failure(status: int) -> None:
    class RolledBack(Modern):
        async def on_list(self, request: Request, reply: Reply) -> None:
            await reply.status(status, b"Bad Request: Missing session ID")

    mcp = RolledBack()
    async with hosted(mcp) as (server, _, host):
        assert "result" in await host.request("server/discover")
        mcp.on_other = mcp.on_list
        got = await host.request("tools/list")
        assert got["error"]["data"] == {"http_status": status}
        (moved,) = host.of(EndpointMoved)
        assert moved.generation is None
    assert len(server.requests) == 2


async def test_generation_auto_ends_a_session_that_it_tried_in_vain() -> None:
    async def other(request: Request, reply: Reply) -> None:
        await reply.json(result(request.rpc_id, {"supportedVersions": [VERSION], "capabilities": {}}))

    async with hosted(ScriptedMcp(other=other), generation="auto") as (server, guard, host):
        got = await host.request("server/discover")
        assert got["result"]["supportedVersions"] == [VERSION]
        deleted = await server.wait_for(lambda request: request.method == "DELETE")
        assert deleted.session_id == "session-A"
        assert [r.rpc_method for r in server.sent("POST")] == ["initialize", "server/discover"]
        assert guard.state == "stateless"
