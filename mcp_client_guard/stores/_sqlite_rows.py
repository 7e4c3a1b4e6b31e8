"""What is written to the tables of a SQLite store: our values become rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from attrs import frozen

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
from mcp_client_guard.core.stored import without_drained_answers
from mcp_client_guard.stores._keep import ENDED_SESSIONS, SERVER_ANSWERS, Keep, first_slot
from mcp_client_guard.stores._sqlite_schema import (
    ANSWER_COLUMNS,
    CALL_COLUMNS,
    CURSOR_COLUMNS,
    SESSION_COLUMNS,
)

_HAS_ANSWER = ", ".join(f"'{outcome.value}'" for outcome in HAS_ANSWER)
_NOT_KNOWN = ", ".join(f"'{outcome.value}'" for outcome in NOT_KNOWN if outcome is not None)
_IS_NEWS = f"untold = {Told.NOBODY.value}"
_THIS_SESSION = "key = ? AND slot = ? AND incarnation = ?"
_THIS_CALL = f"{_THIS_SESSION} AND wire_id = ?"
# `+key` has SQLite look from the end, where the newest row of a call key mostly is, and not by the index.
_NEWEST = (
    " WHERE id = (SELECT id FROM call WHERE +key = ? AND call_key = ? AND principal IS ? ORDER BY id DESC LIMIT 1)"
)

CallRecord = CallSent | CallSettled | AnswerDrained | TaskCreated | TaskEnded
SessionRecord = CursorMoved | CursorDropped | SessionOpened | SessionEnded | ServerAnswered


@frozen
class Owner:
    """Under which key, and for whom, a claim writes."""

    key: str
    origin: str
    principal: str | None


def take_over(db: sqlite3.Connection, key: str) -> int:
    """Raise the epoch of `key`, so that whoever owned it can write no more. Returns the new epoch."""
    db.execute("INSERT OR IGNORE INTO owner (key, epoch, slots) VALUES (?, 0, ?)", (key, first_slot()))
    db.execute("UPDATE owner SET epoch = epoch + 1 WHERE key = ?", (key,))
    epoch = epoch_of(db, key)
    assert epoch is not None
    return epoch


def found_at(db: sqlite3.Connection, owner: Owner) -> Generation | None:
    """The generation that last worked at the owner's endpoint; None also if this version knows none such."""
    found = db.execute("SELECT generation, generation_of FROM owner WHERE key = ?", (owner.key,)).fetchone()
    generation, endpoint = found or (None, None)
    return next((g for g in Generation if endpoint == owner.origin and g.value == generation), None)


