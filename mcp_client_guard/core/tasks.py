"""MCP tasks: what the answer to a call says of its task, and how to ask for it (SPEC-FACTS §11)."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from .model import JSON

_TERMINAL = frozenset({"completed", "failed", "cancelled"})
_LONGEST_POLL = 60.0
_POLL = 1.0


@frozen
class Task:
    """A task that the server made of a call."""

    task_id: str = field(repr=False)
    is_extension: bool
    """Of the 2026 extension, which gives the result with `tasks/get`; else of 2025-11-25."""

    def question(self) -> tuple[str, JSON]:
        """What to ask for its result. `tasks/result` blocks until there is one; `tasks/get` is polled."""
        return ("tasks/get" if self.is_extension else "tasks/result"), {"taskId": self.task_id}


def task_of(result: Any) -> Task | None:
    """The task in the result of a `tools/call`, if it was taken as one."""
    if not isinstance(result, dict):
        return None
    is_extension = result.get("resultType") == "task"
    task = result if is_extension else result.get("task")
    task_id = task.get("taskId") if isinstance(task, dict) else None
    return Task(task_id, is_extension) if isinstance(task_id, str) else None


def outcome_of(task: Task, message: JSON) -> JSON | None:
    """The answer to the call itself, in an answer about its task; None while there is none yet."""
    if not task.is_extension:
        return message
    result = message.get("result")
    if not isinstance(result, dict) or result.get("status") not in _TERMINAL:
        return None if isinstance(result, dict) else message
    kept = {k: result[k] for k in ("result", "error") if isinstance(result.get(k), dict)}
    return {"jsonrpc": "2.0", "id": message.get("id"), **kept} if kept else message


def poll_seconds(message: JSON) -> float:
    """How long the server wants us to wait before the next `tasks/get`."""
    result = message.get("result")
    wait = result.get("pollIntervalMs") if isinstance(result, dict) else None
    ok = isinstance(wait, (int, float)) and not isinstance(wait, bool) and wait > 0
    return min(wait / 1000, _LONGEST_POLL) if ok and wait is not None else _POLL


def ends_task(method: str, message: JSON) -> bool:
    """Whether this answer to the host's `tasks/result` or `tasks/get` is the outcome of the task."""
    result = message.get("result")
    if method == "tasks/result":
        return "result" in message or "error" in message
    return (
        method == "tasks/get"
        and isinstance(result, dict)
        and result.get("status") in _TERMINAL
        and ("result" in result or "error" in result)
    )
