"""The two endpoints of an event-log server: streamable HTTP on `/mcp`, the legacy transport on `/sse`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from mcp_client_guard.core.messages import is_message

from ._http1 import Request
from .event_log import Entry, EventLog, Reason, Refusal, Replay
from .lies import Lie, Told, tell
from .proxy import How
from .sessions import Reader, Session
from .written import END_OF_CHUNKS, chunk, sse_event, sse_head

if TYPE_CHECKING:
    from .event_log_server import EventLogServer
    from .fake_server import Reply

_WITH_PRIMING = "2025-11-25"
_NO_MESSAGE = "the body is not one JSON-RPC message"


class Streamable:
    """Streamable HTTP, revision 2025-11-25."""

    def __init__(self, server: EventLogServer) -> None:
        self._server = server

    async def __call__(self, request: Request, reply: Reply) -> None:
        """Answer a request to `/mcp`."""
        is_post = request.method == "POST" and request.last_event_id is None
        if is_post and not _is_message(request.json):
            await refuse(reply, 400, _NO_MESSAGE)
        elif is_post and _is_request(request) and request.rpc_method == "initialize":
            await self._answer(self._server.store.open("http"), request, reply)
        elif (session := self._server.store.find(request.session_id, "http")) is not None:
            await self._in_session(session, request, reply)
        else:
            await self._without_session(request, reply)

    async def _without_session(self, request: Request, reply: Reply) -> None:
        if request.session_id is None:
            await refuse(reply, 400, "Mcp-Session-Id is missing")
        else:
            await refuse(reply, 404, "unknown session")
        if request.last_event_id is not None:
            self._server.note_resume(without_log(request.last_event_id, "http"))

    async def _in_session(self, session: Session, request: Request, reply: Reply) -> None:
        cursor = request.last_event_id
        match request.method:
            case "GET" if cursor is None:
                await self._standalone(session, reply)
            case "GET":
                await self._resume(session, str(cursor), reply)
            case "DELETE":
                self._server.store.close(session)
                await reply.status(200)
            case "POST" if cursor is not None:  # the lie: an honest server has refused it
                await self._resume(session, cursor, reply)
            case "POST" if _is_request(request):
                await self._answer(session, request, reply)
            case "POST":
                await reply.status(202)
            case _:
                await reply.status(405)

    async def _answer(self, session: Session, request: Request, reply: Reply) -> None:
        if self._server.json_answers:
            message = await self._server.work.do(request.json, session, None, _unheard)
            await reply.json(message, session=session.session_id)
            return
        stream = session.open_stream("call")
        self._server.perform(session, stream, request.json)
        if session.protocol >= _WITH_PRIMING and request.rpc_method != "initialize":
            session.append(stream)
        await self._follow(session, session.subscribe(stream, 0), reply)

    async def _standalone(self, session: Session, reply: Reply) -> None:
        await self._follow(session, _new_standalone(session), reply)

    async def _resume(self, session: Session, cursor: str, reply: Reply) -> None:
        told = tell(self._server.lie, self._server.store, session, cursor)
        if told is not None:
            await self._tell(told, reply)
            return
        answer = session.resume(cursor)
        self._server.note_race(cursor, answer)
        match answer:
            case Replay() as replay:
                reader = session.subscribe(replay.stream, replay.after)
                self._server.note_resume(replay)
                await self._follow(session, reader, reply, resumed=True)
            case Refusal() as refusal:
                await self._refuse_resume(session, refusal, reply)

    async def _refuse_resume(self, session: Session, refusal: Refusal, reply: Reply) -> None:
        if self._server.refuse_by_status:
            await refuse(reply, 409, refusal.reason.value, code="resume_gap", reason=refusal.reason.name.lower())
            self._server.note_resume(refusal)
            return
        reader = _new_stream(session) if session.is_read(session.standalone) else _new_standalone(session)
        self._server.note_resume(refusal)
        await self._follow(session, reader, reply, resumed=False, why=refusal.reason)

    async def _follow(
        self,
        session: Session,
        reader: Reader,
        reply: Reply,
        *,
        resumed: bool | None = None,
        why: Reason | None = None,
    ) -> None:
        writer = Writer(session, reader, reply, self._server.retry_ms)
        await writer.open({} if resumed is None else {"mcp-resumed": str(resumed).lower()})
        if resumed is not None:
            told = {"resumed": resumed} if why is None else {"resumed": resumed, "reason": why.name.lower()}
            await reply.write(chunk(sse_event(told, event="resumed")))
        await writer.run()

    async def _tell(self, told: Told, reply: Reply) -> None:
        await reply.write(sse_head(session=told.session.session_id))
        for event_id, message in told.events:
            await reply.write(chunk(sse_event(message, id=event_id)))
        self._server.note_resume(told)
        if told.finish:
            await reply.write(END_OF_CHUNKS)
        elif told.follow is not None:
            reader = told.session.subscribe(*told.follow)
            await Writer(told.session, reader, reply, None).run()
        else:
            await reply.end(How.STALL)


def _new_stream(session: Session) -> Reader:
    """A stream that a GET opens, from its priming event on."""
    stream = session.open_stream("get")
    session.append(stream)
    return session.subscribe(stream, 0)


def _new_standalone(session: Session) -> Reader:
    """One that takes the place of the session's standalone stream."""
    if session.standalone is not None:
        session.log.supersede(session.standalone)
    reader = _new_stream(session)
    session.standalone = reader.stream
    return reader


