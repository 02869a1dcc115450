"""The topics of the cluster for server-side assignors."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.groups.consumer.topic_patterns import find_matching
from ottla.protocol.steps import Steps, run_at_once
from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataSnapshot

MAX_PATTERNS = 1_000  # regular expressions with the topics that match; then the cache is cleared
# Names that are matched when topics were created, of all patterns: 10 ms. With more to match each
# pattern is matched again when it is needed, which takes as long as the first time.
MAX_MATCHES_PER_CHANGE = 1_000


class TopicDescription(NamedTuple):
    """A topic; `racks` has the racks of the replicas of each partition, where known."""

    topic_id: bytes
    name: str
    partition_count: int
    racks: dict[int, frozenset[str]]


class ClusterTopics:
    """The topics of the metadata cache: a consistent view of the cluster. Loop only."""

    def __init__(self, snapshot: Callable[[], MetadataSnapshot]) -> None:
        self._latest = snapshot
        self._snapshot: MetadataSnapshot | None = None
        # Identifies the snapshot; a group that keeps it does not keep the snapshot alive.
        self._version = object()
        # Includes brokers that are down: a restart of a broker must not move partitions.
        self._racks: dict[int, str] = {}
        self._matched: dict[str, frozenset[str]] = {}

    @property
    def version(self) -> object:
        """An object that is replaced whenever the metadata may have changed."""
        self._current()
        return self._version

    def _current(self) -> MetadataSnapshot:
        snapshot = self._latest()
        if snapshot is not self._snapshot:
            known = self._snapshot
            self._snapshot = snapshot
            self._version = object()
            if known is not None and self._matched:
                self._match_changes(known.topics.keys(), snapshot.topics.keys())
            for broker in snapshot.brokers.values():
                if broker.rack is None:
                    self._racks.pop(broker.broker_id, None)
                else:
                    self._racks[broker.broker_id] = broker.rack
        return snapshot

    def _match_changes(self, before: AbstractSet[str], after: AbstractSet[str]) -> None:
        """Topics were created or deleted: the others need not be matched again."""
        if before == after:
            return
        created, deleted = list(after - before), before - after
        if len(created) * len(self._matched) > MAX_MATCHES_PER_CHANGE:
            self._matched.clear()
            return
        for pattern, found in self._matched.items():
            self._matched[pattern] = (found - deleted) | run_at_once(
                find_matching(pattern, created)
            )

    def describe(self, name: str) -> TopicDescription | None:
        """Return None for a topic that is missing, or has no id (created before Kafka 2.8)."""
        topic = self._current().topics.get(name)
        if topic is None or topic.topic_id == ZERO_UUID:
            return None
        racks: dict[int, frozenset[str]] = {}
        if self._racks:
            for index, partition in topic.partitions.items():
                found = frozenset(
                    self._racks[replica] for replica in partition.replicas if replica in self._racks
                )
                if found:
                    racks[index] = found
        return TopicDescription(topic.topic_id, name, len(topic.partitions), racks)

    def name_of(self, topic_id: bytes) -> str | None:
        return self._current().topic_names.get(topic_id)

    def matching(self, pattern: str) -> Steps[frozenset[str]]:
        """Return the topics whose whole name a regular expression matches; none if it is invalid.

        The result is of the end: topics may be created and deleted in a pause. There is no pause if
        the result is known already.
        """
        topics = self._current().topics.keys()
        known = self._matched.get(pattern)
        if known is not None:
            return known
        matched = yield from find_matching(pattern, list(topics))
        latest = self._current().topics.keys()
        if latest != topics:  # topics were created or deleted in a pause
            matched &= latest
            matched |= run_at_once(find_matching(pattern, latest - topics))
        if len(self._matched) >= MAX_PATTERNS:
            self._matched.clear()
        self._matched[pattern] = matched
        return matched
