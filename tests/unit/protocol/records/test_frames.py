"""The header checksums of lz4 frames."""

import random

import cramjam
import lz4.frame
import pytest
import zstandard

from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.records.frames import (
    BLOCK_BYTES,
    frame_of_blocks,
    largest_content_bytes,
    with_broken_checksum,
    with_right_checksum,
    xxhash32,
)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0xE2293B2F),
    ],
)
def test_known_hashes(data: bytes, wanted: int) -> None:
    assert xxhash32(data) == wanted


@pytest.mark.parametrize("flags", [0x60, 0x68, 0x61, 0x69])
def test_fixing_undoes_breaking(flags: int) -> None:
    optional = (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    frame = b"\x04\x22\x4d\x18" + bytes([flags, 0x40]) + b"7" * optional + b"\0" + b"body"
    right = with_right_checksum(frame)
    broken = with_broken_checksum(right)
    assert right[6 + optional] != broken[6 + optional]
    assert with_right_checksum(memoryview(broken)) == right
    assert broken[7 + optional :] == b"body"


def test_no_frame() -> None:
    for data in (b"", b"\x04\x22\x4d\x18\x68\x40\0", b"\x05\x22\x4d\x18\x60\x40\0"):
        with pytest.raises(CorruptRecordError):
            with_right_checksum(data)


def compress_block(content: memoryview) -> bytes:
    return bytes(cramjam.lz4.compress_block(content, store_size=False))


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_the_library_of_lz4_reads_them(size: int) -> None:
    for data in (bytes(size), random.Random(size).randbytes(size)):
        frame = frame_of_blocks(data, compress_block)
        assert lz4.frame.decompress(frame) == data
        assert not lz4.frame.get_frame_info(frame)["block_linked"]


def test_a_block_that_does_not_get_shorter_is_stored() -> None:
    data = random.Random(1).randbytes(BLOCK_BYTES)
    assert len(frame_of_blocks(data, compress_block)) < BLOCK_BYTES + 20


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300, 65_536, 70_000, 1_000_000])
def test_content_size_makes_it_exact(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    packed = zstandard.ZstdCompressor(write_content_size=True).compress(data[:size])
    assert largest_content_bytes(packed) == size
    assert largest_content_bytes(packed * 2) == 2 * size


@pytest.mark.parametrize("size", [1, 1000, 200_000, 3_000_000])
def test_without_content_size_it_is_never_too_small(size: int) -> None:
    writer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    packed = writer.compress(b"0123456" * (size // 7 + 1)) + writer.flush()
    bound = largest_content_bytes(packed)
    assert size <= bound <= size + 7 + 2 * 128 * 1024


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x28\xb5\x2f\xfd",
        b"\x28\xb5\x2f\xfd\x00",
        b"\x28\xb5\x2f\xfd\x00\x58",
        b"\x28\xb5\x2f\xfd\x00\x58\x01\x00",
        b"\x28\xb5\x2f\xfd\x00\x58\x07\x00\x00",  # the reserved block type
        b"\x28\xb5\x2f\xfd\x00\x58\xff\xff\xff",  # a block of 2 MiB
        b"\x28\xb5\x2f\xfd\x00\x58\x09\x00\x00",  # a raw byte that is not there
        b"\x50\x2a\x4d\x18\xff\xff\xff\xff",  # only something to skip, and it is not there
        b"\x50\x2a\x4d\x18\x00\x00\x00\x00",
        b"nonsense",
    ],
)
def test_what_does_not_add_up_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="zstd"):
        largest_content_bytes(data)
