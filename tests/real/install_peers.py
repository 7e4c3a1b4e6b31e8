"""Make the environments which the Python peers, and FastMCP as a host, run in; one that is there is kept.

    python tests/real/install_peers.py      # needs `uv` on the PATH

They are apart from the tests' own environments, because mcp 1.x and 2.x exclude each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VENVS = Path(os.environ.get("MCP_GUARD_PEERS", Path(__file__).parents[2] / ".venvs"))

PEERS = {
    "peer-fastmcp4": ("fastmcp==4.2.3",),
    "peer-sdk1": ("mcp==1.30.0", "uvicorn", "starlette"),
    "host-fastmcp4": ("fastmcp==4.2.3", "attrs", "httpx", "httpcore", "httpx-sse", "tenacity"),
}


def main() -> None:
    for name, requirements in PEERS.items():
        python = VENVS / name / "bin" / "python"
        if not _installed(python, requirements[0]):
            subprocess.run(
                ["uv", "venv", "--quiet", "--python", sys.executable, "--clear", VENVS / name], check=True
            )
            subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, *requirements], check=True)


def _installed(python: Path, requirement: str) -> bool:
    package, _, version = requirement.partition("==")
    program = f"from importlib.metadata import version; assert version({package!r}) == {version!r}"
    return python.exists() and not subprocess.run([python, "-c", program], capture_output=True).returncode


if __name__ == "__main__":
    main()
