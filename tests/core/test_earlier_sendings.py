"""A call that was sent again has one answer: whichever of its sendings is the first to succeed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Post, StopAsking
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.inputs import Reconciled
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled, OrphanDropped
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.core.verdicts import Resend
from tests.core.driver import Driver, Peer, delivered, of, outcomes, reports
from tests.core.scenes import Connection, Process, prove

CHARGED: dict[str, Any] = {"content": [{"type": "text", "text": "receipt 1"}]}
AGAIN = GuardPolicy(resend={"charge": "always"})


@pytest.fixture
def driver() -> Driver:
    return Driver(AGAIN).opened(standalone=True)


def resent(driver: Driver) -> tuple[Peer, Peer]:
    """A call whose connection was cut, and its second sending."""
    first = driver.call()
    first.cut()
    return first, under_way(driver)


def under_way(driver: Driver) -> Peer:
    """The newest sending, whose wait is over."""
    sent = driver.sent("tools/call")
    sent.begin()
    return sent


def cancelled(driver: Driver) -> list[Any]:
    """What the server was told to be cancelled."""
    posts = [p.message for p in of(driver.log, Post)]
    return [m["params"]["requestId"] for m in posts if m.get("method") == "notifications/cancelled"]


def test_the_answer_to_the_first_sending_is_the_answer_and_the_second_is_cancelled(driver: Driver) -> None:
    first, second = resent(driver)
    actions = driver.standalone.event("e1", first.result(CHARGED))
    assert delivered(actions) == [{"jsonrpc": "2.0", "id": first.host_id, "result": CHARGED}]
    (settled,) = reports(actions, CallSettled)
    assert (settled.wire_id, settled.outcome) == (second.stream, Outcome.COMPLETED)
    assert settled.reason == "an earlier sending of it was answered"
    assert cancelled(driver) == [second.stream]


def test_so_it_is_where_the_second_was_lost_as_well_and_the_hook_is_being_asked(driver: Driver) -> None:
    driver = Driver(has_hook=True).opened(standalone=True)
    first = driver.call()
    first.cut()
    driver.reconciled(first, Resend())
    driver.sent("tools/call").cut()
    actions = driver.standalone.event("e1", first.result(CHARGED))
    assert [m["id"] for m in delivered(actions)] == [first.host_id]
    assert of(actions, StopAsking) == [StopAsking(first.stream)]
    assert driver.feed(Reconciled(first.stream, Resend())) == [], "there is no third sending"


def test_what_has_not_left_yet_never_does(driver: Driver) -> None:
    driver = Driver(GuardPolicy(trust_status=True)).opened(standalone=True)
    first = driver.call()
    first.refuse(429, retry_after=5.0)
    second = driver.sent("tools/call")
    assert second.order.delay.at_least == 5.0
    actions = driver.standalone.event("e1", first.result(CHARGED))
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert not second.is_open
    assert cancelled(driver) == []


def test_it_recovers_a_call_whose_second_sending_is_in_doubt(driver: Driver) -> None:
    first, second = resent(driver)
    driver.elapse(TimerKind.DEADLINE, first.stream)
    actions = driver.standalone.event("e1", first.result(CHARGED))
    assert delivered(actions) == []
    (settled,) = reports(actions, CallSettled)
    assert (settled.wire_id, settled.outcome) == (second.stream, Outcome.RECOVERED)
    assert settled.answer is not None


@pytest.mark.parametrize("failure", ["error", "isError"])
@pytest.mark.parametrize("doubtful", [True, False])
def test_a_failure_of_the_first_says_nothing_of_the_second(driver: Driver, failure: str, doubtful: bool) -> None:
    first, second = resent(driver)
    if doubtful:
        driver.elapse(TimerKind.DEADLINE, first.stream)
    failed = first.error(-32603) if failure == "error" else first.result({**CHARGED, "isError": True})
    actions = driver.standalone.event("e1", failed)
    assert not delivered(actions)
    assert not outcomes(actions)
    assert len(reports(actions, OrphanDropped)) == 1
    assert outcomes(second.answer()) == [Outcome.RECOVERED if doubtful else Outcome.COMPLETED]


FAILURES: dict[str, Callable[[Peer], list[Action]]] = {
    "HTTP 409": lambda sent: sent.refuse(409),
    "HTTP 422": lambda sent: sent.refuse(422),
    "HTTP 500": lambda sent: sent.refuse(500),
    "HTTP 404": lambda sent: sent.refuse(404, sent.error(-32601)),
    "error -32603": lambda sent: sent.answer_error(-32603),
    "error -32600": lambda sent: sent.answer_error(-32600),
    "error -32001": lambda sent: sent.answer_error(-32001),
}
"""Each is the answer of a call that was sent once, in a session that lives."""


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("by", ["policy", "hook"])
def test_a_failure_of_the_second_says_nothing_of_the_first(driver: Driver, failure: str, by: str) -> None:
    if by == "hook":
        driver = Driver(has_hook=True).opened(standalone=True)
    first = driver.call()
    first.cut()
    if by == "hook":
        driver.reconciled(first, Resend())
    second = driver.sent("tools/call")
    actions = FAILURES[failure](second)
    if driver.is_waited_for("ping"):
        actions += driver.sent("ping").answer({})
    if not delivered(actions):
        actions += driver.reconciled(first, None)  # what a gateway says, too, is no answer to any sending
    (told,) = delivered(actions)
    doubt = CallInDoubt.find(told["result"])
    assert doubt is not None
    assert doubt.reason.startswith(f"it was answered with {failure}")
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert outcomes(driver.standalone.event("e1", first.result(CHARGED))) == [Outcome.RECOVERED]


def test_so_its_repeat_is_held_back() -> None:
    """Sent again, the server would run it once for each call key, and that of a repeat is another."""
    one = Process(policy=GuardPolicy(honours_call_key=["charge"])).connect()
    one.opened()
    one.call().cut()
    one.sent("tools/call").answer_error(-32603)
    assert not of(one.call().actions, Post)


@pytest.mark.parametrize("failure", ["HTTP 409", "error -32603"])
def test_a_harmless_call_has_the_failure_of_its_last_sending(failure: str) -> None:
    driver = Driver().opened()
    driver.listed({"name": "look", "annotations": {"readOnlyHint": True}})
    driver.call("look").cut()
    actions = FAILURES[failure](driver.sent("tools/call"))
    if driver.is_waited_for("ping"):
        actions += driver.sent("ping").answer({})
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert "error" in delivered(actions)[0]


def test_so_is_what_the_tool_itself_says_to_the_second_but_its_words_are_passed_on(driver: Driver) -> None:
    """ "In progress", or "declined": of the first that says nothing."""
    _, second = resent(driver)
    declined = {"content": [{"type": "text", "text": "declined"}], "isError": True}
    actions = second.answer(declined)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    (told,) = delivered(actions)
    assert CallInDoubt.find(told["result"])
    assert [block["text"] for block in told["result"]["content"]][1:] == ["declined"]


def test_an_error_to_the_last_that_comes_late_says_no_more() -> None:
    driver = Driver(GuardPolicy(resend={"charge": "always"}, max_attempts=1)).opened(standalone=True)
    _, second = resent(driver)
    second.cut()
    third = under_way(driver)
    assert outcomes(third.cut()) == [Outcome.IN_DOUBT]
    assert not outcomes(driver.standalone.event("e1", third.error(-32603)))
    assert outcomes(driver.standalone.event("e2", third.result(CHARGED))) == [Outcome.RECOVERED]


def sent_twice() -> tuple[Connection, Peer]:
    """A call on its second sending, in a process that may die."""
    one = Process(policy=AGAIN).connect()
    one.opened()
    one.call().cut()
    return one, one.sent("tools/call")


def test_nor_does_one_that_the_next_process_finds() -> None:
    one, second = sent_twice()
    second.stream_up("1", "2")
    one.drain(100)
    two = one.process.killed().connect()
    prove(two)
    heir = two.peer(second.stream)
    heir.accept()
    heir.event("2", second.progress(2))
    heir.event("3", second.error(-32603))
    assert outcomes(two.elapse(TimerKind.CLOSING)) == [Outcome.IN_DOUBT]


def test_nor_an_error_that_the_next_process_has_of_its_task() -> None:
    one, second = sent_twice()
    second.answer({"task": {"taskId": "t1", "status": "working"}})
    one.drain(100)
    two = one.process.killed().connect()
    prove(two)
    two.sent("tasks/get").answer({"taskId": "t1", "status": "failed"})
    assert outcomes(two.sent("tasks/result").answer_error(17)) == [Outcome.IN_DOUBT]


@pytest.mark.parametrize("doubtful", [True, False])
@pytest.mark.parametrize("order", ["first, second", "second, first"])
def test_a_second_answer_is_reported_and_goes_to_nobody(driver: Driver, doubtful: bool, order: str) -> None:
    first, second = resent(driver)
    if doubtful:
        driver.elapse(TimerKind.DEADLINE, first.stream)
    one, other = (first, second) if order == "first, second" else (second, first)
    driver.standalone.event("e1", one.result(CHARGED))
    actions = driver.standalone.event("e2", other.result())
    assert not delivered(actions)
    assert not outcomes(actions)
    (dropped,) = reports(actions, OrphanDropped)
    assert dropped.reason == "the answer to another sending of a call that was sent again"


def test_the_answer_to_any_of_three_sendings_is_the_answer(driver: Driver) -> None:
    _, second = resent(driver)
    second.cut()
    third = under_way(driver)
    assert outcomes(driver.standalone.event("e1", second.result(CHARGED))) == [Outcome.COMPLETED]
    assert cancelled(driver) == [third.stream]


def test_it_is_not_lost_with_a_stream_that_proves_nothing(driver: Driver) -> None:
    """It is held while the standalone stream is on trial, and is stronger than that stream's end."""
    first, _ = resent(driver)
    for name in ("e1", "e2"):
        driver.standalone.event(name, {"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": name}})
    driver.standalone.resumed()
    driver.standalone.event("e9", first.result(CHARGED))
    actions = driver.standalone.end()
    assert [m["id"] for m in delivered(actions) if "id" in m] == [first.host_id]


def test_a_name_has_its_answer_in_the_next_process_too() -> None:
    process = Process(policy=AGAIN)
    one = process.connect()
    one.opened(standalone=True)
    first = one.named("order-17")
    first.cut()
    one.standalone.event("e1", first.result(CHARGED))
    one.drain(2)
    after = process.killed().connect()
    again = after.named("order-17")
    assert [m["result"] for m in delivered(again.actions)] == [CHARGED]
