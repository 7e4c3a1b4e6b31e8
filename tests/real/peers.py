"""The real servers, each in a process and an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import frozen

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
VENVS = Path(os.environ.get("MCP_GUARD_PEERS", ROOT / ".venvs"))
"""Where `install_peers.py` and `tests/conformance/install_node.sh` put the peers' environments."""

PEERS = ("fastmcp4", "sdk1", "everything")
MODERN_PEERS = ("fastmcp4", "sdk2")
"""Those that speak 2026-07-28."""
LEGACY = ("sdk1-sse", "everything-sse")
"""The same two, by legacy HTTP+SSE."""


def path_of(name: str) -> str:
    """Of a peer's endpoint."""
    return "/sse" if name == "everything-sse" else "/mcp"


@frozen
class Peer:
    """A server that is running."""

    name: str
    port: int
    ledger: Path
    """One line for each execution: the tool's name, a tab, the label it was called with."""

    @property
    def url(self) -> str:
        """The endpoint, without a proxy."""
        return f"http://127.0.0.1:{self.port}{path_of(self.name)}"

    def executions(self, label: str) -> int:
        """How often a tool ran under this label. The reference server keeps no ledger: see `has_ledger`."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return sum(line.partition("\t")[2] == label for line in lines)

    @property
    def has_ledger(self) -> bool:
        """Whether executions can be counted at the tool itself."""
        return not self.name.startswith("everything")


def _command(name: str) -> Sequence[str | Path]:
    match name:
        case "fastmcp4":
            return [VENVS / "peer-fastmcp4" / "bin" / "python", HERE / "servers" / "fastmcp4.py"]
        case "sdk1":
            return [VENVS / "peer-sdk1" / "bin" / "python", HERE / "servers" / "sdk1.py"]
        case "sdk2":  # FastMCP 4 stands on it
            return [VENVS / "peer-fastmcp4" / "bin" / "python", HERE / "servers" / "sdk2.py"]
        case "kit" | "swallows":
            return [sys.executable, HERE / "servers" / f"{name}.py"]
        case "sdk1-sse":
            return [VENVS / "peer-sdk1" / "bin" / "python", HERE / "servers" / "sdk1_sse.py"]
        case "everything" | "everything-sse":
            modules = VENVS / "node" / "node_modules"
            server = modules / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
            preload = HERE / "servers" / "report_port.mjs"
            return [
                "node",
                "--import",
                preload.as_uri(),
                server,
                "sse" if name == "everything-sse" else "streamableHttp",
            ]
        case _:
            raise ValueError(f"no such peer: {name}; there are {', '.join((*PEERS, *LEGACY))}")


@contextmanager
def running(name: str) -> Iterator[Peer]:
    """Start a peer and end it afterwards."""
    command = _command(name)
    if missing := [part for part in command if isinstance(part, Path) and not part.exists()]:
        raise RuntimeError(
            f"{missing[0]} is missing: run tests/real/install_peers.py and tests/conformance/install_node.sh"
        )
    with TemporaryDirectory(prefix="mcp-guard-peer-") as folder:
        ledger, log = Path(folder) / "ledger", Path(folder) / "stderr"
        env = os.environ | {"MCP_LEDGER": str(ledger), "PORT": "0", "PYTHONWARNINGS": "ignore"}
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [str(part) for part in command], stdout=subprocess.PIPE, stderr=errors, env=env
            )
        assert process.stdout is not None
        try:
            yield Peer(name, _port_told(process, log), ledger)
        finally:
            process.kill()
            process.stdout.close()
            process.wait()


def _port_told(process: subprocess.Popen[bytes], log: Path) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"PORT "):
            return int(line.split()[1])
    process.wait()
    print(log.read_text(errors="replace"), file=sys.stderr)
    raise RuntimeError(f"{process.args!r} ended with {process.returncode} before it listened")
