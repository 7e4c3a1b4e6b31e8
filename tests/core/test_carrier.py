"""The carrier is the session: what is posted waits for it, and when it is lost everything beside it is."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import EndSession, Get, Hangup, Post
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED, CODE_SESSION_LOST
from mcp_client_guard.core.inputs import (
    UNREADABLE,
    Answered,
    BodyReceived,
    EventReceived,
    ReconnectRequested,
    TimerElapsed,
)
from mcp_client_guard.core.model import CursorMoved, Generation, Outcome, SessionEnded, SessionOpened
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import (
    CallSettled,
    Connected,
    Disconnected,
    DuplicateDropped,
    EndpointRefused,
    NotificationLost,
    Reinitialized,
    SessionLost,
    Unreachable,
    UnreadableDropped,
)
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import Timer, TimerKind
from tests.core.driver import RESULT, delivered, in_doubt, note, of, outcomes, posted, records, reports
from tests.core.legacy import LEGACY_RESULT, Legacy


@pytest.fixture
def driver() -> Legacy:
    return Legacy().opened()


def state(driver: Legacy) -> SessionState:
    return driver.machine.session.state


# Opened.


def test_the_first_message_waits_for_the_endpoint_and_goes_there() -> None:
    driver = Legacy()
    sent = driver.request("initialize")
    assert not of(sent.actions, Post)
    assert driver.get.headers == {}
    assert driver.get.last_event_id is None
    assert not of(driver.accepts(), Post)
    (post,) = of(driver.names("/messages?session=abc"), Post)
    assert post.target == "http://h/messages?session=abc"
    assert "abc" not in repr(post)
    assert post.headers == {}


def test_a_session_opens_and_is_reported_as_what_it_is(driver: Legacy) -> None:
    (connected,) = reports(driver.log, Connected)
    assert connected.generation is Generation.LEGACY_SSE
    (opened,) = records(driver.log, SessionOpened)
    assert opened.generation is Generation.LEGACY_SSE
    assert opened.session_id is None
    assert len(of(driver.log, Get)) == 1, "no standalone stream beside the carrier"


@pytest.mark.parametrize(("version", "sent"), [("2024-11-05", None), ("2025-03-26", None), ("2025-06-18", True)])
def test_the_version_header_goes_out_from_2025_06_18_on(version: str, sent: bool | None) -> None:
    driver = Legacy()
    driver.request("initialize")
    driver.serves()
    driver.answers(driver.sent("initialize"), {**LEGACY_RESULT, "protocolVersion": version})
    actions = driver.submit(
        {"jsonrpc": "2.0", "method": "notifications/initialized"}, mcp_protocol_version="2025-11-25", x_other="y"
    )
    (post,) = of(actions, Post)
    assert post.headers.get("mcp-protocol-version") == (version if sent else None)
    assert post.headers["x-other"] == "y"
    assert "mcp-session-id" not in post.headers


@pytest.mark.parametrize("where", ["get", "post"])
def test_a_session_id_is_sent_only_if_the_server_gave_one(where: str) -> None:
    driver = Legacy()
    driver.request("initialize")
    driver.serves(session_id="s-77" if where == "get" else None)
    sent = driver.sent("initialize")
    sent.accept(status=202, events=False, session_id="s-77" if where == "post" else None)
    sent.body(None)
    driver.carries(sent.result(LEGACY_RESULT))
    (post,) = of(driver.notify("notifications/initialized"), Post)
    assert post.headers == {"mcp-session-id": "s-77"}
    driver.takes(driver.sent("notifications/initialized"))
    assert not of(driver.close(), EndSession), "the session ends with its stream"


@pytest.mark.parametrize("again", ["/messages?session=1", "http://h/messages?session=1", "messages?session=1#x"])
def test_the_same_endpoint_may_come_twice(driver: Legacy, again: str) -> None:
    assert driver.names(again) == []


def test_another_endpoint_on_the_same_stream_is_another_session(driver: Legacy) -> None:
    """A gateway keeps the stream, and has connected anew to its server."""
    call, taken = driver.call(), driver.call(n=2)
    driver.request("prompts/list")
    driver.takes(taken)
    actions = driver.names("other?session=2")
    assert [told.reason for told in reports(actions, SessionLost)] == ["its stream has named another endpoint"]
    assert in_doubt(actions)
    assert not of(actions, Get)
    assert [post.target for post in posted(actions, "initialize")] == ["http://h/other?session=2"]
    assert driver.carrier.is_open
    driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    actions = driver.takes(driver.sent("notifications/initialized"))
    assert [post.target for post in posted(actions, "prompts/list")] == ["http://h/other?session=2"]
    (again,) = posted(call.refuse(404), "tools/call")  # which its own session had not taken
    assert again.target == "http://h/other?session=2"
    assert reports(driver.log, Reinitialized)
    assert outcomes(driver.answers(driver.peer(again.stream))) == [Outcome.COMPLETED]
    assert not delivered(driver.carries(taken.result())), "of the session before"


@pytest.mark.parametrize("times", [1, 2])
def test_another_one_while_a_session_is_being_opened_has_it_opened_there(times: int) -> None:
    driver = Legacy()
    sent = driver.request("initialize", {"protocolVersion": "2025-11-25"})
    driver.serves()
    for _ in range(times):
        driver.names()
    peer = driver.sent("initialize")
    assert isinstance(peer.order, Post)
    assert peer.order.target == f"http://h/messages?session={times + 1}"
    assert [m["id"] for m in delivered(driver.answers(peer, LEGACY_RESULT))] == [sent.host_id]
    assert len(of(driver.log, Get)) == 1


@pytest.mark.parametrize("when", ["opening", "confirming", "restoring"])
def test_another_one_during_recovery_is_one_more_lost_session(driver: Legacy, when: str) -> None:
    driver.answers(driver.request("tools/list"), {"tools": []})
    driver.names()
    if when != "opening":
        driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    if when == "restoring":
        driver.takes(driver.sent("notifications/initialized"))
    driver.names()
    assert state(driver) is SessionState.REINITIALIZING
    own = driver.sent("initialize")
    assert isinstance(own.order, Post)
    assert own.order.target == "http://h/messages?session=3"
    own.begin()
    driver.answers(own, LEGACY_RESULT)
    driver.takes(driver.sent("notifications/initialized"))
    driver.answers(driver.sent("tools/list"), {"tools": []})
    assert state(driver) is SessionState.LIVE
    assert len(of(driver.log, Get)) == 1


def test_endpoints_without_end_open_no_more_sessions_than_the_budget_has(driver: Legacy) -> None:
    for _ in range(20):
        driver.names()
        if driver.is_waited_for("initialize"):
            driver.answers(driver.sent("initialize"), LEGACY_RESULT)
            driver.takes(driver.sent("notifications/initialized"))
    assert len(posted(driver.log, "initialize")) == 1 + driver.policy.reinitialize_limit
    assert state(driver) is SessionState.LOST


def test_a_note_to_the_endpoint_before_is_reported_lost(driver: Legacy) -> None:
    driver.notify("notifications/roots/list_changed")
    assert reports(driver.names("/other"), NotificationLost)


def test_a_silent_stream_is_asked_anew_in_the_session_that_follows(driver: Legacy) -> None:
    silent_since = driver.now
    driver.silent(silent_since)
    driver.takes(driver.sent("ping"))
    driver.names("/other")
    assert not reports(driver.silent(silent_since), Disconnected)


def test_another_origin_is_refused_and_reported_and_nothing_goes_there() -> None:
    driver = Legacy()
    sent = driver.request("initialize")
    actions = driver.serves("https://evil/m?session=secret")
    (refused,) = reports(actions, EndpointRefused)
    assert refused.origin == "https://evil:443"
    assert not of(driver.log, Post)
    assert delivered(actions)[0]["id"] == sent.host_id
    assert delivered(actions)[0]["error"]["code"] == CODE_NOT_EXECUTED
    assert "secret" not in repr(driver.log)


def test_another_origin_later_changes_nothing(driver: Legacy) -> None:
    assert reports(driver.names("//evil/m"), EndpointRefused)
    call = driver.call()
    assert isinstance(call.order, Post)
    assert call.order.target == "http://h/messages?session=1"
    assert driver.carrier.is_open


def test_without_an_address_of_the_stream_nothing_can_be_resolved() -> None:
    driver = Legacy()
    driver.request("initialize")
    assert reports(driver.accepts(url=None) + driver.names("/m"), EndpointRefused)


@pytest.mark.parametrize("generation", ["legacy-sse", "auto"])
def test_what_is_no_message_may_come_before_the_endpoint_and_nothing_else(generation: str) -> None:
    """Servers greet (`connected`, `open`, `ping`): the SDKs' own clients know no such event, and go on."""
    driver = Legacy(generation=generation)
    driver.request("initialize")
    if generation == "auto":
        driver.sent("initialize").refuse(405)
    driver.accepts()
    assert driver.carries(None, "p1", retry=70) == []
    for name in ("connected", "open", "ping"):
        assert driver.carries(b'{"ok": true}', None, name=name) == []
    assert of(driver.names(), Post)

    driver = Legacy()
    driver.request("initialize")
    driver.accepts()
    assert delivered(driver.carries(note("too early")))[0]["error"]["code"] == CODE_NOT_EXECUTED


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 406, 410])
def test_a_stream_that_is_refused_for_good_is_the_answer(status: int) -> None:
    driver = Legacy()
    driver.request("initialize")
    actions = driver.carrier.refuse(status)
    assert delivered(actions)[0]["error"]["data"]["http_status"] == status
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert not of(actions, Get)
    driver.request("initialize")
    driver.serves()
    assert driver.answers(driver.sent("initialize"), LEGACY_RESULT)


