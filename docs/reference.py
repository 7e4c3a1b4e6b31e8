"""Writes `docs/reference.md` from the docstrings: `python -m docs.reference`.

Reads the source and imports nothing, so that the page is the same on every Python and with every SDK.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

from attrs import frozen

ROOT = Path(__file__).parents[1]
PACKAGE = "mcp_client_guard"
PAGE = ROOT / "docs" / "reference.md"

SECTIONS = {
    "Connecting": ("Guard", "Connection"),
    "Choices": ("GuardPolicy", "ResendRule", "IdScheme"),
    "What became of a call": ("CallInDoubt", "CallNotExecuted", "Outcome", "StoredCall"),
    "The hook": ("ReconcileHook", "InDoubtCall", "Reconciler", "Verdict", "Resend", "Resolve", "Fail"),
    "Events": ("Event", "EventCallback", "Evidence", "Grade", "Generation"),
    "Exceptions": (),
    "Stores": ("MemoryStore", "SQLiteStore", "Store", "Claim", "StoredSession"),
}
"""Besides these, what `core/report.py` defines is an event, and what `_errors.py` defines an exception."""

ONLY: dict[str, tuple[str, ...]] = {"Connection": ("session_id",), "GuardPolicy": ()}
"""Classes of which not every method is for users: those that are."""

BY_MODULE = {"core.report": "Events", "_errors": "Exceptions"}
SECONDS = ("_seconds", "_seconds_by_tool")
WORDS = {"16 * _MiB": "16 MiB", "IdScheme.OPAQUE": '"opaque"', "dict": "{}", "Told.CALLER": "Told.CALLER"}

HEAD = """\
# Reference

<!-- Made from the docstrings by `python -m docs.reference`. Do not edit: a test holds it to them. -->

