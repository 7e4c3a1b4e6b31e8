"""The seeds as they were observed, played by the kit's server to two transports: the guard, and the SDK's own.

Through the SDK's transport each test shows the harm that a seed tells of: a loss unsaid, another's answer, a call
that waits for ever, a tool that runs twice. Through the guard it shows that the harm is gone. The table of them is
`docs/seeds.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import httpx
import pytest

from mcp_client_guard import Disconnected, Discontinuity, SessionLost
from mcp_client_guard.testing import (
    EventLogServer,
    FakeServer,
    How,
    Lie,
    Reply,
    Request,
    Session,
    SessionStore,
    notification,
)

from .hosts import (
    LIMIT,
    STOPS_READING,
    Answer,
    Streams,
    events,
    for_ever,
    in_doubt,
    prime,
    progress,
    sdk_host,
    the_one_in,
)
from .raw_client import call as raw_call
from .raw_client import legacy
from .seeds import (
    FOREIGN,
    QUICK,
    Through,
    bridged_host,
    executions,
    lying,
    refused_by_an_honest_server,
    resume_call,
    resumes,
    waits_for_ever,
    while_away,
)

pytestmark = [pytest.mark.anyio, STOPS_READING]


@pytest.fixture(params=["guard", "sdk"], ids=["through the guard", "through the SDK's transport"])
def through(request: pytest.FixtureRequest) -> Through:
    return Through(guarded=request.param == "guard")


# 000: the drain race.


async def test_seed_000_observations_1_to_3_the_sdk_resumes_a_bridged_session_and_waits_for_ever() -> None:
    """A host that kept session and cursor of the legacy stream has the SDK resume them at the new endpoint (by
    its `resumption_token`): both are accepted, the stream lives, and the answer never comes."""
    server = lying(Lie.SHARED_ALLOCATOR)
    with anyio.fail_after(LIMIT):
        async with server, httpx.AsyncClient(timeout=LIMIT) as http:
            async with legacy(server, http) as (reading, url):
                await http.post(url, json=raw_call(1, "charge"))
                (answer,) = await reading.next()
            session_id = url.partition("session_id=")[2]
            async with bridged_host(server.url, session_id) as host, anyio.create_task_group() as tasks:
                got: list[Any] = []
                tasks.start_soon(resume_call, host, str(answer.event_id), got)
                await server.http.until(lambda: server.resumes)
                later = notification("notifications/message", level="info", data="later")
                server.store.sessions[session_id].append("sse-1", later)
                await host.until(lambda: host.logged == ["later"])
                assert got == []
                tasks.cancel_scope.cancel()
            assert executions(server) == 1


async def test_seed_000_observation_3_a_replay_strictly_behind_what_was_sent_skips_the_answer(
    through: Through,
) -> None:
    """The cut is inside the answer; the server counts it as delivered, and sends what belongs to others."""
    server = lying(Lie.DRAIN_RACE)
    async with through.host(server) as host:
        if through.guarded:
            assert in_doubt(await host.call("charge", steps=3, cut_after=3.5))
            assert len(host.of(Discontinuity)) == 1
        else:
            assert await waits_for_ever(server, host, tool="charge", steps=3, cut_after=3.5)
        await host.saw(1, 2, 3)
        assert executions(server) == 1


async def test_seed_000_consequence_the_call_is_made_again_and_its_effect_is_doubled(through: Through) -> None:
    """What a host does that waits no longer: it calls once more."""
    server = lying(Lie.DRAIN_RACE)
    async with through.host(server) as host:
        if through.guarded:
            assert in_doubt(await host.call("charge", steps=2, cut_after=2.5))
        else:
            assert await waits_for_ever(server, host, tool="charge", steps=2, cut_after=2.5)
        again = await host.call("charge", steps=2, cut_after=2.5) if through.guarded else None
        if again is None:
            assert await waits_for_ever(server, host, tool="charge", steps=2, cut_after=2.5)
            assert executions(server) == 2
        else:
            assert in_doubt(again)
            assert executions(server) == 1


async def test_seed_000_signature_exactly_one_answer_is_missing_and_later_resumes_work(through: Through) -> None:
    server = lying(Lie.DRAIN_RACE)
    async with through.host(server) as host:
        if through.guarded:
            assert in_doubt(await host.call("charge", steps=1, cut_after=1.5))
        else:
            assert await waits_for_ever(server, host, tool="charge", steps=1, cut_after=1.5)
        server.lie = None
        assert await host.call("charge", cents=2, steps=4, cut_after=2) == Answer("charged 2 cents")
        assert executions(server) == 2


async def test_seed_000_boundary_an_at_least_once_replay_needs_de_duplication(through: Through) -> None:
    """`>= cursor` is right for answers, if the client knows an event by its ID."""
    server = EventLogServer()
    async with through.host(server) as host:
        assert await host.call("charge", steps=3, cut_after=2) == Answer("charged 0 cents")
        if through.guarded:
            await host.saw(1, 2, 3)
            assert server.drain_races == []  # it asks from the event before
        else:
            await host.saw(1, 2, 2, 3)
            assert len(server.drain_races) == 1
        assert executions(server) == 1


# 001: a fresh session behind a 200.


async def test_seed_001_observation_1_a_stale_cursor_is_accepted_with_a_200(through: Through) -> None:
    server = lying(Lie.FRESH_SESSION)
    async with through.host(server) as host:
        got = await host.call("charge", steps=3, cut_after=2)
        if through.guarded:
            assert in_doubt(got)
            assert host.grades == ["broken"]
        else:
            assert got == Answer(FOREIGN)
        assert len(resumes(server)) == 1
        assert executions(server) == 1


async def test_seed_001_observation_2_a_fresh_session_is_told_by_its_id(through: Through) -> None:
    """The next call goes out under a session that was asked for, or under one that is dead."""
    server = lying(Lie.FRESH_SESSION)
    async with through.host(server) as host:
        await host.call("charge", steps=3, cut_after=2)
        (fresh,) = server.store.sessions
        again = await host.call("progress", n=0)
        if through.guarded:
            assert again == Answer("0 steps")
            assert len(host.of(SessionLost)) == 1
            assert len(server.http.sent("POST", "initialize")) == 2
        else:
            assert again.is_error
        assert all(r.session_id != fresh for r in server.http.requests)


async def test_seed_001_observation_3_events_of_a_counter_near_one_are_of_another_client(through: Through) -> None:
    async with through.host(lying(Lie.FRESH_SESSION)) as host:
        await host.call("charge", steps=3, cut_after=2)
        await host.saw(1, 2)
        if through.guarded:
            await host.has_heard("notifications/tools/list_changed")
            assert "session" in host.of(Discontinuity)[0].reason
        else:
            await host.until(lambda: "of another client" in host.logged)


async def test_seed_001_secondary_1_new_events_under_used_ids_are_not_dropped_as_duplicates(
    through: Through,
) -> None:
    """The SDK's transport knows no duplicates, and so drops none. The guard knows them by ID *and* content."""
    server = lying(Lie.DUPLICATE_IDS)
    async with through.host(server) as host:
        got = await host.call("charge", steps=4, cut_after=2)
        if through.guarded:
            assert in_doubt(got)
            assert host.grades == ["proven", "broken"]
            assert len(host.of(Discontinuity)) == 1
        else:
            assert got == Answer("charged 0 cents")
        assert executions(server) == 1


