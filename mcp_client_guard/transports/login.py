"""A login at work: what the auth flow of a caller's client lets go out for a request, and what that draws."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import cache
from typing import Any

from .sent import Sent, owner_of


def login_watched(client: Any, request: Any, sent: Sent) -> dict[str, Any]:
    """What to give to the client's `send` for this request, so that `sent` is told what its login does.

    Nothing, if that `send` is not httpx's or httpx2's own: it may have no room for it, and send what it likes.
    """
    owner = owner_of(client, "send")
    if owner is None:
        return {}
    sent.login.transport_for = client._transport_for_url
    if client.auth is None:
        sent.let_go(request)
        return {}
    return {"auth": _kind(owner.__module__.partition(".")[0])(client.auth, sent)}


@cache
def _kind(family: str) -> Any:
    """A client takes no auth that is not of its own family."""
    return type("Watched", (_Watched, sys.modules[family].Auth), {})


class _Watched:
    def __init__(self, auth: Any, sent: Sent) -> None:
        self._auth = auth
        self._sent = sent

    async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
        sent, flow = self._sent, self._auth.async_auth_flow(request)
        try:
            asked = await flow.__anext__()
            while True:
                is_ours = _may_be(asked, request)
                if is_ours:
                    sent.let_go(asked)
                response = yield asked
                if is_ours:
                    sent.came_back(response)
                asked = await flow.asend(response)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            sent.login.gave_up = error.errno is None  # that of a socket has a number
            raise
        finally:
            await flow.aclose()


def _may_be(asked: Any, request: Any) -> bool:
    """Whether it is this request, or may be a copy of it, signed in whatever part: logins ask others elsewhere."""
    with suppress(Exception):  # a body that is not read yet
        is_there = (asked.url.host, asked.url.path) == (request.url.host, request.url.path)
        return is_there or bool(asked.content == request.content)
    return True
