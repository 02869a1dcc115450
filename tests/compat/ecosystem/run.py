"""Runs the programs: `python -m tests.compat.ecosystem.run [--only NAME] [--broker ottla|kafka]`.

Each program runs unchanged, by the same script, against Ottla and against Apache Kafka 3.9.1. The
results are kept in `kept/`, and docs/ecosystem.md is written from them. Exit code 1 when
something passes on Kafka and not on Ottla.
"""

from __future__ import annotations

import shutil
import sys
import time
import traceback
from pathlib import Path

import pytest

from tests.compat.comparison import (
    VERSIONS,
    chosen_brokers,
    command_line,
    end_with_sigterm,
    run_directory,
    today,
)
from tests.compat.ecosystem.catalogue import PROGRAMS
from tests.compat.ecosystem.clusters import TITLES
from tests.compat.ecosystem.model import Program, Script
from tests.compat.ecosystem.page import PAGE, write_page
from tests.compat.ecosystem.results import Results, Run
from tests.doubles.apache_kafka import REPOSITORY


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
        day=today(),
        broker_version=VERSIONS[kind],
        program_version=program.version,
        seconds=round(time.monotonic() - began),
        checks=tuple(script.checks),
    )


def main() -> int:
    end_with_sigterm()
    arguments = command_line(__doc__, [each.name for each in PROGRAMS], "program").parse_args()
    different = []
    for program in PROGRAMS:
        if arguments.page or program.name not in (arguments.only or [program.name]):
            continue
        results = Results(program.name)
        for kind in chosen_brokers(arguments):
            with run_directory(program.name, kind, arguments.keep) as directory:
                run = run_program(program, kind, directory)
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
