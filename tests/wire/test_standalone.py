"""The standalone GET stream: what it may do, that it never touches a request, and how often it is opened."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcp_client_guard import Disconnected, Discontinuity
from mcp_client_guard.core.report import OrphanDropped, RefreshSuggested, StandaloneUnavailable
from mcp_client_guard.testing import (
    FakeServer,
    Handler,
    How,
    Reply,
    Request,
    ScriptedMcp,
    in_turn,
    sse_event,
    tool_result,
)

from .hosts import (
    Answer,
    Playing,
    Streams,
    answer,
    events,
    note,
    plainly,
    prime,
    raw,
    refuse,
    resumed_after,
    steps,
)

pytestmark = pytest.mark.anyio

STAYS = events(end=How.STALL)


def opened(server: FakeServer) -> int:
    return len([r for r in server.sent("GET") if r.last_event_id is None])


@pytest.mark.parametrize("status", [400, 404, 405, 406, 501])
async def test_a_server_without_one_is_asked_once_and_posts_go_on(playing: Playing, status: int) -> None:
    async with playing(Streams(events(answer()), standalone=refuse(status))) as (server, host):
        await host.until(lambda: host.of(StandaloneUnavailable))
        assert await host.call() == Answer("done")
        assert opened(server) == 1


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_a_refusal_that_may_pass_is_waited_out_and_posts_go_on(playing: Playing, status: int) -> None:
    standalone = in_turn(*[refuse(status)] * 3, events(note("at last"), end=How.STALL))
    async with playing(Streams(events(answer()), standalone=standalone)) as (server, host):
        assert await host.call() == Answer("done")
        await host.until(lambda: host.heard)
        assert opened(server) == 4


async def test_405_only_later_ends_that_stream_alone(playing: Playing) -> None:
    standalone = in_turn(events(note("a"), end=How.FIN), refuse(405))
    async with playing(Streams(events(answer()), standalone=standalone)) as (server, host):
        await host.until(lambda: host.of(StandaloneUnavailable))
        assert await host.call() == Answer("done")
        assert opened(server) == 2


@pytest.mark.parametrize("end", ["in good order", "FIN", "RST", "no head"])
async def test_one_that_ends_for_ever_is_opened_ever_more_slowly(end: str, waits: list[float]) -> None:
    """With `retry: 0`, whose floor is nothing."""
    now = raw(b"retry: 0\n\n")
    handler = {
        "in good order": events(now),
        "FIN": events(now, end=How.FIN),
        "RST": events(now, end=How.RST),
        "no head": steps(How.RST),
    }[end]
    enough = anyio.Event()

    async def standalone(request: Request, reply: Reply) -> None:
        if opened(server) > 14:
            enough.set()
            await STAYS(request, reply)
        await handler(request, reply)

    async with plainly(Streams(events(answer()), standalone=standalone)) as (server, host):
        await enough.wait()
        assert await host.call() == Answer("done")
        assert opened(server) == 15
        delays = [wait for wait in waits if wait > 0]
        assert sorted(delays[:9]) == delays[:9], delays
        assert 55 < max(delays) <= 60


async def test_retry_is_kept_to_between_standalone_connections(waits: list[float]) -> None:
    standalone = in_turn(events(raw(b"retry: 3000\n\n"), end=How.FIN), STAYS)
    async with plainly(ScriptedMcp(standalone=standalone)) as (server, _):
        await server.wait_for(lambda r: r.method == "GET", 2)
        assert 3 <= waits[-1] <= 6


async def test_one_with_ids_is_resumed_from_its_overlap_and_proven(playing: Playing) -> None:
    mcp = ScriptedMcp(
        standalone=events(note("a", "1"), note("b", "2"), end=How.RST),
        resume=events(note("b", "2"), note("c", "3"), end=How.STALL),
    )
    async with playing(mcp) as (server, host):
        await host.until(lambda: len(host.heard) == 3)
        assert resumed_after(server) == ["1"]
        assert host.grades == ["proven"]
        assert not host.of(RefreshSuggested)


async def test_one_without_ids_is_opened_afresh_and_the_host_told_to_refresh_once(playing: Playing) -> None:
    standalone = in_turn(events(note("a"), end=How.FIN), events(note("b"), end=How.FIN), STAYS)
    async with playing(ScriptedMcp(standalone=standalone)) as (server, host):
        await server.wait_for(lambda r: r.method == "GET", 3)
        await host.until(lambda: host.of(RefreshSuggested))
        await host.until(lambda: "notifications/tools/list_changed" in host.heard)
        assert opened(server) == 3
        assert resumed_after(server) == []
        assert host.heard.count("notifications/tools/list_changed") == 1
        assert not host.of(Discontinuity)


async def test_a_refresh_names_only_what_the_server_declared_and_what_was_subscribed() -> None:
    async def other(request: Request, reply: Reply) -> None:
        await reply.json({"jsonrpc": "2.0", "id": request.rpc_id, "result": {}})

    cut = anyio.Event()
    opened_first = in_turn(events(lambda call: cut, end=How.FIN), STAYS)
    capabilities = {"prompts": {"listChanged": True}, "resources": {"subscribe": True}}
    mcp = ScriptedMcp(standalone=opened_first, other=other, capabilities=capabilities)
    async with plainly(mcp) as (_, host):
        await host.request("resources/subscribe", {"uri": "x://kept"})
        await host.request("resources/subscribe", {"uri": "x://left"})
        await host.request("resources/unsubscribe", {"uri": "x://left"})
        cut.set()
        await host.until(lambda: "notifications/resources/updated" in host.heard)
        assert host.heard.count("notifications/resources/updated") == 1
        assert "notifications/tools/list_changed" not in host.heard
        assert "notifications/prompts/list_changed" in host.heard


async def test_without_a_session_none_is_opened(playing: Playing) -> None:
    async with playing(Streams(events(answer()), session=None)) as (server, host):
        assert await host.call() == Answer("done")
        assert server.sent("GET") == []


async def test_a_request_of_the_servers_is_answered_under_its_own_id() -> None:
    asked = {"jsonrpc": "2.0", "id": "srv-1", "method": "roots/list"}
    mcp = ScriptedMcp(standalone=events(raw(sse_event(asked, id="1")), end=How.STALL))
    async with plainly(mcp) as (server, host):
        await host.until(lambda: "roots/list" in host.heard)
        heard = next(m for m in host.messages if m.get("method") == "roots/list")
        assert heard["id"] != "srv-1", "to the host it has an ID of ours"
        await host.write.send({"jsonrpc": "2.0", "id": heard["id"], "result": {"roots": []}})
        posted = await server.wait_for(lambda r: r.method == "POST" and r.rpc_id == "srv-1")
        assert posted.json == {"jsonrpc": "2.0", "id": "srv-1", "result": {"roots": []}}
        assert posted.session_id == "session-A"


async def test_a_replayed_request_of_the_servers_is_not_asked_twice() -> None:
    asked = raw(sse_event({"jsonrpc": "2.0", "id": 1, "method": "roots/list"}, id="2"))
    mcp = ScriptedMcp(
        standalone=events(note("a", "1"), asked, end=How.RST),
        resume=events(asked, note("b", "3"), end=How.STALL),
    )
    async with plainly(mcp) as (_, host):
        await host.until(lambda: len(host.heard) >= 3)
        await host.has_heard("notifications/message", "roots/list", "notifications/message")


async def test_a_stranger_on_it_reaches_nobody(playing: Playing) -> None:
    stray = raw(sse_event(tool_result(1, "somebody's"), id="1"))
    progress = {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": 1, "progress": 1},
    }
    mcp = ScriptedMcp(standalone=events(stray, raw(sse_event(progress, id="2")), end=How.STALL))
    async with playing(mcp) as (_, host):
        await host.until(lambda: len(host.of(OrphanDropped)) == 2)
        assert host.progress == []
        await host.has_heard()


async def test_the_answer_to_a_call_may_come_on_it(playing: Playing) -> None:
    """Against the specification, and done by servers: the wire ID says whose it is."""
    asked: list[Any] = []
    came = anyio.Event()

    async def call(request: Request, reply: Reply) -> None:
        asked.append(request.rpc_id)
        came.set()
        await reply.end(How.STALL)

    async def standalone(request: Request, reply: Reply) -> None:
        await reply.open_sse()
        await came.wait()
        await reply.event(tool_result(asked[0], "by the side door"), id="1")
        await reply.end(How.STALL)

    async with playing(ScriptedMcp(call=call, standalone=standalone)) as (_, host):
        assert await host.call() == Answer("by the side door")


async def test_one_that_primes_and_polls_is_not_reported_as_a_loss(playing: Playing) -> None:
    polls: list[Handler] = [events(prime(f"p{n}", 1)) for n in range(4)]
    mcp = ScriptedMcp(standalone=in_turn(polls[0], STAYS), resume=in_turn(*polls[1:], STAYS))
    async with playing(mcp, policy={"witness_timeout": 0.02}) as (_, host):
        await host.until(lambda: len(host.of(Disconnected)) >= 4)
        assert (await host.call()).text == "charge"
        assert not host.of(Discontinuity)


async def test_half_open_is_found_within_max_idle(playing: Playing) -> None:
    mcp = ScriptedMcp(
        standalone=events(note("a", "1"), note("b", "2"), end=How.STALL),
        resume=events(note("b", "2"), note("c", "3"), end=How.STALL),
    )
    async with playing(mcp, policy={"max_idle": 0.05}) as (_, host):
        # On a busy machine the first GET may be cut before it was answered, and opened afresh.
        await host.until(lambda: len(host.heard) >= 3 and host.grades)
        assert host.grades[0] == "proven"
        assert not host.of(Discontinuity)
