"""Topic deletion, with everything that can come in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from ottla.controller.admin.topic_admin import NewTopic
from ottla.controller.changes import topic_deletion
from ottla.controller.lifecycle import RESEND_DELAY_MS, RETRY_DELAY_MS
from ottla.controller.model import PartitionReplica
from ottla.controller.settings import ControllerSettings
from ottla.controller.state import fenced_writes
from ottla.controller.state.context import ReplicaState
from ottla.controller.tree import znodes
from ottla.controller.tree.store import ConnectionLost, CreateOp, DeleteOp, Op, OpResult
from ottla.controller.tree.znodes_admin import decode_deleted_topics, encode_log_dir_event
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.stop_replica import StopReplicaRequest
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle

T0 = TopicPartition("t", 0)


def delete(cluster: Cluster, topic: str = "t") -> None:
    cluster.create_node(znodes.delete_topic_path(topic))


def announce_log_dirs(cluster: Cluster, broker_id: int) -> None:
    data = encode_log_dir_event(broker_id)
    cluster.write(CreateOp(znodes.LOG_DIR_EVENT_PREFIX, data, sequential=True))


async def test_deleted_topic_leaves_nothing(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2), (2, 3), retention_ms="5")
    await cluster.create_topic("other", (1, 2))
    delete(cluster)
    await settle()
    assert [path for path in cluster.tree.nodes if "/t" in path.replace("/topics", "")] == []
    assert "t" not in cluster.controller.context.assignments
    for broker in cluster.brokers.values():
        assert all(partition.topic == "other" for partition in broker.hosted)
        assert list(broker.metadata) == [TopicPartition("other", 0)]
    assert cluster.leader("other") == 1


async def test_brokers_stop_serving_before_they_delete(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.sent.clear()
    delete(cluster)
    await settle()
    to_follower = [request for to, request in cluster.sent if to == 2]
    names = [request.NAME for request in to_follower]
    assert names[0] == "UpdateMetadataRequest"
    stops = [request for request in to_follower if isinstance(request, StopReplicaRequest)]
    deletes = [stop.topic_states[0].partition_states[0].delete_partition for stop in stops]
    assert deletes == [False, True]


async def test_a_topic_with_many_partitions_is_deleted_in_turns(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("t", *[(1,)] * 20)
    batch = cluster.controller._lifecycle.batch
    add = batch.add_update_metadata
    added: list[int] = []

    def count(brokers: Iterable[int], partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        added.append(len(wanted))
        add(brokers, wanted)

    monkeypatch.setattr(batch, "add_update_metadata", count)
    delete(cluster)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))
    assert sum(added) >= 20
    assert max(added) == 1


async def test_highest_leader_epoch_is_noted_with_the_deletion(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    delete(cluster)
    await settle()
    _, epochs = decode_deleted_topics(cluster.tree.nodes[znodes.DELETED_TOPICS].data)
    assert list(epochs) == ["t"]
    assert epochs["t"] >= 0


async def test_highest_leader_epoch_is_noted_before_a_deletion_in_several_multis(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost before the last of them: no state znode is left for the next one."""
    monkeypatch.setattr(topic_deletion, "MAX_OPS_PER_MULTI", 3)
    monkeypatch.setattr(fenced_writes, "MAX_OPS_PER_MULTI", 3)
    await cluster.create_topic("t", (1,), (1,))
    for index in range(2):
        partition = TopicPartition("t", index)
        state = cluster.state("t", index)._replace(leader_epoch=7)
        cluster.set_node(znodes.state_path(partition), znodes.encode_state(state))
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    multi = cluster.store.multi
    lost: list[Op] = []

    async def lose_last(ops: Sequence[Op]) -> list[OpResult]:
        if DeleteOp(znodes.topic_path("t")) in ops and not lost:
            lost.extend(ops)
            raise ConnectionLost(znodes.topic_path("t"), "cut")
        return await multi(ops)

    monkeypatch.setattr(cluster.store, "multi", lose_last)
    delete(cluster)
    await settle()
    assert lost
    assert not cluster.exists(znodes.state_path(T0))
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))
    _, epochs = decode_deleted_topics(cluster.tree.nodes[znodes.DELETED_TOPICS].data)
    assert epochs["t"] >= 7


