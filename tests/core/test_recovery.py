"""A lost session is replaced in the host's name, once, and the host sees none of it but a short wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Ask, Get, Post
from mcp_client_guard.core.answers import CODE_IN_DOUBT, CODE_NOT_EXECUTED, CODE_SESSION_LOST
from mcp_client_guard.core.model import CallSent, CursorMoved, Outcome, SessionEnded, SessionOpened
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import (
    CallSettled,
    DuplicateDropped,
    NotificationLost,
    Reinitialized,
    SessionLost,
)
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import (
    CAPABILITIES,
    RESULT,
    SESSION,
    Driver,
    Peer,
    delivered,
    error_of,
    in_doubt,
    methods,
    note,
    of,
    outcomes,
    posted,
    records,
    reports,
)

CHARGE: dict[str, Any] = {"name": "charge", "inputSchema": {"type": "object"}}
LOOK: dict[str, Any] = {"name": "look", "annotations": {"readOnlyHint": True}}


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


def state(driver: Driver) -> SessionState:
    return driver.machine.session.state


# The whole way.


def test_a_lost_session_is_opened_again_with_the_host_s_own_parameters(driver: Driver) -> None:
    actions = driver.call().refuse(404)
    (post,) = posted(actions)
    assert post.message["method"] == "initialize"
    assert post.message["params"] == {"protocolVersion": "2025-11-25", "capabilities": {}}
    assert "mcp-session-id" not in post.headers
    assert delivered(actions) == []


def test_the_host_sees_none_of_it_and_the_call_is_sent_again_under_another_id_and_the_same_key(
    driver: Driver,
) -> None:
    call = driver.call()
    (first,) = posted(call.actions)
    call.refuse(404)
    actions = driver.reinitialized()
    assert methods(actions) == ["notifications/initialized", "tools/call"]
    again = posted(actions, "tools/call")[0]
    assert again.message["id"] != first.message["id"]
    assert again.message["params"]["_meta"]["progressToken"] == again.message["id"]
    key = "io.github.mcp-client-guard/call-key"
    assert again.message["params"]["_meta"][key] == first.message["params"]["_meta"][key]
    assert again.headers["mcp-session-id"] == "session-two"
    (row,) = records(actions, CallSent)
    assert (row.incarnation, row.call_key) == (2, "key-2")
    answered = driver.sent("tools/call").answer()
    assert [m["id"] for m in delivered(answered)] == [call.host_id]
    assert outcomes(actions + answered) == [Outcome.NOT_EXECUTED, Outcome.COMPLETED]
    assert [m for m in delivered(driver.log) if m.get("method") == "initialize"] == []


def test_requests_sent_meanwhile_wait_and_go_out_after_the_stranded_ones(driver: Driver) -> None:
    driver.call("first").refuse(404)
    waiting = [driver.call("second"), driver.request("tools/list")]
    assert not any(posted(w.actions) for w in waiting)
    assert driver.machine.queued == 2
    actions = driver.reinitialized()
    assert methods(actions)[1:] == ["tools/call", "tools/call", "tools/list"]
    assert driver.machine.queued == 0


def test_a_stampede_of_refused_calls_opens_one_session(driver: Driver) -> None:
    calls = [driver.call(f"tool{n}") for n in range(20)]
    actions = [a for call in calls[:12] for a in call.refuse(404)]
    actions += driver.reinitialized()
    actions += [a for call in calls[12:] for a in call.refuse(404)]
    assert methods(actions).count("initialize") == 1
    assert methods(actions).count("tools/call") == 20
    assert len(reports(actions, SessionLost)) == 1
    assert outcomes(actions) == [Outcome.NOT_EXECUTED] * 20
    assert delivered(actions) == [
        {"jsonrpc": "2.0", "method": f"notifications/{n}/list_changed"} for n in CAPABILITIES
    ]


@pytest.mark.parametrize("status", [400, 401, 409])
def test_a_stampede_in_another_dialect_opens_one_session_too(driver: Driver, status: int) -> None:
    calls = [driver.call(f"tool{n}") for n in range(6)]
    actions = [a for call in calls[:3] for a in call.refuse(status)]
    assert methods(actions) == ["ping"]
    actions += driver.sent("ping").refuse(status)
    actions += driver.reinitialized()
    actions += [a for call in calls[3:] for a in call.refuse(status)]
    assert methods(actions).count("initialize") == 1
    assert methods(actions).count("tools/call") == 6


def test_the_differences_and_the_end_of_the_old_session_are_reported(driver: Driver) -> None:
    lost = driver.call().refuse(404)
    assert [r.reason for r in records(lost, SessionEnded)] == ["HTTP 404"]
    actions = driver.reinitialized(protocolVersion="2025-06-18", serverInfo={"name": "fake", "version": "2"})
    (told,) = reports(actions, Reinitialized)
    assert told.changed == ("protocolVersion", "serverInfo")
    assert [r.incarnation for r in records(actions, SessionOpened)] == [2]
    assert posted(actions, "tools/call")[0].headers["mcp-protocol-version"] == "2025-06-18"


def test_the_host_s_own_version_header_does_not_follow_into_the_new_session(driver: Driver) -> None:
    driver.request("tools/list", mcp_protocol_version="2025-11-25").refuse(404)
    actions = driver.reinitialized(protocolVersion="2025-06-18")
    assert posted(actions, "tools/list")[0].headers["mcp-protocol-version"] == "2025-06-18"


def test_the_standalone_stream_is_opened_again_without_a_cursor() -> None:
    driver = Driver().opened(standalone=True)
    driver.standalone.event("s1", note("a"))
    driver.call().refuse(404)
    assert not driver.standalone.is_open
    (get,) = of(driver.reinitialized(), Get)
    assert get.last_event_id is None
    assert get.headers["mcp-session-id"] == "session-two"


# Suspected only.


@pytest.mark.parametrize("status", [400, 401, 403, 409, 422, 500, 503])
def test_a_ping_that_is_answered_makes_the_refusal_an_answer(driver: Driver, status: int) -> None:
    call = driver.call()
    assert methods(call.refuse(status)) == ["ping"]
    actions = driver.sent("ping").answer({})
    assert len(delivered(actions)) == 1
    assert not posted(actions)
    assert state(driver) is SessionState.LIVE


@pytest.mark.parametrize("status", [400, 401, 409, 500, 503])
def test_a_ping_refused_alike_opens_another_session_beside_it_and_only_then_gives_the_old_one_up(
    status: int,
) -> None:
    driver = Driver().opened()
    driver.listed(LOOK)
    call = driver.call("look")
    call.refuse(status)
    actions = driver.sent("ping").refuse(status)
    assert methods(actions) == ["initialize"]
    assert not reports(actions, SessionLost)
    actions = driver.reinitialized(tools=[LOOK])
    assert reports(actions, SessionLost)
    assert methods(actions) == ["notifications/initialized", "ping", "tools/list", "tools/call"]
    assert [m["id"] for m in delivered(driver.sent("tools/call").answer())] == [call.host_id]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(400, Outcome.NOT_EXECUTED), *((status, Outcome.IN_DOUBT) for status in (424, 500, 502, 503))],
)
def test_an_unsafe_call_is_sent_again_only_where_the_refusal_says_that_it_did_not_run(
    driver: Driver, status: int, outcome: Outcome
) -> None:
    """5xx may come from a proxy after the tool ran, 503 too; 424 from a platform whose container failed."""
    driver.call().refuse(status)
    driver.sent("ping").refuse(status)
    actions = driver.reinitialized()
    assert outcomes(driver.log) == [Outcome.COMPLETED, outcome]
    assert bool(posted(actions, "tools/call")) is (status == 400)


def test_503_that_says_when_to_come_again_did_not_run_it_but_a_proxy_may_say_so_too(driver: Driver) -> None:
    driver.call().refuse(503, retry_after=1.0)
    driver.sent("ping").refuse(503)
    actions = driver.reinitialized()
    assert outcomes(driver.log) == [Outcome.COMPLETED, Outcome.NOT_EXECUTED]
    assert not posted(actions, "tools/call")


def test_where_no_other_session_can_be_opened_the_suspected_one_is_kept(driver: Driver) -> None:
    call = driver.call()
    call.refuse(401)
    driver.sent("ping").refuse(401)
    waiting = driver.call("other")
    assert not posted(waiting.actions)
    actions = driver.sent("initialize").refuse(401)
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert error_of(actions)["data"]["http_status"] == 401
    assert state(driver) is SessionState.LIVE
    assert methods(actions) == ["tools/call"]
    assert posted(actions)[0].headers["mcp-session-id"] == SESSION
    assert not reports(driver.log, SessionLost)


@pytest.mark.parametrize("own", [int, str])
def test_404_with_an_error_of_the_request_s_own_is_its_answer_if_a_ping_is_answered(
    driver: Driver, own: Any
) -> None:
    """The server has looked for a resource, not for the session."""
    read = driver.request("resources/read", {"uri": "file:///none"})
    assert methods(read.refuse(404, {**read.error(-32002), "id": own(read.stream)})) == ["ping"]
    actions = driver.sent("ping").answer({})
    assert error_of(actions)["code"] == -32002
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert not posted(actions)
    assert not reports(driver.log, SessionLost)


def test_it_is_the_word_of_a_lost_session_if_the_ping_draws_it_too(driver: Driver) -> None:
    call = driver.call()
    call.refuse(404, call.error(-32603))
    ping = driver.sent("ping")
    assert methods(ping.refuse(404, ping.error(-32603))) == ["initialize"]
    assert methods(driver.reinitialized())[-1] == "tools/call"
    assert len(reports(driver.log, SessionLost)) == 1


def test_a_ping_that_draws_another_404_loses_the_session_and_leaves_the_answer_what_it_is(driver: Driver) -> None:
    call = driver.call()
    call.refuse(404, call.error(-32002))
    actions = driver.sent("ping").refuse(404)
    assert error_of(actions)["code"] == -32002
    assert reports(actions, SessionLost)
    assert "tools/call" not in methods(driver.reinitialized())


def test_what_does_not_exist_any_more_is_not_restored_and_costs_no_session(driver: Driver) -> None:
    driver.request("resources/subscribe", {"uri": "file:///old"}).answer({})
    driver.call().refuse(404)
    driver.reopened()
    again = driver.sent("resources/subscribe")
    actions = again.refuse(404, again.error(-32002))
    (reinitialized,) = reports(actions, Reinitialized)
    assert reinitialized.not_restored == ("resources/subscribe file:///old",)
    assert len(reports(driver.log, SessionLost)) == 1


@pytest.mark.parametrize("code", [-32000, -32001, -32600])
def test_an_error_with_200_that_may_mean_a_lost_session_is_held_until_a_ping_is_answered(
    driver: Driver, code: int
) -> None:
    call = driver.call() if code == -32600 else driver.request("resources/read", {"uri": "a"})
    assert delivered(call.answer_error(code)) == []
    actions = driver.sent("ping").answer({})
    assert error_of(actions)["code"] == code
    assert outcomes(actions) == [Outcome.COMPLETED]


@pytest.mark.parametrize("events", [True, False])
def test_a_server_that_says_so_with_200_to_everything_has_lost_the_session(driver: Driver, events: bool) -> None:
    first, second, late = driver.call("a"), driver.call("b"), driver.call("c")
    for call in (first, second):
        call.accept(events=events)
        call.event(None, call.error(-32600)) if events else call.body(call.error(-32600))
    driver.sent("ping").answer_error(-32600)
    actions = driver.reinitialized()
    assert methods(actions).count("tools/call") == 2
    assert methods(late.answer_error(-32600)) == ["tools/call"], "it is what the old session says to everything"


def test_another_error_of_the_old_session_is_the_answer_of_a_call_that_ran(driver: Driver) -> None:
    ran = driver.call("a")
    driver.call("b").refuse(404)
    driver.reinitialized()
    actions = ran.answer_error(-32603)
    assert error_of(actions)["code"] == -32603
    assert not posted(actions)


@pytest.mark.parametrize("refusal", [200, 400, 409, 422, 500])
@pytest.mark.parametrize("how", ["ping draws 404", "another draws 404", "lost before it came"])
def test_how_a_session_ends_says_nothing_of_what_a_call_has_drawn_already(
    driver: Driver, refusal: int, how: str
) -> None:
    """Unless the ping drew just that: it is not sent again. What a gateway says of what was running, too, when it
    lost its server is no answer then."""
    expected = Outcome.IN_DOUBT if refusal in (200, 500) else Outcome.COMPLETED
    call, other = driver.call(), driver.request("tools/list")
    if how == "lost before it came":
        other.refuse(404)
        driver.reinitialized()
    actions = call.answer_error(-32000) if refusal == 200 else call.refuse(refusal)
    if how == "ping draws 404":
        actions += driver.sent("ping").refuse(404)
    elif how == "another draws 404":
        actions += other.refuse(404)
    assert [r.outcome for r in reports(actions, CallSettled) if r.method == "tools/call"] == [expected]
    assert [m for m in delivered(actions) if m.get("id") == call.host_id]
    if how != "lost before it came":
        driver.reinitialized()
    assert len(posted(driver.log, "tools/call")) == 1


@pytest.mark.parametrize("code", [-32000, -32600, -32603])
@pytest.mark.parametrize("sign", ["priming", "progress", "log", "progress on another stream", "resumed"])
def test_an_error_after_any_sign_of_life_is_no_word_that_the_call_did_not_run(sign: str, code: int) -> None:
    """But it may be one on the session. What a gateway says, too, that has lost its server is no answer."""
    driver = Driver().opened(standalone=True)
    call = driver.call()
    call.accept()
    if sign == "priming":
        call.event("p")
    elif sign == "progress":
        call.event(None, call.progress(1))
    elif sign == "log":
        call.event(None, note("working"))
    elif sign == "resumed":
        call.event("p")
        call.resumed()
    else:
        driver.standalone.event(None, call.progress(1))
    actions = call.event(None, call.error(code))
    assert len(posted(driver.log, "ping")) == (code != -32603)
    if code != -32603:
        actions = driver.sent("ping").answer({})
    assert outcomes(actions) == [Outcome.IN_DOUBT if code == -32000 else Outcome.COMPLETED]
    assert len(posted(driver.log, "tools/call")) == 1


@pytest.mark.parametrize(
    "ping", ["answered", "cut", "alike", "busy", "a new server's", "an upgraded server's", "a gateway's"]
)
@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("drew", [-32000, -32001, 500, 408])
def test_what_a_gateway_says_that_lost_its_server_is_no_answer_whatever_the_ping_draws(
    driver: Driver, drew: int, taken: bool, ping: str
) -> None:
    """Many answer it themselves."""
    call = driver.call()
    if taken and drew < 0:
        call.accept()
        call.event("p")
        call.event(None, call.error(drew))
    else:
        refused_as(call, drew)
    if ping == "cut":
        actions = driver.sent("ping").cut()
    elif ping == "answered":
        actions = driver.sent("ping").answer({})
    elif ping == "busy":
        actions = driver.sent("ping").refuse(503)
    elif ping == "a new server's":
        actions = driver.sent("ping").refuse(404, driver.sent("ping").error(-32603))
    elif ping == "an upgraded server's":
        actions = driver.sent("ping").refuse(400, driver.sent("ping").error(-32602))
    elif ping == "a gateway's":
        actions = driver.sent("ping").refuse(429, {"error": {"code": 429}})
    else:
        refused_as(driver.sent("ping"), drew)
        actions = driver.sent("initialize").refuse(503)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not posted(driver.call().actions, "tools/call"), "its repeat"


def test_a_new_session_that_refuses_the_ping_as_the_old_one_did_does_not_show_that_the_old_one_lives(
    driver: Driver,
) -> None:
    driver.call().answer_error(-32000)
    driver.sent("ping").answer_error(-32000)
    driver.sent("initialize").answer({}, session_id="session-two")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    actions = driver.sent("ping").answer_error(-32000)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not posted(driver.call().actions, "tools/call"), "its repeat"


def test_progress_does_not_make_an_answer_of_what_a_gateway_says_after_it() -> None:
    driver = Driver().opened(standalone=True)
    call = driver.call()
    driver.standalone.event(None, call.progress(1))
    call.refuse(500)
    assert outcomes(driver.sent("ping").cut()) == [Outcome.IN_DOUBT]


@pytest.mark.parametrize("drew", [-32000, 500])
def test_nor_while_another_session_is_opened_on_suspicion(driver: Driver, drew: int) -> None:
    suspected, call = driver.call("a"), driver.call("b")
    suspected.refuse(401)
    driver.sent("ping").refuse(401)
    assert driver.sent("initialize").is_open
    assert outcomes(refused_as(call, drew)) == [Outcome.IN_DOUBT]


def refused_as(peer: Peer, drew: int) -> list[Action]:
    return peer.answer_error(drew) if drew < 0 else peer.refuse(drew)


def test_a_harmless_request_is_told_what_the_gateway_says(driver: Driver) -> None:
    read = driver.request("resources/read", {"uri": "a"})
    read.answer_error(-32000)
    actions = driver.sent("ping").cut()
    assert error_of(actions)["code"] == -32000


@pytest.mark.parametrize("status", [404, 401, 413, 429, 503])
def test_nor_does_any_status_say_that_such_a_call_did_not_run(status: int) -> None:
    driver = Driver(GuardPolicy(trust_status=True)).opened(standalone=True)
    call = driver.call()
    driver.standalone.event(None, call.progress(1))
    actions = call.refuse(status)
    if status in (401, 503):
        actions += driver.sent("ping").answer({})
    assert in_doubt(actions)
    assert not posted(actions, "tools/call")


def test_of_several_suspects_only_those_that_drew_what_the_ping_drew_did_not_run(driver: Driver) -> None:
    ran, refused, later = driver.call("ran"), driver.call("refused"), driver.call("later")
    ran.answer_error(-32000)
    refused.refuse(400)
    actions = driver.sent("ping").refuse(400)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert outcomes(later.refuse(409)) == [Outcome.COMPLETED], "while another session is opened"
    again = posted(driver.reinitialized(), "tools/call")
    assert [p.message["params"]["name"] for p in again] == ["refused"]


def test_the_last_word_of_a_session_says_nothing_of_another(driver: Driver) -> None:
    driver.call("a").refuse(400)
    driver.sent("ping").refuse(400)
    driver.reinitialized()
    call, other = driver.call("b"), driver.request("tools/list")
    other.refuse(404)
    assert outcomes(call.refuse(400)) == [Outcome.COMPLETED]


def test_an_answer_that_a_new_session_did_not_change_is_an_answer(driver: Driver) -> None:
    driver.call().refuse(400)
    driver.sent("ping").refuse(400)
    driver.reinitialized()
    actions = driver.sent("tools/call").refuse(400)
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert not posted(actions)


@pytest.mark.parametrize("how", ["timeout", "cut", "other status", "never written"])
def test_a_ping_that_says_nothing_of_the_kind_leaves_the_session(how: str) -> None:
    driver = Driver(GuardPolicy(max_attempts=1)).opened()
    driver.call().refuse(400)
    ping = driver.sent("ping")
    if how == "timeout":
        ping.accept(events=False)
        actions = driver.elapse(TimerKind.DEADLINE, ping.stream)
    elif how == "cut":
        actions = ping.cut()
    elif how == "never written":
        actions = ping.not_written() + ping.not_written()
    else:
        actions = ping.refuse(500)
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert state(driver) is SessionState.LIVE
    assert methods(driver.call("next").refuse(409)) == ["ping"], "the next suspicion has a ping of its own"


def test_one_ping_decides_for_all_that_are_suspected(driver: Driver) -> None:
    actions = driver.call("a").refuse(400) + driver.call("b").refuse(400) + driver.call("c").answer_error()
    assert methods(actions) == ["ping"]
    assert len(delivered(driver.sent("ping").answer({}))) == 3


def test_a_loss_for_certain_while_another_session_is_opened_beside_it(driver: Driver) -> None:
    driver.call("a").refuse(400)
    other = driver.call("b")
    driver.sent("ping").refuse(400)
    actions = other.refuse(404)
    assert len(reports(actions, SessionLost)) == 1
    assert not posted(actions), "it is being opened already"
    actions = driver.reinitialized()
    assert methods(actions).count("tools/call") == 2
    assert not reports(actions, SessionLost)


def test_a_loss_for_certain_while_opening_beside_it_fails_opens_once_more(driver: Driver) -> None:
    driver.call("a").refuse(400)
    other = driver.call("b")
    driver.sent("ping").refuse(400)
    other.refuse(404)
    assert methods(driver.sent("initialize").refuse(500)) == ["initialize"]


def test_a_ping_of_the_old_session_refused_late_does_not_lose_the_new_one(driver: Driver) -> None:
    driver.call("a").refuse(400)
    old_ping = driver.sent("ping")
    driver.call("b").refuse(404)
    driver.reinitialized()
    driver.call("c").refuse(400)
    assert driver.sent("ping").stream != old_ping.stream, "the new session is asked itself"
    for actions in (old_ping.refuse(400), old_ping.answer({})):
        assert actions == [] or not posted(actions)
    assert state(driver) is SessionState.LIVE
    assert outcomes(driver.sent("ping").answer({})) == [Outcome.COMPLETED]


@pytest.mark.parametrize("late", ["answered", "refused"])
def test_a_ping_of_the_old_session_says_nothing(driver: Driver, late: str) -> None:
    driver.call("a").refuse(400)
    ping = driver.sent("ping")
    driver.call("b").refuse(404)
    driver.reinitialized()
    actions = ping.answer({}) if late == "answered" else ping.refuse(404)
    assert not reports(actions, SessionLost)
    assert delivered(actions) == []


@pytest.mark.parametrize("how", ["deadline", "cancel", "close"])
def test_what_is_held_is_the_answer_when_there_must_be_one(how: str) -> None:
    driver = Driver().opened()
    driver.listed(LOOK)
    call = driver.call("look")
    call.refuse(503)
    if how == "deadline":
        actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    else:
        actions = driver.cancel(call) if how == "cancel" else driver.close()
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert not posted(actions)


@pytest.mark.parametrize("how", ["deadline", "cancel", "close"])
@pytest.mark.parametrize("method", ["tools/call", "resources/read"])
@pytest.mark.parametrize("status", [302, 502])
def test_nor_is_a_call_that_may_have_run_sent_again_behind_its_deadline_or_cancel(
    status: int, method: str, how: str
) -> None:
    """It may be repeated; but nobody waits any more, and nothing would ever end the next sending."""
    driver = Driver().opened()
    driver.listed(LOOK)
    call = driver.call("look") if method == "tools/call" else driver.request(method, {"uri": "u"})
    call.refuse(status)
    if how == "deadline":
        actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    else:
        actions = driver.cancel(call) if how == "cancel" else driver.close()
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not posted(actions, method)


def test_nor_is_the_hook_asked_about_it() -> None:
    driver = Driver(has_hook=True).opened()
    call = driver.call()
    call.refuse(502)
    actions = driver.cancel(call)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not of(actions, Ask)


# The budget.


def test_a_new_session_that_is_dead_at_once_ends_in_a_clear_error_and_works_again_after_a_minute() -> None:
    driver = Driver().opened()
    calls = 0
    while True:
        call = driver.call(f"tool{calls}")
        calls += 1
        while state(driver) is not SessionState.LOST and driver.is_waited_for("tools/call"):
            driver.sent("tools/call").refuse(404)
            if driver.is_waited_for("initialize"):
                driver.reinitialized()
        if state(driver) is SessionState.LOST:
            break
    assert methods(driver.log).count("initialize") == 1 + 5
    answers = [m for m in delivered(driver.log) if m.get("id") == call.host_id]
    assert [a["error"]["code"] for a in answers] == [CODE_SESSION_LOST]
    refused = driver.call("later")
    assert "too many sessions" in error_of(refused.actions)["message"]
    assert not posted(refused.actions)
    driver.elapse(TimerKind.BUDGET)
    again = driver.call("again")
    assert methods(again.actions) == ["initialize"]
    driver.reinitialized()
    assert [m["id"] for m in delivered(driver.sent("tools/call").answer())] == [again.host_id]


def test_a_call_is_not_sent_for_ever(driver: Driver) -> None:
    driver.call()
    for _ in range(3):
        actions = driver.sent("tools/call").refuse(404)
        actions += driver.reinitialized()
    assert error_of(actions)["code"] == CODE_NOT_EXECUTED
    assert state(driver) is SessionState.LIVE


@pytest.mark.parametrize("how", ["refused", "cut", "error", "never written", "timeout"])
def test_an_initialize_that_fails_twice_first_is_tried_again_with_growing_delay(how: str) -> None:
    driver = Driver(GuardPolicy(max_attempts=1)).opened()
    call = driver.call()
    call.refuse(404)
    for attempt in (1, 2):
        sent = driver.sent("initialize")
        if how == "refused":
            sent.refuse(500)
        elif how == "cut":
            sent.cut()
        elif how == "error":
            sent.answer_error(-32603)
        elif how == "never written":
            sent.not_written()
            sent.not_written()
        else:
            sent.begin()
            driver.elapse(TimerKind.DEADLINE, sent.stream)
        order = driver.sent("initialize").order
        assert order.delay.attempt == attempt
    driver.reinitialized()
    assert [m["id"] for m in delivered(driver.sent("tools/call").answer())] == [call.host_id]


def test_an_initialize_that_is_never_answered_releases_those_who_wait_for_it(driver: Driver) -> None:
    driver.call().refuse(404)
    waiting = driver.call("waiting")
    for _ in range(10):
        sent = driver.sent("initialize")
        sent.begin()
        actions = driver.elapse(TimerKind.DEADLINE, sent.stream)
    assert state(driver) is SessionState.LOST
    assert waiting.host_id in [m["id"] for m in delivered(actions)]
    assert all("no answer in time" in m["error"]["message"] for m in delivered(actions))


@pytest.mark.parametrize("status", [401, 403])
def test_an_initialize_that_wants_another_credential_is_not_repeated_until_the_next_request(
    driver: Driver, status: int
) -> None:
    driver.call().refuse(404)
    actions = driver.sent("initialize").refuse(status)
    assert not posted(actions)
    assert error_of(actions)["code"] == CODE_SESSION_LOST
    assert f"HTTP {status}" in error_of(actions)["message"]
    assert methods(driver.call("next").actions) == ["initialize"]


def test_a_primed_initialize_that_is_cut_is_resumed(driver: Driver) -> None:
    driver.call().refuse(404)
    sent = driver.sent("initialize")
    sent.accept(session_id="session-two")
    sent.event("p")
    (get,) = of(sent.cut(), Get)
    assert get.last_event_id == "p"
    sent.accept()
    sent.event("e1", sent.result(RESULT))
    assert driver.machine.session.session_id == "session-two"


def test_without_a_session_of_the_host_s_there_is_nothing_to_open() -> None:
    driver = Driver()
    call = driver.call()
    actions = call.refuse(404)
    assert outcomes(actions) == [Outcome.COMPLETED]


# Late in the day: the new session is lost while it is being opened or restored.


@pytest.mark.parametrize("when", ["confirming", "restoring"])
def test_a_session_lost_before_it_was_live_is_replaced(driver: Driver, when: str) -> None:
    driver.listed(CHARGE)
    call = driver.call()
    call.refuse(404)
    if when == "confirming":
        driver.sent("initialize").answer(RESULT, session_id="session-two")
        actions = driver.sent("notifications/initialized").refuse(404)
    else:
        driver.reopened()
        actions = driver.sent("tools/list").refuse(404)
    assert methods(actions) == ["initialize"]
    driver.reinitialized("session-three", tools=[CHARGE])
    answers = driver.sent("tools/call")
    assert answers.order.headers["mcp-session-id"] == "session-three"
    assert [m["id"] for m in delivered(answers.answer())] == [call.host_id]


def test_sessions_lost_before_they_are_live_end_in_an_error_however_slow_they_are(driver: Driver) -> None:
    driver.call().refuse(404)
    for _ in range(10):
        driver.timers = {t: at for t, at in driver.timers.items() if t.kind is not TimerKind.BUDGET}
        driver.machine._calls.budget_refilled()
        driver.sent("initialize").answer(RESULT, session_id="next")
        actions = driver.sent("notifications/initialized").refuse(404)
    assert error_of(actions)["code"] == CODE_SESSION_LOST


def test_a_notification_in_between_is_reported_as_lost(driver: Driver) -> None:
    driver.call().refuse(404)
    (lost,) = reports(driver.notify("notifications/x"), NotificationLost)
    assert lost.reason == "the session is lost"


def test_closing_in_between_ends_no_session_and_settles_all(driver: Driver) -> None:
    driver.call().refuse(404)
    driver.call("waiting")
    actions = driver.close()
    assert outcomes(actions) == [Outcome.CANCELLED]
    assert not driver.open
    assert not posted(actions)


def test_the_host_may_open_a_session_itself_meanwhile(driver: Driver) -> None:
    call = driver.call()
    call.refuse(404)
    ours = driver.sent("initialize")
    host = driver.request("initialize", {"protocolVersion": "2025-06-18"})
    assert ours.answer(RESULT, session_id="ours") == [] or driver.machine.session.session_id != "ours"
    host.answer(RESULT, session_id="host-s")
    driver.notify("notifications/initialized")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    assert driver.machine.session.session_id == "host-s"
    assert [m["id"] for m in delivered(driver.sent("tools/call").answer())] == [call.host_id]


@pytest.mark.parametrize("how", ["cut", "refused", "late"])
def test_what_was_to_restore_a_session_is_not_asked_for_while_the_host_opens_another(
    driver: Driver, how: str
) -> None:
    driver.listed(CHARGE)
    driver.call().refuse(404)
    driver.reopened()
    listing = driver.sent("tools/list")
    assert state(driver) is SessionState.RESTORING
    host = driver.request("initialize", {"protocolVersion": "2025-06-18"})
    assert not [timer for timer in driver.timers if timer.kind is TimerKind.RESTORE]
    actions = [] if how == "late" else listing.cut() if how == "cut" else listing.refuse(503)
    actions += host.answer(RESULT, session_id="host-s")
    assert not posted(actions, "tools/list")
    assert driver.machine.session.session_id == "host-s"
    assert not driver.is_waited_for("tools/list")
    driver.notify("notifications/initialized")
    actions = driver.sent("notifications/initialized").accept(status=202, events=False)
    assert state(driver) is SessionState.LIVE
    assert not reports(actions, Reinitialized), "it is as the host makes it"


def test_a_session_is_not_lost_while_the_host_opens_another(driver: Driver) -> None:
    call = driver.call()
    driver.request("initialize")
    assert not reports(call.refuse(404), SessionLost)
    assert state(driver) is SessionState.INITIALIZING


# What is old stays old (S13).


@pytest.mark.parametrize("reopening", [False, True])
def test_an_earlier_initialize_of_the_host_s_opens_no_session_beside_the_newest(reopening: bool) -> None:
    """A host whose time-out is over asks for another session, and a late answer would end that."""
    driver = Driver()
    if reopening:
        driver.opened()
    earlier = driver.request("initialize", {"protocolVersion": "2025-11-25"})
    driver.initialize("session-two")
    driver.notify("notifications/initialized")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    assert not driver.is_waited_for("initialize"), "it is not sent again"
    call = driver.call()
    assert not delivered(earlier.answer({**RESULT, "protocolVersion": "2025-06-18"}, session_id="session-one"))
    assert driver.machine.session.session_id == "session-two"
    assert delivered(call.answer())[0]["id"] == call.host_id
    answered = [message for message in delivered(driver.log) if message["id"] == earlier.host_id]
    assert [message["error"]["code"] for message in answered] == [CODE_IN_DOUBT]


def test_what_waits_for_a_session_waits_for_the_newest_that_the_host_opens(driver: Driver) -> None:
    driver.call().refuse(404)
    assert driver.call("refund").stream == -1
    driver.request("initialize", {"protocolVersion": "2025-11-25"})
    assert methods(driver.request("initialize", {"protocolVersion": "2025-11-25"}).actions) == ["initialize"]
    assert methods(driver.sent("initialize").answer(RESULT, session_id="session-two")) == ["tools/call"]


def test_another_initialize_under_the_same_id_is_answered_once(driver: Driver) -> None:
    """As from the second client of a proxy: each begins to count anew."""
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    assert not delivered(driver.submit(message) + driver.submit(message))
    answer = driver.sent("initialize").answer(RESULT, session_id="session-two")
    assert [(told["id"], told["result"]) for told in delivered(answer)] == [(0, RESULT)]


def test_a_post_of_the_old_session_still_delivers_its_own_answer_and_nothing_else_of_it_passes() -> None:
    driver = Driver().opened()
    old = driver.call("slow")
    old.accept()
    driver.call("b").refuse(404)
    driver.reinitialized()
    assert delivered(old.event("e1", note("of the old session"))) == []
    (progress,) = delivered(old.event("e2", old.progress(1)))
    assert progress["params"]["progressToken"] == "tok"
    assert [m["id"] for m in delivered(old.event("e3", old.result()))] == [old.host_id]


def test_an_event_id_of_the_old_session_says_nothing_in_the_new_one(driver: Driver) -> None:
    old = driver.call("slow")
    old.accept()
    driver.call("b").refuse(404)
    driver.reinitialized()
    old.event("1", old.progress(1))
    new = driver.sent("tools/call")
    new.accept()
    actions = new.event("1", new.progress(1)) + new.event("2", new.result())
    assert not reports(actions, DuplicateDropped)
    assert outcomes(actions) == [Outcome.COMPLETED]
    (moved,) = records(driver.drain(99), CursorMoved)
    assert moved.incarnation == 1, "what is left is of the old one"


def test_a_resumable_stream_of_the_old_session_is_not_resumed_in_the_new_one(driver: Driver) -> None:
    call = driver.call("slow").stream_up("e1", "e2")
    driver.call("b").refuse(404)
    driver.reinitialized()
    actions = call.cut()
    assert in_doubt(actions)
    assert not of(actions, Get)


def test_a_lost_stream_of_the_old_session_is_given_up_at_once(driver: Driver) -> None:
    call = driver.call("slow").stream_up("e1", "e2")
    call.cut()
    actions = driver.call("b").refuse(404)
    assert in_doubt(actions)
    assert not call.is_open


@pytest.mark.parametrize("how", ["behind its row", "for its next attempt"])
def test_a_call_of_which_nothing_was_written_goes_out_in_the_new_session(driver: Driver, how: str) -> None:
    driver.begins = how != "behind its row"
    call = driver.call()
    if driver.begins:
        call.not_written()
    driver.begins = True
    other = driver.call("b")
    other.refuse(404)
    assert not call.is_open
    actions = driver.reinitialized()
    names = [p.message["params"]["name"] for p in posted(actions, "tools/call")]
    assert sorted(names) == ["b", "charge"]
    reasons = [s.reason for s in reports(actions, CallSettled)]
    assert any(r.startswith("by wire") for r in reasons)


def test_a_post_that_proves_never_written_after_the_loss_goes_out_in_the_new_session(driver: Driver) -> None:
    call = driver.call()
    driver.call("b").refuse(404)
    assert not posted(call.not_written())
    assert len(posted(driver.reinitialized(), "tools/call")) == 2


def test_a_late_404_of_the_old_session_strands_its_own_call_only(driver: Driver) -> None:
    late = driver.call("late")
    driver.call("b").refuse(404)
    driver.reinitialized()
    actions = late.refuse(404)
    assert methods(actions) == ["tools/call"]
    assert not reports(actions, SessionLost)


def test_no_wire_id_is_ever_used_twice(driver: Driver) -> None:
    for n in range(3):
        driver.call(f"tool{n}").refuse(404)
        driver.reinitialized(f"session-{n}")
    ids = [p.message["id"] for p in posted(driver.log) if "id" in p.message]
    assert len(ids) == len(set(ids))


def test_the_timers_of_another_time_do_nothing(driver: Driver) -> None:
    driver.machine._calls.restored()
    driver.machine._calls.confirmed(99)
    assert driver.machine.receive() == []


# Restoring.


def restored(driver: Driver) -> None:
    """A host that has set a level, subscribed, and listed its tools; its session is then lost."""
    driver.request("logging/setLevel", {"level": "debug"}).answer({})
    for uri in ("a://1", "b://2", "c://3"):
        driver.request("resources/subscribe", {"uri": uri}).answer({})
    driver.request("resources/unsubscribe", {"uri": "c://3"}).answer({})
    driver.listed(CHARGE, LOOK)
    driver.call().refuse(404)


def test_log_level_subscriptions_and_tools_are_restored_before_anything_is_sent(driver: Driver) -> None:
    restored(driver)
    actions = driver.reopened()
    assert [(p.message["method"], p.message["params"]) for p in posted(actions)[1:]] == [
        ("logging/setLevel", {"level": "debug"}),
        ("resources/subscribe", {"uri": "a://1"}),
        ("resources/subscribe", {"uri": "b://2"}),
        ("tools/list", {}),
    ]
    assert state(driver) is SessionState.RESTORING
    actions = driver.elapse(TimerKind.RESTORE)
    (told,) = reports(actions, Reinitialized)
    assert told.changed == ("tool charge", "tool look"), "not known to be the same"
    assert state(driver) is SessionState.LIVE


def test_what_the_server_refuses_to_restore_is_reported(driver: Driver) -> None:
    restored(driver)
    posts = {p.message["params"].get("uri", p.message["method"]): p.stream for p in posted(driver.reopened())[1:]}
    driver.peer(posts["logging/setLevel"]).answer_error(-32601)
    for lost in (driver.peer(posts["a://1"]).refuse(500), driver.peer(posts["b://2"]).cut()):
        (again,) = posted(lost, "resources/subscribe")
        assert again.delay.attempt == 1
        driver.peer(again.stream).cut()
    actions = driver.peer(posts["tools/list"]).answer({"tools": [CHARGE, LOOK]})
    (told,) = reports(actions, Reinitialized)
    assert told.not_restored == ("logging/setLevel", "resources/subscribe a://1", "resources/subscribe b://2")
    assert told.changed == ()


@pytest.mark.parametrize("late", ["answered", "error", "refused", "cut", "page"])
def test_an_answer_that_restores_too_late_upsets_nothing(driver: Driver, late: str) -> None:
    restored(driver)
    driver.reopened()
    listing = driver.sent("tools/list")
    driver.elapse(TimerKind.RESTORE)
    if late == "answered":
        actions = listing.answer({"tools": [CHARGE, LOOK]})
        assert not driver.machine._calls.changed_tools
    elif late == "error":
        actions = listing.answer_error(-32601)
    elif late == "page":
        actions = listing.answer({"tools": [CHARGE], "nextCursor": "more"})
    else:
        actions = listing.refuse(500) if late == "refused" else listing.cut()
    assert methods(actions) == ["tools/call"] * (late in ("answered", "page")), "and what has waited for it"
    assert state(driver) is SessionState.LIVE


def listed_late(driver: Driver) -> tuple[Peer, Peer]:
    """A call that met a loss and did not run, and the list of the tools in the new session, which takes longer
    than all is to take that restores it."""
    driver.listed(CHARGE, LOOK)
    call = driver.call()
    call.refuse(404)
    driver.reopened()
    listing = driver.sent("tools/list")
    actions = driver.elapse(TimerKind.RESTORE)
    assert state(driver) is SessionState.LIVE
    assert posted(actions) == outcomes(actions) == []
    return call, listing


def test_the_host_s_own_list_of_the_tools_ends_that_wait_too(driver: Driver) -> None:
    listed_late(driver)
    actions = driver.request("tools/list").answer({"tools": [CHARGE, LOOK]})
    assert posted(actions, "tools/call")


@pytest.mark.parametrize("late", ["the same", "another", "without it", "error", "cut"])
def test_a_call_that_did_not_run_waits_for_a_late_list_of_the_tools(driver: Driver, late: str) -> None:
    _, listing = listed_late(driver)
    if late == "cut":
        actions = listing.cut()
    elif late == "error":
        actions = listing.answer_error(-32603)
    else:
        other = {**CHARGE, "inputSchema": {"type": "object", "required": ["cents"]}}
        actions = listing.answer({"tools": {"the same": [CHARGE], "another": [other], "without it": []}[late]})
    assert bool(posted(actions, "tools/call")) is (late == "the same")
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]


def test_it_waits_no_longer_than_its_deadline_and_no_other_call_does(driver: Driver) -> None:
    call, _ = listed_late(driver)
    assert posted(driver.call(cents=1).actions, "tools/call")
    assert outcomes(driver.elapse(TimerKind.DEADLINE, call.stream)) == [Outcome.NOT_EXECUTED]


def test_what_waits_for_a_late_list_waits_for_that_of_the_next_session_if_this_one_is_lost(driver: Driver) -> None:
    _, listing = listed_late(driver)
    driver.call(cents=1).refuse(404)
    driver.reopened("session-three")
    assert not posted(listing.cut(), "tools/call")
    assert len(posted(driver.sent("tools/list").answer({"tools": [CHARGE]}), "tools/call")) == 2


FAILURES: list[Callable[[Peer], list[Action]]] = [
    lambda peer: peer.refuse(500),
    lambda peer: peer.cut(),
    lambda peer: peer.driver.elapse(TimerKind.DEADLINE, peer.stream),
]


@pytest.mark.parametrize("fails", FAILURES, ids=["refused", "cut", "no answer"])
def test_what_is_restored_late_is_named_and_sent_once_more_if_it_fails(
    driver: Driver, fails: Callable[[Peer], list[Action]]
) -> None:
    restored(driver)
    posts = {p.message["params"].get("uri", p.message["method"]): p.stream for p in posted(driver.reopened())[1:]}
    driver.peer(posts["tools/list"]).answer({"tools": [CHARGE, LOOK]})
    driver.peer(posts["b://2"]).answer({})
    (told,) = reports(driver.elapse(TimerKind.RESTORE), Reinitialized)
    assert told.not_restored == (
        "logging/setLevel (no answer yet)",
        "resources/subscribe a://1 (no answer yet)",
    )
    for late, method in (("logging/setLevel", "logging/setLevel"), ("a://1", "resources/subscribe")):
        (again,) = posted(fails(driver.peer(posts[late])), method)
        assert again.headers["mcp-session-id"] == "session-two"
        assert not posted(fails(driver.peer(again.stream)), method), "once"


def test_the_host_reads_again_what_it_was_subscribed_to_late(driver: Driver) -> None:
    """What has changed since it was told to read everything again, the server has told nobody."""
    restored(driver)
    driver.reopened()
    level, subscribe = driver.sent("logging/setLevel"), driver.sent("resources/subscribe")
    driver.elapse(TimerKind.RESTORE)
    assert not delivered(level.answer({}))
    (told,) = delivered(subscribe.answer({}))
    assert (told["method"], told["params"]) == ("notifications/resources/updated", {"uri": "b://2"})


@pytest.mark.parametrize("undone", ["by the host", "with its session", "by a session of the host's"])
def test_what_is_not_wanted_any_more_is_not_restored_late(driver: Driver, undone: str) -> None:
    restored(driver)
    driver.reopened()
    subscribe = driver.sent("resources/subscribe").stale()
    driver.elapse(TimerKind.RESTORE)
    if undone == "by the host":
        driver.request("resources/unsubscribe", {"uri": "b://2"}).answer({})
    elif undone == "with its session":
        driver.call("b").refuse(404)
    else:
        driver.opened("the-host-s")
    actions = subscribe.refuse(500)
    assert not posted(actions, "resources/subscribe")
    assert not delivered(actions)


def test_what_restores_an_older_session_is_not_taken_for_the_present_one(driver: Driver) -> None:
    restored(driver)
    driver.reopened()
    listing, level = driver.sent("tools/list"), driver.sent("logging/setLevel")
    level.refuse(404)
    driver.reopened("session-three")
    listing.answer({"tools": [CHARGE, LOOK]})
    assert driver.machine._calls.changed_tools == ["charge", "look"]


def test_tools_are_read_to_the_last_page(driver: Driver) -> None:
    driver.listed(CHARGE, LOOK)
    driver.call().refuse(404)
    driver.reopened()
    actions = driver.sent("tools/list").answer({"tools": [CHARGE], "nextCursor": "more"})
    assert posted(actions)[0].message["params"] == {"cursor": "more"}
    actions = driver.sent("tools/list").answer({"tools": [LOOK]})
    (told,) = reports(actions, Reinitialized)
    assert (told.changed, told.not_restored) == ((), ())


CURSORS: dict[str, tuple[Callable[[int], str], int]] = {
    "the same": (lambda page: "same", 2),
    "in a circle": (lambda page: f"p{page % 3}", 4),
    "ever new": (lambda page: f"p{page}", 100),
}


@pytest.mark.parametrize("cursor", CURSORS)
def test_pages_that_have_no_end_are_read_to_a_bound_and_told(driver: Driver, cursor: str) -> None:
    """A server that ignores the cursor was asked for thousands of pages."""
    next_cursor, most = CURSORS[cursor]
    driver.listed(CHARGE, LOOK)
    for session in ("session-two", "session-three"):
        driver.call(session).refuse(404)
        actions = driver.reopened(session)
        pages = 0
        while driver.is_waited_for("tools/list"):
            pages += 1
            assert pages <= most
            page = {"tools": [CHARGE], "nextCursor": next_cursor(pages)}
            actions += driver.sent("tools/list").answer(page)
        assert pages == most
        (told,) = reports(actions, Reinitialized)
        assert told.not_restored == ("tools/list (its pages have no end)",)
        assert told.changed == ("tool look",), "it may stand behind"
        assert posted(actions, "tools/call"), "and what was seen is compared"


def test_a_list_of_as_many_pages_as_are_read_is_whole(driver: Driver) -> None:
    driver.listed(CHARGE)
    driver.call().refuse(404)
    driver.reopened()
    for page in range(99):
        driver.sent("tools/list").answer({"nextCursor": f"p{page}"})
    (told,) = reports(driver.sent("tools/list").answer({"tools": [CHARGE]}), Reinitialized)
    assert (told.changed, told.not_restored) == ((), ())


def test_a_tool_that_changed_is_reported_and_its_call_not_sent_again(driver: Driver) -> None:
    driver.listed(CHARGE, LOOK)
    driver.call().refuse(404)
    driver.call("look")
    actions = driver.reinitialized(tools=[{**CHARGE, "inputSchema": {}}, LOOK])
    assert reports(actions, Reinitialized)[0].changed == ("tool charge",)
    assert [p.message["params"]["name"] for p in posted(actions, "tools/call")] == ["look"]
    assert "schema" in error_of(actions)["message"]
    assert error_of(actions)["code"] == CODE_NOT_EXECUTED
    driver.listed({**CHARGE, "inputSchema": {}}, LOOK)
    driver.call().refuse(404)
    actions = driver.reinitialized("session-three", tools=[{**CHARGE, "inputSchema": {}}, LOOK])
    assert posted(actions, "tools/call"), "the host knows the new schema by now"


@pytest.mark.parametrize("declared", [["tools"], ["prompts", "resources"], []])
def test_the_host_is_told_to_read_its_lists_again_where_the_server_has_them(
    driver: Driver, declared: list[str]
) -> None:
    driver.call().refuse(404)
    actions = driver.reinitialized(capabilities={name: {} for name in declared})
    assert [m["method"] for m in delivered(actions)] == [f"notifications/{n}/list_changed" for n in declared]


def test_a_session_of_the_host_s_own_is_not_brought_to_where_the_old_one_was(driver: Driver) -> None:
    driver.request("logging/setLevel", {"level": "debug"}).answer({})
    driver.opened("session-two")
    driver.call("b").refuse(404)
    assert "logging/setLevel" not in methods(driver.reinitialized("session-three"))


def test_what_was_granted_is_restored(driver: Driver) -> None:
    restored(driver)
    (told,) = reports(driver.reinitialized(tools=[CHARGE, LOOK]), Reinitialized)
    assert (told.changed, told.not_restored) == ((), ())


def test_an_initialized_of_the_host_s_while_the_session_is_lost_goes_nowhere(driver: Driver) -> None:
    driver.call().refuse(404)
    actions = driver.notify("notifications/initialized")
    assert not posted(actions)
    assert state(driver) is SessionState.REINITIALIZING


def test_a_late_404_to_a_request_of_the_guard_s_own_is_its_failure_alone(driver: Driver) -> None:
    driver.call().refuse(404)
    driver.elapse(TimerKind.DEADLINE, driver.sent("initialize").stream)
    driver.reinitialized()
    assert state(driver) is SessionState.LIVE


@pytest.mark.parametrize("code", [-32600, -32601])
def test_a_session_without_an_id_is_never_suspected(code: int) -> None:
    driver = Driver().opened(session_id=None)
    actions = driver.call().answer_error(code)
    assert error_of(actions)["code"] == code
    assert not posted(actions)


def test_a_refusal_while_the_host_opens_a_session_is_an_answer(driver: Driver) -> None:
    call = driver.call()
    driver.request("initialize")
    assert outcomes(call.refuse(400)) == [Outcome.COMPLETED]


def test_a_ping_that_failed_while_another_session_is_opened_decides_nothing(driver: Driver) -> None:
    driver.call("a").refuse(400)
    ping = driver.sent("ping")
    driver.request("initialize")
    assert not posted(ping.refuse(400))
    assert state(driver) is SessionState.INITIALIZING


def test_tools_that_the_host_has_listed_page_by_page_are_all_known(driver: Driver) -> None:
    driver.listed(CHARGE)
    driver.request("tools/list", {"cursor": "more"}).answer({"tools": [LOOK]})
    driver.call().refuse(404)
    assert reports(driver.reinitialized(tools=[LOOK]), Reinitialized)[0].changed == ("tool charge",)


@pytest.mark.parametrize("ping", ["answered", "refused alike"])
def test_a_suspect_that_was_answered_elsewhere_meanwhile_keeps_that_answer(ping: str) -> None:
    driver = Driver().opened(standalone=True)
    call = driver.call()
    call.refuse(400)
    if ping == "answered":
        driver.standalone.event("s1", call.result())
        actions = driver.sent("ping").answer({})
    else:
        driver.sent("ping").refuse(400)
        driver.standalone.event("s1", call.result())
        actions = driver.sent("initialize").refuse(400)
    assert not outcomes(actions)
    assert driver.machine.session.state is SessionState.LIVE


@pytest.mark.parametrize("restores", [True, False])
def test_a_host_s_initialized_that_comes_late_is_not_told_to_a_session_that_has_been_told(restores: bool) -> None:
    """Its call before that has lost the session: the guard's own is told by the guard."""
    driver = Driver()
    driver.initialize()
    driver.listed({"name": "charge", "inputSchema": {}})
    call = driver.call(cents=5)
    call.refuse(404)
    if restores:
        driver.reopened()
        assert driver.machine.session.state is SessionState.RESTORING
        assert driver.notify("notifications/initialized") == []
    else:
        assert not of(driver.notify("notifications/initialized"), Post)
        driver.reopened()
    driver.sent("tools/list").answer({"tools": [{"name": "charge", "inputSchema": {}}]})
    assert driver.machine.session.state is SessionState.LIVE
    assert outcomes(driver.sent("tools/call").answer()) == [Outcome.COMPLETED]


