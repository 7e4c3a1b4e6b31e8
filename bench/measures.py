"""The measures: each runs one contestant once, on a connection of its own, and returns numbers by name."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import httpx
import httpx_sse
from attrs import frozen
from mcp import ClientSession

from bench.contestants import Contestant, clock, host_on
from bench.line import far_away

Numbers = dict[str, float]
Measure = Callable[[Contestant, str], Awaitable[Numbers]]

SMALL, BIG = 100, 10_000  # bytes of JSON in one event
WARM_UP = 50  # events
TRIP = 0.05  # seconds
RETRY_MS = 10  # so short that a jitter on top of it does not count


async def drain(contestant: Contestant, url: str, *, n: int, size: int) -> Numbers:
    """A stream of `n` events taken from the read stream: events per second, CPU of this process per event."""
    async with host_on(contestant, url) as host:
        await host_warm_up(host, n, size)
        request = host.prepare_call("stream", n=n, size=size, prefix="s")
        gc.collect()
        start, cpu = clock(), time.process_time()
        await host.send(request)
        for _ in range(n):
            await host.take()
        await host.response_to(request)
        wall, cpu = clock() - start, time.process_time() - cpu
    return {"events_per_s": n / wall, "cpu_us_per_event": cpu / n * 1e6}


async def host_warm_up(host: Any, n: int, size: int) -> None:
    """Opens the connection, and lets the server prepare the bytes of the measured call."""
    for tool, arguments in (
        ("prepare", {"n": n, "size": size, "prefix": "s"}),
        ("stream", {"n": WARM_UP, "size": size, "prefix": "w"}),
    ):
        request = host.prepare_call(tool, **arguments)
        await host.send(request)
        await host.response_to(request)


async def drain_session(contestant: Contestant, url: str, *, n: int, size: int) -> Numbers:
    """The same through a whole ClientSession with a logging callback."""
    taken = 0
    all_taken = anyio.Event()

    async def count_one(_params: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == WARM_UP + n:
            all_taken.set()

    async with (
        contestant(url) as (read, write),
        ClientSession(read, write, logging_callback=count_one) as session,
    ):
        await session.initialize()
        await session.call_tool("prepare", {"n": n, "size": size, "prefix": "s"})
        await session.call_tool("stream", {"n": WARM_UP, "size": size, "prefix": "w"})
        gc.collect()
        start, cpu = clock(), time.process_time()
        await session.call_tool("stream", {"n": n, "size": size, "prefix": "s"})
        await all_taken.wait()  # SDK 2.x may still be handling the last ones when the call returns
        wall, cpu = clock() - start, time.process_time() - cpu
    return {"events_per_s": n / wall, "cpu_us_per_event": cpu / n * 1e6}


async def calls(contestant: Contestant, url: str, *, n: int, tool: str) -> Numbers:
    """`n` calls one after the other, from the write stream to the response on the read stream."""
    async with host_on(contestant, url) as host:
        requests = [host.prepare_call(tool) for _ in range(n + 10)]
        times = []
        gc.collect()
        cpu = time.process_time()
        for request in requests:
            start = clock()
            await host.send(request)
            await host.response_to(request)
            times.append(clock() - start)
        cpu = time.process_time() - cpu
    cpu_ms = cpu / len(times) * 1e3
    times = sorted(times[10:])
    return {
        "p50_ms": statistics.median(times) * 1e3,
        "p99_ms": times[int(len(times) * 0.99)] * 1e3,
        "cpu_ms_per_call": cpu_ms,
    }


async def resume(contestant: Contestant, url: str, *, n: int) -> Numbers:
    """From the cut to the first new event in the caller's hands, less the `retry:` wait; median of `n`."""
    beyond, asked, served = [], [], []
    async with host_on(contestant, url) as host:
        for _ in range(n):
            request = host.prepare_call("cut", n=20, k=10, retry=RETRY_MS)
            await host.send(request)
            for _ in range(11):
                await host.take()
            first_new = clock()
            await host.response_to(request)
            times = await server_times(host)
            beyond.append(first_new - times["cut_at"] - RETRY_MS / 1e3)
            asked.append(times["resumed_at"] - times["cut_at"] - RETRY_MS / 1e3)
            served.append(first_new - times["resumed_at"])
    return {
        "beyond_retry_ms": statistics.median(beyond) * 1e3,
        "asked_beyond_retry_ms": statistics.median(asked) * 1e3,
        "served_ms": statistics.median(served) * 1e3,
    }


