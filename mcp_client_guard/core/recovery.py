"""The session: lost, and opened again in the host's name (DESIGN §5)."""

from __future__ import annotations

from abc import abstractmethod

from attrs import define, field

from .actions import CancelTimer, Delay, Report, Save, SetTimer
from .classify import LOCKED, LONGEST_RETRY_AFTER, is_of_router, may_be_away
from .ledger import Call, Own, Refusal, wait_of
from .messages import result_of
from .model import JSON, Outcome, SessionEnded
from .report import SessionLost, SessionUnavailable
from .session import differences
from .state import SessionState, SessionStep
from .stream import STANDALONE, Stream
from .suspecting import Suspecting
from .timer import Timer, TimerKind

_BUDGET_SECONDS = 60.0
_REST, _LONGEST_REST = 10.0, 60.0
"""Seconds until a session that nobody waits for is tried again: they double, up to what the standalone stream,
which the host may be listening to, waits at most."""
_S = SessionState


@define(eq=False, repr=False)
class Recovery(Suspecting):
    """Owns what becomes of the session."""

    opens_standalone: bool
    why_lost: str = field(default="the session is lost", init=False)
    _initializing: Call | None = field(default=None, init=False)
    _opened_lately: int = field(default=0, init=False)
    """Sessions, within a minute, in place of lost ones; and what will not be otherwise if it is tried again."""
    _looks_lately: int = field(default=0, init=False)
    """Sessions tried, within a minute, beside one that was only suspected."""
    _attempts: int = field(default=0, init=False)
    """To open a session, in a row, of which none became live."""
    _rests: int = field(default=0, init=False)
    """How often in a row that was given up for a while."""
    _is_resting: bool = field(default=False, init=False)
    """That was told, and nothing was tried since."""
    _failed_by: str = field(default="", init=False)
    """Why the last session that was tried in place of the lost one could not be opened."""
    _is_leaving: bool = field(default=False, init=False)
    """The streams of a lost session are being given up: what one of them opened would go with the others."""

    # The end of a session, and the next one.

    def lose_session(self, reason: str, *, by_word: bool = False) -> None:
        state = self.session.state
        opening = state is _S.INITIALIZING and self.ledger.is_opening
        if state is _S.CLOSED or opening or self.is_lost:
            return
        self._end_session(reason)
        if state is _S.REINITIALIZING:
            self._suspicion = None
        else:
            if state in (_S.CONFIRMING, _S.RESTORING):
                self._attempts += 1
            self.session.move(SessionStep.GONE)
            self._stop_restoring()
        self._is_leaving = True
        self.streams.leave_session(self._opener())
        self._strand_suspects(by_word or self.is_legacy)
        self._is_leaving = False
        if self.is_detecting and not by_word:
            self.legacy_not_found()  # the stream that was looked for is hung up
        if self.insists:
            self._reinitialize()
        else:
            self._stay_lost("it was lost soon after it was opened")

    def _opener(self) -> Stream | None:
        return None if self._initializing is None else self.streams.of(self._initializing)

    def _end_session(self, reason: str) -> None:
        self._ping = self._comparison = self._drew = None
        self.out.append(Save((SessionEnded(self.session.incarnation, reason),)))
        self.out.append(Report(SessionLost(self.session.fingerprint, reason)))

    def _may_open(self) -> bool:
        most = self.policy.reinitialize_limit
        known = self.session.initialize_params is not None
        return known and self._opened_lately < most and self._attempts < max(most, self.policy.max_attempts)

    def _reinitialize(self) -> None:
        if self.session.state is not _S.LOST or self._is_leaving:
            return
        if not self._may_open():
            spent = self.session.initialize_params is not None
            self._stay_lost(
                "too many sessions were lost in a row" if spent else "there is no session", again=spent
            )
            return
        self._open_another()

    def _open_another(self, retry_after: float = 0.0) -> None:
        if self._suspicion is not None:
            self._begin_minute()
            self._looks_lately += 1
        params = self.session.initialize_params
        assert params is not None
        self._rest_no_more()
        self.session.move(SessionStep.REINITIALIZE_SENT)
        delay = Delay(self._attempts, None, retry_after)
        self._initializing = self._send_own(Own.INITIALIZE, "initialize", params, delay=delay)

    @property
    def met_in_opening(self) -> str:
        """What the last attempt to open a session in place of the lost one came to, if there is none yet."""
        met = "" if self._initializing is None else self._initializing.met
        return met or self._failed_by

    def _may_look(self) -> bool:
        return self._may_open() and self._looks_lately < self.policy.reinitialize_limit

    def _spend(self) -> None:
        self._begin_minute()
        self._opened_lately += 1

    def _begin_minute(self) -> None:
        if not (self._opened_lately or self._looks_lately):
            self.out.append(SetTimer(_BUDGET, _BUDGET_SECONDS))

    @property
    @abstractmethod
    def _is_awaited(self) -> bool:
        """Whether anything is to be sent as soon as there is a session."""
        ...

    @property
    def insists(self) -> bool:
        """Whether a session that cannot be opened is tried again at once: not where that came to nothing before,
        and none is waited for."""
        return not self._rests or self._is_awaited

    def reopening_due(self) -> None:
        """No session could be opened, and none was asked for since: the host may be listening."""
        self._is_resting = False
        self._reinitialize()

    def stop_opening(self) -> None:
        """The host opens a session itself."""
        self._rests = 0
        self._rest_no_more()
        call, self._initializing = self._initializing, None
        if call is not None:
            self.let_go_of(call)
            self.streams.cancel(call)
            self._settle(call, Outcome.CANCELLED, "the host opens a session itself")
        self._suspicion, self._is_restore = None, False
        if self._restoring:
            self._stop_restoring()
        self.clear_suspects()

    def budget_refilled(self) -> None:
        """A minute is over since the first of the sessions that were opened in place of lost ones."""
        self._opened_lately = self._looks_lately = 0
        if self.session.state is _S.LIVE:
            self._rests = 0

    def reconnect(self) -> None:
        """Try a lost session again with its whole budget, and ping the present one."""
        super().reconnect()
        self._opened_lately = self._looks_lately = self._attempts = self._rests = 0
        self._reinitialize()
        self.probe()

    def _reopened(self, stream: Stream, call: Call, message: JSON) -> None:
        """Our own `initialize` was answered."""
        self._initializing = None
        result = result_of(message)
        if result is None:
            self._not_reopened("its initialize was answered with an error", Refusal(200, message))
            return
        if self._suspicion is not None:
            self._end_session(self._suspicion)
            self.streams.leave_session(stream)
        self._spend()
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
        call, self._initializing = self._initializing, None
        if self._suspicion is not None:
            self._suspicion = self._last_word = None
            self.session.move(SessionStep.KEPT)
            self.clear_suspects()
            self._decide_all()
            self._release()
            return
        self._failed_by = why
        self.session.move(SessionStep.REINITIALIZE_FAILED)
        self._attempts += 1
        if refusal is not None and not _is_away(refusal):
            self._spend()
        retry_after = wait_of(refusal)
        # A login may ask a person each time.
        is_locked = (call is not None and call.unsendable) or (refusal is not None and refusal.status in LOCKED)
        if is_locked or retry_after > LONGEST_RETRY_AFTER or not self.insists:
            self._stay_lost(f"no other session could be opened: {why}", retry_after, again=not is_locked)
        elif self._may_open():
            self._open_another(retry_after)
        else:
            self._stay_lost(f"no other session could be opened within the budget: {why}", retry_after)

    def _stay_lost(self, why: str, at_least: float = 0.0, *, again: bool = True) -> None:
        """No session for now: the next request tries again; and so does the guard, in a while, since the host may
        listen. Not `again`: only a request does."""
        self._attempts = 0
        self.why_lost = why
        if not self._is_resting:
            self._rest(why, at_least, again=again)
        self.clear_suspects(may_wait=False)
        self._give_up_stranded(why)
        self._refuse_waiting(why)

    def _rest(self, why: str, at_least: float, *, again: bool) -> None:
        seconds = min(_REST * 2 ** min(self._rests, 9), _LONGEST_REST)
        wait = max(seconds, at_least) if again else None
        self._rests += 1
        self._is_resting = True
        self.out.append(Report(SessionUnavailable(why, wait, self._rests)))
        if wait is not None:
            self.out.append(SetTimer(_REOPEN, wait, jitter=_REST))

    def _rest_no_more(self) -> None:
        if self._is_resting:
            self._is_resting = False
            self.out.append(CancelTimer(_REOPEN))

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
        """The session is live. Whether it lasts is seen in a minute."""
        self._failed_by = ""
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


def _is_away(refusal: Refusal) -> bool:
    """Whether no session could be opened since the server, or what stands before it, is away for a while."""
    return may_be_away(refusal.status) or is_of_router(refusal.status, refusal.body)


_BUDGET = Timer(TimerKind.BUDGET, STANDALONE)
_REOPEN = Timer(TimerKind.REOPEN, STANDALONE)
