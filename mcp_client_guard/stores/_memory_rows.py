"""What a MemoryStore keeps under one key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from mcp_client_guard._errors import StoreWriteError
from mcp_client_guard.core.model import (
    HAS_ANSWER,
    JSON,
    NOT_KNOWN,
    STORED_ROWS,
    AnswerDrained,
    CallNamed,
    CallRepeated,
    CallSent,
    CallSettled,
    ConsentSpent,
    CursorDropped,
    CursorMoved,
    Generation,
    GenerationFound,
    Outcome,
    OutcomeTold,
    Record,
    Seen,
    ServerAnswered,
    SessionEnded,
    SessionOpened,
    TaskCreated,
    TaskEnded,
    Told,
    assert_never,
)
from mcp_client_guard.stores import StoredCall, StoredSession
from mcp_client_guard.stores._keep import ENDED_SESSIONS, SERVER_ANSWERS, Keep, first_slot

if TYPE_CHECKING:
    from mcp_client_guard.stores.memory import MemoryClaim


@define(eq=False)
class MemoryCall:
    """A ledger row: what was sent, and what became of it."""

    key: str
    slot: int
    sent: CallSent
    sent_at: float
    origin: str
    principal: str | None
    outcome: Outcome | None = None
    reason: str | None = None
    settled_at: float | None = None
    answer: JSON | None = None
    task: TaskCreated | None = None
    task_open: bool = False
    repeats: int = 0
    told: Told = Told.CALLER
    consent_spent: bool = False
    also_named: str | None = None

    @property
    def matters(self) -> bool:
        """Whether a repeat of it may have to be known: no number of reads pushes it out."""
        return self.sent.may_have_side_effects or self.sent.named

    @property
    def finished(self) -> bool:
        """Whether it may be pruned."""
        return self.outcome is not None and not self.task_open

    def is_spared(self, unsure_since: float) -> bool:
        """Whether somebody is still to be told of it, or it may have run and is new."""
        is_unsure = self.outcome in NOT_KNOWN and (self.settled_at or 0.0) >= unsure_since
        return self.told is not Told.CALLER or is_unsure

    def learn(self, record: CallSettled | AnswerDrained | TaskCreated | TaskEnded, now: float) -> None:
        match record:
            case CallSettled():
                self.outcome, self.reason, self.settled_at = record.outcome, record.reason, now
                self.told = record.told
                if record.answer is not None:
                    self.answer = record.answer
            case AnswerDrained():
                if self.told is Told.NOBODY and self.outcome in NOT_KNOWN:
                    self.settled_at = now
                self.told = Told.CALLER
                if not record.kept:
                    self.answer = None
            case TaskCreated():
                self.task = record
                self.task_open = True
            case TaskEnded():
                self.task_open = False
            case _:
                assert_never(record)

    def stored(self) -> StoredCall:
        sent, task = self.sent, self.task
        return StoredCall(
            key=self.key,
            slot=self.slot,
            incarnation=sent.incarnation,
            wire_id=sent.wire_id,
            method=sent.method,
            tool=sent.tool,
            call_key=sent.call_key,
            arguments_digest=sent.arguments_digest,
            may_have_side_effects=sent.may_have_side_effects,
            sent_at=self.sent_at,
            outcome=self.outcome,
            reason=self.reason,
            settled_at=self.settled_at,
            named=sent.named,
            answer=self.answer,
            task_id=task.task_id if task else None,
            task_is_extension=task is not None and task.is_extension,
            task_open=self.task_open,
            repeats=self.repeats,
            origin=self.origin,
            principal=self.principal,
            told=self.told,
            consent_spent=self.consent_spent,
            also_named=self.also_named,
        )


@define
class MemorySession:
    """A session record that is still written to, its cursors by stream, and its answers to the server."""

    record: StoredSession
    cursors: dict[str, tuple[Seen, ...]] = field(factory=dict)
    answers: dict[tuple[str | int, int | None, str | None], ServerAnswered] = field(factory=dict)
    moved_at: dict[str, float] = field(factory=dict)
    passed: dict[str, int] = field(factory=dict)

    def stored(self, call_sent_at: float) -> StoredSession:
        last_used_at = max(self.record.opened_at, call_sent_at, *self.moved_at.values())
        return evolve(
            self.record,
            cursors=dict(self.cursors),
            answers=tuple(self.answers.values()),
            last_used_at=last_used_at,
            passed={stream: passed for stream, passed in self.passed.items() if passed},
        )

    def move(self, record: CursorMoved, now: float) -> None:
        self.cursors[record.stream] = record.rows[-STORED_ROWS:]
        self.moved_at[record.stream] = now
        self.passed[record.stream] = record.passed

    def drop(self, stream: str) -> None:
        self.cursors.pop(stream, None)
        self.moved_at.pop(stream, None)
        self.passed.pop(stream, None)

    def keep_answer(self, record: ServerAnswered) -> None:
        question = (record.request_id, record.stream, record.event_id)
        self.answers.pop(question, None)  # so that it is the newest
        self.answers[question] = record
        if len(self.answers) > SERVER_ANSWERS:
            del self.answers[next(iter(self.answers))]

    def end(self, reason: str, now: float) -> None:
        self.record = evolve(self.record, ended_at=now, end_reason=reason)
        self.cursors.clear()
        self.moved_at.clear()
        self.passed.clear()
        self.answers.clear()


class KeyRows:
    """Everything kept under one key."""

    def __init__(self, key: str, limits: Keep) -> None:
        self.key = key
        self.limits = limits
        self.owner: MemoryClaim | None = None
        self.slots = first_slot()
        self.epoch = 0
        self.found: dict[str, Generation] = {}
        """By endpoint."""
        self.unpruned = 0
        """Calls sent since the last prune."""
        self.calls: dict[tuple[int, int, int], MemoryCall] = {}
        self.sessions: dict[tuple[int, int], MemorySession] = {}

    def refuse_repeats(self, slot: int, records: Sequence[Record]) -> None:
        """Before anything is kept, so that a batch is kept whole or not at all."""
        calls, sessions = set(), set()
        for record in records:
            if isinstance(record, CallSent):
                call = (slot, record.incarnation, record.wire_id)
                if call in self.calls or call in calls:
                    raise StoreWriteError(f"call {record.wire_id} is in the ledger already; nothing was kept")
                calls.add(call)
            elif isinstance(record, SessionOpened):
                session = (slot, record.incarnation)
                if session in self.sessions or session in sessions:
                    raise StoreWriteError(f"incarnation {record.incarnation} exists already; nothing was kept")
                sessions.add(session)

    def keep(self, slot: int, record: Record, now: float, origin: str, principal: str | None) -> None:
        match record:
            case CallSent():
                call = MemoryCall(self.key, slot, record, now, origin, principal)
                self.calls[slot, record.incarnation, record.wire_id] = call
            case CallSettled() | TaskEnded():
                self._learn(slot if record.slot is None else record.slot, record, now)
            case AnswerDrained() | TaskCreated():
                self._learn(slot, record, now)
            case CallRepeated():
                for newest in self._newest(record.call_key, principal):
                    newest.repeats += 1
            case CallNamed():
                for newest in self._newest(record.call_key, principal):
                    newest.also_named = record.name
            case ConsentSpent():
                for newest in self._newest(record.call_key, principal):
                    newest.consent_spent = True
            case OutcomeTold():
                for known in self._of(record.call_key, principal):
                    if record.as_doubt and known.outcome in HAS_ANSWER:
                        continue
                    if record.taken and known.told is not Told.CALLER:
                        known.answer = None
                    if known.told is Told.NOBODY:
                        known.settled_at = now
                    known.told = min(known.told, record.told, key=lambda told: told.value)
            case GenerationFound():
                self._found(origin, record.generation)
            case CursorMoved():
                if session := self._open_session(slot, record.incarnation):
                    session.move(record, now)
            case CursorDropped():
                if session := self._open_session(slot, record.incarnation):
                    session.drop(record.stream)
            case SessionOpened():
                stored = _opened(self.key, slot, record, now, origin, principal)
                self.sessions[slot, record.incarnation] = MemorySession(stored)
            case SessionEnded():
                if session := self._open_session(slot, record.incarnation):
                    session.end(record.reason, now)
            case ServerAnswered():
                if session := self._open_session(slot, record.incarnation):
                    session.keep_answer(record)
            case _:
                assert_never(record)

    def prune(self, now: float) -> None:
        """Let go of finished calls and ended sessions beyond the limits, oldest first."""
        self.unpruned, oldest = 0, self.limits.oldest(now)
        finished = [(call_id, call) for call_id, call in self.calls.items() if call.finished]
        unsure_since = self.limits.unsure_since(now)
        may_be_spared = [call_id for call_id, call in reversed(finished) if call.is_spared(unsure_since)]
        spared = set(may_be_spared[: self.limits.calls])
        for matters in (True, False):
            alike = [(call_id, call) for call_id, call in finished if call.matters is matters]
            for left, (call_id, call) in zip(range(len(alike), 0, -1), alike, strict=True):
                is_beyond = left > self.limits.calls and call_id not in spared
                if is_beyond or (call.settled_at or 0.0) < oldest:
                    del self.calls[call_id]
        ended = [(at, row.record.ended_at) for at, row in self.sessions.items() if row.record.ended_at]
        for position, (session_id, ended_at) in enumerate(ended):
            if position < len(ended) - ENDED_SESSIONS or ended_at < oldest:
                del self.sessions[session_id]

    def unfinished(self) -> list[MemoryCall]:
        """Those that are left to be seen to, and the newest of each session."""
        calls = list(self.calls.values())
        newest = {(call.slot, call.sent.incarnation): call for call in calls if call.sent.method != "ping"}
        last = {id(call) for call in newest.values()}
        keys = {call.sent.call_key for call in calls if not call.finished}
        return [c for c in calls if c.sent.call_key in keys or c.told is not Told.CALLER or id(c) in last]

    def stored_sessions(self) -> list[StoredSession]:
        sent_at: dict[tuple[int, int], float] = {}
        for call in list(self.calls.values()):
            session = (call.slot, call.sent.incarnation)
            sent_at[session] = max(sent_at.get(session, 0.0), call.sent_at)
        return [row.stored(sent_at.get(at, 0.0)) for at, row in list(self.sessions.items())]

    def forget(self, call_key: str, principal: str | None) -> int:
        found = [
            call_id
            for call_id, call in self.calls.items()
            if call_key in (call.sent.call_key, call.also_named) and call.principal == principal
        ]
        for call_id in found:
            del self.calls[call_id]
        return len(found)

    def _learn(self, slot: int, record: CallSettled | AnswerDrained | TaskCreated | TaskEnded, now: float) -> None:
        call = self.calls.get((slot, record.incarnation, record.wire_id))
        if call is not None:
            call.learn(record, now)

    def _of(self, call_key: str, principal: str | None) -> Iterator[MemoryCall]:
        """The rows of this call key, newest first. A name of one principal's is not another's; but a server that
        has moved is the same."""
        for call in reversed(self.calls.values()):
            if (call.sent.call_key, call.principal) == (call_key, principal):
                yield call

    def _newest(self, call_key: str, principal: str | None) -> Iterable[MemoryCall]:
        return islice(self._of(call_key, principal), 1)

    def _found(self, origin: str, generation: Generation | None) -> None:
        if generation is None:
            self.found.pop(origin, None)
        else:
            self.found[origin] = generation

    def _open_session(self, slot: int, incarnation: int) -> MemorySession | None:
        session = self.sessions.get((slot, incarnation))
        return session if session is not None and session.record.ended_at is None else None


def _opened(
    key: str, slot: int, record: SessionOpened, now: float, origin: str, principal: str | None
) -> StoredSession:
    return StoredSession(
        key=key,
        slot=slot,
        incarnation=record.incarnation,
        generation=record.generation,
        origin=origin,
        principal=principal,
        session_id=record.session_id,
        protocol_version=record.protocol_version,
        initialize_params=record.initialize_params,
        initialize_result=record.initialize_result,
        opened_at=now,
        ended_at=None,
        end_reason=None,
        cursors={},
        answers=(),
        last_used_at=now,
    )
