"""What counts as a JSON-RPC message: exactly what every MCP SDK can read, so that nothing breaks its reader."""

from __future__ import annotations

from typing import Any

from .model import JSON

_PARAMS = (dict, type(None))


def messages_of(body: Any) -> tuple[JSON, ...]:
    """The messages in a parsed body: one, or those of a batch (2025-03-26). Anything else carries none."""
    if isinstance(body, dict):
        return (body,) if is_message(body) else ()
    if isinstance(body, list):
        return tuple(part for part in body if isinstance(part, dict) and is_message(part))
    return ()


def is_message(body: JSON) -> bool:
    """Whether this is a well-formed request, notification, result or error."""
    if body.get("jsonrpc") != "2.0":
        return False
    method = body.get("method")
    if method is not None:
        return (
            isinstance(method, str)
            and isinstance(body.get("params"), _PARAMS)
            and ("id" not in body or _is_id(body["id"]))
        )
    if "result" in body:
        return isinstance(body["result"], dict)
    error = body.get("error")
    return isinstance(error, dict) and isinstance(error.get("code"), int) and isinstance(error.get("message"), str)


def _is_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)
