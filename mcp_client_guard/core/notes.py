"""What is posted and has no answer: notifications, and the host's answers to requests of the server's."""

from __future__ import annotations

from attrs import define

from .actions import Hangup, Report
from .closing import Closing
from .inputs import ConnectionLost, Refused
from .report import NotificationLost
from .state import StreamStep
from .stream import Stream


@define(eq=False, repr=False)
class Notes(Closing):
    """Posts them again where that can do no harm."""

    def _note_taken(self, stream: Stream) -> None:
        self._finish(stream, linger=True)
        self.calls.confirmed(stream.number)

    def _note_refused(self, stream: Stream, told: Refused) -> None:
        later = told.status in (408, 425, 429) or told.status >= 500
        if later and stream.method == "response" and self._posts_note_again(stream, told.retry_after or 0.0):
            self.out.append(Hangup(told.connection, linger=True))
            return  # the server waits for it
        self.out.append(Report(NotificationLost(stream.method, f"HTTP {told.status}")))
        self._finish(stream, linger=True)
        present = stream.incarnation == self.session.incarnation
        if told.status == 404 and present and stream.named_session:
            self.calls.lose_session("HTTP 404")
        self.calls.confirmed(stream.number)

    def _note_lost(self, stream: Stream, told: ConnectionLost) -> None:
        # An answer to the server may come twice: it names the request that it answers.
        again = not told.written or stream.method == "response"
        if not (again and self._posts_note_again(stream)):
            self._note_given_up(stream, told.why)

    def _posts_note_again(self, stream: Stream, at_least: float = 0.0) -> bool:
        stream.attempts += 1
        if stream.attempts > self.policy.max_attempts:
            return False
        stream.move(StreamStep.CUT)
        self._post_again(stream, self._delay(stream, at_least))
        return True

    def _note_given_up(self, stream: Stream, why: str) -> None:
        self.out.append(Report(NotificationLost(stream.method, why)))
        self._finish(stream)
        self.calls.confirmed(stream.number)
