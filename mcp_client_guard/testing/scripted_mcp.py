"""An MCP session played by a `FakeServer`: every part can be replaced by a handler of the test's own.

mcp = ScriptedMcp(call=script(sse_head(), How.RST), resume=answer_late)
async with FakeServer(mcp) as server: ...
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._http1 import Request
from .fake_server import Handler, Reply
from .written import error, result, tool_result


class ScriptedMcp:
    """A session-keeping server of the 2025 revisions. Replace parts by keyword, or override methods.

    `initialize` is answered by JSON with `Mcp-Session-Id`, notifications and answers by 202, `ping` and lists
    by JSON, `tools/call` by JSON with the name of the tool, a resume by 404, the standalone GET by 405,
    DELETE by 200. `server/discover` (2026-07-28) is an unknown method: hosts fall back to `initialize`.
    """

    def __init__(
        self,
        *,
        session: str | None = "session-A",
        protocol: str | None = None,
        capabilities: dict[str, Any] | None = None,
        tools: Iterable[str | dict[str, Any]] = ("add", "charge"),
        initialize: Handler | None = None,
        call: Handler | None = None,
        notify: Handler | None = None,
        resume: Handler | None = None,
        standalone: Handler | None = None,
        delete: Handler | None = None,
        other: Handler | None = None,
    ) -> None:
        self.session = session
        """The ID that `initialize` gives from now on: change it, and the next session is another."""
        self.protocol = protocol
        """The revision to agree on; None: the one asked for."""
        self.capabilities = {"tools": {"listChanged": True}} if capabilities is None else capabilities
        self.tools = [_tool(tool) for tool in tools]
        self.on_initialize = initialize or self.initialize
        self.on_call = call or self.call
        self.on_notify = notify or self.notify
        self.on_resume = resume or self.resume
        self.on_standalone = standalone or self.standalone
        self.on_delete = delete or self.delete
        self.on_other = other or self.other

    async def __call__(self, request: Request, reply: Reply) -> None:
        """Hand the request to its part."""
        await self._part(request)(request, reply)

    def _part(self, request: Request) -> Handler:
        if request.method == "GET":
            return self.on_standalone if request.last_event_id is None else self.on_resume
        if request.method == "DELETE":
            return self.on_delete
        if request.rpc_method is None or request.rpc_id is None:
            return self.on_notify
        return {"initialize": self.on_initialize, "tools/call": self.on_call}.get(
            request.rpc_method, self.on_other
        )

    async def initialize(self, request: Request, reply: Reply) -> None:
        """JSON, with the session ID in the header."""
        await reply.json(self.initialized(request), session=self.session)

    def initialized(self, request: Request) -> dict[str, Any]:
        """The response to `initialize`, for handlers that send it in their own way."""
        answer = {
            "protocolVersion": self.protocol or request.json["params"]["protocolVersion"],
            "capabilities": self.capabilities,
            "serverInfo": {"name": "scripted", "version": "1"},
        }
        return result(request.rpc_id, answer)

    async def notify(self, request: Request, reply: Reply) -> None:
        """202, for notifications and for answers to the server's own requests."""
        await reply.status(202)

    async def call(self, request: Request, reply: Reply) -> None:
        """JSON, the tool's name as text."""
        await reply.json(tool_result(request.rpc_id, request.json["params"]["name"]))

    async def resume(self, request: Request, reply: Reply) -> None:
        """404: this server keeps no events."""
        await reply.status(404)

    async def standalone(self, request: Request, reply: Reply) -> None:
        """405: no standalone stream."""
        await reply.status(405)

    async def delete(self, request: Request, reply: Reply) -> None:
        """200: the session is over."""
        await reply.status(200)

    async def other(self, request: Request, reply: Reply) -> None:
        """`ping` and the lists; anything else is an unknown method."""
        answers: dict[str, dict[str, Any]] = {
            "ping": {},
            "tools/list": {"tools": self.tools},
            "resources/list": {"resources": []},
            "resources/templates/list": {"resourceTemplates": []},
            "prompts/list": {"prompts": []},
        }
        method = str(request.rpc_method)
        if method in answers:
            await reply.json(result(request.rpc_id, answers[method]))
        else:
            await reply.json(error(request.rpc_id, -32601, f"Method not found: {method}"))


def _tool(tool: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(tool, dict):
        return tool
    return {"name": tool, "description": tool, "inputSchema": {"type": "object"}}
