"""`Ownership`: the key of one Guard, claimed for its first connection and given up after its last."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio
from attrs import evolve

from ._connection import Connection
from ._errors import GuardError
from ._loops import Post, has_ended, post_to_this_loop
from .core.heritage import PROCESS_DIED, end_others, heritage_of, settle_others
from .core.model import Outcome, OutcomeTold, SessionEnded, Told
from .core.shared import SharedLedger
from .core.wire_ids import block_of
from .stores import Claim, StoredCall
from .transports import http

if TYPE_CHECKING:
    from ._guard import Guard

logger = logging.getLogger("mcp_client_guard")

_RELEASE_SECONDS = 0.1
"""Twice, it is what the connection leaves of the second in which closing must be done."""
_MOST_LEFT = 16
_MOST_BLOCKS = 4096
_UNUSED_SECONDS = 30 * 86_400.0
"""After which nobody's session is worth offering to the server."""
_KEPT_BY_OTHER_STORES = 100_000
"""Calls; of a store of the user's own that does not say `most_calls`."""


class Ownership:
    """What the connections of one Guard have in common: the claim of its key, and what is known of its calls."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.connections: list[Connection] = []
        self.shared = SharedLedger(self._most_names)
        self.blocks: deque[int] = deque(maxlen=_MOST_BLOCKS)
        """Of wire IDs, each of one connection of this process."""
        self.recovered: set[tuple[int, int, int]] = set()
        """Rows of dead processes, by slot, incarnation and wire ID."""
        self.listed: list[str] = []
        """Call keys of what `Guard.recovered` has returned, until the host is seen to have gone on from it."""
        self._claim: Claim | None = None
        self._left_behind: Claim | None = None
        """By the connections of an event loop that has ended."""
        self._loop: Post | None = None
        self._process = 0
        """That of `_loop`."""
        self._claiming: anyio.Lock
        self._known: tuple[str, str | None, int] | None = None
        """Of the claim that the shared ledger was last used under: endpoint, principal, epoch."""
        self._clock = 0.0
        """What the event loop's clock shows beyond the process's own."""
        self._left: deque[tuple[int, int]] = deque()
        """Sessions of closed connections, by slot and incarnation."""

    def living(self) -> list[Connection]:
        """The open connections, less those that nobody can leave any more."""
        self._forget_ended()
        return list(self.connections)

    def here(self, what: str) -> list[Connection]:
        """The same, for `what` waits on their event loop.

        Raises:
            GuardError: that is another one.
        """
        connections = self.living()
        if connections and not self.reachable():
            raise GuardError(f"{what} belongs on the event loop of the connections")
        return connections

    def reachable(self) -> list[Connection]:
        """The same, if this task runs on their event loop."""
        connections = self.living()
        return connections if connections and self._loop == post_to_this_loop() else []

    def _forget_ended(self) -> None:
        """The connections of an event loop that has ended died, as with their process."""
        if self._loop is not None and (self.connections or self._claim is not None) and has_ended(self._loop):
            self._left_behind = self._claim or self._left_behind
            self._claim, self._known, self.connections, self.listed = None, None, [], []

    async def own(self, connection: Connection) -> Claim:
        """The claim of the key, shared by every connection that is open at once."""
        self._forget_ended()
        loop = post_to_this_loop()
        if self._loop != loop:
            if self.connections and self._process != os.getpid():
                raise GuardError(
                    "this process was forked from one that has this Guard connected: make a Guard here"
                )
            if self.connections:
                raise GuardError("this Guard has connections on another event loop: use it on that one")
            self._claiming, self._loop, self._process = anyio.Lock(), loop, os.getpid()
            before, self._clock = self._clock, anyio.current_time() - time.monotonic()
            self.shared.shift(self._clock - before)
        self.connections.append(connection)
        async with self._claiming:
            if self._left_behind is not None:  # a store of the user's own may not see that its loop has ended
                await self._release(self._left_behind)
                self._left_behind = None
            if self._claim is None:
                guard = self._guard
                origin = http.endpoint_of(guard.url)
                claim = await guard.store.claim(guard.key, origin=origin, principal=guard.principal)
                try:
                    await self._take_over(connection, claim, origin)
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await claim.release()
                    raise
                self._claim = claim
            return self._claim

    @property
    def _most_names(self) -> int:
        kept = getattr(self._guard.store, "most_calls", None)
        return kept if isinstance(kept, int) else _KEPT_BY_OTHER_STORES

    async def _take_over(self, connection: Connection, claim: Claim, origin: str) -> None:
        """The first connection under the key goes on where the last owner of it has left off.

        `origin` is the endpoint, as `http.endpoint_of` has it.
        """
        self._left.clear()
        store, key, principal = self._guard.store, self._guard.key, self._guard.principal
        epoch = getattr(claim, "epoch", None)
        # Where that was this very Guard, it knows more than the store does.
        is_known = epoch is not None and self._known == (origin, principal, epoch - 1)
        read = getattr(store, "unfinished", store.calls) if is_known else store.calls
        sessions, calls = await store.sessions(key), await read(key)
        # A server may move, and its calls with it. Of another principal neither answers nor doubts are ours.
        ours = [call for call in calls if call.principal == principal]
        if not is_known:
            before = self.shared
            found = getattr(claim, "found", None) if before.found is None else before.found
            self.shared = SharedLedger(self._most_names, before.consents, before.brought, found, before.found_at)
            self.shared.restore(ours, time.time(), anyio.current_time())
        self._known = None if epoch is None else (origin, principal, epoch)
        here = {c.wire_id for c in calls if c.task_open and block_of(c.wire_id) in self.blocks}
        has_hook = self._guard._reconcile is not None
        heritage = heritage_of(sessions, calls, origin, principal, here, has_hook=has_hook)
        oldest = time.time() - _UNUSED_SECONDS
        left = settle_others(calls, heritage, origin, principal, oldest)
        ended = end_others(sessions, heritage, origin, principal, oldest)
        for slot, record in [*left, *ended]:
            await claim.write(slot, [record])
        settled = {(slot, r.incarnation, r.wire_id) for slot, r in left}
        listed = [c for c in ours if c.told is Told.NOBODY or (c.slot, c.incarnation, c.wire_id) in settled]
        self.recovered |= {(c.slot, c.incarnation, c.wire_id) for c in listed if not c.is_hook_s}
        if heritage is not None:
            heirs = [heir for heir in heritage.heirs if not heir.is_known]
            self.recovered |= {(heir.slot, heir.incarnation, heir.wire_id) for heir in heirs}
            connection._inherit(heritage)

    def tell_recovered(self, found: Iterable[StoredCall]) -> list[StoredCall]:
        """Of these rows those of dead processes, as they are to be told; taken down as told."""
        calls = [c for c in found if (c.slot, c.incarnation, c.wire_id) in self.recovered]
        listed = [call for call in calls if call.told is Told.NOBODY]
        self.listed = [call.call_key for call in listed]
        for call in listed:  # the window of the repeat latch begins
            self.shared.listed(call.arguments_digest, call.call_key, time.monotonic() + self._clock)
        calls = [evolve(c, told=Told.LISTED) if c.told is Told.NOBODY else c for c in calls]
        return [c if c.outcome else evolve(c, outcome=Outcome.IN_DOUBT, reason=PROCESS_DIED) for c in calls]

    async def mark_listed(self) -> None:
        """The host has gone on from what it was told: the next process need not say it again."""
        listed, self.listed = self.listed, []
        if not listed or self._claim is None:
            return
        try:
            await self._claim.write(0, [OutcomeTold(call_key, Told.LISTED) for call_key in listed])
        except Exception as error:  # it is said again
            self._warn("what was told could not be marked", error)

    async def disown(self, connection: Connection) -> None:
        """It is closed. What matters comes before the first await: asyncio's own cancellation passes through every
        shield."""
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        with anyio.CancelScope(shield=True):
            if self._claim is None:
                return
            if self.connections:
                await self._end_oldest(connection, self._claim)
            elif not self._claiming.locked():  # else somebody is about it
                # Until the key is free again, whoever connects must wait for the lock.
                self._claiming.acquire_nowait()
                try:
                    await self._give_up(self._claim)
                finally:
                    self._claiming.release()

    async def _end_oldest(self, connection: Connection, claim: Claim) -> None:
        """Of the sessions that were left open beside others only the newest may still be offered to the server."""
        if connection._left_session is not None:
            self._left.append(connection._left_session)
        while len(self._left) > _MOST_LEFT:
            slot, incarnation = self._left.popleft()
            ended = SessionEnded(incarnation, "many others were left after it")
            try:
                with anyio.move_on_after(_RELEASE_SECONDS):
                    await claim.write(slot, [ended])
            except Exception as error:  # the next process ends it
                self._warn("a session's end could not be written", error)

    async def _give_up(self, claim: Claim) -> None:
        try:
            with anyio.move_on_after(_RELEASE_SECONDS):
                await self.mark_listed()
        finally:
            self._claim = None
            await self._release(claim)

    async def _release(self, claim: Claim) -> None:
        try:
            with anyio.move_on_after(_RELEASE_SECONDS):
                await claim.release()
        except Exception as error:  # the host is done: its own outcome is what it gets
            self._warn("the key could not be given up", error)

    def _warn(self, what: str, error: Exception) -> None:
        """Ours are told without their text, which may be of a store of the user's own."""
        logger.warning("%s: %s: %s", self._guard._name, what, type(error).__name__)
