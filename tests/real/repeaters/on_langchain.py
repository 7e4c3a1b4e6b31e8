"""LangChain's MCP adapters. They do not call again by themselves: the model does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from langchain_mcp_adapters.tools import load_mcp_tools
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from mcp_client_guard import Guard

from .program import ARGUMENTS, Call, Order, main


@asynccontextmanager
async def connect(order: Order, guard: Guard | None) -> AsyncIterator[Call]:
    connection: Any = guard.connect() if guard else streamable_http_client(order.url)
    timeout = timedelta(seconds=order.timeout)
    async with connection as streams, ClientSession(*streams[:2], read_timeout_seconds=timeout) as session:
        await session.initialize()
        (charge,) = await load_mcp_tools(session)
        yield lambda: charge.ainvoke(ARGUMENTS)


if __name__ == "__main__":
    main(connect)
