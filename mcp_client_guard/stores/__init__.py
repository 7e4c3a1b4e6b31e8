"""Where the ledger and the cursors are kept: an async protocol with two implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import field, frozen

from mcp_client_guard.core.model import JSON, Generation, Outcome, Record, Seen

__all__ = ["Claim", "Store", "StoredAnswer", "StoredCall", "StoredSession"]


@frozen
class StoredCall:
    """A ledger row as a reader sees it. Times are seconds since the Unix epoch, stamped by the store."""

    key: str
    slot: int
    incarnation: int
    wire_id: int
    method: str
    tool: str | None
    call_key: str
    arguments_digest: bytes = field(repr=False)
    may_have_side_effects: bool
    sent_at: float
    outcome: Outcome | None
    """None: in flight, or left without an outcome by a process that died (then it is in doubt)."""
    reason: str | None
    settled_at: float | None
    named: bool
    """The host chose the call key."""
    answer: JSON | None = field(repr=False)
    """What the server answered, until it is drained."""
    task_id: str | None = field(repr=False)
    """Whoever holds it may read the task: a credential."""
    task_is_extension: bool
    task_open: bool
    """A task was created, and has not ended as far as is known."""
    repeats: int
    """How often somebody sent this call again, and was refused or joined to it."""


@frozen
class StoredAnswer:
    """What the host answered to a request of the server's."""

    digest: bytes = field(repr=False)
    """Of the request."""
    answer: JSON = field(repr=False)


@frozen
class StoredSession:
    """A session record as a reader sees it, with its cursors by stream name."""

    key: str
    slot: int
    incarnation: int
    generation: Generation
    origin: str
    principal: str | None
    session_id: str | None = field(repr=False)
    protocol_version: str | None
    initialize_params: JSON = field(repr=False)
    initialize_result: JSON = field(repr=False)
    opened_at: float
    ended_at: float | None
    end_reason: str | None
    cursors: Mapping[str, tuple[Seen, ...]] = field(repr=False)
    answers: Mapping[str | int, StoredAnswer] = field(repr=False)
    """To the server's requests, by their ID; oldest first, the newest 256."""
    last_used_at: float
    """The newest of its opening, its calls' sending and its cursors' moves."""


class Claim(Protocol):
    """Exclusive ownership of one connection key, until released or superseded."""

    async def new_slot(self) -> int:
        """A slot number never used before under this key."""
        ...

    async def write(self, slot: int, records: Sequence[Record], *, durable: bool = False) -> None:
        """Keep `records`, in order, all or none, stamped with the time of this call.

        With `durable=True` they survive a power loss once this returns (S7, S12). Without, they survive
        the death of the process. Writes that run at the same time share one flush. A cancelled write was
        kept whole or not at all, and harms no other.

        `CallSent` and `SessionOpened` add a row, and are refused where that row exists. `CallSettled`
        replaces the outcome of its row, and its answer if it brings one; `AnswerDrained` deletes the answer.
        `CallRepeated` counts on the newest row of its call key, in any slot. A call goes, in time, once it
        has an outcome and no open task. `SessionEnded` deletes the session's cursors and answers.

        Ignored are: what is said of an unknown row (it was pruned, or its `CallSent` was refused);
        `SessionEnded`, `CursorMoved`, `CursorDropped` and `ServerAnswered` for a session that is unknown or
        has ended (the first end stays).

        Raises:
            StoreWriteError: the disk is full or failed, or a row exists already; nothing was kept. (If it was
                the flush that failed, and every write after it, the next process may find the records.)
            StoreOwnershipLost: released, or another owner has taken the key over; nothing was kept.
            StoreDamaged: the file turned out to be corrupt; nothing was kept.
        """
        ...

    async def forget(self, call_key: str) -> int:
        """Delete every row of this call key under this key, whatever its outcome; returns how many.

        For people: what is forgotten can be sent again. Flushed, and raises as `write` does.
        """
        ...

    async def release(self) -> None:
        """Give the key up. Idempotent."""
        ...


class Store(Protocol):
    """Keeps ledgers and cursors of many connection keys. Bound to no event loop until first used."""

    async def claim(self, key: str, *, origin: str, principal: str | None) -> Claim:
        """Become the one owner of `key`.

        Raises:
            StoreInUse: a live owner holds the key, in this or another process. Raised at once.
            StoreDamaged: the file is foreign, newer than this version, or corrupt; it is left as it is.
            StoreError: there is no such directory, or others may read the file.
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
