"""Sessions that are gone: another is opened, once, and the server's own ledger agrees with what hosts are told."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import httpx
import pytest
from attrs import frozen

from mcp_client_guard import (
    Outcome,
    RefreshSuggested,
    Reinitialized,
    SessionLost,
    StandaloneUnavailable,
)
from mcp_client_guard.core.actions import Delay
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED, CODE_SESSION_LOST
from mcp_client_guard.testing import (
    FakeServer,
    Handler,
    How,
    Reply,
    Request,
    ScriptedMcp,
    error,
    http_response,
    in_turn,
    sse_event,
    sse_response,
    tool_result,
)
from mcp_client_guard.transports import retry

from .hosts import (
    Answer,
    Part,
    PlainHost,
    Playing,
    SdkHost,
    events,
    plainly,
    prime,
    progress,
    refuse,
    run_together,
    steps,
)

pytestmark = pytest.mark.anyio

LOOK = {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
CHARGE = {"name": "charge", "inputSchema": {"type": "object"}}


class Sessions(ScriptedMcp):
    """Opens session after session, forgets them when told, and writes down what really ran."""

    def __init__(self, dead: Handler, **parts: Any) -> None:
        super().__init__(tools=(LOOK, CHARGE), **parts)
        self.dead = dead
        """Answers what comes under a session that is gone; None as its answer says that it lives."""
        self.gone: set[str] = set()
        self.opened: list[str] = []
        self.ran: Counter[str] = Counter()
        """By tool and argument `n`, whatever the client was told."""

    async def __call__(self, request: Request, reply: Reply) -> None:
        if request.session_id in self.gone:
            await self.dead(request, reply)
        else:
            await super().__call__(request, reply)

    async def initialize(self, request: Request, reply: Reply) -> None:
        assert request.session_id is None, "a session is opened without the old one's ID"
        self.opened.append(f"session-{len(self.opened) + 1}")
        await reply.json(self.initialized(request), session=self.opened[-1])

    async def call(self, request: Request, reply: Reply) -> None:
        await reply.json(tool_result(request.rpc_id, self.run(request)))

    def run(self, request: Request) -> str:
        params = request.json["params"]
        label = f"{params['name']} {params['arguments'].get('n', '')}".strip()
        self.ran[label] += 1
        return label

    def forget(self) -> None:
        """As a server does that was started again, or evicts what is idle."""
        self.gone.update(self.opened)


async def know_tools(host: PlainHost | SdkHost) -> None:
    """Hints count from when the host has listed the tools, which `SdkHost` has. The session is live then: what is
    lost before is another matter."""
    if isinstance(host, PlainHost):
        await host.request("tools/list", {})


def initializes(server: FakeServer) -> int:
    return len(server.sent("POST", "initialize"))


# --- what servers say of dead sessions ------------------------------------------------------------


@frozen
class Death:
    """How a server answers what comes under a session it does not know."""

    status: int
    body: bytes = b""
    kind: str | None = None
    echoes: int | None = None
    """With this JSON-RPC code, under the ID of the request."""
    by_events: bool = False
    names: str | None = None
    """Another session, as a gateway does that gives one to whoever comes without; to a POST, so that none is lost
    before it."""

    async def __call__(self, request: Request, reply: Reply) -> None:
        names = self.names if request.method == "POST" else None
        if self.echoes is None:
            fields = {"content-type": self.kind} if self.kind else {}
            if names:
                fields["mcp-session-id"] = names
            await reply.play(http_response(self.status, self.body, headers=fields))
            return
        said = error(request.rpc_id, self.echoes, "Session not found")
        if self.by_events and request.method == "POST":
            await reply.play(sse_response(sse_event(said)))
        else:
            await reply.json(said, status=self.status, session=names)


def rpc(code: int | None) -> bytes:
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": None}
    if code is not None:
        body["error"] = {"code": code, "message": "Session not found"}
    return json.dumps(body).encode()


JSON, HTML = "application/json", "text/html"

DID_NOT_RUN = {
    "404-empty": Death(404),
    "404-text": Death(404, b"not found", "text/plain"),
    "404--32001": Death(404, rpc(-32001), JSON),
    "404--32600": Death(404, rpc(-32600), JSON),
    "404-neither": Death(404, rpc(None), JSON),
    "404-html": Death(404, b"<html><h1>Not Found</h1></html>", HTML),
    "404-echo": Death(404, echoes=-32001),
    "400-empty": Death(400),
    "400--32000": Death(400, rpc(-32000), JSON),
    "400-text": Death(400, b"No valid session ID provided", "text/plain"),
    "400-echo": Death(400, echoes=-32600),
    "401-empty": Death(401),
    "401--32001": Death(401, rpc(-32001), JSON),
    "409--32000": Death(409, rpc(-32000), JSON),
    "400-names-another": Death(400, rpc(-32000), JSON, names="fresh"),
    "404-names-another": Death(404, names="fresh"),
    "200-names-another": Death(200, echoes=-32600, names="fresh"),
    "410-empty": Death(410),
    "200--32600": Death(200, echoes=-32600),
    "200-events": Death(200, echoes=-32600, by_events=True),
    "200-server-error": Death(200, json.dumps(error("server-error", -32600, "Session not found")).encode(), JSON),
}
"""A request that draws these, as a ping does, did not run."""
MAY_HAVE_RUN = {
    "500-empty": Death(500),
    "500--32000": Death(500, rpc(-32000), JSON),
    "500-names-another": Death(500, names="fresh"),
    "502-html": Death(502, b"<html>Bad Gateway</html>", HTML),
    "200--32001": Death(200, echoes=-32001),
    "200--32000": Death(200, echoes=-32000),
    "200-null": Death(200, rpc(-32000), JSON),
    "200-events--32001": Death(200, echoes=-32001, by_events=True),
    "200-html": Death(200, b"<html>Session expired</html>", HTML),
    "200-empty": Death(200),
    "204": Death(204),
    "200-detail": Death(200, b'{"detail": "Session not found"}', JSON),
    "200-error-text": Death(200, b'{"error": "Session not found"}', JSON),
    "200-neither": Death(200, rpc(None), JSON),
    "200-no-event": Death(200, b"", "text/event-stream"),
    "200-no-message": Death(200, b"data: Session expired\n\n", "text/event-stream"),
}
"""The server may have fallen over the request itself; or a gateway, once the request had gone through."""
BUSY = {"503-empty": Death(503), "503--32000": Death(503, rpc(-32000), JSON)}
"""A proxy may say so after the tool ran."""


LOSSES_ENOUGH = {"reinitialize_limit": 100}


async def test_a_dead_session_is_replaced_and_the_host_sees_none_of_it(playing: Playing) -> None:
    mcp = Sessions(Death(404))
    async with playing(mcp, policy=LOSSES_ENOUGH) as (server, host):
        assert await host.call("charge") == Answer("charge")
        for n, (name, mcp.dead) in enumerate(DID_NOT_RUN.items(), start=1):
            mcp.forget()
            assert await host.call("charge", n=n) == Answer(f"charge {n}"), name
            assert await host.call("charge", n=-n) == Answer(f"charge {-n}"), name
            assert initializes(server) == len(mcp.opened) == 1 + n, name
            assert len(host.of(SessionLost)) == len(host.of(Reinitialized)) == n, name
            assert host.outcomes[-3:] == [Outcome.NOT_EXECUTED, Outcome.COMPLETED, Outcome.COMPLETED], name
    assert set(mcp.ran.values()) == {1}
    assert len(mcp.ran) == 1 + 2 * len(DID_NOT_RUN)


async def test_a_server_error_may_hide_a_run_where_the_session_is_gone_too(playing: Playing) -> None:
    mcp = Sessions(Death(404))
    async with playing(mcp, policy=LOSSES_ENOUGH) as (server, host):
        await know_tools(host)
        for n, (name, mcp.dead) in enumerate(MAY_HAVE_RUN.items(), start=1):
            mcp.forget()
            assert await host.call("look", n=n) == Answer(f"look {n}"), f"{name}; harmless: sent again"
            mcp.forget()
            assert (await host.call("charge", n=n)).doubt is not None, name
            assert await host.call("charge", n=-n) == Answer(f"charge {-n}"), name
            assert initializes(server) == 1 + 2 * n, name
    assert mcp.ran == {f"{tool}{n}": 1 for n in range(1, 1 + len(MAY_HAVE_RUN)) for tool in ("look ", "charge -")}


async def test_a_dead_session_behind_503_is_replaced_for_whoever_may_wait(playing: Playing) -> None:
    mcp = Sessions(Death(404))
    async with playing(mcp) as (server, host):
        await know_tools(host)
        for n, (name, mcp.dead) in enumerate(BUSY.items(), start=1):
            mcp.forget()
            assert await host.call("look", n=n) == Answer(f"look {n}"), name
            mcp.forget()
            got = await host.call("charge", n=n)
            assert got.doubt is not None, name
            assert await host.call("charge", n=-n) == Answer(f"charge {-n}"), name
            assert initializes(server) == 1 + 2 * n, name
    assert mcp.ran == {"look 1": 1, "look 2": 1, "charge -1": 1, "charge -2": 1}


async def test_a_server_of_an_odd_word_is_understood_by_a_predicate(playing: Playing) -> None:
    odd = Death(418, b'{"state": "evicted"}', JSON)
    said: list[tuple[int, Any]] = []

    def is_session_lost(status: int, body: Any) -> bool:
        said.append((status, body))
        return bool(isinstance(body, dict) and body.get("state") == "evicted")

    mcp = Sessions(odd)
    async with playing(mcp, policy={"is_session_lost": is_session_lost}) as (server, host):
        await know_tools(host)
        mcp.forget()
        assert await host.call("charge", n=1) == Answer("charge 1")
        assert initializes(server) == 2
        assert not server.sent("POST", "ping"), "nobody needs to be asked"
    assert said[0] == (418, {"state": "evicted"})
    assert mcp.ran == {"charge 1": 1}


async def test_a_call_that_ran_before_its_gateway_lost_the_server_is_not_sent_again(playing: Playing) -> None:
    """What the gateway says to a ping is what it said to the call, and another session can be opened."""

    async def call(request: Request, reply: Reply) -> None:
        mcp.run(request)
        mcp.forget()
        await mcp.dead(request, reply)

    mcp = Sessions(Death(200, echoes=-32000))
    mcp.on_call = call
    async with playing(mcp) as (server, host):
        assert (await host.call("charge", n=1)).doubt is not None
        assert initializes(server) == 2
    assert mcp.ran == {"charge 1": 1}


@pytest.mark.parametrize("status", [200, 400])
async def test_a_server_that_refuses_every_ping_has_lost_no_session(playing: Playing, status: int) -> None:
    """A call that ran and failed runs once, and is told what the server said; only the first costs a session. With
    200 it is in doubt: a gateway says so, too."""
    refuses = Death(status, echoes=-32000)

    async def call(request: Request, reply: Reply) -> None:
        mcp.run(request)
        await refuses(request, reply)

    async def other(request: Request, reply: Reply) -> None:
        await (refuses if request.rpc_method == "ping" else mcp.other)(request, reply)

    mcp = Sessions(Death(404), call=call, other=other)
    async with playing(mcp) as (server, host):
        for n in (1, 2):
            got = await host.call("charge", n=n)
            assert got.doubt if status == 200 else got.code == -32000
        assert initializes(server) == 2
    assert mcp.ran == {"charge 1": 1, "charge 2": 1}


@pytest.mark.parametrize("status", [400, 401, 409])
async def test_a_refusal_while_a_ping_is_answered_is_the_calls_own_affair(playing: Playing, status: int) -> None:
    """One bad call costs no session, and runs once."""

    async def call(request: Request, reply: Reply) -> None:
        mcp.run(request)
        await reply.status(status)

    mcp = Sessions(Death(404), call=call)
    async with playing(mcp) as (server, host):
        got = await host.call("charge", n=1)
        assert got.is_error
        assert got.data["http_status"] == status
        mcp.on_call = mcp.call
        assert await host.call("charge", n=2) == Answer("charge 2")
        assert initializes(server) == 1
        assert host.of(SessionLost) == []
    assert mcp.ran == {"charge 1": 1, "charge 2": 1}


async def test_an_unknown_method_is_no_lost_session(playing: Playing) -> None:
    async def call(request: Request, reply: Reply) -> None:
        await reply.json(error(request.rpc_id, -32601, "Method not found"), status=404)

    mcp = Sessions(Death(404), call=call)
    async with playing(mcp) as (server, host):
        assert (await host.call("charge")).code == -32601
        assert initializes(server) == 1


async def test_what_a_server_does_not_find_is_no_lost_session(playing: Playing) -> None:
    """An application's own error with the status that fits: its words reach the host, and it runs once."""

    async def call(request: Request, reply: Reply) -> None:
        mcp.run(request)
        await reply.json(error(request.rpc_id, -32002, "Resource not found"), status=404)

    mcp = Sessions(Death(404), call=call)
    async with playing(mcp) as (server, host):
        for n in range(8):
            got = await host.call("charge", n=n)
            assert (got.code, got.text) == (-32002, "Resource not found")
        assert initializes(server) == 1
    assert mcp.ran == {f"charge {n}": 1 for n in range(8)}


