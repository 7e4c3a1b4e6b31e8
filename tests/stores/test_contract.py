"""What both stores promise, on both event loops."""

from __future__ import annotations

import time
from typing import Any, get_args

import anyio
import pytest

from mcp_client_guard import stores
from mcp_client_guard._errors import StoreInUse, StoreOwnershipLost, StoreWriteError
from mcp_client_guard.core import model
from mcp_client_guard.core.model import CursorDropped, CursorMoved, Outcome, Seen, SessionEnded, digest_of
from mcp_client_guard.stores import Store
from mcp_client_guard.stores._keep import ENDED_SESSIONS
from tests.stores.conftest import MakeStore, claimed
from tests.stores.records import SECRET, moved, opened, sent, settled, trail


async def wire_ids(store: Store, key: str | None = None) -> list[int]:
    return [call.wire_id for call in await store.calls(key)]


@pytest.mark.anyio
async def test_a_slot_number_is_never_used_twice_under_a_key(store: Store) -> None:
    slots = []
    for _ in range(2):
        claim = await claimed(store)
        slots += [await claim.new_slot(), await claim.new_slot()]
        await claim.release()
    assert slots == list(range(slots[0], slots[0] + 4)), "so that none is used twice, and no number skipped"


@pytest.mark.anyio
async def test_the_first_slot_is_drawn_at_random(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda below: 4711)
    claim = await claimed(store)
    assert await claim.new_slot() == 4712
    await claim.release()


@pytest.mark.anyio
async def test_a_call_is_read_as_it_was_written(store: Store) -> None:
    claim = await claimed(store)
    before = time.time()
    await claim.write(7, [sent(1)], durable=True)
    (call,) = await store.calls("orders")
    assert (call.key, call.slot, call.incarnation, call.wire_id) == ("orders", 7, 1, 1)
    assert (call.method, call.tool, call.call_key) == ("tools/call", "charge", "key-1")
    assert (call.arguments_digest, call.may_have_side_effects) == (digest_of(b"{}"), True)
    assert (call.outcome, call.reason, call.settled_at) == (None, None, None)
    assert before <= call.sent_at <= time.time()
    await claim.release()


@pytest.mark.anyio
async def test_an_outcome_can_be_refined(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1), settled(1, Outcome.IN_DOUBT, "cut")])
    (doubted,) = await store.calls()
    assert (doubted.outcome, doubted.reason) == (Outcome.IN_DOUBT, "cut")
    await claim.write(1, [settled(1, Outcome.RECOVERED, "late answer")])
    (recovered,) = await store.calls()
    assert (recovered.outcome, recovered.reason) == (Outcome.RECOVERED, "late answer")
    assert recovered.settled_at is not None
    assert doubted.settled_at is not None
    assert recovered.sent_at <= doubted.settled_at <= recovered.settled_at
    await claim.release()


@pytest.mark.anyio
async def test_the_outcome_of_an_unknown_call_is_ignored(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [settled(404), sent(1)])
    assert await wire_ids(store) == [1]
    await claim.release()


@pytest.mark.anyio
async def test_calls_come_oldest_first_and_by_key(store: Store) -> None:
    orders, mail = await claimed(store, "orders"), await claimed(store, "mail")
    await orders.write(1, [sent(5)])
    await mail.write(1, [sent(5)])
    await orders.write(1, [sent(2), sent(9)])
    assert await wire_ids(store, "orders") == [5, 2, 9]
    assert await wire_ids(store, "mail") == [5]
    assert [call.key for call in await store.calls()] == ["orders", "mail", "orders", "orders"]
    assert await store.calls("nobody") == []
    await orders.release()
    await mail.release()


@pytest.mark.anyio
async def test_a_call_that_exists_is_refused_and_its_batch_with_it(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [sent(1)])
    for batch in ([sent(2), sent(1)], [sent(3), sent(3)]):
        with pytest.raises(StoreWriteError, match="nothing was kept"):
            await claim.write(1, batch, durable=True)
    await claim.write(2, [sent(1)])
    await claim.write(1, [sent(1, incarnation=2)])
    assert [(call.slot, call.incarnation, call.wire_id) for call in await store.calls()] == [
        (1, 1, 1),
        (2, 1, 1),
        (1, 2, 1),
    ]
    await claim.release()


