"""What the exit codes of `mcp-guard` mean. They are part of its interface."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    TOOL_ERROR = 1
    """The answer says that the call failed; for `demo`: the guard did not give an honest answer."""
    USAGE = 2
    """The command was called wrongly. argparse uses this number, too."""
    IN_DOUBT = 3
    """The call may or may not have run."""
    NOT_EXECUTED = 4
    """The call did not run; for `calls`, `sessions` and `demo`: an error, which standard error tells."""


EXIT_CODES = """\
exit codes:
  0  the tool answered
  1  the tool or the server answered that the call failed; it may have done something by then
  2  the command was called wrongly
  3  in doubt: the call may or may not have run; do not repeat it without checking
  4  not executed; standard error says why
They are about the call, whether or not its result could be written; where not, standard error says so.
"""

LEDGER_EXIT_CODES = """\
exit codes:
  0  done, whatever became of the calls
  2  the command was called wrongly
  4  the store cannot be read, its key is in use, no such call or key is in it, or the output cannot be
     written; standard error says which
"""
