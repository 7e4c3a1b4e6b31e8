"""The session's move to a WebSocket and back: what must be proven, and what becomes of what is not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from websockets.frames import Opcode

from mcp_client_guard import Disconnected, Discontinuity, Guard, Upgraded
from mcp_client_guard.testing import Dribble, EventLogServer, How, Reply, Request, notification
from mcp_client_guard.testing.served_socket import ServedSocket, event_frame
from mcp_client_guard.testing.sessions import Reader

from .hosts import LIMIT, plain_host
from .sockets import On, Scene, asks, heard, playing, standalone_of, told

pytestmark = pytest.mark.anyio

# Refused.


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_sockets_is_asked_once(status: int) -> None:
    async def none(request: Request, reply: Reply) -> None:
        await reply.status(status)

    async with playing(on_ask=none) as scene:
        scene.emit(1, 2)
        assert (await scene.refused()).final
        scene.emit(3)
        await scene.heard(1, 2, 3)
        assert (await scene.host.call("charge", cents=1)).text, "the session is not doubted"
        assert len(asks(scene.server)) == 1


@pytest.mark.parametrize(
    ("body", "how"),
    [(b"{}", None), (b"not json", None), (b'{"ticket": 7}', None), (b"", How.RST), (b"", How.FIN)],
    ids=["no ticket", "not json", "a number", "RST", "FIN"],
)
async def test_an_answer_that_grants_nothing_is_reported_and_asked_again(body: bytes, how: How | None) -> None:
    async def first(request: Request, reply: Reply) -> None:
        if len(asks(scene.server)) > 1:
            await scene.server.upgrade.ask(request, reply)
        elif how is not None:
            await reply.end(how)
        else:
            await reply.status(200, body)

    async with playing(on_ask=first) as scene:
        scene.emit(1)
        await scene.refused()
        await scene.upgraded()
        scene.emit(2)
        await scene.heard(1, 2)


# What the socket brings.


def first_then(*play: Any) -> On:
    """The first socket plays these, after the witness; each further one is honest."""

    async def serve(socket: ServedSocket, reader: Reader) -> None:
        upgrade = scene_of[0].server.upgrade
        if len(upgrade.sockets) > 1:
            await upgrade.follow(socket, reader)
            return
        (entry, *_) = await reader.next(anyio.Event())
        await socket.event(entry.event_id, entry.message)
        reader.wrote(entry)
        for step in play:
            await step(socket)

    return serve


scene_of: list[Scene] = []


@asynccontextmanager
async def socket_playing(*play: Any, **options: Any) -> AsyncIterator[Scene]:
    """The first socket is proven, and then plays these steps."""
    async with playing(on_socket=first_then(*play), **options) as scene:
        scene_of[:] = [scene]
        scene.emit(1)
        await scene.upgraded()
        yield scene


def ends(how: How) -> Any:
    return lambda socket: socket.raw(how)


FRAME = b"\x81\x7e\x01\x00" + b'{"stream": "standalone"'


@pytest.mark.parametrize(
    "play",
    [
        (ends(How.FIN),),
        (ends(How.RST),),
        (lambda s: s.raw(FRAME[:1]), ends(How.FIN)),
        (lambda s: s.raw(FRAME[:3]), ends(How.RST)),
        (lambda s: s.raw(FRAME), ends(How.FIN)),
        (lambda s: s.raw(FRAME), ends(How.RST)),
        (lambda s: s.text(b'{"stream":', more=True), ends(How.FIN)),
        *((lambda s, c=code: s.close(c),) for code in (1000, 1001, 1008, 1011, 1012, 4000)),
    ],
    ids=lambda play: None,
)
async def test_however_a_socket_ends_the_event_stream_goes_on(play: Any) -> None:
    async with socket_playing(*play) as scene:
        scene.emit(2, 3)
        await scene.heard(1, 2, 3)
        assert not scene.host.of(Discontinuity)
        assert {*scene.host.grades} == {"proven"}
        await scene.upgraded(2)
        scene.emit(4)
        await scene.heard(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("play", "code"),
    [
        (lambda s: s.binary(b"{}"), 1003),
        (lambda s: s.text(b"not json"), 1008),
        (lambda s: s.text(b"[]"), 1008),
        (lambda s: s.send({"stream": "another", "id": "x", "message": {}}), 1008),
        (lambda s: s.send({"stream": "standalone", "message": told(9)}), 1008),
        (lambda s: s.send({"stream": "standalone", "id": 9, "message": told(9)}), 1008),
        (lambda s: s.send({"stream": "standalone", "id": "", "message": told(9)}), 1008),
        (lambda s: s.raw(b"\x81\x02\xff\xfe"), 1007),
        (lambda s: s.raw(b"\x83\x00"), 1002),
        (lambda s: s.raw(b"\x80\x00"), 1002),
    ],
)
async def test_what_is_no_frame_of_ours_closes_the_socket_and_loses_nothing(play: Any, code: int) -> None:
    codes: list[int | None] = []

    async def hear(socket: ServedSocket) -> None:
        codes.append(await socket.closed_with())

    async with socket_playing(play, hear) as scene:
        scene.emit(2, 3)
        await scene.heard(1, 2, 3)
        await scene.host.until(lambda: scene.is_on_socket or scene.host.grades.count("proven") > 1)
        assert codes == [code]


async def test_nothing_behind_such_a_frame_is_taken_even_if_it_came_with_it() -> None:
    data = json.dumps(event_frame("behind", told(99))).encode()
    both = b"\x82\x00" + b"\x81\x7e" + len(data).to_bytes(2, "big") + data
    async with socket_playing(lambda s: s.raw(both), lambda s: s.closed_with()) as scene:
        scene.emit(2, 3)
        await scene.heard(1, 2, 3)
        await scene.upgraded(2)
        scene.emit(4)
        await scene.heard(1, 2, 3, 4)


async def test_what_came_before_such_a_frame_is_taken() -> None:
    data = json.dumps(event_frame("before", told(2))).encode()
    both = b"\x81\x7e" + len(data).to_bytes(2, "big") + data + b"\x82\x00"
    async with socket_playing(lambda s: s.raw(both), lambda s: s.closed_with()) as scene:
        await scene.heard(1, 2)


async def test_a_fragmented_and_dribbled_message_is_one_event() -> None:
    async def in_pieces(socket: ServedSocket) -> None:
        entry = entries()[0]
        frame = event_frame(entry.event_id, entry.message)
        data = json.dumps(frame).encode()
        await socket.text(data[:5], more=True)
        await socket.ping(b"between")
        await socket.continuation(b"", more=True)
        await socket.continuation(data[5:20], more=True)
        await socket.continuation(data[20:])
        entry = entries()[1]
        data = json.dumps(event_frame(entry.event_id, entry.message)).encode()
        await socket.raw(Dribble(b"\x81\x7e" + len(data).to_bytes(2, "big") + data))
        await socket.closed_with()

    def entries() -> Any:
        scene = scene_of[0]
        held = scene.session.log.held(scene.stream)
        return [e for e in held if e.message in (told(2), told(3))]

    go = anyio.Event()

    async def wait(socket: ServedSocket) -> None:
        await go.wait()

    async with socket_playing(wait, in_pieces) as scene:
        scene.emit_unseen(2, 3)
        go.set()
        await scene.heard(1, 2, 3)
        assert not scene.host.of(Disconnected)


async def test_a_frame_beyond_max_event_size_is_reported() -> None:
    big = notification("notifications/message", level="info", data="x" * 40_000)
    async with socket_playing(lambda s: s.event("big", big), policy={"max_event_size": 1000}) as scene:
        before = scene.stream
        (loss,) = await scene.host.until(lambda: scene.host.of(Discontinuity))
        assert "max_event_size" in loss.reason
        await scene.server.http.wait_for(lambda r: r.method == "GET" and r.target == "/mcp", 2)
        await standalone_of(scene.session, before)
        scene.emit(2)
        await scene.heard(1, 2)


async def test_a_flood_of_pings_is_answered_and_disturbs_nothing() -> None:
    async def flood(socket: ServedSocket) -> None:
        for number in range(2000):
            await socket.ping(b"%d" % number)
        for number in range(2000):
            assert (await socket.next(Opcode.PONG)).data == b"%d" % number
        scene = scene_of[0]
        entry = scene.session.append(scene.stream, told(2))
        await socket.event(entry.event_id, entry.message)
        await socket.closed_with()

    async with socket_playing(flood) as scene:
        await scene.heard(1, 2)
        assert not scene.host.of(Disconnected)


async def test_silence_is_broken_by_our_pings_and_a_pong_is_liveness() -> None:
    pings = 0
    enough = anyio.Event()

    async def count(socket: ServedSocket) -> None:
        nonlocal pings
        with suppress(anyio.EndOfStream):
            while True:
                await socket.next(Opcode.PING)
                pings += 1
                if pings == 4:
                    enough.set()

    async with socket_playing(count, policy={"max_idle": 3}) as scene:
        await enough.wait()
        assert scene.is_on_socket


async def test_a_stalled_socket_is_given_up_after_max_idle() -> None:
    async def stall(socket: ServedSocket) -> None:
        await anyio.sleep_forever()  # nobody reads: no ping is answered

    async with socket_playing(stall, policy={"max_idle": 0.2}) as scene:
        scene.emit(2)
        await scene.heard(1, 2)
        assert "no byte for max_idle" in [e.reason for e in scene.host.of(Disconnected)]


async def test_what_the_socket_repeats_is_not_delivered_twice() -> None:
    async def again(socket: ServedSocket) -> None:
        scene = scene_of[0]
        for entry in scene.session.log.held(scene.stream):
            await socket.event(entry.event_id, entry.message)
        entry = scene.session.append(scene.stream, told(2))
        await socket.event(entry.event_id, entry.message)
        await socket.closed_with()

    async with socket_playing(again) as scene:
        await scene.heard(1, 2)


# The first frame.


@pytest.mark.parametrize(
    "play",
    [
        lambda s, r, e: s.event(e.event_id, told(99)),
        lambda s, r, e: s.event("never-issued", e.message),
        lambda s, r, e: s.event(e.event_id),
        lambda s, r, e: s.event("new", told(99)),
    ],
    ids=["other content", "other ID", "empty", "new"],
)
async def test_a_wrong_first_frame_is_reported_and_nothing_of_it_delivered(play: Any) -> None:
    async def wrong(socket: ServedSocket, reader: Reader) -> None:
        if len(scene.server.upgrade.sockets) > 1:
            await scene.server.upgrade.follow(socket, reader)
            return
        (entry, *_) = await reader.next(anyio.Event())
        await play(socket, reader, entry)
        assert await socket.closed_with() == 1000

    async with playing(on_socket=wrong) as scene:
        scene.emit(1)
        await scene.host.until(lambda: scene.host.of(Discontinuity))
        await scene.upgraded()
        scene.emit(2, 3)
        await scene.heard(1, 2, 3)
        assert scene.host.grades[0] == "broken"
        assert {*scene.host.grades[1:]} == {"proven"}


async def test_a_frame_that_carries_nothing_may_stand_before_the_witness() -> None:
    async def primed(socket: ServedSocket, reader: Reader) -> None:
        await socket.event("a-priming-event")
        await scene.server.upgrade.follow(socket, reader)

    async with playing(on_socket=primed) as scene:
        scene.emit(1)
        await scene.upgraded()
        scene.emit(2, 3)
        await scene.heard(1, 2, 3)
        assert scene.host.grades == ["proven"]
        assert not scene.host.of(Discontinuity)


@pytest.mark.parametrize("how", [How.FIN, How.RST])
async def test_a_socket_lost_before_its_first_frame_twice_in_a_row_costs_two_resumes(how: How) -> None:
    async def lose(socket: ServedSocket, reader: Reader) -> None:
        if len(scene.server.upgrade.sockets) > 2:
            await scene.server.upgrade.follow(socket, reader)
        else:
            await socket.raw(how)

    async with playing(on_socket=lose) as scene:
        scene.emit(1)
        await scene.upgraded()
        scene.emit(2)
        await scene.heard(1, 2)
        assert len(scene.host.of(Disconnected)) == 2
        assert not scene.host.of(Discontinuity)


async def test_a_socket_lost_again_during_the_resume_that_follows_is_resumed_all_the_same() -> None:
    async with socket_playing(ends(How.RST)) as scene:
        await scene.host.until(lambda: scene.host.of(Disconnected))
        scene.server.http.drop_all()
        scene.emit(2)
        await scene.heard(1, 2)
        assert not scene.host.of(Discontinuity)


# The handshake.


@pytest.mark.parametrize("status", [200, 400, 403, 404, 426, 503])
async def test_a_refused_handshake_leaves_the_session_on_its_event_stream(status: int) -> None:
    async with playing() as scene:
        honest, refusals = scene.server.upgrade.open, [status]

        async def refuse(request: Request, reply: Reply) -> None:
            if refusals:
                await reply.status(refusals.pop())
            else:
                await honest(request, reply)

        scene.server.upgrade.on_open = refuse
        scene.emit(1)
        assert str(status) in (await scene.refused()).reason
        await scene.upgraded()
        scene.emit(2)
        await scene.heard(1, 2)


@pytest.mark.parametrize("subprotocol", [None])
async def test_a_socket_of_another_protocol_is_not_ours(subprotocol: str | None) -> None:
    async with playing() as scene:
        honest = scene.server.upgrade.open
        left: list[Any] = [1]

        async def other(request: Request, reply: Reply) -> None:
            if left:
                left.clear()
                await ServedSocket.accept(request, reply, subprotocol=subprotocol)
                await reply.client_gone.wait()
            else:
                await honest(request, reply)

        scene.server.upgrade.on_open = other
        scene.emit(1)
        await scene.upgraded()
        assert scene.host.of(Disconnected)[0].reason == "another subprotocol"


async def test_a_wrong_accept_key_is_no_handshake() -> None:
    async with playing() as scene:
        honest = scene.server.upgrade.open
        left: list[Any] = [1]

        async def other(request: Request, reply: Reply) -> None:
            if left:
                left.clear()
                head = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
                await reply.write(f"{head}sec-websocket-accept: AAAA\r\n\r\n".encode())
                await reply.client_gone.wait()
            else:
                await honest(request, reply)

        scene.server.upgrade.on_open = other
        scene.emit(1)
        await scene.upgraded()
        assert scene.host.of(Disconnected)[0].reason == "no WebSocket handshake"


async def test_the_ticket_and_the_session_go_in_headers_alone() -> None:
    async with playing(headers={"authorization": "Bearer secret"}) as scene:
        scene.emit(1)
        await scene.upgraded()
        (handshake,) = [r for r in scene.server.http.requests if r.target == "/mcp/upgrade" and r.method == "GET"]
        assert handshake.header("mcp-upgrade-ticket")
        assert handshake.session_id == scene.session.session_id
        assert handshake.header("mcp-protocol-version") == "2025-11-25"
        assert handshake.header("authorization") == "Bearer secret"
        assert handshake.header("sec-websocket-extensions") is None
        assert handshake.last_event_id is None


# The session.


async def test_calls_go_on_beside_the_socket() -> None:
    async with playing() as scene:
        scene.emit(1)
        await scene.upgraded()
        assert (await scene.host.call("charge", cents=1)).text
        scene.emit(2)
        await scene.heard(1, 2)
        assert len(scene.server.ledger) == 1


async def test_a_session_lost_on_the_socket_is_opened_again_and_upgraded_again() -> None:
    async with playing() as scene:
        scene.emit(1)
        await scene.upgraded()
        scene.server.store.close(scene.session)
        await scene.host.until(lambda: scene.server.store.sessions)
        (session,) = scene.server.store.sessions.values()
        session.append(await standalone_of(session), told(2))
        await scene.upgraded(2)
        await scene.host.until(lambda: 2 in heard(scene.host))


async def test_without_the_user_s_wish_nobody_asks() -> None:
    async with playing(websocket=False) as scene:
        scene.emit(1, 2, 3)
        await scene.heard(1, 2, 3)
        assert not asks(scene.server)


async def test_leaving_says_goodbye_and_ends_the_session() -> None:
    codes: list[int | None] = []
    done = anyio.Event()

    async def follow(socket: ServedSocket, reader: Reader) -> None:
        (entry, *_) = await reader.next(anyio.Event())
        await socket.event(entry.event_id, entry.message)
        codes.append(await socket.closed_with())
        done.set()

    server = EventLogServer()
    server.upgrade.on_socket = follow
    with anyio.fail_after(LIMIT):
        async with server:
            async with plain_host(server.url, websocket=True) as host:
                await server.http.wait_for(lambda r: r.method == "GET")
                (session,) = server.store.sessions.values()
                session.append(await standalone_of(session), told(1))
                await host.until(lambda: host.of(Upgraded))
            await done.wait()
    assert codes == [1000]
    assert not server.store.sessions


# The configuration.


@pytest.mark.parametrize(
    ("url", "websocket", "asked"),
    [
        ("https://example.com/mcp", True, "https://example.com/mcp/upgrade"),
        ("https://example.com/mcp/", True, "https://example.com/mcp/upgrade"),
        ("https://example.com", True, "https://example.com/upgrade"),
        ("https://example.com/mcp?tenant=1", True, "https://example.com/mcp/upgrade?tenant=1"),
        ("https://example.com/mcp", "/sockets", "https://example.com/sockets"),
        ("https://example.com/a/mcp", "up", "https://example.com/a/up"),
        ("https://example.com/mcp", "https://example.com:443/x", "https://example.com/x"),
    ],
)
def test_where_it_is_asked_for(url: str, websocket: bool | str, asked: str) -> None:
    assert Guard(url, websocket=websocket)._upgrade_url == asked


@pytest.mark.parametrize("elsewhere", ["https://other.example/x", "//other.example/x", "http://example.com/x"])
def test_another_origin_is_refused(elsewhere: str) -> None:
    with pytest.raises(ValueError, match="origin"):
        Guard("https://example.com/mcp", websocket=elsewhere)


@pytest.mark.parametrize("nowhere", ["\n", "\ud800", "http://[::1", "https://example.com:x/", "x" * 70_000])
def test_what_is_no_url_is_refused(nowhere: str) -> None:
    with pytest.raises(ValueError, match=r"^websocket must lead to a URL"):
        Guard("https://example.com/mcp", websocket=nowhere)
