"""Moving partitions, step by step, by API and by znode."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.controller.changes.isr_changes import refresh_leadership
from ottla.controller.changes.reassignment import Failures, Moves
from ottla.controller.errors import StateChangeFailed
from ottla.controller.model import PartitionReplica, ReplicaAssignment
from ottla.controller.settings import ControllerSettings
from ottla.controller.state.context import ReplicaState
from ottla.controller.tree import znodes
from ottla.controller.tree.store import ConnectionLost, StoreError
from ottla.controller.tree.znodes_admin import decode_reassignment, encode_reassignment
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from ottla.protocol.messages.stop_replica import StopReplicaRequest
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def move(cluster: Cluster, *targets: int, partition: TopicPartition = T0) -> int:
    rows = await cluster.controller.alter_partition_reassignments({partition: targets})
    await settle()
    return rows[partition].code


async def cancel(cluster: Cluster, partition: TopicPartition = T0) -> int:
    rows = await cluster.controller.alter_partition_reassignments({partition: None})
    await settle()
    return rows[partition].code


def assignment(cluster: Cluster, index: int = 0) -> ReplicaAssignment:
    return cluster.topic("t").assignments[index]


async def four_brokers() -> Cluster:
    cluster = Cluster((1, 2, 3, 4))
    await cluster.start()
    return cluster


async def test_every_step_of_a_move() -> None:
    cluster = await four_brokers()
    await cluster.create_topic("t", (1, 2))
    cluster.sent.clear()
    assert await move(cluster, 3, 4) == 0
    # U: the znode has the targets; A: LeaderAndIsr to all replicas, the added ones as new
    assert assignment(cluster) == ReplicaAssignment((3, 4, 1, 2), (3, 4), (1, 2))
    assert cluster.state("t")._replace(controller_epoch=0) == cluster.state("t")._replace(
        leader=1, isr=(1, 2), leader_epoch=1, controller_epoch=0
    )
    for broker_id in (1, 2, 3, 4):
        states = [
            state
            for request in cluster.requests(LeaderAndIsrRequest, broker_id)
            for state in request.topic_states[0].partition_states
        ]
        assert states, f"broker {broker_id} got no LeaderAndIsr"
        assert all(state.is_new == (broker_id in (3, 4)) for state in states)
        assert states[-1].adding_replicas == [3, 4]
        assert states[-1].removing_replicas == [1, 2]
    moving = await cluster.controller.list_partition_reassignments()
    assert moving == {T0: assignment(cluster)}
    # one of two has caught up: not yet
    await cluster.change_isr("t", (1, 2, 3))
    assert assignment(cluster).is_being_reassigned
    # B: both have
    await cluster.change_isr("t", (1, 2, 3, 4))
    assert assignment(cluster) == ReplicaAssignment((3, 4))
    state = cluster.state("t")
    assert (state.leader, set(state.isr)) == (3, {3, 4})
    for broker_id in (1, 2):
        assert T0 not in cluster.brokers[broker_id].hosted
        stops = cluster.requests(StopReplicaRequest, broker_id)
        assert stops[-1].topic_states[0].partition_states[0].delete_partition
    for broker in cluster.brokers.values():
        assert broker.metadata[T0].replicas == (3, 4)
        assert broker.metadata[T0].leader == 3
    assert await cluster.controller.list_partition_reassignments([T0]) == {}
    assert PartitionReplica(T0, 1) not in cluster.controller.context.replica_states
    await cluster.stop()


async def test_leader_that_stays_keeps_leading(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await move(cluster, 3, 1)
    await cluster.change_isr("t", (1, 2, 3))
    assert assignment(cluster) == ReplicaAssignment((3, 1))
    assert cluster.leader("t") == 1
    assert set(cluster.state("t").isr) == {1, 3}


async def test_other_order_needs_no_copying(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    assert await move(cluster, 3, 1, 2) == 0
    assert assignment(cluster) == ReplicaAssignment((3, 1, 2))
    assert cluster.leader("t") == 1  # the preferred leader is another election
    assert not cluster.controller.context.partitions_being_reassigned


async def test_fewer_and_more_replicas(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    await move(cluster, 2)
    assert assignment(cluster) == ReplicaAssignment((2,))
    assert cluster.leader("t") == 2
    await move(cluster, 2, 1)
    await cluster.change_isr("t", (2, 1))
    assert assignment(cluster) == ReplicaAssignment((2, 1))


async def test_cancelled_move_goes_back(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await move(cluster, 3, 1)
    assert await cancel(cluster) == 0
    assert set(assignment(cluster).replicas) == {1, 2}
    assert not assignment(cluster).is_being_reassigned
    assert T0 not in cluster.brokers[3].hosted
    assert cluster.leader("t") == 1
    assert await cancel(cluster) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_replaced_move_drops_what_is_not_wanted_any_more() -> None:
    cluster = await four_brokers()
    await cluster.create_topic("t", (1, 2))
    await move(cluster, 3)
    await move(cluster, 4)
    assert assignment(cluster) == ReplicaAssignment((4, 1, 2), (4,), (1, 2))
    assert T0 not in cluster.brokers[3].hosted
    await cluster.change_isr("t", (1, 2, 4))
    assert assignment(cluster) == ReplicaAssignment((4,))
    await cluster.stop()


async def test_cancelling_never_drops_the_only_replica_in_sync() -> None:
    cluster = await four_brokers()
    await cluster.create_topic("t", (2,))
    await move(cluster, 3, 4)
    await cluster.change_isr("t", (2, 3))
    await cluster.remove_broker(2)
    assert cluster.state("t").leader == 3
    assert cluster.state("t").isr == (3,)
    before = assignment(cluster)
    assert await cancel(cluster) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await move(cluster, 2) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert assignment(cluster) == before
    assert cluster.leader("t") == 3
    await cluster.stop()


async def test_leader_that_is_dropped_by_a_replacement_is_replaced_first() -> None:
    cluster = await four_brokers()
    await cluster.create_topic("t", (1, 2))
    await move(cluster, 3, 4)
    await cluster.change_isr("t", (1, 2, 3))
    await cluster.controller.controlled_shutdown(1, -1)
    await cluster.controller.controlled_shutdown(2, -1)
    assert cluster.leader("t") == 3
    cluster.controller.context.shutting_down.clear()
    await cluster.change_isr("t", (3, 1))
    assert await cancel(cluster) == 0
    assert cluster.leader("t") == 1
    assert T0 not in cluster.brokers[3].hosted
    await cluster.stop()


@pytest.mark.parametrize(
    ("partition", "targets", "code"),
    [
        (TopicPartition("nothing", 0), (1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("t", 9), (1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (T0, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (2, 2), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (1, -1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_refusals(
    cluster: Cluster, partition: TopicPartition, targets: tuple[int, ...], code: int
) -> None:
    await cluster.create_topic("t", (1, 2))
    before = dict(cluster.tree.nodes)
    assert await move(cluster, *targets, partition=partition) == code
    assert cluster.tree.nodes == before


async def test_target_that_is_down_is_fine_if_it_has_a_replica_already(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await cluster.remove_broker(2)
    assert await move(cluster, 2, 1) == 0
    assert await move(cluster, 2) == 0  # waits for it
    await cluster.add_broker(2)
    await cluster.change_isr("t", (1, 2))
    assert assignment(cluster) == ReplicaAssignment((2,))
    assert cluster.leader("t") == 2


async def test_target_that_dies_on_the_way_is_waited_for(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    await move(cluster, 3)
    await cluster.remove_broker(3)
    assert assignment(cluster).is_being_reassigned
    cluster.sent.clear()
    await cluster.add_broker(3)
    assert cluster.requests(LeaderAndIsrRequest, 3)
    await cluster.change_isr("t", (1, 3))
    assert assignment(cluster) == ReplicaAssignment((3,))


async def test_move_waits_while_no_target_may_lead(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    await move(cluster, 3)
    request = cluster.isr_request("t", (1, 3))
    cluster.brokers[3].lost_directory.add(T0)
    cluster.controller.context.offline_directories[3] = {T0}
    await cluster.controller.alter_partition(request, 3)
    await settle()
    assert assignment(cluster).is_being_reassigned
    assert cluster.leader("t") == 1
    await cluster.remove_broker(3)
    await cluster.add_broker(3)
    await cluster.change_isr("t", (1, 3))
    assert assignment(cluster) == ReplicaAssignment((3,))


async def test_replica_to_remove_is_not_forgotten_when_the_state_cannot_be_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    apply = cluster.tree.apply

    def refuses(session_id: int, ops: Any) -> Any:
        if any(op.path == znodes.state_path(T0) for op in ops):
            raise StoreError(znodes.state_path(T0), "refused")
        return apply(session_id, ops)

    monkeypatch.setattr(cluster.tree, "apply", refuses)
    assert await move(cluster, 1, 2) == ErrorCode.UNKNOWN_SERVER_ERROR
    monkeypatch.undo()
    moving = ReplicaAssignment((1, 2, 3), removing=(3,))
    assert await cluster.controller.list_partition_reassignments() == {T0: moving}
    await cluster.change_isr("t", (1, 2))
    assert assignment(cluster) == ReplicaAssignment((1, 2))
    assert T0 not in cluster.brokers[3].hosted


async def test_replica_of_a_replaced_target_is_not_forgotten_when_the_state_cannot_be_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader may remove it from the ISR before the next target is complete."""
    await cluster.create_topic("t", (1, 2))
    await move(cluster, 1, 2, 3)
    assert T0 in cluster.brokers[3].hosted
    grown = cluster.state("t")._replace(isr=(1, 2, 3))
    cluster.set_node(znodes.state_path(T0), znodes.encode_state(grown))
    components = cluster.controller._lifecycle
    await refresh_leadership(components.context, components.writer, [T0])
    apply = cluster.tree.apply

    def refuses(session_id: int, ops: Any) -> Any:
        if any(op.path == znodes.state_path(T0) for op in ops):
            raise StoreError(znodes.state_path(T0), "refused")
        return apply(session_id, ops)

    with monkeypatch.context() as patch:
        patch.setattr(cluster.tree, "apply", refuses)
        assert await move(cluster, 1, 2) == ErrorCode.UNKNOWN_SERVER_ERROR
    await cluster.change_isr("t", (1, 2))
    assert assignment(cluster) == ReplicaAssignment((1, 2))
    assert not cluster.controller.context.partitions_being_reassigned
    assert T0 not in cluster.brokers[3].hosted


