"""The session: suspected, lost, and opened again in the host's name (DESIGN §5)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from attrs import define, field

from .actions import NO_DELAY, CancelTimer, Delay, Report, Save, SetTimer, Timer, TimerKind
from .classify import LOCKED, Ran, SessionWord, ends_legacy, is_modern, knows_no_session, rule_on
from .detecting import Detecting
from .inputs import UNREADABLE
from .ledger import Call, Own, Refusal
from .messages import messages_of
from .model import JSON, Outcome, SessionEnded
from .reconcile import Stranded
from .report import SessionLost
from .restoring import RESTORING
from .session import differences
from .state import SessionState, SessionStep
from .stream import STANDALONE, Stream

_BUDGET_SECONDS = 60.0
_S = SessionState


@define(eq=False, repr=False)
class Recovery(Detecting):
    """Owns what becomes of the session."""

    opens_standalone: bool
    why_lost: str = field(default="the session is lost", init=False)
    _suspects: list[Stranded] = field(factory=list, init=False)
    """Refused in a way that may mean a lost session: a ping decides."""
    _ping: Call | None = field(default=None, init=False)
    """Under the present session."""
    _comparison: Call | None = field(default=None, init=False)
    """The same in a session that replaces a suspected one: what it refuses alike meant nothing."""
    _may_compare_again: bool = field(default=False, init=False)
    _is_ping_mute: bool = field(default=False, init=False)
    """This server refuses every ping: it is asked for its tools instead."""
    _last_word: Refusal | None = field(default=None, init=False)
    """What a ping drew from the session that is, or is taken to be, gone."""
    _last_word_of: int = field(default=0, init=False)
    """The incarnation of that session."""
    _initializing: Call | None = field(default=None, init=False)
    _opened_lately: int = field(default=0, init=False)
    _attempts: int = field(default=0, init=False)
    """To open a session, in a row, of which none became live."""
    _is_leaving: bool = field(default=False, init=False)
    """The streams of a lost session are being given up: what one of them opened would go with the others."""

    # What refusals say.

    def refused(self, call: Call, refusal: Refusal, *, session_sent: bool) -> None:
        """The POST of this request drew a status that is no answer of the usual kind."""
        if call.method == "initialize" and self.holds_refusal(call, refusal, session_sent=session_sent):
            return
        predicate = self.policy.is_session_lost
        ruling = rule_on(refusal.status, refusal.body, session_sent=session_sent, is_session_lost=predicate)
        reason = f"HTTP {refusal.status}"
        gone = ruling.session is SessionWord.GONE
        if gone and call.incarnation == self.session.incarnation:
            self.lose_session(reason)
        if not call.in_flight:
            return
        if call.own not in (None, Own.HOOK):
            self._own_failed(call, reason, refusal)
        elif gone:
            self._strand(Stranded(call, reason, Ran.MAYBE if call.was_taken else Ran.NO, refusal))
        elif ruling.session is SessionWord.ASK and self._may_suspect(call, refusal):
            self._suspect(Stranded(call, reason, ruling.ran_if_gone, refusal))
        else:
            self._settle_refused(call, ruling.ran, refusal)

    def doubts_answer(self, call: Call, body: Any, reason: str) -> bool:
        """Whether what came with status 200 is no answer of this session's, or not before a ping was answered."""
        if call.stateless or call.method == "initialize" or self.session.session_id is None:
            return False
        refusal = Refusal(200, body)
        ruling = rule_on(200, body, session_sent=True, is_session_lost=self.policy.is_session_lost)
        if ruling.session is SessionWord.GONE:
            self.refused(call, refusal, session_sent=True)
            return True
        if ruling.session is SessionWord.ALIVE or call.method == "ping" or not self._may_suspect(call, refusal):
            return False
        self._suspect(Stranded(call, reason, ruling.ran_if_gone, refusal))
        return True

    def unreadable(self, call: Call, body: Any, reason: str) -> None:
        """What came with status 200 is no answer to this request, and no other will follow."""
        said = None if body is UNREADABLE or messages_of(body) else body
        if not call.in_flight or self.doubts_answer(call, said, reason):
            return
        if call.own is Own.PING:
            self._own_failed(call, reason, Refusal(200, said))
        else:
            self.in_doubt(call, reason)

    def _may_suspect(self, call: Call, refusal: Refusal) -> bool:
        """Not where a new session has made no difference, nor where the request was taken: it is an answer."""
        drew_it_before = call.refusal is not None and call.refusal.is_like(refusal)
        if call.own not in (None, Own.HOOK) or call.was_taken or drew_it_before:
            return False
        if self._suspicion is not None or self.is_over(call):
            names_it = isinstance(refusal.body, dict) and refusal.body.get("id") == call.wire_id
            unread = self.is_legacy and ends_legacy(refusal.status) and not names_it
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

    def probe(self) -> None:
        """Ask whether the session still answers; one ping at a time."""
        if self._ping is None and self._comparison is None and self.session.state is _S.LIVE:
            self._ping = self._send_ping()

    def _suspects_of(self, incarnation: int) -> list[Stranded]:
        return [s for s in self._suspects if s.call.incarnation == incarnation and s.call.in_flight]

    def _send_ping(self, delay: Delay = NO_DELAY) -> Call:
        lists = self._is_ping_mute and "tools" in self.session.capabilities
        return self._send_own(Own.PING, "tools/list" if lists else "ping", {}, delay=delay)

    def _restore(self) -> None:
        if self._suspects:
            self._comparison, self._may_compare_again = self._send_ping(), True
        super()._restore()

    def _compared(self, refusal: Refusal | None, *, answered: bool) -> None:
        """The new session was asked what the old one was: what both say means nothing.

        Only an answer shows that the old one was gone: a comparison that is lost, or refused by who knows whom, is
        made once more, and then each suspect has drawn its answer.
        """
        self._comparison, word = None, self._last_word
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
            self._last_word = refusal if self._may_open() else None
            self._last_word_of = self.session.incarnation
            self._suspects = self._alike()
            if self._suspects:
                why = f"a ping drew the same refusal ({self._suspects[0].reason})"
                if not self.is_legacy:
                    self._suspicion = why
                    self._open_another()
                elif refusal is not None and ends_legacy(refusal.status):
                    self.lose_session(why, by_word=True)
                else:
                    self.clear_suspects()
        self.streams.ping_over(answered)

    def _alike(self) -> list[Stranded]:
        """The suspects that drew what the ping drew; what the others drew is their answer."""
        suspects, self._suspects = [s for s in self._suspects if s.call.in_flight], []
        alike = []
        for suspect in suspects:
            if suspect.refusal is not None and self._is_last_word(suspect.call, suspect.refusal):
                alike.append(suspect)
            else:
                self._believe(suspect)
        return alike

    def clear_suspects(self, only: Call | None = None, *, may_wait: bool = True) -> None:
        """The session lives, as far as anybody can say: what looked like its end was an answer.

        Not `may_wait`: they must have their outcome now.
        """
        suspects = [s for s in self._suspects if only in (None, s.call)]
        self._suspects = [s for s in self._suspects if s not in suspects]
        for suspect in suspects:
            self._believe(suspect, may_wait=may_wait)

    def _believe(self, suspect: Stranded, *, may_wait: bool = True) -> None:
        """What this request drew says nothing of the session."""
        call, refusal = suspect.call, suspect.refusal
        if not call.in_flight or refusal is None:
            return
        call.troubled = call.suspected = False
        messages = messages_of(refusal.body) if refusal.status == 200 else ()
        if messages:
            self.settle_answer(call, messages[0])
        elif refusal.status == 200 and not may_wait:
            self._tell_in_doubt(call, suspect.reason)
        elif refusal.status == 200:
            self._strand(Stranded(call, suspect.reason, Ran.MAYBE, refusal))
        else:
            ran = rule_on(refusal.status, refusal.body, session_sent=True).ran
            self._settle_refused(call, ran, refusal, may_wait=may_wait)

    @abstractmethod
    def settle_answer(self, call: Call, message: JSON, stream: Stream | None = None) -> None:
        """This is the answer of the request."""
        ...

    # The end of a session, and the next one.

    def lose_session(self, reason: str, *, by_word: bool = False) -> None:
        """The session is gone: nothing more is sent under it. `by_word`: what a ping drew there says so."""
        state = self.session.state
        opening = state is _S.INITIALIZING and self.ledger.has_in_flight("initialize")
        if state is _S.CLOSED or opening or self.is_lost:
            return
        self._end_session(reason)
        if state is _S.REINITIALIZING:
            self._suspicion = None
        else:
            if state in (_S.CONFIRMING, _S.RESTORING):
                self._attempts += 1
            self.session.move(SessionStep.GONE)
            self.out.append(CancelTimer(RESTORING))
            self._restoring.clear()
        self._is_leaving = True
        self.streams.leave_session(self._opener())
        self._strand_suspects(by_word or self.is_legacy)
        self._is_leaving = False
        self._reinitialize()

    def _opener(self) -> Stream | None:
        return None if self._initializing is None else self.streams.of(self._initializing)

    def _end_session(self, reason: str) -> None:
        self._ping = self._comparison = None
        self.out.append(Save((SessionEnded(self.session.incarnation, reason),)))
        self.out.append(Report(SessionLost(self.session.fingerprint, reason)))

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

    def _may_open(self) -> bool:
        most = self.policy.reinitialize_limit
        known = self.session.initialize_params is not None
        return known and self._opened_lately < most and self._attempts < most

    def _reinitialize(self) -> None:
        if self.session.state is not _S.LOST or self._is_leaving:
            return
        if not self._may_open():
            spent = self.session.initialize_params is not None
            self._stay_lost("too many sessions were lost in a row" if spent else "there is no session")
            return
        self._open_another()

    def _open_another(self) -> None:
        if not self._opened_lately:
            self.out.append(SetTimer(_BUDGET, _BUDGET_SECONDS))
        self._opened_lately += 1
        params = self.session.initialize_params
        assert params is not None
        self.session.move(SessionStep.REINITIALIZE_SENT)
        self._initializing = self._send_own(Own.INITIALIZE, "initialize", params, delay=Delay(self._attempts))

    def stop_opening(self) -> None:
        """The host opens a session itself."""
        call, self._initializing = self._initializing, None
        if call is not None:
            self.let_go_of(call)
            self.streams.cancel(call)
            self._settle(call, Outcome.CANCELLED, "the host opens a session itself")
        self._suspicion, self._is_restore = None, False
        self.clear_suspects()

    def budget_refilled(self) -> None:
        """A minute is over since the first of the sessions that were opened in place of lost ones."""
        self._opened_lately = 0

    def reconnect(self) -> None:
        """The user wants it tried now: a session that could not be opened, and whether the present one answers."""
        self._opened_lately = self._attempts = 0
        self._reinitialize()
        self.probe()

    def _reopened(self, stream: Stream, call: Call, message: JSON) -> None:
        """Our own `initialize` was answered."""
        self._initializing = None
        result = message.get("result")
        if not isinstance(result, dict):
            self._not_reopened("its initialize was answered with an error", Refusal(200, message))
            return
        if self._suspicion is not None:
            self._end_session(self._suspicion)
            self.streams.leave_session(stream)
        self._suspicion, self._is_restore = None, True
        self._differences = differences(self.session.initialize_result, result)
        self.opened(self.streams.of(call) or stream, call.params, result)
        number = self.streams.post_note(
            self.ledger.new_wire_id(),
            "notifications/initialized",
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {},
        )
        self.initialized_sent(number)

    def _not_reopened(self, why: str, refusal: Refusal | None) -> None:
        self._initializing = None
        if self._suspicion is not None:
            self._suspicion = self._last_word = None
            self.session.move(SessionStep.KEPT)
            self.clear_suspects()
            self._decide_all()
            self._release()
            return
        self.session.move(SessionStep.REINITIALIZE_FAILED)
        self._attempts += 1
        if refusal is not None and refusal.status in LOCKED:
            self._stay_lost(f"no other session could be opened: {why}")
        elif self._may_open():
            self._open_another()
        else:
            self._stay_lost(f"no other session could be opened within the budget: {why}")

    def _stay_lost(self, why: str) -> None:
        """No session for now: the next request tries again."""
        self._attempts = 0
        self.why_lost = why
        self.clear_suspects(may_wait=False)
        self._give_up_stranded(why)
        self._refuse_waiting(why)

    @abstractmethod
    def _refuse_waiting(self, why: str) -> None:
        """The requests that wait for the session get an answer."""
        ...

    def opened(self, stream: Stream, params: JSON, result: JSON) -> None:
        """An `initialize` succeeded, the host's or ours."""
        self._ping = self._comparison = None
        self.generation_known(is_legacy=stream.legacy)
        self.streams.forget_session(stream)
        self.out.append(Save((self.session.opened(stream.offered_session_id, params, result),)))
        self._report_connected()

    def _go_on(self) -> None:
        """The session is live."""
        self._attempts = 0
        if self.session.session_id is not None and self.opens_standalone:
            self.streams.open_standalone()
        self._decide_all()
        self._ask_tasks()
        self._release()
        self.streams.consider_upgrade()  # what came before the session was live has not asked for a socket

    @abstractmethod
    def _ask_tasks(self) -> None:
        """Ask what became of the tasks of an earlier process."""
        ...


_BUDGET = Timer(TimerKind.BUDGET, STANDALONE)
