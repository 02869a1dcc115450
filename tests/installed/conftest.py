"""One wheel and one environment for all tests of the installed project.

The environment holds Ottla from the wheel. Its dependencies are those of the environment that runs
the tests: installing them again would take minutes and prove nothing about Ottla.
"""

from __future__ import annotations

import sys
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.installed.builds import build, copy_checkout, must_run
from tests.installed.pythons import supported


class Installed(NamedTuple):
    """An environment, `bin/python` and `site-packages` of it."""

    folder: Path
    python: Path
    site: Path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the checkout gives, over what an earlier build left behind."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_checkout(folder / "source")
    for left in ("broker/module.py", "ottla/broker/removed_module.py"):
        path = source / "build" / "lib" / left
        path.parent.mkdir(parents=True)
        path.touch()
    return build(source, "wheel", folder / "dist")


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel, and without the checkout on its path."""
    made = new_environment(tmp_path_factory.mktemp("installed") / "environment")
    install(made, wheel)
    return made


def new_environment(folder: Path) -> Installed:
    """An environment with the dependencies of this one."""
    venv.create(folder, with_pip=False, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if Path(path).name == "site-packages"]
    # Such a line adds the directory alone, not what .pth files in it (an editable Ottla) would add.
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
    return Installed(folder, folder / "bin" / "python", site)


def install(where: Installed, *what: str | Path) -> None:
    """`pip install` without dependencies and without an index."""
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--no-warn-script-location")
    pip = (sys.executable, "-m", "pip", "--python", where.python, "install", "-q", *options)
    must_run(*pip, *what, cwd=where.folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says on which Pythons the wheel was compiled: a machine has those that it has."""
    ran = [
        report.nodeid.partition("[")[2].rstrip("]")
        for report in terminalreporter.getreports("passed")
        if "test_the_wheel_compiles" in report.nodeid
    ]
    if ran:
        missing = ", ".join(sorted(set(supported()) - set(ran))) or "none"
        terminalreporter.write_line(
            f"The wheel was compiled with Python {', '.join(ran)}; no interpreter for: {missing}"
        )
