"""Messages on their way to the host, with the drain observed: asking for the next says that the last was taken.

Ours, and not a memory object stream, because that one cannot say when a message was taken, and switches tasks
for each. Both SDK majors accept any object with this shape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from attrs import define, field

from mcp_client_guard.core.model import JSON

from .heeding import Heed

if TYPE_CHECKING:
    from typing_extensions import Self

_MAX_MESSAGES = 1024

T = TypeVar("T")


@define(eq=False, repr=False)
class Place:
    """A message that keeps its place in the order while it waits for the disk."""

    message: JSON
    is_due: bool = False


@define(eq=False, repr=False)
class Inbox:
    """Bounded by back-pressure: `room` keeps the reader of a socket waiting while the host is behind (L9).

    The order is that in which the core has decided: by that it knows which message was taken.
    """

    max_bytes: int
    drained: int = field(default=0, init=False)
    """Messages taken by the host since the core was last told."""
    on_drained: Callable[[], None] = field(default=lambda: None)
    """Called when the first message since then was taken."""
    _messages: deque[JSON | Place] = field(factory=deque, init=False)
    _places: int = field(default=0, init=False)
    """How many of these are `Place`s."""
    _bytes: int = field(default=0, init=False)
    _handed: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)
    _waiting: anyio.Event | None = field(default=None, init=False)
    _room: anyio.Event | None = field(default=None, init=False)
    _heed: Heed = field(factory=Heed, init=False)

    def put(self, message: JSON) -> None:
        if self._closed:
            return
        self._messages.append(message)
        if self._waiting is not None:
            self._wake()

    def reserve(self, message: JSON) -> Place:
        """Put this message, which is not to be handed out before `release`; nor is anything behind it."""
        place = Place(message)
        self._messages.append(place)
        self._places += 1
        return place

    def release(self, place: Place) -> None:
        """What it waited for is done."""
        place.is_due = True
        self._wake()

    def account(self, size: int) -> None:
        """These many bytes were read from a socket for what was just put."""
        self._bytes += size

    @property
    def behind(self) -> int:
        """Messages that the host has not taken."""
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        return len(self._messages) >= _MAX_MESSAGES or self._bytes > self.max_bytes

    async def room(self) -> None:
        """Wait until the host has caught up."""
        while self.is_full and self._messages and not self._closed:
            self._room = self._room or anyio.Event()
            await self._room.wait()
        if not self._messages:
            self._bytes = 0

    async def take(self) -> JSON:
        """The next message.

        Raises:
            anyio.EndOfStream: the connection is closed and everything was taken.
        """
        if self._handed:
            self._handed = False
            self.drained += 1
            if self.drained == 1:
                self.on_drained()
        while not self._messages or (self._places and self._is_held(self._messages[0])):
            if not self._messages:
                self._bytes = 0
                self._make_room()
            if self._closed:
                raise anyio.EndOfStream
            self._waiting = waiting = anyio.Event()
            await waiting.wait()
            if self._heed.is_due(self._bytes):
                await checkpoint_if_cancelled()
        self._handed = True
        message = self._messages.popleft()
        if isinstance(message, Place):
            self._places -= 1
            message = message.message
        if self._room is not None and len(self._messages) <= _MAX_MESSAGES // 2:
            self._bytes = self._bytes // 2
            self._make_room()
        return message

    def leave(self) -> None:
        """The host leaves: what it was handed last it has taken, for it does not come back to say so."""
        if self._handed:
            self.drained += 1
            self._handed = False

    def close(self) -> None:
        """No more will be put."""
        self._closed = True
        self._wake()
        self._make_room()

    def _is_held(self, first: JSON | Place) -> bool:
        return isinstance(first, Place) and not first.is_due

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set()

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None


class _Stream:
    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@define(eq=False, repr=False)
class ReadStream(_Stream, Generic[T]):
    """What the host reads from."""

    _inbox: Inbox
    _encode: Callable[[JSON], T]

    async def receive(self) -> T:
        """The next message.

        Raises:
            anyio.EndOfStream: the connection is closed.
        """
        return self._encode(await self._inbox.take())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            message = await self._inbox.take()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None
        return self._encode(message)

    async def aclose(self) -> None:
        self._inbox.close()

    def close(self) -> None:
        self._inbox.close()


@define(eq=False, repr=False)
class WriteStream(_Stream, Generic[T]):
    """What the host writes to. Closing it ends what it reads from, as in the SDK: bridges wait for that.

    Not the other way: SDK 2.x has closed its read stream when it sends its last cancels.
    """

    _submit: Callable[[T], Any]
    _end_reading: Callable[[], None]
    _closed: bool = field(default=False, init=False)

    async def send(self, item: T) -> None:
        """Send a message.

        Raises:
            anyio.ClosedResourceError: the connection is closed.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        await self._submit(item)

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        self.refuse()
        self._end_reading()

    def refuse(self) -> None:
        """What is sent from now on would never be answered."""
        self._closed = True
