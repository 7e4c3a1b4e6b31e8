"""Where requests may go, and what must never be seen: redirects, and the session ID (S14)."""

from __future__ import annotations

import json
import logging
import socket
from typing import Any

import anyio
import httpcore
import httpx
import pytest

from mcp_client_guard import CallInDoubt, Guard, GuardPolicy
from mcp_client_guard._guard import Connection
from mcp_client_guard._messages import plain_codec
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED
from mcp_client_guard.testing import FakeServer, How, Reply, Request, ScriptedMcp, result, tool_result
from mcp_client_guard.transports.answer import _NOT_SHOWN
from mcp_client_guard.transports.sent import why_lost

from .hosts import (
    LIMIT,
    STOPS_READING,
    Answer,
    Playing,
    Streams,
    answer,
    events,
    for_ever,
    note,
    plain_host,
    plainly,
    prime,
    progress,
    refuse,
    steps,
)
from .legacy import LegacyMcp

pytestmark = [pytest.mark.anyio, STOPS_READING]

SECRET = "7c3a-very-secret-session"
EVENT_SECRET = "event-id-with-a-secret-in-it"

# --- redirects ----------------------------------------------------------------------------------------------


class Behind(Streams):
    """Everything at `/mcp` is redirected to `/mcp/`."""

    status = 307

    async def __call__(self, request: Request, reply: Reply) -> None:
        if request.target == "/mcp":
            await reply.status(self.status, location="/mcp/?a=b" if self.status == 308 else "/mcp/")
        else:
            await super().__call__(request, reply)


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_is_followed_with_the_same_method(
    playing: Playing, status: int
) -> None:
    mcp = Behind(
        events(prime("p0", 1), progress(1, "e1"), end=How.RST),
        events(progress(1, "e1"), answer(id="e2")),
        standalone=events(note("a"), end=How.STALL),
    )
    mcp.status = status
    async with playing(mcp) as (server, host):
        assert await host.call() == Answer("done")
        await host.until(lambda: host.heard)
        reached = [r for r in server.requests if r.target.startswith("/mcp/")]
        assert {r.rpc_method for r in reached} >= {"initialize", "notifications/initialized", "tools/call"}
        assert all(r.session_id == "session-A" for r in reached if r.rpc_method != "initialize")
        assert host.grades == ["proven"]
    assert mcp.executed == ["charge"]
    assert server.sent("DELETE")[-1].target.startswith("/mcp/")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_is_never_followed_and_says_where_it_led(
    playing: Playing, status: int
) -> None:
    async with FakeServer(ScriptedMcp()) as other:
        target = other.url + "?token=1"
        mcp = Streams(refuse(status, location=target), standalone=refuse(status, location=target))
        async with playing(mcp) as (_, host):
            got = await host.call()
            if status in (307, 308):
                assert got.code == CODE_NOT_EXECUTED
            else:
                assert got.doubt is not None, "it may come from a request that has run"
            assert str(other.port) in got.text
            assert "token" not in got.text
            mcp.first = events(answer())
            assert await host.call(n=2) == Answer("done")
        assert other.requests == []


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_post_is_never_turned_into_a_get(playing: Playing, status: int) -> None:
    mcp = Streams(refuse(status, location="/elsewhere"))
    async with playing(mcp) as (server, host):
        assert (await host.call()).doubt is not None
        assert [r for r in server.requests if r.target == "/elsewhere"] == []


@pytest.mark.parametrize("location", ["", "//[bad", "ftp://x/", "http://127.0.0.1:1@evil/", "\x7f", "/mcp"])
async def test_an_odd_or_circular_location_is_an_answer(location: str) -> None:
    mcp = Streams(refuse(307, location=location))
    async with plainly(mcp, policy={"max_attempts": 2}) as (_, host):
        assert (await host.call()).is_error
        mcp.first = events(answer())
        assert await host.call() == Answer("done")
    assert len(mcp.executed) <= 20


