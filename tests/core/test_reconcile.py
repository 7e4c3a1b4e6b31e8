"""Calls that lost their stream or their session: sent again by consent only, asked about, or told as in doubt."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Ask, Forward, Post, StopAsking
from mcp_client_guard.core.answers import CODE_IN_DOUBT, CODE_NOT_EXECUTED, CODE_SESSION_LOST
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.inputs import Forwarded
from mcp_client_guard.core.ledger import Call, Joined, Own, Repeat
from mcp_client_guard.core.model import CallSent, Outcome
from mcp_client_guard.core.model import CallSettled as CallSettledRow
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.core.verdicts import Fail, Resend, Resolve
from tests.core.driver import (
    CHARGE,
    LOOK,
    Driver,
    Peer,
    delivered,
    error_of,
    in_doubt,
    of,
    outcomes,
    records,
    reports,
)

RESULT: dict[str, Any] = {"content": [{"type": "text", "text": "known"}]}


@pytest.fixture
def driver() -> Driver:
    driver = Driver().opened()
    driver.listed(LOOK, CHARGE)
    return driver


def calls_in(actions: list[Action]) -> list[Post]:
    return [p for p in of(actions, Post) if p.message.get("method") == "tools/call"]


def doubt_of(actions: list[Action]) -> CallInDoubt:
    (answer,) = [m for m in delivered(actions) if "method" not in m]
    doubt = CallInDoubt.find(answer["result"])
    assert doubt is not None
    return doubt


# By policy.


def test_an_unsafe_call_that_was_cut_is_in_doubt_at_once(driver: Driver) -> None:
    call = driver.call()
    actions = call.cut()
    assert in_doubt(actions)
    assert not of(actions, Post)


def test_a_read_only_call_that_was_cut_is_sent_again_and_answered_once(driver: Driver) -> None:
    call = driver.call("look")
    actions = call.cut()
    assert outcomes(actions) == [Outcome.RESENT]
    (row,) = records(actions, CallSent)
    assert row.wire_id != call.stream
    actions = driver.sent("tools/call").answer()
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert call.event("late", call.result()) == []


@pytest.mark.parametrize(("rule", "sent"), [("always", True), ("never", False), ("if_idempotent", False)])
def test_the_user_s_rule_decides(rule: Any, sent: bool) -> None:
    driver = Driver(GuardPolicy(resend={"charge": rule})).opened()
    assert bool(calls_in(driver.call().cut())) is sent


def test_a_stateless_call_is_sent_again_with_the_host_s_headers() -> None:
    driver = Driver(GuardPolicy(resend={"*": "always"}))
    call = driver.request("tools/call", {"name": "charge"}, mcp_protocol_version="2026-07-28")
    (post,) = calls_in(call.cut())
    assert post.headers["mcp-protocol-version"] == "2026-07-28"


@pytest.mark.parametrize("when", ["new", "initializing"])
def test_a_host_that_skips_the_handshake_is_served_all_the_same(when: str) -> None:
    driver = Driver(GuardPolicy(resend={"*": "always"}))
    if when == "initializing":
        driver.initialize()
    assert calls_in(driver.call().cut())


def test_a_call_cut_while_the_host_opens_a_session_waits_for_it() -> None:
    driver = Driver(GuardPolicy(resend={"*": "always"}))
    call = driver.call()
    sent = driver.request("initialize")
    assert not of(call.cut(), Post)
    assert calls_in(sent.refuse(500)), "there is none; it goes out as it did before"


def test_a_cut_call_of_a_lost_session_waits_for_the_next(driver: Driver) -> None:
    call = driver.call("look")
    driver.call().refuse(404)
    assert not of(call.cut(), Post)
    actions = driver.reinitialized(tools=[LOOK, CHARGE])
    assert [p.message["params"]["name"] for p in calls_in(actions)] == ["charge", "look"]


def test_a_cut_call_of_a_tool_that_has_changed_is_in_doubt(driver: Driver) -> None:
    call = driver.call("look")
    driver.call().refuse(404)
    call.cut()
    actions = driver.reinitialized(tools=[{**LOOK, "inputSchema": {}}, CHARGE])
    assert Outcome.IN_DOUBT in outcomes(actions)
    assert [p.message["params"]["name"] for p in calls_in(actions)] == ["charge"]


SAFE_CHARGE: dict[str, Any] = {"name": "charge", "annotations": {"readOnlyHint": True}}


@pytest.mark.parametrize("rule", [None, "always"])
@pytest.mark.parametrize("asked", [True, False])
def test_a_list_read_again_does_not_launder_a_call_sent_before(rule: Any, asked: bool) -> None:
    """It is judged by what the host knew when it sent it; and its tool has changed since."""
    driver = Driver(GuardPolicy(resend={"charge": rule} if rule else {}), has_hook=asked).opened()
    driver.listed(CHARGE)
    call = driver.call()
    call.accept()
    driver.call("look").refuse(404)
    driver.reinitialized(tools=[SAFE_CHARGE])
    if asked:
        call.cut()
    driver.listed(SAFE_CHARGE)
    actions = driver.reconciled(call, None) if asked else call.cut()
    assert in_doubt(actions)
    assert not calls_in(actions)


def test_nor_does_one_read_in_the_same_session(driver: Driver) -> None:
    call = driver.call("look")
    driver.listed({**LOOK, "inputSchema": {}}, CHARGE)
    assert in_doubt(call.cut())


@pytest.mark.parametrize(("before", "now"), [(LOOK, {"name": "look"}), ({"name": "look"}, LOOK)])
def test_a_tool_that_changed_and_was_not_listed_again_is_the_worse_of_both(before: Any, now: Any) -> None:
    driver = Driver().opened()
    driver.listed(before)
    driver.call().refuse(404)
    driver.reinitialized(tools=[now])
    call = driver.call("look")
    (row,) = records(call.actions, CallSent)
    assert row.may_have_side_effects
    assert error_of(call.refuse(429))["code"] == CODE_NOT_EXECUTED
    driver.listed(LOOK)
    assert not records(driver.call("look").actions, CallSent)[0].may_have_side_effects


def test_a_busy_server_s_call_of_a_tool_that_has_changed_is_not_sent_again(driver: Driver) -> None:
    look = driver.call("look")
    driver.call().refuse(404)
    driver.reinitialized(tools=[{**LOOK, "inputSchema": {}}, CHARGE])
    actions = look.refuse(429)
    assert "changed" in error_of(actions)["message"]
    assert not calls_in(actions)


def test_other_words_for_people_are_no_other_tool(driver: Driver) -> None:
    driver.listed(CHARGE)
    driver.call().refuse(404)
    actions = driver.reinitialized(tools=[{**CHARGE, "description": "new words", "title": "New"}])
    assert "charge" in [p.message["params"]["name"] for p in calls_in(actions)]


@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("policy", [GuardPolicy(), GuardPolicy(resend={"look": "always"})])
def test_a_call_cut_while_the_new_session_is_restored_waits_to_hear_of_its_tool(
    policy: GuardPolicy, changed: bool
) -> None:
    driver = Driver(policy).opened()
    driver.listed(LOOK)
    call = driver.call("look")
    driver.call().refuse(404)
    driver.reopened()
    actions = call.cut()
    assert outcomes(actions) == []
    actions = driver.sent("tools/list").answer({"tools": [{**LOOK, "inputSchema": {}} if changed else LOOK]})
    assert in_doubt(actions) is changed
    assert [p.message["params"]["name"] for p in calls_in(actions)] == ["charge"] + ["look"] * (not changed)


def test_a_call_cut_when_no_session_is_to_be_had_asks_for_one() -> None:
    driver = Driver().opened()
    driver.listed(LOOK)
    call = driver.call("look")
    driver.call("charge").refuse(404)
    driver.sent("initialize").refuse(401)
    assert driver.machine.session.state is SessionState.LOST
    assert [p.message["method"] for p in of(call.cut(), Post)] == ["initialize"]
    actions = driver.sent("initialize").refuse(401)
    assert "HTTP 401" in doubt_of(actions).reason


def test_what_is_stranded_when_no_session_can_be_opened_is_told_what_is_known(driver: Driver) -> None:
    look = driver.call("look")
    charge = driver.call()
    charge.refuse(404)
    look.cut()
    actions = driver.sent("initialize").refuse(403)
    assert sorted(o.value for o in outcomes(actions)) == ["in_doubt", "not_executed"]
    assert error_of(actions)["code"] == CODE_SESSION_LOST
    assert error_of(actions)["data"]["http_status"] == 404


# Busy servers.


@pytest.mark.parametrize("status", [429, 503])
def test_a_safe_call_waits_for_a_busy_server_and_is_sent_again(driver: Driver, status: int) -> None:
    call = driver.call("look")
    actions = call.refuse(status, retry_after=7.0)
    if status == 503:
        actions = driver.sent("ping").answer({})
    (post,) = calls_in(actions)
    assert post.delay.at_least == 7.0
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert [m["id"] for m in delivered(driver.sent("tools/call").answer())] == [call.host_id]


@pytest.mark.parametrize(
    ("policy", "tool", "retry_after", "waits"),
    [
        (GuardPolicy(), "charge", 1.0, False),
        (GuardPolicy(trust_status=True), "charge", None, True),
        (GuardPolicy(), "look", 61.0, False),
        (GuardPolicy(), "look", None, True),
        (GuardPolicy(max_attempts=1), "look", None, False),
    ],
)
def test_who_waits_for_a_busy_server(
    policy: GuardPolicy, tool: str, retry_after: float | None, waits: bool
) -> None:
    driver = Driver(policy).opened()
    driver.listed(LOOK)
    actions = driver.call(tool).refuse(429, retry_after=retry_after)
    assert bool(calls_in(actions)) is waits
    if not waits:
        assert error_of(actions)["code"] == CODE_NOT_EXECUTED


def test_a_busy_answer_after_the_loss_waits_for_the_next_session(driver: Driver) -> None:
    look = driver.call("look")
    driver.call().refuse(404)
    assert not of(look.refuse(429), Post)
    assert len(calls_in(driver.reinitialized(tools=[LOOK, CHARGE]))) == 2


# The hook.


def test_the_hook_is_asked_about_a_call_that_may_have_run_with_all_that_is_known(hooked: Driver) -> None:
    call = hooked.call(cents=5)
    (ask,) = of(call.cut(), Ask)
    assert ask.question == call.stream
    assert ask.arguments == {"cents": 5}
    assert (ask.doubt.tool, ask.doubt.call_key) == ("charge", "key-3")
    assert delivered(hooked.log)[-1].get("id") != call.host_id


def test_the_hook_is_not_asked_about_other_requests_nor_what_did_not_run(hooked: Driver) -> None:
    assert not of(hooked.request("x/unknown").cut(), Ask)
    hooked.call().refuse(404)
    assert not of(hooked.reinitialized(tools=[LOOK, CHARGE]), Ask)


def test_resend_sends_it_again(hooked: Driver) -> None:
    call = hooked.call()
    call.cut()
    actions = hooked.reconciled(call, Resend())
    assert outcomes(actions) == [Outcome.RESENT]
    assert len(calls_in(actions)) == 1
    assert [m["id"] for m in delivered(hooked.sent("tools/call").answer())] == [call.host_id]


def test_the_hook_is_not_obeyed_for_ever(hooked: Driver) -> None:
    call = hooked.call()
    for _ in range(2):
        hooked.sent("tools/call").cut()
        assert len(calls_in(hooked.reconciled(call, Resend()))) == 1
    (ask,) = of(hooked.sent("tools/call").cut(), Ask)
    assert ask.question == call.stream
    actions = hooked.reconciled(call, Resend())
    assert not calls_in(actions)
    assert "as often as it may" in doubt_of(actions).reason


class Model:
    """A result of an SDK's."""

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return RESULT


