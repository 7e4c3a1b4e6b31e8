"""One host, many servers: connect to each, list, call with progress, once more with a cut in the middle, close.

    echo '[["http://127.0.0.1:8000/mcp", "sdk1", "auto"]]' | python -m tests.real.matrix HOST

`HOST` is `session`, `client` or `legacy` of the installed SDK, or `fastmcp` where that is installed. What came of
it is a list of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anyio
import mcp
from attrs import asdict, define, field
from mcp import ClientSession

from mcp_client_guard import CallInDoubt, CallNotExecuted, Discontinuity, Event, Guard, GuardPolicy
from mcp_client_guard.core.report import GenerationChosen
from mcp_client_guard.testing import Cut, CuttingProxy, Exchange, How, after_event

STEPS = 4
DEADLINE = 120.0
"""Seconds after which the run hangs. Not a measure of anything."""
POLICY = GuardPolicy(recheck=0.25, resend={"*": "never"})

CallTool = Callable[[str, dict[str, Any], Callable[..., Awaitable[None]]], Awaitable[Any]]


@define
class Found:
    """What the host got, and what the guard said of it."""

    whole: str = "never answered"
    """The call that nobody cuts: `completed`, or what else it was."""
    cut: str = "never answered"
    """The other one."""
    is_cut: bool = False
    signalled: bool = False
    """The doubt says that the cut has told the server to stop."""
    progress: list[float] = field(factory=list)
    """Of the call that nobody cuts."""
    cut_progress: list[float] = field(factory=list)
    loss_reported: bool = False
    generation: str = ""
    tools: int = 0
    failure: str = ""


def call_of(server: str, label: str) -> tuple[str, dict[str, Any]]:
    """A tool that tells its progress four times."""
    if server.startswith("everything"):
        seconds = 0.401 if label.endswith("cut") else 0.4
        return "trigger-long-running-operation", {"duration": seconds, "steps": STEPS}
    if server == "kit":
        return "progress", {"n": STEPS, "delay": 0.1, "label": label}
    return "count", {"n": STEPS, "delay": 0.1, "label": label}


def is_cut_call(exchange: Exchange) -> bool:
    """Whether this is the POST of the call that is to be cut."""
    request = exchange.request
    if request.rpc_method != "tools/call":
        return False
    arguments = request.json["params"]["arguments"]
    return bool(arguments.get("label", "").endswith("cut") or arguments.get("duration") == 0.401)


@asynccontextmanager
async def calling(guard: Guard, host: str, found: Found) -> AsyncIterator[CallTool]:
    """Connect and list the tools."""
    connection: Any = guard.connect()
    if host == "session":
        async with connection as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            found.tools = len((await session.list_tools()).tools)
            yield lambda name, arguments, on: session.call_tool(name, arguments, progress_callback=on)
    elif host == "fastmcp":
        async with _fastmcp_client(connection) as client:
            found.tools = len(await client.list_tools())
            yield lambda name, arguments, on: client.call_tool_mcp(name, arguments, progress_handler=on)
    else:
        sdk: Any = mcp
        async with sdk.Client(connection, mode="legacy" if host == "legacy" else "auto") as client:
            found.tools = len((await client.list_tools()).tools)
            yield lambda name, arguments, on: client.call_tool(name, arguments, progress_callback=on)


def _fastmcp_client(connection: Any) -> Any:
    import fastmcp
    from fastmcp.client.transports import ClientTransport

    class GuardTransport(ClientTransport):  # type: ignore[misc]
        @asynccontextmanager
        async def connect_session(self, *, transport_options: Any = None, **options: Any) -> AsyncIterator[Any]:
            made = getattr(transport_options, "session_class", None) or ClientSession
            async with connection as (read, write), made(read, write, **options) as session:
                yield session

    return fastmcp.Client(GuardTransport())


def outcome_of(answer: Any, server: str) -> str:
    """What the host was told of a call."""
    if doubt := CallInDoubt.find(answer):
        return f"in doubt: {doubt.reason}"
    if isinstance(answer, BaseException):
        return "not executed" if CallNotExecuted.find(answer) else f"error: {answer!r}"
    text = "".join(getattr(block, "text", "") for block in answer.content)
    right = f"Steps: {STEPS}." in text if server.startswith("everything") else str(STEPS) in text
    return "completed" if right else f"wrong: {answer!r}"


async def _call(call_tool: CallTool, server: str, label: str, progress: list[float]) -> Any:
    told_all = anyio.Event()

    async def on_progress(done: float, total: float | None = None, message: str | None = None) -> None:
        progress.append(done)
        if len(progress) == STEPS:
            told_all.set()

    name, arguments = call_of(server, label)
    try:
        answer = await call_tool(name, arguments, on_progress)
    except Exception as error:
        return error
    with anyio.move_on_after(0.5):  # SDK 2.x may run progress handlers after the result; losses end here
        await told_all.wait()
    return answer


async def play(host: str, url: str, server: str, generation: str) -> Found:
    """Connect to the server, through a proxy that cuts one call after its third event."""
    found, events, name = Found(), list[Event](), f"{host}-{generation}"
    parts = urlsplit(url)
    assert parts.port is not None
    async with CuttingProxy(parts.port) as proxy:
        through = urlunsplit(parts._replace(netloc=f"127.0.0.1:{urlsplit(proxy.url).port}"))
        cut = _cut_of_session(proxy) if server.endswith("sse") else Cut(after_event(3), How.RST, is_cut_call)
        proxy.cuts.append(cut)
        guard = Guard(through, policy=POLICY, generation=generation, on_event=events.append)  # type: ignore[arg-type]
        with anyio.move_on_after(DEADLINE) as limit:
            try:
                async with calling(guard, host, found) as call_tool:
                    found.whole = outcome_of(
                        await _call(call_tool, server, f"{name}-whole", found.progress), server
                    )
                    answer = await _call(call_tool, server, f"{name}-cut", found.cut_progress)
                    found.cut = outcome_of(answer, server)
                    doubt = CallInDoubt.find(answer)
                    found.signalled = doubt is not None and doubt.cancel_signalled
            except Exception as error:
                found.failure = repr(error)
        if limit.cancelled_caught:
            found.failure = "it hangs"
        found.is_cut = not proxy.unused_cuts
    found.loss_reported = any(isinstance(event, Discontinuity) for event in events)
    found.generation = next((e.generation.value for e in reversed(events) if isinstance(e, GenerationChosen)), "")
    return found


def _cut_of_session(proxy: CuttingProxy) -> Cut:
    """The stream that is the session, after the second event that comes once the call was posted."""

    def at(exchange: Exchange) -> int | None:
        if not any(is_cut_call(other) for other in proxy.exchanges):
            return None
        before.append(exchange.sent)
        ends = [end for end in exchange.boundaries if end > before[0]]
        return ends[1] if len(ends) > 1 else None

    before: list[int] = []
    return Cut(at, How.RST, lambda exchange: exchange.request.method == "GET")


async def play_all(host: str, cases: list[tuple[str, str, str]]) -> list[Found]:
    """All at once."""
    return list(await asyncio.gather(*(play(host, url, server, generation) for url, server, generation in cases)))


def main() -> None:
    found = asyncio.run(play_all(sys.argv[1], json.load(sys.stdin)))
    print(json.dumps([asdict(each) for each in found]))


if __name__ == "__main__":
    main()
