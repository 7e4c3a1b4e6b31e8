"""What both stores promise of answers, tasks, repeats, and of forgetting, on both event loops."""

from __future__ import annotations

import time
from typing import Any

import pytest
from attrs import evolve

from mcp_client_guard._errors import StoreOwnershipLost
from mcp_client_guard.core.model import (
    AnswerDrained,
    CallNamed,
    CallRepeated,
    CallSent,
    CallSettled,
    ConsentSpent,
    CursorDropped,
    Generation,
    GenerationFound,
    Outcome,
    OutcomeTold,
    Record,
    SessionEnded,
    TaskEnded,
    Told,
    digest_of,
)
from mcp_client_guard.stores import Store, StoredCall, _keep
from mcp_client_guard.stores._keep import SERVER_ANSWERS
from tests.stores.conftest import MakeStore, claimed
from tests.stores.records import TASK, moved, opened, replied, sent, settled, task

pytestmark = pytest.mark.anyio

ANSWER = {"result": {"content": [{"type": "text", "text": "42 \ud800\0"}], "isError": False}}
KEPT = 3
OTHER = {"error": {"code": -32602, "message": "no"}}


async def call(store: Store, wire_id: int = 1) -> StoredCall:
    (found,) = [call for call in await store.calls() if call.wire_id == wire_id]
    return found


async def test_a_call_that_was_only_sent_has_neither_answer_nor_task(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1), sent(2, named=True)])
    row = await call(store)
    assert (row.named, row.answer, row.repeats) == (False, None, 0)
    assert (row.task_id, row.task_is_extension, row.task_open) == (None, False, False)
    assert (await call(store, 2)).named
    await claim.release()


async def test_an_answer_is_kept_until_it_is_drained(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1), sent(2)])
    await claim.write(1, [settled(1, answer=ANSWER), settled(2, answer=OTHER)])
    assert (await call(store)).answer == ANSWER
    await claim.write(1, [AnswerDrained(1, 1)])
    row = await call(store)
    assert (row.answer, row.outcome, row.reason) == (None, Outcome.COMPLETED, "answered")
    assert (await call(store, 2)).answer == OTHER
    await claim.release()


async def test_a_later_outcome_keeps_the_answer_unless_it_brings_one(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1), settled(1, answer=ANSWER)])
    await claim.write(1, [settled(1, Outcome.CANCELLED, "by the caller")])
    row = await call(store)
    assert (row.outcome, row.reason, row.answer) == (Outcome.CANCELLED, "by the caller", ANSWER)
    await claim.write(1, [settled(1, Outcome.RECOVERED, "late", OTHER)])
    row = await call(store)
    assert (row.outcome, row.reason, row.answer) == (Outcome.RECOVERED, "late", OTHER)
    await claim.release()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("records", "kept"),
    [
        ([settled(1, answer=ANSWER), AnswerDrained(1, 1)], None),
        ([AnswerDrained(1, 1), settled(1, answer=ANSWER)], ANSWER),
        ([settled(1, answer=ANSWER), AnswerDrained(1, 1), settled(1, answer=OTHER)], OTHER),
        ([settled(1, answer=ANSWER), AnswerDrained(1, 1), settled(1)], None),
        ([settled(1, answer=ANSWER), AnswerDrained(1, 2), AnswerDrained(2, 1)], ANSWER),
    ],
)
async def test_one_batch_or_several_end_alike(store: Store, records: list[Any], kept: Any, together: bool) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1), sent(2), settled(2)])
    await claim.write(2, [sent(1), settled(1)])
    for batch in [records] if together else [[record] for record in records]:
        await claim.write(1, batch)
    (row, *_) = await store.calls()
    assert (row.answer, row.outcome) == (kept, Outcome.COMPLETED)
    await claim.release()


async def test_an_answer_of_any_size_is_kept_whole(store: Store) -> None:
    claim = await claimed(store)
    large = {"result": {"content": [{"type": "text", "text": "x" * (5 << 20)}]}}
    await claim.write(1, [sent(1), settled(1, answer=large)])
    assert (await call(store)).answer == large
    await claim.release()


