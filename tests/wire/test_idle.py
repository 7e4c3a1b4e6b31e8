"""Time: long tools, half-open connections, heartbeats and deadlines, with clocks in milliseconds."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest

from mcp_client_guard import (
    CallSettled,
    Disconnected,
    Discontinuity,
    GuardPolicy,
    NotificationLost,
    Outcome,
    SessionLost,
)
from mcp_client_guard.core.inputs import TimerElapsed
from mcp_client_guard.core.machine import Machine
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.testing import FakeServer, How, Reply, Request, notification, progress_of, tool_result

from .hosts import (
    LIMIT,
    STOPS_READING,
    Answer,
    Playing,
    Streams,
    answer,
    events,
    for_ever,
    plain_host,
    plainly,
    prime,
    progress,
    raw,
    resumed_after,
    run_together,
    steps,
)

pytestmark = [pytest.mark.anyio, STOPS_READING]

IDLE = 0.05
LONG = 5 * IDLE
"""A tool that takes as long as this takes many times `max_idle`."""

SHORT = {"max_idle": IDLE, "witness_timeout": 0.03, "recheck": 0.06, "settle_after": 10.0}


def quiet(host: Any) -> bool:
    """Neither an alarm nor a doubt."""
    settled = [e.outcome for e in host.of(CallSettled) if e.method == "tools/call"]
    return not host.of(Discontinuity) and not host.of(SessionLost) and set(settled) == {Outcome.COMPLETED}


async def json_at_last(call: Request, reply: Reply) -> None:
    await anyio.sleep(LONG)
    await reply.json(tool_result(call.rpc_id, "done"))


async def heartbeats_only(call: Request, reply: Reply) -> None:
    await reply.open_sse()
    for _ in range(10):
        await reply.comment()
        await anyio.sleep(LONG / 10)
    await reply.event(tool_result(call.rpc_id, "done"))
    await reply.finish()


async def silence_without_ids(call: Request, reply: Reply) -> None:
    await reply.open_sse()
    await anyio.sleep(LONG)
    await reply.event(tool_result(call.rpc_id, "done"))
    await reply.finish()


async def one_event_without_an_id_then_silence(call: Request, reply: Reply) -> None:
    await reply.open_sse()
    await reply.event(
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
    )
    await anyio.sleep(LONG)
    await reply.event(tool_result(call.rpc_id, "done"))
    await reply.finish()


LONG_TOOLS = [
    json_at_last,
    heartbeats_only,
    silence_without_ids,
    one_event_without_an_id_then_silence,
]


@pytest.mark.parametrize("session", ["session-A", None], ids=["session", "no session"])
@pytest.mark.parametrize("tool", LONG_TOOLS)
async def test_a_tool_that_takes_long_is_waited_for_and_its_connection_left_alone(
    playing: Playing, tool: Any, session: str | None
) -> None:
    mcp = Streams(tool, session=session)
    async with playing(mcp, policy=SHORT) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == []
        assert quiet(host)
    assert mcp.executed == ["charge"]


@pytest.mark.parametrize("served", ["one by one", "all at the last"])
async def test_a_long_tool_on_a_silent_resumable_stream_is_resumed_and_completes(
    playing: Playing, served: str
) -> None:
    """Silence for many times `max_idle` while the tool runs; each resume finds the log as it should be."""
    rounds = 0

    async def resume(call: Request, reply: Reply) -> None:
        nonlocal rounds
        rounds += 1
        await reply.open_sse()
        await reply.event(progress_of(call, 2), id="e2")
        if rounds < 8:
            if served == "one by one":
                await reply.comment()
            await reply.end(How.STALL)
        await reply.event(tool_result(call.rpc_id, "done"), id="e3")
        await reply.finish()

    mcp = Streams(events(prime("p0", 1), progress(1, "e1"), progress(2, "e2"), end=How.STALL), for_ever(resume))
    async with playing(mcp, policy=SHORT) as (_, host):
        assert await host.call() == Answer("done")
        assert set(host.grades) == {"proven"}
        assert quiet(host)
        await host.saw(1, 2)
    assert mcp.executed == ["charge"]


async def test_a_long_polled_tool_that_only_primes_is_never_given_up(playing: Playing) -> None:
    """2025-11-25 polling: each connection is ended on purpose, for as long as the tool runs."""
    polls = [events(prime(f"p{n}", 10)) for n in range(1, 25)]  # 10 ms: the shortest pace that is kept to
    mcp = Streams(events(prime("p0", 10)), *polls, events(answer(id="e1")))
    async with playing(mcp, policy={**SHORT, "settle_after": 0.001}) as (_, host):
        assert await host.call() == Answer("done")
        assert quiet(host)


async def test_headers_and_then_silence_for_ever_end_at_the_deadline(playing: Playing) -> None:
    mcp = Streams(events(end=How.STALL))
    async with playing(mcp, policy={**SHORT, "call_deadline": {"charge": 0.3, "*": 60}}) as (_, host):
        got = await host.call()
        assert got.doubt is not None
        assert "call_deadline" in got.doubt.reason
        mcp.first = events(answer())
        assert await host.call(n=2) == Answer("done")


async def test_headers_that_never_come_end_at_the_deadline(playing: Playing) -> None:
    mcp = Streams(steps(How.STALL))
    async with playing(mcp, policy={**SHORT, "call_deadline": {"charge": 0.3, "*": 60}}) as (_, host):
        assert (await host.call()).doubt is not None
        mcp.first = events(answer())
        assert await host.call(n=2) == Answer("done")


async def test_a_comment_each_moment_for_ever_ends_at_the_deadline(playing: Playing) -> None:
    async def comments(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        while True:
            await reply.comment()
            await anyio.sleep(0.01)

    mcp = Streams(comments)
    async with playing(mcp, policy={**SHORT, "call_deadline": {"charge": 0.3, "*": 60}}) as (_, host):
        assert (await host.call()).doubt is not None


@pytest.mark.parametrize("how", ["cancelled", "its deadline", "answered elsewhere"])
async def test_heartbeats_keep_no_connection_for_a_call_that_nobody_waits_for(how: str) -> None:
    """A caller's client has few; the TypeScript server never ends the stream of a call that was cancelled."""
    answered, answers = anyio.create_memory_object_stream[Request](10)

    async def beats(call: Request, reply: Reply) -> None:
        if call.json["params"]["name"] == "charge":
            await reply.json(tool_result(call.rpc_id, "done"))
            return
        await reply.open_sse()
        if how == "answered elsewhere":
            answered.send_nowait(call)
        while True:
            await reply.comment()
            await anyio.sleep(0.01)

    async def standalone(request: Request, reply: Reply) -> None:
        await reply.open_sse()
        async for call in answers:
            await reply.event(tool_result(call.rpc_id, "elsewhere"))

    mcp = Streams(beats, standalone=standalone)
    policy = {"max_idle": 0.25, "call_deadline": {"beats": 0.1 if how == "its deadline" else 60, "*": 5}}
    client = httpx.AsyncClient(limits=httpx.Limits(max_connections=6))
    async with answered, answers, client, plainly(mcp, policy=policy, http_client=client) as (server, host):
        for n in range(1, 4):
            id = await host.post("tools/call", {"name": "beats", "arguments": {"n": n}})
            if how == "cancelled":
                await server.until(lambda n=n: len(mcp.executed) == n)
                await host.notify("notifications/cancelled", requestId=id)
            else:
                await host.until(lambda id=id: host.answers_to(id))
        assert await host.call() == Answer("done")


