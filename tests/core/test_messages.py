"""What counts as a message: what every SDK can read, and nothing that would break its reader."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.inputs import UNREADABLE
from mcp_client_guard.core.messages import messages_of, params_of, result_of

V = {"jsonrpc": "2.0"}
ERROR = {"code": -1, "message": "no"}


@pytest.mark.parametrize(
    "body",
    [
        {**V, "method": "m"},
        {**V, "method": "m", "params": {}},
        {**V, "method": "m", "id": 1},
        {**V, "method": "m", "id": "a"},
        {**V, "id": 1, "result": {}},
        {**V, "id": None, "error": ERROR},
    ],
)
def test_well_formed_requests_notifications_results_and_errors_are_messages(body: Any) -> None:
    assert messages_of(body) == (body,)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"method": "m"},
        {"jsonrpc": "1.0", "method": "m"},
        {**V, "method": 7},
        {**V, "method": "m", "params": [1]},
        {**V, "method": "m", "id": True},
        {**V, "method": "m", "id": 1.5},
        {**V, "id": 1},
        {**V, "id": 1, "result": []},
        {**V, "id": 1, "error": "no"},
        {**V, "id": 1, "error": {"code": "x", "message": "no"}},
        {**V, "id": 1, "error": {"code": 1}},
        {**V, "id": 1, "result": None},
        None,
        "text",
        7,
        UNREADABLE,
        [],
    ],
)
def test_anything_else_carries_no_message(body: Any) -> None:
    assert messages_of(body) == ()


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ({**V, "method": "m", "params": None}, {**V, "method": "m"}),
        ({**V, "method": "m", "id": None}, {**V, "method": "m"}),
        ({**V, "method": "m", "result": None, "error": None, "id": 1}, {**V, "method": "m", "id": 1}),
        (
            {**V, "id": 1, "method": None, "params": None, "error": None, "result": {}},
            {**V, "id": 1, "result": {}},
        ),
        ({**V, "id": 1, "result": None, "error": ERROR}, {**V, "id": 1, "error": ERROR}),
        ({**V, "id": None, "method": None, "error": ERROR}, {**V, "id": None, "error": ERROR}),
    ],
)
def test_what_is_null_is_not_there(body: Any, read: Any) -> None:
    assert messages_of(body) == (read,)
    assert messages_of([body, body]) == (read, read)


def test_a_batch_carries_its_well_formed_parts() -> None:
    good = {**V, "method": "m"}
    assert messages_of([good, 7, {}, good]) == (good, good)


def test_what_is_not_json_says_so() -> None:
    assert repr(UNREADABLE) == "UNREADABLE"


@pytest.mark.parametrize("said", [None, 1, "x", [1]])
def test_what_is_no_object_is_no_result_and_no_parameters(said: Any) -> None:
    assert result_of({"result": said}) is None
    assert params_of({"params": said}) == {}
    assert (result_of({}), params_of({})) == (None, {})
    assert (result_of({"result": {"a": 1}}), params_of({"params": {"a": 1}})) == ({"a": 1}, {"a": 1})
