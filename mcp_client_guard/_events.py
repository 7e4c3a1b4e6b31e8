"""Events on their way to the user: `on_event`, `guard.events()`, and the log."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled
from attrs import define, field

from ._loops import Post, has_ended, post_to_this_loop
from ._theirs import is_theirs
from .core import report
from .core.actions import LONG_WAIT
from .core.model import Outcome
from .core.report import Event

logger = logging.getLogger("mcp_client_guard")

EventCallback = Callable[[Event], Any]

_KEPT_EVENTS = 1024


@define(eq=False)
class Listener:
    """One consumer of `guard.events()`."""

    _events: deque[Event] = field(factory=deque, init=False)
    _arrived: anyio.Event | None = field(default=None, init=False)
    _loop: Post | None = field(default=None, init=False)
    """On which it is iterated."""

    @property
    def is_gone(self) -> bool:
        """It is far behind, and cannot come back: its event loop has ended."""
        return self._loop is not None and len(self._events) >= _KEPT_EVENTS and has_ended(self._loop)

    def put(self, event: Event) -> None:
        _keep(self._events, event, "a listener of guard.events()")
        if self._arrived is not None:
            with suppress(RuntimeError):  # its event loop has ended, and nobody listens there
                self._arrived.set()

    async def next(self) -> Event:
        self._loop = self._loop or post_to_this_loop()
        while not self._events:
            self._arrived = anyio.Event()
            await self._arrived.wait()
            await checkpoint_if_cancelled()  # see `transports.heeding`
        return self._events.popleft()


@define(eq=False)
class Callback:
    """The user's `on_event`: one event at a time, in order, however long an async one takes over each."""

    _call: EventCallback
    _tasks: TaskGroup
    _whose: str
    _waiting: deque[Event] = field(factory=deque, init=False)
    _busy: bool = field(default=False, init=False)
    _scope: anyio.CancelScope | None = field(default=None, init=False)
    """Of an async one that is under way: whoever cancels the host still leaves, and it is told of that."""
    _over: bool = field(default=False, init=False)
    _idle: anyio.Event | None = field(default=None, init=False)
    """Somebody waits until it has been told everything."""

    def put(self, event: Event) -> None:
        if self._busy:
            _keep(self._waiting, event, f"{self._whose}: on_event")
            return
        result = self._begin(event)
        if result is not None:
            self._busy = True
            self._tasks.start_soon(self._go_on, result)

    def _begin(self, event: Event) -> Any:
        """Call it. Returns what is to be awaited, or None."""
        try:
            result = self._call(event)
        except BaseException as error:
            if not is_theirs(error):
                raise
            logger.exception("%s: on_event failed", self._whose)
            return None
        return result if inspect.isawaitable(result) else None

    async def _go_on(self, result: Any) -> None:
        with anyio.CancelScope(shield=not self._over) as self._scope:
            while result is not None:
                try:
                    await result
                except BaseException as error:
                    if not is_theirs(error):
                        raise
                    logger.exception("%s: on_event failed", self._whose)
                result = None
                while result is None and self._waiting:
                    result = self._begin(self._waiting.popleft())
            self._busy = False
        self._scope = None
        if self._idle is not None:
            self._idle.set()

    async def finish(self, over: float) -> None:
        """On leaving: let it be told everything, until then. What it is about after that is broken off."""
        try:
            with anyio.move_on_after(over - anyio.current_time(), shield=True):
                while self._busy:
                    self._idle = anyio.Event()
                    await self._idle.wait()
        finally:  # asyncio's own cancellation passes through shields
            self._over = True
            if self._busy:
                untold = 1 + len(self._waiting)
                told = "%s: on_event is too slow: not told of the last %s events of its connection"
                logger.warning(told, self._whose, untold)
            if self._scope is not None:
                self._scope.cancel()


def _keep(events: deque[Event], event: Event, whose: str) -> None:
    """Append, bounded: whoever is too slow loses the oldest."""
    if len(events) >= _KEPT_EVENTS:
        events.popleft()
        logger.warning("%s is too slow: an event was dropped for it", whose)
    events.append(event)


_LOUD = (
    report.Discontinuity,
    report.EndpointMoved,
    report.EndpointRefused,
    report.ListenedAgain,
    report.NotificationLost,
    report.OrphanDropped,
    report.RefreshSuggested,
    report.RepeatRefused,
    report.SessionLost,
    report.StoreFailed,
    report.UnreadableDropped,
)


def level_of(event: Event) -> int:
    """WARNING where something was or may be lost, or somebody has to look."""
    match event:
        case report.CallSettled():
            is_loud = event.outcome is Outcome.IN_DOUBT
        case report.Reinitialized():
            is_loud = bool(event.changed or event.not_restored)
        case report.Disconnected():
            is_loud = event.attempt == 1 or event.wait > LONG_WAIT
        case report.Unreachable() | report.SessionUnavailable():
            is_loud = event.attempt == 1
        case _:
            is_loud = isinstance(event, _LOUD)
    return logging.WARNING if is_loud else logging.DEBUG
