"""The standalone stream: no final budget, no storm, never at the cost of a request, and never silently deaf."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Get, Hangup, Post, Report, SetTimer
from mcp_client_guard.core.inputs import UNREADABLE, BodyReceived
from mcp_client_guard.core.machine import Machine
from mcp_client_guard.core.model import CursorDropped, CursorMoved, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import (
    Disconnected,
    Discontinuity,
    DuplicateDropped,
    RefreshSuggested,
    Resumed,
    SessionLost,
    StandaloneUnavailable,
    UnreadableDropped,
)
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import (
    Driver,
    Peer,
    delivered,
    evidence,
    in_doubt,
    note,
    of,
    outcomes,
    records,
    reports,
)


@pytest.fixture
def driver() -> Driver:
    return Driver().opened(standalone=True)


@pytest.fixture
def stream(driver: Driver) -> Peer:
    return driver.standalone


def unopened() -> Driver:
    """A live session whose first GET has not been answered."""
    driver = Driver()
    driver.initialize()
    driver.notify("notifications/initialized")
    driver.elapse(TimerKind.CONFIRM)
    return driver


LISTS = ["notifications/tools/list_changed", "notifications/resources/list_changed"]


def refreshed(actions: list[Any]) -> list[str]:
    return [m["method"] for m in delivered(actions) if m["method"].endswith("list_changed")]


# Offered or not.


@pytest.mark.parametrize("status", [400, 404, 405, 406, 410, 501])
def test_a_server_that_refuses_the_first_get_offers_no_such_stream(status: int) -> None:
    driver = unopened()
    actions = driver.standalone.refuse(status)
    assert reports(actions, StandaloneUnavailable)
    assert not of(actions, Get)
    assert driver.call().is_open, "requests are not touched"


@pytest.mark.parametrize("status", [401, 409, 429, 500, 503])
def test_a_first_get_that_may_yet_succeed_is_tried_again(status: int) -> None:
    actions = unopened().standalone.refuse(status)
    assert of(actions, Get)[0].delay.attempt == 1


SUSPECT = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Method not allowed."}}


@pytest.mark.parametrize("failed_before", [False, True])
@pytest.mark.parametrize(
    ("status", "body", "media_type", "why"),
    [
        (200, {"name": "srv"}, "application/json", "HTTP 200, application/json, and no event stream"),
        (200, UNREADABLE, "text/html", "HTTP 200, text/html, and no event stream"),
        (202, None, "", "HTTP 202, no media type, and no event stream"),
        (204, None, "", "HTTP 204, no media type, and no event stream"),
        (200, SUSPECT, "application/json", "HTTP 200, application/json, and no event stream"),
    ],
)
def test_a_first_get_that_is_answered_without_events_is_told_and_not_asked_again(
    status: int, body: Any, media_type: str, why: str, failed_before: bool
) -> None:
    driver = unopened()
    if failed_before:
        driver.standalone.refuse(503)
    driver.standalone.accept(events=False, status=status)
    told = BodyReceived(0, driver.standalone.connection, body, status, media_type)
    actions = driver.feed(told)
    assert reports(actions, StandaloneUnavailable) == [StandaloneUnavailable(why)]
    assert not of(actions, Get)
    assert [post.message["method"] for post in of(actions, Post)] == ["ping"] * (body is SUSPECT)
    assert driver.call().is_open, "requests are not touched"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("cut", "HTTP 200, a body that was cut (ReadError), and no event stream"),
        ("large", "HTTP 200, a body larger than max_event_size (16777216 bytes), and no event stream"),
    ],
)
def test_nor_is_one_whose_body_cannot_be_read(how: str, why: str) -> None:
    driver = unopened()
    driver.standalone.accept(events=False)
    actions = driver.standalone.cut("ReadError") if how == "cut" else driver.standalone.too_large()
    assert reports(actions, StandaloneUnavailable) == [StandaloneUnavailable(why)]
    assert not of(actions, Get)


def test_nor_one_that_is_led_elsewhere() -> None:
    actions = unopened().standalone.refuse(302, location="https://login.example/")
    why = "HTTP 302, redirected to https://login.example/, which was not followed"
    assert reports(actions, StandaloneUnavailable) == [StandaloneUnavailable(why)]
    assert not of(actions, Get)


def test_nor_one_that_is_refused_after_attempts_that_failed() -> None:
    driver = unopened()
    driver.standalone.cut("ConnectError", written=False)
    driver.standalone.refuse(503)
    assert reports(driver.standalone.refuse(404), StandaloneUnavailable)


@pytest.mark.parametrize("how", ["body", "cut", "redirect"])
def test_of_one_that_was_open_it_is_told_and_it_is_asked_again(stream: Peer, how: str) -> None:
    stream.cut()
    if how == "redirect":
        actions, why = stream.refuse(302), "HTTP 302"
    else:
        stream.accept(events=False)
        actions = stream.body(None) if how == "body" else stream.cut("ReadError")
        came = "no media type" if how == "body" else "a body that was cut (ReadError)"
        why = f"HTTP 200, {came}, and no event stream"
    assert [(told.reason, told.attempt) for told in reports(actions, Disconnected)] == [(why, 1)]
    assert of(actions, Get)
    assert not reports(actions, StandaloneUnavailable)


def test_a_405_that_comes_later_ends_the_stream_and_nothing_else(driver: Driver, stream: Peer) -> None:
    call = driver.call()
    stream.cut()
    actions = stream.refuse(405)
    assert reports(actions, StandaloneUnavailable)
    assert not stream.is_open
    call.accept(events=False)
    assert outcomes(call.body(call.result())) == [Outcome.COMPLETED]


def test_a_404_while_posts_work_is_tried_again_ever_more_slowly(stream: Peer) -> None:
    stream.cut()
    attempts = [of(stream.refuse(404), Get)[0].delay.attempt for _ in range(20)]
    assert attempts == list(range(2, 22))
    assert isinstance(stream.order, Get)
    assert stream.order.delay.cap == 60.0


@pytest.mark.parametrize(("code", "asks"), [(-32001, True), (-32603, False)])
def test_an_error_with_200_that_may_mean_a_lost_session_has_it_asked(
    driver: Driver, stream: Peer, code: int, asks: bool
) -> None:
    """Or the next charge would be the one that finds it out."""
    stream.cut()
    stream.accept(events=False)
    actions = stream.body({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "no such session"}})
    assert [post.message["method"] for post in of(actions, Post)] == ["ping"] * asks
    assert of(actions, Get)


def test_a_409_is_waited_out_and_the_old_connection_closed_first(stream: Peer) -> None:
    stream.cut()
    for _ in range(30):
        actions = stream.refuse(409)
        assert [type(a) for a in actions[-2:]] == [Hangup, Get]
    assert stream.accept() != []


@pytest.mark.parametrize("status", [409, 410])
def test_a_gap_means_nothing_where_nothing_was_resumed(stream: Peer, status: int) -> None:
    stream.cut()
    actions = stream.refuse(status, {"resume_gap": True})
    assert not reports(actions, Discontinuity)
    assert of(actions, Get)


def test_a_session_id_of_another_session_ends_the_stream_and_the_session(driver: Driver, stream: Peer) -> None:
    stream.event("s1", note("a"))
    stream.event("s2", note("b"))
    stream.cut()
    actions = stream.accept(session_id="session-two")
    assert reports(actions, SessionLost)
    assert reports(actions, Discontinuity)
    assert reports(actions, Resumed)
    assert not stream.is_open
    fresh = unopened()
    actions = fresh.standalone.accept(session_id="session-two")
    assert reports(actions, Discontinuity)
    assert not reports(actions, Resumed)


def test_one_that_answers_under_another_session_id_while_the_host_opens_a_session_is_over(
    driver: Driver, stream: Peer
) -> None:
    stream.event("s1", note("a"))
    stream.cut()
    driver.request("initialize", {"protocolVersion": "2025-11-25"})
    actions = stream.accept(session_id="session-two")
    assert reports(actions, Discontinuity)
    assert not stream.is_open
    assert delivered(stream.event("s2", note("b"))) == []


def test_a_lost_session_closes_it(driver: Driver, stream: Peer) -> None:
    driver.call().refuse(404)
    assert not stream.is_open


def test_there_is_one_per_session(driver: Driver, stream: Peer) -> None:
    peer = driver.peer(driver.notify("notifications/initialized")[0].stream)  # type: ignore[union-attr]
    actions = peer.accept(status=202, events=False)
    assert not of(actions, Get)
    assert stream.is_open


# Reconnecting.


@pytest.mark.parametrize("retry", [None, 500, 30_000_000])
def test_how_long_the_server_has_us_wait_is_told(stream: Peer, retry: int | None) -> None:
    """It may have taken milliseconds for something else, and nothing comes till then."""
    stream.event(None, None, retry=retry)
    (told,) = reports(stream.end(), Disconnected)
    assert told.wait == (retry or 0) / 1000


@pytest.mark.parametrize(("status", "retry_after"), [(429, 60), (429, 3600), (503, 60), (503, 3600)])
def test_a_long_wait_that_a_refusal_asks_for_is_told(stream: Peer, status: int, retry_after: int) -> None:
    stream.end()
    actions = stream.refuse(status, retry_after=retry_after)
    assert [told.wait for told in reports(actions, Disconnected)] == [retry_after]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 429])
def test_one_that_was_open_and_is_refused_from_now_on_is_told_by_attempt(stream: Peer, status: int) -> None:
    """The C# SDK has 400 for each GET but the first of a session, mcp-go for some minutes."""
    stream.end()
    told = [reports(stream.refuse(status), Disconnected) for _ in range(3)]
    assert [[(one.attempt, one.reason) for one in each] for each in told] == [
        [(attempt, f"HTTP {status}")] for attempt in (1, 2, 3)
    ]


