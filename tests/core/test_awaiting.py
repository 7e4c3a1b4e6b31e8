"""A 2xx that is no answer, to a request whose answer the standalone stream may bring: the Ruby SDK's habit."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Get, Hangup, Post, SetTimer
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.inputs import UNREADABLE, ReconnectRequested
from mcp_client_guard.core.model import JSON, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled, Disconnected, Reinitialized, RepeatJoined, SessionLost
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import RESULT, Driver, Peer, delivered, in_doubt, note, of, outcomes, reports

LOOK: JSON = {"name": "look", "annotations": {"readOnlyHint": True}}
ACCEPTED = {"accepted": True}
SAID: dict[str, tuple[int, Any]] = {
    "accepted": (200, ACCEPTED),
    "accepted with 202": (202, ACCEPTED),
    "202 and nothing": (202, None),
    "200 and nothing": (200, None),
    "HTML": (200, UNREADABLE),
    "a batch of nothing": (200, [ACCEPTED]),
}


@pytest.fixture
def driver() -> Driver:
    return Driver().opened(standalone=True)


@pytest.fixture
def stream(driver: Driver) -> Peer:
    return driver.standalone


def says(peer: Peer, how: str = "accepted") -> list[Action]:
    status, body = SAID[how]
    return peer.accept(events=False, status=status) + peer.body(body)


def waiting(driver: Driver, how: str = "accepted", **arguments: Any) -> Peer:
    """A call whose POST is over, and has not brought its answer."""
    call = driver.call(**arguments)
    actions = says(call, how)
    assert not outcomes(actions)
    assert not of(actions, Post), "no ping asks for the session yet"
    return call


def methods(actions: list[Action]) -> list[str]:
    return [post.message.get("method", "") for post in of(actions, Post)]


def told(actions: list[Action]) -> str:
    (answer,) = delivered(actions)
    doubt = CallInDoubt.find(answer["result"])
    assert doubt is not None
    return doubt.reason


# It comes.


@pytest.mark.parametrize("how", SAID)
def test_the_answer_that_follows_on_the_standalone_stream_is_the_answer(
    driver: Driver, stream: Peer, how: str
) -> None:
    call = waiting(driver, how)
    actions = stream.event(None, call.result())
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert not of(actions, Post)
    assert not call.is_open, "nothing more is owed on its own stream"
    assert not driver.is_set(TimerKind.UNWANTED, call.stream)
    assert driver.elapse(TimerKind.ANSWER, call.stream) == []


def test_so_it_is_for_many_at_once_in_any_order(driver: Driver, stream: Peer) -> None:
    calls = [driver.call(n=n) for n in range(8)]
    for call in calls:
        assert not outcomes(says(call))
    for call in reversed(calls):
        actions = stream.event(None, call.result())
        assert [m["id"] for m in delivered(actions)] == [call.host_id]
        assert outcomes(actions) == [Outcome.COMPLETED]


def test_equal_calls_that_wait_are_two_calls(driver: Driver, stream: Peer) -> None:
    """Each passes through this wait on such a server: it says nothing against them."""
    first, second = waiting(driver, n=1), waiting(driver, n=1)
    assert first.stream != second.stream
    assert outcomes(stream.event(None, second.result())) == [Outcome.COMPLETED]
    assert outcomes(stream.event(None, first.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("method", ["tools/list", "resources/read"])
def test_so_it_is_for_any_request_of_the_host_s(driver: Driver, stream: Peer, method: str) -> None:
    request = driver.request(method)
    assert not outcomes(says(request))
    assert outcomes(stream.event(None, request.result({"tools": []}))) == [Outcome.COMPLETED]


def test_a_ping_that_draws_it_is_no_proof_against_the_session(driver: Driver, stream: Peer) -> None:
    call = driver.call()
    call.refuse(400)
    ping = driver.sent("ping")
    assert methods(says(ping)) == []
    actions = stream.event(None, ping.result({}))
    assert outcomes(actions) == [Outcome.COMPLETED], "400 was its answer"
    assert not driver.is_waited_for("initialize")
    assert not reports(driver.log, SessionLost)


def test_while_the_stream_is_being_opened_it_may_come_too() -> None:
    driver = Driver()
    driver.initialize()
    driver.notify("notifications/initialized")
    driver.elapse(TimerKind.CONFIRM)
    call = waiting(driver)
    driver.standalone.accept()
    assert outcomes(driver.standalone.event(None, call.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("code", [-32600, -32000])
def test_an_error_that_may_mean_a_lost_session_has_that_asked_there_too(
    driver: Driver, stream: Peer, code: int
) -> None:
    call = waiting(driver)
    assert methods(stream.event(None, call.error(code))) == ["ping"]
    actions = driver.sent("ping").answer({})
    assert outcomes(actions) == [Outcome.IN_DOUBT if code == -32000 else Outcome.COMPLETED]


# It does not.


@pytest.mark.parametrize("how", SAID)
def test_without_one_within_witness_timeout_the_session_is_asked_and_the_call_is_in_doubt(
    driver: Driver, how: str
) -> None:
    call = waiting(driver, how)
    assert driver.timers[next(t for t in driver.timers if t.kind is TimerKind.ANSWER)] == driver.now + 5
    assert methods(driver.elapse(TimerKind.ANSWER, call.stream)) == ["ping"]
    actions = driver.sent("ping").answer({})
    assert in_doubt(actions)
    says_nothing = SAID[how][1] is None
    assert ("without an answer" if says_nothing else "no JSON-RPC") in told(actions)


def test_a_harmless_call_is_sent_again_then(driver: Driver) -> None:
    driver.listed(LOOK)
    call = driver.call("look")
    says(call)
    driver.elapse(TimerKind.ANSWER, call.stream)
    assert methods(driver.sent("ping").answer({})) == ["tools/call"]


def test_a_session_that_says_so_to_everything_is_replaced_as_it_was(driver: Driver) -> None:
    call = waiting(driver)
    driver.elapse(TimerKind.ANSWER, call.stream)
    ping = driver.sent("ping")
    says(ping)
    assert methods(driver.elapse(TimerKind.ANSWER, ping.stream)) == ["initialize"]
    actions = driver.reinitialized()
    assert in_doubt(actions)
    assert reports(actions, Reinitialized)


def test_what_the_user_knows_for_the_word_of_a_lost_session_is_not_waited_behind() -> None:
    driver = Driver(GuardPolicy(is_session_lost=lambda status, body: body == {"detail": "gone"}))
    driver.opened(standalone=True)
    call = driver.call()
    call.accept(events=False)
    assert reports(call.body({"detail": "gone"}), SessionLost)
    assert not driver.is_set(TimerKind.ANSWER, call.stream)


def test_an_answer_that_comes_later_still_is_found(driver: Driver, stream: Peer) -> None:
    call = waiting(driver)
    driver.elapse(TimerKind.ANSWER, call.stream)
    driver.sent("ping").answer({})
    assert outcomes(stream.event(None, call.result())) == [Outcome.RECOVERED]


def test_one_that_is_too_large_there_leaves_it_a_little_longer(driver: Driver, stream: Peer) -> None:
    call = waiting(driver)
    driver.now += 4
    stream.too_large(call.stream)
    assert stream.is_open
    assert driver.timers[next(t for t in driver.timers if t.kind is TimerKind.ANSWER)] == driver.now + 5
    actions = driver.elapse(TimerKind.ANSWER, call.stream)
    assert in_doubt(actions)
    assert not of(actions, Post), "the session has answered"


# Where it cannot come.


def test_what_waits_to_be_opened_afresh_brings_none(driver: Driver, stream: Peer) -> None:
    stream.cut()
    call = driver.call()
    assert methods(says(call)) == ["ping"]


def test_what_is_being_opened_afresh_may(driver: Driver, stream: Peer) -> None:
    stream.cut()
    stream.begin()
    call = waiting(driver)
    stream.accept()
    assert outcomes(stream.event(None, call.result())) == [Outcome.COMPLETED]


def test_the_answer_to_an_initialize_does_not_come_on_the_stream_of_an_older_session(driver: Driver) -> None:
    opening = driver.request("initialize", RESULT)
    assert outcomes(says(opening)) == [Outcome.RESENT]


def test_nor_does_that_of_a_lost_session_s_call_on_a_newer_stream(driver: Driver) -> None:
    call = driver.call()
    call.begin()
    driver.call().refuse(404)
    driver.reinitialized()
    driver.standalone.accept()
    assert in_doubt(says(call))


def test_without_a_session_an_answer_comes_on_its_own_stream_alone(driver: Driver) -> None:
    call = driver.request("tools/call", {"name": "charge"}, mcp_protocol_version="2026-07-28")
    assert in_doubt(says(call))


def test_a_body_with_its_answer_is_not_waited_behind(driver: Driver) -> None:
    call = driver.call()
    call.accept(events=False)
    assert outcomes(call.body([ACCEPTED, call.result()])) == [Outcome.COMPLETED]
    assert not call.is_open


# What happens meanwhile.


@pytest.mark.parametrize("held", ["witness first", "answer first"])
def test_a_cut_of_the_stream_leaves_time_for_the_replay(driver: Driver, stream: Peer, held: str) -> None:
    stream.event("s1", note("a"))
    stream.event("s2", note("b"))
    call = waiting(driver)
    stream.cut(after=4)
    assert [type(a) for a in driver.elapse(TimerKind.ANSWER, call.stream)] == [SetTimer]
    stream.accept()
    events: list[tuple[str, JSON]] = [("s2", note("b")), ("s3", call.result())]
    actions = [a for event in (events if held == "witness first" else events[::-1]) for a in stream.event(*event)]
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_but_not_for_ever(driver: Driver, stream: Peer) -> None:
    stream.event("s1", note("a"))
    call = waiting(driver)
    stream.cut()
    driver.elapse(TimerKind.ANSWER, call.stream)
    assert methods(driver.elapse(TimerKind.ANSWER, call.stream)) == ["ping"]


def test_where_the_stream_is_refused_for_good_it_is_over(driver: Driver, stream: Peer) -> None:
    waiting(driver, n=1), waiting(driver, n=2)
    stream.cut()
    assert methods(stream.refuse(405)) == ["ping"]
    assert outcomes(driver.sent("ping").answer({})) == [Outcome.IN_DOUBT] * 2


def test_with_its_session_it_is_over(driver: Driver) -> None:
    call = waiting(driver)
    ping_too = driver.feed(ReconnectRequested(driver.now))
    assert methods(ping_too) == ["ping"]
    says(driver.sent("ping"))
    driver.standalone.accept()
    actions = driver.call("other").refuse(404)
    assert in_doubt(actions)
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert "no JSON-RPC" in told(actions)
    driver.reinitialized()
    assert driver.machine.session.session_id == "session-two"


def test_the_host_s_cancel_ends_the_wait(driver: Driver, stream: Peer) -> None:
    call = waiting(driver)
    actions = driver.cancel(call)
    assert outcomes(actions) == [Outcome.CANCELLED]
    assert methods(actions) == ["notifications/cancelled"]
    assert of(actions, Hangup)
    assert driver.elapse(TimerKind.ANSWER, call.stream) == []
    assert not delivered(stream.event(None, call.result()))


def test_the_deadline_ends_it(driver: Driver) -> None:
    call = waiting(driver)
    actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    assert "call_deadline" in told(actions)
    assert not driver.is_set(TimerKind.UNWANTED, call.stream)


def test_leaving_ends_it(driver: Driver) -> None:
    waiting(driver)
    assert in_doubt(driver.close())


def test_reconnecting_touches_no_call_that_waits(driver: Driver, stream: Peer) -> None:
    call = waiting(driver)
    actions = driver.feed(ReconnectRequested(driver.now))
    assert [get.stream for get in of(actions, Get)] == [0]
    stream.accept()
    assert outcomes(stream.event(None, call.result())) == [Outcome.COMPLETED]


def test_what_the_hook_asks_waits_as_well() -> None:
    driver = Driver(has_hook=True).opened(standalone=True)
    driver.call().cut()
    asked = driver.hook_asks("tools/call", {"name": "status"})
    assert not of(says(asked), Post)
    assert outcomes(driver.standalone.event(None, asked.result())) == [Outcome.COMPLETED]


# The POST comes to nothing: its proxy has lost patience, and the tool runs on.


def known(driver: Driver) -> Driver:
    """The session's standalone stream has brought an answer."""
    driver.listed(LOOK)
    seen = driver.call("look")
    driver.standalone.event(None, seen.result())
    says(seen)
    return driver


