"""IDs and tokens: ours on the wire, the host's to the host; progress, cancellation, notifications."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from mcp_client_guard import CallSettled, Guard, Outcome, SessionLost, SQLiteStore, _connection
from mcp_client_guard._connection import Connection
from mcp_client_guard._messages import plain_codec
from mcp_client_guard.core.meta import CALL_KEY
from mcp_client_guard.core.report import NotificationLost, OrphanDropped
from mcp_client_guard.testing import (
    END_OF_CHUNKS,
    FakeServer,
    Handler,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    error,
    json_response,
    notification,
    progress_of,
    sse_event,
    sse_head,
    tool_result,
)

from .hosts import (
    STOPS_READING,
    Answer,
    PlainHost,
    Playing,
    Streams,
    answer,
    by_sdk,
    events,
    plain_answer,
    plainly,
    prime,
    progress,
    refuse,
    resumed_after,
    run_together,
    steps,
)

pytestmark = [pytest.mark.anyio, STOPS_READING]


@pytest.mark.parametrize("host_id", [0, 1, -7, 2**53, "0", "a", "", "é", 10**30])
async def test_wire_ids_are_ours_and_the_host_gets_its_own_back(host_id: Any) -> None:
    async with plainly(Streams(events(answer()))) as (server, host):
        got = await host.request("tools/call", {"name": "charge"}, id=host_id)
        assert type(got["id"]) is type(host_id)
        assert got["id"] == host_id
        wire_id = server.sent("POST", "tools/call")[0].rpc_id
        assert isinstance(wire_id, int)
        assert 0 < wire_id < 2**31, "some servers keep them in 32 bits"
        assert wire_id != host_id


@pytest.mark.parametrize("raw", ["sess-à".encode(), b"sess-\xe9", b"a\xa0b"])
async def test_a_session_id_is_sent_back_in_the_bytes_in_which_it_came(raw: bytes) -> None:
    async def initialize(request: Request, reply: Reply) -> None:
        opened = json_response(ScriptedMcp().initialized(request), session="SESSION")
        await reply.play(opened.replace(b"SESSION", raw))

    async with plainly(ScriptedMcp(initialize=initialize)) as (server, host):
        await host.call()
    named = [str(r.session_id).encode("latin-1") for r in server.requests if r.rpc_method != "initialize"]
    assert set(named) == {raw}


async def test_wire_ids_are_never_used_twice_in_a_session() -> None:
    async with plainly(Streams(events(answer()))) as (server, host):
        for _ in range(5):
            await host.request("tools/call", {"name": "charge"}, id="always the same")
            await host.request("ping")
        ids = [r.rpc_id for r in server.sent("POST") if r.rpc_id is not None]
        assert len(set(ids)) == len(ids) == 11


async def test_what_the_user_accepts_for_one_call_is_not_accepted_for_the_next() -> None:
    """Both ask the same under the same ID, for the server counts its requests per stream."""
    params = {"message": "Charge the card?", "requestedSchema": {"type": "object", "properties": {}}}
    question = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params}
    said: list[str] = []
    answered = anyio.Event()

    async def notify(request: Request, reply: Reply) -> None:
        await reply.status(202)
        if request.rpc_method is None:
            said.append(request.json["result"]["action"])
            answered.set()

    async def call(request: Request, reply: Reply) -> None:
        nonlocal answered
        answered = anyio.Event()
        await reply.open_sse()
        await reply.event(question)
        await answered.wait()
        await reply.event(tool_result(request.rpc_id, said[-1]))
        await reply.finish()

    async def charged(host: PlainHost, action: str) -> str:
        waiting = await host.post("tools/call", {"name": "charge"})
        await host.until(lambda: [m for m in host.messages if "method" in m and "id" in m])
        number = host.messages.pop()["id"]
        await host.write.send({"jsonrpc": "2.0", "id": number, "result": {"action": action}})
        return plain_answer((await host.until(lambda: host.answers_to(waiting)))[0]).text

    async with plainly(ScriptedMcp(call=call, notify=notify)) as (_, host):
        assert [await charged(host, action) for action in ("accept", "decline")] == ["accept", "decline"]
    assert said == ["accept", "decline"]


@pytest.mark.parametrize("token", [0, 1, "t", "", 2**60])
async def test_progress_tokens_are_mapped_both_ways(token: Any) -> None:
    async with plainly(Streams(events(progress(1), answer()))) as (server, host):
        await host.request("tools/call", {"name": "charge", "_meta": {"progressToken": token, "mine": 1}})
        call = server.sent("POST", "tools/call")[0]
        meta = call.json["params"]["_meta"]
        assert meta["progressToken"] == call.rpc_id
        assert meta["mine"] == 1
        told = [m for m in host.messages if m.get("method") == "notifications/progress"]
        assert [m["params"]["progressToken"] for m in told] == [token]


async def test_a_call_carries_its_key_and_a_request_of_another_kind_does_not() -> None:
    async with plainly(Streams(events(answer()))) as (server, host):
        await host.request("tools/call", {"name": "charge", "arguments": {"a": 1}})
        await host.request("tools/list")
        call, listing = server.sent("POST", "tools/call")[0], server.sent("POST", "tools/list")[0]
        assert call.json["params"]["arguments"] == {"a": 1}
        key = call.json["params"]["_meta"][CALL_KEY]
        assert key in [e.call_key for e in host.of(CallSettled)]
        assert "params" not in listing.json


async def test_progress_of_another_call_reaches_that_call_and_of_none_nobody(playing: Playing) -> None:
    async def first(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        await reply.event(progress_of(call, 1))
        token = call.json["params"]["_meta"]["progressToken"]
        for foreign in (token + 1000, 0, 1, "1", "x", None, True):
            await reply.event(notification("notifications/progress", progressToken=foreign, progress=9))
        await reply.event(tool_result(call.rpc_id, "done"))
        await reply.finish()

    async with playing(Streams(first)) as (_, host):
        assert await host.call() == Answer("done")
        await host.saw(1)
        assert len(host.of(OrphanDropped)) == 7


async def test_progress_after_the_answer_reaches_nobody(playing: Playing) -> None:
    mcp = Streams(events(progress(1), answer(), progress(2)))
    async with playing(mcp) as (_, host):
        assert await host.call() == Answer("done")
        assert await host.call() == Answer("done")
        await host.saw(1, 1)


# --- cancelling -------------------------------------------------------------------------------------------


async def test_a_cancellation_names_the_wire_id_and_a_late_answer_reaches_nobody() -> None:
    cancelled = anyio.Event()

    async def first(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        await cancelled.wait()
        await reply.event(tool_result(call.rpc_id, "too late"))
        await reply.finish()

    async with plainly(Streams(first)) as (server, host):
        id = await host.post("tools/call", {"name": "charge"})
        call = await server.wait_for(lambda r: r.rpc_method == "tools/call")
        await host.notify("notifications/cancelled", requestId=id, reason="enough")
        told = await server.wait_for(lambda r: r.rpc_method == "notifications/cancelled")
        assert told.json["params"] == {"requestId": call.rpc_id, "reason": "enough"}
        assert told.session_id == "session-A"
        cancelled.set()
        await host.until(lambda: Outcome.RECOVERED in [e.outcome for e in host.of(CallSettled)])
        assert host.answers_to(id) == []


async def test_a_cancellation_of_what_is_unknown_or_answered_is_kept_from_the_server() -> None:
    async with plainly(Streams(events(answer()))) as (server, host):
        id = await host.post("tools/call", {"name": "charge"})
        await host.until(lambda: host.answers_to(id))
        for unknown in (id, "never", 4, None):
            await host.notify("notifications/cancelled", requestId=unknown)
        await host.request("ping")
        assert server.sent("POST", "notifications/cancelled") == []


async def test_a_cancelled_call_is_not_resumed_any_more(waits: list[float]) -> None:
    """Whether the cut comes before the cancellation or after it."""
    cut = anyio.Event()

    async def first(call: Request, reply: Reply) -> None:
        await events(prime("p0", 1), progress(1, "e1"), lambda call: cut, end=How.RST)(call, reply)

    async with plainly(Streams(first)) as (server, host):
        id = await host.post("tools/call", {"name": "charge", "_meta": {"progressToken": 1}})
        await host.until(lambda: host.progress)
        await host.notify("notifications/cancelled", requestId=id)
        cut.set()
        await server.wait_for(lambda r: r.rpc_method == "notifications/cancelled")
        await host.request("ping")
        assert resumed_after(server) == []


async def test_a_call_cancelled_before_it_was_sent_is_never_sent() -> None:
    async with plainly(Streams(events(answer()))) as (server, host):
        await host.call()  # which does not go out before `initialized` was taken
        server.refuse()
        server.drop_all()
        id = await host.post("tools/call", {"name": "charge"})
        await anyio.wait_all_tasks_blocked()
        await host.notify("notifications/cancelled", requestId=id)
        await host.until(lambda: Outcome.CANCELLED in [e.outcome for e in host.of(CallSettled)])
        server.listen_again()
        await host.request("ping")
        assert len(server.sent("POST", "tools/call")) == 1
        assert server.sent("POST", "notifications/cancelled") == []


async def test_a_host_that_gives_up_gets_on_with_its_next_call(playing: Playing) -> None:
    mcp = Streams(steps(How.STALL))
    async with playing(mcp) as (server, host), anyio.create_task_group() as tasks:
        tasks.start_soon(host.call)
        await server.wait_for(lambda r: r.rpc_method == "tools/call")
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            mcp.first = events(answer())
            assert await host.call(n=2) == Answer("done")


# --- notifications ------------------------------------------------------------------------------------------


async def slow_but_initialized(request: Request, reply: Reply) -> None:
    if request.rpc_method != "notifications/initialized":
        await reply.end(How.STALL)
    await reply.status(202)


async def test_a_slow_answer_to_a_notification_holds_up_nothing() -> None:
    async with plainly(Streams(events(answer()), notify=slow_but_initialized)) as (server, host):
        for _ in range(3):
            await host.notify("notifications/roots/list_changed")
        assert await host.call() == Answer("done")
        assert await run_together(*[host.call] * 5) == [Answer("done")] * 5
        await server.until(lambda: len(server.sent("POST", "notifications/roots/list_changed")) == 3)


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_any_2xx_takes_a_notification(status: int) -> None:
    async with plainly(Streams(events(answer()), notify=refuse(status))) as (_, host):
        await host.notify("notifications/roots/list_changed")
        assert await host.call() == Answer("done")
        assert host.of(NotificationLost) == []


@pytest.mark.parametrize("status", [400, 401, 405, 500, 503])
async def test_a_refused_notification_is_reported_and_costs_no_call(status: int) -> None:
    async with plainly(Streams(events(answer()), notify=refuse(status))) as (_, host):
        assert await host.call() == Answer("done")
        lost = await host.until(lambda: host.of(NotificationLost))
        assert lost[0].method == "notifications/initialized"


async def test_a_notification_answered_by_a_stream_is_let_go() -> None:
    """Some servers answer everything by SSE; its messages belong to nobody and its end is no cut."""
    mcp = Streams(events(answer()), notify=events(end=How.STALL))
    async with plainly(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert host.of(NotificationLost) == []
        assert server.sent("POST", "notifications/initialized")


@pytest.mark.parametrize("how", [How.RST, How.FIN])
async def test_a_notification_that_is_reset_is_reported_and_not_sent_twice(how: How) -> None:
    async with plainly(Streams(events(answer()), notify=steps(how))) as (server, host):
        assert await host.call() == Answer("done")
        await host.notify("notifications/roots/list_changed")
        await host.until(
            lambda: "notifications/roots/list_changed" in [n.method for n in host.of(NotificationLost)]
        )
        assert len(server.sent("POST", "notifications/roots/list_changed")) == 1


class Strict(Streams):
    """Refuses requests until it was told `notifications/initialized`, as the Python SDK's server does."""

    def __init__(self, *fails: Handler) -> None:
        super().__init__(events(answer()), notify=self.told)
        self.fails = list(fails)
        self.knows: set[str | None] = set()
        self.gone: set[str | None] = set()

    async def told(self, request: Request, reply: Reply) -> None:
        if self.fails:
            await self.fails.pop(0)(request, reply)
            return
        self.knows.add(request.session_id)
        await reply.status(202)

    async def call(self, request: Request, reply: Reply) -> None:
        if request.session_id in self.gone:
            await reply.status(404)
        elif request.session_id not in self.knows:
            await reply.json(error(request.rpc_id, -32602, "Invalid request parameters"))
        else:
            await super().call(request, reply)


