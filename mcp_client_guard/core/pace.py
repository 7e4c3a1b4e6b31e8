"""How often, at most; and how long is long enough."""

from __future__ import annotations

from attrs import define, field

STEADY_SECONDS = 10.0
"""What has stood for so long says nothing against opening the next at once."""
_MINUTE = 60.0


@define(eq=False, repr=False)
class OncePerMinute:
    """Says when something may be done that is done at most once a minute."""

    _done_at: float | None = field(default=None, init=False)

    def take(self, now: float) -> float:
        """0: it is done now. Otherwise the seconds until it may be."""
        since = _MINUTE if self._done_at is None else now - self._done_at
        if since < _MINUTE:
            return _MINUTE - since
        self._done_at = now
        return 0.0

    def waited(self) -> None:
        """That time is over, by the timer that was set to it."""
        self._done_at = None
