"""Inputs: what the shell tells the core has happened. Past participles; each carries what the core cannot know.

`stream` and `connection` are the numbers the core put into the action that opened the exchange. What carries
a connection number that is no longer the stream's is ignored (DESIGN §4, Binding).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attrs import define, field, frozen

from .model import JSON
from .timer import Timer
from .verdicts import Verdict


class Unreadable:
    """Stands for a body or an event that is not JSON."""

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE = Unreadable()


@frozen
class MessageSubmitted:
    """The host wrote a message: a request, a notification, or its answer to a request of the server's."""

    message: JSON
    headers: Mapping[str, str] = field(factory=dict)
    """Headers that the host stamped on this message (SDK 2.x), lower case."""
    call_key: str = ""
    """A UUID, fresh for each request; or the host's own name for it."""
    named: bool = False
    """The call key is the host's own name for this call."""
    resumes: bool = False
    """The host goes on with a request that it has made before, from a cursor of its own (`resumption_token`)."""


@frozen
class SaveFailed:
    """The ledger row of this request could not be written: nothing of it has left."""

    stream: int
    why: str


@frozen
class ConnectionFreed:
    """This exchange is over, and all that was to be told of it was told. Only where the client has a limit."""

    connection: int


@frozen
class Begun:
    """The wait before this exchange is over: from now on bytes of its request may leave."""

    stream: int
    connection: int


@frozen
class Answered:
    """The status line and headers of a 2xx answer arrived, or of the 101 that opens a socket."""

    stream: int
    connection: int
    status: int
    is_events: bool
    """`text/event-stream`: events follow. Otherwise a body follows."""
    session_id: str | None = field(default=None, repr=False)
    at: float = 0.0
    """Seconds on a monotonic clock."""
    resumed: bool | None = None
    """`Mcp-Resumed: true|false`, where the server says so (DESIGN §6)."""
    url: str | None = field(default=None, repr=False)
    """Where a GET was answered, after any redirects."""


@frozen
class BodyReceived:
    """The whole body of a 2xx answer that is not an event stream."""

    stream: int
    connection: int
    body: Any
    """Parsed JSON, `UNREADABLE`, or None if empty."""
    status: int = 200
    media_type: str = ""
    """Of its `Content-Type`, for people; empty where that has none."""


@frozen
class Refused:
    """An answer with any other status, with its body."""

    stream: int
    connection: int
    status: int
    body: Any = None
    session_id: str | None = field(default=None, repr=False)
    retry_after: float | None = None
    """Seconds, from `Retry-After`."""
    location: str | None = None
    """Where a redirect that was not followed pointed."""
    path: str | None = None
    """Of the endpoint that was asked, for people."""


@define
class EventReceived:
    """One SSE event was dispatched. Not frozen only because it is made for every event."""

    stream: int
    connection: int
    event_id: str | None
    """The ID on *this* event; None when SSE rules merely inherit the previous one."""
    data: bytes
    """The raw `data` bytes, lines joined by a newline."""
    body: Any
    """Parsed JSON, `UNREADABLE`, or None if the data is empty."""
    name: str = "message"
    retry: int | None = None
    """Milliseconds, from a `retry:` field."""
    resets_id: bool = False
    """The event had an empty `id:` field."""


@frozen
class TooLarge:
    """An event or a body passed `max_event_size`: it is not read, and what comes after an event may be."""

    stream: int
    connection: int
    answers: int | None = None
    """The wire ID of the request that it answers, as far as its first and last bytes tell."""
    is_whole: bool = True
    """Its end has come, too: if it is an event, it is told of once before unless all of it came at once."""


@frozen
class ConnectionLost:
    """The exchange is over: ended, cut, never established. Always the last input of a connection."""

    stream: int
    connection: int
    at: float
    """Seconds on a monotonic clock."""
    written: bool
    """Whether any byte of the request can have left. False only where that is certain."""
    clean: bool
    """The response was complete by its own framing. False for a cut and wherever framing cannot tell."""
    why: str
    lasts: bool = False
    """The fault is not the network's (a login, a hook, a header): it is not tried again by itself."""
    refused: int | None = None
    """The status by which the server has refused it, and by which the client wanted to log in."""

    @property
    def words(self) -> str:
        """Why, for people."""
        return self.why if self.refused is None else f"HTTP {self.refused}, then {self.why}"


@frozen
class IdleElapsed:
    """No byte came on this connection for `max_idle` seconds."""

    stream: int
    connection: int
    at: float
    since: float = 0.0
    """When the last byte came."""


@frozen
class TimerElapsed:
    """A timer that the core set has run out."""

    timer: Timer
    at: float
    unread: Collection[int] = ()
    """Streams that are not read at present, since the host is behind."""
    amid: Mapping[int, float] = field(factory=dict)
    """Streams of which part of an event is here, and the rest is not: when their last byte came."""


@frozen
class UpgradeAnswered:
    """What became of an `AskUpgrade`."""

    question: int
    status: int | None
    """None: there was no answer."""
    body: Any = field(default=None, repr=False)
    """Parsed JSON, or None."""
    session_id: str | None = field(default=None, repr=False)
    retry_after: float | None = None
    """Seconds, from `Retry-After`."""
    why: str = ""
    """Why there was no answer."""
    lasts: bool = False
    """The fault is not the network's: it is not asked again by itself."""


@frozen
class Drained:
    """The host has taken this many more messages, in the order of their `Deliver` actions."""

    count: int


@frozen
class CloseRequested:
    """The host left the connection's context."""


@frozen
class ReconnectRequested:
    """The user knows that the present connections are worth nothing: the network has changed, say."""

    at: float
    """Seconds on a monotonic clock."""


@frozen
class Reconciled:
    """The `reconcile` hook has answered."""

    question: int
    verdict: Verdict | None
    """None: it has no opinion."""
    failed: str | None = None
    """It raised: the name of what."""


@frozen
class HookRequested:
    """The `reconcile` hook asks the server something; answered by `Reply`."""

    ticket: int
    method: str
    params: JSON = field(repr=False)
    call_key: str = ""


@frozen
class HookWithdrew:
    """The hook does not wait for the answer to this any more."""

    ticket: int


@frozen
class Forwarded:
    """The answer to a call of another connection, to which a repeat of this host's was joined."""

    message: JSON = field(repr=False)
    of: str
    """Of these, as in `Forward`."""
    by_guard: bool = False


Input = (
    EventReceived
    | Drained
    | MessageSubmitted
    | Begun
    | ConnectionFreed
    | Answered
    | BodyReceived
    | ConnectionLost
    | TimerElapsed
    | Refused
    | SaveFailed
    | TooLarge
    | IdleElapsed
    | UpgradeAnswered
    | CloseRequested
    | ReconnectRequested
    | Reconciled
    | HookRequested
    | HookWithdrew
    | Forwarded
)
