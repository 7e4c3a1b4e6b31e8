"""A migration in stages, under load, behind proxies: `python -m tests.real.staged`.

Two servers of mcp 1.30 are replaced, one after the other, by two of 2.3; then all of it is taken back. HAProxy
sends each session where it was opened (or anywhere, with --scatter); nginx cuts what is silent for two seconds.

--host NAME              `session`, or with SDK 2.x `client` and `legacy`
--generation NAME        of the guard: auto, sessions or host
--transport sdk          the SDK's own transport instead of the guard
--loop NAME              asyncio or trio
--calls N                in flight at each moment
--scatter                round robin, whatever the session: every other request meets the wrong server
--seed N                 the calls are drawn from it, and how each server goes
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import mcp
from attrs import define, field, frozen
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from mcp_client_guard import CallInDoubt, CallNotExecuted, Discontinuity, Event, Guard, Outcome, SQLiteStore
from mcp_client_guard.core.answers import CODE_HTTP_STATUS
from mcp_client_guard.core.ledger import arguments_digest
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.stores import StoredCall

from .hosts import SDK
from .proxies import Proxies, proxied
from .restarted import RestartedServer

HOSTS = ("session", "client", "legacy") if hasattr(mcp, "Client") else ("session",)
OLD, NEW = ("old-1", "old-2"), ("new-1", "new-2")
VERSIONS = dict.fromkeys(OLD, "staged-1.30") | dict.fromkeys(NEW, "staged-2.3")
TOOLS = ("look", "put", "charge")
"""Read-only, idempotent, unsafe."""
CONNECTIONS = 4
HUNG = 30.0
LIMIT = 400.0
"""Seconds after which a run that hangs is a failure. Not a measure of anything."""
POLICY = GuardPolicy(trust_idempotent_hint=True, call_deadline=60.0)
"""The rest as users get it: five sessions in a minute, too."""


@frozen
class Plan:
    """A run, but for its chances."""

    host: str
    generation: str = "auto"
    transport: str = "guard"
    loop: str = "asyncio"
    at_once: int = 200
    per_stage: int = 40
    """Answers before the next stage begins."""
    sticky: bool = True
    seed: int = 0

    def __str__(self) -> str:
        how = "sticky" if self.sticky else "scattered"
        what = f"{SDK}/{self.host}/{self.transport}/{self.generation}/{self.loop}"
        return f"{what}/{how}/{self.at_once} at once/seed {self.seed}"


# --- calling --------------------------------------------------------------------------------------


@define(eq=False)
class Call:
    """A call, and what its host got."""

    tool: str
    label: str
    seconds: float
    steps: int
    progress: list[float] = field(factory=list)
    answer: Any = None
    error: BaseException | None = None
    answered: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        return {"label": self.label, "seconds": self.seconds, "steps": self.steps}

    async def on_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """For the host to call."""
        self.progress.append(progress)

    @property
    def outcome(self) -> str:
        """What the host was told."""
        if not self.answered:
            return "unanswered"
        if CallInDoubt.find(self.error or self.answer):
            return "in doubt"
        if self.error is not None:
            if CallNotExecuted.find(self.error):
                return "not executed"
            if getattr(getattr(self.error, "error", None), "code", 0) == CODE_HTTP_STATUS:
                return f"HTTP {self.error.error.data['http_status']}"
            return "error"
        is_error = getattr(self.answer, "isError", None) or getattr(self.answer, "is_error", None)
        right = not is_error and self.answer.content[0].text == f"{self.tool} of {self.label}"
        return "completed" if right else "wrong"


CallTool = Callable[..., Awaitable[Any]]


@define(eq=False)
class Load:
    """Keeps a number of calls in flight."""

    rng: random.Random
    calls: list[Call] = field(factory=list)
    answered: int = 0
    stopped: bool = False
    most: float = math.inf
    everyone: bool = True
    """Whether a stage lasts until each connection was served: the SDK's own transport leaves some waiting."""
    fell: list[str] = field(factory=list)
    """Connections that raised."""
    _served: set[CallTool] = field(factory=set)
    """By what they call with: the connections for which a call that was made in this stage has completed."""
    _news: anyio.Event = field(factory=anyio.Event)

    def draw(self) -> Call:
        """One in twelve is silent for longer than nginx has patience; one in three tells its progress."""
        tool = self.rng.choice(TOOLS)
        chance = self.rng.random()
        seconds = self.rng.uniform(2.2, 2.8) if chance < 1 / 12 else self.rng.uniform(0.2, 1.4)
        call = Call(tool, f"{tool}-{len(self.calls)}", round(seconds, 3), 3 if chance > 2 / 3 else 0)
        self.calls.append(call)
        return call

    async def make(self, call_tool: CallTool, call: Call) -> None:
        """Call, and keep whatever comes back."""
        served = self._served
        try:
            call.answer = await call_tool(call.tool, call.arguments, progress_callback=call.on_progress)
        except Exception as error:
            call.error = error
        call.answered = True
        self.answered += 1
        if call.outcome == "completed":
            served.add(call_tool)
        self.tell()

    def tell(self) -> None:
        """Something has come of it."""
        self._news.set()
        self._news = anyio.Event()

    async def keep_calling(self, call_tool: CallTool) -> None:
        """One of the callers: the next call as soon as the last one is answered."""
        while not self.stopped and len(self.calls) < self.most:
            await self.make(call_tool, self.draw())

    async def more(self, number: int) -> None:
        """Until so many more are answered, each connection having a session that serves it."""
        due = self.answered + number
        self._served = set()
        while len(self.fell) < CONNECTIONS and (
            self.answered < due or (self.everyone and len(self._served) < CONNECTIONS)
        ):
            await self._news.wait()


