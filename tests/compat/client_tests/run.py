"""Runs the suites: `python -m tests.compat.client_tests.run [--only NAME] [--broker ottla|kafka]`.

Each suite runs unchanged against Ottla and Apache Kafka 3.9.1; what passes on Kafka is the
allow-list. The results are kept in `kept/`, and docs/client-tests.md is written from them.
Exit code 1 when a test passes on Kafka and not on Ottla.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from tests.compat.client_tests.catalogue import SUITES
from tests.compat.client_tests.model import (
    FAILED,
    PASSED,
    SKIPPED,
    Request,
    Results,
    Run,
    Suite,
    Unavailable,
)
from tests.compat.client_tests.page import PAGE, write_page
from tests.compat.comparison import (
    VERSIONS,
    chosen_brokers,
    command_line,
    end_with_sigterm,
    run_directory,
    today,
)
from tests.compat.ecosystem.clusters import TITLES
from tests.compat.system.hosts import enter, run
from tests.doubles.apache_kafka import REPOSITORY

_PREPARED = "OTTLA_CLIENT_TESTS_PREPARED"


def failed_pattern(suite: Suite, results: Results, kind: str) -> str:
    """The tests that failed in the kept run; "" without such a run or such tests."""
    run = results.runs.get(kind)
    names = [name for name, state in run.tests.items() if state == FAILED] if run else []
    return suite.pattern(names) if names else ""


def keep(results: Results, kind: str, run: Run, part: bool) -> bool:
    """Keeps a whole run, or the tests of a part in the kept run; False if there is none."""
    if not part:
        results.save(kind, run)
    elif kind in results.runs:
        results.replace(kind, run.tests)
    else:
        return False
    return True


def _run_suite(suite: Suite, kind: str, directory: Path, pattern: str) -> None:
    print(f"{suite.title} {suite.version} on {TITLES[kind]}", flush=True)
    began = time.monotonic()
    tests = suite.run(Request(kind, directory, pattern))
    seconds = round(time.monotonic() - began)
    states = list(tests.values())
    counts = ", ".join(f"{states.count(each)} {each}" for each in (PASSED, FAILED, SKIPPED))
    print(f"  {counts} in {seconds} s", flush=True)
    for name, state in tests.items():
        if state == FAILED:
            print(f"  fails: {name}", flush=True)
    run = Run(today(), VERSIONS[kind], suite.version, seconds, tests)
    if not keep(Results(suite.name), kind, run, bool(pattern)):
        print(f"  not kept: there is no run of the whole suite on {TITLES[kind]}", flush=True)


def _prepare(chosen: list[Suite]) -> list[Suite]:
    """Downloads, where there is a network; the suites run in a namespace without one. Returns
    those that can run."""
    ready = []
    for suite in chosen:
        missing = [name for name in suite.needs if shutil.which(name) is None]
        if missing:
            raise SystemExit(f"{suite.title} needs {', '.join(missing)}")
        try:
            suite.prepare()
        except Unavailable as reason:
            print(f"{suite.title}: not run: {reason}", flush=True)
        else:
            ready.append(suite)
    return ready


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__, [suite.name for suite in SUITES], "suite")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--test", default="", help="a pattern: run these again, keep the others")
    part.add_argument("--failed", action="store_true", help="run what failed again, alone")
    return parser.parse_args()


def _run_suites(arguments: argparse.Namespace) -> None:
    chosen = [each for each in SUITES if not arguments.only or each.name in arguments.only]
    if _PREPARED not in os.environ:
        os.environ[_PREPARED] = " ".join(suite.name for suite in _prepare(chosen))
    reason = enter("tests.compat.client_tests.run")
    if reason is not None:
        raise SystemExit(reason)
    run("ip", "link", "set", "lo", "up")
    ready = os.environ[_PREPARED].split()
    for suite in (each for each in chosen if each.name in ready):
        for kind in chosen_brokers(arguments):
            pattern = arguments.test
            if arguments.failed:
                pattern = failed_pattern(suite, Results(suite.name), kind)
                if not pattern:
                    print(f"{suite.title} on {TITLES[kind]}: no failed test in the kept run")
                    continue
            with run_directory(suite.name, kind, arguments.keep) as directory:
                _run_suite(suite, kind, directory, pattern)


def main() -> int:
    end_with_sigterm()
    arguments = _arguments()
    if not arguments.page:
        _run_suites(arguments)
    kept = [(suite, Results(suite.name)) for suite in SUITES]
    write_page(kept)
    print(f"written: {PAGE.relative_to(REPOSITORY)}")
    different = [(suite.title, name) for suite, each in kept for name in each.differences()]
    for title, name in different:
        print(f"passes on Kafka and not on Ottla: {title}: {name}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
