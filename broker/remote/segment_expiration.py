"""Deletes remote segments by `retention.ms`, `retention.bytes` and the log start offset.

Mirrors RLMExpirationTask of Kafka's RemoteLogManager; runs on the leader. The log start offset
advances first, then segments are deleted: a new leader that takes over in between finds them below
its log start offset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING

from ottla.broker.remote.lineage import highest_remote_offset, is_complete, is_of_history
from ottla.broker.remote.statistics import PartitionProgress
from ottla.protocol.steps import over
from ottla.storage.remote.metadata_records import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from ottla.storage.remote.object_store import StoreNotProvenError
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

if TYPE_CHECKING:
    from ottla.broker.remote.segment_copier import RemoteSegments
    from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.remote")

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
#: A copy that another broker began this long ago has ended: the deadlines of a remote storage are
#: minutes. Its COPY_SEGMENT_FINISHED would be ignored.
ABANDONED_COPY_MS = 3_600_000


class SegmentExpiration:
    """Applies retention to the remote segments of one partition."""

    def __init__(
        self,
        remote: RemoteSegments,
        partition: TopicIdPartition,
        progress: PartitionProgress | None = None,
    ) -> None:
        self._remote = remote
        self._partition = partition
        self._progress = PartitionProgress() if progress is None else progress
        #: Why segments could not be deleted in the last run.
        self.failure: RemoteStorageError | OSError | None = None
        self._kept = 0

    async def run(self, log: Log, is_leader: Callable[[], bool]) -> int:
        """Deletes what retention does not keep; returns the number of segments.

        Ends early when this broker is no leader any more. A segment that cannot be deleted does not
        prevent the deletion of others, and is retried in the next run. Raises
        RemoteMetadataNotReadyError, LogDirectoryOffline.
        """
        self.failure = None
        segments = self._remote.metadata.cache(self._partition).segments()
        truncations = log.truncations
        history = await _of_history(segments, log)
        # A leader does not truncate: it was follower in between, and runs again.
        is_outdated = log.truncations != truncations
        if is_outdated or not is_leader() or log.local.closed:
            return 0
        progress = self._progress
        progress.metadata_count = len(segments)
        progress.size_bytes = sum(each.size_bytes for each in segments)
        expired, log_start_offset = self._expired(log, segments, history)
        expired += self._left_over(segments, log)
        progress.delete_lag_segments = len(expired)
        progress.delete_lag_bytes = sum(each.size_bytes for each in expired)
        if not segments:
            return 0
        log.truncator.delete_records_before(min(log_start_offset, log.high_watermark))
        if expired and log.offsets.durable_log_start < log.log_start_offset:
            # On disk before the objects go: after a crash the log would begin at offsets that are
            # nowhere.
            await self._remote.workers.run(self._remote.write_log_starts)
        return await self._delete(expired, is_leader)

    def _expired(
        self, log: Log, segments: list[RemoteLogSegmentMetadata], history: set[RemoteLogSegmentId]
    ) -> tuple[list[RemoteLogSegmentMetadata], int]:
        """The segments to be deleted, and the log start offset afterwards."""
        start = log.log_start_offset
        readable = [each for each in segments if each.state is _FINISHED]
        excess = self._excess(log, readable, history)
        expired = []
        for each in readable:
            if each.end_offset < start:
                expired.append(each)  # deleted by DeleteRecords, or by an earlier leader
                continue
            if each.segment_id not in history:
                continue  # not counted, and deleted when the log start passes it
            is_old = self._is_old(each, log)
            if not is_old and not 0 < each.size_bytes <= excess:
                break
            excess -= each.size_bytes
            expired.append(each)
            start = each.end_offset + 1
        return expired, start

    def _is_old(self, segment: RemoteLogSegmentMetadata, log: Log) -> bool:
        retention_ms = log.config.retention_ms
        if retention_ms < 0 or not log.config.delete:
            return False
        return segment.max_timestamp_ms <= self._remote.now_ms() - retention_ms

    def _excess(
        self,
        log: Log,
        readable: list[RemoteLogSegmentMetadata],
        history: set[RemoteLogSegmentId],
    ) -> int:
        """By how many bytes the log, local and remote, is larger than `retention.bytes`."""
        limit = log.config.retention_bytes
        if limit < 0 or not log.config.delete:
            return 0
        begin = monotonic()
        epochs, end = log.leader_epochs.entries, log.log_end_offset
        # Not what the copier has noted: after a start it has noted nothing yet.
        highest = highest_remote_offset(self._remote.metadata.cache(self._partition), epochs, end)
        remote = sum(
            each.size_bytes
            for each in readable
            # What is below the log start is deleted in any case, and makes room for nothing.
            if each.end_offset >= log.log_start_offset and each.segment_id in history
        )
        local = sum(each.size for each in log.segments if each.base_offset > highest)
        self._progress.size_computation_seconds = monotonic() - begin
        return remote + local - limit

    def _left_over(
        self, segments: Iterable[RemoteLogSegmentMetadata], log: Log
    ) -> list[RemoteLogSegmentMetadata]:
        """What failed copies and deletions left, and what is older than the first leader epoch.

        The latter only after its retention: the leader epochs of a log that was lost begin again,
        and these segments have the only records that are left of it.
        """
        epochs, now_ms = log.leader_epochs.entries, self._remote.now_ms()
        # With a part of the epochs, older segments may well be of this history.
        first_epoch = epochs[0][0] if is_complete(epochs, log.log_start_offset) else None
        found, kept = [], []
        for each in segments:
            if each.segment_id in self._remote.being_copied:
                continue
            is_abandoned = (
                each.state is _STARTED and now_ms - each.event_timestamp_ms >= ABANDONED_COPY_MS
            )
            is_unreferenced = (
                each.state is _FINISHED
                and first_epoch is not None
                and max(each.leader_epochs) < first_epoch
                and each.end_offset >= log.log_start_offset  # else it is expired
            )
            if is_unreferenced and not self._is_old(each, log):
                kept.append(each)
            elif each.state is _DELETE_STARTED or is_abandoned or is_unreferenced:
                found.append(each)
        if len(kept) > self._kept:
            logger.warning(
                "%s: %d remote segments up to offset %d have leader epochs before the first one of"
                " the log, and are not read. They are kept until their retention is over",
                log.name,
                len(kept),
                max(each.end_offset for each in kept),
            )
        self._kept = len(kept)
        return found

    async def _delete(
        self,
        segments: list[RemoteLogSegmentMetadata],
        is_leader: Callable[[], bool],
    ) -> int:
        progress = self._progress
        deleted = failed = 0
        for each in segments:
            if not is_leader():
                break
            try:
                await self._remote.delete(each)
            except (RemoteStorageError, OSError) as error:
                failed += 1
                self.failure = error
                if failed == 1:  # the others fail for the same reason
                    logger.warning(
                        "%s-%d: Cannot delete remote segment %s, retrying in the next run: %s",
                        self._partition.topic,
                        self._partition.partition,
                        each.segment_id.id,
                        error,
                    )
                if isinstance(error, StoreNotProvenError):
                    break
            else:
                deleted += 1
                progress.metadata_count -= 1
                progress.size_bytes -= each.size_bytes
                progress.delete_lag_segments -= 1
                progress.delete_lag_bytes -= each.size_bytes
        if deleted:
            logger.info(
                "%s-%d: Deleted %d remote segments",
                self._partition.topic,
                self._partition.partition,
                deleted,
            )
        return deleted


async def _of_history(
    segments: list[RemoteLogSegmentMetadata], log: Log
) -> set[RemoteLogSegmentId]:
    """Return the segments that belong to the history of the log, of ten thousand perhaps."""
    epochs, end = log.leader_epochs.entries, log.log_end_offset
    found = set()
    async for each in over(segments):
        if is_of_history(each, epochs, end):
            found.add(each.segment_id)
    return found


async def delete_partition(remote: RemoteSegments, partition: TopicIdPartition) -> int:
    """Deletes all remote segments of a partition whose topic was deleted; returns their number.

    Marks the beginning and the end in the metadata, so that another broker can finish it. Raises
    RemoteStorageError: repeat it.
    """

    async def mark(state: RemotePartitionDeleteState) -> None:
        now_ms = remote.now_ms()
        await remote.metadata.store(
            RemotePartitionDeleteMetadata(partition, state, now_ms, remote.broker_id)
        )

    await mark(RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
    await mark(RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
    segments = remote.metadata.cache(partition).segments()
    for each in segments:
        await remote.delete(each)
    await mark(RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)
    return len(segments)
