"""A task that reads without ever having to wait looks by itself whether it is cancelled.

anyio cancels a task where it waits for what has not happened yet. On uvloop what a server writes without pause is
there before anyio looks, so that its reader could neither be left nor hung up, and would heed no timeout.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint_if_cancelled
from attrs import define, field

if TYPE_CHECKING:
    from typing_extensions import Self

_LOOK_AFTER = 16 * 1024
_A_READ = 1024
"""What a read counts besides its bytes: to look takes as long as to read a small event."""


@define(eq=False)
class Heed:
    """Of one reader."""

    _unheeded: int = field(default=0, init=False)

    def is_due(self, size: int) -> bool:
        """Whether to look, after so many bytes more."""
        self._unheeded += size + _A_READ
        if self._unheeded < _LOOK_AFTER:
            return False
        self._unheeded = 0
        return True


@define(eq=False)
class Heeding:
    """The chunks of a body; no generator, which trio would warn of where it is left."""

    chunks: AsyncIterator[bytes]
    _heed: Heed = field(factory=Heed, init=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self.chunks.__anext__()
        if self._heed.is_due(len(chunk)):
            await checkpoint_if_cancelled()
        return chunk
