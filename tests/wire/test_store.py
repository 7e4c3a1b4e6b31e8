"""Ledger and cursors as the shell keeps them: on disk before the first byte, and never in the way of reading."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import anyio
import pytest

from mcp_client_guard import (
    CallSettled,
    Guard,
    MemoryStore,
    Outcome,
    SQLiteStore,
    StoreDamaged,
    StoreWriteError,
)
from mcp_client_guard._guard import Connection
from mcp_client_guard._messages import plain_codec
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED
from mcp_client_guard.core.report import StoreFailed
from mcp_client_guard.stores import Claim
from mcp_client_guard.testing import (
    END_OF_CHUNKS,
    FakeServer,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    notification,
    sse_event,
    sse_head,
    tool_result,
)
from mcp_client_guard.transports import saving

from .hosts import (
    LIMIT,
    Answer,
    Playing,
    Streams,
    answer,
    events,
    note,
    plainly,
    prime,
    progress,
    refuse,
    run_together,
    steps,
    until,
)

pytestmark = pytest.mark.anyio


def rows_on_disk(path: Any) -> list[tuple[Any, ...]]:
    """The committed rows, as another process sees them."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        table = next(
            name for (name,) in db.execute("select name from sqlite_master where type = 'table'") if "call" in name
        )
        columns = [c[1] for c in db.execute(f"pragma table_info({table})")]
        assert {"wire_id", "call_key", "outcome"} <= set(columns)
        return list(db.execute(f"select wire_id, call_key, outcome from {table}"))


async def test_the_row_is_on_disk_before_the_first_byte_of_the_request(playing: Playing, tmp_path: Any) -> None:
    path = tmp_path / "agent.db"
    seen: list[Any] = []

    async def on_head(request: Request, reply: Reply) -> None:
        if request.method == "POST" and armed:
            seen.append(rows_on_disk(path))

    armed: list[bool] = []
    mcp = Streams(events(answer()))
    async with playing(mcp, store=SQLiteStore(path), on_head=on_head) as (server, host):
        await anyio.wait_all_tasks_blocked()
        armed.append(True)
        assert await host.call() == Answer("done")
        armed.clear()
        sent = server.sent("POST", "tools/call")[0].rpc_id
        row = next(row for row in seen[0] if row[0] == sent)
        assert row[2] is None, "without an outcome, which it had not"


async def test_many_calls_at_once_are_each_on_disk_before_they_are_sent(playing: Playing, tmp_path: Any) -> None:
    path = tmp_path / "agent.db"

    async def first(call: Request, reply: Reply) -> None:
        assert call.rpc_id in [row[0] for row in rows_on_disk(path)]
        await reply.json(tool_result(call.rpc_id, "done"))

    async with playing(Streams(first), store=SQLiteStore(path)) as (_, host):
        assert await run_together(*[host.call] * 20) == [Answer("done")] * 20


async def test_outcomes_are_on_disk_when_the_connection_is_closed(playing: Playing, tmp_path: Any) -> None:
    store = SQLiteStore(tmp_path / "agent.db")
    mcp = Streams(events(answer()))
    async with playing(mcp, store=store) as (_, host):
        await host.call(n=1)
        mcp.first = steps(How.RST)
        await host.call(n=2)
        await host.call(n=2)  # which is refused, and gets no row
        mcp.first = refuse(403)
        await host.call(n=3)
    rows = [row for row in await store.calls() if row.method == "tools/call"]
    assert [row.outcome for row in rows] == [Outcome.COMPLETED, Outcome.IN_DOUBT, Outcome.NOT_EXECUTED]
    assert all(row.may_have_side_effects and row.tool == "charge" for row in rows)


