"""What goes with a Spark job runs on Python 3.10, which Spark's own images still have."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cli.spark_package import package_files

PROGRAM = "from vermin import main; main()"


def violations(paths: list[Path]) -> str:
    """What vermin finds that Python 3.10 does not have; empty if there is nothing."""
    arguments = ["--target=3.10-", "--violations", "--no-parse-comments", *map(str, paths)]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.stdout + done.stderr if done.returncode else ""


def test_the_files_of_the_zip_use_nothing_newer() -> None:
    assert violations(list(package_files().values())) == ""


@pytest.mark.parametrize(
    "newer",
    [
        "import tomllib",
        "from typing import Self",
        "from datetime import UTC",
        "import asyncio; asyncio.timeout(1)",
        "raise ExceptionGroup('several', [])",
        "try:\n    pass\nexcept* ValueError:\n    pass",
    ],
)
def test_what_is_newer_is_found(newer: str, tmp_path: Path) -> None:
    path = tmp_path / "newer.py"
    path.write_text(newer)
    assert "3.11" in violations([path])


def test_the_syntax_is_that_of_3_10() -> None:
    for name, path in package_files().items():
        ast.parse(path.read_text(encoding="utf-8"), filename=name, feature_version=(3, 10))


def test_what_vermin_does_not_know() -> None:
    """Arguments that became optional, and attributes of objects whose type it cannot tell."""
    attributes = {"add_note", "co_qualname", "co_positions"}
    wrong = []
    for name, path in package_files().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in attributes:
                wrong.append(f"{name}:{node.lineno} uses {node.attr}")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = len(node.args) + len(node.keywords)
                if node.func.attr in {"to_bytes", "from_bytes"} and given < 2:
                    wrong.append(f"{name}:{node.lineno} leaves the byte order to Python")
    assert not wrong, "\n".join(wrong)
