"""Pydantic AI as it is by default: after any error it has the model call again, once. The model is a function."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from mcp_client_guard import Guard

from .fastmcp_transport import client_of
from .program import ARGUMENTS, TOOL, Call, Order, main


def blind_model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Calls until the tool has succeeded, and then says what it returned."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart) and last.outcome == "success":
        return ModelResponse([TextPart(str(last.content))])
    return ModelResponse([ToolCallPart(TOOL, ARGUMENTS)])


@asynccontextmanager
async def connect(order: Order, guard: Guard | None) -> AsyncIterator[Call]:
    agent: Any = Agent(FunctionModel(blind_model), toolsets=[MCPToolset(client_of(order, guard))])

    async def call() -> Any:
        return (await agent.run("charge me")).output

    async with agent:
        yield call


if __name__ == "__main__":
    main(connect)
