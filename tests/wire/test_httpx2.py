"""A caller's `httpx2.AsyncClient`, which has the shape of `httpx`'s and shares no class with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import httpx2
import pytest

from mcp_client_guard import Guard
from mcp_client_guard.testing import FakeServer, How, Reply, Request, ScriptedMcp, tool_result

from .hosts import (
    LIMIT,
    STOPS_READING,
    Answer,
    Playing,
    Streams,
    answer,
    events,
    note,
    plain_host,
    prime,
    progress,
    refuse,
    resumed_after,
    run_together,
    steps,
)
from .test_pool import KEEPALIVE, option_of, refusing

pytestmark = [pytest.mark.anyio, STOPS_READING]


async def test_calls_resumes_and_the_standalone_stream_work(playing: Playing) -> None:
    mcp = Streams(
        events(prime("p0", 1), progress(1, "é1"), end=How.RST),
        events(progress(1, "é1"), answer(id="e2")),
        standalone=events(note("a"), end=How.STALL),
    )
    async with httpx2.AsyncClient(headers={"x-mine": "1"}) as client:
        async with playing(mcp, http_client=client) as (server, host):
            assert await host.call() == Answer("done")
            await host.until(lambda: host.heard)
            assert host.grades == ["proven"]
            assert resumed_after(server) == ["p0"]
        assert not client.is_closed
    assert {r.header("x-mine") for r in server.requests} == {"1"}
    assert server.sent("DELETE")


def test_its_url_is_taken_and_its_base_url_goes_before_a_relative_one() -> None:
    client = httpx2.AsyncClient(base_url="http://x/v1")
    assert Guard(httpx2.URL("http://x/mcp")).url == "http://x/mcp"
    for url in ("/mcp", httpx2.URL("/mcp")):
        assert Guard(url, http_client=client).url == str(client.build_request("POST", url).url)


class UntoldElsewhere(httpx2.AsyncHTTPTransport):
    """Tells nothing of what it sends, and tries another server, which is down."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.extensions.pop("trace", None)
        try:
            return await super().handle_async_request(request)
        except httpx2.ReadError:
            raise httpx2.ConnectError("down") from ConnectionRefusedError()


