"""The records of `__remote_log_metadata`, in the format of Kafka 3.9's RemoteLogMetadataSerde.

A record has no key. Its value is a frame version, the key and the version of a message, each an
unsigned varint, and the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from ottla.protocol.codec import decoder, encoder
from ottla.protocol.errors import ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.stored import remote_log_segment_metadata as segment_record
from ottla.protocol.messages.stored import remote_log_segment_metadata_update as update_record
from ottla.protocol.messages.stored import remote_partition_delete_metadata as delete_record
from ottla.protocol.partitioner import murmur2
from ottla.protocol.primitives import Malformed, encode_unsigned_varint, read_unsigned_varint
from ottla.storage.errors import StorageError
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"

_FRAME_VERSION = 1
_MESSAGE_VERSION = 0
_LOW_32_BITS = 0xFFFF_FFFF

#: By the key of the message on disk.
_MESSAGES: dict[int, type[Message]] = {
    0: segment_record.RemoteLogSegmentMetadataRecord,
    1: update_record.RemoteLogSegmentMetadataUpdateRecord,
    2: delete_record.RemotePartitionDeleteMetadataRecord,
}
_KEYS = {message: key for key, message in _MESSAGES.items()}


class UnreadableMetadataRecord(StorageError):
    """The value of a record is not in Kafka's format; the message has the reason."""


