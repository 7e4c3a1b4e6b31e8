"""The kit's event log tells a resume from a gap: every condition of the seeds, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.testing import EventLog, Lie, Reason, Refusal, Replay, SessionStore
from mcp_client_guard.testing.lies import BridgingStore, tell


def message(n: int) -> Any:
    return {"jsonrpc": "2.0", "method": f"m{n}"}


def filled(n: int, stream: str = "get-1", **options: Any) -> EventLog:
    """A log with this many events on one stream, of which nothing was sent."""
    log = EventLog("7f3a", **options)
    for number in range(1, n + 1):
        log.append(stream, message(number))
    return log


def fill(log: EventLog, events: int = 9) -> None:
    """With another stream's events, of which it may retain fewer."""
    for n in range(events):
        log.append("call-2", message(n))


def replayed(answer: Replay | Refusal) -> list[int]:
    assert isinstance(answer, Replay), answer
    return [entry.number for entry in answer.entries]


def reason(answer: Replay | Refusal) -> Reason:
    assert isinstance(answer, Refusal), answer
    return answer.reason


# Honoured.


def test_what_follows_a_cursor_is_replayed_whole_and_in_order() -> None:
    log = filled(5)
    assert replayed(log.resume("http:7f3a/get-1/2")) == [3, 4, 5]


def test_a_cursor_at_the_head_is_honoured_by_nothing() -> None:
    assert replayed(filled(5).resume("http:7f3a/get-1/5")) == []


def test_only_the_cursors_own_stream_is_replayed() -> None:
    log = filled(2)
    log.append("call-2", message(9))
    log.append("get-1", message(3))
    assert replayed(log.resume("http:7f3a/get-1/1")) == [2, 3]


def test_a_finished_stream_can_still_be_resumed() -> None:
    log = filled(3)
    log.finish("get-1")
    assert replayed(log.resume("http:7f3a/get-1/1")) == [2, 3]


def test_every_event_has_an_id_of_its_own() -> None:
    log = filled(3)
    entries = [*log.held("get-1"), log.append("call-2"), log.append("call-3")]
    assert len({entry.event_id for entry in entries}) == 5


@pytest.mark.parametrize("generation", ["http", "sse", "streamable-http"])
@pytest.mark.parametrize("name", ["7f3a", "user:17", "año", "1.5"])
def test_whatever_it_may_be_called_it_knows_its_own_ids_again(generation: str, name: str) -> None:
    log = EventLog(name, generation)
    first = log.append(name, message(1))
    log.append(name, message(2))
    assert replayed(log.resume(first.event_id)) == [2]


@pytest.mark.parametrize("name", ["", "a/b", "a b", " a", "a\n", "a\0", "\ud83d"])
def test_a_name_that_cannot_be_read_back_out_of_an_id_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot stand in an event ID"):
        EventLog(name)
    with pytest.raises(ValueError, match="cannot stand in an event ID"):
        EventLog("7f3a").append(name)
    for generation in (name, "a:b"):
        with pytest.raises(ValueError, match="cannot stand in an event ID"):
            EventLog("7f3a", generation)


# Refused.


@pytest.mark.parametrize(
    ("cursor", "why"),
    [
        ("http:7f3a/get-1/6", Reason.NEVER_ISSUED),
        ("http:7f3a/get-1/0", Reason.NEVER_ISSUED),
        ("http:7f3a/get-1/02", Reason.NEVER_ISSUED),
        ("http:7f3a/get-2/2", Reason.NEVER_ISSUED),
        ("http:7f3a/get-1/1.2", Reason.NEVER_ISSUED),
        ("http:7f3a/get-1/" + "9" * 5000, Reason.NEVER_ISSUED),
        ("http:7f3a/get-1/\N{ARABIC-INDIC DIGIT TWO}", Reason.NEVER_ISSUED),
        (" http:7f3a/get-1/2", Reason.NEVER_ISSUED),
        ("e-104", Reason.NEVER_ISSUED),
        ("", Reason.NEVER_ISSUED),
        ("sse:7f3a/get-1/2", Reason.GENERATION),
        ("http:0000/get-1/2", Reason.SESSION),
    ],
)
def test_a_foreign_cursor_is_refused(cursor: str, why: Reason) -> None:
    assert reason(filled(5).resume(cursor)) is why


