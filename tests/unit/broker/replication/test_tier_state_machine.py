"""A follower with an empty disk begins behind the remote segments, with their state."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from ottla.broker.remote.statistics import RemoteStatistics
from ottla.broker.replication.follower_truncation import FollowerTruncation
from ottla.broker.replication.leader_endpoint import EARLIEST_LOCAL, LeaderEndpoint
from ottla.broker.replication.partition import Partition
from ottla.broker.replication.tier_state_machine import TieredFollowers, TierStateMachine
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import TopicPartition
from ottla.storage.errors import CorruptFile
from ottla.storage.log.log import Log
from ottla.storage.remote.remote_storage import RemoteIndexType, RemoteStorageError
from ottla.storage.remote.segments import RemoteLogSegmentMetadata, TopicIdPartition
from tests.doubles.eventually import eventually_async
from tests.doubles.replicas import Replicas
from tests.doubles.storage_logs import NOW_MS, batch_of
from tests.doubles.tiered_partition import PARTITION, TieredPartition
from tests.unit.broker.replication.test_follower_truncation import at_once


class LocalLeader:
    """A leader that is asked without a connection."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.error: Exception | None = None

    async def offset(self, key: TopicPartition, epoch: int, timestamp: int) -> tuple[int, int]:
        assert timestamp == EARLIEST_LOCAL
        if self.error is not None:
            raise self.error
        start = self.log.local_log_start_offset
        return start, self.log.leader_epochs.epoch_for_offset(start)

    async def end_offset_for_epoch(
        self, key: TopicPartition, leader_epoch: int, epoch: int
    ) -> tuple[int, int]:
        return self.log.end_offset_for_epoch(epoch)


