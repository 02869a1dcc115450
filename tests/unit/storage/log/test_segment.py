"""A segment: appends with their index entries, look-ups, damage, truncation, renaming."""

from pathlib import Path

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.errors import SegmentOffsetOverflow
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.index.offset_index import OffsetIndex
from ottla.storage.log.batch_scan import CorruptLog
from ottla.storage.log.segment import MAX_RELATIVE_OFFSET, Segment
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, batch_of

BASE = 100


def new(fs: MemoryFileSystem, **settings: object) -> Segment:
    fs.make_directory("/d")
    segment = opened(fs, **settings)
    segment.create_files()
    return segment


def opened(fs: MemoryFileSystem, **settings: object) -> Segment:
    config = LogConfig(**{"index_interval_bytes": 200, **settings})
    return Segment(
        fs, "/d", BASE, config, OpenFiles(), created_ms=NOW_MS, sizes=fs.list_files("/d")
    )


def fill(segment: Segment, count: int = 40, step_ms: int = 10) -> None:
    """Batches of two records with the offsets BASE, BASE + 2 and so on."""
    for number in range(count):
        offset = BASE + 2 * number
        timestamp = NOW_MS + number * step_ms
        batch = batch_of(
            [(timestamp, b"k", b"v" * 30, []), (timestamp + 1, None, None, [])], base_offset=offset
        )
        segment.append(batch, offset + 1, timestamp + 1)


def test_a_new_segment_has_its_three_files() -> None:
    fs = MemoryFileSystem()
    new(fs)
    assert [Path(path).suffix for path in fs.paths()] == [".index", ".log", ".timeindex"]


def test_every_offset_is_found() -> None:
    segment = new(MemoryFileSystem())
    fill(segment)
    assert segment.offset_index.entries > 5
    for offset in range(BASE, BASE + 80):
        place = segment.find_batch(offset)
        assert place is not None
        assert place.base_offset == offset - offset % 2
        assert segment.position_of(offset) == place.position
    assert segment.find_batch(BASE + 80) is None
    assert segment.position_of(BASE + 80) == segment.size
    assert segment.next_offset() == BASE + 80


def test_what_was_written_last_is_found_without_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = new(MemoryFileSystem())
    fill(segment)
    lookups: list[int] = []
    lookup = OffsetIndex.lookup

    def counted(index: OffsetIndex, offset: int) -> tuple[int, int]:
        lookups.append(offset)
        return lookup(index, offset)

    monkeypatch.setattr(OffsetIndex, "lookup", counted)
    assert segment.position_of(BASE + 78) == segment.position_of(BASE + 79) < segment.size
    assert segment.find_batch(BASE + 80) is None
    assert lookups == []
    segment.position_of(BASE + 77)
    assert lookups == [BASE + 77]


