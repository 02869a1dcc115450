"""Reading a segment that may not have been flushed, and rebuilding what is derived from it.

Recovery reads every batch above the recovery point, so one pass does everything: checksums,
offsets, indexes, leader epochs and producer state.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.protocol.records.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CONTROL_MASK,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    TRANSACTIONAL_MASK,
    increment_sequence,
)
from ottla.protocol.records.crc32c import crc32c
from ottla.storage.log.batch_scan import (
    CHUNK_BYTES,
    CorruptLog,
    Place,
    check_checksum,
    walk_batches,
)
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.producer_replay import replay_batch
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.producer.producer_entry import AppendedBatch
from ottla.storage.producer.producer_state import ProducerState

_unpack = HEADER.unpack_from
_LENGTH_MIN = BATCH_OVERHEAD - LOG_OVERHEAD
_SPECIAL = TRANSACTIONAL_MASK | CONTROL_MASK


class SegmentScan:
    """One pass over a segment from `position` on. `position` and `next_offset` are its progress.

    Raises CorruptLog (or a RecordsError for an invalid marker) at the first batch that is
    incomplete or corrupt; all batches before it have been applied.
    """

    def __init__(
        self,
        segment: Segment,
        producers: ProducerState,
        epochs: LeaderEpochs,
        position: int,
        next_offset: int,
        report: Callable[[int], None] | None = None,
    ) -> None:
        """`report` is called with the bytes of each chunk that has been read."""
        self._segment = segment
        self._producers = producers
        self._epochs = epochs
        self._latest_epoch = epochs.latest_epoch
        self.position = position
        self.next_offset = next_offset
        self._report = report

    def run(self) -> None:
        """Read up to the end of the file. Raises CorruptLog, RecordsError, OSError."""
        log = self._segment.log
        while self.position < log.size:
            position = self.position
            chunk = log.read(position, CHUNK_BYTES)
            try:
                if not self._scan_chunk(chunk):
                    self._scan_others()
            finally:
                if self._report is not None:
                    self._report(self.position - position)

    def _scan_chunk(self, chunk: bytes) -> bool:
        """Apply the batches of magic 2 that are complete in the chunk. False if none are."""
        view = memoryview(chunk)
        available = len(chunk)
        segment, producers = self._segment, self._producers
        index_batch = segment.index_batch
        offset, position = self.next_offset, self.position
        at = 0
        while available - at >= BATCH_OVERHEAD:
            (base, length, epoch, magic, crc, flags, delta, _, newest, producer_id, producer_epoch,
             sequence, _) = _unpack(chunk, at)  # fmt: skip
            size = length + LOG_OVERHEAD
            stop = at + size
            if magic != 2 or length < _LENGTH_MIN or stop > available or delta < 0:
                break
            if crc32c(view[at + ATTRIBUTES_POSITION : stop]) != crc:
                break
            last = base + delta
            if last - segment.base_offset > MAX_RELATIVE_OFFSET or (
                base != offset and self._is_misplaced(position + size, base, last)
            ):
                break
            if producer_id >= 0 and last >= producers.end_offset:
                entry = producers.producers.get(producer_id)
                if (
                    entry is not None
                    and entry.epoch == producer_epoch
                    and entry.transaction_first_offset < 0
                    and sequence >= 0
                    and not flags & _SPECIAL
                ):
                    last_sequence = increment_sequence(sequence, delta)
                    batch = AppendedBatch(sequence, last_sequence, base, last, newest)
                    entry.remember(producer_epoch, batch)
                else:
                    self._replay(view[at:stop])
            if epoch > self._latest_epoch:
                self._assign_epoch(epoch, base)
            index_batch(position, size, last, newest)
            at = stop
            self.position = position = position + size
            self.next_offset = offset = last + 1
        return at > 0

    def _scan_others(self) -> None:
        """Apply the batch at which `_scan_chunk` stopped: large, of an old magic, or corrupt.

        And the messages of an old magic behind it, about a chunk: there may be millions, and each
        call reads a chunk.
        """
        log, start = self._segment.log, self.position
        for place, batch in walk_batches(log, start, log.size):
            self._scan_one(place, batch)
            if place.magic == 2 or self.position - start >= CHUNK_BYTES:
                return

    def _scan_one(self, place: Place, batch: memoryview) -> None:
        segment = self._segment
        path = segment.log.path
        check_checksum(path, place, batch)
        if self._is_misplaced(place.position + place.size, place.base_offset, place.last_offset):
            raise CorruptLog(
                path,
                self.position,
                f"unexpected offset {place.base_offset} after {self.next_offset - 1}",
            )
        if place.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            raise CorruptLog(
                path, self.position, f"offset {place.last_offset} is too far from the base offset"
            )
        self._apply(place, batch)

    def _is_misplaced(self, end: int, base_offset: int, last_offset: int) -> bool:
        """Whether the base offset of a batch, which no checksum covers, is invalid.

        It must not decrease. After a gap (which compaction leaves) the next batch, at `end`, must
        have a higher offset.
        """
        if base_offset <= self.next_offset:
            return base_offset < self.next_offset
        log = self._segment.log
        header = log.read(end, BATCH_OVERHEAD)
        if len(header) < BATCH_OVERHEAD or header[MAGIC_POSITION] != 2:
            return False
        return bool(_unpack(header)[0] <= last_offset)

    def _apply(self, place: Place, batch: memoryview) -> None:
        if place.magic == 2 and place.last_offset >= self._producers.end_offset:
            self._replay(batch)
        if place.magic < 2:
            self._epochs.forget_up_to(place.base_offset)
            self._latest_epoch = self._epochs.latest_epoch
        elif place.leader_epoch > self._latest_epoch:
            self._assign_epoch(place.leader_epoch, place.base_offset)
        self._segment.index_batch(self.position, place.size, place.last_offset, place.max_timestamp)
        self.position += place.size
        self.next_offset = place.last_offset + 1

    def _assign_epoch(self, epoch: int, base_offset: int) -> None:
        self._epochs.assign(epoch, base_offset)
        self._latest_epoch = self._epochs.latest_epoch

    def _replay(self, batch: memoryview) -> None:
        aborted = replay_batch(self._producers, batch)
        if aborted is not None:
            self._segment.txn_index.append(aborted)
