"""HTTP as the shell needs it: any client with the shape of `httpx.AsyncClient`, origins, and what was written.

httpx2 has the same shape and shares no class with httpx, so nothing here asks for a class: errors are judged
by the family they come from, timeouts are passed as plain numbers.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from functools import cache
from time import time
from typing import Any, Protocol

import httpx
from attrs import define, field

CONNECT_SECONDS = 10.0
_IDLE_CONNECTION_SECONDS = 2.0
"""uvicorn closes an idle connection after 5 s; a POST into a closing socket is a needless doubt."""
_TIMEOUTS = {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}
_MAX_REDIRECTS = 5
_MAX_WAIT = 24 * 3600.0
_NOT_WRITTEN = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"})


class Response(Protocol):
    """The part of `httpx.Response` that is used."""

    status_code: int
    headers: Any
    url: Any
    extensions: Any

    def aiter_bytes(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class HttpClient(Protocol):
    """The part of `httpx.AsyncClient` that is used: `httpx2.AsyncClient` has it, too."""

    def build_request(self, method: str, url: Any, **kwargs: Any) -> Any: ...

    async def send(self, request: Any, **kwargs: Any) -> Any: ...


def default_client(headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """Our own client: no limit on connections, no timeout but for connecting."""
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_CONNECTION_SECONDS
    )
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    return httpx.AsyncClient(headers=dict(headers or {}), limits=limits, timeout=timeout, verify=_tls())


@cache
def _tls() -> ssl.SSLContext:
    """One for all: reading the trusted certificates takes longer than connecting."""
    return httpx.create_ssl_context()


def connection_limit(client: HttpClient) -> int | None:
    """How many connections a caller's client opens at most, where it can be seen."""
    pool = getattr(getattr(client, "_transport", None), "_pool", None)
    limit = getattr(pool, "_max_connections", None)
    return limit if isinstance(limit, int) and limit < sys.maxsize else None


def origin_of(url: Any) -> str:
    """Scheme, host and port, with the default port made plain."""
    parsed = httpx.URL(str(url))
    port = parsed.port or {"http": 80, "https": 443}.get(parsed.scheme, 0)
    return f"{parsed.scheme}://{parsed.host}:{port}"


@define(eq=False)
class Written:
    """Whether any byte of a request can have left, as the transport's own trace tells it."""

    traced: bool = field(default=False, init=False)
    started: bool = field(default=False, init=False)

    async def trace(self, name: str, info: Mapping[str, Any]) -> None:
        self.traced = True
        if name.endswith("send_request_headers.started"):
            self.started = True
        elif name == "connection.connect_tcp.complete":
            _keep_alive(info.get("return_value"))

    def after(self, error: BaseException) -> bool:
        """False only where it is certain: a connect or pool error, or a trace that never began to send."""
        if type(error).__name__ in _NOT_WRITTEN:
            return self.started
        return self.started or not self.traced


def _keep_alive(stream: Any) -> None:
    """Let the kernel find a dead peer of a silent stream: within two minutes, where it can be told."""
    raw = stream.get_extra_info("socket") if hasattr(stream, "get_extra_info") else None
    if raw is None:
        return
    try:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except OSError:  # not a TCP socket, or closed already: then there is nothing to keep alive
        return


@asynccontextmanager
async def opened(
    client: HttpClient, method: str, url: str, headers: Mapping[str, str], content: bytes | None, written: Written
) -> AsyncIterator[Response]:
    """The streamed response; redirects are followed within the origin only, and only with the same method."""
    target: Any = url
    for _ in range(_MAX_REDIRECTS + 1):
        request = client.build_request(
            method,
            target,
            headers=[(k.encode("ascii"), v.encode("utf-8")) for k, v in headers.items()],
            content=content,
            extensions={"timeout": dict(_TIMEOUTS), "trace": written.trace},
        )
        response: Response = await client.send(request, stream=True, follow_redirects=False)
        try:
            following = _same_origin_redirect(response, method)
            if following is None:
                yield response
                return
        finally:
            await response.aclose()
        target = following
    raise httpx.TooManyRedirects(f"more than {_MAX_REDIRECTS} redirects")


def _same_origin_redirect(response: Response, method: str) -> Any | None:
    status, location = response.status_code, response.headers.get("location")
    if not location or status not in ((301, 302, 303, 307, 308) if method == "GET" else (307, 308)):
        return None
    try:
        target = response.url.join(location)
        old, new = httpx.URL(str(response.url)), httpx.URL(str(target))
    except Exception:  # an unparsable Location is a redirect that is not followed, in either family
        return None
    return target if origin_of(old) == origin_of(new) or _upgrades(old, new) else None


def _upgrades(old: httpx.URL, new: httpx.URL) -> bool:
    """http to https on the same host, both with their default port."""
    schemes = (old.scheme, new.scheme) == ("http", "https")
    return schemes and old.host == new.host and old.port is None and new.port is None


def complete_by_framing(response: Response) -> bool:
    """Whether an end without an error means a complete response, and not merely a closed connection."""
    if response.extensions.get("http_version", b"HTTP/1.1") not in (b"HTTP/1.1", b"HTTP/1.0"):
        return True
    headers = response.headers
    return "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()


def retry_after(response: Response) -> float | None:
    """`Retry-After` in seconds: a number or a date; None if absent or absurd (negative, over a day)."""
    value = response.headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        seconds = (
            float(value)
            if value.isascii() and value.isdigit()
            else parsedate_to_datetime(value).timestamp() - time()
        )
    except (ValueError, OverflowError, TypeError):
        return None
    return seconds if 0 <= seconds <= _MAX_WAIT else None


def is_stream_error(error: BaseException) -> bool:
    """Whether this is an error of either client family, or of the socket below."""
    families: list[type[BaseException]] = [httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError]
    httpx2 = sys.modules.get("httpx2")
    if httpx2 is not None:
        families += [httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL]
    return isinstance(error, tuple(families))


def body_of(message: Mapping[str, Any]) -> bytes:
    """A message as it goes out."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def redirect_target(response: Response) -> str | None:
    """Origin and path of a redirect that was not followed; its query may hold secrets."""
    location = response.headers.get("location")
    if not location or not 300 <= response.status_code < 400:
        return None
    return str(location).partition("?")[0]
