"""What dishonest servers do when a client resumes: one lie for each incident of the seeds."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import count
from typing import Any

from attrs import define, field, frozen

from .event_log import EventLog, Reason, Refusal, Replay
from .sessions import Session, SessionStore
from .written import notification, tool_result

FOREIGN_ID = 999_000_001
"""A request ID and a progress token that no client has used."""


class Lie(Enum):
    """How a server is dishonest. Everything else that it does is honest."""

    FRESH_SESSION = "fresh-session"
    """A resume is answered 200 by an instance that never saw the session: under a fresh one."""
    TRIMMED_TAIL = "trimmed-tail"
    """The buffer starts behind the cursor, and is served from there. Give the server a small `retained`."""
    FORKED_COUNTER = "forked-counter"
    """Another replica has given the IDs behind the cursor to other events."""
    COUNTER_RESET = "counter-reset"
    """Another replica counts its events from 1, under the same session."""
    EMPTY_REPLAY = "empty-replay"
    """The session is shared, the buffer is not: 200, and silence."""
    DRAIN_RACE = "drain-race"
    """What was sent counts as delivered: the replay begins behind it, whatever the cursor."""
    DUPLICATE_IDS = "duplicate-ids"
    """The cursor is honoured, but what is new gets IDs of a counter that starts over."""
    SHARED_ALLOCATOR = "shared-allocator"
    """One counter for both generations, and legacy sessions and cursors accepted at the streamable endpoint."""
    CURSOR_ON_POST = "cursor-on-post"
    """A `Last-Event-ID` on a POST is taken for a resume, and the body is dropped."""
    UPGRADE_ONLY_NEW = "upgrade-only-new"
    """A socket that is said to go on from the client's position forwards only what is emitted from now on."""
    UPGRADE_EVICTED = "upgrade-evicted"
    """An upgrade is granted although the buffer starts behind the position. Give the server a small `retained`."""
    UPGRADE_OWN_POSITION = "upgrade-own-position"
    """The last event emitted, which the server echoes in `Last-Event-ID`, is taken for the client's position."""


@frozen
class Told:
    """What a resume is answered with. Then the stream is followed from `after` on, or nothing more comes."""

    session: Session
    events: tuple[tuple[str, Any], ...] = ()
    """Event ID and message of each."""
    follow: tuple[str, int] | None = None
    finish: bool = False


def tell(lie: Lie | None, store: SessionStore, session: Session, cursor: str) -> Told | None:
    """What is told in place of the truth; None: the truth."""
    speak = _SPOKEN.get(lie) if lie is not None else None
    found = session.log.locate(cursor)
    if speak is None or isinstance(found, Reason):
        return None
    return speak(store, session, *found)


def _fresh_session(store: SessionStore, session: Session, stream: str, number: int) -> Told:
    fresh = store.open("http")
    store.close(session)
    return Told(fresh, _foreign(fresh.log, "get-1", 0))


def _trimmed_tail(store: SessionStore, session: Session, stream: str, number: int) -> Told:
    held = [e for e in session.log.held(stream) if e.number > number]
    last = held[-1].number if held else session.log.head(stream)
    return Told(session, tuple((e.event_id, e.message) for e in held), (stream, last))


def _forked_counter(store: SessionStore, session: Session, stream: str, number: int) -> Told:
    return Told(session, _foreign(session.log, stream, number))


def _counter_reset(store: SessionStore, session: Session, stream: str, number: int) -> Told:
    return Told(session, _foreign(session.log, stream, 0))


def _empty_replay(store: SessionStore, session: Session, stream: str, number: int) -> Told:
    return Told(session)


def _drain_race(store: SessionStore, session: Session, stream: str, number: int) -> Told:
    sent = max(number, session.log.last_sent(stream))
    unsent = session.log.after(stream, sent) or ()
    events = tuple((e.event_id, e.message) for e in unsent)
    return Told(session, (*events, *_foreign(session.log, "get-9", 0)[:1]))


def _duplicate_ids(store: SessionStore, session: Session, stream: str, number: int) -> Told:
    """After the priming event, which has number 1, the IDs of the first messages are given out again."""
    log, sent, again = session.log, session.log.last_sent(stream), count(2)
    entries = log.after(stream, number) or ()
    ids = (e.event_id if e.number <= sent else log.event_id(stream, next(again)) for e in entries)
    return Told(session, tuple(zip(ids, (e.message for e in entries), strict=True)), finish=True)


_Speak = Callable[[SessionStore, Session, str, int], Told]
_SPOKEN: dict[Lie, _Speak] = {
    Lie.FRESH_SESSION: _fresh_session,
    Lie.TRIMMED_TAIL: _trimmed_tail,
    Lie.FORKED_COUNTER: _forked_counter,
    Lie.COUNTER_RESET: _counter_reset,
    Lie.EMPTY_REPLAY: _empty_replay,
    Lie.DRAIN_RACE: _drain_race,
    Lie.DUPLICATE_IDS: _duplicate_ids,
}


def _foreign(log: EventLog, stream: str, number: int) -> tuple[tuple[str, Any], ...]:
    """Events of somebody else's, under the IDs that follow this number."""
    messages = [
        notification("notifications/progress", progressToken=FOREIGN_ID, progress=1),
        notification("notifications/message", level="info", data="of another client"),
        tool_result(FOREIGN_ID, "refunded 900 cents"),
    ]
    return tuple((log.event_id(stream, n), message) for n, message in enumerate(messages, start=number + 1))


# One allocator for both generations, and sessions bridged from one to the other.


@define(eq=False)
class SharedIdLog(EventLog):
    """Its IDs are `e-{n}`, counted through every log of the store."""

    counter: count[int] = field(factory=lambda: count(100))
    _ids: dict[tuple[str, int], str] = field(factory=dict)

    def event_id(self, stream: str, number: int) -> str:
        """The next of the shared counter, at the first time."""
        if (stream, number) not in self._ids:
            self._ids[stream, number] = f"e-{next(self.counter)}"
        return self._ids[stream, number]

    def locate(self, event_id: str) -> tuple[str, int] | Reason:
        """Whatever this log has under the ID."""
        return next((place for place, id in self._ids.items() if id == event_id), Reason.NEVER_ISSUED)

    def resume(self, event_id: str, *, stream: str | None = None) -> Replay | Refusal:
        """What is strictly greater than the cursor, and still held."""
        found = self.locate(event_id)
        if isinstance(found, Reason):
            return Refusal(found, event_id)
        entries = tuple(e for e in self.held(found[0]) if e.number > found[1])
        return Replay(found[0], found[1], entries)


@define(eq=False)
class BridgingStore(SessionStore):
    """A session of either generation is known to both."""

    counter: count[int] = field(factory=lambda: count(100))

    def new_log(self, generation: str) -> EventLog:
        """One that shares its counter with all others."""
        return SharedIdLog(generation, generation, self.retained, counter=self.counter)

    def find(self, session_id: str | None, generation: str) -> Session | None:
        """The session, whichever generation it is of."""
        return self.sessions.get(session_id or "")
