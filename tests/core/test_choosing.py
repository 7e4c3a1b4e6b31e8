"""Which generation is used: the host's probe is held, answered here, or passed on."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Action, EndSession, Get, Post
from mcp_client_guard.core.heritage import Heritage, OldSession
from mcp_client_guard.core.machine import Machine
from mcp_client_guard.core.model import JSON, Generation, GenerationFound, Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import GenerationChosen, OrphanDropped
from mcp_client_guard.core.shared import SharedLedger
from mcp_client_guard.core.state import SessionState
from mcp_client_guard.core.timer import Timer, TimerKind
from tests.core.driver import (
    RESULT,
    SESSION,
    Driver,
    Peer,
    delivered,
    methods,
    note,
    of,
    outcomes,
    records,
    reports,
)
from tests.core.legacy import LEGACY_RESULT, Legacy

INFO: JSON = {"name": "host", "version": "1"}
META: JSON = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": INFO,
    "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
}
PARAMS: JSON = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": INFO}
DISCOVERED: JSON = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
SESSIONS, STATELESS = Generation.STREAMABLE_HTTP, Generation.STATELESS_HTTP


def probe(driver: Driver, meta: JSON | None = META) -> Peer:
    return driver.request(
        "server/discover", {} if meta is None else {"_meta": meta}, mcp_protocol_version="2026-07-28"
    )


@pytest.fixture
def driver() -> Driver:
    return Driver(generation="auto")


@pytest.fixture
def trial(driver: Driver) -> Peer:
    """The host has probed, and a session is tried."""
    probe(driver)
    return driver.sent("initialize")


def by_events(trial: Peer, event_id: str | None = "e1", session_id: str | None = SESSION) -> list[Action]:
    """The trial is answered by an event."""
    return trial.accept(session_id=session_id) + trial.event(event_id, trial.result(RESULT))


def refused_probes(actions: list[Action]) -> list[Any]:
    return [m["id"] for m in delivered(actions) if m.get("error", {}).get("code") == -32601]


def refused_for_long(trial: Peer, status: int) -> list[Action]:
    """The trial draws this until the probe is held no longer."""
    actions = trial.refuse(status)
    while trial.is_open:
        trial.begin()
        actions = trial.refuse(status)
    return actions


def ended(actions: list[Action]) -> list[tuple[str, bool]]:
    return [(e.headers["mcp-session-id"], e.at_once) for e in of(actions, EndSession)]


def chosen(actions: list[Action]) -> list[Generation]:
    return [e.generation for e in reports(actions, GenerationChosen)]


# Who chooses.


@pytest.mark.parametrize(("generation", "passes"), [("host", True), ("sessions", False)])
def test_the_probe_passes_or_is_answered_here_at_once(generation: str, passes: bool) -> None:
    sent = probe(Driver(generation=generation))
    assert bool(of(sent.actions, Post)) is passes
    assert bool(refused_probes(sent.actions)) is not passes


@pytest.mark.parametrize(
    ("generation", "found"), [("host", STATELESS), ("host", SESSIONS), ("sessions", SESSIONS)]
)
def test_whoever_asked_is_told_what_the_user_chose(generation: str, found: Generation) -> None:
    driver = Driver(generation=generation)
    asked = probe(driver)
    if found is STATELESS:
        asked.answer(DISCOVERED)
    else:
        driver.opened()
    (event,) = reports(driver.log, GenerationChosen)
    assert (event.generation, event.reason) == (found, f"chosen by the user: generation={generation!r}")


def test_a_host_that_does_not_ask_is_told_by_connected_alone() -> None:
    driver = Driver(generation="host").opened()
    assert not reports(driver.log, GenerationChosen)
    assert not reports(probe(driver).actions, GenerationChosen), "nor in a session"


def test_the_probe_is_held_while_a_session_is_tried_in_the_host_s_name(driver: Driver) -> None:
    actions = probe(driver).actions
    assert [(p.message["method"], p.message["params"]) for p in of(actions, Post)] == [("initialize", PARAMS)]
    assert not delivered(actions)
    assert driver.sent("initialize").order.headers == {}


def test_a_probe_that_does_not_say_who_asks_is_tried_under_a_name_of_ours(driver: Driver) -> None:
    [post] = of(probe(driver, None).actions, Post)
    assert post.message["params"]["clientInfo"]["name"] == "mcp_client_guard"
    assert post.message["params"]["capabilities"] == {}


def test_in_a_live_session_the_probe_is_a_request_like_others(driver: Driver) -> None:
    driver.opened()
    assert [p.message["method"] for p in of(probe(driver).actions, Post)] == ["server/discover"]


# A session that can be resumed.


def test_a_session_with_ids_refuses_the_probe_and_is_the_host_s(driver: Driver, trial: Peer) -> None:
    actions = by_events(trial)
    assert refused_probes(actions) == ["h1"]
    assert chosen(actions) == [SESSIONS]
    sent = driver.request("initialize", {**PARAMS, "_meta": {"progressToken": 1}})
    assert not of(sent.actions, Post)
    assert delivered(sent.actions) == [{"jsonrpc": "2.0", "id": "h2", "result": RESULT}]
    driver.notify("notifications/initialized")
    assert driver.sent("notifications/initialized").order.headers["mcp-session-id"] == SESSION
    assert not ended(driver.log)


def test_a_priming_event_shows_an_event_log_too(trial: Peer) -> None:
    trial.accept(session_id=SESSION)
    trial.event("p1")
    assert refused_probes(trial.event(None, trial.result(RESULT))) == ["h1"]


def test_another_initialize_than_was_tried_opens_its_own_and_ends_the_trial(driver: Driver, trial: Peer) -> None:
    by_events(trial)
    sent = driver.request("initialize", {**PARAMS, "capabilities": {}})
    assert len(of(sent.actions, Post)) == 1
    assert ended(sent.actions) == [(SESSION, True)]


def test_a_trial_that_nobody_takes_ends_with_the_connection(driver: Driver, trial: Peer) -> None:
    by_events(trial)
    assert ended(driver.close()) == [(SESSION, False)]


def test_a_host_that_probes_no_longer_leaves_no_session_behind(driver: Driver) -> None:
    sent = probe(driver)
    driver.cancel(sent)
    actions = by_events(driver.sent("initialize"))
    assert not delivered(actions)
    assert ended(actions) == [(SESSION, True)]


def test_two_probes_are_held_by_one_trial(driver: Driver, trial: Peer) -> None:
    assert not of(probe(driver).actions, Post)
    assert refused_probes(by_events(trial)) == ["h1", "h2"]


# One that cannot.


@pytest.mark.parametrize("primes", [True, False])
@pytest.mark.parametrize(("event_id", "session_id"), [(None, SESSION), ("e1", None), (SESSION, SESSION)])
def test_a_session_without_ids_lets_the_probe_pass(
    driver: Driver, trial: Peer, event_id: str | None, session_id: str | None, primes: bool
) -> None:
    """The Java SDK has the session's ID on every event."""
    trial.accept(session_id=session_id)
    if primes and event_id != "e1":
        trial.event(event_id)
    actions = trial.event(event_id, trial.result(RESULT))
    assert [p.message["method"] for p in of(actions, Post)] == ["server/discover"]
    assert of(actions, Post)[0].headers == {"mcp-protocol-version": "2026-07-28"}
    found = driver.sent("server/discover").answer(DISCOVERED)
    assert chosen(found) == [STATELESS]
    assert ended(found) == ([(SESSION, True)] if session_id else [])
    assert driver.machine.session.state is SessionState.NEW


