"""Requests of the guard's own: who is told of their answers, and of their failures."""

from __future__ import annotations

from abc import abstractmethod

from attrs import define

from .classify import is_said_in_session, is_suspect_answer
from .ledger import Call, Own, Refusal
from .model import JSON, Outcome
from .moves import Moves
from .stream import Stream
from .unsent import NEVER_SENT


@define(eq=False, repr=False)
class OwnRequests(Moves):
    """Hands each to the part that asked."""

    def own_answered(self, stream: Stream, call: Call, message: JSON) -> None:
        """A request of the guard's own has its answer."""
        self._settle(call, Outcome.COMPLETED, "answered")
        if call is self._ping:
            self._ping_over(_drawn(message), answered=True)
        elif call is self._comparison:
            drawn = _drawn(message)
            self._compared(drawn, answered=drawn is None)
        elif call is self._initializing:
            self._reopened(stream, call, message)
        elif call.own is Own.TRIAL:
            self._take_trial(stream, call, message)
        elif call.own is Own.RESTORE:
            self._restored_by(call, message)
        elif call.own is not Own.PING:  # a ping of a session that is no more says nothing of this one
            self._answered_otherwise(call, message)

    def _own_failed(self, call: Call, reason: str, refusal: Refusal | None = None) -> None:
        self._settle(call, Outcome.NOT_EXECUTED if refusal else Outcome.IN_DOUBT, reason)
        if call is self._ping:
            self._ping_over(refusal, answered=False)
        elif call is self._comparison:
            self._compared(
                refusal, answered=refusal is not None and is_said_in_session(refusal.status, refusal.body)
            )
        elif call is self._initializing:
            self._not_reopened(reason.removesuffix(NEVER_SENT), refusal)
        elif call.own is Own.RESTORE:
            self._not_restored_by(call, refusal)
        else:
            self._failed_otherwise(call, reason, refusal)

    @abstractmethod
    def _take_trial(self, stream: Stream, call: Call, message: JSON) -> None:
        """The answer to an `initialize` that was to show whether the server can resume."""
        ...

    @abstractmethod
    def _answered_otherwise(self, call: Call, message: JSON) -> None:
        """The answer to a question of the hook's, or about a task."""
        ...

    @abstractmethod
    def _failed_otherwise(self, call: Call, reason: str, refusal: Refusal | None) -> None:
        """No answer to a question of the hook's, about a task or to an old session."""
        ...


def _drawn(message: JSON) -> Refusal | None:
    """What a ping drew, if it can be the word of a server that has lost the session."""
    return Refusal(200, message) if is_suspect_answer(message) else None
