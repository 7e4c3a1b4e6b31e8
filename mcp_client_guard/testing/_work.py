"""What an event-log server does for a request: `initialize`, lists, tools. Each execution is written down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from attrs import define, field, frozen

from .proxy import How
from .sessions import CutAfter, Session
from .written import error, notification, result, tool_result

_REVISIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_NUMBER = {"type": "number", "minimum": 0, "maximum": 1_000_000_000}
_CUT = {
    "cut_after": {
        **_NUMBER,
        "description": "Cut the connection after so many messages of this call; 2.5: inside the third.",
    },
    "cut_how": {"type": "string", "enum": ["fin", "rst", "stall"]},
}


def _tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {**properties, **_CUT}}
    return {"name": name, "description": description, "inputSchema": schema}


TOOLS = [
    _tool("charge", "Takes money: must never run twice.", cents=_NUMBER, steps=_NUMBER),
    _tool("slow", "Takes so many seconds.", seconds=_NUMBER),
    _tool("progress", "So many progress notifications.", n=_NUMBER, delay=_NUMBER),
    _tool("announce", "So many log messages on the standalone stream.", n=_NUMBER),
]


def _misfit(tool: dict[str, Any], arguments: dict[str, Any]) -> str | None:
    """What does not fit the tool's schema: a result for the model to read (2025-11-25 tools, Error Handling)."""
    for name, schema in tool["inputSchema"]["properties"].items():
        if name not in arguments:
            continue
        value = arguments[name]
        if "enum" in schema and value not in schema["enum"]:
            return f"{name} is one of {schema['enum']}"
        if "minimum" in schema and not (_is_number(value) and schema["minimum"] <= value <= schema["maximum"]):
            return f"{name} is a number from {schema['minimum']} to {schema['maximum']}"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@frozen
class Execution:
    """One tool that really ran."""

    tool: str
    arguments: dict[str, Any]


Emit = Callable[[Any], Awaitable[None]]
"""Sends a notification that belongs to the request."""


@define(eq=False)
class Work:
    """Does what requests ask for, and keeps the ledger."""

    ledger: list[Execution] = field(factory=list)

    async def do(self, request: dict[str, Any], session: Session, stream: str | None, emit: Emit) -> Any:
        """Do it to its end, whatever becomes of the connection. Returns the response.

        Args:
            request: a well-formed one; what its params hold may be anything.
            stream: what the response goes to; None if that is a body of JSON.
        """
        method, request_id, params = request["method"], request["id"], request.get("params") or {}
        if method == "initialize":
            return result(request_id, self._initialized(session, params))
        if method == "tools/call":
            return await self._call(request_id, params, session, stream, emit)
        if method in ("ping", "logging/setLevel"):
            return result(request_id, {})
        if method == "tools/list":
            return result(request_id, {"tools": TOOLS})
        return error(request_id, -32601, f"Method not found: {method}")

    def _initialized(self, session: Session, params: dict[str, Any]) -> dict[str, Any]:
        asked = params.get("protocolVersion")
        session.protocol = asked if asked in _REVISIONS else _REVISIONS[0]
        return {
            "protocolVersion": session.protocol,
            "capabilities": {"tools": {}, "logging": {}},
            "serverInfo": {"name": "event-log-server", "version": "1"},
        }

    async def _call(
        self, request_id: Any, params: dict[str, Any], session: Session, stream: str | None, emit: Emit
    ) -> Any:
        name, arguments, meta = (params.get(key) for key in ("name", "arguments", "_meta"))
        arguments, meta = {} if arguments is None else arguments, {} if meta is None else meta
        tool = next((tool for tool in TOOLS if tool["name"] == name), None)
        if tool is None:
            return error(request_id, -32602, f"Unknown tool: {name}")
        if not (isinstance(arguments, dict) and isinstance(meta, dict)):
            return error(request_id, -32602, "arguments and _meta are objects")
        if misfit := _misfit(tool, arguments):
            return tool_result(request_id, misfit, is_error=True)
        self.ledger.append(Execution(tool["name"], arguments))
        cut_at = session.standalone if name == "announce" else stream
        if "cut_after" in arguments and cut_at is not None:
            how = How[arguments.get("cut_how", "rst").upper()]
            session.cuts[cut_at] = CutAfter(float(arguments["cut_after"]), how)
            session.note_change()
        progress = _Progress(meta.get("progressToken"), emit)
        text = await self._run(tool["name"], arguments, session, progress)
        return tool_result(request_id, text)

    async def _run(self, name: str, arguments: dict[str, Any], session: Session, progress: _Progress) -> str:
        match name:
            case "charge":
                await progress.up_to(int(arguments.get("steps", 0)), 0.0)
                return f"charged {arguments.get('cents', 0)} cents"
            case "progress":
                n = int(arguments.get("n", 3))
                await progress.up_to(n, float(arguments.get("delay", 0)))
                return f"{n} steps"
            case "announce":
                n = int(arguments.get("n", 1))
                await _announce(session, n)
                return f"{n} announced"
            case _:
                await anyio.sleep(float(arguments.get("seconds", 1)))
                return "done"


@frozen
class _Progress:
    token: Any
    emit: Emit

    async def up_to(self, n: int, delay: float) -> None:
        for step in range(1, n + 1):
            if delay:
                await anyio.sleep(delay)
            await self.emit(self._message(step, n))

    def _message(self, step: int, n: int) -> Any:
        """Progress; or a log message, for a client that asked for none: so there is something to cut after."""
        if self.token is None:
            return notification("notifications/message", level="info", data=f"step {step} of {n}")
        return notification("notifications/progress", progressToken=self.token, progress=step, total=n)


async def _announce(session: Session, n: int) -> None:
    stream = session.standalone
    if stream is None:
        return
    for number in range(1, n + 1):
        message = notification("notifications/message", level="info", data=f"announcement {number}")
        await session.emit(stream, message)