class Legacy:
    """The HTTP+SSE transport of 2024-11-05: the stream of `/sse` is the session, messages go to `/messages`."""

    def __init__(self, server: EventLogServer) -> None:
        self._server = server

    async def stream(self, request: Request, reply: Reply) -> None:
        """GET `/sse`. A cursor here is of a session that has ended: it is told that nothing is resumed."""
        session = self._server.store.open("sse")
        stream = session.standalone = session.open_stream("sse")
        cursor = request.last_event_id
        writer = Writer(session, session.subscribe(stream, 0), reply, self._server.retry_ms)
        await writer.open({} if cursor is None else {"mcp-resumed": "false"})
        await reply.write(chunk(sse_event(f"/messages?session_id={session.session_id}", event="endpoint")))
        if cursor is not None:
            refusal = without_log(cursor, "sse")
            self._server.note_resume(refusal)
            told = {"resumed": False, "reason": refusal.reason.name.lower()}
            await reply.write(chunk(sse_event(told, event="resumed")))
        try:
            await writer.run()
        finally:
            if self._server.lie is not Lie.SHARED_ALLOCATOR:
                self._server.store.close(session)

    async def message(self, request: Request, reply: Reply) -> None:
        """POST `/messages`: 202, and the answer comes on the stream."""
        asked = parse_qs(urlsplit(request.target).query).get("session_id", [""])
        session = self._server.store.find(asked[0], "sse")
        if session is None or session.standalone is None:
            await refuse(reply, 404, "unknown session")
            return
        if not _is_message(request.json):
            await refuse(reply, 400, _NO_MESSAGE)
            return
        if _is_request(request):
            self._server.perform(session, session.standalone, request.json, finish=False)
        await reply.status(202)


class Writer:
    """Writes a stream of a session's to one connection, and cuts it where that is asked for."""

    def __init__(self, session: Session, reader: Reader, reply: Reply, retry_ms: int | None) -> None:
        self._session = session
        self._reader = reader
        self._reply = reply
        self._retry_ms = retry_ms

    async def open(self, headers: dict[str, str]) -> None:
        """The head of the response."""
        legacy = self._session.log.generation == "sse"
        await self._reply.write(sse_head(session=None if legacy else self._session.session_id, headers=headers))

    async def run(self) -> None:
        """Until the stream is finished, cut or taken over, or the client has left."""
        try:
            while entries := await self._reader.next(self._reply.client_gone):
                for entry in entries:
                    if self._reader.is_current and not await self._write(entry):
                        return
            if (cut := self._reader.due_cut) is not None:
                await self._cut(self._reader.stream, cut.how)
            elif self._reader.is_complete:
                await self._reply.write(END_OF_CHUNKS)
        finally:
            self._reader.close()

    async def _write(self, entry: Entry) -> bool:
        """Write an event; whether the connection goes on."""
        priming = entry.message is None
        data = "" if priming else entry.message
        raw = chunk(sse_event(data, id=entry.event_id, retry=self._retry_ms if priming else None))
        cut = None if priming else self._session.cuts.get(entry.stream)
        if cut is not None and cut.left < 1:
            if cut.left:
                await self._reply.write(raw[: len(raw) // 2])
                self._reader.wrote(entry)
            return await self._cut(entry.stream, cut.how)
        await self._reply.write(raw)
        self._reader.wrote(entry)
        if cut is not None:
            cut.left -= 1
            if cut.left == 0:
                return await self._cut(entry.stream, cut.how)
        return True

    async def _cut(self, stream: str, how: How) -> bool:
        """Whatever is being written to the stream is in the log when the client learns of the cut."""
        del self._session.cuts[stream]
        self._reader.close()
        await self._session.at_rest(stream)
        await self._reply.end(how)
        return False


def _is_message(body: Any) -> bool:
    """A batch is none since 2025-06-18; nor is a request whose ID is null, which would wait for an answer."""
    return isinstance(body, dict) and is_message(body) and not ("method" in body and body.get("id", 0) is None)


def _is_request(request: Request) -> bool:
    """Of a body that is a message: it is to be answered."""
    return request.rpc_method is not None and request.rpc_id is not None


def without_log(cursor: str, generation: str) -> Refusal:
    """Why it is not honoured where the session that it came with, if any, has no log here."""
    reason = EventLog("none", generation).locate(cursor)
    assert isinstance(reason, Reason)
    return Refusal(reason, cursor)


async def refuse(reply: Reply, status: int, why: str, **data: Any) -> None:
    """A refusal that a client can tell from every other."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": why, "data": data}}
    resumed = {"mcp_resumed": "false"} if data.get("code") == "resume_gap" else {}
    await reply.status(status, json.dumps(body).encode(), content_type="application/json", **resumed)


async def _unheard(message: Any) -> None:
    """A body of JSON has no place for what comes before the answer."""
