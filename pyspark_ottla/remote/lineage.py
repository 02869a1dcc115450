"""Which segments are of the present history of a partition, as its leader states it. Driver only.

Two leaders may have copied different records at the same offsets, before and after an unclean
election. The leader of a partition returns where a leader epoch ends in its log
(OffsetForLeaderEpoch, KIP-320); a segment is read only if all its records are of these epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.client.operations import Versions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.cluster.client_errors import refused
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import describe

if TYPE_CHECKING:
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata
    from pyspark_ottla.cluster.cluster import KafkaCluster

# The first in which a consumer may send the request.
_VERSIONS = Versions(3)
_CONSUMER = -1
# One request each. A partition with more elections in its tiered history is read by the broker.
_EPOCHS_MAX = 2000


class EpochEnd(NamedTuple):
    """The highest epoch of the log that is not above the requested one, and where it ends."""

    leader_epoch: int
    end_offset: int


def needed_epochs(segments: Iterable[RemoteLogSegmentMetadata], start: int) -> set[int]:
    """What to request about segments of which offsets from `start` on are read."""
    found: set[int] = set()
    for metadata in segments:
        for epoch, _, last in _parts(metadata):
            if last >= start:
                found |= {epoch, epoch - 1}
    return {epoch for epoch in found if epoch >= 0}


def is_of_history(
    metadata: RemoteLogSegmentMetadata, ends: Mapping[int, EpochEnd], start: int
) -> bool:
    """Whether all records of the segment from offset `start` on are in the leader's log.

    `ends` has the responses for `needed_epochs`.
    """
    parts = [part for part in _parts(metadata) if part[2] >= start]
    for number, (epoch, first, last) in enumerate(parts):
        end = ends[epoch]
        if end.leader_epoch != epoch or last >= end.end_offset:
            return False
        if number + 1 < len(parts) and last != end.end_offset - 1:
            return False  # the log has more of this epoch where the segment has the next one
        before = ends.get(epoch - 1)
        if before is not None and max(first, start) < before.end_offset:
            return False
    return bool(parts)


def _parts(metadata: RemoteLogSegmentMetadata) -> list[tuple[int, int, int]]:
    """(leader epoch, first offset, last offset) of the segment in ascending order."""
    rows = sorted(metadata.leader_epochs.items())
    lasts = [first - 1 for _, first in rows[1:]] + [metadata.end_offset]
    return [(epoch, first, last) for (epoch, first), last in zip(rows, lasts, strict=True)]


class EpochEndLookup:
    """Requests the ends from the leader, one at a time, and remembers none."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def ends(self, tp: TopicPartition, epochs: set[int]) -> dict[int, EpochEnd]:
        """Raises ConnectorError, also for more epochs than are requested of one partition."""
        if len(epochs) > _EPOCHS_MAX:
            raise ConnectorError(
                errors.FETCH_FAILED,
                f"{describe(tp)} has {len(epochs)} leader epochs in remote storage, at most "
                f"{_EPOCHS_MAX} are looked up",
            )
        return {epoch: self._end(tp, epoch) for epoch in sorted(epochs)}

    def _end(self, tp: TopicPartition, epoch: int) -> EpochEnd:
        cluster = self._cluster
        row = OffsetForLeaderPartition(partition=tp.partition, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER, topics=[OffsetForLeaderTopic(topic=tp.topic, partitions=[row])]
        )

        def call(timeout_ms: int) -> EpochEnd:
            leader = cluster.client.leader(tp, timeout_ms=timeout_ms)
            response = cluster.client.send(
                leader.node_id, request, timeout_ms=timeout_ms, versions=_VERSIONS
            )
            assert isinstance(response, OffsetForLeaderEpochResponse)
            found = [row for topic in response.topics for row in topic.partitions]
            code = found[0].error_code if found else int(ErrorCode.UNKNOWN_SERVER_ERROR)
            if code != ErrorCode.NONE:
                error = KafkaError(code)
                if not error.retriable:
                    raise refused(f"Looking up leader epochs of {describe(tp)}", code)
                cluster.client.forget_leader(tp)
                raise error
            return EpochEnd(found[0].leader_epoch, found[0].end_offset)

        what = f"Looking up leader epochs of {describe(tp)}"
        return cluster.call_with_retries(what, call, cluster.deadline())
