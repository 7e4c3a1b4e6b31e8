"""The last look: an answer that came on a live tail is held while the log is read once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Deliver, Get, Hangup, Report, SetTimer
from mcp_client_guard.core.inputs import TimerElapsed
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import Discontinuity
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Driver, Peer, delivered, in_doubt, note, outcomes, reports


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


def resumed(driver: Driver, retry: int | None = None, prefix: str = "e") -> Peer:
    """A call resumed and proven, whose server does not prime, so that a live tail may have begun."""
    call = driver.call()
    call.accept()
    call.event(f"{prefix}1", call.progress(1))
    call.event(f"{prefix}2", call.progress(2), retry=retry)
    call.resumed()
    call.event(f"{prefix}2", call.progress(2))
    return call


@pytest.fixture
def call(driver: Driver) -> Peer:
    """Its answer e9 is held, and the last look is under way."""
    call = resumed(driver)
    assert delivered(call.event("e9", call.result())) == []
    return call


def test_the_look_starts_where_the_last_resume_did_and_ends_within_a_second(driver: Driver) -> None:
    call = resumed(driver)
    actions = call.event("e9", call.result())
    assert [type(a) for a in actions][-3:] == [Hangup, SetTimer, Get]
    assert call.asked == "e1"
    assert driver.is_set(TimerKind.CLOSING, call.stream)


def test_what_the_server_left_out_is_delivered_before_the_answer(call: Peer) -> None:
    call.accept()
    actions = call.event("e2", call.progress(2)) + call.event("e3", call.progress(3)) + call.event("q", None)
    assert delivered(actions) == []
    actions = call.event("e9", call.result())
    assert [m.get("method", "answer") for m in delivered(actions)] == ["notifications/progress", "answer"]
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert not reports(actions, Discontinuity)
    assert not call.is_open


def test_what_a_delivered_event_has_overtaken_is_reported_and_not_delivered(driver: Driver) -> None:
    call = resumed(driver)
    call.event("e5", call.progress(5))
    call.event("e9", call.result())
    call.accept()
    call.event("e4", call.progress(4))
    call.event("e5", call.progress(5))
    actions = call.event("e9", call.result())
    assert reports(actions, Discontinuity)
    assert [m.get("method", "answer") for m in delivered(actions)] == ["answer"]


ENDS: dict[str, Callable[[Peer], list[Any]]] = {
    "time": lambda call: call.driver.elapse(TimerKind.CLOSING),
    "refused": lambda call: call.refuse(404),
    "no events": lambda call: call.accept(events=False),
    "another session": lambda call: call.accept(session_id="session-two"),
    "never answered": lambda call: call.cut("ConnectError"),
    "cut": lambda call: call.accept() + call.cut(),
    "too large": lambda call: call.accept() + call.too_large(),
    "idle": lambda call: call.accept() + call.idle(),
    "cancel": lambda call: call.driver.cancel(call),
    "deadline": lambda call: call.driver.elapse(TimerKind.DEADLINE, call.stream),
    "close": lambda call: call.driver.close(),
    "another initialize": lambda call: call.driver.initialize("session-two").actions,
}


@pytest.mark.parametrize("how", ENDS)
def test_however_the_look_ends_the_answer_is_delivered(call: Peer, how: str) -> None:
    actions = ENDS[how](call)
    assert Outcome.COMPLETED in outcomes(actions)
    assert not in_doubt(actions)
    assert [m["id"] for m in delivered(actions) if m.get("id") == call.host_id] == [call.host_id]
    assert not call.driver.is_set(TimerKind.CLOSING, call.stream)
    assert not call.is_open


# A server that replays the events of every stream: whose is an event that belongs to no request?


@pytest.fixture
def both() -> Driver:
    """The call's stream is back, the standalone one is not; the look has brought what may be of either."""
    driver = overtaken(GuardPolicy())
    assert not reports(driver.log, Discontinuity), "not yet"
    return driver


