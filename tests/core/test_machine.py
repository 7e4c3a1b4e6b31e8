"""The machine as a whole: from `initialize` to the close, and that what is stale is ignored."""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Callable
from typing import Any

import pytest

from mcp_client_guard.core import machine
from mcp_client_guard.core.actions import EndSession, Get, Post
from mcp_client_guard.core.hooking import Hooking
from mcp_client_guard.core.inputs import CloseRequested, Drained, TimerElapsed
from mcp_client_guard.core.model import Outcome, SessionOpened
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.reconnecting import Reconnecting
from mcp_client_guard.core.report import Connected, SessionLost
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import (
    RESULT,
    SESSION,
    Driver,
    delivered,
    in_doubt,
    note,
    of,
    outcomes,
    records,
    reports,
)

# Opening.


def test_initialize_carries_no_session_and_its_answer_opens_one() -> None:
    driver = Driver()
    sent = driver.initialize()
    assert sent.order.headers == {}
    (opened,) = records(sent.actions, SessionOpened)
    assert (opened.incarnation, opened.session_id, opened.protocol_version) == (1, SESSION, "2025-11-25")
    (connected,) = reports(sent.actions, Connected)
    assert connected.server == "fake 1"
    assert SESSION not in repr(connected)
    (answer,) = delivered(sent.actions)
    assert answer["id"] == sent.host_id


@pytest.mark.parametrize(
    ("info", "name"),
    [
        ("odd", "?"),
        ({}, "?"),
        ({"name": "two"}, "two"),
        ({"name": "two", "version": ""}, "two"),
        ({"name": "two ", "version": None}, "two"),
        ({"version": "1"}, "1"),
        ({"name": 7, "version": 1.5}, "7 1.5"),
    ],
)
def test_a_server_is_named_by_what_it_says(info: Any, name: str) -> None:
    sent = Driver().initialize(result={"serverInfo": info})
    assert reports(sent.actions, Connected)[0].server == name


def test_requests_wait_until_the_server_has_taken_initialized_and_then_go_in_order() -> None:
    driver = Driver()
    driver.initialize()
    (post,) = of(driver.notify("notifications/initialized"), Post)
    assert of(driver.call("a").actions, Post) == []
    assert of(driver.call("b").actions, Post) == []
    actions = driver.peer(post.stream).accept(status=202, events=False)
    assert [p.message["params"]["name"] for p in of(actions, Post)] == ["a", "b"]
    assert of(actions, Get), "the standalone stream is opened"
    assert driver.machine.session.state is SessionState.LIVE


def test_a_ping_does_not_wait() -> None:
    driver = Driver()
    driver.initialize()
    driver.notify("notifications/initialized")
    assert of(driver.request("ping").actions, Post)


def test_a_slow_answer_to_initialized_holds_nobody_up() -> None:
    driver = Driver()
    driver.initialize()
    driver.notify("notifications/initialized")
    driver.call("a")
    actions = driver.elapse(TimerKind.CONFIRM)
    assert [p.message["params"]["name"] for p in of(actions, Post)] == ["a"]


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_an_initialized_that_fails_holds_nobody_up_either(how: str) -> None:
    driver = Driver()
    driver.initialize()
    peer = driver.peer(of(driver.notify("notifications/initialized"), Post)[0].stream)
    driver.call("a")
    actions = peer.refuse(500) if how == "refused" else peer.cut()
    assert of(actions, Post)


def test_waiting_requests_of_a_session_that_is_gone_wait_for_the_next() -> None:
    driver = Driver()
    driver.initialize()
    peer = driver.peer(of(driver.notify("notifications/initialized"), Post)[0].stream)
    driver.call("a")
    actions = peer.refuse(404)
    assert [p.message["method"] for p in of(actions, Post)] == ["initialize"]
    assert [p.message["method"] for p in of(driver.reinitialized(), Post)][1:] == ["tools/call"]


def test_a_waiting_request_that_is_cancelled_is_not_sent() -> None:
    driver = Driver()
    driver.initialize()
    driver.notify("notifications/initialized")
    call = driver.call("a")
    driver.cancel(call)
    assert not of(driver.elapse(TimerKind.CONFIRM), Post)


def test_a_second_initialized_is_waited_for_in_place_of_the_first() -> None:
    driver = Driver()
    driver.initialize()
    first = driver.peer(of(driver.notify("notifications/initialized"), Post)[0].stream)
    driver.notify("notifications/initialized")
    first.accept(status=202, events=False)
    assert driver.machine.session.state is SessionState.CONFIRMING


def test_without_a_session_id_there_is_no_standalone_stream() -> None:
    assert not of(Driver().opened(session_id=None).log, Get)


