"""The answer came in the replay of another stream, and its own has more to say (TypeScript reference server)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcp_client_guard.core.actions import Action, Get
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.report import Discontinuity, Resumed
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Driver, Peer, delivered, note, of, outcomes, reports


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


@pytest.fixture
def overtaken(driver: Driver) -> Peer:
    """Both were cut. What the replay of the first stream holds begins behind `b2`, which nobody has received."""
    one, two = driver.call().stream_up("a1"), driver.call().stream_up("b1")
    one.event("a2", one.progress(2))
    two.cut()
    one.resumed()
    one.event("a2", one.progress(2))
    assert outcomes(one.event("b3", two.result())) == [Outcome.COMPLETED]
    return two


def replayed(peer: Peer) -> list[Action]:
    witness = peer.event("b1", peer.progress(1))
    return witness + peer.event("b2", note("b2")) + peer.event("b3", peer.result())


ONCE: dict[str, Callable[[Peer], list[Action]]] = {
    "not reached": lambda peer: peer.cut(),
    "cut at once": lambda peer: peer.accept() + peer.cut(),
    "ended before the witness": lambda peer: peer.accept() + peer.end(),
    "cut behind the witness": lambda peer: peer.accept() + peer.event("b1", peer.progress(1)) + peer.cut(),
    "silent": lambda peer: peer.accept() + peer.idle(),
    "refused": lambda peer: peer.refuse(503),
    "refused with the overlap": lambda peer: peer.refuse(400),
    "no witness in time": lambda peer: peer.accept() + peer.driver.elapse(TimerKind.WITNESS, peer.stream),
}


@pytest.mark.parametrize("how", ONCE)
def test_what_its_own_stream_still_misses_is_asked_for_again(overtaken: Peer, how: str) -> None:
    assert not reports(ONCE[how](overtaken), Discontinuity)
    overtaken.accept()
    actions = replayed(overtaken)
    assert delivered(actions) == [note("b2")]
    actions = overtaken.cut()
    assert not overtaken.is_open, "and no more, once its own answer has come"
    assert not of(actions, Get)
    assert not reports(actions, Discontinuity)


@pytest.mark.parametrize("how", ["ended", "silent"])
def test_a_log_that_is_at_its_end_behind_the_witness_has_no_more_of_it(overtaken: Peer, how: str) -> None:
    overtaken.accept()
    overtaken.event("b1", overtaken.progress(1))
    actions = overtaken.end() if how == "ended" else overtaken.idle()
    assert not of(actions, Get)
    assert not reports(actions, Discontinuity)


FOR_EVER: dict[str, Callable[[Peer], list[Action]]] = {
    **ONCE,
    "an ID of its own": lambda peer: (
        peer.accept() + peer.event("b1", peer.progress(1)) + peer.event(f"p{peer.connection}") + peer.cut()
    ),
}


@pytest.mark.parametrize("how", FOR_EVER)
def test_and_reported_as_lost_when_that_never_succeeds(overtaken: Peer, how: str) -> None:
    actions: list[Action] = []
    for _ in range(50):
        if not overtaken.is_open:
            break
        actions += FOR_EVER[how](overtaken)
    assert not overtaken.is_open
    assert reports(actions, Discontinuity)


@pytest.fixture
def primed(driver: Driver) -> Peer:
    """The same, but of the second no more than its priming event was received: nothing to overlap."""
    one, two = driver.call().stream_up(), driver.call("other")
    two.accept()
    two.event("b0")
    two.cut()
    one.resumed()
    assert outcomes(one.event("b1", two.result())) == [Outcome.COMPLETED]
    return two


def test_its_own_answer_is_the_end_of_it_also_where_nothing_can_prove_the_resume(primed: Peer) -> None:
    primed.accept()
    actions = primed.event("b1", primed.result())
    assert not primed.is_open
    assert not reports(actions, Discontinuity)
    assert not delivered(actions)


def test_what_stands_before_it_there_is_delivered(primed: Peer) -> None:
    primed.accept()
    assert delivered(primed.event("b0.5", note("missed"))) == [note("missed")]
    assert not reports(primed.event("b1", primed.result()), Discontinuity)
    assert not primed.is_open


@pytest.mark.parametrize("how", ["another ID", "another message"])
def test_what_is_not_just_what_was_delivered_is_not_its_end(primed: Peer, how: str) -> None:
    """Before it is believed, the trial is over."""
    primed.accept()
    answer = primed.result() if how == "another ID" else primed.result({"content": []})
    actions = primed.event("x" if how == "another ID" else "b1", answer)
    assert [r.evidence.reason for r in reports(actions, Resumed)] == ["no witness"]
    assert not delivered(actions)


def test_an_answer_before_the_witness_does_not_say_what_stands_between(overtaken: Peer) -> None:
    """A log that lost the witness may have lost the rest as well: it is asked for what follows that."""
    overtaken.accept()
    overtaken.event("b3", overtaken.result())
    assert overtaken.is_open
    overtaken.end()
    assert overtaken.asked == "b1"
    overtaken.accept()
    assert not reports(overtaken.event("b3", overtaken.result()), Discontinuity)
    assert not overtaken.is_open


def test_an_answer_that_its_own_trial_holds_is_its_end_when_that_is_over(driver: Driver) -> None:
    one, two = driver.call().stream_up("a1"), driver.call().stream_up("b1")
    one.resumed()
    two.resumed()
    two.event("b2", note("b2"))
    two.event("b3", two.result())
    one.event("a1", one.progress(1))
    assert outcomes(one.event("b3", two.result())) == [Outcome.COMPLETED]
    assert two.is_open
    assert delivered(two.event("b1", two.progress(1))) == [note("b2")]
    assert not two.is_open


@pytest.mark.parametrize("how", ["found again", "cut", "silent"])
def test_a_last_look_ends_a_call_that_was_answered_elsewhere_meanwhile(driver: Driver, how: str) -> None:
    one, two = driver.call().stream_up("a1"), driver.call().stream_up("b1")
    one.resumed()
    one.event("a1", one.progress(1))
    two.resumed()
    two.event("b1", two.progress(1))
    assert not outcomes(two.event("b2", two.result())), "it is held"
    assert outcomes(one.event("b2", two.result())) == [Outcome.COMPLETED]
    assert two.is_open
    if how == "cut":
        two.cut()
    elif how == "silent":
        driver.elapse(TimerKind.CLOSING, two.stream)
    else:
        two.accept()
        two.event("b1", two.progress(1))
        two.event("b2", two.result())
    assert not two.is_open
    assert two.stream not in driver.machine._streams._streams
    assert not reports(driver.log, Discontinuity)


def test_nor_is_it_dropped_unsaid_with_its_session(overtaken: Peer) -> None:
    actions = overtaken.driver.call("x").refuse(404)
    assert [r.stream for r in reports(actions, Discontinuity)] == [str(overtaken.stream)]


def test_a_cancelled_call_is_not_looked_after(driver: Driver) -> None:
    call = driver.call().stream_up("b1")
    driver.cancel(call)
    assert not of(call.cut(), Get)
