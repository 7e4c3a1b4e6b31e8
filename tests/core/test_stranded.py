"""How often a request is sent again because that harms nobody, and how long each sending waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Post, SetTimer
from mcp_client_guard.core.answers import CODE_IN_DOUBT, CODE_NOT_EXECUTED
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import RepeatJoined
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.core.verdicts import Resend
from tests.core.driver import Driver, Peer, delivered, in_doubt, of, outcomes, posted, reports
from tests.core.legacy import Legacy

TOOLS: list[dict[str, Any]] = [
    {"name": "look", "annotations": {"readOnlyHint": True}},
    {"name": "put", "annotations": {"idempotentHint": True}},
    {"name": "charge"},
]
HARMLESS: dict[str, tuple[GuardPolicy, str]] = {
    "read-only": (GuardPolicy(), "look"),
    "idempotent": (GuardPolicy(trust_idempotent_hint=True), "put"),
    "always": (GuardPolicy(resend={"charge": "always"}), "charge"),
    "by its key": (GuardPolicy(honours_call_key=["charge"]), "charge"),
    "tools/list": (GuardPolicy(), "tools/list"),
    "resources/read": (GuardPolicy(), "resources/read"),
    "initialize": (GuardPolicy(), "initialize"),
    "server/discover": (GuardPolicy(), "server/discover"),
}
FAILURES: dict[str, Callable[[Peer], list[Action]]] = {
    "cut": lambda sent: sent.cut(),
    "cut behind its head": lambda sent: sent.accept() + sent.cut(),
    **{str(status): lambda sent, status=status: sent.refuse(status) for status in (502, 504, 520, 522, 524)},  # type: ignore[misc]
}


def sends(what: str, policy: GuardPolicy | None = None, driver: Driver | None = None) -> tuple[Driver, str]:
    """One of the harmless requests, where there is no session to be asked about. Returns its method, too."""
    own, name = HARMLESS[what]
    driver = driver or Driver(policy or own)
    if name not in ("initialize", "server/discover"):
        driver.opened(None)
        driver.listed(*TOOLS)
    if "/" in name or name == "initialize":
        driver.request(name)
        return driver, name
    driver.call(name)
    return driver, "tools/call"


def waits(
    driver: Driver, method: str, fails: Callable[[Peer], list[Action]], *seconds: float
) -> tuple[list[int], list[Action]]:
    """Let each sending fail after so many seconds, the last of them for all that follow. Returns which attempts
    the waits before the others were for, and what came of the last."""
    attempts: list[int] = []
    while True:
        sent, after = driver.sent(method), seconds[min(len(attempts), len(seconds) - 1)]
        driver.now += after
        actions = fails(sent)
        if not (posts := posted(actions, method)):
            return attempts, actions
        attempts.append(posts[0].delay.attempt)
        assert not delivered(actions)
        driver.sent(method).begin()


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("what", HARMLESS)
def test_what_fails_at_once_is_tried_for_as_long_as_a_busy_server(what: str, how: str) -> None:
    """A deploy takes a second or ten; three sendings that wait for nothing are over in a few milliseconds."""
    attempts, actions = waits(*sends(what), FAILURES[how], 0)
    assert attempts == list(range(1, 10))
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    if HARMLESS[what][1] not in ("look", "put", "charge"):
        assert delivered(actions)[0]["error"]["code"] == CODE_IN_DOUBT


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("what", ["read-only", "tools/list", "initialize", "server/discover"])
def test_a_busy_server_is_asked_that_often(what: str, status: int) -> None:
    attempts, actions = waits(*sends(what), lambda sent: sent.refuse(status), 0)
    assert attempts == list(range(1, 10))
    assert outcomes(actions) == [Outcome.NOT_EXECUTED]
    assert delivered(actions)[0]["error"]["code"] == CODE_NOT_EXECUTED
    assert delivered(actions)[0]["error"]["data"]["http_status"] == status


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("what", HARMLESS)
def test_what_had_time_to_run_is_sent_three_times(what: str, how: str) -> None:
    """A proxy gives up after a minute, and the server works on."""
    attempts, actions = waits(*sends(what), FAILURES[how], 60)
    assert attempts == [1, 2]
    assert in_doubt(actions)


@pytest.mark.parametrize(
    ("seconds", "sendings"),
    [((0, 0, 0, 0, 60), 7), ((60, 0, 0, 60, 0), 10), ((60, 60, 0), 10), ((60, 60, 0, 0, 60), 5), ((1.0,), 10)],
)
def test_only_those_that_had_time_count_among_the_three(seconds: tuple[float, ...], sendings: int) -> None:
    attempts, _ = waits(*sends("read-only"), FAILURES["502"], *seconds)
    assert len(attempts) == sendings - 1


@pytest.mark.parametrize("seconds", [0, 60])
def test_three_are_never_too_many(seconds: float) -> None:
    attempts, _ = waits(*sends("read-only", GuardPolicy(max_attempts=1)), FAILURES["502"], seconds)
    assert attempts == [1, 2]


@pytest.mark.parametrize("how", FAILURES)
def test_without_consent_nothing_is_sent_again(how: str) -> None:
    driver = Driver().opened(None)
    driver.listed(*TOOLS)
    actions = FAILURES[how](driver.call())
    assert in_doubt(actions)
    assert not of(actions, Post)


@pytest.mark.parametrize(
    "answer",
    [
        lambda sent: sent.accept(events=False) + sent.body("<html>"),
        lambda sent: sent.accept() + sent.end(),
        lambda sent: sent.refuse(302),
    ],
    ids=["a web page", "a stream of nothing", "a page to log in"],
)
def test_what_will_not_pass_is_not_tried_for_long(answer: Callable[[Peer], list[Action]]) -> None:
    """Whoever has the wrong URL is to hear of it soon; but these, too, wait."""
    attempts, actions = waits(*sends("tools/list"), answer, 0)
    assert attempts == [1, 2]
    assert in_doubt(actions)


@pytest.mark.parametrize("status", [502, 504])
@pytest.mark.parametrize(("retry_after", "waits"), [(7.0, True), (61.0, False)])
def test_a_gateway_says_when_to_come_again(status: int, retry_after: float, waits: bool) -> None:
    driver, method = sends("read-only")
    actions = driver.sent(method).refuse(status, retry_after=retry_after)
    assert [post.delay.at_least for post in posted(actions, method)] == [7.0] * waits
    assert in_doubt(actions) is not waits


def test_in_a_session_its_server_is_asked_about_that_once_and_not_at_each_sending() -> None:
    """Sessions that are tried beside one that is suspected are few, and others may have lost theirs."""
    driver = Driver().opened()
    driver.listed(*TOOLS)
    driver.call("look").refuse(502)
    driver.sent("ping").refuse(502)
    actions = driver.sent("initialize").refuse(502)
    for _ in range(5):
        assert [p.message["method"] for p in of(actions, Post)] == ["tools/call"]
        driver.sent("tools/call").begin()
        actions = driver.sent("tools/call").refuse(502)
    driver.sent("tools/call").begin()
    assert delivered(driver.sent("tools/call").answer())


def test_where_the_session_was_lost_meanwhile_another_is_opened() -> None:
    driver = Driver().opened()
    driver.listed(*TOOLS)
    driver.call("look").cut()
    driver.sent("tools/call").begin()
    driver.sent("tools/call").refuse(404)
    driver.reinitialized(tools=TOOLS)
    assert delivered(driver.sent("tools/call").answer())


def test_the_hook_s_own_resend_waits_for_nothing_and_is_bounded_as_before() -> None:
    driver = Driver(has_hook=True).opened(None)
    call = driver.call()
    for _ in range(2):
        driver.sent("tools/call").refuse(502)
        (post,) = posted(driver.reconciled(call, Resend()), "tools/call")
        assert post.delay.attempt == 0
    driver.sent("tools/call").refuse(502)
    assert in_doubt(driver.reconciled(call, Resend()))


def test_one_that_the_hook_leaves_to_the_policy_is_tried_for_long() -> None:
    driver = Driver(HARMLESS["always"][0], has_hook=True).opened(None)
    call = driver.call()

    def asks(sent: Peer) -> list[Action]:
        return sent.refuse(502) + driver.reconciled(call, None)

    attempts, _ = waits(driver, "tools/call", asks, 0)
    assert attempts == list(range(1, 10))


def test_a_repeat_joins_one_that_waits() -> None:
    driver, method = sends("by its key")
    driver.sent(method).refuse(502)
    repeat = driver.call()
    assert reports(repeat.actions, RepeatJoined)
    driver.sent(method).begin()
    assert repeat.host_id in [m["id"] for m in delivered(driver.sent(method).answer())]


def test_the_deadline_counts_for_all_of_them_together() -> None:
    driver, method = sends("read-only", GuardPolicy(call_deadline=30.0))
    first, began = driver.sent(method), driver.now
    for _ in range(4):
        actions = driver.sent(method).refuse(502)
        assert not [a for a in of(actions, SetTimer) if a.timer.kind is TimerKind.DEADLINE]
        driver.sent(method).begin()
    driver.sent(method).refuse(502)
    assert in_doubt(driver.elapse(TimerKind.DEADLINE, first.stream))
    assert driver.now == began + 30.0
    assert not driver.sent(method).is_open


def test_without_a_session_the_same_holds() -> None:
    driver = Driver(HARMLESS["always"][0])
    driver.request("tools/call", {"name": "charge"}, mcp_protocol_version="2026-07-28")
    attempts, actions = waits(driver, "tools/call", FAILURES["cut"], 0)
    assert attempts == list(range(1, 10))
    assert in_doubt(actions)


@pytest.fixture
def legacy() -> Legacy:
    driver = Legacy().opened()
    driver.answers(driver.request("tools/list"), {"tools": TOOLS})
    driver.call("look")
    return driver


def overdue(sent: Peer) -> list[Action]:
    return sent.driver.elapse(TimerKind.ANSWER, sent.stream)


def test_beside_a_carrier_a_quick_refusal_counts_as_quick_though_its_answer_is_waited_for(legacy: Legacy) -> None:
    def draws(sent: Peer) -> list[Action]:
        actions = sent.refuse(502)
        if legacy.is_waited_for("ping"):
            actions += legacy.answers(legacy.sent("ping"), {})
        return actions + overdue(sent)

    attempts, actions = waits(legacy, "tools/call", draws, 0)
    assert attempts == list(range(1, 10))
    assert in_doubt(actions)


def test_but_one_that_was_only_cut_may_have_run_for_as_long_as_it_is_waited_for(legacy: Legacy) -> None:
    attempts, actions = waits(legacy, "tools/call", lambda sent: sent.cut() + overdue(sent), 0)
    assert attempts == [1, 2]
    assert in_doubt(actions)


# What a host begins with.


@pytest.mark.parametrize("how", [*FAILURES, "429", "503"])
def test_a_host_that_starts_while_the_server_is_replaced_gets_its_session(how: str) -> None:
    driver = Driver()
    sent = driver.request("initialize")
    for _ in range(5):
        FAILURES.get(how, lambda sent: sent.refuse(int(how)))(driver.sent("initialize"))
        assert driver.machine.session.state is SessionState.INITIALIZING
        driver.sent("initialize").begin()
    assert [m["id"] for m in delivered(driver.sent("initialize").answer())] == [sent.host_id]
    assert driver.machine.session.incarnation == 1


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("method", ["initialize", "server/discover"])
@pytest.mark.parametrize(("retry_after", "waits"), [(7.0, True), (61.0, False)])
def test_it_is_told_at_once_only_where_the_server_wants_it_much_later(
    method: str, status: int, retry_after: float, waits: bool
) -> None:
    driver = Driver()
    actions = driver.request(method).refuse(status, retry_after=retry_after)
    assert [post.delay.at_least for post in posted(actions, method)] == [7.0] * waits
    assert len(delivered(actions)) == (not waits)


def test_one_that_could_not_be_sent_in_time_did_not_run() -> None:
    driver = Driver(GuardPolicy(open_timeout=10.0))
    sent = driver.request("initialize")
    began = driver.now
    sent.refuse(503, retry_after=50.0)
    (answer,) = delivered(driver.elapse(TimerKind.DEADLINE, sent.stream))
    assert driver.now == began + 10.0
    assert answer["error"]["code"] == CODE_NOT_EXECUTED
    assert "open_timeout" in answer["error"]["message"]
    assert driver.machine.session.state is SessionState.NEW
    assert not driver.sent("initialize").is_open


def test_a_newer_one_takes_the_place_of_one_that_waits() -> None:
    driver = Driver()
    older = driver.request("initialize")
    older.refuse(503)
    waiting = driver.sent("initialize")
    newer = driver.request("initialize")
    assert [m["id"] for m in delivered(newer.actions)] == [older.host_id]
    assert outcomes(newer.actions) == [Outcome.NOT_EXECUTED]
    assert not waiting.is_open
    assert [m["id"] for m in delivered(newer.answer())] == [newer.host_id]


@pytest.mark.parametrize("how", ["cancel", "deadline"])
@pytest.mark.parametrize("lost", [True, False])
def test_the_server_is_told_to_cancel_what_it_may_be_working_on(how: str, lost: bool) -> None:
    """A proxy has given the first sending up, and the next one has not left; or it went with its session."""
    driver = Driver(GuardPolicy(resend={"report": "always"})).opened()
    first = driver.call("report")
    driver.now += 30
    first.refuse(504)
    driver.sent("ping").refuse(404) if lost else driver.sent("ping").answer({})
    if lost:
        driver.reinitialized()
    assert driver.sent("tools/call").order.delay.attempt, "it waits"
    actions = driver.cancel(first) if how == "cancel" else driver.elapse(TimerKind.DEADLINE, first.stream)
    cancelled = [p.message["params"]["requestId"] for p in of(actions, Post)]
    assert cancelled == ([] if lost else [first.stream])
