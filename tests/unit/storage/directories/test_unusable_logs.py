"""A start with a log of which one file cannot be used: the disk has not failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import LogDirectoryOffline
from ottla.storage.files.checkpoints import read_offset_checkpoint
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.layout import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
DENIED = (errno.EACCES, errno.EPERM)


def started(disk: str, fs: RealFileSystem | MemoryFileSystem) -> LogManager:
    manager = LogManager([disk], CONFIG, fs)
    manager.load(NOW_MS)
    return manager


def stop(manager: LogManager) -> None:
    manager.shutdown(NOW_MS)


def with_two_logs(disk: str, fs: RealFileSystem | MemoryFileSystem) -> list[str]:
    """Names of the segments of t-0 in a disk that was stopped cleanly."""
    manager = started(disk, fs)
    for topic in ("t", "other"):
        log = manager.get_or_create(topic, 0, config=CONFIG, now_ms=NOW_MS)
        for _ in range(12):
            append(log)
        log.update_high_watermark(12)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    log.truncator.delete_records_before(1)
    stop(manager)
    return sorted(name for name in fs.list_files(f"{disk}/t-0") if name.endswith(".log"))


def check_one_is_unusable(manager: LogManager, file: str, reason: str) -> None:
    assert manager.offline_directories == []
    path = file.rpartition("/")[0]
    assert manager.unusable_logs == {path: f"{file}: {reason}"}
    assert manager.get("t", 0) is None
    for is_new in (False, True):
        with pytest.raises(LogDirectoryOffline, match="t-0 may be there"):
            manager.get_or_create("t", 0, now_ms=NOW_MS, is_new=is_new)
    other = manager.get_or_create("other", 0, now_ms=NOW_MS)
    append(other)
    assert other.log_end_offset == 13


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_segment_is_on_a_disk_that_is_not_mounted(tmp_path: Path, which: int) -> None:
    disk, fs = tmp_path / "disk", RealFileSystem()
    name = with_two_logs(str(disk), fs)[which]
    segment, elsewhere = disk / "t-0" / name, tmp_path / name
    names = sorted(each.name for each in (disk / "t-0").iterdir())
    segment.rename(elsewhere)
    segment.symlink_to(elsewhere)
    away = elsewhere.rename(tmp_path / "away")

    manager = started(str(disk), fs)
    reason = f"a symbolic link to {elsewhere}, which is not there"
    check_one_is_unusable(manager, str(segment), reason)
    manager.checkpoint_all()
    stop(manager)
    assert sorted(each.name for each in (disk / "t-0").iterdir()) == names

    away.rename(elsewhere)
    manager = started(str(disk), fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1, 12, 12)
    assert manager.unusable_logs == {}
    stop(manager)


@pytest.mark.parametrize("code", DENIED)
@pytest.mark.parametrize("part", [".log", "leader-epoch-checkpoint"])
def test_one_file_belongs_to_another_user(code: int, part: str) -> None:
    fs = MemoryFileSystem()
    with_two_logs("/disk", fs)
    before = fs.list_files("/disk/t-0")
    file = f"/disk/t-0/{max(name for name in before if name.endswith(part))}"
    fs.fail("open", code, path_part=file, times=1_000)
    manager = started("/disk", fs)
    check_one_is_unusable(manager, file, os.strerror(code))
    stop(manager)
    assert fs.list_files("/disk/t-0") == before


def test_its_offsets_stay_in_the_checkpoints(tmp_path: Path) -> None:
    disk, fs = str(tmp_path / "disk"), RealFileSystem()
    name = with_two_logs(disk, fs)[-1]
    files = (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)
    before = [read_offset_checkpoint(fs, f"{disk}/{file}")["t", 0] for file in files]
    segment = Path(disk, "t-0", name)
    segment.unlink()
    segment.symlink_to(tmp_path / "nowhere")
    manager = started(disk, fs)
    append(manager.get_or_create("other", 0, now_ms=NOW_MS))
    manager.checkpoint_all()
    stop(manager)
    assert [read_offset_checkpoint(fs, f"{disk}/{file}")["t", 0] for file in files] == before
    # It may not have been recovered.
    assert started(disk, fs).unclean_start
