"""`Guard`: reusable, bound to no loop, several connections at once; its events; whose choice the generation is."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, get_type_hints

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from anyio.abc import TaskGroup

from mcp_client_guard import (
    CallSettled,
    Connected,
    Guard,
    GuardError,
    GuardPolicy,
    MemoryStore,
    Outcome,
    SQLiteStore,
    StoreError,
    StoreInUse,
    _connection,
)
from mcp_client_guard._events import Listener, level_of
from mcp_client_guard._guard import Connection
from mcp_client_guard._loops import has_ended, post_to_this_loop
from mcp_client_guard._messages import plain_codec
from mcp_client_guard._reconcile import ReconcileHook
from mcp_client_guard.core import report
from mcp_client_guard.stores import StoredCall
from mcp_client_guard.testing import (
    END_OF_CHUNKS,
    FakeServer,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    sse_event,
    sse_head,
    tool_result,
)

from .hosts import (
    LIMIT,
    Answer,
    PlainHost,
    Playing,
    Streams,
    answer,
    events,
    plain_answer,
    plainly,
    run_together,
    steps,
)


def settled(outcome: Outcome) -> CallSettled:
    return CallSettled(1, "tools/call", "charge", "key", outcome, "answered or not")


@asynccontextmanager
async def listening_host(guard: Guard) -> AsyncIterator[tuple[PlainHost, TaskGroup]]:
    host = PlainHost()
    async with Connection(guard, plain_codec) as (host.read, host.write), anyio.create_task_group() as tasks:
        tasks.start_soon(host.listen)
        await host.start()
        yield host, tasks
        tasks.cancel_scope.cancel()


async def call_through(guard: Guard, text: str = "charge") -> str:
    async with listening_host(guard) as (host, _):
        return (await host.call(text)).text


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
def test_a_guard_made_outside_a_loop_serves_asyncio_and_then_trio(durable: bool, tmp_path: Any) -> None:
    guard: Guard | None = None

    async def main() -> None:
        nonlocal guard
        with anyio.fail_after(LIMIT):
            async with FakeServer(ScriptedMcp()) as server:
                assert guard is not None
                guard.url = server.url
                assert await run_together(*[lambda: call_through(guard)] * 3) == ["charge"] * 3  # type: ignore[arg-type]

    store = SQLiteStore(tmp_path / "agent.db") if durable else MemoryStore()
    guard = Guard("http://127.0.0.1:1/mcp", store=store)
    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(main, backend=backend)
    assert guard.state == "closed"


def test_what_is_in_doubt_is_so_on_the_next_event_loop() -> None:
    """Each has a clock of its own. Programs that are not async themselves run one for each call."""
    guard, mcp = Guard("http://127.0.0.1:1/mcp"), Streams(steps(How.RST))

    async def main(port: int) -> int:
        with anyio.fail_after(LIMIT):
            async with FakeServer(mcp, port=port) as server:
                guard.url = server.url
                async with listening_host(guard) as (host, _):
                    assert (await host.call()).doubt
                return server.port

    port = anyio.run(main, 0, backend="asyncio")
    anyio.run(main, port, backend="trio")
    assert mcp.executed == ["charge"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("whose", ["same", "another"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_connection_that_was_never_left_dies_with_its_event_loop(
    store: str, whose: str, backend: str, tmp_path: Any
) -> None:
    """In a process of its own, since it leaves sockets open."""
    command = [sys.executable, "-m", "tests.wire.never_left", store, whose, backend, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT * 3, check=False)
    assert ran.returncode == 0, ran.stderr


class Heedless(MemoryStore):
    """Sees no event loop end, as a user's own store may: it gives a key to nobody until it is released."""

    owned = False

    async def claim(self, key: str, *, origin: str, principal: str | None) -> Any:
        if self.owned:
            raise StoreInUse("it was not released")
        self.owned = True
        return HeedlessClaim(self, await super().claim(key, origin=origin, principal=principal))


class HeedlessClaim:
    def __init__(self, store: Heedless, claim: Any) -> None:
        self._store = store
        self._claim = claim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claim, name)

    async def release(self) -> None:
        self._store.owned = False
        await self._claim.release()


