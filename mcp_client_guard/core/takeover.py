"""Going on where a process that died has left off: session, streams, calls and tasks (DESIGN §7)."""

from __future__ import annotations

from attrs import define, evolve, field

from .actions import CancelTimer, Delay, Report, Save, SetTimer, Timer, TimerKind
from .answers import not_executed_answer
from .asked import Asked
from .classify import LOCKED, METHOD_NOT_FOUND, code_of
from .heritage import PROCESS_DIED, Heir, Heritage, OldSession
from .inputs import MessageSubmitted
from .ledger import NEVER_SENT, Call, Own, Refusal
from .messages import tells_of_success
from .meta import without_meta
from .model import JSON, Outcome, SessionEnded, TaskCreated, TaskEnded
from .outcomes import deadline_timer
from .own import OwnRequests
from .report import SessionLost
from .restoring import tools_of
from .state import SessionState, SessionStep
from .stream import STANDALONE, STANDALONE_NAME
from .tasks import RESULT, STATUS, UNKNOWN_TASK, Fetch, Task, Told, poll_seconds, task_of, told_of

_KEPT_TASKS = 1024
_ASK_AGAIN_SECONDS = 5.0
_MOST_PROOFS = 4
_PROOF_SECONDS = 30.0
_TRY_LATER = frozenset({408, 425, 429})