@pytest.mark.parametrize("has_hook", [True, False])
def test_a_resume_in_another_session_s_name_has_its_call_decided_in_the_next_session(has_hook: bool) -> None:
    driver = Driver(has_hook=has_hook).opened()
    driver.listed(CHARGE, LOOK)
    call = driver.call("charge" if has_hook else "look").stream_up("e1")
    call.cut()
    actions = call.accept(session_id="another")
    assert methods(actions) == ["initialize"]
    assert not of(actions, Ask)
    assert not outcomes(actions)
    actions = driver.reinitialized(tools=[CHARGE, LOOK])
    assert of(actions, Ask) if has_hook else outcomes(actions) == [Outcome.RESENT]


@pytest.mark.parametrize("how", ["502", "503", "cut", "429"])
def test_a_server_that_is_away_for_a_while_costs_attempts_and_not_the_budget_of_a_minute(how: str) -> None:
    """A restart behind a proxy: as long as nothing can be opened, no session is lost again."""
    driver = Driver().opened()
    call = driver.call()
    call.refuse(404)
    for attempt in range(9):
        sent = driver.sent("initialize")
        assert sent.order.delay.attempt == attempt
        sent.cut() if how == "cut" else sent.refuse(int(how))
    driver.sent("initialize").refuse(503)
    assert state(driver) is SessionState.LOST
    again = driver.call("again")
    assert methods(again.actions) == ["initialize"], "the next request asks the server"
    driver.reinitialized()
    assert [m["id"] for m in delivered(driver.sent("tools/call").answer())] == [again.host_id]


