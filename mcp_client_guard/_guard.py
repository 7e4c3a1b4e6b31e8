"""`Guard`: what a user configures for one endpoint. It owns the ledger's store and opens connections."""

from __future__ import annotations

import inspect
import logging
import secrets
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Literal

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from attrs import define, field

from ._errors import GuardError
from ._messages import Codec, sdk_codec
from .core import report
from .core.machine import Machine
from .core.policy import GuardPolicy
from .core.report import Event
from .core.state import SessionState
from .stores import Claim, Store, StoredCall
from .stores.memory import MemoryStore
from .transports import http
from .transports.inbox import Inbox, ReadStream, WriteStream
from .transports.streamable import StreamableHttp

logger = logging.getLogger("mcp_client_guard")

EventCallback = Callable[[Event], Any]

_WIRE_ID_RANGE = 2**31
_WIRE_IDS_EACH = 2**21
_KEPT_EVENTS = 1024
_SPARE_CONNECTIONS = 4
_RELEASE_SECONDS = 0.25


class Guard:
    """Configuration, ledger and store of guarded connections to one MCP endpoint.

    Reusable, and bound to no event loop: make it anywhere, connect as often as you like; on one event loop at
    a time.

    Args:
        url: The MCP endpoint.
        store: Where the ledger and the cursors are kept. Default: a `MemoryStore`, gone with the process.
        key: Names this user's connection in the store; one live Guard per key.
        principal: Whose credential is used, in your own words; never derived from a token.
        headers: Sent with every request of our own client. Not together with `http_client`.
        http_client: An `httpx.AsyncClient` or `httpx2.AsyncClient` of yours (for auth, proxies, TLS); it is
            not closed. Its own timeouts are not used: a call ends by its deadline.
        policy: Times, bounds and choices; see `GuardPolicy`.
        generation: `"host"` leaves the choice to the host above. `"sessions"` answers an SDK 2.x host's
            `server/discover` probe locally, so that it opens a session, which can be resumed.
        on_event: Called with each event (`Resumed`, `Discontinuity`, `CallSettled`, ...); sync or async. An
            error in it is logged and harms nothing.
        terminate_on_close: Send `DELETE` for the session on leaving. Default: only with a `MemoryStore`, where
            nobody could resume it.

    Raises:
        ValueError: a URL that is not http(s), an unknown generation, or both `headers` and `http_client`.
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
        generation: Literal["host", "sessions"] = "host",
        on_event: EventCallback | None = None,
        terminate_on_close: bool | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError("url must start with http:// or https://")
        if generation not in ("host", "sessions"):
            raise ValueError(f"generation must be 'host' or 'sessions', not {generation!r}")
        if headers is not None and http_client is not None:
            raise ValueError("give headers or http_client, not both: set the headers on your client")
        self.url = url
        self.key = key
        self.principal = principal
        self.policy = policy or GuardPolicy()
        self.store: Store = MemoryStore() if store is None else store
        self.generation = generation
        self._headers = dict(headers or {})
        self._client = http_client
        self._on_event = on_event
        self._terminate = isinstance(self.store, MemoryStore) if terminate_on_close is None else terminate_on_close
        self._salt = secrets.token_hex(16)
        self._claim: Claim | None = None
        self._loop: Any = None
        self._claiming: anyio.Lock
        self._connections: list[Connection] = []
        self._listeners: list[_Listener] = []

    def __repr__(self) -> str:
        return f"Guard({http.origin_of(self.url)}, key={self.key!r}, state={self.state!r})"

    def connect(self) -> Connection:
        """A fresh, single-use async context manager that yields exactly `(read, write)` for the MCP SDK.

        Raises (on entering):
            ImportError: the MCP SDK is not installed.
            GuardError: a connection of this Guard is open on another event loop.
            StoreInUse: another live Guard owns this key.
            StoreDamaged: the store's file was refused.
        """
        return Connection(self, sdk_codec)

    @property
    def state(self) -> str:
        """The newest connection's session: `closed` if none is open, else `new`, `live`, `lost`, ..."""
        return self._connections[-1].state if self._connections else SessionState.CLOSED.name.lower()

    async def calls(self) -> list[StoredCall]:
        """The ledger of this key, oldest first."""
        return await self.store.calls(self.key)

    async def events(self) -> AsyncIterator[Event]:
        """Events from now on. A listener that falls 1,024 behind loses the oldest, which is logged."""
        listener = _Listener()
        self._listeners.append(listener)
        try:
            while True:
                yield await listener.next()
        finally:
            self._listeners.remove(listener)

    def _tell(self, event: Event, callback: _Callback | None) -> None:
        logger.log(_level_of(event), "%s", event)
        for listener in self._listeners:
            listener.put(event)
        if callback is not None:
            callback.put(event)

    async def _own(self, connection: Connection) -> Claim:
        """The claim of the key, shared by every connection that is open at once."""
        loop = anyio.lowlevel.current_token()
        if not self._connections:
            self._claiming = anyio.Lock()  # of this event loop; the next first connection may have another
            self._loop = loop
        elif self._loop != loop:
            raise GuardError("this Guard has connections on another event loop: make one Guard for each")
        self._connections.append(connection)
        async with self._claiming:
            if self._claim is None:
                self._claim = await self.store.claim(
                    self.key, origin=http.origin_of(self.url), principal=self.principal
                )
            return self._claim

    async def _disown(self, connection: Connection) -> None:
        with anyio.CancelScope(shield=True):
            async with self._claiming:
                if self._connections == [connection] and self._claim is not None:
                    claim, self._claim = self._claim, None
                    try:
                        with anyio.move_on_after(_RELEASE_SECONDS):
                            await claim.release()
                    except Exception as error:  # the host is done: its own outcome is what it gets
                        logger.warning("the key could not be given up: %s", type(error).__name__)
                # Only now: until the key is free again, whoever connects must wait for the lock.
                if connection in self._connections:
                    self._connections.remove(connection)


