"""Runs Kafka's own broker tests, against Ottla and against Apache Kafka, and shows both results.

    python -m tests.compat.kafka_tests.run [CLASS | CLASS#TEST ...] [--broker ottla|kafka|both]
                                           [--missing] [--update] [--page]
                                           [--without-additions]

Without a class it runs those of classes.txt, or with --missing those that have no result on the
broker yet; all of them take hours. A JVM runs ten classes, and is killed when no test has ended for
--silence seconds; the classes that it did not begin then run in the next one. Errors with their
stack traces stay in .cache/kafka-tests-3.9.1/results. The exit code is 1 when a test of passes.txt
does not pass on Ottla any more.
--update keeps the results, with their date, in results-ottla.tsv and results-kafka.tsv and adds to
passes.txt what passes. --page writes docs/kafka-tests.md from them, without running anything.
--without-additions hides from the tests what only Ottla has: some count settings or APIs. The
results of such a run are shown and not kept.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from tests.compat.kafka_tests.additions import VARIABLE
from tests.compat.kafka_tests.jars import CACHE, FOLDER
from tests.compat.kafka_tests.jvm import run_in_jvm
from tests.compat.kafka_tests.page import write_page
from tests.compat.kafka_tests.results import (
    FAILED,
    PASSED,
    AllowList,
    Kept,
    KeptResults,
    Result,
    did_not_begin,
    first_line,
    read_reasons,
    reason_for,
)

BROKERS = ("kafka", "ottla")
_ERRORS = CACHE / "results"
# A JVM that has run for some classes runs the next ones faster; its heap is small.
_CLASSES_OF_A_JVM = 10


def classes() -> list[str]:
    """The classes of classes.txt."""
    lines = (FOLDER / "classes.txt").read_text("ascii").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def kept_results(broker: str) -> KeptResults:
    """The results of a broker that are in the tree."""
    return KeptResults(FOLDER / f"results-{broker}.tsv")


def run_classes(
    selectors: Mapping[str, Sequence[str]], broker: str, silence_s: float
) -> Iterator[tuple[str, list[Result]]]:
    """Runs the selectors of each class on a broker; yields a class with its results when it has
    ended, or when it was stopped because no test ended. A class that threads of an earlier one
    disturb runs again in a new JVM."""
    waiting = list(selectors)
    while waiting:
        group = waiting[:_CLASSES_OF_A_JVM]
        found: dict[str, list[Result]] = {}
        chosen = [selector for name in group for selector in selectors[name]]
        needs_new_jvm = False
        for class_name, result in run_in_jvm(chosen, broker, silence_s):
            if result is not None:
                found.setdefault(class_name, []).append(result)
            elif class_name in waiting:
                results = found.pop(class_name, [])
                needs_new_jvm = class_name != group[0] and did_not_begin(results)
                if needs_new_jvm:
                    break
                waiting.remove(class_name)
                yield class_name, results
        if needs_new_jvm:
            continue
        # What is left began and did not end, or did not begin: the first does not run again.
        for class_name in [name for name in waiting if name in found] or waiting[:1]:
            if class_name in group:
                waiting.remove(class_name)
                yield class_name, found.get(class_name, [])


def keep_errors(class_name: str, broker: str, results: Sequence[Result]) -> None:
    """Writes the errors of a class with their stack traces."""
    _ERRORS.mkdir(parents=True, exist_ok=True)
    errors = (f"{r.name}\n{r.error}\n" for r in results if r.status == FAILED)
    (_ERRORS / f"{broker}-{class_name}.errors").write_text("".join(errors), "utf-8")


def show(class_name: str, columns: Mapping[str, Mapping[str, Kept]]) -> None:
    """Prints a table: each test with its status on each broker, and why it failed on Ottla."""
    reasons = read_reasons(FOLDER / "internals.txt")
    print(f"\n{class_name}")
    for name in dict.fromkeys(name for tests in columns.values() for name in tests):
        row = {broker: tests.get(name) for broker, tests in columns.items()}
        statuses = "  ".join(
            f"{broker} {'-' if each is None else each.status.lower():8}"
            for broker, each in row.items()
        )
        mine = row.get("ottla")
        why = ""
        if mine is not None and mine.status == FAILED:
            why = reason_for(reasons, class_name, name) or mine.error
        print(f"  {statuses}  {name}  {why}".rstrip())
    for broker, tests in columns.items():
        passed = sum(each.status == PASSED for each in tests.values())
        print(f"  {broker}: {passed} of {len(tests)} passed")
    sys.stdout.flush()


def by_class(selectors: Sequence[str]) -> dict[str, list[str]]:
    """The selectors of each class: the class alone, or some of its tests."""
    found: dict[str, list[str]] = {}
    for selector in selectors:
        found.setdefault(selector.partition("#")[0], []).append(selector)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 when a test of the allow-list did not pass on Ottla."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("selectors", nargs="*", metavar="CLASS", help="class, or class#test")
    parser.add_argument("--broker", choices=(*BROKERS, "both"), default="both")
    parser.add_argument("--silence", type=float, default=300, help="seconds without a result")
    parser.add_argument("--missing", action="store_true", help="only classes without a result")
    parser.add_argument("--update", action="store_true", help="keep the results in the tree")
    parser.add_argument("--page", action="store_true", help="only write docs/kafka-tests.md")
    parser.add_argument("--without-additions", action="store_true", help="hide ottla.* and API 75")
    given = parser.parse_args(arguments)
    if given.without_additions:
        if given.update:
            parser.error("results without the additions are not kept")
        os.environ[VARIABLE] = "1"
    if given.page:
        write_page(classes(), {broker: kept_results(broker).classes for broker in BROKERS})
        return 0
    allowed = AllowList(FOLDER / "passes.txt")
    broken = []
    for broker in BROKERS if given.broker == "both" else (given.broker,):
        chosen = by_class(given.selectors or classes())
        if given.missing:
            present = kept_results(broker).classes
            chosen = {name: each for name, each in chosen.items() if name not in present}
        for class_name, results in run_classes(chosen, broker, given.silence):
            whole = chosen[class_name] == [class_name]
            keep_errors(class_name, broker, results)
            today = datetime.now(UTC).date().isoformat()
            if given.update:
                kept_results(broker).replace(class_name, results, today, whole=whole)
            columns = {each: kept_results(each).classes.get(class_name, {}) for each in BROKERS}
            columns[broker] = {r.name: Kept(r.status, today, first_line(r.error)) for r in results}
            show(class_name, columns)
            if broker == "ottla" and whole:
                names = allowed.broken(class_name, results)
                broken += [f"{class_name} {name}" for name in names]
            if broker == "ottla" and given.update:
                print(f"  {allowed.add(class_name, results)} tests are new in passes.txt")
    for name in broken:
        print(f"passes.txt has it, and it did not pass: {name}")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
