"""What is done with logs that the tree does not give to this broker."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.replication.stray_logs import StrayCheck, rename_stray_logs
from ottla.controller.model import ReplicaAssignment, TopicState
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import ConnectionLost, Stat
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import random_uuid
from ottla.storage.directories.log_manager import LogManager
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.replicas import TOPIC, Replicas, codes
from tests.doubles.replicas import TOPIC_ID as TOPIC_ID_OF_REPLICAS
from tests.doubles.storage_logs import NOW_MS, append, manager_on

US = 1
TOPIC_ID = random_uuid()


async def after_start(topic: bytes | None, topic_id: bytes | None = TOPIC_ID) -> list[str]:
    """The directories of a broker that had t-0 with three records, and finds this in the tree."""
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    append(manager.get_or_create("t", 0, topic_id=topic_id, now_ms=NOW_MS), 3)
    store = EmbeddedStore()
    await store.connect()
    try:
        if topic is not None:
            await store.create(znodes.topic_path("t"), topic, make_parents=True)
        count = await rename_stray_logs(manager, store, US)
    finally:
        await store.close()
    assert count == 1 - len(manager.logs())
    return fs.list_directories("/disk")


def assigned(*replicas: int, topic_id: bytes | None = TOPIC_ID, index: int = 0) -> bytes:
    return znodes.encode_topic(TopicState(topic_id, {index: ReplicaAssignment(replicas)}))


@pytest.mark.parametrize(
    ("topic", "topic_id"),
    [
        (assigned(2, US), TOPIC_ID),
        (assigned(2, US), None),  # made before topics had ids
        (assigned(2, US, topic_id=None), TOPIC_ID),
        (None, None),
        (b"not JSON", TOPIC_ID),
    ],
)
async def test_what_is_ours_or_may_be_stays(topic: bytes | None, topic_id: bytes | None) -> None:
    assert await after_start(topic, topic_id) == ["t-0"]


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (assigned(2, 3), "the partition is not assigned to this broker any more"),
        (assigned(US, index=1), "the partition is not assigned to this broker any more"),
        (assigned(US, topic_id=random_uuid()), "the topic was deleted and created again"),
        (None, "the topic does not exist any more"),
    ],
)
async def test_strays_are_renamed_and_kept(
    topic: bytes | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    (name,) = await after_start(topic)
    assert name.startswith("t-0.")
    assert name.endswith("-stray")
    assert f"Renamed stray log t-0 to /disk/{name}: {reason}" in caplog.text


async def test_a_disk_that_fails_meanwhile_is_said(caplog: pytest.LogCaptureFixture) -> None:
    manager: LogManager = manager_on(MemoryFileSystem())
    log = manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    log.log_directory.fail(OSError("broken"))
    store = EmbeddedStore()
    await store.connect()
    try:
        assert await rename_stray_logs(manager, store, US) == 0
    finally:
        await store.close()
    assert "Failed to rename stray log t-0" in caplog.text


def test_nothing_is_requested_for_an_empty_disk() -> None:
    """Not even whether the tree can be reached: this is on the way of every first start."""
    coroutine = rename_stray_logs(manager_on(MemoryFileSystem()), EmbeddedStore(), US)
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    assert stopped.value.value == 0


class Back:
    """Broker 1 led t-0 with three records; its session was lost and is there again."""

    def __init__(self, topic: bytes) -> None:
        self.replicas = Replicas()
        self.replicas.lead(epoch=4, replicas=[1, 2], isr=[1, 2])
        self.log = self.replicas.log()
        self.waiting = self.replicas.append(3, acks=-1)
        self.deleted: list[TopicPartition] = []
        self.replicas.leader_and_isr.on_deleted = self.deleted.extend
        self.store = EmbeddedStore()
        self.topic = topic
        self.check = StrayCheck(
            *(self.replicas.logs, self.store, US),
            self.replicas.leader_and_isr,
            self.replicas.metadata,
        )

    async def start(self) -> None:
        await self.store.connect()
        await self.store.create(znodes.topic_path(TOPIC), self.topic, make_parents=True)


@pytest.mark.parametrize(
    "topic",
    [
        znodes.encode_topic(TopicState(TOPIC_ID_OF_REPLICAS, {0: ReplicaAssignment((2, 3))})),
        znodes.encode_topic(TopicState(TOPIC_ID, {0: ReplicaAssignment((US, 2))})),
    ],
    ids=["reassigned", "created again"],
)
async def test_a_leader_that_comes_back_leads_nothing_that_is_not_its_own(topic: bytes) -> None:
    """It would acknowledge acks=1 into a log that no client reads."""
    back = Back(topic)
    await back.start()
    await back.check.run(9)
    assert back.replicas.manager.partitions == {}
    assert back.waiting.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert back.log.path.endswith("-stray")
    assert back.deleted == [TopicPartition(TOPIC, 0)]
    assert back.replicas.append(1).code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    # The new topic of that name, or a later reassignment, has a log of its own.
    response = back.replicas.order(1, epoch=5, topic_id=TOPIC_ID, replicas=[1, 2], isr=[1])
    assert codes(response) == [0]
    assert back.replicas.log().log_end_offset == 0
    await back.store.close()


async def test_a_replica_that_changes_during_the_check_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    back = Back(znodes.encode_topic(TopicState(TOPIC_ID_OF_REPLICAS, {0: ReplicaAssignment((2,))})))
    await back.start()
    real = back.store.get_many

    async def get_many(paths: list[str]) -> list[tuple[bytes, Stat] | None]:
        found = await real(paths)
        back.replicas.order(1, epoch=5, replicas=[1, 2], isr=[1, 2])
        return found

    monkeypatch.setattr(back.store, "get_many", get_many)
    await back.check.run(9)
    assert back.replicas.partition().is_leader
    assert not back.log.path.endswith("-stray")
    await back.store.close()


async def test_who_waits_for_the_check_waits_until_it_succeeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    back = Back(znodes.encode_topic(TopicState(TOPIC_ID_OF_REPLICAS, {0: ReplicaAssignment((1,))})))
    await back.start()
    waiting = asyncio.gather(back.check.wait_for(9))
    await asyncio.sleep(0)
    monkeypatch.setattr(back.store, "get_many", _lost)
    with pytest.raises(ConnectionLost):
        await back.check.run(9)
    assert not waiting.done()
    monkeypatch.undo()
    await back.check.run(12)
    await waiting
    await back.check.wait_for(12)
    await back.check.wait_for(-1)  # of a controller before KIP-380
    assert back.replicas.partition().is_leader
    await back.store.close()


async def _lost(paths: list[str]) -> list[tuple[bytes, Stat] | None]:
    raise ConnectionLost("", "ZooKeeper is away")


GIVEN_AWAY = znodes.encode_topic(TopicState(TOPIC_ID_OF_REPLICAS, {0: ReplicaAssignment((2,))}))
STILL_OURS = znodes.encode_topic(
    TopicState(TOPIC_ID_OF_REPLICAS, {0: ReplicaAssignment((2, US), removing=(US,))})
)


async def test_a_replica_whose_stop_replica_was_lost_is_set_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller died with the request in its queue. A StopReplica that comes would delete the
    log, so there is time for it."""
    back = Back(GIVEN_AWAY)
    await back.start()
    await back.check.look_for_unassigned()
    await back.check.look_for_unassigned()
    assert back.replicas.partition().is_leader, "the metadata have nothing of it yet"
    back.replicas.publish(leader=2, epoch=5)
    await back.check.look_for_unassigned()
    assert not back.log.path.endswith("-stray")
    with monkeypatch.context() as patch:
        patch.setattr(back.store, "get_many", _lost)
        await back.check.look_for_unassigned()
    assert not back.log.path.endswith("-stray")
    await back.check.look_for_unassigned()
    assert back.log.path.endswith("-stray")
    assert back.replicas.manager.partitions == {}
    assert back.waiting.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await back.store.close()


