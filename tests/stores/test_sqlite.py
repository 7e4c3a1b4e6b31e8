# ruff: noqa: ASYNC240 - small files, and nobody else in the loop
"""SQLiteStore: groups share flushes, and neither a cancelled write nor a full disk harms another."""

from __future__ import annotations

import asyncio
import logging
import resource
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio import wait_all_tasks_blocked

from mcp_client_guard._errors import StoreDamaged, StoreOwnershipLost, StoreWriteError
from mcp_client_guard.stores import _sqlite_file, _sqlite_writer
from mcp_client_guard.stores.sqlite import SQLiteClaim, SQLiteStore
from tests.stores.conftest import Commits, Other, claimed_in
from tests.stores.records import SECRET, opened, sent, settled

NORMAL, FULL = 1, 2
Start = Callable[..., Other]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


async def wire_ids(path: Path, key: str | None = None) -> list[int]:
    return [call.wire_id for call in await SQLiteStore(path).calls(key)]


async def owned(path: Path, *keys: str) -> list[SQLiteClaim]:
    """Claims whose first prune is over: jobs are done in order, and a write comes after it."""
    claims = [await claimed_in(path, key) for key in keys]
    for claim in claims:
        await claim.write(1, [])
    return claims


async def reached(commits: Commits) -> None:
    """Until a commit stands before the gate."""
    assert await anyio.to_thread.run_sync(commits.reached.wait, 30)


async def _await(write: Awaitable[Any]) -> None:
    await write


# --- groups and flushes ---------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_durable_write_is_flushed_and_another_is_not(path: Path, commits: Commits) -> None:
    (claim,) = await owned(path, "orders")
    commits.synchronous.clear()
    await claim.write(1, [sent(1)], durable=True)
    await claim.write(1, [settled(1)])
    await claim.write(1, [settled(1)])
    await claim.write(1, [sent(2)], durable=True)
    assert commits.synchronous == [FULL, NORMAL, NORMAL, FULL]
    await claim.release()


@pytest.mark.anyio
@pytest.mark.parametrize("durable", [True, False])
async def test_the_log_goes_into_the_file_and_begins_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """However little is durable, it does not grow for ever."""
    monkeypatch.setattr(_sqlite_writer, "LOG_GROUPS", 4)
    (claim,) = await owned(path, "orders")
    log, sizes = path.with_name(f"{path.name}-wal"), []
    for wire_id in range(40):
        await claim.write(1, [sent(wire_id, tool="x" * 5000)], durable=durable)
        await claim.write(1, [])  # its turn comes when the log is in the file
        sizes.append((path.stat().st_size, log.stat().st_size))
    assert sizes[0][0] < sizes[20][0] < sizes[-1][0]
    assert sizes[-1][1] < 200_000
    assert await wire_ids(path) == list(range(40))
    await claim.release()


@pytest.mark.anyio
async def test_200_durable_writes_at_once_share_a_flush(path: Path, commits: Commits) -> None:
    orders, mail = await owned(path, "orders", "mail")
    commits.synchronous.clear()
    with commits.held():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(orders.write, 1, [sent(0)])
            await reached(commits)
            for wire_id in range(1, 201):
                claim = orders if wire_id % 2 else mail
                tasks.start_soon(_await, claim.write(1, [sent(wire_id)], durable=True))
            await wait_all_tasks_blocked()
            commits._gate.set()
    assert commits.synchronous == [NORMAL, FULL]
    assert sorted(await wire_ids(path)) == list(range(201))
    await orders.release()
    await mail.release()


@pytest.mark.anyio
async def test_a_write_in_a_durable_group_is_flushed_with_it(path: Path, commits: Commits) -> None:
    (claim,) = await owned(path, "orders")
    commits.synchronous.clear()
    with commits.held():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claim.write, 1, [sent(1)])
            await reached(commits)
            tasks.start_soon(_await, claim.write(1, [sent(2)], durable=True))
            tasks.start_soon(claim.write, 1, [settled(1)])
            await wait_all_tasks_blocked()
            commits._gate.set()
    assert commits.synchronous == [NORMAL, FULL]
    await claim.release()


