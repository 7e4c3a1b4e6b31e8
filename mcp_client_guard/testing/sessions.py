"""Sessions of an honest server: each bound to exactly one event log, however many replicas serve it."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio
from attrs import define, field

from .event_log import Entry, EventLog, Refusal, Replay
from .proxy import How


@define(eq=False)
class CutAfter:
    """Where a connection is to be cut: after so many messages; with a fraction left, inside the next one."""

    left: float
    how: How = How.RST


@define(eq=False)
class Session:
    """One session, its log, and who reads which stream of it now."""

    session_id: str = field(repr=False)
    log: EventLog
    protocol: str = "2025-11-25"
    """The revision agreed on."""
    standalone: str | None = None
    """The stream of the newest GET without a cursor."""
    cuts: dict[str, CutAfter] = field(factory=dict)
    """For each stream the cut that its connection is to meet, once."""
    _working: Counter[str] = field(factory=Counter)
    _readers: dict[str, Reader] = field(factory=dict)
    _streams: int = 0
    _news: anyio.Event = field(factory=anyio.Event)

    def open_stream(self, kind: str) -> str:
        """A name for a new stream: `call-1`, `get-2`, ..."""
        self._streams += 1
        return f"{kind}-{self._streams}"

    def append(self, stream: str, message: Any = None) -> Entry:
        """Write to the log; whoever reads the stream is told."""
        entry = self.log.append(stream, message)
        self.note_change()
        return entry

    def finish(self, stream: str) -> None:
        """The stream is complete."""
        self.log.finish(stream)
        self.note_change()

    def resume(self, event_id: str, *, stream: str | None = None) -> Replay | Refusal:
        """What `EventLog.resume` says."""
        return self.log.resume(event_id, stream=stream)

    def subscribe(self, stream: str, after: int) -> Reader:
        """Read a stream from behind this number on. An older reader of the stream ends."""
        reader = Reader(self, stream, after)
        self._readers[stream] = reader
        self.note_change()
        return reader

    def is_read(self, stream: str | None) -> bool:
        """Whether a connection carries this stream now."""
        return stream in self._readers

    async def at_rest(self, stream: str) -> None:
        """Wait until whatever emits to the stream does something else, or is done."""
        while self._working[stream] > 0:
            await self._news.wait()

    def end(self) -> None:
        """The session is over: so are its readers."""
        self._readers.clear()
        self.note_change()

    async def emit(self, stream: str, message: Any) -> None:
        """Write to the log, and wait until the stream's reader (if it has one) has written it on."""
        entry = self.append(stream, message)
        self._working[stream] += 1
        try:
            while (reader := self._readers.get(stream)) is not None and reader.position < entry.number:
                await self._news.wait()
        finally:
            self._working[stream] -= 1
            self.note_change()

    def note_change(self) -> None:
        """Have everybody look again."""
        self._news.set()
        self._news = anyio.Event()


@define(eq=False)
class Reader:
    """One connection that reads one stream: `while entries := await reader.next(gone): ...`"""

    session: Session
    stream: str
    position: int

    async def next(self, gone: anyio.Event) -> Sequence[Entry]:
        """What comes next, at least one event; nothing when this reader is over.

        It is over when the stream is finished, when its connection is to be cut, when another connection reads it,
        when it was so slow that the log was trimmed before it, or when `gone` is set.
        """
        while self.is_current and self.due_cut is None and not gone.is_set():
            entries = self.session.log.after(self.stream, self.position)
            if entries is None:
                break
            if entries:
                return entries
            if self.session.log.is_finished(self.stream):
                break
            await first_of(self.session._news, gone)
        return ()

    def wrote(self, entry: Entry) -> None:
        """This event was written to the connection."""
        self.position = entry.number
        self.session.log.sent(entry)
        self.session.note_change()

    def close(self) -> None:
        """The connection is over."""
        if self.is_current:
            del self.session._readers[self.stream]
            self.session.note_change()

    @property
    def due_cut(self) -> CutAfter | None:
        """The cut that its connection is to meet before the next message."""
        cut = self.session.cuts.get(self.stream)
        return cut if cut is not None and cut.left == 0 else None

    @property
    def is_complete(self) -> bool:
        """Whether everything was read, and nothing follows."""
        log = self.session.log
        return log.is_finished(self.stream) and log.after(self.stream, self.position) == ()

    @property
    def is_current(self) -> bool:
        """Whether no other connection has taken the stream over."""
        return self.session._readers.get(self.stream) is self


@define(eq=False)
class SessionStore:
    """Every session, under its ID. Replicas of one server share one store.

    Args:
        retained: for each session's `EventLog`.
        refuse_drain_race: for each session's `EventLog`.
    """

    retained: int = 1000
    refuse_drain_race: bool = False
    sessions: dict[str, Session] = field(factory=dict, repr=False)

    def open(self, generation: str) -> Session:
        """A new session of this generation (`http` or `sse`), with a log of its own."""
        session = Session(secrets.token_hex(16), self.new_log(generation))
        self.sessions[session.session_id] = session
        return session

    def new_log(self, generation: str) -> EventLog:
        """An empty log that no cursor of another fits."""
        return EventLog(secrets.token_hex(4), generation, self.retained, self.refuse_drain_race)

    def find(self, session_id: str | None, generation: str) -> Session | None:
        """The session, if it is open and of this generation: one of the other generation is unknown here."""
        session = self.sessions.get(session_id or "")
        return session if session is not None and session.log.generation == generation else None

    def close(self, session: Session) -> None:
        """The session is over; its ID is unknown from now on."""
        self.sessions.pop(session.session_id, None)
        session.end()


async def first_of(*events: anyio.Event) -> None:
    """Wait until one of these is set."""
    async with anyio.create_task_group() as tasks:

        async def wait_for(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait_for, event)
