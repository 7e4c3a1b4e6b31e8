"""The streamable HTTP shell: carries out what the machine orders and tells it what happened. Decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup
from attrs import define, field

from mcp_client_guard._theirs import is_theirs
from mcp_client_guard.core.actions import (
    Action,
    Ask,
    AskUpgrade,
    CancelTimer,
    Deliver,
    EndSession,
    Forward,
    Get,
    Hangup,
    OpenSocket,
    Post,
    Reply,
    Report,
    Save,
    SetTimer,
    StopAsking,
)
from mcp_client_guard.core.inputs import (
    Answered,
    Begun,
    BodyReceived,
    CloseRequested,
    ConnectionFreed,
    ConnectionLost,
    Drained,
    EventReceived,
    IdleElapsed,
    Input,
    MessageSubmitted,
    TimerElapsed,
    TooLarge,
)
from mcp_client_guard.core.machine import Machine
from mcp_client_guard.core.model import JSON, assert_never
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.registry import MAYBE_REDELIVERED
from mcp_client_guard.core.report import Event
from mcp_client_guard.core.timer import Timer
from mcp_client_guard.stores import Claim

from . import http, retry, saving
from .answer import Answer
from .exchange import BodyTooLarge, Exchange
from .inbox import Inbox, Place
from .saving import STALL_TIMER, Batch, Saving
from .sse import EventReader, parse_json
from .timers import Timers

if TYPE_CHECKING:
    from .websocket import Sockets

logger = logging.getLogger("mcp_client_guard")

_ACCEPT_ANY = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_ACCEPT_EVENTS = {"accept": "text/event-stream", "cache-control": "no-store"}
_LINGER = 1.0
CLOSING_SECONDS = 0.8
"""Of the second in which a host leaves; what remains is the sockets' and the store's."""
_LAST_NOTES_SECONDS = 0.2
_LAST_RECORDS_SECONDS = 0.3
_TRUTH = {"true": True, "false": False}


@define(eq=False, repr=False)
class StreamableHttp:
    """Runs one connection of the host's. Made inside a running event loop, used in one task group."""

    endpoint: http.Endpoint
    machine: Machine
    inbox: Inbox
    claim: Claim
    slot: int
    on_event: Callable[[Event], None]
    elsewhere: Callable[[Ask | StopAsking | Reply | Forward], None]
    """Takes what is ordered of the user's hook and of other connections."""
    tasks: TaskGroup
    sockets: Sockets | None = None
    """Where the session may be upgraded."""
    _policy: GuardPolicy = field(init=False)
    _timers: Timers = field(init=False)
    _exchanges: dict[int, Exchange] = field(factory=dict, init=False)
    _saving: Saving = field(init=False)
    _ends: list[EndSession] = field(factory=list, init=False)
    _one_ended: anyio.Event = field(factory=anyio.Event, init=False)
    """An exchange is over."""

    def __attrs_post_init__(self) -> None:
        self._policy = self.machine.policy
        self._timers = Timers(self._elapsed)
        self._saving = Saving(self.claim, self.slot, self._timers, self.on_event)
        self.inbox.on_drained = self._saving.soon

    def start(self) -> None:
        self.tasks.start_soon(self._timers.run)

    def submit(
        self,
        message: JSON,
        headers: Mapping[str, str],
        call_key: str,
        *,
        named: bool = False,
        resumes: bool = False,
    ) -> None:
        """The host sent a message. Never waits: one that does would hold up an answer, or a cancel, behind it."""
        self.feed(MessageSubmitted(message, headers, call_key, named, resumes))

    async def close(self) -> None:
        """Leave, in at most a second: let the host's last words go, write what is unwritten, end the session."""
        over = anyio.current_time() + CLOSING_SECONDS
        self.inbox.leave()
        self._tell_drained()
        try:  # asyncio's own cancellation passes through shields
            with anyio.move_on_after(_LAST_NOTES_SECONDS, shield=True):
                while self.machine.notes_are_leaving:
                    self._one_ended = anyio.Event()
                    await self._one_ended.wait()
        finally:
            self.feed(CloseRequested())
            try:  # ordered, the records are on their way
                with anyio.move_on_after(_LAST_RECORDS_SECONDS, shield=True):
                    await self._saving.all()
            finally:  # the last, for it may need a new connection: all the time that is left
                for end in self._ends:
                    await self._end_session(end, over - anyio.current_time())

    # Between the core and the world.

    def feed(self, told: Input) -> None:
        """Tell the core, and do what it says."""
        self._carry_out(self.machine.receive(told, now=anyio.current_time()))

    async def flush(self) -> None:
        """Have everything in the store that was ordered to be saved until now."""
        await self._saving.all()

    def _carry_out(self, actions: Sequence[Action | Place]) -> None:
        for done, action in enumerate(actions):
            if isinstance(action, Save) and action.durable:
                # What follows waits for the disk, once for all of it; nothing else does.
                batch = self._saving.order(each for each in actions[done:] if isinstance(each, Save))
                rest = [kept for each in actions[done:] if (kept := self._keep(each)) is not None]
                self.tasks.start_soon(self._save_first, batch, rest)
                return
            self._do(action)

    def _keep(self, action: Action | Place) -> Action | Place | None:
        """What is left to be done of this once the disk has been waited for: what is decided meanwhile overtakes
        that, but must find it."""
        if isinstance(action, Deliver):
            return self.inbox.reserve(action.message)
        if isinstance(action, (Post, Get, OpenSocket)):
            self._expect(action)
        elif isinstance(action, (SetTimer, CancelTimer)):
            self._do(action)
        return None if isinstance(action, (Save, SetTimer, CancelTimer)) else action

    def _do(self, action: Action | Place) -> None:
        match action:
            case Deliver():
                self.inbox.put(action.message)
            case Place():
                self.inbox.release(action)
            case Save():
                self._saving.behind(action.records)
            case Post() | Get() | OpenSocket():
                self.tasks.start_soon(self._run, self._expect(action))
            case AskUpgrade():
                self.tasks.start_soon(self._ask_upgrade, action)
            case Report():
                self.on_event(action.event)
            case SetTimer():
                self._timers.set(action.timer, action.seconds + retry.part_of(action.jitter))
            case CancelTimer():
                self._timers.cancel(action.timer)
            case Hangup():
                self._hang_up(action)
            case EndSession():
                if action.at_once:
                    self.tasks.start_soon(self._end_session, action)
                else:
                    self._ends.append(action)
            case Ask() | StopAsking() | Reply() | Forward():
                self.elsewhere(action)
            case _:
                assert_never(action)

    def _expect(self, order: Post | Get | OpenSocket) -> Exchange:
        """The exchange of this order; it can be hung up before it has begun."""
        exchange = self._exchanges.get(order.connection)
        if exchange is None:
            exchange = self._exchanges[order.connection] = Exchange(order)
        return exchange

    def _hang_up(self, action: Hangup) -> None:
        exchange = self._exchanges.get(action.connection)
        if exchange is None or exchange.lingering:
            return
        if action.linger:
            exchange.lingering = True
            exchange.scope.deadline = anyio.current_time() + _LINGER
        else:
            exchange.scope.cancel()

    def _elapsed(self, key: Hashable) -> None:
        now = anyio.current_time()
        if isinstance(key, Timer):
            self.feed(self._ran_out(key, now))
        elif isinstance(key, int):
            self._check_idle(key, now)
        elif key == STALL_TIMER:
            self._saving.watched_long()
        else:
            self._saving.elapsed()
            self._tell_drained()
            self.tasks.start_soon(self._saving.group)

    def _ran_out(self, timer: Timer, now: float) -> TimerElapsed:
        unread: set[int] = set()
        amid: dict[int, float] = {}
        for exchange in self._exchanges.values():
            stream = exchange.order.stream
            if exchange.paused:
                unread.add(stream)
            if exchange.is_amid:
                amid[stream] = max(exchange.last_byte, amid.get(stream, 0.0))
        return TimerElapsed(timer, now, unread, amid)

    def _check_idle(self, connection: int, now: float) -> None:
        exchange = self._exchanges.get(connection)
        if exchange is None or exchange.lingering:
            return
        idle = 0.0 if exchange.paused else now - exchange.last_byte
        if idle < self._policy.max_idle:
            self._timers.set(connection, self._policy.max_idle - idle)
            return
        self._timers.set(connection, self._policy.max_idle)
        self._tell_drained()
        self.feed(IdleElapsed(exchange.order.stream, connection, now, exchange.last_byte))

    # Saving.

    def _tell_drained(self) -> None:
        count, self.inbox.drained = self.inbox.drained, 0
        if count:
            self.feed(Drained(count))

    async def _save_first(self, batch: Batch, rest: Sequence[Action | Place]) -> None:
        """Carry out the rest once this is on disk; if the store does not come back, all but the requests of it."""
        rows = batch.rows
        others = [each for each in rest if not (isinstance(each, Post) and each.stream in rows)]
        written = anyio.Event()
        if others:
            self.tasks.start_soon(self._save, batch, written)
            with anyio.move_on_after(min(saving.STALLED_SECONDS, self._policy.deadline_of(None))):
                await written.wait()
            if not written.is_set():
                self._carry_out(others)
                rest = [each for each in rest if isinstance(each, Post) and each.stream in rows]
                await written.wait()
        else:
            await self._save(batch, written)
        if len(rest) == 1 and isinstance(rest[0], Post):
            await self._run(self._expect(rest[0]))
        else:
            self._carry_out(rest)

    async def _save(self, batch: Batch, written: anyio.Event) -> None:
        for failed in await self._saving.rows(batch):
            self.feed(failed)
        written.set()

    # One exchange.

    async def _run(self, exchange: Exchange) -> None:
        """One HTTP request, from its delay to the end of its response. Raises nothing."""
        connection = exchange.order.connection
        lost: ConnectionLost | None = None
        if not exchange.scope.cancel_called:
            with exchange.scope:
                try:
                    lost = await self._converse(exchange)
                except BaseException as error:
                    if not is_theirs(error):
                        raise
                    lost = exchange.lost(error, self.endpoint.url)
        self._exchanges.pop(connection, None)
        self._timers.cancel(connection)
        self._one_ended.set()
        if lost is not None and not exchange.lingering:
            self._tell_drained()
            self.feed(lost)
        if self.machine.room is not None:
            self.feed(ConnectionFreed(connection))

    async def _converse(self, exchange: Exchange) -> ConnectionLost:
        order = exchange.order
        wait = retry.seconds(order.delay)
        if wait > 0:
            await anyio.sleep(wait)
        exchange.last_byte = anyio.current_time()
        self._timers.set(order.connection, self._policy.max_idle)
        if isinstance(order, OpenSocket):
            await self.sockets.converse(exchange, order, self)  # type: ignore[union-attr]
            return exchange.ended(clean=False)
        if isinstance(order, Post):
            method, accept, content = "POST", _ACCEPT_ANY, http.body_of(order.message)
        else:
            method, accept, content = "GET", _ACCEPT_EVENTS, None
        headers = {**order.headers, **accept}
        exchange.sent = self.endpoint.sending(method, partial(self.begin, exchange))
        url = order.target if isinstance(order, Post) else None
        async with self.endpoint.request(method, headers, content, url, exchange.sent) as answer:
            exchange.last_byte = anyio.current_time()
            await self._read(exchange, answer)
            clean = answer.complete_by_framing
        return exchange.ended(clean=clean)

    def begin(self, exchange: Exchange) -> None:
        """Bytes of this request may leave."""
        exchange.begun = True
        self.feed(Begun(exchange.order.stream, exchange.order.connection))

    async def _read(self, exchange: Exchange, answer: Answer) -> None:
        order, is_events, session_id = exchange.order, answer.is_events, answer.session_id
        if not 200 <= answer.status < 300:
            self.feed(await exchange.refused(answer, self.endpoint.url, self._policy.max_event_size))
            return
        resumed = _TRUTH.get(answer.fields.get("mcp-resumed", "").lower())
        now, url = exchange.last_byte, answer.url if isinstance(order, Get) else None
        told = Answered(order.stream, order.connection, answer.status, is_events, session_id, now, resumed, url)
        self.feed(told)
        if is_events:
            await self._read_events(exchange, answer)
            return
        try:
            body = await exchange.read_body(answer.chunks(), self._policy.max_event_size)
        except BodyTooLarge:
            self.feed(TooLarge(order.stream, order.connection))
            return
        exchange.lingering = True  # the whole response is here
        parsed = parse_json(body) if body.strip() else None
        self.feed(BodyReceived(order.stream, order.connection, parsed, answer.status, answer.media_type))

    async def _read_events(self, exchange: Exchange, answer: Answer) -> None:
        order = exchange.order
        reader = exchange.reader = EventReader(order.stream, order.connection, self._policy.max_event_size)
        async for chunk in answer.chunks():
            exchange.last_byte = anyio.current_time()
            if exchange.lingering:
                continue
            await self.take(exchange, reader.feed(chunk), len(chunk))

    async def take(self, exchange: Exchange, events: Sequence[EventReceived | TooLarge], size: int) -> None:
        """Tell the core of these events, which came in `size` bytes; the host's pace is the reader's."""
        inbox = self.inbox
        behind = inbox.behind
        self._carry_out(self.machine.receive(*events, now=exchange.last_byte))
        inbox.account(size)
        if inbox.drained >= MAYBE_REDELIVERED:
            self._tell_drained()
        # Only who fills the inbox waits: a trial delivers nothing, and its witness is due.
        if inbox.is_full and inbox.behind > behind:
            exchange.paused = True
            await inbox.room()
            exchange.paused = False
            exchange.last_byte = anyio.current_time()

    async def _ask_upgrade(self, order: AskUpgrade) -> None:
        assert self.sockets is not None
        self.feed(await self.sockets.ask(order))

    async def _end_session(self, end: EndSession, seconds: float | None = None) -> None:
        try:
            with anyio.fail_after(seconds, shield=seconds is not None):
                async with self.endpoint.request("DELETE", {**end.headers, "accept": "application/json"}):
                    pass
        except Exception as error:  # closing must not fail because the server does
            told = (http.origin_of(self.endpoint.url), type(error).__name__)
            logger.warning("%s: a session was left to the server, DELETE failed: %s", *told)
