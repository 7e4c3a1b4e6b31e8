"""A call come again is refused, joined or answered; it is sent only when nothing can have run, or by consent."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Deliver, Post, Save
from mcp_client_guard.core.answers import CODE_NAME_TAKEN, CODE_NOT_EXECUTED
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.inputs import MessageSubmitted, ReconnectRequested
from mcp_client_guard.core.meta import CALL_KEY, CONSENT
from mcp_client_guard.core.model import JSON, CallRepeated, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import RepeatJoined, RepeatRefused
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Driver, Peer, delivered, of, outcomes, records, reports
from tests.core.scenes import NOTHING_RAN, Connection, Process, nothing_runs, opened, prove


def doubtful(connection: Connection, **arguments: Any) -> Peer:
    """A call whose connection is cut with no cursor: in doubt."""
    call = connection.call(**arguments)
    assert outcomes(call.cut()) == [Outcome.IN_DOUBT]
    return call


def doubt_in(actions: list[Action]) -> CallInDoubt | None:
    (message,) = delivered(actions)
    return CallInDoubt.find(message.get("result"))


def is_sent(call: Peer) -> bool:
    posts = [p.message.get("method") for p in of(call.actions, Post)]
    return posts == ["tools/call"]


# Refused.


def test_a_repeat_of_a_call_in_doubt_gets_the_same_answer_and_is_not_sent(one: Connection) -> None:
    doubtful(one, cents=1, to="x")
    params = {"name": "charge", "arguments": {"to": "x", "cents": 1}}
    again = one.request("tools/call", params)
    assert not of(again.actions, Post)
    doubt = doubt_in(again.actions)
    assert doubt is not None
    assert doubt.call_key == "key-1-0-2"
    assert delivered(again.actions)[0]["id"] == again.host_id
    assert records(again.actions, CallRepeated) == [CallRepeated("key-1-0-2")]
    assert reports(again.actions, RepeatRefused) == [RepeatRefused("charge", "key-1-0-2")]
    assert one.process.disk.call.repeats == 1


def test_another_tool_or_other_arguments_are_no_repeat(one: Connection) -> None:
    doubtful(one, cents=1)
    assert is_sent(one.call(cents=2))
    assert is_sent(one.call("refund", cents=1))


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"n": 1, "m": 2}, {"m": 2.0, "n": 1.0}),
        ({"a": {"b": [1e3, {"c": 0}]}}, {"a": {"b": [1000, {"c": -0.0}]}}),
        (None, {}),
    ],
)
def test_other_forms_of_the_same_arguments_are_a_repeat(one: Connection, first: Any, again: Any) -> None:
    def params(arguments: Any) -> JSON:
        return {"name": "charge"} if arguments is None else {"name": "charge", "arguments": arguments}

    one.peer(one.request("tools/call", params(first)).stream).cut()
    assert not is_sent(one.request("tools/call", params(again)))


def test_arguments_that_only_look_alike_are_no_repeat(one: Connection) -> None:
    for value in (1, True, "1", 1.5, float("inf"), None, [], {}):
        call = one.call(n=value)
        assert is_sent(call), value
        call.cut()


def test_once_the_window_is_over_it_is_sent(one: Connection) -> None:
    doubtful(one)
    one.drain(10)
    one.now += 59.9
    assert not is_sent(one.call())
    one.drain(10)
    one.now += 0.2
    assert is_sent(one.call())


def test_a_call_cancelled_without_an_answer_is_repeated_like_one_in_doubt(one: Connection) -> None:
    call = one.call()
    one.cancel(call)
    again = one.call()
    doubt = doubt_in(again.actions)
    assert doubt is not None
    assert doubt.cancel_signalled


def test_a_call_cancelled_before_it_was_sent_is_not() -> None:
    process = Process()
    one = opened(process)
    one.begins = False
    call = one.call()
    one.cancel(call)
    assert is_sent(one.call())


def test_a_read_only_tool_is_never_refused(one: Connection) -> None:
    one.listed({"name": "look", "annotations": {"readOnlyHint": True}})
    look = one.call("look")
    one.cancel(look)
    assert is_sent(one.call("look"))


def test_another_connection_under_the_key_refuses_it_too(process: Process, one: Connection) -> None:
    doubtful(one)
    two = opened(process)
    assert not is_sent(two.call())


def test_the_next_process_refuses_it_too_for_what_is_left_of_the_window(process: Process, one: Connection) -> None:
    doubtful(one)
    one.drain(10)
    one.close()
    two = process.killed(after=59.0).connect()
    prove(two)
    assert doubt_in(two.call().actions) is not None
    three = process.killed(after=61.0).connect()
    prove(three)
    assert is_sent(three.call())


@pytest.mark.parametrize("how", ["in doubt", "answered"])
def test_what_nobody_was_told_of_holds_a_repeat_back_from_the_restart_on(
    process: Process, one: Connection, how: str
) -> None:
    """However long that took: nobody could repeat it before."""
    if how == "in doubt":
        doubtful(one)
    else:
        one.call().answer()
    two = process.killed(after=600.0).connect()
    prove(two)
    assert not is_sent(two.call())


@pytest.mark.parametrize("days", [1, 5])
def test_but_only_until_a_repeat_was_told(process: Process, one: Connection, days: int) -> None:
    """A job that runs every day, and never asks for what was recovered."""
    doubtful(one)
    for day in range(days):
        process = process.killed(after=86_400.0)
        again = process.connect()
        prove(again)
        call = again.call()
        assert is_sent(call) is (day > 0)
        if day:
            call.answer()
        again.drain(10)


@pytest.mark.parametrize("name", ["order", None])
def test_one_that_ran_is_refused_after_a_restart_though_no_other_session_could_be_reached(
    name: str | None,
) -> None:
    """What did not leave was the guard's own `initialize`."""
    process = Process(policy=GuardPolicy(max_attempts=2), has_hook=True)
    one = opened(process)
    ran, other = one.named(name) if name else one.call(), one.request("tools/list")
    ran.accept()
    other.refuse(404)
    ran.cut()
    while (initialize := one.sent("initialize")).is_open:
        initialize.not_written()
    (told,) = [doubt for m in delivered(one.log) if (doubt := CallInDoubt.find(m.get("result"))) is not None]
    assert told.reason.endswith("ConnectError")
    two = opened(process.killed())
    assert not is_sent(two.named(name) if name else two.call())


