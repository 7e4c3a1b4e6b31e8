"""What a `Guard` is given: a hook that can only fail is refused, and whatever may do is taken."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Coroutine
from functools import partial, wraps
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from mcp_client_guard import Generation, Guard


def _answers(call: Any, server: Any) -> Any: ...


class _Hook:
    async def __call__(self, call: Any, server: Any) -> None: ...
    async def asked(self, call: Any, server: Any) -> None: ...
    def answers(self, call: Any, server: Any) -> None: ...


async def _hook(call: Any, server: Any) -> None: ...
async def _hook_of_one(call: Any) -> None: ...
async def _hook_of_three(database: Any, call: Any, server: Any) -> None: ...
async def _hook_by_name(*, call: Any, server: Any) -> None: ...
async def _yielding(call: Any, server: Any) -> AsyncIterator[None]:
    yield


def _untold(call, server): ...  # type: ignore[no-untyped-def]
def _handing_on(call: Any, server: Any) -> Coroutine[Any, Any, None]:
    return _hook(call, server)


def _perhaps(call: Any, server: Any) -> Awaitable[None] | None:
    return _hook(call, server)


def _unknown(call: Any, server: Any) -> NameOfNothing: ...  # type: ignore[name-defined]  # noqa: F821


@wraps(_hook)
def _wrapping(*given):  # type: ignore[no-untyped-def]
    return _hook(*given)


@pytest.mark.parametrize(
    "hook",
    [
        _untold,
        _yielding,
        _hook_of_one,
        _hook_of_three,
        _hook_by_name,
        partial(_hook, None),
        partial(_untold),
        _Hook,
        _Hook().answers,
        partial(_Hook().answers),
    ],
)
def test_a_hook_that_can_only_fail_is_refused_before_it_is_needed(hook: Any) -> None:
    with pytest.raises(ValueError, match="reconcile must be an async function of a call and a Reconciler"):
        Guard("http://x/mcp", reconcile=hook)


@pytest.mark.parametrize(
    "hook",
    [
        _hook,
        partial(_hook_of_three, None),
        _Hook(),
        _Hook().asked,
        _handing_on,
        _perhaps,
        _answers,
        _unknown,
        _wrapping,
        lambda call, server: _hook(call, server),
        Mock(),
        AsyncMock(),
        dict.get,
    ],
)
def test_a_hook_that_may_do_is_taken(hook: Any) -> None:
    Guard("http://x/mcp", reconcile=hook)


def test_the_generation_may_be_given_as_the_events_tell_it() -> None:
    assert Guard("https://example.com/mcp", generation=Generation.LEGACY_SSE).generation == "legacy-sse"
    with pytest.raises(ValueError, match="generation must be 'auto', 'sessions', 'host' or 'legacy-sse'"):
        Guard("https://example.com/mcp", generation=Generation.WEBSOCKET)  # type: ignore[arg-type]
