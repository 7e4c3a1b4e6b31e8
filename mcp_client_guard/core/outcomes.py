"""The one outcome of each request, and the end of the session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from attrs import define, field

from .actions import CancelTimer, Report, Save, Timer, TimerKind
from .answers import CallInDoubt, http_answer, in_doubt_answer, not_executed_answer, session_lost_answer
from .ledger import Call, Ledger
from .model import JSON, CallSettled, Outcome, SessionEnded
from .policy import GuardPolicy, Ruling, rule_on
from .report import CallSettled as CallSettledEvent
from .report import SessionLost
from .session import Session
from .state import SessionState, SessionStep

if TYPE_CHECKING:
    from .actions import Action
    from .streams import Streams


@define(eq=False, repr=False)
class Outcomes(ABC):
    """Owns the ledger and the session."""

    policy: GuardPolicy
    session: Session
    ledger: Ledger
    out: list[Action]
    streams: Streams = field(init=False)

    def in_doubt(self, call: Call, reason: str) -> None:
        """The request may have run, and nobody can say: the caller is told so."""
        if not call.in_flight:
            return
        doubt = CallInDoubt(
            reason, call.method, call.tool, call.call_key, self.session.fingerprint, call.cancelled
        )
        if call.host_id is not None:
            self._deliver(in_doubt_answer(call, doubt, as_result=self.policy.in_doubt_as == "result"))
        self._settle(call, Outcome.IN_DOUBT, reason)

    def not_executed(self, call: Call, by: str, reason: str, status: int | None = None) -> None:
        """The request did not run: seen by us (`wire`), or by the server's word (`server`)."""
        if call.host_id is not None:
            self._deliver(not_executed_answer(call.host_id, by, reason, status))
        self._settle(call, Outcome.NOT_EXECUTED, f"by {by}: {reason}")

    def refused(self, call: Call, status: int, body: Any, location: str | None, session_sent: bool) -> None:
        """The POST of this request drew a status that is no answer of the usual kind."""
        error = body.get("error") if isinstance(body, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        ruling = rule_on(status, session_sent=session_sent, rpc_code=code)
        if call.in_flight:
            self._settle_refused(call, ruling, status, body, location)
        if ruling.session_gone:
            self.lose_session(f"HTTP {status}")

    def _settle_refused(self, call: Call, ruling: Ruling, status: int, body: Any, location: str | None) -> None:
        if call.host_id is None:
            # A ping of ours that drew a status was not answered: an outage refuses pings and resumes alike.
            self._settle(call, Outcome.NOT_EXECUTED, f"HTTP {status}")
        elif ruling.session_gone:
            self._deliver(session_lost_answer(call.host_id, "the server no longer knows the session", status))
            self._settle(call, Outcome.NOT_EXECUTED, f"by server: HTTP {status}")
        elif ruling.outcome is not Outcome.COMPLETED:
            where = f", redirected to {location}, which was not followed" if location else ""
            if ruling.outcome is Outcome.NOT_EXECUTED:
                self.not_executed(call, ruling.by, f"HTTP {status}{where}", status)
            else:
                self.in_doubt(call, f"it was answered with HTTP {status}{where}")
        else:
            self._deliver(http_answer(call.host_id, status, body))
            self._settle(call, Outcome.COMPLETED, f"answered with HTTP {status}")

    def deadline(self, wire_id: int) -> None:
        """The guard's own deadline for a request has passed."""
        call = self.ledger.owing(wire_id)
        if call is not None:
            self.streams.conclude(call)
        if call is None or not call.in_flight:
            return
        if not self.streams.cancel(call):
            self.not_executed(call, "wire", "it could not be sent within call_deadline")
            return
        if not call.stateless and call.method != "initialize":
            params = {"requestId": call.wire_id, "reason": "call_deadline"}
            message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            self.streams.post_note(self.ledger.new_wire_id(), "notifications/cancelled", message, {})
            call.cancelled = True
        self.in_doubt(call, "no answer within call_deadline")

    def crowded_out(self, message: JSON) -> None:
        """No connection of the caller's client became free in time for this request."""
        why = "no connection of the client became free within call_deadline"
        self._deliver(not_executed_answer(message["id"], "wire", why))

    def not_saved(self, wire_id: int, reason: str) -> None:
        """The row of this request is not on disk, so nothing of it may leave (L6)."""
        call = self.ledger.owing(wire_id)
        if call is not None and call.in_flight:
            self.not_executed(call, "wire", f"the ledger could not be written ({reason})")
            self.streams.abandon_call(wire_id)

    def lose_session(self, reason: str) -> None:
        """The session is gone or in question: nothing more is sent under it."""
        if self.session.state in (SessionState.LOST, SessionState.CLOSED):
            return
        self.session.move(SessionStep.GONE)
        self.out.append(Save((SessionEnded(self.session.incarnation, reason),)))
        self.out.append(Report(SessionLost(self.session.fingerprint, reason)))
        self.streams.close_standalone()
        self._release()

    def _settle(self, call: Call, outcome: Outcome, reason: str) -> None:
        self.ledger.settle(call, outcome)
        if call.host_id is None:
            self.streams.ping_over(outcome is Outcome.COMPLETED)
            return
        opened = outcome is Outcome.COMPLETED and self.session.incarnation > call.incarnation
        if call.method == "initialize" and self.session.state is SessionState.INITIALIZING and not opened:
            self.session.move(SessionStep.INITIALIZE_FAILED)
            self._release()
        self.out.append(CancelTimer(deadline_timer(call)))
        self.out.append(Save((CallSettled(call.incarnation, call.wire_id, outcome, reason),)))
        self.out.append(
            Report(CallSettledEvent(call.wire_id, call.method, call.tool, call.call_key, outcome, reason))
        )

    @abstractmethod
    def _release(self) -> None:
        """The requests that wait for the session may go on, to whatever awaits them now."""
        ...

    def _deliver(self, message: JSON) -> None:
        self.streams.deliver(None, message)


def deadline_timer(call: Call) -> Timer:
    return Timer(TimerKind.DEADLINE, call.wire_id)
