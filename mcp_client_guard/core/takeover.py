"""Going on where a process that died has left off: session, streams and calls (DESIGN §7)."""

from __future__ import annotations

from attrs import define, evolve, field

from .actions import Delay, SetTimer
from .answers import not_executed_answer
from .asked import Asked
from .classify import LOCKED, METHOD_NOT_FOUND, code_of, is_worth_repeating
from .heir_tasks import HeirTasks
from .heritage import PROCESS_DIED, Heir, Heritage, OldSession
from .inputs import MessageSubmitted
from .ledger import Call, Own, Refusal, wait_of
from .messages import result_of
from .meta import without_meta
from .model import JSON, Outcome
from .outcomes import deadline_timer
from .restoring import tools_of
from .state import SessionState, SessionStep
from .stream import STANDALONE, STANDALONE_NAME
from .unsent import NEVER_SENT

_MOST_PROOFS = 4
_PROOF_SECONDS = 30.0
"""How long the session of an earlier process is asked about, while the host's `initialize` waits for that."""
_LAST_PROOF_SECONDS = 0.5
"""For one that begins when those of all are nearly over."""


@define(eq=False, repr=False)
class TakeOver(HeirTasks):
    """Offers the old session to the server, and accounts for every call of the dead process."""

    heritage: Heritage | None
    is_initialized: bool = field(default=False, init=False)
    """The process that opened the present session has told the server that it is initialized."""
    asked: Asked = field(factory=Asked, init=False)
    _offer: MessageSubmitted | None = field(default=None, init=False)
    """The host's `initialize`, while the old session is on trial."""
    _offered: Heritage | None = field(default=None, init=False)
    _offered_at: float = field(default=0.0, init=False)
    _proofs: int = field(default=0, init=False)
    """How often the server was asked about it."""
    _heirs: list[Call] = field(factory=list, init=False)

    @property
    def heirs_open(self) -> int:
        """Calls of the dead process that have no outcome yet."""
        return len(self._open_heirs())

    @property
    def heirs_awaited(self) -> int:
        """Those of them that somebody is to be told of: a task that its caller has is the caller's own affair."""
        return sum(not heir.is_known for heir in self._open_heirs())

    def _open_heirs(self) -> list[Heir | Call]:
        unread = () if self.heritage is None else self.heritage.heirs
        return [*unread, *(call for call in self._heirs if call.in_flight)]

    def _offer_session(self, sent: MessageSubmitted) -> bool:
        """Whether the host's `initialize` waits for what the server says to the old session."""
        self.is_initialized = False
        params = without_meta(sent.message.get("params"))
        older, same = self._offer, params == without_meta(self.session.initialize_params)
        if older is not None:
            if older.message["id"] != sent.message["id"]:
                why = "the host opened another session"
                self._deliver(not_executed_answer(older.message["id"], "initialize", None, "wire", why))
                self._let_go(older)
            self._offer = sent
            self._hold_back(sent)
            if same:
                return True
            self._abandon_offer("the host's initialize has other parameters")
        heritage, self.heritage = self.heritage, None
        if heritage is None:
            return False
        self.session.incarnation = heritage.incarnation
        self._inherit(heritage)
        old = heritage.session
        if old is None:
            self._settle_heirs(PROCESS_DIED)
            return False
        opened = (old.session_id, old.initialize_params, old.initialize_result)
        self.session.adopt(heritage.incarnation, *opened, heritage.earlier)
        self.session.move(SessionStep.OFFERED)
        if self.is_legacy:
            self._abandon("another generation was chosen")
            return False
        if params != without_meta(old.initialize_params):
            self._abandon("the host's initialize has other parameters")
            return False
        self._offer, self._offered = sent, heritage
        self._hold_back(sent)
        self._offered_at, self._proofs = self.clock.now, 0
        self._prove()
        return True

    @property
    def _proof_seconds(self) -> float:
        """For all of them together."""
        return min(_PROOF_SECONDS, self._half_of_opening)

    def _seconds_for(self, call: Call) -> float:
        if call.own is not Own.PROOF:
            return super()._seconds_for(call)
        return max(self._proof_seconds - (self.clock.now - self._offered_at), _LAST_PROOF_SECONDS)

    def _prove(self, met: str = "", retry_after: float = 0.0) -> None:
        delay = Delay(self._proofs, None, min(retry_after, self._proof_seconds))
        self._proofs += 1
        self._send_own(Own.PROOF, "ping", {}, delay=delay).met = met

    def _not_proven(self, call: Call, reason: str, refusal: Refusal | None) -> None:
        """The server has said neither that the old session lives nor that it is gone."""
        later = refusal is None or is_worth_repeating(refusal.status)
        may_ask = self._proofs < _MOST_PROOFS and self.clock.now - self._offered_at < self._proof_seconds
        if refusal is not None and refusal.status in LOCKED:
            self._put_off(reason, refusal.status)
        elif later and may_ask and not call.unsendable:
            self._prove(reason, wait_of(refusal))
        elif call.unsendable or reason.endswith(NEVER_SENT):
            self._put_off(reason, None)  # nor could another session be opened
        else:
            self._not_adopted(reason)

    def _put_off(self, reason: str, status: int | None) -> None:
        """Whoever may not or cannot ask cannot know: the session stays on record, for an `initialize` that can."""
        sent, heritage, self._offer, self._offered = self._offer, self._offered, None, None
        assert sent is not None
        assert heritage is not None
        self.heritage = evolve(heritage, heirs=())  # they are known by now
        self.session.forget()
        self.session.move(SessionStep.ABANDONED)
        self._let_go(sent)
        by = "wire" if status is None else "server"
        self._deliver(not_executed_answer(sent.message["id"], "initialize", None, by, reason, status))
        self._refuse_waiting(f"the session of an earlier process could not be proven ({reason})")

    def _account_for_heirs(self, reason: str) -> None:
        """The host opens no session that the calls of the dead process could be recovered under."""
        heritage, self.heritage = self.heritage, None
        if heritage is None:
            return
        self.session.incarnation = heritage.incarnation
        self._inherit(heritage)
        for call in [heir for heir in self._heirs if heir.in_flight]:
            call.stateless = True
            task = self._tasks.get(call.wire_id)
            if task is not None and task.is_extension:
                self.ask_task(call.wire_id)  # at once: what the host has just sent may wait for that very answer
                continue
            self._over.add(call.wire_id)
            self.in_doubt(call, f"{PROCESS_DIED}, and {reason}")

    def _inherit(self, heritage: Heritage) -> None:
        for heir in heritage.heirs:
            call = Call(
                wire_id=heir.wire_id,
                host_id=None,
                method=heir.method,
                tool=heir.tool,
                params={},
                call_key=heir.call_key,
                may_have_side_effects=heir.may_have_side_effects,
                incarnation=heir.incarnation,
                own=Own.HOOK if heir.is_hook_s else Own.HEIR,
                named=heir.named,
                slot=None if heir.slot == heritage.slot else heir.slot,
                is_known=heir.is_known,
                digest=heir.digest,
                repeats=heir.repeats,
            )
            self.ledger.admit(call)
            call.troubled = True
            self._heirs.append(call)
            self.out.append(SetTimer(deadline_timer(call), self.policy.deadline_of(call.tool)))
            if heir.task is not None:
                self._tasks[call.wire_id] = heir.task
            if heir.is_known:
                continue
            if call.is_unsafe_call:
                # From now on a repeat is joined to it, not refused.
                self.shared.resolved(call.digest, call.call_key, call.wire_id)
                self.shared.begin(call.digest, call)
            self._name(call)

    def _adopt(self, sent: MessageSubmitted, old: OldSession) -> None:
        """The server has answered under the old session."""
        self._offer = self._offered = None
        self._let_go(sent)
        self.session.move(SessionStep.ADOPTED)
        self.is_initialized = old.was_used
        self.asked.restore(old.answers)
        self._report_connected()
        self._deliver({"jsonrpc": "2.0", "id": sent.message["id"], "result": old.initialize_result})
        if STANDALONE_NAME in old.cursors and self.opens_standalone:
            passed = old.passed.get(STANDALONE_NAME, 0)
            self.streams.inherit(STANDALONE, None, old.cursors[STANDALONE_NAME], passed)
        for call in self._waiting_heirs():
            rows = old.cursors.get(str(call.wire_id), ())
            if rows and call.incarnation == self.session.incarnation:
                self.streams.inherit(call.wire_id, call, rows, old.passed.get(str(call.wire_id), 0))
            else:
                self.in_doubt(call, f"{PROCESS_DIED}, and its stream cannot be resumed")
        self._go_on()

    def _abandon(self, reason: str) -> None:
        """The old session is not used."""
        self._end_session(reason)
        self.session.forget()
        self.session.move(SessionStep.ABANDONED)
        self._settle_heirs(f"{PROCESS_DIED}, and its session is gone ({reason})")

    def _settle_heirs(self, reason: str) -> None:
        for call in self._waiting_heirs():
            self.in_doubt(call, reason)

    def _waiting_heirs(self) -> list[Call]:
        """Those without an outcome that no task will give one."""
        return [call for call in self._heirs if call.in_flight and not self.is_task(call)]

    def _not_adopted(self, reason: str) -> None:
        self.submit(self._abandon_offer(reason))

    def _abandon_offer(self, reason: str) -> MessageSubmitted:
        """The old session is not used. Returns the host's `initialize`, which is to open another."""
        sent, self._offer, self._offered = self._offer, None, None
        assert sent is not None
        self._abandon(reason)
        return sent

    def lose_session(self, reason: str, *, by_word: bool = False) -> None:
        if self.session.state is SessionState.PROVING:
            self._not_adopted(reason)
        else:
            super().lose_session(reason, by_word=by_word)

    def leave_heir(self, call: Call) -> None:
        """The host has left: the row stays open, for the next process to go on with; nobody waits for it here."""
        reason = f"{PROCESS_DIED}, and the connection that looked for its answer was closed"
        self._answer_others(call, self._doubt_answer(call, self._doubt_of(call, reason)), by_guard=True)
        self._keep_doubt(call, Outcome.IN_DOUBT, reason, None)

    # Requests of our own.

    def _answered_otherwise(self, call: Call, message: JSON) -> None:
        sent, offered = self._offer, self._offered
        if call.own is Own.TASK:
            self._task_answered(call, message)
        elif call.own is Own.HOOK:
            result = result_of(message)
            if call.method == "tools/list" and result is not None:
                self.present_tools.update(tools_of(result))
            self._answer_others(call, message)
        elif sent is None or offered is None or offered.session is None:
            return  # it was given up before the server answered
        elif code_of(message) not in (None, METHOD_NOT_FOUND):
            self._not_adopted("a ping under it was refused")
        else:
            self._adopt(sent, offered.session)

    def _failed_otherwise(self, call: Call, reason: str, refusal: Refusal | None) -> None:
        if call.own is Own.HOOK:
            self._answer_others(call, self._doubt_answer(call, self._doubt_of(call, reason)))
        elif call.own is Own.TASK:
            self._task_failed(call, reason, refusal)
        elif call.own is Own.PROOF and self._offer is not None:
            self._not_proven(call, reason, refusal)
