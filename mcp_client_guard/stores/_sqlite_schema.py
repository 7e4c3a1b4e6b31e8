"""The tables of a SQLite store, by version, and the way from one version to the next."""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x4D436731  # "MCg1"
VERSION = 5

# Columns are only ever added at the end, so that a file brought up to date is like a new one.
SCHEMA = (
    "CREATE TABLE owner (key TEXT PRIMARY KEY, epoch INTEGER NOT NULL, slots INTEGER NOT NULL,"
    " generation TEXT, generation_of TEXT)",
    "CREATE TABLE call (id INTEGER PRIMARY KEY, key TEXT NOT NULL, slot INTEGER NOT NULL,"
    " incarnation INTEGER NOT NULL, wire_id INTEGER NOT NULL, method TEXT NOT NULL, tool TEXT,"
    " call_key TEXT NOT NULL, arguments_digest BLOB NOT NULL, may_have_side_effects INTEGER NOT NULL,"
    " sent_at REAL NOT NULL, outcome TEXT, reason TEXT, settled_at REAL,"
    " named INTEGER NOT NULL DEFAULT 0, task_id TEXT, task_is_extension INTEGER NOT NULL DEFAULT 0,"
    " task_open INTEGER NOT NULL DEFAULT 0, repeats INTEGER NOT NULL DEFAULT 0, answer TEXT,"
    " origin TEXT, principal TEXT, untold INTEGER NOT NULL DEFAULT 0, consent_spent INTEGER NOT NULL DEFAULT 0,"
    " also_named TEXT, UNIQUE (key, slot, incarnation, wire_id))",
    "CREATE TABLE session (id INTEGER PRIMARY KEY, key TEXT NOT NULL, slot INTEGER NOT NULL,"
    " incarnation INTEGER NOT NULL, generation TEXT NOT NULL, origin TEXT NOT NULL, principal TEXT,"
    " session_id TEXT, protocol_version TEXT, initialize_params TEXT NOT NULL,"
    " initialize_result TEXT NOT NULL, opened_at REAL NOT NULL, ended_at REAL, end_reason TEXT,"
    " UNIQUE (key, slot, incarnation))",
    "CREATE TABLE cursor (key TEXT NOT NULL, slot INTEGER NOT NULL, incarnation INTEGER NOT NULL,"
    " stream TEXT NOT NULL, trail TEXT NOT NULL, moved_at REAL NOT NULL DEFAULT 0,"
    " passed INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (key, slot, incarnation, stream))",
    "CREATE TABLE answer (id INTEGER PRIMARY KEY, key TEXT NOT NULL, slot INTEGER NOT NULL,"
    " incarnation INTEGER NOT NULL, request TEXT NOT NULL, digest BLOB NOT NULL, answer TEXT NOT NULL,"
    " UNIQUE (key, slot, incarnation, request))",
    "CREATE INDEX call_untold ON call (key, call_key) WHERE untold",
)

_FROM_1_TO_2 = (
    "ALTER TABLE call ADD COLUMN named INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE call ADD COLUMN task_id TEXT",
    "ALTER TABLE call ADD COLUMN task_is_extension INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE call ADD COLUMN task_open INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE call ADD COLUMN repeats INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE call ADD COLUMN answer TEXT",
    "ALTER TABLE cursor ADD COLUMN moved_at REAL NOT NULL DEFAULT 0",
    next(statement for statement in SCHEMA if "TABLE answer" in statement),
)
_FROM_2_TO_3 = (
    "ALTER TABLE call ADD COLUMN origin TEXT",
    "ALTER TABLE call ADD COLUMN principal TEXT",
    # All sessions of a slot are of one origin and principal.
    "UPDATE call SET (origin, principal) = (SELECT origin, principal FROM session"
    " WHERE session.key = call.key AND session.slot = call.slot LIMIT 1)",
)
_FROM_3_TO_4 = (
    "ALTER TABLE owner ADD COLUMN generation TEXT",
    "ALTER TABLE owner ADD COLUMN generation_of TEXT",
    "ALTER TABLE call ADD COLUMN untold INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE call ADD COLUMN consent_spent INTEGER NOT NULL DEFAULT 0",
    SCHEMA[-1],
)
_FROM_4_TO_5 = (
    "ALTER TABLE call ADD COLUMN also_named TEXT",
    "ALTER TABLE cursor ADD COLUMN passed INTEGER NOT NULL DEFAULT 0",
)
STEPS = {1: _FROM_1_TO_2, 2: _FROM_2_TO_3, 3: _FROM_3_TO_4, 4: _FROM_4_TO_5}
"""By the version that each begins with: what makes the next one of it."""

