"""One connection that carries a stream: what is known of it ends with it, and the next one begins with nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field, frozen

from .actions import NO_DELAY, Delay
from .pace import STEADY_SECONDS

if TYPE_CHECKING:
    from .closing import LastLook
    from .trial import Trial


@define(eq=False, repr=False)
class Connection:
    """One HTTP exchange, or one socket; ordered, and not always opened yet."""

    number: int = 0
    """What comes from a connection of another number than the present one's is ignored. 0: none was ordered."""
    delay: Delay = NO_DELAY
    """Before it is opened."""
    resumed_from: str | None = field(default=None, repr=False)
    """The event ID after which it goes on with the stream; None where nothing is resumed."""
    on_socket: bool = False
    """It is a socket, and not an exchange of HTTP."""
    trial: Trial | None = None
    """Of what it resumes, until that is judged."""
    last_look: LastLook | None = None
    """It was opened for that."""
    carrier: int = 0
    """Which of the endpoints that a carrier has named it is posted to; 0 until it is."""
    begun: bool = False
    """Whether any byte of the request can have left on it."""
    begun_at: float | None = None
    """When the first may have."""
    answered: bool = False
    """Whether it has had its status line."""
    opened_at: float | None = None
    """When that came."""
    unexpected_status: int = 0
    """Of a GET that was answered without events."""
    accepted: bool = False
    """Its POST is over, or it runs: the answer comes on the carrier."""
    brought_endpoint: bool = False
    """What came on it is a legacy stream: the server may know the session no more."""
    witnessed: bool = False
    """The witness came on it."""
    progressed: bool = False
    """A new event ID came on it; or, where nothing is resumed, a message."""
    messages: int = 0
    """Delivered from it."""
    recheck_mark: int = 0
    """`messages` when its log was last asked."""
    limited: bool = False
    """No caller waits for it any more: it is closed after `max_idle`."""

    @property
    def resumed(self) -> bool:
        """Whether it goes on with what others have carried: a GET with `Last-Event-ID`, or a socket."""
        return self.resumed_from is not None

    @property
    def holds(self) -> bool:
        """Whether anything new has come on it that is not proven yet."""
        return self.trial is not None and bool(self.trial.held)

    @property
    def may_have_sent(self) -> bool:
        """Whether anything of a request can have left by it, or by those whose stream it goes on with."""
        return self.begun or self.answered or self.resumed_from is not None

    @property
    def wait(self) -> str:
        """What is said of a long wait of the server's choice, while it lasts."""
        is_waiting = self.delay.is_long and not self.begun
        return f": the server has its stream wait for {self.delay.floor:.0f} s" if is_waiting else ""

    def begin(self, at: float) -> None:
        """Bytes of the request may leave."""
        self.begun, self.begun_at = True, at

    def has_had(self, seconds: float, at: float) -> bool:
        """Whether the request has been with the server, or on its way there, for so long."""
        return self.begun_at is not None and at - self.begun_at > seconds

    def opened(self, at: float) -> None:
        """Its status line has come."""
        self.answered, self.opened_at = True, at

    def has_lived(self, at: float, seconds: float = STEADY_SECONDS) -> bool:
        """Whether it was open for so long: by default, as long as a good one of those that last."""
        return self.opened_at is not None and at - self.opened_at >= seconds


@frozen
class Cut:
    """The end of a connection whose stream may not be over."""

    ended: Connection
    why: str
    at: float
    clean: bool
    by_us: bool
    """It says nothing against the server."""
    had_cursor: bool
    """Of its stream, before what was held of it was judged."""
