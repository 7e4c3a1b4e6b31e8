"""Agent frameworks that repeat calls, on a server that swallows the reply after its tool ran.

`python tests/real/install_peers.py repeaters` makes their environments. Each framework is a process that plays its
runs at once: on its own transport, where the tool runs more than once, and on the guard as in docs/frameworks.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import asdict, field, frozen

from ..install_peers import REPEATERS
from ..peers import ROOT, VENVS, Peer, running
from .program import Order, Told

CUTS = ("json", "events")
TRIAL = "trial"
HOWS = (*CUTS, TRIAL)
WAYS = ("result", "error")
QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "HAYSTACK_TELEMETRY_ENABLED": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""No framework reports to its maker."""
SHORT, LONG = 3.0, 30.0
"""A framework's own timeout: where it is to fire, while the stream is on trial; and where it is not."""


@frozen
class Framework:
    """How it repeats, and what it makes of a doubt."""

    program: str
    row: str
    """Of the table in docs/frameworks.md."""
    sdk: int = 2
    by_itself: frozenset[str] = field(default=frozenset(), converter=frozenset)
    """Where it calls again by itself, or asks its model to. Elsewhere the model does, on another connection."""
    in_words: frozenset[str] = field(default=frozenset(), converter=frozenset)
    """By `in_doubt_as`: the doubt is in the text alone, with words around it, so that `find` does not find it."""

    def doubt(self, way: str) -> str:
        """What `Told.heard` has of one."""
        return "doubt in words" if way in self.in_words else "doubt"

    def orders(self, server: Peer, name: str) -> dict[str, Order]:
        """All its runs. On SDK 1.x only the timeout tells it that the connection was cut."""
        found = {}
        for how in HOWS:
            times = {"calls": 1, "connections": 1 if how in self.by_itself else 2}
            lost = SHORT if how == TRIAL or self.sdk == 1 else LONG
            found[f"{how}-own"] = Order(_url(server, how, f"{name}-{how}-own"), None, lost, **times)
            for way in WAYS:
                url = _url(server, how, f"{name}-{how}-{way}")
                found[f"{how}-{way}"] = Order(url, way, SHORT if how == TRIAL else LONG)
        return found


def _url(server: Peer, how: str, label: str) -> str:
    return f"http://127.0.0.1:{server.port}/{how}/{label}"


FRAMEWORKS = {
    "crewai": Framework("on_crewai", "CrewAI 1.15", sdk=1, by_itself=HOWS),
    "openai-agents": Framework("on_openai_agents", "openai-agents 0.24", by_itself=HOWS),
    "openai-agents-sdk1": Framework("on_openai_agents", "openai-agents 0.24", sdk=1, by_itself=HOWS),
    "pydantic-ai": Framework("on_pydantic_ai", "pydantic-ai 2.68", by_itself=("events", TRIAL)),
    "haystack": Framework("on_haystack", "Haystack 2.1", by_itself=("events",), in_words=("result",)),
    "langchain": Framework("on_langchain", "langchain-mcp-adapters 0.3", sdk=1),
    "fastmcp": Framework("on_fastmcp", "FastMCP 4.2"),
    "strands": Framework("on_strands", "Strands 1.62", in_words=("error",)),
    "google-adk": Framework("on_google_adk", "Google ADK 2.13", in_words=("error",)),
}
AT_ONCE = 3
"""Processes, on two cores: they wait most of the time, once they have imported their framework."""


@frozen
class Outcome:
    """What came of a run."""

    ran: int
    """How often the tool did, by the server's ledger."""
    resumed: int
    """How often the server was asked to go on with a stream on trial."""
    told: Told


def play(name: str, server: Peer, home: Path) -> dict[str, Outcome]:
    """All of a framework's runs, in a process of its own environment."""
    framework = FRAMEWORKS[name]
    python = VENVS / f"repeater-{name}" / "bin" / "python"
    assert python.exists(), "run tests/real/install_peers.py repeaters"
    orders = framework.orders(server, name)
    results = home / f"{name}.json"
    done = subprocess.run(
        [python, "-m", f"{__package__}.{framework.program}", results],
        input=json.dumps([asdict(order) for order in orders.values()]),
        cwd=ROOT,
        env=os.environ | QUIET | {"HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    found = {}
    for run, told in zip(orders, json.loads(results.read_text()), strict=True):
        label = f"{name}-{run}"
        found[run] = Outcome(server.executions(label), server.executions(f"resume of {label}"), Told(**told))
    return found


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[str, Outcome]]]]:
    """By framework, of those that are asked for: some are under way while the first ones are judged."""
    home = tmp_path_factory.mktemp("home")
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    names = dict.fromkeys(each["name"] for each in params if each.get("name") in FRAMEWORKS)
    with running("swallows") as server, ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(play, name, server, home) for name in names}


Played = dict[str, Future[dict[str, Outcome]]]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_without_the_guard_the_tool_runs_more_than_once(name: str, how: str, played: Played) -> None:
    """By the framework's own retry where `by_itself` says so, with one call of the model's; else by its second."""
    found = played[name].result()[f"{how}-own"]
    assert found.ran > 1, found
    assert len(found.told.heard) == (1 if how in FRAMEWORKS[name].by_itself else 2), found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", CUTS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_tool_whose_reply_was_swallowed_runs_once_on_the_guard_and_every_caller_is_told_of_the_doubt(
    name: str, how: str, way: str, played: Played
) -> None:
    """However often it is called again: twice by the model on a connection, and twice on the next."""
    found = played[name].result()[f"{how}-{way}"]
    assert not found.told.failure, found
    assert found.ran == 1, found
    assert found.told.heard == [FRAMEWORKS[name].doubt(way)] * 4, found
    assert len(found.told.repeats) >= 3, found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_tool_that_is_called_again_after_the_hosts_timeout_while_the_stream_is_on_trial_runs_once(
    name: str, way: str, played: Played
) -> None:
    """SDK 1.x does not tell of its timeout: the repeat joins the call, and gets its answer. SDK 2.x cancels the
    call: the repeat is told of the doubt, and the next one gets the answer if that came after all."""
    found, framework = played[name].result()[f"{TRIAL}-{way}"], FRAMEWORKS[name]
    assert not found.told.failure, found
    assert found.ran == 1, found
    assert found.resumed, found
    # The first call's timeout, where the framework does not repeat it by itself; then nothing but what is known.
    first = [] if TRIAL in framework.by_itself else ["error"]
    assert found.told.heard[: len(first)] == first, found
    then = found.told.heard[len(first) :]
    if framework.sdk == 1:
        assert found.told.repeats == ["RepeatJoined"], found
        assert then == ["answer"], found
    else:
        assert found.told.repeats[0] == "RepeatRefused", found
        assert then, found
        assert set(then) <= {framework.doubt(way), "answer"}, found


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_page_of_the_frameworks_says_of_this_version_where_a_doubt_is_found(name: str) -> None:
    framework = FRAMEWORKS[name]
    pinned = REPEATERS[f"repeater-{name}"][0].partition("==")[2]
    assert pinned.startswith(framework.row.rpartition(" ")[2] + ".")
    lines = (ROOT / "docs" / "frameworks.md").read_text().splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {framework.row} "))
    cells = [cell.strip() for cell in row.split("|")]
    found = {way: cell.startswith("yes") for way, cell in zip(WAYS, cells[3:5], strict=True)}
    assert found == {way: way not in framework.in_words for way in WAYS}
