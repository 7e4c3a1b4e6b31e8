"""OpenAI Agents with `max_retry_attempts`: it calls again after any exception, its own timeout's among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents.mcp import MCPServerStreamableHttp

from mcp_client_guard import Guard

from .program import ARGUMENTS, TOOL, Call, Order, main


class GuardedServer(MCPServerStreamableHttp):  # type: ignore[misc]
    """As docs/frameworks.md has it."""

    def __init__(self, guard: Guard, **options: Any) -> None:
        super().__init__(**options)
        self.guard = guard

    def create_streams(self) -> Any:
        return self.guard.connect()


@asynccontextmanager
async def connect(order: Order, guard: Guard | None) -> AsyncIterator[Call]:
    options: dict[str, Any] = {
        "params": {"url": order.url},
        "client_session_timeout_seconds": order.timeout,
        "max_retry_attempts": 2,
        "retry_backoff_seconds_base": 0.1,
    }
    async with GuardedServer(guard, **options) if guard else MCPServerStreamableHttp(**options) as server:
        yield lambda: server.call_tool(TOOL, ARGUMENTS)


if __name__ == "__main__":
    main(connect)
