"""What the controller's metrics show."""

from __future__ import annotations

from ottla.controller.state.gauges import ControllerGauges
from ottla.controller.tree import znodes
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle


async def test_numbers_of_a_troubled_cluster(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2), (2, 3))
    await cluster.create_topic("alone", (2,))
    await cluster.create_topic("going", (1, 2))
    await cluster.create_topic("moving", (1,))
    await cluster.controller.alter_partition_reassignments({TopicPartition("moving", 0): (3,)})
    await cluster.remove_broker(2)
    cluster.create_node(znodes.delete_topic_path("going"))
    await settle()
    assert cluster.controller.gauges() == ControllerGauges(
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
    assert cluster.controller.gauges() == ControllerGauges()
