"""Checks of a cluster by Kafka's protocol, for `ottla doctor` and `ottla status`.

They hold for brokers of Kafka, too. The faults that brokers of Ottla report of themselves are in
`ottla.cli.broker_status`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.cli.reassignment_file import (
    BROKER_RESOURCE,
    RATES,
    THROTTLED_REPLICAS,
    TOPIC_RESOURCE,
)
from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Node, Operation, Route
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
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
    from ottla.protocol.client.cluster import Address
    from ottla.protocol.client.operations import Operations
    from ottla.protocol.message import Message
    from ottla.protocol.messages.describe_cluster import DescribeClusterBroker
    from ottla.protocol.messages.metadata import (
        MetadataResponse,
        MetadataResponseBroker,
        MetadataResponsePartition,
    )

_MOVES_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
# The names that one line has room for.
LISTED_MAX = 5
# A request for the settings of so many topics has a response of some 100 KB.
TOPICS_PER_REQUEST = 500

# As `ConfigEntry.ConfigSource`: set at run time for a topic, a broker, or all brokers.
_SET_AT_RUN_TIME = (1, 2, 3)

#: Each check with what to do about what it finds; docs/cli.md has the same table.
FIXES = {
    "no-controller": "brokers elect one through ZooKeeper; check that they can reach it",
    "same-address": "give each broker its own advertised.listeners",
    "wrong-broker": "each broker needs an advertised address of its own that leads to it: check "
    "advertised.listeners, mapped ports and load balancers",
    "missing-brokers": "start these brokers; if they do not come back, move their replicas with "
    "`ottla partitions reassign`",
    "offline-partitions": "start the brokers that have their replicas, and check their disks with "
    "`ottla log-dirs`; `ottla partitions under-replicated` lists them",
    "under-replicated": "start the brokers of the missing replicas, or wait until they have caught "
    "up; `ottla partitions under-replicated` lists them",
    "throttle-left": "no reassignment runs any more: remove it with `ottla partitions reassign "
    "verify PLAN.json`, or with `ottla configs unset`",
}


class Problem(NamedTuple):
    """What a check has found; `check` is a key of `FIXES`."""

    check: str
    finding: str

    @property
    def fix(self) -> str:
        """What to do about it."""
        return FIXES[self.check]


def cluster_problems(metadata: MetadataResponse) -> list[Problem]:
    """Problems of the brokers of a cluster. Needs no topics in the metadata."""
    found = []
    if metadata.controller_id < 0:
        found.append(Problem("no-controller", "there is no controller"))
    by_address: dict[tuple[str, int], int] = {}
    for row in metadata.brokers:
        other = by_address.setdefault((row.host, row.port), row.node_id)
        if other != row.node_id:
            finding = f"brokers {other} and {row.node_id} advertise {row.host}:{row.port}"
            found.append(Problem("same-address", finding))
    return found


def partition_problems(metadata: MetadataResponse) -> list[Problem]:
    """Problems of the partitions in the metadata of all topics."""
    alive = {row.node_id for row in metadata.brokers}
    missing: dict[int, int] = defaultdict(int)
    offline, under_replicated = [], []
    for topic in metadata.topics:
        for row in topic.partitions:
            name = f"{topic.name}-{row.partition_index}"
            if row.leader_id < 0:
                offline.append(name)
            elif len(row.isr_nodes) < len(row.replica_nodes):
                under_replicated.append(name)
            for broker_id in row.replica_nodes:
                if broker_id not in alive:
                    missing[broker_id] += 1
    found = []
    if missing:
        named = ", ".join(f"{number} ({missing[number]})" for number in sorted(missing))
        found.append(
            Problem("missing-brokers", f"brokers with replicas are not in the cluster: {named}")
        )
    if offline:
        finding = f"partitions without a leader: {len(offline)} ({_named(offline)})"
        found.append(Problem("offline-partitions", finding))
    if under_replicated:
        finding = f"under-replicated partitions: {len(under_replicated)}"
        found.append(Problem("under-replicated", f"{finding} ({_named(under_replicated)})"))
    return found


def throttle_problems(session: Session, metadata: MetadataResponse) -> list[Problem]:
    """Throttles of replication that are set while no reassignment runs.

    Nothing is found where this user may not see settings or reassignments.
    """
    try:
        request = ListPartitionReassignmentsRequest(topics=None)
        ongoing = session.call(ListPartitionReassignmentsResponse, request)
        if ongoing.error_code or ongoing.topics:
            return []
        found = []
        for row in sorted(metadata.brokers, key=lambda each: each.node_id):
            names = {str(row.node_id): f"broker {row.node_id}"}
            route = Node(row.node_id)
            found += _set_values(session, BROKER_RESOURCE, names, (*RATES, _MOVES_RATE), route)
        topics = [topic.name for topic in metadata.topics if topic.name]
        for start in range(0, len(topics), TOPICS_PER_REQUEST):
            some = {name: f"topic {name}" for name in topics[start : start + TOPICS_PER_REQUEST]}
            found += _set_values(session, TOPIC_RESOURCE, some, THROTTLED_REPLICAS, None)
    except (ClientError, KafkaError, ProtocolError):
        return []
    if not found:
        return []
    return [Problem("throttle-left", f"replication is throttled: {_named(found)}")]


def _set_values(
    session: Session,
    kind: int,
    resources: Mapping[str, str],
    keys: Iterable[str],
    route: Route | None,
) -> list[str]:
    """Return a text for each of the settings that is set at run time, and not empty."""
    wanted = [DescribeConfigsResource(kind, name, list(keys)) for name in resources]
    request = DescribeConfigsRequest(resources=wanted)
    response = session.call(DescribeConfigsResponse, request, route)
    return [
        f"{resources[result.resource_name]} has {row.name}={row.value}"
        for result in response.results
        if not result.error_code and result.resource_name in resources
        for row in result.configs
        if row.value and row.config_source in _SET_AT_RUN_TIME
    ]


class At(Route):
    """To the broker at an address, whatever the metadata says of it."""

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
    for result in response.results:
        if result.error_code == ErrorCode.INVALID_REQUEST:
            expected = re.search(r"expected (-?\d+)", result.error_message or "")
            if expected is not None:
                return int(expected[1])
    return None


def check_identity(session: Session, broker_id: int) -> Problem | None:
    """Whether the advertised address of a broker leads to that broker."""
    try:
        other = other_broker(
            lambda request: session.call(DescribeConfigsResponse, request, Node(broker_id)),
            broker_id,
        )
    except ClientError:
        return None
    if other is None:
        return None
    return Problem(
        "wrong-broker", f"broker {other} responds at the advertised address of broker {broker_id}"
    )


def broker_row(
    broker: MetadataResponseBroker | DescribeClusterBroker,
    broker_id: int,
    controller_id: int,
    partitions: Sequence[MetadataResponsePartition],
) -> dict[str, Cell]:
    """A row of the table of brokers."""
    return {
        "broker": broker_id,
        "address": f"{broker.host}:{broker.port}",
        "rack": broker.rack,
        "controller": broker_id == controller_id,
        "leader_of": sum(item.leader_id == broker_id for item in partitions),
        "replicas": sum(broker_id in item.replica_nodes for item in partitions),
    }


def partition_counts(
    topics: int, partitions: Sequence[MetadataResponsePartition]
) -> dict[str, Cell]:
    """How many topics and partitions a cluster has, and in which state."""
    return {
        "topics": topics,
        "partitions": len(partitions),
        "without_leader": sum(item.leader_id < 0 for item in partitions),
        "under_replicated": sum(len(p.isr_nodes) < len(p.replica_nodes) for p in partitions),
    }


def _named(names: list[str]) -> str:
    more = len(names) - LISTED_MAX
    return ", ".join(names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