@pytest.mark.parametrize("how", ["error", "status", "cut"])
def test_an_initialize_that_fails_leaves_the_session_new(how: str) -> None:
    driver = Driver()
    sent = driver.request("initialize")
    if how == "error":
        sent.accept(events=False)
        sent.body(sent.error())
    elif how == "status":
        sent.refuse(406)
    else:
        for _ in range(3):  # it is harmless, and so it is sent again
            driver.sent("initialize").begin()
            driver.sent("initialize").cut(after=60)
    assert driver.machine.session.state is SessionState.NEW
    assert driver.opened().machine.session.state is SessionState.LIVE


def test_requests_that_wait_are_sent_when_another_initialize_fails() -> None:
    driver = Driver()
    driver.initialize()
    driver.notify("notifications/initialized")
    driver.call("a")
    sent = driver.request("initialize")
    assert [p.message["method"] for p in of(sent.refuse(500), Post)] == ["tools/call"]


def test_initialize_answered_by_a_stream_that_is_cut_resumes_in_the_session_it_offers() -> None:
    driver = Driver()
    sent = driver.request("initialize")
    sent.accept(session_id="offered")
    sent.event("p")
    sent.cut()
    assert sent.order.headers == {"mcp-session-id": "offered", "last-event-id": "p"}
    sent.accept(session_id="offered")
    assert outcomes(sent.event("e1", sent.result({"protocolVersion": "2025-11-25"}))) == [Outcome.COMPLETED]
    assert driver.machine.session.session_id == "offered"


def test_initialize_resumed_in_another_session_than_it_offered_is_sent_again() -> None:
    driver = Driver()
    sent = driver.request("initialize")
    sent.accept(session_id="offered")
    sent.event("p")
    sent.cut()
    actions = sent.accept(session_id="another")
    assert outcomes(actions) == [Outcome.RESENT]
    driver.sent("initialize").answer(RESULT, session_id="third")
    driver.notify("notifications/initialized")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    assert driver.machine.session.session_id == "third"
    assert driver.machine.session.state is SessionState.LIVE


def test_a_stream_that_offers_no_session_resumes_without_one() -> None:
    driver = Driver()
    sent = driver.request("initialize")
    sent.accept()
    sent.event("p")
    sent.cut()
    assert sent.order.headers == {"last-event-id": "p"}


# What is stale is ignored (S13).


INPUTS: list[Any] = [
    lambda peer: peer.accept(),
    lambda peer: peer.accept(session_id="another"),
    lambda peer: peer.event("e9", note("late")),
    lambda peer: peer.event("e9", peer.result()),
    lambda peer: peer.body(peer.result()),
    lambda peer: peer.refuse(404),
    lambda peer: peer.refuse(410),
    lambda peer: peer.cut(),
    lambda peer: peer.end(),
    lambda peer: peer.idle(),
    lambda peer: peer.too_large(),
]


@pytest.mark.parametrize("told", INPUTS)
def test_nothing_on_an_older_connection_touches_the_stream(told: Any) -> None:
    driver = Driver().opened()
    call = driver.call().stream_up("e1")
    old = call.stale()
    call.cut()
    assert told(old) == []


@pytest.mark.parametrize("told", INPUTS)
def test_nothing_of_an_older_session_touches_the_new_one(told: Any) -> None:
    driver = Driver().opened(standalone=True)
    call = driver.call().stream_up("e1")
    driver.opened("session-two", standalone=True)
    assert told(call) == []
    assert driver.machine.session.session_id == "session-two"


def test_a_timer_of_an_older_connection_does_nothing() -> None:
    driver = Driver().opened()
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    timer = next(t for t in driver.timers if t.kind is TimerKind.WITNESS)
    call.cut()
    assert driver.feed(TimerElapsed(timer, driver.now)) == []


# A second `initialize` on the same connection.


@pytest.mark.parametrize("late", ["taken", "another session", "refused", "lost", "never sent"])
def test_what_is_said_of_a_notification_of_the_old_session_touches_nothing_in_the_new_one(late: str) -> None:
    """S13: it is said of a session that is no more."""
    driver = Driver().opened()
    old = driver.peer(of(driver.notify("notifications/x"), Post)[0].stream)
    driver.opened("session-two")
    tell: dict[str, Callable[[], list[Any]]] = {
        "taken": lambda: old.accept(status=202, events=False, session_id=SESSION),
        "another session": lambda: old.accept(status=202, events=False, session_id="session-three"),
        "refused": lambda: old.refuse(404),
        "lost": lambda: old.cut(),
        "never sent": lambda: old.not_written(),
    }
    actions = tell[late]()
    assert not delivered(actions)
    assert not reports(actions, SessionLost)
    assert driver.machine.session.state is SessionState.LIVE
    assert driver.call().is_open


