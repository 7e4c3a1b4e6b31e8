"""A server that is killed under load, a seeded sample. All of it: `python -m tests.real.restarts --rounds 20`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mcp_client_guard import CallInDoubt
from mcp_client_guard.core.doubt import IN_DOUBT_KEY

from .hosts import HOSTS
from .restarts import Call, Plan, Verdict, faults_of, play

AT_ONCE = 20


def judged(plan: Plan) -> Verdict:
    verdict = play(plan)
    print(verdict)
    assert not verdict.faults, verdict
    assert len(verdict.initializes) == plan.rounds + 1
    assert verdict.caught >= plan.rounds
    return verdict


class RequestRefused(Exception):
    """As either SDK raises what is an error of JSON-RPC."""

    def __init__(self, data: Any) -> None:
        self.error = SimpleNamespace(code=-1, message="", data=data)


def text(said: str, **meta: Any) -> Any:
    """A tool result."""
    return SimpleNamespace(content=[SimpleNamespace(text=said)], isError=bool(meta), meta=meta)


def doubtful() -> Any:
    doubt = CallInDoubt("cut", "tools/call", "charge", "key", "-")
    return text(str(doubt), **{IN_DOUBT_KEY: doubt.as_json()})


RIGHT = text("charge of charge-1")
NOT_EXECUTED = RequestRefused({"outcome": "not_executed", "by": "wire", "reason": "refused"})

FAULTY = {
    "never answered": (Call("charge", "charge-1", 0), 0),
    "wrong answer": (Call("charge", "charge-1", 0, text("charge of charge-2"), answered=True), 1),
    "repeated": (Call("charge", "charge-1", 0, RIGHT, answered=True), 2),
    "never ran": (Call("charge", "charge-1", 0, RIGHT, answered=True), 0),
    "it did run": (Call("charge", "charge-1", 0, error=NOT_EXECUTED, answered=True), 1),
    "needless doubt": (Call("charge", "charge-1", 0, doubtful(), answered=True), 1),
    "harmless, and no result": (Call("look", "look-1", 0, doubtful(), answered=True, kills=1), 1),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_the_judge_sees(fault: str) -> None:
    call, ran = FAULTY[fault]
    (found,) = faults_of(call, ran)
    assert fault in found


def test_the_judge_sees_no_fault_in_an_honest_answer() -> None:
    assert not faults_of(Call("charge", "charge-1", 0, RIGHT, answered=True), 1)
    assert not faults_of(Call("charge", "charge-1", 0, error=NOT_EXECUTED, answered=True), 0)
    assert not faults_of(Call("look", "look-1", 0, error=NOT_EXECUTED, answered=True, kills=2, is_late=True), 0)
    for ran in (0, 1):
        assert not faults_of(Call("charge", "charge-1", 0, doubtful(), answered=True, kills=1), ran)


@pytest.mark.parametrize("host", HOSTS)
def test_each_restart_costs_one_initialize_and_no_call_its_honest_answer(host: str) -> None:
    """Nothing unsafe runs twice, every call is answered, none with another's answer, harmless ones rightly."""
    verdict = judged(Plan("sdk1-log", host, rounds=3, at_once=AT_ONCE, seed=1))
    assert verdict.initializes == [1] * 4
    assert {"look completed", "put completed", "charge completed"} <= set(verdict.outcomes)
    assert set(verdict.outcomes) <= {"look completed", "put completed", "charge completed", "charge in doubt"}


@pytest.mark.parametrize("server", ["sdk1-sse", "sdk1-json", "fastmcp4-log"])
def test_servers_with_and_without_an_event_log_are_outlived(server: str) -> None:
    assert judged(Plan(server, HOSTS[-1], rounds=2, at_once=AT_ONCE, seed=2)).initializes == [1] * 3


def test_it_is_the_same_on_trio() -> None:
    assert judged(Plan("sdk1-log", "session", "trio", rounds=2, at_once=AT_ONCE, seed=3)).initializes == [1] * 3


def test_a_server_that_dies_again_while_its_session_is_reopened_is_outlived() -> None:
    """Kills follow each other at once: a life may end before its session is open, a call may be lost thrice."""
    judged(Plan("sdk1-json", HOSTS[-1], rounds=4, at_once=AT_ONCE, hasty=True, seed=4))
