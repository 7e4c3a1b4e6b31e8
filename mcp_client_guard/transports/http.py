"""HTTP as the shell needs it: any client with the shape of `httpx.AsyncClient`, origins, and what was written.

httpx2 has the same shape and shares no class with httpx, so nothing here asks for a class: errors are judged
by the family they come from, timeouts are passed as plain numbers.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
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
from .left_over import let_go
from .pool import ERRORS, IDLE_CONNECTION_SECONDS, PoolClient, keep_alive, tls
from .unlogged import unlogged

logger = logging.getLogger("mcp_client_guard")

CONNECT_SECONDS = 10.0
_EXTENSIONS = {"timeout": {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}}
"""Plain numbers, for a Timeout object of one client family fails in the other."""
_MAX_REDIRECTS = 5
_DEEPEST_CAUSE = 8
_MOST_WORDS = 200
_UNAUTHORIZED = frozenset({401, 403})
_UNSENDABLE = re.compile(rb"[\0\n\r\v\f]|^[ \t]|[ \t]$")
_NOT_WRITTEN = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})
_NO_CONNECTION = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)


class HttpClient(Protocol):
    """The part of `httpx.AsyncClient` that is used: `httpx2.AsyncClient` has it, too."""

    # To type checkers this alone is any signature: `**kwargs` beside a named argument asks for every keyword.
    def build_request(self, *args: Any, **kwargs: Any) -> Any: ...

    async def send(self, *args: Any, **kwargs: Any) -> Any: ...


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


def upgrade_of(url: str, reference: str | None) -> str | None:
    """Where this leads from the endpoint, or what is below its path, with its query. None: nowhere."""
    whole = httpx.URL(url)
    path = f"{whole.path.rstrip('/')}/upgrade"
    try:
        return str(whole.copy_with(path=path) if reference is None else whole.join(reference))
    except (ValueError, httpx.InvalidURL):
        return None


def can_have_written(error: BaseException) -> bool:
    """False only where it is certain that no byte of the request left: connecting failed, or the pool was full."""
    return type(error).__name__ not in _NOT_WRITTEN


def _could_not_connect(error: BaseException | None) -> bool:
    """Whether it comes of an error that says so whoever raises it: the system's, or httpcore's own."""
    for _ in range(_DEEPEST_CAUSE):
        is_core_s = type(error).__module__.partition(".")[0] in ("httpcore", "httpcore2")
        if isinstance(error, _NO_CONNECTION) or (is_core_s and type(error).__name__ in _NOT_WRITTEN):
            return True
        error = getattr(error, "__cause__", None)
    return False


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
    """What a client has sent of a request, as far as its transport traces.

    A transport that tries again, or on another connection, may have had the request read before. So the class of
    its last error says nothing of that; and a POST is not sent a second time by anybody but the core.
    """

    any: bool = False
    """Some of it was sent, and nothing has come that says that it did not run."""
    refused: int | None = None
    """It was, by a login's status, and was not sent again."""
    unsendable: str | None = None
    """Why nothing of it can be sent."""
    is_post: bool = False
    is_ours: bool = False
    """The client is: then this is all that has left, and `begun` is called when the first byte may leave."""
    begun: Callable[[], None] = lambda: None
    request: Any = None
    """The last one, in the client's own class."""
    _stood: bool = False
    """What `any` was before the last sending."""
    _unanswered: bool = False
    _is_tunnel: bool = False
    """What is under way is not this request: a proxy is asked for a tunnel to send it through."""
    _fields: Any = ()

    def can_have_left(self, error: BaseException) -> bool:
        """Whether a byte of the request can have left that nobody has refused, now that it ended in this error.

        That nothing was traced proves nothing: auth flows send copies, hooks replace the extensions, and some
        transports tell nothing. Then it is a matter of the error, if that is of this request.
        """
        if self.any or self.is_ours or self.unsendable is not None:
            return self.any
        is_of_another = self._is_of_another(error)
        if _is_of_login(error) or (self.refused is not None and is_of_another):
            return False
        if can_have_written(error) or is_of_another:
            return True
        # To some transports any loss may be one of connecting (httpx-aiohttp: ConnectTimeout).
        return self.refused is None and not _could_not_connect(error)

    def _is_of_another(self, error: BaseException) -> bool:
        """A hook or an auth flow has requests of its own, and errors of its own."""
        if not isinstance(error, _client_errors()):
            return True
        with suppress(Exception):  # one that was not raised by a transport has no request
            return bool(error.request.content != self.request.content)  # type: ignore[attr-defined]
        return False

    async def trace(self, name: str, info: Any) -> None:
        if name.endswith("connect_tcp.complete"):
            keep_alive(_part(info, "return_value"))
        elif name.endswith("send_request_headers.started"):
            self._is_tunnel = _opens_tunnel(info)
            if not self._is_tunnel:
                self._begin(info)
        elif self._is_tunnel:
            return
        elif name.endswith("send_request_headers.failed"):
            if type(_part(info, "exception")).__name__ == "LocalProtocolError":  # raised before a byte is written
                self.any, self._unanswered = self._stood, False
                self.unsendable = _why_unsendable(self._fields)
        elif name.endswith("receive_response_headers.complete"):
            self._unanswered = False
            with suppress(Exception):  # an auth flow goes on from a refusal by which nothing has run
                found = [part for part in info["return_value"] if isinstance(part, int) and part in _UNAUTHORIZED]
                self.any, self.refused = not found, found[0] if found else None

    def _begin(self, info: Any) -> None:
        if self.is_post and self._unanswered:
            raise SecondSending("the HTTP client would have sent this request twice")
        if self.is_ours:
            self.begun()
        self._stood, self._unanswered, self.any = self.any, True, True
        self.refused = self.unsendable = None
        self._fields = getattr(_part(info, "request"), "headers", ())


