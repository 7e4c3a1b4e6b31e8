"""One guarded connection: a machine, a shell and what they stand on, for as long as the host stays."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from itertools import count
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup
from attrs import evolve

from ._errors import GuardError
from ._events import Callback
from ._messages import Codec
from ._reconcile import Hooks
from .core.actions import Ask, Forward, Reply, StopAsking
from .core.heritage import Heritage
from .core.inputs import Forwarded, ReconnectRequested
from .core.machine import Machine
from .core.report import Event
from .core.wire_ids import FIRST_IDS, EarlierIds, block_of, first_wire_id
from .stores import Claim
from .transports import http
from .transports.inbox import Inbox, ReadStream, WriteStream
from .transports.streamable import CLOSING_SECONDS, StreamableHttp

if TYPE_CHECKING:
    from ._guard import Guard
    from .transports.websocket import Sockets

_NO_NAMES: Mapping[str, str] = MappingProxyType({})
call_keys_here: ContextVar[Mapping[str, str]] = ContextVar("mcp_client_guard_call_keys", default=_NO_NAMES)
"""The names that the host gives to the calls it makes in this context, by the salt of their Guard."""

_SPARE_CONNECTIONS = 4
_FLUSH_SECONDS = 1.0

_numbers = count(1)
"""Name the connections of this process. Not `id()`, which may be that of an earlier one that others still name."""


class Connection:
    """One guarded connection: enter it once. Made by `Guard.connect()`."""

    def __init__(self, guard: Guard, codec: Callable[[], Codec]) -> None:
        self._guard = guard
        self._codec = codec
        self._number = next(_numbers)
        self._machine: Machine | None = None
        self._heritage: Heritage | None = None
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._shell: StreamableHttp | None = None
        self._write: WriteStream[Any] | None = None
        self._hooks: Hooks | None = None
        self._callback: Callback | None = None
        self._news: anyio.Event | None = None
        """Somebody waits for the next event, or for the end."""
        self._left = False

    def __repr__(self) -> str:
        """Without the session ID, which is a credential."""
        return f"Connection({self._guard._name}, state={self.state!r})"

    @property
    def state(self) -> str:
        """`new`, `live`, `lost`, ...: of its session."""
        return "new" if self._machine is None else self._machine.session.word

    @property
    def session_id(self) -> str | None:
        """The server's session ID: a credential, for adapters that must hand it on."""
        return None if self._machine is None else self._machine.session.session_id

    @property
    def _left_session(self) -> tuple[int, int] | None:
        """Slot and incarnation of the session, once closed; None if calls are still to be recovered under it."""
        machine, shell = self._machine, self._shell
        if machine is None or shell is None or machine.heirs_open or not machine.session.incarnation:
            return None
        return shell.slot, machine.session.incarnation

    async def __aenter__(self) -> tuple[Any, Any]:
        """Untyped, since the SDK 1.x above asks for streams of its own classes, and 2.x for any of their shape."""
        if self._tasks is not None:
            raise GuardError("a connection is single-use: call guard.connect() again")
        codec = self._codec()
        guard = self._guard
        if guard._client is not None and http.is_closed(guard._client):
            raise GuardError("the http_client of this Guard is closed: make a Guard with one that is open")
        try:
            claim = await guard._ownership.own(self)
            self._stack.push_async_callback(guard._ownership.disown, self)
            client: Any = guard._client
            if client is None:
                own = http.default_client(guard.url, guard._headers)
                client = await self._stack.enter_async_context(own)
            number = slot = await claim.new_slot()
            if self._heritage is not None:
                slot = self._heritage.slot
                self._heritage = evolve(self._heritage, earlier=EarlierIds(slot, number))
            self._tasks = anyio.create_task_group()
            self._shell = self._shell_of(client, claim, number, slot)
            await self._tasks.__aenter__()  # last, for whatever fails would leave it open
        except BaseException:
            with anyio.CancelScope(shield=True):
                try:
                    await guard._ownership.disown(self)
                finally:
                    await self._stack.aclose()
            raise
        self._shell.start()
        self._write = WriteStream(self._sender(codec), self._shell.inbox.close)
        return ReadStream(self._shell.inbox, codec.encode), self._write

    def _shell_of(self, client: Any, claim: Claim, number: int, slot: int) -> StreamableHttp:
        guard, tasks = self._guard, self._tasks
        assert tasks is not None
        self._callback = None if guard._on_event is None else Callback(guard._on_event, tasks, guard._name)
        inbox = Inbox(guard.policy.max_event_size)
        first = first_wire_id(number, secrets.randbelow(FIRST_IDS))
        guard._ownership.blocks.append(block_of(first))
        limit = None if guard._client is None else http.connection_limit(guard._client, guard.url)
        machine = self._machine = Machine(
            guard.policy,
            first_wire_id=first,
            salt=guard._salt,
            generation=guard.generation,
            max_calls=None if limit is None else max(1, limit - _spare(limit)),
            spare=0 if limit is None else _spare(limit),
            opens_standalone=limit is None or limit >= 3,  # a call and a notification need the other two
            ends_session=guard._terminate,
            shared=guard._ownership.shared,
            name=self._number,
            upgrades=guard._upgrade_url is not None,
            has_hook=guard._reconcile is not None,
            heritage=self._heritage,
        )
        shell = StreamableHttp(
            http.Endpoint(client, guard.url, tells_when_begun=guard._client is None),
            machine,
            inbox,
            claim,
            slot,
            self._tell,
            self._elsewhere,
            tasks,
            self._sockets(client),
        )
        if guard._reconcile is not None:
            self._hooks = Hooks(guard._reconcile, shell.feed, tasks)
        return shell

    def _sockets(self, client: http.HttpClient) -> Sockets | None:
        guard = self._guard
        if guard._upgrade_url is None:
            return None
        from .transports.websocket import Sockets

        endpoint = http.Endpoint(client, guard._upgrade_url, tells_when_begun=guard._client is None)
        return Sockets(endpoint, guard.policy.max_event_size, guard.policy.max_idle)

    def _inherit(self, heritage: Heritage) -> None:
        """Go on where a dead process has left off, under its slot."""
        self._heritage = heritage

    def _reconnect(self) -> None:
        """Open anew whatever that can do no harm to."""
        if self._shell is not None and not self._left:
            self._shell.feed(ReconnectRequested(anyio.current_time()))

    async def _settled(self) -> None:
        """Wait until every call of a dead process has its outcome, and that is in the store; not for ever.

        Their own deadlines begin with the host's `initialize`, for which nothing else makes us wait no longer.
        """
        shell, heritage = self._shell, self._heritage
        if shell is None or heritage is None:
            return
        awaited = [heir for heir in heritage.heirs if not heir.is_known]
        longest = max((self._guard.policy.deadline_of(heir.tool) for heir in awaited), default=0.0)
        with anyio.move_on_after(longest):
            while shell.machine.heirs_awaited and not self._left:
                self._news = self._news or anyio.Event()
                await self._news.wait()

    async def _flush(self) -> None:
        """Have in the store what the host has been told; one that hangs holds nobody up.

        In a task of the connection's: a write that is cancelled may be lost.
        """
        shell, tasks, written = self._shell, self._tasks, anyio.Event()
        if shell is None or tasks is None or self._left:
            return

        async def flush() -> None:
            try:
                await shell.flush()
            finally:
                written.set()

        tasks.start_soon(flush)
        with anyio.move_on_after(_FLUSH_SECONDS):
            await written.wait()

    def _tell(self, event: Event) -> None:
        self._guard._tell(event, self._callback)
        self._wake()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    def _elsewhere(self, order: Ask | StopAsking | Reply | Forward) -> None:
        match order:
            case Forward():
                for other in self._guard._ownership.connections:
                    if other._number == order.machine and other._shell is not None:
                        other._shell.feed(Forwarded(order.message, order.of, order.by_guard))
            case _:
                assert self._hooks is not None
                self._hooks.carry_out(order)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        assert self._shell is not None
        assert self._write is not None
        self._write.refuse()
        try:
            await self._leave(self._shell, self._tasks)
        finally:
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()

    async def _leave(self, shell: StreamableHttp, tasks: TaskGroup) -> None:
        over = anyio.current_time() + CLOSING_SECONDS
        try:
            with anyio.CancelScope(shield=True):
                await shell.close()
        finally:
            shell.inbox.close()
            self._left = True
            self._wake()
            if self._hooks is not None:
                self._hooks.close()
            try:
                if self._callback is not None:
                    await self._callback.finish(over)
            finally:
                tasks.cancel_scope.cancel()
                # The host's own error is not ours to wrap in a group: it goes on by itself.
                await tasks.__aexit__(None, None, None)

    def _sender(self, codec: Codec) -> Callable[[Any], Any]:
        shell, tasks, guard = self._shell, self._tasks, self._guard
        assert shell is not None
        assert tasks is not None
        salt = guard._salt

        async def send(item: Any) -> None:
            message, headers = codec.decode(item)
            name = call_keys_here.get().get(salt) if message.get("method") == "tools/call" else None
            if guard._ownership.listed and "id" in message:
                tasks.start_soon(guard._ownership.mark_listed)
            call_key = name or str(uuid.uuid4())
            shell.submit(message, headers, call_key, named=name is not None, resumes=codec.resumes(item))

        return send


def _spare(limit: int) -> int:
    """A caller's client has its own limit; some are left for notifications and the standalone stream."""
    return min(_SPARE_CONNECTIONS, limit - 1)
