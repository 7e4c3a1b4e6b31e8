"""The direction of imports, and the public names: what may know what (DESIGN §3)."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import mcp_client_guard
import mcp_client_guard.stores
import mcp_client_guard.testing
from mcp_client_guard.core.hooking import Hooking
from mcp_client_guard.core.reconnecting import Reconnecting

ROOT = Path(mcp_client_guard.__file__).parent
PACKAGE = "mcp_client_guard"

PUBLIC = {
    "CallInDoubt",
    "CallNotExecuted",
    "CallSettled",
    "Claim",
    "Connected",
    "Connection",
    "Disconnected",
    "Discontinuity",
    "DuplicateDropped",
    "EndpointMoved",
    "EndpointRefused",
    "Event",
    "EventCallback",
    "Evidence",
    "Fail",
    "Generation",
    "Grade",
    "GenerationChosen",
    "Guard",
    "GuardError",
    "GuardPolicy",
    "IdScheme",
    "InDoubtCall",
    "ListenedAgain",
    "MaybeRedelivered",
    "MemoryStore",
    "NotificationLost",
    "OrphanDropped",
    "Outcome",
    "ReconcileHook",
    "Reconciler",
    "RefreshSuggested",
    "Reinitialized",
    "RepeatJoined",
    "RepeatRefused",
    "RequestFailed",
    "Resend",
    "ResendRule",
    "Resolve",
    "Resumed",
    "SQLiteStore",
    "SessionLost",
    "SessionUnavailable",
    "StandaloneUnavailable",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreFailed",
    "StoreInUse",
    "StoreOwnershipLost",
    "StoreWriteError",
    "StoredCall",
    "StoredSession",
    "Unreachable",
    "UnreadableDropped",
    "UpgradeRefused",
    "Upgraded",
    "Verdict",
}

# What each part of the package may import of it, by prefix; the longest prefix that fits decides.
MAY_KNOW = {
    "core": {"core"},
    "_errors": set[str](),
    "_theirs": set[str](),
    "_loops": set[str](),
    "stores": {"stores", "core.model", "core.stored", "_errors", "_loops"},
    "transports": {"transports", "core", "stores", "_errors", "_theirs"},
    "_messages": {"core", "_errors"},
    "_events": {"core", "_loops", "_theirs"},
    "_reconcile": {"core", "_errors", "_theirs"},
    # `_guard` by name only: a connection is one of its guard's, and so is the ownership of its key.
    "_connection": {"core", "stores", "transports", "_errors", "_events", "_guard", "_messages", "_reconcile"},
    "_arguments": {"core.policy", "transports.http", "transports.websocket"},
    "_ownership": {"core", "stores", "transports", "_connection", "_errors", "_guard", "_loops"},
    "_guard": {
        "core",
        "stores",
        "transports",
        "_arguments",
        "_connection",
        "_errors",
        "_events",
        "_messages",
        "_ownership",
        "_reconcile",
    },
    "__init__": {"core", "stores", "_connection", "_errors", "_events", "_guard", "_reconcile"},
    "__main__": {"cli"},
    "testing": {""},
    "adapters": {""},
    "cli": {""},
}

# Each third-party package is imported where it is sealed in, and nowhere else.
ONLY_IN = {
    "mcp": ("_messages", "adapters", "cli", "testing"),
    "httpcore": ("transports.connections", "transports.pool"),
    "httpx": (
        "transports.connections",
        "transports.gzipped",
        "transports.http",
        "transports.pool",
        "adapters",
        "cli",
        "testing",
    ),
    "httpx_sse": ("transports.sse",),
    "tenacity": ("transports.retry",),
    "websockets": ("transports.websocket", "testing"),
}

NOT_IN_CORE = {
    "time",
    "random",
    "secrets",
    "uuid",
    "datetime",
    "logging",
    "asyncio",
    "threading",
    "socket",
    "sqlite3",
    "os",
    "io",
    "pathlib",
}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module by its name inside the package; a package's own by the package's name."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        yield ".".join(parts), path


def imports(name: str, path: Path, *, for_types: bool = True) -> Iterator[str]:
    """What a module imports, absolute: `mcp_client_guard.core.model`, `anyio`, …; or only what it runs with."""
    package = [PACKAGE, *name.split(".")]
    if path.name != "__init__.py" or name == "__init__":
        package = package[:-1]
    tree = ast.parse(path.read_text())
    if not for_types:
        tree.body = [statement for statement in tree.body if not _is_for_types(statement)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                yield whole if _is_module(whole) else source


def _is_for_types(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def _is_module(name: str) -> bool:
    parts = name.split(".")
    if parts[0] != PACKAGE:
        return False
    path = ROOT.joinpath(*parts[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def starts_with(name: str, prefix: str) -> bool:
    return prefix == "" or name == prefix or name.startswith(f"{prefix}.")


MODULES = list(modules())
IDS = [name for name, _ in MODULES]


@pytest.mark.parametrize(("name", "path"), MODULES, ids=IDS)
def test_no_module_knows_what_it_may_not(name: str, path: Path) -> None:
    part = next(p for p in sorted(MAY_KNOW, key=len, reverse=True) if starts_with(name, p))
    for imported in imports(name, path):
        if starts_with(imported, PACKAGE):
            known = imported.removeprefix(PACKAGE).lstrip(".")
            assert any(starts_with(known, allowed) for allowed in MAY_KNOW[part]), f"{name} imports {imported}"


@pytest.mark.parametrize(("name", "path"), [m for m in MODULES if starts_with(m[0], "core")])
def test_the_core_is_pure(name: str, path: Path) -> None:
    """attrs and the standard library; no clock, randomness, log, task, socket or disk, and no `async`."""
    for imported in imports(name, path):
        top = imported.split(".")[0]
        assert top in {PACKAGE, "attrs", "__future__"} or top in sys.stdlib_module_names, f"{name}: {imported}"
        assert top not in NOT_IN_CORE, f"{name} imports {imported}"
    awaits = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert not [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, awaits)]


@pytest.mark.parametrize(("name", "path"), MODULES, ids=IDS)
def test_each_third_party_package_is_sealed_in(name: str, path: Path) -> None:
    for imported in imports(name, path):
        allowed = ONLY_IN.get(imported.split(".")[0])
        assert allowed is None or any(starts_with(name, a) for a in allowed), f"{name} imports {imported}"


def test_the_ledger_knows_nothing_of_event_ids() -> None:
    path = ROOT / "core" / "ledger.py"
    known = {i.rsplit(".", 1)[-1] for i in imports("core.ledger", path)}
    assert not known & {"trail", "trial", "event_id", "streams"}


def modules_of(top: type) -> set[str]:
    """The modules of a class and of all that it is built on."""
    known = (base.__module__ for base in top.__mro__)
    return {name.removeprefix(f"{PACKAGE}.") for name in known if starts_with(name, PACKAGE)}


STREAMS, CALLS = modules_of(Reconnecting), modules_of(Hooking)


@pytest.mark.parametrize(("name", "path"), [m for m in MODULES if m[0] in STREAMS | CALLS])
def test_neither_half_of_the_core_imports_the_other(name: str, path: Path) -> None:
    """What judges streams and what judges calls: each is given the other by the machine."""
    known = {imported.removeprefix(f"{PACKAGE}.") for imported in imports(name, path, for_types=False)}
    assert not known & (CALLS if name in STREAMS else STREAMS)


@pytest.mark.parametrize(
    ("name", "code", "wrong"),
    [
        ("core.x", "from mcp_client_guard.transports import http", "mcp_client_guard.transports.http"),
        ("core.x", "from ..transports.http import opened", "mcp_client_guard.transports.http"),
        ("core.x", "from .. import _guard", "mcp_client_guard._guard"),
        ("core.x", "def f():\n    import time", "time"),
        ("core.x", "if TYPE_CHECKING:\n    import anyio.abc", "anyio.abc"),
    ],
)
def test_the_walk_sees_every_kind_of_import(tmp_path: Path, name: str, code: str, wrong: str) -> None:
    path = tmp_path / "x.py"
    path.write_text(code)
    assert list(imports(name, path)) == [wrong]


def test_the_public_names_are_these() -> None:
    assert set(mcp_client_guard.__all__) == PUBLIC
    assert len(mcp_client_guard.__all__) == len(PUBLIC)
    assert all(hasattr(mcp_client_guard, name) for name in PUBLIC)


def test_the_core_imports_without_anything_but_attrs() -> None:
    """Nothing above the core is loaded by it."""
    import subprocess

    program = (
        "import sys, importlib.util, types\n"
        f"package = types.ModuleType({PACKAGE!r}); package.__path__ = [{str(ROOT)!r}]\n"
        f"sys.modules[{PACKAGE!r}] = package\n"
        f"import {PACKAGE}.core.machine\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('anyio', 'asyncio', 'httpx', 'mcp', 'logging')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PUBLIC_MODULES = (mcp_client_guard, mcp_client_guard.stores, mcp_client_guard.testing)


def docs_of(value: object) -> list[str]:
    parts = [value, *(vars(value).values() if isinstance(value, type) else ())]
    return [part.__doc__ for part in parts if isinstance(getattr(part, "__doc__", None), str)]


@pytest.mark.parametrize("module", PUBLIC_MODULES, ids=lambda module: module.__name__)
def test_a_public_docstring_names_no_page_that_users_do_not_have(module: ModuleType) -> None:
    """The pages of the design, and its promises by number."""
    named = {
        name: found
        for name in module.__all__
        for doc in docs_of(getattr(module, name))
        if (found := re.findall(r"DESIGN|INTEGRATIONS|HAZARDS|SPEC-FACTS|§|\b[SL]\d{1,2}\b", doc))
    }
    assert named == {}
