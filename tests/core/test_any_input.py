"""Whatever a server or a host does, in any order: the machine stays upright and keeps its books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from mcp_client_guard.core.actions import Ask, AskUpgrade, EndSession, Get, Post
from mcp_client_guard.core.answers import not_executed_answer
from mcp_client_guard.core.calls import Calls
from mcp_client_guard.core.inputs import UNREADABLE, Reconciled, UpgradeAnswered
from mcp_client_guard.core.ledger import Own
from mcp_client_guard.core.meta import CALL_KEY
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled
from mcp_client_guard.core.session import Session
from mcp_client_guard.core.state import SessionState, StreamState, StreamStep
from mcp_client_guard.core.streams import Streams
from mcp_client_guard.core.verdicts import Fail, Resend, Resolve
from tests.core.driver import RESULT, SESSION, Driver, Peer, delivered, note, reports

pytestmark = pytest.mark.no_cover  # the tables cover every branch; tracing would double the time

STATUSES = [302, 400, 401, 404, 405, 409, 410, 429, 500, 503]
IDS = ["p", "1", "2", "3", "9", SESSION, "x" * 9000, None]
SAYS_NO = {400, 401, 404, 405, 409, 410}
"""After these a call may be sent again; not by itself after 429 and 503, which a proxy may say once it has run."""
TOOL = {"name": "look", "annotations": {"readOnlyHint": True}, "inputSchema": {}}
MODERN: dict[str, str] = {"mcp_protocol_version": "2026-07-28"}
MODERN_ERRORS = [-32020, -32022, -32602, -32601]
HONOURED = {"toolsListChanged": True, "resourceSubscriptions": ["a"]}
METHODS = ["notifications/x", "notifications/initialized", "notifications/cancelled"]


@define
class Chaos:
    """Feeds what the shell could feed: nothing before a connection is ordered, nothing after it is lost."""

    driver: Driver
    answered: dict[int, bool] = field(factory=dict)
    """Connections with a status line, and whether events follow."""
    calls: list[Peer] = field(factory=list)
    """Those that were sent at once."""
    requests: list[Peer] = field(factory=list)
    """All of the host's."""
    cancelled: set[str] = field(factory=set)
    consented: set[int] = field(factory=set)
    """Calls that the hook has allowed to be sent again."""
    begun: set[int] = field(factory=set)
    harmless: set[int] = field(factory=set)
    """Connections on which a call certainly did not run, or was answered."""
    _checked: int = 0
    _sent: dict[str, list[int]] = field(factory=dict)
    """The connections that have carried a call, by call key."""

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
            self.serve,
            self.serve,
            self.serve,
            self.gone,
            self.hook,
            self.server_asks,
            self.upgrade,
        ]
        for a, b in zip(drawn[::2], drawn[1::2], strict=False):
            before = self.driver.machine.session.session_id
            steps[a % len(steps)](b)
            self.check(before)

    def settle(self) -> None:
        """Nothing more comes from the server, and time passes: every request still gets its answer (L2, S9)."""
        for _ in range(2000):
            if not self.unanswered():
                return
            timers = self.driver.timers
            assert timers, "L2: a request that nobody works on"
            timer = min(timers, key=lambda t: timers[t])
            self.driver.elapse(timer.kind, timer.stream)
            self.check(self.driver.machine.session.session_id)
        raise AssertionError("L2: requests without an answer")

    def unanswered(self) -> set[str]:
        answered = {m["id"] for m in delivered(self.driver.log) if "method" not in m}
        return {p.host_id for p in self.requests} - answered - self.cancelled

    def pick(self, b: int) -> Peer | None:
        streams = [s for s, order in self.driver.orders.items() if order.connection in self.driver.open]
        if not streams:
            return None
        peer = self.driver.peer(streams[b % len(streams)])
        if peer.connection not in self.begun:
            self.begun.add(peer.connection)
            peer.begin()
        return peer

    def call(self, b: int) -> None:
        if b % 16 == 0:
            peer = self.driver.request("initialize", {"protocolVersion": "2025-11-25"})
        elif b % 8 == 1:
            peer = self.modern(b // 8)
            if peer is None:
                return
        elif b % 8 == 2:
            peer = self.driver.request("tools/list")
        else:
            peer = self.driver.call(["charge", "look", "get_x"][b % 3], n=b // 8 % 4)
            if peer.stream != -1:
                self.calls.append(peer)
        self.requests.append(peer)

    def modern(self, b: int) -> Peer | None:
        """A request of 2026-07-28: a call, the next round of one, or a subscription (which has no answer)."""
        if b % 3 == 2:
            self.driver.request("subscriptions/listen", {"notifications": HONOURED}, **MODERN)
            return None
        round = {"requestState": "s"} if b % 3 else {}
        peer = self.driver.request("tools/call", {"name": "charge", "arguments": {"n": 9}, **round}, **MODERN)
        if peer.stream != -1:
            self.calls.append(peer)
        return peer

    def host(self, b: int) -> None:
        if b % 3 == 0 and self.calls:
            call = self.calls[b % len(self.calls)]
            self.cancelled.add(call.host_id)
            self.driver.cancel(call)
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
            call.error(-32600),
            [note("a"), peer.result()],
            {"jsonrpc": "2.0", "id": 10**6, "result": {}},
            note_of("subscriptions/acknowledged", {"notifications": HONOURED if b % 2 else {}}),
            note_of("cancelled", {"requestId": peer.stream}),
        ]
        if b % 31 == 30:
            self.harmless.add(peer.connection)  # it is answered: the next round is no other sending
            return peer.result({"resultType": "input_required", "requestState": "s"})
        return self.said(choices[b % len(choices)])

    def said(self, message: Any) -> Any:
        """An error under which nothing runs, if it means a lost session; that of `Peer.error` may have run."""
        if isinstance(message, dict) and message.get("error", {}).get("code") == -32600:
            self.harmless.add(self.driver.orders[message["id"]].connection)
        return message

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
            peer.body(
                self.said(
                    [None, UNREADABLE, peer.result(), peer.error(), [peer.result(), note("x")], "x", {}][b % 6]
                )
            )

    def refuse(self, b: int) -> None:
        peer = self.pick(b)
        if peer is not None and peer.connection not in self.answered:
            self.answered[peer.connection] = False
            body: Any = {"resume_gap": True} if b % 3 == 0 else None
            if b % 5 == 4:
                body = {"jsonrpc": "2.0", "id": None, "error": {"code": MODERN_ERRORS[b % 4], "message": "no"}}
            status = STATUSES[b % len(STATUSES)]
            if status in SAYS_NO:
                self.harmless.add(peer.connection)
            peer.refuse(status, body, retry_after=1.0 if b % 2 else None)

    def serve(self, b: int) -> None:
        """A server that does what it should."""
        peer = self.pick(b)
        if peer is None or peer.connection in self.answered or not isinstance(peer.order, Post):
            return
        self.answered[peer.connection] = False
        self.harmless.add(peer.connection)
        method = peer.order.message.get("method")
        if method is None or method.startswith("notifications/"):
            peer.accept(status=202, events=False)
        elif method == "initialize":
            peer.answer(RESULT, session_id=f"session-{peer.stream}")
        elif method == "tools/list":
            peer.answer({"tools": [TOOL] if b % 2 else [], "nextCursor": "more" if b % 5 == 0 else None})
        else:
            peer.answer()

    def gone(self, b: int) -> None:
        """The server says that it has no such session, in one way or another."""
        peer = self.pick(b)
        if peer is None or peer.connection in self.answered or not isinstance(peer.order, Post):
            return
        self.answered[peer.connection] = False
        code = [-32000, -32001, -32600][b // 3 % 3]
        if b % 3 == 2 and "id" in peer.order.message:
            if code == -32600:
                self.harmless.add(peer.connection)
            peer.answer_error(code)
        else:
            self.harmless.add(peer.connection)
            peer.refuse([404, 400][b % 2])

    def hook(self, b: int) -> None:
        asked = [a.question for a in self.driver.log if isinstance(a, Ask)]
        if b % 4 == 0 or not asked:
            self.driver.hook_asks("tools/call" if b % 8 else "resources/read", {"name": "look"}, b)
            return
        verdicts = [None, Resend(), Resolve({"content": []}), Resolve(7), Fail("no")]
        verdict = verdicts[b // 4 % len(verdicts)]
        question = asked[b % len(asked)]
        if isinstance(verdict, Resend):
            self.consented.add(question)
        self.driver.feed(Reconciled(question, verdict, "ValueError" if b % 9 == 8 else None))

    def server_asks(self, b: int) -> None:
        peer = self.pick(b)
        if peer is None or not self.answered.get(peer.connection):
            return
        asked = [m for m in delivered(self.driver.ask(peer, b % 3)) if "method" in m and "id" in m]
        if asked and b % 2:
            self.driver.submit({"jsonrpc": "2.0", "id": asked[0]["id"], "result": {}})

    def upgrade(self, b: int) -> None:
        """The guard's question after a socket is answered, or an older one is again."""
        asked = [a.question for a in self.driver.log if isinstance(a, AskUpgrade)]
        if asked:
            status = [200, 200, 200, 409, 404, 500, None][b % 7]
            body = {"ticket": "t"} if b % 16 else None
            session = "another" if b > 250 else None
            self.driver.feed(UpgradeAnswered(asked[-1 - b % 3 // 2 * (len(asked) > 1)], status, body, session))

    def part(self, b: int) -> None:
        peer = self.pick(b)
        if peer is None:
            return
        if peer.connection in self.answered:
            peer.cut(clean=b % 2 == 0, after=b % 20)
        else:
            if b % 2:
                self.harmless.add(peer.connection)
            peer.cut(written=b % 2 == 0)

    def elapse(self, b: int) -> None:
        timers = list(self.driver.timers)
        if timers:
            timer = timers[b % len(timers)]
            self.driver.elapse(timer.kind, timer.stream)

    def other(self, b: int) -> None:
        if b % 8 == 7:
            self.disk(b)
            return
        peer = self.pick(b)
        if peer is None:
            return
        if b % 4 == 0 and peer.connection not in self.answered and isinstance(peer.order, Post):
            peer.save_failed()
        elif b % 4 == 1 and self.answered.get(peer.connection):
            peer.too_large()
        elif b % 4 == 2:
            peer.idle()

    def disk(self, b: int) -> None:
        """The row of a request fails that has not left, whatever has become of its stream."""
        orders = self.driver.orders.values()
        unsent = [o for o in orders if isinstance(o, Post) and o.for_request and o.connection not in self.begun]
        if unsent:
            self.driver.peer(unsent[b % len(unsent)].stream).save_failed()

    def check(self, before: str | None) -> None:
        machine = self.driver.machine
        streams = machine._streams._streams
        for stream in streams.values():
            assert stream.state not in (StreamState.DONE, StreamState.BROKEN), "nothing rests in these"
            connection = stream.connection
            assert connection.number in self.driver.open or connection.number == 0
            assert connection.limited or not (connection.begun and stream.is_unwanted), "nothing ends it"
            if isinstance(self.driver.orders[stream.number], Get) and stream.number:
                assert self.driver.orders[stream.number].headers.get("last-event-id"), "a call's GET has a cursor"
        known = {s.connection.number for s in streams.values()}
        assert self.driver.open <= known, "a connection that nobody wants is hung up"
        opening = [s for s in streams.values() if s.call and s.call.own is Own.INITIALIZE and s.call.in_flight]
        assert len(opening) <= 1, "L5: more than one initialize"
        for action in self.driver.log[self._checked :]:
            if isinstance(action, Post) and action.for_request:
                self.check_post(action, {before, machine.session.session_id})
        self._checked = len(self.driver.log)

    def check_post(self, post: Post, sessions: set[str | None]) -> None:
        if post.headers.get("mcp-protocol-version") == MODERN["mcp_protocol_version"]:
            assert "mcp-session-id" not in post.headers, "there are no sessions"
        assert post.headers.get("mcp-session-id") in (*sessions, None), "S13: sent in a session that is gone"
        if post.message["method"] != "tools/call":
            return
        params = post.message["params"]
        earlier = self._sent.setdefault(params["_meta"][CALL_KEY], [])
        if params["name"] == "charge" and not self.consented:
            assert set(earlier) & self.begun <= self.harmless, "S11: sent again though it may have run"
        earlier.append(post.connection)
        if not post.delay.attempt:
            self.begun.add(post.connection)


def note_of(name: str, params: Any) -> Any:
    return {"jsonrpc": "2.0", "method": f"notifications/{name}", "params": params}


COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
DRAWN = st.binary(min_size=20, max_size=160)
SCHEMES = st.sampled_from(["opaque", "monotone", "contiguous"])


FOUND = (
    b"\x01\0\0\x01\x01\0\0\x01\0\x01R\x01\0\x01\0\x01\0\x03\x0b\0\xfb\0\0\x02|o\0\0\0\x001\x02",
    bytes.fromhex(
        "4cf401b900000301018f03c4c31b5f640003c606021a0279ffa62503cb05025b2ce40201000167c5"
        "f102039403002e7c8703460d6cff5b0214012b82a1b261dd260fbb0347a4008d0101030171cb3201"
        "dba5"
    ),
    b"\x00\x00\xc8\x86+:d\x06\x92\xf1\xfa\x03\x02\x03",
    b"\xb4P\x03\x01\x00\xffZ\x11jU\x8f\x02",
    b"\x8c\x00\xbc\xd7\xdc?\x02\x03T\x03\xd2c\x03\xc9BH",
)
"""Each has shown a fault once."""


@example(FOUND[0], "opaque", False, False)
@example(FOUND[1], "contiguous", True, True)
@example(FOUND[2], "contiguous", False, True)
@example(FOUND[3], "contiguous", True, True)
@example(FOUND[4], "monotone", True, True)
@settings(max_examples=400, **COMMON)
@given(DRAWN, SCHEMES, st.booleans(), st.booleans())
def test_no_order_of_inputs_upsets_the_machine_and_every_call_is_answered_once(
    drawn: bytes, scheme: str, waits: bool, hook: bool
) -> None:
    run(drawn, scheme, waits, hook)


def _no_hangup(self: Any, stream: Any, *, linger: bool = False) -> None:
    stream.move(StreamStep.FINISHED)
    self._streams.pop(stream.number)
    self._cancel_timers(stream)


def _deliver_refusal(self: Any, call: Any, refusal: Any, *, session_sent: bool) -> None:
    self._deliver(not_executed_answer(call.host_id, call.method, call.tool, "server", "", refusal.status))


def _always_consents(self: Any, call: Any, tool_changed: bool) -> bool:
    return True


def _opens_twice(self: Any) -> None:
    if self.session.state is SessionState.LOST:
        self._open_another()
        self.session.state = SessionState.LOST
        self._open_another()


def _says_nothing(self: Any, why: str) -> None:
    self.why_lost = why
    self._waiting.clear()


def _keeps_the_header(self: Any, method: str) -> dict[str, str]:
    return {} if method == "initialize" else {"mcp-session-id": SESSION}


@pytest.mark.parametrize(
    ("owner", "name", "bug", "says"),
    [
        (Calls, "_consents_to", _always_consents, "S11"),
        (Calls, "_reinitialize", _opens_twice, "L5"),
        (Calls, "_refuse_waiting", _says_nothing, "L2"),
        (Session, "headers", _keeps_the_header, "S13"),
        (Streams, "_finish", _no_hangup, "nobody wants"),
        (Calls, "refused", _deliver_refusal, "S9"),
    ],
)
def test_a_bug_is_found(owner: type, name: str, bug: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, bug)
    many = settings(
        max_examples=12_000, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False, **COMMON
    )
    with pytest.raises(AssertionError, match=says):
        many(given(DRAWN, SCHEMES, st.booleans(), st.booleans())(run))()


def run(drawn: bytes, scheme: str, waits: bool, hook: bool) -> None:
    policy = GuardPolicy(
        id_scheme=scheme,
        max_attempts=3,
        reinitialize_limit=2,  # so that there is often no session to be had
        on_unverified="continue" if waits else "settle",
        trail_size=8,
        call_deadline=200,
        resend={"get_*": "always"},
    )
    driver = Driver(policy, has_hook=hook, upgrades=True).opened(standalone=True)
    driver.listed(TOOL)
    chaos = Chaos(driver)
    chaos.answered = dict.fromkeys(chaos.driver.open, True)
    chaos.play(drawn)
    chaos.settle()
    answers = [m["id"] for m in delivered(driver.log) if "method" not in m]
    assert len(answers) == len(set(answers)), "S9: answered twice"
    actions = driver.close()
    assert not driver.open
    assert sum(isinstance(a, EndSession) for a in actions) <= 1
    settled: dict[int, list[str]] = {}
    for event in reports(driver.log, CallSettled):
        settled.setdefault(event.wire_id, []).append(event.outcome.value)
    for peer in chaos.calls:
        first, *later = settled[peer.stream]
        assert later in ([], ["recovered"]), (first, later)
        assert not later or first in ("in_doubt", "cancelled")
