"""The answers that the guard itself gives to a request, and how they are recognised again.

Codes are outside -32768..-32000, which belong to JSON-RPC and MCP; frameworks that repeat a call on the
codes of a lost connection do not take these for one (INTEGRATIONS §4).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from attrs import frozen

from .inputs import BodyReceived
from .ledger import Call
from .messages import messages_of, text_of
from .model import JSON
from .policy import HARMLESS_METHODS, OPENING_METHODS

IN_DOUBT_KEY = "io.github.mcp-client-guard/in-doubt"

CODE_IN_DOUBT = -31901
CODE_NOT_EXECUTED = -31902
CODE_HTTP_STATUS = -31903
CODE_SESSION_LOST = -31904
CODE_NAME_TAKEN = -31905
NO_ANSWER = frozenset({CODE_IN_DOUBT, CODE_NOT_EXECUTED, CODE_SESSION_LOST})
"""The guard's own words where the server has not answered."""

_SENTENCE = (
    "The {what} may or may not have run: {reason}. Do not repeat it without checking its effect first. "
    "(call key {call_key})"
)
_OF_HARMLESS = "The {what} had no answer: {reason}. It may safely be sent again. (call key {call_key})"
_PARTS = {"what": "(?P<kind>tool call|request) (?P<name>'[^']*')", "reason": ".*", "call_key": "[^()]*"}
_SPOKEN = [
    re.compile(
        re.sub(r"\\{(\w+)\\}", lambda part: f"(?P<{part[1]}>{_PARTS[part[1]]})", re.escape(said)), re.DOTALL
    )
    for said in (_SENTENCE, _OF_HARMLESS)
]
_MOST_EXCEPTIONS = 1000
_META_NAMES = ("_meta", "meta", "metadata")
"""Google ADK dumps the SDK's model by its attributes; Strands has a name of its own."""


@frozen
class CallInDoubt:
    """What is known of a call that may or may not have run.

    `CallInDoubt.find` gives it back from what the host got: a tool result or an exception of either SDK major.
    """

    reason: str
    method: str
    tool: str | None
    call_key: str
    session: str
    """Fingerprint of the session."""
    cancel_signalled: bool = False

    def as_json(self) -> JSON:
        return {
            "outcome": "in_doubt",
            "reason": self.reason,
            "method": self.method,
            "tool": self.tool,
            "call_key": self.call_key,
            "session": self.session,
            "cancel_signalled": self.cancel_signalled,
        }

    @classmethod
    def from_json(cls, value: Any) -> CallInDoubt | None:
        if not isinstance(value, dict) or value.get("outcome") != "in_doubt":
            return None
        return cls(
            reason=text_of(value.get("reason")),
            method=text_of(value.get("method")),
            tool=text_of(value.get("tool")) or None,
            call_key=text_of(value.get("call_key")),
            session=text_of(value.get("session", "-")),
            cancel_signalled=value.get("cancel_signalled") is True,
        )

    @classmethod
    def find(cls, value: Any) -> CallInDoubt | None:
        """From what the host got, or what its framework has made of that; None if it is none.

        From a tool result (an object of the SDK's, or plain JSON; `meta` or `metadata` where a framework has that
        for `_meta`); from an exception, those below it, and a result that one of them carries. Frameworks that
        keep the words alone (a text, a list of content blocks, an exception's text) are believed where these are
        exactly ours: `session` is then `-` and `cancel_signalled` False, for the words do not say.
        """
        if isinstance(value, BaseException):
            return next((d for error in _below(value, contexts=True) if (d := cls._in_exception(error))), None)
        if isinstance(value, str):
            return cls._in_words(value)
        if isinstance(value, list):
            return next((d for block in value if (d := cls._in_words(_text_of(block)))), None)
        is_json = isinstance(value, dict)
        metas = [value.get(name) for name in _META_NAMES] if is_json else [_part(value, "meta")]
        return next((d for m in metas if isinstance(m, dict) and (d := cls.from_json(m.get(IN_DOUBT_KEY)))), None)

    @classmethod
    def _in_exception(cls, error: BaseException) -> CallInDoubt | None:
        carried = [value for value in (_part(error, "result"), *error.args) if not _is_exception(value)]
        in_data = cls.from_json(_data_of(error).get(IN_DOUBT_KEY))
        return in_data or next((d for value in carried if (d := cls.find(value))), None)

    @classmethod
    def _in_words(cls, text: Any) -> CallInDoubt | None:
        if not isinstance(text, str):
            return None
        said = next(filter(None, (sentence.fullmatch(text) for sentence in _SPOKEN)), None)
        if said is None:
            return None
        is_call, name = said["kind"] == "tool call", said["name"][1:-1]
        method, tool = ("tools/call", name) if is_call else (name, None)
        found = cls(said["reason"], method, tool, said["call_key"], "-")
        return found if str(found) == text else None

    def __str__(self) -> str:
        sentence = _OF_HARMLESS if self.method in HARMLESS_METHODS else _SENTENCE
        return sentence.format(what=_what(self.method, self.tool), reason=self.reason, call_key=self.call_key)


