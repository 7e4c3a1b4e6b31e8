"""The window of the repeat latch is counted from when somebody was told, in this process and in the next."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.actions import Post
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.model import Outcome, OutcomeTold, Told
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Peer, delivered, of, outcomes
from tests.core.scenes import Connection, Process, opened, prove

WINDOW = GuardPolicy().repeat_window
LONG = 10 * WINDOW


def reading(process: Process) -> Connection:
    """A connection whose host has read all that it got."""
    one = opened(process)
    one.drain(10)
    return one


@pytest.fixture
def one(process: Process) -> Connection:
    return reading(process)


def doubtful(one: Connection) -> Peer:
    call = one.call()
    assert outcomes(call.cut()) == [Outcome.IN_DOUBT]
    return call


def is_sent(call: Peer) -> bool:
    return any(post.message.get("method") == "tools/call" for post in of(call.actions, Post))


def later(process: Process, seconds: float) -> None:
    process.now += seconds


def restarted(process: Process, after: float = 5.0) -> Connection:
    two = process.killed(after=after).connect()
    prove(two)
    two.drain(10)
    return two


def holds_for_the_window(repeat: Connection) -> bool:
    """Whether an equal call is held back for as long from now on, and no longer."""
    later(repeat.process, WINDOW - 1)
    held = repeat.call()
    repeat.drain(10)
    later(repeat.process, 2)
    return not is_sent(held) and is_sent(repeat.call())


# Read late.


def test_a_doubt_that_its_host_has_not_read_holds_and_then_for_the_window(one: Connection) -> None:
    doubtful(one)
    later(one.process, LONG)
    other = reading(one.process)
    assert not is_sent(other.call())
    other.drain(10)
    later(one.process, LONG)
    assert not is_sent(one.call())
    one.drain(10)
    assert holds_for_the_window(one)


def test_so_does_one_that_another_host_has_joined_and_not_read(process: Process, one: Connection) -> None:
    other = reading(process)
    call = one.call().stream_up("e1")
    call.cut()
    assert not is_sent(other.call())
    one.elapse(TimerKind.DEADLINE, call.stream)
    one.drain(10)
    later(process, LONG)
    assert not is_sent(one.call())
    one.drain(10)
    other.drain(10)
    assert holds_for_the_window(other)


def test_what_was_joined_to_a_repeat_that_is_refused_later_is_read_late_too(
    process: Process, one: Connection
) -> None:
    """Its host is told of the call that came first, and not of the one that it joined, which was never sent."""
    other = reading(process)
    call = one.call().stream_up("e1")
    one.request("tools/list").refuse(404)
    assert not is_sent(one.call())
    assert not is_sent(other.call())
    one.elapse(TimerKind.DEADLINE, call.stream)
    one.reinitialized()
    one.drain(30)
    assert [CallInDoubt.find(m["result"]) for m in delivered(other.forwarded)]
    later(process, LONG)
    assert not is_sent(one.call())


def test_a_refusal_that_is_read_late_holds_the_next_repeat_back_as_if_it_had_been_read_at_once(
    one: Connection,
) -> None:
    doubtful(one)
    one.drain(10)
    later(one.process, WINDOW - 10)
    assert not is_sent(one.call())
    later(one.process, LONG)
    one.drain(10)
    later(one.process, 9)
    assert not is_sent(one.call())
    one.drain(10)
    later(one.process, 2)
    assert is_sent(one.call()), "refusals that are read at once prolong nothing"


def test_what_is_over_is_not_held_again_by_a_late_word(one: Connection) -> None:
    doubtful(one)
    assert not is_sent(one.named("order-17"))
    one.drain(10)
    later(one.process, LONG)
    assert not is_sent(one.named("order-17")), "a name is in doubt for ever"
    assert is_sent(one.call())


def test_an_answer_that_comes_before_the_doubt_was_read_waits_for_that_too(one: Connection) -> None:
    call = one.call().stream_up("1")
    assert delivered(one.elapse(TimerKind.DEADLINE, call.stream))
    assert outcomes(call.event("2", call.result())) == [Outcome.RECOVERED]
    later(one.process, LONG)
    one.drain(10)
    later(one.process, WINDOW - 1)
    repeat = one.call()
    assert not is_sent(repeat)
    assert CallInDoubt.find(delivered(repeat.actions)[0]["result"]) is None


def test_an_answer_is_owed_from_when_it_came_though_a_refusal_is_read_later(one: Connection) -> None:
    call = one.call().stream_up("1")
    one.cancel(call)
    assert not is_sent(one.call())
    later(one.process, 50)
    assert outcomes(call.event("2", call.result())) == [Outcome.RECOVERED]
    later(one.process, 10)
    one.drain(10)
    later(one.process, WINDOW - 1)
    assert not is_sent(one.call())


def test_whoever_has_given_it_up_is_told_no_more(process: Process, one: Connection) -> None:
    call = doubtful(one)
    later(process, LONG)
    one.cancel(call)
    one.drain(10)
    assert holds_for_the_window(reading(process))


@pytest.mark.parametrize("how", ["under way", "in doubt", "answered"])
def test_who_has_left_knows_of_nothing_it_had_not_read(process: Process, one: Connection, how: str) -> None:
    """An agent that crashed, and connects the same Guard again after a back-off, is no better than a process."""
    call = one.call()
    if how == "in doubt":
        call.cut()
    elif how == "answered":
        call.answer()
    one.close()
    later(process, LONG)
    two = reading(process)
    repeat = two.call()
    assert not is_sent(repeat)
    assert [m["id"] for m in delivered(repeat.actions)] == [repeat.host_id]
    two.drain(10)
    if how == "answered":
        assert is_sent(two.call())
    else:
        assert holds_for_the_window(two)


def test_two_who_are_told_of_one_that_nobody_knew_are_both_waited_for(process: Process, one: Connection) -> None:
    doubtful(one)
    two = restarted(process, LONG)
    three = reading(two.process)
    assert not is_sent(two.call())
    assert not is_sent(three.call())
    two.drain(10)
    later(two.process, LONG)
    assert not is_sent(two.call())
    two.drain(10)
    three.drain(10)
    assert holds_for_the_window(three)


def test_a_host_that_never_reads_costs_no_more_than_one_entry(one: Connection) -> None:
    doubtful(one)
    for _ in range(50):
        assert not is_sent(one.call())
    assert len(one.process.shared.tellings) == 1
    one.drain(100)
    assert not one.process.shared.tellings


# After a restart.


@pytest.mark.parametrize("how", ["read", "listed"])
def test_the_next_process_counts_from_then_too(process: Process, one: Connection, how: str) -> None:
    call = doubtful(one)
    later(process, LONG)
    if how == "read":
        one.drain(10)
    else:
        process.disk.write(0, (OutcomeTold(process.disk.call.call_key, Told.LISTED),), False, process.now)
    assert call.host_id
    assert not is_sent(restarted(process, WINDOW - 1).call())
    assert is_sent(restarted(process, WINDOW + 1).call())


def test_that_an_answer_was_listed_is_counted_from_then(process: Process, one: Connection) -> None:
    one.call().answer()
    process.disk.write(0, (OutcomeTold(process.disk.call.call_key, Told.LISTED),), False, process.now + LONG)
    assert not is_sent(restarted(process, LONG + WINDOW - 1).call())
    assert is_sent(restarted(process, LONG + WINDOW + 1).call())


@pytest.mark.parametrize("what", ["doubt", "answer"])
@pytest.mark.parametrize("how", ["a repeat", "recovered()"])
def test_what_nobody_knows_holds_until_somebody_is_told(
    process: Process, one: Connection, what: str, how: str
) -> None:
    doubtful(one) if what == "doubt" else one.call().answer()
    two = restarted(process)
    later(two.process, LONG)
    row = two.process.disk.call
    if how == "recovered()":
        two.process.shared.listed(row.arguments_digest, row.call_key, two.process.now)
    elif what == "doubt":
        assert not is_sent(two.call())
        two.drain(10)
    if (how, what) == ("a repeat", "answer"):
        assert not is_sent(two.call())
        two.drain(10)
        assert is_sent(two.call()), "it has its answer"
    elif what == "doubt":
        assert holds_for_the_window(two)
    else:
        later(two.process, WINDOW + 1)
        assert is_sent(two.call())


def test_a_call_that_the_dead_process_left_open_is_in_doubt_until_somebody_is_told(
    process: Process, one: Connection
) -> None:
    one.call()
    two = restarted(process)
    assert two.process.disk.call.outcome is Outcome.IN_DOUBT
    later(two.process, LONG)
    assert not is_sent(two.call())
    two.drain(10)
    assert holds_for_the_window(two)


def test_a_refusal_that_was_given_up_has_told_nobody(process: Process, one: Connection) -> None:
    doubtful(one)
    two = restarted(process)
    two.cancel(two.call())
    two.drain(10)
    later(two.process, LONG)
    assert not is_sent(two.call())


@pytest.mark.parametrize("joined", [True, False])
def test_a_repeat_that_was_joined_has_told_nobody_in_a_crash_loop(
    process: Process, one: Connection, joined: bool
) -> None:
    call = one.call().stream_up("e1")
    call.cut()
    if joined:
        assert not is_sent(one.call())
        assert process.disk.call.repeats == 1
    two = restarted(process)
    assert outcomes(two.elapse(TimerKind.DEADLINE, call.stream)) == [Outcome.IN_DOUBT]
    assert not is_sent(restarted(two.process, LONG).call())


@pytest.mark.parametrize("is_read", [True, False])
def test_a_refusal_counts_for_the_next_process_once_it_was_read(
    process: Process, one: Connection, is_read: bool
) -> None:
    doubtful(one)
    two = restarted(process, LONG)
    assert not is_sent(two.call())
    if is_read:
        two.drain(10)
    assert is_sent(restarted(two.process, WINDOW + 1).call()) is is_read


# An answer is stronger than a consent.


@pytest.mark.parametrize("by_request", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_what_was_answered_is_not_repeated_by_the_consent_of_before(
    process: Process, one: Connection, by_request: bool, named: bool
) -> None:
    call = (one.named("order-17") if named else one.call()).stream_up("1")
    one.elapse(TimerKind.DEADLINE, call.stream)
    key = process.disk.call.call_key
    if not by_request:
        process.shared.consent(key)
    assert outcomes(call.event("2", call.result())) == [Outcome.RECOVERED]
    assert not process.shared.consents, "it was to a doubt, and is over with that"
    repeat = one.consenting(key) if by_request else one.call()
    assert not is_sent(repeat)
    assert delivered(repeat.actions) == [{**call.result(), "id": repeat.host_id}]
    assert is_sent(one.consenting(key) if by_request else one.call()), "as without consent"


@pytest.mark.parametrize("by_request", [True, False])
@pytest.mark.parametrize("awaited", ["session", "connection"])
@pytest.mark.parametrize("named", [True, False])
def test_nor_if_it_waits_to_be_sent_when_the_answer_comes(by_request: bool, awaited: str, named: bool) -> None:
    process = Process()
    one = reading(process)
    call = (one.named("order-17") if named else one.call()).stream_up("1")
    one.elapse(TimerKind.DEADLINE, call.stream)
    key = process.disk.call.call_key
    if not by_request:
        process.shared.consent(key)
    other = process.connect(max_calls=2)
    other.opened()
    busy = other.call("look")
    if awaited == "session":
        busy.refuse(404)
    repeat = other.consenting(key) if by_request else other.call()
    assert not delivered(repeat.actions)
    assert not is_sent(repeat)
    assert outcomes(call.event("2", call.result())) == [Outcome.RECOVERED]
    actions = other.reinitialized() if awaited == "session" else busy.answer() + busy.free()
    assert {**call.result(), "id": repeat.host_id} in delivered(actions)
    assert not [p for p in of(actions, Post) if p.message.get("params", {}).get("name") == "charge"]
    assert not other.machine.queued


def test_consent_to_one_of_two_is_good_though_the_other_was_answered(process: Process, one: Connection) -> None:
    first, second = one.call().stream_up("1"), one.call().stream_up("1")
    for call in (first, second):
        one.elapse(TimerKind.DEADLINE, call.stream)
    assert outcomes(second.event("2", second.result())) == [Outcome.RECOVERED]
    first_key = next(c.call_key for c in process.disk.calls.values() if c.tool == "charge")
    process.shared.consent(first_key)
    assert is_sent(one.call())


@pytest.mark.parametrize("seconds", [-1000.0, 1000.0])
def test_on_another_clock_what_is_being_read_is_as_old_as_before(one: Connection, seconds: float) -> None:
    doubtful(one)
    latch = one.process.shared
    latch.shift(seconds)
    later(one.process, seconds + LONG)
    assert not is_sent(one.call()), "it lies unread"
