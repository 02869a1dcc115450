"""What a controller hears of and acts upon: three real brokers on a real ZooKeeper, one cluster for
all tests. Each checks the znodes, the responses to clients, and the data."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from tests.doubles.broker_cluster import start_cluster
from tests.doubles.cluster_view import BROKER_CONFIG, TOPIC_CONFIG, ClusterView, view
from tests.doubles.eventually import eventually

pytestmark = pytest.mark.zookeeper

ALL = (1, 2, 3)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterView]:
    with (
        start_cluster(
            tmp_path_factory.mktemp("events"),
            auto_leader_rebalance_enable="false",
            auto_create_topics_enable="false",
        ) as cluster,
        view(cluster) as found,
    ):
        yield found


@pytest.fixture
def seen(shared: ClusterView) -> Iterator[ClusterView]:
    """The cluster with all brokers running."""
    yield shared
    shared.cluster.start_all()


def restart(seen: ClusterView, broker_id: int) -> None:
    seen.cluster[broker_id].start()


def kill(seen: ClusterView, broker_id: int) -> None:
    """Returns when its session has ended."""
    seen.cluster[broker_id].kill()
    eventually(lambda: not seen.is_registered(broker_id), "the session of a dead broker stays")


def test_a_topic_is_created_grown_deleted_and_made_again(seen: ClusterView) -> None:
    seen.create("changing", [1, 2], [2, 3], retention_ms="1000000")
    node = seen.znode("/brokers/topics/changing")
    assert node["partitions"] == {"0": [1, 2], "1": [2, 3]}
    assert seen.znode("/config/topics/changing")["config"] == {"retention.ms": "1000000"}
    assert seen.state("changing", 1)["leader"] == 2
    first_epoch = seen.state("changing")["leader_epoch"]

    grown = CreatePartitionsTopic("changing", 3, [CreatePartitionsAssignment([3, 1])])
    response = seen.client.call_controller(CreatePartitionsRequest([grown], 30_000))
    assert isinstance(response, CreatePartitionsResponse)
    assert response.results[0].error_code == 0
    seen.wait_for_leaders("changing", [1, 2, 3])
    assert seen.znode("/brokers/topics/changing")["partitions"]["2"] == [3, 1]
    assert seen.state("changing", 2)["isr"] == [3, 1]

    seen.delete("changing")
    eventually(lambda: not seen.exists("/brokers/topics/changing"), "the topic stays")
    assert not seen.exists("/config/topics/changing")
    assert not seen.exists("/admin/delete_topics/changing")
    for broker_id in ALL:
        eventually(lambda by=broker_id: not seen.leaders("changing", by), "it is in the metadata")  # type: ignore[misc]
        assert not seen.has_data(broker_id, "changing")

    seen.create("changing", [1, 2])
    assert seen.znode("/brokers/topics/changing")["topic_id"] != node["topic_id"]
    assert seen.state("changing")["leader_epoch"] > first_epoch


def test_a_topic_is_created_grown_and_deleted_by_its_znodes(seen: ClusterView) -> None:
    """As the tools of Kafka 2 do it, which know of ZooKeeper alone."""
    node = {"version": 1, "partitions": {"0": [2, 3]}}
    seen.tree.create("/config/topics/by-znode", b'{"version":1,"config":{}}')
    seen.tree.create("/brokers/topics/by-znode", json.dumps(node).encode())
    seen.wait_for_leaders("by-znode", [2])
    node = seen.znode("/brokers/topics/by-znode")
    assert node["topic_id"], "the controller gives it an id"
    node["partitions"]["1"] = [3, 1]
    seen.tree.set("/brokers/topics/by-znode", json.dumps(node).encode())
    seen.wait_for_leaders("by-znode", [2, 3])
    assert seen.state("by-znode", 1)["isr"] == [3, 1]
    seen.produce("by-znode", 10)
    seen.wait_for_same_data("by-znode", 2, 3)
    seen.tree.create("/admin/delete_topics/by-znode", b"")
    eventually(lambda: not seen.exists("/brokers/topics/by-znode"), "the topic stays")
    assert not seen.exists("/admin/delete_topics/by-znode")
    for broker_id in ALL:
        eventually(lambda by=broker_id: not seen.leaders("by-znode", by), "it is in the metadata")  # type: ignore[misc]
        assert not seen.has_data(broker_id, "by-znode")


def test_replicas_are_spread_evenly_where_there_are_no_racks(seen: ClusterView) -> None:
    response = seen.client.call_controller(
        CreateTopicsRequest([CreatableTopic("spread", 6, 2)], 30_000)
    )
    assert isinstance(response, CreateTopicsResponse)
    assert response.topics[0].error_code == 0
    grown = CreatePartitionsTopic("spread", 9, None)
    more = seen.client.call_controller(CreatePartitionsRequest([grown], 30_000))
    assert isinstance(more, CreatePartitionsResponse)
    assert more.results[0].error_code == 0
    replicas = seen.znode("/brokers/topics/spread")["partitions"]
    pairs = [replicas[str(index)] for index in range(9)]
    for part in (pairs[:6], pairs[6:]):
        leaders = [pair[0] for pair in part]
        assert sorted(leaders) == sorted(ALL * (len(part) // 3))
        hosts = [each for pair in part for each in pair]
        assert {each: hosts.count(each) for each in ALL} == dict.fromkeys(ALL, len(part) * 2 // 3)
    seen.wait_for_leaders("spread", [pair[0] for pair in pairs])
    for index, pair in enumerate(pairs):
        for broker_id in ALL:
            eventually(
                lambda by=broker_id, of=index, at=pair: (
                    seen.has_data(by, "spread", of)  # type: ignore[misc]
                    == (by in at)
                ),
                "data is not where it should be",
            )


def test_deletion_waits_for_a_dead_broker(seen: ClusterView) -> None:
    seen.create("going", [1, 3])
    kill(seen, 3)

    seen.delete("going")
    eventually(lambda: not seen.has_data(1, "going"), "the living replica is not deleted")
    assert seen.exists("/brokers/topics/going")
    assert seen.exists("/admin/delete_topics/going")
    restart(seen, 3)
    eventually(lambda: not seen.exists("/brokers/topics/going"), "the deletion does not go on")
    eventually(lambda: not seen.has_data(3, "going"), "data of a deleted topic")
    assert not seen.exists("/admin/delete_topics/going")


def reassignments(seen: ClusterView) -> dict[str, OngoingPartitionReassignment]:
    response = seen.client.call_controller(ListPartitionReassignmentsRequest(topics=None))
    assert isinstance(response, ListPartitionReassignmentsResponse)
    return {topic.name: topic.partitions[0] for topic in response.topics}


def test_a_throttled_reassignment_is_cancelled_and_done_again(seen: ClusterView) -> None:
    seen.create("slow", [1, 2])
    seen.produce("slow", 300, size=10_000)
    seen.alter_config(TOPIC_CONFIG, "slow", follower_replication_throttled_replicas="*")
    seen.alter_config(BROKER_CONFIG, "3", follower_replication_throttled_rate="1")
    seen.reassign("slow", [1, 3])
    # One request may bring more than the rate allows; what follows waits, for days at this rate.
    eventually(lambda: len(seen.log_bytes(3, "slow")) > 0, "nothing is copied")
    row = reassignments(seen)["slow"]
    assert (row.adding_replicas, row.removing_replicas) == ([3], [2])
    node = seen.znode("/brokers/topics/slow")
    assert (node["adding_replicas"], node["removing_replicas"]) == ({"0": [3]}, {"0": [2]})
    assert len(seen.log_bytes(3, "slow")) < len(seen.log_bytes(1, "slow"))

    seen.reassign("slow", None)
    assert reassignments(seen) == {}
    assert seen.znode("/brokers/topics/slow")["partitions"] == {"0": [1, 2]}
    eventually(lambda: not seen.has_data(3, "slow"), "what was copied stays")
    seen.wait_for_leaders("slow", [1])

    seen.reassign("slow", [2, 3])

    seen.alter_config(BROKER_CONFIG, "3", follower_replication_throttled_rate="1000000000")
    eventually(lambda: not reassignments(seen), "the reassignment does not end")
    seen.wait_for_leaders("slow", [2])
    assert seen.znode("/brokers/topics/slow")["partitions"] == {"0": [2, 3]}
    eventually(lambda: not seen.has_data(1, "slow"), "the replica that left keeps its data")
    seen.wait_for_same_data("slow", 2, 3)


def test_a_reassignment_by_znode_and_a_broker_that_misses_it(seen: ClusterView) -> None:
    """The broker that a partition was taken from while it was away keeps its log as a stray."""
    seen.create("taken", [1, 3])
    seen.produce("taken", 10)
    seen.wait_for_same_data("taken", 1, 3)
    kill(seen, 3)
    row = {"topic": "taken", "partition": 0, "replicas": [1, 2]}
    wanted = {"version": 1, "partitions": [row]}
    seen.tree.create("/admin/reassign_partitions", json.dumps(wanted).encode())
    eventually(
        lambda: not seen.exists("/admin/reassign_partitions"), "no controller carries it out"
    )
    seen.wait_for_isr("taken", {1, 2})
    node = seen.znode("/brokers/topics/taken")
    assert node["partitions"] == {"0": [1, 2]}
    assert (node["adding_replicas"], node["removing_replicas"]) == ({}, {})
    seen.wait_for_same_data("taken", 1, 2)
    restart(seen, 3)
    assert not seen.has_data(3, "taken")
    (stray,) = seen.cluster[3].data_directory.glob("taken-0.*-stray")
    assert (stray / f"{0:020}.log").read_bytes() == seen.log_bytes(1, "taken")
    seen.reassign("taken", [1, 3])
    eventually(lambda: not reassignments(seen), "the reassignment does not end")
    seen.produce("taken", 10)
    seen.wait_for_same_data("taken", 1, 3)
    assert stray.exists()


def test_too_few_in_sync_replicas_take_no_records(seen: ClusterView) -> None:
    seen.create("strict", [1, 2], min_insync_replicas="2")
    seen.produce("strict", 10)
    kill(seen, 2)
    seen.wait_for_isr("strict", {1})
    seen.wait_for_leaders("strict", [1], 1, 3)
    row = PartitionProduceData(0, build_batch([(0, None, b"refused", [])]))
    request = ProduceRequest(None, -1, 5_000, [TopicProduceData("strict", [row])])

    def is_refused() -> bool:
        """The leader hears of the ISR in ZooKeeper a little later, and appends until then."""
        records = seen.log_bytes(1, "strict")
        response = seen.ask(1, request)
        assert isinstance(response, ProduceResponse)
        code = response.responses[0].partition_responses[0].error_code
        if code != ErrorCode.NOT_ENOUGH_REPLICAS:
            assert code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            return False
        assert seen.log_bytes(1, "strict") == records
        return True

    eventually(is_refused, "records are taken")
    seen.produce("strict", 1, acks="1")
    restart(seen, 2)
    seen.wait_for_isr("strict", {1, 2})
    seen.produce("strict", 10)
    seen.wait_for_same_data("strict", 1, 2)


def test_preferred_leaders_by_znode_and_by_request(seen: ClusterView) -> None:
    seen.create("preferred", [1, 2])
    for by_znode in (True, False):
        seen.wait_for_isr("preferred", {1, 2})
        kill(seen, 1)
        seen.wait_for_leaders("preferred", [2], 2, 3)
        restart(seen, 1)
        seen.wait_for_isr("preferred", {1, 2})
        assert seen.leaders("preferred", 3) == [2]
        if by_znode:
            wanted = {"version": 1, "partitions": [{"topic": "preferred", "partition": 0}]}
            seen.tree.create("/admin/preferred_replica_election", json.dumps(wanted).encode())
            eventually(
                lambda: not seen.exists("/admin/preferred_replica_election"),
                "no controller reads it",
            )
        else:
            topics = [TopicPartitions("preferred", [0])]
            response = seen.client.call_controller(ElectLeadersRequest(0, topics))
            assert isinstance(response, ElectLeadersResponse)
            assert response.replica_election_results[0].partition_result[0].error_code == 0
        seen.wait_for_leaders("preferred", [1])


def test_an_isr_change_of_an_old_broker_is_sent_to_all_brokers(seen: ClusterView) -> None:
    """Leaders of before AlterPartition write the state themselves and tell the controller."""
    seen.create("isr", [1, 2])
    state = {**seen.state("isr"), "isr": [1]}
    seen.tree.set("/brokers/topics/isr/partitions/0/state", json.dumps(state).encode())
    change = {"version": 1, "partitions": [{"topic": "isr", "partition": 0}]}
    seen.tree.create(
        "/isr_change_notification/isr_change_", json.dumps(change).encode(), sequence=True
    )
    eventually(lambda: seen.partitions(3, "isr")[0].isr_nodes == [1], "brokers have the old state")
    eventually(lambda: seen.children("/isr_change_notification") == [], "the notification stays")


def test_a_changed_address_of_a_broker_is_sent_to_all_brokers(seen: ClusterView) -> None:
    node = seen.znode("/brokers/ids/3")

    def hosts() -> set[str]:
        return {row.host for row in seen.metadata(1, "none").brokers if row.node_id == 3}

    for host in ("localhost", "127.0.0.1"):
        node["endpoints"] = [f"PLAINTEXT://{host}:{seen.cluster[3].port}"]
        seen.tree.set("/brokers/ids/3", json.dumps(node).encode())
        wanted = {host}
        eventually(lambda wanted=wanted: hosts() == wanted, "brokers have the old state")  # type: ignore[misc]


def test_unclean_election_is_a_choice_of_the_topic(seen: ClusterView) -> None:
    seen.create("unclean", [1, 2])
    seen.produce("unclean", 10)
    seen.wait_for_same_data("unclean", 1, 2)
    kill(seen, 2)
    seen.wait_for_isr("unclean", {1})
    seen.produce("unclean", 10)
    kill(seen, 1)
    restart(seen, 2)
    seen.wait_for_leaders("unclean", [-1], 2, 3)
    assert (seen.state("unclean")["leader"], seen.state("unclean")["isr"]) == (-1, [1])

    seen.alter_config(TOPIC_CONFIG, "unclean", unclean_leader_election_enable="true")
    seen.wait_for_leaders("unclean", [2], 2, 3)
    seen.produce("unclean", 5)
    restart(seen, 1)
    seen.wait_for_isr("unclean", {1, 2})
    seen.wait_for_same_data("unclean", 1, 2)


def test_a_fenced_controller_changes_nothing(seen: ClusterView) -> None:
    seen.create("ruled", [1, 2, 3])
    old = seen.controller()
    others = [each for each in ALL if each != old]
    epoch = int(seen.tree.get("/controller_epoch")[0])
    process = seen.cluster[old].pid
    os.kill(process, signal.SIGSTOP)
    try:
        eventually(lambda: seen.controller() in others, "no broker takes over")
        leader = min(others)
        seen.wait_for_leaders("ruled", [leader], *others)
        seen.wait_for_isr("ruled", set(others))
    finally:
        os.kill(process, signal.SIGCONT)
    eventually(lambda: seen.is_registered(old), "the old one does not come back")
    seen.wait_for_isr("ruled", {1, 2, 3})
    assert int(seen.tree.get("/controller_epoch")[0]) > epoch
    assert seen.controller() in others
    seen.wait_for_leaders("ruled", [leader])
    assert seen.state("ruled")["controller_epoch"] > epoch
    eventually(
        lambda: seen.metadata(old, "ruled").controller_id == seen.controller(),
        "it believes in another controller",
    )


def test_a_controller_whose_znode_is_deleted_resigns(seen: ClusterView) -> None:
    """What operators do to have another one elected."""
    epoch = int(seen.tree.get("/controller_epoch")[0])
    before = seen.tree.exists("/controller").czxid
    seen.tree.delete("/controller")
    eventually(lambda: seen.controller() in ALL, "no broker takes over")
    assert seen.tree.exists("/controller").czxid > before
    assert int(seen.tree.get("/controller_epoch")[0]) > epoch
    for broker_id in ALL:
        eventually(
            lambda by=broker_id: (  # type: ignore[misc]
                seen.metadata(by, "none").controller_id == seen.controller()
            ),
            "a broker knows of another controller",
        )
    seen.create("resigned", [3, 1])
    assert seen.state("resigned")["controller_epoch"] > epoch
    seen.produce("resigned", 10)
    seen.wait_for_same_data("resigned", 3, 1)


def test_a_broker_is_back_before_its_session_has_ended(seen: ClusterView) -> None:
    before = seen.tree.exists("/brokers/ids/2").czxid
    seen.cluster[2].restart_after_kill()
    assert seen.tree.exists("/brokers/ids/2").czxid > before
    seen.create("after", [2, 1])


def test_a_leader_that_lost_records_does_not_lead(seen: ClusterView) -> None:
    """The controller loses its power, and what it had not flushed, and is back before its session
    has ended: it is elected again, and its own registration says what happened to its logs."""
    lost = seen.controller()
    (other, _) = (each for each in ALL if each != lost)
    seen.create("power", [lost, other])
    seen.produce("power", 100, size=100)
    seen.wait_for_same_data("power", lost, other)
    kept = seen.log_bytes(other, "power")
    epoch = seen.state("power")["leader_epoch"]
    seen.cluster[lost].kill()
    directory = seen.replica(lost, "power")
    assert directory is not None
    (segment,) = directory.glob("*.log")
    os.truncate(segment, len(kept) // 2)
    restart(seen, lost)
    seen.wait_for_leaders("power", [other])
    seen.wait_for_isr("power", {lost, other})
    seen.wait_for_same_data("power", lost, other)
    assert seen.log_bytes(other, "power") == kept
    assert seen.state("power")["leader_epoch"] > epoch
    seen.produce("power", 1)


def test_producer_ids_come_in_blocks_for_one_broker_each(seen: ClusterView) -> None:
    ids = []
    for broker_id in ALL:
        response = seen.ask(broker_id, InitProducerIdRequest(None, 60_000, -1, -1))
        assert isinstance(response, InitProducerIdResponse)
        assert response.error_code == 0
        ids.append(response.producer_id)
    assert len({each // 1000 for each in ids}) == len(ALL)
    block = seen.znode("/latest_producer_id_block")
    assert int(block["block_end"]) >= max(ids)
