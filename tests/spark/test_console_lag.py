"""A running query as others see it: its lag in the broker's console and metrics, and what its tasks
read in a listener."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla.broker.testing.embedded import Broker
from pyspark_ottla.lag import LagListener, NamedLag
from pyspark_ottla.task_listener import TaskListener
from tests.doubles.eventually import eventually
from tests.spark.streams import run_to_end, stream
from tests.spark.support import Sent, create_topic, write

TOPIC, GROUP = "watched", "watchers"
RECORDS, FIRST_BATCH = 9, 4
WAIT_SECONDS = 120


@pytest.fixture
def console() -> Iterator[Broker]:
    with Broker(ottla_console_enable=True, ottla_metrics_address="127.0.0.1:0") as running:
        yield running


def fetch(broker: Broker, path: str) -> str:
    address = f"http://localhost:{broker.server.metrics_port}/{path}"
    with urllib.request.urlopen(address, timeout=30) as response:
        text: str = response.read().decode()
        return text


def group(broker: Broker) -> dict[str, Any]:
    """The group as the list of the console has it; empty before it is there."""
    listed = json.loads(fetch(broker, "api/groups"))["groups"]
    return next((each for each in listed if each["group"] == GROUP), {})


def seconds_metric(broker: Broker) -> float | None:
    labels = f'ottla_group_lag_seconds{{group="{GROUP}",topic="{TOPIC}",partition="0"}}'
    for line in fetch(broker, "metrics").splitlines():
        if line.startswith(labels):
            return float(line.split()[1])
    return None


@pytest.fixture
def reports(spark: SparkSession) -> Iterator[tuple[TaskListener, list[NamedLag]]]:
    """A listener to tasks, and what a LagListener gets with it."""
    found: list[NamedLag] = []
    with TaskListener() as tasks:
        listener = LagListener(found.append, tasks)
        spark.streams.addListener(listener)
        yield tasks, found
        spark.streams.removeListener(listener)


def test_a_running_query_is_seen_by_the_console_and_by_a_listener(
    spark: SparkSession,
    console: Broker,
    reports: tuple[TaskListener, list[NamedLag]],
    tmp_path: Path,
) -> None:
    tasks, found = reports
    create_topic(console.bootstrap, TOPIC)
    write(console.bootstrap, TOPIC, [Sent(b"%d" % n) for n in range(RECORDS)])
    shown = threading.Event()

    def hold(batch: DataFrame, number: int) -> None:
        # The group has the end of the first batch when the second one is under way.
        assert batch.count() in (1, FIRST_BATCH)
        if number == 1:
            assert shown.wait(WAIT_SECONDS)

    frame = stream(
        spark,
        console.bootstrap,
        subscribe=TOPIC,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=FIRST_BATCH,
        kafka_group_id=GROUP,
        commitOffsets="true",
        taskMetricsAddress=tasks.address,
    )
    writer = frame.writeStream.foreachBatch(hold)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        behind = RECORDS - FIRST_BATCH

        def is_behind() -> bool:
            assert query.isActive, query.exception()
            found = group(console)
            return bool(found.get("lag")) and found["lag"][-1][1] == behind

        eventually(is_behind, lambda: group(console), seconds=WAIT_SECONDS)
        eventually(lambda: (group(console)["lag_seconds"] or 0) > 0, lambda: group(console))
        eventually(lambda: (seconds_metric(console) or 0) > 0, lambda: fetch(console, "metrics"))
    finally:
        shown.set()
    run_to_end(query)
    eventually(lambda: group(console)["lag_seconds"] == 0, lambda: group(console))
    eventually(lambda: len(found) >= 3, lambda: found)
    assert [row.lag.total for row in found[:3]] == [5, 1, 0]
    for row, count in zip(found, (FIRST_BATCH, FIRST_BATCH, 1), strict=False):
        assert (row.tasks["tasks"], row.tasks["rows"]) == (1, count)
        assert row.tasks["fetched_bytes"] > 0
        assert row.tasks["fetch_requests"] >= 1
        assert row.tasks["fetch_seconds"] > 0
        assert row.tasks["decode_seconds"] > 0
        assert (row.tasks["retries"], row.tasks["lost_offsets"]) == (0, 0)