@pytest.mark.parametrize("refused", [True, False])
def test_without_2026_07_28_the_session_that_was_tried_is_used_all_the_same(
    driver: Driver, trial: Peer, refused: bool
) -> None:
    by_events(trial, None)
    sent = driver.sent("server/discover")
    old = {"supportedVersions": ["2025-11-25", 7], "capabilities": {}}
    sent.refuse(400) if refused else sent.answer(old)
    sent = driver.request("initialize", PARAMS)
    assert not of(sent.actions, Post)
    assert delivered(sent.actions)[0]["result"] == RESULT
    assert chosen(sent.actions) == [SESSIONS]


def test_a_found_without_versions_is_no_2026_07_28(driver: Driver, trial: Peer) -> None:
    by_events(trial, None)
    assert not chosen(driver.sent("server/discover").answer({}))


@pytest.mark.parametrize("how", ["error", "400", "cut", "late", "stopped"])
def test_where_no_session_opens_the_probe_passes(driver: Driver, trial: Peer, how: str) -> None:
    trial.accept(session_id=SESSION) if how in ("error", "cut", "late") else None
    if how == "error":
        error = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}
        actions = trial.event("e1", {"jsonrpc": "2.0", "id": trial.stream, "error": error})
    elif how == "400":
        trial.refuse(400)
        actions = driver.standalone.refuse(405)  # nor is there a legacy stream
    elif how == "cut":
        actions = trial.cut()
    else:
        actions = driver.elapse(TimerKind.DEADLINE, trial.stream)
    assert [p.message["method"] for p in of(actions, Post)] == ["server/discover"]
    assert ended(actions) == ([(SESSION, True)] if how == "error" else [])
    assert chosen(driver.sent("server/discover").answer(DISCOVERED)) == [STATELESS]
    if how == "late":
        assert ended(trial.event("e1", trial.result(RESULT))) == [(SESSION, True)]


