"""The trail of a stream: its last events as (event ID, digest), and where the next one belongs.

A resume is proven by overlap (DESIGN §1): the server is asked for what follows the event *before* the witness,
and must then send the witness again. `Trail.resume_point` chooses both; `Trail.place` says what an event is.
"""

from __future__ import annotations

from collections import deque

from attrs import define, field, frozen

from .bygone import Bygone
from .event_id import MAX_EVENT_ID, IdScheme, fits_header, follows
from .model import STORED_ROWS, Seen
from .placement import Placement as Placement
from .row import EMPTY, Row
from .row import Index as Index
from .unidentified import Unidentified, in_order

_KEPT_DATA = 16 * 1024
"""Larger data is kept as its digest only, so that a trail stays small (S15)."""
_KEPT_DATA_FINISHED = 1024
_EARLIER = 0
"""Stands for the connections of an earlier process."""


# On Python 3.11 it takes as long to look a member up in its enumeration as to make a row.
_NEXT, _OPAQUE = Placement.NEXT, IdScheme.OPAQUE


@frozen
class ResumePoint:
    """What to send as `Last-Event-ID`, and which event must then come again."""

    last_event_id: str
    witness: Seen | None
    """None: nothing to overlap (or the exact ID was asked for), so nothing can be proven by it."""


