"""Runs Kafka's own broker tests, against Ottla and against Apache Kafka, and shows both results.

    python -m tests.compat.kafka_tests.run [CLASS | CLASS#TEST ...] [--broker ottla|kafka|both]
                                           [--update] [--page]

Without a class it runs those of classes.txt; that takes hours. A JVM runs one class, and is killed
after --timeout seconds. The results stay in .cache/kafka-tests-3.9.1/results; the run of a single
test replaces its row. The exit code is 1 when a test of passes.txt does not pass on Ottla any more;
--update adds to that list what passes.
--page writes docs/kafka-tests.md from the results that are there, without running anything.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.compat.kafka_tests.jars import CACHE, FOLDER, class_path
from tests.compat.kafka_tests.page import write_page
from tests.compat.kafka_tests.results import (
    FAILED,
    PASSED,
    AllowList,
    Result,
    first_line,
    parse_results,
    read_reasons,
    reason_for,
)
from tests.doubles.apache_kafka import JVM_OPTIONS, REPOSITORY

RESULTS = CACHE / "results"
_LOG4J = "log4j.rootLogger=OFF\n"


def classes() -> list[str]:
    """The classes of classes.txt."""
    lines = (FOLDER / "classes.txt").read_text("ascii").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def run_class(selector: str, broker: str, timeout_s: float) -> list[Result]:
    """Runs a class, or one test of it, against a broker; returns what the runner printed."""
    with tempfile.TemporaryDirectory(prefix="kafka-tests-") as name:
        directory = Path(name)
        (directory / "tmp").mkdir()
        (directory / "log4j.properties").write_text(_LOG4J, "ascii")
        with (directory / "output").open("w+b") as output:
            process = subprocess.Popen(
                _command(selector, broker, directory),
                cwd=directory,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                print(f"{selector} on {broker} is killed after {timeout_s:.0f} s", file=sys.stderr)
                process.send_signal(signal.SIGKILL)  # its brokers see the end of their input
                process.wait()
        return parse_results((directory / "output").read_text("utf-8").splitlines())


def _command(selector: str, broker: str, directory: Path) -> list[str]:
    return [
        "java",
        *JVM_OPTIONS,
        f"-Djava.io.tmpdir={directory / 'tmp'}",
        f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}",
        f"-Dottla.directory={directory / 'brokers'}",
        f"-Dottla.python={sys.executable}",
        f"-Dottla.repository={REPOSITORY}",
        # The key distribution center of the SASL tests refreshes Java's configuration by it.
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "-cp",
        class_path(with_shim=broker == "ottla"),
        "ottla.runner.Runner",
        selector,
    ]


def results_file(class_name: str, broker: str) -> Path:
    """Where the results of a class on a broker are kept."""
    return RESULTS / f"{broker}-{class_name}.tsv"


def keep(class_name: str, broker: str, results: Sequence[Result]) -> None:
    """Writes the results of a class: test, status, seconds, first line of the error; and beside
    them the errors with their stack traces."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = (f"{r.name}\t{r.status}\t{r.seconds}\t{first_line(r.error)}\n" for r in results)
    path = results_file(class_name, broker)
    path.write_text("".join(rows), "utf-8")
    errors = (f"{r.name}\n{r.error}\n" for r in results if r.status == FAILED)
    path.with_suffix(".errors").write_text("".join(errors), "utf-8")


def kept(class_name: str, broker: str) -> list[Result]:
    """The results of the last run of a class."""
    path = results_file(class_name, broker)
    if not path.exists():
        return []
    rows = (line.split("\t", 3) for line in path.read_text("utf-8").splitlines())
    return [Result(name, status, float(took), error) for name, status, took, error in rows]


def replaced(rows: Sequence[Result], newer: Sequence[Result]) -> list[Result]:
    """The rows of a class with newer ones in the place of those of the same name."""
    return list({each.name: each for each in (*rows, *newer)}.values())


def show(class_name: str, found: dict[str, list[Result]]) -> None:
    """Prints a table: each test with its status on each broker, and why it failed on Ottla."""
    reasons = read_reasons(FOLDER / "internals.txt")
    print(f"\n{class_name}")
    statuses = {broker: {each.name: each for each in results} for broker, results in found.items()}
    for name in dict.fromkeys(each.name for results in found.values() for each in results):
        columns = [
            f"{broker} {rows[name].status.lower() if name in rows else '-':8}"
            for broker, rows in statuses.items()
        ]
        mine = statuses.get("ottla", {}).get(name)
        why = ""
        if mine is not None and mine.status == FAILED:
            why = reason_for(reasons, class_name, name) or first_line(mine.error)
        print(f"  {'  '.join(columns)}  {name}  {why}".rstrip())
    for broker, results in found.items():
        passed = sum(each.status == PASSED for each in results)
        print(f"  {broker}: {passed} of {len(results)} passed")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 when a test of the allow-list did not pass on Ottla."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("selectors", nargs="*", metavar="CLASS", help="class, or class#test")
    parser.add_argument("--broker", choices=("ottla", "kafka", "both"), default="both")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one class")
    parser.add_argument("--update", action="store_true", help="add what passes to passes.txt")
    parser.add_argument("--page", action="store_true", help="only write docs/kafka-tests.md")
    given = parser.parse_args(arguments)
    if given.page:
        write_page(classes(), kept)
        return 0
    allowed = AllowList(FOLDER / "passes.txt")
    broken = []
    for selector in given.selectors or classes():
        class_name, _, test = selector.partition("#")
        found = {}
        for broker in ("kafka", "ottla") if given.broker == "both" else (given.broker,):
            found[broker] = run_class(selector, broker, given.timeout)
            rows = found[broker]
            if test:
                rows = replaced(kept(class_name, broker), rows)
            keep(class_name, broker, rows)
        show(class_name, found)
        if "ottla" in found:
            if not test:
                names = allowed.broken(class_name, found["ottla"])
                broken += [f"{class_name} {name}" for name in names]
            if given.update:
                print(f"  {allowed.add(class_name, found['ottla'])} tests are new in passes.txt")
    for name in broken:
        print(f"passes.txt has it, and it did not pass: {name}")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
