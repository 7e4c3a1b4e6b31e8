"""What the connections under one key know of each other's calls, and of those of earlier processes.

Frameworks, retry decorators and models repeat calls, some on a new connection: so the repeat latch, the names
that hosts give to calls, and the user's consent live here and not in one connection (DESIGN §5).
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, evolve, field, frozen

from .doubt import CallInDoubt
from .heritage import PROCESS_DIED
from .latch import KEPT_ALIKE, NOT_YET, Doubt, Latch, bound
from .ledger import Call, Own
from .messages import tells_of_success
from .model import JSON, NOT_KNOWN, WAS_ANSWERED, Generation, Told
from .rounds import NEVER, Round, asks_for_input
from .stored import StoredCall


@define(eq=False)
class Named:
    """A call to which the host gave a name."""

    call_key: str
    """Its name; or another, if it was sent without that name and a named call has repeated it."""
    digest: bytes
    """Of tool and arguments."""
    call: Call | None = None
    """While it has no outcome."""
    answer: JSON | None = field(default=None, repr=False)
    told: CallInDoubt | None = None
    number: int = 0
    """Wire ID of its first sending; 0 where that may have been in an earlier process."""

    @property
    def has_succeeded(self) -> bool:
        return self.answer is not None and tells_of_success(self.answer) and not asks_for_input(self.answer)


@frozen(eq=False)
class WentOn:
    """One of several hosts that were told the same has gone on: what the others then send repeats its request."""

    round: Round
    known: Named


@define(eq=False, repr=False)
class SharedLedger(Latch):
    """One for each key. Every `Machine` under that key is given the same one."""

    keep_names: int = 100_000
    """Names remembered; the oldest go first. No fewer than the store keeps calls: what it still has the answer
    of must not be sent again."""
    consents: dict[str, None] = field(factory=dict)
    """The call keys of which one repeat is allowed."""
    brought: dict[str, None] = field(factory=dict)
    """The call keys of which a request has brought consent along."""
    found: Generation | None = None
    """The generation that last worked at this endpoint."""
    found_at: float = NEVER
    """When that was seen to be 2026-07-28, for want of sessions that can be resumed."""
    rounds: dict[bytes, tuple[Round, ...]] = field(factory=dict, init=False)
    """Calls that go on with another request, by the key of that."""
    went_on: dict[bytes, WentOn] = field(factory=dict, init=False)
    """Those that several hosts go on with, once one has."""
    names: dict[str, Named] = field(factory=dict, init=False)
    _links: dict[str, str] = field(factory=dict, init=False)
    """By call key, the name of a call that repeated the one with this key, and has what became of it."""
    _in_flight: dict[bytes, list[Call]] = field(factory=dict, init=False)

    def consent(self, call_key: str) -> None:
        """The user allows one repeat of the call with this key, or name."""
        self.consents[call_key] = None
        bound(self.consents)

    def consented(self, call: Call, call_key: str, brought: str | None) -> bool:
        """Whether there is consent to this repeat of the call with that key; it is used up by this.

        `brought`: the key or name by which the request brings it along. One that comes again, as those of
        frameworks do that repeat what failed, brings the same consent, which was to one repeat.
        """
        if brought is not None and not self.brought.keys() & {call_key, brought}:
            self._bring(call_key, brought)
            call.consent, call.brought = call_key, brought
            return True
        given = next((key for key in (call_key, self.linked(call_key)) if key in self.consents), None)
        if given is None:
            return False
        del self.consents[given]
        call.consent, call.brought = call_key, None
        return True

    def _bring(self, *call_keys: str) -> None:
        """By none of these can a request bring another consent: the name may be that of the repeat itself now."""
        for call_key in call_keys:
            self.brought[call_key] = None
            bound(self.brought)

    def give_back(self, call: Call) -> None:
        """Nothing of this repeat has run, nor will."""
        if call.consent is not None and call.brought is not None:
            for key in (call.consent, call.brought):
                self.brought.pop(key, None)
        elif call.consent is not None:
            self.consent(call.consent)
        call.consent = None

    def shift(self, seconds: float) -> None:
        """From now on the machines' clock shows so much more: each event loop has its own."""
        super().shift(seconds)
        for waiting in (one for alike in self.rounds.values() for one in alike):
            waiting.consented_at += seconds

    def restore(self, calls: Iterable[StoredCall], wall_now: float, now: float) -> None:
        """What the ledger on disk knows of calls in doubt and of names, oldest row first.

        `wall_now` is on the clock of the rows, `now` on that of the machines. A call without an outcome is in
        doubt from now on, and so is one of whose outcome nobody was told: nobody could repeat it before, and it
        stays so until somebody is. Call it before any machine begins.
        """
        for call in calls:
            if call.is_hook_s:
                continue
            reason = call.reason or PROCESS_DIED
            told = CallInDoubt(reason, call.method, call.tool, call.call_key, "-")
            unknown = call.outcome in NOT_KNOWN and not call.did_not_run
            since = None if call.told is Told.NOBODY else call.settled_at
            at = now if since is None else now - max(0.0, wall_now - since)
            told_at = NOT_YET if since is None else at
            doubt = Doubt(call.call_key, told, at, told_at, call.named, number=call.wire_id)
            if unknown and call.method == "tools/call" and call.may_have_side_effects:
                self.doubt(call.arguments_digest, doubt)
            elif _is_unheard(call):
                self.doubt(call.arguments_digest, evolve(doubt, answer=call.answer))
            if call.consent_spent:
                self._bring(call.call_key, *([] if call.also_named is None else [call.also_named]))
            if call.named or call.also_named is not None:
                not_kept = call.outcome in WAS_ANSWERED and call.answer is None
                if not_kept:
                    told = evolve(told, reason="it was answered, but its answer was not kept")
                known = told if unknown or not_kept else None
                found = Named(call.call_key, call.arguments_digest, None, call.answer, known)
                before = self.names.get(call.call_key)
                if call.named and before is None:
                    self.name(call.call_key, found)
                elif call.named and not call.did_not_run:
                    self.name(call.call_key, _of_two(before, found))
                if call.also_named is not None:
                    self._links[call.call_key] = call.also_named
                    self.name(call.also_named, found)

    def open_round(self, round: Round) -> None:
        """A server waits for this call to go on."""
        self.rounds[round.key] = (*self.rounds.pop(round.key, ()), round)[-KEPT_ALIKE:]
        bound(self.rounds)

    def told_as_well(self, key: bytes, call_key: str) -> None:
        """One host more was told that the server waits for this call to go on."""
        for waiting in self.rounds.get(key, ()):
            if waiting.call_key == call_key:
                waiting.others += 1

    def take_round(self, key: bytes | None, name: str | None) -> Round | None:
        """The call that a request with this key continues. Once: another with this key repeats the request.

        A request with a name continues what has this name, or has none yet where the name is new: two names are
        two calls, however alike they stop. One that may repeat what is in doubt goes first: the others may not.
        """
        waiting = self.rounds.pop(key, ()) if key is not None else ()
        fits = [w for w in waiting if name in (None, w.call_key) or not (w.named or name in self.names)]
        fits.sort(key=lambda one: one.consented_at, reverse=True)
        left = tuple(w for w in waiting if w not in fits[:1])
        if left:
            self.rounds[left[0].key] = left
        return fits[0] if fits else None

    def goes_on(self, call: Call, known: Named) -> None:
        """What is known of a request that continues a call, for the other hosts that go on with it, too."""
        goes_on = call.continues
        if goes_on is None:
            return
        if known.answer is not None:
            self.served(goes_on, call.went_along)
            call.went_along = 0
        # One in doubt holds back whoever would get the answer of an equal one, and cannot be told from its repeat.
        if goes_on.others > 0 or (goes_on.key in self.went_on and known.told is not None):
            self.went_on[goes_on.key] = WentOn(goes_on, known)
            bound(self.went_on)

    def served(self, goes_on: Round, hosts: int) -> None:
        """So many of the others have what came of it."""
        goes_on.others -= hosts
        last = self.went_on.get(goes_on.key)
        if last is not None and last.round is goes_on and goes_on.others <= 0:
            del self.went_on[goes_on.key]

    def begin(self, digest: bytes, call: Call) -> None:
        self._in_flight.setdefault(digest, []).append(call)

    def end(self, digest: bytes, call: Call) -> None:
        left = [other for other in self._in_flight.pop(digest, ()) if other is not call]
        if left:
            self._in_flight[digest] = left

    def in_flight(self, digest: bytes) -> list[Call]:
        """The unsafe calls under way, in any connection, with this tool and these arguments."""
        return self._in_flight.get(digest, [])

    def leave(self, machine: int, now: float, host_id: str | int | None = None) -> None:
        """This request of a connection, or all of them, waits no more for the answer to a call that it repeats."""
        alike = [call for calls in self._in_flight.values() for call in calls]
        known = (*self.names.values(), *(went_on.known for went_on in self.went_on.values()))
        for call in (*alike, *(one.call for one in known if one.call is not None)):
            gone = [j for j in call.joined if j.machine == machine and host_id in (None, j.host_id)]
            call.joined[:] = [j for j in call.joined if j not in gone]
            along = sum(j.goes_along for j in gone)
            call.went_along -= along
            call.left += [now] * (len(gone) - along)

    def link(self, name: str, named: Named) -> None:
        """A named call gets what becomes of one that was sent without that name: it stands for that now."""
        self._links[named.call_key] = name
        self.name(name, named)

    def linked(self, call_key: str) -> str | None:
        """The name of a repeat that stands for the call with this key; unless it was sent itself since."""
        name = self._links.get(call_key)
        named = None if name is None else self.names.get(name)
        return name if named is not None and named.call_key == call_key else None

    def settled(self, call: Call, known: Named) -> None:
        """Its names stand for what it has come to; and again, should nothing run of a repeat by consent."""
        for name in (call.call_key, self._links.get(call.call_key, "")):
            repeat = self.names[name].call if name in self.names else None
            if repeat is None or repeat.first_wire_id == call.first_wire_id:
                continue
            before = repeat.newest.stood_for
            if before is not None and before.call_key == call.call_key and _is_of(before, call):
                repeat.newest.stood_for = known
        for name in self.names_of(call):
            self.name(name, self._of_both(name, call, known))
        if known.answer is not None or (known.told is not None and call.own is not Own.HEIR):
            for key in (call.call_key, *self.names_of(call)):
                # What was given before was to no doubt, or to the last one; or it is no doubt any more.
                self.consents.pop(key, None)

    def _of_both(self, name: str, call: Call, known: Named) -> Named:
        """What a name of this call stands for, now that it has come to what is `known`."""
        other, before = self.names.get(name), call.stood_for
        if other is not None and other is not before and not _is_of(other, call):
            return _of_two(known, other)
        return _of_two(before, known)

    def names_of(self, call: Call) -> tuple[str, ...]:
        """All that the host may call this call by."""
        own, linked = (call.call_key,) if call.named else (), self.linked(call.call_key)
        return own if linked is None else (*own, linked)

    def is_named(self, what: Call | Doubt) -> bool:
        """Whether the host has a name for it, or had: what that stands for by now is another matter."""
        return what.named or what.call_key in self._links

    def has_name(self, call_key: str) -> bool:
        """Whether this is the name of a call, or the host has one for the call with this key."""
        return call_key in self.names or self.linked(call_key) is not None

    def name(self, name: str, named: Named) -> None:
        self.names.pop(name, None)
        self.names[name] = named
        if len(self.names) > self.keep_names:
            oldest = next((key for key, known in self.names.items() if known.call is None), None)
            if oldest is not None:
                self._links.pop(self.names.pop(oldest).call_key, None)


def _of_two(older: Named | None, newer: Named) -> Named:
    """What a name stands for that two calls have had, which ran or may have: the newer, unless the older alone has
    succeeded."""
    return older if older is not None and older.has_succeeded and not newer.has_succeeded else newer


def _is_of(named: Named, call: Call) -> bool:
    return named.number in (0, call.first_wire_id)


def _is_unheard(call: StoredCall) -> bool:
    """Whether it has an answer that its caller never had."""
    answered = call.outcome in WAS_ANSWERED and call.answer is not None
    return answered and call.told is not Told.CALLER and call.may_have_side_effects and call.method == "tools/call"