@pytest.mark.anyio
async def test_a_session_is_read_as_it_was_written(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(3, [opened(2)])
    (session,) = await store.sessions("orders")
    assert (session.key, session.slot, session.incarnation) == ("orders", 3, 2)
    assert (session.origin, session.principal) == ("https://example.com", "user-17")
    assert (session.session_id, session.protocol_version) == (SECRET, "2025-11-25")
    assert session.generation is opened().generation
    assert session.initialize_params == opened().initialize_params
    assert session.initialize_result == opened().initialize_result
    assert (session.ended_at, session.end_reason, dict(session.cursors)) == (None, None, {})
    await claim.release()


@pytest.mark.anyio
async def test_an_incarnation_is_opened_once(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened()])
    for batch in ([sent(1), opened()], [sent(1), opened(2), opened(2)]):
        with pytest.raises(StoreWriteError) as refused:
            await claim.write(1, batch)
        assert SECRET not in repr(refused.value)
    assert await store.calls() == []
    await claim.release()


@pytest.mark.anyio
async def test_the_session_id_is_in_no_repr(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened()])
    sessions = await store.sessions()
    assert SECRET not in repr((store, claim, sessions))
    await claim.release()


@pytest.mark.anyio
async def test_a_cursor_keeps_its_newest_eight_rows_and_replaces_the_former(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened(), moved(*range(20)), moved(1, 2, stream="post-1")])
    await claim.write(1, [moved(1, 2, 3, stream="post-1")])
    (session,) = await store.sessions()
    assert session.cursors == {"get": trail(*range(12, 20)), "post-1": trail(1, 2, 3)}
    await claim.release()


@pytest.mark.anyio
async def test_what_was_drained_after_a_cursor_is_kept_with_it(store: Store) -> None:
    claim = await claimed(store)
    behind = [CursorMoved(1, name, trail(1), 700) for name in ("get", "post-1", "post-2")]
    await claim.write(1, [opened(), *behind])
    await claim.write(1, [moved(1, 2), CursorDropped(1, "post-2")])
    (session,) = await store.sessions()
    assert session.passed == {"post-1": 700}
    await claim.write(1, [SessionEnded(1, "404")])
    (session,) = await store.sessions()
    assert session.passed == {}
    await claim.release()


@pytest.mark.anyio
async def test_a_row_without_event_id_keeps_its_digest(store: Store) -> None:
    claim = await claimed(store)
    nameless = (Seen(None, digest_of(b"x")), Seen('"\N{SNOWMAN}\0', digest_of(b"y")))
    await claim.write(1, [opened(), CursorMoved(1, "get", nameless)])
    (session,) = await store.sessions()
    assert session.cursors == {"get": nameless}
    await claim.release()


@pytest.mark.anyio
async def test_a_cursor_can_be_dropped_and_an_unknown_one_ignored(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened(), moved(1), moved(1, stream="post-1")])
    await claim.write(1, [CursorDropped(1, "get"), CursorDropped(1, "no such"), CursorDropped(9, "get")])
    (session,) = await store.sessions()
    assert list(session.cursors) == ["post-1"]
    await claim.release()


@pytest.mark.anyio
async def test_a_session_ends_once_and_takes_its_cursors_along(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened(), moved(1), SessionEnded(1, "404"), SessionEnded(1, "closed")])
    await claim.write(1, [moved(2), SessionEnded(9, "never was")])
    (session,) = await store.sessions()
    assert (session.end_reason, dict(session.cursors)) == ("404", {})
    assert session.ended_at is not None
    assert session.ended_at >= session.opened_at
    await claim.release()


@pytest.mark.anyio
async def test_a_cursor_of_an_unknown_session_is_ignored(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened(1), moved(1, incarnation=2)])
    await claim.write(1, [opened(2)])
    assert [dict(session.cursors) for session in await store.sessions()] == [{}, {}]
    await claim.release()


@pytest.mark.anyio
async def test_a_key_has_one_owner_until_it_is_released(store: Store) -> None:
    claim, other = await claimed(store), await claimed(store, "mail")
    with pytest.raises(StoreInUse, match="'orders'"):
        await claimed(store)
    await claim.write(1, [sent(1)])
    await claim.release()
    again = await claimed(store)
    await again.write(1, [sent(2)])
    assert await wire_ids(store) == [1, 2]
    await again.release()
    await other.release()


