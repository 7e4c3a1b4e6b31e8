"""The server process of `mcp-guard demo`: one scripted MCP server for each incident and transport.

It writes the URLs to standard output, plays until standard input ends, and then writes its ledger: what it has
really executed. Run by `python -m mcp_client_guard.cli._demo_server`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import anyio

from mcp_client_guard.testing import (
    FakeServer,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    notification,
    progress_of,
    sse_event,
    tool_result,
)
from mcp_client_guard.testing.standard_input import input_ended

from ._incidents import INCIDENTS, Incident

SIDES = ("sdk", "guard")
_RETRY_MS = 50
_FOREIGN_ID = 999_000_001
"""A request ID and a progress token that no client of this demo uses."""


Log = list[tuple[str, Any]]
"""Event ID and data of every event of a stream."""


class Played(ScriptedMcp):
    """A server that executes one tool, and writes each execution down. Its second call meets no fault."""

    def __init__(self, incident: Incident) -> None:
        super().__init__(tools=[incident.tool], capabilities={"tools": {}, "logging": {}})
        self.incident = incident
        self.executed: list[str] = []

    async def call(self, request: Request, reply: Reply) -> None:
        self.executed.append(self.incident.tool)
        if len(self.executed) == 1:
            await self.first_call(request, reply)
        else:
            await reply.json(self.answer(request))

    async def first_call(self, request: Request, reply: Reply) -> None:
        raise NotImplementedError

    def answer(self, request: Request) -> dict[str, Any]:
        return tool_result(request.rpc_id, self.incident.answer)


async def primed_progress(request: Request, reply: Reply, event_ids: Iterable[str]) -> None:
    """A priming event, then progress 1, 2, ...; a handler that returns after it leaves the stream cut."""
    first, *others = event_ids
    await reply.open_sse()
    await reply.event("", id=first, retry=_RETRY_MS)
    for progress, event_id in enumerate(others, start=1):
        await reply.event(progress_of(request, progress), id=event_id)


async def replay_after(log: Log, request: Request, reply: Reply) -> None:
    """What a server does that really holds this log."""
    event_ids = [event_id for event_id, _ in log]
    await reply.open_sse(session=request.session_id)
    for event_id, message in log[event_ids.index(str(request.last_event_id)) + 1 :]:
        await reply.event(message, id=event_id)


def log_message(text: str) -> dict[str, Any]:
    return notification("notifications/message", level="info", data=text)


def foreign_progress(progress: int) -> dict[str, Any]:
    return notification("notifications/progress", progressToken=_FOREIGN_ID, progress=progress)


class FreshSession(Played):
    async def first_call(self, request: Request, reply: Reply) -> None:
        await primed_progress(request, reply, ["4819", "4820", "4821"])

    async def resume(self, request: Request, reply: Reply) -> None:
        await reply.open_sse(session="session-B")
        await reply.event(foreign_progress(1), id="1")
        await reply.event(tool_result(_FOREIGN_ID, "refunded 900 cents"), id="2")
        await reply.finish()


class TrimmedBuffer(Played):
    async def first_call(self, request: Request, reply: Reply) -> None:
        self.caller = request
        await primed_progress(request, reply, [f"e-{n}" for n in range(1000, 1043)])

    async def resume(self, request: Request, reply: Reply) -> None:
        await reply.open_sse(session=self.session)
        await reply.event(progress_of(self.caller, 100), id="e-1100")
        await reply.event(self.answer(self.caller), id="e-1101")
        await reply.finish()


class ForkedCounter(Played):
    async def first_call(self, request: Request, reply: Reply) -> None:
        await primed_progress(request, reply, ["1", "2", "3", "4"])

    async def resume(self, request: Request, reply: Reply) -> None:
        other = [foreign_progress(1), foreign_progress(2), foreign_progress(3), foreign_progress(4)]
        other += [tool_result(_FOREIGN_ID, "deleted 12 files")]
        await reply.open_sse(session=self.session)
        for event_id, message in enumerate(other, start=1):
            if event_id > int(request.last_event_id or 0):
                await reply.event(message, id=str(event_id))
        await reply.finish()


class DrainRace(Played):
    async def first_call(self, request: Request, reply: Reply) -> None:
        await primed_progress(request, reply, ["e-101", "e-102", "e-103"])
        result = chunk(sse_event(self.answer(request), id="e-104"))
        await reply.write(result[: len(result) // 2])

    async def resume(self, request: Request, reply: Reply) -> None:
        await reply.open_sse(session=self.session)
        await reply.event(foreign_progress(1), id="e-105")
        await reply.end(How.STALL)


class EmptyReplay(Played):
    async def first_call(self, request: Request, reply: Reply) -> None:
        await primed_progress(request, reply, ["r-1", "r-2", "r-3"])

    async def resume(self, request: Request, reply: Reply) -> None:
        await reply.open_sse(session=self.session)
        await reply.end(How.STALL)


class JsonNeutrality(Played):
    def __init__(self, incident: Incident) -> None:
        super().__init__(incident)
        self._answered = anyio.Event()
        self._log: Log = [(f"s-{n}", log_message(f"log {n}")) for n in range(1, 5)]

    async def first_call(self, request: Request, reply: Reply) -> None:
        await reply.json(self.answer(request))
        self._answered.set()

    async def standalone(self, request: Request, reply: Reply) -> None:
        await reply.open_sse(session=self.session)
        for event_id, message in self._log[:2]:
            await reply.event(message, id=event_id, retry=_RETRY_MS)
        await self._answered.wait()

    async def resume(self, request: Request, reply: Reply) -> None:
        await replay_after(self._log, request, reply)
        await reply.end(How.STALL)


class HonestCut(Played):
    async def first_call(self, request: Request, reply: Reply) -> None:
        self._log: Log = [("b-0", ""), *((f"b-{n}", progress_of(request, n)) for n in (1, 2, 3))]
        self._log.append(("b-4", self.answer(request)))
        await primed_progress(request, reply, ["b-0", "b-1", "b-2"])
        await reply.end(How.RST)

    async def resume(self, request: Request, reply: Reply) -> None:
        await replay_after(self._log, request, reply)
        await reply.finish()


class Dropped(Played):
    async def first_call(self, request: Request, reply: Reply) -> None:
        await reply.open_sse()
        await reply.comment("working")
        await reply.end(How.RST)


_PLAYED: dict[str, type[Played]] = {
    "fresh-session": FreshSession,
    "trimmed-buffer": TrimmedBuffer,
    "forked-counter": ForkedCounter,
    "drain-race": DrainRace,
    "empty-replay": EmptyReplay,
    "json-neutrality": JsonNeutrality,
    "honest-cut": HonestCut,
    "dropped": Dropped,
}


async def serve() -> None:
    """Play until standard input ends."""
    played = {(i.name, side): _PLAYED[i.name](i) for i in INCIDENTS for side in SIDES}
    async with AsyncExitStack() as servers:
        urls: dict[str, dict[str, str]] = {incident.name: {} for incident in INCIDENTS}
        for (name, side), mcp in played.items():
            urls[name][side] = (await servers.enter_async_context(FakeServer(mcp))).url
        _tell(urls)
        await input_ended()
        executed: dict[str, dict[str, list[str]]] = {incident.name: {} for incident in INCIDENTS}
        for (name, side), mcp in played.items():
            executed[name][side] = mcp.executed
        _tell(executed)


def _tell(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    anyio.run(serve)
