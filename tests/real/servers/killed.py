"""The server of the kill sweep: mcp 1.30 with an event log, tasks, and a record of every request it got."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any
from urllib.parse import parse_qs

import _sdk1_log
import _tools
from mcp import types
from mcp.server.lowlevel import Server

server: Any = Server("killed-peer")
server.experimental.enable_tasks()

HINTS = {"look": types.ToolAnnotations(readOnlyHint=True)}
TOOLS = ("look", "charge", "count", "announce", "ask")


@server.list_tools()
async def list_tools() -> list[types.Tool]:
    execution = types.ToolExecution(taskSupport="optional")
    return [
        types.Tool(name=name, inputSchema={"type": "object"}, annotations=HINTS.get(name), execution=execution)
        for name in TOOLS
    ]


@server.call_tool(validate_input=False)
async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
    context = server.request_context
    if context.experimental.is_task:

        async def work(_: Any) -> types.CallToolResult:
            return _result(await _run(context, name, arguments))

        return await context.experimental.run_task(work)
    return _result(await _run(context, name, arguments))


async def _run(context: Any, name: str, arguments: dict[str, Any]) -> str:
    """The label comes back in the result, so that one given to the wrong call is seen."""
    label, n, delay = arguments["label"], arguments.get("n", 0), arguments.get("delay", 0.0)
    _tools.ledger(name, label)
    token = context.meta.progressToken if context.meta else None
    for step in range(1, n + 1):
        await asyncio.sleep(delay)
        if name == "announce":  # on the standalone stream
            await context.session.send_log_message("info", f"{label}:{step}")
        elif token is not None:
            mine = str(context.request_id)
            await context.session.send_progress_notification(token, step, n, related_request_id=mine)
    if name == "ask":
        message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=label))
        said = await context.session.create_message([message], max_tokens=9, related_request_id=context.request_id)
        return f"ask {label} {said.content.text}"
    return f"{name} {label}"


def _result(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


class Recorder:
    """Writes down each request, with the case and the process that it names; forgets sessions when told to."""

    def __init__(self, app: Any, manager: Any) -> None:
        self._app = app
        self._manager = manager

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == "/forget":
            for session in parse_qs(scope["query_string"].decode())["session"]:
                self._manager._server_instances.pop(session, None)
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body, whole = b"", scope["method"] != "POST"
        while not whole:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            body, whole = body + part.get("body", b""), not part.get("more_body")
        _record(scope, body)
        replayed = scope["method"] != "POST"

        async def again() -> Any:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)


def _record(scope: Any, body: bytes) -> None:
    fields = {k.decode(): v.decode("latin-1") for k, v in scope["headers"]}
    message = json.loads(body) if body else {}
    params = message.get("params") or {}
    row = {
        "case": fields.get("x-case"),
        "process": fields.get("x-process"),
        "http": scope["method"],
        "session": fields.get("mcp-session-id"),
        "last": fields.get("last-event-id"),
        "id": message.get("id"),
        "method": message.get("method"),
        "label": (params.get("arguments") or {}).get("label"),
    }
    fd = os.open(os.environ["MCP_LEDGER"] + ".http", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, json.dumps(row).encode() + b"\n")
    finally:
        os.close(fd)


managers: list[Any] = []


class Manager(_sdk1_log.Manager):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        managers.append(self)


_sdk1_log.Manager = Manager  # type: ignore[misc]
app = _sdk1_log.app_with_log(server)
_tools.serve(Recorder(app, managers[0]))
