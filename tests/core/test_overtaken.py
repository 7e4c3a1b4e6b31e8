"""The answer came in the replay of another stream, and its own has more to say (TypeScript reference server)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcp_client_guard.core.actions import Action, Get, TimerKind
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.report import Discontinuity
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


def test_nor_is_it_dropped_unsaid_with_its_session(overtaken: Peer) -> None:
    actions = overtaken.driver.call("x").refuse(404)
    assert [r.stream for r in reports(actions, Discontinuity)] == [str(overtaken.stream)]


def test_a_cancelled_call_is_not_looked_after(driver: Driver) -> None:
    call = driver.call().stream_up("b1")
    driver.cancel(call)
    assert not of(call.cut(), Get)
