"""Legacy HTTP+SSE on the wire (2024-11-05): found or chosen, cut anywhere, moved."""

from __future__ import annotations

import pytest

from mcp_client_guard import Connected, SessionLost
from mcp_client_guard.core.model import Generation
from mcp_client_guard.testing import How, Request

from .hosts import Answer, Playing
from .legacy import Carrier, LegacyMcp

pytestmark = pytest.mark.anyio


async def test_it_is_found_by_the_first_initialize(playing: Playing) -> None:
    async with playing(LegacyMcp()) as (server, host):
        assert await host.call() == Answer("done")
        await host.saw(1)
        assert [e.generation for e in host.of(Connected)] == [Generation.LEGACY_SSE]
        assert [r.target for r in server.sent("POST", "initialize")] == ["/mcp", "/messages?session=s1"]
        assert len(server.sent("GET")) == 1


async def test_it_may_be_chosen(playing: Playing) -> None:
    async with playing(LegacyMcp(), generation="legacy-sse") as (server, host):
        assert await host.call() == Answer("done")
        assert [r.target for r in server.sent("POST", "initialize")] == ["/messages?session=s1"]
        assert server.requests[0].method == "GET"


@pytest.mark.parametrize("how", [How.FIN, How.RST])
async def test_a_cut_of_the_stream_is_the_end_of_the_session(playing: Playing, how: How) -> None:
    async def call(request: Request, carrier: Carrier) -> None:
        if len(mcp.executed) == 1:
            await carrier.end(how)
        else:
            await LegacyMcp.call(mcp, request, carrier)

    mcp = LegacyMcp(call=call)
    async with playing(mcp) as (server, host):
        got = await host.call()
        assert got.doubt is not None
        assert await host.call(n=2) == Answer("done")
        assert mcp.executed == ["charge", "charge"]
        assert len(mcp.carriers) == 2
        assert len(host.of(SessionLost)) == 1
        assert [r.last_event_id for r in server.sent("GET")] == [None, None]