@define(eq=False, repr=False)
class TakeOver(OwnRequests):
    """Offers the old session to the server, and accounts for every call of the dead process."""

    heritage: Heritage | None
    is_initialized: bool = field(default=False, init=False)
    """The process that opened the present session has told the server that it is initialized."""
    asked: Asked = field(factory=Asked, init=False)
    _offer: MessageSubmitted | None = field(default=None, init=False)
    """The host's `initialize`, while the old session is on trial."""
    _offered: Heritage | None = field(default=None, init=False)
    _offered_at: float = field(default=0.0, init=False)
    _proofs: int = field(default=0, init=False)
    """How often the server was asked about it."""
    _heirs: list[Call] = field(factory=list, init=False)
    _tasks: dict[int, Task] = field(factory=dict, init=False)
    """Of heirs, by wire ID."""
    _over: set[int] = field(factory=set, init=False)
    """Those of which the server says no more. On disk with the outcome of the call: a hook may be asked yet."""
    _asking: dict[int, Call] = field(factory=dict, init=False)
    """What was last asked of each."""
    _newest_stateless: MessageSubmitted | None = field(default=None, init=False)
    _made: dict[str, Call] = field(factory=dict, init=False)
    """Calls that the server has made tasks of, by task ID."""

    @property
    def stateless_like(self) -> MessageSubmitted | None:
        """The host's newest request, where it opens no session: requests of ours go out in its name."""
        return self._newest_stateless if self.session.state is SessionState.NEW else None

    @property
    def heirs_open(self) -> int:
        """Calls of the dead process that have no outcome yet."""
        return len(self._open_heirs())

    @property
    def heirs_awaited(self) -> int:
        """Those of them that somebody is to be told of: a task that its caller has is the caller's own affair."""
        return sum(not heir.is_known for heir in self._open_heirs())

    def _open_heirs(self) -> list[Heir | Call]:
        unread = () if self.heritage is None else self.heritage.heirs
        return [*unread, *(call for call in self._heirs if call.in_flight)]

    def _offer_session(self, sent: MessageSubmitted) -> bool:
        """Whether the host's `initialize` waits for what the server says to the old session."""
        self.is_initialized = False
        params = without_meta(sent.message.get("params"))
        older, same = self._offer, params == without_meta(self.session.initialize_params)
        if older is not None:
            if older.message["id"] != sent.message["id"]:
                why = "the host opened another session"
                self._deliver(not_executed_answer(older.message["id"], "initialize", None, "wire", why))
            self._offer = sent
            if same:
                return True
            self._abandon_offer("the host's initialize has other parameters")
        heritage, self.heritage = self.heritage, None
        if heritage is None:
            return False
        self.session.incarnation = heritage.incarnation
        self._inherit(heritage)
        old = heritage.session
        if old is None:
            self._settle_heirs(PROCESS_DIED)
            return False
        opened = (old.session_id, old.initialize_params, old.initialize_result)
        self.session.adopt(heritage.incarnation, *opened, heritage.earlier)
        self.session.move(SessionStep.OFFERED)
        if self.is_legacy:
            self._abandon("another generation was chosen")
            return False
        if params != without_meta(old.initialize_params):
            self._abandon("the host's initialize has other parameters")
            return False
        self._offer, self._offered = sent, heritage
        self._offered_at, self._proofs = self.clock.now, 0
        self._prove()
        return True

    def _prove(self, retry_after: float = 0.0) -> None:
        delay = Delay(self._proofs, None, min(retry_after, _PROOF_SECONDS))
        self._proofs += 1
        self._send_own(Own.PROOF, "ping", {}, delay=delay)

    def _not_proven(self, call: Call, reason: str, refusal: Refusal | None) -> None:
        """The server has said neither that the old session lives nor that it is gone."""
        later = refusal is None or refusal.status in _TRY_LATER or refusal.status >= 500
        may_ask = self._proofs < _MOST_PROOFS and self.clock.now - self._offered_at < _PROOF_SECONDS
        if refusal is not None and refusal.status in LOCKED:
            self._put_off(reason, refusal.status)
        elif later and may_ask and not call.unsendable:
            self._prove((refusal and refusal.retry_after) or 0.0)
        elif call.unsendable or reason.endswith(NEVER_SENT):
            self._put_off(reason, None)  # nor could another session be opened
        else:
            self._not_adopted(reason)

    def _put_off(self, reason: str, status: int | None) -> None:
        """Whoever may not or cannot ask cannot know: the session stays on record, for an `initialize` that can."""
        sent, heritage, self._offer, self._offered = self._offer, self._offered, None, None
        assert sent is not None
        assert heritage is not None
        self.heritage = evolve(heritage, heirs=())  # they are known by now
        self.session.forget()
        self.session.move(SessionStep.ABANDONED)
        by = "wire" if status is None else "server"
        self._deliver(not_executed_answer(sent.message["id"], "initialize", None, by, reason, status))
        self._refuse_waiting(f"the session of an earlier process could not be proven ({reason})")

    def _account_for_heirs(self, reason: str) -> None:
        """The host opens no session that the calls of the dead process could be recovered under."""
        heritage, self.heritage = self.heritage, None
        if heritage is None:
            return
        self.session.incarnation = heritage.incarnation
        self._inherit(heritage)
        for call in [heir for heir in self._heirs if heir.in_flight]:
            call.stateless = True
            task = self._tasks.get(call.wire_id)
            if task is not None and task.is_extension:
                self.ask_task(call.wire_id)  # at once: what the host has just sent may wait for that very answer
                continue
            self._over.add(call.wire_id)
            self.in_doubt(call, f"{PROCESS_DIED}, and {reason}")

    def speaks_stateless(self, version: str | None, info: JSON) -> None:
        known = self.session.needs_none
        super().speaks_stateless(version, info)
        if not known and self.session.needs_none:
            self._ask_tasks()

    def _inherit(self, heritage: Heritage) -> None:
        for heir in heritage.heirs:
            call = Call(
                heir.wire_id,
                None,
                heir.method,
                heir.tool,
                {},
                heir.call_key,
                heir.may_have_side_effects,
                heir.incarnation,
                own=Own.HOOK if heir.is_hook_s else Own.HEIR,
                named=heir.named,
                slot=None if heir.slot == heritage.slot else heir.slot,
                is_known=heir.is_known,
                digest=heir.digest,
                repeats=heir.repeats,
            )
            self.ledger.admit(call)
            call.troubled = True
            self._heirs.append(call)
            self.out.append(SetTimer(deadline_timer(call), self.policy.deadline_of(call.tool)))
            if heir.task is not None:
                self._tasks[call.wire_id] = heir.task
            if heir.is_known:
                continue
            if call.is_unsafe_call:
                # From now on a repeat is joined to it, not refused.
                self.shared.resolved(call.digest, call.call_key, call.wire_id)
                self.shared.begin(call.digest, call)
            self._name(call)

    def _adopt(self, sent: MessageSubmitted, old: OldSession) -> None:
        """The server has answered under the old session."""
        self._offer = self._offered = None
        self.session.move(SessionStep.ADOPTED)
        self.is_initialized = old.was_used
        self.asked.restore(old.answers)
        self._report_connected()
        self._deliver({"jsonrpc": "2.0", "id": sent.message["id"], "result": old.initialize_result})
        if STANDALONE_NAME in old.cursors and self.opens_standalone:
            passed = old.passed.get(STANDALONE_NAME, 0)
            self.streams.inherit(STANDALONE, None, old.cursors[STANDALONE_NAME], passed)
        for call in self._waiting_heirs():
            rows = old.cursors.get(str(call.wire_id), ())
            if rows and call.incarnation == self.session.incarnation:
                self.streams.inherit(call.wire_id, call, rows, old.passed.get(str(call.wire_id), 0))
            else:
                self.in_doubt(call, f"{PROCESS_DIED}, and its stream cannot be resumed")
        self._go_on()

    def _abandon(self, reason: str) -> None:
        """The old session is not used."""
        self.out.append(Save((SessionEnded(self.session.incarnation, reason),)))
        self.out.append(Report(SessionLost(self.session.fingerprint, reason)))
        self.session.forget()
        self.session.move(SessionStep.ABANDONED)
        self._settle_heirs(f"{PROCESS_DIED}, and its session is gone ({reason})")

    def _settle_heirs(self, reason: str) -> None:
        for call in self._waiting_heirs():
            self.in_doubt(call, reason)

    def _waiting_heirs(self) -> list[Call]:
        """Those without an outcome that no task will give one."""
        return [call for call in self._heirs if call.in_flight and call.wire_id not in self._tasks]

    def _not_adopted(self, reason: str) -> None:
        self.submit(self._abandon_offer(reason))

    def _abandon_offer(self, reason: str) -> MessageSubmitted:
        """The old session is not used. Returns the host's `initialize`, which is to open another."""
        sent, self._offer, self._offered = self._offer, None, None
        assert sent is not None
        self._abandon(reason)
        return sent

    def lose_session(self, reason: str, *, by_word: bool = False) -> None:
        if self.session.state is SessionState.PROVING:
            self._not_adopted(reason)
        else:
            super().lose_session(reason, by_word=by_word)

    def is_task(self, call: Call) -> bool:
        """Whether the server has made a task of this call of the dead process: its request has its answer."""
        return call.wire_id in self._tasks

    def heir_answered(self, call: Call, message: JSON) -> None:
        """The answer to a call of the dead process; if it is a task, its outcome is still to come."""
        task = task_of(message)
        if task is None:
            self._settle(call, Outcome.RECOVERED, "replayed after a restart", message)
            return
        self._save_task(call, task)
        self._tasks[call.wire_id] = task
        self.ask_task(call.wire_id)

    def leave_heir(self, call: Call) -> None:
        """The host has left: the row stays open, for the next process to go on with; nobody waits for it here."""
        reason = f"{PROCESS_DIED}, and the connection that looked for its answer was closed"
        self._answer_others(call, self._doubt_answer(call, self._doubt_of(call, reason)), by_guard=True)
        self._keep_doubt(call, Outcome.IN_DOUBT, reason, None)

    # Tasks.

    def learn_task(self, call: Call, message: JSON) -> None:
        """The answer to a call: if it is a task, its ID is on disk before the host knows of it."""
        task = task_of(message)
        if task is None or call.method != "tools/call":
            return
        self._save_task(call, task)
        self._made[task.task_id] = call
        if len(self._made) > _KEPT_TASKS:
            del self._made[next(iter(self._made))]

    def _save_task(self, call: Call, task: Task) -> None:
        row = TaskCreated(call.incarnation, call.wire_id, task.task_id, task.is_extension)
        self.out.append(Save((row,), durable=True))

    def task_drained(self, asked: Call, message: JSON) -> None:
        """The host has taken an answer about a task; this was its outcome."""
        task_id = str(asked.params.get("taskId"))
        made = self._made.pop(task_id, None)
        if made is not None:
            self.out.append(Save((TaskEnded(made.incarnation, made.wire_id),)))
        for wire_id, task in list(self._tasks.items()):
            heir = self.ledger.by_first(wire_id)
            if task.task_id == task_id and heir is not None:
                self._host_was_told(heir, told_of(task, asked.method, message), message)

    def _host_was_told(self, heir: Call, told: Told, message: JSON) -> None:
        """The host drives the task of an heir itself, and has what became of it."""
        result = message.get("result")
        is_cancelled = isinstance(result, dict) and result.get("status") == "cancelled"
        if told.answer is None and not (is_cancelled or heir.is_known):
            return  # it is in doubt, if the guard fares no better
        was_known, heir.is_known = heir.is_known, True
        self.out.append(Save((TaskEnded(heir.incarnation, heir.wire_id, heir.slot),)))
        if told.answer is not None:
            self._settle(heir, Outcome.RECOVERED, "its host has asked for its task", told.answer)
        elif was_known:
            self.in_doubt(heir, "its host has ended its task")
        else:
            heir.cancelled = True
            self._settle(heir, Outcome.CANCELLED, "its task was cancelled by the caller")

    def _ask_tasks(self) -> None:
        """Ask for the task of each heir, under whichever session there is."""
        for wire_id in self._tasks:
            self.ask_task(wire_id)

    def ask_task(self, wire_id: int) -> None:
        """Ask for the task of this heir, unless a question is out already."""
        task, asking, like = self._tasks.get(wire_id), self._asking.get(wire_id), self.stateless_like
        if task is None or wire_id in self._over or (asking is not None and asking.in_flight):
            return
        if like is None and self.session.state is not SessionState.LIVE:
            # Nobody else may want a session: the host may wait for this very call.
            self.out.append(SetTimer(_pace(wire_id), _ASK_AGAIN_SECONDS))
            self._reinitialize()
            return
        params = {"taskId": task.task_id}
        self._asking[wire_id] = self._send_own(Own.TASK, STATUS, params, ticket=wire_id, like=like)

    def _fetches(self, wire_id: int, task: Task, how: Fetch) -> bool:
        """Ask for the result of an ended task; of those that wait for the host, of one at a time: the question
        keeps its connection until then, and a caller's client has few."""
        fetched = [asking for asking in self._asking.values() if asking.method == RESULT and asking.in_flight]
        if (how is Fetch.BLOCKING and fetched) or self.session.state is not SessionState.LIVE:
            return False
        self._asking[wire_id] = self._send_own(Own.TASK, RESULT, {"taskId": task.task_id}, ticket=wire_id)
        return True

    def _task_answered(self, question: Call, message: JSON) -> None:
        call, task = self.ledger.by_first(question.ticket), self._tasks.get(question.ticket)
        if call is None or task is None:
            return
        told = told_of(task, question.method, message)
        if told.fetch is not None and self._fetches(call.wire_id, task, told.fetch):
            return
        # A server that may not speak this revision at all has not said that it knows no such task.
        is_known = self.session.needs_none or self.session.state is SessionState.LIVE
        if told.answer is None and not (told.why_none and is_known):
            self.probe(Refusal(200, message))
            seconds = poll_seconds(message) if code_of(message) is None else _ASK_AGAIN_SECONDS
            self.out.append(SetTimer(_pace(call.wire_id), seconds))
            return
        self._over.add(call.wire_id)
        if told.answer is None:
            self.in_doubt(call, told.why_none)
        elif tells_of_success(told.answer) or not self.failed_again(call, "a failure of its task", told.answer):
            self._settle(call, Outcome.RECOVERED, "its task was asked for", told.answer)

    def _forget(self, call: Call) -> None:
        super()._forget(call)
        if call.own is Own.HEIR and self._tasks.pop(call.wire_id, None) is not None:
            self._asking.pop(call.wire_id, None)
            self.out.append(CancelTimer(_pace(call.wire_id)))
            if call.wire_id in self._over:
                self.out.append(Save((TaskEnded(call.incarnation, call.wire_id, call.slot),)))

    # Requests of our own.

    def _answered_otherwise(self, call: Call, message: JSON) -> None:
        sent, offered = self._offer, self._offered
        if call.own is Own.TASK:
            self._task_answered(call, message)
        elif call.own is Own.HOOK:
            result = message.get("result")
            if call.method == "tools/list" and isinstance(result, dict):
                self.present_tools.update(tools_of(result))
            self._answer_others(call, message)
        elif sent is None or offered is None or offered.session is None:
            return  # it was given up before the server answered
        elif code_of(message) not in (None, METHOD_NOT_FOUND):
            self._not_adopted("a ping under it was refused")
        else:
            self._adopt(sent, offered.session)

    def _failed_otherwise(self, call: Call, reason: str, refusal: Refusal | None) -> None:
        if call.own is Own.HOOK:
            self._answer_others(call, self._doubt_answer(call, self._doubt_of(call, reason)))
        elif call.own is Own.TASK and refusal is not None and code_of(refusal.body) == UNKNOWN_TASK:
            self._task_answered(call, refusal.body)
        elif call.own is Own.TASK and call.ticket in self._tasks:
            if refusal is not None:
                self.probe(refusal)
            if call.unsendable and (heir := self.ledger.by_first(call.ticket)) is not None:
                self.in_doubt(heir, f"its task could not be asked for ({reason})")  # the next process may
            else:  # where the session is lost, the next one asks again
                self.out.append(SetTimer(_pace(call.ticket), _ASK_AGAIN_SECONDS))
        elif call.own is Own.PROOF and self._offer is not None:
            self._not_proven(call, reason, refusal)


def _pace(wire_id: int) -> Timer:
    return Timer(TimerKind.PACE, wire_id)
