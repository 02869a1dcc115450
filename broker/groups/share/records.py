"""The records of share groups (KIP-932) in `__consumer_offsets`, in the format of Kafka 4.3.

The first two bytes of a key are its type, 10 to 15; values begin with their version, 0. A null
value is a tombstone. Brokers of Kafka 3.9 skip these types.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any, NamedTuple

from ottla.protocol.codec import decoder, encoder
from ottla.protocol.errors import ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.stored import share_group_current_member_assignment as current
from ottla.protocol.messages.stored import share_group_member_metadata as member_metadata
from ottla.protocol.messages.stored import share_group_metadata as metadata
from ottla.protocol.messages.stored import share_group_state_partition_metadata as state_partitions
from ottla.protocol.messages.stored import share_group_target_assignment_member as target
from ottla.protocol.messages.stored import share_group_target_assignment_metadata as target_epoch

MEMBER = 10
EPOCH = 11
TARGET_EPOCH = 12
TARGET = 13
CURRENT = 14
STATE_PARTITIONS = 15

FIRST_SHARE_KEY = MEMBER
LAST_SHARE_KEY = STATE_PARTITIONS

_CLASSES: dict[int, tuple[type[Message], type[Message]]] = {
    MEMBER: (
        member_metadata.ShareGroupMemberMetadataKey,
        member_metadata.ShareGroupMemberMetadataValue,
    ),
    EPOCH: (metadata.ShareGroupMetadataKey, metadata.ShareGroupMetadataValue),
    TARGET_EPOCH: (
        target_epoch.ShareGroupTargetAssignmentMetadataKey,
        target_epoch.ShareGroupTargetAssignmentMetadataValue,
    ),
    TARGET: (
        target.ShareGroupTargetAssignmentMemberKey,
        target.ShareGroupTargetAssignmentMemberValue,
    ),
    CURRENT: (
        current.ShareGroupCurrentMemberAssignmentKey,
        current.ShareGroupCurrentMemberAssignmentValue,
    ),
    STATE_PARTITIONS: (
        state_partitions.ShareGroupStatePartitionMetadataKey,
        state_partitions.ShareGroupStatePartitionMetadataValue,
    ),
}
_SHORT = Struct(">h")
_STABLE = 0  # the state of a current assignment: share members have no other

Topics = dict[bytes, list[int]]


class UnreadableShareRecord(ValueError):
    """A key or value is not in Kafka's format; the message has the reason."""


class ShareRecord(NamedTuple):
    """One record; `value` is the message of its type, None for a tombstone."""

    kind: int
    group_id: str
    member_id: str
    value: Any  # one of the messages of _CLASSES

    def encoded(self) -> tuple[bytes, bytes | None]:
        """Key and value."""
        key_class, value_class = _CLASSES[self.kind]
        names = (self.group_id, self.member_id) if _has_member(self.kind) else (self.group_id,)
        key = _SHORT.pack(self.kind) + encoder(key_class, 0)(key_class(*names))
        if self.value is None:
            return key, None
        return key, b"\0\0" + encoder(value_class, 0)(self.value)


def is_of_share_group(key: bytes) -> bool:
    return len(key) > 1 and key[0] == 0 and FIRST_SHARE_KEY <= key[1] <= LAST_SHARE_KEY


def read_share_record(key: bytes, value: bytes | None) -> ShareRecord:
    """Decode a record. Raises UnreadableShareRecord."""
    kind: int = _SHORT.unpack_from(key)[0]
    try:
        key_class, value_class = _CLASSES[kind]
        found: Any = decoder(key_class, 0)(key, 2)[0]
        member_id = found.member_id if _has_member(kind) else ""
        if value is None:
            return ShareRecord(kind, found.group_id, member_id, None)
        if value[:2] != b"\0\0":
            raise UnreadableShareRecord(f"the value {value[:8]!r} has an unknown version")
        return ShareRecord(kind, found.group_id, member_id, decoder(value_class, 0)(value, 2)[0])
    except (ProtocolError, KeyError) as problem:
        raise UnreadableShareRecord(f"the record with key {key[:64]!r}: {problem}") from None


def _has_member(kind: int) -> bool:
    return kind in (MEMBER, TARGET, CURRENT)


def member_record(
    group_id: str,
    member_id: str,
    rack_id: str | None,
    client: tuple[str, str],
    topics: Iterable[str],
) -> ShareRecord:
    """`client` is the client id and the host."""
    value = member_metadata.ShareGroupMemberMetadataValue(rack_id, *client, sorted(topics))
    return ShareRecord(MEMBER, group_id, member_id, value)


def epoch_record(group_id: str, epoch: int) -> ShareRecord:
    return ShareRecord(EPOCH, group_id, "", metadata.ShareGroupMetadataValue(epoch, 0))


def target_epoch_record(group_id: str, epoch: int) -> ShareRecord:
    value = target_epoch.ShareGroupTargetAssignmentMetadataValue(epoch)
    return ShareRecord(TARGET_EPOCH, group_id, "", value)


def target_record(group_id: str, member_id: str, topics: Topics) -> ShareRecord:
    rows = [target.TopicPartition(*each) for each in sorted(topics.items())]
    value = target.ShareGroupTargetAssignmentMemberValue(rows)
    return ShareRecord(TARGET, group_id, member_id, value)


def current_record(
    group_id: str, member_id: str, epochs: tuple[int, int], topics: Topics
) -> ShareRecord:
    """`epochs` are the member epoch and the one before."""
    rows = [current.TopicPartitions(*each) for each in sorted(topics.items())]
    value = current.ShareGroupCurrentMemberAssignmentValue(*epochs, _STABLE, rows)
    return ShareRecord(CURRENT, group_id, member_id, value)


def state_partitions_record(group_id: str, topics: Topics, names: dict[bytes, str]) -> ShareRecord:
    """Return the partitions whose state is initialized."""
    rows = [
        state_partitions.TopicPartitionsInfo(topic_id, names.get(topic_id, ""), sorted(indexes))
        for topic_id, indexes in sorted(topics.items())
    ]
    value = state_partitions.ShareGroupStatePartitionMetadataValue(initialized_topics=rows)
    return ShareRecord(STATE_PARTITIONS, group_id, "", value)


def tombstone_record(kind: int, group_id: str, member_id: str = "") -> ShareRecord:
    return ShareRecord(kind, group_id, member_id, None)
