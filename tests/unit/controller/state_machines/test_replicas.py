"""The replica state machine: which moves are allowed, what each does."""

from __future__ import annotations

import itertools

import pytest

from ottla.controller.model import PartitionReplica
from ottla.controller.state.context import ReplicaState
from ottla.controller.state_machines.replicas import VALID_PREVIOUS, ReplicaStateMachine
from ottla.controller.tree import znodes
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from ottla.protocol.messages.stop_replica import StopReplicaRequest
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle

T0 = TopicPartition("t", 0)
FOLLOWER = PartitionReplica(T0, 2)
LEADER = PartitionReplica(T0, 1)
S = ReplicaState

ALLOWED = {
    (S.NON_EXISTENT, S.NEW),
    (S.NEW, S.ONLINE),
    (S.ONLINE, S.ONLINE),
    (S.OFFLINE, S.ONLINE),
    (S.DELETION_INELIGIBLE, S.ONLINE),
    (S.NEW, S.OFFLINE),
    (S.ONLINE, S.OFFLINE),
    (S.OFFLINE, S.OFFLINE),
    (S.DELETION_INELIGIBLE, S.OFFLINE),
    (S.OFFLINE, S.DELETION_STARTED),
    (S.DELETION_STARTED, S.DELETION_SUCCESSFUL),
    (S.DELETION_STARTED, S.DELETION_INELIGIBLE),
    (S.OFFLINE, S.DELETION_INELIGIBLE),
    (S.DELETION_SUCCESSFUL, S.NON_EXISTENT),
}


def machine(cluster: Cluster) -> ReplicaStateMachine:
    return cluster.controller._lifecycle.replicas


@pytest.mark.parametrize(("before", "after"), list(itertools.product(S, S)))
async def test_only_the_moves_of_the_table_are_made(
    cluster: Cluster, before: ReplicaState, after: ReplicaState
) -> None:
    assert (before in VALID_PREVIOUS[after]) == ((before, after) in ALLOWED)
    await cluster.create_topic("t", (1, 2))
    states = cluster.controller.context.replica_states
    states[FOLLOWER] = before
    await machine(cluster).handle_state_changes([FOLLOWER], after)
    reached = states.get(FOLLOWER, S.NON_EXISTENT)
    assert reached is (after if (before, after) in ALLOWED else before)


