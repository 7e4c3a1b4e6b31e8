"""A session that may be lost: which refusals say so, and what a ping says to that (DESIGN §5)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from attrs import define, field

from .actions import NO_DELAY, Delay
from .classify import (
    BUSY,
    Ran,
    Ruling,
    SessionWord,
    code_of,
    ends_legacy,
    is_modern,
    is_suspect_answer,
    knows_no_session,
    rule_on,
)
from .detecting import Detecting
from .inputs import UNREADABLE
from .ledger import Call, Own, Refusal
from .messages import messages_of
from .model import JSON, Outcome
from .state import SessionState
from .stranded import Stranded
from .stream import Stream

_S = SessionState


@define(eq=False, repr=False)
class Suspecting(Detecting):
    """Tells a refusal that is an answer from one that a lost session draws."""

    _suspects: list[Stranded] = field(factory=list, init=False)
    """Refused in a way that may mean a lost session: a ping decides."""
    _drew: Refusal | None = field(default=None, init=False)
    """What nobody waits for (a GET, a question about a task) drew this, which may mean a lost session, too."""
    _drew_alike: bool = field(default=False, init=False)
    """The ping drew the same as that: a session that is opened for it is compared."""
    _ping: Call | None = field(default=None, init=False)
    """Under the present session."""
    _comparison: Call | None = field(default=None, init=False)
    """A ping under the session that replaces a suspected one: what both refuse alike meant nothing."""
    _may_compare_again: bool = field(default=False, init=False)
    _is_ping_mute: bool = field(default=False, init=False)
    """This server refuses every ping: it is asked for its tools instead."""
    _last_word: Refusal | None = field(default=None, init=False)
    """What a ping drew from the session that is, or is taken to be, gone."""
    _last_word_of: int = field(default=0, init=False)
    """The incarnation of that session."""

    # What refusals say.

    def refused(self, call: Call, refusal: Refusal, *, session_sent: bool) -> None:
        """The POST of this request drew a status that is no answer of the usual kind."""
        if call.method == "initialize" and self.hold_refusal(call, refusal, session_sent=session_sent):
            return
        ruling = self._rule_on(call, refusal, session_sent=session_sent)
        reason = f"HTTP {refusal.status}"
        gone = ruling.session is SessionWord.GONE
        if gone and self._ask_for_tools(call, refusal):
            return
        if gone and call.incarnation == self.session.incarnation:
            self.lose_session(reason)
        if not call.in_flight:
            return
        if call.own not in (None, Own.HOOK):
            self._own_failed(call, reason, refusal)
        elif gone:
            self._strand(Stranded(call, reason, Ran.MAYBE if call.was_taken else Ran.NO, refusal))
        elif ruling.session is SessionWord.ASK and self._may_suspect(call, refusal):
            self._suspect(Stranded(call, reason, _ran_if_gone(call, ruling), refusal))
        else:
            self._settle_refused(call, ruling.ran, refusal)

    def _ask_for_tools(self, call: Call, refusal: Refusal) -> bool:
        """Of a server without `ping`, which may say so by 404, where nothing else speaks against the session.
        Returns whether it is asked."""
        is_ping = call is self._ping and call.method == "ping" and refusal.status == 404
        is_spoken_against = self._suspects or self._drew is not None or self.streams.brought_endpoint
        if not is_ping or is_spoken_against or "tools" not in self.session.capabilities:
            return False
        self._settle(call, Outcome.NOT_EXECUTED, "HTTP 404")
        self._is_ping_mute = True
        self._ping = self._send_ping()
        return True

    def _rule_on(self, call: Call, refusal: Refusal, *, session_sent: bool) -> Ruling:
        is_trusted = refusal.status in BUSY and self.policy.trust_status
        return rule_on(
            refusal.status,
            refusal.body,
            session_sent=session_sent,
            names_it=refusal.names(call),
            unsafe=call.may_have_side_effects and not is_trusted and self.policy.resend_of(call.tool) != "always",
            may_retry=refusal.retry_after is not None,
            is_late=refusal.is_late,
            is_session_lost=self.policy.is_session_lost,
        )

    def suspect_answer(self, call: Call, body: Any, reason: str) -> bool:
        """Look whether what came with status 200 is the answer, and act on it if not. Returns whether it is none,
        of this session or of any, or not before a ping was answered."""
        if call.method == "initialize":
            return False
        is_named = self.session.session_id is not None and not call.stateless
        refusal = Refusal(200, body)
        ruling = self._rule_on(call, refusal, session_sent=is_named or (self.is_legacy and not call.stateless))
        # A legacy session lives as long as its stream, save by the user's own word.
        asks = is_named and ruling.session is SessionWord.ASK
        if ruling.session is SessionWord.GONE:
            self.refused(call, refusal, session_sent=True)
        elif call.method == "ping":
            return False
        elif not call.in_flight:
            # Told in doubt, or given up, and stays so: the ping is for the session alone.
            if asks and not self.is_over(call):
                self.probe(refusal)
            return asks or ruling.ran is Ran.MAYBE
        elif asks and self._may_suspect(call, refusal):
            self._suspect(Stranded(call, reason, _ran_if_gone(call, ruling), refusal))
        elif ruling.ran is Ran.MAYBE and messages_of(body):
            call.said = body
            self.in_doubt(call, f"it was answered with error {code_of(body)}")
        else:
            return False
        return True

    def unreadable(self, call: Call, body: Any, reason: str) -> None:
        """What came with status 200 is no answer to this request, and no other will follow."""
        said = _said_by(body)
        if not call.in_flight or self.suspect_answer(call, said, reason):
            return
        if call.own is Own.PING:
            self._own_failed(call, reason, Refusal(200, said))
        else:
            self.in_doubt(call, reason)

    def is_told_lost(self, call: Call, body: Any) -> bool:
        """Whether by the user's own word this, with status 200, is said by a server that has lost the session."""
        ruling = self._rule_on(call, Refusal(200, _said_by(body)), session_sent=True)
        return ruling.session is SessionWord.GONE

    def _may_suspect(self, call: Call, refusal: Refusal) -> bool:
        """Not where a new session has made no difference. Nor is what is no answer the word of a server that has
        lost the session, once the request was taken."""
        drew_it_before = call.refusal is not None and call.refusal.is_like(refusal)
        is_word = refusal.status >= 400 or is_suspect_answer(refusal.body)
        if call.is_internal or drew_it_before or (call.was_taken and not is_word):
            return False
        if self._suspicion is not None or self.is_over(call):
            unread = call.legacy and ends_legacy(refusal.status) and not refusal.names(call)
            return unread or self._is_last_word(call, refusal)
        return self.session.state is _S.LIVE

    def _is_last_word(self, call: Call, refusal: Refusal) -> bool:
        """Whether the session of this request says so to everything, its ping too.

        Anything else is said of this request alone: it is the answer, however its session has ended meanwhile.
        """
        word = self._last_word
        if word is None or call.incarnation != self._last_word_of:
            return False
        # Which of its errors a server without sessions gives depends on the request; but a tool gives them, too.
        both = knows_no_session(word.status, word.body) and knows_no_session(refusal.status, refusal.body)
        unread = not call.is_unsafe_call or is_modern(refusal.body)
        return (both and unread) or word.is_like(refusal)

    def _suspect(self, suspect: Stranded) -> None:
        if self.is_over(suspect.call) and not self._suspects_of(suspect.call.incarnation):
            self._strand(suspect)
            return
        suspect.call.troubled = suspect.call.suspected = True
        self._suspects.append(suspect)
        self.probe()

    def probe(self, drew: Refusal | None = None) -> None:
        """Ask whether the session still answers; one ping at a time. `drew`: what has made us ask."""
        if drew is not None and rule_on(drew.status, drew.body, session_sent=True).session is SessionWord.ALIVE:
            return
        self._drew = drew or self._drew
        if self._ping is None and self._comparison is None and self.session.state is _S.LIVE:
            self._ping = self._send_ping()

    def _suspects_of(self, incarnation: int) -> list[Stranded]:
        return [s for s in self._suspects if s.call.incarnation == incarnation and s.call.in_flight]

    def _send_ping(self, delay: Delay = NO_DELAY) -> Call:
        lists = self._is_ping_mute and "tools" in self.session.capabilities
        return self._send_own(Own.PING, "tools/list" if lists else "ping", {}, delay=delay)

    def _restore(self) -> None:
        if self._suspects or self._drew_alike:
            self._comparison = self._send_ping()
            self._may_compare_again = True
        self._drew_alike = False
        super()._restore()

    def _compared(self, refusal: Refusal | None, *, answered: bool) -> None:
        """The new session was asked what the old one was: what both say means nothing.

        Only an answer shows that the old one was gone: a comparison that is lost, or refused by who knows whom, is
        made once more, and then each suspect has drawn its answer.
        """
        self._comparison = None
        word = self._last_word
        means_nothing = word is not None and refusal is not None and word.is_like(refusal)
        was_gone = answered and not means_nothing
        old = self._suspects_of(self._last_word_of)
        if old and not (means_nothing or was_gone) and self._may_compare_again:
            self._may_compare_again = False
            self._comparison = self._send_ping(Delay(1))
            return
        self._is_ping_mute = self._is_ping_mute or means_nothing
        if not was_gone:
            self._last_word = None
        self._suspects = [suspect for suspect in self._suspects if suspect not in old]
        for suspect in old:
            if was_gone:
                self._strand(suspect)
            else:
                self._believe(suspect)
        if self._suspects:
            self.probe()

    def _ping_over(self, refusal: Refusal | None, answered: bool) -> None:
        self._ping = None
        if self.session.state is _S.LIVE:
            self._last_word = refusal if self._may_look() else None
            self._last_word_of = self.session.incarnation
            self._suspects = self._alike()
            reasons = [suspect.reason for suspect in self._suspects]
            drew, self._drew = self._drew, None
            self._drew_alike = drew is not None and self._last_word is not None and self._last_word.is_like(drew)
            if drew is not None and self._drew_alike:
                reasons.append(f"HTTP {drew.status}" if drew.status != 200 else f"error {code_of(drew.body)}")
            if reasons:
                why = f"a ping drew the same refusal ({reasons[0]})"
                if not self.is_legacy:
                    self._suspicion = why
                    self._open_another()
                elif refusal is not None and ends_legacy(refusal.status):
                    self.lose_session(why, by_word=True)
                else:
                    self.clear_suspects()
        self.streams.ping_over(answered)

    def _alike(self) -> list[Stranded]:
        """The suspects that drew what the ping drew; what the others drew says nothing of the session."""
        suspects, self._suspects = [s for s in self._suspects if s.call.in_flight], []
        alike = []
        for suspect in suspects:
            if suspect.refusal is not None and self._is_last_word(suspect.call, suspect.refusal):
                alike.append(suspect)
            else:
                self._believe(suspect)
        return alike

    def clear_suspects(self, only: Call | None = None, *, may_wait: bool = True) -> None:
        """Nobody can say that the session is gone, nor that it lives: it is kept.

        Not `may_wait`: they must have their outcome now.
        """
        suspects = [s for s in self._suspects if only in (None, s.call)]
        self._suspects = [s for s in self._suspects if s not in suspects]
        for suspect in suspects:
            self._believe(suspect, may_wait=may_wait)

    def _believe(self, suspect: Stranded, *, may_wait: bool = True) -> None:
        """What this request drew says nothing of the session: it is what it would be without one."""
        call, refusal = suspect.call, suspect.refusal
        if not call.in_flight or refusal is None:
            return
        call.troubled = call.suspected = False
        ran = self._rule_on(call, refusal, session_sent=False).ran
        messages = messages_of(refusal.body) if refusal.status == 200 else ()
        if messages and ran is Ran.MAYBE:
            self.streams.abandon_call(call.wire_id)
            call.said = messages[0]
            self.in_doubt(call, f"it was answered with error {code_of(refusal.body)}", again=may_wait)
        elif messages:
            self.settle_answer(call, messages[0])
            self.streams.finish_call(call.wire_id)
        elif refusal.status == 200 and not may_wait:
            self._tell_in_doubt(call, suspect.reason)
        elif refusal.status == 200:
            self._strand(Stranded(call, suspect.reason, Ran.MAYBE, refusal))
        else:
            self._settle_refused(call, ran, refusal, may_wait=may_wait)

    def _strand_suspects(self, by_word: bool) -> None:
        """That the session is gone by another sign says nothing of them: the next session is compared.

        Nor does the end of a session with which an older one was to be compared.
        """
        older = [suspect for suspect in self._suspects if suspect.call.incarnation != self.session.incarnation]
        self._suspects = [suspect for suspect in self._suspects if suspect not in older]
        alike = self._alike()
        self._suspects = older if by_word else older + alike
        for suspect in alike if by_word else ():
            self._strand(suspect)

    # What comes of it.

    @abstractmethod
    def settle_answer(self, call: Call, message: JSON, stream: Stream | None = None) -> None:
        """This is the answer of the request."""
        ...

    @abstractmethod
    def lose_session(self, reason: str, *, by_word: bool = False) -> None:
        """The session is gone: nothing more is sent under it. `by_word`: what a ping drew there says so."""
        ...

    @abstractmethod
    def _may_look(self) -> bool:
        """Whether another session may be tried yet beside this one."""
        ...

    @abstractmethod
    def _open_another(self) -> None:
        """Open a session in place of this one, or beside it where that is only suspected."""
        ...


def _said_by(body: Any) -> Any:
    """What came in the place of an answer, as far as it says anything."""
    return None if body is UNREADABLE or messages_of(body) else body


def _ran_if_gone(call: Call, ruling: Ruling) -> Ran:
    """What a dead process has sent cannot be sent again, nor what the server has begun to answer."""
    return Ran.MAYBE if call.own is Own.HEIR or call.was_taken else ruling.ran_if_gone
