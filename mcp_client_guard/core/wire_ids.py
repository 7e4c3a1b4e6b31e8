"""Which request IDs a connection uses: a block of its own, by a number that its key gives to no other."""

from __future__ import annotations

from attrs import frozen

_EACH = 2**17
BLOCKS = 2**14 - 64
"""Some servers keep a request's ID in 32 bits, signed; the last blocks are for who needs more than one."""
_STRIDE = 14503
"""Blocks from one connection's to the next one's. A connection of millions of requests needs the blocks behind its
own, up to 32 of which are of none of the next 400 connections, nor of the last."""
_BACK = pow(_STRIDE, -1, BLOCKS)
_LAPS = 8
"""When all blocks were used they are used again, from another place within them: a session may have outlived as
many connections."""
FIRST_IDS = _EACH // _LAPS // 2
"""From how many a connection's first ID is chosen, of its place in its block. A store that is restored from a
backup gives the same number twice, and a server that has not been restored knows the IDs of both."""


def first_wire_id(number: int, nth: int) -> int:
    """Of the connection with this number, from 0; `nth` of `FIRST_IDS`, chosen at random."""
    lap, place = divmod(number, BLOCKS)
    return 1 + place * _STRIDE % BLOCKS * _EACH + lap % _LAPS * (_EACH // _LAPS) + nth


def block_of(wire_id: int) -> int:
    return (wire_id - 1) // _EACH


def as_wire_id(value: object) -> int | None:
    """JSON-RPC wants the ID back as it was; some servers send the number as text or as a float."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


@frozen
class EarlierIds:
    """Those of the connections from number `first` on that have used a session before connection `own`."""

    first: int
    own: int

    def __contains__(self, wire_id: int) -> bool:
        return (block_of(wire_id) * _BACK - self.first) % BLOCKS < self.own - self.first