def epoch_of(db: sqlite3.Connection, key: str) -> int | None:
    row = db.execute("SELECT epoch FROM owner WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def add_slot(db: sqlite3.Connection, key: str) -> int:
    db.execute("UPDATE owner SET slots = slots + 1 WHERE key = ?", (key,))
    slot: int = db.execute("SELECT slots FROM owner WHERE key = ?", (key,)).fetchone()[0]
    return slot


def keep(db: sqlite3.Connection, owner: Owner, slot: int, records: Sequence[Record], now: float) -> None:
    """Carry records into the tables, in order; what is refused and what is ignored stands in `Claim.write`."""
    for record in without_drained_answers(records):
        _keep(db, owner, slot, record, now)


def _keep(db: sqlite3.Connection, owner: Owner, slot: int, record: Record, now: float) -> None:
    match record:
        case CallRepeated():
            db.execute("UPDATE call SET repeats = repeats + 1" + _NEWEST, _named(owner, record.call_key))
        case OutcomeTold():
            _tell(db, owner, record, now)
        case CallNamed():
            named = (record.name, *_named(owner, record.call_key))
            db.execute("UPDATE call SET also_named = ?" + _NEWEST, named)
        case ConsentSpent():
            db.execute("UPDATE call SET consent_spent = 1" + _NEWEST, _named(owner, record.call_key))
        case GenerationFound():
            generation = record.generation and record.generation.value
            found = (generation, owner.origin, owner.key)
            db.execute("UPDATE owner SET generation = ?, generation_of = ? WHERE key = ?", found)
        case CallSent() | CallSettled() | AnswerDrained() | TaskCreated() | TaskEnded():
            _keep_of_call(db, owner, slot, record, now)
        case _:
            _keep_of_session(db, owner, slot, record, now)


def _keep_of_call(db: sqlite3.Connection, owner: Owner, slot: int, record: CallRecord, now: float) -> None:
    if isinstance(record, (CallSettled, TaskEnded)) and record.slot is not None:
        slot = record.slot
    call = (owner.key, slot, record.incarnation, record.wire_id)
    match record:
        case CallSent():
            _add_call(db, owner, slot, record, now)
        case CallSettled():
            db.execute(
                "UPDATE call SET outcome = ?, reason = ?, settled_at = ?, answer = coalesce(?, answer), untold = ?"
                f" WHERE {_THIS_CALL}",
                (record.outcome.value, record.reason, now, _text(record.answer), record.told.value, *call),
            )
        case AnswerDrained():
            answer = "answer" if record.kept else "NULL"
            at = f"CASE WHEN {_IS_NEWS} AND outcome IN ({_NOT_KNOWN}) THEN ? ELSE settled_at END"
            db.execute(
                f"UPDATE call SET settled_at = {at}, untold = 0, answer = {answer} WHERE {_THIS_CALL}",
                (now, *call),
            )
        case TaskCreated():
            db.execute(
                f"UPDATE call SET task_id = ?, task_is_extension = ?, task_open = 1 WHERE {_THIS_CALL}",
                (json.dumps(record.task_id), int(record.is_extension), *call),
            )
        case TaskEnded():
            db.execute(f"UPDATE call SET task_open = 0 WHERE {_THIS_CALL}", call)
        case _:
            assert_never(record)


def _keep_of_session(db: sqlite3.Connection, owner: Owner, slot: int, record: SessionRecord, now: float) -> None:
    session = (owner.key, slot, record.incarnation)
    match record:
        case CursorMoved():
            db.execute(
                f"INSERT OR REPLACE INTO cursor ({CURSOR_COLUMNS}) SELECT key, slot, incarnation, ?, ?, ?, ?"
                f" FROM session WHERE {_THIS_SESSION} AND ended_at IS NULL",
                (record.stream, _trail_to_text(record.rows), now, record.passed, *session),
            )
        case CursorDropped():
            db.execute(f"DELETE FROM cursor WHERE {_THIS_SESSION} AND stream = ?", (*session, record.stream))
        case SessionOpened():
            _add_session(db, owner, slot, record, now)
        case SessionEnded():
            db.execute(
                f"UPDATE session SET ended_at = ?, end_reason = ? WHERE {_THIS_SESSION} AND ended_at IS NULL",
                (now, record.reason, *session),
            )
            db.execute(f"DELETE FROM cursor WHERE {_THIS_SESSION}", session)
            db.execute(f"DELETE FROM answer WHERE {_THIS_SESSION}", session)
        case ServerAnswered():
            _add_answer(db, session, record)
        case _:
            assert_never(record)


def _add_call(db: sqlite3.Connection, owner: Owner, slot: int, sent: CallSent, now: float) -> None:
    row = (
        owner.key,
        slot,
        sent.incarnation,
        sent.wire_id,
        sent.method,
        sent.tool,
        sent.call_key,
        sent.arguments_digest,
        int(sent.may_have_side_effects),
        now,
        int(sent.named),
        owner.origin,
        owner.principal,
    )
    try:
        db.execute(
            f"INSERT INTO call ({CALL_COLUMNS})"
            " VALUES (?,?,?,?,?,?,?,?,?,?,NULL,NULL,NULL,?,NULL,0,0,0,NULL,?,?,0,0,NULL)",
            row,
        )
    except sqlite3.IntegrityError:
        raise StoreWriteError(f"call {sent.wire_id} is in the ledger already; nothing was kept") from None


def _add_session(db: sqlite3.Connection, owner: Owner, slot: int, opened: SessionOpened, now: float) -> None:
    row = (
        owner.key,
        slot,
        opened.incarnation,
        opened.generation.value,
        owner.origin,
        owner.principal,
        opened.session_id,
        opened.protocol_version,
        json.dumps(opened.initialize_params),
        json.dumps(opened.initialize_result),
        now,
    )
    try:
        db.execute(f"INSERT INTO session ({SESSION_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,NULL,NULL)", row)
    except sqlite3.IntegrityError:
        raise StoreWriteError(f"incarnation {opened.incarnation} exists already; nothing was kept") from None


def _named(owner: Owner, call_key: str) -> tuple[str, str, str | None]:
    """A name of one principal's is not another's; but a server that has moved is the same."""
    return owner.key, call_key, owner.principal


def _tell(db: sqlite3.Connection, owner: Owner, told: OutcomeTold, now: float) -> None:
    """Few rows are untold: they have an index of their own."""
    at = f"CASE WHEN {_IS_NEWS} THEN ? ELSE settled_at END"
    answer = "NULL" if told.taken else "answer"
    of_these = f" AND coalesce(outcome, '') NOT IN ({_HAS_ANSWER})" if told.as_doubt else ""
    db.execute(
        f"UPDATE call SET settled_at = {at}, untold = min(untold, ?), answer = {answer}"
        f" WHERE key = ? AND untold AND call_key = ? AND principal IS ?{of_these}",
        (now, told.told.value, *_named(owner, told.call_key)),
    )


def _add_answer(db: sqlite3.Connection, session: tuple[str, int, int], answered: ServerAnswered) -> None:
    # Servers count their requests per stream: the ID alone does not say which it is.
    request = json.dumps([answered.request_id, answered.stream, answered.event_id])
    db.execute(
        f"INSERT OR REPLACE INTO answer ({ANSWER_COLUMNS}) SELECT key, slot, incarnation, ?, ?, ?"
        f" FROM session WHERE {_THIS_SESSION} AND ended_at IS NULL",
        (request, answered.digest, json.dumps(answered.answer), *session),
    )
    db.execute(
        f"DELETE FROM answer WHERE {_THIS_SESSION} AND id <="
        f" (SELECT id FROM answer WHERE {_THIS_SESSION} ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (*session, *session, SERVER_ANSWERS),
    )


def forget(db: sqlite3.Connection, owner: Owner, call_key: str) -> int:
    """Delete the owner's rows of a call key, or of a name; returns how many."""
    which = "key = ? AND ? IN (call_key, also_named) AND principal IS ?"
    return db.execute(f"DELETE FROM call WHERE {which}", _named(owner, call_key)).rowcount


def prune(db: sqlite3.Connection, key: str, limits: Keep, now: float) -> None:
    """Let go of settled calls and ended sessions beyond the limits, oldest first. Open ones stay."""
    settled = "settled_at IS NOT NULL AND NOT task_open"
    spared = (
        f"SELECT id FROM call WHERE key = :key AND {settled}"
        f" AND (untold OR (outcome IN ({_NOT_KNOWN}) AND settled_at >= :unsure)) ORDER BY id DESC LIMIT :number"
    )
    for table, finished, finished_at, number, kept in (
        ("call", f"{settled} AND (may_have_side_effects OR named)", "settled_at", limits.calls, spared),
        ("call", f"{settled} AND NOT (may_have_side_effects OR named)", "settled_at", limits.calls, spared),
        ("session", "ended_at IS NOT NULL", "ended_at", ENDED_SESSIONS, ""),
    ):
        limit = {"key": key, "oldest": limits.oldest(now), "unsure": limits.unsure_since(now), "number": number}
        db.execute(
            f"DELETE FROM {table} WHERE key = :key AND {finished}"
            f" AND ({finished_at} < :oldest OR (id NOT IN ({kept}) AND id <= (SELECT id FROM {table}"
            f" WHERE key = :key AND {finished}"
            " ORDER BY id DESC LIMIT 1 OFFSET :number)))",
            limit,
        )


def _trail_to_text(rows: tuple[Seen, ...]) -> str:
    return json.dumps([[row.event_id, row.digest.hex()] for row in rows[-STORED_ROWS:]])


def _text(answer: JSON | None) -> str | None:
    return None if answer is None else json.dumps(answer)
