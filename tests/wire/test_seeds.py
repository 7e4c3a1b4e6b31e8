"""The incidents this software exists for, byte for byte. They are numbered as in `docs/seeds.md`."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcp_client_guard import CallSettled, Disconnected, Discontinuity, DuplicateDropped, Outcome, SessionLost
from mcp_client_guard.testing import How, Reply, Request, ScriptedMcp, sse_event, tool_result

from .hosts import (
    WHOLE,
    Answer,
    Playing,
    Streams,
    answer,
    events,
    for_ever,
    in_doubt,
    note,
    plainly,
    prime,
    progress,
    raw,
    resumed_after,
    run_together,
)

pytestmark = pytest.mark.anyio

QUICK = {"witness_timeout": 0.05}


async def test_an_honest_resume_is_proven_and_nothing_is_lost_or_repeated(playing: Playing) -> None:
    mcp = Streams(
        events(prime("p0", 1), progress(1, "e1"), progress(2, "e2"), end=How.RST),
        events(progress(2, "e2"), progress(3, "e3"), answer("done", "e4")),
    )
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        await host.saw(1, 2, 3)
        assert host.grades == ["proven"]
        assert resumed_after(server) == ["e1"]
        assert len(host.of(DuplicateDropped)) == 1
        assert not host.of(Discontinuity)
    assert mcp.executed == ["charge"]


async def test_seed_001_observations_1_to_3_a_fresh_session_behind_a_200_is_not_taken_for_the_old_one(
    playing: Playing,
) -> None:
    """200 OK, a fresh `Mcp-Session-Id`, and a counter near 1."""
    mcp = Streams(
        events(prime("4819", 1), progress(1, "4820"), progress(2, "4821"), end=How.RST),
        events(note("foreign", "1"), progress(9, "2"), session="session-B"),
    )
    async with playing(mcp, policy=QUICK) as (server, host):
        mcp.session = "session-C"
        assert in_doubt(await host.call())
        await host.saw(1, 2)
        await host.has_heard("notifications/tools/list_changed")
        assert host.grades == ["broken"]
        assert "session" in host.of(Discontinuity)[0].reason
        assert len(host.of(SessionLost)) == 1
        mcp.first = events(answer("next"))
        assert in_doubt(await host.call()), "the very same call is not sent"
        assert await host.call(n=2) == Answer("next")
        first, second = server.sent("POST", "tools/call")
        assert (first.session_id, second.session_id) == ("session-A", "session-C")
        assert [(r.session_id, r.last_event_id) for r in server.sent("POST", "initialize")] == [(None, None)] * 2
    assert mcp.executed == ["charge"] * 2
    assert all(r.session_id != "session-B" for r in server.requests)


async def test_seed_001_secondary_2_a_session_change_on_any_answer_costs_the_session(playing: Playing) -> None:
    """Its answer is still the caller's: it carries the wire ID that this session owes."""
    mcp = Streams(events(answer(), session="session-B"))
    async with playing(mcp) as (server, host):
        mcp.session = "session-C"
        assert await host.call() == Answer("done")
        await host.until(lambda: host.of(SessionLost))
        mcp.first = events(answer("next"))
        assert await host.call() == Answer("next")
        assert [r.session_id for r in server.sent("POST", "tools/call")] == ["session-A", "session-C"]
        assert len(server.sent("POST", "initialize")) == 2
    assert mcp.executed == ["charge"] * 2


@pytest.mark.parametrize("end", [How.FIN, How.RST, How.STALL])
async def test_seed_002_observations_4_and_5_a_trimmed_buffer_is_a_reported_gap(
    playing: Playing, end: How
) -> None:
    """The other pod's buffer starts at e-1100, and it says 200 all the same."""
    mcp = Streams(
        events(prime("e-1040", 1), progress(1, "e-1041"), progress(2, "e-1042"), end=How.FIN),
        for_ever(events(note("foreign", "e-1100"), progress(70, "e-1101"), end=end)),
    )
    async with playing(mcp, policy=QUICK) as (_, host):
        assert in_doubt(await host.call())
        await host.saw(1, 2)
        await host.has_heard()
        assert host.grades[-1] == "broken"
        assert len(host.of(Discontinuity)) == 1
        assert host.of(Discontinuity)[0].first_seen is not None
    assert mcp.executed == ["charge"]


async def test_seed_002_observation_6_a_foreign_answer_in_a_trimmed_buffer_reaches_no_caller(
    playing: Playing,
) -> None:
    mcp = Streams(
        events(prime("e-1040", 1), progress(1, "e-1041"), end=How.FIN),
        events(raw(sse_event(tool_result(7, "another's"), id="e-1100"))),
    )
    async with playing(mcp, policy=QUICK) as (_, host):
        assert in_doubt(await host.call())