@pytest.mark.parametrize(
    ("topic", "epoch", "then"),
    [(STILL_OURS, 5, 0), (GIVEN_AWAY, 3, 0), (GIVEN_AWAY, 5, 6)],
    ids=["the reassignment has not ended", "metadata of before", "assigned again meanwhile"],
)
async def test_a_replica_that_is_ours_after_all_stays(topic: bytes, epoch: int, then: int) -> None:
    back = Back(topic)
    await back.start()
    back.replicas.publish(leader=2, epoch=epoch)
    await back.check.look_for_unassigned()
    if then:
        back.replicas.order(2, epoch=then, replicas=[2, US], isr=[2])
    for _ in range(2):
        await back.check.look_for_unassigned()
        assert not back.log.path.endswith("-stray")
    await back.store.close()


@pytest.mark.parametrize("where", ["isr", "leader"])
async def test_a_member_of_the_isr_is_removed_by_the_controller_only(where: str) -> None:
    back = Back(GIVEN_AWAY)
    await back.start()
    back.replicas.publish(leader=2, epoch=5)
    (state,) = back.replicas.metadata.snapshot.topics[TOPIC].partitions.values()
    changed = state._replace(isr=[2, US]) if where == "isr" else state._replace(leader=US)
    back.replicas.metadata.snapshot.topics[TOPIC].partitions[0] = changed
    for _ in range(3):
        await back.check.look_for_unassigned()
    assert not back.log.path.endswith("-stray")
    await back.store.close()
