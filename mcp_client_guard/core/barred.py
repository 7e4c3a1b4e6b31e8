"""What the host's own client cannot ask for: a login that fails may ask a person each time.

So it is not tried again by itself (`ConnectionLost.lasts`). A call's stream is given up; the standalone stream is
told unavailable, and waits for what shows that it may be opened now: a good answer to anything asked for since.
"""

from __future__ import annotations

from attrs import define, field

from .actions import NO_DELAY, Report
from .connection import Connection
from .inputs import Answered, ConnectionLost
from .report import StandaloneUnavailable
from .state import StreamStep
from .stream import Stream, StreamKind
from .streams import Streams


@define(eq=False, repr=False)
class Barred(Streams):
    """Opens again by a sign alone what could not be asked for."""

    _in_wait: Connection | None = field(default=None, init=False)
    """The standalone stream's, which is not ordered."""

    def lost(self, told: ConnectionLost) -> None:
        stream = self.current(told.stream, told.connection)
        if stream is None or not (told.lasts and _was_to_open(stream.connection)):
            super().lost(told)
        elif stream.kind is StreamKind.STANDALONE:
            self._bar(stream, told.words)
        elif stream.call is not None and stream.connection.resumed:
            self._give_up(stream, f"its stream could not be opened again ({told.words})")
        else:
            super().lost(told)

    def _bar(self, stream: Stream, why: str) -> None:
        stream.barred += 1
        if stream.barred == 1:
            self.out.append(Report(StandaloneUnavailable(why)))
        stream.move(StreamStep.CUT)
        self._new_connection(stream, NO_DELAY)
        # Where a good sign has led to the same again, it is no sign.
        self._in_wait = stream.connection if stream.barred == 1 else None
        self._report_put_off()  # for it may never be back

    def answered(self, told: Answered) -> None:
        stream = self.current(told.stream, told.connection)
        super().answered(told)
        if stream is None:
            return
        if stream.kind is StreamKind.STANDALONE:
            stream.barred = 0
            return
        standalone, waiting = self._standalone, self._in_wait
        if waiting is None or standalone is None or standalone.connection is not waiting:
            return
        if stream.connection.number > waiting.number and stream.incarnation == standalone.incarnation:
            self._get(standalone, self._delay(standalone))


def _was_to_open(connection: Connection) -> bool:
    """Whether it was lost before its answer, and is not only a way to more than there is already."""
    return not (connection.answered or connection.on_socket or connection.last_look is not None)
