"""The wheel's modules compile without a warning on every supported Python that is installed.

`make test-pythons` installs the wheel with its dependencies there, which downloads them.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.installed.builds import must_run
from tests.installed.pythons import interpreters

INTERPRETERS = interpreters()


@pytest.mark.parametrize("version", INTERPRETERS)
def test_the_wheel_compiles(version: str, wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    command = (INTERPRETERS[version], "-W", "error", "-m", "compileall", "-q", tmp_path)
    assert must_run(*command, cwd=tmp_path) == ""
