"""Streams and their continuity: placing events, resuming what was cut, and judging what a resume is worth."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field

from .actions import (
    NO_DELAY,
    CancelTimer,
    Delay,
    Deliver,
    Get,
    Hangup,
    Post,
    Report,
    Save,
    SetTimer,
    Timer,
    TimerKind,
)
from .calls import Taken
from .inputs import (
    UNREADABLE,
    Answered,
    BodyReceived,
    ConnectionLost,
    EventReceived,
    IdleElapsed,
    Refused,
    TooLarge,
)
from .ledger import Call
from .messages import messages_of
from .model import JSON, CursorDropped, CursorMoved, Evidence, Grade, fingerprint
from .policy import GuardPolicy
from .report import (
    Disconnected,
    Discontinuity,
    DuplicateDropped,
    NotificationLost,
    RefreshSuggested,
    Resumed,
    StandaloneUnavailable,
    UnreadableDropped,
)
from .session import Session
from .state import SessionState, StreamState, StreamStep
from .stream import STANDALONE, Stream, StreamKind
from .trail import Index, Placement, Trail
from .trial import PROVEN, WITNESS_MISSING, Judged, Trial, Weight, broken

if TYPE_CHECKING:
    from .actions import Action
    from .calls import Calls

_CAP = 10.0
_STANDALONE_CAP = 60.0
_STEADY_SECONDS = 10.0
"""A standalone connection that lived this long was a good one: its delay starts over."""
_RECHECK_CAP = 60.0
_REFRESH_EVERY = 60.0
_FRUITLESS_RESUMES = 5
_KEPT_TRAILS = 64
_SERVER_ERRORS = 3
_UNWITNESSED_ENDS = 4
_WAIT_STATUSES = frozenset({401, 403, 408, 409, 425, 429})
_NO_BODY_STATUSES = frozenset({405, 406, 501})

_LISTS = ("tools", "prompts", "resources")


@define(eq=False, repr=False)
class Streams:
    """Owns every stream of one connection of the host's."""

    policy: GuardPolicy
    session: Session
    out: list[Action]
    calls: Calls = field(init=False)
    index: Index = field(factory=dict, init=False)
    _streams: dict[int, Stream] = field(factory=dict, init=False)
    _finished: deque[Trail] = field(factory=deque, init=False)
    """Trails of finished streams: the TypeScript reference server replays their events on other streams."""
    _undrained: deque[tuple[Stream | None, int]] = field(factory=deque, init=False)
    _connections: int = field(default=0, init=False)
    _refreshed_at: float | None = field(default=None, init=False)
    _ping: Call | None = field(default=None, init=False)

    # Opening and finishing.

    def post_call(self, call: Call, message: JSON, headers: Mapping[str, str]) -> None:
        """Send a request."""
        stream = self._new_stream(call.wire_id, StreamKind.CALL, call.method)
        stream.call = call
        self._post(stream, message, headers)

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
        stream = self._streams.get(STANDALONE)
        if stream is not None:
            self._finish(stream)

    def finish_call(self, wire_id: int, by: Stream) -> None:
        """This request has its answer, which came on the stream `by`: nothing more is owed on its own."""
        if self._streams.get(wire_id) is by:
            self._finish(by, linger=not by.resumed)
        # Else a replay elsewhere was faster. What its own stream still brings is not lost: that ends by itself.

    def abandon_call(self, wire_id: int) -> None:
        """Nothing of this request may leave, or be read, any more."""
        self._finish(self._streams[wire_id])

    def cancel(self, call: Call) -> None:
        """Stop resuming for this request; an answer on its present connection may still come."""
        stream = self._streams.get(call.wire_id)
        if stream is not None and (stream.state is StreamState.LOST or call.stateless):
            self._finish(stream)

    def forget_session(self, opener: Stream) -> None:
        """A new session begins: nothing of the old one may be matched in it, no cursor sent in it (S13)."""
        for stream in list(self._streams.values()):
            if stream.kind is StreamKind.STANDALONE:
                self._finish(stream)
            elif stream.call is not None and stream is not opener and self.session.incarnation:
                self._give_up(stream, "a new session began before it was answered")
        self.index.clear()
        self._finished.clear()

    def close(self) -> None:
        for stream in list(self._streams.values()):
            self._finish(stream)

    def _new_stream(self, number: int, kind: StreamKind, method: str) -> Stream:
        trail = Trail(self.index, self.policy.trail_size, self.policy.id_scheme)
        stream = Stream(number, kind, trail, method=method)
        self._streams[number] = stream
        return stream

    def _post(self, stream: Stream, message: JSON, headers: Mapping[str, str]) -> None:
        stream.message = message
        stream.headers = {**self.session.headers(stream.method), **headers}
        self._post_again(stream, NO_DELAY)

    def _post_again(self, stream: Stream, delay: Delay) -> None:
        self._new_connection(stream)
        self.out.append(Post(stream.number, stream.connection, stream.message, stream.headers, delay))

    def _get(self, stream: Stream, delay: Delay) -> None:
        """Open by GET: from the resume point if there is one, else afresh."""
        point = stream.trail.resume_point(exact=stream.exact)
        self._new_connection(stream)
        stream.resumed = point is not None
        headers = self.session.headers("")
        if stream.method == "initialize":
            # Its stream belongs to the session it offers, of which nothing else is known yet.
            headers = {"mcp-session-id": stream.offered_session_id} if stream.offered_session_id else {}
        if point is None:
            self._drop_cursor(stream)
        else:
            headers["last-event-id"] = point.last_event_id
            stream.trial = Trial(stream.trail, point.last_event_id, point.witness, stream.after_silence)
        last = point.last_event_id if point else None
        self.out.append(Get(stream.number, stream.connection, headers, delay, last))

    def _new_connection(self, stream: Stream) -> None:
        self._connections += 1
        stream.connection = self._connections
        stream.answered = stream.witnessed = stream.progressed = False
        stream.opened_at = stream.trial = None
        stream.messages_before = stream.messages

    def _finish(self, stream: Stream, *, linger: bool = False) -> None:
        stream.move(StreamStep.FINISHED)
        self._streams.pop(stream.number, None)
        self._cancel_timers(stream)
        self._drop_stored(stream)
        self.out.append(Hangup(stream.connection, linger))
        if stream.trail.rows:
            self._finished.append(stream.trail)
            if len(self._finished) > _KEPT_TRAILS:
                self._finished.popleft().clear()

    def _cancel_timers(self, stream: Stream) -> None:
        if stream.resumed:
            for kind in (TimerKind.WITNESS, TimerKind.RECHECK):
                self.out.append(CancelTimer(Timer(kind, stream.number, stream.connection)))

    # What the shell tells.

    def current(self, number: int, connection: int) -> Stream | None:
        """The stream, if this connection still speaks for it."""
        stream = self._streams.get(number)
        return stream if stream is not None and stream.connection == connection else None

    def answered(self, told: Answered) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None or self._is_another_session(stream, told.session_id):
            return
        stream.answered = True
        stream.opened_at = told.at
        if stream.kind is StreamKind.NOTE:
            self._note_taken(stream)
        elif stream.kind is StreamKind.CALL and not stream.resumed:
            stream.offered_session_id = told.session_id
            if stream.state is StreamState.LOST:
                stream.move(StreamStep.ANSWERED)
        elif not told.is_events:
            self._refused_get(stream, told.status, None, None)
        elif told.resumed is False and stream.resumed:
            self._break(stream, "the server says resumed: false")
        elif stream.resumed:
            self._begin_trial(stream, told)
        else:
            self._standalone_opened(stream, told.at)

    def body(self, told: BodyReceived) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None or stream.call is None:
            return
        for message in messages_of(told.body):
            self.calls.take(stream, message, direct=True)
        if told.body is None:
            self.calls.in_doubt(stream.call, "the server accepted the request without an answer")
        else:
            self.calls.in_doubt(stream.call, "the answer could not be read")
        if self.current(told.stream, told.connection) is not None:
            self._finish(stream, linger=True)

    def refused(self, told: Refused) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None or self._is_another_session(stream, told.session_id):
            return
        stream.answered = True
        if stream.kind is StreamKind.NOTE:
            self._note_refused(stream, told)
        elif stream.kind is StreamKind.CALL and not stream.resumed:
            assert stream.call is not None
            sent = "mcp-session-id" in stream.headers
            self.calls.refused(stream.call, told.status, told.body, told.location, sent)
            self._finish(stream, linger=True)
        else:
            self._refused_get(stream, told.status, told.body, told.retry_after)

    def event(self, event: EventReceived) -> None:
        stream = self._streams.get(event.stream)
        if stream is None or stream.connection != event.connection:
            return
        if event.retry is not None:
            stream.retry_ms = event.retry
        if event.resets_id:
            stream.trail.forget_cursor()
            self._drop_stored(stream)
        if event.name == "resumed":
            self._resumed_event(stream, event)
        elif stream.trial is not None:
            self._weigh(stream, stream.trial, event)
        else:
            self._place(stream, event)

    def lost(self, told: ConnectionLost) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None:
            return
        if stream.kind is StreamKind.NOTE:
            self._note_lost(stream, told)
        elif stream.kind is StreamKind.CALL and not stream.resumed and not told.written:
            self._not_written(stream, told.why)
        else:
            self._cut(stream, told.why, told.at, clean=told.clean)

    def too_large(self, told: TooLarge) -> None:
        """Reading it again would meet the same limit, so this is never resumed."""
        stream = self.current(told.stream, told.connection)
        if stream is None:
            return
        why = f"an answer larger than max_event_size ({told.limit} bytes)"
        if stream.call is not None:
            self.calls.in_doubt(stream.call, why)
        if stream.kind is StreamKind.STANDALONE:
            self._break(stream, why)
        else:
            self._finish(stream)

    def idle(self, told: IdleElapsed) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None or stream.kind is StreamKind.NOTE:
            return
        if stream.trail.cursor is not None or (stream.call is not None and not stream.call.in_flight):
            self.out.append(Hangup(stream.connection))
            self._cut(stream, "no byte for max_idle", told.at, clean=False)
        elif stream.answered or stream.kind is StreamKind.CALL:
            self._send_ping()
        else:
            self.out.append(Hangup(stream.connection))
            self._cut(stream, "no answer for max_idle", told.at, clean=False)

    def timer(self, timer: Timer, at: float) -> None:
        stream = self.current(timer.stream, timer.connection)
        if stream is None:
            return
        if timer.kind is TimerKind.WITNESS:
            self._witness_overdue(stream)
        else:
            self._recheck(stream)

    def drained(self, count: int) -> None:
        """The host took `count` messages: the cursors on disk may follow (S6)."""
        touched: dict[int, Stream] = {}
        for _ in range(min(count, len(self._undrained))):
            stream, row = self._undrained.popleft()
            if stream is not None:
                stream.undrained -= 1
                stream.drained_row = row
                touched[stream.number] = stream
        following = next(((s, row) for s, row in self._undrained if s is not None), None)
        if following is not None and following[0].drained_row == following[1]:
            # A batch, half drained: its event counts only with the last message of it.
            following[0].drained_row -= 1
        records = tuple(
            CursorMoved(self.session.incarnation, stream.name, rows)
            for stream in touched.values()
            if self._streams.get(stream.number) is stream and (rows := self._storable(stream))
        )
        if records:
            self.out.append(Save(records))

    def deliver(self, stream: Stream | None, message: JSON) -> None:
        """Hand a message to the host."""
        if stream is not None:
            stream.messages += 1
            stream.undrained += 1
            self._undrained.append((stream, stream.trail.newest_number))
        else:
            self._undrained.append((None, 0))
        self.out.append(Deliver(message))

    def ping_over(self, answered: bool) -> None:
        """Our ping has its answer, or will have none."""
        self._ping = None
        if not answered:
            return
        for stream in list(self._streams.values()):
            if stream.server_errors >= _SERVER_ERRORS and stream.resumed:
                self._break(stream, f"{stream.server_errors} server errors to a resume while a ping is answered")

    # Placing events.

    def _place(self, stream: Stream, event: EventReceived) -> None:
        messages = messages_of(event.body)
        carried = bool(messages)
        trail = stream.trail
        if event.event_id is None and not trail.rows:
            placement = Placement.UNKNOWN
        elif event.event_id is not None and event.event_id == self.session.session_id:
            placement = Placement.AMBIGUOUS
        else:
            placement = trail.place(event.event_id, event.data, carried, event.connection)
        if placement is Placement.DUPLICATE:
            self._drop_duplicate(stream, event, carried)
            return
        if placement is Placement.GAP or placement is Placement.CONFLICT:
            self._break(stream, placement.value, event)
            return
        if placement is Placement.AMBIGUOUS:
            trail.identifies_nothing()
            self._drop_stored(stream)
        if not stream.progressed and (carried or placement is Placement.NEXT):
            stream.progress()
        if event.body is UNREADABLE:
            self.out.append(Report(UnreadableDropped(stream.name, "not JSON")))
        if event.name != "message":
            return
        for message in messages:
            taken = self.calls.take(stream, message, direct=not stream.resumed)
            if taken is Taken.ORPHAN and stream.doubtful and stream.state is StreamState.OPEN:
                self._break(stream, "a message that belongs to no request of this session", event)
                return

    def _drop_duplicate(self, stream: Stream, event: EventReceived, carried: bool) -> None:
        if carried:
            self.out.append(Report(DuplicateDropped(stream.name, self._shown(event.event_id))))

    def _storable(self, stream: Stream) -> Any:
        if not stream.trail.identifies or stream.trail.cursor is None:
            return ()
        up_to = stream.drained_row if stream.undrained else stream.trail.newest_number
        rows = stream.trail.stored_rows(up_to)
        stream.stored = stream.stored or bool(rows)
        return rows

    # Cut, and resumed.

    def _cut(self, stream: Stream, why: str, at: float, *, clean: bool) -> None:
        cursor = stream.trail.cursor
        self._cancel_timers(stream)
        self.out.append(Report(Disconnected(stream.name, why, stream.undrained, cursor is not None)))
        trial, stream.trial = stream.trial, None
        on_trial = trial is not None and stream.state is StreamState.ON_TRIAL
        if trial is not None and on_trial and self._trial_cut(stream, trial, clean=clean):
            return
        self._account(stream, at)
        call = stream.call
        if call is None:
            stream.move(StreamStep.CUT)
            self._get(stream, self._delay(stream))
        elif not call.in_flight:
            self._finish(stream)
        elif cursor is None:
            self._give_up(stream, f"its connection was lost and cannot be resumed ({why})")
        elif stream.attempts > self.policy.max_attempts:
            self._give_up(stream, f"its stream could not be opened again ({why})")
        elif self._is_fruitless(stream, at):
            self._give_up(stream, "resumes of its stream bring nothing new")
        else:
            stream.move(StreamStep.CUT)
            self._get(stream, self._delay(stream))

    def _trial_cut(self, stream: Stream, trial: Trial, *, clean: bool) -> bool:
        """The connection ended before the trial did. Returns whether that ended the stream, too."""
        if trial.held:
            stream.unwitnessed += _UNWITNESSED_ENDS if clean else 1
            if stream.unwitnessed >= _UNWITNESSED_ENDS or self._holds_answer(stream, trial):
                self._break(stream, "the stream ended with unknown events and no witness", trial.held[0], trial)
                return True
            self._take_owed(stream, trial)
            return False
        if not clean:
            return False
        if trial.witness is not None:
            stream.exact = stream.after_silence = True
            return False
        if not trial.after_silence:
            return False
        self._judge(stream, trial, Judged(WITNESS_MISSING, fits=False), None)
        return self._streams.get(stream.number) is not stream

    def _holds_answer(self, stream: Stream, trial: Trial) -> bool:
        """Whether the answer to this very request is held: then there will be no other resume to prove."""
        messages = (m for event in trial.held for m in messages_of(event.body))
        return stream.call is not None and any(self.calls.owed(stream, m) is stream.call for m in messages)

    def _take_owed(self, stream: Stream, trial: Trial) -> bool:
        """A held answer that a request waits for settles it, whatever the resume is worth."""
        for event in trial.held:
            for message in messages_of(event.body):
                if self.calls.owed(stream, message) is not None:
                    self.calls.take(stream, message)
        return self._streams.get(stream.number) is not stream

    def _account(self, stream: Stream, at: float) -> None:
        """What the connection that just ended says about opening another."""
        if stream.messages != stream.messages_before or stream.retry_ms:
            stream.hasty = 0
        elif stream.resumed:
            stream.hasty += 1
        if stream.kind is StreamKind.STANDALONE:
            lived = stream.opened_at is not None and at - stream.opened_at >= _STEADY_SECONDS
            stream.attempts = 0 if lived or stream.progressed else stream.attempts + 1
            stream.hasty = 0 if lived else stream.hasty
        elif not stream.answered:
            stream.attempts += 1
        elif stream.resumed and not stream.progressed:
            stream.barren += 1
            if not stream.witnessed:
                stream.fruitless += 1
                stream.fruitless_since = at if stream.fruitless_since is None else stream.fruitless_since

    def _is_fruitless(self, stream: Stream, at: float) -> bool:
        since = stream.fruitless_since
        return (
            stream.fruitless >= _FRUITLESS_RESUMES and since is not None and at - since >= self.policy.settle_after
        )

    def _delay(self, stream: Stream, at_least: float = 0.0) -> Delay:
        cap = _STANDALONE_CAP if stream.kind is StreamKind.STANDALONE else _CAP
        return Delay(max(stream.attempts, stream.barren, stream.hasty), stream.retry_ms, at_least, cap)

    def _give_up(self, stream: Stream, why: str) -> None:
        assert stream.call is not None
        self.calls.in_doubt(stream.call, why)
        self._finish(stream)

    def _not_written(self, stream: Stream, why: str) -> None:
        """Nothing of this request has left: it is safe to try again."""
        assert stream.call is not None
        stream.attempts += 1
        if not stream.call.in_flight:
            self._finish(stream)
        elif stream.attempts > self.policy.max_attempts:
            self.calls.not_executed(stream.call, "wire", why)
            self._finish(stream)
        else:
            stream.move(StreamStep.CUT)
            self._post_again(stream, self._delay(stream))

    def _refused_get(self, stream: Stream, status: int, body: Any, retry_after: float | None) -> None:
        """A GET drew a status: the stream alone is touched, never the session or a POST."""
        if stream.kind is StreamKind.STANDALONE and not stream.resumed and _is_final(stream, status):
            self.out.append(Report(StandaloneUnavailable(f"HTTP {status}")))
            self._finish(stream)
            return
        if stream.resumed and (status == 410 or (status == 409 and _is_resume_gap(body))):
            self._break(stream, f"the server reports a gap (HTTP {status})")
            return
        if status >= 500:
            self._server_error(stream)
        elif stream.resumed and status >= 400 and status not in _WAIT_STATUSES:
            self._resume_refused(stream, status)
            return
        stream.attempts += 1
        if stream.call is not None and stream.attempts > self.policy.max_attempts:
            self._give_up(stream, f"its stream could not be resumed (HTTP {status})")
            return
        self._reopen(stream, self._delay(stream, retry_after or 0.0))

    def _resume_refused(self, stream: Stream, status: int) -> None:
        """Refused for good: once more with the exact cursor, which a server may still hold."""
        if not stream.exact and stream.trial is not None and not stream.trial.is_exact:
            stream.exact = True
            self._reopen(stream, self._delay(stream))
        elif status in _NO_BODY_STATUSES and stream.call is not None:
            self._give_up(stream, f"the server resumes no streams (HTTP {status})")
        else:
            self._break(stream, f"the resume was refused (HTTP {status})")

    def _server_error(self, stream: Stream) -> None:
        stream.server_errors += 1
        if stream.resumed and stream.server_errors >= _SERVER_ERRORS:
            self._send_ping()

    def _reopen(self, stream: Stream, delay: Delay) -> None:
        """Close the present connection and open another for the same stream."""
        call = stream.call
        if call is not None and (stream.trail.cursor is None or not call.in_flight):
            # A GET without a cursor would open another stream; a cancelled request is not resumed.
            self._give_up(stream, "its stream has no cursor any more")
            return
        self._cancel_timers(stream)
        self.out.append(Hangup(stream.connection))
        stream.move(StreamStep.CUT)
        self._get(stream, delay)

    # On trial.

    def _begin_trial(self, stream: Stream, told: Answered) -> None:
        trial = stream.trial
        assert trial is not None
        stream.move(StreamStep.RESUMED)
        if told.resumed and trial.is_exact:
            self._judge(
                stream,
                trial,
                Judged(Evidence(Grade.CONSISTENT, "the server says resumed: true"), False),
                None,
            )
            return
        timer = Timer(TimerKind.WITNESS, stream.number, stream.connection)
        self.out.append(SetTimer(timer, self.policy.witness_timeout))

    def _resumed_event(self, stream: Stream, event: EventReceived) -> None:
        body = event.body
        if not isinstance(body, dict) or stream.trial is None:
            return
        if body.get("resumed") is False:
            self._break(stream, "the server says resumed: false")
        elif body.get("resumed") is True and stream.trial.is_exact:
            evidence = Evidence(Grade.CONSISTENT, "the server says resumed: true")
            self._judge(stream, stream.trial, Judged(evidence, fits=False), None)

    def _weigh(self, stream: Stream, trial: Trial, event: EventReceived) -> None:
        carried = bool(messages_of(event.body)) and event.name == "message"
        verdict = trial.weigh(event, carried)
        if isinstance(verdict, Judged):
            if verdict.evidence is PROVEN:
                self._drop_duplicate(stream, event, carried)
            self._judge(stream, trial, verdict, event)
        elif verdict is Weight.HOLD:
            trial.hold(event)
            if len(trial.held) > self.policy.max_held or trial.held_bytes > 2 * self.policy.max_event_size:
                self._break(stream, f"no witness among {len(trial.held)} events", trial.held[0], trial)
        elif carried:
            self._drop_duplicate(stream, event, carried)
        elif event.event_id is not None and event.event_id not in self.index:
            # Progress, but no cursor: a server may prime before its replay, and what it mints then stands in
            # its log after what it is about to replay.
            stream.progress()

    def _judge(self, stream: Stream, trial: Trial, judged: Judged, event: EventReceived | None) -> None:
        """End a trial."""
        evidence = judged.evidence
        if evidence.grade is Grade.BROKEN:
            self._break(stream, evidence.why, event, trial)
            return
        connection = stream.connection
        stream.trial = None
        stream.move(StreamStep.JUDGED)
        self.out.append(CancelTimer(Timer(TimerKind.WITNESS, stream.number, stream.connection)))
        self.out.append(Report(Resumed(stream.name, evidence)))
        if evidence == WITNESS_MISSING:
            # The witness is the event that a server with our log cannot but send (S4).
            self._report_loss(stream, evidence.why, event)
            stream.no_longer_exact()
        stream.doubtful = evidence.grade is Grade.UNVERIFIED
        if evidence is PROVEN:
            self._proven(stream)
        elif stream.kind is StreamKind.STANDALONE:
            self._drop_cursor(stream)
            self._refresh(stream.opened_at or 0.0)
        elif evidence == WITNESS_MISSING and self.policy.on_unverified == "settle":
            self._settle_unverified(stream, trial, event)
            return
        since = stream.trail.newest_number
        fitting = [*trial.held, event] if event is not None and judged.fits else trial.held
        for held in fitting:
            # One that breaks the stream, or finishes it, is the last of its connection.
            if self.current(stream.number, connection) is not stream:
                return
            self._place(stream, held)
        if trial.held and trial.witness is not None and evidence is PROVEN:
            stream.trail.came_before(trial.witness, since)
        self._arm_recheck(stream)

    def _proven(self, stream: Stream) -> None:
        stream.no_longer_exact()
        stream.witnessed = True
        stream.attempts = stream.fruitless = stream.unwitnessed = stream.server_errors = 0
        stream.fruitless_since = None
        stream.trail.replay_expected()

    def _settle_unverified(self, stream: Stream, trial: Trial, event: EventReceived | None) -> None:
        if event is not None:
            trial.held.append(event)
        if not self._take_owed(stream, trial):
            self._give_up(stream, "its stream came back without the event that would prove it is the same")

    def _witness_overdue(self, stream: Stream) -> None:
        trial = stream.trial
        if trial is None:
            return
        if trial.held:
            self._break(stream, "unknown events and no witness", trial.held[0], trial)
        elif trial.witness is not None:
            stream.exact = stream.after_silence = True
            self._reopen(stream, Delay(0, stream.retry_ms))
        else:
            self._judge(stream, trial, Judged(trial.unproven, fits=False), None)

    def _arm_recheck(self, stream: Stream) -> None:
        """Servers lose what falls between replay and live tail: look again if nothing comes."""
        if self._streams.get(stream.number) is not stream or stream.call is None or not stream.resumed:
            return
        stream.recheck_mark = stream.messages
        seconds = min(self.policy.recheck * 2**stream.rechecks, max(_RECHECK_CAP, self.policy.recheck))
        seconds = max(seconds, (stream.retry_ms or 0) / 1000)
        self.out.append(SetTimer(Timer(TimerKind.RECHECK, stream.number, stream.connection), seconds))

    def _recheck(self, stream: Stream) -> None:
        waits = stream.call is not None and stream.call.in_flight
        if stream.state is not StreamState.OPEN or stream.trail.cursor is None or not waits:
            return
        if stream.messages != stream.recheck_mark:
            stream.rechecks = 0
            self._arm_recheck(stream)
            return
        stream.rechecks = min(stream.rechecks + 1, 8)
        self._reopen(stream, NO_DELAY)

    # Broken.

    def _break(
        self, stream: Stream, why: str, first: EventReceived | None = None, trial: Trial | None = None
    ) -> None:
        """Never repaired in place: the loss is reported, the cursor dropped, the request reconciled."""
        trial = trial or stream.trial
        stream.trial = None
        stream.move(StreamStep.CONTRADICTED)
        self._cancel_timers(stream)
        if stream.resumed:
            self.out.append(Report(Resumed(stream.name, broken(why))))
        self._report_loss(stream, why, first)
        self._drop_cursor(stream)
        if trial is not None and self._take_owed(stream, trial):
            return
        if first is not None and trial is None and self._take_first(stream, first):
            return
        if stream.call is not None:
            self._give_up(stream, why)
            return
        self.out.append(Hangup(stream.connection))
        stream.attempts += 1
        stream.move(StreamStep.CUT)
        self._get(stream, self._delay(stream))

    def _report_loss(self, stream: Stream, why: str, first: EventReceived | None = None) -> None:
        last_good = self._shown(stream.trail.cursor) if stream.trail.cursor else None
        first_seen = self._shown(first.event_id) if first is not None and first.event_id else None
        self.out.append(Report(Discontinuity(stream.name, why, last_good, first_seen)))

    def _take_first(self, stream: Stream, first: EventReceived) -> bool:
        return self._take_owed(stream, Trial(stream.trail, "", None, held=[first]))

    def _is_another_session(self, stream: Stream, session_id: str | None) -> bool:
        """Whether an answer names another session than ours; an absent name says nothing."""
        initial = stream.method == "initialize"
        known = stream.offered_session_id if initial else self.session.session_id
        if known is None or session_id is None or session_id == known or (initial and not stream.resumed):
            return False
        why = "the server answered under another session ID"
        if stream.kind is StreamKind.NOTE:
            self._finish(stream)
        elif stream.kind is StreamKind.CALL and not stream.resumed:
            # The answer to our own POST may still follow, and an answer is stronger than any grade.
            self.out.append(Report(Discontinuity(stream.name, why, None, None)))
            self.calls.lose_session(why)
            return False
        else:
            self._break_session(stream, why)
        self.calls.lose_session(why)
        return True

    def _break_session(self, stream: Stream, why: str) -> None:
        if stream.call is not None:
            self._break(stream, why)
            return
        if stream.resumed:
            self.out.append(Report(Resumed(stream.name, broken(why))))
        self._report_loss(stream, why)
        self._finish(stream)

    def _drop_cursor(self, stream: Stream) -> None:
        stream.trail.clear()
        stream.no_longer_exact()
        self._drop_stored(stream)

    def _drop_stored(self, stream: Stream) -> None:
        if stream.stored:
            stream.stored = False
            self.out.append(Save((CursorDropped(self.session.incarnation, stream.name),)))

    # The standalone stream, notes and pings.

    def _standalone_opened(self, stream: Stream, at: float) -> None:
        if stream.state is StreamState.LOST:
            stream.move(StreamStep.ANSWERED)
            self._refresh(at)

    def refresh_due(self, at: float) -> None:
        """A refresh that had to wait is due, unless the session is gone meanwhile."""
        if self.session.state is SessionState.LIVE:
            self._refresh(at)

    def _refresh(self, at: float) -> None:
        """Tell the host to read its lists again: at most once a minute; one that comes too soon waits."""
        since = at - self._refreshed_at if self._refreshed_at is not None else _REFRESH_EVERY
        if since < _REFRESH_EVERY:
            self.out.append(SetTimer(Timer(TimerKind.REFRESH, STANDALONE), _REFRESH_EVERY - since))
            return
        self._refreshed_at = at
        sent = [
            {"jsonrpc": "2.0", "method": f"notifications/{name}/list_changed"}
            for name in _LISTS
            if name in self.session.capabilities
        ]
        for uri in sorted(self.calls.subscriptions):
            params = {"uri": uri}
            sent.append({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params})  # type: ignore[dict-item]
        for message in sent:
            self.deliver(None, message)
        if sent:
            self.out.append(Report(RefreshSuggested(tuple(m["method"] for m in sent))))

    def _note_taken(self, stream: Stream) -> None:
        self._finish(stream, linger=True)
        self.calls.confirmed(stream.number)

    def _note_refused(self, stream: Stream, told: Refused) -> None:
        self.out.append(Report(NotificationLost(stream.method, f"HTTP {told.status}")))
        self._finish(stream, linger=True)
        if told.status == 404 and "mcp-session-id" in stream.headers:
            self.calls.lose_session("HTTP 404")
        self.calls.confirmed(stream.number)

    def _note_lost(self, stream: Stream, told: ConnectionLost) -> None:
        stream.attempts += 1
        if not told.written and stream.attempts <= self.policy.max_attempts:
            stream.move(StreamStep.CUT)
            self._post_again(stream, self._delay(stream))
            return
        self.out.append(Report(NotificationLost(stream.method, told.why)))
        self._finish(stream)
        self.calls.confirmed(stream.number)

    def _send_ping(self) -> None:
        """Ask whether the session still answers; one at a time."""
        if self._ping is not None or self.session.state is not SessionState.LIVE:
            return
        self._ping = self.calls.ping()

    def _shown(self, event_id: str | None) -> str:
        return fingerprint(event_id, self.session.salt)


def _is_final(stream: Stream, status: int) -> bool:
    """Whether the server offers no standalone stream: its word for it, or any refusal of the very first one."""
    never_opened = stream.state is StreamState.OPEN
    return status in _NO_BODY_STATUSES or (never_opened and 400 <= status < 500 and status not in _WAIT_STATUSES)


def _is_resume_gap(body: Any) -> bool:
    """409 with a `resume_gap` anywhere in its JSON: the server itself says that events are missing."""
    if isinstance(body, dict):
        return any(k == "resume_gap" or _is_resume_gap(v) for k, v in body.items())
    if isinstance(body, list):
        return any(_is_resume_gap(v) for v in body)
    return bool(body == "resume_gap")
