"""Bytes in, SSE events out: httpx-sse, with the three things it hides, and past it for the commonest block.

httpx-sse reports an inherited ID like one of the event's own, reports a comment after an identified event as
an empty event with that ID, and has no size bound. So it is given one block (what stands between two blank
lines) at a time: what it then reports is the block's own.

A block of one `data` line, with an ID or not, is what servers send a million times, and is read at a glance; a
test holds both ways of reading to the same answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx_sse
from attrs import define, field

from mcp_client_guard.core.inputs import UNREADABLE, EventReceived

_BOM = b"\xef\xbb\xbf"
_BLANK_LINE = b"\n\n"
_COMMON = re.compile(
    rb"(?:event: ?message\n)?(?:id: ?([^ \n\0][^\n\0]*)\n)?(?:event: ?message\n)?data: ?(?=[^ \n])", re.ASCII
)
"""The head of the commonest block, up to its data."""
_COMMENTS = re.compile(rb"\A\n?(?::[^\n]*\n)+")
_COMMENTS_KEPT = 64 * 1024
_EMPTY_ID = re.compile(r"^id(?:: ?)?$", re.MULTILINE)
_DIGITS = re.compile(r"^retry: ?([0-9]{1,15})$", re.MULTILINE)


class EventTooLarge(Exception):
    """One event is larger than the bound; the stream cannot be read on."""


class _Block:
    """What httpx-sse takes for a response: the text of one block."""

    headers = {"content-type": "text/event-stream"}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        self._text = text

    def iter_text(self) -> Iterator[str]:
        yield self._text + "\n\n"


@define(eq=False)
class EventReader:
    """Incremental: feed it the bytes of one response, as they come."""

    stream: int
    connection: int
    max_event_size: int
    _tail: bytearray = field(factory=bytearray, init=False)
    _after_cr: bool = field(default=False, init=False)
    _started: bool = field(default=False, init=False)

    def feed(self, chunk: bytes) -> list[EventReceived]:
        """The events that these bytes complete.

        Raises:
            EventTooLarge: an event passes `max_event_size` bytes.
        """
        searched = max(0, len(self._tail) - 1)
        self._tail += self._normalised(chunk)
        if not self._started and not self._skip_bom():
            return []
        end = self._tail.rfind(_BLANK_LINE, searched)
        if end < 0:
            self._check_tail()
            return []
        blocks = bytes(self._tail[:end]).split(_BLANK_LINE)
        del self._tail[: end + 2]
        self._check_tail()
        if end > self.max_event_size:
            for block in blocks:
                self._check(block)
        return self._events(blocks)

    def _check_tail(self) -> None:
        """Comments need no blank line after them; they are no part of the event that is still to come."""
        if len(self._tail) > min(self.max_event_size, _COMMENTS_KEPT) and self._tail.startswith((b":", b"\n:")):
            self._tail = bytearray(_COMMENTS.sub(b"", bytes(self._tail)))
        self._check(self._tail)

    def _check(self, block: bytes | bytearray) -> None:
        if len(block) > self.max_event_size and len(_COMMENTS.sub(b"", block)) > self.max_event_size:
            raise EventTooLarge

    def _events(self, blocks: list[bytes]) -> list[EventReceived]:
        events = []
        for block in blocks:
            event = self._common(block) or self._any(block)
            if event is not None:
                events.append(event)
        return events

    def _common(self, block: bytes) -> EventReceived | None:
        found = _COMMON.match(block)
        if found is None or block.find(b"\n", found.end()) >= 0:
            return None
        event_id, data = found[1], block[found.end() :]
        try:
            text = data.decode()
            name = event_id.decode() if event_id is not None else None
        except UnicodeDecodeError:
            return None
        return EventReceived(self.stream, self.connection, name, data, parse_json(text))

    def _any(self, block: bytes) -> EventReceived | None:
        text = block.decode("utf-8", "replace").strip("\n")
        sse = next(httpx_sse.EventSource(_Block(text)).iter_sse(), None)  # type: ignore[arg-type]
        if sse is None:
            # httpx-sse has nothing to dispatch; an empty `id:` alone still takes the cursor away.
            reset = _EMPTY_ID.search(text) is not None
            return EventReceived(self.stream, self.connection, None, b"", None, resets_id=True) if reset else None
        resets = not sse.id and _EMPTY_ID.search(text) is not None
        if not sse.id and not resets and not sse.data and sse.retry is None:
            return None
        return EventReceived(
            self.stream,
            self.connection,
            sse.id or None,
            sse.data.encode("utf-8", "surrogatepass"),
            parse_json(sse.data) if sse.data else None,
            sse.event,
            None if sse.retry is None else _retry(text),
            resets,
        )

    def _normalised(self, chunk: bytes) -> bytes:
        """CRLF, CR and LF all end a line; a CRLF may be split between two chunks."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if chunk:
            self._after_cr = False
        return chunk

    def _skip_bom(self) -> bool:
        """Whether the start of the stream is known, its byte order mark gone."""
        if _BOM.startswith(bytes(self._tail[:3])) and len(self._tail) < 3:
            return False
        if self._tail.startswith(_BOM):
            del self._tail[:3]
        self._started = True
        return True


def _retry(block: str) -> int | None:
    """`retry:` counts only if it is all ASCII digits; httpx-sse takes whatever `int` takes."""
    found = _DIGITS.findall(block)
    return int(found[-1]) if found else None


def parse_json(text: str | bytes) -> Any:
    """Parsed JSON, or `UNREADABLE`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return UNREADABLE
