"""`mcp-guard call`: one tool call through the guard, on any server, with the guard's events as they come."""

from __future__ import annotations

import argparse
import json
import os
import re
from asyncio import CancelledError
from collections.abc import Mapping
from traceback import format_exception
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import AsyncResource
from attrs import fields, frozen

from mcp_client_guard import (
    CallInDoubt,
    Event,
    Guard,
    GuardError,
    GuardPolicy,
    MemoryStore,
    SQLiteStore,
    StoreError,
    Unreachable,
)
from mcp_client_guard._connection import Connection
from mcp_client_guard.core import answers
from mcp_client_guard.core.model import JSON
from mcp_client_guard.transports.connections import tls

from ._exits import EXIT_CODES, Exit
from ._output import encoding, note, show
from ._plain_host import PlainHost, Refused, host_codec

_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\v\f\0]*?)[ \t]*")

_DESCRIPTION = """\
Connect to an MCP server through the guard and call one tool. The guard's events and the server's notifications
go to standard error as they come, the result goes to standard output as JSON. Needs no MCP SDK.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    call = commands.add_parser(
        "call",
        help="call one tool of a server through the guard",
        description=_DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    call.add_argument("url", metavar="URL", type=_url, help="the MCP endpoint")
    call.add_argument("tool", metavar="TOOL", help="the tool's name")
    call.add_argument(
        "arguments", metavar="JSON", type=_arguments, nargs="?", default={}, help="its arguments: a JSON object"
    )
    call.add_argument(
        "--header",
        metavar="K:V",
        type=_header,
        action="append",
        default=[],
        help="sent with every request; repeatable. Other users can see it: for a token, --header-env",
    )
    call.add_argument(
        "--header-env",
        metavar="K=ENVVAR",
        type=_header_env,
        action="append",
        dest="header",
        default=[],
        help="the same, with the value that this environment variable holds",
    )
    call.add_argument(
        "--store",
        metavar="PATH",
        help="keep the ledger in this SQLite file (default: in memory, so that the next run knows nothing of what "
        "is in doubt, and sends it)",
    )
    call.add_argument("--key", help="this connection's name in the store (default: made of URL)")
    call.add_argument(
        "--generation",
        choices=("auto", "sessions", "host", "legacy-sse"),
        default="auto",
        help="auto: by a session where it can be resumed, else by 2026-07-28 where the server speaks that "
        "(default); sessions: always by a session; host: by 2026-07-28 wherever the server speaks it; "
        "legacy-sse: by HTTP+SSE (2024-11-05), which is also found by itself",
    )
    call.add_argument(
        "--deadline", metavar="SECONDS", type=_seconds, default=3600.0, help="for the answer (default: 3600)"
    )
    call.add_argument(
        "--connect-timeout", metavar="SECONDS", type=_seconds, default=10.0, help="to open a session (default: 10)"
    )
    call.set_defaults(run=run)


@frozen
class Failed(Exception):
    """An expected failure, to be told in one line."""

    exit: Exit
    text: str


def run(options: argparse.Namespace) -> Exit:
    """Call, print, and say how it went."""
    if options.key is not None and options.store is None:
        return _fail(Failed(Exit.USAGE, "--key names a connection in a store: give --store, too"))
    progress = Progress()
    try:
        guard = _guard_of(options, progress)
    except (ValueError, StoreError) as error:
        return _fail(Failed(Exit.USAGE, str(error)))
    try:
        anyio.run(_called, guard, options, progress)
    except (Exception, KeyboardInterrupt, CancelledError) as error:  # the last: anyio's own runner on Python 3.10
        if progress.answer is None:
            return _fail(_why(error, progress))
        note(f"mcp-guard call: after the answer: {type(error).__name__}: {error}")
    assert progress.answer is not None
    return _tell(progress.answer)


class Progress:
    """How far the call has come, whatever then comes in between; and why no further."""

    called = False
    answer: JSON | None = None
    unsent = ""
    """Why nothing could be sent, the last time."""

    def see(self, event: Event) -> None:
        if isinstance(event, Unreachable):
            self.unsent = f"nothing could be sent: {event.reason}"
        _show_event(event)


def _why(error: BaseException, progress: Progress) -> Failed:
    """There is no answer."""
    if isinstance(error, Failed):
        return error
    interrupted = isinstance(error, KeyboardInterrupt | CancelledError)
    if not interrupted and not isinstance(error, GuardError):
        note(*"".join(format_exception(error)).split("\n"))
    what = "interrupted" if interrupted else f"{type(error).__name__}: {error}"
    if progress.called:
        return Failed(Exit.IN_DOUBT, f"{what}: the call may or may not have run")
    return Failed(Exit.NOT_EXECUTED, f"not executed: {what}")


def _guard_of(options: argparse.Namespace, progress: Progress) -> Guard:
    return Guard(
        options.url,
        store=SQLiteStore(options.store) if options.store is not None else MemoryStore(),
        key=options.key,
        headers=dict(options.header),
        generation=options.generation,
        policy=GuardPolicy(call_deadline=options.deadline),
        on_event=progress.see,
    )


async def _called(guard: Guard, options: argparse.Namespace, progress: Progress) -> None:
    async with Connection(guard, host_codec) as (read, write):
        host = PlainHost(read, write, _show_notification)
        try:
            with anyio.fail_after(options.connect_timeout):
                await host.open(probe=options.generation != "sessions")
        except TimeoutError:
            why = await _why_no_session(options.url, progress)
            told = f"not executed: no session within {options.connect_timeout:g} s"
            raise Failed(Exit.NOT_EXECUTED, f"{told} ({why})" if why else told) from None
        except Refused as refused:
            raise Failed(Exit.NOT_EXECUTED, f"not executed: no session: {refused}") from None
        progress.called = True
        progress.answer = await host.call(options.tool, options.arguments)


async def _why_no_session(url: str, progress: Progress) -> str:
    """What failed is over where the server can be connected to by now: something may have been sent since."""
    hint = await _hint(url)
    if not progress.unsent:
        return hint
    return progress.unsent if hint else f"earlier: {progress.unsent}"


async def _hint(url: str) -> str:
    """Whether anything listens there at all, where the guard's own first connection is still being made."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
    try:
        with anyio.fail_after(2):
            if parts.scheme == "https":
                stream: AsyncResource = await anyio.connect_tcp(host, port, ssl_context=tls())
            else:
                stream = await anyio.connect_tcp(host, port)
    except (OSError, TimeoutError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
        return f"cannot connect to {host}:{port}: {str(error) or type(error).__name__}"
    await anyio.aclose_forcefully(stream)
    return ""


def _tell(answer: JSON) -> Exit:
    """The exit code is about the call, whether or not its result can be written."""
    if "error" in answer:
        error = answer["error"]
        return _fail(Failed(_exit_of(error), f"error {error.get('code')}: {error.get('message')}"))
    result = answer["result"]
    try:
        show(_for_stdout(result))
    except Exception as error:
        note(f"mcp-guard call: the result could not be written: {type(error).__name__}: {error}")
    if doubt := CallInDoubt.find(result):
        return _fail(Failed(Exit.IN_DOUBT, f"in doubt: {doubt}"))
    match result.get("resultType", "complete"):
        case "complete":
            return Exit.TOOL_ERROR if result.get("isError") else Exit.OK
        case "input_required":
            return _fail(Failed(Exit.TOOL_ERROR, "the tool asks for more input, which this command cannot give"))
        case kind:  # such as a task, which may be running
            return _fail(Failed(Exit.IN_DOUBT, f"in doubt: the server answered with a {kind}, and no result"))


def _exit_of(error: JSON) -> Exit:
    """What the guard knows of the call stands in the error's data; any other error is the server's answer."""
    match error.get("data"):
        case {"outcome": "not_executed"}:
            return Exit.NOT_EXECUTED
        case {answers.IN_DOUBT_KEY: _}:
            return Exit.IN_DOUBT
        case _:
            return Exit.TOOL_ERROR


def _for_stdout(result: JSON) -> str:
    """For people, where standard output has the characters."""
    text = _as_json(result, indent=2)
    try:
        text.encode(encoding())
    except UnicodeEncodeError:
        return json.dumps(result, indent=2)
    return text


def _as_json(value: Any, indent: int | None = None) -> str:
    """For people: escaped is only what a terminal might obey."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _fail(failed: Failed) -> Exit:
    note(f"mcp-guard call: {failed.text}")
    return failed.exit


def _show_event(event: Event) -> None:
    # What is kept out of the repr is the user's data.
    shown = {f.name: getattr(event, f.name) for f in fields(type(event)) if f.repr}
    note(" ".join([type(event).__name__, *(f"{k}={_shown(v)}" for k, v in shown.items())]))


def _shown(value: Any) -> str:
    value = getattr(value, "value", value)
    return _as_json(value) if isinstance(value, str) and " " in value else str(value)


def _show_notification(message: JSON) -> None:
    note(f"{message['method']} {_as_json(message.get('params', {}))}")


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        well_formed = parts.scheme in ("http", "https") and parts.hostname is not None
        well_formed = well_formed and parts.port != 0
    except ValueError:
        well_formed = False
    if not well_formed:
        raise argparse.ArgumentTypeError(f"not an http(s) URL: {text!r}")
    return text


def _arguments(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"a JSON object is wanted, not {text!r}")
    return value


def _header(text: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"name:value is wanted, not {text.partition(':')[0]!r}")
    return match[1], match[2]


def _header_env(text: str) -> tuple[str, str]:
    name, _, variable = text.partition("=")
    if not variable:
        raise argparse.ArgumentTypeError(f"NAME=ENVVAR is wanted, not {name!r}")
    value = os.environ.get(variable)
    if value is None:
        raise argparse.ArgumentTypeError(f"there is no environment variable {variable!r}")
    return _header(f"{name}:{value}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"a positive number of seconds is wanted, not {text!r}")
    return seconds
