"""What a store need not be given."""

from __future__ import annotations

import pytest
from attrs import evolve

from mcp_client_guard.core.model import AnswerDrained, CallSettled, Outcome, Record, TaskEnded, Told
from mcp_client_guard.core.stored import without_drained_answers

SETTLED = CallSettled(1, 7, Outcome.COMPLETED, "answered", {"result": {}}, Told.NOBODY)
DRAINED = AnswerDrained(1, 7)


def test_an_answer_that_is_drained_further_on_is_left_out_and_its_caller_counts_as_told() -> None:
    between = TaskEnded(1, 7)
    written = evolve(SETTLED, answer=None, told=Told.CALLER)
    assert without_drained_answers([SETTLED, between, DRAINED]) == [written, between, DRAINED]


@pytest.mark.parametrize(
    "records",
    [
        [DRAINED, SETTLED],
        [SETTLED, evolve(DRAINED, kept=True)],
        [SETTLED, evolve(DRAINED, wire_id=8)],
        [SETTLED, evolve(DRAINED, incarnation=2)],
    ],
    ids=["drained before", "kept for repeats", "another call's", "another incarnation's"],
)
def test_any_other_answer_is_written(records: list[Record]) -> None:
    assert without_drained_answers(records) == records
