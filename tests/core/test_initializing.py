"""A host may initialize more than once on a connection: its newest `initialize` is what the session hangs on."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Post, SetTimer
from mcp_client_guard.core.answers import CODE_IN_DOUBT
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import NotificationLost, SessionLost
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import Timer, TimerKind
from tests.core.driver import RESULT, Driver, Peer, delivered, of, reports
from tests.core.legacy import LEGACY_RESULT, Legacy


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


def initializes(driver: Driver) -> Peer:
    return driver.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})


def posted(actions: list[Action], method: str = "initialize") -> list[Post]:
    return [post for post in of(actions, Post) if post.message.get("method") == method]


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
@pytest.mark.parametrize(
    ("policy", "seconds", "bound"),
    [
        ({}, 300.0, "open_timeout"),
        ({"open_timeout": 5.0}, 5.0, "open_timeout"),
        ({"open_timeout": 5.0, "call_deadline": {"a": 1.0}}, 5.0, "open_timeout"),
        ({"call_deadline": 60.0}, 60.0, "call_deadline"),
    ],
)
def test_what_a_host_begins_with_has_a_deadline_of_its_own(
    method: str, policy: dict[str, Any], seconds: float, bound: str
) -> None:
    """A server that accepts and stays silent cost an hour."""
    driver = Driver(GuardPolicy(**policy))
    first = driver.request(method, {"protocolVersion": "2025-11-25", "capabilities": {}})
    timers = [t for t in of(driver.log, SetTimer) if t.timer == Timer(TimerKind.DEADLINE, first.stream)]
    assert [timer.seconds for timer in timers] == [seconds]
    (answer,) = delivered(driver.elapse(TimerKind.DEADLINE, first.stream))
    assert f"The request '{method}' had no answer: no answer within {bound}." in answer["error"]["message"]


def test_a_session_that_the_guard_opens_itself_has_no_more_time_by_it() -> None:
    driver = Driver(GuardPolicy(open_timeout=5000.0, call_deadline=7000.0)).opened()
    assert driver.machine.policy.deadline_of("charge") == 7000.0
    call = driver.call()
    call.refuse(404)
    again = driver.sent("initialize")
    timers = [t for t in of(driver.log, SetTimer) if t.timer == Timer(TimerKind.DEADLINE, again.stream)]
    assert [timer.seconds for timer in timers] == [30.0]


def state(driver: Driver) -> SessionState:
    return driver.machine.session.state


def error_for(peer: Peer, actions: list[Action]) -> Any:
    (answer,) = [m for m in delivered(actions) if m["id"] == peer.host_id]
    return answer["error"]["code"]


def goes_live(driver: Driver, session_id: str) -> None:
    """The host's `initialized` is taken, and what it asks next goes to this session."""
    actions = driver.notify("notifications/initialized")
    assert not reports(actions, NotificationLost)
    driver.sent("notifications/initialized").accept(status=202, events=False)
    assert state(driver) is SessionState.LIVE
    assert driver.call().order.headers["mcp-session-id"] == session_id


@pytest.mark.parametrize("how", ["cancelled, answered", "answered", "refused", "error"])
def test_what_becomes_of_an_earlier_one_says_nothing_of_the_one_in_flight(driver: Driver, how: str) -> None:
    driver.notify("notifications/roots/list_changed")
    old = driver.sent("notifications/roots/list_changed")
    first = initializes(driver)
    if "cancelled" in how:
        driver.cancel(first)
    second = initializes(driver)
    if "answered" in how:
        first.answer(RESULT, session_id="late")
    elif how == "refused":
        first.refuse(400)
    elif how == "error":
        first.answer_error()
    assert state(driver) is SessionState.INITIALIZING
    actions = old.refuse(404)
    assert not reports(actions, SessionLost), "a session is not lost while the host opens another"
    assert not posted(actions)
    assert delivered(second.answer(RESULT, session_id="mine"))[-1]["id"] == second.host_id
    goes_live(driver, "mine")
    assert len(posted(driver.log)) == 3


def test_event_ids_of_the_one_are_not_those_of_the_other(driver: Driver) -> None:
    """Servers count in each session from the start."""
    first, second = initializes(driver), initializes(driver)
    question = {"jsonrpc": "2.0", "id": 7, "method": "roots/list"}
    second.accept(session_id="mine")
    second.event("1")
    second.event("2", question)
    first.accept(session_id="late")
    first.event("3", first.result(RESULT))
    assert delivered(second.event("3", second.result(RESULT)))[-1]["id"] == second.host_id
    goes_live(driver, "mine")


def test_a_session_that_the_guard_tries_does_not_count() -> None:
    driver = Driver(generation="auto")
    probe = driver.request("server/discover", {"_meta": {}}, mcp_protocol_version="2026-07-28")
    driver.cancel(probe)
    initializes(driver).refuse(500)
    assert state(driver) is SessionState.NEW


