"""Calls that take several requests (2026-07-28): one story, no repeat, and no sending again without consent."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Post
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.forms import WAITS_ELSEWHERE
from mcp_client_guard.core.inputs import MessageSubmitted
from mcp_client_guard.core.model import JSON, CallSent, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import RepeatRefused
from tests.core.driver import Peer, delivered, of, outcomes, records, reports
from tests.core.scenes import Connection, Process

HEADERS = {"mcp-protocol-version": "2026-07-28"}
STATE = "opaque \u00e4 \ud83d\ude00 1.0"
KEY = "io.github.mcp-client-guard/call-key"


def asks(state: str | None = STATE) -> JSON:
    result: JSON = {"resultType": "input_required", "inputRequests": {"k": {"method": "elicitation/create"}}}
    return result if state is None else {**result, "requestState": state}


def call(host: Connection, tool: str = "charge", name: str | None = None, **rest: Any) -> Peer:
    meta: JSON = {} if name is None else {"_meta": {KEY: name}}
    return host.request("tools/call", {"name": tool, "arguments": {"cents": 5}, **rest, **meta}, **HEADERS)


def go_on(host: Connection, state: str | None = STATE, **rest: Any) -> Peer:
    responses = {"k": {"action": "accept", "content": {"x": 1.50}}}
    given: JSON = {} if state is None else {"requestState": state}
    return call(host, inputResponses=responses, **given, **rest)


def opened(policy: GuardPolicy | None = None) -> Connection:
    return Process(policy=policy or GuardPolicy()).connect()


def keys(host: Connection) -> list[str]:
    return [row.call_key for row in host.process.disk.calls.values()]


@pytest.mark.parametrize("state", [STATE, None])
def test_the_rounds_of_a_call_are_one_story(state: str | None) -> None:
    host = opened()
    actions = call(host).answer(asks(state))
    assert outcomes(actions) == [Outcome.INPUT_REQUIRED]
    assert delivered(actions)[0]["result"] == asks(state)
    second = go_on(host, state)
    (post,) = of(second.actions, Post)
    assert post.message["params"].get("requestState") == state
    assert post.message["params"]["inputResponses"] == {"k": {"action": "accept", "content": {"x": 1.50}}}
    assert outcomes(second.answer(asks("two"))) == [Outcome.INPUT_REQUIRED]
    third = go_on(host, "two")
    assert outcomes(third.answer()) == [Outcome.COMPLETED]
    assert len(set(keys(host))) == 1
    assert len(keys(host)) == 3
    assert [row.outcome for row in host.process.disk.calls.values()] == [
        Outcome.INPUT_REQUIRED,
        Outcome.INPUT_REQUIRED,
        Outcome.COMPLETED,
    ]


def test_another_call_is_another_story() -> None:
    host = opened()
    call(host).answer(asks())
    call(host, "other").answer()
    go_on(host, "not the state").answer()
    assert len(set(keys(host))) == 3


def test_two_that_wait_alike_go_on_in_their_order() -> None:
    host = opened()
    one, two = call(host), call(host)
    one.answer(asks(None))
    two.answer(asks(None))
    go_on(host, None).answer()
    go_on(host, None).answer()
    first, second, third, fourth = keys(host)
    assert (first, second) == (third, fourth)
    assert first != second


def test_a_call_in_doubt_does_not_hold_up_another_that_goes_on() -> None:
    host = opened()
    one, two = call(host), call(host)
    two.answer(asks())
    one.accept()
    assert outcomes(one.cut()) == [Outcome.IN_DOUBT]
    assert of(go_on(host).actions, Post), "it is no repeat of a call in doubt"


def test_a_lost_continuation_is_in_doubt_and_not_sent_again() -> None:
    host = opened()
    call(host).answer(asks())
    second = go_on(host)
    second.accept()
    actions = second.cut()
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not of(actions, Post)
    for repeat in (go_on(host), call(host)):
        assert not of(repeat.actions, Post)
        (refused,) = reports(repeat.actions, RepeatRefused)
        assert refused.call_key == keys(host)[0], "the call, whichever of its requests was lost"


def test_nor_where_another_round_that_it_could_continue_is_open() -> None:
    """The user closed the first dialogue, and the server asked the same once more."""
    host = opened()
    call(host).answer(asks())
    call(host).answer(asks())
    lost = go_on(host)
    lost.accept()
    assert outcomes(lost.cut()) == [Outcome.IN_DOUBT]
    repeat = go_on(host)
    assert not of(repeat.actions, Post)
    assert reports(repeat.actions, RepeatRefused)
    host.process.shared.consent(keys(host)[0])
    assert of(go_on(host).actions, Post), "the round is open still"


def test_nor_after_a_restart() -> None:
    host = opened()
    call(host).answer(asks())
    go_on(host).accept()
    new = host.process.killed().connect()
    for repeat in (go_on(new), call(new)):
        assert not of(repeat.actions, Post)


def test_a_continuation_is_sent_again_by_consent() -> None:
    host = opened(GuardPolicy(resend={"*": "always"}))
    call(host).answer(asks())
    second = go_on(host)
    second.accept()
    (post,) = of(second.cut(), Post)
    assert post.message["params"]["requestState"] == STATE
    assert post.message["id"] != second.stream
    assert host.peer(post.stream).answer()
    assert len(set(keys(host))) == 1


CONSENT = "io.github.mcp-client-guard/consent"


def lost(host: Connection, state: str | None) -> str:
    """A call whose second request was lost. Returns its call key."""
    call(host).answer(asks(state))
    second = go_on(host, state)
    second.accept()
    assert outcomes(second.cut()) == [Outcome.IN_DOUBT]
    host.now += 1
    return keys(host)[-1]


@pytest.mark.parametrize("state", ["the same each time", None])
@pytest.mark.parametrize("by_request", [True, False])
def test_consent_to_a_repeat_is_consent_to_all_its_rounds(state: str | None, by_request: bool) -> None:
    host = opened()
    key = lost(host, state)
    meta: JSON = {"_meta": {CONSENT: key}} if by_request else {}
    if not by_request:
        host.process.shared.consent(key)
    call(host, **meta).answer(asks(state))
    assert not of(call(host).actions, Post), "to that repeat alone"
    go_on(host, state, **meta).answer(asks(state))
    third = go_on(host, state, **meta)
    assert outcomes(third.answer()) == [Outcome.COMPLETED]
    assert not of(call(host).actions, Post)
    assert not of(go_on(host, state).actions, Post)


def test_so_by_name() -> None:
    host = opened()
    for _ in range(2):
        call(host, name="N").answer(asks(None))
        second = go_on(host, None, name="N")
        second.accept()
        host.now += 1
        assert outcomes(second.cut()) == [Outcome.IN_DOUBT]
        assert not of(call(host, name="N").actions, Post)
        host.process.shared.consent("N")


def test_so_where_a_later_round_was_consented_to() -> None:
    host = opened()
    call(host).answer(asks(None))
    key = lost(host, None)
    host.process.shared.consent(key)
    go_on(host, None).answer(asks(None))
    assert of(go_on(host, None).actions, Post)


def test_and_where_an_equal_call_waits_that_may_not_go_on() -> None:
    host = opened()
    call(host).answer(asks(None))
    key = lost(host, None)
    assert not of(go_on(host, None).actions, Post)
    host.process.shared.consent(key)
    call(host).answer(asks(None))
    assert of(go_on(host, None).actions, Post)


def test_and_where_the_round_did_not_run() -> None:
    host = opened()
    host.process.shared.consent(lost(host, None))
    call(host).answer(asks(None))
    go_on(host, None).refuse(413)
    assert of(go_on(host, None).actions, Post)


def test_but_not_to_what_comes_to_be_in_doubt_afterwards() -> None:
    """A dialogue was closed, and its call made once more; the second request of that is lost, too."""
    host = opened()
    key = lost(host, None)
    for _ in range(2):
        host.process.shared.consent(key)
        call(host).answer(asks(None))
    repeat = go_on(host, None)
    repeat.accept()
    host.now += 1
    assert outcomes(repeat.cut()) == [Outcome.IN_DOUBT]
    assert not of(go_on(host, None).actions, Post), "although one that may go on is open"


def test_a_continuation_that_never_left_may_be_sent_once_more() -> None:
    host = opened(GuardPolicy(max_attempts=1))
    call(host).answer(asks())
    second = go_on(host)
    second.cut(written=False)
    assert outcomes(second.cut(written=False)) == [Outcome.NOT_EXECUTED]
    assert of(go_on(host).actions, Post)
    assert len(set(keys(host))) == 1


def test_the_first_that_asks_for_input_is_no_answer_that_a_name_stands_for() -> None:
    host = opened()
    call(host, name="order-1").answer(asks())
    repeat = call(host, name="order-1")
    assert delivered(repeat.actions)[0]["result"] == asks(), "the call still waits for the same"
    second = go_on(host, name="order-1")
    assert of(second.actions, Post)
    second.answer({"content": [], "resultType": "complete"})
    for late in (go_on(host, name="order-1"), call(host, name="order-1")):
        assert not of(late.actions, Post)
        assert delivered(late.actions)[0]["result"]["resultType"] == "complete"


def test_the_next_process_goes_on_with_a_named_call_where_the_server_asked_for_input() -> None:
    host = opened()
    call(host, name="order-1").answer(asks())
    host = host.process.killed().connect()
    assert delivered(call(host, name="order-1").actions)[0]["result"] == asks(), "it still waits for the same"
    second = go_on(host, name="order-1")
    assert of(second.actions, Post)
    second.answer(asks("two"))
    host = host.process.killed().connect()
    late = go_on(host, name="order-1")
    assert delivered(late.actions)[0]["result"] == asks("two"), "it has stopped elsewhere since"
    third = go_on(host, "two", name="order-1")
    assert of(third.actions, Post)
    assert outcomes(third.answer()) == [Outcome.COMPLETED]
    assert not of(go_on(host, "two", name="order-1").actions, Post)


@pytest.mark.parametrize("how", ["in flight", "in doubt"])
def test_nor_is_it_sent_twice_there(how: str) -> None:
    host = opened()
    call(host, name="order-1").answer(asks())
    host = host.process.killed().connect()
    second = go_on(host, name="order-1")
    second.accept()
    if how == "in doubt":
        second.cut()
    assert not of(go_on(host, name="order-1").actions, Post)


def test_a_named_call_goes_on_in_a_session_too() -> None:
    """No revision with sessions has it; but a server that says so has not run the call."""
    host = opened()
    host.opened()
    params = {"name": "charge", "arguments": {"cents": 5}, "_meta": {KEY: "order-1"}}
    host.request("tools/call", params).answer(asks())
    given = {"requestState": STATE, "inputResponses": {}}
    second = host.request("tools/call", {**params, **given})
    assert of(second.actions, Post)
    assert outcomes(second.answer()) == [Outcome.COMPLETED]
    assert not of(host.request("tools/call", {**params, **given}).actions, Post)


def test_a_named_call_keeps_its_name_through_the_rounds() -> None:
    host = opened()
    call(host, name="order-1").answer(asks())
    (row,) = records(go_on(host).actions, CallSent)
    assert (row.call_key, row.named) == ("order-1", True)


def test_a_host_may_name_a_later_round() -> None:
    host = opened()
    call(host).answer(asks())
    (row,) = records(go_on(host, name="mine").actions, CallSent)
    assert (row.call_key, row.named) == ("mine", True)


def test_other_requests_have_rounds_too() -> None:
    host = opened()
    params = {"uri": "x"}
    host.request("resources/read", params, **HEADERS).answer(asks())
    again = host.request("resources/read", {**params, "requestState": STATE}, **HEADERS)
    assert outcomes(again.answer({"contents": []})) == [Outcome.COMPLETED]
    assert len(set(keys(host))) == 1


def test_in_a_session_there_are_no_rounds() -> None:
    host = opened()
    host.opened()
    assert outcomes(host.call().answer(asks())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("result", [{}, {"resultType": "complete"}, {"resultType": "task"}])
def test_any_other_result_is_the_last(result: JSON) -> None:
    assert outcomes(call(opened()).answer(result)) == [Outcome.COMPLETED]


# Two hosts that were told the same: their calls were one, and so is what they go on with.


@pytest.fixture
def two() -> tuple[Connection, Connection]:
    """Two connections whose equal calls were joined, and answered with a question."""
    process = Process(policy=GuardPolicy(max_attempts=2))
    one, other = process.connect(), process.connect()
    first = call(one)
    first.not_written()
    assert not of(call(other).actions, Post), "it is joined"
    first.begin()
    first.answer(asks())
    assert delivered(other.forwarded)[-1]["result"] == asks()
    return one, other


def ran(process: Process) -> int:
    """Requests that were sent to go on with a call."""
    log = [action for host in process.connections for action in host.log]
    return len({p.message["id"] for p in of(log, Post) if "inputResponses" in p.message["params"]})


@pytest.mark.parametrize("when", ["in flight", "answered"])
def test_the_second_of_two_hosts_gets_what_the_first_one_gets(
    two: tuple[Connection, Connection], when: str
) -> None:
    one, other = two
    first = go_on(one)
    if when == "answered":
        first.answer()
    late = go_on(other)
    if when == "in flight":
        first.answer()
    (answer,) = delivered(late.actions + other.forwarded[1:])
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (late.host_id, "ok")
    assert ran(one.process) == 1
    assert of(go_on(other).actions, Post), "it has its answer: what comes now is another call"


def test_who_takes_the_question_late_has_not_taken_the_answer(two: tuple[Connection, Connection]) -> None:
    host, other = two
    go_on(host).answer()
    other.drain(9)
    assert host.process.disk.call.answer is not None


@pytest.mark.parametrize("when", ["in flight", "answered"])
def test_so_through_every_round(two: tuple[Connection, Connection], when: str) -> None:
    one, other = two
    first = go_on(one)
    if when == "in flight":
        go_on(other)
    first.answer(asks("two"))
    if when == "answered":
        assert delivered(go_on(other).actions)[0]["result"] == asks("two")
    go_on(one, "two").answer()
    assert delivered(go_on(other, "two").actions)[0]["result"]["content"]
    assert ran(one.process) == 2
    assert not one.process.shared.went_on, "nobody else was told"


def test_a_lost_continuation_holds_back_the_other_host_however_late(two: tuple[Connection, Connection]) -> None:
    one, other = two
    first = go_on(one)
    first.accept()
    first.cut()
    other.now += 3600
    repeat = go_on(other)
    assert not of(repeat.actions, Post)
    (refused,) = reports(repeat.actions, RepeatRefused)
    one.process.shared.consent(refused.call_key)
    assert of(go_on(other).actions, Post)


@pytest.mark.parametrize("how", ["not written", "cancelled"])
def test_one_that_never_left_leaves_the_round_to_both(two: tuple[Connection, Connection], how: str) -> None:
    one, other = two
    first = go_on(one)
    joined = go_on(other)
    for _ in range(9):
        first.not_written() if how == "not written" else None
    if how == "cancelled":
        first.not_written()
        one.cancel(first)
    assert "error" in delivered(other.forwarded)[-1]
    assert delivered(other.forwarded)[-1]["id"] == joined.host_id
    again = go_on(other)
    assert of(again.actions, Post)
    assert not of(go_on(one).actions, Post)
    again.answer()
    assert delivered(one.forwarded)


def test_a_host_that_gives_up_may_come_back_and_nothing_is_sent_twice(two: tuple[Connection, Connection]) -> None:
    one, other = two
    first = go_on(one)
    other.cancel(go_on(other))
    first.answer(asks("two"))
    go_on(one, "two").answer()
    assert delivered(go_on(other).actions)[0]["result"] == asks("two")
    assert delivered(go_on(other, "two").actions)[0]["result"]["content"]
    assert ran(one.process) == 2
    assert not one.process.shared.went_on


def test_the_same_by_name(two: tuple[Connection, Connection]) -> None:
    """The second host names its call only now; the first one's has no name."""
    one, other = two
    first = go_on(one, name="mine")
    first.accept()
    first.cut()
    assert not of(go_on(other, name="mine").actions, Post)
    one.process.shared.consent("mine")
    assert of(go_on(other, name="mine").actions, Post)


