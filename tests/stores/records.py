"""Records to write, with as little said as a test needs."""

from __future__ import annotations

from mcp_client_guard.core.model import (
    JSON,
    CallSent,
    CallSettled,
    CursorMoved,
    Generation,
    Outcome,
    Seen,
    ServerAnswered,
    SessionOpened,
    TaskCreated,
    digest_of,
)

SECRET = "session-id-that-nobody-may-see"
TASK = "task-id-that-nobody-may-see"


def sent(
    wire_id: int,
    *,
    incarnation: int = 1,
    tool: str | None = "charge",
    call_key: str | None = None,
    named: bool = False,
) -> CallSent:
    call_key = call_key or f"key-{wire_id}"
    return CallSent(incarnation, wire_id, "tools/call", tool, call_key, digest_of(b"{}"), True, named)


def settled(
    wire_id: int, outcome: Outcome = Outcome.COMPLETED, reason: str = "answered", answer: JSON | None = None
) -> CallSettled:
    return CallSettled(1, wire_id, outcome, reason, answer)


def task(wire_id: int, task_id: str = TASK, *, is_extension: bool = False) -> TaskCreated:
    return TaskCreated(1, wire_id, task_id, is_extension)


def replied(
    request_id: str | int,
    answer: JSON | None = None,
    *,
    incarnation: int = 1,
    stream: int | None = 7,
    event_id: str | None = "q",
) -> ServerAnswered:
    digest = digest_of(repr(request_id).encode())
    answer = {"result": request_id} if answer is None else answer
    return ServerAnswered(incarnation, request_id, digest, answer, stream, event_id)


def opened(incarnation: int = 1, *, protocol_version: str = "2025-11-25") -> SessionOpened:
    return SessionOpened(
        incarnation,
        Generation.STREAMABLE_HTTP,
        SECRET,
        protocol_version,
        {"clientInfo": {"name": "c\ud800"}},
        {"serverInfo": {"name": "s"}},
    )


def trail(*numbers: int) -> tuple[Seen, ...]:
    return tuple(Seen(f"event-{number}", digest_of(str(number).encode())) for number in numbers)


def moved(*numbers: int, stream: str = "get", incarnation: int = 1) -> CursorMoved:
    return CursorMoved(incarnation, stream, trail(*numbers))
