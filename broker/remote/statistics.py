"""Counts of what is done with remote storage, and their metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.metrics.statistics import MetricsRegistry
    from ottla.broker.remote.remote_problems import RemoteProblems


class RemoteStatistics:
    """Of this broker since its start, all topics together. Loop only."""

    __slots__ = (
        "copied_bytes",
        "copies",
        "delete_errors",
        "deletes",
        "failed_copies",
    )

    def __init__(self) -> None:
        self.copies = 0
        self.copied_bytes = 0
        self.failed_copies = 0
        self.deletes = 0
        self.delete_errors = 0


def add_remote_storage(
    registry: MetricsRegistry, statistics: RemoteStatistics, problems: RemoteProblems
) -> None:
    """Copies and deletions of segments, and the partitions whose last run failed."""
    registry.counter(
        "ottla_remote_copies",
        "Copies of segments to remote storage that began.",
        lambda: statistics.copies,
    )
    registry.counter(
        "ottla_remote_copied_bytes",
        "Bytes of the segments that were copied to remote storage.",
        lambda: statistics.copied_bytes,
    )
    registry.counter(
        "ottla_remote_copy_errors",
        "Copies of segments to remote storage that failed.",
        lambda: statistics.failed_copies,
    )
    registry.counter(
        "ottla_remote_deletes",
        "Deletions of remote segments that began.",
        lambda: statistics.deletes,
    )
    registry.counter(
        "ottla_remote_delete_errors",
        "Deletions of remote segments that failed.",
        lambda: statistics.delete_errors,
    )
    registry.gauge(
        "ottla_remote_failing_partitions",
        "Partitions whose last run of a task failed, by the task: copy, expiration, deletion.",
        lambda: {(task,): problems.count(task) for task in ("copy", "expiration", "deletion")},
        "task",
    )
