"""The name of a call that repeats one sent without that name stands for that one, in the next process, too."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Post
from mcp_client_guard.core.answers import CODE_NAME_TAKEN
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.model import CallNamed, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.shared import SharedLedger
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Peer, delivered, of, outcomes, records
from tests.core.scenes import NOTHING_RAN, Connection, Process, nothing_runs, opened, prove

CHARGED: dict[str, Any] = {"content": [{"type": "text", "text": "charged"}]}


def restarted_as(process: Process, after: float = 5.0) -> Connection:
    """The next process, in the same session."""
    connection = process.killed(after=after).connect()
    prove(connection)
    return connection


def is_sent(call: Peer) -> bool:
    return bool([p for p in of(call.actions, Post) if p.message.get("method") == "tools/call"])


def results(actions: list[Action]) -> list[Any]:
    return [m["result"] for m in delivered(actions) if "result" in m]


def joined(one: Connection) -> tuple[Peer, Peer]:
    """A call whose stream is being resumed, and one with a name that joins it."""
    call = one.call().stream_up("e1")
    call.cut()
    named = one.named("order-17")
    assert not is_sent(named)
    return call, named


def is_doubted(call: Peer) -> bool:
    return not is_sent(call) and CallInDoubt.find(results(call.actions)[0]) is not None


@pytest.mark.parametrize("restarted", [True, False])
def test_a_name_that_joined_has_the_answer(process: Process, one: Connection, restarted: bool) -> None:
    call, named = joined(one)
    assert records(named.actions, CallNamed) == [CallNamed("key-1-0-2", "order-17")]
    call.accept()
    call.event("e1", call.progress(1))
    assert results(call.event("e2", call.result(CHARGED))) == [CHARGED, CHARGED]
    one.drain(3)
    later = restarted_as(process, after=3600) if restarted else one
    assert results(later.named("order-17").actions) == [CHARGED]
    assert is_sent(later.call()), "without the name it is another call"


def test_a_name_that_joined_goes_on_with_a_process_that_is_killed(process: Process, one: Connection) -> None:
    call, _ = joined(one)
    one.drain(2)
    after = restarted_as(process)
    again = after.named("order-17")
    assert not is_sent(again)
    after.peer(call.stream).accept()
    after.peer(call.stream).event("e1", call.progress(1))
    after.peer(call.stream).event("e2", call.result(CHARGED))
    assert results(after.elapse(TimerKind.CLOSING)) == [CHARGED]


@pytest.mark.parametrize("restarted", [True, False])
def test_a_name_that_was_refused_is_in_doubt_for_ever(process: Process, one: Connection, restarted: bool) -> None:
    one.call().cut()
    assert is_doubted(one.named("order-17"))
    one.drain(10)
    process.now = one.now = one.now + 3600
    later = restarted_as(process) if restarted else one
    assert is_doubted(later.named("order-17"))
    assert is_sent(later.call()), "the window of the latch is over"


@pytest.mark.parametrize("consented", ["key-1-0-2", "order-17"])
@pytest.mark.parametrize("restarted", [True, False])
def test_consent_to_what_it_repeated_lets_it_go_and_then_it_is_a_call_of_its_own(
    process: Process, one: Connection, restarted: bool, consented: str
) -> None:
    one.call().cut()
    assert is_doubted(one.named("order-17"))
    process.shared.consent(consented)
    named = one.named("order-17")
    assert is_sent(named)
    one.peer(named.stream).answer(CHARGED)
    one.drain(4)
    later = restarted_as(process) if restarted else one
    assert results(later.named("order-17").actions) == [CHARGED]


@pytest.mark.parametrize("restarted", [True, False])
def test_a_request_may_bring_consent_to_the_name_once(process: Process, one: Connection, restarted: bool) -> None:
    """By whichever of the two it says it: the consent is to one call."""
    one.call().cut()
    assert is_doubted(one.named("order-17"))
    later = restarted_as(process) if restarted else one
    assert is_doubted(later.consenting("order-18"))
    assert is_sent(later.consenting("order-17"))
    assert is_doubted(later.consenting("order-17"))
    assert is_doubted(later.consenting("key-1-0-2"))


@pytest.mark.parametrize("how", NOTHING_RAN)
@pytest.mark.parametrize("brought", ["key-1-0-2", "order-17", None])
def test_a_consent_to_what_it_repeated_is_as_good_as_before_if_nothing_ran(
    process: Process, one: Connection, brought: str | None, how: str
) -> None:
    def again() -> Peer:
        meta = {"io.github.mcp-client-guard/call-key": "order-17"}
        if brought is not None:
            meta["io.github.mcp-client-guard/consent"] = brought
        return one._call("charge", {}, meta)

    one.call().cut()
    assert is_doubted(one.named("order-17"))
    if brought is None:
        process.shared.consent("order-17")
    nothing_runs(one, again, how)
    if brought is not None:
        assert is_doubted(one.call()), "it is this request's"
    sent = again()
    assert is_sent(sent)
    sent.cut()
    assert is_doubted(again()), "one that comes again brings the same consent"


@pytest.mark.parametrize("how", [*NOTHING_RAN, "not written"])
@pytest.mark.parametrize("named", [True, False])
def test_after_a_restart_too_a_name_stands_for_its_doubt_where_its_repeat_did_not_run(
    process: Process, one: Connection, named: bool, how: str
) -> None:
    """The row of what did not run is the newest that has the name."""
    (one.named("order-17") if named else one.call()).cut()
    assert is_doubted(one.named("order-17"))
    process.shared.consent("order-17")
    nothing_runs(one, lambda: one.named("order-17"), how)
    for after in (5.0, 3600.0):
        assert is_doubted(restarted_as(process, after=after).named("order-17"))


@pytest.mark.parametrize("restarted", [True, False])
def test_a_name_whose_own_call_did_not_run_stands_for_the_equal_one_in_doubt(
    process: Process, one: Connection, restarted: bool
) -> None:
    first, named = one.call(), one.named("order-17")
    named.refuse(413)
    first.cut()
    assert is_doubted(one.named("order-17"))
    later = restarted_as(process) if restarted else one
    assert is_doubted(later.named("order-17"))


@pytest.mark.parametrize(("status", "code"), [(413, None), (400, -32020)])
@pytest.mark.parametrize("restarted", [True, False])
def test_a_name_whose_only_call_did_not_run_is_free(
    process: Process, one: Connection, restarted: bool, status: int, code: int | None
) -> None:
    """Also where the host is told in the server's own words: SDK 2.x lists the tools at -32020, and asks again."""
    actions = one.named("order-17").refuse(
        status, code and {"jsonrpc": "2.0", "error": {"code": code, "message": ""}}
    )
    if status != 413:
        actions = one.sent("ping").answer({})
    assert outcomes(actions)[-1] is Outcome.NOT_EXECUTED
    later = restarted_as(process) if restarted else one
    assert is_sent(later.named("order-17"))


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("brought", ["key-1-0-2", "order-17"])
def test_a_named_request_that_brings_consent_and_comes_again_is_sent_once(
    process: Process, one: Connection, restarted: bool, brought: str
) -> None:
    """The consent was to the call that the name stood for, and not to the repeat, which has the name now."""
    meta = {"io.github.mcp-client-guard/call-key": "order-17", "io.github.mcp-client-guard/consent": brought}
    one.call().cut()
    assert is_doubted(one.named("order-17"))
    sent = one._call("charge", {}, meta)
    assert is_sent(sent)
    sent.cut()
    later = restarted_as(process) if restarted else one
    assert is_doubted(later._call("charge", {}, meta))
    later.process.shared.consent("order-17")
    assert is_sent(later._call("charge", {}, meta))


