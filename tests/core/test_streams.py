"""Streams that carry an answer: placed, cut, resumed, tried, and what each resume is worth."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core import bygone
from mcp_client_guard.core.actions import Action, CancelTimer, Get, Hangup, Post, SetTimer
from mcp_client_guard.core.inputs import UNREADABLE, ReconnectRequested, TimerElapsed
from mcp_client_guard.core.model import CursorDropped, CursorMoved, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import (
    Disconnected,
    Discontinuity,
    DuplicateDropped,
    NotificationLost,
    OrphanDropped,
    Resumed,
    SessionLost,
    UnreadableDropped,
)
from mcp_client_guard.core.timer import Timer, TimerKind
from tests.core.driver import (
    SESSION,
    Driver,
    Peer,
    delivered,
    evidence,
    in_doubt,
    note,
    of,
    outcomes,
    records,
    reports,
)


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


@pytest.fixture
def call(driver: Driver) -> Peer:
    """A call that has received the events p (priming), e1 and e2."""
    return driver.call().stream_up("e1", "e2")


def grades(actions: list[Any]) -> list[str]:
    return [str(e) for e in evidence(actions)]


PROVEN = "PROVEN(the witness came again)"


# Resuming by overlap.


def test_a_witness_that_the_server_s_store_writes_in_its_own_way_proves_all_the_same(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    call.event("p")
    live = call.progress(1)
    call.event("e1", {**live, "params": {**live["params"], "progress": 1.0}})
    call.resumed()
    assert grades(call.event("e1", {**live, "params": {**live["params"], "total": None}})) == [PROVEN]
    call.resumed()
    assert grades(call.event("e1", {**live, "params": {**live["params"], "total": 1}}))[0].startswith("BROKEN")


def test_a_cut_stream_resumes_before_its_witness_and_is_proven_by_it(call: Peer) -> None:
    actions = call.cut()
    (cut,) = reports(actions, Disconnected)
    assert cut.resumable
    (get,) = of(actions, Get)
    assert get.headers["last-event-id"] == get.last_event_id == "e1"
    assert get.headers["mcp-session-id"] == SESSION
    call.accept()
    assert grades(call.event("e2", call.progress(2))) == [PROVEN]
    assert delivered(call.event("e3", call.progress(3)))
    assert outcomes(call.event("e4", call.result())) == [Outcome.COMPLETED]


def test_the_witness_may_come_anywhere_in_the_replay_and_frees_what_was_held_in_order(call: Peer) -> None:
    call.resumed()
    assert delivered(call.event("x1", call.progress(5)) + call.event("x2", call.progress(6))) == []
    actions = call.event("e2", call.progress(2))
    assert [m["params"]["progress"] for m in delivered(actions)] == [5, 6]


def test_priming_events_empty_objects_and_noise_are_skipped_on_trial(call: Peer) -> None:
    call.resumed()
    noise: list[Any] = [None, {}, b"noise", b"[]"]
    for message in noise:
        assert call.event("q", message) == []
    assert grades(call.event("e2", call.progress(2))) == [PROVEN]


def test_every_resume_is_made_from_the_newest_overlap(call: Peer) -> None:
    call.resumed()
    call.event("e2", call.progress(2))
    call.event("e3", call.progress(3))
    call.cut()
    assert call.asked == "e2"


def test_a_resume_that_brought_nothing_keeps_its_cursor(call: Peer) -> None:
    """Second drop before any new ID."""
    for _ in range(4):
        call.resumed()
        assert call.asked == "e1"
    call.cut()
    call.cut("ConnectError")
    assert call.asked == "e1"


def test_two_streams_keep_their_own_cursors(driver: Driver) -> None:
    one, two = driver.call().stream_up("e1", "e2"), driver.call()
    two.accept()
    two.event("q1", two.progress(1))
    two.event("q2", two.progress(2))
    one.cut()
    two.cut()
    assert (one.asked, two.asked) == ("e1", "q1")


def test_a_server_that_replays_every_stream_and_makes_priming_events_empty_objects(driver: Driver) -> None:
    """The TypeScript reference server."""
    one, two = driver.call().stream_up("a1", "a2"), driver.call()
    two.accept()
    two.event("q", None)
    two.event("b1", two.progress(1))
    one.resumed()
    assert grades(one.event("a2", one.progress(2))) == [PROVEN]
    replay = one.event("q", {}) + one.event("b1", two.progress(1))
    assert delivered(replay) == []
    assert reports(replay, DuplicateDropped)
    assert [m["id"] for m in delivered(one.event("b2", two.result()))] == [two.host_id]
    assert outcomes(one.event("a3", one.result())) == [Outcome.COMPLETED]


def test_events_of_finished_streams_are_still_known_when_replayed(driver: Driver) -> None:
    done = driver.call().stream_up("d1")
    done.event("d2", done.result())
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    assert reports(call.event("d2", done.result()), DuplicateDropped)
    assert grades(call.event("e2", call.progress(2))) == [PROVEN]


@pytest.mark.parametrize("how", ["cut", "idle"])
def test_what_the_own_connection_still_carries_is_not_lost_to_a_faster_replay(driver: Driver, how: str) -> None:
    one, two = driver.call().stream_up("a1", "a2"), driver.call()
    two.accept()
    one.resumed()
    one.event("a2", one.progress(2))
    assert outcomes(one.event("b2", two.result())) == [Outcome.COMPLETED]
    assert delivered(two.event("b1", note("sent before the answer"))) == [note("sent before the answer")]
    assert delivered(two.event("b2", two.result())) == []
    assert not of(two.cut() if how == "cut" else two.idle(), Get)
    assert not two.is_open


def test_an_event_that_a_replay_elsewhere_brought_first_is_still_the_cursor_of_its_own_stream(
    driver: Driver,
) -> None:
    one, two = driver.call().stream_up("a1", "a2"), driver.call()
    one.resumed()
    one.event("a2", one.progress(2))
    one.event("q", {})
    one.event("b1", note("b1"))
    two.accept()
    assert delivered(two.event("q", None) + two.event("b1", note("b1"))) == []
    two.cut()
    assert two.asked == "q"


def test_nor_is_it_stored_as_that_before_the_host_has_taken_it(driver: Driver) -> None:
    one, two = driver.call().stream_up("a1", "a2"), driver.call().stream_up()
    one.resumed()
    one.event("a2", one.progress(2))
    driver.drain(99)
    two.event("b1", two.progress(1))
    one.event("b2", note("b2"))
    one.event("b3", note("b3"))
    for brought_first in ("b2", "b3"):
        assert delivered(two.event(brought_first, note(brought_first))) == []
    for taken in ("b1", "b2"):
        of_two = [m for m in records(driver.drain(1), CursorMoved) if m.stream == str(two.stream)]
        assert {m.rows[-1].event_id for m in of_two} <= {"b1"}, taken
    driver.drain(1)
    two.event("b4", two.progress(2))
    (moved,) = records(driver.drain(1), CursorMoved)
    assert [row.event_id for row in moved.rows][-2:] == ["b3", "b4"]
    one.event("b5", note("b5"))
    driver.drain(1)
    two.event("b5", note("b5"))
    two.event("b6", [two.progress(3), two.progress(4)])
    (moved,) = records(driver.drain(1), CursorMoved)
    assert moved.rows[-1].event_id == "b5", "it was taken before it came here"


def test_what_was_held_goes_before_the_witness_so_that_the_next_overlap_is_in_the_server_s_order(
    call: Peer,
) -> None:
    """The server dropped d between replay and live tail, sent e3, and replays d before e3."""
    call.event("e3", call.progress(3))
    call.event(None, call.progress(4))
    call.resumed()
    call.event("d", note("dropped"))
    assert delivered(call.event("e3", call.progress(3))) == [note("dropped")]
    assert delivered(call.event(None, call.progress(4))) == []
    call.resumed()
    assert call.asked == "d"
    assert grades(call.event("e3", call.progress(3))) == [PROVEN]


def test_a_witness_that_the_held_events_pushed_out_of_the_trail_is_no_witness_any_more() -> None:
    driver = Driver(GuardPolicy(trail_size=2)).opened()
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    for name in ("x1", "x2", "x3"):
        call.event(name, note(name))
    assert len(delivered(call.event("e2", call.progress(2)))) == 3
    call.cut()
    assert call.asked == "x2"


def test_the_trails_of_finished_streams_are_bounded(driver: Driver) -> None:
    for number in range(70):
        done = driver.call()
        done.accept()
        done.event(f"d{number}", done.result())
    streams = driver.machine._streams
    assert len(streams._finished) == 64
    assert len(streams.index) == 64


# Own IDs and inherited ones.


def test_an_event_without_an_id_is_delivered_and_moves_no_cursor(call: Peer) -> None:
    assert delivered(call.event(None, call.progress(3)))
    call.cut()
    assert call.asked == "e1"


def test_an_event_without_an_id_that_comes_again_behind_the_witness_is_a_duplicate(call: Peer) -> None:
    call.event(None, call.progress(3))
    call.resumed()
    call.event("e2", call.progress(2))
    assert delivered(call.event(None, call.progress(3))) == []
    assert delivered(call.event(None, call.progress(3)))


@pytest.mark.parametrize("between", [None, {}])
def test_it_is_one_too_if_something_that_carries_nothing_came_between(call: Peer, between: Any) -> None:
    call.event(None, call.progress(3))
    call.resumed()
    call.event("e2", call.progress(2))
    call.event(None, between, retry=50)
    assert delivered(call.event(None, call.progress(3))) == []


def test_an_id_that_two_messages_have_identifies_nothing_and_loses_no_message(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    for step in (1, 2, 3):
        assert delivered(call.event("same", call.progress(step)))
    (cut,) = reports(call.cut(), Disconnected)
    assert not cut.resumable
    assert not call.is_open


@pytest.mark.parametrize("nothing", [None, {}, b"null", b"2026-11-30"])
@pytest.mark.parametrize("event_id", ["p", "e1", "e2"])
def test_what_carries_no_message_takes_no_cursor_by_an_id_that_was_there(
    call: Peer, event_id: str, nothing: Any
) -> None:
    """A heartbeat, or the `retry:` of a server that polls, on the first connection and on the next."""
    for witness in (2, 3):
        for _ in range(257):
            assert not delivered(call.event(event_id, nothing, retry=20))
        call.resumed()
        assert call.asked == f"e{witness - 1}"
        assert grades(call.event(f"e{witness}", call.progress(witness))) == [PROVEN]
        assert delivered(call.event(f"e{witness + 1}", call.progress(witness + 1)))


def test_an_answer_that_cannot_be_read_is_one_also_under_an_id_that_was_there(driver: Driver, call: Peer) -> None:
    assert reports(call.event("e1", {"id": call.stream, "result": "text"}), UnreadableDropped)
    assert in_doubt(driver.elapse(TimerKind.ANSWER))


def test_the_session_id_as_event_id_identifies_nothing(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    assert delivered(call.event(SESSION, call.progress(1)))
    actions = call.cut()
    assert in_doubt(actions)
    assert not of(actions, Get)


def test_a_message_under_the_id_of_a_priming_event_is_not_dropped(driver: Driver) -> None:
    call = driver.call().stream_up()
    call.resumed()
    assert outcomes(call.event("p", call.result())) == [Outcome.COMPLETED]


def test_a_call_that_is_primed_with_the_id_of_its_first_message_can_be_resumed_and_proven(driver: Driver) -> None:
    """As session managers for the Rust SDK do, which replay inclusively."""
    call = driver.call().stream_up()
    assert delivered(call.event("p", call.progress(1)))
    call.resumed()
    assert call.asked == "p"
    assert grades(call.event("p", call.progress(1))) == [PROVEN]
    assert delivered(call.event("q", call.progress(2)))
    call.resumed()
    assert call.asked == "p"
    call.event("p", call.progress(1))
    assert grades(call.event("q", call.progress(2))) == [PROVEN]
    assert outcomes(call.event("r", call.result()) + call.end()) == [Outcome.COMPLETED]


def test_where_the_server_goes_on_behind_it_nothing_proves_that_but_nothing_is_wrong(driver: Driver) -> None:
    call = driver.call().stream_up()
    call.event("p", call.progress(1))
    call.resumed()
    actions = call.event("q", call.progress(2))
    assert [e.reason for e in evidence(actions)] == ["no witness"]
    assert delivered(actions)


def test_a_second_message_under_it_says_that_the_log_is_another(driver: Driver) -> None:
    call = driver.call().stream_up()
    call.event("p", call.progress(1))
    call.resumed()
    assert reports(call.event("p", call.progress(2)), Discontinuity)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_with_one_id_on_every_event_the_answer_is_found_all_the_same(driver: Driver, is_resumed: bool) -> None:
    call = driver.call().stream_up()
    call.event("p", call.progress(1))
    if is_resumed:
        call.resumed()
    assert outcomes(call.event("p", call.result())) == [Outcome.COMPLETED]


def test_what_is_not_json_is_reported_and_not_delivered(call: Peer) -> None:
    actions = call.event("e3", b"{malformed")
    assert reports(actions, UnreadableDropped)
    assert delivered(actions) == []
    assert outcomes(call.event("e4", call.result())) == [Outcome.COMPLETED]


def test_an_event_of_another_name_is_not_delivered_but_moves_the_cursor(call: Peer) -> None:
    actions = call.event("e3", note("x"), name="ping")
    assert delivered(actions) == []
    assert reports(actions, UnreadableDropped), "it is a message, and nobody hears it"
    assert delivered(call.event("e4", b"x", name="ping")) == []
    call.cut()
    assert call.asked == "e2"


def test_an_empty_id_field_takes_the_cursor_away(call: Peer) -> None:
    call.driver.drain(99)
    assert records(call.event(None, None, resets_id=True), CursorDropped)
    assert in_doubt(call.cut())


def test_a_stream_without_any_id_cannot_be_resumed(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    call.event(None, call.progress(1))
    actions = call.cut()
    assert not reports(actions, Disconnected)[0].resumable
    assert in_doubt(actions)


def test_a_call_cut_before_any_byte_of_its_answer_is_in_doubt(driver: Driver) -> None:
    assert in_doubt(driver.call().cut())


# Contradictions.


def test_a_server_that_says_resumed_true_still_owes_the_witness(call: Peer) -> None:
    call.cut()
    assert grades(call.accept(resumed=True)) == []
    assert grades(call.event(None, {"resumed": True}, name="resumed")) == []
    assert grades(call.event("e2", call.progress(2))) == [PROVEN]


@pytest.mark.parametrize("how", ["header", "event"])
def test_where_no_witness_is_due_resumed_true_makes_it_consistent(driver: Driver, how: str) -> None:
    call = driver.call().stream_up()
    call.cut()
    actions = call.accept(resumed=True if how == "header" else None)
    if how == "event":
        actions = call.event(None, {"resumed": True}, name="resumed")
    assert grades(actions) == ["CONSISTENT(the server says resumed: true)"]


@pytest.mark.parametrize("body", [None, b"x", [], {}, {"resumed": "yes"}])
def test_a_resumed_event_that_says_nothing_says_nothing(call: Peer, body: Any) -> None:
    call.resumed()
    assert call.event(None, body, name="resumed") == []


def test_a_resumed_event_outside_a_trial_says_nothing(call: Peer) -> None:
    assert call.event(None, {"resumed": False}, name="resumed") == []


def test_a_declared_contiguous_scheme_is_broken_by_a_hole() -> None:
    driver = Driver(GuardPolicy(id_scheme="contiguous")).opened()
    call = driver.call()
    call.accept()
    call.event("1", call.progress(1))
    actions = call.event("3", call.progress(3))
    assert reports(actions, Discontinuity)
    assert not reports(actions, Resumed), "this stream was never resumed"
    assert in_doubt(actions)


def test_the_answer_that_contradicts_is_still_the_answer() -> None:
    driver = Driver(GuardPolicy(id_scheme="contiguous")).opened()
    call = driver.call()
    call.accept()
    call.event("1", call.progress(1))
    actions = call.event("3", call.result())
    assert reports(actions, Discontinuity)
    assert outcomes(actions) == [Outcome.COMPLETED]


@pytest.mark.parametrize("how", ["clean end", "silence", "four cuts", "bound", "bytes"])
def test_unknown_events_without_the_witness_break_the_stream(how: str) -> None:
    policy = GuardPolicy(max_held=2) if how == "bound" else GuardPolicy(max_event_size=100)
    driver = Driver(policy).opened()
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    actions = call.event("x1", call.progress(7))
    if how == "clean end":
        actions = call.end()
    elif how == "silence":
        actions = driver.elapse(TimerKind.WITNESS)
    elif how == "bound":
        call.event("x2", call.progress(8))
        actions = call.event("x3", call.progress(9))
    elif how == "bytes":
        actions = call.event("x2", note("x" * 200))
    else:
        for _ in range(3):
            call.resumed()
            call.event("x1", call.progress(7))
        actions = call.cut()
    assert grades(actions)[0].startswith("BROKEN")
    assert reports(actions, Discontinuity)
    assert in_doubt(actions)
    assert delivered(actions)[0]["id"] == call.host_id, "nothing held is delivered"


def test_an_answer_held_for_another_call_settles_that_one(driver: Driver) -> None:
    call, other = driver.call().stream_up("e1", "e2"), driver.call()
    call.resumed()
    call.event("x1", other.result())
    actions = call.cut()
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert call.asked == "e1", "and this one goes on"


def test_an_answer_under_another_session_id_to_our_own_post_counts_but_the_session_is_lost(
    driver: Driver,
) -> None:
    call = driver.call()
    call.accept(session_id="session-two")
    actions = call.event("1", call.result())
    assert reports(actions, Discontinuity)
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_a_refusal_under_another_session_id_breaks_the_resume(call: Peer) -> None:
    call.cut()
    assert in_doubt(call.refuse(400, session_id="session-two"))


@pytest.mark.parametrize("how", ["ended", "silent"])
@pytest.mark.parametrize("before", ["progress", "cursor", "resumed: true", "nothing"])
def test_behind_ids_that_started_over_an_answer_is_still_found_and_nothing_else_is_believed(
    driver: Driver, before: str, how: str
) -> None:
    """Random decimal numbers of an honest server go down, too."""
    call = driver.call()
    call.accept()
    call.event("4821", call.progress(1))
    call.resumed()
    actions: list[Any] = []
    if before != "nothing":
        actions += call.event("1", call.progress(7))
    if before == "cursor":
        actions += call.event("4821", call.progress(1))
    elif before == "resumed: true":
        actions += call.event(None, {"resumed": True}, name="resumed")
    actions += call.event("5001" if before == "progress" else "2", call.result())
    assert not evidence(actions)
    assert not delivered(actions)
    actions = call.end() if how == "ended" else driver.elapse(TimerKind.WITNESS)
    assert grades(actions) == ["BROKEN(the event IDs started over)"]
    assert reports(actions, Discontinuity)
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert [m["id"] for m in delivered(actions)] == [call.host_id]


@pytest.mark.parametrize("how", ["ended", "silent", "cut for ever"])
def test_without_an_answer_ids_that_started_over_leave_the_call_in_doubt(driver: Driver, how: str) -> None:
    call = driver.call()
    call.accept()
    call.event("9", call.progress(1))
    for _ in range(4 if how == "cut for ever" else 1):
        call.resumed()
        call.event("1", call.progress(7))
    actions = driver.elapse(TimerKind.WITNESS) if how == "silent" else call.cut(clean=how == "ended")
    assert grades(actions) == ["BROKEN(the event IDs started over)"]
    assert in_doubt(actions)


@pytest.mark.parametrize("scheme", ["opaque", "contiguous"])
def test_the_message_that_breaks_a_stream_may_be_its_answer(scheme: Any) -> None:
    """It is stronger than any grade."""
    driver = Driver(GuardPolicy(id_scheme=scheme)).opened()
    call = driver.call()
    call.accept()
    call.event("1", call.progress(1))
    call.resumed()
    actions = call.event("1" if scheme == "opaque" else "7", call.result())
    assert grades(actions)[0].startswith("BROKEN")
    assert outcomes(actions) == [Outcome.COMPLETED]


# Weaker evidence.


def test_events_beyond_an_exact_cursor_are_delivered_unverified(driver: Driver) -> None:
    call = driver.call().stream_up()
    call.resumed()
    actions = call.event("e1", call.progress(1))
    assert grades(actions) == ["UNVERIFIED(no witness)"]
    assert delivered(actions)


def test_a_foreign_message_on_an_unverified_stream_breaks_it(driver: Driver) -> None:
    call = driver.call().stream_up()
    call.resumed()
    driver.elapse(TimerKind.WITNESS)
    actions = call.event("e1", {"jsonrpc": "2.0", "id": 4711, "result": {}})
    assert reports(actions, OrphanDropped)
    assert grades(actions)[0].startswith("BROKEN")
    assert in_doubt(actions)


def test_a_foreign_message_on_a_proven_stream_is_only_reported(call: Peer) -> None:
    call.resumed()
    call.event("e2", call.progress(2))
    actions = call.event("e3", {"jsonrpc": "2.0", "id": 4711, "result": {}})
    assert reports(actions, OrphanDropped)
    assert call.is_open


def test_after_a_missing_witness_the_answer_still_counts_and_the_loss_is_reported_before_it(call: Peer) -> None:
    call.resumed()
    call.driver.elapse(TimerKind.WITNESS)
    call.accept()
    actions = call.event("x9", call.result())
    assert grades(actions) == ["UNVERIFIED(witness missing)"]
    assert reports(actions, Discontinuity)
    assert outcomes(actions) == [Outcome.COMPLETED]


@pytest.mark.parametrize("end", ["clean end", "silence", "cut for ever", "bound"])
def test_after_a_missing_witness_anything_else_is_held_and_leaves_the_call_in_doubt(end: str) -> None:
    """While its answer may come on this very connection."""
    driver = Driver(GuardPolicy(max_held=4)).opened()
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    driver.elapse(TimerKind.WITNESS)
    call.accept()
    actions = call.event("x8", call.progress(8)) + call.event(None, note("foreign"))
    assert not evidence(actions)
    assert not delivered(actions)
    if end == "bound":
        actions = [a for n in range(3) for a in call.event(f"y{n}", note("foreign"))]
    elif end == "cut for ever":
        for _ in range(3):
            assert not in_doubt(call.cut())
            assert call.asked == "e2"
            call.accept()
            call.event("x8", call.progress(8))
        actions = call.cut()
    else:
        actions = call.end() if end == "clean end" else driver.elapse(TimerKind.WITNESS)
    assert grades(actions) == [
        "BROKEN(no witness among 5 events)" if end == "bound" else "UNVERIFIED(witness missing)"
    ]
    (loss,) = reports(actions, Discontinuity)
    assert loss.first_seen is not None
    assert in_doubt(actions)
    assert [m["id"] for m in delivered(actions)] == [call.host_id], "nothing held is delivered"


def test_after_a_missing_witness_the_answer_is_waited_for_from_the_last_event_on(call: Peer) -> None:
    call.resumed()
    call.driver.elapse(TimerKind.WITNESS)
    call.accept()
    for n in range(3):
        call.driver.now += 4
        assert not in_doubt(call.event(f"x{n}", call.progress(n + 5)))
        assert call.driver.timers[_witness_timer(call)] == call.driver.now + 5
    call.event("p9")
    assert call.driver.timers[_witness_timer(call)] == call.driver.now + 5
    actions = call.event("x9", call.result())
    assert grades(actions) == ["UNVERIFIED(witness missing)"]
    assert reports(actions, Discontinuity)
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert not call.is_open


def test_but_not_for_ever(call: Peer) -> None:
    """A server that goes on, and never comes to the answer: the host is told that something is lost."""
    call.resumed()
    call.driver.elapse(TimerKind.WITNESS)
    call.begin()
    call.accept()
    for n in range(15):
        call.driver.now += 4.01
        assert not in_doubt(call.event(f"x{n}", call.progress(n + 5)))
    until = call.driver.timers[_witness_timer(call)]
    assert not in_doubt(call.event("x99", call.progress(99)))
    assert call.driver.timers[_witness_timer(call)] == until
    actions = call.driver.elapse(TimerKind.WITNESS)
    assert reports(actions, Discontinuity)
    assert in_doubt(actions)


def _witness_timer(call: Peer) -> Timer:
    return Timer(TimerKind.WITNESS, call.stream, call.connection)


def test_what_is_held_after_silence_is_placed_if_the_server_proves_itself_after_all(call: Peer) -> None:
    call.resumed()
    call.driver.elapse(TimerKind.WITNESS)
    call.accept()
    call.event("x8", call.progress(8))
    actions = call.event("e2", call.progress(2))
    assert grades(actions) == ["PROVEN(the witness came again)"]
    assert [m["params"]["progress"] for m in delivered(actions)] == [8]


def test_an_answer_held_after_silence_settles_another_call(driver: Driver) -> None:
    call, other = driver.call().stream_up("e1", "e2"), driver.call()
    call.resumed()
    driver.elapse(TimerKind.WITNESS)
    call.accept()
    call.event("x1", other.result())
    actions = call.end()
    assert sorted(o.value for o in outcomes(actions)) == ["completed", "in_doubt"]


def test_a_call_that_is_cancelled_meanwhile_has_nothing_held_for_it(call: Peer) -> None:
    call.resumed()
    call.driver.elapse(TimerKind.WITNESS)
    call.accept()
    call.driver.cancel(call)
    assert grades(call.event("x8", call.progress(8))) == ["UNVERIFIED(witness missing)"]
    assert not call.is_open


# An overlap that is refused by an empty 200: so the Python SDKs and FastMCP say that they do not know an ID.


@pytest.fixture
def refused(call: Peer) -> Peer:
    call.resumed()
    assert not evidence(call.end())
    assert call.asked == "e2"
    call.accept()
    return call


def test_a_log_that_was_trimmed_before_the_cursor_is_gone_on_from_whatever_status_it_says_that_by(
    refused: Peer,
) -> None:
    actions = refused.event("x3", refused.progress(3)) + refused.event("x4", refused.progress(4))
    assert grades(actions) == ["UNVERIFIED(no witness)"]
    assert not reports(actions, Discontinuity)
    assert [m["params"]["progress"] for m in delivered(actions)] == [3, 4]
    assert outcomes(refused.event("x5", refused.result())) == [Outcome.COMPLETED]


def test_such_a_call_waits_on_though_nothing_comes(refused: Peer) -> None:
    actions = refused.driver.elapse(TimerKind.WITNESS)
    assert grades(actions) == ["UNVERIFIED(no witness)"]
    assert not in_doubt(actions)
    refused.driver.elapse(TimerKind.RECHECK)
    assert refused.asked == "e1", "who ended at once may have been about to go: the overlap is asked for again"


def test_refusals_by_an_empty_200_are_no_resumes_in_vain(refused: Peer) -> None:
    for _ in range(9):
        refused.driver.elapse(TimerKind.WITNESS)
        refused.driver.elapse(TimerKind.RECHECK)
        refused.accept()
        assert not in_doubt(refused.end(after=30))
        refused.accept()
    assert outcomes(refused.event("x5", refused.result())) == [Outcome.COMPLETED]


def test_an_exact_cursor_that_is_refused_so_too_is_a_missing_witness(refused: Peer) -> None:
    actions = refused.end()
    assert grades(actions) == ["UNVERIFIED(witness missing)"]
    assert reports(actions, Discontinuity)
    assert in_doubt(actions)


def test_an_exact_cursor_under_which_the_server_says_anything_is_polled(refused: Peer) -> None:
    refused.event("p9")
    assert not evidence(refused.end())
    assert refused.asked == "e2"
    refused.accept()
    assert outcomes(refused.event("x5", refused.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("said", ["priming", "duplicate", "not JSON"])
def test_an_overlap_that_says_anything_but_the_witness_is_no_refusal(call: Peer, said: str) -> None:
    call.resumed()
    call.event(*{"priming": ("p9",), "duplicate": ("e1", call.progress(1)), "not JSON": ("x", b"x")}[said])
    call.end()
    assert call.asked == "e2"
    call.accept()
    assert not delivered(call.event("x3", call.progress(3)))
    assert in_doubt(call.driver.elapse(TimerKind.WITNESS))


def test_a_cut_is_no_refusal(call: Peer) -> None:
    call.resumed()
    call.cut()
    assert call.asked == "e1"


def test_a_foreign_answer_behind_a_refused_overlap_breaks_the_stream(refused: Peer) -> None:
    refused.event("x3", refused.progress(3))
    actions = refused.event("x4", {"jsonrpc": "2.0", "id": 4711, "result": {}})
    assert grades(actions)[0].startswith("BROKEN")
    assert in_doubt(actions)


def test_heartbeats_that_the_log_does_not_hold_are_no_anchor(driver: Driver) -> None:
    call = driver.call().stream_up("e1")
    call.event("hb1")
    call.event("e2", call.progress(2))
    call.event("hb2")
    call.resumed()
    assert call.asked == "e1"
    assert grades(call.event("e2", call.progress(2))) == ["PROVEN(the witness came again)"]


def test_by_choice_a_call_waits_on_without_its_witness() -> None:
    driver = Driver(GuardPolicy(on_unverified="continue")).opened()
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    driver.elapse(TimerKind.WITNESS)
    call.accept()
    actions = call.event("x9", call.progress(9))
    assert reports(actions, Discontinuity)
    assert not in_doubt(actions)
    assert delivered(actions)
    call.cut()
    assert call.asked == "e2", "and the next resume overlaps again"


def test_a_clean_end_without_the_witness_is_asked_once_more_with_the_exact_cursor(call: Peer) -> None:
    call.resumed()
    call.end()
    assert call.asked == "e2"
    call.accept()
    actions = call.end()
    assert grades(actions) == ["UNVERIFIED(witness missing)"]
    assert in_doubt(actions)


def test_a_clean_end_where_no_witness_is_due_is_polling(driver: Driver) -> None:
    call = driver.call().stream_up()
    for _ in range(6):
        call.resumed()
        assert not in_doubt(call.end())
        assert call.asked == "p"


def test_an_exact_resume_that_is_cut_is_asked_again(call: Peer) -> None:
    call.resumed()
    call.driver.elapse(TimerKind.WITNESS)
    call.accept()
    call.cut()
    assert call.asked == "e2"


# Refusals of the GET.


@pytest.mark.parametrize("status", [400, 404, 405, 406, 422, 501])
def test_an_overlap_that_is_refused_is_asked_once_with_the_exact_cursor(call: Peer, status: int) -> None:
    call.cut()
    actions = call.refuse(status)
    if status == 501:
        assert call.asked == "e1", "a server error is tried again as it is"
        return
    assert not in_doubt(actions)
    assert call.asked == "e2"
    assert in_doubt(call.refuse(status))


@pytest.mark.parametrize(("status", "broken"), [(400, True), (404, True), (405, False), (406, False)])
def test_a_refusal_of_the_exact_cursor_too_breaks_the_stream_unless_there_is_no_resuming_at_all(
    call: Peer, status: int, broken: bool
) -> None:
    call.cut()
    call.refuse(400)
    assert bool(grades(call.refuse(status))) is broken


def test_an_exact_cursor_that_is_accepted_after_a_refusal_is_at_most_consistent(call: Peer) -> None:
    call.cut()
    call.refuse(400)
    call.accept()
    assert grades(call.event("e3", call.progress(3))) == ["UNVERIFIED(no witness)"]
    call.cut()
    assert call.asked == "e3", "this server refuses older IDs: it is not asked again"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (410, None),
        (409, {"error": {"data": {"resume_gap": True}}}),
        (409, [{"x": "resume_gap"}]),
        (409, "resume_gap"),
    ],
)
def test_a_server_that_reports_a_gap_is_believed_once_it_says_so_of_the_cursor_itself(
    call: Peer, status: int, body: Any
) -> None:
    call.cut()
    (get,) = of(call.refuse(status, body), Get)
    assert get.last_event_id == "e2"
    actions = call.refuse(status, body)
    assert grades(actions)[0].startswith("BROKEN")
    assert in_doubt(actions)


def test_a_log_that_was_trimmed_up_to_the_cursor_goes_on_from_there_and_proves_nothing(call: Peer) -> None:
    call.cut()
    call.refuse(409, "resume_gap")
    call.accept()
    actions = call.event("e3", call.progress(3))
    assert grades(actions) == ["UNVERIFIED(no witness)"]
    assert not reports(actions, Discontinuity)
    assert delivered(actions)
    call.event("e4", call.result())
    assert outcomes(call.driver.log)[-1] in (Outcome.COMPLETED, Outcome.RECOVERED)


@pytest.mark.parametrize("by", ["header", "event"])
def test_a_server_that_says_resumed_false_is_believed_once_it_says_so_of_the_cursor_itself(
    call: Peer, by: str
) -> None:
    call.cut()
    for asked in ("e1", "e2"):
        assert call.asked == asked
        if by == "header":
            actions = call.accept(resumed=False)
        else:
            call.accept()
            actions = call.event(None, {"resumed": False}, name="resumed")
    assert grades(actions)[-1].startswith("BROKEN")
    assert in_doubt(actions)


def test_with_events_held_a_gap_is_a_gap(call: Peer) -> None:
    call.cut()
    call.accept()
    call.event("e7", call.progress(7))
    actions = call.event(None, {"resumed": False}, name="resumed")
    assert grades(actions)[-1].startswith("BROKEN")


@pytest.mark.parametrize("status", [401, 403, 408, 409, 425, 429, 500, 502, 503, 302])
def test_a_refusal_that_may_pass_is_waited_out_within_the_budget(status: int) -> None:
    driver = Driver(GuardPolicy(max_attempts=3)).opened()
    call = driver.call().stream_up("e1", "e2")
    call.cut()
    for attempt in (1, 2, 3):
        actions = call.refuse(status, {"why": ["busy"]})
        (get,) = of(actions, Get)
        assert get.last_event_id == "e1"
        assert get.delay.attempt == attempt
        assert of(actions, Hangup), "the old connection is closed fully"
        assert not in_doubt(actions)
    assert in_doubt(call.refuse(status))


def test_retry_after_is_kept(call: Peer) -> None:
    call.cut()
    (get,) = of(call.refuse(503, retry_after=17.5), Get)
    assert get.delay.at_least == 17.5


def test_retry_is_kept_on_every_reconnect(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    call.event("p", None, retry=700)
    (get,) = of(call.end(), Get)
    assert (get.delay.retry_ms, get.delay.attempt) == (700, 0)


def test_three_server_errors_break_the_stream_only_if_a_ping_is_answered(call: Peer) -> None:
    call.cut()
    call.refuse(500)
    assert not of(call.refuse(500), Post)
    (ping,) = of(call.refuse(500), Post)
    assert ping.message["method"] == "ping"
    peer = call.driver.peer(ping.stream)
    peer.accept(events=False)
    actions = peer.body(peer.result({}))
    assert grades(actions)[0].startswith("BROKEN")
    assert in_doubt(actions)


@pytest.mark.parametrize("how", ["cut", "refused", "error", "never sent"])
def test_server_errors_while_no_ping_is_answered_are_an_outage(call: Peer, how: str) -> None:
    call.cut()
    for _ in range(2):
        call.refuse(500)
    (ping,) = of(call.refuse(500), Post)
    peer = call.driver.peer(ping.stream)
    if how == "never sent":
        for _ in range(11):
            actions = peer.not_written()
    else:
        actions = peer.cut() if how == "cut" else peer.refuse(503 if how == "refused" else 500)
    assert not in_doubt(actions)
    call.accept()
    assert grades(call.event("e2", call.progress(2))) == [PROVEN]


def test_a_ping_that_says_the_session_is_gone_loses_it(call: Peer) -> None:
    (ping,) = of(call.driver.call().idle(), Post)
    call.driver.peer(ping.stream).refuse(404)
    call.driver.sent("tools/list").refuse(404)
    assert not of(call.driver.call().actions, Post)


def test_a_server_without_ping_that_says_so_by_404_has_not_lost_the_session(call: Peer) -> None:
    driver = call.driver
    driver.call().idle()
    driver.sent("ping").refuse(404)
    assert not reports(driver.sent("tools/list").answer({"tools": []}), SessionLost)
    driver.call().idle()
    assert driver.sent("tools/list").is_open, "it is asked for them from then on"


def test_one_ping_at_a_time(driver: Driver) -> None:
    one, two = driver.call(), driver.call()
    assert of(one.idle(), Post)
    assert not of(two.idle(), Post)


@pytest.mark.parametrize("body", [None, UNREADABLE, {"x": 1}, {"jsonrpc": "2.0", "id": 10**6, "result": {}}])
def test_a_2xx_without_events_is_no_resume_and_final(call: Peer, body: Any) -> None:
    """Asked once more with the exact cursor, like any other refusal for good."""
    call.cut()
    assert call.accept(events=False, status=204) == []
    (get,) = of(call.body(body), Get)
    assert get.last_event_id == "e2"
    call.accept(events=False, status=204)
    actions = call.body(body)
    assert in_doubt(actions)
    assert "HTTP 204" in grades(actions)[0]
    assert not call.is_open


def test_a_resume_answered_by_the_answer_itself_settles_the_call(call: Peer) -> None:
    """Servers may switch to JSON once the result is ready."""
    call.cut()
    call.accept(events=False)
    actions = call.body(call.result())
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert not call.is_open


@pytest.mark.parametrize("status", [400, 404, 410, 503])
def test_a_resume_that_is_refused_with_the_result_itself_is_answered_by_it(call: Peer, status: int) -> None:
    call.cut()
    actions = call.refuse(status, call.result())
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert not call.is_open


def test_a_resume_answered_by_the_answer_to_another_call_settles_that_one(driver: Driver, call: Peer) -> None:
    other = driver.call()
    call.cut()
    call.accept(events=False)
    actions = call.body(other.result())
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert of(actions, Get), "its own is still to come"


# Silence, idleness, and budgets.


def test_a_connection_idle_with_a_cursor_counts_as_cut(call: Peer) -> None:
    actions = call.idle()
    assert of(actions, Hangup)
    assert of(actions, Get)
    assert reports(actions, Disconnected)[0].reason == "no byte for max_idle"


def test_a_connection_idle_without_a_cursor_is_only_asked_about(driver: Driver) -> None:
    call = driver.call()
    (ping,) = of(call.idle(), Post)
    assert call.is_open
    peer = driver.peer(ping.stream)
    peer.accept(events=False)
    peer.body(peer.result({}))
    assert of(call.idle(), Post), "and once more at the next silence"


def test_a_stateless_stream_is_never_pinged() -> None:
    driver = Driver()
    call = driver.request("tools/call", {"name": "x"}, mcp_protocol_version="2026-07-28")
    assert call.idle() == []


def test_a_notification_s_post_that_is_never_answered_is_given_up(driver: Driver) -> None:
    """Or such connections would pile up."""
    peer = driver.peer(of(driver.notify("notifications/x"), Post)[0].stream)
    actions = peer.idle()
    assert reports(actions, NotificationLost) == [NotificationLost("notifications/x", "no answer for max_idle")]
    assert not peer.is_open
    assert peer.accept(status=202, events=False) == [], "its answer comes too late"


def test_an_initialized_that_is_never_answered_holds_up_no_request() -> None:
    driver = Driver()
    driver.initialize()
    peer = driver.peer(of(driver.notify("notifications/initialized"), Post)[0].stream)
    assert not of(driver.call().actions, Post)
    actions = driver.elapse(TimerKind.CONFIRM)
    assert [p.message["method"] for p in of(actions, Post)] == ["tools/call"]
    old = peer.stale()
    assert [p.message["method"] for p in of(peer.idle(), Post)] == ["notifications/initialized"]
    assert not old.is_open


def test_resumes_that_end_without_anything_new_are_given_up_after_a_minute_and_five_in_a_row(
    driver: Driver,
) -> None:
    call = driver.call().stream_up()
    call.end()
    ends = 0
    while call.is_open and ends < 99:
        call.accept()
        actions = call.end(after=4.9)
        ends += 1
    assert in_doubt(actions)
    assert ends == 14, "60 s after the first fruitless resume"
    assert [g.delay.attempt for g in of(driver.log, Get)[-3:]] == [11, 12, 13]


@pytest.mark.parametrize(
    ("lives", "retry"), [(5.0, None), (60.0, None), (10.0, 2000)], ids=["5 s", "a proxy's 60 s", "polled"]
)
@pytest.mark.parametrize("clean", [True, False])
def test_one_that_was_held_open_says_nothing_against_the_server(
    driver: Driver, lives: float, retry: int | None, clean: bool
) -> None:
    """A tool may be silent for as long as it runs: the call waits on, to its own deadline."""
    call = driver.call()
    call.accept()
    call.event("p", None, retry=retry)
    call.cut()
    for _ in range(30):
        call.accept()
        actions = call.cut(clean=clean, after=lives)
        assert [get.delay.attempt for get in of(actions, Get)] == [0], "there is no storm to slow down"
    call.accept()
    assert outcomes(call.event("e1", call.result())) == [Outcome.COMPLETED]


def test_it_breaks_a_row_of_those_that_do(driver: Driver) -> None:
    call = driver.call().stream_up()
    call.cut()
    for _ in range(20):
        for status in (502, 500, 500):
            call.refuse(status)
        for _ in range(4):
            call.accept()
            call.cut()
        call.accept()
        assert not in_doubt(call.cut(after=60))


def test_a_2xx_without_events_is_none_however_long_it_takes(driver: Driver) -> None:
    call = driver.call().stream_up()
    call.cut()
    for _ in range(5):
        call.accept(events=False)
        actions = call.cut(after=20)
    assert in_doubt(actions)


def test_a_resume_in_which_the_witness_came_never_uses_up_the_budget(call: Peer) -> None:
    for _ in range(30):
        call.cut(after=30)
        call.accept()
        call.event("e2", call.progress(2))
    assert outcomes(call.event("e3", call.result())) == [Outcome.COMPLETED]


def test_a_409_after_our_own_recheck_is_waited_out_however_long_it_takes(driver: Driver, call: Peer) -> None:
    """We hung up a good connection; a proxy keeps that until the server has something to write."""
    call.resumed()
    call.event("e2", call.progress(2))
    driver.elapse(TimerKind.RECHECK, call.stream)
    delays = [of(call.refuse(409), Get)[0].delay.attempt for _ in range(30)]
    assert delays == list(range(1, 31)), "ever more slowly"
    call.accept()
    call.event("e2", call.progress(2))
    assert outcomes(call.event("e3", call.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("status", [409, 502])
def test_any_other_refusal_uses_up_the_attempts(driver: Driver, call: Peer, status: int) -> None:
    call.resumed()
    call.event("e2", call.progress(2))
    if status == 502:
        driver.elapse(TimerKind.RECHECK, call.stream)
    else:
        call.cut()
    refusals = 0
    while call.is_open and refusals < 99:
        call.refuse(status)
        refusals += 1
    assert in_doubt(driver.log)
    assert refusals == 11


def test_a_fresh_id_fills_the_budget_but_makes_no_storm(driver: Driver) -> None:
    """`retry: 0`, a new priming ID on every connection, and its end: for ever."""
    call = driver.call()
    call.accept()
    call.event("p", None, retry=0)
    call.end(after=4)
    delays = []
    for number in range(12):
        call.accept()
        call.event(f"q{number}", None)
        actions = call.end(after=4)
        assert not in_doubt(actions)
        delays.append(of(actions, Get)[0].delay.attempt)
    assert delays == list(range(1, 13))


@pytest.mark.parametrize(("retry", "paced"), [(1, False), (9, False), (10, True), (50, True)])
def test_a_server_that_names_a_wait_is_polled_at_its_own_pace(driver: Driver, retry: int, paced: bool) -> None:
    call = driver.call()
    call.accept()
    call.event("p", None, retry=retry)
    call.end()
    attempts = []
    for number in range(5):
        call.accept()
        call.event(f"q{number}", None)
        attempts.append(of(call.end(), Get)[0].delay.attempt)
    assert attempts == ([0] * 5 if paced else [1, 2, 3, 4, 5])


@pytest.mark.parametrize("retry", [None, 0, 50])
def test_resumes_that_bring_a_message_without_an_id_each_time_end(driver: Driver, retry: int | None) -> None:
    """No cursor moves, so that each resume asks for the same again: no storm, and not for ever."""
    call = driver.call()
    call.accept()
    call.event("p1", None, retry=retry)
    call.end()
    attempts = []
    while call.is_open and len(attempts) < 99:
        call.accept()
        call.event(None, note("the same each time"))
        actions = call.end(after=4)
        attempts += [get.delay.attempt for get in of(actions, Get)]
    assert in_doubt(actions)
    assert attempts == list(range(1, 16)), "it ends settle_after after the first, with a growing delay until then"


def test_a_new_id_among_them_is_progress(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    call.event("p1", None)
    call.end()
    for number in range(20):
        call.accept()
        call.event(None, note("news"))
        call.event(f"q{number}", None)
        assert not in_doubt(call.end(after=11))


def test_connections_that_are_never_answered_use_up_the_attempts() -> None:
    driver = Driver(GuardPolicy(max_attempts=2)).opened()
    call = driver.call().stream_up("e1", "e2")
    assert of(call.cut(), Get)[0].delay.attempt == 0
    assert of(call.cut("ConnectError"), Get)[0].delay.attempt == 1
    assert of(call.cut("ConnectError"), Get)[0].delay.attempt == 2
    assert in_doubt(call.cut("ConnectError"))


def test_progress_fills_the_attempts_again() -> None:
    driver = Driver(GuardPolicy(max_attempts=2)).opened()
    call = driver.call().stream_up("e1", "e2")
    for number in range(5):
        call.cut()
        call.cut("ConnectError")
        call.cut("ConnectError")
        call.accept()
        call.event(f"e{number + 2}", call.progress(number + 2))
        call.event(f"e{number + 3}", call.progress(number + 3))
    assert call.is_open


def test_an_answer_too_large_leaves_the_call_in_doubt_and_is_not_asked_for_again(call: Peer) -> None:
    actions = call.too_large()
    assert in_doubt(actions)
    assert not of(actions, Get)
    assert not call.is_open


@pytest.mark.parametrize("moment", ["open", "on trial", "proven"])
def test_an_answer_too_large_that_is_another_calls_costs_only_that(call: Peer, moment: str) -> None:
    """The TypeScript SDK replays what followed on every stream of the session."""
    other = call.driver.call(n=2).stream_up("o1")
    if moment != "open":
        call.resumed()
    if moment == "proven":
        call.event("e2", call.progress(2))
    actions = call.too_large(other.stream)
    assert reports(actions, UnreadableDropped)
    assert outcomes(actions) == []
    assert call.is_open
    assert other.is_open, "its own stream may bring a good one"
    if moment == "on trial":
        call.event("e2", call.progress(2))
    assert outcomes(call.event("e9", call.result())) == [Outcome.COMPLETED]
    assert in_doubt(call.driver.elapse(TimerKind.ANSWER, other.stream))
    assert not other.is_open


def test_one_that_is_of_a_call_which_has_its_answer_costs_nothing(call: Peer) -> None:
    other = call.driver.call(n=2).stream_up("o1")
    other.event("o2", other.result())
    actions = call.too_large(other.stream)
    assert len(actions) == len(reports(actions, UnreadableDropped)) == 1


def test_one_that_is_of_a_call_without_a_stream_costs_nothing() -> None:
    driver = Driver(has_hook=True).opened()
    call, asked = driver.call().stream_up("e1"), driver.call(n=2)
    asked.accept()
    asked.event(None, asked.progress(1))
    asked.cut()
    actions = call.too_large(asked.stream)
    assert len(actions) == len(reports(actions, UnreadableDropped)) == 1
    assert not in_doubt(driver.log)


def test_one_that_is_of_nobody_known_may_be_this_calls(call: Peer) -> None:
    """What begins like an answer may be a request of the server's."""
    assert in_doubt(call.too_large(10**6))


