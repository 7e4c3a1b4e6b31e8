"""What a request carries in `_meta`, of the host's and of ours; and the request as it goes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .model import JSON

if TYPE_CHECKING:
    from .ledger import Call

CALL_KEY = "io.github.mcp-client-guard/call-key"
CONSENT = "io.github.mcp-client-guard/consent"
_SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"


def to_wire(message: JSON, call: Call, key_argument: str | None = None) -> JSON:
    """The host's request as it goes out: our ID, our progress token, the call key."""
    params = message.get("params")
    out_meta = dict(meta_object(message))
    out_meta.pop(CONSENT, None)
    if call.host_token is not None:
        out_meta["progressToken"] = call.wire_id
    if call.method == "tools/call":
        out_meta[CALL_KEY] = call.call_key
    if not out_meta or not (params is None or isinstance(params, dict)):
        return {**message, "id": call.wire_id}
    out_params = {**(params or {}), "_meta": out_meta}
    if key_argument is not None:
        arguments = out_params.get("arguments")
        out_params["arguments"] = {
            **(arguments if isinstance(arguments, dict) else {}),
            key_argument: call.call_key,
        }
    return {**message, "id": call.wire_id, "params": out_params}


def meta_of(params: JSON, name: str) -> str | None:
    """A text of ours in `_meta`."""
    meta = params.get("_meta")
    value = meta.get(name) if isinstance(meta, dict) else None
    return value if isinstance(value, str) and value else None


def argument_of(params: JSON, name: str) -> object:
    """What the host has given for this argument of a tool; None also for nothing."""
    arguments = params.get("arguments")
    return arguments.get(name) if isinstance(arguments, dict) else None


def without_meta(params: object) -> JSON:
    """What a request says: `_meta` is of the message alone. Traced hosts put a new trace ID into each."""
    return {k: v for k, v in params.items() if k != "_meta"} if isinstance(params, dict) else {}


def meta_object(message: JSON) -> JSON:
    """The `_meta` of a request."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta if isinstance(meta, dict) else {}


def host_token_of(message: JSON) -> str | int | None:
    token = meta_object(message).get("progressToken")
    return token if isinstance(token, (str, int)) else None


def subscription_of(message: JSON) -> object:
    """The request ID that a 2026-07-28 subscription message names, or None."""
    params = message.get("params") or message.get("result")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(_SUBSCRIPTION_ID) if isinstance(meta, dict) else None


def with_subscription(message: JSON, host_id: str | int | None) -> JSON:
    """The message with the host's own request ID as its subscription ID."""
    part = "params" if "params" in message else "result"
    body = message[part]
    return {**message, part: {**body, "_meta": {**body["_meta"], _SUBSCRIPTION_ID: host_id}}}
