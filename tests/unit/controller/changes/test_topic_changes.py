"""Topics and partitions that others write into the tree."""

from __future__ import annotations

import json

import pytest

from ottla.controller.model import ReplicaAssignment, TopicState
from ottla.controller.settings import ControllerSettings
from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, DeleteOp
from ottla.controller.tree.znodes_admin import decode_deleted_topic_ids
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import random_uuid, uuid_to_string
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
    changes = cluster.controller._lifecycle.topic_changes
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


# What tools that know ZooKeeper alone do to the znodes of topics


async def controller_changes(cluster: Cluster, topic: str, data: bytes) -> None:
    """Something writes the znode while no controller looks; then there is a new one."""
    cluster.controller._lifecycle.watches.unwatch_topic(topic)
    cluster.set_node(znodes.topic_path(topic), data)
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert cluster.controller.is_active


def without_id(*partitions: tuple[int, ...], version: int = 1) -> bytes:
    assignments = {str(index): list(replicas) for index, replicas in enumerate(partitions)}
    return json.dumps({"version": version, "partitions": assignments}).encode()


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_a_topic_id_that_a_tool_has_dropped_is_written_back(
    cluster: Cluster, version: int
) -> None:
    created = await cluster.create_topic("t", (1, 2), (2, 1))
    cluster.set_node(znodes.topic_path("t"), without_id((1, 2), (2, 1), (2, 3), version=version))
    await settle()
    assert cluster.topic("t").topic_id == created.topic_id
    assert sorted(cluster.topic("t").assignments) == [0, 1, 2]
    assert cluster.leader("t", 2) == 2, "the partition that the tool added is online"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b"null",
        b'{"version":3}',
        without_id((1, 2)),
        without_id((3,), (2, 1)),
        b'{"version":3,"topic_id":"AAAAAAAAAAAAAAAAAAAABA","partitions":{"0":[1,2],"1":[2,1]}}',
        b'{"version":3,"topic_id":"%%","partitions":{"0":[1,2],"1":[2,1]}}',
    ],
)
async def test_a_znode_that_lost_something_is_restored(cluster: Cluster, data: bytes) -> None:
    await cluster.create_topic("t", (1, 2), (2, 1))
    before = cluster.topic("t")
    cluster.set_node(znodes.topic_path("t"), data)
    await settle()
    assert cluster.topic("t") == before


async def test_the_marks_of_a_reassignment_that_a_tool_has_dropped_are_restored(
    cluster: Cluster,
) -> None:
    created = await cluster.create_topic("t", (1, 2))
    cluster.channels.silent = {3}
    await cluster.controller.alter_partition_reassignments({TopicPartition("t", 0): (1, 3)})
    await settle()
    before = cluster.topic("t")
    assert before.assignments[0].adding == (3,)
    cluster.set_node(znodes.topic_path("t"), without_id(before.assignments[0].replicas))
    await settle()
    assert cluster.topic("t") == before
    assert before.topic_id == created.topic_id


async def test_a_new_controller_takes_the_id_of_the_logs(cluster: Cluster) -> None:
    created = await cluster.create_topic("t", (1, 2, 3), (3, 2, 1))
    await controller_changes(cluster, "t", without_id((1, 2, 3), (3, 2, 1)))
    assert cluster.topic("t").topic_id == created.topic_id
    for broker in cluster.brokers.values():
        assert broker.metadata[TopicPartition("t", 0)].topic_id == created.topic_id
        assert broker.hosted[TopicPartition("t", 1)].topic_id == created.topic_id


async def test_an_id_that_one_member_of_the_isr_holds_is_enough(cluster: Cluster) -> None:
    created = await cluster.create_topic("t", (1, 2, 3))
    cluster.channels.silent = {1, 3}
    await controller_changes(cluster, "t", without_id((1, 2, 3)))
    assert cluster.topic("t").topic_id == created.topic_id


