"""A result that an SDK would raise for does not reach it; what is not understood of a schema is let pass."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.output_schema import misfits


def is_taken(value: Any, schema: Any) -> bool:
    """As the value of a property of the result."""
    output = {"type": "object", "properties": {"value": schema}}
    return not misfits({"content": [], "structuredContent": {"value": value}}, {"outputSchema": output})


VALUES: dict[str, Any] = {
    "object": {},
    "array": [],
    "string": "",
    "number": 1.5,
    "integer": 1,
    "boolean": True,
    "null": None,
}


@pytest.mark.parametrize("word", VALUES)
@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_of_the_type_that_its_schema_names(word: str, kind: str) -> None:
    assert is_taken(VALUES[kind], {"type": word}) is (kind == word or (kind, word) == ("integer", "number"))


def test_a_number_without_a_fraction_is_an_integer() -> None:
    assert is_taken(2.0, {"type": "integer"})
    assert is_taken(2.0, {"type": "number"})


@pytest.mark.parametrize(("value", "fits"), [("a", True), (None, True), (1, False)])
def test_of_several_types_one_will_do(value: Any, fits: bool) -> None:
    assert is_taken(value, {"type": ["string", "null"]}) is fits


INT = {"type": "integer"}
NESTED = {
    "type": "object",
    "required": ["lines"],
    "properties": {"lines": {"type": "array", "items": {"required": ["cents"], "properties": {"cents": INT}}}},
}


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"lines": []}, True),
        ({"lines": [{"cents": 1}, {"cents": 2, "other": "x"}]}, True),
        ({"lines": [{"cents": 1}, {"cents": "2"}]}, False),
        ({"lines": [{"cents": 1}, {}]}, False),
        ({"lines": [7]}, True),
        ({}, False),
    ],
)
def test_what_is_nested_is_looked_at_too(value: Any, fits: bool) -> None:
    assert is_taken(value, NESTED) is fits


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (1, True),
        (1, {}),
        (1, {"type": "money"}),
        (1, {"type": {}}),
        (1, {"type": []}),
        (1, {"type": [{}]}),
        ({"a": 1}, {"required": "b", "properties": ["a"]}),
        ({"a": 1}, {"properties": {"a": False}}),
        ([1], {"items": [{"type": "string"}]}),
        (["a", 1], {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}),
        (1, {"$ref": "#/$defs/money"}),
        (1, {"anyOf": [{"type": "string"}]}),
    ],
)
def test_what_is_not_understood_is_let_pass(value: Any, schema: Any) -> None:
    assert is_taken(value, schema)


def test_so_is_what_is_nested_deeper_than_can_be_looked_at() -> None:
    value: Any = 1
    schema: Any = {"type": "string"}
    for _ in range(100_000):
        value, schema = [value], {"items": schema}
    assert is_taken(value, schema)