def test_what_an_event_loop_has_left_behind_is_released_before_the_key_is_claimed_anew() -> None:
    guard = Guard("http://127.0.0.1:1/mcp", store=Heedless())

    async def enter() -> None:
        await Connection(guard, plain_codec).__aenter__()

    async def enter_and_leave() -> str:
        async with Connection(guard, plain_codec):
            return guard.state

    anyio.run(enter)
    assert anyio.run(enter_and_leave) == "new"


def test_a_listener_whose_event_loop_has_ended_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard("http://127.0.0.1:1/mcp")
    heard = anext(guard.events())
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(heard)  # type: ignore[arg-type]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    async def main() -> str:
        with anyio.fail_after(LIMIT):
            async with FakeServer(ScriptedMcp()) as server:
                guard.url = server.url
                return await call_through(guard)

    assert anyio.run(main) == "charge"
    for _ in range(1100):
        guard._tell(report.StoreFailed("disk full"), None)
    assert "unexpected" not in caplog.text
    assert "too slow" not in caplog.text
    assert not waiting.done()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_event_loop_has_ended_once_it_cannot_run_again(backend: str) -> None:
    async def this() -> Any:
        post = post_to_this_loop()
        assert not has_ended(post)
        return post

    assert has_ended(anyio.run(this, backend=backend))


@pytest.mark.anyio
async def test_connections_of_another_event_loop_that_runs_are_not_touched() -> None:
    async with FakeServer(ScriptedMcp()) as server:
        guard = Guard(server.url)
        async with listening_host(guard) as (host, _):
            with pytest.raises(GuardError, match="another event loop"):
                await anyio.to_thread.run_sync(anyio.run, call_through, guard)
            assert (await host.call()).text == "charge"


IN_A_FORKED_CHILD = """
import os, threading, warnings
import anyio
from mcp_client_guard import Guard, GuardError

warnings.simplefilter("ignore", DeprecationWarning)
guard = Guard("http://127.0.0.1:9/mcp")

async def connect():
    async with guard.connect():
        pass

def child():
    try:
        anyio.run(connect)
    except GuardError as refused:
        print(refused, flush=True)

async def main():
    async with guard.connect():
        pid = os.fork()
        if pid == 0:
            thread = threading.Thread(target=child)
            thread.start()
            thread.join()
            os._exit(0)
        os.waitpid(pid, 0)

anyio.run(main)
"""


def test_a_forked_child_is_told_so_where_the_connections_are_its_parents() -> None:
    ran = subprocess.run([sys.executable, "-c", IN_A_FORKED_CHILD], capture_output=True, text=True, check=True)
    assert ran.stdout == ("this process was forked from one that has this Guard connected: make a Guard here\n"), (
        ran.stderr
    )


class Counting(MemoryStore):
    """Counts how often the whole ledger is read."""

    read = 0

    async def calls(self, key: str | None = None) -> list[StoredCall]:
        self.read += 1
        return await super().calls(key)


class CountingPlain(Counting):
    """Its claims have no epoch, as those of a user's own store may."""

    async def claim(self, key: str, *, origin: str, principal: str | None) -> Any:
        claim = await super().claim(key, origin=origin, principal=principal)
        return SimpleNamespace(new_slot=claim.new_slot, write=claim.write, release=claim.release)


@pytest.mark.anyio
@pytest.mark.parametrize(("make", "read"), [(Counting, 1), (CountingPlain, 3)])
async def test_a_guard_that_was_the_last_owner_reads_only_what_is_left(make: type[Counting], read: int) -> None:
    """Frameworks open a connection for each call, and ledgers grow long."""
    mcp, store = Streams(steps(How.RST)), make()
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server:
            guard, another = Guard(server.url, store=store), Guard(server.url, store=store)
            for owner in (guard, guard, guard, another):
                async with listening_host(owner) as (host, _):
                    assert (await host.call()).doubt
            assert (mcp.executed, store.read) == (["charge"], read + 1)


@pytest.mark.anyio
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
async def test_connections_open_and_close_at_the_same_time_under_one_claim(durable: bool, tmp_path: Any) -> None:
    store = SQLiteStore(tmp_path / "agent.db") if durable else MemoryStore()
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            guard = Guard(server.url, store=store)

            async def again_and_again() -> list[str]:
                return [await call_through(guard) for _ in range(4)]

            assert await run_together(*[again_and_again] * 4) == [["charge"] * 4] * 4
            rows = await guard.calls()
    assert len({row.slot for row in rows}) == 16, "each has its own session record"
    assert len({row.wire_id for row in rows}) == len(rows) == 32