def test_any_error_of_an_index_undoes_the_append(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = new(MemoryFileSystem(), index_interval_bytes=0)
    fill(segment)
    size, offset = segment.size, BASE + 80
    batch = batch_of(2, base_offset=offset)

    def no_memory(index: OffsetIndex, offset: int, position: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(OffsetIndex, "append", no_memory)
        with pytest.raises(MemoryError):
            segment.append(batch, offset + 1, NOW_MS)
    assert segment.size == size
    segment.append(batch, offset + 1, NOW_MS)
    assert segment.position_of(offset) == size
    assert segment.next_offset() == offset + 2


def test_the_place_of_the_last_write_is_forgotten_where_it_may_be_wrong() -> None:
    fs = MemoryFileSystem()
    segment = new(fs)
    fill(segment)
    last = segment.position_of(BASE + 78)
    segment.truncate_to(BASE + 78)
    assert segment.find_batch(BASE + 78) is None
    segment.append(batch_of(2, base_offset=BASE + 90), BASE + 91, NOW_MS)
    assert segment.position_of(BASE + 78) == segment.position_of(BASE + 91) == last
    segment.undo_append(last, BASE + 91)
    assert segment.find_batch(BASE + 90) is None
    # Opened again: what is before the first write is not known.
    segment.close()
    again = opened(fs)
    again.append(batch_of(2, base_offset=BASE + 80), BASE + 81, NOW_MS)
    assert again.position_of(BASE) == 0
    assert again.position_of(BASE + 77) < again.position_of(BASE + 80)
    assert again.find_batch(BASE + 82) is None


def test_index_entries_come_as_often_as_kafka_writes_them() -> None:
    """The first batch after more than `index.interval.bytes` gets one, with its last offset."""
    segment = new(MemoryFileSystem())
    fill(segment, 12)
    size = segment.size // 12
    every = 200 // size + 1  # so many batches are more than the interval
    expected = [(BASE + 2 * n + 1, n * size) for n in range(every, 12, every)]
    found = [segment.offset_index.entry(n) for n in range(segment.offset_index.entries)]
    assert found == expected


def test_a_closed_segment_is_the_same_when_opened_again() -> None:
    fs = MemoryFileSystem()
    segment = new(fs)
    fill(segment)
    newest = segment.newest()
    segment.close()
    again = opened(fs)
    assert again.newest() == newest == (NOW_MS + 391, BASE + 79)
    assert again.time_index.last() == newest
    assert again.next_offset() == BASE + 80
    assert again.rolling_timestamp() == NOW_MS + 1
    assert again.largest_timestamp() == NOW_MS + 391


def test_timestamps_are_found() -> None:
    segment = new(MemoryFileSystem())
    fill(segment)
    place = segment.find_timestamp(NOW_MS + 105, BASE)
    assert place is not None
    assert place.base_offset == BASE + 22
    place = segment.find_timestamp(NOW_MS, BASE + 30)
    assert place is not None
    assert place.base_offset == BASE + 30
    assert segment.find_timestamp(NOW_MS + 1000, BASE) is None
    assert segment.find_timestamp(NOW_MS, BASE + 1000) is None


def test_an_older_timestamp_does_not_change_the_newest() -> None:
    segment = new(MemoryFileSystem(), index_interval_bytes=0)
    for number, timestamp in enumerate([50, 40, 60, 10]):
        segment.append(batch_of(1, base_offset=BASE + number), BASE + number, timestamp)
    assert segment.newest() == (60, BASE + 2)
    assert segment.time_index.last() == (60, BASE + 2)


@pytest.mark.parametrize("kind", ["zero", "shift", "length", "swap"])
def test_a_damaged_index_is_noticed_and_built_again(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()
    segment = new(fs)
    fill(segment)
    segment.close()
    path = segment.offset_index.path
    content = bytearray(fs.content(path))
    if kind == "zero":
        content[40:48] = bytes(8)
    elif kind == "shift":
        content[44:48] = (123).to_bytes(4, "big")
    elif kind == "length":
        content[44:48] = (1 << 30).to_bytes(4, "big")
    else:
        content[40:44], content[48:52] = content[48:52], content[40:44]
    fs.overwrite(path, bytes(content))
    again = opened(fs)
    for offset in range(BASE, BASE + 80):
        place = again.find_batch(offset)
        assert place is not None
        assert place.base_offset == offset - offset % 2
    # A wrong entry that leads to a batch before the right one costs time, nothing else.
    if kind in ("shift", "length"):
        assert "Rebuilding the indexes" in caplog.text
        again.close()
        assert fs.content(path) != bytes(content)


def test_a_damaged_log_is_reported_not_guessed_about() -> None:
    fs = MemoryFileSystem()
    segment = new(fs)
    fill(segment)
    segment.close()
    path = segment.log.path
    content = bytearray(fs.content(path))
    content[300:700] = bytes(400)
    fs.overwrite(path, bytes(content))
    with pytest.raises(CorruptLog):
        opened(fs).find_batch(BASE + 7)


def test_rolling_by_size_time_index_and_reach() -> None:
    config = LogConfig(segment_bytes=1000, segment_ms=500, segment_index_bytes=24)
    segment = new(MemoryFileSystem(), segment_index_bytes=24, index_interval_bytes=0)

    def rolls(size: int = 10, timestamp: int = NOW_MS, offset: int = BASE, now: int = 0) -> bool:
        return segment.should_roll(size, timestamp, offset, now, config, 0)

    assert not rolls(1000)
    assert rolls(1001)
    assert not rolls(timestamp=NOW_MS + 10_000), "an empty segment is not rolled by time"
    segment.append(batch_of(1, base_offset=BASE), BASE, NOW_MS)
    assert not rolls(timestamp=NOW_MS + 500)
    assert rolls(timestamp=NOW_MS + 501)
    assert segment.should_roll(10, NOW_MS + 401, BASE, 0, config, 100), "jitter makes it earlier"
    assert rolls(timestamp=-1, now=NOW_MS + 501), "without a timestamp the creation counts"
    assert not rolls(offset=BASE + MAX_RELATIVE_OFFSET)
    assert rolls(offset=BASE + MAX_RELATIVE_OFFSET + 1)
    assert not rolls()
    segment.append(batch_of(1, base_offset=BASE + 1), BASE + 1, NOW_MS + 1)
    assert rolls(), "the time index has one place left, for its last entry"


def test_truncation_takes_whole_batches_and_their_entries() -> None:
    segment = new(MemoryFileSystem())
    fill(segment)
    size = segment.size // 40
    assert segment.truncate_to(BASE + 31) == 25 * size
    assert segment.next_offset() == BASE + 30
    assert segment.offset_index.last()[0] < BASE + 31
    assert segment.newest() == (NOW_MS + 141, BASE + 29)
    assert segment.truncate_to(BASE + 31) == 0
    assert segment.truncate_to(BASE) == 15 * size
    assert (segment.size, segment.offset_index.entries) == (0, 0)


def test_renaming_and_moving() -> None:
    fs = MemoryFileSystem()
    segment = new(fs)
    fill(segment, 3)
    piece = segment.log.slice(0, 10)
    before = piece.read()
    segment.change_suffix(".deleted")
    assert all(path.endswith(".deleted") for path in fs.paths())
    assert segment.paths()[0] == "/d/00000000000000000100.log.deleted"
    assert piece.read() == before
    fs.replace("/d", "/e")
    segment.move_to("/e")
    segment.release()
    assert segment.next_offset() == BASE + 6
    assert repr(segment).startswith("Segment(/e/")


def test_offsets_out_of_reach_are_refused() -> None:
    segment = new(MemoryFileSystem())
    segment.check_offset(BASE + MAX_RELATIVE_OFFSET)
    with pytest.raises(SegmentOffsetOverflow):
        segment.check_offset(BASE + MAX_RELATIVE_OFFSET + 1)
    with pytest.raises(SegmentOffsetOverflow):
        segment.check_offset(BASE - 1)
