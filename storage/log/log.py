"""The log of one partition: the interface of storage to the rest of the broker.

A log is owned by one thread, that of the event loop. Nothing here blocks on anything but the disk,
starts a task or reads a clock; callers pass `now_ms`. Slow work is split: `flusher.begin_flush`
returns an object whose `run` may be called in a worker thread, and so may the functions of
`compaction`.

Durability: an append is in the page cache when it returns (it survives kill -9, not a power
failure). It is on disk when a flush that began after it has finished; everything below
`recovery_point` is on disk.

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset

With tiered storage (KIP-405) records from `log_start_offset` to `local_log_start_offset` are in
remote storage only.

An append has a fast path: one batch of magic 2 from a client that no setting changes, in no
transaction, and from a producer without an id or with the next sequence number. Followers have one
for the same kind of batch. Everything else is validated by `ottla.storage.records.validation`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from struct import Struct

from ottla.protocol.records.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CONTROL_MASK,
    HEADER,
    LEADER_EPOCH_POSITION,
    LOG_OVERHEAD,
    MAX_SEQUENCE,
    TRANSACTIONAL_MASK,
    patch_max_timestamp,
)
from ottla.protocol.records.batch import CREATE_TIME as CREATE_TIME_ID
from ottla.protocol.records.compression import LZ4
from ottla.protocol.records.crc32c import crc32c
from ottla.protocol.records.errors import CorruptRecordError, RecordsError
from ottla.protocol.records.frames import is_plain_frame
from ottla.storage.config import CREATE_TIME, NO_LIMIT, LogConfig
from ottla.storage.errors import (
    BatchTooLargeForSegment,
    CorruptIndex,
    InvalidTransactionState,
    LogClosed,
    OffsetInRemoteStorage,
    OffsetOutOfRange,
    StorageError,
    UnexpectedAppendOffset,
)
from ottla.storage.files.fs import UNUSABLE_FILE
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.batch_scan import CorruptLog, Place, walk, walk_batches
from ottla.storage.log.batch_times import BatchTimes, Found, find_newest, find_timestamp
from ottla.storage.log.flush import Flush, LogFlusher
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.local_log import LocalLog
from ottla.storage.log.log_info import AppendInfo, ReadInfo, RemoteLogState
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.log.producer_replay import rebuilt_transaction_index
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.log.truncation import LogRetention, LogTruncator
from ottla.storage.producer.producer_entry import (
    AppendedBatch,
    AppendOrigin,
    CompletedTransaction,
    ProducerAppend,
    ProducerEntry,
)
from ottla.storage.producer.producer_state import ProducerState
from ottla.storage.producer.verification import Verification, Verifications
from ottla.storage.records.batch_content import check_content
from ottla.storage.records.validation import (
    Accepted,
    AcceptedBatch,
    ValidatedRecords,
    assign,
    prepare_for_follower,
    runs,
    validate_records,
)
from ottla.storage.records.validation_budget import ValidationBudget

logger = logging.getLogger("ottla.storage")

_unpack = HEADER.unpack_from
_pack_offset = Struct(">q").pack_into
_pack_epoch = Struct(">i").pack_into
_CLIENT = AppendOrigin.CLIENT
_OF_COORDINATORS = (AppendOrigin.COORDINATOR, AppendOrigin.RAISED_MARKER)
_OF_TRANSACTIONS = TRANSACTIONAL_MASK | CONTROL_MASK
# Skips the Python frame of AppendedBatch(...), which is a tenth of the append of a small batch.
_as_appended = tuple.__new__
_READ_ERRORS = (CorruptLog, CorruptIndex, OSError)


class Log:
    """One partition's log; created by `LogManager`, opened by `recovery.open_log`.

    `flusher`, `truncator` and `retention` work on the same `local` (the segments on disk),
    `offsets`, producer state and leader epochs.
    """

    __slots__ = (
        "_directory",
        "_is_plain",
        "_keeps_batches",
        "_size_limit",
        "config",
        "flusher",
        "leader_epochs",
        "local",
        "log_directory",
        "name",
        "offsets",
        "partition",
        "producer_state",
        "retention",
        "segments",
        "topic",
        "topic_id",
        "truncator",
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
        self.truncator = LogTruncator(local, offsets, producer_state, leader_epochs)
        self.retention = LogRetention(local, offsets, self.truncator)
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
    def is_offline(self) -> bool:
        """Whether its disk has failed, or its directory is gone."""
        directory = self.log_directory
        return directory.is_offline or self.path in directory.gone

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
    def truncations(self) -> int:
        """How often the end of the log was truncated since it was opened."""
        return self.offsets.truncations

    def update_config(self, config: LogConfig) -> None:
        """Use new settings from the next append on."""
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
        # Batches are stored as they come, but for their offsets and newest timestamp.
        self._keeps_batches = (
            config.compression_type == "producer"
            and config.message_timestamp_type == CREATE_TIME
            and config.record_magic == 2
        )
        # Plain: no setting requires that records are decoded.
        self._is_plain = (
            self._keeps_batches
            and config.message_timestamp_before_max_ms == NO_LIMIT
            and config.message_timestamp_after_max_ms == NO_LIMIT
            and not config.compact
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
        """Validate batches, assign offsets and leader epoch in place, and append them at once.

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
        # The fast path. `_append_any` handles everything else, and raises the errors.
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
                        # Not one that wraps around.
                        and 0 < entry.batches[-1][1] + 1 == sequence <= MAX_SEQUENCE - delta
                        and entry.transaction_first_offset < 0
                    )
                    if not in_order:
                        return self._append_any(
                            records, leader_epoch, now_ms, origin, verification, budget
                        )
                if self.local.closed or self.log_directory.append_error is not None:
                    self.local.check_writable()
                if newest != timestamp:
                    patch_max_timestamp(records, 0, CREATE_TIME_ID, newest)
                first = self.offsets.log_end_offset
                _pack_offset(records, 0, first)
                _pack_epoch(records, LEADER_EPOCH_POSITION, leader_epoch)
                return self._write_plain(
                    records, first, delta, newest, leader_epoch, now_ms, entry, epoch, sequence
                )
        if origin is AppendOrigin.COORDINATOR:
            plain = self._append_plain_of_coordinator(records, leader_epoch, now_ms)
            if plain is not None:
                return plain
        return self._append_any(records, leader_epoch, now_ms, origin, verification, budget)

    def append_validated(
        self,
        validated: ValidatedRecords,
        *,
        leader_epoch: int,
        now_ms: int,
        verification: Verification | None = None,
    ) -> AppendInfo:
        """Append a client's batches that `validation.validate_records` has validated before.

        Checks sequence numbers, epochs and transactions now. Raises as `append`.
        """
        self.local.check_writable()
        return self._append_validated(validated, leader_epoch, now_ms, _CLIENT, verification)

    def _append_plain_of_coordinator(
        self, records: bytearray | memoryview, leader_epoch: int, now_ms: int
    ) -> AppendInfo | None:
        """Append a single batch without a producer id, as most are. None: nothing was done."""
        size = len(records)
        if not self._keeps_batches or not BATCH_OVERHEAD <= size <= self._size_limit:
            return None
        (_, length, _, magic, crc, flags, delta, _, timestamp, producer_id, epoch,
         sequence, _) = _unpack(records)  # fmt: skip
        if (
            length + LOG_OVERHEAD != size
            or magic != 2
            or not 0 <= flags <= 4
            or producer_id >= 0
            or delta < 0
            or crc32c(memoryview(records)[ATTRIBUTES_POSITION:]) != crc
            or self.local.closed
            or self.log_directory.append_error is not None
        ):
            return None
        first = self.offsets.log_end_offset
        _pack_offset(records, 0, first)
        _pack_epoch(records, LEADER_EPOCH_POSITION, leader_epoch)
        return self._write_plain(
            records, first, delta, timestamp, leader_epoch, now_ms, None, epoch, sequence
        )

    def _append_any(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        verification: Verification | None,
        budget: ValidationBudget | None,
    ) -> AppendInfo:
        """`append` for anything but a single plain batch."""
        self.local.check_writable(even_if_full=origin in _OF_COORDINATORS)
        validated = validate_records(records, self.config, origin, now_ms, budget)
        return self._append_validated(validated, leader_epoch, now_ms, origin, verification)

    def _append_validated(
        self,
        validated: ValidatedRecords,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        verification: Verification | None,
    ) -> AppendInfo:
        offsets = self.offsets
        accepted = assign(
            validated, leader_epoch=leader_epoch, first_offset=offsets.log_end_offset, now_ms=now_ms
        )
        size, limit = len(accepted.buffer), self.config.segment_bytes
        if size > limit:
            raise BatchTooLargeForSegment(self.name, size, limit)
        changes = self._changes(origin, verification)
        duplicate = changes.check(accepted)
        if duplicate is not None:
            # The flush after the first append may have failed.
            if self.flusher.exceeds_flush_messages:
                self.flusher.require_flush(now_ms)
            stamped = self.config.message_timestamp_type != "CreateTime"
            return AppendInfo(
                duplicate.first_offset,
                duplicate.last_offset,
                duplicate.timestamp,
                duplicate.timestamp if stamped else -1,
                offsets.log_start_offset,
                0,
                duplicate=True,
            )
        return self._write(accepted, changes, now_ms)

    def append_as_follower(
        self, records: bytearray | memoryview | bytes, *, now_ms: int
    ) -> AppendInfo:
        """Append batches from the leader unchanged. Their offsets must continue this log.

        Raises CorruptRecordError, UnexpectedAppendOffset, OffsetsOutOfOrder and what `append`
        raises about the disk.
        """
        plain = self._append_plain_as_follower(records, now_ms)
        if plain is not None:
            return plain
        local, offsets = self.local, self.offsets
        local.check_writable()
        accepted = prepare_for_follower(records)
        end = offsets.log_end_offset
        if not accepted.batches:
            return AppendInfo(-1, -1, -1, -1, offsets.log_start_offset, 0)
        first, last = accepted.batches[0].first_offset, accepted.batches[-1].last_offset
        if first < end:
            raise UnexpectedAppendOffset(self.name, first, last, end)
        # A batch that is larger than segment.bytes gets a segment of its own: the leader has it
        # from before a change. Kafka rejects it, and the replica never catches up.
        for run in runs(accepted, self.config.segment_bytes):
            changes = self._changes(AppendOrigin.REPLICATION, None)
            changes.check(run)
            info = self._write(run, changes, now_ms)
        return AppendInfo(
            first, last, info.max_timestamp, -1, offsets.log_start_offset, len(accepted.buffer)
        )

    def _append_plain_as_follower(
        self, records: bytearray | memoryview | bytes, now_ms: int
    ) -> AppendInfo | None:
        """Append a single batch that is in no transaction, from a known producer or from one
        without an id, as most are. None: nothing was done."""
        view = memoryview(records)
        size = len(view)
        local, offsets = self.local, self.offsets
        if not BATCH_OVERHEAD <= size <= self.config.segment_bytes:
            return None
        (first, length, leader_epoch, magic, crc, flags, delta, _, timestamp, producer_id, epoch,
         sequence, _) = _unpack(view)  # fmt: skip
        if (
            length + LOG_OVERHEAD != size
            or magic != 2
            or flags & _OF_TRANSACTIONS
            or first < offsets.log_end_offset
            or delta < 0
            or crc32c(view[ATTRIBUTES_POSITION:]) != crc
            or local.closed
            or self.log_directory.append_error is not None
        ):
            return None
        entry = None
        if producer_id >= 0:
            entry = self.producer_state.producers.get(producer_id)
            if (
                entry is None
                or entry.epoch != epoch
                or entry.transaction_first_offset >= 0
                or not 0 <= sequence <= MAX_SEQUENCE - delta
            ):
                return None
        return self._write_plain(
            view, first, delta, timestamp, leader_epoch, now_ms, entry, epoch, sequence
        )

    def _write_plain(
        self,
        batch: bytearray | memoryview,
        first: int,
        delta: int,
        timestamp: int,
        leader_epoch: int,
        now_ms: int,
        entry: ProducerEntry | None,
        epoch: int,
        sequence: int,
    ) -> AppendInfo:
        """Append a single batch in no transaction, of which everything was checked, and remember
        its sequence numbers in the producer's entry."""
        last = first + delta
        local, offsets = self.local, self.offsets
        assert offsets.log_end_offset <= first <= last
        if leader_epoch != self.leader_epochs.latest_epoch:
            self.assign_epoch(leader_epoch, first)
        segment = local.active
        # The limits decide nearly every append without a call.
        if (
            not 0 <= timestamp <= local.roll_timestamp
            or segment.log.size + len(batch) > local.roll_bytes
            or last > local.roll_offset
            or segment.index_entries_left <= 0
        ) and local.must_roll(len(batch), timestamp, last, now_ms):
            segment = self._roll_for(first, last, now_ms)
        try:
            segment.append(batch, last, timestamp, first)
        except OSError as error:
            raise local.write_failed(error) from error
        offsets.log_end_offset = end = last + 1
        # Before the flush: a batch that is written but not flushed must be recognised when the
        # producer sends it again.
        if entry is not None:
            appended = (sequence, sequence + delta, first, last, timestamp)
            entry.remember(epoch, _as_appended(AppendedBatch, appended))
        self.producer_state.end_offset = end
        if end - offsets.recovery_point >= self.config.flush_messages:
            self.flusher.require_flush(now_ms)
        return AppendInfo(first, last, timestamp, -1, offsets.log_start_offset, len(batch))

    def _write(self, accepted: Accepted, changes: _ProducerChanges, now_ms: int) -> AppendInfo:
        """Write batches at the log end, with one write, and update the producer state.

        Raises DiskFull, with nothing written, or LogDirectoryOffline.
        """
        batches, offsets = accepted.batches, self.offsets
        first, last = batches[0].first_offset, batches[-1].last_offset
        newest = max(batch.max_timestamp for batch in batches)
        aborted = changes.aborted()
        undo = self._index(aborted, accepted, newest, now_ms) if aborted else None
        try:
            self._write_batches(accepted.buffer, batches, newest, now_ms)
        except BaseException:  # MemoryError, too: the marker has this offset again
            if undo is not None:
                self._undo(undo)
            raise
        # Before the flush: batches that are written but not flushed must be recognised when the
        # producer sends them again.
        if changes.apply():
            offsets.refresh_first_unstable()
        self.producer_state.end_offset = last + 1
        if self.flusher.exceeds_flush_messages:
            self.flusher.require_flush(now_ms)
        start, size = offsets.log_start_offset, len(accepted.buffer)
        return AppendInfo(first, last, newest, accepted.log_append_time, start, size)

    def _write_batches(
        self,
        buffer: bytearray | memoryview,
        batches: list[AcceptedBatch],
        max_timestamp: int,
        now_ms: int,
    ) -> None:
        local = self.local
        first, last = batches[0].first_offset, batches[-1].last_offset
        assert self.offsets.log_end_offset <= first <= last
        for batch in batches:
            if batch.header is None:
                self._forget_epochs(batch.first_offset)
            elif batch.leader_epoch != self.leader_epochs.latest_epoch:
                self.assign_epoch(batch.leader_epoch, batch.first_offset)
        segment = local.active
        if local.must_roll(len(buffer), max_timestamp, last, now_ms):
            segment = self._roll_for(first, last, now_ms)
        try:
            segment.append_many(buffer, batches, last)
        except OSError as error:
            raise local.write_failed(error) from error
        self.offsets.log_end_offset = last + 1

    def _index(
        self, aborted: list[AbortedTransaction], accepted: Accepted, newest: int, now_ms: int
    ) -> Callable[[], None]:
        """Index aborted transactions before their markers are written. Returns what undoes it.

        After the write it would be too late: a marker without its entry shows aborted records to
        consumers. An entry without its marker, which a crash may leave, is above the recovery
        point, and recovery removes it.
        """
        local, batches = self.local, accepted.batches
        size, last = len(accepted.buffer), batches[-1].last_offset
        if local.must_roll(size, newest, last, now_ms):
            self._roll_for(batches[0].first_offset, last, now_ms)
        try:
            return local.active.txn_index.append_all(aborted)
        except OSError as error:
            raise local.write_failed(error) from error

    def _undo(self, undo: Callable[[], None]) -> None:
        try:
            undo()
        except OSError as error:
            self.log_directory.fail(error)

    def _changes(self, origin: AppendOrigin, verification: Verification | None) -> _ProducerChanges:
        return _ProducerChanges(
            self.name, self.producer_state, self.verifications, origin, verification
        )

    # --- segments and leader epochs ------------------------------------------------------------

    def roll(self, now_ms: int) -> Segment:
        """Start a new active segment at the log end. Raises DiskFull, LogDirectoryOffline."""
        return self.local.roll(now_ms, self.offsets.log_end_offset)

    def _roll_for(self, first_offset: int, last_offset: int, now_ms: int) -> Segment:
        """Start a segment for batches with these offsets, of which a follower has a gap before.

        It begins at the log end nevertheless. Recovery would take the gap for lost records, if
        nothing says that compaction left it: the topic may have another `cleanup.policy` by now.
        Of compressed messages of an old format, which begin below `first_offset`, those below its
        base offset would not be found once it is the first. Kafka begins it at the batch.
        """
        base_offset = max(self.offsets.log_end_offset, last_offset - MAX_RELATIVE_OFFSET)
        return self.local.roll(now_ms, min(base_offset, first_offset))

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Batches from `start_offset` on have this leader epoch. Does nothing if it is known, or if
        the log gets messages of an old format, which have none.

        Raises DiskFull, LogDirectoryOffline.
        """
        if leader_epoch >= 0:
            try:
                self.leader_epochs.assign(leader_epoch, start_offset)
            except OSError as error:
                raise self.local.write_failed(error) from error

    def replace_epochs(self, entries: list[tuple[int, int]]) -> None:
        """Each leader epoch of this log with its start offset, ascending. Raises DiskFull,
        LogDirectoryOffline, with what was known before."""
        try:
            self.leader_epochs.replace(entries)
        except OSError as error:
            raise self.local.write_failed(error) from error

    def _forget_epochs(self, offset: int) -> None:
        """Before a message of an old format, which has no epoch: followers truncate to the high
        watermark from then on, as in Kafka, since epochs do not tell what is in the log."""
        try:
            self.leader_epochs.forget_up_to(offset)
        except OSError as error:
            raise self.local.write_failed(error) from error

    # --- removing records --------------------------------------------------------------------

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
        copy.truncator.truncate_fully_and_start_at(offset, self.log_start_offset, state)

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
        offsets = self.offsets
        end = offsets.log_end_offset
        if offset > end or offset < offsets.local_log_start_offset:
            raise self._out_of_range(offset)
        info = ReadInfo(offset)
        if offset >= up_to or offset == end:
            return info
        try:
            limit = min(up_to, end)
            self._read_slice(info, offset, max_bytes, limit, min_one_batch, read_committed)
        except _READ_ERRORS as error:
            raise self._read_failed(error) from error
        return info

    def _read_slice(
        self,
        info: ReadInfo,
        offset: int,
        max_bytes: int,
        up_to: int,
        min_one_batch: bool,
        read_committed: bool,
    ) -> None:
        if up_to == self.offsets.log_end_offset and not read_committed:
            active = self.local.active
            last = active.find_last_batch(offset)
            if last is not None:
                position, base_offset = last
                length = active.log.size - position
                if min_one_batch or length <= max_bytes:
                    info.first_batch_base_offset = base_offset
                    info.slice = active.log.slice(position, length)
                    return
        segment: Segment | None = self.segments.floor(offset)
        place: Place | None = None
        while segment is not None:
            place = segment.find_batch(offset)
            if place is not None:
                break
            # Compaction may have removed everything above `offset` from this segment.
            segment = self.segments.after(segment)
        if segment is None or place is None:
            return
        position = place.position
        end = self._end_position(segment, up_to)
        room = max(max_bytes, place.size) if min_one_batch else max_bytes
        length = end - position
        if length > room:
            # The slice ends with a whole batch: clients discard a partial one.
            length = segment.boundary(place, position + room) - position
        if length <= 0:
            return
        info.slice = segment.log.slice(position, length)
        info.first_batch_base_offset = place.base_offset
        if read_committed:
            bound = self._end_offset(segment, position + length, end, up_to)
            info.aborted_transactions = self._aborted(segment, offset, bound)

    def _end_position(self, segment: Segment, up_to: int) -> int:
        if up_to >= self.offsets.log_end_offset:
            return segment.size
        if segment.base_offset >= up_to:
            return 0
        following = self.segments.after(segment)
        if following is not None and up_to >= following.base_offset:
            return segment.size
        return segment.position_of(up_to)

    def _end_offset(self, segment: Segment, position: int, end: int, up_to: int) -> int:
        """The offset at which a slice that ends at `position` stops."""
        if position >= end:
            following = self.segments.after(segment)
            return up_to if following is None else min(up_to, following.base_offset)
        place = next(walk(segment.log, position, segment.size), None)
        return up_to if place is None else place.base_offset

    def is_older_segment(self, offset: int, end: int) -> bool:
        """Whether the segment of `offset` is before that of `end`, an offset above it."""
        return self.segments.floor(offset) is not self.segments.floor(end)

    def aborted_transactions(self, offset: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [offset, end) and have their marker on this disk.

        For offsets in remote storage. Raises CorruptRecordError, LogDirectoryOffline.
        """
        try:
            return self._collect_aborted(self.segments.first, offset, end)
        except _READ_ERRORS as error:
            raise self._read_failed(error) from error

    def _collect_aborted(
        self, segment: Segment, offset: int, bound: int
    ) -> list[AbortedTransaction]:
        found: list[AbortedTransaction] = []
        for later in self.segments.from_offset(segment.base_offset):
            if later.txn_index.exists and later.txn_index.collect(offset, bound, found):
                break
        return found

    def _aborted(self, segment: Segment, offset: int, bound: int) -> list[tuple[int, int]]:
        found = self._collect_aborted(segment, offset, bound)
        return sorted(((t.producer_id, t.first_offset) for t in found), key=lambda pair: pair[1])

    def batches(self, from_offset: int, to_offset: int | None = None) -> Iterator[memoryview]:
        """The whole batches that contain offsets in [from_offset, to_offset), in order.

        Reads the file in chunks as the iterator advances; appends, retention and compaction may go
        on meanwhile. Raises OffsetOutOfRange if the log is truncated meanwhile, CorruptRecordError,
        LogDirectoryOffline.
        """
        end = self.offsets.log_end_offset if to_offset is None else to_offset
        return self._batches(from_offset, end)

    def _batches(self, from_offset: int, to_offset: int) -> Iterator[memoryview]:
        # Anything may happen at a yield: retention and compaction remove segments, so the next one
        # is looked up when it is reached, and the file of this one is held open.
        offset = max(from_offset, 0)
        truncations = self.offsets.truncations
        segment: Segment | None = self.segments.floor(offset) or self.segments.first
        while segment is not None and segment.base_offset < to_offset:
            try:
                start = segment.find_batch(offset)
                if start is not None:
                    file = segment.log.pinned()
                    for place, content in walk_batches(file, start.position, segment.size):
                        if place.base_offset >= to_offset:
                            return
                        yield content
                        offset = place.last_offset + 1
                        if self.offsets.truncations != truncations:
                            raise self._out_of_range(offset)
            except _READ_ERRORS as error:
                raise self._read_failed(error) from error
            following = self.segments.floor(offset)
            if following is None or following is segment or start is None:
                following = self.segments.after(segment)
            segment = following

    # --- by timestamp and leader epoch -----------------------------------------------------------

    def offset_for_timestamp(self, timestamp: int, times: BatchTimes | None = None) -> Found | None:
        """(timestamp, offset, leader epoch) of the first record with at least this timestamp.

        None when all records are older. Reads and decompresses one batch in nearly every case. With
        `times` that have a budget, raises ReadBudgetExceeded for a batch that exceeds it.
        """
        start = self.offsets.log_start_offset
        try:
            return find_timestamp(self.segments, start, timestamp, times or BatchTimes())
        except _READ_ERRORS as error:
            raise self._read_failed(error) from error

    def max_timestamp_offset(self, times: BatchTimes | None = None) -> Found | None:
        """(timestamp, offset, leader epoch) of the first record with the newest timestamp.

        `times` as for `offset_for_timestamp`.
        """
        start = self.offsets.log_start_offset
        try:
            return find_newest(self.segments, start, times or BatchTimes())
        except _READ_ERRORS as error:
            raise self._read_failed(error) from error

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) when the epoch is unknown."""
        return self.leader_epochs.end_offset_for(epoch, self.offsets.log_end_offset)

    # --- failures --------------------------------------------------------------------------------

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        start, end = self.offsets.log_start_offset, self.offsets.log_end_offset
        is_remote = start <= offset < self.offsets.local_log_start_offset
        kind = OffsetInRemoteStorage if is_remote else OffsetOutOfRange
        return kind(self.name, offset, start, end)

    def _read_failed(
        self, error: CorruptLog | CorruptIndex | OSError
    ) -> StorageError | RecordsError:
        """The exception that reads promise for an error of the disk or of the files."""
        directory = self._directory
        if not isinstance(error, OSError):
            return CorruptRecordError(f"{self.name}: {error}")
        if isinstance(error, FileNotFoundError) and not directory.fs.exists(directory.path):
            if self.local.closed:
                return LogClosed(f"{directory.name} was deleted")
            return directory.log_directory.read_failed(error)
        if error.errno in UNUSABLE_FILE:
            # Of one file, which the error names: the others can be read.
            logger.error("%s: A file cannot be read: %s", directory.name, error)
            return CorruptRecordError(f"{directory.name}: {error}")
        return directory.log_directory.read_failed(error)

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, limited to log start and log end. Returns the new one."""
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

    def close(self) -> None:
        """Write a producer snapshot, sync everything and close all descriptors."""
        flush = self.begin_close()
        if flush is not None:
            flush.run()
        self.flusher.finish_close(flush)

    def begin_close(self) -> Flush | None:
        """`close` up to the syncing: `run` the result, if any, then call `flusher.finish_close`."""
        self.truncator.write_epochs()
        return self.flusher.begin_close()

    def move_to(self, path: str) -> None:
        """The directory of the partition has been renamed to `path`."""
        self.local.move_to(path)
        self.leader_epochs.path = self._directory.leader_epoch_path


