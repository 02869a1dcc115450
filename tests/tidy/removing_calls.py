"""Finds the calls in the source that delete, rename or truncate what is on disk or in a store."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.tidy.source_tree import ROOT, parsed

FOLDERS = ("storage", "broker", "controller")
# The double of a disk that fails, and a broker in a test, which deletes its own directory.
LEFT_OUT = ("broker/testing/",)

# Whatever the object is.
ALWAYS = frozenset(
    (
        *("remove_tree", "rmtree", "unlink", "truncate", "change_suffix", "retire"),
        *("retire_segments", "retire_snapshot", "delete_snapshot", "delete_snapshots"),
        *("delete_async", "abandon_future", "truncate_to", "truncate_fully_and_start_at"),
        *("truncate_from_start", "truncate_from_end", "delete_records_before"),
        *("delete_log_segment", "delete_partition", "remove_files", "_remove_files"),
        *("set_file_aside", "delete_old_segments", "delete_orphans"),
        *("advance_log_start", "advance_local_log_start", "restart_at"),
    )
)
# Other objects have methods of these names: (method, end of the name of the object).
OF_OBJECT = (
    ("remove", "fs"),
    ("replace", "fs"),
    ("remove", "os"),
    ("replace", "os"),
    ("rename", "os"),
    ("add", "deletions"),
    ("delete", "remote"),
    ("delete", "obstore"),
)
# In some folders only, and the wrappers of some modules.
OF_PLACE = (
    ("storage/remote/", "delete", "store"),
    ("storage/recovery/recovery.py", "_delete", "self"),
    ("storage/recovery/recovery.py", "_set_aside", "self"),
    ("broker/remote/segment_expiration.py", "_delete", "self"),
    ("storage/log/truncation.py", "_delete", "self"),
)


def removing_calls() -> dict[str, list[str]]:
    """By function, as in `log.py:Log.append`: the names of what it calls, sorted, with repeats."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(LEFT_OUT):
                continue
            for function, primitive in calls_in(name, parsed(path)):
                found[f"{name}:{function}"].append(primitive)
    return {site: sorted(calls) for site, calls in found.items()}


def calls_in(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(function, what it calls) in the source of a module."""
    for function, called in _calls(tree, ""):
        primitive = _primitive(module, called)
        if primitive is not None:
            yield function, primitive


def _calls(node: ast.AST, within: str) -> Iterator[tuple[str, ast.expr]]:
    """Every function that is called, or passed to be called, with the function that does it."""
    for child in ast.iter_child_nodes(node):
        inside = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{within}.{child.name}" if within else child.name
        if isinstance(child, ast.Attribute | ast.Name) and isinstance(child.ctx, ast.Load):
            yield within or "<module>", child
        yield from _calls(child, inside)


def _primitive(module: str, called: ast.expr) -> str | None:
    if isinstance(called, ast.Name):
        # A function of a module; a local variable may have the name of a method.
        names = ("set_file_aside", "delete_partition", "_remove_files", "delete_orphans")
        return called.id if called.id in names else None
    assert isinstance(called, ast.Attribute)
    method, owner = called.attr, _last_word(called.value)
    if method in ALWAYS:
        return method
    if any(method == each and owner.strip("_").endswith(end) for each, end in OF_OBJECT):
        return f"{owner.strip('_')}.{method}"
    for place, each, end in OF_PLACE:
        if module.startswith(place) and method == each and owner.strip("_").endswith(end):
            return f"{owner.strip('_')}.{method}"
    return None


def _last_word(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    if isinstance(expression, ast.Name):
        return expression.id
    return _last_word(expression.func) if isinstance(expression, ast.Call) else ""