@pytest.mark.parametrize(
    ("location", "seen"),
    [
        ("/mcp/", "/mcp/"),
        (
            "https://user:SECRET@idp.example:8443/cb;js=SECRET/x;SECRET?q=SECRET#SECRET",
            "https://idp.example:8443/cb/x",
        ),
        ("//user:SECRET@idp.example/cb#SECRET", "//idp.example/cb"),
        ("user:SECRET@idp.example/cb", _NOT_SHOWN),
        ("/x@SECRET", _NOT_SHOWN),
        ("https:\\\\user:SECRET", _NOT_SHOWN),
        ("https://[SECRET", _NOT_SHOWN),
        ("data:SECRET", _NOT_SHOWN),
    ],
)
async def test_of_where_a_redirect_led_only_scheme_host_and_path_are_told(location: str, seen: str) -> None:
    async with plainly(Streams(refuse(302, location=location))) as (_, host):
        answer = await host.call()
        assert f"redirected to {seen}, which" in answer.text
        assert "SECRET" not in answer.text
        assert "SECRET" not in str(host.told)


async def test_a_redirect_of_initialize_to_another_origin_gives_it_nothing() -> None:
    async with FakeServer(ScriptedMcp()) as other:
        mcp = ScriptedMcp(initialize=refuse(307, location=other.url))
        async with plainly(mcp, start=False, headers={"authorization": "Bearer t"}) as (_, host):
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            }
            assert "error" in await host.request("initialize", params)
        assert other.requests == []


REDIRECTS = [
    ("http://a.example/mcp", "https://a.example/mcp", "https://a.example/mcp"),
    ("http://a.example/mcp", "https://a.example:443/other", "https://a.example/other"),
    ("http://a.example:80/mcp", "HTTPS://A.example/mcp", "https://a.example/mcp"),
    ("http://a.example/mcp", "/mcp/?shard=7", "http://a.example/mcp/?shard=7"),
    ("http://me:pw@a.example/mcp", "http://a.example/mcp/", "http://a.example/mcp/"),
    ("http://me:pw@a.example/mcp", "https://a.example/mcp/", "https://a.example/mcp/"),
    ("http://me:pw@a.example/mcp", "/mcp/", "http://me:pw@a.example/mcp/"),
    ("http://a.example/mcp", "https://b.example/mcp", None),
    ("http://a.example/mcp", "https://a.example.evil/mcp", None),
    ("http://a.example/mcp", "https://a.example:8443/mcp", None),
    ("http://a.example:8080/mcp", "https://a.example/mcp", None),
    ("https://a.example/mcp", "http://a.example/mcp", None),
    ("https://a.example:80/mcp", "http://a.example/mcp", None),
    ("http://a.example/mcp", "http://evil:pw@a.example/mcp/", None),
    ("http://a.example/mcp", "https://evil:pw@a.example/mcp", None),
    ("http://me:pw@a.example/mcp", "http://evil:pw@a.example/mcp/", None),
]


