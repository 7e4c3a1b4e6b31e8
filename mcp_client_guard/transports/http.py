"""HTTP as the shell needs it: any client with the shape of `httpx.AsyncClient`, origins, and what was written.

httpx2 has the same shape and shares no class with httpx, so nothing here asks for a class: errors are judged
by the family they come from, timeouts are passed as plain numbers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from time import time
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies

import httpx
from attrs import define, field

from .gzipped import Unzipped, is_gzip
from .left_over import let_go
from .pool import ERRORS, IDLE_CONNECTION_SECONDS, PoolClient, tls
from .unlogged import unlogged

CONNECT_SECONDS = 10.0
_EXTENSIONS = {"timeout": {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}}
"""Plain numbers, for a Timeout object of one client family fails in the other."""
_MAX_REDIRECTS = 5
_MAX_WAIT = 24 * 3600.0
_DEEPEST_CAUSE = 8
_MOST_WORDS = 200
_NOT_SHOWN = "an address that is not shown"
_UNAUTHORIZED = frozenset({401, 403})
_NOT_WRITTEN = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})


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

    # To type checkers this alone is any signature: `**kwargs` beside a named argument asks for every keyword.
    def build_request(self, *args: Any, **kwargs: Any) -> Any: ...

    async def send(self, *args: Any, **kwargs: Any) -> Any: ...


def default_client(url: str, headers: Mapping[str, str]) -> PoolClient | httpx.AsyncClient:
    """Our own client: no limit on connections, no timeout but for connecting; it traces.

    `PoolClient`, unless httpx knows more than that does: proxies, a password in the URL.
    """
    if not getproxies() and not httpx.URL(url).userinfo:
        return PoolClient(headers)
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_CONNECTION_SECONDS
    )
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    return httpx.AsyncClient(headers=dict(headers), limits=limits, timeout=timeout, verify=tls())


def connection_limit(client: HttpClient, url: str) -> int | None:
    """How many connections a caller's client opens at most for this URL, where it can be seen."""
    chosen = getattr(client, "_transport_for_url", None)  # a mounted one, that of a proxy, or its own
    transport = getattr(client, "_transport", None) if chosen is None else chosen(httpx.URL(url))
    pool = getattr(transport, "_pool", None)
    limit = getattr(pool, "_max_connections", None)
    return limit if isinstance(limit, int) and limit < sys.maxsize else None


def origin_of(url: Any) -> str:
    """Scheme, host and port, with the default port made plain."""
    parsed = httpx.URL(str(url))
    port = parsed.port or {"http": 80, "https": 443}.get(parsed.scheme, 0)
    return f"{parsed.scheme}://{parsed.host}:{port}"


def is_endpoint(url: Any) -> bool:
    """Whether it is a text, and an absolute URL that can be asked."""
    try:
        parsed = httpx.URL(url)
    except (TypeError, ValueError, httpx.InvalidURL):
        return False
    is_port = parsed.port is None or 0 < parsed.port < 2**16
    return isinstance(url, str) and parsed.scheme in ("http", "https") and bool(parsed.host) and is_port


def endpoint_of(url: str) -> str:
    """What a stored session is bound to: origin and path; of a query, which may hold a secret, only a digest."""
    parsed = httpx.URL(url)
    query = f"?#{blake2b(parsed.query, digest_size=8).hexdigest()}" if parsed.query else ""
    return f"{origin_of(url)}{parsed.path}{query}"


def joined(url: str, reference: str) -> str:
    """A reference, as it stands on the page `url`."""
    return str(httpx.URL(url).join(reference))


def below(url: str, name: str) -> str:
    """The URL with this name after its path; its query is kept."""
    whole = httpx.URL(url)
    return str(whole.copy_with(path=f"{whole.path.rstrip('/')}/{name}"))


def can_have_written(error: BaseException) -> bool:
    """False only where it is certain that no byte of the request left: connecting failed, or the pool was full."""
    return type(error).__name__ not in _NOT_WRITTEN


def why_lost(error: BaseException) -> str:
    """The kind of the error; where connecting failed, its words as well: no certificate, no such name.

    Only httpcore's own words, and only before anything was sent: others may repeat what is secret.
    """
    name, inner = type(error).__name__, error if isinstance(error, ERRORS) else error.__cause__
    words = str(inner) if isinstance(inner, ERRORS) and not can_have_written(error) else ""
    return f"{name}: {words[:_MOST_WORDS]}" if words else name


class SecondSending(ConnectionError):
    """A caller's client was about to send a request again that had drawn no answer. Nothing of that has left."""


@define(eq=False)
class Sent:
    """What a caller's client has sent of a request, as far as its transport traces.

    A transport that tries again, or on another connection, may have had the request read before. So the class of
    its last error says nothing of that; and a POST is not sent a second time by anybody but the core.
    """

    any: bool = False
    is_post: bool = False
    _unanswered: bool = False
    _is_tunnel: bool = False
    """What is under way is not this request: a proxy is asked for a tunnel to send it through."""

    async def trace(self, name: str, info: Any) -> None:
        if name.endswith("send_request_headers.started"):
            self._is_tunnel = _opens_tunnel(info)
            if self._is_tunnel:
                return
            if self.is_post and self._unanswered:
                raise SecondSending("the HTTP client would have sent this request twice")
            self.any = self._unanswered = True
        elif self._is_tunnel:
            return
        elif name.endswith("receive_response_headers.complete"):
            self._unanswered = False
            with suppress(Exception):  # an auth flow goes on from a refusal by which nothing has run
                self.any = not _UNAUTHORIZED & {part for part in info["return_value"] if isinstance(part, int)}


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
            return Unzipped(response.aiter_raw())
        return self.response.aiter_bytes()

    @property
    def url(self) -> str:
        """Where it came from, after any redirects."""
        return str(self.response.url)

    @property
    def is_events(self) -> bool:
        """Whether its body is an event stream."""
        return self.fields.get("content-type", "").lower().startswith("text/event-stream")

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


