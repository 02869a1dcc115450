"""PartitionTasks: the role of the replica, back-off, and the log start offset of a new leader."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.remote.lineage import first_hole
from ottla.broker.remote.partition_tasks import PartitionTasks, RemoteProblems
from ottla.broker.remote.settings import RemoteLogSettings
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import TopicIdPartition
from tests.doubles.tiered_broker import OneReplica
from tests.doubles.tiered_partition import PARTITION, TieredPartition

SETTINGS = RemoteLogSettings(
    task_interval_ms=30_000, retry_backoff_ms=500, retry_backoff_max_ms=1500
)


class Scene(TieredPartition):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.replica = OneReplica(self.log)
        self.problems = RemoteProblems()
        self.random = 0.5

    def tasks(self) -> PartitionTasks:
        return PartitionTasks(
            *(PARTITION, self.replica, SETTINGS, self.remote, self.remote),
            *(self.quota, self.problems, lambda: self.random),
        )


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    await scene.start()
    yield scene
    await scene.stop()


async def test_a_leader_copies(scene: Scene) -> None:
    scene.append(3)
    tasks = scene.tasks()
    assert await tasks.copy() == 30
    assert len(scene.states()) == 2
    scene.random = 0.0
    assert await tasks.copy() == pytest.approx(24)
    scene.random = 1.0
    assert await tasks.expire() == pytest.approx(36)


async def test_a_follower_notes_what_is_copied(scene: Scene) -> None:
    scene.append(3)
    await scene.copy()
    scene.append(2)
    scene.log.offsets.highest_remote_offset = -1
    scene.replica.is_leader = False
    tasks = scene.tasks()
    assert await tasks.copy() == 30
    assert await tasks.expire() == 30
    assert scene.log.offsets.highest_remote_offset == 3
    assert len(scene.states()) == 2
    assert scene.expire_locally() == 2


async def test_ended_tasks_do_nothing(scene: Scene) -> None:
    scene.append(2)
    tasks = scene.tasks()
    tasks.ended = True
    await tasks.copy()
    assert scene.states() == []


async def test_failures_are_retried_with_back_off(scene: Scene) -> None:
    scene.append(2)
    tasks = scene.tasks()
    scene.storage.fail = ["copy"] * 4
    assert [await tasks.copy() for _ in range(4)] == [0.5, 1.0, 1.5, 1.5]
    assert scene.problems.count("copy") == 1
    assert await tasks.copy() == 30
    assert scene.problems.count("copy") == 0
    scene.append(1)
    scene.storage.fail = ["copy"]
    assert await tasks.copy() == 0.5


async def test_it_waits_for_the_quota(scene: Scene) -> None:
    scene.append(4)
    scene.quota.limit = 1
    assert await scene.tasks().copy() == 1
    assert len(scene.states()) == 1


async def test_it_waits_for_the_metadata(scene: Scene) -> None:
    scene.metadata.unassign([PARTITION])
    assert await scene.tasks().copy() == 1
    assert scene.problems.count("copy") == 0


async def test_a_new_leader_starts_where_remote_storage_does(scene: Scene) -> None:
    scene.append(4)
    await scene.copy()
    scene.expire_locally()
    segments = scene.metadata.cache(PARTITION).segments()
    await scene.remote.delete(segments[0])  # by an earlier leader
    assert scene.log.log_start_offset == 0
    await scene.tasks().expire()
    assert scene.log.log_start_offset == 2
    assert len(scene.storage.objects) == 2


async def test_the_log_starts_at_its_first_record_on_the_local_disk(scene: Scene) -> None:
    """After a power loss: local segments are there again, and the log start before them was not
    durable. What was before them, and their own copies, had expired."""
    scene.append(4)
    await scene.copy()
    scene.expire_locally()
    scene.append(4)
    await scene.copy()
    for each in scene.metadata.cache(PARTITION).segments():
        if each.start_offset < 10:
            await scene.remote.delete(each)
    assert (scene.log.log_start_offset, scene.log.local_log_start_offset) == (0, 6)
    await scene.tasks().expire()
    assert scene.log.log_start_offset == 6


async def test_epochs_that_were_lost_are_restored_and_nothing_is_deleted(scene: Scene) -> None:
    """The leader epoch checkpoint was lost by a failed sync; local batches begin at 6."""
    scene.append(4)
    await scene.copy()
    scene.expire_locally()
    scene.log.leader_epochs.replace([(0, 6)])
    await scene.tasks().expire()
    assert scene.log.leader_epochs.entries == [(0, 0)]
    assert scene.log.log_start_offset == 0
    assert len(scene.storage.objects) == 3


async def test_epochs_of_another_log_are_replaced_by_those_of_the_remote_segments(
    scene: Scene,
) -> None:
    """A leader epoch checkpoint that was copied from elsewhere agrees with the local batches."""
    for epoch in (0, 1, 3):
        scene.append(2, epoch)
    await scene.copy()
    scene.expire_locally()
    epochs = [(0, 0), (1, 4), (3, 8)]
    assert (scene.log.leader_epochs.entries, scene.log.local_log_start_offset) == (epochs, 10)
    tasks = scene.tasks()
    await tasks.copy()
    copied = dict(scene.storage.objects)
    for foreign in ([(0, 0), (1, 2), (3, 6)], [(2, 0), (3, 8)], [(0, 0), (3, 2)], [(3, 0)]):
        scene.log.leader_epochs.replace(foreign)
        await tasks.expire()
        assert scene.log.leader_epochs.entries == epochs
        assert scene.log.log_start_offset == 0
        await tasks.copy()
        assert scene.storage.objects == copied
        assert first_hole(scene.metadata.cache(PARTITION).segments(), 0, 10) is None


async def test_epochs_of_local_batches_are_read_where_those_of_remote_segments_are_wrong(
    scene: Scene,
) -> None:
    for epoch in (0, 1):
        scene.append(2, epoch)
    await scene.copy()
    scene.expire_locally()
    scene.append(1, 3)
    scene.append(1, 4)
    scene.log.leader_epochs.assign(6, scene.log.log_end_offset)
    scene.log.config = scene.log.config.replace(remote_log_copy_disable=True)
    epochs = [(0, 0), (1, 4), (3, 8), (4, 10), (6, 12)]
    assert (scene.log.leader_epochs.entries, scene.log.local_log_start_offset) == (epochs, 6)
    scene.log.leader_epochs.replace([(0, 0), (1, 2), (4, 3), (6, 12)])
    await scene.tasks().copy()
    assert scene.log.leader_epochs.entries == epochs


async def test_epochs_are_kept_where_remote_segments_are_of_another_history(scene: Scene) -> None:
    """Not all records of this history are in remote storage: what is there may be of another."""
    scene.append(4, 1)
    await scene.copy()
    scene.expire_locally()
    first, *_ = scene.metadata.cache(PARTITION).segments()
    scene.log.leader_epochs.replace([(0, 0), (1, 2)])
    await scene.remote.delete(first)
    await scene.tasks().copy()
    assert scene.log.leader_epochs.entries == [(0, 0), (1, 2)]
    assert scene.log.log_start_offset == 0


@pytest.mark.parametrize("epochs_are_lost", [False, True])
async def test_a_log_start_inside_a_remote_segment_that_was_lost_comes_back(
    scene: Scene, epochs_are_lost: bool
) -> None:
    """DeleteRecords, and a kill before the log start is written. No epoch of the first offset is
    known, which made it unreadable for good."""
    scene.append(4)
    scene.log.truncator.delete_records_before(3)
    await scene.copy()
    scene.expire_locally()
    copied = set(scene.storage.objects)
    assert scene.log.leader_epochs.entries == [(0, 3)]
    scene.log.offsets.log_start_offset = 2
    if epochs_are_lost:
        scene.log.leader_epochs.replace([(0, 6)])
    await scene.tasks().expire()
    await scene.tasks().copy()
    assert scene.log.log_start_offset == 3
    assert scene.log.leader_epochs.entries == [(0, 3)]
    assert copied <= set(scene.storage.objects)


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_what_the_metadata_do_not_have_is_skipped_only_if_it_cannot_be_there(
    scene: Scene, is_enabled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`__remote_log_metadata` was created again, by hand, or its first records are gone."""
    scene.append(4)
    await scene.copy()
    scene.expire_locally()
    scene.append(2)
    for values in scene.topic.values.values():
        values.clear()
    await scene.restart()
    config = scene.log.config.replace(remote_storage_enable=is_enabled, has_remote_storage=True)
    scene.log.update_config(config)
    tasks = scene.tasks()
    objects = dict(scene.storage.objects)
    await tasks.expire()
    await tasks.copy()  # the metadata have later segments then
    await tasks.expire()
    assert objects.items() <= scene.storage.objects.items()
    if is_enabled:
        assert scene.log.log_start_offset == 0
        assert "t-0: offsets 0 to 5 are neither on the local disk nor in" in caplog.text
        assert scene.problems.count("expiration") == 1
        scene.log.truncator.delete_records_before(6)  # as the line says
        await tasks.expire()
        assert scene.problems.count("expiration") == 0
    else:
        assert scene.log.log_start_offset == 6
        assert "t-0: offsets 0 to 5 are not in remote storage, the log starts at 6" in caplog.text


