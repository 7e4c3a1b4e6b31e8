"""The trail: what an event is to it, and where a resume starts."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mcp_client_guard.core.event_id import IdScheme
from mcp_client_guard.core.model import STORED_ROWS, Seen, digest_of
from mcp_client_guard.core.trail import Index, Placement, ResumePoint, Trail

A, B = b'{"m": "a"}', b'{"m": "b"}'


@pytest.fixture
def trail() -> Trail:
    """p (priming) and e1 = A, both of connection 1."""
    trail = Trail({})
    trail.place("p", b"", False, 1)
    trail.place("e1", A, True, 1)
    return trail


@pytest.mark.parametrize(
    ("event_id", "data", "carried", "connection", "placement"),
    [
        ("e2", B, True, 1, Placement.NEXT),
        ("e2", A, True, 1, Placement.NEXT),
        ("e2", b"", False, 2, Placement.NEXT),
        (None, B, True, 1, Placement.UNKNOWN),
        (None, b"", False, 1, Placement.UNKNOWN),
        # The same connection: an ID under which two messages come identifies nothing.
        ("e1", A, True, 1, Placement.AMBIGUOUS),
        ("e1", B, True, 1, Placement.AMBIGUOUS),
        # What carries none says nothing by an ID that was there.
        ("p", b"", False, 1, Placement.UNKNOWN),
        ("e1", b"", False, 1, Placement.UNKNOWN),
        ("e1", b"{}", False, 1, Placement.UNKNOWN),
        # After a reconnect: a replay, or a contradiction.
        ("e1", A, True, 2, Placement.DUPLICATE),
        ("e1", b'{"m":"a"}', True, 2, Placement.DUPLICATE),
        ("e1", b"", False, 2, Placement.DUPLICATE),
        ("p", b"", False, 2, Placement.DUPLICATE),
        ("p", b"{}", False, 2, Placement.DUPLICATE),
        ("e1", B, True, 2, Placement.CONFLICT),
        # The ID of a priming event names no message yet.
        ("p", A, True, 1, Placement.NEXT),
        ("p", A, True, 2, Placement.NEXT),
    ],
)
def test_where_an_event_belongs(
    trail: Trail, event_id: str | None, data: bytes, carried: bool, connection: int, placement: Placement
) -> None:
    assert trail.place(event_id, data, carried, connection) is placement


@pytest.mark.parametrize(
    ("data", "carried", "connection", "placement"),
    [
        (B, True, 1, Placement.AMBIGUOUS),
        (A, True, 1, Placement.AMBIGUOUS),
        (b"", False, 1, Placement.UNKNOWN),
        (B, True, 2, Placement.CONFLICT),
        (A, True, 2, Placement.DUPLICATE),
        (b"", False, 2, Placement.DUPLICATE),
    ],
)
def test_a_message_under_the_id_of_a_priming_event_has_that_id_from_then_on(
    data: bytes, carried: bool, connection: int, placement: Placement
) -> None:
    trail = _trail(("0", b""), ("0", A))
    assert trail.cursor == "0"
    assert trail.holds("0", A)
    assert trail.conflicts("0", B)
    assert trail.place("0", data, carried, connection) is placement


def test_its_place_is_the_one_in_which_it_came(trail: Trail) -> None:
    trail.place("p", B, True, 1)
    assert trail.resume_point() == ResumePoint("e1", Seen("p", WITNESS_B))
    assert trail.stored_rows(2) == (Seen("e1", WITNESS_A),)
    assert trail.event_ids() == ["e1", "p"]


@pytest.mark.parametrize("primed_on", [1, 2])
def test_a_priming_event_of_a_resume_gives_way_like_any_other(primed_on: int) -> None:
    trail = _trail(("0", b""), ("0", A))
    trail.place("1", b"", False, primed_on)
    assert trail.place("1", B, True, 2) is Placement.NEXT
    assert trail.resume_point() == ResumePoint("0", Seen("1", WITNESS_B))


def test_it_may_have_been_an_earlier_process_that_was_primed() -> None:
    trail = Trail({})
    trail.restore((Seen("0", digest_of(b"")),))
    assert trail.resume_point() == ResumePoint("0", None)
    assert trail.place("0", A, True, 5) is Placement.NEXT
    assert trail.stored_rows(9) == (Seen("0", WITNESS_A),)


def test_the_id_of_another_stream_s_priming_event_names_no_message_either(trail: Trail) -> None:
    other = Trail(trail.index)
    assert other.place("p", A, True, 2) is Placement.NEXT
    assert trail.place("p", B, True, 1) is Placement.AMBIGUOUS, "two messages"


def test_a_priming_event_does_not_hide_a_message_that_another_stream_brought_first() -> None:
    """Some servers replay the events of every stream."""
    first = _trail(("0", A))
    own = Trail(first.index)
    own.place("0", b"", False, 2)
    assert own.resume_point() == ResumePoint("0", None)
    assert own.place("0", A, True, 2) is Placement.DUPLICATE
    assert own.place("1", B, True, 2) is Placement.NEXT
    assert own.resume_point() == ResumePoint("0", Seen("1", WITNESS_B))


@pytest.mark.parametrize(
    ("event_id", "data", "own", "other"),
    [
        ("e1", A, Placement.NEXT, Placement.DUPLICATE),
        ("e1", B, Placement.NEXT, Placement.NEXT),
        ("e2", B, Placement.CONFLICT, Placement.AMBIGUOUS),
    ],
)
@pytest.mark.parametrize("on_another", [True, False])
def test_what_came_before_a_stream_began_anew_is_a_duplicate_on_others_alone(
    trail: Trail, event_id: str, data: bytes, own: Placement, other: Placement, on_another: bool
) -> None:
    trail.begin_anew()
    trail.place("e2", A, True, 2)
    another = Trail(trail.index)
    assert another.holds(event_id, data) is (other is Placement.DUPLICATE)
    assert not trail.holds(event_id, data)
    assert trail.conflicts(event_id, data) is (own is Placement.CONFLICT)
    assert (another if on_another else trail).place(event_id, data, True, 3) is (other if on_another else own)


def test_nothing_is_resumed_proven_or_stored_by_it(trail: Trail) -> None:
    assert trail.place("e2", B, True, 1) is Placement.NEXT
    trail.begin_anew()
    assert (trail.cursor, trail.resume_point(), trail.stored_rows(99), trail.event_ids()) == (None, None, (), [])
    trail.place("e3", A, True, 2)
    assert trail.resume_point() == ResumePoint("e3", None)
    assert trail.stored_rows(99) == (Seen("e3", digest_of(A)),)
    assert trail.event_ids() == ["e3"]
    assert trail.newest_number == 4, "what the host has drained is counted on"


@pytest.mark.parametrize(
    ("event_id", "data", "carried", "placement"),
    [
        ("e1", A, True, Placement.DUPLICATE),
        ("e1", b"", False, Placement.DUPLICATE),
        ("e1", B, True, Placement.AMBIGUOUS),
        ("e2", A, True, Placement.NEXT),
    ],
)
def test_where_an_event_belongs_whose_id_another_stream_used(
    trail: Trail, event_id: str, data: bytes, carried: bool, placement: Placement
) -> None:
    other = Trail(trail.index)
    assert other.place(event_id, data, carried, 2) is placement


def test_an_event_may_come_twice_on_a_resumed_connection(trail: Trail) -> None:
    """A replay may overlap the live tail."""
    assert trail.place("e2", B, True, 2) is Placement.NEXT
    assert trail.place("e2", B, True, 2) is Placement.DUPLICATE
    assert trail.place("e2", A, True, 2) is Placement.AMBIGUOUS


@pytest.mark.parametrize(
    ("scheme", "event_id", "placement"),
    [
        (IdScheme.OPAQUE, "1", Placement.NEXT),
        (IdScheme.MONOTONE, "9", Placement.NEXT),
        (IdScheme.MONOTONE, "1", Placement.GAP),
        (IdScheme.CONTIGUOUS, "6", Placement.NEXT),
        (IdScheme.CONTIGUOUS, "7", Placement.GAP),
    ],
)
def test_a_declared_scheme_leaves_no_gap(scheme: IdScheme, event_id: str, placement: Placement) -> None:
    trail = Trail({}, scheme=scheme)
    assert trail.place("5", A, True, 1) is Placement.NEXT
    assert trail.place(event_id, B, True, 1) is placement


@pytest.mark.parametrize("scheme", [IdScheme.MONOTONE, IdScheme.CONTIGUOUS])
def test_a_message_under_the_id_of_the_priming_event_before_it_leaves_none_either(scheme: IdScheme) -> None:
    trail = Trail({}, scheme=scheme)
    placed = [trail.place(event_id, data, bool(data), 1) for event_id, data in [("5", b""), ("5", A), ("6", b"")]]
    assert placed == [Placement.NEXT] * 3
    assert trail.place("5", B, True, 1) is Placement.AMBIGUOUS


@pytest.mark.parametrize("scheme", [IdScheme.MONOTONE, IdScheme.CONTIGUOUS])
def test_under_the_id_of_an_earlier_one_it_does(scheme: IdScheme) -> None:
    trail = Trail({}, scheme=scheme)
    trail.place("5", b"", False, 1)
    trail.place("6", A, True, 1)
    assert trail.place("5", B, True, 1) is Placement.GAP


def test_what_identifies_nothing_has_no_cursor_no_overlap_and_no_duplicates(trail: Trail) -> None:
    trail.identifies_nothing()
    assert trail.cursor is None
    assert trail.resume_point() is None
    assert trail.place("e1", A, True, 2) is Placement.UNKNOWN
    assert trail.place("e1", A, True, 3) is Placement.UNKNOWN
    assert trail.index == {}


# Where to resume.


def _trail(*rows: tuple[str | None, bytes]) -> Trail:
    trail = Trail({})
    for event_id, data in rows:
        trail.place(event_id, data, bool(data), 1)
    return trail


WITNESS_A, WITNESS_B = digest_of(A), digest_of(B)
LONG = "x" * 9000


@pytest.mark.parametrize(
    ("rows", "point"),
    [
        ([], None),
        ([(None, A)], None),
        ([("p", b"")], ResumePoint("p", None)),
        ([("e1", A)], ResumePoint("e1", None)),
        ([("p", b""), ("q", b"")], ResumePoint("q", None)),
        # One ID for both is one place: only an inclusive replay from there would bring the message again.
        ([("0", b""), ("0", A)], ResumePoint("0", None)),
        ([("0", b""), ("0", A), ("1", B)], ResumePoint("0", Seen("1", WITNESS_B))),
        ([("p", b""), ("e1", A)], ResumePoint("p", Seen("e1", WITNESS_A))),
        ([("e1", A), ("e2", B)], ResumePoint("e1", Seen("e2", WITNESS_B))),
        ([("e1", A), ("e2", B), (None, A)], ResumePoint("e1", Seen("e2", WITNESS_B))),
        ([("e1", A), (None, A), ("e2", B)], ResumePoint("e1", Seen("e2", WITNESS_B))),
        # A priming event is never the witness: it would come again as something else, or not at all.
        ([("e1", A), ("e2", B), ("q", b"")], ResumePoint("e1", Seen("e2", WITNESS_B))),
        ([("e1", A), ("q", b"")], ResumePoint("q", None)),
        # A heartbeat need not be in the log; what stands first is the likeliest, as the priming event.
        ([("p", b""), ("e1", A), ("q", b""), ("e2", B)], ResumePoint("e1", Seen("e2", WITNESS_B))),
        ([("e1", A), ("q", b""), ("r", b""), ("e2", B), ("s", b"")], ResumePoint("e1", Seen("e2", WITNESS_B))),
        ([("p", b""), ("q", b""), ("e1", A)], ResumePoint("p", Seen("e1", WITNESS_A))),
        # An ID that cannot be a header is no anchor, and no cursor.
        ([("p", b""), (" e1", A), ("e2", B)], ResumePoint("p", Seen("e2", WITNESS_B))),
        ([(" e1", A), ("e2", B)], ResumePoint("e2", None)),
        ([("e1", A), ("e2 ", B)], None),
        # One that is far too long ends all identity: a trail must stay small.
        ([(LONG, A), ("e2", B)], None),
        ([("e1", A), (LONG, B)], None),
    ],
)
def test_a_resume_starts_before_the_newest_event_that_carried_a_message(
    rows: list[tuple[str | None, bytes]], point: ResumePoint | None
) -> None:
    assert _trail(*rows).resume_point() == point


def test_the_exact_cursor_is_sent_when_asked_for_and_then_nothing_can_be_proven() -> None:
    assert _trail(("e1", A), ("e2", B)).resume_point(exact=True) == ResumePoint("e2", None)


def test_an_empty_id_field_takes_the_cursor_away_until_the_next_id(trail: Trail) -> None:
    trail.forget_cursor()
    assert trail.cursor is None
    assert trail.resume_point() is None
    trail.place("e2", B, True, 1)
    assert trail.cursor == "e2"


# The window.


def test_the_trail_is_bounded_and_forgets_its_oldest_rows_in_the_index_too() -> None:
    trail = Trail({}, size=3)
    for number in range(5):
        trail.place(f"e{number}", A, True, 1)
    assert trail.event_ids() == ["e2", "e3", "e4"]
    assert set(trail.index) == {"e2", "e3", "e4"}


def test_forgetting_leaves_alone_what_another_stream_now_holds(trail: Trail) -> None:
    """The index names the row of whoever placed the ID last."""
    index: Index = trail.index
    taken = Trail(index)
    trail.rows[0].trail.index.pop("p")
    taken.place("p", A, True, 5)
    trail.clear()
    assert set(index) == {"p"}


def test_large_data_is_kept_as_its_digest_only() -> None:
    big = json.dumps({"m": "x" * 20_000}).encode()
    trail = Trail({})
    trail.place("e1", big, True, 1)
    assert trail.rows[0].data is None
    assert trail.holds("e1", big)
    assert not trail.holds("e1", A)


def test_the_stored_rows_are_the_newest_eight_with_an_id_up_to_a_row() -> None:
    trail = Trail({})
    for number in range(1, 12):
        trail.place(f"e{number}", A, True, 1)
        trail.place(None, B, True, 1)
    stored = trail.stored_rows(2 * 10)
    assert [row.event_id for row in stored] == [f"e{n}" for n in range(3, 11)]
    assert len(stored) == STORED_ROWS
    assert [row.event_id for row in trail.stored_rows(3)] == ["e1", "e2"]
    assert trail.stored_rows(0) == ()


HEARTBEATS = [
    pytest.param(lambda n: (f"h{n}", b"", False), id="IDs and no data"),
    pytest.param(lambda n: (f"h{n}", b"{}", False), id="IDs and {}"),
    pytest.param(lambda n: (None, b"[%d]" % n, True), id="no IDs"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 256])
@pytest.mark.parametrize("heartbeat", HEARTBEATS)
def test_what_can_be_no_witness_never_pushes_out_what_proves_the_next_resume(
    size: int, heartbeat: Callable[[int], tuple[str | None, bytes, bool]]
) -> None:
    trail = Trail({}, size=size)
    trail.place("e1", A, True, 1)
    trail.place("e2", B, True, 1)
    for number in range(700):
        event_id, data, carried = heartbeat(number)
        trail.place(event_id, data, carried, 1)
    assert trail.resume_point() == ResumePoint("e1", Seen("e2", digest_of(B)))
    assert len(trail.rows) <= max(size, 3)
    assert len(trail.index) <= max(size, 3)


@pytest.mark.parametrize("n", range(12))
def test_the_stored_rows_have_anchor_and_witness_among_them(n: int) -> None:
    """Else the next process has nothing to prove its resume by."""
    trail = _trail(("p", b""), ("e1", A), ("e2", B))
    for number in range(n):
        trail.place(f"h{number}", b"{}", False, 1)
    stored = trail.stored_rows(trail.newest_number)
    assert len(stored) <= STORED_ROWS
    following = Trail({})
    following.restore(stored)
    assert following.cursor == trail.cursor
    assert following.resume_point() == ResumePoint("e1", Seen("e2", digest_of(B)))


def test_where_one_message_has_come_the_first_row_is_stored_too() -> None:
    trail = _trail(("p", b""), ("e1", A), *((f"h{k}", b"") for k in range(9)))
    assert [row.event_id for row in trail.stored_rows(99)][:2] == ["p", "e1"]


# What has left the trails.


def long(n: int) -> Trail:
    trail = Trail({})
    for number in range(n):
        trail.place(f"e{number}", b"[%d]" % number, True, 1)
    return trail


def test_what_has_left_the_trail_is_a_duplicate_on_a_connection_that_is_resumed() -> None:
    trail = long(1000)
    assert trail.place("e0", b"[0]", True, 2) is Placement.NEXT, "nothing was resumed"
    trail = long(1000)
    trail.expect_after("e998")
    assert trail.place("e0", b"[0]", True, 2) is Placement.DUPLICATE
    assert trail.place("e1", b"[7]", True, 2) is Placement.NEXT, "another message"
    assert trail.holds("e2", b"[2]")
    assert not trail.holds("e3", b"[7]")


def test_a_trail_that_is_let_go_leaves_as_much() -> None:
    trail = long(2)
    other = Trail(trail.index, bygone=trail.bygone)
    trail.let_go()
    assert not trail.index
    other.place("o", A, True, 2)
    other.expect_after("o")
    assert other.place("e1", b"[1]", True, 3) is Placement.DUPLICATE


def test_a_replay_on_another_stream_may_be_faster_by_more_than_a_trail() -> None:
    """What then comes on its own connection is this stream's, and so is the cursor."""
    other = Trail({})
    other.place("o", A, True, 1)
    other.expect_after("o")
    for number in range(1000):
        other.place(f"e{number}", b"[%d]" % number, True, 2)
    trail = Trail(other.index, bygone=other.bygone)
    assert trail.place("e0", b"[0]", True, 3) is Placement.DUPLICATE
    assert trail.cursor == "e0"


