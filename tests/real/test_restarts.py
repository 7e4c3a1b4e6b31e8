"""A server that is killed under load, a seeded sample. All of it: `python -m tests.real.restarts --rounds 20`."""

from __future__ import annotations

import pytest

from .hosts import HOSTS
from .restarts import Plan, Verdict, play

AT_ONCE = 20


def judged(plan: Plan) -> Verdict:
    verdict = play(plan)
    print(verdict)
    assert not verdict.faults, verdict
    assert len(verdict.initializes) == plan.rounds + 1
    assert verdict.caught >= plan.rounds
    return verdict


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