@asynccontextmanager
async def calling(connection: Any, plan: Plan) -> AsyncIterator[CallTool]:
    """Open a session and list the tools, which is how the guard comes to know their hints.

    Where sessions are scattered, the list is mostly refused: then it knows of none.
    """
    may_fail = () if plan.sticky else (Exception,)
    if plan.host == "session":
        async with connection as streams, ClientSession(*streams[:2]) as session:
            await session.initialize()
            with suppress(*may_fail):
                await session.list_tools()
            # Else this SDK lists the tools after each call, and raises if that fails: the answer is lost above us.
            for tool in TOOLS:
                session._tool_output_schemas.setdefault(tool, None)
            yield session.call_tool
    else:
        sdk: Any = mcp
        async with sdk.Client(connection, mode="legacy" if plan.host == "legacy" else "auto") as client:
            with suppress(*may_fail):
                await client.list_tools()
            yield client.call_tool


# --- the migration --------------------------------------------------------------------------------


@define(eq=False)
class Site:
    """The servers, and the proxies before them."""

    servers: dict[str, RestartedServer]
    proxies: Proxies
    rng: random.Random

    async def enter(self, *names: str) -> None:
        """These start, and new sessions may go to them."""
        for name in names:
            await self.servers[name].start()
            await self.proxies.ready(name)

    async def leave(self, *names: str) -> None:
        """Nothing goes to these any more. What runs there loses its connections, or its server, or both."""
        for name in names:
            await self.proxies.remove(name)
            if self.rng.random() < 0.5:
                await self.proxies.cut(name)
            await self.servers[name].kill()

    async def replace(self, old: str, new: str, load: Load, answers: int) -> None:
        """The new one takes what is new, the old one keeps what it has; then it goes."""
        await self.enter(new)
        await self.proxies.drain(old)
        await load.more(answers)
        await self.leave(old)

    async def migrate(self, load: Load, answers: int) -> None:
        """There, and back again."""
        await load.more(answers)
        for old, new in zip(OLD, NEW, strict=True):
            await self.replace(old, new, load, answers)
        await load.more(answers)
        await self.enter(*OLD)
        await self.leave(*NEW)
        await load.more(answers)

    @property
    def executions(self) -> Counter[str]:
        """How often a tool ran under each label, wherever."""
        return sum((server.executions() for server in self.servers.values()), Counter[str]())


@asynccontextmanager
async def site(plan: Plan, folder: Path, rng: random.Random) -> AsyncIterator[Site]:
    """The proxies up, the servers not yet."""
    servers = {}
    for name, version in VERSIONS.items():
        (folder / name).mkdir()
        servers[name] = RestartedServer(version, folder / name)
    ports = {name: server.port for name, server in servers.items()}
    async with AsyncExitStack() as stack:
        proxies = stack.enter_context(proxied(ports, folder, sticky=plan.sticky))
        for server in servers.values():
            stack.push_async_callback(_closed, server)
            await server.load()
        yield Site(servers, proxies, rng)


async def _closed(server: RestartedServer) -> None:
    with anyio.CancelScope(shield=True):
        await server.close()


# --- judging --------------------------------------------------------------------------------------


@frozen
class Verdict:
    """What was found; `faults` is empty if all promises were kept."""

    plan: Plan
    outcomes: Counter[str]
    """By tool and outcome."""
    executions: dict[str, int]
    """By server."""
    events: Counter[str]
    faults: list[str]

    def __str__(self) -> str:
        def told(counts: dict[str, int]) -> str:
            return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))

        ran = ", ".join(f"{count} on {name}" for name, count in self.executions.items())
        lines = [f"{self.plan}: {sum(self.outcomes.values())} calls", told(self.outcomes), ran, told(self.events)]
        return "\n    ".join([*lines, f"{len(self.faults)} faults", *self.faults[:20]])