@pytest.mark.parametrize("resumed", [True, False])
def test_what_is_meant_as_the_answer_but_is_none_ends_the_call_in_doubt(call: Peer, resumed: bool) -> None:
    if resumed:
        call.resumed()
        call.event("e2", call.progress(2))
    actions = call.event("e9", {"id": call.stream, "result": {}})
    assert [r.reason for r in reports(actions, UnreadableDropped)] == ["not a JSON-RPC message"]
    assert not in_doubt(actions)
    assert in_doubt(call.driver.elapse(TimerKind.ANSWER, call.stream))
    assert not call.is_open


def test_a_stream_that_ends_after_an_unreadable_answer_is_not_resumed(call: Peer) -> None:
    call.event("e9", {"id": call.stream, "result": {}})
    actions = call.end()
    assert in_doubt(actions)
    assert not of(actions, Get)


def test_a_good_answer_may_follow_one_that_could_not_be_read(call: Peer) -> None:
    call.event("e9", {"id": call.stream, "result": {}})
    assert outcomes(call.event("e10", call.result())) == [Outcome.COMPLETED]
    assert call.driver.elapse(TimerKind.ANSWER, call.stream) == []


def test_what_is_no_message_and_names_no_call_is_dropped(call: Peer) -> None:
    actions = call.event("e9", {"hello": 1})
    assert reports(actions, UnreadableDropped)
    assert call.is_open