@pytest.mark.parametrize("forget", [Trail.clear, Trail.begin_anew, Trail.identifies_nothing, Trail.leave])
def test_where_what_it_holds_counts_no_more_what_it_has_let_go_does_not_either(
    forget: Callable[[Trail], None],
) -> None:
    trail = long(1000)
    trail.expect_after("e998")
    forget(trail)
    assert not trail.holds("e0", b"[0]")


def test_what_came_before_a_trail_began_anew_is_not_known_when_it_leaves() -> None:
    trail = long(200)
    trail.begin_anew()
    trail.expect_after("e198")
    for number in range(200, 600):
        trail.place(f"e{number}", b"[%d]" % number, True, 2)
    assert [trail.holds(f"e{number}", b"[%d]" % number) for number in (0, 199, 200)] == [False, False, True]


def test_a_stream_that_has_let_nothing_go_takes_nothing_from_the_others_when_it_begins_anew() -> None:
    trail = long(1000)
    Trail(trail.index, bygone=trail.bygone).begin_anew()
    assert trail.holds("e0", b"[0]")


def test_a_server_that_writes_what_it_replays_in_other_bytes_is_known_by_that() -> None:
    trail = long(1000)
    trail.expect_after("e998")
    assert not trail.holds("e0", b"[0 ]")
    assert trail.holds("e999", b"[999 ]")
    assert trail.holds("e0", b"[0 ]")


