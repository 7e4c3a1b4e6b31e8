"""What a client has sent of a request, as far as its transport traces it and its login is seen to let it go."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attrs import define, field

from .pool import ERRORS, keep_alive

DEEPEST_CAUSE = 8
_MOST_WORDS = 200
_UNAUTHORIZED = frozenset({401, 403})
_UNSENDABLE = re.compile(rb"[\0\n\r\v\f]|^[ \t]|[ \t]$")
_NOT_WRITTEN = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})
_STEPS_TO_CONNECT = ("connect_tcp", "connect_unix_socket", "setup_socks5_connection", "start_tls")
_FAILED_TO_CONNECT = tuple(f"{step}.failed" for step in _STEPS_TO_CONNECT)


def why_lost(error: BaseException) -> str:
    """The kind of the error; where connecting failed, its words as well: no certificate, no such name.

    Only httpcore's own words, and only before anything was sent: others may repeat what is secret.
    """
    name, inner = type(error).__name__, error if isinstance(error, ERRORS) else error.__cause__
    words = str(inner) if isinstance(inner, ERRORS) and name in _NOT_WRITTEN else ""
    return f"{name}: {words[:_MOST_WORDS]}" if words else name


class SecondSending(ConnectionError):
    """A caller's client was about to send a request again that had drawn no answer. Nothing of that has left."""


@define(eq=False)
class Sent:
    """What a client has sent of a request, as far as it is seen.

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
    is_watched: bool = False
    """What the client's login lets go of is seen (`let_go`)."""
    transport_for: Callable[[Any], Any] | None = None
    """Which of the client's transports takes a URL, where nobody else has a hand in what is sent."""
    request: Any = None
    """What was let go last, in the client's own class: this request, or what a login has made of it."""
    _failed: BaseException | None = None
    """What making a connection for that ended in, as traced, and nothing was begun since."""
    _stood: bool = False
    """What `any` was before the last sending."""
    _is_out: bool = False
    """The login has let go of it, and it was not refused."""
    _stands: bool = False
    """So it was before the login let go of it last."""
    _status: int | None = None
    """Of the last sending, as traced."""
    _answer: Any = None
    """What the login has come to know of the last sending."""
    _overtaken: list[Any] = field(factory=list)
    """The same of earlier ones."""
    _unanswered: bool = False
    _is_tunnel: bool = False
    """What is under way is not this request: a proxy is asked for a tunnel to send it through."""
    _fields: Any = ()

    def can_have_left(self, error: BaseException) -> bool:
        """Whether a byte of the request can have left that nobody has refused, now that it ended in this error.

        That nothing was traced proves nothing: auth flows send copies, hooks replace the extensions, and some
        transports tell nothing. Nor is what a transport of the caller's own traces all that it has sent.
        """
        if self.any or self._stands:
            return True
        if self.is_ours or self.unsendable is not None or (self.is_watched and not self._is_out):
            return False
        return not (self._is_by_httpx() and self._is_of_connecting(error))

    def _is_by_httpx(self) -> bool:
        if self.transport_for is None:
            return False
        owner = owner_of(self.transport_for(self.request.url), "handle_async_request")
        return owner is not None and owner.__name__ == "AsyncHTTPTransport"

    def _is_of_connecting(self, error: BaseException) -> bool:
        """Hooks and auth flows have requests and errors of their own: this is that by which connecting failed."""
        cause = error.__cause__
        if cause is not None and cause is self._failed:
            return True
        if type(cause).__name__ == "ProxyError":
            return self._is_tunnel
        is_this = getattr(error, "_request", None) is self.request
        is_traced = self.request.extensions.get("trace") == self.trace  # a full pool itself is not
        return type(cause).__name__ == "PoolTimeout" and is_this and is_traced

    def is_last_word(self, response: Any) -> bool:
        """Whether this answer says of every sending of the request what became of it."""
        if self._stands or self._stood or any(each is response for each in self._overtaken):
            return False
        return self._status in (None, response.status_code)

    def goes_as(self, request: Any) -> None:
        """This is what is to go out."""
        self.request, self._failed, self._is_tunnel, self.unsendable = request, None, False, None

    def let_go(self, request: Any) -> None:
        """The login lets it go out, or what may be a copy of it."""
        self.goes_as(request)
        self._overtaken.append(self._answer)
        self._stands, self._is_out = self._stands or self._is_out, True
        self._answer = self.refused = None

    def came_back(self, response: Any) -> None:
        """What the login had let go of has drawn this. It goes on from a refusal by which nothing has run.

        A refusal that is traced is not that: the transport may have sent a copy since.
        """
        self._answer = response
        if response.status_code in _UNAUTHORIZED:
            self.refused, self._is_out = response.status_code, False

    def redirected(self) -> None:
        """What a redirect answered has not run."""
        self.any, self._is_out = self._stood, False

    async def trace(self, name: str, info: Any) -> None:
        if name.endswith("connect_tcp.complete"):
            keep_alive(_part(info, "return_value"))
        elif name.endswith(_FAILED_TO_CONNECT):
            self._failed = _part(info, "exception")
        elif name.endswith("send_request_headers.started"):
            self._is_tunnel = _opens_tunnel(info)
            if not self._is_tunnel:
                self._begin(info)
        elif self._is_tunnel:
            return
        elif name.endswith("send_request_headers.failed"):
            if type(_part(info, "exception")).__name__ == "LocalProtocolError":  # raised before a byte is written
                self.any, self._unanswered = self._stood, False
                if self.is_ours or self._is_by_httpx():
                    self.unsendable = _why_unsendable(self._fields)
        elif name.endswith("receive_response_headers.complete"):
            self._unanswered = False
            with suppress(Exception):  # a transport that tells it in another form
                self._status = next(part for part in info["return_value"] if isinstance(part, int))
                self.any = self._stood or self._status not in _UNAUTHORIZED

    def _begin(self, info: Any) -> None:
        if self.is_post and self._unanswered:
            raise SecondSending("the HTTP client would have sent this request twice")
        if self.is_ours:
            self.begun()
        self._stood, self._unanswered, self.any = self.any, True, True
        self.refused = self.unsendable = self._status = self._failed = None
        self._fields = getattr(_part(info, "request"), "headers", ())


