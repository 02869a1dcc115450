"""The partition state machine: which moves are allowed, what each does."""

from __future__ import annotations

import itertools

import pytest

from ottla.controller.errors import ControllerMoved, StateChangeFailed
from ottla.controller.model import LeaderAndIsr, ReplicaAssignment, TopicState
from ottla.controller.state.context import PartitionState
from ottla.controller.state.leader_selection import ElectionStrategy
from ottla.controller.state_machines.partitions import (
    VALID_PREVIOUS,
    PartitionStateMachine,
    _log_failed_elections,
)
from ottla.controller.tree import znodes
from ottla.controller.tree.store import BadVersion, SetOp, StoreError
from ottla.controller.tree.znodes_admin import encode_config
from ottla.protocol.listed import MAX_LISTED
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle

T0 = TopicPartition("t", 0)

ALLOWED = {
    (PartitionState.NON_EXISTENT, PartitionState.NEW),
    (PartitionState.NEW, PartitionState.ONLINE),
    (PartitionState.ONLINE, PartitionState.ONLINE),
    (PartitionState.OFFLINE, PartitionState.ONLINE),
    (PartitionState.NEW, PartitionState.OFFLINE),
    (PartitionState.ONLINE, PartitionState.OFFLINE),
    (PartitionState.OFFLINE, PartitionState.OFFLINE),
    (PartitionState.OFFLINE, PartitionState.NON_EXISTENT),
}


def machine(cluster: Cluster) -> PartitionStateMachine:
    return cluster.controller._lifecycle.partitions


@pytest.mark.parametrize(
    ("before", "after"), list(itertools.product(PartitionState, PartitionState))
)
async def test_only_the_moves_of_the_table_are_made(
    cluster: Cluster, before: PartitionState, after: PartitionState
) -> None:
    assert (before in VALID_PREVIOUS[after]) == ((before, after) in ALLOWED)
    await cluster.create_topic("t", (1, 2))
    if before is PartitionState.NEW:  # as a partition that has no state node yet
        cluster.delete_node(znodes.state_path(T0))
        del cluster.controller.context.leadership[T0]
    states = cluster.controller.context.partition_states
    states[T0] = before
    await machine(cluster).handle_state_changes([T0], after)
    assert states[T0] is (after if (before, after) in ALLOWED else before)


async def test_new_partition_gets_its_live_replicas(cluster: Cluster) -> None:
    await cluster.remove_broker(2)
    cluster.sent.clear()
    await cluster.create_topic("t", (2, 3, 1))
    assert cluster.state("t") == LeaderAndIsr(3, 0, (3, 1), controller_epoch=1)
    notified = {to for to, request in cluster.sent if isinstance(request, LeaderAndIsrRequest)}
    assert notified == {3, 1}
    state = cluster.requests(LeaderAndIsrRequest, 3)[0].topic_states[0].partition_states[0]
    assert state.is_new
    assert state.replicas == [2, 3, 1]


async def test_partition_without_live_replicas_stays_new(cluster: Cluster) -> None:
    await cluster.remove_broker(2)
    row = await cluster.create_topic("t", (2,))
    assert row.error.code != 0
    assert not cluster.exists(znodes.state_path(T0))
    assert cluster.controller.context.partition_states[T0] is PartitionState.NEW
    await cluster.add_broker(2)
    assert cluster.leader("t") == 2


async def test_half_made_partition_is_completed(cluster: Cluster) -> None:
    """Its node is there, its state is not: a controller died in between."""
    await cluster.remove_broker(2)
    await cluster.create_topic("t", (2,))
    cluster.create_node(znodes.partitions_path("t"))
    cluster.create_node(znodes.partition_path(T0))
    await cluster.add_broker(2)
    assert cluster.leader("t") == 2


