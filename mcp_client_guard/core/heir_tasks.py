"""Tasks that the server has made of calls: kept on disk, and asked for where the process died (DESIGN §7)."""

from __future__ import annotations

from attrs import define, field

from .actions import CancelTimer, Save, SetTimer
from .classify import code_of
from .inputs import MessageSubmitted
from .ledger import Call, Own, Refusal
from .messages import result_of, tells_of_success
from .model import JSON, Outcome, TaskCreated, TaskEnded
from .own import OwnRequests
from .state import SessionState
from .tasks import RESULT, STATUS, UNKNOWN_TASK, Fetch, Task, Told, poll_seconds, task_of, told_of
from .timer import Timer, TimerKind

_KEPT_TASKS = 1024
_ASK_AGAIN_SECONDS = 5.0


@define(eq=False, repr=False)
class HeirTasks(OwnRequests):
    """Owns what is known of tasks, and asks for those of heirs."""

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

    # What is known of them.

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
        result = result_of(message)
        is_cancelled = result is not None and result.get("status") == "cancelled"
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

    # They are asked for.

    def speaks_stateless(self, version: str | None, info: JSON) -> None:
        known = self.session.needs_none
        super().speaks_stateless(version, info)
        if not known and self.session.needs_none:
            self._ask_tasks()

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

    def _fetch(self, wire_id: int, task: Task, how: Fetch) -> bool:
        """Ask for the result of an ended task; of those that wait for the host, of one at a time: the question
        keeps its connection until then, and a caller's client has few. Returns whether it is asked for."""
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
        if told.fetch is not None and self._fetch(call.wire_id, task, told.fetch):
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
        elif tells_of_success(told.answer) or not self.doubt_failure(call, "a failure of its task", told.answer):
            self._settle(call, Outcome.RECOVERED, "its task was asked for", told.answer)

    def _task_failed(self, question: Call, reason: str, refusal: Refusal | None) -> None:
        """No answer to a question about a task."""
        if refusal is not None and code_of(refusal.body) == UNKNOWN_TASK:
            self._task_answered(question, refusal.body)
            return
        if question.ticket not in self._tasks:
            return
        if refusal is not None:
            self.probe(refusal)
        if question.unsendable and (heir := self.ledger.by_first(question.ticket)) is not None:
            self.in_doubt(heir, f"its task could not be asked for ({reason})")  # the next process may
        else:  # where the session is lost, the next one asks again
            self.out.append(SetTimer(_pace(question.ticket), _ASK_AGAIN_SECONDS))

    def _forget(self, call: Call) -> None:
        super()._forget(call)
        if call.own is Own.HEIR and self._tasks.pop(call.wire_id, None) is not None:
            self._asking.pop(call.wire_id, None)
            self.out.append(CancelTimer(_pace(call.wire_id)))
            if call.wire_id in self._over:
                self.out.append(Save((TaskEnded(call.incarnation, call.wire_id, call.slot),)))


def _pace(wire_id: int) -> Timer:
    return Timer(TimerKind.PACE, wire_id)
