"""Peer (b): the server of mcp 1.30, with an event store of our own."""

from __future__ import annotations

import _sdk1_log
import _tools
from mcp.server.fastmcp import Context, FastMCP

mcp = FastMCP("sdk1-peer")


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


_tools.serve(_sdk1_log.app_with_log(mcp._mcp_server))
