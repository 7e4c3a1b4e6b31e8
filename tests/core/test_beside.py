"""Beside a carrier the end of a POST is not the end of its request: the answer may come on the carrier yet."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Ask, CancelTimer, Post
from mcp_client_guard.core.inputs import TimerElapsed
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled, Disconnected, RepeatJoined, SessionLost
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Peer, delivered, in_doubt, of, outcomes, posted, reports
from tests.core.legacy import LEGACY_RESULT, Legacy

LOOK = {"name": "look", "annotations": {"readOnlyHint": True}, "inputSchema": {}}
CHARGE = {"name": "charge", "inputSchema": {}}
MAY_HAVE_RUN = [408, 409, 424, 425, 429, 499, 500, 502, 503, 504, 520, 302]


@pytest.fixture
def driver() -> Legacy:
    return known(Legacy())


def known(driver: Legacy) -> Legacy:
    """A live session, whose tools the host has listed."""
    driver.opened()
    driver.answers(driver.request("tools/list"), {"tools": [LOOK, CHARGE]})
    return driver


def draws(call: Peer, status: int, body: Any = None, **rest: Any) -> list[Action]:
    """The POST is refused, and the session lives."""
    driver = call.driver
    assert isinstance(driver, Legacy)
    actions = call.refuse(status, body, **rest)
    if driver.is_waited_for("ping"):
        actions = actions + driver.answers(driver.sent("ping"), {})
    return actions


def overdue(call: Peer) -> list[Action]:
    return call.driver.elapse(TimerKind.ANSWER, call.stream)


@pytest.mark.parametrize("status", MAY_HAVE_RUN)
def test_what_a_proxy_may_say_of_a_call_that_runs_is_not_its_end(driver: Legacy, status: int) -> None:
    """Its time was up (504): the server holds the POST until the tool has ended, and then answers all the same."""
    call = driver.call()
    actions = draws(call, status)
    assert [told.reason for told in reports(actions, Disconnected)] == [f"HTTP {status}"]
    assert not delivered(actions)
    actions = driver.carries(call.result())
    assert [answer["id"] for answer in delivered(actions)] == [call.host_id]
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert set(driver.machine._streams._streams) == {0}


@pytest.mark.parametrize("status", MAY_HAVE_RUN)
def test_it_is_in_doubt_when_no_answer_has_come_for_settle_after(driver: Legacy, status: int) -> None:
    call = driver.call()
    began = driver.now
    draws(call, status)
    (settled,) = reports(overdue(call), CallSettled)
    assert driver.now - began == driver.policy.settle_after
    assert settled.outcome is Outcome.IN_DOUBT
    assert f"HTTP {status}" in settled.reason
    assert outcomes(driver.carries(call.result())) == [Outcome.RECOVERED]


@pytest.mark.parametrize("status", [408, 409, 424, 425, 499, 500, 501])
def test_what_is_only_an_answer_by_its_status_waits_for_a_better_one(driver: Legacy, status: int) -> None:
    """A harmless call, of which such a status is the answer where nothing else comes."""
    call, other = driver.call("look"), driver.call("look", n=2)
    began = driver.now
    assert not delivered(draws(call, status) + draws(other, status))
    assert delivered(driver.carries(call.result()))[0]["result"]
    actions = overdue(other)
    assert driver.now - began == driver.policy.witness_timeout
    assert delivered(actions)[0]["error"]["data"]["http_status"] == status
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert set(driver.machine._streams._streams) == {0}


@pytest.mark.parametrize("status", [502, 504, 520])
def test_a_harmless_call_is_sent_again_only_then(driver: Legacy, status: int) -> None:
    call = driver.call("look")
    assert not posted(draws(call, status), "tools/call")
    (again,) = posted(overdue(call), "tools/call")
    second = driver.peer(again.stream)
    assert not outcomes(draws(second, status)[-3:]), "and waits again"
    assert outcomes(driver.carries(second.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("tool", ["charge", "look"])
@pytest.mark.parametrize("status", [400, 402, 406, 410, 413, 422, 431])
def test_what_is_said_before_a_request_is_passed_on_ends_it_at_once(
    driver: Legacy, status: int, tool: str
) -> None:
    call = driver.call(tool)
    assert [told["id"] for told in delivered(draws(call, status))] == [call.host_id]


@pytest.mark.parametrize("status", [400, 402, 405, 406, 410, 421, 422, 440])
def test_but_not_of_what_has_shown_that_it_runs(driver: Legacy, status: int) -> None:
    call = driver.call()
    driver.carries(call.progress(1))
    assert not delivered(draws(call, status))
    assert outcomes(driver.carries(call.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("status", [401, 403])
def test_what_did_not_run_is_told_at_once_but_not_of_what_has_begun(driver: Legacy, status: int) -> None:
    call, begun = driver.call(), driver.call(n=2)
    assert Outcome.NOT_EXECUTED in outcomes(draws(call, status))
    driver.carries(begun.progress(1))
    assert not delivered(draws(begun, status))
    assert outcomes(driver.carries(begun.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("status", [500, 409])
def test_an_error_of_the_request_s_own_is_its_answer_whatever_the_status(driver: Legacy, status: int) -> None:
    call = driver.call()
    actions = draws(call, status, call.error(-32602))
    assert outcomes(actions)[-1] is Outcome.COMPLETED
    assert delivered(actions)[0]["id"] == call.host_id


# Signs of life.


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_what_shows_progress_afterwards_is_waited_for_like_one_that_was_taken(driver: Legacy, how: str) -> None:
    call = driver.call()
    draws(call, 504) if how == "refused" else call.cut()
    actions = driver.carries(call.progress(1))
    assert delivered(actions)
    assert [one.timer.kind for one in of(actions, CancelTimer)] == [TimerKind.ANSWER]
    assert not of(driver.carries(call.progress(2)), CancelTimer)
    assert not driver.is_set(TimerKind.ANSWER, call.stream)
    actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    assert in_doubt(actions)
    assert posted(actions, "notifications/cancelled"), "it may run"


def test_its_status_is_no_answer_then(driver: Legacy) -> None:
    call = driver.call("look")
    draws(call, 500)
    driver.carries(call.progress(1))
    assert in_doubt(driver.elapse(TimerKind.DEADLINE, call.stream))


def test_progress_before_it_says_nothing_of_what_has_become_of_it_since(driver: Legacy) -> None:
    call = driver.call()
    driver.carries(call.progress(1))
    draws(call, 502)
    assert in_doubt(overdue(call))


def test_progress_of_what_is_over_or_was_taken_starts_nothing(driver: Legacy) -> None:
    call, taken = driver.call(), driver.call(n=2)
    draws(call, 504)
    overdue(call)
    driver.takes(taken)
    assert driver.carries(call.progress(1)) == []
    assert not of(driver.carries(taken.progress(1)), CancelTimer)


@pytest.mark.parametrize("after", [True, False])
def test_an_answer_that_cannot_be_read_shortens_the_wait(driver: Legacy, after: bool) -> None:
    call = driver.call()
    draws(call, 504)
    began = driver.now
    driver.carries({"jsonrpc": "2.0", "id": call.stream})
    if after:
        driver.carries(call.progress(1))
    (settled,) = reports(overdue(call), CallSettled)
    assert "could not be read" in settled.reason
    assert driver.now - began == driver.policy.witness_timeout


def test_nor_is_one_that_is_too_large_waited_for(driver: Legacy) -> None:
    call = driver.call()
    draws(call, 504)
    assert in_doubt(driver.carrier.too_large(call.stream))
    assert set(driver.machine._streams._streams) == {0}


# What else may end the wait.


def test_a_cut_of_the_carrier_ends_it(driver: Legacy) -> None:
    call, safe, other = driver.call(), driver.request("prompts/list"), driver.request("prompts/get")
    draws(call, 504)
    draws(safe, 504)
    draws(other, 500)
    assert in_doubt(driver.carrier.cut())
    again = driver.reopened()
    assert posted(again, "prompts/list")
    assert posted(again, "prompts/get"), "what is harmless is sent again"


def test_a_refusal_that_comes_after_the_carrier_was_cut_waits_for_nothing(driver: Legacy) -> None:
    call = driver.call()
    driver.carrier.cut()
    assert in_doubt(call.refuse(504))


def test_nor_where_another_has_taken_its_place(driver: Legacy) -> None:
    call = driver.call()
    driver.carrier.cut()
    driver.reopened()
    assert in_doubt(call.refuse(504))


def test_what_one_sending_drew_is_no_answer_of_the_next(driver: Legacy) -> None:
    call = driver.request("prompts/get")
    draws(call, 500)
    driver.carrier.cut()
    (again,) = posted(driver.reopened(), "prompts/get")
    second = driver.peer(again.stream)
    second.cut()
    actions = overdue(second)
    assert not delivered(actions)
    assert posted(actions, "prompts/get")


def test_what_is_refused_while_a_ping_decides_ends_with_the_carrier(driver: Legacy) -> None:
    call = driver.call()
    call.refuse(504)
    assert in_doubt(driver.carrier.cut())


def test_an_answer_on_another_s_stream_ends_it(driver: Legacy) -> None:
    """An odd server says on any stream what it has to say."""
    call, other = driver.call("look"), driver.call(n=2)
    draws(call, 500)
    other.accept()
    assert outcomes(other.event(None, call.result())) == [Outcome.COMPLETED]
    assert not delivered(overdue(call))


def test_before_there_is_a_session_it_ends_with_its_stream() -> None:
    driver = Legacy()
    driver.call()
    driver.serves()
    call = driver.sent("tools/call")
    driver.carrier.cut()
    assert in_doubt(call.refuse(504))


@pytest.mark.parametrize("tool", ["charge", "look"])
def test_its_caller_may_cancel_it_and_the_server_is_told(driver: Legacy, tool: str) -> None:
    call = driver.call(tool)
    draws(call, 500)
    actions = driver.cancel(call)
    assert outcomes(actions) == [Outcome.CANCELLED]
    assert posted(actions, "notifications/cancelled")
    driver.takes(driver.sent("notifications/cancelled"))
    assert set(driver.machine._streams._streams) == {0}
    driver.now += driver.policy.settle_after
    timer = next(one for one in driver.timers if one.kind is TimerKind.ANSWER)
    assert driver.feed(TimerElapsed(timer, driver.now)) == []


def test_at_its_deadline_what_may_run_is_cancelled_and_a_status_is_the_answer(driver: Legacy) -> None:
    call, safe = driver.call(), driver.call("look")
    draws(call, 500)
    draws(safe, 500)
    actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    assert in_doubt(actions)
    assert posted(actions, "notifications/cancelled")
    actions = driver.elapse(TimerKind.DEADLINE, safe.stream)
    assert delivered(actions)[0]["error"]["data"]["http_status"] == 500
    assert not posted(actions, "notifications/cancelled")
    assert set(driver.machine._streams._streams) == {0, driver.sent("notifications/cancelled").stream}


def test_on_leaving_it_is_in_doubt(driver: Legacy) -> None:
    call = driver.call()
    draws(call, 504)
    assert outcomes(driver.close()) == [Outcome.IN_DOUBT]


def test_an_equal_call_joins_it_meanwhile(driver: Legacy) -> None:
    call = driver.call()
    draws(call, 504)
    again = driver.call()
    assert reports(again.actions, RepeatJoined)
    assert [told["id"] for told in delivered(driver.carries(call.result()))] == [call.host_id, again.host_id]


def test_the_hook_is_asked_when_no_answer_has_come() -> None:
    driver = known(Legacy(has_hook=True))
    call = driver.call()
    assert not of(draws(call, 504), Ask)
    assert of(overdue(call), Ask)


def test_what_the_hook_asks_waits_for_its_answer_as_well() -> None:
    driver = known(Legacy(has_hook=True))
    call = driver.call()
    draws(call, 504)
    overdue(call)
    asked = driver.hook_asks("tools/call", {"name": "find_charge", "arguments": {}}, ticket=call.stream)
    assert Outcome.COMPLETED in outcomes(draws(asked, 504) + driver.carries(asked.result()))


def test_an_initialize_waits_for_its_answer_as_well() -> None:
    driver = Legacy()
    sent = driver.request("initialize", {"protocolVersion": "2025-11-25"})
    driver.serves()
    peer = driver.sent("initialize")
    actions = peer.refuse(504)
    assert not delivered(actions)
    assert not of(actions, Post)
    assert delivered(driver.carries(peer.result(LEGACY_RESULT)))[0]["id"] == sent.host_id


def test_another_session_on_the_same_stream_ends_it(driver: Legacy) -> None:
    call = driver.call()
    draws(call, 504)
    actions = driver.names("/messages?session=2")
    assert reports(actions, SessionLost)
    assert in_doubt(actions)


def test_what_is_trusted_may_be_sent_again_only_when_no_answer_has_come() -> None:
    driver = known(Legacy(GuardPolicy(resend={"charge": "always"})))
    call = driver.call()
    assert not posted(draws(call, 500), "tools/call")
    assert posted(overdue(call), "tools/call")
