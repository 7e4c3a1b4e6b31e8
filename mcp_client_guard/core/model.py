"""The vocabulary: identities, judgements, outcomes, and the records for a store."""

from __future__ import annotations

from enum import Enum, auto
from hashlib import blake2b
from json import dumps, loads
from typing import Any, NoReturn

from attrs import field, frozen

JSON = dict[str, Any]


def assert_never(value: NoReturn) -> NoReturn:
    """Ends every `match` over inputs or actions (`typing.assert_never` needs Python 3.11)."""
    raise AssertionError(f"not expected: {value!r}")


class Generation(Enum):
    """How messages travel: by which revision of MCP's transports."""

    LEGACY_SSE = "legacy-sse"
    """2024-11-05: the GET stream is the session."""
    STREAMABLE_HTTP = "streamable-http"
    """2025-03-26 to 2025-11-25."""
    STATELESS_HTTP = "stateless-http"
    """From 2026-07-28 on: no session, nothing to resume."""
    WEBSOCKET = "websocket"
    """A streamable HTTP session upgraded to a socket."""


@frozen
class Seen:
    """One row of a trail: what we remember of an event."""

    event_id: str | None
    digest: bytes

    @classmethod
    def from_row(cls, event_id: object, digest: object) -> Seen:
        """From storage; refuses anything that `digest_of` cannot have made."""
        if event_id is not None and not isinstance(event_id, str):
            raise ValueError(f"event ID must be text or NULL, not {type(event_id).__name__}")
        if not isinstance(digest, bytes) or len(digest) != DIGEST_SIZE:
            raise ValueError(f"digest must be {DIGEST_SIZE} bytes")
        return cls(event_id, digest)


DIGEST_SIZE = 16
_OBJECTS = ("params", "result", "error")


