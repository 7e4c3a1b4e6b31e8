# ruff: noqa: ASYNC240 - small files, and nobody else in the loop
"""The file of a SQLite store: private, ours, whole; otherwise refused and left as it is."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mcp_client_guard._errors import StoreDamaged, StoreError, StoreWriteError
from mcp_client_guard.cli import main
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.stores import _lock, _sqlite_file
from mcp_client_guard.stores._sqlite_schema import APPLICATION_ID, VERSION
from mcp_client_guard.stores.sqlite import SQLiteStore
from tests.stores.conftest import claimed_in
from tests.stores.records import SECRET, TASK, moved, opened, replied, sent, settled, task


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent ?#%41.db"


async def used(path: Path) -> None:
    """Make a store with a bit of everything in it, and close it."""
    claim = await claimed_in(path)
    await claim.write(1, [opened(), moved(1, 2), replied(1), sent(1), task(1), sent(2)])
    await claim.write(1, [settled(1, Outcome.IN_DOUBT)])
    await claim.release()


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


async def assert_refused(path: Path, why: str) -> None:
    before = path.read_bytes()
    with pytest.raises(StoreDamaged, match=why):
        await claimed_in(path)
    with pytest.raises(StoreDamaged, match=why):
        await SQLiteStore(path).sessions()
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} <= {path.name, f"{path.name}-lock"}


@pytest.mark.anyio
async def test_every_file_is_private_whatever_the_umask(path: Path) -> None:
    umask = os.umask(0)
    try:
        claim = await claimed_in(path)
        await claim.write(1, [sent(1)])
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        await claim.release()
    finally:
        os.umask(umask)
    assert {f"{path.name}{suffix}" for suffix in ("", "-wal", "-shm", "-lock")} < set(modes)
    assert set(modes.values()) == {0o600}


@pytest.mark.anyio
async def test_the_header_says_whose_file_it_is(path: Path) -> None:
    await used(path)
    header = path.read_bytes()[:100]
    assert int.from_bytes(header[68:72], "big") == APPLICATION_ID
    assert int.from_bytes(header[60:64], "big") == VERSION


@pytest.mark.anyio
async def test_releasing_the_last_claim_closes_the_file(path: Path) -> None:
    await used(path)
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}-lock"}


@pytest.mark.anyio
async def test_a_store_can_be_used_again(path: Path) -> None:
    await used(path)
    claim = await claimed_in(path)
    await claim.write(1, [sent(3)], durable=True)
    await claim.release()
    assert [call.wire_id for call in await SQLiteStore(path).calls()] == [1, 2, 3]


@pytest.mark.anyio
async def test_an_empty_file_of_ours_becomes_a_store(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    await used(path)
    assert len(await SQLiteStore(path).calls()) == 2


@pytest.mark.anyio
async def test_whoever_dies_making_a_store_leaves_none_half_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(new: str, name: str) -> None:
        assert not path.exists()
        raise OSError("died")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(StoreError, match="died"):
            await claimed_in(path)
    assert [file.name for file in path.parent.iterdir()] == [f"{path.name}-lock"]
    await used(path)


@pytest.mark.anyio
@pytest.mark.parametrize("is_used", [False, True])
async def test_a_file_that_others_can_open_is_refused(path: Path, is_used: bool) -> None:
    if is_used:
        await used(path)
    path.touch()
    path.chmod(0o640)
    content = path.read_bytes()
    with pytest.raises(StoreError, match="chmod 600"):
        await claimed_in(path)
    assert path.read_bytes() == content


@pytest.mark.anyio
@pytest.mark.parametrize("mode", [0o600, 0o666])
async def test_another_users_file_is_refused_and_not_to_be_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    path.write_bytes(b"")
    path.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(StoreError, match=r"another user's.*: use another path$") as refused:
        await claimed_in(path)
    assert "chmod" not in str(refused.value)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setattr(_lock, "fcntl", None)


@pytest.mark.usefixtures("no_locks")
def test_where_there_are_no_locks_a_store_says_so_when_it_is_made(path: Path) -> None:
    with pytest.raises(StoreError, match="use MemoryStore"):
        SQLiteStore(path)


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("command", [["calls", "a.db"], ["call", "http://x/mcp", "add", "--store", "a.db"]])
def test_where_there_are_no_locks_the_commands_say_so_in_a_line(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    try:
        code: Any = main(command)
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr().err
    assert code == 2
    assert "use MemoryStore" in told.splitlines()[-1]


@pytest.mark.anyio
async def test_a_symbolic_link_is_refused(path: Path) -> None:
    target = path.parent / "target.db"
    await used(target)
    path.symlink_to(target)
    for refused in (claimed_in(path), SQLiteStore(path).calls()):
        with pytest.raises(StoreDamaged, match="link"):
            await refused
    dangling = path.parent / "dangling.db"
    dangling.symlink_to(path.parent / "nothing.db")
    with pytest.raises(StoreDamaged, match="link"):
        await claimed_in(dangling)
    assert not (path.parent / "nothing.db").exists()


@pytest.mark.anyio
async def test_a_directory_that_does_not_exist_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"there is no directory {re.escape(str(tmp_path / 'nowhere'))}:") as told:
        await claimed_in(tmp_path / "nowhere" / "agent.db")
    assert not isinstance(told.value, StoreWriteError), "no disk has failed"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
async def test_a_database_of_another_program_is_refused(path: Path, journal_mode: str) -> None:
    change(path, f"PRAGMA journal_mode = {journal_mode}", "CREATE TABLE call (id)")
    path.chmod(0o600)
    await assert_refused(path, "another program")


@pytest.mark.anyio
async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"Dear diary, " * 1000)
    path.chmod(0o600)
    await assert_refused(path, "not a database")


@pytest.mark.anyio
async def test_a_newer_version_is_refused(path: Path) -> None:
    await used(path)
    change(path, f"PRAGMA user_version = {VERSION + 1}")
    await assert_refused(path, "has version 6, and this package knows 5")


@pytest.mark.anyio
async def test_a_store_without_its_tables_is_refused(path: Path) -> None:
    await used(path)
    change(path, "DROP TABLE cursor")
    before = path.read_bytes()
    with pytest.raises(StoreDamaged, match="no such table"):
        await claimed_in(path)
    assert path.read_bytes() == before


@pytest.mark.anyio
@pytest.mark.parametrize("damage", ["zeroed pages", "cut short"])
async def test_a_corrupt_store_is_refused(path: Path, damage: str) -> None:
    await used(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + bytes(len(whole) - 4096) if damage == "zeroed pages" else whole[:8192])
    await assert_refused(path, "malformed|[Pp]age")


@pytest.mark.anyio
async def test_a_single_bad_page_is_found_before_anything_is_written(path: Path) -> None:
    """One that neither the schema nor the first write would come upon."""
    await used(path)
    whole = path.read_bytes()
    path.write_bytes(damaged := whole[:-4096] + b"\xff" * 4096)
    with pytest.raises(StoreDamaged, match=r"[Pp]age|malformed"):
        await claimed_in(path)
    assert path.read_bytes() == damaged


@pytest.mark.anyio
async def test_a_file_whose_log_was_on_its_way_into_it_is_whole(path: Path) -> None:
    """Killed in a checkpoint: the header is new already, and the file not yet as long as that says."""
    claim = await claimed_in(path)
    await claim.write(1, [sent(wire_id) for wire_id in range(100)])
    log, before = path.with_name(f"{path.name}-wal"), path.read_bytes()
    logged = log.read_bytes()
    await claim.release()
    after = path.read_bytes()
    assert len(after) > len(before)
    path.write_bytes(after[:4096] + before[4096:])
    log.write_bytes(logged)
    assert len(await SQLiteStore(path).calls()) == 100
    claim = await claimed_in(path)
    assert await claim.forget("key-99") == 1
    await claim.release()
    assert len(await SQLiteStore(path).calls()) == 99


@pytest.mark.anyio
@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
async def test_a_log_without_its_database_is_refused(path: Path, suffix: str) -> None:
    """SQLite would play a stray log into the new file."""
    stray = path.with_name(path.name + suffix)
    stray.write_bytes(b"left behind")
    with pytest.raises(StoreDamaged, match="lacks its database"):
        await claimed_in(path)
    assert stray.read_bytes() == b"left behind"
    assert not path.exists()


@pytest.mark.anyio
async def test_a_file_replaced_while_open_takes_no_new_owner(path: Path) -> None:
    claim = await claimed_in(path)
    path.unlink()
    with pytest.raises(StoreDamaged, match="removed or replaced"):
        await claimed_in(path, "mail")
    await claim.release()


@pytest.mark.anyio
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_what_is_written_to_a_file_without_a_name_is_not_acknowledged(
    path: Path, how: str, ending: str, durable: bool
) -> None:
    """A cleaner of temporary files, or `rm agent.db*`: the next process would find nothing of it."""
    claim = await claimed_in(path)
    await claim.write(1, [sent(1)], durable=durable)
    victim = path.with_name(path.name + ending)
    os.rename(victim, path.with_name("away"))
    if how == "replaced":
        victim.touch(mode=0o600)
    with pytest.raises(StoreDamaged, match="removed or replaced"):
        await claim.write(1, [sent(2)], durable=durable)
    os.rename(path.with_name("away"), victim)
    await claim.write(1, [sent(3)], durable=durable)
    await claim.release()
    assert [call.wire_id for call in await SQLiteStore(path).calls()] == [1, 3]


@pytest.mark.anyio
async def test_reading_what_does_not_exist_is_an_error_and_makes_nothing(path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        await SQLiteStore(path).calls()
    assert list(path.parent.iterdir()) == []
    path.touch()
    with pytest.raises(StoreError, match="is empty"):
        await SQLiteStore(path).sessions()
    assert path.read_bytes() == b""


@pytest.mark.anyio
async def test_reading_a_closed_store_writes_and_makes_nothing(path: Path) -> None:
    await used(path)
    path.chmod(0o400)
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.parent.iterdir()}
    assert len(await SQLiteStore(path).calls()) == 2
    assert len(await SQLiteStore(path).sessions()) == 1
    assert before == {f.name: (f.read_bytes(), f.stat().st_mtime_ns) for f in path.parent.iterdir()}


@pytest.mark.anyio
async def test_what_is_read_while_an_owner_comes_is_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look takes no lock; so it must not count if a log has appeared by its end."""
    await used(path)
    ask, looks = _sqlite_file._ask, []

    def owner_comes(where: str, how: str, query: Callable[[sqlite3.Connection], object]) -> object:
        found = ask(where, how, query)
        if not looks:
            Path(f"{where}-wal").touch()
        looks.append(how)
        return found

    monkeypatch.setattr(_sqlite_file, "_ask", owner_comes)
    assert len(await SQLiteStore(path).calls()) == 2
    assert looks == ["mode=ro&immutable=1", "mode=ro"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE call SET outcome = 'banana'", "unknown outcome 'banana'"),
        ("UPDATE call SET wire_id = 'one' WHERE id = 1", "wire_id must be int, not str"),
        ("UPDATE session SET generation = 'pigeon'", "unknown generation 'pigeon'"),
        (f"UPDATE session SET session_id = CAST('{SECRET}' AS BLOB)", "session_id must be str, not bytes"),
        ("UPDATE session SET initialize_result = '[]'", "initialize_result must be a JSON object"),
        ("UPDATE session SET initialize_params = '{'", "initialize_params must be a JSON object"),
        ("UPDATE cursor SET trail = '[[1, \"00\"]]'", "trail is not a list"),
        ("UPDATE cursor SET trail = '7'", "trail is not a list"),
        ("UPDATE call SET answer = '[]'", "answer must be a JSON object"),
        ("UPDATE call SET task_id = '7'", "task_id must be a JSON string"),
        (f"UPDATE call SET task_id = '{TASK}'", "task_id must be a JSON string"),
        ("UPDATE call SET repeats = 'often'", "repeats must be int, not str"),
        ("UPDATE answer SET request = 'x'", "request must be the JSON of a string or an integer"),
        ("UPDATE answer SET request = '1.5'", "request must be the JSON of a string or an integer"),
        ("UPDATE answer SET request = '[1, \"7\", null]'", "request must be the JSON of a string or an integer"),
        ("UPDATE answer SET request = '[1, 7]'", "request must be the JSON of a string or an integer"),
        ("UPDATE answer SET digest = 'x'", "digest must be bytes, not str"),
        ("UPDATE answer SET answer = '1'", "answer must be a JSON object"),
    ],
)
async def test_a_value_we_cannot_have_written_is_refused_by_name(path: Path, statement: str, why: str) -> None:
    await used(path)
    change(path, statement)
    store = SQLiteStore(path)
    with pytest.raises(StoreDamaged, match=why.replace("[", r"\[")) as refused:
        await (store.calls() if "UPDATE call" in statement else store.sessions())
    assert SECRET not in str(refused.value)
    assert TASK not in str(refused.value)


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_store_needs_a_file(path: str) -> None:
    with pytest.raises(ValueError, match="MemoryStore"):
        SQLiteStore(path)


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 45, 0), False),
        ((3, 50, 6), False),
        ((3, 50, 7), True),
        ((3, 51, 0), False),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 52, 0), True),
        ((4, 0, 0), True),
    ],
)
def test_only_a_sqlite_without_the_wal_reset_bug_lets_several_processes_write(
    version: tuple[int, ...], safe: bool
) -> None:
    assert _sqlite_file.several_may_write(version) is safe


@pytest.mark.anyio
@pytest.mark.parametrize("mode", [0o644, 0o600])
async def test_what_is_no_store_is_told_as_such_and_nothing_is_made_beside_it(path: Path, mode: int) -> None:
    """Not that its mode is wrong, which somebody might then change."""
    path.write_bytes(b"root:x:0:0:root:/root:/bin/bash\n" * 40)
    path.chmod(mode)
    with pytest.raises(StoreDamaged, match="not a database"):
        await claimed_in(path)
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) == mode
