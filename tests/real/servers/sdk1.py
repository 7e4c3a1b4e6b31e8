"""Peer (b): the server of mcp 1.30, with an event store of our own."""

from __future__ import annotations

import _sdk1_log
import _sdk_tools
import _tools
from mcp.server.fastmcp import FastMCP

mcp = FastMCP("sdk1-peer")
_sdk_tools.register(mcp)

_tools.serve(_sdk1_log.app_with_log(mcp._mcp_server))
