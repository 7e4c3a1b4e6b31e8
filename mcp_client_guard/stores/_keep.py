"""How much a store keeps, and where its slots begin: what both stores share."""

from __future__ import annotations

import secrets

from attrs import frozen

ENDED_SESSIONS = 100
"""Ended sessions kept under each key. Open ones are never pruned."""

SERVER_ANSWERS = 256
"""Answers to the server's requests kept of each session, until it ends."""

_UNSURE_SECONDS = 3600.0
"""How long a call that may have run is kept, however many follow it. A store does not know the `repeat_window`
within which a repeat of it is refused; nobody sets one that is longer than this by much."""

DAY = 86_400.0

_FIRST_SLOTS = 2**14
"""As many as there are blocks of request IDs, or some more."""


def first_slot() -> int:
    """The one before the first of a key. See `Claim.new_slot`."""
    return secrets.randbelow(_FIRST_SLOTS)


@frozen
class Keep:
    """What a key's owner prunes to. Only settled calls without open task, and ended sessions, ever go.

    `calls` holds for those that matter (they may have side effects, or the host has named them) and for the
    others alike: no number of reads pushes out what a repeat must be known by. As many again are spared, of those
    that somebody is still to be told of, or that may have run and are new.
    """

    calls: int
    days: float

    @classmethod
    def checked(cls, keep_calls: int, keep_days: float) -> Keep:
        """From a user; refuses what would keep nothing."""
        if keep_calls < 1:
            raise ValueError(f"keep_calls must be at least 1, not {keep_calls!r}")
        if not keep_days > 0:
            raise ValueError(f"keep_days must be more than 0, not {keep_days!r}")
        return cls(keep_calls, keep_days)

    @property
    def most(self) -> int:
        """Calls that may be found under a key: as many that matter as others, and as are spared."""
        return 3 * self.calls + self.slack

    @property
    def slack(self) -> int:
        """Calls sent between two prunes: the number kept may be over `calls` by this much."""
        return max(100, self.calls // 10)

    def oldest(self, now: float) -> float:
        """The time before which settled calls and ended sessions go."""
        return now - self.days * DAY

    def unsure_since(self, now: float) -> float:
        """The time from which on calls that may have run are spared."""
        return now - _UNSURE_SECONDS
