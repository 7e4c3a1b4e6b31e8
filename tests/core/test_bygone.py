"""What no trail holds any more is known all the same, within bounds."""

from __future__ import annotations

import pytest

from mcp_client_guard.core import bygone
from mcp_client_guard.core.bygone import Bygone
from mcp_client_guard.core.row import Row
from mcp_client_guard.core.trail import Trail

DATA = b'{"m": "a"}'
LARGE = b'{"m": "%s"}' % (b"x" * 2000)


def of_connection(connection: int, *event_ids: str, data: bytes = DATA) -> list[Row]:
    return [
        Row(event_id, data, True, connection, number, Trail({})) for number, event_id in enumerate(event_ids, 1)
    ]


def test_an_event_is_known_by_its_id_and_data() -> None:
    known = Bygone()
    known.remember(of_connection(1, "e1"), 1)
    assert known.holds("e1", DATA)
    assert not known.holds("e1", b'{"m": "b"}'), "another message under this ID is new"
    assert not known.holds("e2", DATA)
    known.clear()
    assert not known.holds("e1", DATA)


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_large_one_is_known_too_whether_its_data_is_left_or_its_digest_alone(is_forgotten: bool) -> None:
    known = Bygone()
    (row,) = of_connection(1, "e1", data=LARGE)
    if is_forgotten:
        row.forget_data()
    known.remember([row], 1)
    assert known.holds("e1", LARGE)
    assert not known.holds("e1", LARGE.replace(b"m", b"n"))


def test_what_came_on_the_first_connection_of_its_stream_can_be_a_replay_on_a_resumed_one_alone() -> None:
    known = Bygone()
    known.remember(of_connection(1, "e1") + of_connection(2, "e2"), 1)
    assert not known.holds("e1", DATA, resumed=False), "an ID that comes twice on one connection"
    assert known.holds("e2", DATA, resumed=False), "a replay on another stream was faster"


def test_what_was_no_message_is_not_known() -> None:
    known = Bygone()
    rows = of_connection(1, "e1", "e2")
    rows[0].carried = False
    known.remember([*rows, Row(None, DATA, True, 1, 9, Trail({}))], 1)
    assert [known.holds(event_id, DATA) for event_id in ("e1", "e2")] == [False, True]


def test_replayed_in_other_bytes_an_event_is_known_by_its_id() -> None:
    known = Bygone(is_reworded=True)
    known.remember(of_connection(1, "e1"), 1)
    assert known.holds("e1", b'{"m":"a"}')
    assert not known.holds("e2", DATA)


def test_the_oldest_are_dropped_by_the_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bygone, "_KEPT", 4)
    known = Bygone()
    for number in range(8):
        known.remember(of_connection(1, f"e{number}"), 1)
        assert known.holds("e0", DATA)
    assert not known.is_incomplete
    known.remember(of_connection(1, "e8"), 1)
    assert known.is_incomplete
    assert [known.holds(f"e{number}", DATA) for number in (3, 4, 8)] == [False, True, True]
    assert len(known._known) == 5
