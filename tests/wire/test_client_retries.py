"""What a client or a hook of the user's does by itself: a transport that tries again, one connection, threads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any, Literal

import anyio
import anyio.to_thread
import httpx
import pytest

from mcp_client_guard import Guard, GuardPolicy, InDoubtCall, Reconciler
from mcp_client_guard.core.answers import CODE_NOT_EXECUTED
from mcp_client_guard.testing import FakeServer, How, Reply, Request, notification, result

from .hosts import LIMIT, Answer, PlainHost
from .test_reconciling import Cutting, connected

pytestmark = pytest.mark.anyio


class FailOver(httpx.AsyncHTTPTransport):
    """Tries a request twice, whatever became of it."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except httpx.TransportError:
            return await super().handle_async_request(request)


class Elsewhere(httpx.AsyncHTTPTransport):
    """Once the first attempt has failed, the second is refused a connection."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except httpx.ReadError:
            raise httpx.ConnectError("the other one is down") from None


class UntoldElsewhere(httpx.AsyncHTTPTransport):
    """The same, by the system's word; and it tells nothing of what it has sent."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions.pop("trace", None)
        try:
            return await super().handle_async_request(request)
        except httpx.ReadError:
            raise httpx.ConnectError("the other one is down") from ConnectionRefusedError()


class Untraced(httpx.AsyncHTTPTransport):
    """Tells nothing of what it sends; to it each loss is a connection that took too long, as to httpx-aiohttp."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions.pop("trace", None)
        try:
            response = await super().handle_async_request(request)
        except httpx.TransportError as error:
            raise httpx.ConnectTimeout("lost") from error
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = Lost(response.stream)
        return response


class Lost(httpx.AsyncByteStream):
    def __init__(self, body: httpx.AsyncByteStream) -> None:
        self.body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self.body:
                yield chunk
        except httpx.TransportError as error:
            raise httpx.ConnectTimeout("lost") from error

    async def aclose(self) -> None:
        await self.body.aclose()


class TokenLater(httpx.Auth):
    """Draws a 401 first; the request for the token may fail."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def auth_flow(self, request: httpx.Request) -> Any:
        response = yield request
        if response.status_code == 401:
            if self.fails:
                raise httpx.ConnectError("the token endpoint is down")
            request.headers["authorization"] = "token"
            yield request


class Locked(Cutting):
    """Calls need a token."""

    async def call(self, request: Request, reply: Reply) -> None:
        if request.headers.get("authorization"):
            await super().call(request, reply)
        else:
            await reply.status(401)


@asynccontextmanager
async def through(
    client: httpx.AsyncClient, mcp: Cutting, policy: GuardPolicy | None = None
) -> AsyncIterator[tuple[Guard, PlainHost]]:
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server, client:
            guard = Guard(server.url, http_client=client, policy=policy)
            async with connected(guard) as host:
                yield guard, host


@pytest.mark.parametrize("transport", [FailOver, Elsewhere, UntoldElsewhere, Untraced])
async def test_a_call_that_was_read_runs_once_and_is_in_doubt(transport: Callable[[], Any]) -> None:
    mcp = Cutting()
    async with through(httpx.AsyncClient(transport=transport()), mcp) as (_, host):
        answer = await host.call()
    assert answer.doubt is not None
    assert len(mcp.ran) == 1


@pytest.mark.parametrize("transport", [Untraced, httpx.AsyncHTTPTransport])
async def test_a_call_whose_answer_has_begun_was_read_whatever_ends_it(transport: Callable[[], Any]) -> None:
    class Begins(Cutting):
        async def call(self, request: Request, reply: Reply) -> None:
            self.ran.append(request.rpc_id)
            await reply.open_sse()
            await reply.event(notification("notifications/message", level="info", data="charging"))
            await reply.end(How.RST)

    mcp = Begins()
    async with through(httpx.AsyncClient(transport=transport()), mcp) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


