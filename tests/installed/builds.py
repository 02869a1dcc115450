"""Builds of the project from copies of its files: a build writes into the folder that it builds."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
# What pip and setuptools print about a build that has something wrong with it.
COMPLAINTS = re.compile(r"warn|deprecat|symlink|would be ignored|not found", re.IGNORECASE)


def run(
    *command: str | Path, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command without the checkout on Python's path, until it ends."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**clean_environment(), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def must_run(*command: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """What the command printed, both streams; it must succeed."""
    done = run(*command, cwd=cwd, environment=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


def clean_environment() -> dict[str, str]:
    """The variables of this process but for those that change what Python, pip or Ottla find."""
    harmful = ("PYTHON", "PYTEST_", "OTTLA_", "KAFKA_", "VIRTUAL_ENV", "COVERAGE")
    return {name: text for name, text in os.environ.items() if not name.startswith(harmful)}


def copy_checkout(target: Path) -> Path:
    """Copies what git could track: all but what .gitignore names. Links stay links."""
    lines = (ROOT / ".gitignore").read_text().split()
    ignored = shutil.ignore_patterns(".git", *(line.strip("/") for line in lines))
    # The folder `data` is ignored at the top only, and the tree has none elsewhere.
    shutil.copytree(ROOT, target, symlinks=True, ignore=ignored)
    return target


def copy_docker_context(target: Path) -> Path:
    """Copies what `COPY` in the Dockerfile's first stage gets past .dockerignore."""
    first_stage = (ROOT / "Dockerfile").read_text().split("\nFROM ")[1]
    rules = (ROOT / ".dockerignore").read_text().split()
    target.mkdir()
    for line in re.findall(r"^COPY (.+)$", first_stage, re.MULTILINE):
        *sources, place = line.split()
        for source in [name for each in sources for name in _matches(each)]:
            assert not is_docker_ignored(source, rules), f".dockerignore keeps {source} from COPY"
            to = target / place / Path(source).name if place.endswith("/") else target / place
            to.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, to, symlinks=True, ignore=_docker_ignored(rules))
            else:
                shutil.copy(ROOT / source, to)
    return target


def _matches(source: str) -> list[str]:
    """What a pattern of `COPY` stands for; a plain name stands for itself."""
    if "*" not in source:
        return [source]
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(source))


def is_docker_ignored(path: str, rules: list[str]) -> bool:
    """Whether a path below the root is kept from the engine. The last rule that matches counts; a
    rule that matches a folder is one for all that is in it."""
    folders = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    ignored = False
    for rule in rules:
        pattern = rule.removeprefix("!")
        forms = {pattern, pattern.removeprefix("**/")}
        if any(fnmatch.fnmatch(folder, form) for folder in folders for form in forms):
            ignored = not rule.startswith("!")
    return ignored


def _docker_ignored(rules: list[str]) -> Callable[[str, list[str]], set[str]]:
    def ignored(folder: str, names: list[str]) -> set[str]:
        below = Path(folder).relative_to(ROOT)
        return {name for name in names if is_docker_ignored((below / name).as_posix(), rules)}

    return ignored


def build(source: Path, kind: str, target: Path) -> Path:
    """Builds a "wheel" or an "sdist" with every Python warning as an error; returns the file."""
    code = f"import setuptools.build_meta as backend; backend.build_{kind}({str(target)!r})"
    target.mkdir(exist_ok=True)
    said = must_run(sys.executable, "-W", "error", "-c", code, cwd=source)
    assert not complaints(said), "\n".join(complaints(said))
    [built] = target.iterdir()
    return built


def complaints(output: str) -> list[str]:
    """Lines of a build's output that are warnings."""
    copied = ("copying ", "adding ", "creating ", "hard linking ", "writing ", "reading ")
    return [
        line
        for line in output.splitlines()
        if COMPLAINTS.search(line) and not line.startswith(copied)
    ]


def files_of(wheel: Path) -> list[str]:
    """Names of a wheel's files, sorted."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if not name.endswith("/"))


def unpack_sdist(sdist: Path, target: Path) -> Path:
    """The folder that an sdist holds."""
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    [folder] = target.iterdir()
    return folder
