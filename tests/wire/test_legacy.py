"""Legacy HTTP+SSE on the wire (2024-11-05): found or chosen, cut anywhere, moved."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import anyio
import httpx
import pytest

from mcp_client_guard import (
    Connected,
    Disconnected,
    DuplicateDropped,
    EndpointRefused,
    Guard,
    OrphanDropped,
    Outcome,
    Reinitialized,
    SessionLost,
)
from mcp_client_guard._guard import Connection
from mcp_client_guard._messages import plain_codec
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED
from mcp_client_guard.core.model import Generation
from mcp_client_guard.testing import (
    FakeServer,
    How,
    Reply,
    Request,
    ScriptedMcp,
    error,
    progress_of,
    sse_event,
    tool_result,
)

from .hosts import (
    LIMIT,
    STOPS_READING,
    Answer,
    Playing,
    events,
    note,
    plain_host,
    plainly,
    refuse,
    run_together,
    until,
)
from .legacy import Carrier, LegacyMcp

pytestmark = [pytest.mark.anyio, STOPS_READING]

SECRET = "7c3a-very-secret-session"
CHOSEN = {"generation": "legacy-sse"}


def targets(server: FakeServer, rpc_method: str) -> list[str]:
    return [r.target for r in server.sent("POST", rpc_method)]


# Found, or chosen.


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_it_is_found_by_the_first_initialize(playing: Playing, status: int) -> None:
    async with playing(LegacyMcp(root=refuse(status))) as (server, host):
        assert await host.call() == Answer("done")
        await host.saw(1)
        assert [e.generation for e in host.of(Connected)] == [Generation.LEGACY_SSE]
        assert targets(server, "initialize")[-2:] == ["/mcp", "/messages?session=s1"]
        assert len(server.sent("GET")) == 1
        assert not server.sent("DELETE")


async def test_it_may_be_chosen(playing: Playing) -> None:
    async with playing(LegacyMcp(), **CHOSEN) as (server, host):
        assert await host.call() == Answer("done")
        assert targets(server, "initialize") == ["/messages?session=s1"]
        assert server.requests[0].method == "GET"


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_no_other_status_is_taken_for_it(status: int) -> None:
    async with plainly(LegacyMcp(root=refuse(status)), start=False) as (server, host):
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = await host.request("initialize", params)
        assert answer["error"]["data"]["http_status"] == status
        assert server.sent("GET") == []


@pytest.mark.parametrize("how", ["405", "another event", "silence", "FIN", "RST"])
async def test_without_an_endpoint_the_first_refusal_is_the_answer(how: str) -> None:
    async def get(request: Request, reply: Reply) -> None:
        if how == "405":
            await reply.status(405)
            return
        await reply.open_sse()
        if how == "another event":
            await reply.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
        await reply.end(How[how] if how in ("FIN", "RST") else How.STALL)

    mcp = LegacyMcp(get=get, root=refuse(404))
    async with plainly(mcp, start=False, policy={"witness_timeout": 0.1}) as (server, host):
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = await host.request("initialize", params)
        assert answer["error"]["data"]["http_status"] == 404
        assert len(server.sent("GET")) == 1


async def test_in_mid_session_it_is_never_looked_for(playing: Playing) -> None:
    async with playing(ScriptedMcp(call=refuse(405))) as (server, host):
        assert (await host.call()).is_error
        assert len(server.sent("GET")) == 1, "the standalone stream"


@pytest.mark.parametrize("generation", ["auto", "sessions"])
@pytest.mark.parametrize("connections", [1, 2])
async def test_its_stream_needs_a_connection_beside_those_for_posts(generation: str, connections: int) -> None:
    limits = httpx.Limits(max_connections=connections)
    async with httpx.AsyncClient(limits=limits) as client:
        options = {"http_client": client, "generation": generation}
        async with plainly(LegacyMcp(), start=False, **options) as (server, host):
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            }
            answer = await host.request("initialize", params)
            assert len(server.sent("GET")) == connections - 1
            assert ("result" in answer) is (connections == 2)
            assert connections == 2 or "two or more" in answer["error"]["message"]


# The endpoint.


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("messages?session=%s", "/messages?session=s1"),
        ("/deep/er/m?session=%s", "/deep/er/m?session=s1"),
        ("?session=%s&x=y", "/mcp?session=s1&x=y"),
        ("http://127.0.0.1:{port}/abs?session=%s", "/abs?session=s1"),
        ("//127.0.0.1:{port}/abs?session=%s", "/abs?session=s1"),
    ],
)
async def test_the_endpoint_may_be_relative_rooted_or_absolute(
    playing: Playing, endpoint: str, target: str
) -> None:
    class Located(LegacyMcp):
        def where(self, carrier: Carrier) -> str:
            port = carrier.reply.request.header("host").rpartition(":")[2]  # type: ignore[union-attr]
            return endpoint.replace("{port}", port) % carrier.name

    async with playing(Located()) as (server, host):
        assert await host.call() == Answer("done")
        assert targets(server, "tools/call") == [target]


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:%d/m", "//127.0.0.1:%d/m", "http://localhost:%d/m?s=secret"]
)
async def test_another_origin_gets_no_byte_and_no_credential(endpoint: str) -> None:
    async with FakeServer(ScriptedMcp()) as other:
        mcp = LegacyMcp(endpoint=(endpoint % other.port).replace("%", "%%"))
        async with plainly(mcp, start=False, headers={"authorization": "t"}, **CHOSEN) as (server, host):
            answer = await host.request("initialize", {"protocolVersion": "2025-11-25"})
            assert answer["error"]["code"] == CODE_NOT_EXECUTED
            (told,) = host.of(EndpointRefused)
            assert str(other.port) in told.origin
            assert "secret" not in repr(told)
            assert server.sent("POST") == []
        assert other.connections == 0


async def test_an_endpoint_that_comes_again_is_nothing_and_another_origin_is_refused(playing: Playing) -> None:
    class Twice(LegacyMcp):
        async def call(self, request: Request, carrier: Carrier) -> None:
            await carrier.event(self.where(carrier), event="endpoint")
            await carrier.event("http://127.0.0.1:1/evil", event="endpoint")
            await super().call(request, carrier)

    async with playing(Twice()) as (server, host):
        assert await host.call() == Answer("done")
        assert await host.call(n=2) == Answer("done")
        assert targets(server, "tools/call") == ["/messages?session=s1"] * 2
        assert len(host.of(EndpointRefused)) >= 1
        assert not host.of(SessionLost)
        assert len(server.sent("GET")) == 1


class Gateway(LegacyMcp):
    """Keeps the client's stream, and connects anew to its server: at the first request of a method."""

    def __init__(self, when: str = "tools/call", **parts: Any) -> None:
        super().__init__(**parts)
        self.when = when
        self.behind = 1
        self.initialized: set[str] = set()

    def where(self, carrier: Carrier) -> str:
        return f"/messages?session={carrier.name}&behind={self.behind}"

    async def answer(self, request: Request) -> None:
        carrier = self.carrier_of(request)
        assert carrier is not None
        behind = request.target.split("behind=")[1]
        if self.behind == 1 and request.rpc_method == self.when:
            self.behind = 2
            await carrier.event(self.where(carrier), event="endpoint")
        elif request.rpc_method == "initialize" or behind in self.initialized or request.rpc_id is None:
            self.initialized.add(behind)
            await super().answer(request)
        else:
            await carrier.event(error(request.rpc_id, -32602, "not initialized"))


