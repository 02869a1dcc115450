"""Runs the suites: `python -m tests.compat.suites.run [OPTIONS] [SUITE ...]`.

Against Ottla, or with --kafka, --both or --workers N against others.

Exit code 1 when a feature of an allow-list does not pass, or a suite could not be built.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.compat.comparison import today
from tests.compat.ecosystem.clusters import KAFKA, OTTLA, TITLES
from tests.compat.suites.features import NAMES
from tests.compat.suites.model import (
    FAILED,
    ROOT,
    Result,
    Suite,
    read_output,
    read_suites,
)
from tests.compat.suites.report import render, summary
from tests.compat.suites.results import last_result, save
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.workers_process import start_workers

# Fetching a client and compiling it; a first build of a Go program takes minutes here.
PREPARE_SECONDS = 900
RUN_SECONDS = 600

SETTINGS = {
    "broker_id": "0",
    "offsets_topic_num_partitions": "1",
    "transaction_state_log_num_partitions": "1",
    "group_initial_rebalance_delay_ms": "0",
}


class NotBuiltError(Exception):
    """A suite whose tools are there and whose client could not be fetched or built."""


@contextmanager
def broker(directory: Path, kind: str, workers: int = 1) -> Iterator[str]:
    """Address of a broker for one suite; of several workers, that which they share."""
    if kind == KAFKA:
        with start_kafka(directory) as other:
            yield other.bootstrap
        return
    if workers > 1:
        # Both kinds of coordinators are on all workers.
        count = str(2 * workers)
        settings = {name: count if "partitions" in name else v for name, v in SETTINGS.items()}
        with start_workers(directory, workers, **settings) as machine:
            yield machine.bootstrap
        return
    with start_broker(directory, **SETTINGS) as ours:
        yield ours.bootstrap


def prepare(suite: Suite) -> None:
    """Fetches and builds the client, once for each version and each text of its build files."""
    suite.build.mkdir(parents=True, exist_ok=True)
    for template in suite.prepare:
        try:
            done = subprocess.run(
                suite.command(template),
                cwd=suite.folder,
                capture_output=True,
                text=True,
                timeout=PREPARE_SECONDS,
            )
        except OSError as error:  # what an earlier step should have put there
            raise NotBuiltError(str(error)) from error
        if done.returncode:
            raise NotBuiltError((done.stdout + done.stderr).strip()[-2000:])


def run_suite(suite: Suite, kind: str, workers: int = 1) -> Result:
    """One suite against a fresh broker, or a machine with several workers."""
    result = Result(suite)
    missing = suite.missing()
    if missing:
        result.not_run = f"no {' and no '.join(missing)} on this machine"
        return result
    prepare(suite)
    with tempfile.TemporaryDirectory(prefix="ottla-compat-") as name:
        directory = Path(name)
        with broker(directory, kind, workers) as bootstrap:
            environment = {
                **os.environ,
                "COMPAT_BOOTSTRAP": bootstrap,
                "COMPAT_BROKERS": str(workers),
                "COMPAT_PREFIX": f"c{uuid.uuid4().hex[:8]}",
                "COMPAT_BUILD": str(suite.build),
                "COMPAT_VERSION": suite.version,
                "PYTHONPATH": str(ROOT),
            }
            output = _output(suite, environment)
    read_output(result, output)
    result.day = today()
    return result


def _output(suite: Suite, environment: dict[str, str]) -> str:
    """What the program printed; one that hangs is ended, and its output so far counts."""
    with tempfile.TemporaryFile("w+") as sink:
        process = subprocess.Popen(
            suite.command(suite.run),
            cwd=suite.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        sink.seek(0)
        return sink.read()


def show(result: Result, kind: str, verbose: bool) -> None:
    """Prints what a run gave. The allow-lists are of Ottla, and a guide for Kafka."""
    suite = result.suite
    print(f"{suite.title} {suite.version} on {TITLES[kind]}: {summary(result)}", flush=True)
    for name, state in result.states.items():
        if state == FAILED:
            print(f"  does not work: {name}: {result.reasons[name]}")
    for name in result.regressions():
        if result.states.get(name) != FAILED:
            print(f"  REGRESSION: {name} is in allowed.txt and was not reported")
    for name in result.unlisted():
        print(f"  passes and is not in allowed.txt yet: {name}")
    if verbose or (result.not_run is None and not result.states):
        print(result.output[-6000:])


def accept(result: Result) -> None:
    """Adds what passed to the allow-list. Nothing is ever taken from it."""
    names = set(result.suite.allowed()) | set(result.unlisted())
    ordered = [name for name in NAMES if name in names]
    if ordered:
        (result.suite.folder / "allowed.txt").write_text("\n".join(ordered) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", help="names of folders; none means all")
    brokers = parser.add_mutually_exclusive_group()
    brokers.add_argument("--kafka", action="store_true", help="against Apache Kafka 3.9.1")
    brokers.add_argument("--both", action="store_true", help="against Ottla, then against Kafka")
    brokers.add_argument(
        "--workers", type=int, default=1, help="against N workers; nothing is kept or written"
    )
    parser.add_argument("--accept", action="store_true", help="add what passes to the allow-lists")
    parser.add_argument("--verbose", action="store_true", help="print what the programs print")
    parser.add_argument("--page", action="store_true", help="only write the page")
    chosen = parser.parse_args()
    suites = read_suites()
    unknown = set(chosen.suites) - {suite.name for suite in suites}
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    wrong = False
    suite_run = partial(run_suite, workers=chosen.workers) if chosen.workers > 1 else run_suite
    kinds = [KAFKA] if chosen.kafka else [OTTLA, KAFKA] if chosen.both else [OTTLA]
    for suite in suites:
        if chosen.page or (chosen.suites and suite.name not in chosen.suites):
            continue
        for kind in kinds:
            try:
                result = suite_run(suite, kind)
            except NotBuiltError as error:
                print(f"{suite.title} {suite.version}: could not be built\n{error}")
                result = Result(suite, not_run="its client could not be built")
                wrong = True
            show(result, kind, chosen.verbose)
            if chosen.workers == 1:
                save(result, kind)
            if kind == OTTLA:
                if chosen.accept and chosen.workers == 1:
                    accept(result)
                wrong = wrong or bool(result.regressions())
    if chosen.workers > 1:
        return int(wrong)
    path = ROOT / "docs" / "compatibility.md"
    path.write_text(render(*([last_result(suite, kind) for suite in suites] for kind in TITLES)))
    print(f"written: {path.relative_to(ROOT)}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
