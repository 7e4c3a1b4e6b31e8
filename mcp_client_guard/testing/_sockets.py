"""Plain TCP sockets on anyio, with the endings a network can give a connection: FIN, half close and RST."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import anyio

try:
    import fcntl
    import termios
except ImportError:  # pragma: no cover - Windows
    fcntl = termios = None  # type: ignore[assignment,unused-ignore]


class Closed(Exception):
    """The connection was ended on this side while an operation was under way."""


class Socket:
    """A connected, non-blocking TCP socket. One task may receive while another sends."""

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._raw = raw
        self.closed = False

    @classmethod
    async def connect(cls, host: str, port: int) -> Socket:
        """Open a connection; raises `OSError` when nobody listens there."""
        raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        raw.setblocking(False)
        try:
            try:
                raw.connect((host, port))
            except BlockingIOError:
                await anyio.wait_writable(raw)
            if code := raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, f"cannot connect to {host}:{port}")
        except BaseException:
            anyio.notify_closing(raw)
            raw.close()
            raise
        return cls(raw)

    async def receive(self, limit: int = 65536) -> bytes:
        """The next bytes; `b""` at the peer's FIN. Raises `OSError` at its RST, `Closed` after our close."""
        while True:
            self._check()
            try:
                return self._raw.recv(limit)
            except BlockingIOError:
                await self._wait(reading=True)

    async def send(self, data: bytes) -> None:
        """Hand all of `data` to the kernel."""
        view = memoryview(data)
        while view:
            self._check()
            try:
                view = view[self._raw.send(view) :]
            except BlockingIOError:
                await self._wait(reading=False)

    async def drained(self) -> None:
        """Wait until the peer's kernel has acknowledged all, where ours tells: an RST takes the rest back."""
        while not self.closed and self._unacknowledged():  # noqa: ASYNC110 (the kernel has no event for this)
            await anyio.sleep(0.001)

    def half_close(self) -> None:
        """Send a FIN and go on receiving."""
        if not self.closed:
            with suppress(OSError):  # the peer ended it first
                self._raw.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End both directions with a FIN, even if bytes of the peer were left unread."""
        self.half_close()
        self._end()

    def abort(self) -> None:
        """End the connection with an RST."""
        if not self.closed:
            self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._end()

    def _end(self) -> None:
        if not self.closed:
            self.closed = True
            anyio.notify_closing(self._raw)
            self._raw.close()

    def _unacknowledged(self) -> int:
        if fcntl is None:  # pragma: no cover - Windows, which does not tell
            return 0
        answer = bytearray(4)
        fcntl.ioctl(self._raw.fileno(), termios.TIOCOUTQ, answer)
        return int(struct.unpack("i", answer)[0])

    def _check(self) -> None:
        if self.closed:
            raise Closed

    async def _wait(self, *, reading: bool) -> None:
        try:
            await (anyio.wait_readable(self._raw) if reading else anyio.wait_writable(self._raw))
        except anyio.ClosedResourceError:
            raise Closed from None


class Listener:
    """A listening socket on 127.0.0.1, on a free port unless one is named."""

    def __init__(self, port: int = 0) -> None:
        self._raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._raw.bind(("127.0.0.1", port))
        self._raw.listen(512)
        self._raw.setblocking(False)
        self.port: int = self._raw.getsockname()[1]
        self._closed = False

    async def accept(self) -> Socket:
        """The next connection; raises `Closed` after `close()`."""
        while not self._closed:
            try:
                return Socket(self._raw.accept()[0])
            except BlockingIOError:
                try:
                    await anyio.wait_readable(self._raw)
                except anyio.ClosedResourceError:
                    break
        raise Closed

    def close(self) -> None:
        """Stop listening: the next connection is refused."""
        if not self._closed:
            self._closed = True
            anyio.notify_closing(self._raw)
            self._raw.close()
