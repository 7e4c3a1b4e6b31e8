"""HTTP as the shell needs it: any client with the shape of `httpx.AsyncClient`, origins, and what was written.

httpx2 has the same shape and shares no class with httpx, so nothing here asks for a class: errors are judged
by the family they come from, timeouts are passed as plain numbers.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol
from urllib.request import getproxies

import httpx
from attrs import define, field

from .answer import Answer, Response
from .connections import IDLE_CONNECTION_SECONDS, tls
from .left_over import let_go
from .login import login_watched
from .pool import PoolClient
from .sent import CLIENT_CLOSED, DEEPEST_CAUSE, Sent
from .traced import Traced
from .unlogged import unlogged

logger = logging.getLogger("mcp_client_guard")

CONNECT_SECONDS = 10.0
_EXTENSIONS = {"timeout": {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}}
"""Plain numbers, for a Timeout object of one client family fails in the other."""
_ENCODINGS = {"mcp-session-id": "latin-1"}  # as it is read: it goes back in the bytes in which it came
_MAX_REDIRECTS = 5


class HttpClient(Protocol):
    """The part of `httpx.AsyncClient` that is used: `httpx2.AsyncClient` has it, too."""

    # To type checkers this alone is any signature: `**kwargs` beside a named argument asks for every keyword.
    def build_request(self, *args: Any, **kwargs: Any) -> Any: ...

    async def send(self, *args: Any, **kwargs: Any) -> Any: ...


class Url(Protocol):
    """The part of a URL object that tells it: those of httpx, httpx2 and pydantic have it."""

    @property
    def scheme(self) -> str: ...

    @property
    def host(self) -> str | None: ...


def default_client(url: str, headers: Mapping[str, str]) -> PoolClient | httpx.AsyncClient:
    """Our own client: no limit on connections, no timeout but for connecting; it traces.

    `PoolClient`, unless httpx knows more than that does: proxies, a password in the URL.
    """
    proxies = getproxies().keys() - {"no"}
    if not proxies and not httpx.URL(url).userinfo:
        return PoolClient(headers)
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_CONNECTION_SECONDS
    )
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    return httpx.AsyncClient(headers=dict(headers), limits=limits, timeout=timeout, verify=tls())


def connection_limit(client: HttpClient, url: str) -> int | None:
    """How many connections a caller's client opens at most for this URL, where it can be seen."""
    limit = getattr(_pool_of(client, url), "_max_connections", None)
    return limit if isinstance(limit, int) and limit < sys.maxsize else None


def may_use_http2(client: HttpClient, url: str) -> bool:
    """Whether a caller's client offers HTTP/2 for this URL, where it can be seen."""
    return getattr(_pool_of(client, url), "_http2", None) is True


def is_closed(client: HttpClient) -> bool:
    """Whether a caller's client is closed for good, where it can be seen."""
    return getattr(client, "is_closed", None) is True


def _pool_of(client: HttpClient, url: str) -> Any:
    """httpcore's, or httpcore2's."""
    return getattr(_transport_of(client, httpx.URL(url)), "_pool", None)


def _transport_of(client: HttpClient, url: Any) -> Any:
    chosen = getattr(client, "_transport_for_url", None)  # a mounted one, that of a proxy, or its own
    return getattr(client, "_transport", None) if chosen is None else chosen(url)


def origin_of(url: Any) -> str:
    """Scheme, host and port, with the default port made plain."""
    parsed = httpx.URL(str(url))
    port = parsed.port or {"http": 80, "https": 443}.get(parsed.scheme, 0)
    return f"{parsed.scheme}://{parsed.host}:{port}"


def whole_url(url: Any, client: Any) -> Any:
    """As a text, and with the `base_url` of a caller's client before it where it is relative, as httpx has it.
    What is no URL stays as it is."""
    text, base = str(url) if _is_url(url) else url, getattr(client, "base_url", None)
    try:
        parsed, before = httpx.URL(text), httpx.URL(str(base) if _is_url(base) else "")
    except (TypeError, ValueError, httpx.InvalidURL):
        return text
    if parsed.scheme or parsed.host or not before.host:
        return text
    return str(before.copy_with(raw_path=before.raw_path + parsed.raw_path.lstrip(b"/")))


def _is_url(value: Any) -> bool:
    return isinstance(getattr(value, "scheme", None), str) and hasattr(value, "host")


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


def key_of(url: str) -> str:
    """What names an endpoint that nobody has named. It is shown, and a path may hold a secret, too."""
    return f"{origin_of(url)}#{blake2b(endpoint_of(url).encode(), digest_size=4).hexdigest()}"


