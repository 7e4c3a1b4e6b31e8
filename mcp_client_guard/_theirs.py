"""Errors of code that is not ours: hooks, callbacks, stores and clients of the user's."""

from __future__ import annotations

import math

import anyio


def is_theirs(error: BaseException) -> bool:
    """Whether it is a fault of theirs, which must cost no more than what they were asked for.

    A `CancelledError` is one, too, if nobody has cancelled us: asyncio raises it out of whatever awaited a
    future that somebody else cancelled. `KeyboardInterrupt` and the like go on to whoever waits for them.
    """
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return anyio.current_effective_deadline() != -math.inf
    return isinstance(error, Exception)
