"""What doctor and status find in the metadata of a cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ottla.broker.cluster.cluster_problems import FIXES, adding_of
from ottla.cli.cluster_checks import (
    broker_row,
    cluster_problems,
    internal_topic_problems,
    min_isr_problems,
    other_broker,
    partition_counts,
    partition_problems,
    throttle_problems,
)
from ottla.cli.session import Session
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

BROKERS = [MetadataResponseBroker(number, "host", 9090 + number) for number in (1, 2)]


def partition(index: int, leader: int, replicas: list[int], isr: list[int]) -> object:
    return MetadataResponsePartition(
        partition_index=index, leader_id=leader, replica_nodes=replicas, isr_nodes=isr
    )


def cluster(*partitions: object, controller: int = 1) -> MetadataResponse:
    topic = MetadataResponseTopic(name="t", partitions=list(partitions))  # type: ignore[arg-type]
    return MetadataResponse(brokers=BROKERS, topics=[topic], controller_id=controller)


def test_a_healthy_cluster() -> None:
    found = cluster(partition(0, 1, [1, 2], [2, 1]))
    assert cluster_problems(found) + partition_problems(found) == []


def test_no_controller_and_one_address_for_two() -> None:
    found = cluster(controller=-1)
    found.brokers = [*BROKERS, MetadataResponseBroker(3, "host", 9091)]
    assert [each.check for each in cluster_problems(found)] == ["no-controller", "same-address"]
    assert cluster_problems(found)[1].finding == "brokers 1 and 3 advertise host:9091"


def test_partitions_without_leader_or_replicas() -> None:
    rows = [partition(number, -1, [3], [3]) for number in range(7)]
    found = partition_problems(cluster(*rows, partition(8, 1, [1, 2, 4], [1, 2])))
    assert [tuple(each) for each in found] == [
        ("missing-brokers", "brokers with replicas are not in the cluster: 3 (7), 4 (1)"),
        (
            "offline-partitions",
            "partitions without a leader: 7 (t-0, t-1, t-2, t-3, t-4 and 2 more)",
        ),
        ("under-replicated", "under-replicated partitions: 1 (t-8)"),
    ]
    assert all(each.fix == FIXES[each.check] for each in found)


def test_replicas_that_a_reassignment_adds_are_not_missing() -> None:
    found = cluster(
        partition(0, 1, [3, 1, 2], [1, 2]),  # 3 is added, and copies
        partition(1, 1, [3, 1], [3, 1]),  # 3 is added, and in sync; 1 is removed next
        partition(2, 1, [1, 2, 3], [1]),  # 2 is missing as well
        partition(3, 1, [1, 2], [1]),
    )
    found.brokers = [*BROKERS, MetadataResponseBroker(3, "host", 9093)]
    adding = adding_of(
        ListPartitionReassignmentsResponse(
            topics=[
                OngoingTopicReassignment(
                    "t",
                    [
                        OngoingPartitionReassignment(index, adding_replicas=[3], replicas=[1, 2, 3])
                        for index in (0, 1, 2)
                    ],
                )
            ]
        )
    )
    assert [tuple(each) for each in partition_problems(found, adding)] == [
        ("under-replicated", "under-replicated partitions: 2 (t-2, t-3)"),
        (
            "reassignment",
            "partitions are being reassigned: 3 (t-0, t-1, t-2); "
            "replicas left to copy: 2 to broker 3",
        ),
    ]
    assert partition_counts(found.topics, adding)["under_replicated"] == 2
    assert partition_counts(found.topics, None)["under_replicated"] == 3
    done = partition_problems(cluster(partition(0, 1, [2, 1], [1, 2])), {("t", 0): {2}})
    assert [each.finding for each in done] == [
        "partitions are being reassigned: 1 (t-0); all copies are in sync"
    ]
    assert [each.is_note for each in done] == [True]


@pytest.mark.parametrize(
    ("code", "message", "other"),
    [
        (0, None, None),
        (42, "Unexpected broker id, expected 7, but received 8", 7),
        (42, "Unexpected broker id, expected 7 or empty string, but received 8", 7),
        (42, None, None),
        (31, "Cluster authorization failed.", None),
    ],
)
def test_who_responds(code: int, message: str | None, other: int | None) -> None:
    result = DescribeConfigsResult(error_code=code, error_message=message)
    response = DescribeConfigsResponse(results=[result])
    assert other_broker(lambda _: response, 8) == other


def test_an_ipv6_address_has_brackets() -> None:
    row = broker_row(MetadataResponseBroker(1, "fd00::2", 9092), 1, 1, [])
    assert row["address"] == "[fd00::2]:9092"


def test_partitions_that_refuse_acks_all() -> None:
    """Only topics that lack a replica are asked for; a partition has no more than its replicas."""
    asked: list[list[str]] = []

    def ask(request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        asked.append([each.resource_name for each in request.resources])
        row = DescribeConfigsResourceResult(name="min.insync.replicas", value="2")
        return DescribeConfigsResponse(
            results=[DescribeConfigsResult(resource_name="t", configs=[row])]
        )

    whole = cluster(partition(0, 1, [1, 2], [1, 2]), partition(1, 1, [1], [1]))
    assert (min_isr_problems(ask, whole), asked) == ([], [])
    rows = [
        partition(0, 1, [1, 2, 3], [1]),
        partition(1, 1, [1, 2, 3], [1, 2]),
        partition(2, -1, [1, 2], [1]),  # has no leader at all
    ]
    (found,) = min_isr_problems(ask, cluster(*rows))
    assert tuple(found) == (
        "under-min-isr", "partitions below min.insync.replicas, which refuse acks=all: 1 (t-0)",
    )  # fmt: skip
    assert found.fix == FIXES["under-min-isr"]
    assert asked == [["t"]]

    def refused(_: DescribeConfigsRequest) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[DescribeConfigsResult(error_code=29, resource_name="t")]
        )

    assert min_isr_problems(refused, cluster(*rows)) == []


class Settings:
    """A session that describes settings by kind and name of their resource: name, value, source."""

    def __init__(self, found: dict[tuple[int, str], list[tuple[str, str, int]]]) -> None:
        self._found = found

    def call(self, kind: type, request: DescribeConfigsRequest, _to: object) -> Any:
        results = [
            DescribeConfigsResult(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                configs=[
                    DescribeConfigsResourceResult(name=name, value=value, config_source=source)
                    for name, value, source in self._found.get(
                        (each.resource_type, each.resource_name), ()
                    )
                    if name in (each.configuration_keys or ())
                ],
            )
            for each in request.resources
        ]
        return kind(results=results)


LISTED = "leader.replication.throttled.replicas"
LIMITED = "leader.replication.throttled.rate"


def test_topics_that_are_listed_for_throttling_without_a_rate_are_a_note() -> None:
    found = cluster(partition(0, 1, [1], [1]))
    listed: dict[tuple[int, str], list[tuple[str, str, int]]] = {(2, "t"): [(LISTED, "*", 1)]}
    (note,) = throttle_problems(cast(Session, Settings(listed)), found, {})
    assert note.is_note
    assert note.finding == (
        f"listed for throttling, but no broker has a rate: topic t has {LISTED}=*"
    )
    assert note.fix.endswith(f"`ottla configs unset topic t {LISTED}`")
    limited = listed | {(4, "1"): [(LIMITED, "9", 2)], (4, "2"): [(LIMITED, "8", 3)]}
    (problem,) = throttle_problems(cast(Session, Settings(limited)), found, {})
    assert not problem.is_note
    assert problem.finding.startswith("replication is throttled: broker 1 has")
    for where in (f"broker 1 {LIMITED}", f"cluster {LIMITED}", f"topic t {LISTED}"):
        assert f"`ottla configs unset {where}`" in problem.fix
    assert throttle_problems(cast(Session, Settings({})), found, {}) == []


def test_an_internal_topic_needs_more_brokers_than_are_live() -> None:
    names = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
    session = cast(Session, Settings({(4, "1"): [(name, "3", 5) for name in names]}))
    offsets, transactions = internal_topic_problems(session, cluster())
    assert (offsets.is_note, transactions.is_note) == (False, True)
    assert offsets.finding == (
        "no consumer group can work: __consumer_offsets cannot be created, "
        "offsets.topic.replication.factor is 3 with 2 live brokers"
    )
    assert "set offsets.topic.replication.factor=2 " in offsets.fix
    found = cluster()
    found.topics.append(MetadataResponseTopic(name="__consumer_offsets"))
    assert internal_topic_problems(session, found) == [transactions]
    found.brokers = [*BROKERS, MetadataResponseBroker(3, "host", 9093)]
    assert internal_topic_problems(session, found) == []
    lone = Settings({(4, "1"): [*((name, "3", 5) for name in names), _NO_ADDRESS, _NO_ZOOKEEPER]})
    assert internal_topic_problems(cast(Session, lone), cluster()) == []


_NO_ADDRESS = ("ottla.metrics.address", "", 5)
_NO_ZOOKEEPER = ("zookeeper.connect", "", 5)
