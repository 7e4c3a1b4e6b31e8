"""What is posted and has no answer: notifications, and the host's answers to requests of the server's."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from attrs import define, field, frozen

from .actions import NO_DELAY, CancelTimer, Hangup, Report, SetTimer
from .classify import SessionWord, is_worth_repeating, rule_on
from .closing import Closing
from .inputs import Refused
from .ledger import Refusal
from .model import JSON
from .report import NotificationLost, Unreachable
from .room import MOST_WAITING, NEVER_WAIT, Room
from .session import session_headers
from .state import StreamStep
from .stream import Stream, StreamKind
from .timer import Timer, TimerKind

_TURN_SECONDS = 0.5
"""After which the next notification leaves although the server has not taken the one before."""
_OUT_OF_TURN = (*NEVER_WAIT, "notifications/cancelled")
"""The method of what the server, or the caller of a call, waits for: it waits for no other."""
_HAS_NO_TURN = (None, "notifications/cancelled")
"""The method of what no other waits for."""
_MAY_COME_TWICE = ("response", "notifications/initialized")
"""What a server may be told again. An answer, which it waits for, names the request that it answers; and without
the other a strict one refuses everything for ever."""
_NO_SESSION = -1
"""The incarnation of what is of no session of ours."""


@frozen
class Waiting:
    """A notification whose turn has not come, or for which there is no connection yet."""

    number: int
    method: str
    message: JSON
    headers: Mapping[str, str] = field(repr=False)
    incarnation: int


@define(eq=False, repr=False)
class Notes(Closing):
    """Posts notifications one after the other, as the host wrote them; and again where that can do no harm."""

    room: Room | None = field(default=None, kw_only=True)
    """Where the host's client has a limit: a server that is slow to take notifications must not use that up."""
    _waiting: deque[Waiting] = field(factory=deque, init=False)
    _leaving: int | None = field(default=None, init=False)
    """The notification whose turn it is."""

    def post_note(self, number: int, method: str, message: JSON, headers: Mapping[str, str]) -> int:
        if self._may_leave(message.get("method"), waiting=len(self._waiting)):
            return self._post_in_turn(number, method, message, headers)
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(Waiting(number, method, message, headers, self.session.incarnation))
        else:
            self.out.append(Report(NotificationLost(method, "too many wait for their turn")))
        return number

    def answer_ping(self, opener: Stream, request_id: str | int) -> None:
        """In the host's place: it was asked in the session that this stream is to open, which no message of the
        host's can name yet."""
        note = self._new_stream(self.calls.ledger.new_wire_id(), StreamKind.NOTE, "response")
        note.incarnation = _NO_SESSION  # what becomes of it says nothing of any that is ours
        note.message = {"jsonrpc": "2.0", "id": request_id, "result": {}}
        note.headers = session_headers(opener.offered_session_id, None)
        self._post_again(note, NO_DELAY)

    def _may_leave(self, method: str | None, *, waiting: int = 0) -> bool:
        """`waiting`: others before it."""
        if self.room is not None and not self.room.has_for_note(method):
            return False
        return method in _OUT_OF_TURN or (self._leaving is None and not waiting)

    def _post_in_turn(self, number: int, method: str, message: JSON, headers: Mapping[str, str]) -> int:
        super().post_note(number, method, message, headers)
        if message.get("method") not in _HAS_NO_TURN:
            self._leaving = number
            self.out.append(SetTimer(Timer(TimerKind.TURN, number), _TURN_SECONDS))
        return number

    def turn_over(self, number: int) -> None:
        """The server has this notification, or will not have it, or takes its time."""
        if number == self._leaving:
            self._leaving = None
            self.out.append(CancelTimer(Timer(TimerKind.TURN, number)))
            self.post_waiting()

    def post_waiting(self) -> None:
        """It may be the next one's turn, or connections may have become free."""
        while self._waiting and self._may_leave(self._waiting[0].method):
            note = self._waiting.popleft()
            is_gone = note.incarnation != self.session.incarnation or self.calls.is_lost
            if is_gone and not self.session.is_stateless(note.headers):
                self.out.append(Report(NotificationLost(note.method, "its session is gone")))
            else:
                self._post_in_turn(note.number, note.method, note.message, note.headers)

    def close(self) -> None:
        for note in self._waiting:
            self.out.append(Report(NotificationLost(note.method, "the host has left")))
        self._waiting.clear()
        if self._leaving is not None:
            self.turn_over(self._leaving)
        super().close()

    @property
    def are_leaving(self) -> bool:
        """Whether notifications or answers of the host's are on their way, or wait for their turn."""
        return bool(self._waiting) or any(s.kind is StreamKind.NOTE for s in self._streams.values())

    def _note_taken(self, stream: Stream) -> None:
        self._finish(stream, linger=True)
        self._note_over(stream)

    def _note_refused(self, stream: Stream, told: Refused) -> None:
        again = is_worth_repeating(told.status) and stream.method in _MAY_COME_TWICE
        if again and self._post_note_again(stream, told.retry_after or 0.0):
            return
        self.out.append(Report(NotificationLost(stream.method, f"HTTP {told.status}")))
        self._finish(stream, linger=True)
        present = stream.incarnation == self.session.incarnation
        said_so, named = self.policy.is_session_lost, stream.named_session
        ruling = rule_on(told.status, told.body, session_sent=named, is_session_lost=said_so)
        gone = ruling.session is SessionWord.GONE and present
        # By 404 a server may say, too, that it knows no such notification, or nothing to cancel.
        may_be_of_it = told.status == 404 and stream.method != "notifications/initialized"
        if gone and not may_be_of_it:
            self.calls.lose_session(f"HTTP {told.status}")
        if told.status != 400:  # which says that nobody waits for it, as well
            self._answered_in_vain(stream, f"HTTP {told.status}")
        self._note_over(stream)
        if gone and may_be_of_it:
            self.calls.probe(Refusal(told.status, told.body))

    def _note_lost(self, stream: Stream, why: str, *, may_try: bool = False) -> None:
        """`may_try`: nothing of it has left, and it may fare better."""
        again = may_try or stream.method in _MAY_COME_TWICE
        if not (again and self._post_note_again(stream)):
            self._note_given_up(stream, why)
        elif may_try:
            self._report_unreachable(stream, why)

    def _report_unreachable(self, stream: Stream, why: str) -> None:
        attempt = stream.budget.attempts
        if self._remember_away(stream, attempt):
            self.out.append(Report(Unreachable(stream.name, why, attempt)))

    def _post_note_again(self, stream: Stream, at_least: float = 0.0) -> bool:
        stream.budget.attempts += 1
        if stream.budget.is_spent(self.policy.max_attempts):
            return False
        self.out.append(Hangup(stream.connection.number, linger=True))
        stream.move(StreamStep.CUT)
        self._post_again(stream, self._delay(stream, at_least))
        return True

    def _note_given_up(self, stream: Stream, why: str) -> None:
        self.out.append(Report(NotificationLost(stream.method, why)))
        self._finish(stream)
        self._answered_in_vain(stream, why)
        self._note_over(stream)

    def _note_over(self, stream: Stream) -> None:
        # Not before: should this process die meanwhile, the next has the question replayed, and sends this again.
        self.asked_no_more(stream.question)
        self.calls.confirmed(stream.number)
        self.turn_over(stream.number)

    def note_answers(self, number: int, asked_on: int | None, question: int | None) -> None:
        """This note, which never waits, is the host's answer that the call of that stream waits for."""
        note = self._streams[number]
        note.answers, note.question = asked_on, question

    def _answered_in_vain(self, note: Stream, why: str) -> None:
        """The server may do without, and answer the call; but that does not wait for it for ever."""
        stream = None if note.answers is None else self._streams.get(note.answers)
        if stream is not None:
            stream.in_vain = f"what the server asked could not be answered ({why})"
            self.out.append(SetTimer(Timer(TimerKind.QUESTION, stream.number), self.policy.witness_timeout))

    def question_overdue(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            self.calls.waits_in_vain(stream.call, stream.in_vain)