@pytest.mark.parametrize("result", [RESULT, Model()])
def test_resolve_is_the_answer(hooked: Driver, result: Any) -> None:
    call = hooked.call()
    call.cut()
    actions = hooked.reconciled(call, Resolve(result))
    assert delivered(actions) == [{"jsonrpc": "2.0", "id": call.host_id, "result": RESULT}]
    assert outcomes(actions) == [Outcome.RECOVERED]


def test_a_result_that_is_no_object_is_none(hooked: Driver) -> None:
    call = hooked.call()
    call.cut()
    assert "no object" in doubt_of(hooked.reconciled(call, Resolve(7))).reason


def test_what_a_hook_says_is_said_to_whoever_repeats_the_call_and_in_the_ledger(hooked: Driver) -> None:
    call = hooked.call()
    call.cut()
    actions = hooked.reconciled(call, Fail("not known before it was sent"))
    doubt = doubt_of(actions)
    assert "the reconcile hook says 'not known before it was sent'" in doubt.reason
    assert [row.reason for row in records(actions, CallSettledRow)] == [doubt.reason]
    assert doubt_of(hooked.call().actions) == doubt


OUTPUT: dict[str, Any] = {"type": "object", "required": ["result"]}
TEXT: dict[str, Any] = {**OUTPUT, "properties": {"result": {"type": "string"}}}


