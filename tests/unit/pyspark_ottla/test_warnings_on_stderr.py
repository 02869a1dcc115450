"""Warnings as lines where logging is not configured, and once where a job configures it."""

from __future__ import annotations

import re
import subprocess
import sys

PROGRAM = """
import logging, sys
from pyspark_ottla.warnings_on_stderr import is_handled, spark_logger
if sys.argv[1] == "configured":
    logging.basicConfig(format="by the job: %(message)s")
spark_logger(), spark_logger()
spark_logger().warning("3 offsets are gone")
spark_logger().info("not shown")
print(is_handled(logging.getLogger("ottla.spark.task")))
"""


def lines(how: str) -> tuple[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.splitlines()


def test_a_process_without_handlers_writes_whole_lines() -> None:
    handled, [line] = lines("bare")
    assert re.fullmatch(r"[\d/]{8} [\d:]{8} WARNING ottla\.spark: 3 offsets are gone", line)
    assert handled == "False"


def test_a_job_that_configures_logging_gets_each_warning_once() -> None:
    assert lines("configured") == ("True", ["by the job: 3 offsets are gone"])
