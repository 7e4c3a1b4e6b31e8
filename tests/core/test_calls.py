"""Requests: each has its row before its first byte, its own wire ID, and exactly one outcome."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, CancelTimer, Get, Hangup, Post, Save, SetTimer
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.inputs import UNREADABLE, TimerElapsed
from mcp_client_guard.core.model import CallSent, Outcome, SessionEnded
from mcp_client_guard.core.model import CallSettled as Settled
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import (
    CallSettled,
    NotificationLost,
    OrphanDropped,
    SessionLost,
    StoreFailed,
    Unreachable,
)
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import (
    RESULT,
    SESSION,
    Driver,
    Peer,
    delivered,
    error_of,
    in_doubt,
    note,
    of,
    outcomes,
    posted,
    records,
    reports,
)


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


# Sending.


def test_the_row_of_an_unsafe_call_is_on_disk_before_its_post(driver: Driver) -> None:
    """S11, S12: the order of the list is the guarantee."""
    actions = driver.call().actions
    assert [type(a) for a in actions] == [SetTimer, Save, Post]
    (save,) = of(actions, Save)
    assert save.durable
    (row,) = records(actions, CallSent)
    assert (row.tool, row.method, row.incarnation, row.may_have_side_effects) == ("charge", "tools/call", 1, True)


def test_a_harmless_request_has_its_row_too_but_waits_for_no_flush(driver: Driver) -> None:
    (save,) = of(driver.request("tools/list").actions, Save)
    assert not save.durable


def test_a_read_only_tool_is_known_from_the_list_of_tools(driver: Driver) -> None:
    listing = driver.request("tools/list")
    tools: list[Any] = [
        {"name": "look", "annotations": {"readOnlyHint": True}},
        {"name": "charge", "annotations": "odd"},
        {"name": 7},
        "odd",
    ]
    listing.accept(events=False)
    listing.body(listing.result({"tools": tools}))
    assert not of(driver.call("look").actions, Save)[0].durable
    assert of(driver.call("charge").actions, Save)[0].durable


@pytest.mark.parametrize("result", [{"tools": "odd"}, {}])
def test_an_odd_list_of_tools_teaches_nothing(driver: Driver, result: dict[str, Any]) -> None:
    listing = driver.request("tools/list")
    listing.accept(events=False)
    assert outcomes(listing.body(listing.result(result))) == [Outcome.COMPLETED]


def test_ids_and_progress_tokens_are_ours_on_the_wire_and_the_host_s_again_on_return(driver: Driver) -> None:
    call = driver.call(token="tok")
    assert isinstance(call.order, Post)
    assert call.order.message["id"] == call.stream
    assert call.order.message["params"]["_meta"]["progressToken"] == call.stream
    call.accept()
    (progress,) = delivered(call.event("e1", call.progress(1)))
    assert progress["params"]["progressToken"] == "tok"
    (answer,) = delivered(call.event("e2", call.result()))
    assert answer["id"] == call.host_id


def test_a_row_that_cannot_be_written_is_a_request_not_executed(driver: Driver) -> None:
    call = driver.call()
    actions = call.save_failed()
    assert reports(actions, StoreFailed)
    assert error_of(actions)["code"] == CODE_NOT_EXECUTED
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert not call.is_open
    assert outcomes(call.save_failed()) == []


@pytest.mark.parametrize("loss", ["404", "another session"])
def test_a_row_that_fails_when_its_session_is_lost_meanwhile_costs_that_request_alone(
    driver: Driver, loss: str
) -> None:
    driver.begins = False
    call, other = driver.call(), driver.request("tools/list")
    other.begin()
    if loss == "404":
        other.refuse(404)
    else:
        other.accept(session_id="another")
        other.event(None)
    assert not call.is_open
    actions = call.save_failed()
    assert error_of(actions)["code"] == CODE_NOT_EXECUTED
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    posts = of(driver.reinitialized(), Post)
    assert "tools/call" not in [p.message["method"] for p in posts]


def test_what_was_never_written_is_posted_again_with_growing_delay_and_then_not_executed() -> None:
    driver = Driver(GuardPolicy(max_attempts=3)).opened()
    call = driver.call()
    for attempt in (1, 2, 3):
        (post,) = of(call.not_written(), Post)
        assert post.delay.attempt == attempt
    actions = call.not_written()
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert error_of(actions)["data"]["by"] == "wire"


def test_a_post_that_worked_the_second_time_is_a_call_like_any_other(driver: Driver) -> None:
    call = driver.call()
    call.not_written()
    call.accept()
    assert outcomes(call.event("e1", call.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("says", ["result", "error"])
def test_what_has_an_answer_is_not_posted_any_more(begun: bool, says: str, driver: Driver) -> None:
    call, other = driver.call(), driver.call(n=2)
    other.accept()
    call.not_written()
    if begun:
        call.begin()
    actions = other.event("e1", call.result() if says == "result" else call.error())
    if begun:
        actions += call.not_written()
    assert "tools/call" not in [post.message["method"] for post in of(actions, Post)]
    assert call.connection not in driver.open


# Answers.


def test_a_json_answer_completes_the_call(driver: Driver) -> None:
    call = driver.call()
    call.accept(events=False)
    actions = call.body(call.result())
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert of(actions, Hangup)[-1].linger
    (settled,) = records(actions, Settled)
    assert (settled.wire_id, settled.outcome) == (call.stream, Outcome.COMPLETED)
    assert not driver.is_set(TimerKind.DEADLINE, call.stream)


@pytest.mark.parametrize("code", [-32601, -32602, 7])
def test_an_error_answer_is_an_answer(driver: Driver, code: int) -> None:
    call = driver.call()
    call.accept(events=False)
    actions = call.body(call.error(code))
    assert error_of(actions)["code"] == code
    assert outcomes(actions) == [Outcome.COMPLETED]


@pytest.mark.parametrize(
    ("body", "says"),
    [(None, "without an answer"), (UNREADABLE, "no JSON-RPC"), ({}, "no JSON-RPC"), ("x", "no JSON-RPC")],
)
def test_an_answer_that_is_none_leaves_the_call_in_doubt(driver: Driver, body: Any, says: str) -> None:
    call = driver.call()
    call.accept(events=False)
    call.body(body)
    actions = driver.sent("ping").answer({})
    assert in_doubt(actions)
    (answer,) = delivered(actions)
    doubt = CallInDoubt.find(answer["result"])
    assert doubt is not None
    assert says in doubt.reason


def test_a_batch_body_delivers_its_messages_and_settles_the_call(driver: Driver) -> None:
    call = driver.call()
    call.accept(events=False)
    actions = call.body([call.progress(1), note("a"), call.result()])
    assert ["method" in m for m in delivered(actions)] == [True, True, False]
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_an_answer_with_the_id_of_another_call_settles_that_one_and_leaves_this_in_doubt(driver: Driver) -> None:
    first, second = driver.call(), driver.call()
    second.accept(events=False)
    actions = second.body(first.result()) + driver.elapse(TimerKind.ANSWER, second.stream)
    actions += driver.sent("ping").answer({})
    assert outcomes(actions) == [Outcome.COMPLETED, Outcome.IN_DOUBT]
    assert [m["id"] for m in delivered(actions)] == [first.host_id, second.host_id]
    assert not of(first.cut(), Get)


@pytest.mark.parametrize("foreign", [99_999, "abc", None, True])
def test_an_answer_to_a_request_never_sent_reaches_nobody(driver: Driver, foreign: Any) -> None:
    call = driver.call()
    call.accept()
    actions = call.event("e1", {"jsonrpc": "2.0", "id": foreign, "result": {}})
    assert delivered(actions) == []
    assert reports(actions, OrphanDropped)


def test_an_answer_given_twice_is_delivered_once(driver: Driver) -> None:
    first, second = driver.call(), driver.call()
    first.accept(events=False)
    first.body(first.result())
    second.accept()
    actions = second.event("e1", first.result())
    assert delivered(actions) == []
    assert not reports(actions, OrphanDropped)


def test_an_error_without_an_id_in_the_answer_to_our_post_is_for_that_request(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    message = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "parse"}}
    assert outcomes(call.event("e1", message)) == [Outcome.COMPLETED]


def test_an_error_without_an_id_elsewhere_is_for_nobody() -> None:
    driver = Driver().opened(standalone=True)
    call = driver.call().stream_up("e1")
    message = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "parse"}}
    assert reports(driver.standalone.event("s1", message), OrphanDropped)
    call.resumed()
    call.event("e1", call.progress(1))
    assert reports(call.event("e2", message), OrphanDropped)


def test_an_error_without_an_id_behind_the_answer_settles_nothing_again(driver: Driver) -> None:
    call = driver.call()
    call.accept(events=False)
    nameless = {"jsonrpc": "2.0", "id": None, "error": {"code": -1, "message": "late"}}
    assert outcomes(call.body([call.result(), nameless])) == [Outcome.COMPLETED]


# Progress.


@pytest.mark.parametrize(("token", "orphan"), [(424242, True), ("abc", True), (None, True)])
def test_progress_for_a_token_never_issued_is_not_delivered(driver: Driver, token: Any, orphan: bool) -> None:
    call = driver.call()
    call.accept()
    message = call.progress(1)
    message["params"]["progressToken"] = token
    actions = call.event("e1", message)
    assert delivered(actions) == []
    assert bool(reports(actions, OrphanDropped)) is orphan


def test_progress_without_parameters_is_for_nobody(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    actions = call.event("e1", {"jsonrpc": "2.0", "method": "notifications/progress"})
    assert reports(actions, OrphanDropped)


@pytest.mark.parametrize("spelling", [int, str, float])
def test_progress_of_a_call_that_is_over_is_dropped_without_suspicion(driver: Driver, spelling: Any) -> None:
    first, second = driver.call(), driver.call()
    first.accept(events=False)
    first.body(first.result())
    second.accept()
    actions = second.event("e1", first.progress(1, token=spelling(first.stream)))
    assert delivered(actions) == []
    assert not reports(actions, OrphanDropped)


def test_progress_that_nobody_asked_for_is_dropped(driver: Driver) -> None:
    call = driver.call(token=None)
    call.accept()
    assert delivered(call.event("e1", call.progress(1))) == []


# Refusals of a POST.


@pytest.mark.parametrize("status", [401, 403, 413, 415, 429, 503])
@pytest.mark.parametrize("session_id", [SESSION, None])
def test_a_refusal_before_execution_is_not_executed(session_id: str | None, status: int) -> None:
    driver = Driver().opened(session_id)
    actions = driver.call().refuse(status, retry_after=1.0 if status in (429, 503) else None)
    if session_id is not None and status not in (413, 415, 429):
        assert delivered(actions) == [], "a ping says first whether the session lives"
        actions = driver.sent("ping").answer({})
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert error_of(actions)["data"]["http_status"] == status


@pytest.mark.parametrize("trusts", [True, False])
def test_503_without_a_word_on_when_to_come_again_is_what_a_mesh_says_that_has_lost_the_server(
    trusts: bool,
) -> None:
    """Envoy says so of a request that it had sent on; who sheds load says `Retry-After`."""
    driver = Driver(GuardPolicy(trust_status=trusts, max_attempts=1)).opened(None)
    assert outcomes(driver.call().refuse(503)) == [Outcome.NOT_EXECUTED if trusts else Outcome.IN_DOUBT]


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305])
def test_a_redirect_that_does_not_ask_for_the_same_request_again_may_come_from_one_that_has_run(
    driver: Driver, status: int
) -> None:
    assert not delivered(driver.call().refuse(status, location="https://elsewhere.example/mcp"))
    actions = driver.sent("ping").answer({})
    assert in_doubt(actions)
    doubt = CallInDoubt.find(delivered(actions)[0]["result"])
    assert doubt is not None
    assert doubt.reason == (
        f"it was answered with HTTP {status}, redirected to https://elsewhere.example/mcp, which was not followed"
    )


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_that_asks_for_the_same_request_elsewhere_has_not_run_it(driver: Driver, status: int) -> None:
    assert not delivered(driver.call().refuse(status, location="https://elsewhere.example/mcp"))
    actions = driver.sent("ping").answer({})
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert error_of(actions)["data"]["by"] == "server"


def test_a_redirect_that_was_not_followed_is_named(driver: Driver) -> None:
    driver.call().refuse(308, location="https://elsewhere.example/mcp")
    actions = driver.sent("ping").answer({})
    assert "elsewhere.example" in error_of(actions)["message"]


@pytest.mark.parametrize("status", [400, 409, 431])
@pytest.mark.parametrize("session_id", [SESSION, None])
def test_what_is_said_before_a_request_is_looked_at_is_an_answer_with_its_status(
    session_id: str | None, status: int
) -> None:
    driver = Driver().opened(session_id)
    actions = driver.call().refuse(status)
    if session_id is not None and status != 431:
        assert delivered(actions) == [], "a ping says first whether the session lives"
        actions = driver.sent("ping").answer({})
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert error_of(actions)["data"] == {"http_status": status}


@pytest.mark.parametrize("status", [408, 418, 499, 500, 501])
@pytest.mark.parametrize("harmless", ["resources/read", "always"])
def test_to_what_may_run_twice_any_other_refusal_is_an_answer_with_its_status(harmless: str, status: int) -> None:
    driver = Driver(GuardPolicy(resend={"charge": "always"})).opened(None)
    call = driver.call() if harmless == "always" else driver.request(harmless, {"uri": "a"})
    actions = call.refuse(status)
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert error_of(actions)["data"] == {"http_status": status}


@pytest.mark.parametrize("status", [408, 418, 499, 500, 501, 502, 503, 504, 520, 522, 524])
@pytest.mark.parametrize("session_id", [SESSION, None])
def test_a_proxy_that_has_lost_the_server_leaves_an_unsafe_call_in_doubt(
    session_id: str | None, status: int
) -> None:
    """It sent the request on: the tool may have run, whatever the session says."""
    driver = Driver().opened(session_id)
    actions = driver.call(n=1).refuse(status, "<html>")
    if session_id is not None:
        assert delivered(actions) == [], "a ping says first whether the session lives"
        actions = driver.sent("ping").answer({})
    assert outcomes(actions)[-1] is Outcome.IN_DOUBT
    assert not of(driver.call(n=1).actions, Post), "the repeat latch holds"


def test_what_a_server_says_in_json_rpc_is_an_answer_whatever_its_status() -> None:
    driver = Driver().opened(None)
    call = driver.call(n=1)
    actions = call.refuse(500, call.error(-32603))
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert error_of(actions)["code"] == -32603


def test_but_what_a_gateway_says_of_a_server_that_it_has_lost_is_none_under_whatever_id() -> None:
    driver = Driver().opened(None)
    call = driver.call(n=1)
    actions = call.refuse(504, call.error(-32603))
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert "The server said: no" in str(delivered(actions))


@pytest.mark.parametrize("status", [500, 503, 504])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"error": {"code": 504, "message": "upstream"}}, id="a REST gateway's"),
        pytest.param(
            {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "upstream"}}, id="of no ID"
        ),
    ],
)
def test_but_not_if_it_does_not_name_the_request(status: int, body: Any) -> None:
    """SDK 1.x says so, too, of a call whose handler has failed on the way out."""
    assert outcomes(Driver().opened(None).call().refuse(status, body)) == [Outcome.IN_DOUBT]


@pytest.mark.parametrize("code", [-32000, -32001, -32003, -32004, 0, 408])
@pytest.mark.parametrize("session_id", [SESSION, None])
def test_what_sdks_say_of_a_closed_connection_or_a_timeout_leaves_an_unsafe_call_in_doubt(
    session_id: str | None, code: int
) -> None:
    """A gateway that is built on one says it of what was running, and answers every ping itself."""
    driver = Driver().opened(session_id)
    actions = driver.call().answer_error(code)
    if session_id is not None and code in (-32000, -32001):
        assert delivered(actions) == [], "a ping says first whether the session lives"
        actions = driver.sent("ping").answer({})
    (settled,) = [r for r in reports(actions, CallSettled) if r.tool == "charge"]
    assert settled.reason == f"it was answered with error {code}"
    assert settled.outcome is Outcome.IN_DOUBT
    (told,) = delivered(actions)
    assert told["result"]["content"][1]["text"] == "The server said: no"
    assert not of(driver.call().actions, Post), "the repeat latch holds"


def test_to_a_harmless_request_that_is_its_answer() -> None:
    actions = Driver().opened(None).request("resources/read", {"uri": "a"}).answer_error(-32000)
    assert error_of(actions)["code"] == -32000


@pytest.mark.parametrize("status", [302, 307, 400, 401, 404, 413, 429, 500, 502, 503])
@pytest.mark.parametrize("own", [int, str])
def test_a_result_of_the_request_is_its_answer_whatever_the_status(driver: Driver, own: Any, status: int) -> None:
    """Only who has run it can write that."""
    call = driver.call()
    actions = call.refuse(status, {**call.result(), "id": own(call.stream)})
    assert delivered(actions) == [{**call.result(), "id": call.host_id}]
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert not reports(actions, SessionLost)
    assert not of(actions, Post)
    assert not call.is_open


def test_so_it_is_in_a_batch(driver: Driver) -> None:
    call = driver.call()
    actions = call.refuse(404, [call.progress(1), call.result()])
    assert ["method" in m for m in delivered(actions)] == [True, False]
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_the_result_of_another_request_says_nothing_of_one_that_is_refused(driver: Driver) -> None:
    other, call = driver.call(), driver.call()
    assert reports(call.refuse(404, other.result()), SessionLost)


def test_a_result_that_comes_late_with_a_status_is_found_all_the_same(driver: Driver) -> None:
    call = driver.call()
    driver.elapse(TimerKind.DEADLINE, call.stream)
    actions = call.refuse(404, call.result())
    assert outcomes(actions) == [Outcome.RECOVERED]
    assert delivered(actions) == []


def test_an_initialize_whose_result_comes_with_a_status_opens_the_session_that_it_offers() -> None:
    driver = Driver()
    opening = driver.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    assert delivered(opening.refuse(400, opening.result(RESULT), session_id=SESSION))
    assert driver.machine.session.session_id == SESSION


@pytest.mark.parametrize("body", [None, "<html>", {"error": "x"}, {"error": {"code": -32001, "message": "gone"}}])
def test_404_under_a_session_is_a_lost_session(driver: Driver, body: Any) -> None:
    other = driver.call()
    call = driver.call("look")
    actions = call.refuse(404, body)
    assert outcomes(actions) == []
    assert records(actions, SessionEnded)
    assert reports(actions, SessionLost)
    assert other.is_open, "what is in flight may still be answered"
    later = driver.call("find")
    assert not of(later.actions, Post)
    (lost,) = reports(driver.notify("notifications/roots/list_changed"), NotificationLost)
    assert lost.reason == "the session is lost"
    actions = driver.reinitialized()
    assert [p.message["params"]["name"] for p in of(actions, Post)[1:]] == ["look", "find"]


def test_404_with_an_unknown_method_is_an_answer(driver: Driver) -> None:
    actions = driver.call().refuse(404, {"error": {"code": -32601, "message": "no such method"}})
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert error_of(actions)["code"] == -32601


def test_404_without_a_session_is_an_answer() -> None:
    driver = Driver().opened(session_id=None)
    assert outcomes(driver.call().refuse(404)) == [Outcome.COMPLETED]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("status", [400, 405, 409, 422])
def test_nothing_is_refused_unread_that_has_shown_progress(status: int, named: bool) -> None:
    driver = Driver().opened(standalone=True)
    call = driver.call()
    driver.standalone.event("s1", call.progress(1))
    call.refuse(status, call.error(-32602) if named else None)
    actions = driver.sent("ping").answer({})
    assert outcomes(actions)[-1] is (Outcome.COMPLETED if named else Outcome.IN_DOUBT)


@pytest.mark.parametrize("ping", ["answered", "alike"])
@pytest.mark.parametrize("session_id", [SESSION, None])
def test_404_that_comes_late_may_be_said_of_a_call_that_runs(session_id: str | None, ping: str) -> None:
    """A proxy's time is up, and its page of words for that is not there: 404."""
    driver = Driver().opened(session_id)
    call = driver.call()
    call.begin()
    driver.now += 1.5
    actions = call.refuse(404)
    if session_id is not None:
        assert outcomes(actions) == []
        actions = driver.sent("ping").answer({}) if ping == "answered" else driver.sent("ping").refuse(404)
    if session_id is not None and ping == "alike":
        actions = driver.reinitialized()
    assert Outcome.IN_DOUBT in outcomes(driver.log)
    assert len(posted(driver.log, "tools/call")) == 1
    assert not of(driver.call().actions, Post), "the repeat latch holds"


