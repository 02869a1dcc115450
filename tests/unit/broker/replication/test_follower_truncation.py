"""Where a follower truncates, and a leader that changes while it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from ottla.broker.replication.follower_truncation import (
    FollowerTruncation,
    has_uncommitted_records_without_epoch,
    truncation_offset,
)
from ottla.broker.replication.partition import Partition
from ottla.broker.runtime.tasks import WorkerPoolClosed
from ottla.storage.log.log import Log
from ottla.storage.log.truncation import LogTruncator
from tests.doubles.replicas import Replicas

LEADER, FOLLOWER = 1, 2
BOTH = (LEADER, FOLLOWER)


def log_of_three_epochs(replicas: Replicas) -> Log:
    """Epoch 1 has the offsets 0 to 2, epoch 3 the offsets 3 to 6, epoch 4 the offset 7."""
    for epoch, count in ((1, 3), (3, 4), (4, 1)):
        replicas.lead(epoch=epoch, replicas=BOTH, isr=BOTH)
        replicas.append(count)
    return replicas.log()


@pytest.mark.parametrize(
    ("leader_epoch", "leader_end", "offset"),
    [
        (4, 9, 8),  # the leader has more of our last epoch
        (4, 7, 7),
        (3, 5, 5),  # less of an earlier epoch
        (3, 20, 7),  # more of an earlier epoch: ours ends first
        (2, 5, 3),  # an epoch that we do not have: the end of the one before
        (2, 2, 2),
        (0, 2, 0),  # below all our epochs: nothing is common
        (9, 5, 5),  # above all of them: the leader's end is taken
        (9, 100, 8),
    ],
)
def test_offset_of_the_truncation(leader_epoch: int, leader_end: int, offset: int) -> None:
    log = log_of_three_epochs(Replicas(broker_id=FOLLOWER))
    assert truncation_offset(log, leader_epoch, leader_end) == offset


def test_records_without_epochs_above_the_high_watermark() -> None:
    replicas = Replicas(broker_id=FOLLOWER)
    log = log_of_three_epochs(replicas)
    assert log.high_watermark < log.log_end_offset
    assert not has_uncommitted_records_without_epoch(log)
    log.leader_epochs.clear()
    assert has_uncommitted_records_without_epoch(log)
    log.update_high_watermark(log.log_end_offset)
    assert not has_uncommitted_records_without_epoch(log)


def test_epoch_0_is_an_epoch() -> None:
    replicas = Replicas(broker_id=FOLLOWER)
    replicas.lead(epoch=0, replicas=BOTH, isr=BOTH)
    replicas.append(2)
    log = replicas.log()
    assert (log.leader_epochs.latest_epoch, log.high_watermark, log.log_end_offset) == (0, 0, 2)
    assert not has_uncommitted_records_without_epoch(log)


async def at_once(work: Callable[[], None]) -> None:
    work()


def truncate(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Replicas, Partition], object]
) -> tuple[Log, list[Log], bool]:
    """Truncates to 3 in two steps; ``meanwhile`` happens after the first."""
    replicas = Replicas(broker_id=FOLLOWER)
    log = log_of_three_epochs(replicas)
    partition = replicas.follow(LEADER, epoch=5, replicas=BOTH, isr=[LEADER])
    truncated: list[Log] = []

    def prepare(_: LogTruncator, offset: int, *, keep_committed: bool) -> Iterator[None]:
        assert offset == 3
        assert keep_committed
        yield
        meanwhile(replicas, partition)
        yield

    monkeypatch.setattr(LogTruncator, "prepare", prepare)
    truncation = FollowerTruncation(truncated.append, at_once)
    done = asyncio.run(truncation.truncate_to(partition, log, 3))
    return log, truncated, done


def test_truncation_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    log, truncated, done = truncate(monkeypatch, lambda *_: None)
    assert (log.log_end_offset, truncated, done) == (3, [log], True)


def test_a_leader_that_is_elected_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have what the former one had not; nothing is truncated for the former one."""

    def elected(replicas: Replicas, _: Partition) -> None:
        replicas.follow(3, epoch=6, replicas=(*BOTH, 3), isr=[3])

    log, truncated, done = truncate(monkeypatch, elected)
    assert (log.log_end_offset, truncated, done) == (8, [], False)


