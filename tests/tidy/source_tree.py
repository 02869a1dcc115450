"""The source modules by their installed names and their imports, for the rules of the tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The folders that `ottla/` links to, and the Spark connector, which is installed by its own name.
OTTLA_FOLDERS = ("protocol", "storage", "controller", "broker", "cli")
PACKAGES = (*OTTLA_FOLDERS, "pyspark_ottla")


@cache
def modules() -> dict[str, Path]:
    """Every source module by its installed name: `ottla.broker.net.connection` and so on."""
    found = {"ottla": ROOT / "ottla" / "__init__.py"}
    found["ottla.testing"] = ROOT / "ottla" / "testing.py"
    found["ottla.policies"] = ROOT / "ottla" / "policies.py"
    found["ottla.quotas"] = ROOT / "ottla" / "quotas.py"
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
            prefix = "" if package == "pyspark_ottla" else "ottla."
            found[prefix + name.removesuffix(".__init__")] = path
    return {name: path for name, path in found.items() if path.exists()}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `node` but those in `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _at_run_time(child)


@cache
def imported_names(path: Path, at_run_time: bool = False) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of everything that a file imports, by default for type checking too.

    `from a import b` gives `a.b`, which may be a module or something that is defined in `a`.
    """
    names: list[tuple[int, str]] = []
    tree = parsed(path)
    for node in _at_run_time(tree) if at_run_time else ast.walk(tree):
        if isinstance(node, ast.Import):
            names.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            assert all(alias.name != "*" for alias in node.names), f"{path}: no star imports"
            names.extend((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    return tuple(names)


@cache
def import_graph() -> dict[str, frozenset[str]]:
    """Which modules of ours each of our modules imports at run time."""
    known = modules()

    def module_of(name: str) -> str | None:
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name or None

    return {
        name: frozenset(
            found
            for _, imported in imported_names(path, at_run_time=True)
            if (found := module_of(imported)) is not None and found != name
        )
        for name, path in known.items()
    }


def circles(graph: dict[str, frozenset[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan), each sorted by name."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for successor in sorted(graph.get(node, ())):
            if successor not in index:
                visit(successor)
                low[node] = min(low[node], low[successor])
            elif successor in stack:
                low[node] = min(low[node], index[successor])
        if low[node] == index[node]:
            place = stack.index(node)
            component, stack[place:] = stack[place:], []
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)
