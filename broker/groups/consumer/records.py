"""The records of consumer groups (KIP-848) in `__consumer_offsets`, in the format of Kafka 3.9.

Current assignments have the epochs of partitions of Kafka 4.3 (KIP-1251) as tagged fields, which
other versions skip.

Keys have version 3 to 8, values version 0. A null value is a tombstone.
"""

import struct
from struct import Struct
from typing import NamedTuple, TypeVar

from ottla.broker.groups.consumer.cluster_topics import TopicDescription
from ottla.broker.groups.consumer.member import (
    NO_EPOCHS,
    Assignment,
    ClassicProtocols,
    ConsumerMember,
    Epochs,
    MemberState,
)
from ottla.protocol.codec import decoder, encoder
from ottla.protocol.errors import ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.stored import (
    consumer_group_current_member_assignment as current_messages,
)
from ottla.protocol.messages.stored import consumer_group_member_metadata as member_messages
from ottla.protocol.messages.stored import consumer_group_metadata as epoch_messages
from ottla.protocol.messages.stored import consumer_group_partition_metadata as topic_messages
from ottla.protocol.messages.stored import (
    consumer_group_target_assignment_member as target_messages,
)
from ottla.protocol.messages.stored import (
    consumer_group_target_assignment_metadata as target_epoch_messages,
)

EPOCH_KEY = 3
TOPICS_KEY = 4
MEMBER_KEY = 5
TARGET_EPOCH_KEY = 6
TARGET_KEY = 7
CURRENT_KEY = 8

VALUE_VERSION = 0

M = TypeVar("M", bound=Message)

_SHORT = Struct(">h")


class GroupEpoch(NamedTuple):
    """The epoch of a group; None for a tombstone."""

    group_id: str
    epoch: int | None

    @property
    def is_tombstone(self) -> bool:
        return self.epoch is None


class SubscribedTopics(NamedTuple):
    group_id: str
    topics: dict[str, TopicDescription] | None

    @property
    def is_tombstone(self) -> bool:
        return self.topics is None


class MemberSubscription(NamedTuple):
    """The metadata of a member; its epochs and assignment are in `CurrentAssignment`."""

    group_id: str
    member_id: str
    member: ConsumerMember | None

    @property
    def is_tombstone(self) -> bool:
        return self.member is None


class TargetEpoch(NamedTuple):
    group_id: str
    epoch: int | None

    @property
    def is_tombstone(self) -> bool:
        return self.epoch is None


class TargetAssignment(NamedTuple):
    group_id: str
    member_id: str
    assignment: Assignment | None

    @property
    def is_tombstone(self) -> bool:
        return self.assignment is None


class CurrentAssignment(NamedTuple):
    """The current assignment of a member; a state of None is a tombstone."""

    group_id: str
    member_id: str
    state: MemberState | None
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = {}  # noqa: RUF012  never changed
    revoking: Assignment = {}  # noqa: RUF012  never changed
    assigned_at: Epochs = NO_EPOCHS

    @property
    def is_tombstone(self) -> bool:
        return self.state is None


GroupRecord = (
    GroupEpoch
    | SubscribedTopics
    | MemberSubscription
    | TargetEpoch
    | TargetAssignment
    | CurrentAssignment
)


def current_assignment(group_id: str, member: ConsumerMember) -> CurrentAssignment:
    return CurrentAssignment(
        group_id,
        member.member_id,
        member.state,
        member.epoch,
        member.previous_epoch,
        member.assigned,
        member.revoking,
        member.epochs_of(member.assigned, member.revoking),
    )


# Encoding.


