"""Kafka's codecs by pyarrow, for Python processes that have neither cramjam nor lz4.

This is what a Python worker of Spark brings along. The functions here compress and decompress;
framings, bounds and error texts are the business of ``ottla.protocol.records.compression``.
pyarrow raises OSError or ValueError for damaged data.
"""

from typing import Any

import pyarrow as pa

from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.lz4_header import xxhash32

_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_FRAME_MAGIC = b"\x04\x22\x4d\x18"
# Version 1, independent blocks, no checksums, no content size; blocks of at most 64 KiB.
_LZ4_DESCRIPTOR = b"\x60\x40"
_LZ4_STORED = 1 << 31  # marks a block that is not compressed
_LZ4_END_MARK = bytes(4)
_LZ4_LEVEL_MIN, _LZ4_LEVEL_MAX = 1, 12  # what pyarrow takes; levels below 3 are all the fast one


def is_available(codec: str) -> bool:
    """Whether this pyarrow was built with the codec, which has Kafka's name."""
    names = ("lz4", "lz4_raw") if codec == "lz4" else (codec,)
    return all(pa.Codec.is_available(name) for name in names)


def compress_snappy_block(data: Buffer) -> bytes:
    """One raw block, as xerial framing holds them."""
    compressed: bytes = pa.Codec("snappy").compress(data, asbytes=True)
    return compressed


def decompress_snappy_block(block: Buffer, size: int) -> bytes:
    """The content of one raw block; ``size`` is the size that stands at its beginning."""
    found: bytes = pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    return found


def compress_lz4_frame(data: Buffer, level: int | None) -> bytes:
    """A frame of independent blocks of 64 KiB.

    pyarrow's own frames have linked blocks, which Java's clients cannot read, so the frame is
    put together here.
    """
    if level is None:
        codec = pa.Codec("lz4_raw")
    else:
        level = min(max(level, _LZ4_LEVEL_MIN), _LZ4_LEVEL_MAX)
        codec = pa.Codec("lz4_raw", compression_level=level)
    checksum = (xxhash32(_LZ4_DESCRIPTOR) >> 8) & 0xFF
    parts: list[Any] = [_LZ4_FRAME_MAGIC, _LZ4_DESCRIPTOR, bytes((checksum,))]
    view = memoryview(data)
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        content = view[start : start + _LZ4_BLOCK_BYTES]
        block = codec.compress(content, asbytes=True)
        if len(block) < len(content):
            parts.append(len(block).to_bytes(4, "little"))
            parts.append(block)
        else:
            parts.append((len(content) | _LZ4_STORED).to_bytes(4, "little"))
            parts.append(content)
    parts.append(_LZ4_END_MARK)
    return b"".join(parts)


def compress_zstd(data: Buffer, level: int) -> bytes:
    """One frame."""
    compressed: bytes = pa.Codec("zstd", compression_level=level).compress(data, asbytes=True)
    return compressed


def open_stream(codec: str, data: Buffer) -> Any:
    """A stream over the content of one or more frames of lz4 or zstd.

    ``read(n)`` decompresses no more than it returns and a constant; it returns b"" at the end.
    """
    return pa.CompressedInputStream(pa.BufferReader(data), codec)
