"""Scenes of a session that may go on over a socket: the testing kit's server, and a host on a guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from mcp_client_guard import Disconnected, GuardPolicy, Upgraded, UpgradeRefused
from mcp_client_guard.testing import EventLogServer, Lie, Reply, Request, Session, SessionStore, notification
from mcp_client_guard.testing.served_socket import ServedSocket
from mcp_client_guard.testing.sessions import Reader

from .hosts import LIMIT, PlainHost, plain_host, the_one_in


def told(number: int) -> Any:
    return notification("notifications/message", level="info", data=number)


def heard(host: PlainHost) -> list[int]:
    """What reached the host of the standalone stream, in order."""
    return [m["params"]["data"] for m in host.messages if m.get("method") == "notifications/message"]


async def standalone_of(session: Session, other_than: str | None = None) -> str:
    """Its standalone stream, once it is open."""
    while session.standalone in (None, other_than):
        await session._news.wait()
    assert session.standalone is not None
    return session.standalone


class Scene:
    """A server, its one session, and a host on a guard that would like a socket."""

    def __init__(self, server: EventLogServer, session: Session, host: PlainHost) -> None:
        self.server, self.session, self.host = server, session, host

    @property
    def stream(self) -> str:
        assert self.session.standalone is not None
        return self.session.standalone

    def emit(self, *numbers: int) -> None:
        for number in numbers:
            self.session.append(self.stream, told(number))

    def emit_unseen(self, *numbers: int) -> None:
        """Into the log; the event stream that is open does not learn of it."""
        for number in numbers:
            self.session.log.append(self.stream, told(number))

    async def heard(self, *numbers: int) -> None:
        """Exactly these reached the host, in this order."""
        await self.host.until(lambda: len(heard(self.host)) >= len(numbers))
        assert heard(self.host) == list(numbers)

    async def upgraded(self, count: int = 1) -> None:
        await self.host.until(lambda: len(self.host.of(Upgraded)) >= count)

    async def refused(self) -> UpgradeRefused:
        return (await self.host.until(lambda: self.host.of(UpgradeRefused)))[0]

    async def back(self) -> None:
        """The event stream has been proven to go on."""
        await self.host.until(lambda: self.host.grades[-1:] == ["proven"] and not self.is_on_socket)

    @property
    def is_on_socket(self) -> bool:
        upgraded = [n for n, e in enumerate(self.host.told) if isinstance(e, Upgraded)]
        left = [n for n, e in enumerate(self.host.told) if isinstance(e, Disconnected)]
        return bool(upgraded) and upgraded[-1] > max(left, default=-1)

    def id_of(self, number: int) -> str:
        """The ID under which this was told."""
        entries = self.session.log.held(self.stream)
        return next(e.event_id for e in entries if e.message == told(number))


On = Callable[[ServedSocket, Reader], Awaitable[None]]


@asynccontextmanager
async def playing(
    lie: Lie | None = None,
    *,
    on_ask: Any = None,
    on_socket: On | None = None,
    retained: int = 1000,
    policy: Any = None,
    **options: Any,
) -> AsyncIterator[Scene]:
    server = EventLogServer(lie=lie, store=SessionStore(retained=retained))
    if on_ask is not None:
        server.upgrade.on_ask = on_ask
    if on_socket is not None:
        server.upgrade.on_socket = on_socket
    chosen = GuardPolicy(**(policy or {}))
    options = {"websocket": True, **options}
    try:
        with anyio.fail_after(LIMIT):
            async with server, plain_host(server.url, policy=chosen, **options) as host:
                await server.http.wait_for(lambda r: r.method == "GET")
                (session,) = server.store.sessions.values()
                await standalone_of(session)
                yield Scene(server, session, host)
    except Exception as error:
        raise the_one_in(error) from None


def asks(server: EventLogServer) -> list[Request]:
    return [r for r in server.http.requests if r.target == "/mcp/upgrade" and r.method == "POST"]


class Gate:
    """Holds the first question until it is opened; the rest are answered at once."""

    def __init__(self) -> None:
        self.asked, self.open = anyio.Event(), anyio.Event()
        self.scene: Scene | None = None

    async def __call__(self, request: Request, reply: Reply) -> None:
        self.asked.set()
        await self.open.wait()
        assert self.scene is not None
        await self.scene.server.upgrade.ask(request, reply)


@asynccontextmanager
async def gated(lie: Lie | None = None, **options: Any) -> AsyncIterator[tuple[Scene, Gate]]:
    """Events 1 to 10 have come; the guard has asked for the upgrade, and waits for the answer."""
    gate = Gate()
    async with playing(lie, on_ask=gate, **options) as scene:
        gate.scene = scene
        scene.emit(*range(1, 11))
        await scene.heard(*range(1, 11))
        await gate.asked.wait()
        yield scene, gate
