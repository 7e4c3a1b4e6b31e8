"""A call that the server took as a task is kept until its outcome has reached the host, or the next process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcp_client_guard.core import heir_tasks, model
from mcp_client_guard.core.actions import Action, Ask, Deliver, Get, Post, Save
from mcp_client_guard.core.inputs import Reconciled
from mcp_client_guard.core.meta import CALL_KEY
from mcp_client_guard.core.model import JSON, AnswerDrained, Outcome, TaskCreated, TaskEnded
from mcp_client_guard.core.report import CallSettled as CallSettledEvent
from mcp_client_guard.core.report import SessionLost
from mcp_client_guard.core.tasks import Fetch, Task, Told, ends_task, poll_seconds, task_of, told_of
from mcp_client_guard.core.timer import Timer, TimerKind
from mcp_client_guard.core.verdicts import Resolve
from tests.core.driver import RESULT, Peer, delivered, of, outcomes, records, reports
from tests.core.scenes import Connection, Process, opened, prove

OLD = {"task": {"taskId": "t1", "status": "working"}}
EXTENSION = {"resultType": "task", "taskId": "t1", "status": "working", "pollIntervalMs": 3000}
OUTCOME = {"content": [{"type": "text", "text": "done"}]}


def answer(result: Any) -> JSON:
    return {"jsonrpc": "2.0", "id": 7, "result": result}


def error(code: int) -> JSON:
    return {"jsonrpc": "2.0", "id": 7, "error": {"code": code, "message": "no"}}


@pytest.fixture
def one() -> Connection:
    return opened()


def task_made(connection: Connection, result: JSON) -> Peer:
    call = connection.call()
    call.actions = call.answer(result)
    connection.drain(10)
    return call


def heir(result: JSON) -> tuple[Connection, Peer]:
    """A process died with a task open; the next has asked for it."""
    one = opened()
    task_made(one, result)
    two = one.process.killed().connect()
    prove(two)
    return two, two.sent("tasks/get")


def fetched(two: Connection) -> Peer:
    """The task of 2025-11-25 has ended, and its result is asked for."""
    two.sent("tasks/get").answer({"taskId": "t1", "status": "completed"})
    return two.sent("tasks/result")


# What is said.


@pytest.mark.parametrize(
    ("message", "task"),
    [
        (answer(OLD), Task("t1", False)),
        (answer(EXTENSION), Task("t1", True)),
        (answer(OUTCOME), None),
        (answer({"task": "odd"}), None),
        (answer({"task": {"taskId": 7}}), None),
        (error(-32602), None),
    ],
)
def test_a_task_is_recognised_in_the_answer_to_a_call(message: JSON, task: Task | None) -> None:
    assert task_of(message) == task


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        (answer({"pollIntervalMs": 2500}), 2.5),
        (answer({"pollInterval": 2500}), 2.5),
        (answer({"pollIntervalMs": 10**9}), 60.0),
        (answer({"pollIntervalMs": 10**400}), 60.0),
        (answer({"pollIntervalMs": 0}), 1.0),
        (answer({"pollIntervalMs": float("nan")}), 1.0),
        (answer({"pollIntervalMs": True}), 1.0),
        (answer({"pollIntervalMs": "soon"}), 1.0),
        (error(-32603), 1.0),
    ],
)
def test_polling_keeps_the_pace_that_the_server_asks_for(message: JSON, seconds: float) -> None:
    assert poll_seconds(message) == seconds


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (answer({"status": "working"}), Told()),
        (answer({"status": "input_required"}), Told()),
        (answer({"status": "completed", "result": OUTCOME}), Told(answer(OUTCOME))),
        (
            answer({"status": "failed", "error": {"code": 1, "message": "x"}}),
            Told({**error(1), "error": {"code": 1, "message": "x"}}),
        ),
        (answer({"status": "cancelled"}), Told(why_none="its task is cancelled, and has no result")),
        (answer({"status": ["odd"]}), Told()),
        (error(-32602), Told(why_none="the server does not know its task any more")),
        (error(-32601), Told(why_none="the server knows no tasks any more")),
        (error(-32001), Told()),
        (error(-32603), Told()),
        (error(-32099), Told()),
        (error(-32021), Told(why_none="asking for its task drew the error -32021")),
    ],
)
def test_what_tasks_get_of_the_extension_says(message: JSON, told: Told) -> None:
    assert told_of(Task("t1", True), "tasks/get", message) == told


def test_tasks_result_gives_what_the_call_would_have_given() -> None:
    assert told_of(Task("t1", False), "tasks/result", answer(OUTCOME)) == Told(answer(OUTCOME))
    assert told_of(Task("t1", False), "tasks/result", error(-32000 - 99)) == Told(error(-32000 - 99))
    for code in (-32603, 0, -32000, -32001, -32600):
        assert told_of(Task("t1", False), "tasks/result", error(code)) == Told(), "of the question, it may be"
    assert told_of(Task("t1", False), "tasks/result", error(-32601)).why_none
    assert told_of(Task("t1", False), "tasks/result", error(-32602)).answer is None


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (answer({"status": "working"}), Told()),
        (answer({"status": "input_required"}), Told(fetch=Fetch.BLOCKING)),
        (answer({"status": "completed"}), Told(fetch=Fetch.AT_ONCE)),
        (answer({"status": "failed"}), Told(fetch=Fetch.AT_ONCE)),
        (answer({"status": "cancelled"}), Told(fetch=Fetch.AT_ONCE)),
        (answer({"status": ["odd"]}), Told()),
        (error(-32601), Told(fetch=Fetch.BLOCKING)),
        (error(-32603), Told()),
        (error(-32000), Told()),
        (error(-32099), Told()),
        (error(-32602), Told(why_none="the server does not know its task any more")),
    ],
)
def test_what_tasks_get_of_2025_says_is_when_to_ask_for_the_result(message: JSON, told: Told) -> None:
    assert told_of(Task("t1", False), "tasks/get", message) == told


@pytest.mark.parametrize(
    ("method", "message", "ends"),
    [
        ("tasks/result", answer(OUTCOME), True),
        ("tasks/result", error(-32603), False),
        ("tasks/result", error(-32099), True),
        ("tasks/result", error(-32602), True),
        ("tasks/result", error(-32601), False),
        ("tasks/result", error(-32001), False),
        ("tasks/result", error(-32021), False),
        ("tasks/result", error(-31901), False),
        ("tasks/result", error(-31902), False),
        ("tasks/result", error(-31903), False),
        ("tasks/result", error(-31904), False),
        ("tasks/get", answer({"status": "completed"}), False),
        ("tasks/get", answer({"status": "completed", "result": OUTCOME}), True),
        ("tasks/get", answer({"status": "failed", "error": {}}), True),
        ("tasks/get", answer({"status": "cancelled"}), True),
        ("tasks/get", answer({"status": "working"}), False),
        ("tasks/get", answer({"status": ["odd"]}), False),
        ("tasks/get", error(-32602), True),
        ("tasks/get", error(-32603), False),
        ("tasks/cancel", answer({"status": "cancelled"}), True),
        ("tasks/cancel", answer({}), False),
        ("tasks/cancel", error(-32602), False),
        ("tools/call", answer(OUTCOME), False),
    ],
)
def test_after_which_answers_nothing_more_is_to_be_had(method: str, message: JSON, ends: bool) -> None:
    assert ends_task(method, message) is ends


# In one process.


@pytest.mark.parametrize("result", [OLD, EXTENSION])
def test_the_task_is_on_disk_before_the_host_knows_of_it(one: Connection, result: JSON) -> None:
    call = one.call()
    actions = call.answer(result)
    (created,) = records(actions, TaskCreated)
    assert (created.task_id, created.is_extension) == ("t1", result is EXTENSION)
    kinds = [a for a in actions if isinstance(a, (Save, Deliver))]
    assert isinstance(kinds[0], Save)
    assert kinds[0].durable
    assert isinstance(kinds[1], Deliver)
    assert not records(actions, AnswerDrained)
    assert records(one.drain(10), AnswerDrained)
    assert one.process.disk.call.task_open


def test_a_task_ends_when_the_host_has_taken_its_outcome_and_not_before(one: Connection) -> None:
    call = task_made(one, OLD)
    asked = one.request("tasks/get", {"taskId": "t1"})
    asked.answer({"taskId": "t1", "status": "completed"})
    assert not records(one.drain(10), TaskEnded)
    asked = one.request("tasks/result", {"taskId": "t1"})
    assert not records(asked.answer(OUTCOME), TaskEnded)
    assert records(one.drain(10), TaskEnded) == [TaskEnded(1, call.stream)]
    assert not one.process.disk.open_calls


def test_a_task_of_the_extension_ends_with_its_terminal_tasks_get(one: Connection) -> None:
    task_made(one, EXTENSION)
    one.request("tasks/get", {"taskId": "t1"}).answer({"status": "completed", "result": OUTCOME})
    assert records(one.drain(10), TaskEnded)


def no_session(one: Connection, asked: Peer) -> None:
    asked.refuse(404)
    one.sent("initialize").refuse(401)


def not_written(one: Connection, asked: Peer) -> None:
    while asked.is_open:
        asked.not_written()


def refused(one: Connection, asked: Peer) -> None:
    asked.refuse(500)
    one.sent("ping").answer({})


def told_by_a_gateway(one: Connection, asked: Peer) -> None:
    asked.answer_error(-32001)
    one.sent("ping").answer({})


NO_WORD_OF_THE_TASK: dict[str, Callable[[Connection, Peer], object]] = {
    "no session": no_session,
    "not written": not_written,
    "later": lambda one, asked: asked.refuse(429, retry_after=300.0),
    "a bare status": refused,
    "a gateway": told_by_a_gateway,
    "in doubt": lambda one, asked: one.elapse(TimerKind.DEADLINE, asked.stream),
}


@pytest.mark.parametrize("how", NO_WORD_OF_THE_TASK)
def test_what_says_nothing_of_the_task_leaves_it_open_although_the_host_has_taken_it(
    one: Connection, how: str
) -> None:
    task_made(one, OLD)
    asked = one.request("tasks/result", {"taskId": "t1"})
    NO_WORD_OF_THE_TASK[how](one, asked)
    (told,) = [message for message in delivered(one.log) if message["id"] == asked.host_id]
    assert "error" in told
    one.drain(10)
    assert one.process.disk.call.task_open
    assert one.process.killed().connect().machine.heirs_open == 1


def test_a_cancelled_task_ends_and_one_of_somebody_else_s_is_not_ours(one: Connection) -> None:
    task_made(one, OLD)
    one.request("tasks/result", {"taskId": "t9"}).answer(OUTCOME)
    assert not records(one.drain(10), TaskEnded)
    one.request("tasks/cancel", {"taskId": "t1"}).answer({"taskId": "t1", "status": "cancelled"})
    assert records(one.drain(10), TaskEnded)


def test_a_request_of_another_kind_makes_no_task(one: Connection) -> None:
    assert not records(one.request("prompts/get").answer(OLD), TaskCreated)


def test_a_task_in_a_late_answer_is_kept_too(one: Connection) -> None:
    call = one.call().stream_up()
    one.cancel(call)
    actions = call.event("1", call.result(OLD))
    assert outcomes(actions) == [Outcome.RECOVERED]
    assert records(actions, TaskCreated)


def test_the_tasks_remembered_are_bounded(one: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heir_tasks, "_KEPT_TASKS", 1)
    for number in (1, 2):
        call = one.call(number=number)
        call.answer({"task": {"taskId": f"t{number}"}})
    one.drain(10)
    for number, ended in ((1, False), (2, True)):
        one.request("tasks/result", {"taskId": f"t{number}"}).answer(OUTCOME)
        assert bool(records(one.drain(10), TaskEnded)) is ended


# In the next one.


def test_the_next_process_asks_for_the_result() -> None:
    two, asked = heir(OLD)
    assert isinstance(asked.order, Post)
    assert asked.order.message["params"] == {"taskId": "t1"}
    assert not of(asked.answer({"taskId": "t1", "status": "working", "pollInterval": 2000}), Post)
    assert two.timers[Timer(TimerKind.PACE, two.process.disk.call.wire_id)] - two.now == 2.0
    two.elapse(TimerKind.PACE)
    result = fetched(two)
    assert isinstance(result.order, Post)
    assert result.order.message["params"] == {"taskId": "t1"}
    actions = result.answer(OUTCOME)
    assert outcomes(actions) == [Outcome.RECOVERED]
    assert not delivered(actions)
    call = two.process.disk.call
    assert (call.outcome, call.answer, call.task_open) == (
        Outcome.RECOVERED,
        {"jsonrpc": "2.0", "result": OUTCOME},
        False,
    )
    assert two.machine.heirs_open == 0


def test_the_next_process_polls_a_task_of_the_extension() -> None:
    two, asked = heir(EXTENSION)
    asked.answer(EXTENSION)
    timer = Timer(TimerKind.PACE, two.process.disk.call.wire_id)
    assert two.timers[timer] - two.now == 3.0
    two.elapse(TimerKind.PACE)
    asked = two.sent("tasks/get")
    assert outcomes(asked.answer({"status": "completed", "result": OUTCOME})) == [Outcome.RECOVERED]


@pytest.mark.parametrize(("result", "code"), [(OLD, -32602), (EXTENSION, -32602), (EXTENSION, -32021)])
def test_a_task_that_the_server_does_not_know_leaves_its_call_in_doubt(result: JSON, code: int) -> None:
    two, asked = heir(result)
    assert outcomes(asked.answer_error(code)) == [Outcome.IN_DOUBT]
    assert not two.process.disk.open_calls


@pytest.mark.parametrize("result", [OLD, EXTENSION])
@pytest.mark.parametrize("code", [-32000, -32001, -32600, -32603, 0])
def test_an_error_that_says_nothing_of_the_task_has_it_asked_for_again(result: JSON, code: int) -> None:
    two, asked = heir(result)
    actions = asked.answer_error(code)
    if two.is_waited_for("ping"):
        actions += two.sent("ping").answer({})
    assert Outcome.IN_DOUBT not in outcomes(actions)
    assert two.process.disk.call.task_open
    before = two.now
    two.elapse(TimerKind.PACE)
    assert two.now - before == 5.0
    if result is OLD:
        assert fetched(two).answer_error(code)
        two.elapse(TimerKind.PACE)
        actions = fetched(two).answer(OUTCOME)
    else:
        actions = two.sent("tasks/get").answer({"status": "completed", "result": OUTCOME})
    assert outcomes(actions) == [Outcome.RECOVERED]


@pytest.mark.parametrize("how", ["cut", "500", "elapsed"])
def test_a_question_that_comes_to_nothing_is_asked_again(how: str) -> None:
    two, asked = heir(OLD)
    before = asked.stream
    if how == "cut":
        asked.cut()
    elif how == "500":
        asked.refuse(500)
    else:
        two.elapse(TimerKind.DEADLINE, asked.stream)
    two.elapse(TimerKind.PACE)
    assert two.sent("tasks/get").stream != before
    assert outcomes(fetched(two).answer(OUTCOME)) == [Outcome.RECOVERED]


def test_a_session_lost_while_a_question_is_out_means_one_more_question() -> None:
    two, asked = heir(OLD)
    two.call("other").refuse(404)
    assert len(of(two.log, Post)) == len({p.connection for p in of(two.log, Post)})
    two.reinitialized()
    again = two.sent("tasks/get")
    posts = [p for p in of(two.log, Post) if p.message.get("method") == "tasks/get"]
    if again.stream == asked.stream:  # the first is still being answered
        assert len(posts) == 1
    assert outcomes(fetched(two).answer(OUTCOME)) == [Outcome.RECOVERED]
    assert len(posts) <= 2


def test_a_session_lost_by_the_question_itself_means_one_more_question() -> None:
    two, asked = heir(OLD)
    asked.refuse(404)
    two.reinitialized()
    again = two.sent("tasks/get")
    assert again.stream != asked.stream
    assert outcomes(fetched(two).answer(OUTCOME)) == [Outcome.RECOVERED]
    assert not [t for t in two.timers if t.kind is TimerKind.PACE]


def test_a_task_is_asked_for_under_a_new_session_when_the_old_one_is_gone() -> None:
    one = opened()
    task_made(one, OLD)
    two = one.process.killed().connect()
    sent = two.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    two.sent("ping").refuse(404)
    assert two.machine.heirs_open == 1
    (answered,) = delivered(two.sent("initialize").answer(RESULT, session_id="session-two"))
    assert answered["id"] == sent.host_id
    two.notify("notifications/initialized")
    two.sent("notifications/initialized").accept(status=202, events=False)
    assert outcomes(fetched(two).answer(OUTCOME)) == [Outcome.RECOVERED]


def test_a_task_asked_for_to_the_deadline_stays_open_for_the_next_process() -> None:
    two, asked = heir(OLD)
    call = two.process.disk.call
    assert outcomes(two.elapse(TimerKind.DEADLINE, call.wire_id)) == [Outcome.IN_DOUBT]
    assert two.process.disk.call.task_open
    assert two.machine.heirs_open == 0
    assert outcomes(asked.answer({"taskId": "t1", "status": "completed"})) == []
    three = two.process.killed().connect()
    prove(three)
    assert outcomes(fetched(three).answer(OUTCOME)) == [Outcome.RECOVERED]


def test_a_replayed_answer_that_is_a_task_is_asked_for_in_its_turn() -> None:
    one = opened()
    call = one.call().stream_up("1", "2")
    one.drain(10)
    two = one.process.killed().connect()
    prove(two)
    resumed = two.peer(call.stream)
    resumed.accept()
    resumed.event("2", call.progress(2))
    actions = resumed.event("3", call.result(OLD))
    actions += two.elapse(TimerKind.CLOSING) if two.is_set(TimerKind.CLOSING, call.stream) else []
    assert records(actions, TaskCreated)
    assert outcomes(actions) == []
    assert outcomes(fetched(two).answer(OUTCOME)) == [Outcome.RECOVERED]


def test_of_tasks_that_wait_for_the_host_one_is_asked_for_at_a_time_and_holds_no_call_up() -> None:
    """`tasks/result` keeps its connection until there is one, and a client of the caller's has few."""
    one = opened()
    calls = [one.call(n=number) for number in (1, 2)]
    for number, call in enumerate(calls):
        call.answer({"task": {"taskId": f"t{number}", "status": "working"}})
    two = one.process.killed().connect()
    prove(two)
    asked = [p for p in of(two.log, Post) if p.message.get("method") == "tasks/get"]
    for question in asked:
        two.peer(question.stream).answer({"status": "input_required"})
    (fetch,) = [p for p in of(two.log, Post) if p.message.get("method") == "tasks/result"]
    assert fetch.lasts
    assert fetch.message["params"] == {"taskId": "t0"}
    first = two.peer(fetch.stream).stream_up("e1")
    first.cut()
    assert isinstance(first.order, Get)
    assert first.order.lasts
    first.accept()
    first.event("e1", first.progress(1))
    assert outcomes(first.event("e2", first.result(OUTCOME))) == [Outcome.RECOVERED]
    two.elapse(TimerKind.PACE)
    two.sent("tasks/get").answer({"status": "input_required"})
    assert two.sent("tasks/result").order.message["params"] == {"taskId": "t1"}


