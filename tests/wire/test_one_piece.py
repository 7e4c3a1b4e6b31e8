"""How a request is written by our own client: in one piece, and with an ear to what the server says meanwhile."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcp_client_guard import CallSettled, Outcome
from mcp_client_guard.testing import (
    END_OF_CHUNKS,
    Dribble,
    Handler,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    http_response,
    sse_event,
    sse_head,
    tool_result,
)

from .hosts import ON_ALL_LOOPS, STOPS_READING, plainly

pytestmark = [pytest.mark.anyio, ON_ALL_LOOPS, STOPS_READING]


LARGE = "x" * 20_000_000
"""More than the sockets of both sides take."""
REFUSED = http_response(413, b'{"error": "too large"}', headers={"content-type": "application/json"})
HINT = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"


def at_once(*steps: Any, reads_on: bool = False) -> Handler:
    """A server that plays these steps when it has seen the head of a large request."""

    async def on_head(request: Request, reply: Reply) -> None:
        if int(request.header("content-length") or 0) > len(LARGE):
            await reply.play(*steps, *([] if reads_on else [anyio.Event()]))

    return on_head


async def outcome_of(host: Any) -> tuple[Outcome, Any]:
    answer = await host.call(data=LARGE)
    return [e.outcome for e in host.of(CallSettled) if e.method == "tools/call"][-1], answer


async def test_a_request_goes_out_in_one_piece() -> None:
    """Two packets would wake the server twice."""
    at_head: list[tuple[int, bool]] = []

    async def on_head(request: Request, reply: Reply) -> None:
        whole = len(request.body) == int(request.header("content-length") or 0)
        at_head.append((request.serial, whole))

    async with plainly(ScriptedMcp(), on_head=on_head) as (server, host):
        await host.call()
    assert len(at_head) == len(server.requests)
    assert all(whole for _, whole in at_head)


@pytest.mark.parametrize(
    "steps",
    [(REFUSED,), (HINT, HINT, REFUSED), (Dribble(HINT + REFUSED, 1),), (REFUSED, How.HALF_CLOSE)],
    ids=["at once", "behind hints", "in pieces", "and half closed"],
)
async def test_a_refusal_of_what_is_not_read_ends_the_writing_and_is_the_answer(steps: Any) -> None:
    async with plainly(ScriptedMcp(), on_head=at_once(*steps)) as (_, host):
        outcome, answer = await outcome_of(host)
        assert outcome is Outcome.NOT_EXECUTED
        assert "413" in answer.text
        assert (await host.call()).text == "charge", "on another connection"


async def test_a_server_that_closes_its_side_without_a_word_is_no_answer() -> None:
    async with plainly(ScriptedMcp(), on_head=at_once(How.HALF_CLOSE)) as (_, host):
        outcome, _ = await outcome_of(host)
        assert outcome is Outcome.IN_DOUBT


@pytest.mark.parametrize("early", [sse_head(), Dribble(HINT + sse_head(), 1)], ids=["at once", "in pieces"])
async def test_who_answers_well_may_read_on(early: Any) -> None:
    async def call(call: Request, reply: Reply) -> None:
        if call.json["params"]["arguments"].get("data") == LARGE:
            await reply.play(chunk(sse_event(tool_result(call.rpc_id, "read"))), END_OF_CHUNKS)
        else:
            await reply.json(tool_result(call.rpc_id, "small"))

    async with plainly(ScriptedMcp(call=call), on_head=at_once(early, reads_on=True)) as (_, host):
        _, answer = await outcome_of(host)
        assert answer.text == "read"
        assert (await host.call()).text == "small"
