"""What members of a classic consumer group tell each other through the coordinator.

The group protocol carries two opaque blobs: each member's subscription in JoinGroup, and each
member's assignment in SyncGroup. Versions 0 to 3 of both are written by Kafka's clients; a reader
takes later ones as the latest it knows, and skips what follows.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.protocol.codec import decoder, encode_with_version, read_stored_version
from ottla.protocol.errors import ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.stored.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from ottla.protocol.primitives import Buffer
from ottla.protocol.topics import TopicPartition

HIGHEST_VERSION = 3

PROTOCOL_TYPE = "consumer"


class Subscription(NamedTuple):
    """What a member wants and has. ``generation_id`` is -1 when it had none or did not send it.

    ``group_instance_id`` travels in JoinGroup itself, not in the blob; assignors order by it.
    """

    topics: list[str]
    user_data: bytes | None = None
    owned_partitions: Sequence[TopicPartition] = ()
    generation_id: int = -1
    rack_id: str | None = None
    group_instance_id: str | None = None


class Assignment(NamedTuple):
    """What a member is to read."""

    partitions: list[TopicPartition]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """The blob for JoinGroup; fields that ``version`` does not have are left out.

    Topics and partitions are written in order, as Kafka's clients do.
    """
    owned: dict[str, list[int]] = {}
    for topic, partition in sorted(subscription.owned_partitions):
        owned.setdefault(topic, []).append(partition)
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            ConsumerProtocolSubscriptionTopicPartition(topic, partitions)
            for topic, partitions in owned.items()
        ],
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id,
    )
    return encode_with_version(message, min(version, HIGHEST_VERSION))


def decode_subscription(data: Buffer, group_instance_id: str | None = None) -> Subscription:
    """The subscription in a blob; raises ProtocolError when it is none."""
    message = _decode(ConsumerProtocolSubscription, data)
    assert isinstance(message, ConsumerProtocolSubscription)
    return Subscription(
        message.topics,
        message.user_data,
        [
            TopicPartition(owned.topic, partition)
            for owned in message.owned_partitions
            for partition in owned.partitions
        ],
        message.generation_id,
        message.rack_id or None,
        group_instance_id,
    )


def encode_assignment(assignment: Assignment, version: int = HIGHEST_VERSION) -> bytes:
    """The blob for SyncGroup; partitions are grouped by topic in the order of first mention."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic, partitions)
            for topic, partitions in group_by_topic(assignment.partitions).items()
        ],
        user_data=assignment.user_data,
    )
    return encode_with_version(message, min(version, HIGHEST_VERSION))


def decode_assignment(data: Buffer) -> Assignment:
    """The assignment in a blob; raises ProtocolError when it is none."""
    message = _decode(ConsumerProtocolAssignment, data)
    assert isinstance(message, ConsumerProtocolAssignment)
    return Assignment(
        [
            TopicPartition(assigned.topic, partition)
            for assigned in message.assigned_partitions
            for partition in assigned.partitions
        ],
        message.user_data,
    )


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, both in the order of first mention."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def _decode(cls: type[Message], data: Buffer) -> Message:
    version = read_stored_version(data)
    if version < 0:
        raise ProtocolError("negative versions do not exist", api=cls.NAME, version=version)
    return decoder(cls, min(version, HIGHEST_VERSION))(data, 2)[0]


def assigned_partitions(data: bytes) -> list[TopicPartition]:
    """The partitions in a consumer's assignment, [] if it is not one (Kafka Connect has others)."""
    if len(data) < 2:
        return []
    # Newer versions append fields, so that the newest known version decodes their beginning.
    version = min(
        int.from_bytes(data[:2], "big", signed=True), ConsumerProtocolAssignment.MAX_VERSION
    )
    if version < 0:
        return []
    try:
        assignment, _ = decoder(ConsumerProtocolAssignment, version)(data, 2)
    except ProtocolError:
        return []
    assert isinstance(assignment, ConsumerProtocolAssignment)
    return sorted(
        TopicPartition(row.topic, index)
        for row in assignment.assigned_partitions
        for index in row.partitions
    )