@pytest.mark.parametrize(
    ("result", "schema", "is_taken"),
    [
        (RESULT, OUTPUT, False),
        ({**RESULT, "structuredContent": {"charge": 100}}, OUTPUT, False),
        ({**RESULT, "structuredContent": "result"}, OUTPUT, False),
        ({**RESULT, "structuredContent": {"result": "charged"}}, OUTPUT, True),
        ({**RESULT, "isError": True}, OUTPUT, True),
        ({**RESULT, "structuredContent": {}}, {"type": "object"}, True),
        ({**RESULT, "structuredContent": {}}, {"required": "result"}, True),
        ({**RESULT, "structuredContent": {"result": {"charge": 100}}}, TEXT, False),
        ({**RESULT, "structuredContent": {"result": "charged"}}, TEXT, True),
        (RESULT, None, True),
    ],
)
@pytest.mark.parametrize("is_heir", [False, True])
def test_a_result_that_does_not_fit_the_tool_s_output_schema_is_not_taken(
    hooked: Driver, result: Any, schema: Any, is_taken: bool, is_heir: bool
) -> None:
    """An SDK would raise for it; to the guard the call would have had its answer, and the next would be sent."""
    hooked.listed({**CHARGE, "outputSchema": schema})
    call = hooked.call()
    if is_heir:
        hooked.machine._streams._streams[call.stream].call.listed = None  # type: ignore[union-attr]
    call.cut()
    actions = hooked.reconciled(call, Resolve(result))
    assert outcomes(actions) == [Outcome.RECOVERED if is_taken else Outcome.IN_DOUBT]
    if not is_taken:
        assert "output schema" in doubt_of(actions).reason