@pytest.mark.parametrize("good", [0, 1])
def test_each_part_of_a_batch_that_is_no_message_is_reported(call: Peer, good: int) -> None:
    batch = [*[call.progress(3)] * good, {"jsonrpc": "2.0", "method": "n", "params": [1]}, 7]
    actions = call.event("e9", batch)
    assert len(delivered(actions)) == good
    assert len(reports(actions, UnreadableDropped)) == 2
    assert not call.driver.is_set(TimerKind.ANSWER, call.stream)
    assert call.is_open


@pytest.mark.parametrize("good", [0, 1])
def test_a_part_of_a_batch_that_is_meant_as_the_answer_ends_the_call_in_doubt(call: Peer, good: int) -> None:
    actions = call.event("e9", [*[call.progress(3)] * good, {"id": call.stream, "result": "text"}])
    assert len(reports(actions, UnreadableDropped)) == 1
    assert not in_doubt(actions)
    assert in_doubt(call.driver.elapse(TimerKind.ANSWER, call.stream))


def test_a_batch_in_a_json_body_is_read_like_that_too(driver: Driver) -> None:
    call = driver.call()
    call.accept(events=False)
    actions = call.body([call.result(), 7])
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert len(reports(actions, UnreadableDropped)) == 1


# Recheck.