async def test_a_task_is_open_until_it_ends_and_known_after(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1), sent(2), task(1), task(2, "\ud800", is_extension=True)], durable=True)
    row = await call(store)
    assert (row.task_id, row.task_is_extension, row.task_open) == (TASK, False, True)
    await claim.write(1, [TaskEnded(1, 1)])
    row = await call(store)
    assert (row.task_id, row.task_open) == (TASK, False)
    row = await call(store, 2)
    assert (row.task_id, row.task_is_extension, row.task_open) == ("\ud800", True, True)
    await claim.release()


async def test_a_repeat_counts_on_the_newest_row_of_its_call_key(store: Store) -> None:
    orders, mail = await claimed(store, "orders"), await claimed(store, "mail")
    await orders.write(1, [sent(1, call_key="order-17"), sent(2)])
    await orders.write(2, [sent(3, call_key="order-17"), sent(4)])
    await mail.write(1, [sent(5, call_key="order-17")])
    await orders.write(1, [CallRepeated("order-17"), CallRepeated("never sent"), CallRepeated("order-17")])
    assert {row.wire_id: row.repeats for row in await store.calls()} == {1: 0, 2: 0, 3: 2, 4: 0, 5: 0}
    await orders.release()
    await mail.release()


async def test_who_has_been_told_only_ever_grows(store: Store) -> None:
    claim, other = await claimed(store), await claimed(store, "mail")
    row = CallSettled(1, 1, Outcome.RECOVERED, "replayed", ANSWER, Told.NOBODY)
    await claim.write(1, [sent(1, call_key="order-17"), row])
    await claim.write(2, [sent(1, call_key="order-17"), row, sent(2), settled(2)])
    await other.write(1, [sent(1, call_key="order-17"), row])
    await claim.write(9, [OutcomeTold("order-17", Told.LISTED), OutcomeTold("never sent", Told.CALLER)])
    told = {(c.key, c.slot, c.wire_id): c.told for c in await store.calls()}
    assert told == {
        ("orders", 1, 1): Told.LISTED,
        ("orders", 2, 1): Told.LISTED,
        ("orders", 2, 2): Told.CALLER,
        ("mail", 1, 1): Told.NOBODY,
    }
    await claim.write(9, [OutcomeTold("order-17", Told.CALLER), OutcomeTold("order-17", Told.LISTED)])
    assert {c.told for c in await store.calls("orders")} == {Told.CALLER}
    await claim.release()
    await other.release()


