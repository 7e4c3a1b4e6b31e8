"""A server of FastMCP 4 that is killed and started again, with its own event store."""

from __future__ import annotations

import _restarted
import _tools
from fastmcp import FastMCP
from fastmcp.server.event_store import EventStore

mcp = FastMCP("restarted")


@mcp.tool(annotations=_restarted.READ_ONLY)
async def look(label: str, seconds: float) -> str:
    return await _restarted.run("look", label, seconds)


@mcp.tool(annotations=_restarted.IDEMPOTENT)
async def put(label: str, seconds: float) -> str:
    return await _restarted.run("put", label, seconds)


@mcp.tool(annotations=_restarted.UNSAFE)
async def charge(label: str, seconds: float) -> str:
    return await _restarted.run("charge", label, seconds)


_restarted.serve(mcp.http_app(event_store=EventStore(), retry_interval=_tools.RETRY_MS))
