"""A server under load is killed and started again and again: `python -m tests.real.restarts --rounds 20`.

--server NAME ...        which servers: by SSE with an event log or without, by JSON; FastMCP 4
--host NAME              `session` or, with SDK 2.x, `client`
--loop NAME              asyncio or trio
--calls N                in flight at each moment
--hasty                  kill without waiting for what the last kill has caught, also while recovering
--seed N                 the kills, outages and calls are drawn from it
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import mcp
from attrs import define, field, frozen
from mcp import ClientSession

from mcp_client_guard import CallInDoubt, CallNotExecuted, Event, Guard, GuardPolicy, SQLiteStore
from mcp_client_guard.stores import StoredCall

from .hosts import HOSTS, SDK
from .restarted import SERVERS, RestartedServer, restarted

LIMIT_PER_ROUND = 60.0
"""Seconds after which a run that hangs is a failure. Not a measure of anything."""
LONGEST_CALL = 0.04
LONGEST_OUTAGE = 0.3

TOOLS = ("look", "put", "charge")
"""Read-only, idempotent, unsafe."""

POLICY = GuardPolicy(trust_idempotent_hint=True, reinitialize_limit=10_000, call_deadline=120.0)
"""The limit is there to stop a server that loses every session; here that is what is tested."""


@frozen
class Plan:
    """A run, but for its chances."""

    server: str
    host: str
    loop: str = "asyncio"
    rounds: int = 20
    at_once: int = 50
    hasty: bool = False
    seed: int = 0

    def __str__(self) -> str:
        pace = "hasty" if self.hasty else "settled"
        return f"{SDK}/{self.host}/{self.server}/{self.loop}/{pace}/{self.rounds}x{self.at_once}/seed {self.seed}"


# --- calling --------------------------------------------------------------------------------------

CallTool = Callable[[str, dict[str, Any]], Any]


@define(eq=False)
class Call:
    """A call, and what its host got."""

    tool: str
    label: str
    seconds: float
    answer: Any = None
    error: BaseException | None = None
    answered: bool = False
    kills: int = 0
    """How often the server died while this was unanswered."""
    is_late: bool = False
    """Made after a kill whose loss of the session may not have been met yet: this may meet it."""

    @property
    def doubt(self) -> CallInDoubt | None:
        return CallInDoubt.find(self.error or self.answer)

    @property
    def completed(self) -> bool:
        """The answer is this call's, and right."""
        if self.error is not None or self.answer is None or self.doubt is not None:
            return False
        is_error = getattr(self.answer, "isError", None) or getattr(self.answer, "is_error", None)
        return not is_error and self.answer.content[0].text == f"{self.tool} of {self.label}"

    @property
    def not_executed(self) -> bool:
        """The guard vouches that it did not run."""
        return self.error is not None and CallNotExecuted.find(self.error) is not None

    @property
    def outcome(self) -> str:
        if not self.answered:
            return "unanswered"
        if self.completed:
            return "completed"
        return "in doubt" if self.doubt else "not executed" if self.not_executed else "wrong"


