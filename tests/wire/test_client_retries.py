"""What a client or a hook of the user's does by itself: a transport that tries again, one connection, threads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import anyio.to_thread
import httpx
import pytest

from mcp_client_guard import Guard, GuardPolicy, InDoubtCall, Reconciler
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED
from mcp_client_guard.testing import FakeServer, Reply, Request

from .hosts import LIMIT, Answer, PlainHost
from .test_reconciling import Cutting, connected

pytestmark = pytest.mark.anyio


class FailOver(httpx.AsyncHTTPTransport):
    """Tries a request twice, whatever became of it."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except httpx.TransportError:
            return await super().handle_async_request(request)


class Elsewhere(httpx.AsyncHTTPTransport):
    """Once the first attempt has failed, the second is refused a connection."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except httpx.ReadError:
            raise httpx.ConnectError("the other one is down") from None


class TokenLater(httpx.Auth):
    """Draws a 401 first; the request for the token may fail."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def auth_flow(self, request: httpx.Request) -> Any:
        response = yield request
        if response.status_code == 401:
            if self.fails:
                raise httpx.ConnectError("the token endpoint is down")
            request.headers["authorization"] = "token"
            yield request


class Locked(Cutting):
    """Calls need a token."""

    async def call(self, request: Request, reply: Reply) -> None:
        if request.headers.get("authorization"):
            await super().call(request, reply)
        else:
            await reply.status(401)


@asynccontextmanager
async def through(
    client: httpx.AsyncClient, mcp: Cutting, policy: GuardPolicy | None = None
) -> AsyncIterator[tuple[Guard, PlainHost]]:
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server, client:
            guard = Guard(server.url, http_client=client, policy=policy)
            async with connected(guard) as host:
                yield guard, host


@pytest.mark.parametrize("transport", [FailOver, Elsewhere])
async def test_a_call_that_was_read_runs_once_and_is_in_doubt(transport: Callable[[], Any]) -> None:
    mcp = Cutting()
    async with through(httpx.AsyncClient(transport=transport()), mcp) as (_, host):
        answer = await host.call()
    assert answer.doubt is not None
    assert len(mcp.ran) == 1


async def test_an_auth_flow_sends_a_request_again_that_was_refused() -> None:
    mcp = Locked(cuts=0)
    async with through(httpx.AsyncClient(auth=TokenLater()), mcp) as (_, host):
        assert await host.call() == Answer("charged 1")


async def test_a_refused_call_whose_token_cannot_be_had_has_not_run() -> None:
    mcp = Locked(cuts=0)
    client = httpx.AsyncClient(auth=TokenLater(fails=True))
    async with through(client, mcp, GuardPolicy(max_attempts=1)) as (_, host):
        answer = await host.call()
    assert (answer.code, answer.data["by"]) == (CODE_NOT_EXECUTED, "wire")


async def test_a_client_of_one_connection_cannot_carry_a_legacy_session() -> None:
    def guard(most: int, generation: Literal["auto", "legacy-sse"]) -> Guard:
        client = httpx.AsyncClient(limits=httpx.Limits(max_connections=most))
        return Guard("https://example.com/mcp", http_client=client, generation=generation)

    with pytest.raises(ValueError, match="one connection"):
        guard(1, "legacy-sse")
    guard(2, "legacy-sse")
    guard(1, "auto")


async def test_a_hook_in_a_thread_that_is_abandoned_does_not_hold_up_closing() -> None:
    """As docs/outcomes.md has it be written: threads cannot be stopped."""
    released = threading.Event()

    async def look_up(call: InDoubtCall, server: Reconciler) -> None:
        await anyio.to_thread.run_sync(released.wait, abandon_on_cancel=True)

    with anyio.fail_after(LIMIT):
        async with FakeServer(Cutting()) as server:
            guard = Guard(server.url, reconcile=look_up, policy=GuardPolicy(reconcile_timeout=0.05))
            async with connected(guard) as host:
                assert (await host.call()).doubt is not None
    released.set()