def _why_unsendable(fields: Any) -> str:
    """The names, for the values may be secret."""
    names: list[str] = []
    with suppress(Exception):
        names = [name.decode("ascii").lower() for name, value in fields if _UNSENDABLE.search(value)]
    return f"a header cannot be sent ({', '.join(names)})" if names else "a header cannot be sent"


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
        """The streamed answer. Redirects are followed with the same method only, within the origin and to its TLS.

        `url`: where to, if not to the endpoint itself; it is a credential. `seen`: takes down what a caller's
        client has sent.
        """
        seen = seen or Sent()
        seen.is_post, seen.is_ours, seen.begun = method == "POST", self.tells_when_begun, begun
        build = partial(
            self.client.build_request,
            method,
            headers=[(k.encode("ascii"), v.encode("utf-8")) for k, v in headers.items()],
            content=content,
            extensions={**_EXTENSIONS, "trace": seen.trace},
        )
        wanted = url or self.url
        if self._parsed is not None and self._parsed[0] == wanted:
            request = build(self._parsed[1])
        else:
            request = build(wanted)
            self._parsed = (wanted, request.url)
        if not self.tells_when_begun:
            begun()
        for hop in range(_MAX_REDIRECTS + 1):
            seen.request = request
            with unlogged() if url is not None or self._logs else nullcontext():
                response = await self._send(request)
            self._see_version(response)
            try:
                fields = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in response.headers.raw}
                answer = Answer(response.status_code, fields, response)
                target = _followed(answer, method)
                if target is None or hop == _MAX_REDIRECTS:
                    yield answer
                    return
                seen.any = False  # what a redirect answered has not run
                # httpx keeps credentials within the origin, and the query; built anew, it would have the client's.
                request = getattr(response, "next_request", None) or build(target)
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

    def _see_version(self, response: Response) -> None:
        """A client whose transport is not httpx's own does not show beforehand what it speaks."""
        if not self._speaks_http2 and response.extensions.get("http_version") == b"HTTP/2":
            self._speaks_http2 = True
            logger.warning("the HTTP client uses HTTP/2: dead connections may not be left, nor calls be cancelled")


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


def _opens_tunnel(info: Any) -> bool:
    """Whether the request that is traced is the `CONNECT` to a proxy, before anything of ours can leave."""
    return getattr(_part(info, "request"), "method", None) in (b"CONNECT", "CONNECT")


def _is_of_login(error: BaseException) -> bool:
    """Whether the SDK's OAuth classes have raised it: before they send our request, or when it drew 401 or 403."""
    return any(kind.__name__ == "OAuthFlowError" for kind in type(error).__mro__)


def _part(info: Any, name: str) -> Any:
    return info.get(name) if isinstance(info, dict) else None


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


def is_stream_error(error: BaseException) -> bool:
    """Whether this is an error of a client's, or of the socket below."""
    return isinstance(error, (*_client_errors(), OSError))


def _client_errors() -> tuple[type[BaseException], ...]:
    families: list[type[BaseException]] = [*ERRORS, httpx.HTTPError, httpx.StreamError, httpx.InvalidURL]
    httpx2 = sys.modules.get("httpx2")
    if httpx2 is not None:
        families += [httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL]
    return tuple(families)


def body_of(message: Mapping[str, Any]) -> bytes:
    """A message as it goes out."""
    try:
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair is JSON as an escape only
        return json.dumps(message, separators=(",", ":")).encode()
