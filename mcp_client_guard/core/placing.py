"""Where an event belongs: new, a duplicate, or the end of what this stream can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define

from .actions import Hangup, Report, SetTimer
from .inputs import UNREADABLE, EventReceived, TooLarge
from .messages import messages_of, unreadable_in
from .model import JSON, Taken
from .registry import Registry
from .report import DuplicateDropped, Resumed, UnreadableDropped
from .state import StreamState, StreamStep
from .stream import Stream, StreamKind
from .trail import Placement
from .trial import Trial, broken

_NEXT, _UNKNOWN = Placement.NEXT, Placement.UNKNOWN


@define(eq=False, repr=False)
class Placing(Registry):
    """Places what comes on a stream, and breaks a stream that contradicts itself."""

    def _place(self, stream: Stream, event: EventReceived) -> None:
        messages = messages_of(event.body)
        placement = self._placement(stream, event, bool(messages))
        if placement is not _NEXT and placement is not _UNKNOWN and not self._is_new(stream, event, placement):
            return
        # Without an ID it moves no cursor: the next resume would ask for exactly the same, and get it, for ever.
        connection = stream.connection
        if not connection.progressed and (placement is _NEXT or (messages and connection.resumed_from is None)):
            stream.progress()
        if not messages:
            self._place_empty(stream, event, placement)
        elif event.name == "message":
            self._take_all(stream, event, messages)
            self._drop_parts(stream, event.body)
        else:
            self.out.append(Report(UnreadableDropped(stream.name, "an event with a name of its own")))

    def _placement(self, stream: Stream, event: EventReceived, carried: bool) -> Placement:
        event_id, trail = event.event_id, stream.trail
        if event_id is None and not trail.rows:
            return _UNKNOWN
        if event_id is not None and (event_id == self.session.session_id or event_id == stream.offered_session_id):
            return Placement.AMBIGUOUS
        return trail.place(event_id, event.data, carried, event.connection)

    def _is_new(self, stream: Stream, event: EventReceived, placement: Placement) -> bool:
        """Whether an event that is not simply the next is to be delivered all the same."""
        if placement is Placement.DUPLICATE:
            self._drop_duplicate(stream, event, bool(messages_of(event.body)))
            adopted = stream.trail.adopted(event.event_id, event.connection)
            if adopted:
                self._wait_for_others(stream)
            self._wait_for_answers(stream, event, adopted)
            return False
        if placement is not Placement.AMBIGUOUS:
            self._break(stream, placement.value, event)
            return False
        stream.trail.identifies_nothing()
        self._drop_stored(stream)
        return True

    def _wait_for_answers(self, stream: Stream, event: EventReceived, adopted: bool) -> None:
        """What was asked on another stream, and is not answered, is asked of the next process by this one, too."""
        for message in messages_of(event.body):
            number = self.calls.open_question(stream, message)
            if number is not None:
                newest = stream.trail.newest_number
                stream.position.asked.setdefault(number, newest if adopted else newest + 1)

    def _place_empty(self, stream: Stream, event: EventReceived, placement: Placement) -> None:
        if placement is _NEXT:
            stream.primed_on = event.connection
            self._primed(stream)
            if stream.call is not None:
                stream.call.was_taken = True
        self._drop_unreadable(stream, event.body)

    def _drop_unreadable(self, stream: Stream, body: Any) -> None:
        """Say of each part that is no message that it is dropped. A request that it was meant to answer waits no
        longer than a good answer may take that follows; on the stream of another it says nothing of its own."""
        for part in unreadable_in(body):
            why = "not JSON" if part is UNREADABLE else "not a JSON-RPC message"
            self.out.append(Report(UnreadableDropped(stream.name, why)))
            meant = self.calls.meant_by(part)
            if meant is not None and (meant is stream.call or stream.kind is StreamKind.CARRIER):
                self._soon_over(meant.wire_id)

    def _drop_parts(self, stream: Stream, body: Any) -> None:
        """Say of each part of a batch that is no message that it is dropped, once the others were taken."""
        if isinstance(body, list):
            self._drop_unreadable(stream, body)

    def _primed(self, stream: Stream) -> None:
        """There is nothing to drain in a priming event: from now on the next process could resume this stream."""
        if not stream.position.undrained and (stream.call is None or stream.call.keeps_answer):
            self._save_cursor(stream)

    def _drop_large(self, stream: Stream, told: TooLarge) -> bool:
        """If what was too large answers another request than this stream's: that alone is over. Returns whether it
        does."""
        if told.answers is None or not self.calls.is_of_another(stream.call, told.answers):
            return False
        why = self._too_large("an event")
        self.out.append(Report(UnreadableDropped(stream.name, why)))
        meant = self.calls.meant_by({"id": told.answers})
        if meant is not None:
            meant.was_taken = True
            self._soon_over(meant.wire_id)
        return True

    def _too_large(self, what: str) -> str:
        return f"{what} larger than max_event_size ({self.policy.max_event_size} bytes)"

    def _soon_over(self, wire_id: int) -> None:
        """This request has had an answer that cannot be read. A good one may still follow; not for ever."""
        own = self._streams.get(wire_id)
        if own is not None:
            own.unreadable = True
            self.out.append(SetTimer(own.answer_timer, self.policy.witness_timeout))

    def _drop_duplicate(self, stream: Stream, event: EventReceived, carried: bool) -> None:
        if carried:
            self.out.append(Report(DuplicateDropped(stream.name, self._shown(event.event_id))))

    def _take_all(self, stream: Stream, event: EventReceived, messages: tuple[JSON, ...]) -> None:
        event_id = event.event_id if stream.trail.identifies else None
        call = stream.call
        for message in messages:
            # Behind the first sign of life an error of no request may be said to a notification, by a bridge.
            is_direct = stream.connection.resumed_from is None and (call is None or not call.was_taken)
            taken = self.calls.take(stream, message, direct=is_direct, event_id=event_id)
            if taken is not Taken.ORPHAN or stream.state is not StreamState.OPEN:
                continue
            if stream.doubtful:
                self._break(stream, "a message that belongs to no request of this session", event)
                return
            if call is not None and self.calls.names_no_request(message):
                call.said = message
                self._soon_over(stream.number)  # a replay may hold what was said to other requests, too

    def _see_end(self, stream: Stream, event: EventReceived) -> None:
        """If this is the answer that came on another stream before, nothing is missing any more.

        On trial only if it is just what was delivered, and nothing can stand between it and what was asked for.
        """
        if not stream.is_unwanted or stream.connection.last_look is not None:
            return
        trial = stream.connection.trial
        if trial is not None and not (trial.is_exact and stream.trail.holds(event.event_id, event.data)):
            return
        ids = (stream.number, str(stream.number))
        if any("method" not in m and m.get("id") in ids for m in messages_of(event.body)):
            self.finish_call(stream.number, by=stream)

    def _is_result(self, stream: Stream, body: Any) -> bool:
        """Whether this is, or holds, the result of the request that the stream belongs to."""
        owed = [self.calls.owed(stream, message) for message in messages_of(body) if "result" in message]
        return stream.call is not None and stream.call in owed

    def _take_owed(self, stream: Stream, held: Sequence[EventReceived]) -> bool:
        """A held answer that a request waits for settles it, whatever the resume is worth."""
        for event in held:
            for message in messages_of(event.body):
                if self.calls.owed(stream, message) is not None:
                    self.calls.take(stream, message)
        return self._streams.get(stream.number) is not stream

    def _take_alone(self, stream: Stream, held: Sequence[EventReceived]) -> bool:
        """A held answer that a request waits for settles it; what else is held, of which nothing was said yet, is
        dropped with that and reported."""
        owed = [self.calls.owed(stream, m) for event in held for m in messages_of(event.body)]
        if stream.call in owed and None in owed:
            self._report_loss(stream, "its answer came, and what is held beside it was not proven", held[0])
        return self._take_owed(stream, held)

    def _break(
        self, stream: Stream, why: str, first: EventReceived | None = None, trial: Trial | None = None
    ) -> None:
        """Never repaired in place: the loss is reported, the cursor dropped, the request reconciled."""
        trial = trial or stream.connection.trial
        stream.connection.trial = None
        stream.move(StreamStep.CONTRADICTED)
        self._cancel_timers(stream)
        if stream.connection.resumed:
            self.out.append(Report(Resumed(stream.name, broken(why))))
        self._report_loss(stream, why, first)
        self._forget_trail(stream)
        if trial is not None and self._take_owed(stream, trial.held):
            return
        if first is not None and self._take_owed(stream, [first]):
            return
        if stream.call is not None:
            self._give_up(stream, why)
            return
        self.out.append(Hangup(stream.connection.number))
        stream.budget.attempts += 1
        stream.move(StreamStep.CUT)
        self._get(stream, self._delay(stream))
