"""Answers that a POST has not brought, and the standalone stream may.

The Ruby SDK writes each answer to the session's GET stream, where there is one, and says `{"accepted": true}` to
the POST. The two travel on connections of their own, so that the word may be here before the answer is.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field

from .actions import SetTimer, Timer, TimerKind
from .disowning import Disowning
from .ledger import Call
from .state import StreamState
from .stream import STANDALONE, Stream, StreamKind


@define(eq=False, repr=False)
class Drawn:
    """What came with a 2xx in the place of an answer."""

    body: Any
    why: str
    """What is said of it, if no answer follows."""
    may_wait: bool = True
    """For a resume of the standalone stream, once."""


@define(eq=False, repr=False)
class Awaiting(Disowning):
    """Keeps such a request for `witness_timeout`, before what was said to it counts."""

    _drawn: dict[int, Drawn] = field(factory=dict, init=False)
    """By request: its POST is over, and it is in flight."""

    def _awaits_elsewhere(self, stream: Stream, body: Any, why: str) -> bool:
        """If the answer that this POST has not brought may come yet: it is waited for. Returns whether."""
        standalone, call = self._standalone, stream.call
        if standalone is None or call is None or not call.in_flight or stream.stateless:
            return False
        # Of a session that is opened beside ours, and of what is left of a lost one, nothing comes on it.
        is_of_another = stream.method == "initialize" or stream.incarnation != standalone.incarnation
        # While it waits to be opened afresh nothing is written to it, and what was is lost.
        is_away = standalone.state is StreamState.LOST and not (
            standalone.connection.begun or standalone.connection.resumed
        )
        if is_of_another or is_away or self.calls.is_told_lost(call, body):
            return False
        self._drawn[stream.number] = Drawn(body, why)
        self._soon_over(stream.number)
        return True

    @property
    def _standalone(self) -> Stream | None:
        stream = self._streams.get(STANDALONE)
        return stream if stream is not None and stream.kind is StreamKind.STANDALONE else None

    def answer_overdue(self, number: int) -> None:
        """An answer that could not be read was followed by no other."""
        stream, drawn = self._streams.get(number), self._drawn.get(number)
        if stream is None or stream.call is None or not stream.call.in_flight:
            return
        standalone = self._standalone
        is_resumed = standalone is not None and standalone.connection.trial is not None
        if drawn is not None and drawn.may_wait and is_resumed:
            drawn.may_wait = False  # the answer may be in the replay
            self.out.append(SetTimer(Timer(TimerKind.ANSWER, number), self.policy.witness_timeout))
        else:
            self._give_up(stream, "its answer could not be read")

    def _give_up(self, stream: Stream, why: str) -> None:
        drawn = self._drawn.get(stream.number)
        if drawn is None:
            super()._give_up(stream, why)
            return
        assert stream.call is not None
        self._finish(stream)
        self.calls.unreadable(stream.call, drawn.body, drawn.why)

    def finish_call(self, wire_id: int, by: Stream | None = None) -> None:
        if wire_id in self._drawn:
            self.abandon_call(wire_id)
        else:
            super().finish_call(wire_id, by)

    def cancel(self, call: Call) -> bool:
        if call.wire_id not in self._drawn:
            return super().cancel(call)
        self.abandon_call(call.wire_id)
        return True

    def _finish(self, stream: Stream, *, linger: bool = False) -> None:
        super()._finish(stream, linger=linger)
        self._drawn.pop(stream.number, None)
        if stream.kind is StreamKind.STANDALONE:
            while self._drawn:
                self._give_up(self._streams[next(iter(self._drawn))], "the standalone stream is over")