def test_a_get_without_events_is_refused_for_good() -> None:
    driver = Legacy()
    driver.request("initialize")
    stale = driver.carrier.stale()
    actions = stale.accept(events=False)
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert stale.body("hello") == []


@pytest.mark.parametrize("how", ["refuse", "cut", "not written", "no endpoint"])
def test_one_that_cannot_be_opened_now_is_tried_again_ever_more_slowly(how: str) -> None:
    driver = Legacy(GuardPolicy(max_attempts=3))
    sent = driver.request("initialize")
    delays = []
    for _ in range(4):
        driver.carrier.begin()
        if how == "refuse":
            actions = driver.carrier.refuse(503, retry_after=2.0)
        elif how == "no endpoint":
            driver.accepts()
            actions = driver.elapse(TimerKind.ENDPOINT)
        elif how == "cut":
            driver.accepts()
            actions = driver.carrier.cut()
        else:
            actions = driver.carrier.not_written()
        delays += [g.delay for g in of(actions, Get)]
    assert [(told.stream, told.attempt) for told in reports(driver.log, Unreachable)] == [
        ("carrier", attempt) for attempt in (1, 2, 3)
    ]
    assert [d.attempt for d in delays] == [1, 2, 3]
    assert {d.at_least for d in delays} == {2.0 if how == "refuse" else 0.0}
    assert delivered(actions)[0]["id"] == sent.host_id
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]


def test_one_that_nobody_awaits_any_more_is_not_tried_again() -> None:
    driver = Legacy()
    driver.request("initialize")
    driver.elapse(TimerKind.DEADLINE)
    assert not of(driver.carrier.cut(), Get)


