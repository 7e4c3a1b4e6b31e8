"""A server's event log that can tell a resume from a gap, and says which it is. Pure: no socket, no clock.

A cursor is honoured only if this very log holds every event that follows it, on the stream that issued it, in the
same incarnation of that stream; everything else is a `Refusal` with its reason, never a shorter replay.

    log = EventLog("7f3a", generation="http")
    log.append("get-1", {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    match log.resume("http:7f3a/get-1/1"):
        case Replay(entries=entries): ...
        case Refusal(reason=reason): ...
"""

from __future__ import annotations

import re
from collections import deque
from enum import Enum
from typing import Any

from attrs import define, field, frozen

_NAME = r"[^/\s]+"
_GENERATION = r"[^:/\s]+"
_EVENT_ID = re.compile(
    rf"(?P<generation>{_GENERATION}):(?P<log>{_NAME})/(?P<stream>{_NAME})/(?:[0-9]{{1,9}}\.)?(?P<number>[0-9]{{1,18}})"
)


def _check(name: str, pattern: str = _NAME) -> None:
    """It goes into event IDs, and is to be read back out of them."""
    if not re.fullmatch(pattern, name) or not name.isprintable():
        raise ValueError(f"{name!r} cannot stand in an event ID")


class Reason(Enum):
    """Why a cursor is not honoured."""

    NEVER_ISSUED = "this log never issued it"
    GENERATION = "it was issued in another generation"
    SESSION = "it was issued in another session"
    STREAM = "it was issued on another stream"
    TRIMMED = "the events after it are no longer held"
    HOLE = "an event after it is missing"
    FORKED = "it was issued on a branch that this log has left"
    SUPERSEDED = "a newer stream has taken the place of its own"
    DRAIN_RACE = "its event is the last one sent, and nobody knows whether it was taken"


@frozen
class Entry:
    """One event of a log; `message` is None for a priming event."""

    stream: str
    number: int
    """Counts the events of its stream, from 1."""
    event_id: str
    message: Any


@frozen
class Replay:
    """A resume that is honoured: these events, then whatever is appended, without a gap."""

    stream: str
    after: int
    """The number of the event before the first to be sent."""
    entries: tuple[Entry, ...]
    drain_race: bool = False
    """The cursor's own event was the last one sent, so it comes again: see `EventLog.resume`."""


@frozen
class Refusal:
    """A resume that is not honoured."""

    reason: Reason
    event_id: str


