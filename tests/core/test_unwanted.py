"""A stream whose request has its outcome goes on for `max_idle` at most, whatever bytes come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcp_client_guard.core.actions import Action, Get, Hangup, Post
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.report import Discontinuity
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Driver, Peer, delivered, note, of, outcomes, reports
from tests.core.legacy import Legacy

UNWANTED = TimerKind.UNWANTED


@pytest.fixture
def driver() -> Driver:
    return Driver().opened(standalone=True)


def outstays(peer: Peer) -> list[Action]:
    return peer.driver.elapse(UNWANTED, peer.stream)


def is_limited(peer: Peer) -> bool:
    return peer.driver.is_set(UNWANTED, peer.stream)


SETTLED: dict[str, Callable[[Peer], object]] = {
    "cancelled": lambda call: call.driver.cancel(call),
    "its deadline": lambda call: call.driver.elapse(TimerKind.DEADLINE, call.stream),
    "answered on the standalone stream": lambda call: call.driver.standalone.event(None, call.result()),
}
settled = pytest.mark.parametrize("settle", SETTLED.values(), ids=SETTLED)


@settled
@pytest.mark.parametrize("kind", ["not answered", "events", "a body without an end"])
def test_a_stream_that_nobody_waits_for_is_closed_after_max_idle(
    driver: Driver, settle: Callable[[Peer], object], kind: str
) -> None:
    call = driver.call()
    if kind != "not answered":
        call.accept(events=kind == "events")
    settle(call)
    assert call.is_open, "a late answer may come, or a question of the server's"
    began = driver.now
    actions = outstays(call)
    assert driver.now - began == driver.policy.max_idle
    assert not call.is_open
    assert not of(actions, Get)
    assert not reports(actions, Discontinuity)


@settled
def test_nothing_that_comes_until_then_gives_it_more_time(
    driver: Driver, settle: Callable[[Peer], object]
) -> None:
    call = driver.call()
    call.accept()
    settle(call)
    ends = driver.now + driver.policy.max_idle
    for _ in range(3):
        driver.now += 20
        assert delivered(call.event(None, note("still here")))
        driver.standalone.event(None, call.result())  # where it is late, it is settled a second time
    outstays(call)
    assert driver.now == ends
    assert not call.is_open


def test_a_stream_that_is_opened_again_while_a_ping_decides_on_its_answer_has_its_time_too(
    driver: Driver,
) -> None:
    call = driver.call().stream_up("e1")
    driver.standalone.event(None, call.error())
    assert is_limited(call)
    before = call.connection
    call.cut()
    assert call.connection != before
    assert is_limited(call)


def test_an_answer_that_comes_until_then_is_still_its_own(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    driver.elapse(TimerKind.DEADLINE, call.stream)
    assert outcomes(call.event(None, call.result())) == [Outcome.RECOVERED]
    assert not call.is_open
    assert not is_limited(call)


@pytest.mark.parametrize("method", ["tools/call", "ping"])
def test_no_request_that_is_waited_for_is_limited(driver: Driver, method: str) -> None:
    sent = driver.request(method)
    sent.accept()
    sent.event("e1", note("x"))
    assert not is_limited(sent)
    sent.event("e2", sent.result())
    assert not is_limited(sent)
    assert not driver.is_set(UNWANTED, 0)


def test_nor_one_of_a_lost_session_that_is_still_being_answered(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    driver.call("other").refuse(404)
    driver.reinitialized()
    assert not is_limited(call)
    driver.elapse(TimerKind.DEADLINE, call.stream)
    outstays(call)
    assert not call.is_open


def test_one_that_asks_in_a_session_that_was_replaced_is(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    driver.call("other").refuse(404)
    driver.reinitialized()
    driver.ask(call)
    outstays(call)
    assert not call.is_open


def test_a_request_of_the_guard_s_own_that_is_not_answered_in_time_is(driver: Driver) -> None:
    driver.call().idle()
    ping = driver.sent("ping")
    ping.accept()
    driver.elapse(TimerKind.DEADLINE, ping.stream)
    outstays(ping)
    assert not ping.is_open


def test_the_stream_of_a_call_without_a_session_ends_with_it(driver: Driver) -> None:
    call = driver.request("tools/call", {"name": "charge"}, mcp_protocol_version="2026-07-28")
    call.accept()
    driver.cancel(call)
    assert not call.is_open
    assert not is_limited(call)


# Where something may be missing yet.


@pytest.fixture
def overtaken(driver: Driver) -> Peer:
    """It was answered on the standalone stream, and its own, which can be resumed, says nothing more of that."""
    call = driver.call().stream_up("e1")
    driver.standalone.event(None, call.result())
    return call


def test_what_its_log_still_holds_is_asked_for(overtaken: Peer) -> None:
    assert [get.last_event_id for get in of(outstays(overtaken), Get)] == ["p"]
    overtaken.accept()
    overtaken.event("e1", overtaken.progress(1))
    assert delivered(overtaken.event("e2", note("missed")))
    actions = outstays(overtaken)
    assert not overtaken.is_open, "behind the witness the log is at its end"
    assert not of(actions, Get)
    assert not reports(actions, Discontinuity)


def test_and_if_it_never_proves_itself_the_loss_is_reported_in_the_end(overtaken: Peer) -> None:
    actions: list[Action] = []
    looks = 0
    while overtaken.is_open:
        looks += 1
        assert looks <= overtaken.driver.policy.max_attempts + 1
        overtaken.begin()
        overtaken.accept()
        overtaken.event(f"p{looks}")
        actions += outstays(overtaken)
    assert reports(actions, Discontinuity)
    assert not is_limited(overtaken)


def test_the_wait_before_it_is_opened_again_is_not_of_its_time(driver: Driver) -> None:
    call = driver.call().stream_up("e1")
    call.event(None, note("x"), retry=60_000)
    driver.begins = False
    call.cut()
    driver.standalone.event(None, call.result())
    assert not is_limited(call)
    call.begin()
    assert is_limited(call)


TWO_HOURS = 7_200_000


@pytest.mark.parametrize("answered", ["before the cut", "while it waits"])
def test_one_that_is_wanted_back_later_than_that_is_not_looked_at_again(driver: Driver, answered: str) -> None:
    call = driver.call().stream_up("e1")
    call.event(None, note("x"), retry=TWO_HOURS)
    driver.begins = False
    actions = call.cut() if answered == "while it waits" else []
    actions += driver.standalone.event(None, call.result())
    actions += call.cut() if answered == "before the cut" else []
    assert not call.is_open
    assert [each.stream for each in reports(actions, Discontinuity)] == [str(call.stream)]


def test_nor_one_that_a_busy_server_wants_so_late(overtaken: Peer) -> None:
    overtaken.cut()
    actions = overtaken.refuse(503, retry_after=3600.0)
    assert not overtaken.is_open
    assert reports(actions, Discontinuity)


def test_a_call_that_is_waited_for_waits_for_as_long_as_the_server_wants(driver: Driver) -> None:
    call = driver.call().stream_up("e1")
    call.event(None, note("x"), retry=TWO_HOURS)
    assert of(call.cut(), Get)


def test_its_place_is_free_for_the_next_call() -> None:
    driver = Driver(max_calls=1, spare=4).opened(standalone=True)
    driver.sent("initialize").free()
    call = driver.call().stream_up("e1")
    call.event(None, note("x"), retry=TWO_HOURS)
    driver.begins = False
    posted = call.stale()
    call.cut()
    posted.free()
    driver.standalone.event(None, call.result())
    assert of(driver.call("next").actions, Post)


def test_another_attempt_has_a_time_of_its_own(overtaken: Peer) -> None:
    driver = overtaken.driver
    driver.now += 50
    overtaken.cut()
    began = driver.now
    outstays(overtaken)
    assert driver.now - began == driver.policy.max_idle


def test_an_error_that_may_not_be_its_answer_leaves_it_open_until_that_is_known(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    driver.standalone.event(None, call.error(-32600))
    assert not outcomes(outstays(call))
    assert call.is_open
    driver.sent("ping").answer()
    outstays(call)
    assert not call.is_open


def test_a_last_look_that_another_answer_overtakes_comes_to_its_own_end(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    call.event("e1", call.progress(1))
    call.event("e2", call.progress(2))
    call.resumed()
    call.event("e2", call.progress(2))
    assert not delivered(call.event("e9", call.result())), "it is held"
    driver.standalone.event(None, call.result())
    assert not of(outstays(call), Hangup)
    driver.elapse(TimerKind.CLOSING)
    assert not call.is_open


def test_a_last_look_is_not_late_because_the_resume_before_it_was(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    call.event("e1", call.progress(1))
    call.event("e2", call.progress(2))
    call.cut()
    call.refuse(503, retry_after=3600)
    call.accept()
    call.event("e2", call.progress(2))
    driver.begins = False
    assert not delivered(call.event("e9", call.result())), "it is held"
    driver.standalone.event(None, call.result())
    assert call.is_open
    driver.elapse(TimerKind.CLOSING)
    assert not call.is_open


# In a legacy session.


def test_so_is_the_post_of_a_legacy_session_and_never_its_carrier() -> None:
    driver = Legacy().opened()
    call = driver.call()
    call.accept()
    driver.cancel(call)
    outstays(call)
    assert not call.is_open
    assert driver.carrier.is_open
    assert not driver.is_set(UNWANTED, 0)


def test_one_that_was_taken_there_and_is_answered_by_another_post_is_forgotten() -> None:
    driver = Legacy().opened()
    call, other = driver.call(), driver.call(n=2)
    driver.takes(call)
    other.accept()
    assert outcomes(other.event(None, call.result())) == [Outcome.COMPLETED]
    outstays(call)
    assert call.stream not in driver.machine._streams._streams
