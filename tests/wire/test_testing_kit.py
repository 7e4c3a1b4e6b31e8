"""The testing kit does what it says: bytes are cut where named, and every request is seen."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Callable

import anyio
import httpx
import pytest

from mcp_client_guard.testing import (
    END_OF_CHUNKS,
    Cut,
    CuttingProxy,
    Dribble,
    Exchange,
    FakeServer,
    How,
    Reply,
    Request,
    ScriptedMcp,
    after_event,
    chunk,
    events_of,
    http_response,
    in_turn,
    json_response,
    progress_of,
    resumes_of,
    script,
    sse_event,
    sse_head,
    sse_response,
    tool_result,
)

pytestmark = pytest.mark.anyio

CALL = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "count", "arguments": {}, "_meta": {"progressToken": 7}},
}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}


async def count(request: Request, reply: Reply) -> None:
    """A primed stream with two progress notifications and the result, chunked."""
    await reply.open_sse()
    await reply.event("", id="p0", retry=20)
    await reply.event(progress_of(request, 1), id="e1")
    await reply.event(progress_of(request, 2), id="e2")
    await reply.event(tool_result(request.rpc_id, "2"), id="e3")
    await reply.finish()


async def raw_answer(port: int, request: bytes) -> tuple[bytes, BaseException | None]:
    """What a bare socket gets: all bytes until the end, and the error that ended them."""

    def talk() -> tuple[bytes, BaseException | None]:
        got = b""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
                sock.sendall(request)
                while data := sock.recv(65536):
                    got += data
        except ConnectionError as error:
            return got, error
        return got, None

    return await anyio.to_thread.run_sync(talk)


def post(body: object) -> bytes:
    return httpx_bytes("POST", body)


def httpx_bytes(method: str, body: object) -> bytes:
    request = httpx.Request(method, "http://127.0.0.1/mcp", json=body)
    head = [f"{method} /mcp HTTP/1.1", *(f"{k}: {v}" for k, v in request.headers.items())]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + request.content


# --- FakeServer -----------------------------------------------------------------------------------


async def test_it_records_requests_in_order_and_keeps_connections_alive() -> None:
    async with FakeServer(ScriptedMcp()) as server, httpx.AsyncClient() as client:
        first = await client.post(server.url, json=INITIALIZE)
        second = await client.post(server.url, json=CALL, headers={"mcp-session-id": "session-A"})
    assert first.headers["mcp-session-id"] == "session-A"
    assert first.json()["result"]["protocolVersion"] == "2025-11-25"
    assert second.json()["result"]["content"][0]["text"] == "count"
    assert [r.rpc_method for r in server.requests] == ["initialize", "tools/call"]
    assert [r.connection for r in server.requests] == [1, 1]
    assert server.requests[1].session_id == "session-A"


async def test_each_part_of_a_scripted_session_answers() -> None:
    async with FakeServer(ScriptedMcp()) as server, httpx.AsyncClient() as client:
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await client.post(server.url, json=note)).status_code == 202
        assert (await client.get(server.url)).status_code == 405
        assert (await client.get(server.url, headers={"last-event-id": "1"})).status_code == 404
        assert (await client.delete(server.url)).status_code == 200
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await client.post(server.url, json=ping)).json()["result"] == {}
        discover = {"jsonrpc": "2.0", "id": 2, "method": "server/discover"}
        assert (await client.post(server.url, json=discover)).json()["error"]["code"] == -32601


async def test_parts_can_be_replaced() -> None:
    mcp = ScriptedMcp(call=count, resume=script(sse_response(sse_event("x", id="e9"))))
    async with FakeServer(mcp) as server, httpx.AsyncClient() as client:
        called = await client.post(server.url, json=CALL)
        resumed = await client.get(server.url, headers={"last-event-id": "e3"})
    assert [e.event_id for e in events_of(called.content)] == ["p0", "e1", "e2", "e3"]
    assert [e.data for e in events_of(resumed.content)] == ["x"]


@pytest.mark.parametrize(("how", "reset"), [(How.FIN, False), (How.RST, True), (How.HALF_CLOSE, False)])
async def test_an_ending_comes_after_exactly_the_bytes_written(how: How, reset: bool) -> None:
    written = sse_head() + chunk(sse_event("", id="p1"))
    async with FakeServer(script(written, how)) as server:
        got, error = await raw_answer(server.port, post(CALL))
    assert got == written
    assert isinstance(error, ConnectionResetError) is reset


async def test_an_unfinished_response_ends_with_a_fin() -> None:
    async with FakeServer(script(b"HTTP/1.1 200 OK\r\nconte")) as server:
        assert await raw_answer(server.port, post(CALL)) == (b"HTTP/1.1 200 OK\r\nconte", None)


async def test_a_stall_lasts_until_the_client_leaves() -> None:
    left: list[bool] = []

    async def stall(request: Request, reply: Reply) -> None:
        await reply.play(sse_head(), How.STALL)
        left.append(reply.client_gone.is_set())

    async with FakeServer(stall) as server:
        async with httpx.AsyncClient() as client, client.stream("POST", server.url, json=CALL):
            assert server.open_connections == 1
        await server.until(lambda: left == [True] and not server.open_connections)


async def test_a_handler_waits_for_events_and_dribbles() -> None:
    gate = anyio.Event()
    steps = script(sse_head(chunked=False), gate, Dribble(sse_event("é", id="1")), How.FIN)
    async with FakeServer(steps) as server, httpx.AsyncClient() as client:
        async with client.stream("POST", server.url, json=CALL) as response:
            gate.set()
            assert await response.aread() == "id: 1\ndata: é\n\n".encode()


async def test_handlers_take_turns_and_the_last_stays() -> None:
    handler = in_turn(script(http_response(503)), script(json_response({"ok": True})))
    async with FakeServer(handler) as server, httpx.AsyncClient() as client:
        assert [(await client.get(server.url)).status_code for _ in range(3)] == [503, 200, 200]


async def test_an_error_in_a_handler_fails_the_test() -> None:
    async def wrong(request: Request, reply: Reply) -> None:
        raise AssertionError("not what was expected")

    async def use() -> None:
        async with FakeServer(wrong) as server:
            await raw_answer(server.port, post(CALL))
            await anyio.sleep_forever()

    with pytest.raises(BaseException, match=r"unhandled errors|Exceptions from") as caught:
        await use()
    assert caught.group_contains(AssertionError, match="not what was expected")


async def test_connections_can_be_reset_at_accept_or_before_the_body_is_read() -> None:
    async def refuse(request: Request, reply: Reply) -> None:
        await reply.end(How.RST)

    async with FakeServer(ScriptedMcp(), on_head=refuse) as server:
        server.next_connections = [How.RST]
        for _ in range(2):
            got, error = await raw_answer(server.port, post({"x": "y" * 3_000_000}))
            assert got == b""
            assert isinstance(error, ConnectionError)
    assert server.requests == []


async def test_a_server_can_refuse_and_listen_again() -> None:
    async with FakeServer(ScriptedMcp()) as server, httpx.AsyncClient() as client:
        server.refuse()
        with pytest.raises(httpx.ConnectError):
            await client.post(server.url, json=INITIALIZE)
        server.listen_again()
        assert (await client.post(server.url, json=INITIALIZE)).status_code == 200


async def test_waiting_for_a_request() -> None:
    async with FakeServer(ScriptedMcp()) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(raw_answer, server.port, b"GET /mcp HTTP/1.1\r\nconnection: close\r\n\r\n")
        assert (await server.wait_for(lambda r: r.method == "GET")).serial == 1
        server.drop_all()
    assert server.sent("GET") == server.requests
    assert server.sent("POST") == []


NO_HTTP = [
    b"\x16\x03\x01\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET //[ HTTP/1.1\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\ncontent-length: five\r\n\r\nhello",
    b"POST /mcp HTTP/1.1\r\ncontent-length: -5\r\n\r\nhello",
    b"POST /mcp HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello",
]


@pytest.mark.parametrize("garbage", NO_HTTP)
async def test_what_is_no_http_draws_400_and_ends_its_connection_alone(garbage: bytes) -> None:
    async with FakeServer(ScriptedMcp()) as server, httpx.AsyncClient() as client:
        got, error = await raw_answer(server.port, garbage)
        assert (got.split(b"\r\n")[0], error) == (b"HTTP/1.1 400 Scripted", None)
        assert (await client.post(server.url, json=INITIALIZE)).status_code == 200
        assert len(server.requests) == 1


async def test_what_is_no_http_ends_nothing_though_its_client_is_gone_before_the_400() -> None:
    async with FakeServer(ScriptedMcp()) as server, httpx.AsyncClient() as client:
        with socket.create_connection(("127.0.0.1", server.port)) as left:
            left.sendall(b"NONSENSE\r\n\r\n")
            left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await server.until(lambda: server.connections == 1 and not server.open_connections)
        assert (await client.post(server.url, json=INITIALIZE)).status_code == 200


async def test_any_number_of_requests_may_wait_for_the_answer_to_the_first() -> None:
    answer = json_response({"ok": True})
    async with FakeServer(in_turn(*[script(answer)] * 299, script(answer, How.FIN))) as server:
        assert await raw_answer(server.port, post(CALL) * 300) == (answer * 300, None)
    assert len(server.requests) == 300


async def test_a_request_that_comes_while_the_answer_before_it_is_cut_ends_nothing() -> None:
    second_has_come, first_is_over = anyio.Event(), anyio.Event()

    async def hold_the_second(request: Request, reply: Reply) -> None:
        if server.requests:
            second_has_come.set()
            await first_is_over.wait()

    async def cut(request: Request, reply: Reply) -> None:
        await second_has_come.wait()
        await reply.write(b"HTTP/1.1 200 OK\r\nconte")
        first_is_over.set()

    async with FakeServer(cut, on_head=hold_the_second) as server:
        assert (await raw_answer(server.port, post(CALL) * 2))[0] == b"HTTP/1.1 200 OK\r\nconte"
        await server.until(lambda: not server.open_connections)


# --- CuttingProxy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", NO_HTTP)
async def test_the_proxy_resets_what_is_no_http_and_goes_on(garbage: bytes) -> None:
    async with FakeServer(ScriptedMcp()) as server, CuttingProxy(server.port) as proxy:
        async with httpx.AsyncClient() as client:
            got, error = await raw_answer(proxy.port, garbage)
            assert (got, type(error)) == (b"", ConnectionResetError)
            assert (await client.post(proxy.url, json=INITIALIZE)).status_code == 200


async def test_responses_pass_unchanged_and_are_recorded_with_their_events() -> None:
    async with FakeServer(ScriptedMcp(call=count)) as server, CuttingProxy(server.port) as proxy:
        async with httpx.AsyncClient() as client:
            await client.post(proxy.url, json=INITIALIZE)
            answer = await client.post(proxy.url, json=CALL)
    call = proxy.exchanges[1]
    assert proxy.connections == 1
    assert call.request.rpc_method == "tools/call"
    assert call.complete
    assert call.sent == len(call.response)
    assert [e.event_id for e in call.events] == ["p0", "e1", "e2", "e3"]
    assert [e.event_id for e in events_of(answer.content)] == ["p0", "e1", "e2", "e3"]
    assert call.response.endswith(END_OF_CHUNKS)
    assert call.response[: call.head_length].endswith(b"\r\n\r\n")
    for boundary in call.boundaries:
        assert call.response[:boundary].endswith(b"\n\n")


@pytest.mark.parametrize("how", [How.FIN, How.RST, How.HALF_CLOSE])
async def test_a_cut_keeps_exactly_its_bytes_at_every_offset(how: How) -> None:
    async with FakeServer(ScriptedMcp(call=count)) as server:
        async with CuttingProxy(server.port) as proxy:
            async with httpx.AsyncClient() as client:
                await client.post(proxy.url, json=CALL)
            whole = proxy.exchanges[0].response
            proxy.exchanges.clear()
            for at in range(0, len(whole), 7):
                proxy.cuts = [Cut(at, how)]
                got, error = await raw_answer(proxy.port, post(CALL))
                assert got == whole[:at]
                assert isinstance(error, ConnectionResetError) is (how is How.RST)
                assert proxy.exchanges[-1].sent == at
                assert proxy.unused_cuts == []


async def test_only_the_request_that_matches_is_cut_on_a_shared_connection() -> None:
    async with FakeServer(ScriptedMcp(call=count)) as server:
        async with CuttingProxy(server.port, [Cut(40)]) as proxy, httpx.AsyncClient() as client:
            await client.post(proxy.url, json=INITIALIZE)
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(proxy.url, json=CALL)
            assert (await client.post(proxy.url, json=CALL)).status_code == 200
    assert [e.request.connection for e in proxy.exchanges] == [1, 1, 2]
    assert [e.cut_done for e in proxy.exchanges] == [False, True, False]
    assert [r.rpc_method for r in server.requests] == ["initialize", "tools/call", "tools/call"]


async def test_cuts_follow_a_stream_through_its_resumes() -> None:
    async def replay(request: Request, reply: Reply) -> None:
        await reply.write(sse_response(sse_event("m", id="e2"), sse_event("n", id="e3")))

    def of_count(exchange: Exchange) -> bool:
        return exchange.request.rpc_method == "tools/call"

    plan = [Cut(260), Cut(10, where=resumes_of(of_count)), Cut(20, how=How.RST, where=resumes_of(of_count))]
    async with FakeServer(ScriptedMcp(call=count, resume=replay)) as server:
        async with CuttingProxy(server.port, plan) as proxy, httpx.AsyncClient() as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(proxy.url, json=CALL)
            for headers in ({"last-event-id": "e1"}, {"last-event-id": "e1"}):
                with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                    await client.get(proxy.url, headers=headers)
            foreign = await client.get(proxy.url, headers={"last-event-id": "unknown"})
    call = proxy.exchanges[0]
    assert foreign.status_code == 200
    assert [e.sent for e in proxy.exchanges[:3]] == [260, 10, 20]
    assert [e.origin is call for e in proxy.exchanges] == [True, True, True, False]
    assert [e.event_id for e in call.delivered] == ["p0", "e1"]
    assert proxy.unused_cuts == []


@pytest.mark.parametrize(("offset", "delivered"), [(-1, ["p0"]), (0, ["p0", "e1"]), (1, ["p0", "e1"])])
async def test_a_cut_can_be_placed_by_event(offset: int, delivered: list[str]) -> None:
    async with FakeServer(ScriptedMcp(call=count)) as server:
        async with CuttingProxy(server.port, [Cut(after_event(2, offset))]) as proxy:
            await raw_answer(proxy.port, post(CALL))
            call = proxy.exchanges[0]
    assert [e.event_id for e in call.delivered] == delivered
    assert call.sent == call.boundaries[1] + offset


async def test_skip_lets_matching_requests_pass_first() -> None:
    async with FakeServer(ScriptedMcp(call=count)) as server:
        async with CuttingProxy(server.port, [Cut(0, skip=2)]) as proxy, httpx.AsyncClient() as client:
            for _ in range(2):
                assert (await client.post(proxy.url, json=CALL)).status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(proxy.url, json=CALL)


async def test_a_stall_forwards_nothing_more_and_the_server_learns_when_the_client_leaves() -> None:
    async with FakeServer(script(sse_head(), How.STALL)) as server:
        async with CuttingProxy(server.port, [Cut(30, How.STALL, where=lambda e: True)]) as proxy:
            async with httpx.AsyncClient(timeout=None) as client, anyio.create_task_group() as tasks:
                tasks.start_soon(client.post, proxy.url)
                await proxy.until(lambda: proxy.exchanges and proxy.exchanges[0].head_length)
                tasks.cancel_scope.cancel()
            await server.until(lambda: not server.open_connections)
    assert proxy.exchanges[0].sent == 30
    assert proxy.exchanges[0].head_length > 30


@pytest.mark.parametrize("keep", [True, False])
async def test_the_server_notices_a_cut_unless_its_side_is_kept(keep: bool) -> None:
    noticed: list[bool] = []
    cut_done = anyio.Event()

    async def stream(request: Request, reply: Reply) -> None:
        await reply.open_sse()
        await cut_done.wait()
        if keep:
            await reply.event("still here", id="e1")
        else:
            await reply.client_gone.wait()
        noticed.append(reply.client_gone.is_set())

    async with FakeServer(ScriptedMcp(call=stream)) as server:
        async with CuttingProxy(server.port, [Cut(20, keep_upstream=keep)]) as proxy:
            assert (await raw_answer(proxy.port, post(CALL)))[1] is None
            cut_done.set()
            await server.until(lambda: noticed)
    assert noticed == [not keep]


async def test_without_a_server_the_client_is_reset() -> None:
    async with FakeServer(ScriptedMcp()) as server:
        pass
    async with CuttingProxy(server.port) as proxy:
        got, error = await raw_answer(proxy.port, b"")
        assert (got, type(error)) == (b"", ConnectionResetError)
    assert proxy.exchanges == []


async def test_a_refusing_proxy_refuses() -> None:
    async with FakeServer(ScriptedMcp()) as server, CuttingProxy(server.port) as proxy:
        proxy.refuse()
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ConnectError):
                await client.post(proxy.url, json=CALL)


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"id: 1\ndata: a\n\n", [("1", "a", 15)]),
        (b"id: 1\r\ndata: a\r\n\r\n: ping\r\n\r\n", [("1", "a", 18), (None, None, 28)]),
        (b"data: a\rdata: b\r\rid: 2\rdata\r\r", [(None, "a\nb", 17), ("2", "", 29)]),
        (b"id: 1\ndata: cut", []),
    ],
)
def test_events_are_found_with_their_own_ids(body: bytes, expected: list[tuple[str, str, int]]) -> None:
    assert [(e.event_id, e.data, e.end) for e in events_of(body)] == expected


def feeding(size: int) -> Callable[[bytes], list[bytes]]:
    return lambda data: [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_messages_end_where_http_says_for_every_chunking(size: int) -> None:
    from mcp_client_guard.testing._http1 import MessageReader

    body = sse_event("x" * 20, id="1") + sse_event("y", id="2")
    chunked = sse_head() + chunk(body[:9]) + chunk(body[9:]) + END_OF_CHUNKS
    for wire in (
        chunked,
        sse_response(body),
        http_response(204),
        b"HTTP/1.1 100 Go\r\n\r\n" + http_response(202),
    ):
        reader = MessageReader(request=False)
        taken = sum(reader.feed(piece) for piece in feeding(size)(wire + b"HTTP/1.1 200 next"))
        assert reader.complete
        assert bytes(reader.wire) == wire
        assert taken == len(wire)
    reader = MessageReader(request=False)
    reader.feed(chunked)
    assert bytes(reader.body) == body
    for event in events_of(body):
        offset = reader.wire_offset(event.end)
        assert chunked[offset - 1 : offset] == b"\n"


WITHOUT_FCNTL = """
import sys
sys.modules["fcntl"] = sys.modules["termios"] = None
import anyio
from mcp_client_guard.testing import FakeServer, How

async def cut(request, reply):
    await reply.end(How.RST)

async def main():
    async with FakeServer(cut) as server, await anyio.connect_tcp("127.0.0.1", server.port) as client:
        await client.send(b"GET / HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
        try:
            await client.receive()
        except anyio.BrokenResourceError as error:
            print(type(error.__cause__).__name__)

anyio.run(main)
"""


def test_it_works_where_the_kernel_does_not_tell_what_was_acknowledged() -> None:
    """Windows has neither `fcntl` nor `termios`."""
    ran = subprocess.run([sys.executable, "-c", WITHOUT_FCNTL], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("ConnectionResetError\n", "")
