"""The transports that are compared, each as a context manager of `(read, write)`, and a plain host."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter

Streams = AbstractAsyncContextManager[tuple[Any, Any]]
Contestant = Callable[[str], Streams]

_message = TypeAdapter[Any](types.JSONRPCMessage)


@asynccontextmanager
async def sdk(url: str) -> AsyncIterator[tuple[Any, Any]]:
    async with streamable_http_client(url) as streams:
        yield streams[0], streams[1]  # SDK 1.x yields a third value


def guard_memory(url: str) -> Streams:
    from mcp_client_guard import Guard

    return Guard(url, generation="sessions").connect()


def guard_sqlite_in(directory: Path) -> Contestant:
    """Each connection has a key of its own in one file, as the connections of one process would."""
    keys = count()

    def guard_sqlite(url: str) -> Streams:
        from mcp_client_guard import Guard, SQLiteStore

        store = SQLiteStore(directory / "bench.db")
        key = f"bench-{next(keys)}"
        return Guard(url, generation="sessions", store=store, key=key, principal="bench").connect()

    return guard_sqlite


def contestants(directory: Path, names: list[str]) -> dict[str, Contestant]:
    known: dict[str, Contestant] = {
        "sdk": sdk,
        "memory": guard_memory,
        "sqlite": guard_sqlite_in(directory),
    }
    return {name: known[name] for name in names}


class Host:
    """The least an MCP host can be: it sends prepared messages and takes what comes."""

    def __init__(self, read: Any, write: Any) -> None:
        self._incoming, self._write = aiter(read), write
        self._ids = count(1)

    async def initialize(self) -> None:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        }
        request = self.prepare("initialize", params)
        await self.send(request)
        await self.response_to(request)
        await self.send(to_session_message({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    def prepare(self, method: str, params: dict[str, Any]) -> Any:
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        return to_session_message(message)

    def prepare_call(self, tool: str, **arguments: Any) -> Any:
        return self.prepare("tools/call", {"name": tool, "arguments": arguments})

    async def send(self, message: Any) -> None:
        await self._write.send(message)

    async def take(self) -> Any:
        """The next message, out of its RootModel on SDK 1.x; an exception from the transport is raised."""
        received = await anext(self._incoming)
        if isinstance(received, Exception):
            raise received
        return getattr(received.message, "root", received.message)

    async def response_to(self, request: Any) -> Any:
        """Takes messages up to the response, which is returned."""
        wanted = getattr(request.message, "root", request.message).id
        while True:
            message = await self.take()
            if getattr(message, "id", None) == wanted and not hasattr(message, "method"):
                assert not hasattr(message, "error"), message
                return message

    async def responses_to(self, requests: list[Any]) -> None:
        wanted = {getattr(request.message, "root", request.message).id for request in requests}
        while wanted:
            message = await self.take()
            assert not hasattr(message, "error"), message
            wanted.discard(getattr(message, "id", None))


def to_session_message(message: dict[str, Any]) -> Any:
    return SessionMessage(_message.validate_python(message))


@asynccontextmanager
async def host_on(contestant: Contestant, url: str) -> AsyncIterator[Host]:
    async with contestant(url) as (read, write):
        host = Host(read, write)
        with anyio.fail_after(30):
            await host.initialize()
        yield host


def clock() -> float:
    """Seconds, comparable with the server's."""
    return time.monotonic()
