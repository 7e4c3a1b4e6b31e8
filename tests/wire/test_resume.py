"""A stream that was cut: when it is resumed, from where, and what the resume is worth."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcp_client_guard import Discontinuity, Outcome
from mcp_client_guard.core import closing
from mcp_client_guard.testing import (
    Handler,
    How,
    Reply,
    Request,
    ScriptedMcp,
    chunk,
    progress_of,
    sse_event,
    tool_result,
)

from .hosts import (
    ON_ALL_LOOPS,
    WHOLE,
    Answer,
    Part,
    Playing,
    Streams,
    answer,
    events,
    for_ever,
    note,
    plainly,
    prime,
    progress,
    raw,
    refuse,
    resumed_after,
    run_together,
    steps,
)

pytestmark = [pytest.mark.anyio, ON_ALL_LOOPS]


QUICK = {"witness_timeout": 0.05}
TWO_SEEN: tuple[Part, ...] = (prime("p0", 1), progress(1, "e1"), progress(2, "e2"))


# --- primed, polled, cut again ----------------------------------------------------------------------


@pytest.mark.parametrize("end", [WHOLE, How.FIN, How.RST], ids=["end", "FIN", "RST"])
async def test_a_primed_stream_is_resumed_and_the_answer_comes(playing: Playing, end: Any) -> None:
    mcp = Streams(events(prime("p1", 1), end=end), events(answer(id="e1")))
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == ["p1"]
        assert not host.of(Discontinuity)
    assert mcp.executed == ["charge"]


@pytest.mark.parametrize("end", [WHOLE, How.FIN, How.RST], ids=["end", "FIN", "RST"])
async def test_polling_five_times_is_resuming_five_times(playing: Playing, end: Any) -> None:
    """Each time from an ID of this stream; which one is the core's choice, for the log holds them all."""
    polls = [events(prime(f"p{n}", 1), end=end) for n in range(1, 6)]
    mcp = Streams(*polls, events(answer(id="e1")))
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert len(resumed_after(server)) == 5
        assert set(resumed_after(server)) <= {"p1", "p2", "p3", "p4", "p5"}
        assert host.outcomes == [Outcome.COMPLETED]


async def test_a_second_drop_before_any_new_id_carries_the_same_cursor(playing: Playing) -> None:
    """Primed only: nothing overlaps, so the cursor itself is sent, again and again."""
    drops: list[Handler] = [
        events(end=How.RST),
        events(end=How.FIN),
        steps(How.RST),
        steps(b"HTTP/1.1 2", How.FIN),
    ]
    mcp = Streams(events(prime("p1", 1), end=How.RST), *drops, events(answer(id="e1")))
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == ["p1"] * 5


async def test_a_second_drop_before_the_witness_asks_from_the_same_point(playing: Playing) -> None:
    drops: list[Handler] = [events(end=How.RST), steps(How.RST), events(raw(b"id: e2\ndata: {"), end=How.RST)]
    mcp = Streams(events(*TWO_SEEN, end=How.RST), *drops, events(progress(2, "e2"), answer(id="e3")))
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == ["e1"] * 4
        assert host.grades == ["proven"]
        await host.saw(1, 2)


@pytest.mark.parametrize("how", [How.FIN, How.RST])
async def test_many_cuts_each_proven_lose_and_repeat_nothing(playing: Playing, how: How) -> None:
    resumes = [events(progress(n, f"e{n}"), progress(n + 1, f"e{n + 1}"), end=how) for n in range(2, 9)]
    mcp = Streams(events(*TWO_SEEN, end=how), *resumes, events(progress(9, "e9"), answer(id="e10")))
    async with playing(mcp) as (_, host):
        assert await host.call() == Answer("done")
        await host.saw(*range(1, 10))
        assert set(host.grades) == {"proven"}
    assert mcp.executed == ["charge"]