def test_a_cursor_of_another_stream_than_the_one_asked_for_is_refused() -> None:
    log = filled(3)
    assert reason(log.resume("http:7f3a/get-1/2", stream="call-2")) is Reason.STREAM
    assert replayed(log.resume("http:7f3a/get-1/2", stream="get-1")) == [3]


def test_a_cursor_is_refused_as_soon_as_an_event_behind_it_is_trimmed() -> None:
    log = filled(100, retained=10)
    assert reason(log.resume("http:7f3a/get-1/89")) is Reason.TRIMMED
    assert replayed(log.resume("http:7f3a/get-1/90")) == list(range(91, 101))


def test_a_quiet_stream_is_not_trimmed_to_nothing_by_another_of_the_session() -> None:
    log = sent(filled(3, retained=3), 3)
    fill(log)
    assert reason(log.resume("http:7f3a/get-1/1")) is Reason.TRIMMED
    assert replayed(log.resume("http:7f3a/get-1/2")) == [3]
    assert replayed(log.resume("http:7f3a/get-1/3")) == [3], "a drain race"


def test_a_finished_stream_is_trimmed_whole_and_its_end_is_a_drain_race_that_is_refused() -> None:
    log = sent(filled(2, retained=3), 2)
    log.finish("get-1")
    fill(log)
    assert log.held("get-1") == ()
    assert reason(log.resume("http:7f3a/get-1/1")) is Reason.TRIMMED
    assert reason(log.resume("http:7f3a/get-1/2")) is Reason.DRAIN_RACE


def test_the_newest_are_retained_and_besides_these_the_ends_of_streams_that_go_on() -> None:
    log = EventLog("7f3a", retained=2)
    for stream in ("get-1", "call-2", "call-3"):
        log.append(stream, message(1))
        log.append(stream, message(2))
    assert [len(log.held(stream)) for stream in ("get-1", "call-2", "call-3")] == [1, 1, 2]


@pytest.mark.parametrize(("old_end", "again"), [(None, [2]), (message(1), [1, 2])])
def test_a_quiet_stream_can_be_resumed_from_its_old_end_when_news_comes(old_end: Any, again: list[int]) -> None:
    log = EventLog("7f3a", retained=3)
    quiet = log.append("get-1", old_end)
    log.sent(quiet)
    fill(log)
    log.append("get-1", message(2))
    fill(log)
    assert replayed(log.resume(quiet.event_id)) == again
    log.append("get-1", message(3))
    fill(log)
    assert reason(log.resume(quiet.event_id)) is Reason.TRIMMED
    assert [entry.number for entry in log.held("get-1")] == [3]


def test_a_call_that_was_cut_behind_its_priming_event_is_resumed_as_long_as_its_answer_is_held() -> None:
    log = EventLog("7f3a", retained=3)
    priming = log.append("call-1")
    log.sent(priming)
    log.append("call-1", message(2))
    log.finish("call-1")
    fill(log, 2)
    assert replayed(log.resume(priming.event_id)) == [2]
    fill(log, 1)
    assert reason(log.resume(priming.event_id)) is Reason.TRIMMED
    assert log.held("call-1") == ()


def test_a_hole_behind_the_cursor_is_refused_and_none_other() -> None:
    log = filled(5)
    log.lose("http:7f3a/get-1/3")
    assert reason(log.resume("http:7f3a/get-1/1")) is Reason.HOLE
    assert reason(log.resume("http:7f3a/get-1/2")) is Reason.HOLE
    assert replayed(log.resume("http:7f3a/get-1/3")) == [4, 5]


def test_a_fork_refuses_what_the_branch_left_behind_has_issued() -> None:
    log = filled(5)
    log.fork("get-1", 3)
    assert replayed(log.resume("http:7f3a/get-1/2")) == [3]
    assert reason(log.resume("http:7f3a/get-1/4")) is Reason.FORKED
    fourth = log.append("get-1", message(44))
    assert reason(log.resume("http:7f3a/get-1/4")) is Reason.FORKED
    assert replayed(log.resume("http:7f3a/get-1/3")) == [4]
    assert replayed(log.resume(fourth.event_id)) == []


@pytest.mark.parametrize(("second", "alive"), [(2, [1, 2]), (4, [1, 2, 3, 4])])
def test_a_second_fork_leaves_what_is_before_it(second: int, alive: list[int]) -> None:
    log = filled(5)
    log.fork("get-1", 3)
    ids = [log.event_id("get-1", 1), log.event_id("get-1", 2), log.event_id("get-1", 3)]
    ids += [log.append("get-1", message(n)).event_id for n in (4, 5)]
    log.fork("get-1", second)
    honoured = [n for n, event_id in enumerate(ids, start=1) if isinstance(log.resume(event_id), Replay)]
    assert honoured == alive


