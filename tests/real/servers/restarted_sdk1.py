"""A server of mcp 1.30 that is killed and started again: with an event log, by SSE without one, or by JSON."""

from __future__ import annotations

import os

import _restarted
import _sdk1_log
from mcp.server.fastmcp import FastMCP
from mcp.types import ToolAnnotations

KIND = os.environ["MCP_KIND"]

mcp = FastMCP("restarted", json_response=KIND == "json")


@mcp.tool(annotations=ToolAnnotations(**_restarted.READ_ONLY))
async def look(label: str, seconds: float) -> str:
    return await _restarted.run("look", label, seconds)


@mcp.tool(annotations=ToolAnnotations(**_restarted.IDEMPOTENT))
async def put(label: str, seconds: float) -> str:
    return await _restarted.run("put", label, seconds)


@mcp.tool(annotations=ToolAnnotations(**_restarted.UNSAFE))
async def charge(label: str, seconds: float) -> str:
    return await _restarted.run("charge", label, seconds)


_restarted.serve(_sdk1_log.app_with_log(mcp._mcp_server) if KIND == "log" else mcp.streamable_http_app())
