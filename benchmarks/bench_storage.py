"""How fast the storage is, beside a bare loop that does the least there is to do.

    python -m benchmarks.bench_storage [directory] [--quick] [--only WORD] [--recovery-gib N]

Append: what `Log.append` costs over `crc32c` and `os.pwritev` of the same bytes, in this process,
turn by turn; the median of the turns counts. Everything else is in absolute figures: look-ups in a
log of 1 GiB, opening 1,000 logs, memory, recovery after a kill, compaction, and what Apache Kafka's
cleaner needs for the same log where Java is there. The aims are printed beside the figures.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.storage_timing import (
    MIB,
    NOW_MS,
    ZERO_OFFSET,
    Taken,
    now,
    opened,
    processor,
    say,
    taken_by,
)
from benchmarks.storage_turns import bench_transactions, bench_truncation
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.crc32c import crc32c
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.log.log import Log

# --- append --------------------------------------------------------------------------------------


def bare_loop(path: Path, batch: bytearray, count: int) -> Taken:
    """The least a broker can do: check the checksum and write."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    view = memoryview(batch)
    begin = now()
    position = 0
    for _ in range(count):
        crc32c(view[21:])
        os.pwritev(descriptor, [batch], position)
        position += len(batch)
    taken = now() - begin
    os.close(descriptor)
    path.unlink()
    return taken


def append_loop(log: Log, batch: bytearray, count: int, *, producer: bool) -> Taken:
    sequence = 0
    header = memoryview(batch)
    begin = now()
    for _ in range(count):
        header[0:8] = ZERO_OFFSET
        if producer:
            # As a client would: another sequence number, and so another checksum.
            header[53:57] = sequence.to_bytes(4, "big")
            header[17:21] = crc32c(header[21:]).to_bytes(4, "big")
            sequence += 1
        log.append(batch, leader_epoch=1, now_ms=NOW_MS)
    return now() - begin


def stamping_loop(batch: bytearray, count: int) -> Taken:
    """What the benchmark itself adds to the appends of a producer."""
    header = memoryview(batch)
    begin = now()
    for sequence in range(count):
        header[53:57] = sequence.to_bytes(4, "big")
        header[17:21] = crc32c(header[21:]).to_bytes(4, "big")
    return now() - begin


def bench_append(directory: Path, size: int, count: int, *, producer: bool = False) -> None:
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if producer else {}
    payload = os.urandom(size - 61 - 13)
    batch = bytearray(build_batch([(NOW_MS, None, payload, [])], **fields))  # type: ignore[arg-type]
    ours: list[Taken] = []
    bares: list[Taken] = []
    for turn in range(7):
        bare = bare_loop(directory / "bare", batch, count)
        manager = opened(directory / f"append-{turn}")
        log = manager.get_or_create("t", 0, now_ms=NOW_MS)
        taken = append_loop(log, batch, count, producer=producer)
        if producer:
            taken -= stamping_loop(batch, count)
        log.local.release()
        shutil.rmtree(directory / f"append-{turn}")
        ours.append(taken)
        bares.append(bare)
    name = f"append {size // 1024} KiB batches" + (" (idempotent)" if producer else "")
    each = Taken(*(statistics.median(column) / count for column in zip(*ours, strict=True)))
    least = Taken(*(statistics.median(column) / count for column in zip(*bares, strict=True)))
    note = f"{processor(each.processor, 'us')}; {len(batch) / each.wall / 1e6:.0f} MB/s"
    say(name, each.wall * 1e6, "us each", note)
    aim = "; aim: 60 or more" if size >= 16 * 1024 else ""
    pairs = list(zip(bares, ours, strict=True))
    by_clock = statistics.median(bare.wall / own.wall for bare, own in pairs) * 100
    by_processor = statistics.median(bare.processor / own.processor for bare, own in pairs) * 100
    note = f"processor {by_processor:.0f} percent of {least.processor * 1e6:.2f} us{aim}"
    say("  speed beside the bare loop", by_clock, "percent", note)


