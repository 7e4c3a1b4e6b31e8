"""The kit's honest server, as any client meets it: every answer to a cursor is explicit, and true."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import httpx
import pytest

from mcp_client_guard.testing import (
    Event,
    EventLogServer,
    FakeServer,
    Lie,
    Reason,
    Reply,
    Request,
    SessionStore,
    events_of,
)

from .hosts import LIMIT, STOPS_READING, plain_host
from .raw_client import ACCEPT, Client, call, legacy

pytestmark = [pytest.mark.anyio, STOPS_READING]


@asynccontextmanager
async def talking(server: EventLogServer | None = None) -> AsyncIterator[tuple[EventLogServer, Client]]:
    with anyio.fail_after(LIMIT):
        async with server or EventLogServer() as serving, httpx.AsyncClient(timeout=LIMIT) as http:
            yield serving, await Client(http, serving.url).initialize()


def ids(events: list[Event]) -> list[str]:
    return [event.event_id for event in events if event.event_id is not None]


def said(events: list[Event]) -> list[Any]:
    """The JSON of the `resumed` events."""
    return [event.message for event in events if event.name == "resumed"]


def results(events: list[Event]) -> list[str]:
    messages = [event.message for event in events if event.name != "resumed"]
    return [m["result"]["content"][0]["text"] for m in messages if m and "result" in m]


# A resume that is honoured.


async def test_a_call_that_was_cut_runs_once_and_its_stream_is_resumed() -> None:
    async with talking() as (server, client):
        before = await client.call("charge", cents=5, steps=4, cut_after=2)
        after = await client.replay(ids(before)[-2])
        assert said(after) == [{"resumed": True}]
        assert ids(after)[0] == ids(before)[-1]
        assert len(ids(after)) == 4  # progress 2, 3 and 4, and the result
        assert results(after) == ["charged 5 cents"]
        assert [e.tool for e in server.ledger] == ["charge"]
        assert server.drain_races == server.refused == []


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("cut_after", [0, 0.5, 1, 1.5, 2, 2.5])
async def test_a_cut_at_any_place_leaves_a_log_from_which_all_comes_again(cut_after: float, how: str) -> None:
    async with talking() as (server, client):
        before = await client.call("charge", steps=2, cut_after=cut_after, cut_how=how)
        assert len(before) == 1 + int(cut_after)
        after = await client.replay(ids(before)[0])
        assert len(ids(after)) == 3
        assert results(after) == ["charged 0 cents"]
        assert len(server.ledger) == 1


async def test_a_tool_that_takes_long_is_cut_off_at_once_and_its_answer_follows_the_resume() -> None:
    async with talking() as (_, client):
        before = await client.call("slow", seconds=0.05, cut_after=0)
        assert len(before) == 1
        assert results(await client.replay(ids(before)[0])) == ["done"]


async def test_seed_000_tell_the_drain_race_is_noticed_and_the_event_comes_again() -> None:
    async with talking() as (server, client):
        before = await client.call("charge", steps=1, cut_after=2)
        assert results(before) == ["charged 0 cents"]
        after = await client.replay(ids(before)[-1])
        assert ids(after) == ids(before)[-1:]
        assert results(after) == ["charged 0 cents"]
        assert server.drain_races == ids(before)[-1:]


async def test_the_drain_race_may_be_refused_and_is_noticed_all_the_same() -> None:
    async with talking(EventLogServer(store=SessionStore(refuse_drain_race=True))) as (server, client):
        before = await client.call("charge", steps=1, cut_after=2)
        assert await client.refusal(ids(before)[-1]) == "drain_race"
        assert server.drain_races == ids(before)[-1:]


async def test_a_resumed_connection_takes_its_stream_over_from_the_one_before() -> None:
    async with talking() as (_, client):
        async with client.get() as first:
            (primed,) = await first.next()
            async with client.get(primed.event_id) as second:
                assert second.status == 200
                assert await first.rest() == []


# A resume that is refused.


async def test_a_trimmed_cursor_is_refused() -> None:
    async with talking(EventLogServer(store=SessionStore(retained=4))) as (server, client):
        before = await client.call("charge", steps=8, cut_after=2)
        assert await client.refusal(ids(before)[-1]) == "trimmed"
        assert [r.reason for r in server.refused] == [Reason.TRIMMED]


async def test_a_quiet_standalone_stream_can_be_resumed_however_much_a_call_has_to_say() -> None:
    async with talking(EventLogServer(store=SessionStore(retained=4))) as (server, client):
        async with client.get() as stream:
            await client.call("announce", n=2)
            (_, before, last) = ids(await stream.next(3))
        await client.call("progress", n=20)
        async with client.get(before) as stream:
            assert ids(await stream.next(2)) == [last]  # behind `resumed`
        assert server.refused == []


async def test_a_refused_upgrade_is_among_the_refused_and_one_in_a_drain_race_is_noticed() -> None:
    async with talking() as (server, client), client.get() as stream:
        await client.call("announce", n=1)
        (_, last) = ids(await stream.next(2))
        for position, status in (("e-1042", 409), (last, 200)):
            body = {"positions": {"standalone": position}}
            answer = await client.http.post(f"{client.url}/upgrade", json=body, headers=client.session)
            assert answer.status_code == status
        await server.http.until(lambda: server.refused)
        assert [(r.reason, r.event_id) for r in server.refused] == [(Reason.NEVER_ISSUED, "e-1042")]
        assert server.drain_races == [last]


async def test_a_cursor_of_another_session_is_refused() -> None:
    async with talking() as (_, client):
        foreign = ids(await client.call("charge"))[0]
        await client.initialize()
        assert await client.refusal(foreign) == "session"


async def test_a_cursor_that_was_never_issued_is_refused() -> None:
    async with talking() as (_, client):
        assert await client.refusal("e-1042") == "never_issued"


async def test_a_cursor_of_an_older_standalone_stream_is_superseded_and_that_stream_ends() -> None:
    async with talking() as (_, client):
        async with client.get() as first:
            (old,) = await first.next()
            async with client.get() as second:
                (new,) = await second.next()
                assert await first.rest() == []
                assert await client.refusal(str(old.event_id)) == "superseded"
                assert new.event_id != old.event_id


async def test_seed_004_answer_b_a_refusal_may_be_a_new_stream_that_says_so() -> None:
    """Accepted as a new stream, with a control event that says `resumed: false`."""
    async with talking(EventLogServer(refuse_by_status=False)) as (server, client):
        async with client.get("e-1042") as answer:
            assert (answer.status, answer.headers["mcp-resumed"]) == (200, "false")
            assert said(await answer.next()) == [{"resumed": False, "reason": "never_issued"}]
        assert [r.reason for r in server.refused] == [Reason.NEVER_ISSUED]


async def test_a_refusal_that_is_a_new_stream_leaves_the_standalone_stream_alone() -> None:
    async with talking(EventLogServer(refuse_by_status=False)) as (_, client), client.get() as standalone:
        (first,) = await standalone.next()
        async with client.get("e-1042") as answer:
            told, own = await answer.next(2)
            assert said([told]) == [{"resumed": False, "reason": "never_issued"}]
            assert (own.message, own.event_id != first.event_id) == (None, True)
            await client.call("announce", n=2)
            assert [e.message["method"] for e in await standalone.next(2)] == ["notifications/message"] * 2
        async with client.get(own.event_id) as answer:
            assert answer.headers["mcp-resumed"] == "true"


async def test_a_refusal_that_is_a_new_stream_is_the_standalone_stream_where_there_is_none() -> None:
    async with talking(EventLogServer(refuse_by_status=False)) as (server, client):
        async with client.get():
            pass
        await server.http.until(lambda: server.http.open_connections < 2)
        async with client.get("e-1042") as answer:
            await answer.next(2)
            await client.call("announce", n=2)
            assert [e.message["method"] for e in await answer.next(2)] == ["notifications/message"] * 2


async def test_seed_004_second_case_a_cursor_on_a_post_is_refused_and_nothing_is_executed() -> None:
    """The body's intent is not dropped silently."""
    async with talking() as (server, client):
        cursor = ids(await client.call("progress"))[0]
        answer = await client.post("tools/call", {"name": "charge"}, last_event_id=cursor)
        assert answer.status_code == 400
        assert answer.json()["error"]["data"] == {"code": "cursor_on_post"}
        assert [e.tool for e in server.ledger] == ["progress"]
        assert server.cursors_on_posts == [cursor]