async def test_the_znodes_of_many_partitions_are_deleted_without_reading_each(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_deletion, "MAX_OPS_PER_MULTI", 10)
    monkeypatch.setattr(fenced_writes, "MAX_OPS_PER_MULTI", 10)
    await cluster.create_topic("t", *[(1,)] * 20)
    children = cluster.store.children
    read: list[str] = []

    async def count(path: str) -> list[str]:
        read.append(path)
        return await children(path)

    monkeypatch.setattr(cluster.store, "children", count)
    delete(cluster)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))
    below = [path for path in read if path.startswith(znodes.topic_path("t"))]
    assert below == [znodes.topic_path("t"), znodes.partitions_path("t")]


async def test_request_for_a_topic_that_is_not_there_is_dropped(cluster: Cluster) -> None:
    delete(cluster, "nothing")
    await settle()
    assert not cluster.exists(znodes.delete_topic_path("nothing"))


async def test_deletion_switched_off_drops_the_request() -> None:
    cluster = Cluster(settings=ControllerSettings(delete_topic_enable=False))
    await cluster.start()
    await cluster.create_topic("t", (1,))
    delete(cluster)
    await settle()
    assert not cluster.exists(znodes.delete_topic_path("t"))
    assert cluster.leader("t") == 1
    await cluster.stop()


async def test_dead_broker_halts_the_deletion_until_it_is_back(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await cluster.remove_broker(2)
    delete(cluster)
    await settle()
    assert cluster.exists(znodes.topic_path("t"))
    states = cluster.controller.context.replica_states
    assert states[PartitionReplica(T0, 1)] is ReplicaState.DELETION_SUCCESSFUL
    assert states[PartitionReplica(T0, 2)] in (
        ReplicaState.DELETION_INELIGIBLE,
        ReplicaState.OFFLINE,
    )
    await cluster.add_broker(3)  # another one changes nothing
    assert cluster.exists(znodes.topic_path("t"))
    await cluster.add_broker(2)
    assert not cluster.exists(znodes.topic_path("t"))
    assert T0 not in cluster.brokers[2].hosted


async def test_broker_that_dies_in_the_middle(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.channels.silent = {2}
    delete(cluster)
    await settle()
    states = cluster.controller.context.replica_states
    assert states[PartitionReplica(T0, 2)] is ReplicaState.DELETION_STARTED
    await cluster.remove_broker(2)
    assert cluster.exists(znodes.topic_path("t"))
    cluster.channels.silent = set()
    await cluster.add_broker(2)
    assert not cluster.exists(znodes.topic_path("t"))


async def test_broker_that_restarts_quickly_in_the_middle(cluster: Cluster) -> None:
    """Its old session ends and its new one begins before the controller looks."""
    await cluster.create_topic("t", (1, 2))
    cluster.channels.silent = {2}
    delete(cluster)
    await settle()
    cluster.channels.silent = set()
    session = cluster.sessions[2]
    cluster.tree.end_session(session.session_id)
    await cluster.add_broker(2)
    assert not cluster.exists(znodes.topic_path("t"))


async def test_refused_deletion_is_retried_when_the_broker_starts(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.brokers[2].refuse_deletion = True
    delete(cluster)
    await settle()
    assert cluster.exists(znodes.topic_path("t"))
    assert "t" in cluster.controller.context.topics_ineligible_for_deletion
    await cluster.remove_broker(2)
    await cluster.add_broker(2)
    assert not cluster.exists(znodes.topic_path("t"))


async def test_refused_deletion_is_retried_after_a_while(cluster: Cluster) -> None:
    """The broker could not read in ZooKeeper whether the topic is being deleted, and continues."""
    await cluster.create_topic("t", (1, 2))
    cluster.brokers[2].refuse_deletion = True
    delete(cluster)
    await settle()
    for _ in range(2):
        cluster.sent.clear()
        await settle()
        assert cluster.requests(StopReplicaRequest) == []
        cluster.runtime.advance(RESEND_DELAY_MS)
        await settle()
        assert cluster.requests(StopReplicaRequest, 2) != []
    cluster.brokers[2].refuse_deletion = False
    cluster.runtime.advance(RESEND_DELAY_MS)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))


async def test_deletion_is_not_retried_while_the_directory_of_a_replica_is_offline(
    cluster: Cluster,
) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.brokers[2].refuse_deletion = True
    delete(cluster)
    await settle()
    cluster.controller.context.offline_directories[2] = {T0}
    cluster.runtime.advance(RESEND_DELAY_MS)
    await settle()
    cluster.sent.clear()
    cluster.runtime.advance(RESEND_DELAY_MS)
    await settle()
    assert cluster.sent == []
    assert "t" in cluster.controller.context.topics_ineligible_for_deletion


async def test_a_log_that_is_offline_since_the_start_waits_for_the_next_one(
    cluster: Cluster,
) -> None:
    """The broker hears of no LeaderAndIsr of a topic that is being deleted."""
    await cluster.create_topic("t", (1, 2))
    cluster.brokers[2].lost_directory.add(T0)
    delete(cluster)
    await settle()
    assert T0 in cluster.controller.context.offline_directories[2]
    cluster.sent.clear()
    cluster.runtime.advance(RESEND_DELAY_MS)
    await settle()
    assert cluster.sent == []
    await cluster.remove_broker(2)
    await cluster.add_broker(2)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))


