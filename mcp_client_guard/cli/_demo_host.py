"""The caller of `mcp-guard demo`: one host of the installed MCP SDK, on either transport, with the same habits."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
from attrs import define, field

from mcp_client_guard import CallInDoubt, Event, Guard, GuardPolicy

from ._incidents import Incident

PATIENCE = 4.0
"""Seconds that the caller waits for an answer."""
WITNESS_TIMEOUT = 1.0
"""Seconds, for the guard; its default of 5 would only make the demo longer."""
_CALLS = 2
_STRAGGLERS = 0.2
_ALL_MESSAGES = 2.0
_WHOLE_INCIDENT = 20.0


@define(eq=False)
class Account:
    """What the caller got in one incident on one transport."""

    answer: str | None = None
    in_doubt: CallInDoubt | None = None
    error: str | None = None
    """Of the last call, if it raised."""
    calls: int = 0
    messages: list[str] = field(factory=list)
    events: list[Event] = field(factory=list)
    """What the guard reported."""
    _arrived: anyio.Event = field(factory=anyio.Event)

    def took(self, message: str) -> None:
        self.messages.append(message)
        self._arrived.set()
        self._arrived = anyio.Event()

    async def until(self, count: int) -> None:
        while len(self.messages) < count:
            await self._arrived.wait()


async def play(incident: Incident, side: str, url: str) -> Account:
    """The whole incident. Whatever goes wrong is part of the account."""
    account = Account()
    try:
        with anyio.fail_after(_WHOLE_INCIDENT):
            await _converse(incident, _transport(side, url, account), account)
    except Exception as error:
        account.error = account.error or _words_of(error)
    return account


def _transport(side: str, url: str, account: Account) -> AbstractAsyncContextManager[Any]:
    if side == "sdk":
        transport: AbstractAsyncContextManager[Any] = load_sdk()[1](url)
        return transport
    policy = GuardPolicy(witness_timeout=WITNESS_TIMEOUT)
    return Guard(url, generation="sessions", policy=policy, on_event=account.events.append).connect()


async def _converse(incident: Incident, transport: AbstractAsyncContextManager[Any], account: Account) -> None:
    async def log(params: Any) -> None:
        account.took(str(params.data))

    session_class, _ = load_sdk()
    async with transport as streams, session_class(streams[0], streams[1], logging_callback=log) as session:
        await session.initialize()
        await account.until(incident.before)
        await _call(incident, session, account)
        with anyio.move_on_after(_ALL_MESSAGES if incident.before else _STRAGGLERS):
            await account.until(len(incident.messages))
        await anyio.sleep(_STRAGGLERS)


async def _call(incident: Incident, session: Any, account: Account) -> None:
    """Call the tool, and once more if that raised. An `isError` result is an answer, and is not repeated."""

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        account.took(f"progress {progress:g}")

    while account.calls < _CALLS:
        account.calls += 1
        try:
            with anyio.fail_after(PATIENCE):
                result = await session.call_tool(incident.tool, {}, progress_callback=progress)
        except Exception as error:
            account.error = _words_of(error)
            continue
        account.error = None
        account.in_doubt = CallInDoubt.find(result)
        account.answer = None if account.in_doubt else " ".join(part.text for part in result.content)
        return


def _words_of(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def sdk_version() -> str | None:
    """Of the installed MCP SDK, for people; None if there is none."""
    try:
        return version("mcp")
    except PackageNotFoundError:
        return None


def load_sdk() -> tuple[Any, Any]:
    """Its `ClientSession` and its transport.

    Raises:
        ImportError: it is older than 1.24.
    """
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    return ClientSession, streamable_http_client