@define(slots=True, eq=False, repr=False)
class Trail:
    """The received events of one stream, newest last, at most `size`, or what proves a resume."""

    index: Index
    size: int = 256
    scheme: IdScheme = IdScheme.OPAQUE
    bygone: Bygone = field(factory=Bygone)
    rows: deque[Row] = field(factory=deque)
    identifies: bool = True
    """False once two messages had one ID, or it equals the session ID: no cursor, overlap or de-duplication."""
    begun_after: int = 0
    """Rows up to this number are kept for other streams' replays alone."""
    _next_number: int = 1
    _newest: Row | None = None
    _last_id: str | None = None
    _first_connection: int | None = None
    _unidentified: Unidentified = field(factory=Unidentified)
    _has_let_go: bool = False

    @property
    def newest_number(self) -> int:
        return self._next_number - 1

    @property
    def cursor(self) -> str | None:
        """The newest event ID that can be sent back, or None: then this stream cannot be resumed."""
        row = self._newest
        if row is None or row.event_id is None or not self.identifies or not fits_header(row.event_id):
            return None
        return row.event_id

    def place(self, event_id: str | None, data: bytes, carried: bool, connection: int) -> Placement:
        """Say what this event is, and remember it if it is new."""
        if not self.identifies:
            return Placement.UNKNOWN
        if event_id is None:
            return self._place_without_id(data, carried, connection)
        if len(event_id) > MAX_EVENT_ID:
            # It could not be sent back, and rows must stay small (S15).
            self.identifies_nothing()
            return Placement.AMBIGUOUS
        known = self.index.get(event_id)
        is_taken = known is not None and self._counts(known, data)
        if known is not None and is_taken and (known.carried or not carried):
            return self._compare(event_id, known, data, carried, connection)
        if carried and self.bygone.is_asked and self._is_bygone(event_id, data, connection):
            return Placement.DUPLICATE
        if self.scheme is not _OPAQUE and self._leaves_gap(event_id):
            return Placement.GAP
        if is_taken:
            self._give_way(event_id)
        if carried and self._unidentified.expected:
            self._unidentified.expected.clear()
        self._adopt(event_id, data, carried, connection)
        return _NEXT

    def adopted(self, event_id: str | None, connection: int) -> bool:
        """Whether the newest row is this event, which another stream had received before."""
        newest = self.rows[-1] if self.rows else None
        return newest is not None and newest.event_id == event_id and newest.connection == connection

    def has_received(self, event_id: str | None) -> bool:
        """Whether this very stream holds an event with this ID that carried a message."""
        row = self.index.get(event_id) if event_id is not None else None
        return row is not None and row.trail is self and row.carried

    def holds(self, event_id: str | None, data: bytes) -> bool:
        """Whether any trail of the session holds this event, or has held it."""
        if event_id is None:
            return False
        row = self.index.get(event_id)
        if row is None or not (self._counts(row, data) and row.matches(data)):
            return self.bygone.holds(event_id, data)
        self.learn_wording(event_id, data)
        return True

    def learn_wording(self, event_id: str | None, data: bytes) -> None:
        """This event was replayed: in its own bytes, or in others, that say the same."""
        row = self.index.get(event_id) if event_id is not None else None
        if row is not None and row.data is not None and row.data != data:
            self.bygone.is_reworded = True

    def is_held_by_another(self, event_id: str | None, data: bytes) -> bool:
        """Whether another stream of the session has received this event."""
        row = self.index.get(event_id) if event_id is not None else None
        return row is not None and row.trail is not self and row.matches(data)

    def conflicts(self, event_id: str | None, data: bytes) -> bool:
        """Whether this stream has carried another message under this ID."""
        row = self.index.get(event_id) if event_id is not None else None
        if row is None or row.trail is not self or not self._counts(row, data):
            return False
        return row.carried and not row.matches(data)

    def resume_point(self, *, exact: bool = False) -> ResumePoint | None:
        """Where to resume: the row before the witness if there is one, else the cursor itself."""
        cursor = self.cursor
        if cursor is None:
            return None
        if not exact:
            overlap = self._overlap(self.newest_number)
            if len(overlap) == 2 and overlap[1].event_id is not None:
                return ResumePoint(overlap[1].event_id, overlap[0].seen)
        return ResumePoint(cursor, None)

    def expect_after(self, event_id: str) -> None:
        """A resume from this event was ordered: events without an ID that followed it may come again, in order."""
        self.bygone.is_asked = True
        self._unidentified.expect(self.rows, lambda row: row.event_id == event_id)

    def take_expected(self, data: bytes) -> bool:
        """Whether this event without an ID is the next that may come again."""
        return self._unidentified.take(data)

    def replay_expected(self) -> None:
        """After a proven resume: events without an ID that followed the witness may come again, in order."""
        self._unidentified.expect(self.rows, lambda row: row.is_message)

    def forget_cursor(self) -> None:
        """The server reset the last event ID to nothing (an empty `id:` field)."""
        self._newest = self._last_id = None

    def begin_anew(self) -> None:
        """To this stream it is as if nothing had come before; on another, what has come is a duplicate."""
        self._unidentified.clear()
        self.forget_cursor()
        self.begun_after = self.newest_number
        self._forget_bygone()

    def identifies_nothing(self) -> None:
        """The IDs of this stream are not identities; stop using them."""
        self.clear()
        self.identifies = False

    def shrink(self) -> None:
        """The stream is finished: its rows are kept for other streams' replays, their data is not."""
        self._unidentified.clear()
        for row in self.rows:
            if row.data is not None and len(row.data) > _KEPT_DATA_FINISHED:
                row.forget_data()

    def let_go(self) -> None:
        """The stream is finished, and there are too many such: that its events have come is all that is kept."""
        self._let_go(list(self.rows))
        self.rows.clear()

    def leave(self) -> None:
        """What still comes of the stream is not to be found by one of a new session."""
        self.index, self.bygone = {}, Bygone()

    def clear(self) -> None:
        """Forget every row."""
        for row in self.rows:
            self._unindex(row)
        self.rows.clear()
        self._unidentified.clear()
        self.forget_cursor()
        self._forget_bygone()

    def stored_rows(self, up_to: int) -> tuple[Seen, ...]:
        """The newest rows with an ID not beyond row number `up_to`: what may be written to disk."""
        kept: list[Row] = []
        for row in reversed(self.rows):
            if row.number <= up_to and self._marks_place(row):
                kept.append(row)
                if len(kept) == STORED_ROWS:
                    break
        if sum(row.carried for row in kept) < 2:
            # What carries nothing must not push out what the next process can prove its resume by.
            needed = self._overlap(up_to)
            others = [row for row in kept if row not in needed]
            kept = sorted(needed + others[: STORED_ROWS - len(needed)], key=in_order, reverse=True)
        return tuple(row.seen for row in reversed(kept))

    def restore(self, rows: tuple[Seen, ...]) -> None:
        """Take the rows that another process has stored."""
        self._first_connection = _EARLIER
        for seen in rows:
            carried = seen.digest != EMPTY
            row = Row(seen.event_id, None, carried, _EARLIER, self._next_number, self, seen.digest)
            self._next_number += 1
            self.rows.append(row)
            if seen.event_id is not None:
                self.index[seen.event_id] = row
                self._last_id = seen.event_id
            if self._marks_place(row):
                self._newest = row

    def event_ids(self) -> list[str]:
        return [r.event_id for r in self.rows if r.event_id is not None and r.number > self.begun_after]

    def _counts(self, row: Row, data: bytes) -> bool:
        """Whether the ID is taken by this row. One from before its stream began anew only makes a duplicate of the
        same event on another."""
        return row.number > row.trail.begun_after or (row.trail is not self and row.matches(data))

    def _leaves_gap(self, event_id: str) -> bool:
        last_id = self._last_id
        return last_id not in (None, event_id) and not follows(self.scheme, last_id, event_id)

    def _give_way(self, event_id: str) -> None:
        """A priming event of this ID makes room for the message that comes under it.

        It may have named the place of that message (the Rust SDK primes with the number of what comes first). As
        two rows they would be anchor and witness, which only a server that replays inclusively would send.
        """
        self.rows = deque(row for row in self.rows if row.carried or row.event_id != event_id)

    def _overlap(self, up_to: int) -> list[Row]:
        """Of the rows up to this number the newest two that carried a message: witness and anchor, as far as there
        are such. What carries none need not be in a log (a heartbeat); the first of it is the likeliest to be, as
        the priming event of its stream."""
        found: list[Row] = []
        for row in reversed(self.rows):
            if row.number > up_to or row.event_id is None or not self._marks_place(row):
                continue
            is_fit = fits_header(row.event_id) if found else row.carried
            if is_fit:
                found = [*found[:1], row]
            if is_fit and row.carried and len(found) == 2:
                break
        return found

    def _place_without_id(self, data: bytes, carried: bool, connection: int) -> Placement:
        if self.take_expected(data):
            return Placement.DUPLICATE
        if carried:  # what carries nothing says nothing of what comes next
            self._unidentified.expected.clear()
            if self.rows:
                self._adopt(None, data, carried, connection)
        return Placement.UNKNOWN

    def _compare(self, event_id: str, known: Row, data: bytes, carried: bool, connection: int) -> Placement:
        same = known.matches(data)
        if known.trail is not self:
            # Another stream of the session used this ID: the same event delivered there, or an ID that is
            # not unique. Only the first is a duplicate.
            if carried and not same:
                return Placement.AMBIGUOUS
            if not self._was_resumed(connection):
                # A replay on the other stream was faster; but the event is this stream's, and so is the cursor.
                self._give_way(event_id)
                self._adopt(event_id, data, carried, connection)
                if known.carried and not carried:
                    self.index[event_id] = known
            return Placement.DUPLICATE
        if known.connection == connection:
            if not carried:
                # A heartbeat, or the `retry:` of a server that polls, under the ID that holds anyway.
                return Placement.UNKNOWN
            if not (same and self._was_resumed(connection)):
                return Placement.AMBIGUOUS
        if same or not carried:
            # A priming event replayed as `{}` differs in its bytes but carries no message either way.
            return Placement.DUPLICATE
        return Placement.CONFLICT

    def came_before(self, witness: Seen, since: int) -> None:
        """The rows after number `since` came before the witness in the server's log, so they go before it here.

        Behind it they would be the next overlap, which the server, replaying in its own order, never meets.
        """
        rows = self._unidentified.with_aside(self.rows)
        at = next((n for n, row in enumerate(rows) if row.event_id == witness.event_id), len(rows))
        later = [row for row in rows[at:] if row.number <= since]
        for row in later:
            row.number, self._next_number = self._next_number, self._next_number + 1
        self.rows = deque(sorted(self.rows, key=in_order))
        self._newest = next((row for row in reversed(self.rows) if self._marks_place(row)), None)
        self.replay_expected()

    def _was_resumed(self, connection: int) -> bool:
        return self._first_connection not in (None, connection)

    def _is_bygone(self, event_id: str, data: bytes, connection: int) -> bool:
        """Whether it came so long ago that no trail holds it."""
        was_resumed = self._was_resumed(connection)
        is_bygone = self.bygone.holds(event_id, data, resumed=was_resumed)
        if is_bygone and not was_resumed:
            self._adopt(event_id, data, True, connection)
        return is_bygone

    def _adopt(self, event_id: str | None, data: bytes, carried: bool, connection: int) -> None:
        row = Row(event_id, data, carried, connection, self._next_number, self)
        if len(data) > _KEPT_DATA:
            row.forget_data()
        if self._first_connection is None:
            self._first_connection = connection
        self._next_number += 1
        if not carried and self.rows and self._says_nothing(row) and self._says_nothing(self.rows[-1]):
            self._unindex(self.rows.pop())  # those of a server that polls would leave no room for others
        self.rows.append(row)
        if event_id is not None:
            self.index[event_id] = row
            self._last_id = event_id
            if carried or self._marks_place(row):
                self._newest = row
        if len(self.rows) > self.size:
            self._make_room()

    def _marks_place(self, row: Row) -> bool:
        """Whether the server's log has this row where the trail has it.

        A priming event minted on a resume may not: while it is stored and sent, a message that stands before it
        in the log can still be on its way (SDK 1.30 and 2.3, FastMCP 4). So it is no cursor and no anchor.
        """
        in_place = row.carried or not self._was_resumed(row.connection)
        return row.event_id is not None and in_place and row.number > self.begun_after

    def _says_nothing(self, row: Row) -> bool:
        """A priming event of a resume does. Where IDs tell an order, each is kept, so that none leaves it."""
        minted = not row.carried and self._was_resumed(row.connection)
        return minted and row.event_id is not None and self.scheme is _OPAQUE

    def _make_room(self) -> None:
        """Let the oldest rows go, but never those that the next resume is proven by.

        Several at once, for each event pays for it: 256 become 224.
        """
        rows, count = self.rows, 1 + self.size // 8
        needed = self._overlap(self.newest_number) or [row for row in rows if row is self._newest]
        anchor = needed[-1].number if needed else self._next_number
        self._unidentified.forget_aside(anchor)
        if rows[count].number <= anchor:
            self._let_go([rows.popleft() for _ in range(count)])
            return
        gone = [row for row in rows if row not in needed and row is not rows[-1]][:count]
        self.rows = deque(row for row in rows if row.number > gone[-1].number or row in needed) if gone else rows
        self._unidentified.put_aside([row for row in gone if row.event_id is None and row.number > anchor])
        self._let_go(gone)

    def _let_go(self, gone: list[Row]) -> None:
        index = self.index
        for row in gone:
            event_id = row.event_id
            if event_id is not None and index.get(event_id) is row:
                del index[event_id]
        if self.begun_after:
            gone = [row for row in gone if row.number > self.begun_after]
        self._has_let_go = self._has_let_go or bool(gone)
        self.bygone.remember(gone, self._first_connection)

    def _forget_bygone(self) -> None:
        """What it has let go of counts no more; and that cannot be told from what others have."""
        if self._has_let_go:
            self._has_let_go = False
            self.bygone.clear()

    def _unindex(self, row: Row) -> None:
        if row.event_id is not None and self.index.get(row.event_id) is row:
            del self.index[row.event_id]
