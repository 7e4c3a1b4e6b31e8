"""Sessions that die with status 200, and answers that only look so: what is no answer has the session asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcp_client_guard.core.actions import Action
from mcp_client_guard.core.inputs import UNREADABLE
from mcp_client_guard.core.model import JSON, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled, SessionLost
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Driver, Peer, delivered, in_doubt, methods, note, outcomes, posted, reports

LOOK: JSON = {"name": "look", "annotations": {"readOnlyHint": True}}

Said = Callable[[Peer], Any]
NO_ANSWERS: dict[str, Said] = {
    "nothing": lambda _: None,
    "HTML": lambda _: UNREADABLE,
    "a detail": lambda _: {"detail": "Session not found"},
    "an error that is a text": lambda _: {"error": "Session not found"},
    "a code that is a text": lambda call: {"jsonrpc": "2.0", "id": call.stream, "error": {"code": "-32001"}},
    "neither result nor error": lambda call: {"jsonrpc": "2.0", "id": call.stream},
    "a text": lambda _: "gone",
    "no message of a batch": lambda _: [{"detail": "Session not found"}],
}
"""None of these is an answer that could be read."""


@pytest.fixture
def driver() -> Driver:
    driver = Driver().opened()
    driver.listed(LOOK)
    return driver


def state(driver: Driver) -> SessionState:
    return driver.machine.session.state


def says(peer: Peer, said: Any, *, events: bool = False) -> list[Action]:
    """All of the answer with 200; as events, a body of None is a stream without any."""
    actions = peer.accept(events=events)
    if not events:
        actions += peer.body(said)
    elif said is not None:
        actions += peer.event(None, b"<html>" if said is UNREADABLE else said)
    actions += peer.end() if events and peer.is_open else []
    if peer.driver.is_set(TimerKind.ANSWER, peer.stream):
        actions += peer.driver.elapse(TimerKind.ANSWER, peer.stream)
    return actions


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("said", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_leaves_the_call_in_doubt_and_the_session_alone_that_answers_a_ping(
    driver: Driver, said: Said, events: bool
) -> None:
    call = driver.call()
    actions = says(call, said(call), events=events)
    assert methods(actions) == ["ping"]
    assert delivered(actions) == []
    actions = driver.sent("ping").answer({})
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert state(driver) is SessionState.LIVE
    assert not posted(actions)


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("said", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_where_a_ping_draws_the_like_another_session_is_opened_and_only_what_may_be_is_sent_again(
    driver: Driver, said: Said, events: bool
) -> None:
    charge, look = driver.call("charge"), driver.call("look")
    for call in (charge, look):
        says(call, said(call), events=events)
    ping = driver.sent("ping")
    assert methods(says(ping, said(ping))) == ["initialize"]
    actions = driver.reinitialized(tools=[LOOK])
    assert len(reports(actions, SessionLost)) == 1
    assert [p.message["params"]["name"] for p in posted(actions, "tools/call")] == ["look"]
    assert outcomes(actions) == [Outcome.IN_DOUBT, Outcome.RESENT]
    assert [m["id"] for m in delivered(driver.sent("tools/call").answer())] == [look.host_id]


def test_a_safe_call_whose_answer_cannot_be_read_is_sent_again_in_a_session_that_lives(driver: Driver) -> None:
    says(driver.call("look"), UNREADABLE)
    (post,) = posted(driver.sent("ping").answer({}))
    actions = says(driver.peer(post.stream), UNREADABLE)
    assert "ping" not in methods(actions), "it is what this server says to this call: the session is known to live"


@pytest.mark.parametrize("how", ["cut", "timeout", "another word"])
def test_a_ping_that_is_lost_says_nothing_of_the_session(driver: Driver, how: str) -> None:
    says(driver.call(), UNREADABLE)
    ping = driver.sent("ping")
    if how == "another word":
        actions = ping.refuse(400)
    else:
        actions = ping.cut() if how == "cut" else driver.elapse(TimerKind.DEADLINE, ping.stream)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert state(driver) is SessionState.LIVE


@pytest.mark.parametrize("sign", ["priming", "progress", "log"])
def test_a_stream_that_ends_after_a_sign_of_life_says_nothing_of_the_session(driver: Driver, sign: str) -> None:
    call = driver.call()
    call.accept()
    if sign != "priming":
        call.event(None, call.progress(1) if sign == "progress" else note("working"))
        actions = call.end()
        assert outcomes(actions) == [Outcome.IN_DOUBT]
    else:
        call.event("p")
        actions = call.end()
    assert "ping" not in methods(actions)


def test_nor_does_one_that_is_cut(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    actions = call.cut()
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not posted(actions)


@pytest.mark.parametrize("how", ["deadline", "cancel", "close"])
@pytest.mark.parametrize("drew", ["HTML", "an error", "HTTP 500"])
@pytest.mark.parametrize("tool", ["charge", "look"])
def test_who_must_have_an_answer_at_once_is_told_that_it_is_in_doubt(
    driver: Driver, tool: str, how: str, drew: str
) -> None:
    """A call without side effects has the server's own word, if there is one."""
    call = driver.call(tool)
    if drew == "HTTP 500":
        call.refuse(500)
    else:
        says(call, UNREADABLE if drew == "HTML" else call.error(-32000))
    if how == "deadline":
        actions = driver.elapse(TimerKind.DEADLINE, call.stream)
    else:
        actions = driver.cancel(call) if how == "cancel" else driver.close()
    has_word = tool == "look" and drew != "HTML"
    assert outcomes(actions) == [Outcome.COMPLETED if has_word else Outcome.IN_DOUBT]
    assert not posted(actions, "tools/call")


