"""Rules about the tree itself: sizes, empty package files, words that must not be there."""

import ast
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source_tree import OTTLA_FOLDERS, PACKAGES, ROOT, imported_names, modules, parsed

# One file for one thing; past this a file is hard to keep in mind.
LINES_MAX = 1000
GENERATED = ("protocol/messages/",)
# What .gitignore names: environments, caches, data.
NOT_OURS = {".git", ".venv", ".cache", ".hypothesis", "__pycache__"} | {
    *(f".{tool}_cache" for tool in ("mypy", "ruff", "pytest")),
    *("build", "dist", "data", "site", "secrets"),
}
# pyspark_ottla must define DefaultSource at its top: Spark looks for it there and nowhere else.
# The folders of Ottla refuse to be imported by their bare names there.
INIT_EXEMPT = {"pyspark_ottla/__init__.py"} | {f"{name}/__init__.py" for name in OTTLA_FOLDERS}


def tracked_files() -> list[str]:
    """Every file that could be committed: git is not asked, for it need not be installed."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        if "pyvenv.cfg" in names:  # a virtual environment that somebody made in the checkout
            folders.clear()
            continue
        folders[:] = [
            name for name in folders if name not in NOT_OURS and not name.endswith(".egg-info")
        ]
        found.extend(
            (Path(folder) / name).relative_to(ROOT).as_posix()
            for name in names
            if name not in NOT_OURS  # `.git` is a file in a worktree
        )
    return sorted(found)


def python_files() -> list[str]:
    return [
        name for name in tracked_files() if name.endswith(".py") and not name.startswith(GENERATED)
    ]


# Cohesive files that are longer, with the reason; up to 700 lines.


def test_files_stay_small() -> None:
    sizes = {name: len((ROOT / name).read_text().splitlines()) for name in python_files()}
    too_long = {name: size for name, size in sizes.items() if size > LINES_MAX}
    assert not too_long


def test_package_init_files_are_empty() -> None:
    full = [
        name
        for name in python_files()
        if name.endswith("__init__.py")
        and name.split("/")[0] in PACKAGES
        and name not in INIT_EXEMPT
        and ast.parse((ROOT / name).read_text()).body
    ]
    assert not full


@pytest.mark.parametrize("package", OTTLA_FOLDERS)
def test_a_bare_name_is_refused_in_a_sentence(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {package}"], cwd=ROOT, capture_output=True, text=True
    )
    assert f"ImportError: import ottla.{package}, not {package}: " in done.stderr


def test_nothing_names_a_module_by_its_bare_name() -> None:
    """In imports and in strings: what is not below `ottla` exists in a checkout only."""
    bare = [
        name.removeprefix("ottla.")
        for name in modules()
        if name.startswith("ottla.") and name.count(".") > 1
    ]
    # `broker.id` is a setting and `broker.server` an attribute; what ends in a call is code.
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, bare))})\b(?!\()")
    wrong = []
    for name in python_files():
        tree = parsed(ROOT / name)
        wrong += [
            f"{name}:{line} imports {imported}"
            for line, imported in imported_names(ROOT / name)
            if imported.split(".")[0] in OTTLA_FOLDERS
        ]
        wrong += [
            f"{name}:{node.lineno} runs -m {following.value}"
            for node in ast.walk(tree)
            if isinstance(node, (ast.List, ast.Tuple))
            for option, following in itertools.pairwise(node.elts)
            if isinstance(option, ast.Constant) and option.value == "-m"
            if isinstance(following, ast.Constant) and following.value in OTTLA_FOLDERS
        ]
        wrong += [
            f"{name}:{node.lineno} has {found[0]!r} in a string"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            for found in [pattern.search(node.value)]
            if found
        ]
    assert not wrong, "\n".join(wrong)


def test_every_public_module_says_what_it_is() -> None:
    silent = [
        name
        for name in python_files()
        if name.split("/")[0] in PACKAGES
        and not name.endswith("__init__.py")
        and not ast.get_docstring(ast.parse((ROOT / name).read_text()))
    ]
    assert not silent


def test_no_path_of_a_single_machine() -> None:
    """Nothing in the tree may depend on one person's machine."""
    pattern = re.compile(r"/(work|root|home/\w+)/(main|shared|\.)|\.\./shared")
    wrong = []
    for name in tracked_files():
        if name == "tests/tidy/test_tree_rules.py":
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if pattern.search(text):
            wrong.append(name)
    assert not wrong


def test_the_tests_that_the_documentation_names_are_there() -> None:
    """A change of a name must change the page that names the test."""
    tests = "".join((ROOT / name).read_text() for name in python_files() if "tests/" in name)
    known = set(re.findall(r"def (test_\w+)\(", tests))
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "controller.md").read_text()))
    assert len(named) > 20
    assert named <= known
