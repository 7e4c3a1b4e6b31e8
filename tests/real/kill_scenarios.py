"""More of what a store must stand: a second owner, five Guards on one file, ten kills in a row, another user."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import define, field

from .kill_cases import Process, process_of
from .kill_child import LOOP, PLANS, carry_out, start
from .kill_judge import Witness, contradictions, is_due, is_open, name_of

GUARDS = 5
KILLS = 10


@define
class Scenario:
    """Processes on one store, run inside a worker; `faults` is empty if all promises were kept."""

    case: str
    url: str
    folder: Path
    ledger: Path
    faults: list[str] = field(factory=list)
    found: Counter[str] = field(factory=Counter)
    processes: list[Process] = field(factory=list)
    _ready: tuple[int, int] = field(factory=os.pipe)

    @property
    def store(self) -> Path:
        return self.folder / f"{self.case}.db"

    def order(self, does: str, **more: Any) -> dict[str, Any]:
        """What a process is to do."""
        serial = len(self.processes) + 1
        log = str(self.folder / f"{self.case}-{serial}-{does}")
        common = {"case": self.case, "process": serial, "lifecycle": "mixed", "ready": self._ready[1]}
        return {**common, "does": does, "url": self.url, "store": str(self.store), "log": log, **more}

    def run(self, does: str, **more: Any) -> Process:
        """A process, from its beginning to its end."""
        order = self.order(does, **more)
        return self.over(carry_out(order), order)

    def over(self, status: int, order: dict[str, Any]) -> Process:
        self.processes.append(process_of(status, Path(order["log"]), self.store))
        return self.processes[-1]

    def check(self, kept: object, fault: str) -> None:
        if not kept:
            self.faults.append(fault)

    def witness(self) -> Witness:
        """What the server has written down until now."""
        witness = Witness()
        witness.read(self.ledger)
        return witness

    def wait_until_ready(self, number: int) -> None:
        for _ in range(number):
            os.read(self._ready[0], 1)

    def check_accounts(self, before: Process, after: Process) -> None:
        """What was open when the one process died is told to the next, and has an outcome."""
        due = Counter(name_of(row) for row in before.store["calls"] if is_due(row))
        told = Counter(tuple(line["recovered"]) for line in after.log if "recovered" in line)
        self.check(told == due, f"recovered() told of {sorted(told)}, not of {sorted(due)}")
        self.found.update(line["outcome"] for line in after.log if "recovered" in line)
        self.check("None" not in {str(line.get("outcome", "")) for line in after.log}, "a call without outcome")


def second_owner(case: str, url: str, folder: Path, ledger: Path) -> Scenario:
    """While one process lives, another is refused at once; readers work; when it is dead, the next goes on."""
    scenario = Scenario(case, url, folder, ledger)
    order = scenario.order("hold")
    owner = start(order)
    scenario.wait_until_ready(1)
    refused = scenario.run("again")
    scenario.check(refused.logged("in_use") and not refused.status, f"not refused: {refused.log} {refused.text}")
    scenario.check(not any("send" in p for p in refused.logged("points")[0]), "it has sent something all the same")
    reader = scenario.run("read")
    scenario.check(reader.logged("read"), f"nothing could be read: {reader.log} {reader.text}")
    os.kill(owner, signal.SIGKILL)
    scenario.over(os.waitpid(owner, 0)[1], order)
    after = scenario.run("again")
    scenario.check(after.logged("left") and after.logged("after") == [True], f"not taken over: {after.log}")
    return scenario


def five_guards(case: str, url: str, folder: Path, ledger: Path, seed: int) -> Scenario:
    """Five Guards of one process on one file, read meanwhile; killed anywhere, the next five account for all."""
    scenario = Scenario(case, url, folder, ledger)
    dry = scenario.run("mixed", guards=GUARDS, case=f"{case}-dry", store=str(folder / f"{case}-dry.db"))
    scenario.wait_until_ready(GUARDS)
    # How many writes share a commit is a matter of luck: the last quarter may not be reached.
    at = random.Random(seed).randint(1, len(dry.logged("points")[0]) * 3 // 4)
    order = scenario.order("mixed", guards=GUARDS, at=at)
    guards, status = start(order), 0
    while not (ended := os.waitpid(guards, os.WNOHANG))[0]:
        if scenario.store.exists():  # it is there when it is complete
            status |= carry_out(scenario.order("read", log=str(folder / f"{case}-read")))
            scenario.found["readings"] += 1
    scenario.check(not status, f"a reader failed: {process_of(0, folder / f'{case}-read', scenario.store).log}")
    killed = scenario.over(ended[1], order)
    scenario.check(killed.status == signal.SIGKILL, f"not killed at {at}: {killed.log[-2:]}")
    after = scenario.run("again", guards=GUARDS)
    scenario.check(
        after.logged("after") == [True] * GUARDS, f"the next failed: {after.logged('failed')} {after.text}"
    )
    due = [row for row in killed.store["calls"] if is_due(row)]
    scenario.check(len(after.logged("recovered")) == len(due), f"{len(due)} were open: {after.log}")
    scenario.check(not any(map(is_open, after.store["calls"])), "a call without outcome")
    scenario.found.update(line["outcome"] for line in after.log if "recovered" in line)
    ran = scenario.witness().ran
    for serial in range(GUARDS):
        for part, plan in PLANS["mixed"].items():
            label = f"{case}/k{serial}/{part}"
            scenario.faults += contradictions(plan, label, after.store["calls"], ran[label])
    return scenario


def restart_loop(case: str, url: str, folder: Path, ledger: Path, seed: int) -> Scenario:
    """Killed ten times in a row at random points under continuous calls, and started again each time."""
    scenario = Scenario(case, url, folder, ledger)
    rng = random.Random(seed)
    for _ in range(KILLS):
        process = scenario.run("loop", at=rng.randint(1, 200), after=rng.random() < 0.5)
        scenario.check(process.status == signal.SIGKILL, f"ended with {process.status}: {process.text}")
    last = scenario.run("account")
    scenario.check(last.logged("left"), f"the last one failed: {last.logged('failed')} {last.text}")
    for before, after in zip(scenario.processes, scenario.processes[1:], strict=False):
        if after.logged("accounted"):
            scenario.check_accounts(before, after)
    scenario.check(not any(map(is_open, last.store["calls"])), "a call without outcome")
    ran = scenario.witness().ran
    for serial, process in enumerate(scenario.processes, start=1):
        for part in process.logged("called"):
            plan, label = LOOP[int(part.rpartition("-")[2]) % 2], f"{case}/{part}"
            scenario.faults += contradictions(plan, label, last.store["calls"], ran[label])
            scenario.found["called"] += 1
            scenario.found["ran"] += ran[label]
        scenario.check(serial > KILLS or process.status, f"process {serial} was not killed")
    requests = scenario.witness().requests.get(case, [])
    ids = Counter(r["id"] for r in requests if r["method"] and r["id"] is not None)
    scenario.check(max(ids.values()) == 1, "a wire ID was used twice")
    scenario.check(not any(r["http"] == "DELETE" for r in requests), "a session was ended by DELETE")
    return scenario


def another_user(case: str, url: str, folder: Path, ledger: Path) -> Scenario:
    """The record of another principal is not used; whose it is, is told of it when they come back."""
    scenario = Scenario(case, url, folder, ledger)
    died = scenario.run("recovery", lifecycle="recovery", principal="alice")
    scenario.check(died.status == signal.SIGKILL, f"not killed: {died.log}")
    after = scenario.run("again", lifecycle="recovery", principal="bob")
    scenario.check(after.logged("left"), f"the next failed: {after.logged('failed')} {after.text}")
    told = after.logged("recovered")
    scenario.check(not told, f"told of another user's calls: {told}")
    requests = scenario.witness().requests.get(case, [])
    sessions = [{r["session"] for r in requests if r["process"] == p and r["session"]} for p in ("1", "2")]
    scenario.check(sessions[0] and sessions[1] and not sessions[0] & sessions[1], "the session was used")
    taken = after.logged("doubt")
    scenario.check(not taken, f"another user's call was taken for a repeat: {taken}")
    back = scenario.run("again", lifecycle="recovery", principal="alice")
    scenario.check(back.logged("left"), f"the first user failed: {back.logged('failed')} {back.text}")
    scenario.check_accounts(died, back)
    scenario.check(back.logged("recovered"), "no call was in flight")
    return scenario


def moved(case: str, url: str, folder: Path, ledger: Path) -> Scenario:
    """The session of another endpoint is not used; the calls made there are accounted for, and not repeated."""
    scenario = Scenario(case, url, folder, ledger)
    died = scenario.run("recovery", lifecycle="recovery")
    scenario.check(died.status == signal.SIGKILL, f"not killed: {died.log}")
    after = scenario.run("again", lifecycle="recovery", url=url.replace("127.0.0.1", "localhost"))
    scenario.check(after.logged("left"), f"the next failed: {after.logged('failed')} {after.text}")
    scenario.check_accounts(died, after)
    scenario.check(after.logged("recovered"), "no call was in flight")
    requests = scenario.witness().requests.get(case, [])
    sessions = [{r["session"] for r in requests if r["process"] == p and r["session"]} for p in ("1", "2")]
    scenario.check(sessions[0] and sessions[1] and not sessions[0] & sessions[1], "the session was used")
    return scenario
