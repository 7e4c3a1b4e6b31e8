"""`mcp-guard demo` plays every incident twice, and says truly what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import anyio
import pytest

from mcp_client_guard import CallInDoubt, Discontinuity
from mcp_client_guard.cli import _demo, main
from mcp_client_guard.cli._demo_host import Account
from mcp_client_guard.cli._demo_report import Finding
from mcp_client_guard.cli._incidents import INCIDENTS, Incident

from .conftest import Ran, guard_command

EVIDENCE = {
    "fresh-session": "BROKEN",
    "trimmed-buffer": "BROKEN",
    "forked-counter": "BROKEN",
    "drain-race": "BROKEN",
    "empty-replay": "UNVERIFIED",
    "json-neutrality": "PROVEN",
    "honest-cut": "PROVEN",
    "dropped": "no resume",
}


@pytest.fixture(scope="module")
def played() -> tuple[Ran, Ran]:
    """As text and as JSON."""

    return anyio.run(guard_command, "demo"), anyio.run(guard_command, "demo", "--json")


@pytest.fixture(scope="module")
def report(played: tuple[Ran, Ran]) -> Any:
    return json.loads(played[1].out)


def test_it_ends_in_time_and_says_that_the_guard_was_honest(played: tuple[Ran, Ran], report: Any) -> None:
    assert [ran.code for ran in played] == [0, 0]
    assert [ran.err for ran in played] == ["", ""]
    assert report["seconds"] < 30
    assert report["summary"]["guard"]["honest"] == report["summary"]["incidents"] == len(INCIDENTS)


@pytest.mark.parametrize("name", [incident.name for incident in INCIDENTS])
def test_through_the_guard_the_server_executed_the_call_once(report: Any, name: str) -> None:
    guard = _of(report, name)["guard"]
    assert guard["executions"] == guard["calls_made"] == 1
    assert guard["messages_repeated"] == 0
    assert guard["evidence"].startswith(EVIDENCE[name])


@pytest.mark.parametrize("name", ["json-neutrality", "honest-cut"])
def test_an_honest_server_is_served_well_by_both(report: Any, name: str) -> None:
    found = _of(report, name)
    for side in ("sdk", "guard"):
        assert found[side]["answer"] == found["true_answer"]
        assert found[side]["messages_missing"] == 0


@pytest.mark.parametrize("name", ["fresh-session", "forked-counter"])
def test_the_sdk_hands_on_the_answer_of_another_caller(report: Any, name: str) -> None:
    found = _of(report, name)
    assert found["sdk"]["answer"] not in (None, found["true_answer"])
    assert found["guard"]["answer"] is None
    assert found["guard"]["in_doubt"]["outcome"] == "in_doubt"


def test_a_gap_is_silent_through_the_sdk_and_reported_by_the_guard(report: Any) -> None:
    found = _of(report, "trimmed-buffer")
    assert found["sdk"]["messages_missing"] == 57
    assert not found["sdk"]["loss_reported"]
    assert found["guard"]["answer"] == found["true_answer"]
    assert found["guard"]["loss_reported"]


@pytest.mark.parametrize("name", ["drain-race", "empty-replay", "dropped"])
def test_a_host_that_calls_again_has_the_sdk_execute_twice(report: Any, name: str) -> None:
    assert _of(report, name)["sdk"]["executions"] == 2


def test_the_text_has_two_lines_for_each_incident_and_a_closing_sentence(played: tuple[Ran, Ran]) -> None:
    lines = played[0].out.splitlines()
    for number, incident in enumerate(INCIDENTS, start=1):
        start = next(i for i, line in enumerate(lines) if line.startswith(f"{number}. {incident.title}"))
        assert lines[start + 1].split()[0] == "SDK"
        assert lines[start + 2].split()[0] == "guard"
        assert lines[start + 3] == ""
    assert f"Of {len(INCIDENTS)} incidents" in lines[-2]
    assert "Executed twice: SDK 3, guard 0" in lines[-1]


def test_without_an_sdk_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_demo, "sdk_version", lambda: None)
    assert main(["demo"]) == 4
    assert "pip install 'mcp-client-guard[mcp]'" in capsys.readouterr().err


def test_a_server_process_that_dies_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert main(["demo"]) == 4
    assert "the server process ended early" in capsys.readouterr().err


# Judging.

ASKED = Incident("x", "X", "x", tool="charge", answer="charged", messages=("progress 1", "progress 2"))
BOTH = ["progress 1", "progress 2"]
DOUBT = CallInDoubt("lost", "tools/call", "charge", "key", "-")
LOSS = Discontinuity("1", "gap", None, None)


@pytest.mark.parametrize(
    ("account", "executed", "honest"),
    [
        (Account("charged", messages=BOTH), ["charge"], True),
        (Account("charged", messages=BOTH[:1], events=[LOSS]), ["charge"], True),
        (Account(in_doubt=DOUBT), ["charge"], True),
        (Account(in_doubt=DOUBT), [], True),
        (Account("charged", messages=BOTH[:1]), ["charge"], False),
        (Account("charged", messages=[*BOTH, "progress 2"]), ["charge"], False),
        (Account("charged", messages=BOTH), ["charge", "charge"], False),
        (Account(in_doubt=DOUBT), ["charge", "charge"], False),
        (Account("refunded", messages=BOTH, events=[LOSS]), ["charge"], False),
        (Account(error="timed out", messages=BOTH), ["charge"], False),
    ],
)
def test_what_counts_as_honest(account: Account, executed: list[str], honest: bool) -> None:
    assert Finding(ASKED, account, executed).honest is honest


def test_an_interrupt_ends_it_with_one_line() -> None:
    # A child of what runs in the background, or under nohup, is born without ears for this signal.
    program = (
        "import sys, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from mcp_client_guard.cli import main; sys.exit(main(['demo']))"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("8 incidents")
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: its server process hears it, too
            told = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 4
    assert told == "mcp-guard demo: interrupted\n"


def _of(report: Any, name: str) -> Any:
    return next(found for found in report["incidents"] if found["name"] == name)
