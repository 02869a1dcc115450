"""Figures that are on disk as soon as they are measured, so that a stopped run can be continued."""

import json
import os
import statistics
import time
from pathlib import Path

Figures = dict[str, float]


class Kept:
    """The rounds of each line and contestant in a JSON file, which each addition replaces."""

    def __init__(self, path: Path, *, continues: bool) -> None:
        """`continues`: what the file has is kept; otherwise it is replaced by the first figure."""
        self.path = path
        #: One text for each run that added figures: when, and on which machine.
        self.runs: list[str] = []
        self._run = ""
        self._rounds: dict[str, dict[str, list[Figures]]] = {}
        if continues and path.exists():
            content = json.loads(path.read_text())
            self.runs, self._rounds = content["runs"], content["rounds"]

    def begin(self, machine: str) -> None:
        """Name the machine of the figures that follow; a run without any is not named."""
        self._run = f"{time.strftime('%d %B %Y %H:%M UTC', time.gmtime())}: {machine}"

    def add(self, line: str, contestant: str, figures: Figures) -> None:
        """Keep one round; it is on disk when this returns."""
        self._rounds.setdefault(line, {}).setdefault(contestant, []).append(figures)
        if self._run:
            self.runs.append(self._run)
            self._run = ""
        content = {"runs": self.runs, "rounds": self._rounds}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(new, self.path)

    def count(self, line: str, contestant: str) -> int:
        """How many rounds there are."""
        return len(self._rounds.get(line, {}).get(contestant, ()))

    def lines(self) -> list[str]:
        """In the order in which they were first measured."""
        return list(self._rounds)

    def medians(self, line: str, contestant: str) -> Figures:
        """The median of each figure over all rounds that have it."""
        return {
            name: statistics.median(values)
            for name, values in self._values(line, contestant).items()
        }

    def spreads(self, line: str, contestant: str) -> dict[str, tuple[float, float]]:
        """The least and the greatest of each figure."""
        return {
            name: (min(values), max(values))
            for name, values in self._values(line, contestant).items()
        }

    def _values(self, line: str, contestant: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for figures in self._rounds.get(line, {}).get(contestant, ()):
            for name, value in figures.items():
                found.setdefault(name, []).append(value)
        return found
