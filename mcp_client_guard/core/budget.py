"""How often a stream was opened again to no avail: how long the next attempt waits, and when there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from .connection import Connection

_FRUITLESS_RESUMES = 5
_SERVER_ERRORS = 3
_UNWITNESSED_ENDS = 4
_HELD_SECONDS = 5.0
"""A resume that was open for so long says nothing against its server: who has lost a call ends its resume at once
(an empty 200 of the Python SDKs). An honest one that is silent while a tool runs is cut by a proxy (nginx: after
60 s), or ends the connection itself, to be asked again (SEP-1699)."""


@define(eq=False, repr=False)
class Budget:
    """Full again when something new comes. Each count is one in a row."""

    attempts: int = 0
    """Failed attempts to open, without progress."""
    barren: int = 0
    """Resumes that ended with nothing new: the delay grows with it."""
    hasty: int = 0
    """Resumes that ended without a message where the server names no wait: a fresh ID alone, each time, fills the
    budget again but must not make a storm."""
    fruitless: int = 0
    """Barren resumes, less those in which the witness came: only these use up the budget. One that is held open
    for a while breaks the row."""
    _fruitless_since: float = field(default=0.0, init=False)
    unwitnessed: int = 0
    """Ends of a trial with unknown events and no witness."""
    server_errors: int = 0
    """That a GET drew."""
    looks: int = 0
    """Connections lost since the answer to its request came on another stream."""
    rechecks: int = 0
    """Of its log, that brought nothing."""

    @property
    def attempt(self) -> int:
        """Which attempt the next one is, as its delay counts them."""
        return max(self.attempts, self.barren, self.hasty)

    def refill(self) -> None:
        """Something new came."""
        self.barren = 0
        self.refill_by_witness()

    def refill_by_witness(self) -> None:
        """The server holds our log: what was counted against that is forgotten, but nothing new has come yet."""
        self.attempts = self.fruitless = self.unwitnessed = self.server_errors = 0

    def reconnect(self) -> None:
        """The next attempt is the user's, at once."""
        self.attempts = self.barren = self.hasty = 0

    def account(self, ended: Connection, at: float, *, paced: bool) -> None:
        """What the connection that just ended says about opening another. `paced`: the server names a wait."""
        is_held = ended.resumed and not ended.unexpected_status and ended.has_lived(at, _HELD_SECONDS)
        if is_held or paced or (ended.progressed and ended.messages):
            self.hasty = 0
        elif ended.resumed:
            self.hasty += 1
        if not ended.answered:
            self.attempts += 1
        elif is_held:  # as long between two as a storm is none
            self.attempts = self.barren = self.fruitless = self.server_errors = 0
        elif ended.resumed and not ended.progressed:
            # Where the server has our log, and says when to come again, it is polled at that pace.
            if not (paced and ended.witnessed):
                self.barren += 1
            if not ended.witnessed:
                self._fruitless_since = self._fruitless_since if self.fruitless else at
                self.fruitless += 1

    def account_lasting(self, ended: Connection, at: float, *, paced: bool) -> None:
        """What the end of such a connection says of the next, where the stream lasts as long as its session."""
        # `hasty` too, since whatever is new empties `attempts`, and a greeting on each connection is no pace.
        steady = ended.has_lived(at) or (ended.progressed and paced)
        self.attempts = self.hasty = 0 if steady else max(self.attempts, self.hasty) + 1

    def count_refused(self, *, may_be_held: bool) -> None:
        """A GET was refused. `may_be_held`: perhaps for the connection before it, which the server still holds."""
        if may_be_held and self.rechecks:
            # We hung up a good one to look again, and a proxy may keep that until the server has more to write.
            self.barren += 1
        else:
            self.attempts += 1

    def is_fruitless(self, at: float, settle_after: float) -> bool:
        """Whether resumes have brought nothing new so often, and for so many seconds, that they never will."""
        return self.fruitless >= _FRUITLESS_RESUMES and at - self._fruitless_since >= settle_after

    def is_spent(self, max_attempts: int) -> bool:
        """Whether there is no other attempt."""
        return max(self.attempts, self.looks) > max_attempts

    def count_unwitnessed(self, *, clean: bool) -> bool:
        """A trial has ended with unknown events and no witness. Returns whether none is to be expected."""
        self.unwitnessed += _UNWITNESSED_ENDS if clean else 1
        return self.unwitnessed >= _UNWITNESSED_ENDS

    @property
    def is_refused_by_errors(self) -> bool:
        """Whether so many server errors may be the answer to the resume itself."""
        return self.server_errors >= _SERVER_ERRORS
