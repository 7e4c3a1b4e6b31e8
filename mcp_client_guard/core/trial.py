"""The trial of a resumed stream: what each event says about whether the server still holds our log.

Until the witness has come everything new is held, because nothing is proven. Skipped are events that some trail
of the session holds (the TypeScript reference server replays later events of *every* stream), priming events
and `{}` (what that server makes of them).
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from attrs import define, field, frozen

from .event_id import IdScheme, follows, goes_down, learn
from .inputs import EventReceived
from .model import Evidence, Grade, Seen, digest_of
from .trail import Trail

NO_WITNESS = Evidence(Grade.UNVERIFIED, "no witness")
WITNESS_MISSING = Evidence(Grade.UNVERIFIED, "witness missing")
PROVEN = Evidence(Grade.PROVEN, "the witness came again")
SAYS_RESUMED = Evidence(Grade.CONSISTENT, "the server says resumed: true")
SAYS_NOT_RESUMED = "the server says resumed: false"
STARTED_OVER = Evidence(Grade.BROKEN, "the event IDs started over")
UNKNOWN_EVENTS = Evidence(Grade.BROKEN, "unknown events and no witness")


def broken(why: str) -> Evidence:
    return Evidence(Grade.BROKEN, why)


class Weight(Enum):
    SKIP = "says nothing"
    HOLD = "new, but nothing is proven yet"


@frozen
class Judged:
    """The trial is over. `fits` says whether the event that ended it is to be placed like any other."""

    evidence: Evidence
    fits: bool


@define(eq=False, repr=False)
class Trial:
    """One resume of one stream, from its answer to a judgement."""

    trail: Trail
    sent: str
    """The `Last-Event-ID` that was sent."""
    witness: Seen | None
    """The event that must come again; None when the exact cursor was sent."""
    after_silence: bool = False
    """The exact cursor was sent because the witness had not come."""
    must_come_first: bool = False
    """On a socket no message but the proof may come first."""
    is_silent: bool = True
    """No event of any kind has come."""
    was_refused: bool = False
    """The overlap drew a 200 that ended without an event: so the Python SDKs say that they do not know an ID."""
    has_started_over: bool = False
    """The event IDs have: nothing can prove this resume."""
    held: list[EventReceived] = field(factory=list)
    held_bytes: int = 0
    primed: str | None = None
    """The newest priming event of this connection: in a counting server's numbers it has its place, too."""

    @property
    def is_exact(self) -> bool:
        return self.witness is None

    @property
    def unproven(self) -> Evidence:
        """What this resume is worth if nothing contradicts and nothing confirms."""
        return WITNESS_MISSING if self.witness is not None or self.after_silence else NO_WITNESS

    @property
    def doubt(self) -> Evidence:
        """What this resume is worth if the trial ends while something is held."""
        if self.has_started_over:
            return STARTED_OVER
        return self.unproven if self.is_exact else UNKNOWN_EVENTS

    def hold(self, event: EventReceived) -> None:
        self.held.append(event)
        self.held_bytes += len(event.data)

    def weigh(self, event: EventReceived, carried: bool) -> Weight | Judged:
        witness = self.witness
        if witness is not None and event.event_id == witness.event_id and digest_of(event.data) == witness.digest:
            self.trail.learn_wording(event.event_id, event.data)
            return Judged(PROVEN, fits=False)
        if self.must_come_first:
            return self._weigh_first(event, carried)
        if not carried:
            self.primed = event.event_id or self.primed
            return Weight.SKIP
        if self.has_started_over:
            return Weight.HOLD
        if event.event_id is None and self.trail.take_expected(event.data):
            return Weight.SKIP
        if self.trail.conflicts(event.event_id, event.data):
            return Judged(broken("another message under a known event ID"), fits=False)
        if self.trail.holds(event.event_id, event.data):
            return self._weigh_known(event)
        if witness is not None or self.held:
            return Weight.HOLD
        return self._weigh_exact(event)

    def _weigh_first(self, event: EventReceived, carried: bool) -> Weight | Judged:
        """It is no witness: only a declared contiguous scheme can make it the next event all the same. One that
        carries nothing may stand before the witness: servers that prime a resume log what they mint for that."""
        event_id = event.event_id
        if self.is_exact and event_id == self.sent and self.trail.holds(event_id, event.data):
            return Judged(PROVEN, fits=False)
        if self.is_exact and event_id and follows(IdScheme.CONTIGUOUS, self.sent, event_id):
            return Judged(Evidence(Grade.CONSISTENT, "the first frame is the event after the cursor"), fits=True)
        if not (carried or self.is_exact or self.trail.has_received(event_id)):
            return Weight.SKIP
        return Judged(broken("the first frame is not the event that must come first"), fits=False)

    def _weigh_known(self, event: EventReceived) -> Weight | Judged:
        if self.is_exact and event.event_id == self.sent:
            # An inclusive replay sends the cursor's own event again: as good as a witness.
            return Judged(PROVEN, fits=False)
        return Weight.SKIP

    def _weigh_exact(self, event: EventReceived) -> Judged:
        if event.event_id is None:
            return Judged(self.unproven, fits=True)
        ids = self.trail.event_ids()
        before = (self.sent, self.primed or self.sent)
        # A message may come under the ID of a priming event: it is no step at all.
        if event.event_id not in before and not any(follows(self.trail.scheme, b, event.event_id) for b in before):
            return Judged(broken(f"the declared {self.trail.scheme.value} IDs do not continue"), fits=False)
        self.has_started_over = goes_down(ids, event.event_id)
        if self.has_started_over:
            return Judged(STARTED_OVER, fits=False)
        scheme = self.trail.scheme if self.trail.scheme is not IdScheme.OPAQUE else learn(ids)
        if scheme is IdScheme.CONTIGUOUS and any(follows(scheme, b, event.event_id) for b in before):
            return Judged(Evidence(Grade.CONSISTENT, "the event IDs continue without a gap"), fits=True)
        return Judged(self.unproven, fits=True)


def is_resume_gap(body: Any) -> bool:
    """409 with a `resume_gap` anywhere in its JSON: the server itself says that events are missing."""
    waiting = [body]  # for a server may nest it deeper than Python recurs
    while waiting:
        value = waiting.pop()
        if value == "resume_gap" or (isinstance(value, dict) and "resume_gap" in value):
            return True
        if isinstance(value, (dict, list)):
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return False
