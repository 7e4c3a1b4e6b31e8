"""A migration in stages behind HAProxy and nginx, 200 calls in flight; more: `python -m tests.real.staged`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mcp_client_guard import Outcome

from .staged import HOSTS, NEW, OLD, Call, Plan, Verdict, faults_of, play


def judged(plan: Plan) -> Verdict:
    verdict = play(plan)
    print(verdict)  # the seed, too
    assert not verdict.faults, verdict
    return verdict


@pytest.mark.parametrize("host", HOSTS)
def test_servers_are_replaced_one_by_one_and_back_again_under_load(host: str) -> None:
    """Every call is answered, honestly by the ledger that the servers keep, and nothing unsafe runs twice."""
    verdict = judged(Plan(host, seed=1))
    assert all(verdict.executions[name] for name in OLD), verdict
    # Whom the balancer gives the few sessions that are opened then is its own affair.
    assert any(verdict.executions[name] for name in NEW), verdict
    assert verdict.events["Resumed"] >= 10, "nginx cuts what is silent for two seconds"
    assert verdict.events["SessionLost"] >= 8, "each of the four connections loses its session there and back"
    assert all(verdict.outcomes[f"{tool} completed"] > 30 for tool in ("look", "put", "charge")), verdict


def test_where_sessions_are_scattered_over_servers_that_do_not_know_them_the_answers_are_honest() -> None:
    """Most calls cannot be served at all: they are refused as not executed, and re-initializing has a bound."""
    verdict = judged(Plan("session", at_once=40, sticky=False, seed=1))
    assert verdict.events["Connected"] <= 4 * (1 + 5), "the host's own session and five in a minute"
    assert verdict.outcomes["charge not executed"]


def answer(text: str) -> Any:
    return SimpleNamespace(content=[SimpleNamespace(text=text)], isError=False, meta=None)


RIGHT = answer("charge of charge-1")


def row(outcome: Outcome | None) -> Any:
    return SimpleNamespace(outcome=outcome, reason="")


FAULTY = {
    "unanswered": (Call("charge", "charge-1", 0, 0), 0, row(Outcome.COMPLETED)),
    "wrong": (Call("charge", "charge-1", 0, 0, answer=answer("no"), answered=True), 1, row(Outcome.COMPLETED)),
    "repeated": (Call("charge", "charge-1", 0, 0, answer=RIGHT, answered=True), 2, row(Outcome.COMPLETED)),
    "never ran": (Call("charge", "charge-1", 0, 0, answer=RIGHT, answered=True), 0, row(Outcome.RESENT)),
    "no outcome": (Call("charge", "charge-1", 0, 0, answer=RIGHT, answered=True), 1, row(None)),
    "it did run": (Call("charge", "charge-1", 0, 0, answer=RIGHT, answered=True), 1, row(Outcome.NOT_EXECUTED)),
    "progress twice": (Call("charge", "charge-1", 0, 2, [1.0, 1.0], RIGHT, None, True), 1, row(Outcome.COMPLETED)),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_the_judge_sees(fault: str) -> None:
    call, ran, kept = FAULTY[fault]
    assert any(fault in found for found in faults_of(call, ran, [kept]))


def test_the_judge_sees_no_fault_in_an_honest_answer() -> None:
    call = Call("charge", "charge-1", 0, 2, [1.0, 2.0], RIGHT, None, True)
    assert not faults_of(call, 1, [row(Outcome.NOT_EXECUTED), row(Outcome.COMPLETED)])
