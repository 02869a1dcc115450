"""Counts by topic, and the times of reads."""

from __future__ import annotations

from ottla.broker.remote.statistics import RemoteStatistics


def test_counts_of_topics() -> None:
    statistics = RemoteStatistics()
    statistics.topic("a").reads += 1
    statistics.topic("a").reads += 1
    statistics.topic("b").reads += 1
    assert (statistics.topic("a").reads, statistics.total("reads")) == (2, 3)
    statistics.forget("a")
    statistics.forget("a")
    assert statistics.total("reads") == 1


def test_times_of_reads() -> None:
    statistics = RemoteStatistics()
    for seconds in (0.00001, 0.3, 100.0):
        statistics.record_read_time(seconds)
    assert sum(statistics.read_buckets) == 3
    assert statistics.read_buckets[0] == statistics.read_buckets[-1] == 1
    assert statistics.read_seconds == 100.30001
