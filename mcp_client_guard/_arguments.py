"""What a `Guard` is given: what cannot be meant is refused before anything is made of it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

from .core.policy import GuardPolicy
from .transports import http

_HEADER = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_OURS = frozenset({"mcp-session-id", "last-event-id", "content-length", "transfer-encoding"})
"""What the transport says of each request, and no other may."""
_UNSENDABLE = frozenset("\r\n\v\f\0")


def refuse_wrong(**given: Any) -> None:
    """The text says what is wanted, and not what was given: that may be a secret.

    Raises:
        ValueError: one of them cannot be meant.
    """
    for name, value in given.items():
        fits, wanted = _WANTED[name]
        if not fits(value):
            raise ValueError(f"{name} must be {wanted}")


def refuse_unfit(
    url: str, generation: str, headers: Mapping[str, str] | None, http_client: http.HttpClient | None
) -> None:
    """What is right by itself, and cannot be meant together.

    Raises:
        ValueError: as for `Guard`.
    """
    if generation not in ("auto", "sessions", "host", "legacy-sse"):
        raise ValueError(f"generation must be 'auto', 'sessions', 'host' or 'legacy-sse', not {generation!r}")
    if http_client is None:
        return
    if headers is not None:
        raise ValueError("give headers or http_client, not both: set the headers on your client")
    if http.may_use_http2(http_client, url):
        raise ValueError("http_client must speak HTTP/1.1, where streams can be closed: make it without http2")
    if generation == "legacy-sse" and http.connection_limit(http_client, url) == 1:
        raise ValueError("http_client allows one connection, which a legacy session holds: allow two or more")


def upgrade_url(url: str, websocket: bool | str) -> str:
    """Where to ask for the upgrade."""
    try:
        from .transports import websocket as _  # noqa: F401
    except ImportError as error:
        raise ImportError("websocket=... needs: pip install 'mcp-client-guard[ws]'") from error
    asked = http.upgrade_of(url, None if websocket is True else str(websocket))
    if asked is None or http.origin_of(asked) != http.origin_of(url):
        raise ValueError("websocket must lead to a URL of the endpoint's origin")
    return asked


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _has(value: Any, *methods: str) -> bool:
    """It is an object, not its class, with these methods."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)


def _is_client(value: Any) -> bool:
    """One for use without `async` would have sent a request before that is seen."""
    is_sync = hasattr(value, "__enter__") and not hasattr(value, "__aenter__")
    return _has(value, "build_request", "send") and not is_sync


def _is_hook(value: Any) -> bool:
    """A wrong one would fail at the first incident, when it is needed. Whatever is not known may do."""
    return callable(value) and _takes(value, "the call", "the Reconciler") and not _is_plain(value)


def _hears(value: Any) -> bool:
    return callable(value) and _takes(value, "the event")


def _takes(hook: Any, *arguments: object) -> bool:
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):  # it tells none
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _is_plain(hook: Any) -> bool:
    """It is a `def` that says of no awaitable that it returns one; a lambda, or what wraps another, cannot say."""
    while isinstance(hook, partial):
        hook = hook.func
    function = getattr(hook, "__func__", hook)
    is_known = inspect.isfunction(function) and not hasattr(function, "__wrapped__")
    if not is_known or function.__name__ == "<lambda>" or inspect.iscoroutinefunction(function):
        return False
    try:
        returns = get_type_hints(function).get("return")
    except Exception:  # a name that exists for type checkers alone
        return False
    return not any(map(_may_be_awaited, (returns, *get_args(returns))))


def _may_be_awaited(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    return kind is Any or (isinstance(kind, type) and issubclass(kind, Awaitable))


def _are_headers(value: Any) -> bool:
    if not isinstance(value, Mapping) or not all(map(_is_header, value, value.values())):
        return False
    return not any(name.lower() in _OURS for name in value)


def _is_header(name: Any, value: Any) -> bool:
    if not (isinstance(name, str) and isinstance(value, str)):
        return False
    if any("\ud800" <= char <= "\udfff" for char in value):
        return False
    return bool(_HEADER.fullmatch(name)) and value == value.strip(" \t") and not _UNSENDABLE & set(value)


_WANTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "url": (
        http.is_endpoint,
        "a text that begins with http:// or https:// and names a host, or is relative to http_client's base_url",
    ),
    "store": (
        _or_none(lambda value: _has(value, "claim", "calls", "sessions")),
        "a store, such as SQLiteStore('agent.db'), or None",
    ),
    "key": (_or_none(_is_name), "a text that is not empty, or None"),
    "principal": (_or_none(_is_text), "a text, or None"),
    "headers": (
        _or_none(_are_headers),
        "a mapping of names to texts that can be sent (no line break, no space around them), without those of the"
        f" transport's own ({', '.join(sorted(_OURS))}), or None",
    ),
    "http_client": (_or_none(_is_client), "an httpx.AsyncClient, an httpx2.AsyncClient, or None"),
    "policy": (_or_none(lambda value: isinstance(value, GuardPolicy)), "a GuardPolicy(...), or None"),
    "reconcile": (_or_none(_is_hook), "an async function of a call and a Reconciler, or None"),
    "on_event": (_or_none(_hears), "a function of an event, or None"),
    "websocket": (lambda value: isinstance(value, (bool, str)), "True, False, or a text: where to ask for it"),
    "terminate_on_close": (_or_none(_is_flag), "True, False or None"),
    "call_key": (_is_name, "a text that is not empty"),
}