async def test_another_endpoint_on_the_same_stream_is_another_session(playing: Playing) -> None:
    async with playing(Gateway()) as (server, host):
        assert (await host.call()).doubt is not None
        assert await host.call(n=2) == Answer("done")
        assert targets(server, "tools/call") == [f"/messages?session=s1&behind={n}" for n in (1, 2)]
        assert len(host.of(SessionLost)) == len(host.of(Reinitialized)) == 1
        assert len(server.sent("GET")) == 1


async def test_another_endpoint_while_the_session_is_opened_has_it_opened_there(playing: Playing) -> None:
    async with playing(Gateway("initialize")) as (server, host):
        assert await host.call() == Answer("done")
        assert targets(server, "initialize")[-2:] == [f"/messages?session=s1&behind={n}" for n in (1, 2)]
        assert len(server.sent("GET")) == 1


@pytest.mark.parametrize("where", ["get", "post"])
async def test_a_redirect_within_the_origin_is_followed(playing: Playing, where: str) -> None:
    class Behind(LegacyMcp):
        async def __call__(self, request: Request, reply: Reply) -> None:
            if where == "get" and request.method == "GET" and request.target == "/mcp":
                await reply.status(307, location="/deep/sse")
            elif where == "post" and request.target.startswith("/messages?"):
                await reply.status(308, location=request.target.replace("/messages", "/messages/"))
            else:
                await super().__call__(request, reply)

    mcp = Behind(endpoint="messages?session=%s" if where == "get" else "/messages?session=%s")
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        expected = "/deep/messages?session=s1" if where == "get" else "/messages/?session=s1"
        assert targets(server, "tools/call")[-1] == expected