@define(eq=False)
class EventLog:
    """The one log of one session, whichever replica appends to it.

    Its event IDs are `{generation}:{name}/{stream}/{number}`: no ID of another generation, session or stream can
    look like one of these. After a fork the number has the branch before it (`1.5`).

    Args:
        name: what no other log has, of this process or any other. Not the session ID, which is a credential.
        generation: `http` for streamable HTTP, `sse` for the legacy transport; goes into every ID.
        retained: how many events are kept, of all streams together; older ones are trimmed, save the newest of
            each stream that goes on, and the last one sent of each where all that follows it is held: whatever
            the others carry, a quiet stream can be resumed from its end, also once news of it comes.
        refuse_drain_race: refuse a cursor that is in a drain race; by default its event is sent again.

    Raises:
        ValueError: a name (also of a stream) that cannot be read back out of an ID: empty, or with a `/` or space
            in it; a generation with a `:`.
    """

    name: str = field(validator=lambda _, __, name: _check(name))
    generation: str = field(default="http", validator=lambda _, __, name: _check(name, _GENERATION))
    retained: int = 1000
    refuse_drain_race: bool = False
    _held: deque[Entry] = field(factory=deque)
    _heads: dict[str, int] = field(factory=dict)
    _sent: dict[str, int] = field(factory=dict)
    _born: dict[str, list[int]] = field(factory=dict)
    """For each stream the number after which each branch of it begins."""
    _finished: set[str] = field(factory=set)
    _superseded: set[str] = field(factory=set)

    def append(self, stream: str, message: Any = None) -> Entry:
        """Write the next event of a stream; None for a priming event. The oldest of the log may be trimmed."""
        _check(stream)
        number = self.head(stream) + 1
        entry = Entry(stream, number, self.event_id(stream, number), message)
        self._heads[stream] = number
        self._held.append(entry)
        self._trim()
        return entry

    def event_id(self, stream: str, number: int) -> str:
        """The ID that this event of the stream has, or would have."""
        branch = self._branch_of(stream, number)
        return f"{self.generation}:{self.name}/{stream}/{f'{branch}.' if branch else ''}{number}"

    def head(self, stream: str) -> int:
        """The number of the stream's newest event; 0 if it has none."""
        return self._heads.get(stream, 0)

    def after(self, stream: str, number: int) -> tuple[Entry, ...] | None:
        """Every event of the stream behind this number, or None if not all of them are held."""
        entries = tuple(e for e in self._held if e.stream == stream and e.number > number)
        whole = [e.number for e in entries] == list(range(number + 1, self.head(stream) + 1))
        return entries if whole else None

    def held(self, stream: str) -> tuple[Entry, ...]:
        """What is left of the stream."""
        return tuple(e for e in self._held if e.stream == stream)

    def sent(self, entry: Entry) -> None:
        """This event was written to a connection. That is all a server knows: MCP has no acknowledgement."""
        self._sent[entry.stream] = max(entry.number, self.last_sent(entry.stream))

    def last_sent(self, stream: str) -> int:
        """The number of the newest event that was written to any connection."""
        return self._sent.get(stream, 0)

    def finish(self, stream: str) -> None:
        """Nothing follows on this stream; it can still be resumed."""
        self._finished.add(stream)

    def is_finished(self, stream: str) -> bool:
        """Whether nothing more will be appended."""
        return stream in self._finished or stream in self._superseded

    def supersede(self, stream: str) -> None:
        """A newer stream has taken its place: its cursors are dead."""
        self._superseded.add(stream)

    def fork(self, stream: str, after: int) -> None:
        """The stream goes on from this number, as from a backup: what it issued behind it is of another branch."""
        self._born.setdefault(stream, []).append(after)
        self._held = deque(e for e in self._held if e.stream != stream or e.number <= after)
        self._heads[stream] = min(after, self.head(stream))
        self._sent[stream] = min(after, self.last_sent(stream))

    def lose(self, event_id: str) -> None:
        """This event is gone from the middle, as one that another replica kept to itself."""
        self._held = deque(e for e in self._held if e.event_id != event_id)

    def resume(self, event_id: str, *, stream: str | None = None) -> Replay | Refusal:
        """What follows this cursor, or why that cannot be told.

        A cursor that names the last event which was sent is the mark of the drain race: the client may name it
        although it was cut before the event was taken. An event that carries a message is then sent again
        (at least once; a client knows it by its ID), unless `refuse_drain_race`, or it is no longer held.

        Args:
            stream: the stream that is to be resumed, where the request names it by other means than the cursor.
        """
        found = self.locate(event_id)
        if isinstance(found, Reason):
            return Refusal(found, event_id)
        name, number = found
        if stream not in (None, name):
            return Refusal(Reason.STREAM, event_id)
        return self._continue(name, number, event_id)

    def locate(self, event_id: str) -> tuple[str, int] | Reason:
        """Stream and number of an event that this log has issued, held or not; or why it has not."""
        parts = _EVENT_ID.fullmatch(event_id)
        if parts is None:
            return Reason.NEVER_ISSUED
        if parts["generation"] != self.generation:
            return Reason.GENERATION
        if parts["log"] != self.name:
            return Reason.SESSION
        stream, number = parts["stream"], int(parts["number"])
        if self.event_id(stream, number) != event_id:
            return Reason.FORKED if stream in self._born else Reason.NEVER_ISSUED
        if not 0 < number <= self.head(stream):
            return Reason.NEVER_ISSUED
        return stream, number

    def _continue(self, stream: str, number: int, event_id: str) -> Replay | Refusal:
        if stream in self._superseded:
            return Refusal(Reason.SUPERSEDED, event_id)
        held, entries = self.held(stream), self.after(stream, number)
        if entries is None:
            trimmed = not held or held[0].number > number + 1
            return Refusal(Reason.TRIMMED if trimmed else Reason.HOLE, event_id)
        own = next((e for e in held if e.number == number), None)
        race = number == self.last_sent(stream) and (own is None or own.message is not None)
        if not race:
            return Replay(stream, number, entries)
        if own is None or self.refuse_drain_race:
            return Refusal(Reason.DRAIN_RACE, event_id)
        return Replay(stream, number - 1, (own, *entries), drain_race=True)

    def _trim(self) -> None:
        """The newest `retained` stay; of what is older that from which its stream can be resumed."""
        older = [self._held.popleft() for _ in range(len(self._held) - self.retained)]
        for entry in reversed(older):
            if self._is_the_end(entry) or self._is_sent_again(entry):
                self._held.appendleft(entry)

    def _is_the_end(self, entry: Entry) -> bool:
        """The newest event of a stream that goes on."""
        return entry.number == self.head(entry.stream) and not self.is_finished(entry.stream)

    def _is_sent_again(self, entry: Entry) -> bool:
        """The last one sent, where something follows, and all of it is held."""
        return entry.number == self.last_sent(entry.stream) and bool(self.after(entry.stream, entry.number))

    def _branch_of(self, stream: str, number: int) -> int:
        """The newest branch that begins before this number. Later forks further back make earlier ones void."""
        born = self._born.get(stream, [])
        return next((n for n in range(len(born), 0, -1) if number > born[n - 1]), 0)
