"""A server that moves to another generation: what tells it from a lost session, and from an answer."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Get, Post
from mcp_client_guard.core.classify import is_modern, knows_no_session, knows_only_sessions
from mcp_client_guard.core.inputs import HookRequested
from mcp_client_guard.core.model import JSON, CursorDropped, CursorMoved, Generation, Outcome
from mcp_client_guard.core.moves import MOVED, NEVER_HAD
from mcp_client_guard.core.report import Connected, EndpointMoved, SessionLost
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import SESSION, Driver, Peer, delivered, of, outcomes, records, reports

VERSION = "2026-07-28"


def error(code: int, data: Any = None) -> JSON:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "no", "data": data}}


# The words.


@pytest.mark.parametrize(
    ("status", "body", "modern", "no_session", "only_sessions"),
    [
        (400, error(-32020), True, True, False),
        (400, error(-32021), True, True, False),
        (400, error(-32022), True, True, False),
        (200, error(-32022), True, True, False),
        (400, error(-32602), False, True, False),
        (400, error(-32602, {"supported": ["2025-11-25"]}), False, False, True),
        (200, error(-32602), False, False, False),
        (404, error(-32601), False, True, False),
        (404, error(-32001), False, False, True),
        (404, None, False, False, True),
        (400, error(-32001), False, False, True),
        (400, error(-32004), False, False, True),
        (400, "Bad Request: Missing session ID", False, False, True),
        (405, None, False, False, True),
        (406, None, False, False, True),
        (401, None, False, False, False),
        (500, None, False, False, False),
    ],
)
def test_what_a_refusal_says_of_the_generation(
    status: int, body: Any, modern: bool, no_session: bool, only_sessions: bool
) -> None:
    assert is_modern(body) is modern
    assert knows_no_session(status, body) is no_session
    assert knows_only_sessions(status, body) is only_sessions


# Without sessions.


def discovered(driver: Driver | None = None) -> Driver:
    """The host has asked, and the server speaks 2026-07-28."""
    driver = driver or Driver()
    result = {
        "supportedVersions": [VERSION],
        "capabilities": {},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "1"}},
    }
    driver.request("server/discover", mcp_protocol_version=VERSION).answer(result)
    return driver


def call(driver: Driver, tool: str = "charge", **headers: str) -> Peer:
    return driver.request("tools/call", {"name": tool}, mcp_protocol_version=VERSION, **headers)


def test_the_generation_is_reported_once_it_is_known() -> None:
    driver = Driver()
    assert driver.machine.session.word == "new"
    discovered(driver)
    assert driver.machine.session.generation is Generation.STATELESS_HTTP
    assert driver.machine.session.word == "stateless"
    call(driver).answer()
    assert reports(driver.log, Connected) == [Connected("-", VERSION, Generation.STATELESS_HTTP, "fake 1")]


def test_a_host_that_does_not_ask_is_known_by_its_first_answer() -> None:
    driver = Driver()
    assert reports(call(driver).answer_error(-32602), Connected) == []
    assert reports(call(driver).answer(), Connected) == [
        Connected("-", VERSION, Generation.STATELESS_HTTP, "?"),
    ]


def test_the_host_s_headers_pass_exactly() -> None:
    driver = discovered()
    stamped = {"mcp-protocol-version": VERSION, "mcp-method": "tools/call", "mcp-name": "=?base64?w6Q=?="}
    sent = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "ä"}}
    actions = driver.submit(sent, **{name.replace("-", "_"): value for name, value in stamped.items()})
    assert of(actions, Post)[0].headers == stamped
    note = {"jsonrpc": "2.0", "method": "notifications/x"}
    assert of(driver.submit(note, mcp_protocol_version=VERSION), Post)[0].headers == {
        "mcp-protocol-version": VERSION
    }


def test_a_session_id_and_event_ids_mean_nothing() -> None:
    """They are never sent back, nothing is stored of them, and an event is never taken for another's duplicate."""
    driver = discovered()
    one = call(driver)
    one.accept(session_id="not-a-session")
    one.event("p")
    progress = {"progressToken": one.stream, "progress": 1}
    one.event("e", {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
    two = call(driver)
    two.accept(session_id="another")
    assert len(delivered(two.event("e", two.result()))) == 1
    driver.drain(10)
    actions = one.cut()
    assert not of(driver.log, Get)
    assert not records(driver.log, CursorMoved)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    (post,) = of(call(driver, "other", mcp_session_id="mine", last_event_id="e").actions, Post)
    assert "mcp-session-id" not in post.headers
    assert "last-event-id" not in post.headers


def test_an_answer_comes_on_the_stream_of_its_own_request() -> None:
    driver = discovered()
    one, two = call(driver), call(driver)
    one.accept()
    two.accept()
    assert delivered(one.event(None, two.result())) == []
    assert len(delivered(two.event(None, two.result()))) == 1


@pytest.mark.parametrize("how", ["cut", "deadline", "too large", "left"])
def test_an_ended_stream_was_a_signal_to_cancel(how: str) -> None:
    driver = discovered()
    one = call(driver)
    one.accept()
    if how == "cut":
        actions = one.cut()
    elif how == "too large":
        actions = one.too_large()
    elif how == "deadline":
        actions = driver.elapse(TimerKind.DEADLINE, one.stream)
    else:
        driver.close()
        assert not one.is_open
        return
    (told,) = delivered(actions)
    doubt = told["result"]["_meta"]["io.github.mcp-client-guard/in-doubt"]
    assert doubt["cancel_signalled"] is True
    assert told["result"]["resultType"] == "complete", "or SDK 2.3 refuses it"
    assert [p for p in of(actions, Post) if "cancelled" in p.message["method"]] == []


def test_an_answer_that_cannot_be_read_was_no_signal() -> None:
    driver = discovered()
    one = call(driver)
    one.accept(events=False)
    (told,) = delivered(one.body("nonsense"))
    assert told["result"]["_meta"]["io.github.mcp-client-guard/in-doubt"]["cancel_signalled"] is False


def test_a_safe_request_is_sent_again_under_a_new_id_and_token() -> None:
    driver = discovered()
    params = {"uri": "x", "_meta": {"progressToken": "tok"}}
    read = driver.request("resources/read", params, mcp_protocol_version=VERSION, mcp_name="x")
    read.accept()
    (again,) = of(read.cut(), Post)
    assert again.message["id"] == again.message["params"]["_meta"]["progressToken"] != read.stream
    assert again.headers == {"mcp-protocol-version": VERSION, "mcp-name": "x"}
    (got,) = delivered(driver.peer(again.stream).answer({"contents": []}))
    assert got["id"] == read.host_id
    one = call(driver)
    one.accept()
    assert outcomes(one.cut()) == [Outcome.IN_DOUBT], "a cancelled sending before it says nothing of this one"


@pytest.mark.parametrize(
    ("status", "code"), [(404, -32601), (400, -32020), (400, -32021), (400, -32022), (400, -32602)]
)
def test_modern_errors_are_answers(status: int, code: int) -> None:
    driver = discovered()
    actions = call(driver).refuse(status, error(code))
    assert delivered(actions)[0]["error"]["code"] == code
    assert outcomes(actions) == [Outcome.NOT_EXECUTED if code == -32020 else Outcome.COMPLETED]
    assert not reports(actions, EndpointMoved)


def test_a_hook_asks_in_the_host_s_name() -> None:
    driver = Driver(has_hook=True)
    assert not of(driver.feed(HookRequested(1, "tools/list", {})), Post), "not known yet"
    discovered(driver)
    (post,) = of(driver.feed(HookRequested(2, "tools/call", {"name": "look"}, "k")), Post)
    assert post.headers == {
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": "look",
    }
    assert driver.peer(post.stream).answer()


def test_a_session_beside_it_is_not_touched() -> None:
    """A server of both generations, and a host that uses both."""
    driver = discovered().opened()
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP
    one = call(driver)
    (post,) = of(one.actions, Post)
    assert "mcp-session-id" not in post.headers
    assert one.idle() == []
    one.accept(session_id="another")
    assert not reports(driver.log, SessionLost)
    in_session = driver.call("x")
    in_session.refuse(404)
    driver.reinitialized()
    assert len(delivered(one.event(None, one.result()))) == 1
    assert delivered(call(driver).answer_error(-32001)) != []


def test_it_waits_for_no_session() -> None:
    driver = Driver().opened()
    driver.call("x").refuse(404)
    one = call(driver)
    assert of(one.actions, Post)
    note = {"jsonrpc": "2.0", "method": "notifications/x"}
    assert of(driver.submit(note, mcp_protocol_version=VERSION), Post)


# Sessions, and then none.


def upgraded(code: int = -32022, **drawn: Any) -> tuple[Driver, Peer, list[Any]]:
    """A call under a session is refused, then the ping."""
    driver = Driver().opened()
    in_flight = driver.call("slow").stream_up("e1")
    charge = driver.call("charge")
    charge.refuse(400, {**error(code), "id": charge.stream})
    actions = driver.sent("ping").refuse(drawn.get("status", 400), error(drawn.get("ping", code)))
    return driver, in_flight, actions


@pytest.mark.parametrize(
    ("code", "drawn"),
    [
        (-32022, {}),
        (-32020, {}),
        (-32602, {}),
        (-32020, {"ping": -32602}),
        (-32022, {"ping": -32601, "status": 404}),
        (-32602, {"ping": -32022}),
    ],
)
def test_the_server_was_upgraded_and_knows_no_sessions_any_more(code: int, drawn: Any) -> None:
    driver, in_flight, actions = upgraded(code, **drawn)
    assert reports(actions, SessionLost)
    actions = driver.sent("initialize").refuse(400, error(-32022))
    assert reports(actions, EndpointMoved) == [EndpointMoved(Generation.STATELESS_HTTP, MOVED)]
    if code == -32602:  # a tool says so, too: nobody can tell that the charge did not run
        assert outcomes(driver.log)[-1] in (Outcome.IN_DOUBT, Outcome.COMPLETED)
        return
    (told,) = delivered(actions)
    assert told["error"]["code"] == -31904
    assert MOVED in told["error"]["message"]
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert len(delivered(in_flight.event("e2", in_flight.result()))) == 1, "a POST that is answered still may be"


def test_no_cursor_crosses() -> None:
    driver, in_flight, _ = upgraded()
    driver.sent("initialize").refuse(400, error(-32020))
    driver.drain(5)
    before = len(driver.log)
    assert outcomes(in_flight.cut()) == [Outcome.IN_DOUBT]
    assert not of(driver.log[before:], Get)
    assert not records(driver.log[before:], CursorMoved)
    assert records(driver.log, CursorDropped) or not records(driver.log, CursorMoved)


def test_later_requests_are_told_so_and_ask_once_more() -> None:
    """Where replicas differ, another may still know sessions."""
    driver, _, _ = upgraded()
    driver.sent("initialize").refuse(400, error(-32022))
    later = driver.call("later")
    actions = driver.sent("initialize").refuse(404, error(-32601))
    assert delivered(actions)[0]["id"] == later.host_id
    assert MOVED in delivered(actions)[0]["error"]["message"]
    assert not reports(actions, EndpointMoved), "said once"
    again = driver.call("again")
    driver.reinitialized()
    assert of([driver.orders[max(driver.orders)]], Post)[0].message["params"]["name"] == "again"
    assert again.stream == -1
    assert driver.machine.session.session_id == "session-two"


def test_a_server_of_both_goes_on_in_a_new_session() -> None:
    driver, _, _ = upgraded()
    actions = driver.reinitialized()
    assert [p.message["params"]["name"] for p in of(actions, Post) if p.message["method"] == "tools/call"] == [
        "charge"
    ]
    assert driver.machine.session.session_id == "session-two"
    assert not reports(driver.log, EndpointMoved)


def test_a_suspected_session_whose_server_opens_no_other_is_gone() -> None:
    driver = Driver().opened()
    charge = driver.call("charge")
    charge.refuse(400)
    driver.sent("ping").refuse(400)
    actions = driver.sent("initialize").refuse(400, error(-32022))
    assert reports(actions, SessionLost)
    assert reports(actions, EndpointMoved)
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]


def test_a_lost_session_of_an_upgraded_server() -> None:
    driver = Driver().opened()
    driver.call("charge").refuse(404)
    actions = driver.sent("initialize").accept(events=False) + driver.sent("initialize").body(
        driver.sent("initialize").error(-32022)
    )
    assert reports(actions, EndpointMoved)


@pytest.mark.parametrize("ping", [None, (400, error(-32600)), (401, None)])
def test_a_modern_word_to_one_request_alone_is_its_answer(ping: Any) -> None:
    driver = Driver().opened()
    charge = driver.call("charge")
    charge.refuse(400, error(-32020))
    asked = driver.sent("ping")
    actions = asked.answer({}) if ping is None else asked.refuse(*ping)
    assert delivered(actions)[0]["error"]["code"] == -32020
    assert not reports(driver.log, SessionLost)
    assert driver.machine.session.session_id == SESSION


@pytest.mark.parametrize("drawn", [(400, error(-32602)), (404, error(-32601)), (400, error(-32022))])
def test_an_error_that_a_tool_gives_never_says_that_it_did_not_run(drawn: Any) -> None:
    """In a rolling upgrade the ping may reach another replica than the call did."""
    driver = Driver().opened()
    ran = driver.call()
    ran.refuse(400, ran.error(-32602))
    driver.sent("ping").refuse(*drawn)
    driver.reinitialized()
    told = outcomes(driver.log)
    assert Outcome.NOT_EXECUTED not in told
    assert len([p for p in of(driver.log, Post) if p.message["method"] == "tools/call"]) == 1


def test_an_unknown_method_is_not_an_upgrade() -> None:
    """A server with sessions that knows no ping."""
    driver = Driver().opened()
    driver.call("charge").refuse(400, error(-32600))
    actions = driver.sent("ping").refuse(404, error(-32601))
    assert delivered(actions)[0]["error"]["code"] == -32600
    assert not reports(driver.log, SessionLost)


def test_an_initialize_refused_for_its_version_says_nothing_of_generations() -> None:
    driver = Driver().opened()
    driver.call("charge").refuse(404)
    actions = driver.sent("initialize").refuse(400, error(-32602, {"supported": ["2024-11-05"]}))
    assert not reports(actions, EndpointMoved)


# And back.


@pytest.mark.parametrize("status", [400, 404, 405, 406])
def test_a_server_rolled_back_refuses_and_the_endpoint_is_found_out_anew(status: int) -> None:
    driver = discovered()
    actions = call(driver).refuse(status, error(-32600) if status == 400 else None)
    (moved,) = reports(actions, EndpointMoved)
    assert moved.generation is None
    assert "error" in delivered(actions)[0]
    assert outcomes(actions) == [Outcome.COMPLETED], "it is an answer: nobody says that nothing ran"
    assert not reports(call(driver).refuse(status), EndpointMoved), "said once"


@pytest.mark.parametrize(("status", "code"), [(400, -32600), (400, -32700), (404, -32602), (422, 7)])
def test_a_tool_s_own_error_is_that_of_a_server_which_has_read_the_request(status: int, code: int) -> None:
    driver = discovered()
    charge = call(driver)
    actions = charge.refuse(status, {**error(code), "id": charge.stream})
    assert delivered(actions)[0]["error"]["code"] == code
    assert not reports(actions, EndpointMoved)


def test_a_probe_refused_at_first_says_nothing_new() -> None:
    driver = Driver()
    actions = driver.request("server/discover", mcp_protocol_version=VERSION).refuse(400, error(-32600))
    assert not reports(actions, EndpointMoved)


def test_a_server_that_names_older_revisions_only_has_sessions() -> None:
    """It answers the probe all the same (the Go SDK's does)."""
    driver = Driver()
    driver.request("server/discover", mcp_protocol_version=VERSION).answer(
        {"supportedVersions": ["2025-11-25", 3]}
    )
    driver.request("server/discover", mcp_protocol_version=VERSION).answer({"supportedVersions": None})
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP
    assert not reports(driver.log, Connected)


def test_what_is_remembered_of_the_endpoint_follows() -> None:
    driver = Driver(generation="auto")
    driver.machine.shared.found, driver.machine.shared.found_at = Generation.STATELESS_HTTP, driver.now
    call(discovered(driver)).refuse(404)
    assert driver.machine.shared.found is None
    driver, _, _ = upgraded()
    assert driver.machine.shared.found is Generation.STREAMABLE_HTTP
    driver.sent("initialize").refuse(400, error(-32022))
    assert driver.machine.shared.found is Generation.STATELESS_HTTP


def test_a_host_s_initialize_that_a_modern_server_refuses() -> None:
    driver = Driver()
    actions = driver.request("initialize", {}).refuse(400, error(-32022, {"supported": [VERSION]}))
    assert delivered(actions)[0]["error"]["code"] == -32022
    assert reports(actions, EndpointMoved) == [EndpointMoved(Generation.STATELESS_HTTP, NEVER_HAD)]
    assert driver.machine.shared.found is Generation.STATELESS_HTTP
