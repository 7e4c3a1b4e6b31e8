"""What is read from the tables of a SQLite store: rows become our values, and what cannot be one is refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, TypeVar

from mcp_client_guard.core.model import JSON, Generation, Outcome, Seen, ServerAnswered, Told
from mcp_client_guard.stores import StoredCall, StoredSession
from mcp_client_guard.stores._sqlite_schema import (
    ANSWER_COLUMNS,
    CALL_COLUMNS,
    CURSOR_COLUMNS,
    SESSION_COLUMNS,
)


def read_calls(db: sqlite3.Connection, key: str | None) -> list[StoredCall]:
    """Raises `ValueError`, naming row and value, for what this version cannot have written."""
    return [_call_from_row(row) for row in _select(db, CALL_COLUMNS, "call", "id", key)]


def read_unfinished(db: sqlite3.Connection, key: str) -> list[StoredCall]:
    """Those that are left to be seen to, and the newest of each session. Raises as `read_calls` does."""
    newest = "SELECT max(id) FROM call WHERE key = ? AND method <> 'ping' GROUP BY slot, incarnation"
    is_open = "(outcome IS NULL OR task_open)"
    open_keys = f"SELECT call_key FROM call WHERE key = ? AND {is_open}"
    where = f" WHERE key = ? AND (untold OR call_key IN ({open_keys}) OR id IN ({newest}))"
    return [_call_from_row(row) for row in _rows_of(db, CALL_COLUMNS, "call", "id", where, (key, key, key))]


def read_sessions(db: sqlite3.Connection, key: str | None) -> list[StoredSession]:
    """Raises `ValueError`, naming row and value, for what this version cannot have written."""
    used, cursors, answers = _read_last_used(db, key), _read_cursors(db, key), _read_answers(db, key)
    found = []
    for row in _select(db, SESSION_COLUMNS, "session", "id", key):
        session = _session_of(row)
        last_used_at = max(_get(row, "opened_at", float), used.get(session, 0.0))
        found.append(_session_from_row(row, cursors.get(session, {}), answers.get(session, ()), last_used_at))
    return found


_Session = tuple[object, ...]


def _session_of(row: Mapping[str, Any]) -> _Session:
    return (row["key"], row["slot"], row["incarnation"])


def _read_last_used(db: sqlite3.Connection, key: str | None) -> dict[_Session, float]:
    """When each session last sent a call or moved a cursor."""
    columns = "key, slot, incarnation"
    either = (
        f"(SELECT {columns}, sent_at AS used_at FROM call"
        f" UNION ALL SELECT {columns}, moved_at AS used_at FROM cursor)"
    )
    where, values = _where(key)
    found = db.execute(f"SELECT {columns}, max(used_at) FROM {either}{where} GROUP BY {columns}", values)
    return {tuple(session): at for *session, at in found if isinstance(at, float)}


_Cursor = tuple[tuple[Seen, ...], int]


def _read_cursors(db: sqlite3.Connection, key: str | None) -> dict[_Session, dict[str, _Cursor]]:
    found: dict[_Session, dict[str, _Cursor]] = {}
    for row in _select(db, CURSOR_COLUMNS, "cursor", "stream", key):
        cursor = (_trail_from_text(_get(row, "trail", str)), _get(row, "passed", int))
        found.setdefault(_session_of(row), {})[_get(row, "stream", str)] = cursor
    return found


def _read_answers(db: sqlite3.Connection, key: str | None) -> dict[_Session, tuple[ServerAnswered, ...]]:
    found: dict[_Session, list[ServerAnswered]] = {}
    for row in _select(db, ANSWER_COLUMNS, "answer", "id", key):
        request_id, stream, event_id = _request(row)
        incarnation, digest = _get(row, "incarnation", int), _get(row, "digest", bytes)
        answer = ServerAnswered(incarnation, request_id, digest, _object(row, "answer"), stream, event_id)
        found.setdefault(_session_of(row), []).append(answer)
    return {session: tuple(answers) for session, answers in found.items()}


def _select(db: sqlite3.Connection, columns: str, table: str, order: str, key: str | None) -> list[dict[str, Any]]:
    return _rows_of(db, columns, table, order, *_where(key))


def _rows_of(
    db: sqlite3.Connection, columns: str, table: str, order: str, where: str, values: tuple[str, ...]
) -> list[dict[str, Any]]:
    found = db.execute(f"SELECT {columns} FROM {table}{where} ORDER BY {order}", values)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def _where(key: str | None) -> tuple[str, tuple[str, ...]]:
    return ("", ()) if key is None else (" WHERE key = ?", (key,))


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
        named=bool(_get(row, "named", int)),
        answer=None if row["answer"] is None else _object(row, "answer"),
        task_id=None if row["task_id"] is None else _string(row, "task_id"),
        task_is_extension=bool(_get(row, "task_is_extension", int)),
        task_open=bool(_get(row, "task_open", int)),
        repeats=_get(row, "repeats", int),
        origin=_get_or_none(row, "origin", str),
        principal=_get_or_none(row, "principal", str),
        told=_one_of(Told, "untold", _get(row, "untold", int)),
        consent_spent=bool(_get(row, "consent_spent", int)),
        also_named=_get_or_none(row, "also_named", str),
    )


def _session_from_row(
    row: Mapping[str, Any],
    cursors: Mapping[str, _Cursor],
    answers: tuple[ServerAnswered, ...],
    last_used_at: float,
) -> StoredSession:
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
        cursors={stream: rows for stream, (rows, _) in cursors.items()},
        answers=answers,
        last_used_at=last_used_at,
        passed={stream: passed for stream, (_, passed) in cursors.items() if passed},
    )


def _trail_from_text(text: str) -> tuple[Seen, ...]:
    try:
        return tuple(Seen.from_row(event_id, bytes.fromhex(digest)) for event_id, digest in json.loads(text))
    except (TypeError, ValueError) as wrong:
        raise ValueError(f"trail is not a list of [event ID, digest]: {type(wrong).__name__}") from None


def _object(row: Mapping[str, Any], name: str) -> JSON:
    value = _json(row, name)
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a JSON object")
    return value


def _string(row: Mapping[str, Any], name: str) -> str:
    """What a server chose may hold what SQLite's text cannot, and so is kept as JSON."""
    value = _json(row, name)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a JSON string")
    return value


def _request(row: Mapping[str, Any]) -> tuple[str | int, int | None, str | None]:
    """A request's ID, the number of its stream and the ID of its event; earlier versions wrote the first alone."""
    match _json(row, "request"):
        case (str() | int()) as request_id:
            return request_id, None, None
        case [(str() | int()) as request_id, (int() | None) as stream, (str() | None) as event_id]:
            return request_id, stream, event_id
    raise ValueError("request must be the JSON of a string or an integer, or of one with its stream and event")


def _json(row: Mapping[str, Any], name: str) -> object:
    """The value, or None for what is no JSON."""
    try:
        value: object = json.loads(_get(row, name, str))
    except json.JSONDecodeError:
        return None
    return value


T = TypeVar("T")
E = TypeVar("E", Outcome, Generation, Told)


def _get(row: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = row[name]
    if not isinstance(value, kind):  # the value may be a credential: only its type is named
        raise ValueError(f"{name} must be {kind.__name__}, not {type(value).__name__}")
    return value


def _get_or_none(row: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    return None if row[name] is None else _get(row, name, kind)


def _one_of(kind: type[E], name: str, value: object) -> E:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"unknown {name} {value!r}") from None