# --- look-ups ------------------------------------------------------------------------------------


def bench_look_ups(directory: Path, total: int) -> None:
    manager = opened(directory / "big")
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    batch = bytearray(build_batch([(NOW_MS, None, os.urandom(1000), []) for _ in range(16)]))
    while log.local.active.size + len(batch) < total:
        batch[0:8] = ZERO_OFFSET
        log.append(batch, leader_epoch=1, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    offsets = [random.randrange(log.log_end_offset) for _ in range(5000)]
    segment = log.local.active
    end = log.log_end_offset

    def each(name: str, work: Callable[[int], object], aim: str = "") -> None:
        def all_of_them() -> None:
            for offset in offsets:
                work(offset)

        all_of_them()
        turns = [taken_by(all_of_them) for _ in range(5)]
        used = min(turn.processor for turn in turns) / len(offsets)
        wall = min(turn.wall for turn in turns) / len(offsets)
        say(name, wall * 1e6, "us", processor(used, "us") + aim)

    each("offset look-up, 1 GiB log, warm", segment.find_batch, "; aim: below 20")
    each("read of 1 MiB at a random offset", lambda o: log.read(o, MIB, up_to=end))
    each("read at the tail", lambda _: log.read(end - 3, MIB, up_to=end))
    say("open files after that", float(len(os.listdir("/proc/self/fd"))), "")
    manager.shutdown(NOW_MS)
    shutil.rmtree(directory / "big")


# --- start-up ------------------------------------------------------------------------------------

_OPEN = """
import sys
from benchmarks.storage_timing import now, opened, resident_mib
before = resident_mib()
begin = now()
manager = opened(sys.argv[1])
taken = now() - begin
assert len(manager.logs()) == int(sys.argv[2])
print(*taken, resident_mib(), resident_mib() - before)
"""


def in_a_process(script: str, *arguments: object) -> list[float]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    return [float(word) for word in done.stdout.split()]


def bench_open(directory: Path, count: int) -> None:
    place = directory / "many"
    manager = opened(place, segment_bytes=200_000)
    batch = bytearray(build_batch([(NOW_MS, b"k", os.urandom(1000), []) for _ in range(10)]))
    for partition in range(count):
        log = manager.get_or_create("t", partition, topic_id=b"i" * 16, now_ms=NOW_MS)
        for _ in range(30):
            batch[0:8] = ZERO_OFFSET
            log.append(batch, leader_epoch=1, now_ms=NOW_MS)
    manager.shutdown(NOW_MS)
    wall, used, resident, grown = in_a_process(_OPEN, place, count)
    note = f"{processor(used)}; aim: below 2; {resident:.0f} MiB resident, {grown:.0f} for the logs"
    say(f"open {count} clean logs", wall, "s", note)
    shutil.rmtree(place)


_USE = """
import sys
from benchmarks.storage_timing import NOW_MS, ZERO_OFFSET, opened, resident_mib
from ottla.protocol.records.builder import build_batch
manager = opened(sys.argv[1])
batch = bytearray(build_batch([(NOW_MS, b"k", bytes(1000), []) for _ in range(10)]))
logs = [manager.get_or_create("t", p, now_ms=NOW_MS) for p in range(int(sys.argv[2]))]
for _ in range(20):
    for log in logs:
        batch[0:8] = ZERO_OFFSET
        log.append(batch, leader_epoch=1, now_ms=NOW_MS)
for log in logs:
    log.read(55, 5000, up_to=log.log_end_offset)
import os
print(resident_mib(), len(os.listdir("/proc/self/fd")))
"""


def bench_memory(directory: Path, count: int) -> None:
    resident, files = in_a_process(_USE, directory / "used", count)
    say(
        f"{count} logs, written to and read from",
        resident,
        "MiB resident",
        f"aim: below 100; {files:.0f} files",
    )
    shutil.rmtree(directory / "used")


def bench_recovery(directory: Path, total: int, partitions: int, batch_bytes: int) -> None:
    place = directory / "killed"
    manager = opened(place)
    batch = bytearray(build_batch([(NOW_MS, None, os.urandom(batch_bytes - 75), [])]))
    for partition in range(partitions):
        log = manager.get_or_create("t", partition, now_ms=NOW_MS)
        while log.local.active.size < total // partitions:
            batch[0:8] = ZERO_OFFSET
            log.append(batch, leader_epoch=1, now_ms=NOW_MS)
        log.local.release()
    files = sorted(place.rglob("*.log"))

    def read_all() -> None:
        for path in files:
            with path.open("rb", buffering=0) as source:
                while piece := source.read(MIB):
                    crc32c(piece)

    read_all()
    reading = taken_by(read_all)
    again = LogManager([place])
    taken = taken_by(lambda: again.load(NOW_MS))
    gib = sum(path.stat().st_size for path in files) / (1 << 30)
    name = f"recovery, {gib:.1f} GiB in {partitions} logs, {batch_bytes // 1000} KB"
    say(name, taken.wall, "s", f"{processor(taken.processor)}; {gib / taken.wall:.2f} GiB/s")
    beyond = taken - reading
    note = f"{processor(beyond.processor)}; aim: below 3 for 10 GiB; reading {reading.wall:.2f} s"
    say("  beyond reading it and its checksums", beyond.wall, "s", note)
    again.shutdown(NOW_MS)
    flushed = LogManager([place])
    (place / ".kafka_cleanshutdown").unlink()
    taken = taken_by(lambda: flushed.load(NOW_MS))
    say("  the same when it had been flushed", taken.wall, "s", processor(taken.processor))
    shutil.rmtree(place)


# --- compaction ----------------------------------------------------------------------------------


def keyed_batches(total: int, value_bytes: int, codec: int) -> list[bytes]:
    """Enough batches of 100 records with random values for a log of `total` bytes.

    Four times as many records as keys.
    """
    chooser = random.Random(1)
    keys = max(1, total // (value_bytes + 30) // 4)
    return [
        build_batch(
            [
                (NOW_MS, b"key-%012d" % chooser.randrange(keys), chooser.randbytes(value_bytes), [])
                for _ in range(100)
            ],
            codec=codec,
        )
        for _ in range(max(1, total // (value_bytes + 30) // 100))
    ]


def fill_for_compaction(log: Log, batches: list[bytes]) -> None:
    for batch in batches:
        log.append(bytearray(batch), leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)
    log.flusher.flush()
    log.update_high_watermark(log.log_end_offset)


def bench_compaction(directory: Path, total: int, value_bytes: int, codec: int) -> None:
    place = directory / "compacted"
    manager = opened(
        place, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, segment_bytes=32 * MIB
    )
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    fill_for_compaction(log, keyed_batches(total, value_bytes, codec))
    cleaner = Cleaner(manager.logs)
    compaction = cleaner.next_compaction(NOW_MS)
    assert compaction is not None
    taken = taken_by(compaction.run)
    assert compaction.error is None
    commit = taken_by(lambda: cleaner.finish(compaction, NOW_MS)).wall
    mib = compaction.stats.bytes_read / MIB
    name = f"compaction, values of {value_bytes} bytes" + (", lz4" if codec else "")
    rate = log.log_end_offset / taken.wall / 1e3
    note = (
        f"{mib / taken.processor:.1f} by processor; {rate:.0f} k records/s; commit {commit:.4f} s"
    )
    say(name, mib / taken.wall, "MiB/s", note)
    manager.shutdown(NOW_MS)
    shutil.rmtree(place)


def bench_kafkas_compaction(directory: Path, total: int, value_bytes: int) -> None:
    """The same log, compacted by Apache Kafka 3.9.1 with the figures of its own log lines.

    It has just started, as ours has, so its compiler is still warming up in the smaller logs. The
    processor time is that of the cleaner's thread: compiler and garbage collector have others.
    """
    from benchmarks.targets import KAFKA_JVM_OPTIONS
    from tests.doubles import apache_kafka
    from tests.doubles.apache_kafka import start_kafka, start_zookeeper

    apache_kafka.JVM_OPTIONS = KAFKA_JVM_OPTIONS
    place = directory / "kafka"
    settings = {"log_cleaner_backoff_ms": 100, "log_cleaner_dedupe_buffer_size": 128 * MIB}
    with start_zookeeper(place) as zookeeper:
        with start_kafka(place, zookeeper=zookeeper, **settings) as kafka:
            kafka.topics(
                "--create", "--topic", "t", "--config", "cleanup.policy=compact",
                "--config", f"segment.bytes={32 * MIB}", "--config", "retention.ms=-1",
                "--config", "min.cleanable.dirty.ratio=0.01",
            )  # fmt: skip
        manager = LogManager([place / "data"], LogConfig(segment_bytes=32 * MIB))
        manager.load(NOW_MS)
        log = manager.get("t", 0)
        assert log is not None
        fill_for_compaction(log, keyed_batches(total, value_bytes, 0))
        manager.shutdown(NOW_MS)
        with start_kafka(place, zookeeper=zookeeper, **settings) as kafka:
            found = kafka.process.wait_for(
                r"cleaned log t-0[^\n]*\n\s+([\d.,]+) MB of log processed in ([\d.,]+) seconds"
            )
            used = thread_seconds(kafka.process.process.pid, "kafka-log-clean")
    mib, taken = (float(text.replace(",", "")) for text in found.groups())
    name = f"Kafka's compaction, values of {value_bytes} bytes"
    say(name, mib / taken, "MiB/s", f"{mib / used:.1f} by processor")
    shutil.rmtree(place)


def thread_seconds(process_id: int, name: str) -> float:
    """Processor seconds of the threads whose names begin so; Linux keeps 15 characters of them."""
    nanoseconds = 0
    for task in Path(f"/proc/{process_id}/task").iterdir():
        if (task / "comm").read_text().startswith(name):
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def missing_for_kafka() -> str:
    """What keeps Apache Kafka from being started here; empty when nothing does."""
    from tests.doubles import apache_kafka

    return "" if apache_kafka.is_available() else "that needs Java, and its jars or Maven"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("directory", nargs="?", help="where to write (default: a temporary one)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--only", default="", help="append, look-up, open, memory, recovery, ...")
    parser.add_argument(
        "--recovery-gib", type=float, default=10.0, help="size of the log that is recovered"
    )
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    scale = 10 if options.quick else 1
    place = Path(tempfile.mkdtemp(prefix="bench-storage-", dir=options.directory))
    compacted = 128 * MIB // scale
    lacking = missing_for_kafka()

    def appends() -> None:
        for size, count in ((16 * 1024, 20_000), (1024, 50_000)):
            bench_append(place, size, count // scale)
            bench_append(place, size, count // scale, producer=True)

    def recovery() -> None:
        total = int(options.recovery_gib * (1 << 30)) // scale
        free = shutil.disk_usage(place).free
        if free < 2 * total:
            total = free // 4
            print(f"only {free >> 30} GiB are free: recovery of {total >> 30} GiB")
        bench_recovery(place, total, 100, 16_000)
        bench_recovery(place, total // 10, 100, 1_000)

    def compaction() -> None:
        for value_bytes in (1000, 100):
            bench_compaction(place, compacted, value_bytes, 0)
            if not lacking:
                bench_kafkas_compaction(place, compacted, value_bytes)
        bench_compaction(place, compacted // 2, 1000, 3)
        if lacking:
            print(f"Kafka's compaction: not run, {lacking}")

    works: dict[str, Callable[[], None]] = {
        "append": appends,
        "look-up": lambda: bench_look_ups(place, (1 << 30) // scale),
        "open": lambda: bench_open(place, 1000 // scale),
        "memory": lambda: bench_memory(place, 1000 // scale),
        "recovery": recovery,
        "compaction": compaction,
        "transactions": lambda: bench_transactions(place, scale),
        "truncation": lambda: bench_truncation(place, scale),
    }
    try:
        for name, work in works.items():
            if options.only in name:
                work()
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