@define(eq=False, repr=False)
class Endpoint:
    """An MCP URL, and the client that reaches it."""

    client: HttpClient
    url: str
    tells_when_begun: bool = False
    """Whether the client is known to trace: then `begun` is called when the first byte may leave, not before."""
    _logs: bool = field(init=False)
    """It is a client of httpx's that the user has not chosen: it would log the URL, which may hold a key."""
    _parsed: tuple[str, Any] | None = field(default=None, init=False)
    """The last URL, and the same in the client's own class."""

    def __attrs_post_init__(self) -> None:
        self._logs = self.tells_when_begun and not isinstance(self.client, PoolClient)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        begun: Callable[[], None] = lambda: None,
        url: str | None = None,
        seen: Sent | None = None,
    ) -> AsyncIterator[Answer]:
        """The streamed answer; redirects are followed within the origin only, and only with the same method.

        `url`: where to, if not to the endpoint itself; it is a credential. `seen`: takes down what a caller's
        client has sent.
        """
        seen = seen or Sent()
        seen.is_post = method == "POST"
        if self.tells_when_begun:
            extensions = {**_EXTENSIONS, "trace": _tracing(begun)}
        else:
            extensions = {**_EXTENSIONS, "trace": seen.trace}
            begun()
        wanted = url or self.url
        target: Any = self._parsed[1] if self._parsed is not None and self._parsed[0] == wanted else wanted
        for hop in range(_MAX_REDIRECTS + 1):
            request = self.client.build_request(
                method,
                target,
                headers=[(k.encode("ascii"), v.encode("utf-8")) for k, v in headers.items()],
                content=content,
                extensions=extensions,
            )
            seen.any = False  # what a redirect answered has not run
            if target is wanted:
                self._parsed = (wanted, request.url)
            with unlogged() if url is not None or self._logs else nullcontext():
                response = await self._send(request)
            try:
                fields = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in response.headers.raw}
                answer = Answer(response.status_code, fields, response)
                target = _same_origin_redirect(answer, method)
                if target is None or hop == _MAX_REDIRECTS:
                    yield answer
                    return
            finally:
                await let_go(response)

    async def _send(self, request: Any) -> Response:
        try:
            response: Response = await self.client.send(request, stream=True, follow_redirects=False)
        except Exception as error:
            refusal = _refusal_in(error, request)
            if refusal is None:
                raise
            return refusal
        return response


def _refusal_in(error: BaseException | None, request: Any) -> Response | None:
    """The refusal of this request, where the client makes an error of it (`raise_for_status` in a hook).

    Of this very request: an auth flow has requests of its own, whose refusals say nothing of ours. Their body
    may have been closed unread; the status stands. A 2xx that cannot be read is no more than a lost connection.
    """
    for _ in range(_DEEPEST_CAUSE):
        response: Any = getattr(error, "response", None)
        with suppress(Exception):  # an error of the caller's own, which may look like anything
            if response.request is request and not 200 <= response.status_code < 300:
                found: Response = response
                return found
        error = getattr(error, "__cause__", None)
    return None


def _tracing(begun: Callable[[], None]) -> Callable[[str, Any], Awaitable[None]]:
    async def trace(name: str, info: Any) -> None:
        if name.endswith("send_request_headers.started") and not _opens_tunnel(info):
            begun()

    return trace


def _opens_tunnel(info: Any) -> bool:
    """Whether the request that is traced is the `CONNECT` to a proxy, before anything of ours can leave."""
    method = getattr(info.get("request"), "method", None) if isinstance(info, dict) else None
    return method in (b"CONNECT", "CONNECT")


def _same_origin_redirect(answer: Answer, method: str) -> Any | None:
    if answer.status not in ((301, 302, 303, 307, 308) if method == "GET" else (307, 308)):
        return None
    try:
        target = answer.response.url.join(answer.fields["location"])
        old, new = httpx.URL(str(answer.response.url)), httpx.URL(str(target))
    except Exception:  # an absent or unparsable Location is a redirect that is not followed, in either family
        return None
    return target if origin_of(old) == origin_of(new) else None


def is_stream_error(error: BaseException) -> bool:
    """Whether this is an error of a client's, or of the socket below."""
    families: list[type[BaseException]] = [*ERRORS, httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError]
    httpx2 = sys.modules.get("httpx2")
    if httpx2 is not None:
        families += [httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL]
    return isinstance(error, tuple(families))


def body_of(message: Mapping[str, Any]) -> bytes:
    """A message as it goes out."""
    try:
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair is JSON as an escape only
        return json.dumps(message, separators=(",", ":")).encode()
