"""Large events, endless ones, and a host that does not read: memory stays bounded, nothing is lost."""

from __future__ import annotations

import tracemalloc
from typing import Any

import anyio
import pytest

from mcp_client_guard import CallSettled, Disconnected, Outcome
from mcp_client_guard.testing import (
    END_OF_CHUNKS,
    How,
    Reply,
    Request,
    chunk,
    http_response,
    json_response,
    notification,
    sse_event,
    sse_head,
    tool_result,
)

from .hosts import (
    STOPS_READING,
    Answer,
    PlainHost,
    Playing,
    Streams,
    answer,
    events,
    for_ever,
    note,
    plainly,
    prime,
)

pytestmark = [pytest.mark.anyio, STOPS_READING]

MiB = 1024 * 1024
KB = 1000


async def in_kilobytes(reply: Reply, data: bytes, *, framed: bool = True) -> None:
    """As few writes as the kernel likes, each of many chunks of 1 kB: what counts is how the client sees it."""
    per_write = 64
    pieces = [data[i : i + KB] for i in range(0, len(data), KB)]
    for i in range(0, len(pieces), per_write):
        await reply.write(b"".join(chunk(p) if framed else p for p in pieces[i : i + per_write]))
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("form", ["sse", "json"])
async def test_a_large_answer_in_small_pieces_arrives_whole(size: int, form: str) -> None:
    text = "x" * (size * MiB)

    async def first(call: Request, reply: Reply) -> None:
        message = tool_result(call.rpc_id, text)
        if form == "json":
            await in_kilobytes(reply, json_response(message), framed=False)
            return
        await reply.write(sse_head())
        await in_kilobytes(reply, sse_event(message, id="e1"))
        await reply.write(END_OF_CHUNKS)

    async with plainly(Streams(first)) as (_, host):
        got = await host.call()
        assert got.text == text


async def test_the_bound_can_be_raised() -> None:
    text = "x" * (24 * MiB)

    async def first(call: Request, reply: Reply) -> None:
        await reply.write(sse_head(chunked=False))
        whole = sse_event(tool_result(call.rpc_id, text))
        for i in range(0, len(whole), MiB):
            await reply.write(whole[i : i + MiB])
            await anyio.lowlevel.checkpoint()
        await reply.end()

    async with plainly(Streams(first), policy={"max_event_size": 25 * MiB}) as (_, host):
        assert (await host.call()).text == text


@pytest.mark.parametrize("form", ["event", "comment", "json", "id", "held"])
async def test_what_never_ends_is_given_up_at_the_bound_and_the_connection_goes_on(form: str) -> None:
    """A typed answer for its own call; much more would have come."""
    written, most = 0, (64 if form == "comment" else 300) * MiB  # of comments all is read

    async def first(call: Request, reply: Reply) -> None:
        nonlocal written
        start = {"event": b"data: ", "comment": b": ", "id": b"id: ", "held": b"id: p0\nretry: 1\ndata:\n\ndata: "}
        if form == "json":
            kind = {"content-type": "application/json", "content-length": str(most)}
            await reply.write(http_response(headers=kind, length=False))
        else:
            await reply.write(sse_head() + chunk(start[form]))
        block = b"x" * 64 * KB
        while written < most:
            await reply.write(block if form == "json" else chunk(block))
            written += len(block)
            await anyio.lowlevel.checkpoint()

    mcp = Streams(first)
    async with plainly(mcp, policy={"max_event_size": MiB}) as (server, host):
        tracemalloc.start()
        try:
            got = await host.call()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert got.doubt is not None
        assert peak < 32 * MiB
        if form == "comment":  # of which nothing is kept, so that it may go on for as long as its call has time
            assert "its connection was lost" in got.doubt.reason
        else:
            assert "max_event_size" in got.doubt.reason
            assert written < 60 * MiB, "the rest was not read"
        assert [r for r in server.sent("GET") if r.last_event_id] == [], "it would meet the same limit"
        mcp.first = events(answer())
        assert await host.call(n=2) == Answer("done")
    assert mcp.executed == ["charge"] * 2


