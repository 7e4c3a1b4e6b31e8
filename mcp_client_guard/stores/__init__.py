"""Where the ledger and the cursors are kept: an async protocol with two implementations.

For a store of your own, here is also what it is given to keep: `Record` is any of them, and `isinstance` tells
which. The `CallSettled` of this module is a record, and not the event of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mcp_client_guard.core.model import (
    AnswerDrained,
    CallNamed,
    CallRepeated,
    CallSent,
    CallSettled,
    ConsentSpent,
    CursorDropped,
    CursorMoved,
    GenerationFound,
    OutcomeTold,
    Record,
    Seen,
    ServerAnswered,
    SessionEnded,
    SessionOpened,
    TaskCreated,
    TaskEnded,
    Told,
)
from mcp_client_guard.core.stored import StoredCall, StoredSession

__all__ = [
    "AnswerDrained",
    "CallNamed",
    "CallRepeated",
    "CallSent",
    "CallSettled",
    "Claim",
    "ConsentSpent",
    "CursorDropped",
    "CursorMoved",
    "GenerationFound",
    "OutcomeTold",
    "Record",
    "Seen",
    "ServerAnswered",
    "SessionEnded",
    "SessionOpened",
    "Store",
    "StoredCall",
    "StoredSession",
    "TaskCreated",
    "TaskEnded",
    "Told",
]


class Claim(Protocol):
    """Exclusive ownership of one connection key, until released or superseded.

    May have `epoch`, a number one greater than that of the key's claim before it. By it a Guard sees that nobody
    has owned the key since it did itself, and keeps what it knows of its calls; else it reads them anew.
    """

    async def new_slot(self) -> int:
        """The slot number after the last one under this key, on disk: a connection's request IDs are those of its
        slot. The first is chosen at random, for a server may know those of an earlier store."""
        ...

    async def write(self, slot: int, records: Sequence[Record], *, durable: bool = False) -> None:
        """Keep `records`, in order, all or none, stamped with the time of this call.

        With `durable=True` they survive a power loss once this returns. Without, they survive
        the death of the process. Writes that run at the same time share one flush. A cancelled write was
        kept whole or not at all, and harms no other.

        `CallSent` and `SessionOpened` add a row, and are refused where that row exists. `CallSettled`
        replaces the outcome of its row, and its answer if it brings one; `AnswerDrained` deletes the answer.
        `CallSettled` and `TaskEnded` may name another `slot`, whose row is meant instead.
        `CallRepeated` counts on the newest row of its call key, in any slot; `ConsentSpent`, `CallNamed` mark it;
        `OutcomeTold` lowers who is still to be told, in every row of its call key, and deletes their answers
        if they were `taken`. Where nobody had been told until then it stamps `settled_at` anew, and so does
        `AnswerDrained` for a call that may have run: repeats are held back from then on. A call goes, in time,
        once it has an outcome and no open task. `SessionEnded` deletes the session's cursors and answers.

        Ignored are: what is said of an unknown row (it was pruned, or its `CallSent` was refused);
        `SessionEnded`, `CursorMoved`, `CursorDropped` and `ServerAnswered` for a session that is unknown or
        has ended (the first end stays).

        Raises:
            StoreWriteError: the disk is full or failed, or a row exists already; nothing was kept. (If it was
                the flush that failed, and every write after it, the next process may find the records.)
            StoreOwnershipLost: released, or another owner has taken the key over; nothing was kept.
            StoreDamaged: the file turned out to be corrupt, or was removed or replaced while open; nothing was
                kept, nor will be until the key is released and claimed anew.
        """
        ...

    async def forget(self, call_key: str) -> int:
        """Delete every row of this call key, or name, under this key, whatever its outcome; returns how many.

        Of this principal alone: a call key of one principal's is not another's.

        For people: what is forgotten can be sent again. Flushed, and raises as `write` does.
        """
        ...

    async def release(self) -> None:
        """Give the key up. Idempotent."""
        ...


class Store(Protocol):
    """Keeps ledgers and cursors of many connection keys. Bound to no event loop until first used.

    May have `unfinished(key)`: of `calls(key)` those without an outcome, those with an open task, the earlier
    sendings of both, those of which somebody is still to be told, and the newest of each session that is no
    `ping`. It spares a Guard that knows the others the reading of them.
    """

    async def claim(self, key: str, *, origin: str, principal: str | None) -> Claim:
        """Become the one owner of `key`. An owner whose event loop has ended is none: nobody can release it.

        `origin` is the endpoint: scheme, host, port and path, and a digest of the query if there is one. Rows bear
        it. What is written of a call key is of the newest row that has it, of whichever endpoint.

        Raises:
            StoreInUse: a live owner holds the key, in this or another process. Raised at once.
            StoreDamaged: the file is foreign, newer than this version, or corrupt; it is left as it is.
            StoreError: there is no such directory, or others may read the file; or it was open when this process
                was forked.
            StoreWriteError: the disk is full or failed, so nothing could be promised.
        """
        ...

    async def calls(self, key: str | None = None) -> list[StoredCall]:
        """Every ledger row (of `key`), oldest first. Works while another process owns the key.

        Raises:
            StoreError: there is no store yet, or it cannot be read.
            StoreDamaged: foreign, newer, corrupt, or a row holds an unknown value.
        """
        ...

    async def sessions(self, key: str | None = None) -> list[StoredSession]:
        """Every session record (of `key`), oldest first. Works, and raises, as `calls` does."""
        ...