async def test_at_the_deadline_the_server_is_told_to_cancel_what_it_still_runs() -> None:
    mcp = Streams(events(end=How.STALL))
    async with plainly(mcp, policy={"call_deadline": {"charge": 0.1, "*": 60}}) as (server, host):
        await host.call()
        told = await server.wait_for(lambda r: r.rpc_method == "notifications/cancelled")
        assert told.json["params"]["requestId"] == server.sent("POST", "tools/call")[0].rpc_id


async def test_deadlines_are_per_tool() -> None:
    mcp = Streams(events(end=How.STALL))
    policy = {"call_deadline": {"quick_*": 0.05, "*": 3600}}
    async with plainly(mcp, policy=policy) as (_, host):
        slow = await host.post("tools/call", {"name": "slow"})
        quick = await host.call("quick_one")
        assert quick.is_error
        assert "call_deadline" in quick.text  # sent by then or not
        assert host.answers_to(slow) == []


async def test_a_half_open_resumable_stream_is_found_within_max_idle(playing: Playing) -> None:
    mcp = Streams(
        events(prime("p0", 1), progress(1, "e1"), progress(2, "e2"), end=How.STALL),
        events(progress(2, "e2"), answer(id="e3")),
    )
    async with playing(mcp, policy={"max_idle": IDLE}) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == ["e1"]
        assert "max_idle" in next(e for e in host.of(Disconnected) if e.stream != "standalone").reason


