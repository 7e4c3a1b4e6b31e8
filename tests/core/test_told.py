"""Who has been told what became of a call: an outcome that nobody has heard outlives the process that gave it."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.actions import Post, Save
from mcp_client_guard.core.answers import in_doubt_answer, not_executed_answer, session_lost_answer
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.inputs import SaveFailed
from mcp_client_guard.core.ledger import Call
from mcp_client_guard.core.model import (
    JSON,
    AnswerDrained,
    CallSent,
    CallSettled,
    ConsentSpent,
    Outcome,
    OutcomeTold,
    Told,
)
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.stored import StoredCall
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.core.verdicts import Resend, Resolve
from tests.core.driver import Peer, delivered, in_doubt, of, outcomes, records
from tests.core.scenes import Connection, Process, opened, prove


def after(one: Connection) -> Connection:
    """The next process, which goes on with the session."""
    two = one.process.killed().connect()
    prove(two)
    return two


def charge(one: Connection) -> StoredCall:
    """The newest row of the unsafe call."""
    return [call for call in one.process.disk.calls.values() if call.tool == "charge"][-1]


def test_an_answer_is_told_once_the_host_has_taken_it() -> None:
    one = opened()
    one.call().answer()
    assert (charge(one).told, charge(one).answer is None) == (Told.NOBODY, False)
    one.drain(10)
    assert (charge(one).told, charge(one).answer) == (Told.CALLER, None)


def test_one_that_nobody_took_is_the_next_process_s_repeat_s_and_nothing_runs_twice() -> None:
    one = opened()
    one.call().answer()
    two = after(one)
    repeat = two.call()
    assert not of(repeat.actions, Post)
    assert "result" in delivered(repeat.actions)[0]
    assert charge(two).told is Told.NOBODY, "until it is taken"
    two.drain(10)
    assert charge(two).told is Told.CALLER
    assert of(two.call().actions, Post), "that was its answer: another call is another"


def test_an_answer_kept_by_name_is_told_all_the_same() -> None:
    one = opened()
    one.named("order").answer()
    one.drain(10)
    assert (charge(one).told, charge(one).answer is None) == (Told.CALLER, False)
    assert of(after(one).call().actions, Post), "a call without that name is no repeat of it"


@pytest.mark.parametrize("why", ["nothing", "name", "name of the repeat", "keep_results"])
@pytest.mark.parametrize("how", ["late", "restarted", "listed"])
def test_an_answer_that_a_repeat_has_taken_is_kept_for_a_reason_only(why: str, how: str) -> None:
    one = opened(Process(policy=GuardPolicy(keep_results=why == "keep_results")))
    call = one.named("order") if why == "name" else one.call()
    if how == "late":
        call.accept(events=False)
        one.cancel(call)
        call.body(call.result())
    else:
        call.answer()
    now = after(one) if how in ("restarted", "listed") else one
    if how == "listed":
        now.process.disk.write(0, (OutcomeTold(charge(one).call_key, Told.LISTED),), False, now.now)
    repeat = now.named("order") if why.startswith("name") else now.call()
    assert not of(repeat.actions, Post)
    assert charge(now).answer is not None
    now.drain(10)
    assert (charge(now).told, charge(now).answer is None) == (Told.CALLER, why == "nothing")


def test_who_takes_a_doubt_has_not_heard_the_answer_that_came_meanwhile() -> None:
    one = opened()
    call = one.call()
    call.stream_up("1").cut()
    one.call()
    call.accept()
    call.event("1", call.progress(1))
    assert len(delivered(one.elapse(TimerKind.DEADLINE, call.stream))) == 2
    assert outcomes(call.event("2", call.result())) == [Outcome.RECOVERED]
    one.drain(10)
    assert (charge(one).told, charge(one).answer is None) == (Told.NOBODY, False)
    repeat = after(one).call()
    assert not of(repeat.actions, Post)
    assert "result" in delivered(repeat.actions)[0]


UPSTREAM = CallInDoubt("its connection was lost", "tools/call", "charge", "upstream", "-")
SENT = Call(1, 1, "tools/call", "charge", {}, "upstream", True, 1)
WORDS = pytest.mark.parametrize(
    "word",
    [
        in_doubt_answer(SENT, UPSTREAM, as_result=True),
        in_doubt_answer(SENT, UPSTREAM, as_result=False),
        not_executed_answer(1, "tools/call", "charge", "wire", "down"),
        session_lost_answer(1, "tools/call", "charge", "down"),
    ],
    ids=["in doubt", "in doubt, as error", "not executed", "session lost"],
)
"""What a server says that stands on a guard of its own: to this one it is an answer like any other."""


@WORDS
@pytest.mark.parametrize("joined", [True, False])
def test_what_a_gateway_s_guard_has_said_is_an_answer_that_its_host_takes(word: JSON, joined: bool) -> None:
    one = opened()
    other = opened(one.process)
    call = one.call().stream_up("e1")
    call.cut()
    if joined:
        assert not of(other.call().actions, Post)
    call.accept()
    call.event("e1", call.progress(1))
    call.event("e2", {**word, "id": call.stream})
    assert charge(one).outcome is Outcome.COMPLETED
    (other if joined else one).drain(10)
    assert (charge(one).told, charge(one).answer) == (Told.CALLER, None)
    assert of(after(one).call().actions, Post), "its caller has it: this is another call"


@WORDS
@pytest.mark.parametrize("by", ["its caller", "a repeat"])
def test_where_nobody_has_taken_it_the_next_to_ask_gets_it(word: JSON, by: str) -> None:
    one = opened()
    call = one.call()
    call.accept(events=False)
    call.body({**word, "id": call.stream})
    one.close()
    if by == "a repeat":
        two = opened(one.process)
        two.call()
        two.close()
    three = opened(one.process)
    repeat = three.call()
    assert not of(repeat.actions, Post)
    assert delivered(repeat.actions) == [{**word, "id": repeat.host_id}]
    three.drain(10)
    assert charge(three).told is Told.CALLER


@pytest.mark.parametrize("where", ["beside", "elsewhere"])
def test_a_repeat_that_was_told_a_doubt_has_not_heard_the_answer_that_came_since(where: str) -> None:
    one = opened()
    call = one.call()
    call.stream_up("1").cut()
    other = one if where == "beside" else opened(one.process)
    assert not of(other.call().actions, Post)
    call.accept()
    call.event("1", call.progress(1))
    one.elapse(TimerKind.DEADLINE, call.stream)
    assert outcomes(call.event("2", call.result())) == [Outcome.RECOVERED]
    other.drain(10)
    assert (charge(one).told, charge(one).answer is None) == (Told.NOBODY, False)


def test_an_answer_taken_by_its_name_is_no_other_call_s() -> None:
    one = opened()
    one.named("order").answer()
    two = after(one)
    assert "result" in delivered(two.named("order").actions)[0]
    two.drain(10)
    assert charge(two).told is Told.CALLER
    assert of(two.call().actions, Post), "a call without that name is no repeat of it"


def test_what_the_hook_knew_is_told_to_its_caller_and_to_nobody_else() -> None:
    one = opened(Process(has_hook=True))
    call = one.call()
    call.cut()
    one.reconciled(call, Resolve({"content": []}))
    assert charge(one).told is Told.NOBODY
    one.drain(10)
    assert charge(one).told is Told.CALLER
    assert of(after(one).call().actions, Post)


def test_a_refusal_that_is_an_answer_is_taken_like_any_other() -> None:
    one = opened()
    one.call().refuse(422)
    one.sent("ping").answer({})
    one.drain(10)
    assert (charge(one).outcome, charge(one).told, charge(one).answer) == (Outcome.COMPLETED, Told.CALLER, None)


def test_what_a_dead_process_s_call_came_to_is_told_to_nobody_until_somebody_asks() -> None:
    one = opened()
    one.call().stream_up("e1")
    two = one.process.killed().connect()
    prove(two)
    [heir] = [number for number in two.orders if str(number) == str(charge(one).wire_id)]
    two.peer(heir).refuse(404)
    two.sent("ping").answer({})
    assert (charge(two).outcome, charge(two).told) == (Outcome.IN_DOUBT, Told.NOBODY)
    assert charge(after(two)).told is Told.NOBODY, "also by the process after that"


def test_a_repeat_that_was_joined_to_it_has_heard_it() -> None:
    one = opened()
    one.call()
    two = one.process.killed().connect()
    two.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    joined = two.call()
    assert not of(joined.actions, Post)
    two.sent("ping").answer({})
    assert charge(two).told is Told.NOBODY, "until that is taken"
    two.drain(10)
    assert charge(two).told is Told.CALLER


def test_a_doubt_is_told_once_the_host_has_taken_it() -> None:
    one = opened()
    one.call().cut()
    assert (charge(one).outcome, charge(one).told) == (Outcome.IN_DOUBT, Told.NOBODY)
    one.drain(10)
    assert charge(one).told is Told.CALLER


@pytest.mark.parametrize("how", ["cancelled", "left", "taken"])
def test_an_answer_that_its_host_gives_up_untaken_is_the_next_repeat_s(how: str) -> None:
    process = Process()
    one, other = opened(process), opened(process)
    call = one.call()
    call.answer()
    if how == "taken":
        one.drain(10)
    one.close() if how == "left" else one.cancel(call)
    repeat = other.call()
    assert bool(of(repeat.actions, Post)) is (how == "taken")
    if how != "taken":
        one.drain(10)  # a host that has cancelled throws it away
        assert charge(one).told is Told.NOBODY
        other.drain(10)
        assert charge(one).told is Told.CALLER


def test_a_call_that_its_host_has_left_is_the_next_one_s_to_be_told() -> None:
    one = opened()
    call = one.call()
    one.call("look")
    one.request("tools/list")
    call.accept()
    one.close()
    assert (charge(one).outcome, charge(one).told) == (Outcome.IN_DOUBT, Told.NOBODY)
    left = [c.method for c in one.process.disk.calls.values() if c.told is Told.NOBODY]
    assert left == ["tools/call", "tools/call"], "what can be asked for again is nobody's loss"


# Consent that a request brings along.


def test_consent_that_was_used_is_used_up_for_every_process_after() -> None:
    one = opened()
    lost = one.call()
    lost.cut()
    key = charge(one).call_key
    repeat = one.consenting(key)
    assert of(repeat.actions, Post)
    assert records(repeat.actions, ConsentSpent) == [ConsentSpent(key)]
    repeat.cut()
    two = after(one)
    assert not of(two.consenting(key).actions, Post)


def test_consent_given_to_the_guard_is_no_request_s() -> None:
    one = opened()
    one.call().cut()
    one.process.shared.consent(charge(one).call_key)
    repeat = one.call()
    assert of(repeat.actions, Post)
    assert not records(repeat.actions, ConsentSpent)


# A sending whose row could not be written.


def test_both_rows_of_a_second_sending_are_written_together_or_neither() -> None:
    one = opened(Process(has_hook=True))
    call = one.call()
    call.cut()
    actions = one.reconciled(call, Resend())
    [save] = [save for save in of(actions, Save) if any(isinstance(r, CallSent) for r in save.records)]
    assert save.durable
    assert [type(record) for record in save.records] == [CallSent, CallSettled]
    [sent] = records(actions, CallSent)
    actions = one.feed(SaveFailed(sent.wire_id, "disk full"))
    assert in_doubt(actions)
    [old] = [r for r in records(actions, CallSettled) if r.wire_id == call.stream]
    assert (old.outcome, "could not be written" in old.reason) == (Outcome.IN_DOUBT, True)
    assert old.told is Told.NOBODY, "until the host has taken it"
    drained = one.drain(10)
    assert [(r.incarnation, r.wire_id) for r in records(drained, AnswerDrained)][-1] == (
        old.incarnation,
        old.wire_id,
    )


def test_one_that_did_not_run_and_could_not_be_sent_again_did_not_run() -> None:
    one = opened()
    call = one.call()
    call.refuse(404)
    actions = one.reinitialized()
    [sent] = records(actions, CallSent)
    actions = one.feed(SaveFailed(sent.wire_id, "disk full"))
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert [r.outcome for r in records(actions, CallSettled) if r.wire_id == call.stream] == [Outcome.NOT_EXECUTED]


def test_telling_marks_every_row_of_a_call_key_and_never_raises_what_is_known() -> None:
    one = opened()
    one.call().answer()
    key = charge(one).call_key
    for told, then in ((Told.LISTED, Told.LISTED), (Told.CALLER, Told.CALLER), (Told.LISTED, Told.CALLER)):
        one.process.disk.write(0, (OutcomeTold(key, told),), False, one.now)
        assert charge(one).told is then


def answered_late(one: Connection) -> Peer:
    """A call that was told in doubt, which its host has not taken yet, and was answered then."""
    one.drain(10)
    call = one.call()
    call.stream_up("1").cut()
    call.accept()
    call.event("1", call.progress(1))
    one.drain(len(one.machine._streams._undrained))
    assert delivered(one.elapse(TimerKind.DEADLINE, call.stream))
    assert outcomes(call.event("2", call.result())) == [Outcome.RECOVERED]
    return call


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_a_doubt_that_its_host_gives_up_does_not_replace_the_answer_that_came_since(how: str) -> None:
    one = opened()
    call = answered_late(one)
    if how == "cancelled":
        one.cancel(call)
    else:
        one.close()
        one = one.process.connect()
        one.opened()
    repeat = one.call()
    assert not of(repeat.actions, Post)
    (told,) = [m for m in delivered(repeat.actions) if m.get("id") == repeat.host_id]
    assert CallInDoubt.find(told["result"]) is None


def test_a_doubt_that_is_taken_leaves_the_answer_to_the_repeat_that_has_it() -> None:
    """Where the process dies before that has taken it, the next one has it still."""
    one = opened()
    answered_late(one)
    repeat = one.call()
    assert not of(repeat.actions, Post)
    one.drain(1)
    assert charge(one).told is Told.NOBODY
    again = after(one).call()
    assert not of(again.actions, Post)
    assert "result" in delivered(again.actions)[0]
