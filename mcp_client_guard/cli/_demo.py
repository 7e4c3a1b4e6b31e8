"""`mcp-guard demo`: each incident once through the SDK's own transport and once through the guard."""

from __future__ import annotations

import json
import sys
import time
from asyncio import CancelledError
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from ._demo_host import PATIENCE, WITNESS_TIMEOUT, Account, load_sdk, play, sdk_version
from ._demo_report import Finding, Pair, Report
from ._exits import Exit
from ._incidents import INCIDENTS
from ._output import note, show

SIDES = ("sdk", "guard")
_MAX_LINE = 1024 * 1024
_SERVER_SECONDS = 20.0


class ServerFailed(Exception):
    """The demo's own server process did not do its part."""


def run(*, as_json: bool) -> Exit:
    """Play and print."""
    version = sdk_version()
    if version is None:
        return _fail("it compares with the MCP SDK: pip install 'mcp-client-guard[mcp]'")
    try:
        report = anyio.run(_played, version, None if as_json else _heading(version))
        show(json.dumps(report.as_json(), indent=2) if as_json else report.as_text())
    except (ServerFailed, ImportError, OSError) as error:
        return _fail(str(error))
    except (KeyboardInterrupt, CancelledError):  # the latter: anyio's own runner on Python 3.10
        return _fail("interrupted")
    return Exit.OK if report.all_honest else Exit.TOOL_ERROR


def _fail(why: str) -> Exit:
    note(f"mcp-guard demo: {why}")
    return Exit.NOT_EXECUTED


def _heading(version: str) -> str:
    return (
        f"{len(INCIDENTS)} incidents, each through the transport of the MCP SDK {version} and through the guard.\n"
        "A server process plays the faults on the wire, and writes down what it really executes.\n"
        f"The caller waits {PATIENCE:g} s for an answer, and calls once more if the first call raised.\n"
        f"(The guard's witness_timeout is {WITNESS_TIMEOUT:g} s here, 5 s by default.)\n"
    )


async def _played(version: str, heading: str | None) -> Report:
    if heading is not None:  # said here, where an interrupt is the event loop's: in an import it may be lost
        show(heading)
    began = time.monotonic()
    accounts: dict[tuple[str, str], Account] = {}
    async with _server() as (urls, ledger):

        async def one(name: str, side: str) -> None:
            incident = next(i for i in INCIDENTS if i.name == name)
            accounts[name, side] = await play(incident, side, urls[name][side])

        async with anyio.create_task_group() as tasks:
            for incident in INCIDENTS:
                for side in SIDES:
                    tasks.start_soon(one, incident.name, side)
        executed = await ledger()

    def finding(name: str, side: str) -> Finding:
        incident = next(i for i in INCIDENTS if i.name == name)
        return Finding(incident, accounts[name, side], executed[name][side])

    pairs = [Pair(i, finding(i.name, "sdk"), finding(i.name, "guard")) for i in INCIDENTS]
    return Report(version, pairs, time.monotonic() - began)


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[Any, Any]]:
    """The server process: its URLs, and how to end it and get its ledger."""
    command = [sys.executable, "-m", "mcp_client_guard.cli._demo_server"]
    # A session of its own, so that Ctrl-C in a terminal is ours alone: it would say how it was interrupted, too.
    async with await anyio.open_process(command, stderr=None, start_new_session=True) as process:
        try:
            load_sdk()  # slow, and so is the start of the process
            yield await _told(process), lambda: _ledger_of(process)
        finally:
            if process.returncode is None:
                process.kill()


async def _ledger_of(process: Process) -> Any:
    assert process.stdin is not None
    await process.stdin.aclose()
    return await _told(process)


async def _told(process: Process) -> Any:
    """The next line of the server's standard output."""
    assert process.stdout is not None
    try:
        with anyio.fail_after(_SERVER_SECONDS):
            line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", _MAX_LINE)
    except (TimeoutError, anyio.IncompleteRead, anyio.ClosedResourceError) as error:
        raise ServerFailed("the server process ended early or did not answer") from error
    return json.loads(line)
