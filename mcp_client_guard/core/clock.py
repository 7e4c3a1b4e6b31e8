"""The time as the shell last told it."""

from __future__ import annotations

from attrs import define


@define
class Clock:
    now: float = 0.0
    """Seconds on a monotonic clock."""