async def test_an_outcome_is_dated_from_when_somebody_was_told_where_repeats_are_held_back_from_then_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a call that may have run, or whose answer was listed: the window of the latch begins with that."""
    day = 86_400.0
    claim = await claimed(store)
    outcomes = (Outcome.IN_DOUBT, Outcome.CANCELLED, Outcome.COMPLETED, Outcome.RECOVERED)
    for slot, outcome in enumerate(outcomes, 1):
        row = CallSettled(1, 1, outcome, "", None, Told.NOBODY)
        await claim.write(slot, [sent(1, call_key=f"key-{slot}"), row])
        await claim.write(10 + slot, [sent(1, call_key=f"drained-{slot}"), row])
    begun = (await store.calls())[0].settled_at
    assert begun is not None
    monkeypatch.setattr("time.time", lambda now=time.time: now() + day)
    await claim.write(9, [OutcomeTold(f"key-{slot}", Told.LISTED) for slot in (1, 4)])
    for slot in range(1, 5):
        await claim.write(10 + slot, [AnswerDrained(1, 1)])
    later = [(c.call_key, c.settled_at) for c in await store.calls() if (c.settled_at or 0) > begun + day / 2]
    assert [key for key, _ in later] == ["key-1", "drained-1", "drained-2", "key-4"]
    monkeypatch.setattr("time.time", lambda now=time.time: now() + day)
    await claim.write(9, [OutcomeTold(f"key-{slot}", Told.CALLER) for slot in (1, 4)])
    again = [(c.call_key, c.settled_at) for c in await store.calls() if (c.settled_at or 0) > begun + day / 2]
    assert again == later, "once"
    await claim.release()


async def test_an_answer_that_was_taken_goes_and_no_other(store: Store) -> None:
    claim = await claimed(store)
    row = CallSettled(1, 1, Outcome.RECOVERED, "late", ANSWER, Told.NOBODY)
    for slot, call_key in enumerate(("taken", "told", "other"), 1):
        await claim.write(slot, [sent(1, call_key=call_key), row])
    await claim.write(4, [sent(1, call_key="taken"), evolve(row, told=Told.CALLER)])
    await claim.write(9, [OutcomeTold("taken", Told.LISTED), OutcomeTold("told", Told.CALLER)])
    assert [c.answer for c in await store.calls()] == [ANSWER] * 4
    await claim.write(9, [OutcomeTold("taken", Told.CALLER, taken=True)])
    assert [c.answer for c in await store.calls()] == [None, ANSWER, ANSWER, ANSWER]
    await claim.release()


@pytest.mark.parametrize("origin", ["https://one", "https://moved"])
async def test_what_is_said_of_a_call_key_is_said_of_this_principal_s_at_any_endpoint(
    store: Store, origin: str
) -> None:
    """Two users may name their calls alike."""
    row = CallSettled(1, 1, Outcome.IN_DOUBT, "lost", None, Told.NOBODY)
    for slot, principal in enumerate(("a", "b", None), 1):
        claim = await store.claim("orders", origin="https://one", principal=principal)
        await claim.write(slot, [sent(1, call_key="order-1"), row])
        await claim.release()
    claim = await store.claim("orders", origin=origin, principal="a")
    said = [OutcomeTold("order-1", Told.CALLER), CallRepeated("order-1"), ConsentSpent("order-1")]
    await claim.write(9, [*said, CallNamed("order-1", "n")])
    await claim.release()
    assert [(c.told, c.repeats, c.consent_spent, c.also_named) for c in await store.calls()] == [
        (Told.CALLER, 1, True, "n"),
        (Told.NOBODY, 0, False, None),
        (Told.NOBODY, 0, False, None),
    ]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kept", [True, False])
async def test_an_answer_that_is_drained_is_told_and_may_be_kept(store: Store, kept: bool, together: bool) -> None:
    claim = await claimed(store)
    records = [CallSettled(1, 1, Outcome.COMPLETED, "", ANSWER, Told.NOBODY), AnswerDrained(1, 1, kept)]
    await claim.write(1, [sent(1)])
    for batch in [records] if together else [[record] for record in records]:
        await claim.write(1, batch)
    row = await call(store)
    assert (row.told, row.answer) == (Told.CALLER, ANSWER if kept else None)
    await claim.release()


async def test_a_consent_is_spent_on_the_newest_row_of_its_call_key(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1, call_key="k"), sent(2, call_key="k"), sent(3)])
    await claim.write(2, [ConsentSpent("k"), ConsentSpent("never sent")])
    assert [row.consent_spent for row in await store.calls()] == [False, True, False]
    await claim.release()


async def test_a_name_is_given_to_the_newest_row_of_a_call_key_and_forgotten_with_it(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1, call_key="k"), sent(2, call_key="k"), sent(3)])
    await claim.write(2, [CallNamed("k", "order-17"), CallNamed("never sent", "order-18")])
    assert [row.also_named for row in await store.calls()] == [None, "order-17", None]
    assert await claim.forget("order-17") == 1
    assert [row.wire_id for row in await store.calls()] == [1, 3]
    await claim.release()


async def test_each_claim_of_a_key_is_one_epoch_later_than_the_last(store: Store) -> None:
    epochs = []
    for key in ("orders", "mail", "orders", "orders"):
        claim = await claimed(store, key)
        epochs.append(claim.epoch)  # type: ignore[attr-defined]
        await claim.release()
    first = epochs[0]
    assert epochs == [first, first, first + 1, first + 2]


async def test_of_what_is_finished_only_the_newest_row_of_each_session_is_left(store: Store) -> None:
    claim, other = await claimed(store), await claimed(store, "mail")
    ping = evolve(sent(9), method="ping")
    untold = CallSettled(1, 2, Outcome.IN_DOUBT, "cut", told=Told.NOBODY)
    await claim.write(1, [sent(1), sent(2), sent(3), sent(4), sent(5), ping])
    await claim.write(1, [settled(1), untold, settled(3), task(3), settled(4), settled(5), settled(9)])
    await claim.write(2, [sent(6), sent(7), settled(7), sent(8, incarnation=2)])
    await other.write(1, [sent(10)])
    left = await store.unfinished("orders")  # type: ignore[attr-defined]
    assert [row.wire_id for row in left] == [2, 3, 5, 6, 7, 8]
    assert [row for row in await store.calls("orders") if row in left] == left
    await claim.release()
    await other.release()


async def test_of_a_call_that_is_unfinished_every_sending_is_left(store: Store) -> None:
    claim = await claimed(store)
    again = evolve(sent(2), call_key=sent(1).call_key)
    await claim.write(1, [sent(1), CallSettled(1, 1, Outcome.RESENT, "sent again"), again, sent(3), settled(3)])
    left = await store.unfinished("orders")  # type: ignore[attr-defined]
    assert [row.wire_id for row in left] == [1, 2, 3]
    await claim.write(1, [settled(2)])
    left = await store.unfinished("orders")  # type: ignore[attr-defined]
    assert [row.wire_id for row in left] == [3]
    await claim.release()


async def test_what_was_found_is_remembered_of_the_endpoint(store: Store) -> None:
    async def found(origin: str, *records: Any) -> Generation | None:
        claim = await store.claim("orders", origin=origin, principal=None)
        before = claim.found  # type: ignore[attr-defined]
        await claim.write(1, records)
        await claim.release()
        return before

    stateless = GenerationFound(Generation.STATELESS_HTTP)
    assert await found("https://one", stateless) is None
    assert await found("https://one") is Generation.STATELESS_HTTP
    assert await found("https://two") is None
    assert await found("https://one", GenerationFound(None)) is Generation.STATELESS_HTTP
    assert await found("https://one") is None


async def test_no_number_of_reads_pushes_out_what_a_repeat_must_be_known_by(make_store: MakeStore) -> None:
    """`keep_calls` holds for each kind by itself."""
    store = make_store(keep_calls=KEPT)
    claim = await claimed(store)
    await claim.write(1, [sent(1), settled(1, Outcome.IN_DOUBT), read(2, named=True), settled(2)])
    for wire_id in range(3, 3 + 2 * KEPT):
        await claim.write(1, [read(wire_id), settled(wire_id)])
    await claim.release()
    await (await claimed(store)).release()
    kept = [row.wire_id for row in await store.calls()]
    assert kept[:2] == [1, 2]
    assert len(kept) == KEPT + 2


async def pruned(store: Store, *records: Record) -> list[int]:
    """The calls that are left of these and of three more, the last of which is settled and told."""
    claim = await claimed(store)
    await claim.write(1, records)
    for wire_id in range(97, 100):
        await claim.write(1, [sent(wire_id), settled(wire_id)])
    await claim.release()
    await (await claimed(store)).release()
    return [row.wire_id for row in await store.calls()]


@pytest.mark.parametrize("outcome", [Outcome.IN_DOUBT, Outcome.CANCELLED])
@pytest.mark.parametrize(("is_over", "kept"), [(False, [1, 99]), (True, [99])])
async def test_no_number_of_calls_pushes_out_a_doubt_within_the_hour(
    make_store: MakeStore, outcome: Outcome, is_over: bool, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_over:
        monkeypatch.setattr(_keep, "_UNSURE_SECONDS", -1.0)
    assert await pruned(make_store(keep_calls=1), sent(1), settled(1, outcome)) == kept


async def test_no_number_of_calls_pushes_out_what_somebody_is_to_be_told(make_store: MakeStore) -> None:
    untold = CallSettled(1, 1, Outcome.RECOVERED, "replayed", ANSWER, Told.NOBODY)
    assert await pruned(make_store(keep_calls=1), sent(1), untold) == [1, 99]


@pytest.mark.parametrize(("keep_days", "kept"), [(30, [3, 4, 98, 99]), (1e-12, [])])
async def test_of_doubts_as_many_again_are_kept_as_of_others_and_none_beyond_the_age(
    make_store: MakeStore, keep_days: float, kept: list[int]
) -> None:
    doubts = [record for n in range(5) for record in (sent(n), settled(n, Outcome.IN_DOUBT))]
    assert await pruned(make_store(keep_calls=2, keep_days=keep_days), *doubts) == kept


def read(wire_id: int, *, named: bool = False) -> CallSent:
    return CallSent(1, wire_id, "tools/list", None, f"key-{wire_id}", digest_of(b"{}"), False, named)


@pytest.mark.parametrize(
    "record",
    [settled(9, answer=ANSWER), AnswerDrained(1, 9), task(9), TaskEnded(1, 9)],
    ids=lambda r: type(r).__name__,
)
async def test_what_is_said_of_an_unknown_call_is_ignored(store: Store, record: Any) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1)])
    before = await store.calls()
    await claim.write(1, [record])
    assert await store.calls() == before
    await claim.release()


async def test_an_answer_to_the_server_is_read_as_it_was_written(store: Store) -> None:
    claim = await claimed(store)
    of_first = (
        replied(1),
        replied("1"),
        replied("a\ud800", event_id="e\ud800"),
        replied(1, OTHER, stream=0),
        replied(1, stream=8, event_id=None),
        replied(1, event_id=None),
        replied(1, stream=None),
    )
    of_second = replied(2, incarnation=2)
    await claim.write(1, [opened(1), opened(2), *of_first, of_second])
    first, second = await store.sessions()
    assert first.answers == of_first, "one ID on two streams, or in two events, is two requests"
    assert second.answers == (of_second,)
    await claim.release()


async def test_a_second_answer_to_a_request_replaces_the_first_and_is_the_newest(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened(), replied(1), replied(2)])
    other = evolve(replied(1, OTHER), digest=digest_of(b"other"))
    await claim.write(1, [other])
    (session,) = await store.sessions()
    assert session.answers == (replied(2), other)
    await claim.release()


async def test_the_newest_answers_to_the_server_are_kept_of_each_session(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened(1), opened(2), replied("other", incarnation=2)])
    await claim.write(1, [replied(number) for number in range(SERVER_ANSWERS + 3)])
    first, second = await store.sessions()
    assert [known.request_id for known in first.answers] == list(range(3, SERVER_ANSWERS + 3))
    assert [known.request_id for known in second.answers] == ["other"]
    await claim.release()


async def test_answers_to_the_server_end_with_their_session(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened(1), opened(2), replied(1), replied(2, incarnation=2), SessionEnded(1, "404")])
    await claim.write(1, [replied(3), replied(4, incarnation=9)])
    await claim.write(1, [opened(9)])
    ids = [[known.request_id for known in session.answers] for session in await store.sessions()]
    assert ids == [[], [2], []]
    await claim.release()


async def test_a_session_was_last_used_when_it_opened_called_or_moved_a_cursor(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened(1), opened(2)])
    at_first = await store.sessions()
    assert [session.last_used_at for session in at_first] == [session.opened_at for session in at_first]
    before = time.time()
    await claim.write(1, [sent(1)])
    called, idle = await store.sessions()
    assert called.last_used_at == (await call(store)).sent_at
    between = time.time()
    await claim.write(1, [moved(1), moved(1, stream="post-1")])
    cursor, _ = await store.sessions()
    assert called.opened_at <= before <= called.last_used_at <= between <= cursor.last_used_at <= time.time()
    assert idle.last_used_at == at_first[1].last_used_at
    await claim.write(1, [CursorDropped(1, "get"), CursorDropped(1, "post-1")])
    dropped, _ = await store.sessions()
    assert dropped.last_used_at == called.last_used_at
    await claim.release()


async def test_a_call_with_an_open_task_is_never_let_go_of(make_store: MakeStore) -> None:
    store = make_store(keep_calls=2)
    claim = await claimed(store)
    await claim.write(1, [sent(wire_id) for wire_id in range(6)])
    await claim.write(1, [task(wire_id) for wire_id in (0, 1, 2)])
    await claim.write(1, [settled(wire_id) for wire_id in range(6)])
    await claim.write(1, [TaskEnded(1, 1)])
    await claim.release()
    await (await claimed(store)).release()
    assert [row.wire_id for row in await store.calls()] == [0, 2, 4, 5]


async def test_what_becomes_of_a_row_of_another_slot_may_be_written(store: Store) -> None:
    """The task of a call of a dead process's other connection."""
    claim = await claimed(store)
    await claim.write(1, [sent(1), task(1)])
    row = CallSettled(1, 1, Outcome.RECOVERED, "asked for", ANSWER, Told.NOBODY, slot=1)
    await claim.write(2, [sent(2), row, TaskEnded(1, 1, slot=1)])
    await claim.write(2, [CallSettled(1, 2, Outcome.COMPLETED, "", slot=3), TaskEnded(1, 2, slot=3)])
    one, two = await store.calls()
    assert (one.slot, one.outcome, one.answer, one.task_open) == (1, Outcome.RECOVERED, ANSWER, False)
    assert (two.slot, two.outcome) == (2, None)
    await claim.release()


