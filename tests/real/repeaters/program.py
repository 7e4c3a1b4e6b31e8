"""What the program of each framework shares: its orders, the model that repeats blindly, and what that was told.

    echo '[{"url": "http://127.0.0.1:8000/json/me", "in_doubt_as": "result"}]' \\
        | python -m tests.real.repeaters.on_crewai told.json

plays all orders at once, and writes what came of each into the file: frameworks print what they like on their way
out, too.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx
from attrs import asdict, define, field, frozen

from mcp_client_guard import CallInDoubt, Event, Guard, GuardPolicy, RepeatJoined, RepeatRefused

DEADLINE = 120.0
"""Seconds after which a run hangs. Not a measure of anything."""
TOOL, ARGUMENTS, ANSWER = "charge", {"cents": 100}, "charged 100 cents"


@frozen
class Order:
    """One run."""

    url: str
    in_doubt_as: Literal["result", "error"] | None = None
    """On the guard, and which way; None: the framework on its own transport."""
    timeout: float = 30.0
    """The framework's own for a call, in seconds."""
    calls: int = 2
    """How often the model calls at most on a connection, beside what the framework does by itself."""
    connections: int = 2
    """One after the other, on the same guard."""


@define
class Told:
    """What the model was told, and the guard said."""

    heard: list[str] = field(factory=list)
    """`answer`, `doubt`, `doubt in words` or `error`, for each call of the model."""
    words: list[str] = field(factory=list)
    """The same as they were said."""
    events: list[str] = field(factory=list)
    failure: str = ""

    @property
    def repeats(self) -> list[str]:
        """`RepeatRefused` and `RepeatJoined`, as they came."""
        return [event for event in self.events if event.startswith("Repeat")]

    def hear(self, answer: Any) -> str:
        """Write down what the framework gives: a result, or an exception."""
        words = repr(answer)
        if CallInDoubt.find(answer):
            heard = "doubt"
        elif ANSWER in words:
            heard = "answer"
        else:
            heard = "doubt in words" if "may or may not have run" in words else "error"
        self.heard.append(heard)
        self.words.append(words)
        return heard


Call = Callable[[], Awaitable[Any]]
Connect = Callable[[Order, Guard | None], AbstractAsyncContextManager[Call]]
"""A connection of the framework's, on the guard if there is one; what it yields calls the tool."""


def guard_of(order: Order, told: Told) -> Guard:
    """One for each endpoint. A repeat on it has the server go on where that waits for one.

    The trial lasts for as long as the framework's timeout and its wait before the retry may take together.
    """

    def on_event(event: Event) -> None:
        if isinstance(event, (RepeatJoined, RepeatRefused)) and not told.repeats:
            httpx.post(f"{order.url}/release")
        told.events.append(type(event).__name__)

    policy = GuardPolicy(in_doubt_as=order.in_doubt_as or "result", witness_timeout=60)
    return Guard(order.url, policy=policy, on_event=on_event)


async def _repeat_blindly(call: Call, order: Order, told: Told) -> bool:
    """A model at its worst: told of any error, it calls the same tool again. Whether it got its answer."""
    for _ in range(order.calls):
        try:
            answer = await call()
        except Exception as error:
            answer = error
        if told.hear(answer) == "answer":
            return True
    return False


async def _play(connect: Connect, order: Order, told: Told) -> None:
    guard = guard_of(order, told) if order.in_doubt_as else None
    dies_of_it = () if guard else (Exception,)  # the SDK's own client, which says so when it is left
    answered = False
    try:
        with anyio.fail_after(DEADLINE):
            for _ in range(order.connections):
                with suppress(*dies_of_it):
                    async with connect(order, guard) as call:
                        answered = await _repeat_blindly(call, order, told)
                if answered:
                    return
    except Exception:
        told.failure = traceback.format_exc()


async def _play_all(connect: Connect) -> list[Told]:
    orders = [(Order(**each), Told()) for each in json.load(sys.stdin)]
    async with anyio.create_task_group() as tasks:
        for order, told in orders:
            tasks.start_soon(_play, connect, order, told)
    return [told for _, told in orders]


def main(connect: Connect) -> None:
    """For each framework's program."""
    played = anyio.run(_play_all, connect)
    Path(sys.argv[1]).write_text(json.dumps([asdict(told) for told in played]))