async def test_seed_001_secondary_2_the_session_id_of_the_answer_is_enough(through: Through) -> None:
    """No event at all under the fresh session: the header is the only mark."""
    mcp = Streams(
        events(prime("4819", 1), progress(1, "4820"), progress(2, "4821"), end=How.RST),
        for_ever(events(session="session-B", end=How.STALL)),
    )
    server = FakeServer(mcp)
    async with through.host(server) as host:
        if through.guarded:
            mcp.session = "session-C"
            assert in_doubt(await host.call())
            assert host.grades == ["broken"]
            assert "session" in host.of(Discontinuity)[0].reason
        else:
            with anyio.CancelScope() as waiting:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(host.call)
                    await server.wait_for(lambda r: r.last_event_id is not None)
                    await host.session.send_ping()
                    waiting.cancel()
            assert waiting.cancelled_caught
        assert mcp.executed == ["charge"]


async def test_seed_001_rule_an_empty_replay_is_not_taken_for_nothing_pending(through: Through) -> None:
    server = lying(Lie.EMPTY_REPLAY)
    async with through.host(server) as host:
        if through.guarded:
            assert in_doubt(await host.call("charge", steps=3, cut_after=2))
            assert host.grades == ["unverified"]
        else:
            assert await waits_for_ever(server, host, tool="charge", steps=3, cut_after=2)
        assert executions(server) == 1


