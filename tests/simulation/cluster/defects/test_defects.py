"""The patches that put known defects back belong to the tree as it is."""

import subprocess
from pathlib import Path

import pytest

from tests.simulation.cluster.defects.__main__ import APPLY, HERE, ROOT, header

PATCHES = sorted(HERE.glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_applies(patch: Path) -> None:
    """A change of the code that it changes has to change the patch too."""
    assert header(patch, "Defect").endswith(".")
    found = subprocess.run(
        [*APPLY, "--check", str(patch)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
