"""Ottla in projects that have modules of their own by the names of its folders.

Each project is in its own folder, which is the working directory and on PYTHONPATH, as where a
program is run by hand: its modules come before those of any installed package.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.installed.builds import must_run
from tests.installed.conftest import Installed, install
from tests.installed.project_tests import OWN, project_tests
from tests.installed.start import started


class Project(NamedTuple):
    """A folder, and the module of its own that has a name of ours."""

    folder: Path
    module: str

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.folder)}


# The files of the project. The last one is a module of a name of ours; without any, the module
# `broker` comes from another distribution in site-packages.
PROJECTS = {
    "broker.py": ["broker.py"],
    "broker/": ["broker/__init__.py", "broker/orders.py"],
    "storage/": ["storage/__init__.py", "storage/files.py"],
    "protocol.py": ["protocol.py"],
    "cli/main.py": ["cli/__init__.py", "cli/main.py"],
    "PyPI's broker": [],
}


@pytest.fixture(params=PROJECTS)
def project(
    request: pytest.FixtureRequest, installed: Installed, tmp_path: Path
) -> Iterator[Project]:
    files = PROJECTS[request.param]
    folder = tmp_path / "project"
    folder.mkdir()
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(OWN)
    (folder / "pytest.ini").write_text("[pytest]\n")  # not the one of a folder above
    if not files:
        install(installed, stand_in_wheel(tmp_path))
    module = ".".join(Path(files[-1]).with_suffix("").parts) if files else "broker"
    yield Project(folder, module)
    if not files:
        pip = (sys.executable, "-m", "pip", "--python", installed.python)
        must_run(*pip, "uninstall", "-q", "--yes", "broker", cwd=folder)
        must_run(installed.folder / "bin" / "ottla", "--version", cwd=folder)


def stand_in_wheel(folder: Path) -> Path:
    """A distribution `broker` with a package `broker`, as the index has one."""
    path = folder / "broker-9.9-py3-none-any.whl"
    metadata = "broker-9.9.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("broker/__init__.py", OWN)
        archive.writestr(
            f"{metadata}/METADATA", "Metadata-Version: 2.1\nName: broker\nVersion: 9.9\n"
        )
        archive.writestr(
            f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(
            f"{metadata}/RECORD",
            "".join(f"{name},,\n" for name in [*archive.namelist(), f"{metadata}/RECORD"]),
        )
    return path


def test_a_project_with_a_module_of_our_name(installed: Installed, project: Project) -> None:
    (project.folder / "test_project.py").write_text(
        project_tests(project.module, ("ottla", "pyspark_ottla"), installed.site)
    )
    pytest_command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_project.py")
    environment = project.environment
    said = must_run(installed.python, *pytest_command, cwd=project.folder, environment=environment)
    assert "3 passed" in said

    ottla = installed.folder / "bin" / "ottla"

    def command(*words: str) -> str:
        return must_run(ottla, *words, cwd=project.folder, environment=environment)

    assert command("--version").startswith("ottla ")
    with started(installed, project.folder, environment) as broker:
        at = ("--bootstrap", broker.bootstrap)
        command("topics", "create", "orders", *at)
        listed = json.loads(command("topics", "list", "--json", *at))
    assert "orders" in [topic["name"] for topic in listed]
