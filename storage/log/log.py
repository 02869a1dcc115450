"""The log of one partition: the interface of storage to the rest of the broker.

A log is owned by one thread, that of the event loop. Nothing here blocks on anything but the disk,
starts a task or reads a clock; callers pass `now_ms`. Slow work is split: `begin_flush` returns an
object whose `run` may be called in a worker thread, and so may the functions of `compaction`.

Durability: an append is in the page cache when it returns (it survives kill -9, not a power
failure). It is on disk when a flush that began after it has finished; everything below
`recovery_point` is on disk.

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset

With tiered storage (KIP-405) records from `log_start_offset` to `local_log_start_offset` are in
remote storage only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from struct import Struct

from ottla.protocol.records.batch import (
    BATCH_OVERHEAD,
    HEADER,
    LEADER_EPOCH_POSITION,
    MAX_SEQUENCE,
    patch_max_timestamp,
)
from ottla.protocol.records.batch import CREATE_TIME as CREATE_TIME_ID
from ottla.protocol.records.compression import LZ4
from ottla.protocol.records.crc32c import crc32c
from ottla.protocol.records.frames import is_plain_frame
from ottla.storage.config import CREATE_TIME, NO_LIMIT, LogConfig
from ottla.storage.errors import CorruptIndex
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.batch_times import BatchTimes
from ottla.storage.log.flush import Flush, LogFlusher
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.local_log import LocalLog
from ottla.storage.log.log_appender import LogAppender
from ottla.storage.log.log_info import AppendInfo, ReadInfo, RemoteLogState
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.log.log_reader import LogReader
from ottla.storage.log.log_writer import LogWriter
from ottla.storage.log.producer_replay import rebuilt_transaction_index
from ottla.storage.log.segment import Segment
from ottla.storage.log.truncation import LogRetention, LogTruncator
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.producer.producer_state import ProducerState
from ottla.storage.producer.verification import Verification, Verifications
from ottla.storage.records.batch_content import check_content
from ottla.storage.records.validation import ValidatedRecords
from ottla.storage.records.validation_budget import ValidationBudget

_unpack = HEADER.unpack_from
_pack_offset = Struct(">q").pack_into
_pack_epoch = Struct(">i").pack_into
_CLIENT = AppendOrigin.CLIENT


class Log:
    """One partition's log; created by `LogManager`, opened by `recovery.open_log`.

    Appending, reading, flushing, truncation and retention each have a class of their own; they
    share `local` (the segments on disk), `offsets`, the producer state and the leader epochs.
    """

    __slots__ = (
        "_appender",
        "_directory",
        "_is_plain",
        "_reader",
        "_retention",
        "_size_limit",
        "_truncator",
        "_writer",
        "config",
        "flusher",
        "leader_epochs",
        "local",
        "log_directory",
        "name",
        "offsets",
        "partition",
        "producer_state",
        "segments",
        "topic",
        "topic_id",
        "verifications",
    )

    def __init__(
        self,
        local: LocalLog,
        offsets: LogOffsets,
        producer_state: ProducerState,
        leader_epochs: LeaderEpochs,
        verifications: Verifications,
        *,
        topic_id: bytes | None,
        now_ms: int,
    ) -> None:
        directory = local.directory
        self._directory = directory
        self.log_directory: LogDirectory = directory.log_directory
        self.name = directory.name
        self.topic = directory.topic
        self.partition = directory.partition
        self.topic_id = topic_id
        self.local = local
        self.segments = local.segments
        self.offsets = offsets
        self.producer_state = producer_state
        self.leader_epochs = leader_epochs
        self.verifications = verifications
        self.flusher = LogFlusher(local, offsets, producer_state, leader_epochs, now_ms)
        self._writer = LogWriter(local, offsets, leader_epochs)
        self._appender = LogAppender(
            local, offsets, self._writer, self.flusher, producer_state, verifications
        )
        self._reader = LogReader(directory, local.segments, offsets)
        self._truncator = LogTruncator(local, offsets, producer_state, leader_epochs)
        self._retention = LogRetention(local, offsets, self._truncator)
        self._set_config(local.config)
        directory.rebuild_aborted = self._rebuild_aborted

    def __repr__(self) -> str:
        return f"Log({self.path}, {self.log_start_offset} to {self.log_end_offset})"

    # --- properties --------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The directory of the partition."""
        return self._directory.path

    @property
    def metadata_path(self) -> str:
        """The path of `partition.metadata`."""
        return self._directory.metadata_path

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.offsets.log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        """The first offset on this disk; the log start offset unless there is tiered storage."""
        return self.offsets.local_log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.offsets.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Below it everything is replicated to the in-sync replicas."""
        return self.offsets.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided. Never above the high watermark."""
        return self.offsets.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """Below it everything is on disk."""
        return self.offsets.recovery_point

    @property
    def last_flushed_ms(self) -> int:
        """When the log was last flushed, or opened."""
        return self.flusher.last_flushed_ms

    @property
    def truncations(self) -> int:
        """How often the end of the log was truncated since it was opened."""
        return self.offsets.truncations

    @property
    def size_in_bytes(self) -> int:
        """Bytes of records in all segments."""
        return self.local.size_in_bytes

    @property
    def is_closed(self) -> bool:
        return self.local.closed

    @property
    def active_segment(self) -> Segment:
        """The segment that is appended to."""
        return self.local.active

    def update_config(self, config: LogConfig) -> None:
        """Uses new settings from the next append on."""
        self.local.update_config(config)
        self._set_config(config)
        has_epochs = config.record_magic == 2
        if has_epochs != self.leader_epochs.is_enabled:
            try:
                self.leader_epochs.enable(has_epochs)
            except OSError as error:
                self.log_directory.write_failed(error)

    def _set_config(self, config: LogConfig) -> None:
        self.config = config
        # Plain: no setting requires that records are decoded.
        self._is_plain = (
            config.compression_type == "producer"
            and config.message_timestamp_type == CREATE_TIME
            and config.message_timestamp_before_max_ms == NO_LIMIT
            and config.message_timestamp_after_max_ms == NO_LIMIT
            and not config.compact
            and config.record_magic == 2
        )
        self._size_limit = min(config.max_message_bytes, config.segment_bytes)

    # --- appending ---------------------------------------------------------------------------

    def append(
        self,
        records: bytearray | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: Verification | None = None,
        budget: ValidationBudget | None = None,
    ) -> AppendInfo:
        """Validates batches, assigns offsets and leader epoch in place, and appends them at once.

        `records` is writable and belongs to the log until this returns. A batch that the producer
        sent before is not written again: `AppendInfo.duplicate`. Raises RecordsError for invalid
        batches, ProducerError for an invalid sequence number or epoch, BatchTooLargeForSegment,
        DiskFull, LogDirectoryOffline, LogClosed. Raises ValidationBudgetExceeded when the
        validation exceeds `budget`: the caller then uses `validation.validate_records` in a worker
        thread and `append_validated`.

        With `flush.messages` records unflushed, it returns only after a flush that succeeded; but
        with `LogManager.flush_later` at once, and the caller acknowledges nothing above
        `LogOffsets.acknowledgeable_offset`.

        After DiskFull nothing was written, unless that flush failed: the batches are in the log
        then and a retry of an idempotent producer is a duplicate.
        """
        size = len(records)
        # The common case, inline. LogAppender handles everything else, and raises the errors.
        if self._is_plain and origin is _CLIENT and BATCH_OVERHEAD <= size <= self._size_limit:
            (base, length, _, magic, crc, flags, delta, oldest, timestamp, producer_id, epoch,
             sequence, count) = _unpack(records)  # fmt: skip
            if (
                length + 12 == size
                and magic == 2
                and base == 0
                and 0 <= flags <= 4
                and (flags != LZ4 or is_plain_frame(records, BATCH_OVERHEAD))
                and count == delta + 1
                and delta >= 0
                and crc32c(memoryview(records)[21:]) == crc
            ):
                newest = check_content(records, 0, size, flags, count, oldest, budget)
                entry = None
                if producer_id >= 0:
                    entry = self.producer_state.producers.get(producer_id)
                    in_order = (
                        entry is not None
                        and entry.epoch == epoch
                        and entry.batches
                        # LogAppender handles sequence numbers that wrap around.
                        and 0 < entry.batches[-1][1] + 1 == sequence <= MAX_SEQUENCE - delta
                        and entry.transaction_first_offset < 0
                    )
                    if not in_order:
                        return self._appender.append(
                            records, leader_epoch, now_ms, origin, verification, budget
                        )
                if self.local.closed or self.log_directory.append_error is not None:
                    self.local.check_writable()
                if newest != timestamp:
                    patch_max_timestamp(records, 0, CREATE_TIME_ID, newest)
                first = self.offsets.log_end_offset
                _pack_offset(records, 0, first)
                _pack_epoch(records, LEADER_EPOCH_POSITION, leader_epoch)
                return self._appender.write_plain(
                    records, first, delta, newest, leader_epoch, now_ms, entry, epoch, sequence
                )
        return self._appender.append(records, leader_epoch, now_ms, origin, verification, budget)

    def append_validated(
        self,
        validated: ValidatedRecords,
        *,
        leader_epoch: int,
        now_ms: int,
        verification: Verification | None = None,
    ) -> AppendInfo:
        """Appends a client's batches that `validation.validate_records` has validated before.

        Checks sequence numbers, epochs and transactions now. Raises as `append`.
        """
        return self._appender.append_validated(validated, leader_epoch, now_ms, verification)

    def append_as_follower(
        self, records: bytearray | memoryview | bytes, *, now_ms: int
    ) -> AppendInfo:
        """Appends batches from the leader unchanged. Their offsets must continue this log.

        Also a batch that is larger than `segment.bytes`: the leader has it from before a change.
        Raises CorruptRecordError, UnexpectedAppendOffset, OffsetsOutOfOrder and what `append`
        raises about the disk.
        """
        return self._appender.append_as_follower(records, now_ms)

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Batches from `start_offset` on have this leader epoch. Does nothing if it is known, or if
        the log gets messages of an old format, which have none.

        Raises DiskFull, LogDirectoryOffline.
        """
        self._writer.assign_epoch(leader_epoch, start_offset)

    def replace_epochs(self, entries: list[tuple[int, int]]) -> None:
        """Each leader epoch of this log with its start offset, ascending. Raises DiskFull,
        LogDirectoryOffline, with what was known before."""
        self._writer.replace_epochs(entries)

    def roll(self, now_ms: int) -> Segment:
        """Starts a new active segment at the log end. Raises DiskFull, LogDirectoryOffline."""
        return self.local.roll(now_ms, self.offsets.log_end_offset)

    # --- removing records --------------------------------------------------------------------

    def truncation_parts(self, offset: int) -> list[int]:
        """The offsets to truncate to, descending to `offset`, each in a turn of the event loop."""
        return self._truncator.parts(offset)

    def prepare_truncation(
        self, offset: int, *, keep_committed: bool = False
    ) -> Generator[Callable[[], None] | None, None, None]:
        """Does most of the work of `truncate_to` before it, in steps of a few milliseconds.

        Replays the producer state up to `offset`: seconds for a large segment. A step may give a
        function, which raises StorageError: it lowers the recovery point on disk, or copies what
        `keep_committed` keeps. The caller runs it in a worker, or `truncate_to` does that. The log
        may be used between the steps, and `truncate_to` be called for another offset. Raises
        LogDirectoryOffline, ResourceExhausted.
        """
        return self._truncator.prepare(offset, keep_committed)

    def truncate_to(self, offset: int, *, keep_committed: bool = False) -> bool:
        """Removes everything from `offset` on. False when the log ends at or below it anyway.

        A batch that contains `offset` is removed as a whole: the log may end below `offset` then.
        With `keep_committed` records below the high watermark are set aside, or nothing is removed.
        Raises LogDirectoryOffline, DiskFull, and CorruptLog, with nothing removed, if a damaged
        batch hides where `offset` is.
        """
        return self._truncator.truncate_to(offset, keep_committed)

    def truncate_fully_and_start_at(
        self,
        offset: int,
        log_start_offset: int | None = None,
        state: RemoteLogState | None = None,
        *,
        keep_committed: bool = False,
    ) -> None:
        """Removes everything on this disk. The log continues at `offset`.

        It starts there too, or at `log_start_offset`: records between both are in remote storage,
        and `state` has their leader epochs and producers. After a crash in between, the log is as
        it was, or with this state. `keep_committed` as for `truncate_to`. Raises CorruptFile,
        DiskFull, LogDirectoryOffline.
        """
        self._truncator.truncate_fully_and_start_at(
            offset, log_start_offset, state, keep_committed=keep_committed
        )

    def begin_copy(self, copy: Log, now_ms: int) -> None:
        """`copy` begins, empty, where this log begins on its disk, and knows its producers so far.

        Their last batches may be in remote storage only, or deleted: nothing that is copied has
        them. Raises StorageError, with `copy` as it was.
        """
        offset = self.local_log_start_offset
        try:
            snapshot = self.producer_state.snapshot_content(offset)
        except OSError as error:
            raise self.log_directory.read_failed(error) from error
        state = None if snapshot is None else RemoteLogState([], snapshot, now_ms)
        copy.truncate_fully_and_start_at(offset, self.log_start_offset, state)

    def delete_records_before(self, offset: int) -> bool:
        """Advances the log start to `offset`; the next retention run deletes whole segments.

        True when it moved. Raises OffsetOutOfRange above the high watermark, LogDirectoryOffline.
        """
        return self._truncator.delete_records_before(offset)

    def delete_old_segments(self, now_ms: int) -> Generator[None, None, int]:
        """Deletes the segments that retention does not keep, some in each step. Returns their
        number. Raises DiskFull, LogDirectoryOffline.
        """
        return self._retention.delete_old_segments(now_ms)

    def is_expired(self, now_ms: int) -> bool:
        """Whether retention by time would delete all records here, or there is one by size."""
        return self._retention.is_expired(now_ms)

    # --- reading -----------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        up_to: int,
        min_one_batch: bool = True,
        read_committed: bool = False,
    ) -> ReadInfo:
        """A slice of whole batches, from the one that contains `offset` on, below offset `up_to`.

        `up_to` is the log end for a follower, the high watermark or the last stable offset for a
        consumer. `min_one_batch` returns the first batch whole even if it is larger than
        `max_bytes`. With `read_committed` the aborted transactions of the slice are listed. Reads
        batch headers only. Raises OffsetOutOfRange (OffsetInRemoteStorage below the local log
        start offset), CorruptRecordError, LogDirectoryOffline.
        """
        return self._reader.read(offset, max_bytes, up_to, min_one_batch, read_committed)

    def is_older_segment(self, offset: int, end: int) -> bool:
        """Whether the segment of `offset` is before that of `end`, an offset above it."""
        return self.segments.floor(offset) is not self.segments.floor(end)

    def aborted_transactions(self, offset: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [offset, end) and have their marker on this disk.

        For offsets in remote storage. Raises CorruptRecordError, LogDirectoryOffline.
        """
        return self._reader.aborted_transactions(offset, end)

    def offset_for_timestamp(
        self, timestamp: int, times: BatchTimes | None = None
    ) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with at least this timestamp.

        None when all records are older. Reads and decompresses one batch in nearly every case. With
        `times` that have a budget, raises ReadBudgetExceeded for a batch that exceeds it.
        """
        return self._reader.offset_for_timestamp(timestamp, times or BatchTimes())

    def max_timestamp_offset(self, times: BatchTimes | None = None) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the newest timestamp.

        `times` as for `offset_for_timestamp`.
        """
        return self._reader.max_timestamp_offset(times or BatchTimes())

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) when the epoch is unknown."""
        return self.leader_epochs.end_offset_for(epoch, self.offsets.log_end_offset)

    def batches(self, from_offset: int, to_offset: int | None = None) -> Iterator[memoryview]:
        """The whole batches that contain offsets in [from_offset, to_offset), in order.

        Reads the file in chunks as the iterator advances; appends, retention and compaction may go
        on meanwhile. Raises OffsetOutOfRange if the log is truncated meanwhile, CorruptRecordError,
        LogDirectoryOffline.
        """
        end = self.offsets.log_end_offset if to_offset is None else to_offset
        return self._reader.batches(from_offset, end)

    def update_high_watermark(self, offset: int) -> int:
        """Sets the high watermark, limited to log start and log end. Returns the new one."""
        return self.offsets.update_high_watermark(offset)

    def _rebuild_aborted(self, base_offset: int, damage: CorruptIndex) -> list[AbortedTransaction]:
        """The transaction index of a segment, damaged since the log was opened."""
        segment = self.segments.floor(base_offset)
        if segment is None or segment.base_offset != base_offset:
            raise damage
        start = self.offsets.log_start_offset
        return rebuilt_transaction_index(
            self.name, segment, self.segments, self.producer_state, start, damage
        )

    # --- flushing and closing ----------------------------------------------------------------

    def begin_flush(self) -> Flush | None:
        """What to sync to make everything appended so far durable; None if all of it is.

        Call `run` of the result, which may take long and may run in a worker thread, and then
        `finish_flush` on the thread that owns the log. Raises DiskFull, LogDirectoryOffline.
        """
        return self.flusher.begin_flush()

    def finish_flush(self, flush: Flush, now_ms: int) -> None:
        """Advances the recovery point. Raises LogDirectoryOffline when `flush.run` failed."""
        self.flusher.finish_flush(flush, now_ms)

    def flush(self, now_ms: int | None = None) -> None:
        """Makes everything appended so far durable, on this thread."""
        self.flusher.flush(now_ms)

    def close(self) -> None:
        """Writes a producer snapshot, syncs everything and closes all descriptors."""
        flush = self.begin_close()
        if flush is not None:
            flush.run()
        self.finish_close(flush)

    def begin_close(self) -> Flush | None:
        """`close` up to the syncing: `run` the result, if any, and then call `finish_close`."""
        self._truncator.write_epochs()
        return self.flusher.begin_close()

    def finish_close(self, flush: Flush | None) -> None:
        """Closes all descriptors. Raises LogDirectoryOffline when the flush failed."""
        self.flusher.finish_close(flush)

    def release(self) -> None:
        """Closes descriptors without writing anything. Slices stay readable."""
        self.local.release()

    def move_to(self, path: str) -> None:
        """The directory of the partition has been renamed to `path`."""
        self.local.move_to(path)
        self.leader_epochs.path = self._directory.leader_epoch_path
