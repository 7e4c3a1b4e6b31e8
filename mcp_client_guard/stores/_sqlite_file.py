"""The file of a SQLite store: made, checked, opened; and never repaired, replaced or opened on trust."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from mcp_client_guard._errors import StoreDamaged, StoreError, StoreInUse, StoreWriteError
from mcp_client_guard.stores._lock import FileLock
from mcp_client_guard.stores._sqlite_schema import (
    APPLICATION_ID,
    SCHEMA,
    VERSION,
    bring_up_to_date,
    check_tables,
    version_of,
)

BUSY_TIMEOUT = 5.0
"""Seconds to wait for another process's transaction on the same file."""

T = TypeVar("T")


def several_may_write(version: tuple[int, ...]) -> bool:
    """Whether this SQLite is free of the WAL-reset bug, by which two writing processes can corrupt a file."""
    return version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)


def translate(wrong: Exception, path: str, doing: str) -> StoreError:
    """What an error of SQLite or the system means to our caller. Texts of values (credentials) stay out."""
    if isinstance(wrong, StoreError):
        return wrong
    # SQLITE_CORRUPT and SQLITE_NOTADB are the ones that Python maps to the base class itself.
    if type(wrong) is sqlite3.DatabaseError:
        return StoreDamaged(f"{path}: {wrong}; move it away, or use another path")
    if isinstance(wrong, (sqlite3.Error, OSError)):
        return StoreWriteError(f"{path}: {doing} failed: {wrong}; nothing was kept")
    return StoreWriteError(f"{path}: {doing} failed: {type(wrong).__name__}; nothing was kept")


# --- opening to write -----------------------------------------------------------------------------


