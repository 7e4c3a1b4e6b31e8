"""The server's end of a WebSocket on a `FakeServer`: every frame, and every byte, is the test's to write.

Needs the extra `ws`; nothing else of the testing kit does.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from anyio import EndOfStream
from anyio.streams.memory import MemoryObjectReceiveStream
from websockets.exceptions import InvalidHandshake, ProtocolError
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from ._http1 import Request
from ._sockets import Closed
from .fake_server import Reply

SUBPROTOCOL = "mcp-upgrade.v1"


class ServedSocket:
    """Made by `accept`. `frames` are those that the client sent, without the answers to our own pings."""

    def __init__(self, reply: Reply, protocol: ServerProtocol, bytes_in: MemoryObjectReceiveStream[bytes]) -> None:
        self._reply = reply
        self._protocol = protocol
        self._bytes_in = bytes_in
        self.frames: list[Frame] = []

    @classmethod
    async def accept(
        cls, request: Request, reply: Reply, *, subprotocol: str | None = SUBPROTOCOL, **headers: str
    ) -> ServedSocket:
        """Answer the handshake with 101.

        Raises:
            websockets.exceptions.InvalidHandshake: it is none; the answer has said so.
        """
        protocol = ServerProtocol(subprotocols=None if subprotocol is None else [Subprotocol(subprotocol)])
        lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.fields)
        protocol.receive_data(f"GET {request.target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
        (handshake,) = protocol.events_received()
        assert isinstance(handshake, Handshake)
        answer = protocol.accept(handshake)
        if protocol.handshake_exc is not None:
            protocol.send_response(answer)
            await reply.write(b"".join(protocol.data_to_send()))
            raise InvalidHandshake(str(protocol.handshake_exc))
        for name, value in headers.items():
            answer.headers[name.replace("_", "-")] = value
        protocol.send_response(answer)
        bytes_in = reply.take_over()
        socket = cls(reply, protocol, bytes_in)
        await socket._write()
        return socket

    async def event(self, event_id: str | None, message: Any = None, stream: str = "standalone") -> None:
        """One event in one frame, as `docs/websocket.md` has it."""
        await self.send(event_frame(event_id, message, stream))

    async def send(self, frame: Any) -> None:
        """Any JSON in one text frame.

        Raises:
            Closed: the client has closed the socket, or has broken its rules.
        """
        if self._protocol.state is not State.OPEN:
            raise Closed
        self._protocol.send_text(json.dumps(frame).encode())
        await self._write()

    async def text(self, data: bytes, *, more: bool = False) -> None:
        """A text frame; with `more`, the first of a fragmented message."""
        self._protocol.send_text(data, fin=not more)
        await self._write()

    async def continuation(self, data: bytes, *, more: bool = False) -> None:
        """The next frame of a fragmented message."""
        self._protocol.send_continuation(data, fin=not more)
        await self._write()

    async def binary(self, data: bytes) -> None:
        """A binary frame."""
        self._protocol.send_binary(data)
        await self._write()

    async def ping(self, data: bytes = b"") -> None:
        """A ping."""
        self._protocol.send_ping(data)
        await self._write()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """A close frame, and the end of the connection."""
        self._protocol.send_close(code, reason)
        await self._write()
        await self._reply.end()

    async def raw(self, *steps: Any) -> None:
        """Bytes that may be no frame at all, and endings: the steps of `Reply.play`."""
        await self._reply.play(*steps)

    async def next(self, opcode: Opcode | None = None) -> Frame:
        """The next frame of the client's (of this kind).

        Raises:
            anyio.EndOfStream: the client has left, or has broken the rules of a socket.
        """
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                if opcode in (None, frame.opcode):
                    return frame
            await self._receive()

    async def closed_with(self) -> int | None:
        """Wait until the client has left: the code of its close frame, or None without a good one."""
        try:
            frame = await self.next(Opcode.CLOSE)
            return int(Close.parse(frame.data).code)
        except (EndOfStream, ProtocolError, UnicodeDecodeError):
            return None

    async def _receive(self) -> None:
        self._protocol.receive_data(await self._bytes_in.receive())
        self.frames += [event for event in self._protocol.events_received() if isinstance(event, Frame)]
        with suppress(OSError, Closed):  # whoever has sent its last does not wait for our answer
            await self._write()
        if self._protocol.parser_exc is not None and not self.frames:
            raise EndOfStream  # what follows a broken frame is none

    async def _write(self) -> None:
        data = b"".join(self._protocol.data_to_send())
        if data and not self._reply.ended:
            await self._reply.write(data)


def event_frame(event_id: str | None, message: Any = None, stream: str = "standalone") -> dict[str, Any]:
    """What a frame holds: `message` is left out for an event without one."""
    frame: dict[str, Any] = {"stream": stream}
    if event_id is not None:
        frame["id"] = event_id
    if message is not None:
        frame["message"] = message
    return frame