def test_a_question_of_the_hook_s_that_is_answered_so_may_have_run() -> None:
    driver = Driver(has_hook=True).opened()
    peer = driver.hook_asks("tools/call", {"name": "refund"})
    says(peer, UNREADABLE)
    assert outcomes(driver.sent("ping").answer()) == [Outcome.IN_DOUBT]


def test_without_a_session_nothing_is_asked() -> None:
    driver = Driver().opened(session_id=None)
    actions = says(driver.call(), UNREADABLE)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not posted(actions)


# Errors under an ID that is none of ours.


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("name", [None, "server-error", "", 0, -1])
def test_an_error_under_no_id_of_ours_is_what_the_server_says_to_this_request(
    driver: Driver, name: str | int | None, events: bool
) -> None:
    call = driver.call()
    refusal = {"jsonrpc": "2.0", "id": name, "error": {"code": -32600, "message": "Session not found"}}
    assert methods(says(call, refusal, events=events)) == ["ping"]
    ping = driver.sent("ping")
    assert methods(says(ping, refusal)) == ["initialize"]
    actions = driver.reinitialized(tools=[LOOK])
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert [m["id"] for m in delivered(driver.sent("tools/call").answer())] == [call.host_id]


def test_it_is_an_answer_where_its_code_is_no_word_of_lost_sessions(driver: Driver) -> None:
    call = driver.call()
    actions = says(call, {"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32602, "message": "no"}})
    assert [(m["id"], m["error"]["code"]) for m in delivered(actions)] == [(call.host_id, -32602)]
    assert outcomes(actions) == [Outcome.COMPLETED]


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("end", ["ended", "cut", "silent"])
@pytest.mark.parametrize("name", [None, "server-error", "", 0])
def test_behind_a_witness_it_may_be_another_request_s_but_is_not_waited_behind_for_ever(
    driver: Driver, name: str | int | None, end: str, held: bool
) -> None:
    """Some servers replay what they said to other requests, too."""
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    crash = {"jsonrpc": "2.0", "id": name, "error": {"code": -32603, "message": "worker crashed"}}
    events = [("e2", call.progress(2)), ("e3", crash)]
    for event_id, message in reversed(events) if held else events:
        assert not delivered(call.event(event_id, message))
    actions = driver.elapse(TimerKind.ANSWER) if end == "silent" else call.cut(clean=end == "ended")
    assert in_doubt(actions)
    assert not call.is_open


def test_a_good_answer_behind_it_is_the_call_s(driver: Driver) -> None:
    call = driver.call().stream_up("e1", "e2")
    call.resumed()
    call.event("e2", call.progress(2))
    call.event("e3", {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "no"}})
    call.event("e4", call.result())
    assert outcomes(driver.log)[-1] is Outcome.COMPLETED


@pytest.mark.parametrize("end", ["answered", "ended", "cut", "silent"])
@pytest.mark.parametrize("name", [None, "server-error", "", 0])
@pytest.mark.parametrize("sign", ["priming", "progress", "log"])
def test_nor_is_it_the_answer_behind_a_sign_that_the_call_was_taken(
    driver: Driver, sign: str, name: str | int | None, end: str
) -> None:
    """A bridge puts what its server says to a notification on whatever stream is open."""
    call = driver.call()
    call.accept()
    call.event(None, {"priming": None, "progress": call.progress(1), "log": note("begun")}[sign])
    call.event("e2", note("more"))
    assert (
        delivered(call.event("e3", {"jsonrpc": "2.0", "id": name, "error": {"code": -32602, "message": "no"}}))
        == []
    )
    if end == "answered":
        assert delivered(call.event("e4", call.result())) == [{**call.result(), "id": call.host_id}]
        return
    actions = driver.elapse(TimerKind.ANSWER) if end == "silent" else call.cut(clean=end == "ended")
    assert in_doubt(actions)
    assert "The server said: no" in str(delivered(actions)), "it is passed on"


def test_on_the_standalone_stream_it_is_nobody_s() -> None:
    driver = Driver().opened(standalone=True)
    call = driver.call().stream_up("e1")
    driver.standalone.event("s1", {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "no"}})
    assert not driver.is_set(TimerKind.ANSWER, call.stream)
    call.cut()
    assert call.is_open


