"""MemoryStore, where it differs from a file."""

from __future__ import annotations

import pytest

from mcp_client_guard.stores.memory import MemoryStore
from tests.stores.records import sent


@pytest.mark.anyio
async def test_a_write_takes_no_turn_of_the_event_loop() -> None:
    """Driven by hand: a coroutine that waited for anything would not end at the first step."""

    def finish(coroutine):  # type: ignore[no-untyped-def]
        with pytest.raises(StopIteration) as end:
            coroutine.send(None)
        return end.value.value

    claim = finish(MemoryStore().claim("orders", origin="https://example.com", principal=None))
    finish(claim.new_slot())
    finish(claim.write(1, [sent(1)], durable=True))
    finish(claim.release())
