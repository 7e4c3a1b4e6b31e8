"""The guard as a transport of FastMCP, which pydantic-ai stands on, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastmcp.client import Client
from fastmcp.client.transports import ClientTransport
from fastmcp.client.transports.base import TransportOptions

from mcp_client_guard import Guard

from .program import Order


class GuardTransport(ClientTransport):  # type: ignore[misc]
    """As docs/frameworks.md has it."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    @asynccontextmanager
    async def connect_session(self, *, transport_options: Any = None, **options: Any) -> AsyncIterator[Any]:
        made = (transport_options or TransportOptions()).session_class
        async with self.guard.connect() as (read, write), made(read, write, **options) as session:
            yield session


def client_of(order: Order, guard: Guard | None) -> Any:
    """Not yet connected."""
    return Client(GuardTransport(guard) if guard else order.url, timeout=order.timeout)
