"""A roll that fails at any of its calls: nothing acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import errno

import pytest

from ottla.storage.errors import StorageError
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, ROOT, append, fetched, manager_on

SETTINGS: dict[str, object] = {
    "segment_bytes": 1000,
    "index_interval_bytes": 100,
    "preallocate": True,
}
OPERATIONS = ("open", "pwrite", "truncate", "replace")


def send(log: Log, sequence: int, size: int = 20) -> int:
    """Appends one batch of a producer and returns its offset. An error is that of the append."""
    records = [(NOW_MS, b"k", bytes(size), [])]
    info = append(log, records, producer_id=7, producer_epoch=0, base_sequence=sequence)
    return info.first_offset


def rolls_at_call(operation: str, number: int, code: int, *, clean: bool) -> bool:
    """Fails one call of a roll, retries, appends more, restarts. False without such a call."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, **SETTINGS)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    acknowledged = [send(log, sequence) for sequence in range(5)]
    fault = fs.fail(operation, code, after=number)
    sequence = 5
    try:
        acknowledged.append(send(log, sequence, size=800))
        sequence += 1
    except StorageError:
        pass
    reached = fault.times == 0
    fs.heal()
    manager.check_free_bytes()
    for later in range(sequence, sequence + 3):
        try:
            acknowledged.append(send(log, later))
        except StorageError:
            assert manager.offline_directories == [ROOT]
            break
    if clean:
        manager.shutdown(NOW_MS)
    again = manager_on(fs.after_kill(), **SETTINGS).get("t", 0)
    assert again is not None
    offsets = [record.offset for record in fetched(again)]
    assert offsets == list(range(again.log_end_offset)), "without gaps or repetitions"
    assert acknowledged == list(range(len(acknowledged)))
    assert len(offsets) >= len(acknowledged), "nothing acknowledged is lost"
    assert again.producer_state.producers[7].last_sequence == len(offsets) - 1
    assert send(again, len(offsets)) == len(offsets)
    return reached


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_roll_that_fails_at_any_call(operation: str, code: int, clean: bool) -> None:
    number = 0
    while rolls_at_call(operation, number, code, clean=clean):
        number += 1
    assert number > 0, "the roll makes such calls"


def test_a_failed_roll_leaves_no_file_of_the_new_segment() -> None:
    fs = MemoryFileSystem()
    log = manager_on(fs, **SETTINGS).get_or_create("t", 0, now_ms=NOW_MS)
    for sequence in range(5):
        send(log, sequence)
    fs.fail("open", errno.ENOSPC, path_part="00000000000000000005.timeindex")
    with pytest.raises(StorageError):
        send(log, 5, size=800)
    left = [path for path in fs.paths() if "00000000000000000005" in path]
    assert left == [f"{ROOT}/t-0/00000000000000000005.snapshot"]
    assert log.segments.base_offsets == [0]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("base_offset", [2, 4])
def test_an_empty_segment_below_the_end_is_deleted_at_load(base_offset: int, clean: bool) -> None:
    """Brokers before left such segments behind, at the end of the log or between others."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, **SETTINGS)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for sequence in range(20):
        send(log, sequence)
    assert len(log.segments) > 1
    manager.checkpoint_all()
    if clean:
        manager.shutdown(NOW_MS)
    after = fs.after_kill()
    name = f"{ROOT}/t-0/{base_offset:020}.log"
    after.close(after.open(name, 0o102))
    again = manager_on(after, **SETTINGS).get("t", 0)
    assert again is not None
    assert base_offset not in again.segments.base_offsets
    assert not after.exists(name)
    assert [record.offset for record in fetched(again)] == list(range(20))


def test_of_two_segments_with_the_same_offsets_the_last_one_counts() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_bytes=10_000)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for sequence in range(5):
        send(log, sequence)
    active = log.local.active
    log.roll(NOW_MS)
    for sequence in range(5, 8):
        send(log, sequence)
    served = fetched(log)
    # What the first segment had, before the roll failed and the records were written again.
    stale = fs.content(log.local.active.log.path)
    manager.shutdown(NOW_MS)
    after = fs.after_kill()
    after.overwrite(active.log.path, after.content(active.log.path) + stale)
    again = manager_on(after, segment_bytes=10_000).get("t", 0)
    assert again is not None
    assert again.segments.base_offsets == [0, 5]
    assert fetched(again) == served
    assert len(list(again.batches(0))) == 8
