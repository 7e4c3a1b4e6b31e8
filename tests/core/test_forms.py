"""No repeat is answered in another form than it asks for: SDKs raise, and whoever calls again runs it twice."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Post
from mcp_client_guard.core.answers import CODE_IN_DOUBT
from mcp_client_guard.core.doubt import IN_DOUBT_KEY, CallInDoubt
from mcp_client_guard.core.forms import why_unread
from mcp_client_guard.core.ledger import Joined
from mcp_client_guard.core.meta import CALL_KEY
from mcp_client_guard.core.model import JSON, Outcome, Told
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.core.verdicts import Fail, Resolve
from tests.core.driver import Peer, delivered, of, outcomes
from tests.core.scenes import Connection, Process, opened, prove

TASK: JSON = {"task": {"taskId": "t1", "status": "working"}}
EXTENSION: JSON = {"resultType": "task", "taskId": "t1", "status": "working"}
RESULT: JSON = {"content": [{"type": "text", "text": "receipt"}]}
MODERN: Any = {"mcp-protocol-version": "2026-07-28"}

PLAIN, AS_TASK, STATELESS = Joined(0, 1), Joined(0, 1, as_task=True), Joined(0, 1, stateless=True)


@pytest.mark.parametrize(
    ("result", "readers"),
    [
        (RESULT, [PLAIN, STATELESS]),
        (TASK, [AS_TASK]),
        (EXTENSION, [STATELESS]),
        ({"resultType": "input_required"}, [STATELESS]),
    ],
)
def test_who_can_read_what(result: JSON, readers: list[Joined]) -> None:
    can = [one for one in (PLAIN, AS_TASK, STATELESS) if not why_unread({"result": result}, one)]
    assert can == readers
    assert not why_unread({"error": {}}, AS_TASK), "everybody reads errors"


def plain(one: Connection, **params: Any) -> Peer:
    return one.request("tools/call", {"name": "charge", "arguments": {"cents": 1}, **params})


def as_task(one: Connection, **params: Any) -> Peer:
    return plain(one, task={"ttl": 60000}, **params)


def is_sent(call: Peer) -> bool:
    return "tools/call" in [post.message.get("method") for post in of(call.actions, Post)]


def told(actions: list[Action], call: Peer) -> JSON:
    (message,) = [message for message in delivered(actions) if message.get("id") == call.host_id]
    return message


def is_error(message: JSON) -> bool:
    """In doubt, as a request that asks for a task can be told."""
    error = message.get("error", {})
    return error.get("code") == CODE_IN_DOUBT and IN_DOUBT_KEY in error["data"]


def is_in_doubt(message: JSON) -> bool:
    return CallInDoubt.find(message.get("result")) is not None


def test_who_asks_for_a_task_is_not_given_the_result_of_a_dead_process_s() -> None:
    one = opened()
    as_task(one).answer(TASK)
    one.drain(9)
    two = one.process.killed().connect()
    prove(two)
    repeat = as_task(two)
    assert not is_sent(repeat)
    two.sent("tasks/get").answer({"taskId": "t1", "status": "completed"})
    assert is_error(told(two.sent("tasks/result").answer(RESULT), repeat))
    two.drain(9)
    assert two.process.disk.call.told is Told.NOBODY, "nobody has its answer"
    for one in (two, opened(two.process)):
        again = as_task(one)
        assert not is_sent(again)
        assert is_error(told(again.actions, again))
    whoever_can = plain(two)
    assert told(whoever_can.actions, whoever_can)["result"] == RESULT


@pytest.mark.parametrize("beside", [True, False])
def test_who_asks_for_none_is_not_given_one_by_the_call_that_it_joined(beside: bool) -> None:
    one = opened()
    two = opened(one.process) if beside else one
    first = as_task(one).stream_up("e1")
    first.cut()
    repeat = plain(two)
    assert not is_sent(repeat)
    first.accept()
    first.event("e1", first.progress(1))
    actions = first.event("e2", first.result(TASK))
    assert told(actions, first)["result"] == TASK
    assert is_in_doubt(told(two.forwarded if beside else actions, repeat))
    again = plain(two)
    assert not is_sent(again)
    assert is_in_doubt(told(again.actions, again))


@pytest.mark.parametrize("then", ["the same repeat", "one that can read it"])
@pytest.mark.parametrize("another", [True, False])
@pytest.mark.parametrize("first_asks", [True, False])
def test_after_a_restart_too_the_repeat_is_in_doubt_and_the_answer_for_one_that_can_read_it(
    first_asks: bool, another: bool, then: str
) -> None:
    """Also where `another` repeat has read it."""
    one = opened()
    ours, theirs = (as_task, plain) if first_asks else (plain, as_task)
    first = ours(one).stream_up("e1")
    first.cut()
    theirs(one)
    if another:
        ours(one)
    first.accept()
    first.event("e1", first.progress(1))
    first.event("e2", first.result(TASK if first_asks else RESULT))
    one.drain(9)
    two = one.process.killed(after=1.0).connect()
    prove(two)
    again = (theirs if then == "the same repeat" else ours)(two)
    assert not is_sent(again)
    if then == "the same repeat" and not first_asks:
        assert is_error(told(again.actions, again))
    elif not first_asks:
        assert told(again.actions, again)["result"] == RESULT


def test_nor_one_that_came_late() -> None:
    one = opened()
    first = as_task(one)
    assert is_error(told(one.elapse(TimerKind.DEADLINE, first.stream), first))
    first.answer(TASK)
    repeat = plain(one)
    assert is_in_doubt(told(repeat.actions, repeat))
    assert not is_sent(plain(one))
    whoever_can = as_task(one)
    assert told(whoever_can.actions, whoever_can)["result"] == TASK


def test_nor_one_that_a_name_stands_for() -> None:
    one, name = opened(), {"_meta": {CALL_KEY: "order-17"}}
    as_task(one, **name).answer(TASK)
    repeat = plain(one, **name)
    assert is_in_doubt(told(repeat.actions, repeat))
    again = as_task(one, **name)
    assert told(again.actions, again)["result"] == TASK
    one.process.shared.consent("order-17")
    assert is_sent(plain(one, **name))


def test_by_its_name_who_asks_for_a_task_again_gets_what_came_of_it() -> None:
    """Its SDK may raise for a result; but it is not sent again, whoever comes by that name."""
    one, name = opened(), {"_meta": {CALL_KEY: "order-17"}}
    as_task(one, **name).answer(TASK)
    one.drain(9)
    two = one.process.killed().connect()
    prove(two)
    joined = as_task(two, **name)
    two.sent("tasks/get").answer({"taskId": "t1", "status": "completed"})
    assert told(two.sent("tasks/result").answer(RESULT), joined)["result"] == RESULT
    later = as_task(two, **name)
    assert told(later.actions, later)["result"] == RESULT


def test_who_joined_one_that_waits_and_is_a_repeat_itself_is_in_doubt_about_what_that_repeats() -> None:
    one = opened()
    two = opened(one.process)
    late = as_task(one)
    one.request("tools/list").refuse(404)
    waiting, joined = as_task(one), plain(two)
    one.elapse(TimerKind.DEADLINE, late.stream)
    late.answer(TASK)
    assert told(one.reinitialized(), waiting)["result"] == TASK
    doubt = CallInDoubt.find(told(two.forwarded, joined)["result"])
    assert doubt is not None
    assert doubt.call_key == one.process.disk.call.call_key
    assert not is_sent(plain(two))


@pytest.mark.parametrize("hook", [True, False])
def test_a_call_for_a_task_is_told_by_an_error_that_it_is_in_doubt(hook: bool) -> None:
    one = opened(Process(has_hook=hook))
    first = as_task(one)
    actions = first.cut()
    actions = one.reconciled(first, Fail("nobody knows")) if hook else actions
    message = told(actions, first)
    assert is_error(message)
    assert (message["error"]["message"] == "nobody knows") is hook


def test_that_it_did_not_run_it_is_told_like_any_other() -> None:
    first = as_task(opened())
    message = told(first.refuse(413), first)
    assert message["error"]["data"]["outcome"] == "not_executed"


def test_a_result_of_the_hook_s_is_for_whoever_asks_for_no_task() -> None:
    one = opened(Process(has_hook=True))
    first = as_task(one)
    first.cut()
    joined = plain(one)
    actions = one.reconciled(first, Resolve(RESULT))
    assert outcomes(actions) == [Outcome.IN_DOUBT, Outcome.RECOVERED]
    assert is_error(told(actions, first))
    assert told(actions, joined)["result"] == RESULT
    one.drain(9)
    assert not is_sent(as_task(one))
    whoever_can = plain(one)
    assert told(whoever_can.actions, whoever_can)["result"] == RESULT


def test_a_task_that_the_hook_has_found_is_for_whoever_asks_for_one() -> None:
    one = opened(Process(has_hook=True))
    first = as_task(one)
    first.cut()
    assert told(one.reconciled(first, Resolve(TASK)), first)["result"] == TASK


def test_a_task_that_is_marked_as_if_it_were_in_doubt_is_a_task() -> None:
    one, marked = opened(), {**TASK, "_meta": {IN_DOUBT_KEY: {"outcome": "in_doubt"}}}
    first = as_task(one)
    one.elapse(TimerKind.DEADLINE, first.stream)
    first.answer(marked)
    repeat = as_task(one)
    assert told(repeat.actions, repeat)["result"] == marked