# Consent.


def test_the_user_s_consent_lets_one_repeat_through(process: Process, one: Connection) -> None:
    doubtful(one)
    process.shared.consent("key-1-0-2")
    again = one.call()
    assert is_sent(again)
    again.cut()
    assert not is_sent(one.call())


def test_a_request_that_names_the_call_in_doubt_is_sent(one: Connection) -> None:
    doubtful(one, cents=1)
    assert not is_sent(one.consenting("another", cents=1))
    again = one.consenting("key-1-0-2", cents=1)
    assert is_sent(again)
    assert isinstance(again.order, Post)
    assert "io.github.mcp-client-guard/consent" not in again.order.message["params"]["_meta"]


@pytest.mark.parametrize("by_request", [True, False])
@pytest.mark.parametrize("lost", [True, False])
def test_one_consent_lets_exactly_one_repeat_through(
    process: Process, one: Connection, by_request: bool, lost: bool
) -> None:
    """The others are refused while it is under way, when it was answered, and when it is in doubt itself."""

    def again() -> Peer:
        return one.consenting("key-1-0-2", cents=1) if by_request else one.call(cents=1)

    doubtful(one, cents=1)
    if not by_request:
        process.shared.consent("key-1-0-2")
    repeat = again()
    assert is_sent(repeat)
    assert not is_sent(again())
    assert not is_sent(opened(process).call(cents=1))
    repeat.cut() if lost else repeat.answer()
    assert not is_sent(again())
    process.shared.consent("key-1-0-2")
    assert is_sent(again())


@pytest.mark.parametrize("by_request", [True, False])
@pytest.mark.parametrize("how", [*NOTHING_RAN, "no session", "no budget"])
def test_a_consent_to_a_repeat_of_which_nothing_ran_is_as_good_as_before(how: str, by_request: bool) -> None:
    process = Process(policy=GuardPolicy(reinitialize_limit=1))
    one = opened(process)

    def again() -> Peer:
        return one.consenting("key-1-0-2", cents=1) if by_request else one.call(cents=1)

    doubtful(one, cents=1)
    if not by_request:
        process.shared.consent("key-1-0-2")
    if how in NOTHING_RAN:
        nothing_runs(one, again, how)
    else:
        one.request("tools/list").refuse(404)
        if how == "no budget":
            one.reinitialized()
            one.request("tools/list").refuse(404)
        again()
        if how == "no session":
            one.sent("initialize").refuse(401)
        one.feed(ReconnectRequested(one.now))
    waiting = again()
    actions = one.reinitialized() if one.is_waited_for("initialize") else waiting.actions
    assert [p.message["method"] for p in of(actions, Post)].count("tools/call") == 1
    assert not is_sent(again())


def test_a_consent_to_a_repeat_that_waits_for_a_session_is_not_used_up_by_waiting(
    process: Process, one: Connection
) -> None:
    doubtful(one, cents=1)
    one.request("tools/list").refuse(404)
    process.shared.consent("key-1-0-2")
    waiting, other = one.call(cents=1), one.call(cents=1)
    assert not is_sent(waiting)
    sent = [p.message["params"].get("arguments") for p in of(one.reinitialized(), Post) if "params" in p.message]
    assert sent.count({"cents": 1}) == 1
    assert delivered(other.actions) == [] or doubt_in(other.actions) is not None


