"""Subscriptions of 2026-07-28: one for the host, however often its stream is lost."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, Post
from mcp_client_guard.core.inputs import TimerElapsed
from mcp_client_guard.core.model import JSON, Generation, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import EndpointMoved, ListenedAgain, OrphanDropped, RefreshSuggested
from mcp_client_guard.core.timer import TimerKind
from tests.core.driver import Driver, Peer, delivered, note, of, outcomes, reports

VERSION = "2026-07-28"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
TOOLS = {"toolsListChanged": True}
ALL: JSON = {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["a", "b"]}


def listen(driver: Driver, filter: JSON | None = None) -> Peer:
    params = {"notifications": filter or TOOLS}
    return driver.request(
        "subscriptions/listen", params, mcp_protocol_version=VERSION, mcp_method="subscriptions/listen"
    )


def ack(peer: Peer, honoured: Any = None) -> list[Action]:
    peer.accept()
    return peer.event(None, message(peer, "subscriptions/acknowledged", notifications=honoured or TOOLS))


def message(peer: Peer, name: str, subscription: Any = None, **params: Any) -> JSON:
    meta = {SUBSCRIPTION: peer.stream if subscription is None else subscription}
    return {"jsonrpc": "2.0", "method": f"notifications/{name}", "params": {**params, "_meta": meta}}


def subscribed(filter: JSON | None = None, policy: GuardPolicy | None = None) -> tuple[Driver, Peer]:
    driver = Driver(policy or GuardPolicy())
    peer = listen(driver, filter)
    assert len(delivered(ack(peer, filter))) == 1
    driver.now += 20
    return driver, peer


def again(driver: Driver, actions: list[Action]) -> Peer:
    """The request that goes out in place of the lost one."""
    (post,) = of(actions, Post)
    assert post.message["method"] == "subscriptions/listen"
    assert post.headers == {"mcp-protocol-version": VERSION, "mcp-method": "subscriptions/listen"}
    return driver.peer(post.stream)


def methods(actions: list[Action]) -> list[str]:
    return [m["method"] for m in delivered(actions) if "method" in m]


@pytest.mark.parametrize("how", ["fin", "rst", "cancelled", "no answer", "internal error", "accepted"])
def test_a_lost_subscription_is_made_again_and_the_host_reads_anew(how: str) -> None:
    driver, peer = subscribed(ALL)
    if how == "cancelled":
        params = {"requestId": peer.stream}
        actions = peer.event(None, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert not peer.is_open
    elif how == "internal error":
        actions = peer.event(None, peer.error(-32603))
    elif how in ("no answer", "accepted"):
        driver, peer = subscribed(ALL)
        peer = again(driver, peer.cut())
        peer.accept(events=False, status=202 if how == "accepted" else 200)
        actions = peer.body(None if how == "accepted" else "nonsense")
    else:
        actions = peer.cut(clean=how == "fin")
    new = again(driver, actions)
    assert new.stream != peer.stream
    assert delivered(actions) == [], "the host does not hear of it yet"
    actions = ack(new, ALL)
    assert reports(actions, ListenedAgain) == [ListenedAgain(str(new.stream), ())]
    told = delivered(actions)
    assert [m["method"].removeprefix("notifications/") for m in told] == [
        "tools/list_changed",
        "prompts/list_changed",
        "resources/updated",
        "resources/updated",
    ]
    assert {m["params"]["_meta"][SUBSCRIPTION] for m in told} == {peer.host_id or "h1"}
    assert [m["params"].get("uri") for m in told] == [None, None, "a", "b"]
    assert reports(actions, RefreshSuggested)
    (got,) = delivered(new.event(None, message(new, "tools/list_changed")))
    assert got["params"]["_meta"][SUBSCRIPTION] == "h1"


def test_it_lasts_and_other_requests_do_not() -> None:
    driver, peer = subscribed()
    peer.cut()
    posts = of(driver.log, Post)
    assert [post.lasts for post in posts] == [True, True]
    driver.request("tools/list", mcp_protocol_version=VERSION)
    assert not of(driver.log, Post)[-1].lasts


def test_it_is_told_what_the_server_no_longer_honours() -> None:
    driver, peer = subscribed(ALL)
    new = again(driver, peer.cut())
    actions = ack(new, {"toolsListChanged": True, "promptsListChanged": False, "resourceSubscriptions": ["b"]})
    (report,) = reports(actions, ListenedAgain)
    assert report.missing == ("promptsListChanged", "resourceSubscriptions a")
    assert len(delivered(actions)) == 4, "what was honoured before may have changed unsaid"


@pytest.mark.parametrize("told", [None, "x", {}])
def test_an_acknowledgement_without_a_filter_honours_nothing(told: Any) -> None:
    driver = Driver()
    peer = listen(driver)
    peer.accept()
    params: JSON = {} if told is None else {"notifications": told}
    assert len(delivered(peer.event(None, message(peer, "subscriptions/acknowledged", **params)))) == 1
    new = again(driver, peer.cut())
    actions = ack(new)
    assert delivered(actions) == []
    assert not reports(actions, RefreshSuggested)


def test_a_subscription_has_no_deadline() -> None:
    driver = Driver()
    peer = listen(driver)
    assert driver.is_set(TimerKind.DEADLINE, peer.stream)
    ack(peer)
    assert not driver.is_set(TimerKind.DEADLINE, peer.stream)


def test_silence_ends_no_subscription() -> None:
    _, peer = subscribed()
    assert peer.idle() == []
    assert peer.is_open


def test_a_result_is_the_server_s_word_that_it_is_over() -> None:
    _, peer = subscribed()
    actions = peer.event(None, peer.result({"_meta": {SUBSCRIPTION: peer.stream}, "resultType": "complete"}))
    assert delivered(actions)[0]["result"]["_meta"][SUBSCRIPTION] == "h1"
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert not of(actions, Post)


def test_another_error_is_the_server_s_word_too() -> None:
    driver, peer = subscribed()
    new = again(driver, peer.cut())
    actions = new.refuse(404, {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "no"}})
    assert delivered(actions)[0]["error"]["code"] == -32601
    assert not of(actions, Post)
    assert driver.orders[new.stream].connection not in driver.open


@pytest.mark.parametrize("status", [401, 403, 408, 409, 425, 429, 500, 502, 503])
def test_a_server_that_is_not_ready_is_asked_later(status: int) -> None:
    driver, peer = subscribed()
    new = again(driver, peer.cut())
    (post,) = of(new.refuse(status, retry_after=7.0), Post)
    assert post.delay.attempt == 1
    assert post.delay.at_least == 7.0
    assert post.delay.cap == 60.0


@pytest.mark.parametrize("body", [None, {"detail": "404 page not found"}])
@pytest.mark.parametrize("status", [404, 405, 421])
def test_nor_is_what_a_router_says_the_end_of_it(status: int, body: Any) -> None:
    """Traefik and others say so while a deployment goes on: of the server itself it says nothing."""
    driver, peer = subscribed()
    driver.machine.session.generation = Generation.STATELESS_HTTP
    actions = again(driver, peer.cut()).refuse(status, body)
    new = again(driver, actions)
    assert not delivered(actions)
    assert not reports(actions, EndpointMoved)
    new.begin()
    assert reports(ack(new), ListenedAgain)


def test_a_first_request_to_listen_is_told_what_was_said() -> None:
    driver = Driver()
    (answer,) = delivered(listen(driver).refuse(404))
    assert answer["error"]["data"]["http_status"] == 404


def test_it_is_never_given_up_but_ever_more_slowly() -> None:
    driver, peer = subscribed()
    attempts = []
    for _ in range(30):
        (post,) = of(peer.cut(), Post)
        attempts.append(post.delay.attempt)
        peer = driver.peer(post.stream)
        peer.begin()
        ack(peer)
    assert attempts == list(range(30))
    driver.now += 10
    (post,) = of(peer.cut(), Post)
    assert post.delay.attempt == 0, "it lived for ten seconds"


def test_a_server_that_is_away_is_waited_for() -> None:
    driver, peer = subscribed(policy=GuardPolicy(max_attempts=1))
    number = again(driver, peer.cut()).stream
    for _ in range(6):
        actions = driver.peer(number).cut(written=False)
        number = of(actions, Post)[-1].stream
        assert Outcome.IN_DOUBT not in outcomes(actions)
        assert Outcome.NOT_EXECUTED not in outcomes(actions)
    assert driver.is_set(TimerKind.DEADLINE, peer.stream)


def test_the_server_s_retry_is_honoured() -> None:
    driver, peer = subscribed()
    peer.event(None, message(peer, "tools/list_changed"), retry=3000)
    (post,) = of(peer.cut(), Post)
    assert post.delay.retry_ms == 3000
    (post,) = of(driver.peer(post.stream).cut(), Post)
    assert post.delay.retry_ms == 3000, "and remembered where the next says nothing"


def test_a_request_that_is_not_acknowledged_is_replaced() -> None:
    driver, peer = subscribed()
    new = again(driver, peer.cut())
    new.accept()
    timer = next(t for t in driver.timers if t.kind is TimerKind.DEADLINE)
    actions = driver.feed(TimerElapsed(timer, driver.now))
    assert not new.is_open
    newest = again(driver, actions)
    assert methods(ack(newest)) == ["notifications/tools/list_changed"]
    assert not driver.is_set(TimerKind.DEADLINE, peer.stream)


def test_the_host_is_told_to_read_anew_once_a_minute() -> None:
    driver, peer = subscribed()
    new = again(driver, peer.cut())
    assert len(methods(ack(new))) == 1
    driver.now += 20
    newest = again(driver, new.cut())
    assert methods(ack(newest)) == []
    assert methods(driver.elapse(TimerKind.REFRESH)) == ["notifications/tools/list_changed"]
    assert driver.now == 180.0, "a minute after the first"


def test_a_refresh_that_is_due_dies_with_its_subscription() -> None:
    driver, peer = subscribed()
    new = again(driver, peer.cut())
    ack(new)
    newest = again(driver, new.cut())
    ack(newest)
    timer = next(t for t in driver.timers if t.kind is TimerKind.REFRESH)
    actions = newest.event(None, newest.result({}))
    assert outcomes(actions) == [Outcome.COMPLETED]
    assert timer not in driver.timers
    assert driver.feed(TimerElapsed(timer, driver.now)) == []


def test_the_host_ends_it_while_it_is_away() -> None:
    driver, peer = subscribed()
    new = again(driver, peer.cut())
    actions = driver.cancel(peer)
    assert not new.is_open
    assert not of(actions, Post)
    assert outcomes(actions) == [Outcome.CANCELLED]


def test_leaving_ends_it() -> None:
    driver, peer = subscribed()
    actions = driver.close()
    assert not peer.is_open
    assert outcomes(actions) == [Outcome.CANCELLED], "nothing about it is in doubt"


@pytest.mark.parametrize(("after", "times"), [(60, 3), (0, 10)])
def test_one_that_was_never_acknowledged_is_not_tried_for_ever(after: float, times: int) -> None:
    driver = Driver()
    peer = listen(driver)
    for _ in range(times - 1):
        peer = again(driver, peer.cut(after=after))
        peer.begin()
    actions = peer.cut(after=after)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert delivered(actions)[0]["error"]["code"] == -31901


def test_a_server_that_cancels_before_it_acknowledged() -> None:
    driver = Driver()
    peer = listen(driver)
    peer.accept()
    params = {"requestId": peer.stream}
    actions = peer.event(None, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    assert len(delivered(ack(again(driver, actions)))) == 1


def test_messages_of_another_subscription_are_not_relabelled() -> None:
    driver, one = subscribed()
    two = listen(driver)
    ack(two)
    actions = one.event(None, message(two, "tools/list_changed"))
    assert delivered(actions) == []
    assert reports(actions, OrphanDropped)
    params = {"requestId": two.stream}
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    assert one.event(None, cancelled) == []
    assert two.is_open
    (got,) = delivered(one.event(None, note("plain")))
    assert got == note("plain")


def test_an_answer_too_large_ends_it() -> None:
    _, peer = subscribed()
    actions = peer.too_large()
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert not of(actions, Post)