@pytest.mark.parametrize("restarted", [True, False])
def test_consent_to_a_name_is_none_to_what_it_stood_for_once_it_has_run(
    process: Process, one: Connection, restarted: bool
) -> None:
    one.call().cut()
    assert is_doubted(one.named("order-17"))
    process.shared.consent("order-17")
    one.named("order-17").answer(CHARGED)
    one.drain(4)
    later = restarted_as(process) if restarted else one
    assert is_doubted(later.consenting("order-17")), "without the name it repeats the first"
    process.shared.consent("order-17")
    assert is_doubted(later.call())


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_what_a_consented_repeat_comes_to_leaves_the_first_in_doubt(
    process: Process, one: Connection, named: bool, restarted: bool
) -> None:
    """The consent was to that repeat: an equal call without its name may repeat the first. One with another name
    is another call: the first has its name from when that was repeated."""
    (one.named("order-17") if named else one.call()).cut()
    assert is_doubted(one.named("order-17"))
    process.shared.consent("order-17")
    one.named("order-17").answer(CHARGED)
    one.drain(4)
    later = restarted_as(process) if restarted else one
    assert is_doubted(later.call())
    assert is_sent(later.named("order-18"))


@pytest.fixture(params=["named", "linked"])
def repeated(request: pytest.FixtureRequest, process: Process, one: Connection) -> tuple[Peer, Peer]:
    """A call that has a name and was cancelled, and its repeat by consent, which is under way."""
    first = one.named("order-17") if request.param == "named" else one.call()
    one.cancel(first)
    assert is_doubted(one.named("order-17"))
    process.shared.consent("order-17")
    return first, one.named("order-17")


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("repeat_fails", [True, False])
def test_the_late_answer_is_that_of_the_name_where_a_repeat_by_consent_did_not_run_or_failed(
    process: Process, one: Connection, repeated: tuple[Peer, Peer], repeat_fails: bool, restarted: bool
) -> None:
    first, repeat = repeated
    first.answer(CHARGED)
    repeat.answer_error(-32603) if repeat_fails else repeat.refuse(413)
    later = restarted_as(process) if restarted else one
    assert results(later.named("order-17").actions) == [CHARGED]


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("first_fails", [True, False])
def test_of_two_calls_under_one_name_the_one_that_succeeded_counts_and_a_doubt_stays_for_the_rest(
    process: Process, one: Connection, first_fails: bool, restarted: bool
) -> None:
    first = one.named("order-17")
    one.elapse(TimerKind.DEADLINE, first.stream)
    process.shared.consent("order-17")
    one.named("order-17").cut()
    first.answer({**CHARGED, "isError": first_fails})
    later = restarted_as(process) if restarted else one
    for _ in range(2):
        again = later.named("order-17")
        assert not is_sent(again)
        assert is_doubted(again) is first_fails
        assert is_doubted(later.call()), "it may have been the second that is asked for"


