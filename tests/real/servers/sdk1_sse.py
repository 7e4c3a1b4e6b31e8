"""The legacy server of mcp 1.30: `SseServerTransport`."""

from __future__ import annotations

import _sdk_tools
import _tools
from mcp.server.fastmcp import FastMCP

mcp = FastMCP("sdk1-sse-peer", sse_path="/mcp")
_sdk_tools.register(mcp)

_tools.serve(mcp.sse_app())
