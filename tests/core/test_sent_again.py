"""A request that is sent again and again stays one request: what became of any sending holds for all of it."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Post
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Driver, Peer, delivered, of, outcomes, reports

LOOK: dict[str, Any] = {"name": "look", "annotations": {"readOnlyHint": True}}


@pytest.fixture
def driver() -> Driver:
    driver = Driver(GuardPolicy(reinitialize_limit=100)).opened()
    driver.listed(LOOK)
    return driver


def lost_once(driver: Driver) -> Peer:
    """A read-only call that may have run, and is under way again."""
    call = driver.call("look")
    assert outcomes(call.cut()) == [Outcome.RESENT]
    return call


def doubts(actions: list[Action]) -> list[CallInDoubt]:
    return [d for m in delivered(actions) if (d := CallInDoubt.find(m.get("result"))) is not None]


def refused_by_a_dead_session(driver: Driver) -> list[Action]:
    """The newest sending draws 404, and another session is opened."""
    actions = driver.sent("tools/call").refuse(404)
    return actions + driver.reinitialized(tools=[LOOK])


def test_refused_for_good_it_may_have_run_all_the_same(driver: Driver) -> None:
    lost_once(driver)
    for _ in range(2):
        assert Outcome.NOT_EXECUTED in outcomes(refused_by_a_dead_session(driver))
    actions = refused_by_a_dead_session(driver)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    (doubt,) = doubts(actions)
    assert doubt.reason == "HTTP 404; an earlier sending of it was lost"


def test_without_another_session_it_may_have_run_all_the_same(driver: Driver) -> None:
    lost_once(driver)
    driver.sent("tools/call").refuse(404)
    assert len(doubts(driver.sent("initialize").refuse(401))) == 1


def test_one_that_could_not_leave_in_time_may_have_run_all_the_same(driver: Driver) -> None:
    call = lost_once(driver)
    driver.sent("tools/call").not_written()
    actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    assert len(doubts(actions)) == 1


def test_one_that_is_cancelled_before_it_left_again_may_have_run_all_the_same(driver: Driver) -> None:
    call = lost_once(driver)
    driver.sent("tools/call").not_written()
    (settled,) = reports(driver.cancel(call), CallSettled)
    assert (settled.outcome, settled.reason) == (Outcome.CANCELLED, "cancelled by the caller")


def test_the_word_of_dead_sessions_uses_up_no_repeat(driver: Driver) -> None:
    """Each restart of a server can cost a harmless call two sendings: one lost, one refused."""
    lost_once(driver)
    refused_by_a_dead_session(driver)
    assert outcomes(driver.sent("tools/call").cut()) == [Outcome.RESENT]
    refused_by_a_dead_session(driver)
    assert delivered(driver.sent("tools/call").answer())


def test_nor_does_a_connection_that_was_refused(driver: Driver) -> None:
    """Nothing left: it waits for as many sessions as it takes."""
    for _ in range(5):
        call = driver.call("look")
        call.not_written()
        driver.call("look").refuse(404)
        driver.reinitialized(tools=[LOOK])
        assert delivered(driver.sent("tools/call").answer())


def test_a_post_that_is_under_way_outlives_its_session_on_its_second_attempt_too(driver: Driver) -> None:
    call = driver.call()
    call.not_written()
    call.begin()
    assert outcomes(driver.call("look").refuse(404)) == []
    driver.reinitialized(tools=[LOOK])
    actions = call.refuse(404)
    assert outcomes(actions) == [Outcome.NOT_EXECUTED], "the server's word, and it is sent again"
    assert [p.message["params"]["name"] for p in of(actions, Post)] == ["charge"]


def test_one_that_has_not_begun_is_sent_under_the_next_session(driver: Driver) -> None:
    call = driver.call()
    call.not_written()
    driver.call("look").refuse(404)
    driver.reinitialized(tools=[LOOK])
    sent = [p.message["params"]["name"] for p in of(driver.log, Post) if p.message.get("method") == "tools/call"]
    assert sent.count("charge") == 3, "twice under the lost session, of which nothing left"


def told(actions: list[Action]) -> list[Any]:
    return [m["params"].get("progress") for m in delivered(actions) if m.get("method") == "notifications/progress"]


@pytest.mark.parametrize("sendings", [2, 3])
def test_its_host_sees_progress_that_goes_on_and_does_not_start_over(driver: Driver, sendings: int) -> None:
    call = driver.call("look")
    call.accept()
    assert told(call.event(None, call.progress(3))) == [3]
    for _ in range(sendings - 1):
        driver.sent("tools/call").cut()
        again = driver.sent("tools/call")
        again.accept()
        assert told(again.event(None, again.progress(1))) == []
        assert told(again.event(None, again.progress(3))) == []
    assert told(again.event(None, again.progress(4))) == [4]
    assert told(again.event(None, again.progress(4))) == []
    assert outcomes(again.event(None, again.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("odd", [True, "2", None])
def test_what_is_no_number_is_not_compared(driver: Driver, odd: Any) -> None:
    call = driver.call("look")
    call.accept()
    assert told(call.event(None, call.progress(odd))) == [odd]
    call.cut()
    again = driver.sent("tools/call")
    again.accept()
    assert told(again.event(None, again.progress(odd))) == [odd]
    assert told(again.event(None, again.progress(1))) == [1]


def test_what_the_server_says_of_one_sending_passes_as_it_is(driver: Driver) -> None:
    call = driver.call("look")
    call.accept()
    assert told(call.event(None, call.progress(3)) + call.event(None, call.progress(2))) == [3, 2]