def test_a_resumed_stream_without_a_message_is_resumed_again_and_then_less_often(call: Peer) -> None:
    call.resumed()
    waits = []
    for _ in range(4):
        actions = call.event("e2", call.progress(2))
        waits += [a.seconds for a in of(actions, SetTimer) if a.timer.kind is TimerKind.RECHECK]
        actions = call.driver.elapse(TimerKind.RECHECK)
        assert of(actions, Get)[0].last_event_id == "e1"
        call.accept()
    assert waits == [15, 30, 60, 60]


def test_messages_put_the_recheck_off(call: Peer) -> None:
    call.resumed()
    call.event("e2", call.progress(2))
    call.event("e3", call.progress(3))
    actions = call.driver.elapse(TimerKind.RECHECK)
    assert [type(a) for a in actions] == [SetTimer]


def test_the_recheck_is_never_under_retry(call: Peer) -> None:
    call.event("q", None, retry=40_000)
    call.resumed()
    actions = call.event("e2", call.progress(2))
    assert [a.seconds for a in of(actions, SetTimer)] == [40]


def test_what_fell_between_replay_and_live_tail_is_found_by_the_recheck(call: Peer) -> None:
    call.resumed()
    call.event("e2", call.progress(2))
    call.driver.elapse(TimerKind.RECHECK)
    call.accept()
    call.event("e2", call.progress(2))
    assert delivered(call.event("e3", call.progress(3)))
    assert outcomes(call.event("e4", call.result())) == [Outcome.COMPLETED]


