"""What the console shows of topics. Sizes are of all replicas, offsets of the leaders."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ottla.broker.observability.console.cluster_offsets import (
    EARLIEST,
    LATEST,
    MAX_PARTITIONS,
    list_offsets,
)
from ottla.broker.observability.console.remote_views import remote_state
from ottla.broker.observability.console.settings_views import TOPIC, described
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.broker.cluster.metadata_cache import (
        MetadataSnapshot,
        PartitionMetadata,
        TopicMetadata,
    )
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.history import History

TOPICS_ON_A_PAGE = 100
PARTITIONS_ON_A_PAGE = 100

_TIERED = "remote.storage.enable"

# A check of an ACL takes some microseconds; other requests are handled after so many.
_CHECKS_IN_A_ROW = 250

ReplicaSizes = dict[tuple[str, int], dict[int, int]]


class TopicViews:
    """Lists and describes topics. The sorted names are kept until the metadata changes."""

    def __init__(self, client: ClusterClient, history: History) -> None:
        self._client = client
        self._history = history
        self._names: list[str] = []
        self._names_of: MetadataSnapshot | None = None

    async def listed(self, search: str, first: int, viewer: Viewer) -> dict[str, Any]:
        """A page of the topics whose names contain `search` and that the viewer may describe.

        A `first` beyond the end gives the last page."""
        snapshot = self._client.metadata.snapshot
        wanted = search.lower()
        names = []
        for number, name in enumerate(self._sorted(snapshot)):
            if wanted in name.lower() and viewer.may_describe_topic(name):
                names.append(name)
            if number % _CHECKS_IN_A_ROW == 0:
                await asyncio.sleep(0)
        first = page_start(first, len(names), TOPICS_ON_A_PAGE)
        shown = [snapshot.topics[name] for name in names[first : first + TOPICS_ON_A_PAGE]]
        measured, skipped = _bounded(shown)
        partitions = [
            TopicPartition(topic.name, index) for topic in measured for index in topic.partitions
        ]
        sizes, ends, starts = await asyncio.gather(
            self._sizes(viewer, partitions),
            list_offsets(self._client, viewer, partitions, LATEST),
            list_offsets(self._client, viewer, partitions, EARLIEST),
        )
        problems = list(dict.fromkeys([*sizes[1], *ends.problems, *starts.problems]))
        if skipped:
            problems.append(
                f"Sizes of {skipped} topics are left out: a page measures {MAX_PARTITIONS} "
                "partitions."
            )
        rows = []
        for topic in shown:
            row = _row(topic)
            if topic in measured:
                row |= _measures(topic, sizes[0], ends.found, starts.found)
            rows.append(row)
        return {
            "total": len(names),
            "first": first,
            "page": TOPICS_ON_A_PAGE,
            "topics": rows,
            "problems": problems,
        }

    def _sorted(self, snapshot: MetadataSnapshot) -> list[str]:
        if self._names_of is not snapshot:
            self._names = sorted(snapshot.topics)
            self._names_of = snapshot
        return self._names

    async def one(self, name: str, first: int, viewer: Viewer) -> dict[str, Any]:
        """One topic: a page of its partitions, its settings, its rate."""
        viewer.require(Operation.DESCRIBE, ResourceType.TOPIC, name)
        found = self._client.metadata.snapshot.topics.get(name)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name[:249]}."
            )
        indexes = sorted(found.partitions)
        first = page_start(first, len(indexes), PARTITIONS_ON_A_PAGE)
        measured, _ = _bounded([found])
        shown = indexes[first : first + PARTITIONS_ON_A_PAGE]
        partitions = [TopicPartition(name, index) for index in (indexes if measured else shown)]
        sizes, ends, starts, settings = await asyncio.gather(
            self._sizes(viewer, partitions),
            list_offsets(self._client, viewer, partitions, LATEST),
            list_offsets(self._client, viewer, partitions, EARLIEST),
            described(self._client, viewer, TOPIC, name),
        )
        rows = []
        for index in shown:
            state = found.partitions[index]
            key = TopicPartition(name, index)
            replica_sizes = sizes[0].get((name, index), {})
            rows.append(
                {
                    "partition": index,
                    "leader": state.leader,
                    "leader_epoch": state.leader_epoch,
                    "replicas": state.replicas,
                    "isr": state.isr,
                    "start_offset": starts.found.get(key),
                    "end_offset": ends.found.get(key),
                    "size_bytes": replica_sizes.get(state.leader),
                }
            )
        row = _row(found)
        if measured:
            row |= _measures(found, sizes[0], ends.found, starts.found)
        remote: dict[str, Any] | None = None
        more: list[str] = []
        if any(each["name"] == _TIERED and each["value"] == "true" for each in settings[0]):
            remote, more = await remote_state(self._client, viewer, name)
        remote_rates = [] if remote is None else self._history.remote_rates(name)
        return {
            **row,
            "remote": remote,
            "remote_rates": remote_rates,
            "first": first,
            "page": PARTITIONS_ON_A_PAGE,
            "rows": rows,
            "rate": self._history.topic_rate(name),
            "settings": settings[0],
            "may": _rights(viewer, name),
            "problems": list(
                dict.fromkeys([*sizes[1], *ends.problems, *starts.problems, *settings[1], *more])
            ),
        }

    async def _sizes(
        self, viewer: Viewer, partitions: list[TopicPartition]
    ) -> tuple[ReplicaSizes, list[str]]:
        """Bytes by partition and broker."""
        if not viewer.may_on_cluster(Operation.DESCRIBE):
            return {}, ["Sizes are not shown: they need an ACL for DESCRIBE on the cluster."]
        snapshot = self._client.metadata.snapshot
        by_broker: dict[int, dict[str, list[int]]] = {}
        for topic, index in partitions:
            state = snapshot.partition(topic, index)
            for broker_id in () if state is None else state.replicas:
                if broker_id in snapshot.brokers:
                    by_broker.setdefault(broker_id, {}).setdefault(topic, []).append(index)
        requests = {
            broker_id: DescribeLogDirsRequest(
                [DescribableLogDirTopic(topic, indexes) for topic, indexes in topics.items()]
            )
            for broker_id, topics in by_broker.items()
        }
        gathered = await self._client.ask_each(viewer, requests, DescribeLogDirsResponse)
        sizes: ReplicaSizes = {}
        for broker_id, response in gathered.responses.items():
            for directory in response.results:
                for topic in directory.topics:
                    for row in topic.partitions:
                        if not row.is_future_key:
                            replicas = sizes.setdefault((topic.name, row.partition_index), {})
                            replicas[broker_id] = row.partition_size
        return sizes, gathered.problems


def page_start(first: int, total: int, page: int) -> int:
    """The first row of the page that has row `first`; of the last page if there is no such row."""
    return min(max(0, first), max(0, total - 1)) // page * page


def _bounded(topics: list[TopicMetadata]) -> tuple[list[TopicMetadata], int]:
    """Topics of MAX_PARTITIONS partitions together, and how many are left out."""
    chosen: list[TopicMetadata] = []
    count = 0
    for topic in topics:
        count += len(topic.partitions)
        if count > MAX_PARTITIONS:
            break
        chosen.append(topic)
    return chosen, len(topics) - len(chosen)


def health(states: Iterable[PartitionMetadata]) -> dict[str, int]:
    """How many partitions have no leader, and how many miss replicas in the ISR."""
    listed = list(states)
    return {
        "offline": sum(state.leader < 0 for state in listed),
        "under_replicated": sum(len(state.isr) < len(state.replicas) for state in listed),
    }


def _row(topic: TopicMetadata) -> dict[str, Any]:
    states = topic.partitions.values()
    return {
        "name": topic.name,
        "internal": topic.name.startswith("__"),
        "partitions": len(topic.partitions),
        "replicas": max((len(state.replicas) for state in states), default=0),
        "size_bytes": None,
        "records": None,
        **health(states),
    }


def _measures(
    topic: TopicMetadata,
    sizes: ReplicaSizes,
    ends: dict[TopicPartition, int],
    starts: dict[TopicPartition, int],
) -> dict[str, int | None]:
    """Sums of what is known; None where nothing is."""
    size = records = None
    for index in topic.partitions:
        of_replicas = sizes.get((topic.name, index))
        if of_replicas is not None:
            size = (size or 0) + sum(of_replicas.values())
        key = TopicPartition(topic.name, index)
        if key in ends and key in starts:
            records = (records or 0) + ends[key] - starts[key]
    return {"size_bytes": size, "records": records}


def _rights(viewer: Viewer, name: str) -> dict[str, bool]:
    """Which buttons make sense."""
    return {
        operation.name.lower(): viewer.may(operation, ResourceType.TOPIC, name)
        for operation in (
            Operation.READ,
            Operation.WRITE,
            Operation.ALTER,
            Operation.ALTER_CONFIGS,
            Operation.DELETE,
        )
    }
