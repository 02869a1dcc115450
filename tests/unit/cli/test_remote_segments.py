from __future__ import annotations

from uuid import UUID

from ottla.cli.remote_segments import RemoteSegments
from ottla.storage.remote.metadata_records import (
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from ottla.storage.remote.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tests.doubles.remote_segments import TOPIC_ID, segment_metadata

FIRST = segment_metadata(100)
SECOND = segment_metadata(100, start_offset=7, segment_id=UUID(int=1))
OTHER_ID = UUID(int=9)
OTHER = segment_metadata(100, topic="other", segment_id=UUID(int=2), topic_id=OTHER_ID)


def update(
    metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(metadata.segment_id, 5000, b"custom", state, 3)


def test_segments_in_order() -> None:
    found = RemoteSegments()
    for metadata in (OTHER, FIRST, SECOND):
        found.apply(metadata)
    assert found.segments() == [OTHER, SECOND, FIRST]
    assert found.segments(["topic"]) == [SECOND, FIRST]
    assert found.topic_ids == {TOPIC_ID, OTHER_ID}


def test_states() -> None:
    found = RemoteSegments()
    found.apply(FIRST)
    found.apply(update(FIRST, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
    [metadata] = found.segments()
    assert metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    assert metadata.custom_metadata == b"custom"
    found.apply(update(FIRST, RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
    assert len(found.segments()) == 1
    found.apply(update(FIRST, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED))
    found.apply(update(FIRST, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED))
    assert found.segments() == []


def test_a_deleted_partition_has_no_segments() -> None:
    found = RemoteSegments()
    for metadata in (FIRST, OTHER):
        found.apply(metadata)
    partition = FIRST.segment_id.topic_id_partition
    for state in RemotePartitionDeleteState:
        assert FIRST in found.segments()
        found.apply(RemotePartitionDeleteMetadata(partition, state, 5000, 1))
    assert found.segments() == [OTHER]


def test_a_partition_whose_deletion_has_begun_uses_no_segments() -> None:
    found = RemoteSegments()
    for metadata in (FIRST, OTHER):
        found.apply(metadata)
    assert found.segments_in_use() == found.segments()
    partition = FIRST.segment_id.topic_id_partition
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    found.apply(RemotePartitionDeleteMetadata(partition, marked, 5000, 1))
    assert found.segments_in_use() == [OTHER]
    assert FIRST in found.segments()