async def test_seed_004_second_case_a_liar_takes_the_cursor_for_a_resume_and_drops_the_body() -> None:
    async with talking(EventLogServer(lie=Lie.CURSOR_ON_POST)) as (server, client):
        cursor = ids(await client.call("progress"))[0]
        answer = await client.post("tools/call", {"name": "charge"}, last_event_id=cursor)
        assert answer.status_code == 200
        assert results(list(events_of(answer.content))) == ["3 steps"]
        assert [e.tool for e in server.ledger] == ["progress"]
        assert server.cursors_on_posts == [cursor]


async def test_seed_004_second_case_a_cursor_on_the_first_post_of_a_session_opens_none() -> None:
    async with talking() as (server, client):
        client.session = {}
        opened = len(server.store.sessions)
        answer = await client.post("initialize", {"protocolVersion": "2025-11-25"}, last_event_id="e-104")
        assert answer.status_code == 400
        assert answer.json()["error"]["data"] == {"code": "cursor_on_post"}
        assert len(server.store.sessions) == opened
        assert server.cursors_on_posts == ["e-104"]


@pytest.mark.parametrize("migrated", [False, True])
async def test_a_cursor_on_a_post_is_refused_wherever_it_is_sent(migrated: bool) -> None:
    """Also in a session of the other generation, in one that has ended, and with the wish for an upgrade."""
    async with talking() as (server, client), legacy(server, client.http) as (_, messages), client.get():
        server.migrated = migrated
        for url, session in (
            (messages, {}),
            (server.url, {"mcp-session-id": "gone"}),
            (server.sse_url, client.session),
            (f"{server.url}/upgrade", client.session),
        ):
            headers = {**ACCEPT, **session, "last-event-id": "http:0/get-1/7"}
            answer = await client.http.post(url, json=call(1, "charge"), headers=headers)
            assert (answer.status_code, answer.json()["error"]["data"]) == (400, {"code": "cursor_on_post"})
        assert server.cursors_on_posts == ["http:0/get-1/7"] * 4
        assert (await client.post("ping")).status_code == 200
        assert server.ledger == []


