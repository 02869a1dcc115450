"""A log that continues behind records in remote storage, with their leader epochs and producers."""

from __future__ import annotations

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import CorruptFile
from ottla.storage.log.log import Log
from ottla.storage.log.log_info import RemoteLogState
from ottla.storage.producer.producer_entry import ProducerEntry
from ottla.storage.producer.producer_snapshot import encode_snapshot
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, batch_of

EPOCHS = [(0, 0), (3, 70)]


def snapshot(transaction: int = -1) -> bytes:
    entry = ProducerEntry(9)
    entry.epoch, entry.last_timestamp, entry.transaction_first_offset = 4, NOW_MS, transaction
    return encode_snapshot([entry])


class Disk:
    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.log = self.open()
        self.log.append(batch_of(2), leader_epoch=1, now_ms=NOW_MS)

    def open(self) -> Log:
        config = LogConfig(remote_storage_enable=True)
        self.logs = LogManager(["/disk"], config, self.fs)
        self.logs.load(NOW_MS)
        self.log = self.logs.get_or_create("t", 0, now_ms=NOW_MS)
        return self.log


def check(log: Log, offset: int = 100) -> None:
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (
        *(10, offset, offset),
    )
    assert log.leader_epochs.entries == EPOCHS
    assert log.producer_state.producers[9].epoch == 4
    assert log.producer_state.snapshots == [offset]


def test_the_state_survives_a_restart() -> None:
    disk = Disk()
    disk.log.truncator.truncate_fully_and_start_at(
        100, 10, RemoteLogState(EPOCHS, snapshot(), NOW_MS)
    )
    check(disk.log)
    disk.logs.checkpoint_log_starts()
    disk.log.close()
    # Epochs that end below the log start are removed at the start, as in the log before.
    reopened = disk.open()
    assert (reopened.log_start_offset, reopened.local_log_start_offset) == (10, 100)
    assert reopened.leader_epochs.entries == [(0, 10), (3, 70)]
    assert reopened.producer_state.producers[9].epoch == 4


def test_an_open_transaction_limits_the_last_stable_offset() -> None:
    log = Disk().log
    log.truncator.truncate_fully_and_start_at(100, 10, RemoteLogState(EPOCHS, snapshot(90), NOW_MS))
    assert log.producer_state.first_unstable_offset == 90
    assert log.last_stable_offset == 90


def test_twice_at_the_same_offset() -> None:
    log = Disk().log
    for _ in range(2):
        log.truncator.truncate_fully_and_start_at(
            100, 10, RemoteLogState(EPOCHS, snapshot(), NOW_MS)
        )
        check(log)
    log.truncator.truncate_fully_and_start_at(100, 10, RemoteLogState(EPOCHS, None, NOW_MS))
    assert log.producer_state.is_empty
    assert log.producer_state.snapshots == []


def test_at_the_base_offset_of_a_damaged_segment() -> None:
    """Which is removed together with the producer snapshot at its base offset."""
    log = Disk().log
    log.roll(NOW_MS)
    log.append(batch_of(2), leader_epoch=1, now_ms=NOW_MS)
    assert log.segments.base_offsets == [0, 2]
    list(log.segments)[-1].log.truncate(20)
    log.truncator.truncate_fully_and_start_at(2, 0, RemoteLogState(EPOCHS, snapshot(), NOW_MS))
    assert (log.log_start_offset, log.log_end_offset, log.segments.base_offsets) == (0, 2, [2])
    assert log.producer_state.producers[9].epoch == 4
    assert log.producer_state.snapshots == [2]


def test_a_corrupt_snapshot_changes_nothing() -> None:
    log = Disk().log
    with pytest.raises(CorruptFile):
        log.truncator.truncate_fully_and_start_at(
            100, 10, RemoteLogState(EPOCHS, b"\x00\x01", NOW_MS)
        )
    assert (log.log_start_offset, log.log_end_offset) == (0, 2)
    assert log.leader_epochs.entries == [(1, 0)]
    assert log.read(0, 1_000, up_to=2).slice is not None
