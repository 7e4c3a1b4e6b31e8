"""A legacy server (HTTP+SSE, 2024-11-05) played by a `FakeServer`: a GET opens a session, the rest is POSTed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio

from mcp_client_guard.testing import (
    Handler,
    How,
    Reply,
    Request,
    chunk,
    error,
    progress_of,
    result,
    sse_event,
    sse_head,
    tool_result,
)
from mcp_client_guard.testing._sockets import Closed


class Carrier:
    """One GET stream: a session."""

    def __init__(self, name: str, reply: Reply) -> None:
        self.name = name
        self.reply = reply
        self.seen: list[Request] = []
        self.over = anyio.Event()
        self.tasks: Any = None
        """Answers are made beside the POST, whose connection may carry the next one."""

    async def event(self, data: Any, *, id: str | None = None, event: str | None = "message") -> None:
        await self.reply.write(chunk(sse_event(data, id=id, event=event)))

    async def raw(self, data: bytes) -> None:
        await self.reply.write(chunk(data))

    async def end(self, how: How) -> None:
        await self.reply.end(how)
        self.over.set()


class LegacyMcp:
    """Sessions `s1`, `s2`, ... Parts are replaced by overriding or by keyword."""

    def __init__(
        self,
        *,
        endpoint: str = "/messages?session=%s",
        tools: tuple[Any, ...] = ("add", "charge"),
        call: Any = None,
        get: Handler | None = None,
        root: Handler | None = None,
        accept: Handler | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.tools = [tool if isinstance(tool, dict) else _tool(tool) for tool in tools]
        self.carriers: list[Carrier] = []
        self.executed: list[str] = []
        """The tools that really ran."""
        self.on_call = call or self.call
        self.on_get = get or self.get
        self.on_root = root
        """A POST to the URL of the stream; by default 405."""
        self.on_accept = accept or self.accept
        self.protocol = "2024-11-05"

    async def __call__(self, request: Request, reply: Reply) -> None:
        if request.method == "GET":
            await self.on_get(request, reply)
            return
        assert request.method == "POST", "a legacy session is ended by closing its stream"
        if request.target == "/mcp":
            if self.on_root is not None:
                await self.on_root(request, reply)
            else:
                await reply.status(405)
            return
        carrier = self.carrier_of(request)
        if carrier is None or carrier.over.is_set():
            await reply.status(404, b"Could not find session")
            return
        carrier.seen.append(request)
        await self.on_accept(request, reply)

    async def get(self, request: Request, reply: Reply) -> None:
        """The stream of a session, until somebody ends it."""
        await self.open(request, reply)

    async def open(self, request: Request, reply: Reply) -> None:
        carrier = Carrier(f"s{len(self.carriers) + 1}", reply)
        await reply.write(sse_head())
        self.carriers.append(carrier)
        async with anyio.create_task_group() as carrier.tasks:

            async def watch() -> None:
                await reply.client_gone.wait()
                carrier.over.set()

            carrier.tasks.start_soon(watch)
            with suppress(OSError, Closed):  # a client may have hung up by now
                await carrier.event(self.where(carrier), event="endpoint")
            await carrier.over.wait()
            carrier.tasks.cancel_scope.cancel()

    def where(self, carrier: Carrier) -> str:
        return self.endpoint % carrier.name if "%s" in self.endpoint else self.endpoint

    def carrier_of(self, request: Request) -> Carrier | None:
        named = parse_qs(urlsplit(request.target).query).get("session", [""])[0]
        return next((c for c in self.carriers if c.name == named), None)

    async def accept(self, request: Request, reply: Reply) -> None:
        """202, and then the answer on the carrier."""
        carrier = self.carrier_of(request)
        assert carrier is not None
        await reply.status(202, b"Accepted")
        if not carrier.over.is_set():
            carrier.tasks.start_soon(self.answer, request)

    async def answer(self, request: Request) -> None:
        carrier = self.carrier_of(request)
        assert carrier is not None
        if request.rpc_method is None or request.rpc_id is None:
            return
        if request.rpc_method == "tools/call":
            self.executed.append(request.json["params"]["name"])
            await self.on_call(request, carrier)
            return
        answers: dict[str, dict[str, Any]] = {
            "initialize": {
                "protocolVersion": self.protocol,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "legacy", "version": "1"},
            },
            "ping": {},
            "tools/list": {"tools": self.tools},
        }
        method = str(request.rpc_method)
        if method in answers:
            await carrier.event(result(request.rpc_id, answers[method]))
        else:
            await carrier.event(error(request.rpc_id, -32601, f"Method not found: {method}"))

    async def call(self, request: Request, carrier: Carrier) -> None:
        await carrier.event(progress_of(request, 1))
        await carrier.event(tool_result(request.rpc_id, "done"))


def _tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": name, "inputSchema": {"type": "object"}}