def test_a_superseded_stream_is_refused_and_nothing_follows_on_it() -> None:
    log = filled(3)
    log.supersede("get-1")
    assert reason(log.resume("http:7f3a/get-1/2")) is Reason.SUPERSEDED
    assert log.is_finished("get-1")


# The drain race (first seed).


def sent(log: EventLog, up_to: int) -> EventLog:
    for entry in log.held("get-1")[:up_to]:
        log.sent(entry)
    return log


def test_a_cursor_at_the_last_event_sent_is_the_tell_and_its_event_comes_again() -> None:
    answer = sent(filled(5), 3).resume("http:7f3a/get-1/3")
    assert replayed(answer) == [3, 4, 5]
    assert isinstance(answer, Replay)
    assert answer.drain_race
    assert answer.after == 2


@pytest.mark.parametrize("cursor", [2, 4])
def test_any_other_cursor_is_no_race(cursor: int) -> None:
    answer = sent(filled(5), 3).resume(f"http:7f3a/get-1/{cursor}")
    assert isinstance(answer, Replay)
    assert not answer.drain_race
    assert replayed(answer) == list(range(cursor + 1, 6))


def test_a_priming_event_carries_nothing_that_could_be_lost() -> None:
    log = EventLog("7f3a")
    log.sent(log.append("get-1"))
    answer = log.resume("http:7f3a/get-1/1")
    assert isinstance(answer, Replay)
    assert not answer.drain_race


def test_the_race_can_be_refused() -> None:
    log = sent(filled(5, refuse_drain_race=True), 3)
    assert reason(log.resume("http:7f3a/get-1/3")) is Reason.DRAIN_RACE
    assert replayed(log.resume("http:7f3a/get-1/2")) == [3, 4, 5]


# Sessions.


def test_a_session_of_one_generation_is_unknown_to_the_other() -> None:
    store = SessionStore()
    legacy = store.open("sse")
    assert store.find(legacy.session_id, "http") is None
    assert store.find(legacy.session_id, "sse") is legacy
    assert store.find(None, "sse") is None


def test_every_session_has_a_log_of_its_own_whose_name_is_not_its_id() -> None:
    store = SessionStore()
    one, two = store.open("http"), store.open("http")
    entry = one.append("get-1", message(1))
    assert reason(two.resume(entry.event_id)) is Reason.SESSION
    assert one.session_id not in entry.event_id
    assert one.session_id not in repr(one) + repr(store)


def test_a_closed_session_is_unknown() -> None:
    store = SessionStore()
    session = store.open("http")
    store.close(session)
    store.close(session)
    assert store.find(session.session_id, "http") is None


# Lies.


UNTOLD = {Lie.SHARED_ALLOCATOR, Lie.CURSOR_ON_POST, *(lie for lie in Lie if lie.value.startswith("upgrade"))}
"""Those that are told elsewhere than on a resume."""


@pytest.mark.parametrize("lie", [lie for lie in Lie if lie not in UNTOLD])
def test_a_lie_is_told_only_of_cursors_that_are_the_sessions_own(lie: Lie) -> None:
    store = SessionStore()
    session = store.open("http")
    entries = [session.append("get-1", message(n)) for n in range(3)]
    assert tell(lie, store, session, "http:0000/get-1/1") is None
    assert tell(lie, store, session, entries[0].event_id) is not None


def test_a_shared_allocator_takes_a_legacy_cursor_and_replays_strictly_behind_it() -> None:
    """The first seed's server: the event that the cursor names never comes again."""
    store = BridgingStore()
    legacy = store.open("sse")
    entries = [legacy.append("sse-1", message(n)) for n in range(5)]
    for entry in entries:
        legacy.log.sent(entry)
    assert [entry.event_id for entry in entries] == ["e-100", "e-101", "e-102", "e-103", "e-104"]
    bridged = store.find(legacy.session_id, "http")
    assert bridged is legacy
    later = legacy.append("sse-1", message(5))
    answer = bridged.resume("e-104")
    assert isinstance(answer, Replay)
    assert [entry.event_id for entry in answer.entries] == [later.event_id] == ["e-105"]
    assert reason(bridged.resume("e-999")) is Reason.NEVER_ISSUED