def test_what_was_cancelled_before_the_endpoint_came_is_never_posted() -> None:
    driver = Legacy()
    waiting = driver.request("tools/list")
    driver.request("initialize")
    driver.cancel(waiting)
    (post,) = of(driver.serves(), Post)
    assert post.message["method"] == "initialize"


def test_a_notification_waits_for_the_endpoint_too_or_is_reported_lost() -> None:
    driver = Legacy()
    driver.notify("notifications/roots/list_changed")
    driver.accepts()
    assert [p.message["method"] for p in of(driver.names(), Post)] == ["notifications/roots/list_changed"]

    driver = Legacy()
    driver.notify("notifications/roots/list_changed")
    assert reports(driver.carrier.refuse(404), NotificationLost)


# A call.


def test_a_post_ends_well_with_its_2xx_and_the_answer_comes_on_the_carrier(driver: Legacy) -> None:
    call = driver.call()
    assert outcomes(driver.takes(call)) == []
    assert delivered(driver.carries(call.progress(1)))[0]["params"]["progressToken"] == "tok"
    actions = driver.carries(call.result())
    assert delivered(actions)[0]["id"] == call.host_id
    assert outcomes(actions) == [Outcome.COMPLETED]


@pytest.mark.parametrize("body", [None, "Accepted", UNREADABLE, {"odd": 1}])
@pytest.mark.parametrize("status", [200, 202, 204])
def test_whatever_a_2xx_brings_the_call_waits(driver: Legacy, status: int, body: Any) -> None:
    call = driver.call()
    actions = call.accept(status=status, events=False) + call.body(body)
    assert outcomes(actions) == []
    assert outcomes(driver.carries(call.result())) == [Outcome.COMPLETED]


def test_a_2xx_cut_within_its_body_is_a_2xx(driver: Legacy) -> None:
    call = driver.call()
    call.accept(status=202, events=False)
    assert outcomes(call.cut()) == []
    assert outcomes(driver.carries(call.result())) == [Outcome.COMPLETED]


def test_the_answer_may_overtake_the_2xx(driver: Legacy) -> None:
    call = driver.call()
    actions = driver.carries(call.result())
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert of(actions, Hangup)[-1].linger
    assert driver.takes(call) == []


def test_an_odd_server_may_answer_the_post_itself(driver: Legacy) -> None:
    call = driver.call()
    assert outcomes(call.answer()) == [Outcome.COMPLETED]
    other = driver.call(n=2)
    other.accept()
    assert outcomes(other.event("7", other.result())) == [Outcome.COMPLETED]


def test_events_of_a_post_are_never_resumed(driver: Legacy) -> None:
    call = driver.call()
    call.accept()
    call.event("p")
    call.event("7", call.progress(1))
    actions = call.cut()
    assert not of(actions, Get)
    assert outcomes(driver.carries(call.result())) == [Outcome.COMPLETED]
    assert not records(driver.log, CursorMoved)


def test_a_post_of_which_nothing_was_written_is_sent_again(driver: Legacy) -> None:
    call = driver.call()
    (post,) = of(call.not_written(), Post)
    assert post.delay.attempt == 1
    assert post.target == "http://h/messages?session=1"


def test_a_post_lost_before_its_status_may_have_been_taken(driver: Legacy) -> None:
    """Its answer is waited for on the carrier, and not for ever."""
    call, other = driver.call(), driver.call(n=2)
    actions = call.cut() + other.cut()
    assert reports(actions, Disconnected)
    assert outcomes(actions) == []
    assert outcomes(driver.carries(call.result())) == [Outcome.COMPLETED]
    assert outcomes(driver.elapse(TimerKind.ANSWER, call.stream)) == []
    assert outcomes(driver.elapse(TimerKind.ANSWER, other.stream)) == [Outcome.IN_DOUBT]


def test_an_answer_that_cannot_be_read_is_not_waited_for_for_ever(driver: Legacy) -> None:
    call = driver.call()
    driver.takes(call)
    driver.carries({"jsonrpc": "2.0", "id": call.stream})
    (settled,) = reports(driver.elapse(TimerKind.ANSWER, call.stream), CallSettled)
    assert settled.outcome is Outcome.IN_DOUBT
    assert "could not be read" in settled.reason


