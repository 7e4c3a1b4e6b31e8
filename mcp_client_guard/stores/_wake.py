"""Waiter: lets a task wait for a thread, on asyncio and on trio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import anyio


class Waiter:
    """One task's wait for something that a thread will do. Made by the task."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._post = _post_to_this_loop()

    async def wait(self) -> None:
        await self._event.wait()

    @staticmethod
    def wake(waiters: Iterable[Waiter]) -> None:
        """From any thread: let them all go on. One post per event loop, however many wait there."""
        by_loop: dict[Callable[..., Any], list[Waiter]] = {}
        for waiter in waiters:
            by_loop.setdefault(waiter._post, []).append(waiter)
        for post, together in by_loop.items():
            with suppress(RuntimeError):  # that event loop has ended, and nobody waits there
                post(_set_all, together)


def _set_all(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        waiter._event.set()


def _post_to_this_loop() -> Callable[..., Any]:
    """How a thread has something called in the event loop that runs this task."""
    try:
        # In trio's guest mode an asyncio loop runs as well, but no asyncio task.
        if asyncio.current_task() is not None:
            return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        pass
    import trio

    return trio.lowlevel.current_trio_token().run_sync_soon
