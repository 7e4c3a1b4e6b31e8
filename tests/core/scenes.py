"""Scenes with a memory: connections that share a ledger, a disk that outlives them, and processes that die."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from mcp_client_guard.core.actions import Action, Forward, Get, Post, Save
from mcp_client_guard.core.heritage import Heritage, heritage_of, settle_others
from mcp_client_guard.core.inputs import Forwarded, Input, MessageSubmitted
from mcp_client_guard.core.machine import Machine
from mcp_client_guard.core.model import JSON, Generation, Record
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.shared import SharedLedger
from mcp_client_guard.core.stored import StoredCall, StoredSession
from mcp_client_guard.stores._keep import Keep
from mcp_client_guard.stores._memory_rows import KeyRows
from tests.core.driver import Driver, Peer, of

ORIGIN = "https://example.com"
WALL = 1_000_000.0
"""The wall clock when a driver's clock shows nothing."""


@define
class Write:
    """One `Save`, as it reached the store."""

    slot: int
    records: tuple[Record, ...]
    durable: bool
    at: float


@define(repr=False)
class Disk:
    """What a `MemoryStore` keeps, and each write of it: so a crash can take back the newest."""

    writes: list[Write] = field(factory=list)
    origin: str = ORIGIN
    principal: str | None = None
    rows: KeyRows = field(factory=lambda: KeyRows("key", Keep(10_000, 30)))

    def write(self, slot: int, records: Sequence[Record], durable: bool, at: float) -> None:
        self.writes.append(Write(slot, tuple(records), durable, at))
        self.rows.refuse_repeats(slot, records)
        for record in records:
            self.rows.keep(slot, record, WALL + at, self.origin, self.principal)

    def after_crash(self, writes: int, *, power: bool) -> Disk:
        """The disk as a crash leaves it after so many writes; without power, what was not flushed is gone."""
        kept = self.writes[:writes]
        if power:
            flushed = max((n for n, w in enumerate(kept, 1) if w.durable), default=0)
            kept = kept[:flushed]
        disk = Disk(origin=self.origin, principal=self.principal)
        for write in kept:
            disk.write(write.slot, write.records, write.durable, write.at)
        return disk

    @property
    def calls(self) -> dict[tuple[int, int, int], StoredCall]:
        """By slot, incarnation and wire ID; the oldest first."""
        return {at: row.stored() for at, row in self.rows.calls.items()}

    @property
    def sessions(self) -> dict[tuple[int, int], StoredSession]:
        """By slot and incarnation; the oldest first."""
        return dict(zip(self.rows.sessions, self.rows.stored_sessions(), strict=True))

    @property
    def found(self) -> Generation | None:
        return self.rows.found.get(self.origin)

    @property
    def unfinished(self) -> list[StoredCall]:
        """What a Guard reads that knows the other rows."""
        return [row.stored() for row in self.rows.unfinished()]

    @property
    def open_calls(self) -> list[StoredCall]:
        return [call for call in self.calls.values() if call.outcome is None or call.task_open]

    @property
    def session(self) -> StoredSession:
        """The newest."""
        return list(self.sessions.values())[-1]

    @property
    def call(self) -> StoredCall:
        """The newest `tools/call`."""
        return [c for c in self.calls.values() if c.method == "tools/call"][-1]

    def heritage(
        self, *, rows: Sequence[StoredCall] | None = None, here: Sequence[int] = (), has_hook: bool = False
    ) -> Heritage | None:
        rows = list(self.calls.values()) if rows is None else rows
        return heritage_of(self.sessions.values(), rows, self.origin, self.principal, here, has_hook=has_hook)


