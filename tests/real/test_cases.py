"""A case's name says all of it: what a failing sweep prints can be played again."""

from __future__ import annotations

from mcp_client_guard.testing import How

from .cases import Case, Place, every_place
from .sweep import ALL, all_cases, false_alarm, sample


def test_every_case_comes_back_from_its_name() -> None:
    for case in [*all_cases(), *sample(5, seed=1, peers=ALL), *false_alarm(200, seed=1, peers=ALL)]:
        assert Case.parse(str(case)) == case
    assert Case.parse("sdk1/session/alone/asyncio/whole").places == ()


def test_the_sweep_cuts_at_every_byte_and_stalls_around_every_boundary() -> None:
    places = set(every_place(300))
    assert {Place(how, at) for how in (How.FIN, How.RST) for at in range(301)} <= places
    assert {Place(How.STALL, offset, event) for offset in (-1, 0, 1) for event in range(1, 6)} <= places
    assert str(Place(How.STALL, -1, 2)) == "stall@e2-1"


def test_the_same_seed_gives_the_same_cases() -> None:
    assert sample(5, seed=3) == sample(5, seed=3)
    assert false_alarm(50, seed=3) == false_alarm(50, seed=3)
    assert max(len(case.places) for case in false_alarm(50, seed=3)) == 3
