"""Problems of a cluster with what to do about them, for `ottla doctor`, `ottla status` and the web
console: from what any broker, of Ottla or Kafka, tells by Kafka's protocol.

The faults that brokers of Ottla report of themselves are in `ottla.broker.observability.faults`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.protocol.messages.describe_configs import DescribeConfigsResponse
    from ottla.protocol.messages.list_partition_reassignments import (
        ListPartitionReassignmentsResponse,
    )

# The names that one line has room for.
LISTED_MAX = 5

#: Settings that limit replication, of a broker and of a topic.
THROTTLES_OF_BROKER = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
THROTTLES_OF_TOPIC = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
# As `ConfigEntry.ConfigSource`: set at run time for a topic, a broker, or all brokers.
_SET_AT_RUN_TIME = (1, 2, 3)
_KINDS = {2: "topic", 4: "broker"}  # as `ConfigResource.Type`
MIN_ISR = "min.insync.replicas"

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
    "under-min-isr": "producers with acks=all get errors: start the brokers of the missing "
    "replicas, or wait until they have caught up; `ottla topics describe --under-min-isr` lists "
    "the partitions",
    "under-replicated": "start the brokers of the missing replicas, or wait until they have caught "
    "up; `ottla partitions under-replicated` lists them",
    "reassignment": "wait until they are complete: `ottla partitions progress` shows what is left, "
    "`ottla partitions reassign cancel PLAN.json` ends them",
    "throttle-left": "no reassignment runs any more: remove it with `ottla partitions reassign "
    "verify PLAN.json`, or with `ottla configs unset`",
}


class Problem(NamedTuple):
    """The finding of a check; `check` is a key of `FIXES`."""

    check: str
    finding: str

    @property
    def fix(self) -> str:
        """The remedy."""
        return FIXES[self.check]

    @property
    def is_note(self) -> bool:
        """Whether this is as somebody wants it, and no reason for an alarm."""
        return self.check == "reassignment"


class PartitionRow(NamedTuple):
    """A partition as Metadata or the metadata cache has it."""

    topic: str
    partition: int
    leader: int
    isr: Sequence[int]
    replicas: Sequence[int]


#: The replicas that reassignments in progress add, by topic and partition.
Adding = Mapping[tuple[str, int], Collection[int]]


def adding_of(response: ListPartitionReassignmentsResponse) -> Adding:
    """The partitions of a response, also those whose reassignment only removes replicas."""
    return {
        (topic.name, row.partition_index): frozenset(row.adding_replicas)
        for topic in response.topics
        for row in topic.partitions
    }


def is_under_replicated(
    replicas: Sequence[int], isr: Collection[int], adding: Collection[int] = ()
) -> bool:
    """Replicas that a reassignment adds do not count until they are in sync, as in
    kafka-topics.sh and Kafka's metric UnderReplicatedPartitions."""
    return len(isr) < sum(broker_id not in adding for broker_id in replicas)


def broker_problems(controller_id: int, addresses: Iterable[tuple[int, str, int]]) -> list[Problem]:
    """Problems of the brokers of a cluster, with the id, host and port of each."""
    found = []
    if controller_id < 0:
        found.append(Problem("no-controller", "there is no controller"))
    by_address: dict[tuple[str, int], int] = {}
    for broker_id, host, port in addresses:
        other = by_address.setdefault((host, port), broker_id)
        if other != broker_id:
            finding = f"brokers {other} and {broker_id} advertise {host}:{port}"
            found.append(Problem("same-address", finding))
    return found


