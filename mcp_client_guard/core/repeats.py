"""The repeat latch, and calls that the host has named: is this call another one come again?"""

from __future__ import annotations

from attrs import define

from .actions import Report, Save
from .answers import CODE_NAME_TAKEN, CallInDoubt, error_answer
from .ledger import Call
from .model import CallRepeated
from .outcomes import Outcomes
from .report import RepeatJoined, RepeatRefused
from .shared import Named


@define(eq=False, repr=False)
class Repeats(Outcomes):
    """Refuses, joins or answers a call that repeats one whose outcome is not known (DESIGN §5)."""

    def _is_repeat(self, call: Call, consent: str | None) -> bool:
        """Whether this call repeats another that may have run; if so, it is answered or joined, not sent."""
        digest = call.digest
        if call.named and (named := self.shared.names.get(call.call_key)) is not None:
            return self._is_named_repeat(call, named, consent)
        if not call.is_unsafe_call or self.policy.resend_of(call.tool) == "always":
            return False
        doubt = self.shared.doubted(digest, self.policy, self.clock.now)
        if doubt is not None:
            if consent == doubt.call_key or self.shared.consented(doubt.call_key):
                self.shared.resolved(digest, doubt.call_key)
                return False
            self._refuse_repeat(call, doubt.told)
            return True
        troubled = next((other for _, other in self.shared.in_flight(digest) if other.troubled), None)
        if troubled is not None:
            self._join(call, troubled)
        return troubled is not None

    def _is_named_repeat(self, call: Call, named: Named, consent: str | None) -> bool:
        """The same name is the same call: it is attached to, and sent only if it never ran."""
        key = call.call_key
        if named.digest != call.digest:
            text = f"The call key {key!r} names another call: other tool or arguments"
            self._deliver(error_answer(call.host_id, CODE_NAME_TAKEN, text))
        elif named.call is not None:
            self._join(call, named.call)
        elif named.answer is not None:
            self._deliver({"jsonrpc": "2.0", **named.answer, "id": call.host_id})
            self.out.append(Save((CallRepeated(key),)))
        elif named.told is None or consent == key or self.shared.consented(key):
            return False
        else:
            self._refuse_repeat(call, named.told)
        return True

    def _refuse_repeat(self, call: Call, told: CallInDoubt) -> None:
        self._deliver(self._doubt_answer(call, told))
        self.out.append(Save((CallRepeated(told.call_key),)))
        self.out.append(Report(RepeatRefused(call.tool, told.call_key)))

    def _join(self, call: Call, other: Call) -> None:
        assert call.host_id is not None
        other.joined.append((self.machine, call.host_id))
        self.out.append(Save((CallRepeated(other.call_key),)))
        self.out.append(Report(RepeatJoined(call.tool, other.call_key)))
