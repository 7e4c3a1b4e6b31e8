"""Waiter: lets a task wait for a thread, on asyncio and on trio."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import anyio

from mcp_client_guard._loops import Post, post_to_this_loop


class Waiter:
    """One task's wait for something that a thread will do. Made by the task."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._post = post_to_this_loop()

    async def wait(self) -> None:
        await self._event.wait()

    @staticmethod
    def wake(waiters: Iterable[Waiter]) -> None:
        """From any thread: let them all go on. One post per event loop, however many wait there."""
        by_loop: dict[Post, list[Waiter]] = {}
        for waiter in waiters:
            by_loop.setdefault(waiter._post, []).append(waiter)
        for post, together in by_loop.items():
            with suppress(RuntimeError):  # that event loop has ended, and nobody waits there
                post(_set_all, together)


def _set_all(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        waiter._event.set()
