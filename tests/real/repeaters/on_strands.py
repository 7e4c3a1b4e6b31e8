"""Strands' MCP client. It does not call again by itself: the model does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
from mcp.client.streamable_http import streamable_http_client
from strands.tools.mcp import MCPClient

from mcp_client_guard import Guard

from .program import ARGUMENTS, TOOL, Call, Order, main


@asynccontextmanager
async def connect(order: Order, guard: Guard | None) -> AsyncIterator[Call]:
    client: Any = MCPClient(lambda: guard.connect() if guard else streamable_http_client(order.url))
    timeout = timedelta(seconds=order.timeout)
    await anyio.to_thread.run_sync(client.start)
    try:
        yield lambda: client.call_tool_async("tool-use", TOOL, ARGUMENTS, timeout)
    finally:
        await anyio.to_thread.run_sync(client.stop, None, None, None)


if __name__ == "__main__":
    main(connect)
