"""What is to be kept, on its way to the store: at once where something waits for it, else a little behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
from attrs import define, field

from mcp_client_guard._errors import StoreError
from mcp_client_guard.core.model import Record
from mcp_client_guard.core.report import Event, StoreFailed
from mcp_client_guard.stores import Claim

from .timers import Timers

_BEHIND = 0.05
GROUP = 512
"""Messages that the host may have taken before their positions are saved, however soon after the last."""

SAVE_TIMER = "save"


@define(eq=False, repr=False)
class Saving:
    """The records of one connection of the host's, in order."""

    claim: Claim
    slot: int
    timers: Timers
    on_event: Callable[[Event], None]
    _unsaved: list[Record] = field(factory=list, init=False)
    _due: bool = field(default=False, init=False)
    _begun: int = field(default=0, init=False)
    """Writes, ever."""
    _under_way: set[int] = field(factory=set, init=False)
    _ended: anyio.Event | None = field(default=None, init=False)
    """Somebody waits for the next write that ends."""

    def behind(self, records: Sequence[Record]) -> None:
        """Keep these soon."""
        self._unsaved += records
        self.soon()

    def soon(self) -> None:
        """At most `_BEHIND` after the first of what is unsaved, however much comes after it."""
        if not self._due:
            self._due = True
            self.timers.set(SAVE_TIMER, _BEHIND)

    def elapsed(self) -> None:
        """The timer has run out; whoever owns it now asks for the group."""
        self._due = False

    async def group(self) -> None:
        """Write all that wait."""
        try:
            await self.write(())
        except Exception as error:  # a store of the user's own may raise anything
            self.on_event(StoreFailed(said(error)))

    async def all(self) -> None:
        """Write all that wait, and wait for what others are writing: then the store can be read."""
        before = set(self._under_way)
        await self.group()
        while before & self._under_way:
            self._ended = self._ended or anyio.Event()
            await self._ended.wait()

    async def write(self, records: Sequence[Record], *, durable: bool = False) -> None:
        """Write these records after all that wait. What cannot be written is given up: it is only behind."""
        behind, self._unsaved = self._unsaved, []
        if not (behind or records):
            return
        self._begun = serial = self._begun + 1
        self._under_way.add(serial)
        try:
            await self.claim.write(self.slot, [*behind, *records], durable=durable)
        finally:
            self._under_way.remove(serial)
            if self._ended is not None:
                self._ended.set()
                self._ended = None


def said(error: Exception) -> str:
    """Ours are made to be read; what is in another's text is not known, and may be secret."""
    return str(error) if isinstance(error, StoreError) else type(error).__name__