def test_a_trial_waits_for_seconds_and_not_for_call_deadline(driver: Driver, trial: Peer) -> None:
    assert driver.timers[Timer(TimerKind.DEADLINE, trial.stream)] - driver.now == 5.0


@pytest.mark.parametrize("how", ["silent", 503, 429, "not written"])
@pytest.mark.parametrize(("policy", "tried", "bound"), [
    (GuardPolicy(open_timeout=3), 1.5, 3),
    (GuardPolicy(open_timeout=3, call_deadline=2), 1, 2),
    (GuardPolicy(open_timeout=30), 5, 30),
    (GuardPolicy(), 5, 300),
])  # fmt: skip
def test_a_probe_has_its_outcome_within_its_own_deadline_whatever_is_tried_first(
    how: Any, policy: GuardPolicy, tried: float, bound: float
) -> None:
    driver = Driver(policy, generation="auto")
    asked, began = probe(driver), driver.now
    trial = driver.sent("initialize")
    if isinstance(how, int):
        trial.refuse(how)
    elif how == "not written":
        trial.not_written()
    assert "server/discover" in methods(driver.elapse(TimerKind.DEADLINE, trial.stream))
    assert driver.now == began + tried
    if isinstance(how, int):
        driver.sent("server/discover").refuse(how)
    elif how == "not written":
        driver.sent("server/discover").not_written()
    (due,) = [timer for timer in driver.timers if timer.kind is TimerKind.DEADLINE]
    (told,) = delivered(driver.elapse(due.kind, due.stream))
    assert (told["id"], driver.now) == (asked.host_id, began + bound)


@pytest.mark.parametrize("how", ["a session", "cancelled", "passed on"])
def test_the_deadline_of_a_probe_ends_with_it(driver: Driver, how: str) -> None:
    asked = probe(driver)
    trial = driver.sent("initialize")
    if how == "a session":
        assert refused_probes(by_events(trial)) == [asked.host_id]
    elif how == "cancelled":
        driver.cancel(asked)
        trial.refuse(406)
    else:
        trial.refuse(406)
        driver.sent("server/discover").answer(DISCOVERED)
    assert not [timer for timer in driver.timers if timer.kind is TimerKind.DEADLINE]


def test_a_server_that_wants_it_later_than_a_trial_may_take_is_not_waited_for() -> None:
    driver = Driver(GuardPolicy(open_timeout=3), generation="auto")
    probe(driver)
    assert "server/discover" in methods(driver.sent("initialize").refuse(503, retry_after=2))


# What is remembered.


