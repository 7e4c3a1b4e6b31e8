"""Make the environments which the Python peers, and FastMCP as a host, run in; one that is there is kept.

    python tests/real/install_peers.py                # needs `uv` on the PATH
    python tests/real/install_peers.py repeaters      # those of the frameworks in tests/real/repeaters

They are apart from the tests' own environments, because mcp 1.x and 2.x exclude each other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

VENVS = Path(os.environ.get("MCP_GUARD_PEERS", Path(__file__).parents[2] / ".venvs"))

GUARD = ("attrs", "httpx", "httpcore", "httpx-sse", "tenacity")
"""What the package needs, which is itself on the path."""
PEERS = {
    "peer-fastmcp4": ("fastmcp==4.2.3",),
    "peer-sdk1": ("mcp==1.30.0", "uvicorn", "starlette"),
    "host-fastmcp4": ("fastmcp==4.2.3", *GUARD),
}
REPEATERS = {
    "repeater-openai-agents": ("openai-agents==0.24.0", "mcp==2.3.0", *GUARD),
    "repeater-openai-agents-sdk1": ("openai-agents==0.24.0", "mcp==1.30.0", *GUARD),
    "repeater-pydantic-ai": ("pydantic-ai-slim[mcp]==2.68.0", "fastmcp-slim==4.2.3", "mcp==2.3.0", *GUARD),
    "repeater-crewai": ("crewai==1.15.30", "mcp==1.30.0", *GUARD),
    "repeater-haystack": ("mcp-haystack==2.1.1", "haystack-ai==3.4.1", "mcp==2.3.0", *GUARD),
    "repeater-langchain": ("langchain-mcp-adapters==0.3.2", "mcp==1.30.0", *GUARD),
    "repeater-fastmcp": ("fastmcp==4.2.3", "mcp==2.3.0", *GUARD),
    "repeater-strands": ("strands-agents==1.62.0", "mcp==2.1.1", *GUARD),
    "repeater-google-adk": ("google-adk[mcp]==2.13.0", "mcp==2.3.0", *GUARD),
}
GROUPS = {"peers": PEERS, "repeaters": REPEATERS}


def main() -> None:
    for name, requirements in GROUPS[sys.argv[1] if sys.argv[1:] else "peers"].items():
        python = VENVS / name / "bin" / "python"
        if not _installed(python, requirements[0]):
            subprocess.run(
                ["uv", "venv", "--quiet", "--python", sys.executable, "--clear", VENVS / name], check=True
            )
            subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, *requirements], check=True)


def _installed(python: Path, requirement: str) -> bool:
    package, _, version = re.sub(r"\[.*\]", "", requirement).partition("==")
    program = f"from importlib.metadata import version; assert version({package!r}) == {version!r}"
    return python.exists() and not subprocess.run([python, "-c", program], capture_output=True).returncode


if __name__ == "__main__":
    main()
