"""What 2026-07-28 asks of a request: no session, and headers that repeat its body (SPEC-FACTS §13)."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from .inputs import MessageSubmitted
from .messages import result_of
from .meta import meta_object
from .model import JSON

STATELESS_FROM = "2026-07-28"
_VERSION = "mcp-protocol-version"
_OF_SESSIONS = frozenset({"mcp-session-id", "last-event-id"})
_META = "io.modelcontextprotocol/"
_ENVELOPE = tuple(_META + name for name in ("protocolVersion", "clientInfo", "clientCapabilities"))
_SERVER_INFO = _META + "serverInfo"
_NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
_PLAIN = re.compile(r"[\x20-\x7e]*")
_SENTINEL = re.compile(r"=\?base64\?.*\?=")


def version_of(headers: Mapping[str, str]) -> str | None:
    """The revision that a host has stamped on its message, if that is one without sessions."""
    version = headers.get(_VERSION, "")
    return version if version >= STATELESS_FROM else None


def offers_itself(method: str, result: JSON) -> bool:
    """Whether this result says that the server speaks this revision: `server/discover` may name others only."""
    versions = result.get("supportedVersions")
    named = versions if isinstance(versions, list) else []
    spoken = any(isinstance(version, str) and version >= STATELESS_FROM for version in named)
    return spoken or method != "server/discover"


def without_session(headers: Mapping[str, str]) -> dict[str, str]:
    """The host's headers, exactly; but nothing of a session goes out in a generation that has none."""
    return {name: value for name, value in headers.items() if name not in _OF_SESSIONS}


def as_complete(answer: JSON) -> JSON:
    """An answer of the guard's own as the revision wants it: with a `resultType` (SDK 2.3 refuses one without)."""
    result = result_of(answer)
    if result is None or "resultType" in result:
        return answer
    return {**answer, "result": {**result, "resultType": "complete"}}


def server_info_of(result: JSON) -> JSON:
    """What the server says of itself in any result: unverified, for people."""
    meta = result.get("_meta")
    info = meta.get(_SERVER_INFO) if isinstance(meta, dict) else None
    return info if isinstance(info, dict) else {}


def dressed(method: str, params: JSON, like: MessageSubmitted, tool: JSON | None) -> MessageSubmitted:
    """A request of the guard's own, in the envelope of one of the host's, and under headers of its own."""
    theirs = meta_object(like.message)
    meta = {name: theirs[name] for name in _ENVELOPE if name in theirs}
    body = {**params, "_meta": {**meta, **meta_object({"params": params})}}
    headers = {_VERSION: like.headers[_VERSION], "mcp-method": method}
    name = params.get(_NAMED_BY.get(method, ""))
    if isinstance(name, str):
        headers["mcp-name"] = encoded(name)
    headers.update(param_headers(tool, params.get("arguments")))
    return MessageSubmitted({"jsonrpc": "2.0", "method": method, "params": body}, headers)


def with_argument(headers: Mapping[str, str], tool: JSON | None, argument: str, value: str) -> dict[str, str]:
    """The host's headers, if one argument of its call was replaced by the guard."""
    return {**headers, **param_headers(tool, {argument: value})}


def param_headers(tool: JSON | None, arguments: Any) -> dict[str, str]:
    """`Mcp-Param-*`: the arguments that the tool's schema marks with `x-mcp-header`."""
    headers = {}
    for path, header in _marked((tool or {}).get("inputSchema")):
        text = _shown(_at(arguments, path))
        if text is not None:
            headers[f"mcp-param-{header.lower()}"] = encoded(text)
    return headers


def encoded(value: str) -> str:
    """As the value of a header: in base64 where it would not survive as it is."""
    if _PLAIN.fullmatch(value) and value == value.strip() and not _SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{b64encode(value.encode('utf-8', 'surrogatepass')).decode('ascii')}?="


def _marked(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Properties that are repeated in a header: where they stand in the arguments, and the header's name."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        header = inner.get("x-mcp-header") if isinstance(inner, dict) else None
        if isinstance(header, str):
            yield (*path, name), header
        yield from _marked(inner, (*path, name))


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _shown(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int, float)) else None
