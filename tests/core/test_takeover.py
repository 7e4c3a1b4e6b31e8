"""A process may die at any point: the next proves the session or drops it, and accounts for every call."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from mcp_client_guard.core.actions import Action, Ask, EndSession, Forward, Get, Post, Reply, Save
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.heritage import end_others, heritage_of, settle_others
from mcp_client_guard.core.model import (
    CallSettled,
    CursorDropped,
    CursorMoved,
    Outcome,
    Seen,
    SessionEnded,
    TaskEnded,
    Told,
    digest_of,
)
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled as CallSettledEvent
from mcp_client_guard.core.report import Discontinuity, MaybeRedelivered, OrphanDropped, RepeatJoined, SessionLost
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.stored import StoredCall
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.core.trail import Trail
from mcp_client_guard.core.verdicts import Resolve
from mcp_client_guard.core.wire_ids import EarlierIds
from tests.core.driver import (
    RESULT,
    SESSION,
    Peer,
    delivered,
    error_of,
    methods,
    note,
    of,
    outcomes,
    records,
    reports,
)
from tests.core.scenes import ORIGIN, WALL, Connection, Process, opened, prove

PARAMS = {"protocolVersion": "2025-11-25", "capabilities": {}}


def streaming(connection: Connection, *events: str) -> Peer:
    """A call of which the host has taken these events."""
    call = connection.call().stream_up(*events)
    connection.drain(100)
    return call


def offered(process: Process) -> tuple[Connection, Peer]:
    """The next process, in which the host has sent `initialize`."""
    two = process.connect()
    return two, two.request("initialize", PARAMS)


def finish_opening(connection: Connection) -> list[Action]:
    """The fresh `initialize` is answered and confirmed."""
    actions = connection.sent("initialize").answer(RESULT, session_id="session-two")
    actions += connection.notify("notifications/initialized")
    return actions + connection.sent("notifications/initialized").accept(status=202, events=False)


# Adopted.


def test_a_session_that_answers_is_gone_on_with_and_the_host_s_initialize_answered_from_the_record() -> None:
    one = opened()
    two, sent = offered(one.process.killed())
    assert not delivered(sent.actions)
    ping = two.sent("ping")
    assert ping.order.headers["mcp-session-id"] == SESSION
    (answer,) = delivered(ping.answer({}))
    assert answer == {"jsonrpc": "2.0", "id": sent.host_id, "result": RESULT}
    assert two.machine.session.state is SessionState.LIVE
    assert not [p for p in of(two.log, Post) if p.message.get("method") == "initialize"]
    call = two.call()
    assert call.order.headers["mcp-session-id"] == SESSION
    assert call.order.headers["mcp-protocol-version"] == "2025-11-25"


TRACES: list[dict[str, Any]] = [
    {},
    {"_meta": {"traceparent": "00-1-1-01"}},
    {"_meta": {"traceparent": "00-2-2-01"}},
]


@pytest.mark.parametrize("now", TRACES)
@pytest.mark.parametrize("then", TRACES)
def test_a_session_is_gone_on_with_whatever_the_host_s_trace_is(then: dict[str, Any], now: dict[str, Any]) -> None:
    """SDK 2.x puts the trace that it is part of into the `_meta` of each request."""
    one = Process().connect()
    one.request("initialize", {**PARAMS, **then}).answer(RESULT, session_id=SESSION)
    one.notify("notifications/initialized")
    two = one.process.killed().connect()
    two.request("initialize", {**PARAMS, **now})
    assert two.sent("ping").order.headers["mcp-session-id"] == SESSION
    again = two.request("initialize", {**PARAMS, **then})
    assert delivered(two.sent("ping").answer({}))[-1]["id"] == again.host_id


@pytest.mark.parametrize(("policy", "asked", "bound"), [
    (GuardPolicy(open_timeout=3), 1.5, 3),
    (GuardPolicy(call_deadline=8), 4, 8),
    (GuardPolicy(), 30, 300),
])  # fmt: skip
@pytest.mark.parametrize("is_slow", [True, False])
def test_the_host_s_initialize_has_its_outcome_within_its_own_deadline(
    policy: GuardPolicy, asked: float, bound: float, is_slow: bool
) -> None:
    """However long the old session is asked about: a server that is silent."""
    two, sent = offered(opened(Process(policy=policy)).process.killed())
    began = two.now
    if is_slow:  # it is asked once more
        two.now += asked / 2
        two.sent("ping").refuse(503)
        two.sent("ping").begin()
    actions = two.elapse(TimerKind.DEADLINE, two.sent("ping").stream)
    assert two.now == began + asked, "all of it together"
    assert "initialize" in methods(actions)
    (due,) = [timer for timer in two.timers if timer.kind is TimerKind.DEADLINE]
    (told,) = delivered(two.elapse(due.kind, due.stream))
    assert (told["id"], two.now) == (sent.host_id, began + bound)


def test_what_kept_the_old_session_from_being_asked_about_is_told() -> None:
    two, _ = offered(opened().process.killed())
    two.sent("ping").refuse(503, retry_after=20)
    two.now += 20  # the next one waits for as long
    two.sent("ping").not_written()
    two.now += 5
    reason = error_of(two.elapse(TimerKind.DEADLINE, two.sent("ping").stream))["data"]["reason"]
    assert reason == "no answer in time (last: ConnectError) before it was sent"
    three, _ = offered(opened().process.killed())
    three.sent("ping").refuse(503, retry_after=20)
    reason = error_of(three.elapse(TimerKind.DEADLINE, three.sent("ping").stream))["data"]["reason"]
    assert reason == "no answer in time (last: HTTP 503) before it was sent"


@pytest.mark.parametrize("how", ["adopted", "put off", "overtaken"])
def test_its_deadline_ends_with_it(how: str) -> None:
    two, sent = offered(opened().process.killed())
    due = [
        timer
        for timer in two.timers
        if timer.kind is TimerKind.DEADLINE and timer.stream < two.sent("ping").stream
    ]
    assert len(due) == 1
    if how == "adopted":
        two.sent("ping").answer({})
    elif how == "put off":
        two.sent("ping").refuse(401)
    else:
        newer = two.request("initialize", PARAMS)
        assert [m["id"] for m in delivered(newer.actions)] == [sent.host_id]
    assert due[0] not in two.timers


def test_requests_that_come_before_the_session_is_proven_wait() -> None:
    two, _ = offered(opened().process.killed())
    early = two.call()
    assert not of(early.actions, Post)
    actions = two.sent("ping").answer({})
    assert [p.message["method"] for p in of(actions, Post)] == ["tools/call"]


def test_each_stream_is_resumed_from_its_stored_cursor_with_overlap() -> None:
    one = opened(standalone=True)
    one.standalone.event("s1", note("x"))
    one.standalone.event("s2", note("y"))
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    gets = of(prove(two), Get)
    assert {g.stream: g.last_event_id for g in gets} == {0: "s1", call.stream: "1"}
    assert {g.headers["mcp-session-id"] for g in gets} == {SESSION}


def test_a_replayed_answer_settles_the_call_of_the_dead_process_and_is_in_record_and_event() -> None:
    one = opened()
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    prove(two)
    assert two.machine.heirs_open == 1
    resumed = two.peer(call.stream)
    resumed.accept()
    actions = resumed.event("2", call.progress(2))
    actions += resumed.event("3", call.result())
    actions += two.elapse(TimerKind.CLOSING) if two.is_set(TimerKind.CLOSING, call.stream) else []
    (record,) = records(actions, CallSettled)
    assert record.outcome is Outcome.RECOVERED
    assert record.answer == {"jsonrpc": "2.0", "result": call.result()["result"]}
    (event,) = reports(actions, CallSettledEvent)
    assert event.answer == call.result()
    assert not delivered(actions)
    assert two.machine.heirs_open == 0
    order = [type(r) for a in of(actions, Save) for r in a.records]
    assert order == [CallSettled, CursorDropped]  # S6


def replayed(two: Connection, call: Peer, code: int) -> list[Action]:
    """The next process resumes the stream of this call, which brings an error."""
    resumed = two.peer(call.stream)
    resumed.accept()
    actions = resumed.event("2", call.progress(2))
    actions += resumed.event("3", call.error(code))
    return actions + two.elapse(TimerKind.CLOSING)


def test_so_does_an_error() -> None:
    one = opened()
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    prove(two)
    assert outcomes(replayed(two, call, -32603)) == [Outcome.RECOVERED]


@pytest.mark.parametrize("code", [-32000, -32600])
@pytest.mark.parametrize("alive", [True, False])
def test_but_not_one_that_may_mean_a_lost_session_until_a_ping_was_answered(code: int, alive: bool) -> None:
    one = opened()
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    prove(two)
    assert not outcomes(replayed(two, call, code))
    if alive:
        expected = Outcome.RECOVERED if code == -32600 else Outcome.IN_DOUBT
        assert outcomes(two.sent("ping").answer({})) == [expected]
    else:
        actions = two.sent("ping").answer_error(code) + two.reinitialized()
        assert outcomes(actions) == [Outcome.IN_DOUBT]
        assert "tools/call" not in [post.message.get("method") for post in of(two.log, Post)]


def test_what_answers_its_cancel_says_nothing_of_it() -> None:
    one = opened()
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    prove(two)
    two.peer(call.stream).accept()
    assert outcomes(two.elapse(TimerKind.DEADLINE, call.stream)) == [Outcome.IN_DOUBT]
    resumed = two.peer(call.stream)
    assert not outcomes(resumed.event("2", call.progress(2)) + resumed.event("3", call.error(0)))
    assert not of(two.call().actions, Post)


@pytest.mark.parametrize("how", ["another message", "silence", "refused", "gap"])
def test_a_stream_that_is_not_the_same_leaves_its_call_in_doubt(how: str) -> None:
    one = opened()
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    prove(two)
    resumed = two.peer(call.stream)
    if how == "another message":
        resumed.accept()
        actions = resumed.event("2", call.progress(7))
    elif how == "silence":
        resumed.accept()
        two.elapse(TimerKind.WITNESS)
        resumed.accept()
        actions = two.elapse(TimerKind.WITNESS)
    elif how == "refused":
        resumed.refuse(400)
        actions = resumed.refuse(400)
    else:
        resumed.refuse(410)
        actions = resumed.refuse(410)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert two.machine.heirs_open == 0
    assert two.machine.session.state is SessionState.LIVE


def test_calls_without_a_cursor_or_of_an_older_session_are_in_doubt_at_once() -> None:
    one = opened()
    old = one.call("old").stream_up("1")
    one.request("tools/list").refuse(404)  # the POST of the old call goes on being answered
    one.reinitialized()
    one.call("new")
    two = one.process.killed().connect()
    actions = prove(two)
    assert set(outcomes(actions)) == {Outcome.IN_DOUBT}
    assert not [get for get in of(actions, Get) if get.last_event_id is not None]
    assert two.machine.heirs_open == 0
    assert old.stream in {e.wire_id for e in reports(actions + one.log, CallSettledEvent)}


def test_five_hundred_and_twelve_events_after_the_position_on_disk_may_come_twice() -> None:
    one = opened(standalone=True)
    one.standalone.event("s1", note("x"))
    one.standalone.event("s2", note("y"))
    one.drain(10)
    two = one.process.killed().connect()
    prove(two)
    two.standalone.accept()
    two.standalone.event("s2", note("y"))
    for number in range(600):
        two.standalone.event(f"t{number}", note(f"{number}"))
    assert len(reports(two.log, MaybeRedelivered)) == 512
    assert len(delivered(two.log)) == 601


def question_then(one: Connection, events: int) -> None:
    """The server asks, and sends so many events while the host, which takes them, does not answer."""
    question = {"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {}}
    one.standalone.event("q", question)
    one.drain(4)
    for number in range(events):
        one.standalone.event(f"t{number}", note(f"{number}"))
        one.drain()


@pytest.mark.parametrize("killed_twice", [True, False])
def test_what_comes_again_behind_an_unanswered_question_is_reported_however_much(killed_twice: bool) -> None:
    one = opened(standalone=True)
    one.standalone.event("s1", note("x"))
    one.standalone.event("s2", note("y"))
    question_then(one, 700)
    process = one.process.killed()
    if killed_twice:
        between = process.connect()
        prove(between)
        between.standalone.accept()
        between.standalone.event("s2", note("y"))
        question_then(between, 20)
        process = process.killed()
    two = process.connect()
    prove(two)
    assert two.standalone.asked == "s1", "the host is asked again"
    two.standalone.accept()
    two.standalone.event("s2", note("y"))
    question_then(two, 1300)
    assert len(reports(two.log, MaybeRedelivered)) == 701 + 512


def test_what_is_replayed_from_before_the_position_on_disk_is_reported_however_much() -> None:
    one = opened(standalone=True)
    for number in range(600):
        one.standalone.event(f"s{number}", note(f"{number}"))
    one.drain(700)
    two = one.process.killed().connect()
    prove(two)
    two.standalone.accept()
    for number in range(600):
        two.standalone.event(f"s{number}", note(f"{number}"))
    twice = len(delivered(two.log)) - 1
    assert twice == 592, "the newest eight are stored"
    assert len(reports(two.log, MaybeRedelivered)) == 592
    for number in range(600, 1200):
        two.standalone.event(f"s{number}", note(f"{number}"))
    assert len(reports(two.log, MaybeRedelivered)) == 592 + 512, "and behind the position as ever"


def test_so_it_is_where_a_later_resume_reaches_back_so_far() -> None:
    one = opened(standalone=True)
    for number in range(20):
        one.standalone.event(f"s{number}", note(f"{number}"))
    one.drain(30)
    two = one.process.killed().connect()
    prove(two)
    two.standalone.accept()
    for number in range(19, 620):
        two.standalone.event(f"s{number}", note(f"{number}"))
    assert len(reports(two.log, MaybeRedelivered)) == 512
    two.standalone.cut()
    two.standalone.accept()
    for number in range(620):
        two.standalone.event(f"s{number}", note(f"{number}"))
    assert len(delivered(two.log)) == 1 + 600 + 12
    assert len(reports(two.log, MaybeRedelivered)) == 512 + 12


def test_a_batch_that_may_come_twice_is_reported_as_often_as_it_has_messages() -> None:
    one = opened(standalone=True)
    one.standalone.event("s1", note("x"))
    one.standalone.event("s2", note("y"))
    one.drain(10)
    two = one.process.killed().connect()
    prove(two)
    two.standalone.accept()
    two.standalone.event("s2", note("y"))
    for number in range(400):
        two.standalone.event(f"t{number}", [note("a"), note("b")])
    assert len(reports(two.log, MaybeRedelivered)) == 800


def test_there_is_no_delete_on_closing_and_what_is_unsettled_stays_open() -> None:
    one = opened()
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    prove(two)
    actions = two.close()
    assert not of(actions, EndSession)
    assert not records(actions, SessionEnded)
    assert [c.wire_id for c in two.process.disk.open_calls] == [call.stream]
    assert two.process.disk.session.cursors[str(call.stream)]
    three = two.process.killed().connect()
    prove(three)
    assert isinstance(three.peer(call.stream).order, Get)


def test_wire_ids_are_never_used_again() -> None:
    """The disk refuses a row that it has; the shell gives each process numbers of its own."""
    one = opened()
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    prove(two)
    again = two.call("other")
    assert again.stream != call.stream


def test_a_restart_in_the_middle_of_a_recovery_and_another() -> None:
    process = opened().process
    call = streaming(process.connections[0], "1", "2")
    for _ in range(3):
        process = process.killed()
        connection, _sent = offered(process)
        assert connection.machine.heirs_open == 1
    process = process.killed()
    connection = process.connect()
    prove(connection)
    resumed = connection.peer(call.stream)
    resumed.accept()
    resumed.event("2", call.progress(2))
    resumed.event("3", call.result())
    if connection.is_set(TimerKind.CLOSING, call.stream):
        connection.elapse(TimerKind.CLOSING)
    assert process.disk.call.outcome is Outcome.RECOVERED


def test_a_call_of_the_dead_process_has_the_deadline_of_its_tool() -> None:
    one = opened(Process(policy=GuardPolicy(call_deadline={"charge": 70, "*": 9})))
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    prove(two)
    two.peer(call.stream).accept()
    two.peer(call.stream).event("2", call.progress(2))
    actions = two.elapse(TimerKind.DEADLINE, call.stream)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert two.now - one.now == 75.0
    (cancel,) = of(actions, Post)
    assert cancel.message["params"]["requestId"] == call.stream


def test_a_session_lost_after_it_was_adopted_is_replaced_and_the_host_may_begin_anew_itself() -> None:
    one = opened()
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    prove(two)
    two.notify("notifications/initialized")
    actions = two.call("other").refuse(404)
    assert outcomes(actions) == [Outcome.IN_DOUBT]  # the heir's
    two.reinitialized()
    assert two.machine.session.incarnation == 2
    two.request("initialize", PARAMS)
    two.sent("initialize").answer(RESULT, session_id="session-three")
    assert of(two.notify("notifications/initialized"), Post)
    assert call.stream in {c.wire_id for c in two.process.disk.calls.values() if c.outcome is Outcome.IN_DOUBT}


def test_a_call_that_has_only_had_its_priming_event_is_resumed_too() -> None:
    one = opened()
    call = one.call().stream_up()
    two = one.process.killed().connect()
    prove(two)
    resumed = two.peer(call.stream)
    assert resumed.asked == "p"
    resumed.accept()
    actions = resumed.event("1", call.result())
    actions += two.elapse(TimerKind.CLOSING) if two.is_set(TimerKind.CLOSING, call.stream) else []
    assert outcomes(actions) == [Outcome.RECOVERED]


def replaying_all_streams(one: Connection, earlier: EarlierIds | None) -> tuple[list[Action], Peer, Peer]:
    """The server replays what it has said to all requests: first to one that an earlier process had answered."""
    before = one.call(n=1)
    before.accept()
    before.event("a1", before.result())
    one.drain(100)
    call = one.call(n=2).stream_up()
    process = one.process.killed()
    assert process.heritage is not None
    process.heritage = evolve(process.heritage, earlier=earlier)
    two = process.connect()
    prove(two)
    resumed = two.peer(call.stream)
    resumed.accept()
    return resumed.event("a0", before.progress(1)) + resumed.event("a1", before.result()), resumed, call


def test_what_is_replayed_of_an_earlier_connection_breaks_no_stream_of_its_session() -> None:
    actions, resumed, call = replaying_all_streams(opened(), EarlierIds(0, 1))
    actions += resumed.event("b1", call.result())
    actions += resumed.driver.elapse(TimerKind.CLOSING)
    assert outcomes(actions) == [Outcome.RECOVERED]
    assert not reports(actions, Discontinuity)
    assert not reports(actions, OrphanDropped)


@pytest.mark.parametrize("earlier", [None, EarlierIds(1, 9)])
def test_what_is_replayed_of_nobody_does(earlier: EarlierIds | None) -> None:
    actions, _, _ = replaying_all_streams(opened(), earlier)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert reports(actions, Discontinuity)


def test_nor_does_what_an_earlier_connection_has_asked_in_a_session_that_is_gone() -> None:
    one = opened()
    before = streaming(one)
    process = one.process.killed()
    assert process.heritage is not None
    process.heritage = evolve(process.heritage, earlier=EarlierIds(0, 1))
    two, _ = offered(process)
    refuse_404(two.sent("ping"))
    finish_opening(two)
    call = two.call(n=2).stream_up()
    call.cut()
    call.accept()
    assert reports(call.event("a1", before.result()), Discontinuity)


def test_what_was_received_under_the_id_of_its_priming_event_and_not_taken_comes_to_the_next_process() -> None:
    one = opened()
    call = one.call().stream_up()
    call.event("p", call.progress(1))
    two = one.process.killed().connect()
    prove(two)
    resumed = two.peer(call.stream)
    assert resumed.asked == "p"
    resumed.accept()
    resumed.event("p", call.progress(1))
    assert not reports(two.log, Discontinuity)
    actions = resumed.event("q", call.result()) + two.elapse(TimerKind.CLOSING)
    assert outcomes(actions) == [Outcome.RECOVERED]


def test_a_priming_event_whose_id_cannot_be_sent_back_is_not_stored() -> None:
    call = opened().call()
    call.accept()
    assert not records(call.event("p\nq"), CursorMoved)
    assert records(opened().call().stream_up().event("1", note("x")), CursorMoved) == []


def test_stored_rows_without_an_id_keep_their_place_and_mark_none() -> None:
    trail = Trail({})
    trail.restore((Seen("1", digest_of(b"a")), Seen(None, digest_of(b"b"))))
    assert trail.cursor == "1"
    assert trail.newest_number == 2


# Joined.


def test_a_repeat_joins_the_call_of_the_dead_process_and_gets_its_answer() -> None:
    one = opened()
    call = streaming(one, "1", "2")
    two = one.process.killed().connect()
    prove(two)
    again = two.call()
    assert not of(again.actions, Post)
    resumed = two.peer(call.stream)
    resumed.accept()
    resumed.event("2", call.progress(2))
    actions = resumed.event("3", call.result())
    actions += two.elapse(TimerKind.CLOSING) if two.is_set(TimerKind.CLOSING, call.stream) else []
    assert delivered(actions) == [{**call.result(), "id": again.host_id}]


def test_a_name_attaches_to_the_call_of_the_dead_process() -> None:
    one = opened()
    call = one.named("order-17").stream_up("1", "2")
    one.drain(10)
    two = one.process.killed().connect()
    prove(two)
    again = two.named("order-17")
    assert not of(again.actions, Post)
    two.peer(call.stream).refuse(410)
    (answer,) = [m for m in delivered(two.log) if m["id"] == again.host_id]
    assert CallInDoubt.find(answer["result"]) is not None


@pytest.mark.parametrize("name", [None, "order-17"])
def test_an_answer_for_a_repeat_whose_connection_was_closed_is_kept_for_the_next(name: str | None) -> None:
    one = opened()
    (one.call() if name is None else one.named(name)).stream_up("1", "2")
    one.drain(10)
    process = one.process.killed()
    two = process.connect()
    prove(two)
    three = opened(process)
    gone = three.call() if name is None else three.named(name)
    assert not of(gone.actions, Post)
    three.close()
    heir = two.peer(process.disk.open_calls[0].wire_id)
    heir.accept()
    heir.event("2", heir.progress(2))
    actions = heir.event("3", heir.result())
    actions += two.elapse(TimerKind.CLOSING) if two.is_set(TimerKind.CLOSING, heir.stream) else []
    assert not of(actions, Forward)
    again = two.call() if name is None else two.named(name)
    assert delivered(again.actions) == [{**heir.result(), "id": again.host_id}]


def test_closing_tells_those_who_joined_a_call_that_stays_open() -> None:
    one = opened()
    streaming(one, "1", "2")
    process = one.process.killed()
    two = process.connect()
    prove(two)
    three = opened(process)
    mine, again = two.call(), three.call()
    actions = two.close()
    assert mine.host_id not in {m["id"] for m in delivered(actions)}
    (answer,) = delivered(three.forwarded)
    assert answer["id"] == again.host_id
    assert not of(three.call().actions, Post)  # refused from now on
    assert process.disk.open_calls


# Not adopted.


def refuse_404(ping: Peer) -> list[Action]:
    return ping.refuse(404)


def refuse_400(ping: Peer) -> list[Action]:
    return ping.refuse(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no"}})


def answer_32001(ping: Peer) -> list[Action]:
    return ping.answer_error(-32001)


def answer_other_session(ping: Peer) -> list[Action]:
    return ping.accept(events=False, session_id="another") + ping.body(ping.result({}))


def proving(ping: Peer) -> Peer | None:
    """The newest ping, while the old session is on trial."""
    two = ping.driver
    return two.sent("ping") if two.machine.session.state is SessionState.PROVING else None


def always_cut(ping: Peer) -> list[Action]:
    actions: list[Action] = []
    while newest := proving(ping):
        actions += newest.cut()
    return actions


def always_refuse_503(ping: Peer) -> list[Action]:
    actions: list[Action] = []
    while newest := proving(ping):
        actions += newest.refuse(503)
    return actions


def never_reachable(ping: Peer) -> list[Action]:
    actions: list[Action] = []
    while newest := proving(ping):
        actions += newest.not_written()
    return actions


def too_slow(ping: Peer) -> list[Action]:
    return ping.driver.elapse(TimerKind.DEADLINE, ping.stream)


WAYS = [
    refuse_404,
    refuse_400,
    answer_32001,
    answer_other_session,
    always_cut,
    always_refuse_503,
    too_slow,
]


@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_does_not_answer_is_abandoned_and_the_host_s_initialize_sent(way: Any) -> None:
    one = opened()
    streaming(one, "1", "2")
    two, sent = offered(one.process.killed())
    early = two.request("tools/list")
    actions = way(two.sent("ping"))
    (ended,) = records(actions, SessionEnded)
    assert ended.incarnation == 1
    assert reports(actions, SessionLost)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    (post,) = of(actions, Post)[-1:]
    assert post.message["method"] == "initialize"
    assert "mcp-session-id" not in post.headers
    actions = finish_opening(two)
    assert sent.host_id in {m["id"] for m in delivered(actions)}
    assert two.machine.session.incarnation == 2
    assert not [g for g in of(two.log, Get) if g.last_event_id is not None]
    assert early.host_id == "h2"
    assert two.sent("tools/list").is_open
    assert two.process.disk.session.incarnation == 2


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, None])
def test_a_server_that_cannot_say_is_asked_again(status: int | None) -> None:
    """It is not the word that the session is gone."""
    one = opened()
    call = streaming(one, "1", "2")
    two, sent = offered(one.process.killed())
    ping = two.sent("ping")
    actions = ping.cut() if status is None else ping.refuse(status, retry_after=3.0)
    assert not records(actions, SessionEnded)
    (post,) = of(actions, Post)
    assert post.delay.attempt == 1
    assert post.delay.at_least == (0.0 if status is None else 3.0)
    actions = two.sent("ping").answer({})
    assert sent.host_id in {m["id"] for m in delivered(actions)}
    assert two.peer(call.stream).asked == "1"


@pytest.mark.parametrize("how", ["attempts", "time"])
def test_where_nothing_can_be_sent_to_the_server_the_session_stays_on_record(how: str) -> None:
    """A machine that starts before its network: nobody has said that the session is gone."""
    one = opened()
    call = streaming(one, "1", "2")
    two, sent = offered(one.process.killed())
    before = len(two.log)
    if how == "attempts":
        never_reachable(two.sent("ping"))
    else:
        ping = two.sent("ping")
        ping.not_written()
        two.now += 30
        two.elapse(TimerKind.DEADLINE, ping.stream)
    actions = two.log[before:]
    (answer,) = delivered(actions)
    assert (answer["id"], answer["error"]["data"]["by"]) == (sent.host_id, "wire")
    assert not records(actions, SessionEnded)
    assert outcomes(actions) == []
    assert two.process.disk.heritage() == one.process.disk.heritage()
    two.request("initialize", PARAMS)
    two.sent("ping").answer({})
    assert two.peer(call.stream).asked == "1"


@pytest.mark.parametrize("status", [401, 403])
def test_where_another_credential_is_wanted_the_session_stays_on_record(status: int) -> None:
    one = opened()
    call = streaming(one, "1", "2")
    two, sent = offered(one.process.killed())
    early = two.request("tools/list")
    actions = two.sent("ping").refuse(status)
    assert not records(actions, SessionEnded)
    assert outcomes(actions) == []
    answer, other = delivered(actions)
    assert (answer["id"], answer["error"]["data"]["http_status"]) == (sent.host_id, status)
    assert other["id"] == early.host_id
    assert two.process.disk.heritage() == one.process.disk.heritage()
    assert two.machine.heirs_open == 1
    again = two.request("initialize", PARAMS)
    actions = two.sent("ping").answer({})
    assert again.host_id in {m["id"] for m in delivered(actions)}
    assert two.peer(call.stream).asked == "1"


def test_other_parameters_abandon_the_session_without_asking() -> None:
    one = opened()
    streaming(one, "1", "2")
    two = one.process.killed().connect()
    sent = two.request("initialize", {**PARAMS, "clientInfo": {"name": "other"}})
    assert [p.message["method"] for p in of(sent.actions, Post)] == ["initialize"]
    assert records(sent.actions, SessionEnded)
    assert outcomes(sent.actions) == [Outcome.IN_DOUBT]


def test_a_host_that_initializes_twice_gets_the_old_session_by_the_second() -> None:
    one = opened()
    two, first = offered(one.process.killed())
    second = two.request("initialize", PARAMS)
    assert [m["id"] for m in delivered(second.actions)] == [first.host_id]
    assert not of(second.actions, Post)
    assert [m["id"] for m in delivered(two.sent("ping").answer({}))] == [second.host_id]
    assert two.machine.session.session_id == SESSION


def test_so_it_does_where_it_uses_the_same_id_again() -> None:
    two, first = offered(opened().process.killed())
    second = two.submit({"jsonrpc": "2.0", "id": first.host_id, "method": "initialize", "params": PARAMS})
    assert not delivered(second)
    assert [m["id"] for m in delivered(two.sent("ping").answer({}))] == [first.host_id]


def test_a_host_that_initializes_otherwise_meanwhile_gets_one_session_of_its_own() -> None:
    two, first = offered(opened().process.killed())
    second = two.request("initialize", {**PARAMS, "capabilities": {"roots": {}}})
    assert [m["id"] for m in delivered(second.actions)] == [first.host_id]
    assert records(second.actions, SessionEnded)
    finish_opening(two)
    assert two.machine.session.state is SessionState.LIVE
    assert [p.message["method"] for p in of(two.log, Post)].count("initialize") == 1


def test_a_host_that_leaves_before_anything_is_decided_leaves_all_as_it_was() -> None:
    one = opened()
    streaming(one, "1", "2")
    two, _ = offered(one.process.killed())
    before = (dict(two.process.disk.calls), dict(two.process.disk.sessions))
    two.close()
    assert {k: v for k, v in two.process.disk.calls.items() if v.outcome is None} == {
        k: v for k, v in before[0].items() if v.outcome is None
    }
    assert two.process.disk.sessions == before[1]
    assert two.process.disk.heritage() == one.process.disk.heritage()


@pytest.mark.parametrize("adopted", [True, False])
def test_the_hook_is_asked_about_the_dead_process_s_calls_once_there_is_a_session(adopted: bool) -> None:
    one = opened(Process(has_hook=True))
    call = one.call()
    two, _ = offered(one.process.killed())
    if adopted:
        actions = two.sent("ping").answer({})
    else:
        assert not of(two.sent("ping").refuse(404), Ask)
        actions = finish_opening(two)
    (ask,) = of(actions, Ask)
    assert (ask.question, ask.arguments) == (call.stream, None)
    assert ask.doubt.call_key == "key-1-0-2"
    assert outcomes(two.reconciled(call, Resolve({"content": []}))) == [Outcome.RECOVERED]
    assert two.machine.heirs_open == 0


@pytest.mark.parametrize("adopted", [True, False])
def test_the_hook_is_asked_about_the_calls_of_every_slot(adopted: bool) -> None:
    process = Process(has_hook=True)
    calls = [opened(process).call(n=number).stream for number in (1, 2)]
    new = process.killed()
    assert [c.outcome for c in new.disk.calls.values() if c.method == "tools/call"] == [None, None]
    two, _ = offered(new)
    if adopted:
        two.sent("ping").answer({})
    else:
        two.sent("ping").refuse(404)
        finish_opening(two)
    assert sorted(ask.question for ask in of(two.log, Ask)) == calls
    for call in calls:
        assert outcomes(two.reconciled(two.peer(call), Resolve({"content": []}))) == [Outcome.RECOVERED]
    rows = [c for c in two.process.disk.calls.values() if c.method == "tools/call"]
    assert [(row.slot, row.outcome) for row in rows] == [(1, Outcome.RECOVERED), (2, Outcome.RECOVERED)]


QUESTION: dict[str, Any] = {"name": "find", "arguments": {"n": 1}}


def asking() -> Connection:
    """The host's call is in doubt, and the hook asks the server about it."""
    one = opened(Process(has_hook=True))
    one.call().cut()
    one.hook_asks("tools/call", QUESTION).stream_up()
    return one


