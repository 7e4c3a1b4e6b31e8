"""A real server with many lives: always the same port, killed with SIGKILL, its ledger outlives it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import Process
from attrs import define, field

from .peers import HERE, VENVS

SERVERS = {
    "sdk1-log": ("peer-sdk1", "restarted_sdk1.py"),
    "sdk1-sse": ("peer-sdk1", "restarted_sdk1.py"),
    "sdk1-json": ("peer-sdk1", "restarted_sdk1.py"),
    "fastmcp4-log": ("peer-fastmcp4", "restarted_fastmcp4.py"),
    "staged-1.30": ("peer-sdk1", "staged.py"),
    "staged-2.3": ("peer-fastmcp4", "staged.py"),
}
"""With an event log (so that the guard tries to resume), by SSE without one, or by JSON; those of the staged
migration."""


@define(eq=False)
class RestartedServer:
    """One endpoint, one life at a time."""

    name: str
    folder: Path
    lives: int = 0
    _reserved: socket.socket = field(init=False)
    _process: Process | None = field(default=None, init=False)
    """What the lives are forks of."""

    def __attrs_post_init__(self) -> None:
        # Bound and never listening: connections are refused between two lives, and nobody else gets the port.
        self._reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", 0))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def port(self) -> int:
        return int(self._reserved.getsockname()[1])

    async def load(self) -> None:
        """Start the process that lives are forks of. It imports an SDK, and serves nothing."""
        if self._process is None:
            self._process = await self._open()

    async def start(self) -> None:
        """Returns when it listens."""
        await self.load()
        await self._order(b"start\n", b"STARTED\n")
        self.lives += 1

    async def kill(self) -> None:
        """With SIGKILL: nothing more is done, nobody is told. Returns when it is dead."""
        await self._order(b"kill\n", b"KILLED\n")

    async def _order(self, order: bytes, answer: bytes) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(order)
        told = b""
        while not told.endswith(answer):
            try:
                told += await process.stdout.receive()
            except anyio.EndOfStream:
                raise RuntimeError((self.folder / "stderr").read_text(errors="replace")) from None

    async def close(self) -> None:
        """End what runs, and give the port up."""
        if self._process is not None:
            assert self._process.stdin is not None
            await self._process.stdin.aclose()
            await self._process.wait()
            await self._process.aclose()
        self._reserved.close()

    async def _open(self) -> Process:
        environment, script = SERVERS[self.name]
        python = VENVS / environment / "bin" / "python"
        if not python.exists():
            raise RuntimeError(f"{python} is missing: run tests/real/install_peers.py")
        env = os.environ | {
            "MCP_KIND": self.name.partition("-")[2],
            "MCP_PORT": str(self.port),
            "MCP_LEDGER": str(self.folder / "ledger"),
            "MCP_REQUESTS": str(self.folder / "requests"),
            "PYTHONWARNINGS": "ignore",
        }
        with (self.folder / "stderr").open("ab") as errors:
            command = [str(python), str(HERE / "servers" / script)]
            return await anyio.open_process(command, stdin=subprocess.PIPE, stderr=errors, env=env)

    # What it says of itself.

    def executions(self) -> Counter[str]:
        """How often a tool ran under each label."""
        return Counter(label for _, label in _lines(self.folder / "ledger"))

    def initializes(self) -> list[int]:
        """How many `initialize` each life got, in order."""
        seen = Counter(int(life) for life, method in _lines(self.folder / "requests") if method == "initialize")
        return [seen[life] for life in range(1, self.lives + 1)]


def _lines(path: Path) -> list[tuple[str, str]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [(first, second) for first, _, second in (line.partition("\t") for line in lines)]


@asynccontextmanager
async def restarted(name: str, folder: Path) -> AsyncIterator[RestartedServer]:
    """A server in its first life."""
    server = RestartedServer(name, folder)
    try:
        await server.start()
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await server.close()
