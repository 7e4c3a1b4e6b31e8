"""The honest server of our own testing kit, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import _tools
import anyio

sys.path.insert(0, str(Path(__file__).parents[3]))

from mcp_client_guard.testing import EventLogServer


class Ledger(list[Any]):
    """Writes each execution down, as the other peers do."""

    def append(self, execution: Any) -> None:
        super().append(execution)
        _tools.ledger("kit", str(execution.arguments.get("label", "")))


async def main() -> None:
    async with EventLogServer() as server:
        server.work.ledger = Ledger()
        print(f"PORT {server.http.port}", flush=True)
        await anyio.sleep_forever()


anyio.run(main)
