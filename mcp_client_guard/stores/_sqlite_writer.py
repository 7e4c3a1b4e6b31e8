"""Writer: the one thread of this process that writes to a file, in groups that share a flush.

A task queues a job and waits; the thread takes everything queued, carries it out in order in as few
transactions as it can, and wakes the tasks. No task leads a group, so none can take the others down with it
when it is cancelled, by anyio or by asyncio, and tasks of several event loops share groups. The thread lives,
and the file is open, from the first claim to the release of the last.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from queue import Empty, SimpleQueue
from weakref import WeakValueDictionary

from mcp_client_guard._errors import StoreError, StoreInUse, StoreOwnershipLost
from mcp_client_guard._loops import has_ended
from mcp_client_guard.stores import _sqlite_rows as rows
from mcp_client_guard.stores._sqlite_file import OpenFile, translate
from mcp_client_guard.stores._sqlite_jobs import Claim, GroupJob, HeldKey, Job, Release
from mcp_client_guard.stores._wake import Waiter

NORMAL, FULL = 1, 2
"""Values of `PRAGMA synchronous`: with a log, NORMAL survives the process, FULL also a power loss."""

LOG_GROUPS = 32
"""Groups after which the log goes into the file, and begins anew: to flush what is written over a part of the log
takes half the time that it takes to flush what lets it grow."""

_FORK_SECONDS = 1.0
"""For which a fork waits until the thread has done what it is about; a disk may hang."""


class Writer:
    """Carries out the jobs of one file. Everything but `submit` and `do` runs in its thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._synchronous: int | None = None
        self._in_log = 0
        """Groups since the log went into the file."""
        self._is_inherited = False
        """The file was open when the parent of this process forked it."""
        self._begin()

    def _begin(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._starting = threading.Lock()
        self.working = threading.Lock()
        """Held by the thread while it does anything."""
        self._running = False
        self._file: OpenFile | None = None
        self._owners: set[HeldKey] = set()

    async def do(self, job: Job) -> None:
        """Wait until the job is done; raises its error. A cancelled job is done all the same."""
        job.waiter = Waiter()
        self.submit(job)
        await job.waiter.wait()
        if job.error is not None:
            raise job.error

    def submit(self, job: Job) -> None:
        with self._starting:
            if not self._running:
                threading.Thread(target=self._run, name=f"store {self._path}", daemon=True).start()
                self._running = True
            self._jobs.put(job)

    def refuse_if_inherited(self) -> None:
        """SQLite forbids a forked child to use what its parent has open, and finds that by the file, not the path.

        It takes the parent's locks for its own, and the next process that opens the file truncates the index
        from under it.
        """
        if self._is_inherited:
            raise StoreError(
                f"{self._path} was open when this process was forked, and cannot be used in it: use another path,"
                " fork before a Guard connects, or start processes by 'spawn' or 'forkserver'"
            )

    def in_child(self) -> None:
        """This process was forked: the thread, the claims and the open file are its parent's."""
        if self._file is not None:
            _never_close(self._file.db)
            self._is_inherited = True
        for held in self._owners:
            held.is_held = False
        self._begin()

    def _run(self) -> None:
        while True:
            jobs = self._take()
            with self.working:
                self._carry_out(jobs)
                if not self._owners and self._is_over():
                    return

    def _is_over(self) -> bool:
        """Close the file, which nobody owns a key in; with nothing queued the thread ends."""
        self._close()
        with self._starting:
            self._running = not self._jobs.empty()
            return not self._running

    def _take(self) -> list[Job]:
        """Everything queued; waits for the first."""
        jobs = [self._jobs.get()]
        with suppress(Empty):
            while True:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _carry_out(self, jobs: Sequence[Job]) -> None:
        for kind, together in groupby(jobs, key=lambda job: isinstance(job, GroupJob)):
            if kind:
                self._group([job for job in together if isinstance(job, GroupJob)])
            else:
                for job in together:
                    self._alone(job)

    def _alone(self, job: Job) -> None:
        try:
            if isinstance(job, Claim):
                self._claim(job.held)
            elif isinstance(job, Release):
                self._release(job.held)
        except Exception as wrong:
            job.error = translate(wrong, self._path, job.doing)
        _wake([job])
        if isinstance(job, Claim) and job.error is None:
            self._prune(job.held)

    # --- groups -----------------------------------------------------------------------------------

    def _group(self, jobs: Sequence[GroupJob]) -> None:
        """One transaction for all; what is wrong with one job is no concern of the others."""
        admitted = [job for job in jobs if job.held.is_held]
        for job in jobs:
            if not job.held.is_held:
                job.error = StoreOwnershipLost(f"key {job.held.key!r} was released: connect again")
        try:
            if admitted:
                self._commit(admitted, FULL if any(job.durable for job in admitted) else NORMAL)
        except Exception as wrong:
            for job in admitted:
                job.error = job.error or translate(wrong, self._path, job.doing)
        _wake(jobs)
        for held in {job.held for job in admitted}:
            if held.sent >= held.limits.slack:
                self._prune(held)
        if self._in_log >= LOG_GROUPS:
            self._empty_log()

    def _commit(self, jobs: Sequence[GroupJob], synchronous: int) -> None:
        assert self._file is not None
        self._file.refuse_if_replaced()
        with self._transaction(synchronous) as db:
            lost = {owner for owner in {job.held for job in jobs} if not owner.in_force(db)}
            for job in jobs:
                if job.held in lost:
                    job.error = StoreOwnershipLost(f"another owner took key {job.held.key!r} over: connect again")
                elif len(jobs) == 1:
                    job.run(db)
                else:
                    self._run_within(db, job)
        self._in_log += 1

    def _run_within(self, db: sqlite3.Connection, job: GroupJob) -> None:
        db.execute("SAVEPOINT job")
        try:
            job.run(db)
        except Exception as wrong:
            if _is_the_disk(wrong):
                raise
            job.error = translate(wrong, self._path, job.doing)
            db.execute("ROLLBACK TO job")
        db.execute("RELEASE job")

    @contextmanager
    def _transaction(self, synchronous: int) -> Iterator[sqlite3.Connection]:
        assert self._file is not None
        db = self._file.db
        if synchronous != self._synchronous:  # cannot be changed within a transaction
            db.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        db.execute("BEGIN IMMEDIATE")
        try:
            if self._file.log_is_suspect:
                self._file.flush_log_anew()
            yield db
            db.execute("COMMIT")
        except BaseException as wrong:
            if isinstance(wrong, sqlite3.OperationalError):
                self._file.log_is_suspect = True
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _empty_log(self) -> None:
        """As `_prune`, after the tasks were woken. Nothing that was flushed can be lost by its failure."""
        assert self._file is not None
        self._in_log = 0
        try:
            self._file.db.execute("PRAGMA wal_checkpoint")
        except sqlite3.Error:
            self._file.log_is_suspect = True  # it begins with a flush

    def _prune(self, held: HeldKey) -> None:
        """After the tasks were woken, so that no write waits for it. On a full disk, another time."""
        held.sent = 0
        with suppress(sqlite3.Error, OSError), self._transaction(NORMAL) as db:
            if held.in_force(db):
                rows.prune(db, held.key, held.limits, time.time())

    # --- ownership --------------------------------------------------------------------------------

    def _claim(self, held: HeldKey) -> None:
        self.refuse_if_inherited()
        for other in list(self._owners):
            if other.key == held.key and has_ended(other.loop):
                self._release(other)
        if self._file is None:
            self._file = OpenFile(self._path)
            self._synchronous, self._in_log = None, 0
        self._file.refuse_if_replaced()
        if not held.lock.acquire():
            raise StoreInUse(
                f"{held.lock.holder()} owns key {held.key!r} in {self._path}: use another key, or"
                " leave its connection first"
            )
        try:
            with self._transaction(FULL) as db:
                held.epoch = rows.take_over(db, held.key)
                held.found = rows.found_at(db, held.owner)
        except BaseException:
            held.lock.release(unlink=True)
            raise
        held.is_held = True
        self._owners.add(held)

    def _release(self, held: HeldKey) -> None:
        if not held.is_held:
            return
        held.is_held = False
        self._owners.remove(held)
        try:
            if not self._owners:
                self._close()
        finally:
            held.lock.release(unlink=True)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(sqlite3.Error):  # a last checkpoint that failed: the log has it all
                file.close()


def _wake(jobs: Sequence[Job]) -> None:
    Waiter.wake(job.waiter for job in jobs if job.waiter is not None)


def _is_the_disk(wrong: Exception) -> bool:
    """Whether SQLite could not read or write, so that the transaction as a whole is over."""
    return isinstance(wrong, sqlite3.OperationalError) or type(wrong) is sqlite3.DatabaseError


_writers: WeakValueDictionary[str, Writer] = WeakValueDictionary()
_finding = threading.Lock()


def writer_of(path: str) -> Writer:
    """The one Writer of this process for a file, however many stores name it."""
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    with _finding:
        writer = _writers.get(real)
        if writer is None:
            writer = _writers[real] = Writer(real)
        return writer


# --- forks ----------------------------------------------------------------------------------------

_paused: list[Writer] = []
_inherited: list[Writer] = []
"""So that none is forgotten, and made anew with the same path."""


def _before_fork() -> None:
    """A thread is not forked: what it is about would stay half done, with its locks held, in the child."""
    for writer in list(_writers.values()):
        if writer.working.acquire(timeout=_FORK_SECONDS):
            _paused.append(writer)


def _after_in_parent() -> None:
    while _paused:
        _paused.pop().working.release()


def _after_in_child() -> None:
    global _finding
    _finding = threading.Lock()
    _paused.clear()
    _inherited.extend(_writers.values())
    for writer in _inherited:
        writer.in_child()


def _never_close(db: sqlite3.Connection) -> None:
    """Not even as the interpreter ends: closing it deletes the log by its name, which may be a newer one's."""
    from ctypes import py_object, pythonapi

    pythonapi.Py_IncRef(py_object(db))


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
