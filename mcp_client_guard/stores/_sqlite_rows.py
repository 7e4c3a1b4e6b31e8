"""The tables of a SQLite store, and the translation between their rows and our values."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import frozen

from mcp_client_guard._errors import StoreWriteError
from mcp_client_guard.core.model import (
    JSON,
    CallSent,
    CallSettled,
    CursorDropped,
    CursorMoved,
    Generation,
    Outcome,
    Record,
    Seen,
    SessionEnded,
    SessionOpened,
    assert_never,
)
from mcp_client_guard.stores import StoredCall, StoredSession
from mcp_client_guard.stores._keep import CURSOR_ROWS, ENDED_SESSIONS, Keep

APPLICATION_ID = 0x4D436731  # "MCg1"
VERSION = 1

SCHEMA = (
    "CREATE TABLE owner (key TEXT PRIMARY KEY, epoch INTEGER NOT NULL, slots INTEGER NOT NULL)",
    "CREATE TABLE call (id INTEGER PRIMARY KEY, key TEXT NOT NULL, slot INTEGER NOT NULL,"
    " incarnation INTEGER NOT NULL, wire_id INTEGER NOT NULL, method TEXT NOT NULL, tool TEXT,"
    " call_key TEXT NOT NULL, arguments_digest BLOB NOT NULL, may_have_side_effects INTEGER NOT NULL,"
    " sent_at REAL NOT NULL, outcome TEXT, reason TEXT, settled_at REAL,"
    " UNIQUE (key, slot, incarnation, wire_id))",
    "CREATE TABLE session (id INTEGER PRIMARY KEY, key TEXT NOT NULL, slot INTEGER NOT NULL,"
    " incarnation INTEGER NOT NULL, generation TEXT NOT NULL, origin TEXT NOT NULL, principal TEXT,"
    " session_id TEXT, protocol_version TEXT, initialize_params TEXT NOT NULL,"
    " initialize_result TEXT NOT NULL, opened_at REAL NOT NULL, ended_at REAL, end_reason TEXT,"
    " UNIQUE (key, slot, incarnation))",
    "CREATE TABLE cursor (key TEXT NOT NULL, slot INTEGER NOT NULL, incarnation INTEGER NOT NULL,"
    " stream TEXT NOT NULL, trail TEXT NOT NULL, PRIMARY KEY (key, slot, incarnation, stream))",
)

_CALL_COLUMNS = (
    "key, slot, incarnation, wire_id, method, tool, call_key, arguments_digest, may_have_side_effects,"
    " sent_at, outcome, reason, settled_at"
)
_SESSION_COLUMNS = (
    "key, slot, incarnation, generation, origin, principal, session_id, protocol_version,"
    " initialize_params, initialize_result, opened_at, ended_at, end_reason"
)
_CURSOR_COLUMNS = "key, slot, incarnation, stream, trail"
_THIS_SESSION = "key = ? AND slot = ? AND incarnation = ?"


@frozen
class Owner:
    """Under which key, and for whom, a claim writes."""

    key: str
    origin: str
    principal: str | None


# --- writing --------------------------------------------------------------------------------------


def take_over(db: sqlite3.Connection, key: str) -> int:
    """Raise the epoch of `key`, so that whoever owned it can write no more. Returns the new epoch."""
    db.execute("INSERT OR IGNORE INTO owner (key, epoch, slots) VALUES (?, 0, 0)", (key,))
    db.execute("UPDATE owner SET epoch = epoch + 1 WHERE key = ?", (key,))
    epoch = epoch_of(db, key)
    assert epoch is not None
    return epoch


def epoch_of(db: sqlite3.Connection, key: str) -> int | None:
    row = db.execute("SELECT epoch FROM owner WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def add_slot(db: sqlite3.Connection, key: str) -> int:
    db.execute("UPDATE owner SET slots = slots + 1 WHERE key = ?", (key,))
    slot: int = db.execute("SELECT slots FROM owner WHERE key = ?", (key,)).fetchone()[0]
    return slot


def keep(db: sqlite3.Connection, owner: Owner, slot: int, record: Record, now: float) -> None:
    """Carry one record into the tables; what is refused and what is ignored stands in `Claim.write`."""
    session = (owner.key, slot, record.incarnation)
    match record:
        case CallSent():
            _add_call(db, session, record, now)
        case CallSettled():
            db.execute(
                f"UPDATE call SET outcome = ?, reason = ?, settled_at = ? WHERE {_THIS_SESSION} AND wire_id = ?",
                (record.outcome.value, record.reason, now, *session, record.wire_id),
            )
        case CursorMoved():
            db.execute(
                f"INSERT OR REPLACE INTO cursor ({_CURSOR_COLUMNS}) SELECT key, slot, incarnation, ?, ?"
                f" FROM session WHERE {_THIS_SESSION} AND ended_at IS NULL",
                (record.stream, _trail_to_text(record.rows), *session),
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
        case _:
            assert_never(record)


def _add_call(db: sqlite3.Connection, session: tuple[str, int, int], sent: CallSent, now: float) -> None:
    row = (
        *session,
        sent.wire_id,
        sent.method,
        sent.tool,
        sent.call_key,
        sent.arguments_digest,
        int(sent.may_have_side_effects),
        now,
    )
    try:
        db.execute(f"INSERT INTO call ({_CALL_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,NULL,NULL,NULL)", row)
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
        db.execute(f"INSERT INTO session ({_SESSION_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,NULL,NULL)", row)
    except sqlite3.IntegrityError:
        raise StoreWriteError(f"incarnation {opened.incarnation} exists already; nothing was kept") from None


def prune(db: sqlite3.Connection, key: str, limits: Keep, now: float) -> None:
    """Let go of settled calls and ended sessions beyond the limits, oldest first. Open ones stay."""
    oldest = limits.oldest(now)
    for table, finished_at, number in (
        ("call", "settled_at", limits.calls),
        ("session", "ended_at", ENDED_SESSIONS),
    ):
        db.execute(
            f"DELETE FROM {table} WHERE key = ? AND {finished_at} IS NOT NULL"
            f" AND ({finished_at} < ? OR id <= (SELECT id FROM {table}"
            f" WHERE key = ? AND {finished_at} IS NOT NULL"
            " ORDER BY id DESC LIMIT 1 OFFSET ?))",
            (key, oldest, key, number),
        )


# --- reading --------------------------------------------------------------------------------------


def check_tables(db: sqlite3.Connection) -> None:
    """Raises `sqlite3.OperationalError` where a table or column is missing."""
    for columns, table in (
        ("key, epoch, slots", "owner"),
        (f"id, {_CALL_COLUMNS}", "call"),
        (f"id, {_SESSION_COLUMNS}", "session"),
        (_CURSOR_COLUMNS, "cursor"),
    ):
        db.execute(f"SELECT {columns} FROM {table} LIMIT 0")


def read_calls(db: sqlite3.Connection, key: str | None) -> list[StoredCall]:
    """Raises `ValueError`, naming row and value, for what this version cannot have written."""
    return [_call_from_row(row) for row in _select(db, _CALL_COLUMNS, "call", "id", key)]


def read_sessions(db: sqlite3.Connection, key: str | None) -> list[StoredSession]:
    """Raises `ValueError`, naming row and value, for what this version cannot have written."""
    cursors: dict[tuple[Any, ...], dict[str, tuple[Seen, ...]]] = {}
    for row in _select(db, _CURSOR_COLUMNS, "cursor", "stream", key):
        session = (row["key"], row["slot"], row["incarnation"])
        cursors.setdefault(session, {})[_get(row, "stream", str)] = _trail_from_text(_get(row, "trail", str))
    return [
        _session_from_row(row, cursors.get((row["key"], row["slot"], row["incarnation"]), {}))
        for row in _select(db, _SESSION_COLUMNS, "session", "id", key)
    ]


def _select(db: sqlite3.Connection, columns: str, table: str, order: str, key: str | None) -> list[dict[str, Any]]:
    where, values = ("", ()) if key is None else (" WHERE key = ?", (key,))
    found = db.execute(f"SELECT {columns} FROM {table}{where} ORDER BY {order}", values)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def _call_from_row(row: Mapping[str, Any]) -> StoredCall:
    outcome = _get_or_none(row, "outcome", str)
    return StoredCall(
        key=_get(row, "key", str),
        slot=_get(row, "slot", int),
        incarnation=_get(row, "incarnation", int),
        wire_id=_get(row, "wire_id", int),
        method=_get(row, "method", str),
        tool=_get_or_none(row, "tool", str),
        call_key=_get(row, "call_key", str),
        arguments_digest=_get(row, "arguments_digest", bytes),
        may_have_side_effects=bool(_get(row, "may_have_side_effects", int)),
        sent_at=_get(row, "sent_at", float),
        outcome=None if outcome is None else _one_of(Outcome, "outcome", outcome),
        reason=_get_or_none(row, "reason", str),
        settled_at=_get_or_none(row, "settled_at", float),
    )


def _session_from_row(row: Mapping[str, Any], cursors: Mapping[str, tuple[Seen, ...]]) -> StoredSession:
    return StoredSession(
        key=_get(row, "key", str),
        slot=_get(row, "slot", int),
        incarnation=_get(row, "incarnation", int),
        generation=_one_of(Generation, "generation", _get(row, "generation", str)),
        origin=_get(row, "origin", str),
        principal=_get_or_none(row, "principal", str),
        session_id=_get_or_none(row, "session_id", str),
        protocol_version=_get_or_none(row, "protocol_version", str),
        initialize_params=_object(row, "initialize_params"),
        initialize_result=_object(row, "initialize_result"),
        opened_at=_get(row, "opened_at", float),
        ended_at=_get_or_none(row, "ended_at", float),
        end_reason=_get_or_none(row, "end_reason", str),
        cursors=cursors,
    )


def _trail_to_text(rows: tuple[Seen, ...]) -> str:
    return json.dumps([[row.event_id, row.digest.hex()] for row in rows[-CURSOR_ROWS:]])


def _trail_from_text(text: str) -> tuple[Seen, ...]:
    try:
        return tuple(Seen.from_row(event_id, bytes.fromhex(digest)) for event_id, digest in json.loads(text))
    except (TypeError, ValueError) as wrong:
        raise ValueError(f"trail is not a list of [event ID, digest]: {type(wrong).__name__}") from None


def _object(row: Mapping[str, Any], name: str) -> JSON:
    try:
        value = json.loads(_get(row, name, str))
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a JSON object")
    return value


T = TypeVar("T")
E = TypeVar("E", Outcome, Generation)


def _get(row: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = row[name]
    if not isinstance(value, kind):  # the value may be a credential: only its type is named
        raise ValueError(f"{name} must be {kind.__name__}, not {type(value).__name__}")
    return value


def _get_or_none(row: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    return None if row[name] is None else _get(row, name, kind)


def _one_of(kind: type[E], name: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"unknown {name} {value!r}") from None