NOTHING = ["cut", "504", "502", "408", "500"]


def comes_to_nothing(call: Peer, how: str) -> list[Action]:
    """The session lives all the same."""
    driver = call.driver
    actions = call.cut() if how == "cut" else call.refuse(int(how))
    if driver.is_waited_for("ping"):
        actions = actions + driver.sent("ping").answer({})
    return actions


@pytest.mark.parametrize("how", NOTHING)
def test_where_others_were_answered_there_a_post_that_comes_to_nothing_is_not_the_end(
    driver: Driver, stream: Peer, how: str
) -> None:
    call = known(driver).call()
    actions = comes_to_nothing(call, how)
    assert not outcomes(actions)
    assert [told.stream for told in reports(actions, Disconnected)] == [str(call.stream)]
    actions = stream.event(None, call.result())
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert driver.elapse(TimerKind.ANSWER, call.stream) == []
    assert set(driver.machine._streams._streams) == {0}


@pytest.mark.parametrize("how", NOTHING)
def test_it_is_in_doubt_when_none_has_come_for_settle_after(driver: Driver, stream: Peer, how: str) -> None:
    call = known(driver).call()
    began = driver.now
    comes_to_nothing(call, how)
    (settled,) = reports(driver.elapse(TimerKind.ANSWER, call.stream), CallSettled)
    assert driver.now - began == driver.policy.settle_after
    assert settled.outcome is Outcome.IN_DOUBT
    assert ("connection was lost" if how == "cut" else f"HTTP {how}") in settled.reason
    assert outcomes(stream.event(None, call.result())) == [Outcome.RECOVERED]