async def test_election_reads_what_is_written_not_what_is_remembered(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    state = cluster.state("t")._replace(isr=(3, 1))  # a leader of an old protocol shrank its ISR
    cluster.set_node(znodes.state_path(T0), znodes.encode_state(state))
    outcome = await machine(cluster).handle_state_changes(
        [T0], PartitionState.ONLINE, ElectionStrategy.PREFERRED
    )
    assert outcome[T0] == cluster.state("t")
    assert cluster.state("t").isr == (3, 1)
    assert cluster.state("t").leader_epoch == 1


async def test_state_that_changes_meanwhile_is_read_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    writer = cluster.controller._lifecycle.writer
    original = writer.update_states
    interfered = 0

    async def interfere(states: dict[TopicPartition, LeaderAndIsr]) -> object:
        nonlocal interfered
        if interfered < 2:
            interfered += 1
            cluster.set_node(
                znodes.state_path(T0), znodes.encode_state(cluster.state("t")._replace(isr=(1,)))
            )
        return await original(states)

    monkeypatch.setattr(writer, "update_states", interfere)
    outcome = await machine(cluster).handle_state_changes(
        [T0], PartitionState.ONLINE, ElectionStrategy.PREFERRED
    )
    assert isinstance(outcome[T0], LeaderAndIsr)
    assert cluster.state("t").isr == (1,)
    assert cluster.state("t").partition_epoch == 3


async def test_state_that_never_rests_is_given_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("t", (1, 2, 3))

    async def refuse(states: dict[TopicPartition, LeaderAndIsr]) -> object:
        return {}, list(states)

    monkeypatch.setattr(cluster.controller._lifecycle.writer, "update_states", refuse)
    outcome = await machine(cluster).handle_state_changes(
        [T0], PartitionState.ONLINE, ElectionStrategy.PREFERRED
    )
    assert isinstance(outcome[T0], StateChangeFailed)


async def test_state_of_a_later_controller_is_left_alone(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    later = cluster.state("t")._replace(controller_epoch=9)
    cluster.set_node(znodes.state_path(T0), znodes.encode_state(later))
    outcome = await machine(cluster).handle_state_changes(
        [T0], PartitionState.ONLINE, ElectionStrategy.PREFERRED
    )
    assert isinstance(outcome[T0], StateChangeFailed)
    assert "epoch 9" in str(outcome[T0])


@pytest.mark.parametrize("data", [None, b"broken"])
async def test_missing_or_broken_state(cluster: Cluster, data: bytes | None) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    if data is None:
        cluster.delete_node(znodes.state_path(T0))
    else:
        cluster.set_node(znodes.state_path(T0), data)
    outcome = await machine(cluster).handle_state_changes(
        [T0], PartitionState.ONLINE, ElectionStrategy.PREFERRED
    )
    assert isinstance(outcome[T0], StateChangeFailed)


async def test_fenced_controller_elects_no_leader(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 1))
    cluster.write(SetOp(znodes.CONTROLLER_EPOCH, b"2"))
    before = cluster.state("t")
    with pytest.raises(ControllerMoved):
        await machine(cluster).handle_state_changes(
            [T0], PartitionState.ONLINE, ElectionStrategy.PREFERRED
        )
    assert cluster.state("t") == before


async def test_error_of_one_partition_does_not_stop_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("t", (1, 2), (1, 2))
    writer = cluster.controller._lifecycle.writer
    original = writer.multi_many

    async def fail_first(batches: list[list[SetOp]]) -> list[object]:
        responses: list[object] = list(await original(batches))
        responses[0] = StoreError("x", "a broken node")
        return responses

    monkeypatch.setattr(writer, "multi_many", fail_first)
    partitions = [T0, TopicPartition("t", 1)]
    outcome = await machine(cluster).handle_state_changes(
        partitions, PartitionState.ONLINE, ElectionStrategy.PREFERRED
    )
    assert isinstance(outcome[T0], StoreError)
    assert not isinstance(outcome[T0], BadVersion)
    assert isinstance(outcome[partitions[1]], LeaderAndIsr)


@pytest.mark.parametrize("value", ["true", " True "])
async def test_unclean_election_only_where_the_topic_allows_it(
    cluster: Cluster, value: str
) -> None:
    await cluster.create_topic("clean", (2, 3))
    await cluster.create_topic("unclean", (2, 3), unclean_leader_election_enable=value)
    for topic in ("clean", "unclean"):
        await cluster.change_isr(topic, (2,))
    await cluster.remove_broker(2)
    assert cluster.state("clean").leader == -1
    assert cluster.state("clean").isr == (2,)
    unclean = cluster.state("unclean")
    assert (unclean.leader, unclean.isr, unclean.recovery_state) == (3, (3,), 1)
    await cluster.add_broker(2)
    assert cluster.leader("clean") == 2


async def restart_without_controller(
    cluster: Cluster, *broker_ids: int, unclean_shutdown: bool = True
) -> None:
    """Brokers restart while there is no controller; then broker 1 is elected again."""
    cluster.delete_node(znodes.CONTROLLER)
    cluster.create_node(znodes.CONTROLLER, znodes.encode_controller(9, 0))
    await settle()
    assert not cluster.controller.is_active
    for broker_id in broker_ids:
        await cluster.remove_broker(broker_id)
        await cluster.add_broker(broker_id, unclean_shutdown=unclean_shutdown)
    cluster.sent.clear()
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert cluster.controller.is_active


async def test_new_controller_elects_a_replica_that_survived(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3), (3, 1), (1, 2), (3, 2))
    await cluster.create_topic("single", (2,))
    await restart_without_controller(cluster, 2)
    after = [cluster.state("t", index) for index in range(4)]
    assert [(each.leader, each.isr, each.leader_epoch) for each in after] == [
        (3, (3,), 1),
        (3, (3, 1), 0),
        (1, (1,), 1),
        (3, (3,), 1),
    ]
    assert cluster.state("single") == LeaderAndIsr(2, 0, (2,), controller_epoch=1)
    # No request names the broker as the leader of a partition that another one leads now.
    for request in cluster.requests(LeaderAndIsrRequest):
        for topic in request.topic_states:
            for state in topic.partition_states:
                assert state.leader == cluster.leader(topic.topic_name, state.partition_index)


