"""For users of the MCP SDK: `streamable_http_client`, with the parameters and the tuple of the installed one; on
SDK 1.x `streamablehttp_client`, too, its older name.

Change one import, and the transport is guarded. Whoever wants a store, a policy or events makes a `Guard`.

Each connection has a `Guard` of its own, whose ledger, in memory, ends with it: what was in doubt is sent when it
is repeated on the next connection. Who reconnects, or whose framework does, makes one `Guard` and uses
`guard.connect()`.

One thing differs: the guard resumes calls by itself, and cursors stay with it. `on_resumption_token_update` is
never called, and a call with a `resumption_token` is not made anew, but in doubt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx

from mcp_client_guard._guard import Guard
from mcp_client_guard._messages import sdk_codec
from mcp_client_guard.core.policy import GuardPolicy

__all__ = ["streamable_http_client"]

_DEFAULT_EVENT_SIZE = GuardPolicy().max_event_size


@asynccontextmanager
async def _first_major(
    url: str, *, http_client: Any = None, terminate_on_close: bool = True
) -> AsyncIterator[tuple[Any, Any, Callable[[], str | None]]]:
    """Guarded stand-in for `mcp.client.streamable_http.streamable_http_client` of SDK 1.x.

    A call in doubt is known to this connection alone: if you reconnect, use one `Guard` and `guard.connect()`.
    Yields `(read, write, get_session_id)`. A caller's `http_client` is an `httpx` or `httpx2` client.
    """
    async with _guarded(Guard(url, http_client=http_client, terminate_on_close=terminate_on_close)) as streams:
        yield streams


@asynccontextmanager
async def _second_major(
    url: str,
    *,
    http_client: Any = None,
    terminate_on_close: bool = True,
    max_sse_event_size: int | None = _DEFAULT_EVENT_SIZE,
) -> AsyncIterator[tuple[Any, Any]]:
    """Guarded stand-in for `mcp.client.streamable_http.streamable_http_client` of SDK 2.x.

    A call in doubt is known to this connection alone: if you reconnect, use one `Guard` and `guard.connect()`.
    Yields `(read, write)`. `max_sse_event_size` is in bytes (default 16 MiB, where the SDK has 1 MiB);
    None is the default here, since nothing is unbounded.
    """
    policy = GuardPolicy(max_event_size=max_sse_event_size or _DEFAULT_EVENT_SIZE)
    guard = Guard(url, http_client=http_client, terminate_on_close=terminate_on_close, policy=policy)
    async with guard.connect() as streams:
        yield streams


@asynccontextmanager
async def _older_name(
    url: str,
    headers: dict[str, str] | None = None,
    timeout: float | timedelta = 30,
    sse_read_timeout: float | timedelta = 300,
    terminate_on_close: bool = True,
    httpx_client_factory: Any = None,
    auth: httpx.Auth | None = None,
) -> AsyncIterator[tuple[Any, Any, Callable[[], str | None]]]:
    """Guarded stand-in for `mcp.client.streamable_http.streamablehttp_client` of SDK 1.x.

    Yields `(read, write, get_session_id)`. `sse_read_timeout`, in seconds, is how long silence may last: a session
    is opened within it, and a stream that can be resumed is, after so long without a byte (90 s at most). It ends
    no call, as it ends none whose server sends a comment now and then: a call ends by its deadline (an hour;
    `GuardPolicy`). `timeout` goes to the factory of the client alone: connecting has ten seconds, and is tried
    again.
    """
    silence = _seconds_of(sse_read_timeout)
    times = httpx.Timeout(_seconds_of(timeout), read=silence)
    policy = GuardPolicy()
    if silence:
        policy = GuardPolicy(open_timeout=silence, max_idle=min(silence, policy.max_idle))
    async with (
        (httpx_client_factory or httpx.AsyncClient)(headers=headers, timeout=times, auth=auth) as client,
        _guarded(Guard(url, http_client=client, terminate_on_close=terminate_on_close, policy=policy)) as streams,
    ):
        yield streams


@asynccontextmanager
async def _guarded(guard: Guard) -> AsyncIterator[tuple[Any, Any, Callable[[], str | None]]]:
    connection = guard.connect()
    async with connection as (read, write):
        yield read, write, lambda: connection.session_id


def _seconds_of(time: float | timedelta) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else time


def _named(function: Any, name: str) -> None:
    """What is wrong with a call of it is said under the name that the caller knows."""
    for each in (function, function.__wrapped__):
        each.__name__ = each.__qualname__ = name


if TYPE_CHECKING:  # a program's types are those of the installed SDK, whose functions these stand in for
    from mcp.client.streamable_http import streamable_http_client
    from mcp.client.streamable_http import (  # type: ignore[attr-defined,unused-ignore]
        streamablehttp_client as streamablehttp_client,
    )
elif sdk_codec().is_first_major:
    streamable_http_client, streamablehttp_client = _first_major, _older_name
    _named(streamablehttp_client, "streamablehttp_client")
else:
    streamable_http_client = _second_major
if not TYPE_CHECKING:
    _named(streamable_http_client, "streamable_http_client")
