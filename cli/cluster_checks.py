"""Checks of a cluster by Kafka's protocol, for `ottla doctor` and `ottla status`.

They hold for brokers of Kafka, too. What is a problem decides
`ottla.broker.cluster.cluster_problems`, for the web console as well. The faults that brokers of
Ottla report of themselves are in `ottla.cli.broker_status`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.cluster import cluster_problems as cluster
from ottla.broker.cluster.cluster_problems import (
    MIN_ISR,
    THROTTLES_OF_BROKER,
    THROTTLES_OF_TOPIC,
    Adding,
    PartitionRow,
    Problem,
    adding_of,
    broker_problems,
    broker_that_answered,
    identity_problem,
    is_under_replicated,
    values_set,
)
from ottla.cli.reassignment_file import BROKER_RESOURCE, TOPIC_RESOURCE
from ottla.protocol.client.cluster import Address
from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Controller, Node, Operation, Route
from ottla.protocol.errors import KafkaError, ProtocolError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from ottla.cli.output import Cell
    from ottla.cli.session import Session
    from ottla.protocol.client.operations import Operations
    from ottla.protocol.message import Message
    from ottla.protocol.messages.describe_cluster import DescribeClusterBroker
    from ottla.protocol.messages.metadata import (
        MetadataResponse,
        MetadataResponseBroker,
        MetadataResponsePartition,
        MetadataResponseTopic,
    )

# The response with the settings of this number of topics has some 100 KB.
TOPICS_PER_REQUEST = 500

_OFFSETS = "__consumer_offsets", "offsets.topic.replication.factor"
_TRANSACTIONS = "__transaction_state", "transaction.state.log.replication.factor"
# The second is a setting that brokers of Kafka do not have.
_ZOOKEEPER, _OF_OTTLA = "zookeeper.connect", "ottla.metrics.address"
# The kind of resource on which a setting is set at run time, as `ConfigEntry.ConfigSource`.
KINDS_BY_SOURCE = {1: "topic", 2: "broker", 3: "cluster"}


class ClusterFinding(NamedTuple):
    """As `Problem`, of a check that only the command line makes, or with a remedy of its own."""

    finding: str
    fix: str
    is_note: bool = False


def cluster_problems(metadata: MetadataResponse) -> list[Problem]:
    """Problems of the brokers of a cluster. Needs no topics in the metadata."""
    rows = ((row.node_id, row.host, row.port) for row in metadata.brokers)
    return broker_problems(metadata.controller_id, rows)


def reassignments(session: Session, metadata: MetadataResponse) -> Adding | None:
    """The reassignments in progress; None where this user may not see them, or no controller
    responds. Without a controller it is not waited for."""
    if metadata.controller_id < 0:
        return None
    try:
        request = ListPartitionReassignmentsRequest(topics=None)
        response = session.call(ListPartitionReassignmentsResponse, request, Controller())
    except (ClientError, KafkaError, ProtocolError):
        return None
    return None if response.error_code else adding_of(response)


def replicas_being_added(session: Session, topics: Iterable[MetadataResponseTopic]) -> Adding:
    """The reassignments in progress; the controller is asked only if a replica is not in sync."""
    rows = (row for topic in topics for row in topic.partitions)
    if not any(is_under_replicated(row.replica_nodes, row.isr_nodes) for row in rows):
        return {}
    return reassignments(session, session.client.metadata([])) or {}


def partition_problems(metadata: MetadataResponse, adding: Adding | None = None) -> list[Problem]:
    """Problems of the partitions in the metadata of all topics, and a note about reassignments."""
    alive = {row.node_id for row in metadata.brokers}
    return cluster.partition_problems(alive, _rows(metadata), adding)


def _rows(metadata: MetadataResponse) -> Iterable[PartitionRow]:
    return (
        PartitionRow(
            topic.name or "", row.partition_index, row.leader_id, row.isr_nodes, row.replica_nodes
        )
        for topic in metadata.topics
        for row in topic.partitions
    )


def min_isr_problems(
    ask: Callable[[DescribeConfigsRequest], Message], metadata: MetadataResponse
) -> list[Problem]:
    """Partitions that refuse acks=all. `ask` sends to any broker, and only if one of the
    partitions has a replica that is not in sync. Nothing is found where this user may not see
    settings."""
    rows = cluster.without_some_replicas(_rows(metadata))
    topics = list(dict.fromkeys(row.topic for row in rows))
    found: dict[str, int] = {}
    try:
        for request in _requests_of_topics(topics, [MIN_ISR]):
            response = ask(request)
            assert isinstance(response, DescribeConfigsResponse)
            found |= cluster.min_isr_of(response)
    except (ClientError, KafkaError, ProtocolError):
        return []
    return cluster.min_isr_problems(rows, found)


def throttle_problems(
    session: Session, metadata: MetadataResponse, adding: Adding | None
) -> list[ClusterFinding]:
    """Throttles of replication that are set while no reassignment runs. Topics alone are a note:
    only the rate of a broker limits.

    Nothing is found where this user may not see settings or reassignments.
    """
    if adding is None or adding:
        return []
    found: list[str] = []
    commands: list[str] = []
    try:
        for row in sorted(metadata.brokers, key=lambda each: each.node_id):
            request = _settings_request(BROKER_RESOURCE, [str(row.node_id)], THROTTLES_OF_BROKER)
            response = session.call(DescribeConfigsResponse, request, Node(row.node_id))
            found += values_set(response)
            commands += _unset_commands(response)
        has_rate = bool(found)
        topics = [topic.name for topic in metadata.topics if topic.name]
        for request in _requests_of_topics(topics, THROTTLES_OF_TOPIC):
            response = session.call(DescribeConfigsResponse, request, None)
            found += values_set(response)
            commands += _unset_commands(response)
    except (ClientError, KafkaError, ProtocolError):
        return []
    fix = f"no reassignment runs any more: {cluster.named(list(dict.fromkeys(commands)))}"
    if has_rate:
        return [ClusterFinding(each.finding, fix) for each in cluster.throttle_problems(found)]
    text = f"listed for throttling, but no broker has a rate: {cluster.named(found)}"
    return [ClusterFinding(text, fix, is_note=True)] if found else []


def _unset_commands(response: DescribeConfigsResponse) -> list[str]:
    """The commands that remove what `values_set` names, one for each resource."""
    settings: dict[str, list[str]] = {}
    for result in response.results:
        for row in result.configs:
            kind = KINDS_BY_SOURCE.get(row.config_source)
            if row.value and kind is not None:
                where = kind if kind == "cluster" else f"{kind} {result.resource_name}"
                settings.setdefault(where, []).append(row.name)
    return [f"`ottla configs unset {on} {' '.join(names)}`" for on, names in settings.items()]


def internal_topic_problems(session: Session, metadata: MetadataResponse) -> list[ClusterFinding]:
    """Internal topics that cannot be created, because too few brokers are live. Nothing is found
    where this user may not see settings."""
    alive = sorted(row.node_id for row in metadata.brokers)
    existing = {topic.name for topic in metadata.topics}
    missing = {key: topic for topic, key in (_OFFSETS, _TRANSACTIONS) if topic not in existing}
    if not alive or not missing:
        return []
    keys = [*missing, _ZOOKEEPER, _OF_OTTLA]
    request = _settings_request(BROKER_RESOURCE, [str(alive[0])], keys)
    try:
        response = session.call(DescribeConfigsResponse, request, Node(alive[0]))
    except (ClientError, KafkaError, ProtocolError):
        return []
    values = {row.name: row.value for result in response.results for row in result.configs}
    if _OF_OTTLA in values and not values.get(_ZOOKEEPER):
        return []  # a lone broker without ZooKeeper creates them with one replica
    found = []
    for key, topic in missing.items():
        if int(values.get(key) or 0) > len(alive):
            is_note = topic != _OFFSETS[0]
            what = "no transaction can begin" if is_note else "no consumer group can work"
            live = f"{len(alive)} live broker{'s' * (len(alive) > 1)}"
            finding = f"{what}: {topic} cannot be created, {key} is {values[key]} with {live}"
            fix = (
                f"start more brokers, or set {key}={len(alive)} in the properties file of each "
                "broker and restart it"
            )
            found.append(ClusterFinding(finding, fix, is_note))
    return found


def _requests_of_topics(
    topics: Sequence[str], keys: Iterable[str]
) -> Iterable[DescribeConfigsRequest]:
    """For these settings of all topics, some topics in each."""
    for start in range(0, len(topics), TOPICS_PER_REQUEST):
        some = topics[start : start + TOPICS_PER_REQUEST]
        yield _settings_request(TOPIC_RESOURCE, some, keys)


def _settings_request(
    kind: int, names: Iterable[str], keys: Iterable[str]
) -> DescribeConfigsRequest:
    wanted = [DescribeConfigsResource(kind, name, list(keys)) for name in names]
    return DescribeConfigsRequest(resources=wanted)


class At(Route):
    """To the broker at an address, which need not be in the metadata."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def resolve(self, client: Operations, deadline_ms: int) -> Operation[list[Address]]:
        """The one address."""
        del client, deadline_ms
        yield from ()
        return [self.address]


