"""The ledger: every request, from before its first byte to its one outcome. Knows nothing of event IDs.

Wire IDs are ours, so that a replayed answer of another process, or of another session, can never match a
request of this one; the host's IDs, progress tokens and cancellations are mapped both ways.
"""

from __future__ import annotations

from enum import Enum, auto
from hashlib import blake2b
from json import JSONDecoder, JSONEncoder, dumps
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from .classify import Ran, code_of
from .inputs import MessageSubmitted
from .model import DIGEST_SIZE, JSON, Outcome, number_of
from .rounds import NEVER, Round
from .wire_ids import EarlierIds, as_wire_id

if TYPE_CHECKING:
    from .shared import Named

HOOK_KEY = "hook:"
"""Begins the call key of what the `reconcile` hook has asked: in the store nothing else tells that from a call of
the host's."""
_TO_RUN_SECONDS = 1.0
"""After which a refusal may be said of a request that runs: what is refused unread is refused at once."""
_MAX_IN_DOUBT = 1024
_ANSWER_MAY_COME = frozenset({Outcome.IN_DOUBT, Outcome.CANCELLED})


class Own(Enum):
    """What a request is for that no host of this process has made."""

    PING = auto()
    INITIALIZE = auto()
    """Opens a session in place of a lost one."""
    RESTORE = auto()
    """Brings the new session to where the old one was: subscriptions, log level, what tools there are."""
    HOOK = auto()
    """The `reconcile` hook asks the server something."""
    TASK = auto()
    """Asks for the task of a call."""
    PROOF = auto()
    """Asks whether the session of an earlier process is alive."""
    TRIAL = auto()
    """Opens a session to see whether the server can resume."""
    HEIR = auto()
    """A call of a process that died: its stream is resumed, nothing is sent."""


@frozen
class Joined:
    """A repeat of a call that gets its answer."""

    machine: int
    """Of whose host."""
    host_id: str | int
    stateless: bool = False
    """Its host speaks 2026-07-28."""
    goes_along: bool = False
    """It goes on with the same call (`SharedLedger.went_on`)."""
    as_task: bool = False
    """It asks for a task (`Call.as_task`)."""
    named: bool = False
    """By a name."""


