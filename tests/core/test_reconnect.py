"""`reconnect()` opens anew what that can do no harm to, at once, and nothing else."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.actions import Action, AskUpgrade, Delay, Get, Hangup, OpenSocket, Post
from mcp_client_guard.core.inputs import ReconnectRequested, UpgradeAnswered
from mcp_client_guard.core.model import Grade
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import Disconnected, ListenedAgain
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Driver, delivered, evidence, gets, note, of, outcomes, reports
from tests.core.legacy import Legacy
from tests.core.test_listening import ack, again, listen, subscribed


def reconnect(driver: Driver) -> list[Action]:
    return driver.feed(ReconnectRequested(driver.now))


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


def test_a_stream_that_can_be_resumed_is_and_proves_itself(driver: Driver) -> None:
    call = driver.call().stream_up("e1")
    before = call.connection
    actions = reconnect(driver)
    assert before in [hangup.connection for hangup in of(actions, Hangup)]
    assert gets(actions) == [(call.stream, "p")]
    assert [each.reason for each in reports(actions, Disconnected)] == ["reconnect() was called"]
    call.accept()
    assert evidence(call.event("e1", call.progress(1)))[0].grade is Grade.PROVEN
    assert len(delivered(call.event("e2", call.result()))) == 1


def test_a_call_that_cannot_be_resumed_is_left_alone_and_a_ping_is_sent(driver: Driver) -> None:
    unanswered, unprimed = driver.call(n=1), driver.call(n=2)
    unprimed.accept()
    actions = reconnect(driver)
    assert not of(actions, Hangup)
    assert [post.message["method"] for post in of(actions, Post)] == ["ping"]
    assert outcomes(unanswered.answer()) == outcomes(unprimed.event(None, unprimed.result()))


def test_so_is_a_call_without_a_session() -> None:
    driver = Driver()
    driver.request("tools/call", {"name": "charge"}, mcp_protocol_version="2026-07-28").accept()
    assert reconnect(driver) == []


def test_the_standalone_stream_is_opened_again_where_it_was(driver: Driver) -> None:
    driver = Driver().opened(standalone=True)
    assert gets(reconnect(driver)) == [(0, None)]
    driver.standalone.accept()
    driver.standalone.event("s1", note("x"))
    driver.standalone.event("s2", note("y"))
    driver.now += 1
    assert gets(reconnect(driver)) == [(0, "s1")]


def test_so_is_one_whose_socket_is_not_open_yet_however_long_the_event_stream_had_to_wait() -> None:
    driver = Driver(upgrades=True).opened(standalone=True)
    driver.standalone.refuse(503, retry_after=5)
    driver.standalone.accept()
    driver.standalone.event("s1", note("x"))
    driver.standalone.event("s2", note("y"))
    (question,) = of(driver.log, AskUpgrade)
    driver.begins = False
    assert of(driver.feed(UpgradeAnswered(question.question, 200, {"ticket": "t1"})), OpenSocket)
    assert gets(reconnect(driver)) == [(0, "s1")]


def test_what_it_draws_itself_draws_it_only_once(driver: Driver) -> None:
    """A handler of `Disconnected` that calls it would never end."""
    driver = Driver().opened(standalone=True)
    assert reports(reconnect(driver), Disconnected)
    assert not reconnect(driver)
    driver.now += 1
    assert reports(reconnect(driver), Disconnected)


def test_what_waits_for_its_next_attempt_waits_no_more(driver: Driver) -> None:
    call, posted = driver.call().stream_up("e1"), driver.call(n=2)
    posted.not_written()
    for _ in range(4):
        call.cut()
    assert call.order.delay.attempt
    assert posted.order.delay.attempt
    reconnect(driver)
    assert not call.order.delay.attempt
    assert not posted.order.delay.attempt


@pytest.mark.parametrize("retry_after", [None, 20.0])
def test_so_does_what_a_busy_server_refused_unless_it_has_named_its_time(
    driver: Driver, retry_after: float | None
) -> None:
    driver.request("tools/list").refuse(503, retry_after=retry_after)
    driver.sent("ping").answer({})
    again = driver.sent("tools/list")
    assert again.order.delay.attempt
    reconnect(driver)
    assert bool(again.order.delay.attempt) is (retry_after is not None)
    assert again.is_open


def test_a_stream_of_a_server_that_has_named_its_time_waits_for_it(driver: Driver) -> None:
    call = driver.call().stream_up("e1")
    call.cut()
    call.refuse(503, retry_after=20.0)
    waiting = call.connection
    reconnect(driver)
    assert call.connection == waiting


def test_what_may_have_side_effects_is_not_ordered_before_its_row_is_on_disk() -> None:
    driver = Driver(GuardPolicy(trust_status=True)).opened()
    driver.call().refuse(429)
    again = driver.sent("tools/call")
    assert not [post for post in of(reconnect(driver), Post) if post.stream == again.stream]
    again.not_written()
    driver.now += 1
    reconnect(driver)
    assert not again.order.delay.attempt


# Subscriptions of 2026-07-28: the guard makes one again by itself, and has the host read all anew.


def test_a_subscription_that_stands_is_made_anew_and_the_host_reads_again() -> None:
    driver, peer = subscribed()
    peer.event(None, retry=3000)
    actions = reconnect(driver)
    new = again(driver, actions)
    assert peer.connection in [hangup.connection for hangup in of(actions, Hangup)]
    assert new.order.delay == Delay(0, 3000, cap=60.0)
    told = ack(new)
    assert reports(told, ListenedAgain)
    assert [m["method"] for m in delivered(told)] == ["notifications/tools/list_changed"]


def test_a_subscription_that_waits_goes_out_and_waits_less_from_then_on() -> None:
    driver, peer = subscribed()
    for _ in range(8):
        peer = again(driver, peer.cut())
    assert peer.order.delay.attempt == 7
    assert again(driver, reconnect(driver)).stream == peer.stream, "nothing of it had left"
    assert not peer.order.delay.attempt
    assert again(driver, peer.cut()).order.delay.attempt == 1


def test_one_that_was_not_acknowledged_yet_is_made_anew_where_the_host_is_subscribed() -> None:
    driver, peer = subscribed()
    sent = again(driver, peer.cut())
    assert again(driver, reconnect(driver)).stream != sent.stream
    first = Driver()
    listen(first)
    assert reconnect(first) == [], "the first one is a request like any other"


def test_what_goes_out_at_once_is_left_to_go(driver: Driver) -> None:
    driver.begins = False
    driver.call()
    assert not of(reconnect(driver), Hangup)


def test_the_pace_of_the_server_is_kept_to(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    call.event("p", retry=3000)
    reconnect(driver)
    assert call.order.delay.retry_ms == 3000


def test_it_is_no_fruitless_resume_however_often(driver: Driver) -> None:
    call = driver.call().stream_up("e1")
    for _ in range(50):
        driver.now += 10
        reconnect(driver)
        assert not call.order.delay.attempt
        call.accept()
        call.event("e1", call.progress(1))
    assert call.is_open


def test_what_is_on_trial_was_just_resumed(driver: Driver) -> None:
    call = driver.call().stream_up("e1")
    call.resumed()
    assert not gets(reconnect(driver))
    assert call.is_open


def test_a_session_that_could_not_be_opened_is_tried_again_with_its_whole_budget(driver: Driver) -> None:
    driver.call().refuse(404)
    while driver.is_waited_for("initialize"):
        driver.sent("initialize").refuse(500)
    reconnect(driver)
    assert driver.is_waited_for("initialize")
    driver.reinitialized()
    assert outcomes(driver.call(n=2).answer())


def test_an_answer_that_is_held_for_a_last_look_is_not_put_off(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    for event_id in ("e1", "e2"):
        call.event(event_id, call.progress(1))
    call.resumed()
    call.event("e2", call.progress(1))
    assert not delivered(call.event("e9", call.result()))
    assert not gets(reconnect(driver))
    assert len(delivered(driver.elapse(TimerKind.CLOSING))) == 1


def test_a_legacy_session_is_its_stream_and_stands() -> None:
    driver = Legacy().opened()
    driver.call()
    actions = reconnect(driver)
    assert not of(actions, Hangup)
    assert not of(actions, Get)


def test_the_answer_of_a_lost_session_is_read_to_its_end(driver: Driver) -> None:
    """It has a cursor, but no session to resume it under: once cut, its call would be in doubt."""
    call = driver.call().stream_up("e1")
    driver.call("other").refuse(404)
    driver.reinitialized()
    actions = reconnect(driver)
    assert not outcomes(actions)
    assert call.connection not in [hangup.connection for hangup in of(actions, Hangup)]
    assert len(delivered(call.event("e2", call.result()))) == 1


def test_so_is_one_that_brought_what_could_not_be_read(driver: Driver) -> None:
    """The answer may still follow."""
    call = driver.call().stream_up("e1")
    call.event("e2", {"jsonrpc": "2.0", "id": call.stream})
    assert not outcomes(reconnect(driver))
    assert len(delivered(call.event("e3", call.result()))) == 1


def test_it_is_not_the_fruitless_resume_that_is_one_too_many(driver: Driver) -> None:
    call = driver.call().stream_up()
    call.cut()
    for _ in range(5):
        call.accept()
        call.end(after=0.5)
    call.accept()
    driver.elapse(TimerKind.WITNESS)
    driver.now += 70
    actions = reconnect(driver)
    assert not outcomes(actions)
    assert gets(actions) == [(call.stream, "p")]
