"""The arguments of `mcp-guard`, and which command they mean."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from . import _call, _demo, _ledger

_DEMO = """\
Play the incidents that the guard exists for, on a real server process with faults on the wire: each once
through the transport of the installed MCP SDK and once through the guard. Takes less than 30 seconds.
"""
_DEMO_EXITS = """\
exit codes:
  0  through the guard, every incident had an honest answer
  1  one had not: that is a bug, please report it
  4  the demo could not be played; standard error says why
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `mcp-guard` and return its exit code."""
    # Warnings of the guard and of the SDK would come between our own lines, which say the same.
    logging.getLogger().addHandler(logging.NullHandler())
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcp-guard", description="Guarded connections to MCP servers: every call gets an honest answer."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_own_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _call.add_parser(commands)
    _ledger.add_parsers(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="play the incidents, with and without the guard",
        description=_DEMO,
        epilog=_DEMO_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--json", action="store_true", help="print the findings as JSON")
    demo.set_defaults(run=lambda options: _demo.run(as_json=options.json))


def _own_version() -> str:
    try:
        return version("mcp-client-guard")
    except PackageNotFoundError:
        return "(not installed)"