async def test_two_streams_are_resumed_each_on_its_own_cursor(playing: Playing) -> None:
    calls: dict[str, Request] = {}
    both = anyio.Event()

    async def first(call: Request, reply: Reply) -> None:
        name = call.json["params"]["name"]
        calls[name] = call
        if len(calls) == 2:
            both.set()
        await both.wait()
        await events(prime(f"{name}-0", 1), progress(1, f"{name}-1"), end=How.RST)(call, reply)

    async def resume(request: Request, reply: Reply) -> None:
        name, _, position = str(request.last_event_id).partition("-")
        assert position == "0"
        await events(progress(1, f"{name}-1"), answer(name, f"{name}-2"))(calls[name], reply)

    async with playing(Streams(first, resume=resume)) as (server, host):
        got = await run_together(lambda: host.call("charge"), lambda: host.call("add"))
        assert got == [Answer("charge"), Answer("add")]
        assert sorted(resumed_after(server)) == ["add-0", "charge-0"]
        assert host.grades == ["proven", "proven"]


# --- what servers replay ----------------------------------------------------------------------------

HONEST = {
    "exclusive": [progress(2, "e2"), progress(3, "e3"), answer(id="e4")],
    "inclusive": [progress(1, "e1"), progress(2, "e2"), progress(3, "e3"), answer(id="e4")],
    "from the very start": [*TWO_SEEN, progress(3, "e3"), answer(id="e4")],
    "with a priming event turned into {}": [
        raw(sse_event("{}", id="p0")),
        progress(2, "e2"),
        progress(3, "e3"),
        answer(id="e4"),
    ],
    "primed again at the end": [progress(2, "e2"), progress(3, "e3"), prime("p9"), answer(id="e4")],
    "primed again at the start": [prime("p9"), progress(2, "e2"), progress(3, "e3"), answer(id="e4")],
    "with ids that jump": [progress(2, "e2"), progress(3, "e31"), answer(id="e77")],
    "with comments between": [
        raw(b": a\n\n"),
        progress(2, "e2"),
        raw(b":\n\n"),
        progress(3, "e3"),
        answer(id="e4"),
    ],
    "live without ids": [progress(2, "e2"), progress(3), answer()],
}


@pytest.mark.parametrize("replay", HONEST)
async def test_an_honest_replay_of_any_kind_is_proven_without_alarm(playing: Playing, replay: str) -> None:
    """An answer that came on the live tail is held for one last look at the log, so it may be asked for twice."""
    mcp = Streams(events(*TWO_SEEN, end=How.RST), for_ever(events(*HONEST[replay])))
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        await host.saw(1, 2, 3)
        assert set(host.grades) == {"proven"}
        assert not host.of(Discontinuity)
        assert resumed_after(server) in (["e1"], ["e1", "e1"])


async def test_a_replay_out_of_a_store_that_writes_json_in_its_own_way_is_proven(playing: Playing) -> None:
    """1.0 for 1, and null for what is not there: stores that keep values, and not text."""

    def stored(call: Request) -> bytes:
        message = progress_of(call, 1)
        params = {**message["params"], "progress": 1.0, "total": None}
        return chunk(sse_event({**message, "params": params}, id="e1"))

    mcp = Streams(events(prime("p", 1), progress(1, "e1"), end=How.RST), events(stored, answer(id="e2")))
    async with playing(mcp) as (_, host):
        assert await host.call() == Answer("done")
        assert host.grades == ["proven"]


async def test_a_server_that_goes_live_only_is_a_reported_loss(playing: Playing) -> None:
    mcp = Streams(events(*TWO_SEEN, end=How.RST), events(progress(9, "e9"), answer("live", "e10")))
    async with playing(mcp, policy=QUICK) as (_, host):
        assert await host.call() == Answer("live")
        assert len(host.of(Discontinuity)) == 1
        assert host.grades == ["broken"]


async def test_an_answer_behind_a_number_that_goes_down_is_the_call_s(playing: Playing) -> None:
    """Random decimal IDs of an honest server; the resume is broken all the same."""
    mcp = Streams(events(prime("7301", 1), end=How.RST), events(progress(1, "2144"), answer(id="9020")))
    async with playing(mcp) as (_, host):
        assert await host.call() == Answer("done")
        assert host.grades == ["broken"]
        assert len(host.of(Discontinuity)) == 1


