"""The carrier: the GET stream that is a legacy session (2024-11-05 transports, HTTP with SSE).

Its first event says where messages are posted; every message of the server's comes on it. It cannot be resumed:
when it is lost the session is, another GET gives another endpoint, and what was in flight is reconciled. So a
request's POST ends well with its 2xx, and the request then waits for the carrier.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

from .actions import NO_DELAY, CancelTimer, Delay, Hangup, Report, SetTimer
from .aside import Aside
from .classify import BUSY, LONGEST_RETRY_AFTER, is_of_moment
from .endpoint import endpoint_of, shown_origin
from .event_id import IdScheme
from .inputs import Answered, Begun, ConnectionLost, EventReceived, IdleElapsed, Refused, TooLarge
from .ledger import Call, Own, Refusal, wait_of
from .messages import messages_of
from .model import JSON, Generation
from .report import Disconnected, EndpointRefused, Unreachable, UnreadableDropped
from .state import SessionState, StreamState, StreamStep
from .stream import STANDALONE, Stream, StreamKind
from .timer import Timer, TimerKind

_ENDPOINT_SECONDS = 30.0
"""How long a server that is known to be a legacy one may take for its first event."""


@define(eq=False, repr=False)
class Carrying(Aside):
    """Owns the carrier, and what is posted beside it."""

    _endpoint: str | None = field(default=None, init=False, repr=False)
    """Where to post; None until the carrier has said so."""
    _carrier: int = field(default=0, init=False)
    """Which of the endpoints named so far that is; each is a session of its own."""
    _named: int = field(default=0, init=False)
    """Endpoints so far."""
    _base: str = field(default="", init=False, repr=False)
    """Where the carrier was answered."""
    _is_used: bool = field(default=False, init=False)
    """A session was begun on it: another one needs another carrier."""
    _awaiting: dict[int, Stream] = field(factory=dict, init=False)
    """What is to be posted as soon as there is an endpoint."""
    _retry_ms: int | None = field(default=None, init=False)
    """From the last carrier that named one."""
    _failures: int = field(default=0, init=False)
    """Carriers in a row that were lost before a session was open."""
    _pinged_at: float | None = field(default=None, init=False)
    """When the silent carrier's server was last asked for a byte."""
    _ping_accepted: bool = field(default=False, init=False)

    # Opened, and ended.

    def open_carrier(self, delay: Delay = NO_DELAY) -> None:
        """Open the stream, if there is none; what awaits its endpoint is posted then."""
        if STANDALONE in self._streams:
            return
        stream = self._new_stream(STANDALONE, StreamKind.CARRIER, "")
        stream.retry_ms = self._retry_ms
        self._get(stream, Delay(max(delay.attempt, self._failures), stream.retry_ms, delay.at_least))

    def close_carrier(self) -> None:
        """It is not wanted any more."""
        self._endpoint, self._carrier = None, 0
        self._is_used = False
        self._pinged_at = None
        stream = self._streams.get(STANDALONE)
        if stream is not None and stream.kind is StreamKind.CARRIER:
            self._retry_ms = stream.retry_ms
            self.out.append(CancelTimer(stream.timer(TimerKind.ENDPOINT)))
            self._finish(stream)

    def close_standalone(self) -> None:
        stream = self._streams.get(STANDALONE)
        if stream is None or stream.kind is not StreamKind.CARRIER:  # which has an end of its own
            super().close_standalone()

    def leave_session(self, opener: Stream | None = None) -> None:
        if self._is_used or self._endpoint is None:  # else the next session is to begin on it
            self.close_carrier()
        self._abandon("its session was lost")
        self._forget_aside()
        super().leave_session(opener)

    def forget_session(self, opener: Stream) -> None:
        self._failures = 0
        self._forget_aside()
        super().forget_session(opener)

    def _abandon(self, why: str) -> None:
        """What was posted beside a carrier that is no more has no answer to come."""
        posted = [s for s in self._streams.values() if s.legacy and s.connection.carrier not in (0, self._carrier)]
        for stream in filter(self._is_open, posted):
            call = stream.call
            if call is None:
                self._note_given_up(stream, why)
            elif not call.in_flight:
                self._finish(stream)
            elif call.method == "tools/call" and stream.connection.begun and not stream.connection.accepted:
                # If it is refused yet it did not run, and can be sent again; not every server answers at all.
                self.out.append(SetTimer(stream.answer_timer, self.policy.witness_timeout))
            else:
                self._give_up(stream, why)

    def _carrier_failed(
        self,
        stream: Stream,
        why: str,
        refusal: Refusal | None = None,
        *,
        final: bool = False,
        lasts: bool = False,
    ) -> None:
        """It has brought no endpoint: another attempt, as long as somebody awaits it, unless what has failed
        `lasts`. `final`: by the server's word there is none."""
        stream.budget.attempts += 1
        retry_after = wait_of(refusal)
        spent = lasts or stream.budget.is_spent(self.policy.max_attempts) or retry_after > LONGEST_RETRY_AFTER
        says_nothing = refusal is not None and refusal.status in BUSY and not spent
        if self.calls.is_detecting and not says_nothing:
            self.calls.legacy_not_found()
            if not self._still_awaiting():
                self.look_no_more()
                return
        is_awaited = self.calls.is_detecting or (self.calls.insists and self._still_awaiting())
        if final or spent or not is_awaited:
            self.close_carrier()
            calls = self._await_no_more(why)
            if final and self.calls.may_have_moved(refusal.status if refusal else 200):
                self.calls.legacy_gone(calls)
                return
            for call in calls:
                call.unsendable = lasts
                self.calls.unopened(call, f"the stream of its session could not be opened ({why})", refusal)
            return
        for call in filter(None, [awaiting.call for awaiting in self._still_awaiting()]):
            call.met = why
        self.out.append(Report(Unreachable(stream.name, why, stream.budget.attempts)))
        self._get_anew(stream, self._delay(stream, retry_after))

    def _get_anew(self, stream: Stream, delay: Delay) -> None:
        self.out.append(CancelTimer(stream.timer(TimerKind.ENDPOINT)))
        self.out.append(Hangup(stream.connection.number))
        stream.move(StreamStep.CUT)
        self._get(stream, delay)

    @property
    def is_carrier_wanted(self) -> bool:
        return self.has_endpoint or bool(self._still_awaiting())

    @property
    def has_endpoint(self) -> bool:
        """There is a legacy stream, which has said where to post."""
        return self._endpoint is not None

    @property
    def awaiting(self) -> int:
        """Requests that are posted as soon as there is an endpoint."""
        return sum(stream.call is not None for stream in self._still_awaiting())

    def _still_awaiting(self) -> list[Stream]:
        return list(filter(self._is_open, self._awaiting.values()))

    def _is_open(self, stream: Stream) -> bool:
        return self._streams.get(stream.number) is stream

    def _await_no_more(self, why: str) -> list[Call]:
        """The requests that awaited an endpoint; nothing of them was sent."""
        streams = self._still_awaiting()
        self._awaiting.clear()
        for stream in streams:
            if stream.call is None:
                self._note_given_up(stream, why)
            else:
                self._finish(stream)
        return [stream.call for stream in streams if stream.call is not None]

    def _carrier_lost(self, stream: Stream, why: str) -> None:
        if self._endpoint is None:
            self._carrier_failed(stream, why)
            return
        undrained, wait = stream.position.undrained, self._delay(stream).floor
        self.out.append(Report(Disconnected(stream.name, why, undrained, False, wait)))
        self._failures += 1
        self.close_carrier()
        if self.session.state is not SessionState.NEW:
            self.calls.lose_session(f"its stream was lost: {why}")
        self._abandon(f"the stream of its session was lost ({why})")

    # What the shell tells of it.

    def begun(self, told: Begun) -> None:
        super().begun(told)
        stream = self.current(told.stream, told.connection)
        if stream is not None and stream.kind is StreamKind.CARRIER:
            is_asked = self.calls.is_detecting or self.calls.is_remembered
            seconds = self.policy.witness_timeout if is_asked else _ENDPOINT_SECONDS
            self.out.append(SetTimer(stream.timer(TimerKind.ENDPOINT), seconds))

    def answered(self, told: Answered) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None or stream.kind is not StreamKind.CARRIER:
            super().answered(told)
            if stream is not None and stream.method == "initialize" and stream.legacy:
                stream.offered_session_id = told.session_id or self._offered_session_id
        elif not told.is_events:
            self._carrier_failed(stream, "it was answered without events", final=True)
        else:
            stream.connection.opened(told.at)
            stream.offered_session_id = told.session_id
            self._base = told.url or ""
            if stream.state is StreamState.LOST:
                stream.move(StreamStep.ANSWERED)

    @property
    def _offered_session_id(self) -> str | None:
        carrier = self._streams.get(STANDALONE)
        return None if carrier is None else carrier.offered_session_id

    def refused(self, told: Refused) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None or stream.kind is not StreamKind.CARRIER:
            super().refused(told)
            return
        later = is_of_moment(told.status)
        refusal = Refusal(told.status, told.body, told.location, told.retry_after, told.path)
        self._carrier_failed(stream, f"HTTP {told.status}", refusal, final=not later)

    def lost(self, told: ConnectionLost) -> None:
        stream = self.current(told.stream, told.connection)
        is_carrier = stream is not None and stream.kind is StreamKind.CARRIER
        if stream is not None and is_carrier and told.lasts and not stream.connection.answered:
            self._carrier_failed(stream, told.words, lasts=True)
        else:
            super().lost(told)

    def event(self, event: EventReceived) -> None:
        stream = self._streams.get(event.stream)
        if stream is not None and stream.legacy and stream.connection.number == event.connection:
            if stream.kind is StreamKind.CARRIER and self._take_signal(stream, event):
                return
            # Nothing is ever replayed on the same stream: what comes twice there was said twice.
            if stream.trail.is_held_by_another(event.event_id, event.data):
                self._drop_duplicate(stream, event, bool(messages_of(event.body)))
                return
        super().event(event)

    def _take_signal(self, stream: Stream, event: EventReceived) -> bool:
        """If this event is no message, or comes where none may. Returns whether."""
        if event.retry is not None:
            stream.retry_ms = event.retry
        if event.name == "endpoint":
            self._take_endpoint(stream, event.data)
        elif self._endpoint is not None:
            return False
        elif event.data and event.name == "message":
            self._carrier_failed(stream, "its first event is a message, and not an endpoint", final=True)
        return True

    def _take_endpoint(self, stream: Stream, reference: bytes) -> None:
        endpoint, before = endpoint_of(self._base, reference), self._endpoint
        if endpoint is None:
            self.out.append(Report(EndpointRefused(shown_origin(self._base, reference))))
            if before is None:
                self._carrier_failed(stream, "its endpoint is of another origin", final=True)
        elif endpoint != before:
            self._named += 1
            self._endpoint, self._carrier = endpoint, self._named
            if before is None:
                self._post_awaiting(stream)
            else:
                self._named_another(stream)

    def _post_awaiting(self, stream: Stream) -> None:
        self.out.append(CancelTimer(stream.timer(TimerKind.ENDPOINT)))
        if self.calls.is_detecting:
            self.calls.legacy_found()
        awaiting = self._still_awaiting()
        self._awaiting.clear()
        for waiting in awaiting:
            self._post_again(waiting, NO_DELAY)

    def _named_another(self, stream: Stream) -> None:
        """A gateway keeps this stream, and has connected anew behind it: that is another session."""
        why = "its stream has named another endpoint"
        if self.session.state is SessionState.NEW:
            self._carrier_lost(stream, why)  # one that is only tried lasts as long as its stream
            return
        self._is_used = False
        self._pinged_at = None
        self.calls.lose_session(why)
        self._abandon(f"its session was lost: {why}")

    def idle(self, told: IdleElapsed) -> None:
        """Its bytes are all that shows that the carrier stands: a silent one's server is asked for some."""
        stream = self.current(told.stream, told.connection)
        if stream is None or stream.kind is not StreamKind.CARRIER:
            super().idle(told)
        elif self._endpoint is None:
            return  # there is a timer for that
        elif self._is_mute_since_ping(told) and not self._is_at_work:
            self._carrier_lost(stream, "no byte for max_idle, nor for a ping")
        else:
            self._pinged_at, self._ping_accepted = told.at, False
            self.calls.probe()

    def _is_mute_since_ping(self, told: IdleElapsed) -> bool:
        return self._pinged_at is not None and self._ping_accepted and told.since <= self._pinged_at

    @property
    def _is_at_work(self) -> bool:
        """Whether the server has a request that it may answer before it comes to a ping: a child behind a gateway
        does one after the other. That has its deadline, and TCP keepalive finds a dead peer."""
        return any(
            stream.call is not None
            and stream.call.in_flight
            and stream.call.own is not Own.PING
            and stream.connection.carrier == self._carrier
            and stream.connection.begun
            and stream.state is StreamState.OPEN  # else its POST came to nothing
            for stream in self._streams.values()
        )

    def too_large(self, told: TooLarge) -> None:
        """The session goes on where it is known whose answer it is, which would meet the same limit again."""
        carrier = self.current(told.stream, told.connection)
        if carrier is None or carrier.kind is not StreamKind.CARRIER:
            super().too_large(told)
            return
        why = self._too_large("an event")
        if told.answers is not None:
            own = self._streams.get(told.answers)
            if own is not None and own.call is not None and own.connection.carrier == self._carrier:
                self.calls.in_doubt(own.call, why, again=False)
                self._finish(own)
            self.out.append(Report(UnreadableDropped(carrier.name, why)))
        elif told.is_whole:
            # It may be the answer to any of these: to be sent again is to be answered so again.
            for stream in [s for s in self._streams.values() if s.connection.accepted]:
                assert stream.call is not None
                if stream.call.own is None:  # the guard's own are given up with the carrier
                    self.calls.in_doubt(stream.call, why, again=False)
                    self._finish(stream)
            self._carrier_lost(carrier, why)

    def timer(self, timer: Timer, at: float) -> None:
        stream = self.current(timer.stream, timer.connection)
        if timer.kind is not TimerKind.ENDPOINT:
            super().timer(timer, at)
        elif stream is not None:
            # Where a server has moved to streamable HTTP without sessions, a GET may be silent for ever.
            final = self.calls.is_remembered or self.calls.may_have_moved(200)
            self._carrier_failed(stream, "it brought no endpoint in time", final=final)

    # What is posted beside it.

    def _new_stream(self, number: int, kind: StreamKind, method: str) -> Stream:
        stream = super()._new_stream(number, kind, method)
        beside = kind is not StreamKind.STANDALONE and self.session.generation is Generation.LEGACY_SSE
        stream.legacy = kind is StreamKind.CARRIER or beside
        if stream.legacy:
            stream.trail.scheme = IdScheme.OPAQUE
        return stream

    def _get_headers(self, stream: Stream) -> dict[str, str]:
        return {} if stream.kind is StreamKind.CARRIER else super()._get_headers(stream)

    def _post(self, stream: Stream, message: JSON, headers: Mapping[str, str], delay: Delay = NO_DELAY) -> None:
        if stream.call is not None:
            stream.call.legacy = stream.legacy
        if stream.legacy:
            # The host stamps a version as streamable HTTP wants it.
            headers = {name: value for name, value in headers.items() if name != "mcp-protocol-version"}
        super()._post(stream, message, headers, delay)

    def _post_again(self, stream: Stream, delay: Delay) -> None:
        begins_session = stream.legacy and stream.method == "initialize"
        if begins_session and self._is_used:
            self.close_carrier()
            self._abandon("another session was opened")
        if not stream.legacy or self._endpoint is not None:
            self._is_used = self._is_used or begins_session
            super()._post_again(stream, delay)
            if stream.legacy:
                stream.connection.carrier = self._carrier
        else:
            self._new_connection(stream, NO_DELAY)
            self._awaiting[stream.number] = stream
            self.open_carrier(delay)

    def _target(self, stream: Stream) -> str | None:
        return self._endpoint if stream.legacy else None
