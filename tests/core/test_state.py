"""The two transition tables: each row of them is taken by a scene, and no other transition exists.

A scene is a way into a state, and one of the things that a host or a server may do in any state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest

from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.state import (
    SESSION,
    STREAM,
    SessionState,
    SessionStep,
    StreamState,
    StreamStep,
    step,
)
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Driver, Peer, note
from tests.core.scenes import Process

S, T, X, Y = SessionState, SessionStep, StreamState, StreamStep
Rows = set[tuple[Any, Any]]
OVERTAKEN = {(X.DONE, Y.FINISHED)}
"""Taken by no scene that we know; but to finish a stream is the end of many ways, and may come twice."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """The rows that a scene has taken."""
    rows: Rows = set()

    def recorded(table: Any, state: Any, by: Any) -> Any:
        rows.add((state, by))
        return step(table, state, by)

    for user in ("session", "stream"):
        monkeypatch.setattr(f"mcp_client_guard.core.{user}.step", recorded)
    return rows


# Ways into the states of a session. What was asked last may be answered under another session's name.


def session_in(state: SessionState) -> Driver:
    """The life of a session, as far as this state."""
    driver = Driver()
    if state is S.NEW:
        return driver
    driver.initialize()
    if state is S.INITIALIZING:
        driver.call()  # waits for no confirmation yet
        return driver
    driver.notify("notifications/initialized")
    if state is S.CONFIRMING:
        return driver
    driver.sent("notifications/initialized").accept(status=202, events=False)
    driver.listed({"name": "charge"})
    call = driver.call()
    if state is S.LIVE:
        return driver
    call.refuse(404)
    if state is S.LOST:
        driver.sent("initialize").refuse(401)
    elif state is S.RESTORING:
        driver.reopened()
    return driver


def failed_after_another() -> Driver:
    """Requests go out in the session before it."""
    driver = session_in(S.LIVE)
    driver.request("initialize")
    driver.elapse(TimerKind.DEADLINE, max(driver.orders))
    driver.call()
    return driver


def opened_beside_a_suspect() -> Driver:
    driver = Driver().opened()
    driver.call().refuse(401)
    driver.sent("ping").refuse(401)
    return driver


def offered() -> Driver:
    first = Process().connect()
    first.opened()
    second = first.process.killed().connect()
    second.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    return second


WAYS: list[tuple[SessionState, Callable[[], Driver]]] = [
    *((state, partial(session_in, state)) for state in S if state not in (S.PROVING, S.CLOSED)),
    (S.NEW, failed_after_another),
    (S.REINITIALIZING, opened_beside_a_suspect),
    (S.PROVING, offered),
]


def another_answers(driver: Driver) -> None:
    if driver.orders:
        peer = driver.peer(max(driver.orders))
        peer.accept(session_id="another")
        peer.event(None)


def all_is_well(driver: Driver) -> None:
    """Whatever the guard asks in its own name is answered."""
    for method in ("initialize", "notifications/initialized", "ping", "tools/list"):
        if driver.is_waited_for(method):
            driver.sent(method).answer({"protocolVersion": "2025-11-25"})


def nothing_is_granted(driver: Driver) -> None:
    for method in ("initialize", "ping"):
        if driver.is_waited_for(method):
            driver.sent(method).refuse(401)


THENS: list[Callable[[Driver], Any]] = [
    lambda driver: driver.request("initialize", {"another": True}),
    lambda driver: driver.notify("notifications/initialized"),
    lambda driver: driver.call("other"),
    another_answers,
    all_is_well,
    nothing_is_granted,
    Driver.close,
]


def test_each_row_of_the_session_is_taken_by_a_scene_and_no_scene_wants_another(taken: Rows) -> None:
    for (state, way), then in product(WAYS, THENS):
        driver = way()
        assert driver.machine.session.state is state
        then(driver)
    assert {row for row in taken if row[0] in S} == set(SESSION)


# The same of a stream.


def opened() -> Driver:
    """On a server that promises event IDs without holes."""
    return Driver(GuardPolicy(id_scheme="contiguous")).opened(standalone=True)


def state_of(call: Peer) -> StreamState:
    return call.driver.machine._streams._streams[call.stream].state


def on_call(state: StreamState) -> Peer:
    call = opened().call()
    call.accept()
    for number in (1, 2):
        call.event(f"e{number}", call.progress(number))
    if state is not X.OPEN:
        call.cut()
    if state is X.ON_TRIAL:
        call.accept()
    return call


def test_each_row_of_a_stream_is_taken_by_a_scene_and_no_scene_wants_another(taken: Rows) -> None:
    either: list[Callable[[Peer], Any]] = [Peer.cut, lambda call: call.driver.close()]
    unanswered = [*either, Peer.accept, lambda call: [call.refuse(410), call.refuse(410)]]
    answered = [
        *either,
        lambda call: call.event("e2", call.progress(2)),
        lambda call: call.event("e2", note("another")),
        lambda call: call.event("e9", note("after a hole")),
    ]
    for state in (X.OPEN, X.LOST, X.ON_TRIAL):
        for then in unanswered if state is X.LOST else answered:
            call = on_call(state)
            assert state_of(call) is state
            then(call)
    unwritten = opened().call()
    unwritten.not_written()
    unwritten.accept()
    assert state_of(unwritten) is X.OPEN
    standalone = opened().standalone
    standalone.event("e1", note("one"))
    standalone.event("e9", note("after a hole"))
    assert {row for row in taken if row[0] in X} == set(STREAM) - OVERTAKEN


# What is no row.


def test_a_step_that_is_no_row_is_a_fault_of_ours() -> None:
    for table, states, steps in ((SESSION, S, T), (STREAM, X, Y)):
        for row in {*product(states, steps)} - set(table):
            with pytest.raises(LookupError, match="no transition"):
                step(table, *row)


def test_a_step_leads_to_one_state_from_wherever_it_is_taken() -> None:
    for table, steps in ((SESSION, T), (STREAM, Y)):
        assert [len({to for (_, by), to in table.items() if by is each}) for each in steps] == [1] * len(steps)


def test_a_stream_that_was_resumed_is_open_only_by_judgement() -> None:
    """No way leads from LOST by a resume to OPEN but over ON_TRIAL."""
    assert {by for (state, by), to in STREAM.items() if to is X.OPEN and state is X.ON_TRIAL} == {Y.JUDGED}
