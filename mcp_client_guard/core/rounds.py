"""Calls that take several requests: what the server asks for in between, and which call a request continues.

On 2026-07-28 a server that needs something of the user answers `input_required`; the host sends the request
again, with the responses and the server's `requestState` (multi round-trip requests). That is another request with
another ID, and the same call: it has the call key of the first, and is no repeat of it.
"""

from __future__ import annotations

from hashlib import blake2b
from json import dumps

from attrs import define

from .messages import result_of
from .model import DIGEST_SIZE, JSON

NEVER = float("-inf")
_RESPONSES, _STATE = "inputResponses", "requestState"


@define(eq=False)
class Round:
    """The server waits for a request that continues this call."""

    key: bytes
    """Of the request that would continue it."""
    call_key: str
    named: bool
    """The host chose the call key."""
    others: int = 0
    """Hosts that were told the same besides, since their call was joined to this one or had its name, and have not
    been told yet what came after."""
    consented_at: float = NEVER
    """Seconds on the machine's clock: what was in doubt then, this call may repeat (`Call.consented_at`)."""


def asks_for_input(message: JSON) -> bool:
    """Whether this answer is not the last: the call goes on with another request."""
    result = result_of(message)
    return result is not None and result.get("resultType") == "input_required"


def awaited_key(method: str, params: JSON, message: JSON) -> bytes:
    """The key of the request that goes on where this answer to the request has stopped."""
    return _key(method, params, message["result"].get(_STATE))


def continuing_key(method: str, params: JSON) -> bytes | None:
    """The key of this request, if it goes on where an answer has stopped."""
    goes_on = _RESPONSES in params or _STATE in params
    return _key(method, params, params.get(_STATE)) if goes_on else None


def goes_on_from(params: JSON, answer: JSON) -> bool:
    """Whether the same request with these parameters goes on where this answer to it has stopped."""
    goes_on = continuing_key("", params)
    return asks_for_input(answer) and goes_on is not None and goes_on == awaited_key("", params, answer)


def _key(method: str, params: JSON, state: object) -> bytes:
    asked = {name: value for name, value in params.items() if name not in ("_meta", _RESPONSES, _STATE)}
    try:
        text = dumps([method, asked, state], sort_keys=True, separators=(",", ":"))
    except RecursionError:  # read as far as it could be, and nested as deep: two of these look alike
        text = method
    return blake2b(text.encode(), digest_size=DIGEST_SIZE).digest()
