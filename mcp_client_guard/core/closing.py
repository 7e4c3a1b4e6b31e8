"""The last look of a resumed stream: is its answer all that is missing?

A server may drop what it emits between its replay and its live tail (SDK 1.30 and FastMCP 4 do: an event that
comes just then is in their log, and is never sent). So an answer that came on a live tail is held while the
stream is resumed once more from where it was resumed before: what the log holds comes again up to the answer.
"""

from __future__ import annotations

from attrs import define, field

from .actions import CancelTimer, Delay, Hangup, Report, SetTimer
from .inputs import EventReceived, TooLarge
from .ledger import Call
from .messages import messages_of
from .model import digest_of
from .report import Discontinuity, UnreadableDropped
from .state import StreamState
from .stream import STANDALONE, Stream, StreamKind
from .timer import TimerKind
from .trials import Trials

_CLOSING_SECONDS = 1.0
_LEFT_OUT = "the server left out events between its replay and its live tail"
_LONGEST_WAIT_MS = 2000
"""With a longer `retry:` the answer is not held: it would come too late."""


@define(eq=False, repr=False)
class LastLook:
    """An answer that is held, and what comes before it."""

    answer: EventReceived
    missed: list[EventReceived] = field(factory=list)
    """Events never received before, that stand before the answer and after everything that was."""
    size: int = 0
    overtaken: list[EventReceived] = field(factory=list)
    """Events never received before, behind which a later one was delivered already: too late to deliver them in
    order (S3)."""


