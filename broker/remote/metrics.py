"""The metrics of remote storage, for Prometheus and for the consoles of other brokers.

Kafka's names for them are in RemoteStorageMetrics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ottla.broker.metrics.statistics import HistogramReading
from ottla.broker.remote.statistics import PartitionProgress
from ottla.protocol.steps import Steps, run_at_once

if TYPE_CHECKING:
    from ottla.broker.metrics.statistics import MetricsRegistry, Row
    from ottla.broker.remote.remote_log_manager import RemoteLogManager
    from ottla.broker.remote.remote_log_reader import RemoteLogReader


#: Topics in a report, with about 300 bytes for each.
MAX_TOPICS = 1_000

_COUNTERS = {
    "copies": "Copies of segments to remote storage that began.",
    "copied_bytes": "Bytes of the segments that were copied to remote storage.",
    "copy_errors": "Copies of segments to remote storage that failed.",
    "deletes": "Deletions of remote segments that began.",
    "delete_errors": "Deletions of remote segments that failed.",
    "reads": "Reads of records in remote storage for consumers.",
    "read_bytes": "Bytes of records read from remote storage for consumers.",
    "read_errors": "Reads of records in remote storage that failed.",
    "state_builds": "Logs of followers that began behind remote segments, with their state.",
    "state_build_errors": (
        "Attempts to begin the log of a follower behind remote segments that failed."
    ),
}
_GAUGES = {
    "copy_lag_bytes": "Bytes of closed segments that are not copied to remote storage, of leaders.",
    "copy_lag_segments": "Closed segments that are not copied to remote storage, of leaders.",
    "delete_lag_bytes": "Bytes of remote segments that are to be deleted, of leaders.",
    "delete_lag_segments": "Remote segments that are to be deleted, of leaders.",
    "metadata_count": "Remote segments in the metadata, of leaders.",
    "size_bytes": "Bytes of the remote segments in the metadata, of leaders.",
    "size_computation_seconds": "Time to add up the size of remote segments, at the last run.",
}


class TopicProgress:
    """The sums over the partitions of each topic; empty before the first computation."""

    def __init__(self, remote: RemoteLogManager) -> None:
        self._remote = remote
        self.topics: dict[str, PartitionProgress] = {}

    def steps(self) -> Steps[None]:
        """Compute the sums; partitions may be added and removed between two steps."""
        found: dict[str, PartitionProgress] = {}
        for topic, progress in list(self._remote.progress()):
            yield
            total = found.setdefault(topic, PartitionProgress())
            for field in _GAUGES:
                setattr(total, field, getattr(total, field) + getattr(progress, field))
        self.topics = found


def add_remote_storage(
    registry: MetricsRegistry, remote: RemoteLogManager, reader: RemoteLogReader
) -> None:
    """Copies, deletions and reads, what is left to do, and what fails."""
    statistics, problems = remote.statistics, remote.problems
    for field, help_text in _COUNTERS.items():
        rows = _rows(statistics.topics, field)
        registry.counter(f"ottla_remote_{field}", help_text, rows, "topic")
    progress = TopicProgress(remote)
    registry.preparations.append(progress.steps)
    for field, help_text in _GAUGES.items():

        def read(field: str = field) -> Iterator[Row]:
            return _rows(progress.topics, field)()

        registry.gauge(f"ottla_remote_{field}", help_text, read, "topic")
    registry.gauge(
        "ottla_remote_failing_partitions",
        "Partitions whose last run of a task failed, by the task: copy, expiration, deletion.",
        lambda: {(task,): problems.count(task) for task in ("copy", "expiration", "deletion")},
        "task",
    )
    registry.gauge(
        "ottla_remote_task_idle_ratio",
        "Part of the threads of each kind of task that has nothing to do, when it is scraped.",
        remote.idle_ratios,
        "task",
    )
    registry.gauge(
        "ottla_remote_reads_pending",
        "Reads of remote storage that run or wait for a thread.",
        lambda: reader.pending,
    )
    registry.gauge(
        "ottla_remote_reader_idle_ratio",
        "Part of the threads for reads of remote storage without one, when it is scraped.",
        lambda: reader.idle_ratio,
    )
    registry.histogram(
        "ottla_remote_read_seconds",
        "Time of reads of records in remote storage, with the time that they wait for a thread.",
        lambda: {(): HistogramReading(list(statistics.read_buckets), statistics.read_seconds)},
    )


def _rows(topics: Mapping[str, object], field: str) -> Callable[[], Iterator[Row]]:
    def rows() -> Iterator[Row]:
        for topic, each in list(topics.items()):
            yield (topic,), getattr(each, field)

    return rows


def remote_report(remote: RemoteLogManager) -> str:
    """Return the counts since the start, the lags and a failure as JSON, of up to 1,000 topics."""
    progress = TopicProgress(remote)
    run_at_once(progress.steps())  # some milliseconds for ten thousand partitions
    counts = remote.statistics.topics
    topics = {
        topic: {
            name: getattr(source, name)
            for source in (counts.get(topic), progress.topics.get(topic))
            if source is not None
            for name in source.__slots__
        }
        for topic in sorted(counts.keys() | progress.topics.keys())[:MAX_TOPICS]
    }
    return json.dumps({"topics": topics, "problem": remote.problem()})
