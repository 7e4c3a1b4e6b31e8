"""The one place that knows the classes of the MCP SDK: its messages to plain JSON and back, for 1.24 to 2.x.

Features are detected, versions are never parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from .core.model import JSON

_NO_HEADERS: Mapping[str, str] = {}


@frozen
class Codec:
    """How the host's messages become JSON, and JSON the host's messages."""

    encode: Callable[[JSON], Any]
    decode: Callable[[Any], tuple[JSON, Mapping[str, str]]]
    resumes: Callable[[Any], bool] = lambda sent: False
    """Whether the host goes on with a request that it has made before, from a cursor of its own."""
    is_first_major: bool = False
    """SDK 1.x: `JSONRPCMessage` is a model with a root."""


def plain_codec() -> Codec:
    """For hosts that speak plain JSON objects, without any SDK."""
    return Codec(lambda message: message, lambda message: (message, _NO_HEADERS))


def sdk_codec() -> Codec:
    """For the installed MCP SDK.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from mcp import types
        from mcp.shared.message import SessionMessage
    except ImportError as error:
        raise ImportError("guard.connect() needs the MCP SDK: pip install 'mcp-client-guard[mcp]'") from error
    root = types.JSONRPCMessage
    is_first_major = isinstance(root, type) and hasattr(root, "model_validate")
    validate = _by_shape(types)

    def decode(sent: Any) -> tuple[JSON, Mapping[str, str]]:
        message = sent.message
        message = getattr(message, "root", message)
        body: JSON = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
        stamped = getattr(sent.metadata, "headers", None)
        return body, {k.lower(): v for k, v in stamped.items()} if stamped else _NO_HEADERS

    def resumes(sent: Any) -> bool:
        return bool(getattr(sent.metadata, "resumption_token", None))

    if is_first_major:
        wrap = _validator(root)

        def encode(message: JSON) -> Any:
            return SessionMessage(wrap(validate(message)))
    else:

        def encode(message: JSON) -> Any:
            return SessionMessage(validate(message))

    return Codec(encode, decode, resumes, is_first_major)


def _by_shape(types: Any) -> Callable[[JSON], Any]:
    """Validate against the one class that fits: a union would try all four, for each message."""
    kinds = (types.JSONRPCRequest, types.JSONRPCNotification, types.JSONRPCResponse, types.JSONRPCError)
    request, notification, response, error = (_validator(kind) for kind in kinds)

    def validate(message: JSON) -> Any:
        if "method" in message:
            return request(message) if "id" in message else notification(message)
        return response(message) if "result" in message else error(message)

    return validate


def _validator(kind: Any) -> Callable[[JSON], Any]:
    """The compiled one alone: what pydantic wraps around it takes as long again."""
    from pydantic import TypeAdapter  # comes with the SDK

    validate: Callable[[JSON], Any] = TypeAdapter(kind).validator.validate_python
    return validate