@pytest.mark.anyio
async def test_two_guards_with_one_key_are_told_at_once_and_the_first_goes_on(tmp_path: Any) -> None:
    async with plainly(ScriptedMcp(), store=SQLiteStore(tmp_path / "agent.db"), key="k") as (server, host):
        second = Guard(server.url, store=SQLiteStore(tmp_path / "agent.db"), key="k")
        with pytest.raises(StoreInUse):
            async with Connection(second, plain_codec):
                pass
        assert second.state == "closed"
        assert (await host.call()).text == "charge"
    async with Connection(second, plain_codec):
        pass


@pytest.mark.anyio
async def test_sessions_of_one_guard_do_not_mix() -> None:
    class Numbered(ScriptedMcp):
        count = 0

        async def initialize(self, request: Request, reply: Reply) -> None:
            self.count += 1
            await reply.json(self.initialized(request), session=f"session-{self.count}")

        async def call(self, request: Request, reply: Reply) -> None:
            await reply.json(tool_result(request.rpc_id, str(request.session_id)))

    with anyio.fail_after(LIMIT):
        async with FakeServer(Numbered()) as server:
            guard = Guard(server.url)
            got = await run_together(*[lambda: call_through(guard)] * 5)
            assert sorted(got) == [f"session-{n}" for n in range(1, 6)]


# --- the ledger ---------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
async def test_the_ledger_holds_what_the_host_has_just_been_told(durable: bool, tmp_path: Any) -> None:
    lost = iter([events(answer()), steps(How.RST)])

    async def play(call: Request, reply: Reply) -> None:
        await next(lost)(call, reply)

    with anyio.fail_after(LIMIT):
        async with FakeServer(Streams(play)) as server:
            store = SQLiteStore(tmp_path / "agent.db") if durable else None
            guard = Guard(server.url, store=store)
            async with listening_host(guard) as (host, _):
                for outcome in (Outcome.COMPLETED, Outcome.IN_DOUBT):
                    await host.call()
                    assert (await guard.calls())[-1].outcome is outcome


class Hanging(MemoryStore):
    """Its writes hang until `go_on`; one that is cancelled has written nothing."""

    go_on: anyio.Event | None = None

    async def claim(self, key: str, *, origin: str, principal: str | None) -> Any:
        claim = await super().claim(key, origin=origin, principal=principal)

        async def write(*args: Any, **options: Any) -> None:
            if self.go_on is not None:
                await self.go_on.wait()
            await claim.write(*args, **options)

        return SimpleNamespace(new_slot=claim.new_slot, write=write, release=claim.release)


@pytest.mark.anyio
async def test_a_store_that_hangs_keeps_nobody_from_the_ledger_and_loses_nothing_by_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_connection, "_FLUSH_SECONDS", 0.01)

    async def play(call: Request, reply: Reply) -> None:
        store.go_on = anyio.Event()
        await events(answer())(call, reply)

    store = Hanging()
    with anyio.fail_after(LIMIT):
        async with FakeServer(Streams(play)) as server:
            guard = Guard(server.url, store=store)
            async with listening_host(guard) as (host, _):
                await host.call()
                assert (await guard.calls())[-1].outcome is None
                with anyio.CancelScope() as given_up:
                    given_up.cancel()
                    await guard.calls()
                assert store.go_on is not None
                store.go_on.set()
                assert (await guard.calls())[-1].outcome is Outcome.COMPLETED


@pytest.mark.anyio
async def test_the_ledger_of_a_store_that_no_connection_has_made_yet_is_empty(tmp_path: Any) -> None:
    path = tmp_path / "agent.db"
    guard = Guard("http://127.0.0.1:9/mcp", store=SQLiteStore(path))
    assert await guard.calls() == []
    path.touch()
    assert await guard.calls() == []
    path.write_bytes(b"no database" * 100)
    with pytest.raises(StoreError):
        await guard.calls()
    assert [made.name for made in tmp_path.iterdir()] == ["agent.db"]