def test_ends_for_ever_with_retry_zero_make_no_storm(stream: Peer) -> None:
    attempts = []
    for _ in range(20):
        stream.event(None, None, retry=0)
        attempts.append(of(stream.end(), Get)[0].delay.attempt)
        stream.accept()
    assert attempts == list(range(1, 21))


def test_a_fresh_priming_event_each_time_makes_no_storm_either(stream: Peer) -> None:
    attempts = []
    for number in range(20):
        stream.event(f"p{number}", None, retry=0)
        attempts.append(of(stream.end(), Get)[0].delay.attempt)
        stream.accept()
    assert attempts[-1] >= 15
    assert attempts == sorted(attempts)


@pytest.mark.parametrize("primed", [True, False])
def test_a_connection_that_lived_ten_seconds_resets_the_delay(stream: Peer, primed: bool) -> None:
    for number in range(5):
        if primed:
            stream.event(f"p{number}", None)
        stream.end()
        stream.accept()
    assert of(stream.end(after=9.9), Get)[0].delay.attempt > 1
    stream.accept()
    assert of(stream.end(after=10), Get)[0].delay.attempt == 0


@pytest.mark.parametrize(("retry", "paced"), [(None, False), (0, False), (9, False), (10, True), (3000, True)])
@pytest.mark.parametrize("ids", [True, False])
def test_a_message_resets_the_delay_only_where_the_server_names_a_pace(
    stream: Peer, retry: int | None, paced: bool, ids: bool
) -> None:
    """A server that greets each connection with a message and ends it must not be stormed."""
    attempts = []
    for number in range(8):
        stream.event(f"s{number}" if ids else None, note(str(number)), retry=retry)
        attempts.append(of(stream.end(), Get)[0].delay.attempt)
        stream.accept()
    assert attempts == ([0] * 8 if paced else list(range(1, 9)))


