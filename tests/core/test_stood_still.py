"""Time that does not count: a timer that ran out while what it measures stood still is set again."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.actions import Action, Get, SetTimer
from mcp_client_guard.core.inputs import TimerElapsed
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.stream import STANDALONE
from mcp_client_guard.core.timer import Timer, TimerKind
from tests.core.driver import Driver, of, outcomes

OWN, OTHER = 999, 998
NOW = 100.0
OF_ITS_STREAM = [kind for kind in TimerKind if kind not in (TimerKind.ANSWER, TimerKind.DEADLINE)]


def ran_out(kind: TimerKind, unread: set[int], amid: dict[int, float] | None = None) -> list[Action]:
    """What is done of a timer that means nothing to the core but that it may be set again."""
    return Driver().feed(TimerElapsed(Timer(kind, OWN), NOW, unread, amid or {}))


def again(kind: TimerKind) -> list[Action]:
    return [SetTimer(Timer(kind, OWN), 1.0)]


@pytest.mark.parametrize("kind", OF_ITS_STREAM, ids=str)
def test_while_its_stream_is_not_read_nothing_can_come_on_it(kind: TimerKind) -> None:
    assert ran_out(kind, {OWN, OTHER}) == again(kind)
    assert ran_out(kind, {OTHER, STANDALONE}) == []
    assert ran_out(kind, set(), {OWN: NOW, STANDALONE: NOW}) == []


def test_an_answer_may_come_on_any_stream_that_is_not_read() -> None:
    assert ran_out(TimerKind.ANSWER, {OTHER}) == again(TimerKind.ANSWER)
    assert ran_out(TimerKind.ANSWER, {OWN}) == again(TimerKind.ANSWER)
    assert ran_out(TimerKind.ANSWER, set()) == []


@pytest.mark.parametrize(("ago", "is_awaited"), [(0.0, True), (0.9, True), (1.0, False), (30.0, False)])
def test_an_answer_that_is_just_coming_is_awaited_as_long_as_bytes_come(ago: float, is_awaited: bool) -> None:
    amid = {STANDALONE: NOW - ago, OTHER: NOW}
    assert ran_out(TimerKind.ANSWER, set(), amid) == (again(TimerKind.ANSWER) if is_awaited else [])


def test_on_another_stream_than_the_standalone_one_no_answer_is_awaited_that_is_coming() -> None:
    assert ran_out(TimerKind.ANSWER, set(), {OWN: NOW, OTHER: NOW}) == []


def test_the_deadline_of_a_call_is_the_user_s_and_never_stands_still() -> None:
    """L2: whatever its host does."""
    driver = Driver().opened()
    call = driver.call().stream_up("e1")
    timer = next(t for t in driver.timers if t.kind is TimerKind.DEADLINE and t.stream == call.stream)
    amid = {call.stream: driver.now, STANDALONE: driver.now}
    actions = driver.feed(TimerElapsed(timer, driver.now, {call.stream, STANDALONE}, amid))
    assert outcomes(actions) == [Outcome.IN_DOUBT]


def test_what_was_put_off_is_done_once_the_host_has_caught_up() -> None:
    driver = Driver().opened()
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    call.event("e2", call.progress(2))
    timer = next(t for t in driver.timers if t.kind is TimerKind.RECHECK)
    assert driver.feed(TimerElapsed(timer, driver.now, {call.stream})) == [SetTimer(timer, 1.0)]
    assert of(driver.feed(TimerElapsed(timer, driver.now)), Get)
