"""JSON of the server's that is nested deeper than Python recurs: nothing of it is raised out of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Get, Post
from mcp_client_guard.core.classify import knows_no_session
from mcp_client_guard.core.doubt import CallInDoubt, CallNotExecuted
from mcp_client_guard.core.inputs import EventReceived
from mcp_client_guard.core.messages import says_the_same
from mcp_client_guard.core.model import JSON, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import Reinitialized
from mcp_client_guard.core.tasks import Task, ends_task, told_of
from mcp_client_guard.core.trial import is_resume_gap

from .driver import CAPABILITIES, RESULT, Driver, Peer, delivered, evidence, in_doubt, of, outcomes, reports

DEPTH = 20_000


def deep(inside: Any = None) -> Any:
    """Lists in lists, each made anew: what is one and the same object is equal at a glance."""
    for _ in range(DEPTH):
        inside = [inside]
    return inside


def error(code: int = -32000) -> JSON:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "no", "data": deep()}}


BODIES: dict[str, Callable[[], Any]] = {
    "bare": deep,
    "in an object": lambda: {"a": deep()},
    "a suspect error": error,
    "an error of versions": lambda: error(-32602),
    "of 2026-07-28": lambda: error(-32022),
}


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
@pytest.mark.parametrize("status", [302, 400, 404, 409, 410, 502])
def test_whatever_is_refused_so_has_its_outcome(status: int, body: Callable[[], Any]) -> None:
    for scene in (refused_call, refused_resume, refused_ping, refused_initialize, refused_standalone):
        driver = Driver(GuardPolicy(max_attempts=1)).opened(standalone=True)
        scene(driver, status, body)
        driver.close()


def refused_call(driver: Driver, status: int, body: Callable[[], Any]) -> None:
    driver.call().refuse(status, body())


def refused_resume(driver: Driver, status: int, body: Callable[[], Any]) -> None:
    call = driver.call().stream_up("e1", "e2")
    call.cut()
    for _ in range(4):
        call.refuse(status, body())
    assert not call.is_open


def refused_ping(driver: Driver, status: int, body: Callable[[], Any]) -> None:
    driver.call().refuse(400)
    driver.sent("ping").refuse(status, body())


def refused_initialize(driver: Driver, status: int, body: Callable[[], Any]) -> None:
    driver.call().refuse(404)
    driver.sent("initialize").refuse(status, body())


def refused_standalone(driver: Driver, status: int, body: Callable[[], Any]) -> None:
    driver.standalone.cut()
    driver.standalone.refuse(status, body())


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_so_has_what_is_answered_so_with_200(driver: Driver, body: Callable[[], Any]) -> None:
    call = driver.call()
    call.accept(events=False)
    call.body(body())
    if driver.is_waited_for("ping"):
        driver.sent("ping").answer()
    assert outcomes(driver.log)[-1] in (Outcome.IN_DOUBT, Outcome.COMPLETED)
    assert not call.is_open


def test_a_gap_is_found_however_deep_it_stands(driver: Driver) -> None:
    assert is_resume_gap(deep({"reason": "resume_gap"}))
    assert is_resume_gap({"a": deep({"resume_gap": {}})})
    assert not is_resume_gap({"a": deep({"gap": 1})})
    call = driver.call().stream_up("e1", "e2")
    call.cut()
    call.refuse(409, deep("resume_gap"))
    assert in_doubt(call.refuse(409, deep("resume_gap")))
    assert "BROKEN" in str(evidence(driver.log)[-1])


@pytest.mark.parametrize(
    ("data", "is_modern"),
    [({"supported": deep()}, False), ("supported: 1", False), ({"a": deep()}, True), (None, True)],
)
def test_versions_that_are_named_are_of_a_server_with_sessions(data: Any, is_modern: bool) -> None:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "no", "data": data}}
    assert knows_no_session(400, body) is is_modern


def test_a_session_that_says_so_of_itself_is_opened_in_place_of_such_a_one() -> None:
    def said() -> JSON:
        info = {"name": deep(), "version": deep()}
        return {**RESULT, "serverInfo": info, "capabilities": {**CAPABILITIES, "experimental": {"x": deep()}}}

    def tool() -> JSON:
        return {"name": "charge", "inputSchema": {"x": deep()}, "outputSchema": {"x": deep()}}

    driver = Driver()
    driver.initialize(result=said())
    driver.notify("notifications/initialized")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    driver.listed(tool())
    call = driver.call()
    call.refuse(404)
    driver.reinitialized(tools=[tool()], **said())
    changed = reports(driver.log, Reinitialized)[-1].changed
    assert set(changed) == {"serverInfo", "capabilities", "tool charge"}, "nobody can tell"
    assert outcomes(driver.log)[-1] is Outcome.NOT_EXECUTED, "its tool may have changed"


def test_what_are_one_and_the_same_are_equal() -> None:
    one = deep()
    assert says_the_same([one], [one])
    assert not says_the_same(one, deep())


def test_a_result_that_is_so_is_delivered(driver: Driver) -> None:
    structured = {"x": deep()}
    driver.listed(
        {"name": "charge", "inputSchema": {}, "outputSchema": {"type": "object", "properties": {"x": {}}}}
    )
    actions = driver.call().answer({"content": [], "structuredContent": structured})
    assert delivered(actions)[0]["result"]["structuredContent"] is structured
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_what_a_task_says_so_of_itself_says_nothing() -> None:
    message = {"jsonrpc": "2.0", "id": 1, "result": {"status": deep()}}
    for is_extension in (True, False):
        assert told_of(Task("t", is_extension), "tasks/get", message).answer is None
    assert not ends_task("tasks/get", message)


def test_what_is_asked_so_is_asked_of_the_host(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    assert delivered(
        event(call, {"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {"x": deep()}})
    )


def test_a_call_that_stops_with_such_a_state_is_told_so() -> None:
    driver = Driver()
    result = {"resultType": "input_required", "inputRequests": {}, "requestState": deep()}
    call = driver.request("tools/call", {"name": "charge"}, mcp_protocol_version="2026-07-28")
    assert outcomes(call.answer(result)) == [Outcome.INPUT_REQUIRED]


def test_what_a_subscription_is_about_is_told_by_texts_alone() -> None:
    driver = Driver()
    honoured = {"x": [deep()], "resourceSubscriptions": ["a", deep()]}
    told: JSON = {"method": "notifications/subscriptions/acknowledged", "params": {"notifications": honoured}}
    params = {"notifications": {"resourceSubscriptions": ["a"]}}
    peer = driver.request("subscriptions/listen", params, mcp_protocol_version="2026-07-28")
    peer.accept()
    assert delivered(event(peer, meant_for(peer, told)))
    peer = driver.peer(of(peer.cut(), Post)[0].stream)
    peer.accept()
    assert [m["params"]["uri"] for m in delivered(event(peer, meant_for(peer, told)))] == ["a"]


def meant_for(peer: Peer, message: JSON) -> JSON:
    meta = {"io.modelcontextprotocol/subscriptionId": peer.stream}
    return {"jsonrpc": "2.0", **message, "params": {**message["params"], "_meta": meta}}


def event(peer: Peer, body: Any) -> list[Action]:
    """As the shell tells it: parsed."""
    return peer.driver.feed(EventReceived(peer.stream, peer.connection, None, b"not looked at", body))


def test_what_is_no_doubt_or_refusal_of_a_guard_s_is_not_read_so() -> None:
    said = {
        "outcome": "in_doubt",
        "reason": deep(),
        "tool": deep(),
        "call_key": deep(),
        "method": 7,
        "session": deep(),
    }
    doubt = CallInDoubt.from_json(said)
    assert str(doubt)
    assert doubt is not None
    assert (doubt.reason, doubt.tool, doubt.session) == ("", None, "")
    found = CallNotExecuted._in_data({"outcome": "not_executed", "by": deep(), "reason": deep(), "method": deep()})
    assert found == CallNotExecuted("", "")


def test_a_get_is_ordered_again_all_the_same(driver: Driver) -> None:
    call = driver.call().stream_up("e1", "e2")
    call.cut()
    assert of(call.refuse(409, {"a": deep()}), Get)
