"""Writing validated batches: leader epochs and `flush.messages`; rolling is in `test_local_log`."""

import errno

import pytest

from ottla.storage.errors import LogDirectoryOffline
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, batch_of, new_log


def test_a_new_leader_epoch_begins_where_its_first_batch_is() -> None:
    log = new_log()
    for epoch in (0, 0, 4):
        log.append(batch_of(2), leader_epoch=epoch, now_ms=NOW_MS)
    assert log.leader_epochs.entries == [(0, 0), (4, 4)]


def test_an_unknown_leader_epoch_is_not_assigned() -> None:
    log = new_log()
    log.assign_epoch(-1, 0)
    assert log.leader_epochs.entries == []


def test_an_epoch_that_cannot_be_written_takes_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    fs.fail("open", errno.EIO, path_part="leader-epoch-checkpoint")
    with pytest.raises(LogDirectoryOffline):
        log.append(batch_of(), leader_epoch=1, now_ms=NOW_MS)
    assert log.log_end_offset == 0


def test_flush_messages_limits_what_is_not_on_disk() -> None:
    log = new_log(flush_messages=4)
    points = []
    for _ in range(4):
        append(log, 2)
        points.append(log.recovery_point)
    assert points == [0, 4, 4, 8]
    both = batch_of(3) + batch_of(3)
    log.append(both, leader_epoch=0, now_ms=NOW_MS)
    assert log.recovery_point == 14
