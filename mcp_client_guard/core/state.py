"""All states and every legal transition. Nothing else assigns a state.

A stream that was cut is LOST until a GET, or its POST sent again, is answered. If that resumes it, it is ON_TRIAL
until the server has proven that it holds the same log (or the trial ends otherwise). BROKEN is never repaired in
place: only the standalone stream leaves it, by opening afresh with no cursor.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import TypeVar


class SessionState(Enum):
    NEW = auto()
    """No `initialize` has been sent, or it failed. On 2026-07-28, which has no sessions, it stays so."""
    INITIALIZING = auto()
    """The host's `initialize` is sent, its `notifications/initialized` is not: with or without the answer."""
    CONFIRMING = auto()
    """`notifications/initialized` is on its way; requests wait for its acknowledgement (bounded)."""
    LIVE = auto()
    """Requests go out."""
    LOST = auto()
    """No session; the next request opens one, as far as the budget goes."""
    REINITIALIZING = auto()
    """Ours, in place of a lost session; or, while it is only suspected, beside it."""
    RESTORING = auto()
    """The new session is brought to where the old one was; requests wait for it (bounded)."""
    PROVING = auto()
    """A session of an earlier process is offered to the server."""
    CLOSED = auto()
    """The host has left: nothing comes after it."""


class SessionStep(Enum):
    INITIALIZE_SENT = auto()
    """The host opens a session, whatever became of one before."""
    INITIALIZE_FAILED = auto()
    """It has no answer that opens a session, and none is to come."""
    INITIALIZED_SENT = auto()
    """`notifications/initialized` was ordered, the host's or our own."""
    INITIALIZED_TAKEN = auto()
    """The server has taken it, or its time is over."""
    REINITIALIZE_SENT = auto()
    """We open a session in the host's name."""
    REINITIALIZE_FAILED = auto()
    """The server gave none: another attempt follows, or the next request makes one."""
    KEPT = auto()
    """No other session could be opened either: the suspected one is kept."""
    RESTORE_SENT = auto()
    """In the new session, what the host had asked for in the old one was asked for again."""
    RESTORED = auto()
    """All of that is answered, or its time is over."""
    OFFERED = auto()
    """A `ping` asks whether the session of an earlier process lives."""
    ADOPTED = auto()
    """It does: we go on with it."""
    ABANDONED = auto()
    """It does not, or cannot be used: the host's `initialize` opens another."""
    GONE = auto()
    """The server has said that it knows the session no more, or another one has spoken in its place."""
    CLOSED = auto()
    """The host leaves."""


class StreamState(Enum):
    OPEN = auto()
    """Each event is placed as it comes. So a stream begins, before its first answer."""
    LOST = auto()
    """Cut; it is asked for again, and there is no answer yet."""
    ON_TRIAL = auto()
    """A resume was answered: what is new is held until the server has proven itself."""
    BROKEN = auto()
    """The server has contradicted itself. Left in the same breath: given up, or opened afresh."""
    DONE = auto()
    """Nothing is owed on it any more, or it was given up."""


class StreamStep(Enum):
    CUT = auto()
    """Its connection is lost, was refused, or is left for another one."""
    ANSWERED = auto()
    """What makes no claim of continuity was answered: a GET without a cursor, or a POST that was sent again."""
    RESUMED = auto()
    """A GET with `Last-Event-ID` was answered."""
    JUDGED = auto()
    """The trial is over, and nothing contradicts: proven, consistent or unverified."""
    CONTRADICTED = auto()
    """What came cannot be of the same log, or the server says so itself."""
    FINISHED = auto()
    """It has its answer, or nobody waits for one, or it is given up."""


_S, _T = SessionState, SessionStep
SESSION: Mapping[tuple[SessionState, SessionStep], SessionState] = {
    # While a session is PROVING, the host's `initialize` waits for that, or has it abandoned first.
    **{(state, _T.INITIALIZE_SENT): _S.INITIALIZING for state in _S if state not in (_S.PROVING, _S.CLOSED)},
    (_S.INITIALIZING, _T.INITIALIZE_FAILED): _S.NEW,
    **{
        (state, _T.INITIALIZED_SENT): _S.CONFIRMING
        for state in (_S.INITIALIZING, _S.CONFIRMING, _S.LIVE, _S.REINITIALIZING)
    },
    (_S.CONFIRMING, _T.INITIALIZED_TAKEN): _S.LIVE,
    **{(state, _T.REINITIALIZE_SENT): _S.REINITIALIZING for state in (_S.LOST, _S.LIVE)},
    (_S.REINITIALIZING, _T.REINITIALIZE_FAILED): _S.LOST,
    (_S.REINITIALIZING, _T.KEPT): _S.LIVE,
    (_S.CONFIRMING, _T.RESTORE_SENT): _S.RESTORING,
    (_S.RESTORING, _T.RESTORED): _S.LIVE,
    (_S.NEW, _T.OFFERED): _S.PROVING,
    (_S.PROVING, _T.ADOPTED): _S.LIVE,
    (_S.PROVING, _T.ABANDONED): _S.NEW,
    # NEW, too: where the host's next `initialize` failed, requests still go out in the session before it.
    **{(state, _T.GONE): _S.LOST for state in (_S.NEW, _S.INITIALIZING, _S.CONFIRMING, _S.LIVE, _S.RESTORING)},
    **{(state, _T.CLOSED): _S.CLOSED for state in _S if state is not _S.CLOSED},
}

_X, _Y = StreamState, StreamStep
STREAM: Mapping[tuple[StreamState, StreamStep], StreamState] = {
    (_X.OPEN, _Y.CUT): _X.LOST,
    (_X.LOST, _Y.CUT): _X.LOST,
    (_X.ON_TRIAL, _Y.CUT): _X.LOST,
    (_X.BROKEN, _Y.CUT): _X.LOST,
    (_X.LOST, _Y.ANSWERED): _X.OPEN,
    (_X.LOST, _Y.RESUMED): _X.ON_TRIAL,
    (_X.ON_TRIAL, _Y.JUDGED): _X.OPEN,
    **{(state, _Y.CONTRADICTED): _X.BROKEN for state in (_X.OPEN, _X.LOST, _X.ON_TRIAL)},
    **{(state, _Y.FINISHED): _X.DONE for state in _X},
}

_State = TypeVar("_State", SessionState, StreamState)
_Step = TypeVar("_Step", SessionStep, StreamStep)


def step(table: Mapping[tuple[_State, _Step], _State], state: _State, by: _Step) -> _State:
    """The next state.

    Raises:
        LookupError: no such transition. It is a fault of ours, never of the server's.
    """
    try:
        return table[state, by]
    except KeyError:
        raise LookupError(f"no transition from {state} by {by}") from None