class Signs(httpx.AsyncHTTPTransport):
    """Sends a copy of the body that it has signed, and tells an audit log, which is down, what was answered."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        headers = {**request.headers, "x-signature": sha256(body).hexdigest()}
        copy = httpx.Request(request.method, request.url, headers=headers, content=body)
        response = await super().handle_async_request(copy)
        if b"tools/call" in body:
            async with httpx.AsyncClient() as audit:
                await audit.post(f"{NOWHERE}/audit", content=b"charged")
        return response


class FallsBack(httpx.AsyncHTTPTransport):
    """Sends what it is given in a way that tells nothing, and, that failing, in httpx's, which is refused."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        trace = request.extensions.pop("trace")
        try:
            return await super().handle_async_request(request)
        except httpx.ReadError:
            request.url, request.extensions["trace"] = httpx.URL(NOWHERE), trace
            return await super().handle_async_request(request)


NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(("transport", "cuts"), [(Signs, 0), (FallsBack, 9)])
async def test_a_transport_of_the_callers_is_not_believed_that_no_connection_was_made(
    transport: Callable[[], Any], cuts: int
) -> None:
    mcp = Cutting(cuts)
    async with through(httpx.AsyncClient(transport=transport()), mcp) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


def led_astray(lead: Callable[[httpx.Request], None], **options: Any) -> httpx.AsyncClient:
    """A client whose first call goes elsewhere."""
    calls: list[httpx.Request] = []

    async def hook(request: httpx.Request) -> None:
        if b"tools/call" in request.content:
            calls.append(request)
            if len(calls) == 1:
                lead(request)

    return httpx.AsyncClient(event_hooks={"request": [hook]}, **options)


def to_nowhere(request: httpx.Request) -> None:
    request.url = httpx.URL(NOWHERE)


def to_no_tls(request: httpx.Request) -> None:
    request.url = request.url.copy_with(scheme="https")
    request.extensions["timeout"] = {"connect": 0.1}


def to_a_proxy(request: httpx.Request) -> None:
    request.url = httpx.URL("https://behind-a-proxy.example/mcp")


@pytest.mark.parametrize("lead", [to_nowhere, to_no_tls])
async def test_a_call_for_which_httpx_can_make_no_connection_is_sent_again(
    lead: Callable[[httpx.Request], None],
) -> None:
    mcp = Cutting(cuts=0)
    async with through(led_astray(lead), mcp) as (_, host):
        assert await host.call() == Answer("charged 1")


class Proxy(Cutting):
    """Makes no tunnels."""

    async def __call__(self, request: Request, reply: Reply) -> None:
        await (reply.status(403) if request.method == "CONNECT" else super().__call__(request, reply))


async def test_nor_is_one_in_doubt_that_a_proxy_makes_no_tunnel_for() -> None:
    with anyio.fail_after(LIMIT):
        async with FakeServer(Proxy(cuts=0)) as server:
            proxy = httpx.AsyncHTTPTransport(proxy=f"http://127.0.0.1:{server.port}")
            async with led_astray(to_a_proxy, mounts={"https://": proxy}) as client:
                async with connected(Guard(server.url, http_client=client)) as host:
                    assert await host.call() == Answer("charged 1")


async def test_nor_one_that_finds_the_pool_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller has its only connection wait for something else. Its transport is measured, and still httpx's."""
    entered, released = anyio.Event(), anyio.Event()
    send = httpx.AsyncHTTPTransport.handle_async_request

    async def measured(self: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        try:
            return await send(self, request)
        except httpx.PoolTimeout:
            released.set()
            raise

    async def slow(request: Request, reply: Reply) -> None:
        entered.set()
        await released.wait()
        await reply.status(204)

    def in_a_hurry(request: httpx.Request) -> None:
        request.extensions["timeout"] = {"pool": 0.01}

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", measured)
    client = led_astray(in_a_hurry, limits=httpx.Limits(max_connections=1))
    async with FakeServer(slow) as other, through(client, Cutting(cuts=0)) as (_, host):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.get, other.url)
            await entered.wait()
            assert await host.call() == Answer("charged 1")
    assert released.is_set()