class Failing(MemoryStore):
    """A store whose disk can be full, slow, or both."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.error: Exception = StoreWriteError("disk full")
        self.durable_writes = 0
        self.go_on = anyio.Event()
        self.go_on.set()
        self.stalled = anyio.Event()

    async def claim(self, key: str, *, origin: str, principal: str | None) -> Claim:
        return FailingClaim(self, await super().claim(key, origin=origin, principal=principal))


class FailingClaim:
    def __init__(self, store: Failing, claim: Claim) -> None:
        self._store, self._claim = store, claim
        self.new_slot = claim.new_slot

    async def release(self) -> None:
        await self._claim.release()
        if self._store.full:
            raise self._store.error

    async def write(self, slot: int, records: Any, *, durable: bool = False) -> None:
        self._store.durable_writes += durable
        if durable and not self._store.go_on.is_set():
            self._store.stalled.set()
        await self._store.go_on.wait()
        if self._store.full:
            raise self._store.error
        await self._claim.write(slot, records, durable=durable)


async def test_with_a_full_disk_a_call_is_refused_and_reading_goes_on(playing: Playing) -> None:
    """L6: never blocks reading; what may have side effects is not sent."""
    more = anyio.Event()
    store = Failing()
    mcp = Streams(
        events(answer()),
        standalone=events(note("a", "s1"), until(more), note("b", "s2"), note("c", "s3"), end=How.STALL),
    )
    async with playing(mcp, store=store) as (server, host):
        assert await host.call() == Answer("done")
        await host.until(lambda: host.heard)
        store.full = True
        got = await host.call()
        assert (got.code, got.data["by"]) == (CODE_NOT_EXECUTED, "wire")
        assert "ledger" in got.text
        more.set()
        await host.until(lambda: len(host.heard) == 3)
        assert host.of(StoreFailed)
        store.full = False
        assert await host.call() == Answer("done")
    assert mcp.executed == ["charge"] * 2
    assert len(server.sent("POST", "tools/call")) == 2


@pytest.mark.parametrize("error", [OSError(28, "the secret path"), RuntimeError("the secret path"), KeyError("x")])
async def test_a_store_that_raises_anything_costs_one_call_and_not_the_connection(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """`Store` is a public protocol: what another's raises is not of our family, nor ours to show."""
    go_on = anyio.Event()
    store = Failing()
    store.error = error
    mcp = Streams(events(progress(1), until(go_on), answer()))
    async with plainly(mcp, store=store) as (server, host):
        parallel = await host.post("tools/call", {"name": "charge", "_meta": {"progressToken": 1}})
        await host.saw(1)
        store.full = True
        got = await host.call()
        assert (got.code, got.data["by"]) == (CODE_NOT_EXECUTED, "wire")
        assert type(error).__name__ in got.text
        assert "secret" not in got.text
        assert "result" in await host.request("tools/list")
        go_on.set()
        assert "result" in (await host.until(lambda: host.answers_to(parallel)))[0]
        store.full = False
        assert await host.call() == Answer("done")
        assert len(server.sent("POST", "tools/call")) == 2
        store.full = True
    assert type(error).__name__ in {e.reason for e in host.of(StoreFailed)}
    assert "secret" not in caplog.text
    assert "could not be given up" in caplog.text


async def test_a_disk_that_fills_while_a_task_is_created_is_reported() -> None:
    store = Failing()
    task = {"taskId": "t", "status": "working", "ttl": 60_000}

    async def create(call: Request, reply: Reply) -> None:
        store.full = True
        await reply.json({"jsonrpc": "2.0", "id": call.rpc_id, "result": {"task": task}})

    async with plainly(Streams(create), store=store) as (_, host):
        created = await host.request("tools/call", {"name": "charge", "task": {"ttl": 60_000}})
        assert created["result"] == {"task": task}
        assert [event.reason for event in host.of(StoreFailed)] == ["disk full"]
        store.full = False
    assert [c.task_id for c in await store.calls() if c.method == "tools/call"] == ["t"]


