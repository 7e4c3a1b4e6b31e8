"""The incidents of the seeds, as tables of inputs and the actions they must lead to."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.actions import Get, Post
from mcp_client_guard.core.model import CursorDropped, CursorMoved, Grade, Outcome
from mcp_client_guard.core.report import (
    Disconnected,
    Discontinuity,
    DuplicateDropped,
    RefreshSuggested,
    SessionLost,
)
from mcp_client_guard.core.timer import TimerKind
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


# Fresh session with 200 (001): the status is fine, the session is another.


def test_seed_001_observation_2_a_200_under_another_session_id_breaks_the_stream_and_the_session(
    call: Peer,
) -> None:
    call.cut()
    actions = call.accept(session_id="session-two")
    assert [e.grade for e in evidence(actions)] == [Grade.BROKEN]
    assert reports(actions, Discontinuity)
    assert reports(actions, SessionLost)
    assert in_doubt(actions)
    assert not of(actions, Get)


def test_seed_001_observation_3_what_a_fresh_session_sends_is_not_delivered(call: Peer) -> None:
    call.cut()
    call.accept(session_id="session-two")
    assert call.event("1", call.result()) == []


def test_seed_001_secondary_2_an_absent_or_equal_session_id_says_nothing(call: Peer) -> None:
    for session_id in (None, SESSION):
        call.cut()
        assert evidence(call.accept(session_id=session_id)) == []


def test_seed_001_observation_3_a_fresh_counter_under_the_same_session_id_is_held_and_breaks_the_stream(
    call: Peer,
) -> None:
    """Events of a local counter near 1, unknown to the trail."""
    call.resumed()
    actions = call.event("1", note("fresh")) + call.event("2", note("fresher"))
    assert delivered(actions) == []
    actions = call.driver.elapse(TimerKind.WITNESS)
    assert [e.grade for e in evidence(actions)] == [Grade.BROKEN]
    assert in_doubt(actions)


# Trimmed buffer (002, 003 and 004): some events after the cursor, but not all.


def test_seed_002_observations_4_and_5_a_trimmed_buffer_lacks_the_witness_and_breaks_the_stream(
    call: Peer,
) -> None:
    call.resumed()
    assert call.asked == "e1"
    assert delivered(call.event("e5", call.progress(5))) == []
    actions = call.end()
    assert [e.grade for e in evidence(actions)] == [Grade.BROKEN]
    (loss,) = reports(actions, Discontinuity)
    assert loss.last_good is not None
    assert loss.first_seen is not None
    assert in_doubt(actions)


def test_seed_002_observation_5_an_answer_beyond_a_gap_is_delivered_after_the_loss_is_reported(call: Peer) -> None:
    call.resumed()
    call.event("e5", call.progress(5))
    call.event("e6", call.result())
    actions = call.cut()
    assert outcomes(actions) == [Outcome.COMPLETED]
    kinds = [type(a).__name__ if not hasattr(a, "event") else type(a.event).__name__ for a in actions]
    assert kinds.index("Discontinuity") < kinds.index("Deliver")


# Forked counter (004): the same IDs, other events.


def test_seed_004_observation_another_message_under_the_witness_id_breaks_the_stream(call: Peer) -> None:
    call.resumed()
    actions = call.event("e2", note("from another replica"))
    assert [e.grade for e in evidence(actions)] == [Grade.BROKEN]
    assert delivered(actions) == [m for m in delivered(actions) if "result" in m or "error" in m]
    assert in_doubt(actions)


def test_seed_004_observation_a_fork_after_the_witness_is_seen_at_the_next_resume(call: Peer) -> None:
    call.resumed()
    call.event("e2", call.progress(2))
    call.event("e3", call.progress(3))
    call.resumed()
    assert call.asked == "e2"
    assert in_doubt(call.event("e3", call.progress(4)))


# Drain race (000): received, not yet taken by the host, and the connection dies.


def test_seed_000_tell_undrained_events_are_reported_with_their_number_at_the_cut(call: Peer) -> None:
    call.driver.drain(len(delivered(call.driver.log)) - 1)
    (cut,) = reports(call.cut(), Disconnected)
    assert cut.undrained == 1


def test_seed_000_boundary_the_stored_cursor_never_passes_what_was_drained(call: Peer) -> None:
    undrained_before = len(delivered(call.driver.log)) - 2
    actions = call.driver.drain(undrained_before + 1)
    (moved,) = records(actions, CursorMoved)
    assert [row.event_id for row in moved.rows] == ["p", "e1"]
    (moved,) = records(call.driver.drain(), CursorMoved)
    assert [row.event_id for row in moved.rows] == ["p", "e1", "e2"]


def test_seed_000_boundary_a_resume_starts_from_received_so_that_nothing_undrained_is_skipped_or_repeated(
    call: Peer,
) -> None:
    call.resumed()
    assert call.asked == "e1"
    actions = call.event("e2", call.progress(2)) + call.event("e3", call.result())
    assert [m for m in delivered(actions) if "method" in m] == []
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_seed_000_boundary_an_inclusive_replay_is_de_duplicated(call: Peer) -> None:
    call.resumed()
    actions = call.event("e1", call.progress(1)) + call.event("e2", call.progress(2))
    assert delivered(actions) == []
    assert len(reports(actions, DuplicateDropped)) == 2
    assert [e.grade for e in evidence(actions)] == [Grade.PROVEN]


# Empty replay (001 and 004): a 200 and silence.


def test_seed_001_rule_silence_where_a_witness_is_due_is_asked_once_more_with_the_exact_id_then_settled(
    call: Peer,
) -> None:
    call.resumed()
    actions = call.driver.elapse(TimerKind.WITNESS)
    assert evidence(actions) == []
    assert call.asked == "e2"
    call.accept()
    actions = call.driver.elapse(TimerKind.WITNESS)
    assert [str(e) for e in evidence(actions)] == ["UNVERIFIED(witness missing)"]
    assert reports(actions, Discontinuity)
    assert in_doubt(actions)


def test_seed_001_rule_silence_where_no_witness_is_due_leaves_the_call_waiting(driver: Driver) -> None:
    call = driver.call().stream_up()
    call.resumed()
    actions = driver.elapse(TimerKind.WITNESS)
    assert [str(e) for e in evidence(actions)] == ["UNVERIFIED(no witness)"]
    assert not reports(actions, Discontinuity)
    assert not in_doubt(actions)
    assert outcomes(call.event("e1", call.result())) == [Outcome.COMPLETED]


# JSON neutrality (002): an answer that is no stream moves no cursor.


def test_seed_002_variant_a_json_answer_changes_no_cursor_in_the_core(call: Peer) -> None:
    other = call.driver.call("read")
    actions = other.accept(events=False) + other.body(other.result())
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert not records(actions, CursorMoved)
    assert not records(actions, CursorDropped)
    call.cut()
    assert call.asked == "e1"


def test_seed_002_variant_a_json_answer_to_a_resume_keeps_the_cursor_it_was_made_with(call: Peer) -> None:
    trail = call.driver.machine._streams._streams[call.stream].trail
    cursor = trail.cursor
    call.cut()
    call.accept(events=False)
    assert not delivered(call.body({"jsonrpc": "2.0", "id": 999, "result": {}}))
    assert trail.cursor == cursor
    assert call.asked == cursor


def test_a_resume_answered_by_the_answer_itself_settles_the_call(call: Peer) -> None:
    call.cut()
    call.accept(events=False)
    assert outcomes(call.body(call.result())) == [Outcome.COMPLETED]


# Stale cursor (004): never on a POST, never in another session.


def test_seed_004_second_case_no_post_ever_carries_a_cursor(call: Peer) -> None:
    call.resumed()
    call.driver.call("other")
    call.driver.notify("notifications/roots/list_changed")
    for post in of(call.driver.log, Post):
        assert "last-event-id" not in {name.lower() for name in post.headers}


def test_seed_004_second_case_a_cursor_is_never_sent_in_another_session(call: Peer) -> None:
    """Its call is in doubt instead: the old session's stream cannot be resumed in the new one."""
    again = call.driver.initialize("session-two")
    assert in_doubt(again.actions)
    assert call.cut() == []
    assert not of(call.driver.log, Get)[1:]


def test_seed_004_second_case_events_of_the_old_session_match_nothing_in_the_new_one(call: Peer) -> None:
    driver = call.driver
    driver.opened("session-two")
    fresh = driver.call("other")
    fresh.accept()
    actions = fresh.event("e1", fresh.progress(1)) + fresh.event("e2", fresh.result())
    assert not reports(actions, DuplicateDropped)
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_seed_004_second_case_an_answer_to_a_call_of_the_old_session_settles_nothing_in_the_new_one(
    call: Peer,
) -> None:
    driver = call.driver
    driver.opened("session-two")
    fresh = driver.call("other")
    fresh.accept()
    assert outcomes(fresh.event("1", call.result())) == []


def test_seed_004_condition_4_a_standalone_stream_opened_afresh_carries_no_cursor_and_its_old_one_is_deleted() -> (
    None
):
    driver = Driver().opened(standalone=True)
    stream = driver.standalone
    stream.event("s1", note("a"))
    driver.drain(9)
    stream.cut()
    stream.accept()
    actions = stream.event("s9", note("of another log"))
    assert [e.grade for e in evidence(actions)] == [Grade.UNVERIFIED]
    assert records(actions, CursorDropped)
    assert reports(actions, RefreshSuggested)
