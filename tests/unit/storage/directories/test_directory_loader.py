"""Opening what is in a log directory, and leaving alone what is not a log."""

import pytest

from ottla.storage.directories.log_manager import LogManager
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, manager_on


def test_only_directories_of_partitions_are_opened() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    manager.get_or_create("t", 0, now_ms=NOW_MS)
    for name in ("lost+found", "remote-log-index-cache", "notes", "t-"):
        fs.make_directory(f"/disk/{name}")
    manager.shutdown(NOW_MS)
    again = manager_on(fs)
    assert [log.name for log in again.logs()] == ["t-0"]


def test_the_marker_counts_once_and_is_gone_for_good() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    append(manager.get_or_create("t", 0, now_ms=NOW_MS), 3)
    manager.shutdown(NOW_MS)
    assert manager_on(fs).logs()[0].recovery_point == 3
    after = fs.after_power_failure()
    assert not after.exists("/disk/.kafka_cleanshutdown"), "its removal reached the disk"


def test_an_unclean_directory_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    for partition in range(3):
        append(manager.get_or_create("t", partition, now_ms=NOW_MS))
    again = manager_on(fs.after_kill())
    assert len(again.logs()) == 3
    text = caplog.text
    assert text.count("was not shut down cleanly") == 1


def test_a_new_directory_is_made_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager = LogManager(["/new/place"], fs=fs)
    manager.load(NOW_MS)
    assert manager.logs() == []
    assert fs.exists("/new/place")
    assert caplog.text == ""


def test_high_watermarks_and_log_starts_come_from_their_checkpoints() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 9)
    log.truncator.delete_records_before(4)
    log.offsets.high_watermark = 7
    manager.checkpoint_all()
    (again,) = manager_on(fs.after_kill()).logs()
    assert (again.log_start_offset, again.high_watermark, again.log_end_offset) == (4, 7, 9)
