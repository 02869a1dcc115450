"""Brokers that ask to go."""

from __future__ import annotations

import pytest

from ottla.controller.tree import znodes
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.stop_replica import StopReplicaRequest
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle


async def test_leaderships_move_and_places_are_given_up(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3), (3, 2), (1, 3))
    cluster.sent.clear()
    epoch = cluster.brokers[2].broker_epoch
    assert await cluster.controller.controlled_shutdown(2, epoch) == []
    await settle()
    assert [cluster.leader("t", index) for index in range(3)] == [3, 3, 1]
    assert cluster.state("t", 0).isr == (3,)
    assert cluster.state("t", 1).isr == (3,)
    stops = cluster.requests(StopReplicaRequest, 2)
    stopped = {
        TopicPartition(topic.topic_name, state.partition_index)
        for stop in stops
        for topic in stop.topic_states
        for state in topic.partition_states
    }
    assert stopped == {TopicPartition("t", 1)}  # the one it followed
    assert cluster.brokers[2].hosted[TopicPartition("t", 0)].leader == 3  # it follows until the end


async def test_leadership_that_no_broker_can_take_is_named(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3), (2, 1))
    await cluster.create_topic("alone", (2,))  # has no other replica and so does not count
    await cluster.change_isr("t", (2,), 1)
    remaining = await cluster.controller.controlled_shutdown(2, -1)
    assert remaining == [TopicPartition("t", 1)]
    assert cluster.leader("t", 1) == 2
    await cluster.change_isr("t", (2, 1), 1)  # the leader may still let others in
    assert await cluster.controller.controlled_shutdown(2, -1) == []
    assert cluster.leader("t", 1) == 1


async def test_broker_on_its_way_out_gets_nothing_new(cluster: Cluster) -> None:
    await cluster.controller.controlled_shutdown(2, -1)
    await cluster.create_topic("t", (2, 3))
    assert cluster.leader("t") == 3
    assert cluster.state("t").isr == (3,)
    await cluster.remove_broker(2)
    assert not cluster.controller.context.shutting_down
    await cluster.add_broker(2)
    assert cluster.controller.context.is_live(2)


async def test_refusals(cluster: Cluster) -> None:
    with pytest.raises(KafkaError) as unknown:
        await cluster.controller.controlled_shutdown(9, -1)
    assert unknown.value.code == ErrorCode.BROKER_NOT_AVAILABLE
    with pytest.raises(KafkaError) as stale:
        await cluster.controller.controlled_shutdown(2, cluster.brokers[2].broker_epoch - 1)
    assert stale.value.code == ErrorCode.STALE_BROKER_EPOCH
    assert not cluster.controller.context.shutting_down


async def test_topics_on_their_way_out_are_left_alone(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    cluster.brokers[3].refuse_deletion = True
    cluster.create_node(znodes.delete_topic_path("t"))
    await settle()
    before = cluster.state("t")
    assert await cluster.controller.controlled_shutdown(2, -1) == []
    assert cluster.state("t") == before


async def test_three_hundred_leaders_at_once(cluster: Cluster) -> None:
    await cluster.create_topic("t", *[(2, 3)] * 300)
    assert await cluster.controller.controlled_shutdown(2, -1) == []
    assert all(cluster.leader("t", index) == 3 for index in range(300))
