"""The command runs in a process of its own; the event loop of the test beside it does not matter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

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


async def guard_command(*arguments: str) -> Ran:
    """`mcp-guard` with these arguments."""
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [sys.executable, "-m", "mcp_client_guard.cli", *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def mcp_guard() -> Callable[..., object]:
    return guard_command
