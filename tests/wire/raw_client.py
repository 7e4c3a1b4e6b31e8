"""A client without any habits, for the kit's honest server: what it sends and what it gets is all there is."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from mcp_client_guard.testing import Event, EventLogServer, events_of

ACCEPT = {"accept": "application/json, text/event-stream"}


class Reading:
    """Event after event of one body."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.status, self.headers = answer.status_code, answer.headers
        self._pieces = answer.aiter_bytes()
        self._body = b""
        self._events: list[Event] = []
        self._read = 0

    async def next(self, count: int = 1) -> list[Event]:
        """So many events, or as many as come before the body ends or is cut."""
        until = self._read + count
        while len(self._events) < until and await self._more():
            self._events = list(events_of(self._body))
        events, self._read = self._events[self._read : until], min(until, len(self._events))
        return events

    async def rest(self) -> list[Event]:
        return await self.next(sys.maxsize)

    async def _more(self) -> bool:
        try:
            self._body += await self._pieces.__anext__()
        except (StopAsyncIteration, httpx.RemoteProtocolError, httpx.ReadError):
            return False
        return True


class Client:
    """A client without any habits, on one endpoint."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.http = http
        self.url = url
        self.session: dict[str, str] = {}
        self.sent = 0

    async def initialize(self, protocol: str = "2025-11-25") -> Client:
        params = {"protocolVersion": protocol, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = await self.post("initialize", params)
        assert answer.status_code == 200
        self.session = {"mcp-session-id": answer.headers["mcp-session-id"]}
        return self

    async def post(self, method: str, params: Any = None, **headers: str) -> httpx.Response:
        self.sent += 1
        body = {"jsonrpc": "2.0", "id": self.sent, "method": method, "params": params or {}}
        return await self.http.post(self.url, json=body, headers=self._headers(headers))

    async def call(self, tool: str, **arguments: Any) -> list[Event]:
        """The events of a call, up to its end or cut."""
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}}
        body = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params}
        async with self.http.stream("POST", self.url, json=body, headers=self._headers({})) as answer:
            return await Reading(answer).rest()

    @asynccontextmanager
    async def get(self, cursor: str | None = None) -> AsyncIterator[Reading]:
        resume = {} if cursor is None else {"last-event-id": cursor}
        async with self.http.stream("GET", self.url, headers=self._headers(resume)) as answer:
            yield Reading(answer)

    async def replay(self, cursor: str) -> list[Event]:
        async with self.get(cursor) as answer:
            assert (answer.status, answer.headers["mcp-resumed"]) == (200, "true")
            return await answer.rest()

    async def refusal(self, cursor: str) -> str:
        """The reason of an explicit refusal."""
        async with self.get(cursor) as answer:
            assert (answer.status, answer.headers["mcp-resumed"]) == (409, "false")
            data = json.loads(await answer.answer.aread())["error"]["data"]
            assert data["code"] == "resume_gap"
            reason: str = data["reason"]
            return reason

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        return {**ACCEPT, **self.session, **{name.replace("_", "-"): value for name, value in more.items()}}


@asynccontextmanager
async def legacy(server: EventLogServer, http: httpx.AsyncClient, **headers: str) -> AsyncIterator[Any]:
    """The stream behind its first event, and the URL for messages."""
    async with http.stream("GET", server.sse_url, headers=headers) as stream:
        reading = Reading(stream)
        (endpoint,) = await reading.next()
        assert endpoint.name == "endpoint"
        assert endpoint.event_id is None
        yield reading, server.sse_url.removesuffix("/sse") + str(endpoint.data)


def call(id: int, tool: str, **arguments: Any) -> Any:
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": id}}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
