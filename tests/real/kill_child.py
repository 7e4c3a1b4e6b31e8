"""The processes of the kill sweep: one that lives a lifecycle and is killed in it, and one that comes after."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import anyio
import pydantic
from attrs import define, field, frozen
from mcp import ClientSession, types

from mcp_client_guard import CallInDoubt, Event, Guard, GuardPolicy, SQLiteStore, StoreInUse
from mcp_client_guard.core.ledger import arguments_digest

from . import kill_points

POLICY = GuardPolicy(recheck=0.25)
"""A wait short enough for thousands of cases; everything else as users get it."""
HANGS = 60
"""Seconds after which a process is taken to hang, which is a fault."""


@frozen
class Planned:
    """A call of a lifecycle."""

    tool: str
    n: int = 0
    delay: float = 0.0
    name: bool = False
    """The host gives it a call key."""
    task: bool = False

    def arguments(self, label: str) -> dict[str, Any]:
        return {"label": label, "n": self.n, "delay": self.delay}

    def digest(self, label: str) -> bytes:
        return arguments_digest({"name": self.tool, "arguments": self.arguments(label)})

    def right(self, label: str) -> str:
        """The text of the right answer."""
        return f"{self.tool} {label}" + (" said" if self.tool == "ask" else "")


COUNT = Planned("count", 4, 0.03)
PLANS: Mapping[str, Mapping[str, Planned]] = {
    "plain": {"r": Planned("look"), "a": Planned("charge"), "b": Planned("charge", name=True)},
    "progress": {"a": COUNT},
    "lost": {"a": Planned("charge"), "b": COUNT, "c": Planned("charge"), "d": Planned("charge", name=True)},
    "recovery": {"a": Planned("count", 7, 0.03), "b": Planned("count", 6, 0.03, name=True)},
    "task": {"a": Planned("count", 2, 0.04, task=True), "b": Planned("charge", task=True, name=True)},
    "streams": {"a": COUNT, "b": Planned("count", 5, 0.025), "c": Planned("announce", 5, 0.03)},
    "mixed": {"a": COUNT, "b": COUNT, "c": Planned("charge"), "d": Planned("charge", name=True)},
    "asked": {"a": Planned("ask", 1, 0.03), "b": Planned("ask", name=True)},
}
"""What is called in each lifecycle, by the last part of its label."""


class Raw(pydantic.BaseModel):
    """Any request."""

    method: str
    params: dict[str, Any]


class RawResult(pydantic.BaseModel):
    """Any result."""

    model_config = pydantic.ConfigDict(extra="allow")


@define
class Log:
    """What happened in a process, a line each, written so that it outlives it."""

    path: str

    def __call__(self, **what: Any) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, json.dumps(what).encode() + b"\n")
        os.close(fd)


@define
class Spy:
    """The read stream, seen through."""

    stream: Any
    log: Log

    async def receive(self) -> Any:
        return self._seen(await self.stream.receive())

    def __aiter__(self) -> Spy:
        return self

    async def __anext__(self) -> Any:
        return self._seen(await self.stream.__anext__())

    def _seen(self, item: Any) -> Any:
        message = getattr(item.message, "root", item.message)
        if not hasattr(message, "method"):
            self.log(response=message.id)
        elif message.method == "notifications/message":
            self.log(message=message.params["data"])
        elif message.method == "notifications/progress":
            self.log(progress=message.params["progress"])
        return item

    async def __aenter__(self) -> Spy:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self.stream.aclose()

    def close(self) -> None:
        self.stream.close()


@define
class Host:
    """One process of a case: a Guard, and the SDK's session on top."""

    order: dict[str, Any]
    log: Log
    points: kill_points.Points
    guard: Guard = field(init=False)
    session: Any = field(init=False)
    connection: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        order = self.order
        self.guard = Guard(
            order["url"],
            store=SQLiteStore(order["store"]),
            key=order.get("key", "agent"),
            principal=order.get("principal"),
            headers={"x-case": order["case"], "x-process": str(order["process"])},
            policy=POLICY,
            generation="sessions",
            on_event=self._on_event,
        )

    @property
    def plans(self) -> Mapping[str, Planned]:
        return PLANS[self.order["lifecycle"]]

    def label(self, part: str) -> str:
        return f"{self.order['case']}/{part}"

    def _on_event(self, event: Event) -> None:
        self.log(event=type(event).__name__, text=str(event))

    async def run(self, does: Callable[[Host], Coroutine[Any, Any, None]]) -> None:
        """Connect, do it, and leave."""
        with anyio.fail_after(HANGS):
            self.connection = self.guard.connect()
            async with self.connection as (read, write):
                seen: Any = Spy(read, self.log)
                callbacks: Any = {"sampling_callback": self._sampled, "message_handler": _ignore}
                session = ClientSession(seen, write, **callbacks)
                async with session:
                    self.session = session
                    await session.initialize()
                    self.log(initialized=True)
                    await does(self)
        self.log(left=True)

    async def _sampled(self, _: Any, params: Any) -> types.CreateMessageResult:
        said = params.messages[0].content
        self.log(asked=(said[0] if isinstance(said, list) else said).text)
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(type="text", text="said"), model="none"
        )

    async def call(self, part: str, progress: Any = None, plan: Planned | None = None) -> None:
        """Make a planned call, and log what came of it."""
        plan, label = plan or self.plans[part], self.label(part)
        self.log(called=part)
        with self.guard.call_key(label) if plan.name else nullcontext():
            try:
                if plan.task:
                    result = await self._as_task(plan, label)
                else:
                    result = await self.session.call_tool(
                        plan.tool, plan.arguments(label), progress_callback=progress
                    )
            except Exception as error:
                result = error
        doubt = CallInDoubt.find(result)
        if doubt is not None:
            self.log(doubt=part, call_key=doubt.call_key, reason=doubt.reason)
        elif isinstance(result, BaseException):
            self.log(error=part, text=f"{type(result).__name__}: {result}")
        else:
            self.log(answered=part, text="".join(getattr(b, "text", "") for b in result.content))

    async def _as_task(self, plan: Planned, label: str) -> Any:
        params = {"name": plan.tool, "arguments": plan.arguments(label), "task": {"ttl": 60_000}}
        made = await self._send("tools/call", params)
        if "task" not in made:  # a repeat is given the answer itself
            return types.CallToolResult.model_validate(made)
        self.log(task=label)
        return types.CallToolResult.model_validate(
            await self._send("tasks/result", {"taskId": made["task"]["taskId"]})
        )

    async def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A request that not every SDK has a class for."""
        if not hasattr(self.session, "_dispatcher"):
            sent: RawResult = await self.session.send_request(Raw(method=method, params=params), RawResult)
            return sent.model_dump()
        # SDK 2.x knows no tasks: its `send_request` refuses their results.
        options: dict[str, Any] = {}
        self.session._stamp({"method": method, "params": params}, options)
        result: dict[str, Any] = await self.session._dispatcher.send_raw_request(method, params, options)
        return result

    def forget_session(self) -> None:
        """Have the server forget the session, as one does that was started again."""
        self.points.is_off = True
        port = urlsplit(self.order["url"]).port
        with socket.create_connection(("127.0.0.1", port or 0)) as wire:
            path = f"/forget?session={self.connection.session_id}"
            wire.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
            assert wire.recv(64).startswith(b"HTTP/1.1 204")
        self.points.is_off = False


async def _ignore(_: Any) -> None:
    pass


# --- lifecycles -----------------------------------------------------------------------------------


async def plain(host: Host) -> None:
    """A tool that says it only reads, one that takes money, one whose call has a name."""
    await host.session.list_tools()
    for part in "rab":
        await host.call(part)


async def progress(host: Host) -> None:
    """A call that tells its progress."""

    async def told(*_: object) -> None:
        pass

    await host.call("a", told)


async def lost(host: Host) -> None:
    """The server forgets the session while a call is in flight; the next call finds that out."""
    first = anyio.Event()

    async def told(*_: object) -> None:
        first.set()

    await host.call("a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.call, "b", told)
        await first.wait()
        host.forget_session()
        await host.call("c")
    await host.call("d")


async def recovery(host: Host) -> None:
    """Two calls in flight; this process dies when both have told some progress."""
    waiting = {"a", "b"}

    async def call(part: str) -> None:
        async def told(progress: float, *_: object) -> None:
            if progress >= 4:
                waiting.discard(part)
            if not waiting:
                kill_points.die()

        await host.call(part, told)

    async with anyio.create_task_group() as tasks:
        for part in "ab":
            tasks.start_soon(call, part)


async def task(host: Host) -> None:
    """Calls made as tasks, and their results fetched."""
    await host.call("a")
    await host.call("b")


async def streams(host: Host) -> None:
    """Two calls that tell their progress, and a third that has the standalone stream talk."""

    async def told(*_: object) -> None:
        pass

    async with anyio.create_task_group() as tasks:
        for part in "abc":
            tasks.start_soon(host.call, part, told)


async def asked(host: Host) -> None:
    """The server asks back before it answers."""
    await host.call("a")
    await host.call("b")


async def hold(host: Host) -> None:
    """Own the key, until killed."""
    os.write(host.order["ready"], b"x")
    await anyio.sleep_forever()


async def mixed(host: Host) -> None:
    """One of five Guards in one process: two calls at once, and others after them."""
    os.write(host.order["ready"], b"x")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.call, "a")
        tasks.start_soon(host.call, "b")
    await host.call("c")
    await host.call("d")


LOOP = (Planned("charge"), Planned("count", 3, 0.02))
"""The calls of the restart loop, in turn."""


async def loop(host: Host) -> None:
    """What a supervised agent does: account for the calls of the one before, then call and call."""
    await account(host)
    serials = count()

    async def caller() -> None:
        for serial in serials:
            await host.call(f"p{host.order['process']}-{serial}", plan=LOOP[serial % 2])

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(caller)


async def account(host: Host) -> None:
    """What became of the calls of the processes before."""
    for row in await host.guard.recovered():
        answer = (row.answer or {}).get("result", {}).get("content", [])
        host.log(
            recovered=[row.slot, row.incarnation, row.wire_id],
            method=row.method,
            outcome=row.outcome.value if row.outcome else None,
            reason=row.reason,
            answer="".join(block.get("text", "") for block in answer) if row.answer else None,
        )
    host.log(accounted=True)


async def again(host: Host) -> None:
    """The next process: what became of the calls; then the same calls again, and one that is new."""
    await account(host)
    rows = await host.guard.calls()
    for part, plan in host.plans.items():
        mine = [row for row in rows if row.arguments_digest == plan.digest(host.label(part))]
        in_doubt = bool(mine) and mine[-1].outcome is not None and mine[-1].outcome.value == "in_doubt"
        if plan.name or (in_doubt and mine[-1].may_have_side_effects):
            host.log(repeats=part, doubted=mine[-1].call_key if in_doubt else None)
            await host.call(part)
    after = Planned("look")
    label = host.label(f"after{host.order['process']}")
    result = await host.session.call_tool(after.tool, after.arguments(label))
    host.log(after="".join(getattr(block, "text", "") for block in result.content) == after.right(label))


DOES = {
    does.__name__: does
    for does in (plain, progress, lost, recovery, task, streams, asked, again, hold, mixed, loop, account)
}


# --- processes ------------------------------------------------------------------------------------


def carry_out(order: dict[str, Any]) -> int:
    """Fork a process for this order, and wait for its end. Returns its wait status."""
    return os.waitpid(start(order), 0)[1]


def start(order: dict[str, Any]) -> int:
    """Fork a process for this order. Returns its ID."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        _live(order)
        code = 0
    finally:
        os._exit(code)


def _live(order: dict[str, Any]) -> None:
    signal.alarm(HANGS + 10)
    out = os.open(order["log"] + ".txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    log = Log(order["log"])
    points = kill_points.Points(order.get("at", 0), order.get("after", False))
    kill_points.install(points)
    try:
        if order["does"] == "read":
            log(read=len(anyio.run(SQLiteStore(order["store"]).calls)))
        else:
            anyio.run(_guards, order, log, points, backend=order.get("loop", "asyncio"))
    except BaseException as error:
        log(failed=f"{type(error).__name__}: {error}")
        raise
    finally:
        log(points=points.names)


async def _guards(order: dict[str, Any], log: Log, points: kill_points.Points) -> None:
    """One Guard; or several at once, each with its own key, on one store."""
    does, number = DOES[order["does"]], order.get("guards", 0)
    async with anyio.create_task_group() as tasks:
        for serial in range(number):
            mine = {**order, "key": f"agent{serial}", "case": f"{order['case']}/k{serial}"}
            tasks.start_soon(Host(mine, log, points).run, does)
    if not number:
        try:
            await Host(order, log, points).run(does)
        except StoreInUse as error:
            log(in_use=str(error))
