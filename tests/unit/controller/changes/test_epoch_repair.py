"""Brokers that are ahead of a tree which was restored from an older copy."""

from __future__ import annotations

from ottla.controller.model import REPAIR_STEP
from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, SetOp
from ottla.controller.tree.znodes_admin import ReplicaEpoch, encode_replica_epochs
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle

T0 = TopicPartition("t", 0)


def ahead(
    cluster: Cluster,
    broker_id: int,
    highest: int,
    log_epoch: int,
    end: int,
    *,
    is_older: bool = True,
) -> None:
    """The broker has a newer replica, and has stored that."""
    broker = cluster.brokers[broker_id]
    broker.newest_epochs[T0] = highest
    data = encode_replica_epochs(
        broker.broker_epoch,
        {T0: ReplicaEpoch(highest, log_epoch, end, False)},
        is_older=is_older,
    )
    path = znodes.replica_epochs_path(broker_id)
    if not cluster.exists(znodes.REPLICA_EPOCHS):
        cluster.write(CreateOp(znodes.REPLICA_EPOCHS))
    cluster.write(SetOp(path, data) if cluster.exists(path) else CreateOp(path, data))


async def new_controller(cluster: Cluster) -> None:
    cluster.sent.clear()
    cluster.delete_node(znodes.CONTROLLER)
    await settle()


async def test_the_replica_with_the_newest_records_leads_above_all(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    ahead(cluster, 1, 9, 7, 100)
    ahead(cluster, 2, 8, 8, 40)
    ahead(cluster, 3, 8, 8, 50)
    await new_controller(cluster)
    state = cluster.state("t")
    assert (state.leader, state.leader_epoch, state.isr) == (3, 9 + REPAIR_STEP, (3,))
    for broker_id in (1, 2, 3):
        assert cluster.brokers[broker_id].hosted[T0].leader == 3
        assert cluster.brokers[broker_id].metadata[T0].leader == 3
    await cluster.change_isr("t", (1, 2, 3))
    assert cluster.state("t").isr == (1, 2, 3)


async def test_a_follower_that_is_not_ahead_follows(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    ahead(cluster, 2, 8, 8, 40)
    await new_controller(cluster)
    assert (cluster.leader("t"), cluster.state("t").leader_epoch) == (2, 8 + REPAIR_STEP)


async def test_nothing_is_decided_while_a_replica_is_away(cluster: Cluster) -> None:
    """It may have the newest records."""
    await cluster.create_topic("t", (1, 2, 3))
    await cluster.remove_broker(3)
    ahead(cluster, 2, 8, 8, 40)
    before = cluster.state("t")
    await new_controller(cluster)
    assert cluster.state("t") == before
    await cluster.add_broker(3)
    assert (cluster.leader("t"), cluster.state("t").leader_epoch) == (2, 8 + REPAIR_STEP)


async def test_nothing_is_decided_without_what_a_broker_has_stored(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    ahead(cluster, 1, 8, 8, 10)
    cluster.brokers[2].newest_epochs[T0] = 8
    before = cluster.state("t")
    await new_controller(cluster)
    assert cluster.state("t") == before
    ahead(cluster, 2, 8, 8, 40)
    await new_controller(cluster)
    assert cluster.leader("t") == 2


async def test_what_was_stored_before_a_registration_is_not_used(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    ahead(cluster, 2, 8, 8, 40)
    cluster.brokers[2].broker_epoch += 1
    ahead(cluster, 2, 8, 8, 40)
    cluster.brokers[2].broker_epoch -= 1
    before = cluster.state("t")
    await new_controller(cluster)
    assert cluster.state("t") == before
    cluster.set_node(znodes.replica_epochs_path(2), b"nonsense")
    await new_controller(cluster)
    assert cluster.state("t") == before


async def test_a_usual_cluster_is_asked_nothing(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    await new_controller(cluster)
    assert cluster.state("t").leader_epoch == 0
    for broker_id in (1, 2):
        assert len(cluster.requests(LeaderAndIsrRequest, broker_id)) == 1


async def test_a_minority_that_is_ahead_decides_nothing(cluster: Cluster) -> None:
    """A broker that was connected to a wrong ZooKeeper, which had elected it."""
    await cluster.create_topic("t", (1, 2, 3))
    ahead(cluster, 2, 8, 8, 40, is_older=False)
    before = cluster.state("t")
    await new_controller(cluster)
    assert cluster.state("t") == before
    # Two of three were in one ISR: the tree is older, although its zxids are not.
    ahead(cluster, 3, 8, 8, 50, is_older=False)
    await new_controller(cluster)
    assert cluster.leader("t") == 3