async def test_events_of_other_streams_in_a_replay_are_dropped_as_duplicates(playing: Playing) -> None:
    """The TypeScript reference server replays the later events of every stream of the session."""
    mcp = Streams(
        events(*TWO_SEEN, end=How.RST),
        events(note("theirs", "s1"), note("theirs too", "s2"), progress(2, "e2"), answer(id="e3")),
        standalone=events(note("theirs", "s1"), note("theirs too", "s2"), end=How.STALL),
    )
    async with playing(mcp) as (_, host):
        await host.until(lambda: len(host.heard) == 2)
        assert await host.call() == Answer("done")
        assert len(host.heard) == 2
        assert host.grades == ["proven"]


# --- unprimed and incomplete ------------------------------------------------------------------------

UNPRIMED: dict[str, Handler] = {
    "headers only": events(end=How.FIN),
    "headers and a good end": events(),
    "half a header block": steps(b"HTTP/1.1 200 OK\r\ncontent-type: text/ev", How.FIN),
    "a comment": events(raw(b": ping\n\n"), end=How.FIN),
    "a notification without an ID": events(progress(1), end=How.FIN),
    "an ID in a block that never ended": events(raw(b"id: e1\ndata: "), end=How.FIN),
    "an ID that was reset": events(prime("p0"), raw(b"id:\ndata:\n\n"), end=How.FIN),
    "an ID with NUL": events(raw(b"id: a\0b\ndata:\n\n"), end=How.FIN),
    "an ID over 8 KiB": events(prime("x" * 8193), end=How.FIN),
    "the session ID as the ID": events(progress(1, "session-A"), progress(2, "session-A"), end=How.FIN),
    "one ID for all events": events(progress(1, "1"), progress(2, "1"), end=How.FIN),
}


async def test_a_stream_without_a_cursor_is_doubt_at_once_and_never_opened_again(playing: Playing) -> None:
    mcp = Streams(events())
    async with playing(mcp) as (server, host):
        for what, mcp.first in UNPRIMED.items():
            assert (await host.call(what=what)).doubt is not None, what
        assert resumed_after(server) == []
        assert len(server.sent("GET")) == 1, "the standalone stream"
        assert host.outcomes == [Outcome.IN_DOUBT] * len(UNPRIMED)
    assert mcp.executed == ["charge"] * len(UNPRIMED)


INCOMPLETE = {
    "cut in its JSON": lambda whole: whole[:-10],
    "complete JSON without the blank line": lambda whole: whole[:-1],
    "its id line only": lambda whole: whole[: whole.index(b"\n") + 1],
    "half of its id line": lambda whole: b"id: x",
    "its data before its id": lambda whole: b"data: {}\nid: x2\n",
}


@pytest.mark.parametrize("end", [WHOLE, How.FIN, How.RST], ids=["end", "FIN", "RST"])
async def test_an_incomplete_event_is_no_event_and_moves_no_cursor(playing: Playing, end: Any) -> None:
    cut: Any = None

    async def first(call: Request, reply: Reply) -> None:
        primed, whole = f"e{len(mcp.executed)}", sse_event(tool_result(call.rpc_id, "done"), id="x")
        await events(prime(primed, 1), raw(cut(whole)), end=end)(call, reply)

    mcp = Streams(first)
    async with playing(mcp) as (server, host):
        for n, (what, cut) in enumerate(INCOMPLETE.items()):  # noqa: B007
            mcp.left = [events(answer(id=f"x{n}"))]
            assert await host.call() == Answer("done"), what
        assert resumed_after(server) == [f"e{n}" for n in range(1, 6)]


# --- own, inherited and odd IDs ---------------------------------------------------------------------


async def test_an_inherited_id_makes_neither_a_duplicate_nor_a_priming_event() -> None:
    shown = [note("A", "5"), note("B"), raw(b": ping\n\n"), note("C")]
    mcp = Streams(
        events(prime("4", 1), *shown, end=How.RST),
        events(*shown, note("D", "6"), answer(id="7")),
    )
    async with plainly(mcp) as (server, host):
        assert await host.call() == Answer("done")
        data = [m["params"]["data"] for m in host.messages if m.get("method") == "notifications/message"]
        assert data == ["A", "B", "C", "D"]
        assert resumed_after(server) == ["4"]
        assert host.grades == ["proven"]


