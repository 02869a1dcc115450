"""What a truncation removes below the high watermark is set aside, if the caller says so."""

from __future__ import annotations

import errno
from contextlib import closing

import pytest

from ottla.storage.errors import DiskFull
from ottla.storage.files.layout import HIGH_WATERMARK_CHECKPOINT
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, ROOT, append, manager_on, new_log

BATCHES = 6


def filled(fs: MemoryFileSystem, high_watermark: int = BATCHES) -> tuple[Log, list[bytes]]:
    """Six batches of a record in two segments; and their bytes."""
    log = new_log(fs)
    batches = []
    for number in range(BATCHES):
        if number == BATCHES // 2:
            log.roll(NOW_MS)
        position = log.local.active.size
        append(log)
        batches.append(log.local.active.log.read(position, 1000))
    log.offsets.high_watermark = high_watermark
    return log, batches


def aside(log: Log) -> list[str]:
    return [item.path.rpartition("/")[2] for item in log.log_directory.set_aside]


def name_of(base_offset: int) -> str:
    return f"{base_offset:020d}.log.truncated-committed.set-aside"


@pytest.mark.parametrize("is_prepared", [True, False])
@pytest.mark.parametrize("offset", range(BATCHES))
@pytest.mark.parametrize("high_watermark", [0, 1, 3, 4, 6])
def test_committed_records_stay_on_the_disk(
    offset: int, high_watermark: int, is_prepared: bool
) -> None:
    fs = MemoryFileSystem()
    log, batches = filled(fs, high_watermark)
    if is_prepared:
        for work in log.truncator.prepare(offset, keep_committed=True):
            if work is not None:
                work()
    assert log.truncator.truncate_to(offset, keep_committed=True)
    kept = b"".join(fs.content(f"{log.path}/{name}") for name in sorted(aside(log)))
    wanted = b"".join(batches[offset:high_watermark])
    assert kept.startswith(wanted)
    assert bool(kept) == bool(wanted)
    again = manager_on(fs.after_kill()).get("t", 0)
    assert again is not None
    assert sorted(aside(again)) == sorted(aside(log))
    assert again.log_end_offset == offset


def test_without_space_nothing_is_truncated() -> None:
    fs = MemoryFileSystem()
    log, _ = filled(fs)
    fs.fail("pwrite", errno.ENOSPC, path_part="set-aside", times=2)
    for work in log.truncator.prepare(1, keep_committed=True):
        if work is not None:
            with pytest.raises(DiskFull):
                work()
            break
    with pytest.raises(DiskFull):
        log.truncator.truncate_to(1, keep_committed=True)
    assert (log.log_end_offset, len(log.segments), aside(log)) == (BATCHES, 2, [])
    assert not log.log_directory.is_offline
    log.log_directory.append_error = None
    assert log.truncator.truncate_to(1, keep_committed=True)
    assert sorted(aside(log)) == [name_of(0), name_of(3)]


def test_a_truncation_that_is_given_up_leaves_no_copy() -> None:
    fs = MemoryFileSystem()
    log, _ = filled(fs)
    with closing(log.truncator.prepare(1, keep_committed=True)) as steps:
        for work in steps:
            if work is not None:
                work()
                break
    assert not [path for path in fs.paths() if "set-aside" in path]
    assert (log.log_end_offset, aside(log)) == (BATCHES, [])


def test_a_high_watermark_that_is_not_known_may_be_any() -> None:
    """Its checkpoint was lost: all that was there at the start may be committed."""
    fs = MemoryFileSystem()
    log, batches = filled(fs)
    for content in (None, b"garbage", b"0\n1\nother 0 5\n", b"0\n1\nt 0 -7\n"):
        after = fs.after_kill()
        if content is not None:
            after.overwrite_or_create(f"{ROOT}/{HIGH_WATERMARK_CHECKPOINT}", content)
        again = manager_on(after).get("t", 0)
        assert again is not None
        assert again.high_watermark == 0
        append(again)
        again.offsets.high_watermark = 0
        again.truncator.truncate_to(4, keep_committed=True)
        assert aside(again) == [name_of(3)]
        kept = after.content(f"{again.path}/{name_of(3)}")
        assert kept.startswith(b"".join(batches[4:]))
        assert again.offsets.possibly_committed == 4
    assert log.log_end_offset == BATCHES


def test_records_that_were_deleted_are_not_kept() -> None:
    fs = MemoryFileSystem()
    log, _ = filled(fs)
    log.truncator.delete_records_before(BATCHES)
    log.truncator.truncate_to(1, keep_committed=True)
    assert aside(log) == []


@pytest.mark.parametrize(
    ("settings", "is_expired"),
    [
        ({"retention_ms": 10}, True),
        ({"retention_ms": 10_000_000}, False),
        ({"retention_ms": -1}, False),
        ({"retention_ms": -1, "retention_bytes": 1}, True),
        ({"retention_ms": 10, "cleanup_policy": ("compact",)}, False),
    ],
)
def test_what_retention_would_delete(settings: dict[str, object], is_expired: bool) -> None:
    log = new_log(**settings)
    append(log)
    log.roll(NOW_MS)
    assert log.retention.is_expired(NOW_MS + 1_000) is is_expired


def test_segments_that_were_truncated_do_not_come_back_after_a_clean_stop() -> None:
    """Nothing was appended since: only the directory has changed."""
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for _ in range(3):
        append(log)
        log.roll(NOW_MS)
    log.flusher.flush()
    log.truncator.truncate_to(1)
    manager.shutdown(NOW_MS)
    again = manager_on(fs.after_power_failure()).get("t", 0)
    assert again is not None
    assert (again.log_end_offset, again.segments.base_offsets) == (1, [0, 1])
