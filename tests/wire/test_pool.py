"""Our own client, on the wire: what a server may ask of any client, it gets."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio
import httpcore
import httpx
import pytest

from mcp_client_guard.testing import (
    END_OF_CHUNKS,
    FakeServer,
    Handler,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    http_response,
    json_response,
    notification,
    sse_event,
    sse_head,
    tool_result,
)
from mcp_client_guard.transports import connections, http, pool

from .hosts import LIMIT, ON_ALL_LOOPS, STOPS_READING, Answer, plain_host, plainly

pytestmark = [pytest.mark.anyio, ON_ALL_LOOPS, STOPS_READING]


Client = Callable[[], AbstractAsyncContextManager[Any]]
CLIENTS = [pytest.param(nullcontext, id="own"), pytest.param(httpx.AsyncClient, id="httpx")]


async def test_a_cookie_is_sent_back_to_the_server_that_set_it() -> None:
    """Load balancers keep a session on one server by it."""

    async def call(call: Request, reply: Reply) -> None:
        await reply.play(json_response(tool_result(call.rpc_id, "done"), headers={"set-cookie": "node=7; Path=/"}))

    async with plainly(ScriptedMcp(call=call)) as (server, host):
        assert await host.call() == Answer("done")
        assert await host.call() == Answer("done")
    calls = [r.header("cookie") for r in server.requests if r.method == "POST"]
    assert calls[-2:] == [None, "node=7"]


async def test_a_cookie_of_another_path_is_kept_back() -> None:
    async def call(call: Request, reply: Reply) -> None:
        await reply.play(
            json_response(tool_result(call.rpc_id, "done"), headers={"set-cookie": "node=7; Path=/elsewhere"})
        )

    async with plainly(ScriptedMcp(call=call)) as (server, host):
        await host.call()
        await host.call()
    assert {r.header("cookie") for r in server.requests} == {None}


async def test_the_user_s_own_cookies_stay_beside_those_that_the_server_sets() -> None:
    """A login by a cookie, behind a balancer that sets one: without the login each further call is refused."""

    async def call(call: Request, reply: Reply) -> None:
        headers = {"set-cookie": f"{call.json['params']['name']}=the server's; Path=/"}
        await reply.play(json_response(tool_result(call.rpc_id, "done"), headers=headers))

    async with FakeServer(ScriptedMcp(call=call)) as server:
        async with plain_host(server.url, headers={"cookie": "login=mine; lang=en;"}) as host:
            for name in ("node", "login", "other"):
                assert await host.call(name) == Answer("done")
    calls = [r.header("cookie") for r in server.sent("POST", "tools/call")]
    own = "login=mine; lang=en;"
    assert calls == [own, f"{own} node=the server's", f"{own} node=the server's"]


def setting(value: bytes) -> Handler:
    """Answers calls with this value of a cookie."""

    async def call(call: Request, reply: Reply) -> None:
        headers = {"set-cookie": "node=VALUE; Path=/"}
        answer = json_response(tool_result(call.rpc_id, "done"), headers=headers)
        await reply.play(answer.replace(b"VALUE", value))

    return call


@pytest.mark.parametrize("value", ["voilà".encode(), "José".encode("latin-1")])
async def test_a_cookie_is_sent_back_in_the_bytes_in_which_it_came(value: bytes) -> None:
    async with plainly(ScriptedMcp(call=setting(value))) as (server, host):
        assert await host.call() == Answer("done")
        assert await host.call() == Answer("done")
    assert str(server.requests[-1].header("cookie")).encode("latin-1") == b"node=" + value


async def test_a_cookie_that_a_caller_s_client_cannot_send_is_named_as_what_may_be_wrong() -> None:
    async with httpx.AsyncClient() as mine:
        async with plainly(ScriptedMcp(call=setting("José".encode())), http_client=mine) as (_, host):
            assert await host.call() == Answer("done")
            refused = await host.call()
    assert refused.data["outcome"] == "not_executed"
    assert refused.text.endswith("a header cannot be encoded, perhaps a cookie that the server has set")


async def test_a_compressed_answer_is_read() -> None:
    async def call(call: Request, reply: Reply) -> None:
        body = gzip.compress(json.dumps(tool_result(call.rpc_id, "done")).encode())
        fields = {"content-type": "application/json", "content-encoding": "gzip"}
        await reply.play(http_response(body=body, headers=fields))

    async with plainly(ScriptedMcp(call=call)) as (_, host):
        assert await host.call() == Answer("done")


MANY_MEMBERS = {"content-type": "application/json", "content-encoding": "gzip"}


@pytest.mark.parametrize("client", CLIENTS)
async def test_every_member_of_a_compressed_body_is_read(client: Client) -> None:
    """A server that ends the coder at each flush writes one for each event."""

    async def standalone(request: Request, reply: Reply) -> None:
        events = [sse_event(notification("notifications/message", level="info", data=n)) for n in "abc"]
        head = sse_head(headers={"content-encoding": "gzip"})
        one, two, three = map(gzip.compress, events)
        await reply.play(
            head, chunk(one + b"\0\0" + two[:1]), chunk(two[1:9]), chunk(two[9:]), chunk(three), How.STALL
        )

    async def call(call: Request, reply: Reply) -> None:
        text = json.dumps(tool_result(call.rpc_id, "done")).encode()
        await reply.play(
            http_response(body=gzip.compress(text[:9]) + gzip.compress(text[9:]), headers=MANY_MEMBERS)
        )

    async with client() as mine:
        async with plainly(ScriptedMcp(standalone=standalone, call=call), http_client=mine) as (_, host):
            await host.until(lambda: len(host.heard) == 3)
            assert await host.call() == Answer("done")


NO_MEMBER = {
    "line end": b"\r\n",
    "padded line end": b"\0\r\n",
    "words": b"more",
    "half a beginning": b"\x1f",
    "almost a beginning": b"\x1f\r\x8b",
}


@pytest.mark.parametrize("framing", ["JSON", "events"])
@pytest.mark.parametrize("behind", NO_MEMBER.values(), ids=NO_MEMBER)
@pytest.mark.parametrize("client", CLIENTS)
async def test_what_is_behind_a_compressed_body_is_not_read(client: Client, behind: bytes, framing: str) -> None:
    """A script that writes a line end; browsers, curl and httpx do not read it, either."""

    async def call(call: Request, reply: Reply) -> None:
        answer = tool_result(call.rpc_id, "done")
        if framing == "JSON":
            body = gzip.compress(json.dumps(answer).encode()) + behind
            await reply.play(http_response(body=body, headers=MANY_MEMBERS))
        else:
            head = sse_head(headers={"content-encoding": "gzip"})
            await reply.play(head, chunk(gzip.compress(sse_event(answer)) + behind), END_OF_CHUNKS)

    async with client() as mine:
        async with plainly(ScriptedMcp(call=call), http_client=mine) as (_, host):
            assert await host.call() == Answer("done")


@pytest.mark.parametrize("between", [b"\n", b"\0\r\n"])
@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_line_end_between_two_members_is_none_of_the_body(between: bytes, pieces: int) -> None:
    """A server that writes one for each event may write one for each line end, too."""

    async def standalone(request: Request, reply: Reply) -> None:
        one, two = (sse_event(notification("notifications/message", level="info", data=n)) for n in "ab")
        body = between + gzip.compress(two)
        head = sse_head(headers={"content-encoding": "gzip"})
        parts = [body] if pieces == 1 else [body[:1], body[1:]]
        await reply.play(head, chunk(gzip.compress(one)), *map(chunk, parts), How.STALL)

    async with plainly(ScriptedMcp(standalone=standalone)) as (_, host):
        await host.until(lambda: len(host.heard) == 2)


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_body_that_goes_on_behind_what_is_no_member_is_a_lost_connection(pieces: int) -> None:
    """Else the rest of a living stream would vanish without a word."""

    async def call(call: Request, reply: Reply) -> None:
        head = sse_head(headers={"content-encoding": "gzip"})
        progress, plain = gzip.compress(b": x\n\n"), b": ping\n\n"
        answer = gzip.compress(sse_event(tool_result(call.rpc_id, "done")))
        parts = [plain + answer] if pieces == 1 else [plain, answer]
        await reply.play(head, chunk(progress), *map(chunk, parts), How.STALL)

    async with plainly(ScriptedMcp(call=call)) as (_, host):
        assert (await host.call()).doubt


BROKEN = {
    "cut": lambda member: member[:-12],
    "corrupt": lambda member: member[:-8] + b"????????",
    "none": lambda member: b"?" + member,
    "corrupt second": lambda member: gzip.compress(b" ") + member[:2] + b"?" + member[3:],
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_compressed_answer_that_cannot_be_read_is_a_lost_connection(
    client: Client, broken: Callable[[bytes], bytes]
) -> None:
    async def call(call: Request, reply: Reply) -> None:
        member = gzip.compress(json.dumps(tool_result(call.rpc_id, "done")).encode())
        await reply.play(http_response(body=broken(member), headers=MANY_MEMBERS))

    async with client() as mine:
        async with plainly(ScriptedMcp(call=call), http_client=mine) as (_, host):
            assert (await host.call()).doubt is not None


async def test_what_came_before_a_corrupt_member_is_read() -> None:
    async def standalone(request: Request, reply: Reply) -> None:
        event = sse_event(notification("notifications/message", level="info", data="a"))
        head = sse_head(headers={"content-encoding": "gzip"})
        await reply.play(head, chunk(gzip.compress(event) + b"\x1f\x8bcorrupt"), How.STALL)

    async with plainly(ScriptedMcp(standalone=standalone)) as (_, host):
        await host.until(lambda: "notifications/message" in host.heard)


STRAY = b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n"
BEHIND = {
    "a body": b"OK",
    "a chunk": b"0\r\n\r\n",
    "session gone": STRAY % b"404 Not Found",
    "login": STRAY % b"401 Unauthorized",
}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("client", CLIENTS)
async def test_what_is_written_behind_a_response_answers_no_other_request(client: Client, behind: bytes) -> None:
    ran: list[str] = []

    async def call(call: Request, reply: Reply) -> None:
        ran.append(call.json["params"]["arguments"]["n"])
        await reply.write(json_response(tool_result(call.rpc_id, "done")) + behind)

    async def notify(request: Request, reply: Reply) -> None:
        await reply.write(STRAY % b"202 Accepted" + behind)

    async with client() as mine:
        async with plainly(ScriptedMcp(call=call, notify=notify), http_client=mine) as (server, host):
            for n in range(5):
                await host.notify("notifications/roots/list_changed")
                assert await host.call(n=str(n)) == Answer("done")
    assert ran == [*"01234"]
    assert len(server.sent("POST", "initialize")) == 1


async def test_what_is_behind_a_response_in_a_buffer_of_anyios_answers_no_other_request() -> None:
    """httpcore asks for 64 KiB; anyio may have received more."""

    async def call(call: Request, reply: Reply) -> None:
        text = "done"
        size = len(json_response(tool_result(call.rpc_id, text)))
        text += "x" * (65536 - size - 4)  # `Content-Length` has four digits more
        await reply.write(json_response(tool_result(call.rpc_id, text)) + STRAY % b"404 Not Found")

    async with plainly(ScriptedMcp(call=call)) as (server, host):
        for _ in range(5):
            assert (await host.call()).text.startswith("done")
    assert len(server.sent("POST", "initialize")) == 1


async def test_headers_of_the_users_take_the_place_of_our_own() -> None:
    async with plainly(ScriptedMcp(), headers={"User-Agent": "mine", "x-who": "Ünal"}) as (server, host):
        await host.call()
    assert {r.header("user-agent") for r in server.requests} == {"mine"}


async def test_a_password_in_the_url_is_sent_as_basic_auth() -> None:
    async with FakeServer(ScriptedMcp()) as server:
        url = server.url.replace("://", "://user:secret@")
        with anyio.fail_after(LIMIT):
            async with plain_host(url) as host:
                await host.call()
    assert all(str(r.header("authorization")).startswith("Basic ") for r in server.requests)


async def test_proxies_are_left_to_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http.default_client("http://x/mcp", {}) as own:
        assert isinstance(own, pool.PoolClient)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with http.default_client("http://x/mcp", {}) as proxied:
        assert isinstance(proxied, httpx.AsyncClient)


async def test_exceptions_from_proxies_are_no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost")
    async with http.default_client("http://x/mcp", {}) as own:
        assert isinstance(own, pool.PoolClient)


async def option_of(client: Any, url: str, *, ours: bool, level: int, name: int) -> int:
    """Of the socket by which this client answers a request of the guard's."""
    async with http.Endpoint(client, url, tells_when_begun=ours).request("POST", {}, b"{}") as answer:
        sock = answer.response.extensions["network_stream"].get_extra_info("socket")
        value: int = sock.getsockopt(level, name)
        return value


