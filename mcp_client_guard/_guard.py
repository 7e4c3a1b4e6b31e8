"""`Guard`: what a user configures for one endpoint. It owns the ledger's store and opens connections."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import anyio
import anyio.lowlevel
from attrs import evolve

from ._arguments import refuse_wrong, upgrade_url
from ._connection import Connection, block_of, call_keys_here, has_ended
from ._errors import GuardError
from ._events import Callback, EventCallback, Listener, level_of
from ._messages import sdk_codec
from ._reconcile import ReconcileHook
from .core.heritage import PROCESS_DIED, end_others, heritage_of, settle_others
from .core.model import Outcome, OutcomeTold, SessionEnded, Told
from .core.policy import GuardPolicy
from .core.report import Event
from .core.shared import SharedLedger
from .core.state import SessionState
from .stores import Claim, Store, StoredCall
from .stores.memory import MemoryStore
from .transports import http

logger = logging.getLogger("mcp_client_guard")

_RELEASE_SECONDS = 0.25
_MOST_LEFT = 16
_MOST_BLOCKS = 4096
_UNUSED_SECONDS = 30 * 86_400.0
"""After which nobody's session is worth offering to the server."""
_KEPT_BY_OTHER_STORES = 100_000
"""Calls; of a store of the user's own that does not say `most_calls`."""


