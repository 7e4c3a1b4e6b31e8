"""The two outputs of a command: either may be cut off (`| head`), closed, full, or lack characters."""

from __future__ import annotations

import os
import sys


def encoding() -> str:
    """What standard output can take."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def show(text: str) -> None:
    """Print on standard output, with escapes for what its encoding lacks; nobody needs to read to the end.

    Raises:
        OSError: it could not be written, though its reader has not left.
    """
    if sys.stdout is None:  # closed by the caller: `print` would say nothing of it
        raise OSError("standard output is closed")
    try:
        print(text.encode(encoding(), "backslashreplace").decode(encoding()), flush=True)
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - so that nothing is flushed there at exit
        if not isinstance(error, BrokenPipeError):
            raise


def note(*lines: str) -> None:
    """Print these lines on standard error, each on one. That nobody can be told of something changes nothing."""
    if sys.stderr is None:  # closed by the caller: `print` would take standard output in its place
        return
    try:
        print(*map(plain, lines), sep="\n", file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - so that nothing is flushed there at exit


def plain(told: object) -> str:
    """On one line, and with nothing that a terminal would obey: much of what is told comes from elsewhere."""
    text = "-" if told is None else str(told)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