def test_a_task_that_has_ended_while_its_session_was_lost_is_asked_for_in_the_next_one() -> None:
    two, asked = heir(OLD)
    two.call("other").refuse(404)
    assert not [p for p in of(asked.answer({"status": "completed"}), Post) if "tasks" in p.message["method"]]
    two.reinitialized()
    assert outcomes(fetched(two).answer(OUTCOME)) == [Outcome.RECOVERED]


def test_a_repeat_joined_to_a_task_gets_its_outcome() -> None:
    two, _ = heir(OLD)
    again = two.call()
    assert not of(again.actions, Post)
    (answered,) = delivered(fetched(two).answer(OUTCOME))
    assert answered == {"jsonrpc": "2.0", "id": again.host_id, "result": OUTCOME}


# Without sessions: the task is all that outlives the process.

MODERN: Any = {"mcp-protocol-version": "2026-07-28"}
ENVELOPE = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}


def died(*, beside: bool = False) -> Connection:
    """A process without a session whose call became a task, and then it was killed."""
    one = Process().connect()
    one.request("tools/call", {"name": "charge"}, **MODERN).answer(EXTENSION)
    if beside:
        one.request("tools/call", {"name": "other"}, **MODERN)
    return one.process.killed().connect()


def discovers(host: Connection) -> list[Action]:
    probe = host.request("server/discover", {"_meta": ENVELOPE}, **MODERN)
    return probe.answer({"supportedVersions": ["2026-07-28"]})


