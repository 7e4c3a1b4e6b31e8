"""Our own client: httpcore's connections, and of httpx what a server can ask for: cookies, decoding.

It has the shape that the shell needs of any client, and httpx's defaults. What of httpx is not wanted here
(auth, hooks, redirects, the models) took half the time of a call; and httpcore's pool, which goes through all its
connections for each request, took a call's time with the square of the calls at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import httpcore
import httpx
from attrs import define, field

from .connections import Connections, close_all

if TYPE_CHECKING:
    from typing_extensions import Self

_COOKIES = "cp437"
"""For cookies to go back in the bytes in which they came: in it each byte is a character, and save 0xFF none is a
space, which the jar would strip."""

ERRORS = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)
"""What httpcore raises; its classes have the names of httpx's."""

_DEFAULTS = {
    b"accept-encoding": b"gzip, deflate",
    b"connection": b"keep-alive",
    b"user-agent": b"mcp-client-guard",
}


@define(eq=False, repr=False)
class PooledRequest:
    """A request, and its URL in a class that can be joined with another."""

    url: httpx.URL
    core: httpcore.Request
    connections: Connections
    """To its origin."""


@define(eq=False, repr=False)
class RawHeaders:
    """The part of `httpx.Headers` that is used."""

    raw: list[tuple[bytes, bytes]]


@define(eq=False, repr=False)
class PooledResponse:
    """A response whose body can be read as it comes."""

    url: httpx.URL
    core: httpcore.Response
    is_encoded: bool
    over: Callable[[], Awaitable[None]]
    """To be called once it is closed."""
    is_stream_consumed = False
    """Read by its user alone, and once."""
    heeds_cancellation = True
    """Where it is read from the network: that costs an event less than to look at each chunk."""
    _is_closed: bool = field(default=False, init=False)

    @property
    def status_code(self) -> int:
        return self.core.status

    @property
    def headers(self) -> RawHeaders:
        return RawHeaders(self.core.headers)

    @property
    def extensions(self) -> Any:
        return self.core.extensions

    def aiter_bytes(self) -> AsyncIterator[bytes]:
        if self.is_encoded:
            encoded = _Encoded(self.core.stream)
            return httpx.Response(self.core.status, headers=self.core.headers, stream=encoded).aiter_bytes()
        return self.aiter_raw()

    def aiter_raw(self) -> AsyncIterator[bytes]:
        stream: Any = self.core.stream
        chunks: AsyncIterator[bytes] = stream.__aiter__()
        return chunks

    async def aclose(self) -> None:
        if self._is_closed:  # its connection may be another request's by now
            return
        self._is_closed = True
        try:
            with anyio.CancelScope(shield=True):
                await self.core.aclose()
        finally:  # asyncio's own cancellation passes through shields
            await self.over()


@define(eq=False, repr=False)
class PoolClient:
    """No limit on connections, no timeout but the request's, no proxies."""

    headers: Mapping[str, str] = field(repr=False)
    _common: dict[bytes, bytes] = field(init=False, repr=False)
    _connections: dict[str, Connections] = field(factory=dict, init=False)
    """By origin."""
    _cookies: httpx.Cookies = field(factory=httpx.Cookies, init=False, repr=False)
    _known: tuple[httpx.URL, httpcore.URL, Connections] | None = field(default=None, init=False)
    """The last URL in both classes, and the connections there."""

    def __attrs_post_init__(self) -> None:
        self._common = _DEFAULTS | {k.lower().encode("ascii"): v.encode() for k, v in self.headers.items()}

    def build_request(
        self,
        method: str,
        url: str | httpx.URL,
        *,
        headers: Iterable[tuple[bytes, bytes]],
        content: bytes | None,
        extensions: Any,
    ) -> PooledRequest:
        known = self._known
        if known is None or known[0] is not url:
            whole = httpx.URL(url)
            core = httpcore.URL(
                scheme=whole.raw_scheme, host=whole.raw_host, port=whole.port, target=whole.raw_path
            )
            connections = self._connections.setdefault(str(core.origin), Connections(core.origin))
            known = self._known = (whole, core, connections)
        fields = {b"host": known[0].netloc, **self._common, **dict(headers)}
        if content is not None:
            fields[b"content-length"] = b"%d" % len(content)
        if self._cookies:
            carrier = httpx.Request(method, known[0])
            carrier.headers.encoding = _COOKIES
            self._cookies.set_cookie_header(carrier)
            if "cookie" in carrier.headers:
                jar = carrier.headers["cookie"].encode(_COOKIES)
                fields[b"cookie"] = _both(fields.get(b"cookie", b""), jar)
        return PooledRequest(
            known[0],
            httpcore.Request(
                method, known[1], headers=list(fields.items()), content=_Body(content), extensions=extensions
            ),
            known[2],
        )

    async def send(self, request: PooledRequest, **_: Any) -> PooledResponse:
        """The response as soon as its headers are here; its body is not read, and no redirect followed."""
        connection = await request.connections.take(request.core.extensions["timeout"]["connect"])
        over = partial(request.connections.give_back, connection)
        try:
            core = await connection.handle_async_request(request.core)
            names = {name.lower() for name, _ in core.headers}
            if b"set-cookie" in names:
                self._keep_cookies(request, core)
        except BaseException:
            await over()
            raise
        return PooledResponse(request.url, core, b"content-encoding" in names, over)

    def _keep_cookies(self, request: PooledRequest, core: httpcore.Response) -> None:
        carrier = httpx.Request(request.core.method.decode(), request.url)
        setting = httpx.Response(core.status, headers=core.headers, request=carrier)
        setting.headers.encoding = _COOKIES
        self._cookies.extract_cookies(setting)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_all([one for each in self._connections.values() for one in each.give_up_idle()])


def _both(own: bytes, jar: bytes) -> bytes:
    """The user's own cookies, and of the jar those that the user's do not name."""
    names = {_name(each) for each in own.split(b";")}
    return b"; ".join(filter(None, (own.rstrip(b"; "), *(c for c in jar.split(b"; ") if _name(c) not in names))))


def _name(cookie: bytes) -> bytes:
    return cookie.partition(b"=")[0].strip()


@define(eq=False)
class _Body:
    """What a request carries, and no generator: trio warns of those that a cancelled request leaves behind."""

    content: bytes | None
    _read: bool = False

    def __aiter__(self) -> Self:
        self._read = False
        return self

    async def __anext__(self) -> bytes:
        if self._read or not self.content:
            raise StopAsyncIteration
        self._read = True
        return self.content


@define(eq=False)
class _Encoded(httpx.AsyncByteStream):
    """A body of httpcore's, for httpx to decode."""

    core: Any

    def __aiter__(self) -> AsyncIterator[bytes]:
        chunks: AsyncIterator[bytes] = self.core.__aiter__()
        return chunks
