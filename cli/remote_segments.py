"""Reads `__remote_log_metadata`: the segments of the cluster that are in remote storage."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from ottla.cli.offsets import EARLIEST, LATEST, offsets_at, partitions_of
from ottla.cli.output import Failure
from ottla.cli.reader import TopicReader
from ottla.cli.session import Session
from ottla.storage.remote.metadata_records import (
    REMOTE_LOG_METADATA_TOPIC,
    RemoteLogMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    UnreadableMetadataRecord,
    decode_metadata,
    topic_id_partition_of,
)
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)


class RemoteSegments:
    """All segments that are not deleted, also those whose copy or deletion has only begun.

    `topic_ids` are those of all topics that ever had a segment in remote storage. `is_complete`
    says whether the records were read from the first one ever.
    """

    def __init__(self) -> None:
        self.topic_ids: set[UUID] = set()
        #: Of all segments that ever had a record. Copies write one before the first object.
        self.recorded_ids: set[UUID] = set()
        self.is_complete = True
        self._segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self._deleted: set[tuple[UUID, int]] = set()

    def apply(self, record: RemoteLogMetadata) -> None:
        """Changes of segments that are not known are ignored, as in Kafka."""
        self.topic_ids.add(topic_id_partition_of(record).topic_id)
        if isinstance(record, RemoteLogSegmentMetadata):
            self._segments[record.segment_id] = record
            self.recorded_ids.add(record.segment_id.id)
        elif isinstance(record, RemoteLogSegmentMetadataUpdate):
            known = self._segments.get(record.segment_id)
            if known is None:
                return
            if record.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                del self._segments[record.segment_id]
                return
            self._segments[record.segment_id] = known.with_state(
                record.state, record.broker_id, record.event_timestamp_ms, record.custom_metadata
            )
        else:
            deleted = record.topic_id_partition
            self._deleted.add((deleted.topic_id, deleted.partition))
            if record.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                self._forget(record)

    def _forget(self, record: RemotePartitionDeleteMetadata) -> None:
        for segment_id in list(self._segments):
            if segment_id.topic_id_partition == record.topic_id_partition:
                del self._segments[segment_id]

    def segments(self, topics: Iterable[str] = ()) -> list[RemoteLogSegmentMetadata]:
        """By topic, partition and start offset; without `topics` those of all."""
        wanted = set(topics)
        found = [
            metadata
            for metadata in self._segments.values()
            if not wanted or metadata.segment_id.topic_id_partition.topic in wanted
        ]
        return sorted(found, key=_order)

    def is_being_deleted(self, topic_id: UUID, partition: int) -> bool:
        """Whether the deletion of a partition has begun."""
        return (topic_id, partition) in self._deleted

    def segments_in_use(
        self, topics: Iterable[str] = (), deleted: Collection[UUID] = ()
    ) -> list[RemoteLogSegmentMetadata]:
        """As `segments`, without those of topics whose deletion has begun: a broker that stops does
        not go on with it. `deleted` are the ids of more such topics."""
        return [
            metadata
            for metadata in self.segments(topics)
            if (partition := metadata.segment_id.topic_id_partition).topic_id not in deleted
            and not self.is_being_deleted(partition.topic_id, partition.partition)
        ]


def _order(metadata: RemoteLogSegmentMetadata) -> tuple[str, int, int, int]:
    partition = metadata.segment_id.topic_id_partition
    return (
        partition.topic,
        partition.partition,
        metadata.start_offset,
        metadata.event_timestamp_ms,
    )


def read_remote_segments(session: Session) -> RemoteSegments:
    """Reads the topic to its end of now. Raises Failure if it does not exist or has a record that
    is not in Kafka's format: what is left would look like a list of all segments."""
    partitions = partitions_of(session, REMOTE_LOG_METADATA_TOPIC)
    positions = offsets_at(session, partitions, EARLIEST)
    stops = offsets_at(session, partitions, LATEST)
    found = RemoteSegments()
    found.is_complete = not any(positions.values())
    for partition, record in TopicReader(session, positions, stops).records():
        try:
            found.apply(decode_metadata(record.value or b""))
        except UnreadableMetadataRecord as error:
            raise Failure(
                f"the record at offset {record.offset} of {partition} cannot be read: {error}."
            ) from None
    return found
