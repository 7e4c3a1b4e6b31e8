"""The command runs in a process of its own; the event loop of the test beside it does not matter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import anyio
import pytest
from attrs import frozen


@frozen
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


async def guard_command(
    *arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE, **env: str
) -> Ran:
    """`mcp-guard` with these arguments. What goes elsewhere than to a pipe of ours reads as nothing."""
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [sys.executable, "-m", "mcp_client_guard.cli", *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **env},
        )
    return Ran(done.returncode, (done.stdout or b"").decode(), (done.stderr or b"").decode())


async def guard_command_without_stdout(*arguments: str) -> Ran:
    """The same with standard output closed, as a shell's `>&-` does."""
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "mcp_client_guard.cli", *arguments]
    with anyio.fail_after(60):
        done = await anyio.run_process(command, check=False, stdin=subprocess.DEVNULL)
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def left_pipe() -> Iterator[int]:
    """A pipe whose reader has left, as `| head` does."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.fixture
def full() -> Iterator[int]:
    """A disk without any room."""
    with open("/dev/full", "wb") as device:
        yield device.fileno()


@pytest.fixture
def mcp_guard() -> Callable[..., object]:
    return guard_command