@pytest.mark.parametrize("how", ["cut", "504"])
def test_a_harmless_one_is_sent_again_after_witness_timeout(driver: Driver, how: str) -> None:
    call = known(driver).call("look")
    began = driver.now
    comes_to_nothing(call, how)
    actions = driver.elapse(TimerKind.ANSWER, call.stream)
    assert driver.now - began == driver.policy.witness_timeout
    assert methods(actions) == ["tools/call"]


@pytest.mark.parametrize("how", NOTHING)
def test_where_no_answer_was_seen_there_it_is_told_at_once(driver: Driver, how: str) -> None:
    """Most servers never answer there."""
    driver.call().answer()
    assert in_doubt(comes_to_nothing(driver.call(), how))


def test_an_answer_that_was_replayed_there_shows_no_such_habit(driver: Driver, stream: Peer) -> None:
    """The TypeScript SDK replays what is of other streams."""
    stream.event("s1", note("a"))
    stream.event("s2", note("b"))
    call = driver.call()
    stream.cut(after=4)
    stream.accept()
    stream.event("s2", note("b"))
    assert outcomes(stream.event("s3", call.result())) == [Outcome.COMPLETED]
    assert in_doubt(comes_to_nothing(driver.call(), "504"))


def test_nor_does_that_of_a_lost_session(driver: Driver) -> None:
    known(driver).call().refuse(404)
    driver.reinitialized()
    driver.standalone.accept()
    assert in_doubt(comes_to_nothing(driver.call(), "504"))


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_is_said_before_a_request_is_read_is_its_answer(driver: Driver, status: int) -> None:
    assert outcomes(comes_to_nothing(known(driver).call(), str(status)))


