"""What a client has sent of a request, as far as its transport traces it and its login is seen to let it go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from attrs import define, field

from mcp_client_guard.core.classify import LOCKED

from .pool import ERRORS
from .traced import Traced

DEEPEST_CAUSE = 8
CLIENT_CLOSED = "the HTTP client is closed"
_MOST_WORDS = 200
_NOT_WRITTEN = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})


def why_lost(error: BaseException) -> str:
    """The kind of the error; where connecting failed, its words as well: no certificate, no such name.

    Only httpcore's own words, and only before anything was sent: others may repeat what is secret.
    """
    name, inner = type(error).__name__, error if isinstance(error, ERRORS) else error.__cause__
    words = str(inner) if isinstance(inner, ERRORS) and name in _NOT_WRITTEN else ""
    return f"{name}: {words[:_MOST_WORDS]}" if words else name


@define(eq=False)
class LetGo:
    """What the client's login has let go of for a request, and what it has come to know of that.

    It knows nothing of what the transport makes of it: one that tries again sends more than it was given.
    """

    transport_for: Callable[[Any], Any] | None = None
    """Which of the client's transports takes a URL. None: its `send` is not httpx's own, and lets go unseen."""
    request: Any = None
    """What goes out, in the client's own class: this request, or what a login has made of it."""
    is_out: bool = False
    """It was let go of, and is neither refused nor redirected."""
    stood: bool = False
    """Something was before the last, too: an answer to that says nothing of all."""
    refused: int | None = None
    """It was, by this status, and the login has let go of nothing since."""
    gave_up: bool = False
    """Whoever it has asked, a person perhaps, took too long."""
    _answer: Any = None
    """What the login has come to know of the last."""
    _overtaken: list[Any] = field(factory=list)
    """What the login has come to know of those before it."""

    def again(self, request: Any) -> None:
        """It goes out, or what may be a copy of it."""
        self.request = request
        self._overtaken.append(self._answer)
        self.stood = self.stood or self.is_out
        self.is_out = True
        self._answer = self.refused = None

    def came_back(self, response: Any) -> None:
        """What was let go of has drawn this. A login goes on from a refusal by which nothing has run.

        A refusal that is traced is not that: the transport may have sent a copy since.
        """
        self._answer = response
        if response.status_code in LOCKED:
            self.refused, self.is_out = response.status_code, False

    def redirected(self) -> None:
        """What a redirect answered has not run."""
        self.is_out = False

    def has_overtaken(self, response: Any) -> bool:
        """Whether something was let go of since this came."""
        return any(each is response for each in self._overtaken)

    def is_to_httpx(self) -> bool:
        """Whether it goes straight to a transport of httpx's own, which traces all that it does."""
        if self.transport_for is None:
            return False
        owner = owner_of(self.transport_for(self.request.url), "handle_async_request")
        return owner is not None and owner.__name__ == "AsyncHTTPTransport"


@define(eq=False)
class Sent:
    """What a client has sent of a request, as far as it is seen.

    A transport that tries again, or on another connection, may have had the request read before. So the class of
    its last error says nothing of that.
    """

    traced: Traced = field(factory=Traced)
    login: LetGo = field(factory=LetGo)
    is_closed: bool = False
    """The client is, and sends nothing any more."""
    _refused_after: int = 0
    """How many sendings were traced when the login last saw an answer."""

    def goes_as(self, request: Any) -> None:
        """This is what is to go out."""
        self.login.request = request
        self.traced.goes_anew()

    def let_go(self, request: Any) -> None:
        """The login lets it go out, or what may be a copy of it."""
        self.login.again(request)
        self.traced.goes_anew()

    def came_back(self, response: Any) -> None:
        """What the login had let go of has drawn this."""
        self.login.came_back(response)
        self._refused_after = self.traced.sendings

    def redirected(self) -> None:
        """What a redirect answered has not run."""
        self.traced.redirected()
        self.login.redirected()

    @property
    def unsendable(self) -> str | None:
        """Why nothing of it can be sent."""
        if self.is_closed:
            return CLIENT_CLOSED
        why = self.traced.malformed
        return why if why is not None and (self.traced.is_ours or self.login.is_to_httpx()) else None

    @property
    def refused(self) -> int | None:
        """It was, by a login's status, and was not sent again."""
        return self.login.refused if self.traced.sendings == self._refused_after else None

    def can_have_left(self, error: BaseException) -> bool:
        """Whether a byte of the request can have left that nobody has refused, now that it ended in this error.

        That nothing was traced proves nothing, but of our own client. Nor is what a transport of the caller's own
        traces all that it has sent.
        """
        if self.traced.any or self.login.stood:
            return True
        is_held = self.login.transport_for is not None and not self.login.is_out
        if self.traced.is_ours or self.unsendable is not None or is_held:
            return False
        return not (self.login.is_to_httpx() and self._is_of_connecting(error))

    def is_of_network(self, error: BaseException) -> bool:
        """Whether the network has failed, and not a login, or a hook."""
        # The refusal of a request of an auth flow's own is not of it; that of ours is an answer.
        is_refusal = getattr(error, "response", None) is not None
        return is_stream_error(error) and not (is_refusal or self.login.gave_up)

    def _is_of_connecting(self, error: BaseException) -> bool:
        """Hooks and auth flows have requests and errors of their own: this is that by which connecting failed."""
        cause = error.__cause__
        if cause is not None and cause is self.traced.failed_to_connect:
            return True
        if type(cause).__name__ == "ProxyError":
            return self.traced.is_tunnel
        request = self.login.request
        is_this = getattr(error, "_request", None) is request
        is_traced = request.extensions.get("trace") == self.traced.trace  # a full pool itself is not
        return type(cause).__name__ == "PoolTimeout" and is_this and is_traced

    def is_last_word(self, response: Any) -> bool:
        """Whether this answer says of every sending of the request what became of it."""
        if self.traced.stood or self.login.stood or self.login.has_overtaken(response):
            return False
        return self.traced.status in (None, response.status_code)


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
