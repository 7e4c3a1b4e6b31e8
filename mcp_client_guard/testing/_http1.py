"""Where the messages of an HTTP/1.1 connection, and the SSE events in their bodies, begin and end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from attrs import field, frozen

_LINE_END = re.compile(rb"\r\n|\n|\r")


@frozen
class Head:
    """A request or status line and its header lines."""

    start: str
    fields: tuple[tuple[str, str], ...]

    @classmethod
    def from_bytes(cls, block: bytes) -> Head:
        """From the bytes before the blank line."""
        start, *lines = block.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return cls(start, tuple((name.strip().lower(), value.strip(" \t")) for name, _, value in pairs))

    def get(self, name: str) -> str | None:
        """The first header of this name, in any case."""
        return next((value for key, value in self.fields if key == name.lower()), None)

    @property
    def status(self) -> int:
        """Of a response head."""
        return int(self.start.split(" ", 2)[1])

    @property
    def target(self) -> str:
        """Of a request head."""
        return self.start.split(" ")[1]

    def has_body(self, *, request: bool, answer_to: str = "") -> bool:
        """Whether RFC 9112 §6.3 lets a body follow."""
        if request:
            return self.get("transfer-encoding") is not None or (self.get("content-length") or "0") != "0"
        return not (answer_to == "HEAD" or self.status < 200 or self.status in (204, 304))


@frozen
class Event:
    """One SSE event as it stood in a body; `end` is the offset just after its blank line."""

    end: int
    event_id: str | None
    data: str | None
    """None when the block had no `data` line."""
    retry: int | None = None
    name: str | None = None

    @property
    def message(self) -> Any:
        """The JSON object carried, or None (a priming event, a comment, text that is not JSON)."""
        try:
            return json.loads(self.data or "")
        except (ValueError, RecursionError):
            return None


def events_of(body: bytes) -> Iterator[Event]:
    """The complete blocks of an event stream, comment-only blocks included; own IDs only, none inherited."""
    lines: list[bytes] = []
    position = 0
    while found := _LINE_END.search(body, position):
        line, position = body[position : found.start()], found.end()
        if line:
            lines.append(line)
        elif lines:
            yield _event(lines, position)
            lines = []


def _event(lines: list[bytes], end: int) -> Event:
    values: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.decode("utf-8", "replace").partition(":")
        values.setdefault(name, []).append(value.removeprefix(" "))
    retry = values.get("retry", [""])[-1]
    return Event(
        end=end,
        event_id=values["id"][-1] if "id" in values else None,
        data="\n".join(values["data"]) if "data" in values else None,
        retry=int(retry) if retry.isdecimal() else None,
        name=values["event"][-1] if "event" in values else None,
    )


@frozen
class _Span:
    """A run of body bytes and where it lay on the wire."""

    body: int
    wire: int
    length: int


class NotHttp(ValueError):
    """These bytes are no HTTP/1.1 message."""


class MessageReader:
    """Finds where one HTTP/1.1 message ends: feed it bytes, and it says how many of them belong to it."""

    def __init__(self, *, request: bool, answer_to: str = "") -> None:
        self._request = request
        self._answer_to = answer_to
        self.wire = bytearray()
        self.body = bytearray()
        self.head: Head | None = None
        self.head_length = 0
        self.complete = False
        self._spans: list[_Span] = []
        self._position = 0  # up to here the wire has been understood
        self._left: int | None = None  # body bytes still to come in this chunk or body; None: until the end
        self._chunked = False
        self._between_chunks = False
        self._trailers = False

    def feed(self, data: bytes) -> int:
        """Take bytes of this message; the number taken is less than given when the message ended before.

        Raises:
            NotHttp: a line cannot be read.
        """
        before = len(self.wire)
        self.wire += data
        try:
            while not self.complete and self._advance():
                pass
        except (ValueError, IndexError) as error:
            raise NotHttp(str(error)) from error
        if self.complete:
            del self.wire[self._position :]
        return len(self.wire) - before

    def end(self) -> None:
        """The connection ended: a body without a declared length is complete."""
        if self.head is not None and self._left is None and not self._chunked:
            self.complete = True

    def forget(self) -> None:
        """Drop what was understood; only `complete` and `head` go on being kept."""
        del self.wire[: self._position]
        self._position = 0
        self.body.clear()
        self._spans.clear()

    def wire_offset(self, body_offset: int) -> int:
        """How much of the wire to keep so as to keep exactly this much of the body."""
        for span in self._spans:
            if span.body < body_offset <= span.body + span.length:
                return span.wire + body_offset - span.body
        return self.head_length

    def _advance(self) -> bool:
        if self.head is None:
            return self._take_head()
        if self._chunked and self._between_chunks:
            return self._take_chunk_line()
        return self._take_body()

    def _take_head(self) -> bool:
        end = self.wire.find(b"\r\n\r\n", self._position)
        if end < 0:
            return False
        head = Head.from_bytes(bytes(self.wire[self._position : end]))
        if self._request:
            urlsplit(head.target)  # raises
        self._position = end + 4
        if not self._request and 100 <= head.status < 200 and head.status != 101:
            return True  # an interim response: the real one follows
        self.head, self.head_length = head, self._position
        self._chunked = "chunked" in (head.get("transfer-encoding") or "").lower()
        self._between_chunks = self._chunked
        if not head.has_body(request=self._request, answer_to=self._answer_to):
            self.complete = True
        elif not self._chunked and (length := head.get("content-length")) is not None:
            self._left = _length(length, 10)
            self.complete = self._left == 0
        return True

    def _take_chunk_line(self) -> bool:
        end = self.wire.find(b"\r\n", self._position)
        if end < 0:
            return False
        line = bytes(self.wire[self._position : end])
        self._position = end + 2
        if self._trailers:
            self.complete = not line
        elif line:  # empty: the line end after the chunk before
            self._left = _length(line.split(b";")[0].decode("latin-1").strip(), 16)
            self._trailers = self._left == 0
            self._between_chunks = self._left == 0
        return True

    def _take_body(self) -> bool:
        available = len(self.wire) - self._position
        take = available if self._left is None else min(available, self._left)
        if not take:
            return False
        self._spans.append(_Span(len(self.body), self._position, take))
        self.body += self.wire[self._position : self._position + take]
        self._position += take
        if self._left is not None:
            self._left -= take
            if self._left == 0:
                self._between_chunks = self._chunked
                self.complete = not self._chunked
        return True


def _length(digits: str, base: int) -> int:
    if not digits.isalnum():
        raise ValueError(f"{digits!r} is no length")
    return int(digits, base)


@frozen
class Request:
    """A request as it arrived. `serial` counts requests of the whole server or proxy, from 1."""

    method: str
    target: str
    headers: Head = field(repr=False)
    body: bytes
    serial: int = 0
    connection: int = 0
    """Which connection it came on, counted from 1."""

    @classmethod
    def from_reader(cls, reader: MessageReader, *, serial: int, connection: int) -> Request:
        """From a reader whose head is complete; the body is what has come so far."""
        assert reader.head is not None
        method = reader.head.start.split(" ")[0]
        return cls(method, reader.head.target, reader.head, bytes(reader.body), serial, connection)

    def header(self, name: str) -> str | None:
        """The first header of this name, in any case."""
        return self.headers.get(name)

    @property
    def json(self) -> Any:
        """The body as JSON, or None."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def rpc_method(self) -> str | None:
        """The JSON-RPC method of the body, if it has one."""
        body = self.json
        return body.get("method") if isinstance(body, dict) else None

    @property
    def rpc_id(self) -> Any:
        """The JSON-RPC ID of the body, if it has one."""
        body = self.json
        return body.get("id") if isinstance(body, dict) else None

    @property
    def last_event_id(self) -> str | None:
        """The `Last-Event-ID` header: with it, a GET is a resume. Non-ASCII IDs travel as UTF-8 bytes."""
        raw = self.header("last-event-id")
        return None if raw is None else raw.encode("latin-1").decode("utf-8", "replace")

    @property
    def session_id(self) -> str | None:
        """The `Mcp-Session-Id` header."""
        return self.header("mcp-session-id")