@pytest.mark.parametrize("restarted", [True, False])
def test_what_a_killed_repeat_by_consent_comes_to_leaves_the_first_of_its_name_in_doubt(
    process: Process, one: Connection, restarted: bool
) -> None:
    one.named("order-17").cut()
    process.shared.consent("order-17")
    repeat = one.named("order-17").stream_up("1", "2")
    one.drain(2)
    if restarted:
        later = restarted_as(process)
        resumed = later.peer(repeat.stream)
        resumed.accept()
        resumed.event("2", repeat.progress(2))
        resumed.event("3", repeat.error(-32603))
        later.elapse(TimerKind.CLOSING)
    else:
        later = one
        repeat.event("3", repeat.error(-32603))
    assert not any(is_sent(later.call()) for _ in range(3))


def test_the_late_answer_of_a_repeat_by_consent_leaves_the_first_of_its_name_in_doubt(
    process: Process, one: Connection
) -> None:
    one.named("order-17").cut()
    process.shared.consent("order-17")
    repeat = one.named("order-17")
    one.cancel(repeat)
    repeat.answer(CHARGED)
    assert not any(is_sent(one.call()) for _ in range(3))


def test_while_a_repeat_by_consent_is_under_way_its_name_joins_it_though_the_first_has_failed(
    one: Connection, repeated: tuple[Peer, Peer]
) -> None:
    first, repeat = repeated
    first.answer({**CHARGED, "isError": True})
    again = one.named("order-17")
    assert not is_sent(again)
    assert results(repeat.answer(CHARGED)) == [CHARGED, CHARGED]


def test_a_repeat_by_consent_that_waits_gets_the_late_answer_of_the_first(
    process: Process, one: Connection
) -> None:
    first = one.named("order-17").stream_up()
    one.cancel(first)
    one.request("tools/list").refuse(404)
    process.shared.consent("order-17")
    waiting = one.named("order-17")
    assert not is_sent(waiting)
    first.event("9", first.result(CHARGED))
    assert results(one.reinitialized())[-2:] == [CHARGED, {"tools": []}]