async def test_an_auth_flow_sends_a_request_again_that_was_refused() -> None:
    mcp = Locked(cuts=0)
    async with through(httpx.AsyncClient(auth=TokenLater()), mcp) as (_, host):
        assert await host.call() == Answer("charged 1")


async def test_a_refused_call_whose_token_cannot_be_had_has_not_run() -> None:
    mcp = Locked(cuts=0)
    client = httpx.AsyncClient(auth=TokenLater(fails=True))
    async with through(client, mcp, GuardPolicy(max_attempts=1)) as (_, host):
        answer = await host.call()
    assert (answer.code, answer.data["http_status"]) == (CODE_NOT_EXECUTED, 401)


class Mounted(Cutting):
    """It is at `/mcp/`, as Starlette has it."""

    async def __call__(self, request: Request, reply: Reply) -> None:
        if request.target.startswith("/mcp/"):
            await super().__call__(request, reply)
        else:
            await reply.status(307, location="/mcp/")


class Renewing(httpx.Auth):
    """Signs the body, and asks for a token once it is refused."""

    def auth_flow(self, request: httpx.Request) -> Any:
        request.headers["x-signature"] = sha256(request.content).hexdigest()
        response = yield request
        if response.status_code == 401:
            yield httpx.Request("POST", request.url.join("/token"), content=b"grant")


class Forgetful(Locked):
    """Gives no token: what asks for one is cut."""

    async def __call__(self, request: Request, reply: Reply) -> None:
        if request.target == "/token":
            await reply.end(How.RST)
        else:
            await super().__call__(request, reply)


class ForgetfulMounted(Forgetful, Mounted):
    pass


@pytest.mark.parametrize("mcp", [Forgetful, ForgetfulMounted])
async def test_a_refused_call_whose_token_is_lost_on_its_way_has_not_run(mcp: Callable[..., Cutting]) -> None:
    client = httpx.AsyncClient(auth=Renewing())
    async with through(client, mcp(cuts=0), GuardPolicy(max_attempts=1)) as (_, host):
        answer = await host.call()
    assert (answer.code, answer.data["reason"]) == (CODE_NOT_EXECUTED, "HTTP 401, then ReadError")


class NoLogin(Exception):
    """Of no client's family, as those of the SDK's OAuth classes are."""


class Login(httpx.Auth):
    """Fails, in one way or another, before or after what it lets go out."""

    def __init__(self, error: Exception, *, after: bool) -> None:
        self.error: Exception | None = error
        self.after = after

    def auth_flow(self, request: httpx.Request) -> Any:
        if self.error is not None and not self.after:
            raise self.error
        request.headers["authorization"] = "token" if self.error is None else "old"
        yield request
        if self.error is not None:
            raise self.error


class Expiring(Cutting):
    """Refuses all that comes with an old token, and takes down what it refused."""

    def __init__(self, status: int = 401) -> None:
        super().__init__(cuts=0)
        self.status = status
        self.refused: list[str | None] = []

    async def __call__(self, request: Request, reply: Reply) -> None:
        if request.header("authorization") == "old":
            self.refused.append(request.rpc_method)
            await reply.status(self.status)
        else:
            await super().__call__(request, reply)


TOKEN_URL = httpx.Request("POST", "http://login.example/token")
TOKEN_REFUSED = httpx.HTTPStatusError("refused", request=TOKEN_URL, response=httpx.Response(400))
TOKEN_TIMEOUT = httpx.ReadTimeout("slow", request=TOKEN_URL)


