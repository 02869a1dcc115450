"""Elections by API, by znode and by the clock."""

from __future__ import annotations

import pytest

from ottla.controller.changes.leader_elections import PREFERRED, UNCLEAN
from ottla.controller.lifecycle import ISR_METADATA_DELAY_MS
from ottla.controller.model import ReplicaAssignment
from ottla.controller.settings import ControllerSettings
from ottla.controller.tree import znodes
from ottla.controller.tree.znodes_admin import encode_preferred_election
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle

T0 = TopicPartition("t", 0)


async def elect(
    cluster: Cluster, partitions: list[TopicPartition] | None, kind: int = PREFERRED
) -> dict[TopicPartition, int]:
    rows = await cluster.controller.elect_leaders(partitions, kind, timeout_ms=1000)
    await settle()
    return {partition: row.code for partition, row in rows.items()}


async def led_by_another(cluster: Cluster, topic: str = "t") -> None:
    """A topic whose preferred leader 2 was away for a moment."""
    await cluster.create_topic(topic, (2, 1))
    await cluster.remove_broker(2)
    await cluster.add_broker(2)
    assert cluster.leader(topic) == 1


async def test_preferred_leader_takes_over_when_it_is_in_sync(cluster: Cluster) -> None:
    await led_by_another(cluster)
    assert await elect(cluster, [T0]) == {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    await cluster.change_isr("t", (1, 2))
    assert await elect(cluster, [T0]) == {T0: 0}
    assert cluster.leader("t") == 2
    assert await elect(cluster, [T0]) == {T0: ErrorCode.ELECTION_NOT_NEEDED}
    assert cluster.brokers[3].metadata[T0].leader == 2


async def test_all_partitions_leaves_out_those_in_no_need(cluster: Cluster) -> None:
    await led_by_another(cluster)
    await cluster.change_isr("t", (1, 2))
    await cluster.create_topic("fine", (3, 1))
    assert await elect(cluster, None) == {T0: 0}
    assert await elect(cluster, None) == {}


async def test_partition_without_replicas_does_not_stop_the_election_of_others(
    cluster: Cluster,
) -> None:
    await led_by_another(cluster, "u")
    await cluster.change_isr("u", (1, 2))
    await cluster.create_topic("t", (1, 2))
    cluster.controller.context.set_assignment(T0, ReplicaAssignment(()))  # another tool wrote it
    assert await elect(cluster, None) == {
        T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        TopicPartition("u", 0): 0,
    }
    assert cluster.leader("u") == 2


async def test_every_refusal(cluster: Cluster) -> None:
    await led_by_another(cluster)
    await cluster.create_topic("going", (1, 3))
    await cluster.remove_broker(3)
    cluster.create_node(znodes.delete_topic_path("going"))
    await settle()
    nothing, going = TopicPartition("nothing", 0), TopicPartition("going", 0)
    assert await elect(cluster, [nothing, going, T0]) == {
        nothing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        going: ErrorCode.INVALID_TOPIC_EXCEPTION,
        T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    assert await elect(cluster, [T0], 7) == {T0: ErrorCode.INVALID_REQUEST}


async def test_unclean_election(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    await cluster.change_isr("t", (2,))
    assert await elect(cluster, [T0], UNCLEAN) == {T0: ErrorCode.ELECTION_NOT_NEEDED}
    await cluster.remove_broker(2)
    assert cluster.leader("t") == -1
    assert await elect(cluster, [T0], UNCLEAN) == {T0: 0}
    state = cluster.state("t")
    assert (state.leader, state.isr, state.recovery_state) == (3, (3,), 1)
    await cluster.remove_broker(3)
    assert await elect(cluster, [T0], UNCLEAN) == {T0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


async def test_partition_that_never_had_a_leader(cluster: Cluster) -> None:
    await cluster.remove_broker(2)
    await cluster.create_topic("t", (2,))
    assert await elect(cluster, [T0]) == {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert await elect(cluster, [T0], UNCLEAN) == {T0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


async def test_callers_wait_until_brokers_have_heard(cluster: Cluster) -> None:
    await led_by_another(cluster)
    await cluster.change_isr("t", (1, 2))
    cluster.channels.silent = {3}
    codes: list[int] = []

    async def call() -> None:
        rows = await cluster.controller.elect_leaders([T0], PREFERRED, timeout_ms=1000)
        codes.append(rows[T0].code)

    cluster.runtime.spawn(call(), name="elect")
    await settle()
    assert codes == []
    cluster.runtime.advance(1000)
    await settle()
    assert codes == [ErrorCode.REQUEST_TIMED_OUT]
    assert cluster.leader("t") == 2


async def test_election_by_znode(cluster: Cluster) -> None:
    await led_by_another(cluster)
    await cluster.change_isr("t", (1, 2))
    for _ in range(2):  # the second one is heard as well
        payload = encode_preferred_election([T0, TopicPartition("nothing", 0)])
        cluster.create_node(znodes.PREFERRED_REPLICA_ELECTION, payload)
        await settle()
        assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)
    assert cluster.leader("t") == 2


async def test_znode_that_cannot_be_read_is_deleted(cluster: Cluster) -> None:
    cluster.create_node(znodes.PREFERRED_REPLICA_ELECTION, b"{")
    await settle()
    assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)


async def test_new_controller_reads_the_znode(cluster: Cluster) -> None:
    await led_by_another(cluster)
    await cluster.change_isr("t", (1, 2))
    cluster.delete_node(znodes.CONTROLLER)
    cluster.create_node(znodes.PREFERRED_REPLICA_ELECTION, encode_preferred_election([T0]))
    await settle()
    assert cluster.controller.epoch == 2
    assert cluster.leader("t") == 2
    assert not cluster.exists(znodes.PREFERRED_REPLICA_ELECTION)


# The clock


@pytest.fixture
async def balancing() -> Cluster:
    cluster = Cluster(
        settings=ControllerSettings(
            leader_imbalance_check_interval_seconds=300, leader_imbalance_per_broker_percentage=40
        )
    )
    await cluster.start()
    return cluster


async def test_leaders_go_back_when_too_many_are_elsewhere(balancing: Cluster) -> None:
    await balancing.create_topic("t", (2, 1), (2, 1), (2, 1))
    await balancing.remove_broker(2)
    await balancing.add_broker(2)
    balancing.runtime.advance(5_000)  # the first look, soon after the election
    await settle()
    assert [balancing.leader("t", index) for index in range(3)] == [1, 1, 1]  # not in sync yet
    for index in range(3):
        await balancing.change_isr("t", (1, 2), index)
    balancing.runtime.advance(299_999 - 3 * ISR_METADATA_DELAY_MS)
    await settle()
    assert balancing.leader("t", 0) == 1
    balancing.runtime.advance(1)
    await settle()
    assert [balancing.leader("t", index) for index in range(3)] == [2, 2, 2]
    await balancing.stop()


async def test_a_few_elsewhere_are_left_there(balancing: Cluster) -> None:
    await balancing.create_topic("t", (2, 1), (2, 1), (2, 1))
    state = balancing.state("t", 0)
    moved = state._replace(leader=1)
    balancing.set_node(znodes.state_path(T0), znodes.encode_state(moved))
    balancing.controller.context.leadership[T0] = moved._replace(partition_epoch=1)
    balancing.runtime.advance(5_000)
    await settle()
    assert balancing.leader("t", 0) == 1  # a third, and 40 percent are allowed
    await balancing.stop()


async def test_balancing_can_be_switched_off_and_on(balancing: Cluster) -> None:
    controller = balancing.controller
    controller.update_settings(controller.settings._replace(auto_leader_rebalance_enable=False))
    await balancing.create_topic("t", (2, 1))
    await balancing.remove_broker(2)
    await balancing.add_broker(2)
    await balancing.change_isr("t", (1, 2))
    balancing.runtime.advance(305_000)
    await settle()
    assert balancing.leader("t") == 1
    controller.update_settings(controller.settings._replace(auto_leader_rebalance_enable=True))
    balancing.runtime.advance(300_000)
    await settle()
    assert balancing.leader("t") == 2
    await balancing.stop()


async def test_fenced_controller_balances_nothing(balancing: Cluster) -> None:
    await balancing.controller.stop(timeout_ms=0)
    await settle()
    assert balancing.runtime.next_due_in_ms() is None
    await balancing.stop()


async def test_refusal_in_kafkas_words(cluster: Cluster) -> None:
    await led_by_another(cluster)
    rows = await cluster.controller.elect_leaders([T0], PREFERRED, timeout_ms=1000)
    assert (rows[T0].message or "").startswith(
        "Failed to elect leader for partition t-0 under strategy "
        "PreferredReplicaPartitionLeaderElectionStrategy: "
    )
