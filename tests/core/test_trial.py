"""The trial: what each event says about whether the server still holds our log."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.event_id import IdScheme
from mcp_client_guard.core.inputs import EventReceived
from mcp_client_guard.core.model import Evidence, Grade
from mcp_client_guard.core.trail import Trail
from mcp_client_guard.core.trial import NO_WITNESS, PROVEN, WITNESS_MISSING, Judged, Trial
from tests.core.driver import body_of, data_of, note


def event(event_id: str | None, message: Any) -> EventReceived:
    data = data_of(message)
    return EventReceived(1, 2, event_id, data, body_of(data))


def trial_of(
    *event_ids: str, exact: bool = False, scheme: IdScheme = IdScheme.OPAQUE, after_silence: bool = False
) -> Trial:
    """A trial of a stream that has received these events, each carrying a note that names it."""
    trail = Trail({}, scheme=scheme)
    for event_id in event_ids:
        trail.place(event_id, data_of(note(event_id)), True, 1)
    foreign = Trail(trail.index)
    foreign.place("f1", data_of(note("f1")), True, 1)
    point = trail.resume_point(exact=exact)
    assert point is not None
    return Trial(trail, point.last_event_id, point.witness, after_silence)


def weigh(trial: Trial, event_id: str | None, message: Any) -> str:
    told = event(event_id, message)
    verdict = trial.weigh(told, isinstance(told.body, dict) and "method" in told.body)
    if isinstance(verdict, Judged):
        return f"{verdict.evidence.grade.name}{' fits' if verdict.fits else ''}"
    return verdict.name


@pytest.mark.parametrize(
    ("event_id", "message", "verdict"),
    [
        ("e3", note("e3"), "PROVEN"),
        ("e3", note("another"), "BROKEN"),
        ("e2", note("another"), "BROKEN"),
        ("e2", note("e2"), "SKIP"),
        ("e1", note("e1"), "SKIP"),
        ("f1", note("f1"), "SKIP"),
        ("f1", note("another"), "HOLD"),
        ("e4", note("e4"), "HOLD"),
        (None, note("e4"), "HOLD"),
        ("e4", None, "SKIP"),
        ("e4", {}, "SKIP"),
        ("e4", b"not json", "SKIP"),
        ("e3", {}, "SKIP"),
    ],
)
def test_with_a_witness_due_only_the_witness_proves(event_id: str | None, message: Any, verdict: str) -> None:
    assert weigh(trial_of("e1", "e2", "e3"), event_id, message) == verdict


@pytest.mark.parametrize(
    ("event_ids", "scheme", "event_id", "message", "verdict"),
    [
        (["e1", "x2"], "opaque", "x2", note("x2"), "PROVEN"),
        (["e1", "x2"], "opaque", "e1", note("e1"), "SKIP"),
        (["e1", "x2"], "opaque", "f1", note("f1"), "SKIP"),
        (["e1", "x2"], "opaque", "x2", note("another"), "BROKEN"),
        (["e1", "x2"], "opaque", "x3", note("x3"), "UNVERIFIED fits"),
        (["e1", "x2"], "opaque", None, note("x3"), "UNVERIFIED fits"),
        (["e1", "x2"], "opaque", "q", None, "SKIP"),
        (["7", "8", "9"], "opaque", "10", note("10"), "CONSISTENT fits"),
        # Learned, so a hole only makes it weaker.
        (["7", "8", "9"], "opaque", "12", note("12"), "UNVERIFIED fits"),
        (["7", "8", "11"], "opaque", "12", note("12"), "UNVERIFIED fits"),
        (["7", "8"], "opaque", "9", note("9"), "UNVERIFIED fits"),
        (["7", "8", "9"], "opaque", "1", note("1"), "BROKEN"),
        (["8"], "contiguous", "9", note("9"), "CONSISTENT fits"),
        (["8"], "contiguous", "10", note("10"), "BROKEN"),
        (["8"], "monotone", "10", note("10"), "UNVERIFIED fits"),
        (["8"], "monotone", "7", note("7"), "BROKEN"),
    ],
)
def test_with_the_exact_cursor_the_ids_are_all_there_is(
    event_ids: list[str], scheme: str, event_id: str | None, message: Any, verdict: str
) -> None:
    trial = trial_of(*event_ids, exact=True, scheme=IdScheme(scheme))
    assert weigh(trial, event_id, message) == verdict


@pytest.mark.parametrize("scheme", list(IdScheme))
def test_a_message_under_the_id_of_the_priming_event_that_was_asked_for_is_no_step(scheme: IdScheme) -> None:
    """Nor does it prove anything: it was never received."""
    trail = Trail({}, scheme=scheme)
    trail.place("5", b"", False, 1)
    assert weigh(Trial(trail, "5", None), "5", note("a")) == "UNVERIFIED fits"


def test_once_the_ids_have_started_over_everything_is_held() -> None:
    trial = trial_of("7", "8", exact=True)
    assert weigh(trial, "1", note("1")) == "BROKEN"
    trial.hold(event("1", note("1")))
    assert {weigh(trial, i, note(i)) for i in ("2", "7", "8", "9")} == {"HOLD"}
    assert weigh(trial, "p", None) == "SKIP"
    assert trial.doubt.reason == "the event IDs started over"


def test_behind_what_is_held_after_silence_nothing_counts_on() -> None:
    trial = trial_of("7", "8", "9", exact=True, after_silence=True)
    assert weigh(trial, "12", note("12")) == "UNVERIFIED fits"
    trial.hold(event("12", note("12")))
    assert [weigh(trial, i, note(i)) for i in ("10", "1")] == ["HOLD", "HOLD"]
    assert trial.doubt == WITNESS_MISSING
    assert weigh(trial, "9", note("9")) == "PROVEN"


@pytest.mark.parametrize(
    ("exact", "after_silence", "worth"),
    [(False, False, WITNESS_MISSING), (True, True, WITNESS_MISSING), (True, False, NO_WITNESS)],
)
def test_what_a_resume_is_worth_that_nothing_confirms(exact: bool, after_silence: bool, worth: Evidence) -> None:
    assert trial_of("e1", "e2", exact=exact, after_silence=after_silence).unproven == worth


def test_what_is_held_is_counted_in_bytes() -> None:
    trial = trial_of("e1", "e2")
    trial.hold(event("e3", b"12345"))
    trial.hold(event("e4", b"67"))
    assert trial.held_bytes == 7
    assert len(trial.held) == 2


def test_proven_is_the_only_grade_of_its_kind() -> None:
    assert PROVEN.grade is Grade.PROVEN
