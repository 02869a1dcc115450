"""Replicas that are ahead of the tree, and what a broker says of the ids of its logs."""

from __future__ import annotations

import errno
from typing import cast

import pytest

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.replication.replica_epochs import ReplicaEpochs
from ottla.controller.model import REPAIR_STEP
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.znodes_admin import ReplicaEpoch, decode_replica_epochs
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import NO_TOPIC_ID, ZERO_UUID
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.layout import LOG_SUFFIX, segment_file_name
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.replicas import TOPIC, TOPIC_ID, Replicas, codes

KEY = TopicPartition(TOPIC, 0)


def with_epochs() -> tuple[Replicas, ReplicaEpochs, EmbeddedStore]:
    replicas, store = Replicas(), EmbeddedStore()
    epochs = ReplicaEpochs(store, 1, BrokerEpoch(5))
    replicas.leader_and_isr.epochs = epochs
    return replicas, epochs, store


def restarted(replicas: Replicas) -> None:
    """The replicas of a new process on the same logs."""
    replicas.manager.partitions.clear()


async def test_a_lower_leader_epoch_is_refused_and_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replicas, epochs, store = with_epochs()
    replicas.lead(epoch=7)
    replicas.append(3)
    restarted(replicas)
    for _ in range(2):
        response = replicas.order(2, epoch=4, replicas=[1, 2])
        assert codes(response) == [ErrorCode.FENCED_LEADER_EPOCH]
    assert KEY not in replicas.manager.partitions
    assert (
        caplog.text.count("ZooKeeper is an older copy, was restored from one, or written again")
        == 1
    )
    await store.connect()
    await epochs.publish()
    data, _ = await store.get(znodes.replica_epochs_path(1))
    assert decode_replica_epochs(1, data) == (5, False, {KEY: ReplicaEpoch(7, 7, 3, False)})
    await store.close()
    assert codes(replicas.order(2, epoch=7, replicas=[1, 2])) == [0]
    assert epochs.ahead == {}
    await epochs.publish()  # ZooKeeper is away: it is said, and nothing else happens
    assert "Failed to store the leader epochs of replicas" in caplog.text


def test_the_epochs_of_a_log_without_records_say_nothing() -> None:
    """It was elected in a wrong ZooKeeper, and has appended nothing."""
    replicas, epochs, _ = with_epochs()
    replicas.lead(epoch=7)
    restarted(replicas)
    assert codes(replicas.order(2, epoch=4, replicas=[1, 2])) == [0]
    assert replicas.log().leader_epochs.latest_epoch == -1
    assert epochs.ahead == {}


def test_in_an_older_tree_only_a_repair_is_accepted() -> None:
    """Alone in a wrong ZooKeeper, this broker is elected in epochs that the others use as well."""
    replicas, epochs, _ = with_epochs()
    repaired: list[bool] = []
    epochs.on_repaired = lambda: repaired.append(True)
    replicas.lead(epoch=7)
    replicas.append(3)
    replicas.lead(1, epoch=7)
    restarted(replicas)
    epochs.registered(is_older=True)
    for epoch in (4, 7, 9, 6 + REPAIR_STEP):
        response = replicas.order(1, epoch=epoch, replicas=[1, 2])
        assert codes(response) == [ErrorCode.FENCED_LEADER_EPOCH], epoch
    assert codes(replicas.order(1, index=1, epoch=8, replicas=[1])) == [0], "it has no records"
    assert repaired == []
    assert codes(replicas.order(1, epoch=7 + REPAIR_STEP, replicas=[1, 2])) == [0]
    assert repaired == [True]
    assert codes(replicas.order(2, epoch=8 + REPAIR_STEP, replicas=[1, 2])) == [0]
    epochs.registered(is_older=False)
    assert codes(replicas.order(1, epoch=9 + REPAIR_STEP, replicas=[1, 2])) == [0]


