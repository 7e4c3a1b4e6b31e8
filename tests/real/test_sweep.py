"""Real servers, real cuts: a seeded sample of the sweep. All of it: `python -m tests.real.sweep --all`."""

from __future__ import annotations

import pytest

from .judge import Verdict
from .peers import PEERS
from .sweep import false_alarm, sample, sweep, table


def report(verdicts: list[Verdict]) -> str:
    """What a failure says: the table, and the commands that play the faulty cases again."""
    faulty = [f"--case '{v.case}'  # {'; '.join(v.faults)}" for v in verdicts if v.faults]
    return "\n".join([table(verdicts), *faulty])


@pytest.mark.parametrize("peer", PEERS)
def test_a_call_that_is_cut_anywhere_completes_or_is_honestly_in_doubt(peer: str) -> None:
    """Right result or an in-doubt answer; each progress notification once; the tool ran once; the other call
    untouched; PROVEN where two identified events came before the cut."""
    verdicts = sweep(sample(10, seed=20, peers=[peer]))
    assert not any(verdict.faults for verdict in verdicts), report(verdicts)
    assert {verdict.outcome for verdict in verdicts} == {"completed", "in doubt"}, report(verdicts)
    assert any(verdict.proven for verdict in verdicts), report(verdicts)


def test_honest_servers_raise_no_alarm() -> None:
    """Cuts at random offsets, up to three in a row: no BROKEN, and all of the above."""
    verdicts = sweep(false_alarm(40, seed=7))
    assert not any(verdict.faults for verdict in verdicts), report(verdicts)