def of_question(process: Process) -> StoredCall:
    return next(row for row in process.disk.calls.values() if row.is_hook_s)


@pytest.mark.parametrize("has_hook", [True, False])
@pytest.mark.parametrize(
    ("how", "outcome"),
    [("replayed", Outcome.COMPLETED), ("abandoned", Outcome.IN_DOUBT), ("left", Outcome.IN_DOUBT)],
)
def test_what_the_hook_of_a_dead_process_asked_is_nobody_s_call(
    how: str, outcome: Outcome, has_hook: bool
) -> None:
    """Its row has an outcome, of which nobody is told; and the host's own equal call is another one."""
    one = asking()
    question = one.sent("tools/call")
    one.process.has_hook = has_hook
    two, _ = offered(one.process.killed())
    if how == "abandoned":
        two.sent("ping").refuse(404)
        finish_opening(two)
    else:
        two.sent("ping").answer({})
    assert [ask.doubt.tool for ask in of(two.log, Ask)] == ["charge"] * has_hook
    assert two.machine.heirs_awaited == has_hook
    assert of(two.call("find", n=1).actions, Post)
    if how == "replayed":
        again = two.peer(question.stream)
        again.accept()
        again.event("e1", again.result())
    elif how == "left":
        two.close()
    row = of_question(two.process)
    assert (row.outcome, row.told) == (outcome, Told.CALLER)
    assert not of(two.log, Reply), "who asked is dead"
    assert not [heir for heir in two.process.disk.heritage().heirs if heir.is_hook_s]  # type: ignore[union-attr]


