"""The finished segments by the records of `__remote_log_metadata`."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.storage.remote.metadata_records import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    encode_metadata,
)
from ottla.storage.remote.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.remote.segment_index import SegmentIndex, place_of
from tests.doubles.remote_metadata_topic import MemoryMetadataTopic
from tests.doubles.remote_segments import segment_metadata
from tests.doubles.tiered_cluster import TieredCluster

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


def started(number: int, start: int, partition: int = 7) -> RemoteLogSegmentMetadata:
    return segment_metadata(100, start, UUID(int=number), partition=partition)


def changed(
    metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(metadata.segment_id, 5, b"x", state, 1)


ONE, TWO, OTHER = started(1, 0), started(2, 100), started(3, 0, partition=8)
PLACE, OTHER_PLACE = (place_of(each.segment_id.topic_id_partition) for each in (ONE, OTHER))


class Topic:
    def __init__(self) -> None:
        self.values = MemoryMetadataTopic(1)
        self.cluster = TieredCluster(SimpleNamespace(topic=self.values))  # type: ignore[arg-type]
        self.index = SegmentIndex(1_000)

    def write(self, *records: RemoteLogMetadata) -> None:
        self.values.values[0] += map(encode_metadata, records)

    def starts(self, *places: tuple[UUID, int]) -> list[int]:
        """The start offsets of the segments of the first place."""
        self.index.refresh(self.cluster, places)  # type: ignore[arg-type]
        return [metadata.start_offset for metadata in self.index.segments(places[0])]


def test_segments_between_the_end_of_the_copy_and_the_begin_of_the_deletion() -> None:
    topic = Topic()
    topic.write(TWO, OTHER, ONE, changed(TWO, FINISHED), changed(OTHER, FINISHED))
    assert topic.starts(PLACE) == [100]
    topic.write(changed(ONE, FINISHED))
    assert topic.starts(PLACE) == [0, 100]
    assert topic.index.segments(PLACE)[0].custom_metadata == b"x"
    topic.write(changed(TWO, DELETE_STARTED))
    assert topic.starts(PLACE) == [0]
    topic.write(TWO, changed(TWO, FINISHED))  # cannot be read any more, whatever is written
    partition = ONE.segment_id.topic_id_partition
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    topic.write(RemotePartitionDeleteMetadata(partition, marked, 6, 1))
    assert topic.starts(PLACE) == []


def test_only_new_records_are_read_again() -> None:
    topic = Topic()
    topic.write(ONE, changed(ONE, FINISHED), OTHER, changed(OTHER, FINISHED))
    assert topic.starts(PLACE) == [0]
    before = topic.cluster.requests["fetch"]
    assert topic.starts(PLACE) == [0]
    assert topic.cluster.requests["fetch"] == before
    topic.write(TWO, changed(TWO, FINISHED))
    assert topic.starts(PLACE) == [0, 100]
    assert topic.cluster.requests["fetch"] == before + 1
    assert topic.starts(OTHER_PLACE, PLACE) == [0], "read from the beginning for a new partition"
    assert [each.start_offset for each in topic.index.segments(PLACE)] == [0, 100]


def test_a_topic_that_was_created_again_is_read_again() -> None:
    topic = Topic()
    topic.write(ONE, changed(ONE, FINISHED), OTHER)
    assert topic.starts(PLACE) == [0]
    topic.values.values[0] = [encode_metadata(each) for each in (TWO, changed(TWO, FINISHED))]
    assert topic.starts(PLACE) == [100]


def test_without_the_topic_there_are_no_segments() -> None:
    topic = Topic()
    topic.cluster.metadata_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic.starts(PLACE) == []


def test_errors() -> None:
    topic = Topic()
    topic.cluster.metadata_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(ConnectorError, match="NOT_AUTHORIZED"):
        topic.starts(PLACE)
    topic.cluster.metadata_error = 0
    topic.values.values[0] = [b"\x07"]
    with pytest.raises(ConnectorError, match=r"record at offset 0 of __remote_log_metadata-0"):
        topic.starts(PLACE)
