"""Does a result fit its tool's output schema? What every schema says is looked at; the rest is let pass."""

from __future__ import annotations

from .model import JSON

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def misfits(result: JSON, tool: JSON | None) -> bool:
    """Whether SDKs would raise for this result of the tool: whoever then calls again would have it run twice."""
    schema = tool.get("outputSchema") if tool is not None else None
    if not isinstance(schema, dict) or result.get("isError") is True:
        return False
    structured = result.get("structuredContent")
    try:
        return not (isinstance(structured, dict) and _fits(structured, schema))
    except RecursionError:  # nested deeper than can be looked at
        return False


def _fits(value: object, schema: object) -> bool:
    """By `type`, `required`, `properties` and `items`, where these are what they should be."""
    if not isinstance(schema, dict):
        return True
    said = schema.get("type")
    words = said if isinstance(said, list) else [said]
    if words and not any(_is_a(value, word) for word in words):
        return False
    if isinstance(value, dict):
        required, properties = schema.get("required"), schema.get("properties")
        if any(str(name) not in value for name in (required if isinstance(required, list) else ())):
            return False
        known = properties if isinstance(properties, dict) else {}
        return all(_fits(value[name], known[name]) for name in known if name in value)
    if isinstance(value, list) and "prefixItems" not in schema:
        return all(_fits(item, schema.get("items")) for item in value)
    return True


def _is_a(value: object, word: object) -> bool:
    kinds = _TYPES.get(word) if isinstance(word, str) else None
    if kinds is None:
        return True
    if isinstance(value, float) and value.is_integer() and word == "integer":
        return True
    return isinstance(value, kinds) and (word == "boolean" or not isinstance(value, bool))
