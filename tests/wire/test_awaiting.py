"""A server that writes its answers to the standalone stream, and says another thing to the POST (the Ruby SDK)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcp_client_guard import CallSettled, Disconnected, Outcome, SessionLost
from mcp_client_guard.core import machine
from mcp_client_guard.core.inputs import TimerElapsed
from mcp_client_guard.core.machine import Machine
from mcp_client_guard.core.model import JSON
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.testing import How, Reply, Request, ScriptedMcp, chunk, result, sse_event, tool_result

from .hosts import Answer, Playing, plainly, run_together

pytestmark = pytest.mark.anyio


class Ruby(ScriptedMcp):
    """Each answer goes to the GET stream, if there is one; `late`: once that is set."""

    def __init__(self, status: int = 200, late: anyio.Event | None = None, **parts: Any) -> None:
        super().__init__(**parts)
        self.status = status
        self.late = late
        self.ran = 0
        self.gets: list[Any] = []
        self.opened = anyio.Event()

    async def standalone(self, request: Request, reply: Reply) -> None:
        send, answers = anyio.create_memory_object_stream[JSON](100)
        self.gets.append(send)
        await reply.open_sse()
        self.opened.set()
        async with send, answers:
            async for message in answers:
                if self.late is not None:
                    await self.late.wait()
                await self.write(reply, chunk(sse_event(message)))

    async def write(self, reply: Reply, event: bytes) -> None:
        await reply.write(event)

    async def accept(self, message: JSON, reply: Reply) -> None:
        if not self.gets:
            await reply.json(message)
            return
        self.gets[-1].send_nowait(message)
        if self.status == 200:
            await reply.json({"accepted": True})
        else:
            await reply.status(self.status)

    async def call(self, request: Request, reply: Reply) -> None:
        self.ran += 1
        await self.accept(tool_result(request.rpc_id, request.json["params"]["name"]), reply)

    async def other(self, request: Request, reply: Reply) -> None:
        if request.rpc_method == "resources/list":  # on a connection of its own
            await reply.json(result(request.rpc_id, {"resources": []}))
        else:
            await self.accept(result(request.rpc_id, {"tools": []}), reply)


@pytest.mark.parametrize("status", [200, 202])
async def test_what_the_post_said_is_not_what_the_call_came_to(status: int) -> None:
    late = anyio.Event()
    mcp = Ruby(status, late)
    async with plainly(mcp) as (server, host):
        await mcp.opened.wait()
        call = await host.post("tools/call", {"name": "charge", "arguments": {}})
        await server.wait_for(lambda r: r.rpc_method == "tools/call")
        for _ in range(3):  # by then what the call's POST drew was read
            await host.request("resources/list")
        assert not host.answers_to(call)
        late.set()
        (answer,) = await host.until(lambda: host.answers_to(call))
        assert answer["result"]["content"][0]["text"] == "charge"
        assert not server.sent("GET")[1:]
        assert not server.sent("POST", "ping")
        assert [e.outcome for e in host.of(CallSettled) if e.method == "tools/call"] == [Outcome.COMPLETED]


async def test_so_it_is_for_many_calls_at_once(playing: Playing) -> None:
    mcp = Ruby()
    async with playing(mcp) as (server, host):
        await mcp.opened.wait()
        answers = await run_together(*(lambda n=n: host.call(f"tool-{n}") for n in range(8)))
        assert answers == [Answer(f"tool-{n}") for n in range(8)]
        assert mcp.ran == 8
        assert not host.of(SessionLost)
        assert len(server.sent("POST", "initialize")) == 1


async def test_a_large_answer_that_is_still_coming_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_for, begun = anyio.Event(), anyio.Event()
    stood_still = Machine._stood_still

    def look(machine: Machine, told: TimerElapsed) -> bool:
        found = stood_still(machine, told)
        if found and told.timer.kind is TimerKind.ANSWER:
            waited_for.set()
        return found

    class Large(Ruby):
        async def call(self, request: Request, reply: Reply) -> None:
            self.gets[-1].send_nowait(tool_result(request.rpc_id, "x" * 100_000))
            await begun.wait()
            await reply.json({"accepted": True})

        async def write(self, reply: Reply, event: bytes) -> None:
            whole = chunk(event)
            await reply.write(whole[:50_000])
            begun.set()
            await waited_for.wait()
            await reply.write(whole[50_000:])

    monkeypatch.setattr(Machine, "_stood_still", look)
    monkeypatch.setattr(machine, "_JUST_NOW", 60.0)
    mcp = Large()
    async with plainly(mcp, policy={"witness_timeout": 0.01}) as (_, host):
        await mcp.opened.wait()
        assert (await host.call()).text == "x" * 100_000


@pytest.mark.parametrize("how", ["504", "cut"])
async def test_a_proxy_that_loses_patience_with_the_post_does_not_end_the_call(how: str) -> None:
    """nginx: the server says `accepted` to the POST once the tool has ended, which takes longer."""
    ended = anyio.Event()

    class BehindProxy(Ruby):
        async def call(self, request: Request, reply: Reply) -> None:
            self.ran += 1
            if how == "504":
                await reply.status(504, b"<html>", content_type="text/html", connection="close")
            else:
                await reply.end(How.RST)
            await ended.wait()
            self.gets[-1].send_nowait(tool_result(request.rpc_id, "charged"))

    mcp = BehindProxy()
    async with plainly(mcp) as (_, host):
        await mcp.opened.wait()
        await host.request("tools/list")
        call = await host.post("tools/call", {"name": "charge", "arguments": {}})
        await host.until(lambda: host.of(Disconnected))
        assert not host.answers_to(call)
        ended.set()
        (answer,) = await host.until(lambda: host.answers_to(call))
        assert answer["result"]["content"][0]["text"] == "charged"
        assert mcp.ran == 1
        assert not host.of(SessionLost)
        assert [e.outcome for e in host.of(CallSettled) if e.method == "tools/call"] == [Outcome.COMPLETED]


async def test_what_was_accepted_and_is_not_answered_is_in_doubt_in_the_session_that_there_is(
    playing: Playing,
) -> None:
    class Forgetful(Ruby):
        async def call(self, request: Request, reply: Reply) -> None:
            await reply.json({"accepted": True})

    mcp = Forgetful()
    async with playing(mcp, policy={"witness_timeout": 0.05}) as (_, host):
        await mcp.opened.wait()
        answer = await host.call()
        assert answer.doubt is not None
        assert "no JSON-RPC message" in answer.doubt.reason
        assert not host.of(SessionLost), "the ping had its answer on the standalone stream"
