"""What is to be kept, on its way to the store: at once where something waits for it, else a little behind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import anyio
from attrs import define, field, frozen

from mcp_client_guard._errors import StoreError, StoreWriteError
from mcp_client_guard._theirs import is_theirs
from mcp_client_guard.core.actions import Save
from mcp_client_guard.core.inputs import SaveFailed
from mcp_client_guard.core.model import CallSent, Record
from mcp_client_guard.core.report import Event, StoreFailed
from mcp_client_guard.core.stored import compacted, falls_with_row
from mcp_client_guard.stores import Claim

from .timers import Timers

_BEHIND = 0.05
SAVE_TIMER = "save"
STALL_TIMER = "stalled"
STALLED_SECONDS = 5.0
"""For which what is not a request waits for the store: what was received is the host's (L2, L6)."""
_RETRY = 1.0
"""Seconds until what could not be written is tried again; a call that waits for the disk tries it at once."""
_MOST_UNSAVED = 8192
_MOST_FAILURES = 3
"""Records in a row that fail one by one, after which it is the disk and not the records."""


@frozen
class Batch:
    """Records that somebody waits for, by their numbers."""

    serial: int
    own: Mapping[int, Record]

    @property
    def rows(self) -> set[int]:
        """The requests whose rows are among them, by wire ID."""
        return {record.wire_id for record in self.own.values() if isinstance(record, CallSent)}


@define(eq=False, repr=False)
class Saving:
    """The records of one connection of the host's, in order."""

    claim: Claim
    slot: int
    timers: Timers
    on_event: Callable[[Event], None]
    _unsaved: dict[int, Record] = field(factory=dict, init=False)
    """In order, by number."""
    _numbered: int = field(default=0, init=False)
    _is_told: bool = field(default=False, init=False)
    """That the store fails, since it last did not."""
    _due: bool = field(default=False, init=False)
    _begun: int = field(default=0, init=False)
    """Writes, ever."""
    _under_way: set[int] = field(factory=set, init=False)
    _ordered: dict[int, int] = field(factory=dict, init=False)
    """Of the batches that are not being written yet: the number of the first record. In order."""
    _ended: anyio.Event | None = field(default=None, init=False)
    """Somebody waits for the next write that ends."""
    _watched: int = field(default=0, init=False)
    """The write that is to have ended when its time is over."""

    def behind(self, records: Sequence[Record]) -> None:
        """Keep these soon."""
        self._unsaved.update(self._number(records))
        self.soon()

    def order(self, saves: Iterable[Save]) -> Batch:
        """These are about to be written, durably: what is said later is not written before them.

        What is not durable of them goes along with them.
        """
        self._begun = serial = self._begun + 1
        self._under_way.add(serial)
        self._ordered[serial] = self._numbered
        if not self._watched:
            self._watch(serial)
        own: dict[int, Record] = {}
        for save in saves:
            (own if save.durable else self._unsaved).update(self._number(save.records))
        return Batch(serial, own)

    def soon(self) -> None:
        """At most `_BEHIND` after the first of what is unsaved, however much comes after it."""
        if not self._due:
            self._due = True
            self.timers.set(SAVE_TIMER, _BEHIND)

    def elapsed(self) -> None:
        """The timer has run out; whoever owns it now asks for the group."""
        self._due = False

    def _watch(self, serial: int) -> None:
        self._watched = serial
        self.timers.set(STALL_TIMER, STALLED_SECONDS)

    def watched_long(self) -> None:
        """The timer has run out. It is set once for many writes: what began meanwhile has its own next."""
        watched, self._watched = self._watched, 0
        if watched in self._under_way:
            self.failed(StoreWriteError("the store does not come back from writing"))
        elif self._under_way:
            self._watch(min(self._under_way))

    async def group(self) -> None:
        """Write all that wait."""
        try:
            await self.write(self.order(()), durable=False)
        except BaseException as error:  # a store of the user's own may raise anything
            if not is_theirs(error):
                raise
            self.failed(error)
            await self._one_by_one()

    def failed(self, error: BaseException) -> None:
        """Tell the user, once until the store works again."""
        if not self._is_told:
            self._is_told = True
            self.on_event(StoreFailed(said(error)))

    async def all(self) -> None:
        """Write all that wait, and wait for what others are writing: then the store can be read."""
        before = set(self._under_way)
        await self.group()
        await self._over(before)

    async def _over(self, writes: Collection[int]) -> None:
        while self._under_way.intersection(writes):
            self._ended = self._ended or anyio.Event()
            await self._ended.wait()

    async def rows(self, batch: Batch) -> list[SaveFailed]:
        """Write this batch; what there is to tell of requests whose rows could not be written."""
        try:
            await self.write(batch)
        except BaseException as error:  # a store of the user's own may raise anything
            if not is_theirs(error):
                raise
            if not batch.rows:
                self.failed(error)
            return [SaveFailed(wire_id, said(error)) for wire_id in sorted(batch.rows)]
        return []

    async def write(self, batch: Batch, *, durable: bool = True) -> None:
        """Write this batch, and all that waits.

        What cannot be written waits again, in its order, until the disk heals; but not the row of a call, which
        is not sent without it, nor what is written with it.
        """
        del self._ordered[batch.serial]
        before = self._under_way.difference(self._ordered, {batch.serial})
        wanted = dict(sorted({**self._take(), **batch.own}.items()))
        try:
            if wanted:
                await self.claim.write(self.slot, list(wanted.values()), durable=durable)
                self._is_told = False
            if durable:  # they may have taken some of what is to be on disk
                await self._over(before)
        except BaseException as error:
            if is_theirs(error):
                fallen = {n for n, record in batch.own.items() if falls_with_row(record)}
                self._wait_again({n: record for n, record in wanted.items() if n not in fallen})
            raise
        finally:
            self._under_way.remove(batch.serial)
            if self._ended is not None:
                self._ended.set()
                self._ended = None

    def _take(self) -> dict[int, Record]:
        """What waits, but for what is later than a batch whose writing has not begun: an outcome that is written
        before the row of its call is forgotten."""
        first = next(iter(self._ordered.values()), self._numbered)
        taken = {number: record for number, record in self._unsaved.items() if number < first}
        self._unsaved = {number: record for number, record in self._unsaved.items() if number >= first}
        return taken

    def _number(self, records: Iterable[Record]) -> dict[int, Record]:
        numbered = dict(enumerate(records, self._numbered))
        self._numbered += len(numbered)
        return numbered

    def _wait_again(self, unsaved: Mapping[int, Record]) -> None:
        self._unsaved = compacted(dict(sorted({**unsaved, **self._unsaved}.items())), _MOST_UNSAVED)
        if self._unsaved and not self._due:
            self._due = True
            self.timers.set(SAVE_TIMER, _RETRY)

    async def _one_by_one(self) -> None:
        """A record that the store will never take must not keep the others from it."""
        waiting = self._take()
        refused: dict[int, Record] = {}
        is_written = False
        while waiting and (is_written or len(refused) < _MOST_FAILURES):
            number, record = next(iter(waiting.items()))
            del waiting[number]
            try:
                await self.claim.write(self.slot, [record])
                is_written = True
            except BaseException as error:
                if not is_theirs(error):
                    raise
                refused[number] = record
        self._wait_again(waiting if is_written else {**refused, **waiting})


def said(error: BaseException) -> str:
    """Ours are made to be read; what is in another's text is not known, and may be secret."""
    return str(error) if isinstance(error, StoreError) else type(error).__name__
