"""What counts as a JSON-RPC message: exactly what every MCP SDK can read, so that nothing breaks its reader."""

from __future__ import annotations

from typing import Any

from .model import JSON

_PARAMS = (dict, type(None))


def messages_of(body: Any) -> tuple[JSON, ...]:
    """The messages in a parsed body: one, or those of a batch (2025-03-26). Anything else carries none."""
    if isinstance(body, dict):
        return (_what_is_there(body),) if is_message(body) else ()
    if isinstance(body, list):
        return tuple(_what_is_there(part) for part in body if isinstance(part, dict) and is_message(part))
    return ()


def unreadable_in(body: Any) -> list[Any]:
    """What stands in a parsed body and is no message: the whole of it, or parts of a batch."""
    if isinstance(body, list):
        return [part for part in body if not (isinstance(part, dict) and is_message(part))]
    return [] if not body or messages_of(body) else [body]


def is_message(body: JSON) -> bool:
    """Whether this is a well-formed request, notification, result or error; a member that is null is none."""
    if body.get("jsonrpc") != "2.0":
        return False
    get = body.get
    method = get("method")
    if method is not None:
        id = get("id")
        return isinstance(method, str) and isinstance(get("params"), _PARAMS) and (id is None or _is_id(id))
    result = get("result")
    if result is not None:
        return isinstance(result, dict)
    error = get("error")
    return isinstance(error, dict) and isinstance(error.get("code"), int) and isinstance(error.get("message"), str)


def says_the_same(one: Any, other: Any) -> bool:
    """Whether two parts of messages are equal; not if they are nested too deep to tell."""
    try:
        return bool(one == other)
    except RecursionError:
        return False


def text_of(value: Any) -> str:
    """A member that is to be a text: empty where it is anything else."""
    return value if isinstance(value, str) else ""


def result_of(message: JSON) -> JSON | None:
    """The result in an answer: None where it is an error, or the result no object."""
    result = message.get("result")
    return result if isinstance(result, dict) else None


def params_of(message: JSON) -> JSON:
    """The parameters of a request or notification: empty where it has none."""
    params = message.get("params")
    return params if isinstance(params, dict) else {}


def tool_named(method: str, params: JSON) -> str | None:
    """The tool that a request with these parameters calls, if it calls one."""
    name = params.get("name") if method == "tools/call" else None
    return name if isinstance(name, str) else None


def tells_of_success(message: JSON) -> bool:
    """Whether this answer is a result, and none of a tool that has failed."""
    result = result_of(message)
    return result is not None and not result.get("isError")


def _what_is_there(message: JSON) -> JSON:
    """Some serialisers write out what is not there, and the SDK takes that; all of ours looks at what is there."""
    if None not in message.values():
        return message
    # To whom an error belongs may be unknown (JSON-RPC 2.0, 5).
    return {k: v for k, v in message.items() if v is not None or (k == "id" and message.get("method") is None)}


def _is_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)
