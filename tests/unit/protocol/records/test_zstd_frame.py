"""The bound on a zstd stream's content, from its headers."""

import pytest
import zstandard

from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.records.zstd_frame import largest_content_bytes


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