@pytest.mark.parametrize("then", [(4,), None], ids=["another target", "cancelled"])
@pytest.mark.parametrize("leads", [False, True])
async def test_controller_that_dies_after_it_wrote_a_replacing_target(
    then: tuple[int, ...] | None, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one knows of the replica of the replaced target by the znode only."""
    cluster = await four_brokers()
    await cluster.create_topic("t", (1, 2))
    await move(cluster, 3, 4)
    await cluster.change_isr("t", (1, 2, 3))
    if leads:
        state = cluster.state("t")._replace(leader=3, leader_epoch=9)
        cluster.set_node(znodes.state_path(T0), znodes.encode_state(state))
        cluster.delete_node(znodes.CONTROLLER)
        await settle()
        assert cluster.leader("t") == 3
    epoch, apply = cluster.controller.epoch, cluster.tree.apply

    def dies(session_id: int, ops: Any) -> Any:
        done = apply(session_id, ops)
        if any(op.path == znodes.topic_path("t") for op in ops):
            monkeypatch.undo()
            cluster.delete_node(znodes.CONTROLLER)
            raise ConnectionLost("", "the response is lost")
        return done

    monkeypatch.setattr(cluster.tree, "apply", dies)
    with pytest.raises(KafkaError):
        await cluster.controller.alter_partition_reassignments({T0: then})
    await settle()
    assert cluster.controller.epoch == epoch + 1
    assert assignment(cluster).adding == (() if then is None else then)
    assert T0 not in cluster.brokers[3].hosted
    assert cluster.leader("t") == 1
    assert 3 not in cluster.state("t").isr
    if then is not None:
        await cluster.change_isr("t", (1, 2, 4))
    assert not assignment(cluster).is_being_reassigned
    assert not cluster.controller.context.partitions_being_reassigned
    await cluster.stop()


async def test_resumed_move_that_fails_does_not_hold_the_controller(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.create_topic("t", (1,), (1,))
    await move(cluster, 3)
    await move(cluster, 2, partition=T1)
    reassignment = cluster.controller._lifecycle.reassignment
    bump = reassignment._bump_leader_epochs

    async def fails(moves: Moves, failures: Failures) -> None:
        if T0 in moves:
            failures[T0] = StateChangeFailed("its state is gone")
        await bump({each: moves[each] for each in moves if each != T0}, failures)

    with monkeypatch.context() as patch:
        patch.setattr(reassignment, "_bump_leader_epochs", fails)
        cluster.delete_node(znodes.CONTROLLER)
        await settle()
    assert cluster.controller.epoch == 2
    assert cluster.controller.is_active
    assert f"Failed to resume reassignment of partition {T0}" in caplog.text
    for target, partition in ((3, T0), (2, T1)):
        await cluster.change_isr("t", (1, target), partition[1])
        assert assignment(cluster, partition[1]) == ReplicaAssignment((target,))


async def test_partition_that_never_had_a_leader_begins_at_its_targets(cluster: Cluster) -> None:
    await cluster.remove_broker(3)
    await cluster.create_topic("t", (3,))
    assert not cluster.exists(znodes.state_path(T0))
    assert await move(cluster, 2) == 0
    assert assignment(cluster) == ReplicaAssignment((2,))
    assert cluster.leader("t") == 2


async def test_new_controller_continues_with_the_move(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    await move(cluster, 3)
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert cluster.controller.epoch == 2
    assert list(cluster.controller.context.partitions_being_reassigned) == [T0]
    await cluster.change_isr("t", (1, 3))
    assert assignment(cluster) == ReplicaAssignment((3,))


async def test_controller_that_died_before_the_last_write(cluster: Cluster) -> None:
    """All is done but the tree still says that the partition moves."""
    await cluster.create_topic("t", (1,))
    await move(cluster, 3)
    moving = cluster.tree.nodes[znodes.topic_path("t")].data
    await cluster.change_isr("t", (1, 3))
    cluster.set_node(znodes.topic_path("t"), moving)
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert assignment(cluster) == ReplicaAssignment((3,))
    assert cluster.state("t").isr == (3,)


async def test_partitions_added_meanwhile_stay(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    await move(cluster, 3)
    state = cluster.topic("t")
    grown = state._replace(assignments={**state.assignments, 1: ReplicaAssignment((2,))})
    cluster.set_node(znodes.topic_path("t"), znodes.encode_topic(grown))
    await cluster.change_isr("t", (1, 3))
    assert assignment(cluster, 0) == ReplicaAssignment((3,))
    assert assignment(cluster, 1) == ReplicaAssignment((2,))


# The znode


def ask(cluster: Cluster, **targets: tuple[int, ...]) -> None:
    payload = encode_reassignment({TopicPartition(t, 0): ids for t, ids in targets.items()})
    cluster.create_node(znodes.REASSIGN_PARTITIONS, payload)


async def test_move_by_znode(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    await cluster.create_topic("u", (1,))
    ask(cluster, t=(3,), u=(2,))
    await settle()
    assert assignment(cluster).is_being_reassigned
    await cluster.change_isr("t", (1, 3))
    left = decode_reassignment(cluster.tree.nodes[znodes.REASSIGN_PARTITIONS].data)
    assert left == {TopicPartition("u", 0): (2,)}
    await cluster.change_isr("u", (1, 2))
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS)
    ask(cluster, t=(2,))  # and the next one is heard
    await settle()
    assert assignment(cluster).target_replicas == (2,)


async def test_completed_moves_of_the_znode_leave_the_others_alone(cluster: Cluster) -> None:
    for topic in "tuv":
        await cluster.create_topic(topic, (1,))
    ask(cluster, t=(3,), u=(2,), v=(2,))
    await settle()
    before = cluster.state("v")
    await cluster.change_isr("t", (1, 3))
    await cluster.change_isr("u", (1, 2))
    assert cluster.state("v") == before
    await cluster.change_isr("v", (1, 2))
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS)


async def test_what_cannot_move_leaves_the_znode(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    ask(cluster, t=(3,), nothing=(1,))
    await settle()
    left = decode_reassignment(cluster.tree.nodes[znodes.REASSIGN_PARTITIONS].data)
    assert left == {T0: (3,)}


@pytest.mark.parametrize("data", [b"", b"{", b'{"version":1,"partitions":"x"}'])
async def test_znode_that_cannot_be_read_is_deleted(cluster: Cluster, data: bytes) -> None:
    cluster.create_node(znodes.REASSIGN_PARTITIONS, data)
    await settle()
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS)


async def test_api_takes_a_partition_out_of_the_znode(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    ask(cluster, t=(3,))
    await settle()
    await move(cluster, 2)
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS)
    assert assignment(cluster).target_replicas == (2,)


async def test_new_controller_reads_the_znode(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    await cluster.remove_broker(3)
    ask(cluster, t=(3,))
    await settle()
    assert assignment(cluster).target_replicas == (3,)  # unlike the API it may be down
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    await cluster.add_broker(3)
    await cluster.change_isr("t", (1, 3))
    assert assignment(cluster) == ReplicaAssignment((3,))
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS)


async def test_topic_on_its_way_out_does_not_move(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 3))
    await cluster.remove_broker(3)
    cluster.create_node(znodes.delete_topic_path("t"))
    await settle()
    assert await move(cluster, 2) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ask(cluster, t=(2,))
    await settle()
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS)


async def test_isr_changes_in_the_tree_finish_a_move_under_an_old_protocol() -> None:
    cluster = Cluster(settings=ControllerSettings(inter_broker_protocol_version="2.6"))
    cluster.channels.silent = {1, 2, 3}  # the doubles speak newer versions only
    await cluster.start()
    await cluster.controller.alter_partition_reassignments({})
    cluster.create_node(znodes.topic_path("t"), b'{"version":1,"partitions":{"0":[1]}}')
    await settle()
    assert await move(cluster, 3) == 0
    state = cluster.state("t")._replace(isr=(1, 3))
    cluster.set_node(znodes.state_path(T0), znodes.encode_state(state))
    await settle()
    assert assignment(cluster) == ReplicaAssignment((3,))
    await cluster.stop()


async def test_replica_states_on_the_way(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    states = cluster.controller.context.replica_states
    await move(cluster, 3)
    assert states[PartitionReplica(T0, 3)] is ReplicaState.NEW
    await cluster.change_isr("t", (1, 3))
    assert states[PartitionReplica(T0, 3)] is ReplicaState.ONLINE


async def test_a_large_request_is_written_and_sent_in_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await four_brokers()
    monkeypatch.setattr("ottla.controller.changes.reassignment.PARTITIONS_PER_BATCH", 10)
    await cluster.create_topic("t", *[(1, 2)] * 30)
    cluster.sent.clear()
    node = cluster.tree.nodes[znodes.topic_path("t")]
    before = node.version
    partitions = [TopicPartition("t", index) for index in range(30)]
    rows = await cluster.controller.alter_partition_reassignments(dict.fromkeys(partitions, (1, 3)))
    await settle()
    assert list(rows) == partitions
    assert {row.code for row in rows.values()} == {0}
    assert node.version - before == 3
    for broker_id in (1, 2):
        assert len(cluster.requests(LeaderAndIsrRequest, broker_id)) == 3
    # The leader of all of them reports the ISRs: they complete in batches as well.
    cluster.sent.clear()
    before = node.version
    request = cluster.isr_request("t", (1, 2, 3))
    for index in range(1, 30):
        more = cluster.isr_request("t", (1, 2, 3), index)
        request.topics[0].partitions += more.topics[0].partitions
    response = await cluster.controller.alter_partition(request, 3)
    assert {row.error_code for row in response.topics[0].partitions} == {0}
    await settle()
    assert not cluster.controller.context.partitions_being_reassigned
    assert all(assignment(cluster, index) == ReplicaAssignment((1, 3)) for index in range(30))
    assert node.version - before == 3
    deletions = [
        stop
        for stop in cluster.requests(StopReplicaRequest, 2)
        if stop.topic_states[0].partition_states[0].delete_partition
    ]
    assert len(deletions) == 3
    await cluster.stop()


async def test_what_is_under_way_has_its_row_when_a_later_batch_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await four_brokers()
    monkeypatch.setattr("ottla.controller.changes.reassignment.PARTITIONS_PER_BATCH", 1)
    await cluster.create_topic("t", *[(1, 2)] * 4)
    alter, calls = cluster.controller._lifecycle.reassignment.alter, 0

    async def fails_at_the_third(targets: Any, **how: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ConnectionLost("", "lost")
        return await alter(targets, **how)

    monkeypatch.setattr(cluster.controller._lifecycle.reassignment, "alter", fails_at_the_third)
    partitions = [TopicPartition("t", index) for index in range(4)]
    rows = await cluster.controller.alter_partition_reassignments(dict.fromkeys(partitions, (1, 3)))
    assert [rows[each].code for each in partitions] == [0, 0, *[ErrorCode.REQUEST_TIMED_OUT] * 2]
    stored = znodes.decode_topic("t", cluster.tree.nodes[znodes.topic_path("t")].data).assignments
    assert [stored[index].is_being_reassigned for index in range(4)] == [True, True, False, False]
    await cluster.stop()


async def test_a_failed_broker_does_not_wait_for_a_large_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await four_brokers()
    monkeypatch.setattr("ottla.controller.changes.reassignment.PARTITIONS_PER_BATCH", 1)
    await cluster.create_topic("t", *[(1, 2)] * 10)
    await cluster.create_topic("u", (4, 3))
    call = asyncio.gather(
        cluster.controller.alter_partition_reassignments(
            {TopicPartition("t", index): (1, 3) for index in range(10)}
        )
    )
    while not cluster.controller.context.partitions_being_reassigned:  # noqa: ASYNC110 - turns
        await asyncio.sleep(0)
    await cluster.sessions.pop(4).close()
    while cluster.leader("u") != 3:  # noqa: ASYNC110 - turns
        await asyncio.sleep(0)
    moving = len(cluster.controller.context.partitions_being_reassigned)
    await call
    assert moving < 10
    assert len(cluster.controller.context.partitions_being_reassigned) == 10
    await cluster.stop()


async def test_a_partition_that_fails_does_not_hold_the_others_of_its_batch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("t", (1, 2), (1, 2), (1, 2))
    apply = cluster.tree.apply

    def refuses(session_id: int, ops: Any) -> Any:
        if any(op.path == znodes.state_path(T1) for op in ops):
            raise StoreError(znodes.state_path(T1), "refused")
        return apply(session_id, ops)

    targets = {TopicPartition("t", index): (1, 3) for index in range(3)}
    with monkeypatch.context() as patch:
        patch.setattr(cluster.tree, "apply", refuses)
        rows = await cluster.controller.alter_partition_reassignments(targets)
    assert [row.code for row in rows.values()] == [0, ErrorCode.UNKNOWN_SERVER_ERROR, 0]
    for index in (0, 2):
        await cluster.change_isr("t", (1, 2, 3), index)
        assert assignment(cluster, index) == ReplicaAssignment((1, 3))
    assert list(cluster.controller.context.partitions_being_reassigned) == [T1]


async def test_only_partitions_that_do_not_fit_into_the_znode_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("t", (1, 2), (1, 2), (1, 2))
    whole = len(cluster.tree.nodes[znodes.topic_path("t")].data)
    monkeypatch.setattr("ottla.controller.changes.reassignment.MAX_TOPIC_BYTES", whole + 32)
    rows = await cluster.controller.alter_partition_reassignments(
        {TopicPartition("t", index): (1, 3) for index in range(3)}
    )
    refused = ErrorCode.UNKNOWN_SERVER_ERROR
    assert [row.code for row in rows.values()] == [0, refused, refused]
    assert [assignment(cluster, index).is_being_reassigned for index in range(3)] == [
        True,
        False,
        False,
    ]


async def test_a_znode_that_asks_for_the_replicas_there_are_waits_for_one_that_can_lead() -> None:
    """It was started again and again, and no controller came into office."""
    cluster = Cluster((1, 2, 3))
    await cluster.start()
    await cluster.create_topic("t", (3,))
    await cluster.remove_broker(3)
    reassignment = cluster.controller._lifecycle.reassignment
    targets = {TopicPartition("t", 0): (3,)}
    cluster.create_node(znodes.REASSIGN_PARTITIONS, encode_reassignment(targets))
    await settle()
    assert await reassignment.on_znode() == {}
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert cluster.controller.is_active
    await cluster.add_broker(3)
    await settle()
    assert not cluster.exists(znodes.REASSIGN_PARTITIONS)
    await cluster.stop()
