"""The one outcome of each request: who is told what, and what the ledger keeps of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from attrs import define, field

from .actions import NO_DELAY, CancelTimer, Delay, Forward, Reply, Report, Save, SetTimer
from .answers import in_doubt_answer, not_executed_answer
from .clock import Clock
from .doubt import CallInDoubt
from .forms import as_asked, why_unread
from .inputs import MessageSubmitted
from .latch import NOT_YET, Doubt
from .ledger import Call, Joined, Ledger, Own, Repeat, arguments_digest
from .meta import argument_of, to_wire
from .model import JSON, CallNamed, CallRepeated, CallSent, CallSettled, Outcome, Record, Told
from .modern import as_complete, with_argument
from .policy import GuardPolicy
from .report import CallSettled as CallSettledEvent
from .rounds import asks_for_input
from .session import Session
from .shared import Named, SharedLedger
from .state import SessionState, SessionStep
from .timer import Timer, TimerKind

if TYPE_CHECKING:
    from .actions import Action
    from .beside import Beside

OWN_SECONDS = 30.0
"""How long the guard waits for the answer to a request of its own."""
_TRIAL_SECONDS = 5.0
"""How long the guard waits for a session that is tried, while the host waits for the answer to its probe (SDK 2.3:
10 s)."""


@define(eq=False, repr=False)
class Outcomes(ABC):
    """Owns the ledger and the session."""

    policy: GuardPolicy
    session: Session
    ledger: Ledger
    out: list[Action]
    shared: SharedLedger
    clock: Clock
    machine: int
    """Names this connection among those under its key."""
    streams: Beside = field(init=False)
    _has_left: bool = field(default=False, init=False)
    """The host: what it has not read by now, nobody has been told."""
    joins: dict[str | int, Repeat] = field(factory=dict, init=False)
    """Requests of this host's that wait for the answer to another call, which they repeat."""
    _clocks: dict[str | int, int] = field(factory=dict, init=False)
    """Of what a host begins with, while the guard tries something first: its deadline, by its ID."""

    # Sending.

    def _post(self, call: Call, delay: Delay = NO_DELAY, with_row: tuple[Record, ...] = ()) -> None:
        """Write the row of this request, and what stands or falls with it; and order its first byte after that."""
        if not call.first_wire_id:
            self._set_deadline(call)
        self.ledger.admit(call)
        if call.has_row:
            row = self._row_of(call)
            # The row before the Post: no byte of a side-effecting request leaves before it is on disk (S12).
            name = self.shared.linked(call.call_key)
            link = () if name is None else (CallNamed(call.call_key, name),)
            self.out.append(Save((row, *link, *with_row), durable=call.may_have_side_effects))
            if call.sendings == 1 and call.joined:
                self.out.append(Save((CallRepeated(call.call_key),) * len(call.joined)))
            self._show(call)
        self._put(call, delay)

    def _row_of(self, call: Call) -> CallSent:
        self._take_digest(call)
        return CallSent(
            call.incarnation,
            call.wire_id,
            call.method,
            call.tool,
            call.call_key,
            call.digest,
            call.may_have_side_effects,
            call.named,
        )

    def _take_digest(self, call: Call) -> None:
        """Once: neither its arguments nor the policy change."""
        call.digest = call.digest or arguments_digest(call.params, self._key_argument(call))

    def _key_argument(self, call: Call) -> str | None:
        """Where our key goes in; not in the place of one of the host's, by which that knows the call."""
        name = self.policy.call_key_argument_of(call.tool) if call.method == "tools/call" else None
        own = argument_of(call.params, name) if name is not None else None
        return name if own is None or (isinstance(own, str) and not own.strip()) else None

    def _put(self, call: Call, delay: Delay = NO_DELAY) -> None:
        """Order the POST of a request whose row is written."""
        headers = call.sent.headers if call.sent is not None else {}
        argument = self._key_argument(call)
        if argument is not None and call.stateless:
            headers = with_argument(headers, call.listed, argument, call.call_key)
        message = to_wire(call.message, call, argument)
        self.streams.post_call(call, message, headers, delay)

    def _set_deadline(self, call: Call) -> None:
        """One for all that it waits for and for all its sendings."""
        call.first_wire_id = call.wire_id
        self.out.append(SetTimer(deadline_timer(call), self._seconds_for(call)))

    def _seconds_for(self, call: Call) -> float:
        if call.own is Own.TRIAL:
            return self._trial_seconds
        return self.policy.deadline_of(call.tool, call.method) if call.own in (None, Own.TASK) else OWN_SECONDS

    @property
    def _trial_seconds(self) -> float:
        return min(_TRIAL_SECONDS, self._half_of_opening)

    @property
    def _half_of_opening(self) -> float:
        """What the guard tries first takes no more of the time of what the host begins with."""
        return self.policy.deadline_of(None, "initialize") / 2

    def _hold_back(self, sent: MessageSubmitted) -> None:
        """The guard tries something before this goes out, or is answered; its deadline counts from now on."""
        self._let_go(sent)
        number = self._clocks[sent.message["id"]] = self.ledger.new_wire_id()
        self.out.append(SetTimer(_deadline(number), self.policy.deadline_of(None, sent.message["method"])))

    def _let_go(self, sent: MessageSubmitted) -> None:
        """It is held back no more, and has its answer."""
        number = self._clocks.pop(sent.message["id"], None)
        if number is not None:
            self.out.append(CancelTimer(_deadline(number)))

    def _show(self, call: Call) -> None:
        """From now on a repeat finds it."""
        if call.is_unsafe_call:
            self.shared.begin(call.digest, call)
        self._name(call)
        self.shared.goes_on(call, Named(call.call_key, call.digest, call))

    def _name(self, call: Call) -> None:
        for name in self.shared.names_of(call):
            self.shared.name(name, Named(call.call_key, call.digest, call, number=call.first_wire_id))

    # Settling.

    def not_executed(self, call: Call, by: str, reason: str, status: int | None = None) -> None:
        """The request did not run: seen by us (`wire`), or by the server's word (`server`)."""
        self._tell(call, not_executed_answer(call.host_id, call.method, call.tool, by, reason, status))
        self._settle(call, Outcome.NOT_EXECUTED, f"by {by}: {reason}")

    def _tell_in_doubt(self, call: Call, reason: str) -> None:
        """The request may have run, and nobody can say: the caller is told so."""
        self._tell(call, self._doubt_answer(call, self._doubt_of(call, reason)))
        self._settle(call, Outcome.IN_DOUBT, reason)

    def _doubt_of(self, call: Call, reason: str, key: str = "") -> CallInDoubt:
        """`key`: of the call that may have run, where that is not this one."""
        session = self.session.fingerprint
        return CallInDoubt(reason, call.method, call.tool, key or call.call_key, session, call.cancelled)

    def _doubt_answer(self, call: Call, doubt: CallInDoubt) -> JSON:
        # Never as a result to the hook: it would take that for what the server says to its question.
        as_result = self.policy.in_doubt_as == "result" and call.own is not Own.HOOK
        return in_doubt_answer(call, doubt, as_result=as_result)

    def _tell(self, call: Call, word: JSON, *, of: str | None = None) -> None:
        """Hand the guard's own word to whoever waits for this request: that it is in doubt, or did not run."""
        call.by_guard = True
        self._answer(call, word, of=of)

    def _answer(self, call: Call, answer: JSON, *, of: str | None = None) -> None:
        """Hand an answer to whoever waits for this request. `of`: the call key of the one it repeats."""
        if call.host_id is not None:
            told = {**as_asked(answer, call), "id": call.host_id}
            self._deliver(told, call if of is None else Repeat(call, of, call.by_guard))
        self._answer_others(call, answer, by_guard=call.by_guard, of=of)

    def _answer_others(self, call: Call, answer: JSON, *, by_guard: bool = False, of: str | None = None) -> None:
        """Hand an answer to those who wait for this request besides its own host."""
        answer = as_complete(answer) if call.stateless else answer
        if call.own is Own.HOOK and not call.is_known:
            self.out.append(Reply(call.ticket, answer))
        call.heard = call.heard or bool(call.joined)
        for other in call.joined:
            key = of or call.call_key
            told, in_its_place = self._for_other(call, answer, other, by_guard=by_guard, key=key)
            forward = Forward(other.machine, {**told, "id": other.host_id}, key, by_guard or in_its_place)
            if other.machine == self.machine:
                self.deliver_joined(forward.message, key, forward.by_guard)
            else:
                self.out.append(forward)
        call.joined.clear()

    def _for_other(
        self, call: Call, answer: JSON, other: Joined, *, by_guard: bool, key: str
    ) -> tuple[JSON, bool]:
        """An answer to this request as another host can read it, which may have asked for another form, or speak
        another generation; and whether that is the guard's word in its place. `key`: of the call that it is the
        answer to."""
        why = "" if by_guard else why_unread(answer, other)
        if why:
            told = self._doubt_of(call, why, key)
            # Whoever was asked for something may go on with the call: its answer is still to come.
            owed = None if asks_for_input(answer) else answer
            call.is_owed = owed is not None
            is_named, number = key in self.shared.names, call.wire_id
            now = self.clock.now
            self.shared.doubt(call.digest, Doubt(key, told, now, now, is_named, owed, number=number))
            answer = self._doubt_answer(call, told)
        return as_asked(answer, other), bool(why)

    def deliver_joined(self, answer: JSON, of: str, by_guard: bool) -> None:
        """The call that a request of this host's repeats has its answer; it may have been cancelled meanwhile."""
        joined = self.joins.pop(answer["id"], None)
        if joined is not None:
            joined.of, joined.by_guard = of, by_guard
            self._deliver(answer, joined)

    def _tell_joined(self, call: Call, outcome: Outcome, reason: str, answer: JSON | None) -> None:
        """Nobody has told them yet: it was cancelled or closed here, or there is no host that it answers."""
        if answer is not None:
            self._answer_others(call, answer)
            return
        if outcome is Outcome.CANCELLED and not call.cancelled:
            by, status = ("wire", None) if call.unrun is None else ("server", call.unrun[1])
            word = not_executed_answer(None, call.method, call.tool, by, reason, status)
        else:
            word = self._doubt_answer(call, self._doubt_of(call, reason))
        self._answer_others(call, word, by_guard=True)

    def _settle(self, call: Call, outcome: Outcome, reason: str, answer: JSON | None = None) -> None:
        """Give a request its outcome. `answer`: the server's own, or what the hook says it is."""
        is_heir = call.own is Own.HEIR and not call.is_known
        unheard = not call.in_flight or (is_heir and not call.joined and not call.heard)
        self.ledger.settle(call, outcome)
        if call.joined:
            self._tell_joined(call, outcome, reason, answer)
        self.out.append(CancelTimer(deadline_timer(call)))
        self._forget(call)
        if not call.has_row:
            return
        if not _is_no_news(call, outcome):
            self._record(call, outcome, reason, answer)
        opened = outcome is Outcome.COMPLETED and self.session.incarnation > call.incarnation
        # While another is in flight, or is to be, the session is what that makes of it.
        opens = call.method == "initialize" and not (call.overtaken or self.ledger.is_opening)
        if opens and self.session.state is SessionState.INITIALIZING:
            if not opened:
                self.session.move(SessionStep.INITIALIZE_FAILED)
                self._decide_all()
            self._release()
        self._keep_doubt(call, outcome, reason, answer, unheard=unheard)
        unsent = outcome is Outcome.CANCELLED and not call.cancelled
        if outcome is Outcome.NOT_EXECUTED or unsent:
            self._undo(call)

    def _undo(self, call: Call) -> None:
        """What this request has used up is as good as before, for nothing of it has run."""
        self.shared.give_back(call)
        if call.stood_for is not None:
            self.shared.name(call.call_key, call.stood_for)
        if call.continues is not None:
            self.shared.open_round(call.continues)

    def _keep_doubt(
        self, call: Call, outcome: Outcome, reason: str, answer: JSON | None, *, unheard: bool = False
    ) -> None:
        """What repeats of this call, and those who know it by its name, get from now on.

        `unheard`: whoever called has been told something else, or nothing.
        """
        if _is_no_news(call, outcome):
            return
        if call.is_unsafe_call:
            owed = 0 if outcome is Outcome.INPUT_REQUIRED else int(unheard) + self._left_by(call)
            self._latch(call, outcome, reason, answer if owed else None, owed)
        told = self._doubt_of(call, reason) if _stays_in_doubt(call, outcome) else None
        known = Named(call.call_key, call.digest, None, answer, told, call.first_wire_id)
        self.shared.goes_on(call, known)
        self.shared.settled(call, known)

    def _record(self, call: Call, outcome: Outcome, reason: str, answer: JSON | None = None) -> None:
        kept = {k: v for k, v in answer.items() if k != "id"} if answer and call.keeps_answer else None
        lost = outcome is Outcome.IN_DOUBT and call.keeps_answer
        # Whoever waits for it is told; but that counts once the host has taken it.
        is_heir = call.own is Own.HEIR and not call.is_known
        call.untold = is_heir or (call.own is None and (kept is not None or lost))
        told = Told.NOBODY if call.untold else Told.CALLER
        row = CallSettled(*call.row, outcome, reason, kept, told, call.slot)
        self.out.append(Save((row,)))
        self._report_settled(call, outcome, reason, answer)

    def _report_settled(self, call: Call, outcome: Outcome, reason: str, answer: JSON | None = None) -> None:
        told = answer if outcome is Outcome.RECOVERED else None
        self.out.append(
            Report(CallSettledEvent(call.wire_id, call.method, call.tool, call.call_key, outcome, reason, told))
        )

    def _left_by(self, call: Call) -> int:
        """Repeats of this call that were joined to it, and may be repeated themselves since they were given up."""
        return sum(self.clock.now - at < self.policy.repeat_window for at in call.left)

    def _latch(self, call: Call, outcome: Outcome, reason: str, unheard: JSON | None, owed: int) -> None:
        """From now on a repeat of this call is refused; or so many get the answer that they have not heard."""
        self.shared.end(call.digest, call)
        if unheard is not None or _stays_in_doubt(call, outcome):
            told = self._doubt_of(call, reason)
            from_round = None if call.continues is None else call.continues.key
            now, number = self.clock.now, call.wire_id
            # Whoever called an heir is dead: nobody knows of this until somebody asks.
            is_heir = call.own is Own.HEIR and not call.is_known
            told_at = NOT_YET if is_heir or self._has_left else now
            doubt = Doubt(call.call_key, told, now, told_at, call.named, unheard, from_round, max(1, owed), number)
            self.shared.doubt(call.digest, doubt)

    @abstractmethod
    def _forget(self, call: Call) -> None:
        """It has its outcome: whoever keeps something for it may let go."""
        ...

    @abstractmethod
    def _decide_all(self) -> None:
        """The requests that lost their stream or their session may have their fate."""
        ...

    @abstractmethod
    def submit(self, sent: MessageSubmitted) -> None:
        """The host wrote a message."""
        ...

    @abstractmethod
    def _release(self) -> None:
        """The requests that wait for the session may go on, to whatever awaits them now."""
        ...

    def _deliver(self, message: JSON, answered: Call | Repeat | None = None) -> None:
        if answered is not None and answered.by_guard:
            answered.is_telling = True
            self.shared.telling(key_of(answered), self.clock.now)
        self.streams.deliver(None, message, answered)


def key_of(answered: Call | Repeat) -> str:
    """The call key of what the host of this request is told about."""
    return answered.of if isinstance(answered, Repeat) else answered.call_key


def _stays_in_doubt(call: Call, outcome: Outcome) -> bool:
    """Whether it may have run. A call that was cancelled before it was sent has not."""
    return outcome is Outcome.IN_DOUBT or (outcome is Outcome.CANCELLED and call.cancelled)


def _is_no_news(call: Call, outcome: Outcome) -> bool:
    """Its caller has its task: that no more is to be had of it here puts nothing in doubt."""
    return call.is_known and call.own is Own.HEIR and outcome is Outcome.IN_DOUBT


def deadline_timer(call: Call) -> Timer:
    """One for all sendings of a request."""
    return _deadline(call.first_wire_id)


def _deadline(first_wire_id: int) -> Timer:
    return Timer(TimerKind.DEADLINE, first_wire_id)
