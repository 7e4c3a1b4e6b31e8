"""Real peers, real cuts: `python -m tests.real.sweep --all`, with the SDK that is installed as the host.

--sample N --seed S      N cases of each combination instead of all
--false-alarm N          N runs with up to three cuts in a row at random offsets
--case NAME ...          some cases, by the names that a failing sweep prints
--transport sdk          the SDK's own transport instead of the guard
"""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread

import anyio
import certifi
from attrs import define, evolve, field

from .cases import LONGEST, Case, every_place, random_places
from .hosts import HOSTS, SDK
from .judge import SERVER_DROP, Run, Verdict
from .peers import LEGACY, PEERS, Peer, running

COMPANY = ("alone", "beside")
AT_ONCE = 24
"""Cases that one worker has under way: while most of them wait, the others keep its core busy."""
ALL = (*PEERS, *LEGACY)
LENGTHS = {"fastmcp4": 1180, "sdk1": 960, "everything": 1250, "sdk1-sse": 800, "everything-sse": 800}
"""Bytes of the call's response, rounded up: IDs differ in length. The largest cuts may find nothing to cut."""
POSTED = {"sdk1-sse": 170, "everything-sse": 240}
"""Bytes of the answer to the call's POST in a legacy session."""


# --- which cases ----------------------------------------------------------------------------------


def all_cases(peers: Iterable[str] = ALL, loop: str = "asyncio") -> list[Case]:
    """Every byte, every boundary, each peer and host of this environment, alone and beside another call."""
    return [
        Case(peer, host, company, loop, (place,))
        for peer in peers
        for host in HOSTS
        for company in COMPANY
        for place in every_place(min(LENGTHS[peer], LONGEST), POSTED.get(peer, 0))
    ]


def sample(number: int, seed: int, peers: Iterable[str] = PEERS) -> list[Case]:
    """`number` cases of each combination, one in four on trio; the same for the same seed."""
    rng = random.Random(seed)
    chosen = []
    for peer in peers:
        for host in HOSTS:
            for company in COMPANY:
                places = rng.sample(list(every_place(LENGTHS[peer], POSTED.get(peer, 0))), number)
                loops = rng.choices(["asyncio", "trio"], weights=[3, 1], k=number)
                chosen += [
                    Case(peer, host, company, loop, (place,)) for loop, place in zip(loops, places, strict=True)
                ]
    return chosen


def false_alarm(number: int, seed: int, peers: Sequence[str] = PEERS) -> list[Case]:
    """Random offsets, up to three cuts in a row."""
    rng = random.Random(seed)
    cases: dict[str, Case] = {}
    while len(cases) < number:
        peer = rng.choice(peers)
        places = random_places(rng, LENGTHS[peer])
        loop = rng.choices(["asyncio", "trio"], weights=[3, 1])[0]
        case = Case(peer, rng.choice(HOSTS), rng.choice(COMPANY), loop, places)
        cases[str(case)] = case
    return list(cases.values())


# --- carrying them out ----------------------------------------------------------------------------


def sweep(
    cases: Sequence[Case], *, transport: str = "guard", workers: int | None = None, strict: bool = False
) -> list[Verdict]:
    """Start the peers that are needed, carry the cases out in worker processes, judge."""
    with ExitStack() as stack:
        peers = {name: stack.enter_context(running(name)) for name in sorted({case.peer for case in cases})}
        ports = {name: peer.port for name, peer in peers.items()}
        pool = [Worker(loop, transport, ports) for loop in _loops(cases, workers or os.cpu_count() or 1)]
        for loop in {case.loop for case in cases}:
            own = [worker for worker in pool if worker.loop == loop]
            mine = [str(case) for case in cases if case.loop == loop]
            random.Random(0).shuffle(mine)  # expensive cases lie together
            for serial, worker in enumerate(own):
                worker.names = mine[serial :: len(own)]
        verdicts = _finish(pool)
        verdicts = [_with_executions(verdict, peers) for verdict in verdicts]
        return verdicts if strict else [_forgiven(verdict) for verdict in verdicts]


def _loops(cases: Sequence[Case], workers: int) -> list[str]:
    return [loop for loop in sorted({case.loop for case in cases}) for _ in range(workers)]


@define
class Worker:
    """A process that carries out cases under one event loop."""

    loop: str
    transport: str
    ports: dict[str, int]
    names: list[str] = field(factory=list)
    verdicts: list[Verdict] = field(factory=list)

    def work(self) -> None:
        """Blocks until all are judged."""
        order = json.dumps([self.transport, self.ports, self.names])
        command = [sys.executable, "-m", "tests.real.sweep", "--worker", self.loop]
        root = Path(__file__).parents[2]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        ) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(order)
            worker.stdin.close()
            for line in filter(lambda line: line.startswith("["), worker.stdout):
                self.verdicts.append(Verdict.from_line(line))
                self._tell_at_once(self.verdicts[-1])
        judged = {verdict.case for verdict in self.verdicts}
        lost = [name for name in self.names if name not in judged]
        self.verdicts += [Verdict(name, "hung", False, False, {}, ["its worker ended early"]) for name in lost]

    def _tell_at_once(self, verdict: Verdict) -> None:
        """A sweep takes long: what it has found is known before its end."""
        if verdict.faults:
            print(f"{verdict.case}: {'; '.join(verdict.faults)}", file=sys.stderr, flush=True)
        if len(self.verdicts) % 500 == 0:
            print(f"{self.loop}: {len(self.verdicts)} of {len(self.names)}", file=sys.stderr, flush=True)


