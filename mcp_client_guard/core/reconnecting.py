"""The user's word that the present connections are worth nothing: the network has changed, say."""

from __future__ import annotations

from attrs import define, evolve

from .actions import Hangup
from .beside import Beside
from .state import StreamState
from .stream import STANDALONE, Stream, StreamKind


@define(eq=False, repr=False)
class Reconnecting(Beside):
    """Opens anew, at once, whatever that can do no harm to: what can be resumed, what waits for its next attempt,
    and what lasts. To close any other would leave its call in doubt."""

    def reconnect(self, at: float) -> None:
        if self._standalone is not None:
            self._standalone.barred = 0  # by the user's own word
        for stream in list(self._streams.values()):
            if self._is_open(stream) and self._may_reconnect(stream):
                self._open_anew(stream, at)
        self._ask_for_carrier_at_once()

    def _open_anew(self, stream: Stream, at: float) -> None:
        stream.budget.reconnect()
        self.out.append(Hangup(stream.connection.number))
        if stream.is_unsent:
            self._post_again(stream, evolve(stream.connection.delay, attempt=0))
        else:
            self._cut(stream, "reconnect() was called", at, clean=False, by_us=True)

    def _may_reconnect(self, stream: Stream) -> bool:
        if stream.legacy or stream.connection.last_look is not None or stream.state is StreamState.ON_TRIAL:
            return False  # what is on trial was just resumed
        if stream.connection.delay.at_least and not stream.connection.begun:
            return False  # `Retry-After` is the server's own word
        if stream.is_unsent:
            return _waits(stream)
        if stream.call is not None and self.calls.is_subscribed(stream.call):
            return True
        if stream.unreadable or (stream.call is not None and self.calls.is_over(stream.call)):
            return False  # once cut, it is given up; until then its answer may come
        resumable = stream.trail.cursor is not None and (stream.connection.answered or stream.connection.resumed)
        return stream.kind is StreamKind.STANDALONE or (stream.kind is StreamKind.CALL and resumable)

    def _ask_for_carrier_at_once(self) -> None:
        """If it waits for its next attempt: from now on for what the server has named alone."""
        stream = self._streams.get(STANDALONE)
        if stream is not None and stream.kind is StreamKind.CARRIER and not stream.connection.may_have_sent:
            stream.budget.attempts = self._failures = 0
            self._get_anew(stream, self._delay(stream))


def _waits(stream: Stream) -> bool:
    """Whether its next attempt is put off, and may be ordered anew."""
    # At its first attempt the row may be on its way to the disk: an order of now would not wait for that (S12).
    has_row = stream.budget.attempts > 0 or (stream.call is not None and not stream.call.may_have_side_effects)
    return has_row and stream.connection.delay.attempt > 0