def test_a_good_answer_may_follow_one_that_cannot_be_read(driver: Legacy) -> None:
    call = driver.call()
    driver.takes(call)
    driver.carries({"jsonrpc": "2.0", "id": call.stream})
    driver.carries({"jsonrpc": "2.0", "id": 1})
    assert outcomes(driver.carries(call.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("accepted", [True, False])
def test_a_cancelled_call_is_told_to_the_server_and_leaves_nothing_behind(driver: Legacy, accepted: bool) -> None:
    call = driver.call()
    if accepted:
        driver.takes(call)
    actions = driver.cancel(call)
    (post,) = posted(actions, "notifications/cancelled")
    assert post.message["params"]["requestId"] == call.stream
    assert post.target == "http://h/messages?session=1"
    assert outcomes(actions) == [Outcome.CANCELLED]
    if not accepted:
        driver.takes(call)
    driver.takes(driver.sent("notifications/cancelled"))
    assert set(driver.machine._streams._streams) == {0}


def test_a_deadline_leaves_a_call_in_doubt_and_cancels_it(driver: Legacy) -> None:
    call = driver.call()
    driver.takes(call)
    actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    assert posted(actions, "notifications/cancelled")
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not outcomes(driver.carrier.event(None, call.error(0))), "which only acknowledges the cancel"


def test_a_request_of_the_server_s_is_answered_by_a_post(driver: Legacy) -> None:
    (asked,) = delivered(
        driver.carries({"jsonrpc": "2.0", "id": 5, "method": "roots/list", "params": {}}, event_id="9")
    )
    (post,) = of(driver.submit({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}}), Post)
    assert post.message["id"] == 5
    assert post.target == "http://h/messages?session=1"
    assert not records(driver.log, CursorMoved)


# Event IDs.


def test_no_cursor_is_kept(driver: Legacy) -> None:
    driver.carries(note("a"), "1")
    driver.carries(note("b"), "2")
    driver.drain(2)
    assert not records(driver.log, CursorMoved)


def test_an_id_on_every_event_identifies_nothing(driver: Legacy) -> None:
    """The Java SDK puts the session ID on each."""
    got = [delivered(driver.carries(note(text), "same")) for text in ("a", "b", "b", "a")]
    assert all(got)


def test_a_declared_scheme_does_not_hold_here() -> None:
    driver = Legacy(GuardPolicy(id_scheme="contiguous")).opened()  # type: ignore[arg-type]
    for event_id in ("5", "3", "17"):
        assert delivered(driver.carries(note(event_id), event_id))


def test_what_is_said_twice_on_one_carrier_is_heard_twice(driver: Legacy) -> None:
    """IDs by the second, or by kind: nothing was opened again, so nothing can be a replay."""
    got = [delivered(driver.carries(note("tick"), "1700000000")) for _ in range(3)]
    assert [len(messages) for messages in got] == [1, 1, 1]


def test_what_the_answer_to_a_post_has_brought_already_is_a_duplicate(driver: Legacy) -> None:
    call = driver.call()
    call.accept()
    assert delivered(call.event("9", note("both")))
    actions = driver.carries(note("both"), "9")
    assert reports(actions, DuplicateDropped)
    assert not delivered(actions)


# Too large.


def test_an_answer_that_is_too_large_costs_its_own_call_alone(driver: Legacy) -> None:
    large, other = driver.call("large"), driver.call("other")
    driver.takes(large)
    driver.takes(other)
    actions = driver.carrier.too_large(large.stream, is_whole=False)
    assert delivered(actions)[0]["id"] == large.host_id
    assert in_doubt(actions)
    assert "larger than max_event_size" in reports(actions, UnreadableDropped)[0].reason
    assert not reports(actions, SessionLost)
    assert delivered(driver.carries(other.result()))[0]["id"] == other.host_id


def test_a_safe_call_with_such_an_answer_is_not_sent_again() -> None:
    driver = Legacy(GuardPolicy(resend={"*": "always"})).opened()
    large = driver.call("large")
    driver.takes(large)
    actions = driver.carrier.too_large(large.stream)
    assert delivered(actions)[0]["id"] == large.host_id
    assert not of(actions, Post)
    assert not of(actions, Get)


def test_the_end_of_a_large_event_may_tell_whose_it_is(driver: Legacy) -> None:
    large = driver.call("large")
    driver.takes(large)
    assert driver.carrier.too_large(is_whole=False) == []
    assert in_doubt(driver.carrier.too_large(large.stream))
    assert not reports(driver.log, SessionLost)


def test_a_large_event_that_answers_nothing_of_this_carrier_is_dropped(driver: Legacy) -> None:
    call = driver.call()
    driver.takes(call)
    driver.carries(call.result())
    actions = driver.carrier.too_large(call.stream)
    assert reports(actions, UnreadableDropped)
    assert len(actions) == 1


def test_one_of_which_nobody_knows_whose_it_is_costs_one_session() -> None:
    driver = Legacy(GuardPolicy(resend={"*": "always"})).opened()
    taken = driver.call("taken")
    driver.takes(taken)
    actions = driver.carrier.too_large()
    assert [m["id"] for m in delivered(actions)] == [taken.host_id], "it would be answered so again"
    assert reports(actions, SessionLost)
    driver.reopened()
    assert driver.machine.session.state is SessionState.LIVE
    assert not driver.sent("tools/call").is_open


# Lost.


@pytest.mark.parametrize("how", ["FIN", "RST", "too large"])
def test_a_lost_carrier_is_a_lost_session_opened_again_once(driver: Legacy, how: str) -> None:
    call = driver.call()
    driver.takes(call)
    driver.carries(note("seen"), "41")
    if how == "too large":
        actions = driver.carrier.too_large()
    else:
        actions = driver.carrier.end() if how == "FIN" else driver.carrier.cut()
    assert in_doubt(actions)
    assert reports(actions, SessionLost)
    (lost,) = reports(actions, Disconnected)
    assert (lost.stream, lost.undrained, lost.resumable) == ("carrier", 2, False)
    (get,) = of(actions, Get)
    assert get.last_event_id is None
    assert get.headers == {}
    assert not of(actions, Post)
    again = driver.reopened()
    assert [p.target for p in posted(again, "initialize")] == ["http://h/messages?session=2"]
    assert reports(again, Reinitialized)
    assert state(driver) is SessionState.LIVE
    assert records(driver.log, SessionEnded)[0].incarnation == 1


def test_no_id_of_the_lost_session_goes_with_the_next_stream() -> None:
    driver = Legacy().opened(session_id="s-77")
    assert driver.machine.session.session_id == "s-77"
    (get,) = of(driver.carrier.cut(), Get)
    assert get.headers == {}
    (post,) = posted(driver.serves(), "initialize")
    assert post.headers == {}


def test_undrained_messages_of_a_lost_carrier_are_still_delivered(driver: Legacy) -> None:
    """Seed 000: the answer had come, and only the host had not taken it yet."""
    call = driver.call()
    driver.takes(call)
    assert outcomes(driver.carries(call.result(), "e-104")) == [Outcome.COMPLETED]
    actions = driver.carrier.cut()
    (lost,) = reports(actions, Disconnected)
    assert lost.undrained > 0
    assert outcomes(actions) == []


def test_a_safe_call_is_sent_again_in_the_new_session(driver: Legacy) -> None:
    driver.answers(driver.request("tools/list"), {"tools": []})
    listed = driver.request("prompts/list")
    driver.takes(listed)
    driver.carrier.cut()
    again = posted(driver.reopened(), "prompts/list")
    assert [p.target for p in again] == ["http://h/messages?session=2"]
    assert outcomes(driver.carries(driver.peer(again[0].stream).result({"prompts": []}))) == [Outcome.COMPLETED]


def test_a_call_not_written_when_the_carrier_is_lost_is_sent_again(driver: Legacy) -> None:
    driver.begins = False
    call = driver.call()
    driver.begins = True
    actions = driver.carrier.cut()
    assert outcomes(actions) == []
    assert not call.is_open
    assert posted(driver.reopened(), "tools/call")


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_call_refused_after_the_carrier_was_lost_is_sent_again(driver: Legacy, status: int) -> None:
    call = driver.call()
    assert outcomes(driver.carrier.cut()) == []
    assert outcomes(call.refuse(status)) == []
    again = driver.reopened()
    assert posted(again, "tools/call")
    assert [s.outcome for s in reports(again, CallSettled) if s.tool] == [Outcome.NOT_EXECUTED]


@pytest.mark.parametrize("how", ["taken", "cut", "silent"])
def test_a_call_taken_by_a_session_that_is_gone_is_in_doubt(driver: Legacy, how: str) -> None:
    call = driver.call()
    driver.carrier.cut()
    if how == "taken":
        actions = driver.takes(call)
    elif how == "cut":
        actions = call.cut()
    else:
        actions = driver.elapse(TimerKind.ANSWER, call.stream)
    assert outcomes(actions) == [Outcome.IN_DOUBT]


def test_its_own_post_may_still_answer_it(driver: Legacy) -> None:
    call = driver.call()
    driver.carrier.cut()
    assert outcomes(call.answer()) == [Outcome.COMPLETED]


def test_a_notification_under_way_when_the_carrier_is_lost_is_reported(driver: Legacy) -> None:
    driver.notify("notifications/roots/list_changed")
    actions = driver.carrier.cut()
    assert reports(actions, NotificationLost)


def test_an_answer_to_the_server_never_goes_to_another_session(driver: Legacy) -> None:
    (asked,) = delivered(driver.carries({"jsonrpc": "2.0", "id": "srv", "method": "roots/list", "params": {}}))
    driver.submit({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}})
    actions = driver.carrier.cut()
    assert [lost.method for lost in reports(actions, NotificationLost)] == ["response"]
    driver.reopened()
    assert [p.target for p in of(driver.log, Post) if p.message.get("id") == "srv"] == [
        "http://h/messages?session=1"
    ]