def digest_of(data: bytes) -> bytes:
    """128-bit BLAKE2b of an event's data: of what its JSON says, or of the bytes if it is not JSON.

    Not of the raw bytes: FastMCP 4 replays an event with its keys in another order (measured on 4.2.3), and stores
    that keep JSON as values write numbers, and members that are not there, in their own way.
    """
    try:
        value = loads(data, parse_float=number_of)
        data = dumps(_stated(value), sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        pass
    return blake2b(data, digest_size=DIGEST_SIZE).digest()


def number_of(text: str) -> float:
    """A whole one in its one form: 1.0 is 1."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _stated(body: Any) -> Any:
    """A message without members of its own that are null; a batch of such. Further in, null may be a value."""
    if isinstance(body, list):
        return [_stated(part) for part in body]
    if not isinstance(body, dict) or body.get("jsonrpc") != "2.0":
        return body
    stated = _without_nulls(body)
    return {k: _without_nulls(v) if k in _OBJECTS and isinstance(v, dict) else v for k, v in stated.items()}


def _without_nulls(members: JSON) -> JSON:
    return {k: v for k, v in members.items() if v is not None}


def fingerprint(secret: str | None, salt: str = "") -> str:
    """What people are shown instead of a session ID or an event ID: eight hex digits, not reversible."""
    if secret is None:
        return "-"
    return blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=4, key=salt.encode()[:64]).hexdigest()


class Grade(Enum):
    """How well a resume was proven (docs/events.md, Evidence)."""

    PROVEN = "proven"
    """The server has sent an event again that we hold, with the same ID and content: it has the same log."""
    CONSISTENT = "consistent"
    """Its event IDs go on without a gap, or it says that it has resumed: nothing was shown again."""
    UNVERIFIED = "unverified"
    """Nothing contradicts, and nothing confirms."""
    BROKEN = "broken"
    """It is another log, or a part of it is missing: messages may be lost."""


@frozen
class Evidence:
    """A judgement on a stream after a resume, and why."""

    grade: Grade
    reason: str

    def __str__(self) -> str:
        return f"{self.grade.name}({self.reason})"


class Outcome(Enum):
    """What became of a call (docs/outcomes.md). Every call ends in exactly one."""

    COMPLETED = "completed"
    """The server answered: with a result, or with an error."""
    RECOVERED = "recovered"
    """Its answer is known although its caller had been told otherwise, or was gone; or the hook gave it."""
    NOT_EXECUTED = "not_executed"
    """It has not run: nothing of it was written, or the server refused it unread."""
    RESENT = "resent"
    """It may have run, and was sent again by consent: that sending has an outcome of its own."""
    IN_DOUBT = "in_doubt"
    """It was sent, has no answer, and may have run."""
    CANCELLED = "cancelled"
    """Its caller gave it up before its answer. It may have run, unless the reason says that nothing was sent."""
    INPUT_REQUIRED = "input_required"
    """The server asked for something first: the call goes on with another request, under the same call key."""


HAS_ANSWER = (Outcome.COMPLETED, Outcome.RECOVERED)
"""The call has run, and this is known of it."""
WAS_ANSWERED = (*HAS_ANSWER, Outcome.INPUT_REQUIRED)
"""The server has answered this request."""
NOT_KNOWN = (None, Outcome.IN_DOUBT, Outcome.CANCELLED)
"""Whether the call has run is not known, or not yet."""


class Taken(Enum):
    """What became of a message from the server."""

    DELIVERED = auto()
    LATE = auto()
    ORPHAN = auto()


class Told(Enum):
    """Who knows the outcome of a ledger row, where somebody must."""

    CALLER = 0
    """Its caller, or a repeat of it; or nobody has to."""
    LISTED = 1
    """`Guard.recovered()` has named it; the first repeat still gets its answer."""
    NOBODY = 2


@frozen
class SessionOpened:
    """An `initialize` succeeded. The session ID is a credential and stays out of the repr."""

    incarnation: int
    generation: Generation
    session_id: str | None = field(repr=False)
    protocol_version: str | None
    initialize_params: JSON = field(repr=False)
    initialize_result: JSON = field(repr=False)


@frozen
class SessionEnded:
    """The session of this incarnation is over, for the reason given."""

    incarnation: int
    reason: str


STORED_ROWS = 8
"""Rows of each stream's trail that are kept on disk (DESIGN §4)."""


@frozen
class CursorMoved:
    """The newest drained rows of a stream, at most `STORED_ROWS`, newest last."""

    incarnation: int
    stream: str
    rows: tuple[Seen, ...] = field(repr=False)
    passed: int = 0
    """Drained events after them, which come again if this process dies: a question among them is not answered."""


@frozen
class CursorDropped:
    """This stream has no cursor any more."""

    incarnation: int
    stream: str


@frozen
class CallSent:
    """A ledger row, written before the first byte of its request."""

    incarnation: int
    wire_id: int
    method: str
    tool: str | None
    call_key: str
    arguments_digest: bytes = field(repr=False)
    may_have_side_effects: bool
    named: bool = False
    """The host chose the call key: the same name finds this row again after a restart."""


@frozen
class CallSettled:
    """The outcome of a ledger row, as a store keeps it; the event of that name is another class. A later one
    replaces it (`in_doubt` may become `recovered` or `resent`)."""

    incarnation: int
    wire_id: int
    outcome: Outcome
    reason: str
    answer: JSON | None = field(default=None, repr=False)
    """The server's answer, less its ID: kept until `AnswerDrained`."""
    told: Told = Told.CALLER
    slot: int | None = None
    """Of the row, where it is not the writer's own."""


@frozen
class AnswerDrained:
    """The host has taken the answer of this row: its bytes may go."""

    incarnation: int
    wire_id: int
    kept: bool = False
    """They stay all the same."""


@frozen
class OutcomeTold:
    """What became of the call of this key is known now, in whichever slot it was."""

    call_key: str
    told: Told
    taken: bool = False
    """With its answer, whose bytes may go."""
    as_doubt: bool = False
    """Only that it is in doubt was told: nobody has heard an answer that came since."""


@frozen
class CallNamed:
    """A named call has repeated the call of this key, and has what became of it: its name stands for that, too."""

    call_key: str
    name: str


@frozen
class ConsentSpent:
    """The one repeat to which a request has brought consent along."""

    call_key: str


@frozen
class GenerationFound:
    """What last worked at the endpoint; None: what was found works no more."""

    generation: Generation | None


@frozen
class TaskCreated:
    """The server took this call as a task (2025-11-25, or the 2026 extension), which outlives the stream."""

    incarnation: int
    wire_id: int
    task_id: str = field(repr=False)
    is_extension: bool


@frozen
class TaskEnded:
    """The outcome of this row's task has reached the host, or there will be none."""

    incarnation: int
    wire_id: int
    slot: int | None = None
    """As in `CallSettled`."""


@frozen
class CallRepeated:
    """Somebody sent the call of this key again, and was refused or joined to it: a link, not a row."""

    call_key: str


@frozen
class ServerAnswered:
    """What the host answered to a request of the server's, for when it is replayed."""

    incarnation: int
    request_id: str | int
    digest: bytes = field(repr=False)
    """Of the request."""
    answer: JSON = field(repr=False)
    stream: int | None = None
    """On which it was asked; None: not known, in a row of an earlier version."""
    event_id: str | None = field(default=None, repr=False)


Record = (
    SessionOpened
    | SessionEnded
    | CursorMoved
    | CursorDropped
    | CallSent
    | CallSettled
    | AnswerDrained
    | OutcomeTold
    | CallNamed
    | ConsentSpent
    | GenerationFound
    | TaskCreated
    | TaskEnded
    | CallRepeated
    | ServerAnswered
)
