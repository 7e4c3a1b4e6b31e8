"""The connections of a caller's client that has a limit: how many calls may take, and what is left beside them."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from attrs import define, field


@define(eq=False, repr=False)
class Room:
    """Of one connection of the host's. Whoever asks waits here, before anything of the request is decided."""

    calls: int
    """Requests of the host's at once."""
    spare: int
    """Connections besides, for notifications and for streams that last."""
    seconds: float
    """For which a request waits: nothing else bounds one that has no row yet."""
    under_way: Callable[[], tuple[int, int]]
    """Requests that an answer ends, and those that last: subscriptions, and who waits for a task's result."""
    _freed: anyio.Event | None = field(default=None, init=False)

    async def take(self, *, lasts: bool) -> bool:
        """Whether there is a connection, now or within the time. The last one is never taken for good."""
        lasting = self.under_way()[1]
        if lasts and lasting < self.spare:
            return True
        if lasts and lasting >= self.spare + self.calls - 1:
            return False
        with anyio.move_on_after(self.seconds):
            while self._taken() >= self.calls:
                self._freed = self._freed or anyio.Event()
                await self._freed.wait()
            return True
        return False

    def freed(self) -> None:
        """A connection is free again."""
        if self._freed is not None:
            self._freed.set()
            self._freed = None

    def _taken(self) -> int:
        ending, lasting = self.under_way()
        return ending + max(0, lasting - self.spare)
