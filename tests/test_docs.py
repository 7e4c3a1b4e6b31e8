"""README and docs do as they say: every Python block runs, every command exists, and both examples end well."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import anyio
import anyio.to_thread
import pytest
from attrs import fields, frozen

from mcp_client_guard.cli._main import _parser
from mcp_client_guard.testing import FakeServer, Handler, How, Lie, Reply, Request, ScriptedMcp, script

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
URL = "https://example.com/mcp"
FENCED = re.compile(
    r"^(?:<!-- (?:needs: mcp (\d)|as in: (\S+)) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
LINKED = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")
ELSEWHERE = {"httpx", "pyproject", "send_request_headers"}
MAJOR = "2" if find_spec("mcp_types") else "1"


@frozen
class Block:
    page: Path
    line: int
    language: str
    needs: str | None
    program: str | None
    """Of a framework, in whose environment alone the block runs."""
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCED.finditer(text):
        line = text.count("\n", 0, found.start(4)) + 1
        yield Block(page, line, found[3], found[1], found[2], found[4])


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SHELL = [block for block in BLOCKS if block.language == "sh" and block.needs in (None, MAJOR)]
WITH_PYTHON = [page for page in PAGES if any(b.language == "python" for b in blocks_of(page))]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# Python.


@pytest.mark.anyio
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
async def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    blocks = [b for b in blocks_of(page) if b.language == "python" and b.needs in (None, MAJOR) and not b.program]
    async with FakeServer(ScriptedMcp()) as server:
        for block in blocks:
            code = compile(block.text.replace(URL, server.url), str(block), "exec")
            with anyio.fail_after(30):
                await anyio.to_thread.run_sync(exec, code, namespace)
    assert bool(server.sent("POST")) == any(URL in block.text for block in blocks), "a page talks to its server"


async def refused_unread(request: Request, reply: Reply) -> None:
    await reply.status(413)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (None, "text='charge'"),
        (script(How.RST), "may or may not have run"),
        (refused_unread, "was not executed: HTTP 413"),
    ],
    ids=["answered", "in doubt", "not executed"],
)
async def test_the_first_example_tells_each_outcome(
    call: Handler | None,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    first = next(blocks_of(ROOT / "README.md")).text
    async with FakeServer(ScriptedMcp(call=call)) as server:
        with anyio.fail_after(30):
            await anyio.to_thread.run_sync(exec, first.replace(URL, server.url), {"__name__": "__main__"})
    assert says in capsys.readouterr().out


def statements(source: str) -> list[str]:
    """Those of the module, less docstrings and comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        ) and ast.get_docstring(node):
            del node.body[0]
    return [ast.dump(node) for node in tree.body]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.program], ids=str)
def test_the_code_for_a_framework_is_that_of_the_program_which_is_run(block: Block) -> None:
    assert block.program is not None
    assert set(statements(block.text)) <= set(statements((ROOT / block.program).read_text()))


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_python_blocks_are_valid_on_every_python(block: Block) -> None:
    ast.parse(block.text, feature_version=(3, 10))


def test_the_readme_has_code_within_its_first_30_lines_and_the_generation_on_its_first_screen() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert "```" in lines[:30][lines.index("```python") :]
    assert any('generation="auto"' in line and line.startswith("**On SDK 2.x") for line in lines[:40])


# Commands.


def commands_of(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        for command in line.split("&&"):
            if words := shlex.split(command, comments=True):
                yield words


def check_guard(arguments: list[str]) -> None:
    code: Any = 0
    try:
        _parser().parse_args(arguments)
    except SystemExit as left:
        code = left.code  # 0 after `--help`
    assert code == 0, arguments


def check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    extras = re.fullmatch(r"\.\[(\w+)\]", arguments[1])
    assert extras is not None
    optional = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    assert f"\n{extras[1]} = [" in optional


def check_module(arguments: list[str]) -> None:
    assert arguments[0] == "-m"
    assert find_spec(arguments[1]) is not None
    if arguments[1] == "bench":
        from bench.__main__ import parse

        parse(arguments[2:])
    if arguments[1] == "mcp_client_guard.testing":
        from mcp_client_guard.testing.__main__ import parser

        parser().parse_args(arguments[2:])


def check_run_tests(arguments: list[str]) -> None:
    sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    assert arguments == [] or (arguments[0] == "-s" and set(arguments[1:]) <= set(sessions))
    assert os.access(ROOT / "run-tests", os.X_OK)


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "mcp-guard": check_guard,
    "pip": check_pip,
    "python": check_module,
    "python3": check_module,
    "run-tests": check_run_tests,
}


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_every_command_of_a_shell_block_exists_with_its_options(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTH", "Bearer ...")  # which a page has a header come from
    for words in commands_of(block.text):
        CHECKS[Path(words[0]).name](words[1:])


def test_the_checks_find_a_wrong_option() -> None:
    with pytest.raises(AssertionError):
        check_guard(["demo", "--no-such-option"])


def anchors_of(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for target, anchor in LINKED.findall(page.read_text()):
        to = page.parent / target if target else page
        assert to.exists(), target
        assert not anchor or anchor in anchors_of(to), f"{target}#{anchor}"


# Names.


def test_every_event_is_described() -> None:
    from mcp_client_guard.core import report

    text = (ROOT / "docs" / "events.md").read_text()
    events = [kind.__name__ for kind in report.Event.__args__]
    rows = re.findall(r"^\| `(\w+)`(\*?) \|", text, re.MULTILINE)
    assert sorted(name for name, _ in rows if name in events) == sorted(events)


def test_the_events_marked_public_are_the_public_ones() -> None:
    import mcp_client_guard
    from mcp_client_guard.core import report

    text = (ROOT / "docs" / "events.md").read_text()
    for name, star in re.findall(r"^\| `(\w+)`(\*?) \|", text, re.MULTILINE):
        if hasattr(report, name):
            assert bool(star) == (name in mcp_client_guard.__all__), name


def test_a_cause_has_one_name_in_all_events() -> None:
    from mcp_client_guard.core import report

    names = {field.name for kind in (*get_args(report.Event), report.Evidence) for field in fields(kind)}
    assert not names & {"why", "what", "cause"}


def test_every_module_of_the_map_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for folder in ("core", "transports"):
        section = text.split(f"### {folder}\n")[1].split("\n##")[0]
        named = {name for row in re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE) for name in row_names(row)}
        there = {p.stem for p in (ROOT / "mcp_client_guard" / folder).glob("*.py")} - {"__init__"}
        assert named == there, folder


def defined() -> Iterator[tuple[str, str]]:
    """Each function, class and field with the class, and with the module, that defines it."""
    for path in (ROOT / "mcp_client_guard").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef)):
                for part in node.body:
                    name = getattr(part, "name", None) or getattr(getattr(part, "target", None), "id", "")
                    yield path.stem, name
                    yield getattr(node, "name", path.stem), name


