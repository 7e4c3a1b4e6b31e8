"""An MCP server that costs next to nothing: bytes in, prepared bytes out, in a process of its own.

`python -m bench.server` prints its port and lives until its standard input ends. It speaks just what the
measures need: sessions and 2026-07-28 at `/mcp`, HTTP+SSE (2024-11-05) at `/sse`; event IDs in sessions only.
The tool's name says how it answers:

| tool | answer |
|---|---|
| `json` | one JSON body |
| `sse` | one identified event that holds the response |
| `stream` | `n` identified notifications of `size` bytes, then the response |
| `prepare` | JSON, when the bytes of such a stream are ready |
| `cut` | a priming event with `retry`, `k` notifications, FIN; the rest up to `n` when resumed |
| `times` | when the last `cut` was cut and when it was resumed, on the system's monotonic clock |
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

TARGET = re.compile(rb"^[A-Z]+ /([a-z]+)(?:/(\d+))? ")
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
SESSION_ID = re.compile(rb"\r\nmcp-session-id: *([^\r]+)", re.IGNORECASE)
LAST_EVENT_ID = re.compile(rb"\r\nlast-event-id: *([^\r]+)", re.IGNORECASE)

TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}}
    for name in ("json", "sse", "stream", "prepare", "cut", "times")
]
BLOCK = 256  # events in one write of small events
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"%stransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def session_line(session: bytes) -> bytes:
    return b"mcp-session-id: %s\r\n" % session if session else b""


def json_answer(session: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n%s" % (
        session_line(session),
        len(body),
        body,
    )


def event(event_id: str, data: bytes) -> bytes:
    """Without an ID if that is empty."""
    id_line = b"id: %s\n" % event_id.encode() if event_id else b""
    return b"%sevent: message\ndata: %s\n\n" % (id_line, data)


def result(request_id: Any, text: str = "done") -> bytes:
    answer = {"jsonrpc": "2.0", "id": request_id, "result": {"content": [{"type": "text", "text": text}]}}
    return json.dumps(answer, separators=(",", ":")).encode()


def notification(data: str) -> bytes:
    params = {"level": "info", "data": data}
    message = {"jsonrpc": "2.0", "method": "notifications/message", "params": params}
    return json.dumps(message, separators=(",", ":")).encode()


def notification_of(size: int) -> bytes:
    return notification("x" * max(0, size - len(notification(""))))


@lru_cache(maxsize=8)
def prepared_blocks(n: int, size: int, prefix: str) -> tuple[bytes, ...]:
    return tuple(blocks(n, size, prefix))


def blocks(n: int, size: int, prefix: str) -> Iterator[bytes]:
    data = notification_of(size)
    step = max(1, min(BLOCK, 262_144 // (len(data) + 40)))
    for start in range(0, n, step):
        numbers = range(start, min(n, start + step))
        yield chunk(b"".join([event(f"{prefix}-{i}" if prefix else "", data) for i in numbers]))


class Cut:
    """A call whose stream is cut after `k` of its `n` notifications."""

    def __init__(self, name: str, request_id: Any, n: int, k: int) -> None:
        self.name, self.request_id, self.n, self.k = name, request_id, n, k
        self.cut_at = self.resumed_at = 0.0

    def events(self, first: int, last: int) -> bytes:
        return b"".join(event(f"{self.name}-{i}", notification(str(i))) for i in range(first, last))


class Server:
    def __init__(self) -> None:
        self.sessions = 0
        self.cuts: dict[str, Cut] = {}
        self.last_cut: Cut | None = None
        self.listeners: list[Connection] = []
        """The streams of HTTP+SSE."""


class Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = b""
        self.session = b""
        self.pending: Iterator[bytes] | None = None
        self.may_write = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 20)

    def pause_writing(self) -> None:
        self.may_write = False

    def resume_writing(self) -> None:
        self.may_write = True
        self.write_pending()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pending = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            length = CONTENT_LENGTH.search(head)
            rest = end + 4 + (int(length[1]) if length else 0)
            if len(self.buffer) < rest:
                return
            body, self.buffer = self.buffer[end + 4 : rest], self.buffer[rest:]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if session := SESSION_ID.search(head):
            self.session = session[1]
        target = TARGET.match(head)
        assert target is not None
        if target[1] == b"sse":
            self.listen()
        elif target[1] == b"messages":
            self.transport.write(ACCEPTED)
            self.server.listeners[int(target[2])].answer_on_stream(json.loads(body))
        elif head.startswith(b"POST"):
            self.answer_post(json.loads(body))
        elif head.startswith(b"GET") and (resume_from := LAST_EVENT_ID.search(head)):
            self.answer_resume(resume_from[1].decode())
        elif head.startswith(b"GET"):
            self.transport.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
        else:
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    def answer_post(self, message: dict[str, Any]) -> None:
        request_id, method = message.get("id"), message.get("method")
        if request_id is None or method is None:
            self.transport.write(ACCEPTED)
        elif method == "initialize":
            self.server.sessions += 1
            self.session = b"bench-%d" % self.server.sessions
            self.transport.write(json_answer(self.session, initialized(message)))
        elif method == "server/discover":
            self.transport.write(json_answer(b"", discovered(request_id)))
        elif method == "tools/call":
            params = message["params"]
            getattr(self, f"call_{params['name']}")(request_id, **params.get("arguments") or {})
        else:
            answer = {"jsonrpc": "2.0", "id": request_id, "result": {"tools": TOOLS}}
            self.transport.write(json_answer(self.session, json.dumps(answer).encode()))

    def listen(self) -> None:
        """The stream of HTTP+SSE, on which everything is answered."""
        endpoint = b"event: endpoint\ndata: /messages/%d\n\n" % len(self.server.listeners)
        self.server.listeners.append(self)
        self.transport.write(SSE_HEAD % b"" + chunk(endpoint))

    def answer_on_stream(self, message: dict[str, Any]) -> None:
        request_id, method = message.get("id"), message.get("method")
        if request_id is None:
            return
        params = message.get("params") or {}
        arguments = params.get("arguments") or {}
        parts: tuple[bytes, ...] = ()
        if params.get("name") in ("prepare", "stream"):
            parts = prepared_blocks(arguments["n"], arguments["size"], "")
        answer = initialized(message) if method == "initialize" else result(request_id)
        streamed = parts if params.get("name") == "stream" else ()
        self.pending = chain(self.pending or (), streamed, [chunk(event("", answer))])
        self.write_pending()

    def call_json(self, request_id: Any) -> None:
        self.transport.write(json_answer(self.session, result(request_id)))

    def call_sse(self, request_id: Any) -> None:
        answer = event(f"r-{request_id}" if self.session else "", result(request_id))
        self.transport.write(SSE_HEAD % session_line(self.session) + chunk(answer) + LAST_CHUNK)

    def call_prepare(self, request_id: Any, n: int, size: int, prefix: str) -> None:
        prepared_blocks(n, size, prefix if self.session else "")
        self.call_json(request_id)

    def call_stream(self, request_id: Any, n: int, size: int, prefix: str, prepare: bool = True) -> None:
        prefix = prefix if self.session else ""
        parts = prepared_blocks(n, size, prefix) if prepare else blocks(n, size, prefix)
        self.transport.write(SSE_HEAD % session_line(self.session))
        self.pending = self.with_response(iter(parts), prefix, request_id)
        self.write_pending()

    @staticmethod
    def with_response(parts: Iterator[bytes], prefix: str, request_id: Any) -> Iterator[bytes]:
        yield from parts
        yield chunk(event(f"{prefix}-response" if prefix else "", result(request_id))) + LAST_CHUNK

    def write_pending(self) -> None:
        while self.may_write and self.pending is not None:
            part = next(self.pending, None)
            if part is None:
                self.pending = None
            else:
                self.transport.write(part)

    def call_cut(self, request_id: Any, n: int, k: int, retry: int) -> None:
        cut = self.server.last_cut = Cut(f"c{len(self.server.cuts)}", request_id, n, k)
        self.server.cuts[cut.name] = cut
        priming = f"id: {cut.name}-0\nretry: {retry}\ndata: \n\n".encode()
        self.transport.write(SSE_HEAD % session_line(self.session) + chunk(priming + cut.events(1, k + 1)))
        self.transport.close()
        cut.cut_at = time.monotonic()

    def answer_resume(self, last_event_id: str) -> None:
        name, _, position = last_event_id.rpartition("-")
        cut = self.server.cuts.get(name)
        if cut is None:
            self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        cut.resumed_at = cut.resumed_at or time.monotonic()
        rest = cut.events(int(position) + 1, cut.n + 1) + event(f"{name}-response", result(cut.request_id))
        self.transport.write(SSE_HEAD % session_line(self.session) + chunk(rest) + LAST_CHUNK)

    def call_times(self, request_id: Any) -> None:
        cut = self.server.last_cut
        assert cut is not None
        times = {"cut_at": cut.cut_at, "resumed_at": cut.resumed_at}
        self.transport.write(json_answer(self.session, result(request_id, json.dumps(times))))


def initialized(message: dict[str, Any]) -> bytes:
    answer = {
        "protocolVersion": message["params"]["protocolVersion"],
        "capabilities": {"tools": {}, "logging": {}},
        "serverInfo": {"name": "bench", "version": "1"},
    }
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}).encode()


def discovered(request_id: Any) -> bytes:
    answer = {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "resultType": "complete",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "bench", "version": "1"}},
    }
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "result": answer}).encode()


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = Server()
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=1024)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