def test_a_pace_alone_without_anything_new_does_not_reset_the_delay(stream: Peer) -> None:
    attempts = []
    for _ in range(5):
        stream.event(None, None, retry=3000)
        attempts.append(of(stream.end(), Get)[0].delay.attempt)
        stream.accept()
    assert attempts == [1, 2, 3, 4, 5]


def test_it_is_never_given_up(stream: Peer) -> None:
    for _ in range(200):
        assert of(stream.cut("ConnectError"), Get)


def test_a_2xx_without_events_is_tried_again_ever_more_slowly(stream: Peer) -> None:
    stream.cut()
    attempts = []
    for _ in range(4):
        assert stream.accept(events=False, status=204) == []
        attempts.append(of(stream.body(None), Get)[0].delay.attempt)
    assert attempts == [2, 3, 4, 5]


def test_an_idle_connection_without_a_cursor_is_asked_about_and_unanswered_it_is_cut(driver: Driver) -> None:
    stream = driver.standalone
    assert not of(stream.idle(), Get)
    stream.cut()
    actions = stream.idle()
    assert of(actions, Hangup)
    assert of(actions, Get)


# Continuity.


@pytest.fixture
def identified(stream: Peer) -> Peer:
    """A standalone stream that has received s1 and s2."""
    stream.event("s1", note("a"))
    stream.event("s2", note("b"))
    return stream


def test_with_event_ids_it_is_resumed_and_proven_like_any_other(identified: Peer) -> None:
    identified.resumed()
    assert identified.asked == "s1"
    actions = identified.event("s2", note("b"))
    assert str(evidence(actions)[0]).startswith("PROVEN")
    assert refreshed(actions) == []
    assert delivered(identified.event("s3", note("c"))) == [note("c")]