# Events without an ID that followed the witness may be replayed behind it.


def _after_witness() -> Trail:
    trail = _trail(("e1", A), (None, b"[0]"), ("e2", B), ("q", b""), (None, b"[1]"), (None, b"[2]"))
    trail.replay_expected()
    return trail


def test_events_without_an_id_are_dropped_if_they_come_again_in_order() -> None:
    trail = _after_witness()
    assert trail.place(None, b"[1]", True, 2) is Placement.DUPLICATE
    assert trail.place(None, b"[2]", True, 2) is Placement.DUPLICATE
    assert trail.place(None, b"[2]", True, 2) is Placement.UNKNOWN


def test_the_first_one_that_differs_ends_the_expectation() -> None:
    trail = _after_witness()
    assert trail.place(None, b"[3]", True, 2) is Placement.UNKNOWN
    assert trail.place(None, b"[1]", True, 2) is Placement.UNKNOWN


def test_a_new_id_ends_the_expectation() -> None:
    trail = _after_witness()
    assert trail.place("e3", A, True, 2) is Placement.NEXT
    assert trail.place(None, b"[1]", True, 2) is Placement.UNKNOWN


@pytest.mark.parametrize("between", [(None, b""), (None, b"{}"), ("r", b"")], ids=str)
def test_what_carries_nothing_ends_no_expectation(between: tuple[str | None, bytes]) -> None:
    trail = _after_witness()
    trail.place(*between, False, 2)
    assert trail.place(None, b"[1]", True, 2) is Placement.DUPLICATE
    trail.place(*between, False, 2)
    assert trail.place(None, b"[2]", True, 2) is Placement.DUPLICATE


