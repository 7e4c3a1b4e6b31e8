"""A response as the shell reads it: its status, its fields, its body as it comes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from attrs import define

from .gzipped import Unzipped, is_gzip
from .heeding import Heeding

_MAX_WAIT = 24 * 3600.0
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,60}")
_NOT_SHOWN = "an address that is not shown"


class Response(Protocol):
    """The part of `httpx.Response` that is used."""

    status_code: int
    headers: Any
    url: Any
    extensions: Any

    def aiter_bytes(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


@define(eq=False, repr=False)
class Answer:
    """A response whose status line and headers have come."""

    status: int
    fields: dict[str, str]
    """Header fields by lower-case name; of one that comes twice the last."""
    response: Response

    def chunks(self) -> AsyncIterator[bytes]:
        response: Any = self.response
        if is_gzip(self.fields.get("content-encoding", "")) and not getattr(response, "is_stream_consumed", True):
            return Unzipped(self._heeding(response.aiter_raw()))
        return self._heeding(response.aiter_bytes())

    def _heeding(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        return chunks if getattr(self.response, "heeds_cancellation", False) else Heeding(chunks)

    @property
    def url(self) -> str:
        """Where it came from, after any redirects."""
        return str(self.response.url)

    @property
    def media_type(self) -> str:
        """As far as it is one: what a server writes there may come to be read by a model."""
        found = _MEDIA_TYPE.match(self.fields.get("content-type", "").lower())
        return found[0] if found else ""

    @property
    def is_events(self) -> bool:
        """Whether its body is an event stream."""
        return self.fields.get("content-type", "").lower().startswith("text/event-stream")

    @property
    def session_id(self) -> str | None:
        """The session that it names, if it does."""
        return self.fields.get("mcp-session-id", "").strip(" \t") or None

    @property
    def complete_by_framing(self) -> bool:
        """Whether an end without an error means a complete response, and not merely a closed connection."""
        if self.response.extensions.get("http_version", b"HTTP/1.1") not in (b"HTTP/1.1", b"HTTP/1.0"):
            return True
        return "content-length" in self.fields or "chunked" in self.fields.get("transfer-encoding", "").lower()

    @property
    def retry_after(self) -> float | None:
        """`Retry-After` in seconds: a number or a date; None if absent or absurd (negative, over a day)."""
        value = self.fields.get("retry-after", "").strip()
        try:
            is_number = value.isascii() and value.isdigit()
            seconds = float(value) if is_number else parsedate_to_datetime(value).timestamp() - time()
        except (ValueError, OverflowError, TypeError, IndexError):
            return None
        return seconds if 0 <= seconds <= _MAX_WAIT else None

    @property
    def redirect_target(self) -> str | None:
        """Where a redirect that was not followed led, less what may hold secrets."""
        location = self.fields.get("location")
        return shown(location) if location and 300 <= self.status < 400 else None


def path_of(url: str) -> str:
    """For people: without parameters, query or fragment, which may hold secrets."""
    return urlsplit(shown(url)).path or "/"


def shown(location: str) -> str:
    """Scheme, host and path of a `Location`: no user, query, fragment, or parameters of the path."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return _NOT_SHOWN
    if parts.scheme not in ("", "http", "https") or "@" in parts.path or "\\" in location:
        return _NOT_SHOWN
    path = "/".join(segment.partition(";")[0] for segment in parts.path.split("/"))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
