from __future__ import annotations

from ottla.broker.share.coordinator.appender import RecordAppender
from ottla.broker.share.coordinator.partition import ShareStatePartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.compression import NONE
from tests.doubles.coordinator_log import MemoryLog
from tests.doubles.manual_timer import ManualTimer

LINGER_MS = 5


class Scene:
    """An appender for two partitions; `results` are those of the appends, in order."""

    def __init__(self, linger_ms: int = LINGER_MS) -> None:
        self.log, self.timer = MemoryLog(), ManualTimer()
        self.partitions = [ShareStatePartition(index, 0) for index in range(2)]
        self.active = set(self.partitions)
        self.appender = RecordAppender(
            *(self.log, self.timer.clock, NONE, self.active.__contains__, self.timer, linger_ms)
        )
        self.results: list[tuple[int, int]] = []

    def append(self, index: int = 0, value: bytes = b"value") -> None:
        self.appender.append(
            *(self.partitions[index], b"key", value),
            lambda error_code, offset: self.results.append((error_code, offset)),
        )


def test_records_are_appended_at_once_by_default() -> None:
    scene = Scene(-1)
    scene.append()
    scene.append()
    assert (scene.log.appends, scene.results) == (2, [(0, 0), (0, 1)])


def test_records_of_one_partition_become_one_batch() -> None:
    scene = Scene()
    for index in (0, 0, 1, 0):
        scene.append(index)
    scene.timer.advance(LINGER_MS - 1)
    assert scene.log.appends == 0
    scene.timer.advance(1)
    assert scene.log.appends == 2
    assert scene.results == [(0, 0), (0, 1), (0, 2), (0, 0)]
    assert [record.value for record in scene.log.records(0)] == [b"value"] * 3


def test_a_large_batch_does_not_wait() -> None:
    scene = Scene()
    scene.append(value=bytes(1 << 18))
    scene.append(value=bytes(1 << 18))
    assert len(scene.results) == 2
    scene.append()
    scene.timer.advance(LINGER_MS)
    assert (scene.log.appends, len(scene.results)) == (2, 3)


def test_a_partition_that_has_moved() -> None:
    scene = Scene()
    scene.append()
    scene.active.clear()
    scene.timer.advance(LINGER_MS)
    assert (scene.log.appends, scene.results) == (0, [(ErrorCode.NOT_COORDINATOR, -1)])