async def test_new_controller_elects_the_last_leader_if_none_survived(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3), (3, 2))
    await restart_without_controller(cluster, 2, 3)
    for index, leader in ((0, 2), (1, 3)):
        state = cluster.state("t", index)
        assert (state.leader, state.isr, state.leader_epoch) == (leader, (leader,), 1)
        assert state.recovery_state == 0


async def test_new_controller_keeps_leaders_that_were_shut_down_cleanly(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    before = cluster.state("t")
    await restart_without_controller(cluster, 2, 3, unclean_shutdown=False)
    assert cluster.state("t") == before


async def test_isr_written_after_an_unclean_restart_is_kept(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    await restart_without_controller(cluster, 2)
    assert cluster.state("t").isr == (3,)
    await cluster.change_isr("t", (3, 2))
    before = cluster.state("t")
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert cluster.controller.is_active
    assert cluster.state("t") == before


async def test_new_controller_takes_the_states_from_the_tree(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await cluster.create_topic("u", (3,))
    await cluster.remove_broker(3)
    cluster.write(SetOp(znodes.CONTROLLER_EPOCH, b"5"))  # ours is over
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    states = cluster.controller.context.partition_states
    assert cluster.controller.epoch == 6
    assert states == {T0: PartitionState.ONLINE, TopicPartition("u", 0): PartitionState.OFFLINE}


async def test_new_controller_elects_the_leader_of_a_partition_without_one(
    cluster: Cluster,
) -> None:
    """The predecessor wrote no state, or did not handle that a broker is back."""
    await cluster.create_topic("t", (2, 3))
    await cluster.remove_broker(2)
    await cluster.remove_broker(3)
    assert cluster.leader("t") == -1
    cluster.delete_node(znodes.CONTROLLER)
    cluster.create_node(znodes.CONTROLLER, znodes.encode_controller(9, 0))
    await settle()
    topic = TopicState(b"u" * 16, {0: ReplicaAssignment((2, 1)), 1: ReplicaAssignment((1, 2))})
    cluster.create_node(znodes.topic_path("u"), znodes.encode_topic(topic))
    await cluster.add_broker(2)
    await cluster.add_broker(3)
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert cluster.controller.is_active
    assert cluster.leader("t") in cluster.state("t").isr
    assert [cluster.leader("u", index) for index in (0, 1)] == [2, 1]


async def test_election_after_unclean_restarts_is_sent(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    cluster.sent.clear()
    await machine(cluster).elect_after_unclean_restarts({})
    assert cluster.sent == []
    await machine(cluster).elect_after_unclean_restarts({T0: frozenset({2})})
    await settle()
    assert cluster.brokers[2].hosted[T0].leader == cluster.brokers[3].hosted[T0].leader == 3


async def test_election_for_one_topic(cluster: Cluster) -> None:
    """Its unclean.leader.election.enable has changed, and so has that of another one."""
    for topic in ("a", "b"):
        await cluster.create_topic(topic, (2, 3))
        await cluster.change_isr(topic, (2,))
    await cluster.remove_broker(2)
    for topic in ("a", "b"):
        properties = {"unclean.leader.election.enable": "true"}
        cluster.set_node(f"/config/topics/{topic}", encode_config(properties))
    assert machine(cluster).unclean_elections_total == 0
    await machine(cluster).trigger_online_partitions("a")
    assert [cluster.leader(topic) for topic in ("a", "b")] == [3, -1]
    assert machine(cluster).unclean_elections_total == 1
    cluster.controller.context.topics_to_delete["b"] = None
    await machine(cluster).trigger_online_partitions()
    assert cluster.leader("b") == -1, "it is going to be deleted"
    del cluster.controller.context.topics_to_delete["b"]
    outcomes = await machine(cluster).trigger_online_partitions()
    assert outcomes == {TopicPartition("b", 0): cluster.state("b")}
    assert machine(cluster).unclean_elections_total == 2


async def test_clean_election_is_not_counted_as_unclean(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    cluster.sent.clear()
    await cluster.remove_broker(2)
    assert cluster.leader("t") == 3
    assert machine(cluster).unclean_elections_total == 0
    (request, *_) = cluster.requests(LeaderAndIsrRequest, 3)
    assert not request.topic_states[0].partition_states[0].is_new


async def test_one_partition_that_cannot_be_created_does_not_stop_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.remove_broker(2)
    writer = cluster.controller._lifecycle.writer
    original = writer.create_states

    async def fail_one(states: dict[TopicPartition, LeaderAndIsr]) -> dict[TopicPartition, object]:
        results: dict[TopicPartition, object] = dict(await original(states))
        results[TopicPartition("t", 1)] = StoreError("x", "a broken node")
        return results

    monkeypatch.setattr(writer, "create_states", fail_one)
    await cluster.create_topic("t", (2,), (3,), (1,))
    states = cluster.controller.context.partition_states
    assert [states[TopicPartition("t", each)] for each in range(3)] == [
        PartitionState.NEW,  # no live replica
        PartitionState.NEW,
        PartitionState.ONLINE,
    ]


async def test_states_that_cannot_be_read_do_not_stop_the_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.create_topic("t", (1, 2), (1, 2), (1, 2), (1, 2))
    partitions = [TopicPartition("t", each) for each in range(4)]
    cluster.delete_node(znodes.state_path(partitions[0]))
    cluster.set_node(znodes.state_path(partitions[1]), b"broken")
    await cluster.change_isr("t", (1,), 2)
    context = cluster.controller.context
    context.offline_directories[1] = {partitions[2]}  # no replica in its ISR is online
    outcomes = await machine(cluster).handle_state_changes(
        partitions, PartitionState.ONLINE, ElectionStrategy.PREFERRED
    )
    failed = [isinstance(outcomes[each], StateChangeFailed) for each in partitions]
    assert failed == [True, True, True, False]
    assert "No eligible replica" in str(outcomes[partitions[2]])
    for index, partition in enumerate(partitions):
        line = f"Failed to elect leader for partition {partition} under strategy "
        assert (line in caplog.text) == (index < 3)


def test_failed_elections_of_thousands_are_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    failed = {TopicPartition("t", index): StateChangeFailed("no replica") for index in range(5000)}
    _log_failed_elections(failed, ElectionStrategy.OFFLINE)
    assert len(caplog.messages) == MAX_LISTED + 1
    assert f"for {5000 - MAX_LISTED} more partitions" in caplog.messages[-1]
    caplog.clear()
    some = dict(list(failed.items())[:MAX_LISTED])
    _log_failed_elections(some, ElectionStrategy.OFFLINE)
    assert len(caplog.messages) == MAX_LISTED