@pytest.mark.parametrize("others", [(), (2,)])
async def test_replica_that_is_offline_is_deleted_if_its_broker_can(
    cluster: Cluster, others: tuple[int, ...]
) -> None:
    """As a log whose directory somebody has removed; not one on a failed disk."""
    await cluster.create_topic("t", (1, *others))
    cluster.brokers[1].gone_logs.add(T0)
    announce_log_dirs(cluster, 1)
    await settle()
    assert T0 in cluster.controller.context.offline_directories[1]
    delete(cluster)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))
    assert cluster.controller.context.offline_directories[1] == set()


@pytest.mark.parametrize("others", [(), (2,), (2, 3)])
async def test_replica_that_can_start_ends_the_deletion(
    cluster: Cluster, others: tuple[int, ...]
) -> None:
    """Also when it was the only one that was not deleted, so that no response came after it was
    found offline. The broker announces it as it does a failed log directory."""
    await cluster.create_topic("t", (1, *others))
    cluster.brokers[1].lost_directory.add(T0)
    announce_log_dirs(cluster, 1)
    await settle()
    delete(cluster)
    await settle()
    for broker_id in others[:1]:
        cluster.tree.end_session(cluster.sessions[broker_id].session_id)
        await cluster.add_broker(broker_id)
    announce_log_dirs(cluster, 1)
    await settle()
    assert cluster.exists(znodes.topic_path("t"))
    cluster.brokers[1].lost_directory.clear()
    announce_log_dirs(cluster, 1)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))
    assert T0 not in cluster.brokers[1].hosted


async def test_moving_partition_halts_the_deletion_until_it_is_there(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    await cluster.controller.alter_partition_reassignments({T0: (3,)})
    delete(cluster)
    await settle()
    assert cluster.exists(znodes.topic_path("t"))
    await cluster.remove_broker(2)  # the restart of a broker must not resume it
    await cluster.add_broker(2)
    assert cluster.exists(znodes.topic_path("t"))
    await cluster.change_isr("t", (1, 3))
    assert not cluster.exists(znodes.topic_path("t"))
    for broker in cluster.brokers.values():
        assert T0 not in broker.hosted


async def test_topic_marked_before_it_is_known_is_deleted_when_it_is(cluster: Cluster) -> None:
    topic = b'{"version":1,"partitions":{"0":[2]}}'
    cluster.write(CreateOp(znodes.topic_path("t"), topic), CreateOp(znodes.delete_topic_path("t")))
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))


