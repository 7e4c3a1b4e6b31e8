# ruff: noqa: ASYNC240 - small files, and nobody else in the loop
"""`mcp-guard calls` and `mcp-guard sessions`: all that is known and nothing secret, whoever owns the store."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio.to_thread
import pytest
from attrs import evolve

from mcp_client_guard import Outcome, SQLiteStore
from mcp_client_guard.cli import main
from mcp_client_guard.core.model import CallNamed, CallRepeated, SessionEnded, fingerprint
from mcp_client_guard.stores.sqlite import SQLiteClaim
from tests.stores.records import SECRET, TASK, moved, opened, replied, sent, settled, task

from .conftest import Ran, guard_command, guard_command_without_stdout

pytestmark = pytest.mark.anyio

Command = Callable[..., Awaitable[Ran]]
ANSWER = {"result": "the answer that nobody may see"}


@pytest.fixture
def mcp_guard(capsys: pytest.CaptureFixture[str]) -> Command:
    """In this process, which is quicker: nothing here needs another."""

    async def run(*arguments: str) -> Ran:
        code = await anyio.to_thread.run_sync(main, arguments)
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


async def claimed(path: Path, key: str = "orders") -> SQLiteClaim:
    return await SQLiteStore(path).claim(key, origin="https://example.com", principal="user-17")


async def used(path: Path) -> None:
    """A call of each kind; the session is open, an earlier one has ended."""
    claim = await claimed(path)
    await claim.write(1, [opened(1), SessionEnded(1, "404"), opened(2), moved(1, incarnation=2)])
    await claim.write(1, [replied(1, ANSWER, incarnation=2)])
    await claim.write(1, [sent(wire_id, call_key=f"key-{wire_id}") for wire_id in range(1, 5)])
    await claim.write(1, [settled(1, answer=ANSWER), settled(2, Outcome.IN_DOUBT, "stream lost"), task(3)])
    await claim.write(1, [CallRepeated("key-2"), CallRepeated("key-2")])
    await claim.write(1, [task(4), settled(4, Outcome.RECOVERED, "tasks/get")])
    await claim.release()


async def test_a_call_that_its_caller_gave_up_is_shown_if_it_may_have_run(mcp_guard: Command, path: Path) -> None:
    """SDK 2.x cancels what is in flight when its host is interrupted."""
    claim = await claimed(path)
    harmless = evolve(sent(3), may_have_side_effects=False)
    await claim.write(1, [opened(1), sent(1), sent(2), harmless])
    why = "cancelled by the caller"
    await claim.write(1, [settled(1, Outcome.CANCELLED, why), settled(3, Outcome.CANCELLED, why)])
    await claim.write(1, [settled(2, Outcome.CANCELLED, f"{why} before it was sent")])
    await claim.release()
    ran = await mcp_guard("calls", str(path))
    first, _, row = ran.out.splitlines()
    assert first == "0 calls in doubt, 1 cancelled by the caller that may have run; 3 in the ledger"
    assert row.split()[-1] == "key-1"
    assert json.loads((await mcp_guard("calls", str(path), "--json")).out)["cancelled"] == 1


async def test_the_first_line_says_how_many_are_in_doubt_and_the_table_what_is_known(
    mcp_guard: Command, path: Path
) -> None:
    await used(path)
    ran = await mcp_guard("calls", str(path))
    assert (ran.code, ran.err) == (0, "")
    first, heading, *rows = ran.out.splitlines()
    assert first == (
        "1 call in doubt, 1 without an outcome (in flight, or in doubt if the process that sent it has ended),"
        " 2 with an open task; 4 in the ledger"
    )
    columns = ["SENT", "KEY", "ORIGIN", "PRINCIPAL", "CALL", "OUTCOME", "WHY", "TASK", "REPEATS", "CALL", "KEY"]
    assert heading.split() == columns
    calls = {row.split()[-1]: row for row in rows}
    assert list(calls) == ["key-2", "key-3", "key-4"]
    sent_at, *doubted = calls["key-2"].split()
    owner = ["orders", "https://example.com", "user-17"]
    assert doubted == [*owner, "charge", "in_doubt", "stream", "lost", "-", "2", "key-2"]
    assert sent_at.endswith("Z")
    print_of_task = fingerprint(TASK, "orders")
    assert calls["key-3"].split()[1:] == [
        *owner,
        "charge",
        "none",
        "yet",
        "-",
        print_of_task,
        "open",
        "-",
        "key-3",
    ]
    assert "recovered" in calls["key-4"]


async def test_all_shows_the_settled_calls_too(mcp_guard: Command, path: Path) -> None:
    await used(path)
    ran = await mcp_guard("calls", str(path), "--all")
    assert [line.split()[-1] for line in ran.out.splitlines()[2:]] == ["key-1", "key-2", "key-3", "key-4"]


async def test_nothing_in_doubt_is_one_line(mcp_guard: Command, path: Path) -> None:
    await (await claimed(path)).release()
    ran = await mcp_guard("calls", str(path))
    assert (ran.code, ran.out) == (0, "0 calls in doubt; 0 in the ledger\n")


async def test_json_says_the_same_to_programs(mcp_guard: Command, path: Path) -> None:
    await used(path)
    found = json.loads((await mcp_guard("calls", str(path), "--json")).out)
    assert (found["in_doubt"], found["without_outcome"]) == (1, 1)
    assert [call["call_key"] for call in found["calls"]] == ["key-2", "key-3", "key-4"]
    doubted = found["calls"][0]
    assert (doubted["outcome"], doubted["reason"], doubted["tool"]) == ("in_doubt", "stream lost", "charge")
    assert (doubted["repeats"], doubted["task"], doubted["may_have_side_effects"]) == (2, None, True)
    assert (doubted["origin"], doubted["principal"]) == ("https://example.com", "user-17")
    assert found["calls"][1]["task"] == {
        "fingerprint": fingerprint(TASK, "orders"),
        "open": True,
        "extension": False,
    }
    everything = json.loads((await mcp_guard("calls", str(path), "--json", "--all")).out)
    assert [call["answer_stored"] for call in everything["calls"]] == [True, False, False, False]


async def test_a_key_is_asked_for_by_name(mcp_guard: Command, path: Path) -> None:
    await used(path)
    mail = await claimed(path, "mail")
    await mail.write(1, [sent(9)])
    await mail.release()
    assert "key-9" in (await mcp_guard("calls", str(path))).out
    assert "key-9" not in (await mcp_guard("calls", str(path), "--key", "orders")).out
    found = json.loads((await mcp_guard("calls", str(path), "--key", "mail", "--json")).out)
    assert [call["call_key"] for call in found["calls"]] == ["key-9"]


@pytest.mark.parametrize("options", [["calls"], ["calls", "--json"], ["sessions"]])
async def test_a_key_under_which_nothing_is_stored_is_exit_4(
    mcp_guard: Command, path: Path, options: list[str]
) -> None:
    await used(path)
    ran = await mcp_guard(*options, str(path), "--key", "odrers")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err == f"mcp-guard {options[0]}: nothing is stored under the key odrers; there is: orders\n"


async def test_sessions_are_shown_open_or_ended(mcp_guard: Command, path: Path) -> None:
    await used(path)
    ran = await mcp_guard("sessions", str(path))
    assert (ran.code, ran.err) == (0, "")
    first, heading, ended, current = ran.out.splitlines()
    assert first == "1 open session, 1 ended"
    assert heading.startswith("OPENED")
    assert ended.split()[-1] == "404"
    known = ["orders", "https://example.com", "user-17", fingerprint(SECRET, "orders"), "2025-11-25", "1", "-"]
    assert current.split()[2:] == known
    sessions = json.loads((await mcp_guard("sessions", str(path), "--json")).out)["sessions"]
    assert [session["end_reason"] for session in sessions] == ["404", None]
    assert [session["cursors"] for session in sessions] == [0, 1]
    assert [session["server_requests_answered"] for session in sessions] == [0, 1]
    assert sessions[1]["opened_at"] <= sessions[1]["last_used_at"]


@pytest.mark.parametrize("form", [[], ["--json"]])
async def test_no_secret_is_shown(mcp_guard: Command, path: Path, form: list[str]) -> None:
    await used(path)
    ran = [await mcp_guard("calls", str(path), "--all", *form), await mcp_guard("sessions", str(path), *form)]
    for secret in (SECRET, TASK, "that nobody may see", "serverInfo", "event-1"):
        assert secret not in repr(ran)


async def test_what_others_named_cannot_command_the_terminal(mcp_guard: Command, path: Path) -> None:
    claim = await claimed(path, "key\u202e")
    await claim.write(1, [sent(1, tool="charge\x1b[2J\nfake row"), settled(1, Outcome.IN_DOUBT, "\u009b31m")])
    await claim.release()
    ran = await mcp_guard("calls", str(path))
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 3
    assert r"charge\x1b[2J\nfake row" in ran.out
    assert all(line.isprintable() for line in ran.out.splitlines())


async def test_forgetting_deletes_the_call_and_says_so(mcp_guard: Command, path: Path) -> None:
    await used(path)
    ran = await mcp_guard("calls", str(path), "forget", "key-2")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "forgotten: 1 row of call key 'key-2' under key 'orders'\n"
    assert [call.call_key for call in await SQLiteStore(path).calls()] == ["key-1", "key-3", "key-4"]


async def test_a_name_that_stands_for_a_call_is_shown_and_forgets_it(mcp_guard: Command, path: Path) -> None:
    await used(path)
    claim = await claimed(path)
    await claim.write(1, [CallNamed("key-2", "order-17")])
    await claim.release()
    named = [line for line in (await mcp_guard("calls", str(path))).out.splitlines() if "order-17" in line]
    assert [line.split()[-3:] for line in named] == [["key-2", "also", "order-17"]]
    ran = await mcp_guard("calls", str(path), "forget", "order-17")
    assert (ran.code, ran.err) == (0, "")
    assert [call.call_key for call in await SQLiteStore(path).calls()] == ["key-1", "key-3", "key-4"]


async def test_forgetting_lets_go_of_nothing_else(mcp_guard: Command, path: Path) -> None:
    """Whoever owns a key prunes it to its own limits: the command has none."""
    claim = await SQLiteStore(path, keep_calls=20_000).claim("orders", origin="", principal=None)
    await claim.write(1, [record for n in range(10_002) for record in (sent(n), settled(n))])
    await claim.release()
    assert (await mcp_guard("calls", str(path), "forget", "key-7")).code == 0
    assert len(await SQLiteStore(path).calls()) == 10_001


async def test_a_call_key_of_two_connection_keys_needs_the_key(mcp_guard: Command, path: Path) -> None:
    for key in ("mail", "orders"):
        claim = await claimed(path, key)
        await claim.write(1, [sent(1)])
        await claim.release()
    ran = await mcp_guard("calls", str(path), "forget", "key-1")
    assert ran.code == 2
    assert "nothing was forgotten: several have it" in ran.err
    before: list[str]
    for before in ([], ["--key", "mail"]):  # the option is taken before the verb and behind it
        behind = [] if before else ["--key", "orders"]
        ran = await mcp_guard("calls", str(path), *before, "forget", "key-1", *behind)
        assert (ran.code, ran.err) == (0, "")
    assert await SQLiteStore(path).calls() == []


@pytest.mark.parametrize(
    ("owners", "chosen"),
    [
        (["anna", "bert"], ["--principal=anna"]),
        ([None, "bert"], ["--principal=-"]),
    ],
)
@pytest.mark.parametrize("name", ["order-17", "its other name"])
async def test_a_name_is_forgotten_for_one_principal(
    mcp_guard: Command, path: Path, owners: list[str | None], chosen: list[str], name: str
) -> None:
    """What another one has in doubt under this name, nobody has looked up."""
    for slot, principal in enumerate(owners, start=1):
        claim = await SQLiteStore(path).claim("orders", origin="https://a/mcp", principal=principal)
        await claim.write(slot, [sent(1, call_key="order-17"), CallNamed("order-17", "its other name")])
        await claim.release()
    ran = await mcp_guard("calls", str(path), "forget", name)
    assert (ran.code, ran.out, len(await SQLiteStore(path).calls())) == (2, "", 2)
    first, *choices = ran.err.splitlines()
    assert first == "mcp-guard calls: nothing was forgotten: several have it: say which with one of"
    assert len([choice for choice in choices if chosen[0] in choice.split()]) == 1
    ran = await mcp_guard("calls", str(path), "forget", name, *chosen)
    assert (ran.code, ran.out) == (0, f"forgotten: 1 row of call key {name!r} under key 'orders'\n")
    assert [call.principal for call in await SQLiteStore(path).calls()] == owners[1:]


async def test_an_unknown_call_key_is_exit_4(mcp_guard: Command, path: Path) -> None:
    await used(path)
    ran = await mcp_guard("calls", str(path), "forget", "nothing")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err == "mcp-guard calls: nothing was forgotten: no such call has the call key 'nothing'\n"


async def test_reading_works_while_another_process_owns_the_key_and_forgetting_does_not(
    mcp_guard: Command, path: Path
) -> None:
    await used(path)
    owner = await claimed(path)
    assert (await mcp_guard("sessions", str(path))).code == 0
    ran = await mcp_guard("calls", str(path))
    assert (ran.code, ran.out.split(",")[0]) == (0, "1 call in doubt")
    ran = await mcp_guard("calls", str(path), "forget", "key-2")
    assert (ran.code, ran.out) == (4, "")
    assert "nothing was forgotten: StoreInUse: process" in ran.err
    assert len(await SQLiteStore(path).calls()) == 4
    await owner.release()


@pytest.mark.parametrize("command", [["calls"], ["sessions"], ["calls", "forget", "key-1"]])
async def test_a_file_that_is_no_store_is_exit_4_and_left_alone(
    mcp_guard: Command, path: Path, command: list[str]
) -> None:
    ran = await mcp_guard(command[0], str(path), *command[1:])
    assert (ran.code, ran.out) == (4, "")
    assert (
        ran.err == f"mcp-guard {command[0]}: StoreError: {path} does not exist: no Guard has used this store yet\n"
    )
    path.write_text("not a store")
    ran = await mcp_guard(command[0], str(path), *command[1:])
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith(f"mcp-guard {command[0]}: StoreDamaged:")
    assert path.read_text() == "not a store"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_a_reader_that_leaves_early_is_no_error(path: Path, left_pipe: int, unbuffered: str) -> None:
    await used(path)
    ran = await guard_command("calls", str(path), stdout=left_pipe, PYTHONUNBUFFERED=unbuffered)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_what_cannot_be_written_is_exit_4(path: Path, full: int, unbuffered: str) -> None:
    await used(path)
    ran = await guard_command("calls", str(path), stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert (ran.code, ran.err) == (4, "mcp-guard calls: OSError: [Errno 28] No space left on device\n")


async def test_that_standard_output_is_closed_is_exit_4(path: Path) -> None:
    await used(path)
    ran = await guard_command_without_stdout("calls", str(path))
    assert (ran.code, ran.err) == (4, "mcp-guard calls: OSError: standard output is closed\n")


async def test_a_name_that_standard_output_has_no_characters_for_is_escaped(path: Path) -> None:
    claim = await claimed(path)
    await claim.write(1, [opened(1), sent(1, call_key="año"), settled(1, Outcome.IN_DOUBT, "stream lost")])
    await claim.release()
    ran = await guard_command("calls", str(path), PYTHONIOENCODING="ascii")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.split()[-1] == r"a\xf1o"


@pytest.mark.parametrize(
    "arguments",
    [
        ["calls"],
        ["calls", ""],
        ["sessions"],
        ["sessions", ""],
        ["calls", "x", "forget"],
        ["calls", "x", "drop", "y"],
    ],
)
def test_wrong_usage_is_exit_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert f"usage: mcp-guard {arguments[0]}" in capsys.readouterr().err
