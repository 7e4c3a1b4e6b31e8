"""FileLock: exclusion between processes, and within one, that ends with its holder however that dies."""

from __future__ import annotations

import os
from contextlib import suppress

from mcp_client_guard._errors import StoreError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment,unused-ignore]


_held: set[FileLock] = set()


def refuse_without_locks() -> None:
    """For whoever will lock: raises StoreError where there is no `flock`."""
    if fcntl is None:
        raise StoreError(
            "SQLiteStore needs flock, which this platform (Windows?) lacks: use MemoryStore() here, or a Store of "
            "your own"
        )


class FileLock:
    """A `flock` on a file of its own, mode 0600, which holds the process ID for people to read.

    Not a lock on the database file: closing any descriptor of that would drop the POSIX locks that
    SQLite holds on it in this process. `flock` belongs to the open file, so two holders in one process
    exclude each other, and the kernel lets go when the process is killed. A forked child has the open file as
    well, and must close it: else it would hold the lock after its parent's death.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self, *, shared: bool = False, wait: bool = False) -> bool:
        """Whether the lock was taken. With `wait`, it always is in the end."""
        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, how)
                if self._still_named(fd):
                    self._keep(fd, shared)
                    return True
            except BlockingIOError:
                os.close(fd)
                return False
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def holder(self) -> str:
        """Who holds it, for a message: "process 4711", as far as that can be read."""
        try:
            with open(self._path, encoding="ascii") as file:
                return f"process {int(file.read(20))}"
        except (OSError, ValueError):
            return "another process"

    def release(self, *, unlink: bool = False) -> None:
        """Let go. `unlink`, which comes first, only where no one takes this lock shared."""
        if self._fd is None:
            return
        if unlink:
            with suppress(OSError):
                os.unlink(self._path)
        os.close(self._fd)
        self._fd = None
        _held.discard(self)

    def _keep(self, fd: int, shared: bool) -> None:
        self._fd = fd
        _held.add(self)
        if not shared:
            with suppress(OSError):  # a full disk: the lock holds all the same
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)

    def _still_named(self, fd: int) -> bool:
        """Whether what we locked is still what others would open: a holder unlinks it as it lets go."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self._path))
        except FileNotFoundError:
            return False


def _let_go_in_child() -> None:
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows
    os.register_at_fork(after_in_child=_let_go_in_child)
