"""Requests of the user's `reconcile` hook: to the server, under the present session or the next."""

from __future__ import annotations

from attrs import define, field

from .actions import Reply
from .answers import session_lost_answer
from .crowding import Crowding
from .inputs import HookRequested
from .ledger import HOOK_KEY, Call, Own
from .messages import tool_named
from .model import Outcome
from .modern import dressed
from .state import SessionState
from .unsent import given_up


@define(eq=False, repr=False)
class Hooking(Crowding):
    """What it asks waits for a session, and is sent again where it did not run, as what the host asks; but not
    when it waits no more."""

    _unsent: list[HookRequested] = field(factory=list, init=False)
    """They wait for a session."""

    @property
    def _is_awaited(self) -> bool:
        return bool(self._unsent) or super()._is_awaited

    def hook_requested(self, told: HookRequested) -> None:
        """The hook asks the server something."""
        like = self.stateless_like
        state = self.session.state
        if like is None and state is not SessionState.LIVE:
            if state is SessionState.LOST and not self._may_open():
                self.out.append(
                    Reply(told.ticket, session_lost_answer(told.ticket, told.method, None, self.why_lost))
                )
            else:
                self._unsent.append(told)
                self._reinitialize()
            return
        tool = tool_named(told.method, told.params)
        known = self.present_tools.get(tool or "")
        call = Call(
            wire_id=self.ledger.new_wire_id(),
            host_id=None,
            method=told.method,
            tool=tool,
            params=told.params,
            call_key=HOOK_KEY + told.call_key,
            may_have_side_effects=self._may_have_side_effects(told.method, tool),
            incarnation=self.session.incarnation,
            stateless=like is not None,
            sent=None if like is None else dressed(told.method, told.params, like, known),
            own=Own.HOOK,
            ticket=told.ticket,
        )
        self._post(call)

    def hook_withdrew(self, ticket: int) -> None:
        """The hook waits no more: what has not left is not sent, and of what has the server is told."""
        self._unsent = [told for told in self._unsent if told.ticket != ticket]
        for call in self.ledger.in_flight():
            if call.own is Own.HOOK and call.ticket == ticket:
                ran = self._withdraw(call)
                if ran:
                    self._tell_cancelled(call, "the reconcile hook was stopped")
                call.cancelled = ran
                why = "the reconcile hook was stopped"
                self._settle(call, Outcome.CANCELLED, why if ran else given_up(call, why))

    def _release(self) -> None:
        super()._release()
        unsent, self._unsent = self._unsent, []
        for told in unsent:
            self.hook_requested(told)

    def _refuse_waiting(self, why: str) -> None:
        super()._refuse_waiting(why)
        unsent, self._unsent = self._unsent, []
        for told in unsent:
            self.out.append(Reply(told.ticket, session_lost_answer(told.ticket, told.method, None, why)))

    def close(self) -> None:
        self._unsent.clear()  # the shell answers what waits
        super().close()