def test_a_tool_that_is_not_known_is_to_be_listed_before_a_result_is_given_for_it(hooked: Driver) -> None:
    """The SDK does so when it has a result, where its host has not, and raises for one that does not fit."""
    known, call = hooked.call(), hooked.call("refund")
    (ask,) = of(known.cut(), Ask)
    assert not ask.lists
    (ask,) = of(call.cut(), Ask)
    assert ask.lists
    hooked.hook_asks("tools/list").answer({"tools": [{"name": "refund", "outputSchema": OUTPUT}]})
    assert "output schema" in doubt_of(hooked.reconciled(call, Resolve(RESULT))).reason
    assert not hooked.machine._calls.tools.get("refund"), "the host knows nothing of it"


def test_a_listing_that_is_refused_to_the_hook_says_nothing_of_tools(hooked: Driver) -> None:
    call = hooked.call("refund")
    call.cut()
    hooked.hook_asks("tools/list").answer_error(-32603)
    assert outcomes(hooked.reconciled(call, Resolve(RESULT))) == [Outcome.RECOVERED]


@pytest.mark.parametrize("as_result", [True, False])
def test_fail_tells_the_caller_in_the_user_s_words(as_result: bool) -> None:
    driver = Driver(GuardPolicy(in_doubt_as="result" if as_result else "error"), has_hook=True).opened()
    call = driver.call()
    call.cut()
    actions = driver.reconciled(call, Fail("the bank says no"))
    (answer,) = delivered(actions)
    if as_result:
        assert answer["result"]["content"] == [{"type": "text", "text": "the bank says no"}]
    else:
        assert (answer["error"]["code"], answer["error"]["message"]) == (CODE_IN_DOUBT, "the bank says no")
    assert outcomes(actions) == [Outcome.IN_DOUBT]


@pytest.mark.parametrize(("tool", "sent"), [("look", True), ("charge", False)])
def test_no_opinion_leaves_it_to_the_policy(hooked: Driver, tool: str, sent: bool) -> None:
    call = hooked.call(tool)
    call.cut()
    actions = hooked.reconciled(call, None)
    assert bool(calls_in(actions)) is sent
    assert in_doubt(actions) is not sent


def test_a_hook_that_raises_leaves_the_call_in_doubt(hooked: Driver) -> None:
    call = hooked.call("look")
    call.cut()
    assert "ValueError" in doubt_of(hooked.reconciled(call, failed="ValueError")).reason


def test_a_hook_that_hangs_leaves_the_call_in_doubt_and_is_not_waited_for(hooked: Driver) -> None:
    call = hooked.call()
    call.cut()
    actions = hooked.elapse(TimerKind.ASK)
    assert "in time" in doubt_of(actions).reason
    assert StopAsking(call.stream) in actions
    assert hooked.reconciled(call, Resend()) == [], "too late"
    hooked.machine._calls.asked_too_long(call.stream)
    assert hooked.machine.receive() == []


