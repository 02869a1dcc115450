"""The manager: start and stop, several disks, deletion, moving, checkpoints."""

import errno
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from ottla.protocol.steps import run_at_once
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import (
    DiskFull,
    InconsistentMetadata,
    LogClosed,
    LogDirectoryOffline,
    ResourceExhausted,
)
from ottla.storage.files.set_aside import Note, Reason
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, fetched, manager_on

TOPIC_ID, OTHER_ID = b"i" * 16, b"o" * 16


def flush_due(manager: LogManager, now_ms: int) -> int:
    due = manager.flushes_due(now_ms)
    for log in due:
        log.flusher.flush(now_ms)
    return len(due)


def test_logs_are_spread_over_the_directories() -> None:
    manager = manager_on(MemoryFileSystem(), ("/a", "/b"))
    logs = [manager.get_or_create("t", p, now_ms=NOW_MS) for p in range(4)]
    assert [log.log_directory.path for log in logs] == ["/a", "/b", "/a", "/b"]
    assert [log.name for log in manager.logs_in("/a")] == ["t-0", "t-2"]
    assert manager.get("t", 1) is logs[1]
    assert manager.get("t", 9) is None
    assert manager.get_or_create("t", 1, now_ms=NOW_MS) is logs[1]
    assert manager.logs() == logs


def test_a_preferred_directory_is_used_once() -> None:
    manager = manager_on(MemoryFileSystem(), ("/a", "/b"))
    manager.prefer_directory("t", 0, "/b")
    assert manager.get_or_create("t", 0, now_ms=NOW_MS).log_directory.path == "/b"
    with pytest.raises(ValueError, match="not one of"):
        manager.prefer_directory("t", 0, "/c")


def test_a_full_directory_gets_no_new_logs_while_there_is_another() -> None:
    manager = manager_on(MemoryFileSystem(), ("/a", "/b"))
    manager.directories.all[0].mark_full("test")
    paths = {manager.get_or_create("t", p, now_ms=NOW_MS).log_directory.path for p in range(3)}
    assert paths == {"/b"}


def test_topic_ids_are_written_and_checked() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    assert log.topic_id is None
    manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    assert log.topic_id == TOPIC_ID
    assert fs.content("/disk/t-0/partition.metadata").startswith(b"version: 0\ntopic_id: ")
    with pytest.raises(InconsistentMetadata, match="belongs to topic id"):
        manager.get_or_create("t", 0, topic_id=OTHER_ID, now_ms=NOW_MS)


def test_a_clean_stop_and_a_start() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    for partition in range(4):
        append(manager.get_or_create("t", partition, now_ms=NOW_MS), partition + 1)
    manager.shutdown(NOW_MS, broker_epoch=77)
    assert fs.content("/a/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":77}'
    assert fs.content("/a/recovery-point-offset-checkpoint") == b"0\n2\nt 0 1\nt 2 3\n"
    assert fs.content("/b/replication-offset-checkpoint") == b"0\n2\nt 1 2\nt 3 4\n"
    again = manager_on(fs.after_power_failure(), ("/a", "/b"))
    assert not again.unclean_start
    assert [log.log_end_offset for log in again.logs()] == [1, 3, 2, 4]
    assert [log.high_watermark for log in again.logs()] == [1, 3, 2, 4]


def test_a_start_is_unclean_after_a_crash_and_with_a_new_disk() -> None:
    fs = MemoryFileSystem()
    assert manager_on(fs, ("/a", "/b")).unclean_start  # nothing was there: all may be lost
    fs = fs.after_kill()
    crashed = manager_on(fs, ("/a", "/b"))
    assert crashed.unclean_start
    crashed.shutdown(NOW_MS)
    replaced = manager_on(fs, ("/a", "/new"))
    assert replaced.unclean_start
    replaced.shutdown(NOW_MS)
    assert not manager_on(fs, ("/a", "/new")).unclean_start


