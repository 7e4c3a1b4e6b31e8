"""What the host's client cannot ask for (a login that fails) is not asked for again by itself."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, AskUpgrade, Get, OpenSocket, Post
from mcp_client_guard.core.inputs import ReconnectRequested, UpgradeAnswered
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.report import Discontinuity, RefreshSuggested, StandaloneUnavailable, UpgradeRefused
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Driver, Peer, delivered, evidence, gets, in_doubt, note, of, outcomes, reports
from tests.core.legacy import Legacy
from tests.core.scenes import Process, prove

TOOLS = {"tools": [{"name": "look", "inputSchema": {}, "annotations": {"readOnlyHint": True}}]}
VERSION = "2026-07-28"


@pytest.fixture
def driver() -> Driver:
    return Driver().opened(standalone=True)


@pytest.fixture
def stream(driver: Driver) -> Peer:
    return driver.standalone


def no_login(peer: Peer, **rest: Any) -> list[Action]:
    return peer.cut("LoginFailed", lasts=True, **{"written": False, **rest})


def why(actions: list[Action]) -> list[str]:
    return [told.reason for told in reports(actions, StandaloneUnavailable)]


# The stream of a call.


@pytest.mark.parametrize("written", [True, False])
def test_a_call_whose_stream_cannot_be_asked_for_is_in_doubt_at_once(driver: Driver, written: bool) -> None:
    call = driver.call().stream_up("e1", "e2")
    call.cut()
    actions = no_login(call, written=written, refused=401)
    assert not of(actions, Get)
    assert in_doubt(actions)
    (answer,) = delivered(actions)
    assert (
        "its stream could not be opened again (HTTP 401, then LoginFailed)"
        in answer["result"]["content"][0]["text"]
    )


def test_what_ends_a_stream_that_was_opened_is_no_login(driver: Driver) -> None:
    """A transport of the caller's may have errors of its own for a cut."""
    call = driver.call().stream_up("e1", "e2")
    call.cut()
    call.accept()
    assert of(no_login(call, written=True), Get)


def test_an_answer_that_is_held_for_a_last_look_is_delivered(driver: Driver) -> None:
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    call.event("e2", call.progress(2))
    call.event("q")
    call.event("e3", call.result())
    assert outcomes(no_login(call)) == [Outcome.COMPLETED]


@pytest.mark.parametrize("misses", [True, False])
def test_so_does_one_whose_answer_came_elsewhere(driver: Driver, stream: Peer, misses: bool) -> None:
    call = driver.call().stream_up("e1", "e2")
    call.cut()
    call.begin()
    stream.event(None, call.result() if misses else call.error(-32602))
    actions = no_login(call)
    assert not of(actions, Get)
    assert not call.is_open


# The standalone stream.


@pytest.mark.parametrize("opened", [True, False])
def test_the_standalone_stream_is_told_once_and_not_asked_for_again(opened: bool) -> None:
    driver = Driver()
    driver.initialize()
    driver.notify("notifications/initialized")
    driver.elapse(TimerKind.CONFIRM)
    if opened:
        driver.standalone.accept()
        driver.standalone.cut()
    actions = no_login(driver.standalone)
    assert why(actions) == ["LoginFailed"]
    assert not of(actions, Get)
    assert not [timer for timer in driver.timers if timer.stream == 0], "and nothing will"


def test_a_good_answer_to_what_was_sent_since_opens_it_where_it_was(driver: Driver, stream: Peer) -> None:
    stream.event("s1", note("a"))
    stream.event("s2", note("b"))
    early = driver.call()
    stream.cut()
    no_login(stream)
    assert not of(early.accept(events=False), Get), "it had its login before"
    late = driver.call("other")
    assert not of(late.refuse(403), Get)
    third = driver.call("third")
    assert gets(third.accept(events=False)) == [(0, "s1")]
    stream.accept()
    actions = stream.event("s2", note("b"))
    assert "PROVEN" in str(evidence(actions)[0])


def test_without_ids_the_host_is_told_to_read_again(driver: Driver, stream: Peer) -> None:
    stream.cut()
    no_login(stream)
    assert gets(driver.call().accept()) == [(0, None)]
    assert reports(stream.accept(), RefreshSuggested)


def test_where_that_leads_to_the_same_again_it_is_no_sign_any_more(driver: Driver, stream: Peer) -> None:
    """A server may want a login for the GET alone: each call would ask for one."""
    stream.cut()
    no_login(stream)
    assert of(driver.call().accept(), Get)
    actions = no_login(stream)
    assert why(actions) == [], "it was told"
    assert not of(driver.call("other").accept(), Get)


def test_once_it_was_open_the_next_failure_is_another(driver: Driver, stream: Peer) -> None:
    stream.cut()
    no_login(stream)
    driver.call().accept()
    stream.accept()
    stream.cut()
    assert why(no_login(stream)) == ["LoginFailed"]
    assert of(driver.call("other").accept(), Get)


def test_the_user_s_word_opens_it_however_often(driver: Driver, stream: Peer) -> None:
    stream.cut()
    no_login(stream)
    driver.call().accept()
    no_login(stream)
    for _ in range(2):
        driver.now += 10
        assert gets(driver.feed(ReconnectRequested(driver.now)))[0] == (0, None)
        assert why(no_login(stream)) == ["LoginFailed"]


