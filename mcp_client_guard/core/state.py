"""All states and every legal transition. Nothing else assigns a state.

A stream that was cut is LOST until a GET is answered; then it is ON_TRIAL until the server has proven that it
holds the same log (or the trial ends otherwise). BROKEN is never repaired in place: only the standalone stream
leaves it, by opening afresh with no cursor.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import TypeVar


class SessionState(Enum):
    NEW = auto()
    INITIALIZING = auto()
    CONFIRMING = auto()
    """`notifications/initialized` is on its way; requests wait for its acknowledgement (bounded)."""
    LIVE = auto()
    LOST = auto()
    """No session; the next request opens one, as far as the budget goes."""
    REINITIALIZING = auto()
    """Ours, in place of a lost session; or, while it is only suspected, beside it."""
    RESTORING = auto()
    """The new session is brought to where the old one was; requests wait for it (bounded)."""
    PROVING = auto()
    """A session of an earlier process is offered to the server."""
    CLOSED = auto()


class SessionStep(Enum):
    INITIALIZE_SENT = auto()
    INITIALIZE_FAILED = auto()
    INITIALIZED_SENT = auto()
    INITIALIZED_TAKEN = auto()
    REINITIALIZE_SENT = auto()
    REINITIALIZE_FAILED = auto()
    KEPT = auto()
    """No other session could be opened either: the suspected one is kept."""
    RESTORE_SENT = auto()
    RESTORED = auto()
    OFFERED = auto()
    ADOPTED = auto()
    ABANDONED = auto()
    GONE = auto()
    CLOSED = auto()


class StreamState(Enum):
    OPEN = auto()
    LOST = auto()
    ON_TRIAL = auto()
    BROKEN = auto()
    DONE = auto()


class StreamStep(Enum):
    CUT = auto()
    ANSWERED = auto()
    """A GET that makes no claim of continuity was answered."""
    RESUMED = auto()
    JUDGED = auto()
    CONTRADICTED = auto()
    FINISHED = auto()


_S, _T = SessionState, SessionStep
SESSION: Mapping[tuple[SessionState, SessionStep], SessionState] = {
    **{(state, _T.INITIALIZE_SENT): _S.INITIALIZING for state in _S if state is not _S.CLOSED},
    (_S.INITIALIZING, _T.INITIALIZE_FAILED): _S.NEW,
    **{
        (state, _T.INITIALIZED_SENT): _S.CONFIRMING
        for state in (_S.NEW, _S.INITIALIZING, _S.CONFIRMING, _S.LIVE, _S.REINITIALIZING)
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
    **{(state, _T.GONE): _S.LOST for state in _S if state is not _S.CLOSED},
    **{(state, _T.CLOSED): _S.CLOSED for state in _S},
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
