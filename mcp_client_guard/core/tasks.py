"""MCP tasks: what the answer to a call says of its task, and how to ask for it (SPEC-FACTS §11)."""

from __future__ import annotations

from enum import Enum, auto

from attrs import field, frozen

from .answers import CODE_HTTP_STATUS, NO_ANSWER
from .classify import METHOD_NOT_FOUND, code_of, is_modern, is_suspect_answer
from .messages import result_of, text_of
from .model import JSON

STATUS, RESULT = "tasks/get", "tasks/result"
_TERMINAL = frozenset({"completed", "failed", "cancelled"})
UNKNOWN_TASK = -32602
_INTERNAL_ERRORS = frozenset({-32603, 0})
"""0 is that of the Python SDKs."""
_SAYS_NOTHING = NO_ANSWER | {CODE_HTTP_STATUS, METHOD_NOT_FOUND}
_LONGEST_POLL = 60.0
_POLL = 1.0


@frozen
class Task:
    """A task that the server made of a call."""

    task_id: str = field(repr=False)
    is_extension: bool
    """Of the 2026 extension, which gives the result with `tasks/get`; else of 2025-11-25."""


def task_of(message: JSON) -> Task | None:
    """The task in the answer to a `tools/call`, if it was taken as one."""
    result = result_of(message)
    if result is None:
        return None
    is_extension = result.get("resultType") == "task"
    task = result if is_extension else result.get("task")
    task_id = task.get("taskId") if isinstance(task, dict) else None
    return Task(task_id, is_extension) if isinstance(task_id, str) else None


class Fetch(Enum):
    AT_ONCE = auto()
    BLOCKING = auto()
    """It waits for the host, and asks it for something on the stream of that request alone."""


_FETCH = {**dict.fromkeys(_TERMINAL, Fetch.AT_ONCE), "input_required": Fetch.BLOCKING}


@frozen
class Told:
    """What an answer about a task says of the call."""

    answer: JSON | None = field(default=None, repr=False)
    """The answer to the call itself."""
    why_none: str = ""
    """Why there will be none; empty while it may still come."""
    fetch: Fetch | None = None
    """Whether the answer is to be had by `tasks/result`, which blocks for as long as there is none."""


def told_of(task: Task, method: str, message: JSON) -> Told:
    """What the server says of a task that was asked for by this method."""
    code = code_of(message)
    if code == UNKNOWN_TASK:
        return Told(why_none="the server does not know its task any more")
    if code == METHOD_NOT_FOUND and method == STATUS and not task.is_extension:
        return Told(fetch=Fetch.BLOCKING)  # it may know the other one
    if code == METHOD_NOT_FOUND:
        return Told(why_none="the server knows no tasks any more")
    if is_modern(message):
        return Told(why_none=f"asking for its task drew the error {code}")
    if _says_nothing(message) or code in _INTERNAL_ERRORS:
        return Told()  # an internal error is of the question, or of the task: the next answer shows
    if method == RESULT:
        return Told(message)
    result = result_of(message)
    if result is None:
        return Told()
    status = text_of(result.get("status"))
    if not task.is_extension:
        return Told(fetch=_FETCH.get(status))
    if status not in _TERMINAL:
        return Told()
    outcome = {k: result[k] for k in ("result", "error") if isinstance(result.get(k), dict)}
    if not outcome:
        return Told(why_none=f"its task is {status}, and has no result")
    return Told({"jsonrpc": "2.0", "id": message.get("id"), **outcome})


def poll_seconds(message: JSON) -> float:
    """How long the server wants us to wait before the next `tasks/get`."""
    result = result_of(message) or {}
    wait = result.get("pollIntervalMs", result.get("pollInterval"))
    if not isinstance(wait, (int, float)) or isinstance(wait, bool) or not wait > 0:
        return _POLL
    return min(wait, _LONGEST_POLL * 1000) / 1000


def _says_nothing(message: JSON) -> bool:
    """Whether this error is of the question or of its way, and says nothing of the task."""
    return code_of(message) in _SAYS_NOTHING or is_suspect_answer(message) or is_modern(message)


def ends_task(method: str, message: JSON) -> bool:
    """Whether nothing more is to be had of a task once the host has taken this answer about it."""
    if method == RESULT:
        return not (_says_nothing(message) or code_of(message) in _INTERNAL_ERRORS)
    if method == STATUS and code_of(message) == UNKNOWN_TASK:
        return True
    result = result_of(message)
    if method not in (STATUS, "tasks/cancel") or result is None:
        return False
    # The `tasks/get` of 2025-11-25 tells the status only: what the call gave is still to be had.
    status = text_of(result.get("status"))
    has_outcome = status in _TERMINAL and ("result" in result or "error" in result)
    return status == "cancelled" or has_outcome
