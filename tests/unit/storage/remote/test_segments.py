"""RemoteLogSegmentMetadata: what changes with its state, and what stays."""

from __future__ import annotations

from uuid import UUID

from ottla.storage.remote.remote_storage import RemoteIndexType
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

STARTED = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "orders", 3), UUID(int=2)),
    start_offset=10,
    end_offset=19,
    max_timestamp_ms=1_000,
    broker_id=1,
    event_timestamp_ms=2_000,
    size_bytes=4_096,
    leader_epochs={0: 0, 4: 15},
)


def test_a_new_state_keeps_the_segment_and_its_custom_metadata() -> None:
    finished = STARTED.with_state(
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 2, 3_000, custom_metadata=b"chunks"
    )
    deleted = finished.with_state(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 3, 4_000)

    assert finished.segment_id == STARTED.segment_id
    assert (finished.broker_id, finished.event_timestamp_ms) == (2, 3_000)
    assert deleted.custom_metadata == b"chunks"
    assert STARTED.custom_metadata is None


def test_state_ids_are_those_of_the_metadata_records() -> None:
    assert [state.value for state in RemoteLogSegmentState] == [0, 1, 2, 3]


def test_suffixes_of_the_index_types_are_distinct() -> None:
    assert len({index_type.value for index_type in RemoteIndexType}) == len(RemoteIndexType)