def test_a_heartbeat_under_the_id_that_holds_leaves_its_place_on_disk(driver: Driver, identified: Peer) -> None:
    assert records(driver.drain(2), CursorMoved)
    assert not records(identified.event("s2"), CursorDropped)
    identified.cut()
    assert identified.asked == "s1"


def test_without_event_ids_nothing_is_stored_and_each_reopen_suggests_a_refresh(
    driver: Driver, stream: Peer
) -> None:
    stream.event(None, note("a"))
    assert not records(driver.drain(99), CursorMoved)
    assert stream.cut()[-1] == of(driver.log, Get)[-1]
    assert stream.asked is None
    actions = stream.accept()
    assert refreshed(actions) == LISTS
    assert reports(actions, RefreshSuggested)


def test_subscribed_resources_are_refreshed_too(driver: Driver, stream: Peer) -> None:
    for uri in ("b:", "a:", 7):
        sent = driver.request("resources/subscribe", {"uri": uri})
        sent.accept(events=False)
        sent.body(sent.result({}))
    sent = driver.request("resources/unsubscribe", {"uri": "b:"})
    sent.accept(events=False)
    sent.body(sent.result({}))
    stream.cut()
    updated = [m for m in delivered(stream.accept()) if m["method"] == "notifications/resources/updated"]
    assert [m["params"]["uri"] for m in updated] == ["a:"]


def test_a_server_without_lists_needs_no_refresh() -> None:
    driver = Driver()
    driver.initialize(result={"capabilities": {}})
    driver.notify("notifications/initialized")
    driver.elapse(TimerKind.CONFIRM)
    driver.standalone.accept()
    driver.standalone.cut()
    assert not reports(driver.standalone.accept(), RefreshSuggested)


def test_a_refresh_comes_at_most_once_a_minute_and_one_too_soon_is_made_up_for(
    driver: Driver, stream: Peer
) -> None:
    stream.cut()
    assert refreshed(stream.accept()) == LISTS
    stream.cut(after=20)
    actions = stream.accept()
    assert refreshed(actions) == []
    assert [a.seconds for a in of(actions, SetTimer)] == [40]
    assert refreshed(driver.elapse(TimerKind.REFRESH)) == LISTS
    stream.cut(after=61)
    assert refreshed(stream.accept()) == LISTS


def test_a_refresh_that_is_due_in_a_lost_session_is_not_made(driver: Driver, stream: Peer) -> None:
    for _ in range(2):
        stream.cut()
        stream.accept()
    driver.call().refuse(404)
    assert driver.elapse(TimerKind.REFRESH) == []


@pytest.mark.parametrize("how", ["silence", "event"])
def test_after_an_unproven_reopen_the_cursor_is_dropped_and_a_refresh_suggested(
    driver: Driver, stream: Peer, how: str
) -> None:
    stream.event("s1", note("a"))
    driver.drain(99)
    stream.resumed()
    actions = driver.elapse(TimerKind.WITNESS) if how == "silence" else stream.event("s2", note("b"))
    assert records(actions, CursorDropped)
    assert refreshed(actions) == LISTS
    assert (note("b") in delivered(actions)) is (how == "event")
    stream.cut()
    assert stream.asked == (None if how == "silence" else "s2")


@pytest.fixture
def cut_with_a_call(driver: Driver, stream: Peer) -> Peer:
    """On a server that replays all streams: the log is `p`, `e1`, `s1`, `e2`. Both streams were cut."""
    call = driver.call().stream_up("e1")
    stream.event("s1", note("for you"))
    call.event("e2", call.progress(2))
    stream.cut()
    call.cut()
    return call


def begun_anew(stream: Peer, call: Peer, how: str) -> None:
    if how == "no witness":
        assert stream.asked == "s1"
        stream.accept()
        stream.event("e2", call.progress(2))
        assert evidence(stream.event("e3", call.progress(3)))[0].reason == how
    elif how == "silence":
        stream.accept()
        assert evidence(stream.driver.elapse(TimerKind.WITNESS, 0))[0].reason == "no witness"
    else:
        stream.accept()
        stream.event(None, None, resets_id=True)
        stream.cut()
        assert stream.asked is None


