"""`mcp-guard call`: the result on standard output, all else on standard error, and an exit code that tells."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import SocketAttribute, SocketStream

from mcp_client_guard import (
    CallInDoubt,
    CallSettled,
    Generation,
    GenerationChosen,
    Outcome,
    SQLiteStore,
    Unreachable,
)
from mcp_client_guard._connection import Connection
from mcp_client_guard.cli import main
from mcp_client_guard.cli._call import Progress, _show_event, _why_no_session
from mcp_client_guard.cli._plain_host import PlainHost
from mcp_client_guard.core.model import JSON
from mcp_client_guard.testing import (
    FakeServer,
    Handler,
    How,
    Reply,
    Request,
    ScriptedMcp,
    error,
    notification,
    progress_of,
    result,
    tool_result,
)

from .conftest import Ran, guard_command_without_stdout

pytestmark = pytest.mark.anyio

Command = Callable[..., Awaitable[Ran]]


class CutOnce(ScriptedMcp):
    """Sends progress 1, is reset, and resumes well."""

    async def call(self, request: Request, reply: Reply) -> None:
        self.log = [("a1", progress_of(request, 1)), ("a2", tool_result(request.rpc_id, "42"))]
        await reply.open_sse()
        await reply.event("", id="a0", retry=20)
        await reply.event(self.log[0][1], id="a1")
        await reply.end(How.RST)

    async def resume(self, request: Request, reply: Reply) -> None:
        await reply.open_sse(session=self.session)
        for event_id, message in self.log:
            if event_id > str(request.last_event_id):
                await reply.event(message, id=event_id)
        await reply.finish()


async def answer_error(request: Request, reply: Reply) -> None:
    await reply.json(error(request.rpc_id, -32602, "Unknown tool: nothing"))


async def answer_tool_error(request: Request, reply: Reply) -> None:
    await reply.json(tool_result(request.rpc_id, "no such account", is_error=True))


async def drop(request: Request, reply: Reply) -> None:
    await reply.end(How.RST)


async def never(request: Request, reply: Reply) -> None:
    await reply.end(How.STALL)


async def test_prints_the_result_and_the_resume_that_was_proven(mcp_guard: Command) -> None:
    async with FakeServer(CutOnce()) as server:
        ran = await mcp_guard("call", server.url, "add", '{"a": 1}')
    assert ran.code == 0
    assert json.loads(ran.out)["content"][0]["text"] == "42"
    assert "Connected" in ran.err
    assert 'notifications/progress {"progressToken": 1, "progress": 1}' in ran.err
    assert "PROVEN" in ran.err
    assert "outcome=completed" in ran.err
    assert server.sent("POST", "tools/call")[0].json["params"]["arguments"] == {"a": 1}


async def test_arguments_may_be_left_out(mcp_guard: Command) -> None:
    async with FakeServer(ScriptedMcp()) as server:
        assert (await mcp_guard("call", server.url, "add")).code == 0
    assert server.sent("POST", "tools/call")[0].json["params"]["arguments"] == {}


async def test_headers_go_with_every_request(mcp_guard: Command) -> None:
    async with FakeServer(ScriptedMcp()) as server:
        headers = ["--header", "Authorization: Bearer t:1", "--header", "X-Empty:"]
        assert (await mcp_guard("call", server.url, "add", *headers)).code == 0
    for request in server.requests:
        assert request.header("authorization") == "Bearer t:1"
        assert request.header("x-empty") == ""


async def test_a_header_can_come_from_the_environment_where_nobody_sees_it(mcp_guard: Command) -> None:
    async with FakeServer(ScriptedMcp()) as server:
        headers = [
            "--header",
            "X-Mine: 1",
            "--header-env",
            "Authorization=TOKEN",
            "--header-env",
            "X-Empty=NOTHING",
        ]
        ran = await mcp_guard("call", server.url, "add", *headers, TOKEN="Bearer t:1=", NOTHING="")
        assert ran.code == 0
    for request in server.requests:
        assert [request.header(n) for n in ("x-mine", "authorization", "x-empty")] == ["1", "Bearer t:1=", ""]


def test_a_header_from_the_environment_that_cannot_be_one_is_told_without_its_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "Bearer secret\nmore")
    for given, said in (
        ("Authorization=TOKEN", "name:value"),
        ("A=NO_SUCH_ONE", "NO_SUCH_ONE"),
        ("A", "NAME=ENVVAR"),
    ):
        with pytest.raises(SystemExit):
            main(["call", "http://x/mcp", "add", "--header-env", given])
        told = capsys.readouterr().err
        assert said in told
        assert "secret" not in told


async def test_a_tool_error_is_exit_1_with_the_result(mcp_guard: Command) -> None:
    async with FakeServer(ScriptedMcp(call=answer_tool_error)) as server:
        ran = await mcp_guard("call", server.url, "add")
    assert ran.code == 1
    assert json.loads(ran.out)["isError"] is True


async def test_a_call_in_doubt_is_exit_3_and_was_made_once(mcp_guard: Command) -> None:
    async with FakeServer(ScriptedMcp(call=drop)) as server:
        ran = await mcp_guard("call", server.url, "charge")
    assert ran.code == 3
    assert "in doubt: The tool call 'charge' may or may not have run" in ran.err
    assert len(server.sent("POST", "tools/call")) == 1


async def test_the_same_command_after_a_call_in_doubt_sends_nothing(mcp_guard: Command, tmp_path: Path) -> None:
    """People repeat commands, too; the store knows of the call of the process before."""
    store = ["--store", str(tmp_path / "agent.db")]
    async with FakeServer(ScriptedMcp(call=drop)) as server:
        first = await mcp_guard("call", server.url, "charge", '{"cents": 1}', *store)
        server.handler = ScriptedMcp()
        again = await mcp_guard("call", server.url, "charge", '{"cents": 1}', *store)
        other = await mcp_guard("call", server.url, "charge", '{"cents": 2}', *store)
    assert (first.code, again.code, other.code) == (3, 3, 0)
    assert "RepeatRefused tool=charge" in again.err
    doubt, told_again = CallInDoubt.find(json.loads(first.out)), CallInDoubt.find(json.loads(again.out))
    assert doubt is not None
    assert told_again is not None
    assert (doubt.call_key, doubt.reason) == (told_again.call_key, told_again.reason)
    sent = [r.json["params"]["arguments"]["cents"] for r in server.sent("POST", "tools/call")]
    assert sent == [1, 2]


async def test_a_session_that_is_gone_is_told_and_costs_nothing(mcp_guard: Command) -> None:
    async def forget(request: Request, reply: Reply) -> None:
        mcp.session, mcp.on_call = "session-B", mcp.call
        await reply.status(404)

    mcp = ScriptedMcp(call=forget)
    async with FakeServer(mcp) as server:
        ran = await mcp_guard("call", server.url, "charge")
    assert ran.code == 0
    assert json.loads(ran.out)["content"][0]["text"] == "charge"
    told = [line.split()[0] for line in ran.err.splitlines()]
    assert [kind for kind in told if kind in ("SessionLost", "Connected", "Reinitialized")] == [
        "Connected",
        "SessionLost",
        "Connected",
        "Reinitialized",
    ]
    assert "outcome=not_executed" in ran.err
    assert [r.session_id for r in server.sent("POST", "tools/call")] == ["session-A", "session-B"]


def test_an_answer_that_comes_by_an_event_is_not_printed_twice(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "private"}]}}
    _show_event(CallSettled(1, "tools/call", "charge", "key", Outcome.RECOVERED, "it came late", answer))
    told = capsys.readouterr().err
    assert told.endswith('call_key=key outcome=recovered reason="it came late"\n')
    assert "private" not in told


async def test_a_deadline_makes_the_call_doubtful(mcp_guard: Command) -> None:
    async with FakeServer(ScriptedMcp(call=never)) as server:
        ran = await mcp_guard("call", server.url, "charge", "--deadline", "2")
    assert ran.code == 3
    assert "call_deadline" in ran.err


async def test_an_error_is_exit_1_in_one_line(mcp_guard: Command) -> None:
    """It is the server's answer, which says nothing of what has run."""
    async with FakeServer(ScriptedMcp(call=answer_error)) as server:
        ran = await mcp_guard("call", server.url, "nothing")
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err.splitlines()[-1] == "mcp-guard call: error -32602: Unknown tool: nothing"


