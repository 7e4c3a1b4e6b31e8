"""The budget: when a stream is opened again, and when no more."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.budget import Budget
from mcp_client_guard.core.connection import Connection


def resumed(**what: bool) -> Connection:
    return Connection(1, resumed_from="e1", answered=True, **what)


def spend(budget: Budget, times: int, at: float = 0.0, **what: bool) -> None:
    for _ in range(times):
        budget.account(resumed(**what), at, paced=False)


def test_resumes_that_bring_nothing_new_end_after_five_and_their_time() -> None:
    budget = Budget()
    spend(budget, 4, at=100.0)
    assert not budget.is_fruitless(1000.0, settle_after=30.0)
    spend(budget, 1, at=120.0)
    assert not budget.is_fruitless(129.0, settle_after=30.0), "the time runs from the first of them"
    assert budget.is_fruitless(130.0, settle_after=30.0)


def test_one_that_shows_the_witness_waits_longer_each_time_and_uses_nothing_up() -> None:
    budget = Budget()
    spend(budget, 9, witnessed=True)
    assert (budget.attempt, budget.is_fruitless(1000.0, settle_after=0.0)) == (9, False)


def test_a_server_that_shows_the_witness_and_names_a_wait_is_polled_at_its_pace() -> None:
    budget = Budget()
    for _ in range(9):
        budget.account(resumed(witnessed=True), 0.0, paced=True)
    assert budget.attempt == 0
    budget.account(resumed(), 0.0, paced=True)
    assert budget.attempt == 1, "without the witness it may be another log"


@pytest.mark.parametrize("refilled", ["by a new event", "by the witness"])
def test_refilled_the_time_begins_anew(refilled: str) -> None:
    budget = Budget()
    spend(budget, 5, at=100.0)
    if refilled == "by the witness":
        budget.refill_by_witness()
        assert budget.barren == 5, "nothing new has come yet"
    else:
        budget.refill()
        assert budget.barren == 0
    spend(budget, 5, at=200.0)
    assert not budget.is_fruitless(229.0, settle_after=30.0)


def test_a_fresh_id_alone_each_time_fills_the_budget_and_slows_it_down_all_the_same() -> None:
    budget = Budget()
    for _ in range(3):
        budget.refill()
        spend(budget, 1, progressed=True)
    assert (budget.attempts, budget.attempt) == (0, 3)
    budget.account(resumed(), 0.0, paced=True)
    assert budget.hasty == 0, "the pace is the server's"


def test_a_stream_that_lasts_starts_over_once_a_connection_has_lived() -> None:
    budget = Budget()
    for _ in range(2):
        budget.account_lasting(Connection(1), 5.0, paced=False)
    assert budget.attempt == 2
    budget.account_lasting(Connection(1, opened_at=5.0), 15.0, paced=False)
    assert budget.attempt == 0


def test_connections_lost_while_nobody_waits_count_as_failures_do() -> None:
    budget = Budget(looks=4)
    assert budget.is_spent(3)
    assert not budget.is_spent(4)