def test_what_an_old_carrier_still_says_is_ignored(driver: Legacy) -> None:
    old = driver.carrier.stale()
    call = driver.call()
    driver.takes(call)
    old.cut()
    driver.reopened()
    assert old.event("1", call.result()) == []
    assert old.cut() == []
    assert driver.feed(Answered(0, old.connection, 200, True)) == []
    assert driver.feed(BodyReceived(0, old.connection, None)) == []


def test_a_late_answer_to_a_call_in_doubt_reaches_no_other(driver: Legacy) -> None:
    call = driver.call()
    driver.takes(call)
    driver.carrier.cut()
    driver.reopened()
    assert delivered(driver.carries(call.result())) == []


@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize("kind", ["call", "note"])
def test_a_404_beside_it_says_that_the_session_is_gone(driver: Legacy, kind: str, status: int) -> None:
    old = driver.carrier.stale()
    if kind == "call":
        call = driver.call()
        actions = call.refuse(status)
        if status == 405:
            assert not reports(actions, SessionLost), "a ping decides"
            actions = driver.sent("ping").refuse(status)
    else:
        driver.notify("notifications/roots/list_changed")
        actions = driver.sent("notifications/roots/list_changed").refuse(404)
        assert not reports(actions, SessionLost), "a ping decides"
        actions = driver.sent("ping").refuse(404)
    assert reports(actions, SessionLost)
    assert not old.is_open
    again = driver.reopened()
    assert bool(posted(again, "tools/call")) is (kind == "call")


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_an_expired_token_or_an_outage_costs_no_session(driver: Legacy, status: int) -> None:
    call = driver.call()
    call.refuse(status)
    actions = driver.sent("ping").refuse(status)
    if status >= 500:  # its answer may come yet
        actions += driver.elapse(TimerKind.ANSWER, call.stream)
    assert not reports(actions, SessionLost)
    assert driver.carrier.is_open
    assert len(outcomes(actions)) == 1


def test_a_refusal_that_the_ping_does_not_draw_is_an_answer(driver: Legacy) -> None:
    call = driver.call()
    call.refuse(400)
    actions = driver.answers(driver.sent("ping"), {})
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert driver.carrier.is_open


def test_retry_holds_between_carriers_and_is_told(driver: Legacy) -> None:
    driver.carries(note("a"), retry=3000)
    actions = driver.carrier.cut()
    (get,) = of(actions, Get)
    assert get.delay.retry_ms == 3000
    assert [told.wait for told in reports(actions, Disconnected)] == [3]


# Lost while a session is being opened.


@pytest.mark.parametrize("begun", [True, False])
def test_an_initialize_beside_a_lost_carrier_is_sent_again_not_for_ever(begun: bool) -> None:
    driver = Legacy(GuardPolicy(max_attempts=3))
    sent = driver.request("initialize")
    delays: list[int] = []
    for _ in range(20):
        driver.begins = begun
        driver.serves()
        driver.begins = True
        actions = driver.carrier.cut()
        delays += [g.delay.attempt for g in of(actions, Get)]
        if delivered(actions):
            break
    assert delivered(actions)[0]["id"] == sent.host_id
    assert len(delays) in (2, 3)
    assert delays == sorted(delays)
    assert delays[0] == 1