def other_broker(ask: Callable[[DescribeConfigsRequest], Message], broker_id: int) -> int | None:
    """Return the id of the broker that `ask` reaches, if it is not the one with this id.

    Only that one accepts the request. None also if this user may not describe brokers. Raises
    ClientError.
    """
    resource = DescribeConfigsResource(BROKER_RESOURCE, str(broker_id), ["broker.id"])
    try:
        response = ask(DescribeConfigsRequest(resources=[resource]))
    except (KafkaError, ProtocolError):
        return None
    assert isinstance(response, DescribeConfigsResponse)
    return broker_that_answered(response)


def check_identity(session: Session, broker_id: int) -> Problem | None:
    """Whether the advertised address of a broker leads to that broker."""
    try:
        other = other_broker(
            lambda request: session.call(DescribeConfigsResponse, request, Node(broker_id)),
            broker_id,
        )
    except ClientError:
        return None
    return None if other is None else identity_problem(other, broker_id)


def broker_row(
    broker: MetadataResponseBroker | DescribeClusterBroker,
    broker_id: int,
    controller_id: int,
    partitions: Sequence[MetadataResponsePartition],
) -> dict[str, Cell]:
    """A row of the table of brokers."""
    return {
        "broker": broker_id,
        "address": str(Address(broker.host, broker.port)),
        "rack": broker.rack,
        "controller": broker_id == controller_id,
        "leader_of": sum(item.leader_id == broker_id for item in partitions),
        "replicas": sum(broker_id in item.replica_nodes for item in partitions),
    }


def partition_counts(
    topics: Sequence[MetadataResponseTopic], adding: Adding | None
) -> dict[str, Cell]:
    """The numbers of topics and partitions of a cluster, by state."""
    rows = [(topic.name or "", row) for topic in topics for row in topic.partitions]
    under_replicated = sum(
        is_under_replicated(
            row.replica_nodes, row.isr_nodes, (adding or {}).get((name, row.partition_index), ())
        )
        for name, row in rows
    )
    return {
        "topics": len(topics),
        "partitions": len(rows),
        "without_leader": sum(row.leader_id < 0 for _, row in rows),
        "under_replicated": under_replicated,
    }
