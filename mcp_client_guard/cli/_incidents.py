"""The incidents that `mcp-guard demo` plays: what the caller asks for, and what it ought to get."""

from __future__ import annotations

from attrs import frozen


@frozen
class Incident:
    """One fault of a server or of the network, around one tool call."""

    name: str
    title: str
    what_happens: str
    tool: str
    answer: str
    """The true answer of the tool."""
    messages: tuple[str, ...]
    """What the caller should get beside the answer, each exactly once."""
    before: int = 0
    """How many of them come before the call."""


def _progress(last: int) -> tuple[str, ...]:
    return tuple(f"progress {n}" for n in range(1, last + 1))


INCIDENTS = (
    Incident(
        "fresh-session",
        "Fresh session with 200",
        "the resume meets a replica that never saw this session; it answers 200, and sends what it has",
        tool="charge",
        answer="charged 100 cents",
        messages=_progress(2),
    ),
    Incident(
        "trimmed-buffer",
        "Trimmed buffer",
        "the session is known, but the buffer of events starts behind the cursor; the server starts there",
        tool="export",
        answer="exported 100 rows",
        messages=_progress(100),
    ),
    Incident(
        "forked-counter",
        "Forked counter",
        "another replica serves the same session, and has given the same event IDs to other messages",
        tool="deploy",
        answer="deployed build 41",
        messages=_progress(3),
    ),
    Incident(
        "drain-race",
        "Drain race",
        "the cut comes inside the result; the server counts it as delivered and goes on after it",
        tool="index",
        answer="indexed document 7",
        messages=_progress(2),
    ),
    Incident(
        "empty-replay",
        "Empty replay",
        "the resume is answered 200, and then nothing comes",
        tool="reserve",
        answer="reserved seat 12",
        messages=_progress(2),
    ),
    Incident(
        "json-neutrality",
        "JSON between events",
        "a call answered by JSON, then a cut of the standalone stream; the server resumes it well",
        tool="add",
        answer="5",
        messages=("log 1", "log 2", "log 3", "log 4"),
        before=2,
    ),
    Incident(
        "honest-cut",
        "Cut and resumed well",
        "the connection is reset in the middle of a call; the server resumes it well",
        tool="build",
        answer="built 3 targets",
        messages=_progress(3),
    ),
    Incident(
        "dropped",
        "Executed, then dropped",
        "the tool has run, and the connection is reset before any event ID was sent",
        tool="send",
        answer="sent mail 5",
        messages=(),
    ),
)
