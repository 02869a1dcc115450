"""What is done with logs that the tree does not give to this broker."""

from __future__ import annotations

import asyncio
import errno
from typing import NamedTuple

import pytest

from ottla.broker.replication.stray_logs import HeldLog, StrayCheck, rename_stray_logs
from ottla.broker.runtime.tasks import spawn
from ottla.controller.admin.producer_ids import SKIPPED_IDS
from ottla.controller.model import LeaderAndIsr, ReplicaAssignment, TopicState
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import ConnectionLost, Stat
from ottla.controller.tree.znodes_admin import decode_producer_id_block, encode_deleted_topics
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import random_uuid, uuid_to_string
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.fs import replace_file
from ottla.storage.files.known_zxid import KNOWN_ZXID_FILE, read_known_zxid
from ottla.storage.files.set_aside import Note, Reason
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.pace import steps_per_turn
from tests.doubles.published_metadata import publish
from tests.doubles.replicas import TOPIC, Replicas, codes
from tests.doubles.replicas import TOPIC_ID as TOPIC_ID_OF_REPLICAS
from tests.doubles.storage_logs import NOW_MS, append, batch_of, manager_on
from tests.doubles.znode_ensembles import delete_recursively

US = 1
TOPIC_ID = random_uuid()


class Tree(NamedTuple):
    """What the tree has beside the topic."""

    state: LeaderAndIsr | None = None
    deleted: bytes | None = None
    removed: bytes | None = None

    async def create(self, store: EmbeddedStore) -> None:
        if self.state is not None:
            path = znodes.state_path(TopicPartition("t", 0))
            await store.create(path, znodes.encode_state(self.state), make_parents=True)
        deleted, removed = (
            {} if each is None else {"t": [uuid_to_string(each)]}
            for each in (self.deleted, self.removed)
        )
        data = encode_deleted_topics(-1, {}, deleted, removed)
        await store.create(znodes.DELETED_TOPICS, data, make_parents=True)


async def after_start(
    topic: bytes | None,
    topic_id: bytes | None = TOPIC_ID,
    tree: Tree = Tree(),  # noqa: B008 - a tuple
    *,
    records: int = 3,
    is_older: bool = False,
) -> list[str]:
    """The directories of a broker that had t-0 with three records of epoch 4, and finds this in the
    tree."""
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, topic_id=topic_id, now_ms=NOW_MS)
    if records:
        append(log, records)
    log.assign_epoch(4, records)
    held: dict[Log, HeldLog] = {}
    store = EmbeddedStore()
    await store.connect()
    try:
        if topic is not None:
            await store.create(znodes.topic_path("t"), topic, make_parents=True)
        await tree.create(store)
        hosted = Replicas().leader_and_isr
        count = await rename_stray_logs(
            manager, store, US, hosted, held=held, tree_is_older=is_older
        )
    finally:
        await store.close()
    assert count == 1 - len(manager.logs())
    if held:
        assert fs.list_directories("/disk") == ["t-0"]
        assert (log.config.retention_ms, log.config.delete) == (-1, True), "nothing is deleted"
        return [held[log].problem]
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


OTHER = random_uuid()
THEIRS = Tree(LeaderAndIsr(2, 4, (2, 3)))

# Records leave service only with proof: what the znode of the topic says, and the second fact.
WITH_PROOF: list[tuple[bytes | None, Tree, str]] = [
    (assigned(2, 3), THEIRS, "does not assign the partition to this broker, and the replicas 2, 3"),
    (assigned(US, index=1), THEIRS, "does not assign the partition to this broker"),
    (None, Tree(deleted=TOPIC_ID), "the topic with id"),
    (assigned(US, topic_id=OTHER), Tree(deleted=TOPIC_ID), "the topic with id"),
    (assigned(US, topic_id=OTHER), Tree(removed=TOPIC_ID), "was removed"),
    (assigned(US, topic_id=OTHER), Tree(LeaderAndIsr(2, 3, (2,))), "epoch 3 is below 4 in the log"),
]
# The znode of the topic alone.
WITHOUT_PROOF: list[tuple[bytes | None, Tree, str]] = [
    (None, Tree(), "no controller has stored that it deleted"),
    (None, Tree(deleted=OTHER), "no controller has stored that it deleted"),
    (None, Tree(removed=TOPIC_ID), "no controller has stored that it deleted"),
    (assigned(US, topic_id=OTHER), Tree(), "nothing else says"),
    (assigned(US, topic_id=OTHER), Tree(LeaderAndIsr(2, 4, (2,))), "nothing else says"),
    (assigned(US, topic_id=OTHER), Tree(deleted=OTHER), "nothing else says"),
    (assigned(2, 3), Tree(), "it has no leader and ISR"),
    (assigned(US, index=1), Tree(), "it has no leader and ISR"),
    (assigned(2, 3), Tree(LeaderAndIsr(US, 4, (US, 2))), "this broker is in its ISR"),
    (assigned(2, 3), Tree(LeaderAndIsr(2, 3, (2,))), "its leader epoch is 3, below 4 in the log"),
    (assigned(2, 3), Tree(LeaderAndIsr(-1, 9, ())), "its ISR is empty"),
]


