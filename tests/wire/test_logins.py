"""A login that fails may have asked a person: streams of the guard's do not ask again by themselves."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import httpx
import pytest

from mcp_client_guard.core.actions import AskUpgrade
from mcp_client_guard.core.report import StandaloneUnavailable
from mcp_client_guard.testing import FakeServer, Handler, How, Reply, Request, ScriptedMcp, in_turn
from mcp_client_guard.transports.http import Endpoint
from mcp_client_guard.transports.websocket import Sockets

from .hosts import LIMIT, Answer, events, note, plain_host, prime, progress

pytestmark = pytest.mark.anyio


class NotLoggedIn(Exception):
    pass


class Login(httpx.Auth):
    """Asks a person for a new token when the old one is refused."""

    def __init__(self, failure: Exception) -> None:
        self.failure, self.token, self.asked = failure, "old", 0

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        request.headers["authorization"] = self.token
        response = yield request
        if response.status_code == 401:
            self.asked += 1
            raise self.failure


class Locked(ScriptedMcp):
    """Takes the token that is good."""

    good = "old"

    async def __call__(self, request: Request, reply: Reply) -> None:
        if request.header("authorization") == self.good:
            await super().__call__(request, reply)
        else:
            await reply.status(401, www_authenticate="Bearer")


def changing(server: Locked, handler: Handler) -> Handler:
    """The token is another one afterwards."""

    async def play(request: Request, reply: Reply) -> None:
        server.good = "new"
        await handler(request, reply)

    return play


FAILURES = [NotLoggedIn("nobody"), TimeoutError("nobody within five minutes")]


@pytest.mark.parametrize("failure", FAILURES, ids=["its own error", "a time-out"])
async def test_the_standalone_stream_asks_once_and_is_back_when_calls_are_answered(failure: Exception) -> None:
    mcp = Locked()
    mcp.on_standalone = in_turn(changing(mcp, events(note("a"), end=How.FIN)), events(note("back"), end=How.STALL))
    login = Login(failure)
    async with httpx.AsyncClient(auth=login) as client, FakeServer(mcp) as server:
        with anyio.fail_after(LIMIT):
            async with plain_host(server.url, http_client=client) as host:
                await host.until(lambda: host.of(StandaloneUnavailable))
                (told,) = host.of(StandaloneUnavailable)
                assert told.reason == f"HTTP 401, then {type(failure).__name__}"
                login.token = "new"
                assert await host.call() == Answer("charge")
                await host.until(lambda: host.heard.count("notifications/message") == 2)
                assert login.asked == 1


@pytest.mark.parametrize("failure", FAILURES, ids=["its own error", "a time-out"])
async def test_a_call_whose_stream_cannot_be_resumed_for_it_is_in_doubt_at_once(failure: Exception) -> None:
    mcp = Locked()
    mcp.on_call = changing(mcp, events(prime("p"), progress(1, "1"), progress(2, "2"), end=How.FIN))
    login = Login(failure)
    async with httpx.AsyncClient(auth=login) as client, FakeServer(mcp) as server:
        with anyio.fail_after(LIMIT):
            async with plain_host(server.url, http_client=client) as host:
                await host.until(lambda: host.of(StandaloneUnavailable))  # by 405, before the token changes
                told = await host.call()
                assert login.asked == 1
    assert f"its stream could not be opened again (HTTP 401, then {type(failure).__name__})" in told.text


@pytest.mark.parametrize("failure", FAILURES, ids=["its own error", "a time-out"])
async def test_nor_does_the_question_for_a_socket(failure: Exception) -> None:
    mcp = Locked()
    mcp.good = "new"
    async with httpx.AsyncClient(auth=Login(failure)) as client, FakeServer(mcp) as server:
        told = await Sockets(Endpoint(client, server.url), 1000, 60.0).ask(AskUpgrade(1, {}, {}))
    assert (told.why, told.lasts) == (type(failure).__name__, True)


async def test_a_server_that_is_away_is_asked_again() -> None:
    async with FakeServer(Locked()) as server:
        url = server.url
    async with httpx.AsyncClient() as client:
        told = await Sockets(Endpoint(client, url), 1000, 60.0).ask(AskUpgrade(1, {}, {}))
    assert (told.why, told.lasts) == ("ConnectError", False)
