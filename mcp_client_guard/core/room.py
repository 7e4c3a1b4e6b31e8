"""The connections of a caller's client that has a limit: what takes one, and for what there is one now.

Answers to the server take whatever there is: it is they that end a call which holds a connection.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto

from attrs import define, field

from .actions import Action, Get, Hangup, Post

MOST_WAITING = 10_000
"""Requests, or notifications, that wait for a connection; the next is refused."""
_KEPT = 2
"""Of the connections beside the calls, not for notifications: for the standalone stream, and for an answer."""
NEVER_WAIT = (None, "notifications/initialized")
"""The method of an answer to the server, and of what the requests of a new session wait for."""


class Use(Enum):
    """What a connection is taken for. All others are few."""

    REQUEST = auto()
    LASTING = auto()
    NOTE = auto()


@define(eq=False, repr=False)
class Room:
    """Of one connection of the host's."""

    calls: int
    """Requests of the host's at once."""
    spare: int
    """Connections besides, for notifications and for streams that last."""
    out: list[Action]
    """What is ordered, as it is decided."""
    _taken: dict[int, Use] = field(factory=dict, init=False)
    _seen: int = field(default=0, init=False)
    """Of `out`."""

    def has_for_request(self, promised: int) -> bool:
        """`promised`: requests that hold none now, and are to have one before any other."""
        used = self._used()
        beside = max(0, used[Use.LASTING] - self.spare)
        return promised + used[Use.REQUEST] + beside < self.calls

    @property
    def has_for_lasting(self) -> bool:
        """Of the spare connections, for a stream that the host ends."""
        return self._used()[Use.LASTING] < self.spare

    @property
    def is_held_for_good(self) -> bool:
        """By streams that last; the last connection is never taken for one of these."""
        return self._used()[Use.LASTING] >= self.spare + self.calls - 1

    @property
    def has_for_carrier(self) -> bool:
        """And another one to post by."""
        return self.calls + self.spare > 1

    def has_for_note(self, method: str | None) -> bool:
        return method in NEVER_WAIT or self._used()[Use.NOTE] < max(1, self.spare - _KEPT)

    def freed(self, connection: int) -> None:
        """This exchange is over."""
        self._taken.pop(connection, None)

    def handed_over(self) -> None:
        """All that was ordered until now is on its way."""
        self._see()
        self._seen = 0

    def _used(self) -> Counter[Use]:
        self._see()
        return Counter(self._taken.values())

    def _see(self) -> None:
        for action in self.out[self._seen :]:
            if isinstance(action, (Post, Get)):
                use = _use_of(action)
                if use is not None:
                    self._taken[action.connection] = use
            elif isinstance(action, Hangup) and not action.linger:
                self._taken.pop(action.connection, None)
        self._seen = len(self.out)


def _use_of(order: Post | Get) -> Use | None:
    if order.lasts:
        return Use.LASTING
    if order.for_request:
        return Use.REQUEST
    is_note = isinstance(order, Post) and order.message.get("method") not in NEVER_WAIT
    return Use.NOTE if is_note else None