def overtaken(policy: GuardPolicy) -> Driver:
    driver = Driver(policy).opened(standalone=True)
    driver.standalone.event("s1", note("1"))
    driver.standalone.event("s2", note("2"))
    call = driver.call()
    call.accept()
    call.event("e1", call.progress(1))
    call.event("e2", call.progress(2))
    driver.standalone.cut()
    call.resumed()
    call.event("e2", call.progress(2))
    call.event("e3", call.progress(3))
    call.event("e4", call.result())
    call.accept()
    for event_id, message in (("e2", call.progress(2)), ("s3", note("3")), ("s4", note("4"))):
        call.event(event_id, message)
    call.event("e3", call.progress(3))
    call.event("e4", call.result())
    assert outcomes(driver.log)[-1] is Outcome.COMPLETED
    return driver


def test_what_is_put_off_is_bounded() -> None:
    driver = overtaken(GuardPolicy(max_held=1))
    assert len(reports(driver.log, Discontinuity)) == 1
    assert not reports(driver.close(), Discontinuity)


def brought(driver: Driver, *events: str) -> list[Action]:
    """The standalone stream is resumed, and proven; these come next."""
    driver.standalone.accept()
    return live(driver, "s2", *events)


def live(driver: Driver, *events: str) -> list[Action]:
    return [action for each in events for action in driver.standalone.event(each, note(each[1:]))]


def test_what_the_standalone_stream_brings_when_it_is_back_was_not_left_out(both: Driver) -> None:
    actions = brought(both, "s3", "s4", "s5")
    assert [m["params"]["data"] for m in delivered(actions)] == ["3", "4", "5"]
    assert not reports(actions + both.close(), Discontinuity)


@pytest.mark.parametrize("events", [("s5",), ("s3", "s5")])
def test_what_it_does_not_bring_before_what_follows_is_reported(both: Driver, events: tuple[str, ...]) -> None:
    actions = brought(both, *events)
    (loss,) = reports(actions, Discontinuity)
    assert loss.stream != "standalone"
    assert [type(a) for a in actions if isinstance(a, Deliver) or a == Report(loss)][-2:] == [Report, Deliver]
    assert not reports(both.close(), Discontinuity), "once"


@pytest.mark.parametrize("how", ["close", "session lost", "another session"])
def test_at_the_latest_it_is_reported_when_that_stream_ends(both: Driver, how: str) -> None:
    assert not reports(brought(both), Discontinuity)
    if how == "close":
        actions = both.close()
    elif how == "session lost":
        actions = both.call("b").refuse(404)
    else:
        both.initialize("session-two")
        actions = both.log  # nothing was reported before
    assert len(reports(actions, Discontinuity)) == 1


def test_what_another_call_s_stream_brings_says_nothing_of_it(both: Driver) -> None:
    """Such a server sends on one stream what is of another, in any order."""
    other = both.call("b")
    brought(both)
    assert not reports(both.standalone.event("f1", other.progress(1)), Discontinuity)
    assert not reports(both.standalone.event("q"), Discontinuity), "nor does a priming event"
    assert not reports(live(both, "s3", "s4"), Discontinuity)


def test_another_message_under_the_answer_s_id_is_reported_and_the_first_is_the_answer(call: Peer) -> None:
    call.accept()
    call.event("e3", call.progress(3))
    actions = call.event("e9", call.error())
    assert reports(actions, Discontinuity)
    (answer,) = delivered(actions)
    assert "result" in answer
    assert outcomes(actions) == [Outcome.COMPLETED]


@pytest.mark.parametrize("how", ["deadline", "cancel", "close"])
def test_an_answer_that_a_trial_holds_is_stronger_than_what_ends_the_call(driver: Driver, how: str) -> None:
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    assert delivered(call.event("e9", call.result())) == [], "held, for its witness has not come"
    actions = ENDS[how](call)
    assert Outcome.COMPLETED in outcomes(actions)
    assert [m["id"] for m in delivered(actions) if "id" in m] == [call.host_id]


