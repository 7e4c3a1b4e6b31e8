"""Headers of 2026-07-28: the host's pass exactly, and the guard's own repeat the body as the revision asks."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.actions import Post
from mcp_client_guard.core.inputs import MessageSubmitted
from mcp_client_guard.core.modern import (
    as_complete,
    dressed,
    encoded,
    param_headers,
    server_info_of,
    version_of,
    without_session,
)
from mcp_client_guard.core.policy import GuardPolicy
from tests.core.driver import Driver, of

VERSION = "2026-07-28"
TOOL = {
    "name": "charge",
    "inputSchema": {
        "properties": {
            "cents": {"type": "integer", "x-mcp-header": "Cents"},
            "to": {"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
            "note": {"type": "string"},
            "odd": True,
            "key": {"type": "string", "x-mcp-header": "Key"},
        }
    },
}


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ({"mcp-protocol-version": VERSION}, VERSION),
        ({"mcp-protocol-version": "2027-01-01"}, "2027-01-01"),
        ({"mcp-protocol-version": "2025-11-25"}, None),
        ({}, None),
    ],
)
def test_the_host_s_stamp_says_whether_there_are_sessions(headers: dict[str, str], version: str | None) -> None:
    assert version_of(headers) == version


def test_nothing_of_a_session_goes_out() -> None:
    assert without_session({"mcp-session-id": "s", "last-event-id": "e", "mcp-name": "x"}) == {"mcp-name": "x"}


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("charge", "charge"),
        ("a b", "a b"),
        ("", ""),
        (" a", "=?base64?IGE=?="),
        ("ä", "=?base64?w6Q=?="),
        ("a\nb", "=?base64?YQpi?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
    ],
)
def test_a_value_that_would_not_survive_is_encoded(value: str, header: str) -> None:
    assert encoded(value) == header


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"cents": 5}, {"mcp-param-cents": "5"}),
        ({"cents": True, "note": "x"}, {"mcp-param-cents": "true"}),
        ({"cents": False, "to": {"region": "eu"}}, {"mcp-param-cents": "false", "mcp-param-region": "eu"}),
        ({"cents": None, "to": "eu"}, {}),
        ({"cents": [5]}, {}),
        (None, {}),
    ],
)
def test_marked_arguments_are_repeated_in_headers(arguments: Any, headers: dict[str, str]) -> None:
    assert param_headers(TOOL, arguments) == headers


@pytest.mark.parametrize("tool", [None, {}, {"inputSchema": {"properties": []}}, {"inputSchema": 3}])
def test_an_unknown_schema_marks_nothing(tool: Any) -> None:
    assert param_headers(tool, {"cents": 5}) == {}


def host_s(params: Any) -> MessageSubmitted:
    headers = {"mcp-protocol-version": VERSION, "mcp-method": "tools/list", "mcp-param-old": "x"}
    return MessageSubmitted({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}, headers)


def test_our_own_request_has_the_host_s_envelope_and_headers_of_its_own() -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": VERSION, "progressToken": 7, "x": 1}
    params = {"name": "charge", "arguments": {"cents": 5}, "_meta": {"mine": 2}}
    sent = dressed("tools/call", params, host_s({"_meta": meta}), TOOL)
    assert sent.message["params"]["_meta"] == {"io.modelcontextprotocol/protocolVersion": VERSION, "mine": 2}
    assert sent.headers == {
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": "charge",
        "mcp-param-cents": "5",
    }


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("resources/read", {"uri": "file:///ä"}, "=?base64?ZmlsZTovLy/DpA==?="),
        ("tasks/get", {"taskId": "t1"}, "t1"),
    ],
)
def test_what_a_request_names_is_in_its_header(method: str, params: Any, name: str) -> None:
    assert dressed(method, params, host_s(None), None).headers["mcp-name"] == name


def test_a_request_that_names_nothing_has_no_name() -> None:
    assert "mcp-name" not in dressed("tools/list", {}, host_s({}), None).headers


@pytest.mark.parametrize("result", [{}, {"_meta": 3}, {"_meta": {"io.modelcontextprotocol/serverInfo": "x"}}])
def test_a_server_need_not_say_who_it_is(result: Any) -> None:
    assert server_info_of(result) == {}


@pytest.mark.parametrize("answer", [{"error": {}}, {"result": 3}, {"result": {"resultType": "task"}}])
def test_only_a_result_without_a_type_gets_one(answer: Any) -> None:
    assert as_complete(answer) == answer
    assert as_complete({"result": {"a": 1}}) == {"result": {"a": 1, "resultType": "complete"}}


# The guard's own additions break no header rule.


def listed(policy: GuardPolicy) -> Driver:
    driver = Driver(policy)
    driver.request("tools/list", mcp_protocol_version=VERSION).answer({"tools": [TOOL]})
    return driver


def test_the_call_key_in_an_argument_is_repeated_in_its_header() -> None:
    """Or the server refuses the call: -32020, header mismatch."""
    driver = listed(GuardPolicy(call_key_argument={"*": "key"}))
    headers = {"mcp_protocol_version": VERSION, "mcp_param_cents": "5"}
    call = driver.request("tools/call", {"name": "charge", "arguments": {"cents": 5}}, **headers)
    (post,) = of(call.actions, Post)
    assert post.headers["mcp-param-key"] == post.message["params"]["arguments"]["key"] == "key-2"
    assert post.headers["mcp-param-cents"] == "5"


def test_a_key_of_the_host_s_own_keeps_its_header() -> None:
    driver = listed(GuardPolicy(call_key_argument={"*": "key"}))
    headers = {"mcp_protocol_version": VERSION, "mcp_param_key": "order-17"}
    call = driver.request("tools/call", {"name": "charge", "arguments": {"key": "order-17"}}, **headers)
    (post,) = of(call.actions, Post)
    assert post.headers["mcp-param-key"] == post.message["params"]["arguments"]["key"] == "order-17"


def test_the_call_key_is_an_argument_of_tools_alone() -> None:
    driver = listed(GuardPolicy(call_key_argument={"*": "key"}))
    sent = driver.request("tools/list", {"_meta": {"a": 1}}, mcp_protocol_version=VERSION)
    assert "arguments" not in of(sent.actions, Post)[0].message["params"]
