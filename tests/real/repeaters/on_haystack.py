"""Haystack's MCP tool: after a closed connection it connects anew and calls again, up to three times."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
from haystack_integrations.tools.mcp import MCPTool, StreamableHttpServerInfo
from haystack_integrations.tools.mcp.mcp_tool import StreamableHttpClient

from mcp_client_guard import Guard

from .program import ARGUMENTS, TOOL, Call, Order, main


class GuardedClient(StreamableHttpClient):  # type: ignore[misc]
    """As docs/frameworks.md has it."""

    guard: Guard

    async def connect(self) -> Any:
        streams = await self.exit_stack.enter_async_context(self.guard.connect())
        return await self._initialize_session_with_transport(streams, "guard")


@dataclass
class GuardedServerInfo(StreamableHttpServerInfo):  # type: ignore[misc]
    """The same."""

    guard: Guard | None = None

    def create_client(self) -> GuardedClient:
        client = GuardedClient(self)
        assert self.guard is not None
        client.guard = self.guard
        return client


@asynccontextmanager
async def connect(order: Order, guard: Guard | None) -> AsyncIterator[Call]:
    server = GuardedServerInfo(order.url, guard=guard) if guard else StreamableHttpServerInfo(order.url)
    tool: Any = MCPTool(TOOL, server, invocation_timeout=order.timeout)
    try:
        yield partial(anyio.to_thread.run_sync, partial(tool.invoke, **ARGUMENTS))
    finally:
        await anyio.to_thread.run_sync(tool.close)


if __name__ == "__main__":
    main(connect)