def test_a_policy_that_always_repeats_consents_to_every_repeat() -> None:
    one = opened(Process(policy=GuardPolicy(resend={"charge": "always"})))
    call = one.call()
    one.cancel(call)
    assert is_sent(one.call())
    stream = one.call().stream_up("1")
    stream.cut()
    assert is_sent(one.call())


def test_of_two_equal_calls_in_doubt_each_is_held_against_a_repeat(one: Connection) -> None:
    first, second = one.call().stream_up("1"), one.call()
    assert is_sent(second)
    second.cut()
    first.cut()
    first.refuse(405)
    first.refuse(405)
    assert len(one.process.shared.doubted(one.process.disk.call.arguments_digest, one.policy, one.now)) == 2
    again = one.call()
    doubt = doubt_in(again.actions)
    assert doubt is not None
    one.process.shared.consent("key-1-0-3")
    assert is_sent(one.call())


@pytest.mark.parametrize("how", ["cancelled", "overdue"])
def test_the_first_repeat_gets_the_answer_that_came_too_late_and_the_next_is_sent(
    process: Process, one: Connection, how: str
) -> None:
    two = opened(process)
    call = one.call().stream_up()
    one.cancel(call) if how == "cancelled" else one.elapse(TimerKind.DEADLINE, call.stream)
    assert not is_sent(one.call())
    answer = call.result({"content": []})
    assert outcomes(call.event("1", answer)) == [Outcome.RECOVERED]
    again = two.call()
    assert not of(again.actions, Post)
    assert delivered(again.actions) == [{**answer, "id": again.host_id}]
    assert reports(again.actions, RepeatJoined) == [RepeatJoined("charge", "key-1-0-2")]
    assert is_sent(one.call())


# Given up, and its cancel answered.

HOW = pytest.mark.parametrize("how", ["deadline", "cancel"])
"""By whom it was given up: the guard, or the host."""


def given_up(one: Connection, call: Peer, how: str) -> list[Action]:
    return one.cancel(call) if how == "cancel" else one.elapse(TimerKind.DEADLINE, call.stream)


@HOW
@pytest.mark.parametrize("code", [0, -32800, -32603, -32000])
@pytest.mark.parametrize("named", [True, False])
def test_an_error_that_answers_a_cancel_says_nothing_of_the_call(how: str, code: int, named: bool) -> None:
    process = Process()
    one = opened(process)
    call = one.named("order") if named else one.call()
    given_up(one, call, how)
    row = process.disk.call
    assert not outcomes(call.answer_error(code))
    assert process.disk.call == row
    after = process.killed().connect()
    prove(after)
    for known in (one, one, opened(process), after, after):
        again = known.named("order") if named else known.call()
        assert not is_sent(again)
        assert doubt_in(again.actions) is not None


@HOW
def test_nor_does_one_that_is_replayed_and_whoever_joined_the_call_is_held_back_too(how: str) -> None:
    process = Process()
    one, two = opened(process), opened(process)
    call = one.call().stream_up("1")
    call.cut()
    two.call()
    call.accept()
    call.event("1", call.progress(1))
    given_up(one, call, how)
    assert doubt_in(two.forwarded) is not None
    assert not outcomes(call.event("2", call.error(0)))
    assert not is_sent(two.call())
    assert not is_sent(one.call())


@HOW
@pytest.mark.parametrize("failed", [True, False])
def test_a_result_that_comes_all_the_same_is_the_answer(one: Connection, how: str, failed: bool) -> None:
    call = one.call()
    given_up(one, call, how)
    assert outcomes(call.answer({"content": [], "isError": failed})) == [Outcome.RECOVERED]
    again = one.call()
    assert delivered(again.actions)[0]["result"] == {"content": [], "isError": failed}
    assert is_sent(one.call())


@HOW
def test_the_outcome_of_a_call_is_on_disk_before_its_cancel_leaves(
    process: Process, one: Connection, how: str
) -> None:
    """The next process would take what the cancel draws for the answer to a call that has no outcome."""
    actions = given_up(one, one.call(), how)
    assert [type(a) for a in actions if isinstance(a, (Deliver, Post)) or (isinstance(a, Save) and a.durable)] == [
        *([Deliver] if how == "deadline" else []),
        Save,
        Post,
    ]
    assert process.killed(power=True).disk.call.outcome is not None


@HOW
def test_that_of_a_harmless_one_waits_for_no_disk(one: Connection, how: str) -> None:
    one.listed({"name": "look", "annotations": {"readOnlyHint": True}})
    assert not [save for save in of(given_up(one, one.call("look"), how), Save) if save.durable]


