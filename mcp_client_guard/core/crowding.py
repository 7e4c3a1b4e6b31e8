"""Requests that wait for a connection, where the host's client has a limit.

They hold nothing up but each other: the host's answers, cancels and notifications pass them.
"""

from __future__ import annotations

from attrs import define, field

from .answers import not_executed_answer
from .calls import Calls
from .ledger import Call, Own
from .room import MOST_WAITING, Room


@define(eq=False, repr=False)
class Crowding(Calls):
    """Lets out as many as there is room for, in the order they came."""

    room: Room | None = field(default=None, kw_only=True)
    """None: a connection for each."""

    def _go_out(self, call: Call) -> None:
        room = self.room
        if room is None:
            super()._go_out(call)
        elif call.is_subscription and room.is_held_for_good:
            # Nothing would ever end its wait.
            self._crowd_out(call, "the client has no connection to spare for another subscription")
        elif self._has_room(room, call):
            super()._go_out(call)
        elif len(self._waiting) >= MOST_WAITING:
            self._crowd_out(call, "too many requests wait for a connection of the client")
        else:
            call.is_new = True
            self._wait(call)

    def let_in(self, room: Room) -> None:
        """Connections may have become free."""
        for call in list(self._waiting.values()):
            if self._awaits_session(call):
                continue
            is_hopeless = call.is_subscription and room.is_held_for_good
            if not (is_hopeless or self._has_room(room, call)):
                return
            self._release_one(call)

    def _has_room(self, room: Room, call: Call) -> bool:
        return room.has_for_request(self._promised) or (call.is_subscription and room.has_for_lasting)

    @property
    def _promised(self) -> int:
        """Requests whose connection is free while it is open what becomes of them: they may be sent again."""
        stranded = sum(stranded.call.own is not Own.HEIR for stranded in self._stranded.values())
        suspects = sum(suspect.call.in_flight for suspect in self._suspects)
        return stranded + suspects + self.streams.awaiting

    def _crowd_out(self, call: Call, why: str) -> None:
        self._turn_away(call, not_executed_answer(call.host_id, call.method, call.tool, "wire", why))