@pytest.mark.anyio
async def test_the_ledger_is_read_on_any_event_loop() -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            guard = Guard(server.url)
            async with listening_host(guard) as (host, _):
                await host.call()
                read = await anyio.to_thread.run_sync(lambda: anyio.run(guard.calls))
    assert [call.tool for call in read] == [None, "charge"]


# --- events -------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_log_says_of_which_server_and_key_an_event_is(caplog: pytest.LogCaptureFixture) -> None:
    with anyio.fail_after(LIMIT), caplog.at_level(logging.DEBUG, "mcp_client_guard"):
        async with FakeServer(ScriptedMcp()) as one, FakeServer(ScriptedMcp(call=steps(How.RST))) as other:
            for server, key in ((one, "payments"), (other, "search")):
                await call_through(Guard(f"{server.url}?token=secret", key=key))
    ours = [record for record in caplog.records if record.name == "mcp_client_guard"]
    origins = [server.url.removesuffix("/mcp") for server in (one, other)]
    assert [record.message.split(": ")[0] for record in ours if "Connected(" in record.message] == [
        f"{origins[0]} (key 'payments')",
        f"{origins[1]} (key 'search')",
    ]
    assert all(record.message.startswith(tuple(origins)) for record in ours)
    assert "secret" not in "".join(record.message for record in ours)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_on_event_gets_typed_values_whether_it_is_sync_or_async(kind: str) -> None:
    seen: list[Any] = []
    done = anyio.Event()

    async def later(event: Any) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(event)
        if len(seen) >= 3:
            done.set()

    def now(event: Any) -> None:
        seen.append(event)
        if len(seen) >= 3:
            done.set()

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            guard = Guard(server.url, on_event=now if kind == "sync" else later)
            host = PlainHost()
            async with (
                Connection(guard, plain_codec) as (host.read, host.write),
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(host.listen)
                await host.start()
                await host.call()
                await done.wait()
                tasks.cancel_scope.cancel()
    assert isinstance(seen[0], Connected)
    assert any(isinstance(e, CallSettled) and e.tool == "charge" for e in seen)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["sync", "async", "awaitable that fails late"])
async def test_an_error_in_on_event_is_logged_and_harms_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def now(event: Any) -> None:
        raise ZeroDivisionError("ours")

    async def later(event: Any) -> None:
        if kind != "async":
            await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError("ours")

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            guard = Guard(server.url, on_event=now if kind == "sync" else later)
            assert await call_through(guard) == "charge"
    assert "on_event failed" in caplog.text


@pytest.mark.anyio
async def test_an_async_on_event_gets_one_event_at_a_time_in_their_order() -> None:
    seen: list[Any] = []
    inside = 0

    async def slow(event: Any) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await anyio.sleep(0.001)
        seen.append(event)
        inside -= 1

    now: list[Any] = []
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            guard = Guard(server.url, on_event=slow)
            async with listening_host(guard) as (host, tasks):
                tasks.start_soon(_collect, guard, now)
                await anyio.wait_all_tasks_blocked()
                for _ in range(5):
                    await host.call()
                while len(now) < 5 or now[-1] not in seen:  # noqa: ASYNC110 (the callback itself is what is tested)
                    await anyio.sleep(0.001)
    in_order = [e for e in seen if e in now]
    assert in_order == now
    assert len(now) >= 5


async def _collect(guard: Guard, into: list[Any]) -> None:
    async for event in guard.events():
        into.append(event)


@pytest.mark.anyio
async def test_on_event_that_is_too_slow_loses_the_oldest_and_that_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hang(event: Any) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(LIMIT):
        async with FakeServer(Streams(flood)) as server:
            guard = Guard(server.url, on_event=hang)
            async with listening_host(guard) as (host, _):
                assert (await host.call()).text == "done"
    assert "on_event is too slow" in caplog.text


async def flood(call: Request, reply: Reply) -> None:
    """More orphans than events are kept."""
    await reply.open_sse()
    for _ in range(1100):
        await reply.event(tool_result("nobody", "x"))
    await reply.event(tool_result(call.rpc_id, "done"))
    await reply.finish()


@pytest.mark.anyio
async def test_on_event_may_leave_the_connection_behind_it() -> None:
    """A callback that hangs holds up neither the call nor the leaving."""

    async def hang(event: Any) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            assert await call_through(Guard(server.url, on_event=hang)) == "charge"


