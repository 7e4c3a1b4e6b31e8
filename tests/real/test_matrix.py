"""Every host on every server, as a user has them by default; and what is asked for where it is not the default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mcp
import pytest

from mcp_client_guard import Guard, SQLiteStore
from mcp_client_guard.testing import CuttingProxy

from .hosts import SDK
from .matrix import STEPS, Found
from .peers import ROOT, VENVS, Peer, running
from .staged import HOSTS as SDK_HOSTS

RESUMED = ("streamable-http", "completed")
STATELESS = ("stateless-http", "in doubt")
CUT = ("streamable-http", "in doubt")
LEGACY = ("legacy-sse", "in doubt")

SERVERS = {
    "sdk1": RESUMED,
    "everything": RESUMED,
    "fastmcp4": RESUMED,
    "kit": RESUMED,
    "sdk2": CUT,
    "sdk1-sse": LEGACY,
    "everything-sse": LEGACY,
}
ASKS = ("client", "fastmcp")
"""Hosts that ask for 2026-07-28 first."""
HOSTS = (*SDK_HOSTS, "fastmcp") if SDK == "sdk2" else SDK_HOSTS
CASES = [
    # Without an event log sessions are worth nothing: the host's own choice is followed.
    (host, server, "auto", *(STATELESS if server == "sdk2" and host in ASKS else expected))
    for host in HOSTS
    for server, expected in SERVERS.items()
]
CASES += [(host, "fastmcp4", "host", *STATELESS) for host in HOSTS if host in ASKS]


@pytest.fixture(scope="module")
def peers() -> Iterator[dict[str, Peer]]:
    """One process for each server."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(running(name)) for name in SERVERS}


@pytest.fixture(scope="module")
def played(peers: dict[str, Peer]) -> dict[tuple[str, str, str], Found]:
    """A process for each host (FastMCP is in an environment of its own) plays all its cases at once."""
    found: dict[tuple[str, str, str], Found] = {}
    for host in HOSTS:
        python = VENVS / "host-fastmcp4" / "bin" / "python" if host == "fastmcp" else sys.executable
        own = [(server, generation) for name, server, generation, *_ in CASES if name == host]
        orders = json.dumps([(peers[server].url, server, generation) for server, generation in own])
        command = [str(python), "-m", "tests.real.matrix", host]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, input=orders, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stderr
        results = [Found(**each) for each in json.loads(done.stdout.splitlines()[-1])]
        found |= {(host, *which): each for which, each in zip(own, results, strict=True)}
    return found


@pytest.mark.parametrize(("host", "server", "generation", "how", "outcome"), CASES)
def test_a_call_completes_and_one_that_is_cut_has_an_honest_outcome(
    host: str,
    server: str,
    generation: str,
    how: str,
    outcome: str,
    peers: dict[str, Peer],
    played: dict[tuple[str, str, str], Found],
) -> None:
    peer, found = peers[server], played[host, server, generation]
    assert not found.failure, found
    assert found.tools
    assert found.is_cut, found
    assert found.whole == "completed", found
    assert found.progress == [float(step) for step in range(1, STEPS + 1)], found
    assert found.cut.partition(":")[0] == outcome, found
    assert found.generation == how or not found.generation, found
    assert found.signalled is (how == "stateless-http"), found
    if outcome == "completed" and not found.loss_reported:
        assert found.cut_progress == [float(step) for step in range(1, STEPS + 1)], found
    if peer.has_ledger:
        assert peer.executions(f"{host}-{generation}-whole") == peer.executions(f"{host}-{generation}-cut") == 1
    assert len(set(found.cut_progress)) == len(found.cut_progress), found


async def methods_of(proxy: CuttingProxy, guard: Guard) -> list[str | None]:
    """What a host on SDK 2.3 has the guard send when it connects."""
    before = len(proxy.exchanges)
    sdk: Any = mcp
    async with sdk.Client(guard.connect()) as client:
        await client.list_tools()
    return [exchange.request.rpc_method for exchange in proxy.exchanges[before:]]


if SDK == "sdk2":  # hosts on 1.x do not ask, so nothing is found out for them

    @pytest.mark.anyio
    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    async def test_what_was_found_of_an_endpoint_is_tried_first_next_time_and_seen_anew_after_a_restart(
        peers: dict[str, Peer], tmp_path: Path
    ) -> None:
        """No session is tried again where they were found to be worth nothing; but by the next process: a server
        may have been given an event log."""
        async with CuttingProxy(peers["sdk2"].port) as proxy:
            guard = Guard(proxy.url, store=SQLiteStore(tmp_path / "guard.db"))
            assert "initialize" in await methods_of(proxy, guard)
            again = await methods_of(proxy, guard)
            restarted = await methods_of(proxy, Guard(proxy.url, store=SQLiteStore(tmp_path / "guard.db")))
        assert "initialize" not in again
        assert again[0] == "server/discover"
        assert restarted[0] == "initialize"
