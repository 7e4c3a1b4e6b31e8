"""The connections of our own client to one origin."""

from __future__ import annotations

import socket
import ssl
import sys
from collections import deque
from contextlib import suppress
from functools import cache
from typing import Any

import anyio
import httpcore
import httpx
from attrs import define, field

from .one_piece import OnePiece

IDLE_CONNECTION_SECONDS = 1.0
"""A POST into a closing socket is a needless doubt. uvicorn closes an idle one after 5 s, gunicorn after 2."""

_MOST_IDLE = 20
"""Connections that are kept for the next request."""

_FEW = 10
"""Connections that are made without a look whether one in use comes free."""

_PATIENCE = 0.001
"""Seconds for which a request beyond `_FEW` waits for one to come free, and for each that waits before it: in a
crowd one connection serves many requests, each sooner than it could have connected, and where none comes free the
others are made, one a millisecond."""


@define(eq=False, repr=False)
class Connections:
    """No limit on their number; each is one request's until it is given back."""

    origin: httpcore.Origin
    _idle: list[httpcore.AsyncHTTP11Connection] = field(factory=list, init=False)
    """The one used last is the last."""
    _in_use: int = field(default=0, init=False)
    _waiting: deque[anyio.Event] = field(factory=deque, init=False)
    """Requests, in the order in which they came."""

    async def take(self, connect_timeout: float | None) -> httpcore.AsyncHTTP11Connection:
        """An idle connection, or a new one: nobody else has it until it is given back.

        Raises:
            httpcore.NetworkError, httpcore.TimeoutException: there is no way to the origin.
        """
        connection = await self._take_idle()
        if connection is None and self._in_use >= _FEW:
            await self._wait_for_another()
            connection = await self._take_idle()
        self._in_use += 1
        if connection is not None:
            return connection
        try:
            return await _connect(self.origin, connect_timeout)
        except BaseException:
            self._in_use -= 1
            raise

    async def give_back(self, connection: httpcore.AsyncHTTP11Connection) -> None:
        """One that a whole response has come on, to a whole request, can have the next; any other is closed."""
        self._in_use -= 1
        stream: Any = connection._network_stream
        left = [] if connection.is_available() and not stream.is_cut else [connection]
        if not left:
            self._idle.append(connection)
            if self._waiting:
                self._waiting.popleft().set()
        while self._idle and (len(self._idle) > _MOST_IDLE or self._idle[0].has_expired()):
            left.append(self._idle.pop(0))
        await close_all(left)

    def give_up_idle(self) -> list[httpcore.AsyncHTTP11Connection]:
        """They are the caller's to close."""
        idle, self._idle = self._idle, []
        return idle

    async def _take_idle(self) -> httpcore.AsyncHTTP11Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await close_all([connection])
        return None

    async def _wait_for_another(self) -> None:
        is_free = anyio.Event()
        self._waiting.append(is_free)
        try:
            with anyio.move_on_after(_PATIENCE * len(self._waiting)):
                await is_free.wait()
        finally:
            if not is_free.is_set():
                self._waiting.remove(is_free)


async def _connect(origin: httpcore.Origin, timeout: float | None) -> httpcore.AsyncHTTP11Connection:
    host = origin.host.decode("ascii")
    stream = await httpcore.AnyIOBackend().connect_tcp(host, origin.port, timeout)
    keep_alive(stream)
    if origin.scheme == b"https":
        try:
            stream = await stream.start_tls(tls(), host, timeout)
        except BaseException:  # httpcore closes it only where that is no cancellation
            with anyio.CancelScope(shield=True), suppress(Exception):
                await stream.aclose()
            raise
    whole: Any = OnePiece(stream, httpcore.WriteError)
    connection = httpcore.AsyncHTTP11Connection(origin, whole, IDLE_CONNECTION_SECONDS)
    connection._state_lock = _NoLock()  # type: ignore[assignment]
    return connection


async def close_all(connections: list[httpcore.AsyncHTTP11Connection]) -> None:
    """Of those that nobody needs: what closing one raises is no request's, and keeps no other open."""
    while connections:
        connection = connections.pop()
        try:
            with anyio.CancelScope(shield=True), suppress(Exception):
                await connection.aclose()
        except BaseException:  # asyncio's own cancellation passes through shields
            await close_all(connections)
            raise


class _NoLock:
    """For a connection that has one request at a time: httpcore's own lock takes a turn of the event loop."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


@cache
def tls() -> ssl.SSLContext:
    """One for all: reading the trusted certificates takes longer than connecting.

    Trusted are those that the installed SDK's own client trusts: the system's with httpx2, which SDK 2.x has, and
    those of certifi with httpx.
    """
    family: Any = sys.modules.get("httpx2", httpx)
    context: ssl.SSLContext = family.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def keep_alive(stream: Any) -> None:
    """The kernel finds a dead peer of a silent stream; where it can be told how soon, within two minutes.

    Unless it does so already, at the pace that the caller has chosen.
    """
    with suppress(Exception):  # a stream that is no socket's
        sock = stream.get_extra_info("socket")
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
