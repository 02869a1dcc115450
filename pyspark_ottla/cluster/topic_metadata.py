"""Which topics and partitions there are, as brokers tell it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import RETRIABLE, ErrorCode
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID, uuid_to_string
from pyspark_ottla import errors
from pyspark_ottla.cluster.client_errors import refused
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import describe_all
from pyspark_ottla.options.options import Subscription

if TYPE_CHECKING:
    from pyspark_ottla.cluster.calls import ClusterCalls

UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
# A topic whose partitions have no leader at the moment is there all the same.
PRESENT = (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)

PAUSE_FIRST_SECONDS = 0.1
PAUSE_MAX_SECONDS = 1.0


def partitions_of(topics: Iterable[MetadataResponseTopic]) -> Iterable[TopicPartition]:
    for topic in topics:
        for row in topic.partitions:
            yield TopicPartition(topic.name or "", row.partition_index)


def subscribed_partitions(
    cluster: ClusterCalls, subscription: Subscription
) -> frozenset[TopicPartition]:
    """All partitions subscribed to; fails for a topic or partition named but not there."""
    deadline = cluster.deadline()
    if subscription.pattern is not None:
        pattern = re.compile(subscription.pattern)
        chosen = [
            topic
            for topic in cluster.metadata(None, deadline).topics
            if topic.name and not topic.is_internal and pattern.fullmatch(topic.name)
        ]
        return frozenset(partitions_of(chosen))
    names = sorted(subscription.topics or {tp.topic for tp in subscription.partitions})
    there = frozenset(partitions_of(_named_topics(cluster, names, deadline)))
    if not subscription.partitions:
        return there
    missing = subscription.partitions - there
    if missing:
        raise ConnectorError(
            errors.UNKNOWN_TOPIC,
            f"The option assign names {describe_all(missing)}, which the brokers do not have",
            "Partitions count from 0; leave out those that are not there",
        )
    return subscription.partitions


def _named_topics(
    cluster: ClusterCalls, names: list[str], deadline: float
) -> list[MetadataResponseTopic]:
    """The metadata of topics that must exist; retried, as a new topic may not be known yet."""
    bad: list[MetadataResponseTopic] = []
    for attempt in range(cluster.lookup_retries + 1):
        if attempt:
            cluster.sleep(cluster.lookup_retry_interval_ms / 1000)
        topics = cluster.metadata(names, deadline).topics
        bad = [topic for topic in topics if topic.error_code not in PRESENT]
        if not bad:
            return topics
        if not all(topic.error_code in RETRIABLE for topic in bad):
            break
    first = min(bad, key=lambda topic: topic.name or "")
    if first.error_code not in UNKNOWN:
        raise refused(f"Asking about the topic {first.name}", first.error_code)
    missing = ", ".join(sorted(topic.name or "" for topic in bad))
    raise ConnectorError(
        errors.UNKNOWN_TOPIC,
        f"The brokers at {cluster.options.bootstrap} have no topic {missing}",
        "Create it first, or check its name and that these are the right brokers",
    )


class TopicToWrite(NamedTuple):
    """A topic as its brokers describe it; an id that they do not tell is empty."""

    partition_count: int
    cluster_id: str
    topic_id: str


def topic_to_write(cluster: ClusterCalls, topic: str) -> TopicToWrite:
    """The topic that rows go to; the request creates it where brokers allow that."""
    deadline = cluster.deadline()
    pause = PAUSE_FIRST_SECONDS
    while True:
        response = cluster.metadata([topic], deadline, create=True)
        found = next((row for row in response.topics if row.name == topic), None)
        code = found.error_code if found is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if found is not None and code in PRESENT and found.partitions:
            topic_id = "" if found.topic_id == ZERO_UUID else uuid_to_string(found.topic_id)
            return TopicToWrite(len(found.partitions), response.cluster_id or "", topic_id)
        if code not in RETRIABLE or time.monotonic() + pause >= deadline:
            break
        cluster.sleep(pause)
        pause = min(pause * 2, PAUSE_MAX_SECONDS)
    if code not in UNKNOWN:
        raise refused(f"Writing to the topic {topic}", code)
    raise ConnectorError(
        errors.UNKNOWN_TOPIC,
        f"The brokers at {cluster.options.bootstrap} have no topic {topic} and did not create it",
        "Create it first (auto.create.topics.enable may be off), or check its name",
    )
