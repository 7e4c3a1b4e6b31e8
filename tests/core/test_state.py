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

SESSION_TABLE = {
    (S.NEW, T.INITIALIZE_SENT): S.INITIALIZING,
    (S.NEW, T.INITIALIZED_SENT): S.CONFIRMING,
    (S.NEW, T.GONE): S.LOST,
    (S.NEW, T.CLOSED): S.CLOSED,
    (S.INITIALIZING, T.INITIALIZE_SENT): S.INITIALIZING,
    (S.INITIALIZING, T.INITIALIZE_FAILED): S.NEW,
    (S.INITIALIZING, T.INITIALIZED_SENT): S.CONFIRMING,
    (S.INITIALIZING, T.GONE): S.LOST,
    (S.INITIALIZING, T.CLOSED): S.CLOSED,
    (S.CONFIRMING, T.INITIALIZE_SENT): S.INITIALIZING,
    (S.CONFIRMING, T.INITIALIZED_SENT): S.CONFIRMING,
    (S.CONFIRMING, T.INITIALIZED_TAKEN): S.LIVE,
    (S.CONFIRMING, T.GONE): S.LOST,
    (S.CONFIRMING, T.CLOSED): S.CLOSED,
    (S.LIVE, T.INITIALIZE_SENT): S.INITIALIZING,
    (S.LIVE, T.INITIALIZED_SENT): S.CONFIRMING,
    (S.LIVE, T.GONE): S.LOST,
    (S.LIVE, T.CLOSED): S.CLOSED,
    (S.LOST, T.INITIALIZE_SENT): S.INITIALIZING,
    (S.LOST, T.GONE): S.LOST,
    (S.LOST, T.CLOSED): S.CLOSED,
    (S.CLOSED, T.CLOSED): S.CLOSED,
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
