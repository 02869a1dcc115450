"""The offset index: entries, look-ups in memory and in the file, damage."""

from random import Random

import pytest

from ottla.storage.errors import CorruptIndex
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.index.offset_index import OffsetIndex
from tests.doubles.memory_file_system import MemoryFileSystem

PATH = "/d/00000000000000001000.index"
BASE = 1000


def new(fs: MemoryFileSystem | None = None, stored: int = 0, room: int = 1 << 20) -> OffsetIndex:
    system = fs if fs is not None else MemoryFileSystem()
    system.make_directory("/d")
    return OffsetIndex(system, PATH, BASE, stored, room, OpenFiles())


def filled(fs: MemoryFileSystem, count: int) -> tuple[OffsetIndex, list[tuple[int, int]]]:
    index = new(fs)
    random = Random(1)
    entries = []
    offset, position = BASE, 0
    for _ in range(count):
        offset += random.randint(1, 5)
        entries.append((offset, position))
        index.append(offset, position)
        position += random.randint(1, 500)
    return index, entries


def test_entries_are_written_as_kafka_writes_them() -> None:
    fs = MemoryFileSystem()
    index = new(fs)
    index.append(BASE + 7, 4242)
    index.write()
    assert fs.content(PATH) == bytes.fromhex("0000000700001092")


@pytest.mark.parametrize("count", [0, 1, 2, 511, 512, 513, 3000])
def test_lookup_finds_the_last_entry_at_or_below(count: int) -> None:
    fs = MemoryFileSystem()
    index, entries = filled(fs, count)
    assert index.entries == count
    last = entries[-1][0] if entries else BASE
    for offset in range(BASE, last + 3, 1 if count < 600 else 7):
        below = [entry for entry in entries if entry[0] <= offset]
        assert index.lookup(offset) == (below[-1] if below else (BASE, 0))
    positions = [position for _, position in entries]
    for position in range(0, (positions[-1] if positions else 0) + 3, 97):
        expected = max((p for p in positions if p <= position), default=0)
        assert index.floor_by_position(position)[1] == expected
    assert index.last() == (entries[-1] if entries else (BASE, 0))
    assert [index.entry(number) for number in range(count)] == entries


def test_the_file_is_never_longer_than_its_entries() -> None:
    fs = MemoryFileSystem()
    index, entries = filled(fs, 700)
    assert len(fs.content(PATH)) == 4096
    index.close()
    assert len(fs.content(PATH)) == 700 * 8
    again = new(fs, 700 * 8)
    assert again.lookup(entries[300][0]) == entries[300]


@pytest.mark.parametrize("keep", [0, 1, 511, 512, 513, 690, 700])
def test_truncation_drops_entries_at_and_above(keep: int) -> None:
    fs = MemoryFileSystem()
    index, entries = filled(fs, 700)
    cut = entries[keep][0] if keep < 700 else entries[-1][0] + 1
    index.truncate_to(cut)
    assert index.entries == keep
    assert index.last() == (entries[keep - 1] if keep else (BASE, 0))
    index.append(cut + 10, 1 << 20)
    assert index.last() == (cut + 10, 1 << 20)
    index.close()
    assert len(fs.content(PATH)) == (keep + 1) * 8


def test_room_counts_down() -> None:
    index = new(room=8 * 3 + 5)
    assert index.entries_left == 3
    index.append(BASE + 1, 0)
    assert index.entries_left == 2


def test_reset_and_create_leave_an_empty_file() -> None:
    fs = MemoryFileSystem()
    index, _ = filled(fs, 600)
    index.reset()
    assert (index.entries, fs.content(PATH)) == (0, b"")
    index.append(BASE + 1, 5)
    index.create()
    assert (index.entries, fs.content(PATH)) == (0, b"")


def test_an_odd_length_and_unfilled_room_are_corrupt() -> None:
    fs = MemoryFileSystem()
    index, _ = filled(fs, 3)
    index.close()
    fs.overwrite(PATH, fs.content(PATH) + b"x")
    with pytest.raises(CorruptIndex, match="multiple"):
        new(fs, 25).check()
    fs.overwrite(PATH, fs.content(PATH)[:24] + bytes(80))
    with pytest.raises(CorruptIndex, match="do not ascend"):
        new(fs, 104).check()


def test_only_the_ascending_beginning_is_kept_as_sound() -> None:
    fs = MemoryFileSystem()
    index, entries = filled(fs, 20)
    index.close()
    content = fs.content(PATH)
    fs.overwrite(PATH, content[: 8 * 12] + bytes(8) + content[8 * 13 :])
    index = new(fs, 20 * 8)
    index.keep_valid(1 << 40)
    assert index.entries == 12
    index.keep_valid(entries[5][0])
    assert index.entries == 5


def test_a_moved_directory_is_followed() -> None:
    fs = MemoryFileSystem()
    index, entries = filled(fs, 600)
    fs.replace("/d", "/e")
    index.path = "/e/00000000000000001000.index"
    assert index.lookup(entries[2][0]) == entries[2]
    index.write()
    assert len(fs.content(index.path)) == 4800
