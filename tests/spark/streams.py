"""Running streaming queries to an end and reading what they wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.doubles.eventually import eventually
from tests.spark.support import Sent, rows_by_place

QUERY_SECONDS = 300


def stream(spark: SparkSession, bootstrap: str, **options: object) -> DataFrame:
    """A streaming read; `_` in an option's name stands for `.`."""
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), str(value))
    return reader.load()


class Job:
    """A query with its checkpoint and its output, which can be run again and again."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self.checkpoint = directory / "checkpoint"
        self.output = directory / "output"

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        return (
            frame.writeStream.format("parquet")
            .option("path", str(self.output))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**trigger)
            .start()
        )

    def run(self, frame: DataFrame, **trigger: Any) -> list[dict[str, Any]]:
        """Runs to its end (availableNow by default); the progress of each batch."""
        return finish(self.start(frame, **(trigger or {"availableNow": True})))

    def rows(self) -> dict[tuple[int, int], Sent]:
        """Everything written so far, each record once."""
        return rows_by_place(self._spark.read.parquet(str(self.output)))

    def offset(self, batch: int) -> dict[str, Any]:
        """The end offset of a batch in Spark's journal."""
        lines = (self.checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def positions(self, batch: int) -> dict[str, Any]:
        """The same without the connector's marks."""
        found = self.offset(batch)
        return {topic: found[topic] for topic in found if not topic.startswith("@")}


def started(
    query: StreamingQuery,
    has_begun: Callable[[StreamingQuery], bool] = lambda query: query.lastProgress is not None,
) -> StreamingQuery:
    """The query, when it has got as far as `has_begun`, or has failed or ended before."""
    wait_until(lambda: has_begun(query) or not query.isActive, "the first batch")
    return query


def run_to_end(query: StreamingQuery) -> StreamingQuery:
    """The query at its end; raises what it failed with."""
    try:
        assert query.awaitTermination(QUERY_SECONDS), "the query did not end in time"
    finally:
        query.stop()
    return query


def finish(query: StreamingQuery) -> list[dict[str, Any]]:
    """As `run_to_end`; the progress of those batches that had data."""
    reports = [json.loads(progress.json) for progress in run_to_end(query).recentProgress]
    return [report for report in reports if report["numInputRows"]]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something that another process does; fails when it does not come."""
    eventually(condition, f"waited in vain for {what}", seconds=QUERY_SECONDS, pause_seconds=0.02)
