"""`Guard`: what a user configures for one endpoint. It owns the ledger's store and opens connections."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal
from weakref import WeakSet

import anyio.lowlevel

from ._arguments import refuse_unfit, refuse_wrong, upgrade_url
from ._connection import Connection, call_keys_here
from ._errors import StoreError
from ._events import Callback, EventCallback, Listener, level_of
from ._messages import sdk_codec
from ._ownership import Ownership
from ._reconcile import ReconcileHook
from .core.model import Generation
from .core.policy import GuardPolicy
from .core.report import Event
from .core.state import SessionState
from .stores import Store, StoredCall
from .stores.memory import MemoryStore
from .transports import http

logger = logging.getLogger("mcp_client_guard")


class Guard:
    """Configuration, ledger and store of guarded connections to one MCP endpoint.

    Reusable, and bound to no event loop: make it anywhere, connect as often as you like; on one event loop at
    a time. A connection that was not left before its loop ended counts as one of a process that died.

    Args:
        url: The MCP endpoint: a text, or a URL object of httpx, httpx2 or pydantic. It may be relative to the
            `base_url` of your `http_client`.
        store: Where the ledger and the cursors are kept. Default: a `MemoryStore`, gone with the process.
        key: Names this user's connection to this server in the store; one live Guard per key. Calls, names and
            doubts belong to the key and the `principal`, and stay if the server moves to another URL. Default:
            origin and a digest of the whole URL, so that another URL is another key.
        principal: Whose credential is used, in your own words; never derived from a token.
        headers: Sent with every request of our own client. Not together with `http_client`.
        http_client: An `httpx.AsyncClient` or `httpx2.AsyncClient` of yours (for auth, proxies, TLS); it is
            not closed. Its own timeouts are not used: a call ends by its deadline. Its transport must not send a
            request again by itself, nor use HTTP/2, and should allow four connections or more
            (docs/http-client.md).
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
        url: str | http.Url,
        *,
        store: Store | None = None,
        key: str | None = None,
        principal: str | None = None,
        headers: Mapping[str, str] | None = None,
        http_client: http.HttpClient | None = None,
        policy: GuardPolicy | None = None,
        generation: Literal["auto", "sessions", "host", "legacy-sse", Generation.LEGACY_SSE] = "auto",
        reconcile: ReconcileHook | None = None,
        on_event: EventCallback | None = None,
        websocket: bool | str = False,
        terminate_on_close: bool | None = None,
    ) -> None:
        whole: str = http.whole_url(url, http_client)
        refuse_wrong(
            url=whole,
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
        if generation is Generation.LEGACY_SSE:
            generation = "legacy-sse"
        refuse_unfit(whole, generation, headers, http_client)
        self.url = whole
        self.key = http.key_of(whole) if key is None else key
        self.principal = principal
        self.policy = GuardPolicy() if policy is None else policy
        self.store: Store = MemoryStore() if store is None else store
        self.generation = generation
        self._upgrade_url = upgrade_url(whole, websocket) if websocket else None
        self._headers = dict(headers or {})
        self._client = http_client
        self._reconcile = reconcile
        self._on_event = on_event
        self._terminate = isinstance(self.store, MemoryStore) if terminate_on_close is None else terminate_on_close
        self._salt = secrets.token_hex(16)
        self._listeners: set[Listener] = set()
        self._new_listeners: WeakSet[Listener] = WeakSet()
        """Those that nobody iterates yet; they go with what `events` has returned."""
        self._ownership = Ownership(self)

    @property
    def _name(self) -> str:
        """In the log, where there are several."""
        return f"{http.origin_of(self.url)} (key {self.key!r})"

    def __repr__(self) -> str:
        return f"Guard({http.origin_of(self.url)}, key={self.key!r}, state={self.state!r})"

    def connect(self) -> Connection:
        """A fresh, single-use async context manager that yields exactly `(read, write)` for the MCP SDK.

        Raises (on entering):
            ImportError: the MCP SDK is not installed.
            GuardError: another event loop that has not ended has a connection open, `http_client` is closed, or
                this connection was entered before.
            StoreInUse: another live Guard owns this key.
            StoreDamaged: the store's file was refused.
            StoreWriteError: the disk is full or failed.
            StoreError: the store's directory does not exist, or others may read its file.
        """
        return Connection(self, sdk_codec)

    @property
    def state(self) -> str:
        """The newest connection's session: `closed` if none is open, else `new`, `live`, `lost`, ..."""
        connections = self._ownership.living()
        return connections[-1].state if connections else SessionState.CLOSED.name.lower()

    async def calls(self) -> list[StoredCall]:
        """The ledger of this key, oldest first; empty where no connection has made the store yet.

        On the event loop of the connections it holds all that the host has been told, unless the store takes more
        than a second to keep it; elsewhere it may be 50 ms behind.

        Raises:
            StoreError: the store cannot be read.
            StoreDamaged: the store's file was refused.
        """
        for connection in self._ownership.reachable():
            await connection._flush()
        try:
            return await self.store.calls(self.key)
        except StoreError as error:
            if not error.is_unused:
                raise
            return []

    async def recovered(self) -> list[StoredCall]:
        """What became of every call that an earlier process left without an outcome, oldest first.

        Inside a connection it waits until each has its outcome, the connection is closed, or `call_deadline` is
        over: those whose answer was replayed, or whose task was asked for, are `recovered` and carry their
        `answer`, unless a repeat has taken it; the others are `in_doubt`, for now where nobody looks for their
        answer until the next connection. What it returned is said again by the next process, unless the host has
        sent a request since, or has left. Before the first connection it is empty: the store is read when that is
        opened.

        Raises:
            GuardError: called on another event loop than that of the connections.
            StoreError, StoreDamaged: as `calls` does.
        """
        for connection in self._ownership.here("recovered()"):
            await connection._settled()
        return self._ownership.tell_recovered(await self.calls() if self._ownership.recovered else [])

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
        for connection in self._ownership.here("reconnect()"):
            connection._reconnect()
        await anyio.lowlevel.checkpoint()  # a handler of events that calls it gives the others their turn

    def consent(self, call_key: str) -> None:
        """Allow one repeat of the call in doubt with this key, or name, which would otherwise be refused.

        A key that no call in doubt has is no error: it may be known to the next connection. Consent that was given
        while a call was under way is none to what comes of it. Where the call's answer comes before a repeat is
        sent, the repeat gets that, and the consent is over.

        Raises:
            ValueError: what is no text, or an empty one.
        """
        refuse_wrong(call_key=call_key)
        self._ownership.shared.consent(call_key)

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

    def events(self) -> AsyncIterator[Event]:
        """Events from this call on. A listener that falls 1,024 behind loses the oldest, which is logged."""
        listener = Listener()
        self._new_listeners.add(listener)
        return self._listen(listener)

    async def _listen(self, listener: Listener) -> AsyncIterator[Event]:
        self._listeners.add(listener)
        self._new_listeners.discard(listener)
        try:
            while True:
                yield await listener.next()
        finally:
            self._listeners.discard(listener)

    def _tell(self, event: Event, callback: Callback | None) -> None:
        level = level_of(event)
        if logger.isEnabledFor(level):
            logger.log(level, "%s: %s", self._name, event)
        for listener in [*self._listeners, *self._new_listeners]:
            if listener.is_gone:
                self._listeners.discard(listener)
            else:
                listener.put(event)
        if callback is not None:
            callback.put(event)
