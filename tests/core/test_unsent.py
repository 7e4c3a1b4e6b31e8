"""By whose word a request did not run: by wire only where no sending of it has left (S10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Reply
from mcp_client_guard.core.doubt import CallNotExecuted
from mcp_client_guard.core.inputs import HookWithdrew
from mcp_client_guard.core.model import CallSettled, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import RESULT, Driver, Peer, delivered, error_of, of, posted, records
from tests.core.legacy import Legacy
from tests.core.scenes import Connection, Process, opened

Standing = Callable[[Connection, Peer], None]
TRUSTS = GuardPolicy(trust_status=True)


def gone(one: Connection, call: Peer) -> None:
    """It drew a 404, and another session is being opened."""
    call.refuse(404)


def unreachable(one: Connection, call: Peer) -> None:
    """The server cannot be reached since."""
    call.refuse(404)
    one.sent("initialize").not_written()


def answers_503(one: Connection, call: Peer) -> None:
    """It lets nobody open a session since."""
    call.refuse(404)
    one.sent("initialize").refuse(503)


def busy(one: Connection, call: Peer) -> None:
    """It is to come later."""
    call.refuse(503, retry_after=10.0)
    one.sent("ping").answer({})


def cut_off(one: Connection, call: Peer) -> None:
    """It goes out in another session, and cannot be sent."""
    call.refuse(404)
    one.reinitialized()
    one.sent("tools/call").not_written()


def gone_twice(one: Connection, call: Peer) -> None:
    """It cannot be sent in another session, which is gone by then."""
    cut_off(one, call)
    one.call("other").refuse(404)


def logged_out(one: Connection, call: Peer) -> None:
    """Its client was to log in, and could not reach whoever lets it."""
    call.cut("ConnectError", written=False, refused=401)


def locked_out(one: Connection, call: Peer) -> None:
    """The same, and the session is gone meanwhile."""
    one.call("other").refuse(404)
    one.begins = False
    call.cut("ConnectError", written=False, refused=401)


def never_left(one: Connection, call: Peer) -> None:
    """Nothing of it could be written."""
    call.not_written()


def waits(one: Connection, call: Peer) -> None:
    """There is no session: it has no row yet."""


SERVER, WIRE = ("server", 404), ("wire", None)
MET = " (last: ConnectError)"
STANDINGS: list[tuple[Standing, tuple[str, int | None], str, str]] = [
    # how it stands, who says that it did not run, what its reason begins with, what was met last
    (gone, SERVER, "HTTP 404; ", ""),
    (unreachable, SERVER, "HTTP 404; ", MET),
    (answers_503, SERVER, "HTTP 404; ", " (last: HTTP 503)"),
    (busy, ("server", 503), "HTTP 503; ", ""),
    (cut_off, SERVER, "HTTP 404; ", MET),
    (gone_twice, SERVER, "HTTP 404; ", MET),
    (logged_out, ("server", 401), "HTTP 401; ", MET),
    (never_left, WIRE, "", MET),
]
each_standing = pytest.mark.parametrize(("standing", "by", "begins", "met"), STANDINGS)


def sent(standing: Standing, process: Process | None = None, **how: Any) -> tuple[Connection, Peer]:
    """A call that stands so, and nothing of which may run any more."""
    one = opened(process or Process(policy=TRUSTS))
    call = one.call(**how)
    standing(one, call)
    return one, call


def restarted(process: Process) -> Connection:
    two = process.killed().connect()
    two.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    if two.is_waited_for("ping"):
        two.sent("ping").answer({})
    else:
        two.sent("initialize").answer(RESULT, session_id="session-two")
        two.notify("notifications/initialized")
        two.sent("notifications/initialized").accept(status=202, events=False)
    return two


def told(actions: list[Action]) -> tuple[tuple[str, int | None], str]:
    data = error_of(actions)["data"]
    return (data["by"], data["http_status"]), data["reason"]


def settled(actions: list[Action]) -> list[tuple[Outcome, str]]:
    return [(row.outcome, row.reason) for row in records(actions, CallSettled)]


@each_standing
def test_what_its_deadline_finds_waiting_did_not_run_by_whoever_has_said_so(
    standing: Standing, by: tuple[str, int | None], begins: str, met: str
) -> None:
    one, call = sent(standing)
    actions = one.elapse(TimerKind.DEADLINE, call.stream)
    again = " again" if begins else ""
    reason = f"{begins}it could not be sent{again} within call_deadline{met}"
    assert told(actions) == (by, reason)
    assert settled(actions) == [(Outcome.NOT_EXECUTED, f"by {by[0]}: {reason}")]


@each_standing
@pytest.mark.parametrize("how", ["cancelled by the caller", "the host closed the connection"])
def test_what_is_given_up_while_it_waits_is_told_so_and_held_against_no_repeat(
    standing: Standing, by: tuple[str, int | None], begins: str, met: str, how: str
) -> None:
    one, call = sent(standing)
    other = opened(one.process).call()  # which joins it
    assert not posted(other.actions)
    actions = one.cancel(call) if how.startswith("cancelled") else one.close()
    reason = f"{begins}{how} before it was sent{' again' if begins else ''}"
    assert (Outcome.CANCELLED, reason) in settled(actions)
    joined = other.driver
    assert isinstance(joined, Connection)
    assert told(joined.forwarded) == (by, reason)
    rows = [row for row in one.process.disk.calls.values() if row.reason == reason]
    assert rows
    assert all(row.did_not_run for row in rows)
    assert posted(restarted(one.process).call().actions, "tools/call")
    assert posted(opened(one.process).call().actions, "tools/call")


@pytest.mark.parametrize("standing", [gone, cut_off, never_left])
def test_a_name_whose_call_was_given_up_so_may_be_used_again(standing: Standing) -> None:
    one = opened(Process(policy=TRUSTS))
    call = one.named("order")
    standing(one, call)
    one.cancel(call)
    assert posted(restarted(one.process).named("order").actions, "tools/call")


@pytest.mark.parametrize(
    ("standing", "by", "begins"),
    [
        (gone, SERVER, "HTTP 404; "),
        (gone_twice, SERVER, "HTTP 404; its session was lost"),
        (locked_out, ("server", 401), "HTTP 401; its session is gone"),
        (waits, WIRE, "no other session"),
    ],
)
def test_where_no_session_can_be_opened(standing: Standing, by: tuple[str, int | None], begins: str) -> None:
    one = opened(Process(policy=TRUSTS))
    if standing is waits:
        one.request("tools/list").refuse(404)
    call = one.call()
    standing(one, call)
    actions = one.sent("initialize").refuse(401)
    (answer,) = [m for m in delivered(actions) if m["id"] == call.host_id]
    data = answer["error"]["data"]
    assert (data["by"], data["http_status"]) == by
    assert data["reason"].startswith(begins)
    assert data["reason"].endswith("no other session could be opened: HTTP 401")


def test_the_last_attempt_that_fails_does_not_undo_what_the_server_has_said() -> None:
    one, _ = sent(cut_off, Process(policy=GuardPolicy(max_attempts=1)))
    one.sent("tools/call").not_written()
    ended = [m for m in delivered(one.log) if "error" in m]
    assert ended[0]["error"]["data"]["by"] == "server"
    assert ended[0]["error"]["data"]["reason"] == "HTTP 404; ConnectError"


def test_nor_does_a_row_that_cannot_be_written() -> None:
    one, call = sent(gone)
    one.reinitialized()
    actions = one.sent("tools/call").save_failed()
    reason = "HTTP 404; the ledger could not be written (disk full)"
    assert told(actions) == (SERVER, reason)
    assert records(actions, CallSettled)[0].wire_id == call.stream, "the row that there is"


@pytest.mark.parametrize(("status", "by"), [(503, ("server", 503)), (None, WIRE)])
def test_an_initialize_that_a_newer_one_takes_the_place_of(status: int | None, by: tuple[str, int | None]) -> None:
    driver = Driver()
    older = driver.request("initialize")
    if status is None:
        older.not_written()
    else:
        older.refuse(status)
    begins = "HTTP 503; " if status else ""
    assert told(driver.request("initialize").actions) == (by, f"{begins}the host opened another session")


@pytest.mark.parametrize("method", ["initialize", "server/discover", "tools/list"])
@pytest.mark.parametrize("status", [429, 503])
def test_who_waits_for_a_busy_server_hears_of_it(method: str, status: int) -> None:
    driver = Driver(GuardPolicy(call_deadline=5.0)).opened()
    first = driver.request(method)
    first.refuse(status)
    if driver.is_waited_for("ping"):
        driver.sent("ping").answer({})
    reason = f"HTTP {status}; it could not be sent again within call_deadline"
    assert told(driver.elapse(TimerKind.DEADLINE, first.stream)) == (("server", status), reason)


def test_a_sending_that_may_have_run_is_in_doubt_whatever_was_said_of_an_earlier_one() -> None:
    one, call = sent(gone)
    one.reinitialized()
    one.sent("tools/call").begin()
    actions = one.elapse(TimerKind.DEADLINE, call.stream)
    assert settled(actions)[-1] == (Outcome.IN_DOUBT, "no answer within call_deadline")


# What the hook asks.


@pytest.mark.parametrize("how", ["deadline", "stopped"])
def test_what_the_hook_has_asked_and_waits_to_ask_again(how: str) -> None:
    driver = Driver(has_hook=True).opened()
    asks = driver.hook_asks("tools/call", {"name": "charge"})
    asks.refuse(404)
    if how == "deadline":
        (reply,) = of(driver.elapse(TimerKind.DEADLINE, asks.stream), Reply)
        found = CallNotExecuted._in_data(reply.message["error"]["data"])
        reason = "HTTP 404; it could not be sent again within call_deadline"
        assert found == CallNotExecuted("server", reason, 404, "tools/call", "charge")
    else:
        actions = driver.feed(HookWithdrew(1))
        reason = "HTTP 404; the reconcile hook was stopped before it was sent again"
        assert settled(actions) == [(Outcome.CANCELLED, reason)]


# What was met last.


@pytest.mark.parametrize(
    ("how", "met"), [("nothing", ""), ("not written", MET), (503, " (last: HTTP 503)"), ("open again", "")]
)
def test_what_has_waited_for_a_session_hears_why_there_was_none(how: Any, met: str) -> None:
    driver = Driver(max_calls=2).opened()
    first = driver.request("tools/list")
    first.refuse(404)
    if how == "not written":
        driver.sent("initialize").not_written()
    elif how != "nothing":
        driver.sent("initialize").refuse(503)
    if how == "open again":
        driver.sent("initialize").begin()
        driver.reinitialized()
        driver.sent("tools/list").begin()
    call = driver.call()
    number = max(t.stream for t in driver.timers if t.kind is TimerKind.DEADLINE)
    what = "no connection was free" if how == "open again" else "there was no session"
    (answer,) = [m for m in delivered(driver.elapse(TimerKind.DEADLINE, number)) if m["id"] == call.host_id]
    assert answer["error"]["data"]["reason"] == f"{what} within call_deadline{met}"
    assert answer["error"]["data"]["by"] == "wire"


def test_a_legacy_session_whose_stream_cannot_be_opened_says_why() -> None:
    driver = Legacy(generation="legacy-sse")
    first = driver.request("initialize")
    driver.carrier.not_written()
    reason = "it could not be sent within open_timeout (last: ConnectError)"
    number = next(t.stream for t in driver.timers if t.kind is TimerKind.DEADLINE)
    assert first.host_id
    assert told(driver.elapse(TimerKind.DEADLINE, number)) == (WIRE, reason)