async def refusing(request: Request, reply: Reply) -> None:
    await reply.status(404)


KEEPALIVE = {"level": socket.SOL_SOCKET, "name": socket.SO_KEEPALIVE}


@pytest.mark.parametrize("way", ["straight", "password", "proxy"])
@pytest.mark.parametrize("whose", ["ours", "the caller's"])
async def test_the_kernel_looks_for_dead_peers_on_every_connection(
    whose: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else finds them on a stream of 2026-07-28."""
    async with FakeServer(refusing) as server:
        if way == "proxy":
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
        url = {
            "straight": server.url,
            "password": server.url.replace("://", "://user:secret@"),
            "proxy": "http://nowhere.example/mcp",
        }[way]
        async with http.default_client(url, {}) if whose == "ours" else httpx.AsyncClient() as client:
            assert await option_of(client, url, ours=whose == "ours", **KEEPALIVE) == 1


async def test_a_pace_that_the_caller_has_chosen_is_kept_to() -> None:
    chosen = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 7)]
    async with FakeServer(refusing) as server:
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(socket_options=chosen)) as client:
            pace = {"level": socket.IPPROTO_TCP, "name": socket.TCP_KEEPINTVL}
            assert await option_of(client, server.url, ours=False, **pace) == 7


CROWD = 50


async def crowd(client: pool.PoolClient, url: str, size: int = CROWD) -> list[int]:
    """The statuses that so many requests at once draw; 0 for one that could not be sent."""
    statuses: list[int] = []

    async def ask() -> None:
        try:
            async with http.Endpoint(client, url, tells_when_begun=True).request("POST", {}, b"{}") as answer:
                assert not [chunk async for chunk in answer.chunks()]
                statuses.append(answer.status)
        except pool.ERRORS:
            statuses.append(0)

    async with anyio.create_task_group() as tasks:
        for _ in range(size):
            tasks.start_soon(ask)
    return statuses


async def test_what_only_a_crowd_needed_is_closed_after_it() -> None:
    """A connection that waits for a request which may never come is the server's to keep, too."""

    async def answer_all(request: Request, reply: Reply) -> None:
        await server.until(lambda: len(server.requests) >= CROWD)
        await reply.status(202)

    async with FakeServer(answer_all) as server, pool.PoolClient({}) as client:
        with anyio.fail_after(LIMIT):
            assert await crowd(client, server.url) == [202] * CROWD
            assert server.connections == CROWD
            await server.until(lambda: server.open_connections <= 20)


async def test_a_crowd_that_is_answered_at_once_shares_a_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """To connect takes longer than such an answer. Who leaves the line holds up nobody behind."""
    monkeypatch.setattr(connections, "_PATIENCE", LIMIT)
    leaves = anyio.CancelScope()

    async def answer(request: Request, reply: Reply) -> None:
        if len(server.requests) == 1:
            await server.until(lambda: len(server.requests) >= 10)
            leaves.cancel()
        await reply.status(202)

    async def leaving() -> None:
        with leaves:
            await crowd(client, server.url, 1)

    async with FakeServer(answer) as server, pool.PoolClient({}) as client:
        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(crowd, client, server.url, 1)
                tasks.start_soon(leaving)
                assert await crowd(client, server.url) == [202] * CROWD
    assert server.connections == 10


async def test_beside_a_crowd_one_connection_serves_one_request_after_the_other() -> None:
    waiting = anyio.Event()

    async def answer(request: Request, reply: Reply) -> None:
        if len(server.requests) <= 20:
            await waiting.wait()
        await reply.status(202)

    async with FakeServer(answer) as server, pool.PoolClient({}) as client:
        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(crowd, client, server.url, 20)
                await server.until(lambda: len(server.requests) == 20)
                for _ in range(10):
                    assert await crowd(client, server.url, 1) == [202]
                opened = server.connections
                waiting.set()
    assert opened < 30, "one or, where it takes its time, some more"


async def test_a_crowd_that_is_refused_leaves_nothing_behind() -> None:
    async with FakeServer(refusing) as server, pool.PoolClient({}) as client:
        server.refuse()
        for _ in range(2):
            assert await crowd(client, server.url) == [0] * CROWD
        assert not any(each._idle or each._in_use or each._waiting for each in client._connections.values())
        server.listen_again()
        with anyio.fail_after(LIMIT):
            assert await crowd(client, server.url) == [404] * CROWD


async def answered(client: pool.PoolClient, url: str) -> http.Answer:
    """An answer that was read and closed."""
    async with http.Endpoint(client, url, tells_when_begun=True).request("POST", {}, b"{}") as answer:
        assert not [chunk async for chunk in answer.chunks()]
    return answer


async def test_a_response_that_is_closed_again_does_not_touch_its_connection() -> None:
    """That waits for the next request, once; or it has it already."""
    again: list[http.Answer] = []

    async def answer(request: Request, reply: Reply) -> None:
        for closed in again:
            await closed.response.aclose()
        await reply.status(202)

    async with FakeServer(answer) as server, pool.PoolClient({}) as client:
        first = await answered(client, server.url)
        await first.response.aclose()
        assert [len(each._idle) for each in client._connections.values()] == [1]
        again.append(first)
        assert (await answered(client, server.url)).status == 202
        assert server.connections == 1


async def test_a_connection_that_cannot_be_closed_well_is_no_matter_of_a_request_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it keep the others open."""
    really_close = httpcore.AsyncHTTP11Connection.aclose

    async def close_badly(connection: httpcore.AsyncHTTP11Connection) -> None:
        await really_close(connection)
        raise OSError("a socket that was lost long ago")

    async def answer(request: Request, reply: Reply) -> None:
        await server.until(lambda: len(server.requests) >= 3)
        await reply.status(202)

    async with FakeServer(answer) as server, pool.PoolClient({}) as client:
        with anyio.fail_after(LIMIT):
            await crowd(client, server.url, 3)
            monkeypatch.setattr(httpcore.AsyncHTTP11Connection, "aclose", close_badly)
            monkeypatch.setattr(connections, "_MOST_IDLE", 0)
            assert (await answered(client, server.url)).status == 202
            await server.until(lambda: not server.open_connections)