LIES = "no\x1b[2K\r\u009b1A\u202e\nmcp-guard call: not executed: HTTP 401"
PLAIN = r"no\x1b[2K\r\x9b1A\u202e\nmcp-guard call: not executed: HTTP 401"


async def refuse_with_lies(request: Request, reply: Reply) -> None:
    await reply.json(error(request.rpc_id, -32603, LIES))


async def lie_in_notifications(request: Request, reply: Reply) -> None:
    await reply.open_sse()
    await reply.event(notification("notifications/message", level="info", data=LIES))
    await reply.event(notification(LIES))
    await reply.event(error(request.rpc_id, -32603, LIES))
    await reply.finish()


@pytest.mark.parametrize(
    ("mcp", "code", "said"),
    [
        (ScriptedMcp(call=refuse_with_lies), 1, f"error -32603: {PLAIN}"),
        (ScriptedMcp(call=lie_in_notifications), 1, f"error -32603: {PLAIN}"),
        (ScriptedMcp(initialize=refuse_with_lies), 4, f"not executed: no session: {PLAIN}"),
    ],
    ids=["error", "notifications", "no session"],
)
async def test_what_a_server_says_cannot_command_the_terminal(
    mcp_guard: Command, mcp: ScriptedMcp, code: int, said: str
) -> None:
    async with FakeServer(mcp) as server:
        ran = await mcp_guard("call", server.url, "charge", "--generation", "sessions")
    *before, last = ran.err.splitlines()
    assert (ran.code, last) == (code, f"mcp-guard call: {said}")
    assert last.isprintable()
    assert all(line.isprintable() and not line.startswith("mcp-guard call") for line in before)