def test_the_next_process_polls_it_in_the_host_s_name() -> None:
    two = died(beside=True)
    assert two.machine.heirs_open == 2
    discovers(two)
    two.request("tools/list", {"_meta": ENVELOPE}, **MODERN)
    assert Outcome.IN_DOUBT in outcomes(two.log), "the call that was no task"
    asked = two.sent("tasks/get")
    assert isinstance(asked.order, Post)
    assert asked.order.headers == {**MODERN, "mcp-method": "tasks/get", "mcp-name": "t1"}
    assert asked.order.message["params"] == {"taskId": "t1", "_meta": ENVELOPE}
    asked.answer(EXTENSION)
    two.request("tools/list", {"_meta": ENVELOPE}, **MODERN).answer({"tools": []})
    assert two.sent("tasks/get").stream == asked.stream, "not before its time"
    two.elapse(TimerKind.PACE)
    answer = two.sent("tasks/get").answer({"status": "completed", "result": OUTCOME})
    assert outcomes(answer) == [Outcome.RECOVERED]
    assert two.machine.heirs_open == 0


def test_a_host_that_does_not_ask_first_has_it_asked_at_once() -> None:
    two = died()
    two.request("tools/list", {"_meta": ENVELOPE}, **MODERN)
    assert two.is_waited_for("tasks/get")
    two.sent("tools/list").answer({"tools": []})
    assert len([p for p in of(two.log, Post) if p.message["method"] == "tasks/get"]) == 1


