"""Moves of partitions whose leader and ISR the controller cannot read."""

from __future__ import annotations

from ottla.controller.model import ReplicaAssignment
from ottla.controller.tree import znodes
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle

T0 = TopicPartition("t", 0)


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