@pytest.mark.parametrize("how", ["deadline", "cancel", "close"])
def test_what_settles_the_call_meanwhile_stops_the_question(hooked: Driver, how: str) -> None:
    call = hooked.call()
    call.cut()
    if how == "deadline":
        actions = hooked.elapse(TimerKind.DEADLINE, call.stream)
        assert len(delivered(actions)) == 1
    else:
        actions = hooked.cancel(call) if how == "cancel" else hooked.close()
        assert delivered(actions) == []
    assert StopAsking(call.stream) in actions
    assert len(outcomes(actions)) == 1
    assert hooked.reconciled(call, Resend()) == []


@pytest.mark.parametrize(("verdict", "posts"), [(Resend(), 1), (None, 0)])
def test_a_verdict_that_comes_while_the_session_is_lost_holds_for_the_next(
    hooked: Driver, verdict: Any, posts: int
) -> None:
    call = hooked.call()
    call.cut()
    hooked.request("resources/read").refuse(404)
    actions = hooked.reconciled(call, verdict)
    assert not of(actions, Post)
    assert delivered(actions) == []
    actions = hooked.reinitialized(tools=[LOOK, CHARGE])
    assert not of(actions, Ask), "it is not asked twice"
    assert len(calls_in(actions)) == posts
    assert in_doubt(actions) is (posts == 0)


@pytest.mark.parametrize("verdict", [Resend(), None])
def test_a_verdict_for_which_no_session_can_be_had_ends_in_doubt(hooked: Driver, verdict: Any) -> None:
    call = hooked.call()
    call.cut()
    hooked.request("resources/read").refuse(404)
    hooked.sent("initialize").refuse(401)
    assert delivered(hooked.log)[-1].get("id") != call.host_id, "the hook still has its time"
    actions = hooked.reconciled(call, verdict)
    assert [p.message["method"] for p in of(actions, Post)] == ["initialize"]
    assert in_doubt(hooked.sent("initialize").refuse(401))


def test_the_hook_is_asked_under_the_next_session_when_the_loss_came_first(hooked: Driver) -> None:
    call = hooked.call()
    hooked.request("resources/read").refuse(404)
    assert not of(call.cut(), Ask)
    assert of(hooked.reinitialized(tools=[LOOK, CHARGE]), Ask)


def test_each_sending_is_asked_about_anew(hooked: Driver) -> None:
    call = hooked.call()
    call.cut()
    hooked.reconciled(call, Resend())
    (ask,) = of(hooked.sent("tools/call").cut(), Ask)
    assert ask.question == call.stream, "the question keeps its name"


# Those who wait for the same call.


def joined(driver: Driver, machine: int = 0) -> Peer:
    """A call on a lost stream, to which a repeat was joined."""
    call = driver.call().stream_up("e1", "e2")
    call.cut()
    found = driver.machine._streams._streams[call.stream].call
    assert found is not None
    found.joined.append(Joined(machine, "joined"))
    driver.machine._calls.joins["joined"] = Repeat(found, "key")
    return call


@pytest.mark.parametrize("how", ["cancel", "close", "deadline", "answer"])
@pytest.mark.parametrize("machine", [0, 7])
def test_whoever_was_joined_is_told_whatever_becomes_of_the_call(driver: Driver, how: str, machine: int) -> None:
    call = joined(driver, machine)
    if how == "cancel":
        actions = driver.cancel(call)
    elif how == "close":
        actions = driver.close()
    elif how == "deadline":
        actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    else:
        call.accept()
        actions = call.event("e2", call.progress(2)) + call.event("e3", call.result())
    told = [m for m in delivered(actions) if m.get("id") == "joined"]
    told += [f.message for f in of(actions, Forward) if f.message["id"] == "joined" and f.machine == 7]
    assert len(told) == (0 if how == "close" and machine == 0 else 1)


def test_a_call_cancelled_before_it_was_sent_says_so_to_whoever_was_joined(driver: Driver) -> None:
    driver.begins = False
    call = driver.call()
    found = driver.machine._streams._streams[call.stream].call
    assert found is not None
    found.joined.append(Joined(7, "joined"))
    (forward,) = of(driver.cancel(call), Forward)
    assert forward.message["error"]["code"] == CODE_NOT_EXECUTED


def test_an_answer_from_another_connection_is_delivered(driver: Driver) -> None:
    message = {"jsonrpc": "2.0", "id": "h1", "result": {}}
    call = Call(1, "h1", "tools/call", "charge", {}, "another key", True, 1)
    driver.machine._calls.joins["h1"] = Repeat(call, "key")
    assert delivered(driver.feed(Forwarded(message, "key"))) == [message]
    assert delivered(driver.feed(Forwarded(message, "key"))) == [], "once"


