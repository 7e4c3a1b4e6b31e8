"""The official conformance runner finds nothing wrong with a client of the installed SDK on the guard.

It needs node 22 and the runner: `tests/conformance/install_node.sh`. Set
`MCP_GUARD_CONFORMANCE_TRANSPORT=sdk` to see what the SDK's own transport makes of the same scenarios.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import mcp
import pytest

import mcp_client_guard

HERE = Path(__file__).parent
NODE_DIR = Path(os.environ.get("MCP_GUARD_NODE_DIR", HERE.parents[1] / ".venvs" / "node"))
NODE = NODE_DIR / "node_modules" / "node" / "bin" / "node"
PROBES = hasattr(mcp, "Client")  # SDK 2.x: its host asks `server/discover` first, and speaks 2026-07-28

TRANSPORTS = ["sessions", "host"] if PROBES else ["sessions"]
if chosen := os.environ.get("MCP_GUARD_CONFORMANCE_TRANSPORT"):
    TRANSPORTS = [chosen]

# 0.1.16, and 0.2.0-alpha.12, which in some scenarios also holds every message to the specification's schema.
RUNNERS = ["c16", "c20"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    "scenario", ["initialize", "tools_call", "sse-retry", "elicitation-sep1034-client-defaults"]
)
def test_session_scenario_passes(scenario: str, runner: str, transport: str) -> None:
    output = play(runner, scenario, transport)
    assert ("wire-schema-valid" in output) == (runner == "c20" and scenario == "tools_call"), output


@pytest.mark.skipif(not PROBES, reason="the SDK's host does not speak 2026-07-28")
@pytest.mark.parametrize(
    "scenario",
    [
        "tools_call",
        "request-metadata",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "sep-2322-client-request-state",
    ],
)
def test_stateless_scenario_passes_when_the_host_chooses(scenario: str) -> None:
    play("c20", scenario, TRANSPORTS[-1], "--spec-version", "2026-07-28")


def play(runner: str, scenario: str, transport: str, *options: str) -> str:
    """Run one scenario; fail with the runner's output unless it says that all checks passed."""
    command = [
        str(NODE),
        str(NODE_DIR / runner / "node_modules/@modelcontextprotocol/conformance/dist/index.js"),
        "client",
        "--command",
        shlex.join([sys.executable, str(HERE / "client.py")]),
        "--scenario",
        scenario,
        "--timeout",
        "60000",
        *options,
    ]
    package_root = str(Path(mcp_client_guard.__path__[0]).parent)
    environ = os.environ | {
        "MCP_GUARD_CONFORMANCE_TRANSPORT": transport,
        "PYTHONPATH": package_root,
        "NODE_COMPILE_CACHE": str(NODE_DIR / "compile-cache"),
    }
    # Its own process group: a client that hangs is a grandchild, and must not outlive the test.
    with subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{runner} {scenario} over {transport} hung\n{output}")
    if process.returncode != 0 or "OVERALL: PASSED" not in output:
        pytest.fail(f"{runner} {scenario} over {transport}: exit {process.returncode}\n{output}")
    return output
