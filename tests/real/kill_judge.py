"""Judges a case of the kill sweep: what the processes said, what is in the store, what the server wrote down."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from mcp_client_guard.core.model import Told

from .kill_cases import Evidence, Process
from .kill_child import PLANS, Planned

MOST_REDELIVERED = 512
Row = dict[str, Any]


@define
class Witness:
    """What the servers wrote down: executions by label, requests by case."""

    ran: Counter[str] = field(factory=Counter)
    requests: dict[str, list[Row]] = field(factory=dict)

    def read(self, ledger: Path) -> None:
        """Take down one server's."""
        if ledger.exists():
            self.ran.update(line.partition("\t")[2] for line in ledger.read_text().splitlines())
        record = Path(f"{ledger}.http")
        for line in record.read_text().splitlines() if record.exists() else ():
            row = json.loads(line)
            self.requests.setdefault(row["case"], []).append(row)


@frozen
class KillVerdict:
    """What was found; `faults` is empty if all promises were kept."""

    case: str
    killed: bool
    faults: list[str]
    found: Counter[str]
    """Of the calls that were open at the kill: how many, and what became of them; repeats refused and attached."""


@define
class Judge:
    """Of one case."""

    evidence: Evidence
    witness: Witness
    found: Counter[str] = field(factory=Counter)

    def judge(self) -> KillVerdict:
        """Say what is wrong."""
        processes = self.evidence.processes
        faults = [
            *self._endings(),
            *self._outcomes(),
            *self._executions(),
            *self._repeats(),
            *self._requests(),
            *self._messages(),
            *self._questions(),
        ]
        killed = processes[-2].status == signal.SIGKILL
        return KillVerdict(str(self.evidence.case), killed, faults, self.found)

    @property
    def _plans(self) -> Mapping[str, Planned]:
        return PLANS[self.evidence.case.lifecycle]

    def _label(self, part: str) -> str:
        return f"{self.evidence.case}/{part}"

    @property
    def _last(self) -> Process:
        return self.evidence.processes[-1]

    def _part_of(self, row: Row) -> str | None:
        parts = (p for p in self._plans if self._plans[p].digest(self._label(p)).hex() == row["arguments_digest"])
        return next(parts, None)

    def _endings(self) -> Iterator[str]:
        *before, last = self.evidence.processes
        for serial, process in enumerate(before, start=1):
            if process.status not in (0, signal.SIGKILL):
                yield f"process {serial} ended with {process.status}: {process.logged('failed')} {process.text}"
        if last.status or not last.logged("left"):
            yield f"the next process ended with {last.status}: {last.logged('failed')} {last.text}"
        elif last.logged("after") != [True]:
            yield "a new call was not answered"

    def _outcomes(self) -> Iterator[str]:
        """Each call that was open at a kill has one outcome now, and `recovered()` told the last process."""
        final = {name_of(row): row for row in self._last.store["calls"]}
        for process in self.evidence.processes[:-1]:
            for row in filter(is_open, process.store["calls"]):
                now = final.get(name_of(row))
                if now is None:
                    yield f"the row of {row['method']} is gone"
                elif is_open(now):
                    yield f"{row['method']} {row['tool']} has no outcome: {now['outcome']}"
                else:
                    yield from self._one_outcome(process, row, now)
        told = {tuple(line["recovered"]): line for line in self._last.log if "recovered" in line}
        settled = {name for process in self.evidence.processes for name in map(tuple, process.logged("recovered"))}
        left = {name_of(r) for p in self.evidence.processes[:-1] for r in p.store["calls"] if is_open(r)}
        self.found["untold"] += len(left - settled)  # the process that settled them died before it could say so
        due = {name_of(row) for row in self.evidence.processes[-2].store["calls"] if is_due(row)}
        if due != set(told) and self._last.logged("accounted"):
            yield f"recovered() told of {sorted(told)} and not of {sorted(due)}"
        for name, line in told.items():
            if line["outcome"] != final[name]["outcome"]:
                yield f"recovered() said {line['outcome']}, and the ledger {final[name]['outcome']}"
            part = self._part_of(final[name])
            right = None if part is None else self._plans[part].right(self._label(part))
            if line["outcome"] == "recovered" and right is not None and line["answer"] != right:
                yield f"recovered with a wrong answer: {line['answer']!r}"

    def _one_outcome(self, at_kill: Process, row: Row, now: Row) -> Iterator[str]:
        self.found.update(["open", now["outcome"]])
        is_call = row["method"] == "tools/call"
        if is_call and self._can_be_recovered(at_kill, row) and now["outcome"] != "recovered":
            yield f"needless doubt of {row['tool']}: {now['outcome']}, {now['reason']}"

    def _can_be_recovered(self, at_kill: Process, row: Row) -> bool:
        """Its session lives, and it has a task, or a stream with a cursor to resume by."""
        session = (row["slot"], row["incarnation"])
        lives = any(
            (s["slot"], s["incarnation"]) == session and not s["ended_at"] for s in at_kill.store["sessions"]
        )
        if not lives or self.evidence.case.lifecycle == "lost":
            return False
        if row["task_open"]:
            return True
        return any(
            (c["slot"], c["incarnation"]) == session and c["stream"] == str(row["wire_id"]) and c["rows"]
            for c in at_kill.store["cursors"]
        )

    def _executions(self) -> Iterator[str]:
        """The ledger of the guard and that of the server do not contradict each other."""
        for part, plan in self._plans.items():
            label = self._label(part)
            yield from contradictions(plan, label, self._last.store["calls"], self.witness.ran[label])
            for process in self.evidence.processes:
                for line in process.log:
                    if line.get("answered") == part and line["text"] != plan.right(label):
                        yield f"{part} was given a wrong answer: {line['text']!r}"

    def _repeats(self) -> Iterator[str]:
        """A repeat of a call in doubt is refused; one by name gets the answer of the recorded call."""
        for process in self.evidence.processes[1:]:
            for line in process.log:
                if "repeats" not in line:
                    continue
                part, doubted = line["repeats"], line["doubted"]
                doubts = [one["call_key"] for one in process.log if one.get("doubt") == part]
                answered = any(one.get("answered") == part for one in process.log)
                if doubted is not None:
                    self.found["refused"] += doubts == [doubted]
                    if doubts != [doubted] and (answered or process is self._last):
                        yield f"the repeat of {part} was not refused: {doubts or answered}"
                elif answered:
                    self.found["attached"] += 1
                elif process is self._last:
                    errors = [one["text"] for one in process.log if one.get("error") == part]
                    yield f"the repeat of {part} by name was not answered: {errors or doubts}"

    def _requests(self) -> Iterator[str]:
        """On the wire: no DELETE, no ID twice, no side effect without its row."""
        requests = self.witness.requests.get(str(self.evidence.case), [])
        if any(request["http"] == "DELETE" for request in requests):
            yield "a session was ended by DELETE"
        ids = Counter(r["id"] for r in requests if r["method"] and r["id"] is not None)
        if twice := [wire_id for wire_id, times in ids.items() if times > 1]:
            yield f"wire IDs used twice: {twice}"
        for serial, process in enumerate(self.evidence.processes, start=1):
            kept = {row["wire_id"] for row in process.store["calls"]}
            for request in requests:
                if request["process"] != str(serial) or request["method"] != "tools/call":
                    continue
                part = request["label"].rpartition("/")[2]
                unsafe = part in self._plans and self._plans[part].tool != "look"
                if unsafe and request["id"] not in kept:
                    yield f"{part} was sent, and its row was not on disk"

    def _messages(self) -> Iterator[str]:
        """No response twice; a message again only if that was reported."""
        seen: set[Any] = set()
        for serial, process in enumerate(self.evidence.processes, start=1):
            responses = process.logged("response")
            if len(responses) != len(set(responses)):
                yield f"process {serial} was given a response twice: {responses}"
            messages = process.logged("message")
            again = len(messages) - len(set(messages) - seen)
            reported = process.logged("event").count("MaybeRedelivered")
            if again > reported:
                yield f"process {serial} was given {again} messages again, of which {reported} were reported"
            if reported > MOST_REDELIVERED:
                yield f"{reported} messages maybe redelivered"
            self.found["redelivered"] += again
            seen.update(messages)

    def _questions(self) -> Iterator[str]:
        """What the host has answered, as far as that was kept, it is not asked again."""
        asked: Counter[str] = Counter()
        for process in self.evidence.processes:
            for question in process.logged("asked"):
                asked[question] += 1
            for question, times in asked.items():
                answered = len(self.evidence.processes[0].store["answers"])
                if times > 1 and answered and question in self.evidence.processes[0].logged("asked")[:answered]:
                    yield f"asked {times} times: {question}"