async def test_a_store_that_does_not_come_back_keeps_nobody_from_what_was_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is a task, whose ID should be on disk first. The call is settled: it has no deadline any more."""
    monkeypatch.setattr(saving, "STALLED_SECONDS", 0.01)
    store = Failing()
    task = {"taskId": "t", "status": "working", "ttl": 60_000}

    async def create(call: Request, reply: Reply) -> None:
        store.go_on = anyio.Event()
        made = {"jsonrpc": "2.0", "id": call.rpc_id, "result": {"task": task}}
        both = sse_event(made) + sse_event(notification("notifications/message", level="info", data="with it"))
        await reply.play(sse_head(), chunk(both), How.STALL)

    async with plainly(Streams(create), store=store) as (_, host):
        created = await host.request("tools/call", {"name": "charge", "task": {"ttl": 60_000}})
        assert created["result"] == {"task": task}
        await host.until(lambda: host.of(StoreFailed))
        assert {"does not come back" in event.reason for event in host.of(StoreFailed)} == {True}
        store.go_on.set()
    assert [c.task_id for c in await store.calls() if c.method == "tools/call"] == ["t"]


async def test_nothing_overtakes_an_answer_that_waits_for_the_disk() -> None:
    """It would count as that answer once the host has taken it: by their order the core knows them (S6)."""
    store, arrived, may_answer = Failing(), anyio.Event(), anyio.Event()

    async def play(call: Request, reply: Reply) -> None:
        if call.json["params"]["arguments"]["n"] == 1:
            arrived.set()
            await may_answer.wait()
            await reply.json(tool_result(call.rpc_id, "done"))
            return
        store.go_on = anyio.Event()
        task = {"taskId": "t", "status": "working", "ttl": 60_000}
        await reply.json({"jsonrpc": "2.0", "id": call.rpc_id, "result": {"task": task}})

    async with plainly(Streams(play), store=store) as (_, host):
        done = await host.post("tools/call", {"name": "charge", "arguments": {"n": 1}})
        await arrived.wait()
        task = await host.post("tools/call", {"name": "charge", "arguments": {"n": 2}})
        await store.stalled.wait()
        may_answer.set()
        await host.until(lambda: [e.tool for e in host.of(CallSettled) if e.tool])
        assert not host.answers_to(done)
        store.go_on.set()
        await host.until(lambda: host.answers_to(done))
        assert [m["id"] for m in host.messages if m.get("id") in (done, task)] == [task, done]


async def test_an_answer_for_the_server_goes_out_though_the_store_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saving, "STALLED_SECONDS", 0.01)
    store = Failing()
    answered = anyio.Event()

    async def ask(call: Request, reply: Reply) -> None:
        question = {"jsonrpc": "2.0", "id": 7, "method": "roots/list"}
        await reply.play(sse_head(), chunk(sse_event(question)), answered)
        await reply.play(chunk(sse_event(tool_result(call.rpc_id, "done"))), END_OF_CHUNKS)

    async def notify(request: Request, reply: Reply) -> None:
        await reply.status(202)
        if request.json.get("id") == 7:
            answered.set()

    async with plainly(Streams(ask, notify=notify), store=store) as (_, host):
        id = await host.post("tools/call", {"name": "charge"})
        await host.until(lambda: "roots/list" in host.heard)
        asked = next(m for m in host.messages if m.get("method") == "roots/list")
        store.go_on = anyio.Event()
        await host.write.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}})
        assert "result" in (await host.until(lambda: host.answers_to(id)))[0]
        store.go_on.set()


async def test_a_request_waits_for_its_row_however_long_that_takes_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saving, "STALLED_SECONDS", 0.01)
    store = Failing()
    mcp = Streams(events(answer()))
    async with plainly(mcp, store=store, policy={"call_deadline": 0.1}) as (server, host):
        await host.request("ping")
        store.go_on = anyio.Event()
        refused = await host.request("tools/call", {"name": "charge"})
        assert refused["error"]["code"] == CODE_NOT_EXECUTED
        assert {"does not come back" in event.reason for event in host.of(StoreFailed)} == {True}
        store.go_on.set()
        await host.request("ping")
        assert server.sent("POST", "tools/call") == []


async def test_with_its_file_removed_a_call_is_refused_until_the_guard_connects_again(tmp_path: Any) -> None:
    store = SQLiteStore(tmp_path / "agent.db")
    mcp = Streams(events(answer()))
    async with plainly(mcp, store=store) as (_, host):
        assert await host.call(n=1) == Answer("done")
        for file in tmp_path.iterdir():
            file.unlink()
        refused = await host.call(n=2)
        assert (refused.code, refused.data["by"]) == (CODE_NOT_EXECUTED, "wire")
        assert "removed or replaced" in refused.text
        assert "result" in await host.request("tools/list")
        await host.until(lambda: host.of(StoreFailed))
    async with plainly(mcp, store=store) as (_, host):
        assert await host.call(n=3) == Answer("done")
    assert mcp.executed == ["charge"] * 2
    assert [call.tool for call in await store.calls() if call.tool] == ["charge"]


async def test_with_a_full_disk_harmless_requests_still_go_out() -> None:
    store = Failing()
    async with plainly(ScriptedMcp(), store=store) as (_, host):
        await host.request("ping")
        store.full = True
        assert "result" in await host.request("tools/list")
        assert "result" in await host.request("ping")


async def test_a_call_in_flight_when_the_disk_fills_is_answered(playing: Playing) -> None:
    go_on = anyio.Event()
    store = Failing()
    mcp = Streams(events(progress(1), until(go_on), answer()))
    async with playing(mcp, store=store) as (_, host):

        async def fill() -> Answer:
            await host.saw(1)
            store.full = True
            go_on.set()
            return Answer()

        assert (await run_together(host.call, fill))[0] == Answer("done")


async def test_a_slow_disk_delays_only_the_call_that_waits_for_it() -> None:
    store = Failing()
    async with plainly(Streams(events(answer())), store=store) as (server, host):
        await host.request("ping")
        store.go_on = anyio.Event()
        id = await host.post("tools/call", {"name": "charge"})
        assert "result" in await host.request("ping")
        assert server.sent("POST", "tools/call") == []
        store.go_on.set()
        await host.until(lambda: host.answers_to(id))


async def test_a_call_cancelled_while_its_row_is_written_is_never_sent() -> None:
    store = Failing()
    async with plainly(Streams(events(answer())), store=store) as (_, host):
        await host.request("ping")
        store.go_on = anyio.Event()
        id = await host.post("tools/call", {"name": "charge"})
        await anyio.wait_all_tasks_blocked()
        await host.notify("notifications/cancelled", requestId=id)
        store.go_on.set()
        await host.request("ping")
        await anyio.wait_all_tasks_blocked()
        assert host.answers_to(id) == []
        settled = [e.outcome for e in host.of(CallSettled) if e.method == "tools/call"]
        assert settled[0] is Outcome.CANCELLED
        assert len(settled) <= 2


async def test_leaving_while_a_row_is_written_neither_hangs_nor_sends() -> None:
    store = Failing()
    with anyio.fail_after(LIMIT):
        async with plainly(Streams(events(answer())), store=store) as (server, host):
            await host.request("ping")
            store.go_on = anyio.Event()
            await host.post("tools/call", {"name": "charge"})
            await anyio.wait_all_tasks_blocked()
            left = anyio.current_time()
        assert anyio.current_time() - left < 1.5 + 0.5
        assert server.sent("POST", "tools/call") == []


async def test_a_tool_that_is_known_to_read_only_waits_for_no_disk() -> None:
    tools = [{"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}, "charge"]
    store = Failing()
    async with plainly(Streams(events(answer()), tools=tools), store=store) as (_, host):
        await host.request("tools/list")
        before = store.durable_writes
        assert await host.call("look") == Answer("done")
        assert store.durable_writes == before
        assert await host.call("charge") == Answer("done")
        assert store.durable_writes == before + 1


async def test_the_cursor_on_disk_never_passes_what_the_host_has_taken() -> None:
    """S6, observed: received is not drained."""
    store = MemoryStore()
    mcp = Streams(events(prime("p0"), *(progress(n, f"e{n}") for n in range(1, 6)), end=How.STALL))
    async with plainly(mcp, store=store, listen=False, start=False) as (server, host):
        read = host.read
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await host.post("initialize", params)
        await read.receive()
        await host.notify("notifications/initialized")
        await host.post("tools/call", {"name": "charge", "_meta": {"progressToken": 1}})
        await server.wait_for(lambda r: r.rpc_method == "tools/call")

        async def stored() -> list[str | None]:
            await anyio.sleep(0.07)  # a group is at most 50 ms behind
            cursors = (await store.sessions())[0].cursors
            return [seen.event_id for rows in cursors.values() for seen in rows]

        assert "e1" not in await stored()
        for n in (1, 2, 3):
            assert (await read.receive())["params"]["progress"] == n
        assert not {"e3", "e4", "e5"} & set(await stored())
        with anyio.move_on_after(0.5):
            for _ in range(3):
                await read.receive()
        assert {"e4", "e5"} <= set(await stored())


async def test_a_settled_call_leaves_no_cursor_behind(playing: Playing, tmp_path: Any) -> None:
    store = SQLiteStore(tmp_path / "agent.db")
    mcp = Streams(events(prime("p0"), progress(1, "e1"), answer(id="e2")))
    async with playing(mcp, store=store) as (_, host):
        assert await host.call() == Answer("done")
    assert dict((await store.sessions())[0].cursors) == {}


async def test_the_cursor_of_a_standalone_stream_is_stored_and_one_without_ids_is_not(tmp_path: Any) -> None:
    for ids in (True, False):
        store = SQLiteStore(tmp_path / f"{ids}.db")
        named = [note(str(n), f"s{n}" if ids else None) for n in range(4)]
        async with plainly(ScriptedMcp(standalone=events(*named, end=How.STALL)), store=store) as (_, host):
            await host.until(lambda h=host: len(h.heard) == 4)
        cursors = (await store.sessions())[0].cursors
        stored = [seen.event_id for rows in cursors.values() for seen in rows]
        assert ("s2" in stored) is ids, stored


async def test_a_damaged_file_is_refused_on_entering_and_left_as_it_is(tmp_path: Any) -> None:
    path = tmp_path / "agent.db"
    path.write_bytes(b"this is no database, and somebody may want it" * 100)
    path.chmod(0o600)
    before = path.read_bytes()
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            guard = Guard(server.url, store=SQLiteStore(path))
            with pytest.raises(StoreDamaged):
                async with Connection(guard, plain_codec):
                    pass
            assert server.requests == []
    assert path.read_bytes() == before
    assert guard.state == "closed"


async def test_a_failed_claim_leaves_the_guard_usable(tmp_path: Any) -> None:
    class Once(MemoryStore):
        failed = False

        async def claim(self, key: str, *, origin: str, principal: str | None) -> Claim:
            if not self.failed:
                self.failed = True
                raise StoreWriteError("disk full")
            return await super().claim(key, origin=origin, principal=principal)

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp()) as server:
            guard = Guard(server.url, store=Once())
            with pytest.raises(StoreWriteError):
                async with Connection(guard, plain_codec):
                    pass
            async with Connection(guard, plain_codec):
                assert guard.state == "new"


async def test_leaving_with_a_full_disk_raises_nothing_and_reports_what_was_not_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Failing()
    async with plainly(Streams(events(answer())), store=store) as (_, host):
        assert await host.call() == Answer("done")
        store.full = True
    assert host.of(StoreFailed)
    assert "could not be given up" in caplog.text
