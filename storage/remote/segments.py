"""Metadata of a segment in remote storage. Mirrors KIP-405's RemoteLogSegmentMetadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from uuid import UUID


class RemoteLogSegmentState(IntEnum):
    """The ids come from the records in `__remote_log_metadata`."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


@dataclass(frozen=True, slots=True)
class TopicIdPartition:
    topic_id: UUID
    topic: str
    partition: int

    def __hash__(self) -> int:
        # Each fetch looks some up: hashes of a UUID are calls of Python functions.
        return hash((self.topic_id.int, self.partition))


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId:
    """`id` is new for each attempt to copy a segment, so that attempts never share objects."""

    topic_id_partition: TopicIdPartition
    id: UUID

    def __hash__(self) -> int:
        return hash(self.id.int)


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """One attempt to copy a segment, and how far it is. Offsets and times are inclusive."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    size_bytes: int
    #: leader epoch: its first offset in the segment. The first epoch's may be below `start_offset`.
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    #: What the remote storage wants to know again (at most some hundred bytes), or None.
    custom_metadata: bytes | None = None

    def with_state(
        self,
        state: RemoteLogSegmentState,
        broker_id: int,
        event_timestamp_ms: int,
        custom_metadata: bytes | None = None,
    ) -> RemoteLogSegmentMetadata:
        """A copy in another state. Custom metadata stays unless there is a new one."""
        return replace(
            self,
            state=state,
            broker_id=broker_id,
            event_timestamp_ms=event_timestamp_ms,
            custom_metadata=self.custom_metadata if custom_metadata is None else custom_metadata,
        )


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The files of a closed segment that are copied. Its indexes are complete and flushed."""

    segment: Path
    offset_index: Path
    time_index: Path
    transaction_index: Path | None
    producer_snapshot: Path | None
    #: The leader-epoch checkpoint up to the end of the segment, in Kafka's text format.
    leader_epoch_checkpoint: bytes
