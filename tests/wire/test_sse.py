"""Bytes to events as the SSE standard says, whatever the chunks (S18): the reader, then the wire."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from attrs import frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_client_guard.core.inputs import EventReceived, TooLarge
from mcp_client_guard.testing import END_OF_CHUNKS, How, Reply, Request, chunk, sse_head, tool_result
from mcp_client_guard.transports.sse import _COMMON, EventReader

from .hosts import Answer, Playing, Streams, answer, events, plainly, resumed_after

ROOMY = 1 << 20


@frozen
class Seen:
    """What counts of an event: an event of ours, or one as the standard dispatches it."""

    data: bytes
    own_id: str | None
    resets_id: bool
    name: str


def by_the_standard(body: bytes) -> tuple[list[Seen], str, int | None]:
    """WHATWG HTML §9.2.6, line by line: the events, the last event ID, the reconnection time.

    Save that a `retry:` counts with its block, and not if the stream is cut before the blank line.
    """
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    data: list[str] = []
    own_id: str | None = None
    last_id, name, retry, new_retry = "", "", None, None
    seen = []
    for line in lines:
        if not line:
            if data or own_id is not None:
                value = "\n".join(data)
                seen.append(
                    Seen(value.encode("utf-8", "surrogatepass"), own_id or None, own_id == "", name or "message")
                )
            data, own_id, name, retry = [], None, "", new_retry
            if seen and (seen[-1].own_id or seen[-1].resets_id):
                last_id = seen[-1].own_id or ""
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "id" and "\0" not in value:
            own_id = value
        elif field == "event":
            name = value
        elif field == "retry" and value.isascii() and value.isdigit():
            new_retry = int(value)
    return seen, last_id, retry


def read(chunks: list[bytes], size: int = ROOMY) -> tuple[list[Seen], str, int | None]:
    reader = EventReader(0, 0, size)
    seen: list[Seen] = []
    last_id, retry = "", None
    for piece in chunks:
        for event in reader.feed(piece):
            assert isinstance(event, EventReceived)
            if event.retry is not None:
                retry = event.retry
            if event.event_id is not None or event.resets_id:
                last_id = event.event_id or ""
            if event.data or event.event_id is not None or event.resets_id:
                seen.append(Seen(event.data, event.event_id, event.resets_id, event.name))
    return seen, last_id, retry


def standard(body: bytes) -> tuple[list[Seen], str, int | None]:
    """Without the events that carry neither data nor an ID of their own: they say nothing to anybody."""
    seen, last_id, retry = by_the_standard(body)
    return [s for s in seen if s.data or s.own_id is not None or s.resets_id], last_id, retry


A, B = b'{"a":1}', b'{"b":2}'

TORTURE: dict[str, bytes] = {
    "LF": b"id: 1\ndata: " + A + b"\n\nid: 2\ndata: " + B + b"\n\n",
    "CRLF": b"id: 1\r\ndata: " + A + b"\r\n\r\nid: 2\r\ndata: " + B + b"\r\n\r\n",
    "CR": b"id: 1\rdata: " + A + b"\r\rid: 2\rdata: " + B + b"\r\r",
    "mixed": b"id: 1\r\ndata: " + A + b"\n\rid: 2\rdata: " + B + b"\n\r\n",
    "BOM": b"\xef\xbb\xbfid: 1\ndata: " + A + b"\n\n",
    "BOM in the middle is data": b"id: 1\ndata: " + A + b"\n\n\xef\xbb\xbfdata: " + B + b"\n\n",
    "no space": b"id:1\ndata:" + A + b"\n\n",
    "two spaces": b"id:  1\ndata:  " + A + b"\n\n",
    "several data lines": b'id: 1\ndata: {"a":\ndata: 1}\n\n',
    "a data line without a colon": b'id: 1\ndata\ndata: {"a":1}\n\n',
    "empty data": b"id: 1\ndata:\n\ndata: " + A + b"\n\n",
    "data without a colon alone": b"id: 1\ndata\n\n",
    "an empty ID and nothing else": b"id: 1\ndata: " + A + b"\n\nid:\n\ndata: " + B + b"\n\nid\n\n",
    "a space for data": b"id: 1\ndata: \n\nid: 2\ndata:  \n\n",
    "a space for an ID": b"id: 1\ndata: " + A + b"\n\nid: \ndata: " + B + b"\n\nid:  \ndata: " + A + b"\n\n",
    "event: ping": b"event: ping\ndata: {}\n\ndata: " + A + b"\n\n",
    "event: message": b"event: message\nid: 1\ndata: " + A + b"\n\n",
    "an event line without a value": b"event\nid: 1\ndata: " + A + b"\n\n",
    "comments": b": a\n:\n:\n\nid: 1\n: b\ndata: " + A + b"\n: c\n\n",
    "many blank lines": b"\n\n\nid: 1\ndata: " + A + b"\n\n\n\n\n\n",
    "U+0085, U+2028, U+2029, VT, FF": 'id: 1\ndata: "\u0085\u2028\u2029\x0b\x0c\x1c\x1d\x1e"\n\n'.encode(),
    "an emoji of four bytes": 'id: 1\ndata: "😀é"\n\n'.encode(),
    "invalid UTF-8": b'id: 1\ndata: "\xff\xc3\xf0\x9f\x98"\n\n',
    "an empty ID": b"id: 1\ndata: " + A + b"\n\nid:\ndata: " + B + b"\n\n",
    "an empty ID without a colon": b"id: 1\ndata: " + A + b"\n\nid\ndata: " + B + b"\n\n",
    "an ID with NUL": b"id: 1\ndata: " + A + b"\n\nid: 2\x003\ndata: " + B + b"\n\n",
    "an ID with NUL after a good one": b"id: 1\nid: 2\x003\ndata: " + A + b"\n\n",
    "two IDs": b"id: 1\nid: 2\ndata: " + A + b"\n\n",
    "an ID and then an empty one": b"id: 1\nid:\ndata: " + A + b"\n\n",
    "an empty ID and then one": b"id:\nid: 2\ndata: " + A + b"\n\n",
    "an ID of a megabyte": b"id: " + b"x" * 1000 + b"\ndata: " + A + b"\n\n",
    "an ID after its data": b"data: " + A + b"\nid: 1\n\n",
    "an ID alone": b"id: 1\n\ndata: " + A + b"\n\n",
    "retry alone": b"retry: 50\n\nid: 1\ndata: " + A + b"\n\n",
    "retry zero": b"retry: 0\nid: 1\ndata: " + A + b"\n\n",
    "retry negative": b"retry: -5\nid: 1\ndata: " + A + b"\n\n",
    "retry fractional": b"retry: 1.5\nid: 1\ndata: " + A + b"\n\n",
    "retry text": b"retry: soon\nid: 1\ndata: " + A + b"\n\n",
    "retry in other digits": "retry: ٣\nid: 1\ndata: {}\n\n".encode(),
    "retry with two spaces": b"retry:  5\nid: 1\ndata: " + A + b"\n\n",
    "retry twice": b"retry: 5\nretry: 7\nretry: x\ndata: " + A + b"\n\n",
    "an unknown field": b"x: y\nid: 1\nIDs: 3\ndata: " + A + b"\nDATA: no\n\n",
    "a field with a space before its colon": b"id : 1\ndata : no\ndata: " + A + b"\n\n",
    "unfinished": b"id: 1\ndata: " + A + b"\n\nid: 2\ndata: " + B + b"\n",
    "nothing": b"",
}


@pytest.mark.parametrize("what", TORTURE)
def test_the_reader_agrees_with_the_standard_for_every_split(what: str) -> None:
    body = TORTURE[what]
    expected = standard(body)
    assert read([body]) == expected
    assert read([body[i : i + 1] for i in range(len(body))]) == expected
    for at in range(len(body)):
        assert read([body[:at], body[at:]]) == expected, at


PIECES = [
    *(
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"data",
        b"data:",
        b"data: ",
        b"id",
        b"id:",
        b"id: ",
        b"retry: ",
        b"event: ",
    ),
    *(
        b":",
        b" ",
        b"1",
        b"23",
        b"x",
        b"\0",
        b"{}",
        b"\xef\xbb\xbf",
        "é".encode(),
        b"\xf0\x9f",
        b"\x98\x80",
        b"\xff",
    ),
    *("\u2028".encode(), "\u0085".encode(), b"\x0b", b"\x1c"),
]


@settings(deadline=None, max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=40), st.data())
@example([b"data", b"\r", b"\n", b"\r", b"\n"], None)
def test_the_reader_agrees_with_the_standard_for_any_bytes(pieces: list[bytes], data: Any) -> None:
    body = b"".join(pieces)
    expected = standard(body)
    assert read([body]) == expected
    assert read(pieces) == expected
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8))) if data is not None else []
    chunks = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert read(chunks) == expected


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_size_bound_is_on_each_event_and_exact_enough(step: int) -> None:
    limit = 1000
    fits = b"data: " + b"x" * (limit - 50) + b"\n\n"
    body = fits * 5
    assert len(read([body[i : i + step] for i in range(0, len(body), step)], limit)[0]) == 5
    too_large = b"data: " + b"x" * (limit + 50)
    for ending in (b"", b"\n\n"):
        body = fits + too_large + ending
        assert TooLarge(0, 0, None, is_whole=bool(ending)) in everything(body, step, limit)


def everything(body: bytes, step: int, limit: int) -> list[EventReceived | TooLarge]:
    reader = EventReader(0, 0, limit)
    return [told for i in range(0, len(body), step) for told in reader.feed(body[i : i + step])]


LARGE = "x" * 5000
LARGE_ONES = {
    "Python": {"jsonrpc": "2.0", "id": 7, "result": {"id": 1, "text": LARGE}},
    "ID first": {"id": 7, "jsonrpc": "2.0", "result": LARGE},
    "TypeScript": {"result": {"text": LARGE, "id": 1}, "jsonrpc": "2.0", "id": 7},
    "ID before the version": {"result": LARGE, "id": 7, "jsonrpc": "2.0"},
}
OF_NOBODY = {
    "notification": {"jsonrpc": "2.0", "method": "m", "params": {"text": LARGE, "id": 7}},
    "in the middle": {"jsonrpc": "2.0", "result": {}, "id": 7, "_": LARGE},
    "request": {"jsonrpc": "2.0", "id": 7, "method": "m", "params": LARGE},
    "a text": {"jsonrpc": "2.0", "id": "7", "result": LARGE},
}


@pytest.mark.parametrize("step", [1, 7, 100, 10**6])
@pytest.mark.parametrize("head", [b"", b"id: 1\n", b": x\nevent: message\n"])
@pytest.mark.parametrize("kind", [*LARGE_ONES, *OF_NOBODY])
def test_one_that_is_too_large_is_skipped_and_says_whose_answer_it_is(step: int, head: bytes, kind: str) -> None:
    message = {**LARGE_ONES, **OF_NOBODY}[kind]
    large = head + b"data: " + json.dumps(message).encode() + b"\n\n"
    small = b"data: " + A + b"\n\n"
    told = everything(small + large + small + large + small, step, 1000)
    assert [t.data for t in told if isinstance(t, EventReceived)] == [A, A, A], "what stands around it is read"
    skipped = [t for t in told if isinstance(t, TooLarge)]
    assert [t.answers for t in skipped if t.answers] == ([7, 7] if kind in LARGE_ONES else [])
    assert sum(t.is_whole or t.answers is not None for t in skipped) == 2


@pytest.mark.parametrize("step", [1, 7, 1000, 10**6])
@pytest.mark.parametrize("limit", [1000, ROOMY])
def test_comment_lines_need_no_blank_line_and_are_no_part_of_the_event_that_follows(step: int, limit: int) -> None:
    heartbeats = b": keep-alive, padded ............................\n" * (3 * limit // 50)
    body = heartbeats + b"id: 1\ndata: " + A + b"\n\n\n" + heartbeats + b"id: 2\n: x\ndata: " + B + b"\n\n"
    step = step if limit < ROOMY else max(step, 60_000)
    seen, last_id, _ = read([body[i : i + step] for i in range(0, len(body), step)], limit)
    assert ([s.data for s in seen], last_id) == ([A, B], "2")


def test_an_event_is_bounded_after_any_number_of_comments() -> None:
    reader = EventReader(0, 0, 1000)
    reader.feed(b": ping\n" * 1000)
    assert reader.feed(b": ping\ndata: " + b"x" * 1001) == [TooLarge(0, 0, None, is_whole=False)]


COMMON_BLOCKS = st.from_regex(re.compile(_COMMON.pattern + rb"[^ \n][^\n]*", re.ASCII), fullmatch=True)
BLOCKS = st.one_of(COMMON_BLOCKS, st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))


@settings(deadline=None, max_examples=1000)
@given(BLOCKS)
@example(b"data: NaN")
@example(b"id: 1\ndata: {}")
@example("id: é\ndata: \u2028\u0085\x0b\x0c\x1c".encode())
@example(b"id: \xff\ndata: {}")
@example(b"data: \xff")
@example(b"event: message\nid:7\ndata:[1]")
@example(b"data: [1")
def test_a_common_block_is_the_same_event_at_a_glance_and_by_httpx_sse(block: bytes) -> None:
    # The reader has made each line end a line feed, and no block holds a blank line.
    block = block.replace(b"\r", b"").partition(b"\n\n")[0]
    reader = EventReader(1, 2, ROOMY)
    for glance in _glanced_at(block):
        assert repr(glance) == repr(reader._any(block))
        assert (glance.data, glance.event_id) == (reader._any(block).data, reader._any(block).event_id)


def test_what_servers_send_a_million_times_is_read_at_a_glance() -> None:
    for block in (b"data: {}", b"id: 1\ndata: {}", b"event: message\nid: 1\ndata: {}", b"id:1\ndata:{}"):
        assert len(_glanced_at(block)) == 1


class _Glancing(EventReader):
    """Knows the common block alone."""

    def _any(self, block: bytes) -> None:
        return None


def _glanced_at(block: bytes) -> list[EventReceived]:
    reader = _Glancing(1, 2, ROOMY)
    reader.feed(b"\n\n")  # no byte order mark is looked for any more
    return reader.feed(block + b"\n\n")


# --- through the wire -----------------------------------------------------------------------------------

NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "😀\u2028é"}}


def carried(call: Request) -> dict[str, bytes]:
    """A notification and the answer of the call, in each form."""
    first, last = (
        json.dumps(NOTE, ensure_ascii=False).encode(),
        json.dumps(tool_result(call.rpc_id, "done")).encode(),
    )
    n = str(call.serial).encode()
    half = first.index(b",") + 1
    forms = {
        "LF": b"id: a%s\ndata: %s\n\nid: b%s\ndata: %s\n\n",
        "CRLF": b"id: a%s\r\ndata: %s\r\n\r\nid: b%s\r\ndata: %s\r\n\r\n",
        "CR": b"id: a%s\rdata: %s\r\rid: b%s\rdata: %s\r\r",
        "mixed": b"id: a%s\r\ndata: %s\n\rid: b%s\rdata: %s\n\r\n",
        "BOM": b"\xef\xbb\xbfid: a%s\ndata: %s\n\nid: b%s\ndata: %s\n\n",
        "no space": b"id:a%s\ndata:%s\n\nid:b%s\ndata:%s\n\n",
        "comments": b": x\n\nid: a%s\n: y\ndata: %s\n\n: z\n\n\nid: b%s\ndata: %s\n\n",
        "event: message": b"event: message\nid: a%s\ndata: %s\n\nevent: message\nid: b%s\ndata: %s\n\n",
        "event: ping": b"event: ping\ndata: {}\n\nid: a%s\ndata: %s\n\nid: b%s\ndata: %s\n\n",
    }
    made = {name: form % (n, first, n, last) for name, form in forms.items()}
    made["without IDs"] = b"data: %s\n\ndata: %s\n\n" % (first, last)
    made["several data lines"] = b"data: %s\ndata: %s\n\ndata: %s\n\n" % (first[:half], first[half:], last)
    made["data without a colon"] = b"data\ndata: %s\n\ndata: %s\n\n" % (first, last)
    made["an ID of a megabyte"] = b"id: " + b"x" * 1_000_000 + b"\ndata: %s\n\ndata: %s\n\n" % (first, last)
    made["not JSON before it"] = b"data: hello\n\ndata: [1]\n\ndata: {}\n\ndata: %s\n\ndata: %s\n\n" % (
        first,
        last,
    )
    return made


FORMS = list(carried(Request("POST", "/", None, b'{"id": 1}')))  # type: ignore[arg-type]


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 3, 0], ids=["byte by byte", "by threes", "whole"])
async def test_every_form_arrives_in_every_size_of_chunk(playing: Playing, size: int) -> None:
    form = ""

    async def first(call: Request, reply: Reply) -> None:
        body = carried(call)[form]
        step = size if size and len(body) < 10_000 else len(body)
        pieces = [chunk(body[i : i + step]) for i in range(0, len(body), step)]
        await reply.play(sse_head(), b"".join(pieces), END_OF_CHUNKS)

    async with playing(Streams(first)) as (server, host):
        for n, form in enumerate(FORMS, 1):
            assert await host.call() == Answer("done"), form
            await host.until(lambda n=n: len(host.heard) == n)
        assert resumed_after(server) == []


@pytest.mark.anyio
async def test_text_arrives_as_it_was_sent() -> None:
    async with plainly(Streams(events(answer("😀\u2028é")))) as (server, host):

        async def echo(call: Request, reply: Reply) -> None:
            said = call.json["params"]["arguments"]["said"]
            await reply.json(tool_result(call.rpc_id, said))

        server.handler.first = echo  # type: ignore[attr-defined]
        for text in ("😀é日本", "\u2028\u2029\u0085", "\x00\x1f", '"\\', "a" * 100_000):
            assert (await host.call(said=text)).text == text


@pytest.mark.anyio
async def test_a_lone_surrogate_harms_nobody() -> None:
    async with plainly(Streams(events(answer()))) as (_, host):
        got = await host.call(said="\ud800")
        assert got.text == "done" or got.is_error
        assert await host.call() == Answer("done")


@pytest.mark.anyio
async def test_a_cut_in_the_middle_of_a_character_loses_only_that_event(playing: Playing) -> None:
    async def first(call: Request, reply: Reply) -> None:
        whole = b"id: p0\nretry: 1\ndata:\n\n" + "data: 😀".encode()[:-2]
        await reply.play(sse_head(), chunk(whole), How.RST)

    async with playing(Streams(first, events(answer(id="e1")))) as (_, host):
        assert await host.call() == Answer("done")


@pytest.mark.parametrize("head", [b":", b": a\n: b\n:"])
def test_of_a_comment_that_does_not_end_nothing_is_kept(head: bytes) -> None:
    """Else each of its bytes would be looked at for every chunk that follows."""
    reader = EventReader(1, 1, 1 << 20)
    assert reader.feed(head) == []
    for _ in range(3000):
        assert reader.feed(b"x" * 1000) == []
        assert len(reader._tail) < 70_000
    (event,) = reader.feed(b"\ndata: 1\n\n")
    assert isinstance(event, EventReceived)
    assert event.body == 1


def test_it_knows_whether_an_event_is_on_its_way() -> None:
    reader = EventReader(1, 1, 100)
    came = [
        (b"", False),
        (b": a\n", False),
        (b"\n:b\n", False),
        (b"data: 1", True),
        (b"\n\n", False),
        (b"data: 2\n\ndata:", True),
        (b"x" * 200, False),
        (b"\n\n", False),
    ]
    for received, is_amid in came:
        reader.feed(received)
        assert reader.is_amid is is_amid, received