async def test_records_on_the_local_disk_are_not_taken_for_deleted(scene: Scene) -> None:
    """Those of an old format have no epoch, and may be in a segment that Kafka has copied."""
    scene.append(4)
    scene.log.leader_epochs.replace([(0, 1)])
    scene.log.offsets.log_start_offset = 1  # or the segment is not copied
    await scene.copy()
    scene.log.offsets.log_start_offset = 0
    await scene.tasks().copy()
    assert scene.log.log_start_offset == 0


async def test_a_segment_is_copied_after_the_log_start_inside_it_was_lost(scene: Scene) -> None:
    scene.append(4)
    scene.log.truncator.delete_records_before(3)
    scene.log.offsets.log_start_offset = 2  # it was 3, and epochs are known from there on
    await scene.tasks().copy()
    segments = scene.metadata.cache(PARTITION).segments()
    assert sorted(each.start_offset for each in segments) == [2, 4]


async def test_a_segment_that_begins_without_leader_epochs_is_not_copied(scene: Scene) -> None:
    """No client could find the segment by its first records, and local retention deletes them."""
    config = scene.log.config
    old = {"remote_storage_enable": False, "message_format_version": "0.10.2"}
    scene.log.update_config(config.replace(segment_ms=1 << 50, **old))
    scene.append(2)
    scene.log.update_config(config.replace(segment_ms=1 << 50))
    scene.append(2, epoch=7)
    scene.log.update_config(config)
    scene.append(1, epoch=7)
    assert scene.log.leader_epochs.entries == [(7, 4)]
    assert await scene.tasks().copy() == 0.5
    assert scene.storage.objects == {}
    assert scene.expire_locally() == 0
    assert scene.log.log_start_offset == 0