async def test_a_result_cannot_command_the_terminal_and_is_the_same_json(mcp_guard: Command) -> None:
    said = f"{LIES} añadido 😀 \x7f\U000e0041"
    async with FakeServer(ScriptedMcp(call=answering(said))) as server:
        ran = await mcp_guard("call", server.url, "charge")
    assert json.loads(ran.out)["content"][0]["text"] == said
    assert all(line.isprintable() for line in ran.out.split("\n"))
    assert "añadido 😀" in ran.out


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (413, 4, "error -31902: The tool call 'charge' was not executed: HTTP 413"),
        (422, 1, "error -31903: The server answered HTTP 422"),
    ],
)
async def test_a_status_is_not_executed_only_where_it_says_so(
    mcp_guard: Command, status: int, code: int, said: str
) -> None:
    async def refuse(request: Request, reply: Reply) -> None:
        await reply.status(status)

    async with FakeServer(ScriptedMcp(call=refuse)) as server:
        ran = await mcp_guard("call", server.url, "charge")
    assert (ran.code, ran.err.splitlines()[-1]) == (code, f"mcp-guard call: {said}")


async def test_a_web_page_in_the_place_of_an_endpoint_is_told_without_contradiction(mcp_guard: Command) -> None:
    async def page(request: Request, reply: Reply) -> None:
        await reply.play(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>")

    async with FakeServer(page) as server:
        ran = await mcp_guard("call", server.url, "charge")
    assert ran.code == 4
    told = ran.err.splitlines()[-1]
    assert told.startswith("mcp-guard call: not executed: no session: The request 'initialize' had no answer: ")
    assert "this may not be the URL of an MCP endpoint" in told
    assert "may or may not" not in ran.err


async def test_what_is_in_doubt_behind_the_server_is_in_doubt(mcp_guard: Command) -> None:
    """A server that passes calls on through a guard, with `in_doubt_as="error"`."""

    async def pass_on(request: Request, reply: Reply) -> None:
        answer = error(request.rpc_id, -31901, "may or may not have run")
        answer["error"]["data"] = {"io.github.mcp-client-guard/in-doubt": {"outcome": "in_doubt"}}
        await reply.json(answer)

    async with FakeServer(ScriptedMcp(call=pass_on)) as server:
        assert (await mcp_guard("call", server.url, "charge")).code == 3


async def test_refused_credentials_are_not_executed(mcp_guard: Command) -> None:
    async def refuse(request: Request, reply: Reply) -> None:
        await reply.status(401)

    async with FakeServer(ScriptedMcp(initialize=refuse)) as server:
        ran = await mcp_guard("call", server.url, "add")
    assert ran.code == 4
    assert "not executed" in ran.err
    assert "401" in ran.err


@pytest.mark.parametrize("module", ["mcp_client_guard", "mcp_client_guard.cli"])
async def test_the_package_can_be_run_as_the_command(module: str) -> None:
    ran = await anyio.run_process([sys.executable, "-m", module, "call", "--help"])
    assert ran.stdout.decode().startswith("usage: mcp-guard call ")


async def test_no_server_is_not_executed(mcp_guard: Command) -> None:
    async with FakeServer(ScriptedMcp()) as server:
        server.refuse()
        ran = await mcp_guard("call", server.url, "add", "--connect-timeout", "1")
    assert ran.code == 4
    assert ran.err.startswith("Unreachable stream=")
    told = ran.err.splitlines()[-1]
    assert told.startswith(
        "mcp-guard call: not executed: no session within 1 s (nothing could be sent: ConnectError"
    )


async def test_why_there_is_no_tls_is_told_before_the_guard_gives_up(mcp_guard: Command) -> None:
    async def speak_plainly(stream: SocketStream) -> None:
        async with stream:
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, speak_plainly)
            url = f"https://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/mcp"
            ran = await mcp_guard("call", url, "add", "--connect-timeout", "2")
            tasks.cancel_scope.cancel()
    assert ran.code == 4
    assert "no session within 2 s (nothing could be sent: ConnectError: [SSL" in ran.err.splitlines()[-1]