async def test_an_open_task_outlives_the_age_and_an_ended_one_does_not(make_store: MakeStore) -> None:
    store = make_store(keep_days=1e-12)
    claim = await claimed(store)
    await claim.write(1, [sent(1), sent(2), task(1), task(2), settled(1), settled(2), TaskEnded(1, 2)])
    await claim.release()
    await (await claimed(store)).release()
    assert [row.wire_id for row in await store.calls()] == [1]


async def test_open_tasks_do_not_count_among_the_calls_to_keep(make_store: MakeStore) -> None:
    store = make_store(keep_calls=10)
    claim = await claimed(store)
    for wire_id in range(500):
        await claim.write(1, [sent(wire_id), *([task(wire_id)] if wire_id < 50 else []), settled(wire_id)])
    kept = [row.wire_id for row in await store.calls()]
    assert kept[:50] == list(range(50))
    assert kept[-10:] == list(range(490, 500))
    assert len(kept) <= 50 + 10 + 100 + 1
    await claim.release()


async def test_forgetting_deletes_every_row_of_the_call_key_under_its_key(store: Store) -> None:
    orders, mail = await claimed(store, "orders"), await claimed(store, "mail")
    await orders.write(1, [sent(1, call_key="order-17"), sent(2), settled(1)])
    await orders.write(2, [sent(3, call_key="order-17"), task(3)])
    await mail.write(1, [sent(4, call_key="order-17")])
    assert await orders.forget("order-17") == 2
    assert await orders.forget("order-17") == 0
    assert [row.wire_id for row in await store.calls()] == [2, 4]
    await orders.write(1, [settled(1)])
    await orders.write(1, [sent(1, call_key="order-17")])
    assert [row.outcome for row in await store.calls("orders")] == [None, None]
    await orders.release()
    await mail.release()