class Leaving(Exception):
    """The body's own."""


async def leave_in_a_call(server: FakeServer, guard: Guard, leaves: str) -> None:
    """A host that leaves while its call is in flight."""
    host = PlainHost()
    with anyio.CancelScope() as outside, suppress(Leaving):
        async with Connection(guard, plain_codec) as (host.read, host.write):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.listen)
                await host.start()
                await host.post("tools/call", {"name": "charge"})
                await server.wait_for(lambda request: request.rpc_method == "tools/call")
                tasks.cancel_scope.cancel()
            if leaves == "cancelled":
                outside.cancel()
                await anyio.lowlevel.checkpoint()
            elif leaves == "by an error":
                raise Leaving


@pytest.mark.anyio
@pytest.mark.parametrize("leaves", ["at the end", "by an error", "cancelled"])
async def test_an_async_on_event_is_told_of_what_comes_on_leaving(leaves: str) -> None:
    told: list[Any] = []

    async def slow(event: Any) -> None:
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        told.append(event)

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp(call=steps(How.STALL))) as server:
            await leave_in_a_call(server, Guard(server.url, on_event=slow), leaves)
    outcomes = [(event.tool, event.outcome) for event in told if isinstance(event, CallSettled)]
    assert outcomes[-1] == ("charge", Outcome.IN_DOUBT)


@pytest.mark.anyio
@pytest.mark.parametrize("leaves", ["at the end", "by an error", "cancelled"])
async def test_what_on_event_was_not_told_of_in_the_second_of_leaving_is_logged(
    leaves: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "CLOSING_SECONDS", 0.01)
    broken_off: list[Any] = []

    async def hang(event: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            broken_off.append(event)

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp(call=steps(How.STALL))) as server:
            await leave_in_a_call(server, Guard(server.url, on_event=hang), leaves)
    assert len(broken_off) == 1
    assert re.search(r"on_event is too slow: not told of the last [1-9]\d* events", caplog.text)


@pytest.mark.anyio
async def test_guard_events_reach_every_listener_of_every_connection() -> None:
    heard: dict[int, list[Any]] = {1: [], 2: []}

    async def listen(guard: Guard, n: int) -> None:
        async for event in guard.events():
            heard[n].append(event)

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            guard = Guard(server.url)
            async with anyio.create_task_group() as tasks:
                for n in heard:
                    tasks.start_soon(listen, guard, n)
                await anyio.wait_all_tasks_blocked()
                for _ in range(2):
                    await call_through(guard)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
    assert heard[1] == heard[2]
    assert len([e for e in heard[1] if isinstance(e, Connected)]) == 2


