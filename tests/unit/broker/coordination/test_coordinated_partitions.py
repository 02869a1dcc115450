"""A load that fails, and what follows it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from ottla.broker.coordination.coordinated_partitions import DamagedLogReader
from ottla.broker.groups.log.partition import GroupPartition
from ottla.broker.replication.coordinator_log import ReplicatedCoordinatorLog
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import MAGIC_POSITION, read_header
from ottla.protocol.steps import run_at_once
from ottla.storage.errors import ResourceExhausted
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.replicas import TOPIC, Replicas
from tests.doubles.storage_logs import batch_of
from tests.unit.broker.groups.helpers import GROUP, T0, Setup


def fail_reads(setup: Setup, error: Exception) -> Callable[[], None]:
    """Reading the log raises `error` until the returned function is called."""
    read_batches = setup.log.read_batches

    def fail(partition: int, from_offset: int = 0) -> Iterator[memoryview]:
        raise error

    def repair() -> None:
        setup.log.read_batches = read_batches  # type: ignore[method-assign]

    setup.log.read_batches = fail  # type: ignore[method-assign]
    return repair


def test_a_log_that_cannot_be_read_is_never_served(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    setup.commit({T0: 1})
    repair = fail_reads(setup, OSError("no such disk"))
    setup.elect(1)
    assert (
        run_at_once(setup.coordinator.commits.fetch(GROUP, None))[0]
        == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    assert "Failed to load __consumer_offsets-0" in caplog.text
    assert setup.coordinator.partitions.load_failures == 1
    repair()
    setup.coordinator.partitions.advance_epoch(0, 2)
    setup.run_deferred()
    assert setup.offset() == 1
    assert setup.coordinator.partitions.load_failures == 0


def test_a_load_that_failed_is_retried_with_a_back_off(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    setup.commit({T0: 1})
    repair = fail_reads(setup, ResourceExhausted("/data", "too many open files"))
    setup.elect(1)
    for delay_ms in (1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000):
        setup.timer.advance(delay_ms - 1)
        assert not setup.deferred
        setup.timer.advance(1)
        setup.run_deferred()
        assert setup.coordinator.partitions.load_failures == 1
    assert caplog.text.count("Failed to load __consumer_offsets-0, retrying in") == 9
    assert "Traceback" not in caplog.text
    repair()
    setup.timer.advance(60_000)
    setup.run_deferred()
    assert setup.offset() == 1
    assert setup.coordinator.partitions.load_failures == 0


@pytest.mark.parametrize("change", ["resign", "elect", "stop"])
def test_a_retry_does_not_disturb_what_came_after_the_failure(change: str) -> None:
    setup = Setup()
    setup.commit({T0: 1})
    repair = fail_reads(setup, ResourceExhausted("/data", "too many open files"))
    setup.elect(1)
    repair()
    partitions = setup.coordinator.partitions
    if change == "resign":
        setup.coordinator.on_resigned(0, 2)
    elif change == "elect":
        setup.elect(2)
        setup.commit({T0: 2})
    else:
        partitions.stop()
    before = partitions.active
    setup.timer.advance(1000)
    assert not setup.deferred
    assert partitions.active == before
    assert not partitions.is_loading
    assert partitions.load_failures == 0


def test_a_defect_in_what_follows_a_load_does_not_end_the_other_loads() -> None:
    setup = Setup(offsets_topic_num_partitions=3)
    partitions = setup.coordinator.partitions
    loaded: list[int] = []

    def on_loaded(partition: GroupPartition) -> None:
        loaded.append(partition.index)
        if partition.index == 1:
            raise RuntimeError("a defect")

    partitions._on_loaded = on_loaded
    for index in range(3):
        setup.coordinator.on_elected(index, 1)
    with pytest.raises(RuntimeError, match="a defect"):
        setup.run_deferred()
    setup.run_deferred()
    assert loaded == [0, 1, 2]
    setup.coordinator.on_elected(0, 2)
    setup.run_deferred()
    assert loaded == [0, 1, 2, 0]


def test_a_topic_that_is_created_again_is_loaded_in_its_first_leader_epoch() -> None:
    setup = Setup()
    setup.elect(5)
    setup.commit({T0: 1})
    setup.coordinator.on_resigned(0)  # the topic is deleted
    setup.log.batches.clear()
    setup.log.end_offsets.clear()
    setup.elect(0)
    assert setup.coordinator.partitions.check(GROUP) == ErrorCode.NONE
    assert setup.offset() == -1
    setup.coordinator.on_resigned(0, 1)
    setup.elect(0)  # stale
    assert setup.coordinator.partitions.check(GROUP) == ErrorCode.NOT_COORDINATOR


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
