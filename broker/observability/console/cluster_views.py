"""The cluster on the console: brokers and their state, partitions, rates."""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.observability.console.topics import health
from ottla.broker.security.authorization.acl_types import Operation

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataSnapshot
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ConsoleParts
    from ottla.broker.observability.console.history import History

MAX_BROKERS = 500


class Totals(NamedTuple):
    """Counts over all partitions of a cluster."""

    partitions: int
    offline: int
    under_replicated: int
    leaders: dict[int, int]  # by broker
    replicas: dict[int, int]
    missing: dict[int, int]  # replicas that are not in sync, by broker


def count(snapshot: MetadataSnapshot) -> Totals:
    """For a worker thread: slow with many partitions, and a snapshot never changes."""
    leaders: dict[int, int] = {}
    replicas: dict[int, int] = {}
    missing: dict[int, int] = {}
    partitions = offline = under_replicated = 0
    for topic in snapshot.topics.values():
        states = topic.partitions.values()
        partitions += len(states)
        found = health(states)
        offline += found["offline"]
        under_replicated += found["under_replicated"]
        for state in states:
            leaders[state.leader] = leaders.get(state.leader, 0) + 1
            for broker_id in state.replicas:
                replicas[broker_id] = replicas.get(broker_id, 0) + 1
                if broker_id not in state.isr:
                    missing[broker_id] = missing.get(broker_id, 0) + 1
    return Totals(partitions, offline, under_replicated, leaders, replicas, missing)


class ClusterViews:
    """The first page. The counts are kept until the metadata changes."""

    def __init__(self, parts: ConsoleParts, history: History) -> None:
        self._parts = parts
        self._history = history
        self._totals: tuple[MetadataSnapshot, Totals] | None = None

    async def overview(self, viewer: Viewer) -> dict[str, Any]:
        """The cluster in numbers, the state of each broker, rates over the last hour."""
        viewer.require_on_cluster(Operation.DESCRIBE)
        parts, history = self._parts, self._history
        await history.fresh()
        snapshot = parts.client.metadata.snapshot
        if self._totals is None or self._totals[0] is not snapshot:
            self._totals = (snapshot, await parts.workers.run(count, snapshot))
        totals = self._totals[1]
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
            "connections": len(parts.network.connections),
            "peak_memory_bytes": peak if sys.platform == "darwin" else peak * 1024,
            "brokers": self._brokers(snapshot, totals),
            "rates": history.traffic.points(),
            "rates_of_brokers": history.traffic.brokers,
            "records": history.cluster_rate(),
            "read_only": parts.read_only,
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
                    "disk_bytes": None if disks is None else disks.total_bytes,
                    "free_bytes": None if disks is None else disks.usable_bytes,
                    "offline_directories": [] if disks is None else disks.offline,
                }
            )
        # The workers of a machine together, behind brokers that have a machine for themselves.
        return sorted(rows, key=lambda row: (row["machine"] or "", row["worker"] or 0))
