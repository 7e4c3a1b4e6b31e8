"""Where an event belongs."""

from __future__ import annotations

from enum import Enum


class Placement(Enum):
    """What an event is to the trail it came for."""

    NEXT = "new, and in its place"
    UNKNOWN = "new, without an ID of its own"
    """So is what carries no message and names an ID of this connection again: that repeats no event."""
    DUPLICATE = "already received"
    CONFLICT = "another message under an ID that this stream has used"
    GAP = "not what the declared scheme allows next"
    AMBIGUOUS = "an ID used for two messages on one connection, or far too long: it identifies nothing"