@pytest.mark.parametrize("seen", [[], [progress(1, "e1"), progress(2, "e2")]], ids=["primed", "witness"])
async def test_a_resume_that_draws_404_costs_no_session_that_answers(playing: Playing, seen: list[Part]) -> None:
    """The stream is broken and its call in doubt; nothing else changes."""

    async def call(request: Request, reply: Reply) -> None:
        mcp.run(request)
        await events(prime("p1", 1), *seen, end=How.RST)(request, reply)

    mcp = Sessions(Death(404), call=call)
    async with playing(mcp) as (server, host):
        assert (await host.call("charge", n=1)).doubt is not None
        mcp.on_call = mcp.call
        assert await host.call("charge", n=2) == Answer("charge 2")
        assert initializes(server) == 1
        assert host.of(SessionLost) == []
    assert mcp.ran == {"charge 1": 1, "charge 2": 1}


async def test_a_call_whose_stream_is_cut_by_the_restart_is_in_doubt_and_ran_once(playing: Playing) -> None:
    """It has a cursor, the resume draws 404, and the session is gone indeed."""

    async def call(request: Request, reply: Reply) -> None:
        mcp.run(request)
        mcp.on_call = mcp.call
        mcp.forget()
        await events(prime("p1", 1), end=How.RST)(request, reply)

    mcp = Sessions(Death(404))
    async with playing(mcp) as (server, host):
        await know_tools(host)
        mcp.on_call = call
        assert (await host.call("charge", n=1)).doubt is not None
        assert await host.call("charge", n=2) == Answer("charge 2")
        mcp.on_call = call
        assert await host.call("look", n=1) == Answer("look 1")
        assert initializes(server) == 3
    assert mcp.ran == {"charge 1": 1, "charge 2": 1, "look 1": 2}


