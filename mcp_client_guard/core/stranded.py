"""A call that has lost its stream or its session: what is known of it, and how often it is worth trying again."""

from __future__ import annotations

from attrs import define

from .actions import NO_DELAY, Delay
from .classify import BUSY, LONGEST_RETRY_AFTER, Ran, is_of_moment
from .ledger import Call, Refusal, wait_of

MOST_REPEATS = 2
"""Of what may have run, and had time to: each may load a server that works on the others still."""


@define(eq=False, repr=False)
class Stranded:
    """A call without an outcome whose stream is over."""

    call: Call
    reason: str
    ran: Ran
    refusal: Refusal | None = None
    by: str = "server"
    """Who says that it did not run."""
    is_asked: bool = False
    was_asked: bool = False
    may_repeat: bool = False
    """The hook said so."""
    lost_soon: bool = False
    """Its connection was lost before it can have run for long."""
    delay: Delay = NO_DELAY

    @property
    def is_busy(self) -> bool:
        """The server wants it later."""
        return self.refusal is not None and self.refusal.status in BUSY

    @property
    def is_brief(self) -> bool:
        """It failed at once, and by what may pass."""
        drew = self.refusal
        return self.lost_soon if drew is None else is_of_moment(drew.status) and not drew.is_late

    def may_try_later(self, max_attempts: int) -> bool:
        """Whether it is worth waiting for the server: a deploy is over sooner."""
        return self.call.sendings < max_attempts and wait_of(self.refusal) <= LONGEST_RETRY_AFTER

    def may_try_again(self, max_attempts: int) -> bool:
        """Whether a call that may have run is worth another sending. What failed at once has not loaded the
        server: a few such sendings are over before one that is being replaced is back."""
        if self.call.repeats < MOST_REPEATS:
            return wait_of(self.refusal) <= LONGEST_RETRY_AFTER
        return (self.is_brief or self.call.lasting < MOST_REPEATS) and self.may_try_later(max_attempts)

    def wait(self) -> None:
        """It goes out again after a while, like what was not written: nobody is served by a storm."""
        self.delay = Delay(self.call.sendings, None, wait_of(self.refusal))
