"""The repeat latch, and calls that the host has named: is this call another one come again?"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, evolve

from .actions import Report, Save
from .answers import CODE_NAME_TAKEN, error_answer
from .doubt import CallInDoubt
from .forms import why_unread
from .latch import NOT_YET, Doubt
from .ledger import Call, Joined, Own, Repeat
from .messages import tells_of_success
from .meta import CONSENT, meta_of
from .model import HAS_ANSWER, JSON, CallNamed, CallRepeated, ConsentSpent, OutcomeTold, Told
from .outcomes import Outcomes, key_of
from .report import RepeatJoined, RepeatRefused
from .rounds import Round, asks_for_input, awaited_key, continuing_key, goes_on_from
from .shared import Named, WentOn

_RESUMED = "the guard resumes calls by itself, and takes no resumption_token of the host's"


@define(eq=False, repr=False)
class Repeats(Outcomes):
    """Refuses, joins or answers a call that repeats one whose outcome is not known (DESIGN §5)."""

    def _join_or_answer(self, call: Call) -> bool:
        """If this call repeats another that may have run, it is not sent. Returns whether it is joined to that, or
        answered."""
        return self._join_or_answer_known(call) or self._refuse_resumed(call)

    def _join_or_answer_known(self, call: Call) -> bool:
        if call.method != "tools/call":
            return False
        self._take_digest(call)
        if self._answer_consented(call):
            return True
        if call.is_new:
            return False
        consent = meta_of(call.params, CONSENT)
        if call.continues is not None:
            return self._refuse_in_round(call, call.continues, consent)
        if call.named and self._join_or_answer_named(call, consent):
            return True
        went_on = self._went_on(call)
        if went_on is not None and call.stateless and not call.consented:
            return self._go_along(call, went_on, consent)
        return self._join_or_answer_alike(call, consent)

    def _answer_consented(self, call: Call) -> bool:
        """If what this may repeat by consent was answered while it waited to be sent. Returns whether."""
        if call.consent is None or call.continues is not None:
            return False
        doubts = self.shared.doubted(call.digest, self.policy, self.clock.now)
        answered = next((d for d in doubts if d.call_key == call.consent and d.answer is not None), None)
        if answered is not None:
            self._answer_repeat(call, answered)
        return answered is not None

    def _refuse_resumed(self, call: Call) -> bool:
        """If the host goes on with a request of before, by a cursor that is worth nothing here. Returns whether.

        To send it would be to make it anew; and which one it was nobody can say, however alike others are.
        """
        resumes = call.sent is not None and call.sent.resumes and call.may_have_side_effects
        if not resumes or call.consented or self.policy.resend_of(call.tool) == "always":
            return False
        if call.continues is not None:
            self.shared.open_round(call.continues)
        call.first_wire_id = call.wire_id
        self.ledger.admit(call)
        self.out.append(Save((self._row_of(call),)))
        self._tell_in_doubt(call, _RESUMED)
        self.out.append(Report(RepeatRefused(call.tool, call.call_key)))
        return True

    def _join_or_answer_named(self, call: Call, consent: str | None) -> bool:
        """By its name, for the same name is the same call: sent only if that never ran."""
        key = call.call_key
        named = self.shared.names.get(key)
        if named is None:
            return False
        answer, told = named.answer, named.told
        if answer is not None and (why := why_unread(answer, call)):
            answer, told = None, self._doubt_of(call, why, named.call_key)
        if named.digest != call.digest:
            text = f"The call key {key!r} names another call: other tool or arguments"
            self._answer(call, error_answer(call.host_id, CODE_NAME_TAKEN, text))
        elif named.call is not None:
            self._join(call, named.call)
        elif named.answer is not None and goes_on_from(call.params, named.answer):
            return False
        elif answer is not None and not tells_of_success(answer) and self._spend_given(call, named, consent):
            self.shared.name(key, Named(key, call.digest))
            call.stood_for = named
            return False
        elif answer is not None:
            self.shared.answered(call.digest, named.call_key)
            if asks_for_input(answer):
                self.shared.told_as_well(awaited_key(call.method, call.params, answer), named.call_key)
            self._give_answer(call, answer, named.call_key)
        elif told is None:
            return False
        elif self._spend_consent(call, named.call_key, consent):
            self.shared.name(key, Named(key, call.digest))
            call.stood_for = named
            return False
        else:
            self._refuse_repeat(call, told)
        return True

    def _went_on(self, call: Call) -> WentOn | None:
        """The request of another host's that this one repeats; but not if it may repeat one of a later call.

        A host that was told the same may never go on. As long as it may, calls stop and go on alike.
        """
        key = continuing_key(call.method, call.params) or b""
        went_on = self.shared.went_on.get(key)
        if went_on is None:
            return None
        doubts = self.shared.doubted(call.digest, self.policy, self.clock.now)
        others = [doubt.call_key for doubt in doubts if doubt.went_on_from == key]
        for one in self.shared.in_flight(call.digest):
            if one.troubled and one.continues is not None and one.continues.key == key:
                others.append(one.call_key)
        return went_on if all(other == went_on.known.call_key for other in others) else None

    def _go_along(self, call: Call, went_on: WentOn, consent: str | None) -> bool:
        """With another host that was told the same, since their calls were one: what they go on with is one
        request."""
        known, key = went_on.known, went_on.known.call_key
        if known.call is not None:
            known.call.went_along += 1
            self._join(call, known.call, goes_along=True)
        elif known.answer is not None:
            self.shared.served(went_on.round, 1)
            self._give_answer(call, known.answer, key)
        elif known.told is None or self._spend_consent(call, key, consent):
            return False
        else:
            self._refuse_repeat(call, known.told)
        return True

    def _refuse_in_round(self, call: Call, goes_on: Round, consent: str | None) -> bool:
        """If one that went on with its call from just there is in doubt: else it repeats none."""
        doubts = self.shared.doubted(call.digest, self.policy, self.clock.now)
        call.consented_at = max(call.consented_at, goes_on.consented_at)
        alike = [d for d in doubts if d.went_on_from == goes_on.key and d.at > call.consented_at]
        if not alike or self._spend_consent_to_one(call, alike, consent):
            named = self.shared.names.get(call.call_key)
            if named is not None and named.call is None:
                call.stood_for = named  # the question that it answers
            return False
        self.shared.open_round(goes_on)
        self._refuse_repeat(call, alike[-1].told)
        return True

    def _join_or_answer_alike(self, call: Call, consent: str | None) -> bool:
        """By tool and arguments; but two different names are the host's word that these are two calls."""
        if not call.is_unsafe_call:
            return False
        doubts = self.shared.doubted(call.digest, self.policy, self.clock.now)
        for doubt in doubts:
            if doubt.answer is not None and asks_for_input(doubt.answer) and not call.stateless:
                # Nothing ran, and whoever was asked has not heard of it: it begins anew in a session.
                self.shared.resolved(call.digest, doubt.call_key, doubt.number)
        doubts = self.shared.doubted(call.digest, self.policy, self.clock.now)
        doubts = tuple(doubt for doubt in doubts if not (call.named and self.shared.is_named(doubt)))
        if call.consented or self._spend_consent_to_one(call, doubts, consent):
            # The doubt stays: it is held against every other repeat, for the consent was to this one.
            return False
        if doubts:
            # While one of several is in doubt, nobody knows which of them is repeated.
            newest = next((doubt for doubt in reversed(doubts) if doubt.answer is None), doubts[-1])
            self._name_doubt(call, newest)
            self._answer_repeat(call, newest)
            return True
        alike = self.shared.in_flight(call.digest)
        joins = self.policy.joins_in_flight(call.tool)
        # Many may be alike and in flight at once, each of which looks at all the others: mostly there is nothing.
        joinable = [
            c for c in alike if joins or ((c.troubled or c.left or c.own is Own.HEIR) and self._may_repeat(c))
        ]
        if call.named:
            joinable = [c for c in joinable if not self.shared.is_named(c)]
        if not joinable or self.policy.resend_of(call.tool) == "always":
            return False
        # Of several heirs each has a caller of its own that comes again.
        self._join(call, min(joinable, key=lambda other: len(other.joined) - self._left_by(other)))
        return True

    def _may_repeat(self, call: Call) -> bool:
        """Two calls alike on healthy streams are two calls; but whoever made an heir is dead, and begins again."""
        return call.troubled or call.own is Own.HEIR or self._left_by(call) > 0

    def _name_doubt(self, call: Call, doubt: Doubt) -> None:
        """The name of this repeat stands for what it gets: it is not sent later either."""
        if call.named:
            told = doubt.told if doubt.answer is None else None
            self._link(call, Named(doubt.call_key, call.digest, None, doubt.answer, told))

    def _link(self, call: Call, named: Named) -> None:
        self.shared.link(call.call_key, named)
        # On disk before anybody acts on it.
        self.out.append(Save((CallNamed(named.call_key, call.call_key),), durable=True))

    def _spend_given(self, call: Call, named: Named, consent: str | None) -> bool:
        """Returns whether what this name was answered with may be asked for anew: not by policy alone."""
        by_policy = self.policy.resend_of(call.tool) == "always"
        return not by_policy and self._spend_consent(call, named.call_key, consent)

    def _spend_consent_to_one(self, call: Call, doubts: Sequence[Doubt], consent: str | None) -> bool:
        """Returns whether one of these may be repeated. Consent was to a doubt: an answer is stronger."""
        always = self.policy.resend_of(call.tool) == "always"
        keys = [doubt.call_key for doubt in doubts if always or doubt.answer is None]
        return any(self._spend_consent(call, key, consent) for key in keys)

    def _spend_consent(self, call: Call, call_key: str, consent: str | None) -> bool:
        """Returns whether the call with this key may be repeated: by policy, by the request, or by the user."""
        always = self.policy.resend_of(call.tool) == "always"
        fits = consent in (call_key, self.shared.linked(call_key))
        if not (always or self.shared.consented(call, call_key, consent if fits else None)):
            return False
        call.consented_at = self.clock.now
        if call.brought is not None:
            self.out.append(Save((ConsentSpent(call_key),)))
        return True

    def _answer_repeat(self, call: Call, doubt: Doubt) -> None:
        if doubt.answer is None:
            self._refuse_repeat(call, doubt.told)
            return
        if why := why_unread(doubt.answer, call):
            self._refuse_repeat(call, evolve(doubt.told, reason=why))
            return
        # Somebody has its answer now: what comes after this is no repeat of it.
        self.shared.answered(call.digest, doubt.call_key)
        self._give_answer(call, doubt.answer, doubt.call_key)

    def _give_answer(self, call: Call, answer: JSON, of: str) -> None:
        self._answer(call, {"jsonrpc": "2.0", **answer}, of=of)
        self.out.append(Save((CallRepeated(of),)))
        self.out.append(Report(RepeatJoined(call.tool, of)))

    def _refuse_repeat(self, call: Call, told: CallInDoubt) -> None:
        self._tell(call, self._doubt_answer(call, told), of=told.call_key)
        self.out.append(Save((CallRepeated(told.call_key),)))
        self.out.append(Report(RepeatRefused(call.tool, told.call_key)))

    def _repeat_drained(self, repeat: Repeat, message: JSON) -> None:
        is_owed = not repeat.by_guard and self.shared.owes(repeat.call.digest, repeat.of)
        if repeat.call.untold and not is_owed:
            # A later round has the same call key: that answer is not what was taken here.
            kept = self.policy.keep_results or self.shared.has_name(repeat.of) or asks_for_input(message)
            taken = not (kept or repeat.by_guard)
            self.out.append(Save((OutcomeTold(repeat.of, Told.CALLER, taken, repeat.by_guard),)))

    def _told(self, call: Call | Repeat, *, heard: bool) -> None:
        """The host has read what the guard had to say to this request; or never will."""
        if call.is_telling:
            call.is_telling = False
            digest = call.call.digest if isinstance(call, Repeat) else call.digest
            is_untold = self._has_left and isinstance(call, Call)
            self.shared.taken(digest, key_of(call), self.clock.now, heard=heard, is_untold=is_untold)

    def _give_up_answers(self, host_id: object = None) -> None:
        """The host leaves, or has cancelled this request, with the answer untaken: the first repeat gets that."""
        for answered, answer in self.streams.untaken():
            call = answered.call if isinstance(answered, Repeat) else answered
            if host_id not in (None, call.host_id):
                continue
            self._told(answered, heard=False)
            if call.untold and call.is_unsafe_call and _is_kept(answered, answer):
                call.untold = False
                key = key_of(answered)
                told = self._doubt_of(call, "its answer was not taken", key)
                named = call.named or key in self.shared.names
                went_on_from = continuing_key(call.method, call.params)
                now, number = self.clock.now, call.wire_id
                told_at = NOT_YET if self._has_left else now
                doubt = Doubt(key, told, now, told_at, named, answer, went_on_from, number=number)
                self.shared.doubt(call.digest, doubt)

    def _join(self, call: Call, other: Call, *, goes_along: bool = False) -> None:
        assert call.host_id is not None
        if call.named and call.call_key not in self.shared.names_of(other):
            named = Named(other.call_key, call.digest, other)
            if other.waits:
                self.shared.link(call.call_key, named)  # written with its row
            else:
                self._link(call, named)
        # With those who joined it while it waited for a session.
        one = Joined(self.machine, call.host_id, call.stateless, goes_along, call.as_task, call.named)
        other.joined += [one, *call.joined]
        call.joined.clear()
        # It may be the repeat of one that was given up.
        other.left += call.left
        if not goes_along:
            del other.left[:1]
        self.joins[call.host_id] = Repeat(call, other.call_key)
        if not other.waits:
            self.out.append(Save((CallRepeated(other.call_key),)))
        self.out.append(Report(RepeatJoined(call.tool, other.call_key)))


def _is_kept(answered: Call | Repeat, answer: JSON) -> bool:
    """Whether it says what the call has come to: not that it is in doubt, did not run, or goes on."""
    if answered.by_guard:
        return False
    if isinstance(answered, Call):
        return answered.outcome in HAS_ANSWER
    # What several hosts go on with is one request, whatever it comes to.
    goes_along = continuing_key(answered.call.method, answered.call.params) is not None
    return goes_along or not asks_for_input(answer)
