"""Streams and their continuity: what the shell tells of them, and when they are opened again or given up."""

from __future__ import annotations

from typing import Any

from attrs import define

from .actions import Hangup, Report
from .answers import why_no_answer
from .awaiting import Awaiting
from .classify import is_of_gateway, is_suspect_answer, may_pass
from .connection import Cut
from .inputs import Answered, Begun, BodyReceived, ConnectionLost, EventReceived, IdleElapsed, Refused, TooLarge
from .ledger import Call, Own, Refusal
from .messages import messages_of
from .report import StandaloneUnavailable
from .state import StreamState, StreamStep
from .stream import Exact, Stream, StreamKind
from .timer import Timer, TimerKind
from .trial import SAYS_NOT_RESUMED, is_resume_gap

_PACE_MS = 10
"""A `retry:` from here on is a pace that the server has chosen; below it, or without one, the pace is ours."""
_NO_BODY_STATUSES = frozenset({405, 406, 501})


@define(eq=False, repr=False)
class Streams(Awaiting):
    """Owns every stream of one connection of the host's."""

    def begun(self, told: Begun) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is not None:
            stream.connection.begin(self.calls.clock.now)
            if stream.call is not None and stream.is_post:
                stream.call.troubled = False  # it waits no more
                stream.call.begun_at = self.calls.clock.now
            if stream.is_unwanted or (stream.call is not None and self.calls.is_judged(stream.call)):
                self._limit(stream)

    def answered(self, told: Answered) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None:
            return
        # What is said to our POST is looked at when it is here.
        may_rule_first = stream.is_post and not stream.legacy
        if not may_rule_first and self._disown(stream, told.session_id):
            return
        self._away = 0
        connection = stream.connection
        connection.opened(told.at)
        if connection.last_look is not None:
            if not told.is_events:
                self._conclude(stream, complete=False)
        elif stream.kind is StreamKind.NOTE:
            self._note_taken(stream)
        elif stream.is_post:
            stream.offered_session_id = told.session_id
            if stream.state is StreamState.LOST:
                stream.move(StreamStep.ANSWERED)
        elif not told.is_events:
            connection.unexpected_status = told.status
        else:
            stream.has_opened = True
            stream.unopened = 0
            self._get_answered(stream, told)

    def _get_answered(self, stream: Stream, told: Answered) -> None:
        if told.resumed is False and stream.connection.resumed:
            self._gap_reported(stream, SAYS_NOT_RESUMED)
        elif stream.connection.resumed:
            self._begin_trial(stream, told)
        elif stream.state is StreamState.LOST:  # the standalone stream, without a cursor
            stream.move(StreamStep.ANSWERED)
            self._refresh(told.at)

    def body(self, told: BodyReceived) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None or stream.connection.last_look is not None:
            return
        if stream.connection.resumed or stream.call is None:
            self._body_of_get(stream, told)
            return
        is_ruled_first = self._rules_first(stream, 200, told.body)
        if not is_ruled_first:
            self._see_offered(stream)
        for message in messages_of(told.body):
            self.calls.take(stream, message, direct=True)
        if is_ruled_first:
            self._see_offered(stream)
        if stream.call.suspected:
            return
        why = why_no_answer(told, stream.call)
        is_awaited = self._await_elsewhere(stream, told.body, why)
        if not is_awaited:
            self.calls.unreadable(stream.call, told.body, why)
        self._drop_parts(stream, told.body)
        if not is_awaited and self.current(told.stream, told.connection) is not None:
            self._finish(stream, linger=True)

    def _body_of_get(self, stream: Stream, told: BodyReceived) -> None:
        """A GET was answered without events; but an answer that is owed is one, wherever it comes."""
        held = EventReceived(stream.number, stream.connection.number, None, b"", told.body)
        if stream.kind is StreamKind.CALL and self._take_alone(stream, [held]):
            return
        self._no_events(stream, told.body, told.media_type or "no media type")

    def _no_events(self, stream: Stream, body: Any, came: str) -> None:
        self._refused_get(stream, Refusal(stream.connection.unexpected_status, body, came=came))

    def too_large(self, told: TooLarge) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is not None and stream.kind is StreamKind.STANDALONE and stream.connection.unexpected_status:
            self._no_events(stream, None, self._too_large("a body"))
        else:
            super().too_large(told)

    def refused(self, told: Refused) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None:
            return
        is_ruled_first = self._rules_first(stream, told.status, told.body)
        if not is_ruled_first and self._disown(stream, told.session_id):
            return
        stream.connection.answered = True
        if told.status < 500:  # else a proxy may say that the server is away
            self._away = 0
        if stream.connection.last_look is not None:
            self._conclude(stream, complete=False)
        elif stream.kind is StreamKind.NOTE:
            self._note_refused(stream, told)
        elif self._is_result(stream, told.body):  # who writes that has run the request
            stream.offered_session_id = told.session_id or stream.offered_session_id
            self.body(BodyReceived(told.stream, told.connection, told.body))
        elif stream.is_post:
            self._post_refused(stream, told)
            if is_ruled_first:
                self._see_name(stream, told.session_id)
        elif stream.connection.on_socket:
            self._socket_refused(stream, told.status)
        else:
            self._refused_get(stream, Refusal(told.status, told.body, told.location, told.retry_after))

    def _post_refused(self, stream: Stream, told: Refused) -> None:
        assert stream.call is not None
        self._finish(stream, linger=True)
        is_late = stream.call.has_had_time(self.calls.clock.now)
        refusal = Refusal(told.status, told.body, told.location, told.retry_after, told.path, is_late)
        self.calls.refused(stream.call, refusal, session_sent=stream.named_session)

    def event(self, event: EventReceived) -> None:
        stream = self._streams.get(event.stream)
        if stream is None or stream.connection.number != event.connection:
            return
        connection = stream.connection
        if event.retry is not None:
            stream.retry_ms = event.retry
        if event.resets_id:
            stream.trail.forget_cursor()
            self._drop_stored(stream)
        if event.name == "endpoint" and not connection.brought_endpoint:
            # The word of a legacy server, which may know the session no more: it is asked.
            connection.brought_endpoint = True
            self.calls.probe()
        is_ruled_first = False  # else the name that our POST's answer comes under counts with its first event
        if stream.offered_session_id not in (None, self.session.session_id):
            is_ruled_first = self._rules_first(stream, 200, event.body)
            if not is_ruled_first:
                self._see_offered(stream)
        if event.name == "resumed":
            self._resumed_event(stream, event)
        elif connection.trial is not None:
            self._weigh(stream, connection.trial, event)
        elif connection.last_look is not None:
            self._look(stream, connection.last_look, event)
        elif connection.resumed_from is None or not self._begin_look(stream, event):
            self._place(stream, event)
        if is_ruled_first:
            self._see_offered(stream)
        self._see_end(stream, event)
        if self.upgrades and stream.kind is StreamKind.STANDALONE:
            self.consider_upgrade()

    def lost(self, told: ConnectionLost) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None:
            return
        connection = stream.connection
        connection.begun = connection.begun or told.written
        if stream.call is not None:
            stream.call.unsendable = told.lasts and not connection.answered
        if connection.last_look is not None:
            self._conclude(stream, complete=False)
        elif stream.kind is StreamKind.NOTE:
            self._note_lost(stream, told.why, may_try=not (told.written or told.lasts))
        elif stream.is_post and not (connection.answered or told.written):
            self._not_written(stream, told)
        elif stream.kind is StreamKind.STANDALONE and connection.unexpected_status:
            self._no_events(stream, None, f"a body that was cut ({told.why})")
        else:
            self._see_offered(stream)
            self._cut(stream, told.why, told.at, clean=told.clean)

    def idle(self, told: IdleElapsed) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None:
            return
        if stream.kind is StreamKind.NOTE:
            self._note_lost(stream, "no answer for max_idle")
        elif stream.connection.last_look is not None:
            self._conclude(stream, complete=False)
        elif stream.trail.cursor is not None or stream.connection.on_socket or stream.is_unwanted:
            self._without_news(stream, "no byte for max_idle", told.at)
        elif stream.stateless and stream.call is not None:
            return  # closing it would cancel it, and there is no ping: TCP keepalive alone finds a dead peer
        elif stream.connection.answered or stream.kind is StreamKind.CALL:
            self.calls.probe()
        else:
            self._without_news(stream, "no answer for max_idle", told.at)

    def timer(self, timer: Timer, at: float) -> None:
        stream = self.current(timer.stream, timer.connection)
        if stream is None:
            return
        match timer.kind:
            case TimerKind.WITNESS:
                self._witness_overdue(stream)
            case TimerKind.CLOSING:
                self._conclude(stream, complete=False)
            case TimerKind.UNWANTED:
                self._outstayed(stream, at)
            case TimerKind.RECHECK:
                self._recheck(stream)
            case other:  # pragma: no cover
                raise AssertionError(f"no timer of a stream's: {other}")

    def _outstayed(self, stream: Stream, at: float) -> None:
        """Bytes alone do not keep a stream that nobody waits for."""
        stream.connection.limited = False
        if stream.is_unwanted and stream.connection.last_look is None:
            self._without_news(stream, "nobody has waited for it for max_idle", at)
        else:  # what came elsewhere is suspected, and may not be its answer; or its own is held
            self._limit(stream)

    def _without_news(self, stream: Stream, why: str, at: float) -> None:
        """As good as cut. Where nobody waits, what stands behind the witness is the end of the log."""
        self.out.append(Hangup(stream.connection.number))
        self._cut(stream, why, at, clean=stream.is_unwanted and stream.connection.witnessed)

    def ping_over(self, answered: bool) -> None:
        """Our ping has its answer, or will have none."""
        self._lose_disowned()
        if not answered:
            return
        for stream in list(self._streams.values()):
            if stream.budget.is_refused_by_errors and stream.connection.resumed:
                errors = stream.budget.server_errors
                self._break(stream, f"{errors} server errors to a resume while a ping is answered")

    # Cut, and opened again.

    def _cut(self, stream: Stream, why: str, at: float, *, clean: bool, by_us: bool = False) -> None:
        """Its connection has ended: the stream is opened again, or given up."""
        cut = Cut(stream.connection, why, at, clean, by_us, stream.trail.cursor is not None)
        if self._account_for(stream, cut):
            return
        if stream.call is None:
            self._get_again(stream)
        else:
            self._after_cut(stream, stream.call, cut)

    def _account_for(self, stream: Stream, cut: Cut) -> bool:
        """Report it, end its trial, count what it says of the next attempt. Returns whether the stream is over."""
        ended = cut.ended
        self._cancel_timers(stream)
        failed = stream.state is StreamState.LOST and not (ended.answered or ended.on_socket or cut.by_us)
        self._report_cut(stream, cut.why, self._delay(stream), has_failed=failed)
        trial, ended.trial = ended.trial, None
        # What a socket leaves unsaid is asked of the event stream.
        on_trial = stream.state is StreamState.ON_TRIAL and not ended.on_socket
        self._socket_lost(stream, cut.at)
        if trial is not None and on_trial and self._trial_cut(stream, trial, clean=cut.clean):
            return True
        if not (cut.by_us or (trial is not None and trial.was_refused)):  # else it says nothing of what is to come
            lasts, paced = stream.kind is StreamKind.STANDALONE, (stream.retry_ms or 0) >= _PACE_MS
            account = stream.budget.account_lasting if lasts else stream.budget.account
            account(ended, cut.at, paced=paced)
        if stream.is_unwanted:
            stream.budget.looks += 1
        return False

    def _after_cut(self, stream: Stream, call: Call, cut: Cut) -> None:
        ended, why = cut.ended, cut.why
        if cut.clean and not (cut.had_cursor or ended.resumed or call.was_taken):
            stream.unreadable = True  # whatever came of it is no answer, and it is complete
        if not call.in_flight and (not self._misses(stream) or (cut.clean and ended.witnessed)):
            self._finish(stream)  # to its end it has brought all that the log holds of it
        elif stream.unreadable:
            self._give_up(stream, "its answer could not be read")
        elif self.calls.is_over(call):
            self._give_up(stream, f"its connection was lost, and its session is gone ({why})")
        elif not cut.had_cursor and stream.is_post and self.is_answered_elsewhere(call):
            self._wait_elsewhere(stream, why)
        elif not cut.had_cursor:
            self._give_up(stream, f"its connection was lost and cannot be resumed ({why})")
        elif stream.budget.is_spent(self.policy.max_attempts):
            self._give_up(stream, f"its stream could not be opened again ({why})")
        elif not cut.by_us and stream.budget.is_fruitless(cut.at, self.policy.settle_after):
            self._give_up(stream, "resumes of its stream bring nothing new")
        else:
            self._get_again(stream)

    def _get_again(self, stream: Stream) -> None:
        stream.move(StreamStep.CUT)
        self._get(stream, self._delay(stream))

    def _not_written(self, stream: Stream, told: ConnectionLost) -> None:
        """Nothing of this request has left, or stands: it is safe to try again, if that is of any use."""
        call = stream.call
        assert call is not None
        call.met = told.why
        if told.refused is not None:
            call.unrun = f"HTTP {told.refused}", told.refused
        stream.budget.attempts += 1
        if stream.is_unwanted or self.calls.is_judged(call):
            self._finish(stream)
        elif self.calls.is_over(call):
            self.calls.unsent(call, f"its session is gone ({told.why})")
            self._finish(stream)
        elif told.lasts or not self._insists_on(call) or stream.budget.is_spent(self.policy.max_attempts):
            by = "wire" if told.refused is None else "server"
            self.calls.not_executed(call, by, told.words, told.refused)
            self._finish(stream)
        else:
            self._report_unreachable(stream, told.why)
            stream.move(StreamStep.CUT)
            self._post_again(stream, self._delay(stream))

    def _insists_on(self, call: Call) -> bool:
        return call.own is not Own.INITIALIZE or self.calls.insists

    def _refused_get(self, stream: Stream, refusal: Refusal) -> None:
        """A GET drew a status, or no events: the stream alone is touched, never the session or a POST."""
        resumed, status, body = stream.connection.resumed, refusal.status, refusal.body
        if stream.kind is StreamKind.STANDALONE and not resumed and _is_final(stream, status):
            self.out.append(Report(StandaloneUnavailable(refusal.words)))
            self._finish(stream)
            if is_suspect_answer(body) and status < 300:
                self.calls.probe(refusal)
            return
        if resumed and (status == 410 or (status == 409 and is_resume_gap(body))):
            self._gap_reported(stream, f"the server reports a gap (HTTP {status})")
            return
        if resumed and not (300 <= status < 400 or status >= 500 or may_pass(status)):
            self._resume_refused(stream, status)
            return
        self._probe_by(stream, refusal)
        stream.budget.count_refused(may_be_held=status == 409)
        if stream.call is not None and stream.budget.is_spent(self.policy.max_attempts):
            self._give_up(stream, f"its stream could not be resumed (HTTP {status})")
            return
        is_told = stream.kind is StreamKind.STANDALONE or not 400 <= status < 500
        failed = refusal.words if is_told and stream.state is not StreamState.OPEN else ""
        self._reopen(stream, self._delay(stream, refusal.wait), failed)

    def _probe_by(self, stream: Stream, refusal: Refusal) -> None:
        """Where this refusal may mean that the session is lost, a ping asks."""
        status, body = refusal.status, refusal.body
        if status >= 500:
            if not is_of_gateway(status, body):  # whose time may have been up
                stream.budget.server_errors += 1
            if stream.connection.resumed and stream.budget.is_refused_by_errors:
                self.calls.probe()
        elif (status >= 400 and not may_pass(status)) or (status < 300 and is_suspect_answer(body)):
            self.calls.probe(refusal)  # of the standalone stream, which was open before

    def _resume_refused(self, stream: Stream, status: int) -> None:
        """Refused for good: once more with the exact cursor, which a server may still hold."""
        trial = stream.connection.trial
        if stream.exact is None and trial is not None and not trial.is_exact:
            stream.exact = Exact.REFUSED
            if status == 404:
                self.calls.probe()
            self._reopen(stream, self._delay(stream))
        elif status in _NO_BODY_STATUSES and stream.call is not None:
            self._give_up(stream, f"the server resumes no streams (HTTP {status})")
        else:
            self._break(stream, f"the resume was refused (HTTP {status})")


def _is_final(stream: Stream, status: int) -> bool:
    """Whether the server offers no standalone stream: its word for it, or whatever else it has for one that never
    opened, unless that is of the moment."""
    return status in _NO_BODY_STATUSES or not (stream.has_opened or may_pass(status))