def ended_on_trial(driver: Driver, how: str, beside: Any) -> tuple[Peer, list[Any]]:
    """A call that ends while a resumed stream, without its witness, has brought this and the answer."""
    call = driver.call().stream_up("e1", "e2")
    call.cut()
    if how == "JSON":
        call.accept(events=False)
        return call, call.body([call.result()] if beside is None else [beside, call.result()])
    call.accept()
    call.event("e8", beside)
    call.event("e9", call.result())
    return call, ENDS[how](call)


@pytest.mark.parametrize("how", ["deadline", "cancel", "close", "JSON"])
def test_what_is_held_beside_it_is_not_dropped_unsaid(driver: Driver, how: str) -> None:
    call, actions = ended_on_trial(driver, how, note("n"))
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert len(reports(actions, Discontinuity)) == 1


@pytest.mark.parametrize("how", ["deadline", "cancel", "close", "JSON"])
def test_what_carries_nothing_is_no_loss(driver: Driver, how: str) -> None:
    call, actions = ended_on_trial(driver, how, None)
    assert [m["id"] for m in delivered(actions) if "id" in m] == [call.host_id]
    assert not reports(actions, Discontinuity)


def test_nor_is_what_is_held_where_the_session_is_lost(driver: Driver) -> None:
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    call.event("e8", note("n"))
    assert [r.stream for r in reports(driver.call("x").refuse(404), Discontinuity)] == [str(call.stream)]


@pytest.mark.parametrize("how", ENDS)
def test_what_a_look_has_found_before_it_ended_is_not_dropped_unsaid(call: Peer, how: str) -> None:
    call.accept()
    call.event("e3", call.progress(3))
    actions = ENDS[how](call)
    told = reports(actions, Discontinuity)
    assert [m.get("id") for m in delivered(actions) if m.get("id") == call.host_id] == [call.host_id]
    assert told, "e3 was in the log"


def test_a_deadline_that_comes_after_all_was_settled_does_nothing(driver: Driver) -> None:
    call = driver.call()
    timer = next(t for t in driver.timers if t.kind is TimerKind.DEADLINE)
    call.cut()
    assert driver.feed(TimerElapsed(timer, driver.now)) == []


def test_a_look_that_finds_too_much_is_ended() -> None:
    driver = Driver(GuardPolicy(max_held=2)).opened()
    call = resumed(driver)
    call.event("e9", call.result())
    call.accept()
    call.event("x1", note("1"))
    call.event("x2", note("2"))
    assert outcomes(call.event("x3", note("3"))) == [Outcome.COMPLETED]


def test_a_look_that_finds_too_many_bytes_is_ended() -> None:
    """The same bound as that of a trial: twice the largest event."""
    driver = Driver(GuardPolicy(max_event_size=1000)).opened()
    call = resumed(driver)
    call.event("e9", call.result())
    call.accept()
    assert call.event("x1", note("1" * 900)) == []
    assert call.event("x2", note("2" * 900)) == []
    actions = call.event("x3", note("3" * 900))
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert len(delivered(actions)) == 1, "a look that is not complete delivers nothing but the answer"


def test_what_a_replay_holds_of_another_call_is_not_missed_by_this_one(driver: Driver) -> None:
    """The TypeScript server replays the later events of every stream of the session."""
    other = driver.call()
    other.accept()
    other.event("o1", other.progress(1))
    call = resumed(driver)
    call.event("e5", call.progress(5))
    call.event("e9", call.result())
    call.accept()
    assert call.event("o2", other.progress(2)) == []
    assert call.event("o3", other.result()) == []
    call.event("e5", call.progress(5))
    actions = call.event("e9", call.result())
    assert not reports(actions, Discontinuity)
    assert [m.get("id") for m in delivered(actions)] == [call.host_id]
    assert delivered(other.event("o2", other.progress(2))), "it comes on its own stream, once"
    assert outcomes(other.event("o3", other.result())) == [Outcome.COMPLETED]


