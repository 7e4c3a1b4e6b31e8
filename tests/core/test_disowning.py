"""Answers that name another session than ours: that is lost; but what was said counts first."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.actions import Action, Post
from mcp_client_guard.core.inputs import TooLarge
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.report import CallSettled, Discontinuity, SessionLost
from tests.core.driver import Driver, Peer, delivered, of, outcomes, reports
from tests.core.legacy import Legacy

OTHER = "session-two"


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


def disowned(peer: Peer, drew: int, *, by_event: bool = False) -> list[Action]:
    """Refused with this status, or with 200 and this code, under another session's name."""
    if drew > 0:
        return peer.refuse(drew, session_id=OTHER)
    actions = peer.accept(events=by_event, session_id=OTHER)
    if by_event:
        return actions + peer.event(None, peer.error(drew)) + peer.end()
    return actions + peer.body(peer.error(drew))


def posted(actions: list[Action]) -> list[str]:
    return [p.message["method"] for p in of(actions, Post)]


def settled(actions: list[Action]) -> list[Outcome]:
    return [r.outcome for r in reports(actions, CallSettled) if r.method == "tools/call"]


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("drew", [400, 401, 409, 422, -32600])
def test_a_refusal_that_names_another_session_is_of_a_dead_one_if_the_ping_draws_the_same(
    driver: Driver, drew: int, by_event: bool
) -> None:
    first, second, late = driver.call("a"), driver.call("b"), driver.call("c")
    assert posted(disowned(first, drew, by_event=by_event) + disowned(second, drew, by_event=by_event)) == ["ping"]
    disowned(driver.sent("ping"), drew, by_event=by_event)
    disowned(late, drew, by_event=by_event)
    actions = driver.reinitialized()
    assert posted(actions).count("tools/call") == 3
    assert not {first.host_id, second.host_id, late.host_id} & {m.get("id") for m in delivered(driver.log)}
    assert len(reports(driver.log, SessionLost)) == 1


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("drew", [500, -32000, -32001])
def test_what_a_gateway_says_of_a_running_call_too_leaves_it_in_doubt(
    driver: Driver, drew: int, by_event: bool
) -> None:
    call = driver.call()
    disowned(call, drew, by_event=by_event)
    disowned(driver.sent("ping"), drew, by_event=by_event)
    driver.reinitialized()
    assert settled(driver.log) == [Outcome.IN_DOUBT]
    assert posted(driver.log).count("tools/call") == 1


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("drew", [400, 409, 500, -32600, -32000])
@pytest.mark.parametrize("ping", ["answered", "cut"])
def test_where_the_ping_does_not_draw_it_nothing_is_sent_again_and_the_session_is_lost_for_its_name(
    driver: Driver, drew: int, ping: str, by_event: bool
) -> None:
    disowned(driver.call(), drew, by_event=by_event)
    assert not reports(driver.log, SessionLost)
    actions = driver.sent("ping").answer({}) if ping == "answered" else driver.sent("ping").cut()
    assert settled(actions) == [Outcome.IN_DOUBT if drew in (500, -32000) else Outcome.COMPLETED]
    assert len(reports(actions, SessionLost)) == 1
    driver.reinitialized()
    assert posted(driver.log).count("tools/call") == 1


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("drew", [400, 409, 500, -32600, -32000])
def test_where_the_ping_is_answered_under_another_name_too_nothing_is_sent_again_for_it(
    driver: Driver, drew: int, by_event: bool
) -> None:
    """A gateway that writes a name of its own on every answer takes every call."""
    disowned(driver.call(), drew, by_event=by_event)
    actions = driver.sent("ping").answer({}, session_id=OTHER)
    assert settled(actions) == [Outcome.IN_DOUBT if drew in (500, -32000) else Outcome.COMPLETED]
    assert len(reports(actions, SessionLost)) == 1
    driver.reinitialized()
    assert posted(driver.log).count("tools/call") == 1


def test_what_only_a_server_with_a_session_says_under_another_name_is_an_answer_and_ours_is_lost(
    driver: Driver,
) -> None:
    call = driver.call()
    actions = call.refuse(400, call.error(-32603), session_id=OTHER)
    assert settled(actions) == [Outcome.COMPLETED]
    assert len(reports(actions, SessionLost)) == len(reports(actions, Discontinuity)) == 1


@pytest.mark.parametrize("status", [404, 413])
def test_a_refusal_that_has_nobody_asked_loses_the_session_all_the_same(driver: Driver, status: int) -> None:
    actions = disowned(driver.call(), status)
    assert len(reports(actions, SessionLost)) == 1
    assert posted(actions) == ["initialize"]


def test_whatever_else_comes_first_under_another_name_loses_the_session(driver: Driver) -> None:
    call = driver.call()
    assert not reports(call.accept(session_id=OTHER), SessionLost)
    assert len(reports(call.event("e1"), SessionLost)) == 1
    assert settled(call.event("e2", call.result())) == [Outcome.COMPLETED]
    assert len(reports(driver.log, SessionLost)) == len(reports(driver.log, Discontinuity)) == 1


def test_a_result_under_another_name_counts_and_the_session_is_lost(driver: Driver) -> None:
    actions = driver.call().answer(session_id=OTHER)
    assert settled(actions) == [Outcome.COMPLETED]
    assert len(reports(actions, SessionLost)) == len(reports(actions, Discontinuity)) == 1


@pytest.mark.parametrize("how", ["cut", "too large"])
def test_a_body_that_does_not_come_whole_under_another_name_loses_the_session_too(
    driver: Driver, how: str
) -> None:
    call = driver.call()
    call.accept(events=False, session_id=OTHER)
    actions = call.cut() if how == "cut" else driver.feed(TooLarge(call.stream, call.connection))
    assert len(reports(driver.log, SessionLost)) == 1
    assert outcomes(actions) == [Outcome.IN_DOUBT]


def test_a_legacy_post_that_another_session_takes_loses_ours_with_its_status() -> None:
    """What follows has no content."""
    legacy = Legacy().opened(session_id="s-77")
    actions = legacy.call().accept(status=202, events=False, session_id=OTHER)
    assert len(reports(actions, SessionLost)) == 1
