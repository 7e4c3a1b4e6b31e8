"""The least an MCP host can be, on plain JSON: it opens a session (or needs none) and calls a tool."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field

from mcp_client_guard._messages import Codec
from mcp_client_guard.core.model import JSON

_SESSIONS = "2025-11-25"
_STATELESS = "2026-07-28"
_NAME = {"name": "mcp-guard", "version": "0"}
_METHOD_NOT_FOUND = -32601


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
        return await self._request("tools/call", params)

    async def _request(self, method: str, params: JSON) -> JSON:
        self._last_id += 1
        headers: Mapping[str, str] = {}
        if self.stateless:
            params = {**params, "_meta": {**params.get("_meta", {}), **_STATELESS_META}}
            headers = _stateless_headers(method, params)
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
        headers["mcp-name"] = _header_value(params["name"])
    return headers


def _header_value(text: str) -> str:
    if text and all("!" <= c <= "~" for c in text) and not text.startswith("=?"):
        return text
    return f"=?base64?{b64encode(text.encode()).decode()}?="
