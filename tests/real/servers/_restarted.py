"""What a server that is killed and started again needs; stands alone, for it runs in the peers' environments.

The process that is started serves nothing: it imports everything, and each life is a fork of it. So an outage
is as long as the test makes it, and a life costs next to nothing. On stdin it is told `start` and `kill`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from typing import Any

import _tools

READ_ONLY = {"readOnlyHint": True}
IDEMPOTENT = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True}
UNSAFE = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False}


async def run(tool: str, label: str, seconds: float) -> str:
    """What all three tools do: it has happened once the line is in the ledger."""
    _tools.ledger(tool, label)
    await asyncio.sleep(seconds)
    return f"{tool} of {label}"


class CountsRequests:
    """Writes the life and the JSON-RPC method of each request to `MCP_REQUESTS` before the server sees it."""

    def __init__(self, app: Any, life: int) -> None:
        self.app = app
        self.life = life

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        parts, whole = [], b""
        while not parts or parts[-1].get("more_body"):
            parts.append(await receive())
            whole += parts[-1].get("body", b"")
        self._note(whole)
        left = iter(parts)

        async def again() -> Any:
            return next(left, None) or await receive()

        await self.app(scope, again, send)

    def _note(self, body: bytes) -> None:
        try:
            method = json.loads(body).get("method")
        except ValueError:  # the client was gone before its body was whole
            return
        fd = os.open(os.environ["MCP_REQUESTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{self.life}\t{method}\n".encode())
        finally:
            os.close(fd)


def serve(app: Any) -> None:
    """Be started and killed as often as stdin says, always on the port `MCP_PORT`."""
    import uvicorn

    life, pid = 0, 0
    for order in sys.stdin:
        if order == "start\n":
            life += 1
            pid = os.fork()
            if pid == 0:
                sock = _listening()
                print("STARTED", flush=True)
                config = uvicorn.Config(CountsRequests(app, life), log_level="error")
                uvicorn.Server(config).run(sockets=[sock])
                return
        elif pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pid = 0
            print("KILLED", flush=True)
    if pid:  # the test is over
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _listening() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the test holds the port between two lives
    sock.bind(("127.0.0.1", int(os.environ["MCP_PORT"])))
    sock.listen(512)
    return sock
