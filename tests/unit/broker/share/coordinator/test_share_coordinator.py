from __future__ import annotations

import asyncio

import pytest

from ottla.broker.runtime.tasks import spawn
from ottla.broker.share.coordinator.share_coordinator import (
    RecordAppender,
    ShareCoordinator,
    ShareCoordinatorSettings,
    ShareStatePartition,
    coordinator_key,
)
from ottla.broker.share.persister import (
    PersistedState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    StateUpdate,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records.compression import GZIP, NONE
from ottla.protocol.records.reader import iterate_entries
from tests.doubles.coordinator_log import MemoryLog
from tests.doubles.eventually import eventually_async
from tests.doubles.manual_timer import ManualClock, ManualTimer

KEY = SharePartitionKey("group", bytes(16), 2)
ACCEPTED = StateBatch(0, 4, 2, 1)


def update(state_epoch: int = 0, leader_epoch: int = 1) -> StateUpdate:
    return StateUpdate(state_epoch, leader_epoch, 0, 5, (ACCEPTED,))


def coordinator(log: MemoryLog, *, elected: bool = True) -> ShareCoordinator:
    made = ShareCoordinator(
        ShareCoordinatorSettings(4, 3),
        log,
        ManualTimer(),
        ManualClock(),
        lambda callback: callback(),
    )
    if elected:
        for index in range(4):
            made.partitions.elect(index, 1)
    return made


async def code_of(awaitable: object) -> int:
    with pytest.raises(KafkaError) as refused:
        await awaitable  # type: ignore[misc]
    return refused.value.code


async def held_write() -> tuple[MemoryLog, ShareCoordinator, asyncio.Task[None]]:
    """A write whose record is appended and not committed yet."""
    log = MemoryLog()
    made = coordinator(log)
    await made.initialize(KEY, 0, 0)
    log.hold = True
    first = spawn(made.write(KEY, update()), name="write")
    await eventually_async(lambda: log.held)
    return log, made, first


async def test_state_survives_a_new_coordinator() -> None:
    log = MemoryLog()
    first = coordinator(log)
    await first.initialize(KEY, 0, -1)
    assert await first.read(KEY, 1) == PersistedState(0, -1, ())
    for _ in range(5):
        await first.write(KEY, update())
    second = coordinator(log)
    assert await second.read(KEY, 1) == PersistedState(0, 0, (ACCEPTED,))
    assert await second.summary(KEY, 1) == StateSummary(0, 1, 0, 5)


async def test_records_are_compressed_and_read_back() -> None:
    log = MemoryLog()
    settings = ShareCoordinatorSettings(4, 3, codec=GZIP)
    made = ShareCoordinator(
        settings, log, ManualTimer(), ManualClock(), lambda callback: callback()
    )
    for index in range(4):
        made.partitions.elect(index, 1)
    await made.initialize(KEY, 0, -1)
    await made.write(KEY, update())
    codecs = {
        header.codec
        for batches in log.batches.values()
        for batch in batches
        for _, header in iterate_entries(batch)
    }
    assert codecs == {GZIP}
    assert (await coordinator(log).summary(KEY, 1)).start_offset == 0


async def test_a_snapshot_follows_some_updates() -> None:
    log = MemoryLog()
    made = coordinator(log)
    await made.initialize(KEY, 0, 0)
    for _ in range(4):
        await made.write(KEY, update())
    (partition,) = (each for each in made.partitions.active if each.states)
    assert partition.states[KEY].snapshot_epoch == 1
    assert partition.updates[KEY] == 0


async def test_fencing() -> None:
    made = coordinator(MemoryLog())
    await made.initialize(KEY, 2, 0)
    await made.read(KEY, 5)
    assert await code_of(made.read(KEY, 4)) == ErrorCode.FENCED_LEADER_EPOCH
    assert await code_of(made.write(KEY, update(2, 4))) == ErrorCode.FENCED_LEADER_EPOCH
    assert await code_of(made.write(KEY, update(1, 5))) == ErrorCode.FENCED_STATE_EPOCH
    assert await code_of(made.initialize(KEY, 1, 0)) == ErrorCode.FENCED_STATE_EPOCH
    await made.write(KEY, update(2, 5))


async def test_a_repeated_initialization_changes_nothing() -> None:
    """The sender had no response, and the group continues meanwhile."""
    made = coordinator(MemoryLog())
    for _ in range(2):
        await made.initialize(KEY, 0, -1)
        await made.write(KEY, update())
    assert (await made.read(KEY, 1)).batches == (ACCEPTED,)
    for _ in range(2):
        await made.initialize(KEY, 1, 7)
    assert await code_of(made.initialize(KEY, 1, 3)) == ErrorCode.FENCED_STATE_EPOCH
    assert await made.read(KEY, 1) == PersistedState(1, 7, ())


async def test_a_late_update_takes_nothing_back() -> None:
    """Of two updates without a response the older one may be repeated last."""
    made = coordinator(MemoryLog())
    await made.initialize(KEY, 0, 0)
    await made.write(KEY, StateUpdate(0, 1, 5, 0, ()))
    await made.write(KEY, StateUpdate(0, 1, 0, 0, (ACCEPTED,)))
    assert await made.read(KEY, 1) == PersistedState(0, 5, ())


async def test_a_share_partition_without_state() -> None:
    made = coordinator(MemoryLog())
    assert await code_of(made.read(KEY, 1)) == ErrorCode.INVALID_REQUEST
    assert await code_of(made.write(KEY, update())) == ErrorCode.INVALID_REQUEST
    await made.delete(KEY)
    assert (await made.summary(KEY, 1)).start_offset == -1


async def test_deletion() -> None:
    log = MemoryLog()
    made = coordinator(log)
    await made.initialize(KEY, 0, 0)
    await made.delete(KEY)
    assert await code_of(coordinator(log).read(KEY, 1)) == ErrorCode.INVALID_REQUEST


async def test_another_broker_is_the_coordinator() -> None:
    made = coordinator(MemoryLog(), elected=False)
    assert await code_of(made.read(KEY, 1)) == ErrorCode.NOT_COORDINATOR
    made.shutdown()
    assert await code_of(made.read(KEY, 1)) == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
async def test_a_failed_append_changes_nothing(error: int, expected: int) -> None:
    log = MemoryLog()
    made = coordinator(log)
    await made.initialize(KEY, 0, 0)
    log.next_error = error
    assert await code_of(made.write(KEY, update())) == expected
    assert (await made.read(KEY, 0)).batches == ()


async def test_after_a_timeout_the_next_record_is_a_snapshot() -> None:
    log = MemoryLog()
    made = coordinator(log)
    await made.initialize(KEY, 0, 0)
    log.next_error = ErrorCode.REQUEST_TIMED_OUT
    assert await code_of(made.write(KEY, update())) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await made.write(KEY, update())
    (partition,) = (each for each in made.partitions.active if each.states)
    assert partition.states[KEY].snapshot_epoch == 1


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,  # of a flush, after the record was written
    ],
)
async def test_a_record_that_is_in_the_log_although_its_append_failed_has_no_effect(
    error: int,
) -> None:
    """The leader got an error for its write, and has released the records since."""
    log, made, first = await held_write()
    log.hold = False
    log.time_out_all(error)
    with pytest.raises(KafkaError):
        await first
    await made.write(KEY, update()._replace(batches=(ACCEPTED._replace(state=0),)))
    stored = await made.read(KEY, 1)
    assert stored.batches == (ACCEPTED._replace(state=0),)
    assert await coordinator(log).read(KEY, 1) == stored


