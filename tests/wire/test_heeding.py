"""A reader for whom there is always something more is cancelled all the same."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import parse_uri

from mcp_client_guard.core.actions import OpenSocket
from mcp_client_guard.transports.gzipped import Unzipped
from mcp_client_guard.transports.heeding import Heeding
from mcp_client_guard.transports.one_piece import OnePiece
from mcp_client_guard.transports.websocket import Socket

pytestmark = pytest.mark.anyio

ENOUGH = 10_000
HEAD = zlib.compressobj(wbits=31).flush(zlib.Z_SYNC_FLUSH)
A_PONG = b"\x8a\x00"


class Endless:
    """What it is read for is always there: nothing waits."""

    def __init__(self, first: bytes, rest: bytes) -> None:
        self.first, self.rest, self.reads = first, rest, 0

    async def read(self, max_bytes: int = 0, timeout: float | None = None) -> bytes:
        self.reads += 1
        if self.reads > ENOUGH:
            raise EOFError
        return self.first if self.reads == 1 else self.rest

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    __anext__ = read

    def get_extra_info(self, info: str) -> Any:
        return None


def chunks(endless: Endless) -> Callable[[], Awaitable[Any]]:
    return Heeding(endless).__anext__


def unzipped(endless: Endless) -> Callable[[], Awaitable[Any]]:
    return Unzipped(Heeding(endless)).__anext__


def own(endless: Endless) -> Callable[[], Awaitable[Any]]:
    piece = OnePiece(endless, OSError)
    return lambda: piece.read(1)


def frames(endless: Endless) -> Callable[[], Awaitable[Any]]:
    protocol = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN)
    return Socket(OpenSocket(0, 1, {}, ""), protocol, endless, 1000, 30.0).receive


@pytest.mark.parametrize(
    ("reading", "first", "rest"),
    [
        (chunks, b"a", b"a"),
        (chunks, b"a" * 65536, b"a" * 65536),
        (unzipped, HEAD, b"\0\0\0\xff\xff"),
        (own, b"a", b"a"),
        (frames, A_PONG, A_PONG),
    ],
)
async def test_who_never_has_to_wait_looks_whether_it_is_cancelled(
    reading: Callable[[Endless], Callable[[], Awaitable[Any]]], first: bytes, rest: bytes
) -> None:
    endless = Endless(first, rest)
    read = reading(endless)
    with anyio.CancelScope() as scope:
        scope.cancel()
        while True:
            await read()
    assert scope.cancelled_caught
    assert endless.reads <= 16