# -32000 and -32001: said of dead sessions, and of calls that were running.


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("code", [-32000, -32001])
def test_a_connection_closed_or_a_time_out_may_have_run_also_where_the_session_is_gone(
    driver: Driver, code: int, events: bool
) -> None:
    charge, look = driver.call("charge"), driver.call("look")
    for call in (charge, look):
        says(call, call.error(code), events=events)
    driver.sent("ping").answer_error(code)
    actions = driver.reinitialized(tools=[LOOK])
    assert outcomes(actions) == [Outcome.IN_DOUBT, Outcome.RESENT]
    assert [p.message["params"]["name"] for p in posted(actions, "tools/call")] == ["look"]


def test_the_hook_is_asked_about_it() -> None:
    driver = Driver(has_hook=True).opened()
    call = driver.call()
    call.answer_error(-32000)
    driver.sent("ping").answer_error(-32000)
    assert not delivered(driver.sent("initialize").answer({}))
    assert not [r for r in reports(driver.log, CallSettled) if r.method == "tools/call"]


# Servers that refuse every ping.


def refuses(peer: Peer, status: int) -> list[Action]:
    return peer.answer_error(-32000) if status == 200 else peer.refuse(status)


@pytest.mark.parametrize("status", [200, 400, 500])
def test_what_the_new_session_says_to_a_ping_too_was_an_answer_in_the_old_one(driver: Driver, status: int) -> None:
    call = driver.call()
    refuses(call, status)
    refuses(driver.sent("ping"), status)
    driver.sent("initialize").answer({"capabilities": {"tools": {}}}, session_id="session-two")
    actions = driver.sent("notifications/initialized").accept(status=202, events=False)
    assert methods(actions) == ["ping", "tools/list"]
    driver.sent("tools/list").answer({"tools": [LOOK]})
    assert state(driver) is SessionState.LIVE
    actions = refuses(driver.sent("ping"), status)
    # But nobody has said yet that a session lives, and what may have run is in doubt.
    assert outcomes(actions) == [Outcome.COMPLETED if status == 400 else Outcome.IN_DOUBT]
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert not posted(actions)

    call = driver.call(n=2)
    assert methods(refuses(call, status)) == ["tools/list"], "it is asked for something else from now on"
    actions = driver.sent("tools/list").answer({"tools": []})
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert driver.machine.session.session_id == "session-two"

    refuses(driver.call("look"), status)
    assert methods(refuses(driver.sent("tools/list"), status)) == ["initialize"], "and that dies, too"


def test_where_there_are_no_tools_to_ask_for_it_is_asked_by_ping_again(driver: Driver) -> None:
    driver.call().refuse(400)
    driver.sent("ping").refuse(400)
    driver.sent("initialize").answer({}, session_id="session-two")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    assert outcomes(driver.sent("ping").refuse(400)) == [Outcome.COMPLETED]
    driver.sent("tools/list").answer({})
    assert methods(driver.call().refuse(400)) == ["ping"]


def compares(driver: Driver) -> Peer:
    """A call and the ping after it drew 400, and a new session is asked by ping, too."""
    call = driver.call()
    call.refuse(400)
    driver.sent("ping").refuse(400)
    driver.sent("initialize").answer({"capabilities": {"tools": {}}}, session_id="session-two")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    return call


