"""Copies closed segments of a partition that this broker leads to remote storage.

Mirrors RLMCopyTask of Kafka's RemoteLogManager. A copy has three steps, each durable before the
next one: the record COPY_SEGMENT_STARTED, the objects, the record COPY_SEGMENT_FINISHED. Local
retention may delete the segment after the third one. What a failed copy leaves is deleted at once
if possible, and by `SegmentExpiration` otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from ottla.broker.remote.lineage import epoch_checkpoint, epochs_between, highest_remote_offset
from ottla.broker.remote.statistics import PartitionProgress, RemoteStatistics
from ottla.broker.runtime.tasks import WorkerPoolClosed
from ottla.storage.errors import CorruptIndex
from ottla.storage.remote.metadata_records import RemoteLogSegmentMetadataUpdate
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import (
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

if TYPE_CHECKING:
    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.broker.remote.metadata_manager import RemoteLogMetadataManager
    from ottla.broker.runtime.tasks import WorkerPool
    from ottla.storage.log.log import Log
    from ottla.storage.log.segment import Segment
    from ottla.storage.remote.remote_storage import RemoteStorage

logger = logging.getLogger("ottla.remote")

_MAGIC_WITH_EPOCHS = 2
#: Segments whose objects are looked for in a store that is not marked: one request each.
_MAX_EVIDENCE = 20
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class RemoteSegments:
    """The remote storage and the metadata of what is in it. Loop only."""

    def __init__(
        self,
        storage: RemoteStorage,
        metadata: RemoteLogMetadataManager,
        workers: WorkerPool,
        broker_id: int,
        now_ms: Callable[[], int],
    ) -> None:
        """`workers` run the calls of the storage, which block."""
        self.storage = storage
        self.metadata = metadata
        self.workers = workers
        self.broker_id = broker_id
        self.now_ms = now_ms
        self.statistics = RemoteStatistics()
        #: Writes the log start offsets of all logs to their checkpoint; runs in a worker.
        self.write_log_starts: Callable[[], object] = lambda: None
        #: Copies of this broker that run now: nothing else may delete them.
        self.being_copied: set[RemoteLogSegmentId] = set()

    async def prove_store(self) -> None:
        """Makes sure that the store is the one of this cluster.

        One from before stores were marked is known by an object of a segment in the metadata.
        Raises StoreNotProvenError, RemoteStorageError.
        """
        if self.storage.is_proven:
            return
        known = self.metadata.copied_segments(_MAX_EVIDENCE)
        is_unused = not known and await self.metadata.is_unused()
        await self.workers.run(partial(self.storage.prove, known, is_unused=is_unused))

    async def update(
        self,
        segment: RemoteLogSegmentMetadata,
        state: RemoteLogSegmentState,
        custom_metadata: bytes | None,
    ) -> None:
        """Stores a new state of a segment. Raises RemoteStorageError."""
        await self.metadata.store(
            RemoteLogSegmentMetadataUpdate(
                segment.segment_id, self.now_ms(), custom_metadata, state, self.broker_id
            )
        )

    async def delete(self, segment: RemoteLogSegmentMetadata) -> None:
        """Deletes a segment: first for readers, then its objects. Raises RemoteStorageError.

        Can be repeated after an error, by any leader.
        """
        statistics = self.statistics.topic(segment.segment_id.topic_id_partition.topic)
        statistics.deletes += 1
        try:
            await self.prove_store()
            await self.update(segment, _DELETE_STARTED, segment.custom_metadata)
            await self.workers.run(self.storage.delete_log_segment, segment)
            await self.update(segment, _DELETE_FINISHED, segment.custom_metadata)
        except (RemoteStorageError, OSError):
            statistics.delete_errors += 1
            raise


class SegmentCopier:
    """Copies the segments of one partition, in order, one at a time."""

    def __init__(
        self,
        remote: RemoteSegments,
        partition: TopicIdPartition,
        quota: ReplicationQuota,
        max_custom_metadata_bytes: int,
        new_id: Callable[[], UUID] = uuid4,
        progress: PartitionProgress | None = None,
    ) -> None:
        """`quota` is `remote.log.manager.copy.max.bytes.per.second`, for all partitions."""
        self._remote = remote
        self._partition = partition
        self._quota = quota
        self._max_custom_metadata_bytes = max_custom_metadata_bytes
        self._new_id = new_id
        self._progress = PartitionProgress() if progress is None else progress
        #: Why nothing is copied any more until this broker becomes leader again.
        self.stopped: str | None = None

    async def run(self, log: Log, is_leader: Callable[[], bool]) -> int:
        """Copies what can be copied now; returns the number of segments.

        Ends early when the quota is exceeded or this broker is no leader any more. Raises
        RemoteStorageError, OSError, StorageError: the next run continues there.
        """
        cache = self._remote.metadata.cache(self._partition)
        offsets, epochs = log.offsets, log.leader_epochs.entries
        copied = highest_remote_offset(cache, epochs, log.log_end_offset)
        offsets.highest_remote_offset = copied
        progress, count = self._progress, 0
        progress.copy_lag_bytes, progress.copy_lag_segments = copy_lag(log, copied)
        while self.stopped is None and is_leader() and not log.local.closed:
            if not log.config.copies_to_remote:
                break
            if self._quota.is_exceeded(self._remote.now_ms()):
                break
            found = next_segment(log, offsets.highest_remote_offset)
            if found is None:
                break
            segment, end_offset = found
            await self._flush(log, end_offset)
            await self._remote.prove_store()
            if not is_leader() or log.local.closed:
                break
            await self._copy(log, segment, end_offset)
            count += 1
            # What is rolled during the run is counted by the next one.
            progress.copy_lag_bytes = max(progress.copy_lag_bytes - segment.size, 0)
            progress.copy_lag_segments = max(progress.copy_lag_segments - 1, 0)
        return count

    async def _flush(self, log: Log, end_offset: int) -> None:
        """Remote storage has nothing that this broker would lose in a power failure: another
        leader would copy other records at the same offsets."""
        if log.recovery_point >= end_offset:
            return
        flush = log.flusher.begin_flush()
        if flush is not None:
            await self._remote.workers.run(flush.run)
            log.flusher.finish_flush(flush, self._remote.now_ms())

    async def _copy(self, log: Log, segment: Segment, end_offset: int) -> None:
        remote, truncations = self._remote, log.truncations
        metadata, data = self._describe(log, segment, end_offset)
        # Before the copy, for those of other partitions that begin meanwhile.
        self._quota.record(metadata.size_bytes, remote.now_ms())
        statistics = remote.statistics.topic(self._partition.topic)
        statistics.copies += 1
        remote.being_copied.add(metadata.segment_id)
        try:
            await remote.metadata.store(metadata)
            custom: bytes | None = None
            try:
                custom = await remote.workers.run(remote.storage.copy_log_segment, metadata, data)
                self._check(log, truncations, custom)
            except Exception:
                await self._undo(metadata, custom)
                raise
            # After an error the record may be committed: what readers may see is not deleted. The
            # next run finds it, or copies the segment again.
            await remote.update(metadata, _FINISHED, custom)
            statistics.copied_bytes += metadata.size_bytes
        except Exception:
            statistics.copy_errors += 1
            raise
        finally:
            remote.being_copied.discard(metadata.segment_id)
        if log.truncations == truncations:
            offsets = log.offsets
            offsets.highest_remote_offset = max(offsets.highest_remote_offset, end_offset - 1)
        logger.info("%s: Copied segment %d to remote storage", log.name, segment.base_offset)

    def _check(self, log: Log, truncations: int, custom: bytes | None) -> None:
        if log.truncations != truncations:
            raise RemoteStorageError(f"{log.name} was truncated while a segment was copied")
        size, limit = len(custom or b""), self._max_custom_metadata_bytes
        if size > limit:
            self.stopped = (
                f"the remote storage returned {size} bytes of custom metadata, and"
                f" remote.log.metadata.custom.metadata.max.bytes is {limit}"
            )
            logger.error("%s: Stopped copying to remote storage: %s", log.name, self.stopped)
            raise RemoteStorageError(self.stopped)

    async def _undo(self, metadata: RemoteLogSegmentMetadata, custom: bytes | None) -> None:
        """Deletes what a failed copy left. If that fails, too, expiration does it later."""
        segment = metadata.with_state(
            metadata.state, metadata.broker_id, metadata.event_timestamp_ms, custom
        )
        try:
            await self._remote.delete(segment)
        except (RemoteStorageError, OSError, WorkerPoolClosed) as error:
            logger.warning(
                "%s-%d: Cannot delete segment %s after its copy failed, expiration retries: %s",
                self._partition.topic,
                self._partition.partition,
                metadata.segment_id.id,
                error,
            )

    def _describe(
        self, log: Log, segment: Segment, end_offset: int
    ) -> tuple[RemoteLogSegmentMetadata, LogSegmentData]:
        remote, epochs = self._remote, log.leader_epochs.entries
        try:
            segment.check_indexes()  # nothing rebuilds them in remote storage
        except CorruptIndex as damage:
            raise RemoteStorageError(f"a segment of {log.name} is damaged: {damage}") from damage
        metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(self._partition, self._new_id()),
            start_offset=segment.base_offset,
            end_offset=end_offset - 1,
            max_timestamp_ms=segment.largest_timestamp(),
            broker_id=remote.broker_id,
            event_timestamp_ms=remote.now_ms(),
            size_bytes=segment.size,
            leader_epochs=epochs_between(epochs, segment.base_offset, end_offset),
        )
        if _has_records_without_epoch(log, segment, metadata.leader_epochs):
            # No client could read them there, and a new leader would take them for deleted.
            raise RemoteStorageError(
                f"segment {segment.base_offset} of {log.name} has records from before Kafka 0.11,"
                " which have no leader epoch, and cannot be copied to remote storage"
            )
        producers = log.producer_state
        has_snapshot = end_offset in producers.snapshots
        transaction_index = Path(segment.txn_index.path) if segment.txn_index.exists else None
        data = LogSegmentData(
            segment=Path(segment.log.path),
            offset_index=Path(segment.offset_index.path),
            time_index=Path(segment.time_index.path),
            transaction_index=transaction_index,
            producer_snapshot=Path(producers.snapshot_path(end_offset)) if has_snapshot else None,
            leader_epoch_checkpoint=epoch_checkpoint(epochs, end_offset),
        )
        return metadata, data


def _has_records_without_epoch(log: Log, segment: Segment, epochs: Mapping[int, int]) -> bool:
    """Whether there are some before the first epoch. Raises CorruptLog, OSError."""
    if not epochs:
        return True
    start = max(segment.base_offset, log.log_start_offset)
    if min(epochs.values()) <= start:
        return False
    place = segment.find_batch(start)  # else the log start was lost in a crash, not the epochs
    return place is not None and place.magic < _MAGIC_WITH_EPOCHS


def copy_lag(log: Log, copied_offset: int) -> tuple[int, int]:
    """(bytes, number) of the closed segments above `copied_offset`."""
    from_offset = max(copied_offset + 1, log.log_start_offset)
    segment = log.segments.floor(from_offset) or log.segments.first
    size = count = 0
    while segment is not None:
        following = log.segments.after(segment)
        if following is None:
            break
        if following.base_offset > from_offset:
            size += segment.size
            count += 1
        segment = following
    return size, count


def next_segment(log: Log, copied_offset: int) -> tuple[Segment, int] | None:
    """The first closed segment above `copied_offset`, and where it ends; None if there is none.

    All its records are below the last stable offset: no transaction in it is open.
    """
    from_offset = max(copied_offset + 1, log.log_start_offset)
    segment = log.segments.floor(from_offset) or log.segments.first
    while segment is not None:
        following = log.segments.after(segment)
        if following is None or following.base_offset > log.last_stable_offset:
            return None
        if following.base_offset > from_offset and segment.size:
            return segment, following.base_offset
        segment = following
    return None
