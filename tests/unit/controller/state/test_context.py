"""The controller's picture of the cluster."""

from __future__ import annotations

import pytest

from ottla.controller.model import LeaderAndIsr, PartitionReplica, ReplicaAssignment
from ottla.controller.state.context import (
    ControllerContext,
    ControllerGauges,
    PartitionState,
    ReplicaState,
)
from ottla.controller.tree import znodes
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, broker_info, settle

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture
def context() -> ControllerContext:
    made = ControllerContext()
    made.brokers = {broker_id: broker_info(broker_id) for broker_id in (1, 2, 3)}
    made.add_topic("a", b"A" * 16)
    made.add_topic("b", None)
    made.set_assignment(A0, ReplicaAssignment((1, 2)))
    made.set_assignment(A1, ReplicaAssignment((2, 3)))
    made.set_assignment(B0, ReplicaAssignment((3,)))
    made.leadership[A0] = LeaderAndIsr(1, 0, (1, 2))
    made.leadership[A1] = LeaderAndIsr(3, 0, (3,))
    return made


def test_who_is_online(context: ControllerContext) -> None:
    context.shutting_down.add(1)
    context.offline_directories[2] = {A1}
    assert not context.is_live(1)
    assert context.live_broker_ids() == [2, 3]
    assert not context.is_online(1, A0)
    assert context.is_online(1, A0, include_shutting_down=True)
    assert context.is_online(2, A0)
    assert not context.is_online(2, A1)
    assert not context.is_online(9, A0)


def test_replicas_by_broker_follow_the_assignment(context: ControllerContext) -> None:
    assert context.partitions_on(2) == [A0, A1]
    context.set_assignment(A0, ReplicaAssignment((3, 1)))
    assert context.partitions_on(2) == [A1]
    assert context.replicas_on([3, 1]) == [
        PartitionReplica(A1, 3),
        PartitionReplica(B0, 3),
        PartitionReplica(A0, 3),
        PartitionReplica(A0, 1),
    ]
    assert context.partitions_on(9) == []


def test_isr_members_before_an_unclean_restart(context: ControllerContext) -> None:
    zxids = {A0: 50, A1: 50, B0: 50}
    context.leadership[B0] = LeaderAndIsr(3, 0, (3,))
    for broker_id, broker in context.brokers.items():
        context.brokers[broker_id] = broker._replace(epoch=60)
    assert context.isr_members_before_unclean_restart(zxids) == {}

    for broker_id in (1, 2):
        restarted = context.brokers[broker_id]._replace(unclean_shutdown=True)
        context.brokers[broker_id] = restarted
    # 2 is not in the ISR of A1.
    both = {A0: frozenset({1, 2})}
    assert context.isr_members_before_unclean_restart(zxids) == both
    # The ISR was written after that restart, or at an unknown time.
    assert context.isr_members_before_unclean_restart({A0: 61}) == {}
    assert context.isr_members_before_unclean_restart({}) == {}
    # It was written after that restart by a controller that had not heard of the restart of 2.
    newer = {A0: 61, A1: 61, B0: 61}
    unprocessed = context.isr_members_before_unclean_restart(newer, {1: 60, 2: 40, 3: 60})
    assert unprocessed == {A0: frozenset({2})}
    assert context.isr_members_before_unclean_restart(newer, {1: 60}) == unprocessed
    assert context.isr_members_before_unclean_restart(newer, {1: 60, 2: 60}) == {}
    context.brokers[2] = context.brokers[2]._replace(epoch=50)
    assert context.isr_members_before_unclean_restart(zxids) == {A0: frozenset({1})}
    # A partition with one replica, and a topic that is deleted.
    context.brokers[3] = context.brokers[3]._replace(unclean_shutdown=True)
    context.topics_to_delete["a"] = None
    assert context.isr_members_before_unclean_restart(zxids) == {}


