"""Moves that the controller does not start, to keep what there is."""

from __future__ import annotations

import pytest

from ottla.controller.changes import reassignment
from ottla.controller.model import ReplicaAssignment
from ottla.controller.tree import znodes
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle

T0 = TopicPartition("t", 0)


async def test_topic_that_would_be_too_large_for_zookeeper_while_it_moves(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes the connection over such a write, which the next controller would repeat."""
    await cluster.create_topic("t", (1,), (1,))
    size = len(cluster.tree.nodes[znodes.topic_path("t")].data)
    monkeypatch.setattr(reassignment, "MAX_TOPIC_BYTES", size + 20)
    wanted = {TopicPartition("t", index): (3,) for index in range(2)}
    rows = await cluster.controller.alter_partition_reassignments(wanted)
    assert [row.code for row in rows.values()] == [0, ErrorCode.UNKNOWN_SERVER_ERROR]
    await settle()
    monkeypatch.setattr(reassignment, "MAX_TOPIC_BYTES", 1)  # it gets smaller at the end
    await cluster.change_isr("t", (1, 3))
    assert cluster.topic("t").assignments == {
        0: ReplicaAssignment((3,)),
        1: ReplicaAssignment((1,)),
    }


async def test_partition_with_a_damaged_state_keeps_its_replicas(cluster: Cluster) -> None:
    """It is not one that never had a leader: its replicas have its records."""
    await cluster.create_topic("t", (1, 2))
    good = cluster.tree.nodes[znodes.state_path(T0)].data
    cluster.set_node(znodes.state_path(T0), b"{")
    cluster.delete_node(znodes.CONTROLLER)  # the next one cannot read the state
    await settle()
    rows = await cluster.controller.alter_partition_reassignments({T0: (3,)})
    assert rows[T0].code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "repair its znode" in (rows[T0].message or "")
    assert cluster.topic("t").assignments[0] == ReplicaAssignment((1, 2))
    cluster.set_node(znodes.state_path(T0), good)
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert cluster.leader("t") == 1
    rows = await cluster.controller.alter_partition_reassignments({T0: (3,)})
    assert rows[T0].code == 0


async def test_number_of_replicas_that_may_not_change(cluster: Cluster) -> None:
    """KIP-860; also while the partition moves, where it has more replicas than it should."""
    await cluster.create_topic("t", (1, 2))
    alter = cluster.controller.alter_partition_reassignments
    for replicas in ((3,), (1, 2, 3)):
        rows = await alter({T0: replicas}, may_change_count=False)
        assert rows[T0].code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert rows[T0].message == (f"The replication factor is changed from 2 to {len(replicas)}")
    assert cluster.topic("t").assignments[0] == ReplicaAssignment((1, 2))
    for replicas in ((1, 3), (2, 3)):
        rows = await alter({T0: replicas}, may_change_count=False)
        assert rows[T0].code == 0
    assert (await alter({T0: None}, may_change_count=False))[T0].code == 0


async def test_number_of_replicas_of_a_reassignment_that_changes_it(cluster: Cluster) -> None:
    """As in Kafka, it is compared with that of the reassignment in progress."""
    await cluster.create_topic("t", (1, 2))
    alter = cluster.controller.alter_partition_reassignments
    assert (await alter({T0: (3,)}))[T0].code == 0
    row = (await alter({T0: (1, 3)}, may_change_count=False))[T0]
    assert row.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert row.message == "The replication factor is changed from 1 to 2"
    assert (await alter({T0: (2,)}, may_change_count=False))[T0].code == 0
