"""What one case of the kill sweep is, and how its processes are run one after the other."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from attrs import field, frozen

from .kill_child import carry_out

SNAPSHOTS = {
    "calls": "SELECT * FROM call ORDER BY id",
    "sessions": "SELECT * FROM session ORDER BY id",
    "cursors": "SELECT slot, incarnation, stream, json_array_length(trail) AS rows FROM cursor",
    "answers": "SELECT slot, incarnation, request FROM answer",
}


@frozen
class KillCase:
    """`lost/asyncio/57/after`: lifecycle, event loop, the point at which to die, before or after it.

    At point 0 nobody is killed: that counts the points.
    """

    lifecycle: str
    loop: str
    at: int
    when: str

    @classmethod
    def parse(cls, name: str) -> KillCase:
        """From its name."""
        lifecycle, loop, at, when = name.split("/")
        return cls(lifecycle, loop, int(at), when)

    def __str__(self) -> str:
        return f"{self.lifecycle}/{self.loop}/{self.at}/{self.when}"

    def orders(self) -> Iterator[dict[str, Any]]:
        """For each process, what it does and where it dies."""
        kill = {"at": self.at, "after": self.when == "after"}
        first: list[dict[str, Any]] = [{"does": "recovery"}] if self.lifecycle == "recovery" else []
        killed: dict[str, Any] = {"does": "again" if first else self.lifecycle, **kill}
        for serial, order in enumerate([*first, killed, {"does": "again"}], start=1):
            yield {"process": serial, "case": str(self), "lifecycle": self.lifecycle, "loop": self.loop, **order}


@frozen
class Process:
    """What is known of a process that is over, and what it left in its store."""

    status: int
    """As of `waitpid`."""
    log: list[dict[str, Any]]
    text: str
    """What it printed."""
    store: dict[str, list[dict[str, Any]]] = field(factory=dict)

    def logged(self, kind: str) -> list[Any]:
        """The values logged under this name."""
        return [line[kind] for line in self.log if kind in line]


@frozen
class Evidence:
    """All that a case has left, but for what its server wrote down."""

    case: KillCase
    processes: list[Process]


def carry_out_case(case: KillCase, url: str, folder: Path) -> Evidence:
    """Run the processes of a case, each when the one before is dead."""
    here = folder / str(case).replace("/", "-")
    here.mkdir()
    processes = []
    for order in case.orders():
        log = here / f"log{order['process']}"
        status = carry_out({**order, "url": url, "store": str(here / "store.db"), "log": str(log)})
        processes.append(process_of(status, log, here / "store.db"))
    return Evidence(case, processes)


def process_of(status: int, log: Path, store: Path) -> Process:
    """Read what a dead process has left."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    said = Path(f"{log}.txt")
    return Process(status, lines, said.read_text(errors="replace")[-2000:] if said.exists() else "", _rows(store))


def _rows(store: Path) -> dict[str, list[dict[str, Any]]]:
    """By SQL of our own: what is judged is not read by what is judged."""
    if not store.exists() or not os.path.getsize(store):
        return {name: [] for name in SNAPSHOTS}
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return {name: [_plain(row) for row in db.execute(sql)] for name, sql in SNAPSHOTS.items()}


def _plain(row: sqlite3.Row) -> dict[str, Any]:
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in dict(row).items()}