@pytest.mark.parametrize("event_id", ["é☃-1", "日本語", "with space", "=?&#%", '"quoted"', "x" * 8192, "0", "-1"])
async def test_an_odd_id_is_sent_back_as_the_same_bytes(event_id: str) -> None:
    mcp = Streams(events(prime(event_id, 1), end=How.RST), events(answer(id="e1")))
    async with plainly(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == [event_id]


# --- resumes that bring nothing ---------------------------------------------------------------------

FRUITLESS: dict[str, Handler] = {
    "200 and a good end": events(),
    "200 and FIN": events(end=How.FIN),
    "the same priming ID": events(prime("e2", 1)),
    "headers never sent": steps(How.STALL),
    "a 200 of JSON": steps(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"),
    "202": refuse(202),
    "400": refuse(400),
    "401": refuse(401),
    "404": refuse(404),
    "405": refuse(405),
    "409": refuse(409),
    "410": refuse(410),
    "429": refuse(429),
    "500": refuse(500),
    "503": refuse(503),
    "RST": steps(How.RST),
}


@pytest.mark.parametrize("resume", FRUITLESS)
async def test_fruitless_resumes_end_in_doubt_and_the_session_lives_on(resume: str, waits: list[float]) -> None:
    mcp = Streams(events(*TWO_SEEN, end=How.RST), for_ever(FRUITLESS[resume]))
    policy = {**QUICK, "settle_after": 0.001, "max_attempts": 4, "max_idle": 0.06}
    async with plainly(mcp, policy=policy) as (server, host):
        assert (await host.call()).doubt is not None
        assert len(resumed_after(server)) <= 16
        mcp.first = events(answer("next"))
        assert (await host.call()).doubt is not None, "the very same call is not sent"
        assert await host.call(n=2) == Answer("next"), "neither the session nor a POST was touched"
        assert len(server.sent("POST", "initialize")) == 1
    assert mcp.executed == ["charge"] * 2


async def test_fruitless_resumes_within_settle_after_are_kept_up_ever_more_slowly(waits: list[float]) -> None:
    """An honest server may poll without news for as long as a tool runs; `retry: 0` must make no storm."""
    ends = [events(raw(b"retry: 0\n\n")) for _ in range(12)]
    mcp = Streams(events(prime("p1", 0), end=How.FIN), *ends, events(answer(id="e1")))
    async with plainly(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == ["p1"] * 13
        waited = waits[-12:]  # the first resume is at once, as `retry: 0` says
        assert sorted(waited[:7]) == waited[:7], waited
        assert 9 < waited[-1] <= 10


async def test_409_on_a_resume_means_that_the_server_has_not_noticed_the_cut_yet(playing: Playing) -> None:
    mcp = Streams(events(*TWO_SEEN, end=How.RST), *[refuse(409)] * 3, events(progress(2, "e2"), answer(id="e3")))
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == ["e1"] * 4
        assert host.grades == ["proven"]


REFUSALS: dict[str, Handler] = {"400": refuse(400), "200 and a good end": events()}
"""How servers say that they do not know an event ID; the second are the Python SDKs and FastMCP."""


@pytest.mark.parametrize("end", [WHOLE, How.FIN, How.RST], ids=["end", "FIN", "RST"])
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_refused_overlap_is_asked_once_more_with_the_exact_cursor(
    playing: Playing, refusal: str, end: Any
) -> None:
    """A log that was trimmed of what stands before the cursor holds all that follows it."""
    rest = events(progress(3, "x3"), progress(4, "x4"), answer(id="x5"))
    mcp = Streams(events(*TWO_SEEN, end=end), REFUSALS[refusal], rest)
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        await host.saw(1, 2, 3, 4)
        assert resumed_after(server) == ["e1", "e2"]
        assert host.grades == ["unverified"]
        assert not host.of(Discontinuity)
        assert host.outcomes == [Outcome.COMPLETED]
    assert mcp.executed == ["charge"]


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_so_it_is_at_the_next_cut(playing: Playing, refusal: str) -> None:
    rest: list[Handler] = [events(progress(3, "x3"), end=How.RST), events(progress(4, "x4"), answer(id="x5"))]
    if refusal != "400":  # a status is believed; what ended at once may have been about to go
        rest.insert(1, REFUSALS[refusal])
    mcp = Streams(events(*TWO_SEEN, end=How.RST), REFUSALS[refusal], *rest)
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        await host.saw(1, 2, 3, 4)
        assert resumed_after(server) == (["e1", "e2", "x3"] if refusal == "400" else ["e1", "e2", "e2", "x3"])
        assert set(host.grades) == {"unverified"}
        assert not host.of(Discontinuity)


@pytest.mark.parametrize("first", [progress(3, "x3"), note("foreign", "x3"), note("foreign")])
async def test_after_silence_the_answer_is_found_behind_what_cannot_be_proven(
    playing: Playing, first: Part
) -> None:
    """A server that was too slow to send the witness; what stands before the answer is not delivered."""
    mcp = Streams(
        events(*TWO_SEEN, end=How.RST), events(end=How.STALL), events(first, answer(id="x5"), end=How.STALL)
    )
    async with playing(mcp, policy=QUICK) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == ["e1", "e2"]
        assert host.grades == ["unverified"]
        assert [loss.reason for loss in host.of(Discontinuity)] == ["witness missing"]
        await host.saw(1, 2)
        await host.has_heard()


@pytest.mark.parametrize("beat", [raw(b"id: hb1\ndata:\n\n"), raw(b"event: ping\nid: hb1\ndata: x\n\n")])
async def test_a_heartbeat_that_the_log_does_not_hold_is_not_asked_for(playing: Playing, beat: Part) -> None:
    prime_, one, two = TWO_SEEN
    mcp = Streams(
        events(prime_, one, beat, two, end=How.RST), events(progress(2, "e2"), progress(3, "e3"), answer(id="e4"))
    )
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        await host.saw(1, 2, 3)
        assert resumed_after(server) == ["e1"]
        assert host.grades == ["proven"]


async def test_retry_after_is_kept_to_on_a_resume(waits: list[float]) -> None:
    mcp = Streams(
        events(*TWO_SEEN, end=How.RST), refuse(503, retry_after="7"), events(progress(2, "e2"), answer(id="e3"))
    )
    async with plainly(mcp) as (_, host):
        assert await host.call() == Answer("done")
        assert waits[-1] >= 7


# --- retry ------------------------------------------------------------------------------------------

RETRIES = {
    "50": (0.05, 0.1),
    "0": (0, 0.25),
    "3600000": (3600, 7200),
    "-5": (0, 0),
    "1.5": (0, 0),
    "+7000": (0, 0),
    "soon": (0, 0),
    "": (0, 0),
    "٣٠٠٠": (0, 0),
    "9" * 400: (0, 0),
}


@pytest.mark.parametrize("value", RETRIES, ids=lambda v: v[:8])
async def test_retry_is_the_floor_of_the_first_reconnect_and_only_digits_count(
    value: str, waits: list[float]
) -> None:
    """Never below it, nor above twice it (L4)."""
    least, most = RETRIES[value]
    mcp = Streams(events(prime("p1", value), end=How.FIN), events(answer(id="e1")))
    async with plainly(mcp) as (_, host):
        assert await host.call() == Answer("done")
        assert least <= waits[-1] <= most


async def test_a_retry_alone_in_its_block_counts(waits: list[float]) -> None:
    mcp = Streams(events(prime("p1"), raw(b"retry: 40\n\n"), end=How.FIN), events(answer(id="e1")))
    async with plainly(mcp) as (_, host):
        assert await host.call() == Answer("done")
        assert 0.04 <= waits[-1] <= 0.08


@pytest.mark.parametrize("event_id", ["p0", "e1", "e2"])
@pytest.mark.parametrize("last", ["retry: 1\n\n", "retry: 1\ndata:\n\n", "data: {}\n\n", ": bye\n\n"])
async def test_what_is_said_before_a_close_under_an_id_that_was_there_takes_no_cursor(
    playing: Playing, event_id: str, last: str
) -> None:
    """A server that polls says the wait before it closes (SEP-1699)."""
    mcp = Streams(
        events(*TWO_SEEN, raw(f"id: {event_id}\n{last}".encode())), events(progress(2, "e2"), answer(id="e3"))
    )
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == ["e1"]
        assert host.grades == ["proven"]


# --- recheck, resumed -------------------------------------------------------------------------------


async def test_a_resumed_stream_that_stays_silent_is_resumed_again_from_its_overlap_point(
    playing: Playing,
) -> None:
    """Servers lose what falls between replay and live tail; the answer is in their log all the same."""
    mcp = Streams(
        events(*TWO_SEEN, end=How.RST),
        events(progress(2, "e2"), end=How.STALL),
        events(progress(2, "e2"), raw(b": ping\n\n"), end=How.STALL),
        events(progress(2, "e2"), answer(id="e3")),
    )
    async with playing(mcp, policy={"recheck": 0.02}) as (server, host):
        assert await host.call() == Answer("done")
        assert resumed_after(server) == ["e1"] * 3
        assert host.grades == ["proven"] * 3
        await host.saw(1, 2)


async def test_what_fell_between_replay_and_live_tail_is_fetched_before_the_answer_is_given(
    playing: Playing,
) -> None:
    """SDK 1.30 and FastMCP 4 prime again at the end of the replay, and never send what came just then."""
    mcp = Streams(
        events(*TWO_SEEN, end=How.RST),
        events(progress(2, "e2"), prime("p9"), answer(id="e5")),
        events(progress(2, "e2"), progress(3, "e3"), progress(4, "e4"), answer(id="e5")),
    )
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        await host.saw(1, 2, 3, 4)
        assert resumed_after(server) == ["e1", "e1"]
        assert not host.of(Discontinuity)
        assert host.outcomes == [Outcome.COMPLETED]


async def test_what_fell_out_before_something_that_was_delivered_is_reported(playing: Playing) -> None:
    """Too late to deliver it in order (S3): a loss that is told is no silent one (S4)."""
    mcp = Streams(
        events(*TWO_SEEN, end=How.RST),
        events(progress(2, "e2"), prime("p9"), progress(4, "e4"), answer(id="e5")),
        events(progress(2, "e2"), progress(3, "e3"), progress(4, "e4"), answer(id="e5")),
    )
    async with playing(mcp) as (_, host):
        assert await host.call() == Answer("done")
        await host.saw(1, 2, 4)
        assert len(host.of(Discontinuity)) == 1


@pytest.mark.parametrize("look", FRUITLESS)
async def test_an_answer_that_is_held_is_given_whatever_becomes_of_the_last_look(
    look: str, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "_CLOSING_SECONDS", 0.05)
    replay = events(progress(2, "e2"), prime("p9"), answer(id="e5"))
    mcp = Streams(events(*TWO_SEEN, end=How.RST), replay, for_ever(FRUITLESS[look]))
    async with plainly(mcp, policy=QUICK) as (server, host):
        assert await host.call() == Answer("done")
        assert host.outcomes == [Outcome.COMPLETED]
        mcp.first = events(answer("next"))
        assert await host.call() == Answer("next")
        assert len(resumed_after(server)) < 8


async def test_recheck_is_never_sooner_than_retry(playing: Playing) -> None:
    answered = anyio.Event()

    async def late(call: Request, reply: Reply) -> None:
        await reply.open_sse()
        await reply.event(id="p9", data="", retry=3_600_000)
        await reply.event(sse_event_message(call, 2), id="e2")
        await anyio.sleep(0.06)
        await reply.event(tool_result(call.rpc_id, "done"), id="e3")
        answered.set()

    def sse_event_message(call: Request, value: float) -> Any:
        token = call.json["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": value}
        return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}

    mcp = Streams(events(*TWO_SEEN, end=How.RST), late)
    async with playing(mcp, policy={"recheck": 0.01}) as (server, host):
        assert await host.call() == Answer("done")
        assert len(resumed_after(server)) == 1


@pytest.mark.parametrize("word", ["true", "false"])
@pytest.mark.parametrize("form", ["header", "event"])
async def test_the_servers_own_word_on_a_resume_is_heard(playing: Playing, word: str, form: str) -> None:
    """A cursor was never seen with an event after it, so that nothing overlaps: the word is all there is."""
    said = raw(f'event: resumed\ndata: {{"resumed": {word}}}\n\n'.encode())
    parts = [said, answer("x", "e1")] if form == "event" else [answer("x", "e1")]
    headers = {"Mcp-Resumed": word} if form == "header" else {}
    mcp = Streams(events(prime("p1", 1), end=How.RST), events(*parts, headers=headers))
    async with playing(mcp) as (_, host):
        got = await host.call()
        if word == "true":
            assert got == Answer("x")
            assert host.grades == ["consistent"]
        else:
            assert got.doubt is not None
            assert host.grades == ["broken"]


async def test_no_word_of_the_server_outweighs_a_missing_witness(playing: Playing) -> None:
    mcp = Streams(
        events(*TWO_SEEN, end=How.RST),
        events(note("foreign", "e8"), note("foreign", "e9"), headers={"Mcp-Resumed": "true"}),
    )
    async with playing(mcp, policy=QUICK) as (_, host):
        assert (await host.call()).doubt is not None
        await host.has_heard()


async def test_a_comment_is_liveness_and_no_progress() -> None:
    """A resume with a comment only is as fruitless as an empty one."""
    mcp = Streams(events(*TWO_SEEN, end=How.RST), for_ever(events(raw(b": ping\n\n"), end=How.FIN)))
    async with plainly(mcp, policy={**QUICK, "settle_after": 0.001}) as (_, host):
        assert (await host.call()).doubt is not None


async def test_a_resume_carries_session_and_version_and_asks_for_events_only() -> None:
    mcp = Streams(events(prime("p1", 1), end=How.RST), events(answer(id="e1")))
    async with plainly(mcp) as (server, host):
        await host.call()
        resume = next(r for r in server.sent("GET") if r.last_event_id)
        assert resume.session_id == "session-A"
        assert resume.header("mcp-protocol-version") == "2025-11-25"
        assert resume.header("accept") == "text/event-stream"
        call = server.sent("POST", "tools/call")[0]
        assert {part.strip() for part in str(call.header("accept")).split(",")} == {
            "application/json",
            "text/event-stream",
        }


async def test_a_server_without_sessions_but_with_event_ids_is_resumed_all_the_same() -> None:
    mcp = Streams(events(*TWO_SEEN, end=How.RST), events(progress(2, "e2"), answer(id="e3")), session=None)
    async with plainly(mcp) as (server, host):
        assert await host.call() == Answer("done")
        assert server.sent("GET")[0].session_id is None
        assert host.grades == ["proven"]


async def test_every_request_of_any_method_is_resumed() -> None:
    async def other(request: Request, reply: Reply) -> None:
        mcp.called = request
        await events(prime("p1", 1), end=How.RST)(request, reply)

    mcp = Streams(events(), events(answer("listed", "e1")), other=other)
    async with plainly(mcp) as (_, host):
        got = await host.request("resources/read", {"uri": "x://y"})
        assert got["result"]["content"][0]["text"] == "listed"


async def test_initialize_itself_may_be_answered_by_a_stream_that_is_cut() -> None:
    class Cut(ScriptedMcp):
        async def initialize(self, request: Request, reply: Reply) -> None:
            self.asked = request
            await events(prime("i0", 1), end=How.RST, session="session-A")(request, reply)

        async def resume(self, request: Request, reply: Reply) -> None:
            await reply.open_sse()
            await reply.event(self.initialized(self.asked), id="i1")
            await reply.finish()

    async with plainly(Cut()) as (server, host):
        assert await host.call() == Answer("charge")
        assert server.sent("POST", "tools/call")[0].session_id == "session-A"
