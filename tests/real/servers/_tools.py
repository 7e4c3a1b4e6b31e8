"""The tools which both Python peers serve; stands alone, for it runs in the peers' environments."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

Report = Callable[[float, float | None], Awaitable[None]]


def ledger(tool: str, label: str) -> None:
    """One line for each execution; the write is one system call, so lines never mix."""
    fd = os.open(os.environ["MCP_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{tool}\t{label}\n".encode())
    finally:
        os.close(fd)


def add(a: int, b: int, label: str = "") -> int:
    """The sum."""
    ledger("add", label)
    return a + b


async def count(n: int, delay: float, label: str, report: Report) -> int:
    """`n` progress notifications, `delay` seconds before each; then `n`."""
    ledger("count", label)
    for step in range(1, n + 1):
        await asyncio.sleep(delay)
        await report(step, n)
    return n


async def slow(seconds: float, heartbeat: float, label: str, report: Report) -> str:
    """Takes `seconds`, with a progress notification each `heartbeat` seconds if that is not 0."""
    ledger("slow", label)
    beats = int(seconds / heartbeat) if heartbeat else 0
    for beat in range(1, beats + 1):
        await asyncio.sleep(heartbeat)
        await report(beat, None)
    await asyncio.sleep(seconds - beats * heartbeat)
    return "done"


async def charge(cents: int, label: str) -> str:
    """Takes money: must never run twice."""
    ledger("charge", label)
    await asyncio.sleep(0.005)
    return f"charged {cents}"


def bound_socket() -> socket.socket:
    """A listening port of the system's choice, told on stdout."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen(512)
    return sock


def serve(app: Any) -> None:
    """Run an ASGI app until the process is ended."""
    import uvicorn

    gc.freeze()  # what was imported stays: thousands of sessions would have it gone through again and again
    sock = bound_socket()
    print(f"PORT {sock.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=0)
    uvicorn.Server(config).run(sockets=[sock])


RETRY_MS = int(os.environ.get("MCP_RETRY_MS", "30"))