@define(eq=False)
class Load:
    """Keeps a number of calls in flight."""

    plan: Plan
    rng: random.Random
    calls: list[Call] = field(factory=list)
    answered: int = 0
    stopped: bool = False
    reopened: bool = True
    """A call was completed since the last kill: the session that it took with it has been replaced."""
    _news: anyio.Event = field(factory=anyio.Event)

    async def keep_calling(self, call_tool: CallTool) -> None:
        """One of the callers: the next call as soon as the last one is answered."""
        while not self.stopped:
            tool = self.rng.choice(TOOLS)
            call = Call(tool, f"{tool}-{len(self.calls)}", round(self.rng.uniform(0, LONGEST_CALL), 4))
            call.is_late = not self.reopened
            self.calls.append(call)
            try:
                call.answer = await call_tool(tool, {"label": call.label, "seconds": call.seconds})
            except Exception as error:
                call.error = error
            call.answered = True
            self.reopened = self.reopened or call.completed
            self.answered += 1
            self._news.set()
            self._news = anyio.Event()

    def in_flight(self) -> list[Call]:
        return [call for call in self.calls if not call.answered]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Asked again at each answer."""
        while not condition():
            await self._news.wait()

    async def outlive(self, server: RestartedServer) -> None:
        """Kill the server under this load and start it again, as often as planned."""
        caught: list[Call] = []
        for _ in range(self.plan.rounds):
            await self._settled(caught)
            await anyio.sleep(self.rng.uniform(0, 0.1))  # nothing is waited for: any moment will do
            before, made = self.in_flight(), len(self.calls)
            await server.kill()
            self.reopened = False
            caught = [*before, *self.calls[made:]]  # of those made meanwhile some have their outcome already
            for call in caught:
                call.kills += 1
            await anyio.sleep(self.rng.choice([0.0, self.rng.uniform(0, LONGEST_OUTAGE)]))
            await server.start()
        await self._settled(caught)
        self.stopped = True

    async def _settled(self, caught: list[Call]) -> None:
        """As far as this life is to come: what the last kill caught is answered, and some more; or a few only."""
        due = self.answered + self.rng.randint(0 if self.plan.hasty else 1, 2 * self.plan.at_once)
        last = [] if self.plan.hasty else caught
        if self.plan.hasty and self.rng.random() < 0.5:
            return
        await self.until(lambda: self.answered >= due and all(call.answered for call in last))


@asynccontextmanager
async def calling(guard: Guard, host: str) -> AsyncIterator[CallTool]:
    """Open a session and list the tools, which is how the guard comes to know their hints."""
    connection: Any = guard.connect()
    if host == "client":
        sdk: Any = mcp
        async with sdk.Client(connection) as client:
            await client.list_tools()
            yield client.call_tool
    else:
        async with connection as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            await session.list_tools()
            yield session.call_tool


# --- judging --------------------------------------------------------------------------------------


@frozen
class Verdict:
    """What was found; `faults` is empty if all promises were kept."""

    plan: Plan
    outcomes: Counter[str]
    """By tool and outcome."""
    caught: int
    """Calls in flight at a kill."""
    executions: int
    initializes: list[int]
    """Of each life."""
    faults: list[str]

    def __str__(self) -> str:
        said = ", ".join(f"{count} {what}" for what, count in sorted(self.outcomes.items()))
        text = (
            f"{self.plan}: {len(self.initializes) - 1} restarts, {sum(self.outcomes.values())} calls "
            f"({self.caught} caught by a kill), {self.executions} executions, "
            f"{sum(self.initializes)} initializes in {len(self.initializes)} lives; {said}"
        )
        return "\n    ".join([text, *self.faults[:20]])


def judge(plan: Plan, load: Load, server: RestartedServer, ledger: Sequence[StoredCall]) -> Verdict:
    """Against the ledger that the server kept itself."""
    ran, initializes = server.executions(), server.initializes()
    faults = [fault for call in load.calls for fault in faults_of(call, ran[call.label])]
    if plan.hasty:
        # A life may be over before its session was opened.
        faults += [f"life {n} got {count} initializes" for n, count in enumerate(initializes, 1) if count > 1]
    else:
        faults += [f"life {n} got {count} initializes" for n, count in enumerate(initializes, 1) if count != 1]
    faults += [f"the guard's ledger has no outcome for {row.tool}" for row in ledger if row.outcome is None]
    return Verdict(
        plan=plan,
        outcomes=Counter(f"{call.tool} {call.outcome}" for call in load.calls),
        caught=sum(call.kills > 0 for call in load.calls),
        executions=ran.total(),
        initializes=initializes,
        faults=faults,
    )


LOSSES_SURVIVED = 2
"""A harmless call is sent again after each; one that is lost once more may be told as in doubt."""


def faults_of(call: Call, ran: int) -> list[str]:
    """What is wrong with the answer to this call, which the server ran so often."""
    what = f"{call.label} ({call.outcome}, {call.kills} kills, ran {ran} times)"
    if not call.answered:
        return [f"{what}: never answered"]
    if call.outcome == "wrong":
        return [f"{what}: wrong answer {call.error or call.answer!r}"[:300]]
    faults = []
    if call.tool == "charge" and ran > 1:
        faults.append(f"{what}: repeated")
    if call.completed and not ran:
        faults.append(f"{what}: an answer to what never ran")
    if call.outcome == "not executed" and ran:
        faults.append(f"{what}: it did run")
    if call.tool == "charge" and call.doubt and not call.kills:
        faults.append(f"{what}: needless doubt, {call.doubt.reason}")
    if call.tool != "charge" and not call.completed and call.kills + call.is_late <= LOSSES_SURVIVED:
        faults.append(f"{what}: harmless, and no result: {call.doubt or call.error}")
    return faults


async def run(plan: Plan, folder: Path) -> Verdict:
    """Carry a plan out and judge it."""
    events: list[Event] = []
    load = Load(plan, random.Random(f"{plan.seed} {plan.server}"))
    hung: list[str] = []
    ledger: list[StoredCall] = []
    async with restarted(plan.server, folder) as server:
        store = SQLiteStore(folder / "guard.db", keep_calls=1_000_000)
        guard = Guard(server.url, store=store, policy=POLICY, generation="sessions", on_event=events.append)
        with anyio.move_on_after(LIMIT_PER_ROUND * (1 + plan.rounds)) as limit:
            async with calling(guard, plan.host) as call_tool, anyio.create_task_group() as tasks:
                for _ in range(plan.at_once):
                    tasks.start_soon(load.keep_calling, call_tool)
                await load.outlive(server)
            ledger = [row for row in await guard.calls() if row.method == "tools/call"]
        if limit.cancelled_caught:
            hung.append("the run hangs")
        verdict = judge(plan, load, server, ledger)
    verdict.faults.extend(hung)
    return verdict


# --- the command ----------------------------------------------------------------------------------


def play(plan: Plan) -> Verdict:
    """Carry a plan out in an event loop of its own."""
    with TemporaryDirectory(prefix="mcp-guard-restarts-") as folder:
        return anyio.run(run, plan, Path(folder), backend=plan.loop)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.restarts", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--server", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--host", nargs="+", choices=HOSTS, default=list(HOSTS))
    parser.add_argument("--loop", nargs="+", choices=("asyncio", "trio"), default=["asyncio"])
    parser.add_argument("--hasty", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("mcp_client_guard").setLevel(logging.ERROR)  # each lost session is a warning
    plans = [
        Plan(server, host, loop, given.rounds, given.calls, given.hasty, given.seed)
        for server in given.server
        for host in given.host
        for loop in given.loop
    ]
    verdicts = []
    for plan in plans:
        began = time.monotonic()
        verdicts.append(play(plan))
        print(f"{verdicts[-1]} ({time.monotonic() - began:.0f}s)", flush=True)
    faulty = sum(bool(verdict.faults) for verdict in verdicts)
    print(f"{len(verdicts)} runs with {SDK}: {faulty} faulty")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