class _ProducerChanges:
    """Changes of the producer state by an append: checked before the write, applied after it."""

    __slots__ = (
        "_appends",
        "_completed",
        "_name",
        "_origin",
        "_producers",
        "_transactional",
        "_verification",
        "_verifications",
    )

    def __init__(
        self,
        name: str,
        producers: ProducerState,
        verifications: Verifications,
        origin: AppendOrigin,
        verification: Verification | None,
    ) -> None:
        self._name = name
        self._producers = producers
        self._verifications = verifications
        self._origin = origin
        self._verification = verification
        self._appends: dict[int, ProducerAppend] = {}
        self._completed: list[CompletedTransaction] = []
        # Producer ids, with the epoch below which a marker ends pending verifications; None: all.
        self._transactional: dict[int, int | None] = {}

    def check(self, accepted: Accepted) -> AppendedBatch | None:
        """Raise ProducerError. Returns the earlier append if this one is a duplicate of it."""
        state = self._producers
        view = memoryview(accepted.buffer)
        for batch in accepted.batches:
            header = batch.header
            if header is None or not header.has_producer_id:
                continue
            producer_id = header.producer_id
            if self._origin is AppendOrigin.CLIENT:
                entry = state.producers.get(producer_id)
                duplicate = entry.find_duplicate(header) if entry is not None else None
                if duplicate is not None:
                    return duplicate
            if header.is_transactional:
                is_raised = self._origin is AppendOrigin.RAISED_MARKER
                self._transactional[producer_id] = header.producer_epoch if is_raised else None
                if self._origin is not AppendOrigin.REPLICATION and not header.is_control:
                    self._check_verified(producer_id, header.producer_epoch)
            append = self._appends.get(producer_id)
            if append is None:
                lowest = self._verifications.lowest_sequence(producer_id)
                append = state.begin_append(producer_id, self._origin, lowest)
                self._appends[producer_id] = append
            content = view[batch.position : batch.position + batch.size]
            completed = state.check(append, header, content, batch.first_offset)
            if completed is not None:
                self._completed.append(completed)
        return None

    def _check_verified(self, producer_id: int, epoch: int) -> None:
        if self._producers.has_open_transaction(producer_id, epoch):
            return
        if not self._verifications.allows(producer_id, self._verification):
            raise InvalidTransactionState(
                f"{self._name}: producer {producer_id} wrote outside of a verified transaction",
                producer_id,
            )

    def aborted(self) -> list[AbortedTransaction]:
        """The transactions that this append aborts, for the index."""
        if not any(completed.aborted for completed in self._completed):
            return []
        stable = self._producers.last_stable_offsets_after(self._appends.values(), self._completed)
        return [
            AbortedTransaction(each.producer_id, each.first_offset, each.last_offset, offset)
            for each, offset in zip(self._completed, stable, strict=True)
            if each.aborted
        ]

    def apply(self) -> bool:
        """The batches have been written. True when transactions may have changed."""
        if not self._appends:
            return False
        state = self._producers
        state.update(self._appends.values())
        for producer_id, below_epoch in self._transactional.items():
            self._verifications.end(producer_id, below_epoch)
        for completed in self._completed:
            state.complete(completed)
        return True
