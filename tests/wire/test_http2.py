"""HTTP/2: a client of the caller's that offers it is refused; where it cannot be seen beforehand, it is logged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, StreamEnded, StreamReset

from mcp_client_guard import Guard
from mcp_client_guard.transports.http import Endpoint

from .hosts import LIMIT, STOPS_READING

pytestmark = [pytest.mark.anyio, STOPS_READING]

URL = "https://example.com/mcp"
REFUSED = r"http_client must speak HTTP/1\.1"


class Hidden(httpx.AsyncBaseTransport):
    """A transport of the caller's around httpx's own."""

    def __init__(self) -> None:
        self.below = httpx.AsyncHTTPTransport(http1=False, http2=True)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self.below.handle_async_request(request)

    async def aclose(self) -> None:
        await self.below.aclose()


@asynccontextmanager
async def http2_server() -> AsyncIterator[tuple[str, list[Event]]]:
    """Answers each request with 200 and a body that does not end. Yields its URL, and what it has seen."""
    seen: list[Event] = []

    async def serve(stream: SocketStream) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        async with stream:
            await stream.send(connection.data_to_send())
            async for data in stream:
                for event in connection.receive_data(data):
                    seen.append(event)
                    if isinstance(event, StreamEnded):
                        connection.send_headers(event.stream_id, [(":status", "200")])
                await stream.send(connection.data_to_send())

    with anyio.fail_after(LIMIT):
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, serve)
                yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp", seen
                tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "options",
    [
        {"http2": True},
        {"http2": True, "proxy": "http://127.0.0.1:9"},
        {"mounts": {"https://": httpx.AsyncHTTPTransport(http2=True)}},
    ],
    ids=["its own", "that of a proxy", "a mounted one"],
)
async def test_a_client_whose_transport_offers_http2_is_refused(options: dict[str, Any]) -> None:
    async with httpx.AsyncClient(**options) as client:
        with pytest.raises(ValueError, match=REFUSED):
            Guard(URL, http_client=client)


async def test_a_client_that_offers_http2_to_others_only_is_not() -> None:
    async with httpx.AsyncClient(mounts={"https://other": httpx.AsyncHTTPTransport(http2=True)}) as client:
        assert Guard(URL, http_client=client).state == "closed"


async def test_a_transport_that_hides_it_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with http2_server() as (url, _), httpx.AsyncClient(transport=Hidden()) as client:
        endpoint = Endpoint(client, Guard(url, http_client=client).url)
        for _ in range(2):
            async with endpoint.request("POST", {}, b"{}") as answer:
                assert answer.status == 200
    told = [record.message for record in caplog.records if record.name == "mcp_client_guard"]
    assert len(told) == 1
    assert told[0].startswith("the HTTP client uses HTTP/2")


async def test_why_so_a_stream_that_is_closed_stays_open_at_the_server() -> None:
    """Once httpcore sends RST_STREAM, and leaves a connection that has died, there is no reason to refuse it."""
    async with http2_server() as (url, seen), httpx.AsyncClient(transport=Hidden()) as client:
        endpoint = Endpoint(client, url)
        for _ in range(2):
            async with endpoint.request("POST", {}, b"{}"):
                pass
    assert sum(isinstance(event, StreamEnded) for event in seen) == 2, "on one connection, and so in their order"
    assert not any(isinstance(event, StreamReset) for event in seen)
