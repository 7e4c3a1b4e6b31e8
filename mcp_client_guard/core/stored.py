"""What a store gives back, the rows as a reader sees them; what it need not be given, and what not later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve, field, frozen

from .ledger import HOOK_KEY
from .model import (
    JSON,
    AnswerDrained,
    CallSent,
    CallSettled,
    CursorDropped,
    CursorMoved,
    Generation,
    Outcome,
    Record,
    Seen,
    ServerAnswered,
    SessionEnded,
    SessionOpened,
    Told,
)
from .unsent import says_unsent


@frozen
class StoredCall:
    """A ledger row as a reader sees it. Times are seconds since the Unix epoch, stamped by the store."""

    key: str
    slot: int
    incarnation: int
    wire_id: int
    method: str
    tool: str | None
    call_key: str
    arguments_digest: bytes = field(repr=False)
    may_have_side_effects: bool
    sent_at: float
    outcome: Outcome | None
    """None: in flight, or left without an outcome by a process that died (then it is in doubt)."""
    reason: str | None
    settled_at: float | None
    """When it got its outcome; or when somebody was told of that, where repeats are held back from then on."""
    named: bool
    """The host chose the call key."""
    answer: JSON | None = field(repr=False)
    """What the server answered, until it is drained."""
    task_id: str | None = field(repr=False)
    """Whoever holds it may read the task: a credential."""
    task_is_extension: bool
    task_open: bool
    """A task was created, and has not ended as far as is known."""
    repeats: int
    """How often somebody sent this call again, and was refused or joined to it."""
    origin: str | None = None
    """The endpoint it was sent to: scheme, host, port and path, and a digest of the query if there is one.
    None: not known, in a row of an earlier version."""
    principal: str | None = None
    told: Told = Told.CALLER
    """Who knows the outcome."""
    consent_spent: bool = False
    """The consent that a repeat of it brings along was used."""
    also_named: str | None = None
    """The name of a call that repeated this one, and has what became of it."""

    @property
    def is_hook_s(self) -> bool:
        """The `reconcile` hook has asked this, and not the host."""
        return self.call_key.startswith(HOOK_KEY) and not self.named

    @property
    def did_not_run(self) -> bool:
        """It was not executed; or its caller gave it up before it was sent, or before it was sent again."""
        unsent = self.outcome is Outcome.CANCELLED and says_unsent(self.reason or "")
        return unsent or self.outcome is Outcome.NOT_EXECUTED


@frozen
class StoredSession:
    """A session record as a reader sees it, with its cursors by stream name."""

    key: str
    slot: int
    incarnation: int
    generation: Generation
    origin: str
    """The endpoint, as in `StoredCall`."""
    principal: str | None
    session_id: str | None = field(repr=False)
    protocol_version: str | None
    initialize_params: JSON = field(repr=False)
    initialize_result: JSON = field(repr=False)
    opened_at: float
    ended_at: float | None
    end_reason: str | None
    cursors: Mapping[str, tuple[Seen, ...]] = field(repr=False)
    answers: tuple[ServerAnswered, ...] = field(repr=False)
    """To the server's requests; oldest first, the newest 256."""
    last_used_at: float
    """The newest of its opening, its calls' sending and its cursors' moves."""
    passed: Mapping[str, int] = field(factory=dict)
    """By stream name, how many events after its cursor were drained, where any were."""


def without_drained_answers(records: Iterable[Record]) -> list[Record]:
    """As many, in order: an answer that is drained further on, as most are, need not be written to be deleted."""
    drained: set[tuple[int, int]] = set()
    kept: list[Record] = []
    for record in reversed(list(records)):
        if isinstance(record, AnswerDrained) and not record.kept:
            drained.add((record.incarnation, record.wire_id))
        elif isinstance(record, CallSettled) and (record.incarnation, record.wire_id) in drained:
            record = evolve(record, answer=None, told=Told.CALLER)
        kept.append(record)
    return kept[::-1]


def falls_with_row(record: Record) -> bool:
    """Whether this, of what is written before a request may leave, is nothing if that cannot be written: the row
    itself, and the end of the sending before it. The rest waits until the disk heals."""
    return isinstance(record, (CallSent, CallSettled))


def compacted(unsaved: Mapping[int, Record], most: int) -> dict[int, Record]:
    """These, in order, less what later ones make needless; of more than `most` the newest, and every session."""
    kept: dict[int, Record] = {}
    moved: set[tuple[int, str]] = set()
    records = without_drained_answers(unsaved.values())
    for number, record in reversed(list(zip(unsaved, records, strict=True))):
        if isinstance(record, (CursorMoved, CursorDropped)):
            if (record.incarnation, record.stream) in moved:
                continue
            moved.add((record.incarnation, record.stream))
        if len(kept) < most or isinstance(record, (SessionOpened, SessionEnded)):
            kept[number] = record
    return dict(reversed(kept.items()))
