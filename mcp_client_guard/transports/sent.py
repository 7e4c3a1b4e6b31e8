"""What a client has sent of a request, as far as its transport traces it and its login is seen to let it go."""

from __future__ import annotations

import re
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attrs import define, field

from .body import watch_body
from .pool import ERRORS, keep_alive

DEEPEST_CAUSE = 8
_MOST_WORDS = 200
_UNAUTHORIZED = frozenset({401, 403})
_UNSENDABLE = re.compile(rb"[\0\n\r\v\f]|^[ \t]|[ \t]$")
_NOT_WRITTEN = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})
_NO_CONNECTION = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)


def can_have_written(error: BaseException) -> bool:
    """False only where it is certain that no byte of the request left: connecting failed, or the pool was full."""
    return type(error).__name__ not in _NOT_WRITTEN


def _could_not_connect(error: BaseException | None) -> bool:
    """Whether it comes of an error that says so whoever raises it: the system's, or httpcore's own."""
    for _ in range(DEEPEST_CAUSE):
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
    request: Any = None
    """What was let go last, in the client's own class: this request, or what a login has made of it."""
    _is_read: bool = False
    """The body of that was read, by whoever."""
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
        transports tell nothing. Then it is a matter of the error, if that is of this request.
        """
        if self.any or self._stands:
            return True
        if self.is_ours or self.unsendable is not None or (self.is_watched and not self._is_out):
            return False
        if self._is_read:
            return True
        # To some transports any loss may be one of connecting (httpx-aiohttp: ConnectTimeout).
        return can_have_written(error) or self._is_of_another(error) or not _could_not_connect(error)

    def _is_of_another(self, error: BaseException) -> bool:
        """A hook or an auth flow has requests and errors of its own; what cannot be told is one of those."""
        if isinstance(error, _client_errors()):
            with suppress(Exception):  # one that was not raised by a transport has no request
                return error.request is not self.request  # type: ignore[attr-defined]
        return True

    def is_last_word(self, response: Any) -> bool:
        """Whether this answer says of every sending of the request what became of it."""
        if self._stands or self._stood or any(each is response for each in self._overtaken):
            return False
        return self._status in (None, response.status_code)

    def goes_as(self, request: Any) -> None:
        """This is what is to go out."""
        self.request, self._is_read = request, False
        if not self.is_ours:
            watch_body(request, self._read)

    def _read(self) -> None:
        self._is_read = True

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
            self.refused, self._is_out, self._is_read = response.status_code, False, False

    def redirected(self) -> None:
        """What a redirect answered has not run."""
        self.any, self._is_out = self._stood, False

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
            with suppress(Exception):  # a transport that tells it in another form
                self._status = next(part for part in info["return_value"] if isinstance(part, int))
                self.any = self._stood or self._status not in _UNAUTHORIZED

    def _begin(self, info: Any) -> None:
        if self.is_post and self._unanswered:
            raise SecondSending("the HTTP client would have sent this request twice")
        if self.is_ours:
            self.begun()
        self._stood, self._unanswered, self.any = self.any, True, True
        self.refused = self.unsendable = self._status = None
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


def is_stream_error(error: BaseException) -> bool:
    """Whether this is an error of a client's, or of the socket below."""
    return isinstance(error, (*_client_errors(), OSError))


def _client_errors() -> tuple[type[BaseException], ...]:
    families = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return (*ERRORS, *(kind for each in families for kind in (each.HTTPError, each.StreamError, each.InvalidURL)))
