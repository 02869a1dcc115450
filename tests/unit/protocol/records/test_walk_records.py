"""Walks say the same as the full decoder, and refuse what it refuses."""

from random import Random

import pytest

from ottla.protocol.records.batch import BATCH_OVERHEAD
from ottla.protocol.records.builder import build_batch, encode_record
from ottla.protocol.records.check import walk_records
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.section import Section, decode_section
from tests.doubles.storage_logs import NOW_MS, NewRecord


def records(random: Random, count: int) -> list[NewRecord]:
    found: list[NewRecord] = []
    for _ in range(count):
        key = None if random.random() < 0.2 else random.randbytes(random.choice((0, 1, 60, 200)))
        value = None if random.random() < 0.2 else random.randbytes(random.choice((0, 5, 20_000)))
        headers = [("h", b"x" * 40), ("", None)] * random.choice((0, 0, 2))
        found.append((NOW_MS + random.randint(-(10**10), 10**10), key, value, headers))
    return found


def decoded(data: bytes, count: int) -> Section | None:
    try:
        return decode_section(data, 0, len(data), count)
    except InvalidRecordError:
        return None


@pytest.mark.parametrize("seed", range(20))
def test_the_same_as_the_full_decoder(seed: int) -> None:
    random = Random(seed)
    count = random.choice((1, 3, 300))
    data = build_batch(records(random, count))[BATCH_OVERHEAD:]
    walk = walk_records(data, count)
    whole = decode_section(data, 0, len(data), count)
    assert walk.timestamp_deltas == whole.timestamp_deltas
    assert walk.keyless == [index for index, key in enumerate(whole.keys) if key is None]
    assert walk.is_in_order


@pytest.mark.parametrize("seed", range(400))
def test_damage_is_seen_where_the_full_decoder_sees_it(seed: int) -> None:
    random = Random(seed)
    count = random.choice((1, 2, 5))
    data = bytearray(build_batch(records(random, count))[BATCH_OVERHEAD:])
    for _ in range(random.choice((1, 1, 3))):
        data[random.randrange(min(len(data), 400))] = random.randrange(256)
    if random.random() < 0.2:
        del data[random.randrange(len(data)) :]
    whole = decoded(bytes(data), count)
    if whole is None:
        with pytest.raises(InvalidRecordError):
            walk_records(bytes(data), count)
        return
    walk = walk_records(bytes(data), count)
    assert walk.timestamp_deltas == whole.timestamp_deltas
    assert walk.is_in_order == (whole.offset_deltas == list(range(count)))


def test_the_record_is_named() -> None:
    data = build_batch([(NOW_MS, b"k", b"v", [])] * 3)[BATCH_OVERHEAD:]
    with pytest.raises(InvalidRecordError, match="record 2 "):
        walk_records(data[:-1] + b"\x08", 3)
    with pytest.raises(InvalidRecordError, match=r"\d+ bytes follow the last record"):
        walk_records(data + b"\x00", 3)
    with pytest.raises(InvalidRecordError, match="cannot be in"):
        walk_records(data, 1_000)


def test_offsets_out_of_order_are_reported() -> None:
    data = bytearray()
    for delta in (0, 0, 5):
        encode_record(data, delta, 0, b"k", None, None)
    assert not walk_records(bytes(data), 3).is_in_order
