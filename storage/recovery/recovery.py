"""Opening the log in a partition directory, after a clean shutdown or with recovery.

After a clean shutdown only the last segment is read, to find the log end. Otherwise every batch at
or above the recovery point is read and its checksum verified, indexes and producer state are
rebuilt, and the log is truncated at the first batch that is incomplete or corrupt. Kafka's
`LogLoader`, but it starts at the recovery point itself and not at the segment that contains it.

`open_log` accesses only its directory: several may run in worker threads at the same time if those
that share `OpenFiles` run one after the other.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ottla.protocol.records.errors import RecordsError
from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptFile, CorruptIndex, SegmentOffsetOverflow
from ottla.storage.files.checkpoints import read_partition_metadata
from ottla.storage.files.deletions import Deletions
from ottla.storage.files.fs import clear_path
from ottla.storage.files.layout import (
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_of_file,
    segment_file_name,
)
from ottla.storage.files.set_aside import of_files
from ottla.storage.log.batch_scan import CorruptLog, walk
from ottla.storage.log.flush import FlushLater
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.local_log import LocalLog
from ottla.storage.log.log import Log
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.log.partition_directory import PartitionDirectory
from ottla.storage.log.producer_replay import rebuild_producers, replay
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import SegmentList
from ottla.storage.log.transaction_indexes import check_marker, repair_transaction_indexes
from ottla.storage.producer.producer_state import DEFAULT_EXPIRATION_MS, ProducerState
from ottla.storage.producer.verification import Verifications
from ottla.storage.recovery.directory_repair import clean_directory
from ottla.storage.recovery.load_progress import DirectoryProgress
from ottla.storage.recovery.recovery_scan import SegmentScan

logger = logging.getLogger("ottla.storage")


class Opening(NamedTuple):
    """How to open a log. `recovery_point` and `log_start_offset` are those of the checkpoints."""

    clean: bool
    recovery_point: int
    log_start_offset: int
    now_ms: int
    # The offset up to which the log was compacted, -1 if never: compaction leaves gaps.
    compacted_to: int = -1
    producer_expiration_ms: int = DEFAULT_EXPIRATION_MS
    verification_enabled: bool = False
    # How far the load of the log directory is; written by the thread that opens its logs.
    progress: DirectoryProgress | None = None
    flush_later: FlushLater | None = None


def open_log(
    directory: PartitionDirectory, config: LogConfig, opening: Opening, deletions: Deletions
) -> Log:
    """Opens the log in a directory that exists; creates one if it is empty. Raises OSError."""
    return _Loader(directory, config, opening, deletions).load()


class _Loader:
    def __init__(
        self,
        directory: PartitionDirectory,
        config: LogConfig,
        opening: Opening,
        deletions: Deletions,
    ) -> None:
        self.directory = directory
        self.fs = directory.fs
        self.path = directory.path
        self.name = directory.name
        self.config = config
        self.opening = opening
        self.deletions = deletions
        self.segments = SegmentList()
        self.epochs = LeaderEpochs(
            self.fs, directory.leader_epoch_path, is_enabled=config.record_magic == 2
        )
        self.clean = opening.clean
        self.may_have_gaps = opening.compacted_to >= 0 or config.compact
        self._read_epochs = False
        self._recovered = False

    def load(self) -> Log:
        names = clean_directory(self.fs, self.path)
        directory = self.directory
        directory.log_directory.note_set_aside(
            of_files(names, self.path, directory.topic, directory.partition)
        )
        expiration_ms = self.opening.producer_expiration_ms
        self.producers = ProducerState(self.fs, self.name, self.path, names, expiration_ms)
        # One from before a compaction may have a transaction open whose marker is gone. Kafka keeps
        # that of the first segment of each group; and a power failure may undo its deletion.
        self.producers.delete_snapshots(0, self.opening.compacted_to)
        self._load_epochs(names)
        self._load_segments(names)
        self._repair_overlaps()
        start = self.opening.log_start_offset
        end = self._find_end() if len(self.segments) else start
        if end < start:
            logger.warning(
                "%s: Log end offset %d is below log start offset %d, deleting all segments",
                self.name,
                end,
                start,
            )
            self._delete(list(self.segments))
            self.epochs.clear()
        if not len(self.segments):
            end = start
            self.producers.reset(start)  # a snapshot that is left is of another history
            self._add_first_segment(start)
        local_start = start = max(start, self.segments.first.base_offset)
        if self.config.remote_storage_enable:
            start = self.opening.log_start_offset  # what is below the first segment is remote
        self.epochs.truncate_from_end(end)
        self.epochs.truncate_from_start(self.opening.log_start_offset)
        self.producers.keep_snapshots_of(self.segments.base_offsets)
        if not self._recovered:
            rebuild_producers(self.producers, self.segments, start, end, self.opening.now_ms)
        repair_transaction_indexes(self.name, self.segments, self.producers, start)
        recovery_point = end if self.clean else min(self.opening.recovery_point, end)
        offsets = LogOffsets(
            self.producers,
            log_start_offset=start,
            log_end_offset=end,
            recovery_point=recovery_point,
            local_log_start_offset=local_start,
        )
        log = Log(
            LocalLog(self.directory, self.config, self.segments, self.producers, self.deletions),
            offsets,
            self.producers,
            self.epochs,
            Verifications(self.opening.verification_enabled),
            topic_id=self._topic_id(),
            now_ms=self.opening.now_ms,
        )
        log.flusher.flush_later = self.opening.flush_later
        return log

    def _topic_id(self) -> bytes | None:
        path = self.directory.metadata_path
        try:
            return read_partition_metadata(self.fs, path)
        except CorruptFile as damage:
            logger.warning("%s: Ignoring corrupt topic id: %s", self.name, damage)
            clear_path(self.fs, path)
            return None

    def _load_epochs(self, names: dict[str, int]) -> None:
        if not self.epochs.is_enabled:
            if LEADER_EPOCH_CHECKPOINT in names:
                self.fs.remove(self.epochs.path)
            return
        if LEADER_EPOCH_CHECKPOINT not in names:
            self._read_epochs = True
            return
        try:
            if not names[LEADER_EPOCH_CHECKPOINT]:
                raise CorruptFile(self.epochs.path, "it is empty")  # its content was not synced
            self.epochs.load()
        except CorruptFile as damage:
            logger.warning("%s: Rebuilding leader epochs from all batches: %s", self.name, damage)
            clear_path(self.fs, self.epochs.path)
            self._read_epochs = True

    def _load_segments(self, names: dict[str, int]) -> None:
        for name in sorted(names):
            base_offset = offset_of_file(name) if name.endswith(LOG_SUFFIX) else None
            if base_offset is None:
                continue
            now_ms = self.opening.now_ms
            segment = self.directory.segment(base_offset, self.config, now_ms, names)
            self.segments.add(segment)
            wanted = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
            missing = [s for s in wanted if segment_file_name(base_offset, s) not in names]
            if missing and not self._will_recover(segment):
                self._rebuild_indexes(segment, f"missing {' and '.join(missing)}")
        if self._read_epochs:
            self._epochs_from_batches()

    def _will_recover(self, segment: Segment) -> bool:
        return not self.clean and segment.base_offset >= self.opening.recovery_point

    def _rebuild_indexes(self, segment: Segment, reason: str) -> None:
        logger.warning("Rebuilding the indexes of %s: %s", segment.log.path, reason)
        try:
            segment.rebuild_indexes()
        except (CorruptLog, SegmentOffsetOverflow) as damage:
            # Recovery finds it again and truncates the log there.
            logger.warning("%s: Recovery needed: %s", self.name, damage)
            self.clean = False
            self.opening = self.opening._replace(
                recovery_point=min(self.opening.recovery_point, segment.base_offset)
            )

    def _repair_overlaps(self) -> None:
        """Deletes empty segments that begin below the end of the records before them.

        A roll that failed half-way may leave one. Lookups by offset would find it instead of the
        records. Also after a clean shutdown, where only the last segment is read: its records hide
        those of the segment before it, which is truncated where they begin.
        """
        previous: Segment | None = None
        for segment in self.segments:
            is_last = self.clean and segment is self.segments.active
            if previous is not None and (segment.size == 0 or is_last):
                end = self._end_of(previous)
                if end > segment.base_offset:
                    logger.error(
                        "%s: Segment %d ends at offset %d, segment %d overlaps it",
                        self.name,
                        previous.base_offset,
                        end,
                        segment.base_offset,
                    )
                    if segment.size == 0:
                        self._delete([segment])
                        continue
                    previous.truncate_to(segment.base_offset)
                    previous.finish()
            if segment.size:
                previous = segment

    def _end_of(self, segment: Segment) -> int:
        try:
            return segment.next_offset()
        except (CorruptLog, CorruptIndex):
            return segment.base_offset  # recovery reads it, if it is above the recovery point

    def _epochs_from_batches(self) -> None:
        for segment in self.segments:
            try:
                for place in walk(segment.log, 0, segment.size):
                    if place.magic < 2:
                        self.epochs.forget_up_to(place.base_offset)
                    elif place.leader_epoch > self.epochs.latest_epoch:
                        self.epochs.assign(place.leader_epoch, place.base_offset)
            except CorruptLog:
                return  # recovery truncates the log there

    def _find_end(self) -> int:
        end = self._clean_end() if self.clean else None
        return self._recover() if end is None else end

    def _clean_end(self) -> int | None:
        try:
            active = self.segments.active
            active.offset_index.check()
            active.time_index.check()
            return active.next_offset()
        except (CorruptLog, CorruptIndex) as damage:
            logger.warning(
                "%s: Recovering the log, it is corrupt after a clean shutdown: %s",
                self.name,
                damage,
            )
            self.clean = False
            self.opening = self.opening._replace(recovery_point=self.segments.active.base_offset)
            return None

    def _add_first_segment(self, base_offset: int) -> None:
        segment = self.directory.segment(base_offset, self.config, self.opening.now_ms)
        segment.create_files(self.config.segment_bytes if self.config.preallocate else 0)
        self.segments.add(segment)

    # --- recovery ----------------------------------------------------------------------------

    def _recover(self) -> int:
        """Reads what may not have been flushed. Returns the log end offset."""
        if self.may_have_gaps:
            self._delete_replaced()
        point = self.opening.recovery_point
        unflushed = self.segments.from_offset(point)
        first = unflushed[0]
        position, from_offset = self._known_valid(first, point)
        state = self.producers
        # The snapshot at the first segment has the producers of the records that were deleted, or
        # are in remote storage only.
        state.reload(self.segments.first.base_offset, from_offset, self.opening.now_ms)
        replay(state, self.segments, self.opening.log_start_offset, from_offset)
        end = from_offset
        for index, segment in enumerate(unflushed):
            if index:
                if segment.base_offset != end and self._is_loss(unflushed[index:]):
                    logger.warning(
                        "%s: Offsets %d to %d are missing", self.name, end, segment.base_offset - 1
                    )
                    self._delete(unflushed[index:])
                    break
                position, end = 0, segment.base_offset
                state.end_offset = max(state.end_offset, segment.base_offset)
                state.take_snapshot()
            end, valid_bytes = self._recover_segment(segment, position, end)
            if valid_bytes < segment.size:
                # In this order: after another crash, recovery finds either the corrupt batch again
                # or no later segment, but never a gap that looks valid.
                self._delete(unflushed[index + 1 :])
                segment.log.truncate(valid_bytes)
            segment.finish()
            if segment is self.segments.active:
                break
        state.end_offset = end
        self._recovered = True
        return end

    def _is_loss(self, behind: list[Segment]) -> bool:
        """Whether a gap before these segments, above the recovery point, means lost records.

        The gap may come from compaction, here or on the leader. But if all segments after it are
        empty, the file of the new segment reached the disk and the last records before did not.
        """
        if not self.may_have_gaps:
            return True
        is_known = behind[0].base_offset <= self.opening.compacted_to
        return not is_known and all(segment.size == 0 for segment in behind)

    def _delete_replaced(self) -> None:
        """Deletes segments that compaction merged into another if their removal was lost."""
        segments = list(self.segments)
        merged = segments[0]
        for segment in segments[1:]:
            try:
                if merged.next_offset() > segment.base_offset:
                    logger.warning(
                        "%s: Segment %d was merged into segment %d by compaction",
                        self.name,
                        segment.base_offset,
                        merged.base_offset,
                    )
                    self._delete([segment])
                    continue
            except (CorruptLog, CorruptIndex):
                pass  # recovery reads it, if it is above the recovery point
            merged = segment

    def _known_valid(self, segment: Segment, recovery_point: int) -> tuple[int, int]:
        """(position, offset) up to which the segment is known to be valid and on disk.

        Not the start of the segment only if the indexes are valid and a batch begins at the
        recovery point.
        """
        if recovery_point <= segment.base_offset:
            return 0, segment.base_offset
        try:
            segment.offset_index.check()
            segment.time_index.check()
            for entry in segment.txn_index.entries():
                if entry.last_offset >= recovery_point:
                    # It is removed, and comes back when its marker is read: if it has one there.
                    check_marker(segment, entry)
            place = segment.find_batch(recovery_point)
            if place is not None and place.base_offset >= recovery_point:
                return place.position, recovery_point
            if place is None and segment.next_offset() == recovery_point:
                return segment.size, recovery_point
        except (CorruptIndex, CorruptLog, SegmentOffsetOverflow, FileNotFoundError) as damage:
            logger.warning(
                "%s: Recovering all of segment %d: %s", self.name, segment.base_offset, damage
            )
        return 0, segment.base_offset

    def _recover_segment(self, segment: Segment, position: int, offset: int) -> tuple[int, int]:
        """Reads from `position`, where `offset` begins. Returns (next offset, valid bytes)."""
        logger.info("%s: Recovering unflushed segment %d", self.name, segment.base_offset)
        self._prepare(segment, position, offset)
        progress = self.opening.progress
        report = None if progress is None else progress.add_recovered
        scan = SegmentScan(segment, self.producers, self.epochs, position, offset, report)
        try:
            scan.run()
        except (CorruptLog, RecordsError) as damage:
            # Usual after a crash: the last write is incomplete.
            lost = segment.log.size - scan.position
            logger.warning(
                "%s: Truncating to %d, discarding %d bytes of segment %d: %s",
                self.name,
                scan.next_offset,
                lost,
                segment.base_offset,
                damage,
            )
        return scan.next_offset, scan.position

    def _prepare(self, segment: Segment, position: int, offset: int) -> None:
        """Removes index entries at and above `offset`, which the scan writes again."""
        if position == 0:
            segment.reset_indexes()
            segment.txn_index.reset()
            return
        segment.truncate_indexes(offset, position)

    def _delete(self, segments: list[Segment]) -> None:
        for segment in segments:
            logger.warning("%s: Deleting segment %d", self.name, segment.base_offset)
            self.segments.remove(segment)
            segment.release()
            for path in segment.paths():
                if self.fs.exists(path):
                    self.fs.remove(path)
        if segments:
            self.fs.sync_directory(self.path)
