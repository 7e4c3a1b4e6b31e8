"""What the server asks of the host is asked once, and answered from what the host said when it is replayed."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core import asked
from mcp_client_guard.core.actions import Action, Post, Save
from mcp_client_guard.core.asked import Asked
from mcp_client_guard.core.connection import Connection
from mcp_client_guard.core.model import JSON, CursorMoved, Outcome, ServerAnswered
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import CallSettled, NotificationLost
from mcp_client_guard.core.stream import Stream, StreamKind
from mcp_client_guard.core.timer import TimerKind
from mcp_client_guard.core.trail import Trail
from tests.core.driver import Driver, Peer, delivered, note, of, outcomes, records, reports
from tests.core.scenes import Process, prove


def question(request_id: Any = 1, method: str = "elicitation/create", **params: Any) -> JSON:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


def asks(call: Peer, request_id: Any = 1, event_id: str | None = "q", **params: Any) -> list[int]:
    """The numbers under which the host is asked."""
    told = delivered(call.event(event_id, question(request_id, **params)))
    return [m["id"] for m in told if "id" in m]


def cancel_of(params: Any) -> JSON:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


def answer(driver: Driver, number: int) -> list[Action]:
    return driver.submit({"jsonrpc": "2.0", "id": number, "result": {"action": "accept"}})


def test_the_host_is_asked_under_a_number_of_ours_and_answers_under_the_server_s(driver: Driver) -> None:
    call = driver.call().stream_up("1")
    (number,) = asks(call, "server-7")
    actions = answer(driver, number)
    (record,) = records(actions, ServerAnswered)
    assert (record.request_id, record.incarnation) == ("server-7", 1)
    (post,) = of(actions, Post)
    assert post.message == {"jsonrpc": "2.0", "id": "server-7", "result": {"action": "accept"}}
    assert not post.for_request


def resumed(call: Peer) -> Peer:
    """A stream that was cut, and proven to be the same."""
    call.stream_up("w")
    call.resumed()
    call.event("w", call.progress(1))
    return call


def test_a_question_that_comes_again_while_the_host_thinks_about_it_is_not_asked_twice(driver: Driver) -> None:
    call = driver.call().stream_up("1")
    asks(call, event_id=None)
    assert asks(call, event_id=None) == []


@pytest.mark.parametrize("cut_first", [False, True])
def test_a_question_under_the_id_of_a_priming_event_is_asked_once(cut_first: bool) -> None:
    """The Rust SDK primes the standalone stream with the number of its first message, and replays inclusively."""
    driver = Driver().opened(standalone=True)
    stream = driver.standalone
    stream.event("0")
    if cut_first:
        stream.resumed()
    (number,) = asks(stream, event_id="0")
    answer(driver, number)
    stream.resumed()
    assert stream.asked == "0"
    stream.event("0")
    assert asks(stream, event_id="0") == []
    assert delivered(stream.event("1", note("next"))) == [note("next")]


@pytest.mark.parametrize("event_id", ["q", None])
def test_a_replayed_question_is_answered_from_what_the_host_said(driver: Driver, event_id: str | None) -> None:
    call = driver.call().stream_up("1", "2")
    (number,) = asks(call, event_id=None)
    call.resumed()
    call.event("2", call.progress(2))
    assert not delivered(call.event(event_id, question()))  # while the host thinks about it
    answer(driver, number)
    actions = call.event(event_id and "r", question())
    assert not delivered(actions)
    (post,) = of(actions, Post)
    assert post.message == {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}


def test_a_replayed_question_is_the_same_however_its_store_writes_it(driver: Driver) -> None:
    call = driver.call().stream_up("1")
    (number,) = asks(call, event_id=None, least=1.0)
    answer(driver, number)
    resumed(call)
    assert not asks(call, event_id=None, least=1, title=None)


@pytest.mark.parametrize("first", ["q", None])
@pytest.mark.parametrize("second", ["r", None])
def test_what_was_accepted_for_one_call_is_not_accepted_for_another_whose_stream_was_resumed(
    driver: Driver, first: str | None, second: str | None
) -> None:
    (number,) = asks(driver.call(cents=5).stream_up("1"), event_id=first)
    answer(driver, number)
    (other,) = asks(resumed(driver.call(cents=900)), event_id=second)
    assert other != number


def test_so_is_one_whose_event_says_that_it_is_the_same(driver: Driver) -> None:
    one, two = driver.call(cents=1).stream_up("1"), driver.call(cents=2)
    (first,) = asks(one, event_id="q")
    answer(driver, first)
    driver.machine._streams.index.clear()  # it is too long ago
    two.accept()
    (post,) = of(two.event("q", question()), Post)
    assert post.message["id"] == 1


@pytest.mark.parametrize("event_id", ["q", None])
@pytest.mark.parametrize("is_answered", [True, False])
def test_the_same_id_and_text_on_another_stream_is_another_question(
    driver: Driver, is_answered: bool, event_id: str | None
) -> None:
    """The server counts them per stream: what the host has accepted for one call it has not for the next."""
    one, two = driver.call(cents=1).stream_up("1"), driver.call(cents=2)
    two.accept()
    (first,) = asks(one, event_id=event_id)
    if is_answered:
        answer(driver, first)
    (second,) = asks(two, event_id="r" if event_id else None)
    assert second != first
    assert of(answer(driver, second), Post)


def test_nor_is_it_a_replay_in_a_json_answer_or_on_a_stream_that_was_never_cut(driver: Driver) -> None:
    call = driver.call().stream_up("1")
    (first,) = asks(call, event_id=None)
    answer(driver, first)
    (second,) = asks(call, event_id=None)
    answer(driver, second)
    other = driver.call("other")
    other.accept(events=False)
    assert len([m for m in delivered(other.body([question(), other.result()])) if "method" in m]) == 1


def test_an_event_that_is_another_asks_another_question_on_a_resumed_stream_too(driver: Driver) -> None:
    (first,) = asks(driver.call().stream_up("1"), event_id="q")
    answer(driver, first)
    (second,) = asks(resumed(driver.call("other")), event_id="r")
    assert second != first


def test_the_server_s_cancel_means_the_question_of_its_own_stream(driver: Driver) -> None:
    one, two = driver.call(cents=1).stream_up("1"), driver.call(cents=2)
    two.accept()
    (first,) = asks(one, event_id=None)
    (second,) = asks(two, event_id=None)
    for stream, number in ((one, first), (two, second)):
        (cancel,) = delivered(stream.event(None, cancel_of({"requestId": 1})))
        assert cancel["params"]["requestId"] == number


def test_an_answer_counts_once(driver: Driver) -> None:
    (number,) = asks(driver.call().stream_up("1"))
    answer(driver, number)
    actions = answer(driver, number)
    assert not of(actions, Post)
    assert reports(actions, NotificationLost) == [NotificationLost("response", "nobody asked")]


@pytest.mark.parametrize("number", [99, "q", None, 1.5])
def test_what_nobody_asked_is_not_posted(driver: Driver, number: Any) -> None:
    actions = answer(driver, number)
    assert not of(actions, Post)
    assert reports(actions, NotificationLost)


def test_the_id_1_is_not_the_id_one_in_quotes(driver: Driver) -> None:
    call = driver.call().stream_up("1")
    (number,) = asks(call, 1, None)
    (text,) = asks(call, "1", None)
    assert number != text
    (post,) = of(answer(driver, text), Post)
    assert post.message["id"] == "1"


def test_the_same_id_for_another_question_is_another_question(driver: Driver) -> None:
    call = driver.call().stream_up("1")
    (first,) = asks(call, 1, None)
    (second,) = asks(call, 1, None, other=True)
    for number in (second, first):
        (post,) = of(answer(driver, number), Post)
        assert post.message["id"] == 1


def test_a_question_of_another_session_is_asked_again_and_an_answer_to_the_old_one_not_posted() -> None:
    driver = Driver().opened()
    (old,) = asks(driver.call().stream_up("1"), 1, None)
    driver.request("tools/list").refuse(404)
    driver.reinitialized()
    actions = answer(driver, old)
    assert not of(actions, Post)
    assert reports(actions, NotificationLost) == [NotificationLost("response", "the session that asked is gone")]
    (new,) = asks(driver.call("other").stream_up("1"), 1, None)
    assert new != old
    assert of(answer(driver, new), Post)


def test_the_server_s_cancel_names_the_host_s_number(driver: Driver) -> None:
    call = driver.call().stream_up("1")
    (number,) = asks(call, "s")
    params = {"requestId": "s", "reason": "no more"}
    (cancel,) = delivered(
        call.event(None, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    )
    assert cancel["params"] == {"requestId": number, "reason": "no more"}


@pytest.mark.parametrize("params", [{"requestId": 5}, {}, None])
def test_a_cancel_of_what_was_never_asked_reaches_nobody(driver: Driver, params: Any) -> None:
    """The host would take the server's ID for one of ours."""
    call = driver.call().stream_up("1")
    assert not delivered(
        call.event(None, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    )


def test_the_next_process_answers_what_the_dead_one_was_asked() -> None:
    one = Process().connect()
    one.opened()
    call = one.call().stream_up("1", "2")
    one.drain(10)
    (number,) = asks(call, 1, "q")
    answer(one, number)
    (open_,) = asks(call, 2, "r")
    two = one.process.killed().connect()
    prove(two)
    resumed = two.peer(call.stream)
    resumed.accept()
    resumed.event("2", call.progress(2))
    actions = resumed.event("q", question(1))
    assert not delivered(actions)
    (post,) = of(actions, Post)
    assert post.message == {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}
    (again,) = delivered(resumed.event("r", question(2)))
    assert again["id"] != open_
    assert not delivered(resumed.event(None, cancel_of({"requestId": 1})))


def test_what_the_dead_process_was_asked_says_nothing_of_a_call_of_the_next() -> None:
    """It has the session, and the server counts from 1 again in each stream."""
    one = Process().connect()
    one.opened()
    call = one.call().stream_up("1", "2")
    one.drain(10)
    (number,) = asks(call, 1, "q")
    answer(one, number)
    two = one.process.killed().connect()
    prove(two)
    new = two.call(cents=2).stream_up("n1")
    assert len(asks(new, 1, "n2")) == 1
    new.resumed()
    new.event("n1", new.progress(1))
    new.event("n2", question(1))
    assert len(asks(new, 1, "n3")) == 1


@pytest.mark.parametrize("first", ["q", None])
@pytest.mark.parametrize("second", ["r", None])
@pytest.mark.parametrize("is_standalone", [True, False])
def test_what_was_accepted_for_one_call_of_the_dead_process_is_not_accepted_for_another(
    first: str | None, second: str | None, is_standalone: bool
) -> None:
    """The next process resumes that one's stream, too; only there does the server ask, under the same ID."""
    one = Process().connect()
    one.opened(standalone=is_standalone)
    book = one.call(cents=1).stream_up("1")
    (number,) = asks(book, event_id=first)
    answer(one, number)
    car = one.standalone.stream_up("c") if is_standalone else one.call(cents=2).stream_up("c")
    one.drain(10)
    two = one.process.killed().connect()
    prove(two)
    again = two.standalone if is_standalone else two.peer(car.stream)
    again.accept()
    again.event("c", again.progress(1))
    actions = again.event(second, question())
    assert [m["method"] for m in delivered(actions)] == ["elicitation/create"]
    assert not of(actions, Post)


def test_two_questions_with_one_id_on_two_streams_are_both_answered_in_the_next_process() -> None:
    one = Process().connect()
    one.opened()
    calls = [one.call(cents=cents).stream_up(f"{cents}") for cents in (1, 2)]
    for call, action in zip(calls, ("accept", "decline"), strict=True):
        (number,) = asks(call, event_id=None)
        one.submit({"jsonrpc": "2.0", "id": number, "result": {"action": action}})
    one.drain(10)
    two = one.process.killed().connect()
    prove(two)
    for cents, (call, action) in enumerate(zip(calls, ("accept", "decline"), strict=True), 1):
        resumed = two.peer(call.stream)
        resumed.accept()
        resumed.event(f"{cents}", call.progress(1))
        (post,) = of(resumed.event(None, question()), Post)
        assert post.message["result"] == {"action": action}


def test_a_record_that_does_not_say_where_it_was_asked_answers_nothing() -> None:
    """Earlier versions wrote none."""
    book, stream = Asked(), Stream(7, StreamKind.CALL, Trail({}), connection=Connection(1, resumed_from="e1"))
    book.restore((ServerAnswered(1, 1, asked._digest(question()), {"result": {}}),))
    assert book.seen(question(), 1, stream, None) is None


def test_an_answer_is_on_disk_before_it_leaves(driver: Driver) -> None:
    """It may be a consent: a process that dies between the two must not have the user asked again."""
    call = driver.call().stream_up("1")
    (number,) = asks(call)
    actions = [a for a in answer(driver, number) if isinstance(a, (Save, Post))]
    assert isinstance(actions[0], Save)
    assert isinstance(actions[0].records[0], ServerAnswered)
    assert actions[0].durable
    assert isinstance(actions[-1], Post)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "_KEPT", 2)
    book, stream = Asked(), Stream(7, StreamKind.CALL, Trail({}))
    for number in range(5):
        book.ask(question(number), 1, 100 + number, stream, None)
    assert book.answered({"id": 102}) is None
    assert book.answered({"id": 104}) is not None
    assert book.number_of(0, 1, stream) is None
    assert book.number_of(4, 1, stream) == 104
    assert book.number_of(4, 2, stream) is None
    known = tuple(ServerAnswered(1, f"r{n}", b"", {"result": {}}) for n in range(3))
    book.restore(known)
    assert book.number_of(4, 1, stream) is None


