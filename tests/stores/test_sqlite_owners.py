"""SQLiteStore: a key has one live owner, readers always read, and a kill loses nothing acknowledged."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_client_guard._errors import StoreInUse
from mcp_client_guard.stores.sqlite import SQLiteStore
from tests.stores.conftest import Other, claimed_in
from tests.stores.records import sent

Start = Callable[..., Other]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


async def wire_ids(path: Path) -> list[int]:
    return [call.wire_id for call in await SQLiteStore(path).calls()]


OWN = """
async def main():
    try:
        mine = await claim(args[0])
    except _errors.StoreError as refused:
        return say(type(refused).__name__, refused)
    await mine.write(1, [sent(int(args[1]))], durable=True)
    say("owner")
    sys.stdin.readline()
    await mine.release()
    say("released")
"""
ONE_LOOP = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # processes take their time
SAFE = "_sqlite_file.several_may_write = lambda version: True\n"
UNSAFE = "_sqlite_file.several_may_write = lambda version: False\n"
RUN = "anyio.run(main)\n"


@pytest.mark.anyio
async def test_two_stores_of_one_process_exclude_each_other(path: Path) -> None:
    claim = await claimed_in(path)
    with pytest.raises(StoreInUse, match="owns key 'orders'"):
        await claimed_in(path)
    with pytest.raises(StoreInUse):
        await claimed_in(path.parent / "." / path.name)
    await claim.release()


@pytest.mark.anyio
async def test_two_stores_of_one_process_write_through_one_connection(path: Path) -> None:
    """The WAL-reset bug needs two connections, not two processes."""
    orders = await claimed_in(path, "orders")
    mail = await claimed_in(path, "mail")
    threads = [thread for thread in threading.enumerate() if str(path) in thread.name]
    assert len(threads) == 1
    await orders.release()
    await mail.release()


@pytest.mark.anyio
@ONE_LOOP
@pytest.mark.parametrize("sqlite", [SAFE, UNSAFE], ids=["safe", "unsafe"])
async def test_a_second_process_cannot_have_the_key(path: Path, other_process: Start, sqlite: str) -> None:
    first = other_process(sqlite + OWN + RUN, path, "orders", "1")
    assert first.line() == "owner"
    assert "StoreInUse" in other_process(sqlite + OWN + RUN, path, "orders", "2").line()
    assert first.rest() == "released"
    second = other_process(sqlite + OWN + RUN, path, "orders", "3")
    assert second.line() == "owner"
    assert second.rest() == "released"
    assert await wire_ids(path) == [1, 3]


@pytest.mark.anyio
@ONE_LOOP
async def test_processes_share_a_file_only_where_sqlite_is_safe(path: Path, other_process: Start) -> None:
    first = other_process(SAFE + OWN + RUN, path, "orders", "1")
    assert first.line() == "owner"
    second = other_process(SAFE + OWN + RUN, path, "mail", "2")
    assert second.line() == "owner"
    refused = other_process(UNSAFE + OWN + RUN, path, "third", "3").line()
    assert "StoreInUse" in refused
    assert "SQLite" in refused
    assert [first.rest(), second.rest()] == ["released", "released"]
    alone = other_process(UNSAFE + OWN + RUN, path, "third", "3")
    assert alone.line() == "owner"
    assert "StoreInUse" in other_process(SAFE + OWN + RUN, path, "orders", "4").line()
    assert alone.rest() == "released"
    assert await wire_ids(path) == [1, 2, 3]


@pytest.mark.anyio
@ONE_LOOP
async def test_a_killed_writer_loses_nothing_acknowledged_and_frees_its_key(
    path: Path, other_process: Start
) -> None:
    """Killed while it writes; what it said it had written, with or without a flush, is there."""
    writing = """
async def main():
    mine = await claim("orders")
    for wire_id in range(1_000_000):
        await mine.write(1, [sent(wire_id)], durable=wire_id % 2 == 0)
        say(wire_id)
"""
    victim = other_process(writing + RUN, path)
    acknowledged = [int(victim.line()) for _ in range(100)]
    acknowledged += [int(line) for line in victim.kill().split("\n")[:-1]]
    kept = await wire_ids(path)
    assert kept[: len(acknowledged)] == acknowledged
    assert len(kept) <= len(acknowledged) + 1
    claim = await claimed_in(path)
    assert claim.epoch == 2
    assert await wire_ids(path) == kept
    await claim.release()


@pytest.mark.anyio
@ONE_LOOP
async def test_an_owner_whose_key_was_taken_over_writes_no_more(path: Path, other_process: Start) -> None:
    """By a process that did not see the lock, as on a file system without any."""
    losing = """
async def main():
    mine = await claim("orders")
    say("owner")
    sys.stdin.readline()
    try:
        await mine.write(1, [sent(1)], durable=True)
    except _errors.StoreOwnershipLost:
        say("lost")
    await mine.release()