@pytest.mark.anyio
async def test_a_listener_that_is_too_slow_loses_the_oldest_and_that_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            guard = Guard(server.url)
            listening = guard.events()
            host = PlainHost()
            async with (
                Connection(guard, plain_codec) as (host.read, host.write),
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(host.listen)
                tasks.start_soon(_first_of, listening)
                await anyio.wait_all_tasks_blocked()
                await host.start()
                for n in range(1100):
                    guard._tell(n, None)  # type: ignore[arg-type]
                tasks.cancel_scope.cancel()
            await listening.aclose()  # type: ignore[attr-defined]
    assert "too slow" in caplog.text


def test_a_listener_hears_what_comes_from_its_call_on() -> None:
    """Also where that was made before there is an event loop."""
    guard = Guard("http://x/mcp")
    listening = guard.events()

    async def main() -> None:
        guard._tell(settled(Outcome.COMPLETED), None)
        with anyio.fail_after(LIMIT):
            assert await anext(listening) == settled(Outcome.COMPLETED)
            guard._tell(settled(Outcome.IN_DOUBT), None)
            assert await anext(listening) == settled(Outcome.IN_DOUBT)

    anyio.run(main)


@pytest.mark.anyio
@pytest.mark.parametrize("begun", [False, True])
async def test_a_listener_that_nobody_has_any_more_is_let_go_of(begun: bool) -> None:
    guard = Guard("http://x/mcp")
    others = {id(found) for found in gc.get_objects() if type(found) is Listener}
    listening: Any = guard.events()
    guard._tell(settled(Outcome.COMPLETED), None)
    mine = [found for found in gc.get_objects() if type(found) is Listener and id(found) not in others]
    kept = [weakref.ref(found) for found in mine]
    del mine
    if begun:
        with anyio.fail_after(LIMIT):
            await anext(listening)
        await listening.aclose()
    del listening
    gc.collect()
    assert kept
    assert [ref() for ref in kept if ref() is not None] == []


async def _first_of(listening: Any) -> None:
    async for _ in listening:
        await anyio.sleep_forever()


@pytest.mark.anyio
async def test_a_connection_shows_whose_it_is_and_no_session_id() -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp(session="secret")) as server:
            guard = Guard(f"{server.url}?token=secret", key="orders")
            connection, host = Connection(guard, plain_codec), PlainHost()
            origin = server.url.removesuffix("/mcp")
            assert repr(connection) == f"Connection({origin} (key 'orders'), state='new')"
            async with connection as (host.read, host.write), anyio.create_task_group() as tasks:
                tasks.start_soon(host.listen)
                await host.start()
                assert "state='new'" not in repr(connection)
                assert "secret" not in repr(connection)
                tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_the_state_follows_the_newest_connection() -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            guard = Guard(server.url)
            assert guard.state == "closed"
            async with Connection(guard, plain_codec):
                assert guard.state == "new"
            assert guard.state == "closed"
    assert "closed" in repr(guard)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://x"},
        {"url": "x"},
        {"url": "http://"},
        {"url": "http://:80/mcp"},
        {"url": "http://x:99999/mcp"},
        {"url": "http://[::1"},
        {"url": " http://x/mcp"},
        {"url": None},
        {"url": "/mcp"},
        {"url": httpx.URL("/mcp")},
        {"url": httpx.URL("ftp://x")},
        {"generation": "legacy"},
        {"headers": {"a": "b"}, "http_client": httpx.AsyncClient()},
        {"headers": {"authorization": "Bearer x\n"}},
        {"headers": {"authorization": "Bearer \udcff"}},
        {"headers": {"authorization": " Bearer x"}},
        {"headers": {"authorization": None}},
        {"headers": {"authorization:": "Bearer x"}},
        {"headers": {1: "x"}},
        {"headers": {"Mcp-Session-Id": "x"}},
        {"headers": {"content-length": "1"}},
        {"headers": [("authorization", "Bearer x")]},
        {"http_client": httpx.Client()},
        {"http_client": httpx.AsyncClient},
        {"http_client": object()},
        {"store": "agent.db"},
        {"store": SQLiteStore},
        {"policy": {}},
        {"policy": {"call_deadline": 5}},
        {"policy": GuardPolicy},
        {"key": ""},
        {"key": 17},
        {"principal": 17},
        {"reconcile": 5},
        {"on_event": 5},
        {"on_event": lambda: None},
        {"websocket": None},
        {"terminate_on_close": "false"},
    ],
)
def test_a_wrong_call_is_told_at_once_and_in_words_of_ours(wrong: dict[str, Any]) -> None:
    options = {"url": "http://x/mcp", **wrong}
    names = "|".join(wrong)
    with pytest.raises(ValueError, match=rf"^({names}) must be |^give headers or http_client") as told:
        Guard(**options)
    assert "Bearer" not in str(told.value)


def test_what_can_be_meant_is_taken() -> None:
    headers = {"authorization": "Bearer x", "x-name": "Zoë\tQ", "x-empty": ""}
    guard = Guard(
        "HTTPS://[::1]:443/mcp?a=b", headers=headers, principal="", terminate_on_close=False, websocket=""
    )
    assert guard.state == "closed"


class OtherUrl:
    """As pydantic's: not httpx's, and no text."""

    scheme, host = "http", "x"

    def __str__(self) -> str:
        return "http://u:p@x/mcp?a=b"


@pytest.mark.parametrize("url", [httpx.URL("http://u:p@x/mcp?a=b"), OtherUrl()])
def test_a_url_object_is_taken_for_its_text(url: Any) -> None:
    guard, plain = Guard(url), Guard("http://u:p@x/mcp?a=b")
    assert (guard.url, guard.key) == (plain.url, plain.key)


