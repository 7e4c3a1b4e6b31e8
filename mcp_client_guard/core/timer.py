"""Timers: what the core has run out, and which class takes it."""

from __future__ import annotations

from enum import Enum, auto

from attrs import frozen


class TimerKind(Enum):
    """What runs out, and which class takes it."""

    DEADLINE = auto()
    """The time a request has for its outcome (`call_deadline`): `Calls`."""
    WITNESS = auto()
    """The time a resume has to show its witness, and a socket its first frame: `Trials`, `Upgrading`."""
    RECHECK = auto()
    """A resumed stream has brought no message for so long that its log is asked once more: `Trials`."""
    CONFIRM = auto()
    """The time the server has to take `notifications/initialized`: `Restoring`."""
    CLOSING = auto()
    """The time of a last look at the log; then the answer that is held goes out: `Closing`."""
    ANSWER = auto()
    """The time an answer has to follow an unreadable one, `Awaiting`, or to come on the carrier, `Beside`."""
    REFRESH = auto()
    """The wait until a host may be told again to read its lists: `Trials`, or of a subscription, `Listening`."""
    BUDGET = auto()
    """The minute to which `reinitialize_limit` applies: `Recovery`."""
    REOPEN = auto()
    """The wait until a session that nobody asks for is tried again, since the host may listen: `Recovery`."""
    RESTORE = auto()
    """The time a new session has to answer what restores it: `Restoring`."""
    ASK = auto()
    """The time the `reconcile` hook has for one call (`reconcile_timeout`): `Reconciling`."""
    PACE = auto()
    """The wait until a task is asked for again: `HeirTasks`."""
    ENDPOINT = auto()
    """The time a legacy stream has to say where messages are posted: `Carrying`."""
    UPGRADE = auto()
    """The pause until a socket is asked for again: `Upgrading`."""
    UNWANTED = auto()
    """The time of a stream that nobody waits for any more (`max_idle`): `Streams`."""
    TURN = auto()
    """The time a notification may hold up the next one: `Notes`."""
    QUESTION = auto()
    """The time a call has to go on without what the host could not answer: `Notes`."""


@frozen
class Timer:
    """Identifies a timer. A later connection of the stream has other timers."""

    kind: TimerKind
    stream: int
    connection: int = 0