def contradictions(plan: Planned, label: str, calls: Sequence[Row], ran: int) -> Iterator[str]:
    """Between how often the server says that it ran a call, and what the rows in the guard's ledger say of it."""
    digest = plan.digest(label).hex()
    outcomes = Counter(row["outcome"] for row in calls if row["arguments_digest"] == digest)
    if ran < min(1, outcomes["completed"] + outcomes["recovered"]):
        yield f"{label} did not run: {dict(outcomes)}"
    if plan.tool == "look":  # it may run again, and its row is written behind
        return
    if ran and not any(outcome != "not_executed" for outcome in outcomes):
        yield f"{label} ran {ran} times: {dict(outcomes) or 'no row'}"
    if ran > 1:
        yield f"{label} ran {ran} times: {dict(outcomes)}"


def judge_all(evidence: Sequence[Evidence], witness: Witness) -> list[KillVerdict]:
    return [Judge(one, witness).judge() for one in evidence]


def name_of(row: Row) -> tuple[int, int, int]:
    return row["slot"], row["incarnation"], row["wire_id"]


def is_open(row: Row) -> bool:
    return row["outcome"] is None or bool(row["task_open"])


def is_due(row: Row) -> bool:
    """Whether the next process is to be told of it: what was open, and what nobody has heard."""
    return is_open(row) or row["untold"] == Told.NOBODY.value
