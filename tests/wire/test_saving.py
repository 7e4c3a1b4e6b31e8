"""What is to be kept, on its way to the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from attrs import define, field

from mcp_client_guard.core.model import AnswerDrained, Record
from mcp_client_guard.transports.saving import Saving
from mcp_client_guard.transports.timers import Timers

pytestmark = pytest.mark.anyio


@define(eq=False)
class SlowClaim:
    """A store that takes its time."""

    written: list[Record] = field(factory=list)
    begun: anyio.Event = field(factory=anyio.Event)
    may_end: anyio.Event = field(factory=anyio.Event)

    async def write(self, slot: int, records: Sequence[Record], *, durable: bool = False) -> None:
        self.begun.set()
        await self.may_end.wait()
        self.written += records


async def test_who_reads_the_store_next_waits_for_what_another_task_is_writing() -> None:
    """The timer's group has taken the outcome and is not done: `recovered()` would read a row without one."""
    claim: Any = SlowClaim()
    saving = Saving(claim, 1, Timers(lambda _: None), lambda _: None)
    saving.behind([AnswerDrained(1, 7)])
    seen: list[list[Record]] = []

    async def read() -> None:
        await saving.all()
        seen.append(list(claim.written))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(saving.group)
        await claim.begun.wait()
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        assert not seen
        claim.may_end.set()
    assert seen == [[AnswerDrained(1, 7)]]


async def test_with_nothing_under_way_nobody_waits() -> None:
    claim: Any = SlowClaim()
    await Saving(claim, 1, Timers(lambda _: None), lambda _: None).all()
    assert not claim.begun.is_set()