def test_a_repeat_that_waits_for_the_task_and_is_not_sent_itself_gets_its_outcome() -> None:
    two = died()
    again = two.request("tools/call", {"name": "charge", "_meta": ENVELOPE}, **MODERN)
    assert [p.message["method"] for p in of(again.actions, Post)] == ["tasks/get"]
    told = two.sent("tasks/get").answer({"status": "completed", "result": OUTCOME})
    assert delivered(told)[0]["id"] == again.host_id
    assert delivered(told)[0]["result"]["content"] == OUTCOME["content"]


def test_a_server_not_known_to_speak_the_revision_does_not_say_that_the_task_is_gone() -> None:
    two = died()
    two.request("tools/list", {"_meta": ENVELOPE}, **MODERN)
    asked = two.sent("tasks/get")
    asked.refuse(400, asked.error(-32602))
    assert two.machine.heirs_open == 1
    two.elapse(TimerKind.PACE)
    assert two.is_waited_for("tasks/get")
    two.sent("tools/list").answer({"tools": []})
    asked = two.sent("tasks/get")
    assert outcomes(asked.answer_error(-32602)) == [Outcome.IN_DOUBT]


def test_at_its_deadline_no_message_of_sessions_is_sent() -> None:
    two = died()
    discovers(two)
    actions = two.elapse(TimerKind.DEADLINE, two.process.disk.call.wire_id)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not of(actions, Post)


