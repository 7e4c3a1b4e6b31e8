"""The hook of docs/outcomes.md has no call sent again that may be running still: it looks, waits, looks again."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio.lowlevel
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
    names: dict[str, Any] = {**vars(mcp_client_guard), "anyio": SimpleNamespace(sleep=at_once)}
    exec(compile(ast.Module([function], []), str(PAGE), "exec"), names)
    return names[NAME]


async def at_once(seconds: float) -> None:
    """No time passes."""
    await anyio.lowlevel.checkpoint()


NONE = {"structuredContent": {"charge": None}}


class Bank(Cutting):
    """Its charges are cut; `find_charge` says what it is told to, one after the other."""

    def __init__(self, *found: Any) -> None:
        super().__init__()
        self.answers = list(found)
        self.asked = 0

    @property
    def found(self) -> Any:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def call(self, request: Request, reply: Reply) -> None:
        if request.json["params"]["name"] == "charge":
            await super().call(request, reply)
            return
        self.asked += 1
        found = self.found
        if found is How.RST:
            await reply.play(How.RST)
        else:
            answer = tool_result(request.rpc_id, "told")
            await reply.json({**answer, "result": {**answer["result"], **found}})


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


async def test_no_such_charge_yet_may_be_one_that_is_running() -> None:
    bank = Bank(NONE)
    async with served(bank, reconcile=documented_hook()) as (_, host):
        answer = await host.call()
    assert isinstance(answer.doubt, CallInDoubt)
    assert bank.asked > 1
    assert len(bank.ran) == 1


@pytest.mark.parametrize("looks", [1, 2])
async def test_a_charge_that_was_running_is_found_at_a_later_look(looks: int) -> None:
    bank = Bank(*[NONE] * looks, {"structuredContent": {"charge": 100}})
    async with served(bank, reconcile=documented_hook()) as (_, host):
        assert (await host.call()).text == "charged 100"
    assert len(bank.ran) == 1


async def test_a_charge_that_is_found_is_the_answer() -> None:
    """As the tool itself would have answered, with what SDKs want of it by its output schema."""
    bank = Bank({"structuredContent": {"charge": 100}})
    bank.tools = [{"name": "charge", "inputSchema": {}, "outputSchema": {"required": ["result"]}}]
    async with served(bank, reconcile=documented_hook()) as (_, host):
        await host.request("tools/list")
        answer = await host.call()
    assert answer.text == "charged 100"
    assert len(bank.ran) == 1
