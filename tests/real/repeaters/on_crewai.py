"""CrewAI's MCP client: three attempts after any error, its own timeout's among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from crewai.mcp.client import MCPClient
from crewai.mcp.transports.base import BaseTransport, TransportType
from crewai.mcp.transports.http import HTTPTransport

from mcp_client_guard import Guard

from .program import ARGUMENTS, TOOL, Call, Order, main


class GuardTransport(BaseTransport):  # type: ignore[misc]
    """As docs/frameworks.md has it."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.guard = guard

    @property
    def transport_type(self) -> TransportType:
        return TransportType.STREAMABLE_HTTP

    async def connect(self) -> GuardTransport:
        self.connection = self.guard.connect()
        self._set_streams(*await self.connection.__aenter__())
        return self

    async def disconnect(self) -> None:
        self._clear_streams()
        await self.connection.__aexit__(None, None, None)

    async def __aenter__(self) -> GuardTransport:
        return await self.connect()

    async def __aexit__(self, *exception: object) -> None:
        await self.disconnect()


@asynccontextmanager
async def connect(order: Order, guard: Guard | None) -> AsyncIterator[Call]:
    transport: Any = GuardTransport(guard) if guard else HTTPTransport(order.url)
    async with MCPClient(transport, execution_timeout=int(order.timeout)) as client:
        yield lambda: client.call_tool(TOOL, ARGUMENTS)


if __name__ == "__main__":
    main(connect)
