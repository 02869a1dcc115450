"""The brokers of one tiered partition as the Spark connector asks them, without a network.

The log is a real one. Its segments are in a store in a local folder, with transactions of two
producers that span segments, and leader epochs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from ottla.protocol.messages.fetch import AbortedTransaction, PartitionData
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import uuid_to_string
from ottla.storage.remote.metadata_records import REMOTE_LOG_METADATA_TOPIC
from ottla.storage.remote.open_remote_storage import open_remote_storage
from tests.doubles.tiered_partition import PARTITION, TieredPartition, append_transactions

T = TypeVar("T")

TP = TopicPartition(PARTITION.topic, PARTITION.partition)
TOPIC_ID = uuid_to_string(PARTITION.topic_id.bytes)


def store_settings(path: Path) -> dict[str, str]:
    """Those of the folder below `path`, as an option has them without its prefix."""
    return {
        "storage.backend.class": "filesystem",
        "storage.root": str(path / "remote"),
        "chunk.size": "1024",
    }


@asynccontextmanager
async def tiered_transactions(path: Path) -> AsyncIterator[TieredPartition]:
    """Three copied segments, and records after them on the disk only."""
    (path / "remote").mkdir()
    (path / "logs").mkdir()
    scene = TieredPartition(path / "logs")
    storage = open_remote_storage(store_settings(path))
    scene.remote.storage = storage
    await scene.start()
    append_transactions(scene.log, 76, batches_of_a_transaction=11)
    await scene.copy()
    try:
        yield scene
    finally:
        await scene.stop()
        storage.close()


class TieredCluster:
    """A `KafkaCluster` as far as planning and reading use it. Counts the requests by kind."""

    def __init__(self, scene: TieredPartition, *, read_committed: bool = True) -> None:
        self.scene = scene
        self.options = SimpleNamespace(read_committed=read_committed, api_timeout_ms=10_000)
        self.client = self
        self.requests: dict[str, int] = {}
        self.metadata_error = 0
        self.latest_tiered: int | None = None  # instead of the log's
        self.fetched: list[int] = []

    def _count(self, kind: str) -> None:
        self.requests[kind] = self.requests.get(kind, 0) + 1

    # --- what KafkaCluster has -------------------------------------------------------------------

    def deadline(self) -> float:
        return 0.0

    def call_with_retries(self, what: str, call: Callable[[int], T], deadline: float) -> T:
        return call(1_000)

    def topic_ids(self, topics: set[str]) -> dict[str, str]:
        return dict.fromkeys(topics, TOPIC_ID)

    def metadata(self, topics: list[str], deadline: float) -> SimpleNamespace:
        self._count("metadata")
        topic = SimpleNamespace(error_code=self.metadata_error, partitions=[0])
        return SimpleNamespace(topics=[topic])

    def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        records = self.scene.topic.values[0]
        return {tp: 0 if timestamp == -2 else len(records) for tp, timestamp in wanted.items()}

    def fetch(
        self, partition: TopicPartition, offset: int, bytes_max: int, *_: object
    ) -> tuple[PartitionData, int]:
        self._count("fetch")
        if partition.topic == REMOTE_LOG_METADATA_TOPIC:
            content = self.scene.topic._read(partition.partition, offset).records
            return PartitionData(records=content, high_watermark=1 << 40), 0
        self.fetched.append(offset)
        return self._read(offset, bytes_max), 0

    def _read(self, offset: int, bytes_max: int) -> PartitionData:
        log = self.scene.log
        committed = self.options.read_committed
        end = log.last_stable_offset if committed else log.high_watermark
        read = log.read(offset, bytes_max, up_to=end, read_committed=committed)
        return PartitionData(
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            records=b"" if read.slice is None else read.slice.read(),
            aborted_transactions=[
                AbortedTransaction(producer_id, first_offset)
                for producer_id, first_offset in read.aborted_transactions or []
            ],
        )

    def explain(self, error: Exception) -> str:
        return str(error)

    def local_log_start(self, partition: TopicPartition) -> int:
        return self.scene.log.local_log_start_offset

    # --- what its client has ---------------------------------------------------------------------

    def leader(self, partition: TopicPartition, *, timeout_ms: int) -> SimpleNamespace:
        return SimpleNamespace(node_id=1)

    def forget_leader(self, partition: TopicPartition) -> None:
        """The only broker stays the leader."""

    def send(self, node_id: int, request: Any, **_: object) -> object:
        log = self.scene.log
        if isinstance(request, ListOffsetsRequest):
            self._count("offsets")
            timestamp = request.topics[0].partitions[0].timestamp
            offset = log.local_log_start_offset
            if timestamp == -5:
                offset = log.offsets.highest_remote_offset
                offset = offset if self.latest_tiered is None else self.latest_tiered
            found = ListOffsetsPartitionResponse(partition_index=TP.partition, offset=offset)
            return ListOffsetsResponse(
                topics=[ListOffsetsTopicResponse(name=TP.topic, partitions=[found])]
            )
        assert isinstance(request, OffsetForLeaderEpochRequest)
        self._count("epochs")
        asked = request.topics[0].partitions[0].leader_epoch
        epoch, end = log.leader_epochs.end_offset_for(asked, log.log_end_offset)
        row = EpochEndOffset(partition=TP.partition, leader_epoch=epoch, end_offset=end)
        return OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic=TP.topic, partitions=[row])]
        )
