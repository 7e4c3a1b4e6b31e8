"""Legacy HTTP+SSE is found at an `initialize` and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import AskUpgrade, EndSession, Get, OpenSocket, Post
from mcp_client_guard.core.inputs import Answered, ConnectionFreed, EventReceived, UpgradeAnswered
from mcp_client_guard.core.model import (
    CallSent,
    CursorDropped,
    CursorMoved,
    Generation,
    Grade,
    Outcome,
    SessionEnded,
)
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import Connected, EndpointRefused, GenerationChosen, SessionLost, Unreachable
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import RESULT, delivered, evidence, note, of, outcomes, records, reports
from tests.core.legacy import LEGACY_RESULT, Legacy
from tests.core.scenes import Process


def auto() -> Legacy:
    return Legacy(generation="sessions")


def refused(driver: Legacy, status: int = 405, body: Any = None) -> Any:
    sent = driver.request("initialize")
    sent.actions = sent.refuse(status, body)
    return sent


@pytest.mark.parametrize("status", [400, 404, 405])
def test_a_refusal_of_the_first_initialize_is_held_until_a_get_has_been_answered(status: int) -> None:
    driver = auto()
    sent = refused(driver, status)
    assert delivered(sent.actions) == []
    (get,) = of(sent.actions, Get)
    assert get.headers == {}
    (post,) = of(driver.serves(), Post)
    assert post.target == "http://h/messages?session=1"
    assert post.message["method"] == "initialize"
    assert len(records(driver.log, CallSent)) == 1, "the same sending, once more"
    driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    assert driver.machine.session.generation is Generation.LEGACY_SSE
    assert outcomes(driver.log) == [Outcome.COMPLETED]


@pytest.mark.parametrize("status", [401, 403, 406, 408, 409, 410, 415, 500])
def test_any_other_refusal_is_the_answer(status: int) -> None:
    sent = refused(auto(), status)
    assert delivered(sent.actions)
    assert not of(sent.actions, Get)


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
def test_a_modern_error_is_the_answer(code: int) -> None:
    sent = refused(auto(), 400, {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}})
    assert delivered(sent.actions)
    assert not of(sent.actions, Get)


@pytest.mark.parametrize("code", [-32000, -32600, -32602])
def test_an_error_of_older_servers_says_nothing_of_the_generation(code: int) -> None:
    sent = refused(auto(), 400, {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}})
    assert of(sent.actions, Get)


@pytest.mark.parametrize(
    "how",
    ["404", "401", "500", "502", "cut", "not written", "another event", "another origin", "no events", "silence"],
)
@pytest.mark.parametrize("status", [400, 404, 405])
def test_otherwise_the_first_refusal_is_the_answer(how: str, status: int) -> None:
    driver = auto()
    sent = refused(driver, status)
    if how.isdigit():
        actions = driver.carrier.refuse(int(how))
    elif how == "cut":
        actions = driver.accepts() + driver.carrier.cut()
    elif how == "not written":
        actions = driver.carrier.not_written()
    elif how == "another event":
        actions = driver.accepts() + driver.carries({"jsonrpc": "2.0", "method": "x"})
    elif how == "another origin":
        actions = driver.accepts() + driver.names("https://evil/m")
        assert reports(actions, EndpointRefused)
    elif how == "no events":
        actions = driver.carrier.accept(events=False)
    else:
        driver.accepts()
        actions = driver.elapse(TimerKind.ENDPOINT)
    (answer,) = delivered(actions)
    assert answer["id"] == sent.host_id
    assert answer["error"]["data"]["http_status"] == status
    assert driver.machine.session.state is SessionState.NEW
    assert not driver.carrier.is_open
    assert of(refused(driver).actions, Get), "that was said of this one: the server may come back as another"


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_busy_has_not_said_whether_it_has_a_legacy_stream(status: int) -> None:
    driver = auto()
    refused(driver)
    actions = driver.carrier.refuse(status, retry_after=2.0)
    assert delivered(actions) == []
    (get,) = of(actions, Get)
    assert (get.delay.attempt, get.delay.at_least) == (1, 2.0)
    driver.carrier.begin()
    (post,) = of(driver.serves(), Post)
    assert post.message["method"] == "initialize"


def test_nor_is_it_asked_for_ever() -> None:
    driver = Legacy(GuardPolicy(max_attempts=2), generation="sessions")
    refused(driver)
    for _ in range(2):
        assert delivered(driver.carrier.refuse(503)) == []
    (answer,) = delivered(driver.carrier.refuse(503))
    assert answer["error"]["data"]["http_status"] == 405
    assert not driver.carrier.is_open


def test_what_is_said_later_than_anybody_waits_is_said_for_good() -> None:
    driver = auto()
    refused(driver)
    assert delivered(driver.carrier.refuse(503, retry_after=61.0))


@pytest.mark.parametrize("status", [429, 502, 503])
def test_an_initialize_that_is_tried_again_finds_it_too(status: int) -> None:
    """The server is being replaced, and says what it is once it is there."""
    driver = auto()
    assert not of(refused(driver, status).actions, Get), "that says nothing of the generation"
    again = driver.sent("initialize")
    assert again.order.delay.attempt == 1
    again.begin()
    assert of(again.refuse(405), Get)
    driver.serves()
    driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    assert driver.machine.session.generation is Generation.LEGACY_SSE
    assert outcomes(driver.log)[-1] is Outcome.COMPLETED


def test_the_wait_for_the_endpoint_is_bounded_by_witness_timeout() -> None:
    driver = Legacy(GuardPolicy(witness_timeout=2.0), generation="host")
    refused(driver)
    (due,) = [at for timer, at in driver.timers.items() if timer.kind is TimerKind.ENDPOINT]
    assert due == driver.now + 2.0


@pytest.mark.parametrize("how", ["cancel", "close", "deadline"])
def test_whoever_cannot_wait_gets_the_refusal(how: str) -> None:
    driver = auto()
    sent = refused(driver, 404)
    if how == "cancel":
        actions = driver.cancel(sent)
    elif how == "close":
        actions = driver.close()
    else:
        actions = driver.elapse(TimerKind.DEADLINE, sent.stream)
    assert outcomes(actions) == [Outcome.COMPLETED], "its answer is an HTTP status"
    assert not driver.carrier.is_open


def test_two_that_are_refused_wait_for_one_get() -> None:
    driver = Legacy(generation="auto")
    probe = driver.request("server/discover")
    driver.sent("initialize").refuse(405)
    sent = refused(driver)
    assert not of(sent.actions, Get)
    driver.elapse(TimerKind.DEADLINE, 1)
    assert driver.carrier.is_open
    driver.cancel(probe)
    assert [answer["id"] for answer in delivered(driver.carrier.refuse(405))] == [sent.host_id]


def test_one_that_is_refused_once_the_endpoint_has_come_waits_for_no_other() -> None:
    driver = Legacy(generation="auto")
    driver.request("server/discover")
    driver.sent("initialize").refuse(405)
    sent = driver.request("initialize")
    driver.serves()
    sent.refuse(405)
    assert [post.target for post in of(driver.serves(), Post)][-1] == "http://h/messages?session=2"
    assert delivered(driver.answers(driver.sent("initialize"), LEGACY_RESULT))[0]["id"] == sent.host_id


def test_a_newer_one_of_the_host_s_begins_anew_and_the_older_has_its_answer() -> None:
    driver = auto()
    first, second = refused(driver), refused(driver)
    assert [answer["id"] for answer in delivered(driver.log)] == [first.host_id]
    assert len(of(driver.serves(), Post)) == 1
    assert delivered(driver.answers(driver.sent("initialize"), LEGACY_RESULT))[0]["id"] == second.host_id


def test_a_call_that_has_its_outcome_is_not_held() -> None:
    driver = auto()
    sent = driver.request("initialize")
    driver.elapse(TimerKind.DEADLINE, sent.stream)
    assert not of(sent.refuse(404), Get)


# A server of streamable HTTP goes back.


def live(*, standalone: bool = False) -> Legacy:
    """A session of streamable HTTP, of a server that has never been another."""
    driver = auto()
    super(Legacy, driver).opened(standalone=standalone)
    return driver


def lost(driver: Legacy) -> Any:
    """A call whose session is lost."""
    call = driver.call()
    call.actions = call.refuse(404)
    assert reports(call.actions, SessionLost)
    return call


def suspected(driver: Legacy) -> Any:
    """A call, the ping and another `initialize` are refused as a legacy server refuses every POST."""
    call = driver.call()
    assert not of(call.refuse(405) + driver.sent("ping").refuse(405), Get), "a refusal in mid-session says nothing"
    call.actions = driver.sent("initialize").refuse(405)
    return call


def test_a_server_that_has_gone_back_is_found_by_the_initialize_after_a_lost_session() -> None:
    driver = live()
    call = lost(driver)
    (get,) = of(driver.sent("initialize").refuse(405), Get)
    assert get.headers == {}
    assert get.last_event_id is None
    actions = driver.reopened()
    assert driver.machine.session.generation is Generation.LEGACY_SSE
    (again,) = [p for p in of(actions, Post) if p.message["method"] == "tools/call"]
    assert again.target == "http://h/messages?session=1"
    assert delivered(driver.answers(driver.sent("tools/call")))[-1]["id"] == call.host_id
    assert driver.machine.shared.found is Generation.LEGACY_SSE


def test_it_is_found_beside_a_suspected_session_which_is_over_then() -> None:
    driver = live()
    call = suspected(driver)
    assert of(call.actions, Get)
    actions = driver.serves()
    (gone,) = reports(actions, SessionLost)
    assert gone.reason == "the server speaks HTTP+SSE"
    assert not of(actions, Get), "its session is to be opened on that stream"
    driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    actions = driver.takes(driver.sent("notifications/initialized"))
    assert [p.message["method"] for p in of(actions, Post)][-1] == "tools/call"
    assert delivered(driver.answers(driver.sent("tools/call")))[-1]["id"] == call.host_id


def test_a_session_that_is_lost_while_a_legacy_stream_is_looked_for_is_replaced_at_once() -> None:
    """The look goes with its session: the `initialize` that waited for it would wait until its deadline."""
    driver = live()
    other = driver.call("look")
    suspected(driver)
    actions = other.refuse(404)
    assert [post.message["method"] for post in of(actions, Post)] == ["initialize"]


def test_a_suspected_session_is_kept_where_there_is_no_legacy_stream_either() -> None:
    driver = live()
    call = suspected(driver)
    actions = driver.carrier.refuse(405)
    assert delivered(actions)[0]["id"] == call.host_id
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP
    assert driver.machine.session.state is SessionState.LIVE
    assert not reports(driver.log, SessionLost)


def brought_endpoint(driver: Legacy) -> Any:
    """A call that was primed and cut; what answers the resume is a legacy stream."""
    call = driver.call()
    call.accept()
    call.event("p")
    call.resumed()
    call.actions = call.event(None, b"/messages?session=1", name="endpoint")
    return call


@pytest.mark.parametrize("status", [400, 404, 405])
def test_an_endpoint_that_answers_a_resume_has_the_session_asked_and_what_waits_is_told(status: int) -> None:
    driver = live()
    call = brought_endpoint(driver)
    assert [post.message["method"] for post in of(call.actions, Post)] == ["ping"]
    driver.sent("ping").refuse(status)
    assert of(driver.sent("initialize").refuse(405), Get)
    driver.serves()
    assert len(reports(driver.log, SessionLost)) == 1
    assert outcomes(driver.log)[-1] is Outcome.IN_DOUBT
    assert delivered(driver.log)[-1]["id"] == call.host_id
    driver.reopened()
    assert driver.machine.session.generation is Generation.LEGACY_SSE


@pytest.mark.parametrize("drawn", ["an answer", 401, 503, -32601])
def test_an_endpoint_says_nothing_of_a_session_whose_ping_no_legacy_server_refuses_so(drawn: Any) -> None:
    driver = live()
    call = brought_endpoint(driver)
    ping = driver.sent("ping")
    if drawn == "an answer":
        actions = ping.answer({})
    elif drawn == -32601:
        actions = ping.refuse(404, ping.error(-32601))
    else:
        actions = ping.refuse(drawn)
    assert not of(actions, Post)
    assert not of(call.event(None, b"/messages?session=1", name="endpoint"), Post), "asked once"
    call.resumed()
    assert of(call.event(None, b"/messages?session=2", name="endpoint"), Post), "of each connection"
    assert delivered(call.event("a", call.result()))[-1]["id"] == call.host_id


def test_an_endpoint_opens_no_more_sessions_than_the_budget_has() -> None:
    driver = Legacy(GuardPolicy(reinitialize_limit=1), generation="sessions")
    super(Legacy, driver).opened()
    call = brought_endpoint(driver)
    driver.sent("ping").refuse(405)
    driver.sent("initialize").refuse(500)
    call.resumed()
    call.event(None, b"/messages?session=2", name="endpoint")
    assert not of(driver.sent("ping").refuse(405), Post)
    assert driver.machine.session.state is SessionState.LIVE


def cut_standalone(driver: Legacy) -> None:
    driver.standalone.event("e1", note("one"))
    driver.standalone.event("e2", note("two"))
    driver.drain(2)
    driver.standalone.cut()


def test_meanwhile_the_standalone_stream_waits_and_keeps_its_cursor() -> None:
    driver = live(standalone=True)
    cut_standalone(driver)
    waiting = driver.standalone.stale()
    call = suspected(driver)
    assert not waiting.is_open
    assert [get.headers for get in of(call.actions, Get)] == [{}]
    (get,) = of(driver.carrier.refuse(405), Get)
    assert get.last_event_id == "e1"
    driver.standalone.begin()
    driver.standalone.accept()
    assert [e.grade for e in evidence(driver.standalone.event("e2", note("two")))] == [Grade.PROVEN]


@pytest.mark.parametrize("by", ["host", "server"])
def test_a_question_of_it_that_is_settled_meanwhile_holds_its_cursor_back_no_longer(by: str) -> None:
    driver = live(standalone=True)
    driver.standalone.event("e1", note("one"))
    asked = {"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {}}
    (question,) = delivered(driver.standalone.event("e2", asked))
    driver.drain(3)
    other = driver.call("look")
    other.accept()
    driver.standalone.cut()
    suspected(driver)
    if by == "host":
        (post,) = of(driver.submit({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}), Post)
        actions = driver.peer(post.stream).accept(status=202, events=False)
    else:
        withdrawn = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        actions = other.event(None, withdrawn)
        assert delivered(actions)[0]["params"] == {"requestId": question["id"]}
    assert [row.rows[-1].event_id for row in records(actions, CursorMoved)] == ["e2"]
    driver.carrier.refuse(405)
    driver.standalone.accept()
    driver.standalone.event("e1", note("one"))
    driver.standalone.event("e2", asked)
    driver.standalone.event("e3", note("three"))
    assert [row.rows[-1].event_id for row in records(driver.drain(9), CursorMoved)] == ["e3"]


def test_a_ticket_that_was_asked_for_before_moves_no_legacy_stream() -> None:
    driver = Legacy(generation="sessions", upgrades=True)
    super(Legacy, driver).opened(standalone=True)
    cut_standalone(driver)
    (asked,) = of(driver.log, AskUpgrade)
    suspected(driver)
    driver.accepts()
    assert not of(driver.feed(UpgradeAnswered(asked.question, 200, {"ticket": "t1"})), OpenSocket)
    assert reports(driver.names(), SessionLost), "it is heard, and there is a session beside it next"


def test_it_waits_as_well_for_an_initialize_that_can_wait_no_longer() -> None:
    driver = live(standalone=True)
    cut_standalone(driver)
    suspected(driver)
    (get,) = of(driver.elapse(TimerKind.DEADLINE, driver.sent("initialize").stream), Get)
    assert get.last_event_id == "e1"


@pytest.mark.parametrize("by", ["legacy stream", "host"])
def test_its_cursor_is_dropped_with_its_session(by: str) -> None:
    driver = live(standalone=True)
    cut_standalone(driver)
    suspected(driver)
    if by == "legacy stream":
        actions = driver.serves()
    else:
        sent = driver.request("initialize")
        actions = sent.answer(RESULT, session_id="session-two")
    assert [r.stream for r in records(actions, CursorDropped)] == ["standalone"]
    assert not driver.standalone.is_open or driver.get.last_event_id is None


def test_on_leaving_meanwhile_the_cursor_stays_on_disk() -> None:
    driver = live(standalone=True)
    cut_standalone(driver)
    suspected(driver)
    assert not records(driver.close(), CursorDropped)


def test_while_the_standalone_stream_lives_nothing_is_asked() -> None:
    driver = live(standalone=True)
    call = suspected(driver)
    assert not of(call.actions, Get)
    assert delivered(call.actions)[0]["id"] == call.host_id
    assert driver.standalone.is_open


def test_unless_it_is_a_legacy_stream_itself() -> None:
    """Such a server takes a GET with a session and a cursor for one without."""
    driver = live(standalone=True)
    cut_standalone(driver)
    driver.standalone.begin()
    driver.standalone.accept()
    assert not delivered(driver.standalone.event(None, b"/messages?session=1", name="endpoint"))
    assert of(suspected(driver).actions, Get)


@pytest.mark.parametrize("whose", ["the guard's", "a trial's", "the host's"])
def test_a_session_that_is_opened_by_post_meanwhile_ends_the_wait_for_a_legacy_stream(whose: str) -> None:
    """An endpoint that came late would turn a live session of streamable HTTP into a legacy one."""
    driver = auto()
    if whose == "the guard's":
        driver = live()
        lost(driver)
        driver.sent("initialize").refuse(405)
    elif whose == "a trial's":
        driver = Legacy(generation="auto")
        driver.request("server/discover")
        driver.sent("initialize").refuse(405)
    else:
        refused(driver)
    looking = driver.carrier.stale()
    sent = driver.request("initialize", {"protocolVersion": "2025-11-25"})
    sent.answer(RESULT, session_id="session-two")
    driver.notify("notifications/initialized")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    assert not looking.is_open
    assert not driver.machine._calls.is_detecting
    if whose == "a trial's":
        assert driver.sent("server/discover").is_open
    elif whose == "the host's":
        assert outcomes(driver.log) == [Outcome.COMPLETED] * 2
    assert driver.get.headers["mcp-session-id"] == "session-two", "the standalone stream"
    assert [post.message["method"] for post in of(driver.serves(), Post)] == ["ping"]
    driver.sent("ping").answer({})
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP
    (call,) = of(driver.call().actions, Post)
    assert (call.target, call.headers["mcp-session-id"]) == (None, "session-two")


def test_an_error_by_post_is_of_a_server_that_reads_posts() -> None:
    driver = live()
    lost(driver)
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "no"}}
    assert not of(driver.sent("initialize").refuse(404, body), Get)


@pytest.mark.parametrize("generation", ["sessions", "legacy-sse"])
def test_from_legacy_to_streamable_and_back(generation: str) -> None:
    driver = remembering(Legacy(generation=generation)).opened()
    driver.carrier.cut()
    driver.carrier.refuse(404)
    driver.sent("initialize").answer(RESULT, session_id="s")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    driver.standalone.refuse(405)
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP
    call = lost(driver)
    assert of(driver.sent("initialize").refuse(405), Get)
    driver.reopened()
    assert delivered(driver.answers(driver.sent("tools/call")))[-1]["id"] == call.host_id


def test_where_neither_is_there_for_a_while_a_server_that_comes_back_is_found() -> None:
    driver = remembering(auto())
    driver.request("initialize")
    driver.carrier.refuse(404)
    driver.sent("initialize").refuse(404)
    again = driver.request("initialize")
    assert of(again.refuse(405), Get)
    driver.serves()
    assert delivered(driver.answers(driver.sent("initialize"), LEGACY_RESULT))[0]["id"] == again.host_id


@pytest.mark.parametrize("how", [200, 400, 404, 405, "silent"])
@pytest.mark.parametrize("generation", ["auto", "host", "sessions"])
def test_what_was_found_but_never_opened_a_session_holds_no_longer_than_its_stream(
    generation: str, how: int | str
) -> None:
    driver = Legacy(generation=generation)
    first = refused(driver)
    driver.serves()
    driver.takes(driver.sent("initialize"))
    driver.carrier.cut()
    if how == "silent":
        driver.carrier.begin()
        actions = driver.elapse(TimerKind.ENDPOINT)
    elif how == 200:
        actions = driver.carrier.accept(events=False)
    else:
        actions = driver.carrier.refuse(int(how))
    (post,) = of(actions, Post)
    assert post.target is None
    told = driver.peer(post.stream).answer(RESULT, session_id="s")
    assert [m["id"] for m in delivered(told)] == [first.host_id]
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP


def test_where_the_server_is_then_gone_altogether_the_next_initialize_finds_whatever_comes_back() -> None:
    driver = auto()
    first = refused(driver)
    driver.serves()
    driver.takes(driver.sent("initialize"))
    driver.carrier.cut()
    driver.carrier.refuse(404)
    told = driver.sent("initialize").refuse(404)
    assert [m["id"] for m in delivered(told)] == [first.host_id]
    assert of(refused(driver).actions, Get)


def test_a_legacy_stream_that_the_user_has_chosen_is_not_given_up_before_it_has_worked() -> None:
    driver = Legacy()
    driver.request("initialize")
    assert not of(driver.carrier.refuse(405), Post)


@pytest.mark.parametrize("generation", ["sessions", "legacy-sse"])
def test_the_probe_of_a_newer_host_is_answered_here(generation: str) -> None:
    driver = Legacy(generation=generation)
    (answer,) = delivered(driver.request("server/discover").actions)
    assert answer["error"]["code"] == -32601


def test_another_session_on_the_connection_uses_what_was_found() -> None:
    driver = auto()
    refused(driver)
    driver.serves()
    driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    driver.notify("notifications/initialized")
    driver.takes(driver.sent("notifications/initialized"))
    actions = driver.carrier.cut()
    assert of(actions, Get)
    assert not of(actions, Post)


def remembering(driver: Legacy) -> Legacy:
    driver.machine.shared.found = Generation.LEGACY_SSE
    return driver


def test_what_has_worked_is_remembered_and_tried_first() -> None:
    driver = auto()
    refused(driver)
    driver.serves()
    driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    assert driver.machine.shared.found is Generation.LEGACY_SSE
    driver = remembering(auto())
    sent = driver.request("initialize")
    assert of(sent.actions, Get)
    assert not of(sent.actions, Post)
    assert [p.target for p in of(driver.serves(), Post)] == ["http://h/messages?session=1"]


@pytest.mark.parametrize("how", ["405", "404", "406", "another event", "silence"])
def test_where_it_works_no_more_the_initialize_is_posted(how: str) -> None:
    driver = remembering(auto())
    driver.request("initialize")
    if how.isdigit():
        actions = driver.carrier.refuse(int(how))
    elif how == "silence":
        driver.accepts()
        actions = driver.elapse(TimerKind.ENDPOINT)
    else:
        driver.accepts()
        actions = driver.carries({"jsonrpc": "2.0", "method": "x"})
    (post,) = of(actions, Post)
    assert post.target is None
    assert not of(driver.sent("initialize").refuse(404), Get), "asked once"


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_server_that_asks_for_a_long_wait_has_not_moved(status: int) -> None:
    """It would be asked again at once, by POST."""
    driver = remembering(auto())
    mine = driver.request("initialize")
    told = driver.carrier.refuse(status, retry_after=120.0)
    assert not of(told, Post)
    assert [m["id"] for m in delivered(told)] == [mine.host_id]


def test_what_is_locked_has_not_moved() -> None:
    driver = remembering(auto())
    driver.request("initialize")
    actions = driver.carrier.refuse(401)
    assert not of(actions, Post)
    assert delivered(actions)[0]["error"]["data"]["http_status"] == 401


# Found while a newer host's probe is held.


def tried() -> tuple[Legacy, Any]:
    """A session is tried, and found to be a legacy one."""
    driver = Legacy(generation="auto")
    probe = driver.request("server/discover")
    driver.sent("initialize").refuse(405)
    driver.serves()
    return driver, probe


def test_the_probe_is_refused_and_the_host_gets_the_session_that_was_tried() -> None:
    driver, probe = tried()
    trial = driver.sent("initialize")
    actions = driver.answers(trial, LEGACY_RESULT)
    (answer,) = delivered(actions)
    assert (answer["id"], answer["error"]["code"]) == (probe.host_id, -32601)
    assert [e.generation for e in reports(actions, GenerationChosen)] == [Generation.LEGACY_SSE]
    assert isinstance(trial.order, Post)
    sent = driver.request("initialize", trial.order.message["params"])
    assert delivered(sent.actions)[0]["result"] == LEGACY_RESULT
    assert not of(sent.actions, Get)
    driver.notify("notifications/initialized")
    driver.takes(driver.sent("notifications/initialized"))
    call = driver.call()
    assert isinstance(call.order, Post)
    assert call.order.target == "http://h/messages?session=1"


def test_one_whose_carrier_was_lost_meanwhile_is_not_given_to_the_host() -> None:
    driver, _ = tried()
    trial = driver.sent("initialize")
    driver.answers(trial, LEGACY_RESULT)
    driver.carrier.cut()
    assert isinstance(trial.order, Post)
    sent = driver.request("initialize", trial.order.message["params"])
    assert delivered(sent.actions) == []
    assert [p.target for p in of(driver.serves(), Post)] == ["http://h/messages?session=2"]


def test_nor_is_one_whose_stream_has_named_another_endpoint() -> None:
    driver, _ = tried()
    trial = driver.sent("initialize")
    driver.answers(trial, LEGACY_RESULT)
    driver.names()
    assert isinstance(trial.order, Post)
    sent = driver.request("initialize", trial.order.message["params"])
    assert delivered(sent.actions) == []
    assert [p.target for p in of(driver.serves(), Post)] == ["http://h/messages?session=3"]


@pytest.mark.parametrize("refused_by", ["server", "host"])
def test_one_that_the_host_does_not_take_is_left_with_its_carrier_and_not_deleted(refused_by: str) -> None:
    driver, _ = tried()
    trial = driver.sent("initialize")
    trial.accept(status=202, events=False, session_id="s-77")
    trial.body(None)
    if refused_by == "server":
        actions = driver.carries(trial.error())
        assert [p.message["method"] for p in of(actions, Post)] == ["server/discover"]
        driver.carries(driver.sent("server/discover").error())
    else:
        driver.carries(trial.result(LEGACY_RESULT))
    old = driver.carrier.stale()
    driver.request("initialize", {"protocolVersion": "2025-03-26"})
    assert not old.is_open
    assert [p.target for p in of(driver.serves(), Post)] == ["http://h/messages?session=2"]
    assert not of(driver.log + driver.close(), EndSession)


def test_a_trial_that_is_given_up_while_it_is_refused_lets_the_probe_pass() -> None:
    driver = Legacy(generation="auto")
    driver.request("server/discover")
    trial = driver.sent("initialize")
    trial.refuse(405)
    actions = driver.elapse(TimerKind.DEADLINE, trial.stream)
    assert [p.message["method"] for p in of(actions, Post)] == ["server/discover"]
    assert not driver.carrier.is_open


def test_what_a_trial_s_stream_says_once_it_was_given_up_is_for_nobody() -> None:
    driver, _ = tried()
    trial = driver.sent("initialize")
    driver.takes(trial)
    driver.elapse(TimerKind.DEADLINE, trial.stream)
    asked = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}}
    assert not delivered(driver.carries(trial.result(LEGACY_RESULT)) + driver.carries(note("x")))
    assert not delivered(driver.carries(asked))


def test_a_legacy_session_of_a_dead_process_is_never_offered() -> None:
    """Its stream died with the process: its calls have their outcome, and no cursor or ID of it is sent."""
    process = Process()
    driver = process.connect()
    driver.machine.session.generation = Generation.LEGACY_SSE
    driver.request("initialize")
    driver.feed(Answered(0, driver.orders[0].connection, 200, True, "s-77", driver.now, None, "http://h/sse"))
    driver.feed(EventReceived(0, driver.orders[0].connection, None, b"/m", None, "endpoint"))
    driver.sent("initialize").accept(events=False, status=202, session_id="s-77")
    driver.peer(0).event("e1", driver.sent("initialize").result(LEGACY_RESULT))
    driver.notify("notifications/initialized")
    driver.sent("notifications/initialized").accept(events=False, status=202)
    call = driver.call()
    call.accept(events=False, status=202)
    assert process.disk.session.session_id == "s-77"
    assert not process.disk.session.cursors
    after = process.killed()
    fresh = after.connect()
    sent = fresh.request("initialize")
    assert isinstance(fresh.orders[sent.stream], Post)
    assert fresh.orders[sent.stream].headers == {}
    assert after.disk.call.outcome is Outcome.IN_DOUBT


def test_a_session_of_another_generation_is_never_offered_to_a_legacy_stream() -> None:
    process = Process()
    driver = process.connect()
    driver.opened()
    driver.call().stream_up("e1", "e2")
    after = process.killed()
    fresh = after.connect()
    fresh.machine.session.generation = Generation.LEGACY_SSE
    fresh.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    (get,) = of(fresh.log, Get)
    assert get.headers == {}
    assert get.last_event_id is None
    assert not of(fresh.log, Post)
    assert records(fresh.log, SessionEnded)
    assert after.disk.call.outcome is Outcome.IN_DOUBT


@pytest.mark.parametrize("status", [404, 405, 500, 502, 503, 504])
def test_a_late_refusal_of_one_that_was_given_up_says_nothing_of_the_one_that_is_tried(status: int) -> None:
    driver = Legacy().opened()
    driver.carrier.cut()
    driver.carrier.refuse(405)
    first = driver.sent("initialize")
    driver.elapse(TimerKind.DEADLINE, first.stream)
    stale, second = first.stale(), driver.sent("initialize")
    stale.refuse(status)
    actions = second.answer(session_id="s-77")
    assert [told.generation for told in reports(actions, Connected)] == [Generation.STREAMABLE_HTTP]
    (note,) = [post for post in of(actions, Post) if post.message["method"] == "notifications/initialized"]
    assert (note.target, note.headers["mcp-session-id"]) == (None, "s-77")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    driver.peer(0).accept()
    assert of(driver.peer(0).cut(), Get)


# A client of one connection, which the stream would hold.


def narrow(**rest: Any) -> Legacy:
    return Legacy(generation="auto", max_calls=1, spare=0, **rest)


@pytest.mark.parametrize("status", [400, 404, 405])
def test_a_client_of_one_connection_is_told_at_once(status: int) -> None:
    driver = narrow()
    sent = driver.request("initialize")
    actions = sent.refuse(status)
    assert not of(actions, Get)
    (answer,) = delivered(actions)
    assert answer["error"]["data"]["http_status"] == status
    assert "two or more" in answer["error"]["message"]
    assert reports(actions, Unreachable)


def test_but_an_error_of_the_server_s_is_its_answer() -> None:
    driver = narrow()
    sent = driver.request("initialize")
    answer = delivered(sent.refuse(400, sent.error(-32602)))[0]
    assert answer["error"]["code"] == -32602


def test_two_connections_are_enough() -> None:
    driver = Legacy(generation="auto", max_calls=1, spare=1)
    sent = driver.request("initialize")
    end = sent.stale()
    assert of(sent.refuse(405) + end.free(), Get)


def test_its_probe_passes_and_what_other_clients_have_found_is_not_for_it() -> None:
    driver = narrow()
    driver.machine.shared.found = Generation.LEGACY_SSE
    driver.request("server/discover")
    trial = driver.sent("initialize")
    end = trial.stale()
    actions = trial.refuse(405) + end.free()
    assert [p.message["method"] for p in of(actions, Post)] == ["server/discover"]
    assert not of(driver.log, Get)


@pytest.mark.parametrize("status", [404, 405])
def test_where_its_server_goes_back_it_is_told_at_once(status: int) -> None:
    driver = narrow()
    super(Legacy, driver).opened()
    for connection in range(1, 9):
        driver.feed(ConnectionFreed(connection))
    call = driver.call()
    actions = call.refuse(status)
    for _ in range(12):
        for method in ("ping", "initialize"):
            if driver.is_waited_for(method):
                actions = actions + driver.sent(method).refuse(status)
    assert [told["id"] for told in delivered(actions)] == [call.host_id]
    assert not of(driver.log, Get)[1:], "the standalone stream alone"