async def test_new_replica_gets_the_flag_that_it_is_new(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.sent.clear()
    cluster.controller.context.replica_states.pop(FOLLOWER)
    await machine(cluster).handle_state_changes([FOLLOWER], S.NEW)
    request = cluster.requests(LeaderAndIsrRequest, 2)[0]
    assert request.topic_states[0].partition_states[0].is_new
    assert len(cluster.requests(UpdateMetadataRequest)) == 3


async def test_leader_cannot_be_new(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    states = cluster.controller.context.replica_states
    states[LEADER] = S.NON_EXISTENT
    await machine(cluster).handle_state_changes([LEADER], S.NEW)
    assert states[LEADER] is S.NON_EXISTENT


async def test_replica_that_comes_back_gets_its_orders(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.sent.clear()
    await machine(cluster).handle_state_changes([FOLLOWER], S.ONLINE)
    state = cluster.requests(LeaderAndIsrRequest, 2)[0].topic_states[0].partition_states[0]
    assert (state.leader, state.is_new) == (1, False)
    assert cluster.requests(LeaderAndIsrRequest, 1) == []


async def test_replica_outside_its_assignment_is_added(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    unassigned = PartitionReplica(T0, 3)
    cluster.controller.context.replica_states[unassigned] = S.NEW
    await machine(cluster).handle_state_changes([unassigned], S.ONLINE)
    assert cluster.controller.context.assignment(T0).replicas == (1, 2, 3)


async def test_offline_follower_leaves_the_isr(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    cluster.sent.clear()
    await machine(cluster).handle_state_changes([FOLLOWER], S.OFFLINE)
    state = cluster.state("t")
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1, 3), 1)
    stop = cluster.requests(StopReplicaRequest, 2)[0].topic_states[0].partition_states[0]
    assert not stop.delete_partition
    notified = {to for to, request in cluster.sent if isinstance(request, LeaderAndIsrRequest)}
    assert notified == {1, 3}


async def test_offline_leader_leaves_the_partition_without_one(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await machine(cluster).handle_state_changes([LEADER], S.OFFLINE)
    state = cluster.state("t")
    assert (state.leader, state.isr) == (-1, (2,))


async def test_last_replica_in_sync_stays_in_the_isr(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await cluster.change_isr("t", (1,))
    await machine(cluster).handle_state_changes([LEADER], S.OFFLINE)
    state = cluster.state("t")
    assert (state.leader, state.isr) == (-1, (1,))


async def test_replica_that_is_not_in_the_isr_writes_nothing(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await cluster.change_isr("t", (1,))
    before = cluster.state("t")
    await machine(cluster).handle_state_changes([FOLLOWER], S.OFFLINE)
    assert cluster.state("t") == before
    assert cluster.controller.context.replica_states[FOLLOWER] is S.OFFLINE


async def test_replica_whose_state_cannot_be_read_stays_as_it_is(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.set_node(znodes.state_path(T0), b"broken")
    await machine(cluster).handle_state_changes([FOLLOWER], S.OFFLINE)
    assert cluster.controller.context.replica_states[FOLLOWER] is S.ONLINE


async def test_deletion_orders_the_broker_to_delete(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await machine(cluster).handle_state_changes([FOLLOWER], S.OFFLINE)
    cluster.sent.clear()
    await machine(cluster).handle_state_changes([FOLLOWER], S.DELETION_STARTED)
    stop = cluster.requests(StopReplicaRequest, 2)[0].topic_states[0].partition_states[0]
    assert stop.delete_partition
    await machine(cluster).handle_state_changes([FOLLOWER], S.DELETION_SUCCESSFUL)
    await machine(cluster).handle_state_changes([FOLLOWER], S.NON_EXISTENT)
    assert cluster.controller.context.assignment(T0).replicas == (1,)


async def test_new_controller_looks_who_lives(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await cluster.remove_broker(2)
    context = cluster.controller.context
    context.replica_states.clear()
    cluster.sent.clear()
    await machine(cluster).startup()
    assert context.replica_states == {LEADER: S.ONLINE, FOLLOWER: S.OFFLINE}
    assert cluster.requests(LeaderAndIsrRequest, 1)
    assert not cluster.requests(LeaderAndIsrRequest, 2)


async def test_new_controller_sends_all_states_to_all_replicas(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2), (2, 3))
    cluster.sent.clear()
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    sent = {
        broker_id: sorted(
            state.partition_index
            for request in cluster.requests(LeaderAndIsrRequest, broker_id)
            for topic in request.topic_states
            for state in topic.partition_states
        )
        for broker_id in (1, 2, 3)
    }
    assert sent == {1: [0], 2: [0, 1], 3: [1]}


async def test_replica_that_cannot_change_does_not_stop_the_others(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2), (2, 1))
    states = cluster.controller.context.replica_states
    second = PartitionReplica(TopicPartition("t", 1), 1)
    for each in (LEADER, second):
        states[each] = S.NON_EXISTENT
    await machine(cluster).handle_state_changes([LEADER, second], S.NEW)
    assert (states[LEADER], states[second]) == (S.NON_EXISTENT, S.NEW)


async def test_state_that_is_missing_does_not_stop_the_others(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2), (1, 2))
    cluster.delete_node(znodes.state_path(T0))
    second = PartitionReplica(TopicPartition("t", 1), 2)
    cluster.sent.clear()
    await machine(cluster).handle_state_changes([FOLLOWER, second], S.OFFLINE)
    states = cluster.controller.context.replica_states
    assert (states[FOLLOWER], states[second]) == (S.ONLINE, S.OFFLINE)
    (request,) = cluster.requests(LeaderAndIsrRequest, 1)
    (state,) = request.topic_states[0].partition_states
    assert (state.partition_index, state.isr, state.is_new) == (1, [1], False)


async def test_offline_replica_of_a_topic_to_delete_is_only_announced(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.controller.context.topics_to_delete["t"] = None
    cluster.sent.clear()
    await machine(cluster).handle_state_changes([FOLLOWER], S.OFFLINE)
    assert cluster.requests(LeaderAndIsrRequest) == []
    assert cluster.controller.context.replica_states[FOLLOWER] is S.OFFLINE
    assert cluster.state("t").isr == (1,)


async def test_offline_replica_of_a_partition_without_leader(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    del cluster.controller.context.leadership[T0]
    cluster.sent.clear()
    await machine(cluster).handle_state_changes([FOLLOWER], S.OFFLINE)
    assert cluster.controller.context.replica_states[FOLLOWER] is S.OFFLINE
    assert cluster.state("t").isr == (1, 2), "no state was written"


async def test_missing_state_is_logged_unless_the_topic_is_deleted(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.delete_node(znodes.state_path(T0))
    cluster.controller.context.topics_to_delete["t"] = None
    await machine(cluster).handle_state_changes([FOLLOWER], S.OFFLINE)
    assert "has no state znode" not in caplog.text
    assert cluster.controller.context.replica_states[FOLLOWER] is S.OFFLINE
    del cluster.controller.context.topics_to_delete["t"]
    await machine(cluster).handle_state_changes([FOLLOWER], S.OFFLINE)
    assert "Partition t-0 has no state znode" in caplog.text


async def test_offline_replica_of_a_partition_without_state_is_announced(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await cluster.create_topic("u", (3, 1))
    del cluster.controller.context.leadership[T0]
    cluster.controller.context.topics_to_delete["t"] = None
    cluster.sent.clear()
    await machine(cluster).handle_state_changes([FOLLOWER], S.OFFLINE)
    assert {to for to, each in cluster.sent if isinstance(each, UpdateMetadataRequest)} == {1, 2, 3}