NOT_FOUND: JSON = {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "no"}}
ANSWERED: dict[str, Callable[[Peer], list[Action]]] = {
    "answered": lambda ping: ping.answer({}),
    "unknown to it": lambda ping: ping.answer_error(-32601),
    "unknown, by status": lambda ping: ping.refuse(400, NOT_FOUND),
}
"""Only a server that has the session says so."""
NO_WORD: dict[str, Callable[[Peer], list[Action]]] = {
    "cut": lambda ping: ping.cut(),
    "closed": lambda ping: ping.end(),
    "timeout": lambda ping: ping.driver.elapse(TimerKind.DEADLINE, ping.stream),
    "busy": lambda ping: ping.refuse(503),
    "another word": lambda ping: ping.refuse(500),
    "a word of the proxy's": lambda ping: ping.refuse(504, NOT_FOUND),
    "to log in": lambda ping: ping.refuse(302),
    "an error that lost sessions give": lambda ping: ping.answer_error(-32001),
    "HTML": lambda ping: says(ping, UNREADABLE),
}
"""It may have come from anybody on the way."""


@pytest.mark.parametrize("how", ANSWERED)
def test_what_the_new_session_does_not_say_was_the_word_of_a_lost_one(driver: Driver, how: str) -> None:
    compares(driver)
    driver.sent("tools/list").answer({"tools": [LOOK]})
    actions = ANSWERED[how](driver.sent("ping"))
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert methods(actions) == ["tools/call"]


@pytest.mark.parametrize("how", NO_WORD)
def test_a_comparison_without_an_answer_is_made_once_more_and_then_shows_nothing(driver: Driver, how: str) -> None:
    call = compares(driver)
    driver.sent("tools/list").answer({"tools": [LOOK]})
    actions = NO_WORD[how](driver.sent("ping"))
    assert outcomes(actions) == []
    assert methods(actions) == ["ping"]
    actions = NO_WORD[how](driver.sent("ping"))
    assert outcomes(actions) == [Outcome.COMPLETED], "the refusal was its answer"
    assert [m["id"] for m in delivered(actions)] == [call.host_id]
    assert methods(driver.call().refuse(400)) == ["ping"], "nor does the server refuse every ping"


@pytest.mark.parametrize("second", ["answered", "refused alike"])
def test_what_the_second_comparison_says_counts(driver: Driver, second: str) -> None:
    compares(driver)
    driver.sent("tools/list").answer({"tools": [LOOK]})
    driver.sent("ping").cut()
    ping = driver.sent("ping")
    actions = ping.answer({}) if second == "answered" else ping.refuse(400)
    assert outcomes(actions) == [Outcome.NOT_EXECUTED if second == "answered" else Outcome.COMPLETED]
    assert len(posted(actions, "tools/call")) == (second == "answered")


def test_a_late_refusal_of_a_session_that_could_not_be_compared_is_an_answer(driver: Driver) -> None:
    late = driver.call("b")
    compares(driver)
    driver.sent("tools/list").answer({"tools": [LOOK]})
    driver.sent("ping").cut()
    driver.sent("ping").cut()
    assert outcomes(late.refuse(400)) == [Outcome.COMPLETED]


LOST_BEFORE: dict[str, Callable[[Driver], list[Action]]] = {
    "in its handshake": lambda driver: driver.sent("notifications/initialized").refuse(404),
    "while it is restored": lambda driver: restoring(driver).sent("tools/list").refuse(404),
    "by its ping": lambda driver: restoring(driver).sent("ping").refuse(404),
    "live": lambda driver: live(driver).call("look").refuse(404),
    "after one comparison": lambda driver: compared_once(driver).call("look").refuse(404),
}


def restoring(driver: Driver) -> Driver:
    driver.sent("notifications/initialized").accept(status=202, events=False)
    return driver


def live(driver: Driver) -> Driver:
    restoring(driver).sent("tools/list").answer({"tools": [LOOK]})
    return driver


def compared_once(driver: Driver) -> Driver:
    live(driver).sent("ping").cut()
    return driver