"""
    loser = other_process(SAFE + losing + RUN, path)
    assert loser.line() == "owner"
    for lock in path.parent.glob("agent.db-lock-*"):
        lock.unlink()
    winner = other_process(SAFE + OWN + RUN, path, "orders", "2")
    assert winner.line() == "owner"
    assert loser.rest() == "lost"
    assert winner.rest() == "released"
    assert await wire_ids(path) == [2]


@pytest.mark.anyio
@ONE_LOOP
async def test_reading_works_while_another_process_owns_the_key(path: Path, other_process: Start) -> None:
    owner = other_process(OWN + RUN, path, "orders", "1")
    assert owner.line() == "owner"
    assert await wire_ids(path) == [1]
    assert await SQLiteStore(path).sessions() == []
    assert owner.rest() == "released"


@pytest.mark.anyio
@ONE_LOOP
async def test_reading_works_after_a_crash_and_leaves_the_log_as_it_is(path: Path, other_process: Start) -> None:
    owner = other_process(OWN + RUN, path, "orders", "1")
    assert owner.line() == "owner"
    owner.kill()
    path.with_name("agent.db-shm").unlink()
    files = [path, path.with_name("agent.db-wal")]
    before = [file.read_bytes() for file in files]
    assert await wire_ids(path) == [1]
    assert [file.read_bytes() for file in files] == before


@pytest.mark.anyio
@ONE_LOOP
async def test_reading_in_this_process_does_not_drop_the_locks_of_its_writer(
    path: Path, other_process: Start
) -> None:
    """POSIX locks end when any descriptor of the file is closed; another program would get the file."""
    claim = await claimed_in(path)
    await claim.write(1, [sent(1)])
    await wire_ids(path)
    with pytest.raises(StoreInUse):
        await claimed_in(path)
    taking = """
try:
    sqlite3.connect(path, timeout=0).execute("PRAGMA journal_mode = DELETE")
    say("taken")
except sqlite3.OperationalError as refused:
    say(refused)
"""
    assert other_process(taking, path).line() == "database is locked"
    await claim.release()


# --- forks ----------------------------------------------------------------------------------------

FORK = """
import os, signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on Python warns of just what is tested here
def fork(child):
    "Its process ID. The child runs `child` and ends as a Python process does, with its event loop forgotten."
    pid = os.fork()
    if pid == 0:
        import threading
        thread = threading.Thread(target=child)
        thread.start()
        thread.join()
        os._exit(0)
    return pid
async def claims(path, key):
    try:
        mine = await SQLiteStore(path).claim(key, origin="https://example.com", principal=None)
        await mine.write(1, [sent(len(await SQLiteStore(path).calls()) + 1)], durable=True)
        await mine.release()
    except _errors.StoreError as refused:
        return say(key, type(refused).__name__, refused)
    say(key, "written")
"""


@pytest.mark.anyio
@ONE_LOOP
async def test_a_forked_child_is_refused_the_file_its_parent_has_open(path: Path, other_process: Start) -> None:
    script = """
async def reads():
    try:
        await SQLiteStore(path).calls()
    except _errors.StoreError as refused:
        say("read", type(refused).__name__)
def child():
    anyio.run(claims, path, "orders")
    anyio.run(claims, path, "mail")
    anyio.run(reads)
    anyio.run(claims, path + "-of-the-child", "mail")
async def main():
    mine = await claim("orders")
    os.waitpid(fork(child), 0)
    await mine.write(1, [sent(1)], durable=True)
    say("parent written")
    await mine.release()
"""
    said = other_process(FORK + script + RUN, path).rest().split("\n")
    assert [line.split(" ")[1] for line in said[:2]] == ["StoreError"] * 2
    assert "was open when this process was forked" in said[0]
    assert said[2:] == ["read StoreError", "mail written", "parent written"]


@pytest.mark.anyio
@ONE_LOOP
async def test_a_forked_child_may_use_a_file_that_was_closed(path: Path, other_process: Start) -> None:
    script = """
async def main():
    mine = await claim("orders")
    await mine.write(1, [sent(1)])
    await mine.release()
    os.waitpid(fork(lambda: anyio.run(claims, path, "orders")), 0)
    await claims(path, "orders")
"""
    assert other_process(FORK + script + RUN, path).rest().split("\n") == ["orders written"] * 2
    assert await wire_ids(path) == [1, 2, 3]


@pytest.mark.anyio
@ONE_LOOP
@pytest.mark.parametrize("sqlite", [SAFE, UNSAFE], ids=["safe", "unsafe"])
async def test_a_forked_child_that_outlives_its_parent_does_not_keep_its_key(
    path: Path, other_process: Start, sqlite: str
) -> None:
    script = """
def child():
    for fd in (0, 1, 2):
        os.close(fd)
    signal.pause()
async def main():
    mine = await claim("orders")
    await mine.write(1, [sent(1)], durable=True)
    say(fork(child))
    sys.stdin.readline()
"""
    parent = other_process(sqlite + FORK + script + RUN, path)
    child = int(parent.line())
    try:
        assert "StoreInUse" in other_process(sqlite + OWN + RUN, path, "orders", "2").line()
        parent.kill()
        next_one = other_process(sqlite + OWN + RUN, path, "orders", "3")
        assert next_one.line() == "owner"
        assert next_one.rest() == "released"
    finally:
        os.kill(child, signal.SIGKILL)
    assert await wire_ids(path) == [1, 3]


@pytest.mark.anyio
@ONE_LOOP
async def test_a_forked_child_takes_nothing_with_it_as_it_ends(path: Path, other_process: Start) -> None:
    """Whoever closes what it has inherited deletes the log by its name: by then it may be another's."""
    script = """
async def main():
    mine = await claim("orders")
    await mine.write(1, [sent(1)], durable=True)
    is_there, says_so = os.pipe()
    if os.fork() == 0:
        os.write(says_so, b".")
        for fd in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
        lives = open(args[0], "w")
        sys.stdin.read()
        sys.exit()  # as an interpreter ends: all that it holds is let go of
    os.read(is_there, 1)  # until then it holds what it has inherited
    await mine.release()
    mine = await claim("orders")
    await mine.write(1, [sent(2)], durable=True)
    say("written")
    sys.stdin.read()
"""
    fifo = path.parent / "lives"
    os.mkfifo(fifo)
    parent = other_process(FORK + script + RUN, path, str(fifo))
    with fifo.open() as child_lives:
        assert parent.line() == "written"
        parent.kill()
        child_lives.read()
    assert await wire_ids(path) == [1, 2]