class Guard:
    """Configuration, ledger and store of guarded connections to one MCP endpoint.

    Reusable, and bound to no event loop: make it anywhere, connect as often as you like; on one event loop at
    a time. A connection that was not left before its loop ended counts as one of a process that died.

    Args:
        url: The MCP endpoint.
        store: Where the ledger and the cursors are kept. Default: a `MemoryStore`, gone with the process.
        key: Names this user's connection in the store; one live Guard per key.
        principal: Whose credential is used, in your own words; never derived from a token.
        headers: Sent with every request of our own client. Not together with `http_client`.
        http_client: An `httpx.AsyncClient` or `httpx2.AsyncClient` of yours (for auth, proxies, TLS); it is
            not closed. Its own timeouts are not used: a call ends by its deadline. Its transport must not send a
            request again by itself, nor use HTTP/2, and should allow four connections or more (README, "A client
            of your own").
        policy: Times, bounds and choices; see `GuardPolicy`.
        generation: How messages travel, where the server speaks several. `"auto"` (default): by sessions where
            they can be resumed (the server gives session and event IDs), else as the host above would have it.
            `"sessions"` answers an SDK 2.x host's `server/discover` probe locally, so that it opens a session.
            `"host"` leaves the choice to the host. With any of these, a server that refuses the first
            `initialize` as one does that speaks HTTP+SSE only (2024-11-05) is asked for that; `"legacy-sse"`
            begins with it.
        reconcile: Async; asked about each tool call that may or may not have run, with a small client on the
            present session. It answers `Resend()`, `Resolve(result)`, `Fail(message)`, or None for what the
            policy says. One that raises, or takes longer than `reconcile_timeout`, leaves the call in doubt. A
            thread that it waits for holds up closing: `anyio.to_thread.run_sync(..., abandon_on_cancel=True)`.
        on_event: Called with each event (`Resumed`, `Discontinuity`, `CallSettled`, ...); sync or async. An
            error in it is logged and harms nothing.
        websocket: Let the session go on over a WebSocket where the server offers it (docs/websocket.md; needs
            the extra `ws`). True asks at the endpoint's path with `/upgrade` after it; a text is a path, or a URL
            of the same origin, to ask at.
        terminate_on_close: Send `DELETE` for the session on leaving. Default: only with a `MemoryStore`, where
            nobody could resume it. With a store that keeps them, sessions stay open at the server until it
            lets go of them; connect once and stay, or say True where each call has a connection of its own.

    Raises:
        ValueError: an argument that cannot be meant (it says what is wanted), both `headers` and `http_client`, a
            client with `http2=True`, one of a single connection with `generation="legacy-sse"`, or an upgrade's
            URL of another origin.
        ImportError: `websocket` without the package that it needs.
    """

    def __init__(
        self,
        url: str,
        *,
        store: Store | None = None,
        key: str = "default",
        principal: str | None = None,
        headers: Mapping[str, str] | None = None,
        http_client: http.HttpClient | None = None,
        policy: GuardPolicy | None = None,
        generation: Literal["auto", "sessions", "host", "legacy-sse"] = "auto",
        reconcile: ReconcileHook | None = None,
        on_event: EventCallback | None = None,
        websocket: bool | str = False,
        terminate_on_close: bool | None = None,
    ) -> None:
        refuse_wrong(
            url=url,
            store=store,
            key=key,
            principal=principal,
            headers=headers,
            http_client=http_client,
            policy=policy,
            reconcile=reconcile,
            on_event=on_event,
            websocket=websocket,
            terminate_on_close=terminate_on_close,
        )
        if generation not in ("auto", "sessions", "host", "legacy-sse"):
            raise ValueError(f"generation must be 'auto', 'sessions', 'host' or 'legacy-sse', not {generation!r}")
        if headers is not None and http_client is not None:
            raise ValueError("give headers or http_client, not both: set the headers on your client")
        if http_client is not None and http.may_use_http2(http_client, url):
            raise ValueError("http_client must speak HTTP/1.1, where streams can be closed: make it without http2")
        if generation == "legacy-sse" and http_client is not None and http.connection_limit(http_client, url) == 1:
            raise ValueError("http_client allows one connection, which a legacy session holds: allow two or more")
        self.url = url
        self.key = key
        self.principal = principal
        self.policy = GuardPolicy() if policy is None else policy
        self.store: Store = MemoryStore() if store is None else store
        self.generation = generation
        self._upgrade_url = upgrade_url(url, websocket) if websocket else None
        self._headers = dict(headers or {})
        self._client = http_client
        self._reconcile = reconcile
        self._on_event = on_event
        self._terminate = isinstance(self.store, MemoryStore) if terminate_on_close is None else terminate_on_close
        self._salt = secrets.token_hex(16)
        self._claim: Claim | None = None
        self._left_behind: Claim | None = None
        """By the connections of an event loop that has ended."""
        self._loop: Any = None
        self._claiming: anyio.Lock
        self._connections: list[Connection] = []
        self._listeners: list[Listener] = []
        self._shared = SharedLedger(self._most_names)
        self._known: tuple[str, str | None, int] | None = None
        """Of the claim that the shared ledger was last used under: endpoint, principal, epoch."""
        self._clock = 0.0
        """What the event loop's clock shows beyond the process's own."""
        self._left: deque[tuple[int, int]] = deque()
        """Sessions of closed connections, by slot and incarnation."""
        self._blocks: deque[int] = deque(maxlen=_MOST_BLOCKS)
        """Of wire IDs, each of one connection of this process."""
        self._recovered: set[tuple[int, int, int]] = set()
        """Rows of dead processes, by slot, incarnation and wire ID."""
        self._listed: list[str] = []
        """Call keys of what `recovered()` has returned, until the host is seen to have gone on from it."""

    def __repr__(self) -> str:
        return f"Guard({http.origin_of(self.url)}, key={self.key!r}, state={self.state!r})"

    def connect(self) -> Connection:
        """A fresh, single-use async context manager that yields exactly `(read, write)` for the MCP SDK.

        Raises (on entering):
            ImportError: the MCP SDK is not installed.
            GuardError: another event loop that has not ended has a connection open, or `http_client` is closed.
            StoreInUse: another live Guard owns this key.
            StoreDamaged: the store's file was refused.
            StoreWriteError: the disk is full or failed.
            StoreError: the store's directory does not exist, or others may read its file.
        """
        return Connection(self, sdk_codec)

    @property
    def state(self) -> str:
        """The newest connection's session: `closed` if none is open, else `new`, `live`, `lost`, ..."""
        return self._connections[-1].state if self._connections else SessionState.CLOSED.name.lower()

    async def calls(self) -> list[StoredCall]:
        """The ledger of this key, oldest first.

        Raises:
            StoreError: there is no store yet (the first connection makes the file), or it cannot be read.
            StoreDamaged: the store's file was refused.
        """
        return await self.store.calls(self.key)

    async def recovered(self) -> list[StoredCall]:
        """What became of every call that an earlier process left without an outcome, oldest first.

        Inside a connection it waits until each has its outcome, the connection is closed, or `call_deadline` is
        over: those whose answer was replayed, or whose task was asked for, are `recovered` and carry their
        `answer`, unless a repeat has taken it; the others are `in_doubt`, for now where nobody looks for their
        answer until the next connection. What it returned is said again by the next process, unless the host has
        sent a request since, or has left. Before the first connection it is empty: the store is read when that is
        opened.

        Raises: as `calls` does.
        """
        self._forget_ended()
        for connection in list(self._connections):
            await connection._settled()
        found = await self.calls() if self._recovered else []
        calls = [c for c in found if (c.slot, c.incarnation, c.wire_id) in self._recovered]
        self._listed = [call.call_key for call in calls if call.told is Told.NOBODY]
        calls = [evolve(c, told=Told.LISTED) if c.told is Told.NOBODY else c for c in calls]
        return [c if c.outcome else evolve(c, outcome=Outcome.IN_DOUBT, reason=PROCESS_DIED) for c in calls]

    async def _mark_listed(self) -> None:
        """The host has gone on from what `recovered()` returned: the next process need not say it again."""
        listed, self._listed = self._listed, []
        if not listed or self._claim is None:
            return
        try:
            await self._claim.write(0, [OutcomeTold(call_key, Told.LISTED) for call_key in listed])
        except Exception as error:  # it is said again
            logger.warning("what was told could not be marked: %s", type(error).__name__)

    async def reconnect(self) -> None:
        """Open the connections of this Guard anew, now: for when you know that they are worth nothing, since the
        network has changed or the machine has slept.

        Streams that can be resumed are cut and resumed, the standalone stream and subscriptions are opened again,
        what waits for its next attempt goes out, a lost session is tried again with its whole budget, and a `ping`
        asks whether the present one lives. `retry:` and `Retry-After` are kept to. A call whose stream cannot be
        resumed is left alone: closing it would leave it in doubt, and on 2026-07-28 cancel it. So is a legacy
        session. Returns at once; events say what became of it. Does nothing where no connection is open.

        Raises:
            GuardError: called on another event loop than that of the connections.
        """
        self._forget_ended()
        if self._connections and self._loop != anyio.lowlevel.current_token():
            raise GuardError("reconnect() belongs on the event loop of the connections")
        for connection in list(self._connections):
            connection.reconnect()

    def consent(self, call_key: str) -> None:
        """Allow one repeat of the call in doubt with this key, or name, which would otherwise be refused.

        A key that no call in doubt has is no error: it may be known to the next connection. Consent that was given
        while a call was under way is none to what comes of it.

        Raises:
            ValueError: what is no text, or an empty one.
        """
        refuse_wrong(call_key=call_key)
        self._shared.consent(call_key)

    @contextmanager
    def call_key(self, name: str) -> Iterator[None]:
        """Name the tool calls made inside: the same name, with the same tool and arguments, is the same call.

        While it is in flight, or once it has its answer, whoever sends it again gets that answer, also after a
        restart; the answer is kept in the store. Holds for calls sent from this task (`ClientSession` does);
        elsewhere put `io.github.mcp-client-guard/call-key` into the request's `_meta`.

        Raises:
            ValueError: what is no text, or an empty one.
        """
        refuse_wrong(call_key=name)
        token = call_keys_here.set({**call_keys_here.get(), self._salt: name})
        try:
            yield
        finally:
            call_keys_here.reset(token)

    async def events(self) -> AsyncIterator[Event]:
        """Events from now on. A listener that falls 1,024 behind loses the oldest, which is logged."""
        listener = Listener()
        self._listeners.append(listener)
        try:
            while True:
                yield await listener.next()
        finally:
            self._listeners.remove(listener)

    def _tell(self, event: Event, callback: Callback | None) -> None:
        logger.log(level_of(event), "%s", event)
        for listener in self._listeners:
            listener.put(event)
        if callback is not None:
            callback.put(event)

    def _forget_ended(self) -> None:
        """Nobody can leave the connections of an event loop that has ended: they died, as with their process."""
        if (self._connections or self._claim is not None) and has_ended(self._loop):
            self._left_behind = self._left_behind if self._claim is None else self._claim
            self._claim, self._known, self._connections, self._listed = None, None, [], []

    async def _own(self, connection: Connection) -> Claim:
        """The claim of the key, shared by every connection that is open at once."""
        self._forget_ended()
        loop = anyio.lowlevel.current_token()
        if self._loop != loop:
            if self._connections:
                raise GuardError("this Guard has connections on another event loop: make one Guard for each")
            self._claiming, self._loop = anyio.Lock(), loop
            before, self._clock = self._clock, anyio.current_time() - time.monotonic()
            self._shared.shift(self._clock - before)
        self._connections.append(connection)
        async with self._claiming:
            if self._left_behind is not None:
                await self._release(self._left_behind)
                self._left_behind = None
            if self._claim is None:
                claim = await self.store.claim(
                    self.key, origin=http.endpoint_of(self.url), principal=self.principal
                )
                try:
                    await self._take_over(connection, claim)
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await claim.release()
                    raise
                self._claim = claim
            return self._claim

    @property
    def _most_names(self) -> int:
        kept = getattr(self.store, "most_calls", None)
        return kept if isinstance(kept, int) else _KEPT_BY_OTHER_STORES

    async def _take_over(self, connection: Connection, claim: Claim) -> None:
        """The first connection under the key goes on where the last owner of it has left off."""
        self._left.clear()
        origin, principal, epoch = http.endpoint_of(self.url), self.principal, getattr(claim, "epoch", None)
        # Where that was this very Guard, it knows more than the store does.
        is_known = epoch is not None and self._known == (origin, principal, epoch - 1)
        read = getattr(self.store, "unfinished", self.store.calls) if is_known else self.store.calls
        sessions, calls = await self.store.sessions(self.key), await read(self.key)
        # Others' calls are accounted for, and nothing more: neither their answers nor their doubts are ours.
        ours = [call for call in calls if (call.origin, call.principal) == (origin, principal)]
        if not is_known:
            before = self._shared
            found = getattr(claim, "found", None) if before.found is None else before.found
            self._shared = SharedLedger(self._most_names, before.consents, before.brought, found)
            self._shared.restore(ours, time.time(), anyio.current_time())
        self._known = None if epoch is None else (origin, principal, epoch)
        here = {c.wire_id for c in calls if c.task_open and block_of(c.wire_id) in self._blocks}
        has_hook = self._reconcile is not None
        heritage = heritage_of(sessions, calls, origin, principal, here, has_hook=has_hook)
        oldest = time.time() - _UNUSED_SECONDS
        left = settle_others(calls, heritage, origin, principal, oldest)
        ended = end_others(sessions, heritage, origin, principal, oldest)
        for slot, record in [*left, *ended]:
            await claim.write(slot, [record])
        settled = {(slot, r.incarnation, r.wire_id) for slot, r in left}
        listed = [c for c in ours if c.told is Told.NOBODY or (c.slot, c.incarnation, c.wire_id) in settled]
        self._recovered |= {(c.slot, c.incarnation, c.wire_id) for c in listed if not c.is_hook_s}
        if heritage is not None:
            heirs = [heir for heir in heritage.heirs if not heir.is_known]
            self._recovered |= {(heir.slot, heir.incarnation, heir.wire_id) for heir in heirs}
            connection.inherit(heritage)

    async def _end_oldest(self, connection: Connection, claim: Claim) -> None:
        """Of the sessions that were left open beside others only the newest may still be offered to the server."""
        if connection.left_session is not None:
            self._left.append(connection.left_session)
        while len(self._left) > _MOST_LEFT:
            slot, incarnation = self._left.popleft()
            ended = SessionEnded(incarnation, "many others were left after it")
            try:
                with anyio.move_on_after(_RELEASE_SECONDS):
                    await claim.write(slot, [ended])
            except Exception as error:  # the next process ends it
                logger.warning("a session's end could not be written: %s", type(error).__name__)

    async def _disown(self, connection: Connection) -> None:
        """What matters comes before the first await: asyncio's own cancellation passes through every shield."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        with anyio.CancelScope(shield=True):
            if self._claim is None:
                return
            if self._connections:
                await self._end_oldest(connection, self._claim)
            elif not self._claiming.locked():  # else somebody is about it
                # Until the key is free again, whoever connects must wait for the lock.
                self._claiming.acquire_nowait()
                try:
                    await self._give_up(self._claim)
                finally:
                    self._claiming.release()

    async def _give_up(self, claim: Claim) -> None:
        try:
            with anyio.move_on_after(_RELEASE_SECONDS):
                await self._mark_listed()
        finally:
            self._claim = None
            await self._release(claim)

    async def _release(self, claim: Claim) -> None:
        try:
            with anyio.move_on_after(_RELEASE_SECONDS):
                await claim.release()
        except Exception as error:  # the host is done: its own outcome is what it gets
            logger.warning("the key could not be given up: %s", type(error).__name__)