async def resume_far_away(contestant: Contestant, url: str, *, n: int) -> Numbers:
    """The same over a line that has a length, counted in round trips from when the end of the stream is here."""
    async with far_away(url, TRIP) as far_url:
        beyond = (await resume(contestant, far_url, n=n))["beyond_retry_ms"] / 1e3
    return {"round_trips": (beyond - TRIP / 2) / TRIP}


async def server_times(host: Any) -> dict[str, float]:
    request = host.prepare_call("times")
    await host.send(request)
    response = await host.response_to(request)
    times: dict[str, float] = json.loads(response.result["content"][0]["text"])
    return times


async def concurrent(contestant: Contestant, url: str, *, n: int) -> Numbers:
    """`n` calls at once, answered by SSE: from the first send to the last response."""
    async with host_on(contestant, url) as host:
        requests = [host.prepare_call("sse") for _ in range(n)]
        gc.collect()
        start, cpu = clock(), time.process_time()
        async with anyio.create_task_group() as tasks:
            for request in requests:
                tasks.start_soon(host.send, request)
            await host.responses_to(requests)
        wall, cpu = clock() - start, time.process_time() - cpu
    return {"total_ms": wall * 1e3, "cpu_ms": cpu * 1e3}


async def httpx_alone(url: str, scale: float) -> Numbers:
    """What no transport on httpx and httpx-sse can beat: a JSON call, and a stream parsed event by event."""
    async with httpx.AsyncClient() as client:
        return {
            "call_p50_ms": await bare_call(client, url, max(10, round(150 * scale))),
            f"events_per_s {SMALL}": await bare_drain(client, url, max(100, round(6_000 * scale)), SMALL),
            f"events_per_s {BIG}": await bare_drain(client, url, max(20, round(1_200 * scale)), BIG),
        }


def bare_message(tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def bare_call(client: httpx.AsyncClient, url: str, n: int) -> float:
    times = []
    for _ in range(n + 10):
        start = clock()
        json.loads((await client.post(url, json=bare_message("json"))).content)
        times.append(clock() - start)
    return statistics.median(times[10:]) * 1e3


async def bare_drain(client: httpx.AsyncClient, url: str, n: int, size: int) -> float:
    await client.post(url, json=bare_message("prepare", n=n, size=size, prefix="s"))
    best = 0.0
    for _ in range(3):
        start = clock()
        message = bare_message("stream", n=n, size=size, prefix="s")
        async with client.stream("POST", url, json=message) as response:
            async for event in httpx_sse.EventSource(response).aiter_sse():
                json.loads(event.data)
        best = max(best, n / (clock() - start))
    return best


@frozen
class Planned:
    measure: Measure
    rounds: float = 1.0
    """Share of the rounds asked for: many short rounds even out a busy machine, but a few are long by nature."""


_OF_EACH = ("events 100 B", "events 10 kB", "call, SSE answer", "500 calls at once")


def measures(scale: float, *, every: bool = True) -> dict[str, Planned]:
    """All measures by name, or those of any generation; `scale` 1 is the quick run."""

    def times(count: int, least: int) -> int:
        return max(least, round(count * scale))

    small, big = {"n": times(3_000, 100), "size": SMALL}, {"n": times(600, 20), "size": BIG}
    small_session, big_session = {"n": times(1_500, 100), "size": SMALL}, {"n": times(300, 20), "size": BIG}
    known = {
        "events 100 B": Planned(partial(drain, **small)),
        "events 10 kB": Planned(partial(drain, **big)),
        "events 100 B, ClientSession": Planned(partial(drain_session, **small_session)),
        "events 10 kB, ClientSession": Planned(partial(drain_session, **big_session)),
        "call, SSE answer": Planned(partial(calls, n=times(100, 10), tool="sse")),
        "call, JSON answer": Planned(partial(calls, n=times(100, 10), tool="json")),
        "resume": Planned(partial(resume, n=times(2, 1))),
        "resume, 50 ms away": Planned(partial(resume_far_away, n=times(2, 1))),
        "500 calls at once": Planned(partial(concurrent, n=min(500, times(500, 20))), rounds=0.4),
    }
    return known if every else {name: known[name] for name in _OF_EACH}
