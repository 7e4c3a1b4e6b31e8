"""What this package is tested with: a byte-scripted server, a proxy that cuts, and a server with an event log."""

from ._http1 import Event, Request, events_of
from .event_log import Entry, EventLog, Reason, Refusal, Replay
from .event_log_server import EventLogServer
from .fake_server import Dribble, FakeServer, Handler, Reply, Step, in_turn, script
from .lies import Lie
from .proxy import Cut, CuttingProxy, Exchange, How, Match, after_event, calls_of, resumes_of, standalone
from .scripted_mcp import ScriptedMcp
from .sessions import Reader, Session, SessionStore
from .written import (
    END_OF_CHUNKS,
    chunk,
    error,
    http_response,
    json_response,
    notification,
    progress_of,
    result,
    sse_event,
    sse_head,
    sse_response,
    tool_result,
)

__all__ = [
    "END_OF_CHUNKS",
    "Cut",
    "CuttingProxy",
    "Dribble",
    "Entry",
    "Event",
    "EventLog",
    "EventLogServer",
    "Exchange",
    "FakeServer",
    "Handler",
    "How",
    "Lie",
    "Match",
    "Reader",
    "Reason",
    "Refusal",
    "Replay",
    "Reply",
    "Request",
    "ScriptedMcp",
    "Session",
    "SessionStore",
    "Step",
    "after_event",
    "calls_of",
    "chunk",
    "error",
    "events_of",
    "http_response",
    "in_turn",
    "json_response",
    "notification",
    "progress_of",
    "result",
    "resumes_of",
    "script",
    "sse_event",
    "sse_head",
    "sse_response",
    "standalone",
    "tool_result",
]
