"""What the `reconcile` hook asks the server: under the present session or the next, and never behind its back."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.actions import Ask, Reply
from mcp_client_guard.core.answers import CODE_IN_DOUBT, CODE_NOT_EXECUTED, CODE_SESSION_LOST
from mcp_client_guard.core.inputs import HookWithdrew
from mcp_client_guard.core.model import CallSent, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import CHARGE, LOOK, Driver, delivered, of, outcomes, posted, records


def test_the_hook_asks_under_the_present_session(hooked: Driver) -> None:
    peer = hooked.hook_asks("resources/read", {"uri": "a://1"})
    assert not records(peer.actions, CallSent)
    actions = peer.answer({"contents": []})
    (reply,) = of(actions, Reply)
    assert reply.message["result"] == {"contents": []}
    assert delivered(actions) == []


def test_what_the_hook_does_with_effects_has_its_row(hooked: Driver) -> None:
    peer = hooked.hook_asks("tools/call", {"name": "refund"})
    (row,) = records(peer.actions, CallSent)
    assert (row.tool, row.call_key) == ("refund", "hook:key-1")
    assert outcomes(peer.answer()) == [Outcome.COMPLETED]


@pytest.mark.parametrize(
    ("how", "outcome", "code"),
    [
        ("400", Outcome.COMPLETED, None),
        ("500", Outcome.IN_DOUBT, CODE_IN_DOUBT),
        ("302", Outcome.IN_DOUBT, CODE_IN_DOUBT),
        ("413", Outcome.NOT_EXECUTED, CODE_NOT_EXECUTED),
        ("cut", Outcome.IN_DOUBT, CODE_IN_DOUBT),
        ("timeout", Outcome.IN_DOUBT, CODE_IN_DOUBT),
        ("never written", Outcome.NOT_EXECUTED, CODE_NOT_EXECUTED),
    ],
)
def test_what_becomes_of_a_call_of_the_hook_s_is_told_to_it(how: str, outcome: Outcome, code: int | None) -> None:
    driver = Driver(GuardPolicy(max_attempts=1), has_hook=True).opened()
    peer = driver.hook_asks("tools/call", {"name": "refund"})
    if how.isdigit():
        actions = peer.refuse(int(how))
        if driver.is_waited_for("ping"):
            actions = driver.sent("ping").answer()
    elif how == "cut":
        actions = peer.cut()
    elif how == "timeout":
        actions = driver.elapse(TimerKind.DEADLINE, peer.stream)
    else:
        actions = peer.not_written() + peer.not_written()
    (reply,) = of(actions, Reply)
    assert outcomes(actions) == [outcome]
    if code is not None:
        assert reply.message["error"]["code"] == code, "never a result: the hook takes those for the server's"
    assert delivered(actions) == []


@pytest.mark.parametrize("method", ["tools/call", "resources/read"])
@pytest.mark.parametrize("how", ["404", "suspected", "never left", "asked meanwhile"])
def test_a_question_that_did_not_run_since_the_session_was_lost_is_asked_in_the_next(
    hooked: Driver, how: str, method: str
) -> None:
    """A restart of the server in mid-call: the hook's question may be the first to find the session gone."""
    if how == "asked meanwhile":
        hooked.call().refuse(404)
    hooked.begins = how != "never left"
    peer = hooked.hook_asks(method, {"name": "find"})
    hooked.begins = True
    if how == "404":
        peer.refuse(404)
    elif how == "never left":
        hooked.call().refuse(404)
    elif how == "suspected":
        peer.refuse(400)
        hooked.sent("ping").refuse(400)
    assert not of(hooked.log, Reply)
    sent = posted(hooked.reinitialized(tools=[LOOK, CHARGE]), method)
    (again,) = [p for p in sent if p.message["params"]["name"] == "find"]
    assert again.headers["mcp-session-id"] == "session-two"
    (reply,) = of(hooked.peer(again.stream).answer({"content": []}), Reply)
    assert reply.message["result"] == {"content": []}
    assert reply.ticket == 1


