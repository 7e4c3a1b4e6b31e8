"""The ledger: IDs mapped both ways, every call settled once, late answers still known."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core import ledger as ledger_module
from mcp_client_guard.core.ledger import Call, Ledger, arguments_digest
from mcp_client_guard.core.meta import CALL_KEY, host_token_of, subscription_of, to_wire, with_subscription
from mcp_client_guard.core.model import Outcome

from .driver import Driver

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def call_of(wire_id: int, host_id: Any = "h", method: str = "tools/call", token: Any = None) -> Call:
    return Call(wire_id, host_id, method, "charge", {}, "key", True, 1, host_token=token)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(first_wire_id=10)


def test_wire_ids_are_never_used_twice_and_known_as_ours(ledger: Ledger) -> None:
    assert [ledger.new_wire_id() for _ in range(3)] == [10, 11, 12]
    assert [ledger.was_issued(i) for i in (9, 10, 12, 13, "11", 11.0)] == [False, True, True, False, True, True]


@pytest.mark.parametrize("foreign", [None, True, "x", "1" * 17, 10.5, [10], {"id": 10}, "", "\uff11\uff10"])
def test_what_is_no_id_of_ours_belongs_to_no_call(ledger: Ledger, foreign: object) -> None:
    ledger.admit(call_of(ledger.new_wire_id()))
    assert ledger.owing(foreign) is None
    assert not ledger.was_issued(foreign)


@pytest.mark.parametrize("spelling", [10, "10", 10.0])
def test_a_server_may_send_the_id_back_as_text_or_float(ledger: Ledger, spelling: object) -> None:
    call = call_of(ledger.new_wire_id())
    ledger.admit(call)
    assert ledger.owing(spelling) is call


@pytest.mark.parametrize("host_id", [[1], None, {"a": 1}])
def test_an_id_that_no_host_can_have_used_names_no_call(ledger: Ledger, host_id: object) -> None:
    assert ledger.by_host_id(host_id) is None


@pytest.mark.parametrize("outcome", [Outcome.IN_DOUBT, Outcome.CANCELLED])
def test_a_call_without_an_answer_is_kept_for_a_late_one(ledger: Ledger, outcome: Outcome) -> None:
    call = call_of(ledger.new_wire_id())
    ledger.admit(call)
    ledger.settle(call, outcome)
    assert not call.in_flight
    assert ledger.owing(10) is call
    ledger.settle(call, Outcome.RECOVERED)
    assert ledger.owing(10) is None


@pytest.mark.parametrize("outcome", [Outcome.IN_DOUBT, Outcome.CANCELLED])
def test_of_a_call_that_is_kept_the_arguments_are_not(outcome: Outcome) -> None:
    driver = Driver().opened()
    large = "x" * 1000
    call = driver.call(file=large)
    call.accept()
    if outcome is Outcome.CANCELLED:
        driver.cancel(call)
    call.cut()
    kept = driver.machine._calls.ledger.owing(call.stream)
    assert kept is not None
    assert kept.outcome is outcome
    assert large not in repr((kept.params, kept.sent, kept.listed))


def test_what_names_a_task_is_kept(ledger: Ledger) -> None:
    call = call_of(ledger.new_wire_id(), method="tasks/result")
    call.params = {"taskId": "t", "_meta": {"large": True}}
    ledger.admit(call)
    ledger.settle(call, Outcome.IN_DOUBT)
    assert call.params == {"taskId": "t"}


def test_a_call_with_its_answer_is_owed_nothing(ledger: Ledger) -> None:
    call = call_of(ledger.new_wire_id())
    ledger.admit(call)
    assert ledger.in_flight() == [call]
    ledger.settle(call, Outcome.COMPLETED)
    assert ledger.owing(10) is None
    assert ledger.by_host_id("h") is None
    assert ledger.in_flight() == []


def test_a_host_id_used_again_names_the_newer_call(ledger: Ledger) -> None:
    first, second = call_of(ledger.new_wire_id()), call_of(ledger.new_wire_id())
    ledger.admit(first)
    ledger.admit(second)
    ledger.settle(first, Outcome.COMPLETED)
    assert ledger.by_host_id("h") is second


def test_our_own_pings_have_no_host_id(ledger: Ledger) -> None:
    ping = call_of(ledger.new_wire_id(), host_id=None)
    ledger.admit(ping)
    ledger.settle(ping, Outcome.NOT_EXECUTED)
    assert ledger.in_flight() == []


def test_calls_in_doubt_are_bounded_and_the_oldest_forgotten(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_MAX_IN_DOUBT", 2)
    for _ in range(3):
        ledger.settle(call_of(ledger.new_wire_id()), Outcome.IN_DOUBT)
    assert [ledger.owing(i) is not None for i in (10, 11, 12)] == [False, True, True]


# On the wire.


@pytest.mark.parametrize(
    ("message", "call", "wire"),
    [
        ({"id": "h", "method": "ping"}, call_of(5, method="ping"), {"id": 5, "method": "ping"}),
        (
            {"id": "h", "method": "ping", "params": {"_meta": {"progressToken": "t"}}},
            call_of(5, method="ping", token="t"),
            {"id": 5, "method": "ping", "params": {"_meta": {"progressToken": 5}}},
        ),
        (
            {"id": "h", "method": "tools/call", "params": {"name": "charge"}},
            call_of(5),
            {"id": 5, "method": "tools/call", "params": {"name": "charge", "_meta": {CALL_KEY: "key"}}},
        ),
        (
            {"id": "h", "method": "tools/call"},
            call_of(5),
            {"id": 5, "method": "tools/call", "params": {"_meta": {CALL_KEY: "key"}}},
        ),
        (
            {"id": "h", "method": "x", "params": {"_meta": {"trace": "1"}}},
            call_of(5, method="x"),
            {"id": 5, "method": "x", "params": {"_meta": {"trace": "1"}}},
        ),
    ],
)
def test_a_request_goes_out_with_our_id_our_token_and_the_call_key(
    message: dict[str, Any], call: Call, wire: dict[str, Any]
) -> None:
    before = repr(message)
    assert to_wire(message, call) == wire
    assert repr(message) == before, "the host's message is not ours to change"


@pytest.mark.parametrize(
    ("message", "token"),
    [
        ({"params": {"_meta": {"progressToken": "t"}}}, "t"),
        ({"params": {"_meta": {"progressToken": 0}}}, 0),
        ({"params": {"_meta": {"progressToken": [1]}}}, None),
        ({"params": {"_meta": 7}}, None),
        ({"params": {}}, None),
        ({}, None),
    ],
)
def test_the_host_s_progress_token(message: dict[str, Any], token: Any) -> None:
    assert host_token_of(message) == token


@pytest.mark.parametrize("part", ["params", "result"])
def test_a_subscription_message_names_its_request_and_can_name_the_host_s(part: str) -> None:
    message = {part: {"x": 1, "_meta": {SUBSCRIPTION: 5, "y": 2}}}
    assert subscription_of(message) == 5
    assert with_subscription(message, "h") == {part: {"x": 1, "_meta": {SUBSCRIPTION: "h", "y": 2}}}


@pytest.mark.parametrize("message", [{}, {"params": {}}, {"params": {"_meta": None}}, {"result": "x"}])
def test_other_messages_name_no_subscription(message: dict[str, Any]) -> None:
    assert subscription_of(message) is None


def test_the_digest_of_arguments_ignores_the_order_of_keys_and_nothing_else() -> None:
    one = arguments_digest({"name": "t", "arguments": {"a": 1, "b": "\ud800"}})
    assert one == arguments_digest({"arguments": {"b": "\ud800", "a": 1}, "name": "t", "_meta": {}})
    assert one != arguments_digest({"name": "u", "arguments": {"a": 1, "b": "\ud800"}})
    assert one != arguments_digest({"name": "t", "arguments": {"a": 2, "b": "\ud800"}})
