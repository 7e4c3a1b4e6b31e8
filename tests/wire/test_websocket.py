"""The session's move to a WebSocket and back: what must be proven, and what becomes of what is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mcp_client_guard import Disconnected, Discontinuity, Upgraded
from mcp_client_guard.testing import FakeServer, notification
from mcp_client_guard.testing.upgradable_mcp import UpgradableMcp

from .hosts import PlainHost, plainly

pytestmark = pytest.mark.anyio


def told(number: int) -> Any:
    return notification("notifications/message", level="info", data=number)


def heard(host: PlainHost) -> list[int]:
    """What reached the host of the standalone stream, in order."""
    return [m["params"]["data"] for m in host.messages if m.get("method") == "notifications/message"]


@asynccontextmanager
async def upgrading(mcp: UpgradableMcp, emitted: int = 2, **options: Any) -> AsyncIterator[tuple[FakeServer, Any]]:
    """A host whose event stream has carried this many messages."""
    async with plainly(mcp, websocket=True, **options) as (server, host):
        await server.wait_for(lambda r: r.method == "GET")
        for number in range(1, emitted + 1):
            mcp.emit(told(number))
        yield server, host


async def test_a_proven_socket_carries_on_where_the_event_stream_was() -> None:
    mcp = UpgradableMcp()
    async with upgrading(mcp, 3) as (server, host):
        await host.until(lambda: host.of(Upgraded))
        for number in (4, 5):
            mcp.emit(told(number))
        await host.until(lambda: len(heard(host)) == 5)
        assert heard(host) == [1, 2, 3, 4, 5]
        assert host.grades == ["proven"]
        assert not host.of(Discontinuity)
        assert not host.of(Disconnected)
        assert len(server.sent("DELETE")) == 0
        assert mcp.sockets == 1
    assert len(server.sent("DELETE")) == 1, "the session is ended as always"