def test_it_is_kept_for_no_longer_than_a_doubt(one: Connection) -> None:
    call = one.call().stream_up()
    one.cancel(call)
    call.event("1", call.result())
    one.now += 60
    assert is_sent(one.call())


def test_while_one_of_two_is_still_in_doubt_the_answer_of_the_other_is_not_given(one: Connection) -> None:
    first, second = one.call().stream_up(), one.call().stream_up()
    one.cancel(first)
    one.cancel(second)
    second.event("1", second.result())
    doubt = doubt_in(one.call().actions)
    assert doubt is not None
    assert doubt.call_key == "key-1-0-2"


def test_an_answer_that_came_too_late_is_for_the_next_process_too(process: Process, one: Connection) -> None:
    call = one.call().stream_up()
    one.cancel(call)
    call.event("1", call.result())
    two = process.killed().connect()
    prove(two)
    again = two.call()
    assert delivered(again.actions)[0]["id"] == again.host_id
    assert "isError" not in delivered(again.actions)[0]["result"]
    assert not of(again.actions, Post)


def test_an_answer_recovered_for_a_dead_process_is_for_whoever_repeats_the_call(
    process: Process, one: Connection
) -> None:
    call = one.call().stream_up("1", "2")
    one.drain(100)
    two = process.killed().connect()
    prove(two)
    heir = two.peer(call.stream)
    heir.accept()
    heir.event("1", call.progress(1))
    heir.event("2", call.progress(2))
    actions = heir.event("3", call.result())
    actions += two.elapse(TimerKind.CLOSING) if two.is_set(TimerKind.CLOSING, heir.stream) else []
    assert outcomes(actions) == [Outcome.RECOVERED]
    again = two.call()
    assert not of(again.actions, Post)
    assert delivered(again.actions) == [{**call.result(), "id": again.host_id}]
    assert is_sent(two.call())


def test_consent_holds_for_a_repeat_that_has_to_wait_for_a_session(process: Process, one: Connection) -> None:
    doubtful(one)
    one.request("tools/list").refuse(404)
    process.shared.consent("key-1-0-2")
    one.call()
    one.reinitialized()
    assert one.is_waited_for("tools/call")


# Joined.


def test_two_equal_calls_on_healthy_streams_both_go_out(one: Connection) -> None:
    one.call().stream_up("1")
    assert is_sent(one.call())


def test_where_the_user_says_so_the_second_is_the_first_come_again() -> None:
    """SDK 1.x tells a transport nothing of a host's timeout: the retry after it would run the tool again."""
    one = Process(policy=GuardPolicy(join_in_flight=["ch*"])).connect()
    one.opened()
    call = one.call().stream_up("1")
    again = one.call()
    assert not is_sent(again)
    assert reports(again.actions, RepeatJoined)
    assert is_sent(one._call("other", {}, {})), "of another tool"
    actions = call.event("2", call.result())
    assert {m.get("id") for m in delivered(actions)} == {call.host_id, again.host_id}
    assert is_sent(one.call()), "the next one is another"


def test_a_repeat_of_a_call_whose_stream_is_lost_joins_it(one: Connection) -> None:
    call = one.call().stream_up("1")
    call.cut()
    again = one.call()
    assert not of(again.actions, Post)
    assert reports(again.actions, RepeatJoined) == [RepeatJoined("charge", "key-1-0-2")]
    assert records(again.actions, CallRepeated) == [CallRepeated("key-1-0-2")]
    call.accept()
    call.event("1", call.progress(1))
    actions = call.event("2", call.result())
    actions += one.elapse(TimerKind.CLOSING) if one.is_set(TimerKind.CLOSING, call.stream) else []
    assert sorted(m["id"] for m in delivered(actions)) == [call.host_id, again.host_id]
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_one_that_repeats_a_repeat_joins_the_same_call(one: Connection) -> None:
    call = one.call().stream_up("1")
    call.cut()
    again, third = one.call(), one.call()
    call.accept()
    actions = call.event("1", call.progress(2))  # another message under a known ID
    assert {m["id"] for m in delivered(actions)} == {call.host_id, again.host_id, third.host_id}


def test_a_repeat_joins_a_call_on_trial_or_unproven(one: Connection) -> None:
    call = one.call().stream_up("1")
    call.resumed()
    assert not is_sent(one.call())
    call.cut()
    lone = one.call("other").stream_up()  # nothing to overlap: its resume proves nothing
    lone.resumed()
    one.elapse(TimerKind.WITNESS, lone.stream)
    assert not is_sent(one.call("other"))


def test_a_repeat_in_another_connection_joins_too(process: Process, one: Connection) -> None:
    call = one.call().stream_up("1")
    call.cut()
    two = opened(process)
    again = two.call()
    assert not of(again.actions, Post)
    call.refuse(405)
    call.refuse(405)
    (answer,) = delivered(two.forwarded)
    assert answer["id"] == again.host_id
    assert CallInDoubt.find(answer["result"]) is not None