@pytest.mark.anyio
async def test_a_released_claim_writes_nothing_and_releases_nothing(store: Store) -> None:
    former = await claimed(store)
    await former.release()
    current = await claimed(store)
    await former.release()
    with pytest.raises(StoreOwnershipLost, match="released"):
        await former.write(1, [sent(1)])
    with pytest.raises(StoreOwnershipLost):
        await former.new_slot()
    with pytest.raises(StoreInUse):
        await claimed(store)
    assert await store.calls() == []
    await current.release()


@pytest.mark.anyio
async def test_a_claim_lets_go_of_settled_calls_beyond_the_number_and_of_no_open_one(
    make_store: MakeStore,
) -> None:
    store = make_store(keep_calls=2)
    claim = await claimed(store)
    await claim.write(1, [sent(wire_id) for wire_id in range(6)])
    await claim.write(1, [settled(wire_id) for wire_id in (1, 2, 3, 5)])
    await claim.release()
    await (await claimed(store)).release()
    assert await wire_ids(store) == [0, 3, 4, 5]


@pytest.mark.anyio
async def test_a_claim_lets_go_of_settled_calls_and_ended_sessions_beyond_the_age(
    make_store: MakeStore,
) -> None:
    store = make_store(keep_days=1e-12)
    claim = await claimed(store)
    await claim.write(1, [opened(1), opened(2), sent(1), sent(2), settled(1), SessionEnded(1, "404")])
    await claim.release()
    await (await claimed(store)).release()
    assert await wire_ids(store) == [2]
    assert [session.incarnation for session in await store.sessions()] == [2]


@pytest.mark.anyio
async def test_a_long_claim_keeps_the_ledger_bounded(make_store: MakeStore) -> None:
    store = make_store(keep_calls=10)
    claim = await claimed(store)
    await claim.write(1, [sent(0)])
    for wire_id in range(1, 500):
        await claim.write(1, [sent(wire_id), settled(wire_id)])
    kept = await wire_ids(store)
    assert kept[0] == 0
    assert kept[-10:] == list(range(490, 500))
    assert len(kept) <= 10 + 100 + 1
    await claim.release()


@pytest.mark.anyio
async def test_ended_sessions_are_bounded_and_open_ones_stay(store: Store) -> None:
    claim = await claimed(store)
    await claim.write(1, [opened(0)])
    for incarnation in range(1, ENDED_SESSIONS + 6):
        await claim.write(1, [opened(incarnation), SessionEnded(incarnation, "404")])
    await claim.release()
    await (await claimed(store)).release()
    assert [session.incarnation for session in await store.sessions()] == [0, *range(6, ENDED_SESSIONS + 6)]


@pytest.mark.anyio
async def test_pruning_touches_no_other_key(make_store: MakeStore) -> None:
    store = make_store(keep_calls=1)
    mail = await claimed(store, "mail")
    await mail.write(1, [sent(1), sent(2), settled(1), settled(2)])
    await (await claimed(store, "orders")).release()
    assert await wire_ids(store, "mail") == [1, 2]
    await mail.release()


@pytest.mark.parametrize("limits", [{"keep_calls": 0}, {"keep_days": 0}, {"keep_days": float("nan")}])
def test_limits_that_keep_nothing_are_refused(make_store: MakeStore, limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="keep_"):
        make_store(**limits)


def test_a_store_serves_one_event_loop_after_another(store: Store) -> None:
    async def use(wire_id: int) -> list[int]:
        claim = await claimed(store)
        await claim.write(1, [sent(wire_id)], durable=True)
        await claim.release()
        return await wire_ids(store)

    assert anyio.run(use, 1, backend="asyncio") == [1]
    assert anyio.run(use, 2, backend="trio") == [1, 2]
    assert anyio.run(use, 3, backend="asyncio") == [1, 2, 3]


def test_a_claim_may_move_from_one_event_loop_to_another(store: Store) -> None:
    claim = anyio.run(claimed, store)

    async def use() -> None:
        await claim.write(1, [sent(1)], durable=True)
        await claim.release()

    anyio.run(use, backend="trio")
    assert anyio.run(wire_ids, store) == [1]


def test_a_store_of_one_s_own_finds_here_every_record_that_it_is_given() -> None:
    """With the types of what stands in them."""
    for record in (*get_args(model.Record), model.Seen, model.Told):
        assert getattr(stores, record.__name__) is record
        assert record.__name__ in stores.__all__
    assert stores.Record is model.Record
