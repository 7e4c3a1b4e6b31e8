"""The least an MCP host can be, on plain JSON: it opens a session (or needs none) and calls a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field

from mcp_client_guard._messages import Codec
from mcp_client_guard.core.classify import HEADER_MISMATCH, code_of
from mcp_client_guard.core.model import JSON
from mcp_client_guard.core.modern import encoded, param_headers
from mcp_client_guard.core.restoring import tools_of

_SESSIONS = "2025-11-25"
_STATELESS = "2026-07-28"
_NAME = {"name": "mcp-guard", "version": "0"}
_METHOD_NOT_FOUND = -32601
_MOST_PAGES = 100
"""Of a list: there are servers whose last page names the first."""


class Refused(Exception):
    """The server refused to open a session; the text is its own."""


def host_codec() -> Codec:
    """The host writes (message, headers) and reads plain messages."""
    return Codec(encode=lambda message: message, decode=lambda sent: sent)


@define(eq=False)
class PlainHost:
    """One request at a time. `on_notification` gets what belongs to no request."""

    read: Any
    write: Any
    on_notification: Callable[[JSON], None]
    stateless: bool = field(default=False, init=False)
    """The server was found to speak 2026-07-28."""
    _last_id: int = field(default=0, init=False)

    async def open(self, *, probe: bool) -> None:
        """Open a session; with `probe`, look for 2026-07-28 first, as a host on SDK 2.x does.

        Raises:
            Refused: no session, and no 2026-07-28 either.
        """
        if probe:
            self.stateless = True
            if "result" in await self._request("server/discover", {}):
                return
            self.stateless = False
        params = {"protocolVersion": _SESSIONS, "capabilities": {}, "clientInfo": _NAME}
        answer = await self._request("initialize", params)
        if "result" not in answer:
            raise Refused(answer["error"].get("message") or "the server refused to initialize")
        await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})

    async def call(self, tool: str, arguments: JSON) -> JSON:
        """The JSON-RPC answer to one `tools/call`."""
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}}
        answer = await self._request("tools/call", params)
        if not self.stateless or code_of(answer) != HEADER_MISMATCH:
            return answer
        # It has not run; and which arguments are to be repeated in headers, the tool itself says.
        wanted = param_headers(await self._listed(tool), arguments)
        return await self._request("tools/call", params, wanted) if wanted else answer

    async def _listed(self, tool: str) -> JSON | None:
        """What the server says of this tool; None where it says nothing."""
        page: JSON = {}
        for _ in range(_MOST_PAGES):
            result = (await self._request("tools/list", page)).get("result")
            if not isinstance(result, dict):
                break
            if (found := tools_of(result).get(tool)) is not None:
                return found
            if not result.get("nextCursor"):
                break
            page = {"cursor": result["nextCursor"]}
        return None

    async def _request(self, method: str, params: JSON, more: Mapping[str, str] | None = None) -> JSON:
        """`more`: headers, beside those that every request has."""
        self._last_id += 1
        headers: Mapping[str, str] = {}
        if self.stateless:
            params = {**params, "_meta": {**params.get("_meta", {}), **_STATELESS_META}}
            headers = {**_stateless_headers(method, params), **(more or {})}
        await self._send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}, headers)
        return await self._answer()

    async def _answer(self) -> JSON:
        while True:
            message: JSON = await self.read.receive()
            if "method" not in message:
                if message.get("id") == self._last_id:
                    return message
            elif "id" in message:
                await self._send(_answer_to(message), {})
            else:
                self.on_notification(message)

    async def _send(self, message: JSON, headers: Mapping[str, str]) -> None:
        await self.write.send((message, headers))


def _answer_to(request: JSON) -> JSON:
    """To a request of the server's: this host has no user to ask."""
    if request["method"] == "ping":
        return {"jsonrpc": "2.0", "id": request["id"], "result": {}}
    error = {"code": _METHOD_NOT_FOUND, "message": "mcp-guard call answers no requests of a server"}
    return {"jsonrpc": "2.0", "id": request["id"], "error": error}


_STATELESS_META = {
    "io.modelcontextprotocol/protocolVersion": _STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": _NAME,
}


def _stateless_headers(method: str, params: JSON) -> dict[str, str]:
    """What 2026-07-28 wants on every request (streamable HTTP, Standard Headers)."""
    headers = {"mcp-protocol-version": _STATELESS, "mcp-method": method}
    if method == "tools/call":
        headers["mcp-name"] = encoded(params["name"])
    return headers
