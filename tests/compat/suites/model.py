"""A suite as its folder describes it, and what one run of it gave."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from tests.compat.suites.features import NAMES

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]

OK, FAILED, LACKS = "ok", "fail", "lacks"


@dataclass(frozen=True)
class Suite:
    """One client at one version."""

    name: str
    title: str
    version: str
    needs: tuple[str, ...]
    prepare: tuple[tuple[str, ...], ...]
    run: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def build(self) -> Path:
        """Where its client is installed and built; kept between runs, one for each version."""
        return ROOT / ".cache" / "compat" / f"{self.name}-{self.version}"

    def missing(self) -> list[str]:
        """The programs that this machine lacks."""
        return [name for name in self.needs if shutil.which(name) is None]

    def allowed(self) -> list[str]:
        """The features that must pass."""
        path = self.folder / "allowed.txt"
        return path.read_text().split() if path.exists() else []

    def command(self, template: tuple[str, ...]) -> list[str]:
        places = {
            "build": str(self.build),
            "folder": str(self.folder),
            "suites": str(FOLDER),
            "version": self.version,
        }
        return [word.format(**places) for word in template]


@dataclass
class Result:
    """`not_run` is the reason or None; `states` has the result of each feature."""

    suite: Suite
    not_run: str | None = None
    states: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    output: str = ""
    day: str = ""

    def regressions(self) -> list[str]:
        """Listed features that did not pass."""
        if self.not_run is not None:
            return []
        return [name for name in self.suite.allowed() if self.states.get(name) != OK]

    def unlisted(self) -> list[str]:
        """Features that passed and are not listed yet."""
        allowed = set(self.suite.allowed())
        return [name for name in NAMES if self.states.get(name) == OK and name not in allowed]


def read_suites(folder: Path = FOLDER) -> list[Suite]:
    """Every suite, by name."""
    return [read_suite(path) for path in sorted(folder.glob("*/suite.toml"))]


def read_suite(path: Path) -> Suite:
    data = tomllib.loads(path.read_text())
    return Suite(
        name=path.parent.name,
        title=data["title"],
        version=data["version"],
        needs=tuple(data.get("needs", ())),
        prepare=tuple(tuple(command) for command in data.get("prepare", ())),
        run=tuple(data["run"]),
    )


def read_output(result: Result, output: str) -> None:
    """Takes the lines that a program printed; other lines are its client's log."""
    result.output = output
    for line in output.splitlines():
        state, _, rest = line.strip().partition(" ")
        name, _, reason = rest.partition(":")
        if state not in (OK, FAILED, LACKS) or name not in NAMES:
            continue
        if result.states.get(name) == FAILED:
            continue  # a feature that failed once is not saved by a second line
        result.states[name] = state
        result.reasons[name] = reason.strip()