def test_removed_topic_leaves_nothing(context: ControllerContext) -> None:
    context.partition_states[A0] = PartitionState.ONLINE
    context.replica_states[PartitionReplica(A0, 1)] = ReplicaState.ONLINE
    context.begin_reassignment(A0)
    context.topics_to_delete["a"] = None
    context.topics_with_deletion_started.add("a")
    context.topics_ineligible_for_deletion.add("a")
    context.offline_directories[1] = {A0}
    context.remove_topic("a")
    assert list(context.partitions()) == [B0]
    assert not context.has_partition(A0)
    assert context.assignment(A0).replicas == ()
    for left in (
        context.leadership,
        context.partition_states,
        context.replica_states,
        context.partitions_being_reassigned,
        context.topics_being_reassigned,
        context.topics_to_delete,
        context.topics_with_deletion_started,
        context.topics_ineligible_for_deletion,
        context.topic_ids,
        context.topic_names,
        context.offline_directories[1],
    ):
        assert not left
    assert context.partitions_on(1) == []


def offline_leaders(context: ControllerContext) -> list[TopicPartition]:
    return [each for each in context.leadership if context.has_offline_leader(each)]


def test_offline_leaders(context: ControllerContext) -> None:
    del context.brokers[3]
    assert offline_leaders(context) == [A1]
    context.topics_to_delete["a"] = None
    assert offline_leaders(context) == []
    context.begin_reassignment(A0)  # then its partitions still need leaders
    assert offline_leaders(context) == [A1]


def test_topics_with_reassignments(context: ControllerContext) -> None:
    for partition in (A0, A1, A0):
        context.begin_reassignment(partition)
    context.end_reassignment(A0)
    context.end_reassignment(A0)
    assert list(context.topics_being_reassigned) == ["a"]
    context.end_reassignment(A1)
    assert not context.topics_being_reassigned


def test_leaderships_of_a_broker(context: ControllerContext) -> None:
    assert context.partitions_led_by(1) == [A0]
    assert context.partitions_led_by(3) == [A1]
    context.set_assignment(A1, ReplicaAssignment((3,)))  # no other replica could lead it
    assert context.partitions_led_by(3) == []


def test_epochs_of_stop_replica(context: ControllerContext) -> None:
    assert context.stop_replica_epoch(A0) == 0
    assert context.stop_replica_epoch(B0) == -1
    context.topics_to_delete["a"] = None
    assert context.stop_replica_epoch(A0) == -2


def test_numbers(context: ControllerContext) -> None:
    imbalanced = [each for each in context.leadership if context.is_imbalanced(each)]
    assert len(imbalanced) == 1
    context.set_assignment(A1, ReplicaAssignment((2, 3), adding=(2,)))
    assert context.is_imbalanced(A1)  # 2 is not in sync yet
    context.leadership[A1] = LeaderAndIsr(3, 0, (3, 2))
    assert not context.is_imbalanced(A1)
    context.partition_states.update({A0: PartitionState.OFFLINE, B0: PartitionState.OFFLINE})
    assert context.is_offline(A0)
    assert context.is_offline(B0)
    context.topics_with_deletion_started.add("b")
    assert not context.is_offline(B0)


def test_reset_is_a_fresh_start(context: ControllerContext) -> None:
    context.epoch = 5
    context.reset()
    assert vars(context) == vars(ControllerContext())


async def test_numbers_of_a_troubled_cluster(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2), (2, 3))
    await cluster.create_topic("alone", (2,))
    await cluster.create_topic("going", (1, 2))
    await cluster.create_topic("moving", (1,))
    await cluster.controller.alter_partition_reassignments({TopicPartition("moving", 0): (3,)})
    await cluster.remove_broker(2)
    cluster.create_node(znodes.delete_topic_path("going"))
    await settle()
    assert run_at_once(cluster.controller.gauge_steps()) == ControllerGauges(
        active_controller_count=1,
        active_broker_count=2,
        offline_partitions_count=1,  # alone
        preferred_replica_imbalance_count=3,  # t-1 and alone; moving is counted until 3 is in sync
        global_topic_count=4,
        global_partition_count=5,
        topics_to_delete_count=1,
        replicas_to_delete_count=1,
        topics_ineligible_to_delete_count=1,
        replicas_ineligible_to_delete_count=0,  # waits as offline for its broker
        reassigning_partitions_count=1,
    )


async def test_unclean_elections_are_counted(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3), unclean_leader_election_enable="true")
    await cluster.change_isr("t", (2,))
    assert cluster.controller.unclean_elections_total == 0
    await cluster.remove_broker(2)
    assert cluster.controller.unclean_elections_total == 1


async def test_broker_that_is_not_the_controller_counts_nothing(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.controller._lifecycle._resign(2)
    assert run_at_once(cluster.controller.gauge_steps()) == ControllerGauges()