def test_a_call_that_waits_for_a_session_is_not_executed_at_its_deadline(driver: Driver) -> None:
    call = driver.call()
    call.refuse(404)
    actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert error_of(actions)["data"]["outcome"] == "not_executed"
    assert not calls_in(driver.reinitialized(tools=[LOOK, CHARGE]))


@pytest.mark.parametrize("how", ["lost", "restoring"])
def test_a_request_that_waits_for_a_session_has_its_deadline_too(driver: Driver, how: str) -> None:
    driver.request("resources/list").refuse(404)
    if how == "restoring":
        driver.reopened()
    waiting = driver.call()
    assert not of(waiting.actions, Post)
    actions = driver.elapse(TimerKind.DEADLINE, newest_deadline(driver))
    assert error_of(actions)["data"]["by"] == "wire"
    assert error_of(actions)["code"] == CODE_NOT_EXECUTED
    assert delivered(actions)[0]["id"] == waiting.host_id
    assert not calls_in(driver.reinitialized() if how == "lost" else driver.sent("tools/list").answer({}))


def test_the_time_it_waited_counts(driver: Driver) -> None:
    driver.request("resources/list").refuse(404)
    call = driver.call()
    number = newest_deadline(driver)
    driver.now += 10
    driver.reinitialized(tools=[LOOK, CHARGE])
    driver.sent("tools/call").accept()
    assert in_doubt(driver.elapse(TimerKind.DEADLINE, number))
    assert driver.now == 100 + 3600
    assert [m["id"] for m in delivered(driver.log) if "result" in m][-1] == call.host_id


def newest_deadline(driver: Driver) -> int:
    return max(t.stream for t in driver.timers if t.kind is TimerKind.DEADLINE)


def test_a_stranded_call_that_is_cancelled_is_not_sent_again(driver: Driver) -> None:
    call = driver.call()
    call.refuse(404)
    actions = driver.cancel(call)
    assert outcomes(actions) == [Outcome.CANCELLED]
    assert reports(actions, CallSettled)[0].reason == "HTTP 404; cancelled by the caller before it was sent again"
    assert not calls_in(driver.reinitialized(tools=[LOOK, CHARGE]))


# What is rare.


def test_an_answer_that_came_before_the_request_had_left_is_enough(driver: Driver) -> None:
    other = driver.call("other")
    driver.begins = False
    call = driver.call()
    driver.begins = True
    other.accept()
    assert outcomes(other.event(None, call.result())) == [Outcome.COMPLETED]
    driver.request("resources/read").refuse(404)
    assert not calls_in(driver.reinitialized(tools=[LOOK, CHARGE]))


def test_a_call_of_which_an_earlier_sending_was_lost_is_never_said_not_to_have_run(driver: Driver) -> None:
    driver.call("look").cut()
    actions = driver.sent("tools/call").refuse(413)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert "earlier sending" in doubt_of(actions).reason


def test_a_call_of_a_dead_process_cannot_be_sent_again_even_if_the_hook_says_so(hooked: Driver) -> None:
    call = hooked.call()
    call.cut()
    hooked.machine._calls._stranded[call.stream].call.own = Own.HEIR
    actions = hooked.reconciled(call, Resend())
    assert not of(actions, Post)
    assert "not known any more" in reports(actions, CallSettled)[0].reason


@pytest.mark.parametrize("then", ["ping answered", "ping refused alike", "session lost"])
def test_a_better_answer_makes_a_suspicion_void(driver: Driver, then: str) -> None:
    call, other = driver.call(), driver.call("other")
    call.refuse(400)
    other.accept()
    assert outcomes(other.event(None, call.result())) == [Outcome.COMPLETED]
    ping = driver.sent("ping")
    actions = ping.answer({}) if then == "ping answered" else ping.refuse(404 if then == "session lost" else 400)
    assert outcomes(actions) == []
    assert bool(of(actions, Post)) is (then == "session lost")
    assert not [m for m in delivered(actions) if m.get("id") == call.host_id]


def test_an_answer_too_large_is_not_asked_for_again_for_it_would_be_too_large_again(driver: Driver) -> None:
    listing = driver.request("tools/list")
    listing.accept(events=False)
    actions = listing.too_large()
    assert in_doubt(actions)
    assert not of(actions, Post)
