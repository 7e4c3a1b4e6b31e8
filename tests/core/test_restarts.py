"""Two connections, a forgetful server, and processes that die at any action: no call is lost, none runs twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from attrs import define, field
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_client_guard.core.actions import Get, Post
from mcp_client_guard.core.ledger import arguments_digest
from mcp_client_guard.core.model import JSON, Outcome
from mcp_client_guard.core.reconcile import Reconciling
from mcp_client_guard.core.registry import Registry
from mcp_client_guard.core.repeats import Repeats
from mcp_client_guard.core.shared import SharedLedger
from mcp_client_guard.core.takeover import TakeOver
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import RESULT, Peer, delivered
from tests.core.scenes import WALL, Connection, Died, Process

pytestmark = pytest.mark.no_cover  # the tables cover every branch; tracing would double the time

TOOLS = [{"name": "look", "annotations": {"readOnlyHint": True}}, {"name": "charge"}]
_NOT_AWAITED = (TimerKind.DEADLINE, TimerKind.REFRESH)
PARAMS = {"protocolVersion": "2025-11-25", "capabilities": {}}


@define
class World:
    """An honest server that forgets its sessions now and then, and hosts that call it."""

    process: Process = field(factory=Process)
    hosts: list[Connection] = field(factory=list)
    sessions: set[str] = field(factory=set)
    ran: list[tuple[str, int, str]] = field(factory=list)
    """Call key, wire ID and tool, each time a tool ran."""
    logs: dict[tuple[str, int], list[tuple[str, JSON]]] = field(factory=dict)
    """The event log of each response stream."""
    calls: list[tuple[Connection, Peer]] = field(factory=list)
    cancelled: set[tuple[int, str]] = field(factory=set)
    _events: int = 0
    _opened: int = 0

    def begin(self) -> None:
        self.hosts = [self.process.connect(), self.process.connect()]
        for host in self.hosts:
            host.request("initialize", PARAMS)
        self.settle_sessions()
        for host in self.hosts:
            host.request("tools/list")
        self.settle_sessions()

    def play(self, drawn: bytes) -> None:
        steps: list[Callable[[int], object]] = [
            self.call,
            self.call,
            self.serve,
            self.serve,
            self.serve,
            self.emit,
            self.emit,
            self.cut,
            self.elapse,
            self.drain,
            self.forget,
            self.cancel,
            self.crash,
        ]
        for kind, arg in zip(drawn[::2], drawn[1::2], strict=False):
            try:
                steps[kind % len(steps)](arg)
            except Died:
                self.restart(arg)
        self.finish()
        self.check()

    # The hosts.

    def call(self, arg: int) -> None:
        host = self.hosts[arg % 2]
        kind, cents = arg // 2 % 4, 1 if arg // 2 % 4 == 3 else arg // 8 % 2
        tool = ("charge", "charge", "look", "charge")[kind]
        in_doubt = self.is_in_doubt(tool, cents, named=kind == 3)
        peer = host.named("order", cents=cents) if kind == 3 else host.call(tool, cents=cents)
        assert not (in_doubt and peer.stream in host.orders), "a call in doubt was repeated"
        self.calls.append((host, peer))

    def is_in_doubt(self, tool: str, cents: int, *, named: bool) -> bool:
        """Whether the ledger on disk says so of a call of which this would be a repeat."""
        digest = arguments_digest({"name": tool, "arguments": {"cents": cents}})
        since = WALL + self.process.now - 60
        return any(
            call.outcome is Outcome.IN_DOUBT and call.settled_at is not None and call.settled_at > since
            for call in self.process.disk.calls.values()
            if call.arguments_digest == digest and call.may_have_side_effects and not (named and call.named)
        )

    def cancel(self, arg: int) -> None:
        if self.calls:
            host, peer = self.calls[arg % len(self.calls)]
            if host in self.hosts and not self.answers(host)[peer.host_id]:
                self.cancelled.add((id(host), peer.host_id))
                host.cancel(peer)

    def drain(self, arg: int) -> None:
        self.hosts[arg % 2].drain(1 + arg // 2 % 3)

    def elapse(self, arg: int) -> None:
        host = self.hosts[arg % 2]
        kinds = sorted({t.kind.name for t in host.timers if t.kind is not TimerKind.DEADLINE})
        if kinds:
            host.elapse(TimerKind[kinds[arg // 2 % len(kinds)]])
        self.process.now += arg // 16

    # The server.

    def exchanges(self) -> list[Peer]:
        """Those that may be answered."""
        found = []
        for host in self.hosts:
            for stream, order in host.orders.items():
                if order.connection in host.open and order.connection not in host.served:
                    found.append(host.peer(stream))
        return found

    def serve(self, arg: int) -> None:
        waiting = self.exchanges()
        if waiting:
            self.answer(waiting[arg % len(waiting)], arg // 16)

    def answer(self, peer: Peer, how: int) -> None:
        host, order = peer.driver, peer.order
        assert isinstance(host, Connection)
        if order.delay.attempt:
            peer.begin()
        host.served.add(order.connection)
        session = order.headers.get("mcp-session-id")
        if isinstance(order, Get):
            self.answer_get(peer, order, session)
            return
        method = order.message.get("method")
        if method == "initialize":
            self._opened += 1
            self.sessions.add(f"s{self._opened}")
            answer = peer.answer(RESULT, session_id=f"s{self._opened}")
            if any("protocolVersion" in (m.get("result") or {}) for m in delivered(answer)):
                host.notify("notifications/initialized")
        elif session not in self.sessions:
            peer.refuse(404)
        elif "id" not in order.message or "method" not in order.message:
            peer.accept(status=202, events=False)
        elif method == "tools/call":
            self.run(peer, order, session, how)
        else:
            peer.answer({"tools": TOOLS} if method == "tools/list" else {})
            self.after_ping(host, method)

    def after_ping(self, host: Connection, method: Any) -> None:
        """An adopted session: the host is answered, and says so."""
        if method == "ping":
            host.notify("notifications/initialized")

    def run(self, peer: Peer, order: Post, session: str, how: int) -> None:
        if how == 0:
            peer.refuse(503)
            return
        if how == 1:
            peer.not_written()
            return
        self.execute(order)
        if how == 2:
            peer.cut()
        elif how < 8:
            peer.answer()
        else:
            log = self.logs[session, peer.stream] = []
            peer.accept()
            peer.event(*self.log(log, None))

    def execute(self, order: Post) -> None:
        params = order.message["params"]
        key = params["_meta"]["io.github.mcp-client-guard/call-key"]
        self.ran.append((key, order.message["id"], params.get("name", "charge")))

    def log(self, log: list[tuple[str, Any]], message: JSON | None) -> tuple[str, Any]:
        self._events += 1
        log.append((f"e{self._events}", message))
        return log[-1]

    def answer_get(self, peer: Peer, order: Get, session: str | None) -> None:
        if session not in self.sessions:
            peer.refuse(404)
            return
        log = self.logs.get((session or "", peer.stream))
        if log is None or order.last_event_id is None:
            peer.refuse(405)
            return
        peer.accept()
        at = [event_id for event_id, _ in log].index(order.last_event_id)
        for event in log[at + 1 :]:
            if peer.driver.orders.get(peer.stream) is order and order.connection in peer.driver.open:
                peer.event(*event)

    def emit(self, arg: int) -> None:
        running = [k for k, log in self.logs.items() if not self.is_done(log)]
        if running:
            self.emit_on(running[arg % len(running)], last=arg // 16 % 2 == 0)

    def emit_on(self, where: tuple[str, int], *, last: bool) -> None:
        stream = where[1]
        for host in self.hosts:
            peer = host.peer(stream)
            message = peer.result() if last else peer.progress(1)
            order = host.orders.get(stream)
            if order is not None and order.connection in host.open & host.served:
                peer.event(*self.log(self.logs[where], message))
                return
        self.log(self.logs[where], message)

    def is_done(self, log: list[tuple[str, Any]]) -> bool:
        return any(message is not None and "result" in message for _, message in log)

    def being_answered(self) -> list[Peer]:
        return [
            host.peer(stream)
            for host in self.hosts
            for stream, order in host.orders.items()
            if order.connection in host.open & host.served
        ]

    def cut(self, arg: int) -> None:
        served = self.being_answered()
        if served:
            served[arg % len(served)].cut()

    def forget(self, arg: int) -> None:
        """The server restarts."""
        if arg % 3 == 0:
            self.sessions.clear()
            self.logs.clear()
            for peer in self.being_answered():
                if peer.is_open:
                    peer.cut()

    # Death.

    def crash(self, arg: int) -> None:
        """The process dies within what it does next, or between two things."""
        if arg % 2:
            raise Died
        self.process.dies_after = arg // 2 % 6

    def restart(self, arg: int) -> None:
        for peer in self.exchanges():
            order = peer.order
            if isinstance(order, Post) and order.message.get("method") == "tools/call" and arg % 3:
                alive = order.headers.get("mcp-session-id") in self.sessions
                if alive and not order.delay.attempt:
                    self.execute(order)  # its bytes had left
        self.process = self.process.killed(power=arg // 4 % 2 == 0, after=1.0 + arg % 7 * 10)
        self.begin()

    # The end.

    def settle_sessions(self) -> None:
        for _ in range(50):
            waiting = [p for p in self.exchanges() if not self.is_call(p)]
            if not waiting:
                return
            self.answer(waiting[0], 9)

    def is_call(self, peer: Peer) -> bool:
        return isinstance(peer.order, Post) and peer.order.message.get("method") == "tools/call"

    def finish(self) -> None:
        """Faults stop: whatever is asked is answered, and time passes."""
        self.process.dies_after = None
        for _ in range(300):
            waiting = self.exchanges()
            running = [k for k, log in self.logs.items() if not self.is_done(log)]
            due = [
                (h, t)
                for h in self.hosts
                for t in h.timers
                if t.kind not in (TimerKind.DEADLINE, TimerKind.REFRESH)
            ]
            if waiting:
                self.answer(waiting[0], 7)
            elif running:
                self.emit_on(running[0], last=True)
            elif due and self.process.disk.open_calls:
                host, timer = min(due, key=lambda entry: entry[0].timers[entry[1]])
                host.elapse(timer.kind, timer.stream)
            else:
                break
        for host in self.hosts:
            host.drain(1000)

    def answers(self, host: Connection) -> Counter[Any]:
        return Counter(m["id"] for m in delivered(host.log) if "method" not in m)

    def check(self) -> None:
        calls = self.process.disk.calls.values()
        assert not self.process.disk.open_calls, "a call has no outcome"
        ran = {wire_id for _, wire_id, _ in self.ran}
        twice = Counter(key for key, _, tool in self.ran if tool == "charge")
        assert max(twice.values(), default=0) <= 1, "an unsafe call ran twice"
        for call in calls:
            if call.method != "tools/call":
                continue
            if call.outcome is Outcome.NOT_EXECUTED:
                assert call.wire_id not in ran, "it ran, and the ledger says that it did not"
            if call.outcome is Outcome.RESENT:
                assert [c.call_key for c in calls].count(call.call_key) > 1, "it was not sent again"
            if call.outcome in (Outcome.COMPLETED, Outcome.RECOVERED):
                assert call.wire_id in ran, "it did not run, and the ledger says that it did"
        for host, peer in self.calls:
            if host in self.hosts:
                count = self.answers(host)[peer.host_id]
                assert count == 1 or (count == 0 and (id(host), peer.host_id) in self.cancelled), "not one answer"
        assert all(host.machine.heirs_open == 0 for host in self.hosts)


def run(drawn: bytes) -> None:
    world = World()
    world.begin()
    world.play(drawn)


STORMY = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)


@STORMY
@given(st.binary(min_size=40, max_size=160))
def test_every_call_has_an_honest_outcome_and_no_unsafe_one_runs_twice(drawn: bytes) -> None:
    run(drawn)


@pytest.mark.parametrize(
    ("where", "what", "bug", "found"),
    [
        (Repeats, "_join_or_answer_alike", lambda *_: False, "a call in doubt was repeated"),
        (SharedLedger, "restore", lambda *_: None, "a call in doubt was repeated"),
        (Reconciling, "_consents_to", lambda *_: True, "an unsafe call ran twice"),
        (Registry, "cancel", lambda *_: False, "ran"),
        (TakeOver, "_settle_heirs", lambda *_: None, "a call has no outcome"),
        (Repeats, "deliver_joined", lambda *_: None, "not one answer"),
    ],
)
def test_a_bug_is_found(where: type, what: str, bug: Any, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, what, bug)
    random = Random(7)
    with pytest.raises(AssertionError, match=found):
        for _ in range(100):
            run(random.randbytes(160))
