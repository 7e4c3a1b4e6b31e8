"""Every check of the project. `./run-tests` runs them all; `nox -s sdk2 -- tests/wire -x` runs a part."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True

os.environ["UV_PYTHON_DOWNLOADS"] = "never"  # the interpreters of this machine, or none
# Many tests start processes that import an SDK: half of what that costs is compiling, which is done once if kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

TEST_TOOLS = (
    "pytest>=8.4",
    "pytest-cov",
    "pytest-xdist",
    "trio>=0.26",
    "uvloop; sys_platform != 'win32'",
    "hypothesis",
    "websockets>=14",
    "coverage[toml]",
    "h2",
    "ruff",
    "mypy",
)
SERVER = ("uvicorn", "starlette")


def interpreter(version: str) -> str:
    """The newest `version` under pyenv, else the one on the PATH; empty where there is neither."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(found[-1]) if found else (shutil.which(f"python{version}") or "")


BOTH_CORES = ("-n", "3", "--dist", "worksteal")  # on two: some tests wait
SERVERS_SHARED = ("-n", "2", "--dist", "loadfile")
"""What is tested on real servers waits most of the time; a file starts its servers once."""

PROPERTIES = ("test_any_input", "test_promises", "test_restarts", "test_small_scope")
DISKS = ("test_power_loss", "test_disk_faults")
ONE_PYTHON = [f"--ignore=tests/core/{name}.py" for name in PROPERTIES]
ONE_PYTHON += [f"--ignore=tests/stores/{name}.py" for name in DISKS]
"""What the core decides and what a disk loses is the same on each: what takes longest is tested on one."""

MAIN = interpreter("3.11") or sys.executable
REPEATERS = next(filter(None, map(interpreter, ("3.11", "3.12", "3.13"))), "3.12")
"""What the frameworks run on: none of them takes 3.10, nor each one 3.14. Skipped where there is none of these."""
OLDEST, NEWEST = interpreter("3.10") or MAIN, interpreter("3.13") or MAIN
"""What SDK 1.x and what SDK 2.x is tested on: a loop's own ways change with Python."""


def install(session: nox.Session, *extra: str) -> None:
    """The package as a user would have it, and the tools."""
    session.install("-e", ".", *TEST_TOOLS, *extra)


INSTALLING: list[subprocess.Popen[bytes]] = []


def begin_to_install(session: nox.Session) -> None:
    """The real servers, the proxies and the official conformance runner, once; what is there already is kept."""
    if not INSTALLING:
        python = Path(session.bin) / "python"
        scripts = ("tests/conformance/install_node.sh", "tests/real/install_proxies.sh")
        for command in ([python, "tests/real/install_peers.py"], *(["sh", script] for script in scripts)):
            INSTALLING.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        atexit.register(lambda: [each.wait() for each in INSTALLING])


def need_peers(session: nox.Session) -> None:
    """Wait until they are there."""
    begin_to_install(session)
    for each in INSTALLING:
        if each.wait():
            session.error(f"{each.args!r} ended with {each.returncode}")


@nox.session(python=MAIN)
def peers(session: nox.Session) -> None:
    """Begin to install what `sdk1` and `sdk2` need from elsewhere: it mostly waits, while other sessions work."""
    begin_to_install(session)


@nox.session(python=MAIN)
def lint(session: nox.Session) -> None:
    """Style, formatting, forbidden imports."""
    session.install("ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python=MAIN)
@nox.parametrize("sdk", ["1.30.0", "2.3.0"])
def types(session: nox.Session, sdk: str) -> None:
    """mypy, strict, against both SDK majors: the package, and a user's program."""
    install(session, f"mcp=={sdk}", *SERVER)
    session.run("mypy")


@nox.session(python=MAIN)
def core(session: nox.Session) -> None:
    """The core alone, without any SDK: every branch must be covered."""
    install(session)
    session.run("pytest", *BOTH_CORES, "--cov", "--cov-report=", "tests/core", *session.posargs)
    session.run("coverage", "report", "--include=mcp_client_guard/core/*", "--fail-under=100")


@nox.session(python=interpreter("3.12") or MAIN, name="python3.12")
def other_python(session: nox.Session) -> None:
    """Core and stores on the one Python on which nothing else is tested."""
    install(session)
    session.run("pytest", *BOTH_CORES, *ONE_PYTHON, "tests/core", "tests/stores", *session.posargs)


@nox.session(python=OLDEST)
def lowest(session: nox.Session) -> None:
    """The oldest versions that pyproject.toml allows, under what of the shell leans on them most."""
    session.install("-e", ".[mcp,ws]", "--resolution", "lowest-direct")
    session.install(*TEST_TOOLS, *SERVER)  # what is there already stays
    files = session.posargs or [f"tests/wire/test_{name}.py" for name in ("leaving", "pool", "clients")]
    session.run("pytest", *BOTH_CORES, "-x", *files)


@nox.session(python=OLDEST)
def sdk1(session: nox.Session) -> None:
    """All but the core, with the 1.x SDK above the guard and the real servers below it."""
    whole(session, "1.30.0")


@nox.session(python=NEWEST)
def sdk2(session: nox.Session) -> None:
    """All but the core, with the 2.x SDK above the guard and the real servers below it."""
    whole(session, "2.3.0")


@nox.session(python=REPEATERS)
def repeaters(session: nox.Session) -> None:
    """Agent frameworks that repeat calls, each in its environment, on a server that swallows the reply."""
    install(session)
    session.run("python", "tests/real/install_peers.py", "repeaters")
    session.run("pytest", *(session.posargs or ["tests/real/repeaters"]))


@nox.session(python=MAIN, default=False)
@nox.parametrize("sdk", ["1.30.0", "2.3.0"])
def sweep(session: nox.Session, sdk: str) -> None:
    """Every byte of a real call cut, on every real server; then 1,000 runs of cuts at random. Takes long."""
    install(session, f"mcp=={sdk}", *SERVER)
    need_peers(session)
    for what in [session.posargs] if session.posargs else [["--all"], ["--false-alarm", "1000"]]:
        session.run("python", "-m", "tests.real.sweep", *what)


@nox.session(python=MAIN, default=False)
@nox.parametrize("sdk", ["1.30.0", "2.3.0"])
def deaths(session: nox.Session, sdk: str) -> None:
    """A real server killed 20 times under 50 calls; then the client killed before and after all it does."""
    install(session, f"mcp=={sdk}", *SERVER)
    need_peers(session)
    session.run("python", "-m", "tests.real.restarts", "--rounds", "20", *session.posargs)
    session.run("python", "-m", "tests.real.kill_sweep", "--all", *session.posargs)


def whole(session: nox.Session, sdk: str) -> None:
    install(session, f"mcp=={sdk}", *SERVER)
    need_peers(session)
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    # What needs no SDK is tested beside one of them.
    elsewhere = ["tests/core", "tests/real"] + (["tests/stores"] if sdk.startswith("2") else [])
    hosts = ["-k", "not -plain"] if sdk.startswith("2") else []
    session.run("pytest", *BOTH_CORES, *hosts, "tests", *(f"--ignore={part}" for part in elsewhere))
    session.run("pytest", *SERVERS_SHARED, "--ignore=tests/real/repeaters", "tests/real")
