"""Outlines of records agree with the full decoder."""

from random import Random

import pytest

from ottla.protocol.records.batch import BATCH_OVERHEAD
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.section import decode_section
from ottla.storage.records.record_outline import Outline, outline
from tests.doubles.storage_logs import NOW_MS, NewRecord


def records(random: Random, count: int) -> list[NewRecord]:
    found: list[NewRecord] = []
    for _ in range(count):
        key = None if random.random() < 0.2 else random.randbytes(random.choice((0, 1, 60, 200)))
        value = None if random.random() < 0.2 else random.randbytes(random.choice((0, 5, 300)))
        headers = [("h", b"x" * 40)] * random.choice((0, 0, 2))
        found.append((NOW_MS + random.randint(-(10**6), 10**6), key, value, headers))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_same_columns_as_the_full_decoder(seed: int) -> None:
    random = Random(seed)
    count = random.choice((1, 3, 300))
    data = build_batch(records(random, count))[BATCH_OVERHEAD:]
    lines = outline(data, 0, len(data), count)
    whole = decode_section(data, 0, len(data), count)
    assert lines.offset_deltas == whole.offset_deltas
    assert lines.timestamp_deltas == whole.timestamp_deltas
    assert lines.keys == whole.keys
    assert lines.tombstones == [value is None for value in whole.values]
    assert lines.starts[0] == 0
    assert lines.starts[-1] == len(data)
    for index in range(count):  # each piece is a whole record
        piece = data[lines.starts[index] : lines.starts[index + 1]]
        assert decode_section(piece, 0, len(piece), 1).keys == [lines.keys[index]]


def test_records_of_one_length_between_others() -> None:
    """Decoded a column at a time, with varints of one, two and three bytes."""
    random = Random(3)
    new: list[NewRecord] = []
    for _ in range(60):
        key: bytes | None = random.randbytes(random.choice((4, 70)))
        if random.random() < 0.2:
            key = None
        size, late = random.choice((0, 9, 90, 9000)), random.choice((0, 5, 900, 10**5))
        for _ in range(random.choice((1, 7, 8, 30, 200))):
            value = None if size == 0 and random.random() < 0.5 else bytes(size)
            new.append((NOW_MS + random.randint(0, late), key and key[:-1] + b"x", value, []))
    for start in range(0, len(new), 100):
        part = new[start : start + random.choice((100, 900))]
        check(build_batch(part)[BATCH_OVERHEAD:], len(part))


def check(data: bytes, count: int) -> None:
    lines = outline(data, 0, len(data), count)
    whole = decode_section(data, 0, len(data), count)
    assert lines.offset_deltas == whole.offset_deltas
    assert lines.timestamp_deltas == whole.timestamp_deltas
    assert lines.keys == whole.keys
    assert lines.tombstones == [value is None for value in whole.values]
    keys = outline(data, 0, len(data), count, only_keys=True)
    assert (keys.keys, keys.offset_deltas) == (lines.keys, lines.offset_deltas)
    without = outline(data, 0, len(data), count, with_keys=False)
    assert without._replace(keys=[]) == lines._replace(keys=[])


def damaged_outline(random: Random, data: bytearray, count: int) -> Outline | None:
    """The outline of records of which some bytes are other ones; None if they are refused."""
    for _ in range(random.randint(1, 3)):
        data[random.randrange(len(data))] = random.randrange(256)
    try:
        lines = outline(bytes(data), 0, len(data), count)
    except InvalidRecordError:
        return None
    assert lines.starts[-1] == len(data)
    assert lines.starts == sorted(lines.starts)
    return lines


@pytest.mark.parametrize("seed", range(200))
def test_damaged_records_of_one_length_are_refused_or_within_bounds(seed: int) -> None:
    random = Random(seed)
    new: list[NewRecord] = [(NOW_MS, b"key", b"value", [])] * 40
    data = bytearray(build_batch(new)[BATCH_OVERHEAD:])
    lines = damaged_outline(random, data, 40)
    if lines is None:
        return
    columns = lines.keys, lines.offset_deltas, lines.timestamp_deltas, lines.tombstones
    assert {len(column) for column in columns} == {40}


@pytest.mark.parametrize("seed", range(200))
def test_damaged_records_are_refused_or_within_bounds(seed: int) -> None:
    random = Random(seed)
    data = bytearray(build_batch(records(random, 5))[BATCH_OVERHEAD:])
    damaged_outline(random, data, 5)


def test_a_wrong_count_is_refused() -> None:
    data = build_batch(records(Random(1), 3))[BATCH_OVERHEAD:]
    for count in (2, 4, 10**6, -1):
        with pytest.raises(InvalidRecordError):
            outline(data, 0, len(data), count)
