"""Runs the suites: `python -m tests.compat.client_tests.run [--only NAME] [--broker ottla|kafka]`.

Each suite runs unchanged against Ottla and Apache Kafka 3.9.1; what passes on Kafka is the
allow-list. The results are kept in `kept/`, and docs/client-tests.md is written from them.
Exit code 1 when a test passes on Kafka and not on Ottla.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import ottla
from tests.compat.client_tests.catalogue import SUITES
from tests.compat.client_tests.model import FAILED, PASSED, SKIPPED, Request, Results, Run, Suite
from tests.compat.client_tests.page import PAGE, write_page
from tests.compat.ecosystem.clusters import KAFKA, OTTLA, TITLES
from tests.compat.system.hosts import enter, run
from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY

_PREPARED = "OTTLA_CLIENT_TESTS_PREPARED"
VERSIONS = {OTTLA: ottla.__version__, KAFKA: KAFKA_VERSION}


def _failed_pattern(suite: Suite, kind: str) -> str:
    """The tests that failed in the kept run, or "" without one."""
    run = Results(suite.name).runs.get(kind)
    names = [name for name, state in run.tests.items() if state == FAILED] if run else []
    return suite.pattern(names) if names else ""


def _run_suite(suite: Suite, kind: str, directory: Path, pattern: str) -> None:
    print(f"{suite.title} {suite.version} on {TITLES[kind]}", flush=True)
    began = time.monotonic()
    tests = suite.run(Request(kind, directory, pattern))
    results = Results(suite.name)
    if pattern and kind in results.runs:
        results.replace(kind, tests)
    elif pattern:
        print("  not kept: the whole suite has not run on this broker", flush=True)
    else:
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        seconds = round(time.monotonic() - began)
        results.save(kind, Run(day, VERSIONS[kind], suite.version, seconds, tests))
    states = list(tests.values())
    counts = ", ".join(f"{states.count(each)} {each}" for each in (PASSED, FAILED, SKIPPED))
    print(f"  {counts} in {time.monotonic() - began:.0f} s", flush=True)
    for name, state in tests.items():
        if state == FAILED:
            print(f"  fails: {name}", flush=True)


def _prepare(chosen: list[Suite]) -> None:
    """Downloads, where there is a network; the suites run in a namespace without one."""
    for suite in chosen:
        missing = [name for name in suite.needs if shutil.which(name) is None]
        if missing:
            raise SystemExit(f"{suite.title} needs {', '.join(missing)}")
        suite.prepare()


def _end(number: int, frame: object) -> None:
    """SIGTERM ends the brokers and tests, too."""
    raise SystemExit(128 + number)


def main() -> int:
    signal.signal(signal.SIGTERM, _end)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [suite.name for suite in SUITES]
    parser.add_argument("--only", action="append", choices=names, help="a suite; all without")
    parser.add_argument("--broker", action="append", choices=(OTTLA, KAFKA), help="one of the two")
    parser.add_argument("--test", default="", help="a pattern: run these again, keep the others")
    parser.add_argument("--failed", action="store_true", help="run what failed again, alone")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--keep", type=Path, help="a directory for data and logs, kept")
    arguments = parser.parse_args()
    chosen = [suite for suite in SUITES if suite.name in (arguments.only or names)]
    if not arguments.page:
        if _PREPARED not in os.environ:
            _prepare(chosen)
            os.environ[_PREPARED] = "1"
        reason = enter("tests.compat.client_tests.run")
        if reason is not None:
            raise SystemExit(reason)
        run("ip", "link", "set", "lo", "up")
        for suite in chosen:
            for kind in arguments.broker or (OTTLA, KAFKA):
                pattern = _failed_pattern(suite, kind) if arguments.failed else arguments.test
                if arguments.failed and not pattern:
                    print(f"{suite.title} on {TITLES[kind]}: no failed test is kept", flush=True)
                    continue
                prefix = f"{suite.name}-{kind}-"
                directory = Path(tempfile.mkdtemp(prefix=prefix, dir=arguments.keep))
                try:
                    _run_suite(suite, kind, directory, pattern)
                finally:
                    if arguments.keep is None:
                        shutil.rmtree(directory, ignore_errors=True)
    kept = [(suite, Results(suite.name)) for suite in SUITES]
    write_page(kept)
    print(f"written: {PAGE.relative_to(REPOSITORY)}")
    different = [(suite.title, name) for suite, each in kept for name in each.differences()]
    for title, name in different:
        print(f"passes on Kafka and not on Ottla: {title}: {name}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
