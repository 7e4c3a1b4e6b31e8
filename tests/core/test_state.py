"""The two transition tables: what may follow what, and that nothing else may."""

from __future__ import annotations

from itertools import product

import pytest

from mcp_client_guard.core.state import (
    SESSION,
    STREAM,
    SessionState,
    SessionStep,
    StreamState,
    StreamStep,
    step,
)

S, T, X, Y = SessionState, SessionStep, StreamState, StreamStep

OPEN_STATES = [state for state in S if state is not S.CLOSED]
SESSION_TABLE: dict[tuple[SessionState, SessionStep], SessionState] = {
    **{(state, T.INITIALIZE_SENT): S.INITIALIZING for state in OPEN_STATES},
    **{(state, T.GONE): S.LOST for state in OPEN_STATES},
    **{(state, T.CLOSED): S.CLOSED for state in S},
    (S.INITIALIZING, T.INITIALIZE_FAILED): S.NEW,
    (S.NEW, T.INITIALIZED_SENT): S.CONFIRMING,
    (S.INITIALIZING, T.INITIALIZED_SENT): S.CONFIRMING,
    (S.CONFIRMING, T.INITIALIZED_SENT): S.CONFIRMING,
    (S.LIVE, T.INITIALIZED_SENT): S.CONFIRMING,
    (S.REINITIALIZING, T.INITIALIZED_SENT): S.CONFIRMING,
    (S.CONFIRMING, T.INITIALIZED_TAKEN): S.LIVE,
    (S.CONFIRMING, T.RESTORE_SENT): S.RESTORING,
    (S.RESTORING, T.RESTORED): S.LIVE,
    (S.LOST, T.REINITIALIZE_SENT): S.REINITIALIZING,
    (S.LIVE, T.REINITIALIZE_SENT): S.REINITIALIZING,
    (S.REINITIALIZING, T.REINITIALIZE_FAILED): S.LOST,
    (S.REINITIALIZING, T.KEPT): S.LIVE,
    (S.NEW, T.OFFERED): S.PROVING,
    (S.PROVING, T.ADOPTED): S.LIVE,
    (S.PROVING, T.ABANDONED): S.NEW,
}

STREAM_TABLE = {
    (X.OPEN, Y.CUT): X.LOST,
    (X.OPEN, Y.CONTRADICTED): X.BROKEN,
    (X.OPEN, Y.FINISHED): X.DONE,
    (X.LOST, Y.CUT): X.LOST,
    (X.LOST, Y.ANSWERED): X.OPEN,
    (X.LOST, Y.RESUMED): X.ON_TRIAL,
    (X.LOST, Y.CONTRADICTED): X.BROKEN,
    (X.LOST, Y.FINISHED): X.DONE,
    (X.ON_TRIAL, Y.CUT): X.LOST,
    (X.ON_TRIAL, Y.JUDGED): X.OPEN,
    (X.ON_TRIAL, Y.CONTRADICTED): X.BROKEN,
    (X.ON_TRIAL, Y.FINISHED): X.DONE,
    (X.BROKEN, Y.CUT): X.LOST,
    (X.BROKEN, Y.FINISHED): X.DONE,
    (X.DONE, Y.FINISHED): X.DONE,
}


@pytest.mark.parametrize(("state", "by"), [*product(SessionState, SessionStep)])
def test_session_steps_lead_where_the_table_says_and_no_others_exist(state: SessionState, by: SessionStep) -> None:
    if (state, by) in SESSION_TABLE:
        assert step(SESSION, state, by) is SESSION_TABLE[state, by]
    else:
        with pytest.raises(LookupError, match="no transition"):
            step(SESSION, state, by)


@pytest.mark.parametrize(("state", "by"), [*product(StreamState, StreamStep)])
def test_stream_steps_lead_where_the_table_says_and_no_others_exist(state: StreamState, by: StreamStep) -> None:
    if (state, by) in STREAM_TABLE:
        assert step(STREAM, state, by) is STREAM_TABLE[state, by]
    else:
        with pytest.raises(LookupError, match="no transition"):
            step(STREAM, state, by)


def test_a_stream_that_was_resumed_is_open_only_by_judgement() -> None:
    """No way leads from LOST by a resume to OPEN but over ON_TRIAL."""
    assert {by for (state, by), to in STREAM.items() if to is X.OPEN and state is X.ON_TRIAL} == {Y.JUDGED}
