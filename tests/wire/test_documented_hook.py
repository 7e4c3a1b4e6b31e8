"""The hook of docs/outcomes.md has a call sent again only if the server says that it knows nothing of it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import mcp_client_guard
from mcp_client_guard import CallInDoubt
from mcp_client_guard.testing import How, Reply, Request, tool_result

from .test_reconciling import Cutting, served

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[2] / "docs" / "outcomes.md"
NAME = "ask_the_server"


def documented_hook() -> Any:
    """The function alone, as it stands on the page."""
    (block,) = [b.split("```")[0] for b in PAGE.read_text().split("```python\n") if f"def {NAME}(" in b]
    function = next(node for node in ast.parse(block).body if getattr(node, "name", "") == NAME)
    names: dict[str, Any] = dict(vars(mcp_client_guard))
    exec(compile(ast.Module([function], []), str(PAGE), "exec"), names)
    return names[NAME]


class Bank(Cutting):
    """Its charges are cut; `find_charge` says what it is told to."""

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found

    async def call(self, request: Request, reply: Reply) -> None:
        if request.json["params"]["name"] == "charge":
            await super().call(request, reply)
        elif self.found is How.RST:
            await reply.play(How.RST)
        else:
            answer = tool_result(request.rpc_id, "told")
            await reply.json({**answer, "result": {**answer["result"], **self.found}})


@pytest.mark.parametrize(
    "found",
    [
        {"isError": True},
        {"isError": True, "structuredContent": {"charge": None}},
        {"structuredContent": {"error": "timeout"}},
        {},
        How.RST,
    ],
    ids=["failed", "failed, and says none", "says neither", "says nothing", "lost"],
)
async def test_a_search_that_failed_leaves_the_charge_in_doubt(found: Any) -> None:
    bank = Bank(found)
    async with served(bank, reconcile=documented_hook()) as (_, host):
        answer = await host.call()
    assert answer.is_error
    assert isinstance(answer.doubt, CallInDoubt)
    assert len(bank.ran) == 1


async def test_no_such_charge_has_it_sent_again() -> None:
    bank = Bank({"structuredContent": {"charge": None}})
    async with served(bank, reconcile=documented_hook()) as (_, host):
        assert (await host.call()).text == "charged 2"


async def test_a_charge_that_is_found_is_the_answer() -> None:
    """As the tool itself would have answered, with what SDKs want of it by its output schema."""
    bank = Bank({"structuredContent": {"charge": 100}})
    bank.tools = [{"name": "charge", "inputSchema": {}, "outputSchema": {"required": ["result"]}}]
    async with served(bank, reconcile=documented_hook()) as (_, host):
        await host.request("tools/list")
        answer = await host.call()
    assert answer.text == "charged 100"
    assert len(bank.ran) == 1
