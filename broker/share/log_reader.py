"""Reads the records of a share partition from the local log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.replication.delayed_fetch import read_bound
from ottla.broker.replication.partition import READ_COMMITTED, READ_UNCOMMITTED
from ottla.broker.share.acquisition import AcquiredRecords, FetchedBatch
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.reader import iterate_entries

if TYPE_CHECKING:
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
        """The record batches from the first to the last acquired record."""
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
    """How many bytes can be read at `offset`, up to `max_bytes`."""
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
    """The batches of what was read at `offset`, to the one that has the last of `most_records`.

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
