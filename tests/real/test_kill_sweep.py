"""A sample of the kill sweep, on which the server is the judge; and what else a store must stand."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .kill_cases import KillCase
from .kill_judge import KillVerdict
from .kill_points import Points
from .kill_scenarios import Scenario, another_user, five_guards, moved, restart_loop, second_owner
from .kill_sweep import LIFECYCLES, Workers, sweep, table, workers

SEED = 12
EACH = 4


def test_every_case_comes_back_from_its_name() -> None:
    for name in ("lost/asyncio/57/after", "recovery/trio/0/before"):
        assert str(KillCase.parse(name)) == name


@pytest.mark.parametrize(("after", "done"), [(False, b"1"), (True, b"12")], ids=["before", "after"])
def test_a_process_dies_right_before_or_right_after_its_point(after: bool, done: bytes) -> None:
    end, begin = os.pipe()
    child = os.fork()
    if not child:
        points = Points(2, after)
        for operation in (b"1", b"2", b"3"):
            points.around("write", partial(os.write, begin, operation))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.read(end, 9) == done
    os.close(end)
    os.close(begin)


@pytest.fixture(scope="module")
def started() -> Iterator[Workers]:
    with workers() as started:
        yield started


@pytest.fixture(scope="module")
def verdicts(started: Workers) -> list[KillVerdict]:
    return sweep(started, number=EACH, seed=SEED)[0]


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
def test_after_a_kill_at_any_point_the_next_process_accounts_for_every_call(
    lifecycle: str, verdicts: list[KillVerdict]
) -> None:
    """Each open call has its outcome in `recovered()`, none contradicts the server's ledger, nothing ran twice, a
    repeat of what is in doubt is refused, and the wire is as it must be."""
    own = [verdict for verdict in verdicts if KillCase.parse(verdict.case).lifecycle == lifecycle]
    faulty = [f"--case {verdict.case}  # {'; '.join(verdict.faults)}" for verdict in own if verdict.faults]
    assert not faulty, "\n".join([table(own, {}), *faulty])
    assert any(verdict.killed for verdict in own)


def test_the_sample_has_calls_that_were_recovered_and_repeats_that_were_refused(
    verdicts: list[KillVerdict],
) -> None:
    """A guard that calls everything in doubt, or a judge that sees nothing, would not get here."""
    found = sum((verdict.found for verdict in verdicts), start=type(verdicts[0].found)())
    assert min(found["recovered"], found["in_doubt"], found["refused"], found["attached"]) > 0, found


def played(started: Workers, scenario: Any, *args: Any, **options: Any) -> Scenario:
    """A scenario, inside a worker."""
    result: Scenario = started.pool.apply(scenario, args, options)
    assert not result.faults, result.faults
    return result


@pytest.fixture
def server(started: Workers, tmp_path: Path) -> tuple[str, Path, Path]:
    return started.peers[0].url, tmp_path, started.peers[0].ledger


def test_a_second_live_owner_is_refused_at_once_and_readers_work(
    started: Workers, server: tuple[str, Path, Path]
) -> None:
    played(started, second_owner, "owner", *server)


@pytest.mark.parametrize("seed", [1, 2])
def test_five_guards_of_one_process_share_a_file_that_others_read(
    seed: int, started: Workers, server: tuple[str, Path, Path]
) -> None:
    assert played(started, five_guards, f"five{seed}", *server, seed).found["readings"]


def test_ten_kills_in_a_row_under_continuous_calls_leave_nothing_open_and_run_nothing_twice(
    started: Workers, server: tuple[str, Path, Path]
) -> None:
    found = played(started, restart_loop, "loop", *server, 3).found
    assert found["called"] >= found["ran"] > 0


@pytest.mark.parametrize("scenario", [another_user, moved])
def test_a_record_of_another_user_or_endpoint_is_not_used_but_its_calls_are_accounted_for(
    scenario: Callable[..., Scenario], started: Workers, server: tuple[str, Path, Path]
) -> None:
    played(started, scenario, scenario.__name__, *server)
