"""Notifications leave one after the other, as the host wrote them, and hold up nothing but those behind them."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core import notes
from mcp_client_guard.core.actions import Action, Post
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import NotificationLost
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import RESULT, Driver, Peer, delivered, of, outcomes, reports
from tests.core.test_crowding import VERSION, limited, posted


def tell(driver: Driver, step: int, **headers: str) -> Peer:
    """Progress of what the server has asked."""
    params = {"progressToken": 1, "progress": step}
    message = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
    actions = driver.submit(message, **headers)
    posts = of(actions, Post)
    return Peer(driver, posts[-1].stream if posts else -1, "", actions)


def told(actions: list[Any]) -> list[int]:
    return [p.message["params"]["progress"] for p in of(actions, Post)]


def test_notifications_that_the_server_is_slow_to_take_leave_connections_for_all_else() -> None:
    driver = limited(2)
    call = driver.call("ask")
    call.accept()
    (question,) = delivered(driver.ask(call, 77))
    first, *waiting = (tell(driver, step) for step in range(5))
    assert [told(peer.actions) for peer in (first, *waiting)] == [[0], [], [], [], []]
    assert told(driver.elapse(TimerKind.TURN)) == [1]
    assert told(driver.elapse(TimerKind.TURN)) == [], "two at a time, however slow the server is"
    assert of(driver.call("other").actions, Post)
    assert of(driver.submit({"jsonrpc": "2.0", "id": question["id"], "result": {}}), Post)
    assert told(first.accept(status=202, events=False) + first.free()) == [2]


def test_a_cancel_is_heard_at_once_and_told_when_there_is_a_connection() -> None:
    driver = limited(2, spare=1)
    note, call = tell(driver, 0), driver.call("a")
    assert not of(driver.cancel(call), Post)
    assert len(outcomes(driver.log)) == 2
    assert posted(note.idle() + note.free()) == ["notifications/cancelled"]


def test_the_host_s_initialized_waits_for_no_other() -> None:
    driver = Driver(max_calls=2, spare=1)
    driver.initialize()
    tell(driver, 0)
    assert posted(driver.notify("notifications/initialized")) == ["notifications/initialized"]


def test_what_waits_goes_to_no_other_session() -> None:
    driver = limited(2, spare=1)
    note = tell(driver, 0)
    tell(driver, 1)
    driver.call("a").refuse(404)
    actions = note.cut() + note.free()
    assert not told(actions)
    assert [lost.reason for lost in reports(actions, NotificationLost)] == ["cut", "its session is gone"]


def test_without_sessions_there_is_none_that_it_could_have_lost() -> None:
    driver = limited(2, spare=1)
    note = tell(driver, 0)
    tell(driver, 1, mcp_protocol_version=VERSION)
    driver.call("a").refuse(404)
    assert told(note.cut() + note.free()) == [1]


def test_too_many_notifications_that_wait_are_reported_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MOST_WAITING", 2)
    driver = limited(2, spare=1)
    for step in range(4):
        tell(driver, step)
    assert len(reports(driver.log, NotificationLost)) == 1


@pytest.fixture(params=["no limit", "a limit"])
def driver(request: pytest.FixtureRequest) -> Driver:
    return limited(4, spare=6) if request.param == "a limit" else Driver().opened()


def burst(driver: Driver, number: int = 4) -> list[Peer]:
    return [tell(driver, step) for step in range(number)]


def test_the_next_leaves_when_the_server_has_taken_the_one_before(driver: Driver) -> None:
    first, second, *_ = peers = burst(driver)
    assert [told(peer.actions) for peer in peers] == [[0], [], [], []]
    assert told(first.accept(status=202, events=False)) == [1]
    assert not driver.is_set(TimerKind.TURN, first.stream)
    assert not second.actions


@pytest.mark.parametrize("end", ["refused", "cut", "idle", "slow"])
def test_the_next_leaves_whatever_becomes_of_the_one_before(driver: Driver, end: str) -> None:
    first, *_ = burst(driver)
    ends = {
        "refused": lambda: first.refuse(400),
        "cut": first.cut,
        "idle": first.idle,
        "slow": lambda: driver.elapse(TimerKind.TURN),
    }
    assert told(ends[end]()) == [1]


def test_one_that_the_server_takes_late_lets_no_two_leave_at_once(driver: Driver) -> None:
    first, *_ = burst(driver)
    assert told(driver.elapse(TimerKind.TURN)) == [1]
    assert told(first.accept(status=202, events=False)) == []


def test_what_the_server_or_a_caller_waits_for_waits_for_no_turn(driver: Driver) -> None:
    call = driver.call("ask")
    call.accept()
    (question,) = delivered(driver.ask(call, 77))
    burst(driver, 2)
    assert of(driver.submit({"jsonrpc": "2.0", "id": question["id"], "result": {}}), Post)
    assert posted(driver.cancel(call)) == ["notifications/cancelled"]
    assert of(driver.call("other").actions, Post)


def test_the_next_session_has_a_turn_of_its_own(driver: Driver) -> None:
    burst(driver, 2)
    driver.call("a").refuse(404)
    driver.reinitialized()
    assert [lost.reason for lost in reports(driver.log, NotificationLost)] == ["its session is gone"]
    assert told(tell(driver, 7).actions) == [7]


def test_initialized_waits_for_none_and_is_waited_for() -> None:
    driver = Driver()
    driver.initialize()
    driver.notify("notifications/initialized")
    assert not of(tell(driver, 0).actions, Post)
    assert told(driver.sent("notifications/initialized").accept(status=202, events=False)) == [0]


def opened_by(who: str) -> Driver:
    driver = Driver(GuardPolicy(max_attempts=2))
    if who == "host":
        driver.initialize()
        driver.notify("notifications/initialized")
    else:
        driver.opened()
        driver.call("a").refuse(404)
        driver.sent("initialize").answer(RESULT, session_id="session-two")
    return driver


def fail(peer: Peer, how: str | int) -> list[Action]:
    return peer.refuse(how, retry_after=7.0) if isinstance(how, int) else peer.cut(how)


@pytest.mark.parametrize("who", ["host", "guard"])
@pytest.mark.parametrize("how", ["reset", 408, 429, 500, 502, 503])
def test_an_initialized_that_fails_is_told_again(who: str, how: str | int) -> None:
    """To who has not heard it a strict server answers nothing, for ever."""
    driver = opened_by(who)
    initialized = driver.sent("notifications/initialized")
    for _ in range(2):
        (again,) = of(fail(initialized, how), Post)
        assert again.stream == initialized.stream
        assert again.headers["mcp-session-id"] == driver.machine.session.session_id
        assert (again.delay.at_least == 7.0) is isinstance(how, int)
    actions = fail(initialized, how)
    assert [lost.method for lost in reports(actions, NotificationLost)] == ["notifications/initialized"]
    assert "notifications/initialized" not in posted(actions)


@pytest.mark.parametrize("who", ["host", "guard"])
def test_requests_wait_no_longer_for_one_that_is_told_again(who: str) -> None:
    driver = opened_by(who)
    driver.sent("notifications/initialized").refuse(503)
    waiting = driver.call("b")
    assert not of(waiting.actions, Post)
    assert "b" in posted(driver.elapse(TimerKind.CONFIRM))


def test_one_that_is_taken_at_the_second_time_is_taken() -> None:
    driver = opened_by("host")
    waiting = driver.call("b")
    initialized = driver.sent("notifications/initialized")
    assert not posted(waiting.actions)
    initialized.refuse(503)
    assert "b" in posted(initialized.accept(status=202, events=False))
    assert not reports(driver.log, NotificationLost)


@pytest.mark.parametrize("status", [400, 401, 404, 405])
def test_a_refusal_that_will_not_change_is_not_met_again(status: int) -> None:
    driver = opened_by("host")
    assert "notifications/initialized" not in posted(driver.sent("notifications/initialized").refuse(status))


def test_what_has_not_reached_the_server_when_the_host_leaves_is_reported(driver: Driver) -> None:
    assert not driver.machine.notes_are_leaving
    first, *_ = burst(driver, 3)
    assert driver.machine.notes_are_leaving
    first.accept(status=202, events=False)
    actions = driver.close()
    assert not of(actions, Post)
    assert reports(actions, NotificationLost) == [NotificationLost("notifications/progress", "the host has left")]
