"""What both indexes share: blocks in memory, giving up and opening the file again."""

import errno
from typing import Any

import pytest

from ottla.storage.files.open_files import OpenFiles
from ottla.storage.index.offset_index import OffsetIndex
from tests.doubles.memory_file_system import MemoryFileSystem


def test_old_entries_are_found_again_after_the_file_was_evicted() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    files = OpenFiles(1)
    indexes = [OffsetIndex(fs, f"/d/{n}", 0, 0, 1 << 20, files) for n in range(3)]
    for index in indexes:
        for number in range(1, 601):
            index.append(number * 10, number * 100)
    for _ in range(2):
        for index in indexes:
            assert index.lookup(55) == (50, 500)
            assert len(files) == 1


def test_appends_do_not_touch_the_disk_until_a_block_is_full() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    index = OffsetIndex(fs, "/d/i", 0, 0, 1 << 20, OpenFiles())
    for number in range(1, 512):
        index.append(number, number)
    assert fs.calls[-1][0] == "make_directory"
    index.append(512, 512)
    assert len(fs.content("/d/i")) == 4096


def test_discard_forgets_what_was_not_written() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    index = OffsetIndex(fs, "/d/i", 0, 0, 1 << 20, OpenFiles())
    index.append(5, 5)
    index.discard()
    assert index.entries == 0
    assert index.size_in_bytes == 0


class NearlyFull(MemoryFileSystem):
    """Writes a part, then finds no space."""

    full = False

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        if not self.full:
            self.full = True
            return super().pwrite(descriptor, bytes(data)[:3], offset)
        raise OSError(errno.ENOSPC, "No space left on device")


def test_entries_are_taken_after_a_short_write_whose_error_is_kept() -> None:
    fs = NearlyFull()
    fs.make_directory("/d")
    index = OffsetIndex(fs, "/d/i", 0, 0, 1 << 20, OpenFiles())
    index.append(1, 10)
    with pytest.raises(OSError, match="No space left") as kept:
        index.write()
    index.append(2, 20)
    assert index.entries == 2, kept