def test_every_name_of_the_map_is_where_it_is_said_to_be() -> None:
    text, why = ((ROOT / "docs" / f"{page}.md").read_text() for page in ("architecture", "decisions"))
    there = set(defined())
    named = {name for name in re.findall(r"`(\w+)\.(\w+)`", text + why) if name[0] not in ELSEWHERE}
    assert not named - there
    decisions = text.split("| question | where |")[1].split("\n\n")[0]
    assert not set(row_names(decisions)) - {name for _, name in there}


def row_names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_every_test_of_a_seed_is_in_the_table_and_every_test_of_the_table_exists() -> None:
    table = re.findall(r"`(test_seed_\w+)`", (ROOT / "docs" / "seeds.md").read_text())
    modules = (ROOT / "tests").rglob("test_*.py")
    there = {name for path in modules for name in re.findall(r"def (test_seed_\w+)\(", path.read_text())}
    assert set(table) == there


def test_every_lie_is_described() -> None:
    section = (ROOT / "docs" / "testing.md").read_text().split("## The lies\n")[1]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)[1:] == [lie.value for lie in Lie]


def test_the_reference_is_what_the_docstrings_say() -> None:
    from docs.reference import PAGE, page

    assert PAGE.read_text() == page(), "python -m docs.reference"


def test_the_reference_has_every_public_name() -> None:
    import mcp_client_guard
    from mcp_client_guard import testing

    headings = re.findall(r"^### `(\w+)`$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    assert set(mcp_client_guard.__all__) | set(testing.__all__) <= set(headings)


def test_every_promise_that_the_code_names_is_on_the_page_and_has_a_test() -> None:
    text = (ROOT / "docs" / "promises.md").read_text()
    rows = re.findall(r"^\| ([SL]\d+) \|.*\| (.+) \|$", text, re.MULTILINE)
    code = [path.read_text() for folder in ("mcp_client_guard", "tests") for path in (ROOT / folder).rglob("*.py")]
    named = {name for source in code for name in re.findall(r"\b[SL]\d{1,2}\b", source)}
    assert named <= {name for name, _ in rows}
    for _, tests in rows:
        assert all((ROOT / "tests" / name).exists() for name in re.findall(r"`([\w/.]+)`", tests)), tests


# Examples.


def run_example(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_driving_the_core_by_hand_shows_a_proven_resume_and_a_broken_one() -> None:
    honest, broken = run_example("drive_by_hand.py").split("\n\n")
    assert "PROVEN" in honest
    assert "IN_DOUBT" not in honest
    assert "BROKEN" in broken
    assert "IN_DOUBT" in broken


def test_driving_the_core_by_hand_shows_what_is_saved_before_and_what_after() -> None:
    out = run_example("drive_by_hand.py")
    assert "Save        CallSent, durable\n      Post        tools/call\n" in out
    assert out.index('Deliver     {"data": "half done"}') < out.index("Drained\n      Save        CursorMoved")


def test_what_driving_by_hand_prints_is_quoted_as_it_is() -> None:
    (quoted,) = (b for b in BLOCKS if b.page.name == "architecture.md" and b.language == "text")
    assert quoted.text in run_example("drive_by_hand.py")


def test_the_guarded_agent_gets_every_message_once_and_its_result() -> None:
    out = run_example("guarded_agent.py")
    assert re.findall(r"progress: (\d) of 4", out) == ["1", "2", "3", "4"]
    assert "resumed, PROVEN" in out
    assert out.rstrip().endswith("The result: 4 loaves")


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 80