@pytest.mark.parametrize("when", ["in flight", "answered", "in doubt"])
@pytest.mark.parametrize("goes_on_as", [None, "mine"])
def test_two_that_know_a_call_by_its_name_go_on_with_one_request(goes_on_as: str | None, when: str) -> None:
    """The second was told by the name alone what the server asks; the continuation need not repeat the name."""
    one = opened()
    other = one.process.connect()
    call(one, name="mine").answer(asks())
    assert delivered(call(other, name="mine").actions)[0]["result"] == asks()
    first = go_on(one, name=goes_on_as)
    if when == "answered":
        first.answer()
    elif when == "in doubt":
        first.accept()
        first.cut()
    assert not of(go_on(other, name=goes_on_as).actions, Post)
    assert ran(one.process) == 1


def test_two_names_that_stop_alike_go_on_each_by_itself_and_once() -> None:
    host = opened()
    for name in ("order-1", "order-2", "order-3"):
        call(host, name=name).answer(asks())
    for name in ("order-2", "order-1"):
        assert [r.call_key for r in records(go_on(host, name=name).actions, CallSent)] == [name]
        assert not of(go_on(host, name=name).actions, Post), "it does not go on in the place of another"
    assert [r.call_key for r in records(go_on(host).actions, CallSent)] == ["order-3"]


