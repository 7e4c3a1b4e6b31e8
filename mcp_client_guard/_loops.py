"""Event loops of asyncio and of trio: how another thread reaches one, and whether it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

Post = Callable[..., Any]
"""Has something called in one event loop, from any thread. Two of the same loop are equal."""


def post_to_this_loop() -> Post:
    """That of the loop that runs this task."""
    try:
        # In trio's guest mode an asyncio loop runs as well, but no asyncio task.
        if asyncio.current_task() is not None:
            return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        pass
    import trio

    return trio.lowlevel.current_trio_token().run_sync_soon


def has_ended(post: Post) -> bool:
    """Whether nothing can run on its loop any more."""
    try:
        post(lambda: None)
    except RuntimeError:  # asyncio's of a closed loop; trio's RunFinishedError is one, too
        return True
    return False