def test_a_stream_never_resumed_is_not_rechecked(call: Peer) -> None:
    assert not call.driver.is_set(TimerKind.RECHECK, call.stream)


def test_a_stream_that_lost_its_cursor_is_not_opened_again_as_another(call: Peer) -> None:
    """A GET without a cursor would be the standalone stream."""
    call.resumed()
    call.event("e2", call.progress(2))
    call.event(None, None, resets_id=True)
    assert call.driver.elapse(TimerKind.RECHECK) == []
    assert outcomes(call.event("e3", call.result())) == [Outcome.COMPLETED]


def test_a_trial_that_lost_its_cursor_and_its_witness_leaves_the_call_in_doubt(call: Peer) -> None:
    call.resumed()
    call.event(None, None, resets_id=True)
    actions = call.driver.elapse(TimerKind.WITNESS)
    assert in_doubt(actions)
    assert not of(actions, Get)


def test_a_stream_cut_before_its_recheck_is_not_rechecked(call: Peer) -> None:
    call.resumed()
    call.event("e2", call.progress(2))
    actions = call.cut()
    assert TimerKind.RECHECK in {a.timer.kind for a in of(actions, CancelTimer)}
    assert not call.driver.is_set(TimerKind.RECHECK, call.stream)


# Positions.


def test_the_cursor_of_a_batch_counts_only_with_its_last_message(driver: Driver) -> None:
    call = driver.call().stream_up()
    driver.drain(99)
    call.event("b1", [note("one"), note("two")])
    (moved,) = records(driver.drain(), CursorMoved)
    assert [row.event_id for row in moved.rows] == ["p"]
    (moved,) = records(driver.drain(), CursorMoved)
    assert [row.event_id for row in moved.rows] == ["p", "b1"]


