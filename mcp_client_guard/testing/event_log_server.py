"""An MCP server to test clients with: it resumes only what it can prove, says so, and lies where it is told to.

    async with EventLogServer() as server:
        ...  # point the client at server.url, and have it call `charge` with cut_after=2
        assert len(server.ledger) == 1

It speaks streamable HTTP (2025-11-25) on `url`, with the upgrade of `docs/websocket.md` below it, and the legacy
transport (2024-11-05) on `sse_url`. Its tools are `charge`, `slow`, `progress` and `announce`; each takes
`cut_after` and `cut_how`, and goes on when it is cut off.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import anyio

from ._http1 import Request
from ._log_endpoints import Legacy, Streamable, refuse
from ._work import Execution, Work
from .event_log import Reason, Refusal, Replay
from .fake_server import FakeServer, Reply
from .lies import BridgingStore, Lie, Told
from .sessions import Session, SessionStore
from .upgrade import Upgrade


class EventLogServer:
    """A server in this process; use it as an async context manager.

    A cursor that cannot be honoured draws 409 with a JSON-RPC error whose data has the code `resume_gap` and the
    reason; an unknown session draws 404; a cursor on a POST draws 400, and nothing is executed.

    Args:
        lie: what it is dishonest in.
        store: its sessions; servers that are given the same one are replicas.
        refuse_by_status: false: a refused cursor is answered by 200, `Mcp-Resumed: false`, the event
            `resumed`, and a new stream: the standalone one where no connection has that, else one beside it.
        json_answers: POSTs are answered by JSON. May be changed at any time.
        retry_ms: what clients are told to wait before they come again.
        port: on 127.0.0.1; 0: any that is free.
    """

    def __init__(
        self,
        *,
        lie: Lie | None = None,
        store: SessionStore | None = None,
        refuse_by_status: bool = True,
        json_answers: bool = False,
        retry_ms: int = 10,
        port: int = 0,
    ) -> None:
        self.lie = None if lie is None else Lie(lie)
        self.store = store or (BridgingStore() if self.lie is Lie.SHARED_ALLOCATOR else SessionStore())
        self.refuse_by_status = refuse_by_status
        self.json_answers = json_answers
        self.retry_ms = retry_ms
        self.migrated = False
        """Whether `sse_url` is an endpoint of streamable HTTP, too, and no longer one of the legacy transport."""
        self.work = Work()
        self.resumes: list[Replay | Refusal | Told] = []
        """What every resume (or refused upgrade) was answered with, once that is written (a replay: begun)."""
        self.drain_races: list[str] = []
        """Every cursor that was the ID of the last event sent."""
        self.cursors_on_posts: list[str] = []
        """Every cursor that came on a POST."""
        self.http = FakeServer(self.answer, port=port)
        """What it listens with: its requests, its connections."""
        self.upgrade = Upgrade(self)
        """The move of a session's standalone stream to a WebSocket."""
        self._streamable = Streamable(self)
        self._legacy = Legacy(self)
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """The endpoint of streamable HTTP."""
        return self.http.url

    @property
    def sse_url(self) -> str:
        """The endpoint of the legacy transport."""
        return f"http://127.0.0.1:{self.http.port}/sse"

    @property
    def ledger(self) -> list[Execution]:
        """Every tool that really ran, in order."""
        return self.work.ledger

    @property
    def refused(self) -> list[Refusal]:
        """Every cursor that was not honoured, of an upgrade, too, or with an unknown session."""
        return [answer for answer in self.resumes if isinstance(answer, Refusal)]

    def note_resume(self, answer: Replay | Refusal | Told) -> None:
        """Write down what a resume was answered with."""
        self.resumes.append(answer)
        self.http.note_change()

    def note_race(self, cursor: str, answer: Replay | Refusal) -> None:
        """Write the cursor down if it was the ID of the last event sent."""
        if answer.drain_race if isinstance(answer, Replay) else answer.reason is Reason.DRAIN_RACE:
            self.drain_races.append(cursor)

    async def __aenter__(self) -> EventLogServer:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(self._tasks.cancel_scope.cancel)
        await self._stack.enter_async_context(self.http)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def answer(self, request: Request, reply: Reply) -> None:
        """Answer one request: a handler for a `FakeServer` of your own, such as a balancer of replicas."""
        if request.method == "POST" and request.last_event_id is not None:
            self.cursors_on_posts.append(request.last_event_id)
            if self.lie is not Lie.CURSOR_ON_POST:
                await refuse(reply, 400, "a POST carries no cursor: nothing was executed", code="cursor_on_post")
                return
        path = urlsplit(request.target).path
        match request.method, path:
            case _, "/mcp":
                await self._streamable(request, reply)
            case _, "/sse" if self.migrated:
                await self._streamable(request, reply)
            case _, "/mcp/upgrade":
                await self.upgrade(request, reply)
            case "GET", "/sse":
                await self._legacy.stream(request, reply)
            case "POST", "/messages":
                await self._legacy.message(request, reply)
            case "GET", "/ledger":
                await reply.json(self.as_json())
            case _, "/sse" | "/messages" | "/ledger":
                await reply.status(405)
            case _:
                await reply.status(404)

    def perform(self, session: Session, stream: str, request: Any, *, finish: bool = True) -> None:
        """Begin to do what a request asks for; it goes on when its connection is lost."""
        self._tasks.start_soon(self._perform, session, stream, request, finish)

    def as_json(self) -> dict[str, Any]:
        """What happened, as `GET /ledger` tells it to other processes."""
        return {
            "executed": [{"tool": e.tool, "arguments": e.arguments} for e in self.ledger],
            "refused": [{"reason": r.reason.name.lower(), "cursor": r.event_id} for r in self.refused],
            "drain_races": self.drain_races,
            "cursors_on_posts": self.cursors_on_posts,
        }

    def as_line(self) -> str:
        """Where it is, for the process that started it."""
        ledger_url = f"http://127.0.0.1:{self.http.port}/ledger"
        return json.dumps({"url": self.url, "sse_url": self.sse_url, "ledger_url": ledger_url})

    async def _perform(self, session: Session, stream: str, request: Any, finish: bool) -> None:
        async def emit(message: Any) -> None:
            await session.emit(stream, message)

        session.append(stream, await self.work.do(request, session, stream, emit))
        if finish:
            session.finish(stream)
