"""A repeat that its host gives up: the next one is no new call (DESIGN §5, the latch)."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.actions import Post
from mcp_client_guard.core.model import JSON, Outcome, Told
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Peer, delivered, of, outcomes
from tests.core.scenes import Connection, Process, prove

HEADERS = {"mcp-protocol-version": "2026-07-28"}
CALL: JSON = {"name": "charge", "arguments": {"cents": 5}}
GO_ON: JSON = {**CALL, "inputResponses": {"k": {"action": "accept"}}}
ASKS: JSON = {"resultType": "input_required", "inputRequests": {"k": {"method": "elicitation/create"}}}
GIVE_UP = pytest.mark.parametrize("how", ["cancelled", "left"])


def opened(process: Process) -> Connection:
    one = process.connect()
    one.opened()
    one.drain(10)
    return one


def give_up(one: Connection, peer: Peer, how: str) -> None:
    one.cancel(peer) if how == "cancelled" else one.close()


def is_sent(peer: Peer) -> bool:
    return bool(of(peer.actions, Post))


def joined(process: Process, hosts: int = 1) -> tuple[Peer, list[Peer]]:
    """A call whose stream was lost and is proven now, and repeats that have joined it."""
    call = opened(process).call().stream_up("e1")
    call.cut()
    repeats = [opened(process).call() for _ in range(hosts)]
    call.accept()
    call.event("e1", call.progress(1))
    assert not any(is_sent(repeat) for repeat in repeats)
    return call, repeats


def answer(call: Peer) -> None:
    call.event("e2", call.result())
    one = call.driver
    if one.is_set(TimerKind.CLOSING, call.stream):
        one.elapse(TimerKind.CLOSING)
    assert outcomes(one.log)[-1] is Outcome.COMPLETED


def connection(peer: Peer) -> Connection:
    assert isinstance(peer.driver, Connection)
    return peer.driver


@GIVE_UP
def test_an_answer_that_was_given_to_a_repeat_and_not_taken_is_the_next_one_s(how: str) -> None:
    process = Process()
    opened(process)
    for attempt in range(4):
        one = opened(process)
        call = one.call()
        assert is_sent(call) is (attempt == 0)
        if attempt == 0:
            call.answer()
        give_up(one, call, how)
        one.drain(10)  # whoever has given up throws it away
        assert process.disk.call.told is Told.NOBODY
    last = opened(process)
    assert not is_sent(last.call())
    last.drain(10)
    assert process.disk.call.told is Told.CALLER
    assert is_sent(last.call()), "it had its answer: this is another call"


@GIVE_UP
def test_so_is_each_copy_of_it_for_those_who_joined(how: str) -> None:
    process = Process()
    call, repeats = joined(process, hosts=2)
    answer(call)
    call.driver.drain(10)
    for repeat in repeats:
        give_up(connection(repeat), repeat, how)
    three = opened(process)
    again = three.call()
    assert "result" in delivered(again.actions)[0]
    assert not is_sent(three.call()), "two had it untaken"
    assert is_sent(three.call())


def test_a_cancel_that_names_no_request_gives_up_none() -> None:
    one = opened(Process())
    one.call().answer()
    one.notify("notifications/cancelled", {})
    one.drain(10)
    assert is_sent(one.call())


def test_a_doubt_that_was_given_up_is_a_doubt_still() -> None:
    process = Process()
    call, [repeat] = joined(process)
    call.driver.elapse(TimerKind.DEADLINE, call.stream)
    give_up(connection(repeat), repeat, "cancelled")
    again = opened(process).call()
    assert not is_sent(again)
    assert delivered(again.actions)[0]["result"]["isError"]


def test_one_that_did_not_run_is_not_kept_from_running() -> None:
    process = Process()
    one, two = opened(process), opened(process)
    one.begins = False
    call = one.call()
    call.not_written()
    repeat = two.call()
    assert not is_sent(repeat)
    one.cancel(call)
    assert "error" in delivered(two.forwarded)[0]
    two.cancel(repeat)
    assert is_sent(two.call())


@pytest.mark.parametrize("how", ["cancelled", "left"])
def test_an_answer_that_is_held_while_its_host_gives_up_is_the_next_one_s(how: str) -> None:
    process = Process()
    one, two = opened(process), opened(process)
    call = one.call().stream_up("e1")
    call.cut()
    call.accept()
    assert not delivered(call.event("e2", call.result())), "on a resumed stream the log is asked once more"
    give_up(one, call, how)
    assert outcomes(one.log) == [Outcome.COMPLETED] * 2  # with its initialize
    repeat = two.call()
    assert not is_sent(repeat)
    assert "result" in delivered(repeat.actions)[0]


# Joined, and given up before there was an answer.


@GIVE_UP
def test_the_next_joins_the_same_call_though_its_stream_is_well_again(how: str) -> None:
    process = Process()
    call, [repeat] = joined(process)
    give_up(connection(repeat), repeat, how)
    three = opened(process)
    assert not is_sent(three.call())
    assert is_sent(three.call()), "only the one that was given up is repeated"
    answer(call)
    assert delivered(three.forwarded)


@GIVE_UP
def test_or_gets_its_answer_if_that_has_come_meanwhile(how: str) -> None:
    process = Process()
    call, [repeat] = joined(process)
    give_up(connection(repeat), repeat, how)
    answer(call)
    call.driver.drain(10)
    three = opened(process)
    again = three.call()
    assert not is_sent(again)
    assert "result" in delivered(again.actions)[0]
    assert is_sent(three.call())


def test_but_not_for_longer_than_a_repeat_is_held_back() -> None:
    process = Process()
    call, [repeat] = joined(process)
    give_up(connection(repeat), repeat, "cancelled")
    process.now += process.policy.repeat_window
    three = opened(process)
    assert is_sent(three.call())
    answer(call)
    assert is_sent(three.call())


def test_one_that_waits_for_a_session_remembers_who_was_given_up() -> None:
    process = Process()
    one, two = opened(process), opened(process)
    one.request("tools/list").refuse(404)
    call, repeat = one.call(), two.call()
    two.cancel(repeat)
    one.reinitialized()
    assert not is_sent(call)
    assert not is_sent(two.call()), "the call is on its way, and well"
    assert len(delivered(one.sent("tools/call").answer() + two.forwarded)) == 2


# Several hosts go on with one call (2026-07-28).


def both() -> tuple[Process, Connection, Connection]:
    """Two hosts whose equal calls were joined, and answered with a question."""
    process = Process()
    one, two = process.connect(), process.connect()
    first = one.request("tools/call", CALL, **HEADERS)
    first.not_written()
    two.request("tools/call", CALL, **HEADERS)
    first.begin()
    first.answer(ASKS)
    one.drain(10)
    two.drain(10)
    return process, one, two


def go_on(one: Connection) -> Peer:
    return one.request("tools/call", GO_ON, **HEADERS)


@GIVE_UP
@pytest.mark.parametrize("final", [True, False])
def test_what_two_go_on_with_is_given_again_if_it_was_given_up_untaken(how: str, final: bool) -> None:
    process, one, two = both()
    first = go_on(one)
    first.answer({"resultType": "complete", "content": []} if final else {**ASKS, "requestState": "two"})
    one.drain(10)
    give_up(two, go_on(two), how)
    again = go_on(process.connect())
    assert not is_sent(again)
    assert delivered(again.actions)[0]["result"] == delivered(one.log)[-1]["result"]


@GIVE_UP
def test_or_given_up_before_there_was_an_answer(how: str) -> None:
    process, one, two = both()
    first = go_on(one)
    give_up(two, go_on(two), how)
    assert not is_sent(go_on(process.connect())), "it joins"
    first.answer({"content": []})
    assert not process.shared.went_on, "each has it, and nobody counts twice"


@GIVE_UP
def test_or_repeated_only_then(how: str) -> None:
    process, one, two = both()
    first = go_on(one)
    give_up(two, go_on(two), how)
    first.answer({"content": []})
    one.drain(10)
    three = process.connect()
    assert not is_sent(go_on(three))
    assert is_sent(go_on(three)), "that was all"


@pytest.mark.parametrize("later", [10, 7200])
@pytest.mark.parametrize("wait", [0, 100])
def test_a_host_that_never_goes_on_leaves_no_answer_for_a_later_call(later: float, wait: float) -> None:
    _, one, two = both()
    go_on(one).answer({"content": [{"type": "text", "text": "receipt 1"}]})
    one.drain(10)
    two.close()
    one.now += later
    another = one.request("tools/call", CALL, **HEADERS)
    another.answer(ASKS)
    lost = go_on(one)
    assert is_sent(lost)
    assert outcomes(lost.cut()) == [Outcome.IN_DOUBT]
    one.now += wait  # longer than a doubt is held against others
    again = go_on(one)
    assert "receipt 1" not in str(delivered(again.actions))
    assert not is_sent(again)


def test_while_a_later_call_is_in_trouble_its_repeat_joins_that_one() -> None:
    _, one, _ = both()
    go_on(one).answer({"content": [{"type": "text", "text": "receipt 1"}]})
    one.request("tools/call", CALL, **HEADERS).answer(ASKS)
    one.begins = False
    later = go_on(one)
    later.not_written()
    again = go_on(one)
    assert not delivered(again.actions), "it waits for the later call"
    later.begin()
    assert len(delivered(later.answer({"content": []}))) == 2


def test_the_answer_to_a_repeat_of_a_dead_process_s_call_is_given_up_like_any_other() -> None:
    process = Process()
    one = opened(process)
    one.call().answer()
    next_one = process.killed().connect()
    prove(next_one)
    repeat = next_one.call()
    assert not is_sent(repeat)
    next_one.cancel(repeat)
    assert not is_sent(next_one.call())
    next_one.drain(10)
    assert is_sent(next_one.call())
