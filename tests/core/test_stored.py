"""What a store need not be given, and what not later."""

from __future__ import annotations

import pytest
from attrs import evolve

from mcp_client_guard.core.model import (
    AnswerDrained,
    CallSent,
    CallSettled,
    CursorDropped,
    CursorMoved,
    Generation,
    Outcome,
    Record,
    SessionEnded,
    SessionOpened,
    TaskEnded,
    Told,
)
from mcp_client_guard.core.stored import compacted, falls_with_row, without_drained_answers

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


SENT = CallSent(1, 7, "tools/call", "charge", "key", b"", may_have_side_effects=True)
OPENED = SessionOpened(1, Generation.STREAMABLE_HTTP, "one", "2025-11-25", {}, {})
ENDED = SessionEnded(1, "it was lost")


def moved(stream: str = "7", incarnation: int = 1) -> CursorMoved:
    return CursorMoved(incarnation, stream, ())


def test_with_a_row_that_cannot_be_written_only_its_own_sending_falls() -> None:
    assert falls_with_row(SENT)
    assert falls_with_row(SETTLED), "the end of the sending before it: that would be told of a sending that is not"
    assert not any(map(falls_with_row, [OPENED, ENDED, moved(), DRAINED, TaskEnded(1, 7)]))


def test_of_each_cursor_the_last_word_is_kept_and_the_order() -> None:
    unsaved = dict(enumerate([moved(), moved("8"), SENT, CursorDropped(1, "7"), moved("7", 2), moved("8")], 5))
    assert compacted(unsaved, 100) == {7: SENT, 8: CursorDropped(1, "7"), 9: moved("7", 2), 10: moved("8")}


def test_an_answer_that_is_drained_meanwhile_is_not_kept() -> None:
    assert compacted({1: SETTLED, 2: DRAINED}, 100) == {
        1: evolve(SETTLED, answer=None, told=Told.CALLER),
        2: DRAINED,
    }


def test_of_too_many_the_newest_are_kept_and_every_session() -> None:
    unsaved = dict(enumerate([OPENED, SENT, ENDED, SETTLED, TaskEnded(1, 7)]))
    assert compacted(unsaved, 2) == {0: OPENED, 2: ENDED, 3: SETTLED, 4: TaskEnded(1, 7)}
