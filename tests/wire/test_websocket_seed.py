"""The third seed, step by step: a session that migrates to a WebSocket while events are on their way."""

from __future__ import annotations

import pytest

from mcp_client_guard import Disconnected, Discontinuity, RefreshSuggested, Upgraded, UpgradeRefused
from mcp_client_guard.testing import Lie, Reply, Request

from .sockets import gated, playing

pytestmark = pytest.mark.anyio


async def test_seed_003_observation_1_the_position_is_the_client_s_own_and_one_before_its_last() -> None:
    async with playing() as scene:
        scene.emit(1)
        await scene.upgraded()
        priming = scene.session.log.held(scene.stream)[0].event_id
        assert scene.server.upgrade.positions == [priming], "the witness is the first message"


async def test_seed_003_observation_2_what_was_emitted_unseen_comes_before_anything_new() -> None:
    async with gated() as (scene, gate):
        scene.emit_unseen(11, 12, 13)
        gate.open.set()
        await scene.upgraded()
        scene.emit(14)
        await scene.heard(*range(1, 15))
        assert not scene.host.of(Discontinuity)
        assert scene.host.grades == ["proven"]


async def test_seed_003_observation_3_a_client_that_was_cut_resumes_first_and_is_upgraded_then() -> None:
    async with gated() as (scene, gate):
        scene.server.http.drop_all()
        await scene.host.until(lambda: scene.host.of(Disconnected))
        gate.open.set()
        await scene.host.until(lambda: scene.host.grades)
        assert not scene.server.upgrade.sockets
        scene.emit(11)
        await scene.upgraded()
        await scene.heard(*range(1, 12))


async def test_seed_003_observation_4_a_socket_that_begins_with_what_is_new_is_not_believed() -> None:
    async with gated(Lie.UPGRADE_ONLY_NEW) as (scene, gate):
        scene.emit_unseen(11, 12, 13)
        gate.open.set()
        await scene.server.http.until(lambda: scene.server.upgrade.sockets)
        scene.emit(14)
        (loss,) = await scene.host.until(lambda: scene.host.of(Discontinuity))
        assert "first frame" in loss.reason
        assert "broken" in scene.host.grades
        assert not scene.host.of(Upgraded)


async def test_seed_003_observation_5_the_missing_events_come_by_the_event_stream_after_all() -> None:
    async with gated(Lie.UPGRADE_ONLY_NEW) as (scene, gate):
        scene.emit_unseen(11, 12, 13)
        gate.open.set()
        await scene.server.http.until(lambda: scene.server.upgrade.sockets)
        scene.emit(14)
        await scene.heard(*range(1, 15))
        assert scene.host.grades[:2] == ["broken", "proven"]


async def test_seed_003_variant_1_a_silent_gap_does_not_hold_the_guard_up() -> None:
    """Nothing new is emitted, so that nothing comes at all: after `witness_timeout` the event stream is asked."""
    async with gated(Lie.UPGRADE_ONLY_NEW, policy={"witness_timeout": 0.1}) as (scene, gate):
        scene.emit_unseen(11, 12, 13)
        gate.open.set()
        await scene.heard(*range(1, 14))
        assert (await scene.refused()).reason == "no first frame within witness_timeout"


async def test_seed_003_variant_2_an_upgrade_past_an_evicted_gap_is_reported_on_both() -> None:
    async with gated(Lie.UPGRADE_EVICTED, retained=12) as (scene, gate):
        scene.emit_unseen(*range(11, 29))  # 11 to 16 are gone for good
        gate.open.set()
        await scene.host.until(lambda: len(scene.host.of(Discontinuity)) == 2)
        await scene.host.until(lambda: scene.host.of(RefreshSuggested))
        assert scene.host.grades == ["broken", "broken"]
        assert not scene.host.of(Upgraded)


async def test_seed_003_variant_2_an_honest_server_refuses_with_409_and_the_loss_is_known() -> None:
    async with gated(retained=12) as (scene, gate):
        scene.emit_unseen(*range(11, 29))
        gate.open.set()
        assert (await scene.refused()) == UpgradeRefused("HTTP 409", final=False)
        assert not scene.server.upgrade.sockets


async def test_seed_003_variant_3_a_server_that_takes_its_own_position_is_not_believed() -> None:
    async with gated(Lie.UPGRADE_OWN_POSITION) as (scene, gate):
        scene.emit_unseen(11, 12, 13)
        gate.open.set()
        await scene.server.http.until(lambda: scene.server.upgrade.sockets)
        scene.emit(14)
        await scene.host.until(lambda: scene.host.of(Discontinuity))
        await scene.heard(*range(1, 15))


async def test_seed_003_corollary_an_echoed_last_event_id_is_never_taken_for_our_own() -> None:
    async with gated() as (scene, gate):
        scene.emit_unseen(11, 12, 13)
        gate.open.set()
        await scene.upgraded()
        await scene.heard(*range(1, 14))
        scene.server.http.drop_all()
        await scene.upgraded(2)
        told_of = {scene.id_of(n) for n in (11, 12, 13)}
        first, second = scene.server.upgrade.positions
        assert first not in told_of
        assert second == scene.id_of(12), "one before the last received"


async def test_seed_003_decision_b_409_means_stay_drain_and_succeed_later() -> None:
    refusals = [409, 409]

    async def busy(request: Request, reply: Reply) -> None:
        if refusals:
            await reply.status(refusals.pop())
        else:
            await scene.server.upgrade.ask(request, reply)

    async with playing(on_ask=busy) as scene:
        scene.emit(1, 2, 3)
        await scene.heard(1, 2, 3)
        await scene.upgraded()
        assert [r.reason for r in scene.host.of(UpgradeRefused)] == ["HTTP 409", "HTTP 409"]
        assert not scene.host.of(Disconnected), "the event stream was never left before"
        scene.emit(4)
        await scene.heard(1, 2, 3, 4)