def test_nor_in_a_session_a_cancel_of_what_was_answered_with_a_task() -> None:
    two, _ = heir(OLD)
    assert not of(two.elapse(TimerKind.DEADLINE, two.process.disk.call.wire_id), Post)


@pytest.mark.parametrize("way", ["call", "task"])
def test_the_hook_is_asked_where_there_are_no_sessions(way: str) -> None:
    one = Process(has_hook=True).connect()
    sent = one.request("tools/call", {"name": "charge"}, **MODERN)
    sent.answer(EXTENSION)
    if way == "call":
        one.request("tools/call", {"name": "other"}, **MODERN)
    two = one.process.killed().connect(has_hook=True)
    two.request("tools/list", {"_meta": ENVELOPE}, **MODERN)
    two.sent("tools/list").answer({"tools": []})
    if way == "task":
        two.sent("tasks/get").answer_error(-32602)
    (ask,) = of(two.log, Ask)
    assert ask.doubt.tool == ("other" if way == "call" else "charge")
    actions = two.reconciled(two.peer(ask.question), Resolve(OUTCOME))
    assert outcomes(actions) == [Outcome.RECOVERED]


@pytest.mark.parametrize("first", ["request", "probe"])
def test_the_hook_is_asked_where_neither_session_nor_task_was_left(first: str) -> None:
    """Of every connection: frameworks open one for each call."""
    process = Process(has_hook=True)
    for tool in ("charge", "refund"):
        process.connect().request("tools/call", {"name": tool}, **MODERN)
    process.connect().request("x/unknown", {}, **MODERN)
    two = process.killed().connect()
    if first == "request":
        two.request("tools/list", {"_meta": ENVELOPE}, **MODERN)
    else:
        discovers(two)
    asked = of(two.log, Ask)
    assert {ask.doubt.tool for ask in asked} == {"charge", "refund"}
    for ask in asked:
        assert outcomes(two.reconciled(two.peer(ask.question), Resolve(OUTCOME))) == [Outcome.RECOVERED]
    assert two.machine.heirs_open == 0
    rows = [call for call in two.process.disk.calls.values() if call.tool is not None]
    assert [(row.slot, row.tool, row.outcome) for row in rows] == [
        (1, "charge", Outcome.RECOVERED),
        (2, "refund", Outcome.RECOVERED),
    ]