def test_directories_are_loaded_in_threads_if_one_likes() -> None:
    fs = MemoryFileSystem()
    paths = ("/a", "/b", "/c")
    manager = manager_on(fs, paths)
    for partition in range(9):
        append(manager.get_or_create("t", partition, now_ms=NOW_MS), 3)
    fs = fs.after_kill()

    def run_all(jobs: Sequence[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda job: job(), jobs))

    again = LogManager(paths, fs=fs)
    again.load(NOW_MS, run_all=run_all)
    assert sorted(log.partition for log in again.logs()) == list(range(9))
    assert all(log.log_end_offset == 3 for log in again.logs())


def test_topics_get_their_settings_at_the_start() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    for topic in ("a", "b"):
        manager.get_or_create(topic, 0, now_ms=NOW_MS)
    manager.shutdown(NOW_MS)
    again = LogManager(["/disk"], fs=fs)
    again.load(NOW_MS, config_of=lambda topic: LogConfig(retention_ms=5 if topic == "a" else 6))
    assert [log.config.retention_ms for log in again.logs()] == [5, 6]


# --- deletion ------------------------------------------------------------------------------------


def test_deletion_renames_and_purges_later() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, file_delete_delay_ms=1000)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 3)
    piece = log.read(0, 1000, up_to=3).slice
    manager.delete_async("t", 0, NOW_MS)
    manager.delete_async("t", 0, NOW_MS)
    assert manager.get("t", 0) is None
    (name,) = fs.list_directories("/disk")
    assert re.fullmatch(r"t-0\.[0-9a-f]{32}-delete", name)
    with pytest.raises(LogClosed):
        append(log)
    manager.purge(NOW_MS + 999)
    assert fs.list_directories("/disk") == [name]
    manager.purge(NOW_MS + 1000)
    assert fs.list_directories("/disk") == []
    assert piece is not None
    assert len(piece.read()) == piece.length


def test_what_was_being_deleted_goes_after_a_restart() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    manager.get_or_create("t", 0, now_ms=NOW_MS)
    manager.delete_async("t", 0, NOW_MS)
    again = manager_on(fs.after_kill())
    assert again.logs() == []
    again.purge(NOW_MS)
    assert again.fs.list_directories("/disk") == []


def test_a_new_log_may_take_the_place_at_once() -> None:
    manager = manager_on(MemoryFileSystem())
    append(manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS), 3)
    manager.delete_async("t", 0, NOW_MS)
    log = manager.get_or_create("t", 0, topic_id=OTHER_ID, now_ms=NOW_MS)
    assert (log.log_end_offset, log.topic_id) == (0, OTHER_ID)
    append(log)
    manager.purge(NOW_MS * 2)
    assert len(fetched(log)) == 1