def test_nor_is_it_where_its_session_is_not_the_one_gone_on_with() -> None:
    process = asking().process
    opened(process).call("other")
    heritage = process.disk.heritage(has_hook=True)
    assert heritage is not None
    assert [heir.tool for heir in heritage.heirs if heir.slot != heritage.slot] == ["charge"]
    assert of_question(process.killed()).told is Told.CALLER


@pytest.mark.parametrize("killed", [True, False])
def test_nor_where_the_host_has_left_while_it_was_asked(killed: bool) -> None:
    one = asking()
    one.close()
    new = one.process.killed().connect() if killed else one.process.connect_again()
    prove(new)
    assert of_question(new.process).outcome is Outcome.IN_DOUBT
    assert of(new.call("find", n=1).actions, Post)


def test_a_call_of_the_host_s_may_have_any_name() -> None:
    one = opened()
    one.named("hook:17")
    two, _ = offered(one.process.killed())
    two.sent("ping").answer({})
    assert not of(two.named("hook:17").actions, Post)


def test_a_process_that_died_between_two_sessions_leaves_calls_but_nothing_to_offer() -> None:
    one = opened(Process(has_hook=True))
    call = one.call()
    one.request("tools/list").refuse(404)
    two = one.process.killed().connect()
    sent = two.request("initialize", PARAMS)
    assert [p.message["method"] for p in of(sent.actions, Post)] == ["initialize"]
    assert call.stream in {a.question for a in of(finish_opening(two), Ask)}