def test_a_new_call_that_stops_alike_goes_on_by_itself(two: tuple[Connection, Connection]) -> None:
    one, other = two
    go_on(one).answer()
    call(one).answer(asks())
    assert of(go_on(one).actions, Post), "it was asked anew"
    assert ran(one.process) == 2
    assert not of(go_on(other).actions, Post), "and the other host's is the first one still"


@pytest.mark.parametrize("again", [True, False])
def test_a_repeat_of_a_continuation_in_doubt_is_none_of_another_call_that_waits_alike(again: bool) -> None:
    """Also where the host closes its connections in between."""
    host = opened()
    for each in (call(host), call(host)):
        each.answer(asks())
        host.drain()
    go_on(host).cut()
    host.drain()
    host = host.process.connect_again() if again else host
    repeat = go_on(host)
    assert not of(repeat.actions, Post)
    assert reports(repeat.actions, RepeatRefused)


def test_what_went_on_and_is_forgotten_holds_nobody_back(
    two: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    monkeypatch.setattr("mcp_client_guard.core.latch._KEPT", 0)
    first = go_on(one)
    for _ in range(9):
        first.not_written()
    one.process.shared.rounds.clear()
    assert of(go_on(other).actions, Post)


# A host in a session cannot give what the server asks for.


def session_beside() -> tuple[Connection, Connection]:
    """The first host's server has asked for input; the second's speaks of sessions."""
    process = Process(policy=GuardPolicy(max_attempts=2))
    one, other = process.connect(), process.connect()
    other.opened()
    return one, other


def in_session(host: Connection, name: str | None = None) -> Peer:
    return host.request(
        "tools/call",
        {"name": "charge", "arguments": {"cents": 5}, **({} if name is None else {"_meta": {KEY: name}})},
    )


def in_doubt_of(actions: Any) -> str | None:
    (told,) = delivered(actions)
    doubt = CallInDoubt.find(told["result"])
    return None if doubt is None else doubt.reason


def test_a_host_in_a_session_that_was_joined_is_in_doubt_and_its_repeat_is_not_sent() -> None:
    one, other = session_beside()
    first = call(one)
    first.not_written()
    assert not of(in_session(other).actions, Post)
    first.begin()
    first.answer(asks())
    assert in_doubt_of(other.forwarded) == WAITS_ELSEWHERE
    assert not of(in_session(other).actions, Post), "the first host may go on"
    second = go_on(one)
    assert outcomes(second.answer()) == [Outcome.COMPLETED]
    assert not one.process.shared.went_on, "it does not go on with it"


def test_nor_is_it_given_the_question_by_its_name() -> None:
    one, other = session_beside()
    call(one, name="order-1").answer(asks())
    repeat = in_session(other, "order-1")
    assert in_doubt_of(repeat.actions) == WAITS_ELSEWHERE
    one.process.shared.consent("order-1")
    assert of(in_session(other, "order-1").actions, Post)


def test_a_question_that_nobody_has_heard_is_asked_anew_in_a_session() -> None:
    one = opened()
    call(one).answer(asks())
    new = one.process.killed().connect()
    new.opened()
    repeat = in_session(new)
    assert of(repeat.actions, Post)
    repeat.answer()
    assert of(call(new).actions, Post), "and what ran since is no answer to go on from"


@pytest.mark.parametrize("modern", ["first", "second"])
def test_what_is_joined_across_generations_is_answered_in_the_host_s_own(modern: str) -> None:
    one, other = session_beside()
    first = call(one) if modern == "first" else in_session(other)
    first.not_written()
    repeat = in_session(other) if modern == "first" else call(one)
    first.begin()
    first.answer({"content": []})
    (told,) = delivered((other if modern == "first" else one).forwarded)
    assert told["id"] == repeat.host_id
    assert modern == "first" or told["result"]["resultType"] == "complete"


def test_a_continuation_that_the_host_resumes_is_not_sent_and_leaves_the_question() -> None:
    host = opened()
    call(host).answer(asks())
    goes_on = {"name": "charge", "arguments": {"cents": 5}, "inputResponses": {}, "requestState": STATE}
    message: JSON = {"jsonrpc": "2.0", "id": "r", "method": "tools/call", "params": goes_on}
    stamped = {name.replace("_", "-"): value for name, value in HEADERS.items()}
    actions = host.feed(MessageSubmitted(message, stamped, "key-r", resumes=True))
    assert not of(actions, Post)
    (told,) = delivered(actions)
    doubt = CallInDoubt.find(told["result"])
    assert doubt is not None
    assert not of(go_on(host).actions, Post)
    host.process.shared.consent(doubt.call_key)
    assert of(go_on(host).actions, Post)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_continuation_of_which_nothing_ran_leaves_its_name_to_the_question(restarted: bool) -> None:
    host = opened(GuardPolicy(max_attempts=1))
    call(host, name="N").answer(asks())
    assert not of(call(host, name="N").actions, Post), "it gets the same question"
    second = go_on(host, name="N")
    second.cut(written=False)
    second.cut(written=False)
    host = host.process.killed().connect() if restarted else host
    again = call(host, name="N")
    assert not of(again.actions, Post)
    assert delivered(again.actions)[0]["result"]["resultType"] == "input_required"
    assert of(go_on(host, name="N").actions, Post)
