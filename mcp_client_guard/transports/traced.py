"""What the transport of a client tells of its sendings: httpcore's trace, read for one request."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attrs import define

from mcp_client_guard.core.classify import LOCKED

from .connections import keep_alive

_UNSENDABLE = re.compile(rb"[\0\n\r\v\f]|^[ \t]|[ \t]$")
_STEPS_TO_CONNECT = ("connect_tcp", "connect_unix_socket", "setup_socks5_connection", "start_tls")
_FAILED_TO_CONNECT = tuple(f"{step}.failed" for step in _STEPS_TO_CONNECT)


class SecondSending(ConnectionError):
    """A caller's client was about to send a request again that had drawn no answer. Nothing of that has left."""


@define(eq=False)
class Traced:
    """What the client's transport has told of its sendings of one request, or of copies of it.

    It knows of no login, and so not whose doing a sending was. What it has not been told may have been sent all
    the same: auth flows send copies, hooks replace the extensions, and some transports tell nothing.
    """

    is_post: bool = False
    """A POST is not sent a second time by anybody but the core."""
    is_ours: bool = False
    """The client is: then `begun` is called when the first byte may leave."""
    begun: Callable[[], None] = lambda: None
    any: bool = False
    """Some of it was sent, and nothing has come that says that it did not run."""
    stood: bool = False
    """What `any` was before the last sending."""
    sendings: int = 0
    """That were begun."""
    status: int | None = None
    """Of the last sending."""
    malformed: str | None = None
    """Why nothing has left of the last sending, and nothing of another can."""
    failed_to_connect: BaseException | None = None
    """What making a connection for it ended in, where nothing was begun since."""
    is_tunnel: bool = False
    """What is under way is not this request: a proxy is asked for a tunnel to send it through."""
    _is_unanswered: bool = False
    _fields: Any = ()

    def goes_anew(self) -> None:
        """It, or what a login has made of it, is to go out: of that nothing is traced yet."""
        self.failed_to_connect, self.is_tunnel, self.malformed = None, False, None

    def redirected(self) -> None:
        """What a redirect answered has not run."""
        self.any = self.stood

    async def trace(self, name: str, info: Any) -> None:
        if name.endswith("connect_tcp.complete"):
            keep_alive(_part(info, "return_value"))
        elif name.endswith(_FAILED_TO_CONNECT):
            self.failed_to_connect = _part(info, "exception")
        elif name.endswith("send_request_headers.started"):
            self.is_tunnel = _opens_tunnel(info)
            if not self.is_tunnel:
                self._begin(info)
        elif self.is_tunnel:
            return
        elif name.endswith("send_request_headers.failed"):
            if type(_part(info, "exception")).__name__ == "LocalProtocolError":  # raised before a byte is written
                self.any, self._is_unanswered = self.stood, False
                self.malformed = _why_malformed(self._fields)
        elif name.endswith("receive_response_headers.complete"):
            self._is_unanswered = False
            with suppress(Exception):  # a transport that tells it in another form
                self.status = next(part for part in info["return_value"] if isinstance(part, int))
                self.any = self.stood or self.status not in LOCKED

    def _begin(self, info: Any) -> None:
        if self.is_post and self._is_unanswered:
            raise SecondSending("the HTTP client would have sent this request twice")
        if self.is_ours:
            self.begun()
        self.stood = self.any
        self.any = self._is_unanswered = True
        self.malformed = self.status = self.failed_to_connect = None
        self.sendings += 1
        self._fields = getattr(_part(info, "request"), "headers", ())


def _why_malformed(fields: Any) -> str:
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
