"""Records of `__remote_log_metadata`: what is refused. Their bytes are compared with Kafka's in
tests/golden/remote_log_metadata."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from ottla.storage.remote.metadata_records import (
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    UnreadableMetadataRecord,
    decode_metadata,
    encode_metadata,
    topic_id_partition_of,
)
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

PARTITION = TopicIdPartition(UUID(int=1), "orders", 3)
SEGMENT_ID = RemoteLogSegmentId(PARTITION, UUID(int=2))
SEGMENT = RemoteLogSegmentMetadata(SEGMENT_ID, 10, 19, 1_000, 1, 2_000, 4_096, {0: 10, 4: 15})


def test_each_kind_comes_back() -> None:
    for metadata in (
        SEGMENT,
        replace(SEGMENT, custom_metadata=b"chunks"),
        RemoteLogSegmentMetadataUpdate(
            SEGMENT_ID, 3_000, b"x", RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 2
        ),
        RemotePartitionDeleteMetadata(
            PARTITION, RemotePartitionDeleteState.DELETE_PARTITION_STARTED, 4_000, 1
        ),
    ):
        assert decode_metadata(encode_metadata(metadata)) == metadata
        assert decode_metadata(memoryview(encode_metadata(metadata))) == metadata
        assert topic_id_partition_of(metadata) == PARTITION


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "cannot be read"),
        (b"\x00\x00\x00", "frame version 0"),
        (b"\x01\x09\x00", "unknown message 9"),
        (b"\x01\x00\x01", "unknown message 0 with version 1"),
        (b"\xff\xff\xff\xff\xff\xff", "cannot be read"),
        (encode_metadata(SEGMENT)[:-1], "cannot be read"),
        (encode_metadata(SEGMENT) + b"\x00", "1 bytes after"),
        (encode_metadata(SEGMENT)[:-2] + b"\x07\x00", "7"),
        (encode_metadata(replace(SEGMENT, end_offset=9)), "offset 10 to 9"),
        (encode_metadata(replace(SEGMENT, leader_epochs={})), "0 leader epochs"),
    ],
)
def test_another_format_is_refused_with_the_reason(value: bytes, reason: str) -> None:
    with pytest.raises(UnreadableMetadataRecord, match=reason):
        decode_metadata(value)
