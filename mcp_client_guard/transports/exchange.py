"""One HTTP request and its response, as far as it has come."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import anyio
from attrs import define, field

from mcp_client_guard.core.actions import Get, OpenSocket, Post
from mcp_client_guard.core.inputs import ConnectionLost

from . import http

logger = logging.getLogger("mcp_client_guard")


class BodyTooLarge(Exception):
    """A body is larger than the bound."""


class SocketEnded(ConnectionError):
    """A socket is over; the text says how."""


@define(eq=False, repr=False)
class Exchange:
    """One HTTP request and its response; or the socket that it became."""

    order: Post | Get | OpenSocket
    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    last_byte: float = 0.0
    begun: bool = False
    answered: bool = False
    lingering: bool = False
    paused: bool = False
    """The host is behind, so that nothing is read: no byte can come."""

    async def read_body(self, chunks: AsyncIterator[bytes], limit: int) -> bytes:
        """The whole body; what comes while it lingers is thrown away.

        Raises:
            BodyTooLarge: it has more than `limit` bytes.
        """
        body = bytearray()
        async for chunk in chunks:
            self.last_byte = anyio.current_time()
            if self.lingering:
                continue
            body += chunk
            if len(body) > limit:
                raise BodyTooLarge
        return bytes(body)

    def ended(self, *, clean: bool) -> ConnectionLost:
        """Its response is over."""
        order = self.order
        now = anyio.current_time()
        return ConnectionLost(order.stream, order.connection, now, written=True, clean=clean, why="ended")

    def lost(self, error: BaseException) -> ConnectionLost:
        """It failed."""
        if not http.is_stream_error(error):
            logger.warning("unexpected %s while talking to the server", type(error).__name__, exc_info=error)
        written = self.begun and http.can_have_written(error)
        why = str(error) if isinstance(error, SocketEnded) else type(error).__name__
        order = self.order
        return ConnectionLost(order.stream, order.connection, anyio.current_time(), written, clean=False, why=why)