@define(eq=False, repr=False)
class Call:
    """One sending of a request of the host's, or of our own."""

    wire_id: int
    host_id: str | int | None
    method: str
    tool: str | None
    params: JSON
    call_key: str
    may_have_side_effects: bool
    incarnation: int
    stateless: bool = False
    """Sent under 2026-07-28: no session, and closing its stream is its cancellation."""
    legacy: bool = False
    """Posted beside a carrier, on which its answer is to come, whatever generation the session is of by now."""
    host_token: str | int | None = None
    progress: float | None = None
    """The last that its host was told, of whichever sending."""
    sent: MessageSubmitted | None = None
    """As the host wrote it, for sending it again."""
    listed: JSON | None = None
    """Its tool as the host knew it when it wrote this."""
    own: Own | None = None
    """None where the host has made it."""
    ticket: int = 0
    """Of what our own request is for: the hook's question, or the wire ID of the call it is about."""
    named: bool = False
    """The host chose the call key."""
    slot: int | None = None
    """Of its row, where that is not this connection's own."""
    first_wire_id: int = 0
    """Of its first sending: names its deadline and its questions, however often it is sent again."""
    sendings: int = 1
    repeats: int = 0
    """Earlier sendings that may have run: whatever becomes of this one, the request may have run."""
    lasting: int = 0
    """Those of them that did not fail at once."""
    begun_at: float | None = None
    """When the first byte of this sending may have left."""
    refusals: int = 0
    """Earlier sendings that did not run, by the server's word, since their session was gone."""
    refusal: Refusal | None = None
    """What its last sending drew."""
    unrun: tuple[str, int] | None = None
    """The server's last word that a sending of it did not run, and its status. None: none of them has left."""
    met: str = ""
    """Why the last attempt to send it failed, if nothing was written: for people."""
    drawn: tuple[Ran, Refusal] | None = None
    """What its POST drew beside a carrier, on which its answer may come yet, and what that says if none does."""
    said: JSON | None = None
    """What came for it and is not its answer: whoever is told that it is in doubt may want to know."""
    joined: list[Joined] = field(factory=list)
    """Repeats that get this call's answer."""
    digest: bytes = b""
    """Of tool and arguments."""
    waits: bool = False
    """For a session or a connection: nothing of it is sent, and it has no row."""
    is_new: bool = False
    """By what was known when there was a session for it, it repeats none: that stays so while it waits for a
    connection, whatever the others come to meanwhile."""
    troubled: bool = False
    """Its stream is lost, on trial or unproven, or it waits for a new session: a repeat joins it."""
    suspected: bool = False
    """It has an answer, which is believed only when a ping has said that the session lives."""
    was_taken: bool = False
    """An event came for it before any answer: the server had it, and nothing says any more that it did not run."""
    continues: Round | None = None
    """It goes on with a call whose last answer asked for input: no repeat of that call, nor of one like it."""
    left: list[float] = field(factory=list)
    """When joined repeats were given up before it had its outcome: theirs join it, or get its answer."""
    went_along: int = 0
    """Hosts whose joined requests continue that call, too."""
    consented_at: float = NEVER
    """When there was consent to it: it repeats a call that was in doubt then, and may, in all its rounds."""
    stood_for: Named | None = None
    """What its name stood for before, and stands for again if nothing of this runs."""
    consent: str | None = None
    """The call key whose consent this repeat has used up; it is as good as before if nothing of this runs."""
    brought: str | None = None
    """By which key or name that consent came with the request."""
    previous: tuple[int, int] | None = None
    """Incarnation and wire ID of the sending before this one."""
    may_run: tuple[int, int] | None = None
    """Incarnation and wire ID of the last sending that may have run."""
    is_unsent: bool = False
    """It was withdrawn, and nothing of this sending has left."""
    unsaved: bool = False
    """Its row could not be written: nothing of it leaves."""
    unsendable: bool = False
    """Not for want of a connection, but of a login, say: another attempt would meet the same."""
    later: Call | None = None
    """The sending after this one, whose outcome is that of the request."""
    answered_as_earlier: bool = False
    """An earlier sending was answered in place of this one."""
    by_guard: bool = False
    """What its host was told is the guard's own word (`Outcomes._tell`), and no answer."""
    is_owed: bool = False
    """A repeat that was joined could not read its answer: that stays for one that can, after a restart, too."""
    is_telling: bool = False
    """Its host was told so, and has not read it yet (`Latch.tellings`)."""
    untold: bool = False
    """Its outcome is settled, and is to be marked as told once the host has taken it."""
    heard: bool = False
    """A repeat that was joined to it has been told what became of it."""
    overtaken: bool = False
    """A newer `initialize` of the host's opens the session in its place."""
    is_known: bool = False
    """Its caller lives, and has its task, or was a hook: nobody is to be told what becomes of it."""
    outcome: Outcome | None = None
    cancelled: bool = False

    @property
    def message(self) -> JSON:
        """The request as the host wrote it, or as it would have written it."""
        if self.sent is not None:
            return self.sent.message
        return {"jsonrpc": "2.0", "method": self.method, "params": self.params}

    def let_go(self) -> None:
        """Of what the host wrote, which may be large, keep what a late answer needs: this is not sent again."""
        if self.own is None:
            self.sent = self.listed = None
            self.params = {"taskId": self.params["taskId"]} if "taskId" in self.params else {}

    @property
    def as_task(self) -> bool:
        """Whether it asks for a task of 2025-11-25, and can be answered with nothing else."""
        return not self.stateless and isinstance(self.params.get("task"), dict)

    @property
    def is_of_a_host(self) -> bool:
        """Of this process's, or of the one that died."""
        return self.own is None or self.own is Own.HEIR

    @property
    def is_internal(self) -> bool:
        """The guard's own affair: neither a host nor the hook waits for it."""
        return not self.is_of_a_host and self.own is not Own.HOOK

    @property
    def is_unsafe_call(self) -> bool:
        return self.method == "tools/call" and self.may_have_side_effects and self.is_of_a_host

    @property
    def is_subscription(self) -> bool:
        """Of the host's (2026-07-28): a stream, and no answer to wait for."""
        return self.stateless and self.method == "subscriptions/listen" and self.own is None

    @property
    def newest(self) -> Call:
        """The newest sending of the same request."""
        return self if self.later is None else self.later.newest

    @property
    def consented(self) -> bool:
        return self.consented_at > NEVER

    @property
    def in_flight(self) -> bool:
        return self.outcome is None

    def has_had_time(self, at: float) -> bool:
        """Whether the server has had it for so long that it may be at work on it."""
        return self.begun_at is not None and at - self.begun_at > _TO_RUN_SECONDS

    @property
    def has_row(self) -> bool:
        """Whether it stands in the ledger on disk: every request of the host's, and what the hook does."""
        return self.is_of_a_host or (self.own is Own.HOOK and self.may_have_side_effects)

    @property
    def row(self) -> tuple[int, int]:
        """Incarnation and wire ID of the row that says what became of the request."""
        return self.previous if self.unsaved and self.previous is not None else (self.incarnation, self.wire_id)

    @property
    def keeps_answer(self) -> bool:
        """Whether the bytes of its answer are kept until the host has taken them (S6)."""
        return self.method == "tools/call" or self.may_have_side_effects


@define(eq=False, repr=False)
class Repeat:
    """A request of the host's that gets the answer to the call that it repeats."""

    call: Call
    """The request: never sent."""
    of: str
    """The call key of what it repeats."""
    by_guard: bool = False
    is_telling: bool = False
    """As those of a call."""

    def __attrs_post_init__(self) -> None:
        self.call.untold = True


