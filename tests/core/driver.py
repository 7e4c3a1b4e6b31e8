"""Drives the machine by hand: scripts of inputs that read like the conversation they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from attrs import define, field

from mcp_client_guard.core.actions import (
    Action,
    CancelTimer,
    Deliver,
    EndSession,
    Get,
    Hangup,
    OpenSocket,
    Post,
    Report,
    Save,
    SetTimer,
)
from mcp_client_guard.core.inputs import (
    UNREADABLE,
    Answered,
    Begun,
    BodyReceived,
    CloseRequested,
    ConnectionFreed,
    ConnectionLost,
    Drained,
    EventReceived,
    HookRequested,
    IdleElapsed,
    Input,
    MessageSubmitted,
    Reconciled,
    Refused,
    SaveFailed,
    TimerElapsed,
    TooLarge,
)
from mcp_client_guard.core.machine import Machine
from mcp_client_guard.core.model import JSON, Evidence, Outcome, Record
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled, Event, Resumed
from mcp_client_guard.core.timer import Timer, TimerKind
from mcp_client_guard.core.verdicts import Verdict

SESSION = "session-one"
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
RESULT: JSON = {
    "protocolVersion": "2025-11-25",
    "capabilities": CAPABILITIES,
    "serverInfo": {"name": "fake", "version": "1"},
}
LOOK: JSON = {"name": "look", "annotations": {"readOnlyHint": True}}
CHARGE: JSON = {"name": "charge"}
RESTORED = ("logging/setLevel", "resources/subscribe", "tools/list")

A = TypeVar("A")
E = TypeVar("E")


def note(text: str, method: str = "notifications/message") -> JSON:
    """A notification that belongs to no request."""
    return {"jsonrpc": "2.0", "method": method, "params": {"data": text}}


def data_of(message: Any) -> bytes:
    """The `data` of an event: nothing for a priming event, raw bytes as they are, else JSON."""
    if message is None:
        return b""
    return message if isinstance(message, bytes) else json.dumps(message).encode()


def body_of(data: bytes) -> Any:
    """What the shell makes of the data: None if empty, `UNREADABLE` if not JSON."""
    try:
        return json.loads(data) if data else None
    except ValueError:
        return UNREADABLE


def of(actions: Iterable[Action], kind: type[A]) -> list[A]:
    return [a for a in actions if isinstance(a, kind)]


def posted(actions: Iterable[Action], method: str | None = None) -> list[Post]:
    return [post for post in of(actions, Post) if method in (None, post.message.get("method"))]


def reports(actions: Iterable[Action], kind: type[E]) -> list[E]:
    events: list[Event] = [a.event for a in of(actions, Report)]
    return [e for e in events if isinstance(e, kind)]


def delivered(actions: Iterable[Action]) -> list[JSON]:
    return [a.message for a in of(actions, Deliver)]


def error_of(actions: Iterable[Action]) -> JSON:
    """Of the one error that is delivered."""
    (message,) = [m for m in delivered(actions) if "error" in m]
    return dict(message["error"])


def methods(actions: Iterable[Action]) -> list[str]:
    """Of what is posted."""
    return [post.message.get("method", "response") for post in of(actions, Post)]


def gets(actions: Iterable[Action]) -> list[tuple[int, str | None]]:
    return [(get.stream, get.last_event_id) for get in of(actions, Get)]


def records(actions: Iterable[Action], kind: type[E]) -> list[E]:
    saved: list[Record] = [r for a in of(actions, Save) for r in a.records]
    return [r for r in saved if isinstance(r, kind)]


def evidence(actions: Iterable[Action]) -> list[Evidence]:
    return [r.evidence for r in reports(actions, Resumed)]


def outcomes(actions: Iterable[Action]) -> list[Outcome]:
    return [r.outcome for r in reports(actions, CallSettled)]


def in_doubt(actions: Iterable[Action]) -> bool:
    """Whether these actions tell a caller that its call may have run."""
    return Outcome.IN_DOUBT in outcomes(actions)


@define
class Driver:
    """One machine, its clock, its timers, and everything it has ordered so far."""

    policy: GuardPolicy = field(factory=GuardPolicy)
    machine: Machine = field(init=False)
    now: float = 100.0
    log: list[Action] = field(factory=list)
    timers: dict[Timer, float] = field(factory=dict)
    """Set and neither cancelled nor elapsed: when each is due."""
    orders: dict[int, Post | Get | OpenSocket] = field(factory=dict)
    """The newest exchange of each stream."""
    open: set[int] = field(factory=set)
    """Connections ordered and neither hung up nor lost."""
    begins: bool = True
    """Whether an exchange without a wait begins as soon as it is ordered."""
    has_hook: bool = False
    generation: str = "host"
    upgrades: bool = False
    max_calls: int | None = None
    spare: int = 0
    _next_id: int = 0

    def __attrs_post_init__(self) -> None:
        self.machine = Machine(
            self.policy,
            has_hook=self.has_hook,
            generation=self.generation,
            upgrades=self.upgrades,
            max_calls=self.max_calls,
            spare=self.spare,
        )

    def feed(self, told: Input) -> list[Action]:
        """Give the machine an input, and keep the books of what it orders."""
        if isinstance(told, ConnectionLost):
            self.open.discard(told.connection)
        actions = self.machine.receive(told, now=self.now)
        begun: list[Action] = []
        for action in actions:
            if isinstance(action, (Post, Get, OpenSocket)) and self.begins and not action.delay.attempt:
                begun += self.machine.receive(Begun(action.stream, action.connection))
        assert not [action for action in begun if not isinstance(action, SetTimer)]
        self.log += actions + begun
        for action in actions + begun:
            if isinstance(action, (Post, Get, OpenSocket)):
                self.orders[action.stream] = action
                self.open.add(action.connection)
            elif isinstance(action, Hangup):
                self.open.discard(action.connection)
            elif isinstance(action, SetTimer):
                self.timers[action.timer] = self.now + action.seconds
            elif isinstance(action, CancelTimer):
                self.timers.pop(action.timer, None)
        return actions

    # The host.

    def submit(self, message: JSON, call_key: str = "key", **headers: str) -> list[Action]:
        stamped = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.feed(MessageSubmitted(message, stamped, call_key))

    def notify(self, method: str, params: JSON | None = None) -> list[Action]:
        return self.submit({"jsonrpc": "2.0", "method": method, "params": params or {}})

    def request(self, method: str, params: JSON | None = None, *, token: Any = None, **headers: str) -> Peer:
        """Send a request of the host's; its ID is `h1`, `h2`, …"""
        self._next_id += 1
        params = dict(params or {})
        if token is not None:
            params["_meta"] = {"progressToken": token}
        message = {"jsonrpc": "2.0", "id": f"h{self._next_id}", "method": method, "params": params}
        actions = self.submit(message, f"key-{self._next_id}", **headers)
        posts = [p for p in of(actions, Post) if p.message.get("method") == method]
        return Peer(self, posts[-1].stream if posts else -1, f"h{self._next_id}", actions)

    def call(self, tool: str = "charge", *, token: Any = "tok", **arguments: Any) -> Peer:
        return self.request("tools/call", {"name": tool, "arguments": arguments}, token=token)

    def cancel(self, peer: Peer) -> list[Action]:
        return self.notify("notifications/cancelled", {"requestId": peer.host_id})

    def drain(self, count: int = 1) -> list[Action]:
        return self.feed(Drained(count))

    def close(self) -> list[Action]:
        return self.feed(CloseRequested())

    # The server.

    def peer(self, stream: int) -> Peer:
        return Peer(self, stream, "", [])

    @property
    def standalone(self) -> Peer:
        return self.peer(0)

    def initialize(self, session_id: str | None = SESSION, result: JSON | None = None) -> Peer:
        """`initialize`, answered with JSON."""
        sent = self.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        result = result or RESULT
        sent.actions = sent.accept(events=False, session_id=session_id) + sent.body(sent.result(result))
        return sent

    def opened(self, session_id: str | None = SESSION, *, standalone: bool = False) -> Driver:
        """A live session; its standalone stream refused with 405 unless wanted."""
        self.initialize(session_id)
        actions = self.notify("notifications/initialized")
        self.peer(of(actions, Post)[0].stream).accept(status=202, events=False)
        if session_id is not None:
            self.standalone.accept() if standalone else self.standalone.refuse(405)
        return self

    def sent(self, method: str) -> Peer:
        """The server's end of the newest request or notification of this method."""
        numbers = [n for n, o in self.orders.items() if isinstance(o, Post) and o.message.get("method") == method]
        return self.peer(max(numbers, default=-1))

    def is_waited_for(self, method: str) -> bool:
        peer = self.sent(method)
        return peer.stream != -1 and peer.is_open

    def reinitialized(
        self, session_id: str | None = "session-two", tools: list[JSON] | None = None, **changed: Any
    ) -> list[Action]:
        """The guard's own `initialize` is answered, its `initialized` taken, and what it restores granted."""
        actions = self.reopened(session_id, **changed)
        while waiting := [o for o in self.orders.values() if isinstance(o, Post) and self._restores(o)]:
            granted: JSON = {"tools": tools or []} if waiting[0].message["method"] == "tools/list" else {}
            actions += self.peer(waiting[0].stream).answer(granted)
        return actions

    def _restores(self, order: Post) -> bool:
        return order.connection in self.open and order.message.get("method") in RESTORED

    def reopened(self, session_id: str | None = "session-two", **changed: Any) -> list[Action]:
        """The same, but nothing is restored yet."""
        actions = self.sent("initialize").answer({**RESULT, **changed}, session_id=session_id)
        actions += self.sent("notifications/initialized").accept(status=202, events=False)
        return actions + self.compared(session_id)

    def compared(self, session_id: str | None = "session-two") -> list[Action]:
        """The new session answers the ping that compares it with a suspected one, if there is one."""
        ping = self.sent("ping")
        is_due = ping.stream != -1 and ping.is_open and ping.order.headers.get("mcp-session-id") == session_id
        return ping.answer({}) if is_due else []

    def listed(self, *tools: JSON) -> list[Action]:
        """The host has listed these tools."""
        return self.request("tools/list").answer({"tools": list(tools)})

    def ask(self, call: Peer, request_id: Any = 1, method: str = "sampling/createMessage") -> list[Action]:
        """The server asks the host something on this stream."""
        return call.event(None, {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {}})

    def reconciled(self, call: Peer, verdict: Verdict | None = None, failed: str | None = None) -> list[Action]:
        """The user's hook has answered."""
        return self.feed(Reconciled(call.stream, verdict, failed))

    def hook_asks(self, method: str, params: JSON | None = None, ticket: int = 1) -> Peer:
        """The user's hook asks the server something."""
        actions = self.feed(HookRequested(ticket, method, params or {}, f"key-{ticket}"))
        posts = of(actions, Post)
        return Peer(self, posts[-1].stream if posts else -1, "", actions)

    # The clock.

    def elapse(self, kind: TimerKind, stream: int | None = None) -> list[Action]:
        """Let the timer of this kind run out (of this stream, where there are several)."""
        timer = next(t for t in self.timers if t.kind is kind and stream in (None, t.stream))
        self.now = max(self.now, self.timers.pop(timer))
        return self.feed(TimerElapsed(timer, self.now))

    def is_set(self, kind: TimerKind, stream: int) -> bool:
        return any(t.kind is kind and t.stream == stream for t in self.timers)