def test_events_without_an_id_are_remembered_only_behind_one_with_an_id() -> None:
    trail = Trail({})
    assert trail.place(None, A, True, 1) is Placement.UNKNOWN
    assert not trail.rows
    trail.place("e1", A, True, 1)
    trail.place(None, b"", False, 1)
    assert len(trail.rows) == 1


@pytest.mark.parametrize(
    ("event_id", "data", "holds", "conflicts"),
    [
        ("e1", A, True, False),
        ("e1", B, False, True),
        ("p", A, False, False),
        ("e9", A, False, False),
        (None, A, False, False),
    ],
)
def test_what_is_held_and_what_conflicts(
    trail: Trail, event_id: str | None, data: bytes, holds: bool, conflicts: bool
) -> None:
    assert trail.holds(event_id, data) is holds
    assert trail.conflicts(event_id, data) is conflicts


def test_another_stream_holds_the_event_too_but_conflicts_with_nothing(trail: Trail) -> None:
    other = Trail(trail.index)
    assert other.holds("e1", A)
    assert not other.conflicts("e1", B)


def test_an_id_that_could_not_be_sent_back_identifies_nothing() -> None:
    trail = Trail({})
    assert trail.place("x" * 8192, b"{}", True, 1) is Placement.NEXT
    assert trail.place("x" * 8193, b"{}", True, 1) is Placement.AMBIGUOUS


def test_a_finished_trail_keeps_its_identities_and_little_data() -> None:
    large, small = json.dumps({"m": "x" * 2000}).encode(), A
    trail = _trail(("e1", large), ("e2", small))
    trail.shrink()
    assert [row.data for row in trail.rows] == [None, small]
    other = Trail(trail.index)
    assert other.place("e1", large, True, 2) is Placement.DUPLICATE, "a replay elsewhere is still known"
    assert other.place("e2", small, True, 2) is Placement.DUPLICATE
