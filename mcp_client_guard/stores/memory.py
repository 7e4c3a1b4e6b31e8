"""MemoryStore: the ledger of one process, gone with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from attrs import define, evolve, field

from mcp_client_guard._errors import StoreInUse, StoreOwnershipLost, StoreWriteError
from mcp_client_guard.core.model import (
    CallSent,
    CallSettled,
    CursorDropped,
    CursorMoved,
    Record,
    Seen,
    SessionEnded,
    SessionOpened,
    assert_never,
)
from mcp_client_guard.stores import StoredCall, StoredSession
from mcp_client_guard.stores._keep import CURSOR_ROWS, ENDED_SESSIONS, Keep

__all__ = ["MemoryStore"]


class MemoryStore:
    """Keeps ledgers in this object: nothing survives the process, and nothing is written to disk.

    A later claim of the same key on the same object sees what the earlier one wrote. `durable` has no
    meaning here. Writing never gives the event loop a turn.

    Args:
        keep_calls: settled calls kept under each key; open ones are always kept.
        keep_days: age in days after which settled calls and ended sessions go.
    """

    def __init__(self, *, keep_calls: int = 10_000, keep_days: float = 30) -> None:
        self._keep = Keep.checked(keep_calls, keep_days)
        self._ledgers: dict[str, _Ledger] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self._ledgers)} keys>"

    async def claim(self, key: str, *, origin: str, principal: str | None) -> MemoryClaim:
        """Become the one owner of `key` in this store. See `Store.claim`."""
        with self._lock:
            ledger = self._ledgers.setdefault(key, _Ledger(key, self._keep))
            if ledger.owner is not None:
                raise StoreInUse(f"a live Guard owns key {key!r}: use another key, or close that Guard first")
            claim = MemoryClaim(ledger, origin, principal)
            ledger.owner = claim
            ledger.prune(time.time())
        return claim

    async def calls(self, key: str | None = None) -> list[StoredCall]:
        """Every ledger row (of `key`), oldest first."""
        found = [row for ledger in self._chosen(key) for row in list(ledger.calls.values())]
        return sorted((row.stored() for row in found), key=lambda call: call.sent_at)

    async def sessions(self, key: str | None = None) -> list[StoredSession]:
        """Every session record (of `key`), oldest first."""
        found = [row for ledger in self._chosen(key) for row in list(ledger.sessions.values())]
        return sorted((row.stored() for row in found), key=lambda session: session.opened_at)

    def _chosen(self, key: str | None) -> list[_Ledger]:
        if key is None:
            return list(self._ledgers.values())
        return [self._ledgers[key]] if key in self._ledgers else []


class MemoryClaim:
    """Ownership of one key of a MemoryStore. See `Claim`."""

    __slots__ = ("_ledger", "_origin", "_principal")

    def __init__(self, ledger: _Ledger, origin: str, principal: str | None) -> None:
        self._ledger = ledger
        self._origin = origin
        self._principal = principal

    async def new_slot(self) -> int:
        """A slot number never used before under this key."""
        ledger = self._owned()
        ledger.slots += 1
        return ledger.slots

    async def write(self, slot: int, records: Sequence[Record], *, durable: bool = False) -> None:
        """Keep `records`, in order, all or none. See `Claim.write`."""
        ledger = self._owned()
        ledger.refuse_repeats(slot, records)
        now = time.time()
        for record in records:
            ledger.keep(slot, record, now, self._origin, self._principal)
        if ledger.settled > ledger.limits.calls + ledger.limits.slack:
            ledger.prune(now)

    async def release(self) -> None:
        """Give the key up. Idempotent."""
        if self._ledger.owner is self:
            self._ledger.owner = None

    def _owned(self) -> _Ledger:
        if self._ledger.owner is not self:
            raise StoreOwnershipLost(f"key {self._ledger.key!r} was released: connect again")
        return self._ledger


class _Call:
    """A ledger row: what was sent, and what became of it."""

    __slots__ = ("key", "sent", "sent_at", "settled", "settled_at", "slot")

    def __init__(self, key: str, slot: int, sent: CallSent, sent_at: float) -> None:
        self.key = key
        self.slot = slot
        self.sent = sent
        self.sent_at = sent_at
        self.settled: CallSettled | None = None
        self.settled_at: float | None = None

    def stored(self) -> StoredCall:
        sent, settled = self.sent, self.settled
        return StoredCall(
            key=self.key,
            slot=self.slot,
            incarnation=sent.incarnation,
            wire_id=sent.wire_id,
            method=sent.method,
            tool=sent.tool,
            call_key=sent.call_key,
            arguments_digest=sent.arguments_digest,
            may_have_side_effects=sent.may_have_side_effects,
            sent_at=self.sent_at,
            outcome=settled.outcome if settled else None,
            reason=settled.reason if settled else None,
            settled_at=self.settled_at,
        )


@define
class _Session:
    """A session record that is still written to, and its cursors by stream."""

    record: StoredSession
    cursors: dict[str, tuple[Seen, ...]] = field(factory=dict)

    def stored(self) -> StoredSession:
        return evolve(self.record, cursors=dict(self.cursors))

    def end(self, reason: str, now: float) -> None:
        self.record = evolve(self.record, ended_at=now, end_reason=reason)
        self.cursors.clear()


class _Ledger:
    """Everything kept under one key."""

    def __init__(self, key: str, limits: Keep) -> None:
        self.key = key
        self.limits = limits
        self.owner: MemoryClaim | None = None
        self.slots = 0
        self.settled = 0
        self.calls: dict[tuple[int, int, int], _Call] = {}
        self.sessions: dict[tuple[int, int], _Session] = {}

    def refuse_repeats(self, slot: int, records: Sequence[Record]) -> None:
        """Before anything is kept, so that a batch is kept whole or not at all."""
        calls, sessions = set(), set()
        for record in records:
            if isinstance(record, CallSent):
                call = (slot, record.incarnation, record.wire_id)
                if call in self.calls or call in calls:
                    raise StoreWriteError(f"call {record.wire_id} is in the ledger already; nothing was kept")
                calls.add(call)
            elif isinstance(record, SessionOpened):
                session = (slot, record.incarnation)
                if session in self.sessions or session in sessions:
                    raise StoreWriteError(f"incarnation {record.incarnation} exists already; nothing was kept")
                sessions.add(session)

    def keep(self, slot: int, record: Record, now: float, origin: str, principal: str | None) -> None:
        match record:
            case CallSent():
                self.calls[slot, record.incarnation, record.wire_id] = _Call(self.key, slot, record, now)
            case CallSettled():
                self._settle(slot, record, now)
            case CursorMoved():
                if session := self._open_session(slot, record.incarnation):
                    session.cursors[record.stream] = record.rows[-CURSOR_ROWS:]
            case CursorDropped():
                if session := self._open_session(slot, record.incarnation):
                    session.cursors.pop(record.stream, None)
            case SessionOpened():
                stored = _opened(self.key, slot, record, now, origin, principal)
                self.sessions[slot, record.incarnation] = _Session(stored)
            case SessionEnded():
                if session := self._open_session(slot, record.incarnation):
                    session.end(record.reason, now)
            case _:
                assert_never(record)

    def prune(self, now: float) -> None:
        """Let go of settled calls and ended sessions beyond the limits, oldest first."""
        oldest, surplus = self.limits.oldest(now), self.settled - self.limits.calls
        for call_id, call in list(self.calls.items()):
            if call.settled_at is not None and (surplus > 0 or call.settled_at < oldest):
                del self.calls[call_id]
                self.settled -= 1
                surplus -= 1
        ended = [(at, row.record.ended_at) for at, row in self.sessions.items() if row.record.ended_at]
        for position, (session_id, ended_at) in enumerate(ended):
            if position < len(ended) - ENDED_SESSIONS or ended_at < oldest:
                del self.sessions[session_id]

    def _settle(self, slot: int, record: CallSettled, now: float) -> None:
        call = self.calls.get((slot, record.incarnation, record.wire_id))
        if call is None:
            return
        if call.settled is None:
            self.settled += 1
        call.settled = record
        call.settled_at = now

    def _open_session(self, slot: int, incarnation: int) -> _Session | None:
        session = self.sessions.get((slot, incarnation))
        return session if session is not None and session.record.ended_at is None else None


def _opened(
    key: str, slot: int, record: SessionOpened, now: float, origin: str, principal: str | None
) -> StoredSession:
    return StoredSession(
        key=key,
        slot=slot,
        incarnation=record.incarnation,
        generation=record.generation,
        origin=origin,
        principal=principal,
        session_id=record.session_id,
        protocol_version=record.protocol_version,
        initialize_params=record.initialize_params,
        initialize_result=record.initialize_result,
        opened_at=now,
        ended_at=None,
        end_reason=None,
        cursors={},
    )
