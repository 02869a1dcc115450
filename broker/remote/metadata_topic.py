"""A client of `__remote_log_metadata`: creates the topic, produces to it and fetches from it.

It sends requests to the leaders on the inter-broker listener, also to this broker itself. All
requests have the deadline of the inter-broker client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from ottla.controller.admin.topic_admin import NewTopic
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from ottla.storage.remote.metadata_records import REMOTE_LOG_METADATA_TOPIC
from ottla.storage.remote.remote_storage import RemoteStorageError

if TYPE_CHECKING:
    from ottla.broker.cluster.inter_broker_client import InterBrokerClient
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.remote.settings import RemoteLogMetadataSettings
    from ottla.protocol.message import Message
    from ottla.protocol.messages.fetch import FetchResponse
    from ottla.protocol.messages.list_offsets import ListOffsetsResponse
    from ottla.protocol.messages.produce import ProduceResponse

_PRODUCE, _FETCH, _LIST_OFFSETS = 0, 1, 2
#: The newest versions that name topics by name.
_PRODUCE_VERSION, _FETCH_VERSION, _LIST_OFFSETS_VERSION = 11, 12, 8
_ALL = -1
_CONSUMER = -1
_LATEST, _EARLIEST = -1, -2
_NO_SESSION = -1
#: What one fetch may bring into memory: the default of Kafka's consumer for one partition, and a
#: fifth of its `fetch.max.bytes`, because only the replay waits for these records.
_PARTITION_MAX_BYTES = 1_048_576
_MAX_BYTES = 10_485_760


class FetchedMetadata(NamedTuple):
    """What a fetch from one metadata partition returned."""

    error_code: int
    records: bytes | memoryview


class RemoteLogMetadataTopic:
    """Loop only."""

    def __init__(
        self,
        metadata: MetadataCache,
        client: InterBrokerClient,
        create_topics: Callable[[list[NewTopic]], Awaitable[dict[str, int]]],
        settings: RemoteLogMetadataSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._metadata = metadata
        self._client = client
        self._create_topics = create_topics
        self._settings = settings
        self._now_ms = now_ms

    async def create(self) -> None:
        """Creates the topic unless it exists. Raises RemoteStorageError with what is wrong."""
        if self.partition_count() is not None:
            return
        settings = self._settings
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": str(settings.topic_retention_ms),
            "remote.storage.enable": "false",
        }
        topic = NewTopic(
            REMOTE_LOG_METADATA_TOPIC,
            settings.topic_num_partitions,
            settings.topic_replication_factor,
            None,
            configs,
        )
        codes = await self._create_topics([topic])
        code = codes.get(REMOTE_LOG_METADATA_TOPIC, ErrorCode.NONE)
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RemoteStorageError(
                f"{REMOTE_LOG_METADATA_TOPIC} cannot be created with replication factor"
                f" {settings.topic_replication_factor}: {error_name(code)}"
            )

    def partition_count(self) -> int | None:
        """The number of partitions; None while this broker does not know the topic."""
        topic = self._metadata.snapshot.topics.get(REMOTE_LOG_METADATA_TOPIC)
        return None if topic is None else len(topic.partitions)

    def leader(self, partition: int) -> int | None:
        """The id of the leader, or None while there is none."""
        state = self._metadata.snapshot.partition(REMOTE_LOG_METADATA_TOPIC, partition)
        return None if state is None or state.leader < 0 else state.leader

    async def append(self, partition: int, value: bytes) -> int:
        """Appends one record with acks=all; returns its offset.

        Raises RemoteStorageError; the record may be in the log nevertheless.
        """
        leader = self.leader(partition)
        if leader is None:
            raise RemoteStorageError(f"{REMOTE_LOG_METADATA_TOPIC}-{partition} has no leader")
        batch = build_batch([(self._now_ms(), None, value, None)])
        request = ProduceRequest(
            acks=_ALL,
            timeout_ms=self._client.timeout_ms,
            topic_data=[
                TopicProduceData(
                    REMOTE_LOG_METADATA_TOPIC, [PartitionProduceData(partition, batch)]
                )
            ],
        )
        response = cast(
            "ProduceResponse",
            await self._send(leader, _PRODUCE, _PRODUCE_VERSION, request),
        )
        for topic in response.responses:
            for row in topic.partition_responses:
                if row.index == partition and row.error_code == ErrorCode.NONE:
                    return row.base_offset
                raise RemoteStorageError(
                    f"{REMOTE_LOG_METADATA_TOPIC}-{partition} at broker {leader}:"
                    f" {error_name(row.error_code)}"
                )
        raise RemoteStorageError(f"broker {leader} returned no partition for a Produce request")

    async def offsets(self, leader: int, partition: int) -> tuple[int, int]:
        """(first offset, offset after the last committed record). Raises RemoteStorageError."""
        found = []
        for timestamp in (_EARLIEST, _LATEST):  # a partition may be in a request only once
            request = ListOffsetsRequest(
                _CONSUMER,
                0,
                [
                    ListOffsetsTopic(
                        REMOTE_LOG_METADATA_TOPIC,
                        [ListOffsetsPartition(partition, timestamp=timestamp)],
                    )
                ],
            )
            response = cast(
                "ListOffsetsResponse",
                await self._send(leader, _LIST_OFFSETS, _LIST_OFFSETS_VERSION, request),
            )
            row = response.topics[0].partitions[0]
            if row.error_code != ErrorCode.NONE:
                raise RemoteStorageError(
                    f"{REMOTE_LOG_METADATA_TOPIC}-{partition} at broker {leader}:"
                    f" {error_name(row.error_code)}"
                )
            found.append(row.offset)
        return found[0], found[1]

    async def fetch(self, leader: int, positions: Mapping[int, int]) -> dict[int, FetchedMetadata]:
        """Committed batches from these offsets on, by partition; does not wait for new ones.

        A batch may begin before the offset. Raises RemoteStorageError.
        """
        request = FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_MAX_BYTES,
            session_epoch=_NO_SESSION,
            topics=[
                FetchTopic(
                    topic=REMOTE_LOG_METADATA_TOPIC,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            partition_max_bytes=_PARTITION_MAX_BYTES,
                        )
                        for partition, offset in positions.items()
                    ],
                )
            ],
        )
        response = cast("FetchResponse", await self._send(leader, _FETCH, _FETCH_VERSION, request))
        if response.error_code != ErrorCode.NONE:
            raise RemoteStorageError(f"Fetch at broker {leader}: {error_name(response.error_code)}")
        return {
            data.partition_index: FetchedMetadata(
                data.error_code, cast("bytes | memoryview", data.records or b"")
            )
            for topic in response.responses
            for data in topic.partitions
        }

    async def _send(
        self, leader: int, api_key: int, newest_version: int, request: Message
    ) -> Message:
        try:
            return await self._client.request_in_version(
                leader, api_key, newest_version, lambda version: request
            )
        except Exception as error:  # connection, deadline, or a response that cannot be read
            raise RemoteStorageError(
                f"broker {leader} cannot be reached for {REMOTE_LOG_METADATA_TOPIC}: {error}"
            ) from error
