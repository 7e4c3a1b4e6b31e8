"""How far the host has come on a stream, and what of that is on disk."""

from __future__ import annotations

from collections.abc import Collection

from attrs import define, field, frozen

from .model import Seen
from .trail import Trail


@frozen(eq=False)
class Behind:
    """A cursor on disk does not pass `row` before the host has taken what was last delivered then."""

    row: int
    delivery: object


@define(eq=False, repr=False)
class Position:
    """Rows are numbered as its trail numbers them."""

    undrained: int = 0
    """Messages of the stream's that were delivered, and that the host has not taken."""
    drained_row: int = 0
    """The last that it has."""
    behind: Behind | None = None
    """Messages of the stream's that came on another one."""
    asked: dict[int, int] = field(factory=dict)
    """Requests of the server's that the host has not answered: the number it knows them by, and their row."""
    drained_before: int | None = None
    """The last row that an earlier process is known to have drained."""
    is_stored: bool = False
    """A cursor of the stream is in the store."""
    _rows: tuple[Seen, ...] = ()
    """What was last stored of the trail."""
    _up_to: int | None = None
    """The row up to which that is so."""

    @classmethod
    def inherited(cls, rows: tuple[Seen, ...], newest: int, passed: int) -> Position:
        """Of an earlier process, which has stored these rows, and drained so many events after the `newest`."""
        return cls(drained_before=newest + passed, is_stored=True, rows=rows, up_to=newest)

    def follow(self, trail: Trail, deliveries: Collection[object]) -> tuple[tuple[Seen, ...], int]:
        """Go on to what the host has taken; `deliveries` wait for it. Returns what is to be stored, and how many
        events it has taken beyond that."""
        drained = self.drained_row if self.undrained else self._newest_drained(trail, deliveries)
        # Taken is not answered: a question that dies with its host is asked again of the next one.
        up_to = min((drained, *(row - 1 for row in self.asked.values())))
        if up_to != self._up_to:  # else the trail may have let go of what is stored
            self._rows, self._up_to = trail.stored_rows(up_to), up_to
        self.is_stored = self.is_stored or bool(self._rows)
        # Also what an earlier process has drained, and this one has not come to yet.
        return self._rows, max(drained, self.drained_before or 0) - up_to

    def ask_no_more(self, number: int | None) -> bool:
        """The host has answered this question, or it was withdrawn. Returns whether it was one of the stream's."""
        return number is not None and self.asked.pop(number, None) is not None

    def wait_for(self, delivery: object, trail: Trail, deliveries: Collection[object]) -> None:
        """The newest event of the stream was delivered as another's, at the latest by this."""
        row = min(self._newest_drained(trail, deliveries), trail.newest_number - 1)
        self.behind = Behind(row, delivery)

    def _newest_drained(self, trail: Trail, deliveries: Collection[object]) -> int:
        """The newest row where nothing of the stream itself waits for the host."""
        behind = self.behind
        if behind is not None and any(each is behind.delivery for each in deliveries):
            return behind.row
        self.behind = None
        return trail.newest_number

    def forget_stored(self) -> None:
        """Its cursor is no more."""
        self.is_stored, self._rows, self._up_to = False, (), None