async def test_no_id_is_made_up_before_all_replicas_have_none(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    for broker in cluster.brokers.values():
        broker.hosted.clear()
    cluster.channels.silent = {3}
    await controller_changes(cluster, "t", without_id((1, 2, 3)))
    assert cluster.topic("t").topic_id is None
    assert cluster.leader("t") == 1, "it is in service"
    cluster.channels.silent = set()
    await cluster.remove_broker(3)
    await cluster.add_broker(3)
    assert cluster.topic("t").topic_id is not None


async def test_brokers_of_kafka_do_not_say_and_nothing_is_made_up(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.brokers[1].is_kafka = cluster.brokers[2].is_kafka = True
    await controller_changes(cluster, "t", without_id((1, 2)))
    assert cluster.topic("t").topic_id is None
    assert cluster.leader("t") == 1


async def test_logs_that_disagree_decide_nothing(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    mine, other = random_uuid(), random_uuid()
    cluster.brokers[2].log_ids["t"] = mine
    cluster.brokers[3].log_ids["t"] = other
    cluster.channels.silent = {1, 2}
    await controller_changes(cluster, "t", without_id((1, 2, 3)))
    # Broker 3 is in the ISR and was the first to say one.
    assert cluster.topic("t").topic_id == other
    cluster.channels.silent = set()
    await cluster.stop()


async def test_an_operator_decides_where_logs_disagree(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2, 3))
    mine, other = random_uuid(), random_uuid()
    await cluster.change_isr("t", (1,))
    cluster.brokers[2].log_ids["t"] = mine
    cluster.brokers[3].log_ids["t"] = other
    cluster.brokers[1].hosted.clear()
    await controller_changes(cluster, "t", without_id((1, 2, 3)))
    topic_ids = cluster.controller._lifecycle.topic_ids
    assert cluster.topic("t").topic_id is None
    ((text, fix),) = topic_ids.conflicts.values()
    assert fix == 'write the one that is right as "topic_id" into /brokers/topics/t'
    assert f"broker 2 {uuid_to_string(mine)}, broker 3 {uuid_to_string(other)}" in text
    assert cluster.leader("t") == 1, "it is in service"
    state = cluster.topic("t")
    cluster.set_node(znodes.topic_path("t"), znodes.encode_topic(state._replace(topic_id=mine)))
    await settle()
    assert topic_ids.conflicts == {}
    assert cluster.brokers[1].hosted[TopicPartition("t", 0)].topic_id == mine


async def test_an_id_that_every_broker_refuses_is_replaced_by_that_of_their_logs(
    cluster: Cluster,
) -> None:
    """A controller of Kafka has generated one after a tool had dropped the first."""
    created = await cluster.create_topic("t", (1, 2, 3))
    for broker in cluster.brokers.values():
        broker.log_ids["t"] = created.topic_id
        broker.hosted.clear()
    generated = cluster.topic("t")._replace(topic_id=random_uuid())
    await controller_changes(cluster, "t", znodes.encode_topic(generated))
    assert cluster.topic("t").topic_id == created.topic_id
    assert cluster.brokers[2].hosted[TopicPartition("t", 0)].topic_id == created.topic_id


async def test_the_id_of_another_topic_is_not_taken(cluster: Cluster) -> None:
    """Somebody has copied a `partition.metadata`, or a directory."""
    other = await cluster.create_topic("other", (1,))
    await cluster.create_topic("t", (1, 2))
    generated = cluster.topic("t")._replace(topic_id=random_uuid())
    for broker in (1, 2):
        cluster.brokers[broker].log_ids["t"] = other.topic_id
        cluster.brokers[broker].hosted.clear()
    await controller_changes(cluster, "t", znodes.encode_topic(generated))
    assert cluster.topic("t").topic_id == generated.topic_id
    problem, fix = cluster.controller.topic_problems()["t"]
    assert problem.startswith("the logs of topic t have the id of topic other, ")
    assert "partition.metadata, which was copied from other, in the directories of t" in fix


async def test_an_id_that_one_broker_accepts_stays(cluster: Cluster) -> None:
    created = await cluster.create_topic("t", (1, 2))
    cluster.brokers[2].log_ids["t"] = created.topic_id
    generated = cluster.topic("t")._replace(topic_id=random_uuid())
    await controller_changes(cluster, "t", znodes.encode_topic(generated))
    assert cluster.topic("t").topic_id == generated.topic_id
    # Only an operator knows; what is written now is taken.
    state = cluster.topic("t")._replace(topic_id=created.topic_id)
    cluster.set_node(znodes.topic_path("t"), znodes.encode_topic(state))
    await settle()
    assert cluster.controller.context.topic_ids["t"] == created.topic_id


async def test_a_znode_that_was_removed_and_created_again_is_another_topic(
    cluster: Cluster,
) -> None:
    created = await cluster.create_topic("t", (1, 2))
    epoch = cluster.state("t").leader_epoch
    paths = ["/partitions/0/state", "/partitions/0", "/partitions", ""]
    path = znodes.topic_path("t")
    cluster.write(*(DeleteOp(path + each) for each in paths), CreateOp(path, without_id((2, 3))))
    await settle()
    assert cluster.topic("t").topic_id not in (None, created.topic_id)
    assert cluster.state("t").leader_epoch > epoch
    data = cluster.tree.nodes[znodes.DELETED_TOPICS].data
    deleted, removed = decode_deleted_topic_ids(data)
    assert (deleted, removed) == ({}, {"t": (uuid_to_string(created.topic_id),)})


async def test_a_topic_that_a_new_controller_cannot_read_comes_back_with_its_leader(
    cluster: Cluster,
) -> None:
    await cluster.create_topic("t", (2, 3))
    before = cluster.topic("t")
    await controller_changes(cluster, "t", b"")
    changes = cluster.controller._lifecycle.topic_changes
    assert list(changes.unreadable) == ["t"]
    assert "t" not in cluster.controller.context.assignments
    cluster.set_node(znodes.topic_path("t"), znodes.encode_topic(before))
    await settle()
    assert changes.unreadable == {}
    assert cluster.controller.context.leadership[TopicPartition("t", 0)].leader == 2
    await cluster.change_isr("t", (2,))
    await cluster.remove_broker(3)
    assert cluster.leader("t") == 2
