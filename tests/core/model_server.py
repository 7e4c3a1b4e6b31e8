"""A model of a server, honest or not, and of the network before it: pure Python, one session, many streams.

A script of small steps drives it together with a machine. After each step, and at the end, the world checks what
DESIGN §8 promises; a broken promise is an `AssertionError` that names it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from attrs import define, field, frozen

from mcp_client_guard.core.actions import Action, Deliver, Get, Hangup, Post, Report, Save
from mcp_client_guard.core.model import JSON, CallSent, CursorMoved, Grade, Outcome, digest_of
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled, Discontinuity, Resumed
from mcp_client_guard.core.state import StreamState
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import SESSION, Driver, Peer, note

Fault = Literal["none", "reset", "trim", "fork", "empty"]
Unknown = Literal["live", "start", "refuse", "end"]
Ids = Literal["opaque", "shared", "prefixed"]

STEPS = ("call", "emit", "result", "serve", "deliver", "cut", "end", "fail", "attach", "drain", "late", "fault")
TRIMS = "trim"
"""A step of honest servers whose log is short."""
Step = tuple[str, int, int]


@frozen
class Variant:
    """What kind of server this is. The defaults are honest."""

    ids: Ids = "opaque"
    primes: bool = True
    indexed: bool = False
    """A priming event is no entry of the log: it has the number of the message that comes next, and a replay
    begins with the number that is asked for, as with the Rust SDK."""
    primes_again: Literal["never", "before", "after"] = "never"
    inclusive: bool = False
    replays_all: bool = False
    """What any stream has emitted since, priming events as `{}`, as the TypeScript reference server does."""
    drops: bool = False
    """What is emitted between the replay and the live tail is in the log only, as with SDK 1.30."""
    trail_size: int = 256
    """The client's, for what leaves its window."""
    fault: Fault = "none"
    unknown: Unknown = "live"
    """What it does with an event ID that it does not know; "end" is a 200 that ends at once (the Python SDKs)."""
    is_short: bool = False
    """Its log may be trimmed of all that stands before the client's cursor."""

    @property
    def is_honest(self) -> bool:
        return self.fault == "none"


@define
class Entry:
    stream: int
    event_id: str
    message: JSON | None
    serial: int


@define
class Fate:
    """What the world knows of one call."""

    peer: Peer
    emitted: list[str] = field(factory=list)
    """Tokens of the messages the server has sent on its stream, in order."""
    answered: bool = False
    had_id: bool = False
    """An identified event reached the client before its first cut: without one nothing can be resumed."""
    cut_blind: bool = False
    was_cut: bool = False
    elsewhere: bool = False
    """Its answer came by the replay of another stream: nobody then asks for what its own had still to bring."""
    answers: int = 0
    outcomes: list[Outcome] = field(factory=list)


def token_of(message: JSON) -> str:
    """Every message of this server's is unique."""
    return str((message.get("params") or message.get("result") or {}).get("token", ""))