def test_another_initialize_of_the_host_s_has_a_carrier_of_its_own(driver: Legacy) -> None:
    call = driver.call()
    driver.takes(call)
    old = driver.carrier.stale()
    actions = driver.request("initialize").actions
    assert not old.is_open
    assert in_doubt(actions)
    driver.serves()
    driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    assert len(records(driver.log, SessionOpened)) == 2


@pytest.mark.parametrize("taken", [True, False])
def test_two_of_the_host_s_do_not_throw_each_other_off_their_carriers(taken: bool) -> None:
    """A host whose time-out is over sends another; nobody tells the guard that the first is not waited for."""
    driver = Legacy()
    first = driver.request("initialize", {"protocolVersion": "2025-11-25"})
    if taken:
        driver.serves()
        driver.takes(driver.sent("initialize"))
    second = driver.request("initialize", {"protocolVersion": "2025-11-25"})
    assert [answer["id"] for answer in delivered(driver.log)] == [first.host_id]
    assert outcomes(driver.log) == [Outcome.IN_DOUBT if taken else Outcome.NOT_EXECUTED]
    assert len(posted(driver.serves(), "initialize")) == 1
    assert len(of(driver.log, Get)) == (2 if taken else 1)
    assert delivered(driver.answers(driver.sent("initialize"), LEGACY_RESULT))[0]["id"] == second.host_id


def test_a_call_that_never_leaves_is_sent_again_not_for_ever() -> None:
    driver = Legacy(GuardPolicy(max_attempts=2)).opened()
    driver.begins = False
    call = driver.call()
    for _ in range(3):
        driver.begins = True
        driver.carrier.cut()
        driver.begins = False
        driver.reopened()
    assert outcomes(driver.log)[-3:] == [Outcome.NOT_EXECUTED] * 3
    assert [told["id"] for told in delivered(driver.log) if "error" in told] == [call.host_id]


def test_our_own_initialize_lost_with_its_carrier_is_tried_again_within_the_budget(driver: Legacy) -> None:
    driver.carrier.cut()
    gets = 0
    for _ in range(20):
        if not driver.carrier.is_open:
            break
        driver.serves()
        gets += len(of(driver.carrier.cut(), Get))
    assert gets == 9
    assert state(driver) is SessionState.LOST


@pytest.mark.parametrize("waiting", [1, 2])
def test_a_lost_carrier_costs_one_of_the_budget_however_many_requests_wait(driver: Legacy, waiting: int) -> None:
    driver.answers(driver.request("tools/list"), {"tools": []})
    for _ in range(5):
        for number in range(waiting):
            driver.takes(driver.request("prompts/list", {"cursor": f"c{number}"}))
        assert len(of(driver.carrier.cut(), Get)) == 1
        again = posted(driver.reopened(), "prompts/list")
        assert len(again) == waiting
        for post in again:
            driver.answers(driver.peer(post.stream), {"prompts": []})
    assert not of(driver.carrier.cut(), Get), "the sixth in a minute is not replaced"


def test_a_call_before_any_session_is_in_doubt_when_its_carrier_is_lost() -> None:
    driver = Legacy()
    driver.call()
    driver.serves()
    driver.takes(driver.sent("tools/call"))
    actions = driver.carrier.cut()
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not reports(actions, SessionLost)


def test_an_initialize_that_fails_at_the_endpoint_is_tried_on_other_carriers_then_told() -> None:
    driver = Legacy()
    sent = driver.request("initialize")
    for _ in range(3):
        driver.serves()
        actions = driver.sent("initialize").refuse(404)
    assert [m["id"] for m in delivered(actions)] == [sent.host_id]
    assert [g.delay.attempt for g in of(driver.log, Get)] == [0, 0, 0]


def test_where_the_next_session_s_stream_is_refused_requests_are_told_so(driver: Legacy) -> None:
    call = driver.call()
    driver.carrier.cut()
    actions = driver.carrier.refuse(401)
    assert state(driver) is SessionState.LOST
    assert outcomes(call.refuse(404)) == []
    assert of(driver.log[-5:], Get), "whoever needs a session tries again"
    assert delivered(driver.carrier.refuse(401))[0]["error"]["code"] == CODE_SESSION_LOST
    assert not of(actions, Post)


def test_timers_of_what_is_over_do_nothing(driver: Legacy) -> None:
    call = driver.call()
    driver.carrier.cut()
    driver.cancel(call)
    assert driver.elapse(TimerKind.ANSWER, call.stream) == []
    assert driver.feed(TimerElapsed(Timer(TimerKind.ENDPOINT, 0, 1), driver.now)) == []


# Silence.


def test_a_silent_carrier_is_asked_for_a_byte_and_lost_without_one(driver: Legacy) -> None:
    silent_since = driver.now
    assert posted(driver.silent(silent_since), "ping")
    driver.takes(driver.sent("ping"))
    assert reports(driver.silent(silent_since), SessionLost)