def test_in_a_legacy_session_they_do_not_chase_each_other() -> None:
    """A carrier is one session: another `initialize` closes it."""
    driver = Legacy().opened()
    first = initializes(driver)
    driver.serves()
    assert driver.sent("initialize").is_open
    second = initializes(driver)
    assert error_for(first, second.actions) == CODE_IN_DOUBT
    driver.serves()
    actions = driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    assert [m["id"] for m in delivered(actions)] == [second.host_id]
    assert len(posted(driver.log)) == 3


# A server may ping before it has answered (2025-11-25 lifecycle, Initialization).


def pongs(actions: list[Action]) -> list[Post]:
    return [post for post in of(actions, Post) if post.message == {"jsonrpc": "2.0", "id": "s1", "result": {}}]


def pinged(opening: Peer) -> Post:
    """The server pings on the stream of an `initialize`, and is answered in the host's place."""
    opening.accept(session_id="offered")
    actions = opening.driver.ask(opening, "s1", "ping")
    assert delivered(actions) == []
    (pong,) = pongs(actions)
    return pong


@pytest.mark.parametrize("who", ["host", "host again", "guard", "trial"])
def test_a_ping_before_the_answer_is_answered_in_the_session_that_is_offered(who: str) -> None:
    driver = Driver(generation="auto") if who == "trial" else Driver()
    if who in ("host again", "guard"):
        driver.opened()
    if who == "trial":
        driver.request("server/discover", {"_meta": {}}, mcp_protocol_version="2026-07-28")
    elif who == "guard":
        driver.call().refuse(404)
    else:
        initializes(driver)
    assert pinged(driver.sent("initialize")).headers == {"mcp-session-id": "offered"}


def test_so_it_is_where_the_stream_was_cut_before_the_answer(driver: Driver) -> None:
    driver.call().refuse(404)
    opening = driver.sent("initialize")
    opening.accept(session_id="offered")
    opening.event("p")
    opening.cut()
    opening.accept(session_id="offered")
    (pong,) = pongs(opening.event("e1", {"jsonrpc": "2.0", "id": "s1", "method": "ping"}))
    assert pong.headers == {"mcp-session-id": "offered"}


@pytest.mark.parametrize("status", [202, 404])
def test_what_becomes_of_that_answer_says_nothing_of_the_session_that_is_only_suspected(
    driver: Driver, status: int
) -> None:
    driver.call().refuse(400)
    driver.sent("ping").refuse(400)
    pong = driver.peer(pinged(driver.sent("initialize")).stream)
    if status == 404:
        actions = pong.refuse(404, session_id="offered")
    else:
        actions = pong.accept(status=202, events=False, session_id="offered")
    assert not reports(actions, SessionLost)
    assert driver.sent("initialize").is_open


@pytest.mark.parametrize("status", [202, 404])
@pytest.mark.parametrize("overtaken", [True, False])
def test_nor_once_that_session_is_open_or_another(overtaken: bool, status: int) -> None:
    driver = Driver()
    opening = initializes(driver)
    pong = driver.peer(pinged(opening).stream)
    if overtaken:
        opening = initializes(driver)
        opening.accept(session_id="another")
    opening.event("e1", opening.result(RESULT))
    driver.peer(of(driver.notify("notifications/initialized"), Post)[0].stream).accept(status=202, events=False)
    if status == 404:
        actions = pong.refuse(404, session_id="offered")
    else:
        actions = pong.accept(status=202, events=False, session_id="offered")
    assert not reports(actions, SessionLost)


def test_nothing_else_may_be_asked_before_the_answer(driver: Driver) -> None:
    opening = initializes(driver)
    opening.accept(session_id="offered")
    assert [m["method"] for m in delivered(driver.ask(opening, "s1", "roots/list"))] == ["roots/list"]


def test_a_ping_in_a_session_is_the_host_s(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    assert [m["method"] for m in delivered(driver.ask(call, "s1", "ping"))] == ["ping"]


@pytest.mark.parametrize("again", [False, True])
def test_in_a_legacy_session_it_is_answered_beside_the_carrier(again: bool) -> None:
    driver = Legacy()
    if again:
        driver.opened().carrier.cut()
    else:
        initializes(driver)
    driver.serves()
    driver.takes(driver.sent("initialize"))
    ping = {"jsonrpc": "2.0", "id": "s1", "method": "ping"}
    (pong,) = pongs(driver.carries(ping))
    assert pong.target == driver.sent("initialize").order.target
    driver.carries(driver.sent("initialize").result(LEGACY_RESULT))
    assert delivered(driver.carries(ping)), "once the session is open it is the host's"
