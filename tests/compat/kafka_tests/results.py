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

# Of an absolute path: all but the name.
_FOLDERS = re.compile(r"(?<![\w:/.])/(?:[\w.-]+/)+(?=[\w.-])")


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


class Row(NamedTuple):
    """What the runner printed: the result of a test, or without one the end of the class."""

    class_name: str
    result: Result | None


def parse_row(line: str) -> Row | None:
    """A line of the runner. A line that was cut off is no row."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if "test" not in row:
        return Row(row["class"], None)
    name = short_name(row["test"])
    return Row(row["class"], Result(name, row["status"], row["seconds"], row["error"]))


def did_not_begin(results: Iterable[Result]) -> bool:
    """Whether a class did not run because threads of an earlier class are left in its JVM."""
    return any("unexpected threads during @BeforeAll" in each.error for each in results)


def first_line(error: str) -> str:
    """What an error says, in one line, without the folders of the machine."""
    line = error.splitlines()[0] if error else ""
    return _FOLDERS.sub("", line)[:200].replace("\t", " ")


class Kept(NamedTuple):
    """A result that is kept in the tree; `error` is the first line of the error."""

    status: str
    date: str
    error: str


class KeptResults:
    """The last result of each test on a broker: a file of class, test, status, date and error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.classes: dict[str, dict[str, Kept]] = {}
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        for line in lines:
            class_name, test, *row = line.split("\t")
            self.classes.setdefault(class_name, {})[test] = Kept(*row)

    def replace(
        self, class_name: str, results: Iterable[Result], date: str, *, whole: bool
    ) -> None:
        """Takes the results of a run, which was of the whole class or of some tests, and writes
        the file."""
        rows = {each.name: Kept(each.status, date, first_line(each.error)) for each in results}
        if not rows:
            return
        self.classes[class_name] = rows if whole else {**self.classes.get(class_name, {}), **rows}
        lines = [
            "\t".join((name, test, *row)) + "\n"
            for name, tests in sorted(self.classes.items())
            for test, row in sorted(tests.items())
        ]
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(lines), "utf-8")
        partial.replace(self.path)


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


def read_not_run(path: Path) -> dict[str, str]:
    """Why classes are not run, by class: `CLASS reason`."""
    lines = path.read_text("ascii").splitlines()
    named = [line for line in lines if line and not line.startswith("#")]
    return {line.split()[0]: line.split(None, 1)[1] for line in named}


def reason_for(reasons: Mapping[tuple[str, str], str], class_name: str, test: str) -> str:
    """The reason of a test, of its method, or of its class; empty without one."""
    method = test.split(".", maxsplit=1)[0]
    for name in (test, method, "*"):
        if (class_name, name) in reasons:
            return reasons[class_name, name]
    return ""