async def test_seed_001_rule_a_session_that_the_server_rejects_is_initialized_again(through: Through) -> None:
    """The server says 404 to the session: the honest form of this seed."""
    server = while_away(EventLogServer(), lambda session, _: server.store.close(session))
    async with through.host(server) as host:
        if through.guarded:
            assert in_doubt(await host.call("charge", steps=3, cut_after=2))
            assert await host.call("progress", n=0) == Answer("0 steps")
            assert len(server.http.sent("POST", "initialize")) == 2
        else:
            got: list[Answer] = []
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    got.append(await host.call("charge", steps=3, cut_after=2))

                tasks.start_soon(call)
                await server.http.until(lambda: resumes(server)[1:])
                assert (await host.call("progress", n=0)).is_error
                tasks.cancel_scope.cancel()
            assert all(answer.is_error and answer.doubt is None for answer in got)
        assert executions(server) == 1


# 002: the pod that held the log is gone.


async def test_seed_002_observations_1_and_2_a_stream_without_its_end_is_a_cut(through: Through) -> None:
    """A FIN in good order, in the middle of a call: mid-call, waiting for progress."""
    server = EventLogServer()
    async with through.host(server) as host:
        assert await host.call("charge", steps=4, cut_after=2, cut_how="fin") == Answer("charged 0 cents")
        if through.guarded:
            (cut,) = host.of(Disconnected)
            assert cut.resumable
        assert executions(server) == 1


async def test_seed_002_observation_3_another_pod_is_asked_with_session_and_cursor(through: Through) -> None:
    """And has the log, because it is the session's: what the seed's servers ought to have done."""
    store = SessionStore()
    server, other = EventLogServer(store=store), EventLogServer(store=store)

    async def balance(request: Request, reply: Reply) -> None:
        await (other if request.method == "GET" else server).answer(request, reply)

    server.http.handler = balance
    async with other, through.host(server) as host:
        assert await host.call("charge", steps=4, cut_after=2.5) == Answer("charged 0 cents")
        await host.saw(1, 2, 3, 4)
        if through.guarded:
            assert host.grades == ["proven"]
            assert not host.of(Discontinuity)
        assert (executions(server), executions(other)) == (1, 0)


async def test_seed_002_observation_4_a_pod_whose_buffer_starts_later_refuses_the_cursor(through: Through) -> None:
    """The honest pod: 409 with `resume_gap`."""
    server = EventLogServer(store=SessionStore(retained=4))
    await refused_by_an_honest_server(through, server)


async def test_seed_002_observation_5_a_200_that_begins_behind_the_gap_is_a_loss(through: Through) -> None:
    """Progress 3, 4 and 5 are lost. The own answer behind the gap is delivered all the same."""
    server = lying(Lie.TRIMMED_TAIL, retained=4)
    async with through.host(server) as host:
        assert await host.call("charge", steps=8, cut_after=2) == Answer("charged 0 cents")
        if through.guarded:
            await host.saw(1, 2)
            (loss,) = host.of(Discontinuity)
            assert loss.last_good is not None
            assert loss.first_seen is not None
        else:
            await host.saw(1, 2, 6, 7, 8)
        assert executions(server) == 1