def test_a_repeat_whose_connection_has_closed_meanwhile_harms_nobody(process: Process, one: Connection) -> None:
    call = one.call().stream_up("1")
    call.cut()
    two = opened(process)
    two.call()
    two.close()
    call.refuse(405)
    call.refuse(405)
    assert not two.forwarded


def test_a_joined_repeat_that_its_host_cancels_is_answered_no_more(process: Process, one: Connection) -> None:
    call = one.call().stream_up("1")
    call.cut()
    two = opened(process)
    mine, other = one.call(), two.call()
    assert not of(one.cancel(mine), Post)
    assert not of(two.cancel(other), Post)
    call.refuse(405)
    actions = call.refuse(405)
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert not delivered(two.forwarded)
    assert two.notify("notifications/cancelled", {"requestId": ["odd"]}) == []


def test_an_id_that_is_used_again_gets_nothing_of_what_it_joined_before(one: Connection) -> None:
    first, other = one.call(n=1).stream_up("1"), one.call(n=2).stream_up("2")
    first.cut()
    other.cut()
    again = one.call(n=1)
    one.cancel(again)
    params = {"name": "charge", "arguments": {"n": 2}}
    message = {"jsonrpc": "2.0", "id": again.host_id, "method": "tools/call", "params": params}
    assert not of(one.feed(MessageSubmitted(message, {}, "another key")), Post)
    first.refuse(405)
    assert [m["id"] for m in delivered(first.refuse(405))] == [first.host_id]
    other.refuse(405)
    assert {m["id"] for m in delivered(other.refuse(405))} == {other.host_id, again.host_id}


@pytest.mark.parametrize("sent", [True, False])
def test_cancelling_the_original_answers_the_joined(sent: bool) -> None:
    one = opened(Process())
    one.begins = sent
    call = one.call()
    call.not_written() if not sent else call.stream_up("1").cut()
    again = one.call()
    assert not of(again.actions, Post)
    actions = one.cancel(call)
    (answer,) = delivered(actions)
    assert answer["id"] == again.host_id
    assert (CallInDoubt.find(answer.get("result")) is not None) is sent
    assert (answer.get("error", {}).get("code") == CODE_NOT_EXECUTED) is not sent


def test_closing_the_connection_of_the_original_answers_the_joined(process: Process, one: Connection) -> None:
    one.call().stream_up("1").cut()
    mine = one.call()
    two = opened(process)
    again = two.call()
    actions = one.close()
    assert mine.host_id not in {m["id"] for m in delivered(actions)}
    assert [m["id"] for m in delivered(two.forwarded)] == [again.host_id]


def test_a_repeat_of_a_call_that_waits_for_a_new_session_joins_it(one: Connection) -> None:
    call = one.call()
    call.refuse(404)
    again = one.call()
    assert reports(again.actions, RepeatJoined)
    one.reinitialized()
    posts = [o for o in one.orders.values() if isinstance(o, Post) and o.message.get("method") == "tools/call"]
    assert len(posts) == 2  # the call, and its second sending
    peer = one.sent("tools/call")
    ids = {m["id"] for m in delivered(peer.answer({}))}
    assert ids == {call.host_id, again.host_id}


# Waiting.


def waits(connection: Connection) -> Peer:
    """A call that waits for a session."""
    connection.request("tools/list").refuse(404)
    call = connection.call()
    assert not of(call.actions, Post)
    return call


def test_repeats_of_a_call_that_waits_for_a_session_join_it_and_it_is_sent_once(
    process: Process, one: Connection
) -> None:
    two = opened(process)
    call = waits(one)
    again, third = one.call(), two.call()
    assert reports(again.actions, RepeatJoined)
    assert reports(third.actions, RepeatJoined)
    one.reinitialized()
    assert sum(isinstance(a, Post) and a.message.get("method") == "tools/call" for a in one.log) == 1
    actions = one.sent("tools/call").answer()
    assert {m["id"] for m in delivered(actions)} == {call.host_id, again.host_id}
    assert {m["id"] for m in delivered(two.forwarded)} == {third.host_id}
    assert process.disk.call.repeats == 2


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("status", [400, 401, 500, 503, 200])
def test_so_do_those_of_one_that_waits_while_another_session_is_opened_beside_a_suspected_one(
    process: Process, one: Connection, status: int, is_kept: bool
) -> None:
    one.request("tools/list")
    for method in ("tools/list", "ping"):
        peer = one.sent(method)
        peer.answer_error() if status == 200 else peer.refuse(status)
    call, again = one.call(), one.call()
    assert not is_sent(call)
    assert reports(again.actions, RepeatJoined)
    one.sent("initialize").refuse(503) if is_kept else one.reinitialized()
    assert sum(isinstance(a, Post) and a.message.get("method") == "tools/call" for a in one.log) == 1
    actions = one.sent("tools/call").answer()
    assert {m["id"] for m in delivered(actions)} == {call.host_id, again.host_id}


