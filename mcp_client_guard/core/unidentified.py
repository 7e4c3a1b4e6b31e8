"""Events without an ID of their own: behind one that has one they may be replayed, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter

from attrs import define, field

from .row import Row

_KEPT = 4096
in_order = attrgetter("number")


@define(slots=True, eq=False, repr=False)
class Unidentified:
    """Those of one trail that may come again, and those that had to leave its rows."""

    expected: deque[Row] = field(factory=deque)
    aside: deque[Row] = field(factory=lambda: deque(maxlen=_KEPT))
    """Behind the anchor, so that a resume may bring them again; without their data."""

    def expect(self, rows: Iterable[Row], starts: Callable[[Row], bool]) -> None:
        """What follows the last row of which `starts` is true may come again."""
        self.expected.clear()
        for row in self.with_aside(rows):
            if starts(row):
                self.expected.clear()
            elif row.event_id is None:
                self.expected.append(row)

    def take(self, data: bytes) -> bool:
        """Whether this is the next that may come again."""
        if not self.expected or not self.expected[0].matches(data):
            return False
        self.expected.popleft()
        return True

    def put_aside(self, rows: Iterable[Row]) -> None:
        """These have to leave the trail."""
        for row in rows:
            row.forget_data()
            self.aside.append(row)

    def forget_aside(self, anchor: int) -> None:
        """No resume brings again what stands before the row of this number."""
        while self.aside and self.aside[0].number < anchor:
            self.aside.popleft()

    def with_aside(self, rows: Iterable[Row]) -> list[Row]:
        return sorted([*self.aside, *rows], key=in_order)

    def clear(self) -> None:
        self.expected.clear()
        self.aside.clear()
