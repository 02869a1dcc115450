"""Reading a coordinator's log past batches that are damaged."""

from __future__ import annotations

import errno

import pytest

from ottla.broker.coordination.damaged_logs import DamagedLogReader
from ottla.broker.replication.coordinator_log import ReplicatedCoordinatorLog
from ottla.protocol.records.batch import MAGIC_POSITION, read_header
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.replicas import TOPIC, Replicas
from tests.doubles.storage_logs import batch_of

COUNT = 190
BATCH_BYTES = len(batch_of(1))
SEGMENT = 20  # batches


class Scene(Replicas):
    """A partition with COUNT batches of one record, twenty in a segment."""

    def __init__(self) -> None:
        super().__init__(segment_bytes=SEGMENT * BATCH_BYTES)
        self.lead()
        self.coordinator_log = ReplicatedCoordinatorLog(self.manager, TOPIC, lambda: 500)
        self.reader = DamagedLogReader(TOPIC, self.coordinator_log, self.clock.now_ms)
        self.damages = 0
        for _ in range(COUNT):
            self.coordinator_log.append(0, bytes(batch_of(1)), lambda *_: None)

    def damage(self, *offsets: int) -> None:
        """The magic of these batches is not that of a batch."""
        fs = self.logs.fs
        assert isinstance(fs, MemoryFileSystem)
        for offset in offsets:
            base_offset = offset - offset % SEGMENT
            path = f"/disk/t-0/{base_offset:020}.log"
            content = bytearray(fs.content(path))
            content[(offset - base_offset) * BATCH_BYTES + MAGIC_POSITION] = 99
            fs.overwrite(path, bytes(content))

    @property
    def log_of_partition(self) -> Log:
        log = self.partition().log
        assert log is not None
        return log

    def read(self, from_offset: int = 0) -> list[int]:
        """The base offsets of the batches that are read."""

        def on_damage() -> None:
            self.damages += 1

        batches = self.reader.read_batches(0, from_offset, on_damage)
        return [read_header(batch).base_offset for batch in batches]


def test_a_log_without_damage() -> None:
    scene = Scene()
    assert scene.read() == list(range(COUNT))
    assert scene.read(COUNT - 1) == [COUNT - 1]
    assert scene.read(COUNT) == []
    assert scene.damages == 0


@pytest.mark.parametrize(
    ("damaged", "after"), [(0, 20), (1, 20), (19, 20), (100, 120), (107, 120), (185, 190)]
)
def test_reading_continues_with_the_next_segment(
    damaged: int, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.damage(damaged)
    assert scene.read() == [*range(damaged), *range(after, COUNT)]
    assert scene.damages == 1
    assert f"Error loading t-0: skipping offsets {damaged} to {after - 1}, which" in caplog.text


def test_several_segments_are_damaged() -> None:
    scene = Scene()
    scene.damage(22, 25, 100, 125)
    assert scene.read() == [*range(22), *range(40, 100), *range(120, 125), *range(140, COUNT)]
    assert scene.damages == 3


def test_a_read_that_begins_in_a_damaged_segment() -> None:
    scene = Scene()
    scene.damage(22)
    assert scene.read(25) == list(range(40, COUNT))


def test_everything_is_damaged() -> None:
    scene = Scene()
    scene.damage(*range(COUNT))
    assert scene.read() == []
    assert scene.damages == 10


def test_what_is_appended_after_the_load_is_read_by_the_next() -> None:
    scene = Scene()
    scene.damage(COUNT - 5)
    assert scene.read() == list(range(COUNT - 5))
    scene.coordinator_log.append(0, bytes(batch_of(1)), lambda *_: None)
    assert scene.read() == [*range(COUNT - 5), COUNT]
    segments = len(scene.log_of_partition.segments)
    assert scene.read() == [*range(COUNT - 5), COUNT]
    assert len(scene.log_of_partition.segments) == segments


def test_a_full_disk_does_not_stop_the_load(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.damage(COUNT - 5)
    fs = scene.logs.fs
    assert isinstance(fs, MemoryFileSystem)
    fs.fail("open", errno.ENOSPC, path_part=".log", times=100)
    assert scene.read() == list(range(COUNT - 5))
    assert "Failed to roll a segment of t-0" in caplog.text
