"""What plays the seeds: two transports under one host, and servers that lie, or that lose their log meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import ClientSession, types

from mcp_client_guard import Discontinuity, GuardPolicy
from mcp_client_guard.testing import EventLogServer, Lie, Reply, Request, Session, SessionStore

from .hosts import LIMIT, Answer, SdkHost, in_doubt, resumed_after, sdk_host, the_one_in, unguarded_host

QUICK = GuardPolicy(witness_timeout=0.05)
FOREIGN = "refunded 900 cents"
"""The answer to a call of another client's."""


class Through:
    """One of the two transports."""

    def __init__(self, *, guarded: bool) -> None:
        self.guarded = guarded

    @asynccontextmanager
    async def host(self, server: Any) -> AsyncIterator[Any]:
        """A host on this transport, connected to a server."""
        opened = sdk_host if self.guarded else unguarded_host
        try:
            with anyio.fail_after(LIMIT):
                async with server, opened(server.url, policy=QUICK) as host:
                    yield host
        except Exception as error:
            raise the_one_in(error) from None


def lying(lie: Lie, retained: int = 1000) -> EventLogServer:
    store = None if lie is Lie.SHARED_ALLOCATOR else SessionStore(retained=retained)
    return EventLogServer(lie=lie, store=store)


def resumes(server: EventLogServer) -> list[str]:
    return resumed_after(server.http)


async def waits_for_ever(server: EventLogServer, host: Any, **arguments: Any) -> bool:
    """Whether a call hears nothing at all."""
    return await heard_by(server, host, **arguments) == []


async def heard_by(server: EventLogServer, host: Any, **arguments: Any) -> list[Answer]:
    """What a call has for an answer when the resume of its stream, and later calls, were answered.

    The server has no more to say to it then: there is nothing that it could be waiting for.
    """
    got: list[Answer] = []

    async def call() -> None:
        got.append(await host.call(**arguments))

    async with anyio.create_task_group() as tasks:
        ran, earlier = len(server.ledger), len(server.resumes)
        tasks.start_soon(call)
        # A resume of an earlier call may come late: this one has run first.
        await server.http.until(lambda: server.ledger[ran:] and server.resumes[earlier:])
        server.json_answers = True
        for _ in range(2):
            assert await host.call("progress", n=0) == Answer("0 steps")
        server.json_answers = False
        tasks.cancel_scope.cancel()
    return got


async def refused_by_an_honest_server(through: Through, server: EventLogServer) -> None:
    """The guard says what is known, and sends no repeat. The SDK's transport says nothing (1.x) or "reconnection
    attempts were exhausted" (2.x); and a host that makes the call again has it run twice."""
    call = {"tool": "charge", "steps": 8, "cut_after": 2}
    async with through.host(server) as host:
        if through.guarded:
            assert in_doubt(await host.call(**call))
            assert host.grades == ["broken"]
            assert len(host.of(Discontinuity)) == 1
            assert len(resumes(server)) == 2, "of the overlap, and of the cursor itself"
            assert in_doubt(await host.call(**call))
        else:
            assert all(a.is_error and a.doubt is None for a in await heard_by(server, host, **call))
            await heard_by(server, host, **call)
        assert executions(server) == (1 if through.guarded else 2)
        assert server.refused


def executions(server: EventLogServer, tool: str = "charge") -> int:
    return [e.tool for e in server.ledger].count(tool)


def while_away(server: EventLogServer, change: Callable[[Session, str], None]) -> EventLogServer:
    """Has something happen to the session's log before a stream is resumed for the first time."""

    async def handler(request: Request, reply: Reply) -> None:
        session = server.store.find(request.session_id, "http")
        if session is not None and request.last_event_id is not None:
            place = session.log.locate(request.last_event_id)
            if isinstance(place, tuple) and place[0] not in changed:
                changed.append(place[0])
                change(session, place[0])
        await server.answer(request, reply)

    changed: list[str] = []
    server.http.handler = handler
    return server


@asynccontextmanager
async def bridged_host(url: str, session_id: str) -> AsyncIterator[SdkHost]:
    """The SDK's own transport, in a session that another transport has opened."""
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    host = SdkHost()
    async with (
        create_mcp_http_client(headers={"mcp-session-id": session_id}) as http,
        streamable_http_client(url, http_client=http) as streams,
        ClientSession(streams[0], streams[1], message_handler=host.on_message) as host.session,
    ):
        yield host


async def resume_call(host: SdkHost, cursor: str, got: list[Any]) -> None:
    """What an SDK offers to those who kept a cursor."""
    from mcp.shared.message import ClientMessageMetadata

    params = types.CallToolRequestParams(name="charge", arguments={})
    request: Any = types.CallToolRequest(method="tools/call", params=params)
    if isinstance(types.ClientRequest, type):
        request = types.ClientRequest(request)
    kept = ClientMessageMetadata(resumption_token=cursor)
    got.append(await host.session.send_request(request, types.CallToolResult, metadata=kept))