def test_nor_does_a_new_session_remember_it(driver: Driver, stream: Peer) -> None:
    stream.cut()
    no_login(stream)
    driver.call().refuse(404)
    driver.reinitialized()
    assert driver.standalone.is_open
    driver.call().accept()
    assert driver.standalone.is_open


def test_what_its_return_might_have_brought_is_told_as_lost(driver: Driver, stream: Peer) -> None:
    stream.event("s1", note("a"))
    stream.event("s2", note("b"))
    call = driver.call().stream_up("e1", "e2")
    stream.cut()
    call.resumed()
    call.event("e2", call.progress(2))
    call.event("q")
    call.event("e4", call.result())
    call.accept()
    call.event("s3", note("c"))
    assert not reports(call.cut(), Discontinuity), "it may come yet"
    assert reports(no_login(stream), Discontinuity)


def test_nor_is_it_waited_for_from_then_on(driver: Driver, stream: Peer) -> None:
    stream.event("s1", note("a"))
    stream.event("s2", note("b"))
    call = driver.call().stream_up("e1", "e2")
    stream.cut()
    no_login(stream)
    call.resumed()
    call.event("e2", call.progress(2))
    call.event("q")
    call.event("e4", call.result())
    call.accept()
    stream.cut()  # opened again meanwhile, by the sign
    no_login(stream)
    call.event("s3", note("c"))
    assert reports(call.cut(), Discontinuity)


# What else a login is asked for.


def test_a_carrier_that_cannot_be_asked_for_fails_who_awaits_it_at_once() -> None:
    driver = Legacy()
    driver.request("initialize", {"protocolVersion": "2025-11-25"})
    actions = no_login(driver.carrier)
    assert not of(actions, Get)
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]


def test_one_that_was_lost_is_not_asked_for_until_the_host_wants_it() -> None:
    driver = Legacy().opened()
    driver.carrier.cut()
    assert not of(no_login(driver.carrier), Get), "no other session is tried"
    assert TimerKind.REOPEN not in [timer.kind for timer in driver.timers], "nor later"
    driver.call()
    assert driver.carrier.is_open


@pytest.mark.parametrize("written", [True, False])
def test_no_session_is_opened_that_cannot_be_asked_for(driver: Driver, written: bool) -> None:
    driver.call().refuse(404)
    actions = no_login(driver.sent("initialize"), written=written)
    assert not of(actions, Post)
    assert Outcome.NOT_EXECUTED in outcomes(actions), "who waits for it is told"
    driver.call("other")
    assert driver.is_waited_for("initialize"), "the next request tries again"


@pytest.mark.parametrize("written", [True, False])
def test_a_subscription_that_cannot_be_asked_for_is_over(written: bool) -> None:
    driver = Driver()
    params = {"notifications": {"toolsListChanged": True}}
    peer = driver.request("subscriptions/listen", params, mcp_protocol_version=VERSION)
    peer.accept()
    meta = {"io.modelcontextprotocol/subscriptionId": peer.stream}
    acknowledged = {"notifications": {"toolsListChanged": True}, "_meta": meta}
    peer.event(
        None, {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": acknowledged}
    )
    (again,) = of(peer.cut(), Post)
    actions = no_login(driver.peer(again.stream), written=written)
    assert not of(actions, Post)
    (answer,) = delivered(actions)
    assert answer["id"] == peer.host_id
    assert "error" in answer


@pytest.mark.parametrize("refused", [None, 401])
def test_a_session_that_cannot_be_asked_for_after_a_restart_stays_on_record(refused: int | None) -> None:
    one = Process().connect()
    one.opened()
    two = one.process.killed().connect()
    two.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    actions = no_login(two.sent("ping"), refused=refused)
    assert not of(actions, Post)
    assert "LoginFailed" in delivered(actions)[0]["error"]["message"]
    two.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    assert two.is_waited_for("ping")


def test_a_task_that_cannot_be_asked_for_leaves_its_call_in_doubt_for_the_next_process_to_ask() -> None:
    one = Process().connect()
    one.opened()
    one.call().answer({"task": {"taskId": "t1", "status": "working"}})
    two = one.process.killed().connect()
    prove(two)
    actions = no_login(two.sent("tasks/get"))
    assert in_doubt(actions)
    assert TimerKind.PACE not in [timer.kind for timer in two.timers]
    three = two.process.killed().connect()
    prove(three)
    three.sent("tasks/get").answer({"status": "completed"})
    three.sent("tasks/result").answer({"content": []})
    assert Outcome.RECOVERED in outcomes(three.log)


def test_a_socket_is_not_asked_for_again() -> None:
    driver = Driver(upgrades=True).opened(standalone=True)
    driver.standalone.event("e1", note("1"))
    (asked,) = of(driver.standalone.event("e2", note("2")), AskUpgrade)
    actions = driver.feed(UpgradeAnswered(asked.question, None, why="LoginFailed", lasts=True))
    assert reports(actions, UpgradeRefused) == [UpgradeRefused("LoginFailed", final=True)]
    assert not driver.is_set(TimerKind.UPGRADE, 0)


def test_one_that_cannot_be_opened_leaves_it_to_the_event_stream() -> None:
    driver = Driver(upgrades=True).opened(standalone=True)
    driver.standalone.event("e1", note("1"))
    (asked,) = of(driver.standalone.event("e2", note("2")), AskUpgrade)
    assert of(driver.feed(UpgradeAnswered(asked.question, 200, {"ticket": "t"})), OpenSocket)
    assert gets(no_login(driver.standalone)) == [(0, "e1")]