class OpenFile:
    """The one connection through which this process writes to a file, and the lock that says so."""

    def __init__(self, path: str) -> None:
        """Opens, and makes the file if there is none. Raises what `Store.claim` does."""
        if not os.path.isdir(os.path.dirname(path)):
            raise StoreError(f"there is no directory {os.path.dirname(path)}: make it first")
        _refuse_foreign(path)
        self._path = path
        self._lock = FileLock(f"{path}-lock")
        shared = several_may_write(sqlite3.sqlite_version_info)
        if not self._lock.acquire(shared=shared):
            raise StoreInUse(
                f"{self._lock.holder()} writes to {path}, and SQLite {sqlite3.sqlite_version} allows one"
                " process per file: use another path (the same at each start), or SQLite 3.51.3 or later"
            )
        try:
            if not _is_store(path):
                _make(path)
            _examine(path)
            self._files = {path: os.lstat(path)}
            self.log_is_suspect = os.path.lexists(f"{path}-wal")
            """A flush of the log may have failed, here or in the process that left it."""
            self.db = connect(path, "mode=rw")
            try:
                _prepare(self.db, path)
                self._files |= {name: os.lstat(name) for name in (f"{path}-wal", f"{path}-shm")}
                _flush_directory(path)
            except BaseException:
                self.db.close()
                raise
        except BaseException:
            self._lock.release()
            raise

    def refuse_if_replaced(self) -> None:
        """What is written to a file that has lost its name is lost; so it is with the log and its index."""
        for name, opened in self._files.items():
            try:
                same = os.path.samestat(opened, os.lstat(name))
            except FileNotFoundError:
                same = False
            if not same:
                raise StoreDamaged(f"{name} was removed or replaced while open: close the Guards of {self._path}")

    def flush_log_anew(self) -> None:
        """Write what the log holds over itself, and flush it; while nobody else can write to it.

        A system tells of a failed flush once, and from then on takes what it holds for written. So the next
        flush would succeed with a gap before what it flushed, at which SQLite stops after a power loss.
        """
        with suppress(FileNotFoundError):
            log = os.open(f"{self._path}-wal", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                done = 0
                while part := os.pread(log, 1 << 20, done):
                    done += os.pwrite(log, part, done)
                os.fsync(log)
            finally:
                os.close(log)  # SQLite has no lock on this file that would go with it
        self.log_is_suspect = False

    def close(self) -> None:
        """The connection first: closing it writes."""
        try:
            self.db.close()
        finally:
            self._lock.release()


def connect(path: str, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{Path(path).as_uri()}?{how}", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT)


def _prepare(db: sqlite3.Connection, path: str) -> None:
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(f"{path}: this file system cannot hold a write-ahead log, only {mode!r}")
    # SQLite's own would come within a commit that somebody waits for, and keep its errors to itself.
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("PRAGMA trusted_schema = OFF")
    if sys.platform == "darwin":  # there fsync alone does not reach the disk
        db.execute("PRAGMA fullfsync = ON")
    bring_up_to_date(db)


def _refuse_foreign(path: str) -> None:
    """Before anything is made beside it, and before its mode is found fault with, which is not ours to change."""
    # What cannot be opened is left to `_is_store`, which says why.
    with suppress(FileNotFoundError, sqlite3.OperationalError):
        if os.lstat(path).st_size > 0:
            _check_header(path)


def _is_store(path: str) -> bool:
    """Whether a file is there that may be a store; False if one is to be made. No link is followed."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        found = None
    if found is not None:
        if not stat.S_ISREG(found.st_mode):
            raise StoreDamaged(f"{path} is a link or no plain file: use the path of the file itself")
        if found.st_uid != os.geteuid():
            raise StoreError(f"{path} is another user's, who could read our credentials there: use another path")
        if found.st_mode & 0o077:
            raise StoreError(f"{path} holds credentials and others can open it: `chmod 600` it")
        if found.st_size > 0:
            return True
    for left in ("-wal", "-journal"):
        if os.path.exists(path + left) and os.path.getsize(path + left):
            raise StoreDamaged(f"{path}{left} lacks its database: move it away, or use another path")
    return False


def _make(path: str) -> None:
    """A complete store under another name, then renamed: whoever dies here leaves no half-made one.

    Under a lock, because the rename would replace what another process has just made.
    """
    lock = FileLock(f"{path}-new-lock")
    lock.acquire(wait=True)
    new = f"{path}-new-{uuid4().hex}"
    try:
        if _is_store(path):
            return
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        with closing(connect(new, "mode=rw")) as db:
            _fill(db)
        os.replace(new, path)
        _flush_directory(path)
    finally:
        for left in ("", "-journal", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(new + left)
        lock.release(unlink=True)


def _fill(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN")
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")
    for table in SCHEMA:
        db.execute(table)
    db.execute("COMMIT")
    db.execute("PRAGMA journal_mode = WAL")


def _flush_directory(path: str) -> None:
    """So that a power loss cannot take back the name of a file whose content it must keep.

    Of its log, too: SQLite flushes that name once, and does not look at what comes of it.
    """
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _examine(path: str) -> None:
    """Refuse what is not ours before anything of it, its log or its index is touched."""
    _check_header(path)

    verdict = _look(path, _verdict)
    if verdict != "ok":
        raise StoreDamaged(f"{path}: {verdict}; move it away, or use another path")


def _verdict(db: sqlite3.Connection) -> str:
    if version_of(db) > VERSION:  # which stood in the log only
        return _newer(version_of(db))
    try:
        check_tables(db)
    except sqlite3.OperationalError as wrong:
        return str(wrong)
    verdict: str = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    return " ".join(verdict.replace("*** in database main ***", "").split())


# --- reading --------------------------------------------------------------------------------------


def read(path: str, query: Callable[[sqlite3.Connection], T]) -> T:
    """Run `query` on a connection of its own that cannot write. Raises what `Store.calls` does."""
    try:
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and found.st_size == 0:
            raise _unused(f"{path} is empty")
        _check_header(path)
        return _look(path, lambda db: query(_up_to_date(db, path)))
    except FileNotFoundError:
        raise _unused(f"{path} does not exist") from None
    except ValueError as wrong:
        raise StoreDamaged(f"{path}: {wrong}; another version may have written it") from None
    except (sqlite3.OperationalError, OSError) as wrong:
        raise StoreError(f"{path} cannot be read: {wrong}") from wrong
    except sqlite3.DatabaseError as wrong:
        raise translate(wrong, path, "reading") from wrong


def _unused(why: str) -> StoreError:
    error = StoreError(f"{why}: no Guard has used this store yet")
    error.is_unused = True
    return error


def _check_header(path: str) -> None:
    """Whose file it is, and that it is not newer. `immutable`: no lock is taken, no log or index made beside it.

    What is in the log counts as well, but to see that a file has to be opened that may not be ours.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise StoreDamaged(f"{path} is a link or no plain file: use the path of the file itself")
    try:
        with closing(connect(path, "mode=ro&immutable=1")) as db:
            # While its log goes into it, a file is shorter than its header says; and so it stays if the power
            # or the process fails then. SQLite calls that malformed, save in this mode.
            db.execute("PRAGMA writable_schema = ON")
            application = db.execute("PRAGMA application_id").fetchone()[0]
            version = version_of(db)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as wrong:
        raise StoreDamaged(f"{path}: {wrong}; use another path") from wrong
    if application != APPLICATION_ID:
        raise StoreDamaged(f"{path} is a database of another program; use another path")
    if not 1 <= version <= VERSION:
        raise StoreDamaged(f"{path} {_newer(version)}")


def _newer(version: int) -> str:
    return f"has version {version}, and this package knows {VERSION}: upgrade it"


def _up_to_date(db: sqlite3.Connection, path: str) -> sqlite3.Connection:
    """Reading changes nothing, and so cannot bring a file up to date."""
    version = version_of(db)
    if version > VERSION:
        raise StoreDamaged(f"{path} {_newer(version)}")
    if version < VERSION:
        raise StoreError(f"{path} has version {version}: the next Guard that uses it makes it {VERSION}")
    return db


def _look(path: str, query: Callable[[sqlite3.Connection], T]) -> T:
    """Run `query` without writing.

    A WAL database cannot be opened without making a log and an index beside it, even to read; only with
    `immutable`, which ignores the log and takes no lock. So that is used while nobody has the file open,
    and the answer counts only if nobody had until the end.
    """
    for _ in range(3):
        before = _at_rest(path)
        if before is None:
            break
        try:
            found = _ask(path, "mode=ro&immutable=1", query)
        except (sqlite3.DatabaseError, ValueError, StoreError):
            if _at_rest(path) == before:
                raise
        else:
            if _at_rest(path) == before:
                return found
    return _ask(path, "mode=ro", query)


def _at_rest(path: str) -> tuple[int, ...] | None:
    """What tells one state of the file from the next, or None where a log says that it may be open."""
    if os.path.lexists(f"{path}-wal"):
        return None
    found = os.lstat(path)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _ask(path: str, how: str, query: Callable[[sqlite3.Connection], T]) -> T:
    with closing(connect(path, how)) as db:
        db.execute("BEGIN")  # one state for all that `query` reads
        return query(db)
