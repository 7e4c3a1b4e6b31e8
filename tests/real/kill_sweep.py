"""A process killed before and after each write, flush and send: `python -m tests.real.kill_sweep --all`.

--sample N --seed S      N cases of each lifecycle instead of all
--case NAME ...          some cases, by the names that a failing sweep prints
--lifecycles NAME ...    some lifecycles only
"""

from __future__ import annotations

import argparse
import json
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
from threading import Thread

from attrs import define, field

from .hosts import SDK
from .kill_cases import Evidence, KillCase, carry_out_case
from .kill_child import PLANS
from .kill_judge import KillVerdict, Witness, judge_all
from .peers import HERE, ROOT, VENVS, Peer, _port_told
from .sweep import trust_little

LIFECYCLES = tuple(PLANS)


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
class Worker:
    """A process that has the processes of its cases forked; it lives as long as the sweep."""

    url: str
    evidence: list[Evidence] = field(factory=list)
    _process: subprocess.Popen[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        command = [sys.executable, "-m", "tests.real.kill_sweep", "--worker", self.url]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def work(self, names: Sequence[str]) -> None:
        """Blocks until all are carried out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(names), file=self._process.stdin, flush=True)
        for _ in names:
            self.evidence.append(Evidence.from_line(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def carry_out(pool: Sequence[Worker], cases: Sequence[KillCase]) -> list[Evidence]:
    """Share the cases among the workers."""
    names = [str(case) for case in cases]
    before = {id(worker): len(worker.evidence) for worker in pool}
    threads = [Thread(target=worker.work, args=(names[i :: len(pool)],)) for i, worker in enumerate(pool)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    evidence = [one for worker in pool for one in worker.evidence[before[id(worker)] :]]
    if missing := set(names) - {str(one.case) for one in evidence}:
        raise RuntimeError(f"workers ended early; without {sorted(missing)[:5]}")
    return evidence


def sweep(
    cases: Sequence[KillCase] = (),
    *,
    number: int | None = None,
    seed: int = 0,
    lifecycles: Sequence[str] = LIFECYCLES,
    loop: str = "asyncio",
    workers: int | None = None,
) -> tuple[list[KillVerdict], dict[str, int]]:
    """These cases; or, if none are given, of each lifecycle all, or `number` of them. Also the points of each."""
    count = workers or (os.cpu_count() or 1) + 1
    with ExitStack() as stack:
        peers = [stack.enter_context(server()) for _ in range(1 + count // 4)]
        pool = [Worker(peers[serial % len(peers)].url) for serial in range(count)]
        for worker in pool:
            stack.callback(worker.close)
        dry = [] if cases else carry_out(pool, [KillCase(name, loop, 0, "before") for name in lifecycles])
        points = {one.case.lifecycle: one.processes[-2].logged("points")[0] for one in dry}
        chosen = list(cases) or _chosen(points, loop, number, random.Random(seed))
        evidence = [*dry, *carry_out(pool, chosen)]
        witness = Witness()
        for peer in peers:
            witness.read(peer.ledger)
        return judge_all(evidence, witness), {name: len(names) for name, names in points.items()}


def _chosen(points: dict[str, list[str]], loop: str, number: int | None, rng: random.Random) -> list[KillCase]:
    chosen = []
    for lifecycle, names in points.items():
        cases = [KillCase(lifecycle, loop, at, w) for at in range(1, len(names) + 1) for w in ("before", "after")]
        chosen += cases if number is None else rng.sample(cases, min(number, len(cases)))
    rng.shuffle(chosen)  # expensive cases lie together
    return chosen


def work(url: str) -> None:
    """Inside a worker: a line for each case."""
    trust_little()
    _warm_up()
    with TemporaryDirectory(prefix="mcp-guard-kill-") as folder:
        for line in sys.stdin:
            for name in json.loads(line):
                print(carry_out_case(KillCase.parse(name), url, Path(folder)).line(), flush=True)


def _warm_up() -> None:
    """What every process would load, once for all that are forked. Starts no thread."""
    import anyio._backends._asyncio  # noqa: F401

    from mcp_client_guard._messages import sdk_codec
    from mcp_client_guard.transports import pool

    sdk_codec()
    pool.tls()


def table(verdicts: Sequence[KillVerdict], points: dict[str, int]) -> str:
    """One row for each lifecycle."""
    columns = ("cases", "killed", "open", "recovered", "in_doubt", "not_executed", "refused", "attached", "FAULTY")
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
    parser = argparse.ArgumentParser(prog="python -m tests.real.kill_sweep", description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="every point, before and after")
    what.add_argument("--sample", type=int, metavar="N", help="N cases of each lifecycle")
    what.add_argument("--case", nargs="+", metavar="NAME", help="cases by name")
    what.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lifecycles", nargs="+", choices=LIFECYCLES, default=LIFECYCLES)
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    if given.worker:
        work(given.worker)
        return 0
    began = time.monotonic()
    verdicts, points = sweep(
        [KillCase.parse(name) for name in given.case or ()],
        number=given.sample,
        seed=given.seed,
        lifecycles=given.lifecycles,
        loop=given.loop,
        workers=given.workers,
    )
    return 0 if tell(verdicts, points, time.monotonic() - began) else 1


if __name__ == "__main__":
    sys.exit(main())