def _why_unsendable(fields: Any) -> str:
    """The names, for the values may be secret."""
    names: list[str] = []
    with suppress(Exception):
        names = [name.decode("ascii").lower() for name, value in fields if _UNSENDABLE.search(value)]
    return f"a header cannot be sent ({', '.join(names)})" if names else "a header cannot be sent"


def _opens_tunnel(info: Any) -> bool:
    """Whether the request that is traced is the `CONNECT` to a proxy, before anything of ours can leave."""
    return getattr(_part(info, "request"), "method", None) in (b"CONNECT", "CONNECT")


def _part(info: Any, name: str) -> Any:
    return info.get(name) if isinstance(info, dict) else None


def owner_of(thing: Any, method: str) -> type | None:
    """The class of httpx's or httpx2's that has this method; None, if it is anybody else's.

    What was put into that class (to measure, say) takes all that went before.
    """
    if method in getattr(thing, "__dict__", ()):
        return None
    owners = [kind for kind in type(thing).__mro__ if method in vars(kind)]
    is_theirs = owners and owners[0].__module__.partition(".")[0] in ("httpx", "httpx2")
    return owners[0] if is_theirs else None


def is_stream_error(error: BaseException) -> bool:
    """Whether this is an error of a client's, or of the socket below."""
    return isinstance(error, (*_client_errors(), OSError))


def _client_errors() -> tuple[type[BaseException], ...]:
    families = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return (*ERRORS, *(kind for each in families for kind in (each.HTTPError, each.StreamError, each.InvalidURL)))
