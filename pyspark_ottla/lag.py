"""How far a streaming query is behind the topics it reads, from the progress that Spark reports.

    lag(query).total                         records not read yet
    lag(query).partitions["words"][3]        of one partition
    spark.streams.addListener(LagListener(print))

No request is sent: the source reports the ends of the topics with every trigger.
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
    from pyspark.sql.streaming.query import StreamingQuery


class Lag(NamedTuple):
    """Offsets between what a query has read and the ends of its topics, by topic and partition.

    Counted in offsets: transaction markers and what compaction took away count as well.
    """

    partitions: dict[str, dict[int, int]]

    @property
    def total(self) -> int:
        return sum(sum(numbers.values()) for numbers in self.partitions.values())


class NamedLag(NamedTuple):
    """The lag of a query as a listener gets it; `name` is None for a query without one."""

    query_id: str
    name: str | None
    lag: Lag


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
    lines = ["# TYPE ottla_spark_lag gauge"]
    query = _escape(measured.name or measured.query_id)
    for topic, numbers in measured.lag.partitions.items():
        for partition, behind in numbers.items():
            labels = f'query="{query}",topic="{topic}",partition="{partition}"'
            lines.append(f"ottla_spark_lag{{{labels}}} {behind}")
    return "\n".join([*lines, "# EOF", ""])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class LagListener(StreamingQueryListener):
    """Calls back with the lag of every query after each of its triggers.

    The callback runs in Spark's listener thread: it must be quick and must not raise.
    """

    def __init__(self, callback: Callable[[NamedLag], object]) -> None:
        self._callback = callback

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        found = lag_of_progress(json.loads(progress.json))
        if found.partitions:
            self._callback(NamedLag(str(progress.id), progress.name, found))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to tell yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Idle queries report their progress now and then all the same."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """What is left unread then is left to the caller that ended the query."""
