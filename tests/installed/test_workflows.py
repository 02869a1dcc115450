"""The workflows call what the Makefile has, on the Pythons that the project names."""

from __future__ import annotations

import re

from tests.installed.builds import ROOT
from tests.installed.pythons import supported

WORKFLOWS = ROOT / ".github" / "workflows"


def test_make_test_runs_on_every_supported_python() -> None:
    text = (WORKFLOWS / "test.yml").read_text()
    assert "run: make test " in text
    [matrix] = re.findall(r"^ +python: \[(.*)\]$", text, re.MULTILINE)
    assert [version.strip(' "') for version in matrix.split(",")] == supported()


def test_a_release_has_bills_of_materials_and_a_way_back() -> None:
    text = (WORKFLOWS / "release.yml").read_text()
    called = re.findall(r"run: make ([a-z-]+)", text)
    assert called == ["test-downgrade", "dist", "sbom"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(called) <= targets


def test_every_target_of_the_nightly_workflow_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (WORKFLOWS / "nightly.yml").read_text()
    [block] = re.findall(r"^ +target:\n((?: +- [a-z-]+\n)+)", text, re.MULTILINE)
    called = re.findall(r"- (\S+)", block) + re.findall(r"run: make ([a-z-]+)", text)
    assert {"chaos", "compat", "soak", "test-asyncio-debug"} <= set(called)
    assert set(called) <= targets
