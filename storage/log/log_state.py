"""The state of one partition's log, and the steps that its operations are made of.

`Log` is the face for the rest of the broker; appending, truncation, retention and compaction work
on what is here. Everything runs on the thread that owns the log.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

from ottla.storage.config import CREATE_TIME, NO_LIMIT, LogConfig
from ottla.storage.errors import DiskFull, LogClosed, OffsetOutOfRange, StorageError
from ottla.storage.files.deletions import Deletions
from ottla.storage.files.layout import DELETED_SUFFIX, LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.log.flush import Flush
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.log.segment_list import SegmentList
from ottla.storage.producer.producer_state import ProducerState
from ottla.storage.producer.verification import Verifications
from ottla.storage.records.validation import AcceptedBatch

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("ottla.storage")


class LogState:
    """What a log knows and has open. See `Log` for what it promises."""

    __slots__ = (
        "_active",
        "_closed",
        "_deletions",
        "_files",
        "_first_unstable",
        "_flush_messages",
        "_newest_epoch",
        "_plain",
        "_roll_bytes",
        "_roll_jitter_ms",
        "_roll_offset",
        "_roll_timestamp",
        "_size_limit",
        "config",
        "fs",
        "generation",
        "high_watermark",
        "last_flushed_ms",
        "leader_epochs",
        "log_directory",
        "log_end_offset",
        "log_start_offset",
        "name",
        "partition",
        "path",
        "producer_state",
        "recovery_point",
        "segments",
        "topic",
        "topic_id",
        "verifications",
    )

    def __init__(
        self,
        *,
        log_directory: LogDirectory,
        path: str,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        config: LogConfig,
        segments: SegmentList,
        leader_epochs: LeaderEpochs,
        producer_state: ProducerState,
        deletions: Deletions,
        files: OpenFiles,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        now_ms: int,
        verifications: Verifications | None = None,
    ) -> None:
        # More than seven arguments: this is where loading hands over what it has found on disk.
        self.fs = log_directory.fs
        self.log_directory = log_directory
        self.path = path
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.topic_id = topic_id
        self.segments = segments
        self._active = segments.active
        self.leader_epochs = leader_epochs
        self._newest_epoch = leader_epochs.latest_epoch
        self.producer_state = producer_state
        self.verifications = verifications if verifications is not None else Verifications(False)
        self._deletions = deletions
        self._files = files
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        # Below it everything is on disk.
        self.recovery_point = recovery_point
        self.high_watermark = log_start_offset
        self.last_flushed_ms = now_ms
        self._first_unstable: int | None = None
        self._closed = False
        # Counts truncations: what was read before one may not be relied upon after it.
        self.generation = 0
        self.refresh_first_unstable()
        self.update_config(config)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.path}, {self.log_start_offset} to {self.log_end_offset})"
        )

    # --- facts -------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """The directory of the partition."""
        from pathlib import Path

        return Path(self.path)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of records in all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def active_segment(self) -> Segment:
        return self._active

    @property
    def last_stable_offset(self) -> int:
        """Everything below is decided (no open transaction) and below the high watermark."""
        unstable = self._first_unstable
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    def update_config(self, config: LogConfig) -> None:
        """New settings, from the next append on."""
        self.config = config
        # Plain: nothing in the settings asks for more than a look at the batch's header.
        self._plain = (
            config.compression_type == "producer"
            and config.message_timestamp_type == CREATE_TIME
            and config.message_timestamp_before_max_ms == NO_LIMIT
            and config.message_timestamp_after_max_ms == NO_LIMIT
            and not config.compact
        )
        self._size_limit = min(config.max_message_bytes, config.segment_bytes)
        self._flush_messages = config.flush_messages
        self._set_roll_limits()

    def _set_roll_limits(self) -> None:
        """For the active segment: up to where nobody has to ask whether it should be rolled."""
        # The same segment gets the same jitter again after a restart; segments of different logs
        # that began together do not roll together, which is what it is for.
        bound = min(self.config.segment_jitter_ms, self.config.segment_ms)
        self._roll_jitter_ms = 0
        if bound > 0:
            from random import Random

            seed = f"{self.name}/{self._active.base_offset}"
            self._roll_jitter_ms = Random(seed).randrange(bound + 1)
        self._roll_bytes = self.config.segment_bytes
        self._roll_offset = self._active.base_offset + MAX_RELATIVE_OFFSET
        self._roll_timestamp = -1  # not known before the first batch is there

    # --- writing -----------------------------------------------------------------------------

    def write(
        self,
        batch: bytearray | memoryview,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        """Writes one checked batch behind all others; for `log_append` only."""
        assert self.log_end_offset <= first_offset <= last_offset
        if leader_epoch != self._newest_epoch:
            self.assign_epoch(leader_epoch, first_offset)
        segment = self._active
        # Nearly always the segment has room and time left, and this says so at little cost.
        if (
            not 0 <= max_timestamp <= self._roll_timestamp
            or segment.log.size + len(batch) > self._roll_bytes
            or last_offset > self._roll_offset
            or segment.index_entries_left <= 0
        ) and self._must_roll(len(batch), max_timestamp, last_offset, now_ms):
            segment = self.roll(now_ms, first_offset)
        try:
            segment.append(batch, last_offset, max_timestamp)
        except OSError as error:
            raise self.write_failed(error) from error
        self.log_end_offset = last_offset + 1
        if last_offset + 1 - self.recovery_point >= self._flush_messages:
            self.flush(now_ms)

    def _must_roll(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        segment = self._active
        config, jitter_ms = self.config, self._roll_jitter_ms
        if segment.should_roll(size, max_timestamp, last_offset, now_ms, config, jitter_ms):
            return True
        if segment.size and segment.rolling_timestamp() >= 0:
            self._roll_timestamp = segment.rolling_timestamp() + config.segment_ms - jitter_ms
        return False

    def write_many(
        self,
        buffer: bytearray | memoryview,
        batches: list[AcceptedBatch],
        max_timestamp: int,
        now_ms: int,
    ) -> None:
        """Writes several checked batches at once; for `log_append` only."""
        first, last = batches[0], batches[-1]
        for batch in batches:
            if batch.leader_epoch != self._newest_epoch:
                self.assign_epoch(batch.leader_epoch, batch.first_offset)
        segment = self._active
        if self._must_roll(len(buffer), max_timestamp, last.last_offset, now_ms):
            segment = self.roll(now_ms, first.first_offset)
        start = segment.size
        try:
            segment.log.append(buffer)
            for batch in batches:
                segment.index_batch(
                    start + batch.position, batch.size, batch.last_offset, batch.max_timestamp
                )
        except OSError as error:
            if segment.log.size != start:
                segment.undo_append(start, first.last_offset)
            raise self.write_failed(error) from error
        self.log_end_offset = last.last_offset + 1
        if self.log_end_offset - self.recovery_point >= self._flush_messages:
            self.flush(now_ms)

    def check_writable(self, *, even_if_full: bool = False) -> None:
        """Raises LogClosed, LogDirectoryOffline or DiskFull when nothing can be written.

        `even_if_full`: the last of a disk is kept for what lets consumers go on and transactions
        end.
        """
        if self._closed:
            raise LogClosed(f"{self.name} is closed")
        if even_if_full:
            self.log_directory.check_online()
        else:
            self.log_directory.check_writable()

    def write_failed(self, error: OSError) -> StorageError:
        """Puts the active segment back to what it was; gives the exception to raise."""
        self._roll_timestamp = -1  # the first batch may be gone
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            try:
                self._active.log.cut_back()
            except OSError as second:
                return self.log_directory.fail(second)
        return self.log_directory.refused(error)

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Batches from `start_offset` on have this leader epoch. Does nothing if known."""
        if leader_epoch >= 0:
            try:
                self.leader_epochs.assign(leader_epoch, start_offset)
            except OSError as error:
                raise self.write_failed(error) from error
            self._newest_epoch = self.leader_epochs.latest_epoch

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Begins a new segment at the log end and gives it; the old one is not flushed yet.

        The producers' state as of the new segment goes into a snapshot. An active segment without
        records at the same offset is kept instead.
        """
        base = self.log_end_offset if base_offset is None else base_offset
        old = self._active
        if old.base_offset == base and old.size == 0:
            # Kafka makes the files anew; what matters is that its indexes are empty and its clock
            # starts now.
            old.created_ms = now_ms
            return old
        try:
            old.finish()
            self.producer_state.end_offset = base
            self.producer_state.take_snapshot()
            segment = Segment(
                self.fs, self.path, base, self.config, self._files, created_ms=now_ms, sizes={}
            )
            segment.create_files(self.config.segment_bytes if self.config.preallocate else 0)
        except OSError as error:
            raise self.write_failed(error) from error
        self.segments.add(segment)
        self._active = segment
        self._set_roll_limits()
        return segment

    # --- offsets that move -------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> int:
        """Sets the high watermark, kept between log start and log end; gives the new one."""
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        if offset != self.high_watermark:
            self.high_watermark = offset
            if self._first_unstable is not None:
                self.producer_state.on_high_watermark(offset)
                self.refresh_first_unstable()
            self.check_bounds()
        return offset

    def check_bounds(self) -> None:
        """What always holds, or we have a defect."""
        stable = self.last_stable_offset
        assert self.log_start_offset <= stable <= self.high_watermark <= self.log_end_offset
        assert self.recovery_point <= self.log_end_offset

    def refresh_first_unstable(self) -> None:
        """Takes notice that transactions began or ended."""
        self._first_unstable = self.producer_state.first_unstable_offset

    def delete_records_before(self, offset: int) -> bool:
        """Moves the log start up to `offset`; whole segments go with the next retention run.

        True when it moved. Raises OffsetOutOfRange above the high watermark.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRange(self.name, offset, self.log_start_offset, self.high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.producer_state.on_log_start(offset)
        self.recovery_point = max(self.recovery_point, offset)
        self.refresh_first_unstable()
        self.check_bounds()
        try:
            self.leader_epochs.truncate_from_start(offset)
        except OSError as error:
            refusal = self.log_directory.refused(error)
            # A full disk is when deleting counts; epochs too many in the file do no harm.
            if not isinstance(refusal, DiskFull):
                raise refusal from error
        return True

    # --- flushing and closing ----------------------------------------------------------------

    def begin_flush(self) -> Flush | None:
        """What is to be synced to make everything appended so far durable; None if all is.

        Call `run` of the result, which may take long and may be done in a worker thread, and then
        `finish_flush` on the thread that owns the log.
        """
        if self.recovery_point >= self.log_end_offset and not self.leader_epochs.unsynced:
            return None
        try:
            return Flush(self)
        except OSError as error:
            raise self.write_failed(error) from error

    def finish_flush(self, flush: Flush, now_ms: int) -> None:
        """Takes note of a flush that has run. Raises LogDirectoryOffline when it failed."""
        if flush.error is not None:
            # After a failed fsync the kernel may have dropped the pages: the disk cannot be
            # trusted with this log until it has been read again.
            raise self.log_directory.fail(flush.error) from flush.error
        # The log may have been truncated while the flush ran.
        self.recovery_point = max(self.recovery_point, min(flush.offset, self.log_end_offset))
        self.last_flushed_ms = now_ms

    def flush(self, now_ms: int | None = None) -> None:
        """Makes everything appended so far durable, here and now."""
        flush = self.begin_flush()
        if flush is not None:
            flush.run()
            self.finish_flush(flush, self.last_flushed_ms if now_ms is None else now_ms)

    def close(self) -> None:
        """Takes a snapshot of the producers, syncs everything and gives up all descriptors."""
        flush = self.begin_close()
        if flush is not None:
            flush.run()
        self.finish_close(flush)

    def begin_close(self) -> Flush | None:
        """`close` up to the syncing: `run` the result, if any, and then call `finish_close`."""
        if self._closed or self.log_directory.is_offline:
            return None
        try:
            for segment in self.segments:
                segment.finish()
            self.producer_state.take_snapshot()
            return self.begin_flush()
        except OSError as error:
            self.release()
            raise self.log_directory.fail(error) from error
        except StorageError:
            self.release()
            raise

    def finish_close(self, flush: Flush | None) -> None:
        """Gives up all descriptors. Raises LogDirectoryOffline when the flush failed."""
        try:
            if flush is not None:
                self.finish_flush(flush, self.last_flushed_ms)
        finally:
            self.release()

    def release(self) -> None:
        """Gives up descriptors and maps without writing anything; slices stay readable."""
        self._closed = True
        for segment in self.segments:
            segment.release()

    # --- for the other modules of storage ----------------------------------------------------

    def replace_active(self, segment: Segment) -> None:
        """`segment`, which is in `segments`, is appended to from now on."""
        self._active = segment
        self._set_roll_limits()

    def retire_segments(
        self, segments: list[Segment], due_ms: int, *, keep_snapshot_of: int = -1
    ) -> None:
        """Takes segments out of the log; their files are renamed to `.deleted` and go later.

        So do the snapshots of the producers at their base offsets, but for one that is to be kept.
        """
        for segment in segments:
            self.segments.remove(segment)
            segment.release()
            segment.change_suffix(DELETED_SUFFIX)
            for path in segment.paths():
                self._deletions.add(path, due_ms)
            if segment.base_offset == keep_snapshot_of:
                continue
            snapshot = self.producer_state.retire_snapshot(segment.base_offset)
            if snapshot is not None:
                self._deletions.add(snapshot, due_ms)

    def new_segment(self, base_offset: int, created_ms: int, suffix: str = "") -> Segment:
        """An empty segment of this log that is not among `segments` yet; no files are made."""
        return Segment(
            self.fs, self.path, base_offset, self.config, self._files,
            created_ms=created_ms, sizes={}, suffix=suffix,
        )  # fmt: skip

    def adopt_segment(self, segment: Segment) -> Segment:
        """A closed segment that was written elsewhere, as one of this log: its files stay."""
        lengths = (
            segment.size,
            segment.offset_index.size_in_bytes,
            segment.time_index.size_in_bytes,
            segment.txn_index.size_in_bytes,
        )
        names = (os.path.basename(path) for path in segment.paths())
        sizes = dict(zip(names, lengths, strict=True))
        return Segment(
            self.fs,
            self.path,
            segment.base_offset,
            self.config,
            self._files,
            created_ms=segment.created_ms,
            sizes=sizes,
            suffix=segment.suffix,
        )

    def note_epochs_changed(self) -> None:
        """`leader_epochs` was changed by somebody else than `append`."""
        self._newest_epoch = self.leader_epochs.latest_epoch

    def move_to(self, path: str) -> None:
        """Takes notice that the directory has been renamed."""
        self._deletions.forget_under(self.path)
        self.path = path
        for segment in self.segments:
            segment.move_to(path)
        self.producer_state.directory = path
        self.leader_epochs.path = f"{path}/{LEADER_EPOCH_CHECKPOINT}"

    @property
    def metadata_path(self) -> str:
        return f"{self.path}/{PARTITION_METADATA}"
