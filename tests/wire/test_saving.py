"""What is to be kept, on its way to the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from attrs import define, field

from mcp_client_guard import StoreWriteError
from mcp_client_guard.core.actions import Save
from mcp_client_guard.core.model import (
    AnswerDrained,
    CallRepeated,
    CursorDropped,
    Record,
    SessionEnded,
)
from mcp_client_guard.transports import saving as module
from mcp_client_guard.transports.saving import Saving
from mcp_client_guard.transports.timers import Timers
from tests.stores.records import moved, opened, sent, settled, task

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


async def test_who_waits_for_the_disk_waits_for_what_another_task_has_taken_of_it() -> None:
    """The timer's group has taken the outcome before which the call's cancel must not leave."""
    claim: Any = SlowClaim()
    saving = Saving(claim, 1, Timers(lambda _: None), lambda _: None)
    seen: list[list[Record]] = []

    async def cancel(*batches: Any) -> None:
        for batch in batches:
            await saving.rows(batch)
            seen.append(list(claim.written))

    async with anyio.create_task_group() as tasks:
        saving.behind([settled(7)])
        first, second = saving.order([Save((), durable=True)]), saving.order([Save((), durable=True)])
        tasks.start_soon(saving.group)
        await claim.begun.wait()
        tasks.start_soon(cancel, second, first)
        await anyio.wait_all_tasks_blocked()
        assert not seen
        claim.may_end.set()
    assert seen == [[settled(7)], [settled(7)]]


async def test_with_nothing_under_way_nobody_waits() -> None:
    claim: Any = SlowClaim()
    await Saving(claim, 1, Timers(lambda _: None), lambda _: None).all()
    assert not claim.begun.is_set()


async def test_what_is_said_later_is_not_written_before_a_row_that_is_about_to_be() -> None:
    """The store forgets what is said of a row that it does not have: the call would be left without an outcome."""
    claim: Any = SlowClaim()
    claim.may_end.set()
    saving = Saving(claim, 1, Timers(lambda _: None), lambda _: None)
    saving.behind([CallRepeated("before")])
    ordered = [Save((sent(7),), durable=True), Save((settled(6),)), Save((sent(8),), durable=True)]
    first, second = saving.order(ordered), saving.order([Save((sent(9),), durable=True)])
    saving.behind([settled(8)])
    await saving.group()
    assert claim.written == [CallRepeated("before")]
    await saving.write(second)
    assert claim.written == [CallRepeated("before"), sent(9)]
    await saving.write(first)
    assert claim.written == [CallRepeated("before"), sent(9), sent(7), settled(6), sent(8), settled(8)]


async def test_who_reads_the_store_next_waits_for_what_is_about_to_be_written() -> None:
    claim: Any = SlowClaim()
    saving = Saving(claim, 1, Timers(lambda _: None), lambda _: None)
    batch = saving.order([Save((sent(7),), durable=True)])
    claim.may_end.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(saving.all)
        await anyio.wait_all_tasks_blocked()
        assert not claim.written
        await saving.write(batch)
    assert claim.written == [sent(7)]


@define(eq=False)
class FullClaim:
    """A store on a disk that is full, or that never takes some records."""

    full: bool = True
    never: list[Record] = field(factory=list)
    written: list[Record] = field(factory=list)

    async def write(self, slot: int, records: Sequence[Record], *, durable: bool = False) -> None:
        if self.full or any(record in self.never for record in records):
            raise StoreWriteError("disk full")
        self.written += records


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def full() -> Any:
    return FullClaim()


@pytest.fixture
def saving(full: Any, told: list[Any]) -> Saving:
    return Saving(full, 1, Timers(lambda _: None), told.append)


async def test_what_a_full_disk_did_not_take_is_written_with_the_next_group(
    full: Any, saving: Saving, told: list[Any]
) -> None:
    """Else the next process would offer a session that is dead."""
    saving.behind([SessionEnded(1, "lost"), opened(2)])
    await saving.group()
    saving.behind([CallRepeated("key")])
    await saving.group()
    assert len(told) == 1, "told once, until it works again"
    full.full = False
    await saving.write(saving.order([Save((sent(7),), durable=True)]))
    assert full.written == [SessionEnded(1, "lost"), opened(2), CallRepeated("key"), sent(7)]
    full.full = True
    saving.behind([CallRepeated("other")])
    await saving.group()
    assert len(told) == 2


async def test_a_call_that_was_not_sent_gets_no_row_when_the_disk_heals(full: Any, saving: Saving) -> None:
    saving.behind([settled(1)])
    with pytest.raises(StoreWriteError):
        await saving.write(saving.order([Save((sent(2),), durable=True)]))
    full.full = False
    await saving.group()
    assert full.written == [settled(1)]


async def test_a_task_s_id_and_what_was_to_be_written_with_it_are_not_lost(full: Any, saving: Saving) -> None:
    saving.behind([settled(1)])
    with pytest.raises(StoreWriteError):
        await saving.write(saving.order([Save((task(2),), durable=True)]))
    full.full = False
    await saving.group()
    assert full.written == [settled(1), task(2)]


async def test_a_record_that_the_store_never_takes_costs_no_other(full: Any, saving: Saving) -> None:
    full.full, full.never = False, [settled(2)]
    saving.behind([settled(1), settled(2), settled(3)])
    await saving.group()
    assert full.written == [settled(1), settled(3)]
    await saving.group()
    assert full.written == [settled(1), settled(3)]


async def test_two_groups_that_fail_at_once_keep_their_order(told: list[Any]) -> None:
    class Slow(FullClaim):
        async def write(self, slot: int, records: Sequence[Record], *, durable: bool = False) -> None:
            await go_on.wait()
            await super().write(slot, records, durable=durable)

    go_on, claim = anyio.Event(), Slow()
    saving: Any = Saving(claim, 1, Timers(lambda _: None), told.append)
    async with anyio.create_task_group() as tasks:
        for number in (1, 2):
            saving.behind([CallRepeated(str(number))])
            tasks.start_soon(saving.group)
            await anyio.wait_all_tasks_blocked()
        go_on.set()
    claim.full = False
    await saving.all()
    assert claim.written == [CallRepeated("1"), CallRepeated("2")]


async def test_what_waits_for_the_disk_is_bounded_and_of_each_cursor_only_the_newest(
    full: Any, saving: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_UNSAVED", 6)
    saving.behind([opened(1), *(CallRepeated(str(n)) for n in range(9))])
    saving.behind([moved(1), moved(1, 2), moved(1, stream="a"), CursorDropped(1, "a")])
    saving.behind([settled(1, answer={"result": {}}), AnswerDrained(1, 1)])
    await saving.group()
    full.full = False
    await saving.group()
    assert full.written == [
        opened(1),
        *(CallRepeated(str(n)) for n in range(7, 9)),
        moved(1, 2),
        CursorDropped(1, "a"),
        settled(1),
        AnswerDrained(1, 1),
    ]
