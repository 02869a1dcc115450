"""What is known of the remote segments of one partition. Mirrors Kafka's RemoteLogMetadataCache.

The cache is the replay of the partition's records in `__remote_log_metadata`. A segment can be read
by leader epoch and offset between COPY_SEGMENT_FINISHED and DELETE_SEGMENT_STARTED. It is listed
from COPY_SEGMENT_STARTED until DELETE_SEGMENT_FINISHED, so that what a failed copy or deletion left
is found.
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort

from ottla.storage.remote.metadata_records import RemoteLogSegmentMetadataUpdate
from ottla.storage.remote.remote_storage import RemoteResourceNotFoundError
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)

logger = logging.getLogger("ottla.remote")

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

#: A state may also follow itself: writers repeat what they have no acknowledgement of.
_NEXT_STATES = {
    None: (_STARTED,),
    _STARTED: (_FINISHED, _DELETE_STARTED),
    _FINISHED: (_DELETE_STARTED,),
    _DELETE_STARTED: (_DELETE_FINISHED,),
    _DELETE_FINISHED: (),
}


def last_offset_of_epoch(metadata: RemoteLogSegmentMetadata, leader_epoch: int) -> int:
    """The last offset with `leader_epoch` in a segment that has the epoch."""
    if len(metadata.leader_epochs) == 1:  # as in most segments
        return metadata.end_offset
    later = [epoch for epoch in metadata.leader_epochs if epoch > leader_epoch]
    return metadata.leader_epochs[min(later)] - 1 if later else metadata.end_offset


class RemoteLogMetadataCache:
    """The remote segments of one partition."""

    def __init__(self) -> None:
        #: Whether the records that existed when the partition was assigned here are replayed.
        self.is_initialized = False
        #: The lowest start offset of all segments ever, also of those that are deleted.
        self.lowest_offset: int | None = None
        self._segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self._epochs: dict[int, _EpochSegments] = {}

    def segment_at(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The segment to read `offset` of `leader_epoch` from, or None."""
        epoch = self._epochs.get(leader_epoch)
        segment_id = None if epoch is None else epoch.floor(offset)
        if segment_id is None:
            return None
        metadata = self._segments[segment_id]
        return metadata if offset <= last_offset_of_epoch(metadata, leader_epoch) else None

    def highest_offset(self, leader_epoch: int) -> int | None:
        """The highest offset with this epoch that was ever copied, also if it is deleted since."""
        epoch = self._epochs.get(leader_epoch)
        return None if epoch is None else epoch.highest_offset

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        """All segments that are not deleted, by start offset."""
        return sorted(self._segments.values(), key=lambda each: each.start_offset)

    def snapshot(self) -> list[RemoteLogSegmentMetadata]:
        """As `segments`, in no order: cheap also for many of them."""
        return list(self._segments.values())

    def segments_of_epoch(self, leader_epoch: int) -> list[RemoteLogSegmentMetadata]:
        """All segments with this epoch that are not deleted, by start offset."""
        epoch = self._epochs.get(leader_epoch)
        if epoch is None:
            return []
        found = [self._segments[segment_id] for segment_id in epoch.segment_ids()]
        return sorted(found, key=lambda each: each.start_offset)

    def add(self, metadata: RemoteLogSegmentMetadata) -> None:
        """The copy of a segment starts. Raises ValueError for another state than that.

        An addition after a later state of the same segment is logged and ignored.
        """
        if metadata.state is not _STARTED:
            raise ValueError(f"a segment is added in state {_STARTED.name}, not {metadata.state!r}")
        if not self._may_become(metadata.segment_id, _STARTED):
            return
        for leader_epoch in metadata.leader_epochs:
            epoch = self._epochs.setdefault(leader_epoch, _EpochSegments())
            epoch.unreferenced.add(metadata.segment_id)
        self._segments[metadata.segment_id] = metadata
        start = metadata.start_offset
        self.lowest_offset = start if self.lowest_offset is None else min(self.lowest_offset, start)

    def update(self, change: RemoteLogSegmentMetadataUpdate) -> None:
        """A segment changes its state. A transition that is not allowed is logged and ignored.

        Raises RemoteResourceNotFoundError for an unknown segment once the cache is initialized;
        before, the addition may be older than what `__remote_log_metadata` retains.
        """
        before = self._segments.get(change.segment_id)
        if before is None:
            if not self.is_initialized:
                return
            raise RemoteResourceNotFoundError(f"remote segment {change.segment_id} is not known")
        if change.state is _STARTED:
            raise ValueError(f"a segment does not return to state {_STARTED.name}")
        if not self._may_become(change.segment_id, change.state):
            return
        metadata = before.with_state(
            change.state, change.broker_id, change.event_timestamp_ms, change.custom_metadata
        )
        for leader_epoch, start_offset in metadata.leader_epochs.items():
            epoch = self._epochs.setdefault(leader_epoch, _EpochSegments())
            if change.state is _FINISHED:
                end_offset = last_offset_of_epoch(metadata, leader_epoch)
                epoch.reference(metadata.segment_id, start_offset, end_offset)
            elif change.state is _DELETE_STARTED:
                epoch.dereference(metadata.segment_id, start_offset)
            else:
                epoch.unreferenced.discard(metadata.segment_id)
        if change.state is _DELETE_FINISHED:
            del self._segments[change.segment_id]
        else:
            self._segments[change.segment_id] = metadata

    def _may_become(self, segment_id: RemoteLogSegmentId, state: RemoteLogSegmentState) -> bool:
        before = self._segments.get(segment_id)
        current = None if before is None else before.state
        if state is current or state in _NEXT_STATES[current]:
            return True
        logger.error(
            "Ignoring state %s of remote segment %s: its state is %s",
            state.name,
            segment_id.id,
            "unknown" if current is None else current.name,
        )
        return False


