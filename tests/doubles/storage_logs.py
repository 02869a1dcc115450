"""Logs and batches for the tests of storage."""

from __future__ import annotations

from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import Record
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.log.log import Log
from ottla.storage.log.log_info import AppendInfo
from ottla.storage.producer.producer_entry import AppendOrigin
from tests.doubles.memory_file_system import MemoryFileSystem

NOW_MS = 1_700_000_000_000
ROOT = "/disk"

NewRecord = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def plain(count: int, timestamp: int = NOW_MS, size: int = 20) -> list[NewRecord]:
    """`count` records, one millisecond apart."""
    return [(timestamp + i, b"k%d" % i, bytes(size), []) for i in range(count)]


def batch_of(records: list[NewRecord] | int = 1, **fields: object) -> bytearray:
    """A batch as a producer sends it; a number stands for so many plain records."""
    chosen = plain(records) if isinstance(records, int) else records
    return bytearray(build_batch(chosen, **fields))  # type: ignore[arg-type]  # passed on as given


def marker(producer_id: int, *, committed: bool, epoch: int = 0, coordinator: int = 0) -> bytearray:
    return bytearray(
        end_transaction_marker(
            committed=committed,
            coordinator_epoch=coordinator,
            producer_id=producer_id,
            producer_epoch=epoch,
            timestamp_ms=NOW_MS,
        )
    )


def append(log: Log, records: list[NewRecord] | int = 1, **fields: object) -> AppendInfo:
    """Appends one batch with leader epoch 0; the high watermark follows."""
    info = log.append(batch_of(records, **fields), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    return info


def end_transaction(
    log: Log,
    producer_id: int,
    *,
    committed: bool,
    epoch: int = 0,
    origin: AppendOrigin = AppendOrigin.COORDINATOR,
) -> AppendInfo:
    info = log.append(
        marker(producer_id, committed=committed, epoch=epoch),
        leader_epoch=0,
        now_ms=NOW_MS,
        origin=origin,
    )
    log.update_high_watermark(log.log_end_offset)
    return info


def manager_on(
    fs: MemoryFileSystem, directories: tuple[str, ...] = (ROOT,), **settings: object
) -> LogManager:
    """A loaded manager whose logs have these settings (`LogConfig`)."""
    manager = LogManager(directories, LogConfig(**settings), fs)
    manager.load(NOW_MS)
    return manager


def new_log(fs: MemoryFileSystem | None = None, **settings: object) -> Log:
    """An empty log `t-0` in memory."""
    manager = manager_on(fs if fs is not None else MemoryFileSystem(), (ROOT,), **settings)
    return manager.get_or_create("t", 0, now_ms=NOW_MS)


def records_in(log: Log, *, start: int | None = None) -> list[Record]:
    """All records of the log, read batch by batch."""
    begin = log.log_start_offset if start is None else start
    found = []
    for batch in log.batches(begin):
        found += [r for r in read_records(batch, include_control=True) if r.offset >= begin]
    return found


def fetched(log: Log, *, max_bytes: int = 1 << 20) -> list[Record]:
    """All records of the log as a consumer fetches them."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        info = log.read(offset, max_bytes, up_to=log.log_end_offset)
        if info.slice is None:
            break
        batch = list(read_records(info.slice.read(), include_control=True, allow_partial=False))
        fresh = [record for record in batch if record.offset >= offset]
        found += fresh
        offset = next_offset(info.slice.read())
    return found


def next_offset(content: bytes) -> int:
    """The offset after the last batch of what was fetched."""
    from tests.doubles.record_batches import iterate_batches

    *_, (_, last) = iterate_batches(content)
    return last.next_offset