def test_what_was_found_is_remembered_for_the_next_connection(driver: Driver, trial: Peer) -> None:
    trial.refuse(406)
    driver.sent("server/discover").answer(DISCOVERED)
    following = Driver(generation="auto")
    following.machine = Machine(generation="auto", shared=driver.machine.shared)
    assert [p.message["method"] for p in of(probe(following).actions, Post)] == ["server/discover"]
    assert chosen(following.sent("server/discover").answer(DISCOVERED)) == [STATELESS]


WORDS = (400, 404, 405, 406, 410, 422, "no IDs", -32601, -32602, -32022)
HICCUPS = (401, 403, 408, 409, 425, 429, 302, 500, 502, 503, "cut", "not written", "late", "HTML", -32603, -32000)


@pytest.mark.parametrize("how", [*WORDS, *HICCUPS])
def test_only_what_the_server_says_of_its_sessions_is_remembered(
    driver: Driver, trial: Peer, how: int | str
) -> None:
    """A server that is just starting, busy or slow has said nothing: the next connection tries a session again."""
    if how == "no IDs":
        by_events(trial, None)
    elif how == "cut":
        trial.cut()
    elif how == "not written":
        while trial.is_open:
            trial.not_written()
    elif how == "late":
        driver.elapse(TimerKind.DEADLINE, trial.stream)
    elif how == "HTML":
        trial.accept(events=False)
        trial.body("<html>")
    elif isinstance(how, int) and how > 0:
        refused_for_long(trial, how)
        driver.standalone.refuse(405) if 0 in driver.orders else None  # nor is there a legacy stream
    elif isinstance(how, int):
        trial.answer_error(how)
    assert chosen(driver.sent("server/discover").answer(DISCOVERED)) == [STATELESS]
    following = Driver(generation="auto")
    following.machine = Machine(generation="auto", shared=driver.machine.shared)
    tried = [p.message["method"] for p in of(probe(following).actions, Post)]
    assert tried == (["server/discover"] if how in WORDS else ["initialize"])
    assert not records(driver.log, GenerationFound), "the next process looks again"


@pytest.mark.parametrize("generation", ["auto", "host"])
def test_where_no_session_was_tried_nothing_is_remembered(generation: str) -> None:
    """A host that asks for nothing but tools has not shown what sessions are like here."""
    driver = Driver(generation=generation)
    listing = driver.request("tools/list", {"_meta": META}, mcp_protocol_version="2026-07-28")
    listing.answer({"tools": [], "resultType": "complete"})
    assert driver.machine.session.generation is STATELESS
    assert driver.machine.shared.found is None


def test_what_a_trial_has_drawn_says_nothing_of_the_next_one(driver: Driver, trial: Peer) -> None:
    trial.refuse(406)
    driver.sent("server/discover").refuse(503)
    probe(driver)
    refused_for_long(driver.sent("initialize"), 503)
    driver.sent("server/discover").answer(DISCOVERED)
    assert driver.machine.shared.found is None


@pytest.mark.parametrize(("seconds", "asked"), [(86_399.0, "server/discover"), (86_401.0, "initialize")])
def test_a_server_without_a_log_is_looked_at_again_every_day(
    driver: Driver, trial: Peer, seconds: float, asked: str
) -> None:
    """Nobody else would ever tell that it was given one."""
    trial.refuse(406)
    driver.sent("server/discover").answer(DISCOVERED)
    following = Driver(generation="auto", now=driver.now + seconds)
    following.machine = Machine(generation="auto", shared=driver.machine.shared)
    assert [p.message["method"] for p in of(probe(following).actions, Post)] == [asked]
    if asked == "initialize":
        following.sent("initialize").refuse(406)
        following.sent("server/discover").answer(DISCOVERED)
        assert driver.machine.shared.found_at == following.now, "for another day"


def test_what_an_earlier_process_has_found_missing_is_looked_for_again() -> None:
    driver = Driver(generation="auto")
    driver.machine = Machine(generation="auto", shared=SharedLedger(found=STATELESS))
    assert [p.message["method"] for p in of(probe(driver).actions, Post)] == ["initialize"]


def test_what_worked_before_and_works_no_more_is_stored_no_longer(driver: Driver, trial: Peer) -> None:
    driver.machine.shared.found = Generation.LEGACY_SSE  # by another connection, meanwhile
    trial.refuse(406)
    driver.sent("server/discover").answer(DISCOVERED)
    assert records(driver.log, GenerationFound) == [GenerationFound(None)]


