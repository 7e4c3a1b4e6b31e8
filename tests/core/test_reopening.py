"""A lost session that cannot be opened again at once, since what may pass has not passed."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Get, Post, SetTimer
from mcp_client_guard.core.answers import CODE_SESSION_LOST
from mcp_client_guard.core.inputs import ReconnectRequested
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import RefreshSuggested, SessionUnavailable, Unreachable
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import RESULT, Driver, delivered, of, outcomes, posted, reports
from tests.core.legacy import Legacy

ROUTER = [404, 405, 421]
PAGE = {"detail": "404 page not found"}


@pytest.fixture
def driver() -> Driver:
    """Its session is lost, and was lost by a host that only listens."""
    driver = Driver().opened(standalone=True)
    driver.standalone.accept()
    driver.standalone.cut()
    driver.standalone.refuse(404)
    driver.sent("ping").refuse(404)
    return driver


def state(driver: Driver) -> SessionState:
    return driver.machine.session.state


def refuse_all(driver: Driver, status: int = 404, body: Any = None) -> list[Action]:
    """Whatever is asked of the server draws this, until nothing is asked any more."""
    actions: list[Action] = []
    while (sent := driver.sent("initialize")).is_open:
        actions += sent.refuse(status, body)
        get = driver.standalone  # a legacy stream is looked for
        if 0 in driver.orders and get.is_open:
            actions += get.refuse(status)
    return actions


def rests(actions: list[Action]) -> list[float]:
    return [a.seconds for a in of(actions, SetTimer) if a.timer.kind is TimerKind.REOPEN]


@pytest.mark.parametrize("body", [None, PAGE])
@pytest.mark.parametrize("status", ROUTER)
def test_a_router_without_a_server_is_no_server_that_refuses(status: int, body: Any) -> None:
    """Traefik, and the default backend of Kubernetes, say 404 while a deployment goes on."""
    driver = Driver().opened()
    call = driver.call()
    call.refuse(404)
    for attempt in range(1, 9):
        sent = driver.sent("initialize")
        sent.refuse(status, body)
        if driver.standalone.is_open:
            driver.standalone.refuse(status)
        order = driver.sent("initialize").order
        assert order.delay.attempt == attempt
    assert not delivered(driver.log)[1:], "the call waits, and is told nothing"
    driver.reinitialized()
    assert outcomes(driver.sent("tools/call").answer()) == [Outcome.COMPLETED]


def test_a_request_is_told_in_the_end_and_the_next_one_is_not_refused_for_it(driver: Driver) -> None:
    waiting = driver.call()
    actions = refuse_all(driver)
    (told,) = [m for m in delivered(actions) if m.get("id") == waiting.host_id]
    assert told["error"]["code"] == CODE_SESSION_LOST
    following = driver.call("following")
    assert not delivered(following.actions)
    assert driver.sent("initialize").is_open
    driver.reinitialized()
    assert outcomes(driver.sent("tools/call").answer()) == [Outcome.COMPLETED]


@pytest.mark.parametrize("code", [-32600, -32603])
def test_a_server_that_answers_is_held_to_the_budget(code: int) -> None:
    driver = Driver().opened()
    driver.call().refuse(404)
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "no"}}
    refuse_all(driver, 404, error)
    assert len([p for p in posted(driver.log, "initialize") if p.headers == {}]) <= 1 + 5
    assert delivered(driver.call("following").actions), "refused at once"


def test_a_host_that_only_listens_gets_its_session_and_its_stream_back(driver: Driver) -> None:
    refuse_all(driver)
    assert state(driver) is SessionState.LOST
    assert posted(driver.elapse(TimerKind.REOPEN), "initialize")
    actions = driver.reinitialized()
    assert [get.stream for get in of(actions, Get)] == [0], "the standalone stream"
    assert reports(actions, RefreshSuggested)
    assert not driver.is_set(TimerKind.REOPEN, 0)


def test_it_is_tried_once_each_time_and_ever_more_slowly(driver: Driver) -> None:
    waits = rests(refuse_all(driver))
    for _ in range(5):
        actions = driver.elapse(TimerKind.REOPEN)
        assert len(posted(actions, "initialize")) == 1
        actions = refuse_all(driver)
        assert not posted(actions, "initialize")
        waits += rests(actions)
    assert waits == [10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    told = reports(driver.log, SessionUnavailable)
    assert [(t.wait, t.attempt) for t in told] == list(zip(waits, range(1, 7), strict=True))
    assert "HTTP 404" in told[0].reason


def test_a_server_that_says_when_is_kept_to(driver: Driver) -> None:
    assert rests(driver.sent("initialize").refuse(503, retry_after=600.0)) == [600.0]


def test_nor_is_a_connection_tried_more_than_once(driver: Driver) -> None:
    refuse_all(driver)
    driver.elapse(TimerKind.REOPEN)
    actions = driver.sent("initialize").not_written()
    assert not of(actions, Post)
    assert not reports(actions, Unreachable)
    assert rests(actions) == [20.0]


def test_a_request_that_comes_while_it_is_tried_has_it_tried_again(driver: Driver) -> None:
    refuse_all(driver)
    driver.elapse(TimerKind.REOPEN)
    driver.call()
    driver.sent("initialize").refuse(503)
    assert driver.sent("initialize").is_open
    driver.sent("initialize").not_written()
    assert driver.sent("initialize").is_open


def test_so_does_what_the_hook_asks() -> None:
    driver = Driver(has_hook=True).opened()
    driver.call().refuse(404)
    driver.sent("initialize").refuse(401)
    driver.hook_asks("tools/list")
    driver.sent("initialize").refuse(503)
    assert driver.sent("initialize").is_open


def test_a_request_does_not_wait_for_the_next_time(driver: Driver) -> None:
    refuse_all(driver)
    assert posted(driver.call().actions, "initialize")
    assert not driver.is_set(TimerKind.REOPEN, 0)


@pytest.mark.parametrize("how", ["the host opens one", "reconnect"])
def test_who_opens_one_sooner_is_not_disturbed(driver: Driver, how: str) -> None:
    refuse_all(driver)
    if how == "reconnect":
        driver.feed(ReconnectRequested(driver.now))
        driver.reinitialized()
    else:
        driver.initialize("session-three")
    assert not driver.is_set(TimerKind.REOPEN, 0)


@pytest.mark.parametrize("how", [401, 403, "a login that fails"])
def test_where_a_person_may_be_asked_each_time_only_a_request_tries_again(driver: Driver, how: int | str) -> None:
    sent = driver.sent("initialize")
    actions = sent.refuse(how) if isinstance(how, int) else sent.cut("no login", written=False, lasts=True)
    assert not posted(actions)
    (told,) = reports(actions, SessionUnavailable)
    assert told.wait is None
    assert not driver.is_set(TimerKind.REOPEN, 0)
    assert posted(driver.call().actions, "initialize")


def test_too_many_lost_sessions_are_told_and_the_next_one_comes_by_itself() -> None:
    driver = Driver(GuardPolicy(reinitialize_limit=1)).opened()
    driver.call().refuse(404)
    driver.reinitialized()
    driver.sent("tools/call").refuse(404)
    assert state(driver) is SessionState.LOST
    (told,) = reports(driver.log, SessionUnavailable)  # and not once for each call that strands
    assert told.reason == "too many sessions were lost in a row"
    assert not posted(driver.elapse(TimerKind.REOPEN)), "its minute is not over"
    driver.elapse(TimerKind.BUDGET)
    assert posted(driver.elapse(TimerKind.REOPEN), "initialize")


# Legacy HTTP+SSE: the carrier.


def refuse_legacy(driver: Legacy, status: int) -> list[Action]:
    """The GET, and then the POST that is tried in its place."""
    actions: list[Action] = []
    while driver.carrier.is_open:
        actions += driver.carrier.refuse(status)
        sent = driver.sent("initialize")
        if sent.is_open and not driver.carrier.is_open:
            actions += sent.refuse(status)
    return actions


@pytest.mark.parametrize("status", [404, 405, 503])
def test_a_legacy_host_that_only_listens_gets_its_carrier_back(status: int) -> None:
    driver = Legacy().opened()
    driver.carrier.cut()
    refuse_legacy(driver, status)
    assert state(driver) is SessionState.LOST
    assert len(of(driver.elapse(TimerKind.REOPEN), Get)) == 1
    actions = refuse_legacy(driver, status)
    assert not of(actions, Get), "once"
    assert rests(actions) == [20.0]
    driver.elapse(TimerKind.REOPEN)
    assert reports(driver.reopened(), RefreshSuggested)
    assert state(driver) is SessionState.LIVE


def test_a_legacy_call_waits_for_the_server_that_a_router_has_not_found() -> None:
    driver = Legacy().opened()
    driver.carrier.cut()
    call = driver.call()
    for _ in range(8):
        driver.carrier.refuse(404)
        driver.sent("initialize").refuse(404)
    driver.reopened()
    answered = driver.answers(driver.sent("tools/call"))
    assert [m["id"] for m in delivered(answered)] == [call.host_id]


def test_sessions_that_die_at_once_are_opened_ever_more_rarely(
    driver: Driver,
) -> None:
    """Two replicas that know nothing of each other's sessions: what opens one is not what hears of it next."""
    refuse_all(driver, 503)
    waits = rests(driver.log)
    for opened in range(4):
        driver.elapse(TimerKind.REOPEN)
        driver.sent("initialize").answer(RESULT, session_id=f"session-{opened}")
        actions = driver.sent("notifications/initialized").refuse(404)
        assert not [p for p in of(actions, Post) if p.message["method"] == "initialize"]
        waits += rests(actions)
    assert waits == [10, 20, 40, 60, 60]


def test_one_that_lives_for_a_minute_is_as_good_as_the_first(driver: Driver) -> None:
    refuse_all(driver, 503)
    driver.elapse(TimerKind.REOPEN)
    driver.reinitialized()
    driver.elapse(TimerKind.BUDGET)
    driver.standalone.accept()
    driver.standalone.cut()
    driver.standalone.refuse(404)
    again = driver.sent("ping").refuse(404)
    assert [p.message["method"] for p in of(again, Post)] == ["initialize"]
