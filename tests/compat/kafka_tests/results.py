"""Results of Kafka's own tests: read from the runner, kept, compared and shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

PASSED, FAILED = "PASSED", "FAILED"

# Types of parameters, the number of an invocation, the mode of the quorum, the time of the run.
_NOT_NAMED = re.compile(r"\([^)]*\)|\[\d+\]|quorum=zk|\brecordTimestamp=\d+")


class Result(NamedTuple):
    """One test of a class on one broker; `error` is empty when it passed."""

    name: str
    status: str
    seconds: float
    error: str


def short_name(title: str) -> str:
    """The name of a test as the lists have it, the same in each run.

    `testSeek(String, String).quorum=zk.groupProtocol=classic` is `testSeek.groupProtocol=classic`.
    """
    return ".".join(part for part in re.split(r"[\s.,]+", _NOT_NAMED.sub("", title)) if part)


def parse_results(lines: Iterable[str]) -> list[Result]:
    """The results in what the runner printed. A line that was cut off is no result."""
    found = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found.append(Result(short_name(row["test"]), row["status"], row["seconds"], row["error"]))
    return found


def first_line(error: str) -> str:
    """What an error says, in one line."""
    return error.splitlines()[0][:200] if error else ""


class AllowList:
    """Tests that pass on Ottla, a class and a test a line. It only grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text("ascii").splitlines() if path.exists() else []
        self.tests = {line for line in lines if line and not line.startswith("#")}

    def broken(self, class_name: str, results: Iterable[Result]) -> list[str]:
        """The tests of the list that did not pass in these results."""
        passed = {result.name for result in results if result.status == PASSED}
        listed = {test.split()[1] for test in self.tests if test.split()[0] == class_name}
        return sorted(listed - passed)

    def add(self, class_name: str, results: Iterable[Result]) -> int:
        """Adds the tests that passed and writes the file; returns how many are new."""
        passed = {f"{class_name} {each.name}" for each in results if each.status == PASSED}
        new = passed - self.tests
        if new:
            self.tests |= new
            self.path.write_text("".join(f"{test}\n" for test in sorted(self.tests)), "ascii")
        return len(new)


def read_reasons(path: Path) -> dict[tuple[str, str], str]:
    """Why tests cannot pass, by class and test: `CLASS TEST reason`. The test `*` is all others."""
    reasons = {}
    for line in path.read_text("ascii").splitlines():
        if line and not line.startswith("#"):
            class_name, test, reason = line.split(None, 2)
            reasons[class_name, test] = reason
    return reasons


def reason_for(reasons: Mapping[tuple[str, str], str], class_name: str, test: str) -> str:
    """The reason of a test, of its method, or of its class; empty without one."""
    method = test.split(".", maxsplit=1)[0]
    for name in (test, method, "*"):
        if (class_name, name) in reasons:
            return reasons[class_name, name]
    return ""