@pytest.mark.parametrize("fails", [steps(How.RST), steps(How.FIN), refuse(502), refuse(503)])
async def test_a_strict_server_is_told_again_that_the_host_is_initialized(
    playing: Playing, fails: Handler
) -> None:
    mcp = Strict(fails)
    async with playing(mcp) as (server, host):
        await server.wait_for(lambda r: r.rpc_method == "notifications/initialized", count=2)
        assert await host.call(n=1) == Answer("done")
        mcp.gone.add(mcp.session)
        mcp.session, mcp.fails = "session-B", [fails]
        await host.call(n=2)
        await server.wait_for(lambda r: r.rpc_method == "notifications/initialized", count=4)
        assert await host.call(n=3) == Answer("done"), "the guard's own is told again, too"
        assert host.of(NotificationLost) == []


async def test_a_notification_whose_connection_is_refused_goes_out_later() -> None:
    async with plainly(Streams(events(answer()))) as (server, host):
        assert await host.call() == Answer("done")
        server.refuse()
        server.drop_all()
        await host.notify("notifications/roots/list_changed")
        await anyio.wait_all_tasks_blocked()
        server.listen_again()
        await server.wait_for(lambda r: r.rpc_method == "notifications/roots/list_changed")
        assert host.of(NotificationLost) == []


