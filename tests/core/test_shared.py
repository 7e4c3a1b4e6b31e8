"""What connections under one key know of each other is bounded, and comes back from the disk."""

from __future__ import annotations

import pytest
from attrs import evolve

from mcp_client_guard.core import latch
from mcp_client_guard.core.doubt import CallInDoubt
from mcp_client_guard.core.latch import Doubt
from mcp_client_guard.core.ledger import Call
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.rounds import Round
from mcp_client_guard.core.shared import Named, SharedLedger
from mcp_client_guard.core.stored import StoredCall
from tests.core.scenes import WALL, Process

POLICY = GuardPolicy()


def doubt(call_key: str, at: float = 0.0) -> Doubt:
    return Doubt(call_key, CallInDoubt("lost", "tools/call", "charge", call_key, "-"), at, at)


def keys(ledger: SharedLedger, digest: bytes = b"d", now: float = 0.0) -> list[str]:
    return [d.call_key for d in ledger.doubted(digest, POLICY, now)]


@pytest.fixture
def row() -> StoredCall:
    """Of a call in flight."""
    one = Process().connect()
    one.opened()
    one.named("order", cents=1)
    return one.process.disk.call


def restored(*rows: StoredCall, now: float = 500.0) -> SharedLedger:
    ledger = SharedLedger()
    ledger.restore(rows, WALL + now, now)
    return ledger


def test_calls_in_doubt_are_told_apart_by_their_key_and_expire_one_by_one() -> None:
    ledger = SharedLedger()
    ledger.doubt(b"d", doubt("a", 0))
    ledger.doubt(b"d", doubt("b", 30))
    ledger.doubt(b"d", doubt("a", 40))
    assert keys(ledger, now=59) == ["b", "a"]
    assert keys(ledger, now=95) == ["a"]
    assert keys(ledger, now=100) == []
    ledger.resolved(b"d", "a", 0)


def test_a_doubt_expires_by_the_clock_of_the_event_loop_that_is_run_now() -> None:
    ledger = SharedLedger()
    ledger.doubt(b"d", doubt("a", 10))
    ledger.shift(1000)
    assert keys(ledger, now=1069) == ["a"]
    assert keys(ledger, now=1071) == []


def test_a_consent_is_older_than_what_comes_into_doubt_on_the_next_event_loop() -> None:
    ledger = SharedLedger()
    ledger.open_round(Round(b"k", "a", named=False, consented_at=2000))
    ledger.shift(-1500)
    waiting = ledger.take_round(b"k", None)
    assert waiting is not None
    assert waiting.consented_at == 500


def test_of_calls_that_stop_alike_only_the_one_of_that_name_was_told_to_another_host() -> None:
    ledger = SharedLedger()
    for key in ("a", "b"):
        ledger.open_round(Round(b"k", key, named=True))
    ledger.told_as_well(b"k", "b")
    waiting = [ledger.take_round(b"k", key) for key in ("a", "b")]
    assert [one and one.others for one in waiting] == [0, 1]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latch, "_KEPT", 2)
    monkeypatch.setattr(latch, "KEPT_ALIKE", 16)
    ledger = SharedLedger()
    for number in range(40):
        ledger.doubt(b"same", doubt(f"k{number}"))
    assert len(keys(ledger, b"same")) == 16
    for number in range(3):
        ledger.doubt(bytes([number]), doubt("k"))
        ledger.consent(f"k{number}")
    assert keys(ledger, b"same") == []
    assert keys(ledger, bytes([2])) == ["k"]
    call = Call(1, None, "tools/call", "charge", {}, "", True, 1)
    assert not ledger.consented(call, "k0", None)
    assert ledger.consented(call, "k2", None)
    assert not ledger.consented(call, "k2", None)


def test_as_many_names_are_kept_as_the_store_keeps_calls() -> None:
    ledger = SharedLedger(keep_names=5000)
    for number in range(5001):
        ledger.name(f"k{number}", Named(f"k{number}", b"d"))
    assert len(ledger.names) == 5000
    assert "k0" not in ledger.names