@define
class World:
    variant: Variant
    driver: Driver = field(init=False)
    fates: dict[int, Fate] = field(factory=dict)
    logs: dict[int, list[Entry]] = field(factory=dict)
    wires: dict[int, deque[Entry]] = field(factory=dict)
    """What is on its way, by connection."""
    live: dict[int, int] = field(factory=dict)
    """The connection that gets the live tail of a stream."""
    detached: dict[int, int] = field(factory=dict)
    """Connections that have had their replay and not yet their live tail."""
    faulty: bool = False
    _served: set[int] = field(factory=set)
    _let_go: dict[int, int] = field(factory=dict)
    """How many entries an honest log has let go of."""
    _told: set[int] = field(factory=set)
    """Resumes on which something has come."""
    _whole: set[int] = field(factory=set)
    """Connections that have carried the answer: the server ends them when all is sent."""
    _written_off: set[int] = field(factory=set)
    """Wire IDs whose POST certainly was not written: they may be posted again."""
    _counter: int = 0
    _serial: int = 0
    _entries: int = 0
    _checked: int = 0
    _delivered: dict[str, int] = field(factory=dict)
    _undrained: deque[str] = field(factory=deque)
    _positions: dict[str, tuple[int, int]] = field(factory=dict)
    """Where a message was emitted: its stream, and its place there."""
    _places: dict[tuple[int, str], int] = field(factory=dict)
    """How many messages a stream had carried up to and with an event."""
    _saved: dict[int, bool] = field(factory=dict)
    _posted: set[int] = field(factory=set)
    _lost: set[str] = field(factory=set)
    """Streams with a reported discontinuity."""
    _weak: set[str] = field(factory=set)
    """Streams with a resume that had nothing to overlap, and was reported as that."""

    def __attrs_post_init__(self) -> None:
        # The budgets are another subject: here no call may be given up because of them.
        policy = GuardPolicy(
            max_attempts=10_000, settle_after=1e9, call_deadline=300, trail_size=self.variant.trail_size
        )
        self.driver = Driver(policy).opened()
        self._check()

    # Steps. One that does not apply is nothing.

    def run(self, script: Sequence[Step]) -> None:
        for name, which, count in script:
            getattr(self, f"_{name}")(which, count)
            self._check()
        self._finish()

    def _pick(self, which: int) -> Fate | None:
        return list(self.fates.values())[which % len(self.fates)] if self.fates else None

    def _call(self, which: int, count: int) -> None:
        if len(self.fates) < 3:
            peer = self.driver.call(f"tool{len(self.fates)}", token=f"host-{len(self.fates)}")
            self.fates[peer.stream] = Fate(peer)
            self.logs[peer.stream] = []

    def _new_id(self, stream: int) -> str:
        self._counter += 1
        if self.variant.indexed:
            return self._next_index(stream)
        if self.variant.ids == "shared":
            return str(self._counter)
        if self.variant.ids == "prefixed":
            return f"s{stream}-{self._let_go.get(stream, 0) + len(self.logs[stream]) + 1}"
        return f"{self._counter * 7919 % 10007:x}.{self._counter}"

    def _prime(self, stream: int) -> Entry:
        """Of the connection that the stream has from now on."""
        if self.variant.indexed:
            return Entry(stream, self._next_index(stream), None, 0)
        return self._log(stream, None)

    def _next_index(self, stream: int) -> str:
        return f"{self._let_go.get(stream, 0) + len(self.logs[stream])}/{stream}"

    def _log(self, stream: int, message: JSON | None) -> Entry:
        self._entries += 1
        entry = Entry(stream, self._new_id(stream), message, self._entries)
        self.logs[stream].append(entry)
        if message is not None:
            fate = self.fates[stream]
            fate.emitted.append(token_of(message))
            self._positions[token_of(message)] = (stream, len(fate.emitted))
        self._places[stream, entry.event_id] = len(self.fates[stream].emitted)
        connection = self.live.get(stream)
        if connection is not None:
            self.wires[connection].append(entry)
        return entry

    def _token(self) -> str:
        self._serial += 1
        return f"t{self._serial}"

    def _emit(self, which: int, count: int) -> None:
        fate = self._pick(which)
        if fate is None or fate.answered or fate.peer.stream not in self._known():
            return
        message = fate.peer.progress(self._serial) if count % 2 else note("news")
        message["params"]["token"] = self._token()
        self._log(fate.peer.stream, message)

    def _result(self, which: int, count: int) -> None:
        fate = self._pick(which)
        if fate is None or fate.answered or fate.peer.stream not in self._known():
            return
        fate.answered = True
        self._log(fate.peer.stream, fate.peer.result({"token": self._token()}))

    def _known(self) -> set[int]:
        """Streams whose POST has reached the server."""
        return {s for s, f in self.fates.items() if s in self._served}

    def _serve(self, which: int, count: int) -> None:
        """The server answers the newest request of this stream."""
        fate = self._pick(which)
        if fate is None or not fate.peer.is_open or fate.peer.connection in self.wires:
            return
        peer, order = fate.peer, fate.peer.order
        self._served.add(peer.stream)
        if isinstance(order, Post):
            peer.accept()
            self._open(peer)
            if self.variant.primes:
                primed = self._prime(peer.stream)
                if self.variant.indexed:
                    self.wires[peer.connection].append(primed)
        else:
            self._resume(peer, order)

    def _open(self, peer: Peer, replay: Sequence[Entry] = ()) -> None:
        self.wires[peer.connection] = deque(replay)
        if self.variant.drops and isinstance(peer.order, Get):
            self.detached[peer.stream] = peer.connection
        else:
            self.live[peer.stream] = peer.connection

    def _resume(self, peer: Peer, order: Get) -> None:
        assert order.last_event_id is not None, "S13: a call's stream is never opened afresh"
        assert order.headers["mcp-session-id"] == SESSION
        log, empty = self.logs[peer.stream], self.faulty and self.variant.fault == "empty"
        if self.variant.replays_all:
            log = sorted((e for entries in self.logs.values() for e in entries), key=lambda e: e.serial)
        at = next((n for n, e in enumerate(log) if e.event_id == order.last_event_id), None)
        if at is None and order.last_event_id == self._next_index(peer.stream):
            at = len(log)  # it has only been primed so far
        if at is None and not empty:
            assert self.faulty or self.variant.is_short, "S13: a cursor belongs to its stream, which knows it"
            if self.variant.unknown == "refuse":
                peer.refuse(400)
                return
        peer.accept()
        if at is None and not empty and self.variant.unknown == "end":
            self.wires[peer.connection] = deque()
            self._part(self.fates[peer.stream], clean=True)
            return
        if empty:
            self.wires[peer.connection] = deque()
            return
        replay = self._replay(log, at)
        self.live.pop(peer.stream, None)
        if self.variant.primes_again == "before":
            replay.insert(0, self._prime(peer.stream))
        elif self.variant.primes_again == "after":
            replay.append(self._prime(peer.stream))
        self._open(peer, replay)

    def _replay(self, log: list[Entry], at: int | None) -> list[Entry]:
        if at is None:
            return list(log) if self.variant.unknown == "start" else []
        return log[at if self.variant.inclusive or self.variant.indexed else at + 1 :]

    def _deliver(self, which: int, count: int) -> None:
        fate = self._pick(which)
        if fate is not None:
            self._flow(fate, count + 1)

    def _flow(self, fate: Fate, count: int) -> None:
        """Up to `count` events arrive; after its answer and the last event the server ends the response."""
        peer = fate.peer.stale()
        wire = self.wires.get(peer.connection)
        while wire and count and fate.peer.connection == peer.connection:
            entry, count = wire.popleft(), count - 1
            if entry.message is not None and entry.stream == peer.stream and "result" in entry.message:
                self._whole.add(peer.connection)
            replayed = isinstance(fate.peer.order, Get)
            message: Any = entry.message
            if message is None and replayed and self.variant.replays_all:
                message = {}
            if fate.peer.is_open:
                self._told.add(peer.connection)
                if entry.stream != peer.stream and entry.message is not None and "result" in entry.message:
                    self.fates[entry.stream].elsewhere = True
                fate.had_id = fate.had_id or entry.stream == peer.stream
                peer.event(entry.event_id, message)
                self._check()
        if wire is not None and not wire and peer.connection in self._whole and fate.peer.is_open:
            self._part(fate, clean=True)

    def _part(self, fate: Fate, *, clean: bool) -> None:
        """The connection is over. What was on its way is lost, unless it ended cleanly."""
        connection = fate.peer.connection
        self.wires.pop(connection, None)
        for ends in (self.live, self.detached):
            if ends.get(fate.peer.stream) == connection:
                del ends[fate.peer.stream]
        if isinstance(fate.peer.order, Post) and not fate.had_id:
            fate.cut_blind = True
        fate.was_cut = True
        fate.peer.end() if clean else fate.peer.cut()
        ping = self.driver.sent("ping")
        if ping.stream != -1 and ping.is_open:
            ping.answer({})  # asked for where a response was complete without anything

    def _cut(self, which: int, count: int) -> None:
        fate = self._pick(which)
        if fate is not None and fate.peer.is_open and fate.peer.connection in self.wires:
            self._part(fate, clean=False)

    def _end(self, which: int, count: int) -> None:
        """The server closes the connection but not the stream, having written all it had."""
        fate = self._pick(which)
        if fate is not None and fate.peer.is_open and fate.peer.connection in self.wires:
            self._flow(fate, 1000)
            if self.variant.is_short and fate.peer.connection not in self._told:
                return  # by an empty answer it would say that it knows no such ID
            if fate.peer.is_open and fate.peer.connection in self.wires:
                self._part(fate, clean=True)

    def _trim(self, which: int, count: int) -> None:
        """The log lets go of what it may: all that follows the client's cursor is kept, and no more than that."""
        fate = self._pick(which)
        stream = fate and self.driver.machine._streams._streams.get(fate.peer.stream)
        if fate is not None and stream and self.variant.is_short:
            log = self.logs[fate.peer.stream]
            at = next((n for n, entry in enumerate(log) if entry.event_id == stream.trail.cursor), 0)
            self.logs[fate.peer.stream] = log[at:]
            self._let_go[fate.peer.stream] = self._let_go.get(fate.peer.stream, 0) + at

    def _fail(self, which: int, count: int) -> None:
        """A connection that cannot be established."""
        fate = self._pick(which)
        if fate is not None and fate.peer.is_open and fate.peer.connection not in self.wires:
            if isinstance(fate.peer.order, Post):
                self._written_off.add(fate.peer.stream)
            fate.peer.not_written()

    def _attach(self, which: int, count: int) -> None:
        for stream, connection in list(self.detached.items()):
            if connection in self.wires:
                self.live[stream] = connection
            del self.detached[stream]

    def _drain(self, which: int, count: int) -> None:
        taken = min(count + 1, len(self._undrained))
        for _ in range(taken):
            self._undrained.popleft()
        self.driver.drain(taken)

    def _late(self, which: int, count: int) -> None:
        """Something still comes on a connection that the machine has given up."""
        fate = self._pick(which)
        if fate is None:
            return
        orders = [a for a in self.driver.log if isinstance(a, (Get, Post)) and a.stream == fate.peer.stream]
        if len(orders) < 2:
            return
        late = Peer(self.driver, fate.peer.stream, "", [], orders[count % (len(orders) - 1)].connection)
        message = note("late") if count % 2 else fate.peer.result({"token": "late"})
        for actions in (late.event("late", message), late.refuse(404), late.cut()):
            assert actions == [], "S13: an older connection was heard"

    def _fault(self, which: int, count: int) -> None:
        if self.variant.is_honest or self.faulty:
            return
        self.faulty = True
        for fate in self.fates.values():
            if fate.peer.is_open and fate.peer.connection in self.wires:
                self._part(fate, clean=False)
        if self.variant.fault == "reset":
            self._counter = 0
            self.logs = {stream: [] for stream in self.logs}
        elif self.variant.fault == "trim":
            self.logs = {s: log[len(log) - min(count, len(log)) :] for s, log in self.logs.items()}
        elif self.variant.fault == "fork":
            for stream, log in self.logs.items():
                self.logs[stream] = [self._forked(stream, e) for e in log]

    def _forked(self, stream: int, entry: Entry) -> Entry:
        """Another replica has counted the same, but other events."""
        if entry.message is None:
            return entry
        message = note("of another replica")
        message["params"]["token"] = self._token()
        self._positions[token_of(message)] = (stream, len(self.fates[stream].emitted))
        return Entry(stream, entry.event_id, message, entry.serial)

    # The end: faults stop, and every call must come to its outcome.

    def _finish(self) -> None:
        for _ in range(5000):
            if not any(self._waiting(f) for f in self.fates.values()):
                break
            if not self._round():
                self._wait()
            self._check()
        for fate in self.fates.values():
            self._flow(fate, 1000)
        for fate in self.fates.values():
            self._judge(fate)

    def _round(self) -> bool:
        """The network carries what there is, the server ends every call. Returns whether that was anything."""
        busy = False
        self._attach(0, 0)
        for number, fate in enumerate(list(self.fates.values())):
            if not fate.peer.is_open:
                continue
            before = len(self.driver.log)
            self._serve(number, 0)
            if not (self.faulty and self.variant.fault == "reset"):
                self._result(number, 0)
            self._attach(0, 0)
            self._flow(fate, 1000)
            if fate.peer.is_open and isinstance(fate.peer.order, Get):
                attempt = fate.peer.order.delay.attempt
                self.driver.now += min(0.1 * 2 ** min(attempt, 10), 10) if attempt else 0
            self._check()
            busy = busy or len(self.driver.log) > before
        due = [t for t, at in self.driver.timers.items() if at <= self.driver.now]
        return busy and not due

    def _waiting(self, fate: Fate) -> bool:
        return not fate.outcomes

    def _wait(self) -> None:
        """Time passes to the next timer."""
        timers = self.driver.timers
        timer = min(timers, key=lambda t: timers[t])
        honest = self.variant.is_honest
        assert not honest or timer.kind is not TimerKind.DEADLINE, "L2: on an honest server no call is given up"
        self.driver.elapse(timer.kind, timer.stream)

    # What is promised.

    def _check(self) -> None:
        for action in self.driver.log[self._checked :]:
            self._check_action(action)
        self._checked = len(self.driver.log)
        streams = self.driver.machine._streams
        for stream in streams._streams.values():
            self._check_stream(stream)
        held = sum(len(trail.rows) for trail in streams._finished) + sum(
            len(s.trail.rows) for s in streams._streams.values()
        )
        assert len(streams.index) <= held, "S15: the index holds nothing that no trail holds"

    def _check_stream(self, stream: Any) -> None:
        driver = self.driver
        assert len(stream.trail.rows) <= driver.policy.trail_size, "S15: trails are bounded"
        if stream.state is StreamState.ON_TRIAL:
            assert driver.is_set(TimerKind.WITNESS, stream.number), "L8: a trial always ends"
        if stream.call is not None and stream.call.in_flight:
            assert driver.is_set(TimerKind.DEADLINE, stream.number) or stream.call.host_id is None, "L2"
            assert stream.connection.number in driver.open, "L2: somebody works on it"

    def _check_action(self, action: Action) -> None:
        match action:
            case Deliver():
                self._check_delivered(action.message)
            case Save():
                for record in action.records:
                    if isinstance(record, CallSent):
                        self._saved[record.wire_id] = action.durable or not record.may_have_side_effects
                    elif isinstance(record, CursorMoved):
                        self._check_cursor(record)
            case Post():
                self._check_post(action)
            case Report(event=Resumed() as resumed):
                assert resumed.evidence.grade is not Grade.BROKEN or self.faulty, "S5: a false alarm"
                if resumed.evidence.grade in (Grade.UNVERIFIED, Grade.CONSISTENT):
                    self._weak.add(resumed.stream)
            case Report(event=Discontinuity() as loss):
                assert self.faulty, "S5: a loss reported that is none"
                self._lost.add(loss.stream)
            case Report(event=CallSettled() as settled):
                fate = self._fate_of(settled.wire_id)
                if fate is not None:
                    fate.outcomes.append(settled.outcome)
            case Hangup():
                pass

    def _fate_of(self, wire_id: int) -> Fate | None:
        """None while the call is being made, when it cannot have an outcome yet."""
        return self.fates.get(wire_id)

    def _check_delivered(self, message: JSON) -> None:
        token = token_of(message)
        self._undrained.append(token)
        if "method" not in message:
            fates = [f for f in self.fates.values() if f.peer.host_id == message["id"]]
            for fate in fates:
                fate.answers += 1
                assert fate.answers == 1, "S9: a call was answered twice"
                if token:
                    assert self._positions[token][0] == fate.peer.stream, "S8: an answer reached another call"
        if not token:
            return
        assert token not in self._delivered, "S1: delivered twice"
        stream, position = self._positions[token]
        before = [p for t, p in self._delivered.items() if self._positions[t][0] == stream]
        # One stream's replay may overtake another's connection, and what was dropped comes late.
        ordered = not (self.variant.drops or self.variant.replays_all)
        assert not ordered or not before or position >= max(before), "S3: out of order"
        self._delivered[token] = position

    def _check_cursor(self, moved: CursorMoved) -> None:
        cursor = moved.rows[-1]
        reached = self._places.get((int(moved.stream), cursor.event_id or ""), 0)
        if self.variant.indexed and cursor.digest == digest_of(b""):
            reached -= 1  # a priming event: the message of its number follows
        for token in self._undrained:
            if token and not self.faulty:
                stream, position = self._positions[token]
                assert str(stream) != moved.stream or position > reached, (
                    "S6: the cursor passed what was not drained"
                )

    def _check_post(self, post: Post) -> None:
        if "id" not in post.message or "method" not in post.message:
            return
        wire_id = post.message["id"]
        if post.message["method"] == "tools/call":
            assert self._saved.get(wire_id), "S12: sent before its row was on disk"
        assert wire_id not in self._posted or wire_id in self._written_off, "S11: sent again without consent"
        self._posted.add(wire_id)
        self._written_off.discard(wire_id)
        assert "last-event-id" not in post.headers, "S13: a cursor on a POST"

    def _judge(self, fate: Fate) -> None:
        stream = str(fate.peer.stream)
        assert fate.outcomes, "L2: a call without an outcome"
        assert len(fate.outcomes) == 1 or fate.outcomes == [Outcome.IN_DOUBT, Outcome.RECOVERED], "S9"
        assert fate.answers == 1, "S9: a call without an answer"
        if self.variant.is_honest and not fate.cut_blind:
            assert fate.outcomes == [Outcome.COMPLETED], f"S5: needless doubt, {fate.outcomes}"
        if fate.outcomes[0] is Outcome.COMPLETED and stream not in self._lost and not self.variant.drops:
            if stream in self._weak and not self.variant.is_honest:
                return
            lost = [t for t in fate.emitted if t not in self._delivered]
            assert not lost or fate.elsewhere, f"S4: silently lost {lost}"
