"""One logical SSE sequence and how it stands: it outlives the connections that carry it."""

from __future__ import annotations

from enum import Enum, auto

from attrs import define, field

from .budget import Budget
from .connection import Connection
from .ledger import Call
from .model import JSON
from .position import Position
from .state import STREAM, StreamState, StreamStep, step
from .timer import Timer, TimerKind
from .trail import Trail

STANDALONE = 0
"""Number of the standalone GET stream; other streams are numbered by the wire ID of what opened them."""
STANDALONE_NAME = "standalone"
"""Its name for people, and in the store."""


class StreamKind(Enum):
    CALL = auto()
    """The answer to a request's POST."""
    NOTE = auto()
    """The answer to the POST of a notification, or of the host's answer to the server: no stream at all."""
    STANDALONE = auto()
    CARRIER = auto()
    """The GET stream that is a legacy session: every message of the server's comes on it."""


class Exact(Enum):
    """Why the next resume sends the exact cursor, and no overlap."""

    REFUSED = auto()
    """The overlap was, in words or by a status."""
    SILENCE = auto()
    """It was met by silence: the witness did not come."""
    END = auto()
    """It drew a 200 that ended without an event."""


@define(eq=False, repr=False)
class Stream:
    """How a stream stands. `state` changes through `move` alone."""

    number: int
    kind: StreamKind
    trail: Trail
    call: Call | None = None
    method: str = ""
    incarnation: int = 0
    """Of the session under which it was opened."""
    stateless: bool = False
    """Of 2026-07-28: it has no session, its events have no identity, and closing it is its cancellation."""
    message: JSON = field(factory=dict)
    """What was posted, kept while it may be posted again because nothing was written."""
    headers: dict[str, str] = field(factory=dict)
    state: StreamState = StreamState.OPEN
    connection: Connection = field(factory=Connection)
    """The present one, which alone may speak for this stream."""
    has_opened: bool = False
    """A GET for it was answered by an event stream, if only to a process before this one."""
    retry_ms: int | None = None
    exact: Exact | None = None
    """None: the next resume asks for the overlap."""
    unreadable: bool = False
    """What came on it instead of an answer could not be read, or was nothing."""
    unopened: int = 0
    """Attempts to open it again that have failed, in a row."""
    barred: int = 0
    """How often in a row the host's client could not ask for it, and would not fare better."""
    in_vain: str = ""
    """Why what the server has asked on it will not be answered."""
    offered_session_id: str | None = field(default=None, repr=False)
    budget: Budget = field(factory=Budget)
    position: Position = field(factory=Position)
    primed_on: int = 0
    """The last connection on which a priming event was placed."""
    doubtful: bool = False
    """Its last resume was not proven: a foreign message breaks it."""
    legacy: bool = False
    """Of a legacy session: IDs on its events are used against duplicates only, and nothing is resumed."""
    answers: int | None = None
    """A note: on which stream the server has asked for what it carries."""
    question: int | None = None
    """A note: what it answers, by the number under which the host was asked."""

    @property
    def may_have_tail(self) -> bool:
        """Whether the present connection is a resume that may have gone on from its replay to a live tail.

        Servers that prime their streams prime again between the two; of the others it cannot be told.
        """
        return self.connection.resumed and self.primed_on in (0, self.connection.number)

    @property
    def may_repeat_unknown(self) -> bool:
        """Whether the present connection may replay what is not known any more."""
        return self.connection.resumed and self.trail.bygone.is_incomplete

    @property
    def was_sent(self) -> bool:
        """Whether any byte of its request can have left."""
        return self.connection.may_have_sent or bool(self.trail.rows)

    @property
    def is_post(self) -> bool:
        """Whether its present connection is the POST of a request, and no resume."""
        return self.kind is StreamKind.CALL and self.connection.resumed_from is None

    @property
    def is_unsent(self) -> bool:
        """Nothing of its request can have left by the present connection."""
        return self.kind is StreamKind.CALL and not self.connection.may_have_sent

    @property
    def is_tried_again(self) -> bool:
        """A request's, whose last attempt to be sent or resumed has failed."""
        return self.kind is StreamKind.CALL and self.state is StreamState.LOST and self.budget.attempts > 0

    @property
    def named_session(self) -> bool:
        """Whether its request named the session it was sent under; a legacy one is named by the URL."""
        return "mcp-session-id" in self.headers or self.legacy

    @property
    def is_unwanted(self) -> bool:
        """Nobody waits any more for the answer that it would bring."""
        return self.call is not None and not self.call.in_flight

    @property
    def is_host_s(self) -> bool:
        """Opened by a request of the host's, and not by one of the guard's own."""
        return self.call is not None and self.call.own is None

    @property
    def name(self) -> str:
        if self.kind is StreamKind.CARRIER:
            return "carrier"
        return STANDALONE_NAME if self.number == STANDALONE else str(self.number)

    def timer(self, kind: TimerKind) -> Timer:
        """One of its present connection."""
        return Timer(kind, self.number, self.connection.number)

    @property
    def answer_timer(self) -> Timer:
        """Of its request, whatever connection it is waited for on."""
        return Timer(TimerKind.ANSWER, self.number)

    def move(self, by: StreamStep) -> None:
        self.state = step(STREAM, self.state, by)
        if self.call is not None:
            self.call.troubled = self.state is not StreamState.OPEN or self.doubtful

    def progress(self) -> None:
        """Something new came."""
        self.connection.progressed = True
        self.budget.refill()
