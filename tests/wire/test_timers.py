"""Many timers, one task, which keeps nobody else from running."""

from __future__ import annotations

import itertools
from collections.abc import Hashable

import anyio
import anyio.lowlevel
import pytest

from mcp_client_guard.transports.timers import Timers

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("seconds", [0.0, 1e-300, 1e-9])
async def test_timers_that_are_set_again_at_once_leave_others_their_turn(seconds: float) -> None:
    fired: list[Hashable] = []

    def again(key: Hashable) -> None:
        fired.append(key)
        assert len(fired) < 100_000, "nobody else runs"
        timers.set(key, seconds)

    timers = Timers(again)
    timers.set("a", seconds)
    timers.set("b", seconds)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timers.run)
        while not {"a", "b"} <= set(fired):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_a_timer_that_another_cancels_or_sets_as_it_fires_does_not_fire_with_it() -> None:
    fired: list[Hashable] = []

    def elapsed(key: Hashable) -> None:
        fired.append(key)
        timers.cancel("cancelled")
        timers.set("later", 3600)

    timers = Timers(elapsed)
    for key in ("first", "cancelled", "later"):
        timers.set(key, 0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timers.run)
        while not fired:
            await anyio.lowlevel.checkpoint()
        timers.set("last", 0.0)
        while "last" not in fired:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert fired == ["first", "last"]


async def test_what_came_while_the_loop_stood_still_is_told_before_a_time_that_was_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading takes turns, and trio has no order among those who are due: the silence would be ours."""
    now, told = 0.0, list[Hashable]()
    monkeypatch.setattr(anyio, "current_time", lambda: now)

    async def read() -> None:
        for _ in range(3):  # as a chunk of each layer
            await anyio.lowlevel.checkpoint()
        told.append("the witness")

    def elapsed(key: Hashable) -> None:
        told.append(key)
        tasks.cancel_scope.cancel()

    timers = Timers(elapsed)
    timers.set("no witness in time", 5.0)
    now = 6.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timers.run)
        tasks.start_soon(read)
    assert told == ["the witness", "no witness in time"]


async def test_a_loop_that_stands_still_again_and_again_has_its_timers_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(anyio, "current_time", lambda: next(clock))
    fired = anyio.Event()
    timers = Timers(lambda _: fired.set())
    timers.set("deadline", 0.5)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timers.run)
        await fired.wait()
        tasks.cancel_scope.cancel()
