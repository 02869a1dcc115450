"""Opening a log after a clean stop, a crash, and damage of all kinds."""

from collections.abc import Callable

import pytest

from ottla.protocol.steps import run_at_once
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.checkpoints import write_offset_checkpoint
from ottla.storage.files.layout import CLEAN_SHUTDOWN_FILE, CLEANER_CHECKPOINT
from ottla.storage.log.log import Log
from ottla.storage.recovery.load_progress import LoadProgress
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    ROOT,
    append,
    batch_of,
    end_transaction,
    fetched,
    manager_on,
    plain,
    records_in,
)

SETTINGS = {"segment_bytes": 900, "index_interval_bytes": 150, "retention_ms": -1}
TOPIC_ID = bytes(range(16))


def started(fs: MemoryFileSystem) -> tuple[LogManager, Log]:
    manager = manager_on(fs, **SETTINGS)
    return manager, manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)


def fill(log: Log, count: int = 20) -> None:
    for number in range(count):
        append(
            log, plain(2, NOW_MS + 10 * log.log_end_offset), producer_id=7, producer_epoch=0,
            base_sequence=2 * number, transactional=number >= 15,
        )  # fmt: skip


def reopened(fs: MemoryFileSystem) -> Log:
    log = manager_on(fs, **SETTINGS).get("t", 0)
    assert log is not None
    return log


def same(log: Log, before: Log) -> None:
    assert log.log_end_offset == before.log_end_offset
    assert log.log_start_offset == before.log_start_offset
    assert fetched(log) == fetched(before)
    assert log.leader_epochs.entries == before.leader_epochs.entries
    assert log.producer_state.open_transactions() == before.producer_state.open_transactions()
    assert log.segments.base_offsets == before.segments.base_offsets
    for ours, theirs in zip(log.segments, before.segments, strict=True):
        assert ours.newest() == theirs.newest()
        assert ours.txn_index.entries() == theirs.txn_index.entries()
        for offset in range(ours.base_offset, ours.next_offset()):
            assert ours.find_batch(offset) == theirs.find_batch(offset)
    for producer_id, entry in before.producer_state.producers.items():
        again = log.producer_state.producers[producer_id]
        assert again.batches[-1:] == entry.batches[-1:]
        assert (again.epoch, again.last_timestamp) == (entry.epoch, entry.last_timestamp)


# --- clean ---------------------------------------------------------------------------------------


def test_after_a_clean_stop_nothing_is_recovered(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    fill(log)
    manager.shutdown(NOW_MS)
    again_fs = fs.after_power_failure()
    again = reopened(again_fs)
    # Four small files of the directory, three of the log, the snapshot, where the log ends, and
    # three batches with which epochs and snapshot are compared.
    read = [path for operation, path in again_fs.calls if operation == "pread"]
    indexes = [path for path in read if path.endswith("index")]
    assert len(read) - len(indexes) < 20
    assert len(indexes) <= 5, "of the last segment, the one before it, and that of the last epoch"
    same(again, log)
    assert again.recovery_point == 40
    assert again.topic_id == TOPIC_ID
    assert caplog.text == ""
    assert not again_fs.exists(f"/disk/{CLEAN_SHUTDOWN_FILE}"), "a crash from here on is a crash"


def test_an_empty_log_opens(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager, _ = started(fs)
    manager.shutdown(NOW_MS)
    log = reopened(fs)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert append(log).first_offset == 0
    assert caplog.text == ""


# --- kill -9 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [0, 1, 7, 19, 20])
def test_after_a_kill_everything_written_is_there(flushed: int) -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    for number in range(20):
        append(
            log, plain(2, NOW_MS + number), producer_id=7, producer_epoch=0,
            base_sequence=2 * number, transactional=number >= 15,
        )  # fmt: skip
        if number + 1 == flushed:
            log.flusher.flush()
            manager.checkpoint_all()
    end_transaction(log, 7, committed=False)
    append(log, 3)
    again = reopened(fs.after_kill())
    same(again, log)
    assert again.recovery_point == 2 * flushed


def test_only_what_was_not_flushed_is_read() -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    fill(log, 40)
    log.flusher.flush()
    manager.checkpoint_all()
    append(log)
    after = fs.after_kill()
    reopened(after)
    first = log.segments.first.log.path
    assert after.calls.count(("pread", first)) == 1, "the header where the last epoch starts"


@pytest.mark.parametrize("cut", [1, 30, 61, 90, 100])
def test_a_torn_last_write_is_cut_off(cut: int, caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log)
    path = log.local.active.log.path
    after = fs.after_kill()
    after.overwrite(path, fs.content(path) + bytes(batch_of(2, base_offset=40))[:cut])
    again = reopened(after)
    same(again, log)
    assert "discarding" in caplog.text
    assert after.content(path) == fs.content(path)
    assert append(again).first_offset == 40


def test_a_hole_of_zeros_at_the_end_is_cut_off() -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log)
    path = log.local.active.log.path
    after = fs.after_kill()
    after.overwrite(path, fs.content(path) + bytes(5000))
    same(reopened(after), log)


@pytest.mark.parametrize("position", [0, 8, 16, 23, 40, 70, 100])
def test_flipped_bytes_cut_the_log_there(position: int) -> None:
    """Also in what the checksum does not cover, where that shows."""
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log)
    segment = list(log.segments)[-2]
    place = segment.find_batch(segment.base_offset + 4)
    assert place is not None
    after = fs.after_kill()
    content = bytearray(fs.content(segment.log.path))
    content[place.position + position] ^= 0xFF
    after.overwrite(segment.log.path, bytes(content))
    again = reopened(after)
    assert again.log_end_offset == place.base_offset
    assert [r.offset for r in fetched(again)] == list(range(place.base_offset))
    assert again.segments.active.base_offset == segment.base_offset
    assert append(again).first_offset == place.base_offset


