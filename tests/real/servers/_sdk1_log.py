"""An event log for servers of mcp 1.30, which brings the interface only."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import _tools
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import JSONRPCMessage
from starlette.applications import Starlette
from starlette.routing import Route


class MemoryEventStore(EventStore):
    """The log of one session: IDs count up through all its streams; replay keeps to the stream of the ID."""

    def __init__(self) -> None:
        self._log: list[tuple[str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._log.append((stream_id, message))
        return str(len(self._log))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        if not last_event_id.isdecimal() or not 0 < int(last_event_id) <= len(self._log):
            return None
        stream_id = self._log[int(last_event_id) - 1][0]
        for serial, (stream, message) in enumerate(list(self._log), start=1):
            if serial > int(last_event_id) and stream == stream_id and message is not None:
                await send_callback(EventMessage(message, str(serial)))
        return stream_id


class Manager(StreamableHTTPSessionManager):
    """Gives each session a log of its own: the SDK names streams by request ID, which sessions share."""

    @property
    def event_store(self) -> EventStore | None:
        return MemoryEventStore()  # read once, when a session's transport is made

    @event_store.setter
    def event_store(self, store: EventStore | None) -> None:
        pass


def app_with_log(server: Any) -> Starlette:
    """The server behind `/mcp`, every session of it resumable."""
    manager = Manager(server, event_store=MemoryEventStore(), retry_interval=_tools.RETRY_MS)

    class Endpoint:
        async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
            await manager.handle_request(scope, receive, send)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    return Starlette(routes=[Route("/mcp", endpoint=Endpoint())], lifespan=lifespan)
