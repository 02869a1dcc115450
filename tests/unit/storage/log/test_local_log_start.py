"""The local log start offset (KIP-405): what stays on disk when segments are in remote storage."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from ottla.protocol.steps import run_at_once
from ottla.storage.errors import DiskFull, OffsetInRemoteStorage, OffsetOutOfRange
from ottla.storage.files.layout import LEADER_EPOCH_CHECKPOINT
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, batch_of, manager_on, new_log, plain

HOUR = 3_600_000
LATER = NOW_MS + 1_000 * HOUR


def filled(fs: MemoryFileSystem | None = None, **settings: object) -> Log:
    """Ten segments of one batch with two records, an hour apart; topics are never that small."""
    settings = {"segment_ms": 1, "retention_ms": -1, "remote_storage_enable": True, **settings}
    log = new_log(fs, **settings)
    for number in range(10):
        batch = batch_of(plain(2, NOW_MS + number * HOUR))
        log.append(batch, leader_epoch=number // 5, now_ms=NOW_MS)
    log.update_high_watermark(20)
    return log


def test_nothing_leaves_the_disk_before_it_is_in_remote_storage() -> None:
    log = filled(local_retention_ms=HOUR)
    assert run_at_once(log.retention.delete_old_segments(LATER)) == 0
    log.offsets.highest_remote_offset = 6  # in the middle of the fourth segment
    assert run_at_once(log.retention.delete_old_segments(LATER)) == 3
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 6)
    assert log.segments.base_offsets[0] == 6


def test_what_is_copied_and_young_stays() -> None:
    log = filled(local_retention_ms=HOUR)
    log.offsets.highest_remote_offset = 15
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + 4 * HOUR)) == 3


def test_the_active_segment_is_closed_when_it_is_old_so_that_it_is_copied() -> None:
    log = filled(local_retention_ms=HOUR)
    log.offsets.highest_remote_offset = 15
    run_at_once(log.retention.delete_old_segments(LATER))
    assert log.segments.base_offsets == [16, 18]  # 16 is not copied, so 18 can wait
    log.offsets.highest_remote_offset = 17
    assert run_at_once(log.retention.delete_old_segments(LATER)) == 1
    assert log.segments.base_offsets == [18, 20]
    assert run_at_once(log.retention.delete_old_segments(LATER)) == 0
    log.offsets.highest_remote_offset = 19
    assert run_at_once(log.retention.delete_old_segments(LATER)) == 1
    assert log.segments.base_offsets == [20]
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 20)
    assert run_at_once(log.retention.delete_old_segments(LATER)) == 0


def test_by_size() -> None:
    log = filled()
    one = log.segments.first.size
    log.update_config(log.config.replace(local_retention_bytes=4 * one))
    log.offsets.highest_remote_offset = 7
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 4
    log.offsets.highest_remote_offset = 19
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 2
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 12)


def test_the_limits_of_retention_are_those_of_the_disk_without_others() -> None:
    log = filled(retention_ms=HOUR)
    log.offsets.highest_remote_offset = 15
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + 4 * HOUR)) == 3
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 6)


def test_records_below_the_log_start_are_deleted_also_if_they_are_not_copied() -> None:
    log = filled(local_retention_ms=-1)
    log.truncator.delete_records_before(7)
    assert (log.log_start_offset, log.local_log_start_offset) == (7, 7)
    # After a crash they would be looked for in remote storage.
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 0
    log.offsets.durable_log_start = 5
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 2
    log.offsets.durable_log_start = 7
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 1


def test_records_in_remote_storage_stay_in_the_log_when_it_is_disabled() -> None:
    log = filled(local_retention_ms=HOUR)
    log.offsets.highest_remote_offset = 7
    run_at_once(log.retention.delete_old_segments(LATER))
    first = log.segments.first.base_offset
    assert (log.log_start_offset, log.local_log_start_offset) == (0, first)
    log.update_config(log.config.replace(remote_storage_enable=False))
    log.offsets.advance_local_log_start(first + 2)
    assert run_at_once(log.retention.delete_old_segments(NOW_MS)) == 1
    assert (log.log_start_offset, log.local_log_start_offset) == (0, first + 2)
    log.update_config(log.config.replace(retention_ms=1))
    assert run_at_once(log.retention.delete_old_segments(LATER)) > 0
    assert log.log_start_offset == log.segments.first.base_offset


def test_without_copies_the_log_start_advances() -> None:
    log = filled(retention_ms=HOUR, local_retention_ms=1, remote_log_copy_disable=True)
    assert run_at_once(log.retention.delete_old_segments(NOW_MS + 4 * HOUR)) == 3
    assert (log.log_start_offset, log.local_log_start_offset) == (6, 6)


def test_a_read_below_the_local_log_start_says_where_the_records_are() -> None:
    log = filled(local_retention_ms=HOUR)
    log.offsets.highest_remote_offset = 7
    run_at_once(log.retention.delete_old_segments(LATER))
    log.truncator.delete_records_before(3)
    with pytest.raises(OffsetInRemoteStorage):
        log.read(3, 1_000, up_to=20)
    with pytest.raises(OffsetInRemoteStorage):
        log.read(7, 1_000, up_to=20)
    with pytest.raises(OffsetOutOfRange) as deleted:
        log.read(2, 1_000, up_to=20)
    assert not isinstance(deleted.value, OffsetInRemoteStorage)
    assert log.read(8, 1_000, up_to=20).slice is not None


def test_leader_epochs_of_remote_records_stay() -> None:
    log = filled(local_retention_ms=HOUR)
    log.offsets.highest_remote_offset = 17
    run_at_once(log.retention.delete_old_segments(LATER))
    assert log.local_log_start_offset == 18
    assert log.leader_epochs.entries == [(0, 0), (1, 10)]


def test_both_offsets_survive_a_restart() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(
        fs, segment_ms=1, retention_ms=-1, remote_storage_enable=True, local_retention_ms=HOUR
    )
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(10):
        append(log, plain(2, NOW_MS + number * HOUR))
    log.update_high_watermark(20)
    log.truncator.delete_records_before(1)
    log.offsets.highest_remote_offset = 9
    assert run_at_once(log.retention.delete_old_segments(LATER)) == 5
    log.flusher.flush()
    manager.checkpoint_log_starts()

    manager = manager_on(
        fs.after_power_failure(),
        segment_ms=1,
        retention_ms=-1,
        remote_storage_enable=True,
        local_retention_ms=HOUR,
    )
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    assert (log.log_start_offset, log.local_log_start_offset) == (1, 10)
    assert log.log_end_offset == 20
    assert log.offsets.highest_remote_offset == -1  # the remote log metadata says it
    assert run_at_once(log.retention.delete_old_segments(LATER)) == 0


def test_truncation_below_the_local_log_start_keeps_the_remote_part() -> None:
    log = filled(local_retention_ms=HOUR)
    log.offsets.highest_remote_offset = 13
    run_at_once(log.retention.delete_old_segments(LATER))
    assert log.local_log_start_offset == 14

    assert log.truncator.truncate_to(12)

    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 12, 12)
    assert log.leader_epochs.entries == [(0, 0), (1, 10)]
    assert log.offsets.highest_remote_offset == 11
    assert append(log).first_offset == 12


@pytest.mark.parametrize(
    ("offset", "epochs"), [(12, [(0, 2), (1, 10)]), (10, [(0, 2)]), (3, [(0, 2)]), (2, []), (1, [])]
)
def test_truncation_below_the_local_log_start_keeps_the_epochs_of_what_stays(
    offset: int, epochs: list[tuple[int, int]]
) -> None:
    """The log starts at 2, unless less than that stays."""
    log = filled(local_retention_ms=HOUR)
    log.offsets.highest_remote_offset = 13
    run_at_once(log.retention.delete_old_segments(LATER))
    log.truncator.delete_records_before(2)
    log.truncator.truncate_to(offset)
    assert log.log_start_offset == min(offset, 2)
    assert log.leader_epochs.entries == epochs


@pytest.mark.parametrize("writes", range(2))
def test_truncation_below_the_local_log_start_on_a_full_disk_is_repeated(writes: int) -> None:
    """The leader epochs of what is in remote storage are not lost in between: it is found by
    them."""
    fs = MemoryFileSystem()
    log = filled(fs, local_retention_ms=HOUR)
    log.offsets.highest_remote_offset = 13
    run_at_once(log.retention.delete_old_segments(LATER))
    fs.fail("pwrite", errno.ENOSPC, path_part=LEADER_EPOCH_CHECKPOINT, after=writes)
    with suppress(DiskFull):
        log.truncator.truncate_to(12)
    fs.heal()
    log.truncator.truncate_to(12)
    assert (log.log_start_offset, log.log_end_offset) == (0, 12)
    assert log.leader_epochs.entries == [(0, 0), (1, 10)]


def test_truncation_above_it_lowers_what_is_known_to_be_remote() -> None:
    log = filled(local_retention_ms=HOUR)
    log.offsets.highest_remote_offset = 13
    assert log.truncator.truncate_to(12)
    assert log.offsets.highest_remote_offset == 11
    assert log.local_log_start_offset == 0


def test_a_replica_may_begin_above_what_is_in_remote_storage() -> None:
    log = filled()
    log.truncator.truncate_fully_and_start_at(30, 5)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (5, 30, 30)
    with pytest.raises(OffsetInRemoteStorage):
        log.read(5, 1_000, up_to=30)


def test_without_tiered_storage_both_are_the_same() -> None:
    log = filled(remote_storage_enable=False, local_retention_ms=1, retention_ms=HOUR)
    run_at_once(log.retention.delete_old_segments(NOW_MS + 4 * HOUR))
    assert (log.log_start_offset, log.local_log_start_offset) == (6, 6)
    log.truncator.truncate_to(3)
    assert (log.log_start_offset, log.local_log_start_offset) == (3, 3)
