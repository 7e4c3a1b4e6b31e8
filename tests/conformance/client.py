"""The client that the official conformance runner starts: `python client.py URL`, once for each scenario.

The runner names the scenario in `MCP_CONFORMANCE_SCENARIO` and its wishes, as JSON, in
`MCP_CONFORMANCE_CONTEXT`. Ours is `MCP_GUARD_CONFORMANCE_TRANSPORT`: `sessions` (default) or `host`, the
guard with that generation, or `sdk`, the SDK's own transport, to compare. It runs on both SDK majors.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import mcp
from mcp import ClientSession, types

Scenario = Callable[[Any], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    def register(play: Scenario) -> Scenario:
        SCENARIOS[name] = play
        return play

    return register


@asynccontextmanager
async def transport(url: str) -> AsyncIterator[tuple[Any, Any]]:
    async with _open_transport(url) as streams:
        yield streams[0], streams[1]  # SDK 1.x yields a third value


def _open_transport(url: str) -> AbstractAsyncContextManager[Any]:
    chosen = os.environ.get("MCP_GUARD_CONFORMANCE_TRANSPORT", "sessions")
    if chosen == "sdk":
        from mcp.client.streamable_http import streamable_http_client

        return streamable_http_client(url)
    from mcp_client_guard import Guard

    return Guard(url, generation=chosen).connect()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """A host of the installed SDK: `Client` on 2.x, which probes `server/discover`, else `ClientSession`."""
    client = getattr(mcp, "Client", None)
    if client is not None:
        async with client(transport(url), elicitation_callback=accept_defaults) as host:
            yield host
        return
    async with (
        transport(url) as (read, write),
        ClientSession(read, write, elicitation_callback=accept_defaults) as host,
    ):
        await host.initialize()
        yield host


async def accept_defaults(_context: Any, params: Any) -> types.ElicitResult:
    wanted = params.model_dump(by_alias=True, mode="json")["requestedSchema"]["properties"]
    content = {name: schema.get("default", True) for name, schema in wanted.items()}
    return types.ElicitResult(action="accept", content=content)


def text_of(result: Any) -> str:
    assert not getattr(result, "is_error", getattr(result, "isError", False)), result
    return " ".join(item.text for item in result.content)


async def let_the_standalone_stream_open(host: Any) -> None:
    """By some round trips; under load one was not enough."""
    for _ in range(20):
        await host.list_tools()


@scenario("initialize")
async def initialize(host: Any) -> None:
    await host.list_tools()


@scenario("tools_call")
async def tools_call(host: Any) -> None:
    await host.list_tools()
    assert "8" in text_of(await host.call_tool("add_numbers", {"a": 5, "b": 3}))


@scenario("sse-retry")
async def sse_retry(host: Any) -> None:
    # The server hands the pending response to whichever GET comes next.
    await let_the_standalone_stream_open(host)
    assert "Reconnection" in text_of(await host.call_tool("test_reconnection", {}))


@scenario("elicitation-sep1034-client-defaults")
async def elicitation(host: Any) -> None:
    # The server asks on the standalone stream, and drops what it asks before that is open.
    await let_the_standalone_stream_open(host)
    text_of(await host.call_tool("test_client_elicitation_defaults", {}))


@scenario("request-metadata")
async def request_metadata(host: Any) -> None:
    await host.list_tools()


@scenario("http-standard-headers")
async def http_standard_headers(host: Any) -> None:
    for tool in (await host.list_tools()).tools:
        await host.call_tool(tool.name, {})
    for resource in (await host.list_resources()).resources:
        await host.read_resource(resource.uri)
    for prompt in (await host.list_prompts()).prompts:
        await host.get_prompt(prompt.name)


@scenario("http-custom-headers")
async def http_custom_headers(host: Any) -> None:
    await host.list_tools()
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await host.call_tool(call["name"], call["arguments"])


@scenario("http-invalid-tool-headers")
async def http_invalid_tool_headers(host: Any) -> None:
    for tool in (await host.list_tools()).tools:
        await host.call_tool(tool.name, dict.fromkeys(tool_properties(tool), "x"))


def tool_properties(tool: Any) -> list[str]:
    schema = tool.model_dump(by_alias=True, mode="json")["inputSchema"]
    return list(schema.get("properties", {}))


@scenario("sep-2322-client-request-state")
async def input_required(host: Any) -> None:
    await host.list_tools()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.call_tool, "test_mrtr_echo_state", {})
        tasks.start_soon(host.call_tool, "test_mrtr_unrelated", {})
    await host.call_tool("test_mrtr_no_state", {})
    # The check is that nothing is sent again. SDK 2.3 refuses the answer, which has no resultType.
    with contextlib.suppress(ValueError):
        await host.call_tool("test_mrtr_no_result_type", {})


async def main(url: str) -> None:
    play = SCENARIOS[os.environ["MCP_CONFORMANCE_SCENARIO"]]
    with anyio.fail_after(50):
        async with connected(url) as host:
            await play(host)


if __name__ == "__main__":
    anyio.run(main, sys.argv[-1])