# --- the next session -----------------------------------------------------------------------------


@pytest.mark.parametrize("death", ["404-empty", "404--32001", "400--32000", "200--32600"])
async def test_a_server_that_forgets_each_session_at_once_is_left_alone(playing: Playing, death: str) -> None:
    """B is dead as soon as it is opened, and C, and D: that ends, with nothing run, and with a clear word."""
    mcp = Sessions(DID_NOT_RUN[death])
    async with playing(mcp) as (server, host):
        assert await host.call("charge", n=1) == Answer("charge 1")
        mcp.forget()
        mcp.gone.update(f"session-{n}" for n in range(100))
        got = await host.call("charge", n=2)
        assert got.is_error
        assert got.doubt is None
        assert initializes(server) <= 1 + 5, "reinitialize_limit"
        before = initializes(server)
        answers = await run_together(*[lambda: host.call("look")] * 20)
        assert all(answer.is_error and answer.doubt is None for answer in answers)
        assert initializes(server) <= before + 5
    assert mcp.ran == {"charge 1": 1}


async def test_the_budget_ends_with_an_error_that_says_so() -> None:
    mcp = Sessions(Death(404))
    async with plainly(mcp, policy={"reinitialize_limit": 2}) as (server, host):
        await know_tools(host)
        for n in (1, 2):
            mcp.forget()
            assert await host.call("charge", n=n) == Answer(f"charge {n}")
        mcp.forget()
        for n in (3, 4):
            got = await host.call("charge", n=n)
            assert (got.code, got.data["outcome"]) == (CODE_SESSION_LOST, "not_executed")
            assert "too many sessions" in got.text
        assert initializes(server) == 3
    assert mcp.ran == {"charge 1": 1, "charge 2": 1}


