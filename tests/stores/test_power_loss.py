"""S7: what was acknowledged survives a power loss, at any moment, with nothing kept that was not flushed.

A process works on a store while every change of its files is logged (`disk.c`). Then each moment of that log is
one at which the power may have failed; what the disk would hold then is put into a directory and opened.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field, frozen

from mcp_client_guard.stores import StoredCall, StoredSession
from mcp_client_guard.stores.sqlite import SQLiteStore
from tests.stores import disk, version_1
from tests.stores.conftest import Other

Start = Callable[..., Other]
NAME = "agent.db"
NORMAL, FULL = 1, 2
ONE_LOOP = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # it does not matter here

WORKLOAD = """
import json, os
from mcp_client_guard.core.model import TaskEnded
from mcp_client_guard.stores import _sqlite_writer
from tests.stores.records import replied, task

_sqlite_writer.LOG_GROUPS = 3  # so that the log goes into the file, and begins anew, often
_sqlite_writer.FULL = int(args[0])

marks = os.open(os.path.join(os.path.dirname(path), "acknowledged"), os.O_WRONLY | os.O_CREAT, 0o600)
def acknowledged(**what): os.write(marks, json.dumps(what).encode())

async def durable(claim, slot, *wire_ids):
    await claim.write(slot, [sent(wire_id) for wire_id in wire_ids], durable=True)
    acknowledged(calls=[[slot, wire_id] for wire_id in wire_ids])

async def work():
    mine = await claim("orders")
    acknowledged(claimed=True)
    slot = await mine.new_slot()
    acknowledged(slot=slot)
    await mine.write(slot, [opened()])
    for wire_id in range(0, 60, 10):
        await durable(mine, slot, wire_id)
        await mine.write(slot, [moved(wire_id), replied(wire_id), settled(wire_id, answer={"result": wire_id})])
        await durable(mine, slot, wire_id + 1, wire_id + 2)
        await mine.write(slot, [task(wire_id + 1)], durable=True)
        acknowledged(tasks=[[slot, wire_id + 1]])
        await mine.write(slot, [sent(wire_id + 3)])
        async with anyio.create_task_group() as tasks:
            for n in (4, 5, 6):
                tasks.start_soon(durable, mine, slot, wire_id + n)
    acknowledged(forgetting=50)
    await mine.forget("key-50")
    acknowledged(forgotten=50)
    await mine.release()

async def main():
    await work()
    await work()  # the file was closed between
    say("done")
anyio.run(main)
"""


UPDATE = """
async def main():
    await (await claim("orders")).release()
    say("done")