def test_the_tasks_of_every_connection_are_asked_for() -> None:
    process = Process()
    for number in (1, 2, 3):
        one = process.connect()
        one.request("tools/call", {"name": "charge", "arguments": {"n": number}}, **MODERN).answer(
            {**EXTENSION, "taskId": f"t{number}"}
        )
        if number == 2:
            one.request("tools/call", {"name": "other"}, **MODERN)
    new = process.killed().connect()
    assert new.slot == 3
    discovers(new)
    assert outcomes(new.log) == [Outcome.COMPLETED], "of the probe"
    asked = [p for p in of(new.log, Post) if p.message["method"] == "tasks/get"]
    assert sorted(p.message["params"]["taskId"] for p in asked) == ["t1", "t2", "t3"]
    new = new.process.killed().connect()
    discovers(new)
    for post in [p for p in of(new.log, Post) if p.message["method"] == "tasks/get"]:
        new.peer(post.stream).answer({"status": "completed", "result": OUTCOME})
    rows = [call for call in new.process.disk.calls.values() if call.method == "tools/call"]
    assert [(c.tool, c.outcome, c.task_open) for c in rows] == [
        ("charge", Outcome.RECOVERED, False),
        ("charge", Outcome.RECOVERED, False),
        ("other", Outcome.IN_DOUBT, False),
        ("charge", Outcome.RECOVERED, False),
    ]


@pytest.mark.parametrize("when", ["asked", "answered"])
@pytest.mark.parametrize("taken", [True, False])
def test_a_task_that_its_caller_has_holds_no_equal_call_of_the_same_process_back(when: str, taken: bool) -> None:
    """A connection for each call: the host drives its tasks, and makes the same call once more."""
    one = Process().connect()
    one.request("tools/call", {"name": "charge"}, **MODERN).answer(EXTENSION)
    if taken:
        one.drain()
    two = one.process.connect_again()
    two.request("tools/list", {"_meta": ENVELOPE}, **MODERN)
    if when == "answered":
        two.sent("tasks/get").answer({"status": "completed", "result": OUTCOME})
    again = two.request("tools/call", {"name": "charge"}, **MODERN)
    assert bool(of(again.actions, Post)) is taken
    if when == "answered" and taken:
        assert [row.told for row in two.process.disk.calls.values() if row.task_id] == [model.Told.CALLER]
    three = two.process.killed().connect()
    repeat = three.request("tools/call", {"name": "charge", "_meta": ENVELOPE}, **MODERN)
    sent = [p.message["method"] for p in of(repeat.actions, Post)]
    assert "tools/call" not in sent, "the next process does not know what its host has"


def test_so_beside_an_older_session_that_was_left_open() -> None:
    process = opened().process
    process.connections[0].close()
    died_with = process.connect()
    died_with.request("tools/call", {"name": "charge"}, **MODERN).answer(EXTENSION)
    new = process.killed().connect()
    assert new.heritage is not None
    assert new.heritage.session is not None
    discovers(new)
    assert outcomes(new.sent("tasks/get").answer({"status": "completed", "result": OUTCOME})) == [
        Outcome.RECOVERED
    ]


@pytest.mark.parametrize("status", [200, 400])
def test_it_is_not_known_any_more(status: int) -> None:
    two = died()
    discovers(two)
    two.request("tools/list", {"_meta": ENVELOPE}, **MODERN)
    asked = two.sent("tasks/get")
    actions = asked.answer_error(-32602) if status == 200 else asked.refuse(400, asked.error(-32602))
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not [call for call in two.process.disk.open_calls if call.tool]


@pytest.mark.parametrize("code", [-32001, -32603])
def test_an_error_that_says_nothing_of_it_has_it_asked_for_again_without_a_ping(code: int) -> None:
    two = died()
    discovers(two)
    actions = two.sent("tasks/get").answer_error(code)
    assert not of(actions, Post)
    two.elapse(TimerKind.PACE)
    assert outcomes(two.sent("tasks/get").answer(DONE)) == [Outcome.RECOVERED]


def test_another_s_task_is_not_asked_for() -> None:
    disk = died().process.disk
    disk.principal = "somebody"
    assert disk.heritage() is None


# Whose host lives, and drives the task itself.

DONE = {"taskId": "t1", "status": "completed", "result": OUTCOME}


def given(*, has_hook: bool = False, **params: Any) -> Connection:
    """A connection that was given a task and is closed; the next one of the same process asks for it, too."""
    one = Process(has_hook=has_hook).connect()
    one.request("tools/call", {"name": "charge", **params}, **MODERN).answer(EXTENSION)
    one.drain()
    two = one.process.connect_again()
    two.request("tools/list", {"_meta": ENVELOPE}, **MODERN)
    two.sent("tools/list").answer({"tools": []})
    return two


def charged_anew(host: Connection) -> bool:
    """Whether an equal call is sent, as another one."""
    sent = of(host.request("tools/call", {"name": "charge"}, **MODERN).actions, Post)
    return "tools/call" in [post.message["method"] for post in sent]