def test_an_error_under_its_own_id_is_its_answer(driver: Driver) -> None:
    call = known(driver).call()
    actions = call.refuse(500, call.error(-32603))
    actions += driver.sent("ping").answer({})
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_what_waits_to_be_opened_afresh_is_not_waited_for(driver: Driver, stream: Peer) -> None:
    call = known(driver).call()
    stream.cut()
    assert in_doubt(comes_to_nothing(call, "cut"))


def test_a_ping_is_not_waited_for(driver: Driver) -> None:
    """It asks whether the session lives, which is to be known soon."""
    known(driver).call().refuse(400)
    assert outcomes(driver.sent("ping").cut())


@pytest.mark.parametrize("how", ["cut", "504"])
def test_a_repeat_joins_the_one_that_waits(driver: Driver, stream: Peer, how: str) -> None:
    call = known(driver).call()
    comes_to_nothing(call, how)
    again = driver.call()
    assert reports(again.actions, RepeatJoined)
    assert not of(again.actions, Post)
    actions = stream.event(None, call.result())
    assert {m["id"] for m in delivered(actions)} == {call.host_id, again.host_id}


@pytest.mark.parametrize("how", ["cut", "504"])
def test_the_host_s_cancel_ends_that_wait_too(driver: Driver, stream: Peer, how: str) -> None:
    call = known(driver).call()
    comes_to_nothing(call, how)
    actions = driver.cancel(call)
    assert outcomes(actions) == [Outcome.CANCELLED]
    assert methods(actions) == ["notifications/cancelled"]
    assert driver.elapse(TimerKind.ANSWER, call.stream) == []
    assert not delivered(stream.event(None, call.result()))


