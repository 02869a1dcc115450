"""The `.log` file: appends, slices, preallocation, failures."""

import errno
import os

import pytest

from ottla.storage.files.open_files import OpenFiles
from ottla.storage.log.segment_file import SegmentFile
from tests.doubles.memory_file_system import MemoryFileSystem

PATH = "/d/00000000000000000000.log"


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.make_directory("/d")
    return system


def new(fs: MemoryFileSystem) -> SegmentFile:
    file = SegmentFile(fs, PATH, 0, OpenFiles())
    file.create()
    return file


def test_appends_go_to_the_end_and_slices_come_back(fs: MemoryFileSystem) -> None:
    file = new(fs)
    file.append(b"hello ")
    file.append(bytearray(b"world"))
    assert file.size == 11
    assert file.read(6, 100) == b"world"
    piece = file.slice(3, 5)
    file.close()
    assert piece.read() == b"lo wo"
    assert os.fstat(piece.fd).st_size == 11


def test_a_failed_write_leaves_the_size_and_can_be_removed(fs: MemoryFileSystem) -> None:
    file = new(fs)
    file.append(b"hello")
    fs.fail("pwrite", short=True)
    fs.fail("pwrite", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        file.append(b"0123456789")
    assert file.size == 5
    assert fs.content(PATH) == b"hello01234"
    file.remove_partial_write()
    assert fs.content(PATH) == b"hello"


def test_a_short_write_is_completed(fs: MemoryFileSystem) -> None:
    file = new(fs)
    fs.fail("pwrite", short=True)
    file.append(b"0123456789")
    assert fs.content(PATH) == b"0123456789"


def test_preallocated_room_is_released(fs: MemoryFileSystem) -> None:
    file = new(fs)
    file.preallocate(100)
    file.append(b"abc")
    assert len(fs.content(PATH)) == 100
    assert file.read(0, 100) == b"abc"
    file.trim()
    assert fs.content(PATH) == b"abc"


def test_truncation(fs: MemoryFileSystem) -> None:
    file = new(fs)
    file.append(b"hello")
    file.truncate(2)
    assert (file.size, fs.content(PATH)) == (2, b"he")


def test_a_file_that_is_gone_is_not_created_again(fs: MemoryFileSystem) -> None:
    file = new(fs)
    file.close()
    fs.remove(PATH)
    with pytest.raises(FileNotFoundError):
        file.read(0, 1)
    assert not fs.exists(PATH)