def test_a_question_that_may_have_run_in_a_lost_session_is_in_doubt(hooked: Driver) -> None:
    hooked.hook_asks("tools/call", {"name": "refund"}).answer_error(-32000)
    hooked.sent("ping").answer_error(-32000)
    actions = hooked.reinitialized(tools=[LOOK, CHARGE])
    (reply,) = of(actions, Reply)
    assert reply.message["error"]["code"] == CODE_IN_DOUBT
    assert not of(actions, Ask)
    assert not posted(actions, "tools/call")


def test_a_refusal_that_is_no_sign_of_a_lost_session_is_the_answer_to_the_hook(hooked: Driver) -> None:
    hooked.hook_asks("resources/read", {"uri": "a://1"}).answer_error(-32000)
    (reply,) = of(hooked.sent("ping").answer(), Reply)
    assert reply.message["error"]["code"] == -32000


def test_the_hook_is_told_where_no_session_can_be_opened(hooked: Driver) -> None:
    hooked.call().refuse(404)
    waiting = hooked.hook_asks("resources/read")
    assert not of(waiting.actions, Reply)
    told = hooked.sent("initialize").refuse(401)
    assert [reply.message["error"]["code"] for reply in of(told, Reply)] == [CODE_SESSION_LOST]


def test_the_hook_is_told_at_once_where_none_may_be_opened() -> None:
    driver = Driver(GuardPolicy(reinitialize_limit=1), has_hook=True).opened()
    driver.request("resources/list").refuse(404)
    driver.reinitialized()
    driver.request("resources/list").refuse(404)
    (reply,) = of(driver.hook_asks("resources/read").actions, Reply)
    assert reply.message["error"]["code"] == CODE_SESSION_LOST


def test_the_hook_is_never_asked_about_its_own_question(hooked: Driver) -> None:
    peer = hooked.hook_asks("tools/call", {"name": "refund"})
    peer.accept()
    actions = peer.cut()
    assert not of(actions, Ask)
    assert of(actions, Reply)


@pytest.mark.parametrize("when", ["waiting", "stranded", "not begun", "sent", "over"])
def test_what_a_hook_that_was_stopped_has_asked_is_not_sent_any_more(hooked: Driver, when: str) -> None:
    if when == "waiting":
        hooked.call().refuse(404)
    hooked.begins = when != "not begun"
    peer = hooked.hook_asks("tools/call", {"name": "refund"})
    hooked.begins = True
    if when == "stranded":
        peer.refuse(404)
    elif when == "over":
        peer.answer()
    actions = hooked.feed(HookWithdrew(1))
    cancelled = [p.message["params"]["requestId"] for p in posted(actions, "notifications/cancelled")]
    assert cancelled == ([peer.stream] if when == "sent" else [])
    assert outcomes(actions) == ([] if when in ("waiting", "over") else [Outcome.CANCELLED])
    if when in ("waiting", "stranded"):
        actions = hooked.reinitialized(tools=[LOOK, CHARGE])
    assert "refund" not in [p.message["params"]["name"] for p in posted(actions, "tools/call")]
    assert not of(hooked.close(), Reply)


def test_a_call_of_the_hook_s_that_is_open_when_the_host_leaves_has_an_outcome(hooked: Driver) -> None:
    hooked.hook_asks("tools/call", {"name": "refund"})
    assert outcomes(hooked.close()) == [Outcome.IN_DOUBT]


def test_no_server_is_told_of_one_whose_session_is_over(hooked: Driver) -> None:
    hooked.hook_asks("tools/call", {"name": "refund"})
    hooked.call("look").refuse(404)
    hooked.reinitialized(tools=[LOOK, CHARGE])
    actions = hooked.feed(HookWithdrew(1))
    assert outcomes(actions) == [Outcome.CANCELLED]
    assert not posted(actions, "notifications/cancelled")
