"""The line of a task in the log."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.lag import TASK_COLUMNS, TASK_LOGGER
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.read.task_metrics import TaskMetrics, query_of_task


def test_the_line_is_one_object(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, TASK_LOGGER):
        metrics = TaskMetrics(rows=5, fetched_bytes=100, retries=1, fetch_seconds=0.25)
        metrics.report(OffsetRange(TopicPartition("t", 3), 7, 12))
    found = json.loads(caplog.messages[0])
    assert (found["partition"], found["start"], found["end"]) == ("t-3", 7, 12)
    assert (found["rows"], found["fetched_bytes"], found["retries"]) == (5, 100, 1)
    assert found["fetch_seconds"] == 0.25
    columns = [column.split()[0] for column in TASK_COLUMNS.split(", ")]
    assert columns == ["query", "batch", *found], "what task_metrics reads"


LOGGED = """
import logging, sys
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.read.task_metrics import TaskMetrics
for _ in range(2):
    wanted = OffsetRange(TopicPartition("t", 3), 7, 12)
    TaskMetrics(rows=5).report(wanted, to_stderr=sys.argv[1] == "1")
"""


@pytest.mark.parametrize("option", ["1", "0"])
def test_without_a_handler_the_option_decides(option: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGGED, option], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count('ottla.spark.task {"partition": "t-3"') == (2 if option == "1" else 0)


def test_there_is_no_query_outside_of_spark() -> None:
    assert query_of_task() == {}