async def test_seed_002_observation_6_progress_and_results_of_unknown_calls_reach_no_caller(
    through: Through,
) -> None:
    server = lying(Lie.COUNTER_RESET)
    async with through.host(server) as host:
        got = await host.call("charge", steps=3, cut_after=2)
        if through.guarded:
            assert in_doubt(got)
            await host.has_heard()
        else:
            assert got == Answer(FOREIGN), "the SDK's transport writes its own ID on whatever response comes"
        assert executions(server) == 1


async def test_seed_002_variant_an_answer_by_json_says_nothing_of_pending_events(through: Through) -> None:
    """It moves no cursor: the standalone stream is resumed from where it was."""
    server = EventLogServer()
    async with through.host(server) as host:
        await server.http.wait_for(lambda r: r.method == "GET")
        await host.call("announce", n=3)
        await host.until(lambda: len(host.heard) == 3)
        server.json_answers = True
        assert await host.call("progress", n=0) == Answer("0 steps")
        assert await host.call("announce", n=4, cut_after=1) == Answer("4 announced")
        await host.until(lambda: len(host.heard) >= 7)
        if through.guarded:
            assert host.grades == ["proven"]
            assert len(host.heard) == 7
        else:
            await host.until(lambda: len(host.heard) == 8)  # one of them twice: there is no de-duplication


# 003, the WebSocket, is in the tests of the upgrade.

# 004: a new stream, or the old one continued?


async def test_seed_004_observation_a_replica_with_an_empty_buffer_goes_on_with_its_own_counter(
    through: Through,
) -> None:
    """The standalone stream: e1..e7, then another replica's e8."""
    server = lying(Lie.FORKED_COUNTER)
    async with through.host(server) as host:
        await server.http.wait_for(lambda r: r.method == "GET")
        await host.call("announce", n=7, cut_after=7)
        await host.until(lambda: len(host.heard) >= 7)
        if through.guarded:
            await host.until(lambda: host.of(Discontinuity))
            assert host.grades == ["broken"]
            assert sorted(host.logged) == [f"announcement {n}" for n in range(1, 8)]
        else:
            await host.until(lambda: "of another client" in host.logged)


async def test_seed_004_observation_other_payloads_under_received_ids_are_a_conflict(through: Through) -> None:
    """e8 and e9 were received from the first replica; the second replica's are other events."""
    server = lying(Lie.COUNTER_RESET)
    async with through.host(server) as host:
        got = await host.call("charge", steps=4, cut_after=3)
        if through.guarded:
            assert in_doubt(got)
            assert "another message" in host.of(Discontinuity)[0].reason
            await host.has_heard()
        else:
            assert got == Answer(FOREIGN)


async def test_seed_004_observation_a_call_with_side_effects_is_not_made_twice(through: Through) -> None:
    """What is believed lost is issued again by the orchestration above."""
    server = lying(Lie.EMPTY_REPLAY)
    async with through.host(server) as host:
        for _ in range(2):
            if through.guarded:
                assert in_doubt(await host.call("charge", steps=3, cut_after=2))
            else:
                assert await waits_for_ever(server, host, tool="charge", steps=3, cut_after=2)
        assert executions(server) == (1 if through.guarded else 2)


async def test_seed_004_second_case_no_cursor_is_sent_on_a_post(through: Through) -> None:
    """Nor does the SDK's transport send one there; the liar would drop the body of such a POST."""
    server = lying(Lie.CURSOR_ON_POST)
    async with through.host(server) as host:
        await host.call("charge", steps=3, cut_after=2)
        assert await host.call("progress", n=0) == Answer("0 steps")
        assert [r for r in server.http.sent("POST") if r.last_event_id is not None] == []