class Scene:
    """A leader with a tiered partition, and a follower that has another log."""

    def __init__(self, path: Path) -> None:
        self.tiered = TieredPartition(path)
        self.metadata = self.tiered.metadata
        self.storage = self.tiered.storage
        self.readers = self.tiered.workers
        self.statistics = RemoteStatistics()
        self.leader = LocalLeader(self.tiered.log)
        self.replicas = Replicas(remote_storage_enable=True)
        self.follower: Partition = self.replicas.follow(2)
        self.truncated: list[Log] = []
        self.has_topic_id = True
        self.machine = TierStateMachine(
            self,
            cast(LeaderEndpoint, self.leader),
            lambda: NOW_MS,
            FollowerTruncation(self.truncated.append, at_once),
        )

    def follow(self, replica: Partition) -> TopicIdPartition | None:
        return PARTITION if self.has_topic_id else None

    @property
    def log(self) -> Log:
        return self.replicas.log()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Epochs 0, 1 and 3; the leader has the last batch, of epoch 3, on its disk."""
    scene = Scene(tmp_path)
    tiered = scene.tiered
    await tiered.start()
    tiered.append(2)
    tiered.append(1, epoch=1)
    batch = batch_of(3, producer_id=5, producer_epoch=2, base_sequence=0)
    tiered.log.roll(NOW_MS)
    tiered.log.append(batch, leader_epoch=1, now_ms=NOW_MS)
    tiered.log.roll(NOW_MS)
    tiered.append(1, epoch=3)
    await tiered.copy()
    tiered.expire_locally()
    assert tiered.log.local_log_start_offset == 9
    yield scene
    await tiered.stop()


async def test_epochs_and_producers_of_the_remote_segments(scene: Scene) -> None:
    scene.log.append_as_follower(bytes(batch_of(2)), now_ms=NOW_MS)
    await scene.machine.start(scene.follower, 2)
    log = scene.log
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (2, 9, 9)
    assert log.high_watermark == 9
    assert log.leader_epochs.entries == [(0, 0), (1, 4)]
    assert log.producer_state.producers[5].epoch == 2
    assert log.producer_state.producers[5].batches[-1].last_offset == 8
    assert log.offsets.highest_remote_offset == 8
    assert scene.truncated == [log]
    # What the leader sends next continues the log, with the next sequence number.
    batch = batch_of(1, producer_id=5, producer_epoch=2, base_sequence=3)
    scene.tiered.log.append(batch, leader_epoch=3, now_ms=NOW_MS)
    while log.log_end_offset < scene.tiered.log.log_end_offset:
        read = scene.tiered.log.read(log.log_end_offset, 1 << 20, up_to=1 << 40).slice
        assert read is not None
        log.append_as_follower(read.read(), now_ms=NOW_MS)
    assert log.leader_epochs.entries == scene.tiered.log.leader_epochs.entries


@pytest.mark.parametrize(
    "damage", ["store", "lost", "epochs", "snapshot", "metadata", "leader", "no topic id"]
)
async def test_an_error_leaves_the_log_as_it_was(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    scene.log.append_as_follower(bytes(batch_of(2)), now_ms=NOW_MS)
    error: type[Exception] = RemoteStorageError
    if damage == "store":
        scene.storage.fail = ["fetch"]
    elif damage == "lost":
        fetch_index = scene.storage.fetch_index

        def before_it_is_lost(
            metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType
        ) -> bytes:
            index = fetch_index(metadata, index_type)
            scene.storage.objects.pop(metadata.segment_id.id)
            return index

        monkeypatch.setattr(scene.storage, "fetch_index", before_it_is_lost)
    elif damage in ("epochs", "snapshot"):
        error = CorruptFile
        index = {
            "epochs": RemoteIndexType.LEADER_EPOCH,
            "snapshot": RemoteIndexType.PRODUCER_SNAPSHOT,
        }
        for objects in scene.storage.objects.values():
            objects[index[damage].value] = b"0\n7\n"
    elif damage == "metadata":
        scene.leader.log = scene.log  # it begins at 0: nothing is before it
    elif damage == "leader":
        error = KafkaError
        scene.leader.error = KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    else:
        scene.has_topic_id = False
    with pytest.raises(error):
        await scene.machine.start(scene.follower, 0)
    assert scene.log.log_end_offset == 2
    assert scene.log.read(0, 100, up_to=2).slice is not None
    assert scene.truncated == []
    assert scene.statistics.total("state_builds") == 1
    assert scene.statistics.total("state_build_errors") == 1


async def test_a_new_leader_ends_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_index = scene.storage.fetch_index

    def and_another_leader(*arguments: object) -> bytes:
        scene.follower.leader_epoch += 1
        return fetch_index(*arguments)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(scene.storage, "fetch_index", and_another_leader)
    await scene.machine.start(scene.follower, 0)
    assert (scene.log.log_end_offset, scene.truncated) == (0, [])


async def test_a_log_that_is_built_again_after_a_restart(scene: Scene) -> None:
    await scene.machine.start(scene.follower, 0)
    await scene.machine.start(scene.follower, 2)
    assert (scene.log.log_start_offset, scene.log.local_log_start_offset) == (2, 9)
    assert scene.log.producer_state.snapshots == [9]


async def test_one_attempt_at_a_time_and_one_log_line(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.replication.tier_state_machine._RETRY_SECONDS", 0)
    ended: list[Exception | None] = []
    followers = TieredFollowers(scene.machine, lambda _, error: ended.append(error))
    for attempt in (1, 2):
        scene.leader.error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        followers.begin(scene.follower, 0)
        followers.begin(scene.follower, 0)
        await eventually_async(lambda count=attempt: len(ended) == count)
    assert sum("Cannot build the state" in each.getMessage() for each in caplog.records) == 1
    scene.leader.error = ValueError("a defect")
    followers.begin(scene.follower, 0)
    await eventually_async(lambda: len(ended) == 3)
    assert [type(error) for error in ended] == [type(None), type(None), ValueError]
    scene.leader.error = None
    followers.begin(scene.follower, 0)
    await eventually_async(lambda: not followers.building)
    assert scene.log.log_end_offset == 9
    followers.begin(scene.follower, 0)
    followers.stop()
    assert not followers.building


@pytest.mark.parametrize("is_added_again", [False, True])
async def test_a_partition_that_leaves_is_not_truncated(
    scene: Scene, is_added_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted, for example, while a thread reads its state: its directory must not come back."""
    go_on, fetch_index = threading.Event(), scene.storage.fetch_index

    def blocked(*arguments: object) -> bytes:
        assert go_on.wait(60)
        return fetch_index(*arguments)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(scene.storage, "fetch_index", blocked)
    scene.log.append_as_follower(bytes(batch_of(2)), now_ms=NOW_MS)
    ended: list[Exception | None] = []
    followers = TieredFollowers(scene.machine, lambda _, error: ended.append(error))
    followers.begin(scene.follower, 0)
    task = followers.building[scene.follower.key]
    await eventually_async(lambda: scene.readers.accepted == 1)
    followers.end(scene.follower.key)
    if is_added_again:
        followers.begin(scene.follower, 0)
    go_on.set()
    await eventually_async(task.done)
    await eventually_async(lambda: not followers.building)
    assert len(ended) == is_added_again
    assert scene.log.log_end_offset == (9 if is_added_again else 2)