def test_a_cursor_is_stored_only_while_its_stream_lives(call: Peer) -> None:
    assert records(call.driver.drain(99), CursorMoved)
    assert records(call.event("e3", call.result()), CursorDropped)
    assert not records(call.driver.drain(99), CursorMoved)


def test_draining_what_has_no_cursor_stores_nothing(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    call.event(None, call.progress(1))
    assert driver.drain(99) == []
    call.event(SESSION, call.progress(2))
    assert driver.drain(99) == []


def test_an_id_that_turns_out_to_identify_nothing_takes_the_stored_cursor_away(call: Peer) -> None:
    call.driver.drain(99)
    assert records(call.event("e2", call.progress(3)), CursorDropped)


def test_draining_the_guard_s_own_answers_moves_no_cursor(call: Peer) -> None:
    call.driver.drain(99)
    assert in_doubt(call.driver.call().cut())
    assert not records(call.driver.drain(1), CursorMoved)


def test_a_timer_that_runs_out_although_it_was_cancelled_does_nothing(call: Peer) -> None:
    call.resumed()
    timer = next(t for t in call.driver.timers if t.kind is TimerKind.WITNESS)
    call.event("e2", call.progress(2))
    assert call.driver.feed(TimerElapsed(timer, 1.0)) == []


def test_draining_nothing_does_nothing(driver: Driver) -> None:
    driver.drain(99)
    assert driver.drain(5) == []


def test_an_answer_that_is_held_is_stronger_than_what_is_too_large_behind_it(call: Peer) -> None:
    call.resumed()
    call.event("e9", call.result())
    assert outcomes(call.too_large()) == [Outcome.COMPLETED]


def test_what_is_lost_with_an_event_too_large_is_reported(call: Peer) -> None:
    """Also where the call has its answer from elsewhere, and where messages of others are held."""
    other = call.driver.call(n=2).stream_up("o1")
    other.event("o2", call.result())
    assert reports(call.too_large(), Discontinuity)
    other.resumed()
    other.event("o9", note("x"))
    assert reports(other.too_large(), Discontinuity)
    whole = call.driver.call(n=3)
    whole.accept()
    call.driver.cancel(whole)
    assert reports(whole.too_large(), UnreadableDropped)


def attempts_told(actions: list[Action]) -> list[tuple[str, int]]:
    return [(told.reason, told.attempt) for told in reports(actions, Disconnected)]


def test_that_a_stream_cannot_be_opened_again_is_told_by_attempt(driver: Driver) -> None:
    call = driver.call().stream_up("1", "2")
    assert attempts_told(call.cut("ReadError")) == [("ReadError", 0)]
    assert attempts_told(call.cut("ConnectError")) == [("ConnectError", 1)]
    assert attempts_told(call.refuse(502)) == [("HTTP 502", 2)]
    call.accept()
    assert attempts_told(call.cut("ReadError")) == [("ReadError", 0)], "it was open"


def test_of_many_that_cannot_be_opened_again_the_first_to_fail_says_so_for_all(driver: Driver) -> None:
    calls = [driver.call(n=n).stream_up(f"{n}p", f"{n}q") for n in range(3)]
    assert [attempts_told(call.cut("ReadError")) for call in calls] == [[("ReadError", 0)]] * 3
    assert [attempts_told(call.cut("ConnectError")) for call in calls] == [[("ConnectError", 1)], [], []]
    assert [attempts_told(call.refuse(502)) for call in calls] == [[("HTTP 502", 2)], [], []]
    assert attempts_told(calls[1].refuse(502)) == [("HTTP 502", 3)]
    calls[0].accept()
    assert attempts_told(calls[2].cut("ConnectError")) == [("ConnectError", 3)], "it was heard"


def test_that_one_of_them_was_open_and_is_cut_is_told_all_the_same(driver: Driver) -> None:
    one, other = (driver.call(n=n).stream_up(f"{n}p", f"{n}q") for n in range(2))
    one.cut(), one.cut("ConnectError")
    other.not_written()
    assert reports(driver.log, Disconnected)[-1].stream == str(other.stream)


def test_and_so_is_a_long_wait_of_the_server_s_choice(driver: Driver) -> None:
    calls = [driver.call(n=n).stream_up(f"{n}p", f"{n}q") for n in range(2)]
    for call in calls:
        call.cut()
    told = [reports(call.refuse(503, retry_after=3600.0), Disconnected) for call in calls]
    assert [[one.wait for one in each] for each in told] == [[3600.0], [3600.0]]


def test_and_so_is_one_that_a_refusal_of_the_moment_asks_for(driver: Driver) -> None:
    call = driver.call().stream_up("1", "2")
    call.cut()
    (told,) = reports(call.refuse(429, retry_after=3600.0), Disconnected)
    assert (told.wait, told.attempt) == (3600.0, 0)


def test_a_refusal_of_the_moment_is_no_server_that_is_away(driver: Driver) -> None:
    call = driver.call().stream_up("1", "2")
    call.cut()
    assert attempts_told(call.refuse(409)) == []
    assert attempts_told(call.refuse(503, retry_after=3600.0)) == [("HTTP 503", 1)]


def test_a_standalone_stream_that_could_never_be_opened_is_not_told_as_cut() -> None:
    driver = Driver().opened(standalone=True)
    assert attempts_told(driver.standalone.refuse(500)) == []
    assert attempts_told(driver.standalone.refuse(500)) == [("HTTP 500", 1)]


def test_what_the_user_has_cut_says_nothing_of_the_server(driver: Driver) -> None:
    call = driver.call().stream_up("1", "2")
    call.cut()
    assert attempts_told(driver.feed(ReconnectRequested(driver.now))) == [("reconnect() was called", 0)]


# Replays that reach further back than any trail.


def texts(actions: list[Any]) -> list[str]:
    return [m["params"]["data"] for m in delivered(actions) if m["method"] == "notifications/message"]


def log(call: Peer, first: int, last: int) -> list[Any]:
    return [a for n in range(first, last) for a in call.event(f"{call.host_id}-{n}", note(f"{n}"))]


@pytest.mark.parametrize("exact", [False, True])
def test_a_replay_from_the_very_start_brings_nothing_twice(call: Peer, exact: bool) -> None:
    log(call, 0, 5000)
    call.cut()
    if exact:
        call.refuse(400)
    call.accept()
    actions = log(call, 0, 5000)
    assert texts(actions) == []
    assert len(reports(actions, DuplicateDropped)) == 5000
    assert grades(actions) == [PROVEN]
    assert texts(log(call, 5000, 5300)) == [f"{n}" for n in range(5000, 5300)]


def test_nor_does_one_of_another_stream_which_goes_on_meanwhile(driver: Driver, call: Peer) -> None:
    other = driver.call("other").stream_up("o1")
    log(other, 0, 1000)
    call.resumed()
    actions = call.event("e2", call.progress(2)) + log(call, 0, 0)
    for number in range(1000):
        actions += call.event(f"{other.host_id}-{number}", note(f"{number}"))
    assert texts(actions) == []
    assert texts(log(other, 1000, 1010)) == [f"{n}" for n in range(1000, 1010)]


def test_nor_one_that_is_faster_than_the_stream_itself(driver: Driver, call: Peer) -> None:
    other = driver.call("other").stream_up("o1")
    call.resumed()
    call.event("e2", call.progress(2))
    for number in range(1000):
        assert texts(call.event(f"{other.host_id}-{number}", note(f"{number}")))
    assert texts(log(other, 0, 1000)) == []
    other.cut()
    assert other.asked == f"{other.host_id}-998"


def test_nor_one_of_calls_that_are_over(driver: Driver, call: Peer) -> None:
    over = [driver.call(f"short{number}") for number in range(100)]
    for each in over:
        each.accept()
        log(each, 0, 3)
        each.event(f"{each.host_id}-a", each.result())
    call.resumed()
    actions = call.event("e2", call.progress(2))
    for each in over:
        actions += [a for n in range(3) for a in call.event(f"{each.host_id}-{n}", note(f"{n}"))]
        actions += call.event(f"{each.host_id}-a", each.result())
    assert delivered(actions) == []


def test_nor_does_a_server_that_writes_what_it_replays_in_other_bytes(call: Peer) -> None:
    """Its witness says so."""
    log(call, 0, 300)
    call.resumed()
    for number in (299, 0):
        reworded = dict(reversed(note(f"{number}").items()))
        assert delivered(call.event(f"{call.host_id}-{number}", reworded)) == []


def test_an_id_that_comes_again_on_the_connection_it_came_on_is_no_replay(driver: Driver, call: Peer) -> None:
    other = driver.call("other").stream_up("o1")
    other.resumed()
    log(call, 0, 300)
    assert texts(log(call, 0, 1)) == ["0"]


def test_where_the_server_s_log_may_be_another_what_comes_is_new() -> None:
    driver = Driver().opened(standalone=True)
    driver.standalone.accept()
    log(driver.standalone, 0, 300)
    driver.standalone.cut()
    driver.standalone.refuse(410)
    driver.standalone.refuse(410)
    driver.standalone.accept()
    assert texts(log(driver.standalone, 0, 300)) == [f"{n}" for n in range(300)]


@pytest.mark.parametrize("on_its_own", [True, False])
def test_beyond_what_is_known_progress_that_does_not_increase_was_told_before(
    driver: Driver, call: Peer, on_its_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bygone, "_KEPT", 100)
    other = driver.call("other").stream_up("o1")
    log(call, 0, 900)
    call.resumed()
    log(call, 898, 900)
    of_whom = call if on_its_own else other
    steps = [of_whom.progress(step) for step in (3, 2, 3, 4)]
    steps.append({**steps[0], "params": {**steps[0]["params"], "progress": "half"}})
    actions = [a for n, step in enumerate(steps) for a in call.event(f"n{n}", step)]
    told = [m["params"]["progress"] for m in delivered(actions)]
    assert told == ([3, 3, 4, "half"] if on_its_own else [3, 4, "half"])
    assert len(reports(actions, DuplicateDropped)) == 5 - len(told)


def test_within_it_a_server_may_count_as_it_likes(call: Peer) -> None:
    call.resumed()
    call.event("e2", call.progress(2))
    told = delivered(call.event("e3", call.progress(1)) + call.event("e4", call.progress(1)))
    assert [m["params"]["progress"] for m in told] == [1, 1]