AWAY = [429, 502, 503, 504]
"""A server that is being replaced, or has too much to do, says nothing of its generation."""


@pytest.mark.parametrize("status", AWAY)
def test_a_server_that_is_away_for_a_moment_is_asked_again_while_the_probe_is_held(
    driver: Driver, trial: Peer, status: int
) -> None:
    (post,) = of(trial.refuse(status, retry_after=2.0), Post)
    assert (post.message["method"], post.delay.attempt, post.delay.at_least) == ("initialize", 1, 2.0)
    trial.begin()
    assert refused_probes(by_events(trial)) == ["h1"]
    assert chosen(driver.log) == [SESSIONS]
    assert driver.machine.shared.found is SESSIONS


def test_but_no_longer_than_the_probe_can_be_held(driver: Driver, trial: Peer) -> None:
    began = driver.now
    for _ in range(3):
        trial.refuse(503)
        trial.begin()
    trial.refuse(503)
    (post,) = of(driver.elapse(TimerKind.DEADLINE, trial.stream), Post)
    assert driver.now == began + 5.0
    assert post.message["method"] == "server/discover"
    assert not trial.is_open
    driver.sent("server/discover").answer(DISCOVERED)
    (event,) = reports(driver.log, GenerationChosen)
    assert event.reason == "no session could be opened: HTTP 503"


@pytest.mark.parametrize(("policy", "wait"), [(GuardPolicy(), 5.0), (GuardPolicy(max_attempts=1), None)])
def test_nor_where_that_is_of_no_use(policy: GuardPolicy, wait: float | None) -> None:
    driver = Driver(policy, generation="auto")
    probe(driver)
    (post,) = of(driver.sent("initialize").refuse(503, retry_after=wait), Post)
    assert post.message["method"] == "server/discover"


@pytest.mark.parametrize("status", AWAY)
def test_the_probe_itself_is_tried_for_as_long(driver: Driver, trial: Peer, status: int) -> None:
    trial.refuse(406)
    for _ in range(5):
        (post,) = of(driver.sent("server/discover").refuse(status), Post)
        assert post.delay.attempt
        driver.sent("server/discover").begin()
    assert chosen(driver.sent("server/discover").answer(DISCOVERED)) == [STATELESS]


def test_a_session_opened_since_is_remembered_instead(driver: Driver, trial: Peer) -> None:
    trial.refuse(406)
    driver.sent("server/discover").answer(DISCOVERED)
    driver.initialize()
    assert driver.machine.shared.found is SESSIONS
    assert driver.machine.session.generation is SESSIONS


def going_on(driver: Driver) -> Driver:
    """A process has left a session, and the host has asked whether the server speaks 2026-07-28."""
    old = OldSession(SESSION, PARAMS, RESULT, {}, (), True)
    driver.machine = Machine(generation="auto", heritage=Heritage(1, 1, old, ()))
    assert refused_probes(probe(driver).actions) == ["h1"]
    return driver


def test_an_old_session_comes_first(driver: Driver) -> None:
    going_on(driver)
    assert driver.request("initialize", PARAMS).actions
    ping = driver.sent("ping")
    assert ping.order.headers["mcp-session-id"] == SESSION
    (event,) = reports(ping.answer({}), GenerationChosen)
    assert (event.generation, event.reason) == (SESSIONS, "an earlier process has left a session")


