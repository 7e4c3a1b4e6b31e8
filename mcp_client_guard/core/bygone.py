"""Events that no trail holds any more, and that are known all the same, should a server replay them.

A server may replay far more than it is asked for: from the very start, or (the TypeScript reference server) the
later events of every stream of the session. Trails that reached so far back would be as large as its log.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from attrs import define, field

from .model import digest_of
from .row import Row

_KEPT = 8192
"""So many of the newest are known, and at most twice as many (S15)."""
_LARGE, _ENDS = 512, 256


@define(slots=True, eq=False, repr=False)
class Bygone:
    """What the trails of one session have let go of: of each event a hash of its ID, and one of its data.

    They are this process's own and never stored. To write two numbers down is all that an event costs on its way:
    they are sorted when somebody asks, which in most sessions is never.
    """

    is_asked: bool = False
    """A stream of the session was resumed: before that nothing is replayed."""
    is_incomplete: bool = False
    """Older events were dropped."""
    is_reworded: bool = False
    """An event was replayed in other bytes (FastMCP 4 does that): the ID alone has to do."""
    _log: array[int] = field(factory=lambda: array("q"))
    """Hash of ID, hash of data, and so on."""
    _known: dict[int, int] = field(factory=dict)
    _sorted: int = 0
    """How much of the log is in `_known`."""

    def remember(self, rows: Iterable[Row], first_connection: int | None) -> None:
        """Of these rows of one stream the messages. What came on another than its first connection may have been a
        replay."""
        log, write = self._log, self._log.append
        for row in rows:
            if row.carried and row.event_id is not None:
                data = row.data
                if data is None or len(data) > _LARGE:
                    data = row.digest if data is None else _outline(data)
                key = hash(row.event_id)
                write(key if row.connection == first_connection else ~key)
                write(hash(data))
        if len(log) > 4 * _KEPT:
            del log[: 2 * _KEPT]
            self.is_incomplete = True
            self._known, self._sorted = {}, 0

    def holds(self, event_id: str, data: bytes, *, resumed: bool = True) -> bool:
        """Whether this event has come. On the connection that its stream began with it is new, unless a replay on
        another was faster."""
        if self._sorted < len(self._log):
            unsorted = self._log[self._sorted :]
            self._known.update(zip(unsorted[::2], unsorted[1::2], strict=True))
            self._sorted = len(self._log)
        key = hash(event_id)
        signs = [self._known[k] for k in ((~key, key) if resumed else (~key,)) if k in self._known]
        return bool(signs) and (
            self.is_reworded or hash(_outline(data)) in signs or hash(digest_of(data)) in signs
        )

    def clear(self) -> None:
        self._log, self._known, self._sorted = array("q"), {}, 0


def _outline(data: bytes) -> bytes:
    """To hash all of a large event takes as long as to place it, and its ID says already which it is."""
    return data if len(data) <= _LARGE else b"%d" % len(data) + data[:_ENDS] + data[-_ENDS:]