async def test_new_controller_continues_with_the_deletion(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await cluster.create_topic("halted", (3,))
    await cluster.remove_broker(3)
    cluster.channels.silent = {2}
    delete(cluster)
    delete(cluster, "halted")
    await settle()
    cluster.channels.silent = set()
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert cluster.controller.epoch == 2
    assert not cluster.exists(znodes.topic_path("t"))
    assert cluster.exists(znodes.topic_path("halted"))
    await cluster.add_broker(3)
    assert not cluster.exists(znodes.topic_path("halted"))


async def test_topic_with_more_nodes_than_one_write_takes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ottla.controller.state import fenced_writes

    monkeypatch.setattr(topic_deletion, "MAX_OPS_PER_MULTI", 10)
    monkeypatch.setattr(fenced_writes, "MAX_OPS_PER_MULTI", 10)
    await cluster.create_topic("t", *[(1, 2)] * 20)
    delete(cluster)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))


async def test_unexpected_nodes_go_too(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.create_node(f"{znodes.partition_path(T0)}/strange")
    delete(cluster)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))


async def test_topic_without_partitions(cluster: Cluster) -> None:
    cluster.create_node(znodes.topic_path("t"), b'{"version":1,"partitions":{}}')
    await settle()
    delete(cluster)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))


async def test_callers_wait_until_the_topic_is_gone(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    rows = await cluster.controller.delete_topics(["t", "nothing"], timeout_ms=1000)
    assert rows["t"].code == 0
    assert rows["nothing"].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not cluster.exists(znodes.topic_path("t"))


async def test_dead_broker_does_not_make_callers_wait(cluster: Cluster) -> None:
    """No broker serves the topic any more; the rest is deleted when the broker is back."""
    await cluster.create_topic("t", (1, 2))
    await cluster.remove_broker(2)
    rows = await cluster.controller.delete_topics(["t"], timeout_ms=1000)
    reason = "broker 2, where replicas are offline"
    marked = f"Topic 't' is marked for deletion, which waits for {reason}."
    assert rows["t"] == (0, marked)
    assert cluster.controller.waiting_deletions() == {"t": reason}
    assert "t" in cluster.controller.context.topics_to_delete
    assert T0 not in cluster.brokers[3].metadata
    again = (await cluster.controller.create_topics([NewTopic("t", 1, 1)]))[0].error
    assert again == (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 't' is marked for deletion.")
    await cluster.add_broker(2)
    assert "t" not in cluster.controller.context.topics_to_delete
    assert cluster.controller.waiting_deletions() == {}


@pytest.mark.parametrize("reason", ["a silent broker", "a move", "no time at all"])
async def test_callers_wait_no_longer_than_they_want_to(cluster: Cluster, reason: str) -> None:
    await cluster.create_topic("t", (1, 2))
    if reason == "a silent broker":
        cluster.channels.silent = {2}
    elif reason == "a move":
        await cluster.controller.alter_partition_reassignments({T0: (3,)})
    timeout_ms = 0 if reason == "no time at all" else 1000
    codes: list[int] = []

    async def call() -> None:
        rows = await cluster.controller.delete_topics(["t"], timeout_ms=timeout_ms)
        codes.append(rows["t"].code)

    cluster.runtime.spawn(call(), name="delete")
    await settle()
    assert codes == [] or reason == "no time at all"
    cluster.runtime.advance(1000)
    await settle()
    assert codes == [ErrorCode.REQUEST_TIMED_OUT]