def test_strays_are_kept_under_another_name(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    append(manager.get_or_create("t", 0, now_ms=NOW_MS), 3)
    manager.delete_async("t", 0, NOW_MS, Note(Reason.TOPIC_GONE, "the topic is not in the tree"))
    manager.purge(NOW_MS * 2)
    again = manager_on(fs.after_kill())
    assert again.logs() == []
    (name,) = fs.list_directories("/disk")
    assert name.endswith("-stray")
    assert name in caplog.text
    for found in (manager, again):
        (item,) = found.directories.all[0].set_aside
        assert (item.path, item.topic, item.partition) == (f"/disk/{name}", "t", 0)
        assert (item.reason, item.detail) == (Reason.TOPIC_GONE, "the topic is not in the tree")


# --- moving between directories ------------------------------------------------------------------


def test_a_log_moves_to_another_directory() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    log = manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    for number in range(5):
        append(log, 2, producer_id=7, producer_epoch=0, base_sequence=2 * number)
    log.truncator.delete_records_before(4)
    future = manager.create_future("t", 0, "/b", NOW_MS)
    assert manager.create_future("t", 0, "/b", NOW_MS) is future
    assert manager.get_future("t", 0) is future
    assert future.path.endswith("-future")
    with pytest.raises(ValueError, match="ends at"):
        manager.replace_current_with_future("t", 0, NOW_MS)
    for batch in log.batches(4):
        future.append_as_follower(bytearray(batch), now_ms=NOW_MS)
    moved = manager.replace_current_with_future("t", 0, NOW_MS)
    assert manager.get("t", 0) is moved is future
    assert manager.get_future("t", 0) is None
    assert (moved.path, moved.log_start_offset, moved.high_watermark) == ("/b/t-0", 4, 10)
    assert moved.topic_id == TOPIC_ID
    append(moved, 2, producer_id=7, producer_epoch=0, base_sequence=10)
    moved.roll(NOW_MS)
    append(moved)
    assert [r.offset for r in fetched(moved)] == list(range(4, 13))
    assert [name[-7:] for name in fs.list_directories("/a")] == ["-delete"]
    manager.shutdown(NOW_MS)
    again = manager_on(fs, ("/a", "/b"))
    (log,) = again.logs()
    assert (log.path, log.log_end_offset) == ("/b/t-0", 13)


def test_a_move_can_be_given_up_or_redirected() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b", "/c"))
    manager.get_or_create("t", 0, now_ms=NOW_MS)
    with pytest.raises(ValueError, match="already"):
        manager.create_future("t", 0, "/a", NOW_MS)
    manager.create_future("t", 0, "/b", NOW_MS)
    future = manager.create_future("t", 0, "/c", NOW_MS)
    assert future.log_directory.path == "/c"
    manager.abandon_future("t", 0, NOW_MS)
    manager.abandon_future("t", 0, NOW_MS)
    manager.purge(NOW_MS * 2)
    assert fs.list_directories("/b") == fs.list_directories("/c") == []


def test_a_copy_continues_after_a_restart_but_not_without_its_original(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    append(manager.get_or_create("t", 0, now_ms=NOW_MS), 2)
    manager.create_future("t", 0, "/b", NOW_MS)
    manager.shutdown(NOW_MS)
    again = manager_on(fs, ("/a", "/b"))
    future = again.get_future("t", 0)
    assert future is not None
    assert future.log_directory.path == "/b"
    fs.remove_tree("/a/t-0")
    again = manager_on(fs, ("/a", "/b"))
    assert again.get_future("t", 0) is None
    assert "Deleting future log" in caplog.text  # it is empty


@pytest.mark.parametrize("operation", ["make_directory", "open", "sync"])
def test_a_copy_that_cannot_be_created_leaves_nothing(operation: str) -> None:
    """Each attempt has a name of its own: what is left would be a second copy at the next start."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 5)
    log.flusher.flush()
    log.truncator.delete_records_before(3)
    for after in range(20):
        fault = fs.fail(operation, errno.EMFILE, path_part="-future", after=after)
        try:
            manager.create_future("t", 0, "/b", NOW_MS)
        except ResourceExhausted:
            assert fs.list_directories("/b") == []
            assert manager.get_future("t", 0) is None
        else:
            break
        finally:
            fs.heal()
        assert fault is not None
    assert manager.get_future("t", 0) is not None


def test_a_copy_is_found_whatever_directory_is_loaded_first() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    append(manager.get_or_create("t", 0, now_ms=NOW_MS), 2)
    manager.create_future("t", 0, "/b", NOW_MS)
    manager.shutdown(NOW_MS)
    again = manager_on(fs, ("/b", "/a"))
    future = again.get_future("t", 0)
    assert future is not None
    assert future.log_directory.path == "/b"


def test_copies_of_interrupted_moves_are_deleted() -> None:
    """A copy in the directory of its log would replace it by itself, and be deleted with it."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    assert log.log_directory.path == "/a"
    append(log, 5)
    manager.shutdown(NOW_MS)
    for directory, number in (("/a", 1), ("/b", 2), ("/b", 3)):
        fs.make_directory(f"{directory}/t-0.{number:032}-future")
    again = manager_on(fs, ("/a", "/b"))
    future = again.get_future("t", 0)
    assert future is not None
    assert future.path == f"/b/t-0.{2:032}-future"
    again.purge(NOW_MS * 2)
    assert fs.list_directories("/a") == ["t-0"]
    assert fs.list_directories("/b") == [f"t-0.{2:032}-future"]
    found = again.get("t", 0)
    assert found is not None
    assert [record.offset for record in fetched(found)] == list(range(5))


def test_a_log_that_comes_back_has_no_old_recovery_point() -> None:
    """It moved to another directory and back before the checkpoint was written again."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 5)
    log.flusher.flush()
    manager.checkpoint_recovery_points()
    for directory in ("/b", "/a"):
        future = manager.create_future("t", 0, directory, NOW_MS)
        for batch in log.batches(0):
            future.append_as_follower(bytes(batch), now_ms=NOW_MS)
        log = manager.replace_current_with_future("t", 0, NOW_MS)
    assert log.recovery_point == 0
    assert fs.content("/a/recovery-point-offset-checkpoint") == b"0\n0\n"


# --- failing and full disks ----------------------------------------------------------------------


def test_one_failed_disk_takes_only_its_logs_along() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    first, second = (manager.get_or_create("t", p, now_ms=NOW_MS) for p in range(2))
    fs.fail("pwrite", errno.EIO, path_part="/a/")
    with pytest.raises(LogDirectoryOffline):
        append(first)
    assert manager.offline_directories == ["/a"]
    assert append(second).first_offset == 0
    with pytest.raises(LogDirectoryOffline):
        manager.get_or_create("t", 0, now_ms=NOW_MS)
    with pytest.raises(LogDirectoryOffline, match="may be there"):
        manager.get_or_create("t", 7, now_ms=NOW_MS)
    assert manager.get_or_create("t", 7, now_ms=NOW_MS, is_new=True).log_directory.path == "/b"
    flush_due(manager, NOW_MS)
    manager.checkpoint_all()
    manager.shutdown(NOW_MS)
    assert not fs.exists("/a/.kafka_cleanshutdown")
    assert fs.exists("/b/.kafka_cleanshutdown")


@pytest.mark.parametrize("operation", ["list_directories", "make_directory", "list_files"])
def test_a_disk_that_cannot_be_read_at_the_start_is_offline(operation: str) -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    for partition in range(2):
        manager.get_or_create("t", partition, now_ms=NOW_MS)
    manager.shutdown(NOW_MS)
    fs.fail(operation, errno.EIO, path_part="/a")
    again = manager_on(fs, ("/a", "/b"))
    assert again.offline_directories == ["/a"]
    assert [log.name for log in again.logs()] == ["t-1"]


def test_no_directory_at_all() -> None:
    fs = MemoryFileSystem()
    fs.fail("make_directory", errno.EROFS)
    manager = manager_on(fs)
    with pytest.raises(LogDirectoryOffline, match="no log directory"):
        manager.get_or_create("t", 0, now_ms=NOW_MS, is_new=True)


def test_a_disk_below_the_watermark_takes_no_records_until_there_is_room() -> None:
    fs = MemoryFileSystem(room=100_000)
    manager = LogManager(["/disk"], fs=fs, min_free_bytes=50_000)
    manager.load(NOW_MS)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log)
    manager.check_free_bytes()
    append(log)
    fs.room = 50_000
    manager.check_free_bytes()
    with pytest.raises(DiskFull, match="the minimum is 50000"):
        append(log)
    assert len(fetched(log)) == 2
    assert log.truncator.delete_records_before(1)
    log.update_config(log.config.replace(retention_bytes=0))
    fs.room = 54_000
    manager.check_free_bytes()
    with pytest.raises(DiskFull):
        append(log)  # a little more than the watermark, so that it does not flap
    fs.room = 60_000
    manager.check_free_bytes()
    assert append(log).first_offset == 2


def test_a_disk_that_cannot_be_asked_is_offline() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    fs.fail("free_bytes", errno.EIO)
    manager.check_free_bytes()
    assert manager.offline_directories == ["/disk"]
    manager.check_free_bytes()


def test_a_failed_checkpoint_takes_the_disk_offline() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    manager.get_or_create("t", 0, now_ms=NOW_MS)
    fs.fail("pwrite", errno.EIO, path_part="/a/recovery-point")
    manager.checkpoint_all()
    assert manager.offline_directories == ["/a"]
    assert fs.exists("/b/recovery-point-offset-checkpoint")


# --- now and then --------------------------------------------------------------------------------


def test_flushes_are_due_by_time_and_after_a_roll() -> None:
    manager = manager_on(MemoryFileSystem(), flush_ms=1000)
    first, second = (manager.get_or_create("t", p, now_ms=NOW_MS) for p in range(2))
    append(first)
    assert manager.flushes_due(NOW_MS + 999) == []
    assert manager.flushes_due(NOW_MS + 1000) == [first]
    append(second)
    second.roll(NOW_MS)
    assert manager.flushes_due(NOW_MS) == [second]
    assert flush_due(manager, NOW_MS + 1000) == 2
    assert manager.flushes_due(NOW_MS + 5000) == []


def test_log_starts_are_on_disk_before_the_recovery_points_that_they_raise() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    for partition in range(2):
        append(manager.get_or_create("t", partition, now_ms=NOW_MS), 5)
    manager.logs()[1].truncator.delete_records_before(3)
    manager.checkpoint_recovery_points()
    assert fs.content("/disk/log-start-offset-checkpoint") == b"0\n1\nt 1 3\n"
    manager.shutdown(NOW_MS)
    assert [log.log_start_offset for log in manager_on(fs).logs()] == [0, 3]


def test_log_starts_are_written_only_where_segments_do_not_tell() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    for partition in range(2):
        append(manager.get_or_create("t", partition, now_ms=NOW_MS), 5)
    manager.logs()[1].truncator.delete_records_before(3)
    manager.checkpoint_log_starts()
    assert fs.content("/disk/log-start-offset-checkpoint") == b"0\n1\nt 1 3\n"
    manager.shutdown(NOW_MS)
    assert [log.log_start_offset for log in manager_on(fs).logs()] == [0, 3]


def test_idle_producers_are_forgotten() -> None:
    manager = manager_on(MemoryFileSystem())
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0)
    guard = log.verifications.begin(9, 0, 0, NOW_MS)
    assert run_at_once(manager.remove_expired_producers(NOW_MS + 1000)) == 0
    assert log.verifications.allows(9, guard)
    assert run_at_once(manager.remove_expired_producers(NOW_MS + 86_400_000)) == 1
    assert log.verifications.lowest_sequence(9) is None


def test_the_time_after_which_they_are_may_change() -> None:
    manager = manager_on(MemoryFileSystem())
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0)
    manager.set_producer_expiration(1000)
    assert run_at_once(manager.remove_expired_producers(NOW_MS + 999)) == 0
    assert run_at_once(manager.remove_expired_producers(NOW_MS + 1000)) == 1
    later = manager.get_or_create("t", 1, now_ms=NOW_MS)
    append(later, producer_id=7, producer_epoch=0, base_sequence=0)
    assert run_at_once(manager.remove_expired_producers(NOW_MS + 1000)) == 1


def test_identity() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    assert manager.read_meta_properties() == (None, None)
    manager.write_meta_properties(3, "cluster")
    assert manager.read_meta_properties() == (3, "cluster")
    fs.calls.clear()
    manager.write_meta_properties(3, "cluster")
    assert not [call for call in fs.calls if call[0] == "pwrite"]
    fs.overwrite("/b/meta.properties", b"version=0\nbroker.id=4\n")
    with pytest.raises(InconsistentMetadata, match=r"/a: 3, /b: 4"):
        manager.read_meta_properties()