def test_a_repeated_batch_is_cut_off() -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log, 3)
    path = log.local.active.log.path
    after = fs.after_kill()
    after.overwrite(path, fs.content(path) * 2)
    same(reopened(after), log)


# --- missing and damaged files -------------------------------------------------------------------


def remove(suffix: str) -> Callable[[MemoryFileSystem, str], None]:
    def act(fs: MemoryFileSystem, path: str) -> None:
        for name in [p for p in fs.paths() if p.startswith(path) and p.endswith(suffix)]:
            fs.remove(name)

    return act


def scribble(suffix: str, *, junk: bytes = b"junk!") -> Callable[[MemoryFileSystem, str], None]:
    def act(fs: MemoryFileSystem, path: str) -> None:
        for name in [p for p in fs.paths() if p.startswith(path) and p.endswith(suffix)]:
            fs.overwrite(name, junk)

    return act


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        remove(".index"),
        remove(".timeindex"),
        remove(".snapshot"),
        remove("leader-epoch-checkpoint"),
        scribble("leader-epoch-checkpoint"),
        scribble("leader-epoch-checkpoint", junk=b""),
        scribble(".snapshot"),
        scribble(".index"),
        scribble(".timeindex"),
        scribble(".index", junk=bytes(80)),
    ],
)
def test_a_log_without_its_helpers_is_the_same(
    clean: bool, damage: Callable[[MemoryFileSystem, str], None]
) -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    fill(log, 14)
    if clean:
        manager.shutdown(NOW_MS)
    after = fs.after_kill()
    damage(after, log.path)
    again = reopened(after)
    same(again, log)