def test_a_follower_that_is_elected_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def elected(replicas: Replicas, _: Partition) -> None:
        replicas.lead(epoch=6, replicas=BOTH, isr=[FOLLOWER])
        replicas.append(1)

    log, truncated, done = truncate(monkeypatch, elected)
    assert (log.log_end_offset, truncated, done) == (9, [], False)


def test_a_replica_that_is_removed_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def removed(_: Replicas, partition: Partition) -> None:
        partition.log = None

    log, truncated, done = truncate(monkeypatch, removed)
    assert (log.log_end_offset, truncated, done) == (8, [], False)


def test_a_replica_that_is_deleted_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files may be gone by then; the log directory must not go offline for that."""

    def deleted(replicas: Replicas, partition: Partition) -> None:
        replicas.leader_and_isr.stop_stray(partition.key)
        replicas.logs.delete_async(*partition.key)
        replicas.logs.purge(1 << 60)

    log, truncated, done = truncate(monkeypatch, deleted)
    assert (truncated, done) == ([], False)
    assert not log.log_directory.is_offline


def test_a_truncation_below_the_high_watermark_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replicas = Replicas(broker_id=FOLLOWER)
    log = log_of_three_epochs(replicas)
    log.update_high_watermark(7)
    partition = replicas.follow(LEADER, epoch=5, replicas=BOTH, isr=[LEADER])
    truncated: list[Log] = []
    truncation = FollowerTruncation(truncated.append, at_once)
    asyncio.run(truncation.truncate_on_diverging_epoch(partition, 4, 7))
    assert "below high watermark" not in caplog.text
    asyncio.run(truncation.truncate_on_diverging_epoch(partition, 3, 5))
    assert "Truncating t-0 to offset 5 below high watermark 7" in caplog.text
    assert log.log_end_offset == 3  # the batch that contains it is removed as a whole
    assert truncated == [log, log]
    truncation.truncate_fully_and_start_at(log, 40)
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    assert truncated == [log] * 3


def flushed_follower(replicas: Replicas) -> tuple[Partition, Log]:
    log = log_of_three_epochs(replicas)
    log.flusher.flush()
    return replicas.follow(LEADER, epoch=5, replicas=BOTH, isr=[LEADER]), log


def test_the_recovery_point_is_lowered_in_a_worker_thread() -> None:
    replicas = Replicas(broker_id=FOLLOWER)
    partition, log = flushed_follower(replicas)
    works: list[int] = []

    async def worker(work: Callable[[], None]) -> None:
        work()
        works.append(log.offsets.recovery_point_on_disk)

    assert asyncio.run(FollowerTruncation(lambda _: None, worker).truncate_to(partition, log, 3))
    assert works == [3]
    assert (log.log_end_offset, log.recovery_point) == (3, 3)


def test_a_leader_that_is_elected_while_the_recovery_point_is_written() -> None:
    replicas = Replicas(broker_id=FOLLOWER)
    partition, log = flushed_follower(replicas)

    async def worker(work: Callable[[], None]) -> None:
        work()
        replicas.follow(3, epoch=6, replicas=(*BOTH, 3), isr=[3])

    truncation = FollowerTruncation(lambda _: None, worker)
    assert not asyncio.run(truncation.truncate_to(partition, log, 3))
    assert log.log_end_offset == log.recovery_point == log.offsets.recovery_point_on_disk == 8


def test_a_broker_that_stops_truncates_nothing() -> None:
    replicas = Replicas(broker_id=FOLLOWER)
    partition, log = flushed_follower(replicas)

    async def worker(work: Callable[[], None]) -> None:
        raise WorkerPoolClosed

    truncation = FollowerTruncation(lambda _: None, worker)
    assert not asyncio.run(truncation.truncate_to(partition, log, 3))
    assert log.log_end_offset == log.offsets.recovery_point_on_disk == 8