@pytest.mark.parametrize("is_held", [False, True])
def test_a_server_that_works_off_one_request_after_the_other_is_not_lost_for_its_silence(
    driver: Legacy, is_held: bool
) -> None:
    """A gateway takes every POST at once (or holds it); its child comes to the ping when the tool has ended."""
    call = driver.call()
    if not is_held:
        driver.takes(call)
    silent_since = driver.now
    driver.silent(silent_since)
    for _ in range(3):
        ping = driver.sent("ping")
        driver.takes(ping)
        assert not reports(driver.silent(silent_since), SessionLost)
        driver.elapse(TimerKind.DEADLINE, ping.stream)
        assert posted(driver.silent(silent_since), "ping"), (
            "it is asked all the same: another process may refuse it"
        )
    assert outcomes(driver.carries(call.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("how", ["answered", "cancelled", "its deadline", "its POST lost", "never sent"])
def test_nor_is_it_kept_for_a_request_that_it_has_no_more(driver: Legacy, how: str) -> None:
    call = driver.call()
    if how == "answered":
        driver.answers(call)
    elif how == "its POST lost":
        call.cut()
    elif how == "never sent":
        call.not_written()
    else:
        driver.takes(call)
        driver.cancel(call) if how == "cancelled" else driver.elapse(TimerKind.DEADLINE, call.stream)
    silent_since = driver.now
    driver.silent(silent_since)
    driver.takes(driver.sent("ping"))
    assert reports(driver.silent(silent_since), SessionLost)


def test_a_server_that_does_not_know_the_session_says_so_of_no_request_and_has_run_none(driver: Legacy) -> None:
    """mcp-go: 400 with -32602 under no ID."""
    unknown = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "Invalid session ID"}}
    call = driver.call()
    call.refuse(400, unknown)
    driver.sent("ping").refuse(400, unknown)
    driver.reopened()
    answered = driver.answers(driver.sent("tools/call"))
    assert [m["id"] for m in delivered(answered)] == [call.host_id]
    assert outcomes(driver.log)[-2:] == [Outcome.NOT_EXECUTED, Outcome.COMPLETED]


def test_a_busy_server_whose_session_is_gone_is_found_out_by_what_the_ping_draws(driver: Legacy) -> None:
    call = driver.call()
    driver.takes(call)
    driver.silent(driver.now)
    driver.sent("ping").refuse(404)
    assert reports(driver.sent("tools/list").refuse(404), SessionLost)


def test_any_byte_is_liveness(driver: Legacy) -> None:
    driver.silent(driver.now)
    driver.takes(driver.sent("ping"))
    assert not reports(driver.silent(driver.now + 1), SessionLost), "a comment came"
    driver.elapse(TimerKind.DEADLINE, driver.sent("ping").stream)
    assert driver.carrier.is_open


def test_a_ping_that_nobody_takes_says_nothing_of_the_carrier(driver: Legacy) -> None:
    silent_since = driver.now
    driver.silent(silent_since)
    assert not reports(driver.silent(silent_since), SessionLost)
    assert not reports(driver.silent(silent_since), SessionLost)


def test_a_carrier_without_an_endpoint_has_a_timer_of_its_own() -> None:
    driver = Legacy()
    driver.request("initialize")
    assert driver.silent(0) == []


def test_a_silent_post_is_asked_about_too(driver: Legacy) -> None:
    call = driver.call()
    assert posted(call.idle(), "ping")
    assert call.is_open


# Moved.


@pytest.mark.parametrize("status", [400, 404, 405])
def test_a_server_that_has_moved_to_streamable_http_is_met_there(driver: Legacy, status: int) -> None:
    """Seeds 000, 001, 003: a new relationship, into which neither cursor nor session ID goes."""
    call = driver.call()
    driver.takes(call)
    driver.carries(note("seen"), "e-103")
    driver.carrier.cut()
    (post,) = of(driver.carrier.refuse(status), Post)
    assert post.message["method"] == "initialize"
    assert post.target is None
    assert post.headers == {}
    driver.sent("initialize").answer(session_id="s-77")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP
    assert state(driver) is SessionState.LIVE
    assert driver.get.headers["mcp-session-id"] == "s-77"
    assert {g.last_event_id for g in of(driver.log, Get)} == {None}
    again = driver.call(n=2)
    assert isinstance(again.order, Post)
    assert again.order.target is None
    again.stream_up("e-103")
    assert again.cut()
    assert again.asked == "p", "an ID of the legacy stream is nothing here"


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("status", [400, 405, 429, 500, 503])
def test_what_a_post_of_the_old_session_draws_then_means_what_it_meant_there(
    driver: Legacy, status: int, is_open: bool
) -> None:
    """A proxy's 503 is not the end of a call that went out beside a carrier, however the next one travels."""
    call = driver.call()
    driver.carrier.cut()
    driver.carrier.refuse(405)
    if is_open:
        driver.sent("initialize").answer(RESULT, session_id="s-77")
        driver.sent("notifications/initialized").accept(status=202, events=False)
    told = call.refuse(status)
    if status in (400, 405):
        assert not delivered(told)
        assert is_open is bool(posted(told, "tools/call")), "it did not run, and is sent again"
    else:
        assert in_doubt(told)


def test_a_busy_word_to_a_call_without_a_carrier_means_the_same_once_the_server_is_a_legacy_one() -> None:
    driver = Legacy(generation="sessions")
    super(Legacy, driver).opened()
    call, other = driver.call(n=1), driver.call(n=2)
    other.refuse(404)
    driver.sent("initialize").refuse(405)
    driver.serves()
    assert driver.machine.session.generation is Generation.LEGACY_SSE
    assert outcomes(call.refuse(503, retry_after=1.0)) == [Outcome.NOT_EXECUTED]


def test_where_neither_is_served_the_legacy_stream_is_tried_again(driver: Legacy) -> None:
    driver.carrier.cut()
    driver.carrier.refuse(404)
    actions = driver.sent("initialize").refuse(404)
    assert of(actions, Get)
    driver.reopened()
    assert driver.machine.session.generation is Generation.LEGACY_SSE
    assert state(driver) is SessionState.LIVE


# Closed.


def test_closing_ends_the_session_and_sends_no_delete(driver: Legacy) -> None:
    actions = driver.close()
    assert not of(actions, EndSession)
    assert records(actions, SessionEnded)
    assert not driver.open


