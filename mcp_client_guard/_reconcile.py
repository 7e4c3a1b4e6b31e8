"""The user's `reconcile` hook: what it is given, and how it is run."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from attrs import define, field, frozen

from ._errors import RequestFailed
from ._theirs import is_theirs
from .core.actions import Ask, Reply, StopAsking
from .core.answers import CODE_SESSION_LOST
from .core.doubt import CallInDoubt
from .core.inputs import HookRequested, HookWithdrew, Input, Reconciled
from .core.model import JSON, assert_never
from .core.verdicts import Fail, Resend, Resolve, Verdict

logger = logging.getLogger("mcp_client_guard")


_LIST_SECONDS = 5.0
"""What the hook knows does not wait longer than this for what its tool promises."""


@frozen
class InDoubtCall:
    """A tool call that may or may not have run, as the `reconcile` hook is given it."""

    tool: str | None
    arguments: JSON | None = field(repr=False)
    """None for a call of an earlier process: arguments are not stored."""
    call_key: str
    reason: str
    """Why nobody can say whether it ran."""
    cancel_signalled: bool
    """The server was told that its caller has given up."""

    @classmethod
    def of(cls, doubt: CallInDoubt, arguments: JSON | None) -> InDoubtCall:
        return cls(doubt.tool, arguments, doubt.call_key, doubt.reason, doubt.cancel_signalled)


@define(eq=False, repr=False)
class Hooks:
    """Runs the hook for each call that the core asks about, and carries its questions to the server."""

    hook: ReconcileHook
    feed: Callable[[Input], None]
    tasks: TaskGroup
    _running: dict[int, anyio.CancelScope] = field(factory=dict, init=False)
    _replies: dict[int, _Waiter] = field(factory=dict, init=False)
    _tickets: int = field(default=0, init=False)
    _closed: bool = field(default=False, init=False)

    def carry_out(self, order: Ask | StopAsking | Reply) -> None:
        match order:
            case Ask():
                self.ask(order)
            case StopAsking():
                self.stop(order)
            case Reply():
                self.reply(order)
            case _:
                assert_never(order)

    def ask(self, asked: Ask) -> None:
        scope = self._running[asked.question] = anyio.CancelScope()
        self.tasks.start_soon(partial(self._run, asked, scope))

    def stop(self, order: StopAsking) -> None:
        scope = self._running.pop(order.question, None)
        if scope is not None:
            scope.cancel()

    def reply(self, reply: Reply) -> None:
        waiter = self._replies.pop(reply.ticket, None)
        if waiter is not None:
            waiter.message = reply.message
            waiter.arrived.set()

    def close(self) -> None:
        """The connection is closed: nothing is answered any more, to whoever still holds a `Reconciler`."""
        self._closed = True
        for ticket in list(self._replies):
            self.reply(Reply(ticket, _CLOSED))

    async def _run(self, asked: Ask, scope: anyio.CancelScope) -> None:
        told: Reconciled | None = None
        with scope:
            try:
                verdict = _checked(await self.hook(InDoubtCall.of(asked.doubt, asked.arguments), Reconciler(self)))
                if asked.lists and isinstance(verdict, Resolve):
                    with suppress(RequestFailed), anyio.move_on_after(_LIST_SECONDS):
                        await self.request("tools/list", {})
                told = Reconciled(asked.question, verdict)
            except BaseException as error:
                if not is_theirs(error):
                    raise
                logger.exception("the reconcile hook failed")
                told = Reconciled(asked.question, None, type(error).__name__)
        if told is not None and self._running.pop(asked.question, None) is not None:
            self.feed(told)

    async def request(self, method: str, params: JSON) -> JSON:
        self._tickets += 1
        ticket = self._tickets
        waiter = self._replies[ticket] = _Waiter()
        try:
            if self._closed:
                waiter.message = _CLOSED
            else:
                self.feed(HookRequested(ticket, method, params, str(uuid.uuid4())))
                await waiter.arrived.wait()
        finally:
            if self._replies.pop(ticket, None) is not None and not self._closed:
                self.feed(HookWithdrew(ticket))
        error = waiter.message.get("error")
        if error is not None:
            raise RequestFailed(error.get("code", 0), error.get("message", ""), error.get("data"))
        result = waiter.message.get("result")
        return result if isinstance(result, dict) else {}


_CLOSED: JSON = {"error": {"code": CODE_SESSION_LOST, "message": "the connection is closed"}}


def _checked(verdict: Any) -> Verdict | None:
    """What the hook returned, if it can be used. Its values are the user's: they are named nowhere."""
    if isinstance(verdict, Resolve):
        result = verdict.as_json()
        if result is not None and not isinstance(result.get("content"), list):
            raise TypeError("Resolve needs a CallToolResult: it has a list named content")
        # Copied, for it goes to the host and to the store, now or later; what is no JSON would harm others there.
        return Resolve(json.loads(json.dumps(result, allow_nan=False)))
    if isinstance(verdict, Fail) and not isinstance(verdict.message, str):
        raise TypeError("Fail needs a text")
    if verdict is not None and not isinstance(verdict, (Resend, Fail)):
        raise TypeError(f"reconcile must return Resend, Resolve, Fail or None, not {type(verdict).__name__}")
    return verdict


@define(eq=False)
class _Waiter:
    arrived: anyio.Event = field(factory=anyio.Event)
    message: JSON = field(factory=dict)


@define(eq=False, repr=False)
class Reconciler:
    """A small client on the present session, for the `reconcile` hook to ask the server what happened.

    What it sends goes through the ledger like any other request: it waits for a session, and is sent again where
    it did not run, never where it may have.
    """

    _hooks: Hooks

    async def call_tool(self, name: str, arguments: JSON | None = None) -> JSON:
        """Call a tool; returns the `CallToolResult` as JSON.

        Raises:
            RequestFailed: the server answered with an error, the answer was lost, there is no session and none
                can be opened, or the connection is closed.
        """
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}})

    async def read_resource(self, uri: str) -> JSON:
        """Read a resource; returns the `ReadResourceResult` as JSON. Raises as `call_tool` does."""
        return await self.request("resources/read", {"uri": uri})

    async def get_task(self, task_id: str) -> JSON:
        """Ask for a task; returns it as JSON. Raises as `call_tool` does."""
        return await self.request("tasks/get", {"taskId": task_id})

    async def request(self, method: str, params: dict[str, Any] | None = None) -> JSON:
        """Send any request; returns its result as JSON. Raises as `call_tool` does."""
        return await self._hooks.request(method, params or {})


# Without a forward reference, which nobody could resolve where the alias is used.
ReconcileHook = Callable[[InDoubtCall, Reconciler], Awaitable[Verdict | None]]
"""Async: given the call and a client on the present session, says what to do. None: as the policy says."""
