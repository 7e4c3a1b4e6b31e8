"""The legacy server of mcp 1.30: `SseServerTransport`."""

from __future__ import annotations

import _tools
from mcp.server.fastmcp import Context, FastMCP

mcp = FastMCP("sdk1-sse-peer", sse_path="/mcp")


@mcp.tool()
def add(a: int, b: int, label: str = "") -> int:
    return _tools.add(a, b, label)


@mcp.tool()
async def count(n: int, delay: float, ctx: Context, label: str = "") -> int:
    return await _tools.count(n, delay, label, ctx.report_progress)


@mcp.tool()
async def slow(seconds: float, heartbeat: float, ctx: Context, label: str = "") -> str:
    return await _tools.slow(seconds, heartbeat, label, ctx.report_progress)


@mcp.tool()
async def charge(cents: int, label: str) -> str:
    return await _tools.charge(cents, label)


_tools.serve(mcp.sse_app())
