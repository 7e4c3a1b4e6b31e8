"""Our own client by TLS, as nearly all servers are reached: a connection serves one request after the other."""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import anyio
import httpx
import pytest
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener

from mcp_client_guard import GuardPolicy
from mcp_client_guard.testing import (
    FakeServer,
    Reply,
    Request,
    ScriptedMcp,
    http_response,
    json_response,
    tool_result,
)
from mcp_client_guard.transports import connections

from .hosts import LIMIT, STOPS_READING, plain_host

pytestmark = [pytest.mark.anyio, STOPS_READING]

PEM = Path(__file__).with_name("tls.pem")
"""A certificate that signs itself, for 127.0.0.1 and a hundred years, and its key; made by `openssl req -x509`."""

RECORD = 16_384
"""Bytes in the largest record of TLS."""


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "tls", lambda: ssl.create_default_context(cafile=str(PEM)))


@asynccontextmanager
async def by_tls(server: FakeServer) -> AsyncIterator[str]:
    """Its URL by TLS, which ends here."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(PEM)
    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = plain.extra(SocketAttribute.local_port)

    async def forward(source: ByteStream, target: ByteStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for part in source:
                await target.send(part)

    async def meet(secure: ByteStream) -> None:
        async with secure, await anyio.connect_tcp("127.0.0.1", server.port) as inner:
            async with anyio.create_task_group() as both:
                both.start_soon(forward, inner, secure)
                await forward(secure, inner)
                both.cancel_scope.cancel()

    listener = TLSListener(plain, context, standard_compatible=False)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, meet)
        yield f"https://127.0.0.1:{port}/mcp"
        tasks.cancel_scope.cancel()


async def test_one_connection_serves_one_call_after_the_other(trusted: None) -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server, by_tls(server) as url:
            async with plain_host(url) as host:
                for _ in range(5):
                    assert (await host.call()).text == "charge"
            assert server.connections <= 3, "one that listens, and one or two for notifications and calls"


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_large_request_is_written_while_the_answer_is_listened_for(trusted: None, refuses: bool) -> None:
    large = "x" * 20_000_000

    async def on_head(request: Request, reply: Reply) -> None:
        if refuses and int(request.header("content-length") or 0) > len(large):
            await reply.play(http_response(413, b"{}"), anyio.Event())

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp(), on_head=on_head) as server, by_tls(server) as url:
            async with plain_host(url) as host:
                for _ in range(2):
                    assert ("413" in (await host.call(data=large)).text) is refuses


async def test_a_server_that_nobody_vouches_for_is_not_spoken_to() -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server, by_tls(server) as url:
            async with plain_host(url, start=False, policy=GuardPolicy(max_attempts=1)) as host:
                refused = await host.request("initialize", {"protocolVersion": "2025-11-25"})
    assert not server.requests
    assert "certificate" in refused["error"]["message"]


@pytest.mark.parametrize("family", ["httpx", "httpx2"])
def test_what_is_trusted_is_what_the_clients_of_the_installed_sdk_trust(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a company's own authority the system knows, as httpx2 does, and certifi does not."""
    theirs = ssl.create_default_context()
    monkeypatch.setitem(sys.modules, "httpx2", SimpleNamespace(create_ssl_context=lambda: theirs))
    if family == "httpx":
        monkeypatch.delitem(sys.modules, "httpx2")
        monkeypatch.setattr(httpx, "create_ssl_context", lambda: theirs)
    connections.tls.cache_clear()
    try:
        assert connections.tls() is theirs
    finally:
        connections.tls.cache_clear()


async def test_what_is_written_behind_a_response_answers_no_other_request(trusted: None) -> None:
    """The response fills a TLS record: what is behind it is in the next, and not on the socket any more."""
    ran: list[str] = []

    async def call(call: Request, reply: Reply) -> None:
        ran.append(call.json["params"]["arguments"]["n"])
        stray = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        short = json_response(tool_result(call.rpc_id, ""))
        text = "x" * (RECORD - len(short) - 2)  # `Content-Length` has two digits more
        whole = json_response(tool_result(call.rpc_id, text))
        assert len(whole) == RECORD
        await reply.write(whole + stray)

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp(call=call)) as server, by_tls(server) as url:
            async with plain_host(url) as host:
                for n in range(5):
                    assert (await host.call(n=str(n))).text.startswith("xxx")
    assert ran == [*"01234"]
    assert len(server.sent("POST", "initialize")) == 1
