"""A connection that is never left (a notebook's, a fixture's): a call is in flight when its event loop ends.

python -m tests.wire.never_left memory|sqlite same|another asyncio|trio DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from anyio.from_thread import start_blocking_portal

from mcp_client_guard import Guard, MemoryStore, Outcome, SQLiteStore
from mcp_client_guard._guard import Connection
from mcp_client_guard._messages import plain_codec
from mcp_client_guard.testing import FakeServer, How

from .hosts import LIMIT, PlainHost, Streams, answer, events, progress


async def lose(guard: Guard) -> None:
    host = PlainHost()
    host.read, host.write = await Connection(guard, plain_codec).__aenter__()
    await host.post("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}})
    assert "result" in await host.read.receive()
    await host.notify("notifications/initialized")
    await host.post("tools/call", {"name": "charge", "arguments": {}, "_meta": {"progressToken": 1}})
    assert (await host.read.receive())["method"] == "notifications/progress"


async def go_on(guard: Guard) -> None:
    host = PlainHost()
    with anyio.fail_after(LIMIT):
        await guard.reconnect()
        async with Connection(guard, plain_codec) as (host.read, host.write), anyio.create_task_group() as tasks:
            tasks.start_soon(host.listen)
            await host.start()
            found = [(call.tool, call.outcome) for call in await guard.recovered()]
            assert found == [("charge", Outcome.IN_DOUBT)]
            assert (await host.call()).doubt
            assert (await host.call("other")).text == "other"
            tasks.cancel_scope.cancel()


def main(store: str, whose: str, backend: str, directory: str) -> None:
    mcp, memory = Streams(events(progress(1), end=How.STALL)), MemoryStore()
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(FakeServer(mcp)) as server:
        first, second = (
            Guard(server.url, store=memory if store == "memory" else SQLiteStore(Path(directory) / "agent.db"))
            for _ in range(2)
        )
        anyio.run(lose, first, backend="asyncio")
        assert first.state == "closed"
        mcp.first = events(answer("other"))
        anyio.run(go_on, first if whose == "same" else second, backend=backend)
    assert mcp.executed == ["charge", "other"]


if __name__ == "__main__":
    main(*sys.argv[1:])
