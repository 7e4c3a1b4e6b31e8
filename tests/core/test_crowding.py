"""A client with a limit: a request waits for a connection, and holds up nothing but the requests behind it."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core import crowding
from mcp_client_guard.core.actions import Hangup, Post, Save
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED
from mcp_client_guard.core.inputs import ConnectionFreed, MessageSubmitted
from mcp_client_guard.core.meta import CALL_KEY
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import RepeatJoined, RepeatRefused
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.core.verdicts import Resend
from tests.core.driver import Driver, Peer, delivered, in_doubt, of, outcomes, reports
from tests.core.legacy import Legacy

VERSION = "2026-07-28"


def limited(
    max_calls: int, spare: int = 4, *, policy: GuardPolicy | None = None, has_hook: bool = False
) -> Driver:
    """A live session, and nothing under way."""
    driver = Driver(policy or GuardPolicy(), max_calls=max_calls, spare=spare, has_hook=has_hook).opened()
    for connection in range(1, 9):
        driver.feed(ConnectionFreed(connection))
    return driver


def refused(driver: Driver, status: int) -> Peer:
    """A call that is refused, and its connection free."""
    call = driver.call("a")
    end = call.stale()
    call.refuse(status)
    end.free()
    return call


def posted(actions: list[Any]) -> list[str]:
    return [p.message.get("params", {}).get("name", p.message["method"]) for p in of(actions, Post)]


def named(driver: Driver, name: str) -> Peer:
    return driver.request("tools/call", {"name": "charge", "arguments": {}, "_meta": {CALL_KEY: name}})


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


def test_a_call_has_one_deadline_for_its_wait_and_its_sendings() -> None:
    driver = limited(1, policy=GuardPolicy(call_deadline={"b": 10}))
    first = driver.call("a")
    driver.call("b")
    ends = [at for timer, at in driver.timers.items() if timer.kind is TimerKind.DEADLINE]
    assert max(ends) - driver.now == 3600
    assert min(ends) - driver.now == 10
    driver.now += 9
    assert posted(first.answer() + first.free()) == ["b"]
    assert [at for timer, at in driver.timers.items() if timer.kind is TimerKind.DEADLINE] == [min(ends)]
    assert in_doubt(driver.elapse(TimerKind.DEADLINE))


def test_those_that_were_refused_with_the_session_have_a_connection_first() -> None:
    driver = limited(2)
    calls = [driver.call(tool) for tool in "ab"]
    refused = [(call, call.stale()) for call in calls]
    for call, end in refused:
        call.refuse(404)
        end.free()
    for tool in "cd":
        driver.call(tool)
    opening = driver.sent("initialize").stale()
    assert posted(driver.reinitialized())[-2:] == ["a", "b"]
    assert not posted(opening.free())
    assert driver.machine.queued == 2
    again = driver.peer(driver.sent("tools/call").stream)
    assert posted(again.answer() + again.free()) == ["c"]


def with_one_asked_about() -> tuple[Driver, Peer]:
    """The hook is asked about the call that had the only connection; another waits for that."""
    driver = limited(1, has_hook=True)
    call = driver.call("a")
    end = call.stale()
    call.cut()
    end.free()
    driver.call("b")
    return driver, call


def test_what_the_hook_is_asked_about_keeps_its_connection() -> None:
    driver, call = with_one_asked_about()
    actions = driver.reconciled(call, Resend())
    assert posted(actions) == ["a"]
    again = driver.peer(of(actions, Post)[0].stream)
    assert posted(again.answer() + again.free()) == ["b"]


def test_a_doubt_frees_its_connection_at_once() -> None:
    driver, call = with_one_asked_about()
    assert posted(driver.reconciled(call, failed="ValueError")) == ["b"]


def test_a_refusal_that_may_mean_a_lost_session_keeps_its_connection_until_a_ping_was_answered() -> None:
    driver = limited(1)
    refused(driver, 400)
    driver.call("b")
    ping = driver.sent("ping")
    assert not posted(ping.answer({}))
    assert posted(ping.free()) == ["b"]


def test_what_waits_for_the_endpoint_of_a_legacy_server_is_to_have_a_connection() -> None:
    driver = Legacy(max_calls=1, spare=2)
    for tool in "ab":
        driver.call(tool)
    assert posted(driver.serves()) == ["a"]
    call = driver.sent("tools/call")
    assert posted(driver.takes(call) + call.free()) == ["b"]


def test_what_waits_for_a_connection_is_refused_with_the_session_it_needs() -> None:
    driver = limited(1)
    calls = [driver.call(tool) for tool in "ab"]
    driver.request("tools/list", mcp_protocol_version=VERSION)
    end = calls[0].stale()
    calls[0].refuse(404)
    end.free()
    opening = driver.sent("initialize").stale()
    actions = driver.sent("initialize").refuse(403)
    assert {answer["id"] for answer in delivered(actions)} == {call.host_id for call in calls}
    assert posted(actions + opening.free()) == ["tools/list"], "this one needs none"


def test_what_waits_for_a_session_lets_pass_what_waits_for_a_connection_alone() -> None:
    driver = limited(1)
    first = refused(driver, 404)
    driver.call("b")
    driver.request("tools/list", mcp_protocol_version=VERSION)
    driver.cancel(first)
    opening = driver.sent("initialize")
    opening.accept()
    assert posted(opening.free()) == ["tools/list"]
    assert driver.machine.queued == 1


# Repeats.


def test_a_repeat_joins_the_call_that_holds_the_connection() -> None:
    driver = limited(1)
    call = driver.call("charge").stream_up("e1")
    call.cut()
    repeat = driver.call("charge")
    assert len(reports(repeat.actions, RepeatJoined)) == 1
    call.accept()
    call.event("e1", call.progress(1))
    answers = delivered(call.event("e2", call.result()))
    assert [answer["id"] for answer in answers] == [call.host_id, repeat.host_id]


def test_a_repeat_of_a_doubt_is_refused_without_a_connection_and_however_long_it_had_waited() -> None:
    driver = limited(1)
    call = driver.call("charge")
    end = call.stale()
    call.cut()
    end.free()
    driver.call("slow")
    assert len(reports(driver.call("charge").actions, RepeatRefused)) == 1


def test_two_calls_alike_on_healthy_streams_stay_two_whatever_the_first_comes_to() -> None:
    driver = limited(1)
    first = driver.call("charge")
    driver.call("charge")
    actions = first.cut()
    assert in_doubt(actions)
    assert posted(actions) == ["charge"]


def test_a_repeat_joins_one_that_waits_by_the_name_of_both() -> None:
    driver = limited(1)
    first = driver.call("slow")
    waiting, repeat = named(driver, "order-1"), named(driver, "order-1")
    assert len(reports(repeat.actions, RepeatJoined)) == 1
    again = driver.peer(of(first.answer() + first.free(), Post)[0].stream)
    assert [answer["id"] for answer in delivered(again.answer())] == [waiting.host_id, repeat.host_id]


def test_one_that_waits_is_cancelled_and_so_are_those_that_joined_it() -> None:
    driver = limited(1)
    driver.call("slow")
    waiting, repeat = named(driver, "order-1"), named(driver, "order-1")
    (answer,) = delivered(driver.cancel(waiting))
    assert (answer["id"], answer["error"]["code"]) == (repeat.host_id, CODE_NOT_EXECUTED)


def test_consent_to_one_that_waited_in_vain_is_as_good_as_before() -> None:
    driver = limited(1)
    call = driver.call("charge")
    end = call.stale()
    call.cut()
    end.free()
    driver.call("slow")
    driver.machine.shared.consent("key-2")
    repeat = driver.call("charge")
    assert driver.machine.queued == 1
    driver.cancel(repeat)
    assert "key-2" in driver.machine.shared.consents


def test_one_that_waits_goes_on_with_the_call_that_it_continues() -> None:
    driver = Driver(max_calls=1, spare=4)
    first = driver.request("tools/call", {"name": "pay", "arguments": {}}, mcp_protocol_version=VERSION)
    end = first.stale()
    first.answer({"resultType": "input_required", "requestState": "s"})
    end.free()
    slow = driver.request("tools/list", mcp_protocol_version=VERSION)
    goes_on = {"name": "pay", "arguments": {}, "inputResponses": {}, "requestState": "s"}
    gone = driver.request("tools/call", goes_on, mcp_protocol_version=VERSION)
    driver.cancel(gone)
    driver.request("tools/call", goes_on, mcp_protocol_version=VERSION)
    (post,) = of(slow.answer({"tools": []}) + slow.free(), Post)
    assert post.message["params"]["_meta"][CALL_KEY] == "key-1"


def test_what_comes_with_the_end_of_an_exchange_overtakes_none_that_waits() -> None:
    driver = limited(1)
    first = driver.call("a")
    driver.call("b")
    first.answer()
    late = {"jsonrpc": "2.0", "id": "late", "method": "tools/call", "params": {"name": "c", "arguments": {}}}
    actions = driver.machine.receive(ConnectionFreed(first.connection), MessageSubmitted(late, {}, "key-late"))
    assert posted(actions) == ["b"]


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


def test_a_subscription_that_had_to_wait_does_not_get_the_last_either() -> None:
    driver = Driver(max_calls=2, spare=1)
    calls = [driver.request("tools/list", mcp_protocol_version=VERSION) for _ in range(2)]
    subscriptions = [subscribe(driver) for _ in range(3)]
    assert [len(of(each.actions, Post)) for each in subscriptions] == [1, 0, 0]
    actions = calls[0].answer() + calls[0].free()
    assert posted(actions) == ["subscriptions/listen"]
    (answer,) = delivered(actions)[1:]
    assert answer["id"] == subscriptions[2].host_id
    assert "another subscription" in answer["error"]["message"]
    calls[1].answer()
    calls[1].free()
    assert of(driver.request("tools/list", mcp_protocol_version=VERSION).actions, Post)


def test_a_subscription_that_waits_gets_a_spare_connection_that_comes_free() -> None:
    driver = Driver(max_calls=2, spare=1)
    for _ in range(2):
        driver.request("tools/list", mcp_protocol_version=VERSION)
    first = subscribe(driver)
    subscribe(driver)
    assert posted(driver.cancel(first)) == ["subscriptions/listen"]


def test_in_a_session_the_same_method_is_a_request_like_any_other() -> None:
    driver = limited(1, 1)
    driver.call("a")
    assert not of(driver.request("subscriptions/listen").actions, Post)


def test_without_a_limit_nothing_waits() -> None:
    driver = Driver().opened()
    assert all(of(driver.call(tool).actions, Post) for tool in "abcdefgh")
    assert driver.feed(ConnectionFreed(1)) == []


def test_one_that_waited_for_a_connection_when_the_session_was_lost_is_joined_by_its_repeat() -> None:
    driver = limited(1)
    busy, waiting = driver.call("busy"), driver.call("charge")
    assert not of(waiting.actions, Post)
    busy.refuse(404)
    busy.free()
    assert reports(driver.call("charge").actions, RepeatJoined)