@define(eq=False, repr=False)
class Closing(Trials):
    """Holds the answer of a resumed stream for one last look at the log."""

    _put_off: dict[str, Discontinuity] = field(factory=dict, init=False)
    """By event ID: what a stream has left out, unless the standalone one brings it, which is not back yet."""

    def _begin_look(self, stream: Stream, event: EventReceived) -> bool:
        """If this event is an answer that came on a live tail: it is held, and the log asked. Returns whether."""
        last_event_id, call = stream.connection.resumed_from, stream.call
        if last_event_id is None or call is None or not call.in_flight or event.event_id is None:
            return False
        if last_event_id not in self.index:
            # The trail no longer reaches back to where the look would begin: old events would seem new.
            return False
        answers = any(self.calls.owed(stream, m) is call for m in messages_of(event.body))
        if not answers or not stream.may_have_tail or (stream.retry_ms or 0) > _LONGEST_WAIT_MS:
            return False
        self._cancel_timers(stream)
        self.out.append(Hangup(stream.connection.number))
        self._new_connection(stream, Delay(0, stream.retry_ms), last_event_id)
        stream.connection.last_look = LastLook(event)
        seconds = _CLOSING_SECONDS + (stream.retry_ms or 0) / 1000
        self.out.append(SetTimer(stream.timer(TimerKind.CLOSING), seconds))
        self._order_get(stream)
        return True

    def _look(self, stream: Stream, look: LastLook, event: EventReceived) -> None:
        if event.event_id == look.answer.event_id:
            same = digest_of(event.data) == digest_of(look.answer.data)
            if not same:
                self._report_loss(stream, "another message under the answer's event ID", event)
                look.missed, look.overtaken = [], []
            self._conclude(stream, complete=same)
        elif stream.trail.has_received(event.event_id):
            look.overtaken += look.missed
            look.missed.clear()
        elif (
            event.event_id is None
            or not self._may_be_of(stream, event)
            or stream.trail.holds(event.event_id, event.data)
        ):
            return
        else:
            look.missed.append(event)
            look.size += len(event.data)
            count = len(look.missed) + len(look.overtaken)
            if count > self.policy.max_held or look.size > 2 * self.policy.max_event_size:
                self._conclude(stream, complete=False)

    def _may_be_of(self, stream: Stream, event: EventReceived) -> bool:
        """Whether this event can be this stream's: some servers replay those of every stream of the session."""
        alone = sum(s.kind is StreamKind.CALL for s in self._streams.values()) == 1
        owners = [self.calls.owner_of(stream, m) for m in messages_of(event.body)]
        return bool(owners) and all(call is stream.call or (call is None and alone) for call in owners)

    def _conclude(self, stream: Stream, *, complete: bool) -> None:
        """Deliver the answer that is held; what was missed before it, too, if the look was complete."""
        connection, look = stream.connection, stream.connection.last_look
        assert look is not None
        self.out.append(CancelTimer(stream.timer(TimerKind.CLOSING)))
        left_out = look.overtaken if complete else look.overtaken + look.missed
        if left_out and all(self._may_still_come(stream, event) for event in left_out):
            self._put_off.update({str(event.event_id): self._loss(stream, _LEFT_OUT, event) for event in left_out})
            if len(self._put_off) > self.policy.max_held:
                self._report_put_off()
        elif left_out:
            self._report_loss(stream, _LEFT_OUT, left_out[0])
        missed = look.missed if complete else []
        look.missed = []  # each is placed once, though one that breaks the stream concludes this look again
        for event in missed:
            # One that breaks the stream has the answer delivered by `_give_up`.
            if connection.last_look is look:
                self._place(stream, event)
        if connection.last_look is look:
            connection.last_look = None
            self._place(stream, look.answer)
            self._see_end(stream, look.answer)

    def _may_still_come(self, stream: Stream, event: EventReceived) -> bool:
        """Whether this may be the standalone stream's, which is yet to be resumed."""
        standalone = self._streams.get(STANDALONE)
        if standalone is None or standalone.state is StreamState.OPEN or standalone.trail.cursor is None:
            return False
        if standalone.barred:
            return False  # nobody knows whether it ever will be
        return self._is_nobody_s(stream, event)

    def _is_nobody_s(self, stream: Stream, event: EventReceived) -> bool:
        owners = [self.calls.owner_of(stream, message) for message in messages_of(event.body)]
        return bool(owners) and all(call is None for call in owners)

    def _place(self, stream: Stream, event: EventReceived) -> None:
        if self._put_off and stream.kind is StreamKind.STANDALONE and event.event_id not in self.index:
            was_put_off = self._put_off.pop(event.event_id or "", None) is not None
            if not was_put_off and self._is_nobody_s(stream, event):
                self._report_put_off()  # they would have come before
        super()._place(stream, event)

    def _finish(self, stream: Stream, *, linger: bool = False) -> None:
        super()._finish(stream, linger=linger)
        if stream.kind is StreamKind.STANDALONE:
            self._report_put_off()

    def _report_put_off(self) -> None:
        lost = [loss for event_id, loss in self._put_off.items() if event_id not in self.index]
        self._put_off.clear()
        for loss in {loss.stream: loss for loss in reversed(lost)}.values():
            self.out.append(Report(loss))

    def _give_up(self, stream: Stream, why: str) -> None:
        """An answer that is held is stronger than any reason to give its request up."""
        if stream.connection.last_look is not None:
            self._conclude(stream, complete=False)
        else:
            super()._give_up(stream, why)

    def too_large(self, told: TooLarge) -> None:
        """Reading it again would meet the same limit, so this is never resumed."""
        stream = self.current(told.stream, told.connection)
        if stream is None or self._drop_large(stream, told):
            return
        if stream.connection.last_look is not None:
            self._conclude(stream, complete=False)
            return
        why = self._too_large("an answer")
        call = stream.call
        if call is not None:
            self.conclude(call)
            if self.current(told.stream, told.connection) is not stream:
                return
            if self._misses(stream) or stream.connection.holds:
                self._report_loss(stream, why)
            elif not call.in_flight:
                self.out.append(Report(UnreadableDropped(stream.name, why)))
            self._signal_cancel(stream)
            self.calls.in_doubt(call, why, again=False)
        if stream.kind is StreamKind.STANDALONE:
            self._break(stream, why)
        else:
            self._finish(stream)

    def conclude(self, call: Call) -> None:
        """Deliver the answer of this request now, if one is held."""
        stream = self._streams.get(call.wire_id)
        if stream is None:
            return
        if stream.connection.last_look is not None:
            self._conclude(stream, complete=False)
        elif stream.connection.trial is not None:
            self._take_alone(stream, stream.connection.trial.held)
