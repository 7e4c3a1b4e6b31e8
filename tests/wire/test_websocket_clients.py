"""Sockets under every client and host: whose credentials they use, whose pace, and what they tell nobody."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import httpx
import pytest

from mcp_client_guard import Disconnected, Discontinuity, Guard, MemoryStore, Upgraded, UpgradeRefused
from mcp_client_guard._connection import Connection
from mcp_client_guard._messages import plain_codec
from mcp_client_guard.testing import EventLogServer, notification

from .hosts import LIMIT, plain_host, sdk_host
from .sockets import heard, playing, standalone_of, told

pytestmark = pytest.mark.anyio


async def test_a_caller_s_client_opens_the_socket_with_its_own_credentials() -> None:
    async with httpx.AsyncClient(auth=("user", "secret"), headers={"x-mine": "1"}) as client:
        async with playing(http_client=client) as scene:
            scene.emit(1)
            await scene.upgraded()
            scene.emit(2)
            await scene.heard(1, 2)
            handshake = next(r for r in scene.server.http.requests if r.header("mcp-upgrade-ticket"))
            assert (handshake.header("authorization") or "").startswith("Basic ")
            assert handshake.header("x-mine") == "1"
            assert not scene.host.of(Disconnected)


async def raise_for_status(response: httpx.Response) -> None:
    response.raise_for_status()


async def read_what_is_no_stream(response: httpx.Response) -> None:
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        await response.aread()


@pytest.mark.parametrize("hook", [raise_for_status, read_what_is_no_stream])
async def test_a_client_whose_hook_closes_the_socket_keeps_the_event_stream(hook: Any) -> None:
    async with httpx.AsyncClient(event_hooks={"response": [hook]}) as client:
        async with playing(http_client=client) as scene:
            scene.emit(1)
            assert await scene.refused() == UpgradeRefused("the HTTP client leaves no socket open", final=True)
            await scene.back()
            scene.emit(2)
            await scene.heard(1, 2)
            assert not scene.host.of(Upgraded)
            assert not scene.host.of(Disconnected)


async def test_the_sdk_s_session_hears_what_the_socket_brings() -> None:
    with anyio.fail_after(LIMIT):
        async with EventLogServer() as server:
            async with sdk_host(server.url, websocket=True) as host:
                (session,) = server.store.sessions.values()
                stream = await standalone_of(session)
                session.append(stream, told(1))
                await host.until(lambda: host.of(Upgraded))
                session.append(stream, notification("notifications/tools/list_changed"))
                await host.until(lambda: "notifications/tools/list_changed" in host.heard)
                assert (await host.call("charge", cents=1)).text
                assert not host.of(Disconnected)


async def test_a_host_that_does_not_read_slows_the_socket_and_loses_nothing() -> None:
    """L9: also for longer than `max_idle`, and with pings on their way."""
    total = 3000
    server = EventLogServer()
    events: list[Any] = []
    with anyio.fail_after(LIMIT):
        async with server:
            guard = Guard(server.url, websocket=True, on_event=events.append)
            async with Connection(guard, plain_codec) as (read, write):
                params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}}
                await write.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
                assert "result" in await read.receive()
                await write.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
                await server.http.wait_for(lambda r: r.method == "GET")
                (session,) = server.store.sessions.values()
                session.log.retained = total + 10
                stream = await standalone_of(session)
                session.append(stream, big(0))
                while not any(isinstance(e, Upgraded) for e in events):
                    await anyio.wait_all_tasks_blocked()
                for number in range(1, total):
                    session.append(stream, big(number))
                await anyio.wait_all_tasks_blocked()  # the server's write among them
                assert 0 < session.log.last_sent(stream) < total, "the socket is full"
                got = [await read.receive() for _ in range(total)]
                assert [m["params"]["data"].split()[0] for m in got] == [str(n) for n in range(total)]
                assert not [e for e in events if isinstance(e, (Disconnected, Discontinuity))]


def big(number: int) -> Any:
    return notification("notifications/message", level="info", data=f"{number} " + "x" * 5000)


async def test_half_of_a_surrogate_pair_is_passed_on_as_it_is() -> None:
    async with playing() as scene:
        scene.emit(1)
        await scene.upgraded()
        scene.session.append(scene.stream, notification("notifications/message", level="info", data="\ud800"))
        await scene.host.until(lambda: "\ud800" in heard(scene.host))
        assert not scene.host.of(Disconnected)


async def test_neither_session_nor_ticket_nor_message_is_in_any_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with playing() as scene:
        scene.emit(1)
        await scene.upgraded()
        scene.emit(7_654_321)
        await scene.heard(1, 7_654_321)
        session_id = scene.session.session_id
        tickets = [r.header("mcp-upgrade-ticket") or "" for r in scene.server.http.requests]
        (ticket,) = [t for t in tickets if t]
        ours = ("mcp_client_guard", "websockets.client")
        said = [r.getMessage() for r in caplog.records if r.name.startswith(ours)]
        said += [repr(event) for event in scene.host.told]
        for text in said:
            assert session_id not in text
            assert ticket not in text
            assert "7654321" not in text


async def test_a_socket_s_events_are_where_the_next_process_goes_on_by_sse() -> None:
    store = MemoryStore()
    server = EventLogServer()
    with anyio.fail_after(LIMIT):
        async with server:
            async with plain_host(server.url, store=store, websocket=True, terminate_on_close=False) as host:
                (session,) = server.store.sessions.values()
                stream = await standalone_of(session)
                session.append(stream, told(1))
                await host.until(lambda: host.of(Upgraded))
                for number in (2, 3):
                    session.append(stream, told(number))
                await host.until(lambda: heard(host) == [1, 2, 3])
            session.append(stream, told(4))
            async with plain_host(server.url, store=store, websocket=True, terminate_on_close=False) as host:
                await host.until(lambda: host.of(Upgraded))
                await host.until(lambda: heard(host) == [4])
                assert {*host.grades} == {"proven"}
                assert not host.of(Discontinuity)