Every public name. Times are in seconds. What the names are for is in the other pages: [outcomes](outcomes.md),
[events](events.md), [frameworks](frameworks.md), [your own HTTP client](http-client.md), [testing](testing.md).
"S4" and the like are [promises](promises.md).
"""
TESTING = """
What the project itself is tested with, for tests of your own: `from mcp_client_guard.testing import ...`.
[testing.md](testing.md) shows how.
"""
DROP_IN = """
For users of the SDK: `from mcp_client_guard.adapters.mcp import streamable_http_client`. It has the parameters and
the tuple of the installed SDK's function; on SDK 1.x also under its older name, `streamablehttp_client`.
"""


@frozen
class Found:
    """What a name of the package stands for."""

    name: str
    module: str
    node: ast.stmt
    says: str
    """The docstring of a class or function, or the text below an assignment."""
    source: str


@frozen
class Part:
    """A field, or a member of an enum."""

    name: str
    kind: str
    default: str
    says: str


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    public = list(names_of(""))
    sections = {title: [by_name(public, name) for name in names] for title, names in SECTIONS.items()}
    for found in public:
        if found.module in BY_MODULE:
            sections[BY_MODULE[found.module]].append(found)
    placed = {found.name for section in sections.values() for found in section}
    left = {found.name for found in public} - placed
    assert not left, f"add to SECTIONS of docs/reference.py: {left}"
    lines = [HEAD]
    for title, section in sections.items():
        lines.append(f"## {title}\n")
        if title == "Exceptions":
            lines.append(tree())
        lines += [shown(found) for found in section]
        if title == "Connecting":
            lines.append(f"### `streamable_http_client`\n{DROP_IN}")
    lines.append(f"## Testing\n{TESTING}")
    lines += [shown(found) for found in names_of("testing")]
    return "\n".join(lines)


# What there is.


def names_of(folder: str) -> Iterator[Found]:
    """Each name that the `__init__` of this folder exports, in its order there."""
    init = ROOT / PACKAGE / folder / "__init__.py"
    modules = {
        alias.name: ".".join(filter(None, [folder, node.module]))
        for node in ast.parse(init.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    for name, module in modules.items():
        if name != "annotations":
            yield find(name, module)


def by_name(public: list[Found], name: str) -> Found:
    return next(found for found in public if found.name == name)


def find(name: str, module: str) -> Found:
    path = ROOT / PACKAGE / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    source = path.read_text()
    body = ast.parse(source).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return Found(name, module, node, ast.get_docstring(node) or "", source)
        if target_of(node) == name:
            return Found(name, module, node, text_of(after), source)
    for node in body:  # what this module passes on
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return find(name, str(node.module).removeprefix(f"{PACKAGE}."))
    raise LookupError(name)


def target_of(node: ast.stmt) -> str | None:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else None


def text_of(node: ast.stmt | None) -> str:
    """The literal text that stands below an assignment, if one does."""
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def parts_of(found: Found) -> list[Part]:
    assert isinstance(found.node, ast.ClassDef)
    body = found.node.body
    parts = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        name = target_of(node)
        if name and not name.startswith("_") and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
            kind = written(found, node.annotation) if isinstance(node, ast.AnnAssign) else ""
            parts.append(Part(name, kind + unit_of(node.value), default_of(found, node.value), text_of(after)))
        elif name and not name.startswith("_") and isinstance(node, ast.AnnAssign):
            parts.append(Part(name, written(found, node.annotation), "", text_of(after)))
    return parts


def unit_of(value: ast.expr) -> str:
    validators = [k.value for k in value.keywords if k.arg == "validator"] if isinstance(value, ast.Call) else []
    return ", in seconds" if any(isinstance(v, ast.Name) and v.id in SECONDS for v in validators) else ""


def default_of(found: Found, value: ast.expr) -> str:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("field", "auto"):
        given = [k.value for k in value.keywords if k.arg in ("default", "factory")]
        words = written(found, given[0]) if given else ""
    else:
        words = written(found, value)
    return WORDS.get(words, words)


def written(found: Found, node: ast.AST) -> str:
    """As it stands in the source, on one line."""
    return " ".join((ast.get_source_segment(found.source, node) or "").split())


# How it is shown.


def shown(found: Found) -> str:
    lines = [f"### `{found.name}`\n"]
    if isinstance(found.node, ast.ClassDef):
        made = [n for n in found.node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        if made and found.module != "_errors" and found.name not in ONLY:
            lines.append(code(signature(found, made[0], found.name)))
        fields = table(found)
        lines.append(prose(without_args(found.says) if fields else found.says))
        lines += fields
        lines += [method(found, node) for node in found.node.body if is_shown(found, node)]
    elif isinstance(found.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        lines += [code(signature(found, found.node, found.name)), prose(found.says)]
    else:
        assert isinstance(found.node, (ast.Assign, ast.AnnAssign))
        assert found.node.value is not None
        what = "One of the events below." if found.name == "Event" else code(written(found, found.node.value))
        lines += [what if what.endswith("\n") else f"{what}\n", prose(found.says)]
    return "\n".join(filter(None, lines))


def is_shown(found: Found, node: ast.stmt) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
        return False
    return bool(ast.get_docstring(node)) and node.name in ONLY.get(found.name, (node.name,))


def method(found: Found, node: ast.stmt) -> str:
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    decorators = {ast.unparse(each) for each in node.decorator_list}
    if "property" in decorators:
        assert node.returns is not None
        words = f"{node.name}: {written(found, node.returns)}"
    elif "contextmanager" in decorators:
        words = f"with {signature(found, node, node.name).partition(' -> ')[0]}"
    elif "classmethod" in decorators:
        words = signature(found, node, f"{found.name}.{node.name}")
    else:
        words = signature(found, node, node.name)
    return f"**`{words}`**\n\n{prose(ast.get_docstring(node) or '')}"


def signature(found: Found, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    a = node.args
    plain = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(plain) - len(a.defaults)) + [*a.defaults]
    words = [
        parameter(found, each, default)
        for each, default in zip(plain, defaults, strict=True)
        if each.arg not in ("self", "cls")
    ]
    if a.vararg:
        words.append("*" + parameter(found, a.vararg, None))
    elif a.kwonlyargs:
        words.append("*")
    words += [parameter(found, each, default) for each, default in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    if a.kwarg:
        words.append("**" + parameter(found, a.kwarg, None))
    is_class = node.name == "__init__"
    returns = "" if is_class or node.returns is None else f" -> {written(found, node.returns)}"
    is_async = isinstance(node, ast.AsyncFunctionDef) and "AsyncIterator" not in returns
    return f"{'await ' * is_async}{name}({', '.join(words)}){returns}"


def parameter(found: Found, each: ast.arg, default: ast.expr | None) -> str:
    kind = f": {written(found, each.annotation)}" if each.annotation else ""
    return f"{each.arg}{kind}" + (f" = {written(found, default)}" if default is not None else "")


def code(text: str) -> str:
    """Long signatures have a line for each parameter."""
    if len(text) > 100:
        text = re.sub(
            r"\((.*)\)", lambda m: "(\n    " + split(m[1]).replace("\n", "\n    ") + "\n)", text, count=1
        )
    return f"```text\n{text}\n```\n"


def split(parameters: str) -> str:
    """At the commas that stand in no brackets."""
    depth, out = 0, ""
    for letter in parameters.replace(", ", ",\0"):
        depth += letter in "([{"
        depth -= letter in ")]}"
        out += ("\n" if depth == 0 else " ") if letter == "\0" else letter
    return out


def table(found: Found) -> list[str]:
    parts = parts_of(found)
    if not parts:
        return []
    with_types, with_defaults = any(p.kind for p in parts), any(p.default for p in parts)
    head = ["", *["type"] * with_types, *[("default" if with_types else "value")] * with_defaults, ""]
    rows = [head, ["---"] * len(head)]
    for part in parts:
        kind, _, unit = part.kind.partition(", in ")
        words = f"`{kind}`" + (f", in {unit}" if unit else "")
        default = f"`{part.default}`" if part.default else ""
        rows.append(
            [f"`{part.name}`", *[words] * with_types, *[default] * with_defaults, " ".join(part.says.split())]
        )
    return ["\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows) + "\n"]


def prose(docstring: str) -> str:
    """Paragraphs on one line each; what stands below `Args:` and `Raises:` as a list."""
    blocks = []
    docstring = re.sub(r" \(DESIGN §\d+\)", "", docstring)
    for block in re.split(r"\n{2,}", docstring.strip()):
        head, _, rest = block.partition("\n")
        if re.fullmatch(r"(Args|Raises)( \(.*\))?:", head):
            blocks.append(f"{head}\n\n{entries(dedent(rest))}")
        elif all(line.startswith("    ") for line in block.splitlines()):
            blocks.append(f"```text\n{dedent(block)}\n```")
        else:
            blocks.append(" ".join(block.split()))
    return "\n\n".join(filter(None, blocks)) + "\n" if docstring else ""


def without_args(docstring: str) -> str:
    """For where a table says more of each than `help()` does."""
    return re.sub(r"^Args:\n(?: .*\n)*\n?", "", docstring, flags=re.MULTILINE)


def entries(text: str) -> str:
    items: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line)
    return "\n".join(re.sub(r"^([\w, ]+): ", lambda m: f"- `{m[1]}`: ", item) for item in items)


def tree() -> str:
    """As `_errors.py` draws it."""
    says = ast.get_docstring(ast.parse((ROOT / PACKAGE / "_errors.py").read_text())) or ""
    return prose(says)


if __name__ == "__main__":
    main()
