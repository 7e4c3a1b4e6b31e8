"""2026-07-28 with real servers, through a proxy that cuts: honest outcomes, nothing run twice, nothing hung."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp
import pytest
from mcp import types

from mcp_client_guard import CallInDoubt, Connected, Event, Guard, GuardPolicy, ListenedAgain, Outcome
from mcp_client_guard.testing import Cut, CuttingProxy, Exchange, How, calls_of

from .judge import Call
from .peers import MODERN_PEERS, Peer, running

pytestmark = [
    pytest.mark.skipif(not hasattr(mcp, "Client"), reason="the SDK's host does not speak 2026-07-28"),
    pytest.mark.anyio,
]

SEED = 26
CUTS = 10
STEPS = 3
LONGEST = 900
NEVER = 1_000_000
"""Bytes; more than any answer has."""
LIMIT = 60.0
serials = itertools.count()
"""The servers outlive the tests: each execution has a label of its own."""


@pytest.fixture(scope="module", params=MODERN_PEERS)
def peer(request: pytest.FixtureRequest) -> Any:
    with running(request.param) as started:
        yield started


@asynccontextmanager
async def hosted(url: str, told: list[Event], **options: Any) -> AsyncIterator[tuple[Any, Guard]]:
    """The `Client` of SDK 2.x in its default mode: it asks `server/discover` first."""
    chosen = {"policy": GuardPolicy(resend={"*": "never"}), **options}
    guard = Guard(url, generation="host", on_event=told.append, **chosen)

    async def agree(_context: Any, _params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={})

    with anyio.fail_after(LIMIT):
        async with mcp.Client(guard.connect(), elicitation_callback=agree) as client:
            yield client, guard


def generations(told: list[Event]) -> list[str]:
    return [event.generation.value for event in told if isinstance(event, Connected)]


def places() -> list[tuple[How, int]]:
    rng = random.Random(SEED)
    cuts = [(rng.choice([How.FIN, How.RST]), rng.randrange(LONGEST)) for _ in range(CUTS)]
    return [*cuts, (How.FIN, NEVER)]


async def test_a_call_that_is_cut_anywhere_completes_or_is_honestly_in_doubt(peer: Peer) -> None:
    """And was a signal to cancel; another call beside it is untouched; nothing is sent twice, nothing resumed."""
    outcomes = set()
    for how, at in places():
        label = f"{how.value}@{at} seed {SEED} run {next(serials)}"
        call = Call(peer.name, label, STEPS, 0.004)
        other = Call(peer.name, f"{label} (other)", STEPS + 1, 0.004)
        told: list[Event] = []
        async with CuttingProxy(peer.port, [Cut(at, how, call.is_mine)]) as proxy:
            async with hosted(proxy.url, told) as (client, _):
                async with anyio.create_task_group() as tasks:
                    for one in (call, other):
                        tasks.start_soon(one.make, _caller(client))
        assert generations(told) == ["stateless-http"], label
        assert all(e.request.method == "POST" and not e.request.session_id for e in proxy.exchanges), label
        assert sum(call.is_mine(exchange) for exchange in proxy.exchanges) == 1, label
        assert other.correct, label
        assert call.correct or call.doubt is not None, (label, call.error, call.answer)
        if call.doubt is not None:
            assert call.doubt.cancel_signalled, label
        assert peer.executions(label) <= 1, label
        assert peer.executions(label) == 1 or not call.correct, label
        assert sorted(set(call.progress)) == sorted(call.progress), label
        outcomes.add(call.correct)
    assert outcomes == {True, False}


def _caller(client: Any) -> Any:
    return lambda tool, arguments, progress: client.call_tool(tool, arguments, progress_callback=progress)


async def test_a_safe_call_that_is_cut_is_sent_again(peer: Peer) -> None:
    told: list[Event] = []
    label = f"again {next(serials)}"
    cut = [Cut(0, How.RST, calls_of("add")), Cut(20, How.FIN, calls_of("add"))]
    async with CuttingProxy(peer.port, cut) as proxy:
        policy = GuardPolicy(resend={"add": "always"})
        async with hosted(proxy.url, told, policy=policy) as (client, _):
            result = await client.call_tool("add", {"a": 2, "b": 3, "label": label})
            assert result.content[0].text == "5"
        sent = [e.request.rpc_id for e in proxy.exchanges if calls_of("add")(e)]
    assert len(sent) == len(set(sent)) == 3
    assert peer.executions(label) in (2, 3), "what was cut before it ran did not run"


async def test_a_cancelled_call_closes_its_stream(peer: Peer) -> None:
    told: list[Event] = []
    async with CuttingProxy(peer.port) as proxy:
        async with hosted(proxy.url, told) as (client, guard):
            with anyio.move_on_after(0.2):
                await client.call_tool("slow", {"seconds": 30, "heartbeat": 0.05, "label": "cancelled"})
            await client.list_tools()
        (row,) = [row for row in await guard.calls() if row.tool == "slow"]
        assert row.outcome is Outcome.CANCELLED
        methods = [e.request.rpc_method for e in proxy.exchanges]
    assert "notifications/cancelled" not in methods


# What only the SDK's own server offers.


@pytest.fixture(scope="module")
def sdk2() -> Any:
    with running("sdk2") as started:
        yield started


@pytest.mark.parametrize("lost", [None, 0, 1])
async def test_a_call_of_two_requests_is_one_story(sdk2: Peer, lost: int | None) -> None:
    """The second, if it is lost, is in doubt, and a repeat of the call is not sent."""
    seen: list[Exchange] = []

    def which(exchange: Exchange) -> bool:
        if not calls_of("charge_if_allowed")(exchange):
            return False
        if exchange not in seen:
            seen.append(exchange)
        return seen.index(exchange) == lost

    label = f"rounds {lost} {next(serials)}"
    told: list[Event] = []
    async with CuttingProxy(sdk2.port, [] if lost is None else [Cut(10, How.RST, which)]) as proxy:
        async with hosted(proxy.url, told) as (client, guard):
            results = []
            for _ in range(2 if lost is not None else 1):
                results.append(await client.call_tool("charge_if_allowed", {"cents": 5, "label": label}))
        rows = [row for row in await guard.calls() if row.tool == "charge_if_allowed"]
    if lost is None:
        assert results[0].content[0].text == "charged 5"
        assert [row.outcome for row in rows] == [Outcome.INPUT_REQUIRED, Outcome.COMPLETED]
    else:
        doubts = [CallInDoubt.find(result) for result in results]
        assert doubts[0] is not None
        assert doubts[0] == doubts[1]
        assert rows[-1].outcome is Outcome.IN_DOUBT
    assert len({row.call_key for row in rows}) == 1
    assert len(rows) == 1 + (lost != 0)
    assert sdk2.executions(label) <= 1


@pytest.mark.parametrize("how", [How.FIN, How.RST])
async def test_a_subscription_outlives_its_stream(sdk2: Peer, how: How) -> None:
    """The SDK's own transport ends it: `SubscriptionLost`."""
    told: list[Event] = []

    def is_listen(exchange: Exchange) -> bool:
        return exchange.request.rpc_method == "subscriptions/listen"

    def after_the_change(exchange: Exchange) -> int | None:
        return exchange.boundaries[1] if len(exchange.boundaries) > 1 else None

    async with CuttingProxy(sdk2.port, [Cut(after_the_change, how, is_listen)]) as proxy:
        async with hosted(proxy.url, told) as (client, _), client.listen(tools_list_changed=True) as changes:
            await client.call_tool("change", {})
            assert type(await anext(changes)).__name__ == "ToolsListChanged"
            assert type(await anext(changes)).__name__ == "ToolsListChanged", "told to read anew"
            while not any(isinstance(event, ListenedAgain) for event in told):
                await anyio.lowlevel.checkpoint()
            await client.call_tool("change", {})
            assert type(await anext(changes)).__name__ == "ToolsListChanged"
        assert len([e for e in proxy.exchanges if is_listen(e)]) == 2
