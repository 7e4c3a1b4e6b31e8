"""One HTTP request and its response, as far as it has come."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from traceback import format_tb
from typing import Any

import anyio
from attrs import define, field

from mcp_client_guard.core.actions import Get, OpenSocket, Post
from mcp_client_guard.core.inputs import UNREADABLE, ConnectionLost, EventReceived, Refused, TooLarge

from .answer import Answer, path_of
from .http import origin_of
from .sent import DEEPEST_CAUSE, Sent, why_lost
from .sse import EventReader, parse_json

logger = logging.getLogger("mcp_client_guard")

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
    sent: Sent = field(factory=Sent)
    lingering: bool = False
    paused: bool = False
    """The host is behind, so that nothing is read: no byte can come."""
    reader: EventReader | None = None

    @property
    def is_amid(self) -> bool:
        """Whether part of an event is here, and the rest is not."""
        return self.reader is not None and self.reader.is_amid

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

    async def refused(self, answer: Answer, url: str, limit: int) -> Refused:
        """A status that is no success, and what came with it, up to `limit` bytes; the status stands, whatever
        became of its body. `url`: the endpoint, where the order has none of its own, which may be a credential."""
        parsed: Any = None
        with anyio.move_on_after(_REFUSAL_SECONDS):
            try:
                parsed = await (self._framed if answer.is_events else self._bare)(answer, limit)
            except Exception as error:
                logger.debug("the body of HTTP %s was lost: %s", answer.status, type(error).__name__)
        return Refused(
            self.order.stream,
            self.order.connection,
            answer.status,
            None if parsed is UNREADABLE else parsed,
            answer.session_id,
            answer.retry_after,
            answer.redirect_target,
            path_of(url) if isinstance(self.order, Post) and self.order.target is None else None,
        )

    async def _bare(self, answer: Answer, limit: int) -> Any:
        body = await self.read_body(answer.chunks(), limit)
        return parse_json(body) if body else None

    async def _framed(self, answer: Answer, limit: int) -> Any:
        """The first answer among its events; where there is none, what it is without a framing."""
        reader = EventReader(self.order.stream, self.order.connection, limit)
        body = bytearray()
        async for chunk in answer.chunks():
            self.last_byte = anyio.current_time()
            body += chunk
            found = _first_answer(reader.feed(chunk))
            if found is not None:  # such a stream may be left open
                return found
            if len(body) > limit:
                raise BodyTooLarge
        found = _first_answer(reader.feed(b"\n\n"))
        return parse_json(bytes(body)) if found is None and body else found

    def ended(self, *, clean: bool) -> ConnectionLost:
        """Its response is over."""
        order = self.order
        now = anyio.current_time()
        return ConnectionLost(order.stream, order.connection, now, written=True, clean=clean, why="ended")

    def lost(self, error: BaseException, url: str) -> ConnectionLost:
        """It failed. An error that is not of the network's comes again: of a login, a hook."""
        order, sent = self.order, self.sent
        comes_again = not sent.is_of_network(error)
        if comes_again:
            name, where = type(error).__name__, origin_of(url)
            logger.warning(
                "%s: unexpected %s while talking to the server\n%s", where, name, _frames_of(error).rstrip()
            )
        written = self.begun and sent.can_have_left(error)
        why = sent.unsendable or _why_lost(error)
        return ConnectionLost(
            order.stream,
            order.connection,
            anyio.current_time(),
            written,
            clean=False,
            why=why,
            lasts=comes_again or sent.unsendable is not None,
            refused=sent.refused,
        )


def _why_lost(error: BaseException) -> str:
    if isinstance(error, SocketEnded):
        return str(error)
    if isinstance(error, UnicodeEncodeError):  # httpx keeps such a cookie, and then refuses to send it
        return "UnicodeEncodeError: a header cannot be encoded, perhaps a cookie that the server has set"
    return why_lost(error)


def _frames_of(error: BaseException, deepest: int = DEEPEST_CAUSE) -> str:
    """Where it came from, and what caused it; without their words, which may hold a URL that is a credential."""
    frames = "".join(format_tb(error.__traceback__))
    cause = error.__cause__ or error.__context__
    if cause is None or not deepest:
        return frames
    return f"{frames}caused by {type(cause).__name__}\n{_frames_of(cause, deepest - 1)}"


def _first_answer(events: Sequence[EventReceived | TooLarge]) -> Any:
    for event in events:
        body = event.body if isinstance(event, EventReceived) else None
        parts = body if isinstance(body, list) else [body]
        if any(isinstance(part, dict) and "method" not in part for part in parts):
            return body
    return None