@define
class Peer:
    """The server's end of one stream: what it says on the newest connection."""

    driver: Driver
    stream: int
    host_id: str
    actions: list[Action]
    """What sending the request made the machine order."""
    _fixed: int | None = None

    @property
    def order(self) -> Post | Get | OpenSocket:
        """The newest exchange: what was asked of the server."""
        return self.driver.orders[self.stream]

    @property
    def connection(self) -> int:
        return self.order.connection if self._fixed is None else self._fixed

    def stale(self) -> Peer:
        """The same end, speaking for ever on the connection that is now the newest."""
        return Peer(self.driver, self.stream, self.host_id, [], self.connection)

    @property
    def asked(self) -> str | None:
        """The `Last-Event-ID` of the newest exchange."""
        assert isinstance(self.order, Get)
        return self.order.last_event_id

    @property
    def is_open(self) -> bool:
        """Whether the newest connection is still wanted."""
        return self.connection in self.driver.open

    def free(self) -> list[Action]:
        """The exchange is over."""
        return self.driver.feed(ConnectionFreed(self.connection))

    def accept(
        self,
        *,
        events: bool = True,
        session_id: str | None = None,
        status: int = 200,
        resumed: bool | None = None,
    ) -> list[Action]:
        told = Answered(self.stream, self.connection, status, events, session_id, self.driver.now, resumed)
        return self.driver.feed(told)

    def begin(self) -> list[Action]:
        """The wait before the newest exchange is over."""
        return self.driver.feed(Begun(self.stream, self.connection))

    def event(self, event_id: str | None, message: Any = None, **rest: Any) -> list[Action]:
        """An event; one without a message is a priming event."""
        data = data_of(message)
        return self.driver.feed(EventReceived(self.stream, self.connection, event_id, data, body_of(data), **rest))

    def body(self, body: Any) -> list[Action]:
        return self.driver.feed(BodyReceived(self.stream, self.connection, body))

    def refuse(self, status: int, body: Any = None, **rest: Any) -> list[Action]:
        return self.driver.feed(Refused(self.stream, self.connection, status, body, **rest))

    def cut(
        self,
        why: str = "cut",
        *,
        clean: bool = False,
        written: bool = True,
        lasts: bool = False,
        refused: int | None = None,
        after: float = 0,
    ) -> list[Action]:
        """The connection is gone: reset, or (clean) ended by its own framing."""
        self.driver.now += after
        lost = ConnectionLost(self.stream, self.connection, self.driver.now, written, clean, why, lasts, refused)
        return self.driver.feed(lost)

    def end(self, after: float = 0) -> list[Action]:
        return self.cut("ended", clean=True, after=after)

    def not_written(self) -> list[Action]:
        return self.cut("ConnectError", written=False)

    def idle(self) -> list[Action]:
        self.driver.now += 90
        return self.driver.feed(IdleElapsed(self.stream, self.connection, self.driver.now))

    def too_large(self, answers: int | None = None, *, is_whole: bool = True) -> list[Action]:
        return self.driver.feed(TooLarge(self.stream, self.connection, answers, is_whole))

    def save_failed(self) -> list[Action]:
        return self.driver.feed(SaveFailed(self.stream, "disk full"))

    def answer(self, result: JSON | None = None, session_id: str | None = None) -> list[Action]:
        """The whole answer, as JSON."""
        return self.accept(events=False, session_id=session_id) + self.body(self.result(result))

    def answer_error(self, code: int = -32000) -> list[Action]:
        return self.accept(events=False) + self.body(self.error(code))

    # Messages of the server's that belong to this request.

    def result(self, result: JSON | None = None) -> JSON:
        result = {"content": [{"type": "text", "text": "ok"}]} if result is None else result
        return {"jsonrpc": "2.0", "id": self.stream, "result": result}

    def error(self, code: int = -32000) -> JSON:
        return {"jsonrpc": "2.0", "id": self.stream, "error": {"code": code, "message": "no"}}

    def progress(self, step: int, token: Any = None) -> JSON:
        params = {"progressToken": self.stream if token is None else token, "progress": step}
        return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}

    # Whole scenes.

    def stream_up(self, *events: str) -> Peer:
        """The answer is an event stream that primes with `p`, then carries one progress event per name."""
        self.accept()
        self.event("p")
        for step, event_id in enumerate(events, 1):
            self.event(event_id, self.progress(step))
        return self

    def resumed(self) -> list[Action]:
        """The connection is cut, and the GET that follows is answered."""
        return self.cut() + self.accept()


Script = Callable[[Driver], None]

__all__ = [
    "CAPABILITIES",
    "RESTORED",
    "RESULT",
    "SESSION",
    "Driver",
    "EndSession",
    "Peer",
    "body_of",
    "data_of",
    "delivered",
    "evidence",
    "in_doubt",
    "note",
    "of",
    "outcomes",
    "records",
    "reports",
]
