"""One HTTP request and its response, as far as it has come."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
from attrs import define, field

from mcp_client_guard.core.actions import Get, OpenSocket, Post
from mcp_client_guard.core.inputs import UNREADABLE, ConnectionLost, Refused

from . import http
from .sse import parse_json

logger = logging.getLogger("mcp_client_guard")

_REFUSAL_BYTES = 64 * 1024
_REFUSAL_SECONDS = 5.0


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
    sent: http.Sent = field(factory=http.Sent)
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

    async def refused(self, answer: http.Answer, session_id: str | None) -> Refused:
        """A status that is no success, and what came with it; the status stands, whatever became of its body."""
        body = b""
        with anyio.move_on_after(_REFUSAL_SECONDS):
            try:
                body = await self.read_body(answer.chunks(), _REFUSAL_BYTES)
            except Exception as error:
                logger.debug("the body of HTTP %s was lost: %s", answer.status, type(error).__name__)
        parsed: Any = parse_json(body) if body else None
        return Refused(
            self.order.stream,
            self.order.connection,
            answer.status,
            None if parsed is UNREADABLE else parsed,
            session_id,
            answer.retry_after,
            answer.redirect_target,
        )

    def ended(self, *, clean: bool) -> ConnectionLost:
        """Its response is over."""
        order = self.order
        now = anyio.current_time()
        return ConnectionLost(order.stream, order.connection, now, written=True, clean=clean, why="ended")

    def lost(self, error: BaseException) -> ConnectionLost:
        """It failed."""
        if not http.is_stream_error(error):
            logger.warning("unexpected %s while talking to the server", type(error).__name__, exc_info=error)
        written = self.sent.any or (self.begun and http.can_have_written(error))
        why = str(error) if isinstance(error, SocketEnded) else type(error).__name__
        order = self.order
        return ConnectionLost(order.stream, order.connection, anyio.current_time(), written, clean=False, why=why)
