"""Requests that wait for a session, or for a connection: nothing of them is sent yet."""

from __future__ import annotations

from attrs import define, field

from .actions import CancelTimer
from .answers import not_executed_answer, session_lost_answer
from .choosing import Choosing
from .ledger import Call
from .model import JSON, Outcome
from .outcomes import deadline_timer
from .shared import Named
from .state import SessionState
from .unsent import NEVER_SENT

_BUSY_STATES = frozenset(
    {SessionState.CONFIRMING, SessionState.REINITIALIZING, SessionState.RESTORING, SessionState.PROVING}
)


@define(eq=False, repr=False)
class Queueing(Choosing):
    """Owns them, from their coming to their first sending."""

    _waiting: dict[int, Call] = field(factory=dict, init=False)
    """For a session or a connection, in the order they came; nothing of them is sent, and they have no row."""

    @property
    def queued(self) -> int:
        """Requests of which nothing is sent yet."""
        return len(self._waiting)

    def _awaits_session(self, call: Call) -> bool:
        state = self.session.state
        may_overtake = call.stateless or (state is SessionState.CONFIRMING and call.method == "ping")
        return (state in _BUSY_STATES or state is SessionState.LOST) and not may_overtake

    def _wait(self, call: Call) -> None:
        call.waits, call.troubled = True, self.is_replacing
        if not call.first_wire_id:
            self._set_deadline(call)
        self._show(call)
        self._waiting[call.first_wire_id] = call

    def _turn_away(self, call: Call, answer: JSON) -> None:
        """It waits no more, or cannot: nothing of it was sent."""
        self._undo(call)
        self._tell(call, answer)
        self._stop_clock(call)

    def _stop_clock(self, call: Call) -> None:
        if call.first_wire_id:
            self.out.append(CancelTimer(deadline_timer(call)))

    def _drop(self, call: Call, why: str) -> None:
        """Its caller waits no more; it leaves no trace."""
        self._wait_no_more(call)
        self._undo(call)
        self._stop_clock(call)
        self._tell_joined(call, Outcome.CANCELLED, f"{why}{NEVER_SENT}", None)

    def _open_another(self, retry_after: float = 0.0) -> None:
        super()._open_another(retry_after)
        for call in self._waiting.values():  # also those that waited for a connection until now
            call.troubled = call.troubled or not call.stateless

    def _wait_no_more(self, call: Call) -> None:
        del self._waiting[call.first_wire_id]
        self.shared.end(call.digest, call)
        unsent = Named(call.call_key, call.digest)
        before = call.stood_for
        for name in self.shared.names_of(call):
            # The answer of the one that it repeats may have come meanwhile.
            self.shared.name(name, before if before is not None and before.answer is not None else unsent)
        self.shared.goes_on(call, unsent)

    @property
    def _is_awaited(self) -> bool:
        return bool(self._waiting or self._stranded)

    def _refuse_waiting(self, why: str) -> None:
        for call in [waiting for waiting in self._waiting.values() if not waiting.stateless]:
            self._wait_no_more(call)
            self._turn_away(call, session_lost_answer(call.host_id, call.method, call.tool, why))

    def _waited_too_long(self, call: Call) -> None:
        """Its deadline has passed."""
        what = "there was no session" if self._awaits_session(call) else "no connection was free"
        why = f"{what} within {self.policy.deadline_name(call.method)}{self._met_by(call)}"
        self._wait_no_more(call)
        self._turn_away(call, not_executed_answer(call.host_id, call.method, call.tool, "wire", why))

    def _met_by(self, call: Call) -> str:
        """What the last attempt to send it came to, or to open the session that it waits for: for people."""
        awaits_session = call.waits or (self.is_stranded(call) and not self._is_ready_for(call))
        met = (self.met_in_opening if awaits_session else "") or call.met
        return f" (last: {met})" if met else ""
