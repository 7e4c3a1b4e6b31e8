"""A file as the first version of the store left it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.stores.records import SECRET, trail

_STATEMENTS = (
    "PRAGMA application_id = 0x4D436731",
    "PRAGMA user_version = 1",
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
    "INSERT INTO owner VALUES ('orders', 7, 3)",
    "INSERT INTO call VALUES"
    " (1, 'orders', 3, 1, 1, 'tools/call', 'charge', 'key-1', x'00', 1, 4e9 + 5, NULL, NULL, NULL),"
    " (2, 'orders', 3, 1, 2, 'ping', NULL, 'key-2', x'00', 0, 4e9 + 6, 'completed', 'answered', 4e9 + 7)",
    f"INSERT INTO session VALUES (1, 'orders', 3, 1, 'streamable-http', 'https://example.com', NULL, '{SECRET}',"
    " '2025-11-25', '{}', '{}', 4e9 + 4, NULL, NULL)",
    f"""INSERT INTO cursor VALUES ('orders', 3, 1, 'get', '[["event-1", "{trail(1)[0].digest.hex()}"]]')""",
)


def make(path: Path) -> None:
    """Two calls, the first without an outcome, and their session with a cursor. Of a time to come: never old."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for statement in _STATEMENTS:
            db.execute(statement)
        db.commit()
    path.chmod(0o600)
