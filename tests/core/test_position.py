"""The position: what may be on disk of a stream is what the host has taken of it, and what it has answered."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.position import Position
from mcp_client_guard.core.trail import Trail
from tests.core.driver import data_of, note


@pytest.fixture
def trail() -> Trail:
    """It holds `e1`, `e2` and `e3`, in rows 1 to 3."""
    trail = Trail({})
    for event_id in ("e1", "e2", "e3"):
        trail.place(event_id, data_of(note(event_id)), True, 1)
    return trail


def follow(position: Position, trail: Trail, *deliveries: object) -> tuple[list[str | None], int]:
    rows, passed = position.follow(trail, deliveries)
    return [row.event_id for row in rows], passed


def test_it_follows_what_is_drained(trail: Trail) -> None:
    position = Position(undrained=2, drained_row=1)
    assert follow(position, trail) == (["e1"], 0)
    position.undrained = 0
    assert follow(position, trail) == (["e1", "e2", "e3"], 0)


def test_before_anything_is_drained_nothing_is_stored(trail: Trail) -> None:
    position = Position(undrained=3)
    assert follow(position, trail) == ([], 0)
    assert not position.is_stored


def test_a_question_that_is_not_answered_holds_it_and_what_lies_beyond_is_counted(trail: Trail) -> None:
    position = Position(asked={100: 2})
    assert follow(position, trail) == (["e1"], 2)
    assert position.ask_no_more(100)
    assert not position.ask_no_more(100)
    assert follow(position, trail) == (["e1", "e2", "e3"], 0)


def test_what_came_on_another_stream_holds_it_until_that_is_taken(trail: Trail) -> None:
    position, other = Position(), object()
    position.wait_for(other, trail, [other])
    assert follow(position, trail, other) == (["e1", "e2"], 0)
    assert follow(position, trail) == (["e1", "e2", "e3"], 0)


def test_what_is_stored_stays_though_the_trail_lets_go_of_it(trail: Trail) -> None:
    position = Position()
    stored = follow(position, trail)
    trail.rows.clear()
    assert follow(position, trail) == stored
    position.forget_stored()
    assert follow(position, trail) == ([], 0)


def test_an_inherited_one_counts_what_the_earlier_process_has_drained(trail: Trail) -> None:
    position = Position.inherited(trail.stored_rows(3), newest=3, passed=5)
    assert position.is_stored
    assert follow(position, trail) == (["e1", "e2", "e3"], 5)
