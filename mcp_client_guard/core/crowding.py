"""Requests that wait for a connection, where the host's client has a limit: nothing of them is decided yet.

They hold nothing up but each other: the host's answers, cancels and notifications pass them.
"""

from __future__ import annotations

from attrs import define, field

from .actions import CancelTimer, SetTimer, Timer, TimerKind
from .answers import not_executed_answer
from .calls import Calls
from .inputs import MessageSubmitted
from .listening import METHOD as LISTEN
from .room import MOST_WAITING, Room


@define(eq=False, repr=False)
class Crowding(Calls):
    """Lets in as many as there is room for, in the order they came."""

    room: Room | None = field(default=None, kw_only=True)
    """None: a connection for each."""
    _crowd: dict[int, MessageSubmitted] = field(factory=dict, init=False)
    """By the number of their deadline."""

    def _request(self, sent: MessageSubmitted) -> None:
        room, method = self.room, sent.message["method"]
        if room is None or method == "initialize":  # of which there is one at most
            super()._request(sent)
            return
        lasts = method == LISTEN and self.session.is_stateless(sent.headers)
        if lasts and room.is_held_for_good:
            # Nothing would ever end its wait.
            self._crowd_out(sent, "the client has no connection to spare for another subscription")
        elif room.has_for_request(self.queued) or (lasts and room.has_for_lasting):
            super()._request(sent)
        elif len(self._crowd) >= MOST_WAITING:
            self._crowd_out(sent, "too many requests wait for a connection of the client")
        else:
            number = self.ledger.new_wire_id()
            self._crowd[number] = sent
            self.out.append(SetTimer(_deadline(number), self.policy.deadline_of(None)))

    def let_in(self, room: Room) -> None:
        """Connections may have become free."""
        while self._crowd and room.has_for_request(self.queued):
            super()._request(self._next(next(iter(self._crowd))))

    def _next(self, number: int) -> MessageSubmitted:
        self.out.append(CancelTimer(_deadline(number)))
        return self._crowd.pop(number)

    def _crowd_out(self, sent: MessageSubmitted, why: str) -> None:
        self._deliver(not_executed_answer(sent.message["id"], "wire", why))

    def _cancel(self, sent: MessageSubmitted) -> None:
        params = sent.message.get("params")
        request_id = params.get("requestId") if isinstance(params, dict) else None
        waiting = [number for number, each in self._crowd.items() if each.message["id"] == request_id]
        if waiting:
            self._next(waiting[0])
        else:
            super()._cancel(sent)

    def deadline(self, first_wire_id: int) -> None:
        waiting = self._crowd.pop(first_wire_id, None)
        if waiting is None:
            super().deadline(first_wire_id)
        else:
            self._crowd_out(waiting, "no connection of the client became free within call_deadline")

    def close(self) -> None:
        self._crowd.clear()
        super().close()


def _deadline(number: int) -> Timer:
    return Timer(TimerKind.DEADLINE, number)