def stored_ids(actions: list[Action]) -> list[list[str | None]]:
    return [[row.event_id for row in moved.rows] for moved in records(actions, CursorMoved)]


def test_the_stored_cursor_does_not_pass_a_question_that_was_taken_and_not_answered(driver: Driver) -> None:
    """SDK 2.x takes messages before their handlers ran: a question that dies with the host must come again."""
    call = driver.call().stream_up("1")
    first, second = *asks(call, 1, "q1"), *asks(call, 2, "q2")
    call.event("2", call.progress(2))
    assert stored_ids(driver.drain(9)) == [["p", "1"]]
    assert stored_ids(taken(driver, answer(driver, second))) == [["p", "1"]]
    sent = answer(driver, first)
    assert stored_ids(sent) == [], "while it is on its way it may be lost with this process"
    assert stored_ids(taken(driver, sent)) == [["p", "1", "q1", "q2", "2"]]


@pytest.mark.parametrize("how", ["refused", "given up"])
def test_nor_for_ever_one_whose_answer_the_server_does_not_take(driver: Driver, how: str) -> None:
    call = driver.call().stream_up("1")
    (number,) = asks(call, 1, "q1")
    driver.drain(9)
    (post,) = of(answer(driver, number), Post)
    note = driver.peer(post.stream)
    actions = note.refuse(400)
    if how == "given up":
        driver = Driver(policy=GuardPolicy(max_attempts=1)).opened()
        call = driver.call().stream_up("1")
        (number,) = asks(call, 1, "q1")
        driver.drain(9)
        (post,) = of(answer(driver, number), Post)
        driver.peer(post.stream).cut()
        actions = driver.peer(post.stream).cut()
    assert stored_ids(actions) == [["p", "1", "q1"]]


