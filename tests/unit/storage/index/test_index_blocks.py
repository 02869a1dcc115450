"""Reading indexes in blocks: bounded memory, files that grow or are cut short, failing disks."""

from __future__ import annotations

import errno

import pytest

from ottla.storage.errors import CorruptIndex, LogDirectoryOffline
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.index.index_blocks import BLOCK_ENTRIES, BLOCKS_MAX
from ottla.storage.index.offset_index import OffsetIndex
from ottla.storage.index.time_index import TimeIndex
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, manager_on

COUNT = BLOCK_ENTRIES * 12 + 100


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    return fs


def offset_index(fs: MemoryFileSystem, count: int = COUNT) -> OffsetIndex:
    index = OffsetIndex(fs, "/d/i", 1000, 0, 1 << 20, OpenFiles())
    for number in range(1, count + 1):
        index.append(1000 + number * 10, number * 100)
    index.write()
    return index


def test_every_entry_is_found_in_any_order(fs: MemoryFileSystem) -> None:
    index = offset_index(fs)
    numbers = [*range(1, COUNT), *range(COUNT - 1, 0, -7), *range(1, COUNT, 511)]
    for number in numbers:
        expected = (1000 + number * 10, number * 100)
        assert index.lookup(1000 + number * 10) == expected
        assert index.lookup(1000 + number * 10 + 9) == expected
        assert index.floor_by_position(number * 100 + 99)[1] == number * 100
    assert index.lookup(1009) == (1000, 0)
    assert index.floor_by_position(99)[1] == 0
    assert index.lookup(1 << 30) == (1000 + COUNT * 10, COUNT * 100)


def test_every_timestamp_is_found(fs: MemoryFileSystem) -> None:
    index = TimeIndex(fs, "/d/t", 1000, 0, 1 << 20, OpenFiles())
    for number in range(1, COUNT + 1):
        index.maybe_append(number * 10, 1000 + number)
    for number in [*range(1, COUNT, 3), *range(COUNT - 1, 0, -500)]:
        assert index.lookup(number * 10 + 9) == (number * 10, 1000 + number)
    assert index.lookup(9) == (-1, 1000)


def test_a_block_that_was_read_grows_and_shrinks_with_its_file(fs: MemoryFileSystem) -> None:
    index = offset_index(fs, 10)
    assert index.lookup(5000) == (1100, 1000)
    index.append(1110, 1100)
    index.write()
    assert index.lookup(5000) == (1110, 1100)
    index.truncate_to(1050)
    assert index.lookup(5000) == (1040, 400)
    index.append(1055, 777)
    index.write()
    assert index.lookup(5000) == (1055, 777)
    assert index.floor_by_position(5000)[1] == 777


def test_the_memory_of_an_index_is_bounded(fs: MemoryFileSystem) -> None:
    index = offset_index(fs)
    for number in range(1, COUNT, 5):
        index.lookup(1000 + number * 10)
    blocks = index._blocks
    assert len(blocks._blocks) == BLOCKS_MAX
    assert sum(map(len, blocks._blocks.values())) <= 32 << 10
    assert len(blocks._firsts) == 13 * 8
    blocks.release()
    assert not blocks._blocks
    assert not blocks._firsts
    assert not blocks.hot_keys


def test_neighbouring_lookups_read_nothing(fs: MemoryFileSystem) -> None:
    index = offset_index(fs)
    index.lookup(20_000)
    fs.calls.clear()
    for offset in range(20_000, 20_500):
        index.lookup(offset)
    assert fs.calls == []


def test_a_file_that_was_cut_short_is_a_corrupt_index(fs: MemoryFileSystem) -> None:
    index = offset_index(fs)
    fs.overwrite("/d/i", fs.content("/d/i")[:5000])
    with pytest.raises(CorruptIndex, match="the file ends at"):
        index.lookup(1000 + COUNT * 10)


def test_a_log_rebuilds_an_index_that_was_cut_short_behind_its_back() -> None:
    """With a memory map this was a SIGBUS."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, index_interval_bytes=1)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for _ in range(600):
        append(log)
    log.roll(NOW_MS)
    log.read(100, 1000, up_to=600)
    first = log.segments.first
    fs.overwrite(first.offset_index.path, b"")
    first.offset_index._blocks.release()
    info = log.read(300, 1000, up_to=600)
    assert info.first_batch_base_offset == 300
    assert manager.offline_directories == []
    assert len(fs.content(first.offset_index.path)) == first.offset_index.size_in_bytes > 0


def test_an_index_that_cannot_be_read_takes_its_directory_offline_and_no_other() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"), index_interval_bytes=1)
    logs = [manager.get_or_create("t", number, now_ms=NOW_MS) for number in range(2)]
    for log in logs:
        for _ in range(600):
            append(log)
        log.roll(NOW_MS)
    broken = logs[0]
    fs.fail("pread", errno.EIO, path_part=broken.segments.first.offset_index.path)
    with pytest.raises(LogDirectoryOffline):
        broken.read(100, 1000, up_to=600)
    assert manager.offline_directories == [broken.log_directory.path]
    assert logs[1].read(100, 1000, up_to=600).first_batch_base_offset == 100
