"""What a broker reports to the consoles of other brokers of its tiered topics, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from ottla.broker.remote.metrics import TopicProgress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.broker.remote.statistics import PartitionProgress, RemoteStatistics

#: Topics in a report: it is a response of about 300 bytes for each.
MAX_TOPICS = 1_000


class RemoteLogs(Protocol):
    """`RemoteLogManager`, as far as it is used here."""

    statistics: RemoteStatistics

    def progress(self) -> Iterable[tuple[str, PartitionProgress]]: ...

    def problem(self) -> str | None: ...


def remote_report(remote: RemoteLogs) -> str:
    """Counts since the start, what is left to do, and what fails; of 1,000 topics at most."""
    progress = TopicProgress(remote)
    for _ in progress.steps():
        pass  # some milliseconds for ten thousand partitions
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