@pytest.mark.parametrize("power", [True, False])
def test_what_was_sent_again_is_never_without_the_row_of_its_second_sending(power: bool) -> None:
    one = opened(Process(policy=GuardPolicy(resend={"charge": "always"})))
    one.call().cut()
    disk = one.process.disk
    assert disk.calls[1, 1, 10003].outcome is Outcome.RESENT
    for writes in range(len(disk.writes) + 1):
        calls = list(disk.after_crash(writes, power=power).calls.values())
        resent = [c.call_key for c in calls if c.outcome is Outcome.RESENT]
        assert all([c.call_key for c in calls].count(key) == 2 for key in resent)


# What of the disk is used.


def test_the_newest_session_of_a_slot_counts_in_whatever_order_they_come() -> None:
    one = opened()
    one.request("tools/list").refuse(404)
    one.reinitialized()
    sessions = list(one.process.disk.sessions.values())
    heritage = heritage_of(reversed(sessions), [], ORIGIN, None)
    assert heritage is not None
    assert heritage.incarnation == 2
    assert heritage.session is not None
    assert heritage.session.session_id == "session-two"


def test_the_slot_used_last_is_offered_and_the_calls_of_others_are_in_doubt() -> None:
    process = Process()
    first, second = opened(process), opened(process)
    first.call()
    process.now += 10
    second.call("other")
    process.now += 10
    first.now = process.now
    first.call("third")
    heritage = process.disk.heritage()
    assert heritage is not None
    assert (heritage.slot, len(heritage.heirs)) == (first.slot, 2)
    settled = settle_others(process.disk.calls.values(), heritage, ORIGIN, None, 0.0)
    assert [(slot, r.wire_id) for slot, r in settled] == [(second.slot, max(second.orders))]
    assert process.killed().disk.heritage() == heritage