FAILURES: dict[str, Callable[[Request, Reply], Any]] = {
    "500": Death(500),
    "503": Death(503, b"busy", "text/plain"),
    "404": Death(404, b"<html></html>", HTML),
    "200-error": Death(200, echoes=-32603),
    "200-html": Death(200, b"<html>Welcome</html>", HTML),
    "reset": lambda request, reply: reply.end(How.RST),
    "fin": lambda request, reply: reply.end(How.FIN),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_an_initialize_that_fails_twice_is_tried_again(playing: Playing, failure: str) -> None:
    mcp = Sessions(Death(404))
    async with playing(mcp) as (server, host):
        await know_tools(host)
        mcp.forget()
        mcp.on_initialize = in_turn(FAILURES[failure], FAILURES[failure], mcp.initialize)
        jobs = [lambda n=n: host.call("charge", n=n) for n in range(5)]
        assert await run_together(*jobs) == [Answer(f"charge {n}") for n in range(5)]
        assert (initializes(server), len(mcp.opened)) == (1 + 3, 2)
    assert mcp.ran == {f"charge {n}": 1 for n in range(5)}


async def test_what_waits_for_an_initialize_that_never_succeeds_is_told_that_nothing_ran(playing: Playing) -> None:
    mcp = Sessions(Death(404))
    async with playing(mcp) as (server, host):
        await know_tools(host)
        mcp.forget()
        mcp.on_initialize = Death(500)
        jobs = [lambda n=n: host.call("charge", n=n) for n in range(5)]
        for got in await run_together(*jobs):
            assert (got.code, got.data["outcome"]) == (CODE_SESSION_LOST, "not_executed")
        assert initializes(server) == 1 + 10, "max_attempts"
    assert not mcp.ran


# --- stampede -------------------------------------------------------------------------------------


class Gathering(Sessions):
    """Holds calls until `size` of them have come; then the session is gone, and each gets `answer`."""

    def __init__(self, size: int, death: Handler, answer: Handler) -> None:
        super().__init__(death, call=self.gather)
        self.size = size
        self.answer = answer
        self.came: list[str] = []
        self.all_came = anyio.Event()

    async def gather(self, request: Request, reply: Reply) -> None:
        if self.all_came.is_set():
            await self.call(request, reply)
            return
        self.came.append(request.json["params"]["name"])
        if len(self.came) == self.size:
            self.forget()
            self.all_came.set()
        await self.all_came.wait()
        await self.answer(request, reply)


@pytest.mark.parametrize(
    "death", ["404-empty", "404--32600", "400--32000", "401-empty", "200--32600", "200-events"]
)
async def test_a_stampede_of_refused_calls_opens_one_session(playing: Playing, death: str) -> None:
    mcp = Gathering(20, DID_NOT_RUN[death], DID_NOT_RUN[death])
    async with playing(mcp) as (server, host):
        jobs = [lambda n=n: host.call("charge", n=n) for n in range(20)]
        assert await run_together(*jobs) == [Answer(f"charge {n}") for n in range(20)]
        assert (initializes(server), len(mcp.opened)) == (2, 2)
        assert len(host.of(SessionLost)) == 1
    assert mcp.ran == {f"charge {n}": 1 for n in range(20)}


@pytest.mark.parametrize("how", [How.RST, How.FIN])
async def test_a_stampede_of_calls_that_ran_and_were_cut_opens_one_session(playing: Playing, how: How) -> None:
    """Harmless ones are sent again, the others are in doubt, and the server says that they ran once."""

    async def ran_and_cut(request: Request, reply: Reply) -> None:
        mcp.run(request)
        await reply.end(how)

    mcp = Gathering(20, Death(404), ran_and_cut)
    async with playing(mcp) as (server, host):
        await know_tools(host)
        tools = ["charge", "look"] * 10
        answers = await run_together(*[lambda t=t, n=n: host.call(t, n=n) for n, t in enumerate(tools)])
        for n, (tool, got) in enumerate(zip(tools, answers, strict=True)):
            assert (got.doubt is not None) if tool == "charge" else got == Answer(f"look {n}")
        assert (initializes(server), len(mcp.opened)) == (2, 2)
    assert mcp.ran == {f"{tool} {n}": 1 if tool == "charge" else 2 for n, tool in enumerate(tools)}


async def test_a_refusal_from_the_dead_session_that_comes_late_costs_the_new_one_nothing(playing: Playing) -> None:
    """Half of the calls are refused only when the next session is open and has answered."""
    served = anyio.Event()
    turns = itertools.count()

    async def at_once_or_late(request: Request, reply: Reply) -> None:
        if next(turns) % 2:
            await served.wait()
        await reply.status(404)

    mcp = Gathering(10, Death(404), at_once_or_late)

    async def call(request: Request, reply: Reply) -> None:
        await reply.json(tool_result(request.rpc_id, mcp.run(request)))
        served.set()

    mcp.call = call  # type: ignore[method-assign]
    async with playing(mcp) as (server, host):
        jobs = [lambda n=n: host.call("charge", n=n) for n in range(10)]
        assert await run_together(*jobs) == [Answer(f"charge {n}") for n in range(10)]
        assert (initializes(server), len(mcp.opened)) == (2, 2)
        assert len(host.of(SessionLost)) == 1
    assert mcp.ran == {f"charge {n}": 1 for n in range(10)}


async def test_a_good_answer_from_the_dead_session_that_comes_late_is_still_the_answer(playing: Playing) -> None:
    """Its POST was under way: it is not given up, nor is the call sent again."""
    served = anyio.Event()

    async def slow(request: Request, reply: Reply) -> None:
        label = mcp.run(request)
        mcp.on_call = mcp.call
        started.set()
        await served.wait()
        await reply.json(tool_result(request.rpc_id, label))

    async def after_it_began() -> Answer:
        await started.wait()
        mcp.forget()
        got: Answer = await host.call("charge", n=2)
        served.set()
        return got

    mcp, started = Sessions(Death(404), call=slow), anyio.Event()
    async with playing(mcp) as (server, host):
        got = await run_together(lambda: host.call("charge", n=1), after_it_began)
        assert got == [Answer("charge 1"), Answer("charge 2")]
        assert initializes(server) == 2
    assert mcp.ran == {"charge 1": 1, "charge 2": 1}


async def test_a_post_on_its_second_attempt_is_under_way_when_the_session_goes(
    playing: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by killing real servers: it was given up as in doubt, although its answer was to come."""
    answered, both_came = anyio.Event(), anyio.Event()
    came: list[int] = []
    refused: list[Delay] = []

    def no_wait(delay: Delay) -> float:
        if delay.attempt == 1:
            refused.append(delay)
            if len(refused) == 2:
                server.listen_again()
        return 0.0

    async def held(request: Request, reply: Reply) -> None:
        came.append(request.json["params"]["arguments"]["n"])
        if len(came) == 2:
            mcp.on_call = after
            both_came.set()
        await both_came.wait()
        if request.json["params"]["arguments"]["n"] == 2:
            await answered.wait()
        await reply.status(404)

    async def after(request: Request, reply: Reply) -> None:
        await mcp.call(request, reply)
        answered.set()

    mcp = Sessions(Death(404))
    async with playing(mcp) as (server, host):
        await know_tools(host)
        await host.until(lambda: host.of(StandaloneUnavailable))
        mcp.on_call = held
        server.refuse()
        server.drop_all()
        monkeypatch.setattr(retry, "seconds", no_wait)
        got = await run_together(lambda: host.call("charge", n=1), lambda: host.call("charge", n=2))
        assert got == [Answer("charge 1"), Answer("charge 2")]
        assert initializes(server) == 2
    assert sorted(came) == [1, 2]
    assert mcp.ran == {"charge 1": 1, "charge 2": 1}


@pytest.mark.parametrize("at", ["once", "the call"])
async def test_a_call_that_ran_and_was_lost_is_never_said_not_to_have_run(playing: Playing, at: str) -> None:
    """Found by killing real servers: sent again by consent, it was then refused for good by sessions that die."""

    async def ran_and_cut(request: Request, reply: Reply) -> None:
        mcp.run(request)
        mcp.forget()
        mcp.gone.update(f"session-{n}" for n in range(100))
        await reply.end(How.RST)

    async def dead(request: Request, reply: Reply) -> None:
        if at == "once" or request.rpc_method == "tools/call":
            await reply.status(404)
        else:
            await ScriptedMcp.__call__(mcp, request, reply)

    mcp = Sessions(dead, call=ran_and_cut)
    async with playing(mcp) as (_, host):
        await know_tools(host)
        got = await host.call("look", n=1)
        assert got.doubt is not None
        assert host.outcomes[-1] is Outcome.IN_DOUBT
    assert mcp.ran == {"look 1": 1}


# --- what the host had set up ---------------------------------------------------------------------


async def test_the_new_session_is_brought_to_where_the_old_one_was() -> None:
    """The host's own parameters, log level, subscriptions; then the lists are to be read again."""
    asked: list[tuple[str, Any]] = []

    async def other(request: Request, reply: Reply) -> None:
        asked.append((str(request.rpc_method), request.json.get("params")))
        if request.rpc_method in ("logging/setLevel", "resources/subscribe"):
            await reply.json({"jsonrpc": "2.0", "id": request.rpc_id, "result": {}})
        else:
            await mcp.other(request, reply)

    capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
    mcp = Sessions(Death(404), other=other, capabilities=capabilities)
    async with plainly(mcp) as (server, host):
        await host.request("logging/setLevel", {"level": "warning"})
        await host.request("resources/subscribe", {"uri": "file:///a"})
        await know_tools(host)
        mcp.forget()
        asked.clear()
        assert await host.call("charge", n=1) == Answer("charge 1")
        assert ("logging/setLevel", {"level": "warning"}) in asked
        assert ("resources/subscribe", {"uri": "file:///a"}) in asked
        first, second = server.sent("POST", "initialize")
        assert first.json["params"] == second.json["params"]
        assert host.of(Reinitialized)[0].not_restored == ()
        assert host.of(RefreshSuggested)
        await host.until(lambda: "notifications/tools/list_changed" in host.heard)


async def test_a_tool_that_is_not_the_same_in_the_new_session_is_not_called_by_itself(playing: Playing) -> None:
    mcp = Sessions(Death(404))
    async with playing(mcp) as (server, host):
        await know_tools(host)
        mcp.forget()
        mcp.tools = [LOOK, {**CHARGE, "inputSchema": {"type": "object", "required": ["currency"]}}]
        got = await host.call("charge", n=1)
        assert (got.code, "schema" in got.text) == (CODE_NOT_EXECUTED, True)
        assert await host.call("look", n=1) == Answer("look 1")
        assert initializes(server) == 2
    assert mcp.ran == {"look 1": 1}


# --- tokens ---------------------------------------------------------------------------------------


class Locked(Sessions):
    """Asks for the right token before anything else."""

    token = "first"

    async def __call__(self, request: Request, reply: Reply) -> None:
        if request.header("authorization") != self.token:
            await reply.status(401, www_authenticate="Bearer")
        else:
            await super().__call__(request, reply)


async def test_401_until_the_token_changes_runs_nothing_and_costs_no_session(playing: Playing) -> None:
    mcp = Locked(Death(404))
    async with httpx.AsyncClient(headers={"authorization": "first"}) as client:
        async with playing(mcp, http_client=client) as (server, host):
            assert await host.call("charge", n=1) == Answer("charge 1")
            mcp.token = "second"
            before = len(server.sent("POST"))
            for n in (2, 3):
                got = await host.call("charge", n=n)
                assert (got.code, got.data["by"], got.data["http_status"]) == (CODE_NOT_EXECUTED, "server", 401)
            assert len(server.sent("POST")) <= before + 2 * 3, "the call, a ping and an initialize each: no storm"
            client.headers["authorization"] = "second"
            assert await host.call("charge", n=4) == Answer("charge 4")
            assert len(mcp.opened) == 1
            assert host.of(SessionLost) == []
    assert mcp.ran == {"charge 1": 1, "charge 4": 1}


async def test_a_session_that_is_lost_while_the_token_is_wrong_is_replaced_once_it_is_right(
    playing: Playing,
) -> None:
    mcp = Locked(Death(404))
    async with httpx.AsyncClient(headers={"authorization": "first"}) as client:
        async with playing(mcp, http_client=client) as (_, host):
            await know_tools(host)
            mcp.token = "second"
            mcp.forget()
            assert (await host.call("charge", n=1)).data["outcome"] == "not_executed"
            client.headers["authorization"] = "second"
            assert await host.call("charge", n=2) == Answer("charge 2")
            assert len(mcp.opened) == 2
    assert mcp.ran == {"charge 2": 1}


# --- busy -----------------------------------------------------------------------------------------


def busy(status: int, after: str | None) -> Handler:
    return refuse(status) if after is None else refuse(status, retry_after=after)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_waited_for_by_harmless_calls_only(
    playing: Playing, waits: list[float], status: int
) -> None:
    mcp = Sessions(Death(404))
    async with playing(mcp) as (server, host):
        await know_tools(host)
        waits.clear()
        mcp.on_call = in_turn(busy(status, "7"), busy(status, None), mcp.call)
        assert await host.call("look", n=1) == Answer("look 1")
        assert max(waits) >= 7
        mcp.on_call = busy(status, "7")
        got = await host.call("charge", n=1)
        assert (got.code, got.data["http_status"]) == (CODE_NOT_EXECUTED, status)
        assert initializes(server) == 1
    assert mcp.ran == {"look 1": 1}


@pytest.mark.parametrize("status", [429, 503])
async def test_whoever_trusts_the_status_has_every_call_wait(
    playing: Playing, waits: list[float], status: int
) -> None:
    mcp = Sessions(Death(404))
    async with playing(mcp, policy={"trust_status": True}) as (_, host):
        mcp.on_call = in_turn(busy(status, "3"), mcp.call)
        waits.clear()
        assert await host.call("charge", n=1) == Answer("charge 1")
        assert max(waits) >= 3
    assert mcp.ran == {"charge 1": 1}


async def test_an_absurd_retry_after_is_none(playing: Playing, waits: list[float]) -> None:
    absurd = ["soon", "-1", "Fri, 01 Jan 1990 00:00:00 GMT", "99999999999999999999", ""]
    mcp = Sessions(Death(404))
    async with playing(mcp) as (_, host):
        await know_tools(host)
        waits.clear()
        for n, after in enumerate(absurd):
            mcp.on_call = in_turn(busy(503, after), mcp.call)
            assert await host.call("look", n=n) == Answer(f"look {n}")
            assert max(waits) < 1, after
    assert mcp.ran == {f"look {n}": 1 for n in range(len(absurd))}


async def test_a_server_that_wants_an_hour_is_not_waited_for(playing: Playing, waits: list[float]) -> None:
    mcp = Sessions(Death(404))
    async with playing(mcp) as (_, host):
        await know_tools(host)
        mcp.on_call = busy(429, "3600")
        got = await host.call("look", n=1)
        assert (got.code, got.data["http_status"]) == (CODE_NOT_EXECUTED, 429)
        assert max(waits) < 60
    assert not mcp.ran


# --- away for a moment ----------------------------------------------------------------------------


AWAY = {"502": refuse(502), "504": refuse(504), "reset": steps(How.RST), "429": refuse(429), "503": refuse(503)}
"""What is drawn while the server is being replaced."""


@pytest.mark.parametrize("how", AWAY)
async def test_a_server_that_is_replaced_is_waited_for_by_harmless_calls(
    playing: Playing, waits: list[float], how: str
) -> None:
    mcp = Sessions(Death(404))
    async with playing(mcp) as (server, host):
        await know_tools(host)
        waits.clear()
        mcp.on_call = in_turn(*[AWAY[how]] * 6, mcp.call)
        assert await host.call("look", n=1) == Answer("look 1")
        assert len([wait for wait in waits if wait >= 0.1]) == 6
        assert initializes(server) == 1
    assert mcp.ran == {"look 1": 1}


@pytest.mark.parametrize("how", AWAY)
async def test_so_it_is_by_a_host_that_starts_meanwhile(playing: Playing, waits: list[float], how: str) -> None:
    mcp = Sessions(Death(404))
    mcp.on_initialize = in_turn(*[AWAY[how]] * 6, mcp.initialize)
    async with playing(mcp) as (server, host):
        assert await host.call("charge", n=1) == Answer("charge 1")
        assert initializes(server) == 7
    assert len([wait for wait in waits if wait >= 0.1]) == 6
    assert len(mcp.opened) == 1