def test_calls_of_the_old_session_are_in_doubt_when_a_new_one_begins() -> None:
    driver = Driver().opened(standalone=True)
    call = driver.call().stream_up("e1")
    again = driver.initialize("session-two")
    assert in_doubt(again.actions)
    assert not call.is_open
    assert not driver.standalone.is_open
    assert [m["id"] for m in delivered(again.actions)] == [call.host_id, again.host_id]


def test_a_ping_sent_before_the_first_session_is_answered_in_it() -> None:
    driver = Driver()
    ping = driver.request("ping")
    driver.initialize()
    ping.accept(events=False)
    assert outcomes(ping.body(ping.result({}))) == [Outcome.COMPLETED]


def test_a_call_in_doubt_of_the_old_session_stays_so_in_the_new_one() -> None:
    driver = Driver().opened()
    call = driver.call()
    call.cut()
    driver.opened("session-two")
    other = driver.call("other")
    other.accept()
    assert outcomes(other.event("e1", call.result())) == []


# Closing.


@pytest.mark.parametrize("state", ["new", "initializing", "opened", "confirming", "live", "lost", "sessionless"])
def test_closing_ends_a_session_that_may_still_be_there(state: str) -> None:
    driver = Driver()
    if state == "initializing":
        driver.request("initialize")
    if state in ("opened", "confirming"):
        driver.initialize()
    if state == "confirming":
        driver.notify("notifications/initialized")
    if state in ("live", "lost"):
        driver.opened(standalone=True)
    if state == "lost":
        driver.call().refuse(404)
    if state == "sessionless":
        driver.opened(session_id=None)
    actions = driver.close()
    assert bool(of(actions, EndSession)) is (state in ("opened", "confirming", "live"))
    assert not driver.open
    assert not [t for t in driver.timers if t.kind not in (TimerKind.CONFIRM, TimerKind.BUDGET)]


def test_a_session_that_shall_outlive_the_process_is_not_ended() -> None:
    driver = Driver()
    driver.machine.ends_session = False
    driver.opened()
    assert not of(driver.close(), EndSession)


@pytest.mark.parametrize("scene", ["open", "lost", "on trial", "posting again", "queued"])
def test_nothing_follows_a_close_whatever_the_state_it_met(scene: str) -> None:
    driver = Driver().opened(standalone=True)
    if scene == "queued":
        driver.notify("notifications/initialized")
    call = driver.call()
    if scene == "posting again":
        call.not_written()
    elif scene != "queued":
        call.stream_up("e1", "e2")
        if scene != "open":
            call.cut()
        if scene == "on trial":
            call.accept()
    driver.close()
    assert not driver.open
    for told in INPUTS if scene != "queued" else []:
        assert told(call) == []
    assert driver.submit(note("late")) == []
    assert driver.feed(CloseRequested()) == []
    assert driver.feed(Drained(100)) == []
    for timer in list(driver.timers):
        assert driver.feed(TimerElapsed(timer, driver.now)) == []


# Cancelling, in each state of the stream.


@pytest.mark.parametrize("scene", ["open", "lost", "on trial", "proven", "posting again", "unanswered"])
def test_a_cancel_settles_the_call_in_whatever_state_its_stream_is(scene: str) -> None:
    driver = Driver().opened()
    call = driver.call()
    if scene == "posting again":
        call.not_written()
    elif scene != "unanswered":
        call.stream_up("e1", "e2")
        if scene != "open":
            call.cut()
        if scene in ("on trial", "proven"):
            call.accept()
        if scene == "proven":
            call.event("e2", call.progress(2))
    actions = driver.cancel(call)
    assert outcomes(actions) == [Outcome.CANCELLED]
    assert delivered(actions) == []
    assert not of(call.cut(), Get), "it is not resumed"
    assert outcomes(driver.close()) == []


def test_a_policy_reaches_every_part() -> None:
    driver = Driver(GuardPolicy(in_doubt_as="error", trail_size=2)).opened()
    call = driver.call().stream_up("e1", "e2", "e3")
    call.cut()
    assert call.asked == "e2"
    call.refuse(410)
    actions = call.refuse(410)
    assert "error" in delivered(actions)[0]


def test_a_session_lost_twice_is_reported_once() -> None:
    driver = Driver().opened()
    first, second = driver.call(), driver.call()
    assert reports(first.refuse(404), SessionLost)
    assert not reports(second.refuse(404), SessionLost)


# The two towers.


def test_the_layers_are_drawn_as_they_stand() -> None:
    drawn = re.findall(r" {4}([A-Z]\w+)", machine.__doc__ or "")
    for top in (Hooking, Reconnecting):
        layers = [layer.__name__ for layer in top.__mro__ if layer not in (ABC, object)]
        assert [name for name in drawn if name in layers] == layers