def test_the_tasks_of_every_slot_are_asked_for() -> None:
    """Frameworks open a connection for each call."""
    process = Process()
    for number in (1, 2):
        opened(process).call(n=number).answer({"task": {"taskId": f"t{number}"}})
        process.now += 10
    opened(process).call("other")
    settled = settle_others(process.disk.calls.values(), process.disk.heritage(), ORIGIN, None, 0.0)
    assert settled == []
    new = process.killed().connect()
    prove(new)
    asked = [p for p in of(new.log, Post) if p.message["method"] == "tasks/get"]
    assert sorted(p.message["params"]["taskId"] for p in asked) == ["t1", "t2"]
    for question in asked:
        new.peer(question.stream).answer({"status": "completed"})
        new.sent("tasks/result").answer({"content": []})
    rows = [call for call in new.process.disk.calls.values() if call.tool == "charge"]
    assert [(row.slot, row.outcome, row.task_open) for row in rows] == [
        (1, Outcome.RECOVERED, False),
        (2, Outcome.RECOVERED, False),
    ]


def test_a_task_of_another_endpoint_waits_for_whoever_comes_back_and_not_for_ever() -> None:
    process = Process()
    opened(process).call().answer({"task": {"taskId": "t"}})
    calls = process.disk.calls.values()
    elsewhere = heritage_of([], calls, "https://elsewhere", None)
    (told,) = settle_others(calls, elsewhere, "https://elsewhere", None, 0.0)
    assert isinstance(told[1], CallSettled), "its task is still to be had there"
    assert told[1].outcome is Outcome.IN_DOUBT
    doubted = [evolve(call, outcome=Outcome.IN_DOUBT) for call in calls]
    assert settle_others(doubted, elsewhere, "https://elsewhere", None, 0.0) == [], "said once"
    settled = settle_others(doubted, elsewhere, "https://elsewhere", None, WALL * 2)
    assert [type(record) for _, record in settled] == [CallSettled, TaskEnded]