async def test_a_deletion_removes_an_initialization_that_is_in_the_log_although_it_failed() -> None:
    log = MemoryLog()
    made = coordinator(log)
    log.hold = True
    first = spawn(made.initialize(KEY, 1, 40), name="initialize")
    await eventually_async(lambda: log.held)
    log.hold = False
    log.time_out_all(ErrorCode.REQUEST_TIMED_OUT)
    with pytest.raises(KafkaError):
        await first
    for _ in range(2):
        await made.delete(KEY)
    assert (await coordinator(log).summary(KEY, -1)).start_offset == -1
    assert log.appends == 2


async def test_requests_for_one_key_wait_for_each_other() -> None:
    log, made, first = await held_write()
    second = spawn(made.write(KEY, update()), name="write")
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(log.held) == 1
    log.commit_all()
    await first
    await eventually_async(lambda: log.held)
    assert not second.done()
    log.commit_all()
    await second


def test_the_key_of_find_coordinator() -> None:
    assert coordinator_key(KEY) == "group:AAAAAAAAAAAAAAAAAAAAAA:2"


async def test_records_that_are_not_needed_are_deleted(caplog: pytest.LogCaptureFixture) -> None:
    deleted: list[tuple[int, int]] = []
    clock = ManualClock()
    made = ShareCoordinator(
        ShareCoordinatorSettings(1, 3, cold_snapshot_interval_ms=1000),
        MemoryLog(),
        ManualTimer(),
        clock,
        lambda callback: callback(),
        lambda partition, offset: deleted.append((partition, offset)),
    )
    made.partitions.elect(0, 1)
    idle = KEY._replace(partition=3)
    await made.initialize(idle, 0, 0)
    await made.initialize(KEY, 0, 0)
    for _ in range(5):  # the fourth is a snapshot
        await made.write(KEY, update())
    made.prune()
    assert deleted == []  # the idle key needs the first record
    await made.snapshot_cold()
    made.prune()
    assert deleted == []  # it is not idle for long
    clock.advance(1001)
    await made.snapshot_cold()
    for _ in range(2):
        made.prune()
    assert deleted == [(0, 5)]
    await made.snapshot_cold()  # nothing to gain
    (partition,) = made.partitions.active
    assert partition.end_offset == 8
    assert await made.read(idle, 0) == PersistedState(0, 0, ())


