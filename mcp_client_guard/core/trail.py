"""The trail of a stream: its last events as (event ID, digest), and where the next one belongs.

A resume is proven by overlap (DESIGN §1): the server is asked for what follows the event *before* the witness,
and must then send the witness again. `Trail.resume_point` chooses both; `Trail.place` says what an event is.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from attrs import define, field, frozen

from .event_id import MAX_EVENT_ID, IdScheme, fits_header, follows
from .model import STORED_ROWS, Seen, digest_of

_KEPT_DATA = 16 * 1024
"""Larger data is kept as its digest only, so that a trail stays small (S15)."""
_KEPT_DATA_FINISHED = 1024
_EARLIER = 0
"""Stands for the connections of an earlier process."""
_EMPTY = digest_of(b"")


class Placement(Enum):
    """What an event is to the trail it came for."""

    NEXT = "new, and in its place"
    UNKNOWN = "new, without an ID of its own"
    """So is what carries no message and names an ID of this connection again: that repeats no event."""
    DUPLICATE = "already received"
    CONFLICT = "another message under an ID that this stream has used"
    GAP = "not what the declared scheme allows next"
    AMBIGUOUS = "an ID used for two messages on one connection, or far too long: it identifies nothing"


# On Python 3.11 it takes as long to look a member up in its enumeration as to make a row.
_NEXT, _OPAQUE = Placement.NEXT, IdScheme.OPAQUE


@define(slots=True, eq=False, repr=False)
class Row:
    """One received event. Its digest is made when somebody asks, which for most events is never."""

    event_id: str | None
    data: bytes | None
    """The raw data, kept instead of a digest unless it is large."""
    carried: bool
    """Whether it carried a message; a priming event did not."""
    connection: int
    number: int
    trail: Trail
    _digest: bytes | None = None

    @property
    def digest(self) -> bytes:
        if self._digest is None:
            assert self.data is not None
            self._digest = digest_of(self.data)
        return self._digest

    def forget_data(self) -> None:
        self._digest, self.data = self.digest, None

    def matches(self, data: bytes) -> bool:
        return self.data == data or self.digest == digest_of(data)

    @property
    def seen(self) -> Seen:
        return Seen(self.event_id, self.digest)


Index = dict[str, Row]
"""Every identified row of every trail of one session: event IDs are unique per session."""


@frozen
class ResumePoint:
    """What to send as `Last-Event-ID`, and which event must then come again."""

    last_event_id: str
    witness: Seen | None
    """None: nothing to overlap (or the exact ID was asked for), so nothing can be proven by it."""


@define(slots=True, eq=False, repr=False)
class Trail:
    """The received events of one stream, newest last, at most `size`."""

    index: Index
    size: int = 256
    scheme: IdScheme = IdScheme.OPAQUE
    rows: deque[Row] = field(factory=deque)
    identifies: bool = True
    """False once two messages had one ID, or it equals the session ID: no cursor, overlap or de-duplication."""
    begun_after: int = 0
    """Rows up to this number are kept for other streams' replays alone."""
    _next_number: int = 1
    _newest: Row | None = None
    _last_id: str | None = None
    _first_connection: int | None = None
    _expected: deque[Row] = field(factory=deque)

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
        if self._leaves_gap(event_id):
            return Placement.GAP
        if is_taken:
            self._give_way(event_id)
        if carried and self._expected:
            self._expected.clear()
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
        """Whether any trail of the session holds this event."""
        row = self.index.get(event_id) if event_id is not None else None
        return row is not None and self._counts(row, data) and row.matches(data)

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
            anchor, witness = self._overlap()
            if anchor is not None and witness is not None:
                return ResumePoint(anchor, witness)
        return ResumePoint(cursor, None)

    def expect_after(self, event_id: str) -> None:
        """A resume from this event was ordered: events without an ID that followed it may come again, in order."""
        self._expected.clear()
        for row in self.rows:
            if row.event_id == event_id:
                self._expected.clear()
            elif row.event_id is None:
                self._expected.append(row)

    def take_expected(self, data: bytes) -> bool:
        """Whether this event without an ID is the next that may come again."""
        if not self._expected or not self._expected[0].matches(data):
            return False
        self._expected.popleft()
        return True

    def replay_expected(self) -> None:
        """After a proven resume: events without an ID that followed the witness may come again, in order."""
        self._expected.clear()
        for row in self.rows:
            if row.event_id is not None and row.carried:
                self._expected.clear()
            elif row.event_id is None:
                self._expected.append(row)

    def forget_cursor(self) -> None:
        """The server reset the last event ID to nothing (an empty `id:` field)."""
        self._newest = self._last_id = None

    def begin_anew(self) -> None:
        """To this stream it is as if nothing had come before; on another, what has come is a duplicate."""
        self._expected.clear()
        self.forget_cursor()
        self.begun_after = self.newest_number

    def identifies_nothing(self) -> None:
        """The IDs of this stream are not identities; stop using them."""
        self.clear()
        self.identifies = False

    def shrink(self) -> None:
        """The stream is finished: its rows are kept for other streams' replays, their data is not."""
        for row in self.rows:
            if row.data is not None and len(row.data) > _KEPT_DATA_FINISHED:
                row.forget_data()

    def clear(self) -> None:
        """Forget every row."""
        for row in self.rows:
            self._unindex(row)
        self.rows.clear()
        self._expected.clear()
        self._newest = self._last_id = None

    def stored_rows(self, up_to: int) -> tuple[Seen, ...]:
        """The newest rows with an ID not beyond row number `up_to`: what may be written to disk."""
        kept: list[Seen] = []
        for row in reversed(self.rows):
            if row.number <= up_to and self._marks_place(row):
                kept.append(row.seen)
                if len(kept) == STORED_ROWS:
                    break
        return tuple(reversed(kept))

    def restore(self, rows: tuple[Seen, ...]) -> None:
        """Take the rows that another process has stored."""
        self._first_connection = _EARLIER
        for seen in rows:
            carried = seen.digest != _EMPTY
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
        if self.scheme is _OPAQUE or self._last_id in (None, event_id):
            return False
        return not follows(self.scheme, self._last_id, event_id)

    def _give_way(self, event_id: str) -> None:
        """A priming event of this ID makes room for the message that comes under it.

        It may have named the place of that message (the Rust SDK primes with the number of what comes first). As
        two rows they would be anchor and witness, which only a server that replays inclusively would send.
        """
        self.rows = deque(row for row in self.rows if row.carried or row.event_id != event_id)

    def _overlap(self) -> tuple[str | None, Seen | None]:
        """The newest two that carried a message. What carries none need not be in a log (a heartbeat); the first
        of it is the likeliest to be, as the priming event of its stream."""
        anchor: str | None = None
        witness: Row | None = None
        for row in reversed(self.rows):
            if row.event_id is None or not self._marks_place(row):
                continue
            if witness is None:
                witness = row if row.carried else None
            elif fits_header(row.event_id):
                anchor = row.event_id
                if row.carried:
                    break
        return anchor, None if witness is None else witness.seen

    def _place_without_id(self, data: bytes, carried: bool, connection: int) -> Placement:
        if self.take_expected(data):
            return Placement.DUPLICATE
        if carried:  # what carries nothing says nothing of what comes next
            self._expected.clear()
            if self.rows:
                self._append(None, data, carried, connection)
        return Placement.UNKNOWN

    def _compare(self, event_id: str, known: Row, data: bytes, carried: bool, connection: int) -> Placement:
        same = known.matches(data)
        if known.trail is not self:
            # Another stream of the session used this ID: the same event delivered there, or an ID that is
            # not unique. Only the first is a duplicate.
            if carried and not same:
                return Placement.AMBIGUOUS
            if self._first_connection in (None, connection):
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
        rows = list(self.rows)
        at = next((n for n, row in enumerate(rows) if row.event_id == witness.event_id), len(rows))
        later = [row for row in rows[at:] if row.number <= since]
        for row in later:
            row.number, self._next_number = self._next_number, self._next_number + 1
        self.rows = deque(sorted(rows, key=lambda row: row.number))
        self._newest = next((row for row in reversed(self.rows) if self._marks_place(row)), None)
        self.replay_expected()

    def _was_resumed(self, connection: int) -> bool:
        return self._first_connection != connection

    def _adopt(self, event_id: str, data: bytes, carried: bool, connection: int) -> None:
        row = self._append(event_id, data, carried, connection)
        self.index[event_id] = row
        self._last_id = event_id
        if carried or self._marks_place(row):
            self._newest = row

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

    def _append(self, event_id: str | None, data: bytes, carried: bool, connection: int) -> Row:
        row = Row(event_id, data, carried, connection, self._next_number, self)
        if len(data) > _KEPT_DATA:
            row.forget_data()
        if self._first_connection is None:
            self._first_connection = connection
        self._next_number += 1
        if not carried and self.rows and self._says_nothing(row) and self._says_nothing(self.rows[-1]):
            self._unindex(self.rows.pop())  # those of a server that polls would leave no room for others
        self.rows.append(row)
        if len(self.rows) > self.size:
            self._unindex(self.rows.popleft())
        return row

    def _unindex(self, row: Row) -> None:
        if row.event_id is not None and self.index.get(row.event_id) is row:
            del self.index[row.event_id]