anyio.run(main)
"""

Call = tuple[int, int]


@define
class Promised:
    """What the process was told is safe, up to a moment."""

    claimed: bool = False
    slots: set[int] = field(factory=set)
    calls: set[Call] = field(factory=set)
    tasks: set[Call] = field(factory=set)
    leaving: set[Call] = field(factory=set)
    gone: set[Call] = field(factory=set)

    def learn(self, mark: Mapping[str, Any]) -> None:
        match mark:
            case {"claimed": True}:
                self.claimed = True
            case {"slot": slot}:
                self.slots.add(slot)
            case {"calls": calls}:
                self.calls |= {(slot, wire_id) for slot, wire_id in calls}
            case {"tasks": calls}:
                self.tasks |= {(slot, wire_id) for slot, wire_id in calls}
            case {"forgetting": wire_id}:
                self.leaving = {call for call in self.calls if call[1] == wire_id}
                self.calls -= self.leaving
            case {"forgotten": _}:
                self.gone |= self.leaving

    def broken_by(self, calls: list[StoredCall], sessions: list[StoredSession]) -> list[object]:
        """What was promised and is not so."""
        found = {(call.slot, call.wire_id): call for call in calls}
        slots = {session.slot for session in sessions}
        return [
            *sorted(self.calls - found.keys()),
            *sorted(self.gone & found.keys()),
            *sorted(call for call in self.tasks if call not in found or not found[call].task_open),
            # Written earlier, though without a flush: what is flushed takes along what came before it.
            *sorted({slot for slot, _ in self.calls} - slots),
            *(call for call in found if call[1] % 10 == 1 and (call[0], call[1] + 1) not in found),
        ]


async def broken_promises(
    image: Mapping[str, bytes], promised: Promised, where: Path, *, claimed: bool
) -> list[object]:
    """What a new process finds, and if it becomes the owner does, that is not as it was promised."""
    disk.put(image, where)
    store = SQLiteStore(where / NAME)
    if NAME not in image:
        return ["the store"] if promised.claimed else []
    found = promised.broken_by(await store.calls(), await store.sessions())
    if not claimed:
        return found
    claim = await store.claim("orders", origin="https://example.com", principal=None)
    if await claim.new_slot() in promised.slots:
        found.append("a slot number comes again")
    await claim.release()
    return found


def run(
    start: Start, layer: Path, directory: Path, synchronous: int, workload: str = WORKLOAD
) -> list[disk.Change]:
    """The workload, and the log of its disk."""
    watched, log = directory / "watched", directory / "log"
    watched.mkdir(exist_ok=True)
    worker = start(workload, watched / NAME, str(synchronous), env=disk.environment(layer, watched, log))
    assert worker.rest(within=600) == "done"
    return list(disk.read_log(log))


def moments(log: list[disk.Change], files: Mapping[str, bytes] | None = None) -> Iterator[tuple[Moment, Promised]]:
    """Each after which the power may fail, with what the disk is left with then, and what was promised."""
    platter, promised, seed = disk.Disk(files), Promised(), 0
    for number, change in enumerate(log):
        if change.kind == "A":
            promised.learn(json.loads(change.data))
        else:
            platter.change(change)
        if change.kind in "ASF":  # nothing else changes what is surely left
            yield Moment(number, None, platter.after_power_loss()), promised
        elif number % 3 == 0:
            seed += 1
            yield Moment(number, seed, platter.after_power_loss(random.Random(seed))), promised


@frozen
class Moment:
    """Of a power loss: after which change, and by which seed some of what was not flushed is left."""

    after: int
    seed: int | None
    files: Mapping[str, bytes] = field(repr=False)


async def broken_in(log: list[disk.Change], directory: Path) -> list[tuple[Moment, list[object]]]:
    """Every moment at which a power loss would break a promise."""
    found = []
    for moment, promised in moments(log):
        has_unused_slot = bool(promised.slots - {slot for slot, _ in promised.calls})  # few moments have one
        claimed = has_unused_slot or moment.after % 4 == 0
        if broken := await broken_promises(moment.files, promised, directory / "left", claimed=claimed):
            found.append((moment, broken))
    return found


@pytest.mark.anyio
@ONE_LOOP
async def test_a_power_loss_takes_nothing_that_was_acknowledged(
    other_process: Start, disk_layer: Path, tmp_path: Path
) -> None:
    log = run(other_process, disk_layer, tmp_path, FULL)
    assert await broken_in(log, tmp_path) == []
    assert [change.name for change in log if change.kind == "U"].count(f"{NAME}-wal") == 2  # closed twice


@pytest.mark.anyio
@ONE_LOOP
async def test_without_a_flush_a_power_loss_takes_ledger_rows_and_this_test_sees_it(
    other_process: Start, disk_layer: Path, tmp_path: Path
) -> None:
    log = run(other_process, disk_layer, tmp_path, NORMAL)
    lost = await broken_in(log, tmp_path)
    rows = {row for _, broken in lost for row in broken if isinstance(row, tuple)}
    assert rows
    assert all("the store" not in broken for _, broken in lost)


@pytest.mark.anyio
@ONE_LOOP
async def test_a_power_loss_while_a_file_is_brought_up_to_date_takes_nothing(
    other_process: Start, disk_layer: Path, tmp_path: Path
) -> None:
    first = tmp_path / "watched" / NAME
    first.parent.mkdir()
    version_1.make(first)
    files = {NAME: first.read_bytes()}
    log = run(other_process, disk_layer, tmp_path, FULL, UPDATE)
    left = tmp_path / "left"
    for moment, _ in moments(log, files):
        disk.put(moment.files, left)
        store = SQLiteStore(left / NAME)
        await (await store.claim("orders", origin="https://example.com", principal=None)).release()
        assert [call.call_key for call in await store.calls()] == ["key-1", "key-2"], moment