@frozen
class Refusal:
    """A status other than 2xx, or an error with 200, and what came with it."""

    status: int
    body: Any = None
    location: str | None = None
    retry_after: float | None = None
    path: str | None = None
    """Of the endpoint that said so, for people."""
    is_late: bool = False
    """It came so long after the request that this may have been running."""
    came: str = ""
    """To a GET, with a 2xx, for people: what was there in the place of an event stream."""

    @property
    def words(self) -> str:
        """For people."""
        led = f", redirected to {self.location}, which was not followed" if self.location else ""
        came = f", {self.came}, and no event stream" if self.came else ""
        return f"HTTP {self.status}{led}{came}"

    @property
    def wait(self) -> float:
        """Seconds that the server wants to be left alone."""
        return self.retry_after or 0.0

    def names(self, call: Call) -> bool:
        """Whether it is of a server that has read this request, and taken it for its own."""
        return isinstance(self.body, dict) and as_wire_id(self.body.get("id")) == call.wire_id

    def is_like(self, other: Refusal) -> bool:
        return self.status == other.status and code_of(self.body) == code_of(other.body)


def wait_of(refusal: Refusal | None) -> float:
    """As `Refusal.wait`: none where there was no refusal."""
    return 0.0 if refusal is None else refusal.wait


@define(eq=False, repr=False)
class Ledger:
    """Requests in flight, and those in doubt whose answer may still come."""

    first_wire_id: int
    _next_wire_id: int = field(init=False)
    _calls: dict[int, Call] = field(factory=dict, init=False)
    _by_host_id: dict[str | int, Call] = field(factory=dict, init=False)
    _in_doubt: dict[int, Call] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._next_wire_id = self.first_wire_id

    def new_wire_id(self) -> int:
        """The next ID, never used before in this session; as the first is chosen, it stays below 2^31."""
        wire_id = self._next_wire_id
        self._next_wire_id += 1
        return wire_id

    def was_issued(self, wire_id: object, earlier: EarlierIds | None = None) -> bool:
        """Whether this connection has ever used this ID, or those before it `earlier`."""
        number = as_wire_id(wire_id)
        if number is None:
            return False
        return self.first_wire_id <= number < self._next_wire_id or (earlier is not None and number in earlier)

    def may_be_issued(self, wire_id: object) -> bool:
        """Whether any request of ours, or of an earlier process's, can have this ID."""
        number = as_wire_id(wire_id)
        return number is not None and number > 0

    def admit(self, call: Call) -> None:
        call.first_wire_id = call.first_wire_id or call.wire_id
        self._calls[call.wire_id] = call
        if call.host_id is not None:
            self._by_host_id[call.host_id] = call

    def in_flight(self) -> list[Call]:
        return list(self._calls.values())

    @property
    def is_opening(self) -> bool:
        """Whether an `initialize` of the host's waits for its answer."""
        return any(call.method == "initialize" and call.own is None for call in self._calls.values())

    def by_host_id(self, host_id: object) -> Call | None:
        return self._by_host_id.get(host_id) if isinstance(host_id, (str, int)) else None

    def by_first(self, first_wire_id: int) -> Call | None:
        """The request whose first sending had this ID, if it has no outcome yet."""
        call = self._calls.get(first_wire_id)
        if call is not None:
            return call
        return next((c for c in self._calls.values() if c.first_wire_id == first_wire_id), None)

    def owing(self, wire_id: object) -> Call | None:
        """The request that an answer with this ID belongs to: in flight, in doubt, cancelled unanswered, or sent
        again."""
        number = as_wire_id(wire_id)
        if number is None:
            return None
        return self._calls.get(number) or self._in_doubt.get(number)

    def settle(self, call: Call, outcome: Outcome) -> None:
        """Give a call its outcome; one in doubt, cancelled or sent again is kept, for a late answer."""
        call.outcome = outcome
        self._calls.pop(call.wire_id, None)
        if call.host_id is not None and self._by_host_id.get(call.host_id) is call:
            del self._by_host_id[call.host_id]
        if outcome in _ANSWER_MAY_COME or call.later is not None or call.answered_as_earlier:
            self._in_doubt[call.wire_id] = call
            call.let_go()
            if len(self._in_doubt) > _MAX_IN_DOUBT:
                del self._in_doubt[next(iter(self._in_doubt))]
        else:
            self._in_doubt.pop(call.wire_id, None)


_read = JSONDecoder(parse_float=number_of).decode
_in_one_form = JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def arguments_digest(params: JSON, but: str | None = None) -> bytes:
    """128-bit BLAKE2b of tool and arguments, `but` for one of them, for finding repeats.

    What does not tell two calls apart: the order of keys, `1` or `1.0`, no arguments or empty ones.
    """
    arguments = params.get("arguments") or {}
    if but is not None and isinstance(arguments, dict):
        arguments = {name: value for name, value in arguments.items() if name != but}
    text = _in_one_form(_read(dumps([params.get("name"), arguments])))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_SIZE).digest()
