"""What a server writes: HTTP responses, events and JSON-RPC messages, as bytes and values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ._http1 import Request

END_OF_CHUNKS = b"0\r\n\r\n"
"""Ends a chunked response; without it the client sees a cut."""


def http_response(
    status: int = 200, body: bytes = b"", *, headers: Mapping[str, str] | None = None, length: bool = True
) -> bytes:
    """A response with `Content-Length`; if `length` is false, one that lasts until the connection closes."""
    fields = {"content-length": str(len(body))} if length else {}
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{k}: {v}" for k, v in {**fields, **(headers or {})}.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def json_response(
    message: Any, *, status: int = 200, session: str | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """A whole response with a JSON body."""
    extra = {"content-type": "application/json", **_session(session), **(headers or {})}
    return http_response(status, json.dumps(message).encode(), headers=extra)


def sse_head(
    *, session: str | None = None, chunked: bool = True, headers: Mapping[str, str] | None = None
) -> bytes:
    """The head of an event stream: its events go in `chunk()`s, or bare until the close if not `chunked`."""
    framing = {"transfer-encoding": "chunked"} if chunked else {}
    extra = {"content-type": "text/event-stream", **framing, **_session(session), **(headers or {})}
    return http_response(headers=extra, length=False)


def sse_response(*events: bytes, session: str | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole event stream with `Content-Length`."""
    extra = {"content-type": "text/event-stream", **_session(session), **(headers or {})}
    return http_response(body=b"".join(events), headers=extra)


def sse_event(
    data: Any = None, *, id: str | None = None, retry: int | str | None = None, event: str | None = None
) -> bytes:
    """One event with its blank line. Text and bytes go as they are, the rest as JSON; None: no `data`."""
    lines = []
    if event is not None:
        lines.append(f"event: {event}".encode())
    if id is not None:
        lines.append(f"id: {id}".encode())
    if retry is not None:
        lines.append(f"retry: {retry}".encode())
    if data is not None:
        lines.append(b"data: " + _data(data))
    return b"\n".join(lines) + b"\n\n"


def chunk(data: bytes) -> bytes:
    """`data` as one chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _data(data: Any) -> bytes:
    if isinstance(data, bytes):
        return data
    return (data if isinstance(data, str) else json.dumps(data)).encode()


def _session(session: str | None) -> dict[str, str]:
    return {} if session is None else {"mcp-session-id": session}


# --- JSON-RPC -------------------------------------------------------------------------------------


def result(request_id: Any, value: Any) -> dict[str, Any]:
    """A JSON-RPC response."""
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def error(request_id: Any, code: int, message: str) -> dict[str, Any]:
    """A JSON-RPC error response."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def notification(method: str, **params: Any) -> dict[str, Any]:
    """A JSON-RPC notification."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def tool_result(request_id: Any, text: str, *, is_error: bool = False) -> dict[str, Any]:
    """The response to a `tools/call`, with one text."""
    return result(request_id, {"content": [{"type": "text", "text": text}], "isError": is_error})


def progress_of(request: Request, progress: float, total: float | None = None) -> dict[str, Any]:
    """A progress notification under the token which `request` carries."""
    token = request.json["params"]["_meta"]["progressToken"]
    extra = {} if total is None else {"total": total}
    return notification("notifications/progress", progressToken=token, progress=progress, **extra)
