"""Topics and partitions that others write into the tree."""

from __future__ import annotations

import pytest

from ottla.controller.model import ReplicaAssignment, TopicState
from ottla.controller.settings import ControllerSettings
from ottla.controller.tree import znodes
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle

OLD_TOOL = b'{"version":1,"partitions":{"0":[2,1],"1":[3,2]}}'


async def test_topic_written_by_a_tool_comes_online(cluster: Cluster) -> None:
    cluster.create_node(znodes.topic_path("t"), OLD_TOOL)
    await settle()
    assert cluster.leader("t", 0) == 2
    assert cluster.leader("t", 1) == 3
    for broker in cluster.brokers.values():
        assert set(broker.metadata) == {TopicPartition("t", 0), TopicPartition("t", 1)}


async def test_topic_without_an_id_gets_one(cluster: Cluster) -> None:
    cluster.create_node(znodes.topic_path("t"), OLD_TOOL)
    await settle()
    topic_id = cluster.topic("t").topic_id
    assert topic_id is not None
    assert cluster.controller.context.topic_names[topic_id] == "t"
    assert cluster.brokers[1].metadata[TopicPartition("t", 0)].topic_id == topic_id


async def test_topic_without_an_id_stays_so_under_an_old_protocol() -> None:
    cluster = Cluster(settings=ControllerSettings(inter_broker_protocol_version="2.6"))
    cluster.channels.silent = {1, 2, 3}
    await cluster.start()
    cluster.create_node(znodes.topic_path("t"), OLD_TOOL)
    await settle()
    assert cluster.topic("t").topic_id is None
    assert cluster.leader("t", 0) == 2
    await cluster.stop()


async def test_topic_that_changes_while_it_gets_its_id(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = cluster.controller._components.topic_changes
    original = changes.read_topics
    later = b'{"version":1,"partitions":{"0":[2],"1":[3]}}'

    async def meanwhile(topics: list[str]) -> object:
        found = await original(topics)
        monkeypatch.undo()
        cluster.set_node(znodes.topic_path("t"), later)
        return found

    monkeypatch.setattr(changes, "read_topics", meanwhile)
    cluster.create_node(znodes.topic_path("t"), b'{"version":1,"partitions":{"0":[2]}}')
    await settle()
    assert cluster.topic("t").topic_id is not None
    assert cluster.leader("t", 1) == 3


async def test_topic_that_cannot_be_read_does_not_stop_the_others(cluster: Cluster) -> None:
    cluster.create_node(znodes.topic_path("broken"), b"{")
    cluster.create_node(znodes.topic_path("t"), OLD_TOOL)
    await settle()
    assert cluster.leader("t", 0) == 2
    cluster.set_node(znodes.topic_path("broken"), OLD_TOOL)
    await settle()
    assert cluster.leader("broken", 0) == 2, "it was repaired"


async def test_topic_that_vanished_is_forgotten(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1,))
    for path in (
        znodes.state_path(TopicPartition("t", 0)),
        znodes.partition_path(TopicPartition("t", 0)),
        znodes.partitions_path("t"),
        znodes.topic_path("t"),
    ):
        cluster.delete_node(path)
    await settle()
    assert "t" not in cluster.controller.context.assignments


async def test_partitions_added_by_a_tool_come_online(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    state = cluster.topic("t")
    grown = state._replace(assignments={**state.assignments, 1: ReplicaAssignment((3, 1))})
    cluster.set_node(znodes.topic_path("t"), znodes.encode_topic(grown))
    await settle()
    assert cluster.leader("t", 1) == 3
    assert TopicPartition("t", 1) in cluster.brokers[2].metadata


async def test_partitions_added_to_a_topic_on_its_way_out_are_taken_back(
    cluster: Cluster,
) -> None:
    await cluster.create_topic("t", (1, 2))
    await cluster.remove_broker(2)  # the deletion must wait for it
    cluster.create_node(znodes.delete_topic_path("t"))
    await settle()
    state = cluster.topic("t")
    grown = TopicState(state.topic_id, {**state.assignments, 1: ReplicaAssignment((3,))})
    cluster.set_node(znodes.topic_path("t"), znodes.encode_topic(grown))
    await settle()
    assert sorted(cluster.topic("t").assignments) == [0]
    assert not cluster.exists(znodes.partition_path(TopicPartition("t", 1)))


async def test_change_that_adds_nothing_is_nothing(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.sent.clear()
    cluster.set_node(znodes.topic_path("t"), cluster.tree.nodes[znodes.topic_path("t")].data)
    await settle()
    assert cluster.sent == []


async def test_new_partitions_of_a_recreated_name_start_above_the_old_epochs(
    cluster: Cluster,
) -> None:
    await cluster.create_topic("t", (1, 2))
    for replicas in ((1,), (1, 2)):  # a few decisions
        await cluster.change_isr("t", replicas)
    await cluster.controller.elect_leaders([TopicPartition("t", 0)], 0, timeout_ms=1)
    await cluster.remove_broker(2)
    await cluster.add_broker(2)
    before = cluster.state("t").leader_epoch
    first_id = cluster.topic("t").topic_id
    assert before > 0
    await cluster.controller.delete_topics(["t"], timeout_ms=1000)
    await cluster.create_topic("t", (1, 2), (2, 1))
    assert cluster.topic("t").topic_id != first_id
    assert cluster.state("t").leader_epoch > before
    assert cluster.state("t", 1).leader_epoch > before


async def test_the_line_about_250_new_topics_is_short(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ottla.controller")
    context = cluster.controller.context
    for number in range(250):
        cluster.create_node(znodes.topic_path(f"topic-with-a-name-{number}"), OLD_TOOL)
    await settle()
    assert len(context.assignments) == 250
    lines = [line for line in caplog.messages if line.startswith("New topics: [")]
    assert lines
    assert max(map(len, lines)) < 700
    assert any(" more], deleted topics: []" in line for line in lines)