async def test_a_404_to_a_notification_costs_no_session_that_answers_a_ping() -> None:
    """Servers say so, too, of what they do not know, or of a cancel that comes too late."""

    async def notify(request: Request, reply: Reply) -> None:
        await reply.status(202 if request.rpc_method == "notifications/initialized" else 404)

    mcp = Streams(events(answer()), notify=notify)
    async with plainly(mcp) as (server, host):
        await host.notify("notifications/roots/list_changed")
        lost = await host.until(lambda: host.of(NotificationLost))
        assert lost == [NotificationLost("notifications/roots/list_changed", "HTTP 404")]
        assert await host.call() == Answer("done")
        await server.until(lambda: server.sent("POST", "ping"))
        assert len(server.sent("POST", "initialize")) == 1
        assert len(server.sent("POST", "notifications/roots/list_changed")) == 1, "it is lost, and reported"
        assert host.of(SessionLost) == []
    assert mcp.executed == ["charge"]


async def test_headers_of_the_session_go_with_everything_after_initialize() -> None:
    async with plainly(ScriptedMcp()) as (server, host):
        assert plain_answer(await host.request("tools/call", {"name": "charge"})).text == "charge"
    first, *rest = server.requests
    assert (first.rpc_method, first.session_id, first.header("mcp-protocol-version")) == ("initialize", None, None)
    assert {(r.session_id, r.header("mcp-protocol-version")) for r in rest} == {("session-A", "2025-11-25")}
    assert isinstance(server, FakeServer)