def encode_record(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value."""
    group_id = record.group_id
    if isinstance(record, GroupEpoch):
        key = _encode(epoch_messages.ConsumerGroupMetadataKey(group_id), EPOCH_KEY)
        if record.epoch is None:
            return key, None
        return key, _value(epoch_messages.ConsumerGroupMetadataValue(record.epoch))
    if isinstance(record, SubscribedTopics):
        key = _encode(topic_messages.ConsumerGroupPartitionMetadataKey(group_id), TOPICS_KEY)
        return key, None if record.topics is None else _value(_topics_message(record.topics))
    if isinstance(record, TargetEpoch):
        key = _encode(
            target_epoch_messages.ConsumerGroupTargetAssignmentMetadataKey(group_id),
            TARGET_EPOCH_KEY,
        )
        if record.epoch is None:
            return key, None
        return key, _value(
            target_epoch_messages.ConsumerGroupTargetAssignmentMetadataValue(record.epoch)
        )
    member_id = record.member_id
    if isinstance(record, MemberSubscription):
        key = _encode(member_messages.ConsumerGroupMemberMetadataKey(group_id, member_id), 5)
        return key, None if record.member is None else _value(_member_message(record.member))
    if isinstance(record, TargetAssignment):
        key = _encode(
            target_messages.ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), TARGET_KEY
        )
        if record.assignment is None:
            return key, None
        return key, _value(
            target_messages.ConsumerGroupTargetAssignmentMemberValue(
                [
                    target_messages.TopicPartition(topic_id, sorted(indexes))
                    for topic_id, indexes in record.assignment.items()
                ]
            )
        )
    key = _encode(
        current_messages.ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), CURRENT_KEY
    )
    if record.state is None:
        return key, None
    return key, _value(
        current_messages.ConsumerGroupCurrentMemberAssignmentValue(
            record.epoch,
            record.previous_epoch,
            record.state,
            _current_rows(record.assigned, record.assigned_at),
            _current_rows(record.revoking, record.assigned_at),
        )
    )


def _encode(message: Message, version: int) -> bytes:
    body: bytes = encoder(type(message), version)(message)
    return _SHORT.pack(version) + body


def _value(message: Message) -> bytes:
    return _encode(message, VALUE_VERSION)


def _current_rows(assignment: Assignment, epochs: Epochs) -> list[current_messages.TopicPartitions]:
    rows = []
    for topic_id, indexes in assignment.items():
        ordered, known = sorted(indexes), epochs[topic_id]
        rows.append(
            current_messages.TopicPartitions(topic_id, ordered, [known[index] for index in ordered])
        )
    return rows


def _assignment_of(rows: list[current_messages.TopicPartitions]) -> Assignment:
    return {row.topic_id: frozenset(row.partitions) for row in rows}


def _epochs_of(rows: list[current_messages.TopicPartitions]) -> Epochs:
    """Return the stored epochs; rows of Kafka before 4.3 have none."""
    found: Epochs = {}
    for row in rows:
        if row.assignment_epochs and len(row.assignment_epochs) == len(row.partitions):
            pairs = zip(row.partitions, row.assignment_epochs, strict=True)
            found.setdefault(row.topic_id, {}).update(pairs)
    return found


def _topics_message(
    topics: dict[str, TopicDescription],
) -> topic_messages.ConsumerGroupPartitionMetadataValue:
    return topic_messages.ConsumerGroupPartitionMetadataValue(
        [
            topic_messages.TopicMetadata(
                topic.topic_id,
                topic.name,
                topic.partition_count,
                [
                    topic_messages.PartitionMetadata(index, sorted(racks))
                    for index, racks in topic.racks.items()
                ],
            )
            for topic in topics.values()
        ]
    )


def _member_message(member: ConsumerMember) -> member_messages.ConsumerGroupMemberMetadataValue:
    classic = None
    if member.classic is not None:
        classic = member_messages.ClassicMemberMetadata(
            member.classic.session_timeout_ms,
            [
                member_messages.ClassicProtocol(name, metadata)
                for name, metadata in member.classic.protocols
            ],
        )
    return member_messages.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.topic_regex or "",
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=classic,
    )


# Decoding.


class UnreadableGroupRecord(ValueError):
    """A key or value is not in Kafka's format; the message has the reason."""


def decode_record(key: bytes, value: bytes | None) -> GroupRecord:
    """Decode a record with a key of version 3 to 8. Raises UnreadableGroupRecord."""
    try:
        return _decode(_SHORT.unpack_from(key)[0], key, value)
    except (struct.error, ProtocolError) as problem:
        raise UnreadableGroupRecord(
            f"a record of a consumer group cannot be read: {problem}"
        ) from None


def _decode(version: int, key: bytes, value: bytes | None) -> GroupRecord:
    if version == EPOCH_KEY:
        group_id = _read(epoch_messages.ConsumerGroupMetadataKey, key, version).group_id
        if value is None:
            return GroupEpoch(group_id, None)
        return GroupEpoch(group_id, _read(epoch_messages.ConsumerGroupMetadataValue, value).epoch)
    if version == TOPICS_KEY:
        group_id = _read(topic_messages.ConsumerGroupPartitionMetadataKey, key, version).group_id
        if value is None:
            return SubscribedTopics(group_id, None)
        found = _read(topic_messages.ConsumerGroupPartitionMetadataValue, value)
        return SubscribedTopics(group_id, _topics_of(found))
    if version == TARGET_EPOCH_KEY:
        group_id = _read(
            target_epoch_messages.ConsumerGroupTargetAssignmentMetadataKey, key, version
        ).group_id
        if value is None:
            return TargetEpoch(group_id, None)
        cls = target_epoch_messages.ConsumerGroupTargetAssignmentMetadataValue
        return TargetEpoch(group_id, _read(cls, value).assignment_epoch)
    return _decode_of_member(version, key, value)


def _decode_of_member(version: int, key: bytes, value: bytes | None) -> GroupRecord:
    if version == MEMBER_KEY:
        about = _read(member_messages.ConsumerGroupMemberMetadataKey, key, version)
        if value is None:
            return MemberSubscription(about.group_id, about.member_id, None)
        member = _member_of(about.member_id, value)
        return MemberSubscription(about.group_id, about.member_id, member)
    if version == TARGET_KEY:
        target = _read(target_messages.ConsumerGroupTargetAssignmentMemberKey, key, version)
        if value is None:
            return TargetAssignment(target.group_id, target.member_id, None)
        rows = _read(target_messages.ConsumerGroupTargetAssignmentMemberValue, value)
        assignment = {row.topic_id: frozenset(row.partitions) for row in rows.topic_partitions}
        return TargetAssignment(target.group_id, target.member_id, assignment)
    if version != CURRENT_KEY:
        raise UnreadableGroupRecord(f"unknown key version {version}")
    current = _read(current_messages.ConsumerGroupCurrentMemberAssignmentKey, key, version)
    if value is None:
        return CurrentAssignment(current.group_id, current.member_id, None)
    stored = _read(current_messages.ConsumerGroupCurrentMemberAssignmentValue, value)
    known_states = {state.value for state in MemberState}
    return CurrentAssignment(
        current.group_id,
        current.member_id,
        MemberState(stored.state if stored.state in known_states else MemberState.UNKNOWN),
        stored.member_epoch,
        stored.previous_member_epoch,
        _assignment_of(stored.assigned_partitions),
        _assignment_of(stored.partitions_pending_revocation),
        _epochs_of([*stored.assigned_partitions, *stored.partitions_pending_revocation]),
    )


def _read(cls: type[M], data: bytes, version: int | None = None) -> M:
    """Decode a key of this version, or a value of the version in its first two bytes."""
    if version is None:
        version = _SHORT.unpack_from(data)[0]
        if version != VALUE_VERSION:
            raise UnreadableGroupRecord(f"a {cls.NAME} has the unknown version {version}")
    return decoder(cls, version)(data, 2)[0]


def _topics_of(
    value: topic_messages.ConsumerGroupPartitionMetadataValue,
) -> dict[str, TopicDescription]:
    return {
        topic.topic_name: TopicDescription(
            topic.topic_id,
            topic.topic_name,
            topic.num_partitions,
            {row.partition: frozenset(row.racks) for row in topic.partition_metadata},
        )
        for topic in value.topics
    }


def _member_of(member_id: str, data: bytes) -> ConsumerMember:
    value = _read(member_messages.ConsumerGroupMemberMetadataValue, data)
    classic = value.classic_member_metadata
    return ConsumerMember(
        member_id,
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        value.rebalance_timeout_ms,
        frozenset(value.subscribed_topic_names),
        value.subscribed_topic_regex or None,
        value.server_assignor,
        None
        if classic is None
        else ClassicProtocols(
            classic.session_timeout_ms,
            tuple((found.name, found.metadata) for found in classic.supported_protocols),
        ),
    )
