"""`guard.reconnect()`: the user says that the present connections are worth nothing, and no call is harmed."""

from __future__ import annotations

import threading

import anyio
import anyio.to_thread
import pytest

from mcp_client_guard import Disconnected, Guard, GuardError, Resumed
from mcp_client_guard.core.model import Grade
from mcp_client_guard.testing import FakeServer, Reply, Request, ScriptedMcp, progress_of, tool_result

from .hosts import LIMIT, Answer
from .test_reconciling import connected

pytestmark = pytest.mark.anyio


class HalfOpen(ScriptedMcp):
    """The stream of a call says nothing more once it has begun; a resume replays what the server still has."""

    def __init__(self) -> None:
        super().__init__(tools=("charge",))
        self.asked: list[Request] = []

    async def call(self, request: Request, reply: Reply) -> None:
        self.asked.append(request)
        await reply.open_sse()
        await reply.event("", id="p", retry=1)
        await reply.event(progress_of(request, 1), id="e1")
        await anyio.sleep_forever()

    async def resume(self, request: Request, reply: Reply) -> None:
        await reply.open_sse()
        await reply.event(progress_of(self.asked[0], 1), id="e1")
        await reply.event(tool_result(self.asked[0].rpc_id, "charged"), id="e2")
        await reply.finish()


async def test_a_call_on_a_dead_connection_gets_its_answer_without_waiting_for_max_idle() -> None:
    mcp, events, answers = HalfOpen(), [], []
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server:
            guard = Guard(server.url, on_event=events.append)
            async with connected(guard) as host, anyio.create_task_group() as tasks:

                async def call() -> None:
                    answers.append(await host.call())

                tasks.start_soon(call)
                await host.until(lambda: host.progress)
                await guard.reconnect()
    assert answers == [Answer("charged")]
    assert len(mcp.asked) == 1
    assert [e.reason for e in events if isinstance(e, Disconnected) and e.stream != "standalone"] == [
        "reconnect() was called"
    ]
    assert [e.evidence.grade for e in events if isinstance(e, Resumed)] == [Grade.PROVEN]


async def test_it_does_nothing_where_no_connection_is_open() -> None:
    guard = Guard("http://127.0.0.1:1/mcp")
    await guard.reconnect()
    async with FakeServer(ScriptedMcp()) as server:
        guard = Guard(server.url)
        async with connected(guard):
            pass
        await guard.reconnect()


async def test_it_belongs_on_the_event_loop_of_the_connections() -> None:
    raised: list[GuardError] = []
    async with FakeServer(ScriptedMcp()) as server:
        guard = Guard(server.url)

        def elsewhere() -> None:
            try:
                anyio.run(guard.reconnect)
            except GuardError as error:
                raised.append(error)

        async with connected(guard):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            await anyio.to_thread.run_sync(thread.join)
    assert len(raised) == 1