@pytest.mark.parametrize("broken", [NoLogin(), TOKEN_REFUSED], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_call_whose_login_fails_has_not_run_by_the_servers_word(
    status: int, broken: Exception
) -> None:
    mcp, auth = Expiring(status), Login(broken, after=True)
    auth.error = None
    async with through(httpx.AsyncClient(auth=auth), mcp) as (_, host):
        assert await host.call() == Answer("charged 1")
        auth.error = broken
        refused = await host.call(n=2)
        assert (refused.code, refused.data["by"], refused.data["http_status"]) == (
            CODE_NOT_EXECUTED,
            "server",
            status,
        )
        assert mcp.refused == ["tools/call"], "it is not asked to log in for anything else"
        auth.error = None
        assert await host.call(n=2) == Answer("charged 2"), "nothing is held against its repeat"


@pytest.mark.parametrize("error", [NoLogin(), FileNotFoundError(), TOKEN_TIMEOUT], ids=lambda e: type(e).__name__)
async def test_what_an_auth_flow_raises_after_a_refusal_puts_no_call_in_doubt(error: Exception) -> None:
    mcp, auth = Expiring(), Login(error, after=True)
    auth.error = None
    async with through(httpx.AsyncClient(auth=auth), mcp, GuardPolicy(max_attempts=1)) as (_, host):
        assert await host.call() == Answer("charged 1")
        auth.error = error
        assert (await host.call(n=2)).code == CODE_NOT_EXECUTED
        auth.error = None
        assert await host.call(n=2) == Answer("charged 2")


async def test_an_auth_flow_that_fails_after_the_call_ran_leaves_it_in_doubt() -> None:
    mcp, auth = Cutting(cuts=0), Login(NoLogin(), after=True)
    broken, auth.error = auth.error, None
    async with through(httpx.AsyncClient(auth=auth), mcp) as (_, host):
        auth.error = broken
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


async def test_a_call_that_the_login_fails_before_it_lets_go_of_has_not_run() -> None:
    mcp, auth = Cutting(cuts=0), Login(NoLogin(), after=False)
    broken, auth.error = auth.error, None
    async with through(httpx.AsyncClient(auth=auth), mcp) as (_, host):
        assert await host.call() == Answer("charged 1")
        auth.error = broken
        answer = await host.call(n=2)
        assert (answer.code, answer.data["by"]) == (CODE_NOT_EXECUTED, "wire")
        auth.error = None
        assert await host.call(n=2) == Answer("charged 2")


async def test_a_call_whose_token_cannot_be_asked_for_has_not_run() -> None:
    class TokenFirst(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            if b"tools/call" in request.content:
                yield httpx.Request("POST", "http://127.0.0.1:1/token", content=b"grant")
            yield request

    mcp = Cutting(cuts=0)
    async with through(httpx.AsyncClient(auth=TokenFirst()), mcp, GuardPolicy(max_attempts=1)) as (_, host):
        assert (await host.call()).data["by"] == "wire"
    assert mcp.ran == []


async def test_a_hook_that_fails_over_a_refusal_of_the_call_puts_it_in_doubt() -> None:
    """It may have sent a copy with another token before."""

    async def hook(response: httpx.Response) -> None:
        if response.status_code == 401:
            raise NoLogin

    mcp = Locked(cuts=0)
    async with through(httpx.AsyncClient(event_hooks={"response": [hook]}), mcp) as (_, host):
        assert (await host.call()).doubt is not None


class Renews(httpx.AsyncHTTPTransport):
    """Once a request is refused, it sends a copy with another token."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if response.status_code not in (401, 403):
            return response
        await response.aclose()
        headers = {**request.headers, "authorization": "token"}
        copy = httpx.Request(request.method, request.url, headers=headers, content=request.content)
        return await super().handle_async_request(copy)


class Refusing(Locked):
    def __init__(self, cuts: int, status: int) -> None:
        super().__init__(cuts)
        self.status = status

    async def call(self, request: Request, reply: Reply) -> None:
        if request.headers.get("authorization"):
            await super().call(request, reply)
        else:
            await reply.status(self.status)


@pytest.mark.parametrize("auth", [None, httpx.Auth()], ids=["no login", "a login"])
@pytest.mark.parametrize("cuts", [0, 9])
@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_says_nothing_of_what_a_transport_has_sent_since(
    status: int, cuts: int, auth: httpx.Auth | None
) -> None:
    async def hook(response: httpx.Response) -> None:
        if response.status_code == 200 and b"tools/call" in response.request.content:
            raise NoLogin

    mcp = Refusing(cuts, status)
    client = httpx.AsyncClient(transport=Renews(), auth=auth, event_hooks={"response": [hook]})
    async with through(client, mcp) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


async def test_a_login_is_seen_at_work_under_a_send_that_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    send = httpx.AsyncClient.send

    async def measured(self: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
        return await send(self, request, **options)

    monkeypatch.setattr(httpx.AsyncClient, "send", measured)
    mcp, auth = Expiring(), Login(NoLogin(), after=True)
    broken, auth.error = auth.error, None
    async with through(httpx.AsyncClient(auth=auth), mcp) as (_, host):
        assert await host.call() == Answer("charged 1")
        auth.error = broken
        assert (await host.call(n=2)).data["http_status"] == 401


class SendingItsOwnWay(httpx.AsyncClient):
    """Takes no more than it must, and sends a copy with the token that a 401 has brought."""

    async def send(  # type: ignore[override]
        self, request: httpx.Request, *, stream: bool, follow_redirects: bool
    ) -> httpx.Response:
        response = await super().send(request, stream=stream, follow_redirects=follow_redirects)
        if response.status_code == 401:
            headers = {**request.headers, "authorization": "token"}
            copy = httpx.Request(request.method, request.url, headers=headers, content=request.content)
            await super().send(copy)
            raise NoLogin
        return response


async def test_of_what_a_client_sends_its_own_way_a_refusal_says_nothing() -> None:
    mcp = Locked(cuts=0)
    async with through(SendingItsOwnWay(auth=httpx.Auth()), mcp) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


class Persistent(httpx.Auth):
    """Sends a call that was refused once more, with a token: as it is, or as a copy. Then it may fail."""

    def __init__(self, error: Exception | None = None, *, copies: bool, to: str = "") -> None:
        self.error = error
        self.copies = copies
        self.to = to

    def auth_flow(self, request: httpx.Request) -> Any:
        response = yield request
        if response.status_code == 401:
            request.headers["authorization"] = "token"
            url = request.url.join(self.to)
            copy = httpx.Request(request.method, url, headers=request.headers, content=request.content)
            request.url = url
            yield copy if self.copies else request
            if self.error is not None:
                raise self.error


@pytest.mark.parametrize("transport", [Untraced, httpx.AsyncHTTPTransport])
@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("error", [NoLogin(), TOKEN_TIMEOUT], ids=lambda e: type(e).__name__)
async def test_a_refusal_says_nothing_of_what_a_login_has_sent_since(
    error: Exception, copies: bool, transport: Callable[[], Any]
) -> None:
    mcp, auth = Locked(cuts=0), Persistent(error, copies=copies)
    async with through(httpx.AsyncClient(auth=auth, transport=transport()), mcp) as (_, host):
        assert (await host.call()).doubt is not None
        assert (await host.call()).doubt is not None, "its repeat is refused"
    assert len(mcp.ran) == 1


async def test_nor_of_the_copy_that_a_hook_fails_over() -> None:
    async def hook(response: httpx.Response) -> None:
        if response.status_code == 200 and b"tools/call" in response.request.content:
            raise NoLogin

    mcp, auth = Locked(cuts=0), Persistent(copies=True)
    async with through(httpx.AsyncClient(auth=auth, event_hooks={"response": [hook]}), mcp) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


@pytest.mark.parametrize("copies", [True, False])
async def test_that_no_connection_was_made_is_believed_of_what_tells_of_it_and_so_of_no_copy(copies: bool) -> None:
    mcp, auth = Locked(cuts=0), Persistent(copies=copies, to=NOWHERE)
    async with through(httpx.AsyncClient(auth=auth), mcp, GuardPolicy(max_attempts=1)) as (_, host):
        assert ((await host.call()).doubt is not None) == copies


class Twice(httpx.Auth):
    """Sends a call with a token, then once more without; then it fails."""

    def auth_flow(self, request: httpx.Request) -> Any:
        request.headers["authorization"] = "token"
        yield request
        if b"tools/call" in request.content:
            del request.headers["authorization"]
            (yield request).raise_for_status()


@pytest.mark.parametrize("transport", [Untraced, httpx.AsyncHTTPTransport])
async def test_nor_does_a_refusal_say_anything_of_what_was_sent_before(transport: Callable[[], Any]) -> None:
    mcp = Locked(cuts=0)
    async with through(httpx.AsyncClient(auth=Twice(), transport=transport()), mcp) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


class Copying(httpx.Auth):
    """Signs, in the URL, a copy of what it is given; and may look at what that has come to."""

    def __init__(self, then: Exception | None = None) -> None:
        self.then = then

    def auth_flow(self, request: httpx.Request) -> Any:
        signed = request.url.copy_with(query=b"signature=1")
        headers = {k: v for k, v in request.headers.items() if k != "host"}
        yield httpx.Request(request.method, signed, headers=headers, content=request.content)
        if self.then is not None and b"tools/call" in request.content:
            raise self.then


@pytest.mark.parametrize("then", [None, NoLogin(), httpx.ConnectError("audit")], ids=lambda e: type(e).__name__)
async def test_a_call_that_left_as_a_copy_runs_once_and_is_in_doubt(then: Exception | None) -> None:
    mcp = Cutting(cuts=0 if then else 9)
    async with through(httpx.AsyncClient(auth=Copying(then)), mcp) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


@pytest.mark.parametrize("transport", [Untraced, httpx.AsyncHTTPTransport])
@pytest.mark.parametrize("error", [NoLogin(), ConnectionRefusedError()], ids=lambda e: type(e).__name__)
async def test_a_call_whose_answer_a_hook_fails_over_runs_once_and_is_in_doubt(
    error: Exception, transport: Callable[[], Any]
) -> None:
    async def hook(response: httpx.Response) -> None:
        if b"tools/call" in response.request.content:
            try:
                raise error
            except ConnectionRefusedError:  # as of a collector that is down
                request = httpx.Request("POST", "http://audit.example")
                raise httpx.ConnectError("down", request=request) from error

    mcp = Cutting(cuts=0)
    client = httpx.AsyncClient(transport=transport(), event_hooks={"response": [hook]})
    async with through(client, mcp) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


AUDIT = "http://audit.example"
ASKED: dict[str, Callable[[httpx.Request, bytes], httpx.Request | None]] = {
    "by hand": lambda call, body: None,
    "of a body": lambda call, body: httpx.Request("POST", AUDIT, content=b"answered"),
    "of the same body": lambda call, body: httpx.Request("POST", AUDIT, content=body),
    "of an upload": lambda call, body: httpx.Request("POST", AUDIT, files={"log": b"answered"}),
    "of the call itself": lambda call, body: call,
}


@pytest.mark.parametrize(("how", "mcp"), [({"transport": Untraced()}, Mounted), ({"auth": Copying()}, Cutting)])
@pytest.mark.parametrize("asked", ASKED)
async def test_a_connection_that_is_refused_to_a_hook_says_nothing_of_the_call(
    asked: str, how: Any, mcp: Callable[..., Cutting]
) -> None:
    async def hook(response: httpx.Response) -> None:
        body = response.request.content
        if response.status_code == 200 and b"tools/call" in body:
            request = ASKED[asked](response.request, body)
            raise httpx.ConnectError("down", request=request) from ConnectionRefusedError()

    server = mcp(cuts=0)
    async with through(httpx.AsyncClient(**how, event_hooks={"response": [hook]}), server) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(server.ran) == 1


async def test_a_hook_that_fails_is_asked_once_and_its_call_is_in_doubt() -> None:
    """It may have sent the request itself."""
    asked: list[str] = []

    async def hook(request: httpx.Request) -> None:
        if b"tools/call" in request.content:
            asked.append(request.method)
            raise NoLogin

    mcp = Cutting(cuts=0)
    async with through(httpx.AsyncClient(event_hooks={"request": [hook]}), mcp) as (_, host):
        answer = await host.call()
    assert answer.doubt is not None
    assert (len(asked), mcp.ran) == (1, [])


class Untold(httpx.AsyncHTTPTransport):
    """Not httpx's own: what it does beside that is not known, and it tells nothing of it."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions.pop("trace")
        response = await super().handle_async_request(request)
        if b"tools/call" in request.content:
            await response.aread()
            raise NoLogin
        return response


async def test_of_a_transport_that_is_not_known_to_trace_nothing_is_believed() -> None:
    mcp = Cutting(cuts=0)
    async with through(httpx.AsyncClient(transport=Untold()), mcp) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


# --- what cannot be sent ------------------------------------------------------------------------------------


async def test_a_header_that_cannot_be_sent_is_told_by_its_name() -> None:
    """The line break at the end of a file that holds a token."""
    mcp = Cutting(cuts=0)
    client = httpx.AsyncClient()
    async with through(client, mcp) as (_, host):
        assert await host.call() == Answer("charged 1")
        client.headers["authorization"] = "Bearer secret\n"
        answer = await host.call(n=2)
        assert (answer.code, answer.data["by"]) == (CODE_NOT_EXECUTED, "wire")
        assert answer.data["reason"] == "a header cannot be sent (authorization)"
        client.headers["authorization"] = "Bearer secret"
        assert await host.call(n=2) == Answer("charged 2")


@pytest.mark.parametrize("field", ["x\n", "x\ud800"])
async def test_a_server_that_names_what_cannot_be_sent_back_puts_no_call_in_doubt(field: str) -> None:
    """Its protocol version comes back in a header of each request."""

    async def initialize(request: Request, reply: Reply) -> None:
        told = {"protocolVersion": field, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
        await reply.json(result(request.rpc_id, told))

    mcp = Cutting(cuts=0, initialize=initialize)
    for_ever = GuardPolicy(max_attempts=1000)
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server, connected(Guard(server.url, policy=for_ever)) as host:
            answer = await host.call()
    assert (answer.code, answer.data["by"]) == (CODE_NOT_EXECUTED, "wire")
    assert mcp.ran == []


async def test_a_token_that_cannot_be_sent_does_not_unsay_what_was() -> None:
    """The auth flow sends a call a second time, after an answer that was no refusal."""

    class Again(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            yield request
            if b"tools/call" in request.content:
                request.headers["authorization"] = "token\n"
                yield request

    mcp = Cutting(cuts=0)
    async with through(httpx.AsyncClient(auth=Again()), mcp) as (_, host):
        assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


async def test_a_client_of_one_connection_cannot_carry_a_legacy_session() -> None:
    def guard(most: int, generation: Literal["auto", "legacy-sse"]) -> Guard:
        client = httpx.AsyncClient(limits=httpx.Limits(max_connections=most))
        return Guard("https://example.com/mcp", http_client=client, generation=generation)

    with pytest.raises(ValueError, match="one connection"):
        guard(1, "legacy-sse")
    guard(2, "legacy-sse")
    guard(1, "auto")


async def test_a_hook_in_a_thread_that_is_abandoned_does_not_hold_up_closing() -> None:
    """As docs/outcomes.md has it be written: threads cannot be stopped."""
    released = threading.Event()

    async def look_up(call: InDoubtCall, server: Reconciler) -> None:
        await anyio.to_thread.run_sync(released.wait, abandon_on_cancel=True)

    with anyio.fail_after(LIMIT):
        async with FakeServer(Cutting()) as server:
            guard = Guard(server.url, reconcile=look_up, policy=GuardPolicy(reconcile_timeout=0.05))
            async with connected(guard) as host:
                assert (await host.call()).doubt is not None
    released.set()
