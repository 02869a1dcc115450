"""A tiered segment as it is in a plan: small and plain, as it is pickled for every task."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata


class PlannedSegment(NamedTuple):
    """Offsets `start` to `end` (not included) that a task may read from the store."""

    topic_id: str  # in hexadecimal digits, as the segment's id
    topic: str
    partition: int
    segment_id: str
    start: int
    end: int
    size_bytes: int
    custom_metadata: bytes | None


def planned(metadata: RemoteLogSegmentMetadata) -> PlannedSegment:
    partition = metadata.segment_id.topic_id_partition
    return PlannedSegment(
        partition.topic_id.hex,
        partition.topic,
        partition.partition,
        metadata.segment_id.id.hex,
        metadata.start_offset,
        metadata.end_offset + 1,
        metadata.size_bytes,
        metadata.custom_metadata,
    )


def metadata_of(segment: PlannedSegment) -> RemoteLogSegmentMetadata:
    """What the store needs to find the objects; times and epochs are not those of the segment."""
    from ottla.storage.remote.segments import (
        RemoteLogSegmentId,
        RemoteLogSegmentMetadata,
        RemoteLogSegmentState,
        TopicIdPartition,
    )

    partition = TopicIdPartition(UUID(segment.topic_id), segment.topic, segment.partition)
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(partition, UUID(segment.segment_id)),
        start_offset=segment.start,
        end_offset=segment.end - 1,
        max_timestamp_ms=-1,
        broker_id=-1,
        event_timestamp_ms=-1,
        size_bytes=segment.size_bytes,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        custom_metadata=segment.custom_metadata,
    )
