"""A client with a limit: a request waits for a connection, and holds up nothing but the requests behind it."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core import crowding
from mcp_client_guard.core.actions import Hangup, Post, Save, TimerKind
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED
from mcp_client_guard.core.inputs import ConnectionFreed
from tests.core.driver import Driver, Peer, delivered, of, outcomes

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