async def test_seed_004_second_case_no_cursor_is_sent_in_another_session(through: Through) -> None:
    server = EventLogServer()
    async with through.host(server) as host:
        await host.call("charge", steps=3, cut_after=2)
        (mine,) = server.store.sessions
        server.store.close(server.store.sessions[mine])
        again = await host.call("progress", n=0)
        if through.guarded:
            assert again == Answer("0 steps")
            await server.http.wait_for(lambda r: r.method == "GET" and r.session_id in server.store.sessions)
        else:
            assert again.is_error
        assert {r.session_id for r in server.http.sent("GET") if r.last_event_id is not None} == {mine}


CONDITIONS: dict[str, Callable[[Session, str], None]] = {
    "2_an_event_that_another_replica_kept": lambda session, stream: session.log.lose(
        session.log.held(stream)[-2].event_id
    ),
    "3_ids_that_are_not_of_the_session": lambda session, stream: setattr(
        session.log, "name", f"not-{session.log.name}"
    ),
    "4_a_fork": lambda session, stream: session.log.fork(stream, 1),
    "4_a_newer_stream": lambda session, stream: session.log.supersede(stream),
}


async def refused_by_condition(through: Through, name: str) -> None:
    await refused_by_an_honest_server(through, while_away(EventLogServer(), CONDITIONS[name]))


async def test_seed_004_condition_1_a_session_that_is_over_is_not_resumed(through: Through) -> None:
    await test_seed_001_rule_a_session_that_the_server_rejects_is_initialized_again(through)


async def test_seed_004_condition_2_a_log_with_a_hole_is_not_resumed(through: Through) -> None:
    await refused_by_condition(through, "2_an_event_that_another_replica_kept")


async def test_seed_004_condition_3_ids_of_another_log_are_not_resumed(through: Through) -> None:
    await refused_by_condition(through, "3_ids_that_are_not_of_the_session")


async def test_seed_004_condition_4_a_forked_stream_is_not_resumed(through: Through) -> None:
    await refused_by_condition(through, "4_a_fork")


async def test_seed_004_condition_4_a_superseded_stream_is_not_resumed(through: Through) -> None:
    await refused_by_condition(through, "4_a_newer_stream")


async def test_seed_004_answer_b_a_new_stream_that_says_resumed_false_is_believed(through: Through) -> None:
    server = while_away(EventLogServer(refuse_by_status=False), CONDITIONS["4_a_fork"])
    async with through.host(server) as host:
        if through.guarded:
            assert in_doubt(await host.call("charge", steps=3, cut_after=2))
            assert "resumed: false" in host.of(Discontinuity)[0].reason
        else:
            assert await waits_for_ever(server, host, tool="charge", steps=3, cut_after=2)
        assert executions(server) == 1


# 000 and 001, across the move from the legacy transport.


def moving(server: EventLogServer) -> EventLogServer:
    """It moves to streamable HTTP as soon as its first legacy stream was cut."""

    async def handler(request: Request, reply: Reply) -> None:
        if request.method == "GET" and server.http.sent("POST", "tools/call"):
            server.migrated = True
        await server.answer(request, reply)

    server.http.handler = handler
    return server


@pytest.mark.parametrize("lie", [None, Lie.SHARED_ALLOCATOR], ids=["honest", "shared-allocator"])
async def test_seed_000_observations_1_to_3_neither_session_nor_cursor_crosses_the_move(lie: Lie | None) -> None:
    server = moving(EventLogServer(lie=lie))
    try:
        with anyio.fail_after(LIMIT):
            async with server, sdk_host(server.sse_url, generation="legacy-sse", policy=QUICK) as host:
                assert in_doubt(await host.call("charge", steps=2, cut_after=2.5))
                await host.saw(1, 2)
                assert in_doubt(await host.call("charge", steps=2, cut_after=2.5))
                assert await host.call("progress", n=0) == Answer("0 steps")
                assert len(host.of(SessionLost)) == 1
                assert executions(server) == 1
                assert all(r.last_event_id is None for r in server.http.requests)
                at = {r.session_id for r in server.http.requests} - {None}
                assert len(at) == 1
                assert all(server.store.sessions[i].log.generation == "http" for i in at)
    except Exception as error:
        raise the_one_in(error) from None
