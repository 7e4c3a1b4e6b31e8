"""Events without an ID: those that had to leave the rows of a trail may come again all the same."""

from __future__ import annotations

from mcp_client_guard.core.row import Row
from mcp_client_guard.core.trail import Placement, Trail
from mcp_client_guard.core.unidentified import Unidentified


def crowded(n: int) -> Trail:
    """e1 and e2, and behind them n messages without an ID."""
    trail = Trail({})
    for number in (1, 2):
        trail.place(f"e{number}", b'{"e": %d}' % number, True, 1)
    for number in range(n):
        trail.place(None, b"[%d]" % number, True, 1)
    return trail


def test_a_run_longer_than_the_trail_is_known_from_its_head_on() -> None:
    trail = crowded(700)
    trail.expect_after("e1")
    assert [trail.take_expected(b"[%d]" % number) for number in range(700)] == [True] * 700
    trail.replay_expected()
    placed = [trail.place(None, b"[%d]" % number, True, 2) for number in range(701)]
    assert placed == [Placement.DUPLICATE] * 700 + [Placement.UNKNOWN]


def test_behind_a_priming_event_too() -> None:
    trail = Trail({})
    trail.place("p", b"", False, 1)
    for number in range(300):
        trail.place(None, b"[%d]" % number, True, 1)
    assert trail.cursor == "p"
    trail.expect_after("p")
    assert trail.take_expected(b"[0]")


def test_what_stands_before_the_anchor_is_let_go() -> None:
    trail = crowded(700)
    assert len(trail._unidentified.aside) > 400
    trail.place("e3", b'{"e": 3}', True, 1)
    trail.place("e4", b'{"e": 4}', True, 1)
    for number in range(200):
        trail.place(f"f{number}", b'{"e": 5}', True, 1)
    assert not trail._unidentified.aside
    trail.expect_after("e3")
    assert not trail.take_expected(b"[0]")


def test_they_keep_their_place_where_others_turn_out_to_stand_before_the_witness() -> None:
    trail = crowded(700)
    since = trail.newest_number
    trail.place("e1b", b'{"e": 0}', True, 2)
    point = trail.resume_point()
    assert point is not None
    witness = next(row for row in trail.rows if row.event_id == "e2")
    trail.came_before(witness.seen, since)
    assert trail.take_expected(b"[0]")


def test_there_are_bounds() -> None:
    known = Unidentified()
    known.put_aside([Row(None, b"[%d]" % number, True, 1, number, Trail({})) for number in range(5000)])
    assert len(known.aside) == 4096
    assert all(row.data is None for row in known.aside)
    known.clear()
    assert not known.aside