@pytest.mark.parametrize("named", [True, False])
def test_where_it_was_cancelled_before_it_was_sent_the_next_goes_instead(one: Connection, named: bool) -> None:
    one.request("tools/list").refuse(404)
    call = one.named("order-17") if named else one.call()
    assert one.machine.queued == 1
    one.cancel(call)
    assert one.machine.queued == 0
    again = one.named("order-17") if named else one.call()
    assert not reports(again.actions, RepeatJoined)
    one.reinitialized()
    assert [m["id"] for m in delivered(one.sent("tools/call").answer())] == [again.host_id]


@pytest.mark.parametrize("how", ["cancelled", "closed", "overdue", "no session"])
def test_those_who_joined_a_call_that_was_never_sent_are_told_so(
    process: Process, one: Connection, how: str
) -> None:
    two = opened(process)
    call = waits(one)
    two.call()
    if how == "cancelled":
        one.cancel(call)
    elif how == "closed":
        one.close()
    elif how == "overdue":
        one.elapse(TimerKind.DEADLINE, max(t.stream for t in one.timers if t.kind is TimerKind.DEADLINE))
    else:
        one.sent("initialize").refuse(401)
    (answer,) = delivered(two.forwarded)
    assert answer["error"]["data"]["outcome"] == "not_executed"
    assert is_sent(two.call()), "nothing is in flight, nothing in doubt"


def test_what_waits_is_answered_like_the_call_that_it_repeats_and_so_are_those_who_joined_it(
    process: Process, one: Connection
) -> None:
    two = opened(process)
    call = one.call()
    call.accept()
    waiting = waits(one)
    again = two.call()
    assert reports(again.actions, RepeatJoined)
    call.cut()
    actions = one.reinitialized()
    (doubt,) = [m for m in delivered(actions) if m.get("id") == waiting.host_id]
    assert CallInDoubt.find(doubt["result"]) is not None
    assert [m["id"] for m in delivered(two.forwarded)] == [again.host_id]
    assert not [t for t in one.timers if t.kind is TimerKind.DEADLINE]


def test_a_repeat_of_one_that_waits_for_a_busy_server_joins_it_until_it_is_on_its_way() -> None:
    one = opened(Process(policy=GuardPolicy(trust_status=True)))
    call = one.call()
    call.refuse(429, retry_after=30.0)
    again = one.call()
    assert reports(again.actions, RepeatJoined)
    sent = one.sent("tools/call")
    sent.begin()
    assert is_sent(one.call())
    assert {m["id"] for m in delivered(sent.answer())} == {call.host_id, again.host_id}


# Named.


@pytest.mark.parametrize("by", ["Guard.consent", "_meta"])
def test_consent_lifts_the_error_that_a_named_call_was_answered_with(one: Connection, by: str) -> None:
    """409 may be of the moment."""
    one.named("order-17", cents=1).refuse(409)
    one.sent("ping").answer({})
    assert not is_sent(one.named("order-17", cents=1))
    if by == "_meta":
        meta = {f"io.github.mcp-client-guard/{what}": "order-17" for what in ("call-key", "consent")}
        again = one._call("charge", {"cents": 1}, meta)
    else:
        one.process.shared.consent("order-17")
        again = one.named("order-17", cents=1)
    assert is_sent(again)
    again.answer({"content": [], "isError": True})
    assert not is_sent(one.named("order-17", cents=1)), "nor is that one asked for anew by itself"
    one.process.shared.consent("order-17")
    one.named("order-17", cents=1).answer({"content": []})
    one.process.shared.consent("order-17")
    assert not is_sent(one.named("order-17", cents=1)), "a result stands"


def test_consent_to_a_repeat_that_did_not_run_is_for_the_next_one_and_for_one_alone(one: Connection) -> None:
    one.named("order-17", cents=1).answer_error(-32603)
    one.process.shared.consent("order-17")
    one.named("order-17", cents=1).refuse(413)
    one.named("order-17", cents=1).answer_error(-32603)
    assert not is_sent(one.named("order-17", cents=1))


def test_always_is_no_consent_to_ask_anew_for_what_a_name_was_answered_with() -> None:
    one = Process(policy=GuardPolicy(resend={"charge": "always"})).connect()
    one.opened()
    one.named("order-17", cents=1).answer_error(-32603)
    assert not is_sent(one.named("order-17", cents=1))


