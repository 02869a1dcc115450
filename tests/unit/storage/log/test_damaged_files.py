"""Content of a file that cannot be right: the file is rebuilt or named, and the disk stays online.

Each damage is made under an open log, as a bad disk makes it, and before a start.
"""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from struct import pack, pack_into

import pytest

from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.steps import run_at_once
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, fetched, manager_on, plain, records_in

SETTINGS = {"segment_bytes": 2000, "index_interval_bytes": 100}
HOUR = 3_600_000
FIRST = "/disk/t-0/00000000000000000000"


def filled(fs: MemoryFileSystem) -> tuple[LogManager, Log]:
    """Two closed segments and an open one, of batches of two records."""
    manager = manager_on(fs, ("/disk",), **SETTINGS)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(36):
        append(log, plain(2, NOW_MS + 10 * number))
    assert len(log.segments) >= 3
    log.flusher.flush()
    return manager, log


def reopened(fs: MemoryFileSystem) -> tuple[LogManager, Log]:
    manager = manager_on(fs, ("/disk",), **SETTINGS)
    log = manager.get("t", 0)
    assert log is not None
    log.update_high_watermark(log.log_end_offset)
    return manager, log


def change(fs: MemoryFileSystem, path: str, form: str, at: int, value: int) -> None:
    content = bytearray(fs.content(path))
    pack_into(form, content, at % len(content), value)
    fs.overwrite(path, bytes(content))


Operation = Callable[[Log], object]

OPERATIONS: dict[str, Operation] = {
    "fetch": lambda log: log.read(20, 300, up_to=72),
    "offsets by time": lambda log: log.offset_for_timestamp(NOW_MS + 95),
    "newest timestamp": lambda log: log.max_timestamp_offset(),
    "retention": lambda log: list(log.retention.delete_old_segments(NOW_MS)),
    "truncation": lambda log: log.truncator.truncate_to(21),
    "closing": lambda log: log.close(),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("suffix", "form", "at", "value"),
    [
        (".index", ">i", -4, -5),  # a negative position was EINVAL: the disk went offline
        (".index", ">i", -4, 1 << 30),
        (".index", ">i", -8, -1),
        (".index", ">i", 4, 33),  # positive, and in the middle of a batch
        (".timeindex", ">q", -12, -7),
        (".timeindex", ">q", -12, NOW_MS + 10**9),
        (".timeindex", ">i", -4, -7),
        (".timeindex", ">i", -4, 1 << 30),
    ],
)
@pytest.mark.parametrize("running", [False, True])
def test_an_index_is_rebuilt(
    operation: str, suffix: str, form: str, at: int, value: int, running: bool
) -> None:
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    expected = records_in(log)
    log.segments.first.time_index.write()
    manager.shutdown(NOW_MS)
    if running:
        manager, log = reopened(fs)
    change(fs, FIRST + suffix, form, at, value)
    if not running:
        manager, log = reopened(fs)
    OPERATIONS[operation](log)
    assert manager.offline_directories == []
    if operation not in ("truncation", "closing"):
        assert records_in(log) == expected
        assert log.offset_for_timestamp(NOW_MS + 95) == (NOW_MS + 100, 20, 0)
    if operation != "closing":
        append(log, 1)


