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

from mcp_client_guard.core.inputs import UNREADABLE, EventReceived, TooLarge

_BOM = b"\xef\xbb\xbf"
_BLANK_LINE = b"\n\n"
_COMMON = re.compile(
    rb"(?:event: ?message\n)?(?:id: ?([^ \n\0][^\n\0]*)\n)?(?:event: ?message\n)?data: ?(?=[^ \n])", re.ASCII
)
"""The head of the commonest block, up to its data."""
_BARE_CR = re.compile(rb"\r(?!\n)")
_COMMENTS = re.compile(rb"\A\n?(?::[^\n]*\n)+")
_NO_SPACE = re.compile(rb"\S")
_COMMENTS_KEPT = 64 * 1024
_EMPTY_ID = re.compile(r"^id(?:: ?)?$", re.MULTILINE)
_decode = json.JSONDecoder().raw_decode
_ID_AT_HEAD = re.compile(rb'\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,16})\s*,\s*"[jre]')
_ID_AT_END = re.compile(rb',\s*"id"\s*:\s*(\d{1,16})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
"""Where servers have the ID of an answer: before `result`, `error` or `jsonrpc`, or last (TypeScript SDK)."""
_LOOKED_AT = 1024
_DIGITS = re.compile(r"^retry: ?([0-9]{1,15})$", re.MULTILINE)


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
    _skipping: bool = field(default=False, init=False)
    """What comes belongs to an event that is too large, of which the tail has but the end."""
    _is_told: bool = field(default=False, init=False)
    """All that there is to tell of it."""

    @property
    def is_amid(self) -> bool:
        """Whether part of an event is here that is not too large, and the rest is not."""
        comments = _COMMENTS.match(self._tail)
        begin = comments.end() if comments is not None else 0
        return not self._skipping and _NO_SPACE.search(self._tail, begin) is not None

    def feed(self, chunk: bytes) -> list[EventReceived | TooLarge]:
        """The events that these bytes complete.

        One that is too large is told of as soon as it is, and skipped; and at its end, unless it was known whose
        answer it is.
        """
        received = self._normalised(chunk)
        events: list[EventReceived | TooLarge] = []
        if self._skipping:
            self._tail += received
            end = self._tail.find(_BLANK_LINE)
            if end < 0:
                del self._tail[:-_LOOKED_AT]
                return events
            if not self._is_told:
                events.append(self._too_large(None, bytes(self._tail[:end])))
            received = bytes(self._tail[end + 2 :])
            self._tail, self._skipping = bytearray(), False
        if self._tail or not self._started:
            searched = max(0, len(self._tail) - 1)
            self._tail += received
            if not self._started and not self._skip_bom():
                return events
            if self._tail.find(_BLANK_LINE, searched) < 0:
                self._check_tail(events)
                return events
            received = bytes(self._tail)
        self._tail = bytearray(received[self._read(received, events) :])
        self._check_tail(events)
        return events

    def _check_tail(self, events: list[EventReceived | TooLarge]) -> None:
        """Comments need no blank line after them; they are no part of the event that is still to come."""
        if len(self._tail) > min(self.max_event_size, _COMMENTS_KEPT) and self._tail.startswith((b":", b"\n:")):
            if self._tail.find(b"\n", 1) < 0:
                del self._tail[2:]  # one that has not ended: what it says is never looked at
            else:
                self._tail = bytearray(_COMMENTS.sub(b"", bytes(self._tail)))
        if self._is_too_large(self._tail):
            told = self._too_large(bytes(self._tail), None)
            events.append(told)
            self._skipping, self._is_told = True, told.answers is not None
            del self._tail[:-_LOOKED_AT]

    def _is_too_large(self, block: bytes | bytearray) -> bool:
        return len(block) > self.max_event_size and len(_COMMENTS.sub(b"", block)) > self.max_event_size

    def _too_large(self, head: bytes | None, end: bytes | None) -> TooLarge:
        """`head`, `end`: what there is of the event that begins or ends so."""
        found = None if end is None else _ID_AT_END.search(end[-_LOOKED_AT:])
        if found is None and head is not None:
            start = head.find(b"data:") + len(b"data:")
            found = _ID_AT_HEAD.match(head[start : start + _LOOKED_AT].lstrip())
        answers = None if found is None else int(found[1])
        return TooLarge(self.stream, self.connection, answers, end is not None)

    def _read(self, received: bytes, events: list[EventReceived | TooLarge]) -> int:
        """Read every complete block; returns where the first incomplete one begins."""
        start = 0
        while True:
            head = _COMMON.match(received, start)
            if head is not None:
                # A search for one byte runs at the speed of memory, one for two does not.
                data_start = head.end()
                end = received.find(b"\n", data_start)
                if end < 0:
                    return start
                if received.startswith(b"\n", end + 1) and end - start <= self.max_event_size:
                    event = self._common(head[1], received[data_start:end])
                    if event is not None:
                        events.append(event)
                        start = end + 2
                        continue
            end = received.find(_BLANK_LINE, start)
            if end < 0:
                return start
            block = received[start:end]
            read = self._too_large(block, block) if self._is_too_large(block) else self._any(block)
            if read is not None:
                events.append(read)
            start = end + 2

    def _common(self, event_id: bytes | None, data: bytes) -> EventReceived | None:
        try:
            text = data.decode()
            name = event_id.decode() if event_id is not None else None
        except UnicodeDecodeError:
            return None
        return EventReceived(self.stream, self.connection, name, data, _parse_bare(text))

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
            if _BARE_CR.search(chunk) is None:
                # To delete one byte is many times faster than to replace two.
                return chunk.replace(b"\r", b"")
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


def _parse_bare(text: str) -> Any:
    """Parsed JSON, or `UNREADABLE`, as of `parse_json`; in half the time where nothing stands around the JSON."""
    try:
        value, end = _decode(text)
    except (ValueError, RecursionError):
        end = -1
    return value if end == len(text) else parse_json(text)


def parse_json(text: str | bytes) -> Any:
    """Parsed JSON, or `UNREADABLE`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return UNREADABLE
