"""One logical SSE sequence and how it stands: it outlives the connections that carry it."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from .actions import NO_DELAY, Delay
from .ledger import Call
from .model import JSON, Seen
from .state import STREAM, StreamState, StreamStep, step
from .trail import Trail
from .trial import Trial

if TYPE_CHECKING:
    from .closing import LastLook

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


@frozen(eq=False)
class Behind:
    """A cursor on disk does not pass `row` before the host has taken what was last delivered then."""

    row: int
    delivery: object


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
    connection: int = 0
    """The one connection that may speak for this stream; what comes from another is ignored."""
    delay: Delay = NO_DELAY
    """Before the present connection."""
    retry_ms: int | None = None
    trial: Trial | None = None
    exact: bool = False
    """Overlap was refused, or met by silence: the next resume sends the exact cursor."""
    after_silence: bool = False
    resumed: bool = False
    """Whether the present connection was opened by a GET with `Last-Event-ID`."""
    on_socket: bool = False
    """The present connection is a socket, and not an exchange of HTTP."""
    begun: bool = False
    """Whether any byte of the request can have left on the present connection."""
    answered: bool = False
    """Whether the present connection has had its status line."""
    unreadable: bool = False
    """What came on it instead of an answer could not be read, or was nothing."""
    in_vain: str = ""
    """Why what the server has asked on it will not be answered."""
    unexpected_status: int = 0
    """The status of a GET that was answered without events."""
    opened_at: float | None = None
    offered_session_id: str | None = field(default=None, repr=False)
    witnessed: bool = False
    """The witness came on the present connection."""
    attempts: int = 0
    """Failed attempts to open, in a row, without progress."""
    barren: int = 0
    """Resumes in a row that ended with nothing new: the delay grows with it."""
    fruitless: int = 0
    """The same, less those in which the witness came: only these use up the budget."""
    fruitless_since: float | None = None
    hasty: int = 0
    """Resumes in a row that ended without a message where the server names no wait: a fresh ID alone, each time,
    fills the budget again but must not make a storm."""
    unwitnessed: int = 0
    """Ends of a trial with unknown events and no witness."""
    server_errors: int = 0
    progressed: bool = False
    """A new event ID came on this connection; or, where nothing was resumed, a message."""
    messages: int = 0
    messages_before: int = 0
    """`messages` when the present connection was ordered."""
    recheck_mark: int = 0
    rechecks: int = 0
    asked: dict[int, int] = field(factory=dict)
    """Requests of the server's that the host has not answered: the number it knows them by, and their row."""
    undrained: int = 0
    drained_row: int = 0
    behind: Behind | None = field(default=None, repr=False)
    """Messages of this stream's that came on another one."""
    stored: bool = False
    """A cursor of this stream is in the store."""
    stored_rows: tuple[Seen, ...] = field(default=(), repr=False)
    """What was last stored of its trail."""
    stored_up_to: int | None = None
    """The row up to which that is so."""
    resumed_from: str | None = field(default=None, repr=False)
    """The `Last-Event-ID` of the last resume."""
    primed_on: int = 0
    """The last connection on which a priming event was placed."""
    last_look: LastLook | None = None
    drained_before: int | None = None
    """The last row that an earlier process is known to have drained."""
    doubtful: bool = False
    """Its last resume was not proven: a foreign message breaks it."""
    legacy: bool = False
    """Of a legacy session: IDs on its events are used against duplicates only, and nothing is resumed."""
    carrier: int = 0
    """The connection of the carrier on which the answer is to come; 0 until it is posted."""
    target: str | None = field(default=None, repr=False)
    """Where it is posted, in a legacy session."""
    brought_endpoint: bool = False
    """What came on the present connection is a legacy stream: the server may know the session no more."""
    looks: int = 0
    """Connections lost since the answer to its request came on another stream."""
    answers: int | None = None
    """A note: on which stream the server has asked for what it carries."""
    limited: bool = False
    """Nobody waits for it: its present connection has a time."""
    accepted: bool = False
    """Its POST was answered without content: the answer comes on the carrier."""

    @property
    def may_have_tail(self) -> bool:
        """Whether the present connection is a resume that may have gone on from its replay to a live tail.

        Servers that prime their streams prime again between the two; of the others it cannot be told.
        """
        return self.resumed and self.primed_on in (0, self.connection)

    @property
    def was_sent(self) -> bool:
        """Whether any byte of its request can have left."""
        return self.begun or self.answered or self.resumed or bool(self.trail.rows)

    @property
    def is_unsent(self) -> bool:
        """Nothing of its request can have left by the present connection."""
        return self.kind is StreamKind.CALL and not (self.resumed or self.begun or self.answered)

    @property
    def named_session(self) -> bool:
        """Whether its request named the session it was sent under; a legacy one is named by the URL."""
        return "mcp-session-id" in self.headers or self.legacy

    @property
    def wait(self) -> str:
        """What is said of a long wait of the server's choice, while it lasts."""
        is_waiting = self.delay.is_long and not self.begun
        return f": the server has its stream wait for {self.delay.floor:.0f} s" if is_waiting else ""

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

    def move(self, by: StreamStep) -> None:
        self.state = step(STREAM, self.state, by)
        if self.call is not None:
            self.call.troubled = self.state is not StreamState.OPEN or self.doubtful

    def progress(self) -> None:
        """Something new came: the budgets are full again."""
        self.progressed = True
        self.attempts = self.barren = self.fruitless = self.unwitnessed = self.server_errors = 0
        self.fruitless_since = None

    def no_longer_exact(self) -> None:
        self.exact = self.after_silence = False
