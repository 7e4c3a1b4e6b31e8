"""What the connections under one key know of each other's calls, and of those of earlier processes.

Frameworks, retry decorators and models repeat calls, some on a new connection: so the repeat latch, the names
that hosts give to calls, and the user's consent live here and not in one connection (DESIGN §5).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from .answers import CallInDoubt
from .heritage import PROCESS_DIED
from .ledger import NEVER_SENT, Call
from .model import JSON, Outcome
from .stored import StoredCall

if TYPE_CHECKING:
    from .policy import GuardPolicy

_KEPT = 4096
"""Doubts and names remembered; the oldest go first. A named call is still in the store's ledger."""
_UNKNOWN = (None, Outcome.IN_DOUBT, Outcome.CANCELLED)


@frozen
class Doubt:
    """A call that may have run, and until when a repeat of it is refused."""

    call_key: str
    told: CallInDoubt
    at: float
    """Seconds on the machine's clock."""


@define(eq=False)
class Named:
    """A call to which the host gave a name."""

    digest: bytes
    """Of tool and arguments."""
    call: Call | None = None
    """While it has no outcome."""
    machine: int = 0
    outcome: Outcome | None = None
    answer: JSON | None = field(default=None, repr=False)
    told: CallInDoubt | None = None


@define(eq=False, repr=False)
class SharedLedger:
    """One for each key. Every `Machine` under that key is given the same one."""

    names: dict[str, Named] = field(factory=dict, init=False)
    _doubts: dict[bytes, Doubt] = field(factory=dict, init=False)
    _consents: set[str] = field(factory=set, init=False)
    _in_flight: dict[bytes, list[tuple[int, Call]]] = field(factory=dict, init=False)

    def consent(self, call_key: str) -> None:
        """The user allows one repeat of the call with this key."""
        self._consents.add(call_key)

    def consented(self, call_key: str) -> bool:
        """Whether there is such a consent; it is used up by this."""
        if call_key not in self._consents:
            return False
        self._consents.discard(call_key)
        return True

    def doubt(self, digest: bytes, doubt: Doubt) -> None:
        self._doubts.pop(digest, None)
        self._doubts[digest] = doubt
        _bound(self._doubts)

    def doubted(self, digest: bytes, policy: GuardPolicy, now: float) -> Doubt | None:
        """The doubt that a call with this tool and these arguments would repeat."""
        doubt = self._doubts.get(digest)
        if doubt is None or now - doubt.at < policy.repeat_window:
            return doubt
        del self._doubts[digest]
        return None

    def resolved(self, digest: bytes, call_key: str) -> None:
        """It is known what became of the call with this key, or it may be repeated."""
        doubt = self._doubts.get(digest)
        if doubt is not None and doubt.call_key == call_key:
            del self._doubts[digest]

    def restore(self, calls: Iterable[StoredCall], wall_now: float, now: float) -> None:
        """What the ledger on disk knows of calls in doubt and of names, oldest row first.

        `wall_now` is on the clock of the rows, `now` on that of the machines. A call without an outcome is in
        doubt from now on. Call it before any machine begins.
        """
        for call in calls:
            reason = call.reason or PROCESS_DIED
            told = CallInDoubt(reason, call.method, call.tool, call.call_key, "-")
            unknown = call.outcome in _UNKNOWN and not reason.endswith(NEVER_SENT)
            if unknown and call.method == "tools/call" and call.may_have_side_effects:
                age = 0.0 if call.settled_at is None else max(0.0, wall_now - call.settled_at)
                self.doubt(call.arguments_digest, Doubt(call.call_key, told, now - age))
            if call.named:
                named = Named(call.arguments_digest, None, 0, call.outcome, call.answer, told if unknown else None)
                self.name(call.call_key, named)

    def begin(self, digest: bytes, machine: int, call: Call) -> None:
        self._in_flight.setdefault(digest, []).append((machine, call))

    def end(self, digest: bytes, call: Call) -> None:
        left = [entry for entry in self._in_flight.pop(digest, ()) if entry[1] is not call]
        if left:
            self._in_flight[digest] = left

    def in_flight(self, digest: bytes) -> list[tuple[int, Call]]:
        """The unsafe calls under way, in any connection, with this tool and these arguments."""
        return self._in_flight.get(digest, [])

    def name(self, call_key: str, named: Named) -> None:
        self.names.pop(call_key, None)
        self.names[call_key] = named
        for oldest in [k for k, n in self.names.items() if n.call is None][: len(self.names) - _KEPT]:
            del self.names[oldest]


def _bound(entries: dict[bytes, Doubt]) -> None:
    if len(entries) > _KEPT:
        del entries[next(iter(entries))]
