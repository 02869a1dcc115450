"""The records of `__consumer_offsets`, byte for byte as Kafka 3.9 in ZooKeeper mode has them.

A key begins with a two-byte version, which is the type of the record: 0 and 1 a committed offset, 2
the metadata of a classic group, higher ones the consumer group protocol. A null value is a
tombstone. Offsets are written with key version 1 and value version 3 (1 when the client sent a
retention time), group metadata with value version 3; all older versions can be read.

Offset records are encoded and decoded here, not by `ottla.protocol.codec`, because a coordinator
loads millions of them.
"""

import struct
from struct import Struct
from typing import Any, NamedTuple

from ottla.broker.groups.classic.group import Group, GroupState
from ottla.broker.groups.classic.member import Member
from ottla.broker.groups.offsets import NO_TIMESTAMP, CommittedOffset
from ottla.protocol.codec import decoder, encoder, sliced_decoder, sliced_encoder
from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.stored.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from ottla.protocol.messages.stored.offset_commit import OffsetCommitValue
from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition

OFFSET_KEY_VERSION = 1
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_KEY_VERSION = 2
GROUP_VALUE_VERSION = 3
MAX_GROUP_VALUE_VERSION = 4
MAX_OFFSET_VALUE_VERSION = 4

_SHORT = Struct(">h")
_INT = Struct(">i")
_OFFSET_HEAD_V3 = Struct(">hqih")  # version, offset, leader epoch, length of the metadata
_BARE_V3 = Struct(">hqihq")  # the same with no metadata, and the time of the commit
_BARE_V3_SIZE = _BARE_V3.size
_OFFSET_HEAD_V1 = Struct(">hqh")  # version, offset, length of the metadata
_LONG = Struct(">q")
_LONG_PAIR = Struct(">qq")
_HEAD_V3_SIZE = _OFFSET_HEAD_V3.size


class UnreadableRecord(ValueError):
    """A key or value is not in Kafka's format; the message has the reason."""


class OffsetKey(NamedTuple):
    group_id: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    group_id: str


def read_key(key: bytes) -> OffsetKey | GroupKey | None:
    """Return the decoded key; None for versions of other protocols."""
    try:
        version: int = _SHORT.unpack_from(key)[0]
        if version == GROUP_KEY_VERSION:
            return GroupKey(_read_string(key, 2)[0])
        if version < 0 or version > OFFSET_KEY_VERSION:
            return None
        group_id, position = _read_string(key, 2)
        topic, position = _read_string(key, position)
        return OffsetKey(group_id, TopicPartition(topic, _INT.unpack_from(key, position)[0]))
    except (struct.error, UnicodeDecodeError) as problem:
        raise UnreadableRecord(f"the key {key[:64]!r} cannot be read: {problem}") from None


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    start = position + 2
    end = start + _SHORT.unpack_from(data, position)[0]
    if end < start or end > len(data):
        raise UnreadableRecord(f"the key {data[:64]!r} is truncated")
    return data[start:end].decode(), end


def offset_key(group_id: str, partition: TopicPartition) -> bytes:
    group = group_id.encode()
    topic = partition.topic.encode()
    return b"".join(
        (
            _SHORT.pack(OFFSET_KEY_VERSION),
            _SHORT.pack(len(group)),
            group,
            _SHORT.pack(len(topic)),
            topic,
            _INT.pack(partition.partition),
        )
    )


def offset_value(value: CommittedOffset) -> bytes:
    metadata = value.metadata.encode()
    if value.expire_timestamp_ms != NO_TIMESTAMP:
        return b"".join(
            (
                _OFFSET_HEAD_V1.pack(OFFSET_VALUE_VERSION_WITH_EXPIRY, value.offset, len(metadata)),
                metadata,
                _LONG_PAIR.pack(value.commit_timestamp_ms, value.expire_timestamp_ms),
            )
        )
    return b"".join(
        (
            _OFFSET_HEAD_V3.pack(
                OFFSET_VALUE_VERSION, value.offset, value.leader_epoch, len(metadata)
            ),
            metadata,
            _LONG.pack(value.commit_timestamp_ms),
        )
    )