_OWNER_1 = "key, epoch, slots"
OWNER_COLUMNS = f"{_OWNER_1}, generation, generation_of"
SESSION_COLUMNS = (
    "key, slot, incarnation, generation, origin, principal, session_id, protocol_version,"
    " initialize_params, initialize_result, opened_at, ended_at, end_reason"
)
ANSWER_COLUMNS = "key, slot, incarnation, request, digest, answer"
_CALL_1 = (
    "key, slot, incarnation, wire_id, method, tool, call_key, arguments_digest, may_have_side_effects,"
    " sent_at, outcome, reason, settled_at"
)
_CURSOR_1 = "key, slot, incarnation, stream, trail"
_CALL_2 = f"{_CALL_1}, named, task_id, task_is_extension, task_open, repeats, answer"
_CALL_3 = f"{_CALL_2}, origin, principal"
_CALL_4 = f"{_CALL_3}, untold, consent_spent"
CALL_COLUMNS = f"{_CALL_4}, also_named"
_CURSOR_2 = f"{_CURSOR_1}, moved_at"
CURSOR_COLUMNS = f"{_CURSOR_2}, passed"

_TABLES = {
    1: {
        "owner": _OWNER_1,
        "call": f"id, {_CALL_1}",
        "session": f"id, {SESSION_COLUMNS}",
        "cursor": _CURSOR_1,
    },
    2: {
        "owner": _OWNER_1,
        "call": f"id, {_CALL_2}",
        "session": f"id, {SESSION_COLUMNS}",
        "cursor": _CURSOR_2,
        "answer": f"id, {ANSWER_COLUMNS}",
    },
    3: {
        "owner": _OWNER_1,
        "call": f"id, {_CALL_3}",
        "session": f"id, {SESSION_COLUMNS}",
        "cursor": _CURSOR_2,
        "answer": f"id, {ANSWER_COLUMNS}",
    },
    4: {
        "owner": OWNER_COLUMNS,
        "call": f"id, {_CALL_4}",
        "session": f"id, {SESSION_COLUMNS}",
        "cursor": _CURSOR_2,
        "answer": f"id, {ANSWER_COLUMNS}",
    },
    5: {
        "owner": OWNER_COLUMNS,
        "call": f"id, {CALL_COLUMNS}",
        "session": f"id, {SESSION_COLUMNS}",
        "cursor": CURSOR_COLUMNS,
        "answer": f"id, {ANSWER_COLUMNS}",
    },
}


def version_of(db: sqlite3.Connection) -> int:
    """Of the file, as this connection sees it now."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version


def check_tables(db: sqlite3.Connection) -> None:
    """Raises `sqlite3.OperationalError` where a table or column of the file's own version is missing."""
    for table, columns in _TABLES[version_of(db)].items():
        db.execute(f"SELECT {columns} FROM {table} LIMIT 0")


def bring_up_to_date(db: sqlite3.Connection) -> None:
    """All steps or none, and flushed; nothing where another process has taken them already."""
    if version_of(db) == VERSION:
        return
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN IMMEDIATE")
    try:
        for version in range(version_of(db), VERSION):
            for statement in STEPS[version]:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
