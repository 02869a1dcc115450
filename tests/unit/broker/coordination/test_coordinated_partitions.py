"""A load that fails, and what follows it."""

from collections.abc import Callable, Iterator

import pytest

from ottla.broker.groups.log.partition import GroupPartition
from ottla.protocol.errors import ErrorCode
from ottla.storage.errors import ResourceExhausted
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
    assert setup.coordinator.commits.fetch(GROUP, None)[0] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
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
