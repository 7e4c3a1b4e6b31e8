"""Every stream of one connection: opened, hung up, finished; what was delivered of it, and what is stored."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import define, field

from .actions import NO_DELAY, CancelTimer, Delay, Deliver, Get, Hangup, Post, Report, Save, SetTimer
from .bygone import Bygone
from .connection import Connection
from .inputs import EventReceived
from .ledger import Call, Own, Repeat
from .model import JSON, WAS_ANSWERED, CursorDropped, CursorMoved, Seen, fingerprint
from .policy import GuardPolicy
from .position import Position
from .report import Discontinuity, MaybeRedelivered
from .session import Session
from .state import StreamState, StreamStep
from .stream import STANDALONE, Exact, Stream, StreamKind
from .tasks import RESULT
from .timer import TimerKind
from .trail import Index, Trail
from .trial import Trial

if TYPE_CHECKING:
    from .actions import Action
    from .calls import Calls

_CAP = 10.0
_STANDALONE_CAP = 60.0
_KEPT_TRAILS = 64
MAYBE_REDELIVERED = 512
"""A cursor on disk is at most this many events behind (DESIGN §7): by then the shell tells what was drained."""


@define(eq=False, repr=False)
class Registry:
    """The ground that the judging of streams stands on. Judges nothing itself."""

    policy: GuardPolicy
    session: Session
    out: list[Action]
    calls: Calls = field(init=False)
    index: Index = field(factory=dict, init=False)
    bygone: Bygone = field(factory=Bygone, init=False)
    _streams: dict[int, Stream] = field(factory=dict, init=False)
    _finished: deque[Trail] = field(factory=deque, init=False)
    """Trails of finished streams: the TypeScript reference server replays their events on other streams."""
    _undrained: deque[tuple[Stream | None, int, tuple[Call | Repeat, JSON] | None]] = field(
        factory=deque, init=False
    )
    _connections: int = field(default=0, init=False)

    def post_call(self, call: Call, message: JSON, headers: Mapping[str, str], delay: Delay = NO_DELAY) -> None:
        """Send a request."""
        stream = self._new_stream(call.wire_id, StreamKind.CALL, call.method)
        stream.call = call
        self._post(stream, message, headers, delay)

    def post_note(self, number: int, method: str, message: JSON, headers: Mapping[str, str]) -> int:
        """Send what has no answer: a notification, or the host's answer to a request of the server's."""
        self._post(self._new_stream(number, StreamKind.NOTE, method), message, headers)
        return number

    def open_standalone(self) -> None:
        """Open the stream for what belongs to no request (2025-11-25 transports, Listening)."""
        if STANDALONE in self._streams:
            return
        stream = self._new_stream(STANDALONE, StreamKind.STANDALONE, "")
        self._get(stream, NO_DELAY)

    def close_standalone(self) -> None:
        if (stream := self._streams.get(STANDALONE)) is not None:
            self._finish(stream)

    def finish_call(self, wire_id: int, by: Stream | None = None) -> None:
        """This request has its answer, which came on the stream `by`: nothing more is owed on its own."""
        own = self._streams.get(wire_id)
        if own is not None and own is by:
            self._finish(own, linger=not own.connection.resumed)
        elif own is not None and own.is_unsent:
            self._finish(own)  # who has answered it needs it no more
        elif own is not None:
            self._limit(own)

    def abandon_call(self, wire_id: int) -> None:
        """Nothing of this request may leave, or be read, any more. Its stream may be gone already."""
        if (stream := self._streams.get(wire_id)) is not None:
            self._finish(stream)

    def cancel(self, call: Call) -> bool:
        """Stop resuming for this request; an answer on its present connection may still come.

        Returns whether any of it can have been sent. If not, it never will be: a request that still waits for
        the disk, or for its next attempt, is hung up.
        """
        stream = self._streams.get(call.wire_id)
        if stream is None:
            return True
        sent = stream.was_sent
        if not sent or stream.state is StreamState.LOST or stream.stateless:
            self._hang_up(stream)
        else:
            self._limit(stream)
        return sent

    def inherit(self, number: int, call: Call | None, rows: tuple[Seen, ...], passed: int) -> None:
        """Resume a stream of an earlier process, which has drained so many events after these."""
        kind = StreamKind.STANDALONE if call is None else StreamKind.CALL
        stream = self._new_stream(number, kind, "" if call is None else call.method)
        stream.call = call
        stream.has_opened = True
        stream.trail.restore(rows)
        stream.position = Position.inherited(rows, stream.trail.newest_number, passed)
        stream.move(StreamStep.CUT)
        self._get(stream, NO_DELAY)

    def leave_session(self, opener: Stream | None = None) -> None:
        """The session is lost: nothing of it is opened again. A POST that is being answered still may be."""
        self.close_standalone()
        for stream in list(self._streams.values()):
            # Also where earlier attempts to post it have failed: its state is LOST until it is answered.
            goes_on = stream.call is None or stream.stateless or (stream.is_post and stream.connection.begun)
            if not goes_on and stream is not opener and self._streams.get(stream.number) is stream:
                self._give_up(stream, "its session was lost")

    def forget_session(self, opener: Stream) -> None:
        """A new session begins: nothing of the old one may be matched in it, no cursor sent in it (S13)."""
        for stream in list(self._streams.values()):
            if stream.kind is StreamKind.STANDALONE:
                self._finish(stream)
            elif stream.call is None or stream.stateless:
                continue
            elif stream is not opener and self.session.incarnation and opener.is_host_s:
                self._give_up(stream, "a new session began before it was answered")
            elif stream is not opener:
                stream.trail.leave()
        self.index.clear()
        self.bygone = Bygone()
        self._finished.clear()

    def close(self) -> None:
        """Hang up everything. Cursors on disk stay: whoever comes next goes on from them."""
        for stream in list(self._streams.values()):
            stream.position.is_stored = False
            self._finish(stream)

    def of(self, call: Call) -> Stream | None:
        """The stream of this request."""
        return self._streams.get(call.wire_id)

    def current(self, number: int, connection: int) -> Stream | None:
        """The stream, if this connection still speaks for it."""
        stream = self._streams.get(number)
        return stream if stream is not None and stream.connection.number == connection else None

    def deliver(self, stream: Stream | None, message: JSON, answered: Call | Repeat | None = None) -> None:
        """Hand a message to the host; `answered`: the request that it is the server's answer to."""
        answer = None if answered is None else (answered, message)
        if stream is not None:
            position, row = stream.position, stream.trail.newest_number
            stream.connection.messages += 1
            position.undrained += 1
            self._undrained.append((stream, row, answer))
            before = position.drained_before
            if before is not None and row <= before + MAYBE_REDELIVERED:
                self.out.append(Report(MaybeRedelivered(stream.name, self._shown(stream.trail.cursor))))
        else:
            self._undrained.append((None, 0, answer))
        self.out.append(Deliver(message))

    def untaken(self) -> list[tuple[Call | Repeat, JSON]]:
        """Answers that were delivered, and that the host has not taken."""
        return [answer for _, _, answer in self._undrained if answer is not None]

    def drained(self, count: int) -> None:
        """The host took `count` messages: the cursors on disk may follow (S6)."""
        touched: dict[int, Stream] = {}
        for _ in range(min(count, len(self._undrained))):
            stream, row, answer = self._undrained.popleft()
            if answer is not None:
                self.calls.drained(*answer)
            if stream is not None:
                position = stream.position
                position.undrained -= 1
                position.drained_row = row
                touched[stream.number] = stream
        following = next(((s, row) for s, row, _ in self._undrained if s is not None), None)
        if following is not None and following[0].position.drained_row == following[1]:
            # A batch, half drained: its event counts only with the last message of it.
            following[0].position.drained_row -= 1
        records = tuple(
            moved
            for stream in touched.values()
            if self._streams.get(stream.number) is stream and (moved := self._moved(stream))
        )
        if records:
            self.out.append(Save(records))

    def asked_no_more(self, number: int | None) -> None:
        """The host has answered this question of the server's, or the server has withdrawn it."""
        for stream in self._streams.values():
            if stream.position.ask_no_more(number):
                self._save_cursor(stream)

    def _save_cursor(self, stream: Stream) -> None:
        if (moved := self._moved(stream)) is not None:
            self.out.append(Save((moved,)))

    def _new_stream(self, number: int, kind: StreamKind, method: str) -> Stream:
        trail = Trail(self.index, self.policy.trail_size, self.policy.id_scheme, self.bygone)
        stream = Stream(number, kind, trail, method=method, incarnation=self.session.incarnation)
        self._streams[number] = stream
        return stream

    def _post(self, stream: Stream, message: JSON, headers: Mapping[str, str], delay: Delay = NO_DELAY) -> None:
        stream.message = message
        stream.stateless = self.session.is_stateless(headers)
        if stream.stateless:
            stream.trail.identifies_nothing()
        stream.headers = self.session.stamp(stream.method, headers)
        self._post_again(stream, delay)

    def _post_again(self, stream: Stream, delay: Delay) -> None:
        self._new_connection(stream, delay)
        where, what = (stream.number, stream.connection.number), (stream.message, stream.headers)
        for_request, lasts = stream.call is not None, _lasts(stream.call)
        self.out.append(Post(*where, *what, delay, for_request, lasts, self._target(stream)))

    @abstractmethod
    def _target(self, stream: Stream) -> str | None:
        """Where it is posted, if not to the endpoint itself."""
        ...

    def _get(self, stream: Stream, delay: Delay) -> None:
        """Open by GET: from the resume point if there is one, else afresh."""
        if self._end_if_too_late(stream, delay):
            return
        point = stream.trail.resume_point(exact=stream.exact is not None)
        if point is None:
            self._new_connection(stream, delay)
            self._drop_cursor(stream)
        else:
            last_event_id, witness = point.last_event_id, point.witness
            self._new_connection(stream, delay, last_event_id)
            stream.trail.expect_after(last_event_id)
            stream.connection.trial = Trial(stream.trail, last_event_id, witness, stream.exact is Exact.SILENCE)
        self._order_get(stream)

    def _order_get(self, stream: Stream) -> None:
        connection, headers = stream.connection, self._get_headers(stream)
        if connection.resumed_from is not None:
            headers["last-event-id"] = connection.resumed_from
        for_request, lasts = stream.call is not None, _lasts(stream.call)
        self.out.append(Get(stream.number, connection.number, headers, connection.delay, for_request, lasts))

    def _get_headers(self, stream: Stream) -> dict[str, str]:
        if stream.method != "initialize":
            return self.session.headers("")
        # Its stream belongs to the session it offers, of which nothing else is known yet.
        return {"mcp-session-id": stream.offered_session_id} if stream.offered_session_id else {}

    def _new_connection(self, stream: Stream, delay: Delay, resumed_from: str | None = None) -> None:
        self._connections += 1
        stream.connection = Connection(self._connections, delay, resumed_from)

    def _finish(self, stream: Stream, *, linger: bool = False) -> None:
        stream.move(StreamStep.FINISHED)
        self._streams.pop(stream.number, None)
        self._cancel_timers(stream)
        self._drop_stored(stream)
        self.out.append(Hangup(stream.connection.number, linger))
        if stream.trail.rows:
            stream.trail.shrink()
            self._finished.append(stream.trail)
            if len(self._finished) > _KEPT_TRAILS:
                self._finished.popleft().let_go()

    def _hang_up(self, stream: Stream) -> None:
        """End a stream whose answer is not awaited any more."""
        self._signal_cancel(stream)
        self._finish(stream)

    def _signal_cancel(self, stream: Stream) -> None:
        """Without a session the end of a stream is what cancels (2026-07-28 transports, Cancellation)."""
        if stream.stateless and stream.call is not None and stream.was_sent:
            stream.call.cancelled = True

    def _give_up(self, stream: Stream, why: str) -> None:
        assert stream.call is not None
        self._signal_cancel(stream)
        if self._misses(stream) or stream.connection.holds:
            self._report_loss(stream, why)
        if stream.unreadable:
            self.calls.unreadable(stream.call, None, why)
        elif stream.was_sent:
            self.calls.lost(stream.call, why)
        else:
            self.calls.unsent(stream.call, why)
        self._finish(stream)

    def _misses(self, stream: Stream) -> bool:
        """Whether its answer came on another stream, and what stands before that may be in the log, still."""
        call = stream.call
        answered = call is not None and call.outcome in WAS_ANSWERED and not call.cancelled
        return answered and stream.trail.cursor is not None

    def _cancel_timers(self, stream: Stream) -> None:
        if stream.connection.resumed or stream.connection.limited:
            for kind in (TimerKind.WITNESS, TimerKind.RECHECK, TimerKind.UNWANTED):
                self.out.append(CancelTimer(stream.timer(kind)))

    def _limit(self, stream: Stream) -> None:
        """Nobody waits for it: its connection goes on for `max_idle` and no longer, whatever comes."""
        connection = stream.connection
        if not connection.begun:
            self._end_if_too_late(stream, connection.delay)
        elif not connection.limited:
            connection.limited = True
            self.out.append(SetTimer(stream.timer(TimerKind.UNWANTED), self.policy.max_idle))

    def _end_if_too_late(self, stream: Stream, delay: Delay) -> bool:
        """If nobody waits for it, and the server wants it later than it may last. Returns whether."""
        too_late = stream.is_unwanted and delay.floor > self.policy.max_idle
        if too_late:
            self._give_up(stream, "nobody waits for it, and the server wants it resumed later than max_idle")
        return too_late

    def _delay(self, stream: Stream, at_least: float = 0.0) -> Delay:
        cap = _STANDALONE_CAP if stream.kind is StreamKind.STANDALONE else _CAP
        return Delay(stream.budget.attempt, stream.retry_ms, at_least, cap)

    def _moved(self, stream: Stream) -> CursorMoved | None:
        """How far the host has come on this stream, as it is stored; None if nothing is."""
        trail = stream.trail
        if stream.legacy or not trail.identifies or trail.cursor is None:
            return None
        rows, passed = stream.position.follow(trail, self._undrained)
        return CursorMoved(stream.incarnation, stream.name, rows, passed) if rows else None

    def _wait_for_others(self, stream: Stream) -> None:
        """The newest event of this stream was delivered as another's, and the host may not have taken it."""
        if self._undrained:
            stream.position.wait_for(self._undrained[-1], stream.trail, self._undrained)

    def _report_loss(self, stream: Stream, why: str, first: EventReceived | None = None) -> None:
        self.out.append(Report(self._loss(stream, why, first)))

    def _loss(self, stream: Stream, why: str, first: EventReceived | None) -> Discontinuity:
        last_good = self._shown(stream.trail.cursor) if stream.trail.cursor else None
        first_seen = self._shown(first.event_id) if first is not None and first.event_id else None
        return Discontinuity(stream.name, why, last_good, first_seen)

    def _forget_trail(self, stream: Stream) -> None:
        """The server's log may be another one: what comes under an ID that we know may be new."""
        stream.trail.clear()
        self._drop_cursor(stream)

    def _drop_cursor(self, stream: Stream) -> None:
        stream.trail.begin_anew()
        stream.exact = None
        self._drop_stored(stream)

    def _drop_stored(self, stream: Stream) -> None:
        if stream.position.is_stored:
            stream.position.forget_stored()
            self.out.append(Save((CursorDropped(stream.incarnation, stream.name),)))

    def _shown(self, event_id: str | None) -> str:
        return fingerprint(event_id, self.session.salt)


def _lasts(call: Call | None) -> bool:  # its answer is long in coming, and holds nothing of the host's up
    return call is not None and (call.is_subscription or (call.own is Own.TASK and call.method == RESULT))