@pytest.mark.parametrize(
    ("base", "url", "whole"),
    [
        ("http://x", "/mcp", "http://x/mcp"),
        ("http://x/v1", "mcp?a=b", "http://x/v1/mcp?a=b"),
        ("http://x/v1/", "/mcp", "http://x/v1/mcp"),
        ("http://x/v1", httpx.URL("/mcp"), "http://x/v1/mcp"),
        ("http://x/mcp", "", "http://x/mcp/"),
        ("http://x/v1", "http://y/mcp", "http://y/mcp"),
    ],
)
def test_a_relative_url_is_taken_as_the_caller_s_client_takes_it(base: str, url: Any, whole: str) -> None:
    client = httpx.AsyncClient(base_url=base)
    assert Guard(url, http_client=client).url == whole == str(client.build_request("POST", url).url)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://[::1", None])
def test_a_base_url_helps_no_url_that_is_wrong(url: Any) -> None:
    with pytest.raises(ValueError, match=r"^url must be "):
        Guard(url, http_client=httpx.AsyncClient(base_url="http://x"))


def test_what_a_guard_is_given_has_types_that_others_can_read() -> None:
    """Containers and validators do, from another module."""
    assert get_type_hints(Guard.__init__)["reconcile"] == ReconcileHook | None


@pytest.mark.parametrize("wrong", ["", 17, None])
def test_a_call_key_is_a_text(wrong: Any) -> None:
    guard = Guard("http://x/mcp")
    with pytest.raises(ValueError, match="call_key must be a text"):
        guard.consent(wrong)
    with pytest.raises(ValueError, match="call_key must be a text"), guard.call_key(wrong):
        raise AssertionError


@pytest.mark.anyio
async def test_a_connection_that_cannot_be_made_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard("http://127.0.0.1:1/mcp")
    with anyio.fail_after(LIMIT):
        with monkeypatch.context() as patch:
            patch.setattr(_connection, "Machine", _cannot_be_made)
            with pytest.raises(ZeroDivisionError):
                await Connection(guard, plain_codec).__aenter__()
        assert guard.state == "closed"
        async with Connection(guard, plain_codec):
            assert guard.state == "new", "the key was free"