def taken(driver: Driver, sent: list[Action]) -> list[Action]:
    (post,) = of(sent, Post)
    return driver.peer(post.stream).accept(status=202, events=False)


def test_a_question_that_the_server_withdraws_holds_the_cursor_back_no_longer(driver: Driver) -> None:
    call = driver.call().stream_up("1")
    asks(call, 1, "q1")
    driver.drain(9)
    call.event("c", cancel_of({"requestId": 1}))
    assert stored_ids(driver.drain(9)) == [["p", "1", "q1", "c"]]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_an_answer_that_a_busy_server_did_not_take_is_sent_again(driver: Driver, status: int) -> None:
    """The tool waits for it; and the server knows what it answers, if it should come twice."""
    call = driver.call().stream_up("1")
    (number,) = asks(call)
    (post,) = of(answer(driver, number), Post)
    actions = driver.peer(post.stream).refuse(status, retry_after=2.0)
    (again,) = of(actions, Post)
    assert (again.message, again.delay.at_least) == (post.message, 2.0)
    assert not reports(actions, NotificationLost)


@pytest.mark.parametrize("status", [400, 404, 405])
def test_one_that_is_refused_for_good_is_lost(driver: Driver, status: int) -> None:
    call = driver.call().stream_up("1")
    (number,) = asks(call)
    (post,) = of(answer(driver, number), Post)
    actions = driver.peer(post.stream).refuse(status)
    assert reports(actions, NotificationLost) == [NotificationLost("response", f"HTTP {status}")]


