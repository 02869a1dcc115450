"""A known defect as a change of functions, which survives that they move to another file or line.

The text of a defect is a head and then one change or more::

    Defect: what is wrong with it (a sentence).
    Arguments: --kinds away --troubles 6

    in storage/log/truncation.py LogTruncator._truncate_to
     a line of the function
    -a line that the defect removes
    +a line that it adds

The name after the path is the qualified name of a function or class, or `module`. If the function
is not in that file any more, it is looked for in all others. The lines with ` ` and `-` must be in
the function once, at any indentation; they are replaced by those with ` ` and `+`.
"""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

FOLDERS = ("broker", "cli", "controller", "protocol", "pyspark_ottla", "storage")
MODULE = "module"


class DoesNotApply(Exception):
    """The function has changed, or is gone: the defect has to follow."""


class Change(NamedTuple):
    """Lines of one function."""

    path: str
    name: str
    old: list[str]
    new: list[str]


class Defect(NamedTuple):
    """One file of this folder."""

    name: str
    what: str
    arguments: str
    changes: list[Change]


def read(path: Path) -> Defect:
    """The defect in a file. Raises ValueError."""
    head: dict[str, str] = {}
    changes: list[Change] = []
    for line in path.read_text().splitlines():
        if line.startswith("in "):
            _, where, name = line.split(" ")
            changes.append(Change(where, name, [], []))
        elif not changes:
            key, _, value = line.partition(":")
            head[key] = value.strip()
        elif line[:1] in (" ", "-", "+", ""):
            text = line[1:]
            if line[:1] != "+":
                changes[-1].old.append(text)
            if line[:1] != "-":
                changes[-1].new.append(text)
        else:
            raise ValueError(f"{path}: {line!r}")
    stripped = [each._replace(old=_stripped(each.old), new=_stripped(each.new)) for each in changes]
    return Defect(path.stem, head["Defect"], head.get("Arguments", ""), stripped)


def apply(defect: Defect, root: Path) -> None:
    """Puts the defect into a tree. Raises DoesNotApply."""
    for change in defect.changes:
        path, source = find(change, root)
        path.write_text(changed(change, source))


def check(defect: Defect, root: Path) -> None:
    """Raises DoesNotApply where `apply` would, and writes nothing."""
    sources: dict[Path, str] = {}
    for change in defect.changes:
        path, source = find(change, root)
        sources[path] = changed(change, sources.get(path, source))


def find(change: Change, root: Path) -> tuple[Path, str]:
    """The file that has the function now, and its source."""
    first = root / change.path
    if first.exists() and place(source := first.read_text(), change.name):
        return first, source
    last = change.name.rpartition(".")[2]
    found = [
        (path, source)
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if last in (source := path.read_text()) and place(source, change.name)
    ]
    if change.name == MODULE or len(found) != 1:
        places = ", ".join(str(path) for path, _ in found) or "nowhere"
        raise DoesNotApply(f"{change.name} of {change.path} is {places}")
    return found[0]


def place(source: str, name: str) -> tuple[int, int] | None:
    """The first line of a function or class and the one behind it, from 0."""
    if name == MODULE:
        return 0, len(source.splitlines())
    body: list[ast.stmt] = ast.parse(source).body
    found: ast.stmt | None = None
    for part in name.split("."):
        named = [each for each in body if getattr(each, "name", None) == part]
        if not named:
            return None
        found = named[-1]
        body = found.body  # type: ignore[attr-defined]
    assert found is not None
    assert found.end_lineno is not None
    decorators = [each.lineno for each in getattr(found, "decorator_list", [])]
    return min([found.lineno, *decorators]) - 1, found.end_lineno


def changed(change: Change, source: str) -> str:
    """The source of a module with the change in it. Raises DoesNotApply."""
    lines = source.splitlines()
    where = place(source, change.name)
    if where is None:
        raise DoesNotApply(f"{change.path} has no {change.name}")
    wanted, count = _dedented(change.old), len(change.old)
    starts = [
        at
        for at in range(where[0], where[1] - count + 1)
        if _dedented(lines[at : at + count]) == wanted
    ]
    if len(starts) != 1:
        raise DoesNotApply(
            f"{change.name} of {change.path} has these lines {len(starts)} times:\n{wanted}"
        )
    at = starts[0]
    margin = _margin(lines[at : at + count])
    # Both have the margin of the old lines: new ones may be indented less only in a wrong text.
    own = _margin(change.old)
    new = [each[len(own) :] if each.strip() else "" for each in change.new]
    text = indent("\n".join(new), margin).splitlines()
    return "\n".join([*lines[:at], *text, *lines[at + count :]]) + "\n"


def _dedented(lines: list[str]) -> str:
    return dedent("\n".join(each.rstrip() for each in lines))


def _margin(lines: list[str]) -> str:
    text = "\n".join(lines)
    filled = next((each for each in lines if each.strip()), "")
    short = next((each for each in dedent(text).splitlines() if each.strip()), "")
    return filled[: len(filled) - len(short)]


def _stripped(lines: list[str]) -> list[str]:
    """Without the empty lines at the end, which separate changes."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines
