"""A client with a limit: a request waits for a connection, and holds up nothing but the requests behind it."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core import crowding, notes
from mcp_client_guard.core.actions import Hangup, Post, Save, TimerKind
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED
from mcp_client_guard.core.inputs import ConnectionFreed
from mcp_client_guard.core.report import NotificationLost
from tests.core.driver import Driver, Peer, delivered, of, outcomes, reports

VERSION = "2026-07-28"


def limited(max_calls: int, spare: int = 4) -> Driver:
    """A live session, and nothing under way."""
    driver = Driver(max_calls=max_calls, spare=spare).opened()
    for connection in range(1, 9):
        driver.feed(ConnectionFreed(connection))
    return driver


def posted(actions: list[Any]) -> list[str]:
    return [p.message["params"].get("name", p.message["method"]) for p in of(actions, Post)]


def subscribe(driver: Driver) -> Peer:
    params = {"notifications": {"toolsListChanged": True}}
    return driver.request("subscriptions/listen", params, mcp_protocol_version=VERSION)


def test_one_more_than_there_is_room_for_waits_and_nothing_of_it_is_written() -> None:
    driver = limited(2)
    first, second = driver.call("a"), driver.call("b")
    third = driver.call("c")
    assert not of(third.actions, Post)
    assert not of(third.actions, Save)
    assert not posted(first.answer()), "its connection is in use until the exchange is over"
    assert posted(first.free()) == ["c"]
    assert not posted(second.answer() + second.free())


def test_they_go_in_the_order_they_came_and_none_overtakes() -> None:
    driver = limited(1)
    last = driver.call("a")
    for tool in "bcd":
        driver.call(tool)
    for tool in "bcd":
        actions = last.answer() + last.free()
        assert posted(actions) == [tool]
        last = driver.peer(of(actions, Post)[0].stream)


def test_what_was_hung_up_is_free_at_once() -> None:
    driver = limited(1)
    driver.begins = False
    first = driver.call("a")
    driver.call("b")
    actions = driver.cancel(first)
    assert Hangup(first.connection) in actions
    assert posted(actions) == ["b"]


def test_an_answer_a_cancel_and_a_notification_pass_a_request_that_waits() -> None:
    """It is they that end the call which holds the connection."""
    driver = limited(1)
    call = driver.call("ask")
    call.accept()
    (question,) = delivered(driver.ask(call, 77))
    driver.call("other")
    answer = driver.submit({"jsonrpc": "2.0", "id": question["id"], "result": {}})
    assert [p.message["id"] for p in of(answer, Post)] == [77]
    assert posted(driver.notify("notifications/progress")) == ["notifications/progress"]
    assert posted(driver.cancel(call)) == ["notifications/cancelled"]


def test_a_request_that_is_cancelled_while_it_waits_is_never_sent() -> None:
    driver = limited(1)
    first = driver.call("a")
    second, third = driver.call("b"), driver.call("c")
    assert not delivered(driver.cancel(second))
    assert not driver.is_set(TimerKind.DEADLINE, first.stream + 1)
    assert posted(first.answer() + first.free()) == ["c"]
    assert third.host_id not in [answer["id"] for answer in delivered(driver.log)]


def test_the_cancel_of_another_drops_none() -> None:
    driver = limited(1)
    first = driver.call("a")
    driver.call("b")
    driver.submit({"jsonrpc": "2.0", "method": "notifications/cancelled"})
    assert posted(first.answer() + first.free()) == ["b"]


def test_one_for_which_no_connection_becomes_free_in_time_was_not_executed() -> None:
    driver = limited(1)
    first = driver.call("a")
    second = driver.call("b")
    actions = driver.elapse(TimerKind.DEADLINE, first.stream + 1)
    (answer,) = delivered(actions)
    assert answer["id"] == second.host_id
    assert (answer["error"]["code"], answer["error"]["data"]["by"]) == (CODE_NOT_EXECUTED, "wire")
    assert not of(actions, Save), "it has no row"
    assert not posted(first.answer() + first.free())


def test_a_call_has_its_deadline_once_it_is_in() -> None:
    driver = limited(1)
    first = driver.call("a")
    driver.call("b")
    actions = first.answer() + first.free()
    (post,) = of(actions, Post)
    assert [timer.stream for timer in driver.timers if timer.kind is TimerKind.DEADLINE] == [post.stream]


def test_those_that_wait_for_the_session_are_to_have_a_connection_first() -> None:
    driver = limited(1)
    call = driver.call("a")
    call.refuse(404)
    call.free()
    assert driver.machine.queued == 0
    waiting = driver.call("b")
    assert driver.machine.queued == 0, "the guard's own `initialize` holds the only connection"
    opening = driver.sent("initialize")
    driver.reinitialized()
    opening.free()
    assert not of(waiting.actions, Post)


def test_an_initialize_waits_for_no_connection() -> None:
    driver = limited(1)
    driver.call("a")
    assert posted(driver.request("initialize", {"protocolVersion": "2025-11-25"}).actions) == ["initialize"]


def test_the_host_leaves_and_nothing_that_waits_is_sent() -> None:
    driver = limited(1)
    first = driver.call("a")
    driver.call("b")
    driver.close()
    assert not posted(first.free())
    assert len(outcomes(driver.log)) == 2, "the `initialize`, and the first call"


def test_too_many_that_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "MOST_WAITING", 2)
    driver = limited(1)
    for tool in "abc":
        driver.call(tool)
    refused = driver.call("d")
    (answer,) = delivered(refused.actions)
    assert (answer["id"], answer["error"]["code"]) == (refused.host_id, CODE_NOT_EXECUTED)


def test_subscriptions_take_what_is_left_beside_the_calls_then_theirs_and_never_the_last() -> None:
    driver = Driver(max_calls=2, spare=1)
    assert [len(of(subscribe(driver).actions, Post)) for _ in range(3)] == [1, 1, 0]
    assert "another subscription" in delivered(driver.log)[-1]["error"]["message"]
    first = driver.request("tools/list", mcp_protocol_version=VERSION)
    assert of(first.actions, Post), "the last connection is for what ends by itself"
    assert not of(driver.request("prompts/list", mcp_protocol_version=VERSION).actions, Post)


def test_a_subscription_waits_where_calls_hold_what_it_could_have() -> None:
    driver = Driver(max_calls=2, spare=0)
    calls = [driver.request("tools/list", mcp_protocol_version=VERSION) for _ in range(2)]
    waiting = subscribe(driver)
    assert not of(waiting.actions, Post)
    assert not delivered(waiting.actions)
    assert posted(calls[0].answer() + calls[0].free()) == ["subscriptions/listen"]


def test_in_a_session_the_same_method_is_a_request_like_any_other() -> None:
    driver = limited(1, 1)
    driver.call("a")
    assert not of(driver.request("subscriptions/listen").actions, Post)


def test_without_a_limit_nothing_waits() -> None:
    driver = Driver().opened()
    assert all(of(driver.call(tool).actions, Post) for tool in "abcdefgh")
    assert driver.feed(ConnectionFreed(1)) == []


# Notifications.


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
    first, second, *waiting = (tell(driver, step) for step in range(5))
    assert [told(peer.actions) for peer in (first, second, *waiting)] == [[0], [1], [], [], []]
    assert of(driver.call("other").actions, Post)
    assert of(driver.submit({"jsonrpc": "2.0", "id": question["id"], "result": {}}), Post)
    assert told(second.accept(status=202, events=False) + second.free()) == [2]
    assert told(first.cut() + first.free()) == [3]


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
    assert [lost.why for lost in reports(actions, NotificationLost)] == ["cut", "its session is gone"]


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


def test_none_that_waits_is_sent_once_the_host_has_left() -> None:
    driver = limited(2, spare=1)
    for step in range(3):
        tell(driver, step)
    assert not of(driver.close(), Post)
