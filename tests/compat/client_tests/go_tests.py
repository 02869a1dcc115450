"""Go test binaries of a module from the Go module proxy, and the states of their tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.compat.client_tests.model import FAILED, PASSED, SKIPPED
from tests.doubles.apache_kafka import REPOSITORY

BUILD_SECONDS = 1800.0
CACHE = REPOSITORY / ".cache" / "client-tests"
_STATES = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}


def module_directory(module: str, version: str) -> Path:
    """A copy of the module that can be written: its go.mod may lack what only tests need."""
    place = CACHE / f"{module.rsplit('/', 1)[1]}-{version}"
    if not place.exists():
        found = _go(["mod", "download", "-json", f"{module}@{version}"], CACHE)
        partial = place.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(json.loads(found)["Dir"], partial)
        for path in (partial, *partial.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
        partial.rename(place)
    return place


def compile_tests(module: str, version: str, packages: Sequence[str], tags: str = "") -> None:
    """One test binary for each package, compiled once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    directory = module_directory(module, version)
    for package in packages:
        binary = test_binary(module, version, package)
        if not binary.exists():
            _go(
                ["test", "-mod=mod", "-c", "-tags", tags, "-o", str(binary), f"./{package}"],
                directory,
            )


def install(command: str, version: str, name: str) -> Path:
    """A command of a module, compiled once and kept as `name`."""
    place = CACHE / "bin"
    target = place / f"{name}-{version}"
    if not target.exists():
        place.mkdir(parents=True, exist_ok=True)
        _go(["install", f"{command}@{version}"], CACHE, {"GOBIN": str(place)})
        (place / command.rsplit("/", 1)[1]).rename(target)
    return target


def test_binary(module: str, version: str, package: str) -> Path:
    name = f"{module.rsplit('/', 1)[1]}-{version}-{package.replace('/', '-') or 'root'}.test"
    return CACHE / name


@dataclass(frozen=True)
class Package:
    """The tests of one package of a module."""

    module: str
    version: str
    path: str

    @property
    def binary(self) -> Path:
        return test_binary(self.module, self.version, self.path)

    @property
    def directory(self) -> Path:
        return module_directory(self.module, self.version) / self.path

    def names(self, pattern: str, variables: Mapping[str, str]) -> list[str]:
        """Its tests at the top level that match."""
        command = [str(self.binary), "-test.list", pattern or "."]
        environment = {**os.environ, **variables}
        found = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, env=environment
        )
        assert found.returncode == 0, f"{found.stdout}{found.stderr}"
        return [line for line in found.stdout.split() if line.startswith("Test")]


def run_tests(
    package: Package,
    log: Path,
    *,
    names: Sequence[str],
    seconds: float,
    variables: Mapping[str, str],
    before: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """The states of these tests of one package, subtests included, by `PACKAGE/TEST`.

    A test that panics or takes too long ends its process: the tests after it get another one.
    `before` runs before each process.
    """
    left = list(names)
    states: dict[str, str] = {}
    while left:
        before()
        found = _run_once(package, log, left, seconds, variables)
        assert found, f"no test ran, see {log}"
        states |= found
        done = {name.removeprefix(f"{package.path}/").split("/")[0] for name in found}
        left = [name for name in left if name not in done]
    return states


def _run_once(
    package: Package, log: Path, names: Sequence[str], seconds: float, variables: Mapping[str, str]
) -> dict[str, str]:
    command = [
        *("go", "tool", "test2json", "-t", str(package.binary), "-test.v=test2json"),
        *(f"-test.timeout={int(seconds)}s", "-test.run", f"^({'|'.join(names)})$"),
    ]
    with log.open("ab") as sink:
        start = sink.tell()
        subprocess.run(
            command,
            cwd=package.directory,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            timeout=seconds + 120,
        )
    return read_events(log.read_bytes()[start:].decode(errors="replace"), package.path)


def read_events(text: str, package: str) -> dict[str, str]:
    """The states in the output of `go tool test2json`."""
    states: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        name = f"{package}/{event['Test']}".lstrip("/") if "Test" in event else ""
        if not name:
            continue
        if event["Action"] == "run":
            states[name] = FAILED  # until it says otherwise
        elif event["Action"] in _STATES:
            states[name] = _STATES[event["Action"]]
    return states


def _go(arguments: Sequence[str], place: Path, variables: Mapping[str, str] | None = None) -> str:
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["go", *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        env={**os.environ, **(variables or {})},
    )
    assert done.returncode == 0, f"go {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def pattern_of(names: Sequence[str]) -> str:
    """A pattern of the tests at the top level that these names, with packages, belong to."""
    tests = [next(part for part in name.split("/") if part.startswith("Test")) for name in names]
    return f"^({'|'.join(sorted(set(tests)))})$"