def _cannot_be_made(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.anyio
async def test_nothing_is_recovered_before_the_first_connection_nor_is_there_a_store_then(tmp_path: Any) -> None:
    guard = Guard("http://x/mcp", store=SQLiteStore(tmp_path / "agent.db"))
    assert await guard.recovered() == []
    assert await guard.calls() == []
    assert list(tmp_path.iterdir()) == []


# --- generations --------------------------------------------------------------------------------------

DISCOVER = {"protocolVersion": "2026-07-28", "clientInfo": {"name": "t", "version": "1"}}
PROBE = {
    "_meta": {
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}


@pytest.mark.anyio
async def test_generation_sessions_answers_the_probe_locally() -> None:
    async with plainly(ScriptedMcp(), generation="sessions", start=False) as (server, host):
        got = await host.request("server/discover", DISCOVER)
        assert got["error"]["code"] == -32601
        assert server.requests == []
        await host.start()
        assert (await host.call()).text == "charge"


@pytest.mark.anyio
async def test_generation_host_passes_the_probe_through_with_the_hosts_headers() -> None:
    async def other(request: Request, reply: Reply) -> None:
        await reply.json({"jsonrpc": "2.0", "id": request.rpc_id, "result": {"supportedVersions": ["2026-07-28"]}})

    async with plainly(ScriptedMcp(other=other), generation="host", start=False) as (server, host):
        got = await host.request("server/discover", DISCOVER)
        assert got["result"]["supportedVersions"] == ["2026-07-28"]
        assert server.requests[0].rpc_method == "server/discover"
        assert server.requests[0].session_id is None


@pytest.mark.anyio
async def test_generation_auto_opens_the_session_it_tried_for_the_host() -> None:
    class WithEvents(ScriptedMcp):
        async def initialize(self, request: Request, reply: Reply) -> None:
            answer = chunk(sse_event(self.initialized(request), id="e1"))
            await reply.play(sse_head(session=self.session), answer, END_OF_CHUNKS)

    async with plainly(WithEvents(), generation="auto", start=False) as (server, host):
        got = await host.request("server/discover", PROBE)
        assert got["error"]["code"] == -32601
        await host.start()
        assert (await host.call()).text == "charge"
        assert [r.rpc_method for r in server.sent("POST")][:2] == ["initialize", "notifications/initialized"]
        assert not server.sent("DELETE")


class PingsFirst(ScriptedMcp):
    """Pings on the stream that answers `initialize`, and goes on when that is answered in its session."""

    def __init__(self) -> None:
        super().__init__()
        self.ponged = anyio.Event()

    async def initialize(self, request: Request, reply: Reply) -> None:
        self.ponged = anyio.Event()
        ping = chunk(sse_event({"jsonrpc": "2.0", "id": "s1", "method": "ping"}))
        answer = chunk(sse_event(self.initialized(request)))
        await reply.play(sse_head(session=self.session), ping, self.ponged, answer, END_OF_CHUNKS)

    async def notify(self, request: Request, reply: Reply) -> None:
        if request.rpc_method is None and request.session_id == self.session:
            self.ponged.set()
        await reply.status(202 if request.session_id == self.session else 400)

    async def call(self, request: Request, reply: Reply) -> None:
        await (super().call(request, reply) if request.session_id == self.session else reply.status(404))


@pytest.mark.anyio
async def test_a_server_that_pings_before_it_has_answered_initialize_is_answered_in_its_session(
    playing: Playing,
) -> None:
    mcp = PingsFirst()
    async with playing(mcp) as (server, host):
        assert (await host.call()).text == "charge"
        mcp.session = "session-B"
        assert (await host.call()).text == "charge"
        assert len(server.sent("POST", "initialize")) == 2


# --- logs ---------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_silent_day_logs_nothing_above_debug(playing: Playing, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with playing(Streams(events(answer()))) as (_, host):
        assert await host.call() == Answer("done")
    loud = [r for r in caplog.records if r.name.startswith("mcp_client_guard") and r.levelno > logging.DEBUG]
    assert loud == []


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (settled(Outcome.IN_DOUBT), logging.WARNING),
        (settled(Outcome.COMPLETED), logging.DEBUG),
        (settled(Outcome.RESENT), logging.DEBUG),
        (report.UnreadableDropped("1", "no JSON"), logging.WARNING),
        (report.Disconnected("1", "ended", 0, True, wait=3600), logging.WARNING),
        (report.Disconnected("1", "ended", 0, True, wait=60), logging.DEBUG),
        (report.Unreachable("1", "ConnectError", 1), logging.WARNING),
        (report.Unreachable("1", "ConnectError", 2), logging.DEBUG),
        (report.ListenedAgain("1", ()), logging.WARNING),
        (report.RefreshSuggested(()), logging.WARNING),
        (report.RepeatRefused("charge", "key"), logging.WARNING),
        (report.EndpointMoved(None, "moved"), logging.WARNING),
        (report.EndpointRefused("https://elsewhere"), logging.WARNING),
        (report.Reinitialized("s", (), ("resources/subscribe a://1",)), logging.WARNING),
        (report.Reinitialized("s", ("tool charge",)), logging.WARNING),
        (report.Reinitialized("s", ()), logging.DEBUG),
        (report.Disconnected("1", "ReadError", 0, True), logging.DEBUG),
        (report.Disconnected("1", "ConnectError", 0, True, attempt=1), logging.WARNING),
        (report.Disconnected("1", "ConnectError", 0, True, attempt=2), logging.DEBUG),
    ],
)
def test_what_is_or_may_be_lost_is_a_warning(event: report.Event, level: int) -> None:
    assert level_of(event) == level


@pytest.mark.anyio
async def test_requests_queue_behind_a_slow_initialized_and_not_for_ever() -> None:
    """A server refuses what overtakes `notifications/initialized`; one that hangs on it holds up nothing long."""
    taken = anyio.Event()

    async def notify(request: Request, reply: Reply) -> None:
        await taken.wait()
        await reply.status(202)

    async with plainly(ScriptedMcp(notify=notify)) as (server, host):
        id = await host.post("tools/call", {"name": "charge"})
        await server.wait_for(lambda r: r.rpc_method == "notifications/initialized")
        assert not server.sent("POST", "tools/call")
        taken.set()
        got = (await host.until(lambda: host.answers_to(id)))[0]
        assert plain_answer(got).text == "charge"

    async with plainly(ScriptedMcp(notify=steps(How.STALL))) as (_, host):
        assert (await host.call()).text == "charge"