@pytest.mark.parametrize("how", ["no witness", "silence", "afresh"])
def test_what_it_had_brought_is_not_delivered_again_by_another_stream_s_replay(
    stream: Peer, cut_with_a_call: Peer, how: str
) -> None:
    call = cut_with_a_call
    begun_anew(stream, call, how)
    call.accept()
    actions = call.event("s1", note("for you")) + call.event("e2", call.progress(2))
    assert [e.grade.value for e in evidence(actions)] == ["proven"]
    assert not delivered(actions)
    assert len(reports(actions, DuplicateDropped)) == 2


@pytest.mark.parametrize("how", ["no witness", "silence", "afresh"])
def test_nor_is_it_missed_in_a_last_look(driver: Driver, stream: Peer, cut_with_a_call: Peer, how: str) -> None:
    call = cut_with_a_call
    call.accept()
    call.event("s1", note("for you"))
    call.event("e2", call.progress(2))
    begun_anew(stream, call, how)
    call.event("q")
    assert not outcomes(call.event("e4", call.result())), "it came on a live tail"
    call.accept()
    call.event("s1", note("for you"))
    call.event("e2", call.progress(2))
    call.event("e3", call.progress(3))
    assert outcomes(call.event("e4", call.result())) == [Outcome.COMPLETED]
    assert not reports(driver.log, Discontinuity)


def test_to_itself_it_is_as_if_nothing_had_come(stream: Peer) -> None:
    """Without a witness nobody knows that its IDs are those of the same log."""
    stream.event("s1", note("one"))
    stream.cut()
    stream.accept()
    stream.driver.elapse(TimerKind.WITNESS, 0)
    assert delivered(stream.event("s1", note("another"))) == [note("another")]
    stream.cut()
    assert stream.asked == "s1"


def test_what_came_before_a_missing_witness_says_nothing_of_any_stream(driver: Driver, stream: Peer) -> None:
    """A log that has lost the one has lost the other, and may give its ID anew."""
    stream.event("s0", note("zero"))
    stream.event("s1", note("one"))
    stream.cut()
    for _ in range(2):
        stream.accept()
        driver.elapse(TimerKind.WITNESS, 0)
    assert evidence(driver.log)[-1].reason == "witness missing"
    call = driver.call().stream_up()
    assert delivered(call.event("s1", note("one"))) == [note("one")]


def test_ids_that_started_over_break_it_at_once(stream: Peer) -> None:
    """No answer is waited for on it."""
    stream.event("9", note("a"))
    stream.resumed()
    actions = stream.event("1", note("b"))
    assert [str(e) for e in evidence(actions)] == ["BROKEN(the event IDs started over)"]
    assert stream.asked is None


@pytest.mark.parametrize("how", ["fork", "refused", "unknown events", "too large", "server errors"])
def test_a_broken_stream_is_opened_afresh_without_a_cursor(driver: Driver, identified: Peer, how: str) -> None:
    driver.drain(99)
    identified.cut()
    if how == "refused":
        identified.refuse(404)
        actions = identified.refuse(404)
    elif how == "server errors":
        for _ in range(3):
            actions = identified.refuse(500)
        ping = driver.peer(max(driver.orders))
        ping.accept(events=False)
        actions = ping.body(ping.result({}))
    else:
        identified.accept()
        if how == "fork":
            actions = identified.event("s2", note("of another log"))
        elif how == "too large":
            actions = identified.too_large()
        else:
            identified.event("s9", note("z"))
            actions = driver.elapse(TimerKind.WITNESS)
    assert reports(actions, Discontinuity)
    assert str(evidence(actions)[0]).startswith("BROKEN")
    assert records(actions, CursorDropped)
    assert identified.asked is None
    assert refreshed(identified.accept()) == LISTS
    assert delivered(identified.event("s9", note("z"))) == [note("z")]


def test_what_was_held_behind_a_contradiction_belongs_to_no_later_connection(driver: Driver) -> None:
    """The witness proves the stream, the first held event breaks it: the others are of a dead connection."""
    driver = Driver(GuardPolicy(id_scheme="contiguous")).opened(standalone=True)
    stream = driver.standalone
    stream.event("1", note("a"))
    stream.event("2", note("b"))
    stream.resumed()
    stream.event("7", note("held"))
    stream.event("8", note("held too"))
    actions = stream.event("2", note("b"))
    assert delivered(actions) == []
    assert len(reports(actions, Discontinuity)) == 1
    stream.accept()
    stream.cut()
    assert stream.asked is None


def test_an_event_too_large_breaks_it_and_it_is_opened_afresh(stream: Peer) -> None:
    actions = stream.too_large()
    assert reports(actions, Discontinuity)
    assert not reports(actions, Resumed)
    assert stream.asked is None