def test_nothing_of_another_principal_is_used_and_its_calls_wait_for_it() -> None:
    disk = opened().process.disk
    one = opened(Process(disk))
    one.call()
    calls = list(disk.calls.values())
    assert heritage_of(disk.sessions.values(), calls, ORIGIN, "somebody") is None
    assert settle_others(calls, None, ORIGIN, "somebody", 0.0) == []
    late = settle_others(calls, None, ORIGIN, "somebody", WALL * 2)
    assert len(late) == len(disk.open_calls), "but not for ever"
    unknown = [evolve(call, origin=None) for call in calls]
    assert len(settle_others(unknown, None, ORIGIN, "somebody", 0.0)) == len(disk.open_calls)


def test_a_server_that_has_moved_gets_no_session_of_before_and_its_calls_are_accounted_for() -> None:
    disk = opened().process.disk
    one = opened(Process(disk))
    one.call()
    calls = list(disk.calls.values())
    assert heritage_of(disk.sessions.values(), calls, "https://elsewhere", None) is None
    settled = settle_others(calls, None, "https://elsewhere", None, 0.0)
    assert len(settled) == len(disk.open_calls)
    assert {record.outcome for _, record in settled if isinstance(record, CallSettled)} == {Outcome.IN_DOUBT}


def test_an_ended_session_or_one_without_an_id_is_not_offered() -> None:
    process = Process()
    one = process.connect()
    one.opened(None)
    assert process.disk.heritage() is None
    one.call()
    heritage = process.disk.heritage()
    assert heritage is not None
    assert heritage.session is None
    two = process.killed().connect()
    actions = two.request("initialize", PARAMS).actions
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert of(actions, Post)