def test_the_first_state_of_a_partition_that_has_records_is_no_first_one() -> None:
    """The znodes of the topic were removed by hand and written again: the first replica would
    lead, and others would truncate what it lacks."""
    replicas, epochs, _ = with_epochs()
    assert codes(replicas.order(1, epoch=0, replicas=[1, 2], is_new=True)) == [0]
    replicas.append(3)
    response = replicas.order(1, epoch=0, replicas=[1, 2], is_new=True)
    assert codes(response) == [ErrorCode.STALE_CONTROLLER_EPOCH], "it was sent again"
    for is_new in (True, False, True):
        response = replicas.order(1, epoch=1, replicas=[1, 2], is_new=is_new)
        assert codes(response) == [ErrorCode.FENCED_LEADER_EPOCH]
        restarted(replicas)
    assert KEY in epochs.ahead
    response = replicas.order(2, epoch=1 + REPAIR_STEP, replicas=[1, 2], partition_epoch=1)
    assert codes(response) == [0]
    # A new replica of a partition that exists.
    restarted(replicas)
    response = replicas.order(
        2, epoch=2 + REPAIR_STEP, replicas=[1, 2], is_new=True, partition_epoch=4
    )
    assert codes(response) == [0]


def test_a_repair_has_a_znode_with_a_lower_version() -> None:
    replicas, _, _ = with_epochs()
    assert codes(replicas.order(1, epoch=3, replicas=[1, 2], partition_epoch=9)) == [0]
    response = replicas.order(2, epoch=3 + REPAIR_STEP, replicas=[1, 2], partition_epoch=1)
    assert codes(response) == [0]
    partition = replicas.partition()
    assert (partition.leader_epoch, partition.partition_epoch) == (3 + REPAIR_STEP, 1)


def told(replicas: Replicas, epoch: int) -> bytes:
    """The id in the response to a state without one."""
    response = replicas.order(1, epoch=epoch, replicas=[1], topic_id=ZERO_UUID)
    (topic,) = response.topics
    return topic.topic_id


def test_a_broker_says_the_id_of_its_logs_to_who_does_not_know_it() -> None:
    replicas = Replicas()
    assert told(replicas, 1) == NO_TOPIC_ID
    assert replicas.log().topic_id is None
    assert codes(replicas.order(1, epoch=1, replicas=[1])) == [0]
    assert replicas.log().topic_id == TOPIC_ID
    assert told(replicas, 1) == TOPIC_ID
    assert replicas.partition().topic_id == ZERO_UUID, "requests go by the name until it is known"
    restarted(replicas)
    assert told(replicas, 2) == TOPIC_ID
    assert codes(replicas.order(1, epoch=2, replicas=[1])) == [0]
    assert replicas.partition().topic_id == TOPIC_ID


def test_a_broker_does_not_say_the_id_of_a_log_that_cannot_be_opened() -> None:
    """Nor that there is none: the controller would make one up."""
    replicas = Replicas()
    replicas.lead(epoch=1)
    replicas.append(3)
    file = f"{replicas.log().path}/{segment_file_name(0, LOG_SUFFIX)}"
    replicas.logs.shutdown(0)
    fs = cast(MemoryFileSystem, replicas.logs.fs)
    fs.fail("open", errno.EACCES, path_part=file, times=1_000)
    restarted(replicas)
    replicas.logs = LogManager(["/disk"], replicas.config, fs)
    replicas.logs.load(0)
    replicas.leader_and_isr._log_manager = replicas.logs
    assert list(replicas.logs.unusable_logs) == [file.rpartition("/")[0]]
    assert told(replicas, 2) == ZERO_UUID


def test_a_state_with_another_id_is_refused_although_the_replica_is_new() -> None:
    replicas = Replicas()
    replicas.lead(epoch=1)
    restarted(replicas)
    told(replicas, 2)
    response = replicas.order(1, epoch=3, replicas=[1], topic_id=b"o" * 16)
    assert codes(response) == [ErrorCode.INCONSISTENT_TOPIC_ID]
    assert replicas.log().topic_id == TOPIC_ID
