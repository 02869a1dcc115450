"""The cluster on the console: brokers and their state, partitions, rates."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.cluster.cluster_problems import (
    MIN_ISR,
    THROTTLES_OF_BROKER,
    THROTTLES_OF_TOPIC,
    PartitionRow,
    Problem,
    broker_problems,
    broker_that_answered,
    identity_problem,
    min_isr_of,
    min_isr_problems,
    partition_problems,
    throttle_problems,
    values_set,
    without_some_replicas,
)
from ottla.broker.observability.console.cluster_client import NoResponse
from ottla.broker.observability.console.settings_views import BROKER, TOPIC
from ottla.broker.observability.console.topics import health
from ottla.broker.security.authorization.acl_types import Operation
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ottla.broker.cluster.cluster_problems import Adding
    from ottla.broker.cluster.metadata_cache import MetadataSnapshot
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient, ConsoleParts
    from ottla.broker.observability.console.history import History

MAX_BROKERS = 500
# Throttles are settings of all brokers and topics: some 2 ms for each request of topics.
SETTINGS_INTERVAL_MS = 60_000
TOPICS_PER_REQUEST = 100
MAX_TOPICS = 20_000
# Problems with which clients fail; the others are warnings.
STOPPING = (
    "no-controller",
    "same-address",
    "wrong-broker",
    "offline-partitions",
    "under-min-isr",
)


class Totals(NamedTuple):
    """Counts over all partitions of a cluster."""

    partitions: int
    offline: int
    under_replicated: int
    leaders: dict[int, int]  # by broker
    replicas: dict[int, int]
    missing: dict[int, int]  # replicas that are not in sync, by broker
    copied: dict[int, int]  # those that a reassignment adds, by broker
    problems: list[Problem]
    incomplete: list[PartitionRow]  # those with a leader and a replica that is not in sync


def count(snapshot: MetadataSnapshot, adding: Adding | None = None) -> Totals:
    """For a worker thread: slow with many partitions, and a snapshot never changes."""
    leaders: dict[int, int] = {}
    replicas: dict[int, int] = {}
    missing: dict[int, int] = {}
    copied: dict[int, int] = {}
    partitions = offline = under_replicated = 0
    for topic in snapshot.topics.values():
        states = topic.partitions.values()
        partitions += len(states)
        found = health(topic, adding)
        offline += found["offline"]
        under_replicated += found["under_replicated"]
        for state in states:
            leaders[state.leader] = leaders.get(state.leader, 0) + 1
            added = (adding or {}).get((topic.name, state.partition), ())
            for broker_id in state.replicas:
                replicas[broker_id] = replicas.get(broker_id, 0) + 1
                if broker_id not in state.isr:
                    out = copied if broker_id in added else missing
                    out[broker_id] = out.get(broker_id, 0) + 1
    rows = [
        PartitionRow(topic.name, state.partition, state.leader, state.isr, state.replicas)
        for topic in snapshot.topics.values()
        for state in topic.partitions.values()
    ]
    problems = partition_problems(snapshot.brokers, rows, adding)
    counts = partitions, offline, under_replicated
    incomplete = without_some_replicas(rows)
    return Totals(*counts, leaders, replicas, missing, copied, problems, incomplete)


class Throttles:
    """Limits of replication that are left although nothing is reassigned, and brokers that respond
    for another one; asked for once in a while."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._client = parts.client
        self._now_ms = parts.now_ms
        self._asked_ms = 0
        self._found: list[Problem] = []

    async def problems(self, viewer: Viewer, adding: Adding | None) -> list[Problem]:
        """As of the last minute; none where the viewer may not see settings or reassignments."""
        now_ms = self._now_ms()
        if now_ms - self._asked_ms >= SETTINGS_INTERVAL_MS:
            self._asked_ms = now_ms
            try:
                self._found = await self._ask(viewer, adding)
            except (KafkaError, NoResponse):
                self._found = []
        return self._found

    async def _ask(self, viewer: Viewer, adding: Adding | None) -> list[Problem]:
        if not viewer.may_on_cluster(Operation.DESCRIBE_CONFIGS):
            return []
        client = self._client
        names = list(THROTTLES_OF_BROKER)
        asked = {
            each: DescribeConfigsRequest([DescribeConfigsResource(BROKER, str(each), names)])
            for each in client.brokers()
        }
        found: list[Problem] = []
        throttles: list[str] = []
        gathered = await client.ask_each(viewer, asked, DescribeConfigsResponse)
        for broker_id, response in sorted(gathered.responses.items()):
            other = broker_that_answered(response)
            if other is not None:
                found.append(identity_problem(other, broker_id))
            throttles += values_set(response)
        throttles += await self._of_topics(viewer)
        if adding is not None and not adding:  # else nobody knows whether one runs
            found += throttle_problems(throttles)
        return found

    async def _of_topics(self, viewer: Viewer) -> list[str]:
        topics = sorted(self._client.metadata.snapshot.topics)
        responses = _of_topics(self._client, viewer, topics, THROTTLES_OF_TOPIC)
        return [text async for response in responses for text in values_set(response)]


