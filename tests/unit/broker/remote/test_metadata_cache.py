"""RemoteLogMetadataCache: states of a segment and what they show. Random histories are compared
with Kafka's cache in tests/golden/remote_log_metadata."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.broker.remote.metadata_cache import RemoteLogMetadataCache, last_offset_of_epoch
from ottla.storage.remote.metadata_records import RemoteLogSegmentMetadataUpdate
from ottla.storage.remote.remote_storage import RemoteResourceNotFoundError
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
PARTITION = TopicIdPartition(UUID(int=1), "orders", 3)


def segment(number: int, start: int, end: int, epochs: dict[int, int]) -> RemoteLogSegmentMetadata:
    segment_id = RemoteLogSegmentId(PARTITION, UUID(int=number))
    return RemoteLogSegmentMetadata(segment_id, start, end, 1_000, 1, 2_000, 4_096, epochs)


def change(
    metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(metadata.segment_id, 3_000, None, state, 1)


def cache_with(*copied: RemoteLogSegmentMetadata) -> RemoteLogMetadataCache:
    cache = RemoteLogMetadataCache()
    cache.is_initialized = True
    for each in copied:
        cache.add(each)
        cache.update(change(each, FINISHED))
    return cache


def test_a_segment_is_read_from_between_its_copy_and_its_deletion() -> None:
    one = segment(1, 0, 9, {0: 0})
    cache = cache_with()
    readable = []
    listed = []
    cache.add(one)
    for state in (FINISHED, DELETE_STARTED, DELETE_FINISHED):
        readable.append(cache.segment_at(0, 5) is not None)
        listed.append(len(cache.segments_of_epoch(0)))
        cache.update(change(one, state))
    readable.append(cache.segment_at(0, 5) is not None)
    listed.append(len(cache.segments_of_epoch(0)))

    assert readable == [False, True, False, False]
    assert listed == [1, 1, 1, 0]
    assert cache.segments() == []
    assert cache.highest_offset(0) == 9  # what was copied is not copied again


def test_offsets_belong_to_their_leader_epoch() -> None:
    one = segment(1, 0, 9, {0: 0, 3: 6})
    cache = cache_with(one)

    assert last_offset_of_epoch(one, 0) == 5
    assert last_offset_of_epoch(one, 3) == 9
    assert cache.segment_at(0, 5) is not None
    assert cache.segment_at(0, 6) is None
    assert cache.segment_at(3, 5) is None
    assert cache.segment_at(3, 9) is not None
    assert cache.segment_at(4, 9) is None
    assert (cache.highest_offset(0), cache.highest_offset(1)) == (5, None)


def test_a_copy_that_is_covered_by_a_later_one_is_listed_and_not_read() -> None:
    short, long = segment(1, 10, 19, {0: 10}), segment(2, 0, 29, {0: 0})
    cache = cache_with(short, long)

    found = cache.segment_at(0, 15)
    assert found is not None
    assert found.segment_id == long.segment_id
    assert [each.start_offset for each in cache.segments_of_epoch(0)] == [0, 10]


def test_a_replaced_copy_with_the_same_start_offset_is_still_listed() -> None:
    first, next_one, again = (
        segment(1, 0, 9, {0: 0}),
        segment(2, 10, 19, {0: 10}),
        segment(3, 0, 9, {0: 0}),
    )
    cache = cache_with(first, next_one, again)

    assert len(cache.segments_of_epoch(0)) == 3
    found = cache.segment_at(0, 3)
    assert found is not None
    assert found.segment_id == again.segment_id


def test_invalid_transitions_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    one = segment(1, 0, 9, {0: 0})
    cache = cache_with(one)

    cache.update(change(one, DELETE_FINISHED))
    cache.add(one)

    assert cache.segment_at(0, 0) is not None
    assert "its state is COPY_SEGMENT_FINISHED" in caplog.text
    assert len(caplog.records) == 2


def test_updates_of_unknown_segments() -> None:
    cache = RemoteLogMetadataCache()
    one = segment(1, 0, 9, {0: 0})

    cache.update(change(one, FINISHED))  # the addition is older than what the topic retains
    assert cache.segments() == []

    cache.is_initialized = True
    with pytest.raises(RemoteResourceNotFoundError):
        cache.update(change(one, FINISHED))


def test_a_segment_begins_with_its_first_state_only() -> None:
    one = segment(1, 0, 9, {0: 0})
    cache = cache_with()
    with pytest.raises(ValueError, match="added in state"):
        cache.add(one.with_state(FINISHED, 1, 3_000))
    cache.add(one)
    with pytest.raises(ValueError, match="does not return"):
        cache.update(change(one, STARTED))