@pytest.mark.parametrize("how", ["cut", "504", "500"])
@pytest.mark.parametrize("ends", ["the deadline", "leaving", "the stream is over", "its session is lost"])
def test_so_does_what_ends_any_wait(driver: Driver, stream: Peer, how: str, ends: str) -> None:
    call = known(driver).call()
    comes_to_nothing(call, how)
    if ends == "the deadline":
        actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    elif ends == "leaving":
        actions = driver.close()
    elif ends == "the stream is over":
        stream.cut()
        actions = stream.refuse(405)
    else:
        actions = driver.call("other").refuse(404)
    assert in_doubt(actions)
    assert call.stream not in driver.machine._streams._streams


def test_reconnecting_touches_none_that_waits_so(driver: Driver, stream: Peer) -> None:
    call = known(driver).call()
    comes_to_nothing(call, "cut")
    assert [get.stream for get in of(driver.feed(ReconnectRequested(driver.now)), Get)] == [0]
    stream.accept()
    assert outcomes(stream.event(None, call.result())) == [Outcome.COMPLETED]


# It comes on the POST of another request: the PHP SDK empties one queue into whichever ends next.


@pytest.fixture
def alone() -> Driver:
    """Without a standalone stream."""
    return Driver().opened()


@pytest.mark.parametrize("how", SAID)
def test_the_answer_that_comes_with_that_of_another_call_is_the_answer(alone: Driver, how: str) -> None:
    others = [alone.call(n=n) for n in range(3)]
    first, second, last = others
    assert not [*outcomes(says(first, how)), *outcomes(says(second, how))]
    last.accept(events=False)
    assert outcomes(last.body([call.result() for call in others])) == [Outcome.COMPLETED] * 3


def test_each_post_may_bring_the_answer_of_the_other(alone: Driver) -> None:
    first, second = alone.call(n=1), alone.call(n=2)
    first.accept(events=False)
    second.accept(events=False)
    assert [m["id"] for m in delivered(first.body(second.result()))] == [second.host_id]
    assert [m["id"] for m in delivered(second.body(first.result()))] == [first.host_id]


def test_beside_another_post_it_is_waited_for_as_long_as_elsewhere(alone: Driver) -> None:
    call, _ = alone.call(n=1), alone.call(n=2)
    says(call)
    began = alone.now
    assert methods(alone.elapse(TimerKind.ANSWER, call.stream)) == ["ping"]
    assert alone.now - began == alone.policy.witness_timeout
    assert outcomes(alone.sent("ping").answer({})) == [Outcome.IN_DOUBT]


def test_the_last_post_that_ends_without_its_answer_is_not_waited_for(alone: Driver) -> None:
    first, last = alone.call(n=1), alone.call(n=2)
    says(first)
    assert methods(says(last)) == ["ping"]


def test_the_end_of_the_standalone_stream_is_not_the_end_of_such_a_wait(driver: Driver, stream: Peer) -> None:
    first, last = driver.call(n=1), driver.call(n=2)
    says(first)
    stream.cut()
    assert not methods(stream.refuse(405))
    last.accept(events=False)
    assert outcomes(last.body([first.result(), last.result()])) == [Outcome.COMPLETED] * 2
