"""Which remote segments belong to a history, by leader epochs."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.broker.remote.lineage import (
    completed,
    epoch_checkpoint,
    epochs_between,
    first_hole,
    highest_remote_offset,
    is_complete,
    is_of_history,
    remote_log_start_offset,
)
from ottla.broker.remote.metadata_cache import RemoteLogMetadataCache
from ottla.storage.remote.metadata_records import RemoteLogSegmentMetadataUpdate
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

EPOCHS = [(1, 10), (3, 20), (4, 40)]
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
PARTITION = TopicIdPartition(UUID(int=1), "t", 0)


def segment(start: int, end: int, epochs: dict[int, int]) -> RemoteLogSegmentMetadata:
    segment_id = RemoteLogSegmentId(PARTITION, UUID(int=start + 1))
    return RemoteLogSegmentMetadata(segment_id, start, end, 1, 1, 1, 1, epochs)


def cache_of(*segments: RemoteLogSegmentMetadata) -> RemoteLogMetadataCache:
    cache = RemoteLogMetadataCache()
    cache.is_initialized = True
    for each in segments:
        cache.add(each)
        cache.update(RemoteLogSegmentMetadataUpdate(each.segment_id, 1, None, FINISHED, 1))
    return cache


def test_the_highest_offset_is_that_of_this_history() -> None:
    assert highest_remote_offset(cache_of(), EPOCHS, 50) == -1
    assert highest_remote_offset(cache_of(segment(10, 19, {1: 10})), EPOCHS, 50) == 19
    # An earlier leader copied records of epoch 3 that were lost in an unclean election.
    assert highest_remote_offset(cache_of(segment(10, 60, {1: 10, 3: 20})), EPOCHS, 50) == 39
    assert highest_remote_offset(cache_of(segment(10, 60, {2: 10})), EPOCHS, 50) == -1
    assert highest_remote_offset(cache_of(segment(40, 60, {4: 40})), EPOCHS, 50) == 49


def test_the_start_is_that_of_the_first_epoch_with_segments() -> None:
    assert remote_log_start_offset(cache_of(), EPOCHS) is None
    assert remote_log_start_offset(cache_of(segment(20, 29, {3: 20})), EPOCHS) == 20
    assert remote_log_start_offset(cache_of(segment(0, 9, {0: 0})), EPOCHS) is None


def test_epochs_of_a_segment() -> None:
    assert epochs_between(EPOCHS, 15, 25) == {1: 15, 3: 20}
    assert epochs_between(EPOCHS, 20, 40) == {3: 20}
    assert epochs_between(EPOCHS, 45, 50) == {4: 45}
    assert epochs_between([], 45, 50) == {}
    assert epoch_checkpoint(EPOCHS, 40) == b"0\n2\n1 10\n3 20\n"


@pytest.mark.parametrize(
    ("start", "end", "epochs", "expected"),
    [
        (10, 19, {1: 10}, True),
        (15, 25, {1: 15, 3: 20}, True),
        (5, 15, {0: 5, 1: 9}, True),  # the log start is inside the segment
        (0, 9, {0: 0}, False),  # older than the log
        (45, 60, {4: 45}, False),  # beyond the log end
        (15, 25, {1: 15, 2: 20}, False),  # epoch 2 lost an election
        (15, 25, {1: 15, 3: 22}, False),  # epoch 1 had more records there
        (18, 25, {3: 18}, False),  # epoch 3 began earlier there
        (15, 22, {1: 15}, False),  # epoch 1 went further there
    ],
)
def test_history(start: int, end: int, epochs: dict[int, int], expected: bool) -> None:
    assert is_of_history(segment(start, end, epochs), EPOCHS, 50) is expected


def test_a_log_without_epochs_has_no_history() -> None:
    assert not is_of_history(segment(0, 9, {0: 0}), [], 50)


LOCAL = [(3, 30), (4, 40)]  # of the local batches from 30 on; the log starts at 12


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        (
            [segment(10, 19, {1: 10}), segment(20, 44, {3: 20, 4: 40})],
            [(1, 10), (3, 20), (4, 40)],
        ),
        # What an earlier leader copied behind the end of its epoch is of another history.
        ([segment(10, 22, {1: 10}), segment(20, 44, {3: 20, 4: 40})], None),
        ([segment(10, 18, {1: 10}), segment(20, 44, {3: 20, 4: 40})], None),
        ([segment(20, 44, {3: 20, 4: 40})], None),
        ([segment(10, 19, {5: 10}), segment(20, 44, {3: 20, 4: 40})], None),
        ([], None),
    ],
)
def test_epochs_before_the_first_known_one(
    segments: list[RemoteLogSegmentMetadata], expected: list[tuple[int, int]] | None
) -> None:
    assert not is_complete(LOCAL, 12)
    assert completed(segments[::-1], LOCAL, 12, 50) == expected
    assert expected is None or is_complete(expected, 12)


def test_epochs_of_a_log_with_nothing_local() -> None:
    segments = [segment(10, 19, {1: 10}), segment(20, 49, {3: 20, 4: 40})]
    assert not is_complete([], 12)
    assert completed(segments, [], 12, 50) == EPOCHS
    assert completed(segments, [], 12, 51) is None


def test_the_first_offsets_that_no_segment_has() -> None:
    def segment(start: int, end: int) -> RemoteLogSegmentMetadata:
        segment_id = RemoteLogSegmentId(PARTITION, UUID(int=start))
        return RemoteLogSegmentMetadata(segment_id, start, end, 1, 1, 2, 3, {0: start})

    both = [segment(0, 9), segment(15, 19)]
    assert first_hole(both, 0, 20) == (10, 15)
    assert first_hole(both, 12, 13) == (12, 13)
    assert first_hole(both, 3, 10) is None
    assert first_hole(both, 15, 20) is None
    assert first_hole(both, 15, 21) == (20, 21)
    assert first_hole([], 5, 5) is None
    assert first_hole([], 5, 8) == (5, 8)
    assert first_hole([segment(0, 9), segment(2, 3), segment(5, 12)], 0, 13) is None
