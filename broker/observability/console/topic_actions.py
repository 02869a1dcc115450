"""Changes of topics and settings, and producing a record, by the requests that any client sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.broker.observability.console.cluster_client import check
from ottla.broker.observability.console.parameters import InvalidParameter
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
from ottla.protocol.records.builder import build_batch

if TYPE_CHECKING:
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.parameters import Parameters

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
        """One record with acks=all; key and value are texts, or null."""
        topic, partition = given.text("topic"), given.exact("partition", 0, (1 << 31) - 1)
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
                    _encoded(given.optional_text("key")),
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


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")