async def test_seed_002_observation_5_the_own_answer_beyond_a_gap_is_delivered_and_the_gap_reported(
    playing: Playing,
) -> None:
    """Evidence of the strongest kind: the wire ID of this session. The messages before it are still lost."""
    mcp = Streams(
        events(prime("e-1040", 1), progress(1, "e-1041"), progress(2, "e-1042"), end=How.FIN),
        events(answer("mine", "e-1100")),
    )
    async with playing(mcp, policy=QUICK) as (_, host):
        assert await host.call() == Answer("mine")
        assert len(host.of(Discontinuity)) == 1


async def test_seed_004_observation_a_forked_counter_is_a_conflict_and_its_events_are_not_delivered(
    playing: Playing,
) -> None:
    """The second replica's e8 is a different event under the same ID."""
    mcp = Streams(
        events(prime("e6", 1), progress(7, "e7"), progress(8, "e8"), progress(9, "e9"), end=How.RST),
        events(note("forked", "e9"), note("forked", "e10")),
    )
    async with playing(mcp, policy=QUICK) as (server, host):
        assert in_doubt(await host.call())
        await host.saw(7, 8, 9)
        await host.has_heard()
        assert host.grades == ["broken"]
        assert resumed_after(server) == ["e8"]
        assert host.of(Discontinuity)[0].last_good is not None
    assert mcp.executed == ["charge"]


async def test_seed_004_observation_a_forked_counter_on_the_standalone_stream_asks_the_host_to_refresh() -> None:
    first = events(note("a", "1"), note("b", "2"), note("c", "3"), end=How.RST)
    opened = [first]

    async def standalone(request: Request, reply: Reply) -> None:
        await (opened.pop() if opened else events(end=How.STALL))(request, reply)

    mcp = ScriptedMcp(standalone=standalone, resume=events(note("x", "3"), note("y", "4"), end=How.STALL))
    async with plainly(mcp, policy=QUICK) as (_, host):
        await host.until(lambda: "notifications/tools/list_changed" in host.heard)
        data = [m["params"]["data"] for m in host.messages if m.get("method") == "notifications/message"]
        assert data == ["a", "b", "c"]
        assert host.grades == ["broken"]
        assert len(host.of(Discontinuity)) == 1


async def test_seed_000_tell_a_cut_with_undrained_events_reports_their_number() -> None:
    """Received is not drained. The tell of the drain race, and no event of it lost or repeated."""
    mcp = Streams(
        events(prime("e-99", 1), *(progress(n, f"e-{100 + n}") for n in range(4)), end=How.RST),
        events(progress(3, "e-103"), answer("done", "e-104")),
    )
    async with plainly(mcp, listen=False, start=False) as (server, host):
        read, host.read = host.read, host
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await host.post("initialize", params)
        assert "result" in await read.receive()
        await host.notify("notifications/initialized")
        await host.post("tools/call", {"name": "charge", "_meta": {"progressToken": 1}})
        cut = await host.until(lambda: host.of(Disconnected))
        assert cut[0].undrained == 4
        assert cut[0].resumable
        await host.until(lambda: host.of(CallSettled)[1:])
        got = [await read.receive() for _ in range(5)]
        assert [m["params"]["progress"] for m in got[:4]] == [0, 1, 2, 3]
        assert got[4]["result"]["content"][0]["text"] == "done"
        assert resumed_after(server) == ["e-102"]


@pytest.mark.parametrize("silence", [WHOLE, How.FIN, How.STALL], ids=["end", "FIN", "stall"])
@pytest.mark.parametrize("witness_due", [True, False])
async def test_seed_001_rule_an_empty_replay_is_not_taken_for_a_resume(
    playing: Playing, silence: Any, witness_due: bool
) -> None:
    """Absence of replay and successful replay look alike: only a witness that was due tells them apart."""
    seen = [progress(1, "e1"), progress(2, "e2")] if witness_due else []
    mcp = Streams(events(prime("p0", 1), *seen, end=How.RST), for_ever(events(end=silence)))
    policy = {**QUICK, "settle_after": 0.001, "max_idle": 0.08}
    async with playing(mcp, policy=policy) as (server, host):
        assert in_doubt(await host.call())
        assert set(host.grades) <= {"unverified"}
        if witness_due and silence is not How.FIN:
            assert resumed_after(server) == ["e1", "e2"]  # a replay that is cut is no silence
    assert mcp.executed == ["charge"]


async def test_on_unverified_continue_waits_for_the_answer(playing: Playing) -> None:
    mcp = Streams(
        events(prime("p0", 1), progress(1, "e1"), end=How.RST),
        events(),
        events(end=How.FIN),
        events(progress(1, "e1"), answer("late", "e2")),
    )
    async with playing(mcp, policy={**QUICK, "on_unverified": "continue"}) as (_, host):
        assert await host.call() == Answer("late")