def test_a_named_call_in_flight_is_joined_even_on_a_healthy_stream(one: Connection) -> None:
    call = one.named("order-17", cents=1)
    again = one.named("order-17", cents=1)
    assert not of(again.actions, Post)
    assert {m["id"] for m in delivered(call.answer({}))} == {call.host_id, again.host_id}


@pytest.mark.parametrize("drain", [True, False])
def test_a_named_call_that_was_answered_gives_its_answer_again(one: Connection, drain: bool) -> None:
    call = one.named("order-17")
    answer = call.result()
    call.answer()
    if drain:
        one.drain(10)
    again = one.named("order-17")
    assert delivered(again.actions) == [{**answer, "id": again.host_id}]
    assert records(again.actions, CallRepeated)
    assert reports(again.actions, RepeatJoined) == [RepeatJoined("charge", "order-17")]
    assert one.process.disk.call.answer is not None


def test_a_named_call_in_doubt_is_told_so_again_long_after_the_window(one: Connection) -> None:
    one.named("order-17").cut()
    one.now += 1000
    assert doubt_in(one.named("order-17").actions) is not None


@pytest.mark.parametrize("how", ["user", "request"])
def test_a_named_call_in_doubt_is_sent_again_by_consent(process: Process, one: Connection, how: str) -> None:
    one.named("order-17").cut()
    meta = {"io.github.mcp-client-guard/call-key": "order-17"}
    if how == "user":
        process.shared.consent("order-17")
    else:
        meta["io.github.mcp-client-guard/consent"] = "order-17"
    again = one.request("tools/call", {"name": "charge", "arguments": {}, "_meta": meta})
    assert is_sent(again)
    again.answer({"content": []})
    assert delivered(one.named("order-17").actions)[0]["result"] == {"content": []}
    assert not is_sent(one.call())  # the consent was to that one


@pytest.mark.parametrize("how", ["refused", "cancelled unsent"])
def test_a_named_call_that_did_not_run_is_sent(one: Connection, how: str) -> None:
    one.begins = how == "refused"
    call = one.named("order-17")
    call.refuse(413) if how == "refused" else one.cancel(call)
    assert is_sent(one.named("order-17"))


def test_a_name_that_means_another_call_is_an_error(one: Connection) -> None:
    one.named("order-17", cents=1)
    other = one.named("order-17", cents=2)
    (answer,) = delivered(other.actions)
    assert answer["error"]["code"] == CODE_NAME_TAKEN
    assert not of(other.actions, Post)


def test_two_names_are_two_calls_whatever_their_arguments(one: Connection) -> None:
    one.named("order-17").cut()
    assert is_sent(one.named("order-18"))
    one.named("order-19", cents=1).stream_up("1").cut()
    assert is_sent(one.named("order-20", cents=1))


def test_a_named_call_repeats_one_without_a_name_and_the_other_way_round(one: Connection) -> None:
    params: dict[str, Any] = {"name": "charge", "arguments": {}}
    one.request("tools/call", params).cut()
    assert not is_sent(one.named("order-17"))
    one.named("order-18", cents=1).cut()
    assert not is_sent(one.call(cents=1))


