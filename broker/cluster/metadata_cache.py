"""Brokers, topics and leaders of the cluster, from the controller's UpdateMetadata requests.

A snapshot never changes once it is published: an UpdateMetadata request builds the next one and
swaps it in. A reader that keeps `cache.snapshot` in a local variable sees one consistent snapshot,
even across an `await`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID

NO_LEADER = -1
LEADER_DURING_DELETE = -2

# A request arrives late by a minute or two at most. Some hundred kilobytes.
_DELETED_MAX = 5_000

# Kafka's name of the listener when a controller of before 0.10.2 names none: the protocol's.
_PROTOCOL_NAMES = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}


class PartitionMetadata(NamedTuple):
    """One partition's state as the controller published it."""

    partition: int
    leader: int
    leader_epoch: int
    isr: list[int]
    replicas: list[int]
    offline_replicas: list[int]
    controller_epoch: int
    partition_epoch: int


class TopicMetadata(NamedTuple):
    """One topic; the partitions are keyed by index."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionMetadata]


class BrokerEndpoint(NamedTuple):
    """Where one listener of a broker is reached."""

    host: str
    port: int
    security_protocol: int


class BrokerMetadata(NamedTuple):
    """A live broker; the endpoints are keyed by listener name."""

    broker_id: int
    endpoints: dict[str, BrokerEndpoint]
    rack: str | None


class MetadataSnapshot:
    """One consistent snapshot. Read only."""

    __slots__ = (
        "_partition_count",
        "brokers",
        "controller_epoch",
        "controller_id",
        "topic_names",
        "topics",
    )

    def __init__(
        self,
        brokers: dict[int, BrokerMetadata],
        topics: dict[str, TopicMetadata],
        topic_names: dict[bytes, str],
        controller: tuple[int, int],
    ) -> None:
        """`controller` is the id and the epoch of the controller that published it."""
        self.brokers = brokers
        self.topics = topics
        self.topic_names = topic_names
        self.controller_id, self.controller_epoch = controller
        self._partition_count = -1

    @property
    def partition_count(self) -> int:
        """The partitions of all topics; counted once."""
        if self._partition_count < 0:
            self._partition_count = sum(len(topic.partitions) for topic in self.topics.values())
        return self._partition_count

    def partition(self, topic: str, index: int) -> PartitionMetadata | None:
        """The state of one partition, or None when it is not known."""
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(index)

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic; the zero id when it is not known."""
        found = self.topics.get(topic)
        return ZERO_UUID if found is None else found.topic_id

    def alive(self, broker_id: int, listener_name: str) -> BrokerEndpoint | None:
        """Where a live broker is reached on a listener, or None."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.endpoints.get(listener_name)


class MetadataCache:
    """Holder of the current snapshot. Loop only."""

    def __init__(self) -> None:
        self.snapshot = MetadataSnapshot({}, {}, {}, (-1, 0))
        #: Set by a broker that joins a cluster with topics, until it knows of one.
        self.expects_topics = False
        #: Ids of the last deleted topics, with the epochs of the controllers that deleted them.
        self._deleted_ids: dict[bytes, int] = {}
        # One entry for each request that waits; those are bounded by the connections.
        self._waiters: list[tuple[Callable[[MetadataSnapshot], bool], asyncio.Future[None]]] = []

    def is_loaded(self) -> bool:
        """Whether the cache holds the state of a controller that has read the znode tree.

        The first UpdateMetadata of a new controller has the brokers and no topics, as in Kafka:
        leaders are elected next. To the clients of a broker that has just started, it would say
        that the topics are gone.
        """
        return bool(self.snapshot.brokers) and not self.expects_topics

    async def wait_until(
        self, condition: Callable[[MetadataSnapshot], bool], timeout_ms: int
    ) -> bool:
        """Wait until a snapshot satisfies `condition`; False when the time is up first."""
        if condition(self.snapshot):
            return True
        if timeout_ms <= 0:
            return False
        future = asyncio.get_running_loop().create_future()
        entry = (condition, future)
        self._waiters.append(entry)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await future
        except TimeoutError:
            return False
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)
        return True

    def _wake_waiters(self) -> None:
        snapshot = self.snapshot
        for entry in tuple(self._waiters):
            condition, future = entry
            if not future.done() and condition(snapshot):
                self._waiters.remove(entry)
                future.set_result(None)

    def forget_deleted(self) -> None:
        """After a registration: no earlier request is taken, and the ensemble may be a restored
        one, where deleted topics are back."""
        self._deleted_ids.clear()

    def publish(
        self, request: UpdateMetadataRequest, *, keep_brokers: bool = False
    ) -> Steps[list[TopicPartition]]:
        """Publish the next snapshot; return the partitions that the request deletes.

        Topics that the request does not name stay as they are (the controller sends differences).
        So do partitions of which this controller has published a later state: after a time-out it
        sends a request again over a new connection, and the first one may arrive after the next.
        Topics that were deleted since are removed from a late request. With `keep_brokers` the
        brokers stay, as if it were late.

        It may pause between partitions: the snapshot changes with the last step, and until then no
        other update may begin.
        """
        is_late = self._drop_late(request) or keep_brokers
        old = self.snapshot
        topics = old.topics
        topic_names = old.topic_names
        deleted: list[TopicPartition] = []
        same_controller = request.controller_epoch == old.controller_epoch
        changes = _by_topic(request)
        if changes:
            topics = dict(topics)
            topic_names = dict(topic_names)
        for name, (sent_id, states) in changes.items():
            topic_id = sent_id
            before = topics.get(name)
            partitions: dict[int, PartitionMetadata] = {}
            if before is not None and topic_id in (before.topic_id, ZERO_UUID):
                topic_id = before.topic_id
                partitions = dict(before.partitions)
            elif before is not None:
                topic_names.pop(before.topic_id, None)
            for state in states:
                if state.leader == LEADER_DURING_DELETE:
                    partitions.pop(state.partition_index, None)
                    deleted.append(TopicPartition(name, state.partition_index))
                else:
                    known = partitions.get(state.partition_index)
                    if (
                        same_controller
                        and known is not None
                        and known.partition_epoch > state.zk_version
                    ):
                        is_late = True
                    else:
                        partitions[state.partition_index] = _partition(state)
                yield
            if partitions:
                topics[name] = TopicMetadata(name, topic_id, partitions)
                if topic_id != ZERO_UUID:
                    topic_names[topic_id] = name
            else:
                topics.pop(name, None)
                topic_names.pop(topic_id, None)
                self._remember_deleted(topic_id, request.controller_epoch)
        brokers = {broker.id: _broker(broker) for broker in request.live_brokers}
        self.snapshot = MetadataSnapshot(
            old.brokers if is_late else brokers,
            topics,
            topic_names,
            (request.controller_id, request.controller_epoch),
        )
        if topics:
            self.expects_topics = False
        if self._waiters:
            self._wake_waiters()
        return deleted

    def _drop_late(self, request: UpdateMetadataRequest) -> bool:
        """Remove deleted topics from the request; return whether it is late.

        After a time-out the controller sends a request again, and the first one may arrive when the
        topic is gone, or was created again with another id. One that deletes it, which is dropped
        all the same, may also come of a new controller. To that the topic may exist: its deletion
        had not ended and was cancelled.
        """
        deleted, epoch = self._deleted_ids, request.controller_epoch
        for topic in request.topic_states:
            if deleted.get(topic.topic_id, epoch) < epoch and not _deletes(topic):
                del deleted[topic.topic_id]
        known = [topic for topic in request.topic_states if topic.topic_id in deleted]
        if known:
            request.topic_states = [
                topic for topic in request.topic_states if topic.topic_id not in deleted
            ]
        return not all(_deletes(topic) for topic in known)

    def _remember_deleted(self, topic_id: bytes, controller_epoch: int) -> None:
        if topic_id != ZERO_UUID:
            self._deleted_ids[topic_id] = controller_epoch
            if len(self._deleted_ids) > _DELETED_MAX:
                del self._deleted_ids[next(iter(self._deleted_ids))]


def _deletes(topic: UpdateMetadataTopicState) -> bool:
    return all(state.leader == LEADER_DURING_DELETE for state in topic.partition_states)


def _by_topic(
    request: UpdateMetadataRequest,
) -> dict[str, tuple[bytes, Iterable[UpdateMetadataPartitionState]]]:
    """The states by topic, whichever of the two layouts (before and from version 5) was sent."""
    changes: dict[str, tuple[bytes, Iterable[UpdateMetadataPartitionState]]] = {}
    for topic in request.topic_states:
        changes[topic.topic_name] = (topic.topic_id, topic.partition_states)
    grouped: dict[str, list[UpdateMetadataPartitionState]] = {}
    for state in request.ungrouped_partition_states:
        grouped.setdefault(state.topic_name, []).append(state)
    for name, states in grouped.items():
        changes[name] = (ZERO_UUID, states)
    return changes


def _partition(state: UpdateMetadataPartitionState) -> PartitionMetadata:
    return PartitionMetadata(
        partition=state.partition_index,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        replicas=state.replicas,
        offline_replicas=state.offline_replicas,
        controller_epoch=state.controller_epoch,
        partition_epoch=state.zk_version,
    )


def _broker(broker: UpdateMetadataBroker) -> BrokerMetadata:
    endpoints: dict[str, BrokerEndpoint] = {}
    for endpoint in broker.endpoints:
        name = endpoint.listener or _PROTOCOL_NAMES.get(endpoint.security_protocol, "PLAINTEXT")
        endpoints[name] = BrokerEndpoint(endpoint.host, endpoint.port, endpoint.security_protocol)
    if not endpoints:
        endpoints["PLAINTEXT"] = BrokerEndpoint(broker.v0_host, broker.v0_port, 0)
    return BrokerMetadata(broker.id, endpoints, broker.rack or None)