@pytest.mark.parametrize(
    ("cursor", "reason"),
    [
        ("http:0/get-1/7", Reason.SESSION),
        ("sse:0/sse-1/7", Reason.GENERATION),
        ("e-1042", Reason.NEVER_ISSUED),
    ],
)
async def test_a_cursor_without_a_session_that_is_known_is_among_the_refused(cursor: str, reason: Reason) -> None:
    async with talking() as (server, client):
        for session, status in (({"mcp-session-id": "gone"}, 404), ({}, 400)):
            client.session = session
            async with client.get(cursor) as answer:
                assert answer.status == status
        body = {"positions": {"standalone": cursor}}
        gone = {"mcp-session-id": "gone"}
        assert (await client.http.post(f"{client.url}/upgrade", json=body, headers=gone)).status_code == 404
        await server.http.until(lambda: len(server.refused) == 3)
        assert {(r.reason, r.event_id) for r in server.refused} == {(reason, cursor)}


async def test_a_position_for_a_stream_that_is_not_open_is_among_the_refused() -> None:
    async with talking() as (server, client):
        cursor = ids(await client.call("progress"))[0]
        body = {"positions": {"standalone": cursor}}
        answer = await client.http.post(f"{client.url}/upgrade", json=body, headers=client.session)
        assert answer.status_code == 400
        await server.http.until(lambda: server.refused)
        assert [(r.reason, r.event_id) for r in server.refused] == [(Reason.STREAM, cursor)]


async def test_an_unknown_session_draws_404_and_none_at_all_400() -> None:
    async with talking() as (_, client):
        assert (await client.http.delete(client.url, headers=client.session)).status_code == 200
        assert (await client.post("ping")).status_code == 404
        async with client.get("http:0/get-1/1") as answer:
            assert answer.status == 404
        client.session = {}
        assert (await client.post("ping")).status_code == 400


async def test_deleting_a_session_ends_its_streams() -> None:
    async with talking() as (_, client):
        async with client.get() as stream:
            await stream.next()
            await client.http.delete(client.url, headers=client.session)
            assert await stream.rest() == []


# Mistakes of the client's.


