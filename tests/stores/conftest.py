"""Both stores, a view of the commits of a SQLite store, and processes of their own."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mcp_client_guard.stores import Claim, Store
from mcp_client_guard.stores.memory import MemoryStore
from mcp_client_guard.stores.sqlite import SQLiteClaim, SQLiteStore
from tests.stores import disk

ROOT = Path(__file__).parents[2]
MakeStore = Callable[..., Store]


@pytest.fixture(params=["memory", "sqlite"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    if request.param == "memory":
        return MemoryStore
    return lambda **limits: SQLiteStore(tmp_path / "agent.db", **limits)


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()


async def claimed(store: Store, key: str = "orders") -> Claim:
    return await store.claim(key, origin="https://example.com", principal="user-17")


async def claimed_in(path: Path, key: str = "orders") -> SQLiteClaim:
    return await SQLiteStore(path).claim(key, origin="https://example.com", principal=None)


@pytest.fixture(scope="session")
def disk_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disk.build(tmp_path_factory.mktemp("disk"))


class Commits:
    """Each commit as it happens, with the `synchronous` that it runs under; and a gate before it."""

    def __init__(self) -> None:
        self.synchronous: list[int] = []
        self.connections: list[sqlite3.Connection] = []
        self.page_limit: int | None = None
        self.reached = threading.Event()
        self._gate = threading.Event()
        self._gate.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, no commit goes through: what is written meanwhile queues up behind one that waits."""
        self.reached.clear()
        self._gate.clear()
        try:
            yield
        finally:
            self._gate.set()

    def at_commit(self, synchronous: int) -> None:
        self.synchronous.append(synchronous)
        self.reached.set()
        assert self._gate.wait(30)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    seen = Commits()

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "BEGIN IMMEDIATE" and seen.page_limit is not None:
                super().execute(f"PRAGMA max_page_count = {seen.page_limit}")
            if sql == "COMMIT":
                seen.at_commit(super().execute("PRAGMA synchronous").fetchone()[0])
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
    return seen


class Other:
    """Another Python process that runs `script` with the names every such script needs."""

    def __init__(self, script: str, path: Path, *args: str, env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + script, str(path), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=env,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip() or self.rest()

    def rest(self, within: float = 60) -> str:
        """Let it go on to its end, and return what else it said."""
        out, err = self._process.communicate("\n", timeout=within)
        assert not err, err
        return out.strip()

    def kill(self) -> str:
        """SIGKILL. Returns what it had said and nobody had read."""
        self._process.kill()
        out = self._process.stdout
        assert out is not None
        # Not by `communicate`, which passes over what `line` has read ahead.
        said: str = "" if out.closed else out.read()
        self._process.communicate(timeout=60)
        return said


PREAMBLE = """
import sys, sqlite3, anyio
from mcp_client_guard import _errors
from mcp_client_guard.stores import _sqlite_file
from mcp_client_guard.stores.sqlite import SQLiteStore
from tests.stores.records import sent, settled, opened, moved
path, args = sys.argv[1], sys.argv[2:]
def say(*words): print(*words, flush=True)
async def claim(key):
    return await SQLiteStore(path).claim(key, origin="https://example.com", principal=None)
"""


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[Any]:
    started: list[Other] = []

    def start(script: str, path: Path, *args: str, env: Mapping[str, str] | None = None) -> Other:
        started.append(Other(script, path, *args, env=env))
        return started[-1]

    yield start
    for other in started:
        other.kill()
