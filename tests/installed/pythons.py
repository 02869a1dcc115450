"""The wheel on every supported Python that is found or fetched: `make test-pythons`.

For each interpreter: an environment, the wheel with the newest dependencies of the package index,
and a project's tests with the fixtures and the embedded broker, with uvloop and without. Prints
which ran, and why others did not. An interpreter that this machine lacks comes from Maven Central,
where it can. Exit code 0 when all that ran passed, 1 when one failed, 2 when none ran.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.installed import maven_python
from tests.installed.builds import ROOT, build, clean_environment, copy_checkout, run
from tests.installed.project_tests import OWN, project_tests

EXIT_FAILED, EXIT_NOT_RUN = 1, 2
TOOLS = ("pytest", "confluent-kafka")  # what the project's tests use besides Ottla
SHARED = ("typer==", "pydantic==", "rich==", "protobuf==")
PACKAGES = ("ottla",)  # the connector needs pyspark, which has no wheel


def supported() -> list[str]:
    """The versions that pyproject.toml names, "3.11" first."""
    text = (ROOT / "pyproject.toml").read_text()
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)


def interpreters() -> dict[str, Path]:
    """By version, the first interpreter on the path or in pyenv's folder that starts."""
    found: dict[str, Path] = {}
    for version in supported():
        for candidate in _candidates(version):
            if _version_of(candidate) == version:
                found[version] = candidate
                break
    return found


def _candidates(version: str) -> Iterator[Path]:
    if version == _version_of(Path(sys.executable)):
        yield Path(sys.executable)
    on_the_path = shutil.which(f"python{version}")
    if on_the_path:
        yield Path(on_the_path)
    pyenv = Path.home() / ".pyenv" / "versions"
    yield from sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)


def _version_of(python: Path) -> str:
    """Its version as "3.11"; empty when it does not start, as a shim of pyenv may not."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, env=clean_environment()
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def check(python: Path, wheel: Path, folder: Path) -> str:
    """Installs the wheel for this interpreter and runs a project's tests: "" or what failed."""
    environment = folder / "environment"
    project = folder / "project"
    project.mkdir(parents=True)
    (project / "broker.py").write_text(OWN)
    site = Path("lib") / f"python{_version_of(python)}" / "site-packages"
    (project / "test_project.py").write_text(project_tests("broker", PACKAGES, environment / site))
    (project / "pytest.ini").write_text("[pytest]\n")
    inside = environment / "bin" / "python"
    install = (inside, "-m", "pip", "install", "-q", "--only-binary", ":all:", wheel, *TOOLS)
    for what, command in {
        "it has no venv module": (python, "-m", "venv", environment),
        "a dependency has no wheel": install,
        "ottla --version": (environment / "bin" / "ottla", "--version"),
        "a dependency conflicts with another": (inside, "-m", "pip", "check"),
        "ottla topics --help": (environment / "bin" / "ottla", "topics", "--help"),
        "the project's tests": (inside, "-W", "error", "-m", "pytest", "-q", "test_project.py"),
        "pip uninstall uvloop": (inside, "-m", "pip", "uninstall", "-q", "--yes", "uvloop"),
        "the project's tests without uvloop": (
            *(inside, "-W", "error", "-m", "pytest", "-q", "test_project.py"),
        ),
    }.items():
        done = run(*command, cwd=project)
        if done.returncode:
            return f"{what}: {(done.stdout + done.stderr)[-2000:]}"
    return ""


def _shared_versions(environment: Path) -> str:
    """Which versions were installed of what other packages of a user need too."""
    listed = run(environment / "bin" / "python", "-m", "pip", "list", "--format=freeze", cwd=ROOT)
    return ", ".join(line for line in listed.stdout.split() if line.startswith(SHARED))


def main() -> int:
    found = interpreters()
    for version in supported():
        fetched = None if version in found else maven_python.fetch(version)
        if fetched is not None:
            found[version] = fetched
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        wheel = build(copy_checkout(folder / "source"), "wheel", folder / "dist")
        for version, python in found.items():
            outcomes[version] = check(python, wheel, folder / version)
            newest = _shared_versions(folder / version / "environment")
            print(
                f"Python {version}: {outcomes[version] or 'passed'} ({python}; {newest})",
                flush=True,
            )
    for version in supported():
        if version not in found:
            print(f"Python {version}: not run, this machine has no interpreter")
    if not outcomes:
        return EXIT_NOT_RUN
    return EXIT_FAILED if any(outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
