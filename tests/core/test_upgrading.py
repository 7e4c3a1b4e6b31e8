"""The move of the standalone stream to a socket: when it is asked for, what proves it, and the way back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_client_guard.core.actions import Action, AskUpgrade, Get, Hangup, OpenSocket, SetTimer
from mcp_client_guard.core.inputs import UpgradeAnswered
from mcp_client_guard.core.model import Generation, Grade
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import (
    Disconnected,
    Discontinuity,
    DuplicateDropped,
    RefreshSuggested,
    SessionLost,
    Upgraded,
    UpgradeRefused,
)
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.core.trial import NO_WITNESS
from tests.core.driver import SESSION, Driver, Peer, delivered, evidence, note, of, reports


def driving(emitted: int = 3, **policy: Any) -> Driver:
    """A session whose standalone stream has carried so many events: `e1`, `e2`, …"""
    driver = Driver(GuardPolicy(**policy), upgrades=True).opened(standalone=True)
    for number in range(1, emitted + 1):
        driver.standalone.event(f"e{number}", note(str(number)))
    return driver


def question(driver: Driver) -> AskUpgrade:
    return of(driver.log, AskUpgrade)[-1]


def answered(driver: Driver, status: int | None = 200, body: Any = None, **rest: Any) -> list[Action]:
    body = {"ticket": "t1"} if body is None and status == 200 else body
    return driver.feed(UpgradeAnswered(question(driver).question, status, body, **rest))


def opened(driver: Driver) -> Peer:
    """The socket is open, and has carried nothing."""
    answered(driver)
    driver.standalone.accept(status=101)
    return driver.standalone


def proven(driver: Driver, emitted: int = 3) -> Peer:
    socket = opened(driver)
    position = question(driver).body["positions"]["standalone"]
    first = int(position[1:]) + 1
    for number in range(first, emitted + 1):
        socket.event(f"e{number}", note(str(number)))
    assert driver.machine.session.generation is Generation.WEBSOCKET
    return socket


def refusals(actions: list[Action]) -> list[tuple[str, bool]]:
    return [(r.reason, r.final) for r in reports(actions, UpgradeRefused)]


# When it is asked for.


def test_it_is_asked_for_as_soon_as_there_is_a_witness() -> None:
    driver = driving(1)
    assert not of(driver.log, AskUpgrade), "with one event nothing could be proven"
    asked = driver.standalone.event("e2", note("2"))
    assert of(asked, AskUpgrade)[0].body == {"positions": {"standalone": "e1"}}
    assert of(asked, AskUpgrade)[0].headers == {
        "mcp-session-id": SESSION,
        "mcp-protocol-version": "2025-11-25",
    }
    assert not of(driver.standalone.event("e3", note("3")), AskUpgrade), "one question at a time"


def test_what_comes_before_the_session_is_live_asks_once_it_is() -> None:
    driver = driving(1)
    driver.notify("notifications/initialized")  # as after a restart, where the server may not have been told
    assert not of(driver.standalone.event("e2", note("2")), AskUpgrade)
    assert of(driver.sent("notifications/initialized").accept(status=202, events=False), AskUpgrade)


def test_without_the_user_s_wish_it_is_not() -> None:
    driver = Driver().opened(standalone=True)
    for number in (1, 2, 3):
        driver.standalone.event(f"e{number}", note(str(number)))
    assert not of(driver.log, AskUpgrade)


def test_a_legacy_session_is_its_stream_and_is_not_moved() -> None:
    driver = driving(1)
    driver.machine.session.generation = Generation.LEGACY_SSE
    driver.standalone.event("e2", note("2"))
    assert not of(driver.log, AskUpgrade)


def test_a_stream_without_ids_has_no_position_and_is_not_moved() -> None:
    driver = driving(0)
    for number in (1, 2, 3):
        driver.standalone.event(None, note(str(number)))
    assert not of(driver.log, AskUpgrade)


def test_a_declared_contiguous_scheme_can_do_with_one_event() -> None:
    driver = driving(1, id_scheme="contiguous")
    assert question(driver).body == {"positions": {"standalone": "e1"}}


def test_a_stream_on_trial_is_not_moved() -> None:
    driver = driving(2)
    answered(driver, 409)
    driver.standalone.cut()
    driver.standalone.accept()
    assert driver.elapse(TimerKind.UPGRADE) == []
    assert of(driver.standalone.event("e2", note("2")), AskUpgrade), "but once its trial is over"


def test_an_answer_to_an_older_question_is_ignored() -> None:
    driver = driving()
    told = UpgradeAnswered(question(driver).question + 1, 200, {"ticket": "t1"})
    assert driver.feed(told) == []


def test_the_pause_is_spread_so_that_clients_do_not_come_back_together() -> None:
    (pause,) = [a for a in answered(driving(), 503) if isinstance(a, SetTimer)]
    assert 0 < pause.jitter < pause.seconds


def test_an_answer_after_the_stream_was_cut_opens_nothing() -> None:
    driver = driving()
    driver.standalone.cut()
    assert answered(driver) == []
    driver.standalone.accept()
    asked = driver.standalone.event("e3", note("3"))
    assert of(asked, AskUpgrade), "the witness came again: from now on it may be moved"


def test_an_answer_after_the_stream_is_gone_opens_nothing() -> None:
    driver = driving()
    driver.standalone.cut()
    driver.standalone.refuse(405)
    assert answered(driver) == []


def test_a_position_that_the_trail_no_longer_holds_is_not_used_and_the_next_is_told_after_a_pause() -> None:
    """What the socket would repeat from there would be taken for new. A busy stream must not ask without end."""
    driver = driving(trail_size=3)
    for number in range(4, 8):
        driver.standalone.event(f"e{number}", note(str(number)))
    actions = answered(driver)
    assert refusals(actions) == [("the stream went on too fast", False)]
    assert not of(actions, OpenSocket)
    assert driver.standalone.is_open
    assert not of(driver.standalone.event("e8", note("8")), AskUpgrade)
    assert of(driver.elapse(TimerKind.UPGRADE), AskUpgrade)[0].body == {"positions": {"standalone": "e7"}}


def test_an_answer_in_another_session_s_name_is_the_end_of_this_one() -> None:
    driver = driving()
    actions = answered(driver, session_id="session-two")
    assert reports(actions, SessionLost)
    assert not of(actions, OpenSocket)


def test_the_question_of_a_lost_session_is_forgotten() -> None:
    driver = driving()
    asked = question(driver).question
    driver.call().refuse(404)
    driver.reinitialized()
    assert driver.feed(UpgradeAnswered(asked, 200, {"ticket": "t1"}, SESSION)) == []


# Granted, and proven.


def test_granted_the_event_stream_is_closed_before_the_socket_is_opened() -> None:
    driver = driving()
    before = driver.standalone.connection
    actions = answered(driver)
    hangup, socket, _ = actions
    assert hangup == Hangup(before)
    assert isinstance(socket, OpenSocket)
    assert socket.ticket == "t1"
    assert socket.headers["mcp-session-id"] == SESSION
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP, "nothing is proven"


def test_the_witness_first_proves_the_socket() -> None:
    driver = driving()
    socket = opened(driver)
    actions = socket.event("e2", note("2"))
    assert [e.grade for e in evidence(actions)] == [Grade.PROVEN]
    assert reports(actions, Upgraded)
    assert driver.machine.session.generation is Generation.WEBSOCKET
    assert delivered(actions) == []
    assert reports(socket.event("e3", note("3")), DuplicateDropped), "it came by the event stream meanwhile"
    assert delivered(socket.event("e4", note("4"))) == [note("4")]
    assert not reports(driver.log, Discontinuity)


def test_what_the_event_stream_brings_until_the_ticket_comes_is_not_delivered_twice() -> None:
    driver = driving(2)
    assert delivered(driver.standalone.event("e3", note("3"))) == [note("3")]
    socket = opened(driver)
    actions = [a for n in (2, 3, 4) for a in socket.event(f"e{n}", note(str(n)))]
    assert delivered(actions) == [note("4")]


def test_an_event_stream_that_was_hung_up_is_not_heard_any_more() -> None:
    driver = driving()
    stale = driver.standalone.stale()
    opened(driver)
    assert stale.event("e4", note("4")) == []
    assert stale.cut() == []


@pytest.mark.parametrize(
    ("event_id", "message"),
    [
        ("e3", note("3")),
        ("e14", note("14")),
        ("e2", note("another")),
        ("e1", note("1")),
        ("e2", None),
    ],
    ids=["too late", "only new", "other content", "too early", "empty"],
)
def test_any_other_first_frame_closes_the_socket_and_the_event_stream_goes_on(event_id: str, message: Any) -> None:
    driver = driving()
    driver.standalone.stale()
    socket = opened(driver).stale()
    # The position was `e1`: the witness is `e2`.
    actions = socket.event(event_id, message)
    assert [e.grade for e in evidence(actions)] == [Grade.BROKEN]
    assert reports(actions, Discontinuity)
    assert Hangup(socket.connection) in actions
    assert delivered(actions) == []
    (get,) = of(actions, Get)
    assert get.last_event_id == "e2", "from where it was: the overlap of the event stream"
    driver.standalone.accept()
    actions = driver.standalone.event("e3", note("3"))
    assert [e.grade for e in evidence(actions)] == [Grade.PROVEN]
    assert delivered(driver.standalone.event("e4", note("4"))) == [note("4")], "nothing is lost after all"
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP


def test_silence_is_no_proof() -> None:
    driver = driving()
    opened(driver)
    actions = driver.elapse(TimerKind.WITNESS)
    assert refusals(actions) == [("no first frame within witness_timeout", False)]
    assert of(actions, Get)[0].last_event_id == "e2"
    assert not reports(actions, Discontinuity), "nothing says that anything is missing"


@pytest.mark.parametrize("answer", ["none", "no socket"])
@pytest.mark.parametrize("scheme", ["opaque", "contiguous"])
def test_a_handshake_without_an_answer_is_given_up(scheme: str, answer: str) -> None:
    driver = driving(2 if scheme == "opaque" else 1, id_scheme=scheme)
    answered(driver)
    if answer == "no socket":
        driver.standalone.accept(events=False)
    actions = driver.elapse(TimerKind.WITNESS)
    assert refusals(actions) == [("no handshake within witness_timeout", False)]
    assert of(actions, Get)[0].last_event_id == "e1"
    assert isinstance(driver.standalone.order, Get)


@pytest.mark.parametrize("clean", [True, False])
def test_a_socket_lost_on_trial_costs_a_resume(clean: bool) -> None:
    driver = driving()
    socket = opened(driver)
    actions = socket.cut(clean=clean)
    assert reports(actions, Disconnected)
    assert of(actions, Get)[0].last_event_id == "e2"
    assert not reports(actions, Discontinuity)


@pytest.mark.parametrize("status", [200, 403, 404, 426, 503])
def test_a_refused_handshake_costs_a_resume(status: int) -> None:
    driver = driving()
    answered(driver)
    actions = driver.standalone.refuse(status)
    assert refusals(actions) == [(f"the socket was refused with HTTP {status}", False)]
    assert of(actions, Get)[0].last_event_id == "e2"


def test_a_client_that_leaves_no_socket_open_is_given_no_other() -> None:
    driver = driving()
    answered(driver)
    actions = driver.standalone.refuse(101)
    assert refusals(actions) == [("the HTTP client leaves no socket open", True)]
    assert of(actions, Get)[0].last_event_id == "e2"
    driver.standalone.accept()
    driver.standalone.event("e3", note("3"))
    driver.elapse(TimerKind.UPGRADE)
    assert len(of(driver.log, AskUpgrade)) == 1


def test_a_frame_beyond_the_bound_on_trial_costs_a_resume() -> None:
    driver = driving()
    actions = opened(driver).too_large()
    assert of(actions, Get)[0].last_event_id == "e2"


def test_a_socket_of_another_session_is_the_end_of_this_one() -> None:
    driver = driving()
    answered(driver)
    assert reports(driver.standalone.accept(status=101, session_id="session-two"), SessionLost)


def test_an_event_that_carries_nothing_may_stand_before_the_witness() -> None:
    """Servers that prime a stream when it is resumed log what they mint for that."""
    driver = driving()
    answered(driver, 409)
    driver.standalone.cut()
    driver.standalone.accept()
    for event_id, message in [("e3", note("3")), ("e4", None), ("e5", note("5"))]:
        driver.standalone.event(event_id, message)
    driver.elapse(TimerKind.UPGRADE)
    assert question(driver).body == {"positions": {"standalone": "e3"}}
    socket = opened(driver)
    assert evidence(socket.event("e4")) == []
    assert [e.grade for e in evidence(socket.event("e5", note("5")))] == [Grade.PROVEN]
    assert delivered(socket.event("e6", note("6"))) == [note("6")]
    assert not reports(driver.log, Discontinuity)


# With a contiguous scheme declared.


def test_with_a_contiguous_scheme_and_no_overlap_the_next_event_must_come_first() -> None:
    driver = driving(1, id_scheme="contiguous")
    socket = opened(driver)
    actions = socket.event("e2", note("2"))
    assert [e.grade for e in evidence(actions)] == [Grade.CONSISTENT]
    assert delivered(actions) == [note("2")]
    assert reports(actions, Upgraded)
    assert not reports(actions, RefreshSuggested)


def test_the_same_where_the_event_stream_brought_that_event_meanwhile() -> None:
    driver = driving(1, id_scheme="contiguous")
    driver.standalone.event("e2", note("2"))
    socket = opened(driver)
    assert delivered(socket.event("e2", note("2"))) == []
    assert delivered(socket.event("e3", note("3"))) == [note("3")]


def test_an_inclusive_server_sends_our_own_event_again() -> None:
    driver = driving(1, id_scheme="contiguous")
    socket = opened(driver)
    actions = socket.event("e1", note("1"))
    assert [e.grade for e in evidence(actions)] == [Grade.PROVEN]
    assert delivered(socket.event("e2", note("2"))) == [note("2")]


def test_the_next_event_may_carry_nothing() -> None:
    driver = driving(1, id_scheme="contiguous")
    socket = opened(driver)
    assert [e.grade for e in evidence(socket.event("e2"))] == [Grade.CONSISTENT]
    assert delivered(socket.event("e3", note("3"))) == [note("3")]


@pytest.mark.parametrize("message", [note("x"), None])
@pytest.mark.parametrize("event_id", ["e1", "e3", "e14"])
def test_any_other_breaks_it(event_id: str, message: Any) -> None:
    driver = driving(1, id_scheme="contiguous")
    actions = opened(driver).event(event_id, message)
    assert [e.grade for e in evidence(actions)] == [Grade.BROKEN]
    assert reports(actions, Discontinuity)


def test_there_silence_is_judged_and_the_host_told_to_refresh() -> None:
    """Nothing is owed until something is emitted; but nothing says either that nothing was."""
    driver = driving(1, id_scheme="contiguous")
    opened(driver)
    actions = driver.elapse(TimerKind.WITNESS)
    assert evidence(actions) == [NO_WITNESS]
    assert reports(actions, Upgraded)
    assert reports(actions, RefreshSuggested)
    assert not reports(actions, Discontinuity)
    assert not any(timer.kind is TimerKind.WITNESS for timer in driver.timers)
    assert delivered(driver.standalone.event("e2", note("2"))) == [note("2")]


def test_after_that_a_gap_is_found_and_our_own_event_dropped() -> None:
    driver = driving(1, id_scheme="contiguous")
    opened(driver)
    driver.elapse(TimerKind.WITNESS)
    assert delivered(driver.standalone.event("e1", note("1"))) == []
    assert reports(driver.standalone.event("e3", note("3")), Discontinuity)


def test_after_the_witness_the_scheme_is_kept_to() -> None:
    driver = driving(3, id_scheme="contiguous")
    socket = proven(driver)
    actions = socket.event("e5", note("5"))
    assert reports(actions, Discontinuity)
    assert of(actions, Get)[0].last_event_id is None, "a proven socket that leaves a gap is no log to go on with"


# Back to the event stream.


def test_a_lost_socket_is_resumed_by_the_event_stream_from_its_last_event() -> None:
    driver = driving()
    socket = proven(driver)
    socket.event("e4", note("4"))
    actions = socket.cut()
    assert reports(actions, Disconnected)
    assert of(actions, Get)[0].last_event_id == "e3"
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP
    driver.standalone.accept()
    assert [e.grade for e in evidence(driver.standalone.event("e4", note("4")))] == [Grade.PROVEN]
    assert delivered(driver.standalone.event("e5", note("5"))) == [note("5")]


def test_another_message_under_a_known_id_breaks_a_proven_socket() -> None:
    driver = driving()
    socket = proven(driver)
    actions = socket.event("e2", note("another"))
    assert reports(actions, Discontinuity)
    assert of(actions, Get)[0].last_event_id is None


def test_a_socket_without_a_byte_for_max_idle_is_cut() -> None:
    driver = driving()
    socket = proven(driver).stale()
    actions = socket.idle()
    assert Hangup(socket.connection) in actions
    assert of(actions, Get)[0].last_event_id == "e2"


def test_so_is_one_whose_ids_identify_nothing() -> None:
    """Its pings are answered or it is dead: no request has to find out."""
    driver = driving()
    socket = proven(driver).stale()
    socket.event("e4", note("4"))
    socket.event("e4", note("another"))
    assert Hangup(socket.connection) in socket.idle()


def test_the_next_upgrade_waits_longer_each_time() -> None:
    driver = driving()
    waits = []
    for _ in range(4):
        proven(driver).cut()
        due = next(at for timer, at in driver.timers.items() if timer.kind is TimerKind.UPGRADE)
        waits.append(due - driver.now)
        driver.standalone.accept()
        assert not of(driver.standalone.event("e3", note("3")), AskUpgrade)
        assert of(driver.elapse(TimerKind.UPGRADE), AskUpgrade)
    assert waits == [1, 2, 4, 8]


def test_a_socket_that_lived_starts_the_count_over() -> None:
    driver = driving()
    for _ in range(20):
        proven(driver).cut(after=10)
        driver.standalone.accept()
        driver.standalone.event("e3", note("3"))
        assert of(driver.elapse(TimerKind.UPGRADE), AskUpgrade)


def test_sockets_that_die_young_are_given_up_in_the_end() -> None:
    driver = driving()
    for _ in range(9):
        proven(driver).cut()
        driver.standalone.accept()
        driver.standalone.event("e3", note("3"))
        driver.elapse(TimerKind.UPGRADE)
    actions = proven(driver).cut()
    assert refusals(actions) == [("10 attempts in a row came to nothing", True)]
    assert of(actions, Get)
    driver.standalone.accept()
    driver.standalone.event("e3", note("3"))
    assert not driver.is_set(TimerKind.UPGRADE, 0)


def test_a_lost_session_takes_its_socket_along() -> None:
    driver = driving()
    socket = proven(driver).stale()
    actions = driver.call().refuse(404)
    assert Hangup(socket.connection) in actions
    assert driver.machine.session.generation is Generation.STREAMABLE_HTTP
    driver.reinitialized()
    assert isinstance(driver.standalone.order, Get)


def test_closing_hangs_the_socket_up() -> None:
    driver = driving()
    socket = proven(driver)
    assert Hangup(socket.connection) in driver.close()


# Refused.


def test_409_means_stay_drain_and_ask_again_from_where_we_are_then() -> None:
    driver = driving()
    assert refusals(answered(driver, 409)) == [("HTTP 409", False)]
    for number in (4, 5):
        assert not of(driver.standalone.event(f"e{number}", note(str(number))), AskUpgrade)
    asked = driver.elapse(TimerKind.UPGRADE)
    assert of(asked, AskUpgrade)[0].body == {"positions": {"standalone": "e4"}}
    assert proven(driver, 5)


def test_retry_after_is_kept_to() -> None:
    driver = driving()
    answered(driver, 409, retry_after=30.0)
    assert driver.timers[next(t for t in driver.timers if t.kind is TimerKind.UPGRADE)] == driver.now + 30


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_that_offers_none_is_not_asked_again(status: int) -> None:
    driver = driving()
    actions = answered(driver, status)
    assert refusals(actions) == [(f"HTTP {status}", True)]
    assert not reports(actions, SessionLost), "it says nothing of the session"
    assert not of(driver.standalone.event("e4", note("4")), AskUpgrade)
    assert not driver.is_set(TimerKind.UPGRADE, 0)
    assert driver.is_waited_for("ping") is (status == 404)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_in_the_next_session_it_is_asked_again(status: int) -> None:
    """A session that is lost draws 404, too; and while servers are replaced, some offer it and some do not."""
    driver = driving()
    answered(driver, status)
    driver.sent("ping").refuse(404) if status == 404 else driver.call().refuse(404)
    driver.reinitialized()
    driver.standalone.accept()
    driver.standalone.event("n1", note("1"))
    assert of(driver.standalone.event("n2", note("2")), AskUpgrade)


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503, 202, 302])
def test_anything_else_is_reported_and_tried_again(status: int) -> None:
    driver = driving()
    assert refusals(answered(driver, status)) == [(f"HTTP {status}", False)]
    assert of(driver.elapse(TimerKind.UPGRADE), AskUpgrade)


@pytest.mark.parametrize("body", [[], {}, {"ticket": 1}, {"ticket": ""}, {"ticket": "a\nb"}, {"ticket": "ü"}])
def test_a_200_without_a_usable_ticket_grants_nothing(body: Any) -> None:
    driver = driving()
    assert refusals(answered(driver, 200, body)) == [("HTTP 200, not a ticket", False)]
    assert driver.standalone.is_open


def test_no_answer_is_reported_and_tried_again() -> None:
    driver = driving()
    assert refusals(answered(driver, None, why="ReadError")) == [("ReadError", False)]
    assert driver.is_set(TimerKind.UPGRADE, 0)


def test_refusals_have_a_budget() -> None:
    driver = driving()
    for _ in range(9):
        answered(driver, 409)
        driver.elapse(TimerKind.UPGRADE)
    assert refusals(answered(driver, 409))[-1] == ("10 attempts in a row came to nothing", True)


def test_a_pause_that_ends_when_there_is_no_stream_asks_nothing() -> None:
    driver = driving()
    answered(driver, 409)
    driver.standalone.cut()
    driver.standalone.refuse(405)
    assert driver.elapse(TimerKind.UPGRADE) == []


# Whatever happens to sockets and event streams, in any order.


class World:
    """A server with one log of the standalone stream, and a network that cuts; the guard in between."""

    def __init__(self, skips: int, *, primes: bool = False) -> None:
        self.driver = Driver(upgrades=True).opened(standalone=True)
        self.emitted = 0
        self.sent = 0
        """How much of the log was written to the present connection."""
        self.skips = skips
        """How many events each socket leaves out at its beginning: the third seed's lie."""
        self.primes = primes
        """It mints an event that carries nothing whenever the event stream is resumed."""
        self.empty: set[int] = set()

    def emit(self, _: int) -> None:
        self.emitted += 1

    def write(self, count: int) -> None:
        """Some of what the present connection is behind."""
        for _ in range(count % 4 + 1):
            before = self.driver.standalone.connection
            if self.sent < self.emitted:
                self.sent += 1
                message = None if self.sent in self.empty else note(str(self.sent))
                self.driver.standalone.event(f"e{self.sent}", message)
                self.follow(before)

    def grant(self, status: int) -> None:
        before = self.driver.standalone.connection
        if of(self.driver.log, AskUpgrade):
            answered(self.driver, 409 if status % 4 == 0 else 200)
            self.follow(before)

    def cut(self, after: int) -> None:
        before = self.driver.standalone.connection
        self.driver.standalone.cut(after=after % 15)
        self.follow(before)

    def due(self, _: int) -> None:
        if self.driver.is_set(TimerKind.UPGRADE, 0):
            self.driver.elapse(TimerKind.UPGRADE)

    def follow(self, before: int) -> None:
        """Answer whatever was opened since, each from where it asks for."""
        while (peer := self.driver.standalone).connection != before:
            before = peer.connection
            order = peer.order
            if isinstance(order, OpenSocket):
                asked = question(self.driver).body["positions"]["standalone"]
                self.sent = min(int(asked[1:]) + self.skips, self.emitted)
                peer.accept(status=101)
            else:
                assert isinstance(order, Get)
                self.sent = int(order.last_event_id[1:]) if order.last_event_id else self.sent
                if self.primes:
                    self.emit(0)
                    self.empty.add(self.emitted)
                peer.accept()

    def play(self, drawn: bytes) -> list[int]:
        steps = [self.emit, self.emit, self.write, self.write, self.write, self.grant, self.cut, self.due]
        for a, b in zip(drawn[::2], drawn[1::2], strict=False):
            steps[a % len(steps)](b)
        for _ in range(self.emitted + 3):
            self.write(3)
        told = [m["params"]["data"] for m in delivered(self.driver.log) if "data" in m.get("params", {})]
        return [int(number) for number in told]


MANY = settings(max_examples=300, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
DRAWN = st.binary(min_size=20, max_size=200)


@pytest.mark.no_cover
@MANY
@given(DRAWN, st.booleans())
def test_an_honest_server_s_events_come_once_and_in_order_whatever_is_cut(drawn: bytes, primes: bool) -> None:
    world = World(0, primes=primes)
    assert world.play(drawn) == [each for each in range(1, world.emitted + 1) if each not in world.empty]
    assert not reports(world.driver.log, Discontinuity), "S5: a false alarm"


@pytest.mark.no_cover
@MANY
@given(DRAWN, st.integers(1, 4))
def test_a_socket_that_leaves_events_out_loses_none(drawn: bytes, skips: int) -> None:
    world = World(skips)
    told = world.play(drawn)
    assert told == sorted(set(told)), "S1, S3"
    assert told == list(range(1, len(told) + 1)), "S4: what the socket left out comes by the event stream"
    assert not reports(world.driver.log, Upgraded)