def test_what_a_repeat_by_consent_came_to_is_not_undone_by_the_late_answer_of_the_first(
    one: Connection, repeated: tuple[Peer, Peer]
) -> None:
    first, repeat = repeated
    repeat.answer({"content": [{"type": "text", "text": "by consent"}]})
    first.answer(CHARGED)
    assert len(results(one.named("order-17").actions)) == 1


def test_an_answer_that_comes_late_is_that_of_the_name(one: Connection) -> None:
    first = one.call()
    one.elapse(TimerKind.DEADLINE, first.stream)
    assert is_doubted(one.named("order-17"))
    first.answer(CHARGED)
    assert results(one.named("order-17").actions) == [CHARGED]


@pytest.mark.parametrize("restarted", [True, False])
def test_a_name_that_got_a_recovered_answer_keeps_it(process: Process, one: Connection, restarted: bool) -> None:
    first = one.call()
    one.elapse(TimerKind.DEADLINE, first.stream)
    first.answer(CHARGED)
    assert results(one.named("order-17").actions) == [CHARGED]
    one.drain(2)
    later = restarted_as(process) if restarted else one
    assert results(later.named("order-17").actions) == [CHARGED]
    assert is_sent(later.call())


def test_a_name_that_joined_one_waiting_for_a_session_is_written_with_its_row(
    process: Process, one: Connection
) -> None:
    one.call("look").refuse(404)
    one.call()
    named = one.named("order-17")
    assert not records(named.actions, CallNamed)
    one.reinitialized()
    one.sent("tools/call").answer(CHARGED)
    one.drain(2)
    later = restarted_as(process)
    assert results(later.named("order-17").actions) == [CHARGED]


def test_if_that_is_cancelled_before_it_was_sent_the_name_is_free(one: Connection) -> None:
    one.call("look").refuse(404)
    waiting = one.call()
    one.named("order-17")
    one.cancel(waiting)
    one.reinitialized()
    assert is_sent(one.named("order-17"))


def test_each_sending_of_what_it_joined_bears_the_name() -> None:
    process = Process(policy=GuardPolicy(resend={"charge": "if_idempotent"}, trust_idempotent_hint=True))
    one = opened(process)
    one.listed({"name": "charge", "annotations": {"idempotentHint": True}})
    call, _ = joined(one)
    one.drain(2)
    call.refuse(410)
    call.refuse(410)
    second = one.sent("tools/call")
    assert second.stream != call.stream
    second.answer(CHARGED)
    one.drain(2)
    later = restarted_as(process)
    assert results(later.named("order-17").actions) == [CHARGED]


def test_two_names_are_two_calls_also_where_one_was_given_later(one: Connection) -> None:
    joined(one)
    assert is_sent(one.named("order-18"))
    other = opened(Process())
    other.call().cut()
    assert is_doubted(other.named("order-17"))
    assert is_sent(other.named("order-18"))


def test_the_name_is_taken_for_other_arguments(one: Connection) -> None:
    joined(one)
    (answer,) = delivered(one.named("order-17", cents=5).actions)
    assert answer["error"]["code"] == CODE_NAME_TAKEN


def test_a_name_that_is_forgotten_leaves_no_link(one: Connection) -> None:
    one.call().cut()
    assert is_doubted(one.named("order-17"))
    shared = one.process.shared
    assert shared.linked("key-1-0-2") == "order-17"
    shared.keep_names = 0
    assert is_sent(one.named("order-18"))
    assert shared.linked("key-1-0-2") is None


def test_a_ledger_without_links_has_none() -> None:
    assert SharedLedger().linked("key") is None


@pytest.mark.parametrize("when", ["while its repeat is under way", "before it is in doubt"])
def test_consent_to_what_is_not_in_doubt_lets_no_later_repeat_through(
    process: Process, one: Connection, when: str
) -> None:
    """The second click of a double click; nobody has checked what comes of the call after it."""
    call = one.named("order-17")
    if when == "while its repeat is under way":
        call.cut()
        process.shared.consent("order-17")
        call = one.named("order-17")
        assert is_sent(call)
    process.shared.consent("order-17")
    call.cut()
    assert is_doubted(one.named("order-17"))


def test_consent_to_a_dead_process_s_call_holds_before_its_session_is_proven_too(
    process: Process, one: Connection
) -> None:
    one.named("order-17")
    dead = process.killed()
    later = dead.connect()
    dead.shared.consent("order-17")
    prove(later)
    assert is_sent(later.named("order-17"))
