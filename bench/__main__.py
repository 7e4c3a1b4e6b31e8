"""Compares, in one run and in turns, the guard with the installed SDK's own transport."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import mcp

from bench.contestants import GENERATIONS, SPOKEN, Contestant, contestants
from bench.measures import Numbers, Planned, httpx_alone, measures
from bench.report import report

ROOT = Path(__file__).resolve().parents[1]
NAMES = ["sdk", "memory", "sqlite"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    of_sessions = options.generation == "streamable-http"
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as directory, server() as address:
        url = address + GENERATIONS[options.generation].path
        competing = contestants(Path(directory), options.only, options.generation)
        possible = measures(options.scale, every=of_sessions)
        chosen = {name: m for name, m in possible.items() if options.measure in name}
        rounds = anyio.run(play, url, competing, chosen, options.rounds)
        bare = anyio.run(httpx_alone, address + "/mcp", options.scale)
        events = round(options.events * 1e6)
        memory = {name: grown(name, url, events) for name in options.memory} if of_sessions else {}
    outcome = {"about": about(options), "httpx_alone": bare, "rounds": rounds, "memory": memory}
    print(report(outcome))
    if options.json:
        Path(options.json).write_text(json.dumps(outcome, indent=1) + "\n")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--generation", choices=SPOKEN, default="streamable-http", help="how messages travel (streamable-http)"
    )
    parser.add_argument("--full", action="store_true", help="21 rounds, 4 times the work, 10 million events")
    parser.add_argument("--rounds", type=int, help="how often each measure is taken (9)")
    parser.add_argument("--scale", type=float, help="work in one round; 1 is the quick run")
    parser.add_argument("--events", type=float, help="millions of events for the memory measure (1)")
    parser.add_argument("--memory", nargs="*", choices=NAMES, help="whose memory is measured (sqlite)")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="who takes part")
    parser.add_argument("--measure", default="", help="only the measures whose names contain this")
    parser.add_argument("--dir", help="where the SQLite file goes (the system's temporary directory)")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    options = parser.parse_args(arguments)
    by_default = {"rounds": 21, "scale": 4.0, "events": 10.0} if options.full else {}
    by_default = {"rounds": 9, "scale": 1.0, "events": 1.0, "memory": ["sqlite"]} | by_default
    for name, value in by_default.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The address of a server of its own, which ends with its standard input."""
    command = [sys.executable, "-m", "bench.server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


async def play(
    url: str, competing: dict[str, Contestant], chosen: dict[str, Planned], rounds: int
) -> dict[str, dict[str, list[Numbers]]]:
    """Every round takes each contestant once, and the first of one round is the last of the next."""
    results: dict[str, dict[str, list[Numbers]]] = {}
    for name, planned in chosen.items():
        started = time.monotonic()
        results[name] = {contestant: [] for contestant in competing}
        for number in range(max(1, round(rounds * planned.rounds))):
            order = list(competing)
            turn = number % len(order)
            for contestant in order[turn:] + order[:turn]:
                with anyio.fail_after(300):
                    results[name][contestant].append(await planned.measure(competing[contestant], url))
        print(f"  {name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return results


def grown(name: str, url: str, events: int) -> Numbers:
    command = [sys.executable, "-m", "bench.memory", name, url, str(events)]
    numbers: Numbers = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    return numbers


def about(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "generation": options.generation,
        "mcp": version("mcp"),
        "major": 2 if hasattr(mcp, "Client") else 1,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "rounds": options.rounds,
        "scale": options.scale,
    }


if __name__ == "__main__":
    sys.exit(main())
