"""A small server on the MCP SDK (1.x or 2.x) that keeps its events, so that a cut can be resumed.

Listens on a free port of 127.0.0.1 and prints it.
"""

from __future__ import annotations

import socket
from typing import Any

import anyio
import uvicorn
from mcp.server.streamable_http import EventMessage, EventStore

try:
    from mcp.server.mcpserver import Context, MCPServer  # SDK 2.x
except ImportError:
    MCPServer = None
    from mcp.server.fastmcp import Context, FastMCP

RETRY = 1000
"""Milliseconds until clients may come back: all is baked then. The SDKs lose what is sent while they replay."""


class Log(EventStore):
    """Every event in order. Enough for the one session of this example: a real one keeps sessions apart."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        stream_id = self.events[int(last_event_id) - 1][0]
        for event_id, (stream, message) in enumerate(self.events, start=1):
            if event_id > int(last_event_id) and stream == stream_id and message is not None:
                await send_callback(EventMessage(message, str(event_id)))
        return stream_id


async def bake(loaves: int, ctx: Context) -> str:
    """Bake bread, slowly."""
    for loaf in range(1, loaves + 1):
        await anyio.sleep(0.1)
        await ctx.report_progress(loaf, loaves)
    return f"{loaves} loaves"


def app() -> Any:
    if MCPServer is None:
        first = FastMCP("bakery", event_store=Log(), retry_interval=RETRY)
        first.add_tool(bake)
        return first.streamable_http_app()
    second = MCPServer("bakery")
    second.add_tool(bake)
    return second.streamable_http_app(event_store=Log(), retry_interval=RETRY)


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app(), log_level="critical")).run(sockets=[listening])
