"""An event-log server in a process of its own, for clients of any language.

    python -m mcp_client_guard.testing --lie trimmed-tail --retained 4

It writes one line of JSON with its URLs, and serves until its standard input ends, or it is interrupted. `GET` of
`ledger_url` tells which tools it has executed, and which cursors it has refused.
"""

from __future__ import annotations

import argparse
import sys
from asyncio import CancelledError

import anyio

from .event_log_server import EventLogServer
from .lies import Lie
from .standard_input import input_ended


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(
        prog="python -m mcp_client_guard.testing", description="A server to test clients with."
    )
    made.add_argument(
        "--lie", choices=[lie.value for lie in Lie], help="what it is dishonest in (default: nothing)"
    )
    made.add_argument("--retained", type=int, default=1000, help="events kept for each session (default: 1000)")
    made.add_argument("--port", type=int, default=0, help="on 127.0.0.1 (default: any that is free)")
    made.add_argument("--json", action="store_true", help="answer POSTs by JSON")
    return made


async def serve(options: argparse.Namespace) -> None:
    """Serve until standard input ends."""
    lie = None if options.lie is None else Lie(options.lie)
    server = EventLogServer(lie=lie, json_answers=options.json, port=options.port)
    server.store.retained = options.retained
    async with server:
        sys.stdout.write(server.as_line() + "\n")
        sys.stdout.flush()
        await input_ended()


if __name__ == "__main__":
    options = parser().parse_args()
    try:
        anyio.run(serve, options)
    except (KeyboardInterrupt, CancelledError):  # the latter: anyio's own runner on Python 3.10
        sys.exit(130)
