"""What tasks ask of the thread that writes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from mcp_client_guard._errors import StoreError
from mcp_client_guard._loops import post_to_this_loop
from mcp_client_guard.core.model import CallSent, Generation, Record
from mcp_client_guard.stores import _sqlite_rows as rows
from mcp_client_guard.stores._keep import Keep
from mcp_client_guard.stores._lock import FileLock
from mcp_client_guard.stores._wake import Waiter


class HeldKey:
    """The right to write under one key, while it lasts. Changed by the thread only."""

    def __init__(self, owner: rows.Owner, limits: Keep, lock: FileLock) -> None:
        self.loop = post_to_this_loop()
        self.owner = owner
        self.limits = limits
        self.lock = lock
        self.is_held = False
        self.epoch = 0
        self.found: Generation | None = None
        self.sent = 0
        """Calls sent since the last prune."""

    @property
    def key(self) -> str:
        return self.owner.key

    def in_force(self, db: sqlite3.Connection) -> bool:
        """Whether nobody has taken the key over since."""
        return rows.epoch_of(db, self.key) == self.epoch


class Job:
    """Something for the thread to do, once, in its turn."""

    doing = "work"

    def __init__(self, held: HeldKey) -> None:
        self.held = held
        self.waiter: Waiter | None = None
        self.error: StoreError | None = None


class Claim(Job):
    """Make the ownership held."""

    doing = "claim"


class Release(Job):
    """Let go of the ownership, if it is held."""

    doing = "release"


class GroupJob(Job):
    """Something that may share its transaction with others."""

    durable = False

    def run(self, db: sqlite3.Connection) -> None:
        raise NotImplementedError


class NewSlot(GroupJob):
    """Take the next slot number, which is never used again."""

    doing = "new slot"
    durable = True
    slot = 0

    def run(self, db: sqlite3.Connection) -> None:
        self.slot = rows.add_slot(db, self.held.key)


class Write(GroupJob):
    """Keep records."""

    doing = "write"

    def __init__(self, held: HeldKey, slot: int, records: Sequence[Record], durable: bool) -> None:
        super().__init__(held)
        self.slot = slot
        self.records = tuple(records)  # the caller may be cancelled, and go on with its list
        self.durable = durable
        self.at = time.time()

    def run(self, db: sqlite3.Connection) -> None:
        rows.keep(db, self.held.owner, self.slot, self.records, self.at)
        self.held.sent += sum(isinstance(record, CallSent) for record in self.records)


class Forget(GroupJob):
    """Delete the owner's rows of a call key."""

    doing = "forget"
    durable = True

    def __init__(self, held: HeldKey, call_key: str) -> None:
        super().__init__(held)
        self.call_key = call_key
        self.removed = 0

    def run(self, db: sqlite3.Connection) -> None:
        self.removed = rows.forget(db, self.held.owner, self.call_key)
