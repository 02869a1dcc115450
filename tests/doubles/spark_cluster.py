"""A cluster of the Spark connector without a broker: partitions are two numbers each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import EARLIEST, LATEST, Offsets
from pyspark_ottla.options.options import Subscription


class FakeCluster:
    """`planning.Cluster` and `stream.StreamCluster` over dicts, which tests change at will."""

    def __init__(self, ends: Mapping[tuple[str, int], int]) -> None:
        self.earliest: Offsets = {TopicPartition(*place): 0 for place in ends}
        self.latest: Offsets = {TopicPartition(*place): end for place, end in ends.items()}
        self.by_timestamp: dict[tuple[TopicPartition, int], int] = {}
        # High watermarks of partitions with open transactions.
        self.unstable: Offsets = {}
        self.groups: dict[str, Offsets] = {}
        self.ids: dict[str, str] = {}
        self.record_bytes: dict[TopicPartition, float] = {}
        self.commit_failures = 0
        self.forbidden: set[str] = set()
        self.questions: list[str] = []

    def grow(self, topic: str, partition: int, end: int, begin: int = 0) -> None:
        tp = TopicPartition(topic, partition)
        self.earliest.setdefault(tp, begin)
        self.latest[tp] = end

    def drop(self, topic: str) -> None:
        for tp in [tp for tp in self.latest if tp.topic == topic]:
            del self.latest[tp], self.earliest[tp]

    def partitions(self, subscription: Subscription) -> frozenset[TopicPartition]:
        self.questions.append("partitions")
        there = set(self.latest)
        if subscription.pattern is not None:
            return frozenset(tp for tp in there if re.fullmatch(subscription.pattern, tp.topic))
        if subscription.partitions:
            return subscription.partitions
        for topic in sorted(subscription.topics):
            if not any(tp.topic == topic for tp in there):
                raise ConnectorError(errors.UNKNOWN_TOPIC, f"There is no topic {topic}")
        return frozenset(tp for tp in there if tp.topic in subscription.topics)

    def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        self.questions.append("offsets")
        found: Offsets = {}
        for tp, timestamp in wanted.items():
            if tp.topic in self.forbidden:
                raise ConnectorError(errors.NOT_AUTHORIZED, f"{tp.topic} is not allowed")
            if tp not in self.latest:
                continue
            ends = {EARLIEST: self.earliest[tp], LATEST: self.latest[tp]}
            found[tp] = ends.get(timestamp, self.by_timestamp.get((tp, timestamp), -1))
        return found

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return {tp: self.latest[tp] for tp in partitions if tp in self.latest} | self.unstable

    def committed(self, group_id: str, partitions: Collection[TopicPartition]) -> Offsets:
        group = self.groups.get(group_id, {})
        return {tp: group[tp] for tp in partitions if tp in group}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def bytes_per_offset(self, partition: TopicPartition, offset: int) -> float | None:
        is_there = offset >= self.earliest[partition]
        return self.record_bytes.get(partition) if is_there else None

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        del timeout_ms
        self.questions.append("commit")
        if self.commit_failures:
            self.commit_failures -= 1
            raise ConnectorError(errors.BROKER_UNAVAILABLE, "The coordinator is away")
        self.groups.setdefault(group_id, {}).update(offsets)