async def test_records_that_cannot_be_deleted(caplog: pytest.LogCaptureFixture) -> None:
    def fail(partition: int, offset: int) -> None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    made = ShareCoordinator(
        ShareCoordinatorSettings(1, 3),
        MemoryLog(),
        ManualTimer(),
        ManualClock(),
        lambda call: call(),
        fail,
    )
    made.partitions.elect(0, 1)
    for epoch in range(2):
        await made.initialize(KEY, epoch, 0)
    with caplog.at_level("INFO"):
        made.prune()
    assert "are not deleted" in caplog.text


async def test_writes_that_wait_become_one_record() -> None:
    """They would wait for one append after the other, on a partition with many members."""
    log = MemoryLog()
    made = coordinator(log)
    await made.initialize(KEY, 0, 0)
    log.hold = True
    before = log.appends
    rows = [StateBatch(offset, offset, 2, 1) for offset in range(20)]
    tasks = [
        spawn(made.write(KEY, StateUpdate(0, 1, 0, row.first_offset, (row,))), name="write")
        for row in rows
    ]
    stale = spawn(made.write(KEY, update(-1, 0)), name="a write of the leader before")
    await eventually_async(lambda: log.held)
    log.hold = False
    log.commit_all()
    await asyncio.gather(*tasks)
    assert log.appends == before + 1
    assert await code_of(stale) == ErrorCode.FENCED_LEADER_EPOCH
    expected = PersistedState(0, 0, (StateBatch(0, 19, 2, 1),))
    assert await made.read(KEY, 1) == expected
    again = coordinator(log)
    assert await again.read(KEY, 1) == expected
    assert (await again.summary(KEY, 1)).delivery_complete_count == 19


async def test_writes_that_wait_fail_together() -> None:
    log, made, first = await held_write()
    tasks = [spawn(made.write(KEY, update()), name="write") for _ in range(3)]
    await asyncio.sleep(0)
    log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    log.commit_all()
    await first
    for task in tasks:
        assert await code_of(task) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_request_that_is_cancelled_takes_no_other_write_with_it() -> None:
    log, made, first = await held_write()
    second, third = (spawn(made.write(KEY, update()), name="write") for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    await asyncio.wait((first, second))
    log.hold = False
    log.commit_all()
    await third
    await made.write(KEY, update())


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
