"""The answers that the guard itself gives to a request.

Codes are outside -32768..-32000, which belong to JSON-RPC and MCP; frameworks that repeat a call on the
codes of a lost connection do not take these for one (INTEGRATIONS §4).
"""

from __future__ import annotations

from typing import Any

from .doubt import IN_DOUBT_KEY, CallInDoubt, CallNotExecuted
from .inputs import BodyReceived
from .ledger import Call
from .messages import messages_of, result_of
from .model import JSON
from .policy import OPENING_METHODS

CODE_IN_DOUBT = -31901
CODE_NOT_EXECUTED = -31902
CODE_HTTP_STATUS = -31903
CODE_SESSION_LOST = -31904
CODE_NAME_TAKEN = -31905
NO_ANSWER = frozenset({CODE_IN_DOUBT, CODE_NOT_EXECUTED, CODE_SESSION_LOST})
"""The guard's own words where the server has not answered."""


def in_doubt_answer(call: Call, doubt: CallInDoubt, *, as_result: bool) -> JSON:
    """As a tool result that a model can act on, or as an error of a private code."""
    if as_result and call.method == "tools/call":
        result = {
            "content": [{"type": "text", "text": str(doubt)}, *_content_of(call.said)],
            "isError": True,
            "_meta": {IN_DOUBT_KEY: doubt.as_json()},
        }
        return {"jsonrpc": "2.0", "id": call.host_id, "result": result}
    return error_answer(call.host_id, CODE_IN_DOUBT, str(doubt), {IN_DOUBT_KEY: doubt.as_json()})


def _content_of(said: JSON | None) -> list[JSON]:
    """What the server has said that is not the answer, in its own words, for a model."""
    error, result = (said or {}).get("error"), result_of(said or {})
    if isinstance(error, dict):
        return [{"type": "text", "text": f"The server said: {error.get('message')}"}]
    content = None if result is None else result.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def failed_answer(call: Call, doubt: CallInDoubt, message: str, *, as_result: bool) -> JSON:
    """In the words of the user's `reconcile` hook; still marked as in doubt."""
    answer = in_doubt_answer(call, doubt, as_result=as_result)
    if "result" in answer:
        answer["result"]["content"] = [{"type": "text", "text": message}]
    else:
        answer["error"]["message"] = message
    return answer


def as_error(answer: JSON) -> JSON:
    """An answer of the guard's own for a request that no tool result answers."""
    doubt = CallInDoubt.find(answer.get("result"))
    if doubt is None:
        return answer
    text = answer["result"]["content"][0]["text"]
    return error_answer(answer["id"], CODE_IN_DOUBT, text, {IN_DOUBT_KEY: doubt.as_json()})


def error_answer(host_id: str | int | None, code: int, message: str, data: Any = None) -> JSON:
    error: JSON = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": host_id, "error": error}


def why_no_answer(told: BodyReceived, call: Call) -> str:
    """Where what came with 2xx is no answer to this request."""
    if told.body is None:
        return "the server accepted the request without an answer"
    if messages_of(told.body):
        return "what came was no answer to it"
    came = f"HTTP {told.status}, {told.media_type or 'no media type'}"
    may_be_wrong = ": this may not be the URL of an MCP endpoint" if call.method in OPENING_METHODS else ""
    return f"the answer was no JSON-RPC message ({came}){may_be_wrong}"


def not_executed_answer(
    host_id: str | int | None,
    method: str,
    tool: str | None,
    by: str,
    reason: str,
    status: int | None = None,
    *,
    code: int = CODE_NOT_EXECUTED,
) -> JSON:
    data = {"outcome": "not_executed", "by": by, "reason": reason, "http_status": status}
    text = str(CallNotExecuted(by, reason, status, method, tool))
    return error_answer(host_id, code, text, {**data, "method": method, "tool": tool})


def session_lost_answer(
    host_id: str | int | None, method: str, tool: str | None, reason: str, status: int | None = None
) -> JSON:
    by = "server" if status else "wire"
    return not_executed_answer(host_id, method, tool, by, reason, status, code=CODE_SESSION_LOST)


def http_answer(call: Call, status: int, body: Any, path: str | None = None) -> JSON:
    """A refusal that is an answer: the server's own JSON-RPC error if it sent one, else the bare status.

    `path`: of the endpoint, which is told where there may be none.
    """
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        message = error.get("message")
        data = error.get("data")
        return error_answer(call.host_id, error["code"], message if isinstance(message, str) else "", data)
    data = {"http_status": status}
    may_be_wrong = path is not None and status in (404, 405) and call.method in OPENING_METHODS
    where = f" to POST {path}" if may_be_wrong else ""
    return error_answer(call.host_id, CODE_HTTP_STATUS, f"The server answered HTTP {status}{where}", data)
