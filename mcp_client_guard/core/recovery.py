"""The session: suspected, lost, opened again in the host's name, and brought to where it was (DESIGN §5)."""

from __future__ import annotations

from abc import abstractmethod

from attrs import define, field

from .actions import NO_DELAY, CancelTimer, Delay, Report, Save, SetTimer, Timer, TimerKind
from .classify import Ran, SessionWord, is_suspect_answer, rule_on
from .ledger import Call, Own, Refusal
from .model import JSON, Generation, Outcome, SessionEnded
from .reconcile import Reconciling, Stranded
from .report import Connected, Reinitialized, SessionLost
from .session import differences
from .state import SessionState, SessionStep
from .stream import STANDALONE, Stream

CONFIRM_SECONDS = 0.5
"""How long requests wait for the server to have taken `notifications/initialized`. Servers refuse requests
that overtake it; a slow answer to it must not hold the host up."""

_RESTORE_SECONDS = 5.0
_BUDGET_SECONDS = 60.0
_LOCKED = frozenset({401, 403})
_S = SessionState


@define(eq=False, repr=False)
class Recovery(Reconciling):
    """Owns what becomes of the session."""

    opens_standalone: bool
    subscriptions: set[str] = field(factory=set, init=False)
    log_level: str | None = field(default=None, init=False)
    why_lost: str = field(default="the session is lost", init=False)
    tools: dict[str, JSON] = field(factory=dict, init=False)
    """As the host was last told of them."""
    _suspects: list[Stranded] = field(factory=list, init=False)
    """Refused in a way that may mean a lost session: a ping decides."""
    _ping: Call | None = field(default=None, init=False)
    _initializing: Call | None = field(default=None, init=False)
    _suspicion: str | None = field(default=None, init=False)
    """Why another session is being opened while the present one is not known to be lost."""
    _opened_lately: int = field(default=0, init=False)
    _attempts: int = field(default=0, init=False)
    _confirming: int | None = field(default=None, init=False)
    _differences: tuple[str, ...] = field(default=(), init=False)
    _restoring: set[int] = field(factory=set, init=False)
    _not_restored: list[str] = field(factory=list, init=False)
    _new_tools: dict[str, JSON] = field(factory=dict, init=False)
    _is_restore: bool = field(default=False, init=False)

    # What refusals say.

    def refused(self, call: Call, refusal: Refusal, *, session_sent: bool) -> None:
        """The POST of this request drew a status that is no answer of the usual kind."""
        predicate = self.policy.is_session_lost
        ruling = rule_on(refusal.status, refusal.body, session_sent=session_sent, is_session_lost=predicate)
        reason = f"HTTP {refusal.status}"
        if ruling.session is SessionWord.GONE:
            if call.incarnation == self.session.incarnation:
                self.lose_session(reason)
            if not call.in_flight:
                return
            if call.own is not None:
                self._own_failed(call, reason, refusal)
            else:
                self._strand(Stranded(call, reason, Ran.NO, refusal))
        elif not call.in_flight:
            return
        elif call.own is not None:
            self._own_failed(call, reason, refusal)
        elif ruling.session is SessionWord.ASK and self._may_suspect(call, refusal):
            gone = Ran.NO if ruling.ran is Ran.NO else ruling.ran_if_gone
            self._suspect(Stranded(call, reason, gone, refusal))
        else:
            self._settle_refused(call, ruling.ran, refusal)

    def suspects_answer(self, call: Call, message: JSON) -> bool:
        """Whether this answer with status 200 is not believed before a ping has said that the session lives."""
        if call.own is not None or call.method in ("initialize", "ping") or not is_suspect_answer(message):
            return False
        refusal = Refusal(200, message)
        if self.session.session_id is None or not self._may_suspect(call, refusal):
            return False
        self._suspect(Stranded(call, "an error that may mean a lost session", Ran.NO, refusal))
        return True

    def _may_suspect(self, call: Call, refusal: Refusal) -> bool:
        """Not where a new session has made no difference: then it is an answer."""
        repeated = call.refusal is not None and call.refusal.is_like(refusal)
        present = call.incarnation == self.session.incarnation
        return present and not repeated and self.session.state in (_S.LIVE, _S.REINITIALIZING)

    def _suspect(self, suspect: Stranded) -> None:
        suspect.call.troubled = True
        self._suspects.append(suspect)
        self.probe()

    def probe(self) -> None:
        """Ask whether the session still answers; one ping at a time."""
        if self._ping is None and self.session.state is _S.LIVE:
            self._ping = self._send_own(Own.PING, "ping", {})

    def _ping_over(self, refusal: Refusal | None, answered: bool) -> None:
        self._ping = None
        alike = refusal is not None and any(s.refusal and s.refusal.is_like(refusal) for s in self._suspects)
        if alike and self.session.state is _S.LIVE and self._may_open():
            self._suspicion = f"a ping drew the same refusal ({self._suspects[0].reason})"
            self._open_another()
        elif self.session.state is _S.LIVE:
            self._clear_suspects()
        self.streams.ping_over(answered)

    def _clear_suspects(self) -> None:
        """The session lives, as far as anybody can say: what looked like its end was an answer."""
        suspects, self._suspects = self._suspects, []
        for suspect in suspects:
            call, refusal = suspect.call, suspect.refusal
            if not call.in_flight or refusal is None:
                continue
            call.troubled = call.suspected = False
            if refusal.status == 200:
                self.settle_answer(call, refusal.body)
            else:
                self._settle_refused(call, rule_on(refusal.status, refusal.body, session_sent=True).ran, refusal)

    @abstractmethod
    def settle_answer(self, call: Call, message: JSON, stream: Stream | None = None) -> None:
        """This is the answer of the request."""
        ...

    # The end of a session, and the next one.

    def lose_session(self, reason: str) -> None:
        """The session is gone: nothing more is sent under it."""
        state = self.session.state
        if state in (_S.LOST, _S.CLOSED) or (state is _S.REINITIALIZING and self._suspicion is None):
            return
        self._end_session(reason)
        if state is _S.REINITIALIZING:
            self._suspicion = None
        else:
            self.session.move(SessionStep.GONE)
            self.out.append(CancelTimer(_RESTORING))
            self._restoring.clear()
        self.streams.leave_session(self._opener())
        self._strand_suspects()
        self._reinitialize()

    def _opener(self) -> Stream | None:
        return None if self._initializing is None else self.streams.of(self._initializing)

    def _end_session(self, reason: str) -> None:
        self.out.append(Save((SessionEnded(self.session.incarnation, reason),)))
        self.out.append(Report(SessionLost(self.session.fingerprint, reason)))

    def _strand_suspects(self) -> None:
        suspects, self._suspects = self._suspects, []
        for suspect in suspects:
            if suspect.call.in_flight:
                self._strand(suspect)

    def is_over(self, call: Call) -> bool:
        """Whether the session of this request is gone, so that its stream cannot be resumed."""
        lost = self.session.state is _S.LOST or (
            self.session.state is _S.REINITIALIZING and self._suspicion is None
        )
        return call.incarnation != self.session.incarnation or (lost and not call.stateless)

    def _may_open(self) -> bool:
        return self.session.initialize_params is not None and self._opened_lately < self.policy.reinitialize_limit

    def _reinitialize(self) -> None:
        if self.session.state is not _S.LOST:
            return
        if not self._may_open():
            spent = self.session.initialize_params is not None
            self._stay_lost("too many sessions were lost within a minute" if spent else "there is no session")
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

    def budget_refilled(self) -> None:
        """A minute is over since the first of the sessions that were opened in place of lost ones."""
        self._opened_lately = 0

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
        self._suspicion, self._attempts, self._is_restore = None, 0, True
        self._differences = differences(self.session.initialize_result, result)
        self.opened(stream, call.params, result)
        self._strand_suspects()
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
            self._suspicion = None
            self.session.move(SessionStep.KEPT)
            self._clear_suspects()
            self._decide_all()
            self._release()
            return
        self.session.move(SessionStep.REINITIALIZE_FAILED)
        self._attempts += 1
        if refusal is not None and refusal.status in _LOCKED:
            self._stay_lost(f"no other session could be opened: {why}")
        else:
            self._reinitialize()

    def _stay_lost(self, why: str) -> None:
        """No session for now: the next request tries again."""
        self._attempts = 0
        self.why_lost = why
        self._give_up_stranded(why)
        self._refuse_waiting(why)

    @abstractmethod
    def _refuse_waiting(self, why: str) -> None:
        """The requests that wait for the session get an answer."""
        ...

    def opened(self, stream: Stream, params: JSON, result: JSON) -> None:
        """An `initialize` succeeded, the host's or ours."""
        self.streams.forget_session(stream)
        self.out.append(Save((self.session.opened(stream.offered_session_id, params, result),)))
        self._report_connected()

    def _report_connected(self) -> None:
        info = self.session.initialize_result.get("serverInfo")
        info = info if isinstance(info, dict) else {}
        server = f"{info.get('name', '?')} {info.get('version', '?')}"
        session = self.session
        connected = Connected(session.fingerprint, session.protocol_version, Generation.STREAMABLE_HTTP, server)
        self.out.append(Report(connected))

    def initialized_sent(self, number: int) -> None:
        """`notifications/initialized` is on its way."""
        self.session.move(SessionStep.INITIALIZED_SENT)
        self._confirming = number
        self.out.append(SetTimer(Timer(TimerKind.CONFIRM, number), CONFIRM_SECONDS))

    def confirmed(self, number: int) -> None:
        """`notifications/initialized` was taken, or its time is over: requests may go out."""
        if self._confirming != number or self.session.state is not _S.CONFIRMING:
            return
        self._confirming = None
        self.out.append(CancelTimer(Timer(TimerKind.CONFIRM, number)))
        if self._is_restore:
            self._is_restore = False
            self._restore()
        else:
            self.session.move(SessionStep.INITIALIZED_TAKEN)
            self._go_on()

    def _go_on(self) -> None:
        """The session is live."""
        if self.session.session_id is not None and self.opens_standalone:
            self.streams.open_standalone()
        self._decide_all()
        self._ask_tasks()
        self._release()

    @abstractmethod
    def _ask_tasks(self) -> None:
        """Ask what became of the tasks of an earlier process."""
        ...

    # The new session is brought to where the old one was.

    def _restore(self) -> None:
        self.session.move(SessionStep.RESTORE_SENT)
        self._not_restored, self._new_tools = [], {}
        wanted: list[tuple[str, JSON]] = []
        if self.log_level is not None:
            wanted.append(("logging/setLevel", {"level": self.log_level}))
        wanted += [("resources/subscribe", {"uri": uri}) for uri in sorted(self.subscriptions)]
        if self.tools:
            self.changed_tools = set(self.tools)  # until they are known to be the same
            wanted.append(("tools/list", {}))
        self.out.append(SetTimer(_RESTORING, _RESTORE_SECONDS))
        for method, params in wanted:
            self._restoring.add(self._send_own(Own.RESTORE, method, params).wire_id)
        self._restored_one()

    def _restored_one(self) -> None:
        if not self._restoring and self.session.state is _S.RESTORING:
            self.restored()

    def restored(self) -> None:
        """All is restored, or its time is over."""
        if self.session.state is not _S.RESTORING:
            return
        self._restoring.clear()
        self.out.append(CancelTimer(_RESTORING))
        changed = (*self._differences, *(f"tool {name}" for name in sorted(self.changed_tools)))
        self.out.append(Report(Reinitialized(self.session.fingerprint, changed, tuple(self._not_restored))))
        self.session.move(SessionStep.RESTORED)
        self.streams.refresh_now()
        self._go_on()

    def _restored_tools(self, result: JSON) -> bool:
        """One page of what tools there are now. Returns whether it was the last."""
        self._new_tools.update(tools_of(result))
        cursor = result.get("nextCursor")
        if isinstance(cursor, str) and cursor:
            self._restoring.add(self._send_own(Own.RESTORE, "tools/list", {"cursor": cursor}).wire_id)
            return False
        self.changed_tools = {name for name, tool in self.tools.items() if self._new_tools.get(name) != tool}
        return True

    # Requests of our own.

    def _send_own(self, own: Own, method: str, params: JSON, *, ticket: int = 0, delay: Delay = NO_DELAY) -> Call:
        call = Call(
            self.ledger.new_wire_id(),
            None,
            method,
            None,
            params,
            "",
            False,
            self.session.incarnation,
            own=own,
            ticket=ticket,
        )
        self._post(call, delay)
        return call

    def own_answered(self, stream: Stream, call: Call, message: JSON) -> None:
        """A request of the guard's own has its answer."""
        self._settle(call, Outcome.COMPLETED, "answered")
        if call.own is Own.PING:
            self._ping_over(Refusal(200, message) if is_suspect_answer(message) else None, answered=True)
        elif call is self._initializing:
            self._reopened(stream, call, message)
        elif call.own is Own.RESTORE and call.wire_id in self._restoring:
            self._restoring.discard(call.wire_id)
            result = message.get("result")
            if not isinstance(result, dict):
                self._not_restored.append(_said(call))
            elif call.method == "tools/list":
                self._restored_tools(result)
            self._restored_one()
        else:
            self._answered_otherwise(call, message)

    def _own_failed(self, call: Call, reason: str, refusal: Refusal | None = None) -> None:
        self._settle(call, Outcome.NOT_EXECUTED if refusal else Outcome.IN_DOUBT, reason)
        if call is self._ping:
            self._ping_over(refusal, answered=False)
        elif call is self._initializing:
            self._not_reopened(reason, refusal)
        elif call.own is Own.RESTORE:
            if call.wire_id in self._restoring:
                self._restoring.discard(call.wire_id)
                self._not_restored.append(_said(call))
                self._restored_one()
        else:
            self._failed_otherwise(call, reason)

    @abstractmethod
    def _answered_otherwise(self, call: Call, message: JSON) -> None:
        """The answer to a question of the hook's, or about a task."""
        ...

    @abstractmethod
    def _failed_otherwise(self, call: Call, reason: str) -> None:
        """No answer to a question of the hook's, or about a task."""
        ...


_BUDGET = Timer(TimerKind.BUDGET, STANDALONE)
_RESTORING = Timer(TimerKind.RESTORE, STANDALONE)


def tools_of(result: JSON) -> dict[str, JSON]:
    """The tools in an answer to `tools/list`, by name."""
    tools = result.get("tools")
    named = tools if isinstance(tools, list) else []
    return {t["name"]: t for t in named if isinstance(t, dict) and isinstance(t.get("name"), str)}


def _said(call: Call) -> str:
    return f"{call.method} {call.params['uri']}" if "uri" in call.params else call.method
