"""What one case of the sweep is: which peers, and where the wire is cut. Its name says all of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from zlib import crc32

from attrs import field, frozen

from mcp_client_guard.testing import Cut, CuttingProxy, Exchange, How, Match, after_event, resumes_of, standalone

from .peers import LEGACY

HOWS = {"fin": How.FIN, "rst": How.RST, "half": How.HALF_CLOSE, "stall": How.STALL}
STEPS = 3
"""Progress notifications of the call that is cut; the other call has one more."""
EVENTS = STEPS + 2
"""Its events: priming, progress, result."""
LONGEST = 1400
"""Bytes; more than any recorded response of the call. Cuts past the end of one are not tried."""


@frozen
class Place:
    """`rst@312`: after 312 bytes; `stall@e2-1`: one byte before the end of the second event.

    In a legacy session both are counted on the stream that is the session, from the call on; `rst@p12`: after 12
    bytes of the answer to the call's POST.
    """

    how: How
    at: int
    event: int | None = None
    of_post: bool = False

    @classmethod
    def parse(cls, text: str) -> Place:
        """From a case's name."""
        how, _, at = text.partition("@")
        if at.startswith("p"):
            return cls(HOWS[how], int(at[1:]), of_post=True)
        if not at.startswith("e"):
            return cls(HOWS[how], int(at))
        number, sign, offset = at[1:].replace("-", " -").replace("+", " +").partition(" ")
        return cls(HOWS[how], int(offset) if sign else 0, int(number))

    def __str__(self) -> str:
        if self.event is None:
            return f"{self.how.value}@{'p' if self.of_post else ''}{self.at}"
        return f"{self.how.value}@e{self.event}{self.at:+d}" if self.at else f"{self.how.value}@e{self.event}"

    def cut(self, where: Match) -> Cut:
        """As an order to the proxy."""
        return Cut(self.at if self.event is None else after_event(self.event, self.at), self.how, where)

    def cut_of_session(self, is_call: Match, proxy: CuttingProxy) -> Cut:
        """The same in a legacy session, on the stream that is the session."""
        before: list[int] = []

        def at(exchange: Exchange) -> int | None:
            if not before and any(is_call(other) for other in proxy.exchanges):
                before.append(exchange.sent)
            if not before or self.event is None:
                return before[0] + self.at if before else None
            ends = [end for end in exchange.boundaries if end > before[0]]
            return ends[self.event - 1] + self.at if len(ends) >= self.event else None

        return Cut(at, self.how, standalone)


@frozen
class Case:
    """`sdk1/session/beside/trio/rst@312,fin@20`: peer, host, alone or beside another call, event loop, cuts.

    The first cut is on the call, each further one on the next resume of its stream.
    """

    peer: str
    host: str
    company: str
    loop: str
    places: tuple[Place, ...] = field(factory=tuple)

    @classmethod
    def parse(cls, name: str) -> Case:
        """From its name."""
        *four, places = name.split("/")
        peer, host, company, loop = four
        cuts = () if places == "whole" else tuple(Place.parse(place) for place in places.split(","))
        return cls(peer, host, company, loop, cuts)

    def __str__(self) -> str:
        places = ",".join(map(str, self.places)) or "whole"
        return f"{self.peer}/{self.host}/{self.company}/{self.loop}/{places}"

    @property
    def delay(self) -> float:
        """Seconds between the call's notifications: some calls are over at the resume, some go on live."""
        return (0.004, 0.03)[crc32(str(self).encode()) % 2]

    @property
    def is_legacy(self) -> bool:
        """By HTTP+SSE."""
        return self.peer in LEGACY

    def cuts(self, where: Match, proxy: CuttingProxy) -> list[Cut]:
        """As orders to the proxy; `where` matches the call."""
        if self.is_legacy:
            return [
                place.cut(where if place.of_post else standalone)
                if serial or place.of_post
                else place.cut_of_session(where, proxy)
                for serial, place in enumerate(self.places)
            ]

        def of_call(exchange: Exchange) -> bool:
            return where(exchange)

        return [
            place.cut(where if serial == 0 else resumes_of(of_call)) for serial, place in enumerate(self.places)
        ]


def every_place(length: int, of_post: int = 0) -> Iterator[Place]:
    """FIN and RST at every byte of a response; a stall at each event boundary and one byte either side.

    `of_post`: in a legacy session, the length of the answer to the POST: FIN and RST at every byte of it, too.
    """
    for at in range(of_post):
        yield Place(How.FIN, at, of_post=True)
        yield Place(How.RST, at, of_post=True)
    for at in range(length + 1):
        yield Place(How.FIN, at)
        yield Place(How.RST, at)
    for event in range(1, EVENTS + (0 if of_post else 1)):
        for offset in (-1, 0, 1):
            yield Place(How.STALL, offset, event)


def random_places(rng: random.Random, length: int) -> tuple[Place, ...]:
    """One to three cuts in a row; one in ten is a stall."""
    hows = rng.choices([How.FIN, How.RST, How.STALL], weights=[9, 9, 2], k=rng.randint(1, 3))
    return tuple(Place(how, rng.randint(0, length)) for how in hows)