def test_nor_is_it_sent_for_ever_nor_a_notification_at_all(driver: Driver) -> None:
    call = driver.call().stream_up("1")
    (number,) = asks(call)
    (post,) = of(answer(driver, number), Post)
    for _ in range(driver.policy.max_attempts):
        assert not reports(driver.peer(post.stream).refuse(503), NotificationLost)
    assert reports(driver.peer(post.stream).refuse(503), NotificationLost)
    driver.notify("notifications/roots/list_changed")
    assert reports(driver.sent("notifications/roots/list_changed").refuse(503), NotificationLost)


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_answer_goes_out_while_its_session_is_only_suspected(is_lost: bool) -> None:
    driver = Driver().opened()
    call = driver.call()
    call.accept()
    number = delivered(driver.ask(call))[0]["id"]
    driver.request("prompts/list").refuse(404 if is_lost else 500)
    if not is_lost:
        driver.sent("ping").refuse(500)
    actions = driver.submit({"jsonrpc": "2.0", "id": number, "result": {}})
    sent = [post.headers["mcp-session-id"] for post in of(actions, Post) if "method" not in post.message]
    assert sent == ([] if is_lost else ["session-one"])
    assert bool(reports(actions, NotificationLost)) is is_lost


@pytest.mark.parametrize("when", ["asked", "answered"])
def test_what_is_asked_in_a_session_that_was_replaced_is_told_and_its_call_does_not_wait_for_it(when: str) -> None:
    driver = Driver().opened()
    call = driver.call()
    call.accept()
    if when == "answered":
        number = delivered(driver.ask(call))[0]["id"]
    driver.request("prompts/list").refuse(404)
    driver.reinitialized()
    if when == "asked":
        actions = driver.ask(call, 7, "elicitation/create")
    else:
        actions = driver.submit({"jsonrpc": "2.0", "id": number, "result": {}})
    assert reports(actions, NotificationLost)
    assert outcomes(actions) == [Outcome.IN_DOUBT]
    assert outcomes(call.event(None, call.result())) == [Outcome.RECOVERED]


