"""Real servers, real cuts: a seeded sample of the sweep. All of it: `python -m tests.real.sweep --all`."""

from __future__ import annotations

import pytest

from .hosts import HOSTS
from .judge import Verdict
from .peers import LEGACY, PEERS
from .sweep import false_alarm, sample, sweep, table

ONCE = [str(case) for case in sample(12 // len(HOSTS), seed=20)]
ROWS = [str(case) for case in false_alarm(40, seed=7)]
BY_SSE = [*sample(6 // len(HOSTS), seed=20, peers=LEGACY), *false_alarm(12, seed=7, peers=LEGACY)]


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    """All cases of this file in one go: starting servers and workers is most of what they cost."""
    cases = [*sample(12 // len(HOSTS), seed=20), *false_alarm(40, seed=7), *BY_SSE]
    return {verdict.case: verdict for verdict in sweep(list(dict.fromkeys(cases)))}


def report(verdicts: list[Verdict]) -> str:
    """What a failure says: the table, and the commands that play the faulty cases again."""
    faulty = [f"--case '{v.case}'  # {'; '.join(v.faults)}" for v in verdicts if v.faults]
    return "\n".join([table(verdicts), *faulty])


@pytest.mark.parametrize("peer", PEERS)
def test_a_call_that_is_cut_anywhere_completes_or_is_honestly_in_doubt(
    peer: str, verdicts: dict[str, Verdict]
) -> None:
    """Right result or an in-doubt answer; each progress notification once; the tool ran once; the other call
    untouched; PROVEN where two identified events came before the cut."""
    own = [verdicts[name] for name in ONCE if name.startswith(f"{peer}/")]
    assert not any(verdict.faults for verdict in own), report(own)
    assert {verdict.outcome for verdict in own} == {"completed", "in doubt"}, report(own)
    assert any(verdict.proven for verdict in own), report(own)


def test_honest_servers_raise_no_alarm(verdicts: dict[str, Verdict]) -> None:
    """Cuts at random offsets, up to three in a row: no BROKEN, and all of the above."""
    own = [verdicts[name] for name in ROWS]
    assert not any(verdict.faults for verdict in own), report(own)


def test_a_legacy_session_that_is_cut_anywhere_leaves_each_call_with_an_honest_outcome(
    verdicts: dict[str, Verdict],
) -> None:
    """On its stream, or on the answer to a POST: what had come is delivered, the tool ran at most once, and no
    call is in doubt whose stream stood."""
    own = [verdicts[str(case)] for case in BY_SSE]
    assert not any(verdict.faults for verdict in own), report(own)
    assert {verdict.outcome for verdict in own} == {"completed", "in doubt"}, report(own)
