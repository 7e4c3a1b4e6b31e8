"""The command `mcp-guard`."""

from ._main import main

__all__ = ["main"]