def test_an_answer_to_what_nobody_s_call_has_asked_is_told_to_be_lost() -> None:
    driver = Driver().opened(standalone=True)
    number = delivered(driver.ask(driver.standalone))[0]["id"]
    driver.request("prompts/list").refuse(404)
    driver.reinitialized()
    actions = driver.submit({"jsonrpc": "2.0", "id": number, "result": {}})
    assert reports(actions, NotificationLost)
    assert not outcomes(actions)


def test_a_question_nested_as_deep_as_it_can_be_read_can_be_told_from_another() -> None:
    """The parser has more of the stack to itself than whoever looks at what it has read."""
    params: JSON = {}
    for _ in range(100_000):
        params = {"a": params}
    deep = [asked._digest({"method": method, "params": params}) for method in ("elicitation/create", "ping")]
    assert deep[0] != deep[1]


def test_an_answer_that_is_given_while_the_session_is_replaced_leaves_no_call_waiting() -> None:
    driver = Driver().opened()
    call = driver.call()
    call.accept()
    number = delivered(driver.ask(call))[0]["id"]
    driver.request("prompts/list").refuse(404)
    actions = driver.submit({"jsonrpc": "2.0", "id": number, "result": {}})
    assert reports(actions, NotificationLost)
    assert outcomes(actions) == [Outcome.IN_DOUBT]


