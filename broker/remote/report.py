"""What a broker reports to the consoles of other brokers of its tiered topics, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ottla.broker.remote.metrics import TopicProgress

if TYPE_CHECKING:
    from ottla.broker.remote.remote_log_manager import RemoteLogManager

#: Topics in a report: it is a response of about 300 bytes for each.
MAX_TOPICS = 1_000


def remote_report(remote: RemoteLogManager) -> str:
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