@pytest.mark.parametrize("name", ["recovery-point", "log-start", "replication"])
def test_a_damaged_checkpoint_costs_time_only(name: str, caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    fill(log)
    manager.shutdown(NOW_MS)
    fs.overwrite(f"/disk/{name}-offset-checkpoint", b"\x00\x01\x02")
    same(reopened(fs), log)
    assert "Ignoring checkpoint" in caplog.text


def test_a_damaged_topic_id_is_written_again(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    manager.shutdown(NOW_MS)
    fs.overwrite(f"{log.path}/partition.metadata", b"???")
    manager = manager_on(fs, **SETTINGS)
    again = manager.get("t", 0)
    assert again is not None
    assert again.topic_id is None
    manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    assert again.topic_id == TOPIC_ID
    assert "topic id" in caplog.text


def test_a_log_that_ends_below_its_start_restarts(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    fill(log)
    log.truncator.delete_records_before(30)
    manager.shutdown(NOW_MS)
    for path in [p for p in fs.paths() if p.startswith(log.path) and ".log" in p][1:]:
        fs.remove(path)
    again = reopened(fs)
    assert (again.log_start_offset, again.log_end_offset) == (30, 30)
    assert append(again).first_offset == 30
    assert "is below log start offset" in caplog.text


def test_a_closed_log_that_is_damaged_is_recovered(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager, log = started(fs)
    fill(log)
    manager.shutdown(NOW_MS)
    path = log.local.active.log.path
    fs.overwrite(path, fs.content(path)[:-1])
    again = reopened(fs)
    assert again.log_end_offset == 38
    assert "it is corrupt after a clean shutdown" in caplog.text


def test_progress_is_reported() -> None:
    fs = MemoryFileSystem()
    _, log = started(fs)
    fill(log)
    planned: list[int] = []
    progress = LoadProgress(lambda: planned.append(progress.recovery_bytes))
    manager = LogManager(["/disk"], fs=fs.after_kill())
    manager.load(NOW_MS, progress=progress)
    assert set(planned) == {log.local.size_in_bytes}
    assert (progress.logs, progress.loaded_logs) == (1, 1)
    assert progress.recovered_bytes == progress.recovery_bytes == log.local.size_in_bytes
    assert progress.directories["/disk"].remaining_bytes == 0


@pytest.mark.parametrize(("compacted_to", "missing_from"), [(-1, 4), (5, 4), (6, None)])
def test_an_empty_segment_behind_lost_records(compacted_to: int, missing_from: int | None) -> None:
    """Its name had reached the disk, the end of the segment before it had not."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, cleanup_policy=("compact",))
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    manager.checkpoint_all()
    for _ in range(3):
        append(log, 2)
    path, size = log.local.active.log.path, log.local.active.size
    log.roll(NOW_MS)
    if compacted_to >= 0:
        write_offset_checkpoint(fs, f"{ROOT}/{CLEANER_CHECKPOINT}", {("t", 0): compacted_to})
    fs.overwrite(path, fs.content(path)[: size * 2 // 3])
    again = manager_on(fs.after_kill(), cleanup_policy=("compact",)).get("t", 0)
    assert again is not None
    assert [r.offset for r in records_in(again)] == [0, 1, 2, 3]
    assert again.log_end_offset == 6
    assert again.offsets.missing_from == missing_from
    assert append(again).first_offset == 6


@pytest.mark.parametrize(
    ("settings", "start", "producers"),
    [
        ({"remote_storage_enable": True, "local_retention_bytes": 1}, 0, [7, 8]),
        ({"retention_bytes": 1}, 28, [7, 8]),
    ],
)
def test_the_producers_of_records_in_remote_storage_are_known_after_a_crash(
    settings: dict[str, int], start: int, producers: list[int]
) -> None:
    """The snapshot at the first segment has them, also without tiered storage, where their records
    are deleted."""
    fs = MemoryFileSystem()
    wanted = {**SETTINGS, **settings}
    manager = manager_on(fs, **wanted)
    log = manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    for producer in (7, 8):
        for number in range(10):
            append(
                log, plain(2), producer_id=producer, producer_epoch=0, base_sequence=2 * number
            )  # fmt: skip
    log.flusher.flush()
    log.offsets.highest_remote_offset = 27
    run_at_once(log.retention.delete_old_segments(NOW_MS))
    manager.checkpoint_log_starts()
    fs.sync_directory(log.path)
    opened = manager_on(fs.after_power_failure(), **wanted).get("t", 0)
    assert opened is not None
    assert (opened.log_start_offset, opened.segments.base_offsets) == (start, [28])
    assert list(opened.producer_state.producers) == producers


def test_a_log_that_is_loaded_leaves_its_flushes_to_the_broker() -> None:
    """As one that is created."""
    fs = MemoryFileSystem()
    _, log = started(fs)
    append(log)
    log.flusher.flush()
    logs = LogManager([ROOT], log.config.replace(flush_messages=1), fs)
    requested: list[object] = []
    logs.flush_later = requested.append
    logs.load(NOW_MS)
    loaded = logs.get("t", 0)
    assert loaded is not None
    append(loaded)
    assert requested == [loaded.flusher]


def test_records_that_are_back_after_a_crash_have_their_leader_epochs() -> None:
    """DeleteRecords truncates the epochs at once, and the log start is in its checkpoint later."""
    fs = MemoryFileSystem()
    _, log = started(fs)
    for epoch in (1, 3):
        log.append(batch_of(plain(4, NOW_MS)), leader_epoch=epoch, now_ms=NOW_MS)
    log.update_high_watermark(8)
    before = log.leader_epochs.entries
    log.truncator.delete_records_before(8)
    assert log.leader_epochs.entries == [(3, 8)]
    again = reopened(fs)
    assert again.log_start_offset == 0
    assert again.leader_epochs.entries == before == [(1, 0), (3, 4)]
    assert reopened(fs).leader_epochs.entries == before


def test_a_recovery_point_above_the_end_is_lowered_on_disk() -> None:
    """Or recovery after the next crash would not read what is appended below it."""
    fs = MemoryFileSystem()
    manager, log = started(fs)
    fill(log, 4)
    manager.checkpoint_all()
    path = f"{ROOT}/recovery-point-offset-checkpoint"
    fs.overwrite(path, b"0\n1\nt 0 30\n")
    again = reopened(fs.after_kill())
    assert again.recovery_point == 0
    assert again.log_directory.fs.content(path) == b"0\n1\nt 0 0\n"  # type: ignore[attr-defined]  # in memory