@pytest.mark.anyio
@pytest.mark.parametrize("cancel", ["the one that commits", "one that waits"])
async def test_a_cancelled_write_harms_no_other(path: Path, commits: Commits, cancel: str) -> None:
    (claim,) = await owned(path, "orders")
    scopes = [anyio.CancelScope(), anyio.CancelScope(), anyio.CancelScope()]

    async def write(wire_id: int) -> None:
        with scopes[wire_id]:
            await claim.write(1, [sent(wire_id)], durable=True)

    with commits.held():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, 0)
            await reached(commits)
            tasks.start_soon(write, 1)
            tasks.start_soon(write, 2)
            await wait_all_tasks_blocked()
            scopes[0 if cancel == "the one that commits" else 1].cancel()
            await wait_all_tasks_blocked()
            commits._gate.set()
    assert [scope.cancelled_caught for scope in scopes].count(True) == 1
    await claim.write(1, [sent(3)], durable=True)
    assert sorted(await wire_ids(path)) == [0, 1, 2, 3]
    await claim.release()


def test_a_write_cancelled_by_asyncio_itself_harms_no_other(path: Path, commits: Commits) -> None:
    """`Task.cancel`, as `asyncio.wait_for` does, passes through the shields of anyio."""

    async def main() -> None:
        (claim,) = await owned(path, "orders")
        with commits.held():
            writes = [asyncio.ensure_future(claim.write(1, [sent(0)], durable=True))]
            await reached(commits)
            writes += [asyncio.ensure_future(claim.write(1, [sent(n)], durable=True)) for n in (1, 2)]
            await wait_all_tasks_blocked()
            writes[0].cancel()
            writes[1].cancel()
            done = await asyncio.gather(*writes[:2], return_exceptions=True)
            assert [type(end) for end in done] == [asyncio.CancelledError, asyncio.CancelledError]
        await writes[2]
        await claim.write(1, [sent(3)], durable=True)
        assert sorted(await wire_ids(path)) == [0, 1, 2, 3]
        await claim.release()

    asyncio.run(main())


@pytest.mark.anyio
async def test_a_cancelled_claim_owns_nothing(path: Path, commits: Commits) -> None:
    (mail,) = await owned(path, "mail")
    with commits.held():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claimed_in, path, "orders")
            await reached(commits)
            tasks.cancel_scope.cancel()
    await (await claimed_in(path, "orders")).release()
    await mail.release()


@pytest.mark.anyio
async def test_a_batch_that_is_refused_harms_no_other_of_its_group(path: Path, commits: Commits) -> None:
    (claim,) = await owned(path, "orders")
    await claim.write(1, [sent(1)])
    unencodable = sent(3, tool="\ud800")
    with commits.held():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claim.write, 1, [settled(1)])
            await reached(commits)
            tasks.start_soon(_refused, claim.write(1, [sent(2), sent(1)], durable=True), StoreWriteError)
            tasks.start_soon(_refused, claim.write(1, [sent(2), unencodable]), StoreWriteError)
            tasks.start_soon(claim.write, 1, [sent(4)])
            await wait_all_tasks_blocked()
            commits._gate.set()
    assert await wire_ids(path) == [1, 4]
    await claim.release()


async def _refused(write: Awaitable[None], why: type[Exception]) -> None:
    with pytest.raises(why):
        await write


@pytest.mark.anyio
async def test_an_owner_that_was_superseded_harms_no_other_of_its_group(path: Path, commits: Commits) -> None:
    orders, mail = await owned(path, "orders", "mail")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE owner SET epoch = epoch + 1 WHERE key = 'orders'")
        db.commit()
    with commits.held():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mail.write, 1, [sent(1)])
            await reached(commits)
            tasks.start_soon(_refused, orders.write(1, [sent(2)], durable=True), StoreOwnershipLost)
            tasks.start_soon(mail.write, 1, [sent(3)])
            tasks.start_soon(_refused, orders.new_slot(), StoreOwnershipLost)
            await wait_all_tasks_blocked()
            commits._gate.set()
    assert await wire_ids(path) == [1, 3]
    with pytest.raises(StoreOwnershipLost, match="another owner"):
        await orders.write(1, [sent(4)])
    await orders.release()
    await mail.release()