@pytest.mark.parametrize("how", ["404", "never sent", "400", "401", "413"])
def test_nor_does_one_whose_post_fails_for_good(how: str) -> None:
    """A server that refuses it alone may have stopped waiting, and answer the call yet."""
    driver = Driver(GuardPolicy(max_attempts=1)).opened()
    call = driver.call()
    call.accept()
    number = delivered(driver.ask(call))[0]["id"]
    (post,) = of(driver.submit({"jsonrpc": "2.0", "id": number, "result": {}}), Post)
    peer = driver.peer(post.stream)
    actions = peer.not_written() + peer.not_written() if how == "never sent" else peer.refuse(int(how))
    assert [told.method for told in reports(actions, NotificationLost)] == ["response"]
    assert not outcomes(actions), "its tool may do without"
    assert driver.is_set(TimerKind.QUESTION, call.stream) is (how != "400")
    if how != "400":
        (told,) = reports(driver.elapse(TimerKind.QUESTION), CallSettled)
        word = "ConnectError" if how == "never sent" else f"HTTP {how}"
        assert told.outcome is Outcome.IN_DOUBT
        assert told.reason == f"what the server asked could not be answered ({word})"
    assert outcomes(call.event(None, call.result())) == [Outcome.COMPLETED if how == "400" else Outcome.RECOVERED]


def test_a_tool_that_does_without_is_answered(driver: Driver) -> None:
    call = driver.call()
    call.accept()
    number = delivered(driver.ask(call))[0]["id"]
    (post,) = of(answer(driver, number), Post)
    driver.peer(post.stream).refuse(403)
    assert outcomes(call.event(None, call.result())) == [Outcome.COMPLETED]
    assert not driver.elapse(TimerKind.QUESTION)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422])
def test_nobody_waits_for_the_answer_to_a_ping(driver: Driver, status: int) -> None:
    call = driver.call()
    call.accept()
    number = delivered(driver.ask(call, method="ping"))[0]["id"]
    (post,) = of(answer(driver, number), Post)
    assert reports(driver.peer(post.stream).refuse(status), NotificationLost)
    assert not driver.is_set(TimerKind.QUESTION, call.stream)
    assert outcomes(call.event(None, call.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("when", ["asked", "answered"])
def test_nor_in_a_session_that_was_replaced(driver: Driver, when: str) -> None:
    call = driver.call()
    call.accept()
    if when == "answered":
        number = delivered(driver.ask(call, method="ping"))[0]["id"]
    driver.request("prompts/list").refuse(404)
    driver.reinitialized()
    actions = driver.ask(call, method="ping") if when == "asked" else answer(driver, number)
    assert reports(actions, NotificationLost)
    assert outcomes(call.event(None, call.result())) == [Outcome.COMPLETED]


@pytest.mark.parametrize("is_answered", [True, False])
def test_what_another_stream_s_replay_has_asked_holds_the_position_of_its_own_back_too(is_answered: bool) -> None:
    """The call by whose replay it came is over: after a crash only the question's own stream asks it again."""
    driver = Driver().opened(standalone=True)
    own = driver.standalone
    own.event("s1", note("1"))
    own.event("s2", note("2"))
    call = driver.call().stream_up("e1", "e2")
    driver.drain(9)
    own.cut()
    call.resumed()
    call.event("e2", call.progress(2))
    (number,) = asks(call, event_id="q")
    call.event("e3", call.result())
    call.end()
    driver.drain(9)
    if is_answered:
        taken(driver, answer(driver, number))
    own.begin()
    own.accept()
    own.event("s2", note("2"))
    assert asks(own, event_id="q") == []
    own.event("s3", note("3"))
    driver.drain(9)
    moved = [row for row in records(driver.log, CursorMoved) if row.stream == "standalone"]
    assert moved[-1].rows[-1].event_id == ("s3" if is_answered else "s2")
    if not is_answered:
        taken(driver, answer(driver, number))
        own.event("s4", note("4"))
        driver.drain(9)
        moved = [row for row in records(driver.log, CursorMoved) if row.stream == "standalone"]
        assert moved[-1].rows[-1].event_id == "s4"
