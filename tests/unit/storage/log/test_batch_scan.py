"""Walking over batches, and noticing where there is none."""

from random import Random

import pytest

from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.record import Record
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.log import batch_scan
from ottla.storage.log.batch_scan import CorruptLog, check_checksum, find, walk, walk_batches
from ottla.storage.log.segment_file import SegmentFile
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, batch_of


def file_with(*parts: bytes) -> SegmentFile:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    file = SegmentFile(fs, "/d/log", 0, OpenFiles())
    file.create()
    for part in parts:
        file.append(part)
    return file


def some_batches(count: int, sizes: tuple[int, int] = (1, 900)) -> list[bytearray]:
    random = Random(3)
    found = []
    for offset in range(count):
        records = [(NOW_MS + offset, None, bytes(random.randint(*sizes)), [])]
        found.append(batch_of(records, base_offset=offset, leader_epoch=4))
    return found


@pytest.mark.parametrize("sizes", [(1, 20), (300, 400), (1000, 1100), (3000, 9000)])
def test_walking_gives_every_batch_with_its_place(sizes: tuple[int, int]) -> None:
    batches = some_batches(60, sizes)
    file = file_with(*batches)
    places = list(walk(file, 0, file.size))
    assert [place.base_offset for place in places] == list(range(60))
    assert [place.size for place in places] == [len(batch) for batch in batches]
    assert {place.leader_epoch for place in places} == {4}
    whole = list(walk_batches(file, 0, file.size))
    assert [place for place, _ in whole] == places
    assert [bytes(content) for _, content in whole] == [bytes(batch) for batch in batches]


def test_batches_longer_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_scan, "CHUNK_BYTES", 1000)
    batches = some_batches(40, (1, 2500))
    file = file_with(*batches)
    found = [bytes(content) for _, content in walk_batches(file, 0, file.size)]
    assert found == [bytes(batch) for batch in batches]


def test_find_gives_the_first_batch_that_ends_there_or_later() -> None:
    file = file_with(*some_batches(30))
    for offset in range(30):
        place = find(file, 0, file.size, offset)
        assert place is not None
        assert place.base_offset == offset
    assert find(file, 0, file.size, 30) is None


def test_messages_of_old_magics_are_batches_of_their_own() -> None:
    records = [Record(offset, NOW_MS + offset, 0, b"k", b"v", []) for offset in range(3)]
    old = build_message_set(records, magic=1)
    older = build_message_set([records[0]._replace(offset=9)], magic=0)
    file = file_with(old, older, batch_of(2, base_offset=10))
    places = list(walk(file, 0, file.size))
    assert [(place.magic, place.base_offset, place.last_offset) for place in places] == [
        (1, 0, 0), (1, 1, 1), (1, 2, 2), (0, 9, 9), (2, 10, 11),
    ]  # fmt: skip
    assert [place.max_timestamp for place in places] == [
        NOW_MS, NOW_MS + 1, NOW_MS + 2, -1, NOW_MS + 1,
    ]  # fmt: skip
    for place, content in walk_batches(file, 0, file.size):
        check_checksum("log", place, content)


@pytest.mark.parametrize("tail", [b"\x00" * 100, b"\xff" * 70, b"abc", bytes(16) + b"\x07" * 60])
def test_what_is_no_batch_is_reported_with_its_position(tail: bytes) -> None:
    good = some_batches(2)
    file = file_with(*good, tail)
    for walker in (walk, walk_batches):
        found = walker(file, 0, file.size)
        assert next(found)
        assert next(found)
        with pytest.raises(CorruptLog) as caught:
            next(found)
        assert caught.value.position == sum(map(len, good))


def test_a_batch_cut_off_is_damage() -> None:
    good = some_batches(2)
    file = file_with(good[0], good[1][:-1])
    with pytest.raises(CorruptLog, match="is truncated"):
        list(walk(file, 0, file.size))
    with pytest.raises(CorruptLog, match="is truncated"):
        list(walk_batches(file, 0, file.size))


def test_a_wrong_checksum_is_damage() -> None:
    batch = some_batches(1)[0]
    batch[-1] ^= 1
    file = file_with(batch)
    ((place, content),) = walk_batches(file, 0, file.size)
    with pytest.raises(CorruptLog, match="checksum"):
        check_checksum("log", place, content)