@pytest.mark.parametrize("name", ["order-17", "its other name"])
async def test_forgetting_leaves_alone_what_another_principal_has_under_the_name(store: Store, name: str) -> None:
    theirs = await store.claim("orders", origin="https://example.com", principal="user-18")
    await theirs.write(1, [sent(1, call_key="order-17"), CallNamed("order-17", "its other name")])
    await theirs.release()
    ours = await claimed(store)
    assert await ours.forget(name) == 0
    await ours.write(2, [sent(2, call_key="order-17"), CallNamed("order-17", "its other name")])
    assert await ours.forget(name) == 1
    assert [row.principal for row in await store.calls()] == ["user-18"]
    await ours.release()


async def test_forgotten_calls_do_not_count_among_the_calls_to_keep(make_store: MakeStore) -> None:
    store = make_store(keep_calls=2)
    claim = await claimed(store)
    for wire_id in range(4):
        await claim.write(1, [sent(wire_id), settled(wire_id)])
    assert await claim.forget("key-3") + await claim.forget("key-2") == 2
    await claim.release()
    await (await claimed(store)).release()
    assert [row.wire_id for row in await store.calls()] == [0, 1]


async def test_a_released_claim_forgets_nothing(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1)])
    await claim.release()
    with pytest.raises(StoreOwnershipLost, match="released"):
        await claim.forget("key-1")
    assert len(await store.calls()) == 1


async def test_no_secret_is_in_a_repr(store: Store) -> None:
    claim = await claimed(store)
    secret = {"result": "what-nobody-may-see"}
    await claim.write(1, [opened(), sent(1), task(1), settled(1, answer=secret), replied(1, secret)])
    shown = repr((await store.calls(), await store.sessions(), task(1), settled(1, answer=secret)))
    assert TASK not in shown
    assert "what-nobody-may-see" not in shown
    await claim.release()
