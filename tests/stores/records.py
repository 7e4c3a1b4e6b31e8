"""Records to write, with as little said as a test needs."""

from __future__ import annotations

from mcp_client_guard.core.model import (
    CallSent,
    CallSettled,
    CursorMoved,
    Generation,
    Outcome,
    Seen,
    SessionOpened,
    digest_of,
)

SECRET = "session-id-that-nobody-may-see"


def sent(wire_id: int, *, incarnation: int = 1, tool: str | None = "charge") -> CallSent:
    return CallSent(incarnation, wire_id, "tools/call", tool, f"key-{wire_id}", digest_of(b"{}"), True)


def settled(wire_id: int, outcome: Outcome = Outcome.COMPLETED, reason: str = "answered") -> CallSettled:
    return CallSettled(1, wire_id, outcome, reason)


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