@pytest.mark.parametrize("json_answers", [False, True])
@pytest.mark.parametrize(
    "params",
    [{}, {"name": 7}, {"name": "charge", "arguments": [1]}, {"name": "charge", "arguments": {}, "_meta": [1]}],
)
async def test_a_call_that_is_malformed_is_an_error_and_nothing_runs(params: Any, json_answers: bool) -> None:
    async with talking(EventLogServer(json_answers=json_answers)) as (server, client):
        answer = await client.post("tools/call", params)
        messages = [answer.json()] if json_answers else [e.message for e in events_of(answer.content)]
        assert messages[-1]["error"]["code"] == -32602
        assert server.ledger == []


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("charge", {"cents": "10"}),
        ("charge", {"steps": "three"}),
        ("charge", {"steps": None}),
        ("charge", {"steps": True}),
        ("charge", {"cut_after": "soon"}),
        ("charge", {"cut_after": 1, "cut_how": "reset"}),
        ("charge", {"cut_after": 1, "cut_how": ["rst"]}),
        ("progress", {"n": 1e400}),
        ("progress", {"delay": -1}),
        ("announce", {"n": 10**400}),
        ("slow", {"seconds": float("nan")}),
    ],
)
async def test_arguments_that_do_not_fit_are_a_result_that_says_so_and_nothing_runs(
    tool: str, arguments: dict[str, Any]
) -> None:
    async with talking(EventLogServer(json_answers=True)) as (server, client):
        params = {"name": tool, "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
        answer = await client.http.post(client.url, content=body, headers={**ACCEPT, **client.session})
        result = answer.json()["result"]
        assert result["isError"] is True
        assert result["content"][0]["text"].partition(" is ")[0] in arguments
        assert server.ledger == []


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{nope",
        "[" * 100_000,
        "7",
        '[{"jsonrpc": "2.0", "id": 2, "method": "ping"}]',
        '{"jsonrpc": "2.0", "id": null, "method": "ping"}',
        '{"jsonrpc": "2.0", "id": 2, "method": 5}',
        '{"jsonrpc": "2.0", "id": 2, "method": "ping", "params": [1]}',
        '{"jsonrpc": "2.0", "id": {}, "method": "ping"}',
    ],
    ids=lambda body: body[:60],
)
async def test_what_is_not_one_message_draws_400_in_both_generations(body: str) -> None:
    async with talking() as (server, client), legacy(server, client.http) as (_, url):
        for endpoint in (client.url, url):
            answer = await client.http.post(endpoint, content=body, headers={**ACCEPT, **client.session})
            assert answer.status_code == 400
        assert (await client.post("ping")).status_code == 200, "it lives"


async def test_notifications_and_answers_draw_202_and_no_initialize_without_an_id_opens_a_session() -> None:
    async with talking() as (server, client):
        for body in (
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}},
            {"jsonrpc": "2.0", "method": "initialize"},
        ):
            answer = await client.http.post(client.url, json=body, headers={**ACCEPT, **client.session})
            assert answer.status_code == 202
        assert len(server.store.sessions) == 1


# Answers by JSON.


async def test_an_answer_by_json_is_not_in_the_log() -> None:
    async with talking() as (server, client):
        before = await client.call("charge", steps=1, cut_after=1)
        server.json_answers = True
        answer = await client.post("tools/call", {"name": "progress", "arguments": {"n": 2}})
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["result"]["content"][0]["text"] == "2 steps"
        assert results(await client.replay(ids(before)[0])) == ["charged 0 cents"]


# Replicas.


async def test_replicas_that_share_a_store_bind_a_session_to_one_log() -> None:
    """Every resume comes to a replica that did not execute the call, and is proven: the log is the session's."""
    store = SessionStore()
    one, two = EventLogServer(store=store), EventLogServer(store=store)

    async def balance(request: Request, reply: Reply) -> None:
        await (two if request.method == "GET" else one).answer(request, reply)

    with anyio.fail_after(LIMIT):
        async with one, two, FakeServer(balance) as balancer, plain_host(balancer.url) as host:
            for steps in range(2, 6):
                got = await host.call("charge", steps=steps, cents=steps, cut_after=2)
                assert got.text == f"charged {steps} cents"
            assert host.grades == ["proven"] * 4
            assert [e.arguments["cents"] for e in one.ledger] == [2, 3, 4, 5]
            assert two.ledger == []


# The legacy transport, on the same server.


async def test_the_legacy_stream_carries_the_answers_under_ids_of_its_own_generation() -> None:
    async with talking() as (server, client), legacy(server, client.http) as (reading, url):
        assert (await client.http.post(url, json=call(1, "charge", steps=1))).status_code == 202
        events = await reading.next(2)
        assert results(events) == ["charged 0 cents"]
        assert all(event_id.startswith("sse:") for event_id in ids(events))


async def test_the_legacy_session_ends_with_its_stream() -> None:
    async with talking() as (server, client):
        async with legacy(server, client.http) as (reading, url):
            await client.http.post(url, json=call(1, "charge", steps=3, cut_after=2))
            assert len(await reading.rest()) == 2
        assert (await client.http.post(url, json=call(2, "charge"))).status_code == 404
        assert len(server.ledger) == 1