class _EpochSegments:
    """The segments with records of one leader epoch."""

    __slots__ = ("_by_start", "_starts", "highest_offset", "unreferenced")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._by_start: dict[int, RemoteLogSegmentId] = {}
        # Segments that are not read from: not copied yet, covered by another one, being deleted.
        self.unreferenced: set[RemoteLogSegmentId] = set()
        self.highest_offset: int | None = None

    def segment_ids(self) -> set[RemoteLogSegmentId]:
        return {*self._by_start.values(), *self.unreferenced}

    def floor(self, offset: int) -> RemoteLogSegmentId | None:
        index = bisect_right(self._starts, offset)
        return self._by_start[self._starts[index - 1]] if index else None

    def reference(self, segment_id: RemoteLogSegmentId, start_offset: int, end_offset: int) -> None:
        """Reads of `start_offset` to `end_offset` go to this segment.

        Two leaders may have copied the same offsets, in segments with other limits. The later
        copy replaces the earlier ones that it covers.
        """
        highest = self.highest_offset
        while self._starts and self._starts[-1] >= start_offset:
            if highest is not None and highest > end_offset:
                break
            self.unreferenced.add(self._by_start.pop(self._starts.pop()))
        replaced = self._by_start.get(start_offset)
        if replaced is None:
            insort(self._starts, start_offset)
        else:  # Kafka forgets the earlier copy here, and retention does not delete it
            self.unreferenced.add(replaced)
        self._by_start[start_offset] = segment_id
        self.unreferenced.discard(segment_id)
        if highest is None or end_offset > highest:
            self.highest_offset = end_offset

    def dereference(self, segment_id: RemoteLogSegmentId, start_offset: int) -> None:
        """The segment is not read from any more, and is still listed."""
        if self._by_start.get(start_offset) == segment_id:
            del self._by_start[start_offset]
            self._starts.remove(start_offset)
        self.unreferenced.add(segment_id)