async def test_a_comment_is_liveness(playing: Playing) -> None:
    async def beats(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        await reply.event("", id="p0")
        for _ in range(8):
            await anyio.sleep(0.05)
            await reply.write(b"c\r\n: heartbeat\n\r\n")
        await reply.event(tool_result(call.rpc_id, "done"), id="e1")
        await reply.finish()

    async with playing(Streams(beats), policy={"max_idle": 0.25}) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == []


async def test_an_idle_stream_that_cannot_be_resumed_is_asked_about_and_not_cut() -> None:
    """A ping goes out beside it; whatever becomes of the ping, the call waits on."""
    mcp = Streams(silence_without_ids)
    async with plainly(mcp, policy=SHORT) as (server, host):
        assert await host.call() == Answer("done")
        assert server.sent("POST", "ping")
        assert not [m for m in host.messages if m.get("method") == "ping"]
        assert {e.method for e in host.of(CallSettled)} == {"initialize", "tools/call"}


@pytest.mark.parametrize("ping", ["hangs", "404", "500", "reset"])
async def test_a_ping_of_ours_that_fails_costs_no_call(ping: str) -> None:
    async def other(request: Request, reply: Reply) -> None:
        if ping == "hangs":
            await reply.end(How.STALL)
        elif ping == "reset":
            await reply.end(How.RST)
        else:
            await reply.status(int(ping))

    async with plainly(Streams(silence_without_ids, other=other), policy=SHORT) as (server, host):
        assert await host.call() == Answer("done")
        assert server.sent("POST", "ping")


async def test_what_is_slow_holds_up_nothing_beside_it(playing: Playing) -> None:
    go_on = anyio.Event()

    async def first(call: Request, reply: Reply) -> None:
        if call.json["params"]["name"] == "charge":
            await go_on.wait()
        else:
            go_on.set()
        await reply.json(tool_result(call.rpc_id, "done"))

    async with playing(Streams(first)) as (_, host):
        assert await run_together(lambda: host.call("charge"), lambda: host.call("add")) == [Answer("done")] * 2


async def test_servers_of_every_poor_kind_raise_no_alarm(playing: Playing) -> None:
    """No session, no event IDs, JSON only, in every mixture."""
    poor = [
        Streams(_json, session=None),
        Streams(_json),
        Streams(events(progress(1), answer()), session=None),
        Streams(events(progress(1), answer())),
        Streams(events(raw(b": hi\n\n"), answer(), end=How.FIN)),
        Streams(events(prime("p0"), answer(id="p0"))),
        Streams(events(prime("0"), progress(1, "session-A"), answer(id="session-A"))),
    ]
    for mcp in poor:
        async with playing(mcp, policy=SHORT) as (server, host):
            for _ in range(3):
                assert await host.call() == Answer("done")
            assert quiet(host)
            assert resumed_after(server) == []
        assert mcp.executed == ["charge"] * 3


async def _json(call: Request, reply: Reply) -> None:
    await reply.json(tool_result(call.rpc_id, "done"))


async def test_notifications_that_are_never_answered_do_not_pile_up() -> None:
    class Deaf(Streams):
        async def __call__(self, request: Request, reply: Reply) -> None:
            if request.rpc_method == "notifications/roots/list_changed":
                await reply.play(How.STALL)
            else:
                await super().__call__(request, reply)

    async with plainly(Deaf(events(answer())), policy=SHORT) as (server, host):
        for _ in range(20):
            await host.notify("notifications/roots/list_changed")

        def given_up() -> list[NotificationLost]:
            return [e for e in host.of(NotificationLost) if e.method == "notifications/roots/list_changed"]

        await host.until(lambda: len(given_up()) == 20)
        assert {e.reason for e in given_up()} == {"no answer for max_idle"}
        await server.until(lambda: server.open_connections <= 3)
        assert await host.call() == Answer("done")


async def test_a_host_that_is_behind_has_its_stream_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server has sent stands in the socket: that nothing comes is the host's doing."""
    looked_at = anyio.Event()
    stood_still = Machine._stood_still

    def look(machine: Machine, told: TimerElapsed) -> bool:
        found = stood_still(machine, told)
        if found and told.timer.kind is TimerKind.RECHECK:
            looked_at.set()
        return found

    async def many(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        await reply.event(progress_of(call, 1), id="e1")
        for number in range(3000):
            await reply.event(
                notification("notifications/message", level="info", data="x" * 2000), id=f"n{number}"
            )
        await reply.event(tool_result(call.rpc_id, "done"), id="end")
        await reply.finish()

    monkeypatch.setattr(Machine, "_stood_still", look)
    mcp = Streams(events(prime("p0", 1), progress(1, "e1"), end=How.RST), many)
    policy = GuardPolicy(recheck=0.05, witness_timeout=10)
    async with FakeServer(mcp) as server, plain_host(server.url, listen=False, start=False, policy=policy) as host:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host.listen)
            await host.start()
            tasks.cancel_scope.cancel()
        call = await host.post("tools/call", {"name": "charge", "arguments": {}, "_meta": {"progressToken": 1}})
        with anyio.fail_after(LIMIT):
            await looked_at.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host.listen)
            await host.until(lambda: host.answers_to(call))
            tasks.cancel_scope.cancel()
        assert len(resumed_after(server)) == 1
