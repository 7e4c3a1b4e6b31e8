"""One case, carried out and judged: what the host got, what the server ran, what the guard said of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
from attrs import define, field, frozen

from mcp_client_guard import CallInDoubt, Discontinuity, Event, Grade, Resumed
from mcp_client_guard.testing import CuttingProxy, Exchange, How

from .cases import STEPS, Case
from .hosts import POLICY, SDK, STALL_POLICY, calling
from .peers import path_of

DEADLINE = 120.0
"""Seconds for one case, from connecting to closing. Reaching it is a failure: something hangs."""

SERVER_DROP = "server drop"
"""Progress that the server never sent: SDK servers lose what falls between a replay and its live tail."""


@define
class Call:
    """A call of a case, and what its host got."""

    peer: str
    label: str
    steps: int
    delay: float
    progress: list[float] = field(factory=list)
    all_progress: anyio.Event = field(factory=anyio.Event)
    answer: Any = None
    error: BaseException | None = None
    answered: bool = False

    @property
    def tool(self) -> str:
        """The name of a tool that tells its progress."""
        return "trigger-long-running-operation" if self.peer.startswith("everything") else "count"

    @property
    def arguments(self) -> dict[str, Any]:
        """They differ between the calls of a case, and their results do too."""
        if self.peer.startswith("everything"):
            return {"duration": round(self.steps * self.delay, 3), "steps": self.steps}
        return {"n": self.steps, "delay": self.delay, "label": self.label}

    def is_mine(self, exchange: Exchange) -> bool:
        """Whether this is the POST of this call."""
        request = exchange.request
        return request.rpc_method == "tools/call" and bool(request.json["params"]["arguments"] == self.arguments)

    async def on_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """For the host to call."""
        self.progress.append(progress)
        if len(self.progress) >= self.steps:
            self.all_progress.set()

    async def make(self, call_tool: Any) -> None:
        """Call, and keep whatever comes back."""
        try:
            self.answer = await call_tool(self.tool, self.arguments, self.on_progress)
        except Exception as error:
            self.error = error
        self.answered = True
        with anyio.move_on_after(0.5):  # SDK 2.x may run progress handlers after the result; losses end here
            await self.all_progress.wait()

    @property
    def doubt(self) -> CallInDoubt | None:
        """The honest answer, if that is what came."""
        return CallInDoubt.find(self.error or self.answer)

    @property
    def correct(self) -> bool:
        """The result is this call's, and right."""
        if self.error is not None or self.answer is None or self.doubt:
            return False
        text = "".join(getattr(block, "text", "") for block in self.answer.content)
        return (f"Steps: {self.steps}." in text) if self.peer.startswith("everything") else text == str(self.steps)


@frozen
class Verdict:
    """What was found; `faults` is empty if all promises were kept."""

    case: str
    outcome: str
    """`completed`, `in doubt`, `error` or `hung`."""
    cut: bool
    """Every cut of the case happened."""
    proven: bool
    labels: dict[str, int]
    """For the ledger, once all is over: how often at least and at most... each label must have run once if 1."""
    faults: list[str]
    server_drop: bool = False
    """The server lost progress by itself."""

    def line(self) -> str:
        """For the worker's output."""
        return json.dumps([self.case, self.outcome, self.cut, self.proven, self.labels, self.faults])

    @classmethod
    def from_line(cls, line: str) -> Verdict:
        """From a worker's output."""
        return cls(*json.loads(line))


