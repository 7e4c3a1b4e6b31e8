"""These tools, on a server of the MCP SDK, 1.x or 2.x."""

from __future__ import annotations

from typing import Any

import _tools

try:
    from mcp.server.mcpserver import Context  # SDK 2.x
except ImportError:
    from mcp.server.fastmcp import Context


async def count(n: int, delay: float, ctx: Context, label: str = "") -> int:
    return await _tools.count(n, delay, label, ctx.report_progress)


async def slow(seconds: float, heartbeat: float, ctx: Context, label: str = "") -> str:
    return await _tools.slow(seconds, heartbeat, label, ctx.report_progress)


def register(server: Any) -> None:
    for tool in (_tools.add, count, slow, _tools.charge):
        server.add_tool(tool)
