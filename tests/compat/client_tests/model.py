"""A test suite of a client, and what the runs of it gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.compat.ecosystem.clusters import KAFKA, OTTLA

KEPT = Path(__file__).resolve().parent / "kept"

PASSED, FAILED, SKIPPED = "pass", "fail", "skip"


class Unavailable(Exception):
    """A suite that cannot be obtained or has no files on this machine."""


@dataclass(frozen=True)
class Request:
    """One run: the kind of broker, a place for files, and a pattern of tests or ""."""

    kind: str
    directory: Path
    pattern: str


@dataclass(frozen=True)
class Suite:
    """The tests of one client at one version."""

    name: str
    title: str
    version: str
    #: Commands that the machine must have.
    needs: tuple[str, ...]
    #: Downloads and compiles; runs where the network can be reached.
    prepare: Callable[[], None]
    #: The state of each test: `pass`, `fail` or `skip`.
    run: Callable[[Request], dict[str, str]]
    #: A pattern of these tests, for `Request.pattern`.
    pattern: Callable[[Sequence[str]], str]
    #: Which tests these are, in sentences.
    notes: str
    #: Why tests fail or are skipped on both brokers.
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """The last run of a suite on one kind of broker, with the tests that were run again alone."""

    day: str
    broker_version: str
    version: str
    seconds: int
    tests: dict[str, str]
    #: Tests that failed in the whole run and were run again alone.
    again: tuple[str, ...] = ()

    def count(self, state: str) -> int:
        return sum(each == state for each in self.tests.values())


class Results:
    """The kept runs of one suite, by kind of broker."""

    def __init__(self, suite: str, folder: Path = KEPT) -> None:
        self.path = folder / f"{suite}.json"
        self.runs: dict[str, Run] = {}
        if self.path.exists():
            rows = json.loads(self.path.read_text("utf-8"))
            for kind, row in rows.items():
                again = tuple(row.pop("again"))
                self.runs[kind] = Run(**row, again=again)

    def save(self, kind: str, run: Run) -> None:
        """Keeps this run in place of the last one on this kind of broker."""
        self.runs[kind] = run
        rows = {each: asdict(self.runs[each]) for each in sorted(self.runs)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", "utf-8")

    def replace(self, kind: str, tests: dict[str, str]) -> None:
        """Puts the states of tests that were run alone into the kept run."""
        run = self.runs[kind]
        again = tuple(sorted({*run.again, *(name for name in tests if name in run.tests)}))
        self.save(kind, Run(**{**asdict(run), "tests": {**run.tests, **tests}, "again": again}))

    def allowed(self) -> list[str]:
        """The allow-list: what passes on Apache Kafka."""
        run = self.runs.get(KAFKA)
        return [name for name, state in run.tests.items() if state == PASSED] if run else []

    def differences(self) -> list[str]:
        """What passes on Kafka and does not on Ottla."""
        run = self.runs.get(OTTLA)
        if run is None:
            return []
        return [name for name in self.allowed() if run.tests.get(name) != PASSED]

    def beyond(self) -> list[str]:
        """What passes on Ottla and not on Kafka."""
        run, allowed = self.runs.get(OTTLA), set(self.allowed())
        if run is None or KAFKA not in self.runs:
            return []
        return [
            name for name, state in run.tests.items() if state == PASSED and name not in allowed
        ]

    def failed_on_both(self) -> list[str]:
        states = [self.runs[kind].tests for kind in (OTTLA, KAFKA) if kind in self.runs]
        if len(states) < 2:
            return []
        ours, theirs = states
        return [name for name in ours if ours[name] == FAILED and theirs.get(name) == FAILED]