def read_offset_value(data: bytes, appended_at: int) -> CommittedOffset:
    try:
        if len(data) == _BARE_V3_SIZE:
            # Nearly all offsets have no metadata.
            version, offset, leader_epoch, length, timestamp_ms = _BARE_V3.unpack(data)
            if version == OFFSET_VALUE_VERSION and not length:
                return CommittedOffset(
                    offset, leader_epoch, "", timestamp_ms, NO_TIMESTAMP, appended_at
                )
        if len(data) >= _HEAD_V3_SIZE and data[1] == OFFSET_VALUE_VERSION and not data[0]:
            _, offset, leader_epoch, length = _OFFSET_HEAD_V3.unpack_from(data)
            end = _HEAD_V3_SIZE + length
            return CommittedOffset(
                offset,
                leader_epoch,
                data[_HEAD_V3_SIZE:end].decode() if length else "",
                _LONG.unpack_from(data, end)[0],
                NO_TIMESTAMP,
                appended_at,
            )
        version = _SHORT.unpack_from(data)[0]
        if version < 0 or version > MAX_OFFSET_VALUE_VERSION:
            raise UnreadableRecord(f"an offset has the unknown version {version}")
        value, _ = decoder(OffsetCommitValue, version)(data, 2)
    except (struct.error, UnicodeDecodeError, ProtocolError) as problem:
        raise UnreadableRecord(f"an offset cannot be read: {problem}") from None
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        appended_at,
    )


def group_key(group_id: str) -> bytes:
    body: bytes = encoder(GroupMetadataKey, GROUP_KEY_VERSION)(GroupMetadataKey(group_id))
    return _SHORT.pack(GROUP_KEY_VERSION) + body


def group_value(group: Group, assignments: dict[str, bytes]) -> Steps[bytes]:
    """Encode a group whose members have these assignments. It must not change in a pause."""
    members: list[MemberMetadata] = []
    for member in group.members.values():
        members.append(_member_metadata(member, group.protocol_name, assignments))
        yield
    pieces: list[bytes] = [_SHORT.pack(GROUP_VALUE_VERSION)]
    encode = sliced_encoder(GroupMetadataValue, GROUP_VALUE_VERSION)
    for _ in encode(_group_metadata(group, members), pieces, []):
        yield
    return b"".join(pieces)


def _group_metadata(group: Group, members: list[MemberMetadata]) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=group.state_timestamp_ms,
        members=members,
    )


def _member_metadata(
    member: Member, protocol_name: str | None, assignments: dict[str, bytes]
) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol_name or ""),
        assignment=assignments[member.member_id],
    )


def read_group_value(group_id: str, data: bytes, now_ms: int) -> Steps[Group]:
    """Decode a group: Stable, or Empty if it has no members. Raises UnreadableRecord."""
    try:
        version = _group_version(group_id, data)
        # It yields counts of elements, which only bound requests of clients.
        decoding: Any = sliced_decoder(GroupMetadataValue, version)(data, 2)
        value, _ = yield from decoding
    except (struct.error, ProtocolError) as problem:
        raise UnreadableRecord(f"group {group_id} cannot be read: {problem}") from None
    return (yield from _group_of(group_id, value, version, now_ms))


def _group_version(group_id: str, data: bytes) -> int:
    version: int = _SHORT.unpack_from(data)[0]
    if version < 0 or version > MAX_GROUP_VALUE_VERSION:
        raise UnreadableRecord(f"group {group_id} has the unknown version {version}")
    return version


def _group_of(group_id: str, value: GroupMetadataValue, version: int, now_ms: int) -> Steps[Group]:
    group = Group(group_id, now_ms, GroupState.STABLE if value.members else GroupState.EMPTY)
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    # Without the time of the last change, offsets expire after their commit.
    group.state_timestamp_ms = value.current_state_timestamp
    for stored in value.members:
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout if version == 0 else stored.rebalance_timeout,
            stored.session_timeout,
            value.protocol_type,
            ((value.protocol or "", stored.subscription),),
            stored.assignment,
        )
        group.add(member, None)
        yield
    group.leader_id = value.leader
    group.update_subscribed_topics()
    return group
