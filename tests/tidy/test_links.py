"""Links, anchors and paths in the Markdown files point at something that exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tidy.source_tree import ROOT
from tests.tidy.test_tree_rules import NOT_OURS, python_files, tracked_files

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
IN_BACKTICKS = re.compile(r"`([\w./*-]+)`")
# A path of the repository begins with a folder or a file at its top.
TOP = frozenset(path.name for path in ROOT.iterdir()) - NOT_OURS


def markdown_files() -> list[Path]:
    return [ROOT / name for name in tracked_files() if name.endswith(".md")]


def prose(path: Path) -> str:
    """The text without fenced code."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them: lower case, hyphens, no punctuation."""
    found = set()
    for heading in HEADING.findall(prose(path)):
        text = LINK.sub(lambda link: link[0].partition("[")[2].partition("]")[0], heading)
        found.add(re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-"))
    return found


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The `ottla` command\n\n## How fast is it?\n\n```\n# not one\n```\n")
    assert anchors(page) == {"the-ottla-command", "how-fast-is-it"}


def test_relative_links_and_anchors_exist() -> None:
    wrong = []
    for path in markdown_files():
        for target in LINK.findall(prose(path)):
            if re.match(r"\w+:", target):
                continue
            name, _, anchor = target.partition("#")
            linked = (path.parent / name).resolve() if name else path
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                wrong.append(f"{path.relative_to(ROOT)}: {target}")
    assert not wrong, "\n".join(wrong)


def is_there(text: str) -> bool:
    path = text.rstrip("/").removeprefix("ottla/")  # as it is named where it is installed
    if "*" in path:
        return any(ROOT.glob(path))
    places = (ROOT, ROOT / "ottla")
    return any((place / f"{path}{ending}").exists() for place in places for ending in ("", ".py"))


def test_paths_in_backticks_exist() -> None:
    """Of files, folders, patterns, and modules without their ending: `broker/server/`."""
    wrong = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in markdown_files()
        for text in IN_BACKTICKS.findall(prose(path))
        if "/" in text and text.partition("/")[0] in TOP and not is_there(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_paths_in_python_files_exist() -> None:
    """In comments, docstrings and strings: files below the folders of the repository."""
    folders = "|".join(sorted(re.escape(name) for name in TOP if (ROOT / name).is_dir()))
    pattern = re.compile(rf"(?<![\w/.])((?:{folders})/[\w./-]+\.(?:py|md|txt|sh|yml))\b")
    wrong = [
        f"{name}: {text}"
        for name in python_files()
        if not name.startswith("tests/installed/")  # they write projects with paths of their own
        for text in pattern.findall((ROOT / name).read_text(encoding="utf-8"))
        if not is_there(text)
    ]
    assert not wrong, "\n".join(wrong)
