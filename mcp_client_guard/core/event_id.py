"""What an event ID may be taken to mean: nothing, unless the user says so.

Event IDs are opaque (2025-11-25 transports, Resumability 1: unique in the session, no order promised). A user
may declare more for a server that promises more; what is merely learned from the IDs seen never breaks a stream,
because one session-wide counter leaves legal holes in every stream.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

_NUMBERED = re.compile(r"\A(.*?)([0-9]{1,18})\Z", re.DOTALL)
MAX_EVENT_ID = 8 * 1024
_MIN_LEARNED = 3


class IdScheme(Enum):
    """What is known of the order of event IDs within one stream."""

    OPAQUE = "opaque"
    """Nothing: an ID only names its event."""
    MONOTONE = "monotone"
    """Each ends in a decimal number higher than the one before, behind the same prefix; there may be holes."""
    CONTIGUOUS = "contiguous"
    """The same without holes: each number is the one before plus 1."""


def fits_header(event_id: str) -> bool:
    """Whether this ID can be sent as `Last-Event-ID` at all: a field value of RFC 9110, at most 8 KiB of UTF-8."""
    if not event_id or len(event_id) > MAX_EVENT_ID or event_id.strip(" \t") != event_id:
        return False
    if any((c < " " and c != "\t") or c == "\x7f" for c in event_id):
        return False
    if any("\ud800" <= c <= "\udfff" for c in event_id):
        return False  # half a pair, from an escape in JSON: no bytes stand for it
    return len(event_id.encode()) <= MAX_EVENT_ID


def number_of(event_id: str) -> tuple[str, int] | None:
    """The ID as (prefix, decimal number): `e-1042` is ("e-", 1042)."""
    match = _NUMBERED.match(event_id)
    return (match[1], int(match[2])) if match else None


def follows(scheme: IdScheme, previous: str, new: str) -> bool:
    """Whether `new` may come next after `previous` under a declared scheme."""
    if scheme is IdScheme.OPAQUE:
        return True
    before, after = number_of(previous), number_of(new)
    if before is None or after is None or before[0] != after[0]:
        return False
    step = after[1] - before[1]
    return step == 1 if scheme is IdScheme.CONTIGUOUS else step > 0


def learn(event_ids: Sequence[str]) -> IdScheme:
    """The strongest scheme that every step so far has kept to; opaque until there are a few."""
    if len(event_ids) < _MIN_LEARNED:
        return IdScheme.OPAQUE
    for scheme in (IdScheme.CONTIGUOUS, IdScheme.MONOTONE):
        if all(follows(scheme, a, b) for a, b in pairwise(event_ids)):
            return scheme
    return IdScheme.OPAQUE


def goes_down(event_ids: Sequence[str], new: str) -> bool:
    """Whether a plainly decimal counter went down: the mark of a counter that started over.

    Only where every ID of the stream so far was decimal and rising; random decimal IDs prove nothing.
    """
    if not event_ids or not all(i.isascii() and i.isdigit() for i in (*event_ids, new)):
        return False
    numbers = [int(i[:18]) if len(i) <= 18 else -1 for i in event_ids]
    rising = all(a < b for a, b in pairwise(numbers))
    return rising and len(new) <= 18 and int(new) < numbers[-1]