async def test_seed_000_condition_a_legacy_session_and_its_cursor_are_refused_at_the_streamable_endpoint() -> None:
    """IDs partitioned by transport, and a bridged session has to initialize again."""
    async with talking() as (server, client):
        async with legacy(server, client.http) as (reading, url):
            await client.http.post(url, json=call(1, "charge"))
            cursor = str((await reading.next())[0].event_id)
            bridged = {**ACCEPT, "mcp-session-id": url.partition("session_id=")[2], "last-event-id": cursor}
            assert (await client.http.get(server.url, headers=bridged)).status_code == 404
            assert await client.refusal(cursor) == "generation"
        assert [r.reason for r in server.refused] == [Reason.GENERATION, Reason.GENERATION]


@pytest.mark.parametrize(("cursor", "reason"), [("sse:0/sse-1/4", "session"), ("http:0/get-1/4", "generation")])
async def test_a_cursor_on_a_new_legacy_stream_is_said_not_to_be_resumed(cursor: str, reason: str) -> None:
    async with talking() as (server, client):
        async with legacy(server, client.http, **{"last-event-id": cursor}) as (reading, _):
            assert reading.headers["mcp-resumed"] == "false"
            assert said(await reading.next()) == [{"resumed": False, "reason": reason}]
        assert [(r.reason.name.lower(), r.event_id) for r in server.refused] == [(reason, cursor)]


async def test_seed_000_observations_1_to_3_a_bridged_session_loses_the_answer_at_its_cursor() -> None:
    """The liar accepts session and cursor, and goes on behind the answer."""
    async with talking(EventLogServer(lie=Lie.SHARED_ALLOCATOR)) as (server, client):
        async with legacy(server, client.http) as (reading, url):
            await client.http.post(url, json=call(1, "charge"))
            (cursor,) = await reading.next()
            assert results([cursor]) == ["charged 0 cents"]
        session = url.partition("session_id=")[2]
        moved = Client(client.http, server.url)
        moved.session = {"mcp-session-id": session}
        async with moved.get(cursor.event_id) as stream:
            assert stream.status == 200
            server.store.sessions[session].append("sse-1", {"jsonrpc": "2.0", "method": "later"})
            events = await stream.next(2)
            assert results(events) == []
            assert [m.message for m in events if m.event_id] == [{"jsonrpc": "2.0", "method": "later"}]


# In a process of its own.


def test_it_runs_in_a_process_of_its_own_and_tells_what_it_executed() -> None:
    command = [sys.executable, "-m", "mcp_client_guard.testing", "--lie", "forked-counter", "--retained", "50"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert sorted(told) == ["ledger_url", "sse_url", "url"]
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        with httpx.Client(headers=ACCEPT, timeout=LIMIT) as http:
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            session = {"mcp-session-id": http.post(told["url"], json=body).headers["mcp-session-id"]}
            http.post(told["url"], json=call(2, "charge", cents=7), headers=session)
            assert http.get(told["url"], headers={**session, "last-event-id": "e-1"}).status_code == 409
            ledger = http.get(told["ledger_url"]).json()
        assert ledger["executed"] == [{"tool": "charge", "arguments": {"cents": 7}}]
        assert ledger["refused"] == [{"reason": "never_issued", "cursor": "e-1"}]
        process.stdin.close()
        assert process.wait(LIMIT) == 0


def test_an_interrupt_ends_it_at_once_without_a_word() -> None:
    # A child of what runs in the background, or under nohup, is born without ears for this signal.
    program = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "runpy.run_module('mcp_client_guard.testing', run_name='__main__', alter_sys=True)"
    )
    with started(program) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = json.loads(process.stdout.readline())["ledger_url"]
        assert httpx.get(url, timeout=LIMIT).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
        assert process.stderr.read() == b""


def test_standard_input_holds_up_no_process_that_ends_before() -> None:
    program = """
import anyio
from mcp_client_guard.testing.standard_input import input_ended

async def serve():
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(input_ended)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

anyio.run(serve)
"""
    with started(program) as process:
        assert process.wait(LIMIT) == 0


