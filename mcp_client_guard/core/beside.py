"""What is posted beside a carrier: its status and its answer travel apart.

The answer comes on the carrier (2024-11-05 transports, HTTP with SSE), and servers with a thread for each request
hold the POST until then (Java). So a POST that is lost, or whose proxy has lost patience, is not the end of it.
"""

from __future__ import annotations

from attrs import define

from .actions import NO_DELAY, CancelTimer, Report, SetTimer
from .carrier import Carrying
from .inputs import BodyReceived
from .ledger import Call, Own
from .messages import messages_of
from .report import Disconnected
from .state import StreamState, StreamStep
from .stream import Stream, StreamKind


@define(eq=False, repr=False)
class Beside(Carrying):
    """Waits for answers whose POST is over."""

    def body(self, told: BodyReceived) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None or not stream.legacy or stream.call is None:
            super().body(told)
            return
        for message in messages_of(told.body):
            self.calls.take(stream, message, direct=True)
        if self.current(told.stream, told.connection) is stream:
            self._taken_by_server(stream)

    def _taken_by_server(self, stream: Stream) -> None:
        """Its POST was answered, and not with its answer."""
        call = stream.call
        assert call is not None
        if not call.in_flight:
            self._finish(stream, linger=True)
        elif stream.connection.carrier != self._carrier:
            self._give_up(stream, "the stream of its session was lost")
        else:
            stream.connection.accepted = call.was_taken = True
            self._ping_accepted = self._ping_accepted or call.own is Own.PING

    def _cut(self, stream: Stream, why: str, at: float, *, clean: bool, by_us: bool = False) -> None:
        if not stream.legacy:
            super()._cut(stream, why, at, clean=clean, by_us=by_us)
        elif stream.kind is StreamKind.CARRIER:
            self._carrier_lost(stream, why)
        elif stream.connection.answered or stream.call is None or not stream.call.in_flight:
            self._taken_by_server(stream)
        elif stream.connection.carrier != self._carrier:
            self._give_up(stream, f"its connection was lost, and the stream of its session ({why})")
        else:
            # Written, and nobody has said that it was not taken.
            self._await_answer(stream, why, self.policy.settle_after)

    def await_answer(self, call: Call, why: str) -> bool:
        if not self.has_endpoint:
            return super().await_answer(call, why)
        stream = self._new_stream(call.wire_id, StreamKind.CALL, call.method)
        self._new_connection(stream, NO_DELAY)
        stream.call = call
        stream.connection.carrier = self._carrier
        stream.connection.begun = stream.connection.accepted = True
        self._await_answer(stream, why, self._patience_with(call))
        return True

    def _await_answer(self, stream: Stream, why: str, seconds: float) -> None:
        self.out.append(Report(Disconnected(stream.name, why, 0, resumable=False)))
        stream.move(StreamStep.CUT)
        self.out.append(SetTimer(stream.answer_timer, seconds))

    def shows_life(self, call: Call) -> None:
        """It runs: where its POST came to nothing, it is waited for from now on like one that was taken."""
        stream = self._streams.get(call.wire_id)
        is_lost = stream is not None and stream.state is StreamState.LOST and not stream.unreadable
        if stream is not None and is_lost and stream.connection.carrier == self._carrier:
            stream.connection.accepted = True
            call.drawn = None
            stream.move(StreamStep.ANSWERED)
            self.out.append(CancelTimer(stream.answer_timer))

    def answer_overdue(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is None or not stream.legacy or stream.unreadable or stream.call is None:
            super().answer_overdue(number)
        elif stream.call.drawn is not None:
            self.calls.believe_drawn(stream.call)
            self._finish(stream)
        elif stream.call.in_flight:
            self._give_up(stream, "its connection was lost, and no answer has come")

    def finish_call(self, wire_id: int, by: Stream | None = None) -> None:
        own = self._streams.get(wire_id)
        if by is not None and by.kind is StreamKind.CARRIER and own is not None:
            self._finish(own, linger=True)
        else:
            super().finish_call(wire_id, by)

    def cancel(self, call: Call) -> bool:
        stream = self._streams.get(call.wire_id)
        sent = super().cancel(call)
        if stream is not None and stream.connection.accepted and self._is_open(stream):
            self._finish(stream)
        return sent