@define
class Run:
    """One case under way."""

    case: Case
    port: int
    transport: str
    events: list[Event] = field(factory=list)

    async def judge(self) -> Verdict:
        """Carry the case out and say what was wrong."""
        case, name = self.case, str(self.case)
        main = Call(case.peer, name, STEPS, case.delay)
        other = Call(case.peer, f"{name} (other)", STEPS + 1, case.delay)
        calls = [main, other] if case.company == "beside" else [main]
        failure: BaseException | None = None
        async with CuttingProxy(self.port) as proxy:
            proxy.cuts += case.cuts(main.is_mine, proxy)
            with anyio.move_on_after(DEADLINE) as deadline:
                try:
                    await self._call(f"http://127.0.0.1:{proxy.port}{path_of(case.peer)}", calls)
                except Exception as error:
                    failure = error
        faults = [f"connection raised {failure!r}"] if failure else []
        if deadline.cancelled_caught:
            faults.append("hung")
        for call in calls:
            faults += [f"{'other: ' if call is other else ''}{fault}" for fault in self._faults(call, proxy)]
        faults += self._evidence_faults(main, proxy)
        return Verdict(
            case=name,
            outcome=self._outcome(main),
            cut=not proxy.unused_cuts,
            proven=self._grades.count(Grade.PROVEN) > 0,
            labels={call.label: 1 if call.correct else 0 for call in calls},
            faults=faults,
        )

    async def _call(self, url: str, calls: Sequence[Call]) -> None:
        stalls = any(place.how is How.STALL for place in self.case.places)
        opened = calling(
            url,
            host=self.case.host,
            transport=self.transport,
            policy=STALL_POLICY if stalls else POLICY,
            on_event=self.events.append,
            is_legacy=self.case.is_legacy,
        )
        async with opened as call_tool, anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.make, call_tool)

    @property
    def _grades(self) -> list[Grade]:
        return [event.evidence.grade for event in self.events if isinstance(event, Resumed)]

    def _outcome(self, call: Call) -> str:
        if not call.answered:
            return "hung"
        return "completed" if call.correct else "in doubt" if call.doubt else "error"

    def _faults(self, call: Call, proxy: CuttingProxy) -> list[str]:
        faults = []
        mine = [exchange for exchange in proxy.exchanges if call.is_mine(exchange)]
        # A legacy server refuses what comes for a session that is gone; then it is sent again. Not where that has
        # taken more than a second, as on a busy machine: a router may say so of what ran.
        refused = [exchange for exchange in mine if self.case.is_legacy and exchange.status == 404]
        posts = len(mine) - len(refused)
        if posts != 1 and not (call.doubt and posts == 0 and len(refused) == 1):
            faults.append(f"sent {posts} times")
        if not call.answered:
            faults.append("never answered")
        elif call.doubt:
            if self.case.is_legacy:
                faults += self._needless(call, proxy)
            elif self._ids_before_cut(call, proxy):
                faults.append(f"needless doubt: {call.doubt.reason}, but the server had given an event ID")
        elif not call.correct:
            faults.append(f"wrong answer: {call.error or call.answer!r}"[:300])
        expected = [float(step) for step in range(1, call.steps + 1)]
        got = sorted(call.progress) if self._handlers_race else call.progress
        if got != sorted(set(got)) or not set(got) <= set(expected):
            faults.append(f"progress twice, out of order or foreign: {call.progress}")
        elif call.answered and got != expected and not (call.doubt or self._loss_reported):
            sent = (set(expected) - set(got)) & _progress_sent(call, proxy)
            faults.append(f"{'progress lost in silence' if sent else SERVER_DROP}: {call.progress}")
        return faults

    def _needless(self, call: Call, proxy: CuttingProxy) -> list[str]:
        """Of a legacy session: its answer had come, or the stream stood on which it was to come."""
        assert call.doubt is not None
        if call.doubt.method != "tools/call":
            return []  # SDKs list the tools before they give a first result to their host: that was cut as often
        wire_ids = [exchange.request.rpc_id for exchange in proxy.exchanges if call.is_mine(exchange)]
        messages = [event.message for exchange in proxy.exchanges for event in exchange.delivered if event.message]
        if any("method" not in message and message.get("id") in wire_ids for message in messages):
            return [f"needless doubt: {call.doubt.reason}, but its answer had come"]
        if all(place.of_post for place in self.case.places):
            return [f"needless doubt: {call.doubt.reason}, but its stream stood"]
        return []

    @property
    def _handlers_race(self) -> bool:
        """SDK 2.x starts a task for each progress handler, and trio starts tasks in no order: what the handlers
        got then says nothing of the order in which the transport delivered."""
        return SDK == "sdk2" and self.case.loop == "trio"

    @property
    def _loss_reported(self) -> bool:
        return any(isinstance(event, Discontinuity) for event in self.events)

    def _evidence_faults(self, call: Call, proxy: CuttingProxy) -> list[str]:
        if self.transport != "guard":
            return []
        faults = [
            f"false alarm: {e}" for e in self.events if isinstance(e, Resumed) and e.evidence.grade is Grade.BROKEN
        ]
        if self._proof_due(call, proxy) and Grade.PROVEN not in self._grades:
            faults.append(f"not proven: {[str(e.evidence) for e in self.events if isinstance(e, Resumed)]}")
        return faults

    @staticmethod
    def _ids_before_cut(call: Call, proxy: CuttingProxy) -> int:
        return sum(
            event.event_id is not None
            for exchange in proxy.exchanges
            if call.is_mine(exchange)
            for event in exchange.delivered
        )

    def _proof_due(self, call: Call, proxy: CuttingProxy) -> bool:
        """Two identified events, one of them a message, came before the first cut, and the response did not."""
        posts = [exchange for exchange in proxy.exchanges if call.is_mine(exchange)]
        if not posts or not posts[0].cut_done:
            return False
        messages = [event.message for event in posts[0].delivered if event.message]
        return self._ids_before_cut(call, proxy) >= 2 and bool(messages) and not _answered(posts[0])


def _answered(exchange: Exchange) -> bool:
    """The response came before the cut. Of a CRLF that ends an event, the CR is enough (SSE, 9.2.6)."""
    for event, end in zip(exchange.events, exchange.boundaries, strict=True):
        needed = end - 1 if exchange.response[end - 2 : end] == b"\r\n" else end
        if needed <= exchange.sent and event.message and not event.message.get("method"):
            return True
    return False


def _progress_sent(call: Call, proxy: CuttingProxy) -> set[float]:
    """The progress of this call that reached the client, on whatever stream."""
    tokens = [e.request.json["params"]["_meta"]["progressToken"] for e in proxy.exchanges if call.is_mine(e)]
    params = [
        event.message["params"]
        for exchange in proxy.exchanges
        for event in exchange.delivered
        if event.message and event.message.get("method") == "notifications/progress"
    ]
    return {float(each["progress"]) for each in params if each["progressToken"] in tokens}
