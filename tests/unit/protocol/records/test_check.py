"""What `check_records` accepts is what readers can read."""

from __future__ import annotations

import random

import pytest

from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.check import check_records
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.section import decode_section

BATCH_OVERHEAD = 61


def section(count: int, rng: random.Random) -> bytes:
    """Records of all sizes, with and without keys, values and headers."""
    records = [
        (
            rng.choice((0, 5, 100, 10_000, 2**41)),
            rng.choice((None, b"", b"k", b"k" * 70, b"k" * 9000)),
            rng.choice((None, b"", b"v", b"v" * 70, b"v" * 9000, b"v" * 70_000)),
            rng.choice(([], [("name", b"value")], [("name", None), ("", b"")])),
        )
        for _ in range(count)
    ]
    return build_batch(records)[BATCH_OVERHEAD:]


def uniform(count: int, rng: random.Random) -> bytes:
    """Records of one length, as most producers send; timestamps may grow by a byte."""
    key = rng.choice((None, b"", b"k" * 8, b"k" * 100))
    value = rng.choice((None, b"", b"v" * 20, b"v" * 200))
    step = rng.choice((0, 1, 3, 100))
    records = [(1000 + number * step, key, value, []) for number in range(count)]
    return build_batch(records)[BATCH_OVERHEAD:]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
def test_valid_records_pass(count: int) -> None:
    data = section(count, random.Random(count))
    check_records(data, 0, len(data), count)
    check_records(b"before" + data + b"after", 6, 6 + len(data), count)


@pytest.mark.parametrize("count", [7, 8, 63, 64, 65, 1000, 8191, 8192, 8200])
def test_valid_records_of_one_length_pass(count: int) -> None:
    for seed in range(8):
        data = uniform(count, random.Random(seed))
        check_records(b"before" + data + b"after", 6, 6 + len(data), count)
        with pytest.raises(InvalidRecordError):
            check_records(data, 0, len(data), count - 1)


def test_damaged_records_are_refused_exactly_where_readers_fail() -> None:
    rng = random.Random(7)
    accepted = 0
    for _ in range(4000):
        make, counts = rng.choice(((section, (1, 2, 3, 70)), (uniform, (9, 64, 65, 150))))
        count = rng.choice(counts)
        data = bytearray(make(count, rng))
        for _ in range(rng.choice((1, 1, 3))):
            place = rng.randrange(len(data) + 1)
            kind = rng.randrange(3)
            if kind == 0:
                values = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, rng.randrange(256))
                data[place : place + 1] = bytes([rng.choice(values)])
            elif kind == 1:
                del data[place : place + rng.choice((1, 9))]
            else:
                data[place:place] = rng.randbytes(rng.choice((1, 9)))
        claimed = count + rng.choice((0, 0, 0, 1, -1))
        damaged = bytes(data)
        try:
            found = decode_section(damaged, 0, len(damaged), claimed)
            readable = found.offset_deltas == list(range(claimed))
        except InvalidRecordError:
            readable = False
        try:
            newest = check_records(damaged, 0, len(damaged), claimed)
        except InvalidRecordError:
            assert not readable
        else:
            assert readable, damaged.hex()
            assert newest == max(-1, *found.timestamp_deltas), damaged.hex()
            accepted += 1
    assert accepted > 50  # damage inside of values stays unseen


@pytest.mark.parametrize(
    ("data", "count", "reason"),
    [
        (b"", 1, "cannot be in"),
        (bytes.fromhex("0c000000010100"), 2**31 - 1, "cannot be in"),
        (
            bytes.fromhex("0d000000010100"),
            1,
            "record 0 .* add up to its length",
        ),  # a negative length
        (bytes.fromhex("0c000001010100"), 1, "offset"),
        (bytes.fromhex("0c00000001010000"), 1, "1 bytes follow"),
        (bytes.fromhex("0c000000017e00"), 1, "beyond its end"),
        (bytes.fromhex("0c000000010180"), 1, "record 0"),
    ],
)
def test_reasons(data: bytes, count: int, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        check_records(data, 0, len(data), count)
