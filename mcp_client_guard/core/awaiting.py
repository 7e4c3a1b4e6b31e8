"""Answers that a POST has not brought, and the standalone stream may, or the POST of another request.

The Ruby SDK writes each answer to the session's GET stream, where there is one, and says `{"accepted": true}` to
the POST. The two travel on connections of their own, so that the word may be here before the answer is. Nor is it
said before the tool has ended, for which a proxy may lose patience. So where a server was seen to answer there, a
POST that comes to nothing is not the end of its request.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field

from .actions import Report, SetTimer
from .connection import Connection
from .disowning import Disowning
from .ledger import Call, Own
from .report import Disconnected
from .state import StreamState, StreamStep
from .stream import STANDALONE, Stream, StreamKind


@define(eq=False, repr=False)
class Drawn:
    """What came in the place of an answer."""

    body: Any
    """With a 2xx."""
    why: str
    """What is said of it, if no answer follows."""
    may_wait: bool = True
    """For a resume of the standalone stream, once."""
    is_nothing: bool = False
    """The POST was cut, or refused as one may be whose request runs (`Call.drawn`)."""


@define(eq=False, repr=False)
class Awaiting(Disowning):
    """Keeps such a request for a while, before what was said to it counts."""

    _drawn: dict[int, Drawn] = field(factory=dict, init=False)
    """By request: its POST is over, and it is in flight."""
    _answers_there: int = field(default=0, init=False)
    """The incarnation in which the standalone stream has brought the answer to a POST."""

    def _await_elsewhere(self, stream: Stream, body: Any, why: str) -> bool:
        """If the answer that this POST has not brought may come yet: it is waited for. Returns whether."""
        call = stream.call
        if call is None or not (self._may_come_elsewhere(call) or self._may_come_beside(call)):
            return False
        if self.calls.is_told_lost(call, body):
            return False
        self._drawn[stream.number] = Drawn(body, why)
        self._soon_over(stream.number)
        return True

    def _may_come_elsewhere(self, call: Call) -> bool:
        standalone = self._standalone
        if standalone is None or not call.in_flight or call.stateless:
            return False
        # Of a session that is opened beside ours, and of what is left of a lost one, nothing comes on it.
        is_of_another = call.method == "initialize" or call.incarnation != standalone.incarnation
        # While it waits to be opened afresh nothing is written to it, and what was is lost.
        is_away = standalone.state is StreamState.LOST and not (
            standalone.connection.begun or standalone.connection.resumed
        )
        return not (is_of_another or is_away)

    def _may_come_beside(self, call: Call) -> bool:
        """The PHP SDK keeps the answers of a session in one queue, and empties it into the next POST that ends."""
        if call.method == "initialize" or call.stateless or call.legacy or not call.in_flight:
            return False
        own = self._drawn.keys() | {call.wire_id}
        others = (stream for number, stream in self._streams.items() if number not in own and stream.is_post)
        return any(other.connection.begun and other.incarnation == call.incarnation for other in others)

    def is_answered_elsewhere(self, call: Call) -> bool:
        """Whether the answer to this request is to come on the standalone stream, as others did."""
        is_asked_for = call.own in (None, Own.HOOK) and not self.calls.is_stranded(call)
        return is_asked_for and call.incarnation == self._answers_there and self._may_come_elsewhere(call)

    def await_answer(self, call: Call, why: str) -> bool:
        """The POST of this request is over, and was not its answer: that may come elsewhere. Returns whether it is
        waited for."""
        if not self.is_answered_elsewhere(call):
            return False
        stream = self._new_stream(call.wire_id, StreamKind.CALL, call.method)
        stream.call = call
        self.out.append(Report(Disconnected(stream.name, why, 0, resumable=False)))
        self._wait_elsewhere(stream, why)
        return True

    def _wait_elsewhere(self, stream: Stream, why: str) -> None:
        assert stream.call is not None
        self._drawn[stream.number] = Drawn(None, why, is_nothing=True)
        stream.connection = Connection(begun=True)
        stream.unreadable = True
        stream.move(StreamStep.CUT)
        seconds = self._patience_with(stream.call)
        self.out.append(SetTimer(stream.answer_timer, seconds))

    def _patience_with(self, call: Call) -> float:
        """For its answer, once its POST has come to nothing: a harmless one may be sent again, which is worth less
        than a minute."""
        return self.policy.settle_after if call.may_have_side_effects else self.policy.witness_timeout

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
            self.out.append(SetTimer(stream.answer_timer, self.policy.witness_timeout))
        else:
            self._give_up(stream, "its answer could not be read")

    def _give_up(self, stream: Stream, why: str) -> None:
        drawn = self._drawn.get(stream.number)
        if drawn is None:
            super()._give_up(stream, why)
            return
        call = stream.call
        assert call is not None
        self._finish(stream)
        if call.drawn is not None:
            self.calls.believe_drawn(call)
        elif drawn.is_nothing:
            self.calls.lost(call, f"its connection was lost ({drawn.why}), and no answer has come")
        else:
            self.calls.unreadable(call, drawn.body, drawn.why)

    def finish_call(self, wire_id: int, by: Stream | None = None) -> None:
        # Where it is resumed, the TypeScript SDK replays on it what is of other streams, which says nothing.
        if by is not None and by is self._standalone and (wire_id in self._drawn or not by.connection.resumed):
            self._answers_there = by.incarnation
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
            for own in [self._streams[number] for number in self._drawn]:
                if own.call is None or not self._may_come_beside(own.call):
                    self._give_up(own, "the standalone stream is over")