@frozen
class CallNotExecuted:
    """What is known of a request that did not run. It is safe to send that one again, once the cause is mended.

    `CallNotExecuted.find` gives it back from the exception that the host got, of either SDK major. Look at
    `method`: hosts send requests of their own, as both SDKs list the tools after the first answer of one that they
    do not know, and raise what became of that in the place of the answer.
    """

    by: str
    """`wire`: nothing of it was written. `server`: that is the server's word."""
    reason: str
    http_status: int | None = None
    method: str = ""
    """Of the request: `tools/call`, `tools/list`, ..."""
    tool: str | None = None

    @classmethod
    def find(cls, error: Any) -> CallNotExecuted | None:
        """From an exception, a group of them, or a cause; None if it says nothing of the kind, or is none."""
        below = _below(error, contexts=False) if _is_exception(error) else ()
        return next((found for e in below if (found := cls._in_data(_data_of(e)))), None)

    @classmethod
    def _in_data(cls, data: JSON) -> CallNotExecuted | None:
        if data.get("outcome") != "not_executed":
            return None
        status, tool = data.get("http_status"), data.get("tool")
        return cls(
            text_of(data.get("by")),
            text_of(data.get("reason")),
            status if isinstance(status, int) else None,
            text_of(data.get("method")),
            tool if isinstance(tool, str) else None,
        )


def _below(error: BaseException, *, contexts: bool) -> Iterator[BaseException]:
    """It, its parts and its causes, each once: such chains may be circles.

    `contexts`: also what was being handled when it came. That may have been another call's, which is no reason to
    call this one safe; and an answer speaks for itself.
    """
    waiting, seen = deque([error]), set[int]()
    while waiting and len(seen) < _MOST_EXCEPTIONS:
        error = waiting.popleft()
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        parts = _part(error, "exceptions")
        if isinstance(parts, (tuple, list)):
            waiting.extend(filter(_is_exception, parts))
        if error.__cause__ is not None:
            waiting.append(error.__cause__)
        is_answer = _part(_part(error, "error"), "code") is not None
        if contexts and error.__context__ is not None and not (is_answer or error.__suppress_context__):
            waiting.append(error.__context__)


def _part(value: Any, name: str) -> Any:
    """Of an object of somebody else's, whose properties may raise."""
    with suppress(Exception):
        return getattr(value, name, None)
    return None


def _is_exception(value: Any) -> bool:
    return isinstance(value, BaseException)


def _data_of(error: BaseException) -> JSON:
    """Of a JSON-RPC error, which either SDK major raises as an exception."""
    data = _part(_part(error, "error"), "data")
    return data if isinstance(data, dict) else {}


def _text_of(block: Any) -> Any:
    return block.get("text") if isinstance(block, dict) else _part(block, "text")


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
    error, result = (said or {}).get("error"), (said or {}).get("result")
    if isinstance(error, dict):
        return [{"type": "text", "text": f"The server said: {error.get('message')}"}]
    content = result.get("content") if isinstance(result, dict) else None
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


def _what(method: str, tool: str | None) -> str:
    return f"tool call {tool!r}" if tool else f"request {method!r}"


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
    text = f"The {_what(method, tool)} was not executed: {reason}"
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
