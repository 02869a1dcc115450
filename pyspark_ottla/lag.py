"""How far a streaming query is behind the topics it reads, and what its tasks did.

    lag(query).total                         records not read yet
    lag(query).partitions["words"][3]        of one partition
    lag(query).metrics()                     as the metrics of Spark's JVM connector
    spark.streams.addListener(LagListener(print))
    task_metrics(spark)                      bytes, times and retries of each task

Lag is in the progress that Spark reports: the source adds the ends of the topics to every trigger,
and no request is sent. Spark has no channel for the metrics of a Python source's tasks but its log;
for streams see `task_listener`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import Offsets, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_ottla.task_listener import TaskListener

TASK_LOGGER = "ottla.spark.task"
TASK_COLUMNS = (
    "query string, batch long, partition string, start long, end long, rows long, "
    "fetched_bytes long, remote_bytes long, remote_errors long, fetch_requests long, "
    "retries long, lost_offsets long, "
    "bad_records long, fetch_seconds double, decode_seconds double"
)


class Lag(NamedTuple):
    """Offsets between what a query has read and the ends of its topics, by topic and partition.

    Counted in offsets: transaction markers and what compaction took away count as well.
    """

    partitions: dict[str, dict[int, int]]

    @property
    def total(self) -> int:
        return sum(self._offsets())

    @property
    def max(self) -> int:
        """Of the partition that is furthest behind; 0 without partitions."""
        return max(self._offsets(), default=0)

    @property
    def min(self) -> int:
        """Of the partition that is least behind; 0 without partitions."""
        return min(self._offsets(), default=0)

    @property
    def average(self) -> float:
        """Over the partitions; 0 without any."""
        found = self._offsets()
        return sum(found) / len(found) if found else 0.0

    def metrics(self) -> dict[str, str]:
        """By the names and as the texts that Spark's JVM connector reports in `sources[].metrics`,
        where Spark has no place for those of a Python source."""
        return {
            "avgOffsetsBehindLatest": str(self.average),
            "maxOffsetsBehindLatest": str(self.max),
            "minOffsetsBehindLatest": str(self.min),
        }

    def _offsets(self) -> list[int]:
        return [behind for numbers in self.partitions.values() for behind in numbers.values()]


class NamedLag(NamedTuple):
    """The lag of a query as a listener gets it; `name` is None for a query without one. `tasks` has
    the sums over the tasks of the trigger if the listener was given a `TaskListener`."""

    query_id: str
    name: str | None
    lag: Lag
    tasks: Mapping[str, float] = {}  # never changed; a NamedTuple's default


def lag(query: StreamingQuery) -> Lag:
    """The lag as of the query's last trigger; empty before its first."""
    progress = query.lastProgress
    return lag_of_progress(None if progress is None else json.loads(progress.json))


def lag_of_progress(progress: Mapping[str, Any] | None) -> Lag:
    """The lag of all Kafka sources in a progress report; other sources are skipped."""
    totals: Offsets = {}
    for source in (progress or {}).get("sources", ()):
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        if latest is None or end is None:
            continue
        for tp, offset in latest.items():
            totals[tp] = totals.get(tp, 0) + max(0, offset - end.get(tp, 0))
    nested: dict[str, dict[int, int]] = {}
    for tp in sorted(totals):
        nested.setdefault(tp.topic, {})[tp.partition] = totals[tp]
    return Lag(nested)


def _offsets(value: Any) -> Offsets | None:
    """An offset in a report is JSON, or a text of JSON; None if it is none of this source."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, dict):
        return None
    try:
        return decode(value).offsets
    except ConnectorError:
        return None


def open_metrics(measured: NamedLag) -> str:
    """The lag as text in the OpenMetrics format, for a file or an endpoint of one's own."""
    query = _escape(measured.name or measured.query_id)
    lines = ["# TYPE ottla_spark_lag gauge"]
    for topic, numbers in measured.lag.partitions.items():
        for partition, behind in numbers.items():
            labels = f'query="{query}",topic="{topic}",partition="{partition}"'
            lines.append(f"ottla_spark_lag{{{labels}}} {behind}")
    return "\n".join([*lines, "# EOF", ""])


def task_metrics(spark: SparkSession) -> DataFrame:
    """A row for each task that read in this session: what it read, how much and how long.

    For batch reads, with Spark 4.1 or newer and spark.sql.pyspark.worker.logging.enabled=true set
    before the read. Spark does not collect what the tasks of a streaming query log; a
    `TaskListener` gets the same from them. Times are in seconds.
    """
    from pyspark.sql.functions import col, from_json

    lines = spark.tvf.python_worker_logs().where(col("logger") == TASK_LOGGER)
    return lines.select(from_json("msg", TASK_COLUMNS).alias("task")).select("task.*")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class LagListener(StreamingQueryListener):
    """Calls back with the lag of every query after each of its triggers, and with what its tasks
    read if `tasks` listens to them.

    The callback runs in Spark's listener thread: it must be quick and must not raise.
    """

    def __init__(
        self, callback: Callable[[NamedLag], object], tasks: TaskListener | None = None
    ) -> None:
        self._callback = callback
        self._tasks = tasks

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        found = lag_of_progress(json.loads(progress.json))
        if found.partitions:
            query_id = str(progress.id)
            sums = {} if self._tasks is None else self._tasks.totals(query_id, progress.batchId)
            self._callback(NamedLag(query_id, progress.name, found, sums))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to tell yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Idle queries report their progress now and then all the same."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """What is left unread then is left to the caller that ended the query."""