class Signs(httpx2.AsyncHTTPTransport):
    """Sends a copy, and another one elsewhere where that fails."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        copy = httpx2.Request(request.method, request.url, headers=request.headers, content=request.content)
        try:
            return await super().handle_async_request(copy)
        except httpx2.ReadError:
            copy.url = httpx2.URL("http://127.0.0.1:1")
            return await super().handle_async_request(copy)


@pytest.mark.parametrize("transport", [UntoldElsewhere, Signs])
async def test_a_transport_of_the_callers_is_not_believed_that_no_connection_was_made(
    playing: Playing, transport: Callable[[], Any]
) -> None:
    async with httpx2.AsyncClient(transport=transport()) as client:
        async with playing(Streams(steps(How.RST)), http_client=client) as (_, host):
            assert (await host.call()).doubt is not None


async def test_a_call_for_which_it_can_make_no_connection_is_sent_again(playing: Playing) -> None:
    tried: list[str] = []

    async def hook(request: httpx2.Request) -> None:
        if b"tools/call" in request.content:
            tried.append(request.method)
            if len(tried) == 1:
                request.url = httpx2.URL("http://127.0.0.1:1")

    async with httpx2.AsyncClient(event_hooks={"request": [hook]}) as client:
        async with playing(Streams(events(answer())), http_client=client) as (_, host):
            assert await host.call() == Answer("done")


@pytest.mark.parametrize("how", [How.RST, How.FIN])
async def test_its_errors_are_known_for_what_they_are(
    playing: Playing, how: How, caplog: pytest.LogCaptureFixture
) -> None:
    mcp = Streams(steps(how))
    async with httpx2.AsyncClient() as client:
        async with playing(mcp, http_client=client, policy={"max_attempts": 1}) as (server, host):
            assert (await host.call()).doubt is not None
            server.refuse()
            server.drop_all()
            assert (await host.call(n=2)).data["by"] == "wire", "nothing was written: it says so itself"
    assert mcp.executed == ["charge"]
    assert "unexpected" not in caplog.text


async def test_its_timeouts_do_not_end_a_long_call(playing: Playing) -> None:
    async def slow(call: Request, reply: Reply) -> None:
        await anyio.sleep(0.15)
        await reply.json(tool_result(call.rpc_id, "done"))

    async with httpx2.AsyncClient(timeout=0.05) as client:
        async with playing(Streams(slow), http_client=client) as (_, host):
            assert await host.call() == Answer("done")


async def test_its_connection_limit_is_kept_to(playing: Playing) -> None:
    async def slow(call: Request, reply: Reply) -> None:
        await anyio.sleep(0.02)
        await reply.json(tool_result(call.rpc_id, "done"))

    limits = httpx2.Limits(max_connections=8)
    async with httpx2.AsyncClient(limits=limits, timeout=httpx2.Timeout(5, pool=0.05)) as client:
        async with playing(Streams(slow), http_client=client) as (_, host):
            assert await run_together(*[host.call] * 20) == [Answer("done")] * 20


@pytest.mark.parametrize("follow", [True, False])
async def test_redirects_are_followed_within_the_origin_only(playing: Playing, follow: bool) -> None:
    class Behind(Streams):
        async def __call__(self, request: Request, reply: Reply) -> None:
            if request.target == "/mcp":
                await reply.status(307, location="/mcp/")
            else:
                await super().__call__(request, reply)

    async with FakeServer(ScriptedMcp()) as other, httpx2.AsyncClient(follow_redirects=follow) as client:
        mcp = Behind(events(answer()))
        async with playing(mcp, http_client=client) as (_, host):
            assert await host.call() == Answer("done")
            mcp.first = refuse(307, location=other.url)
            assert (await host.call()).is_error
        assert other.requests == []


async def test_the_kernel_looks_for_dead_peers_on_its_connections() -> None:
    async with FakeServer(refusing) as server, httpx2.AsyncClient() as client:
        assert await option_of(client, server.url, ours=False, **KEEPALIVE) == 1


async def test_a_hook_that_fails_is_an_answer(playing: Playing) -> None:
    failing: list[bool] = []

    async def hook(request: Any) -> None:
        if failing:
            raise RuntimeError("ours")

    async with httpx2.AsyncClient(event_hooks={"request": [hook]}) as client:
        async with playing(Streams(events(answer())), http_client=client, policy={"max_attempts": 1}) as (_, host):
            assert await host.call() == Answer("done")
            failing.append(True)
            assert (await host.call(n=2)).is_error
            failing.clear()
            assert await host.call(n=3) == Answer("done")


async def test_a_login_that_fails_and_a_header_that_cannot_be_sent_put_no_call_in_doubt(playing: Playing) -> None:
    class Login(httpx2.Auth):
        fails = False

        def auth_flow(self, request: httpx2.Request) -> Any:
            response = yield request
            if response.status_code == 401 and self.fails:
                raise RuntimeError("no login")

    auth, mcp = Login(), Streams(events(answer()))
    async with httpx2.AsyncClient(auth=auth) as client:
        async with playing(mcp, http_client=client) as (_, host):
            assert await host.call(n=1) == Answer("done")
            auth.fails, mcp.first = True, refuse(401)
            assert (await host.call(n=2)).data["http_status"] == 401
            mcp.first = events(answer())
            client.headers["x-token"] = "secret\n"
            assert (await host.call(n=3)).data["reason"] == "a header cannot be sent (x-token)"


async def test_a_refusal_says_nothing_of_the_copy_that_a_login_has_sent_since(playing: Playing) -> None:
    class Copying(httpx2.Auth):
        def auth_flow(self, request: httpx2.Request) -> Any:
            response = yield request
            if response.status_code == 401:
                headers = {**request.headers, "authorization": "token"}
                yield httpx2.Request(request.method, request.url, headers=headers, content=request.content)
                raise RuntimeError("no login")

    async def locked(request: Request, reply: Reply) -> None:
        await (events(answer()) if request.header("authorization") else refuse(401))(request, reply)

    async with httpx2.AsyncClient(auth=Copying()) as client:
        async with playing(Streams(locked), http_client=client) as (_, host):
            assert (await host.call()).doubt is not None


async def test_a_refusal_of_which_it_makes_an_error_is_still_an_answer(playing: Playing) -> None:
    async def raise_for_status(response: httpx2.Response) -> None:
        response.raise_for_status()

    mcp = Streams(events(answer()))
    async with httpx2.AsyncClient(event_hooks={"response": [raise_for_status]}) as client:
        async with playing(mcp, http_client=client) as (server, host):
            assert await host.call(n=1) == Answer("done")
            old, mcp.session = mcp.session, "session-B"

            async def gone(request: Request, reply: Reply) -> None:
                await (refuse(404) if request.session_id == old else events(answer()))(request, reply)

            mcp.first = gone
            assert await host.call(n=2) == Answer("done")
            assert len(server.sent("POST", "initialize")) == 2


async def test_once_it_is_closed_nothing_was_sent_and_it_is_named() -> None:
    client = httpx2.AsyncClient()
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server, plain_host(server.url, http_client=client) as host:
            await server.wait_for(lambda request: request.method == "GET")
            await client.aclose()
            assert (await host.call()).data["reason"] == "the HTTP client is closed"


async def test_one_that_offers_http2_is_refused() -> None:
    async with httpx2.AsyncClient(http2=True) as client:
        with pytest.raises(ValueError, match=r"http_client must speak HTTP/1\.1"):
            Guard("https://example.com/mcp", http_client=client)
