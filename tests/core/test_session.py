"""The session: its headers, its incarnations, and that its ID is shown to nobody."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.session import Session
from mcp_client_guard.core.state import SessionState, SessionStep


def test_headers_go_with_every_request_but_initialize() -> None:
    session = Session()
    assert session.headers("tools/call") == {}
    session.opened("secret", {}, {"protocolVersion": "2025-11-25"})
    assert session.headers("tools/call") == {"mcp-session-id": "secret", "mcp-protocol-version": "2025-11-25"}
    assert session.headers("initialize") == {}


def test_each_initialize_that_succeeds_begins_another_incarnation() -> None:
    session = Session()
    assert session.opened("a", {}, {}).incarnation == 1
    assert session.opened(None, {}, {"capabilities": {"tools": {}}}).incarnation == 2
    assert session.session_id is None
    assert session.capabilities == {"tools": {}}


def test_a_result_of_odd_types_leaves_things_unknown() -> None:
    session = Session()
    session.opened("a", {}, {"protocolVersion": 7, "capabilities": []})
    assert session.protocol_version is None
    assert session.capabilities == {}


def test_the_session_id_appears_as_a_keyed_fingerprint_only() -> None:
    session = Session(salt="k")
    session.opened("top-secret", {}, {})
    assert "top-secret" not in repr(session)
    assert session.fingerprint != Session(salt="other", session_id="top-secret").fingerprint


def test_a_step_that_the_table_lacks_is_a_fault() -> None:
    session = Session()
    session.move(SessionStep.CLOSED)
    assert session.state is SessionState.CLOSED
    with pytest.raises(LookupError):
        session.move(SessionStep.INITIALIZE_SENT)
