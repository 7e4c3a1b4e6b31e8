"""FastMCP's client. It does not call again by itself: the model does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp_client_guard import Guard

from .fastmcp_transport import client_of
from .program import ARGUMENTS, TOOL, Call, Order, main


@asynccontextmanager
async def connect(order: Order, guard: Guard | None) -> AsyncIterator[Call]:
    async with client_of(order, guard) as client:
        yield lambda: client.call_tool(TOOL, ARGUMENTS)


if __name__ == "__main__":
    main(connect)
