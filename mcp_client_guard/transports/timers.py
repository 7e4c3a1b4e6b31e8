"""Many timers, one task."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable

import anyio
import anyio.lowlevel
from attrs import define, field

_LATE = 0.1
"""Seconds behind its time from which on a timer shows that the event loop stood still."""
_TURNS = 5
_TURN = 0.01


@define(eq=False)
class Timers:
    """Calls `elapsed(key)` when the time set for a key is over. Setting a key again replaces its time."""

    elapsed: Callable[[Hashable], None]
    _due: dict[Hashable, float] = field(factory=dict, init=False)
    _heap: list[tuple[float, int, Hashable]] = field(factory=list, init=False)
    _serial: int = field(default=0, init=False)
    _sooner: anyio.Event | None = field(default=None, init=False)

    def set(self, key: Hashable, seconds: float) -> None:
        due = anyio.current_time() + seconds
        self._due[key] = due
        self._serial += 1
        heapq.heappush(self._heap, (due, self._serial, key))
        if self._heap[0][1] == self._serial and self._sooner is not None:
            self._sooner.set()
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._due):
            self._compact()

    def cancel(self, key: Hashable) -> None:
        self._due.pop(key, None)

    async def run(self) -> None:
        """The one task; runs until cancelled."""
        while True:
            self._sooner = anyio.Event()
            wait = self._heap[0][0] - anyio.current_time() if self._heap else None
            if wait is None:
                await self._sooner.wait()
            elif wait > 0:
                with anyio.move_on_after(wait):
                    await self._sooner.wait()
            else:
                await anyio.lowlevel.checkpoint()  # others have their turn, however soon each timer is set again
            if self._heap and anyio.current_time() - self._heap[0][0] > _LATE:
                await _catch_up()
            self._fire()

    def _fire(self) -> None:
        """Each that is due, once: one that is set again meanwhile has its turn in the next round."""
        now = anyio.current_time()
        ready: list[tuple[float, Hashable]] = []
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            ready.append((due, key))
        for due, key in ready:
            if self._due.get(key) == due:
                del self._due[key]
                self.elapsed(key)

    def _compact(self) -> None:
        """Drop what was cancelled or set again, so that the heap is bounded by the timers that are set."""
        self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)


async def _catch_up() -> None:
    """The loop stood still: what came in time, and is not read yet, is told before any time is over.

    A bounded wait, so that a loop that is blocked again and again has its timers all the same.
    """
    for _ in range(_TURNS):
        await anyio.sleep(_TURN)
