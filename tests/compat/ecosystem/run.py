"""Runs the programs: `python -m tests.compat.ecosystem.run [--only NAME] [--broker ottla|kafka]`.

Each program runs unchanged, by the same script, against Ottla and against Apache Kafka 3.9.1. The
results are kept in `kept/`, and docs/ecosystem.md is written from them. Exit code 1 when
something passes on Kafka and not on Ottla.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

import ottla
from tests.compat.ecosystem.catalogue import PROGRAMS
from tests.compat.ecosystem.clusters import KAFKA, OTTLA, TITLES
from tests.compat.ecosystem.model import Program, Script
from tests.compat.ecosystem.page import PAGE, write_page
from tests.compat.ecosystem.results import Results, Run
from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY

VERSIONS = {OTTLA: ottla.__version__, KAFKA: KAFKA_VERSION}


def run_program(program: Program, kind: str, directory: Path) -> Run | None:
    """The run of one program on one kind of broker; None when the machine lacks what it needs."""
    missing = [name for name in program.needs if shutil.which(name) is None]
    if missing:
        print(f"{program.title}: not run: no {' and no '.join(missing)} on this machine")
        return None
    print(f"{program.title} {program.version} on {TITLES[kind]}", flush=True)
    script = Script(kind, directory)
    began = time.monotonic()
    try:
        program.run(script)
    except pytest.skip.Exception as reason:  # a download that was not possible
        print(f"  not run: {reason}")
        return None
    except Exception:
        traceback.print_exc()
        if all(each.passed for each in script.checks):
            print("  not recorded: the script failed outside its checks")
            return None
    return Run(
        day=datetime.datetime.now(datetime.UTC).date().isoformat(),
        broker_version=VERSIONS[kind],
        program_version=program.version,
        seconds=round(time.monotonic() - began),
        checks=tuple(script.checks),
    )


def _end(number: int, frame: object) -> None:
    """SIGTERM ends the brokers and programs, too."""
    raise SystemExit(128 + number)


def main() -> int:
    signal.signal(signal.SIGTERM, _end)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", action="append", choices=names, help="a program; all without")
    parser.add_argument("--broker", action="append", choices=(OTTLA, KAFKA), help="one of the two")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--keep", type=Path, help="a directory for data and logs, kept")
    chosen = parser.parse_args()
    different = []
    for program in PROGRAMS:
        if chosen.page or program.name not in (chosen.only or names):
            continue
        results = Results(program.name)
        for kind in chosen.broker or (OTTLA, KAFKA):
            directory = Path(tempfile.mkdtemp(prefix=f"{program.name}-{kind}-", dir=chosen.keep))
            directory.chmod(0o755)  # a program may run as another user
            try:
                run = run_program(program, kind, directory)
            finally:
                if chosen.keep is None:
                    shutil.rmtree(directory, ignore_errors=True)
            if run is not None:
                results.save(kind, run)
        different += [f"{program.title}: {name}" for name in results.differences()]
    write_page([(program, Results(program.name)) for program in PROGRAMS])
    print(f"written: {PAGE.relative_to(REPOSITORY)}")
    for line in different:
        print(f"passes on Kafka and not on Ottla: {line}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