@pytest.mark.parametrize("says_alike", [True, False])
@pytest.mark.parametrize("when", LOST_BEFORE)
def test_a_new_session_that_is_lost_before_it_was_compared_leaves_that_to_the_next(
    driver: Driver, when: str, says_alike: bool
) -> None:
    call = driver.call()
    call.refuse(400)
    driver.sent("ping").refuse(400)
    driver.sent("initialize").answer({}, session_id="session-two")
    actions = LOST_BEFORE[when](driver)
    assert methods(actions) == ["initialize"]
    assert outcomes(actions) == []
    driver.sent("initialize").answer({}, session_id="session-three")
    actions = live(driver).sent("ping").refuse(400) if says_alike else live(driver).sent("ping").answer({})
    assert outcomes(actions) == [Outcome.COMPLETED if says_alike else Outcome.NOT_EXECUTED]
    charged = [p for p in posted(driver.log, "tools/call") if p.message["params"]["name"] == "charge"]
    assert len(charged) == 1 + (not says_alike)


def test_nor_does_the_end_of_the_old_one_by_another_sign_say_what_became_of_a_call(driver: Driver) -> None:
    """This server refuses every ping; its 404 came later, and to another call."""
    driver.call().refuse(400)
    other = driver.call("look")
    driver.sent("ping").refuse(400)
    assert outcomes(other.refuse(404)) == []
    driver.sent("initialize").answer({}, session_id="session-two")
    live(driver)
    assert outcomes(driver.sent("ping").refuse(400)) == [Outcome.COMPLETED]


def test_where_no_session_can_be_opened_any_more_nothing_waits_to_be_compared(driver: Driver) -> None:
    call = compares(driver)
    safe = driver.call("look")
    driver.sent("tools/list").refuse(404)
    actions = driver.sent("initialize").refuse(401)
    assert {m["id"] for m in delivered(actions)} == {call.host_id, safe.host_id}
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert not posted(actions)


@pytest.mark.parametrize("is_mute", [True, False])
def test_a_refusal_that_comes_before_the_comparison_is_over_waits_for_it(driver: Driver, is_mute: bool) -> None:
    first, late = driver.call("a"), driver.call("b")
    first.refuse(400)
    driver.sent("ping").refuse(400)
    driver.sent("initialize").answer({}, session_id="session-two")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    driver.sent("tools/list").answer({"tools": [LOOK]})
    assert not posted(late.refuse(400))
    new = driver.call("c")
    assert not posted(new.refuse(400)), "one ping at a time"
    actions = driver.sent("ping").refuse(400) if is_mute else driver.compared()
    assert methods(actions) == (["ping"] if is_mute else ["tools/call", "tools/call", "ping"])
    assert outcomes(actions) == [Outcome.COMPLETED if is_mute else Outcome.NOT_EXECUTED] * 2
    actions = driver.sent("ping").answer({})
    assert [m["id"] for m in delivered(actions)] == [new.host_id]


def test_a_suspect_that_is_cancelled_before_the_comparison_is_over_is_not_sent_again(driver: Driver) -> None:
    call = driver.call()
    call.refuse(400)
    driver.sent("ping").refuse(400)
    driver.sent("initialize").answer({}, session_id="session-two")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    driver.cancel(call)
    assert not posted(driver.compared(), "tools/call")


def test_a_new_session_that_is_lost_before_it_is_compared_is_replaced_in_turn(driver: Driver) -> None:
    driver.call().refuse(400)
    driver.sent("ping").refuse(400)
    driver.sent("initialize").answer({}, session_id="session-two")
    driver.sent("notifications/initialized").accept(status=202, events=False)
    assert methods(driver.sent("ping").refuse(404)) == ["initialize"]
    actions = driver.reinitialized("session-three", tools=[LOOK])
    assert methods(actions).count("tools/call") == 1


# The predicate.


def odd(status: int, body: Any) -> bool:
    """Reads the prose: of a result it would say the same."""
    return "expired" in str(body)


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("code", [-32603, -32000, 17])
def test_the_user_s_predicate_is_asked_of_an_error_with_200(code: int, events: bool) -> None:
    driver = Driver(GuardPolicy(is_session_lost=odd)).opened()
    call = driver.call()
    said = {"jsonrpc": "2.0", "id": call.stream, "error": {"code": code, "message": "Session expired"}}
    actions = says(call, said, events=events)
    assert methods(actions) == ["initialize"], "at its word: there is no ping"
    assert outcomes(driver.reinitialized()) == [Outcome.NOT_EXECUTED]
    assert [m["id"] for m in delivered(driver.sent("tools/call").answer())] == [call.host_id]


def test_and_of_what_is_no_answer() -> None:
    driver = Driver(GuardPolicy(is_session_lost=odd)).opened()
    assert methods(says(driver.call(), {"detail": "Session expired"})) == ["initialize"]