@pytest.mark.parametrize("epoch", [0, 2])
async def test_nothing_is_deleted_while_the_history_is_not_known(scene: Scene, epoch: int) -> None:
    scene.append(4)
    await scene.copy()
    scene.expire_locally()
    await scene.remote.delete(scene.metadata.cache(PARTITION).segments()[1])
    scene.log.leader_epochs.replace([(epoch, 6)])
    await scene.tasks().expire()
    assert scene.log.leader_epochs.entries == [(epoch, 6)]
    assert scene.log.log_start_offset == 0
    assert len(scene.storage.objects) == 2


ONE, OTHER = (TopicIdPartition(UUID(int=1), "t", index) for index in range(2))
AWAY = RemoteStorageError("the store is away")


def test_a_failure_of_all_partitions_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    problems = RemoteProblems()
    with caplog.at_level(logging.INFO, "ottla.remote"):
        for partition in (ONE, OTHER, ONE):
            problems.failed(partition, "copy", AWAY)
        assert problems.count("copy") == 2
        assert problems.first() == ("copy", "t-0", "the store is away")
        problems.worked(ONE, "copy")
        assert problems.first() == ("copy", "t-1", "the store is away")
        problems.worked(OTHER, "copy")
        problems.worked(OTHER, "copy")
    assert problems.first() is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.INFO]


def test_a_partition_that_left_is_no_problem() -> None:
    problems = RemoteProblems()
    problems.failed(ONE, "expiration", AWAY)
    problems.forget(ONE)
    assert problems.count("expiration") == problems.count("copy") == 0
