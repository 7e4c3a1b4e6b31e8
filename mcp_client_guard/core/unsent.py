"""What is said of a request that did not run: by whose word, and in words that the ledger is read by again."""

from __future__ import annotations

from .ledger import Call

NEVER_SENT = " before it was sent"
"""Ends the reason of a cancelled call of which no byte has left."""
_NOT_AGAIN = " before it was sent again"
"""Ends that of one whose sendings have not run, by the server's word."""


def given_up(call: Call, why: str) -> str:
    """The reason, where its caller has given it up while it waited to be sent, or to be sent again."""
    return f"{why}{NEVER_SENT}" if call.unrun is None else f"{call.unrun[0]}; {why}{_NOT_AGAIN}"


def says_unsent(reason: str) -> bool:
    """Whether a cancelled call with this reason did not run. Of other outcomes such words say other things."""
    return reason.endswith((NEVER_SENT, _NOT_AGAIN))


def not_sent(call: Call, reason: str) -> tuple[str, str, int | None]:
    """Who says of a request that cannot be sent, or not again, that it did not run; why; and by which status. Once
    a sending of it has left, it is the server that says so (S10)."""
    if call.unrun is None:
        return "wire", reason, None
    words, status = call.unrun
    return "server", f"{words}; {reason}", status