@pytest.mark.parametrize(("topic", "tree", "reason"), WITH_PROOF)
async def test_strays_are_renamed_and_kept(
    topic: bytes | None, tree: Tree, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    (name,) = await after_start(topic, tree=tree)
    assert name.startswith("t-0.")
    assert name.endswith("-stray")
    assert f"Renamed stray log t-0 to /disk/{name}: " in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize(("topic", "tree", "reason"), WITHOUT_PROOF)
async def test_a_log_stays_where_it_is_without_a_second_fact(
    topic: bytes | None, tree: Tree, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    (problem,) = await after_start(topic, tree=tree)
    assert reason in problem
    assert f"Keeping log /disk/t-0: {problem}; " in caplog.text


@pytest.mark.parametrize(("topic", "tree", "reason"), WITH_PROOF)
async def test_nothing_is_set_aside_by_the_word_of_an_older_tree(
    topic: bytes | None, tree: Tree, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    (problem,) = await after_start(topic, tree=tree, is_older=True)
    assert reason in problem
    assert "ZooKeeper is an older copy" in problem


@pytest.mark.parametrize(("topic", "tree", "reason"), WITHOUT_PROOF)
async def test_a_log_without_records_needs_no_second_fact(
    topic: bytes | None, tree: Tree, reason: str
) -> None:
    (name,) = await after_start(topic, tree=tree, records=0)
    assert name.endswith("-stray")


async def test_a_disk_that_fails_meanwhile_is_said(caplog: pytest.LogCaptureFixture) -> None:
    manager: LogManager = manager_on(MemoryFileSystem())
    log = manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    log.log_directory.fail(OSError("broken"))
    store = EmbeddedStore()
    await store.connect()
    try:
        assert await rename_stray_logs(manager, store, US, Replicas().leader_and_isr) == 0
    finally:
        await store.close()
    assert "Failed to rename stray log t-0" in caplog.text


def test_nothing_is_requested_for_an_empty_disk() -> None:
    """Not even whether the tree can be reached: this is on the way of every first start."""
    logs, hosted = manager_on(MemoryFileSystem()), Replicas().leader_and_isr
    coroutine = rename_stray_logs(logs, EmbeddedStore(), US, hosted)
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
        self.tree = Tree(LeaderAndIsr(2, 5, (2,)), deleted=TOPIC_ID_OF_REPLICAS)
        self.check = StrayCheck(
            *(self.replicas.logs, self.store, US),
            self.replicas.leader_and_isr,
            self.replicas.metadata,
        )

    async def start(self) -> None:
        await self.store.connect()
        await self.store.create(znodes.topic_path(TOPIC), self.topic, make_parents=True)
        await self.tree.create(self.store)


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


@pytest.mark.parametrize("known", [True, False], ids=["created again", "the tree has another id"])
async def test_the_log_of_an_earlier_topic_makes_way(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Its StopReplica was lost with a controller, and its topic deleted before a look."""
    topic = TopicState(TOPIC_ID if known else TOPIC_ID_OF_REPLICAS, {0: ReplicaAssignment((US, 2))})
    back = Back(znodes.encode_topic(topic))
    await back.start()
    stopped: list[tuple[object, ...]] = []
    back.replicas.leader_and_isr.on_stopped = lambda *what: stopped.append(what)
    request = following(0, TOPIC_ID)
    with monkeypatch.context() as patch:
        patch.setattr(back.store, "get_many", _lost)
        with pytest.raises(ConnectionLost):
            await back.check.make_way_for(request)
    assert not back.log.path.endswith("-stray")
    await back.check.make_way_for(request)
    assert back.log.path.endswith("-stray") == known
    assert stopped == ([(TopicPartition(TOPIC, 0), True, False)] if known else [])
    response = await back.replicas.leader_and_isr.become_leader_or_follower(request, 7)
    assert codes(response) == [0 if known else ErrorCode.INCONSISTENT_TOPIC_ID]
    await back.check.make_way_for(request)
    assert back.replicas.partition().topic_id == (TOPIC_ID if known else TOPIC_ID_OF_REPLICAS)
    await back.store.close()


PARTITIONS = 5
ALL_GIVEN_AWAY = znodes.encode_topic(
    TopicState(
        TOPIC_ID_OF_REPLICAS, {index: ReplicaAssignment((2,)) for index in range(PARTITIONS)}
    )
)


async def test_a_replica_of_a_topic_that_is_not_deleted_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The StopReplica is that of an earlier topic of the name, and came late."""
    back = Back(STILL_OURS)
    await back.start()
    key = TopicPartition(TOPIC, 0)

    def request(epoch: int = -2, delete: bool = True) -> StopReplicaRequest:
        state = StopReplicaPartitionState(0, epoch, delete)
        return StopReplicaRequest(topic_states=[StopReplicaTopicState(TOPIC, [state])])

    kept = back.check.not_being_deleted
    assert await kept(request()) == {key}
    assert await kept(request(epoch=7)) == set(), "it was assigned to others"
    assert await kept(request(delete=False)) == {key}, "it would not lead or fetch any more"
    monkeypatch.setattr(back.store, "get_many", _lost)
    assert await kept(request()) == {key}, "ZooKeeper is away, so it waits"
    monkeypatch.undo()
    await back.store.create(znodes.delete_topic_path(TOPIC), b"", make_parents=True)
    assert await kept(request()) == set()
    await back.store.delete(znodes.delete_topic_path(TOPIC))
    publish(back.replicas.metadata, deleted_metadata())
    monkeypatch.setattr(back.store, "get_many", None)
    assert await kept(request()) == set(), "the metadata said so already"
    monkeypatch.undo()
    await back.store.close()


def deleted_metadata() -> UpdateMetadataRequest:
    state = UpdateMetadataPartitionState(partition_index=0, leader=-2)
    topic = UpdateMetadataTopicState(TOPIC, TOPIC_ID_OF_REPLICAS, [state])
    return UpdateMetadataRequest(controller_epoch=1, topic_states=[topic])


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_log_of_a_topic_without_metadata_is_looked_up(is_there: bool) -> None:
    """A LeaderAndIsr of a deleted topic came late; or the metadata of a new one are to come."""
    back = Back(STILL_OURS)
    await back.start()
    publish(back.replicas.metadata, deleted_metadata())
    if not is_there:
        await delete_recursively(back.store, znodes.topic_path(TOPIC))
    await back.check.look_for_unassigned()
    assert not back.log.path.endswith("-stray")
    await back.check.look_for_unassigned()
    assert back.log.path.endswith("-stray") is not is_there
    await back.store.close()


def following(index: int, topic_id: bytes) -> LeaderAndIsrRequest:
    """Broker 2 leads in epoch 5."""
    state = LeaderAndIsrPartitionState(
        partition_index=index, leader=2, leader_epoch=5, isr=[2], replicas=[US, 2]
    )
    return LeaderAndIsrRequest(
        controller_epoch=1, topic_states=[LeaderAndIsrTopicState(TOPIC, topic_id, [state])]
    )


class Interrupted(Back):
    """A check of five strays that is interrupted after some of its steps."""

    def __init__(self) -> None:
        super().__init__(ALL_GIVEN_AWAY)
        for index in range(1, PARTITIONS):
            self.replicas.lead(index, epoch=4, replicas=[1, 2], isr=[1, 2])

    async def assign(self, topic_id: bytes) -> int:
        """The last partition becomes a replica of this broker, in a later leader epoch."""
        assigned = {PARTITIONS - 1: ReplicaAssignment((1, 2))}
        topic = znodes.encode_topic(TopicState(topic_id, assigned))
        await self.store.set(znodes.topic_path(TOPIC), topic)
        request = following(PARTITIONS - 1, topic_id)
        await self.check.make_way_for(request)
        response = await self.replicas.leader_and_isr.become_leader_or_follower(request, 7)
        return codes(response)[0]

    def check_replicas(self) -> None:
        """Each replica has a log that is in its place, and no log is without its replica."""
        logs = {(log.topic, log.partition): log for log in self.replicas.logs.logs()}
        partitions = self.replicas.manager.partitions
        for key, partition in partitions.items():
            assert partition.log is None or partition.log is logs.get(tuple(key)), key
        for key, log in logs.items():
            assert TopicPartition(*key) in partitions, key
            assert not log.local.closed
            assert log.path == f"/disk/{log.name}"


INTERRUPTIONS = ("stop", "assigned again", "created again", "deleted", "failed disk", "full disk")


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("what", INTERRUPTIONS)
async def test_whatever_comes_between_two_steps_leaves_replicas_with_their_logs(
    what: str, periodic: bool
) -> None:
    after = 0
    with steps_per_turn(1):
        while await _interrupted(after, what, periodic):
            after += 1
    assert after > PARTITIONS, "a step for each stray, and for the tree"


async def _interrupted(after: int, what: str, periodic: bool) -> bool:
    """Whether the check was not complete after so many steps."""
    back = Interrupted()
    await back.start()
    back.replicas.lead(index=PARTITIONS)  # of which the tree knows nothing
    real = back.store.get_many

    async def get_many(paths: list[str]) -> list[tuple[bytes, Stat] | None]:
        await asyncio.sleep(0)
        found = await real(paths)
        await asyncio.sleep(0)
        return found

    back.store.get_many = get_many  # type: ignore[method-assign]
    for index in range(PARTITIONS):
        back.replicas.publish(index, leader=2, epoch=5)
    if periodic:
        await back.check.look_for_unassigned()
    check = back.check.look_for_unassigned() if periodic else back.check.run(9)
    running = spawn(check, name="check")
    for _ in range(after):
        await asyncio.sleep(0)
    was_running = not running.done()
    last, last_path = TopicPartition(TOPIC, PARTITIONS - 1), f"/disk/{TOPIC}-{PARTITIONS - 1}"
    fs = back.replicas.logs.fs
    assert isinstance(fs, MemoryFileSystem)
    was_there = fs.exists(last_path)
    # The check at a start renames the log that the tree does not know, too.
    are_left = was_there or (not periodic and fs.exists(f"/disk/{TOPIC}-{PARTITIONS}"))
    if what == "stop":
        running.cancel()
    elif what == "assigned again":
        assert await back.assign(TOPIC_ID_OF_REPLICAS) == 0
    elif what == "created again":
        assert await back.assign(TOPIC_ID) == 0
    elif what == "deleted":
        back.replicas.leader_and_isr.stop_stray(last)
        back.replicas.logs.delete_async(*last)
    elif what == "failed disk":
        fs.fail("replace", times=1000)
    else:
        fs.fail("replace", errno.ENOSPC, path_part=last_path, times=1000)
    await asyncio.gather(running, return_exceptions=True)
    if what == "failed disk":
        assert back.replicas.logs.offline_directories == ["/disk"] * are_left
    else:
        back.check_replicas()
    if what == "full disk":
        assert fs.exists(last_path) == was_there
        fs.heal()
        back.replicas.logs.check_free_bytes()
        assert not fs.exists(last_path)
    if what in ("assigned again", "created again"):
        assert back.replicas.partition(PARTITIONS - 1).leader_epoch == 5
    await back.store.close()
    return was_running


# Logs that are taken back


class Returned:
    """Broker 1 finds no log of t-0 in place, and some that were set aside."""

    def __init__(self) -> None:
        self.replicas = Replicas()
        self.logs = self.replicas.logs
        self.check = StrayCheck(
            *(self.logs, EmbeddedStore(), US),
            self.replicas.leader_and_isr,
            self.replicas.metadata,
        )

    def set_aside(
        self, records: int, epoch: int, topic_id: bytes = TOPIC_ID, reason: Reason = Reason.UNKNOWN
    ) -> str:
        log = self.logs.get_or_create(TOPIC, 0, topic_id=topic_id, now_ms=NOW_MS)
        log.append(batch_of(records), leader_epoch=epoch, now_ms=NOW_MS)
        self.logs.delete_async(TOPIC, 0, NOW_MS, Note(reason, "set aside by a test"))
        return log.path

    async def lead(self, epoch: int = 9, *, is_new: bool = False) -> Log:
        state = LeaderAndIsrPartitionState(
            partition_index=0, leader=US, leader_epoch=epoch, isr=[US], replicas=[US]
        )
        state.is_new = is_new
        topic = LeaderAndIsrTopicState(TOPIC, TOPIC_ID, [state])
        request = LeaderAndIsrRequest(controller_epoch=1, topic_states=[topic])
        await self.check.take_back(request)
        response = await self.replicas.leader_and_isr.become_leader_or_follower(request, 7)
        assert codes(response) == [0]
        log = self.logs.get(TOPIC, 0)
        assert log is not None
        return log


async def test_the_best_log_with_the_topic_id_is_taken_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    returned = Returned()
    others = [
        returned.set_aside(9, 3),
        returned.set_aside(2, 4),
        returned.set_aside(30, 8, topic_id=random_uuid()),
        returned.set_aside(40, 8, reason=Reason.REPLACED),
    ]
    best = returned.set_aside(5, 4, reason=Reason.TOPIC_GONE)
    log = await returned.lead()
    assert (log.path, log.log_end_offset) == ("/disk/t-0", 5)
    assert f"Took back log /disk/t-0, which was set aside as {best}" in caplog.text
    (directory,) = returned.logs.directories.all
    assert sorted(item.path for item in directory.set_aside) == sorted(others)
    assert "set-aside.json" not in returned.logs.fs.list_files("/disk/t-0")
    returned.replicas.append(3)
    assert log.log_end_offset == 8
    # Another start finds the log in its place.
    returned.logs.shutdown(NOW_MS)
    again = manager_on(returned.logs.fs)
    again.load(NOW_MS)
    assert [each.log_end_offset for each in again.logs()] == [8]


async def test_a_new_replica_takes_nothing_back() -> None:
    returned = Returned()
    returned.set_aside(5, 4)
    log = await returned.lead(is_new=True)
    assert log.log_end_offset == 0


async def test_an_empty_log_in_its_place_is_replaced() -> None:
    """An earlier version created it."""
    returned = Returned()
    returned.set_aside(5, 4)
    returned.logs.get_or_create(TOPIC, 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    log = await returned.lead()
    assert log.log_end_offset == 5


async def test_a_log_with_records_in_its_place_stays() -> None:
    returned = Returned()
    path = returned.set_aside(5, 4)
    append(returned.logs.get_or_create(TOPIC, 0, topic_id=TOPIC_ID, now_ms=NOW_MS), 1)
    log = await returned.lead()
    assert log.log_end_offset == 1
    assert returned.logs.fs.exists(path)


async def test_a_request_that_comes_twice_takes_back_once() -> None:
    returned = Returned()
    returned.set_aside(5, 4)
    one, other = await asyncio.gather(returned.lead(9), returned.lead(10))
    assert one is other
    assert one.log_end_offset == 5


async def test_a_log_that_cannot_be_read_is_left_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    returned = Returned()
    path = returned.set_aside(5, 4)
    fs = returned.logs.fs
    fs.remove(f"{path}/partition.metadata")
    replace_file(fs, f"{path}/partition.metadata", b"nonsense", sync=False)
    log = await returned.lead()
    assert log.log_end_offset == 0
    assert f"Cannot take back {path}" in caplog.text
    assert fs.exists(path)


# The tree goes back in time


async def registered(check: StrayCheck, *epochs: int) -> list[int]:
    found = []
    for epoch in epochs:
        await check.run(epoch)
        found.append(check.newer_zxid)
    return found


async def test_an_older_copy_of_the_tree_is_noticed() -> None:
    replicas, store = Replicas(), EmbeddedStore()
    await store.connect()
    await store.create(znodes.CLUSTER_ID, b"", make_parents=True)

    def check() -> StrayCheck:
        return StrayCheck(*(replicas.logs, store, US), replicas.leader_and_isr, replicas.metadata)

    await store.create(znodes.TOPICS, b"", make_parents=True)
    first = check()
    assert await registered(first, 5, 5, 9) == [-1, -1, -1], "one is repeated after a failure"
    assert await store.exists(znodes.PRODUCER_ID_BLOCK) is None
    assert await registered(check(), 7) == [9]
    # Ids that were given since the copy are not given again.
    block = decode_producer_id_block((await store.get(znodes.PRODUCER_ID_BLOCK))[0])
    assert block == (US, SKIPPED_IDS, SKIPPED_IDS + 999)
    assert await registered(check(), 9) == [9], "the same zxid was given twice"
    assert await registered(check(), 10, 10) == [-1, -1]
    # What changed after a registration is known, too.
    await first.note_newest()
    newest = read_known_zxid(replicas.logs.fs, ["/disk"], first._tree)
    assert newest == 10, "only if the store has more"
    # A tree that was written anew begins again: it is no older copy.
    await store.delete(znodes.CLUSTER_ID)
    await store.create(znodes.CLUSTER_ID, b"")
    assert await registered(check(), 2) == [-1]
    await store.close()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"tree":1}', b"\xff" * 5000])
async def test_a_file_of_epochs_that_cannot_be_read_is_replaced(content: bytes) -> None:
    replicas, store = Replicas(), EmbeddedStore()
    await store.connect()
    path = f"/disk/{KNOWN_ZXID_FILE}"
    replicas.logs.fs.make_directory("/disk")
    replace_file(replicas.logs.fs, path, content, sync=False)
    check = StrayCheck(*(replicas.logs, store, US), replicas.leader_and_isr, replicas.metadata)
    assert await registered(check, 5) == [-1]
    assert read_known_zxid(replicas.logs.fs, ["/disk"], "") == 5
    await store.close()


async def test_a_log_that_is_older_than_the_znode_of_its_topic_is_of_another_one() -> None:
    back = Back(
        znodes.encode_topic(TopicState(TOPIC_ID_OF_REPLICAS, {0: ReplicaAssignment((US,))}))
    )
    back.tree = Tree()
    await back.start()
    await back.check.run(1)
    later = znodes.encode_topic(TopicState(TOPIC_ID, {0: ReplicaAssignment((US,))}))
    await back.store.delete(znodes.topic_path(TOPIC))
    for number in range(3):
        await back.store.create(f"/{number}")
    await back.store.create(znodes.topic_path(TOPIC), later)
    await back.check.make_way_for(following(0, TOPIC_ID))
    assert back.log.path.endswith("-stray")
    (item,) = back.log.log_directory.set_aside
    assert (item.reason, item.needs_attention) == (Reason.TOPIC_RECREATED, True)
    await back.store.close()


async def test_a_log_that_is_kept_is_served_again_when_the_tree_has_its_topic() -> None:
    ours = TopicState(TOPIC_ID_OF_REPLICAS, {0: ReplicaAssignment((US, 2))})
    back = Back(znodes.encode_topic(ours._replace(topic_id=TOPIC_ID)))
    back.tree = Tree(LeaderAndIsr(US, 4, (US, 2)))
    await back.start()
    retention_ms = back.log.config.retention_ms
    await back.check.run(99)
    (held,) = back.check.held.values()
    assert "has another id in ZooKeeper" in held.problem
    assert back.check.is_held(TOPIC, 0)
    assert back.log.config.retention_ms == -1 != retention_ms
    assert back.replicas.partition().is_leader, "it is served as long as there is no other topic"
    response = await back.replicas.leader_and_isr.become_leader_or_follower(
        following(0, TOPIC_ID), 7
    )
    assert codes(response) == [ErrorCode.INCONSISTENT_TOPIC_ID]
    await back.store.set(znodes.topic_path(TOPIC), znodes.encode_topic(ours))
    await back.check.look_for_unassigned()
    assert back.check.held == {}
    assert back.log.config.retention_ms == retention_ms
    await back.store.close()