@pytest.mark.parametrize("has_hook", [True, False])
@pytest.mark.parametrize("how", ["unknown", "cancelled", "deadline", "closed"])
def test_that_its_task_is_not_to_be_had_here_puts_nothing_in_doubt(has_hook: bool, how: str) -> None:
    two = given(has_hook=has_hook)
    row = two.process.disk.call
    asked = two.sent("tasks/get")
    if how == "unknown":
        actions = asked.answer_error(-32602)
    elif how == "cancelled":
        actions = asked.answer({"taskId": "t1", "status": "cancelled"})
    elif how == "deadline":
        actions = two.elapse(TimerKind.DEADLINE, row.wire_id)
    else:
        actions = two.close()
        two = two.process.connect()
    doubts = [settled for settled in reports(actions, CallSettledEvent) if settled.method == "tools/call"]
    assert not doubts
    assert not of(actions, Ask)
    row = next(call for call in two.process.disk.calls.values() if call.task_id)
    assert (row.outcome, row.told) == (Outcome.COMPLETED, model.Told.CALLER)
    assert row.task_open is (how in ("deadline", "closed")), "the next process asks for it"
    assert charged_anew(two)


def test_nobody_waits_for_a_task_that_its_caller_has() -> None:
    """Nor does its end wake anybody, for it is no event."""
    two = given()
    assert (two.machine.heirs_open, two.machine.heirs_awaited) == (1, 0)
    assert (died().machine.heirs_open, died().machine.heirs_awaited) == (1, 1)
    three = two.process.connect_again()
    assert (three.machine.heirs_open, three.machine.heirs_awaited) == (1, 0), "before it is read"


@pytest.mark.parametrize("has_hook", [True, False])
@pytest.mark.parametrize("how", [None, "unknown", "deadline", "closed"])
def test_a_repeat_by_its_name_is_given_the_task_whatever_is_heard_of_that_here(
    has_hook: bool, how: str | None
) -> None:
    meta = {"_meta": {CALL_KEY: "mine"}}
    two = given(has_hook=has_hook, **meta)
    if how == "unknown":
        two.sent("tasks/get").answer_error(-32602)
    elif how == "deadline":
        two.elapse(TimerKind.DEADLINE, two.process.disk.call.wire_id)
    elif how == "closed":
        two = two.process.connect_again()
    repeat = two.request("tools/call", {"name": "charge", **meta}, **MODERN)
    assert [message["result"] for message in delivered(repeat.actions)] == [EXTENSION]


def test_and_its_outcome_once_that_is_known() -> None:
    meta = {"_meta": {CALL_KEY: "mine"}}
    two = given(**meta)
    two.sent("tasks/get").answer(DONE)
    repeat = two.request("tools/call", {"name": "charge", **meta}, **MODERN)
    assert [message["result"]["content"] for message in delivered(repeat.actions)] == [OUTCOME["content"]]


def taken(host: Connection, method: str, result: JSON) -> list[Action]:
    """The host asks about the task itself, and takes the answer."""
    host.request(method, {"taskId": "t1"}, **MODERN)
    host.sent(method).answer(result)
    return host.drain(10)


@pytest.mark.parametrize(("method", "result"), [("tasks/get", DONE), ("tasks/cancel", {"status": "cancelled"})])
def test_an_outcome_that_the_host_has_taken_is_not_asked_for_again(method: str, result: JSON) -> None:
    two = given()
    actions = taken(two, method, result)
    assert outcomes(actions) == ([Outcome.RECOVERED] if method == "tasks/get" else [])
    assert not two.process.disk.call.task_open
    assert not [t for t in two.timers if t.kind is TimerKind.PACE]
    assert charged_anew(two)


def test_nor_where_the_host_of_a_process_that_died_has_kept_its_task() -> None:
    two = died()
    actions = taken(two, "tasks/get", DONE)
    assert outcomes(actions) == [Outcome.RECOVERED]
    row = next(call for call in two.process.disk.calls.values() if call.task_id)
    assert (row.outcome, row.told, row.task_open) == (Outcome.RECOVERED, model.Told.CALLER, False)
    own = next(post for post in of(two.log, Post) if post.message["method"] == "tasks/get")
    assert not reports(two.peer(own.stream).answer_error(-32602), CallSettledEvent)
    assert charged_anew(two)


def test_a_question_that_fails_after_that_is_not_asked_again() -> None:
    two = died()
    taken(two, "tasks/get", DONE)
    own = next(post for post in of(two.log, Post) if post.message["method"] == "tasks/get")
    assert not reports(two.peer(own.stream).refuse(500), CallSettledEvent)
    assert not [t for t in two.timers if t.kind is TimerKind.PACE]


def test_who_was_joined_to_it_has_the_outcome_as_soon_as_the_host() -> None:
    two = died()
    repeat = two.request("tools/call", {"name": "charge"}, **MODERN)
    actions = taken(two, "tasks/get", DONE)
    assert [message["id"] for message in delivered(actions)] == [repeat.host_id]


def test_a_task_that_its_host_has_cancelled_is_no_call_to_be_repeated_at_once() -> None:
    two = died()
    assert outcomes(taken(two, "tasks/cancel", {"status": "cancelled"})) == [Outcome.CANCELLED]
    assert not charged_anew(two)


