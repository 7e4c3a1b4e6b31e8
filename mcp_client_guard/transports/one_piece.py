"""A request leaves in one piece; what the server says to a large one before it has read all of it is heard."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from typing import Any

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from .heeding import Heed

_FITS = 64 * 1024
"""What a socket takes at once, mostly."""
_READ = 64 * 1024


class OnePiece:
    """A network stream of httpcore's that holds the headers of a request until its body is there: httpcore would
    send two packets, and wake the server twice. It ends a request with an empty write, at the latest it reads."""

    def __init__(self, stream: Any, unwritten: type[Exception]) -> None:
        """`unwritten`: upon which httpcore goes on to read the answer."""
        self._stream = stream
        self._unwritten = unwritten
        self._held = b""
        self._early = b""
        """What has come while a request was written."""
        self._may_hold_more = False
        self._heed = Heed()
        self._socket = stream.get_extra_info("socket")
        self.is_cut = False
        """A request was not written to its end: there can be no other."""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._held += buffer
        if not buffer:
            await self._flush(timeout)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._held:
            await self._flush(timeout)
        if self._early:
            early, self._early = self._early, b""
            return early
        received: bytes = await self._stream.read(max_bytes, timeout)
        self._may_hold_more = len(received) == max_bytes
        if self._heed.is_due(len(received)):  # also before an answer, where 1xx may come for ever
            await checkpoint_if_cancelled()
        return received

    async def _flush(self, timeout: float | None) -> None:
        held, self._held = self._held, b""
        if len(held) <= _FITS:
            await self._stream.write(held, timeout)
        else:
            await self._write_large(held, timeout)

    async def _write_large(self, held: bytes, timeout: float | None) -> None:
        """A server may refuse it unread, and close: then what it said is lost for who goes on writing.

        Raises:
            httpcore.WriteError: it was not written to its end.
        """
        self.is_cut, failed = True, None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hear, tasks.cancel_scope)
            try:
                await self._stream.write(held, timeout)
                self.is_cut = False
            except Exception as error:  # outside of the group it is one of many
                failed = error
            tasks.cancel_scope.cancel()
        if self.is_cut:
            raise failed or self._unwritten("the server has answered before it has read")

    async def _hear(self, writing: anyio.CancelScope) -> None:
        """Stop the writing at the end of what the server says, or at a refusal. A server that answers well may
        read on."""
        with suppress(Exception):  # whoever writes, or reads the answer, meets it, too
            while not (kind := _kind_of(self._early)) and len(self._early) < _READ:
                received = await self._stream.read(_READ)
                if not received:
                    break
                self._early += received
            if kind != b"2":
                writing.cancel()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        if info != "is_readable":
            return self._stream.get_extra_info(info)
        return self._may_hold_more or _is_readable(self._socket)  # anyio keeps what is more than was asked for


def _kind_of(response: bytes) -> bytes:
    """The first digit of its status; nothing before that has come."""
    while response[9:10] == b"1":  # another status follows
        response = response.partition(b"\r\n\r\n")[2]
    return response[9:10]


def _is_readable(sock: socket.socket) -> bool:
    """Whether something has come, the end of the connection too. Asked of each idle connection for each request:
    to find the socket anew takes anyio longer than to look at it."""
    if sock.fileno() < 0:
        return True
    if not hasattr(select, "poll"):  # pragma: no cover - Windows
        return bool(select.select([sock], [], [], 0)[0])
    looking = select.poll()
    looking.register(sock, select.POLLIN)
    return bool(looking.poll(0))
