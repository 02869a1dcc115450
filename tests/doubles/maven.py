"""Jars from Maven Central, for tests that compare with Java programs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

#: For the fourth field of a dependency: the jar without what it depends on.
ALONE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


def fetch_jars(library: Path, dependencies: Sequence[tuple[str, str, str, str]]) -> None:
    """Copies jars (group, artifact, version, further XML) with all they need into `library`.

    Skips the running test when there is no Maven or it has no success.
    """
    if shutil.which("mvn") is None:
        pytest.skip(f"the jars are not in {library} and there is no `mvn` to fetch them")
    project = library.parent / "project"
    project.mkdir(parents=True, exist_ok=True)
    rows = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{more}</dependency>"
        for group, artifact, version, more in dependencies
    )
    (project / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>clients</groupId>"
        f"<artifactId>clients</artifactId><version>1</version><dependencies>{rows}</dependencies>"
        "</project>"
    )
    # Copied beside and renamed, so that an interrupted download is never taken for a whole one.
    partial = library.parent / "lib.partial"
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(project / "pom.xml"), *goal],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = (done.stdout + done.stderr).strip().splitlines()[:1] or ["no message"]
        pytest.skip(f"Maven could not fetch {dependencies[0][:3]}: {reason[0]}")
    partial.rename(library)