def faults_of(call: Call, ran: int, rows: Sequence[StoredCall], *, has_ledger: bool = True) -> list[str]:
    """What is wrong with the answer to this call, which ran so often, and with what the guard's ledger says."""
    said = "; ".join(f"{row.outcome and row.outcome.value}: {row.reason}" for row in rows)
    what = f"{call.label} ({call.outcome}, ran {ran} times, {said or 'no row'})"
    faults = []
    if call.outcome in ("unanswered", "wrong", "error"):
        faults.append(f"{what}: {call.error or call.answer!r}"[:400])
    if call.tool == "charge" and ran > 1:
        faults.append(f"{what}: repeated")
    if call.outcome == "completed" and not ran:
        faults.append(f"{what}: an answer to what never ran")
    if call.outcome == "not executed" and ran:
        faults.append(f"{what}: it did run: {call.error}")
    if any(call.progress.count(step) > max(ran, 1) or not 0 < step <= call.steps for step in call.progress):
        faults.append(f"{what}: progress twice, out of order or foreign: {call.progress}")
    if not has_ledger:
        return faults
    outcomes = {row.outcome for row in rows}
    if None in outcomes or not (rows or call.outcome == "not executed"):
        faults.append(f"{what}: no outcome in the guard's ledger")
    if Outcome.COMPLETED in outcomes and not ran and not call.outcome.startswith("HTTP"):
        faults.append(f"{what}: an answer in the guard's ledger, and it never ran")
    if outcomes == {Outcome.NOT_EXECUTED} and ran:
        faults.append(f"{what}: not executed in the guard's ledger, and it did run")
    return faults


def judge(plan: Plan, load: Load, found: Site, ledger: Sequence[StoredCall], events: Sequence[Event]) -> Verdict:
    """Against the ledger that the servers kept."""
    ran = found.executions
    rows: dict[bytes, list[StoredCall]] = {}
    for row in ledger:
        rows.setdefault(row.arguments_digest, []).append(row)
    faults = []
    for call in load.calls:
        digest = arguments_digest({"name": call.tool, "arguments": call.arguments})
        faults += faults_of(call, ran[call.label], rows.get(digest, []), has_ledger=plan.transport == "guard")
    faults += [f"a connection raised {error}" for error in load.fell]
    told = Counter(type(event).__name__ for event in events)
    if not any(isinstance(event, Discontinuity) for event in events):
        short = [c for c in load.calls if c.outcome == "completed" and len(c.progress) < c.steps]
        told["calls with progress missing in silence"] = len(short)
    return Verdict(
        plan=plan,
        outcomes=Counter(f"{call.tool} {call.outcome}" for call in load.calls),
        executions={name: server.executions().total() for name, server in found.servers.items()},
        events=told,
        faults=faults,
    )


# --- carrying it out ------------------------------------------------------------------------------


async def run(plan: Plan, folder: Path) -> Verdict:
    """Carry a plan out and judge it."""
    events: list[Event] = []
    rng = random.Random(f"staged {plan.seed}")
    guarded = plan.transport == "guard"
    load = Load(rng, most=(math.inf if guarded else 5000) if plan.sticky else 3 * plan.at_once, everyone=guarded)
    ledger: list[StoredCall] = []
    async with site(plan, folder, rng) as found:
        guard = Guard(
            found.proxies.url,
            store=SQLiteStore(folder / "guard.db", keep_calls=1_000_000),
            policy=POLICY,
            generation=plan.generation,  # type: ignore[arg-type]
            on_event=events.append,
        )

        def connection() -> Any:
            return guard.connect() if guarded else streamable_http_client(found.proxies.url)

        async def keep_calling(callers: int) -> None:
            try:
                async with calling(connection(), plan) as call_tool, anyio.create_task_group() as tasks:
                    for _ in range(callers):
                        tasks.start_soon(load.keep_calling, call_tool)
            except Exception as error:
                if guarded:
                    raise
                load.fell.append(repr(error)[:200])  # as the SDK's own transport does at a 5xx
                load.tell()

        with anyio.move_on_after(LIMIT):
            await found.enter(*OLD)
            async with anyio.create_task_group() as tasks:
                for _ in range(CONNECTIONS):
                    tasks.start_soon(keep_calling, plan.at_once // CONNECTIONS)
                if plan.sticky:
                    await found.migrate(load, plan.per_stage)
                    load.stopped = True
                if not guarded:  # it leaves calls without an answer
                    tasks.cancel_scope.deadline = anyio.current_time() + HUNG
        if guarded:
            ledger = [row for row in await guard.calls() if row.method == "tools/call"]
        return judge(plan, load, found, ledger, events)


def play(plan: Plan) -> Verdict:
    """Carry a plan out in an event loop of its own."""
    with TemporaryDirectory(prefix="mcp-guard-staged-") as folder:
        return anyio.run(run, plan, Path(folder), backend=plan.loop)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.staged", description=__doc__.partition("\n")[0])
    parser.add_argument("--host", nargs="+", choices=HOSTS, default=list(HOSTS))
    parser.add_argument("--generation", default="auto")
    parser.add_argument("--transport", choices=("guard", "sdk"), default="guard")
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--scatter", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("mcp_client_guard").setLevel(logging.ERROR)  # each lost session is a warning
    faulty = 0
    for host in given.host:
        plan = Plan(
            host,
            given.generation,
            given.transport,
            given.loop,
            given.calls,
            sticky=not given.scatter,
            seed=given.seed,
        )
        began = time.monotonic()
        verdict = play(plan)
        print(f"{verdict} ({time.monotonic() - began:.0f}s)", flush=True)
        faulty += bool(verdict.faults)
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
