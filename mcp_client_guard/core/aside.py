"""The standalone stream steps aside while the server is asked for a legacy stream, which takes its place."""

from __future__ import annotations

from abc import abstractmethod

from attrs import define, field

from .actions import NO_DELAY, Delay, Hangup
from .barred import Barred
from .state import StreamStep
from .stream import STANDALONE, Stream, StreamKind


@define(eq=False, repr=False)
class Aside(Barred):
    """Keeps it, with its cursor, for the case that there is no legacy stream."""

    _aside: Stream | None = field(default=None, init=False)

    @abstractmethod
    def open_carrier(self, delay: Delay = NO_DELAY) -> None: ...

    @abstractmethod
    def close_carrier(self) -> None: ...

    @property
    @abstractmethod
    def is_carrier_wanted(self) -> bool:
        """It has brought its endpoint, or somebody awaits that."""
        ...

    @property
    def brought_endpoint(self) -> bool:
        """One of the streams has turned out to be a legacy one."""
        return any(stream.connection.brought_endpoint for stream in self._streams.values())

    @property
    def may_carry(self) -> bool:
        """Whether the host's client has the connections that a legacy session takes."""
        return self.room is None or self.room.has_for_carrier

    def look_for_carrier(self) -> bool:
        """Ask for a legacy stream, whose place the standalone stream leaves meanwhile; but if that one lives, the
        server is no legacy one: then nothing is asked."""
        stream = self._streams.get(STANDALONE)
        if stream is not None and stream.kind is StreamKind.STANDALONE:
            connection = stream.connection
            if connection.on_socket or (connection.opened_at is not None and not connection.brought_endpoint):
                return False
            self._cancel_timers(stream)
            self.out.append(Hangup(connection.number))
            stream.move(StreamStep.CUT)
            self._aside = self._streams.pop(STANDALONE)
            self._forget_question()  # it is not there to be moved to a socket
        self.open_carrier()
        return True

    def look_no_more(self) -> None:
        """There is no legacy stream, or it is not looked for any more."""
        if self.is_carrier_wanted:
            return
        self.close_carrier()
        stream, self._aside = self._aside, None
        if stream is not None:
            self._streams[STANDALONE] = stream
            self._get(stream, self._delay(stream))

    def asked_no_more(self, number: int | None) -> None:
        super().asked_no_more(number)
        if self._aside is not None and self._aside.position.ask_no_more(number):
            self._save_cursor(self._aside)

    def _forget_aside(self) -> None:
        """Its session is no more."""
        stream, self._aside = self._aside, None
        if stream is not None:
            self._drop_cursor(stream)
