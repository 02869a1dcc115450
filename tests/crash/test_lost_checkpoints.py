"""Checkpoints that are lost, damaged or of another broker; damaged segments; and kills meanwhile.

Whatever recovery finds, each batch that was written is served or set aside afterwards, and so is
each byte, but for a write that the crash interrupted. A failing run prints its seed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from random import Random

import pytest

from ottla.protocol.records.batch import BATCH_OVERHEAD, LOG_OVERHEAD
from ottla.protocol.records.crc32c import crc32c
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.fs import READ_ONLY
from ottla.storage.files.layout import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import Fault, MemoryFileSystem
from tests.doubles.seeds import seeds
from tests.doubles.storage_logs import NOW_MS, ROOT, batch_of, manager_on, records_in

SEEDS = seeds(60, 7, 1234567)
SETTINGS = {"segment_bytes": 900, "index_interval_bytes": 100, "retention_ms": -1}
CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
)
PATH = f"{ROOT}/t-0"


class Killed(BaseException):
    """The process ends at a call."""


class MortalFileSystem(MemoryFileSystem):
    """Kills the process at the call with the number `last_call`, before it does anything."""

    last_call: int | None = None

    def _call(self, operation: str, path: str) -> Fault | None:
        if self.last_call is not None and len(self.calls) >= self.last_call:
            raise Killed
        return super()._call(operation, path)


def mortal(fs: MemoryFileSystem, last_call: int | None) -> MortalFileSystem:
    fs.__class__ = MortalFileSystem
    assert isinstance(fs, MortalFileSystem)
    fs.last_call = last_call
    return fs


def log_files(fs: MemoryFileSystem) -> dict[str, bytes]:
    """The files with records, those that are set aside included."""
    names = [path for path in fs.paths() if path.startswith(PATH) and ".log" in path]
    return {path: fs.content(path) for path in names if not path.endswith((".tmp", ".deleted"))}


class Case:
    """A log that was killed, with what happened to its files then."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        fs = MemoryFileSystem()
        self.settings = {**SETTINGS, "cleanup_policy": (random.choice(("delete", "compact")),)}
        manager = manager_on(fs, **self.settings)
        log = manager.get_or_create("t", 0, topic_id=b"i" * 16, now_ms=NOW_MS)
        self.grow(manager, log)
        self.fs = fs.after_kill()
        self.is_damaged = False
        for name in CHECKPOINTS:
            if random.random() < 0.6:
                self.damage_checkpoint(name)
        if random.random() < 0.7:
            random.choice((self.lose_segment, self.flip, self.cut, self.zero))()
        if random.random() < 0.3:
            self.tear()
        self.before = log_files(self.fs)
        self.batches = [batch for each in self.before.values() for batch in valid_batches(each)]

    def grow(self, manager: LogManager, log: Log) -> None:
        random = self.random
        for _ in range(random.randint(1, 60)):
            first = log.log_end_offset
            count = random.randint(1, 4)
            records = [
                (NOW_MS + first + i, b"%d" % (first + i), random.randbytes(30), [])
                for i in range(count)
            ]
            log.append(batch_of(list(records)), leader_epoch=first // 50, now_ms=NOW_MS)
            log.update_high_watermark(log.log_end_offset)
            if random.random() < 0.1:
                log.flusher.flush()
            if random.random() < 0.1:
                manager.checkpoint_all()
        if random.random() < 0.3:
            log.roll(NOW_MS)

    def damage_checkpoint(self, name: str) -> None:
        random, path = self.random, f"{ROOT}/{name}"
        value = random.choice((-1, -(1 << 63), 0, 1, 17, 60, 1000, 1 << 40, 1 << 62, 1 << 70))
        contents = (
            None,
            b"",
            bytes(random.randint(1, 50)),
            random.randbytes(random.randint(1, 200)),
            b"0\n1\nother 0 5\n",
            b"0\n0\n",
            b"0\n2\nt 0 5\n",
            b"0\n1\nt 0 %d\n" % value,
            b"0\n1\nt 0 %d\n" % random.randint(0, 200),
        )
        content = random.choice(contents)
        if content is not None:
            self.fs.overwrite_or_create(path, content)
        elif self.fs.exists(path):
            self.fs.remove(path)

    def choose(self) -> tuple[str, bytes]:
        return self.random.choice(sorted(log_files(self.fs).items()))

    def lose_segment(self) -> None:
        path, _ = self.choose()
        if len(log_files(self.fs)) > 1:
            self.fs.remove(path)

    def flip(self) -> None:
        path, content = self.choose()
        self.is_damaged = True
        if content:
            changed = bytearray(content)
            changed[self.random.randrange(len(changed))] ^= 1 << self.random.randrange(8)
            self.fs.overwrite(path, bytes(changed))

    def cut(self) -> None:
        self.is_damaged = True
        path, content = self.choose()
        self.fs.overwrite(path, content[: self.random.randint(0, len(content))])

    def zero(self) -> None:
        self.is_damaged = True
        path, content = self.choose()
        start = self.random.randint(0, len(content))
        self.fs.overwrite(path, content[:start] + bytes(len(content) - start))

    def tear(self) -> None:
        """A write that was not complete."""
        path, content = sorted(log_files(self.fs).items())[-1]
        batch = bytes(batch_of(3, base_offset=1000))
        part = batch[: self.random.randint(1, len(batch) - 1)]
        self.fs.overwrite(path, content + part)

    def check(self, fs: MemoryFileSystem, log: Log, *, is_first: bool = True) -> None:
        after = log_files(fs)
        kept = b"|".join(after.values())
        assert [batch for batch in self.batches if batch not in kept] == []
        aside = {item.path for item in log.log_directory.set_aside}
        assert aside == {path for path in after if path.endswith(".set-aside")}
        served = {path for path in after if path.endswith(".log")}
        assert aside | served == set(after)
        if not self.is_damaged:  # as with Kafka, what was flushed is not read
            offsets = [record.offset for record in records_in(log)]
            assert offsets == sorted(set(offsets))
        if is_first:
            # What is not there any more holds no batch: it was a torn write.
            gone = sum(map(len, self.before.values())) - sum(map(len, after.values()))
            assert gone >= 0
        log.append(batch_of(1), leader_epoch=log.leader_epochs.latest_epoch + 1, now_ms=NOW_MS)


def valid_batches(content: bytes) -> list[bytes]:
    """The complete batches with the right checksum, wherever they begin."""
    found, at = [], 0
    while at + BATCH_OVERHEAD <= len(content):
        stop = at + LOG_OVERHEAD + int.from_bytes(content[at + 8 : at + 12], "big", signed=True)
        stored = int.from_bytes(content[at + 17 : at + 21], "big")
        is_header = content[at + 16] == 2 and at + BATCH_OVERHEAD <= stop <= len(content)
        if is_header and crc32c(content[at + 21 : stop]) == stored:
            found.append(content[at:stop])
            at = stop
        else:
            at += 1
    return found


def opened(fs: MemoryFileSystem, case: Case) -> Log:
    log = manager_on(fs, **case.settings).get("t", 0)
    assert log is not None
    return log


@pytest.mark.parametrize("seed", SEEDS)
def test_no_batch_is_lost(seed: int) -> None:
    print(f"OTTLA_TEST_SEED={seed}")
    case = Case(seed)
    log = opened(case.fs, case)
    case.check(case.fs, log)
    again = opened(case.fs, case)
    case.check(case.fs, again, is_first=False)
    assert len(again.log_directory.set_aside) == len(log.log_directory.set_aside)


def synced(fs: MemoryFileSystem) -> MemoryFileSystem:
    """All that is there is on disk."""
    for path in fs.paths():
        descriptor = fs.open(path, READ_ONLY)
        fs.sync(descriptor)
        fs.close(descriptor)
    fs.sync_directory(ROOT)
    fs.sync_directory(PATH)
    return fs


def after_kill(fs: MemoryFileSystem) -> MemoryFileSystem:
    return fs.after_kill()


def after_power_failure(fs: MemoryFileSystem) -> MemoryFileSystem:
    return fs.after_power_failure()


@pytest.mark.parametrize("end", [after_kill, after_power_failure])
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_kill_at_any_call_loses_no_batch(
    seed: int, end: Callable[[MemoryFileSystem], MemoryFileSystem]
) -> None:
    """Of those that recovery makes, those in between setting a part aside included."""
    print(f"OTTLA_TEST_SEED={seed}")
    case = Case(seed)
    last_call, was_killed = 0, True
    while was_killed:
        fs = mortal(synced(case.fs.after_kill()), None)
        fs.calls.clear()
        fs.last_call = last_call
        try:
            opened(fs, case)
            was_killed = False
        except Killed:
            pass
        fs.last_call = None
        left = end(fs)
        case.check(left, opened(left, case), is_first=False)
        last_call += 1
        del fs, left
        if last_call % 20 == 0:
            gc.collect()  # each file is a descriptor