def test_what_would_be_refused_again_is_not_tried_for_ever(driver: Driver) -> None:
    driver.call().refuse(404)
    while driver.is_waited_for("initialize"):
        driver.sent("initialize").answer_error(-32603)
    assert methods(driver.log).count("initialize") == 1 + 5
    assert not posted(driver.call("again").actions)


def test_looks_beside_a_session_that_is_kept_do_not_use_up_what_a_lost_one_needs() -> None:
    """A restart behind a proxy: 502 for two seconds, in which a busy host asks on; then the session is gone."""
    driver = Driver().opened()
    for n in range(8):
        driver.call(n=n).refuse(502)
        driver.sent("ping").refuse(502)
        if driver.is_waited_for("initialize"):
            driver.sent("initialize").refuse(502)
        assert state(driver) is SessionState.LIVE
    assert methods(driver.log).count("initialize") == 1 + 5, "they have their own bound"
    call = driver.call(n=9)
    assert methods(call.refuse(404)) == ["initialize"]
    driver.reinitialized()
    assert [m["id"] for m in delivered(driver.sent("tools/call").answer())] == [call.host_id]


def test_retry_after_is_kept_to_by_an_initialize_of_the_guard_s_own(driver: Driver) -> None:
    waiting = driver.call()
    waiting.refuse(404)
    driver.sent("initialize").refuse(503, retry_after=20.0)
    sent = driver.sent("initialize")
    assert (sent.order.delay.attempt, sent.order.delay.at_least) == (1, 20.0)
    assert not outcomes(driver.elapse(TimerKind.DEADLINE, sent.stream)), "it waits, as it was told to"
    sent.begin()
    told = sent.refuse(503, retry_after=3600.0)
    assert state(driver) is SessionState.LOST, "nobody waits as long as that"
    assert [m["id"] for m in delivered(told)] == [waiting.host_id]
    assert methods(driver.call("again").actions) == ["initialize"]