def test_an_empty_disk_leaves_nothing() -> None:
    assert Process().disk.heritage() is None
    assert settle_others([], None, ORIGIN, None, 0.0) == []


def test_a_host_that_opens_no_session_leaves_the_dead_process_s_calls_in_doubt_at_once() -> None:
    """It landed on 2026-07-28: there never will be anything to resume or ask under."""
    process = Process()
    one = opened(process)
    one.call(cents=1)
    one.call(cents=2).answer({"task": {"taskId": "t", "status": "working", "ttl": 60000}})
    two = process.killed().connect()
    stateless: Any = {"mcp-protocol-version": "2026-07-28"}
    probe = two.request("server/discover", **stateless)
    assert outcomes(probe.actions) == []
    assert two.machine.heirs_open == 2
    first = two.request("tools/list", **stateless)
    assert outcomes(first.actions) == [Outcome.IN_DOUBT] * 2
    assert two.machine.heirs_open == 0
    assert [c.method for c in two.process.disk.open_calls] == ["server/discover", "tools/list"]


def test_sessions_that_are_not_gone_on_with_are_ended_and_others_once_nobody_will_use_them() -> None:
    process = Process()
    opened(process).close()
    process.now += 10
    opened(process).close()
    sessions = process.disk.sessions.values()
    heritage = process.disk.heritage()
    assert heritage is not None
    ours = end_others(sessions, heritage, ORIGIN, None, oldest=0.0)
    assert [(slot, end.incarnation) for slot, end in ours] == [(1, 1)]
    assert len(end_others(sessions, None, ORIGIN, None, oldest=0.0)) == 2
    assert end_others(sessions, None, ORIGIN, "somebody", oldest=0.0) == []
    assert len(end_others(sessions, None, ORIGIN, "somebody", oldest=WALL * 2)) == 2