@pytest.mark.parametrize(("url", "location", "reached"), REDIRECTS)
async def test_credentials_follow_a_redirect_to_the_same_host_only(
    url: str, location: str, reached: str | None
) -> None:
    """Within the origin, or from http to https on the default ports; with the user of the guard's URL alone."""
    seen: list[httpx.Request] = []

    async def serve(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if len(seen) == 1:
            return httpx.Response(307, headers={"location": location})
        return httpx.Response(200, json=result(json.loads(request.content)["id"], {}))

    client = httpx.AsyncClient(
        transport=httpx.MockTransport(serve), params={"key": "k"}, headers={"authorization": "Basic bWluZQ=="}
    )
    async with client, plain_host(url, start=False, http_client=client) as host:
        answer = await host.request("tools/list")
    assert [str(request.url) for request in seen[1:]] == ([] if reached is None else [reached])
    assert ("result" in answer) is (reached is not None)
    assert len({request.headers["authorization"] for request in seen}) == 1


async def test_a_password_in_the_url_is_kept_on_an_absolute_redirect() -> None:
    """Starlette, and so every server of the SDK's, redirects `/mcp` to `/mcp/` like this."""

    class Absolute(Streams):
        async def __call__(self, request: Request, reply: Reply) -> None:
            if request.target == "/mcp":
                await reply.status(307, location=f"http://{request.header('host')}/mcp/")
            else:
                await super().__call__(request, reply)

    async with FakeServer(Absolute(events(answer()))) as server:
        with anyio.fail_after(LIMIT):
            async with plain_host(server.url.replace("://", "://user:secret@")) as host:
                assert await host.call() == Answer("done")
    assert {request.header("authorization") for request in server.requests} == {"Basic dXNlcjpzZWNyZXQ="}


async def test_our_own_client_follows_a_redirect_with_no_user_that_the_server_names() -> None:
    mcp = Streams(events(answer()))
    async with plainly(mcp) as (server, host):
        mcp.first = refuse(307, location=server.url.replace("://", "://evil:pw@") + "/elsewhere")
        assert (await host.call()).code == CODE_NOT_EXECUTED
        assert {request.target for request in server.requests} == {"/mcp"}


# --- the session ID -----------------------------------------------------------------------------------------

INCIDENTS: dict[str, Any] = {
    "a quiet call": lambda: Streams(events(answer()), session=SECRET),
    "proven": lambda: Streams(
        events(prime(EVENT_SECRET, 1), progress(1, EVENT_SECRET + "1"), end=How.RST),
        events(progress(1, EVENT_SECRET + "1"), answer(id=EVENT_SECRET + "2")),
        session=SECRET,
    ),
    "broken": lambda: Streams(
        events(prime("p0", 1), progress(1, EVENT_SECRET), end=How.RST),
        for_ever(events(note("x", EVENT_SECRET + "9"))),
        session=SECRET,
    ),
    "another session": lambda: Streams(events(answer(), session=SECRET + "-other"), session=SECRET),
    "lost": lambda: Streams(refuse(404), session=SECRET),
    "reset": lambda: Streams(steps(How.RST), session=SECRET),
    "no HTTP": lambda: Streams(steps(b"nonsense\r\n\r\n", How.FIN), session=SECRET),
    "notifications refused": lambda: Streams(events(answer()), session=SECRET, notify=refuse(500)),
    "no standalone": lambda: Streams(events(answer()), session=SECRET, standalone=refuse(500)),
    "DELETE reset": lambda: Streams(events(answer()), session=SECRET, delete=steps(How.RST)),
    "the session ID as event ID": lambda: Streams(events(prime(SECRET), progress(1, SECRET)), session=SECRET),
}


@pytest.mark.parametrize("incident", INCIDENTS)
async def test_the_session_id_is_in_no_text(incident: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nor are event IDs. `httpx` and `httpcore` log no header values above their own trace level."""
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    with anyio.fail_after(LIMIT):
        async with FakeServer(INCIDENTS[incident]()) as server:
            async with plain_host(server.url) as host:
                got = await host.call()
                said += [repr(got), str(got.text), str(got.doubt)]
                await host.request("ping")
                said += [repr(host.read), repr(host.write)]
            said += [repr(event) for event in host.told] + [str(event) for event in host.told]
    assert server.sent("POST", "tools/call")[0].session_id == SECRET
    ours = [r for r in caplog.records if r.name.startswith("mcp_client_guard")]
    said += [r.getMessage() + repr(r.exc_info) for r in ours]
    for text in said:
        assert SECRET not in text
        assert EVENT_SECRET not in text


async def test_what_is_made_from_it_shows_it_nowhere() -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp(session=SECRET)) as server:
            async with plain_host(server.url) as host:
                await host.call()
                guard = Guard(server.url, headers={"authorization": SECRET})
                connection = Connection(guard, plain_codec)
                async with connection:
                    for thing in (guard, connection, connection._machine, connection._machine.session):
                        assert SECRET not in repr(thing)
                    assert SECRET not in repr(connection._shell)


async def test_a_fingerprint_is_keyed_and_tells_sessions_apart() -> None:
    shown = []
    for _ in range(2):
        async with plainly(ScriptedMcp(session=SECRET)) as (_, host):
            await host.call()
        shown.append(host.told[0].session)
    assert shown[0] != shown[1], "keyed anew for each guard: it cannot be looked up"


async def test_a_doubt_names_the_session_by_its_fingerprint() -> None:
    async with plainly(Streams(steps(How.RST), session=SECRET)) as (_, host):
        got = await host.call()
        assert isinstance(got.doubt, CallInDoubt)
        assert got.doubt.session == host.told[0].session


async def test_credentials_of_the_user_go_to_every_request_and_only_there() -> None:
    async def first(call: Request, reply: Reply) -> None:
        await reply.json(tool_result(call.rpc_id, "done"))

    async with plainly(Streams(first), headers={"Authorization": "Bearer t"}) as (server, host):
        assert await host.call() == Answer("done")
    assert {r.header("authorization") for r in server.requests} == {"Bearer t"}
    assert server.sent("DELETE")


@pytest.mark.parametrize(
    ("error", "cause", "why"),
    [
        (httpcore.ConnectError("certificate verify failed"), None, "ConnectError: certificate verify failed"),
        (httpx.ConnectError("mapped"), httpcore.ConnectError("no such name"), "ConnectError: no such name"),
        (httpx.ConnectError(SECRET), None, "ConnectError"),
        (httpx.ConnectError(SECRET), ValueError(SECRET), "ConnectError"),
        (httpx.ReadError("mapped"), httpcore.ReadError(SECRET), "ReadError"),
        (httpcore.ConnectTimeout(), None, "ConnectTimeout"),
    ],
)
async def test_why_connecting_failed_is_told_in_words_that_cannot_hold_a_secret(
    error: Exception, cause: Exception | None, why: str
) -> None:
    error.__cause__ = cause
    assert why_lost(error) == why


async def test_a_caller_is_told_why_nothing_could_be_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with anyio.fail_after(LIMIT):
        policy = GuardPolicy(max_attempts=1)
        async with plain_host(f"http://127.0.0.1:{port}/mcp", start=False, policy=policy) as host:
            got = await host.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
    assert got["error"]["message"].startswith("The request 'initialize' was not executed: ConnectError: ")


@pytest.mark.parametrize("where", ["user", "query"])
async def test_no_url_is_logged_by_a_client_that_nobody_chose(
    where: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx logs it at INFO: with a proxy, or a password in the URL, the guard itself has chosen httpx."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    caplog.set_level(logging.INFO)
    async with FakeServer(ScriptedMcp()) as server:
        url = server.url.replace("://", f"://u:{SECRET}@") if where == "user" else f"{server.url}?key={SECRET}"
        async with plain_host(url) as host:
            await host.call()
    assert [record for record in caplog.records if record.name == "httpx"]
    assert SECRET not in caplog.text


class Signing(httpx.Auth):
    """Sends a copy, so that what refuses it is no answer to the request itself."""

    def auth_flow(self, request: httpx.Request) -> Any:
        yield httpx.Request(request.method, request.url, headers=request.headers, content=request.content)


async def refusing_the_call(response: httpx.Response) -> None:
    if b"tools/call" in response.request.content:
        response.raise_for_status()


async def quoting_its_url(response: httpx.Response) -> None:
    try:
        await refusing_the_call(response)
    except httpx.HTTPStatusError as error:
        raise LookupError(f"no answer from {response.url}") from error


class RefusingCalls(LegacyMcp):
    async def accept(self, request: Request, reply: Reply) -> None:
        if request.rpc_method == "tools/call":
            await reply.status(500)
        else:
            await super().accept(request, reply)


@pytest.mark.parametrize("hook", [refusing_the_call, quoting_its_url])
@pytest.mark.parametrize("generation", ["legacy-sse", "host"])
async def test_an_unexpected_error_is_logged_with_its_frames_and_without_its_words(
    generation: Any, hook: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The words of a client's error are the URL: of a legacy session, or with the user's key."""
    caplog.set_level(logging.INFO, "mcp_client_guard")
    legacy = RefusingCalls(endpoint=f"/messages?{SECRET}&session=%s")
    client = httpx.AsyncClient(auth=Signing(), event_hooks={"response": [hook]})
    options: Any = {"http_client": client, "generation": generation, "policy": GuardPolicy(settle_after=0.1)}
    with anyio.fail_after(LIMIT):
        async with FakeServer(legacy if generation == "legacy-sse" else Streams(refuse(500))) as server, client:
            async with plain_host(f"{server.url}?{SECRET}", **options) as host:
                assert (await host.call()).doubt is not None
    assert "in refusing_the_call" in caplog.text
    assert "HTTPStatusError" in caplog.text
    assert SECRET not in caplog.text