def partition_problems(
    alive: Collection[int], rows: Iterable[PartitionRow], adding: Adding | None = None
) -> list[Problem]:
    """Problems of partitions, given the brokers that are registered and the reassignments in
    progress, and a note about those. A partition without a leader counts as under-replicated, too,
    as in kafka-topics.sh."""
    missing: dict[int, int] = defaultdict(int)
    to_copy: dict[int, int] = defaultdict(int)
    offline, under_replicated, reassigned = [], [], []
    for row in rows:
        added = adding.get((row.topic, row.partition)) if adding else None
        if added is not None:
            reassigned.append(f"{row.topic}-{row.partition}")
            for broker_id in added:
                to_copy[broker_id] += broker_id not in row.isr
        if row.leader < 0:
            offline.append(f"{row.topic}-{row.partition}")
        if is_under_replicated(row.replicas, row.isr, added or ()):
            under_replicated.append(f"{row.topic}-{row.partition}")
        for broker_id in row.replicas:
            if broker_id not in alive:
                missing[broker_id] += 1
    found = []
    if missing:
        counts = ", ".join(f"{number} ({missing[number]})" for number in sorted(missing))
        found.append(
            Problem("missing-brokers", f"brokers with replicas are not in the cluster: {counts}")
        )
    if offline:
        finding = f"partitions without a leader: {len(offline)} ({named(offline)})"
        found.append(Problem("offline-partitions", finding))
    if under_replicated:
        finding = f"under-replicated partitions: {len(under_replicated)}"
        found.append(Problem("under-replicated", f"{finding} ({named(under_replicated)})"))
    if reassigned:
        rest = [f"{to_copy[each]} to broker {each}" for each in sorted(to_copy) if to_copy[each]]
        left = f"replicas left to copy: {', '.join(rest)}" if rest else "all copies are in sync"
        finding = f"partitions are being reassigned: {len(reassigned)} ({named(reassigned)})"
        found.append(Problem("reassignment", f"{finding}; {left}"))
    return found


def without_some_replicas(rows: Iterable[PartitionRow]) -> list[PartitionRow]:
    """Partitions with a leader that may have too few replicas in sync for acks=all."""
    return [row for row in rows if row.leader >= 0 and len(row.isr) < len(row.replicas)]


def is_below_min_isr(replicas: Sequence[int], isr: Sequence[int], min_isr: int) -> bool:
    """Whether a partition with a leader refuses acks=all."""
    return len(isr) < min(min_isr, len(replicas))


def min_isr_problems(rows: Iterable[PartitionRow], min_isr: Mapping[str, int]) -> list[Problem]:
    """Problems of `without_some_replicas`; topics whose setting is not known are left out."""
    below = [
        f"{row.topic}-{row.partition}"
        for row in rows
        if is_below_min_isr(row.replicas, row.isr, min_isr.get(row.topic, 0))
    ]
    if not below:
        return []
    text = f"partitions below {MIN_ISR}, which refuse acks=all: {len(below)} ({named(below)})"
    return [Problem("under-min-isr", text)]


def min_isr_of(response: DescribeConfigsResponse) -> dict[str, int]:
    """The setting of each topic that the user may see."""
    return {
        result.resource_name: int(row.value or 0)
        for result in response.results
        if not result.error_code
        for row in result.configs
        if row.name == MIN_ISR
    }


def throttle_problems(throttles: Sequence[str]) -> list[Problem]:
    """Throttles, as `values_set` names them, that are set while no reassignment runs."""
    if not throttles:
        return []
    return [Problem("throttle-left", f"replication is throttled: {named(throttles)}")]


def values_set(response: DescribeConfigsResponse) -> list[str]:
    """Return a text for each setting of a topic or broker that is set at run time and not empty."""
    return [
        f"{_KINDS.get(result.resource_type)} {result.resource_name} has {row.name}={row.value}"
        for result in response.results
        if not result.error_code
        for row in result.configs
        if row.value and row.config_source in _SET_AT_RUN_TIME
    ]


def broker_that_answered(response: DescribeConfigsResponse) -> int | None:
    """The id of the broker that responded for another one; None if the right one did."""
    for result in response.results:
        if result.error_code == ErrorCode.INVALID_REQUEST:
            expected = re.search(r"expected (-?\d+)", result.error_message or "")
            if expected is not None:
                return int(expected[1])
    return None


def identity_problem(other: int, broker_id: int) -> Problem:
    """Broker `other` responded for broker `broker_id`."""
    text = f"broker {other} responds at the advertised address of broker {broker_id}"
    return Problem("wrong-broker", text)


def named(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - LISTED_MAX
    return ", ".join(names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
