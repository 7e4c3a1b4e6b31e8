"""MemoryStore: the ledger of one process, gone with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from mcp_client_guard._errors import StoreInUse, StoreOwnershipLost
from mcp_client_guard._loops import has_ended, post_to_this_loop
from mcp_client_guard.core.model import (
    CallSent,
    Generation,
    Record,
)
from mcp_client_guard.stores import StoredCall, StoredSession
from mcp_client_guard.stores._keep import Keep
from mcp_client_guard.stores._memory_rows import KeyRows

__all__ = ["MemoryStore"]


class MemoryStore:
    """Keeps ledgers in this object: nothing survives the process, and nothing is written to disk.

    A later claim of the same key on the same object sees what the earlier one wrote. `durable` has no
    meaning here. Writing never gives the event loop a turn.

    Args:
        keep_calls: settled calls kept under each key, of those that may have side effects or are named and of the
            others; open ones are always kept, and as many again that came into doubt or were cancelled within the
            last hour, or that nobody has been told of.
        keep_days: age in days after which settled calls and ended sessions go.
    """

    def __init__(self, *, keep_calls: int = 10_000, keep_days: float = 30) -> None:
        self._keep = Keep.checked(keep_calls, keep_days)
        self._keys: dict[str, KeyRows] = {}
        self._lock = threading.Lock()

    @property
    def most_calls(self) -> int:
        """Settled calls that may be found under a key."""
        return self._keep.most

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self._keys)} keys>"

    async def claim(self, key: str, *, origin: str, principal: str | None) -> MemoryClaim:
        """Become the one owner of `key` in this store. See `Store.claim`."""
        with self._lock:
            rows = self._keys.setdefault(key, KeyRows(key, self._keep))
            if rows.owner is not None and not has_ended(rows.owner.loop):
                raise StoreInUse(f"a live Guard owns key {key!r}: use another key, or leave its connection first")
            claim = MemoryClaim(rows, origin, principal)
            rows.owner, rows.epoch = claim, claim.epoch
            rows.prune(time.time())
        return claim

    async def calls(self, key: str | None = None) -> list[StoredCall]:
        """Every ledger row (of `key`), oldest first."""
        found = [row for rows in self._chosen(key) for row in list(rows.calls.values())]
        return sorted((row.stored() for row in found), key=lambda call: call.sent_at)

    async def unfinished(self, key: str) -> list[StoredCall]:
        """The rows of `key` that are left to be seen to. See `Store`."""
        return [row.stored() for rows in self._chosen(key) for row in rows.unfinished()]

    async def sessions(self, key: str | None = None) -> list[StoredSession]:
        """Every session record (of `key`), oldest first."""
        found = [session for rows in self._chosen(key) for session in rows.stored_sessions()]
        return sorted(found, key=lambda session: session.opened_at)

    def _chosen(self, key: str | None) -> list[KeyRows]:
        if key is None:
            return list(self._keys.values())
        return [self._keys[key]] if key in self._keys else []


class MemoryClaim:
    """Ownership of one key of a MemoryStore. See `Claim`."""

    __slots__ = ("_origin", "_principal", "_rows", "epoch", "loop")

    def __init__(self, rows: KeyRows, origin: str, principal: str | None) -> None:
        self.loop = post_to_this_loop()
        self._rows = rows
        self._origin = origin
        self._principal = principal
        self.epoch = rows.epoch + 1

    @property
    def found(self) -> Generation | None:
        """The generation that last worked at this endpoint."""
        return self._rows.found.get(self._origin)

    async def new_slot(self) -> int:
        """The slot number after the last one under this key. See `Claim.new_slot`."""
        rows = self._owned()
        rows.slots += 1
        return rows.slots

    async def write(self, slot: int, records: Sequence[Record], *, durable: bool = False) -> None:
        """Keep `records`, in order, all or none. See `Claim.write`."""
        rows = self._owned()
        rows.refuse_repeats(slot, records)
        now = time.time()
        for record in records:
            rows.keep(slot, record, now, self._origin, self._principal)
        rows.unpruned += sum(isinstance(record, CallSent) for record in records)
        if rows.unpruned >= rows.limits.slack:
            rows.prune(now)

    async def forget(self, call_key: str) -> int:
        """Delete the owner's rows of this call key; returns how many. See `Claim.forget`."""
        return self._owned().forget(call_key, self._principal)

    async def release(self) -> None:
        """Give the key up. Idempotent."""
        if self._rows.owner is self:
            self._rows.owner = None

    def _owned(self) -> KeyRows:
        if self._rows.owner is not self:
            raise StoreOwnershipLost(f"key {self._rows.key!r} was released: connect again")
        return self._rows
