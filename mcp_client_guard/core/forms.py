"""In which form a request can be answered: whoever gets another calls again, since SDKs raise for it."""

from __future__ import annotations

from .answers import as_error
from .ledger import Call, Joined
from .model import JSON
from .modern import as_complete
from .rounds import asks_for_input
from .tasks import task_of

WAITS_ELSEWHERE = "the server asks for something first, which only a host of 2026-07-28 can give"
_NO_TASK = "it was answered, but with no task, which is what this request asks for"
_A_TASK = "it was answered with a task, which is not what this request asks for"


def why_unread(answer: JSON, asked: Call | Joined) -> str:
    """Why this answer to an equal call is none to whoever asked so; empty if it is one."""
    if asks_for_input(answer):
        return "" if asked.stateless else WAITS_ELSEWHERE
    task = task_of(answer)
    if task is not None:
        return "" if (asked.stateless if task.is_extension else asked.as_task) else _A_TASK
    # By its name it is never sent again, whatever its host makes of this.
    return _NO_TASK if asked.as_task and not asked.named and "result" in answer else ""


def as_asked(answer: JSON, asked: Call | Joined) -> JSON:
    """The same answer for whoever asked so."""
    answer = as_error(answer) if asked.as_task and task_of(answer) is None else answer
    return as_complete(answer) if asked.stateless else answer
