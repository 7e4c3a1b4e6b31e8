"""Actions: what the core orders. Imperatives, carried out in the order given; the order is the guarantee."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen

from .doubt import CallInDoubt
from .model import JSON, Record
from .report import Event
from .timer import Timer

LONG_WAIT = 60.0
"""Seconds. A `retry:` beyond it is kept to, and may be in the wrong unit."""


@frozen
class Delay:
    """How long to wait before opening. The shell turns it into seconds (it owns the jitter)."""

    attempt: int
    """0: at once, save for the floors; then exponential."""
    retry_ms: int | None = None
    """The server's `retry:`: never sooner; later only as much as `attempt` > 0 asks for."""
    at_least: float = 0.0
    """Seconds, from `Retry-After`."""
    cap: float = 10.0
    """Seconds at which the exponential part stops growing."""

    @property
    def floor(self) -> float:
        """Seconds that the server has us wait."""
        return max(self.at_least, (self.retry_ms or 0) / 1000)

    @property
    def is_long(self) -> bool:
        """The server has chosen a wait that nobody expects: people are told why nothing comes."""
        return self.floor > LONG_WAIT


NO_DELAY = Delay(0)


@frozen
class Save:
    """Write these records.

    With `durable`, what is ordered next waits until they are on disk, and all that was to be before them: without
    records that is all it orders. Timers do not wait; and if the store does not come back within 5 s, nothing does
    but the requests whose rows are among them.
    """

    records: tuple[Record, ...]
    durable: bool = False


@frozen
class Post:
    """Send this message as the body of a POST, after `delay`."""

    stream: int
    connection: int
    message: JSON
    headers: Mapping[str, str] = field(repr=False)
    delay: Delay = NO_DELAY
    for_request: bool = True
    """Not for a notification, nor for the host's answer to the server."""
    lasts: bool = False
    """Its answer is long in coming and holds nothing of the host's up: a subscription, or what a task gives."""
    target: str | None = field(default=None, repr=False)
    """Where to, if not to the endpoint itself: of the same origin, and a credential."""


@frozen
class Get:
    """Open an event stream by GET, after `delay`."""

    stream: int
    connection: int
    headers: Mapping[str, str] = field(repr=False)
    delay: Delay = NO_DELAY
    for_request: bool = True
    """Not for the standalone stream."""
    lasts: bool = False
    """As in `Post`."""

    @property
    def last_event_id(self) -> str | None:
        """What it resumes after, if it resumes."""
        return self.headers.get("last-event-id")


@frozen
class AskUpgrade:
    """Ask whether the session may go on over a socket: POST this body to the upgrade's URL."""

    question: int
    body: JSON = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


@frozen
class OpenSocket:
    """Open a socket at the upgrade's URL; what comes on it are the events of this stream."""

    stream: int
    connection: int
    headers: Mapping[str, str] = field(repr=False)
    ticket: str = field(repr=False)
    """What the server gave for it: used once."""
    delay: Delay = NO_DELAY
    """Never another: the shell opens all three alike."""


@define
class Deliver:
    """Hand this message to the host. Not frozen only because it is made for every message."""

    message: JSON


@frozen
class Report:
    """Tell whoever listens."""

    event: Event


@frozen
class SetTimer:
    timer: Timer
    seconds: float
    jitter: float = 0.0
    """Seconds of which the shell adds a random part."""


@frozen
class CancelTimer:
    timer: Timer


@frozen
class Hangup:
    """Close this connection.

    With `linger`, what the server still sends is read for a moment and the connection is kept for reuse if
    the response ends by then; without, at once.
    """

    connection: int
    linger: bool = False


@frozen
class EndSession:
    """Send `DELETE` for this session, once, without insisting."""

    headers: Mapping[str, str] = field(repr=False)
    at_once: bool = False
    """Not only when the host leaves."""


@frozen
class Ask:
    """Ask the user's `reconcile` hook what to do about this call; answered by `Reconciled`."""

    question: int
    """The wire ID of the call's first sending."""
    doubt: CallInDoubt
    arguments: JSON | None = field(repr=False)
    """None where they are not known (a call of an earlier process)."""
    lists: bool = False
    """Its tool is not known: have the tools listed before a result is given for it."""


@frozen
class StopAsking:
    """Nobody waits for the hook's answer to this question any more."""

    question: int


@frozen
class Reply:
    """The server's answer to a request of the hook's."""

    ticket: int
    message: JSON = field(repr=False)


@frozen
class Forward:
    """Hand this answer to the host of another connection under the same key, whose repeat was joined."""

    machine: int
    message: JSON = field(repr=False)
    of: str
    """The call key of the one that it answers: that which was joined may have been a repeat itself."""
    by_guard: bool
    """As that of a call: the guard's own word, and no answer."""


Action = (
    Deliver
    | Save
    | Post
    | Get
    | AskUpgrade
    | OpenSocket
    | Report
    | SetTimer
    | CancelTimer
    | Hangup
    | EndSession
    | Ask
    | StopAsking
    | Reply
    | Forward
)
