# ruff: noqa: ASYNC240 - small files, and nobody else in the loop
"""A file of an earlier version is brought up to date whole or not at all, and only by an owner."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mcp_client_guard._errors import StoreDamaged, StoreError
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.stores import _sqlite_schema as schema
from mcp_client_guard.stores.sqlite import SQLiteStore
from tests.stores import version_1
from tests.stores.conftest import claimed_in
from tests.stores.records import SECRET, moved, opened, replied, sent, settled, task, trail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def first(path: Path) -> Path:
    """A file that the first version of the store left behind."""
    version_1.make(path)
    return path


def layout(path: Path) -> dict[str, list[object]]:
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: db.execute(f"PRAGMA table_info({table})").fetchall() for table in tables}


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return schema.version_of(db)


@pytest.mark.anyio
async def test_a_file_of_version_1_is_brought_up_to_date_with_all_that_it_held(first: Path) -> None:
    await (await claimed_in(first)).release()
    assert version(first) == schema.VERSION
    unknown, known = await SQLiteStore(first).calls()
    assert (unknown.call_key, unknown.sent_at, unknown.outcome) == ("key-1", 4e9 + 5, None)
    assert (known.call_key, known.outcome, known.settled_at) == ("key-2", Outcome.COMPLETED, 4e9 + 7)
    assert (known.named, known.answer, known.task_id, known.task_open) == (False, None, None, False)
    assert (known.origin, known.principal) == ("https://example.com", None), "as its slot's sessions"
    (session,) = await SQLiteStore(first).sessions()
    assert (session.session_id, session.opened_at, session.last_used_at) == (SECRET, 4e9 + 4, 4e9 + 6)
    assert (dict(session.cursors), session.answers) == ({"get": trail(1)}, ())


@pytest.mark.anyio
async def test_a_file_brought_up_to_date_is_like_a_new_one_and_does_all_that_it_does(
    first: Path, tmp_path: Path
) -> None:
    claim = await claimed_in(first)
    assert await claim.new_slot() == 4
    await claim.write(4, [opened(), moved(1), sent(1), task(1), settled(1, answer={"result": 1}), replied(1)])
    await claim.release()
    await (await claimed_in(tmp_path / "new.db")).release()
    assert layout(first) == layout(tmp_path / "new.db")
    assert [call.answer for call in await SQLiteStore(first).calls()] == [None, None, {"result": 1}]


@pytest.mark.anyio
async def test_an_answer_of_which_only_the_id_was_written_is_read(path: Path) -> None:
    """Earlier packages wrote no more, in a file of the same version."""
    claim = await claimed_in(path)
    await claim.write(1, [opened(), replied(1), replied("a")])
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE answer SET request = json_extract(request, '$[0]') WHERE request LIKE '[1,%'")
        db.execute("""UPDATE answer SET request = '"a"' WHERE request LIKE '["a"%'""")
    (session,) = await SQLiteStore(path).sessions()
    assert session.answers == tuple(replied(request_id, stream=None, event_id=None) for request_id in (1, "a"))
    await claim.release()


@pytest.mark.anyio
async def test_a_step_that_fails_leaves_the_file_as_it_was(first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = layout(first)
    with monkeypatch.context() as patch:
        patch.setitem(schema.STEPS, 1, (*schema.STEPS[1], "DROP TABLE missing"))
        with pytest.raises(StoreError, match="no such table: missing"):
            await claimed_in(first)
    assert (layout(first), version(first)) == (before, 1)
    await (await claimed_in(first)).release()
    assert version(first) == schema.VERSION


@pytest.mark.anyio
async def test_reading_does_not_bring_a_file_up_to_date(first: Path) -> None:
    before = first.read_bytes()
    for read in (SQLiteStore(first).calls, SQLiteStore(first).sessions):
        with pytest.raises(StoreError, match="has version 1: the next Guard that uses it makes it 5") as refused:
            await read()
        assert type(refused.value) is StoreError
    assert first.read_bytes() == before
    assert list(first.parent.iterdir()) == [first]


@pytest.mark.anyio
async def test_a_version_that_stands_in_the_log_alone_is_known(first: Path, tmp_path: Path) -> None:
    """Who brought the file up to date may have died before its log went into the file."""
    claim = await claimed_in(first)
    died = tmp_path / "died"
    died.mkdir()
    for suffix in ("", "-wal"):
        (died / f"agent.db{suffix}").write_bytes(first.with_name(f"agent.db{suffix}").read_bytes())
        (died / f"agent.db{suffix}").chmod(0o600)
    await claim.release()
    left = died / "agent.db"
    assert int.from_bytes(left.read_bytes()[60:64], "big") == 1
    assert len(await SQLiteStore(left).calls()) == 2
    await (await claimed_in(left)).release()
    assert (layout(left), version(left)) == (layout(first), schema.VERSION)


@pytest.mark.anyio
async def test_a_newer_version_that_stands_in_the_log_alone_is_refused(first: Path) -> None:
    with closing(sqlite3.connect(first)) as newer:
        newer.execute("PRAGMA user_version = 6")
        assert int.from_bytes(first.read_bytes()[60:64], "big") == 1
        with pytest.raises(StoreDamaged, match="has version 6, and this package knows 5"):
            await claimed_in(first)
        with pytest.raises(StoreDamaged, match="has version 6, and this package knows 5"):
            await SQLiteStore(first).calls()
    assert "answer" not in layout(first)


@pytest.mark.anyio
@pytest.mark.parametrize("number", [0, -1, 6])
async def test_a_version_that_never_was_is_refused(first: Path, number: int) -> None:
    with closing(sqlite3.connect(first)) as db:
        db.execute(f"PRAGMA user_version = {number}")
    before = first.read_bytes()
    with pytest.raises(StoreDamaged, match=f"has version {number}, "):
        await claimed_in(first)
    assert first.read_bytes() == before


@pytest.mark.anyio
async def test_two_that_bring_a_file_up_to_date_at_once_do_it_once(first: Path) -> None:
    with closing(sqlite3.connect(first, isolation_level=None)) as db:
        schema.bring_up_to_date(db)
        schema.bring_up_to_date(db)
        late = _Late(db)
        schema.bring_up_to_date(late)  # type: ignore[arg-type]
    assert late.looks == 0
    await (await claimed_in(first)).release()


class _Late:
    """A connection that saw version 1 just before another brought the file up to date."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.looks = 1
        self.in_transaction = False

    def execute(self, sql: str) -> sqlite3.Cursor:
        if sql == "PRAGMA user_version" and self.looks:
            self.looks -= 1
            return self._db.execute("SELECT 1")
        return self._db.execute(sql)
