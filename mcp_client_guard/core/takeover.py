"""Going on where a process that died has left off: session, streams, calls and tasks (DESIGN §7)."""

from __future__ import annotations

from attrs import define, field

from .actions import Report, Save, SetTimer, Timer, TimerKind
from .asked import Asked
from .classify import is_suspect_answer
from .heritage import PROCESS_DIED, Heritage, OldSession
from .inputs import MessageSubmitted
from .ledger import Call, Own
from .model import JSON, Outcome, SessionEnded, TaskCreated, TaskEnded
from .outcomes import deadline_timer
from .recovery import Recovery
from .report import SessionLost
from .state import SessionState, SessionStep
from .stream import STANDALONE
from .tasks import Task, outcome_of, poll_seconds, task_of

_STANDALONE = "standalone"
_UNKNOWN_TASK = -32602
_KEPT_TASKS = 1024


@define(eq=False, repr=False)
class TakeOver(Recovery):
    """Offers the old session to the server, and accounts for every call of the dead process."""

    heritage: Heritage | None
    is_adopted: bool = field(default=False, init=False)
    """The present session was opened by another process."""
    asked: Asked = field(factory=Asked, init=False)
    _offer: MessageSubmitted | None = field(default=None, init=False)
    """The host's `initialize`, while the old session is on trial."""
    _offered: OldSession | None = field(default=None, init=False)
    _heirs: list[Call] = field(factory=list, init=False)
    _tasks: dict[int, Task] = field(factory=dict, init=False)
    """Of heirs, by wire ID."""
    _made: dict[str, Call] = field(factory=dict, init=False)
    """Calls that the server has made tasks of, by task ID."""

    @property
    def heirs_open(self) -> int:
        """Calls of the dead process that have no outcome yet."""
        unread = 0 if self.heritage is None else len(self.heritage.heirs)
        return unread + sum(call.in_flight for call in self._heirs)

    def _offer_session(self, sent: MessageSubmitted) -> bool:
        """Whether the host's `initialize` waits for what the server says to the old session."""
        heritage, self.heritage = self.heritage, None
        if heritage is None:
            return False
        old = heritage.session
        self._inherit(heritage)
        self.session.incarnation = heritage.incarnation
        if old is None:
            self._settle_heirs(PROCESS_DIED)
            return False
        params = old.initialize_params
        self.session.adopt(heritage.incarnation, old.session_id, params, old.initialize_result)
        self.session.move(SessionStep.OFFERED)
        self._offered = old
        if sent.message.get("params") != params:
            self._abandon("the host's initialize has other parameters")
            return False
        self._offer = sent
        self._send_own(Own.PROOF, "ping", {})
        return True

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
                own=Own.HEIR,
                named=heir.named,
                digest=heir.digest,
            )
            self.ledger.admit(call)
            call.troubled = True
            self._heirs.append(call)
            self.out.append(SetTimer(deadline_timer(call), self.policy.deadline_of(call.tool)))
            if heir.task is not None:
                self._tasks[call.wire_id] = heir.task
            if call.is_unsafe_call:
                self.shared.begin(call.digest, self.machine, call)
            if call.named:
                self._name(call)

    def _adopt(self) -> None:
        """The server has answered under the old session."""
        sent, self._offer = self._offer, None
        old, self._offered = self._offered, None
        assert sent is not None
        assert old is not None
        self.session.move(SessionStep.ADOPTED)
        self.is_adopted = True
        self.asked.restore(old.answers)
        self._report_connected()
        self._deliver({"jsonrpc": "2.0", "id": sent.message["id"], "result": old.initialize_result})
        if _STANDALONE in old.cursors:
            self.streams.inherit(STANDALONE, None, old.cursors[_STANDALONE])
        for call in [c for c in self._heirs if c.in_flight]:
            rows = old.cursors.get(str(call.wire_id), ())
            if call.wire_id in self._tasks:
                continue
            if rows and call.incarnation == self.session.incarnation:
                self.streams.inherit(call.wire_id, call, rows)
            else:
                self.in_doubt(call, f"{PROCESS_DIED}, and its stream cannot be resumed")
        self._go_on()

    def _abandon(self, reason: str) -> None:
        """The old session is not used."""
        self.out.append(Save((SessionEnded(self.session.incarnation, reason),)))
        self.out.append(Report(SessionLost(self.session.fingerprint, reason)))
        self.session.forget()
        self.session.move(SessionStep.ABANDONED)
        self._offered = None
        self._settle_heirs(f"{PROCESS_DIED}, and its session is gone ({reason})")

    def _settle_heirs(self, reason: str) -> None:
        for call in [c for c in self._heirs if c.in_flight and c.wire_id not in self._tasks]:
            self.in_doubt(call, reason)

    def _not_adopted(self, reason: str) -> None:
        self._abandon(reason)
        sent, self._offer = self._offer, None
        if sent is not None:
            self.submit(sent)

    def lose_session(self, reason: str) -> None:
        if self.session.state is not SessionState.PROVING:
            super().lose_session(reason)

    # Tasks.

    def learn_task(self, call: Call, result: JSON) -> None:
        """The answer to a call: if it is a task, its ID is on disk before the host knows of it."""
        task = task_of(result)
        if task is None:
            return
        row = TaskCreated(call.incarnation, call.wire_id, task.task_id, task.is_extension)
        self.out.append(Save((row,), durable=True))
        self._made[task.task_id] = call
        if len(self._made) > _KEPT_TASKS:
            del self._made[next(iter(self._made))]

    def task_drained(self, call: Call) -> None:
        """The host has taken an answer about a task; this was its outcome."""
        made = self._made.pop(str(call.params.get("taskId")), None)
        if made is not None:
            self.out.append(Save((TaskEnded(made.incarnation, made.wire_id),)))

    def _ask_tasks(self) -> None:
        """Ask for the task of each heir, under whichever session there is."""
        for wire_id in self._tasks:
            self.ask_task(wire_id)

    def ask_task(self, wire_id: int) -> None:
        task = self._tasks.get(wire_id)
        if task is None or self.session.state is not SessionState.LIVE:
            return
        method, params = task.question()
        self._send_own(Own.TASK, method, params, ticket=wire_id)

    def _task_answered(self, question: Call, message: JSON) -> None:
        call, task = self.ledger.by_first(question.ticket), self._tasks.get(question.ticket)
        if call is None or task is None:
            return
        error = message.get("error")
        outcome = outcome_of(task, message)
        if outcome is None:
            self.out.append(SetTimer(Timer(TimerKind.PACE, call.wire_id), poll_seconds(message)))
        elif isinstance(error, dict) and error.get("code") == _UNKNOWN_TASK:
            self._end_task(call)
            self.in_doubt(call, "the server does not know its task any more")
        else:
            self._end_task(call)
            self._settle(call, Outcome.RECOVERED, "its task was asked for", outcome)

    def _end_task(self, call: Call) -> None:
        del self._tasks[call.wire_id]
        self.out.append(Save((TaskEnded(call.incarnation, call.wire_id),)))

    # Requests of our own.

    def _answered_otherwise(self, call: Call, message: JSON) -> None:
        if call.own is Own.TASK:
            self._task_answered(call, message)
        elif call.own is Own.HOOK:
            self._answer_others(call, message)
        elif is_suspect_answer(message):
            self._not_adopted("a ping under it was refused")
        else:
            self._adopt()

    def _failed_otherwise(self, call: Call, reason: str) -> None:
        if call.own is Own.HOOK:
            self._answer_others(call, self._doubt_answer(call, self._doubt_of(call, reason)))
        elif call.own is Own.PROOF:
            self._not_adopted(reason)
