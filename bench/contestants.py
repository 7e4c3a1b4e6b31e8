"""The transports that are compared, each as a context manager of `(read, write)`, and plain hosts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
from attrs import frozen
from mcp import types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from pydantic import TypeAdapter

Streams = AbstractAsyncContextManager[tuple[Any, Any]]


@frozen
class Contestant:
    open: Callable[[str], Streams]
    host: type[Host]

    def __call__(self, url: str) -> Streams:
        return self.open(url)


_message = TypeAdapter[Any](types.JSONRPCMessage)


@asynccontextmanager
async def sdk(url: str) -> AsyncIterator[tuple[Any, Any]]:
    async with streamable_http_client(url) as streams:
        yield streams[0], streams[1]  # SDK 1.x yields a third value


def guard_in(directory: Path | None, generation: Any) -> Callable[[str], Streams]:
    """Each connection has a key of its own in one file, as the connections of one process would; or in memory."""
    keys = count()

    def guard(url: str) -> Streams:
        from mcp_client_guard import Guard, SQLiteStore

        store = None if directory is None else SQLiteStore(directory / "bench.db")
        key = f"bench-{next(keys)}"
        return Guard(url, generation=generation, store=store, key=key, principal="bench").connect()

    return guard


@frozen
class Generation:
    """How messages travel: where at the server, and who speaks it."""

    path: str
    guard_s: str
    """The guard's own name for it."""
    sdk_s: Callable[[str], Streams]
    host: type[Host]


def contestants(directory: Path, names: list[str], generation: str = "streamable-http") -> dict[str, Contestant]:
    chosen = GENERATIONS[generation]
    known = {
        "sdk": chosen.sdk_s,
        "memory": guard_in(None, chosen.guard_s),
        "sqlite": guard_in(directory, chosen.guard_s),
    }
    return {name: Contestant(known[name], chosen.host) for name in names}


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


class ModernHost(Host):
    """The same in 2026-07-28: it asks what there is, and says with each request what a session would remember."""

    async def initialize(self) -> None:
        request = self.prepare("server/discover", {})
        await self.send(request)
        await self.response_to(request)

    def prepare(self, method: str, params: dict[str, Any]) -> Any:
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        request = super().prepare(method, {**params, "_meta": meta})
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
        if "name" in params:
            headers["mcp-name"] = params["name"]
        request.metadata = ClientMessageMetadata(headers=headers)  # type: ignore[call-arg, unused-ignore]
        return request


MODERN = "2026-07-28"
GENERATIONS = {
    "legacy-sse": Generation("/sse", "legacy-sse", sse_client, Host),
    "streamable-http": Generation("/mcp", "sessions", sdk, Host),
    "stateless-http": Generation("/mcp", "host", sdk, ModernHost),
}
SPOKEN = [
    name for name in GENERATIONS if name != "stateless-http" or "headers" in ClientMessageMetadata.__annotations__
]
"""By the installed SDK: 1.x knows nothing of 2026-07-28."""


def to_session_message(message: dict[str, Any]) -> Any:
    return SessionMessage(_message.validate_python(message))


@asynccontextmanager
async def host_on(contestant: Contestant, url: str) -> AsyncIterator[Host]:
    async with contestant(url) as (read, write):
        host = contestant.host(read, write)
        with anyio.fail_after(30):
            await host.initialize()
        yield host


def clock() -> float:
    """Seconds, comparable with the server's."""
    return time.monotonic()