@pytest.mark.parametrize("status", [404, 500, 503])
def test_a_refusal_after_the_call_was_settled_is_not_delivered_and_changes_no_outcome(
    driver: Driver, status: int
) -> None:
    """S9: a caller that was told "in doubt" at its deadline gets no second answer."""
    call, cancelled = driver.call(), driver.call()
    driver.elapse(TimerKind.DEADLINE, call.stream)
    driver.cancel(cancelled)
    for peer in (call, cancelled):
        actions = peer.refuse(status)
        assert delivered(actions) == []
        assert outcomes(actions) == []
        assert not peer.is_open


def test_a_request_of_the_server_s_is_delivered_under_an_id_of_ours(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    sampling = {"jsonrpc": "2.0", "id": call.stream, "method": "sampling/createMessage", "params": {}}
    (asked,) = delivered(call.event("e1", sampling))
    assert {**asked, "id": call.stream} == sampling
    assert asked["id"] != call.stream


# Cancelling, and the deadline.


def test_a_cancel_is_passed_on_with_our_id_and_settles_the_call(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    actions = driver.cancel(call)
    (post,) = of(actions, Post)
    assert post.message["params"]["requestId"] == call.stream
    assert outcomes(actions) == [Outcome.CANCELLED]
    assert delivered(actions) == []
    assert call.is_open, "its answer may still come, and then the ledger knows"
    late = call.event("e1", call.result())
    assert delivered(late) == []
    assert outcomes(late) == [Outcome.RECOVERED]


def test_a_cancelled_call_is_not_resumed(driver: Driver) -> None:
    call = driver.call().stream_up("e1")
    driver.cancel(call)
    assert not of(call.cut(), Get)


def test_a_call_cancelled_while_lost_is_hung_up(driver: Driver) -> None:
    call = driver.call().stream_up("e1")
    call.cut()
    driver.cancel(call)
    assert not call.is_open


def test_a_call_cancelled_on_trial_is_not_resumed_when_the_witness_is_overdue(driver: Driver) -> None:
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    driver.cancel(call)
    assert not of(driver.elapse(TimerKind.WITNESS), Get)
    assert not call.is_open


def test_a_call_cancelled_after_a_resume_is_not_rechecked(driver: Driver) -> None:
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    call.event("e2", call.progress(2))
    driver.cancel(call)
    assert driver.elapse(TimerKind.RECHECK) == []
    assert call.is_open


def waits(driver: Driver, how: str) -> Peer:
    """A call whose exchange has not begun: behind its row, or behind the delay of its next attempt."""
    driver.begins = how != "behind its row"
    call = driver.call()
    if driver.begins:
        call.not_written()
    return call


WAITS = ["behind its row", "for its next attempt"]


@pytest.mark.parametrize("how", WAITS)
def test_a_call_cancelled_before_it_was_sent_is_never_sent_and_nothing_is_said_of_it(
    driver: Driver, how: str
) -> None:
    call = waits(driver, how)
    actions = driver.cancel(call)
    assert not call.is_open
    assert not of(actions, Post), "a cancel would name a request that the server has never seen"
    assert outcomes(actions) == [Outcome.CANCELLED]
    assert delivered(actions) == []
    assert "before it was sent" in reports(actions, CallSettled)[0].reason
    assert call.begin() == [], "too late: its connection speaks for nobody"


@pytest.mark.parametrize("how", WAITS)
def test_a_call_past_its_deadline_before_it_was_sent_was_not_executed(driver: Driver, how: str) -> None:
    call = waits(driver, how)
    actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    assert not call.is_open
    assert not of(actions, Post)
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    error = error_of(actions)
    assert (error["code"], error["data"]["by"]) == (CODE_NOT_EXECUTED, "wire")


@pytest.mark.parametrize("how", WAITS)
def test_a_call_not_yet_sent_when_the_host_leaves_is_no_doubt(driver: Driver, how: str) -> None:
    waits(driver, how)
    actions = driver.close()
    assert outcomes(actions) == [Outcome.CANCELLED]
    assert "before it was sent" in reports(actions, CallSettled)[0].reason
    assert not driver.open


@pytest.mark.parametrize("how", WAITS)
def test_from_the_moment_it_begins_a_call_may_have_been_sent(driver: Driver, how: str) -> None:
    call = waits(driver, how)
    assert call.begin() == []
    actions = driver.cancel(call)
    assert of(actions, Post)[0].message["method"] == "notifications/cancelled"


def test_a_beginning_of_an_older_connection_says_nothing_of_the_present_one(driver: Driver) -> None:
    call = driver.call()
    old = call.stale()
    call.not_written()
    assert old.begin() == []
    assert not of(driver.cancel(call), Post)


def test_a_call_that_waits_for_its_resume_was_sent_long_ago(driver: Driver) -> None:
    call = driver.call().stream_up("e1", "e2")
    driver.begins = False
    call.cut()
    actions = driver.cancel(call)
    assert of(actions, Post)[0].message["method"] == "notifications/cancelled"
    assert not call.is_open


def test_a_row_that_fails_after_the_cancel_changes_nothing(driver: Driver) -> None:
    driver.begins = False
    call = driver.call()
    driver.cancel(call)
    actions = call.save_failed()
    assert outcomes(actions) == []
    assert reports(actions, StoreFailed)


def test_a_cancelled_call_that_then_proves_never_written_is_not_sent_again(driver: Driver) -> None:
    call = driver.call()
    driver.cancel(call)
    assert not of(call.not_written(), Post)


def test_a_late_answer_may_come_on_another_stream_when_its_own_is_gone(driver: Driver) -> None:
    call = driver.call().stream_up("e1")
    call.cut()
    driver.cancel(call)
    other = driver.call("other")
    other.accept()
    assert outcomes(other.event("q1", call.result())) == [Outcome.RECOVERED]


@pytest.mark.parametrize("request_id", ["nobody's", None, [1], {"a": 1}])
def test_a_cancel_of_nothing_does_nothing(driver: Driver, request_id: Any) -> None:
    assert driver.notify("notifications/cancelled", {"requestId": request_id}) == []


def test_a_deadline_leaves_the_call_in_doubt_and_signals_a_cancel(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    assert in_doubt(actions)
    assert of(actions, Post)[0].message["params"]["requestId"] == call.stream
    (answer,) = delivered(actions)
    doubt = CallInDoubt.find(answer["result"])
    assert doubt is not None
    assert doubt.cancel_signalled
    assert outcomes(call.event("e1", call.result())) == [Outcome.RECOVERED]


@pytest.mark.parametrize("begun", [True, False])
def test_a_deadline_that_a_wait_of_the_server_s_choice_outlasts_names_it(driver: Driver, begun: bool) -> None:
    call = driver.call().stream_up()
    call.event("q", None, retry=30_000_000)
    driver.begins = begun
    call.cut()
    (settled,) = reports(driver.elapse(TimerKind.DEADLINE, call.stream), CallSettled)
    waits = "" if begun else ": the server has its stream wait for 30000 s"
    assert settled.reason == f"no answer within call_deadline{waits}"


def test_a_deadline_is_per_tool() -> None:
    driver = Driver(GuardPolicy(call_deadline={"charge": 7.0})).opened()
    assert of(driver.call().actions, SetTimer)[0].seconds == 7.0


def test_initialize_is_never_cancelled(driver: Driver) -> None:
    driver = Driver()
    sent = driver.request("initialize")
    actions = driver.elapse(TimerKind.DEADLINE, sent.stream)
    assert in_doubt(actions)
    assert not of(actions, Post)


def test_a_deadline_that_comes_after_the_answer_does_nothing(driver: Driver) -> None:
    call = driver.call()
    timer = next(t for t in driver.timers if t.kind is TimerKind.DEADLINE)
    driver.cancel(call)
    assert driver.feed(TimerElapsed(timer, 1.0)) == []
    assert driver.feed(TimerElapsed(type(timer)(TimerKind.DEADLINE, 999), 1.0)) == []


# 2026-07-28: no session, and closing the stream is the cancel.


@pytest.fixture
def stateless() -> Driver:
    return Driver()


VERSION = "2026-07-28"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def test_a_stateless_cancel_closes_the_stream_and_sends_nothing(stateless: Driver) -> None:
    call = stateless.request("tools/call", {"name": "charge"}, mcp_protocol_version=VERSION)
    call.accept()
    actions = stateless.cancel(call)
    assert not of(actions, Post)
    assert not call.is_open
    assert outcomes(actions) == [Outcome.CANCELLED]


def test_a_result_of_2026_07_28_without_a_result_type_is_complete(stateless: Driver) -> None:
    """So the revision has it; SDK 2.3 refuses one, and its host would call again."""
    call = stateless.request("tools/call", {"name": "charge"}, mcp_protocol_version=VERSION)
    (told,) = delivered(call.answer({"content": []}))
    assert told["result"] == {"content": [], "resultType": "complete"}


def test_a_stateless_deadline_closes_the_stream_and_sends_nothing(stateless: Driver) -> None:
    call = stateless.request("tools/call", {"name": "charge"}, mcp_protocol_version=VERSION)
    actions = stateless.elapse(TimerKind.DEADLINE, call.stream)
    assert in_doubt(actions)
    assert not of(actions, Post)
    assert not call.is_open


def test_subscription_ids_are_mapped_back(stateless: Driver) -> None:
    listen = stateless.request("subscriptions/listen", mcp_protocol_version=VERSION)
    listen.accept()
    message = {"jsonrpc": "2.0", "method": "n", "params": {"_meta": {SUBSCRIPTION: listen.stream}}}
    (got,) = delivered(listen.event(None, message))
    assert got["params"]["_meta"][SUBSCRIPTION] == listen.host_id
    (plain,) = delivered(listen.event(None, note("plain")))
    assert plain == note("plain")
    (got,) = delivered(listen.event(None, listen.result({"_meta": {SUBSCRIPTION: listen.stream}})))
    assert got["result"]["_meta"][SUBSCRIPTION] == listen.host_id


def test_an_older_version_without_a_session_is_not_stateless(stateless: Driver) -> None:
    call = stateless.request("tools/call", {"name": "charge"}, mcp_protocol_version="2025-11-25")
    call.accept()
    assert of(stateless.cancel(call), Post)


# Notifications and the host's own answers.


def test_the_host_s_answer_to_the_server_is_posted_under_the_server_s_id(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    (asked,) = delivered(driver.ask(call, "s7", "roots/list"))
    (post,) = of(driver.submit({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}}), Post)
    assert post.message == {"jsonrpc": "2.0", "id": "s7", "result": {"roots": []}}
    assert post.headers["mcp-session-id"] == SESSION
    peer = driver.peer(post.stream)
    assert [type(a) for a in peer.accept(events=False, status=202)] == [Hangup]


def test_a_notification_that_was_not_written_is_sent_again_and_at_last_reported() -> None:
    driver = Driver(GuardPolicy(max_attempts=1)).opened()
    peer = driver.peer(of(driver.notify("notifications/x"), Post)[0].stream)
    assert of(peer.not_written(), Post)
    (lost,) = reports(peer.not_written(), NotificationLost)
    assert lost.method == "notifications/x"


def test_why_nothing_could_be_sent_is_told_each_time_before_it_is_tried_again() -> None:
    """A wrong port or name would else be silent until the guard gives up."""
    driver = Driver(GuardPolicy(max_attempts=2)).opened()
    for peer in (driver.call(), driver.peer(of(driver.notify("notifications/x"), Post)[0].stream)):
        told = [reports(peer.not_written(), Unreachable) for _ in range(3)]
        number = str(peer.stream)
        assert told == [[Unreachable(number, "ConnectError", 1)], [Unreachable(number, "ConnectError", 2)], []]


def unreachable(actions: list[Action]) -> list[tuple[str, int]]:
    return [(told.stream, told.attempt) for told in reports(actions, Unreachable)]


def test_of_many_that_wait_for_a_server_that_is_away_the_first_to_fail_says_so_for_all() -> None:
    driver = Driver(GuardPolicy(max_attempts=2)).opened()
    calls = [driver.call(n=n) for n in range(9)]
    first, last = str(calls[0].stream), str(calls[-1].stream)
    told = [unreachable([a for call in order for a in call.not_written()]) for order in (calls, calls[::-1])]
    assert told == [[(first, 1)], [(last, 2)]]
    ends = [outcomes(call.not_written()) for call in calls]
    assert ends == [[Outcome.NOT_EXECUTED]] * 9, "each is told what became of it"


def test_what_fails_otherwise_is_told_by_the_next_attempt(driver: Driver) -> None:
    for call in (driver.call(n=1), driver.call(n=2)):
        call.not_written()
    (told,) = reports(call.cut("TLS", written=False), Unreachable)
    assert (told.reason, told.attempt) == ("TLS", 2)


@pytest.mark.parametrize("heard", ["answered", "refused"])
def test_a_server_that_was_heard_since_is_away_anew(driver: Driver, heard: str) -> None:
    waiting, other = driver.call(n=1), driver.call(n=2)
    waiting.not_written(), waiting.not_written()
    other.accept() if heard == "answered" else other.refuse(400)
    later = driver.call(n=3)
    assert unreachable(later.not_written()) == [(str(later.stream), 1)]


def test_it_is_told_anew_where_nobody_has_tried_meanwhile() -> None:
    driver = Driver(GuardPolicy(max_attempts=1)).opened()
    for n in range(2):
        call = driver.call(n=n)
        assert unreachable(call.not_written()) == [(str(call.stream), 1)]
        call.not_written()


def test_a_notification_says_nothing_beside_calls_that_have_said_so(driver: Driver) -> None:
    driver.call().not_written()
    assert not unreachable(driver.peer(of(driver.notify("notifications/x"), Post)[0].stream).not_written())


def test_what_was_written_or_waits_for_what_the_server_says_is_not_called_unreachable(driver: Driver) -> None:
    driver.call().cut()
    driver.call("get").refuse(503)
    driver.peer(of(driver.notify("notifications/x"), Post)[0].stream).cut()
    assert not reports(driver.log, Unreachable)


def test_what_cannot_be_sent_at_all_is_not_tried_again(driver: Driver) -> None:
    """A login that failed, a header that no transport sends: not the network."""
    call = driver.call()
    actions = call.cut("no login", written=False, lasts=True)
    assert not of(actions, Post)
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    peer = driver.peer(of(driver.notify("notifications/x"), Post)[0].stream)
    actions = peer.cut("no login", written=False, lasts=True)
    assert not of(actions, Post)
    assert [lost.reason for lost in reports(actions, NotificationLost)] == ["no login"]


def test_a_refused_call_whose_login_fails_is_the_servers_word_and_no_ping_tries_to_log_in_again(
    driver: Driver,
) -> None:
    actions = driver.call().cut("no login", written=False, lasts=True, refused=401)
    (answer,) = delivered(actions)
    assert answer["error"]["data"] == {
        "outcome": "not_executed",
        "by": "server",
        "reason": "HTTP 401, then no login",
        "http_status": 401,
        "method": "tools/call",
        "tool": "charge",
    }
    assert not of(actions, Post)


def test_so_it_is_where_the_login_could_not_be_reached_and_was_tried_again() -> None:
    driver = Driver(GuardPolicy(max_attempts=1)).opened()
    call = driver.call()
    assert of(call.cut("ReadError", written=False, refused=401), Post)
    (answer,) = delivered(call.cut("ReadError", written=False, refused=401))
    assert answer["error"]["data"]["by"] == "server"
    assert answer["error"]["data"]["reason"] == "HTTP 401, then ReadError"


def test_a_request_that_was_written_is_in_doubt_whatever_ended_it(driver: Driver) -> None:
    assert in_doubt(driver.call().cut("no login", written=True, lasts=True))


def test_an_answer_that_the_server_waits_for_is_tried_again_whatever_ended_it(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    (question,) = delivered(driver.ask(call, 77))
    posts = of(driver.submit({"jsonrpc": "2.0", "id": question["id"], "result": {}}), Post)
    assert of(driver.peer(posts[0].stream).cut("no login", written=False, lasts=True), Post)


def test_a_notification_that_may_have_arrived_is_not_sent_again(driver: Driver) -> None:
    peer = driver.peer(of(driver.notify("notifications/x"), Post)[0].stream)
    actions = peer.cut()
    assert not of(actions, Post)
    assert reports(actions, NotificationLost)


@pytest.mark.parametrize(
    ("status", "code", "lost"),
    [(500, None, False), (404, None, True), (404, -32001, True), (404, -32601, False), (410, None, False)],
)
def test_a_refused_notification_is_reported_and_404_has_the_session_asked(
    driver: Driver, status: int, code: int | None, lost: bool
) -> None:
    """By that a server may mean the notification alone: there is nothing to cancel."""
    peer = driver.peer(of(driver.notify("notifications/x"), Post)[0].stream)
    body = code and {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": ""}}
    actions = peer.refuse(status, body)
    assert reports(actions, NotificationLost)
    assert driver.is_waited_for("ping") is lost
    assert not reports(actions, SessionLost)
    if lost:
        assert reports(driver.sent("ping").refuse(404), SessionLost)


def test_the_users_own_word_for_a_lost_session_holds_for_notifications_too() -> None:
    driver = Driver(GuardPolicy(is_session_lost=lambda status, _: status == 410)).opened()
    peer = driver.peer(of(driver.notify("notifications/x"), Post)[0].stream)
    assert reports(peer.refuse(410), SessionLost)


def test_404_to_a_notification_without_a_session_is_nothing_more() -> None:
    driver = Driver().opened(session_id=None)
    peer = driver.peer(of(driver.notify("notifications/x"), Post)[0].stream)
    assert not reports(peer.refuse(404), SessionLost)


def test_a_notification_answered_under_another_session_id_loses_the_session(driver: Driver) -> None:
    peer = driver.peer(of(driver.notify("notifications/x"), Post)[0].stream)
    actions = peer.accept(status=202, events=False, session_id="session-two")
    assert reports(actions, SessionLost)
    assert not peer.is_open


def test_the_host_s_headers_go_along_but_the_session_s_version_counts(driver: Driver) -> None:
    """After a re-initialization the host still stamps the version that it agreed on with the first session."""
    stamped = {"mcp_protocol_version": "2025-11-25", "mcp_name": "charge"}
    assert driver.request("tools/list", **stamped).order.headers["mcp-protocol-version"] == "2025-11-25"
    driver.request("ping").refuse(404)
    driver.reinitialized("session-two", protocolVersion="2025-06-18")
    call = driver.request("tools/list", **stamped)
    wanted = {"mcp-session-id": "session-two", "mcp-protocol-version": "2025-06-18", "mcp-name": "charge"}
    assert call.order.headers == wanted


def test_params_that_are_no_object_are_passed_on(driver: Driver) -> None:
    actions = driver.submit({"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": [1]})
    assert of(actions, Post)[0].message["params"] == [1]
    assert driver.submit({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": [1]}) == []


# Closing.


def test_closing_settles_every_call_and_ends_the_session(driver: Driver) -> None:
    call, retried = driver.call(), driver.call()
    call.accept()
    retried.not_written()
    actions = driver.close()
    assert outcomes(actions) == [Outcome.IN_DOUBT, Outcome.CANCELLED], "of the second, nothing was sent"
    assert delivered(actions) == [], "nobody is left to hear it"
    assert not driver.open
    assert not driver.timers
    assert type(actions[-1]).__name__ == "EndSession"
    assert driver.machine.session.state is SessionState.CLOSED


def test_our_ping_is_no_call_of_the_host_s(driver: Driver) -> None:
    call = driver.call()
    (ping,) = of(call.idle(), Post)
    actions = driver.close()
    assert len(reports(actions, CallSettled)) == 1
    assert ping.connection not in driver.open


def test_timers_of_settled_calls_are_cancelled(driver: Driver) -> None:
    call = driver.call()
    call.accept(events=False)
    assert [a.timer.kind for a in of(call.body(call.result()), CancelTimer)] == [TimerKind.DEADLINE]


def test_a_request_whose_stream_is_gone_counts_as_sent() -> None:
    driver = Driver().opened()
    peer = driver.call()
    call = driver.machine._streams._streams[peer.stream].call
    assert call is not None
    peer.accept()
    peer.event("e1", peer.result())
    assert driver.machine._streams.cancel(call)


def test_requests_that_wait_for_initialized_are_counted() -> None:
    driver = Driver()
    driver.initialize()
    driver.notify("notifications/initialized")
    assert driver.machine.queued == 0
    driver.call("one")
    driver.call("two")
    assert driver.machine.queued == 2


@pytest.mark.parametrize("arguments", [{"n": 1}, None])
def test_the_call_key_is_copied_into_an_argument_where_the_user_says_so(arguments: Any) -> None:
    driver = Driver(GuardPolicy(call_key_argument={"ch*": "idempotency_key"})).opened()
    call = driver.request("tools/call", {"name": "charge", "arguments": arguments})
    assert isinstance(call.order, Post)
    assert call.order.message["params"]["arguments"] == {**(arguments or {}), "idempotency_key": "key-2"}


@pytest.mark.parametrize("of_the_host", ["order-17", 17, 0, "", " ", None])
def test_a_key_that_the_host_has_put_there_is_left_to_it(of_the_host: Any) -> None:
    """The server knows the host's earlier attempts by it. A blank is none."""
    sent = "key-2" if of_the_host in ("", " ", None) else of_the_host
    driver = Driver(GuardPolicy(call_key_argument={"charge": "key"})).opened()
    call = driver.call(key=of_the_host)
    assert isinstance(call.order, Post)
    assert call.order.message["params"]["arguments"] == {"key": sent}


def test_another_key_of_the_host_s_is_another_call_and_a_blank_is_none() -> None:
    """`order-18` is not `order-17`, however alike they are."""
    driver = Driver(GuardPolicy(call_key_argument={"charge": "key"})).opened()
    driver.call(key="order-17").cut()
    assert not of(driver.call(key="order-17").actions, Post)
    assert of(driver.call(key="order-18").actions, Post)
    driver.call(key=17).cut()
    assert of(driver.call(key=18).actions, Post)
    driver.call(key="").cut()
    assert not of(driver.call(key=None).actions, Post)


def test_equal_calls_that_wait_for_the_host_s_own_session_both_go_out() -> None:
    """Nothing was lost: a framework's two tasks may well send the same call as soon as they are open."""
    driver = Driver()
    driver.initialize()
    confirming = driver.notify("notifications/initialized")
    driver.call(cents=5)
    driver.call(cents=5)
    actions = driver.peer(of(confirming, Post)[0].stream).accept(status=202, events=False)
    assert [p.message["method"] for p in of(actions, Post)] == ["tools/call", "tools/call"]