def test_what_tells_the_host_nothing_ends_no_task_of_a_dead_process() -> None:
    two = died()
    two.request("tools/list", {"_meta": ENVELOPE}, **MODERN)
    two.sent("tools/list").answer({"tools": []})
    asked = two.sent("tasks/get")
    two.request("tasks/get", {"taskId": "t1"}, **MODERN)
    assert two.sent("tasks/get").stream != asked.stream
    two.sent("tasks/get").answer_error(-32602)
    two.drain(10)
    assert two.machine.heirs_open == 1
    assert outcomes(asked.answer(DONE)) == [Outcome.RECOVERED]


@pytest.mark.parametrize("how", NO_WORD_OF_THE_TASK)
def test_nor_is_what_says_nothing_of_it_the_outcome_of_a_repeat(how: str) -> None:
    """The host has kept the task of the dead process, too, and asks for it in vain."""
    two, own = heir(OLD)
    repeat = two.call()
    asked = two.request("tasks/result", {"taskId": "t1"})
    NO_WORD_OF_THE_TASK[how](two, asked)
    two.drain(10)
    assert asked.host_id in [message.get("id") for message in delivered(two.log)]
    assert repeat.host_id not in [message.get("id") for message in delivered(two.log)]
    assert two.machine.heirs_open == 1
    own.answer({"status": "completed"})
    if how == "no session":
        two.elapse(TimerKind.PACE)
        two.reinitialized()
        two.sent("tasks/get").answer({"status": "completed"})
    (told,) = delivered(two.sent("tasks/result").answer(OUTCOME))
    assert (told["id"], told["result"]) == (repeat.host_id, OUTCOME)


def test_another_task_of_the_host_s_ends_no_heir() -> None:
    two = given()
    two.request("tasks/get", {"taskId": "t9"}, **MODERN)
    two.sent("tasks/get").answer({**DONE, "taskId": "t9"})
    two.drain(10)
    assert two.machine.heirs_open == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_task_whose_turn_came_while_there_was_no_session_is_asked_for_again(kept: bool) -> None:
    """Beside a suspected session another is opened; where none can be, nobody else may want one."""
    two, asked = heir(OLD)
    asked.answer({"taskId": "t1", "status": "working"})
    if kept:
        two.request("prompts/list").refuse(500)
        two.sent("ping").refuse(500)
    else:
        two.request("prompts/list").refuse(404)
        two.sent("initialize").refuse(401)
    actions = two.elapse(TimerKind.PACE)
    assert not [post for post in of(actions, Post) if post.message["method"] == "tasks/get"]
    if kept:
        two.sent("initialize").refuse(500)
        actions = two.elapse(TimerKind.PACE)
        assert [post.message["method"] for post in of(actions, Post)] == ["tasks/get"]
    else:
        assert [post.message["method"] for post in of(actions, Post)] == ["initialize"]


@pytest.mark.parametrize("drawn", ["HTTP 400", "error -32001"])
def test_a_session_that_died_is_found_by_a_question_about_a_task(drawn: str) -> None:
    two, asked = heir(OLD)
    kind, code = drawn.split()
    draws = Peer.refuse if kind == "HTTP" else Peer.answer_error
    draws(asked, int(code))
    draws(two.sent("ping"), int(code))
    (lost,) = reports(two.reinitialized(), SessionLost)
    assert drawn in lost.reason
    assert two.is_waited_for("tasks/get")


@pytest.mark.parametrize(("status", "code"), [(429, None), (404, -32601), (413, None)])
def test_what_says_nothing_of_a_session_costs_none_whoever_draws_it(status: int, code: int | None) -> None:
    body = None if code is None else error(code)
    _, asked = heir(OLD)
    assert not [p for p in of(asked.refuse(status, body), Post) if p.message["method"] == "ping"]


def test_a_server_that_refuses_every_ping_loses_one_session_by_a_question_of_ours_and_no_more() -> None:
    two, asked = heir(OLD)
    for _ in range(3):
        asked.refuse(400)
        if two.is_waited_for("ping"):
            two.sent("ping").refuse(400)
        else:
            two.sent("tools/list").answer({"tools": []})
        if two.is_waited_for("initialize"):
            two.sent("initialize").answer(RESULT, session_id="session-two")
            two.sent("notifications/initialized").accept(status=202, events=False)
            two.sent("ping").refuse(400)  # the new one says the same
        if not two.is_waited_for("tasks/get"):
            two.elapse(TimerKind.PACE)
        asked = two.sent("tasks/get")
    assert [p.message["method"] for p in of(two.log, Post)].count("initialize") == 1


def test_that_a_task_is_not_known_any_more_is_on_disk_with_what_the_hook_says_and_not_before() -> None:
    """A process that dies while its hook is asked must not have the next one think that all was told."""
    one = opened()
    task_made(one, OLD)
    two = one.process.killed().connect(has_hook=True)
    prove(two)
    actions = two.sent("tasks/get").answer_error(-32602)
    assert of(actions, Ask)
    row = next(call for call in two.process.disk.calls.values() if call.task_id)
    assert row.task_open
    three = two.process.killed().connect(has_hook=True)
    prove(three)
    assert three.machine.heirs_open == 1
    repeat = three.call()
    assert repeat.stream == -1
    asked = three.sent("tasks/get").answer_error(-32602)
    (ask,) = of(asked, Ask)
    three.feed(Reconciled(ask.question, None))
    row = next(call for call in three.process.disk.calls.values() if call.task_id)
    assert not row.task_open
    assert row.outcome is Outcome.IN_DOUBT
