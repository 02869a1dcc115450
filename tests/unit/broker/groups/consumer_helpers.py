"""A coordinator that serves groups of the new protocol (KIP-848), and members of these groups."""

from __future__ import annotations

from typing import Any

from ottla.broker.groups.consumer.cluster_topics import ClusterTopics, TopicDescription
from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
from ottla.broker.groups.consumer.topic_patterns import find_matching
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import DescribedGroup
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.steps import Steps, run_at_once
from tests.doubles.coordinator_log import MemoryLog
from tests.doubles.manual_timer import ManualTimer
from tests.unit.broker.groups.helpers import GROUP, PendingResponse, Setup

Owned = dict[str, set[int]]


class Catalog(ClusterTopics):
    """Topics that are created and deleted by hand."""

    def __init__(self, **partition_counts: int) -> None:
        self._version: object = object()
        self._topics: dict[str, TopicDescription] = {}
        self._made = 0
        for name, count in partition_counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> None:
        self._made += 1
        topic_id = self._made.to_bytes(16)
        self._topics[name] = TopicDescription(topic_id, name, count, {})
        self._version = object()

    def grow(self, name: str, count: int) -> None:
        self._topics[name] = self._topics[name]._replace(partition_count=count)
        self._version = object()

    def delete(self, name: str) -> None:
        del self._topics[name]
        self._version = object()

    @property
    def version(self) -> object:
        return self._version

    def describe(self, name: str) -> TopicDescription | None:
        return self._topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((t.name for t in self._topics.values() if t.topic_id == topic_id), None)

    def matching(self, pattern: str) -> Steps[frozenset[str]]:
        return find_matching(pattern, list(self._topics))

    def count(self, name: str) -> int:
        found = self._topics.get(name)
        return 0 if found is None else found.partition_count


class ConsumerSetup(Setup):
    """As `Setup`, with both kinds of groups."""

    def __init__(
        self,
        log: MemoryLog | None = None,
        catalog: Catalog | None = None,
        timer: ManualTimer | None = None,
        **settings: Any,
    ) -> None:
        self.catalog = catalog or Catalog(t=4)
        settings.setdefault(
            "group_coordinator_rebalance_protocols", frozenset(("classic", "consumer"))
        )
        super().__init__(log, self.catalog, timer, **settings)

    @property
    def found(self) -> ConsumerGroup | None:
        group = self.coordinator.partitions.find(GROUP)
        return group if group is not None and group.kind == "consumer" else None

    @property
    def consumer_group(self) -> ConsumerGroup:
        assert self.found is not None
        return self.found

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: list[str] | None = None,
        pattern: str | None = None,
        owned: Owned | None = None,
        instance_id: str | None = None,
        timeout_ms: int = -1,
        assignor: str | None = None,
        version: int = 1,
        group_id: str = GROUP,
    ) -> PendingResponse[ConsumerGroupHeartbeatResponse]:
        response: PendingResponse[ConsumerGroupHeartbeatResponse] = PendingResponse()
        consumers = self.coordinator.consumers
        assert consumers is not None
        consumers.membership.heartbeat(
            ConsumerGroupHeartbeatRequest(
                group_id=group_id,
                member_id=member_id,
                member_epoch=epoch,
                instance_id=instance_id,
                rebalance_timeout_ms=timeout_ms,
                subscribed_topic_names=topics,
                subscribed_topic_regex=pattern,
                server_assignor=assignor,
                topic_partitions=None if owned is None else self._rows(owned),
            ),
            version,
            "client",
            "/127.0.0.1",
            response,
        )
        return response

    def _rows(self, owned: Owned) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        rows = []
        for name, indexes in owned.items():
            topic = self.catalog.describe(name)
            topic_id = b"gone".ljust(16) if topic is None else topic.topic_id
            rows.append(ConsumerGroupHeartbeatRequestTopicPartitions(topic_id, sorted(indexes)))
        return rows

    def enter(
        self, member_id: str, topics: list[str] | None = None, **more: Any
    ) -> ConsumerGroupHeartbeatResponse:
        """Joins; returns the response, which has to be sent at once and without an error."""
        wanted = ["t"] if topics is None else topics
        more.setdefault("timeout_ms", 30_000)
        response = self.beat(member_id, 0, topics=wanted, owned={}, **more).value
        assert response.error_code == ErrorCode.NONE, response.error_message
        return response

    def given(self, response: ConsumerGroupHeartbeatResponse) -> Owned | None:
        """The assignment of a response by topic names; None when it has none."""
        if response.assignment is None:
            return None
        found: Owned = {}
        for row in response.assignment.topic_partitions:
            found[self.catalog.name_of(row.topic_id) or "gone"] = set(row.partitions)
        return found

    def describe_consumers(self) -> DescribedGroup:
        consumers = self.coordinator.consumers
        assert consumers is not None
        return run_at_once(consumers.admin.describe(GROUP))
