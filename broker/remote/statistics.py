"""Counts of what is done with remote storage, by topic, and how far each partition is."""

from __future__ import annotations

from bisect import bisect_left

from ottla.broker.metrics.statistics import TIME_BUCKETS


class TopicRemoteStatistics:
    """One topic, on this broker, since its first partition came here."""

    __slots__ = (
        "copied_bytes",
        "copies",
        "copy_errors",
        "delete_errors",
        "deletes",
        "read_bytes",
        "read_errors",
        "reads",
        "state_build_errors",
        "state_builds",
    )

    def __init__(self) -> None:
        self.copies = 0
        self.copied_bytes = 0
        self.copy_errors = 0
        self.deletes = 0
        self.delete_errors = 0
        self.reads = 0
        self.read_bytes = 0
        self.read_errors = 0
        self.state_builds = 0
        self.state_build_errors = 0


class RemoteStatistics:
    """Of this broker. Loop only."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicRemoteStatistics] = {}
        #: Reads by their time, as `TIME_BUCKETS`.
        self.read_buckets = [0] * (len(TIME_BUCKETS) + 1)
        self.read_seconds = 0.0

    def topic(self, topic: str) -> TopicRemoteStatistics:
        """Those of a topic; `forget` it when it has left this broker."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicRemoteStatistics()
        return found

    def forget(self, topic: str) -> None:
        """The last partition of the topic has left this broker."""
        self.topics.pop(topic, None)

    def total(self, field: str) -> int:
        """The sum of a count over all topics."""
        return sum(getattr(each, field) for each in self.topics.values())

    def record_read_time(self, seconds: float) -> None:
        """A read of records has ended, with or without an error."""
        self.read_buckets[bisect_left(TIME_BUCKETS, seconds)] += 1
        self.read_seconds += seconds


class PartitionProgress:
    """What the leader of a partition has to do, as of the last run of each task."""

    __slots__ = (
        "copy_lag_bytes",
        "copy_lag_segments",
        "delete_lag_bytes",
        "delete_lag_segments",
        "metadata_count",
        "size_bytes",
        "size_computation_seconds",
    )

    def __init__(self) -> None:
        #: Closed segments that are not copied.
        self.copy_lag_bytes = 0
        self.copy_lag_segments = 0
        #: Remote segments that retention, a failed copy or a failed deletion left to be deleted.
        self.delete_lag_bytes = 0
        self.delete_lag_segments = 0
        #: Remote segments, also those whose copy or deletion has only begun.
        self.metadata_count = 0
        #: Of these segments.
        self.size_bytes = 0
        self.size_computation_seconds = 0.0
