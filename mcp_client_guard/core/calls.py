"""What the host sends: requests, notifications, and its answers to the server."""

from __future__ import annotations

from attrs import define, evolve

from .actions import CancelTimer, Report, Save
from .answers import session_lost_answer
from .inputs import Forwarded, MessageSubmitted
from .ledger import Call, Own, Repeat
from .messages import params_of, tool_named
from .meta import CALL_KEY, host_token_of, meta_of
from .model import HAS_ANSWER, JSON, AnswerDrained, Outcome
from .outcomes import deadline_timer
from .policy import OPENING_METHODS
from .queueing import Queueing
from .report import NotificationLost
from .rounds import Round, continuing_key
from .state import SessionState, SessionStep
from .tasks import ends_task
from .unsent import NEVER_SENT, given_up

_UNCONFIRMED = frozenset({SessionState.INITIALIZING, SessionState.CONFIRMING, SessionState.LIVE})
"""In which requests wait for the server to have taken the host's `initialized`. In others they wait already: the
guard sends its own in a session that it opens, and one of an earlier process is to be proven first."""


@define(eq=False, repr=False)
class Calls(Queueing):
    """What passes between the host and its requests."""

    # From the host.

    def submit(self, sent: MessageSubmitted) -> None:
        message = sent.message
        if "method" not in message:
            self._answer_server(sent)
        elif "id" in message:
            self._request(sent)
        else:
            self._notification(sent)

    def _request(self, sent: MessageSubmitted) -> None:
        method = sent.message["method"]
        # After a method that opens, the host may still want a session.
        if method not in OPENING_METHODS and self.session.is_stateless(sent.headers):
            self._newest_stateless = sent
            self._account_for_heirs("the host opened no session")
        if method == "server/discover":
            self._probe(sent)
        elif method == "initialize":
            self._overtake(sent)
            if not self._offer_session(sent):
                self.stop_opening()
                if not self._give_trial(sent):
                    self.session.move(SessionStep.INITIALIZE_SENT)
                    self._post(self._call_from(sent))
        else:
            self._pass_on(sent)

    def _overtake(self, sent: MessageSubmitted) -> None:
        """The newest `initialize` is the one that the host waits for: an earlier one opens no session, and is not
        sent again."""
        why = "the host opened another session"
        for call in self.ledger.in_flight():
            if call.method != "initialize" or call.own is not None:
                continue
            call.overtaken = True
            if call.host_id == sent.message["id"]:
                call.host_id = None  # under that ID the host waits for the newer one
            self._conclude(call)
            if not call.in_flight:
                continue
            if self._withdraw(call):
                self._tell_in_doubt(call, why)
            else:
                self.not_executed(call, "wire", why)

    def _pass_on(self, sent: MessageSubmitted) -> None:
        self._send(self._call_from(sent))

    def _send(self, call: Call) -> None:
        """Now, or when there is a session and a connection; but what it repeats may have its answer sooner."""
        if self._join_or_answer(call):
            self._stop_clock(call)
        elif not self._awaits_session(call):
            self._go_out(call)
        elif self.session.state is SessionState.LOST and not self._may_open():
            self._turn_away(call, session_lost_answer(call.host_id, call.method, call.tool, self.why_lost))
        else:
            self._wait(call)
            self._reinitialize()

    def _go_out(self, call: Call) -> None:
        """It is no repeat, and there is whatever session it needs."""
        self._post(call)

    def _call_from(self, sent: MessageSubmitted, known: Round | None = None) -> Call:
        """`known`: the call that it goes on with, where that was found before it had to wait."""
        message = sent.message
        method: str = message["method"]
        params = params_of(message)
        tool = tool_named(method, params)
        named = meta_of(params, CALL_KEY) if method == "tools/call" else None
        stateless = method != "initialize" and self.session.is_stateless(sent.headers)
        if stateless:
            self._newest_stateless = sent
        key, is_named = named or sent.call_key, named is not None or sent.named
        goes_on = continuing_key(method, params) if stateless else None
        continues = known or self.shared.take_round(goes_on, key if is_named else None)
        if continues is not None and not is_named:
            key, is_named = continues.call_key, continues.named
        return Call(
            wire_id=self.ledger.new_wire_id(),
            host_id=message["id"],
            method=method,
            tool=tool,
            params=params,
            call_key=key,
            may_have_side_effects=self._may_have_side_effects(method, tool),
            incarnation=self.session.incarnation,
            first_wire_id=self._clocks.pop(message["id"], 0),
            stateless=stateless,
            host_token=host_token_of(message),
            sent=sent,
            listed=self.tools.get(tool or ""),
            named=is_named,
            continues=continues,
        )

    def _notification(self, sent: MessageSubmitted) -> None:
        method = sent.message["method"]
        if method == "notifications/cancelled":
            self._cancel(sent)
        elif method == "notifications/initialized":
            self._host_is_initialized(sent)
        else:
            self._post_note(sent, method)

    def _host_is_initialized(self, sent: MessageSubmitted) -> None:
        state = self.session.state
        if self.is_initialized or state is SessionState.RESTORING:
            return  # the server has been told
        number = self._post_note(sent, "notifications/initialized")
        if number is not None and state in _UNCONFIRMED:
            self.initialized_sent(number)

    def _answer_server(self, sent: MessageSubmitted) -> None:
        """The host's answer to a request of the server's; never in another session than it was asked in."""
        question = self.asked.answered(sent.message)
        if question is None:
            self.out.append(Report(NotificationLost("response", "nobody asked")))
            return
        if question.incarnation != self.session.incarnation or self.is_lost:
            self.asked_in_vain(self.ledger.owing(question.awaited_on), "response")
            return
        # On disk before it leaves: a process that dies between the two must not have the host asked again.
        self.out.append(Save((self.asked.record_of(question),), durable=True))
        answer = MessageSubmitted({**sent.message, "id": question.request_id}, sent.headers)
        number = self._post_note(answer, "response")
        assert number is not None
        self.streams.note_answers(number, question.awaited_on, question.number)

    def _cancel(self, sent: MessageSubmitted) -> None:
        params = params_of(sent.message)
        request_id = params.get("requestId")
        waiting = next((call for call in self._waiting.values() if call.host_id == request_id), None)
        if waiting is not None:
            self._drop(waiting, "cancelled by the caller")
            return
        if self._drop_probe(request_id):
            return
        call = self.ledger.by_host_id(request_id)
        if call is None:
            self._join_no_more(request_id)
            if request_id is not None:
                self._give_up_answers(request_id)
            return
        self._conclude(call)
        if not call.in_flight:
            self._give_up_answers(request_id)
            return
        ran = self._withdraw(call)
        call.cancelled = ran
        why = "cancelled by the caller"
        self._settle(call, Outcome.CANCELLED, why if ran else given_up(call, why))
        known_as = self._known_as(call)
        if ran and known_as is not None and not call.stateless and not self.is_over(call):
            message = {**sent.message, "params": {**params, "requestId": known_as}}
            self._settled_first(call)
            self.streams.post_note(self.ledger.new_wire_id(), "notifications/cancelled", message, sent.headers)

    def _join_no_more(self, request_id: object) -> None:
        """What the joined call is answered with is not for this request, nor for another under its ID."""
        for host_id in [host_id for host_id in self.joins if host_id == request_id]:
            del self.joins[host_id]
            self.shared.leave(self.machine, self.clock.now, host_id)

    def _conclude(self, call: Call) -> None:
        """What came for this request and is held is its answer, if it must have one now."""
        self.streams.conclude(call)
        self.conclude_refusal(call)
        if call.suspected:
            self.clear_suspects(call, may_wait=False)

    def _release(self) -> None:
        for call in list(self._waiting.values()):
            self._release_one(call)

    def _release_one(self, call: Call) -> None:
        assert call.sent is not None
        self._wait_no_more(call)
        fresh = evolve(
            self._call_from(call.sent, call.continues),
            first_wire_id=call.first_wire_id,
            joined=call.joined,
            left=call.left,
            went_along=call.went_along,
            is_new=call.is_new,
            consented_at=call.consented_at,
            consent=call.consent,
            brought=call.brought,
            stood_for=call.stood_for,
        )
        self._send(fresh)

    def deadline(self, first_wire_id: int) -> None:
        """The guard's own deadline for a request has passed."""
        waiting = self._waiting.get(first_wire_id)
        if waiting is not None:
            self._waited_too_long(waiting)
            return
        call = self.ledger.by_first(first_wire_id)
        if call is not None:
            self._conclude(call)
            self.conclude_drawn(call)
        if call is None or not call.in_flight:
            return
        if self.is_subscribed(call):
            self.not_acknowledged(call)
            return
        if self.has_not_begun(call):
            self._set_deadline(call)
            return
        if call.is_internal:
            before = "" if self.streams.cancel(call) else f"{self._met_by(call)}{NEVER_SENT}"
            self._own_failed(call, f"no answer in time{before}")
            return
        stream = self.streams.of(call)
        wait = "" if stream is None else stream.connection.wait
        bound = self.policy.deadline_name(call.method)
        met = self._met_by(call)  # while it waits
        if not self._withdraw(call):
            again = "" if call.unrun is None else " again"
            self.not_executed(call, "wire", f"it could not be sent{again} within {bound}{met}")
            return
        is_told = self._hears_cancel(call)
        call.cancelled = call.cancelled or is_told
        self._tell_in_doubt(call, f"no answer within {bound}{wait}")
        if is_told:
            self._settled_first(call)
            self._post_cancelled(call, "call_deadline")

    def not_saved(self, wire_id: int, reason: str) -> None:
        """The row of this request is not on disk, so nothing of it may leave (L6)."""
        call = self.ledger.owing(wire_id)
        if call is not None and call.in_flight:
            call.unsaved = True
            self.not_executed(call, "wire", f"the ledger could not be written ({reason})")
            self.streams.abandon_call(wire_id)

    def drained(self, call: Call | Repeat, message: JSON) -> None:
        """The host has taken the answer to this request; or that of the call which it repeats."""
        self._told(call, heard=True)
        if isinstance(call, Repeat):
            self._repeat_drained(call, message)
            return
        is_stale = call.by_guard and call.outcome in HAS_ANSWER  # its answer has come since
        if call.untold and not (call.is_owed or is_stale):
            call.untold = False
            kept = self.policy.keep_results or bool(self.shared.names_of(call))
            self.out.append(Save((AnswerDrained(*call.row, kept),)))
        if ends_task(call.method, message):
            self.task_drained(call, message)

    # Other connections.

    def forwarded(self, told: Forwarded) -> None:
        self.deliver_joined(told.message, told.of, told.by_guard)

    def close(self) -> None:
        """The host has left: what is unanswered stays in the ledger as what it is."""
        self._has_left = True
        self._end_trial(at_once=False)
        self.joins.clear()
        self.shared.leave(self.machine, self.clock.now)
        for call in list(self._waiting.values()):
            self._drop(call, "the host closed the connection")
        for call in self.ledger.in_flight():
            self._conclude(call)
        self._give_up_answers()
        for call in self.ledger.in_flight():
            if call.own is Own.HEIR:  # its row stays open: the next process goes on with it
                self.out.append(CancelTimer(deadline_timer(call)))
                self.leave_heir(call)
                continue
            ran = self._withdraw(call)
            outcome = Outcome.IN_DOUBT if ran and not call.is_subscription else Outcome.CANCELLED
            why = "the host closed the connection"
            self._settle(call, outcome, why if ran else given_up(call, why))
        self.session.move(SessionStep.CLOSED)
