"""Opening the log in a partition directory, after a clean shutdown or with recovery.

After a clean shutdown only the last segment is read, to find the log end. Otherwise every batch at
or above the recovery point is read and its checksum verified, indexes and producer state are
rebuilt, and the log is truncated at the first batch that is incomplete or corrupt. Kafka's
`LogLoader`, but it starts at the recovery point itself and not at the segment that contains it. A
log whose recovery point is not known, or is above its end, is read from its start.

Nothing that holds a record is deleted on the word of one file (docs/operations.md):

- A gap between segments stays, as in Kafka: consumers see it. Compaction leaves gaps, an operator
  may have moved a segment, and a power failure loses the end of a segment. After the last of these
  a follower fetches what is missing again (`LogOffsets.missing_from`).
- What is cut off is copied first if it is more than a write that a crash has interrupted, and the
  segments behind it, which Kafka deletes, are renamed (`storage/log/parts_aside.py`).
- A log start of the checkpoint that is above the first segment counts if the leader epochs say the
  same: both are written when the log start advances. Otherwise the log starts with its first
  segment.

`open_log` accesses only its directory: several may run in worker threads at the same time if those
that share `OpenFiles` run one after the other.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from itertools import pairwise
from typing import NamedTuple

from ottla.protocol.records.errors import RecordsError
from ottla.protocol.steps import run_at_once
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
    TXN_INDEX_SUFFIX,
    offset_of_file,
    segment_file_name,
)
from ottla.storage.files.log_directory import NO_SPACE
from ottla.storage.files.set_aside import Reason, of_files
from ottla.storage.log.batch_scan import CorruptLog, walk
from ottla.storage.log.flush import FlushLater
from ottla.storage.log.leader_epochs import NO_EPOCH, LeaderEpochs
from ottla.storage.log.local_log import LocalLog, PartitionDirectory, SegmentList
from ottla.storage.log.log import Log
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.log.parts_aside import (
    copy_end_aside,
    holds_records,
    note_part,
    set_segment_aside,
)
from ottla.storage.log.producer_replay import (
    check_marker,
    rebuild_producers,
    repair_transaction_indexes,
    replay,
)
from ottla.storage.log.segment import Segment
from ottla.storage.producer.producer_state import DEFAULT_EXPIRATION_MS, ProducerState
from ottla.storage.producer.verification import Verifications
from ottla.storage.recovery.directory_repair import clean_directory
from ottla.storage.recovery.load_progress import DirectoryProgress
from ottla.storage.recovery.recovery_scan import SegmentScan

logger = logging.getLogger("ottla.storage")


class Opening(NamedTuple):
    """How to open a log. `recovery_point` and `log_start_offset` come from the checkpoints.

    `recovery_point` is None if it is not known. It is not for a log that is new, and for all logs
    if the checkpoint is lost: only the former is known to have been flushed nowhere.
    """

    clean: bool
    recovery_point: int | None
    log_start_offset: int
    now_ms: int
    # Whether the checkpoint has a log start offset, which is 0 otherwise.
    has_log_start: bool = False
    # The offset up to which the log was compacted, -1 if never: compaction leaves gaps.
    compacted_to: int = -1
    producer_expiration_ms: int = DEFAULT_EXPIRATION_MS
    verification_enabled: bool = False
    # The checkpoint of the recovery points could be read.
    has_recovery_points: bool = True
    # How far the load of the log directory is; written by the thread that opens its logs.
    progress: DirectoryProgress | None = None
    flush_later: FlushLater | None = None


def open_log(
    directory: PartitionDirectory, config: LogConfig, opening: Opening, deletions: Deletions
) -> Log:
    """Open the log in a directory that exists; creates one if it is empty. Raises OSError."""
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
        # Below it everything has been on disk.
        self.flushed_to = sys.maxsize if opening.clean else opening.recovery_point or 0
        self._first_gap: int | None = None
        # Base offsets whose index of aborted transactions is lost, with how that is known.
        self._without_index: dict[int, str] = {}
        self._read_epochs = False
        self._recovered = False

    def load(self) -> Log:
        unusable: list[str] = []
        names = clean_directory(
            self.fs, self.path, is_compacted=self.may_have_gaps, unusable=unusable
        )
        directory = self.directory
        directory.log_directory.note_set_aside(
            of_files(names, self.path, directory.topic, directory.partition)
        )
        expiration_ms = self.opening.producer_expiration_ms
        self.producers = ProducerState(self.fs, self.name, self.path, names, expiration_ms)
        self._load_epochs(names)
        self._load_segments(names, unusable)
        start = self._check_log_start()
        self._delete_old_snapshots()
        self._repair_overlaps()
        end = self._find_end() if len(self.segments) else start
        if self.clean and end < (self.opening.recovery_point or 0):
            self._report_missing_end(end)
        if end < start:
            what = f"Log end offset {end} is below log start offset {start}"
            logger.warning("%s: %s, starting with an empty log", self.name, what)
            with_records = [each for each in self.segments if each.size]
            self._set_aside(with_records, Reason.BELOW_LOG_START, what)
            self._delete(list(self.segments))
            self.epochs.clear()
            self._first_gap = None
        if not len(self.segments):
            end = start
            self.producers.reset(start)  # a snapshot that is left is of another history
            self._add_first_segment(start)
        local_start = start = max(start, self.segments.first.base_offset)
        if self._has_remote_records(start):
            start = self.opening.log_start_offset  # what is below the first segment is remote
        self.epochs.truncate_from_end(end)
        self.epochs.truncate_from_start(self.opening.log_start_offset)
        self._check_epochs(end)
        self._complete_epochs(local_start, end)
        self.producers.keep_snapshots_of(self.segments.base_offsets)
        if not self._recovered:
            rebuild_producers(self.producers, self.segments, start, end, self.opening.now_ms)
        repair_transaction_indexes(
            self.name, self.segments, self.producers, start, self._without_index
        )
        recovery_point = end if self.clean else min(self.opening.recovery_point or 0, end)
        offsets = LogOffsets(
            self.producers,
            log_start_offset=start,
            log_end_offset=end,
            recovery_point=recovery_point,
            local_log_start_offset=local_start,
        )
        offsets.durable_log_start = self.opening.log_start_offset
        if self.opening.has_recovery_points:  # or the gap may be older than the crash
            offsets.missing_from = self._first_gap
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

    def _report_missing_end(self, end: int) -> None:
        """The log was longer when it was closed. As in Kafka, new records get the offsets of those
        that are missing; but there it is not said."""
        logger.error(
            "%s: The log ends at offset %d, and was closed with the end %d: segments were deleted"
            " or moved, or recovery-point-offset-checkpoint is of another log. If it was a mistake,"
            " stop the broker before anything is written, put them back and start it again",
            self.name,
            end,
            self.opening.recovery_point,
        )

    def _topic_id(self) -> bytes | None:
        path = self.directory.metadata_path
        try:
            return read_partition_metadata(self.fs, path)
        except CorruptFile as damage:
            logger.warning("%s: Ignoring corrupt topic id: %s", self.name, damage)
            clear_path(self.fs, path)
            return None

    def _check_log_start(self) -> int:
        """The log start offset. What it hides is deleted by retention, so it needs two witnesses.

        The epochs of a log begin with its log start: DeleteRecords and retention remove the others.
        If there are none in the file, all records that had one are deleted. If the file is damaged,
        the other witness are the segments: retention has deleted those below a log start.
        """
        start, epochs = self.opening.log_start_offset, self.epochs.entries
        first = self.segments.first.base_offset if len(self.segments) else start
        if start <= first:
            return start
        if self._read_epochs:
            end = self._end_of(self.segments.first)
            is_last = len(self.segments) == 1
            begin = start if start < end or (is_last and start == end) else first
        elif self.epochs.is_enabled:
            begin = epochs[0][1] if epochs else start
        else:
            begin = start if start <= self._end_of(self.segments.active) else first
        if begin >= start:
            return start
        found = first
        if self.config.remote_storage_enable and epochs:
            found = min(first, begin)  # what is below the first segment is remote
        logger.error(
            "%s: Starting at offset %d and not at %d of log-start-offset-checkpoint: the first"
            " segment begins at %d, the leader epochs at %d; delete records again if that is wrong",
            self.name,
            found,
            start,
            first,
            begin,
        )
        self.opening = self.opening._replace(log_start_offset=found)
        return found

    def _delete_old_snapshots(self) -> None:
        """One from before a compaction may have a transaction open whose marker is gone. Kafka
        keeps that of the first segment of each group; and a power failure may undo its deletion.
        """
        if not len(self.segments):
            return
        active = self.segments.active.base_offset
        if self.opening.compacted_to > active:
            logger.warning(
                "%s: Ignoring offset %d of cleaner-offset-checkpoint, the active segment begins"
                " at %d",
                self.name,
                self.opening.compacted_to,
                active,
            )
            self.opening = self.opening._replace(compacted_to=-1)
        self.producers.delete_snapshots(0, self.opening.compacted_to)

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

    def _load_segments(self, names: dict[str, int], unusable: list[str]) -> None:
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
                # The index of aborted transactions may be missing as well: Kafka rebuilds it, too.
                self._without_index[base_offset] = "it is missing, as others are"
            aborted = segment_file_name(base_offset, TXN_INDEX_SUFFIX)
            if aborted in unusable:
                self._without_index[base_offset] = "it is no file"
            elif names.get(aborted) == 0:  # one without entries is removed
                self._without_index[base_offset] = "it is empty"
        if self._read_epochs:
            self._epochs_from_batches()

    def _will_recover(self, segment: Segment) -> bool:
        return not self.clean and segment.base_offset >= (self.opening.recovery_point or 0)

    def _rebuild_indexes(self, segment: Segment, reason: str) -> None:
        logger.warning("Rebuilding the indexes of %s: %s", segment.log.path, reason)
        try:
            segment.rebuild_indexes()
        except (CorruptLog, SegmentOffsetOverflow) as damage:
            # Recovery finds it again and truncates the log there.
            logger.warning("%s: Recovery needed: %s", self.name, damage)
            point = self.opening.recovery_point
            if self.clean:
                point = segment.base_offset if point is None else min(point, segment.base_offset)
            elif point is not None:
                point = min(point, segment.base_offset)
            self.clean = False
            self.opening = self.opening._replace(recovery_point=point)

    def _repair_overlaps(self) -> None:
        """Delete empty segments that begin below the end of the records before them.

        A roll that failed half-way may leave one. Lookups by offset would find it instead of the
        records. Also after a clean shutdown, where only the last segment is read: its records hide
        those of the segment before it, which are set aside.
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
                    self._set_hidden_aside(previous, segment)
            if segment.size:
                previous = segment

    def _set_hidden_aside(self, segment: Segment, following: Segment) -> None:
        """The records of `segment` that those of `following` hide: lookups find the latter."""
        try:
            place = segment.find_batch(following.base_offset)
            if place is not None:
                self._keep_end(
                    segment,
                    place.position,
                    Reason.OVERLAP,
                    f"segment {following.base_offset} has these offsets, too",
                )
                segment.truncate_to(following.base_offset)
                segment.finish()
        except (CorruptLog, CorruptIndex) as damage:
            logger.error("%s: Segment %d stays: %s", self.name, segment.base_offset, damage)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            # As in Kafka. The next start tries again.
            logger.error("%s: Segment %d stays: %s", self.name, segment.base_offset, error)

    def _keep_end(self, segment: Segment, position: int, reason: Reason, detail: str) -> None:
        """Copy what is behind `position`; durable when this returns. Raises OSError."""
        size = segment.log.size
        path = copy_end_aside(self.fs, segment.log, position, size, reason)
        note_part(self.directory, path, size - position, detail)

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

    def _check_epochs(self, end: int) -> None:
        """Read the epochs of all batches if those of the file are of another log.

        The file is valid in itself then. A leader with wrong epochs tells followers and consumers
        to truncate to offsets at which nothing diverges.
        """
        if self._read_epochs or not self.epochs.entries:
            return
        reason = self._wrong_epoch(end)
        if not reason:
            return
        logger.warning("%s: Rebuilding leader epochs from all batches: %s", self.name, reason)
        self.epochs.clear()
        self._epochs_from_batches()
        self.epochs.truncate_from_end(end)
        self.epochs.truncate_from_start(self.opening.log_start_offset)

    def _wrong_epoch(self, end: int) -> str:
        """The first epoch that its batch disagrees with; "" if there is none.

        Compares the batches where the latest epoch starts and the last one, as far as they are
        here: more would open more files of each log. Of a log with remote storage, where each epoch
        starts: its segments are found by their epochs.
        """
        epochs = self.epochs
        compared = epochs.entries if self.config.remote_storage_enable else epochs.entries[-1:]
        starts = [offset for _, start in compared for offset in (start - 1, start)]
        for offset in (*starts, end - 1):
            segment = self.segments.floor(offset)
            if segment is None or offset >= end or epochs.epoch_for_offset(offset) == NO_EPOCH:
                continue
            try:
                place = segment.find_batch(offset)
            except (CorruptLog, CorruptIndex):
                continue
            # Compaction may have removed the batch with that offset.
            if place is not None and place.magic == 2 and place.leader_epoch >= 0:
                expected = epochs.epoch_for_offset(max(offset, place.base_offset))
                if place.leader_epoch != expected:
                    return (
                        f"offset {max(offset, place.base_offset)} has epoch {place.leader_epoch},"
                        f" and {expected} in {epochs.path}"
                    )
        return ""

    def _has_remote_records(self, local_start: int) -> bool:
        """Whether what is below `local_start`, and not deleted, may be in remote storage.

        Of a topic that has `remote.storage.enable=false` now, the checkpoint has the log start only
        while there are such records; or a crash came after retention had deleted segments, which
        the tasks of the leader find in the remote log metadata.
        """
        if self.config.remote_storage_enable:
            return True
        is_below = self.opening.has_log_start and self.opening.log_start_offset < local_start
        if is_below and not self.config.has_remote_storage:
            logger.warning(
                "%s: Offsets %d to %d are not on this disk. If they are in remote storage, they"
                " cannot be read while remote.log.storage.system.enable=false",
                self.name,
                self.opening.log_start_offset,
                local_start - 1,
            )
        return is_below and self.config.has_remote_storage

    def _complete_epochs(self, local_start: int, end: int) -> None:
        """Read the epochs of the batches between `local_start` and the first epoch of the file.

        The file follows an advance of the log start at once, its checkpoint once a minute. After a
        crash in between these records are back, and without their epochs no segment of them can be
        copied to remote storage, and no follower compares them. Kafka leaves it like that.
        """
        known, found = self.epochs.entries, dict[int, int]()
        first_known = known[0][1] if known else end
        if first_known <= local_start or not self.epochs.is_enabled:
            return
        try:
            for segment in self.segments.from_offset(local_start):
                if segment.base_offset >= first_known:
                    break
                for place in walk(segment.log, 0, segment.size):
                    if place.magic < 2 or place.leader_epoch < 0:
                        return  # what is below has no epoch: the file has all there are
                    if place.base_offset >= first_known:
                        break
                    if place.last_offset >= local_start:
                        start = max(place.base_offset, local_start)
                        found.setdefault(place.leader_epoch, start)
        except CorruptLog:
            return  # a reader finds it, too
        if not found or (known and max(found) > known[0][0]):
            return
        entries = [*found.items(), *(entry for entry in known if entry[0] not in found)]
        if all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(entries)):
            logger.info("%s: Leader epochs completed from the batches: %s", self.name, entries)
            self.epochs.replace(entries)

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
        """Read what may not have been flushed. Returns the log end offset."""
        if self.may_have_gaps:
            self._remove_replaced()
        point = self.opening.recovery_point
        end = self._recover_from(point or 0)
        if point is not None and end < point and point > self.segments.first.base_offset:
            logger.warning(
                "%s: Recovering all segments: the log ends at %d, and recovery-point-offset-"
                "checkpoint has %d",
                self.name,
                end,
                point,
            )
            self.opening = self.opening._replace(recovery_point=None, has_recovery_points=False)
            self._first_gap = None
            end = self._recover_from(0)
        self._recovered = True
        return end

    def _recover_from(self, point: int) -> int:
        unflushed = self.segments.from_offset(point)
        first = unflushed[0]
        position, from_offset = self._known_valid(first, point)
        # The snapshot at the first segment has the producers of the records that were deleted, or
        # are in remote storage only.
        producers, start = self.producers, self.opening.log_start_offset
        rebuild_producers(producers, self.segments, start, from_offset, self.opening.now_ms)
        end, previous = from_offset, first
        for index, segment in enumerate(unflushed):
            if index:
                if segment.base_offset < end:
                    if self._is_superseded(previous, segment, end):
                        self._set_aside(
                            [segment], Reason.OVERLAP, "another segment has its offsets"
                        )
                        continue
                    self._set_hidden_aside(previous, segment)
                    self.epochs.truncate_from_end(segment.base_offset)
                elif segment.base_offset > end:
                    if self._is_of_other_history(segment, previous):
                        what = f"offsets from {end} on are missing, and the leader epoch is older"
                        self._set_aside([segment], Reason.AFTER_GAP, what)
                        continue
                    self._note_gap(end, unflushed[index:])
                position, end = 0, segment.base_offset
                producers.end_offset = max(producers.end_offset, segment.base_offset)
                producers.take_snapshot()
            end, valid_bytes = self._recover_segment(segment, position, end)
            if valid_bytes < segment.size:
                end = self._truncate(segment, valid_bytes, end, unflushed[index + 1 :])
                break
            segment.finish()
            previous = segment
        producers.end_offset = end
        return end

    def _note_gap(self, end: int, behind: list[Segment]) -> None:
        """A gap before these segments, above the recovery point if that is known.

        It proves no loss. It may come from compaction, here or on the leader, also before a change
        of cleanup.policy; or from an operator who moved a damaged segment. But in a log without
        compaction, or if all segments behind it are empty, the last records before it may not have
        reached the disk when the file of the next segment did. Then a follower asks its leader.
        """
        if self.may_have_gaps:
            is_known = behind[0].base_offset <= self.opening.compacted_to
            if is_known or any(segment.size for segment in behind):
                return
        if self._first_gap is not None:
            return  # there may be many
        logger.warning(
            "%s: Offsets %d to %d are missing, what is behind them stays",
            self.name,
            end,
            behind[0].base_offset - 1,
        )
        self._first_gap = end

    def _is_superseded(self, previous: Segment, segment: Segment, end: int) -> bool:
        """Whether `segment` begins below the end of `previous`, `end`, and is not needed.

        All its offsets are in `previous`; or a power failure has undone its removal by a
        truncation, and the log went on in `previous`, with a later leader epoch.
        """
        try:
            return segment.next_offset() <= end or self._is_earlier(segment, previous, -1)
        except (CorruptLog, CorruptIndex):
            return True  # set aside whole; what is valid in it is not lost

    def _is_earlier(self, segment: Segment, previous: Segment, lowest_epoch: int) -> bool:
        """Whether the first batch is of an older leader epoch than the last one of `previous`.

        False if it has an epoch below `lowest_epoch`. Raises CorruptLog, CorruptIndex.
        """
        first = next(walk(segment.log, 0, segment.size), None)
        position = previous.offset_index.last()[1]
        last = deque(walk(previous.log, position, previous.size), maxlen=1)
        if first is None or not last or first.leader_epoch < lowest_epoch:
            return False
        return first.leader_epoch < max(last[0].leader_epoch, 0)

    def _is_of_other_history(self, segment: Segment, previous: Segment) -> bool:
        """Whether a segment behind a gap is of an older leader epoch than what is before the gap.

        The same power failure as in `_is_superseded`, which hit what the log went on with as well.
        """
        try:
            return self._is_earlier(segment, previous, 0)
        except (CorruptLog, CorruptIndex):
            return False

    def _truncate(self, segment: Segment, valid_bytes: int, end: int, behind: list[Segment]) -> int:
        """Cut off what is not valid in a segment, with all that is behind. Returns the log end.

        In this order: after another crash, recovery finds either the corrupt batch again, or no
        later segment.
        """
        with_records = [each for each in behind if holds_records(each.log)]
        # A write that a crash has interrupted is the last one, and was not flushed.
        is_torn = (
            not with_records
            and end >= self.flushed_to
            and not holds_records(segment.log, valid_bytes)
        )
        stays = is_torn or self._keep_damaged_end(segment, valid_bytes, end)
        self._set_aside(
            with_records[::-1],
            Reason.AFTER_GAP,
            f"the log ends at offset {end}, where segment {segment.base_offset} is damaged",
        )
        self._delete([each for each in behind if each not in with_records])
        if not stays:
            base, first = segment.base_offset, self.segments.first.base_offset
            self._set_aside([segment], Reason.DAMAGED, "there was no space to copy its end")
            self._add_first_segment(base)
            self.epochs.truncate_from_end(base)
            # Or a batch that a producer sends again would pass for a duplicate.
            self.producers.reload(first, base, self.opening.now_ms)
            start = self.opening.log_start_offset
            run_at_once(replay(self.producers, self.segments, start, base, takes_snapshots=True))
            return base
        segment.log.truncate(valid_bytes)
        segment.finish()
        return end

    def _keep_damaged_end(self, segment: Segment, position: int, end: int) -> bool:
        """False without space for a copy: the whole segment is to be set aside then."""
        try:
            detail = f"the batch after offset {end - 1} is damaged; what is before it stays"
            self._keep_end(segment, position, Reason.DAMAGED, detail)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return False
        return True

    def _remove_replaced(self) -> None:
        """Remove segments that compaction merged into another if their removal was lost.

        Deletes those that the checkpoint of the cleaner covers. Of the others one of both copies is
        set aside: the one without offsets of its own.
        """
        segments = list(self.segments)
        merged = segments[0]
        for segment in segments[1:]:
            try:
                end, own_end = merged.next_offset(), segment.next_offset()
                if end > segment.base_offset:
                    what = (
                        f"segment {segment.base_offset} was merged into segment"
                        f" {merged.base_offset} by compaction"
                    )
                    if own_end <= self.opening.compacted_to:
                        logger.warning("%s: Deleting a copy: %s", self.name, what)
                        self._delete([segment])
                        continue
                    if own_end <= end:
                        self._set_aside([segment], Reason.OVERLAP, f"perhaps {what}")
                        continue
                    self._set_hidden_aside(merged, segment)
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
        """Read from `position`, where `offset` begins. Returns (next offset, valid bytes)."""
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
        """Remove index entries at and above `offset`, which the scan writes again."""
        if position == 0:
            segment.reset_indexes()
            segment.txn_index.reset()
            return
        segment.truncate_indexes(offset, position)

    def _set_aside(self, segments: list[Segment], reason: Reason, detail: str) -> None:
        """Durable when this returns. Raises OSError."""
        for segment in segments:
            self.segments.remove(segment)
            set_segment_aside(self.directory, segment, reason, detail, self.fs.remove)
        if segments:
            self.fs.sync_directory(self.path)

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
