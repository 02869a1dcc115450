"""kill -9 of a process that appends as fast as it can: no acknowledged append is lost.

The child reports every append after it has returned, and every flush. It is killed at a random
moment. The directory must then hold every record that was reported, in order and unchanged, and
nothing but what was being written; and a log opened on it must continue as if nothing had happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from ottla.protocol.records.reader import read_records
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.inspection.fsck import PartitionCheck
from tests.doubles.seeds import seeds
from tests.doubles.storage_logs import NOW_MS

SEEDS = seeds(4)
SETTINGS = {"segment_bytes": 60_000, "index_interval_bytes": 1000, "retention_ms": -1}

# What a record at an offset looks like is known to both sides.
CHILD = """
import sys
from random import Random
from ottla.protocol.records.builder import build_batch
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from tests.crash.test_storage_kill import SETTINGS, record_at

root, seed = sys.argv[1], int(sys.argv[2])
random = Random(seed)
manager = LogManager([root], LogConfig(**SETTINGS))
manager.lock()
manager.load(1)
logs = [manager.get_or_create("t", p, now_ms=1) for p in range(3)]
sequences = [0, 0, 0]
out = sys.stdout
while True:
    p = random.randrange(3)
    log = logs[p]
    count = random.randint(1, 20)
    first = log.log_end_offset
    batch = bytearray(build_batch(
        [record_at(first + i) for i in range(count)], codec=random.choice((0, 0, 2)),
        producer_id=5, producer_epoch=0, base_sequence=sequences[p],
    ))
    info = log.append(batch, leader_epoch=first // 500, now_ms=1)
    sequences[p] += count
    out.write(f"{p} {info.last_offset}\\n")
    out.flush()
    if random.random() < 0.02:
        log.flusher.flush()
        manager.checkpoint_all()
"""


def record_at(offset: int) -> tuple[int, bytes, bytes, list[tuple[str, bytes | None]]]:
    random = Random(offset)
    return NOW_MS + offset, b"%d" % offset, random.randbytes(random.randint(0, 300)), []


@pytest.mark.parametrize("seed", SEEDS)
def test_kill_under_load(seed: int, tmp_path: Path) -> None:
    print(f"OTTLA_TEST_SEED={seed}")
    random = Random(seed)
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=root,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    acknowledged = {0: -1, 1: -1, 2: -1}
    try:
        for _ in range(random.randint(1, 1500)):
            line = child.stdout.readline()
            assert line, child.stderr.read()
            partition, last = map(int, line.split())
            acknowledged[partition] = last
        os.kill(child.pid, signal.SIGKILL)
        for line in child.stdout.read().splitlines():
            if line.count(" ") == 1 and line.split()[1]:
                partition, last = map(int, line.split())
                acknowledged[partition] = max(acknowledged[partition], last)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()
    check_what_is_left(tmp_path, acknowledged)


def check_what_is_left(directory: Path, acknowledged: dict[int, int]) -> None:
    manager = LogManager([directory], LogConfig(**SETTINGS))
    manager.lock()
    manager.load(NOW_MS)
    for partition, last in acknowledged.items():
        log = manager.get("t", partition)
        if log is None:
            assert last == -1
            continue
        # The very last line may be incomplete; the batch after it not reported.
        assert last < log.log_end_offset <= last + 1 + 2 * 20 + 10 * 20
        found = [r for batch in log.batches(0) for r in read_records(bytes(batch))]
        assert [r.offset for r in found] == list(range(log.log_end_offset))
        for record in found:
            timestamp, key, value, _ = record_at(record.offset)
            assert (record.timestamp, record.key, record.value) == (timestamp, key, value)
        starts = dict(log.leader_epochs.entries)
        assert all(start // 500 == epoch for epoch, start in starts.items())
        if log.log_end_offset:
            entry = log.producer_state.producers[5]
            assert entry.last_offset == log.log_end_offset - 1
            assert entry.last_sequence == log.log_end_offset - 1
        log.flusher.flush()
        assert PartitionCheck(log.path, deep=True).run().problems == []
    manager.shutdown(NOW_MS)
