"""A guarded agent on the MCP SDK (1.x or 2.x), offline: a server process on loopback, and a wire that is cut.

A proxy resets the connection in the middle of a call, after its third event. The guard resumes, has the server
prove that it holds the same log, and the caller gets every progress notification once, and the result.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from mcp import ClientSession

from mcp_client_guard import CallInDoubt, CallSettled, Event, Guard, Resumed, SQLiteStore
from mcp_client_guard.testing import Cut, CuttingProxy, How, after_event

SERVER = [sys.executable, str(Path(__file__).with_name("bakery_server.py"))]


def tell(event: Event) -> None:
    """What the guard reports. An application would log it, or count it."""
    match event:
        case Resumed(evidence=evidence):
            print(f"  guard: resumed, {evidence}")
        case CallSettled(method=method, outcome=outcome):
            print(f"  guard: {method} is {outcome.value}")
        case _:
            print(f"  guard: {type(event).__name__}")


async def tell_progress(progress: float, total: float | None, message: str | None) -> None:
    print(f"  progress: {progress:g} of {total:g}")


async def agent(url: str, directory: str) -> None:
    store = SQLiteStore(Path(directory) / "agent.db")
    guard = Guard(url, store=store, key="baker", on_event=tell)
    async with guard.connect() as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        result = await session.call_tool("bake", {"loaves": 4}, progress_callback=tell_progress)
        if doubt := CallInDoubt.find(result):
            print(f"In doubt: {doubt}")  # ask somebody, or check, before calling again
        else:
            print("The result:", *(part.text for part in result.content if part.type == "text"))


@asynccontextmanager
async def server_process() -> AsyncIterator[int]:
    """Its port."""
    async with await anyio.open_process(SERVER, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield int(await process.stdout.receive())
        process.kill()


async def main() -> None:
    cut = Cut(at=after_event(3), how=How.RST)
    with tempfile.TemporaryDirectory() as directory:
        async with server_process() as port, CuttingProxy(port, cuts=[cut]) as proxy:
            await agent(proxy.url, directory)


if __name__ == "__main__":
    anyio.run(main)
