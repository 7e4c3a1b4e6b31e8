"""Ledger rows and session records as JSON and as the cells of a table: without secrets, and safe on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from mcp_client_guard.core.model import JSON, fingerprint
from mcp_client_guard.stores import StoredCall, StoredSession

from ._output import plain


def call_as_json(call: StoredCall) -> JSON:
    task = None
    if call.task_id is not None:
        task = {
            "fingerprint": fingerprint(call.task_id, call.key),
            "open": call.task_open,
            "extension": call.task_is_extension,
        }
    return {
        "key": call.key,
        "origin": call.origin,
        "principal": call.principal,
        "call_key": call.call_key,
        "named": call.named,
        "also_named": call.also_named,
        "method": call.method,
        "tool": call.tool,
        "may_have_side_effects": call.may_have_side_effects,
        "outcome": None if call.outcome is None else call.outcome.value,
        "reason": call.reason,
        "sent_at": _time(call.sent_at),
        "settled_at": _time(call.settled_at),
        "answer_stored": call.answer is not None,
        "task": task,
        "repeats": call.repeats,
        "slot": call.slot,
        "incarnation": call.incarnation,
        "wire_id": call.wire_id,
    }


def session_as_json(session: StoredSession) -> JSON:
    return {
        "key": session.key,
        "slot": session.slot,
        "incarnation": session.incarnation,
        "generation": session.generation.value,
        "origin": session.origin,
        "principal": session.principal,
        "session": None if session.session_id is None else fingerprint(session.session_id, session.key),
        "protocol_version": session.protocol_version,
        "opened_at": _time(session.opened_at),
        "last_used_at": _time(session.last_used_at),
        "ended_at": _time(session.ended_at),
        "end_reason": session.end_reason,
        "cursors": len(session.cursors),
        "server_requests_answered": len(session.answers),
    }


def calls_as_table(calls: Iterable[StoredCall]) -> list[list[str]]:
    head = ["SENT", "KEY", "ORIGIN", "PRINCIPAL", "CALL", "OUTCOME", "WHY", "TASK", "REPEATS", "CALL KEY"]
    return [head, *([plain(cell) for cell in _call_cells(call_as_json(call))] for call in calls)]


def _call_cells(call: JSON) -> list[object]:
    task, name = call["task"], call["also_named"]
    return [
        call["sent_at"],
        call["key"],
        call["origin"],
        call["principal"],
        call["tool"] or call["method"],
        call["outcome"] or "none yet",
        call["reason"],
        task and f"{task['fingerprint']} {'open' if task['open'] else 'ended'}",
        call["repeats"] or None,
        call["call_key"] if name is None else f"{call['call_key']} also {name}",
    ]


def sessions_as_table(sessions: Iterable[StoredSession]) -> list[list[str]]:
    head = ["OPENED", "LAST USED", "KEY", "ORIGIN", "PRINCIPAL", "SESSION", "REVISION", "CURSORS", "ENDED"]
    return [head, *([plain(cell) for cell in _session_cells(session_as_json(row))] for row in sessions)]


def _session_cells(session: JSON) -> list[object]:
    return [
        session["opened_at"],
        session["last_used_at"],
        session["key"],
        session["origin"],
        session["principal"],
        session["session"],
        session["protocol_version"],
        session["cursors"],
        session["ended_at"] and f"{session['ended_at']} {session['end_reason']}",
    ]


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
