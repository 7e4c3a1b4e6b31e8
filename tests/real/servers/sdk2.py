"""Peer: the server of mcp 2.3, which speaks 2026-07-28 to those who ask for it; with rounds and subscriptions."""

from __future__ import annotations

import _sdk_tools
import _tools
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

mcp = MCPServer("sdk2-peer")
_sdk_tools.register(mcp)


@mcp.tool()
async def charge_if_allowed(cents: int, label: str, ctx: Context) -> str | InputRequiredResult:
    """Asks the user first: a call of two requests."""
    if ctx.input_responses is None:
        wanted = ElicitRequestFormParams(message="Sure?", requested_schema={"type": "object", "properties": {}})
        return InputRequiredResult(
            input_requests={"sure": ElicitRequest(params=wanted)}, request_state=f"state of {label}"
        )
    assert ctx.request_state == f"state of {label}"
    return await _tools.charge(cents, label)


@mcp.tool()
async def change(ctx: Context) -> str:
    """Tells those who have subscribed to the tools."""
    await ctx.notify_tools_changed()
    return "changed"


_tools.serve(mcp.streamable_http_app())
