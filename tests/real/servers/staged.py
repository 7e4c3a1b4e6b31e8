"""A server of the staged migration, of mcp 1.30 or 2.3, with an event log: killed and started again.

That of 2.3 serves both eras: sessions, and 2026-07-28 without them.
"""

from __future__ import annotations

import asyncio

import _restarted
import _sdk1_log
import _tools
from mcp.types import ToolAnnotations

try:
    from mcp.server.mcpserver import Context, MCPServer
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer  # type: ignore[assignment]

mcp = MCPServer("staged")


async def run(tool: str, label: str, seconds: float, steps: int, ctx: Context) -> str:
    """Happened once the line is in the ledger; takes `seconds`, in so many steps."""
    _tools.ledger(tool, label)
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        await ctx.report_progress(step, steps)
    if not steps:
        await asyncio.sleep(seconds)
    return f"{tool} of {label}"


@mcp.tool(annotations=ToolAnnotations(**_restarted.READ_ONLY))
async def look(label: str, seconds: float, ctx: Context, steps: int = 0) -> str:
    return await run("look", label, seconds, steps, ctx)


@mcp.tool(annotations=ToolAnnotations(**_restarted.IDEMPOTENT))
async def put(label: str, seconds: float, ctx: Context, steps: int = 0) -> str:
    return await run("put", label, seconds, steps, ctx)


@mcp.tool(annotations=ToolAnnotations(**_restarted.UNSAFE))
async def charge(label: str, seconds: float, ctx: Context, steps: int = 0) -> str:
    return await run("charge", label, seconds, steps, ctx)


server = getattr(mcp, "_lowlevel_server", None) or mcp._mcp_server
_restarted.serve(_sdk1_log.app_with_log(server))
