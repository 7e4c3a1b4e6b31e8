"""The session's move from its event stream to a socket, and back (DESIGN §6; `docs/websocket.md`).

What moves is the standalone stream. The server is told our own position, never one that it told us, and the first
message must be the witness. Until then nothing of the socket is delivered and the trail stays as it is, so that a
socket which proves nothing costs no more than a resume: the event stream goes on from where it was.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from attrs import define, field

from .actions import NO_DELAY, AskUpgrade, Delay, Hangup, OpenSocket, Report, SetTimer
from .event_id import IdScheme, fits_header
from .inputs import EventReceived, UpgradeAnswered
from .ledger import Refusal
from .model import Generation, Grade
from .notes import Notes
from .report import Resumed, Upgraded, UpgradeRefused
from .state import SessionState, StreamState, StreamStep
from .stream import STANDALONE, Stream
from .timer import Timer, TimerKind
from .trail import ResumePoint
from .trial import Judged, Trial, broken

_NOT_OFFERED = frozenset({404, 405, 501})
_MOST_FAILURES = 10
_FIRST_PAUSE = 1.0
"""Seconds; doubled by each failure."""
_LONGEST_WAIT = 60.0


@define(eq=False, repr=False)
class Upgrading(Notes):
    """Decides when a socket is asked for, and whether it is to be believed."""

    upgrades: bool = field(default=False, kw_only=True)
    """The user wants it."""
    _is_offered: bool = field(default=True, init=False)
    """As far as is known; another session may be another server's."""
    _question: int = field(default=0, init=False)
    """The one that is not answered yet."""
    _point: ResumePoint | None = field(default=None, init=False)
    """The position that it told the server."""
    _upgrade_failures: int = field(default=0, init=False)
    """In a row, without a socket that lived."""
    _pausing: bool = field(default=False, init=False)

    # To the socket.

    def consider_upgrade(self) -> None:
        """Ask for a socket if there is a live stream to move, and a way to prove that it was moved."""
        stream = self._streams.get(STANDALONE)
        if stream is None or stream.state is not StreamState.OPEN:
            return
        if not stream.connection.answered or stream.connection.on_socket:
            return
        if not (self.upgrades and self._is_offered) or self._question or self._pausing:
            return
        session = self.session
        if session.state is not SessionState.LIVE or session.generation is not Generation.STREAMABLE_HTTP:
            return
        point = stream.trail.resume_point()
        if point is None or (point.witness is None and self.policy.id_scheme is not IdScheme.CONTIGUOUS):
            return
        self._connections += 1
        self._question, self._point = self._connections, point
        body = {"positions": {stream.name: point.last_event_id}}
        self.out.append(AskUpgrade(self._question, body, session.headers("")))

    def upgrade_answered(self, told: UpgradeAnswered) -> None:
        """The server has said whether, and with what ticket, the session may go on over a socket."""
        stream, point = self._streams.get(STANDALONE), self._point
        if told.question != self._question or stream is None or point is None:
            return
        self._forget_question()
        if self._disown(stream, told.session_id):
            return
        ticket = _ticket_of(told)
        if ticket is not None:
            self._open_socket(stream, point, ticket)
        elif told.status in _NOT_OFFERED:
            self._stay(f"HTTP {told.status}")
            if told.status == 404:  # as to a session that it does not know
                self.calls.probe(Refusal(404, told.body))
        else:
            why = told.why if told.status is None else f"HTTP {told.status}"
            if told.lasts:
                self._stay(why)
                return
            self._failed(f"{why}, not a ticket" if told.status == 200 else why, told.retry_after or 0.0)

    def _forget_question(self) -> None:
        self._question, self._point = 0, None

    @abstractmethod
    def _disown(self, stream: Stream, session_id: str | None) -> bool:
        """Where an answer names another session, ours is over. Returns whether the stream is, too."""
        ...

    def _open_socket(self, stream: Stream, point: ResumePoint, ticket: str) -> None:
        if stream.state is not StreamState.OPEN:
            return  # it was cut meanwhile
        if point.last_event_id not in self.index:
            # Its trail no longer reaches back: what the socket repeats would seem new.
            self._failed("the stream went on too fast", 0.0)
            return
        self.out.append(Hangup(stream.connection.number))
        stream.move(StreamStep.CUT)
        self._new_connection(stream, NO_DELAY, point.last_event_id)
        connection = stream.connection
        connection.on_socket = True
        stream.trail.expect_after(point.last_event_id)
        connection.trial = Trial(stream.trail, point.last_event_id, point.witness, must_come_first=True)
        self.out.append(OpenSocket(stream.number, connection.number, self.session.headers(""), ticket))
        # Its handshake is bounded, too: no event stream is open meanwhile.
        self.out.append(SetTimer(stream.timer(TimerKind.WITNESS), self.policy.witness_timeout))

    def _judge(self, stream: Stream, trial: Trial, judged: Judged, event: EventReceived | None) -> None:
        connection = stream.connection
        super()._judge(stream, trial, judged, event)
        if connection.on_socket and stream.connection is connection:
            self.session.generation = Generation.WEBSOCKET
            self.out.append(Report(Upgraded(self.session.fingerprint)))
            if judged.evidence.grade is Grade.UNVERIFIED:
                # The cursor stays: by it the scheme tells whether the next event is the next.
                self._refresh(connection.opened_at or 0.0)

    # And back.

    def _break(
        self, stream: Stream, why: str, first: EventReceived | None = None, trial: Trial | None = None
    ) -> None:
        """A socket that does not continue our stream is contradicted by itself alone: the log is asked again."""
        if not stream.connection.on_socket or stream.connection.trial is None:
            super()._break(stream, why, first, trial)
            return
        self.out.append(Report(Resumed(stream.name, broken(why))))
        self._report_loss(stream, why, first)
        self._back(stream)

    def _witness_overdue(self, stream: Stream) -> None:
        trial = stream.connection.trial
        if not stream.connection.on_socket or trial is None:
            super()._witness_overdue(stream)
        elif stream.state is not StreamState.ON_TRIAL:
            self._socket_failed(stream, "no handshake within witness_timeout")
        elif trial.witness is not None:
            self._socket_failed(stream, "no first frame within witness_timeout")
        else:
            # Behind an exact position nothing is owed until something is emitted; but nothing is proven, either.
            self._judge(stream, trial, Judged(trial.unproven, fits=False), None)

    def _socket_refused(self, stream: Stream, status: int) -> None:
        if status == 101:  # the server has granted it; the next one would end alike
            self._stay("the HTTP client leaves no socket open")
            self._back(stream)
        else:
            self._socket_failed(stream, f"the socket was refused with HTTP {status}")

    def _socket_failed(self, stream: Stream, why: str) -> None:
        """It was refused, or proves nothing."""
        self.out.append(Report(UpgradeRefused(why, final=False)))
        self._back(stream)

    def _back(self, stream: Stream) -> None:
        stream.budget.attempts += 1
        self._reopen(stream, self._delay(stream))

    def _socket_lost(self, stream: Stream, at: float) -> None:
        if stream.connection.on_socket and stream.connection.has_lived(at):
            self._upgrade_failures = 0

    def _new_connection(self, stream: Stream, delay: Delay, resumed_from: str | None = None) -> None:
        if stream.connection.on_socket:
            self._leave_socket(stream)
            self._pause(0.0)
        super()._new_connection(stream, delay, resumed_from)

    def _finish(self, stream: Stream, *, linger: bool = False) -> None:
        if stream.number == STANDALONE:
            self._forget_question()
            self._leave_socket(stream)
        super()._finish(stream, linger=linger)

    def _leave_socket(self, stream: Stream) -> None:
        if stream.connection.on_socket:
            stream.connection.on_socket = False
            self.session.generation = Generation.STREAMABLE_HTTP

    # Tried again, within a budget.

    def _failed(self, why: str, at_least: float) -> None:
        self.out.append(Report(UpgradeRefused(why, final=False)))
        self._pause(at_least)

    def _pause(self, at_least: float) -> None:
        self._upgrade_failures += 1
        if self._upgrade_failures >= _MOST_FAILURES:
            self._stay(f"{self._upgrade_failures} attempts in a row came to nothing")
            return
        self._pausing = True
        seconds = max(at_least, min(_FIRST_PAUSE * 2 ** (self._upgrade_failures - 1), _LONGEST_WAIT))
        self.out.append(SetTimer(Timer(TimerKind.UPGRADE, STANDALONE), seconds, jitter=seconds / 2))

    def upgrade_due(self) -> None:
        """The pause after an attempt is over."""
        self._pausing = False
        self.consider_upgrade()

    def forget_session(self, opener: Stream) -> None:
        self._is_offered = True
        self._upgrade_failures = 0
        super().forget_session(opener)

    def _stay(self, why: str) -> None:
        self._is_offered = False
        self.out.append(Report(UpgradeRefused(why, final=True)))


def _ticket_of(told: UpgradeAnswered) -> Any:
    """The ticket, if that is what was answered."""
    ticket = told.body.get("ticket") if told.status == 200 and isinstance(told.body, dict) else None
    return ticket if isinstance(ticket, str) and ticket.isascii() and fits_header(ticket) else None
