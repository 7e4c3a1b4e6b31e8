"""How long to wait before opening: tenacity's exponential wait with jitter, the server's `retry:` as the floor.

Whether to open again, and how often, is the core's to say; only the jitter needs randomness, so it is here.
"""

from __future__ import annotations

import random

from tenacity import RetryCallState, wait_exponential, wait_random
from tenacity.wait import wait_base

from mcp_client_guard.core.actions import Delay

_FIRST = 0.1
_RETRY_JITTER = 0.1
"""Above `retry:`, never below it: clients that lost the same server must not come back as one."""


def _exponential(cap: float) -> wait_base:
    return wait_exponential(multiplier=_FIRST, max=cap - _FIRST) + wait_random(0, _FIRST)


def part_of(jitter: float) -> float:
    """A random part of it, so that clients that were refused together do not ask together again."""
    return random.uniform(0, jitter) if jitter else 0.0


def seconds(delay: Delay) -> float:
    """The wait before an attempt, in seconds: 0 for a first attempt that nothing asks to wait."""
    floor = max((delay.retry_ms or 0) / 1000 * (1 + random.uniform(0, _RETRY_JITTER)), delay.at_least)
    if delay.attempt == 0:
        return floor
    state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = min(delay.attempt, 32)
    return max(floor, _exponential(delay.cap)(state))