class RemotePartitionDeleteState(IntEnum):
    """How far the deletion of a topic's partition in remote storage is. The ids are Kafka's."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A segment that is known changes its state."""

    segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    broker_id: int


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """The deletion of a partition changes its state."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int


RemoteLogMetadata = (
    RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata
)


def topic_id_partition_of(metadata: RemoteLogMetadata) -> TopicIdPartition:
    """The partition that a record is about."""
    if isinstance(metadata, RemotePartitionDeleteMetadata):
        return metadata.topic_id_partition
    return metadata.segment_id.topic_id_partition


def metadata_partition(partition: TopicIdPartition, partition_count: int) -> int:
    """The partition of `__remote_log_metadata` with the records about `partition`.

    Mirrors Kafka's RemoteLogMetadataTopicPartitioner. The name of the topic does not matter.
    """
    topic_id = partition.topic_id.int
    most, least = topic_id >> 64, topic_id & (1 << 64) - 1
    value = 1
    for part in (least ^ least >> 32, most ^ most >> 32, partition.partition):
        value = (31 * value + part) & _LOW_32_BITS
    return (murmur2(value.to_bytes(4, "big")) & 0x7FFF_FFFF) % partition_count


def encode_metadata(metadata: RemoteLogMetadata) -> bytes:
    """The value of the record."""
    message = _message_of(metadata)
    body: bytes = encoder(type(message), _MESSAGE_VERSION)(message)
    head = (_FRAME_VERSION, _KEYS[type(message)], _MESSAGE_VERSION)
    return b"".join(map(encode_unsigned_varint, head)) + body


def decode_metadata(value: bytes | memoryview) -> RemoteLogMetadata:
    """Decode the value of a record. Raises UnreadableMetadataRecord."""
    try:
        frame_version, position = read_unsigned_varint(value, 0)
        key, position = read_unsigned_varint(value, position)
        version, position = read_unsigned_varint(value, position)
        if frame_version != _FRAME_VERSION:
            raise UnreadableMetadataRecord(f"unknown frame version {frame_version}")
        if key not in _MESSAGES or version != _MESSAGE_VERSION:
            raise UnreadableMetadataRecord(f"unknown message {key} with version {version}")
        message, position = decoder(_MESSAGES[key], version)(value, position)
        if position != len(value):
            raise UnreadableMetadataRecord(f"{len(value) - position} bytes after the message")
        return _metadata_of(message)
    except (IndexError, Malformed, ProtocolError, ValueError) as problem:
        raise UnreadableMetadataRecord(f"the value cannot be read: {problem}") from None


def _message_of(metadata: RemoteLogMetadata) -> Message:
    if isinstance(metadata, RemotePartitionDeleteMetadata):
        partition = metadata.topic_id_partition
        return delete_record.RemotePartitionDeleteMetadataRecord(
            topic_id_partition=delete_record.TopicIdPartitionEntry(
                partition.topic, partition.topic_id.bytes, partition.partition
            ),
            broker_id=metadata.broker_id,
            event_timestamp_ms=metadata.event_timestamp_ms,
            remote_partition_delete_state=metadata.state,
        )
    segment_id = metadata.segment_id
    partition = segment_id.topic_id_partition
    if isinstance(metadata, RemoteLogSegmentMetadataUpdate):
        return update_record.RemoteLogSegmentMetadataUpdateRecord(
            remote_log_segment_id=update_record.RemoteLogSegmentIdEntry(
                update_record.TopicIdPartitionEntry(
                    partition.topic, partition.topic_id.bytes, partition.partition
                ),
                segment_id.id.bytes,
            ),
            broker_id=metadata.broker_id,
            event_timestamp_ms=metadata.event_timestamp_ms,
            custom_metadata=metadata.custom_metadata,
            remote_log_segment_state=metadata.state,
        )
    return segment_record.RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=segment_record.RemoteLogSegmentIdEntry(
            segment_record.TopicIdPartitionEntry(
                partition.topic, partition.topic_id.bytes, partition.partition
            ),
            segment_id.id.bytes,
        ),
        start_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        broker_id=metadata.broker_id,
        max_timestamp_ms=metadata.max_timestamp_ms,
        event_timestamp_ms=metadata.event_timestamp_ms,
        segment_leader_epochs=[
            segment_record.SegmentLeaderEpochEntry(epoch, offset)
            for epoch, offset in sorted(metadata.leader_epochs.items())
        ],
        segment_size_in_bytes=metadata.size_bytes,
        custom_metadata=metadata.custom_metadata,
        remote_log_segment_state=metadata.state,
    )


def _metadata_of(message: Message) -> RemoteLogMetadata:
    if isinstance(message, delete_record.RemotePartitionDeleteMetadataRecord):
        return RemotePartitionDeleteMetadata(
            _topic_id_partition(message.topic_id_partition),
            RemotePartitionDeleteState(message.remote_partition_delete_state),
            message.event_timestamp_ms,
            message.broker_id,
        )
    if isinstance(message, update_record.RemoteLogSegmentMetadataUpdateRecord):
        return RemoteLogSegmentMetadataUpdate(
            _segment_id(message.remote_log_segment_id),
            message.event_timestamp_ms,
            message.custom_metadata,
            RemoteLogSegmentState(message.remote_log_segment_state),
            message.broker_id,
        )
    assert isinstance(message, segment_record.RemoteLogSegmentMetadataRecord)
    if not 0 <= message.start_offset <= message.end_offset or not message.segment_leader_epochs:
        raise UnreadableMetadataRecord(
            f"a segment from offset {message.start_offset} to {message.end_offset} with"
            f" {len(message.segment_leader_epochs)} leader epochs"
        )
    return RemoteLogSegmentMetadata(
        segment_id=_segment_id(message.remote_log_segment_id),
        start_offset=message.start_offset,
        end_offset=message.end_offset,
        max_timestamp_ms=message.max_timestamp_ms,
        broker_id=message.broker_id,
        event_timestamp_ms=message.event_timestamp_ms,
        size_bytes=message.segment_size_in_bytes,
        leader_epochs={
            entry.leader_epoch: entry.offset
            for entry in sorted(message.segment_leader_epochs, key=lambda each: each.leader_epoch)
        },
        state=RemoteLogSegmentState(message.remote_log_segment_state),
        custom_metadata=message.custom_metadata,
    )


def _segment_id(
    entry: segment_record.RemoteLogSegmentIdEntry | update_record.RemoteLogSegmentIdEntry,
) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(_topic_id_partition(entry.topic_id_partition), UUID(bytes=entry.id))


def _topic_id_partition(
    entry: segment_record.TopicIdPartitionEntry
    | update_record.TopicIdPartitionEntry
    | delete_record.TopicIdPartitionEntry,
) -> TopicIdPartition:
    return TopicIdPartition(UUID(bytes=entry.id), entry.name, entry.partition)
