"""SQLiteStore: ledgers and cursors in one file, which survive the process and the power."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

import anyio
import anyio.to_thread

from mcp_client_guard._errors import StoreError
from mcp_client_guard.core.model import Generation, Record
from mcp_client_guard.stores import StoredCall, StoredSession
from mcp_client_guard.stores import _sqlite_file as files
from mcp_client_guard.stores import _sqlite_jobs as jobs
from mcp_client_guard.stores import _sqlite_read as reading
from mcp_client_guard.stores import _sqlite_rows as rows
from mcp_client_guard.stores._keep import Keep
from mcp_client_guard.stores._lock import FileLock, refuse_without_locks
from mcp_client_guard.stores._sqlite_writer import Writer, writer_of

__all__ = ["SQLiteStore"]

T = TypeVar("T")


class SQLiteStore:
    """Keeps ledgers in an SQLite file, which several Guards may share, each with its own key. POSIX only.

    Nothing is opened until the first claim; the file is closed when the last claim of this process is
    released. It is made with mode 0600: it holds session IDs, which are credentials. Beside it lie
    SQLite's `-wal` and `-shm`, and our `-lock` and `-lock-*`. It needs `flock`, which is POSIX only: on Windows a
    claim raises `StoreError`; use a `MemoryStore` there.

    Several processes may write to one file only if SQLite is free of the WAL-reset bug (3.51.3 and later,
    3.50.7, 3.44.6); with others the second process gets `StoreInUse`: give each a file of its own.
    Reading always works, save in a process that was forked while its parent had the file open: that cannot use
    the file at all (`StoreError`), and holds none of its parent's keys.

    Args:
        path: of the file, whose directory exists; symbolic links are refused.
        keep_calls: settled calls kept under each key, of those that may have side effects or are named and of the
            others; open ones are always kept, and as many again that came into doubt or were cancelled within the
            last hour, or that nobody has been told of. Names, and doubts, are forgotten with their rows: keep more
            than are made within a `GuardPolicy.repeat_window` of more than an hour.
        keep_days: age in days after which settled calls and ended sessions go.

    Raises:
        ValueError: a path of no file, or bounds that cannot be meant.
        StoreError: this platform has no `flock` (Windows).
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_calls: int = 10_000, keep_days: float = 30) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise ValueError("SQLiteStore needs the path of a file; for memory there is MemoryStore")
        refuse_without_locks()
        self._path = os.path.abspath(path)
        self._keep = Keep.checked(keep_calls, keep_days)
        self._writer = writer_of(self._path)

    @property
    def most_calls(self) -> int:
        """Settled calls that may be found under a key."""
        return self._keep.most

    def __repr__(self) -> str:
        return f"SQLiteStore({self._path!r})"

    async def claim(self, key: str, *, origin: str, principal: str | None) -> SQLiteClaim:
        """Become the one owner of `key`. See `Store.claim`."""
        name = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        lock = FileLock(f"{self._path}-lock-{name}")
        held = jobs.HeldKey(rows.Owner(key, origin, principal), self._keep, lock)
        try:
            await self._writer.do(jobs.Claim(held))
        except StoreError:
            raise
        except BaseException:  # cancelled: the thread may claim it all the same, and then must let go
            self._writer.submit(jobs.Release(held))
            raise
        return SQLiteClaim(self._writer, held)

    async def calls(self, key: str | None = None) -> list[StoredCall]:
        """Every ledger row (of `key`), oldest first. See `Store.calls`."""
        self._writer.refuse_if_inherited()
        return await _in_thread(lambda: files.read(self._path, lambda db: reading.read_calls(db, key)))

    async def unfinished(self, key: str) -> list[StoredCall]:
        """The rows of `key` that are left to be seen to. See `Store`."""
        self._writer.refuse_if_inherited()
        return await _in_thread(lambda: files.read(self._path, lambda db: reading.read_unfinished(db, key)))

    async def sessions(self, key: str | None = None) -> list[StoredSession]:
        """Every session record (of `key`), oldest first. See `Store.sessions`."""
        self._writer.refuse_if_inherited()
        return await _in_thread(lambda: files.read(self._path, lambda db: reading.read_sessions(db, key)))


class SQLiteClaim:
    """Ownership of one key in the file. See `Claim`."""

    def __init__(self, writer: Writer, held: jobs.HeldKey) -> None:
        self._writer = writer
        self._held = held

    def __repr__(self) -> str:
        return f"<SQLiteClaim of {self._held.key!r}>"

    @property
    def epoch(self) -> int:
        """How often the key has been claimed."""
        return self._held.epoch

    @property
    def found(self) -> Generation | None:
        """The generation that last worked at this endpoint, when the key was claimed."""
        return self._held.found

    async def new_slot(self) -> int:
        """The slot number after the last one under this key. See `Claim.new_slot`."""
        job = jobs.NewSlot(self._held)
        await self._writer.do(job)
        return job.slot

    async def write(self, slot: int, records: Sequence[Record], *, durable: bool = False) -> None:
        """Keep `records`, in order, all or none. See `Claim.write`."""
        await self._writer.do(jobs.Write(self._held, slot, records, durable))

    async def forget(self, call_key: str) -> int:
        """Delete the owner's rows of this call key; returns how many. See `Claim.forget`."""
        job = jobs.Forget(self._held, call_key)
        await self._writer.do(job)
        return job.removed

    async def release(self) -> None:
        """Give the key up. Idempotent."""
        await self._writer.do(jobs.Release(self._held))


async def _in_thread(read: Callable[[], T]) -> T:
    """With a limiter of its own: a user's busy threads do not keep people from reading the ledger."""
    return await anyio.to_thread.run_sync(read, limiter=anyio.CapacityLimiter(1))
