"""The bill of materials names each package with its licence, in CycloneDX's format."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools import sbom

ROWS = [
    {"type": "deb", "name": "libc6", "version": "2.36-9", "license": "LGPL-2.1"},
    {"type": "pypi", "name": "kazoo", "version": "2.11.0", "license": "Apache-2.0"},
    {"type": "pypi", "name": "nameless", "version": "1", "license": ""},
    {"type": "pypi", "name": "ottla", "version": "0.1.0", "license": "Apache-2.0"},
]


def test_the_bill_has_all_packages_as_parts_of_ottla() -> None:
    document = json.loads(sbom.bill(ROWS))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/ottla@0.1.0"
    urls = {part["purl"]: part.get("licenses") for part in document["components"]}
    assert urls == {
        "pkg:deb/debian/libc6@2.36-9": [{"license": {"name": "LGPL-2.1"}}],
        "pkg:pypi/kazoo@2.11.0": [{"license": {"name": "Apache-2.0"}}],
        "pkg:pypi/nameless@1": None,
    }
    [own] = [row for row in document["dependencies"] if row["ref"] == "pkg:pypi/ottla@0.1.0"]
    assert set(own["dependsOn"]) == set(urls)


def test_packages_of_this_environment_have_licences() -> None:
    found = {row["name"].lower(): row for row in sbom.packages_of([sys.executable])}
    assert found["kazoo"]["license"].startswith("Apache")
    assert found["typer"]["license"] == "MIT"


def test_a_package_without_a_licence_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sbom, "wheel_packages", lambda: ROWS)
    assert sbom.main(["wheel", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "nameless names no licence\n"
    report = (tmp_path / "ottla-wheel-licenses.md").read_text()
    assert "| nameless | 1 | not named |" in report
    assert (tmp_path / "ottla-wheel.cdx.json").exists()
