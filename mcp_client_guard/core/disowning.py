"""Answers that name another session than ours (DESIGN §4)."""

from __future__ import annotations

from typing import Any

from attrs import define, field

from .actions import Report
from .classify import is_said_in_session, is_suspect_answer
from .inputs import TooLarge
from .messages import messages_of
from .report import Discontinuity, Resumed
from .state import SessionState
from .stream import Stream, StreamKind
from .trial import broken
from .upgrading import Upgrading

_WHY = "the server answered under another session ID"


@define(eq=False, repr=False)
class Disowning(Upgrading):
    """Knows by the name on an answer that our session is in question."""

    _disowned: int = field(default=0, init=False)
    """The incarnation that is lost for its name when a ping has shown what was said to a request."""

    def _rules_first(self, stream: Stream, status: int, body: Any) -> bool:
        """Whether to rule on the content of this POST's answer before its session ID. Content that a lost session
        could draw leads to a ping, which proves more than a foreign ID does; content that only a live session
        gives does not."""
        if not stream.is_post or self.session.state is not SessionState.LIVE:
            return False
        if status < 300:
            return any(map(is_suspect_answer, messages_of(body)))
        return not is_said_in_session(status, body)

    def _see_name(self, stream: Stream, session_id: str | None) -> None:
        """Of what was ruled on first, if it was: a ping is asked then, and is not over."""
        if stream.call is None or not stream.call.suspected:
            self._disown(stream, session_id)
        elif self._names_another(stream, session_id):
            self._disowned = self.session.incarnation

    def _see_offered(self, stream: Stream) -> None:
        """The name on the answer to a POST, when something of it has come, or nothing will."""
        if stream.is_post:
            self._see_name(stream, stream.offered_session_id)

    def too_large(self, told: TooLarge) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is not None:
            self._see_offered(stream)
        super().too_large(told)

    def _lose_disowned(self) -> None:
        """Our ping is over."""
        if self._disowned == self.session.incarnation:
            self.calls.lose_session(_WHY)

    def _names_another(self, stream: Stream, session_id: str | None) -> bool:
        """Whether an answer names another session than ours; an absent name says nothing."""
        initial = stream.method == "initialize"
        if stream.stateless or (initial and not stream.connection.resumed):
            return False
        if not initial and stream.incarnation != self.session.incarnation:
            return False
        known = stream.offered_session_id if initial else self.session.session_id
        return None not in (known, session_id) and session_id != known

    def _disown(self, stream: Stream, session_id: str | None) -> bool:
        """Where another session speaks on this stream, ours is over. Returns whether the stream is, too."""
        if not self._names_another(stream, session_id):
            return False
        if stream.kind is StreamKind.NOTE:
            self._finish(stream)
        elif stream.call is not None and not stream.connection.resumed:
            # The answer to our own POST may still follow, and an answer is stronger than any grade.
            if not self.calls.is_over(stream.call):
                self.out.append(Report(Discontinuity(stream.name, _WHY, None, None)))
                self.calls.lose_session(_WHY)
            return False
        elif stream.connection.last_look is not None:
            self._conclude(stream, complete=False)
        else:
            if stream.connection.resumed:
                self.out.append(Report(Resumed(stream.name, broken(_WHY))))
            self._report_loss(stream, _WHY)
        self.calls.lose_session(_WHY)  # before its request: what becomes of that is decided in the next session
        if self._streams.get(stream.number) is not stream:
            return True
        if stream.call is not None:
            self._give_up(stream, _WHY)
        else:  # the host is opening another session by itself
            self._finish(stream)
        return True