def test_event_loops_in_several_threads_share_a_store(path: Path) -> None:
    store = SQLiteStore(path)

    async def use(key: str) -> None:
        claim = await store.claim(key, origin="https://example.com", principal=None)
        for wire_id in range(20):
            await claim.write(1, [sent(wire_id)], durable=True)
        await claim.release()

    def loop(key: str, backend: str) -> None:
        try:
            anyio.run(use, key, backend=backend)
        except BaseException as wrong:
            failed.append(wrong)

    failed: list[BaseException] = []
    threads = [
        threading.Thread(target=loop, args=(f"{backend}-{n}", backend))
        for backend in ("asyncio", "trio")
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    calls = anyio.run(store.calls)
    assert len(calls) == 80
    for key in {call.key for call in calls}:
        assert [call.wire_id for call in calls if call.key == key] == list(range(20))


def test_an_event_loop_that_ended_while_it_waited_harms_no_other(path: Path, commits: Commits) -> None:
    async def leave(claim: SQLiteClaim, wire_id: int) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claim.write, 1, [sent(wire_id)])
            await reached(commits)
            tasks.cancel_scope.cancel()

    (claim,) = anyio.run(owned, path, "orders")
    for wire_id, backend in enumerate(("asyncio", "trio")):
        with commits.held():
            anyio.run(leave, claim, wire_id, backend=backend)
    anyio.run(claim.release)
    assert anyio.run(wire_ids, path) == [0, 1]


@pytest.mark.anyio
async def test_the_thread_ends_with_the_last_claim(path: Path) -> None:
    orders, mail = await owned(path, "orders", "mail")
    (thread,) = [thread for thread in threading.enumerate() if str(path) in thread.name]
    await orders.release()
    await mail.write(1, [sent(1)])
    assert thread.is_alive()
    await mail.release()
    thread.join(30)
    assert not thread.is_alive()


# --- a disk that fails ----------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_full_disk_refuses_writes_and_not_reads_until_it_has_room(path: Path, commits: Commits) -> None:
    (claim,) = await owned(path, "orders")
    await claim.write(1, [sent(1)], durable=True)
    commits.page_limit = 1
    large = [sent(wire_id) for wire_id in range(100, 400)]
    with pytest.raises(StoreWriteError, match="full; nothing was kept"):
        await claim.write(1, large, durable=True)
    assert await wire_ids(path) == [1]
    commits.page_limit = 1_000_000
    await claim.write(1, large, durable=True)
    assert len(await wire_ids(path)) == 301
    await claim.release()


@pytest.mark.anyio
async def test_a_write_that_the_system_refuses_keeps_nothing_and_a_later_one_works(path: Path) -> None:
    """The real thing: the log may not grow, so the commit itself fails."""
    claim = await claimed_in(path)
    await claim.write(1, [sent(1)], durable=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("agent.db-wal").stat().st_size, hard))
    try:
        for _ in range(2):
            with pytest.raises(StoreWriteError, match="nothing was kept"):
                await claim.write(1, [sent(2)], durable=True)
        with pytest.raises(StoreWriteError):
            await claimed_in(path, "mail")
        found = await wire_ids(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found == [1]
    await claim.write(1, [sent(2)], durable=True)
    await (await claimed_in(path, "mail")).release()
    assert await wire_ids(path) == [1, 2]
    await claim.release()


@pytest.mark.anyio
async def test_the_session_id_is_in_no_error_and_no_log(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    claim = await claimed_in(path)
    with pytest.raises(StoreWriteError, match="UnicodeEncodeError") as refused:
        await claim.write(1, [opened(protocol_version="\ud800")])
    wrong: BaseException | None = refused.value
    while wrong is not None:
        assert SECRET not in repr(wrong)
        wrong = wrong.__cause__ or wrong.__context__
    assert SECRET not in caplog.text
    await claim.release()


@pytest.mark.parametrize(
    ("wrong", "becomes"),
    [
        (sqlite3.DatabaseError("database disk image is malformed"), StoreDamaged),
        (sqlite3.OperationalError("disk I/O error"), StoreWriteError),
        (OSError(28, "No space left on device"), StoreWriteError),
        (OverflowError("Python int too large"), StoreWriteError),
    ],
)
def test_what_sqlite_raises_is_told_apart(wrong: Exception, becomes: type[Exception]) -> None:
    assert type(_sqlite_file.translate(wrong, "agent.db", "write")) is becomes
