"""The time index: ascending timestamps, look-ups, damage."""

import pytest

from ottla.storage.errors import CorruptIndex
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.index.time_index import TimeIndex
from tests.doubles.memory_file_system import MemoryFileSystem

PATH = "/d/00000000000000000100.timeindex"


def new(fs: MemoryFileSystem | None = None, stored: int = 0, room: int = 1200) -> TimeIndex:
    system = fs if fs is not None else MemoryFileSystem()
    system.make_directory("/d")
    return TimeIndex(system, PATH, 100, stored, room, OpenFiles())


def test_entries_are_written_as_kafka_writes_them() -> None:
    fs = MemoryFileSystem()
    index = new(fs)
    index.maybe_append(0x0102030405060708, 105)
    index.close()
    assert fs.content(PATH) == bytes.fromhex("010203040506070800000005")


def test_only_newer_timestamps_are_added() -> None:
    index = new()
    for timestamp, offset in [(10, 101), (10, 102), (5, 103), (12, 104), (-1, 105)]:
        index.maybe_append(timestamp, offset)
    assert [index.entry(n) for n in range(index.entries)] == [(10, 101), (12, 104)]
    assert index.last() == (12, 104)


def test_lookup() -> None:
    index = new()
    assert index.lookup(50) == (-1, 100)
    index.maybe_append(10, 101)
    index.maybe_append(20, 104)
    assert index.lookup(9) == (-1, 100)
    assert index.lookup(10) == (10, 101)
    assert index.lookup(19) == (10, 101)
    assert index.lookup(99) == (20, 104)


def test_truncation_and_appending_again() -> None:
    index = new()
    for number in range(10):
        index.maybe_append(number * 10, 100 + number)
    index.truncate_to(105)
    assert index.last() == (40, 104)
    index.maybe_append(45, 105)
    assert index.last() == (45, 105)


def test_one_place_is_kept_for_the_last_entry() -> None:
    index = new(room=36)
    assert index.entries_left == 2
    index.maybe_append(1, 101)
    index.maybe_append(2, 102)
    assert index.entries_left == 0
    index.maybe_append(3, 103)
    assert index.size_in_bytes == 36


def test_loaded_entries_are_remembered() -> None:
    fs = MemoryFileSystem()
    index = new(fs)
    index.maybe_append(10, 101)
    index.close()
    again = new(fs, 12)
    again.maybe_append(9, 102)
    assert again.entries == 1
    again.maybe_append(11, 102)
    assert again.entries == 2
    again.reset()
    again.maybe_append(1, 101)
    assert again.last() == (1, 101)


def test_damage_is_noticed() -> None:
    fs = MemoryFileSystem()
    index = new(fs)
    index.maybe_append(10, 101)
    index.maybe_append(20, 102)
    index.close()
    fs.overwrite(PATH, fs.content(PATH) + b"123")
    with pytest.raises(CorruptIndex, match="multiple"):
        new(fs, 27).check()
    fs.overwrite(PATH, fs.content(PATH)[:24] + bytes(24))
    with pytest.raises(CorruptIndex, match=r"do not ascend"):
        new(fs, 48).check()
    sound = new(fs, 48)
    sound.keep_valid(1000)
    assert sound.last() == (20, 102)
    new(fs, 0).check()
