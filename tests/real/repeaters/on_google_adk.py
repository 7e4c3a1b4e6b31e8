"""Google ADK. It does not call again by itself: the model does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.adk.tools.mcp_tool.mcp_session_manager import MCPSessionManager
from google.genai import types

from mcp_client_guard import Guard

from .program import ARGUMENTS, TOOL, Call, Order, main


class GuardedSessions(MCPSessionManager):  # type: ignore[misc]
    """As docs/frameworks.md has it."""

    guard: Guard

    def _create_client(self, *arguments: Any, **options: Any) -> Any:
        return self.guard.connect()


class BlindModel(BaseLlm):  # type: ignore[misc]
    """Calls the tool whenever it is asked something."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        told = llm_request.contents[-1].parts[-1].function_response is not None
        part = types.Part(text="told") if told else types.Part.from_function_call(name=TOOL, args=ARGUMENTS)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


@asynccontextmanager
async def connect(order: Order, guard: Guard | None) -> AsyncIterator[Call]:
    params = StreamableHTTPConnectionParams(url=order.url, timeout=10, sse_read_timeout=order.timeout)
    toolset = McpToolset(connection_params=params)
    if guard:
        toolset._mcp_session_manager = GuardedSessions(connection_params=params)
        toolset._mcp_session_manager.guard = guard
    runner = InMemoryRunner(agent=LlmAgent(name="agent", model=BlindModel(model="blind"), tools=[toolset]))
    session = await runner.session_service.create_session(app_name=runner.app_name, user_id="user")

    async def call() -> Any:
        asked = types.Content(role="user", parts=[types.Part(text="charge me")])
        events = runner.run_async(user_id="user", session_id=session.id, new_message=asked)
        (answer,) = [told.response async for event in events for told in event.get_function_responses()]
        return answer

    try:
        yield call
    finally:
        await toolset.close()


if __name__ == "__main__":
    main(connect)