@define(repr=False)
class Connection(Driver):
    """A driver whose records reach a disk, and whose machine is one of several of a process."""

    process: Process = field(kw_only=True)
    slot: int = 1
    name: int = 0
    heritage: Heritage | None = None
    first_wire_id: int = 1

    def __attrs_post_init__(self) -> None:
        self.machine = Machine(
            self.policy,
            first_wire_id=self.first_wire_id,
            shared=self.process.shared,
            name=self.name,
            has_hook=self.has_hook,
            max_calls=self.max_calls,
            heritage=self.heritage,
            ends_session=False,
        )
        self.now = self.process.now

    def feed(self, told: Input) -> list[Action]:
        self.now = self.process.now = max(self.now, self.process.now)
        before = dict(self.orders)
        actions = super().feed(told)
        dies_after = self.process.dies_after
        if dies_after is not None:
            # It dies within this list: what comes later in it never happened.
            self.orders = {**before, **{a.stream: a for a in actions[:dies_after] if isinstance(a, (Post, Get))}}
        for action in actions[:dies_after]:
            if isinstance(action, Save):
                self.process.disk.write(self.slot, action.records, action.durable, self.now)
        if dies_after is not None:
            raise Died
        for action in of(actions, Forward):
            other = self.process.connections[action.machine]
            other.forwarded += other.feed(Forwarded(action.message, action.of, action.by_guard))
        return actions

    served: set[int] = field(factory=set)
    """Connections that the server has answered."""
    forwarded: list[Action] = field(factory=list)
    """What came of answers that other connections handed on."""

    def named(self, key: str, tool: str = "charge", **arguments: Any) -> Peer:
        """A call that the host has named."""
        return self._call(tool, arguments, {"io.github.mcp-client-guard/call-key": key})

    def consenting(self, key: str, tool: str = "charge", **arguments: Any) -> Peer:
        """A call that may repeat the one with this key."""
        return self._call(tool, arguments, {"io.github.mcp-client-guard/consent": key})

    def _call(self, tool: str, arguments: JSON, meta: JSON) -> Peer:
        return self.request("tools/call", {"name": tool, "arguments": arguments, "_meta": meta})

    def request(self, method: str, params: JSON | None = None, *, token: Any = None, **headers: str) -> Peer:
        """As the driver's; but host IDs and call keys are told apart by connection and process."""
        self._next_id += 1
        params = dict(params or {})
        if token is not None:
            params["_meta"] = {"progressToken": token}
        host_id = f"h{self._next_id}"
        message = {"jsonrpc": "2.0", "id": host_id, "method": method, "params": params}
        key = f"key-{self.process.number}-{self.name}-{self._next_id}"
        before = set(self.orders)
        actions = self.feed(MessageSubmitted(message, headers, key))
        new = [n for n in self.orders if n not in before]
        return Peer(self, new[0] if new else -1, host_id, actions)


class Died(Exception):
    """The process was killed."""


@define(repr=False)
class Process:
    """What one process has: a ledger shared by its connections, on a disk that outlives it."""

    disk: Disk = field(factory=Disk)
    policy: GuardPolicy = field(factory=GuardPolicy)
    has_hook: bool = False
    number: int = 1
    now: float = 100.0
    shared: SharedLedger = field(factory=SharedLedger)
    connections: list[Connection] = field(factory=list)
    heritage: Heritage | None = None
    dies_after: int | None = None
    """So many actions of the next list are carried out."""

    def connect_again(self) -> Connection:
        """Every connection was closed; another takes over what they have left, and knows what they knew."""
        for one in self.connections:
            one.close()
        self._take_over(self.disk.unfinished)
        return self.connect()

    def _take_over(self, rows: Sequence[StoredCall]) -> None:
        here = [row.wire_id for row in rows if row.wire_id // 10_000 == self.number]
        self.heritage = self.disk.heritage(rows=rows, here=here, has_hook=self.has_hook)
        for slot, record in settle_others(rows, self.heritage, self.disk.origin, self.disk.principal, 0.0):
            self.disk.write(slot, (record,), False, self.now)

    def connect(self, *, has_hook: bool | None = None, max_calls: int | None = None) -> Connection:
        """Another connection under the same key; the first takes over what there is."""
        heritage, self.heritage = self.heritage, None
        used = [slot for slot, *_ in self.disk.calls] + [c.slot for c in self.connections]
        slot = heritage.slot if heritage is not None else 1 + max(used, default=0)
        name = len(self.connections)
        made = Connection(
            self.policy,
            process=self,
            slot=slot,
            name=name,
            heritage=heritage,
            first_wire_id=1 + 10_000 * self.number + 1_000 * name,
            has_hook=self.has_hook if has_hook is None else has_hook,
            max_calls=max_calls,
        )
        self.connections.append(made)
        return made

    def killed(self, writes: int | None = None, *, power: bool = False, after: float = 5.0) -> Process:
        """The process is dead; another one has started, and knows only what is on the disk."""
        disk = self.disk.after_crash(len(self.disk.writes) if writes is None else writes, power=power)
        now = self.now + after
        new = Process(disk, self.policy, self.has_hook, self.number + 1, now)
        rows = list(disk.calls.values())
        new.shared.restore(rows, WALL + now, now)
        new._take_over(rows)
        return new


def opened(process: Process | None = None, *, standalone: bool = False) -> Connection:
    """A connection in a session."""
    connection = (process or Process()).connect()
    connection.opened(standalone=standalone)
    return connection


def prove(connection: Connection) -> list[Action]:
    """The host initializes, and the old session answers the guard's ping."""
    sent = connection.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    return sent.actions + connection.sent("ping").answer({})


NOTHING_RAN = ("refused", "cancelled", "not saved")


def nothing_runs(one: Connection, call: Callable[[], Peer], how: str) -> None:
    """A call is made, and ends without any of it having run."""
    if how == "cancelled":  # while it waits for a session
        one.request("tools/list").refuse(404)
    peer = call()
    if how == "refused":
        peer.refuse(413)
    elif how == "not saved":
        peer.save_failed()
    elif how == "not written":
        while peer.is_open:
            peer.not_written()
    else:
        one.cancel(peer)
        one.reinitialized()
