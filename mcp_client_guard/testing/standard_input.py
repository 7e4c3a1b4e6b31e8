"""A server in a process of its own ends with its standard input, of which its starter holds the other end."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Thread

import anyio
from anyio import from_thread
from anyio.lowlevel import current_token

_STANDARD_INPUT = 0
_READ = 64 * 1024


async def input_ended() -> None:
    """Wait until standard input ends. It holds up no process that ends before."""
    ended, token = anyio.Event(), current_token()

    def read_to_end() -> None:
        with suppress(OSError):  # there is none
            while os.read(_STANDARD_INPUT, _READ):
                pass
        with suppress(anyio.RunFinishedError):
            from_thread.run_sync(ended.set, token=token)

    # At the exit anyio's own threads are joined, and `sys.stdin` is closed, which must not be locked by a reader.
    Thread(target=read_to_end, daemon=True).start()
    await ended.wait()