def test_closing_before_there_is_a_session_writes_nothing() -> None:
    driver = Legacy()
    driver.request("initialize")
    actions = driver.close()
    assert not records(actions, SessionEnded)
    assert not driver.open


def test_events_for_streams_that_are_no_more_are_ignored(driver: Legacy) -> None:
    assert driver.feed(EventReceived(99, 99, None, b"", None)) == []


# What the server says in two places.


def test_an_error_on_the_carrier_is_the_answer_of_a_call_that_was_taken(driver: Legacy) -> None:
    """The session that it came on lives, and what it answers was not refused unread."""
    call = driver.call()
    call.accept(status=202, events=False)
    error = {"jsonrpc": "2.0", "id": call.stream, "error": {"code": -32600, "message": "the tool failed"}}
    actions = driver.carrier.event(None, error)
    assert delivered(actions)
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_the_users_own_word_for_a_lost_session_is_asked_of_what_comes_on_the_carrier() -> None:
    """A gateway keeps its stream, and has lost the session behind it."""
    driver = Legacy(GuardPolicy(is_session_lost=lambda _, body: "inner session" in str(body))).opened()
    call = driver.call()
    call.accept(status=202, events=False)
    error = {"jsonrpc": "2.0", "id": call.stream, "error": {"code": -32603, "message": "inner session not found"}}
    actions = driver.carrier.event(None, error)
    assert reports(actions, SessionLost)
    assert posted(driver.reopened(), "tools/call"), "it did not run, and is sent again"


def test_an_initialize_that_was_cancelled_is_answered_no_more(driver: Legacy) -> None:
    for _ in range(driver.policy.max_attempts + 1):
        driver.carrier.cut()
        driver.carrier.begin()
        driver.serves()
    sent = driver.request("initialize")
    driver.cancel(sent)
    assert Outcome.NOT_EXECUTED not in outcomes(driver.carrier.cut())


def test_a_stream_lost_before_the_host_is_initialized_is_a_lost_session() -> None:
    """What is opened in its place is told so by the guard."""
    driver = Legacy()
    driver.request("initialize", {"protocolVersion": "2025-11-25"})
    driver.serves()
    driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    assert reports(driver.carrier.cut(), SessionLost)
    driver.notify("notifications/initialized")
    driver.reopened()
    call = driver.call()
    assert posted(call.actions, "tools/call")
    assert posted(driver.log, "initialize")[1:]


def test_an_error_that_names_the_call_is_its_answer_whatever_became_of_the_stream(driver: Legacy) -> None:
    call = driver.call()
    call.begin()
    driver.carrier.cut()
    error = {"jsonrpc": "2.0", "id": call.stream, "error": {"code": -32602, "message": "the tool failed"}}
    assert Outcome.NOT_EXECUTED not in outcomes(call.refuse(400, error))


def test_a_post_of_a_cancelled_call_is_hung_up_with_its_stream(driver: Legacy) -> None:
    call = driver.call()
    driver.cancel(call)
    assert call.is_open
    actions = driver.carrier.cut()
    assert not call.is_open
    assert not outcomes(actions)


def test_a_carrier_that_stalls_before_its_endpoint_costs_one_attempt(driver: Legacy) -> None:
    driver.carrier.cut()
    driver.carrier.begin()
    driver.accepts()
    own = next(timer for timer in driver.timers if timer.kind is TimerKind.DEADLINE)
    driver.elapse(TimerKind.DEADLINE, own.stream)
    assert driver.is_set(TimerKind.DEADLINE, own.stream)
    (post,) = of(driver.elapse(TimerKind.ENDPOINT), Post)
    assert post.stream == own.stream, "tried by POST, since the server may have moved"
    assert len(of(driver.peer(post.stream).refuse(405), Get)) == 1
    assert driver.machine._calls._attempts == 1


def test_a_large_event_beside_the_guard_s_own_initialize_costs_the_carrier_alone(driver: Legacy) -> None:
    driver.carrier.cut()
    driver.serves()
    driver.takes(driver.sent("initialize"))
    assert len(of(driver.carrier.too_large(), Get)) == 1
    driver.reopened()
    assert state(driver) is SessionState.LIVE


def test_nobody_waits_longer_than_a_minute_for_a_carrier_because_the_server_says_so(driver: Legacy) -> None:
    waiting = driver.request("prompts/list")
    driver.carrier.cut()
    while driver.carrier.is_open:
        driver.carrier.begin()
        told = driver.carrier.refuse(503, retry_after=7200.0)
        assert all(get.delay.at_least == 0 for get in of(told, Get))
    assert [m["id"] for m in delivered(told)] == [waiting.host_id]
    assert state(driver) is SessionState.LOST


def test_reconnect_has_a_carrier_that_waits_opened_at_once(driver: Legacy) -> None:
    driver.carrier.cut()
    driver.carrier.begin()
    (get,) = of(driver.carrier.refuse(503, retry_after=50.0), Get)
    assert get.delay.at_least == 50.0
    (get,) = of(driver.feed(ReconnectRequested(driver.now)), Get)
    assert get.delay.at_least == 0.0
    driver.carrier.begin()
    assert not of(driver.feed(ReconnectRequested(driver.now)), Get), "it is under way"


def test_but_no_sooner_than_the_server_has_said_and_with_all_its_attempts() -> None:
    driver = Legacy(GuardPolicy(max_attempts=1))
    driver.request("initialize")
    driver.accepts()
    driver.carries(None, "p", retry=30_000)
    driver.carrier.cut()
    (get,) = of(driver.feed(ReconnectRequested(driver.now)), Get)
    assert (get.delay.attempt, get.delay.retry_ms) == (0, 30_000)
    driver.carrier.begin()
    (get,) = of(driver.carrier.cut(), Get)
    assert (get.delay.attempt, get.delay.retry_ms) == (1, 30_000)
