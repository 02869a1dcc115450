"""Topics on the console: lists, details, changes, settings, and producing a record.

Sizes are of all replicas, offsets of the leaders. Changes are the requests that any client sends.
Brokers report counts and lags of remote storage (KIP-405) under a key of their own
(`ottla.broker.remote`); for brokers of Kafka nothing is shown.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.cluster_problems import (
    MIN_ISR,
    is_below_min_isr,
    is_under_replicated,
)
from ottla.broker.handlers.admin.describe_configs import BROKER_REMOTE
from ottla.broker.observability.console.cluster_client import (
    EARLIEST,
    LATEST,
    MAX_LISTED,
    check,
    list_offsets,
)
from ottla.broker.observability.console.parameters import InvalidParameter
from ottla.broker.observability.console.settings_views import TOPIC, broker_texts, described
from ottla.broker.security.authorization.acl_types import CLUSTER_NAME, Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.partitioner import partition_for_key
from ottla.protocol.records.builder import build_batch
from ottla.protocol.steps import over
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.broker.cluster.cluster_problems import Adding
    from ottla.broker.cluster.metadata_cache import MetadataSnapshot, TopicMetadata
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.history import History
    from ottla.broker.observability.console.parameters import Parameters


TOPICS_ON_A_PAGE = 100
PARTITIONS_ON_A_PAGE = 100

_TIERED = "remote.storage.enable"

ReplicaSizes = dict[tuple[str, int], dict[int, int]]


class TopicViews:
    """Lists and describes topics. The sorted names are kept until the metadata changes."""

    def __init__(self, client: ClusterClient, history: History) -> None:
        self._client = client
        self._history = history
        self._names: list[str] = []
        self._names_of: MetadataSnapshot | None = None

    async def listed(
        self, search: str, first: int, viewer: Viewer, *, only_problems: bool = False
    ) -> dict[str, Any]:
        """A page of the topics whose names contain `search` and that the viewer may describe; with
        `only_problems` those with partitions that have no leader or too few replicas.

        A `first` beyond the end gives the last page."""
        adding = await self._history.reassignments()
        snapshot = self._client.metadata.snapshot
        wanted = search.lower()
        names = []
        lacks = ""
        async for name in over(self._sorted(snapshot)):
            if not viewer.may_describe_topic(name):
                lacks = lacks or viewer.lacks(ResourceType.TOPIC, "topics")
                continue
            if wanted not in name.lower():
                continue
            if only_problems and not any(health(snapshot.topics[name], adding).values()):
                continue
            names.append(name)
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
                f"Sizes of {'1 topic is' if skipped == 1 else f'{skipped} topics are'} left out: "
                f"a page measures {MAX_LISTED} partitions."
            )
        rows = []
        for topic in shown:
            row = _row(topic, adding)
            if topic in measured:
                row |= _measures(topic, sizes[0], ends.found, starts.found)
            rows.append(row)
        return {
            "total": len(names),
            "first": first,
            "page": TOPICS_ON_A_PAGE,
            "lacks": lacks,
            "topics": rows,
            "cannot_create": viewer.missing(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME),
            "problems": problems,
        }

    def _sorted(self, snapshot: MetadataSnapshot) -> list[str]:
        if self._names_of is not snapshot:
            self._names = sorted(snapshot.topics)
            self._names_of = snapshot
        return self._names

    async def one(self, name: str, first: int, viewer: Viewer) -> dict[str, Any]:
        """One topic: a page of its partitions, those with problems first, settings and rate."""
        viewer.require(Operation.DESCRIBE, ResourceType.TOPIC, name)
        adding = await self._history.reassignments()
        found = self._client.metadata.snapshot.topics.get(name)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name[:249]}."
            )
        troubled = {each for each in found.partitions if _is_troubled(found, each, adding)}
        indexes = sorted(found.partitions, key=lambda each: (each not in troubled, each))
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
        min_isr = next((int(each["value"]) for each in settings[0] if each["name"] == MIN_ISR), 0)
        below = {
            index
            for index, state in found.partitions.items()
            if state.leader >= 0 and is_below_min_isr(state.replicas, state.isr, min_isr)
        }
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
                    "below_min_isr": index in below,
                    "adding": sorted((adding or {}).get((name, index), ())),
                    "reassigned": (name, index) in (adding or {}),
                    "start_offset": starts.found.get(key),
                    "end_offset": ends.found.get(key),
                    "size_bytes": replica_sizes.get(state.leader),
                }
            )
        row = _row(found, adding)
        row["troubled"] = len(troubled)
        row["below_min_isr"] = len(below)
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
            "no_settings": " ".join(settings[1]),
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
    """Topics of MAX_LISTED partitions together, and how many are left out."""
    chosen: list[TopicMetadata] = []
    count = 0
    for topic in topics:
        count += len(topic.partitions)
        if count > MAX_LISTED:
            break
        chosen.append(topic)
    return chosen, len(topics) - len(chosen)


def _is_troubled(topic: TopicMetadata, index: int, adding: Adding | None) -> bool:
    """Whether a partition has no leader, or replicas missing from the ISR."""
    state = topic.partitions[index]
    added = (adding or {}).get((topic.name, index), ())
    return state.leader < 0 or is_under_replicated(state.replicas, state.isr, added)


def health(topic: TopicMetadata, adding: Adding | None) -> dict[str, int]:
    """Count partitions without a leader, and those with replicas missing from the ISR."""
    states = topic.partitions.values()
    reassigned = adding or {}
    return {
        "offline": sum(state.leader < 0 for state in states),
        "under_replicated": sum(
            is_under_replicated(
                state.replicas, state.isr, reassigned.get((topic.name, state.partition), ())
            )
            for state in states
        ),
    }


def _row(topic: TopicMetadata, adding: Adding | None) -> dict[str, Any]:
    states = topic.partitions.values()
    reassigned = adding or {}
    # Those that a reassignment adds replace others.
    factors = {
        len(set(state.replicas).difference(reassigned.get((topic.name, state.partition), ())))
        for state in states
    }
    return {
        "name": topic.name,
        "internal": topic.name.startswith("__"),
        "partitions": len(topic.partitions),
        "replicas": max(factors, default=0),
        "least_replicas": min(factors, default=0),
        "size_bytes": None,
        "size_unknown": 0,
        "records": None,
        "records_unknown": 0,
        "reassigned": sum((topic.name, index) in reassigned for index in topic.partitions),
        **health(topic, adding),
    }


def _measures(
    topic: TopicMetadata,
    sizes: ReplicaSizes,
    ends: dict[TopicPartition, int],
    starts: dict[TopicPartition, int],
) -> dict[str, int | None]:
    """Sums of what is known, None where nothing is; and of how many partitions it is not."""
    size = records = None
    size_unknown = records_unknown = 0
    for index, state in topic.partitions.items():
        of_replicas = sizes.get((topic.name, index))
        if of_replicas is not None:
            size = (size or 0) + sum(of_replicas.values())
        size_unknown += any(each not in (of_replicas or {}) for each in state.replicas)
        key = TopicPartition(topic.name, index)
        if key in ends and key in starts:
            records = (records or 0) + ends[key] - starts[key]
        else:
            records_unknown += 1
    return {
        "size_bytes": size,
        "size_unknown": size_unknown,
        "records": records,
        "records_unknown": records_unknown,
    }


def _rights(viewer: Viewer, name: str) -> dict[str, bool]:
    """The changes that the viewer may make."""
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


async def remote_state(
    client: ClusterClient, viewer: Viewer, topic: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """The sums of one topic; None if no broker has it in remote storage. And what fails, or who did
    not respond."""
    reports, problems = await broker_texts(client, viewer, client.brokers(), BROKER_REMOTE)
    problems += [
        f"Remote storage of broker {broker_id}: {report['problem']}."
        for broker_id, report in reports.items()
        if report["problem"]
    ]
    return summed(report["topics"].get(topic) for report in reports.values()), problems


def summed(reports: Iterable[dict[str, float] | None]) -> dict[str, float] | None:
    """The reports of all brokers as one."""
    total: dict[str, float] = {}
    for report in reports:
        for name, value in (report or {}).items():
            total[name] = total.get(name, 0) + value
    return total or None


# As Kafka's own bound of a cluster's partitions: a slip of the finger is refused.
MAX_PARTITIONS = 10_000
MAX_REPLICAS = 1000
MAX_SETTINGS = 100
MAX_HEADERS = 50
# Less than the deadline of a request of the console.
TIMEOUT_MS = 3000

_TOPIC, _BROKER = 2, 4
_SET, _DELETE = 0, 1


class TopicActions:
    """Each method returns a sentence that says what was done."""

    def __init__(self, client: ClusterClient, now_ms: Callable[[], int]) -> None:
        self._client = client
        self._now_ms = now_ms

    async def create(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """`partitions` and `replication_factor` -1 are the defaults of the broker."""
        name = given.text("name")
        settings = given.texts("configs", MAX_SETTINGS)
        topic = CreatableTopic(
            name=name,
            num_partitions=given.exact("partitions", -1, MAX_PARTITIONS),
            replication_factor=given.exact("replication_factor", -1, MAX_REPLICAS),
            configs=[CreatableTopicConfig(*each) for each in settings.items()],
        )
        request = CreateTopicsRequest([topic], TIMEOUT_MS)
        response = await self._client.ask(
            viewer, self._client.controller(), request, CreateTopicsResponse
        )
        for row in response.topics:
            check(row.error_code, row.error_message)
        return {"done": f"Topic {name} is created."}

    async def delete(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """The name is typed a second time."""
        name = given.confirmed("name")
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=TIMEOUT_MS)
        response = await self._client.ask(
            viewer, self._client.controller(), request, DeleteTopicsResponse
        )
        for row in response.responses:
            check(row.error_code, row.error_message)
        return {"done": f"Topic {name} is deleted."}

    async def add_partitions(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """`count` is the number of all partitions afterwards."""
        name, count = given.text("name"), given.exact("count", 1, MAX_PARTITIONS)
        request = CreatePartitionsRequest([CreatePartitionsTopic(name, count, None)], TIMEOUT_MS)
        response = await self._client.ask(
            viewer, self._client.controller(), request, CreatePartitionsResponse
        )
        for row in response.results:
            check(row.error_code, row.error_message)
        return {"done": f"Topic {name} has {count} partitions."}

    async def alter_topic(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """One setting of a topic; `value` null removes it, so that the default holds."""
        name = given.text("name")
        await self._alter(viewer, self._client.broker_id, _TOPIC, name, given)
        return {"done": f"{given.text('setting')} of topic {name} is changed."}

    async def alter_broker(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """One setting of a broker at run time, or of all with `broker_id` -1."""
        broker_id = given.exact("broker_id", -1, (1 << 31) - 1)
        target = self._client.broker_id if broker_id < 0 else broker_id
        if target not in self._client.brokers():
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"There is no broker {target} now.")
        name = "" if broker_id < 0 else str(broker_id)
        await self._alter(viewer, target, _BROKER, name, given)
        where = "all brokers" if broker_id < 0 else f"broker {broker_id}"
        return {"done": f"{given.text('setting')} of {where} is changed."}

    async def _alter(
        self, viewer: Viewer, broker_id: int, kind: int, name: str, given: Parameters
    ) -> None:
        value = given.optional_text("value")
        operation = _DELETE if value is None else _SET
        config = AlterableConfig(given.text("setting"), operation, value)
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, [config])])
        response = await self._client.ask(
            viewer, broker_id, request, IncrementalAlterConfigsResponse
        )
        for row in response.responses:
            check(row.error_code, row.error_message)

    async def produce(self, given: Parameters, viewer: Viewer) -> dict[str, Any]:
        """One record with acks=all; key and value are texts, or null. Partition -1 is that of the
        key, as producers choose it; without a key, one that has a leader."""
        topic, partition = given.text("topic"), given.exact("partition", -1, (1 << 31) - 1)
        key = _encoded(given.optional_text("key"))
        if partition < 0:
            partition = self._partition(topic, key)
        state = self._client.metadata.snapshot.partition(topic, partition)
        if state is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Partition {topic[:249]}-{partition} does not exist.",
            )
        if state.leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "The partition has no leader now.")
        headers = [
            (row.text("name"), _encoded(row.optional_text("value")))
            for row in given.rows("headers", MAX_HEADERS)
        ]
        batch = build_batch(
            [
                (
                    self._now_ms(),
                    key,
                    _encoded(given.optional_text("value")),
                    headers,
                )
            ]
        )
        # The log writes the offset into the bytes.
        data = TopicProduceData(topic, [PartitionProduceData(partition, bytearray(batch))])
        request = ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[data])
        response = await self._client.ask(viewer, state.leader, request, ProduceResponse)
        for row in response.responses:
            for each in row.partition_responses:
                check(each.error_code, each.error_message)
                offset = each.base_offset
                return {"done": f"Produced to {topic}-{partition} at offset {offset}.",
                        "offset": offset}  # fmt: skip
        raise InvalidParameter("the leader returned no offset")

    def _partition(self, topic: str, key: bytes | None) -> int:
        found = self._client.metadata.snapshot.topics.get(topic)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {topic[:249]}."
            )
        if key is not None:
            return partition_for_key(key, len(found.partitions))
        led = [index for index, state in found.partitions.items() if state.leader >= 0]
        return random.choice(led or list(found.partitions))


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")
