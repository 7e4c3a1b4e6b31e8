"""A server that swallows the reply after its tool ran, in a process of its own. Each path is an endpoint.

`/json/LABEL`     the connection is cut inside the JSON answer
`/events/LABEL`   it is cut behind the head of an event stream without IDs
`/trial/LABEL`    it is cut in a stream with IDs, whose resume is answered 200 and stays silent until
                  `/trial/LABEL/release` is posted to, or the tool runs again: then the log comes, with the answer
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import _tools
import anyio

sys.path.insert(0, str(Path(__file__).parents[3]))

from mcp_client_guard.testing import (
    FakeServer,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    json_response,
    notification,
    sse_event,
    sse_head,
    tool_result,
)

CHARGE = {
    "name": "charge",
    "description": "Takes money: must never run twice.",
    "inputSchema": {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]},
}


class Endpoint(ScriptedMcp):
    """What a host sees of one run."""

    def __init__(self, how: str, label: str) -> None:
        super().__init__(tools=[CHARGE], capabilities={"tools": {}, "logging": {}})
        self.how = how
        self.label = label
        self.log: list[tuple[str, Any]] = []
        self.released = anyio.Event()

    async def call(self, request: Request, reply: Reply) -> None:
        """The tool runs; the rest is silence."""
        _tools.ledger("charge", self.label)
        answer = tool_result(request.rpc_id, f"charged {request.json['params']['arguments']['cents']} cents")
        if self.how == "json":
            await reply.play(json_response(answer)[:-1], How.RST)
        elif self.how == "events":
            await reply.play(sse_head(), How.RST)
        else:
            if self.log:
                self.released.set()
            await reply.play(sse_head(), *map(chunk, self.run(answer)), How.RST)

    def run(self, answer: Any) -> list[bytes]:
        """Write a call's stream to the log; what of it comes before the cut."""
        first = len(self.log)
        told = notification("notifications/message", level="info", data=f"charging, {first}")
        self.log += [(f"e{first + place}", data) for place, data in enumerate(("", told, answer))]
        return [sse_event(id=id, data=data, retry=10) for id, data in self.log[first : first + 2]]

    async def resume(self, request: Request, reply: Reply) -> None:
        """200 and silence, until it is released; then what the stream's log has behind the ID."""
        if self.how != "trial":
            await super().resume(request, reply)
            return
        _tools.ledger("resume", f"resume of {self.label}")
        await reply.open_sse()
        await self.released.wait()
        place = int(str(request.last_event_id).removeprefix("e")) + 1
        for id, data in self.log[place : place + -place % 3]:
            await reply.event(data, id=id)
        await reply.finish()


class Endpoints(dict[str, Endpoint]):
    """By their paths, made when they are first asked for."""

    async def __call__(self, request: Request, reply: Reply) -> None:
        """Have the endpoint answer."""
        path, released, _ = request.target.partition("/release")
        if path not in self:
            _, how, label = path.split("/")
            self[path] = Endpoint(how, label)
        if released:
            self[path].released.set()
            await reply.status(204)
        else:
            await self[path](request, reply)


async def main() -> None:
    async with FakeServer(Endpoints()) as server:
        print(f"PORT {server.port}", flush=True)
        await anyio.sleep_forever()


anyio.run(main)
