"""The trial of a resumed stream, from its answer to a judgement, and what follows from that."""

from __future__ import annotations

from attrs import define, field

from .actions import NO_DELAY, CancelTimer, Delay, Hangup, Report, SetTimer
from .inputs import Answered, EventReceived
from .messages import messages_of
from .model import JSON, Evidence, Grade
from .pace import OncePerMinute
from .placing import Placing
from .report import Disconnected, RefreshSuggested, Resumed
from .state import SessionState, StreamState, StreamStep
from .stream import STANDALONE, Exact, Stream, StreamKind
from .timer import Timer, TimerKind
from .trial import PROVEN, SAYS_NOT_RESUMED, SAYS_RESUMED, STARTED_OVER, WITNESS_MISSING, Judged, Trial, Weight

_RECHECK_CAP = 60.0
_LISTS = ("tools", "prompts", "resources")


@define(eq=False, repr=False)
class Trials(Placing):
    """Judges resumes (DESIGN §4)."""

    _away: int = field(default=0, init=False)
    """Attempts in a row to reach the server that were told to have failed, since it was last heard."""
    _refreshes: OncePerMinute = field(factory=OncePerMinute, init=False)

    def _begin_trial(self, stream: Stream, told: Answered) -> None:
        trial = stream.connection.trial
        assert trial is not None
        stream.move(StreamStep.RESUMED)
        if told.resumed and trial.is_exact:
            self._judge(stream, trial, Judged(SAYS_RESUMED, fits=False), None)
            return
        self._set_witness_timer(stream)

    def _set_witness_timer(self, stream: Stream) -> None:
        self.out.append(SetTimer(stream.timer(TimerKind.WITNESS), self.policy.witness_timeout))

    def _resumed_event(self, stream: Stream, event: EventReceived) -> None:
        trial = stream.connection.trial
        if trial is None:
            return
        trial.is_silent = False
        said = event.body.get("resumed") if isinstance(event.body, dict) else None
        if said is False:
            self._gap_reported(stream, SAYS_NOT_RESUMED)
        elif said is True and trial.is_exact and not trial.has_started_over:
            self._judge(stream, trial, Judged(SAYS_RESUMED, fits=False), None)

    def _gap_reported(self, stream: Stream, why: str) -> None:
        """The server itself says that events are missing.

        Behind the overlap alone, perhaps: a log that was trimmed so far may still hold all that follows the
        cursor, so it is asked for that, once.
        """
        trial = stream.connection.trial
        if stream.exact or trial is None or trial.is_exact or trial.held:
            self._break(stream, why)
        else:
            stream.exact = Exact.REFUSED
            self._reopen(stream, self._delay(stream))

    def _weigh(self, stream: Stream, trial: Trial, event: EventReceived) -> None:
        trial.is_silent = False
        carried = bool(messages_of(event.body)) and event.name == "message"
        verdict = trial.weigh(event, carried)
        if isinstance(verdict, Judged) and self._may_bring_answer(stream, verdict.evidence):
            verdict = Weight.HOLD
        if isinstance(verdict, Judged):
            if verdict.evidence is PROVEN:
                self._drop_duplicate(stream, event, carried)
            self._judge(stream, trial, verdict, event)
        elif verdict is Weight.HOLD:
            self._hold(stream, trial, event)
        elif carried:
            self._drop_duplicate(stream, event, carried)
        elif event.event_id is not None and event.event_id not in self.index:
            # Progress, but no cursor: a server may prime before its replay, and what it mints then stands in
            # its log after what it is about to replay.
            stream.progress()

    def _may_bring_answer(self, stream: Stream, evidence: Evidence) -> bool:
        """Whether its call would be given up by this, though the answer may stand behind it in the same replay.

        Random numbers go down, too; and a server that was slow, or has trimmed its log, may hold the answer
        although it has not sent the witness.
        """
        if stream.call is None or evidence is STARTED_OVER:
            return stream.call is not None
        return evidence == WITNESS_MISSING and self.policy.on_unverified == "settle" and stream.call.in_flight

    def _hold(self, stream: Stream, trial: Trial, event: EventReceived) -> None:
        trial.hold(event)
        if len(trial.held) > self.policy.max_held or trial.held_bytes > 2 * self.policy.max_event_size:
            self._break(stream, f"no witness among {len(trial.held)} events", trial.held[0], trial)
        elif trial.doubt == WITNESS_MISSING:
            if self._holds_answer(stream, trial):
                self._end_held(stream, trial)
            elif not stream.connection.has_had(self.policy.settle_after, self.calls.clock.now):
                self._set_witness_timer(stream)  # else it runs out, whatever comes

    def _end_held(self, stream: Stream, trial: Trial) -> None:
        self._judge(stream, trial, Judged(trial.doubt, fits=False), trial.held[0])

    def _judge(self, stream: Stream, trial: Trial, judged: Judged, event: EventReceived | None) -> None:
        """End a trial."""
        evidence = judged.evidence
        if evidence.grade is Grade.BROKEN:
            self._break(stream, evidence.reason, event, trial)
            return
        self._go_on(stream, evidence)
        if evidence == WITNESS_MISSING:
            # The witness is the event that a server with our log cannot but send (S4).
            self._report_loss(stream, evidence.reason, event)
        if evidence is PROVEN:
            self._proven(stream)
        elif stream.kind is StreamKind.STANDALONE and not stream.connection.on_socket:
            forget = self._forget_trail if evidence == WITNESS_MISSING else self._drop_cursor
            forget(stream)
            self._refresh(stream.connection.opened_at or 0.0)
        elif evidence == WITNESS_MISSING and self.policy.on_unverified == "settle":
            self._settle_unverified(stream, trial.held or ([event] if event is not None else []))
            return
        fitting = [*trial.held, event] if event is not None and judged.fits else trial.held
        if self._place_held(stream, trial, fitting, proven=evidence is PROVEN):
            self._arm_recheck(stream)

    def _go_on(self, stream: Stream, evidence: Evidence) -> None:
        """The stream goes on, for what this resume is worth."""
        stream.connection.trial = None
        stream.doubtful = evidence.grade is Grade.UNVERIFIED  # first, for a call on it is troubled by that
        stream.move(StreamStep.JUDGED)
        if evidence == WITNESS_MISSING or evidence is PROVEN or stream.exact is Exact.END:
            # Who ended at once may have been about to go: unlike after a status, the overlap is asked for again.
            stream.exact = None
        self.out.append(CancelTimer(stream.timer(TimerKind.WITNESS)))
        self.out.append(Report(Resumed(stream.name, evidence)))

    def _place_held(self, stream: Stream, trial: Trial, fitting: list[EventReceived], *, proven: bool) -> bool:
        """Place what the trial has held. Returns whether the stream goes on after it."""
        since, drained_before = stream.trail.newest_number, stream.position.drained_before
        if drained_before is not None and proven:
            # It stands before the witness, so that an earlier process may have delivered it, however much it is.
            stream.position.drained_before = max(drained_before, since) + len(trial.held)
        connection = stream.connection.number
        for held in fitting:
            # One that breaks the stream, or finishes it, is the last of its connection.
            if self.current(stream.number, connection) is not stream:
                return False
            self._place(stream, held)
            self._see_end(stream, held)
        if trial.held and trial.witness is not None and proven:
            stream.trail.came_before(trial.witness, since)
        if drained_before is not None and proven:
            stream.position.drained_before = drained_before + stream.trail.newest_number - since
        return True

    def _proven(self, stream: Stream) -> None:
        stream.connection.witnessed = True
        stream.budget.refill_by_witness()
        stream.trail.replay_expected()

    def _settle_unverified(self, stream: Stream, held: list[EventReceived]) -> None:
        if not self._take_owed(stream, held):
            self._give_up(stream, "its stream came back without the event that would prove it is the same")

    def _witness_overdue(self, stream: Stream) -> None:
        trial = stream.connection.trial
        if trial is None:
            return
        if trial.held:
            self._end_held(stream, trial)
        elif trial.witness is not None:
            stream.exact = Exact.SILENCE
            self._reopen(stream, Delay(0, stream.retry_ms))
        else:
            self._judge(stream, trial, Judged(trial.unproven, fits=False), None)

    def _trial_cut(self, stream: Stream, trial: Trial, *, clean: bool) -> bool:
        """The connection ended before the trial did. Returns whether that ended the stream, too."""
        if trial.held:
            if stream.budget.count_unwitnessed(clean=clean) or self._holds_answer(stream, trial):
                self._end_held(stream, trial)
                return True
            self._take_owed(stream, trial.held)
            return False
        if not clean:
            return False
        if trial.witness is not None:
            trial.was_refused = trial.is_silent
            stream.exact = Exact.END if trial.is_silent else Exact.SILENCE
            return False
        if not (trial.after_silence or (stream.exact is Exact.END and trial.is_silent)):
            return False
        self._judge(stream, trial, Judged(WITNESS_MISSING, fits=False), None)
        return self._streams.get(stream.number) is not stream

    def _holds_answer(self, stream: Stream, trial: Trial) -> bool:
        """Whether the answer to this very request is held: then there will be no other resume to prove."""
        messages = (m for event in trial.held for m in messages_of(event.body))
        return stream.call is not None and any(self.calls.owed(stream, m) is stream.call for m in messages)

    def _reopen(self, stream: Stream, delay: Delay, failed: str = "") -> None:
        """Close the present connection and open another for the same stream. `failed`: why it is not open."""
        call = stream.call
        wanted = call is None or call.in_flight or self._misses(stream)
        if call is not None and (stream.trail.cursor is None or not wanted):
            # A GET without a cursor would open another stream; a cancelled request is not resumed.
            self._give_up(stream, "its stream has no cursor any more")
            return
        if failed:
            self._report_cut(stream, failed, delay, has_failed=True)
        elif delay.is_long:
            self._report_cut(stream, "to be opened again", delay)
        self._cancel_timers(stream)
        self.out.append(Hangup(stream.connection.number))
        stream.move(StreamStep.CUT)
        self._get(stream, delay)

    def _report_cut(self, stream: Stream, why: str, delay: Delay, *, has_failed: bool = False) -> None:
        """`has_failed`: an attempt to open it again; else it was open, or is put off."""
        if has_failed:
            stream.unopened += 1
        attempt = stream.unopened if has_failed else 0
        fails_to_resume = has_failed and stream.call is not None and stream.connection.resumed
        if fails_to_resume and not (delay.is_long or self._remember_away(stream, attempt)):
            return
        undrained, is_resumable = stream.position.undrained, stream.trail.cursor is not None
        self.out.append(Report(Disconnected(stream.name, why, undrained, is_resumable, delay.floor, attempt)))

    def _remember_away(self, stream: Stream, attempt: int) -> bool:
        """The server has been away for so many attempts. Returns whether nobody was told that yet: of hundreds of
        requests that wait for it the first to fail says so for all."""
        others = (other for other in self._streams.values() if other is not stream)
        is_known = attempt <= self._away and any(other.is_tried_again for other in others)
        if not is_known:
            self._away = attempt
        return not is_known

    def _arm_recheck(self, stream: Stream) -> None:
        """Servers lose what falls between replay and live tail: look again if nothing comes."""
        if self._streams.get(stream.number) is not stream or stream.call is None or not stream.connection.resumed:
            return
        stream.connection.recheck_mark = stream.connection.messages
        seconds = min(self.policy.recheck * 2**stream.budget.rechecks, max(_RECHECK_CAP, self.policy.recheck))
        seconds = max(seconds, (stream.retry_ms or 0) / 1000)
        self.out.append(SetTimer(stream.timer(TimerKind.RECHECK), seconds))

    def _recheck(self, stream: Stream) -> None:
        waits = stream.call is not None and stream.call.in_flight
        if stream.state is not StreamState.OPEN or stream.trail.cursor is None or not waits:
            return
        if stream.connection.messages != stream.connection.recheck_mark:
            stream.budget.rechecks = 0
            self._arm_recheck(stream)
            return
        stream.budget.rechecks = min(stream.budget.rechecks + 1, 8)
        self._reopen(stream, NO_DELAY)

    def refresh_due(self, at: float) -> None:
        """A refresh that had to wait is due, unless the session is gone meanwhile."""
        if self.session.state is SessionState.LIVE:
            self._refreshes.waited()
            self._refresh(at)

    def _refresh(self, at: float) -> None:
        """Tell the host to read its lists again: at most once a minute; one that comes too soon waits."""
        wait = self._refreshes.take(at)
        if wait:
            self.out.append(SetTimer(Timer(TimerKind.REFRESH, STANDALONE), wait))
        else:
            self.refresh_now()

    def refresh_now(self) -> None:
        lists = [_notification(f"{name}/list_changed") for name in _LISTS if name in self.session.capabilities]
        self._have_read(lists + [_updated(uri) for uri in sorted(self.calls.subscriptions)])

    def refresh_resource(self, uri: str) -> None:
        self._have_read([_updated(uri)])

    def _have_read(self, sent: list[JSON]) -> None:
        for message in sent:
            self.deliver(None, message)
        if sent:
            self.out.append(Report(RefreshSuggested(tuple(m["method"] for m in sent))))


def _notification(name: str, **params: str) -> JSON:
    message: JSON = {"jsonrpc": "2.0", "method": f"notifications/{name}"}
    return {**message, "params": params} if params else message


def _updated(uri: str) -> JSON:
    return _notification("resources/updated", uri=uri)