def test_whose_a_message_is_that_names_no_call_is_known_only_where_there_is_one(driver: Driver) -> None:
    for alone in (True, False):
        if not alone:
            driver.call()
        call = resumed(driver, prefix=f"{alone}-")
        call.event(f"{alone}-9", call.result())
        call.accept()
        call.event(f"{alone}-4", note("news"))
        actions = call.event(f"{alone}-9", call.result())
        assert (note("news") in delivered(actions)) is alone
        assert not reports(actions, Discontinuity)


def test_an_event_without_an_id_is_never_missed(driver: Driver) -> None:
    """Whether it is one that was delivered already cannot be told."""
    call = resumed(driver)
    call.event(None, note("x"))
    call.event("e9", call.result())
    call.accept()
    call.event("e2", call.progress(2))
    call.event(None, note("x"))
    actions = call.event("e9", call.result())
    assert note("x") not in delivered(actions)
    assert outcomes(actions) == [Outcome.COMPLETED]


def test_an_event_that_breaks_the_stream_does_not_cost_it_the_answer() -> None:
    driver = Driver(GuardPolicy(id_scheme="contiguous")).opened()
    call = driver.call()
    call.accept()
    call.event("1", call.progress(1))
    call.event("2", call.progress(2))
    call.resumed()
    call.event("2", call.progress(2))
    call.event("9", call.result())
    call.accept()
    call.event("2", call.progress(2))
    call.event("7", call.progress(7))
    call.event("8", call.progress(8))
    actions = call.event("9", call.result())
    assert reports(actions, Discontinuity)
    assert outcomes(actions) == [Outcome.COMPLETED]


@pytest.mark.parametrize("why", ["primed elsewhere", "long retry", "no id", "not an answer", "never resumed"])
def test_an_answer_is_not_held_where_nothing_could_be_found(driver: Driver, why: str) -> None:
    if why == "primed elsewhere":
        call = driver.call().stream_up("e1", "e2")
        call.resumed()
        call.event("e2", call.progress(2))
    elif why == "never resumed":
        call = driver.call()
        call.accept()
    else:
        call = resumed(driver, retry=5000 if why == "long retry" else None)
    message = call.progress(3) if why == "not an answer" else call.result()
    assert len(delivered(call.event(None if why == "no id" else "e9", message))) == 1


def test_an_answer_is_not_held_when_the_trail_no_longer_reaches_back() -> None:
    driver = Driver(GuardPolicy(trail_size=2)).opened()
    call = resumed(driver)
    call.event("e3", call.progress(3))
    assert len(delivered(call.event("e4", call.result()))) == 1


def test_an_answer_of_a_call_already_settled_is_not_held(driver: Driver) -> None:
    call = resumed(driver)
    driver.cancel(call)
    assert outcomes(call.event("e9", call.result())) == [Outcome.RECOVERED]


def test_beside_another_call_a_note_delivered_here_still_overtakes(driver: Driver) -> None:
    """e4 would come after e5, which this stream has delivered: it is reported, not handed on out of order."""
    call = resumed(driver)
    driver.call("other")
    call.event("e5", note("later"))
    call.event("e9", call.result())
    call.accept()
    call.event("e4", call.progress(4))
    call.event("e5", note("later"))
    actions = call.event("e9", call.result())
    assert [m.get("method", "answer") for m in delivered(actions)] == ["answer"]
    assert reports(actions, Discontinuity)


def test_an_event_that_another_stream_has_delivered_is_not_missed(driver: Driver) -> None:
    other = driver.call("other")
    other.accept()
    other.event("o1", note("theirs"))
    other.event("o2", other.result())
    call = resumed(driver)
    call.event("e9", call.result())
    call.accept()
    call.event("o1", note("theirs"))
    actions = call.event("e9", call.result())
    assert [m.get("method", "answer") for m in delivered(actions)] == ["answer"]
    assert not reports(actions, Discontinuity)
