"""What a host is told of a request without an answer; how that is found in what frameworks make of it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from attrs import frozen

from .messages import text_of
from .model import JSON
from .policy import HARMLESS_METHODS

IN_DOUBT_KEY = "io.github.mcp-client-guard/in-doubt"

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
_DEEPEST = 3
_PART_NAMES = ("content", "output")
"""Where frameworks have the result of a tool in what they keep of a run: LangChain, Pydantic AI and the OpenAI
Agents SDK."""
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
        for `_meta`); from what a framework keeps of a run, where that has it as `content` or `output`; from an
        exception, those below it, and a result that one of them carries. Frameworks that
        keep the words alone (a text, a list of content blocks, an exception's text) are believed where these are
        exactly ours: `session` is then `-` and `cancel_signalled` False, for the words do not say.
        """
        if isinstance(value, BaseException):
            return next((d for error in _below(value, contexts=True) if (d := cls._in_exception(error))), None)
        return cls._in_result(value, _DEEPEST)

    @classmethod
    def _in_result(cls, value: Any, depth: int) -> CallInDoubt | None:
        if isinstance(value, str):
            return cls._in_words(value)
        if isinstance(value, list):
            return next((d for block in value if (d := cls._in_words(_text_of(block)))), None)
        is_json = isinstance(value, dict)
        metas = [value.get(name) for name in _META_NAMES] if is_json else [_part(value, "meta")]
        in_meta = (cls.from_json(meta.get(IN_DOUBT_KEY)) for meta in metas if isinstance(meta, dict))
        found = next(filter(None, in_meta), None) or cls._in_words(_text_of(value))
        if found is not None or not depth:
            return found
        within = (cls._in_result(part, depth - 1) for part in _kept_in(value) if part is not None)
        return next(filter(None, within), None)

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
        what = _subject_of(self.method, self.tool)
        return sentence.format(what=what, reason=self.reason, call_key=self.call_key)


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

    def __str__(self) -> str:
        return f"The {_subject_of(self.method, self.tool)} was not executed: {self.reason}"


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


def _kept_in(value: Any) -> list[Any]:
    """The parts of what a framework keeps. A result says by its `_meta` alone that it is a doubt: its words may be
    a tool's."""
    if isinstance(value, dict):
        return [value.get("output")]
    is_result = any(_part(value, name) is not None for name in ("isError", "is_error"))
    return [] if is_result else [_part(value, name) for name in _PART_NAMES]


def _is_exception(value: Any) -> bool:
    return isinstance(value, BaseException)


def _data_of(error: BaseException) -> JSON:
    """Of a JSON-RPC error, which either SDK major raises as an exception."""
    data = _part(_part(error, "error"), "data")
    return data if isinstance(data, dict) else {}


def _text_of(block: Any) -> Any:
    return block.get("text") if isinstance(block, dict) else _part(block, "text")


def _subject_of(method: str, tool: str | None) -> str:
    """What a sentence calls this request."""
    return f"tool call {tool!r}" if tool else f"request {method!r}"
