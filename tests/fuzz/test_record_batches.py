"""Fuzz of everything that reads records. The invariant: any bytes either parse or raise a
RecordsError, in time and memory that grow with the bytes and the given bound, not with what the
bytes claim.

Bytes come from seeds: good batches of every magic and codec with damage, with right and wrong
checksums, and pure noise.
"""

import random
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from ottla.protocol.records.batch import LOG_APPEND_TIME, patch_max_timestamp
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import CODEC_NAMES, decompress
from ottla.protocol.records.control import end_transaction_marker, read_end_transaction_marker
from ottla.protocol.records.convert import down_convert, up_convert
from ottla.protocol.records.crc32c import crc32c
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.reader import iterate_entries, read_records
from ottla.protocol.records.record import NewRecord
from tests.doubles.record_batches import iterate_batches
from tests.doubles.record_strategies import as_rows

BOUND = 200_000
INTERESTING = (0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
NUMBERS = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x0f",
    b"\x80\0\0\0",
    b"\0\0\0\0",
)
# A record with its fields, of seven bytes at least, may stand for some objects.
MEMORY_PER_BYTE = 150


def make_seeds() -> list[bytes]:
    records: list[NewRecord] = [
        (1000 + index, b"k" * index, b"value %d " % index * 9, [("h", b"x"), ("n", None)])
        for index in range(12)
    ]
    rows = as_rows(records, 3)
    seeds = [build_batch(records, codec=codec) for codec in range(5)]
    seeds += [
        build_message_set(rows, magic=magic, codec=codec) for magic in (0, 1) for codec in range(4)
    ]
    seeds.append(
        end_transaction_marker(
            committed=True, coordinator_epoch=1, producer_id=1, producer_epoch=1, timestamp_ms=1
        )
    )
    seeds.append(seeds[0] + seeds[6] + seeds[3])
    return seeds


SEEDS = make_seeds()


def with_right_checksum(buffer: bytearray) -> None:
    """So that the damage gets further than the checksum."""
    if len(buffer) > 61 and buffer[16] == 2:
        end = 12 + int.from_bytes(buffer[8:12], "big", signed=True)
        buffer[17:21] = crc32c(memoryview(buffer)[21 : max(end, 21)]).to_bytes(4, "big")
    elif len(buffer) > 26:
        end = 12 + int.from_bytes(buffer[8:12], "big", signed=True)
        buffer[12:16] = zlib.crc32(memoryview(buffer)[16 : max(end, 16)]).to_bytes(4, "big")


def damage(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        position = rng.randrange(len(out) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            out[position : position + 1] = bytes([rng.choice(INTERESTING)])
        elif kind == 1:
            out[position : position + 1] = rng.randbytes(1)
        elif kind == 2:
            del out[position : position + rng.choice((1, 4, 1000))]
        elif kind == 3:
            out[position:position] = rng.randbytes(rng.choice((1, 5)))
        else:
            out[position : position + 4] = rng.choice(NUMBERS)
    if rng.random() < 0.7:
        with_right_checksum(out)
    return bytes(out)


def read_all(data: bytes) -> None:
    list(read_records(data, max_decompressed_bytes=BOUND, include_control=True))


def read_memoryview(data: bytes) -> None:
    list(read_records(memoryview(bytearray(data)), max_decompressed_bytes=BOUND, check_crc=False))


def headers(data: bytes) -> None:
    list(iterate_entries(data, allow_partial=False))
    list(iterate_batches(data))


def down(data: bytes) -> None:
    for magic in (0, 1):
        list(down_convert(data, magic, max_decompressed_bytes=BOUND))


def up(data: bytes) -> None:
    up_convert(data, max_decompressed_bytes=BOUND)


def stamp(data: bytes) -> None:
    patch_max_timestamp(bytearray(data), 0, LOG_APPEND_TIME, 5)


def marker(data: bytes) -> None:
    for record in read_records(data, include_control=True, max_decompressed_bytes=BOUND):
        read_end_transaction_marker(record)


READERS = (read_all, read_memoryview, headers, down, up, stamp, marker)


def attempt(reader: Callable[[bytes], None], data: bytes) -> bool:
    try:
        reader(data)
    except RecordsError:
        return False
    return True


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_damaged_batches_parse_or_raise_the_typed_error(reader: Callable[[bytes], None]) -> None:
    parsed = refused = 0
    for seed in range(800):
        rng = random.Random(seed)
        data = damage(SEEDS[seed % len(SEEDS)], rng)
        try:
            fine = attempt(reader, data)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r} for {data.hex()}") from error
        parsed += fine
        refused += not fine
    assert refused > 50
    assert parsed > 0


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_noise_parses_or_raises_the_typed_error(reader: Callable[[bytes], None]) -> None:
    for seed in range(300):
        rng = random.Random(seed)
        noise = bytearray(rng.randbytes(rng.choice((0, 1, 11, 12, 17, 26, 34, 60, 61, 200))))
        if len(noise) > 16:
            noise[8:12] = rng.choice((*NUMBERS, (len(noise) - 12).to_bytes(4, "big")))
            noise[16] = rng.choice((0, 1, 2, 3, 255))
        try:
            attempt(reader, bytes(noise))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r} for {noise.hex()}") from error


@pytest.mark.parametrize("codec", range(1, 5), ids=CODEC_NAMES[1:])
def test_damaged_streams_decompress_within_the_bound_or_raise(codec: int) -> None:
    good = build_batch([(0, None, b"abc%d" % index * 40, None) for index in range(50)], codec=codec)
    for seed in range(1000):
        rng = random.Random(seed)
        data = damage(good[61:], rng)
        try:
            assert len(decompress(codec, data, 5000)) <= 5000
        except RecordsError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r} for {data.hex()}") from error


def test_memory_grows_with_the_bytes_and_not_with_the_claims() -> None:
    for seed in range(250):
        data = damage(SEEDS[seed % len(SEEDS)], random.Random(seed))
        for reader in (read_all, down):
            tracemalloc.start()
            try:
                attempt(reader, data)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            # Decompressors work in pieces of up to a megabyte, whatever the input.
            allowed = 3_000_000 + MEMORY_PER_BYTE * len(data) + 2 * BOUND
            assert peak < allowed, f"seed {seed}, {reader.__name__}: {peak} bytes for {data.hex()}"