class MinIsr:
    """Partitions that refuse acks=all, by settings that are a minute old at the most. Asked for are
    only topics that lack a replica."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._client = parts.client
        self._now_ms = parts.now_ms
        self._asked_ms = 0
        self._known: dict[str, int] = {}

    async def problems(self, viewer: Viewer, rows: Sequence[PartitionRow]) -> list[Problem]:
        """Of rows of `without_some_replicas`; none where the viewer may not see settings."""
        if not viewer.may_on_cluster(Operation.DESCRIBE_CONFIGS):
            return []
        now_ms = self._now_ms()
        if now_ms - self._asked_ms >= SETTINGS_INTERVAL_MS:
            self._asked_ms = now_ms
            self._known = {}
        asked = list(dict.fromkeys(row.topic for row in rows if row.topic not in self._known))
        with suppress(KafkaError, NoResponse):
            async for response in _of_topics(self._client, viewer, asked, (MIN_ISR,)):
                self._known |= min_isr_of(response)
        self._known = dict.fromkeys(asked, 0) | self._known  # not asked for again in this minute
        return min_isr_problems(rows, self._known)


async def _of_topics(
    client: ClusterClient, viewer: Viewer, topics: Sequence[str], names: Sequence[str]
) -> AsyncIterator[DescribeConfigsResponse]:
    """The settings of topics with these names, some topics at a time."""
    for start in range(0, min(len(topics), MAX_TOPICS), TOPICS_PER_REQUEST):
        rows = [
            DescribeConfigsResource(TOPIC, topic, list(names))
            for topic in topics[start : start + TOPICS_PER_REQUEST]
        ]
        request = DescribeConfigsRequest(rows)
        yield await client.ask(viewer, client.broker_id, request, DescribeConfigsResponse)


def _address_problems(snapshot: MetadataSnapshot) -> list[Problem]:
    """Of each listener; brokers that advertise one address are named once."""
    names = dict.fromkeys(name for each in snapshot.brokers.values() for name in each.endpoints)
    found = broker_problems(snapshot.controller_id, ())
    for name in names:
        found += broker_problems(
            0,
            (
                (broker_id, endpoint.host, endpoint.port)
                for broker_id, each in sorted(snapshot.brokers.items())
                if (endpoint := each.endpoints.get(name)) is not None
            ),
        )
    return list(dict.fromkeys(found))


class ClusterViews:
    """The first page. The counts are kept until the metadata changes."""

    def __init__(self, parts: ConsoleParts, history: History) -> None:
        self._parts = parts
        self._history = history
        self._totals: tuple[MetadataSnapshot, Adding | None, Totals] | None = None
        self._throttles = Throttles(parts)
        self._min_isr = MinIsr(parts)

    async def overview(self, viewer: Viewer) -> dict[str, Any]:
        """The cluster in numbers, the state of each broker, rates over the last hour."""
        viewer.require_on_cluster(Operation.DESCRIBE)
        parts, history = self._parts, self._history
        await history.fresh()
        adding = await history.reassignments()
        throttles = await self._throttles.problems(viewer, adding)
        snapshot = parts.client.metadata.snapshot
        known = self._totals
        if known is None or known[0] is not snapshot or known[1] is not adding:
            known = (snapshot, adding, await parts.workers.run(count, snapshot, adding))
            self._totals = known
        totals = known[2]
        below = await self._min_isr.problems(viewer, totals.incomplete)
        found = [*_address_problems(snapshot), *totals.problems, *below, *throttles]
        # On Linux in KiB, on macOS in bytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {
            "cluster_id": parts.cluster_id,
            "broker_id": parts.client.broker_id,
            "controller_id": snapshot.controller_id,
            "started_ms": history.started_ms,
            "now_ms": parts.now_ms(),
            "topics": len(snapshot.topics),
            "partitions": totals.partitions,
            "offline": totals.offline,
            "under_replicated": totals.under_replicated,
            "groups": len(history.groups),
            "groups_are_all": history.has_all_groups,
            "connections": len(parts.network.connections),
            "peak_memory_bytes": peak if sys.platform == "darwin" else peak * 1024,
            "brokers": self._brokers(snapshot, totals),
            "rates": history.traffic.points(),
            "rates_of_brokers": history.traffic.brokers,
            "records": history.cluster_rate(),
            "read_only": parts.read_only,
            "checks": [
                {
                    "finding": each.finding,
                    "fix": each.fix,
                    "stops": each.check in STOPPING,
                    "is_cause": each.check == "missing-brokers",
                }
                for each in found
                if not each.is_note
            ],
            "notes": [{"finding": each.finding, "fix": each.fix} for each in found if each.is_note],
            "problems": history.problems,
            "state": parts.state(),
        }

    def _brokers(self, snapshot: MetadataSnapshot, totals: Totals) -> list[dict[str, Any]]:
        rows = []
        history = self._history
        for broker_id in sorted({*snapshot.brokers, *totals.replicas})[:MAX_BROKERS]:
            broker = snapshot.brokers.get(broker_id)
            endpoints = {} if broker is None else broker.endpoints
            disks = history.disks.get(broker_id)
            worker = history.worker(broker_id)
            rows.append(
                {
                    "id": broker_id,
                    "alive": broker is not None,
                    "responds": broker is not None and disks is not None and not disks.problem,
                    "problem": "" if disks is None else disks.problem,
                    "faults": [] if broker is None else history.faults(broker_id),
                    "rack": None if broker is None else broker.rack,
                    "machine": None if worker is None else worker[0],
                    "worker": None if worker is None else worker[1],
                    "listeners": [
                        f"{name}://{each.host}:{each.port}" for name, each in endpoints.items()
                    ],
                    "leaders": totals.leaders.get(broker_id, 0),
                    "replicas": totals.replicas.get(broker_id, 0),
                    "not_in_sync": totals.missing.get(broker_id, 0),
                    "copied": totals.copied.get(broker_id, 0),
                    "disk_bytes": None if disks is None else disks.total_bytes,
                    "free_bytes": None if disks is None else disks.usable_bytes,
                    "offline_directories": [] if disks is None else disks.offline,
                }
            )
        # The workers of a machine together, behind brokers that have a machine for themselves.
        return sorted(rows, key=lambda row: (row["machine"] or "", row["worker"] or 0))