async def test_every_byte_by_itself(playing: Playing) -> None:
    class Slowly(LegacyMcp):
        async def open(self, request: Request, reply: Reply) -> None:
            write = reply.write

            async def dribble(data: bytes) -> None:
                for at in range(len(data)):
                    await write(data[at : at + 1])

            reply.write = dribble  # type: ignore[method-assign]
            await super().open(request, reply)

    async with playing(Slowly()) as (_, host):
        assert await host.call() == Answer("done")
        await host.saw(1)


# Cut.


def cut_once(how: How, *, before_202: bool = False, progress: bool = False) -> LegacyMcp:
    """The carrier is cut after the first call was taken; what comes later is served."""

    class Cut(LegacyMcp):
        async def accept(self, request: Request, reply: Reply) -> None:
            if request.rpc_method == "tools/call" and not self.executed and before_202:
                await self.answer(request)
                await reply.status(202)
            else:
                await super().accept(request, reply)

        async def call(self, request: Request, carrier: Carrier) -> None:
            if len(self.executed) > 1:
                await super().call(request, carrier)
                return
            if progress:
                await carrier.event(progress_of(request, 1))
            await carrier.end(how)

    return Cut()


@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize("before_202", [False, True])
@pytest.mark.parametrize("how", [How.FIN, How.RST, How.HALF_CLOSE])
async def test_a_cut_of_the_stream_is_the_end_of_the_session(
    playing: Playing, how: How, before_202: bool, progress: bool
) -> None:
    """A 202, and the GET dies before the answer: the call may have run."""
    mcp = cut_once(how, before_202=before_202, progress=progress)
    async with playing(mcp) as (server, host):
        got = await host.call()
        assert got.doubt is not None
        assert await host.call(n=2) == Answer("done")
        assert mcp.executed == ["charge", "charge"]
        assert targets(server, "tools/call") == ["/messages?session=s1", "/messages?session=s2"]
        assert targets(server, "initialize")[-1] == "/messages?session=s2"
        assert len(host.of(SessionLost)) == 1
        assert len(host.of(Reinitialized)) == 1
        assert [r.last_event_id for r in server.sent("GET")] == [None, None]
        assert not host.of(Disconnected)[0].resumable