def test_the_line_names_the_file_and_the_entry(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    _, log = filled(fs)
    change(fs, f"{FIRST}.index", ">i", -4, -5)
    log.read(20, 300, up_to=72)
    assert f"Rebuilding the indexes of {FIRST}.log: {FIRST}.index: from entry 0 on" in caplog.text
    assert "has -5 after" in caplog.text


def test_it_is_rebuilt_once(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    _, log = filled(fs)
    change(fs, f"{FIRST}.index", ">i", -4, -5)
    for offset in range(0, 72, 5):
        log.read(offset, 300, up_to=72)
    assert caplog.text.count("Rebuilding") == 1


def test_a_wrong_timestamp_does_not_expire_a_segment() -> None:
    """Retention believes no entry of a time index that its batch does not confirm."""
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    manager.shutdown(NOW_MS)
    content = fs.content(f"{FIRST}.timeindex")
    fs.overwrite(f"{FIRST}.timeindex", content[:12])
    change(fs, f"{FIRST}.timeindex", ">q", 0, 5)
    _, log = reopened(fs)
    log.update_config(log.config.replace(retention_ms=10_000))
    assert list(log.retention.delete_old_segments(NOW_MS)) == []
    assert log.log_start_offset == 0


@pytest.mark.parametrize("written_ms", [NOW_MS, NOW_MS - HOUR], ids=["new file", "old file"])
def test_a_time_index_that_was_cut_short_expires_no_new_file(
    written_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries that are left are true, but the newest record is none of theirs."""
    monkeypatch.setattr("ottla.storage.log.segment._DISTRUSTED_BYTES", 0)
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/disk",), **SETTINGS)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(36):
        append(log, plain(2, NOW_MS if number == 8 else NOW_MS - HOUR))
    manager.shutdown(NOW_MS)
    content = fs.content(f"{FIRST}.timeindex")
    assert len(content) == 24
    fs.overwrite(f"{FIRST}.timeindex", content[:12])
    for name in fs.list_files("/disk/t-0"):
        fs._live[f"/disk/t-0/{name}"].modified_ms = written_ms
    _, log = reopened(fs)
    log.update_config(log.config.replace(retention_ms=HOUR // 2))
    deleted = run_at_once(log.retention.delete_old_segments(NOW_MS))
    assert (deleted, log.log_start_offset) == ((0, 0) if written_ms == NOW_MS else (3, 72))


def expired(newest: int | None) -> tuple[LogManager, Log]:
    """Three expired segments of new files, with a batch that is not: the number of `newest`. Of
    their time indexes only the first entry is left."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/disk",), **SETTINGS)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(36):
        append(log, plain(2, NOW_MS if number == newest else NOW_MS - HOUR + number))
    assert len(log.segments) == 3
    manager.shutdown(NOW_MS)
    for name in fs.list_files("/disk/t-0"):
        fs._live[f"/disk/t-0/{name}"].modified_ms = NOW_MS
        if name.endswith(".timeindex"):
            fs.overwrite(f"/disk/t-0/{name}", fs.content(f"/disk/t-0/{name}")[:12])
    manager, log = reopened(fs)
    log.update_config(log.config.replace(retention_ms=HOUR // 2))
    return manager, log


Interruption = Callable[[LogManager, Log], object]

INTERRUPTIONS: dict[str, Interruption] = {
    "append": lambda _, log: append(log, plain(2, NOW_MS)),
    "append of old records": lambda _, log: append(log, plain(2, NOW_MS - HOUR)),
    "roll": lambda _, log: log.roll(NOW_MS),
    "records deleted": lambda _, log: log.truncator.delete_records_before(10),
    "first segment deleted": lambda _, log: delete_first_segment(log),
    "truncation": lambda _, log: log.truncator.truncate_to(20),
    "truncation in the first segment": lambda _, log: log.truncator.truncate_to(18),
    "truncation of all": lambda _, log: log.truncator.truncate_fully_and_start_at(0),
    "truncation and append": lambda _, log: (
        log.truncator.truncate_to(18),
        append(log, plain(2, NOW_MS)),
    ),
    "other settings": lambda _, log: log.update_config(log.config.replace(retention_ms=-1)),
    "log deleted": lambda manager, _: manager.delete_async("t", 0, NOW_MS),
    "log closed": lambda _, log: log.close(),
}


def delete_first_segment(log: Log) -> None:
    config = log.config
    past_first = log.segments.first.base_offset + 40
    log.truncator.delete_records_before(min(past_first, log.high_watermark))
    log.update_config(config.replace(retention_ms=-1))
    run_at_once(log.retention.delete_old_segments(NOW_MS))
    log.update_config(config)


@pytest.mark.parametrize("newest", [8, 34, None])
@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_retention_that_reads_headers_is_interrupted_at_every_turn(
    name: str, newest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has not expired stays, and what has expired goes with the next run."""
    monkeypatch.setattr("ottla.storage.log.segment._DISTRUSTED_BYTES", 0)
    turns = sum(1 for _ in expired(newest)[1].retention.delete_old_segments(NOW_MS))
    assert turns > 10
    for turn in range(turns):
        manager, log = expired(newest)
        steps = log.retention.delete_old_segments(NOW_MS)
        for _ in range(turn + 1):
            next(steps)
        before = valid_in(log)
        INTERRUPTIONS[name](manager, log)
        kept = before if name.startswith(("append", "roll", "other")) else set[int]()
        kept |= valid_in(log)
        run_at_once(steps)
        assert kept <= valid_in(log), f"turn {turn}"
        if log.local.closed:
            continue
        run_at_once(log.retention.delete_old_segments(NOW_MS))
        assert kept <= valid_in(log), f"turn {turn}"
        segments = list(log.segments)
        if log.config.retention_ms >= 0 and len(segments) > 1:
            # The first segment of those that are left has not expired.
            assert min(kept) < segments[1].base_offset, f"turn {turn}"


def valid_in(log: Log) -> set[int]:
    """The offsets of the records that have not expired."""
    if log.local.closed:
        return set()
    return {each.offset for each in records_in(log) if each.timestamp >= NOW_MS - HOUR // 2}


def damaged_batch(fs: MemoryFileSystem, log: Log, offset: int) -> int:
    """Zeros in the header of the batch with `offset`. Returns its position."""
    place = log.segments.first.find_batch(offset)
    assert place is not None
    content = bytearray(fs.content(f"{FIRST}.log"))
    content[place.position + 8 : place.position + 20] = bytes(12)
    fs.overwrite(f"{FIRST}.log", bytes(content))
    return place.position


@pytest.mark.parametrize("max_bytes", [1, 500, 1 << 20])
def test_records_around_a_damaged_batch_are_served(
    max_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka's response for the damaged one, and for no other: CORRUPT_MESSAGE."""
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    append(log, 1)
    manager.shutdown(NOW_MS)
    manager, log = reopened(fs)
    position = damaged_batch(fs, log, 10)
    for offset in range(10):
        assert log.read(offset, max_bytes, up_to=72).slice is not None
    for offset in (10, 11):
        with pytest.raises(CorruptRecordError, match=f"{FIRST}.log, position {position}"):
            log.read(offset, max_bytes, up_to=72)
    behind = [o for o in range(14, 72) if log.read(o, max_bytes, up_to=72).slice is not None]
    assert len(behind) == 58
    assert manager.offline_directories == []
    append(log, 1)
    log.roll(NOW_MS)
    manager.shutdown(NOW_MS)
    assert fs.exists("/disk/.kafka_cleanshutdown")


def test_a_damaged_first_batch_stops_no_append() -> None:
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    active = log.local.active.log.path
    manager.shutdown(NOW_MS)
    manager, log = reopened(fs)
    fs.overwrite(active, bytes(20) + fs.content(active)[20:])
    for _ in range(40):
        append(log, 2)
    log.roll(NOW_MS)
    assert manager.offline_directories == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENOENT])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_cannot_be_opened_is_written_again(code: int, suffix: str) -> None:
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    expected = records_in(log)
    manager.shutdown(NOW_MS)
    manager, log = reopened(fs)
    fs.fail("open", code, path_part=FIRST + suffix, times=2)
    log.read(20, 300, up_to=72)
    log.offset_for_timestamp(NOW_MS + 95)
    assert records_in(log) == expected
    assert manager.offline_directories == []


def test_a_failed_read_still_takes_the_disk_offline() -> None:
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    manager.shutdown(NOW_MS)
    manager, log = reopened(fs)
    fs.fail("pread", errno.EIO, path_part=".index")
    with pytest.raises(Exception, match="is offline"):
        log.read(20, 300, up_to=72)
    assert manager.offline_directories == ["/disk"]


@pytest.mark.parametrize(
    "name", ["99999999999999999999.log", "09223372036854775808.log", "notes.txt", "x.log"]
)
def test_a_file_of_another_program_is_ignored(name: str) -> None:
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    manager.shutdown(NOW_MS)
    fs.close(fs.open(f"/disk/t-0/{name}", 0o102))
    _, log = reopened(fs)
    assert log.log_end_offset == 72
    assert fs.exists(f"/disk/t-0/{name}")


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_what_is_copied_to_remote_storage_is_checked(suffix: str) -> None:
    """Nothing rebuilds an index there, and the local one is deleted."""
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    manager.shutdown(NOW_MS)
    intact = fs.content(FIRST + suffix)
    change(fs, FIRST + suffix, ">i", 4, -3)
    manager, log = reopened(fs)
    log.segments.first.check_indexes()
    assert fs.content(FIRST + suffix) == intact


def test_an_entry_of_kafka_for_several_batches(caplog: pytest.LogCaptureFixture) -> None:
    """A follower of Kafka writes the last offset of what it appended at once, and its position."""
    fs = MemoryFileSystem()
    manager, log = filled(fs)
    manager.shutdown(NOW_MS)
    first = log.segments.first
    places = [first.find_batch(offset) for offset in range(0, 20, 2)]
    assert None not in places
    start, last = places[3], places[6]
    assert start is not None
    assert last is not None
    fs.overwrite(f"{FIRST}.index", pack(">ii", last.last_offset, start.position))
    fs.overwrite(f"{FIRST}.timeindex", b"")
    manager, log = reopened(fs)
    for offset in range(20):
        found = log.read(offset, 1, up_to=72)
        assert found.first_batch_base_offset == offset - offset % 2
    assert len(records_in(log)) == 72
    assert "Rebuilding" not in caplog.text


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_an_index_that_is_longer_than_its_log_takes_no_memory(suffix: str, tmp_path: Path) -> None:
    """The length of a file is a number on a disk, and may be any. Entries of zeros take a hundred
    times their length in memory."""

    def loaded() -> LogManager:
        manager = LogManager((str(tmp_path),), LogConfig(**SETTINGS), RealFileSystem())
        manager.load(NOW_MS)
        return manager

    manager = loaded()
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(36):
        append(log, plain(2, NOW_MS + 10 * number))
    manager.shutdown(NOW_MS)
    path = tmp_path / "t-0" / f"{0:020d}{suffix}"
    path.touch()
    os.truncate(path, 8 << 20)
    tracemalloc.start()
    try:
        found = loaded().get("t", 0)
        assert found is not None
        found.update_high_watermark(72)
        assert [record.offset for record in fetched(found)] == list(range(72))
        assert found.read(20, 300, up_to=72, read_committed=True).aborted_transactions == []
        assert tracemalloc.get_traced_memory()[1] < 7 << 20
    finally:
        tracemalloc.stop()
