"""What the third seed costs a client without a proof: SDK 1.x's own WebSocket transport, on the seed's server.

Collected where that transport exists (SDK 2.x has none). It runs on asyncio alone.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from mcp.client.websocket import websocket_client

from mcp_client_guard.testing import FakeServer, Reply, Request, notification
from mcp_client_guard.testing.served_socket import ServedSocket

from .hosts import LIMIT

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


async def test_seed_003_through_the_sdk_s_transport_the_gap_is_unsaid() -> None:
    """Events 1 to 10 were taken by SSE, 11 to 13 emitted since; the socket forwards 14, and nobody is told."""
    log = [notification("notifications/message", level="info", data=number) for number in range(1, 15)]

    async def only_new(request: Request, reply: Reply) -> None:
        socket = await ServedSocket.accept(request, reply, subprotocol="mcp")
        await socket.text(json.dumps(log[13]).encode())
        await socket.closed_with()

    with anyio.fail_after(LIMIT):
        async with FakeServer(only_new) as server:
            url = server.url.replace("http://", "ws://")
            with pytest.warns(DeprecationWarning, match="WebSocket"):
                connecting = websocket_client(url)
            async with connecting as (read, write), read, write:
                message: Any = await read.receive()
    (handshake,) = server.requests
    sent = {name for name, _ in handshake.headers.fields}
    assert not sent & {"last-event-id", "mcp-session-id", "mcp-upgrade-ticket"}, "it says not where it stands"
    assert not handshake.body
    got = message.message
    assert getattr(got, "root", got).params["data"] == 14, "11 to 13 are lost, and no error says so"
