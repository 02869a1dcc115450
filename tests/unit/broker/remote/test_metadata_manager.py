"""RemoteLogMetadataManager: replay, writes that wait for their record, assignments that change."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from ottla.broker.remote import metadata_manager
from ottla.broker.remote.metadata_manager import (
    RemoteLogMetadataManager,
    RemoteMetadataNotReadyError,
)
from ottla.broker.remote.settings import RemoteLogMetadataSettings
from ottla.storage.remote.metadata_records import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    encode_metadata,
)
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from tests.doubles.eventually import eventually_async
from tests.doubles.remote_metadata_topic import UNREACHABLE, MemoryMetadataTopic, read_once

SETTINGS = RemoteLogMetadataSettings(
    topic_num_partitions=2, consume_wait_ms=60_000, initialization_retry_interval_ms=1
)
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
DELETED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED


def partitions_of(manager: RemoteLogMetadataManager, index: int) -> list[TopicIdPartition]:
    """Partitions of a topic whose metadata is in metadata partition `index`."""
    every = (TopicIdPartition(UUID(int=7), "orders", number) for number in range(100))
    return [each for each in every if manager.metadata_partition(each) == index]


def added(partition: TopicIdPartition, number: int) -> RemoteLogSegmentMetadata:
    segment_id = RemoteLogSegmentId(partition, UUID(int=number))
    start = number * 10
    return RemoteLogSegmentMetadata(segment_id, start, start + 9, 1, 1, 2, 3, {0: start})


def finished(metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadataUpdate:
    state = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return RemoteLogSegmentMetadataUpdate(metadata.segment_id, 4, b"custom", state, 1)


def put(topic: MemoryMetadataTopic, index: int, *records: RemoteLogMetadata) -> None:
    topic.values[index] += [encode_metadata(each) for each in records]


async def read_all(manager: RemoteLogMetadataManager) -> None:
    for _ in range(100):
        if not await read_once(manager):
            return
    raise AssertionError("the rounds do not end")


def ready(topic: MemoryMetadataTopic) -> RemoteLogMetadataManager:
    manager = RemoteLogMetadataManager(topic, SETTINGS)
    manager.unavailable = None
    return manager


async def test_the_cache_is_available_when_everything_is_replayed() -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    mine, other = partitions_of(manager, 0)[:2]
    for number in range(3):
        one = added(mine, number)
        put(topic, 0, one, added(other, number), finished(one))
    with pytest.raises(RemoteMetadataNotReadyError):
        manager.cache(mine)

    manager.assign([mine])
    await read_once(manager)
    with pytest.raises(RemoteMetadataNotReadyError, match="orders"):
        manager.cache(mine)  # some records are read, not all
    await read_all(manager)

    cache = manager.cache(mine)
    assert [each.start_offset for each in cache.segments()] == [0, 10, 20]
    found = cache.segment_at(0, 25)
    assert found is not None
    assert found.custom_metadata == b"custom"
    with pytest.raises(RemoteMetadataNotReadyError):
        manager.cache(other)


async def test_an_empty_topic_is_replayed_at_once() -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    partition = partitions_of(manager, 1)[0]
    manager.assign([partition])
    await read_all(manager)
    assert manager.cache(partition).segments() == []


async def test_a_partition_that_comes_later_gets_its_whole_history() -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    first, later = partitions_of(manager, 0)[:2]
    put(topic, 0, added(later, 0), added(first, 0), finished(added(first, 0)))
    manager.assign([first])
    await read_all(manager)
    before = manager.cache(first)

    manager.assign([later])
    await read_all(manager)

    assert len(manager.cache(later).segments()) == 1
    assert manager.cache(first) is before
    assert before.segment_at(0, 5) is not None


async def test_an_assignment_during_a_fetch_begins_the_replay_again() -> None:
    topic = MemoryMetadataTopic()
    topic.batch_records = 1_000
    manager = ready(topic)
    first, later = partitions_of(manager, 0)[:2]
    put(topic, 0, *(added(later, number) for number in range(250)))
    manager.assign([first])
    reading = asyncio.get_running_loop().create_task(read_once(manager))
    await topic.fetched.wait()
    await asyncio.sleep(0)  # the round is between two slices of records
    manager.unassign([first])
    manager.assign([later])
    await reading
    await read_all(manager)
    assert len(manager.cache(later).segments()) == 250


async def test_a_response_for_an_earlier_assignment_is_ignored() -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    first, later = partitions_of(manager, 0)[:2]
    put(topic, 0, added(later, 0), added(later, 1), added(later, 2))
    manager.assign([first])
    topic.hanging.add(1)
    (reading,) = manager.start_reads()
    await topic.fetched.wait()
    manager.unassign([first])  # the last one of this metadata partition
    manager.assign([later])
    topic.respond()
    await reading
    assert not manager.is_initialized(later)
    await read_all(manager)
    assert len(manager.cache(later).segments()) == 3


async def test_a_leader_that_does_not_respond_delays_its_own_partitions_only() -> None:
    topic = MemoryMetadataTopic()
    topic.leaders = {0: 1, 1: 2}
    manager = ready(topic)
    of_hanging, of_other = partitions_of(manager, 0)[0], partitions_of(manager, 1)[0]
    put(topic, 0, added(of_hanging, 0))
    topic.hanging.add(1)
    manager.assign([of_hanging])
    manager.startup()
    await topic.fetched.wait()
    # Also when the other leader's partition is assigned during the request.
    manager.assign([of_other])
    one = added(of_other, 0)
    await manager.store(one)
    await manager.store(finished(one))
    assert manager.cache(of_other).segment_at(0, 3) is not None
    assert not manager.is_initialized(of_hanging)
    topic.leaders[0] = 3  # another leader is asked meanwhile
    await eventually_async(lambda: manager.is_initialized(of_hanging))
    topic.respond()
    await manager.shutdown()
    assert len(manager.cache(of_hanging).segments()) == 1


async def test_a_leader_that_was_left_out_is_read_as_soon_as_it_has_responded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_manager, "_IDLE_SECONDS", 3600.0)
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    partition = partitions_of(manager, 0)[0]
    topic.hanging.add(1)
    manager.assign([partition])
    manager.startup()
    await topic.fetched.wait()
    writing = asyncio.get_running_loop().create_task(manager.store(added(partition, 0)))
    await topic.appended.wait()
    await eventually_async(lambda: manager._left_out)
    topic.respond()  # with what there was before the append
    await writing
    await manager.shutdown()
    assert len(manager.cache(partition).segments()) == 1


async def test_store_returns_when_the_record_is_in_the_cache() -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    partition = partitions_of(manager, 1)[0]
    manager.assign([partition])
    manager.startup()
    one = added(partition, 0)

    await manager.store(one)
    await manager.store(finished(one))

    assert manager.cache(partition).segment_at(0, 3) is not None
    await manager.store(RemotePartitionDeleteMetadata(partition, MARKED, 5, 1))
    assert manager.deletion(partition) is MARKED
    await manager.store(RemotePartitionDeleteMetadata(partition, DELETED, 6, 1))
    assert manager.deletion(partition) is None
    assert manager.cache(partition).segments() == []
    await manager.shutdown()


async def test_store_ends_with_an_error_when_the_record_is_not_read_in_time() -> None:
    topic = MemoryMetadataTopic()
    settings = RemoteLogMetadataSettings(topic_num_partitions=2, consume_wait_ms=0)
    manager = RemoteLogMetadataManager(topic, settings)
    with pytest.raises(RemoteMetadataNotReadyError, match="not known yet"):
        await manager.store(added(partitions_of(manager, 0)[0], 0))
    manager.unavailable = None
    partition = partitions_of(manager, 0)[0]
    manager.assign([partition])
    with pytest.raises(RemoteStorageError, match="not read within 0 ms"):
        await manager.store(added(partition, 0))
    topic.fail["append"] = UNREACHABLE
    manager.append_retry_seconds = 0
    with pytest.raises(RemoteStorageError, match="reached"):
        await manager.store(added(partition, 0))


async def test_an_append_that_fails_is_repeated() -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    partition = partitions_of(manager, 0)[0]
    topic.fail["append"] = UNREACHABLE
    await manager.store(added(partition, 0))
    assert len(topic.values[0]) == 1


async def test_a_stop_at_the_moment_of_a_write_ends_the_reading() -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    manager.assign([partitions_of(manager, 0)[0]])
    manager.startup()
    await eventually_async(lambda: manager._wake._waiters)
    manager._wake.set()
    async with asyncio.timeout(60):
        await manager.shutdown()


async def test_a_new_leader_reads_what_is_committed() -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    partition = partitions_of(manager, 0)[0]
    manager.assign([partition])
    await read_once(manager)
    put(topic, 0, added(partition, 0))
    manager.startup()
    await manager.catch_up(partition)
    assert len(manager.cache(partition).segments()) == 1
    await manager.catch_up(partition)
    await manager.shutdown()
    topic.leaders[0] = None
    with pytest.raises(RemoteStorageError, match="no leader"):
        await manager.catch_up(partition)


async def test_reading_continues_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.broker.remote.metadata_manager._IDLE_SECONDS", 0.001)
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    partition = partitions_of(manager, 0)[0]
    put(topic, 0, added(partition, 0))
    manager.assign([partition])
    topic.fail["offsets"] = IndexError("a response without partitions")
    manager.startup()
    await eventually_async(lambda: manager.is_initialized(partition))
    await manager.shutdown()
    assert "Unexpected error reading" in caplog.text


async def test_writers_of_a_partition_that_leaves_get_an_error() -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    partition = partitions_of(manager, 0)[0]
    manager.assign([partition])
    writing = asyncio.get_running_loop().create_task(manager.store(added(partition, 0)))
    await topic.appended.wait()
    await asyncio.sleep(0)
    manager.unassign([partition])
    with pytest.raises(RemoteStorageError, match="left this broker"):
        await writing


async def test_problems_are_logged_once_and_the_replay_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    partition = partitions_of(manager, 0)[0]
    put(topic, 0, added(partition, 0))
    manager.assign([partition])
    topic.leaders[0] = None
    await read_once(manager)
    await read_once(manager)
    topic.leaders[0] = 2
    for name in ("offsets", "fetch"):
        topic.fail[name] = UNREACHABLE
        await read_once(manager)
    await read_all(manager)
    assert len(manager.cache(partition).segments()) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "Cannot read __remote_log_metadata-0: no leader",
        "Cannot read __remote_log_metadata-0: broker 1 cannot be reached",
    ]


async def test_unreadable_records_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    partition = partitions_of(manager, 0)[0]
    put(topic, 0, added(partition, 0))
    topic.values[0].append(b"\x07")
    put(topic, 0, finished(added(partition, 9)), added(partition, 1))
    manager.assign([partition])
    await read_all(manager)
    assert len(manager.cache(partition).segments()) == 2
    assert "Ignoring offset 1 of __remote_log_metadata-0" in caplog.text


async def test_a_truncated_metadata_partition_is_replayed_from_its_beginning() -> None:
    topic = MemoryMetadataTopic()
    manager = ready(topic)
    partition = partitions_of(manager, 0)[0]
    put(topic, 0, *(added(partition, number) for number in range(4)))
    manager.assign([partition])
    await read_all(manager)
    del topic.values[0][1:]  # an unclean election
    put(topic, 0, added(partition, 8))

    assert not await read_once(manager)
    await read_all(manager)

    assert [each.start_offset for each in manager.cache(partition).segments()] == [0, 80]


async def test_the_topic_has_to_have_the_configured_partitions(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_manager, "_IDLE_SECONDS", 0.001)
    topic = MemoryMetadataTopic()
    topic.count = 3
    topic.fail["create"] = UNREACHABLE
    settings = RemoteLogMetadataSettings(
        topic_num_partitions=2,
        initialization_retry_interval_ms=1,
        initialization_retry_max_timeout_ms=0,
    )
    manager = RemoteLogMetadataManager(topic, settings)
    manager.startup()
    await eventually_async(lambda: "set it to 3" in str(manager.unavailable))
    assert "Timed out initializing the remote log metadata" in caplog.text
    topic.count = 2
    await eventually_async(lambda: manager.unavailable is None)
    await manager.shutdown()


async def test_a_cluster_without_segments_uses_no_store() -> None:
    topic = MemoryMetadataTopic()
    manager = RemoteLogMetadataManager(topic, SETTINGS)
    with pytest.raises(RemoteMetadataNotReadyError):
        await manager.is_unused()
    manager.unavailable = None
    assert await manager.is_unused()
    (one, *_), (two, *_) = partitions_of(manager, 0), partitions_of(manager, 1)
    first, second, third = added(one, 1), added(two, 2), added(two, 3)
    gone = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
    deleted = RemoteLogSegmentMetadataUpdate(first.segment_id, 5, None, gone, 1)
    put(topic, 0, first, finished(first), deleted)
    put(topic, 1, second, finished(second), RemotePartitionDeleteMetadata(two, DELETED, 1, 1))
    put(topic, 1, third)  # a copy that was begun only
    assert await manager.is_unused()
    topic.fail["fetch"] = UNREACHABLE
    with pytest.raises(RemoteStorageError):
        await manager.is_unused()
    topic.leaders[1] = None
    with pytest.raises(RemoteStorageError, match="has no leader"):
        await manager.is_unused()
    topic.leaders.clear()
    put(topic, 1, finished(third))
    assert not await manager.is_unused()
    topic.fail["fetch"] = UNREACHABLE
    assert not await manager.is_unused()  # it does not read that again


async def test_the_newest_copy_of_each_partition_is_evidence() -> None:
    topic = MemoryMetadataTopic()
    manager = RemoteLogMetadataManager(topic, SETTINGS)
    manager.unavailable = None
    one, two, *_ = partitions_of(manager, 0)
    manager.assign([one, two])
    put(topic, 0, added(one, 1), finished(added(one, 1)), added(two, 2))
    while await read_once(manager):
        pass
    assert [each.segment_id for each in manager.copied_segments(5)] == [added(one, 1).segment_id]
    put(topic, 0, finished(added(two, 2)))
    while await read_once(manager):
        pass
    assert len(manager.copied_segments(1)) == 1