@pytest.mark.parametrize("result", [{"content": [{"type": "text", "text": "expired"}], "isError": True}, {}])
def test_but_never_of_a_result(result: JSON) -> None:
    asked: list[Any] = []
    driver = Driver(GuardPolicy(is_session_lost=lambda *said: not asked.append(said))).opened()
    asked.clear()
    assert outcomes(driver.call().answer(result)) == [Outcome.COMPLETED]
    assert asked == []


def test_what_it_says_of_a_ping_counts_too() -> None:
    driver = Driver(GuardPolicy(is_session_lost=odd)).opened()
    driver.call().accept(events=False)
    driver.call("b").refuse(400)
    ping = driver.sent("ping")
    said = {"jsonrpc": "2.0", "id": ping.stream, "error": {"code": -32603, "message": "Session expired"}}
    assert methods(says(ping, said)) == ["initialize"]


def test_a_call_that_was_taken_may_have_run_whatever_it_says() -> None:
    driver = Driver(GuardPolicy(is_session_lost=odd)).opened()
    call = driver.call()
    call.accept()
    call.event(None, call.progress(1))
    actions = call.event(None, {"jsonrpc": "2.0", "id": call.stream, "error": {"code": 1, "message": "expired"}})
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert methods(actions) == ["initialize"]


@pytest.mark.parametrize("error", [{"code": -32001}, {"code": -32001, "message": None}])
def test_what_no_host_can_read_is_no_answer_where_the_session_lives(driver: Driver, error: JSON) -> None:
    """Its code alone would have it taken for the word of a lost session, and then for the answer."""
    call = driver.call()
    call.accept(events=False)
    call.body({"jsonrpc": "2.0", "id": call.stream, "error": error})
    actions = driver.sent("ping").answer({})
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert state(driver) is SessionState.LIVE


# Late.


def lost(driver: Driver) -> Peer:
    """A call in doubt, whose answer may still come on another stream."""
    call = driver.call()
    assert outcomes(call.cut()) == [Outcome.IN_DOUBT]
    return call


@pytest.mark.parametrize("code", [-32000, -32001, -32600])
@pytest.mark.parametrize("alive", [True, False])
def test_what_may_mean_a_lost_session_is_no_answer_when_it_comes_late_either(code: int, alive: bool) -> None:
    driver = Driver().opened(standalone=True)
    call = lost(driver)
    actions = driver.standalone.event("e1", call.error(code))
    assert methods(actions) == ["ping"]
    if alive:
        actions += driver.sent("ping").answer({})
        actions += driver.standalone.event("e2", call.result())
        assert outcomes(actions) == [Outcome.RECOVERED], "by what came after it"
    else:
        assert methods(driver.sent("ping").answer_error(code)) == ["initialize"]
        assert not outcomes(actions + driver.reinitialized())


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_nor_when_it_answers_a_call_that_was_given_up(driver: Driver, how: str) -> None:
    call = driver.call()
    driver.cancel(call) if how == "cancel" else driver.elapse(TimerKind.DEADLINE, call.stream)
    actions = says(call, call.error(-32000))
    assert methods(actions) == ["ping"]
    assert not outcomes(actions + driver.sent("ping").answer({}))


def test_any_other_error_that_comes_late_is_the_answer() -> None:
    driver = Driver().opened(standalone=True)
    call = lost(driver)
    assert outcomes(driver.standalone.event("e1", call.error(-32603))) == [Outcome.RECOVERED]


def test_the_user_s_predicate_is_asked_of_late_errors_too() -> None:
    driver = Driver(GuardPolicy(is_session_lost=odd)).opened(standalone=True)
    call = lost(driver)
    error = {"code": -32603, "message": "Session expired"}
    actions = driver.standalone.event("e1", {"jsonrpc": "2.0", "id": call.stream, "error": error})
    assert methods(actions) == ["initialize"]
    assert not outcomes(actions + driver.reinitialized())


def test_one_that_comes_when_its_session_is_over_has_no_other_session_asked(driver: Driver) -> None:
    call = driver.call()
    call.accept(events=False)
    driver.elapse(TimerKind.DEADLINE, call.stream)
    driver.call("look").refuse(404)
    driver.reinitialized()
    assert call.is_open
    actions = call.body(call.error(-32000))
    assert not posted(actions)
    assert not outcomes(actions)
