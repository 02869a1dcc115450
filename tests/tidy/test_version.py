"""The version is written in `ottla/__init__.py`; what must repeat it is compared with it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from ottla import __version__

ROOT = Path(__file__).resolve().parents[2]
# A wheel, an image or a sentence with a version of Ottla.
NAMED = re.compile(r"\bottla[-:= ]+v?(\d+\.\d+(?:\.\d+)?)\b", re.IGNORECASE)
FOLDERS = ("docs", "deploy", "ottla", "broker", "cli", "controller", "protocol", "storage", "tools")


def texts() -> Iterator[tuple[str, str]]:
    suffixes = {".md", ".py", ".toml", ".yaml", ".yml", ".sh", ".txt", ".json"}
    files = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        files += (ROOT / folder).rglob("*")
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and (path.suffix in suffixes or path.name == "Dockerfile"):
            yield name, path.read_text(encoding="utf-8")


def test_no_file_names_another_version_of_ottla() -> None:
    wrong = {
        (name, found)
        for name, text in texts()
        for found in NAMED.findall(text)
        if found != __version__
    }
    assert not wrong


def test_packaging_reads_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ottla.__version__"}


def test_only_the_chart_repeats_it() -> None:
    """tests/installed/test_chart.py compares that one; documents name wheels and images."""
    quoted = re.compile(
        rf"""(?:version|VERSION)\w*['"]?\s*[=:]\s*['"]?{re.escape(__version__)}\b"""
    )
    found = {name for name, text in texts() if quoted.search(text)}
    assert found == {"ottla/__init__.py", "deploy/helm/ottla/Chart.yaml"} | {
        "docs/quickstart.md"  # the version of the example's own Rust package
    }