def upgrade_of(url: str, reference: str | None) -> str | None:
    """Where this leads from the endpoint, or what is below its path, with its query. None: nowhere."""
    whole = httpx.URL(url)
    path = f"{whole.path.rstrip('/')}/upgrade"
    try:
        return str(whole.copy_with(path=path) if reference is None else whole.join(reference))
    except (ValueError, httpx.InvalidURL):
        return None


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
    _speaks_http2: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._logs = self.tells_when_begun and not isinstance(self.client, PoolClient)

    def sending(self, method: str, begun: Callable[[], None] = lambda: None) -> Sent:
        """For a request that is about to be made: takes down what the client sends of it."""
        return Sent(Traced(method == "POST", self.tells_when_begun, begun))

    @asynccontextmanager
    async def request(
        self,
        method: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        url: str | None = None,
        sent: Sent | None = None,
    ) -> AsyncIterator[Answer]:
        """The streamed answer. Redirects are followed with the same method only, within the origin and to its TLS.

        `url`: where to, if not to the endpoint itself; it is a credential. `sent`: of `sending`.
        """
        sent = sent or self.sending(method)
        build = self._builder(method, headers, content, sent)
        request = self._built(build, url or self.url)
        if not self.tells_when_begun:
            sent.traced.begun()
        for hop in range(_MAX_REDIRECTS + 1):
            sent.goes_as(request)
            with unlogged() if url is not None or self._logs else nullcontext():
                response = await self._send(request, sent)
            self._see_version(response)
            try:
                fields = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in response.headers.raw}
                answer = Answer(response.status_code, fields, response)
                target = _followed(answer, method)
                if target is None or hop == _MAX_REDIRECTS:
                    yield answer
                    return
                sent.redirected()
                # httpx keeps credentials within the origin, and the query; built anew, it would have the client's.
                request = getattr(response, "next_request", None)
                if request is None:
                    request = build(target)
                else:
                    await request.aread()  # as if built: logins sign the body, and a copy is known by it
            finally:
                await let_go(response)

    def _builder(
        self, method: str, headers: Mapping[str, str], content: bytes | None, sent: Sent
    ) -> Callable[[Any], Any]:
        """Makes the request to any URL."""
        return partial(
            self.client.build_request,
            method,
            headers=[(k.encode("ascii"), v.encode(_ENCODINGS.get(k, "utf-8"))) for k, v in headers.items()],
            content=content,
            extensions={**_EXTENSIONS, "trace": sent.traced.trace},
        )

    def _built(self, build: Callable[[Any], Any], url: str) -> Any:
        """The request; most are for the same URL, which is parsed once."""
        if self._parsed is not None and self._parsed[0] == url:
            return build(self._parsed[1])
        request = build(url)
        self._parsed = (url, request.url)
        return request

    async def _send(self, request: Any, sent: Sent) -> Response:
        if is_closed(self.client):
            sent.is_closed = True
            raise ConnectionError(CLIENT_CLOSED)
        login = login_watched(self.client, request, sent)
        try:
            response: Response = await self.client.send(request, stream=True, follow_redirects=False, **login)
        except Exception as error:
            refusal = _refusal_in(error, request, sent)
            if refusal is None:
                raise
            return refusal
        return response

    def _see_version(self, response: Response) -> None:
        """A client whose transport is not httpx's own does not show beforehand what it speaks."""
        if not self._speaks_http2 and response.extensions.get("http_version") == b"HTTP/2":
            self._speaks_http2 = True
            logger.warning("the HTTP client uses HTTP/2: dead connections may not be left, nor calls be cancelled")


def _refusal_in(error: BaseException | None, request: Any, sent: Sent) -> Response | None:
    """The refusal of this request, where the client makes an error of it (`raise_for_status` in a hook).

    Of this very request: an auth flow has requests of its own, whose refusals say nothing of ours. And of its last
    sending: an earlier refusal says nothing of that. Their body may have been closed unread; the status stands.
    A 2xx that cannot be read is no more than a lost connection.
    """
    for _ in range(DEEPEST_CAUSE):
        response: Any = getattr(error, "response", None)
        with suppress(Exception):  # an error of the caller's own, which may look like anything
            is_refusal = response.request is request and not 200 <= response.status_code < 300
            if is_refusal and sent.is_last_word(response):
                found: Response = response
                return found
        error = getattr(error, "__cause__", None)
    return None


def _followed(answer: Answer, method: str) -> Any | None:
    """Where a redirect leads that is followed.

    All that is on a request was meant for one origin, and so is what a redirect may bring: no user of its own.
    """
    if answer.status not in ((301, 302, 303, 307, 308) if method == "GET" else (307, 308)):
        return None
    response: Any = answer.response
    try:
        following = getattr(response, "next_request", None)
        target = response.url.join(answer.fields["location"]) if following is None else following.url
        old, new = httpx.URL(str(response.url)), httpx.URL(str(target))
    except Exception:  # an absent or unparsable Location is a redirect that is not followed, in either family
        return None
    if not _is_within(old, new) or new.userinfo not in (b"", old.userinfo):
        return None
    return target


def _is_within(old: httpx.URL, new: httpx.URL) -> bool:
    """Whether it is the same origin; or the same host by TLS, no less safe, and both on their default ports."""
    is_upgrade = (old.scheme, new.scheme, old.port, new.port) == ("http", "https", None, None)
    return origin_of(old) == origin_of(new) or (is_upgrade and old.host == new.host)


def body_of(message: Mapping[str, Any]) -> bytes:
    """A message as it goes out."""
    try:
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair is JSON as an escape only
        return json.dumps(message, separators=(",", ":")).encode()
