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
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from ottla.storage.files.set_aside import Note, Reason
from ottla.storage.recovery.directory_repair import NOT_THERE
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
DENIED = (errno.EACCES, errno.EPERM)


def started(disk: str, fs: RealFileSystem | MemoryFileSystem, *others: str) -> LogManager:
    manager = LogManager([disk, *others], CONFIG, fs)
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
    reason = f"a symbolic link to {elsewhere}, which {NOT_THERE}"
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


def in_a_circle(segment: Path) -> None:
    segment.unlink()
    segment.symlink_to(segment.name)


def away(path: Path) -> None:
    """The path is a link to a disk that is not mounted."""
    path.rename(path.with_name(f"{path.name}.away"))
    path.symlink_to(path.parent / "nowhere")


def test_a_segment_is_a_link_in_a_circle(tmp_path: Path) -> None:
    disk, fs = tmp_path / "disk", RealFileSystem()
    segment = disk / "t-0" / with_two_logs(str(disk), fs)[0]
    before = sorted(each.name for each in (disk / "t-0").iterdir())
    in_a_circle(segment)
    manager = started(str(disk), fs)
    check_one_is_unusable(manager, str(segment), f"a symbolic link to {segment}, which {NOT_THERE}")
    stop(manager)
    assert sorted(each.name for each in (disk / "t-0").iterdir()) == before


def test_its_directory_is_on_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    """Otherwise the partition would begin empty on another disk."""
    disk, fs = tmp_path / "disk", RealFileSystem()
    with_two_logs(str(disk), fs)
    path = disk / "t-0"
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "nowhere")
    manager = started(str(disk), fs, str(tmp_path / "second"))
    text = f"{path}: a symbolic link to {tmp_path / 'nowhere'}, which {NOT_THERE}"
    assert manager.unusable_logs == {str(path): text}
    for is_new in (False, True):
        with pytest.raises(LogDirectoryOffline, match="t-0 may be there"):
            manager.get_or_create("t", 0, now_ms=NOW_MS, is_new=is_new)
    stop(manager)
    path.unlink()
    elsewhere.rename(path)
    log = started(str(disk), fs).get_or_create("t", 0, now_ms=NOW_MS)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1, 12, 12)


@pytest.mark.parametrize("code", DENIED)
@pytest.mark.parametrize("is_clean", [False, True])
def test_its_directory_belongs_to_another_user(code: int, is_clean: bool) -> None:
    fs = MemoryFileSystem()
    with_two_logs("/disk", fs)
    if not is_clean:
        fs.remove(f"/disk/{CLEAN_SHUTDOWN_FILE}")
    fs.fail("list_files", code, path_part="/disk/t-0", times=1_000)
    manager = started("/disk", fs)
    assert manager.offline_directories == []
    assert manager.unusable_logs == {"/disk/t-0": f"/disk/t-0: {os.strerror(code)}"}


def with_logs_on_two_disks(tmp_path: Path, fs: RealFileSystem) -> tuple[str, str]:
    """Two disks with a log of t-0 each, of which that on the first cannot be opened."""
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    for disk in (one, other):
        name = with_two_logs(disk, fs)[0]
    away(Path(one, "t-0", name))
    return one, other


def test_a_move_to_the_disk_where_it_is_does_not_fail_the_disk(tmp_path: Path) -> None:
    fs = RealFileSystem()
    one, other = with_logs_on_two_disks(tmp_path, fs)
    manager = started(one, fs, other)
    assert manager.get_or_create("t", 0, now_ms=NOW_MS).path == f"{other}/t-0"
    with pytest.raises(LogDirectoryOffline, match="t-0 is there, and cannot be opened"):
        manager.create_future("t", 0, one, NOW_MS)
    assert (manager.offline_directories, manager.get_future("t", 0)) == ([], None)


def test_a_log_that_is_moved_in_its_place_has_none_of_its_offsets(tmp_path: Path) -> None:
    fs = RealFileSystem()
    one, other = with_logs_on_two_disks(tmp_path, fs)
    manager = started(one, fs, other)
    current = manager.get_or_create("t", 0, now_ms=NOW_MS)
    current.truncator.truncate_fully_and_start_at(0)
    fs.remove_tree(f"{one}/t-0")
    manager.create_future("t", 0, one, NOW_MS)
    manager.replace_current_with_future("t", 0, NOW_MS)
    manager.checkpoint_all()
    starts = read_offset_checkpoint(fs, f"{one}/{LOG_START_CHECKPOINT}")
    assert ("t", 0) not in starts


def test_a_future_log_that_cannot_be_opened_may_not_have_been_recovered(tmp_path: Path) -> None:
    fs = RealFileSystem()
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    manager = started(one, fs, other)
    log = manager.get_or_create("t", 0, config=CONFIG, now_ms=NOW_MS)
    append(log)
    target = other if log.log_directory.path == one else one
    future = manager.create_future("t", 0, target, NOW_MS)
    for batch in log.batches(0, 1):
        future.append_as_follower(bytes(batch), now_ms=NOW_MS)
    path = Path(future.path)
    manager.abandon()
    away(next(path.glob("*.log")))
    manager = started(one, fs, other)
    assert list(manager.unusable_logs) == [str(path)]
    stop(manager)
    assert not fs.exists(f"{target}/{CLEAN_SHUTDOWN_FILE}")
    assert fs.exists(f"{log.log_directory.path}/{CLEAN_SHUTDOWN_FILE}")


def test_it_is_not_deleted_with_its_topic(tmp_path: Path) -> None:
    """As one on a failed disk: the deletion waits, or the next topic of that name could not have a
    log here."""
    disk, fs = tmp_path / "disk", RealFileSystem()
    away(disk / "t-0" / with_two_logs(str(disk), fs)[0])
    manager = started(str(disk), fs)
    with pytest.raises(LogDirectoryOffline, match="t-0 may be there"):
        manager.delete_async("t", 0, NOW_MS)
    manager.delete_async("other", 0, NOW_MS)
    assert manager.get("other", 0) is None


def test_an_older_log_that_was_set_aside_is_not_taken_back(tmp_path: Path) -> None:
    disk, fs = tmp_path / "disk", RealFileSystem()
    name = with_two_logs(str(disk), fs)[0]
    manager = started(str(disk), fs)
    manager.delete_async("t", 0, NOW_MS, Note(Reason.NOT_ASSIGNED, "", needs_attention=False))
    assert manager.has_set_aside("t", 0)
    append(manager.get_or_create("t", 0, config=CONFIG, now_ms=NOW_MS))
    stop(manager)
    away(disk / "t-0" / name)
    manager = started(str(disk), fs)
    assert manager.unusable_logs
    assert not manager.has_set_aside("t", 0)