def test_a_host_that_names_calls_beside_the_message_is_heard(one: Connection) -> None:
    message = {"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {"name": "charge", "arguments": {}}}
    one.feed(MessageSubmitted(message, {}, "order-17", named=True))
    actions = one.feed(MessageSubmitted({**message, "id": "y"}, {}, "order-17", named=True))
    assert not of(actions, Post)


@pytest.mark.parametrize("keep", [True, False])
def test_the_next_process_knows_names(keep: bool) -> None:
    one = opened(Process(policy=GuardPolicy(keep_results=keep)))
    one.named("answered").answer({"content": []})
    one.named("doubtful").cut()
    one.named("refused").refuse(413)
    one.drain(10)
    one.close()
    two = one.process.killed(after=1000).connect()
    prove(two)
    assert delivered(two.named("answered").actions)[0]["result"] == {"content": []}
    assert doubt_in(two.named("doubtful").actions) is not None
    assert is_sent(two.named("refused"))
    (answer,) = delivered(two.named("answered", "refund").actions)
    assert answer["error"]["code"] == CODE_NAME_TAKEN


def test_a_request_of_another_kind_repeats_nothing() -> None:
    driver = Driver().opened()
    driver.request("tools/list")
    assert of(driver.request("tools/list").actions, Post)


def test_a_repeat_gets_what_is_known_of_its_call_where_no_session_can_be_had() -> None:
    """That there is no session says nothing of a call which has run, runs, or may have run."""
    one = Process(policy=GuardPolicy(reinitialize_limit=1)).connect()
    one.opened()
    one.named("order-17", n=1).answer()
    one.drain(5)
    one.call(n=2).cut()
    runs = one.named("order-18", n=3)
    runs.accept()
    one.request("prompts/list").refuse(404)
    one.reinitialized()
    one.request("prompts/list").refuse(404)
    assert one.machine.session.state is SessionState.LOST
    assert "result" in delivered(one.named("order-17", n=1).actions)[0]
    assert reports(one.call(n=2).actions, RepeatRefused)
    waiting = one.named("order-18", n=3)
    assert not delivered(waiting.actions)
    assert waiting.host_id in [m["id"] for m in delivered(runs.body(runs.result()))]


def test_two_equal_calls_both_go_out_where_the_first_was_refused_a_connection_once(one: Connection) -> None:
    call = one.call(cents=6)
    call.not_written()
    assert not is_sent(one.call(cents=6)), "it waits for its next attempt"
    call.begin()
    assert is_sent(one.call(cents=6))


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("how", ["cancelled", "no session", "refused"])
def test_a_name_stands_for_its_doubt_again_where_a_repeat_with_consent_did_not_run(how: str, linked: bool) -> None:
    one = opened(Process())
    first = one.call(cents=1) if linked else one.named("order", cents=1)
    assert outcomes(first.cut()) == [Outcome.IN_DOUBT]
    assert not is_sent(one.named("order", cents=1))
    one.now += 100  # names hold for longer than the window
    if how != "refused":
        one.request("tools/list").refuse(404)
    repeat = one._call("charge", {"cents": 1}, {CALL_KEY: "order", CONSENT: "order"})
    if how == "refused":
        assert is_sent(repeat)
        repeat.refuse(413)
    elif how == "cancelled":
        one.cancel(repeat)
        one.reinitialized()
    else:
        one.sent("initialize").refuse(401)
    plain = one.named("order", cents=1)
    sent = [post for post in of(one.log, Post) if post.message["method"] == "tools/call"]
    assert not is_sent(plain)
    assert len(sent) == (2 if how == "refused" else 1)


# Resumed by the host, with a cursor of its own.


def resumed(driver: Driver, method: str = "tools/call", tool: str = "charge", **extra: Any) -> list[Action]:
    params = {"name": tool, "arguments": {}, **extra} if method == "tools/call" else {}
    message = {"jsonrpc": "2.0", "id": "resumed", "method": method, "params": params}
    return driver.feed(MessageSubmitted(message, {}, "key-resumed", resumes=True))


def test_a_call_that_the_host_resumes_is_not_made_anew(one: Connection) -> None:
    actions = resumed(one)
    assert not of(actions, Post)
    doubt = doubt_in(actions)
    assert doubt is not None
    assert (doubt.call_key, "resumption_token" in doubt.reason) == ("key-resumed", True)
    assert reports(actions, RepeatRefused) == [RepeatRefused("charge", "key-resumed")]


@pytest.mark.parametrize("alike", [1, 2])
def test_one_alike_in_flight_may_be_another_than_the_host_resumes(one: Connection, alike: int) -> None:
    for _ in range(alike):
        one.named("order-2", token=None)
    assert doubt_in(resumed(one)) is not None


def test_one_that_is_being_resumed_is_joined_by_the_host_that_resumes_it(one: Connection) -> None:
    call = one.call(token=None)
    call.stream_up("e1")
    call.cut()
    assert reports(resumed(one), RepeatJoined) == [RepeatJoined("charge", "key-1-0-2")]


@pytest.mark.parametrize("restarted", [True, False])
def test_what_the_host_resumes_is_in_doubt_for_its_repeats_too(
    process: Process, one: Connection, restarted: bool
) -> None:
    resumed(one, _meta={CALL_KEY: "order-1"})
    later = one
    if restarted:
        later = process.killed(after=5.0).connect()
        prove(later)
    assert not is_sent(later.named("order-1", token=None))
    assert not is_sent(later.call(token=None))
    (row,) = [call for call in process.disk.calls.values() if call.method == "tools/call"]
    assert (row.outcome, row.call_key) == (Outcome.IN_DOUBT, "order-1")


def test_a_request_that_may_have_side_effects_and_is_resumed_is_an_error(one: Connection) -> None:
    (answer,) = delivered(resumed(one, "x/charge"))
    assert "may or may not have run" in answer["error"]["message"]


def test_what_is_harmless_or_may_be_sent_again_is_sent_though_the_host_resumes_it() -> None:
    driver = Driver(GuardPolicy(resend={"charge": "always"})).opened()
    assert of(resumed(driver), Post)
    assert of(resumed(driver, "tools/list"), Post)


def test_a_call_in_doubt_that_the_host_resumes_is_sent_by_consent_only(one: Connection) -> None:
    doubtful(one)
    doubt = doubt_in(resumed(one))
    assert doubt is not None
    assert doubt.call_key == "key-1-0-2"
    one.process.shared.consent(doubt.call_key)
    assert of(resumed(one), Post)
