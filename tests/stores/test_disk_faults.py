"""A disk that is full or fails, at each change that a store makes: refused in words, and nothing lost or damaged.

The faults are of the operating system (`disk.c`), at the first change of the work, at the second, and so on to
the last: once, or until the end of the work.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_client_guard.stores.sqlite import SQLiteStore
from tests.stores import disk
from tests.stores.conftest import Other

Start = Callable[..., Other]

WORK = """
import ctypes, errno, json, os, shutil
from contextlib import closing
from mcp_client_guard.core.model import CallSent
from mcp_client_guard.stores import _sqlite_writer
from tests.stores.records import task

wrong, times, close = getattr(errno, args[0]), int(args[1]), args[2] == "close"
layer = ctypes.CDLL(None)
_sqlite_writer.LOG_GROUPS = 3  # so that the work has checkpoints in it
watched = os.path.dirname(path)

class Work:
    '''What was written under faults, and what was kept of it.'''
    def __init__(self):
        self.claim, self.kept, self.refused, self.errors = None, [], [], 0

    async def begin(self):
        try:
            self.claim = await claim("orders")
        except _errors.StoreWriteError:
            self.errors += 1

    async def write(self, *records, durable):
        wire_ids = [record.wire_id for record in records if isinstance(record, CallSent)]
        try:
            await self.claim.write(1, records, durable=durable)
        except _errors.StoreWriteError as refused:
            assert "nothing was kept" in str(refused), refused
            self.errors += 1
            self.refused += wire_ids
            assert await self.found() == self.kept  # reading goes on
        else:
            self.kept += wire_ids

    async def found(self):
        return [call.wire_id for call in await SQLiteStore(path).calls() if call.slot == 1]

    async def work(self):
        for n in range(0, 20, 10):
            await self.write(sent(n), sent(n + 1), durable=True)
            await self.write(settled(n, answer={"result": "x" * 2000}), durable=False)
            await self.write(sent(n + 2), task(n), durable=n == 0)

    async def check(self, *, closed_under_faults):
        '''With the disk in order: all is as it was said, and the store works.'''
        self.claim = self.claim or await claim("orders")
        await self.claim.write(2, [sent(0)], durable=True)
        for _ in range(2):  # in this life of the file, and in the next
            found = await self.found()
            if closed_under_faults:  # then what failed last may have been whole on the disk
                found = [wire_id for wire_id in found if wire_id not in self.refused]
            assert found == self.kept
            assert [call.wire_id for call in await SQLiteStore(path).calls() if call.slot == 2] == [0]
            await self.claim.release()
            self.claim = await claim("orders")
        await self.claim.release()
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

"""

FAULTS = (
    WORK
    + """
async def main():
    nth, fired, errors = 0, True, 0
    while fired:
        nth += 1
        shutil.rmtree(watched)
        os.mkdir(watched)
        work = Work()
        layer.disk_fail(nth, times, wrong, 0)
        await work.begin()
        if work.claim:
            await work.work()
            if close:
                await work.claim.release()
                work.claim = None
        fired = layer.disk_failed() > 0
        layer.disk_fail(0, 0, 0, 0)
        await work.check(closed_under_faults=close)
        errors += work.errors
    say(json.dumps({"changes": nth - 1, "errors": errors}))
anyio.run(main)
"""
)


FLUSHES = (
    WORK
    + """
marks = os.open(os.path.join(watched, "acknowledged"), os.O_WRONLY | os.O_CREAT, 0o600)

def begin_anew():
    for name in os.listdir(watched):
        if name != "acknowledged":
            os.unlink(os.path.join(watched, name))
    directory = os.open(watched, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)

async def main():
    nth, fired = 0, True
    while fired:
        nth += 1
        begin_anew()
        work = Work()
        layer.disk_fail(nth, times, wrong, 1)
        await work.begin()
        if work.claim:
            await work.work()
            if close:
                await work.claim.release()
                work.claim = None
        fired = layer.disk_failed() > 0
        layer.disk_fail(0, 0, 0, 0)
        work.claim = work.claim or await claim("orders")
        await work.write(sent(1000), durable=True)
        os.write(marks, json.dumps(work.kept).encode())
        await work.claim.release()
    say(nth - 1)
anyio.run(main)
"""
)


@pytest.mark.parametrize(
    ("wrong", "times", "close"),
    [
        ("ENOSPC", "1", "no"),
        ("ENOSPC", "-1", "no"),
        ("EIO", "1", "no"),
        ("EIO", "-1", "no"),
        ("EIO", "-1", "close"),
    ],
    ids=["short write", "full for a time", "failing once", "failing for a time", "failing to the end"],
)
def test_a_fault_at_any_change_is_told_and_takes_and_damages_nothing(
    other_process: Start, disk_layer: Path, tmp_path: Path, wrong: str, times: str, close: str
) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    env = disk.environment(disk_layer, watched)
    worker = other_process(FAULTS, watched / "agent.db", wrong, times, close, env=env)
    seen = json.loads(worker.rest(within=600))
    assert seen["changes"] > 100
    assert seen["errors"] > 20


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("close", ["no", "close"])
async def test_a_flush_that_failed_once_does_not_leave_a_gap_before_what_is_promised_later(
    other_process: Start, disk_layer: Path, tmp_path: Path, close: str
) -> None:
    """The system tells of a failed flush once, and then takes what it held for written (Linux, since 4.13)."""
    watched, left, log = tmp_path / "watched", tmp_path / "left", tmp_path / "log"
    watched.mkdir()
    env = disk.environment(disk_layer, watched, log)
    worker = other_process(FLUSHES, watched / "agent.db", "EIO", "1", close, env=env)
    assert int(worker.rest(within=600)) > 15
    platter = disk.Disk()
    for change in disk.read_log(log):
        platter.change(change)
        if change.kind == "A":  # the power fails when the last write was acknowledged
            disk.put(platter.after_power_loss(), left)
            calls = await SQLiteStore(left / "agent.db").calls()
            assert [call.wire_id for call in calls if call.slot == 1] == json.loads(change.data)
