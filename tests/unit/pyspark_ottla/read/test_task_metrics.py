"""The line of a task in the log."""

from __future__ import annotations

import json
import logging

import pytest

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.offsets import OffsetRange
from pyspark_ottla.read.task_metrics import LOGGER, TaskMetrics, query_of_task


def test_the_line_is_one_object(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        metrics = TaskMetrics(rows=5, fetched_bytes=100, retries=1, fetch_seconds=0.25)
        metrics.report(OffsetRange(TopicPartition("t", 3), 7, 12))
    found = json.loads(caplog.messages[0])
    assert (found["partition"], found["start"], found["end"]) == ("t-3", 7, 12)
    assert (found["rows"], found["fetched_bytes"], found["retries"]) == (5, 100, 1)
    assert found["fetch_seconds"] == 0.25


def test_there_is_no_query_outside_of_spark() -> None:
    assert query_of_task() == {}