@pytest.mark.parametrize(
    ("status", "code"), [(404, -32601), (400, -32602), (400, -32020), (400, -32022), (400, -32021)]
)
def test_where_the_server_was_upgraded_since_the_host_is_told_to_ask_once_more(
    driver: Driver, status: int, code: int
) -> None:
    refusal = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "no"}}
    going_on(driver)
    driver.request("initialize", PARAMS)
    driver.sent("ping").refuse(status, refusal)
    (told,) = delivered(driver.sent("initialize").refuse(status, refusal))
    assert told["error"]["code"] == -32022
    assert told["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}
    assert of(probe(driver).actions, Post)[0].message["method"] == "server/discover"


def test_what_refuses_the_session_alone_is_passed_on_as_it_is(driver: Driver) -> None:
    going_on(driver)
    driver.request("initialize", PARAMS)
    driver.sent("ping").refuse(404)
    (told,) = delivered(driver.sent("initialize").refuse(403))
    assert told["error"]["data"]["http_status"] == 403


# What the server says in a session that is tried.

ROOTS: JSON = {"jsonrpc": "2.0", "id": 5, "method": "roots/list"}


def spoken(trial: Peer) -> list[Action]:
    return trial.accept(session_id=SESSION) + trial.event(None, note("hello")) + trial.event(None, ROOTS)


def test_the_host_hears_it_once_it_has_the_session(driver: Driver, trial: Peer) -> None:
    assert not delivered(spoken(trial))
    trial.event("e1", trial.result(RESULT))
    told = delivered(driver.request("initialize", PARAMS).actions)
    assert [m.get("method") for m in told] == [None, "notifications/message", "roots/list"], "its answer first"
    (post,) = of(driver.submit({"jsonrpc": "2.0", "id": told[2]["id"], "result": {"roots": []}}), Post)
    assert (post.message["id"], post.headers["mcp-session-id"]) == (5, SESSION)


@pytest.mark.parametrize("how", ["passes", "fails", "another", "closes", "late"])
def test_it_never_hears_of_one_that_it_does_not_get(driver: Driver, trial: Peer, how: str) -> None:
    spoken(trial)
    if how == "passes":
        trial.event(None, trial.result(RESULT))
        driver.sent("server/discover").answer(DISCOVERED)
    elif how == "fails":
        trial.event(None, trial.error())
    elif how == "another":
        trial.event("e1", trial.result(RESULT))
        driver.request("initialize", {**PARAMS, "capabilities": {}})
        opening = driver.sent("initialize")
        opening.accept(session_id="another")
        opening.event("e1", opening.result(RESULT))
    elif how == "closes":
        driver.close()
    else:
        driver.elapse(TimerKind.DEADLINE, trial.stream)
        trial.event(None, note("late"))
        driver.sent("server/discover").answer(DISCOVERED)
    assert not [m for m in delivered(driver.log) if "method" in m]


def test_what_is_held_of_it_is_bounded() -> None:
    driver = Driver(GuardPolicy(max_held=2), generation="auto")
    probe(driver)
    trial = driver.sent("initialize")
    trial.accept(session_id=SESSION)
    reported = [reports(trial.event(None, note(str(n))), OrphanDropped) for n in range(3)]
    assert [len(each) for each in reported] == [0, 0, 1]
    trial.event("e1", trial.result(RESULT))
    told = delivered(driver.request("initialize", PARAMS).actions)
    assert [m["params"]["data"] for m in told[1:]] == ["0", "1"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_on_a_legacy_carrier_too(when: str) -> None:
    driver = Legacy(generation="auto")
    probe(driver)
    driver.sent("initialize").refuse(405)
    driver.serves()
    trial = driver.sent("initialize")
    driver.takes(trial)
    actions = driver.carries(note("hello")) if when == "before" else []
    driver.carries(trial.result(LEGACY_RESULT))
    actions += driver.carries(note("hello")) if when == "after" else []
    assert not [m for m in delivered(actions) if "method" in m]
    told = delivered(driver.request("initialize", PARAMS).actions)
    assert [m.get("method") for m in told] == [None, "notifications/message"]
    assert delivered(driver.carries(note("more"))), "from now on it is the host's"


def test_what_belongs_to_the_host_s_own_requests_is_not_held(driver: Driver, trial: Peer) -> None:
    trial.event(None, trial.result(RESULT))
    driver.sent("server/discover").answer(DISCOVERED)
    call = driver.request("tools/call", {"name": "look"}, mcp_protocol_version="2026-07-28")
    call.accept()
    assert delivered(call.event(None, note("of its call")))


@pytest.mark.parametrize("how", ["cut", "500", "405"])
def test_a_look_that_fails_leaves_whoever_awaits_its_endpoint_to_be_tried(how: str) -> None:
    driver = Legacy(generation="auto")
    asked = probe(driver)
    driver.sent("initialize").refuse(405)
    driver.cancel(asked)
    driver.machine.shared.found = Generation.LEGACY_SSE  # by another connection, meanwhile
    mine = driver.request("initialize", PARAMS)
    actions = driver.carrier.cut() if how == "cut" else driver.carrier.refuse(int(how))
    if how == "405":
        (post,) = of(actions, Post)
        assert post.target is None, "what was found is wrong by now"
        actions = driver.peer(post.stream).answer()
    else:
        assert of(actions, Get)
        driver.serves()
        actions = driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    assert mine.host_id in [m.get("id") for m in delivered(actions)]


def test_a_late_refusal_of_the_trial_touches_no_stream_that_the_host_s_session_has() -> None:
    driver = Legacy(generation="auto")
    asked = probe(driver)
    trial = driver.sent("initialize")
    driver.cancel(asked)
    driver.request("initialize", PARAMS)
    driver.sent("initialize").refuse(405)
    driver.serves()
    carrier = driver.carrier.connection
    assert not of(trial.refuse(405), Get)
    driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    driver.notify("notifications/initialized")
    driver.takes(driver.sent("notifications/initialized"))
    assert outcomes(driver.answers(driver.call())) == [Outcome.COMPLETED]
    assert driver.carrier.connection == carrier


def test_a_trial_that_is_over_takes_no_stream_from_whoever_awaits_its_endpoint() -> None:
    driver = Legacy(generation="auto")
    asked = probe(driver)
    trial = driver.sent("initialize")
    trial.refuse(405)
    driver.cancel(asked)
    driver.machine.shared.found = Generation.LEGACY_SSE
    mine = driver.request("initialize", PARAMS)
    driver.elapse(TimerKind.DEADLINE, trial.stream)
    driver.serves()
    actions = driver.answers(driver.sent("initialize"), LEGACY_RESULT)
    assert mine.host_id in [m.get("id") for m in delivered(actions)]


@pytest.mark.parametrize("event_id", ["e1", None])
@pytest.mark.parametrize("asks", [True, False])
def test_a_trial_that_is_answered_once_the_host_opens_its_own_session_is_ended(
    driver: Driver, event_id: str | None, asks: bool
) -> None:
    """Kept, it would be given to a later `initialize`, beside the session that the guard opens meanwhile."""
    asked = probe(driver)
    trial = driver.sent("initialize").stale()
    if not asks:
        driver.cancel(asked)
    driver.opened("the-host-s")
    actions = by_events(trial, event_id)
    assert ended(actions) == [(SESSION, True)]
    passes = asks and event_id is None
    assert bool(refused_probes(actions)) is (asks and not passes)
    assert [p.message["method"] for p in of(actions, Post)] == ["server/discover"] * passes
    driver.call().refuse(404)
    own = driver.sent("initialize").stale()
    again = driver.request("initialize", PARAMS)
    assert len(of(again.actions, Post)) == 1
    own.refuse(502)
    assert delivered(again.answer(RESULT, session_id="the-next"))
    assert driver.machine.session.session_id == "the-next"


def test_a_probe_that_is_repeated_waits_for_the_trial_that_is_under_way(driver: Driver) -> None:
    driver.cancel(probe(driver))
    again = probe(driver)
    assert not of(again.actions, Post)
    actions = by_events(driver.sent("initialize"))
    assert refused_probes(actions) == [again.host_id]
    assert not ended(actions)
    assert delivered(driver.request("initialize", PARAMS).actions)


@pytest.mark.parametrize("event_id", ["e1", None])
def test_a_probe_that_is_repeated_later_leaves_no_earlier_trial_behind(
    driver: Driver, trial: Peer, event_id: str | None
) -> None:
    by_events(trial, event_id)
    assert ended(probe(driver).actions) == [(SESSION, True)]
    by_events(driver.sent("initialize"), event_id, "the-second")
    assert ended(driver.close()) == [("the-second", False)]