def test_a_name_in_flight_is_never_forgotten() -> None:
    ledger = SharedLedger(keep_names=1)
    for number in range(3):
        call = Call(number, None, "tools/call", "charge", {}, "", True, 1)
        ledger.name(f"k{number}", Named(f"k{number}", b"d", call))
    assert len(ledger.names) == 3


def test_a_call_found_without_an_outcome_is_in_doubt_from_now_on(row: StoredCall) -> None:
    ledger = restored(row)
    digest = row.arguments_digest
    assert keys(ledger, digest, 559) == ["order"]
    told = ledger.names["order"].told
    assert told is not None
    assert told.reason == "its process died"


@pytest.mark.parametrize(
    ("outcome", "reason", "in_doubt"),
    [
        (Outcome.IN_DOUBT, "its connection was lost", True),
        (Outcome.IN_DOUBT, "its session is gone; no other could be opened: ConnectError before it was sent", True),
        (Outcome.CANCELLED, "cancelled by the caller", True),
        (Outcome.CANCELLED, "cancelled by the caller before it was sent", False),
        (Outcome.NOT_EXECUTED, "by server: HTTP 413", False),
    ],
)
def test_a_call_is_in_doubt_for_what_is_left_of_the_window(
    row: StoredCall, outcome: Outcome, reason: str, in_doubt: bool
) -> None:
    settled = evolve(row, outcome=outcome, reason=reason, settled_at=WALL + 490)
    ledger = restored(settled)
    assert bool(keys(ledger, row.arguments_digest, 549)) is in_doubt
    assert keys(ledger, row.arguments_digest, 551) == []
    assert (ledger.names["order"].told is not None) is in_doubt
    assert ledger.names["order"].call is None


def test_a_clock_that_was_set_back_prolongs_nothing(row: StoredCall) -> None:
    ledger = restored(evolve(row, outcome=Outcome.IN_DOUBT, reason="lost", settled_at=WALL + 9000))
    assert keys(ledger, row.arguments_digest, 561) == []


def test_the_newest_row_of_a_name_counts_and_an_earlier_one_is_in_doubt_still(row: StoredCall) -> None:
    lost = evolve(row, outcome=Outcome.IN_DOUBT, reason="lost", settled_at=WALL + 490)
    answer = {"jsonrpc": "2.0", "result": {}}
    again = evolve(row, outcome=Outcome.COMPLETED, reason="answered", settled_at=WALL + 495, answer=answer)
    ledger = restored(lost, again)
    assert keys(ledger, row.arguments_digest, 500) == ["order"]
    assert (ledger.names["order"].answer, ledger.names["order"].told) == (answer, None)


def test_a_name_whose_answer_was_not_kept_is_not_sent_again(row: StoredCall) -> None:
    ledger = restored(evolve(row, outcome=Outcome.COMPLETED, reason="answered", settled_at=WALL))
    told = ledger.names["order"].told
    assert told is not None
    assert told.reason == "it was answered, but its answer was not kept"


def test_a_call_without_side_effects_is_never_in_doubt_for_others(row: StoredCall) -> None:
    ledger = restored(evolve(row, may_have_side_effects=False, named=False))
    assert keys(ledger, row.arguments_digest, 500) == []
    assert not ledger.names


@pytest.mark.parametrize("by_consent", [True, False])
def test_only_what_repeats_a_call_by_consent_stands_back_for_what_that_has_come_to(by_consent: bool) -> None:
    ledger = SharedLedger()
    call, other = (Call(n, None, "tools/call", "charge", {}, "order-17", True, 1, first_wire_id=n) for n in (1, 2))
    before = Named("order-17", b"d")
    other.stood_for = before if by_consent else None
    ledger.name("order-17", Named("order-17", b"d", other))
    known = Named("order-17", b"d", None, {"result": {}})
    ledger.settled(call, known)
    assert other.stood_for is (known if by_consent else None)