def _finish(pool: Sequence[Worker]) -> list[Verdict]:
    threads = [Thread(target=worker.work) for worker in pool if worker.names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [verdict for worker in pool for verdict in worker.verdicts]


def trust_little() -> None:
    """Have HTTP clients load one certificate and not 140: else that is most of what a case costs."""
    bundle = Path(certifi.where()).read_text()
    first = bundle[bundle.index("-----BEGIN") :].partition("-----END CERTIFICATE-----")
    with NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(first[0] + first[1] + "\n")
    os.environ["SSL_CERT_FILE"] = file.name
    atexit.register(os.unlink, file.name)


def collect_rarely() -> None:
    """Have the garbage collector leave the imported SDK alone, which it would go through again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def work(transport: str, ports: dict[str, int], names: Iterable[str]) -> None:
    """Inside a worker: several cases at once, a line for each."""
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def one(name: str) -> None:
        async with limit:
            case = Case.parse(name)
            try:
                verdict = await Run(case, ports[case.peer], transport).judge()
            except Exception:
                verdict = Verdict(name, "error", False, False, {}, [f"crashed: {traceback.format_exc()}"])
            print(verdict.line(), flush=True)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(one, name)


_ledgers: dict[Path, Counter[str]] = {}


def _with_executions(verdict: Verdict, peers: dict[str, Peer]) -> Verdict:
    """Add what the server's ledger says: once for a completed call, at most once for any other."""
    peer = peers[verdict.case.split("/")[0]]
    if not peer.has_ledger:
        return verdict  # how often its POST arrived was judged instead
    ran = _ledgers.setdefault(peer.ledger, Counter())
    if not ran and peer.ledger.exists():
        ran.update(line.partition("\t")[2] for line in peer.ledger.read_text().splitlines())
    for label, due in verdict.labels.items():
        if ran[label] > 1 or ran[label] < due:
            verdict.faults.append(f"ran {ran[label]} times: {label}")
    return verdict


def _forgiven(verdict: Verdict) -> Verdict:
    """What a server drops between its replay and its live tail is counted, and not held against the client."""
    dropped = any(SERVER_DROP in fault for fault in verdict.faults)
    faults = [fault for fault in verdict.faults if SERVER_DROP not in fault]
    return evolve(verdict, faults=faults, server_drop=dropped)


# --- telling --------------------------------------------------------------------------------------


def table(verdicts: Iterable[Verdict]) -> str:
    """One row for each combination."""
    rows: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        *key, places = verdict.case.split("/")
        row = rows.setdefault("/".join([*key, places.split("@")[0]]), Counter())
        row.update(["cases", verdict.outcome])
        row.update({"not cut": not verdict.cut, "proven": verdict.proven, "server drop": verdict.server_drop})
        row["FAULTY"] += bool(verdict.faults)
        for fault in verdict.faults:
            row[_kind(fault)] += 1
    columns = ["cases", "not cut", "completed", "in doubt", "error", "hung", "proven", SERVER_DROP, "FAULTY"]
    width = max(map(len, rows), default=0)
    lines = [" " * width + "".join(f"{column:>12}" for column in columns)]
    for name, row in sorted(rows.items()):
        faults = ", ".join(f"{key}: {count}" for key, count in row.items() if key not in columns and count)
        lines.append(f"{name:{width}}" + "".join(f"{row[column]:>12}" for column in columns) + f"  {faults}")
    return "\n".join(lines)


def _kind(fault: str) -> str:
    """The part of a fault that is the same in many cases."""
    return f"{fault.removeprefix('other: ').partition(':')[0].partition('(')[0].rstrip()}!"


def tell(verdicts: Sequence[Verdict], seconds: float, shown: int = 40) -> bool:
    """Print what was found; whether all promises were kept."""
    print(table(verdicts))
    faulty = [verdict for verdict in verdicts if verdict.faults]
    for verdict in faulty[:shown]:
        print(f"--case '{verdict.case}'\n      {'; '.join(verdict.faults)}")
    if len(faulty) > shown:
        print(f"... and {len(faulty) - shown} more")
    print(f"{len(verdicts)} cases with {SDK} in {seconds:.0f}s: {len(faulty)} faulty")
    return not faulty


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.sweep", description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="every byte, every boundary")
    what.add_argument("--sample", type=int, metavar="N", help="N cases of each combination")
    what.add_argument("--false-alarm", type=int, metavar="N", help="N runs with up to three cuts in a row")
    what.add_argument("--case", nargs="+", metavar="NAME", help="cases by name")
    what.add_argument("--worker", metavar="LOOP", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio", help="with --all")
    parser.add_argument("--transport", choices=("guard", "sdk"), default="guard")
    parser.add_argument("--strict", action="store_true", help="a server's own drops are faults too")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    given = parser.parse_args()
    if given.worker:
        trust_little()
        collect_rarely()
        anyio.run(work, *json.load(sys.stdin), backend=given.worker)
        return 0
    if given.all:
        cases = all_cases(given.peers, given.loop)
    elif given.sample:
        cases = sample(given.sample, given.seed, given.peers)
    elif given.false_alarm:
        cases = false_alarm(given.false_alarm, given.seed, given.peers)
    else:
        cases = [Case.parse(name) for name in given.case]
    began = time.monotonic()
    verdicts = sweep(cases, transport=given.transport, workers=given.workers, strict=given.strict)
    return 0 if tell(verdicts, time.monotonic() - began) else 1


if __name__ == "__main__":
    sys.exit(main())