async def test_an_event_that_is_too_large_on_the_standalone_stream_harms_no_call() -> None:
    async def standalone(request: Request, reply: Reply) -> None:
        await reply.open_sse()
        await reply.event("x" * 5000, id="s1")
        await reply.end(How.STALL)

    async with plainly(Streams(events(answer()), standalone=standalone), policy={"max_event_size": 2000}) as (
        _,
        host,
    ):
        assert await host.call() == Answer("done")
        assert await host.call() == Answer("done")


async def test_many_events_under_the_bound_are_no_large_event(playing: Playing) -> None:
    """The bound is on each event: a stream may be as long as it likes."""

    async def first(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        for n in range(200):
            await reply.event(notification("notifications/message", level="info", data="x" * 1000), id=f"e{n}")
        await reply.event(tool_result(call.rpc_id, "done"))
        await reply.finish()

    async with playing(Streams(first), policy={"max_event_size": 2000}) as (_, host):
        assert await host.call() == Answer("done")
        await host.until(lambda: len(host.heard) == 200)


# --- a host that does not read ----------------------------------------------------------------------------


async def start_without_listening(host: PlainHost) -> Any:
    """The read stream, after the session was opened by hand."""
    read = host.read
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    await host.post("initialize", params)
    assert "result" in await read.receive()
    await host.notify("notifications/initialized")
    return read


async def test_a_host_that_does_not_read_slows_the_server_and_loses_nothing() -> None:
    """Back-pressure down to the socket (L9): bounded memory, no disconnect, no loss, the order kept."""
    total, written = 4000, 0

    async def first(call: Request, reply: Reply) -> None:
        nonlocal written
        await reply.open_sse()
        for n in range(total):
            await reply.event(note_of(n, 5000), id=f"e{n}")
            written = n + 1
        await reply.end(How.STALL)

    async with plainly(Streams(first), listen=False, start=False) as (server, host):
        read = await start_without_listening(host)
        tracemalloc.start()
        try:
            await host.post("tools/call", {"name": "charge"})
            await server.wait_for(lambda r: r.rpc_method == "tools/call")
            await anyio.wait_all_tasks_blocked()  # the server's write among them
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert 0 < written < total
        assert peak < 32 * MiB
        got = [await read.receive() for _ in range(total)]
        assert [m["params"]["data"].split()[0] for m in got] == [str(n) for n in range(total)]
        assert not [e for e in host.of(Disconnected) if e.stream != "standalone"]


def note_of(n: int, size: int) -> Any:
    return notification("notifications/message", level="info", data=f"{n} " + "x" * size)


async def test_a_host_that_reads_slowly_is_never_disconnected_for_it() -> None:
    count = 3000

    async def first(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        for n in range(count):
            await reply.event(notification("notifications/message", level="info", data=n), id=f"e{n}")
        await reply.event(tool_result(call.rpc_id, "done"), id="last")
        await reply.finish()

    async with plainly(Streams(first), listen=False, start=False, policy={"max_idle": 0.5}) as (server, host):
        read = await start_without_listening(host)
        await host.post("tools/call", {"name": "charge"})
        got = []
        for n in range(count + 1):
            got.append(await read.receive())
            if n == 100:
                await anyio.sleep(0.8)  # longer than max_idle, in which the guard itself does not read
        assert [m["params"]["data"] for m in got[:-1]] == list(range(count))
        assert got[-1]["result"]["content"][0]["text"] == "done"
        assert not [e for e in host.of(Disconnected) if e.stream != "standalone"]
        assert [r for r in server.sent("GET") if r.last_event_id] == []


async def test_a_host_that_does_not_read_does_not_hold_up_what_it_sends() -> None:
    async def first(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        for n in range(5000):
            await reply.event(notification("notifications/message", level="info", data=n))
        await reply.end(How.STALL)

    async with plainly(Streams(first), listen=False, start=False) as (server, host):
        await start_without_listening(host)
        await host.post("tools/call", {"name": "charge"})
        await host.post("tools/list")
        await server.wait_for(lambda r: r.rpc_method == "tools/list")


async def test_a_full_inbox_on_one_stream_holds_up_no_answer_on_another_for_ever() -> None:
    """Each stream waits for room; as the host reads, all come."""

    async def first(call: Request, reply: Reply) -> None:
        name = call.json["params"]["name"]
        await reply.open_sse()
        for n in range(1500):
            await reply.event(notification("notifications/message", level="info", data=n))
        await reply.event(tool_result(call.rpc_id, name))
        await reply.finish()

    async with plainly(Streams(first), listen=False, start=False) as (_, host):
        read = await start_without_listening(host)
        ids = [await host.post("tools/call", {"name": f"t{n}"}) for n in range(3)]
        answers: dict[str, str] = {}
        count = 0
        while len(answers) < 3:
            message = await read.receive()
            if "result" in message:
                answers[message["id"]] = message["result"]["content"][0]["text"]
            else:
                count += 1
        assert answers == dict(zip(ids, ["t0", "t1", "t2"], strict=True))
        assert count == 4500
        assert [e.outcome for e in host.of(CallSettled)[1:]] == [Outcome.COMPLETED] * 3


async def test_a_full_inbox_on_one_stream_makes_no_witness_late_on_another() -> None:
    """The host is slow, the server is not: that is no evidence against it."""
    go_on, witnessed = anyio.Event(), anyio.Event()

    async def first(call: Request, reply: Reply) -> None:
        if call.json["params"]["name"] == "add":
            await reply.open_sse()
            for n in range(1500):
                await reply.event(note_of(n, 10))
            await reply.end(How.STALL)
        mcp.charge = call  # type: ignore[attr-defined]
        await reply.open_sse()
        await reply.event("", id="p0", retry=1)
        await reply.event(note_of(1, 1), id="e1")
        await go_on.wait()
        await reply.end(How.RST)

    async def resume(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        await reply.comment()
        await anyio.wait_all_tasks_blocked()
        await reply.event(note_of(1, 1), id="e1")
        witnessed.set()
        await reply.end(How.STALL)

    mcp = Streams(first, for_ever(resume))
    policy = {"witness_timeout": 0.3, "recheck": 60}
    async with plainly(mcp, listen=False, start=False, policy=policy) as (server, host):
        read = await start_without_listening(host)
        await host.post("tools/call", {"name": "charge"})
        await read.receive()
        await host.post("tools/call", {"name": "add"})
        await server.wait_for(lambda r: r.rpc_method == "tools/call", 2)
        await anyio.wait_all_tasks_blocked()
        go_on.set()
        await witnessed.wait()
        assert await host.until(lambda: host.grades) == ["proven"]


async def test_held_events_of_a_trial_are_bounded() -> None:
    async def flood(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        for n in range(400):
            await reply.event(notification("notifications/message", level="info", data=n), id=f"x{n}")
        await reply.end(How.STALL)

    first = events(prime("p0", 1), note("x", "e1"), note("x", "e2"), end=How.RST)
    async with plainly(Streams(first, flood), policy={"max_held": 100, "witness_timeout": 5}) as (_, host):
        got = await host.call()
        assert got.doubt is not None
        assert host.grades == ["broken"]
        assert host.heard.count("notifications/message") == 2


def answer_of_nobody(event_id: str) -> Any:
    return lambda call: chunk(
        sse_event(notification("notifications/message", level="info", data="x"), id=event_id)
    )


async def test_a_cancelled_receive_loses_nothing() -> None:
    async def first(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        for n in range(60):
            await reply.event(note_of(n, 1))
            await anyio.lowlevel.checkpoint()
        await reply.event(tool_result(call.rpc_id, "done"))
        await reply.finish()

    async with plainly(Streams(first), listen=False, start=False) as (_, host):
        read = await start_without_listening(host)
        await host.post("tools/call", {"name": "charge"})
        got: list[Any] = []
        while not got or "result" not in got[-1]:
            with anyio.CancelScope() as scope:
                scope.deadline = anyio.current_time() + 0.0005 * (len(got) % 3)
                got.append(await read.receive())
        assert [m["params"]["data"].split()[0] for m in got[:-1]] == [str(n) for n in range(60)]
