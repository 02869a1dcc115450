"""Log directories that real storage code has written, to be damaged: several kinds of partitions.

Small segments and a small index interval, so that each file has several entries and each partition
several closed segments and an open one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ottla.protocol.records.reader import read_records
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.log.batch_scan import walk_batches
from ottla.storage.log.log import Log
from tests.doubles.storage_logs import NOW_MS, append, batch_of, end_transaction

BASE = LogConfig(segment_bytes=1400, index_interval_bytes=150, retention_ms=-1)
OLD_FORMAT = BASE.replace(message_format_version="0.10.2")
COMPACT = BASE.replace(cleanup_policy=("compact",), segment_bytes=900)

TOPIC_ID = bytes(range(16))


class Stored(NamedTuple):
    """One record, with the segment and the position of its batch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    segment: int
    position: int

    @property
    def content(self) -> tuple[int, int, bytes | None, bytes | None]:
        return self[:4]


class Partition(NamedTuple):
    """What an intact partition serves."""

    config: LogConfig
    records: list[Stored]
    #: (producer id, first offset), and (first, last offset) of what read_committed leaves out.
    aborted: list[tuple[int, int]]
    start: int
    end: int
    #: Base offsets.
    segments: list[int]
    #: The last sequence number of each producer, without those that wrote none.
    sequences: dict[int, int]
    stable: int
    #: The latest leader epoch and its start offset.
    epoch: tuple[int, int] | None


Written = dict[str, Partition]


def _plain(log: Log) -> None:
    for number in range(25):
        timestamp = NOW_MS + number * 10 - (35 if number % 7 == 3 else 0)
        append(log, [(timestamp + i, b"k%d" % i, b"v%d-%d" % (number, i), []) for i in range(3)])


def _compressed(log: Log) -> None:
    for number in range(20):
        records = [(NOW_MS + number * 5 + i, None, b"x" * 40 + b"%d" % i, []) for i in range(3)]
        append(log, records, codec=1 + number % 4)


def _epochs(log: Log) -> None:
    first = max(log.leader_epochs.latest_epoch, 0)
    for number in range(30):
        records = [(NOW_MS + number, b"e", b"v%d" % number, []) for _ in range(2)]
        log.append(batch_of(records), leader_epoch=first + number // 9, now_ms=NOW_MS)


def _idempotent(log: Log) -> None:
    for number in range(50):
        producer, sequence = number % 3, number // 3
        records = [(NOW_MS + number, b"i", b"v%d" % number, [])]
        append(log, records, producer_id=producer, producer_epoch=0, base_sequence=sequence)


def _transactional(log: Log) -> None:
    sequences = [0] * 4
    for number in range(16):
        producer = number % 4
        for part in range(2):
            records = [(NOW_MS + number, b"t", b"v%d-%d" % (number, part), [])]
            append(
                log,
                records,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequences[producer],
                transactional=True,
            )
            sequences[producer] += 1
        if number < 14:
            end_transaction(log, producer, committed=number % 3 != 0)


def _old(log: Log) -> None:
    for number in range(45):
        records = [(NOW_MS + number, b"o%d" % number, b"v" * 20, [])]
        log.append(batch_of(records), leader_epoch=0, now_ms=NOW_MS)


def _keyed(log: Log) -> None:
    for number in range(60):
        append(log, [(NOW_MS + number, b"k%d" % (number % 11), b"v%d" % number, [])])


KINDS: dict[str, tuple[LogConfig, Callable[[Log], None]]] = {
    "plain": (BASE, _plain),
    "compressed": (BASE, _compressed),
    "epochs": (BASE, _epochs),
    "idempotent": (BASE, _idempotent),
    "transactional": (BASE, _transactional),
    "old": (OLD_FORMAT, _old),
    "compacted": (COMPACT, _keyed),
    "deleted": (BASE, _plain),
}


def config_of(topic: str) -> LogConfig:
    return KINDS[topic][0]


class _Unsynced(RealFileSystem):
    """Nothing here survives a power failure, and need not."""

    sync = staticmethod(lambda _: None)

    def sync_directory(self, path: str) -> None:
        """Nothing."""


def load(root: Path) -> LogManager:
    """Opens the directory as a broker does."""
    manager = LogManager([root], BASE, _Unsynced())
    manager.load(NOW_MS, config_of=config_of)
    return manager


def write(root: Path, *, clean: bool) -> Written:
    """Writes a log directory, and stops cleanly or not. Returns what it serves.

    Without a clean stop everything but the last batches is below the recovery points.
    """
    manager = load(root)
    for topic, (config, fill) in KINDS.items():
        log = manager.get_or_create(topic, 0, config=config, topic_id=TOPIC_ID, now_ms=NOW_MS)
        fill(log)
        log.update_high_watermark(log.log_end_offset)
        log.flusher.flush(NOW_MS)
        if topic == "deleted":
            log.truncator.delete_records_before(42)
            for _ in log.retention.delete_old_segments(NOW_MS):
                pass
    compact(manager, Cleaner(manager.logs))
    manager.checkpoint_all()
    for topic, (_, fill) in KINDS.items():
        if topic not in ("idempotent", "transactional"):
            log = manager.get(topic, 0)
            assert log is not None
            fill(log)
            log.update_high_watermark(log.log_end_offset)
    found = {log.topic: _intact(log) for log in manager.logs()}
    manager.write_meta_properties(1, "damage")
    if clean:
        manager.shutdown(NOW_MS)
    else:
        manager.abandon()
    manager.purge(NOW_MS + 10**9)
    return found


def compact(manager: LogManager, cleaner: Cleaner) -> None:
    """Compacts what needs it, as the tasks of the broker do."""
    for _ in range(3):
        dirty: list[Log] = []
        steps = cleaner.dirty_logs(NOW_MS)
        try:
            while True:
                next(steps)
        except StopIteration as end:
            dirty = end.value
        for log in dirty:
            compaction = cleaner.begin(log, NOW_MS)
            if compaction is not None:
                compaction.run()
                cleaner.finish(compaction, NOW_MS)
                compaction.sync()
    cleaner.write_checkpoints()


def _intact(log: Log) -> Partition:
    records = []
    for segment in log.segments:
        for place, batch in walk_batches(segment.log, 0, segment.size):
            for each in read_records(batch, include_control=True):
                if each.offset >= log.log_start_offset:
                    records.append(
                        Stored(
                            *(each.offset, each.timestamp, each.key, each.value),
                            segment.base_offset,
                            place.position,
                        )
                    )
    end = log.log_end_offset
    aborted = [(t.producer_id, t.first_offset) for t in log.aborted_transactions(0, end)]
    bases = log.segments.base_offsets
    return Partition(
        log.config,
        records,
        sorted(aborted),
        log.log_start_offset,
        end,
        bases,
        last_sequences(log),
        log.last_stable_offset,
        next(reversed(log.leader_epochs.entries), None),
    )


def last_sequences(log: Log) -> dict[int, int]:
    """The last sequence number of each producer, without those that wrote none."""
    return {
        producer_id: entry.batches[-1].last_sequence
        for producer_id, entry in log.producer_state.producers.items()
        if entry.batches
    }