def test_a_calls_answer_too_large_on_it_does_not_break_it(driver: Driver, stream: Peer) -> None:
    call = driver.call()
    call.accept()
    actions = stream.too_large(call.stream)
    assert reports(actions, UnreadableDropped)
    assert not reports(actions, Discontinuity)
    assert stream.is_open
    assert in_doubt(driver.elapse(TimerKind.ANSWER, call.stream))


def test_a_silent_overlap_is_asked_again_with_the_exact_cursor_and_then_dropped(
    driver: Driver, identified: Peer
) -> None:
    identified.resumed()
    driver.elapse(TimerKind.WITNESS)
    assert identified.asked == "s2"
    identified.accept()
    actions = driver.elapse(TimerKind.WITNESS)
    assert reports(actions, Discontinuity)
    assert refreshed(actions) == LISTS
    assert identified.is_open


@pytest.mark.parametrize("status", [400, 200])
def test_an_overlap_that_is_refused_costs_it_its_cursor_and_no_more(
    driver: Driver, identified: Peer, status: int
) -> None:
    identified.cut()
    if status == 200:
        identified.accept()
        identified.end()
    else:
        identified.refuse(status)
    assert identified.asked == "s2"
    identified.accept()
    actions = identified.event("x3", note("three"))
    assert [str(e) for e in evidence(actions)] == ["UNVERIFIED(no witness)"]
    assert not reports(actions, Discontinuity)
    assert note("three") in delivered(actions)
    assert refreshed(actions) == LISTS


def test_an_exact_cursor_after_silence_that_ends_at_once_is_judged_and_opened_afresh(
    driver: Driver, identified: Peer
) -> None:
    identified.resumed()
    identified.end()
    identified.accept()
    actions = identified.end()
    assert [str(e) for e in evidence(actions)] == ["UNVERIFIED(witness missing)"]
    assert identified.asked is None


def test_a_body_for_it_is_nobody_s(driver: Driver, stream: Peer) -> None:
    """Not even if it looks like an answer that a call waits for: no server answers a listening GET so."""
    call = driver.call()
    stream.cut()
    stream.accept(events=False)
    actions = stream.body(call.result())
    assert [type(a) for a in actions] == [Report, Hangup, Get]
    assert outcomes(actions) == []


def test_it_is_not_opened_where_the_client_has_no_connection_to_spare() -> None:
    driver = Driver()
    driver.machine = Machine(opens_standalone=False)
    driver.initialize()
    peer = driver.peer(of(driver.notify("notifications/initialized"), Post)[0].stream)
    assert not of(peer.accept(status=202, events=False), Get)
    call = driver.call()
    call.accept(events=False)
    assert outcomes(call.body(call.result())) == [Outcome.COMPLETED]
    waiting = driver.call().stream_up("e1", "e2")
    (get,) = of(waiting.cut(), Get)
    assert get.last_event_id == "e1", "a cut call is resumed all the same"
    assert get.for_request


def test_only_what_a_request_waits_for_counts_among_the_requests(driver: Driver, stream: Peer) -> None:
    assert not stream.order.for_request
    assert not of(driver.notify("notifications/x"), Post)[0].for_request
    (asked,) = delivered(driver.ask(stream))
    assert not of(driver.submit({"jsonrpc": "2.0", "id": asked["id"], "result": {}}), Post)[0].for_request
    assert driver.call().order.for_request


def test_a_response_on_it_still_settles_the_call_it_is_for(driver: Driver, stream: Peer) -> None:
    call = driver.call()
    assert outcomes(stream.event("s1", call.result())) == [Outcome.COMPLETED]
    assert not of(call.cut(), Get)


@pytest.mark.parametrize("status", [404, 400])
def test_a_session_that_died_under_an_idle_host_is_found_though_the_stream_has_no_ids(
    driver: Driver, stream: Peer, status: int
) -> None:
    stream.event(None, note("a"))
    stream.cut()
    stream.refuse(status)
    driver.sent("ping").refuse(status)
    driver.reinitialized()
    assert reports(driver.log, SessionLost)
    assert driver.standalone.is_open


@pytest.mark.parametrize("how", ["answered", "refused otherwise"])
def test_a_get_that_is_refused_alone_costs_no_session(driver: Driver, stream: Peer, how: str) -> None:
    stream.cut()
    stream.refuse(400)
    ping = driver.sent("ping")
    ping.answer() if how == "answered" else ping.refuse(500)
    assert not driver.is_waited_for("initialize")
    assert driver.call().is_open
