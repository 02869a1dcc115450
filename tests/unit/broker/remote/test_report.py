from __future__ import annotations

import json

from ottla.broker.remote.report import remote_report
from ottla.broker.remote.statistics import PartitionProgress, RemoteStatistics


class Logs:
    """Two partitions of topic a, and one of b that is not led here."""

    def __init__(self) -> None:
        self.statistics = RemoteStatistics()
        self.statistics.topic("a").copies = 3
        self.statistics.topic("b").reads = 1

    def progress(self) -> list[tuple[str, PartitionProgress]]:
        found = []
        for size in (10, 5):
            progress = PartitionProgress()
            progress.size_bytes = size
            found.append(("a", progress))
        return found

    def problem(self) -> str | None:
        return "the store is away"


def test_counts_and_sums_by_topic() -> None:
    report = json.loads(remote_report(Logs()))
    assert report["problem"] == "the store is away"
    topics = report["topics"]
    assert (topics["a"]["copies"], topics["a"]["size_bytes"]) == (3, 15)
    assert topics["b"]["reads"] == 1
    assert "size_bytes" not in topics["b"]
