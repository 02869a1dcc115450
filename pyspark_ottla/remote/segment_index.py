"""The finished segments of some partitions, read from `__remote_log_metadata`. Driver only.

One reader of a query keeps it from batch to batch, and then reads only what was written since.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries, read_batch
from ottla.protocol.topics import TopicPartition
from ottla.storage.remote.metadata_records import (
    REMOTE_LOG_METADATA_TOPIC,
    RemoteLogMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    UnreadableMetadataRecord,
    decode_metadata,
    metadata_partition,
    topic_id_partition_of,
)
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import EARLIEST, LATEST, OffsetRange
from pyspark_ottla.read.fetch import PartitionFetch
from pyspark_ottla.read.planning import LossReport, all_at

if TYPE_CHECKING:
    from pyspark_ottla.cluster.cluster import KafkaCluster

Place = tuple[UUID, int]  # topic id and partition: the name of a topic may come again

_FETCH_BYTES = 4 << 20
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_COPYING = RemoteLogSegmentState.COPY_SEGMENT_STARTED


@dataclass
class _MetadataPartition:
    """How far one partition of the topic is read, and what is remembered of it."""

    position: int = 0
    places: set[Place] = field(default_factory=set)
    segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = field(default_factory=dict)

    def apply(self, record: RemoteLogMetadata) -> None:
        place = place_of(topic_id_partition_of(record))
        if place not in self.places:
            return
        if isinstance(record, RemoteLogSegmentMetadata):
            self.segments.setdefault(record.segment_id, record)
        elif isinstance(record, RemotePartitionDeleteMetadata):
            for segment_id in list(self.segments):
                if place_of(segment_id.topic_id_partition) == place:
                    del self.segments[segment_id]
        else:
            self._update(record)

    def _update(self, change: RemoteLogSegmentMetadataUpdate) -> None:
        known = self.segments.get(change.segment_id)
        if known is None:
            return
        if change.state not in (_COPYING, _FINISHED):
            del self.segments[change.segment_id]
            return
        self.segments[change.segment_id] = known.with_state(
            change.state, change.broker_id, change.event_timestamp_ms, change.custom_metadata
        )


class SegmentIndex:
    """Bounded by the segments of the partitions that the query reads."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._partitions: dict[int, _MetadataPartition] = {}

    def refresh(self, cluster: KafkaCluster, places: Collection[Place]) -> None:
        """Reads what is new about these partitions. Raises ConnectorError."""
        count = _partition_count(cluster)
        if count == 0:
            self._partitions = {}
            return
        wanted: dict[int, set[Place]] = {}
        for topic_id, partition in places:
            number = metadata_partition(TopicIdPartition(topic_id, "", partition), count)
            wanted.setdefault(number, set()).add((topic_id, partition))
        for number, added in wanted.items():
            known = self._partitions.get(number)
            if known is None or not added <= known.places:
                # What was skipped of the records about another partition has to be read now.
                before = set() if known is None else known.places
                self._partitions[number] = _MetadataPartition(places=before | added)
        topic = [TopicPartition(REMOTE_LOG_METADATA_TOPIC, number) for number in sorted(wanted)]
        starts, ends = all_at(cluster, topic, EARLIEST), all_at(cluster, topic, LATEST)
        for tp in topic:
            if tp in starts and tp in ends:
                self._read(cluster, tp, starts[tp], ends[tp])

    def segments(self, place: Place) -> list[RemoteLogSegmentMetadata]:
        """The finished ones of a partition, by start offset and then in the order of their end."""
        found = [
            metadata
            for each in self._partitions.values()
            for metadata in each.segments.values()
            if metadata.state is _FINISHED
            and place_of(metadata.segment_id.topic_id_partition) == place
        ]
        return sorted(found, key=lambda each: (each.start_offset, each.end_offset))

    def _read(self, cluster: KafkaCluster, tp: TopicPartition, start: int, end: int) -> None:
        known = self._partitions[tp.partition]
        if end < known.position:  # truncated, or created again: what is known may be gone
            known = self._partitions[tp.partition] = _MetadataPartition(places=known.places)
        begin = max(start, known.position)
        for offset, value in self._values(cluster, OffsetRange(tp, begin, end)):
            try:
                known.apply(decode_metadata(value))
            except UnreadableMetadataRecord as error:
                raise ConnectorError(
                    errors.CORRUPT_DATA,
                    f"The record at offset {offset} of {tp} cannot be read: {error}",
                ) from None
        known.position = end

    def _values(
        self, cluster: KafkaCluster, wanted: OffsetRange
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        fetch = PartitionFetch(
            cluster,
            wanted,
            report=LossReport("warn"),  # what retention removes here is of segments that are gone
            fetch_bytes=_FETCH_BYTES,
            read_committed=cluster.options.read_committed,
            timeout_ms=self._timeout_ms,
        )
        for response in fetch.responses():
            try:
                for position, header in iterate_entries(response.records):
                    if not isinstance(header, BatchHeader) or header.is_control:
                        continue
                    for record in read_batch(response.records, position, header):
                        if response.start <= record.offset < wanted.end:
                            yield record.offset, record.value or b""
            except RecordsError as error:
                raise ConnectorError(
                    errors.CORRUPT_DATA, f"{wanted.partition} cannot be read: {error}"
                ) from None


def place_of(partition: TopicIdPartition) -> Place:
    return partition.topic_id, partition.partition


def _partition_count(cluster: KafkaCluster) -> int:
    """How many partitions the topic has; 0 if it does not exist."""
    deadline = time.monotonic() + cluster.options.api_timeout_ms / 1000
    for topic in cluster.metadata([REMOTE_LOG_METADATA_TOPIC], deadline).topics:
        if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise ConnectorError(
                errors.NOT_AUTHORIZED,
                f"Reading the topic {REMOTE_LOG_METADATA_TOPIC} is not allowed",
                "Ask for READ on the topic, or set ottla.remote.read to broker",
            )
        if topic.error_code == ErrorCode.NONE:
            return len(topic.partitions)
    return 0
