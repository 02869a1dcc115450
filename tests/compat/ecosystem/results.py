"""What the runs gave: a JSON file for each program, with the last run on each kind of broker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.compat.ecosystem.clusters import KAFKA, OTTLA
from tests.compat.ecosystem.model import Check

FOLDER = Path(__file__).resolve().parent / "kept"


@dataclass(frozen=True)
class Run:
    """The checks of one run, in order, with the day and the versions."""

    day: str
    broker_version: str
    program_version: str
    seconds: int
    checks: tuple[Check, ...]

    def passed(self) -> int:
        return sum(each.passed for each in self.checks)


class Results:
    """The kept runs of one program."""

    def __init__(self, program: str, folder: Path = FOLDER) -> None:
        self.path = folder / f"{program}.json"
        self.runs = self._read()

    def _read(self) -> dict[str, Run]:
        runs = {}
        rows = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        for kind, row in rows.items():
            checks = tuple(Check(**each) for each in row.pop("checks"))
            runs[kind] = Run(**row, checks=checks)
        return runs

    def save(self, kind: str, run: Run) -> None:
        """Keeps this run in place of the last one on this kind of broker."""
        self.runs = {**self._read(), kind: run}  # another process may run the other kind
        rows = {each: asdict(self.runs[each]) for each in sorted(self.runs)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")

    def names(self) -> list[str]:
        """All checks, in the order of the script: of the run that got furthest."""
        runs = sorted(self.runs.values(), key=lambda run: -len(run.checks))
        return list(dict.fromkeys(each.name for run in runs for each in run.checks))

    def state(self, kind: str, name: str) -> bool | None:
        """Whether the check passed; None when no run got to it."""
        run = self.runs.get(kind)
        found = {each.name: each.passed for each in run.checks} if run is not None else {}
        return found.get(name)

    def differences(self) -> Sequence[str]:
        """What passes on Kafka and not on Ottla."""
        if OTTLA not in self.runs:
            return []
        names = self.names()
        return [name for name in names if self.state(KAFKA, name) and not self.state(OTTLA, name)]
