"""Reads the records of a share partition, from the local log or from remote storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.remote.remote_log_reader import ReadParams, TooManyReadsError
from ottla.broker.replication.delayed_fetch import read_bound
from ottla.broker.replication.partition import READ_COMMITTED, READ_UNCOMMITTED
from ottla.broker.share.acquisition import AcquiredRecords, FetchedBatch
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.reader import iterate_entries
from ottla.storage.files.open_files import FileSlice

if TYPE_CHECKING:
    from ottla.broker.remote.remote_log_reader import RemoteLogReader, RemoteReadTask
    from ottla.broker.share.group_settings import OffsetReset
    from ottla.storage.log.log import Log


# What one partition adds to a response, unless its first batch is larger: the bytes are in memory,
# and a member acquires some hundred records at a time.
MAX_PARTITION_BYTES = 1 << 20


class Fetched(NamedTuple):
    """Record batches, the position of each in `records`, and the aborted transactions."""

    records: bytes
    batches: list[FetchedBatch]
    positions: list[int]
    aborted: list[tuple[int, int]]

    def of_acquired(self, acquired: list[AcquiredRecords]) -> bytes:
        """Return the record batches from the first to the last acquired record."""
        first, last = acquired[0].first_offset, acquired[-1].last_offset
        start, end = 0, len(self.records)
        for batch, position in zip(self.batches, self.positions, strict=True):
            if batch.base_offset <= first:
                start = position
            if batch.base_offset > last:
                end = position
                break
        return self.records[start:end]


def isolation(is_read_committed: bool) -> int:
    return READ_COMMITTED if is_read_committed else READ_UNCOMMITTED


def readable_bytes(log: Log, offset: int, max_bytes: int, is_read_committed: bool) -> int:
    """Return how many bytes can be read at `offset`, up to `max_bytes`."""
    bound = read_bound(log, isolation(is_read_committed))
    if bound <= offset:
        return 0
    read = log.read(offset, max_bytes, up_to=bound)
    return 0 if read.slice is None else min(len(read.slice), max_bytes)


def read(
    log: Log, offset: int, max_bytes: int, is_read_committed: bool, most_records: int
) -> Fetched | None:
    """Whole batches from the one with `offset` on; None when there is none, also where the log was
    truncated below `offset` by an unclean election, until it has grown to it again.

    The first batch is complete even if it is larger than `max_bytes`. See `fetched_of`.
    """
    bound = read_bound(log, isolation(is_read_committed))
    if bound <= offset:
        return None
    found = log.read(
        offset,
        min(max_bytes, MAX_PARTITION_BYTES),
        up_to=bound,
        read_committed=is_read_committed,
    )
    if found.slice is None:
        return None
    return fetched_of(found.slice.read(), offset, found.aborted_transactions, most_records)


def fetched_of(
    records: bytes, offset: int, aborted: Iterable[tuple[int, int]] | None, most_records: int
) -> Fetched:
    """Return the batches read at `offset`, up to the last of `most_records`.

    They are counted from the first batch, as compaction may have removed what is before it. A
    member acquires a few hundred records, and the headers of a megabyte may be those of thousands.
    """
    batches: list[FetchedBatch] = []
    positions: list[int] = []
    last = -1
    for position, header in iterate_entries(records):
        if batches and batches[-1].last_offset >= last:
            return Fetched(records[:position], batches, positions, list(aborted or ()))
        positions.append(position)
        if isinstance(header, BatchHeader):
            producer_id = header.producer_id if header.is_transactional else -1
            batches.append(
                FetchedBatch(header.base_offset, header.last_offset, producer_id, header.is_control)
            )
        else:  # a wrapper of an old format has the offset of its last message
            next_offset = batches[-1].last_offset + 1 if batches else offset
            batches.append(FetchedBatch(next_offset, header.next_offset - 1))
        if len(batches) == 1:
            last = max(offset, batches[0].base_offset) + most_records - 1
    return Fetched(records, batches, positions, list(aborted or ()))


def reset_offset(log: Log, reset: OffsetReset, now_ms: int) -> int:
    """Where a group without state begins."""
    if reset.is_earliest:
        return log.log_start_offset
    if reset.duration_ms >= 0:
        found = log.offset_for_timestamp(now_ms - reset.duration_ms)
        if found is not None:
            return found[1]
    return log.high_watermark


def is_remote(log: Log, offset: int) -> bool:
    """Return whether the records at `offset` are in remote storage only."""
    return log.log_start_offset <= offset < log.local_log_start_offset


class RemoteShareRead:
    """Loop only. The records of other remote partitions come with later requests."""

    __slots__ = ("_error", "_log", "_offset", "_on_done", "_read", "_truncations")

    def __init__(self, on_done: Callable[[], object]) -> None:
        """`on_done` is called in a later turn of the event loop."""
        self._on_done = on_done
        self._log: Log | None = None
        self._offset = self._truncations = -1
        self._read: RemoteReadTask | None = None
        self._error: TooManyReadsError | None = None

    def is_ready(
        self, reader: RemoteLogReader, log: Log, offset: int, max_bytes: int, committed: bool
    ) -> bool:
        """Return whether `take` has records or an error. Begins to read if nothing is read yet.

        Nothing begins while `remote.log.manager.fetch.max.bytes.per.second` is exceeded.
        """
        if self._log is None and not reader.is_throttled():
            self._log, self._offset, self._truncations = log, offset, log.truncations
            bound = read_bound(log, isolation(committed))
            max_bytes = min(max_bytes, MAX_PARTITION_BYTES)
            try:
                self._read = reader.read(log, ReadParams(offset, max_bytes, bound, True, committed))
            except TooManyReadsError as error:
                self._error = error
            else:
                self._read.when_done(self._on_done)
        if self._log is not log:
            return False
        return self._error is not None or (self._read is not None and self._read.is_done)

    def take(self, log: Log, offset: int, most_records: int) -> Fetched | None:
        """Return the records read of this partition at this offset, or None.

        Raises KafkaError, which clients retry.
        """
        if self._log is not log or self._truncations != log.truncations:
            return None
        if self._error is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self._error))
        if self._offset != offset or self._read is None or not self._read.is_done:
            return None  # other members have acquired these records meanwhile, or it takes longer
        result = self._read.result()
        if result.error is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(result.error))
        records = result.records
        # What follows the remote segments is on the disk.
        content = records.read() if isinstance(records, FileSlice) else bytes(records)
        if not content:
            return None
        return fetched_of(content, offset, result.aborted_transactions, most_records)

    def release(self) -> None:
        """The response is sent: its records are not kept."""
        read, self._read, self._log = self._read, None, None
        if read is not None:
            read.release()
