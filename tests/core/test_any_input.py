"""Whatever a server or a host does, in any order: the machine stays upright and keeps its books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mcp_client_guard.core.actions import EndSession, Get, Post
from mcp_client_guard.core.answers import not_executed_answer
from mcp_client_guard.core.calls import Calls
from mcp_client_guard.core.inputs import UNREADABLE
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled
from mcp_client_guard.core.state import StreamState, StreamStep
from mcp_client_guard.core.streams import Streams
from tests.core.driver import SESSION, Driver, Peer, delivered, note, reports

STATUSES = [302, 400, 401, 404, 405, 409, 410, 429, 500, 503]
IDS = ["p", "1", "2", "3", "9", SESSION, "x" * 9000, None]
METHODS = ["notifications/x", "notifications/initialized", "notifications/cancelled"]


@define
class Chaos:
    """Feeds what the shell could feed: nothing before a connection is ordered, nothing after it is lost."""

    driver: Driver
    answered: dict[int, bool] = field(factory=dict)
    """Connections with a status line, and whether events follow."""
    calls: list[Peer] = field(factory=list)

    def play(self, drawn: bytes) -> None:
        steps: list[Callable[[int], object]] = [
            self.call,
            self.host,
            self.accept,
            self.accept,
            self.event,
            self.event,
            self.event,
            self.body,
            self.refuse,
            self.part,
            self.part,
            self.elapse,
            self.other,
        ]
        for a, b in zip(drawn[::2], drawn[1::2], strict=False):
            steps[a % len(steps)](b)
            self.check()

    def pick(self, b: int) -> Peer | None:
        streams = [s for s, order in self.driver.orders.items() if order.connection in self.driver.open]
        return self.driver.peer(streams[b % len(streams)]) if streams else None

    def call(self, b: int) -> None:
        if b % 8 == 0:
            self.driver.request("initialize", {"protocolVersion": "2025-11-25"})
        elif b % 8 == 1:
            self.driver.request("tools/call", {"name": "t"}, mcp_protocol_version="2026-07-28")
        else:
            self.calls.append(self.driver.call())

    def host(self, b: int) -> None:
        if b % 3 == 0 and self.calls:
            self.driver.cancel(self.calls[b % len(self.calls)])
        elif b % 3 == 1:
            self.driver.drain(b % 7)
        else:
            self.driver.notify(METHODS[b % len(METHODS)])

    def accept(self, b: int) -> None:
        peer = self.pick(b)
        if peer is None or peer.connection in self.answered:
            return
        events = b % 5 != 4
        self.answered[peer.connection] = events
        session = [None, SESSION, None, SESSION, "another"][b // 5 % 5 if b > 200 else b % 2]
        peer.accept(
            events=events, session_id=session, resumed=[None, None, True, False][b % 4] if b > 220 else None
        )

    def message(self, peer: Peer, b: int) -> Any:
        call = self.calls[b % len(self.calls)] if self.calls else peer
        choices: list[Any] = [
            None,
            {},
            b"x",
            note(f"{b}"),
            peer.progress(b),
            peer.result({"protocolVersion": "1"}),
        ]
        choices += [
            call.result(),
            call.error(),
            [note("a"), peer.result()],
            {"jsonrpc": "2.0", "id": 10**6, "result": {}},
        ]
        return choices[b % len(choices)]

    def event(self, b: int) -> None:
        peer = self.pick(b)
        if peer is not None and self.answered.get(peer.connection):
            name = "resumed" if b == 255 else "ping" if b == 254 else "message"
            peer.event(IDS[b // 3 % len(IDS)], self.message(peer, b), name=name, resets_id=b % 20 == 19)

    def body(self, b: int) -> None:
        peer = self.pick(b)
        if peer is None or self.answered.get(peer.connection) is not False:
            return
        if b % 7 == 6:
            peer.too_large()
        else:
            peer.body([None, UNREADABLE, peer.result(), peer.error(), [peer.result(), note("x")], "x", {}][b % 6])

    def refuse(self, b: int) -> None:
        peer = self.pick(b)
        if peer is not None and peer.connection not in self.answered:
            self.answered[peer.connection] = False
            body = {"resume_gap": True} if b % 3 == 0 else None
            peer.refuse(STATUSES[b % len(STATUSES)], body, retry_after=1.0 if b % 2 else None)

    def part(self, b: int) -> None:
        peer = self.pick(b)
        if peer is None:
            return
        if peer.connection in self.answered:
            peer.cut(clean=b % 2 == 0, after=b % 20)
        else:
            peer.cut(written=b % 2 == 0)

    def elapse(self, b: int) -> None:
        timers = list(self.driver.timers)
        if timers:
            timer = timers[b % len(timers)]
            self.driver.elapse(timer.kind, timer.stream)

    def other(self, b: int) -> None:
        peer = self.pick(b)
        if peer is None:
            return
        if b % 4 == 0 and peer.connection not in self.answered and isinstance(peer.order, Post):
            peer.save_failed()
        elif b % 4 == 1 and self.answered.get(peer.connection):
            peer.too_large()
        elif b % 4 == 2:
            peer.idle()

    def check(self) -> None:
        streams = self.driver.machine._streams._streams
        for stream in streams.values():
            assert stream.state not in (StreamState.DONE, StreamState.BROKEN), "nothing rests in these"
            assert stream.connection in self.driver.open or stream.connection == 0
            if isinstance(self.driver.orders[stream.number], Get) and stream.number:
                assert self.driver.orders[stream.number].headers.get("last-event-id"), "a call's GET has a cursor"
        known = {s.connection for s in streams.values()}
        assert self.driver.open <= known, "a connection that nobody wants is hung up"


COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
DRAWN = st.binary(min_size=20, max_size=160)
SCHEMES = st.sampled_from(["opaque", "monotone", "contiguous"])


@settings(max_examples=400, **COMMON)
@given(DRAWN, SCHEMES, st.booleans())
def test_no_order_of_inputs_upsets_the_machine_and_every_call_is_answered_once(
    drawn: bytes, scheme: str, waits: bool
) -> None:
    run(drawn, scheme, waits)


def _no_hangup(self: Any, stream: Any, *, linger: bool = False) -> None:
    stream.move(StreamStep.FINISHED)
    self._streams.pop(stream.number)
    self._cancel_timers(stream)


def _deliver_refusal(self: Any, call: Any, status: int, *rest: Any) -> None:
    self._deliver(not_executed_answer(call.host_id, "server", "", status))


@pytest.mark.parametrize(
    ("owner", "name", "bug", "says"),
    [
        (Streams, "_finish", _no_hangup, "nobody wants"),
        (Calls, "refused", _deliver_refusal, "S9"),
    ],
)
def test_a_bug_is_found(owner: type, name: str, bug: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, bug)
    many = settings(
        max_examples=1500, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False, **COMMON
    )
    with pytest.raises(AssertionError, match=says):
        many(given(DRAWN, SCHEMES, st.booleans())(run))()


def run(drawn: bytes, scheme: str, waits: bool) -> None:
    policy = GuardPolicy(
        id_scheme=scheme, max_attempts=3, on_unverified="continue" if waits else "settle", trail_size=8
    )
    chaos = Chaos(Driver(policy).opened(standalone=True))
    chaos.answered = dict.fromkeys(chaos.driver.open, True)
    chaos.play(drawn)
    answers = [m["id"] for m in delivered(chaos.driver.log) if "method" not in m]
    assert len(answers) == len(set(answers)), "S9: answered twice"
    actions = chaos.driver.close()
    assert not chaos.driver.open
    assert sum(isinstance(a, EndSession) for a in actions) <= 1
    settled: dict[int, list[str]] = {}
    for event in reports(chaos.driver.log, CallSettled):
        settled.setdefault(event.wire_id, []).append(event.outcome.value)
    for peer in chaos.calls:
        if peer.stream != -1:
            first, *later = settled[peer.stream]
            assert later in ([], ["recovered"]), (first, later)
            assert not later or first in ("in_doubt", "cancelled")
