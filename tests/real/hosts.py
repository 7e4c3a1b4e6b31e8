"""The hosts that call: `ClientSession` of the installed SDK, and the `Client` of SDK 2.x, on either transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import mcp
from attrs import evolve
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from mcp_client_guard import Event, Guard, GuardPolicy

HOSTS = ("session", "client") if hasattr(mcp, "Client") else ("session",)
SDK = "sdk2" if hasattr(mcp, "Client") else "sdk1"

POLICY = GuardPolicy(recheck=0.25, resend={"*": "never"})
"""A wait short enough for thousands of cases, and nothing sent twice by consent: each execution counts, also of a
tool that is read-only. Everything else as users get it."""
STALL_POLICY = evolve(POLICY, max_idle=1.0, call_deadline=40.0)
"""Where the wire stalls: `max_idle` finds it if the stream holds a cursor, else the deadline does. A stall under
the guard's own `initialize` is found after 30 s, for which the request that waits for it has time left."""

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
CallTool = Callable[[str, dict[str, Any], Progress], Awaitable[Any]]


@asynccontextmanager
async def calling(
    url: str,
    *,
    host: str,
    transport: str,
    policy: GuardPolicy,
    on_event: Callable[[Event], None],
    is_legacy: bool = False,
) -> AsyncIterator[CallTool]:
    """Open a session; what is yielded calls a tool."""
    if transport == "guard":
        connection: Any = Guard(url, policy=policy, on_event=on_event).connect()
    else:
        connection = sse_client(url) if is_legacy else streamable_http_client(url)
    if host == "client":
        async with mcp.Client(connection, mode="auto" if transport == "guard" else "legacy") as client:
            yield lambda tool, arguments, progress: client.call_tool(tool, arguments, progress_callback=progress)
    else:
        async with connection as streams, ClientSession(*streams[:2]) as session:
            await session.initialize()
            yield lambda tool, arguments, progress: session.call_tool(tool, arguments, progress_callback=progress)