@pytest.mark.parametrize("used", [True, False])
def test_a_server_that_may_not_have_been_told_is_told_that_the_host_is_initialized(used: bool) -> None:
    """The process that opened the session may have died before it could."""
    one = Process().connect()
    if used:
        one.opened().call()
    else:
        one.initialize()
    two = one.process.killed().connect()
    prove(two)
    assert [p.message["method"] for p in of(two.notify("notifications/initialized"), Post)] == (
        [] if used else ["notifications/initialized"]
    )


@pytest.mark.parametrize("gone", [False, True])
def test_a_host_that_is_initialized_before_the_old_session_is_proven(gone: bool) -> None:
    """It did not wait for the answer to its `initialize`."""
    one = opened()
    one.call()
    two = one.process.killed().connect()
    two.request("initialize", PARAMS)
    assert two.machine.session.state is SessionState.PROVING
    two.notify("notifications/initialized")
    two.sent("notifications/initialized").accept(status=202, events=False)
    assert two.machine.session.state is SessionState.PROVING
    two.sent("ping").refuse(404) if gone else two.sent("ping").answer({})
    if gone:
        two.sent("initialize").answer(RESULT, session_id="session-two")
    assert outcomes(two.call("other").answer()) == [Outcome.COMPLETED]


@pytest.mark.parametrize("how", ["on trial", "proven", "consistent"])
def test_a_repeat_of_a_call_that_a_dead_process_made_joins_it_however_healthy_its_stream(how: str) -> None:
    """Whoever called is dead: an equal call is its repeat, as a restarted agent makes it."""
    one = opened()
    call = one.call(cents=100).stream_up("e1")
    two = one.process.killed().connect()
    prove(two)
    heir = two.peer(call.stream)
    heir.accept(resumed=True if how == "consistent" else None)
    if how != "on trial":
        heir.event("e1", call.progress(1))
    repeat = two.call(cents=100)
    assert repeat.stream == -1
    assert reports(repeat.actions, RepeatJoined)
    if how == "on trial":
        heir.event("e1", call.progress(1))
    actions = heir.event("e2", {"jsonrpc": "2.0", "id": call.stream, "result": {"content": []}}) + heir.end()
    assert repeat.host_id in [m.get("id") for m in delivered(actions)]


def test_repeats_of_two_equal_calls_of_a_dead_process_join_one_each() -> None:
    one = opened()
    calls = [one.call(cents=100), one.call(cents=100)]
    for call, log in zip(calls, "ab", strict=True):
        call.accept()
        call.event(f"{log}0")
        call.event(f"{log}1", call.progress(1))
    one.drain(100)
    two = one.process.killed().connect()
    prove(two)
    repeats = [two.call(cents=100) for _ in calls]
    told = []
    for call, log in zip(calls, "ab", strict=True):
        heir = two.peer(call.stream)
        heir.accept()
        heir.event(f"{log}1", call.progress(1))
        result = {"content": [{"type": "text", "text": log}]}
        answered = heir.event(f"{log}2", {"jsonrpc": "2.0", "id": call.stream, "result": result})
        told += delivered(answered + heir.end())
    texts = {m["id"]: m["result"]["content"][0]["text"] for m in told if "result" in m}
    assert texts == {repeats[0].host_id: "a", repeats[1].host_id: "b"}


def test_initialized_where_the_host_was_given_no_session_opens_none() -> None:
    two, _ = offered(opened().process.killed())
    two.sent("ping").refuse(401)
    two.notify("notifications/initialized")
    assert two.machine.session.state is SessionState.NEW
    again = two.request("initialize", PARAMS)
    assert not delivered(again.actions)
    assert [m["id"] for m in delivered(two.sent("ping").answer({}))] == [again.host_id]