@contextmanager
def started(program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose standard input stays open."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_lie_may_be_given_by_its_word_and_what_is_none_is_refused() -> None:
    word: Any = "empty-replay"
    async with EventLogServer(lie=word) as server:
        assert server.lie is Lie.EMPTY_REPLAY
    word = "no-such-lie"
    with pytest.raises(ValueError, match=word):
        EventLogServer(lie=word)


async def test_head_is_answered_without_a_body() -> None:
    """A client would read that as its next answer on the connection."""
    async with talking() as (server, client):
        for url in (server.url, server.sse_url, f"{server.url}/upgrade"):
            answer = await client.http.head(url)
            assert answer.status_code in (400, 405, 501)
            connections = server.http.connections
            assert (await client.http.get(server.url)).status_code == 400
            assert server.http.connections == connections, "the same connection goes on"


@asynccontextmanager
async def asking_for_a_socket(
    client: Client, port: int, ticket: str, without: str = ""
) -> AsyncIterator[tuple[bytes, Any]]:
    """The status line that this ticket draws, and the connection."""
    fields = {
        "host": "x",
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "sec-websocket-protocol": "mcp-upgrade.v1",
        "mcp-upgrade-ticket": ticket,
        **client.session,
    }
    lines = ["GET /mcp/upgrade HTTP/1.1", *(f"{n}: {value}" for n, value in fields.items() if n != without)]
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send("\r\n".join([*lines, "", ""]).encode())
        yield (await stream.receive()).partition(b"\r\n")[0], stream


async def handshake(client: Client, port: int, ticket: str) -> bytes:
    async with asking_for_a_socket(client, port, ticket) as (status, _):
        return status


async def ticket_of(client: Client, position: str | None) -> str:
    body = {"positions": {"standalone": position}}
    answer = await client.http.post(f"{client.url}/upgrade", json=body, headers=client.session)
    return str(answer.json()["ticket"])


async def announced(client: Client) -> list[Any]:
    """An event for the socket, then the answer: that the server lives."""
    await client.call("announce", n=1)
    return await client.call("echo", text="still here")


@pytest.mark.parametrize("lacks", ["upgrade", "connection", "sec-websocket-key", "sec-websocket-version"])
async def test_a_handshake_that_is_none_is_refused_and_costs_no_ticket(lacks: str) -> None:
    """A proxy that knows no upgrades leaves them out: the session stays on SSE."""
    async with talking() as (server, client), client.get() as standalone:
        (priming,) = await standalone.next()
        ticket, port = await ticket_of(client, priming.event_id), server.http.port
        async with asking_for_a_socket(client, port, ticket, without=lacks) as (status, _):
            assert status.split()[1] in (b"400", b"426")
        assert await announced(client)
        assert len(await standalone.next()) == 1
        assert await handshake(client, port, ticket) == b"HTTP/1.1 101 Switching Protocols"


BAD_FRAMES = {
    "unmasked": b"\x81\x02hi",
    "a reserved bit": b"\xf1\x80\0\0\0\0",
    "an unknown opcode": b"\x8b\x80\0\0\0\0",
    "a stray continuation": b"\x80\x80\0\0\0\0",
    "close code 999": b"\x88\x82\0\0\0\0\x03\xe7",
    "a close of one byte": b"\x88\x81\0\0\0\0\x03",
    "a close reason that is no UTF-8": b"\x88\x83\0\0\0\0\x03\xe8\xff",
    "a long ping": b"\x89\xfe\0\xc8\0\0\0\0" + b"x" * 200,
    "a frame of four gigabytes": b"\x81\xff\0\0\0\1\0\0\0\0\0\0\0\0",
}


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES)
async def test_a_bad_frame_costs_the_client_its_socket_and_the_server_nothing(frame: bytes) -> None:
    async with talking() as (server, client), client.get() as standalone:
        (priming,) = await standalone.next()
        ticket = await ticket_of(client, priming.event_id)
        async with asking_for_a_socket(client, server.http.port, ticket) as (_, stream):
            await stream.send(frame)
            with pytest.raises(anyio.EndOfStream):
                while await stream.receive():
                    pass
            assert await announced(client)


async def test_a_ticket_for_an_upgrade_expires_within_a_minute() -> None:
    async with talking() as (server, client), client.get() as standalone:
        now = 1000.0
        server.upgrade.clock = lambda: now
        (priming,) = await standalone.next()
        old, port = await ticket_of(client, priming.event_id), server.http.port
        now += 59
        new = await ticket_of(client, priming.event_id)
        now += 1
        assert await handshake(client, port, old) == b"HTTP/1.1 403 Scripted"
        assert await handshake(client, port, new) == b"HTTP/1.1 101 Switching Protocols"
        await ticket_of(client, priming.event_id)
        now += 60
        await ticket_of(client, priming.event_id)
        assert len(server.upgrade._tickets) == 1, "what has expired is forgotten"