async def test_a_safe_call_is_sent_again_in_the_new_session(playing: Playing) -> None:
    mcp = cut_once(How.RST)
    mcp.tools = [{"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]
    async with playing(mcp) as (server, host):
        await _list_tools(host)
        assert await host.call("look") == Answer("done")
        assert mcp.executed == ["look", "look"]
        first, second = server.sent("POST", "tools/call")
        assert first.rpc_id != second.rpc_id


async def _list_tools(host: Any) -> None:
    if hasattr(host, "request"):
        await host.request("tools/list")


async def test_a_post_refused_beside_a_lost_stream_did_not_run_and_is_sent_again(playing: Playing) -> None:
    """The server was restarted: its stream breaks, and what was on its way meets one that knows no session."""

    class Restarted(LegacyMcp):
        refused = 0

        async def accept(self, request: Request, reply: Reply) -> None:
            if request.rpc_method == "tools/call" and not self.refused:
                self.refused += 1
                await self.carriers[0].end(How.RST)
                await server.until(lambda: len(self.carriers) == 2)
                await reply.status(404, b"Could not find session")
            else:
                await super().accept(request, reply)

    mcp = Restarted()
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert mcp.executed == ["charge"]


async def test_a_post_of_which_nothing_is_heard_any_more_waits_for_its_answer_on_the_stream(
    playing: Playing,
) -> None:
    class Quiet(LegacyMcp):
        async def accept(self, request: Request, reply: Reply) -> None:
            if request.rpc_method == "tools/call" and request.json["params"]["arguments"] == {}:
                await reply.end(How.RST)
                await host.until(lambda: host.of(Disconnected))
                await self.answer(request)
            else:
                await super().accept(request, reply)

    mcp = Quiet()
    async with playing(mcp) as (_, host):
        assert await host.call() == Answer("done")
        assert mcp.executed == ["charge"]
        assert not host.of(SessionLost)


async def test_a_post_lost_with_its_call_is_in_doubt_after_a_while(playing: Playing) -> None:
    class Lossy(LegacyMcp):
        async def accept(self, request: Request, reply: Reply) -> None:
            if request.rpc_method == "tools/call":
                await reply.end(How.RST)
            else:
                await super().accept(request, reply)

    async with playing(Lossy(), policy={"settle_after": 0.1}) as (_, host):
        assert (await host.call()).doubt is not None
        assert not host.of(SessionLost)


@pytest.mark.parametrize("status", [409, 429, 500, 502, 503, 504])
async def test_a_proxy_whose_time_is_up_is_not_the_end_of_a_call(playing: Playing, status: int) -> None:
    """Servers with a thread for each request hold the POST until the tool has ended."""

    class Holding(LegacyMcp):
        async def accept(self, request: Request, reply: Reply) -> None:
            if request.rpc_method == "tools/call":
                await reply.status(status, b"<html>Gateway Time-out</html>")
                self.carriers[0].tasks.start_soon(self.late, request)
            else:
                await super().accept(request, reply)

        async def late(self, request: Request) -> None:
            await host.until(lambda: host.of(Disconnected))
            await self.answer(request)

    mcp = Holding()
    async with playing(mcp) as (_, host):
        assert await host.call() == Answer("done")
        assert mcp.executed == ["charge"]
        assert not host.of(SessionLost)


async def test_and_is_in_doubt_where_no_answer_comes(playing: Playing) -> None:
    class Broken(LegacyMcp):
        async def accept(self, request: Request, reply: Reply) -> None:
            if request.rpc_method == "tools/call":
                await reply.status(504)
            else:
                await super().accept(request, reply)

    async with playing(Broken(), policy={"settle_after": 0.1}) as (_, host):
        assert (await host.call()).doubt is not None
        assert not host.of(SessionLost)


async def test_cut_again_while_the_next_session_is_being_opened(playing: Playing) -> None:
    """During recovery: at the endpoint, and once more beside our own `initialize`."""

    class Twice(LegacyMcp):
        async def get(self, request: Request, reply: Reply) -> None:
            if len(self.carriers) == 1:
                self.carriers.append(Carrier("gone", reply))
                await reply.open_sse()
                await reply.end(How.RST)
            else:
                await self.open(request, reply)

        async def accept(self, request: Request, reply: Reply) -> None:
            carrier = self.carrier_of(request)
            assert carrier is not None
            if request.rpc_method == "initialize" and len(self.carriers) == 3:
                await reply.status(202)
                await carrier.end(How.FIN)
            else:
                await super().accept(request, reply)

        async def call(self, request: Request, carrier: Carrier) -> None:
            if len(self.executed) == 1:
                await carrier.end(How.RST)
            else:
                await super().call(request, carrier)

    mcp = Twice()
    async with playing(mcp) as (_, host):
        assert (await host.call()).doubt is not None
        assert await host.call(n=2) == Answer("done")
        assert len(mcp.carriers) == 4
        assert len(host.of(Reinitialized)) == 1


async def test_a_stream_that_is_cut_for_ever_is_not_opened_for_ever(playing: Playing) -> None:
    class Dying(LegacyMcp):
        async def accept(self, request: Request, reply: Reply) -> None:
            await super().accept(request, reply)
            if request.rpc_method in ("tools/call", "notifications/initialized") and len(self.carriers) > 1:
                carrier = self.carrier_of(request)
                assert carrier is not None
                await carrier.end(How.RST)

        async def call(self, request: Request, carrier: Carrier) -> None:
            await carrier.end(How.RST)

    mcp = Dying()
    async with playing(mcp) as (_, host):
        assert (await host.call()).doubt is not None
        got = await host.call(n=2)
        assert got.is_error
        assert len(mcp.carriers) <= 7
        assert mcp.executed.count("charge") <= 2


async def test_half_open_is_found_by_a_ping(playing: Playing) -> None:
    class Stalled(LegacyMcp):
        async def answer(self, request: Request) -> None:
            carrier = self.carrier_of(request)
            assert carrier is not None
            if carrier.name != "s1":
                another.set()
            if carrier.name != "s1" or request.rpc_method != "ping":
                await super().answer(request)

    another = anyio.Event()
    async with playing(Stalled(), policy={"max_idle": 1.0}) as (server, host):
        await another.wait()
        assert server.sent("POST", "ping")
        assert await host.call() == Answer("done")


async def test_a_heartbeat_is_life(playing: Playing) -> None:
    class Beating(LegacyMcp):
        async def answer(self, request: Request) -> None:
            if request.rpc_method != "ping":
                await super().answer(request)
                return
            carrier = self.carrier_of(request)
            assert carrier is not None
            await carrier.raw(b": beat\n\n")
            pinged.set()

        async def call(self, request: Request, carrier: Carrier) -> None:
            await pinged.wait()
            await super().call(request, carrier)

    pinged = anyio.Event()
    mcp = Beating()
    async with playing(mcp, policy={"max_idle": 1.0}) as (_, host):
        assert await host.call() == Answer("done")
        assert len(mcp.carriers) == 1


async def test_what_waits_on_one_stream_has_its_outcome_together_and_nothing_is_mixed_up(playing: Playing) -> None:
    """20 calls in flight, one cut: one `initialize`."""

    class Many(LegacyMcp):
        async def call(self, request: Request, carrier: Carrier) -> None:
            if carrier.name != "s1":
                await carrier.event(tool_result(request.rpc_id, str(request.json["params"]["arguments"]["n"])))
            elif len(self.executed) == 20:
                await carrier.end(How.RST)

    mcp = Many()
    async with playing(mcp) as (_, host):
        got = await run_together(*[(lambda n=n: host.call(n=n)) for n in range(20)])
        assert all(answer.doubt is not None for answer in got)
        again = await run_together(*[(lambda n=n: host.call(n=n)) for n in range(20, 40)])
        assert [answer.text for answer in again] == [str(n) for n in range(20, 40)]
        assert len(mcp.carriers) == 2
        assert len(mcp.executed) == 40


# Messages.


async def test_a_stranger_reaches_nobody_and_what_is_said_twice_is_heard_twice(playing: Playing) -> None:
    class Odd(LegacyMcp):
        async def call(self, request: Request, carrier: Carrier) -> None:
            await carrier.event(tool_result(1, "somebody's"))
            note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
            await carrier.event(note, id="7")
            await carrier.event(note, id="7")
            await super().call(request, carrier)

    async with playing(Odd()) as (_, host):
        assert await host.call() == Answer("done")
        assert len(host.of(OrphanDropped)) == 1
        assert not host.of(DuplicateDropped)
        await host.has_heard("notifications/message", "notifications/message")


@pytest.mark.parametrize("pieces", [1, 50])
async def test_an_answer_that_is_too_large_costs_its_own_call_alone(playing: Playing, pieces: int) -> None:
    waits = anyio.Event()

    class Large(LegacyMcp):
        async def call(self, request: Request, carrier: Carrier) -> None:
            if request.json["params"]["name"] == "add":
                await waits.wait()
                await super().call(request, carrier)
                return
            data = sse_event(tool_result(request.rpc_id, "x" * 10_000))
            step = len(data) // pieces
            for at in range(0, len(data), step):
                await carrier.raw(data[at : at + step])
            waits.set()

    async with playing(Large(), policy={"max_event_size": 2000}) as (server, host):
        got: dict[str, Answer] = {}

        async def call(tool: str) -> None:
            got[tool] = await host.call(tool)

        await run_together(lambda: call("add"), lambda: call("charge"))
        assert got["add"] == Answer("done")
        assert got["charge"].doubt is not None
        assert "larger than max_event_size" in got["charge"].doubt.reason
        assert not host.of(SessionLost)
        assert len(server.sent("GET")) == 1


async def test_an_odd_server_may_answer_the_post_itself(playing: Playing) -> None:
    class Direct(LegacyMcp):
        async def accept(self, request: Request, reply: Reply) -> None:
            if request.rpc_method == "tools/call":
                if request.json["params"]["arguments"]:
                    await reply.json(tool_result(request.rpc_id, "json"))
                else:
                    await reply.open_sse()
                    await reply.event(tool_result(request.rpc_id, "events"), id="1")
                    await reply.finish()
            else:
                await super().accept(request, reply)

    async with playing(Direct()) as (_, host):
        assert await host.call() == Answer("events")
        assert await host.call(n=2) == Answer("json")


async def test_the_version_header_goes_out_only_where_the_revision_has_it() -> None:
    for protocol, sent in (("2024-11-05", None), ("2025-06-18", "2025-06-18")):
        mcp = LegacyMcp()
        mcp.protocol = protocol
        async with plainly(mcp) as (server, host):
            await host.call()
            (call,) = server.sent("POST", "tools/call")
            assert call.header("mcp-protocol-version") == sent
            assert call.session_id is None


@pytest.mark.parametrize("family", [name for name in ("httpx", "httpx2") if find_spec(name)])
async def test_nor_does_the_caller_s_own_client_log_it(family: str, caplog: pytest.LogCaptureFixture) -> None:
    """httpx logs the URL of each request at INFO; those of the caller's own are none of our business."""
    caplog.set_level(logging.INFO)
    async with import_module(family).AsyncClient() as client:
        async with plainly(LegacyMcp(), http_client=client, **CHOSEN) as (server, host):
            assert await host.call() == Answer("done")
            await client.post(f"{server.url}?of=the-caller")
    assert "session=" not in caplog.text
    assert '/[not shown] "HTTP/1.1 202' in caplog.text
    assert "of=the-caller" in caplog.text


@pytest.mark.parametrize("incident", ["quiet", "cut", "foreign", "refused"])
async def test_the_session_in_the_endpoint_is_in_no_text(incident: str, caplog: pytest.LogCaptureFixture) -> None:
    class Secretive(LegacyMcp):
        def where(self, carrier: Carrier) -> str:
            return f"//evil/?session={SECRET}" if incident == "foreign" else f"/messages?session={SECRET}"

        def carrier_of(self, request: Request) -> Carrier | None:
            return self.carriers[-1] if SECRET in request.target else None

        async def accept(self, request: Request, reply: Reply) -> None:
            if incident == "refused" and request.rpc_method == "tools/call":
                await reply.status(307, location=f"http://evil/?session={SECRET}")
            else:
                await super().accept(request, reply)

        async def call(self, request: Request, carrier: Carrier) -> None:
            if incident == "cut" and len(self.executed) == 1:
                await carrier.end(How.RST)
            else:
                await super().call(request, carrier)

    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    with anyio.fail_after(LIMIT):
        async with FakeServer(Secretive()) as server:
            async with plain_host(server.url, start=False, **CHOSEN) as host:
                said.append(repr(await host.request("initialize", {"protocolVersion": "2025-11-25"})))
                if incident != "foreign":
                    await host.notify("notifications/initialized")
                    got = await host.call()
                    said += [repr(got), got.text, str(got.doubt)]
            said += [repr(event) for event in host.told] + [str(event) for event in host.told]
    ours = [r for r in caplog.records if r.name.startswith("mcp_client_guard")]
    said += [r.getMessage() + repr(r.exc_info) for r in ours]
    assert not [text for text in said if SECRET in text]


# The store.


async def test_of_a_legacy_session_nothing_is_offered_to_the_server_later() -> None:
    mcp = LegacyMcp()
    async with FakeServer(mcp) as server:
        guard = Guard(server.url, terminate_on_close=False)
        for _ in range(2):
            async with Connection(guard, plain_codec) as (read, write):
                params = {"protocolVersion": "2025-11-25", "capabilities": {}}
                await write.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
                assert "result" in await read.receive()
        (first, second) = await guard.store.sessions(guard.key)
        assert first.ended_at is not None
        assert second.ended_at is not None
        assert first.generation is Generation.LEGACY_SSE
        assert not first.cursors
        assert [r.target for r in server.sent("POST", "initialize")][1:] == [
            "/messages?session=s1",
            "/messages?session=s2",
        ], "what was found is remembered"
        assert [c.outcome for c in await guard.calls()] == [Outcome.COMPLETED] * 2


# Moved (seeds 000, 001 and 003).


class Migrating(LegacyMcp):
    """A dual listener behind one URL: legacy at first, then streamable HTTP with the same allocator of event IDs
    and a session store that knows the old session."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.upgraded = False
        self.streamable = ScriptedMcp(session="s-77", call=self.stream)

    async def __call__(self, request: Request, reply: Reply) -> None:
        if self.upgraded:
            assert request.last_event_id is None, "a cursor crossed"
            await self.streamable(request, reply)
        else:
            await super().__call__(request, reply)

    async def stream(self, request: Request, reply: Reply) -> None:
        self.executed.append("streamed")
        await reply.open_sse(session="s-77")
        await reply.event("", id="e-105")
        await reply.event(tool_result(request.rpc_id, "new"), id="e-106")
        await reply.finish()

    async def number(self, carrier: Carrier, first: int, last: int) -> None:
        for n in range(first, last + 1):
            note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": n}}
            await carrier.event(note, id=f"e-{n}")


@pytest.mark.parametrize("how", ["404", "405"])
async def test_a_server_that_goes_back_is_met_by_the_same_connection(playing: Playing, how: str) -> None:
    """Of its streamable session nothing is left: by its word (404), or since it takes no POST there at all (405).
    Its GET is answered by a legacy stream, whichever session and cursor are named."""

    class Back(Migrating):
        async def __call__(self, request: Request, reply: Reply) -> None:
            if self.upgraded or request.method != "POST" or request.target != "/mcp":
                await super().__call__(request, reply)
            else:
                await reply.status(int(how))

    mcp, back = Back(), anyio.Event()
    mcp.streamable = ScriptedMcp(
        session="s-77", call=mcp.stream, standalone=events(note("a", "n1"), until(back), end=How.RST)
    )
    mcp.upgraded = True
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("new")
        await host.until(lambda: host.heard)
        mcp.upgraded = False
        back.set()
        await host.until(lambda: host.of(Disconnected))
        assert await host.call() == Answer("done")
        assert await host.call() == Answer("done")
        assert [e.generation for e in host.of(Connected)][-1] is Generation.LEGACY_SSE
        assert len(host.of(SessionLost)) == 1
        assert mcp.executed == ["streamed", "charge", "charge"]
        assert targets(server, "initialize")[-1].startswith("/messages?session=s")


@pytest.mark.parametrize("how", [How.FIN, How.RST])
@pytest.mark.parametrize("came", ["whole", "half", "not at all"])
async def test_seed_000_the_drain_race_across_the_move(playing: Playing, came: str, how: How) -> None:
    """e-100 to e-104, of which the last is the result; cut by a proxy; the reconnect reaches streamable HTTP. What
    came is delivered, what did not is in doubt, and no cursor or session ID of the old listener is sent."""

    class Seed(Migrating):
        async def call(self, request: Request, carrier: Carrier) -> None:
            await self.number(carrier, 100, 103)
            result = sse_event(tool_result(request.rpc_id, "result"), id="e-104", event="message")
            if came != "not at all":
                await carrier.raw(result if came == "whole" else result[:-20])
            self.upgraded = True
            await carrier.end(how)

    mcp = Seed()
    async with playing(mcp) as (server, host):
        got = await host.call("search_index")
        if came == "whole" and how is How.FIN:
            assert got == Answer("result")
        else:
            assert got == Answer("result") or got.doubt is not None
        assert await host.call(n=2) == Answer("new")
        assert mcp.executed == ["search_index", "streamed"]
        await host.until(lambda: host.of(Connected)[-1].generation is Generation.STREAMABLE_HTTP)
        assert all(r.last_event_id is None for r in server.requests)
        moved = server.sent("POST", "initialize")[-1]
        assert (moved.session_id, moved.target) == (None, "/mcp")


async def test_seed_001_a_cursor_of_the_legacy_stream_is_never_sent_to_the_new_endpoint(playing: Playing) -> None:
    """`Last-Event-ID: 4821` would be answered 200 with a fresh session and a counter near 1."""

    class Seed(Migrating):
        async def call(self, request: Request, carrier: Carrier) -> None:
            await carrier.event(progress_of(request, 1), id="4821")
            self.upgraded = True
            await carrier.end(How.RST)

        async def stream(self, request: Request, reply: Reply) -> None:
            self.executed.append("streamed")
            await reply.open_sse(session="s-77")
            await reply.event(progress_of(request, 1), id="4821")  # the old counter's number, another event
            await reply.event(tool_result(request.rpc_id, "new"), id="2")
            await reply.finish()

    mcp = Seed()
    async with playing(mcp) as (server, host):
        assert (await host.call()).doubt is not None
        assert await host.call(n=2) == Answer("new")
        await host.saw(1, 1)
        assert not host.of(DuplicateDropped), "a genuinely new event under an old number"
        assert all(r.last_event_id is None for r in server.requests)
        assert len(host.of(SessionLost)) == 1


async def test_seed_004_second_case_no_cursor_is_carried_from_one_legacy_session_to_the_next(
    playing: Playing,
) -> None:
    class Seed(LegacyMcp):
        async def call(self, request: Request, carrier: Carrier) -> None:
            await carrier.event(progress_of(request, 1), id="e7")
            if len(self.executed) == 1:
                await carrier.end(How.RST)
            else:
                await carrier.event(tool_result(request.rpc_id, "new"), id="e8")

    async with playing(Seed()) as (server, host):
        assert (await host.call()).doubt is not None
        assert await host.call(n=2) == Answer("new")
        await host.saw(1, 1)
        assert not host.of(DuplicateDropped), "IDs are unique within a session only"
        assert all(r.last_event_id is None for r in server.requests), "nor on the POST of a new turn"