class Connection:
    """One guarded connection: enter it once. Made by `Guard.connect()`."""

    def __init__(self, guard: Guard, codec: Callable[[], Codec]) -> None:
        self._guard = guard
        self._codec = codec
        self._machine = Machine(
            guard.policy,
            first_wire_id=1 + secrets.randbelow(_WIRE_ID_RANGE) * _WIRE_IDS_EACH,
            salt=guard._salt,
            answers_probe=guard.generation == "sessions",
            opens_standalone=_can_spare_one(guard._client),
            ends_session=guard._terminate,
        )
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._shell: StreamableHttp | None = None
        self._write: WriteStream[Any] | None = None

    @property
    def state(self) -> str:
        return self._machine.session.state.name.lower()

    @property
    def session_id(self) -> str | None:
        """The server's session ID: a credential, for adapters that must hand it on."""
        return self._machine.session.session_id

    async def __aenter__(self) -> tuple[ReadStream[Any], WriteStream[Any]]:
        if self._tasks is not None:
            raise RuntimeError("a connection is single-use: call guard.connect() again")
        codec = self._codec()
        guard = self._guard
        try:
            claim = await guard._own(self)
            self._stack.push_async_callback(guard._disown, self)
            client: Any = guard._client
            if client is None:
                own = http.default_client(guard.url, guard._headers)
                client = await self._stack.enter_async_context(own)
            slot = await claim.new_slot()
            self._tasks = anyio.create_task_group()
            await self._tasks.__aenter__()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await guard._disown(self)
                await self._stack.aclose()
            raise
        tasks = self._tasks
        callback = None if guard._on_event is None else _Callback(guard._on_event, tasks)
        inbox = Inbox(guard.policy.max_event_size)
        self._shell = StreamableHttp(
            http.Endpoint(client, guard.url, tells_when_begun=guard._client is None),
            self._machine,
            inbox,
            claim,
            slot,
            guard.policy.max_idle,
            guard.policy.max_event_size,
            _max_calls(guard._client),
            guard.policy.deadline_of(None),
            lambda event: guard._tell(event, callback),
            tasks,
        )
        self._shell.start()
        self._write = WriteStream(self._sender(codec))
        return ReadStream(inbox, codec.encode), self._write

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        assert self._shell is not None
        assert self._write is not None
        self._write.close()  # what is sent from now on would never be answered
        try:
            await self._leave(self._shell, self._tasks)
        finally:
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()

    async def _leave(self, shell: StreamableHttp, tasks: TaskGroup) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await shell.close()
        finally:
            shell.inbox.close()
            tasks.cancel_scope.cancel()
            # The host's own error is not ours to wrap in a group: it goes on by itself.
            await tasks.__aexit__(None, None, None)

    def _sender(self, codec: Codec) -> Callable[[Any], Any]:
        shell = self._shell
        assert shell is not None

        async def send(item: Any) -> None:
            message, headers = codec.decode(item)
            await shell.submit(message, headers, str(uuid.uuid4()))

        return send


@define(eq=False)
class _Listener:
    """One consumer of `guard.events()`."""

    _events: deque[Event] = field(factory=deque, init=False)
    _arrived: anyio.Event | None = field(default=None, init=False)

    def put(self, event: Event) -> None:
        _keep(self._events, event, "a listener of guard.events()")
        if self._arrived is not None:
            self._arrived.set()

    async def next(self) -> Event:
        while not self._events:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._events.popleft()


@define(eq=False)
class _Callback:
    """The user's `on_event`: one event at a time, in order, however long an async one takes over each."""

    _call: EventCallback
    _tasks: TaskGroup
    _waiting: deque[Event] = field(factory=deque, init=False)
    _busy: bool = field(default=False, init=False)

    def put(self, event: Event) -> None:
        if self._busy:
            _keep(self._waiting, event, "on_event")
            return
        result = self._begin(event)
        if result is not None:
            self._busy = True
            self._tasks.start_soon(self._go_on, result)

    def _begin(self, event: Event) -> Any:
        """Call it. Returns what is to be awaited, or None."""
        try:
            result = self._call(event)
        except Exception:
            logger.exception("on_event failed")
            return None
        return result if inspect.isawaitable(result) else None

    async def _go_on(self, result: Any) -> None:
        while result is not None:
            try:
                await result
            except Exception:
                logger.exception("on_event failed")
            result = None
            while result is None and self._waiting:
                result = self._begin(self._waiting.popleft())
        self._busy = False


def _keep(events: deque[Event], event: Event, whose: str) -> None:
    """Append, bounded: whoever is too slow loses the oldest."""
    if len(events) >= _KEPT_EVENTS:
        events.popleft()
        logger.warning("%s is too slow: an event was dropped for it", whose)
    events.append(event)


def _max_calls(client: http.HttpClient | None) -> int | None:
    """A caller's client has its own limit; some are left for notifications and the standalone stream."""
    limit = None if client is None else http.connection_limit(client)
    return None if limit is None else max(1, limit - min(_SPARE_CONNECTIONS, limit - 1))


def _can_spare_one(client: http.HttpClient | None) -> bool:
    """Whether one connection can be taken for good: a call and a notification need the other two."""
    limit = None if client is None else http.connection_limit(client)
    return limit is None or limit >= 3


def _level_of(event: Event) -> int:
    loud = (
        report.Discontinuity,
        report.SessionLost,
        report.StoreFailed,
        report.OrphanDropped,
        report.NotificationLost,
    )
    return logging.WARNING if isinstance(event, loud) else logging.DEBUG
