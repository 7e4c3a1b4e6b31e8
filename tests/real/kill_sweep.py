"""A process killed before and after each write, flush and send: `python -m tests.real.kill_sweep --all`.

--sample N --seed S      N cases of each lifecycle instead of all
--case NAME ...          some cases, by the names that a failing sweep prints
--lifecycles NAME ...    some lifecycles only
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import define

from .hosts import SDK
from .kill_cases import Evidence, KillCase, carry_out_case
from .kill_child import PLANS
from .kill_judge import KillVerdict, Witness, judge_all
from .peers import HERE, VENVS, Peer, _port_told
from .sweep import trust_little

LIFECYCLES = tuple(name for name in PLANS if name != "mixed")


@contextmanager
def server() -> Iterator[Peer]:
    """The server of the kill sweep, in a process of its own."""
    with TemporaryDirectory(prefix="mcp-guard-killed-") as folder:
        ledger, log = Path(folder) / "ledger", Path(folder) / "stderr"
        command = [str(VENVS / "peer-sdk1" / "bin" / "python"), str(HERE / "servers" / "killed.py")]
        env = os.environ | {"MCP_LEDGER": str(ledger), "PYTHONWARNINGS": "ignore"}
        with log.open("wb") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=env)
        assert process.stdout is not None
        try:
            yield Peer("killed", _port_told(process, log), ledger)
        finally:
            process.kill()
            process.stdout.close()
            process.wait()


@define
class Workers:
    """Processes forked from this one, which have the processes of the cases forked; and servers for them."""

    pool: Any
    peers: list[Peer]

    def carry_out(self, cases: Sequence[KillCase]) -> list[Evidence]:
        """Share the cases among the workers."""
        return list(self.pool.imap_unordered(_carry_out, cases))

    def witness(self) -> Witness:
        """What the servers have written down until now."""
        witness = Witness()
        for peer in self.peers:
            witness.read(peer.ledger)
        return witness


@contextmanager
def workers(number: int | None = None) -> Iterator[Workers]:
    """Start them, and end them afterwards."""
    number = number or 2 * (os.cpu_count() or 1)
    with ExitStack() as stack:
        peers = [stack.enter_context(server()) for _ in range(1 + number // 8)]
        folder = stack.enter_context(TemporaryDirectory(prefix="mcp-guard-kill-"))
        given = [peer.url for peer in peers], Path(folder)
        # Forked, so that what takes longest, the imports, is done once; before the pool starts its threads.
        pool = stack.enter_context(multiprocessing.get_context("fork").Pool(number, _begin, given))
        yield Workers(pool, peers)


_given: dict[str, Any] = {}


def _begin(urls: Sequence[str], folder: Path) -> None:
    """In a worker, once."""
    trust_little()
    _warm_up()
    _given.update(url=urls[os.getpid() % len(urls)], folder=folder)


def _carry_out(case: KillCase) -> Evidence:
    """In a worker."""
    return carry_out_case(case, **_given)


def _warm_up() -> None:
    """What every process would load, once for all that are forked. Starts no thread."""
    import anyio._backends._asyncio  # noqa: F401

    from mcp_client_guard._messages import sdk_codec
    from mcp_client_guard.transports import connections

    sdk_codec()
    connections.tls()


def sweep(
    workers: Workers,
    *,
    number: int | None = None,
    seed: int = 0,
    lifecycles: Sequence[str] = LIFECYCLES,
    loop: str = "asyncio",
) -> tuple[list[KillVerdict], dict[str, int]]:
    """Of each lifecycle all cases, or `number` of them; and how many points each has."""
    dry = workers.carry_out([KillCase(name, loop, 0, "before") for name in lifecycles])
    points = {one.case.lifecycle: len(one.processes[-2].logged("points")[0]) for one in dry}
    evidence = dry + workers.carry_out(_chosen(points, loop, number, random.Random(seed)))
    return judge_all(evidence, workers.witness()), points


def _chosen(points: dict[str, int], loop: str, number: int | None, rng: random.Random) -> list[KillCase]:
    chosen: list[KillCase] = []
    for lifecycle, count in sorted(points.items()):
        cases = [KillCase(lifecycle, loop, at, when) for at in range(1, count + 1) for when in ("before", "after")]
        if number is not None:  # one of each part of the life: some kills find nothing done, some find calls open
            cases = [cases[int(len(cases) * (part + rng.random()) / number)] for part in range(number)]
        chosen += dict.fromkeys(cases)
    rng.shuffle(chosen)  # expensive cases lie together
    return chosen


def table(verdicts: Sequence[KillVerdict], points: dict[str, int]) -> str:
    """One row for each lifecycle."""
    columns = (
        "cases",
        "killed",
        "open",
        "recovered",
        "in_doubt",
        "not_executed",
        "refused",
        "attached",
        "untold",
        "FAULTY",
    )
    rows: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        case = KillCase.parse(verdict.case)
        row = rows.setdefault(f"{case.lifecycle}/{case.loop}", Counter(points=points.get(case.lifecycle, 0)))
        row.update(verdict.found)
        row.update({"cases": 1, "killed": verdict.killed, "FAULTY": bool(verdict.faults)})
    width = max(map(len, rows), default=0)
    lines = [" " * width + "".join(f"{column:>13}" for column in ("points", *columns))]
    for name, row in sorted(rows.items()):
        lines.append(f"{name:{width}}" + "".join(f"{row[column]:>13}" for column in ("points", *columns)))
    return "\n".join(lines)


def tell(verdicts: Sequence[KillVerdict], points: dict[str, int], seconds: float, shown: int = 30) -> bool:
    """Print what was found; whether all promises were kept."""
    print(table(verdicts, points))
    faulty = [verdict for verdict in verdicts if verdict.faults]
    for verdict in faulty[:shown]:
        print(f"--case '{verdict.case}'\n      {'; '.join(verdict.faults)}"[:1200])
    if len(faulty) > shown:
        print(f"... and {len(faulty) - shown} more")
    print(f"{len(verdicts)} cases with {SDK} in {seconds:.0f}s: {len(faulty)} faulty")
    return not faulty


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.real.kill_sweep", description=__doc__.partition("\n")[0]
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="every point, before and after")
    what.add_argument("--sample", type=int, metavar="N", help="N cases of each lifecycle")
    what.add_argument("--case", nargs="+", metavar="NAME", help="cases by name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lifecycles", nargs="+", choices=LIFECYCLES, default=LIFECYCLES)
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    began, points = time.monotonic(), dict[str, int]()
    with workers(given.workers) as started:
        if given.case:
            evidence = started.carry_out([KillCase.parse(name) for name in given.case])
            verdicts = judge_all(evidence, started.witness())
        else:
            verdicts, points = sweep(
                started, number=given.sample, seed=given.seed, lifecycles=given.lifecycles, loop=given.loop
            )
    return 0 if tell(verdicts, points, time.monotonic() - began) else 1


if __name__ == "__main__":
    sys.exit(main())
