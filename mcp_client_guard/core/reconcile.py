"""Calls that lost their stream or their session: sent again, asked about, or told as in doubt (DESIGN §5)."""

from __future__ import annotations

from abc import abstractmethod

from attrs import define, evolve, field

from .actions import NO_DELAY, Ask, CancelTimer, SetTimer, StopAsking
from .answers import failed_answer, http_answer, session_lost_answer
from .classify import Ran, once_taken
from .consent import consent_to
from .forms import why_unread
from .inputs import Reconciled
from .ledger import Call, Own, Refusal
from .messages import messages_of, says_the_same
from .model import JSON, CallSettled, Outcome
from .output_schema import misfits
from .repeats import Repeats
from .state import SessionState
from .stranded import MOST_REPEATS, Stranded
from .timer import Timer, TimerKind
from .unsent import NEVER_SENT, not_sent
from .verdicts import Fail, Resend, Resolve

_MOST_REFUSALS = 2
_LOST_BEFORE = "; an earlier sending of it was lost"


@define(eq=False, repr=False)
class Reconciling(Repeats):
    """Gives each stranded call its outcome, once there is a session to do it under."""

    has_hook: bool
    """The user has a `reconcile` hook."""
    tools: dict[str, JSON] = field(factory=dict, init=False)
    """As the host was last told of them."""
    present_tools: dict[str, JSON] = field(factory=dict, init=False)
    """As the server has last told of them, host or guard, in this session."""
    _stranded: dict[int, Stranded] = field(factory=dict, init=False)

    @abstractmethod
    def _reinitialize(self) -> None:
        """Open a session in place of the lost one, if none is being opened."""
        ...

    @abstractmethod
    def _own_failed(self, call: Call, reason: str, refusal: Refusal | None = None) -> None:
        """A request of the guard's own will get no answer."""
        ...

    def lost(self, call: Call, reason: str) -> None:
        """The request was sent, and its connection, its stream or its session is lost before its answer."""
        self.in_doubt(call, reason, lost_soon=not call.has_had_time(self.clock.now))

    def in_doubt(
        self,
        call: Call,
        reason: str,
        *,
        again: bool = True,
        refusal: Refusal | None = None,
        lost_soon: bool = False,
    ) -> None:
        """The request may have run, and its stream is over. Not `again`: another sending would fare no better."""
        if not call.in_flight:
            return
        if not call.is_of_a_host:
            self._own_failed(call, reason)
        elif not again:
            self._tell_in_doubt(call, reason)
        else:
            self._strand(Stranded(call, reason, Ran.MAYBE, refusal, lost_soon=lost_soon))

    def _strand(self, stranded: Stranded) -> None:
        call = stranded.call
        call.troubled = True
        if stranded.ran is Ran.NO and stranded.refusal is not None:
            call.unrun, call.met = (stranded.reason, stranded.refusal.status), ""
        if stranded.ran is not Ran.NO and not self._may_become_known(stranded):
            self._tell_in_doubt(call, stranded.reason)
            return
        self._stranded[call.first_wire_id] = stranded
        self._decide_soon(stranded)

    def _decide_soon(self, stranded: Stranded) -> None:
        """Now, or when there is a session for it."""
        if self._is_ready_for(stranded.call):
            self._decide(stranded)
        elif self.session.state is SessionState.LOST:
            self._reinitialize()

    def unsent(self, call: Call, reason: str) -> None:
        """Nothing of this request has left, and its stream is over."""
        if call.is_internal:
            self._own_failed(call, reason)
        else:
            self._strand(Stranded(call, reason, Ran.NO, by="wire"))

    def not_executed(self, call: Call, by: str, reason: str, status: int | None = None) -> None:
        if call.repeats:
            # Only its last sending did not run.
            self._tell_in_doubt(call, f"{reason}{_LOST_BEFORE}")
        elif call.is_internal:
            self._own_failed(call, f"{reason}{NEVER_SENT}" if by == "wire" else reason)
        else:
            if by == "wire":
                by, reason, status = not_sent(call, reason)
            super().not_executed(call, by, reason, status)

    def doubt_failure(self, call: Call, failure: str, said: JSON | None = None) -> bool:
        """A failure of the newest sending is no answer where an earlier one may do what this has not. Returns
        whether so the call is told in doubt."""
        ran_before = self.may_have_run_before(call)
        if ran_before:
            call.said = said
            self._tell_in_doubt(call, f"it was answered with {failure}{_LOST_BEFORE}")
        return ran_before

    def may_have_run_before(self, call: Call) -> bool:
        """Whether an earlier sending may have had an effect."""
        return call.repeats > 0 and call.may_have_side_effects

    def is_stranded(self, call: Call) -> bool:
        """Whether its outcome is asked for elsewhere, whatever comes of its stream."""
        return call.first_wire_id in self._stranded

    def is_judged(self, call: Call) -> bool:
        """Whether it is decided elsewhere what was said to it, by a ping or by the hook."""
        return call.suspected or self.is_stranded(call)

    def _may_become_known(self, stranded: Stranded) -> bool:
        """Whether anything but an honest doubt can come of a call that may have run.

        Whether its tool has changed is seen once there is a session again.
        """
        return self._asks_about(stranded.call) or self._consents_to(stranded, False)

    def _asks_about(self, call: Call) -> bool:
        is_hook_s = call.own is Own.HOOK
        return self.has_hook and call.method == "tools/call" and not (call.is_known or is_hook_s)

    def _consents_to(self, stranded: Stranded, tool_changed: bool) -> bool:
        call = stranded.call
        if call.own in (Own.HEIR, Own.HOOK) or not stranded.may_try_again(self.policy.max_attempts):
            return False
        hints = hints_of(call.listed)
        return consent_to(self.policy, call.method, call.tool, hints, tool_changed=tool_changed)

    @property
    def changed_tools(self) -> list[str]:
        """Those that are not, or may not be, what the host takes them for."""
        return sorted(n for n, tool in self.tools.items() if not says_the_same(self.present_tools.get(n), tool))

    def _has_changed(self, call: Call) -> bool:
        """Whether its tool takes other arguments than when the host wrote this call, or may."""
        present = self.present_tools.get(call.tool or "")
        return call.listed is not None and not says_the_same(_schema_of(present), _schema_of(call.listed))

    def _may_be_listed_yet(self, call: Call) -> bool:
        """Whether nobody knows yet what its tool is in this session, and the list that would say so is late."""
        is_unknown = call.listed is not None and call.tool not in self.present_tools
        return is_unknown and any(
            (one.own, one.method, one.incarnation) == (Own.RESTORE, "tools/list", self.session.incarnation)
            for one in self.ledger.in_flight()
        )

    def _tool_of(self, call: Call) -> JSON | None:
        """Its tool, as last heard of."""
        return self.present_tools.get(call.tool or "") or call.listed

    def _may_have_side_effects(self, method: str, tool: str | None) -> bool:
        """A tool that the host knows is believed harmless if that is still what the server says of it."""
        known = (self.tools.get(tool or ""), self.present_tools.get(tool or ""))
        return any(self.policy.may_have_side_effects(method, hints_of(said)) for said in known)

    def _is_ready_for(self, call: Call) -> bool:
        state = self.session.state
        if state is SessionState.LIVE or call.stateless or call.method == "initialize":
            return True
        # A host that skips the handshake, or half of it, is served all the same.
        opening = state is SessionState.INITIALIZING and self.ledger.is_opening
        return call.own is None and state in (SessionState.NEW, SessionState.INITIALIZING) and not opening

    def _decide_all(self) -> None:
        """There is a session again."""
        for stranded in list(self._stranded.values()):
            if not stranded.is_asked and self._is_ready_for(stranded.call):
                self._decide(stranded)

    def _decide(self, stranded: Stranded) -> None:
        call = stranded.call
        if stranded.ran is Ran.NO:
            self._send_or_refuse(stranded)
        elif stranded.may_repeat:
            self._send_again(stranded, Outcome.RESENT, f"{stranded.reason}; the reconcile hook says so")
        elif self._asks_about(call) and not stranded.was_asked:
            stranded.is_asked = stranded.was_asked = True
            arguments = call.params.get("arguments") if call.own is None else None
            doubt, lists = self._doubt_of(call, stranded.reason), self._tool_of(call) is None
            self.out.append(Ask(call.first_wire_id, doubt, arguments, lists))
            self.out.append(SetTimer(_asking(call), self.policy.reconcile_timeout))
        else:
            self._by_policy(stranded)

    def _send_or_refuse(self, stranded: Stranded) -> None:
        """It did not run: it is sent again by itself, but not for ever, nor to a tool that has changed."""
        call = stranded.call
        unsent = stranded.by == "wire" and call.sendings > self.policy.max_attempts
        if stranded.is_busy and not self._may_send_to_busy(call):
            self._refuse(stranded, stranded.reason)
        elif self._may_be_listed_yet(call):
            return  # it stays stranded until then, within its deadline
        elif self._has_changed(call):
            self._refuse(stranded, "the schema of the tool changed, or may have, since it was called")
        elif unsent or (call.refusals >= _MOST_REFUSALS and not stranded.is_busy):
            self._refuse(stranded, stranded.reason)
        else:
            self._send_again(stranded, Outcome.NOT_EXECUTED, f"by {stranded.by}: {stranded.reason}")

    def _refuse(self, stranded: Stranded, reason: str) -> None:
        status = stranded.refusal.status if stranded.refusal else None
        self.not_executed(stranded.call, stranded.by, reason, status)

    def _by_policy(self, stranded: Stranded) -> None:
        call = stranded.call
        if self._consents_to(stranded, self._has_changed(call)):
            stranded.wait()
            self._send_again(stranded, Outcome.RESENT, stranded.reason)
        else:
            self._tell_in_doubt(call, stranded.reason)

    def _send_again(self, stranded: Stranded, outcome: Outcome, reason: str) -> None:
        """Another sending of the same request: a row and a wire ID of its own, the same call key and deadline."""
        old = stranded.call
        new = evolve(
            old,
            wire_id=self.ledger.new_wire_id(),
            incarnation=self.session.incarnation,
            sendings=old.sendings + 1,
            refusal=stranded.refusal,
            drawn=None,
            begun_at=None,
            joined=list(old.joined),
            troubled=stranded.delay is not NO_DELAY,
            suspected=False,
            was_taken=False,
            cancelled=False,
            previous=(old.incarnation, old.wire_id),
        )
        if outcome is Outcome.RESENT:
            new.repeats += 1
            new.may_run = (old.incarnation, old.wire_id)
            if not stranded.is_brief:
                new.lasting += 1
        elif stranded.by == "server" and not stranded.is_busy:
            new.refusals += 1
        old.later = new
        self._stranded.pop(old.first_wire_id, None)
        old.joined.clear()
        self.ledger.settle(old, outcome)
        self.shared.end(old.digest, old)
        reason = f"{reason}; sent again as {new.wire_id}"
        # Both rows or neither: what was not sent again is still in doubt.
        self._post(new, stranded.delay, (CallSettled(old.incarnation, old.wire_id, outcome, reason),))
        self._report_settled(old, outcome, reason)

    def reconciled(self, told: Reconciled) -> None:
        """The hook has answered."""
        stranded = self._stranded.get(told.question)
        if stranded is None or not stranded.is_asked:
            return
        call, verdict = stranded.call, told.verdict
        self.out.append(CancelTimer(_asking(call)))
        if told.failed is not None:
            self._tell_in_doubt(call, f"{stranded.reason}; the reconcile hook failed ({told.failed})")
        elif isinstance(verdict, Resolve):
            self._resolve(stranded, verdict.as_json())
        elif isinstance(verdict, Fail):
            # In quotes, for no reason may end in words of the user's; kept, for every repeat is told them, too.
            reason = f"{stranded.reason}; the reconcile hook says {verdict.message!r}"
            doubt, as_result = self._doubt_of(call, reason), self.policy.in_doubt_as == "result"
            self._tell(call, failed_answer(call, doubt, verdict.message, as_result=as_result))
            self._settle(call, Outcome.IN_DOUBT, reason)
        elif isinstance(verdict, Resend) and call.own is Own.HEIR:
            self._tell_in_doubt(call, f"{stranded.reason}; its arguments are not known any more")
        elif isinstance(verdict, Resend) and call.repeats >= MOST_REPEATS:
            self._tell_in_doubt(call, f"{stranded.reason}; it has been sent as often as it may be")
        else:
            stranded.is_asked, stranded.may_repeat = False, isinstance(verdict, Resend)
            self._decide_soon(stranded)

    def _resolve(self, stranded: Stranded, result: JSON | None) -> None:
        call = stranded.call
        if result is None:
            self._tell_in_doubt(call, f"{stranded.reason}; the reconcile hook gave a result that is no object")
            return
        if misfits(result, self._tool_of(call)):
            why = "the reconcile hook's result does not fit the tool's output schema"
            self._tell_in_doubt(call, f"{stranded.reason}; {why}")
            return
        answer: JSON = {"jsonrpc": "2.0", "id": call.host_id, "result": result}
        reason = f"{stranded.reason}; the reconcile hook knew the result"
        if why := why_unread(answer, call):
            self._answer_others(call, answer)
            self._tell_in_doubt(call, f"{reason}: {why}")  # to which the answer comes late
        else:
            self._answer(call, answer)
        self._settle(call, Outcome.RECOVERED, reason, answer)

    def asked_too_long(self, question: int) -> None:
        """The hook had its time."""
        stranded = self._stranded.get(question)
        if stranded is not None and stranded.is_asked:
            self.out.append(StopAsking(question))
            self._tell_in_doubt(stranded.call, f"{stranded.reason}; the reconcile hook did not answer in time")

    def _give_up_stranded(self, why: str) -> None:
        """There will be no session soon: each is told what is known of it."""
        for stranded in list(self._stranded.values()):
            call = stranded.call
            if stranded.is_asked:
                continue
            if stranded.ran is Ran.NO and not call.repeats:
                met = why if stranded.by == "server" else f"{stranded.reason}; {why}"
                by, reason, status = not_sent(call, met)
                self._tell(call, session_lost_answer(call.host_id, call.method, call.tool, reason, status))
                self._settle(call, Outcome.NOT_EXECUTED, f"by {by}: {reason}")
            else:
                self._tell_in_doubt(call, f"{stranded.reason}; {why}")

    def _forget(self, call: Call) -> None:
        stranded = self._stranded.pop(call.first_wire_id, None)
        if stranded is not None and stranded.is_asked:
            self.out.append(CancelTimer(_asking(call)))
            self.out.append(StopAsking(call.first_wire_id))

    # What a refusal means when the session has nothing to do with it.

    def _settle_refused(self, call: Call, ran: Ran, refusal: Refusal, *, may_wait: bool = True) -> None:
        status = refusal.status
        ran = self._as_taken(call, ran, refusal)
        busy = Stranded(call, f"HTTP {status}", Ran.NO, refusal)
        if ran is Ran.NO and busy.is_busy and may_wait and self._may_wait(busy):
            busy.wait()
            self._strand(busy)
        elif ran is Ran.NO:
            self.not_executed(call, "server", refusal.words, status)
        elif ran is Ran.MAYBE:
            call.said = next(iter(messages_of(refusal.body)), call.said)
            # Not again where there must be an outcome now: it would go out behind a deadline, or a cancel.
            self.in_doubt(call, f"it was answered with {refusal.words}", again=may_wait, refusal=refusal)
        elif not self.doubt_failure(call, f"HTTP {status}"):
            answer = http_answer(call, status, refusal.body, refusal.path)
            self._answer(call, answer)
            if ran is Ran.REFUSED:
                self._settle(call, Outcome.NOT_EXECUTED, f"by server: HTTP {status}")
            else:
                self._settle(call, Outcome.COMPLETED, f"answered with HTTP {status}", answer)

    def _as_taken(self, call: Call, ran: Ran, refusal: Refusal) -> Ran:
        if not call.was_taken:
            return ran
        return once_taken(ran, refusal.status, unsafe=call.is_unsafe_call and not refusal.names(call))

    def _may_wait(self, busy: Stranded) -> bool:
        """A busy server: safe calls wait and are sent again; others only where its word is trusted."""
        return self._may_send_to_busy(busy.call) and busy.may_try_later(self.policy.max_attempts)

    def _may_send_to_busy(self, call: Call) -> bool:
        return self.policy.trust_status or not call.may_have_side_effects


def hints_of(tool: JSON | None) -> JSON:
    """What a tool says of itself."""
    hints = tool.get("annotations") if tool is not None else None
    return hints if isinstance(hints, dict) else {}


def _schema_of(tool: JSON | None) -> JSON | None:
    """What a call of it relies on: not its words for people."""
    return tool and {name: tool.get(name) for name in ("inputSchema", "annotations")}


def _asking(call: Call) -> Timer:
    return Timer(TimerKind.ASK, call.first_wire_id)
