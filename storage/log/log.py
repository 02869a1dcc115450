"""The log of one partition: what the rest of the broker does with it.

A log has one owner, the thread of the event loop. Nothing here waits, starts anything or looks at
a clock; callers pass `now_ms`. What is slow is split: `begin_flush` gives an object whose `run` may
be called in a worker thread, and so do the functions of `compaction`.

What is durable when: an append is in the page cache when it returns (it survives kill -9, not a
power failure) and on disk when a flush that began after it has finished; `recovery_point` is the
offset below which everything is on disk.

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from ottla.protocol.records.batch import (
    BATCH_OVERHEAD,
    HEADER,
    LEADER_EPOCH_POSITION,
    MAX_SEQUENCE,
)
from ottla.protocol.records.compression import LZ4
from ottla.protocol.records.crc32c import crc32c
from ottla.protocol.records.lz4_header import is_plain_frame
from ottla.storage.log import log_append, log_reads, retention, truncation
from ottla.storage.log.batch_times import BatchTimes
from ottla.storage.log.log_info import AppendInfo, ReadInfo
from ottla.storage.log.log_state import LogState
from ottla.storage.producer.producer_entry import AppendedBatch, AppendOrigin
from ottla.storage.producer.verification import Verification
from ottla.storage.records.validation import Examined
from ottla.storage.records.validation_budget import ValidationBudget

_unpack = HEADER.unpack_from
_pack_offset = Struct(">q").pack_into
_pack_epoch = Struct(">i").pack_into
# Skips the Python frame of AppendedBatch(...), which is a tenth of the append of a small batch.
_as_appended = tuple.__new__
_CLIENT = AppendOrigin.CLIENT


class Log(LogState):
    """One partition's log; made by `LogManager`, opened by `recovery.open_log`."""

    __slots__ = ()

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
        """Checks batches, assigns offsets and leader epoch in place, and appends them in one write.

        `records` is writable and belongs to the log until this returns. A batch that the producer
        sent before is not written again: `AppendInfo.duplicate`. Raises RecordsError for bad bytes,
        ProducerError for a bad sequence number or epoch, BatchTooLargeForSegment, DiskFull (nothing
        was written), LogDirectoryOffline; TooMuchAtOnce when looking at the records takes more than
        `allowance`: then they go through `validation.examine` and `append_examined`.
        """
        size = len(records)
        # The common case, in one go; whatever is unusual is found out, and said, by append_checked.
        if self._plain and origin is _CLIENT and BATCH_OVERHEAD <= size <= self._size_limit:
            (base, length, _, magic, crc, flags, delta, _, timestamp, producer_id, epoch, sequence,
             count) = _unpack(records)  # fmt: skip
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
                entry = None
                if producer_id >= 0:
                    entry = self.producer_state.producers.get(producer_id)
                    in_order = (
                        entry is not None
                        and entry.epoch == epoch
                        and entry.batches
                        # Not where numbers wrap around: that is for the other way.
                        and 0 < entry.batches[-1][1] + 1 == sequence <= MAX_SEQUENCE - delta
                        and entry.transaction_first_offset < 0
                    )
                    if not in_order:
                        return log_append.append_checked(
                            self, records, leader_epoch, now_ms, origin, verification, budget
                        )
                if self._closed or self.log_directory.refusal is not None:
                    self.check_writable()
                first = self.log_end_offset
                last = first + delta
                _pack_offset(records, 0, first)
                _pack_epoch(records, LEADER_EPOCH_POSITION, leader_epoch)
                self.write(records, first, last, timestamp, leader_epoch, now_ms)
                if entry is not None:
                    batch = (sequence, sequence + delta, first, last, timestamp)
                    entry.remember(epoch, _as_appended(AppendedBatch, batch))
                self.producer_state.end_offset = last + 1
                return AppendInfo(first, last, timestamp, -1, self.log_start_offset, size)
        return log_append.append_checked(
            self, records, leader_epoch, now_ms, origin, verification, budget
        )

    def append_examined(
        self,
        examined: Examined,
        *,
        leader_epoch: int,
        now_ms: int,
        verification: Verification | None = None,
    ) -> AppendInfo:
        """Appends a client's batches whose records were looked at before, elsewhere.

        Sequence numbers, epochs and transactions are checked now; raises as `append`.
        """
        return log_append.append_examined(self, examined, leader_epoch, now_ms, verification)

    def append_as_follower(
        self, records: bytearray | memoryview | bytes, *, now_ms: int
    ) -> AppendInfo:
        """Appends batches from the leader as they are. They have to continue this log.

        Raises CorruptRecordError, UnexpectedAppendOffset, OffsetsOutOfOrder and what `append`
        raises about the disk.
        """
        return log_append.append_from_leader(self, records, now_ms)

    def truncate_to(self, offset: int) -> bool:
        """Drops everything from `offset` on. False when the log ends before that anyway.

        A batch that holds `offset` goes as a whole: the log may end below `offset` then.
        """
        return truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the log is empty and begins at `offset`."""
        truncation.truncate_fully_and_start_at(self, offset)

    def delete_old_segments(self, now_ms: int) -> int:
        """Takes segments out that retention does not want any more; gives their number."""
        return retention.delete_old_segments(self, now_ms)

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
        """A slice of whole batches from the one with `offset` on, below offset `up_to`.

        `up_to` is the log end for a follower, the high watermark or the last stable offset for a
        consumer. `min_one_batch`: the first batch comes whole even when it is larger than
        `max_bytes`. With `read_committed` the aborted transactions of the slice are listed. Reads
        no more than headers. Raises OffsetOutOfRange, CorruptRecordError, LogDirectoryOffline.
        """
        return log_reads.read(self, offset, max_bytes, up_to, min_one_batch, read_committed)

    def offset_for_timestamp(
        self, timestamp: int, times: BatchTimes | None = None
    ) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record that is not older than this.

        None when all are. Reads and decompresses one batch, nearly always. With `times` that have
        an allowance, TooLongToRead is raised for a batch beyond it.
        """
        return log_reads.offset_for_timestamp(self, timestamp, times or BatchTimes())

    def max_timestamp_offset(self, times: BatchTimes | None = None) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the newest timestamp.

        `times` as for `offset_for_timestamp`.
        """
        return log_reads.max_timestamp_offset(self, times or BatchTimes())

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) when there is no answer."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def batches(self, from_offset: int, to_offset: int | None = None) -> Iterator[memoryview]:
        """The whole batches that hold offsets in [from_offset, to_offset), one after the other.

        Reads the file in pieces as the iterator moves on; appends may go on meanwhile.
        """
        end = self.log_end_offset if to_offset is None else to_offset
        return log_reads.batches(self, from_offset, end)