async def test_seed_002_variant_a_json_answer_changes_no_cursor(playing: Playing) -> None:
    """A JSON answer says nothing about the session's streams."""
    first_is_open, go_on = anyio.Event(), anyio.Event()

    async def first(call: Request, reply: Reply) -> None:
        if call.json["params"]["name"] == "add":
            await first_is_open.wait()
            await reply.json(tool_result(call.rpc_id, "sum"))
            return
        mcp.charge = call  # type: ignore[attr-defined]
        await events(prime("p0", 1), progress(1, "e1"), progress(2, "e2"))(call, _then(reply, first_is_open))
        await go_on.wait()
        await reply.end(How.RST)

    async def rest(call: Request, reply: Reply) -> None:
        await events(progress(2, "e2"), answer("charged", "e3"))(mcp.charge, reply)  # type: ignore[attr-defined]

    def _then(reply: Reply, event: anyio.Event) -> Any:
        class Unended:
            async def play(self, *parts: Any) -> None:
                await reply.play(*parts[:-1])
                event.set()

        return Unended()

    mcp = Streams(first, rest)
    async with playing(mcp) as (server, host):

        async def add() -> Any:
            got = await host.call("add")
            go_on.set()
            return got

        got = await run_together(lambda: host.call("charge"), add)
        assert got == [Answer("charged"), Answer("sum")]
        assert resumed_after(server) == ["e1"]
        assert host.grades == ["proven"]


async def test_seed_004_second_case_no_post_carries_a_cursor_and_no_new_session_inherits_one(
    playing: Playing,
) -> None:
    """A cursor of another session on the POST of a new turn."""
    mcp = Streams(
        events(prime("p0", 1), progress(1, "e1"), end=How.RST),
        events(progress(1, "e1"), answer("done", "e2")),
        standalone=events(note("a", "s1"), note("b", "s2"), end=How.STALL),
    )
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        await host.until(lambda: len(host.heard) == 2)
        before = len(server.requests)
        mcp.first = events(answer("again"))
        async with playing(mcp) as (other, second):
            assert await second.call() == Answer("again")
            assert resumed_after(other) == []
    assert [r for r in server.requests if r.method == "POST" and r.last_event_id] == []
    assert before


async def test_seed_004_second_case_a_new_initialize_on_the_same_connection_carries_no_cursor() -> None:
    mcp = Streams(
        events(prime("p0", 1), progress(1, "e1"), answer()),
        standalone=events(note("a", "s1"), note("b", "s2"), end=How.STALL),
    )
    async with plainly(mcp) as (server, host):
        await host.call()
        await host.until(lambda: len(host.heard) == 2)
        mcp.session = "session-B"
        await host.start()
        await server.wait_for(lambda r: r.method == "GET" and r.session_id == "session-B")
        assert resumed_after(server) == []
        assert server.sent("POST", "initialize")[1].session_id is None


async def test_seed_002_rule_an_explicit_gap_error_is_reported_and_not_asked_for_ever(playing: Playing) -> None:
    gap = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no","data":{"code":"resume_gap"}}}'

    async def refuse(call: Request, reply: Reply) -> None:
        await reply.status(409, gap, content_type="application/json")

    mcp = Streams(events(prime("p0", 1), progress(1, "e1"), progress(2, "e2"), end=How.RST), refuse, refuse)
    async with playing(mcp) as (server, host):
        assert in_doubt(await host.call())
        assert host.grades == ["broken"]
        assert resumed_after(server) == ["e1", "e2"], "of the overlap, and of the cursor itself"


async def test_a_gap_before_the_cursor_costs_no_call(playing: Playing) -> None:
    """An honest log, trimmed up to the last event received, cannot serve the overlap, but all the rest."""
    gap = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no","data":{"code":"resume_gap"}}}'

    async def trimmed(call: Request, reply: Reply) -> None:
        await reply.status(409, gap, content_type="application/json", mcp_resumed="false")

    first = events(prime("p0", 1), progress(1, "e1"), progress(2, "e2"), end=How.RST)
    mcp = Streams(first, trimmed, for_ever(events(progress(3, "e3"), answer(id="e4"))))
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        await host.saw(1, 2, 3)
        assert host.grades[0] == "unverified", "nothing is proven by it"
        assert resumed_after(server)[:2] == ["e1", "e2"]


async def test_a_call_given_up_is_in_the_ledger_as_in_doubt(playing: Playing) -> None:
    mcp = Streams(events(end=How.RST))
    async with playing(mcp) as (_, host):
        assert in_doubt(await host.call())
        settled = [e for e in host.of(CallSettled) if e.method == "tools/call"]
        assert [e.outcome for e in settled] == [Outcome.IN_DOUBT]
