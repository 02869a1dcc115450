"""mypy takes the types of the installed packages: both have `py.typed`, and no error of theirs
reaches a program that uses them."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.installed.builds import ROOT, must_run, run
from tests.installed.conftest import Installed

PROGRAM = """
import asyncio

import pyspark_ottla
from ottla.testing import Broker, Fault, KafkaError


def use(broker: Broker) -> int:
    fault: Fault = broker.faults.error("Produce", "INVALID_RECORD", times=1)
    broker.create_topic("orders", partitions=3, config={"retention.ms": 1000})
    try:
        return broker.end_offset("orders", 2) + fault.hits
    except KafkaError as error:
        return error.code


async def main() -> str:
    async with Broker(num_partitions=3) as broker:
        return broker.bootstrap


with Broker("data") as started:
    use(started)
asyncio.run(main())
reveal_type(started.bootstrap)
reveal_type(pyspark_ottla.register)
"""

WRONG = """
from ottla.testing import Broker

Broker().create_topic("orders", partitions="three")
"""


def test_a_program_is_checked_against_the_wheel(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG)
    # The cache is kept between runs, as mypy's own is: the first one reads the whole broker.
    mypy = (
        sys.executable, "-m", "mypy", "--strict", "--config-file=",
        "--python-executable", installed.python, "--cache-dir", ROOT / ".mypy_cache" / "installed",
    )  # fmt: skip
    said = must_run(*mypy, "program.py", cwd=tmp_path)
    assert 'Revealed type is "str"' in said
    assert 'Revealed type is "def (' in said
    wrong = run(*mypy, "wrong.py", cwd=tmp_path)
    assert wrong.returncode == 1
    assert 'incompatible type "str"; expected "int | None"' in wrong.stdout
