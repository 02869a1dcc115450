"""Which offsets of a read are taken from the store, and where the tasks are cut. Driver only.

The brokers return the ends of the tiered part (ListOffsets), the segments
(`__remote_log_metadata`) and the leader epochs. What no segment of the present history covers,
such as the newest records, is read through the broker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.protocol.client.operations import Versions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import uuid_from_string
from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import OffsetRange, describe
from pyspark_ottla.options.remote_options import FAIL, RemoteOptions
from pyspark_ottla.remote.lineage import EpochEndLookup, is_of_history, needed_epochs
from pyspark_ottla.remote.segment import PlannedSegment, planned
from pyspark_ottla.remote.segment_index import SegmentIndex
from pyspark_ottla.warnings_on_stderr import spark_logger

if TYPE_CHECKING:
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata
    from pyspark_ottla.cluster.cluster import KafkaCluster

logger = spark_logger()

# As spark.sql.files.maxPartitionBytes: enough that the start of a task does not count.
TASK_BYTES = 128 << 20

_EARLIEST_LOCAL, _LATEST_TIERED = -4, -5
_VERSIONS = {_EARLIEST_LOCAL: Versions(8), _LATEST_TIERED: Versions(9)}


class DirectPlan:
    """The segments to read, by partition, without overlaps and by offset."""

    def __init__(self, segments: Mapping[TopicPartition, list[PlannedSegment]]) -> None:
        self._segments = segments

    def segments_of(self, wanted: OffsetRange) -> tuple[PlannedSegment, ...]:
        """Those with offsets of the range."""
        found = self._segments.get(wanted.partition, [])
        first = bisect_right(found, wanted.start, key=lambda each: each.end)
        last = first
        while last < len(found) and found[last].start < wanted.end:
            last += 1
        return tuple(found[first:last])

    def cut(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The ranges, cut between segments into pieces of about TASK_BYTES, and where the tiered
        part ends."""
        return [piece for whole in ranges for piece in self._cut(whole)]

    def _cut(self, whole: OffsetRange) -> list[OffsetRange]:
        pieces, begin, size = [], whole.start, 0
        segments = self.segments_of(whole)
        for number, segment in enumerate(segments):
            size += segment.size_bytes
            is_last = number + 1 == len(segments)
            if is_last or size + segments[number + 1].size_bytes > TASK_BYTES:
                end = min(segment.end, whole.end)
                pieces.append(whole._replace(start=begin, end=end))
                begin, size = end, 0
        if begin < whole.end:
            pieces.append(whole._replace(start=begin))
        return pieces or [whole]


NOTHING_DIRECT = DirectPlan({})


class DirectPlanner:
    """Plans the batches of one reader."""

    def __init__(self, options: RemoteOptions, timeout_ms: int) -> None:
        self._options = options
        self._index = SegmentIndex(timeout_ms)

    def plan(self, cluster: KafkaCluster, ranges: Iterable[OffsetRange]) -> DirectPlan:
        """Raises ConnectorError if the segments cannot be listed and `ottla.remote.onError` is
        fail; otherwise everything is then read through the broker, with a warning."""
        wanted = [each for each in ranges if each.size > 0]
        try:
            return self._plan(cluster, wanted)
        except ConnectorError as error:
            if self._options.on_error == FAIL:
                raise
            logger.warning("tiered segments are read through the broker: %s", error)
            return NOTHING_DIRECT

    def _plan(self, cluster: KafkaCluster, ranges: list[OffsetRange]) -> DirectPlan:
        ranges = _with_tiered_records(cluster, ranges)
        if not ranges:
            return NOTHING_DIRECT
        ids = cluster.topic_ids({each.partition.topic for each in ranges if not each.topic_id})
        places = {}
        for each in ranges:
            topic_id = each.topic_id or ids.get(each.partition.topic)
            if topic_id is not None:
                found = UUID(bytes=uuid_from_string(topic_id))
                places[each.partition] = (found, each.partition.partition)
        self._index.refresh(cluster, set(places.values()))
        lookup = EpochEndLookup(cluster)
        planned_segments = {}
        for each in ranges:
            if each.partition in places:
                segments = self._index.segments(places[each.partition])
                cover = self._cover(lookup, each, segments)
                planned_segments[each.partition] = [planned(metadata) for metadata in cover]
        return DirectPlan(planned_segments)

    def _cover(
        self, lookup: EpochEndLookup, wanted: OffsetRange, segments: list[RemoteLogSegmentMetadata]
    ) -> list[RemoteLogSegmentMetadata]:
        """Segments of the range, without overlaps, all of the history of the partition."""
        inside = [
            metadata
            for metadata in segments
            if metadata.end_offset >= wanted.start and metadata.start_offset < wanted.end
        ]
        epochs = needed_epochs(inside, wanted.start)
        ends = lookup.ends(wanted.partition, epochs)
        found: list[RemoteLogSegmentMetadata] = []
        for metadata in inside:
            if found and metadata.start_offset <= found[-1].end_offset:
                continue  # copied twice; what only this one has is read through the broker
            if is_of_history(metadata, ends, wanted.start):
                found.append(metadata)
            else:
                logger.info(
                    "segment %s of %s is not of its present history",
                    *(metadata.segment_id.id, describe(wanted.partition)),
                )
        return found


def _with_tiered_records(cluster: KafkaCluster, ranges: list[OffsetRange]) -> list[OffsetRange]:
    """The ranges that begin below the latest tiered or the earliest local offset.

    A leader that has just started may not know the first of them yet.
    """
    found = []
    for each in ranges:
        tp, start = each.partition, each.start
        latest_tiered = _offset(cluster, tp, _LATEST_TIERED)
        if latest_tiered >= start or _offset(cluster, tp, _EARLIEST_LOCAL) > start:
            found.append(each)
    return found


def _offset(cluster: KafkaCluster, tp: TopicPartition, timestamp: int) -> int:
    """One of the special offsets of KIP-405 and KIP-1005; -1 if there is none."""
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=tp.topic,
                partitions=[
                    ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
                ],
            )
        ],
    )

    def call(timeout_ms: int) -> int:
        leader = cluster.client.leader(tp, timeout_ms=timeout_ms)
        response = cluster.client.send(
            leader.node_id, request, timeout_ms=timeout_ms, versions=_VERSIONS[timestamp]
        )
        assert isinstance(response, ListOffsetsResponse)
        for row in (row for topic in response.topics for row in topic.partitions):
            if row.error_code == ErrorCode.NONE:
                return row.offset
            error = KafkaError(row.error_code)
            if error.retriable:
                cluster.client.forget_leader(tp)
                raise error
        return -1

    what = f"Looking up the tiered offsets of {describe(tp)}"
    try:
        return cluster.call_with_retries(what, call, cluster.deadline())
    except ConnectorError as error:
        if error.condition == errors.BROKER_INCOMPATIBLE:  # older than the request's version
            return -1
        raise
