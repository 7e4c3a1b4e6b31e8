"""`mcp-guard calls` and `mcp-guard sessions`: what a store says became of its calls."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from sys import maxsize

import anyio

from mcp_client_guard import Outcome, SQLiteStore, StoreError
from mcp_client_guard.stores import StoredCall, StoredSession

from ._exits import LEDGER_EXIT_CODES, Exit
from ._output import note, plain, show
from ._rows import call_as_json, calls_as_table, session_as_json, sessions_as_table

_CALLS = """\
Show the calls in a store (the SQLite file of SQLiteStore) that are not done with: those in doubt, which may or
may not have run, those that their caller gave up and that may have run, those without an outcome, and those whose
task is open. A call has no outcome while it is in flight; once the process that sent it has ended, it is in doubt.
Works while other processes use the store.
"""
_FORGET = """\
Delete a call from the ledger, whatever became of it: from then on the guard knows nothing of it, and lets
the same call be sent. Only while no process owns the connection key. Of calls of several keys or principals
one has to be chosen.
"""
_SESSIONS = """\
Show the sessions in a store (the SQLite file of SQLiteStore). Session IDs are credentials, and are shown as
fingerprints. Works while other processes use the store.
"""


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    calls = _command(commands, "calls", "show what became of the calls in a store", _CALLS)
    calls.add_argument("db", metavar="DB", type=_path, help="the file of the store")
    _add_key(calls, default=None)
    calls.add_argument("--all", action="store_true", help="show every call")
    calls.add_argument("--json", action="store_true", help="print JSON")
    calls.set_defaults(run=lambda options: _run("calls", _show_calls, options))
    calls.usage = "mcp-guard calls [-h] [--key KEY] [--all] [--json] DB\n       mcp-guard calls DB forget CALL_KEY"

    verbs = calls.add_subparsers(metavar="COMMAND", title="commands", prog="mcp-guard calls DB")
    forget = _command(verbs, "forget", "delete a call from the ledger", _FORGET)
    forget.add_argument("call_key", metavar="CALL_KEY", help="its call key, or its name, as shown")
    _add_key(forget, default=argparse.SUPPRESS)
    forget.add_argument("--principal", help="only the call made for this principal, as shown (-: for none)")
    forget.set_defaults(run=lambda options: _run("calls", _forget, options))

    sessions = _command(commands, "sessions", "show the sessions in a store", _SESSIONS)
    sessions.add_argument("db", metavar="DB", type=_path, help="the file of the store")
    _add_key(sessions, default=None)
    sessions.add_argument("--json", action="store_true", help="print JSON")
    sessions.set_defaults(run=lambda options: _run("sessions", _show_sessions, options))


def _path(text: str) -> str:
    try:
        SQLiteStore(text)
    except (ValueError, StoreError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, description: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=LEDGER_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_key(command: argparse.ArgumentParser, *, default: str | None) -> None:
    command.add_argument("--key", default=default, help="of this connection key only")


def _run(
    command: str, carry_out: Callable[[argparse.Namespace], Awaitable[Exit]], options: argparse.Namespace
) -> Exit:
    try:
        return anyio.run(carry_out, options)
    except (StoreError, OSError) as error:
        note(f"mcp-guard {command}: {type(error).__name__}: {error}")
        return Exit.NOT_EXECUTED


async def _no_such_key(command: str, store: SQLiteStore, key: str | None) -> Exit | None:
    """Who has mistyped it must not read that nothing is in doubt."""
    known = {call.key for call in await store.calls()} | {session.key for session in await store.sessions()}
    if key is None or key in known:
        return None
    there = ", ".join(sorted(map(plain, known))) or "nothing"
    note(f"mcp-guard {command}: nothing is stored under the key {plain(key)}; there is: {there}")
    return Exit.NOT_EXECUTED


async def _show_calls(options: argparse.Namespace) -> Exit:
    store = SQLiteStore(options.db)
    if (refused := await _no_such_key("calls", store, options.key)) is not None:
        return refused
    calls = await store.calls(options.key)
    shown = calls if options.all else [call for call in calls if not _done_with(call)]
    count = Counter(call.outcome for call in calls)
    if options.json:
        found = {
            "in_doubt": count[Outcome.IN_DOUBT],
            "cancelled": sum(map(_may_have_run, calls)),
            "without_outcome": count[None],
            "calls": [call_as_json(call) for call in shown],
        }
        show(json.dumps(found, indent=2))
        return Exit.OK
    cancelled, open_tasks = sum(map(_may_have_run, calls)), sum(call.task_open for call in calls)
    show(_summary(count, cancelled, open_tasks))
    _print_table(calls_as_table(shown))
    return Exit.OK


def _done_with(call: StoredCall) -> bool:
    return call.outcome not in (None, Outcome.IN_DOUBT) and not call.task_open and not _may_have_run(call)


def _may_have_run(call: StoredCall) -> bool:
    """Its caller gave up after it was sent. SDK 2.x does so when its host is interrupted."""
    return call.outcome is Outcome.CANCELLED and not call.did_not_run and call.may_have_side_effects


def _summary(count: Counter[Outcome | None], cancelled: int, open_tasks: int) -> str:
    """How many are in doubt, first of all."""
    doubted, unsettled = count[Outcome.IN_DOUBT], count[None]
    text = f"{_number(doubted, 'call')} in doubt"
    if cancelled:
        text += f", {cancelled} cancelled by the caller that may have run"
    if unsettled:
        text += f", {unsettled} without an outcome (in flight, or in doubt if the process that sent it has ended)"
    if open_tasks:
        text += f", {open_tasks} with an open task"
    return f"{text}; {sum(count.values())} in the ledger"


def _number(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


async def _show_sessions(options: argparse.Namespace) -> Exit:
    store = SQLiteStore(options.db)
    if (refused := await _no_such_key("sessions", store, options.key)) is not None:
        return refused
    sessions = await store.sessions(options.key)
    if options.json:
        show(json.dumps({"sessions": [session_as_json(session) for session in sessions]}, indent=2))
        return Exit.OK
    show(_sessions_summary(sessions))
    _print_table(sessions_as_table(sessions))
    return Exit.OK


def _sessions_summary(sessions: Sequence[StoredSession]) -> str:
    ended = sum(session.ended_at is not None for session in sessions)
    return f"{_number(len(sessions) - ended, 'open session')}, {ended} ended"


def _print_table(table: Sequence[Sequence[str]]) -> None:
    """Nothing where there is but the heading."""
    if len(table) < 2:
        return
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        show("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


async def _forget(options: argparse.Namespace) -> Exit:
    keeps_all = SQLiteStore(options.db, keep_calls=maxsize, keep_days=float("inf"))
    calls = [call for call in await keeps_all.calls(options.key) if _is_meant(call, options)]
    owners = {(call.key, call.principal) for call in calls}
    if not owners:
        return _not_forgotten(f"no such call has the call key {options.call_key!r}", Exit.NOT_EXECUTED)
    if len(owners) > 1:
        choices = sorted(f"  {_as_options(*owner)}" for owner in owners)
        return _not_forgotten("several have it: say which with one of", Exit.USAGE, *choices)
    ((key, principal),) = owners
    try:
        claim = await keeps_all.claim(key, origin="", principal=principal)
    except StoreError as error:
        return _not_forgotten(f"{type(error).__name__}: {error}", Exit.NOT_EXECUTED)
    try:
        removed = await claim.forget(options.call_key)
    finally:
        await claim.release()
    show(f"forgotten: {_number(removed, 'row')} of call key {options.call_key!r} under key {key!r}")
    return Exit.OK


def _is_meant(call: StoredCall, options: argparse.Namespace) -> bool:
    is_named = options.call_key in (call.call_key, call.also_named)
    return is_named and options.principal in (None, plain(call.principal))


def _as_options(key: str, principal: str | None) -> str:
    return shlex.join([f"--key={plain(key)}", f"--principal={plain(principal)}"])


def _not_forgotten(why: str, exit: Exit, *choices: str) -> Exit:
    note(f"mcp-guard calls: nothing was forgotten: {why}", *choices)
    return exit
