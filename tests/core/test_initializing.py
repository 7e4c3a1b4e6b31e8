"""A host may initialize more than once on a connection: its newest `initialize` is what the session hangs on."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Post
from mcp_client_guard.core.answers import CODE_IN_DOUBT
from mcp_client_guard.core.report import NotificationLost, SessionLost
from mcp_client_guard.core.state import SessionState
from tests.core.driver import RESULT, Driver, Peer, delivered, of, reports
from tests.core.legacy import LEGACY_RESULT, Legacy


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


def initializes(driver: Driver) -> Peer:
    return driver.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})


def posted(actions: list[Action], method: str = "initialize") -> list[Post]:
    return [post for post in of(actions, Post) if post.message.get("method") == method]


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
