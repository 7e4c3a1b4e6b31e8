"""The repeat latch: which calls may have run that an equal one would repeat, and until when that is held back.

The window is counted from when somebody was told, and not from when the guard knew: a host may be slow to read,
and whoever is told after the window repeats at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from attrs import define, evolve, field, frozen

from .doubt import CallInDoubt
from .model import JSON

if TYPE_CHECKING:
    from .policy import GuardPolicy

_KEPT = 4096
"""Calls in doubt and consents remembered; the oldest go first."""
KEPT_ALIKE = 256
"""Calls in doubt with the same tool and arguments."""
NOT_YET = float("inf")
"""When somebody was told of a doubt that nobody has been told of: it holds for as long."""
_K = TypeVar("_K")
_V = TypeVar("_V")


@frozen
class Doubt:
    """A call that may have run, and until when a repeat of it is refused."""

    call_key: str
    told: CallInDoubt
    at: float
    """Seconds on the machine's clock."""
    told_at: float
    """From when on the window counts: whoever is to be told has been, or has given it up; who has left has not. So
    long as someone is still to take what it was told, it stands still (`Latch.tellings`)."""
    named: bool = False
    """The host chose its call key."""
    answer: JSON | None = field(default=None, repr=False)
    """It was recovered when its caller had been told that it is in doubt: the next repeat gets this."""
    went_on_from: bytes | None = None
    """Key of the round that it continued."""
    owed: int = 1
    """So many repeats get the answer: one for each host that has given it up, or never had it."""
    number: int = 0
    """Wire ID of its last sending, as its row has it: tells it from another of its name."""

    def is_of(self, call_key: str, number: int) -> bool:
        return (self.call_key, self.number) == (call_key, number)


@define(eq=False)
class Telling:
    """Hosts have been told of a call, and have not come to read it."""

    hosts: int
    since: float


@define(eq=False, repr=False)
class Latch:
    """Of all connections under one key."""

    tellings: dict[str, Telling] = field(factory=dict, init=False)
    """By call key, what was told of a call that may have run, and was not taken yet."""
    _doubts: dict[bytes, tuple[Doubt, ...]] = field(factory=dict, init=False)

    def doubt(self, digest: bytes, doubt: Doubt) -> None:
        """From now on a call with this tool and these arguments is a repeat of this one; of another of its name
        that is in doubt, too. Of several that have been answered, the last one's answer is owed to all."""
        known = self._doubts.pop(digest, ())
        answered = [d for d in known if d.call_key == doubt.call_key and d.answer is not None]
        others = tuple(d for d in known if d not in answered and not d.is_of(doubt.call_key, doubt.number))
        if doubt.answer is not None:
            doubt = evolve(doubt, owed=doubt.owed + sum(d.owed for d in answered))
        self._doubts[digest] = (*others, doubt)[-KEPT_ALIKE:]
        bound(self._doubts)

    def doubted(self, digest: bytes, policy: GuardPolicy, now: float) -> tuple[Doubt, ...]:
        """The calls in doubt that one with this tool and these arguments would repeat, newest last."""
        doubts = self._doubts.get(digest, ())
        return self._keep(digest, [d for d in doubts if self._age(d, now) < policy.repeat_window])

    def _age(self, doubt: Doubt, now: float) -> float:
        """For how long it has been told; what somebody has yet to read ages no further."""
        telling = self.tellings.get(doubt.call_key)
        return (now if telling is None else telling.since) - doubt.told_at

    def telling(self, call_key: str, now: float) -> None:
        """One host more is told of the call with this key, and may not read it soon."""
        self.tellings.setdefault(call_key, Telling(0, now)).hosts += 1

    def taken(self, digest: bytes, call_key: str, now: float, *, heard: bool, is_untold: bool = False) -> None:
        """One of them has come to it (`heard`), or has left or given the request up. `is_untold`: so that nobody
        knows of the call."""
        telling = self.tellings[call_key]
        telling.hosts -= 1
        if not telling.hosts:
            del self.tellings[call_key]
        for doubt in self._of(digest, call_key):
            if is_untold:
                told_at = NOT_YET
            elif doubt.told_at == NOT_YET:
                told_at = now if heard else NOT_YET
            else:
                told_at = doubt.told_at + (0 if telling.hosts else now - max(telling.since, doubt.told_at))
            self._replace(digest, doubt, evolve(doubt, told_at=told_at))

    def listed(self, digest: bytes, call_key: str, now: float) -> None:
        """The host has read in `Guard.recovered` what this call has come to."""
        for doubt in self._of(digest, call_key):
            self._replace(digest, doubt, evolve(doubt, told_at=now))

    def _of(self, digest: bytes, call_key: str) -> list[Doubt]:
        return [d for d in self._doubts.get(digest, ()) if d.call_key == call_key]

    def _replace(self, digest: bytes, old: Doubt, new: Doubt) -> None:
        self._doubts[digest] = tuple(new if d is old else d for d in self._doubts[digest])

    def resolved(self, digest: bytes, call_key: str, number: int) -> None:
        """It is known what became of this call, and of no other of its name; or it may be repeated."""
        self._keep(digest, [d for d in self._doubts.get(digest, ()) if not d.is_of(call_key, number)])

    def answered(self, digest: bytes, call_key: str) -> None:
        """A repeat gets the answer of the call with this key: there is one less that has not had it."""
        kept = []
        for doubt in self._doubts.get(digest, ()):
            has_it = doubt.call_key == call_key and doubt.answer is not None
            left = evolve(doubt, owed=doubt.owed - 1) if has_it else doubt
            if left.owed:
                kept.append(left)
        self._keep(digest, kept)

    def owes(self, digest: bytes, call_key: str) -> bool:
        """Whether a repeat is still to get the answer of the call with this key."""
        return any(d.call_key == call_key and d.answer is not None for d in self._doubts.get(digest, ()))

    def _keep(self, digest: bytes, doubts: list[Doubt]) -> tuple[Doubt, ...]:
        if doubts:
            self._doubts[digest] = tuple(doubts)
        else:
            self._doubts.pop(digest, None)
        return tuple(doubts)

    def shift(self, seconds: float) -> None:
        """From now on the machines' clock shows so much more: each event loop has its own."""
        for telling in self.tellings.values():
            telling.since += seconds
        for digest, doubts in self._doubts.items():
            self._doubts[digest] = tuple(
                evolve(doubt, at=doubt.at + seconds, told_at=doubt.told_at + seconds) for doubt in doubts
            )


def bound(entries: dict[_K, _V]) -> None:
    """The oldest goes."""
    if len(entries) > _KEPT:
        del entries[next(iter(entries))]