async def test_a_connection_that_is_never_made_is_told(mcp_guard: Command) -> None:
    """Nothing has failed by then: a TLS handshake, too, waits longer than `--connect-timeout`."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/mcp"
        ran = await mcp_guard("call", url, "add", "--connect-timeout", "1")
    assert ran.code == 4
    assert "no session within 1 s (cannot connect to 127.0.0.1:" in ran.err.splitlines()[-1]


async def test_a_server_that_says_nothing_is_not_executed(mcp_guard: Command) -> None:
    async with FakeServer(ScriptedMcp(initialize=never)) as server:
        ran = await mcp_guard("call", server.url, "add", "--connect-timeout", "1")
    assert ran.code == 4
    assert ran.err.splitlines()[-1] == "mcp-guard call: not executed: no session within 1 s"


async def test_a_server_that_came_late_and_says_nothing_is_not_said_to_be_away() -> None:
    progress = Progress()
    progress.see(Unreachable("1", "ConnectError", 1))
    progress.see(GenerationChosen(Generation.STREAMABLE_HTTP, "whatever else is told"))
    async with FakeServer(never) as server:
        assert await _why_no_session(server.url, progress) == "earlier: nothing could be sent: ConnectError"
        server.refuse()
        assert await _why_no_session(server.url, progress) == "nothing could be sent: ConnectError"


async def test_the_ledger_is_kept_in_the_store(mcp_guard: Command, tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with FakeServer(ScriptedMcp()) as server:
        ran = await mcp_guard(
            "call", server.url, "add", "--store", str(path), "--key", "orders", "--generation", "sessions"
        )
    assert ran.code == 0
    rows = await SQLiteStore(path).calls("orders")
    assert [(row.method, row.outcome) for row in rows] == [
        ("initialize", Outcome.COMPLETED),
        ("tools/call", Outcome.COMPLETED),
    ]


async def test_a_file_that_is_no_store_is_refused_and_left_alone(mcp_guard: Command, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a store")
    path.chmod(0o600)
    async with FakeServer(ScriptedMcp()) as server:
        ran = await mcp_guard("call", server.url, "add", "--store", str(path))
    assert ran.code == 4
    assert "not executed: StoreDamaged" in ran.err
    assert "Traceback" not in ran.err
    assert path.read_text() == "not a store"
    assert server.requests == []


# The exit code is about the call, whatever becomes of the command.


def answering(text: str) -> Handler:
    async def answer(request: Request, reply: Reply) -> None:
        await reply.json(tool_result(request.rpc_id, text))

    return answer


async def tell_first(request: Request, reply: Reply) -> None:
    await reply.open_sse()
    await reply.event(notification("notifications/message", level="info", data="hello"))
    await reply.event(tool_result(request.rpc_id, "42"))
    await reply.finish()


@pytest.mark.parametrize(
    ("text", "encoding"), [("cut in two: \ud83d", "utf-8"), ("5 € → 😀", "latin-1"), ("añadido 😀", "ascii")]
)
async def test_a_result_that_standard_output_has_no_characters_for_is_escaped(
    mcp_guard: Command, text: str, encoding: str
) -> None:
    async with FakeServer(ScriptedMcp(call=answering(text))) as server:
        ran = await mcp_guard("call", server.url, "charge", PYTHONIOENCODING=encoding)
    assert (ran.code, json.loads(ran.out)["content"][0]["text"]) == (0, text)


@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_nobody_needs_to_read_the_result(mcp_guard: Command, left_pipe: int, unbuffered: str) -> None:
    async with FakeServer(ScriptedMcp()) as server:
        ran = await mcp_guard("call", server.url, "add", stdout=left_pipe, PYTHONUNBUFFERED=unbuffered)
    assert ran.code == 0
    assert ran.err.splitlines()[-1].startswith("CallSettled")


@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_a_result_that_cannot_be_written_is_said_to_be_lost(
    mcp_guard: Command, full: int, unbuffered: str
) -> None:
    async with FakeServer(ScriptedMcp()) as server:
        ran = await mcp_guard("call", server.url, "add", stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert ran.code == 0
    assert ran.err.splitlines()[-1].startswith("mcp-guard call: the result could not be written: OSError")


@pytest.mark.parametrize(("call", "code"), [(tell_first, 0), (answer_tool_error, 1), (drop, 3)])
async def test_a_result_is_said_to_be_lost_where_standard_output_is_closed(call: Handler, code: int) -> None:
    async with FakeServer(ScriptedMcp(call=call)) as server:
        ran = await guard_command_without_stdout("call", server.url, "add")
    assert ran.code == code
    lost = "mcp-guard call: the result could not be written: OSError: standard output is closed"
    assert lost in ran.err.splitlines()


@pytest.mark.parametrize(("call", "code"), [(tell_first, 0), (answer_error, 1), (drop, 3)])
async def test_nobody_needs_to_read_standard_error(
    mcp_guard: Command, left_pipe: int, call: Handler, code: int
) -> None:
    async with FakeServer(ScriptedMcp(call=call)) as server:
        ran = await mcp_guard("call", server.url, "add", stderr=left_pipe)
    assert (ran.code, bool(ran.out)) == (code, code != 1)


async def broken(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("open", 4, "not executed: ZeroDivisionError: a bug"),
        ("call", 3, "ZeroDivisionError: a bug: the call may or may not have run"),
    ],
)
async def test_a_bug_of_the_command_is_no_word_of_the_tool(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str, code: int, said: str
) -> None:
    monkeypatch.setattr(PlainHost, where, broken)
    async with FakeServer(ScriptedMcp()) as server:
        assert await anyio.to_thread.run_sync(main, ["call", server.url, "charge"]) == code
    told = capsys.readouterr().err
    assert told.splitlines()[-1] == f"mcp-guard call: {said}"
    assert "Traceback" in told, "so that it can be reported"


async def test_an_answer_is_told_whatever_comes_after_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave = Connection.__aexit__

    async def leave_badly(*arguments: Any) -> None:
        await leave(*arguments)
        await broken()

    monkeypatch.setattr(Connection, "__aexit__", leave_badly)
    async with FakeServer(ScriptedMcp()) as server:
        assert await anyio.to_thread.run_sync(main, ["call", server.url, "charge"]) == 0
    ran = capsys.readouterr()
    assert json.loads(ran.out)["content"]
    assert ran.err.splitlines()[-1] == "mcp-guard call: after the answer: ZeroDivisionError: a bug"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["http://host/mcp", "add", "[" * 100_000], "not JSON", id="too deep"),
        (["ftp://example.com", "add"], "not an http(s) URL"),
        (["http://", "add"], "not an http(s) URL"),
        (["http://host:bad/mcp", "add"], "not an http(s) URL"),
        (["http://host/mcp", "add", "{"], "not JSON"),
        (["http://host/mcp", "add", "[1]"], "a JSON object is wanted"),
        (["http://host/mcp", "add", "--header", "secret"], "name:value is wanted"),
        (["http://host/mcp", "add", "--header", "a\nb: c"], "name:value is wanted"),
        (["http://host/mcp", "add", "--deadline", "-1"], "a positive number"),
        (["http://host/mcp", "add", "--key", "k"], "give --store, too"),
        (["http://host/mcp", "add", "--key", "", "--store", "x"], "key must be a text that is not empty"),
        (["http://host/mcp", "add", "--store", ""], "the path of a file"),
        (["http://\N{DIGIT ONE FULL STOP}.com/mcp", "add"], "url must be a text"),
        (["http://host/mcp", "add", "--header", "a: \udcff"], "headers must be"),
        (["http://host/mcp", "add", "--generation", "newest"], "invalid choice"),
        (["http://host/mcp"], "required"),
    ],
)
def test_wrong_usage_is_exit_2(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    try:
        code = main(["call", *arguments])
    except SystemExit as left:
        code = int(str(left.code))
    assert code == 2
    assert said in capsys.readouterr().err


async def test_requests_of_the_server_are_refused_and_pings_answered(mcp_guard: Command) -> None:
    async def ask_first(request: Request, reply: Reply) -> None:
        await reply.open_sse()
        await reply.event({"jsonrpc": "2.0", "id": "s1", "method": "roots/list"})
        await reply.event({"jsonrpc": "2.0", "id": "s2", "method": "ping"})
        await reply.event(notification("notifications/message", level="info", data="hello"))
        await server.until(lambda: len(answers()) == 2)
        await reply.event(tool_result(request.rpc_id, "done"))
        await reply.finish()

    def answers() -> dict[str, dict[str, Any]]:
        return {r.json["id"]: r.json for r in server.sent("POST") if "method" not in r.json}

    async with FakeServer(ScriptedMcp(call=ask_first)) as server:
        ran = await mcp_guard("call", server.url, "add")
    assert ran.code == 0
    assert answers()["s1"]["error"]["code"] == -32601
    assert answers()["s2"]["result"] == {}
    assert 'notifications/message {"level": "info", "data": "hello"}' in ran.err


class Stateless(ScriptedMcp):
    """Speaks 2026-07-28 alone."""

    async def other(self, request: Request, reply: Reply) -> None:
        await reply.json(result(request.rpc_id, {"supportedVersions": ["2026-07-28"], "resultType": "complete"}))

    async def call(self, request: Request, reply: Reply) -> None:
        kind = request.json["params"]["arguments"].get("kind", "complete")
        answer = {"resultType": kind, "content": [{"type": "text", "text": "42"}]}
        await reply.json(result(request.rpc_id, answer))


async def test_generation_host_finds_a_server_without_sessions(mcp_guard: Command) -> None:
    async with FakeServer(Stateless()) as server:
        ran = await mcp_guard("call", server.url, "añadir", "--generation", "host")
    assert ran.code == 0
    assert [r.rpc_method for r in server.requests] == ["server/discover", "tools/call"]
    call = server.requests[-1]
    assert call.header("mcp-protocol-version") == "2026-07-28"
    assert call.header("mcp-method") == "tools/call"
    assert call.header("mcp-name") == "=?base64?YcOxYWRpcg==?="
    assert call.json["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


class WithHeaders(Stateless):
    """Wants an argument repeated in a header, as its tool says, on its second page."""

    pages: Mapping[str | None, JSON] = MappingProxyType(
        {
            None: {"tools": [{"name": "other"}], "nextCursor": "2"},
            "2": {"tools": [{"name": "add", "inputSchema": {"properties": {"a": {"x-mcp-header": "Region"}}}}]},
        }
    )

    async def other(self, request: Request, reply: Reply) -> None:
        if request.rpc_method != "tools/list":
            await super().other(request, reply)
            return
        page = self.pages.get(request.json["params"].get("cursor"))
        if page is None:
            await reply.status(400, json.dumps(error(request.rpc_id, -32602, "no such page")).encode())
        else:
            await reply.json(result(request.rpc_id, {**page, "resultType": "complete"}))

    async def call(self, request: Request, reply: Reply) -> None:
        if request.header("mcp-param-region") == "eu west":
            await super().call(request, reply)
        else:
            await reply.status(400, json.dumps(error(request.rpc_id, -32020, "header mismatch")).encode())


def methods_of(server: FakeServer) -> list[str | None]:
    return [r.rpc_method for r in server.requests]


async def test_an_argument_that_a_tool_wants_in_a_header_is_sent_there_too(mcp_guard: Command) -> None:
    async with FakeServer(WithHeaders()) as server:
        ran = await mcp_guard("call", server.url, "add", '{"a": "eu west"}', "--generation", "host")
    assert ran.code == 0, ran.err
    assert methods_of(server) == ["server/discover", "tools/call", "tools/list", "tools/list", "tools/call"]
    assert server.requests[-1].json["params"]["arguments"] == {"a": "eu west"}


@pytest.mark.parametrize(
    ("pages", "listed"),
    [
        ({}, 1),
        ({None: {"tools": [{"name": "add", "inputSchema": {}}]}}, 1),
        ({None: {"tools": []}}, 1),
        ({None: {"nextCursor": "1"}, "1": {"tools": None, "nextCursor": "1"}}, 100),
    ],
)
async def test_where_the_server_does_not_say_so_its_refusal_is_the_answer(
    mcp_guard: Command, pages: dict[str | None, JSON], listed: int
) -> None:
    mcp = WithHeaders()
    mcp.pages = pages
    async with FakeServer(mcp) as server:
        ran = await mcp_guard("call", server.url, "add", '{"a": "eu west"}', "--generation", "host")
    assert ran.code == 1
    assert "error -32020: header mismatch" in ran.err
    assert methods_of(server) == ["server/discover", "tools/call", *["tools/list"] * listed]


async def test_generation_host_falls_back_to_sessions(mcp_guard: Command) -> None:
    async with FakeServer(ScriptedMcp()) as server:
        assert (await mcp_guard("call", server.url, "add", "--generation", "host")).code == 0
    assert server.sent("POST", "tools/call")[0].session_id == "session-A"


@pytest.mark.parametrize(
    ("kind", "code", "said"), [("input_required", 1, "asks for more input"), ("task", 3, "in doubt: the server")]
)
async def test_an_answer_that_is_no_result_is_not_taken_for_a_call_that_did_not_run(
    mcp_guard: Command, kind: str, code: int, said: str
) -> None:
    async with FakeServer(Stateless()) as server:
        ran = await mcp_guard("call", server.url, "add", json.dumps({"kind": kind}), "--generation", "host")
    assert ran.code == code
    assert said in ran.err.splitlines()[-1]


async def test_an_interrupted_call_is_in_doubt() -> None:
    async with FakeServer(ScriptedMcp(call=never)) as server:
        # A child of what runs in the background, or under nohup, is born without ears for this signal.
        program = (
            "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
            "runpy.run_module('mcp_client_guard.cli', run_name='__main__', alter_sys=True)"
        )
        command = [sys.executable, "-c", program, "call", server.url, "charge"]
        async with await anyio.open_process(command) as process:
            try:
                with anyio.fail_after(60):
                    await server.wait_for(lambda r: r.rpc_method == "tools/call")
                    process.send_signal(signal.SIGINT)
                    code = await process.wait()
            except TimeoutError:
                process.kill()
                raise
            assert process.stderr is not None
            told = b"".join([part async for part in process.stderr]).decode()
    assert code == 3
    assert told.splitlines()[-1] == "mcp-guard call: interrupted: the call may or may not have run"
    assert "Traceback" not in told
