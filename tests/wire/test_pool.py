"""Our own client, on the wire: what a server may ask of any client, it gets."""

from __future__ import annotations

import gzip
import json

import anyio
import httpx
import pytest

from mcp_client_guard.testing import (
    FakeServer,
    Reply,
    Request,
    ScriptedMcp,
    http_response,
    json_response,
    tool_result,
)
from mcp_client_guard.transports import http, pool

from .hosts import LIMIT, Answer, plain_host, plainly

pytestmark = pytest.mark.anyio


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


async def test_a_compressed_answer_is_read() -> None:
    async def call(call: Request, reply: Reply) -> None:
        body = gzip.compress(json.dumps(tool_result(call.rpc_id, "done")).encode())
        fields = {"content-type": "application/json", "content-encoding": "gzip"}
        await reply.play(http_response(body=body, headers=fields))

    async with plainly(ScriptedMcp(call=call)) as (_, host):
        assert await host.call() == Answer("done")


async def test_headers_of_the_users_take_the_place_of_our_own() -> None:
    async with plainly(ScriptedMcp(), headers={"User-Agent": "mine", "x-who": "Ünal"}) as (server, host):
        await host.call()
    assert {r.header("user-agent") for r in server.requests} == {"mine"}


async def test_a_request_goes_out_in_one_piece() -> None:
    """Two packets would wake the server twice."""
    at_head: list[tuple[int, bool]] = []

    async def on_head(request: Request, reply: Reply) -> None:
        whole = len(request.body) == int(request.header("content-length") or 0)
        at_head.append((request.serial, whole))

    async with plainly(ScriptedMcp(), on_head=on_head) as (server, host):
        await host.call()
    assert len(at_head) == len(server.requests)
    assert all(whole for _, whole in at_head)


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