def test_no_connection_has_the_name_of_an_earlier_one() -> None:
    """Python gives a new object the address, and with it the `id()`, of one that is gone."""
    guard = Guard("http://127.0.0.1:1/mcp")
    names = {Connection(guard, plain_codec)._number for _ in range(100)}
    assert len(names) == 100


@pytest.mark.parametrize("status", [401, 403, 404, 413])
async def test_a_call_does_not_wait_for_the_pong_that_its_stream_has_asked_for(status: int) -> None:
    """The stream stands, and the answer comes when the server has refused the SDK's answer to its ping."""

    async def notify(request: Request, reply: Reply) -> None:
        await reply.status(202 if request.rpc_method else status)

    async def call(request: Request, reply: Reply) -> None:
        await reply.play(sse_head(), chunk(sse_event({"jsonrpc": "2.0", "id": 9, "method": "ping"})))
        await host.until(lambda: host.of(NotificationLost))
        await reply.play(chunk(sse_event(tool_result(request.rpc_id, "done"))), END_OF_CHUNKS)

    async with by_sdk(ScriptedMcp(call=call, notify=notify)) as (_, host):
        assert await host.call() == Answer("done")
        assert [told.outcome for told in host.of(CallSettled) if told.tool] == [Outcome.COMPLETED]


async def test_a_connection_begins_at_a_random_place_for_a_store_may_be_restored_from_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the same number again, and so the same block, to a session that lives on."""

    async def first_id(store: Path, place: int) -> int:
        monkeypatch.setattr(_connection, "secrets", SimpleNamespace(randbelow=lambda below: place % below))
        async with plainly(ScriptedMcp(), store=SQLiteStore(store), key="orders") as (server, _):
            (first,) = [r.rpc_id for r in server.requests if r.rpc_method == "initialize"]
        return int(first)

    store, backup = tmp_path / "agent.db", tmp_path / "backup.db"
    await first_id(store, 5)
    shutil.copy(store, backup)
    assert await first_id(backup, 4000) - await first_id(store, 17) == 4000 - 17
